/* eval.h: the loss on records that are not trained on. */
#ifndef EVAL_H
#define EVAL_H

#include "driver.h"
#include "metrics.h"

struct eval {
	struct row_source source; /* of one part; first, so that it can be cast back */
	const struct options *o;
	struct vocabulary vocab;
	int fd;
	struct record_reader in;
	struct packer packer;
	uint32_t *scratch;             /* (3, seq) a row to be dropped, */
	struct mt_document *documents; /* (seq) and its documents */
	struct loss_counts counts;     /* of the whole file */
	uint64_t at;                   /* the row that the packer gives next */
	uint64_t part_first;           /* row at which the part begins */
	uint64_t rows;                 /* of the whole file */
	uint64_t n_parts, *part_targets;
};

/* Read the whole file once: errors in it are found before the first step, and its rows are counted. */
int eval_open(struct eval *, const struct options *, const struct vocabulary *);
/* Evaluate the state after `step`: one txn a part of MT_MICROS micro-batches. The caller logs the last two
 * when the result is written. The txn before the first part must be done. */
struct evaluation eval_run(struct eval *, struct driver *, uint64_t step, const struct mt_position *);
/* Was txn k, which is done, this evaluation as a whole? Then *result is its result. */
bool eval_was(const struct eval *, struct driver *, uint32_t k, struct evaluation *result);

#endif
