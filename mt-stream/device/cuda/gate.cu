/* gate.cu: the gated norm of the delta rule and of Mamba 2, and the output gate of attention */
#include "common.h"
#include "ops/gate.h"

/* silu(x), or sigmoid(x), and its derivative */
static __device__ __forceinline__ float gate_of(const struct gated_norm_args *a, float x, float *slope)
{
	float denominator = 1.0f + expf(-x), s = 1.0f / denominator;
	*slope = a->sigmoid ? s * (1.0f - s) : s * (1.0f + x * (1.0f - s));
	return a->sigmoid ? s : x / denominator;
}

/* ---- the gated norm of heads that share w, the norm first: `lanes` neighbouring lanes compute a head, WIDE elements
 * each at a time ---- */

/* 1 / sqrt(mean(o^2) + eps) of the lanes' head, which may not be there */
template <typename T>
static __device__ __forceinline__ float head_rstd(const T *o, int there, int64_t dim, float eps, int lanes, int wide)
{
	float v[WIDE], sum = 0;
	for (int64_t i = threadIdx.x % lanes * WIDE; there && i < dim; i += lanes * WIDE) {
		get_wide(v, o + i, dim - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) sum += v[j] * v[j];
	}
	return 1.0f / sqrtf(lanes_sum(sum, lanes) / (float)dim + eps);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	gated_norm_forward_kernel(struct gated_norm_args a, int lanes, int wide)
{
	int64_t item = (int64_t)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes, h = item % a.heads;
	int there = item < a.n * a.heads;
	const T *o = (const T *)a.o + item * a.dim, *z = (const T *)a.z + item / a.heads * a.ld + h * a.dim;
	float r = head_rstd(o, there, a.dim, a.eps, lanes, wide), v[WIDE], g[WIDE], w[WIDE], slope;
	for (int64_t i = threadIdx.x % lanes * WIDE; there && i < a.dim; i += lanes * WIDE) {
		get_wide(v, o + i, a.dim - i, wide);
		get_wide(g, z + i, a.dim - i, wide);
		get_wide(w, (const T *)a.w + i, a.dim - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) v[j] = w[j] * (v[j] * r) * gate_of(&a, g[j], &slope);
		put_wide((T *)a.y + item * a.dim + i, v, a.dim - i, wide);
	}
}

/* Block b computes heads b, b + blocks, .. of all, as many at once as it has lanes for. Its dw, from those of its
 * lanes, goes to `partial`. DIM: elements of a lane are WIDE DIM at most */
template <typename T, int DIM>
static __global__ void __launch_bounds__(THREADS)
	gated_norm_backward_kernel(struct gated_norm_args a, float *partial, int lanes, int wide)
{
	DYNAMIC_SHARED(float, sums); /* (heads at once, dim) */
	int64_t items = a.n * a.heads, at_once = THREADS / lanes, slot = threadIdx.x / lanes;
	int lane = threadIdx.x % lanes;
	float dw[DIM][WIDE] = {{0}}, v[WIDE], g[WIDE], w[WIDE], d[WIDE], dz[WIDE], y[WIDE], slope;

	for (int64_t from = blockIdx.x * at_once; from < items; from += gridDim.x * at_once) {
		int64_t item = from + slot, at = item * a.dim, row = item / a.heads, h = item % a.heads;
		int there = item < items;
		const T *o = (const T *)a.o + at, *z = (const T *)a.z + row * a.ld + h * a.dim, *dy = (const T *)a.dy + at;
		float r = head_rstd(o, there, a.dim, a.eps, lanes, wide), dot = 0;
#pragma unroll
		for (int k = 0; k < DIM; k++) {
			int64_t i = (k * lanes + lane) * WIDE;
			if (!there || i >= a.dim) continue;
			get_wide(v, o + i, a.dim - i, wide);
			get_wide(g, z + i, a.dim - i, wide);
			get_wide(w, (const T *)a.w + i, a.dim - i, wide);
			get_wide(d, dy + i, a.dim - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float gate = gate_of(&a, g[j], &slope);
				dot += d[j] * w[j] * gate * (v[j] * r);
				dw[k][j] += d[j] * (v[j] * r) * gate;
			}
		}
		float mean = lanes_sum(dot, lanes) / (float)a.dim;
		for (int64_t i = lane * WIDE; there && i < a.dim; i += lanes * WIDE) {
			get_wide(v, o + i, a.dim - i, wide);
			get_wide(g, z + i, a.dim - i, wide);
			get_wide(w, (const T *)a.w + i, a.dim - i, wide);
			get_wide(d, dy + i, a.dim - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float gate = gate_of(&a, g[j], &slope), normed = v[j] * r;
				dz[j] = d[j] * w[j] * normed * slope;
				y[j] = w[j] * normed * gate;
				d[j] = r * (d[j] * w[j] * gate - normed * mean);
			}
			put_wide((T *)a.dz + row * a.dz_ld + h * a.dim + i, dz, a.dim - i, wide);
			put_wide((T *)a.d_o + at + i, d, a.dim - i, wide);
			if (a.y) put_wide((T *)a.y + at + i, y, a.dim - i, wide);
		}
	}
#pragma unroll
	for (int k = 0; k < DIM; k++)
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			int64_t i = (k * lanes + lane) * WIDE + j;
			if (i < a.dim) sums[slot * a.dim + i] = dw[k][j];
		}
	__syncthreads();
	for (int64_t i = threadIdx.x; i < a.dim; i += THREADS) {
		float sum = 0;
		for (int64_t k = 0; k < at_once; k++) sum += sums[k * a.dim + i];
		partial[blockIdx.x * a.dim + i] = sum;
	}
}

