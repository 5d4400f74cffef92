/* gate.cu: the gated norm of gated DeltaNet and the output gate of attention */
#include "common.h"

/* silu(x) and its derivative */
static __device__ __forceinline__ float silu(float x, float *slope)
{
	float denominator = 1.0f + expf(-x), s = 1.0f / denominator;
	*slope = s * (1.0f + x * (1.0f - s));
	return x / denominator;
}

/* ---- the gated norm: `lanes` neighbouring lanes compute a head, WIDE elements each at a time ---- */

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
		for (int j = 0; j < WIDE; j++) v[j] = w[j] * (v[j] * r) * silu(g[j], &slope);
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
				float gate = silu(g[j], &slope);
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
				float gate = silu(g[j], &slope), normed = v[j] * r;
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

void cuda_gated_norm_forward(const struct cuda_queue *q, const struct gated_norm_args *a)
{
	int lanes = lanes_of(a->dim), wide = wide_rows(a->dim | a->ld, a->y, a->o, a->z, a->w);
	BY_ELEMENT(q,
		LAUNCH(gated_norm_forward_kernel<T>, div_up(a->n * a->heads, THREADS / lanes), THREADS, 0, q->stream, *a, lanes,
			wide));
}

template <typename T, int DIM>
static void norm_backward(const struct cuda_queue *q, const struct gated_norm_args a, int64_t blocks)
{
	int lanes = lanes_of(a.dim);
	int wide = wide_rows(a.dim | a.ld | a.dz_ld, a.o, a.z, a.w, a.dy) && wide_rows(WIDE, a.d_o, a.dz, a.y, NULL);
	LAUNCH((gated_norm_backward_kernel<T, DIM>), blocks, THREADS, (size_t)(THREADS / lanes * a.dim) * sizeof(float),
		q->stream, a, q->work, lanes, wide);
	cuda_sum_partials(q, a.dw, a.beta, q->work, blocks, a.dim, a.dim);
}

void cuda_gated_norm_backward(const struct cuda_queue *q, const struct gated_norm_args *a)
{
	int64_t blocks = partial_blocks(div_up(a->n * a->heads, THREADS / lanes_of(a->dim)), a->dim);
	if (a->dim <= 32 * WIDE) BY_ELEMENT(q, (norm_backward<T, 1>(q, *a, blocks)));
	else BY_ELEMENT(q, (norm_backward<T, 2>(q, *a, blocks)));
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
