/* loss.c: losses: their options, and the records that they take. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "loss.h"
#include "mt/error.h"

/* ---- options ---- */

#define OPTION(which, name_, what_, range_, from_, to_, above_) \
	[MT_##which] = {name_, what_, range_, from_, to_, above_},
static const struct {
	const char *name, *what, *range;
	double from, to;
	bool above; /* `from` itself is not valid */
} options[] = {LOSS_OPTIONS(OPTION)};

static bool has_option(const struct mt_loss_kind *loss, int option) { return loss->option[option].has; }

/* Of an option: the losses' names (0), or their defaults (1), with commas between */
static int put_losses(char *out, int at, int o, int defaults)
{
	const char *between = "";
	for (const struct mt_loss_kind *l = mt_losses; l < mt_losses + MT_LOSS_KINDS; l++) {
		if (!has_option(l, o)) continue;
		char number[32];
		snprintf(number, sizeof number, "%g", l->option[o].by_default);
		at += snprintf(out + at, (size_t)(LOSS_HELP - at), "%s%s", between, defaults ? number : l->name);
		between = ", ";
	}
	return at;
}

void loss_help_make(char option[MT_LOSS_OPTIONS][LOSS_HELP])
{
	for (int o = 0; o < MT_LOSS_OPTIONS; o++) {
		int at = put_losses(option[o], 0, o, 0);
		at += snprintf(option[o] + at, (size_t)(LOSS_HELP - at), ": %s (default: ", options[o].what);
		at = put_losses(option[o], at, o, 1);
		snprintf(option[o] + at, (size_t)(LOSS_HELP - at), ")");
	}
}

void loss_check_options(struct objective *l, const bool given[MT_LOSS_OPTIONS])
{
	char names[MT_LOSS_NAMES];
	for (int o = 0; o < MT_LOSS_OPTIONS; o++) {
		double *x = &l->option[o];
		if (given[o] && !mt_losses[l->kind].option[o].has)
			mt_die(MT_EX_USAGE, "--%s goes with --loss %s", options[o].name, mt_loss_names(names, has_option, o));
		if (!given[o]) *x = mt_losses[l->kind].option[o].by_default;
		if (given[o] && !(options[o].above ? *x > options[o].from : *x >= options[o].from && *x <= options[o].to))
			mt_die(MT_EX_USAGE, "--%s: %s", options[o].name, options[o].range);
	}
	if (!given[MT_CLIP_HIGH]) l->option[MT_CLIP_HIGH] = l->option[MT_CLIP_LOW];
	if (l->kind == MT_KD && l->option[MT_TEMPERATURE] != 1 && l->option[MT_REST] != 0)
		mt_die(MT_EX_USAGE, "--temperature: the mass of all other tokens is known at 1 alone: --rest 0 leaves it out");
}

/* ---- records ---- */

static bool has_unit(const struct mt_loss_kind *loss, int unit) { return (int)loss->unit == unit; }

/* Is the record, one of whose documents is d, no pair or no answer where the loss wants one, or one where it does not?
 * A chosen answer is a document to train on as any other. */
static int check_form(const struct mt_loss_kind *loss, const struct record_reader *r, const struct group_document *d)
{
	bool sides = d->side != MT_SIDE_NONE, two = r->documents > 1;
	char names[MT_LOSS_NAMES];
	unsigned long long of = r->records;
	if (sides && loss->unit == MT_TARGETS && (two || loss->needs || d->side == MT_REJECTED))
		return mt_fail(MT_EX_DATA, "%s: record %llu: is %s, which is for --loss %s, not %s", r->name, of,
			two ? "a pair" : "an answer with a side", mt_loss_names(names, has_unit, two ? MT_PAIRS : MT_ANSWERS),
			loss->name);
	if (loss->unit == MT_PAIRS && (!sides || !two))
		return mt_fail(MT_EX_DATA,
			"%s: record %llu: is no pair, which --loss %s needs: mt-tokens makes pairs of chosen and rejected", r->name,
			of, loss->name);
	if (loss->unit == MT_ANSWERS && !sides)
		return mt_fail(MT_EX_DATA,
			"%s: record %llu: has no side, which --loss %s needs: mt-tokens writes it of label, or of chosen and "
			"rejected",
			r->name, of, loss->name);
	return 0;
}

/* Parts that a loss may need beside sides, and whence they come */
static const struct {
	enum mt_record_part part;
	const char *what, *whence;
} needed[] = {
	{MT_PART_REF, "no ref, which --loss %s needs", "mt-score --join ref writes it"},
	{MT_PART_WEIGHTS, "no weights, which are its advantages in --loss %s", "mt-tokens writes them of advantage"},
	{MT_PART_OLD, "no old log-probabilities, which --loss %s needs",
		"mt-tokens writes those of logprobs, mt-score --join old computes them"},
	{MT_PART_TEACHER, "no teacher, which --loss %s needs", "mt-score --top K writes it"},
};

static int check_document(const struct mt_loss_kind *loss, const struct record_reader *r, uint32_t number,
	const struct group_document *d)
{
	unsigned long long of = r->records;
	uint32_t parts = d->parts;
	int rc = check_form(loss, r, d);
	if (rc) return rc;
	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
		char what[MT_LOSS_NAMES];
		if (parts & needed[i].part || !(loss->needs & needed[i].part)) continue;
		snprintf(what, sizeof what, needed[i].what, loss->name);
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: has %s: %s", r->name, of, number, what,
			needed[i].whence);
	}
	if (parts & MT_PART_WEIGHTS && loss->unit != MT_TARGETS)
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: has weights, which --loss %s does not use", r->name,
			of, number, loss->name);
	return 0;
}

