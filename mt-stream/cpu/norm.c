/* norm.c: RMSNorm, forward and backward */
#include "cpu.h"

#include <string.h>

struct norm {
	const struct kernels *k;
	struct row_blocks blocks;
	float *y, *rstd_out; /* (n, h), (n) */
	float *dx, *dw;      /* (n, h), (blocks, h) */
	int add_dx;
	const float *dy, *x, *w, *rstd;
	int64_t h;
	float eps;
};

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct norm *s = arg;
	int64_t first = row_block_start(&s->blocks, task), end = row_block_end(&s->blocks, task);
	(void)thread;
	s->k->rmsnorm_forward(s->y + first * s->h, s->rstd_out + first, s->x + first * s->h, s->w, end - first, s->h,
		s->eps);
}

void op_rmsnorm_forward(struct pool *pool, float *y, float *rstd, const float *x, const float *w, int64_t n, int64_t h,
	float eps)
{
	struct norm s = {.k = pool_kernels(pool),
		.blocks = row_blocks(n),
		.y = y,
		.rstd_out = rstd,
		.x = x,
		.w = w,
		.h = h,
		.eps = eps};
	pool_run(pool, s.blocks.count, forward_task, &s);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct norm *s = arg;
	int64_t first = row_block_start(&s->blocks, task), end = row_block_end(&s->blocks, task), at = first * s->h;
	float *dw = s->dw + task * s->h;
	(void)thread;
	memset(dw, 0, (size_t)s->h * sizeof *dw);
	s->k->rmsnorm_backward(s->dx + at, s->add_dx, dw, s->dy + at, s->x + at, s->w, s->rstd + first, end - first, s->h);
}

void op_rmsnorm_backward(struct pool *pool, float *dx, int add_dx, float *dw, float beta_w, const float *dy,
	const float *x, const float *w, const float *rstd, int64_t n, int64_t h)
{
	struct norm s = {.k = pool_kernels(pool),
		.blocks = row_blocks(n),
		.dx = dx,
		.add_dx = add_dx,
		.dy = dy,
		.x = x,
		.w = w,
		.rstd = rstd,
		.h = h};
	s.dw = pool_shared(pool, (size_t)(s.blocks.count * h) * sizeof(float));
	pool_run(pool, s.blocks.count, backward_task, &s);
	sum_partials(pool, dw, beta_w, s.dw, s.blocks.count, h);
}
