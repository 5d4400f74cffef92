/* attention.c: attention split into tasks. A forward task computes a group of queries of one head; a backward task one
 * document of one key-value head, and only it adds to that head's dk and dv. The sinks' gradient is a sum over rows. */
#include "cpu.h"

#include <stdbool.h>

struct job {
	struct pool *pool;
	const struct attention_args *a;
	struct queries *queries;
	int64_t count;
};

/* Spans of at most `longest` queries, each inside one document. A document starts where `starts` says, or with a row;
 * the first one starts `past` tokens before its first query. */
static void documents_split(struct job *w, int64_t longest)
{
	const struct attention_args *a = w->a;
	int64_t begin = 0;
	w->queries = op_shared(w->pool, (size_t)a->n * sizeof *w->queries);
	for (int64_t t = 0; t < a->n; t++) {
		int64_t in_row = t % a->seq;
		bool first = !in_row || a->starts[t] == in_row;
		if (first) begin = t ? t : -a->past;
		if (first || (t - begin) % longest == 0) w->queries[w->count++] = (struct queries){begin, t, t};
		w->queries[w->count - 1].end = t + 1;
	}
}

static float *scratch(const struct job *w, int thread)
{
	return op_scratch(w->pool, thread, cpu_kernels()->attention_scratch(w->a->dim));
}

/* The last queries of a document see the most keys, so their tasks run first. */
static void forward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	const struct queries *queries = &w->queries[w->count - 1 - task / w->a->heads];
	cpu_kernels()->attention_forward(w->a, queries, task % w->a->heads, scratch(w, thread));
}

void op_attention_forward(struct pool *pool, const struct attention_args *a)
{
	struct job w = {.pool = pool, .a = a};
	documents_split(&w, ATTENTION_GROUP);
	pool_run(pool, w.count * a->heads, forward_task, &w);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	const struct queries *queries = &w->queries[task / w->a->kv_heads];
	cpu_kernels()->attention_backward(w->a, queries, task % w->a->kv_heads, scratch(w, thread));
}

void op_attention_backward(struct pool *pool, const struct attention_args *a)
{
	struct job w = {.pool = pool, .a = a};
	documents_split(&w, a->seq);
	pool_run(pool, w.count * a->kv_heads, backward_task, &w);
}

static void sinks_rows(const void *args, int64_t first, int64_t end, float *sum)
{
	cpu_kernels()->sinks_backward(args, first, end, sum);
}

void op_sinks_backward(struct pool *pool, const struct sinks_backward_args *a)
{
	sum_rows(pool, a->n, sinks_rows, a, a->dsinks, a->beta, a->heads);
}
