/* large: do indices work beyond 2^31 elements? Each operation runs on so many rows that its largest tensor has more
 * elements, and again on the last rows alone, which must give the same bits. Needs some 20 GB of GPU memory; with less
 * the case is reported as refused.
 */
#include "common.h"

static struct cuda_queue queue = {.elem = 2};
static int failures;

static void same(const char *name, const void *all, int64_t rows, const void *last, int64_t some, int64_t width)
{
	size_t bytes = (size_t)(some * width) * 2;
	char *a = malloc(bytes), *b = malloc(bytes);

	must(cudaGetLastError(), name);
	must(cudaDeviceSynchronize(), name);
	must(cudaMemcpy(a, (const char *)all + (size_t)((rows - some) * width) * 2, bytes, cudaMemcpyDeviceToHost), name);
	must(cudaMemcpy(b, last, bytes, cudaMemcpyDeviceToHost), name);
	int good = !memcmp(a, b, bytes);
	printf("%s %s: %lld x %lld elements\n", good ? "ok" : "FAILED", name, (long long)rows, (long long)width);
	failures += !good;
	free(a);
	free(b);
}

static void *after(void *p, int64_t elements) { return (char *)p + (size_t)elements * 2; }

static void swiglu(void)
{
	int64_t f = 18944, n = (1ll << 31) / (2 * f) + 100, some = 70;
	void *gu = device_random((size_t)(n * 2 * f) * 2, 1), *y, *last, *last_y;

	must(cudaMalloc(&y, (size_t)(n * f) * 2), "cudaMalloc");
	must(cudaMalloc(&last_y, (size_t)(some * f) * 2), "cudaMalloc");
	must(cudaMalloc(&last, (size_t)(some * 2 * f) * 2), "cudaMalloc");
	struct swiglu_forward_args a = {.y = y, .gu = gu, .n = n, .f = f};
	cuda_swiglu_forward(&queue, &a);
	a = (struct swiglu_forward_args){.y = last, .gu = after(gu, (n - some) * 2 * f), .n = some, .f = f};
	cuda_swiglu_forward(&queue, &a);
	same("swiglu forward", y, n, last, some, f);
	struct swiglu_backward_args b = {.dgu = last,
		.y = last_y,
		.dy = after(y, (n - some) * f),
		.gu = after(gu, (n - some) * 2 * f),
		.n = some,
		.f = f};
	cuda_swiglu_backward(&queue, &b);
	b = (struct swiglu_backward_args){.dgu = gu, .y = y, .dy = y, .gu = gu, .n = n, .f = f};
	cuda_swiglu_backward(&queue, &b);
	same("swiglu backward", gu, n, last, some, 2 * f);
	same("swiglu backward's output", y, n, last_y, some, f);
	cudaFree(gu), cudaFree(y), cudaFree(last), cudaFree(last_y);
}

static void head(void)
{
	int64_t vocab = 152064, n = (1ll << 31) / vocab + 100, some = 30;
	void *logits = device_random((size_t)(n * vocab) * 2, 2), *last = NULL;
	uint32_t *targets;
	struct loss *loss;

	must(cudaMalloc(&last, (size_t)(some * vocab) * 2), "cudaMalloc");
	must(cudaMalloc((void **)&targets, (size_t)n * 4), "cudaMalloc");
	must(cudaMalloc((void **)&loss, sizeof *loss), "cudaMalloc");
	must(cudaMemset(targets, 0, (size_t)n * 4), "cudaMemset");
	must(cudaMemset(loss, 0, sizeof *loss), "cudaMemset");
	must(cudaMemcpy(last, after(logits, (n - some) * vocab), (size_t)(some * vocab) * 2, cudaMemcpyDeviceToDevice),
		"copy");
	must(cudaDeviceSynchronize(), "copy");
	struct cross_entropy_args a =
		{.logits = logits, .targets = targets, .n = n, .vocab = vocab, .scale = 1e-3f, .backward = 1, .loss = loss};
	cuda_cross_entropy(&queue, &a);
	a.logits = last;
	a.n = some;
	cuda_cross_entropy(&queue, &a);
	same("cross-entropy", logits, n, last, some, vocab);
	cudaFree(logits), cudaFree(last), cudaFree(targets), cudaFree(loss);
}

