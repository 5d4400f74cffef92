/* embed.c: the embedding, a gather of rows forward and a scatter backward */
#include "cpu.h"
#include "ops/embed.h"
#include "ops/rows.h"

#include <string.h>

#include "model/bf16.h"

enum { ROWS = 64, COLUMNS = 64 };

static void gather_rows(const void *args, int64_t first, int64_t end)
{
	const struct embed_forward_args *a = args;
	for (int64_t t = first; t < end; t++) {
		int64_t from = embed_row(a->tokens[t], a->vocab) * a->h;
		float *x = (float *)a->x + t * a->h;
		if (a->bf16) cpu_kernels()->widen(x, (const uint16_t *)a->w + from, a->h);
		else memcpy(x, (const float *)a->w + from, (size_t)a->h * sizeof *x);
		if (a->scale != 1) cpu_kernels()->scaled_add(x, x, NULL, a->scale, 1, a->h);
		for (int64_t i = 0; i < a->h && a->sines.step != 0; i++)
			x[i] += sine_of(&a->sines, position_of(&a->at, t), a->h, i);
		if (!a->table) continue;
		from = position_of(&a->at, t) * a->h;
		for (int64_t i = 0; i < a->h; i++)
			x[i] += a->bf16 ? bf16_float(((const uint16_t *)a->table)[from + i]) : ((const float *)a->table)[from + i];
	}
}

void op_embed_forward(struct pool *pool, const struct embed_forward_args *a)
{
	run_tasks(pool, a->n, ROWS, gather_rows, a);
}

/* A task computes some columns of all rows: so no two tasks add to the same element, and it is summed in token
 * order. */
static void scatter_columns(const void *args, int64_t first, int64_t end)
{
	const struct embed_backward_args *a = args;
	int64_t columns = end - first;
	for (int64_t t = 0; t < a->n; t++) {
		const float *from = (const float *)a->dx + t * a->h + first;
		float *row = a->dtable ? a->dtable + position_of(&a->at, t) * a->h + first : NULL;
		for (int64_t i = 0; row && i < columns; i++) row[i] += from[i];
		int64_t token = embed_row(a->tokens[t], a->vocab);
		if (token == a->pad) continue;
		float *to = a->dw + token * a->h + first;
		if (a->scale == 1)
			for (int64_t i = 0; i < columns; i++) to[i] += from[i];
		else
			for (int64_t i = 0; i < columns; i++) to[i] += a->scale * from[i];
	}
}

void op_embed_backward(struct pool *pool, const struct embed_backward_args *a)
{
	if (a->beta == 0) op_zero(pool, a->dw, (size_t)(a->vocab * a->h) * sizeof *a->dw);
	if (a->beta == 0 && a->dtable) op_zero(pool, a->dtable, (size_t)(a->at.rows * a->h) * sizeof *a->dtable);
	run_tasks(pool, a->h, COLUMNS, scatter_columns, a);
}
