/* vocab.cu: operations with a dimension of the vocabulary's size: embedding, cross-entropy; and the plain GEMM */
#include "plain.h"
#include "ops/embed.h"
#include "ops/head.h"

/* ---- embedding ---- */

template <typename T>
static __global__ void __launch_bounds__(THREADS) embed_forward_kernel(T *x, const T *w, const uint32_t *tokens,
	int64_t h, int64_t vocab, float scale, const T *table, struct positions at, struct sines sines, int wide)
{
	int64_t t = blockIdx.x;
	const T *from = w + embed_row(tokens[t], vocab) * h, *row = table ? table + position_of(&at, t) * h : NULL;
	float v[WIDE], p[WIDE];

	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(v, from + i, h - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) v[j] *= scale;
		if (row) get_wide(p, row + i, h - i, wide);
#pragma unroll
		for (int j = 0; row && j < WIDE; j++) v[j] += p[j];
		if (sines.step != 0)
			for (int j = 0; j < WIDE && i + j < h; j++) v[j] += sine_of(&sines, position_of(&at, t), h, i + j);
		put_wide(x + t * h + i, v, h - i, wide);
	}
}

void cuda_embed_forward(const struct cuda_queue *q, const struct embed_forward_args *a)
{
	int wide = wide_rows(a->h, a->x, a->w, a->table, NULL);
	BY_ELEMENT(q,
		LAUNCH(embed_forward_kernel<T>, a->n, THREADS, 0, q->stream, (T *)a->x, (const T *)a->w, a->tokens, a->h,
			a->vocab, a->scale, (const T *)a->table, a->at, a->sines, wide));
}

/* The row that token t's gradient is added to: of its token, or without tokens of its position */
static __device__ __forceinline__ uint32_t row_of(const uint32_t *tokens, const struct positions *places, int64_t t,
	int64_t rows)
{
	return (uint32_t)(tokens ? embed_row(tokens[t], rows) : position_of(places, t));
}

/* found (THREADS / 32 words of shared memory): a bit for each of THREADS tokens from `at` on, set if it has this row */
static __device__ __forceinline__ void find_tokens(uint32_t *found, const uint32_t *tokens,
	const struct positions *places, int64_t at, int64_t end, uint32_t row, int64_t rows)
{
	int64_t t = at + threadIdx.x;
	uint32_t votes = __ballot_sync(FULL, t < end && row_of(tokens, places, t, rows) == row);
	if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = votes;
	__syncthreads();
}

/* A block computes some columns of a row's gradient: starting at the first token that has this row, it finds the others
 * in ascending order and adds their rows of dx. Blocks of later tokens end when they find an earlier one. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	embed_backward_kernel(float *dw, const T *dx, const uint32_t *tokens, struct positions places, int64_t n, int64_t h,
		int64_t rows, int64_t pad, int64_t column_blocks, float scale, int wide)
{
	DYNAMIC_SHARED(uint32_t, found); /* two sets, used in turn */
	int64_t first = blockIdx.x / column_blocks, column = (blockIdx.x % column_blocks * THREADS + threadIdx.x) * WIDE;
	uint32_t row = row_of(tokens, &places, first, rows);
	float sum[WIDE], v[WIDE];
	int turn = 0;

	if ((int64_t)row == pad) return;
	for (int64_t at = 0; at < first; at += THREADS, turn ^= 1) {
		uint32_t *f = found + turn * (THREADS / 32), any = 0;
		find_tokens(f, tokens, &places, at, first, row, rows);
		for (int k = 0; k < THREADS / 32; k++) any |= f[k];
		if (any) return;
	}
	float *to = dw + (int64_t)row * h + column;
	if (column < h) get_wide(sum, to, h - column, wide);
	for (int64_t at = first; at < n; at += THREADS, turn ^= 1) {
		uint32_t *f = found + turn * (THREADS / 32);
		find_tokens(f, tokens, &places, at, n, row, rows);
		for (int k = 0; k < THREADS / 32; k++)
			for (uint32_t bits = f[k]; bits; bits &= bits - 1) {
				int64_t t = at + 32 * k + __ffs(bits) - 1;
				if (column >= h) continue;
				get_wide(v, dx + t * h + column, h - column, wide);
				for (int j = 0; j < WIDE; j++) sum[j] += scale * v[j];
			}
	}
	if (column < h) put_wide(to, sum, h - column, wide);
}

