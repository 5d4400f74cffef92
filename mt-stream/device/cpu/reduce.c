/* reduce.c: operations split into tasks; sums over rows (gradients of biases and of norms' weights), in blocks of rows.
 * Blocks are added in their order. */
#include "cpu.h"
#include "ops/rows.h"

#include <stdbool.h>
#include <string.h>

enum { LEAST_ROWS = 32, MOST_BLOCKS = 64, COLUMNS = 512 };

int64_t block_rows(int64_t rows)
{
	int64_t per = div_up(rows, MOST_BLOCKS);
	return per < LEAST_ROWS ? LEAST_ROWS : per;
}

struct tasks {
	task_fn *fn;
	const void *args;
	int64_t n, each;
};

static void run_task(void *arg, int64_t task, int thread)
{
	const struct tasks *t = arg;
	(void)thread;
	t->fn(t->args, task * t->each, least((task + 1) * t->each, t->n));
}

void run_tasks(struct pool *pool, int64_t n, int64_t each, task_fn *fn, const void *args)
{
	struct tasks t = {fn, args, n, each};
	pool_run(pool, div_up(n, each), run_task, &t);
}

void run_rows(struct pool *pool, int64_t rows, task_fn *fn, const void *args)
{
	run_tasks(pool, rows, block_rows(rows), fn, args);
}

int64_t row_blocks(int64_t rows) { return div_up(rows, block_rows(rows)); }

struct job {
	int64_t rows, width; /* width: elements of all arrays */
	rows_fn *fn;
	const void *args;
	float *partial; /* (row_blocks(rows), width) */
	const struct sums *of;
	float beta;
};

static void partial_rows(const void *args, int64_t first, int64_t end)
{
	const struct job *s = args;
	float *partial = s->width ? s->partial + first / block_rows(s->rows) * s->width : NULL;
	if (partial) memset(partial, 0, (size_t)s->width * sizeof *partial);
	s->fn(s->args, first, end, partial);
}

/* A task adds up some columns of one array */
static void add_task(void *arg, int64_t task, int thread)
{
	const struct job *s = arg;
	const struct sums *of = s->of;
	const float *partial = s->partial;
	(void)thread;
	for (; task >= div_up(of->n, COLUMNS); of++) {
		task -= div_up(of->n, COLUMNS);
		partial += of->n;
	}
	if (!of->dst) return;
	int64_t first = task * COLUMNS, n = least(COLUMNS, of->n - first), blocks = row_blocks(s->rows);
	float sum[COLUMNS] = {0}, *dst = of->dst + first;
	for (int64_t b = 0; b < blocks; b++)
		for (int64_t i = 0; i < n; i++) sum[i] += partial[b * s->width + first + i];
	for (int64_t i = 0; i < n; i++) dst[i] = s->beta != 0 ? s->beta * dst[i] + sum[i] : sum[i];
}

void sum_rows_each(struct pool *pool, int64_t rows, rows_fn *fn, const void *args, const struct sums *of, int count,
	float beta)
{
	struct job s = {rows, 0, fn, args, NULL, of, beta};
	int64_t tasks = 0;
	for (int i = 0; i < count; i++) {
		s.width += of[i].n;
		tasks += div_up(of[i].n, COLUMNS);
	}
	if (s.width) s.partial = op_shared(pool, (size_t)(row_blocks(rows) * s.width) * sizeof(float));
	run_rows(pool, rows, partial_rows, &s);
	pool_run(pool, tasks, add_task, &s);
}

void sum_rows(struct pool *pool, int64_t rows, rows_fn *fn, const void *args, float *dst, float beta, int64_t n)
{
	sum_rows_each(pool, rows, fn, args, &(struct sums){dst, n}, 1, beta);
}

int64_t documents_split(struct pool *pool, int64_t n, int64_t seq, const uint32_t *starts, int64_t past,
	int64_t longest, struct queries **queries)
{
	struct queries *run = op_shared(pool, (size_t)n * sizeof *run);
	int64_t begin = 0, count = 0;
	for (int64_t t = 0; t < n; t++) {
		int64_t in_row = t % seq;
		bool first = !in_row || starts[t] == in_row;
		if (first) begin = t ? t : -past;
		if (first || (t - begin) % longest == 0) run[count++] = (struct queries){begin, t, t};
		run[count - 1].end = t + 1;
	}
	*queries = run;
	return count;
}

static void bias_rows(const void *args, int64_t first, int64_t end, float *sum)
{
	const struct bias_backward_args *a = args;
	cpu_kernels()->column_sums(sum, (const float *)a->dy + first * a->ld, end - first, a->n, a->ld);
}

void op_bias_backward(struct pool *pool, const struct bias_backward_args *a)
{
	sum_rows(pool, a->m, bias_rows, a, a->db, a->beta, a->n);
}