int loss_check_record(enum mt_objective_kind kind, const struct record_reader *r)
{
	struct group_document d = {0};
	uint32_t number = 1;
	if (!r->words) return check_document(&mt_losses[kind], r, number, &d);
	for (uint32_t at = 0; at < r->words; number++) {
		int rc = group_document(r->name, r->records, number, r->group + 1, r->words, &at, &d);
		if (!rc) rc = check_document(&mt_losses[kind], r, number, &d);
		if (rc) return rc;
	}
	return 0;
}

int loss_check_teacher(const char *name, uint64_t record, const struct group_document *d, uint64_t top, uint32_t vocab)
{
	enum { PADDING = 512 }; /* models of one tokenizer differ by so many tokens, which no text has */
	uint32_t differ = d->vocabulary > vocab ? d->vocabulary - vocab : vocab - d->vocabulary;
	unsigned long long of = record;
	if (top && d->top != top)
		return mt_fail(MT_EX_DATA, "%s: record %llu: has %u tokens of its teacher in place of %llu", name, of, d->top,
			(unsigned long long)top);
	if (differ > PADDING && vocab < MT_CONTEXT_ONLY) /* else the model is not known */
		return mt_fail(MT_EX_DATA,
			"%s: record %llu: its teacher has a vocabulary of %u tokens, the model one of %u: they must be the same",
			name, of, d->vocabulary, vocab);
	const uint32_t *words = d->teacher;
	for (uint32_t i = 1; i < d->count; i++) {
		if (!record_targets(d, i)) continue;
		if (words[d->top - 1] >= vocab) /* they ascend */
			return mt_fail(MT_EX_DATA,
				"%s: record %llu, element %u: its teacher's token %u is outside the vocabulary of %u", name, of, i,
				words[d->top - 1], vocab);
		words += record_teacher_words(d->top);
	}
	return 0;
}

void loss_teacher(const struct objective *o, const uint32_t *words, uint32_t top, uint32_t *out)
{
	double sum = 0, rate = 1 / o->option[MT_TEMPERATURE], most = -INFINITY;
	for (uint32_t i = 0; i < top; i++) most = fmax(most, (double)record_teacher_log(words, top, i));
	for (int write = 0; write < 2; write++)
		for (uint32_t i = 0; i <= top; i++) {
			double p = exp(((double)record_teacher_log(words, top, i) - most) * rate);
			if (i == top) p = o->option[MT_REST] == 0 ? 0 : p * o->option[MT_REST];
			float share = (float)(p / sum);
			if (write) memcpy(out + top + i, &share, sizeof share);
			else sum += p;
		}
	memcpy(out, words, top * sizeof *out);
}

static uint64_t targets_of(const uint32_t *targets, uint32_t from, uint32_t end)
{
	uint64_t n = 0;
	for (uint32_t i = from; i < end; i++) n += targets[i] != MT_NO_TARGET;
	return n;
}

void loss_count(struct loss_counts *c, const uint32_t *targets, uint32_t seq, const struct mt_document *d, uint32_t n)
{
	c->targets += targets_of(targets, 0, seq);
	for (uint32_t i = 0; i < n; i++) {
		c->answers += d[i].side != MT_SIDE_NONE;
		if (d[i].side != MT_CHOSEN) continue;
		c->pairs++;
		c->chosen += targets_of(targets, d[i].begin, i + 1 < n ? d[i + 1].begin : seq);
	}
}

/* An evaluation adds its parts' losses, each times the part's targets, and divides by all: hence `part`, which is 1
 * for a step and for an evaluation of one part. */
struct mt_objective loss_objective(const struct objective *o, const struct loss_counts *all, uint64_t targets)
{
	double part = targets ? (double)all->targets / (double)targets : 0;
	const uint64_t of[] = {[MT_TARGETS] = all->targets, [MT_ANSWERS] = all->answers, [MT_PAIRS] = all->pairs};
	enum mt_loss_unit unit = mt_losses[o->kind].unit;
	double each = of[unit] ? part / (double)of[unit] : 0, chosen = all->chosen ? part / (double)all->chosen : 0;
	return (struct mt_objective){.kind = o->kind,
		.scale = unit == MT_ANSWERS ? each * o->option[MT_UNDESIRABLE] : each,
		.beta = o->option[MT_BETA],
		.gamma = o->option[MT_GAMMA],
		.low = o->option[MT_CLIP_LOW],
		.high = o->option[MT_CLIP_HIGH],
		.chosen_scale = o->kind == MT_KD ? o->option[MT_HARD]
			: unit == MT_ANSWERS         ? each * o->option[MT_DESIRABLE]
										 : chosen,
		.temperature = o->option[MT_TEMPERATURE]};
}
