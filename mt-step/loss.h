/* loss.h: what a --loss is, what it needs of records, and its form in batches. */
#ifndef LOSS_H
#define LOSS_H

#include <stdbool.h>

#include "mt/documents.h"
#include "mt/memory.h"
#include "record.h"

#define LOSSES (MT_ORPO + 1)

/* What --loss stands for. The default, nll, has no numbers */
struct objective {
	enum mt_objective_kind kind;
	double beta, gamma, low, high; /* those that the kind has */
};

const char *loss_name_of(enum mt_objective_kind);
/* -64: --loss has no such name */
int loss_parse(const char *name, enum mt_objective_kind *);
/* Are two answers compared? */
static inline bool loss_of_pairs(enum mt_objective_kind kind)
{
	return kind == MT_DPO || kind == MT_SIMPO || kind == MT_ORPO;
}

/* Does the current record, whose first document is the current one, have what the loss needs? -65: no */
int loss_check_record(enum mt_objective_kind, const struct record_reader *);

/* Of rows, for the scales of a loss */
struct loss_counts {
	uint64_t targets, pairs, chosen; /* chosen: targets of chosen documents */
};
/* Add a row: its targets, (seq) of them, and its documents */
void loss_count(struct loss_counts *, const uint32_t *targets, uint32_t seq, const struct mt_document *, uint32_t n);
/* The objective in blocks of a step, or of an evaluation's part of so many targets: its results are weighted by
 * these */
struct mt_objective loss_objective(const struct objective *, const struct loss_counts *all, uint64_t targets);

#endif
