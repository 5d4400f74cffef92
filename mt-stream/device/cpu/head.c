/* head.c: cross-entropy over a chunk of rows of logits, and the scale and cap of logits before it */
#include "cpu.h"
#include "ops/head.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

struct job {
	const struct cross_entropy_args *a;
	double *losses; /* (n) */
};

/* Is the target the first of the largest logits? */
static bool is_greedy(const float *x, int64_t target, int64_t vocab)
{
	for (int64_t i = 0; i < vocab; i++)
		if (x[i] > x[target] || (x[i] == x[target] && i < target)) return false;
	return true;
}

static void row_task(void *arg, int64_t row, int thread)
{
	const struct job *s = arg;
	const struct cross_entropy_args *a = s->a;
	float *x = (float *)a->logits + row * a->vocab;
	(void)thread;
	float weight = a->weights ? a->weights[row] : 1;
	bool counts = a->targets[row] != UINT32_MAX && weight != 0;
	float scale = (a->logit_scale != 0 ? a->scale * a->logit_scale : a->scale) * weight; /* of the gradient */
	double loss = 0;
	if (counts && a->backward && a->cap != 0)
		loss = cpu_kernels()->cross_entropy_capped(x, a->targets[row], a->vocab, scale, a->cap);
	else if (counts) loss = cpu_kernels()->cross_entropy(x, a->targets[row], a->vocab, scale, a->backward);
	else if (a->backward) memset(x, 0, (size_t)a->vocab * sizeof *x);
	s->losses[row] = counts && a->losses && is_greedy(x, a->targets[row], a->vocab) ? -loss : (double)weight * loss;
	narrow_rows(a->as, a->logits, a->vocab, row, row + 1);
}

void op_cross_entropy(struct pool *pool, const struct cross_entropy_args *a)
{
	struct job s = {.a = a, .losses = a->losses ? a->losses : op_shared(pool, (size_t)a->n * sizeof *s.losses)};
	double sum = 0;
	pool_run(pool, a->n, row_task, &s);
	for (int64_t i = 0; i < a->n; i++)
		if (a->targets[i] != UINT32_MAX) {
			sum += a->losses ? fabs(s.losses[i]) : s.losses[i];
			a->loss->targets++;
		}
	a->loss->sum += sum;
}

enum { GRAIN = 32768 }; /* logits of a task */

static void cap_task(const void *args, int64_t first, int64_t end)
{
	const struct cap_logits_args *a = args;
	cpu_kernels()->cap_logits((float *)a->logits + first, end - first, a->scale, a->cap);
}

void op_cap_logits(struct pool *pool, const struct cap_logits_args *a) { run_tasks(pool, a->n, GRAIN, cap_task, a); }
