/* activation.c: the inner function of the MLP, forward and backward, and the gradients of xIELU's slopes */
#include "cpu.h"

#include <math.h>
#include <string.h>

enum { GRAIN = 32768 }; /* floats of y that a task computes */

static int64_t task_rows(int64_t f) { return f < GRAIN ? GRAIN / f : 1; }

/* torch.nn.functional.softplus */
static double softplus(double x) { return x > 20 ? x : log1p(exp(x)); }

/* The slopes of both sides, from xIELU's parameters */
static void slopes(float alpha[2], enum mt_ffn form, const void *const parameter[2])
{
	alpha[0] = alpha[1] = 0;
	if (form != MT_XIELU) return;
	alpha[0] = (float)softplus((double)*(const float *)parameter[0]);
	alpha[1] = (float)(0.5 + softplus((double)*(const float *)parameter[1]));
}

struct forward {
	const struct activation_forward_args *a;
	float alpha[2];
};

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct forward *s = arg;
	int64_t first = task * task_rows(s->a->f);
	(void)thread;
	cpu_kernels()->activation_forward(s->a, s->alpha, first, least(first + task_rows(s->a->f), s->a->n));
}

void op_activation_forward(struct pool *pool, const struct activation_forward_args *a)
{
	struct forward s = {.a = a};
	slopes(s.alpha, a->form, a->slope);
	pool_run(pool, div_up(a->n, task_rows(a->f)), forward_task, &s);
}

struct backward {
	const struct activation_backward_args *a;
	float alpha[2];
	double (*sums)[2]; /* (tasks): the gradients of alpha */
};

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct backward *s = arg;
	int64_t first = task * task_rows(s->a->f);
	double sums[2] = {0, 0};
	(void)thread;
	cpu_kernels()->activation_backward(s->a, s->alpha, sums, first, least(first + task_rows(s->a->f), s->a->n));
	if (s->sums) memcpy(s->sums[task], sums, sizeof sums);
}

/* The derivative of softplus is the logistic function. */
static void slopes_backward(const struct backward *s, int64_t tasks)
{
	for (int i = 0; i < 2; i++) {
		double sum = 0, x = (double)*(const float *)s->a->slope[i];
		for (int64_t t = 0; t < tasks; t++) sum += s->sums[t][i];
		sum /= 1 + exp(-x);
		float *d = s->a->dslope[i];
		*d = s->a->beta != 0 ? s->a->beta * *d + (float)sum : (float)sum;
	}
}

void op_activation_backward(struct pool *pool, const struct activation_backward_args *a)
{
	struct backward s = {.a = a};
	int64_t tasks = div_up(a->n, task_rows(a->f));
	slopes(s.alpha, a->form, a->slope);
	if (a->form == MT_XIELU) s.sums = op_shared(pool, (size_t)tasks * sizeof *s.sums);
	pool_run(pool, tasks, backward_task, &s);
	if (a->form == MT_XIELU) slopes_backward(&s, tasks);
}
