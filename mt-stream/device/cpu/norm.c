/* norm.c: RMSNorm and LayerNorm, forward and backward */
#include "cpu.h"
#include "ops/norm.h"

static void forward_rows(const void *args, int64_t first, int64_t end)
{
	const struct norm_forward_args *a = args;
	cpu_kernels()->norm_forward(a, first, end);
	narrow_rows(a->as, a->y, a->h, first, end);
}

void op_norm_forward(struct pool *pool, const struct norm_forward_args *a) { run_rows(pool, a->n, forward_rows, a); }

static void backward_rows(const void *args, int64_t first, int64_t end, float *sum)
{
	const struct norm_backward_args *a = args;
	float *db = a->w ? sum + a->h : sum;
	cpu_kernels()->norm_backward(a, sum, a->mean && a->db ? db : NULL, first, end);
}

void op_norm_backward(struct pool *pool, const struct norm_backward_args *a)
{
	struct sums of[2];
	int count = 0;
	if (a->w) of[count++] = (struct sums){a->dw, a->h};
	if (a->mean && a->db) of[count++] = (struct sums){a->db, a->h};
	sum_rows_each(pool, a->n, backward_rows, a, of, count, a->beta);
}
