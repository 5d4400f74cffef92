/* swiglu.c: SwiGLU (arXiv 2002.05202), forward and backward */
#include "cpu.h"

enum { GRAIN = 32768 }; /* floats of y that a task computes */

struct swiglu {
	const struct kernels *k;
	float *y, *dgu;
	const float *gu, *dy;
	int64_t n, f, rows; /* rows: of a task */
};

static int64_t task_rows(int64_t f) { return f < GRAIN ? GRAIN / f : 1; }

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct swiglu *s = arg;
	int64_t first = task * s->rows, rows = least(s->rows, s->n - first);
	(void)thread;
	s->k->swiglu_forward(s->y + first * s->f, s->gu + first * 2 * s->f, rows, s->f);
}

void op_swiglu_forward(struct pool *pool, float *y, const float *gu, int64_t n, int64_t f)
{
	struct swiglu s = {.k = pool_kernels(pool), .y = y, .gu = gu, .n = n, .f = f, .rows = task_rows(f)};
	pool_run(pool, div_up(n, s.rows), forward_task, &s);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct swiglu *s = arg;
	int64_t first = task * s->rows, rows = least(s->rows, s->n - first);
	(void)thread;
	s->k->swiglu_backward(s->dgu + first * 2 * s->f, s->y + first * s->f, s->dy + first * s->f,
		s->gu + first * 2 * s->f, rows, s->f);
}

void op_swiglu_backward(struct pool *pool, float *dgu, float *y, const float *dy, const float *gu, int64_t n, int64_t f)
{
	struct swiglu s =
		{.k = pool_kernels(pool), .y = y, .dgu = dgu, .dy = dy, .gu = gu, .n = n, .f = f, .rows = task_rows(f)};
	pool_run(pool, div_up(n, s.rows), backward_task, &s);
}
