/* head.c: cross-entropy over a chunk of rows of logits */
#include "cpu.h"

#include <string.h>

struct head {
	const struct kernels *k;
	float *logits;
	const uint32_t *targets;
	double *losses; /* (n) */
	int64_t vocab;
	float scale;
	int backward;
};

static void row_task(void *arg, int64_t row, int thread)
{
	const struct head *s = arg;
	float *x = s->logits + row * s->vocab;
	(void)thread;
	if (s->targets[row] != UINT32_MAX)
		s->losses[row] = s->k->cross_entropy(x, s->targets[row], s->vocab, s->scale, s->backward);
	else if (s->backward) memset(x, 0, (size_t)s->vocab * sizeof *x);
}

double op_cross_entropy(struct pool *pool, float *logits, const uint32_t *targets, int64_t n, int64_t vocab,
	float scale, int backward, int64_t *count)
{
	struct head s = {.k = pool_kernels(pool),
		.logits = logits,
		.targets = targets,
		.vocab = vocab,
		.scale = scale,
		.backward = backward};
	double sum = 0;
	s.losses = pool_shared(pool, (size_t)n * sizeof *s.losses);
	pool_run(pool, n, row_task, &s);
	*count = 0;
	for (int64_t i = 0; i < n; i++)
		if (targets[i] != UINT32_MAX) {
			sum += s.losses[i];
			++*count;
		}
	return sum;
}
