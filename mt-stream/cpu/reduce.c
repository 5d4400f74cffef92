/* reduce.c: sums over rows (gradients of biases and of norms' weights), in blocks of rows that depend on the number
 * of rows alone; blocks are added in their order */
#include "cpu.h"

#include <string.h>

enum { LEAST_ROWS = 32, MOST_BLOCKS = 64, COLUMNS = 512 };

struct row_blocks row_blocks(int64_t rows)
{
	int64_t per = div_up(rows, MOST_BLOCKS);
	if (per < LEAST_ROWS) per = LEAST_ROWS;
	return (struct row_blocks){.rows = per, .count = div_up(rows, per), .n = rows};
}

struct partials {
	float *dst;
	float beta;
	const float *partial;
	int64_t count, n;
};

static void sum_task(void *arg, int64_t task, int thread)
{
	const struct partials *s = arg;
	int64_t first = task * COLUMNS, n = least(COLUMNS, s->n - first);
	float sum[COLUMNS] = {0};
	(void)thread;
	for (int64_t b = 0; b < s->count; b++)
		for (int64_t i = 0; i < n; i++) sum[i] += s->partial[b * s->n + first + i];
	for (int64_t i = 0; i < n; i++) s->dst[first + i] = s->beta != 0 ? s->beta * s->dst[first + i] + sum[i] : sum[i];
}

void sum_partials(struct pool *pool, float *dst, float beta, const float *partial, int64_t count, int64_t n)
{
	struct partials s = {dst, beta, partial, count, n};
	pool_run(pool, div_up(n, COLUMNS), sum_task, &s);
}

struct columns {
	const struct kernels *k;
	const struct bias_backward_args *a;
	struct row_blocks blocks;
	float *partial; /* (blocks, n) */
};

static void columns_task(void *arg, int64_t task, int thread)
{
	const struct columns *c = arg;
	int64_t n = c->a->n, first = row_block_start(&c->blocks, task);
	float *sum = c->partial + task * n;
	(void)thread;
	memset(sum, 0, (size_t)n * sizeof *sum);
	c->k->column_sums(sum, (const float *)c->a->dy + first * n, row_block_end(&c->blocks, task) - first, n);
}

void op_bias_backward(struct pool *pool, const struct bias_backward_args *a)
{
	struct columns c = {cpu_kernels(), a, row_blocks(a->m), NULL};
	c.partial = op_shared(pool, (size_t)(c.blocks.count * a->n) * sizeof(float));
	pool_run(pool, c.blocks.count, columns_task, &c);
	sum_partials(pool, a->db, a->beta, c.partial, c.blocks.count, a->n);
}
