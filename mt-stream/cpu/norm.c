/* norm.c: RMSNorm, forward and backward */
#include "cpu.h"

#include <string.h>

struct forward {
	const struct kernels *k;
	const struct rmsnorm_forward_args *a;
	struct row_blocks blocks;
};

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct forward *s = arg;
	const struct rmsnorm_forward_args *a = s->a;
	int64_t first = row_block_start(&s->blocks, task), rows = row_block_end(&s->blocks, task) - first;
	int64_t at = first * a->h;
	(void)thread;
	s->k->rmsnorm_forward((float *)a->y + at, a->rstd + first, (const float *)a->x + at, a->w, rows, a->h, a->eps);
}

void op_rmsnorm_forward(struct pool *pool, const struct rmsnorm_forward_args *a)
{
	struct forward s = {cpu_kernels(), a, row_blocks(a->n)};
	pool_run(pool, s.blocks.count, forward_task, &s);
}

struct backward {
	const struct kernels *k;
	const struct rmsnorm_backward_args *a;
	struct row_blocks blocks;
	float *dw; /* (blocks, h) */
};

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct backward *s = arg;
	const struct rmsnorm_backward_args *a = s->a;
	int64_t first = row_block_start(&s->blocks, task), rows = row_block_end(&s->blocks, task) - first;
	int64_t at = first * a->h;
	float *dw = s->dw + task * a->h;
	(void)thread;
	memset(dw, 0, (size_t)a->h * sizeof *dw);
	s->k->rmsnorm_backward((float *)a->dx + at, a->add_dx, dw, (const float *)a->dy + at, (const float *)a->x + at,
		a->w, a->rstd + first, rows, a->h);
}

void op_rmsnorm_backward(struct pool *pool, const struct rmsnorm_backward_args *a)
{
	struct backward s = {cpu_kernels(), a, row_blocks(a->n), NULL};
	s.dw = op_shared(pool, (size_t)(s.blocks.count * a->h) * sizeof(float));
	pool_run(pool, s.blocks.count, backward_task, &s);
	sum_partials(pool, a->dw, a->beta, s.dw, s.blocks.count, a->h);
}
