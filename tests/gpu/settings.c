/* settings.c: does NVIDIA's cuBLASLt accept cuda/gemm.c's descriptions of GEMM and its preferences? Descriptions are in
 * host memory, so this needs the library and no GPU. cuda/gemm.c is compiled in for its own functions.
 */
#include "../../mt-stream/device/cuda/gemm.c"
#include "../../mt-stream/device/cuda/gpu.c"

/* cuda/gemm.c and cuda/gpu.c need these functions of a GPU, and do not call them here */
void cuda_gemm_plain(const struct cuda_queue *q, const struct gemm_args *c) { (void)q, (void)c; }
void cuda_add_bias(const struct cuda_queue *q, const struct gemm_args *c) { (void)q, (void)c; }
void cuda_fp8(const struct cuda_queue *q, void *to, const void *of, int64_t rows, int64_t k, int64_t ld, int columns,
	int tiled)
{
	(void)q, (void)to, (void)of, (void)rows, (void)k, (void)ld, (void)columns, (void)tiled;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { return (void)e, (void)flags, cudaErrorNoDevice; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return (void)e, cudaErrorNoDevice; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return (void)e, (void)s, cudaErrorNoDevice; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { return (void)e, cudaErrorNoDevice; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
	return (void)ms, (void)a, (void)b, cudaErrorNoDevice;
}
cudaError_t cudaGetLastError(void) { return cudaErrorNoDevice; }
cudaError_t cudaGetDeviceCount(int *n) { return (void)n, cudaErrorNoDevice; }
cudaError_t cudaSetDevice(int ordinal) { return (void)ordinal, cudaErrorNoDevice; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int ordinal)
{
	return (void)p, (void)ordinal, cudaErrorNoDevice;
}
cudaError_t cudaDeviceGetAttribute(int *n, enum cudaDeviceAttr a, int ordinal)
{
	return (void)n, (void)a, (void)ordinal, cudaErrorNoDevice;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) { return (void)available, (void)total, cudaErrorNoDevice; }
const char *cudaGetErrorName(cudaError_t e) { return (void)e, "no device"; }
const char *cudaGetErrorString(cudaError_t e) { return (void)e, "no device"; }

static int taken(struct gemms *g, int form)
{
	static const char bias[256];
	static char fp8[256];
	struct gemm_args c = {.m = 4096,
		.n = 3584,
		.k = 18944,
		.trans_a = form & 1,
		.trans_b = form >> 1 & 1,
		.lda = form & 1 ? 4096 : 18944,
		.ldb = form & 2 ? 18944 : 3584,
		.ldc = 3584,
		.fp32 = form >> 2 & 1,
		.bias = form & 8 ? bias : NULL,
		.fp8 = form & 32 ? fp8 : NULL};
	const struct cuda_queue q = {.elem = form & 16 ? 4 : 2};
	if (c.fp8) c = copies_of(&c);
	g->tiled = form & 64;
	struct gemm p = {.bias = c.bias};
	cublasLtMatmulPreference_t f;
	shape_of(&q, &c, &p.shape);
	if (describe(g, &p) || g->cublasLtMatmulPreferenceCreate(&f) || prefer(g, &p.shape, f)) return 0;
	g->cublasLtMatmulPreferenceDestroy(f);
	gemm_release(g, &p);
	return 1;
}

int main(void)
{
	struct gemms g = {.bytes = 64u << 20};
	if (!library_open(&g)) mt_die(MT_EX_CONFIG, "%s", mt_errmsg());
	for (int form = 0; form < 128; form++)
		if (!taken(&g, form)) mt_die(1, "form %d is not taken", form);
	printf("cuBLASLt %zu\n", g.cublasLtGetVersion());
	return 0;
}
