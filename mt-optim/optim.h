/* optim.h: what mt-optim's files share. libmt's driver (mt/optimizer.h) calls accumulate.c, then partitions.c or
 * direct.c. On several nodes, nodes.c sends the sums of squares to the one that commits. */
#ifndef MT_OPTIM_OPTIM_H
#define MT_OPTIM_OPTIM_H

#include "mt/optimizer.h"
#include "mt/stage.h"
#include "update.h"
#include "pool.h"

struct decay_run {
	uint64_t end;
	bool decay, frozen;
}; /* groups up to `end` (exclusive) decay, or not; frozen: they are not updated */

struct unit { /* a unit as the update sees it */
	struct tile tile;
	/* of MT_GROUP and of MT_BLOCK elements; the last block may be short. 0: nothing of the unit is trained */
	uint64_t groups, blocks;
	uint64_t first_group, end_group, own_blocks; /* what this node owns of them: all, on one machine */
	int grads;                                   /* gradient arrays: 2 for unit 0 of a tied model */
	struct decay_run *runs;                      /* in ascending order, the last ends at `groups` */
	struct tile early;                           /* the tile, with new weights over g (early.c) */
	bool may_early;
};

enum { MAX_UNITS = 4096 }; /* an index word names 12 bits of unit; a run has at most 1027 */

struct accumulation { /* the driver's attempt while its pieces come in; a new attempt may discard all of it */
	uint16_t *micros[2][MAX_UNITS]; /* (blocks) of [end][unit]: micros that a block of g holds, always 0..n in order */
	double *squares[MAX_UNITS];     /* (blocks) of [unit]: sum of squares of a whole block of g */
	uint64_t pieces_left;           /* blocks of this node times micros that have not come in */
	uint64_t squares_left;          /* blocks of other nodes whose sum of squares has not come in; in node 0 */
	uint32_t send_unit;             /* in another node: where it is in sending its sums, */
	uint64_t send_block;            /* counted from its first */
	uint64_t left[MAX_UNITS];       /* of pieces_left, each unit's */
	bool begun[MAX_UNITS];          /* updated before the commit: its pieces are dropped */
};

struct early {            /* early.c: the unit that is being updated before the commit */
	bool wanted, spoiled; /* by --update early; a gradient of the attempt is not finite */
	uint64_t hash;        /* of all that decides the attempt's result */
	bool busy;
	uint32_t unit;
	struct tile tile; /* what is being updated of it: all, or tile `i` of the pass whose first is number q */
	uint32_t i;
	uint64_t q, first, end;                     /* groups of the unit */
	uint64_t step, slice, slices, slice_groups; /* slice: of groups that are updated between two looks into the rings */
	struct scalars scalars;
	uint64_t start[MT_PARTITIONS]; /* groups before it are done */
};

struct optim {
	struct mt_optimizer driver;
	struct mt_run *run; /* the driver's */
	struct mt_control *control;
	struct mt_partition *partitions; /* (MT_PARTITIONS) */
	uint64_t threads;                /* as requested; 0: not given */
	struct pool *pool, *alone;       /* optim_pool's, optim_pool_alone's */
	update_fn *update;
	uint32_t node, nodes;
	struct mt_ring *squares[MT_NODES]; /* node 0: [r] of node r; others: [0], its own */
	struct unit *units;
	uint32_t n_units;
	bool g_bf16, direct; /* direct: --grad none, units are updated from the rings' blocks */
	struct accumulation accumulation;
	struct early early;
};

/* threads.c: created by the first call: as many as --threads requests, or as the cores and the run's device allow */
struct pool *optim_pool(struct optim *);
/* For unit 0 after the commit: no mt-stream can compute before it is published, so their cores are free, too */
struct pool *optim_pool_alone(struct optim *);

/* units.c: the units' arrays and tables. 71: no memory */
int units_make(struct optim *);
/* The update of groups [first, end) of a unit by one partition; tile: the unit's, or one whose g is a piece */
void unit_update(const struct optim *, const struct scalars *, const struct tile *, uint32_t unit, uint64_t step,
	uint32_t partition, uint64_t first, uint64_t end);

/* Ends the program when the run is gone (0), dirty or damaged, or a ring is (65), or this process has lost its slot
 * (75); called wherever mt-optim waits */
void leave_if_gone(struct optim *);
/* Ends the program with 75 when this process has lost its slot. Any thread may call it. */
void leave_if_lost(struct optim *);

/* accumulate.c: the driver's `begin` and `accumulate`; the norm, and whether a step is skipped */
int accumulate_begin(void *optim);
int accumulate_round(void *optim);

/* early.c: may units be updated before the commit? Ends the program if the run has no room for that (78) */
void early_open(struct optim *, bool wanted);
void early_attempt(struct optim *); /* an attempt begins: what earlier ones have updated */
bool early_round(struct optim *);   /* rings have nothing: update some; true if anything moved */
/* Before the commit: the unit that is being updated. false: its next tile is not loaded */
bool early_finish(struct optim *);
void early_skips(struct optim *, uint64_t step); /* it must be skipped: ends the program if units are updated (65) */
bool early_ended(const struct optim *, uint32_t unit, uint64_t step);         /* all but w is updated */
double early_squares(const struct optim *, uint32_t unit);                    /* of what was its gradient */
void early_copy(struct optim *, uint32_t unit, uint64_t first, uint64_t end); /* groups of the new w to their place */

/* nodes.c: the rings for sums of squares, of a run on several nodes */
void nodes_open(struct optim *);
void nodes_begin(struct optim *); /* of an attempt: no sum has come in or was sent */
/* A round of accumulation: node 0 takes the sums that have come in; another sends its own when all of its pieces are
 * in. true if anything moved. */
bool nodes_round(struct optim *);
/* The step that this node's part of a unit is at; on one machine, its version */
uint64_t nodes_at(const struct optim *, uint32_t unit);

/* partitions.c: the unit is at the step: publish it, from any thread */
void unit_publish(struct optim *, uint32_t u, uint64_t step);
/* Turn every unit into the txn's step from g, going on where a predecessor died. false: asked to stop, and mt-tier,
 * which has the rest, is dead */
bool apply(struct optim *, const struct mt_attempt *, const struct scalars *);
/* Where a partition goes on in a range of groups of a unit: `first`, or the group that its index names, restored */
uint64_t partition_resume(struct optim *, const struct tile *, uint32_t unit, uint64_t step, uint32_t partition,
	uint64_t first, uint64_t end);

/* direct.c: the same from the pieces in the txn's ring */
bool apply_direct(struct optim *, const struct mt_attempt *, const struct scalars *);

/* waits.c: wait until no pin counts for the unit. Any thread may call it. */
void wait_unpinned(struct optim *, uint32_t unit);
/* Tile i of a pass as the update sees it, when it is number q of the run: a unit's tile with lo, m and v in the
 * slot. Their pointers are where element 0 of the unit would be. */
struct tile tier_tile(const struct optim *, const struct tile *of, uint32_t i, uint64_t q);
/* Tiles that are updated of the pass whose first is number q; ends the program if the tier is not in it (65) */
uint64_t tier_updated(struct optim *, uint64_t q);
bool tier_loaded(const struct optim *, uint64_t q);
void tier_count(struct optim *, uint64_t q); /* tile q is updated */
/* Wait until tile q is loaded, of a unit. false: asked to stop, and mt-tier is dead. Any thread may
 * call it. */
bool tier_wait(struct optim *, uint64_t q, uint32_t unit);

#endif
