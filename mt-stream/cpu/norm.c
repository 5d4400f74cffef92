/* norm.c: RMSNorm and LayerNorm, forward and backward */
#include "cpu.h"

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct norm_forward_args *a = arg;
	struct rows r = row_block(a->n, task);
	(void)thread;
	cpu_kernels()->norm_forward(a, r.first, r.first + r.n);
}

void op_norm_forward(struct pool *pool, const struct norm_forward_args *a)
{
	pool_run(pool, row_blocks(a->n), forward_task, (void *)a);
}

static void backward_rows(const void *args, struct rows r, float *sum)
{
	const struct norm_backward_args *a = args;
	float *db = a->w ? sum + a->h : sum;
	cpu_kernels()->norm_backward(a, sum, a->mean && a->db ? db : NULL, r.first, r.first + r.n);
}

void op_norm_backward(struct pool *pool, const struct norm_backward_args *a)
{
	struct sums of[2];
	int count = 0;
	if (a->w) of[count++] = (struct sums){a->dw, a->h};
	if (a->mean && a->db) of[count++] = (struct sums){a->db, a->h};
	sum_rows_each(pool, a->n, backward_rows, a, of, count, a->beta);
}
