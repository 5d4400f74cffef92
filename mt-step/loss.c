/* loss.c: losses of documents, and the records that they take. */
#include <string.h>

#include "loss.h"
#include "mt/error.h"

static const char *const names[LOSSES] =
	{[MT_NLL] = "nll", [MT_PG] = "pg", [MT_DPO] = "dpo", [MT_SIMPO] = "simpo", [MT_ORPO] = "orpo"};

const char *loss_name_of(enum mt_objective_kind kind) { return names[kind]; }

int loss_parse(const char *name, enum mt_objective_kind *kind)
{
	for (*kind = MT_NLL; *kind < LOSSES; ++*kind)
		if (!strcmp(name, names[*kind])) return 0;
	return mt_fail(MT_EX_USAGE, "--loss: '%s' is not nll, pg, dpo, simpo or orpo", name);
}

static int check_document(enum mt_objective_kind kind, const struct record_reader *r, uint32_t number, uint32_t parts)
{
	unsigned long long of = r->records;
	if (parts & GROUP_SIDE && !loss_of_pairs(kind))
		return mt_fail(MT_EX_DATA, "%s: record %llu: is a pair, which is for --loss dpo, simpo or orpo, not %s",
			r->name, of, names[kind]);
	if (!(parts & GROUP_SIDE) && loss_of_pairs(kind))
		return mt_fail(MT_EX_DATA,
			"%s: record %llu: is no pair, which --loss %s needs: mt-tokens makes pairs of chosen and rejected", r->name,
			of, names[kind]);
	if (!(parts & GROUP_REF) && kind == MT_DPO)
		return mt_fail(MT_EX_DATA,
			"%s: record %llu, document %u: has no ref, which --loss dpo needs: mt-score --join ref writes it", r->name,
			of, number);
	if (parts & GROUP_WEIGHTS && loss_of_pairs(kind))
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: has weights, which --loss %s does not use", r->name,
			of, number, names[kind]);
	if (!(parts & GROUP_WEIGHTS) && kind == MT_PG)
		return mt_fail(MT_EX_DATA,
			"%s: record %llu, document %u: has no weights, which are its advantages in --loss pg: mt-tokens writes "
			"them of advantage",
			r->name, of, number);
	if (!(parts & GROUP_OLD) && kind == MT_PG)
		return mt_fail(MT_EX_DATA,
			"%s: record %llu, document %u: has no old log-probabilities, which --loss pg needs: mt-tokens writes those "
			"of logprobs, mt-score --join old computes them",
			r->name, of, number);
	return 0;
}

int loss_check_record(enum mt_objective_kind kind, const struct record_reader *r)
{
	struct group_document d;
	uint32_t number = 1;
	if (!r->words) return check_document(kind, r, number, 0);
	for (uint32_t at = 0; at < r->words; number++) {
		int rc = group_document(r->name, r->records, number, r->group + 1, r->words, &at, &d);
		if (!rc) rc = check_document(kind, r, number, d.parts);
		if (rc) return rc;
	}
	return 0;
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
	uint64_t n = loss_of_pairs(o->kind) ? all->pairs : all->targets;
	return (struct mt_objective){.kind = o->kind,
		.scale = n ? part / (double)n : 0,
		.beta = o->beta,
		.gamma = o->gamma,
		.low = o->low,
		.high = o->high,
		.chosen_scale = all->chosen ? part / (double)all->chosen : 0};
}
