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
	if (counts && a->teacher.words)
		loss = cpu_kernels()->distill(x, a->targets[row], a->vocab, &a->teacher,
			a->teacher.words + row * (2 * a->teacher.top + 1), scale, a->cap, a->backward);
	else if (counts && a->backward && a->cap != 0)
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

/* The least key of the `top` largest ones, bit by bit, and how many of it are among them */
static uint32_t top_least(const uint32_t *x, int64_t vocab, int64_t top, int64_t *of_it)
{
	uint32_t least = 0;
	for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
		int64_t n = 0;
		for (int64_t i = 0; i < vocab; i++) n += top_key(x[i]) >= (least | bit);
		if (n >= top) least |= bit;
	}
	*of_it = top;
	for (int64_t i = 0; i < vocab; i++) *of_it -= top_key(x[i]) > least;
	return least;
}

static void top_task(void *arg, int64_t row, int thread)
{
	const struct top_args *a = arg;
	const float *x = a->logits + row * a->vocab;
	uint32_t *ids = a->words + row * (2 * a->top + 1);
	float *logp = (float *)(ids + a->top);
	double sum = 0;
	int64_t equal, n = 0;
	(void)thread;
	memset(ids, 0, (size_t)(2 * a->top + 1) * sizeof *ids);
	if (a->targets[row] == UINT32_MAX) return;
	double log_sum = fabs(a->losses[row]) + (double)x[a->targets[row]];
	uint32_t least = top_least((const uint32_t *)x, a->vocab, a->top, &equal);
	for (int64_t i = 0; i < a->vocab; i++) {
		uint32_t key = top_key(((const uint32_t *)x)[i]);
		if (key < least || (key == least && !equal)) continue;
		equal -= key == least;
		logp[n] = (float)((double)x[i] - log_sum);
		ids[n++] = (uint32_t)i;
		sum += exp((double)x[i] - log_sum);
	}
	logp[a->top] = (float)(a->top < a->vocab && sum < 1 ? log1p(-sum) : -INFINITY);
}

void op_top(struct pool *pool, const struct top_args *a) { pool_run(pool, a->n, top_task, (void *)a); }

enum { GRAIN = 32768 }; /* logits of a task */

static void cap_task(const void *args, int64_t first, int64_t end)
{
	const struct cap_logits_args *a = args;
	cpu_kernels()->cap_logits((float *)a->logits + first, end - first, a->scale, a->cap);
}

void op_cap_logits(struct pool *pool, const struct cap_logits_args *a) { run_tasks(pool, a->n, GRAIN, cap_task, a); }
