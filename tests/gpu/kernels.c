/* kernels: how long the cuda device's own kernels take at sizes of released models; a line of JSON for each, with what
 * bounds them: GB/s of what they must move, or TFLOP/s. bf16, random numbers. Times are medians of SEVERAL launches.
 *
 * usage: kernels [TOKENS] [NAME...]   tokens, whole rows of SEQ (65536); delta, experts, norm: those alone
 */
#include "../../mt-stream/device/cuda/kernels.h"
#include "common.h"

#define SEVERAL 7
#define SEQ 4096

static int64_t N = 65536; /* tokens: rows of SEQ */

static struct cuda_queue queue = {.elem = 2};
static char **wanted;

static int is_wanted(const char *name)
{
	int all = !*wanted;
	for (char **w = wanted; *w; w++) all |= !strcmp(name, *w);
	return all;
}

static int by_size(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* bytes, flop: of a launch; 0: not counted */
static void measure(const char *name, void (*launch)(const struct cuda_queue *, const void *), const void *args,
	double bytes, double flop)
{
	cudaEvent_t begin, end;
	float ms[SEVERAL];
	must(cudaEventCreate(&begin), "cudaEventCreate");
	must(cudaEventCreate(&end), "cudaEventCreate");
	for (int i = -1; i < SEVERAL; i++) {
		must(cudaEventRecord(begin, queue.stream), "cudaEventRecord");
		launch(&queue, args);
		must(cudaEventRecord(end, queue.stream), "cudaEventRecord");
		must(cudaGetLastError(), name);
		must(cudaEventSynchronize(end), name);
		if (i >= 0) must(cudaEventElapsedTime(&ms[i], begin, end), "cudaEventElapsedTime");
	}
	qsort(ms, SEVERAL, sizeof *ms, by_size);
	double s = ms[SEVERAL / 2] / 1e3;
	printf("{\"what\": \"kernel\", \"name\": \"%s\", \"ms\": %.3f", name, s * 1e3);
	if (bytes > 0) printf(", \"gb_s\": %.0f", bytes / s / 1e9);
	if (flop > 0) printf(", \"tflops\": %.1f", flop / s / 1e12);
	printf("}\n");
	fflush(stdout);
	must(cudaEventDestroy(begin), "cudaEventDestroy");
	must(cudaEventDestroy(end), "cudaEventDestroy");
}

#define LAUNCHER(op) \
	static void launch_##op(const struct cuda_queue *q, const void *a) { cuda_##op(q, a); }
LAUNCHER(conv_forward)
LAUNCHER(conv_backward)
LAUNCHER(delta_forward)
LAUNCHER(delta_backward)
LAUNCHER(gated_norm_forward)
LAUNCHER(gated_norm_backward)
LAUNCHER(grouped_gemm)
LAUNCHER(norm_backward)

static void *bf16(int64_t elems) { return device_random((size_t)elems * 2, (uint64_t)elems); }
static void *fp32(int64_t elems) { return device_random((size_t)elems * 4, (uint64_t)elems); }

/* Where documents start: each row is one */
static uint32_t *starts_host, *starts;

static void starts_make(void)
{
	starts_host = calloc((size_t)N, sizeof *starts_host);
	starts = device_bytes((size_t)N * sizeof *starts);
	must(cudaMemcpy(starts, starts_host, (size_t)N * sizeof *starts, cudaMemcpyHostToDevice), "cudaMemcpy");
}

/* Qwen3.5-9B's gated DeltaNet */
static void delta_net(void)
{
	const int64_t hk = 16, hv = 32, dim = 128, keys = hk * dim, values = hv * dim, channels = 2 * keys + values;
	struct delta_args d = {.n = N,
		.seq = SEQ,
		.key_heads = hk,
		.value_heads = hv,
		.key_dim = dim,
		.value_dim = dim,
		.correct = 1,
		.qkv = bf16(N * channels),
		.a = bf16(N * hv),
		.b = bf16(N * hv),
		.ld = hv,
		.b_ld = hv,
		.a_log = bf16(hv),
		.dt_bias = bf16(hv),
		.starts = starts,
		.host_starts = starts_host,
		.o = bf16(N * values)};
	d.work = device_bytes((size_t)delta_work_elems(&d, 1) * sizeof *d.work);
	/* q and k as conv leaves them, of length 1, so that states stay numbers */
	struct conv_args c = {.n = N,
		.seq = SEQ,
		.channels = channels,
		.width = 4,
		.q_heads = hk,
		.k_heads = hk,
		.dim = dim,
		.silu = 1,
		.x = bf16(N * channels),
		.ld = channels,
		.w = bf16(channels * 4),
		.starts = starts,
		.y = (void *)d.qkv};
	measure("conv forward", launch_conv_forward, &c, 4.0 * (double)(N * channels), 0);
	measure("delta forward", launch_delta_forward, &d, 0, 0);
	d.d_o = bf16(N * values);
	d.dq = bf16(N * hv * dim);
	d.dk = bf16(N * hv * dim);
	d.dv = bf16(N * values);
	d.da = bf16(N * hv);
	d.db = bf16(N * hv);
	d.d_ld = hv;
	d.da_log = fp32(hv);
	d.ddt_bias = fp32(hv);
	measure("delta backward", launch_delta_backward, &d, 0, 0);
	c.y = NULL;
	c.value_heads = hv;
	c.dq = d.dq;
	c.dk = d.dk;
	c.dv = d.dv;
	c.dx = bf16(N * channels);
	c.dx_ld = channels;
	c.dw = fp32(channels * 4);
	measure("conv backward", launch_conv_backward, &c, 2.0 * (double)(N * (2 * channels + 3 * values)), 0);
	struct gated_norm_args g =
		{.n = N, .heads = hv, .dim = dim, .eps = 1e-6f, .o = d.o, .z = d.d_o, .ld = values, .w = bf16(dim), .y = d.dq};
	measure("gated norm forward", launch_gated_norm_forward, &g, 6.0 * (double)(N * values), 0);
	g.y = NULL;
	g.dy = d.dk;
	g.d_o = d.dv;
	g.dz = (void *)d.qkv;
	g.dz_ld = channels;
	g.dw = fp32(dim);
	measure("gated norm backward", launch_gated_norm_backward, &g, 10.0 * (double)(N * values), 0);
}

/* OLMoE-1B-7B's experts: 8 of 64 for each token, all alike; gate and up, then the gradient of their weights */
static void experts(void)
{
	const int64_t e = 64, rows = 8 * N, h = 2048, f = 1024;
	uint32_t first[65], *device = device_bytes(sizeof first);
	for (int64_t i = 0; i <= e; i++) first[i] = (uint32_t)(rows / e * i);
	must(cudaMemcpy(device, first, sizeof first, cudaMemcpyHostToDevice), "cudaMemcpy");
	struct grouped_gemm_args g = {.experts = e,
		.rows = rows,
		.n = 2 * f,
		.k = h,
		.first = device,
		.a = bf16(rows * h),
		.lda = h,
		.b = bf16(e * 2 * f * h),
		.ldb = h,
		.trans_b = 1,
		.c = bf16(rows * 2 * f),
		.ldc = 2 * f,
		.stride = 2 * f * h};
	measure("grouped gemm", launch_grouped_gemm, &g, 0, 4.0 * (double)(rows * h * f));
	struct grouped_gemm_args w = {.experts = e,
		.rows = rows,
		.n = h,
		.k = 2 * f,
		.first = device,
		.a = g.c,
		.lda = 2 * f,
		.b = g.a,
		.ldb = h,
		.c = fp32(e * 2 * f * h),
		.ldc = h,
		.stride = 2 * f * h,
		.sum = 1};
	measure("grouped gemm of weights", launch_grouped_gemm, &w, 0, 4.0 * (double)(rows * h * f));
}

static void norm(void)
{
	const int64_t h = 3584;
	struct norm_backward_args n = {.dx = bf16(N * h),
		.add_dx = 1,
		.dw = fp32(h),
		.dy = bf16(N * h),
		.x = bf16(N * h),
		.w = bf16(h),
		.rstd = fp32(N),
		.n = N,
		.h = h};
	measure("norm backward", launch_norm_backward, &n, 8.0 * (double)(N * h), 0);
}

int main(int argc, char **argv)
{
	wanted = argv + (argc > 0);
	if (*wanted && atoll(*wanted) > 0) N = (atoll(*wanted++) + SEQ - 1) / SEQ * SEQ;
	must(cuda_kernels_prepare(), "cudaFuncSetAttribute");
	queue.work_bytes = cuda_work_bytes(N, 64);
	queue.work = device_bytes(queue.work_bytes);
	starts_make();
	if (is_wanted("delta")) delta_net();
	if (is_wanted("experts")) experts();
	if (is_wanted("norm")) norm();
	return 0;
}
