/* rope.c: rotary positions and q's, k's and v's norms, forward and backward */
#include "cpu.h"

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct rope_args *a = arg;
	struct rows r = row_block(a->n, task);
	(void)thread;
	cpu_kernels()->rope_forward(a, r.first, r.first + r.n);
}

void op_rope_forward(struct pool *pool, const struct rope_args *a)
{
	if (!rope_is_nothing(a)) pool_run(pool, row_blocks(a->n), forward_task, (void *)a);
}

static void backward_rows(const void *args, struct rows r, float *dw)
{
	const struct rope_args *a = args;
	cpu_kernels()->rope_backward(a, dw, a->qnorm ? dw + rope_q_weights(a) : NULL, r.first, r.first + r.n);
}

void op_rope_backward(struct pool *pool, const struct rope_args *a)
{
	struct sums norms[2] = {{a->dqnorm, rope_q_weights(a)}, {a->dknorm, rope_k_weights(a)}};
	if (!rope_is_nothing(a)) sum_rows_each(pool, a->n, backward_rows, a, norms, a->qnorm ? 2 : 0, a->beta);
}
