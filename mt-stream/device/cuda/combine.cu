/* combine.cu: tokens' rows to experts, and experts' outputs back to tokens, a block a row */
#include "common.h"
#include "ops/combine.h"
#include "mt/types.h"

/* ---- dispatch ---- */

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	dispatch_kernel(T *y, const T *x, const uint32_t *slot, const float *weight, int64_t per_token, int64_t h, int wide)
{
	int64_t row = blockIdx.x;
	float v[WIDE], w = weight ? weight[slot[row]] : 1;
	x += slot[row] / per_token * h;
	y += row * h;
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(v, x + i, h - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) v[j] *= w;
		put_wide(y + i, v, h - i, wide);
	}
}

void cuda_dispatch(const struct cuda_queue *q, const struct dispatch_args *a)
{
	int wide = wide_rows(a->h, a->y, a->x, NULL, NULL);
	BY_ELEMENT(q,
		LAUNCH(dispatch_kernel<T>, a->rows, THREADS, 0, q->stream, (T *)a->y, (const T *)a->x, a->slot, a->weight,
			a->per_token, a->h, wide));
}

/* ---- combine ---- */

/* The rows of a token that are in the window, in ascending order: so sums go by experts */
struct ordered {
	uint32_t row[MT_EXPERTS_PER_TOKEN];
	float weight[MT_EXPERTS_PER_TOKEN];
	int n;
};

/* Thread k finds the place of the token's row k among the others */
static __device__ __forceinline__ void order_rows(struct ordered *to, const struct combine_args *a, int64_t t)
{
	uint32_t from = a->from ? *a->from : 0, end = a->to ? *a->to : UINT32_MAX;
	int64_t slot = t * a->per_token, k = threadIdx.x;
	int at = 0, n = 0;
	if (k >= a->per_token) return;
	uint32_t mine = a->row ? a->row[slot + k] : (uint32_t)(slot + k);
	for (int64_t i = 0; i < a->per_token; i++) {
		uint32_t row = a->row ? a->row[slot + i] : (uint32_t)(slot + i);
		int inside = row >= from && row < end;
		at += inside && row < mine;
		n += inside;
	}
	if (k == 0) to->n = n;
	if (mine < from || mine >= end) return;
	to->row[at] = mine;
	to->weight[at] = a->weight ? a->weight[slot + k] : 1.0f;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) combine_kernel(struct combine_args a, int wide)
{
	DYNAMIC_SHARED(struct ordered, rows);
	int64_t t = blockIdx.x, start = t * a.h;
	const T *x = (const T *)a.x;

	order_rows(rows, &a, t);
	__syncthreads();
	for (int64_t i = threadIdx.x * WIDE; i < a.h; i += THREADS * WIDE) {
		float sum[WIDE] = {0}, v[WIDE];
		if (a.sum) get_wide(sum, a.sum + start + i, a.h - i, wide);
		for (int k = 0; k < rows->n; k++) {
			float w = rows->weight[k];
			get_wide(v, x + (int64_t)rows->row[k] * a.h + i, a.h - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) sum[j] += w * v[j];
		}
		if (a.add) {
			get_wide(v, (const T *)a.add + start + i, a.h - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) sum[j] += v[j];
		}
		if (a.partial) put_wide((float *)a.y + start + i, sum, a.h - i, wide);
		else put_wide((T *)a.y + start + i, sum, a.h - i, wide);
	}
}

void cuda_combine(const struct cuda_queue *q, const struct combine_args *a)
{
	int wide = wide_rows(a->h, a->y, a->add, a->x, a->sum);
	BY_ELEMENT(q, LAUNCH(combine_kernel<T>, a->n, THREADS, sizeof(struct ordered), q->stream, *a, wide));
}

/* ---- backward of the weights ---- */

/* May y's, dgu's and d_o's rows be accessed 16 bytes at a time? */
struct widths {
	int f, g, h;
};

/* dot + the thread's part of x . y; x *= w, if it is to be stored */
template <typename T>
static __device__ __forceinline__ float dot_scale(float dot, T *x, const T *y, int64_t n, float w, int store, int wide)
{
	float v[WIDE], d[WIDE];
	for (int64_t i = threadIdx.x * WIDE; i < n; i += THREADS * WIDE) {
		get_wide(v, x + i, n - i, wide);
		get_wide(d, y + i, n - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			dot += v[j] * d[j];
			v[j] *= w;
		}
		if (store) put_wide(x + i, v, n - i, wide);
	}
	return dot;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	combine_backward_kernel(struct combine_backward_args a, struct widths wide)
{
	DYNAMIC_SHARED(float, scratch);
	int64_t row = blockIdx.x, slot = a.slot ? a.slot[row] : row;
	T *y = (T *)a.y + row * a.f, *dgu = (T *)a.dgu + row * a.g;
	const T *dy = (const T *)a.dy + row * a.f;
	float w = a.weight[slot], dot = 0, v[WIDE];

	dot = dot_scale(dot, y, dy, a.f, w, !a.bias, wide.f);
	if (a.bias)
		dot = dot_scale(dot, (T *)a.d_o + row * a.h, (const T *)a.bias + a.expert[slot] * a.bias_stride, a.h, w, 1,
			wide.h);
	for (int64_t i = threadIdx.x * WIDE; i < a.g; i += THREADS * WIDE) {
		get_wide(v, dgu + i, a.g - i, wide.g);
#pragma unroll
		for (int j = 0; j < WIDE; j++) v[j] *= w;
		put_wide(dgu + i, v, a.g - i, wide.g);
	}
	dot = block_sum(dot, scratch);
	if (threadIdx.x == 0) a.dweight[slot] = dot;
}

void cuda_combine_backward(const struct cuda_queue *q, const struct combine_backward_args *a)
{
	struct widths wide = {wide_rows(a->f, a->y, a->dy, NULL, NULL), wide_rows(a->g, a->dgu, NULL, NULL, NULL),
		a->bias && wide_rows(a->h | a->bias_stride, a->d_o, a->bias, NULL, NULL)};
	BY_ELEMENT(q,
		LAUNCH(combine_backward_kernel<T>, a->rows, THREADS, THREADS / 32 * sizeof(float), q->stream, *a, wide));
}
