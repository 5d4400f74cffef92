/* rows.cu: operations along rows: RMSNorm, rope with the norms of q and k, SwiGLU, bias gradients */
#include "common.h"

#define MOST_BLOCKS 768 /* most partial sums of a weight's gradient: two rounds of 3 blocks a multiprocessor */
#define PARTIAL_BYTES (32u << 20) /* of work for partial gradients */

/* ---- sums over partials ---- */

/* A block sums 32 columns. Each of its 8 warps sums an eighth of the partials; the eighths are added in order. */
static __global__ void __launch_bounds__(THREADS)
	sum_partials_kernel(float *dst, float beta, const float *partial, int64_t count, int64_t stride, int64_t n)
{
	DYNAMIC_SHARED(float, sums); /* (warps, 32) */
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int64_t i = (int64_t)blockIdx.x * 32 + lane, share = (count + THREADS / 32 - 1) / (THREADS / 32);
	int64_t end = (warp + 1) * share < count ? (warp + 1) * share : count;
	float sum = 0;

	if (i < n) {
#pragma unroll 8
		for (int64_t b = warp * share; b < end; b++) sum += partial[b * stride + i];
	}
	sums[threadIdx.x] = sum;
	__syncthreads();
	if (warp > 0 || i >= n) return;
	for (int k = 1; k < THREADS / 32; k++) sum += sums[k * 32 + lane];
	dst[i] = beta != 0 ? beta * dst[i] + sum : sum;
}

void cuda_sum_partials(const struct cuda_queue *q, float *dst, float beta, const float *partial, int64_t count,
	int64_t stride, int64_t n)
{
	LAUNCH(sum_partials_kernel, div_up(n, 32), THREADS, THREADS * sizeof(float), q->stream, dst, beta, partial, count,
		stride, n);
}

/* The number of blocks for n rows whose partial gradients have `width` elements; it depends on the shape alone */
static int64_t partial_blocks(int64_t n, int64_t width)
{
	int64_t room = (int64_t)(PARTIAL_BYTES / sizeof(float)) / width;

	return least(least(n, MOST_BLOCKS), room > 1 ? room : 1);
}

/* ---- RMSNorm (arXiv 1910.07467): a block a row ---- */

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	rmsnorm_forward_kernel(T *y, float *rstd, const T *x, const T *w, int64_t h, float eps, int wide)
{
	DYNAMIC_SHARED(float, scratch);
	int64_t row = blockIdx.x;
	float sum = 0, v[WIDE], g[WIDE];

	x += row * h;
	y += row * h;
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(v, x + i, h - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) sum += v[j] * v[j];
	}
	float r = 1.0f / sqrtf(block_sum(sum, scratch) / (float)h + eps);
	if (threadIdx.x == 0) rstd[row] = r;
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(v, x + i, h - i, wide);
		get_wide(g, w + i, h - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) v[j] *= r * g[j];
		put_wide(y + i, v, h - i, wide);
	}
}

void cuda_rmsnorm_forward(const struct cuda_queue *q, const struct rmsnorm_forward_args *a)
{
	int wide = wide_rows(a->h, a->y, a->x, a->w, NULL);

	BY_ELEMENT(q,
		LAUNCH(rmsnorm_forward_kernel<T>, a->n, THREADS, THREADS / 32 * sizeof(float), q->stream, (T *)a->y, a->rstd,
			(const T *)a->x, (const T *)a->w, a->h, a->eps, wide));
}

/* With g = dy w and y = x rstd:  dx = rstd (g - y mean(g y)),  dw += dy y. Block b computes rows b, b +
 * blocks, ... Each thread owns some columns and sums their dw in registers (VECS: its accesses of a row), or for longer
 * rows (VECS 0) in `partial`. The elements that are read again for dx are still in the cache. */
