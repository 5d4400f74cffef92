/* objective.c: losses that are functions of documents' log-probabilities, and their gradients.
 *
 *     pg     -min(r A, clip(r, 1 - low, 1 + high) A), r = e^(logp - old), of each target     Schulman et al. 2017
 *     dpo    softplus(-beta ((logp - ref) of chosen - (logp - ref) of rejected))             Rafailov et al. 2023
 *     simpo  softplus(-(beta (m of chosen - m of rejected) - gamma)), m = logp / targets     Meng et al. 2024
 *     orpo   -logp of chosen; beta softplus(-(logit(e^m) of chosen - logit(e^m) of rejected))  Hong et al. 2024
 *
 * each times its scale. softplus(-x) is -log sigmoid(x). Tests compare them with TRL's (tests/golden/objectives.py).
 */
#include <math.h>
#include <string.h>

#include "objective.h"

/* ---- stable forms ---- */

static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

static double sigmoid(double x)
{
	double e = exp(-fabs(x));
	return (x >= 0 ? 1 : e) / (1 + e);
}

/* log(1 - e^x) of x < 0 */
static double log1mexp(double x) { return x > -M_LN2 ? log(-expm1(x)) : log1p(-exp(x)); }

/* ---- a pair, a target ---- */

/* The loss factor softplus(-x) of a pair; its slope, -dloss / dx */
static double pair_loss(struct pair *p, double factor, double x)
{
	p->loss += factor * softplus(-x);
	return factor * sigmoid(-x);
}

static struct pair dpo(const struct mt_objective *how, const struct side *chosen, const struct side *rejected)
{
	double ratio[2] = {chosen->logp - chosen->ref, rejected->logp - rejected->ref};
	struct pair p = {.reward = {how->beta * ratio[0], how->beta * ratio[1]}};
	double slope = how->beta * pair_loss(&p, how->scale, how->beta * (ratio[0] - ratio[1]));
	p.scale[0] = slope;
	p.scale[1] = -slope;
	return p;
}

static double mean_of(const struct side *s) { return s->logp / (double)s->targets; }

static struct pair simpo(const struct mt_objective *how, const struct side *chosen, const struct side *rejected)
{
	double mean[2] = {mean_of(chosen), mean_of(rejected)};
	struct pair p = {.reward = {how->beta * mean[0], how->beta * mean[1]}};
	double slope = how->beta * pair_loss(&p, how->scale, how->beta * (mean[0] - mean[1]) - how->gamma);
	p.scale[0] = slope / (double)chosen->targets;
	p.scale[1] = -slope / (double)rejected->targets;
	return p;
}

/* The odds of a probability of 1 are those of the largest one below it: not infinite, but beyond fp32 */
static double below_one(double mean) { return mean > -1e-300 ? -1e-300 : mean; }

static struct pair orpo(const struct mt_objective *how, const struct side *chosen, const struct side *rejected)
{
	double mean[2] = {below_one(mean_of(chosen)), below_one(mean_of(rejected))};
	struct pair p = {.loss = -how->chosen_scale * chosen->logp, .reward = {how->beta * mean[0], how->beta * mean[1]}};
	double odds = mean[0] - mean[1] - (log1mexp(mean[0]) - log1mexp(mean[1]));
	double slope = pair_loss(&p, how->beta * how->scale, odds);
	p.scale[0] = how->chosen_scale + slope / (-expm1(mean[0]) * (double)chosen->targets);
	p.scale[1] = -slope / (-expm1(mean[1]) * (double)rejected->targets);
	return p;
}

struct pair objective_pair(const struct mt_objective *how, const struct side *chosen, const struct side *rejected)
{
	if (how->kind == MT_DPO) return dpo(how, chosen, rejected);
	return how->kind == MT_SIMPO ? simpo(how, chosen, rejected) : orpo(how, chosen, rejected);
}

