/* large: do indices work beyond 2^31 elements? Each operation runs on enough rows that its largest tensor has more
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

static void activation(const char *name, enum mt_ffn form, int interleaved)
{
	int64_t f = 18944, width = (activation_gated(form) ? 2 : 1) * f, n = (1ll << 31) / width + 100, some = 70;
	void *gu = device_random((size_t)(n * width) * 2, 1), *y = device_bytes((size_t)(n * f) * 2);
	void *last = device_bytes((size_t)(some * width) * 2), *last_y = device_bytes((size_t)(some * f) * 2);
	void *slope = device_random(4, 6);
	float *dslope = device_bytes(8);
	char part[100];
	struct activation_args a =
		{.y = y, .gu = gu, .n = n, .f = f, .form = form, .interleaved = interleaved, .slope = {slope, after(slope, 1)}};
	cuda_activation_forward(&queue, &a);
	a.y = last;
	a.gu = after(gu, (n - some) * width);
	a.n = some;
	cuda_activation_forward(&queue, &a);
	snprintf(part, sizeof part, "%s forward", name);
	same(part, y, n, last, some, f);
	struct activation_args b = {.dgu = last,
		.y = last_y,
		.dy = after(y, (n - some) * f),
		.gu = a.gu,
		.n = some,
		.f = f,
		.form = form,
		.interleaved = interleaved,
		.slope = {slope, after(slope, 1)},
		.dslope = {dslope, dslope + 1}};
	cuda_activation_backward(&queue, &b);
	b.dgu = gu;
	b.gu = gu;
	b.y = y;
	b.dy = y;
	b.n = n;
	cuda_activation_backward(&queue, &b);
	snprintf(part, sizeof part, "%s backward", name);
	same(part, gu, n, last, some, width);
	snprintf(part, sizeof part, "%s backward's output", name);
	same(part, y, n, last_y, some, f);
	cudaFree(gu), cudaFree(y), cudaFree(last), cudaFree(last_y), cudaFree(slope), cudaFree(dslope);
}

/* The statistics of the last rows are recomputed, in the same place */
static void layer_norm(void)
{
	int64_t h = 5120, n = (1ll << 31) / h + 100, some = 70, at = (n - some) * h;
	void *x = device_random((size_t)(n * h) * 2, 7), *w = device_random((size_t)h * 2, 8);
	void *y = device_bytes((size_t)(n * h) * 2), *last = device_bytes((size_t)(some * h) * 2);
	float *rstd = device_bytes((size_t)n * 4), *mean = device_bytes((size_t)n * 4), *dw = device_bytes((size_t)h * 8);
	struct norm_forward_args a =
		{.y = y, .rstd = rstd, .x = x, .w = w, .n = n, .h = h, .eps = 1e-5f, .mean = mean, .b = w, .one = 1};
	cuda_norm_forward(&queue, &a);
	a.y = last;
	a.rstd = rstd + n - some;
	a.mean = mean + n - some;
	a.x = after(x, at);
	a.n = some;
	cuda_norm_forward(&queue, &a);
	same("LayerNorm forward", y, n, last, some, h);
	struct norm_backward_args b = {.dx = last,
		.dw = dw,
		.dy = after(y, at),
		.x = after(x, at),
		.w = w,
		.rstd = rstd + n - some,
		.n = some,
		.h = h,
		.mean = mean + n - some,
		.db = dw + h,
		.one = 1};
	cuda_norm_backward(&queue, &b);
	b.dx = y;
	b.dy = y;
	b.x = x;
	b.rstd = rstd;
	b.mean = mean;
	b.n = n;
	cuda_norm_backward(&queue, &b);
	same("LayerNorm backward", y, n, last, some, h);
	cudaFree(x), cudaFree(w), cudaFree(y), cudaFree(last), cudaFree(rstd), cudaFree(mean), cudaFree(dw);
}