/* dw (rows, H): of tokens, or without them of positions */
static void table_backward(const struct cuda_queue *q, const struct embed_backward_args *a, float *dw, int64_t rows,
	const uint32_t *tokens, int64_t pad, float scale)
{
	int64_t columns = div_up(a->h, THREADS * WIDE);
	int wide = wide_rows(a->h, a->dx, dw, NULL, NULL);
	if (a->beta == 0) cudaMemsetAsync(dw, 0, (size_t)(rows * a->h) * sizeof *dw, q->stream);
	BY_ELEMENT(q,
		LAUNCH(embed_backward_kernel<T>, a->n * columns, THREADS, 2 * (THREADS / 32) * sizeof(uint32_t), q->stream, dw,
			(const T *)a->dx, tokens, a->at, a->n, a->h, rows, pad, columns, scale, wide));
}

void cuda_embed_backward(const struct cuda_queue *q, const struct embed_backward_args *a)
{
	table_backward(q, a, a->dw, a->vocab, a->tokens, a->pad, a->scale);
	if (a->dtable) table_backward(q, a, a->dtable, a->at.rows, NULL, -1, 1);
}

/* ---- cross-entropy: a block a row ---- */

/* softmax's denominator over the logits read so far: sum of exp(x - high) */
struct seen {
	float high, sum;
};

static __device__ __forceinline__ float finite_or_0(float x) { return x == -INFINITY ? 0 : x; }

static __device__ __forceinline__ struct seen seen_both(struct seen a, struct seen b)
{
	float high = b.high > a.high ? b.high : a.high, base = finite_or_0(high);
	struct seen both = {high, a.sum * expf(a.high - base) + b.sum * expf(b.high - base)};
	return both;
}

/* The maximum ignores a NaN among the logits, but the sum does not: so the loss is NaN, as it must be. */
template <typename T>
static __device__ __forceinline__ struct seen row_seen(const T *x, int64_t vocab, int aligned)
{
	struct seen s = {-INFINITY, 0};
	float v[WIDE];
	for (int64_t i = threadIdx.x * WIDE; i < vocab; i += THREADS * WIDE) {
		struct seen here = {-INFINITY, 0};
		get_wide(v, x + i, vocab - i, aligned && vocab - i >= WIDE);
#pragma unroll
		for (int j = 0; j < WIDE; j++)
			if (i + j < vocab && v[j] > here.high) here.high = v[j];
		if (here.high < s.high) here.high = s.high;
		float base = finite_or_0(here.high);
#pragma unroll
		for (int j = 0; j < WIDE; j++) here.sum += i + j < vocab ? expf(v[j] - base) : 0;
		s.sum = s.sum * expf(s.high - base) + here.sum;
		s.high = here.high;
	}
	return s;
}

/* Of a row that is not in the loss: its gradient is 0 */
template <typename T>
static __device__ __forceinline__ void row_left_out(T *x, int64_t vocab, int backward, int aligned)
{
	float zeros[WIDE] = {0};
	for (int64_t i = threadIdx.x * WIDE; backward && i < vocab; i += THREADS * WIDE)
		put_wide(x + i, zeros, vocab - i, aligned && vocab - i >= WIDE);
}

/* CHANGED: logits were scaled and capped before; the gradient is that of what they were, times
 * slope (1 - (x rate)^2) */
