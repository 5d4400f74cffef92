/* attention.c: attention cut into tasks: forward a group of queries and a head, backward a document and a
 * key-value head, which owns what its gradients are added to */
#include "cpu.h"

#include <stdbool.h>

struct job {
	struct pool *pool;
	const struct kernels *k;
	const struct attention_args *a;
	struct span *spans;
	int64_t count;
};

/* Spans of at most `longest` queries, none across documents. A document starts where a token says so, and with a
 * row; the first one, `past` tokens before that. */
static void cut(struct job *w, int64_t longest)
{
	const struct attention_args *a = w->a;
	int64_t begin = 0;
	w->spans = pool_shared(w->pool, (size_t)a->n * sizeof *w->spans);
	for (int64_t t = 0; t < a->n; t++) {
		int64_t in_row = t % a->seq;
		bool first = !in_row || a->starts[t] == in_row;
		if (first) begin = t ? t : -a->past;
		if (first || (t - begin) % longest == 0) w->spans[w->count++] = (struct span){begin, t, t};
		w->spans[w->count - 1].end = t + 1;
	}
}

static float *scratch(const struct job *w, int thread)
{
	return pool_scratch(w->pool, thread, w->k->attention_scratch(w->a->dim));
}

/* The last queries of a document see the most keys; they come first. */
static void forward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	const struct span *span = &w->spans[w->count - 1 - task / w->a->heads];
	w->k->attention_forward(w->a, span, task % w->a->heads, scratch(w, thread));
}

void op_attention_forward(struct pool *pool, const struct attention_args *a)
{
	struct job w = {.pool = pool, .k = pool_kernels(pool), .a = a};
	cut(&w, ATTENTION_GROUP);
	pool_run(pool, w.count * a->heads, forward_task, &w);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	const struct span *span = &w->spans[task / w->a->kv_heads];
	w->k->attention_backward(w->a, span, task % w->a->kv_heads, scratch(w, thread));
}

void op_attention_backward(struct pool *pool, const struct attention_args *a)
{
	struct job w = {.pool = pool, .k = pool_kernels(pool), .a = a};
	cut(&w, a->seq);
	pool_run(pool, w.count * a->kv_heads, backward_task, &w);
}