static void attention(void)
{
	int64_t seq = 512, heads = 28, kv = 4, dim = 128, wide = (heads + 2 * kv) * dim;
	int64_t n = ((1ll << 31) / wide / seq + 2) * seq;
	void *qkv = device_random((size_t)(n * wide) * 2, 3), *o, *last;
	float *lse;
	uint32_t *starts;
	struct attention_args a = {.n = n, .seq = seq, .heads = heads, .kv_heads = kv, .dim = dim, .scale = 0.1f};

	must(cudaMalloc(&o, (size_t)(n * heads * dim) * 2), "cudaMalloc");
	must(cudaMalloc(&last, (size_t)(seq * wide) * 2), "cudaMalloc");
	must(cudaMalloc((void **)&lse, (size_t)(n * heads) * 4), "cudaMalloc");
	must(cudaMalloc((void **)&starts, (size_t)n * 4), "cudaMalloc");
	must(cudaMemset(starts, 0, (size_t)n * 4), "cudaMemset");
	a.starts = starts;
	a.qkv = qkv;
	a.o = o;
	a.lse = lse;
	cuda_attention_forward(&queue, &a);
	a.n = seq;
	a.qkv = after(qkv, (n - seq) * wide);
	a.o = last;
	cuda_attention_forward(&queue, &a);
	same("attention forward", o, n, last, seq, heads * dim);
	cudaFree(qkv), cudaFree(o), cudaFree(last), cudaFree(lse), cudaFree(starts);
}

static void product(void)
{
	int64_t k = 64, n = 37888, m = (1ll << 31) / n + 128, some = 128;
	struct gemms *g = library_open();
	struct gemm_args p = {.m = m,
		.n = n,
		.k = k,
		.a = device_random((size_t)(m * k) * 2, 4),
		.lda = k,
		.b = device_random((size_t)(n * k) * 2, 5),
		.ldb = k,
		.trans_b = 1,
		.ldc = n};
	void *c, *last;

	must(cudaMalloc(&c, (size_t)(m * n) * 2), "cudaMalloc");
	must(cudaMalloc(&last, (size_t)(some * n) * 2), "cudaMalloc");
	p.c = c;
	if (gemms_run(g, &queue, &p)) {
		fprintf(stderr, "large: %s\n", mt_errmsg());
		exit(1);
	}
	/* another shape may have another algorithm: the plain kernel's order is the same for both */
	p.a = after((void *)p.a, (m - some) * k);
	p.m = some;
	p.c = last;
	cuda_gemm_plain(&queue, &p);
	must(cudaDeviceSynchronize(), "product");
	uint16_t x[64], y[64];
	double error = 0, norm = 0;
	must(cudaMemcpy(x, after(c, m * n - 64), sizeof x, cudaMemcpyDeviceToHost), "copy");
	must(cudaMemcpy(y, after(last, some * n - 64), sizeof y, cudaMemcpyDeviceToHost), "copy");
	for (int i = 0; i < 64; i++) {
		double a = (double)mt_float((uint32_t)x[i] << 16), b = (double)mt_float((uint32_t)y[i] << 16);
		error += (a - b) * (a - b);
		norm += b * b;
	}
	int good = norm > 0 && error <= 1e-4 * norm;
	printf("%s product: %lld x %lld elements\n", good ? "ok" : "FAILED", (long long)m, (long long)n);
	failures += !good;
	cudaFree(c), cudaFree(last);
}

int main(void)
{
	size_t available, total;

	must(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
	if (available < 24ull << 30) {
		printf("refused: %zu GB of GPU memory are free, 24 are needed\n", available >> 30);
		return 0;
	}
	queue.work_bytes = cuda_work_bytes(1 << 22, 64);
	must(cudaMalloc((void **)&queue.work, queue.work_bytes), "cudaMalloc");
	must(cuda_kernels_prepare(), "cudaFuncSetAttribute");
	swiglu();
	head();
	attention();
	product();
	return failures != 0;
}