static void heads_forward(const struct cuda_queue *q, const struct gated_norm_args *a)
{
	int lanes = lanes_of(a->dim), wide = wide_rows(a->dim | a->ld, a->y, a->o, a->z, a->w);
	BY_ELEMENT(q,
		LAUNCH(gated_norm_forward_kernel<T>, div_up(a->n * a->heads, THREADS / lanes), THREADS, 0, q->stream, *a, lanes,
			wide));
}

template <typename T, int DIM>
static void heads_backward(const struct cuda_queue *q, const struct gated_norm_args a, int64_t blocks)
{
	int lanes = lanes_of(a.dim);
	int wide = wide_rows(a.dim | a.ld | a.dz_ld, a.o, a.z, a.w, a.dy) && wide_rows(WIDE, a.d_o, a.dz, a.y, NULL);
	LAUNCH((gated_norm_backward_kernel<T, DIM>), blocks, THREADS, (size_t)(THREADS / lanes * a.dim) * sizeof(float),
		q->stream, a, q->work, lanes, wide);
	cuda_sum_partials(q, a.dw, a.beta, q->work, blocks, a.dim, a.dim);
}

/* ---- all other gated norms: a block computes a head ---- */

/* WIDE elements of a head: what is normed, x, the gate, silu(z) or sigmoid(z), and its derivative; o may be x */
template <typename T>
static __device__ __forceinline__ void gated_get(float x[WIDE], float o[WIDE], float gate[WIDE], float slope[WIDE],
	const struct gated_norm_args *a, const T *from, const T *z, int64_t left, int wide)
{
	get_wide(o, from, left, wide);
	get_wide(gate, z, left, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		gate[j] = gate_of(a, gate[j], &slope[j]);
		x[j] = a->gate_first || !a->w ? o[j] * gate[j] : o[j];
	}
}

/* 1 / sqrt(mean(x^2) + eps); 1 without norm. scratch: as of block_sum */
template <typename T>
static __device__ __forceinline__ float gated_rstd(const struct gated_norm_args *a, const T *o, const T *z,
	float *scratch, int wide)
{
	float x[WIDE], v[WIDE], gate[WIDE], slope[WIDE], sum = 0;
	if (!a->w) return 1;
	for (int64_t i = threadIdx.x * WIDE; i < a->dim; i += THREADS * WIDE) {
		gated_get<T>(x, v, gate, slope, a, o + i, z + i, a->dim - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) sum += x[j] * x[j];
	}
	return 1.0f / sqrtf(block_sum(sum, scratch) / (float)a->dim + a->eps);
}

/* The weights of a head's elements from i on; ones without norm */
template <typename T>
static __device__ __forceinline__ void gated_weights(float w[WIDE], const struct gated_norm_args *a, int64_t head,
	int64_t i, int wide)
{
#pragma unroll
	for (int j = 0; j < WIDE; j++) w[j] = 1;
	if (a->w) get_wide(w, (const T *)a->w + (a->all_heads ? head * a->dim : 0) + i, a->dim - i, wide);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) gated_rows_forward_kernel(struct gated_norm_args a, int wide)
{
	DYNAMIC_SHARED(float, scratch);
	int64_t head = blockIdx.x % a.heads, row = blockIdx.x / a.heads, at = (row * a.heads + head) * a.dim;
	const T *o = (const T *)a.o + at, *z = (const T *)a.z + row * a.ld + head * a.dim;
	float x[WIDE], v[WIDE], gate[WIDE], slope[WIDE], w[WIDE], r = gated_rstd<T>(&a, o, z, scratch, wide);
	for (int64_t i = threadIdx.x * WIDE; i < a.dim; i += THREADS * WIDE) {
		gated_get<T>(x, v, gate, slope, &a, o + i, z + i, a.dim - i, wide);
		gated_weights<T>(w, &a, head, i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) x[j] = w[j] * (x[j] * r) * (a.gate_first || !a.w ? 1.0f : gate[j]);
		put_wide((T *)a.y + at + i, x, a.dim - i, wide);
	}
}