template <typename T, int VECS>
static __global__ void __launch_bounds__(THREADS, VECS == 2 ? 3 : 2) rmsnorm_backward_kernel(T *dx, int add_dx,
	float *partial, const T *dy, const T *x, const T *w, const float *rstd, int64_t n, int64_t h, int wide)
{
	DYNAMIC_SHARED(float, scratch); /* two, used in turn, so that one barrier a row is enough */
	float *mine = partial + blockIdx.x * h, sum[VECS > 0 ? VECS : 1][WIDE] = {{0}}, d[WIDE], v[WIDE], g[WIDE],
		  out[WIDE];

	for (int64_t i = threadIdx.x * WIDE; VECS == 0 && i < h; i += THREADS * WIDE)
		put_wide(mine + i, sum[0], h - i, wide);
	for (int64_t row = blockIdx.x, turn = 0; row < n; row += gridDim.x, turn ^= 1) {
		const T *x_row = x + row * h, *dy_row = dy + row * h;
		float r = rstd[row], dot = 0;
		int k = 0;

#pragma unroll(VECS > 0 ? VECS : 1)
		for (int64_t i = threadIdx.x * WIDE; VECS > 0 ? k < VECS : i < h; i += THREADS * WIDE, k++) {
			if (i >= h) break;
			get_wide(d, dy_row + i, h - i, wide);
			get_wide(v, x_row + i, h - i, wide);
			get_wide(g, w + i, h - i, wide);
			if (VECS == 0) get_wide(out, mine + i, h - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float y = v[j] * r;
				dot += d[j] * g[j] * y;
				if (VECS > 0) sum[VECS > 0 ? k : 0][j] += d[j] * y;
				else out[j] += d[j] * y;
			}
			if (VECS == 0) put_wide(mine + i, out, h - i, wide);
		}
		float mean = block_sum(dot, scratch + turn * (THREADS / 32)) / (float)h;
		for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
			get_wide(d, dy_row + i, h - i, wide);
			get_wide(v, x_row + i, h - i, wide);
			get_wide(g, w + i, h - i, wide);
			if (add_dx) get_wide(out, dx + row * h + i, h - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float t = r * (d[j] * g[j] - v[j] * r * mean);
				out[j] = add_dx ? out[j] + t : t;
			}
			put_wide(dx + row * h + i, out, h - i, wide);
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

template <typename T, int VECS>
static void rmsnorm_backward(const struct cuda_queue *q, const struct rmsnorm_backward_args *a, int64_t blocks)
{
	LAUNCH((rmsnorm_backward_kernel<T, VECS>), blocks, THREADS, 2 * (THREADS / 32) * sizeof(float), q->stream,
		(T *)a->dx, a->add_dx, q->work, (const T *)a->dy, (const T *)a->x, (const T *)a->w, a->rstd, a->n, a->h,
		wide_rows(a->h, a->dx, a->dy, a->x, a->w));
}

void cuda_rmsnorm_backward(const struct cuda_queue *q, const struct rmsnorm_backward_args *a)
{
	int64_t blocks = partial_blocks(a->n, a->h);

	if (a->h <= 2 * THREADS * WIDE) BY_ELEMENT(q, (rmsnorm_backward<T, 2>(q, a, blocks)));
	else if (a->h <= 4 * THREADS * WIDE) BY_ELEMENT(q, (rmsnorm_backward<T, 4>(q, a, blocks)));
	else BY_ELEMENT(q, (rmsnorm_backward<T, 0>(q, a, blocks)));
	cuda_sum_partials(q, a->dw, a->beta, q->work, blocks, a->h, a->h);
}

/* ---- bias gradients: column sums of dy (m, n) ---- */

#define BIAS_ROWS 64 /* fewest rows of a block */

/* Each of 8 warps sums 32 x WIDE columns of every eighth row of the block; the warps' sums are added in order. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) bias_backward_kernel(float *partial, const T *dy, int64_t m,
	int64_t n, int64_t rows, int64_t column_blocks, int wide)
{
	DYNAMIC_SHARED(float, sums); /* (warps, 32 * WIDE) */
	int64_t column = blockIdx.x % column_blocks * 32 * WIDE + threadIdx.x % 32 * WIDE;
	int64_t part = blockIdx.x / column_blocks, first = part * rows, end = first + rows < m ? first + rows : m;
	float sum[WIDE] = {0}, v[WIDE];
	int warp = threadIdx.x / 32;

	if (column < n)
		for (int64_t row = first + warp; row < end; row += THREADS / 32) {
			get_wide(v, dy + row * n + column, n - column, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) sum[j] += v[j];
		}
#pragma unroll
	for (int j = 0; j < WIDE; j++) sums[warp * 32 * WIDE + threadIdx.x % 32 * WIDE + j] = sum[j];
	__syncthreads();
	/* THREADS == 32 * WIDE: a thread a column */
	float total = 0;
	for (int k = 0; k < THREADS / 32; k++) total += sums[k * 32 * WIDE + threadIdx.x];
	column = blockIdx.x % column_blocks * 32 * WIDE + threadIdx.x;
	if (column < n) partial[part * n + column] = total;
}

void cuda_bias_backward(const struct cuda_queue *q, const struct bias_backward_args *a)
{
	int64_t m = a->m, n = a->n, columns = div_up(n, 32 * WIDE), parts = partial_blocks(div_up(m, BIAS_ROWS), n);
	int64_t rows = div_up(m, parts);
	int wide = wide_rows(n, a->dy, NULL, NULL, NULL);

	parts = div_up(m, rows);
	BY_ELEMENT(q,
		LAUNCH(bias_backward_kernel<T>, columns * parts, THREADS, THREADS * WIDE * sizeof(float), q->stream, q->work,
			(const T *)a->dy, m, n, rows, columns, wide));
	cuda_sum_partials(q, a->db, a->beta, q->work, parts, n, n);
}

/* ---- SwiGLU, rounding: WIDE elements a thread ---- */

/* 1 / (1 + exp(-x)). T: the type that the result is rounded to; bf16 allows a faster approximation */
template <typename T>
static __device__ __forceinline__ float sigmoid(float x)
{
	return 1.0f / (1.0f + expf(-x));
}
#ifndef MT_EMU
template <>
__device__ __forceinline__ float sigmoid<struct bf16>(float x)
{
	return __fdividef(1.0f, 1.0f + __expf(-x));
}
#endif

/* The row and the first of the WIDE columns of a thread; `across` blocks a row. Block numbers fit 32 bits: cheap
 * division */
static __device__ __forceinline__ void row_and_column(unsigned across, int64_t *row, int64_t *column)
{
	*row = blockIdx.x / across;
	*column = ((int64_t)(blockIdx.x % across) * THREADS + threadIdx.x) * WIDE;
}

/* silu(x) = x sigmoid(x) */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	swiglu_forward_kernel(T *y, const T *gu, int64_t f, unsigned across, int wide)
{
	float g[WIDE], u[WIDE];
	int64_t row, i;

	row_and_column(across, &row, &i);
	if (i >= f) return;
	get_wide(g, gu + row * 2 * f + i, f - i, wide);
	get_wide(u, gu + row * 2 * f + f + i, f - i, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) g[j] = g[j] * sigmoid<T>(g[j]) * u[j];
	put_wide(y + row * f + i, g, f - i, wide);
}

void cuda_swiglu_forward(const struct cuda_queue *q, const struct swiglu_forward_args *a)
{
	int64_t across = div_up(a->f, THREADS * WIDE);
	int wide = wide_rows(a->f, a->y, a->gu, NULL, NULL);

	BY_ELEMENT(q,
		LAUNCH(swiglu_forward_kernel<T>, a->n * across, THREADS, 0, q->stream, (T *)a->y, (const T *)a->gu, a->f,
			(unsigned)across, wide));
}

/* With s = sigmoid(gate):  d gate = dy up s (1 + gate (1 - s)),  d up = dy gate s,  y = gate s up: forward's
 * output, for the gradient of down's weights. dgu may be gu, and y may be dy. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	swiglu_backward_kernel(T *dgu, T *y, const T *dy, const T *gu, int64_t f, unsigned across, int wide)
{
	float g[WIDE], u[WIDE], d[WIDE];
	int64_t row, i;

	row_and_column(across, &row, &i);
	if (i >= f) return;
	get_wide(g, gu + row * 2 * f + i, f - i, wide);
	get_wide(u, gu + row * 2 * f + f + i, f - i, wide);
	get_wide(d, dy + row * f + i, f - i, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		float s = sigmoid<T>(g[j]), silu = g[j] * s, out = silu * u[j];
		g[j] = d[j] * u[j] * s * (1.0f + g[j] * (1.0f - s));
		u[j] = d[j] * silu;
		d[j] = out;
	}
	put_wide(y + row * f + i, d, f - i, wide);
	put_wide(dgu + row * 2 * f + i, g, f - i, wide);
	put_wide(dgu + row * 2 * f + f + i, u, f - i, wide);
}

void cuda_swiglu_backward(const struct cuda_queue *q, const struct swiglu_backward_args *a)
{
	int64_t across = div_up(a->f, THREADS * WIDE);
	int wide = wide_rows(a->f, a->dgu, a->y, a->dy, a->gu);

	BY_ELEMENT(q,
		LAUNCH(swiglu_backward_kernel<T>, a->n * across, THREADS, 0, q->stream, (T *)a->dgu, (T *)a->y,
			(const T *)a->dy, (const T *)a->gu, a->f, (unsigned)across, wide));
}

static __global__ void __launch_bounds__(THREADS)
	narrow_kernel(struct bf16 *dst, const float *src, int64_t n, int aligned)
{
	int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDE;
	int wide = aligned && n - i >= WIDE;
	float v[WIDE];

	if (i >= n) return;
	get_wide(v, src + i, n - i, wide);
	put_wide(dst + i, v, n - i, wide);
}

void cuda_narrow(const struct cuda_queue *q, void *dst, const float *src, int64_t n)
{
	LAUNCH(narrow_kernel, div_up(n, THREADS * WIDE), THREADS, 0, q->stream, (struct bf16 *)dst, src, n,
		wide_rows(WIDE, dst, src, NULL, NULL));
}

#ifndef NARROW_FIRST             /* smaller for the emulated GPU */
#define NARROW_FIRST (8ll << 20) /* elements of the first launch, which fit into the work memory */
#endif

/* In place: bf16 elements n .. 2 n - 1 overwrite fp32 elements n / 2 .. n - 1, which were read by earlier launches. So
 * each launch converts as many elements as all launches before it. The first ones go through the work memory. */
void cuda_narrow_in_place(const struct cuda_queue *q, float *x, int64_t n)
{
	int64_t at = least(n, NARROW_FIRST);

	cuda_narrow(q, q->work, x, at);
	cudaMemcpyAsync(x, q->work, (size_t)at * sizeof(struct bf16), cudaMemcpyDeviceToDevice, q->stream);
	for (int64_t more; at < n; at += more) {
		more = least(at, n - at);
		cuda_narrow(q, (struct bf16 *)x + at, x + at, more);
	}
}

/* ---- rope (arXiv 2104.09864), rotate_half layout, with the per-head RMSNorm that some families have before it ---- */

/* Heads of 16, 32, ... 512: dim / 16 neighbouring lanes compute one head of a token, WIDE elements of each half a
 * lane */
#define ROPE_MOST 512

static int rope_by_lanes(int64_t dim) { return dim >= 16 && dim <= ROPE_MOST && (dim & (dim - 1)) == 0; }

/* The head of a token that a lane works on, and where its elements start in each half. Their number fits 32 bits:
 * 2^32 of the smallest heads would be more memory than any GPU has. */
struct rope_lane {
	int there, is_k;
	int64_t t, item, x, angle;
	int i;
};

static __device__ __forceinline__ struct rope_lane lane_of(const struct rope_args *r, int64_t block)
{
	uint32_t lanes = (uint32_t)r->dim / 16, heads = (uint32_t)(r->heads + r->kv_heads), seq = (uint32_t)r->seq;
	int64_t item = block * (THREADS / lanes) + threadIdx.x / lanes;
	struct rope_lane l;

	l.there = item < r->n * heads;
	if (!l.there) item = 0;
	uint32_t t = (uint32_t)item / heads, head = (uint32_t)item - t * heads;
	l.t = t;
	l.item = item;
	l.is_k = head >= (uint32_t)r->heads;
	l.i = (int)(threadIdx.x % lanes) * WIDE;
	l.x = ((int64_t)t * (heads + r->kv_heads) + head) * r->dim + l.i;
	l.angle = (int64_t)(t % seq - r->starts[t]) * (r->dim / 2) + l.i;
	return l;
}

/* The sum over a head's lanes, in all of them */
static __device__ __forceinline__ float head_sum(float x, int64_t dim)
{
	for (int lanes = (int)dim / 32; lanes; lanes /= 2) x += __shfl_xor_sync(FULL, x, lanes);
	return x;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	rope_forward_lanes(struct rope_args r, T *qkv, T *pre, float *rstd, int wide)
{
	struct rope_lane l = lane_of(&r, blockIdx.x);
	int64_t half = r.dim / 2;
	float a[WIDE], b[WIDE], c[WIDE], s[WIDE];

	get_wide(a, qkv + l.x, WIDE, wide);
	get_wide(b, qkv + l.x + half, WIDE, wide);
	if (r.qnorm) {
		const T *w = (const T *)(l.is_k ? r.knorm : r.qnorm) + l.i;
		float square = 0;

#pragma unroll
		for (int j = 0; j < WIDE; j++) square += a[j] * a[j] + b[j] * b[j];
		float factor = 1.0f / sqrtf(head_sum(square, r.dim) / (float)r.dim + r.eps);
		if (l.there && l.i == 0) rstd[l.item] = factor;
		if (l.there) {
			put_wide(pre + l.item * r.dim + l.i, a, WIDE, wide);
			put_wide(pre + l.item * r.dim + l.i + half, b, WIDE, wide);
		}
		get_wide(c, w, WIDE, wide);
		get_wide(s, w + half, WIDE, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			a[j] *= factor * c[j];
			b[j] *= factor * s[j];
		}
	}
	get_wide(c, r.cos + l.angle, WIDE, wide);
	get_wide(s, r.sin + l.angle, WIDE, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		float x = a[j] * c[j] - b[j] * s[j];
		b[j] = b[j] * c[j] + a[j] * s[j];
		a[j] = x;
	}
	if (!l.there) return;
	put_wide(qkv + l.x, a, WIDE, wide);
	put_wide(qkv + l.x + half, b, WIDE, wide);
}

/* Backward through the norm: a, b (the two halves) are the gradient of its output, and become that of its input; the
 * gradients of its weights are added to dw */
template <typename T>
static __device__ __forceinline__ void rope_norm_backward(const struct rope_args *r, const struct rope_lane *l,
	float *a, float *b, float dw[2][WIDE], const T *pre, const float *rstd, int wide)
{
	const T *w = (const T *)(l->is_k ? r->knorm : r->qnorm) + l->i, *x = pre + l->item * r->dim + l->i;
	int64_t half = r->dim / 2;
	float y[WIDE], z[WIDE], g[WIDE], h[WIDE], s = rstd[l->item], dot = 0;

	get_wide(y, x, WIDE, wide);
	get_wide(z, x + half, WIDE, wide);
	get_wide(g, w, WIDE, wide);
	get_wide(h, w + half, WIDE, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		y[j] *= s;
		z[j] *= s;
		dot += a[j] * g[j] * y[j] + b[j] * h[j] * z[j];
		dw[0][j] += a[j] * y[j];
		dw[1][j] += b[j] * z[j];
	}
	float mean = head_sum(dot, r->dim) / (float)r->dim;
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		a[j] = s * (a[j] * g[j] - y[j] * mean);
		b[j] = s * (b[j] * h[j] - z[j] * mean);
	}
}

/* With norms, block b computes items b, b + blocks, ... Each lane sums its gradients of the norms' weights in
 * registers; then the sums of the block's heads are added in order. */
template <typename T, int NORMS>
static __global__ void __launch_bounds__(THREADS) rope_backward_lanes(struct rope_args r, T *dqkv, const T *pre,
	const float *rstd, float *partial, int64_t blocks, int wide)
{
	DYNAMIC_SHARED(float, sums); /* (heads of a block, 2, dim), NORMS only */
	int64_t half = r.dim / 2;
	float dw[2][2][WIDE] = {{{0}}}; /* q's and k's; lower and upper half */

	for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
		struct rope_lane l = lane_of(&r, block);
		float a[WIDE], b[WIDE], c[WIDE], s[WIDE], none[2][WIDE] = {{0}};

		get_wide(a, dqkv + l.x, WIDE, wide);
		get_wide(b, dqkv + l.x + half, WIDE, wide);
		get_wide(c, r.cos + l.angle, WIDE, wide);
		get_wide(s, r.sin + l.angle, WIDE, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			float x = a[j] * c[j] + b[j] * s[j];
			b[j] = b[j] * c[j] - a[j] * s[j];
			a[j] = x;
		}
		if (NORMS) {
			rope_norm_backward(&r, &l, a, b, none, pre, rstd, wide);
#pragma unroll
			for (int j = 0; j < 2 * WIDE; j++) {
				float x = l.there ? none[j / WIDE][j % WIDE] : 0;
				dw[0][j / WIDE][j % WIDE] += l.is_k ? 0 : x;
				dw[1][j / WIDE][j % WIDE] += l.is_k ? x : 0;
			}
		}
		/* a lane without an item has read item 0, which another lane may have written since: it must not store */
		if (l.there) {
			put_wide(dqkv + l.x, a, WIDE, wide);
			put_wide(dqkv + l.x + half, b, WIDE, wide);
		}
	}
	if (!NORMS) return;
	int lanes = (int)r.dim / 16, mine = threadIdx.x / lanes, at = threadIdx.x % lanes * WIDE;
#pragma unroll
	for (int j = 0; j < 4 * WIDE; j++)
		sums[mine * 2 * r.dim + j / (2 * WIDE) * r.dim + j / WIDE % 2 * half + at + j % WIDE] =
			dw[j / (2 * WIDE)][j / WIDE % 2][j % WIDE];
	__syncthreads();
	for (int64_t i = threadIdx.x; i < 2 * r.dim; i += THREADS) {
		float total = 0;
		for (int k = 0; k < THREADS / lanes; k++) total += sums[k * 2 * r.dim + i];
		partial[blockIdx.x * 2 * r.dim + i] = total;
	}
}

