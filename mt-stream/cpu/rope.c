/* rope.c: rotary positions and q's, k's and v's norms, forward and backward */
#include "cpu.h"

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct rope_args *a = arg;
	struct rows r = row_block(a->n, task);
	(void)thread;
	cpu_kernels()->rope_forward(a, r.first, r.first + r.n);
}

/* Layers without positions (NoPE), and without anything else */
static int nothing(const struct rope_args *a) { return !a->rope_dim && !a->qnorm && !a->k_is_v && a->temperature == 0; }

void op_rope_forward(struct pool *pool, const struct rope_args *a)
{
	if (!nothing(a)) pool_run(pool, row_blocks(a->n), forward_task, (void *)a);
}

static int64_t q_weights(const struct rope_args *a) { return a->row_norm ? a->heads * a->dim : a->dim; }
static int64_t k_weights(const struct rope_args *a) { return a->row_norm ? a->kv_heads * a->dim : a->dim; }

static void backward_rows(const void *args, struct rows r, float *dw)
{
	const struct rope_args *a = args;
	cpu_kernels()->rope_backward(a, dw, a->qnorm ? dw + q_weights(a) : NULL, r.first, r.first + r.n);
}

void op_rope_backward(struct pool *pool, const struct rope_args *a)
{
	struct sums norms[2] = {{a->dqnorm, q_weights(a)}, {a->dknorm, k_weights(a)}};
	if (!nothing(a)) sum_rows_each(pool, a->n, backward_rows, a, norms, a->qnorm ? 2 : 0, a->beta);
}
