/* reduce.c: sums over rows (gradients of biases and of norms' weights), in blocks of rows that depend on the number
 * of rows alone; blocks are added in their order */
#include "cpu.h"

#include <string.h>

enum { LEAST_ROWS = 32, MOST_BLOCKS = 64, COLUMNS = 512 };

static int64_t block_rows(int64_t rows)
{
	int64_t per = div_up(rows, MOST_BLOCKS);
	return per < LEAST_ROWS ? LEAST_ROWS : per;
}

int64_t row_blocks(int64_t rows) { return div_up(rows, block_rows(rows)); }

struct rows row_block(int64_t rows, int64_t i)
{
	int64_t per = block_rows(rows);
	return (struct rows){i * per, least(per, rows - i * per)};
}

struct sum {
	int64_t rows, n;
	rows_fn *fn;
	const void *args;
	float *partial; /* (row_blocks(rows), n) */
	float *dst, beta;
};

static void partial_task(void *arg, int64_t task, int thread)
{
	const struct sum *s = arg;
	float *partial = s->partial + task * s->n;
	(void)thread;
	memset(partial, 0, (size_t)s->n * sizeof *partial);
	s->fn(s->args, row_block(s->rows, task), partial);
}

static void add_task(void *arg, int64_t task, int thread)
{
	const struct sum *s = arg;
	int64_t first = task * COLUMNS, n = least(COLUMNS, s->n - first), blocks = row_blocks(s->rows);
	float sum[COLUMNS] = {0};
	(void)thread;
	for (int64_t b = 0; b < blocks; b++)
		for (int64_t i = 0; i < n; i++) sum[i] += s->partial[b * s->n + first + i];
	for (int64_t i = 0; i < n; i++) s->dst[first + i] = s->beta != 0 ? s->beta * s->dst[first + i] + sum[i] : sum[i];
}

void sum_rows(struct pool *pool, int64_t rows, rows_fn *fn, const void *args, float *dst, float beta, int64_t n)
{
	struct sum s = {rows, n, fn, args, op_shared(pool, (size_t)(row_blocks(rows) * n) * sizeof(float)), dst, beta};
	pool_run(pool, row_blocks(rows), partial_task, &s);
	pool_run(pool, div_up(n, COLUMNS), add_task, &s);
}

static void bias_rows(const void *args, struct rows r, float *sum)
{
	const struct bias_backward_args *a = args;
	cpu_kernels()->column_sums(sum, (const float *)a->dy + r.first * a->n, r.n, a->n);
}

void op_bias_backward(struct pool *pool, const struct bias_backward_args *a)
{
	sum_rows(pool, a->m, bias_rows, a, a->db, a->beta, a->n);
}
