/* norm.c: RMSNorm, forward and backward */
#include "cpu.h"

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct rmsnorm_forward_args *a = arg;
	struct rows r = row_block(a->n, task);
	int64_t at = r.first * a->h;
	(void)thread;
	cpu_kernels()->rmsnorm_forward((float *)a->y + at, a->rstd + r.first, (const float *)a->x + at, a->w, r.n, a->h,
		a->eps);
}

void op_rmsnorm_forward(struct pool *pool, const struct rmsnorm_forward_args *a)
{
	pool_run(pool, row_blocks(a->n), forward_task, (void *)a);
}

static void backward_rows(const void *args, struct rows r, float *dw)
{
	const struct rmsnorm_backward_args *a = args;
	int64_t at = r.first * a->h;
	cpu_kernels()->rmsnorm_backward((float *)a->dx + at, a->add_dx, dw, (const float *)a->dy + at,
		(const float *)a->x + at, a->w, a->rstd + r.first, r.n, a->h);
}

void op_rmsnorm_backward(struct pool *pool, const struct rmsnorm_backward_args *a)
{
	sum_rows(pool, a->n, backward_rows, a, a->dw, a->beta, a->h);
}
