/* ops.c: time of each operation of the cpu device in the shapes of two models, the best of several runs: wall time, and
 * CPU time a thread, which is the better measure if other programs share the cores. First a table of each GEMM by
 * shape, with its share of the peak (peak.h).
 *
 * usage: ops [THREADS] [RUNS]
 */
#include "../../mt-stream/device/device.h"
#include "../../mt-stream/ops/ops.h"
#include "mixer.h"
#include "peak.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>

struct model {
	const char *name;
	int64_t rows, seq, hidden, heads, kv_heads, dim, inner, vocab, chunk;
};

static const struct model models[] = {
	{"97M llama, B 2, T 512", 2, 512, 640, 10, 10, 64, 1568, 32000, 512},
	{"4.9M llama, B 8, T 256", 8, 256, 256, 4, 4, 64, 688, 256, 2048},
};

static struct pool *pool;
static int runs;
static const struct model *m;
static int64_t n;
static float *a, *b, *c, *d; /* long enough for every operation's arguments */
static float *lse, *rstd, *norm_dw;
static double peak[2]; /* operations a second of fp32 and bf16 */
static uint32_t *tokens, *starts;

/* CPU time of all threads, by a clock of each: the process's clock has that of others up to their last tick alone */
static double cpu_time(void)
{
	enum { MOST = 1024, PER_THREAD = 4, RUN_TIME = 2 }; /* of a clock's number in Linux: ~id << 3, and these */
	static clockid_t clocks[MOST];
	static int count;
	DIR *dir = count ? NULL : opendir("/proc/self/task");
	for (struct dirent *e; dir && count < MOST && (e = readdir(dir));)
		if (e->d_name[0] != '.') clocks[count++] = (clockid_t)(~(unsigned)atoi(e->d_name) << 3 | PER_THREAD | RUN_TIME);
	if (dir) closedir(dir);
	double sum = 0;
	for (int i = 0; i < count; i++) sum += now(clocks[i]);
	return sum;
}

/* Seconds of the best run, in wall time and in CPU time a thread */
static void measure(void (*run)(const void *), const void *arg, double *wall, double *cpu)
{
	*wall = *cpu = 1e9;
	for (int i = 0; i < runs; i++) {
		double began = now(CLOCK_MONOTONIC), before = cpu_time();
		run(arg);
		*wall = fmin(*wall, now(CLOCK_MONOTONIC) - began);
		*cpu = fmin(*cpu, (cpu_time() - before) / pool_threads(pool));
	}
}

static void report(const char *name, void (*run)(const void *), const void *arg, double flops)
{
	double best, least_cpu;
	measure(run, arg, &best, &least_cpu);
	printf("  %-34s %9.3f ms, cpu %9.3f ms", name, best * 1e3, least_cpu * 1e3);
	if (flops > 0) printf(" %7.0f GFLOP/s of cpu time", flops / least_cpu * 1e-9);
	printf("\n");
}

static void run_gemm(const void *args) { op_gemm(pool, args); }
#define RUN(code, op, args, name) \
	static __attribute__((unused)) void run_##op(const void *args_of) { op_##op(pool, args_of); }
OPS(RUN)