/* Other heads: a warp computes one head of a token, each lane pairs lane, lane + 32, ... */

#define PAIRS 8 /* most pairs of a lane: heads of up to 512 */

template <typename T>
static __global__ void __launch_bounds__(THREADS) rope_forward_kernel(struct rope_args r, T *qkv, T *pre, float *rstd)
{
	int64_t heads = r.heads + r.kv_heads, half = r.dim / 2;
	int64_t item = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, t = item / heads, j = item % heads;
	int lane = threadIdx.x % 32;
	float a[PAIRS], b[PAIRS], square = 0;

	if (t >= r.n) return; /* the whole warp does */
	T *x = qkv + (t * (heads + r.kv_heads) + j) * r.dim;
	int64_t position = t % r.seq - r.starts[t];
#pragma unroll
	for (int k = 0; k < PAIRS; k++) {
		int64_t i = lane + 32 * k;
		a[k] = i < half ? get(x[i]) : 0;
		b[k] = i < half ? get(x[half + i]) : 0;
		square += a[k] * a[k] + b[k] * b[k];
	}
	if (r.qnorm) {
		const T *w = (const T *)(j < r.heads ? r.qnorm : r.knorm);
		float s = 1.0f / sqrtf(warp_sum(square) / (float)r.dim + r.eps);

		if (lane == 0) rstd[item] = s;
#pragma unroll
		for (int k = 0; k < PAIRS; k++) {
			int64_t i = lane + 32 * k;
			if (i >= half) break;
			pre[item * r.dim + i] = x[i];
			pre[item * r.dim + half + i] = x[half + i];
			a[k] *= s * get(w[i]);
			b[k] *= s * get(w[half + i]);
		}
	}
#pragma unroll
	for (int k = 0; k < PAIRS; k++) {
		int64_t i = lane + 32 * k;
		if (i >= half) break;
		float c = r.cos[position * half + i], s = r.sin[position * half + i];
		put(x + i, a[k] * c - b[k] * s);
		put(x + half + i, b[k] * c + a[k] * s);
	}
}

