/* scale.c: sums with factors, element by element */
#include "cpu.h"

enum { GRAIN = 65536 }; /* elements of a task */

static void scaled_add_task(const void *args, int64_t first, int64_t end)
{
	const struct scaled_add_args *a = args;
	const float *add = a->add;
	cpu_kernels()->scaled_add((float *)a->y + first, (const float *)a->x + first, add ? add + first : NULL, a->scale,
		a->factor ? *(const float *)a->factor : 1.0f, end - first);
}

void op_scaled_add(struct pool *pool, const struct scaled_add_args *a)
{
	run_tasks(pool, a->n, GRAIN, scaled_add_task, a);
}
