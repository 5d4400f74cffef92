/* norm.c: RMSNorm and LayerNorm, forward and backward */
#include "cpu.h"

ROWS_OPERATION(norm_forward, norm_forward)

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