static int rope_wide(const struct rope_args *r)
{
	return wide_rows(r->dim / 2, r->qkv, r->pre, r->cos, r->sin) && wide_rows(WIDE, r->qnorm, r->knorm, NULL, NULL);
}

void cuda_rope_forward(const struct cuda_queue *q, const struct rope_args *rope)
{
	const struct rope_args r = *rope;
	int64_t items = r.n * (r.heads + r.kv_heads);
	int wide = rope_wide(&r);

	if (rope_by_lanes(r.dim))
		BY_ELEMENT(q,
			LAUNCH(rope_forward_lanes<T>, div_up(items, THREADS / (r.dim / 16)), THREADS, 0, q->stream, r, (T *)r.qkv,
				(T *)r.pre, r.rstd, wide));
	else
		BY_ELEMENT(q,
			LAUNCH(rope_forward_kernel<T>, div_up(items, THREADS / 32), THREADS, 0, q->stream, r, (T *)r.qkv,
				(T *)r.pre, r.rstd));
}

/* Gradients of the norms' weights are summed in registers over a warp's items, then over the block's warps in order. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	rope_backward_kernel(struct rope_args r, T *dqkv, const T *pre, const float *rstd, float *partial)
{
	DYNAMIC_SHARED(float, sums); /* (warps, 2, dim) */
	int64_t heads = r.heads + r.kv_heads, half = r.dim / 2, items = r.n * heads;
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	float dw[2][2][PAIRS] = {{{0}}}; /* q's and k's; lower and upper half */

	for (int64_t item = (int64_t)blockIdx.x * (THREADS / 32) + warp; item < items;
		 item += (int64_t)gridDim.x * (THREADS / 32)) {
		int64_t t = item / heads, j = item % heads, position = t % r.seq - r.starts[t];
		T *dx = dqkv + (t * (heads + r.kv_heads) + j) * r.dim;
		float a[PAIRS], b[PAIRS], dot = 0;

#pragma unroll
		for (int k = 0; k < PAIRS; k++) {
			int64_t i = lane + 32 * k;
			a[k] = b[k] = 0;
			if (i >= half) break;
			float c = r.cos[position * half + i], s = r.sin[position * half + i];
			float x = get(dx[i]), y = get(dx[half + i]);
			a[k] = x * c + y * s;
			b[k] = y * c - x * s;
		}
		if (r.qnorm) {
			int is_k = j >= r.heads;
			const T *w = (const T *)(is_k ? r.knorm : r.qnorm), *x = pre + item * r.dim;
			float s = rstd[item];

#pragma unroll
			for (int k = 0; k < PAIRS; k++) {
				int64_t i = lane + 32 * k;
				if (i >= half) break;
				float y = get(x[i]) * s, z = get(x[half + i]) * s;
				dot += a[k] * get(w[i]) * y + b[k] * get(w[half + i]) * z;
				dw[0][0][k] += is_k ? 0 : a[k] * y;
				dw[0][1][k] += is_k ? 0 : b[k] * z;
				dw[1][0][k] += is_k ? a[k] * y : 0;
				dw[1][1][k] += is_k ? b[k] * z : 0;
			}
			float mean = warp_sum(dot) / (float)r.dim;
#pragma unroll
			for (int k = 0; k < PAIRS; k++) {
				int64_t i = lane + 32 * k;
				if (i >= half) break;
				a[k] = s * (a[k] * get(w[i]) - get(x[i]) * s * mean);
				b[k] = s * (b[k] * get(w[half + i]) - get(x[half + i]) * s * mean);
			}
		}
#pragma unroll
		for (int k = 0; k < PAIRS; k++) {
			int64_t i = lane + 32 * k;
			if (i >= half) break;
			put(dx + i, a[k]);
			put(dx + half + i, b[k]);
		}
	}
	if (!r.qnorm) return;
