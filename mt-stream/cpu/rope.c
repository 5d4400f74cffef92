/* rope.c: rotary positions and q's and k's norms, forward and backward */
#include "cpu.h"

enum { MOST_DIM = 512 };

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct rope_args *a = arg;
	struct rows r = row_block(a->n, task);
	(void)thread;
	cpu_kernels()->rope_forward(a, r.first, r.first + r.n);
}

void op_rope_forward(struct pool *pool, const struct rope_args *a)
{
	pool_run(pool, row_blocks(a->n), forward_task, (void *)a);
}

static void backward_rows(const void *args, struct rows r, float *dw)
{
	const struct rope_args *a = args;
	cpu_kernels()->rope_backward(a, dw, dw + a->dim, r.first, r.first + r.n);
}

void op_rope_backward(struct pool *pool, const struct rope_args *a)
{
	float sum[2 * MOST_DIM]; /* q's norm's gradient, then k's */
	int64_t dim = a->dim;
	sum_rows(pool, a->n, backward_rows, a, sum, 0, 2 * dim);
	for (int64_t i = 0; a->qnorm && i < dim; i++) {
		a->dqnorm[i] = a->beta != 0 ? a->beta * a->dqnorm[i] + sum[i] : sum[i];
		a->dknorm[i] = a->beta != 0 ? a->beta * a->dknorm[i] + sum[dim + i] : sum[dim + i];
	}
}
