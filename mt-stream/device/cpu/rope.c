/* rope.c: rotary positions and q's, k's and v's norms, forward and backward */
#include "cpu.h"
#include "ops/rope.h"

static void forward_rows(const void *args, int64_t first, int64_t end)
{
	cpu_kernels()->rope_forward(args, first, end);
}

void op_rope_forward(struct pool *pool, const struct rope_args *a)
{
	if (!rope_is_nothing(a)) run_rows(pool, a->n, forward_rows, a);
}

static void backward_rows(const void *args, int64_t first, int64_t end, float *dw)
{
	const struct rope_args *a = args;
	cpu_kernels()->rope_backward(a, dw, a->qnorm ? dw + rope_q_weights(a) : NULL, first, end);
}

void op_rope_backward(struct pool *pool, const struct rope_args *a)
{
	struct sums norms[2] = {{a->dqnorm, rope_q_weights(a)}, {a->dknorm, a->kv_heads ? rope_k_weights(a) : 0}};
	if (!rope_is_nothing(a)) sum_rows_each(pool, a->n, backward_rows, a, norms, a->qnorm ? 2 : 0, a->beta);
}
