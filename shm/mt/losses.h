/* losses.h: the losses. From a line of this table follow the kind in batches, the name of --loss, what records and
 * batches must have, and the options with their defaults. mt-stream/objective.c has the formulas, and
 * mt-stream/LOSSES.md says how to add one. A new line is a new MT_ABI. */
#ifndef LIBMT_LOSSES_H
#define LIBMT_LOSSES_H

#include <stdbool.h>
#include <stdint.h>

/* What a loss is the mean of: targets; answers, which are documents with a side; pairs of them, chosen and rejected */
enum mt_loss_unit { MT_TARGETS, MT_ANSWERS, MT_PAIRS };

/* What a document of a record may have beside its tokens, as bits of the record (mt-step(1)) */
enum mt_record_part { MT_PART_SIDE = 1, MT_PART_REF = 2, MT_PART_WEIGHTS = 8, MT_PART_OLD = 16, MT_PART_TEACHER = 32 };

/* Numbers that some losses have: options of mt-step */
enum mt_loss_option {
	MT_BETA,
	MT_GAMMA,
	MT_CLIP_LOW,
	MT_CLIP_HIGH,
	MT_DESIRABLE,
	MT_UNDESIRABLE,
	MT_TEMPERATURE,
	MT_HARD,
	MT_REST,
	MT_LOSS_OPTIONS
};

/* clang-format off */

#define MT_LOSSES(L) \
	L(NLL, "nll", MT_TARGETS, 0, {{0}}) \
	L(PG, "pg", MT_TARGETS, MT_PART_WEIGHTS | MT_PART_OLD, \
		{[MT_CLIP_LOW] = {true, 0.2}, [MT_CLIP_HIGH] = {true, 0.2}}) \
	L(DPO, "dpo", MT_PAIRS, MT_PART_REF, {[MT_BETA] = {true, 0.1}}) \
	L(SIMPO, "simpo", MT_PAIRS, 0, {[MT_BETA] = {true, 2}, [MT_GAMMA] = {true, 1}}) \
	L(ORPO, "orpo", MT_PAIRS, 0, {[MT_BETA] = {true, 0.1}}) \
	L(KTO, "kto", MT_ANSWERS, MT_PART_REF, \
		{[MT_BETA] = {true, 0.1}, [MT_DESIRABLE] = {true, 1}, [MT_UNDESIRABLE] = {true, 1}}) \
	L(KD, "kd", MT_TARGETS, MT_PART_TEACHER, \
		{[MT_TEMPERATURE] = {true, 1}, [MT_HARD] = {true, 0}, [MT_REST] = {true, 1}})

/* "nll|pg|...": what --loss takes */
#define MT_LOSS_OR(kind, name, ...) "|" name
#define MT_LOSS_CHOICE &(MT_LOSSES(MT_LOSS_OR))[1]

#define MT_LOSS_KIND(kind, ...) MT_##kind,
enum mt_objective_kind { MT_LOSSES(MT_LOSS_KIND) MT_LOSS_KINDS };

/* clang-format on */

struct mt_loss_kind {
	const char *name;
	enum mt_loss_unit unit;
	unsigned needs; /* of enum mt_record_part, beside sides, which answers and pairs have */
	struct {
		bool has;
		double by_default;
	} option[MT_LOSS_OPTIONS];
};

/* By enum mt_objective_kind, MT_LOSS_KINDS of them */
extern const struct mt_loss_kind mt_losses[];

/* Their names, as "dpo, simpo or orpo": of all losses that is(loss, x) is true of, or of all (NULL); in
 * buf, which is returned */
#define MT_LOSS_NAMES 128
const char *mt_loss_names(char buf[MT_LOSS_NAMES], bool (*is)(const struct mt_loss_kind *, int), int x);
/* -64: --loss has no such name */
int mt_loss_parse(const char *name, enum mt_objective_kind *);

/* Is kind one whose batches have documents and an objective? */
static inline bool mt_is_objective(uint32_t kind) { return kind > MT_NLL && kind < MT_LOSS_KINDS; }

#endif