/* Forward y = x w', dgrad dx = dy w, wgrad dw = dy' x, of each: CPU time a thread, GFLOP/s, share of the peak */
static void bench_linear(const char *name, int64_t rows, int64_t in, int64_t out)
{
	double flops = 2.0 * (double)rows * (double)in * (double)out;
	struct gemm_args y = {.m = rows, .n = out, .k = in, .a = a, .lda = in, .b = b, .ldb = in, .trans_b = 1};
	struct gemm_args dx = {.m = rows, .n = in, .k = out, .a = c, .lda = out, .b = b, .ldb = in};
	struct gemm_args dw = {.m = out, .n = in, .k = rows, .a = c, .lda = out, .trans_a = 1, .b = a, .ldb = in};
	struct gemm_args *of[] = {&y, &dx, &dw};
	y.c = c, y.ldc = out;
	dx.c = d, dx.ldc = in;
	dw.c = d, dw.ldc = in, dw.beta = 1;
	for (int bf16 = 0; bf16 < (gemm_lacks_bf16() ? 1 : 2); bf16++) {
		char layer[80];
		snprintf(layer, sizeof layer, "%s %lld x %lld to %lld", name, (long long)rows, (long long)in, (long long)out);
		printf("  %-34s %s ", layer, bf16 ? "bf16" : "fp32");
		for (int i = 0; i < 3; i++) {
			double wall, cpu;
			of[i]->bf16 = bf16; /* the same memory: half as much of it is read */
			measure(run_gemm, of[i], &wall, &cpu);
			printf(" %7.3f ms %5.0f", cpu * 1e3, flops / cpu * 1e-9);
			if (peak[bf16] > 0) printf(" %.2f", flops / cpu / peak[bf16]);
		}
		printf("\n");
	}
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

static void run_bf16_forward(const void *args) { attention_bf16_forward(pool, args); }
static void run_bf16_backward(const void *args) { attention_bf16_backward(pool, args); }
static void bench_attention(int bf16)
{
	struct attention_args at = {.n = n, .seq = m->seq, .heads = m->heads, .kv_heads = m->kv_heads, .dim = m->dim};
	at.scale = 0.125f;
	at.starts = starts;
	at.qkv = a;
	at.o = c;
	at.lse = lse;
	void (*forward)(const void *) = bf16 ? run_bf16_forward : run_attention_forward;
	void (*backward)(const void *) = bf16 ? run_bf16_backward : run_attention_backward;
	double pairs = (double)n * (double)(m->seq + 1) / 2 * (double)(m->heads * m->dim);
	report("attention forward", forward, &at, 4 * pairs);
	at.cap = 50;
	report("attention forward, capped", forward, &at, 4 * pairs);
	at.cap = 0;
	at.d_o = d;
	at.dqkv = b;
	report("attention backward", backward, &at, 10 * pairs);
	at.cap = 50;
	report("attention backward, capped", backward, &at, 10 * pairs);
}

static void bench_rows(void)
{
	struct bias_backward_args bias = {norm_dw, 1, d, n, m->hidden, m->hidden};
	struct rope_args rope = {.n = n, .seq = m->seq, .heads = m->heads, .kv_heads = m->kv_heads, .dim = m->dim};
	rope.rope_dim = m->dim;
	rope.cos = a;
	rope.sin = b;
	rope.starts = starts;
	rope.qkv = c;
	struct norm_forward_args norm = {.y = c, .rstd = rstd, .x = a, .w = b, .n = n, .h = m->hidden, .eps = 1e-5f};
	struct norm_backward_args norm_back =
		{.dx = c, .add_dx = 1, .dw = norm_dw, .beta = 1, .dy = d, .x = a, .w = b, .rstd = rstd, .n = n, .h = m->hidden};
	struct activation_args swiglu = {.y = c, .gu = a, .n = n, .f = m->inner};
	struct activation_args swiglu_back = {.dgu = c, .y = d, .dy = b, .gu = a, .n = n, .f = m->inner};
	report("rope forward", run_rope_forward, &rope, 0);
	report("rope backward", run_rope_backward, &rope, 0);
	report("norm forward", run_norm_forward, &norm, 0);
	report("norm backward", run_norm_backward, &norm_back, 0);
	report("bias backward", run_bias_backward, &bias, 0);
	report("activation forward", run_activation_forward, &swiglu, 0);
	report("activation backward", run_activation_backward, &swiglu_back, 0);
}

static void bench_vocabulary(void)
{
	struct loss loss = {0};
	struct cross_entropy_args ce =
		{.logits = c, .targets = tokens, .n = m->chunk, .vocab = m->vocab, .scale = 1e-3f, .loss = &loss};
	struct embed_forward_args embed = {.x = c, .w = a, .tokens = tokens, .n = n, .h = m->hidden, .scale = 1};
	struct embed_backward_args embed_back = {.dw = b, .beta = 1, .dx = a, .tokens = tokens, .n = n, .h = m->hidden};
	embed_back.vocab = m->vocab;
	embed_back.pad = -1;
	embed_back.scale = 1;
	report("cross-entropy, one chunk", run_cross_entropy, &ce, 0);
	ce.backward = 1;
	report("cross-entropy backward, one chunk", run_cross_entropy, &ce, 0);
	report("embedding forward", run_embed_forward, &embed, 0);
	report("embedding backward", run_embed_backward, &embed_back, 0);
}

static void bench(void)
{
	printf("%s\n", m->name);
	printf("  %-34s      %-21s %-21s %s\n", "GEMM: ms, GFLOP/s, of the peak", " forward", " dgrad", " wgrad");
	bench_linear("qkv", n, m->hidden, (m->heads + 2 * m->kv_heads) * m->dim);
	bench_linear("out", n, m->heads * m->dim, m->hidden);
	bench_linear("gate, up", n, m->hidden, 2 * m->inner);
	bench_linear("down", n, m->inner, m->hidden);
	bench_linear("head", m->chunk, m->hidden, m->vocab);
	bench_attention(0);
	if (attention_bf16_is_fast()) printf("  attention of bf16:\n"), bench_attention(1);
	bench_rows();
	bench_vocabulary();
	report("widen, 3 hidden x inner", run_widen, NULL, 0);
	report("copy, 3 hidden x inner", run_copy, NULL, 0);
	report("1000 jobs of 8 empty tasks", run_nothing, NULL, 0);
}

static float *floats(int64_t count)
{
	float *x = array((size_t)count * sizeof *x);
	madvise(x, (size_t)count * sizeof *x, MADV_HUGEPAGE); /* as the device's memory */
	for (int64_t i = 0; i < count; i++) x[i] = (float)(i * 7919 % 1009) * 1e-3f - 0.5f;
	return x;
}

static void *memory(int64_t count) { return floats(count); }

/* A quarter of the heads of Qwen3.5-9B */
static void bench_mixer(void)
{
	enum { N = 2048, HK = 4, HV = 8, D = 128 };
	struct mixer x = {.elements = memory, .sums = memory};
	uint32_t *begin = array(N * sizeof *begin);
	mixer_forward(&x, N, N, HK, HV, D, begin, begin);
	struct delta_args mamba = x.delta;
	struct gate_args gate = {.n = N, .width = HV * D, .o = x.delta.o, .gate = x.norm.z, .ld = HV * D, .y = x.norm.y};
	mamba.correct = 0;
	mamba.dt_max = INFINITY;
	mamba.skip = floats(HV);
	printf("gated DeltaNet, %d tokens, %d and %d heads of %d\n", N, HK, HV, D);
	report("convolution forward", run_conv_forward, &x.conv, 0);
	report("delta rule forward", run_delta_forward, &x.delta, 156e3 * N * HV);
	report("Mamba 2 forward", run_delta_forward, &mamba, 98e3 * N * HV);
	report("gated norm forward", run_gated_norm_forward, &x.norm, 0);
	report("gate forward", run_gate_forward, &gate, 0);
	mixer_backward(&x);
	x.delta.work = floats(delta_work_elems(&x.delta, 0));
	report("convolution backward", run_conv_backward, &x.conv, 0);
	report("delta rule backward", run_delta_backward, &x.delta, 467e3 * N * HV);
	x.delta.correct = 0;
	x.delta.dt_max = INFINITY;
	x.delta.skip = mamba.skip;
	x.delta.dskip = floats(HV);
	x.delta.work = floats(delta_work_elems(&x.delta, 0));
	report("Mamba 2 backward", run_delta_backward, &x.delta, 246e3 * N * HV);
	report("gated norm backward", run_gated_norm_backward, &x.norm, 0);
}

int main(int argc, char **argv)
{
	pool = pool_create(argc > 1 ? atoi(argv[1]) : 2, POOL_SPINS, NULL);
	runs = argc > 2 ? atoi(argv[2]) : 9;
	if (!pool) return 71;
	for (int bf16 = 0; bf16 < 2; bf16++) peak[bf16] = peak_flops(pool, bf16);
	printf("peak of multiply-adds: fp32 %.0f GFLOP/s, bf16 %.0f\n", peak[0] * 1e-9, peak[1] * 1e-9);
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		m = &models[i];
		n = m->rows * m->seq;
		int64_t size = 2 * n * m->inner + m->vocab * m->hidden + m->chunk * m->vocab;
		a = floats(size);
		b = floats(size);
		c = floats(size);
		d = floats(size);
		lse = floats(n * m->heads);
		rstd = floats(n);
		norm_dw = floats(m->hidden);
		tokens = malloc((size_t)n * sizeof *tokens);
		starts = calloc((size_t)n, sizeof *starts);
		if (!tokens || !starts) return 71;
		for (int64_t t = 0; t < n; t++) tokens[t] = (uint32_t)(t * 7919 % m->vocab);
		bench();
		void *const used[] = {a, b, c, d, lse, rstd, norm_dw, tokens, starts};
		for (size_t k = 0; k < sizeof used / sizeof *used; k++) free(used[k]);
	}
	bench_mixer();
	pool_free(pool);
	return 0;
}
