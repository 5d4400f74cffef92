/* route.c: which experts compute a token, with which weights, and in which rows. Scores are computed in fp64 and
 * rounded once, so a choice between two experts does not depend on the CPU. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cpu.h"
#include "ops/route.h"

enum { TOKENS = 32 }; /* of a task */

/* ---- forward ---- */

double route_softmax(const float *logit, int64_t n, double *p)
{
	float largest = logit[0]; /* (a double one that takes floats stops gcc 12 for arm64 with an internal error) */
	for (int64_t i = 1; i < n; i++) largest = fmaxf(largest, logit[i]);
	double most = largest, sum = 0;
	for (int64_t i = 0; i < n; i++) sum += p[i] = exp(logit[i] - most);
	for (int64_t i = 0; i < n; i++) p[i] /= sum;
	return most + log(sum);
}

static void softmax(float *scores, int64_t n)
{
	double p[MT_EXPERTS];
	route_softmax(scores, n, p);
	for (int64_t i = 0; i < n; i++) scores[i] = (float)p[i];
}

void route_best(const float *score, int64_t n, uint32_t *chosen, int64_t wanted)
{
	char taken[MT_EXPERTS] = {0};
	for (int64_t k = 0; k < wanted; k++) {
		int64_t at = 0;
		while (taken[at]) at++; /* wanted <= n: one is left */
		for (int64_t i = at + 1; i < n; i++)
			if (!taken[i] && (score[i] > score[at] || isnan(score[at]))) at = i;
		taken[at] = 1;
		chosen[k] = (uint32_t)at;
	}
}

/* Set the scores of all experts that are not of the best groups to -inf. A group's score: the sum of its two best, or
 * the best */
