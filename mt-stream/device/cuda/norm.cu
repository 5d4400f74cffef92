/* norm.cu: norms of rows, a block a row: RMSNorm (arXiv 1910.07467), LayerNorm (arXiv 1607.06450) */
#include "common.h"
#include "ops/norm.h"
#include "ops/rows.h"

/* ---- forward ---- */

/* The factors of elements i .. of a row: w, 1 + w, or 1 without w. ANY 0: it is w */
template <typename T, int ANY>
static __device__ __forceinline__ void get_factors(float g[WIDE], const T *w, int64_t i, int64_t h, int one, int wide)
{
	if (!ANY || w) get_wide(g, w + i, h - i, wide);
#pragma unroll
	for (int j = 0; ANY && j < WIDE; j++) g[j] = !w ? 1.0f : one ? 1.0f + g[j] : g[j];
}

/* The rows' elements that are read again are still in the cache. ANY 0: RMSNorm of rows one after another, with w */
template <typename T, int ANY>
static __global__ void __launch_bounds__(THREADS)
	norm_forward_kernel(struct norm_forward_args a, struct norm_rows at, T *kept, int wide)
{
	DYNAMIC_SHARED(float, scratch); /* of two sums, ANY 0: of one */
	int64_t row = blockIdx.x, h = a.h, from = row * (ANY ? at.x : h), stat = ANY ? row * at.stat : row;
	const T *x = (const T *)a.x + from, *w = (const T *)a.w, *b = (const T *)a.b;
	T *y = (T *)a.y + row * (ANY ? at.y : h);
	float mean = 0, sum = 0, v[WIDE], g[WIDE], add[WIDE] = {0};

	if (ANY && a.mean) {
		for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
			get_wide(v, x + i, h - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) sum += v[j];
		}
		mean = block_sum(sum, scratch) / (float)h;
		if (threadIdx.x == 0) a.mean[stat] = mean;
		sum = 0;
	}
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(v, x + i, h - i, wide);
		if (ANY && kept) put_wide(kept + row * at.kept + i, v, h - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++)
			if (!ANY) sum += v[j] * v[j];
			else sum += i + j < h ? (v[j] - mean) * (v[j] - mean) : 0;
	}
	float r = 1.0f / sqrtf(block_sum(sum, scratch + (ANY ? THREADS / 32 : 0)) / (float)h + a.eps);
	if (ANY && !a.rstd) r = 1;
	else if (threadIdx.x == 0) a.rstd[stat] = r;
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(v, x + i, h - i, wide);
		get_factors<T, ANY>(g, w, i, h, a.one, wide);
		if (ANY && b) get_wide(add, b + i, h - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) v[j] = ANY ? (v[j] - mean) * (r * g[j]) + add[j] : v[j] * (r * g[j]);
		put_wide(y + i, v, h - i, wide);
	}
}

template <int ANY>
static void norm_forward(const struct cuda_queue *q, const struct norm_forward_args a, struct norm_rows at, void *kept)
{
	int wide = wide_rows(a.h | at.x | at.y | (kept ? at.kept : 0), a.y, a.x, a.w, a.b) &&
		wide_rows(WIDE, kept, NULL, NULL, NULL);
	BY_ELEMENT(q,
		LAUNCH((norm_forward_kernel<T, ANY>), a.n, THREADS, (1 + ANY) * (THREADS / 32) * sizeof(float), q->stream, a,
			at, (T *)kept, wide));
}

void cuda_norm_rows_forward(const struct cuda_queue *q, const struct norm_forward_args *a, struct norm_rows at,
	void *kept)
{
	norm_forward<1>(q, *a, at, kept);
}

/* x's rows are `ld` apart, and dx's */
static struct norm_rows rows_apart(int64_t h, int64_t ld)
{
	int64_t x = ld ? ld : h;
	return (struct norm_rows){x, h, x, 1};
}

void cuda_norm_forward(const struct cuda_queue *q, const struct norm_forward_args *a)
{
	const struct norm_rows at = rows_apart(a->h, a->ld);
	if (a->mean || !a->w || a->one || a->ld || !a->rstd) norm_forward<1>(q, *a, at, NULL);
	else norm_forward<0>(q, *a, at, NULL);
}

/* ---- backward ---- */

/* With g = dy w and y = x rstd:  dx = rstd (g - y mean(g y)),  dw += dy y. Block b computes rows b, b +
 * blocks, ... Each thread owns some columns and sums their dw in registers (VECS: its accesses of a row), or for longer
 * rows (VECS 0) in `partial`. The elements that are read again for dx are still in the cache.
 * ANY: all other norms; of LayerNorm y = (x - m) rstd, dx = rstd (g - mean(g) - y mean(g y)). */
