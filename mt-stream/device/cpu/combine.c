/* combine.c: tokens' rows to experts, and experts' outputs back to tokens. Each row is computed by one thread, and sums
 * go in the order of experts, so that no bit depends on threads, nor on windows of experts. */
#include <string.h>

#include "cpu.h"
#include "mt/types.h"
#include "ops/combine.h"
#include "model/bf16.h"

enum { ROWS = 16 }; /* of a task */

static void dispatch_rows(const void *args, int64_t first, int64_t end)
{
	const struct dispatch_args *a = args;
	for (int64_t r = first; r < end; r++) {
		float *y = (float *)a->y + r * a->h;
		memcpy(y, (const float *)a->x + a->slot[r] / a->per_token * a->h, (size_t)a->h * sizeof(float));
		if (a->weight) cpu_kernels()->scale(y, a->weight[a->slot[r]], a->h);
	}
}

void op_dispatch(struct pool *pool, const struct dispatch_args *a) { run_tasks(pool, a->rows, ROWS, dispatch_rows, a); }

static uint32_t row_of(const struct combine_args *a, int64_t slot) { return a->row ? a->row[slot] : (uint32_t)slot; }

/* The slots of token t whose rows are in the window, in ascending order of rows */
static int64_t slots_of(const struct combine_args *a, int64_t t, uint32_t *slot)
{
	uint32_t from = a->from ? *a->from : 0, to = a->to ? *a->to : UINT32_MAX;
	int64_t n = 0;
	for (int64_t s = t * a->per_token; s < (t + 1) * a->per_token; s++) {
		uint32_t row = row_of(a, s);
		int64_t at = n;
		if (row < from || row >= to) continue;
		for (; at > 0 && row_of(a, slot[at - 1]) > row; at--) slot[at] = slot[at - 1];
		slot[at] = (uint32_t)s;
		n++;
	}
	return n;
}

static void combine_row(const struct combine_args *a, int64_t t)
{
	uint32_t slot[MT_EXPERTS_PER_TOKEN];
	int64_t slots = slots_of(a, t, slot);
	const float *x[MT_EXPERTS_PER_TOKEN], *add = a->add ? (const float *)a->add + t * a->h : NULL;
	float weight[MT_EXPERTS_PER_TOKEN];
	for (int64_t i = 0; i < slots; i++) {
		x[i] = (const float *)a->x + row_of(a, slot[i]) * a->h;
		weight[i] = a->weight ? a->weight[slot[i]] : 1;
	}
	cpu_kernels()->weighted_sum((float *)a->y + t * a->h, a->sum ? a->sum + t * a->h : NULL, x, weight, slots, add,
		a->h);
}

static void combine_rows(const void *args, int64_t first, int64_t end)
{
	const struct combine_args *a = args;
	for (int64_t t = first; t < end; t++) combine_row(a, t);
}

void op_combine(struct pool *pool, const struct combine_args *a) { run_tasks(pool, a->n, ROWS, combine_rows, a); }

/* Of do and the row's bias */
static double dot_bias(const struct combine_backward_args *a, const float *d_o, int64_t slot)
{
	int64_t at = a->expert[slot] * a->bias_stride;
	double sum = 0;
	if (!a->bf16) return cpu_kernels()->dot_fp64(d_o, (const float *)a->bias + at, a->h);
	for (int64_t i = 0; i < a->h; i++) sum += (double)d_o[i] * bf16_float(((const uint16_t *)a->bias)[at + i]);
	return sum;
}

static void combine_backward_row(const struct combine_backward_args *a, int64_t r)
{
	int64_t s = a->slot ? a->slot[r] : r;
	float w = a->weight[s], *y = (float *)a->y + r * a->f, *d_o = a->bias ? (float *)a->d_o + r * a->h : NULL;
	double d = cpu_kernels()->dot_fp64(y, (const float *)a->dy + r * a->f, a->f);
	if (d_o) d += dot_bias(a, d_o, s);
	a->dweight[s] = (float)d;
	if (d_o) cpu_kernels()->scale(d_o, w, a->h);
	else cpu_kernels()->scale(y, w, a->f);
	if (a->g) cpu_kernels()->scale((float *)a->dgu + r * a->g, w, a->g);
}

static void combine_backward_rows(const void *args, int64_t first, int64_t end)
{
	const struct combine_backward_args *a = args;
	for (int64_t r = first; r < end; r++) combine_backward_row(a, r);
}

void op_combine_backward(struct pool *pool, const struct combine_backward_args *a)
{
	run_tasks(pool, a->rows, ROWS, combine_backward_rows, a);
}