template <typename T, int CHANGED>
static __global__ void __launch_bounds__(THREADS)
	cross_entropy_kernel(T *logits, const uint32_t *targets, const float *weights, double *losses, int64_t vocab,
		float scale, int backward, int marked, int aligned, float slope, float rate)
{
	DYNAMIC_SHARED(struct seen, parts);
	int64_t row = blockIdx.x;
	T *x = logits + row * vocab;
	uint32_t target = targets[row];
	float v[WIDE], weight = weights ? weights[row] : 1.0f;

	if (target == UINT32_MAX || weight == 0) {
		row_left_out(x, vocab, backward, aligned);
		if (threadIdx.x == 0) losses[row] = 0;
		return;
	}
	struct seen s = row_seen(x, vocab, aligned);
#pragma unroll
	for (int lanes = 16; lanes; lanes /= 2) {
		struct seen other = {__shfl_xor_sync(FULL, s.high, lanes), __shfl_xor_sync(FULL, s.sum, lanes)};
		s = threadIdx.x & lanes ? seen_both(other, s) : seen_both(s, other);
	}
	if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
	float at_target = get(x[target]);
	__syncthreads();
	s = parts[0];
	for (int w = 1; w < THREADS / 32; w++) s = seen_both(s, parts[w]);
	double loss = log((double)s.sum) + (double)s.high - (double)at_target;
	int greedy = marked && at_target == s.high;
	if (greedy && threadIdx.x < 32) { /* unless a token before it is as likely */
		int before = 0;
		for (int64_t i = threadIdx.x; i < (int64_t)target; i += 32) before |= get(x[i]) == s.high;
		greedy = !__ballot_sync(FULL, before);
	}
	if (threadIdx.x == 0) losses[row] = greedy ? -loss : (double)weight * loss;
	if (!backward) return;
	scale *= weight;
	float factor = (float)((double)scale / (double)s.sum);
	for (int64_t i = threadIdx.x * WIDE; i < vocab; i += THREADS * WIDE) {
		int wide = aligned && vocab - i >= WIDE;
		get_wide(v, x + i, vocab - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			float t = v[j] * rate, change = CHANGED ? slope * (1.0f - t * t) : 1.0f;
			v[j] = expf(v[j] - s.high) * factor - (i + j == target ? scale : 0);
			if (CHANGED) v[j] *= change;
		}
		put_wide(x + i, v, vocab - i, wide);
	}
}

/* Which of the teacher's ids, which ascend, is the first that is i or more */
static __device__ __forceinline__ int64_t place_of(const uint32_t *ids, int64_t top, int64_t i)
{
	int64_t low = 0;
	while (low < top) {
		int64_t middle = (low + top) / 2;
		if ((int64_t)ids[middle] < i) low = middle + 1;
		else top = middle;
	}
	return low;
}

/* Of a row, times e^high: sums of e^(x / t) over the teacher's tokens and over all others, of e^x over all; of the
 * teacher's p, and p (log p - x / t) */
enum { OWN, OTHERS, ALL, P, KL, SUMS };

/* sum (SUMS) becomes that of the block, in a fixed order; parts (THREADS, SUMS) is shared memory */
static __device__ __forceinline__ void block_sums(double *parts, double *sum)
{
	for (int j = 0; j < SUMS; j++) parts[threadIdx.x * SUMS + j] = sum[j];
	for (int half = THREADS / 2; half; half /= 2) {
		__syncthreads();
		for (int j = 0; j < SUMS && (int)threadIdx.x < half; j++)
			parts[threadIdx.x * SUMS + j] += parts[(threadIdx.x + half) * SUMS + j];
	}
	__syncthreads();
	for (int j = 0; j < SUMS; j++) sum[j] = parts[j];
}

