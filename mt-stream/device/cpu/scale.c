/* scale.c: sums with factors, element by element, and columns of matrices */
#include "cpu.h"
#include "ops/rows.h"

#include <string.h>

enum { GRAIN = 65536 }; /* elements of a task */

static void scaled_add_task(const void *args, int64_t first, int64_t end)
{
	const struct scaled_add_args *a = args;
	const float *add = a->add, factor = a->factor ? *(const float *)a->factor : 1.0f;
	int64_t width = a->width ? a->width : a->n;
	for (int64_t n; first < end; first += n) {
		int64_t at = first / width * a->ld + first % width;
		n = least(width - first % width, end - first);
		cpu_kernels()->scaled_add((float *)a->y + at, (const float *)a->x + at, add ? add + at : NULL, a->scale, factor,
			n);
	}
}

void op_scaled_add(struct pool *pool, const struct scaled_add_args *a)
{
	run_tasks(pool, a->n, GRAIN, scaled_add_task, a);
}

enum { ROWS = 64 }; /* of a task */

static void columns_rows(const void *args, int64_t first, int64_t end)
{
	const struct columns_args *a = args;
	for (int64_t t = first; t < end; t++) {
		float *dst = (float *)a->dst + t * a->dst_ld;
		const float *src = (const float *)a->src + t * a->src_ld;
		if (a->add) cpu_kernels()->scaled_add(dst, src, dst, 1, 1, a->width);
		else memcpy(dst, src, (size_t)a->width * sizeof *dst);
	}
}

void op_columns(struct pool *pool, const struct columns_args *a) { run_tasks(pool, a->n, ROWS, columns_rows, a); }
