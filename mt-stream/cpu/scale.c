/* scale.c: sums with factors, element by element */
#include "cpu.h"

enum { PIECE = 65536 }; /* elements of a task */

static void scaled_add_task(void *arg, int64_t task, int thread)
{
	const struct scaled_add_args *a = arg;
	int64_t first = task * PIECE;
	const float *add = a->add;
	(void)thread;
	cpu_kernels()->scaled_add((float *)a->y + first, (const float *)a->x + first, add ? add + first : NULL, a->scale,
		a->factor ? *(const float *)a->factor : 1.0f, least(PIECE, a->n - first));
}

void op_scaled_add(struct pool *pool, const struct scaled_add_args *a)
{
	pool_run(pool, div_up(a->n, PIECE), scaled_add_task, (void *)a);
}