/* As distill of the cpu */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	distill_kernel(T *logits, const uint32_t *targets, const float *weights, struct teacher t, double *losses,
		int64_t vocab, float scale, int backward, int aligned, float slope, float of_cap)
{
	DYNAMIC_SHARED(double, parts);
	int64_t row = blockIdx.x, top = t.top;
	T *x = logits + row * vocab;
	const uint32_t *ids = t.words + row * (2 * top + 1);
	const float *p = (const float *)(ids + top);
	uint32_t target = targets[row];
	float v[WIDE], weight = weights ? weights[row] : 1.0f, rate = 1.0f / t.temperature;

	if (target == UINT32_MAX || weight == 0) {
		row_left_out(x, vocab, backward, aligned);
		if (threadIdx.x == 0) losses[row] = 0;
		return;
	}
	struct seen s = row_seen(x, vocab, aligned);
	parts[threadIdx.x] = (double)s.high;
	__syncthreads();
	float high = -INFINITY, at_target = get(x[target]);
	for (int i = 0; i < THREADS; i++) high = parts[i] > (double)high ? (float)parts[i] : high;
	__syncthreads();
	double own_sum = 0, others = 0, all = 0, all_p = 0, kl = 0;
	for (int64_t i = threadIdx.x * WIDE; i < vocab; i += THREADS * WIDE) {
		int64_t k = place_of(ids, top, i);
		get_wide(v, x + i, vocab - i, aligned && vocab - i >= WIDE);
		for (int j = 0; j < WIDE && i + j < vocab; j++) {
			int own = k < top && (int64_t)ids[k] == i + j;
			float z = (v[j] - high) * rate;
			if (own) own_sum += (double)expf(z);
			else others += (double)expf(z);
			if (t.hard != 0) all += (double)expf(v[j] - high);
			if (own) all_p += (double)p[k];
			if (own && p[k] > 0) kl += (double)p[k] * (log((double)p[k]) - (double)z);
			k += own;
		}
	}
	double sum[SUMS] = {own_sum, others, all, all_p, kl}, rest = (double)p[top];
	block_sums(parts, sum);
	double total = sum[OWN] + sum[OTHERS];
	kl = sum[KL] + (sum[P] + rest) * log(total);
	if (rest > 0) kl += rest * (log(rest) - log(sum[OTHERS]));
	double soft = (1 - (double)t.hard) / (double)rate, loss = soft / (double)rate * kl;
	if (t.hard != 0) loss += (double)t.hard * (log(sum[ALL]) + (double)high - (double)at_target);
	if (threadIdx.x == 0) losses[row] = (double)weight * loss;
	if (!backward) return;
	scale *= weight * slope;
	double each = (double)scale * soft / total;
	float of_own = (float)each, of_others = (float)(rest > 0 ? each * (1 - rest * total / sum[OTHERS]) : each);
	float hard = t.hard != 0 ? (float)((double)scale * (double)t.hard / sum[ALL]) : 0, of_p = scale * (float)soft;
	for (int64_t i = threadIdx.x * WIDE; i < vocab; i += THREADS * WIDE) {
		int64_t k = place_of(ids, top, i);
		int wide = aligned && vocab - i >= WIDE;
		get_wide(v, x + i, vocab - i, wide);
		for (int j = 0; j < WIDE; j++) {
			int own = k < top && (int64_t)ids[k] == i + j;
			float part = v[j] * of_cap, e = expf((v[j] - high) * rate) * (own ? of_own : of_others);
			if (own) e -= of_p * p[k];
			if (t.hard != 0) e += expf(v[j] - high) * hard - (i + j == target ? scale * t.hard : 0);
			v[j] = e * (1.0f - part * part);
			k += own;
		}
		put_wide(x + i, v, vocab - i, wide);
	}
}

template <typename T>
static void distill(const struct cuda_queue *q, const struct cross_entropy_args *a, double *losses)
{
	int aligned = wide_rows(a->vocab, a->logits, NULL, NULL, NULL);
	LAUNCH((distill_kernel<T>), a->n, THREADS, THREADS * SUMS * sizeof(double), q->stream, (T *)a->logits, a->targets,
		a->weights, a->teacher, losses, a->vocab, a->scale, a->backward, aligned,
		a->logit_scale != 0 ? a->logit_scale : 1.0f, a->cap != 0 ? 1.0f / a->cap : 0);
}