template <typename T, int VECS, int ANY>
static __global__ void __launch_bounds__(THREADS, VECS == 2 ? 3 : 2)
	norm_backward_kernel(T *dx, int add_dx, float *partial, const T *dy, const T *x, const T *w, const float *rstd,
		int64_t n, int64_t h, int wide, const float *means, int one, struct norm_rows at)
{
	DYNAMIC_SHARED(float, scratch); /* two sets, used in turn, so that one barrier a row is enough */
	const int sets = ANY ? 2 : 1;   /* one for each sum */
	float *mine = partial + blockIdx.x * h, sum[VECS > 0 ? VECS : 1][WIDE] = {{0}}, d[WIDE], v[WIDE], g[WIDE],
		  out[WIDE];

	for (int64_t i = threadIdx.x * WIDE; VECS == 0 && i < h; i += THREADS * WIDE)
		put_wide(mine + i, sum[0], h - i, wide);
	for (int64_t row = blockIdx.x, turn = 0; row < n; row += gridDim.x, turn ^= 1) {
		const T *x_row = x + row * (ANY ? at.kept : h), *dy_row = dy + row * (ANY ? at.y : h);
		float r = !ANY || rstd ? rstd[ANY ? row * at.stat : row] : 1, m = ANY && means ? means[row * at.stat] : 0,
			  dot = 0, all = 0;
		float *parts = scratch + turn * sets * (THREADS / 32);
		int k = 0;

#pragma unroll(VECS > 0 ? VECS : 1)
		for (int64_t i = threadIdx.x * WIDE; VECS > 0 ? k < VECS : i < h; i += THREADS * WIDE, k++) {
			if (i >= h) break;
			get_wide(d, dy_row + i, h - i, wide);
			get_wide(v, x_row + i, h - i, wide);
			get_factors<T, ANY>(g, w, i, h, one, wide);
			if (VECS == 0) get_wide(out, mine + i, h - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float y = (ANY ? v[j] - m : v[j]) * r;
				dot += d[j] * g[j] * y;
				if (ANY) all += d[j] * g[j];
				if (VECS > 0) sum[VECS > 0 ? k : 0][j] += d[j] * y;
				else out[j] += d[j] * y;
			}
			if (VECS == 0) put_wide(mine + i, out, h - i, wide);
		}
		float mean = block_sum(dot, parts) / (float)h;
		if (ANY && !rstd) mean = 0;
		float shift = ANY && means ? block_sum(all, parts + THREADS / 32) / (float)h : 0;
		for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
			T *to = dx + row * (ANY ? at.x : h) + i;
			get_wide(d, dy_row + i, h - i, wide);
			get_wide(v, x_row + i, h - i, wide);
			get_factors<T, ANY>(g, w, i, h, one, wide);
			if (add_dx) get_wide(out, to, h - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float t = ANY ? r * (d[j] * g[j] - shift - (v[j] - m) * r * mean) : r * (d[j] * g[j] - v[j] * r * mean);
				out[j] = add_dx ? out[j] + t : t;
			}
			put_wide(to, out, h - i, wide);
		}
	}
#pragma unroll
	for (int k = 0; k < VECS; k++)
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			int64_t i = ((int64_t)k * THREADS + threadIdx.x) * WIDE + j;
			if (i < h) mine[i] = sum[k][j];
		}
}

template <typename T, int VECS, int ANY>
static void norm_backward(const struct cuda_queue *q, const struct norm_backward_args *a, struct norm_rows at,
	int64_t blocks)
{
	int wide = wide_rows(a->h | at.x | at.y | at.kept, a->dx, a->dy, a->x, a->w);
	LAUNCH((norm_backward_kernel<T, VECS, ANY>), blocks, THREADS, (ANY ? 4 : 2) * (THREADS / 32) * sizeof(float),
		q->stream, (T *)a->dx, a->add_dx, q->work, (const T *)a->dy, (const T *)a->x, (const T *)a->w, a->rstd, a->n,
		a->h, wide, a->mean, a->one, at);
}

template <int ANY>
static void norm_rows_backward(const struct cuda_queue *q, const struct norm_backward_args *a, struct norm_rows at)
{
	int64_t blocks = partial_blocks(a->n, a->h);
	if (a->h <= 2 * THREADS * WIDE) BY_ELEMENT(q, (norm_backward<T, 2, ANY>(q, a, at, blocks)));
	else if (a->h <= 4 * THREADS * WIDE) BY_ELEMENT(q, (norm_backward<T, 4, ANY>(q, a, at, blocks)));
	else BY_ELEMENT(q, (norm_backward<T, 0, ANY>(q, a, at, blocks)));
	if (a->dw) cuda_sum_partials(q, a->dw, a->beta, q->work, blocks, a->h, a->h);
}

void cuda_norm_rows_backward(const struct cuda_queue *q, const struct norm_backward_args *a, struct norm_rows at)
{
	norm_rows_backward<1>(q, a, at);
}

/* b's gradient is that of a linear layer's bias. It comes first, as dx may be dy. */
void cuda_norm_backward(const struct cuda_queue *q, const struct norm_backward_args *a)
{
	const struct norm_rows at = rows_apart(a->h, a->ld);
	const struct bias_backward_args bias = {a->db, a->beta, a->dy, a->n, a->h, a->h};
	if (a->db) cuda_bias_backward(q, &bias);
	if (a->mean || !a->w || a->one || a->ld || !a->rstd) norm_rows_backward<1>(q, a, at);
	else norm_rows_backward<0>(q, a, at);
}
