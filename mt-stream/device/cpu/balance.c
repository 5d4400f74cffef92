/* balance.c: the auxiliary loss and the z-loss of routers. All in fp64; blocks of tokens, which depend on the number of
 * tokens alone, are added in their order, so that no bit depends on threads. */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "mt/types.h"
#include "ops/balance.h"

/* ---- forward ---- */

struct job {
	const struct balance_args *a;
	double *partial; /* (row_blocks(n), 2 E + 1) */
};

static void add_token(const struct balance_args *a, int64_t t, double *sums)
{
	double p[MT_EXPERTS], lse = route_softmax(a->logits + t * a->experts, a->experts, p);
	float rounded[MT_EXPERTS];
	uint32_t chosen[MT_EXPERTS_PER_TOKEN];
	for (int64_t e = 0; e < a->experts; e++) {
		rounded[e] = (float)p[e];
		sums[a->experts + e] += p[e];
	}
	route_best(rounded, a->experts, chosen, a->per_token);
	for (int64_t k = 0; k < a->per_token; k++) sums[chosen[k]]++;
	sums[2 * a->experts] += lse * lse;
}

static void forward_rows(const void *args, int64_t first, int64_t end)
{
	const struct job *j = args;
	int64_t width = 2 * j->a->experts + 1;
	double *sums = j->partial + first / block_rows(j->a->n) * width;
	memset(sums, 0, (size_t)width * sizeof *sums);
	for (int64_t t = first; t < end; t++)
		if (j->a->counted[t]) add_token(j->a, t, sums);
}

void op_balance_forward(struct pool *pool, const struct balance_args *a)
{
	int64_t width = 2 * a->experts + 1, blocks = row_blocks(a->n);
	struct job j = {a, op_shared(pool, (size_t)(blocks * width) * sizeof *j.partial)};
	run_rows(pool, a->n, forward_rows, &j);
	for (int64_t b = 0; b < blocks; b++)
		for (int64_t i = 0; i < width; i++) a->sums[i] += j.partial[b * width + i];
}

/* ---- backward ---- */

static void backward_rows(const void *args, int64_t first, int64_t end)
{
	const struct balance_args *a = args;
	double p[MT_EXPERTS];
	for (int64_t t = first; t < end; t++) {
		float *d = (float *)a->dlogits + t * a->experts;
		double lse, mean = 0;
		if (!a->counted[t]) continue;
		lse = route_softmax(a->logits + t * a->experts, a->experts, p);
		for (int64_t e = 0; e < a->experts; e++) mean += p[e] * a->sums[e];
		for (int64_t e = 0; e < a->experts; e++)
			d[e] += (float)(p[e] * (a->aux * (a->sums[e] - mean) + 2 * a->z * lse));
	}
}

void op_balance_backward(struct pool *pool, const struct balance_args *a) { run_rows(pool, a->n, backward_rows, a); }
