/* rope.c: rotary positions and q's and k's norms, forward and backward */
#include "cpu.h"

#include <string.h>

struct turn {
	const struct kernels *k;
	const struct rope *rope;
	struct row_blocks blocks;
	float *qkv, *pre_out, *rstd_out;
	const float *pre, *rstd;
	float *dw; /* (blocks, 2, dim): q's and k's */
};

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct turn *s = arg;
	(void)thread;
	s->k->rope_forward(s->rope, s->qkv, s->pre_out, s->rstd_out, row_block_start(&s->blocks, task),
		row_block_end(&s->blocks, task));
}

void op_rope_forward(struct pool *pool, const struct rope *rope, float *qkv, float *pre, float *rstd)
{
	struct turn s = {.k = pool_kernels(pool),
		.rope = rope,
		.blocks = row_blocks(rope->n),
		.qkv = qkv,
		.pre_out = pre,
		.rstd_out = rstd};
	pool_run(pool, s.blocks.count, forward_task, &s);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct turn *s = arg;
	int64_t dim = s->rope->dim;
	float *dw = s->dw ? s->dw + task * 2 * dim : NULL;
	(void)thread;
	if (dw) memset(dw, 0, (size_t)(2 * dim) * sizeof *dw);
	s->k->rope_backward(s->rope, s->qkv, s->pre, s->rstd, dw, dw ? dw + dim : NULL, row_block_start(&s->blocks, task),
		row_block_end(&s->blocks, task));
}

void op_rope_backward(struct pool *pool, const struct rope *rope, float *dqkv, const float *pre, const float *rstd,
	float *dqnorm, float *dknorm, float beta_w)
{
	struct turn s =
		{.k = pool_kernels(pool), .rope = rope, .blocks = row_blocks(rope->n), .qkv = dqkv, .pre = pre, .rstd = rstd};
	int64_t dim = rope->dim;
	if (!rope->qnorm) {
		pool_run(pool, s.blocks.count, backward_task, &s);
		return;
	}
	/* the partial sums, and after them their sum */
	s.dw = pool_shared(pool, (size_t)((s.blocks.count + 1) * 2 * dim) * sizeof(float));
	pool_run(pool, s.blocks.count, backward_task, &s);
	float *sum = s.dw + s.blocks.count * 2 * dim;
	sum_partials(pool, sum, 0, s.dw, s.blocks.count, 2 * dim);
	for (int64_t i = 0; i < dim; i++) {
		dqnorm[i] = beta_w != 0 ? beta_w * dqnorm[i] + sum[i] : sum[i];
		dknorm[i] = beta_w != 0 ? beta_w * dknorm[i] + sum[dim + i] : sum[dim + i];
	}
}