#pragma unroll
	for (int k = 0; k < PAIRS; k++) {
		int64_t i = lane + 32 * k;
		if (i >= half) break;
		for (int w = 0; w < 2; w++) {
			sums[(warp * 2 + w) * r.dim + i] = dw[w][0][k];
			sums[(warp * 2 + w) * r.dim + half + i] = dw[w][1][k];
		}
	}
	__syncthreads();
	for (int64_t i = threadIdx.x; i < 2 * r.dim; i += THREADS) {
		float total = 0;
		for (int k = 0; k < THREADS / 32; k++) total += sums[k * 2 * r.dim + i];
		partial[blockIdx.x * 2 * r.dim + i] = total;
	}
}

template <typename T, int NORMS>
static void rope_backward_by_lanes(const struct cuda_queue *q, const struct rope_args r, int64_t blocks, int64_t all)
{
	size_t shared = NORMS ? THREADS / (size_t)(r.dim / 16) * 2 * (size_t)r.dim * sizeof(float) : 0;

	LAUNCH((rope_backward_lanes<T, NORMS>), blocks, THREADS, shared, q->stream, r, (T *)r.qkv, (const T *)r.pre, r.rstd,
		q->work, all, rope_wide(&r));
}

void cuda_rope_backward(const struct cuda_queue *q, const struct rope_args *rope)
{
	const struct rope_args r = *rope;
	int lanes = rope_by_lanes(r.dim);
	int64_t all = div_up(r.n * (r.heads + r.kv_heads), lanes ? THREADS / (r.dim / 16) : THREADS / 32);
	int64_t blocks = r.qnorm ? least(all, MOST_BLOCKS) : all;

	if (lanes && r.qnorm) BY_ELEMENT(q, (rope_backward_by_lanes<T, 1>(q, r, blocks, all)));
	else if (lanes) BY_ELEMENT(q, (rope_backward_by_lanes<T, 0>(q, r, blocks, all)));
	else
		BY_ELEMENT(q,
			LAUNCH(rope_backward_kernel<T>, blocks, THREADS, r.qnorm ? THREADS / 32 * 2 * r.dim * sizeof(float) : 0,
				q->stream, r, (T *)r.qkv, (const T *)r.pre, r.rstd, q->work));
	if (!r.qnorm) return;
	cuda_sum_partials(q, r.dqnorm, r.beta, q->work, blocks, 2 * r.dim, r.dim);
	cuda_sum_partials(q, r.dknorm, r.beta, q->work + r.dim, blocks, 2 * r.dim, r.dim);
}