/* Neighbours in half of each head, norms of 1 + w, v from k; then the way back over what came out */
static void rope(void)
{
	int64_t seq = 512, heads = 28, kv = 4, dim = 128, wide = (heads + 2 * kv) * dim, kept = heads + 2 * kv;
	int64_t n = ((1ll << 31) / wide / seq + 2) * seq, from = n - seq;
	void *qkv = device_random((size_t)(n * wide) * 2, 9), *pre = device_bytes((size_t)(n * kept * dim) * 2);
	void *last = device_bytes((size_t)(seq * wide) * 2), *w = device_random((size_t)dim * 2, 10);
	float *rstd = device_bytes((size_t)(n * kept) * 4), *angles = device_bytes((size_t)(seq * dim / 4) * 4);
	float *dw = device_bytes((size_t)dim * 8);
	uint32_t *starts = device_bytes((size_t)n * 4);
	struct rope_args r = {.n = n,
		.seq = seq,
		.heads = heads,
		.kv_heads = kv,
		.dim = dim,
		.rope_dim = dim / 2,
		.neighbours = 1,
		.cos = angles,
		.sin = angles,
		.starts = starts,
		.qnorm = w,
		.knorm = w,
		.eps = 1e-5f,
		.norm_one = 1,
		.v_norm = 1,
		.k_is_v = 1,
		.temperature = 0.1f,
		.temperature_positions = 64,
		.qkv = qkv,
		.pre = pre,
		.rstd = rstd,
		.dqnorm = dw,
		.dknorm = dw + dim};
	struct rope_args some = r;
	must(cudaMemset(starts, 0, (size_t)n * 4), "cudaMemset");
	must(cudaMemset(angles, 0x3e, (size_t)(seq * dim / 4) * 4), "cudaMemset"); /* 0.186 */
	some.n = seq;
	some.qkv = last;
	some.pre = after(pre, from * kept * dim);
	some.rstd = rstd + from * kept;
	for (int backward = 0; backward < 2; backward++) {
		must(cudaDeviceSynchronize(), "rope");
		must(cudaMemcpy(last, after(qkv, from * wide), (size_t)(seq * wide) * 2, cudaMemcpyDeviceToDevice), "copy");
		must(cudaDeviceSynchronize(), "copy");
		if (backward) {
			cuda_rope_backward(&queue, &some);
			cuda_rope_backward(&queue, &r);
		} else {
			cuda_rope_forward(&queue, &some);
			cuda_rope_forward(&queue, &r);
		}
		same(backward ? "rope backward" : "rope forward", qkv, n, last, seq, wide);
	}
	cudaFree(qkv), cudaFree(pre), cudaFree(last), cudaFree(w), cudaFree(rstd), cudaFree(angles), cudaFree(dw);
	cudaFree(starts);
}

