/* loss.h: what a --loss is, what it needs of records, and its form in batches. */
#ifndef LOSS_H
#define LOSS_H

#include <stdbool.h>

#include "mt/documents.h"
#include "mt/memory.h"
#include "record.h"

/* What --loss stands for */
struct objective {
	enum mt_objective_kind kind;
	double option[MT_LOSS_OPTIONS]; /* those that the kind has */
};

/* O(which, name, words of --help, valid values, from, to, without `from` itself) */
#define LOSS_OPTIONS(O) \
	O(BETA, "beta", "weight of the preference", "above 0", 0, INFINITY, true) \
	O(GAMMA, "gamma", "margin that rewards should have", "0 or more", 0, INFINITY, false) \
	O(CLIP_LOW, "clip-low", "ratios of probabilities below 1 - X are clipped", "0 to 1", 0, 1, false) \
	O(CLIP_HIGH, "clip-high", "those above 1 + X are clipped; --clip-low if not given", "0 or more", 0, INFINITY, \
		false) \
	O(DESIRABLE, "desirable", "weight of chosen answers", "0 or more", 0, INFINITY, false) \
	O(UNDESIRABLE, "undesirable", "weight of rejected answers", "0 or more", 0, INFINITY, false) \
	O(TEMPERATURE, "temperature", "of both softmaxes; other than 1 with --rest 0 alone", "above 0", 0, INFINITY, true) \
	O(HARD, "hard", "share of the data's own targets in the loss", "0 to 1", 0, 1, false) \
	O(REST, "rest", "weight of what the teacher gives to all other tokens, as one class; 0: without them", "0 to 1", \
		0, 1, false)

/* Of each option a line of --help: its losses, and their defaults */
#define LOSS_HELP 160
void loss_help_make(char option[MT_LOSS_OPTIONS][LOSS_HELP]);
/* Options of other losses and values that are none end the program with 64; what is not given gets its default */
void loss_check_options(struct objective *, const bool given[MT_LOSS_OPTIONS]);

/* Does the current record, whose first document is the current one, have what the loss needs? -65: no */
int loss_check_record(enum mt_objective_kind, const struct record_reader *);

/* Does the document's teacher say `top` tokens (0: any number) of a vocabulary that is the model's, apart from padding?
 * -65: no */
int loss_check_teacher(const char *name, uint64_t record, const struct group_document *, uint64_t top, uint32_t vocab);
/* What a batch has of a position (MT_TEACHER_WORDS), from what a record has of its target */
void loss_teacher(const struct objective *, const uint32_t *words, uint32_t top, uint32_t *out);

/* Of rows, for the scales of a loss */
struct loss_counts {
	uint64_t targets, answers, pairs, chosen; /* answers: documents with a side; chosen: targets of chosen ones */
};
/* Add a row: its targets, (seq) of them, and its documents */
void loss_count(struct loss_counts *, const uint32_t *targets, uint32_t seq, const struct mt_document *, uint32_t n);
/* The objective in blocks of a step, or of an evaluation's part of so many targets: its results are weighted by
 * these */
struct mt_objective loss_objective(const struct objective *, const struct loss_counts *all, uint64_t targets);

#endif