/* Block b computes head b % heads of rows b / heads, + blocks / heads, ... Its dw, in registers (VECS: accesses of a
 * row, at most) or for longer heads (VECS 0) in memory, is `partial` (blocks, dim) */
template <typename T, int VECS>
static __global__ void __launch_bounds__(THREADS, 2)
	gated_rows_backward_kernel(struct gated_norm_args a, float *partial, int wide)
{
	DYNAMIC_SHARED(float, scratch); /* of two sums */
	int64_t head = blockIdx.x % a.heads, own = head * a.dim;
	float *mine = partial + blockIdx.x * a.dim, sum[VECS > 0 ? VECS : 1][WIDE] = {{0}}, x[WIDE], o[WIDE], gate[WIDE],
		  slope[WIDE], w[WIDE], d[WIDE], y[WIDE];
	int gate_last = a.w && !a.gate_first;

	for (int64_t i = threadIdx.x * WIDE; VECS == 0 && a.w && i < a.dim; i += THREADS * WIDE)
		put_wide(mine + i, sum[0], a.dim - i, wide);
	for (int64_t row = blockIdx.x / a.heads; row < a.n; row += gridDim.x / a.heads) {
		int64_t at = row * a.heads * a.dim + own;
		const T *from = (const T *)a.o + at, *z = (const T *)a.z + row * a.ld + own, *dy = (const T *)a.dy + at;
		float r = gated_rstd<T>(&a, from, z, scratch, wide), dot = 0, mean = 0;
		int k = 0;
#pragma unroll(VECS > 0 ? VECS : 1)
		for (int64_t i = threadIdx.x * WIDE; VECS > 0 ? k < VECS : i < a.dim; i += THREADS * WIDE, k++) {
			if (i >= a.dim || !a.w) break;
			gated_get<T>(x, o, gate, slope, &a, from + i, z + i, a.dim - i, wide);
			gated_weights<T>(w, &a, head, i, wide);
			get_wide(d, dy + i, a.dim - i, wide);
			if (VECS == 0) get_wide(y, mine + i, a.dim - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float part = d[j] * x[j] * r * (gate_last ? gate[j] : 1.0f);
				dot += part * w[j];
				if (VECS > 0) sum[VECS > 0 ? k : 0][j] += part;
				else y[j] += part;
			}
			if (VECS == 0) put_wide(mine + i, y, a.dim - i, wide);
		}
		if (a.w) mean = block_sum(dot, scratch + THREADS / 32) / (float)a.dim;
		for (int64_t i = threadIdx.x * WIDE; i < a.dim; i += THREADS * WIDE) {
			gated_get<T>(x, o, gate, slope, &a, from + i, z + i, a.dim - i, wide);
			gated_weights<T>(w, &a, head, i, wide);
			get_wide(d, dy + i, a.dim - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) {
				float normed = x[j] * r, g = d[j] * w[j], after = gate_last ? gate[j] : 1.0f;
				float in = r * (g * after - normed * mean); /* the gradient of x */
				y[j] = w[j] * normed * after;
				d[j] = gate_last ? in : in * gate[j];
				x[j] = (gate_last ? g * normed : in * o[j]) * slope[j]; /* that of z */
			}
			put_wide((T *)a.dz + row * a.dz_ld + own + i, x, a.dim - i, wide);
			put_wide((T *)a.d_o + at + i, d, a.dim - i, wide);
			if (a.y) put_wide((T *)a.y + at + i, y, a.dim - i, wide);
		}
	}
#pragma unroll
	for (int k = 0; k < VECS; k++)
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			int64_t i = ((int64_t)k * THREADS + threadIdx.x) * WIDE + j;
			if (i < a.dim && a.w) mine[i] = sum[k][j];
		}
}

#define HEAD_MOST (32 * WIDE * 2) /* elements of a head that lanes of a warp compute */

/* Without norm all heads are one */
static struct gated_norm_args gated_rows(const struct gated_norm_args *a)
{
	struct gated_norm_args b = *a;
	if (b.w) return b;
	b.dim *= b.heads;
	b.heads = 1;
	return b;
}

static int of_heads(const struct gated_norm_args *a)
{
	return a->w && !a->gate_first && !a->all_heads && a->dim <= HEAD_MOST;
}

