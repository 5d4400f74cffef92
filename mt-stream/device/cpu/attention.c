/* attention.c: attention split into tasks. A forward task computes a group of queries of one head; a backward task one
 * document of one key-value head, and only it adds to that head's dk and dv. The sinks' gradient is a sum over rows. */
#include "cpu.h"
#include "ops/attention.h"

struct job {
	struct pool *pool;
	const struct attention_args *a;
	const struct attention_kernels *kernels;
	struct queries *queries;
	int64_t count;
};

static void split(struct job *w, int64_t longest)
{
	const struct attention_args *a = w->a;
	w->count = documents_split(w->pool, a->n, a->seq, a->starts, a->past, longest, &w->queries);
}

static float *scratch(const struct job *w, int thread)
{
	int64_t dim = w->a->dim, dim_v = attention_dim_v(w->a);
	return op_scratch(w->pool, thread, w->kernels->scratch(dim > dim_v ? dim : dim_v));
}

/* The last queries of a document see the most keys, so their tasks run first. */
static void forward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	const struct queries *queries = &w->queries[w->count - 1 - task / w->a->heads];
	w->kernels->forward(w->a, queries, task % w->a->heads, scratch(w, thread));
}

static void forward(struct pool *pool, const struct attention_args *a, const struct attention_kernels *kernels)
{
	struct job w = {.pool = pool, .a = a, .kernels = kernels};
	split(&w, ATTENTION_GROUP);
	pool_run(pool, w.count * a->heads, forward_task, &w);
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	const struct queries *queries = &w->queries[task / w->a->kv_heads];
	w->kernels->backward(w->a, queries, task % w->a->kv_heads, scratch(w, thread));
}

static void backward(struct pool *pool, const struct attention_args *a, const struct attention_kernels *kernels)
{
	struct job w = {.pool = pool, .a = a, .kernels = kernels};
	split(&w, a->seq);
	pool_run(pool, w.count * a->kv_heads, backward_task, &w);
}

void op_attention_forward(struct pool *p, const struct attention_args *a) { forward(p, a, cpu_kernels()->attention); }
void op_attention_backward(struct pool *p, const struct attention_args *a) { backward(p, a, cpu_kernels()->attention); }
void attention_bf16_forward(struct pool *p, const struct attention_args *a) { forward(p, a, attention_bf16()); }
void attention_bf16_backward(struct pool *p, const struct attention_args *a) { backward(p, a, attention_bf16()); }
bool attention_bf16_is_fast(void) { return attention_bf16() != NULL; }

static void sinks_rows(const void *args, int64_t first, int64_t end, float *sum)
{
	cpu_kernels()->sinks_backward(args, first, end, sum);
}

void op_sinks_backward(struct pool *pool, const struct sinks_backward_args *a)
{
	sum_rows(pool, a->n, sinks_rows, a, a->dsinks, a->beta, a->heads);
}
