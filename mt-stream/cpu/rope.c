/* rope.c: rotary positions and q's and k's norms, forward and backward */
#include "cpu.h"

#include <string.h>

struct turn {
	const struct kernels *k;
	const struct rope_args *a;
	struct row_blocks blocks;
	float *dw; /* (blocks, 2, dim): q's and k's; NULL: no norms */
};

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct turn *s = arg;
	(void)thread;
	s->k->rope_forward(s->a, row_block_start(&s->blocks, task), row_block_end(&s->blocks, task));
}

void op_rope_forward(struct pool *pool, const struct rope_args *a)
{
	struct turn s = {cpu_kernels(), a, row_blocks(a->n), NULL};
	pool_run(pool, s.blocks.count, forward_task, &s);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct turn *s = arg;
	int64_t dim = s->a->dim;
	float *dw = s->dw ? s->dw + task * 2 * dim : NULL;
	(void)thread;
	if (dw) memset(dw, 0, (size_t)(2 * dim) * sizeof *dw);
	s->k->rope_backward(s->a, dw, dw ? dw + dim : NULL, row_block_start(&s->blocks, task),
		row_block_end(&s->blocks, task));
}

void op_rope_backward(struct pool *pool, const struct rope_args *a)
{
	struct turn s = {cpu_kernels(), a, row_blocks(a->n), NULL};
	int64_t dim = a->dim;
	if (!a->qnorm) {
		pool_run(pool, s.blocks.count, backward_task, &s);
		return;
	}
	/* the partial sums, and after them their sum */
	s.dw = op_shared(pool, (size_t)((s.blocks.count + 1) * 2 * dim) * sizeof(float));
	pool_run(pool, s.blocks.count, backward_task, &s);
	float *sum = s.dw + s.blocks.count * 2 * dim;
	sum_partials(pool, sum, 0, s.dw, s.blocks.count, 2 * dim);
	for (int64_t i = 0; i < dim; i++) {
		a->dqnorm[i] = a->beta != 0 ? a->beta * a->dqnorm[i] + sum[i] : sum[i];
		a->dknorm[i] = a->beta != 0 ? a->beta * a->dknorm[i] + sum[dim + i] : sum[dim + i];
	}
}
