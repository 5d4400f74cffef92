/* products: rates of cuBLASLt under load, a line of JSON for each: every candidate that mt-stream would time for GEMMs
 * of Qwen2.5-7B, and 8192 x 8192 x 8192 in bf16 and in FP8 (e4m3, a scale a row). Each runs for some seconds, one
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

/* c (n, n) bf16 = x y' in FP8; x and y (n, n) */
static void fp8(struct gemms *g, int64_t n, const void *x, const void *y, void *c)
{
	struct gemm_args a = {.m = n, .n = n, .k = n, .a = x, .lda = n, .b = y, .ldb = n, .trans_b = 1, .c = c, .ldc = n};
	a.fp8 = device_bytes(2 * (size_t)fp8_copy_bytes(n, n, 1));
	struct gemm_args of = copies_of(&a);
	cuda_fp8(&queue, (void *)of.a, x, n, n, n, 0, g->tiled);
	cuda_fp8(&queue, (void *)of.b, y, n, n, n, 0, g->tiled);
	each_candidate(g, &of);
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
	if (fp8_here(g)) fp8(g, SQUARE, w, y, dw);
	return 0;
}
