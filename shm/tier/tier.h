/* tier.h: what mt-tier's files share. tier.c decides what is read and written, and counts; drive.c has the threads that
 * do it; tile.c moves one tile. */
#ifndef MT_TIER_TIER_H
#define MT_TIER_TIER_H

#include <stdbool.h>
#include <stdint.h>
#include <xxhash.h>
#ifdef XXH_DISPATCH
#include <xxh_x86dispatch.h> /* the same functions by other names, with the same results */
#endif

#include "mt/tier.h"

/* A tile on its way goes through these steps. The transfers of one step may be under way at once. */
enum step {
	JOB_NONE,
	JOB_OPEN,   /* the file is opened, or a new one made */
	JOB_MOVE,   /* a transfer for each chunk; reading: and, as the last one, the seal */
	JOB_SEAL,   /* writing: the seal, which has the sums of all chunks */
	JOB_END,    /* reading: the sums are compared; writing: a new file takes the name */
	JOB_DONE,   /* to be counted */
	JOB_FAILED, /* ex and why say how */
};

struct fault {
	const char *what; /* NULL: there is none */
	int err;          /* errno; 0: what says it all */
	uint64_t at;      /* byte of the file */
	bool cut;         /* the file ends before its tile does */
	bool slot;        /* this process has lost its slot */
};

struct job {
	uint64_t q;
	bool write;
	struct mt_tile tile;
	char name[MT_TILE_NAME];
	uint8_t *slot;
	uint32_t chunks;
	uint64_t *sum; /* (chunks) reading: of what came */
	int fd;
	bool fresh; /* writing: a new file, NAME.new */
	uint32_t tries;
	enum step step;
	uint32_t next, under_way, transfers; /* of this step: the one to begin next, those begun and not ended, all */
	double moved;                        /* when a transfer began or ended last */
	double wait_until, reported;         /* no room on the drive: when to try again; when that was last printed */
	struct fault fault;                  /* of the transfer that failed first */
	bool lost;                           /* failed, and what the tile holds is nowhere any more */
	int ex;
	char why[1200];
};

struct tier {
	struct mt_run *run;
	struct mt_control *control;
	int fds[MT_TIER_DIRS];
	struct job *jobs;          /* (slots) */
	uint64_t reading, writing; /* the next q to be read, to be written */
	struct drive *drive;
	bool stop_requested;
	uint32_t leave_after; /* txn that was newest then */
};

/* tile.c. Begin: the job is at its first step */
void job_begin(struct tier *, struct job *, uint64_t q, bool write);
/* One transfer of the job's step. Threads do several at once */
struct fault job_transfer(struct tier *, struct job *, uint32_t transfer);
/* All that was begun of the step has ended, with job->fault if something failed: on to the next step, or to try again,
 * or it has failed */
void job_next(struct tier *, struct job *);

/* drive.c: as many readers and writers as `threads` for each directory. NULL: there can be no threads */
struct drive *drive_start(struct tier *, uint32_t threads);
/* Read or write the tile of q. Its slot has no other job: what was given for it before is done */
void drive_give(struct drive *, uint64_t q, bool write);
bool drive_done(struct drive *, uint64_t q, bool write); /* once: the slot's job is over then */
const struct job *drive_failed(struct drive *);          /* NULL: none has */
bool drive_has_no_room(struct drive *);                  /* a job waits for room */
void drive_poke(struct drive *);                         /* jobs that waited for room may try again */
/* When it returns, all that was under way has ended, and nothing else is begun */
void drive_stop(struct drive *);
uint64_t drive_busy_ns(struct drive *); /* with something under way, since the last call */
/* A job of which nothing has ended for that long: its name and the seconds. false: there is none */
bool drive_hangs(struct drive *, double seconds, char name[MT_TILE_NAME], double *since);

/* bench.c: the rate of a directory's drive as JSON on stdout, and in a file there. The exit code */
int bench(const char *dir, uint32_t threads, double seconds, uint64_t bytes);
/* move.c: "OLD=NEW": this run's directory in OLD goes to NEW, with its tiles. 0, or minus an exit code */
int move_dir(struct tier *, const char *old_new);

#endif
