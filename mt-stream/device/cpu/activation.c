/* activation.c: the inner function of the MLP, forward and backward, and the gradients of xIELU's slopes */
#include "cpu.h"
#include "ops/activation.h"

#include <math.h>
#include <stdbool.h>
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

struct job {
	const struct activation_args *a;
	float alpha[2];
	double (*sums)[2]; /* (tasks): the gradients of alpha; backward of MT_XIELU only */
};

static void rows_task(const void *args, int64_t first, int64_t end)
{
	const struct job *j = args;
	double sums[2] = {0, 0};
	cpu_kernels()->activation(j->a, j->alpha, sums, first, end);
	if (j->a->dgu) narrow_rows(j->a->as, j->a->dgu, activation_width(j->a), first, end);
	else narrow_rows(j->a->as, j->a->y, j->a->f, first, end);
	if (j->sums) memcpy(j->sums[first / task_rows(j->a->f)], sums, sizeof sums);
}

/* The derivative of softplus is the logistic function. */
static void slopes_backward(const struct job *j, int64_t tasks)
{
	for (int i = 0; i < 2; i++) {
		double sum = 0, x = (double)*(const float *)j->a->slope[i];
		for (int64_t t = 0; t < tasks; t++) sum += j->sums[t][i];
		sum /= 1 + exp(-x);
		float *d = j->a->dslope[i];
		*d = j->a->beta != 0 ? j->a->beta * *d + (float)sum : (float)sum;
	}
}

static void run(struct pool *pool, const struct activation_args *a)
{
	struct job j = {.a = a};
	int64_t tasks = div_up(a->n, task_rows(a->f));
	bool sums = a->dgu && a->form == MT_XIELU;
	slopes(j.alpha, a->form, a->slope);
	if (sums) j.sums = op_shared(pool, (size_t)tasks * sizeof *j.sums);
	run_tasks(pool, a->n, task_rows(a->f), rows_task, &j);
	if (sums) slopes_backward(&j, tasks);
}

void op_activation_forward(struct pool *pool, const struct activation_args *a) { run(pool, a); }
void op_activation_backward(struct pool *pool, const struct activation_args *a) { run(pool, a); }
