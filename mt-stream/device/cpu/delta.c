/* delta.c: the gated delta rule, with one gate a head or one for each channel, and Mamba 2; a task computes one value
 * head of one document */
#include "cpu.h"
#include "ops/delta.h"

struct job {
	struct pool *pool;
	const struct delta_args *a;
	struct queries *documents;
	size_t scratch; /* bytes of a task's */
};

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	cpu_kernels()->delta_forward(w->a, &w->documents[task / w->a->value_heads], task % w->a->value_heads,
		op_scratch(w->pool, thread, w->scratch));
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	cpu_kernels()->delta_backward(w->a, &w->documents[task / w->a->value_heads], task % w->a->value_heads,
		op_scratch(w->pool, thread, w->scratch));
}

void op_delta_forward(struct pool *pool, const struct delta_args *a)
{
	struct job w = {.pool = pool, .a = a, .scratch = cpu_kernels()->delta_scratch(a, 1)};
	int64_t count = documents_split(pool, a->n, a->seq, a->starts, a->past, INT64_MAX, &w.documents);
	pool_run(pool, count * a->value_heads, forward_task, &w);
}

static void gates_rows(const void *args, int64_t first, int64_t end, float *sum)
{
	const struct delta_args *a = args;
	cpu_kernels()->delta_gates_backward(a, sum, first, end);
}

void op_delta_backward(struct pool *pool, const struct delta_args *a)
{
	struct job w = {.pool = pool, .a = a};
	int64_t count = documents_split(pool, a->n, a->seq, a->starts, 0, INT64_MAX, &w.documents), longest = 0;
	for (int64_t i = 0; i < count; i++) {
		int64_t length = w.documents[i].end - w.documents[i].begin;
		longest = length > longest ? length : longest;
	}
	w.scratch = cpu_kernels()->delta_scratch(a, div_up(least(longest, DELTA_SEGMENT), DELTA_CHUNK));
	pool_run(pool, count * a->value_heads, backward_task, &w);
	sum_rows_each(pool, a->n, gates_rows, a,
		(struct sums[]){{a->da_log, a->value_heads}, {a->ddt_bias, delta_gates_of(a)}, {a->dskip, a->value_heads}},
		a->correct ? 2 : 3, a->beta);
}