struct target objective_target(const struct mt_objective *how, double logp, double old, double advantage)
{
	double ratio = exp(logp - old), high = 1 + how->high, low = 1 - how->low;
	bool clipped = (advantage > 0 && ratio > high) || (advantage < 0 && ratio < low);
	double bound = clipped ? advantage > 0 ? high : low : ratio;
	if (advantage == 0) return (struct target){0}; /* whatever the ratio is, infinity too */
	return (struct target){
		.loss = -how->scale * bound * advantage,
		.scale = clipped ? 0 : how->scale * ratio * advantage,
		.clipped = clipped,
	};
}

/* ---- a micro-batch ---- */

struct stretch { /* of positions */
	uint32_t from, to;
};

static struct stretch stretch_of(const struct objective *o, uint32_t k)
{
	uint32_t from = o->document[k].begin, row_end = (from / o->seq + 1) * o->seq;
	uint32_t next = k + 1 < o->documents ? o->document[k + 1].begin : row_end;
	return (struct stretch){from, next < row_end ? next : row_end};
}

static struct side side_of(const struct objective *o, uint32_t k)
{
	struct stretch e = stretch_of(o, k);
	struct side s = {.ref = o->document[k].ref};
	for (uint32_t i = e.from; i < e.to; i++) {
		if (o->targets[i] == MT_NO_TARGET) continue;
		s.logp += 0 - fabs(o->losses[i]); /* as mt-score sums them, for ref */
		s.targets++;
	}
	return s;
}

static void scale_set(const struct objective *o, float *scales, uint32_t i, double scale, struct objective_sums *sums)
{
	float x = (float)(scale / o->loss_scale);
	if (!isfinite(x)) sums->loss = NAN;
	if (scales) scales[i] = x;
}

static void document_set(const struct objective *o, float *scales, uint32_t k, double scale,
	struct objective_sums *sums)
{
	struct stretch e = stretch_of(o, k);
	for (uint32_t i = e.from; i < e.to; i++)
		if (o->targets[i] != MT_NO_TARGET) scale_set(o, scales, i, scale, sums);
}

/* Documents k and k + 1 */
static void pair_add(const struct objective *o, uint32_t k, float *scales, struct objective_sums *sums)
{
	uint32_t chosen = o->document[k].side == MT_CHOSEN ? k : k + 1, rejected = chosen == k ? k + 1 : k;
	struct side side[2] = {side_of(o, chosen), side_of(o, rejected)};
	struct pair p = objective_pair(o->how, &side[0], &side[1]);
	double margin = p.reward[0] - p.reward[1];
	const double figures[MT_STEP_FIGURES] = {p.reward[0], p.reward[1], margin,
		margin > 0        ? 1
			: margin == 0 ? 0.5
						  : 0,
		1};
	sums->loss += p.loss;
	sums->targets += side[0].targets + side[1].targets;
	for (int i = 0; i < MT_STEP_FIGURES; i++) sums->figures[i] += figures[i];
	document_set(o, scales, chosen, p.scale[0], sums);
	document_set(o, scales, rejected, p.scale[1], sums);
}

static void target_add(const struct objective *o, uint32_t i, float *scales, struct objective_sums *sums)
{
	double logp = 0 - fabs(o->losses[i]), old = (double)o->old[i];
	struct target t = objective_target(o->how, logp, old, (double)o->advantages[i]);
	const double figures[MT_STEP_FIGURES] = {t.clipped, old - logp, 0, 0, 1};
	sums->loss += t.loss;
	sums->targets++;
	for (int f = 0; f < MT_STEP_FIGURES; f++) sums->figures[f] += figures[f];
	scale_set(o, scales, i, t.scale, sums);
}

void objective_add(const struct objective *o, uint32_t from, uint32_t to, float *scales, struct objective_sums *sums)
{
	uint32_t k = 0;
	if (scales) memset(scales + from, 0, (to - from) * sizeof *scales);
	if (o->how->kind == MT_PG) {
		for (uint32_t i = from; i < to; i++)
			if (o->targets[i] != MT_NO_TARGET) target_add(o, i, scales, sums);
		return;
	}
	while (k < o->documents && o->document[k].begin < from) k += 2;
	for (; k < o->documents && o->document[k].begin < to; k += 2) pair_add(o, k, scales, sums);
}