static void head(void)
{
	int64_t vocab = 152064, n = (1ll << 31) / vocab + 100, some = 30;
	void *logits = device_random((size_t)(n * vocab) * 2, 2), *last = device_bytes((size_t)(some * vocab) * 2);
	uint32_t *targets = device_bytes((size_t)n * 4);
	struct loss *loss = device_bytes(sizeof *loss);
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
	void *qkv = device_random((size_t)(n * wide) * 2, 3), *o = device_bytes((size_t)(n * heads * dim) * 2);
	void *last = device_bytes((size_t)(seq * wide) * 2);
	float *lse = device_bytes((size_t)(n * heads) * 4);
	uint32_t *starts = device_bytes((size_t)n * 4);
	struct attention_args a = {.n = n, .seq = seq, .heads = heads, .kv_heads = kv, .dim = dim, .scale = 0.1f};
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
	struct gemms *g = gemms_here();
	struct gemm_args p = {.m = m,
		.n = n,
		.k = k,
		.a = device_random((size_t)(m * k) * 2, 4),
		.lda = k,
		.b = device_random((size_t)(n * k) * 2, 5),
		.ldb = k,
		.trans_b = 1,
		.ldc = n};
	void *c = device_bytes((size_t)(m * n) * 2), *last = device_bytes((size_t)(some * n) * 2);
	p.c = c;
	must_not(gemms_run(g, &queue, &p));
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

static void *device_words(const uint32_t *words, int64_t n)
{
	void *p = device_bytes((size_t)n * sizeof *words);
	must(cudaMemcpy(p, words, (size_t)n * sizeof *words, cudaMemcpyHostToDevice), "cudaMemcpy");
	return p;
}

/* Two experts, the second of which has the last rows. Rows are slots. */
static void experts(void)
{
	int64_t h = 4096, k = 64, some = 200, n = (1ll << 31) / h / 2 + some, rows = 2 * n, from = rows - some;
	uint32_t *all = malloc((size_t)rows * sizeof *all),
			 firsts[] = {0, (uint32_t)from, (uint32_t)rows, 0, (uint32_t)some};
	for (int64_t i = 0; i < rows; i++) all[i] = (uint32_t)i;
	uint32_t *row = device_words(all, rows), *first = device_words(firsts, 5);
	void *x = device_random((size_t)(n * h) * 2, 11), *y = device_bytes((size_t)(rows * h) * 2);
	void *last = device_bytes((size_t)(some * h) * 2), *a = device_random((size_t)(rows * k) * 2, 12);
	void *w = device_random((size_t)(2 * k * h) * 2, 13);
	float *dw = device_bytes((size_t)(2 * k * h) * 4), *last_dw = device_bytes((size_t)(k * h) * 4);
	float *weight = device_bytes((size_t)rows * 4), *dweight = device_bytes((size_t)rows * 4);

	cuda_dispatch(&queue, &(struct dispatch_args){y, x, row, rows, 2, h, NULL});
	cuda_dispatch(&queue, &(struct dispatch_args){last, x, row + from, some, 2, h, NULL});
	same("dispatch", y, rows, last, some, h);
	struct grouped_gemm_args g =
		{.experts = 2, .rows = rows, .n = h, .k = k, .first = first, .lda = k, .ldb = h, .ldc = h};
	struct grouped_gemm_args second = g;
	second.experts = 1;
	second.rows = some;
	second.first = first + 3;
	g.stride = second.stride = k * h;
	g.a = a;
	g.b = w;
	g.c = y;
	second.a = after(a, from * k);
	second.b = after(w, k * h);
	second.c = last;
	cuda_grouped_gemm(&queue, &g);
	cuda_grouped_gemm(&queue, &second);
	same("grouped GEMM", y, rows, last, some, h);
	g.sum = second.sum = 1;
	g.b = y;
	g.c = dw;
	second.b = last;
	second.c = last_dw;
	cuda_grouped_gemm(&queue, &g);
	cuda_grouped_gemm(&queue, &second);
	same("grouped GEMM of gradients", dw, 2 * k, last_dw, k, 2 * h);
	struct combine_args c = {.y = x, .x = y, .row = row, .n = n, .per_token = 2, .h = h};
	cuda_combine(&queue, &c);
	c.y = last;
	c.row = row + from;
	c.n = some / 2;
	cuda_combine(&queue, &c);
	same("combine", x, n, last, some / 2, h);
	must(cudaMemset(weight, 0x3e, (size_t)rows * 4), "cudaMemset"); /* 0.186 */
	must(cudaMemcpy(last, after(y, from * h), (size_t)(some * h) * 2, cudaMemcpyDeviceToDevice), "copy");
	must(cudaDeviceSynchronize(), "copy");
	struct combine_backward_args b = {.dweight = dweight, .weight = weight, .y = y, .dy = y, .dgu = a, .rows = rows};
	b.f = h;
	b.g = k;
	cuda_combine_backward(&queue, &b);
	b.y = b.dgu = last;
	b.dy = last;
	b.g = 0;
	b.rows = some;
	cuda_combine_backward(&queue, &b);
	same("combine backward", y, rows, last, some, h);
	cudaFree(x), cudaFree(y), cudaFree(last), cudaFree(a), cudaFree(w), cudaFree(dw), cudaFree(last_dw);
	cudaFree(weight), cudaFree(dweight), cudaFree(row), cudaFree(first);
	free(all);
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
	queue.work = device_bytes(queue.work_bytes);
	must(cuda_kernels_prepare(), "cudaFuncSetAttribute");
	queue.wgmma_blocks = cuda_wgmma_prepare() ? 100 : 0;
	activation("swiglu", MT_SWIGLU, 0);
	activation("clamped swiglu, interleaved", MT_SWIGLU_CLAMPED, 1);
	activation("xielu", MT_XIELU, 0);
	layer_norm();
	rope();
	head();
	attention();
	experts();
	product();
	return failures != 0;
}
