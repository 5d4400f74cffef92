/* draw.c: from logits to a token. All in double, on one thread, in one order: the same logits give the same token. */
#include <math.h>
#include <stdlib.h>

#include "mt/error.h"
#include "sample.h"
#include "splitmix.h"

struct candidate {
	double weight; /* first the logit, then e to the power of (logit - highest) / temperature */
	uint32_t token;
};

int draw_open(struct draw *d)
{
	d->candidates = malloc(d->vocab * sizeof *d->candidates);
	return d->candidates ? 0 : mt_fail(MT_EX_NOMEM, "no memory for a vocabulary of %u", d->vocab);
}

/* Uniform in [0, 1), 53 bits; a place's number depends on no other place */
static double uniform(uint64_t seed, uint64_t record, uint64_t place)
{
	uint64_t state = seed;
	state = splitmix_next(&state) ^ record;
	state = splitmix_next(&state) ^ place;
	return (double)(splitmix_next(&state) >> 11) * 0x1p-53;
}

/* Descending by weight, ties by token */
static int heavier(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;
	if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
	return x->token < y->token ? -1 : 1;
}

/* The fewest candidates that have together at least the share p of all; the one that crosses it is among them */
static uint32_t top_p(const struct candidate *c, uint32_t n, double p)
{
	double total = 0, sum = 0;
	for (uint32_t i = 0; i < n; i++) total += c[i].weight;
	for (uint32_t i = 0; i < n; i++)
		if ((sum += c[i].weight) >= p * total) return i + 1;
	return n;
}

int draw_token(const struct draw *d, const float *logits, uint64_t record, uint64_t place, uint32_t *token)
{
	struct candidate *c = d->candidates;
	uint32_t n = d->vocab, best = 0;
	double total = 0, sum = 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!isfinite(logits[i]))
			return mt_fail(MT_EX_DATA, "record %llu: the logit of token %u is not finite: the weights have diverged",
				(unsigned long long)record, i);
		if (logits[i] > logits[best]) best = i;
	}
	*token = best;
	if (d->temperature == 0) return 0;
	for (uint32_t i = 0; i < n; i++) c[i] = (struct candidate){logits[i], i};
	if (d->top_k || d->top_p < 1) qsort(c, n, sizeof *c, heavier);
	if (d->top_k && d->top_k < n) n = (uint32_t)d->top_k;
	for (uint32_t i = 0; i < n; i++) c[i].weight = exp((c[i].weight - (double)logits[best]) / d->temperature);
	if (d->top_p < 1) n = top_p(c, n, d->top_p);
	for (uint32_t i = 0; i < n; i++) total += c[i].weight;
	double u = uniform(d->seed, record, place) * total;
	for (uint32_t i = 0; i < n; i++) {
		*token = c[i].weight > 0 ? c[i].token : *token;
		if ((sum += c[i].weight) > u) break;
	}
	return 0;
}
