/* objective.c: losses that are functions of documents' log-probabilities, and their gradients.
 *
 *     pg     -min(r A, clip(r, 1 - low, 1 + high) A), r = e^(logp - old), of each target     Schulman et al. 2017
 *     dpo    softplus(-beta ((logp - ref) of chosen - (logp - ref) of rejected))             Rafailov et al. 2023
 *     simpo  softplus(-(beta (m of chosen - m of rejected) - gamma)), m = logp / targets     Meng et al. 2024
 *     orpo   -logp of chosen; beta softplus(-(logit(e^m) of chosen - logit(e^m) of rejected))  Hong et al. 2024
 *     kto    sigmoid(-beta (logp - ref)) of a chosen answer, sigmoid(beta (logp - ref)) of a rejected one: that of
 *            Ethayarajh et al. 2024 with 0 as its point of reference, D'Oosterlinck et al. 2024
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

/* ---- a pair, an answer, a target ---- */

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
	static struct pair (*const of[MT_LOSS_KINDS])(const struct mt_objective *, const struct side *,
		const struct side *) = {[MT_DPO] = dpo, [MT_SIMPO] = simpo, [MT_ORPO] = orpo};
	return of[how->kind](how, chosen, rejected);
}

/* kto, so far the only loss of answers */
struct answer objective_answer(const struct mt_objective *how, enum mt_side of, const struct side *s)
{
	double sign = of == MT_CHOSEN ? 1 : -1, factor = of == MT_CHOSEN ? how->chosen_scale : how->scale;
	double reward = how->beta * (s->logp - s->ref), loss = factor * sigmoid(-sign * reward);
	return (struct answer){.loss = loss, .scale = sign * how->beta * sigmoid(sign * reward) * loss, .reward = reward};
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

static void figures_add(struct objective_sums *sums, const double figures[MT_STEP_FIGURES])
{
	for (int i = 0; i < MT_STEP_FIGURES; i++) sums->figures[i] += figures[i];
}

/* How many of n documents are right, of whose side so much speaks */
static double right(double margin, double n) { return margin > 0 ? n : margin == 0 ? n / 2 : 0; }

/* Documents k and k + 1 */
static void pair_add(const struct objective *o, uint32_t k, float *scales, struct objective_sums *sums)
{
	uint32_t chosen = o->document[k].side == MT_CHOSEN ? k : k + 1, rejected = chosen == k ? k + 1 : k;
	struct side side[2] = {side_of(o, chosen), side_of(o, rejected)};
	struct pair p = objective_pair(o->how, &side[0], &side[1]);
	sums->loss += p.loss;
	sums->targets += side[0].targets + side[1].targets;
	figures_add(sums,
		(const double[MT_STEP_FIGURES]){[MT_SUM_CHOSEN] = p.reward[0],
			[MT_SUM_REJECTED] = p.reward[1],
			[MT_SUM_RIGHT] = right(p.reward[0] - p.reward[1], 2),
			[MT_SUM_OF_CHOSEN] = 1,
			[MT_SUM_OF_REJECTED] = 1});
	document_set(o, scales, chosen, p.scale[0], sums);
	document_set(o, scales, rejected, p.scale[1], sums);
}

static void answer_add(const struct objective *o, uint32_t k, float *scales, struct objective_sums *sums)
{
	struct side s = side_of(o, k);
	bool chosen = o->document[k].side == MT_CHOSEN;
	struct answer a = objective_answer(o->how, o->document[k].side, &s);
	double figures[MT_STEP_FIGURES] = {[MT_SUM_RIGHT] = right(chosen ? a.reward : -a.reward, 1)};
	figures[chosen ? MT_SUM_CHOSEN : MT_SUM_REJECTED] = a.reward;
	figures[chosen ? MT_SUM_OF_CHOSEN : MT_SUM_OF_REJECTED] = 1;
	sums->loss += a.loss;
	sums->targets += s.targets;
	figures_add(sums, figures);
	document_set(o, scales, k, a.scale, sums);
}

static void target_add(const struct objective *o, uint32_t i, float *scales, struct objective_sums *sums)
{
	double logp = 0 - fabs(o->losses[i]), old = (double)o->old[i];
	struct target t = objective_target(o->how, logp, old, (double)o->advantages[i]);
	sums->loss += t.loss;
	sums->targets++;
	figures_add(sums,
		(const double[MT_STEP_FIGURES]){[MT_SUM_CLIPPED] = t.clipped, [MT_SUM_KL] = old - logp, [MT_SUM_TARGETS] = 1});
	scale_set(o, scales, i, t.scale, sums);
}

void objective_add(const struct objective *o, uint32_t from, uint32_t to, float *scales, struct objective_sums *sums)
{
	enum mt_loss_unit unit = mt_losses[o->how->kind].unit;
	uint32_t k = 0, together = unit == MT_PAIRS ? 2 : 1;
	if (scales) memset(scales + from, 0, (to - from) * sizeof *scales);
	if (unit == MT_TARGETS) {
		for (uint32_t i = from; i < to; i++)
			if (o->targets[i] != MT_NO_TARGET) target_add(o, i, scales, sums);
		return;
	}
	while (k < o->documents && o->document[k].begin < from) k += together;
	for (; k < o->documents && o->document[k].begin < to; k += together)
		(unit == MT_PAIRS ? pair_add : answer_add)(o, k, scales, sums);
}