static void rows_forward(const struct cuda_queue *q, const struct gated_norm_args a)
{
	int wide = wide_rows(a.dim | a.ld, a.y, a.o, a.z, a.w);
	BY_ELEMENT(q,
		LAUNCH(gated_rows_forward_kernel<T>, a.n * a.heads, THREADS, THREADS / 32 * sizeof(float), q->stream, a, wide));
}

template <typename T, int VECS>
static void rows_backward(const struct cuda_queue *q, const struct gated_norm_args a)
{
	int64_t width = a.heads * a.dim, parts = least(partial_blocks(a.n, width), div_up(MOST_BLOCKS, a.heads));
	int wide = wide_rows(a.dim | a.ld | a.dz_ld, a.o, a.z, a.w, a.dy) && wide_rows(WIDE, a.d_o, a.dz, a.y, NULL);
	LAUNCH((gated_rows_backward_kernel<T, VECS>), parts * a.heads, THREADS, 2 * (THREADS / 32) * sizeof(float),
		q->stream, a, q->work, wide);
	if (!a.w) return;
	if (a.all_heads) cuda_sum_partials(q, a.dw, a.beta, q->work, parts, width, width);
	else cuda_sum_partials(q, a.dw, a.beta, q->work, parts * a.heads, a.dim, a.dim);
}

void cuda_gated_norm_forward(const struct cuda_queue *q, const struct gated_norm_args *a)
{
	if (of_heads(a)) heads_forward(q, a);
	else rows_forward(q, gated_rows(a));
}

void cuda_gated_norm_backward(const struct cuda_queue *q, const struct gated_norm_args *a)
{
	int64_t blocks = partial_blocks(div_up(a->n * a->heads, THREADS / lanes_of(a->dim)), a->dim);
	if (of_heads(a) && a->dim <= HEAD_MOST / 2) BY_ELEMENT(q, (heads_backward<T, 1>(q, *a, blocks)));
	else if (of_heads(a)) BY_ELEMENT(q, (heads_backward<T, 2>(q, *a, blocks)));
	else if (a->dim <= 4 * THREADS * WIDE) BY_ELEMENT(q, (rows_backward<T, 4>(q, gated_rows(a))));
	else BY_ELEMENT(q, (rows_backward<T, 0>(q, gated_rows(a))));
}

/* ---- the output gate: y = o sigmoid(gate), or its gradients ---- */

template <typename T, int BACKWARD>
static __global__ void __launch_bounds__(THREADS) gate_kernel(struct gate_args a, int64_t across, int wide)
{
	int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = item / across, i = item % across * WIDE;
	float o[WIDE], g[WIDE], d[WIDE], y[WIDE];
	if (row >= a.n) return;
	get_wide(o, (const T *)a.o + row * a.width + i, a.width - i, wide);
	get_wide(g, (const T *)a.gate + row * a.ld + i, a.width - i, wide);
	if (BACKWARD) get_wide(d, (const T *)a.dy + row * a.width + i, a.width - i, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		float denominator = 1.0f + expf(-g[j]), s = 1.0f / denominator;
		y[j] = o[j] / denominator;
		if (!BACKWARD) continue;
		g[j] = d[j] * o[j] * s * (1.0f - s);
		d[j] *= s;
	}
	if (BACKWARD) {
		put_wide((T *)a.dgate + row * a.dgate_ld + i, g, a.width - i, wide);
		put_wide((T *)a.d_o + row * a.width + i, d, a.width - i, wide);
	}
	if (!BACKWARD || a.y) put_wide((T *)a.y + row * a.width + i, y, a.width - i, wide);
}

void cuda_gate_forward(const struct cuda_queue *q, const struct gate_args *a)
{
	int64_t across = div_up(a->width, WIDE);
	int wide = wide_rows(a->width | a->ld, a->y, a->o, a->gate, NULL);
	BY_ELEMENT(q, LAUNCH((gate_kernel<T, 0>), div_up(a->n * across, THREADS), THREADS, 0, q->stream, *a, across, wide));
}

void cuda_gate_backward(const struct cuda_queue *q, const struct gate_args *a)
{
	int64_t across = div_up(a->width, WIDE);
	int wide = wide_rows(a->width | a->ld | a->dgate_ld, a->o, a->gate, a->dy, a->d_o) &&
		wide_rows(WIDE, a->y, a->dgate, NULL, NULL);
	BY_ELEMENT(q, LAUNCH((gate_kernel<T, 1>), div_up(a->n * across, THREADS), THREADS, 0, q->stream, *a, across, wide));
}
