/* driver.h: one txn after another: open it, deal its micro-batches, wait for it, log it. */
#ifndef DRIVER_H
#define DRIVER_H

#include "ahead.h"

/* Where a txn's micro-batches come from. Micros are requested in ascending order; after an abort from 0 again. */
struct row_source {
	uint64_t rows;                 /* of the whole txn; micro j has rows j * micro up to (j + 1) * micro */
	uint64_t targets;              /* of the whole txn */
	uint64_t processed;            /* of a training txn: tokens of documents in its rows */
	bool weighted;                 /* blocks have weights, too; with an objective they always have */
	struct mt_objective objective; /* of the whole txn; of kind nll: none */
	uint32_t documents;            /* with an objective, of the block that `fill` made last; */
	uint32_t top;                  /* and of a teacher's tokens, how many a position has */
	int (*fill)(struct row_source *, uint64_t first, uint32_t rows, uint32_t *block); /* block as mt/memory.h has it */
	int (*rewind)(struct row_source *);
};

/* Rows in memory as a source: whole arrays of (rows, seq); weights are read where the source is weighted */
struct rows_source {
	struct row_source source; /* first, so that it can be cast back */
	uint64_t seq;
	uint32_t *tokens, *targets, *starts;
	float *weights;
	float *old;                    /* with an objective, as what follows: */
	uint32_t *teacher;             /* (rows, seq, MT_TEACHER_WORDS), of a loss that needs it */
	struct mt_document *documents; /* (rows, seq) of each row its first ones, with places in the row as `begin` */
	uint32_t *n_documents;         /* (rows) how many they are */
};
/* Write an objective into a block of n positions. Returns where its documents stand. */
struct mt_document *objective_fill(const struct row_source *, uint64_t n, uint32_t *block);
int rows_fill(struct row_source *, uint64_t first, uint32_t rows, uint32_t *block);
int rows_rewind(struct row_source *);

struct driver {
	struct mt_run *run;
	const struct options *o;
	struct mt_ring *ring[MT_STREAMS];
	int streams;    /* rings: of all nodes' mt-streams */
	uint32_t wakes; /* what it waits for: transactions, saves, rows, room for micro-batches */

	/* the newest txn, while it is in accumulate */
	struct row_source *source;       /* NULL: nothing to deal */
	uint32_t attempt;                /* under which micros were dealt; 0: none yet */
	uint32_t micros, next;           /* of the txn; the next one to push */
	int live[MT_STREAMS], n_live;    /* streams of this attempt */
	uint32_t shares[MT_STREAMS];     /* of streams that differ */
	int n_shares;                    /* 0: they are alike; else the first n_shares are needed, and no other one */
	uint64_t participants[MT_SLOTS]; /* slot words when this attempt began */
	struct dealt {
		uint64_t tokens, busy_ns; /* of the stream, when the last attempt began */
		double last[2], pace;     /* ns a token: in the last two attempts, 0: not yet; what counts in this one */
		uint32_t micros;          /* that it got in this attempt */
	} dealt[MT_STREAMS];

	double lost[MT_SLOTS +
		1];             /* since when a stage that is needed has been missing, 0: it is there; last: any mt-stream */
	bool met[MT_SLOTS]; /* has been seen alive */
	double looked;      /* when peers were looked at last */

	uint64_t rows[2]; /* of this mt-step's newest two txns, k's at k & 1; 0: another mt-step opened it */
	uint32_t scores;  /* of an evaluation's batch messages; */
	uint32_t top;     /* of all: in training those of a loss that needs a teacher */
	double mark;      /* when the last step was done, for time_s */
	uint64_t failed;  /* failed saves that have been reported */
	bool save_failed;
	bool abandoned;        /* a signal stopped us, and also a stage that the txn in accumulate needs */
	double stop_requested; /* when the signal was first seen; 0: no signal */
	int frozen;            /* 1 + slot of a stage that this step needs and that is stopped by SIGSTOP */
};

/* ---- driver.c */

/* Ring handles and the check that a micro-batch fits their blocks. */
int driver_open(struct driver *, struct mt_run *, const struct options *);
/* Open txn newest + 1: everything before it must be committed, and newest - 1 logged. */
uint32_t driver_begin(struct driver *, enum mt_kind, uint64_t step, double lr, bool save, bool last,
	const struct mt_position *, struct row_source *);
/* Withdraw the txn in accumulate: nothing of it has been decided. */
void driver_withdraw(struct driver *);
/* At every exit: withdraw an undecided step and release the slot. The mapping stays: the packing thread may still ring
 * the doorbell. */
void driver_leave(struct driver *);
/* Leave the open step to a successor, and die of the signal. */
_Noreturn void driver_abandon(struct driver *);
/* Ends the program with 75 when another mt-step holds the slot. */
void driver_check(struct driver *);
enum mt_phase driver_phase(struct driver *, uint32_t k);
/* Do all that needs no waiting: deal micros, watch the peers. Ends the program when a peer is missing too long. */
void driver_turn(struct driver *);
/* Sleep until something that a turn reads may have changed since `seen`. */
void driver_sleep(struct driver *, uint32_t seen);
/* Turn until txn k has reached that phase. */
void driver_wait(struct driver *, uint32_t k, enum mt_phase);
void driver_logged(struct driver *, uint32_t k);
/* Request a snapshot of the txn in accumulate. false: it is too late. */
bool driver_save_late(struct driver *);

/* ---- peers.c */

/* Abort the attempt of a dead stage, wait for its successor, end the program with 69 after --wait seconds. */
void peers_watch(struct driver *);
/* Ends the program when the run is gone (69), dirty or damaged (65), or this process has lost its slot (75) */
void peers_check_run(struct driver *);
/* Wait for mt-ckpt as for any stage that is needed. */
void peers_need_saver(struct driver *);
/* Record who takes part in the next attempt: live, n_live, participants. false: there is no mt-stream. */
bool peers_assemble(struct driver *);
/* A signal came 2 seconds ago, and this stage, which must act before mt-step can end, is stopped (SIGSTOP). */
bool peers_frozen(struct driver *, int slot);
/* Has a participant left since? */
bool peers_changed(struct driver *);

#endif
