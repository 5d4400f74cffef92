/* kernels: how long the cuda device's own kernels take at sizes of released models; a line of JSON for each, with what
 * bounds them: GB/s of what they must move, or TFLOP/s. bf16, random numbers. Times are medians of SEVERAL launches.
 *
 * usage: kernels [TOKENS] [NAME...]   tokens, whole rows of SEQ (65536); delta, experts, norm: those alone
 */
#include "../../mt-stream/device/cuda/kernels.h"
#include "../bench/mixer.h"
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

#define LAUNCHER(number, op, args, name) \
	static __attribute__((unused)) void launch_##op(const struct cuda_queue *q, const void *a) { cuda_##op(q, a); }
OPS(LAUNCHER)

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
	struct mixer m = {.elements = bf16, .sums = fp32};
	mixer_forward(&m, N, SEQ, 16, 32, 128, starts, starts_host);
	double qkv = (double)(N * m.conv.channels), values = (double)(N * m.norm.ld);
	m.delta.work = device_bytes((size_t)delta_work_elems(&m.delta, 1) * sizeof *m.delta.work);
	measure("conv forward", launch_conv_forward, &m.conv, 4 * qkv, 0);
	measure("delta forward", launch_delta_forward, &m.delta, 0, 0);
	measure("gated norm forward", launch_gated_norm_forward, &m.norm, 6 * values, 0);
	mixer_backward(&m);
	m.norm.y = NULL;
	measure("delta backward", launch_delta_backward, &m.delta, 0, 0);
	measure("conv backward", launch_conv_backward, &m.conv, 4 * qkv + 6 * values, 0);
	measure("gated norm backward", launch_gated_norm_backward, &m.norm, 10 * values, 0);
}

/* By mma; where there is wgmma, by that too */
static void by_both(const char *name, const char *by_wgmma, const struct grouped_gemm_args *args, double flop)
{
	measure(name, launch_grouped_gemm, args, 0, flop);
	if (!cuda_wgmma_prepare()) return;
	must(cudaDeviceGetAttribute(&queue.wgmma_blocks, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
	measure(by_wgmma, launch_grouped_gemm, args, 0, flop);
	queue.wgmma_blocks = 0;
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
	by_both("grouped gemm", "grouped gemm by wgmma", &g, 4.0 * (double)(rows * h * f));
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
	by_both("grouped gemm of weights", "grouped gemm of weights by wgmma", &w, 4.0 * (double)(rows * h * f));
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