/* *loss += the losses of rows with a target, in a fixed order: one block sums them in a tree */
static __global__ void __launch_bounds__(THREADS)
	loss_kernel(struct loss *loss, const double *losses, int marked, const uint32_t *targets, int64_t n)
{
	DYNAMIC_SHARED(struct loss, parts);
	struct loss mine = {0, 0};

	for (int64_t i = threadIdx.x; i < n; i += THREADS)
		if (targets[i] != UINT32_MAX) {
			mine.sum += marked ? fabs(losses[i]) : losses[i];
			mine.targets++;
		}
	parts[threadIdx.x] = mine;
	for (int half = THREADS / 2; half; half /= 2) {
		__syncthreads();
		if ((int)threadIdx.x < half) {
			parts[threadIdx.x].sum += parts[threadIdx.x + half].sum;
			parts[threadIdx.x].targets += parts[threadIdx.x + half].targets;
		}
	}
	if (threadIdx.x == 0) {
		loss->sum += parts[0].sum;
		loss->targets += parts[0].targets;
	}
}

template <typename T, int CHANGED>
static void cross_entropy(const struct cuda_queue *q, const struct cross_entropy_args *a, double *losses)
{
	/* access 16 bytes at once only if all rows start at multiples of 16 bytes */
	int aligned = wide_rows(a->vocab, a->logits, NULL, NULL, NULL);
	LAUNCH((cross_entropy_kernel<T, CHANGED>), a->n, THREADS, THREADS / 32 * sizeof(struct seen), q->stream,
		(T *)a->logits, a->targets, a->weights, losses, a->vocab, a->scale, a->backward, a->losses != NULL, aligned,
		a->logit_scale, a->cap != 0 ? 1.0f / a->cap : 0);
}

void cuda_cross_entropy(const struct cuda_queue *q, const struct cross_entropy_args *a)
{
	double *losses = a->losses ? a->losses : (double *)q->work;
	if (a->teacher.words) BY_ELEMENT(q, (distill<T>(q, a, losses)));
	else if (a->backward && a->logit_scale != 0) BY_ELEMENT(q, (cross_entropy<T, 1>(q, a, losses)));
	else BY_BYTES(a->losses ? 4 : q->elem, (cross_entropy<T, 0>(q, a, losses)));
	LAUNCH(loss_kernel, 1, THREADS, THREADS * sizeof(struct loss), q->stream, a->loss, losses, a->losses != NULL,
		a->targets, a->n);
}

/* ---- the most likely tokens: a block a row ---- */

/* How many keys of the row are `from` or more; counts is shared memory of THREADS */
static __device__ __forceinline__ int64_t keys_from(const float *x, int64_t vocab, uint32_t from, uint32_t *counts)
{
	uint32_t n = 0;
	for (int64_t i = threadIdx.x; i < vocab; i += THREADS) n += top_key(as_bits(x[i])) >= from;
	counts[threadIdx.x] = n;
	for (int half = THREADS / 2; half; half /= 2) {
		__syncthreads();
		if ((int)threadIdx.x < half) counts[threadIdx.x] += counts[threadIdx.x + half];
	}
	__syncthreads();
	n = counts[0];
	__syncthreads();
	return n;
}

/* As of the cpu. Each thread looks at its own stretch of the row, so that ids ascend: those before it have how many are
 * of the threads before */