static void keep_groups(const struct route_args *a, float *score)
{
	int64_t each = a->experts / a->groups;
	float sums[MT_EXPERTS];
	uint32_t two[2], kept[MT_EXPERTS];
	char keeps[MT_EXPERTS] = {0};
	for (int64_t g = 0; g < a->groups; g++) {
		int64_t n = least(a->by_best ? 1 : 2, each);
		route_best(score + g * each, each, two, n);
		sums[g] = score[g * each + two[0]] + (n > 1 ? score[g * each + two[1]] : 0);
	}
	route_best(sums, a->groups, kept, a->groups_used);
	for (int64_t i = 0; i < a->groups_used; i++) keeps[kept[i]] = 1;
	for (int64_t i = 0; i < a->experts; i++)
		if (!keeps[i / each]) score[i] = -INFINITY;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* What the weight of expert e is made of */
static double score_of(const struct route_args *a, const float *score, uint32_t e)
{
	return a->score == MT_TOP_SIGMOID ? sigmoid(score[e]) : score[e];
}

static void weigh(const struct route_args *a, const float *score, const uint32_t *chosen, float *weight)
{
	double sum = 0;
	for (int64_t k = 0; k < a->per_token; k++) sum += score[chosen[k]];
	if (a->renormalise) sum = fmax(sum, a->floor) + a->eps;
	else sum = 1;
	for (int64_t k = 0; k < a->per_token; k++) weight[k] = (float)(score_of(a, score, chosen[k]) / sum * a->scale);
}

/* Weights of the chosen logits alone */
static void weigh_top(const struct route_args *a, const float *logit, const uint32_t *chosen, float *weight)
{
	for (int64_t k = 0; k < a->per_token; k++) weight[k] = logit[chosen[k]];
	softmax(weight, a->per_token);
	for (int64_t k = 0; k < a->per_token; k++) weight[k] *= a->scale;
}

static void choose(const struct route_args *a, const float *score, uint32_t *chosen)
{
	const float *correction = a->correction;
	float sum[MT_EXPERTS];
	for (int64_t e = 0; e < a->experts; e++) sum[e] = score[e] + (correction ? correction[e] : 0);
	if (a->groups > 1) keep_groups(a, sum);
	route_best(sum, a->experts, chosen, a->per_token);
}

static void forward_tokens(const void *args, int64_t first, int64_t end)
{
	const struct route_args *a = args;
	for (int64_t t = first; t < end; t++) {
		float *score = a->scores + t * a->experts, *weight = a->weight + t * a->per_token;
		uint32_t *chosen = a->expert + t * a->per_token;
		if (a->score == MT_SOFTMAX) softmax(score, a->experts);
		else if (a->score == MT_SIGMOID)
			for (int64_t e = 0; e < a->experts; e++) score[e] = (float)sigmoid(score[e]);
		choose(a, score, chosen);
		if (a->score == MT_TOP_SOFTMAX) weigh_top(a, score, chosen, weight);
		else weigh(a, score, chosen, weight);
		for (int64_t k = 0; k < a->per_token && a->factor; k++) weight[k] *= ((const float *)a->factor)[chosen[k]];
	}
}

/* Counting sort of slots by expert, which keeps the order of an expert's tokens */
static void sort(const struct route_args *a)
{
	uint32_t next[MT_EXPERTS];
	int64_t slots = a->n * a->per_token;
	memset(a->first, 0, (size_t)(a->experts + 1) * sizeof *a->first);
	for (int64_t s = 0; s < slots; s++) a->first[a->expert[s] + 1]++;
	for (int64_t e = 0; e < a->experts; e++) {
		a->first[e + 1] += a->first[e];
		next[e] = a->first[e];
	}
	for (int64_t s = 0; s < slots; s++) {
		a->row[s] = next[a->expert[s]]++;
		a->slot[a->row[s]] = (uint32_t)s;
	}
}

void op_route_forward(struct pool *pool, const struct route_args *a)
{
	run_tasks(pool, a->n, TOKENS, forward_tokens, a);
	if (a->slot) sort(a);
}

/* ---- backward ---- */

/* Of weights w = scale p / sum(p), or scale p: the gradient of each chosen p, in place of that of w */
static void scores_backward(const struct route_args *a, const float *score, const uint32_t *chosen, double *d)
{
	double sum = 0, dot = 0;
	for (int64_t k = 0; k < a->per_token; k++) sum += score[chosen[k]];
	bool constant = a->renormalise && sum <= a->floor; /* the sum counts as one */
	sum += a->eps;
	for (int64_t k = 0; k < a->per_token; k++) dot += d[k] * score[chosen[k]] / sum;
	if (constant) {
		sum = a->floor + a->eps;
		dot = 0;
	}
	for (int64_t k = 0; k < a->per_token; k++) d[k] = a->renormalise ? (d[k] - dot) / sum * a->scale : d[k] * a->scale;
}

/* From the gradient of each chosen score to that of the logits */
static void softmax_backward(const struct route_args *a, const float *score, const uint32_t *chosen, const double *d,
	float *dlogits)
{
	double dot = 0;
	for (int64_t k = 0; k < a->per_token; k++) dot += d[k] * score[chosen[k]];
	for (int64_t e = 0; e < a->experts; e++) dlogits[e] = (float)(score[e] * -dot);
	for (int64_t k = 0; k < a->per_token; k++) dlogits[chosen[k]] = (float)(score[chosen[k]] * (d[k] - dot));
}

static void sigmoid_backward(const struct route_args *a, const float *score, const uint32_t *chosen, const double *d,
	float *dlogits)
{
	memset(dlogits, 0, (size_t)a->experts * sizeof *dlogits);
	for (int64_t k = 0; k < a->per_token; k++) {
		double p = score_of(a, score, chosen[k]);
		dlogits[chosen[k]] = (float)(d[k] * p * (1 - p));
	}
}

static void top_backward(const struct route_args *a, const float *weight, const uint32_t *chosen, const double *d,
	float *dlogits)
{
	double dot = 0;
	for (int64_t k = 0; k < a->per_token; k++) dot += d[k] * weight[k] / a->scale;
	memset(dlogits, 0, (size_t)a->experts * sizeof *dlogits);
	for (int64_t k = 0; k < a->per_token; k++) dlogits[chosen[k]] = (float)(weight[k] * (d[k] - dot));
}

static void backward_tokens(const void *args, int64_t first, int64_t end)
{
	const struct route_args *a = args;
	for (int64_t t = first; t < end; t++) {
		const float *score = a->scores + t * a->experts, *dweight = a->dweight + t * a->per_token;
		const uint32_t *chosen = a->expert + t * a->per_token;
		float *dlogits = (float *)a->dlogits + t * a->experts;
		double d[MT_EXPERTS];
		for (int64_t k = 0; k < a->per_token; k++)
			d[k] = a->factor ? (double)dweight[k] * ((const float *)a->factor)[chosen[k]] : dweight[k];
		if (a->score == MT_TOP_SOFTMAX) {
			top_backward(a, a->weight + t * a->per_token, chosen, d, dlogits);
			continue;
		}
		scores_backward(a, score, chosen, d);
		if (a->score == MT_SOFTMAX) softmax_backward(a, score, chosen, d, dlogits);
		else sigmoid_backward(a, score, chosen, d, dlogits);
	}
}

/* Of experts' factors, each over its slots: the gradient of a slot's weight, times the weight without the factor */
static void factor_backward(const void *args, int64_t first, int64_t end)
{
	const struct route_args *a = args;
	for (int64_t e = first; e < end; e++) {
		double d = 0;
		for (uint32_t r = a->first[e]; r < a->first[e + 1]; r++) {
			int64_t slot = a->slot[r], t = slot / a->per_token;
			float weight[MT_EXPERTS];
			weigh(a, a->scores + t * a->experts, a->expert + t * a->per_token, weight);
			d += (double)a->dweight[slot] * weight[slot % a->per_token];
		}
		a->dfactor[e] = a->beta != 0 ? a->beta * a->dfactor[e] + (float)d : (float)d;
	}
}

void op_route_backward(struct pool *pool, const struct route_args *a)
{
	run_tasks(pool, a->n, TOKENS, backward_tokens, a);
	if (a->dfactor) run_tasks(pool, a->experts, 1, factor_backward, a);
}
