/* swiglu.c: SwiGLU (arXiv 2002.05202), forward and backward */
#include "cpu.h"

enum { GRAIN = 32768 }; /* floats of y that a task computes */

static int64_t task_rows(int64_t f) { return f < GRAIN ? GRAIN / f : 1; }

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct swiglu_forward_args *a = arg;
	int64_t f = a->f, first = task * task_rows(f), rows = least(task_rows(f), a->n - first);
	(void)thread;
	cpu_kernels()->swiglu_forward((float *)a->y + first * f, (const float *)a->gu + first * 2 * f, rows, f);
}

void op_swiglu_forward(struct pool *pool, const struct swiglu_forward_args *a)
{
	pool_run(pool, div_up(a->n, task_rows(a->f)), forward_task, (void *)a);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct swiglu_backward_args *a = arg;
	int64_t f = a->f, first = task * task_rows(f), rows = least(task_rows(f), a->n - first);
	(void)thread;
	cpu_kernels()->swiglu_backward((float *)a->dgu + first * 2 * f, (float *)a->y + first * f,
		(const float *)a->dy + first * f, (const float *)a->gu + first * 2 * f, rows, f);
}

void op_swiglu_backward(struct pool *pool, const struct swiglu_backward_args *a)
{
	pool_run(pool, div_up(a->n, task_rows(a->f)), backward_task, (void *)a);
}
