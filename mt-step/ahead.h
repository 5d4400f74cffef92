/* ahead.h: a thread that packs the rows of coming steps while the current one is computed. */
#ifndef AHEAD_H
#define AHEAD_H

#include "options.h"

struct rows {                            /* the rows of one step */
	uint32_t *tokens, *targets, *starts; /* (batch, seq) each, */
	float *weights;                      /* and of targets */
	bool weighted;                       /* a document of the step has weights */
	float *old;                          /* as in rows_source; NULL without an objective, as the next three */
	uint32_t *teacher;
	struct mt_document *documents;
	uint32_t *n_documents;
	struct mt_objective objective;
	uint64_t n; /* rows; 0: no input is left */
	uint64_t n_targets;
	uint64_t n_processed;        /* tokens of documents, without padding */
	struct mt_position position; /* after these rows */
	bool last;                   /* the input is known to end here */
	/* of the input as far as it has been read: records; those longer than a row, but for groups that are dropped */
	uint64_t records, cut_documents, groups_dropped;
	int rc; /* minus an exit code: the input is invalid, see error */
	char error[512];
};

struct ahead;

/* Read records from fd, skip those that `from` says were consumed, pack the rows of at most `steps` steps. look: find
 * out whether a step is the last one before it is handed out. Rings run's doorbell when a step's rows are ready. */
int ahead_start(struct ahead **, struct mt_run *run, const struct options *, int fd, const struct mt_position *from,
	uint64_t steps, bool look);
/* The next step's rows, or NULL while they are not ready. There are two sets: give one back before the third. */
struct rows *ahead_take(struct ahead *);
void ahead_give_back(struct ahead *); /* the oldest one taken */

#endif
