/* ops.c: time of each operation of the cpu device in the shapes of two models, the best of several runs: wall time, and
 * CPU time a thread, which is the better measure if other programs share the cores
 *
 * usage: ops [THREADS] [RUNS]
 */
#include "../../mt-stream/ops.h"
#include "pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct model {
	const char *name;
	int64_t rows, seq, hidden, heads, kv_heads, dim, inner, vocab, chunk;
};

static const struct model models[] = {
	{"97M llama, B 2, T 512", 2, 512, 640, 10, 10, 64, 1706, 32000, 256},
	{"4.9M llama, B 8, T 256", 8, 256, 256, 8, 8, 32, 688, 256, 2048},
};

static struct pool *pool;
static int runs;
static const struct model *m;
static int64_t n;
static float *a, *b, *c, *d; /* long enough for every operation's arguments */
static uint32_t *tokens, *starts;

static double now(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void report(const char *name, void (*run)(const void *), const void *arg, double flops)
{
	double best = 1e9, least_cpu = 1e9;
	for (int i = 0; i < runs; i++) {
		double t = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
		run(arg);
		t = now(CLOCK_MONOTONIC) - t;
		cpu = (now(CLOCK_PROCESS_CPUTIME_ID) - cpu) / pool_threads(pool);
		best = t < best ? t : best;
		least_cpu = cpu < least_cpu ? cpu : least_cpu;
	}
	printf("  %-34s %9.3f ms, cpu %9.3f ms", name, best * 1e3, least_cpu * 1e3);
	if (flops > 0) printf(" %7.0f GFLOP/s of cpu time", flops / least_cpu * 1e-9);
	printf("\n");
}

static void run_gemm(const void *g) { op_gemm(pool, g); }

/* forward y = x w', backward dx = dy w, dw = dy' x */
static void bench_linear(const char *name, int64_t rows, int64_t in, int64_t out)
{
	char line[80];
	double flops = 2.0 * (double)rows * (double)in * (double)out;
	struct gemm y =
		{.m = rows, .n = out, .k = in, .a = a, .lda = in, .b = b, .ldb = in, .trans_b = 1, .c = c, .ldc = out};
	struct gemm dx = {.m = rows, .n = in, .k = out, .a = c, .lda = out, .b = b, .ldb = in, .c = d, .ldc = in};
	struct gemm dw = {.m = out,
		.n = in,
		.k = rows,
		.a = c,
		.lda = out,
		.trans_a = 1,
		.b = a,
		.ldb = in,
		.c = d,
		.ldc = in,
		.beta = 1};
	snprintf(line, sizeof line, "%s y  %lld x %lld x %lld", name, (long long)y.m, (long long)y.n, (long long)y.k);
	report(line, run_gemm, &y, flops);
	snprintf(line, sizeof line, "%s dx %lld x %lld x %lld", name, (long long)dx.m, (long long)dx.n, (long long)dx.k);
	report(line, run_gemm, &dx, flops);
	snprintf(line, sizeof line, "%s dw %lld x %lld x %lld", name, (long long)dw.m, (long long)dw.n, (long long)dw.k);
	report(line, run_gemm, &dw, flops);
}

static void run_norm(const void *arg)
{
	(void)arg;
	op_rmsnorm_forward(pool, c, d, a, b, n, m->hidden, 1e-5f);
}
static void run_norm_back(const void *arg)
{
	(void)arg;
	op_rmsnorm_backward(pool, c, 1, b, 1, a, a, b, d, n, m->hidden);
}
static void run_swiglu(const void *arg)
{
	(void)arg;
	op_swiglu_forward(pool, c, a, n, m->inner);
}
static void run_swiglu_back(const void *arg)
{
	(void)arg;
	op_swiglu_backward(pool, c, d, d, a, n, m->inner);
}
static void run_rope(const void *arg) { op_rope_forward(pool, arg, c, NULL, NULL); }
static void run_rope_back(const void *arg) { op_rope_backward(pool, arg, c, NULL, NULL, NULL, NULL, 0); }
static void run_attention(const void *arg) { op_attention_forward(pool, arg, c, d, a); }
static void run_attention_back(const void *arg) { op_attention_backward(pool, arg, b, a, c, d, a); }
static void run_embed(const void *arg)
{
	(void)arg;
	op_embed_forward(pool, c, a, tokens, n, m->hidden);
}
static void run_embed_back(const void *arg)
{
	(void)arg;
	op_embed_backward(pool, b, 1, a, tokens, n, m->hidden, m->vocab, -1);
}
static void run_widen(const void *arg)
{
	(void)arg;
	op_widen(pool, c, (const uint16_t *)(const void *)a, m->hidden * m->inner * 3);
}
static void run_copy(const void *arg)
{
	(void)arg;
	op_copy(pool, c, a, (size_t)(m->hidden * m->inner * 3) * 4);
}
static void run_nothing(const void *arg);
static void no_task(void *arg, int64_t task, int thread)
{
	(void)arg;
	(void)task;
	(void)thread;
}
static void run_nothing(const void *arg)
{
	(void)arg;
	for (int i = 0; i < 1000; i++) pool_run(pool, 8, no_task, NULL);
}
static void run_head(const void *arg)
{
	int64_t count;
	op_cross_entropy(pool, c, tokens, m->chunk, m->vocab, 1e-3f, *(const int *)arg, &count);
}

static void bench(void)
{
	int64_t wide = (m->heads + 2 * m->kv_heads) * m->dim;
	struct attention at = {n, m->seq, m->heads, m->kv_heads, m->dim, 0, 0.125f, starts};
	struct rope rope = {.n = n,
		.seq = m->seq,
		.heads = m->heads,
		.kv_heads = m->kv_heads,
		.dim = m->dim,
		.cos = a,
		.sin = b,
		.starts = starts};
	double pairs = (double)n * (double)(m->seq + 1) / 2 * (double)(m->heads * m->dim);
	printf("%s\n", m->name);
	bench_linear("qkv ", n, m->hidden, wide);
	bench_linear("out ", n, m->heads * m->dim, m->hidden);
	bench_linear("gu  ", n, m->hidden, 2 * m->inner);
	bench_linear("down", n, m->inner, m->hidden);
	bench_linear("head", m->chunk, m->hidden, m->vocab);
	report("attention", run_attention, &at, 4 * pairs);
	report("attention backward", run_attention_back, &at, 10 * pairs);
	report("rope", run_rope, &rope, 0);
	report("rope backward", run_rope_back, &rope, 0);
	report("rmsnorm", run_norm, NULL, 0);
	report("rmsnorm backward", run_norm_back, NULL, 0);
	report("swiglu", run_swiglu, NULL, 0);
	report("swiglu backward", run_swiglu_back, NULL, 0);
	report("cross-entropy, one chunk", run_head, &(int){0}, 0);
	report("cross-entropy backward, one chunk", run_head, &(int){1}, 0);
	report("embedding", run_embed, NULL, 0);
	report("embedding backward", run_embed_back, NULL, 0);
	report("widen, 3 hidden x inner", run_widen, NULL, 0);
	report("copy, 3 hidden x inner", run_copy, NULL, 0);
	report("1000 jobs of 8 empty tasks", run_nothing, NULL, 0);
}

static float *floats(int64_t count)
{
	float *x = malloc((size_t)count * sizeof *x);
	if (!x) exit(71);
	for (int64_t i = 0; i < count; i++) x[i] = (float)(i * 7919 % 1009) * 1e-3f - 0.5f;
	return x;
}

int main(int argc, char **argv)
{
	pool = pool_create(argc > 1 ? atoi(argv[1]) : 2, POOL_SPINS, NULL);
	runs = argc > 2 ? atoi(argv[2]) : 9;
	if (!pool) return 71;
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		m = &models[i];
		n = m->rows * m->seq;
		int64_t size = 2 * n * m->inner + m->vocab * m->hidden + m->chunk * m->vocab;
		a = floats(size);
		b = floats(size);
		c = floats(size);
		d = floats(size);
		tokens = malloc((size_t)n * sizeof *tokens);
		starts = calloc((size_t)n, sizeof *starts);
		if (!tokens || !starts) return 71;
		for (int64_t t = 0; t < n; t++) tokens[t] = (uint32_t)(t * 7919 % m->vocab);
		bench();
		free(a);
		free(b);
		free(c);
		free(d);
		free(tokens);
		free(starts);
	}
	pool_free(pool);
	return 0;
}
