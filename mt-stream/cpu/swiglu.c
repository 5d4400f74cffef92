/* swiglu.c: SwiGLU (arXiv 2002.05202), forward and backward */
#include "cpu.h"

enum { GRAIN = 32768 }; /* floats of y that a task computes */

struct forward {
	const struct kernels *k;
	const struct swiglu_forward_args *a;
	int64_t rows; /* of a task */
};

static int64_t task_rows(int64_t f) { return f < GRAIN ? GRAIN / f : 1; }

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct forward *s = arg;
	int64_t f = s->a->f, first = task * s->rows, rows = least(s->rows, s->a->n - first);
	(void)thread;
	s->k->swiglu_forward((float *)s->a->y + first * f, (const float *)s->a->gu + first * 2 * f, rows, f);
}

void op_swiglu_forward(struct pool *pool, const struct swiglu_forward_args *a)
{
	struct forward s = {cpu_kernels(), a, task_rows(a->f)};
	pool_run(pool, div_up(a->n, s.rows), forward_task, &s);
}

struct backward {
	const struct kernels *k;
	const struct swiglu_backward_args *a;
	int64_t rows; /* of a task */
};

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct backward *s = arg;
	const struct swiglu_backward_args *a = s->a;
	int64_t f = a->f, first = task * s->rows, rows = least(s->rows, a->n - first);
	(void)thread;
	s->k->swiglu_backward((float *)a->dgu + first * 2 * f, (float *)a->y + first * f, (const float *)a->dy + first * f,
		(const float *)a->gu + first * 2 * f, rows, f);
}

void op_swiglu_backward(struct pool *pool, const struct swiglu_backward_args *a)
{
	struct backward s = {cpu_kernels(), a, task_rows(a->f)};
	pool_run(pool, div_up(a->n, s.rows), backward_task, &s);
}
