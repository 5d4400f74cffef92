/* products: rates of cuBLASLt under load, a line of JSON for each: every candidate that mt-stream would time for GEMMs
 * of Qwen2.5-7B, and 8192 x 8192 x 8192 in bf16 and in FP8 (e4m3, one scale a matrix). Each runs for some seconds, one
 * behind the other without a pause: a card that is limited by power is slower then than in the milliseconds in which
 * mt-stream selects.
 *
 * usage: products [SECONDS]   of each (2)
 */
#include "../../mt-stream/device/cuda/gemm.c"
#include "common.h"

static double seconds = 2;
static struct cuda_queue queue = {.elem = 2};

/* Launch again and again, ten at a time: TFLOP/s, 0: the library refuses */
static double rate(struct gemms *g, struct gemm *p, const struct selection *by, const struct gemm_args *a)
{
	int64_t times = 0;
	double began = 0;
	for (int warm = 1; warm || mt_now() - began < seconds; warm = 0) {
		for (int i = 0; i < 10; i++)
			if (gemm_launch(g, p, by, &queue, a)) return 0;
		must(cudaStreamSynchronize(queue.stream), "a GEMM");
		if (warm) began = mt_now();
		else times += 10;
	}
	return (double)times * 2 * (double)a->m * (double)a->n * (double)a->k / (mt_now() - began) / 1e12;
}

static void each_candidate(struct gemms *g, const struct gemm_args *a)
{
	struct gemm p = {0};
	struct selection all[CANDIDATES];
	char words[MT_CHOICE_KEY];
	float first, spent = 0;
	shape_of(&queue, a, &p.shape);
	shape_words(&p.shape, words);
	must_not(describe(g, &p) != CUBLAS_STATUS_SUCCESS);
	for (int i = 0, n = candidates(g, &p, all); i < n; i++) {
		if (candidate_time(g, &p, &all[i], &queue, a, INFINITY, &first, &spent)) continue;
		double tflops = rate(g, &p, &all[i], a), flop = 2 * (double)a->m * (double)a->n * (double)a->k;
		printf(
			"{\"what\": \"candidate\", \"shape\": \"%s\", \"number\": %d, \"first_tflops\": %.1f, \"tflops\": %.1f}\n",
			words, i, flop / (double)first / 1e9, tflops);
	}
	gemm_release(g, &p);
}

/* c (n, n) bf16 = a a', of random codes below 2: none is NaN */
static void fp8(struct gemms *g, int64_t n)
{
	cublasOperation_t t = CUBLAS_OP_T;
	struct gemm p = {0};
	struct selection all[CANDIDATES];
	uint64_t u = (uint64_t)n;
	struct gemm_args a = {.m = n, .n = n, .k = n, .lda = n, .ldb = n, .ldc = n, .trans_b = 1};
	uint8_t *codes = malloc((size_t)(n * n));
	for (int64_t i = 0; codes && i < n * n; i++) codes[i] = (uint8_t)((uint64_t)i * 0x9e3779b97f4a7c15 >> 40) & 0xbf;
	void *operand = device_bytes((size_t)(n * n));
	must(cudaMemcpy(operand, codes, (size_t)(n * n), cudaMemcpyHostToDevice), "cudaMemcpy");
	free(codes);
	a.a = a.b = operand, a.c = device_bytes((size_t)(2 * n * n));
	p.shape = (struct shape){.align_a = 128, .align_b = 128, .align_c = 128, .elem = 1};
	if (g->cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) ||
		g->cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t) ||
		g->cublasLtMatrixLayoutCreate(&p.a, CUDA_R_8F_E4M3, u, u, n) ||
		g->cublasLtMatrixLayoutCreate(&p.b, CUDA_R_8F_E4M3, u, u, n) ||
		g->cublasLtMatrixLayoutCreate(&p.c, CUDA_R_16BF, u, u, n) || candidates(g, &p, all) < 1) {
		printf("{\"what\": \"gemm fp8\", \"n\": %lld, \"refused\": true}\n", (long long)n);
		return;
	}
	printf("{\"what\": \"gemm fp8\", \"n\": %lld, \"tflops\": %.1f}\n", (long long)n, rate(g, &p, &all[0], &a));
}

int main(int argc, char **argv)
{
	enum { TOKENS = 16384, HIDDEN = 3584, GATE_UP = 2 * 18944, SQUARE = 8192 };
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1) seconds = atof(argv[1]);
	must(cudaSetDevice(0), "cudaSetDevice");
	struct gemms *g = gemms_here();
	must(cudaStreamCreateWithFlags(&queue.stream, cudaStreamNonBlocking), "cudaStreamCreate");
	void *x = device_random((size_t)TOKENS * HIDDEN * 2, 1), *w = device_random((size_t)GATE_UP * HIDDEN * 2, 2),
		 *y = device_random((size_t)TOKENS * GATE_UP * 2, 3), *dw = device_bytes((size_t)GATE_UP * HIDDEN * 4);
	each_candidate(g,
		&(struct gemm_args){.m = TOKENS,
			.n = GATE_UP,
			.k = HIDDEN,
			.a = x,
			.lda = HIDDEN,
			.b = w,
			.ldb = HIDDEN,
			.trans_b = 1,
			.c = y,
			.ldc = GATE_UP});
	each_candidate(g,
		&(struct gemm_args){.m = TOKENS,
			.n = HIDDEN,
			.k = GATE_UP,
			.a = y,
			.lda = GATE_UP,
			.b = w,
			.ldb = HIDDEN,
			.c = x,
			.ldc = HIDDEN});
	each_candidate(g,
		&(struct gemm_args){.m = GATE_UP,
			.n = HIDDEN,
			.k = TOKENS,
			.a = y,
			.lda = GATE_UP,
			.trans_a = 1,
			.b = x,
			.ldb = HIDDEN,
			.c = dw,
			.ldc = HIDDEN,
			.fp32 = 1});
	each_candidate(g,
		&(struct gemm_args){.m = SQUARE,
			.n = SQUARE,
			.k = SQUARE,
			.a = w,
			.lda = SQUARE,
			.b = y,
			.ldb = SQUARE,
			.trans_b = 1,
			.c = dw,
			.ldc = SQUARE});
	seconds *= 5;
	fp8(g, SQUARE);
	return 0;
}