static __global__ void __launch_bounds__(THREADS) top_kernel(struct top_args a)
{
	DYNAMIC_SHARED(double, sums);
	uint32_t *counts = (uint32_t *)(sums + THREADS), *same = counts + THREADS, least = 0;
	int64_t row = blockIdx.x, each = (a.vocab + THREADS - 1) / THREADS, from = threadIdx.x * each;
	int64_t to = from + each < a.vocab ? from + each : a.vocab, n = 0, equal = a.top, words = 2 * a.top + 1;
	const float *x = a.logits + row * a.vocab;
	uint32_t *ids = a.words + row * words;
	float *logp = (float *)(ids + a.top);

	if (a.targets[row] == UINT32_MAX) {
		for (int64_t i = threadIdx.x; i < words; i += THREADS) ids[i] = 0;
		return;
	}
	double log_sum = fabs(a.losses[row]) + (double)x[a.targets[row]], sum = 0;
	for (uint32_t bit = 1u << 31; bit; bit >>= 1)
		if (keys_from(x, a.vocab, least | bit, counts) >= a.top) least |= bit;
	counts[threadIdx.x] = same[threadIdx.x] = 0;
	for (int64_t i = from; i < to; i++) {
		uint32_t key = top_key(as_bits(x[i]));
		counts[threadIdx.x] += key > least;
		same[threadIdx.x] += key == least;
	}
	__syncthreads();
	for (int j = 0; j < THREADS; j++) equal -= counts[j]; /* so many of the least one are taken, from the first on */
	for (int j = 0; j < (int)threadIdx.x; j++) {
		int64_t taken = same[j] < equal ? same[j] : equal;
		n += counts[j] + taken;
		equal -= taken;
	}
	for (int64_t i = from; i < to; i++) {
		uint32_t key = top_key(as_bits(x[i]));
		if (key < least || (key == least && !equal)) continue;
		equal -= key == least;
		logp[n] = (float)((double)x[i] - log_sum);
		ids[n++] = (uint32_t)i;
		sum += exp((double)x[i] - log_sum);
	}
	sums[threadIdx.x] = sum;
	for (int half = THREADS / 2; half; half /= 2) {
		__syncthreads();
		if ((int)threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
	}
	if (threadIdx.x == 0) logp[a.top] = a.top < a.vocab && sums[0] < 1 ? (float)log1p(-sums[0]) : -INFINITY;
}

void cuda_top(const struct cuda_queue *q, const struct top_args *a)
{
	LAUNCH(top_kernel, a->n, THREADS, THREADS * (sizeof(double) + 2 * sizeof(uint32_t)), q->stream, *a);
}

/* x = cap tanh(scale x / cap), or scale x where cap is 0 */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	cap_logits_kernel(T *x, int64_t n, float scale, float cap, int aligned)
{
	int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDE;
	int wide = aligned && n - i >= WIDE;
	float v[WIDE], rate = cap != 0 ? scale / cap : scale;
	if (i >= n) return;
	get_wide(v, x + i, n - i, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) v[j] = cap != 0 ? cap * tanhf(rate * v[j]) : rate * v[j];
	put_wide(x + i, v, n - i, wide);
}

void cuda_cap_logits(const struct cuda_queue *q, const struct cap_logits_args *a)
{
	int aligned = wide_rows(WIDE, a->logits, NULL, NULL, NULL);
	BY_BYTES(a->fp32 ? 4 : q->elem,
		LAUNCH(cap_logits_kernel<T>, div_up(a->n, THREADS * WIDE), THREADS, 0, q->stream, (T *)a->logits, a->n,
			a->scale, a->cap, aligned));
}

/* ---- the plain GEMM ---- */

template <typename T, typename C>
static __global__ void __launch_bounds__(THREADS) gemm_kernel(struct gemm_args g, int64_t column_tiles)
{
	DYNAMIC_SHARED(float, tiles);

	plain_tile<T, C>(&g, blockIdx.x / column_tiles * PLAIN_TILE, blockIdx.x % column_tiles * PLAIN_TILE, tiles);
}

void cuda_gemm_plain(const struct cuda_queue *q, const struct gemm_args *product)
{
	const struct gemm_args g = *product;
	int64_t columns = div_up(g.n, PLAIN_TILE), blocks = columns * div_up(g.m, PLAIN_TILE);
	if (q->elem == 4 || g.exact)
		LAUNCH((gemm_kernel<float, float>), blocks, THREADS, PLAIN_SHARED, q->stream, g, columns);
	else if (g.fp32) LAUNCH((gemm_kernel<struct bf16, float>), blocks, THREADS, PLAIN_SHARED, q->stream, g, columns);
	else LAUNCH((gemm_kernel<struct bf16, struct bf16>), blocks, THREADS, PLAIN_SHARED, q->stream, g, columns);
}

/* ---- work ---- */

size_t cuda_work_bytes(int64_t n, int64_t heads)
{
	size_t least_bytes = 64u << 20, attention = (size_t)(n * heads) * sizeof(float),
		   losses = (size_t)n * sizeof(double);
	size_t most = attention > losses ? attention : losses;
	return most > least_bytes ? most : least_bytes;
}
