/* activation.cu: the MLP's inner functions, WIDE elements of the result a thread */
#include "common.h"
#include "ops/activation.h"

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

/* The row and the first of the WIDE columns of thread `block` * THREADS + threadIdx.x; `across` blocks a row. Block
 * numbers fit 32 bits: cheap division */
static __device__ __forceinline__ void row_and_column(unsigned block, unsigned across, int64_t *row, int64_t *column)
{
	*row = block / across;
	*column = ((int64_t)(block % across) * THREADS + threadIdx.x) * WIDE;
}

/* ---- SwiGLU (arXiv 2002.05202), gate | up ---- */

/* silu(x) = x sigmoid(x) */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	swiglu_forward_kernel(T *y, const T *gu, int64_t f, unsigned across, int wide)
{
	float g[WIDE], u[WIDE];
	int64_t row, i;
	row_and_column(blockIdx.x, across, &row, &i);
	if (i >= f) return;
	get_wide(g, gu + row * 2 * f + i, f - i, wide);
	get_wide(u, gu + row * 2 * f + f + i, f - i, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) g[j] = g[j] * sigmoid<T>(g[j]) * u[j];
	put_wide(y + row * f + i, g, f - i, wide);
}

/* With s = sigmoid(gate):  d gate = dy up s (1 + gate (1 - s)),  d up = dy gate s,  y = gate s up: forward's
 * output, for the gradient of down's weights. dgu may be gu, and y may be dy. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	swiglu_backward_kernel(T *dgu, T *y, const T *dy, const T *gu, int64_t f, unsigned across, int wide)
{
	float g[WIDE], u[WIDE], d[WIDE];
	int64_t row, i;
	row_and_column(blockIdx.x, across, &row, &i);
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

/* ---- all other forms ---- */

/* Elements i .. of row `row` of gu: x is the gate, or all that there is; u is up, where the form is gated */
template <typename T>
static __device__ __forceinline__ void get_inputs(float x[WIDE], float u[WIDE], const T *gu, int64_t row, int64_t i,
	int64_t f, int gated, int interleaved, int wide)
{
	const T *from = gu + row * (gated ? 2 * f : f);

	if (!interleaved || !gated) {
		get_wide(x, from + i, f - i, wide);
		if (gated) get_wide(u, from + f + i, f - i, wide);
		return;
	}
	float pairs[2 * WIDE];
	get_wide(pairs, from + 2 * i, 2 * (f - i), wide);
	get_wide(pairs + WIDE, from + 2 * i + WIDE, 2 * (f - i) - WIDE, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		x[j] = pairs[2 * j];
		u[j] = pairs[2 * j + 1];
	}
}

/* The other way: their gradients */
template <typename T>
static __device__ __forceinline__ void put_inputs(T *dgu, const float x[WIDE], const float u[WIDE], int64_t row,
	int64_t i, int64_t f, int gated, int interleaved, int wide)
{
	T *to = dgu + row * (gated ? 2 * f : f);

	if (!interleaved || !gated) {
		put_wide(to + i, x, f - i, wide);
		if (gated) put_wide(to + f + i, u, f - i, wide);
		return;
	}
	float pairs[2 * WIDE];
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		pairs[2 * j] = x[j];
		pairs[2 * j + 1] = u[j];
	}
	put_wide(to + 2 * i, pairs, 2 * (f - i), wide);
	put_wide(to + 2 * i + WIDE, pairs + WIDE, 2 * (f - i) - WIDE, wide);
}

#define SQRT_HALF 0.70710678f       /* sqrt(1 / 2) */
#define SQRT_2_OVER_PI 0.79788456f  /* sqrt(2 / pi) */
#define SQRT_1_OVER_2PI 0.39894228f /* sqrt(1 / (2 pi)) */
#define CUBIC (0.044715f * SQRT_2_OVER_PI)
#define CLAMP 7.0f
#define CLAMPED_SLOPE 1.702f

/* A function of one number, and its derivative. Products are not left to the compiler to contract: forward and backward
 * must give the same bits. */
template <typename T, int FORM>
static __device__ __forceinline__ float inner(float x, float *derivative)
{
	float s;
	switch (FORM) {
	case MT_SWIGLU:
		s = sigmoid<T>(x);
		*derivative = s * (1.0f + x * (1.0f - s));
		return x * s;
	case MT_GEGLU:
	case MT_GELU:
		s = fmaf(0.5f, erff(x * SQRT_HALF), 0.5f);
		*derivative = s + x * SQRT_1_OVER_2PI * expf(-0.5f * x * x);
		return x * s;
	case MT_GEGLU_TANH:
	case MT_GELU_TANH: /* (1 + tanh(z)) / 2 = sigmoid(2 z) */
		s = sigmoid<T>(2.0f * x * fmaf(CUBIC * x, x, SQRT_2_OVER_PI));
		*derivative = s + 2.0f * x * s * (1.0f - s) * (3.0f * CUBIC * x * x + SQRT_2_OVER_PI);
		return x * s;
	case MT_RELU: *derivative = x > 0 ? 1.0f : 0.0f; return x < 0 ? 0 : x; /* a NaN stays one */
	case MT_TANH:
		s = tanhf(x);
		*derivative = 1.0f - s * s;
		return s;
	default: /* MT_RE2GLU, MT_RELU2 */
		s = x < 0 ? 0 : x;
		*derivative = 2.0f * s;
		return s * s;
	}
}

/* y from gate and up, and its derivatives by them, in their places */
template <typename T, int FORM>
static __device__ __forceinline__ float evaluated(float *x, float *u)
{
	float g = *x, up = *u, y, d;
	if (FORM == MT_SWIGLU_CLAMPED) {
		float low = g > CLAMP ? CLAMP : g, s = sigmoid<T>(CLAMPED_SLOPE * low);
		float one = 1.0f + (up > CLAMP ? CLAMP : up < -CLAMP ? -CLAMP : up);
		*x = g > CLAMP ? 0 : one * s * (1.0f + CLAMPED_SLOPE * low * (1.0f - s));
		*u = up > CLAMP || up < -CLAMP ? 0 : low * s;
		return low * s * one;
	}
	y = inner<T, FORM>(g, &d);
	if (FORM >= MT_RELU2) {
		*x = d;
		return y;
	}
	*x = d * up;
	*u = y;
	return y * up;
}

template <typename T, int FORM>
static __device__ __forceinline__ void evaluate(float y[WIDE], float x[WIDE], float u[WIDE])
{
#pragma unroll
	for (int j = 0; j < WIDE; j++) y[j] = evaluated<T, FORM>(&x[j], &u[j]);
}

/* y, and its derivatives in the places of x and u, of all forms but MT_XIELU */
template <typename T>
static __device__ __forceinline__ void evaluate_form(enum mt_ffn form, float y[WIDE], float x[WIDE], float u[WIDE])
{
	switch (form) {
	case MT_SWIGLU: evaluate<T, MT_SWIGLU>(y, x, u); break;
	case MT_GEGLU: evaluate<T, MT_GEGLU>(y, x, u); break;
	case MT_GEGLU_TANH: evaluate<T, MT_GEGLU_TANH>(y, x, u); break;
	case MT_SWIGLU_CLAMPED: evaluate<T, MT_SWIGLU_CLAMPED>(y, x, u); break;
	case MT_RE2GLU: evaluate<T, MT_RE2GLU>(y, x, u); break;
	case MT_RELU2: evaluate<T, MT_RELU2>(y, x, u); break;
	case MT_RELU: evaluate<T, MT_RELU>(y, x, u); break;
	case MT_GELU: evaluate<T, MT_GELU>(y, x, u); break;
	case MT_GELU_TANH: evaluate<T, MT_GELU_TANH>(y, x, u); break;
	case MT_TANH: evaluate<T, MT_TANH>(y, x, u); break;
	case MT_XIELU: break;
	}
}

/* xIELU (arXiv 2411.13010): a x^2 + x / 2 where x > 0, else b (exp(min(x, -1e-6)) - 1 - x) + x / 2;
 * a = softplus(slope[0]), b = 1 / 2 + softplus(slope[1]) */
#define XIELU_BETA 0.5f
#define XIELU_EPS -1e-6f

static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

template <typename T>
static __device__ __forceinline__ void get_slopes(float slope[2], const void *positive, const void *negative)
{
	slope[0] = softplus(get(*(const T *)positive));
	slope[1] = XIELU_BETA + softplus(get(*(const T *)negative));
}

/* What slope[0], or where x is not positive slope[1], is multiplied by, and its derivative */
static __device__ __forceinline__ float xielu_part(float x, float *derivative)
{
	float e = expm1f(x < XIELU_EPS ? x : XIELU_EPS);
	*derivative = x > 0 ? 2.0f * x : x < XIELU_EPS ? e : -1.0f;
	return x > 0 ? x * x : e - x;
}

static __device__ __forceinline__ float xielu(float x, float part, const float slope[2])
{
	return fmaf(XIELU_BETA, x, (x > 0 ? slope[0] : slope[1]) * part);
}

/* Forward of all forms, backward of all but MT_XIELU */
template <typename T, int BACKWARD>
static __global__ void __launch_bounds__(THREADS) activation_kernel(struct activation_args a, unsigned across, int wide)
{
	float y[WIDE], x[WIDE], u[WIDE] = {0}, d[WIDE], slope[2], unused;
	int64_t row, i;
	int gated = a.form < MT_RELU2;
	row_and_column(blockIdx.x, across, &row, &i);
	if (i >= a.f) return;
	get_inputs(x, u, (const T *)a.gu, row, i, a.f, gated, a.interleaved, wide);
	if (BACKWARD) get_wide(d, (const T *)a.dy + row * a.f + i, a.f - i, wide);
	evaluate_form<T>(a.form, y, x, u);
	if (a.form == MT_XIELU && !BACKWARD) {
		get_slopes<T>(slope, a.slope[0], a.slope[1]);
#pragma unroll
		for (int j = 0; j < WIDE; j++) y[j] = xielu(x[j], xielu_part(x[j], &unused), slope);
	}
	put_wide((T *)a.y + row * a.f + i, y, a.f - i, wide);
#pragma unroll
	for (int j = 0; BACKWARD && j < WIDE; j++) {
		x[j] *= d[j];
		u[j] *= d[j];
	}
	if (BACKWARD) put_inputs((T *)a.dgu, x, u, row, i, a.f, gated, a.interleaved, wide);
}

/* Gated, where a part of a row's gates counts as 0: a block a row. Backward: of y = f(max(g - m - k s, 0)), d g = d' -
 * sum(d') / F (1 + k (g - m) / s), where d' is d f' above the cut, 0 below it */
template <typename T, int BACKWARD>
static __global__ void __launch_bounds__(THREADS) sparse_kernel(struct activation_args a, int wide)
{
	DYNAMIC_SHARED(float, scratch); /* of three sums */
	int64_t row = blockIdx.x, f = a.f;
	const T *gu = (const T *)a.gu + row * 2 * f, *dy = (const T *)a.dy + row * f;
	float g[WIDE], y[WIDE], x[WIDE], u[WIDE], d[WIDE], sum[3] = {0}, shift = 0, tilt = 0;
	for (int64_t i = threadIdx.x * WIDE; i < f; i += THREADS * WIDE) {
		get_wide(g, gu + i, f - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) sum[0] += g[j];
	}
	float mean = block_sum(sum[0], scratch) / (float)f;
	for (int64_t i = threadIdx.x * WIDE; i < f; i += THREADS * WIDE) {
		get_wide(g, gu + i, f - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) sum[1] += i + j < f ? (g[j] - mean) * (g[j] - mean) : 0;
	}
	float std = sqrtf(block_sum(sum[1], scratch + THREADS / 32) / (float)f), cut = mean + std * a.deviations;
	for (int pass = BACKWARD ? 0 : 1; pass < 2; pass++) {
		for (int64_t i = threadIdx.x * WIDE; i < f; i += THREADS * WIDE) {
			get_wide(g, gu + i, f - i, wide);
			get_wide(u, gu + f + i, f - i, wide);
			if (BACKWARD) get_wide(d, dy + i, f - i, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) x[j] = g[j] > cut ? g[j] - cut : 0;
			evaluate_form<T>(a.form, y, x, u);
#pragma unroll
			for (int j = 0; BACKWARD && j < WIDE; j++) {
				x[j] = g[j] > cut ? x[j] * d[j] : 0;
				u[j] *= d[j];
				if (pass == 0) sum[2] += x[j];
				x[j] -= shift + tilt * (g[j] - mean);
			}
			if (pass == 0) continue;
			put_wide((T *)a.y + row * f + i, y, f - i, wide);
			if (BACKWARD) put_inputs((T *)a.dgu, x, u, row, i, f, 1, 0, wide);
		}
		if (pass == 0) shift = block_sum(sum[2], scratch + 2 * (THREADS / 32)) / (float)f;
		if (pass == 0) tilt = std > 0 ? shift * a.deviations / std : 0;
	}
}

/* Block b computes tiles b, b + blocks, ...; partial (blocks, 2): its part of both parameters' gradients */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	xielu_backward_kernel(struct activation_args a, float *partial, unsigned tiles, unsigned across, int wide)
{
	DYNAMIC_SHARED(float, scratch); /* of two sums */
	float x[WIDE], d[WIDE], slope[2], sum[2] = {0};

	get_slopes<T>(slope, a.slope[0], a.slope[1]);
	for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
		int64_t row, i;
		row_and_column(tile, across, &row, &i);
		if (i >= a.f) continue;
		get_wide(x, (const T *)a.gu + row * a.f + i, a.f - i, wide);
		get_wide(d, (const T *)a.dy + row * a.f + i, a.f - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			float derivative, part = xielu_part(x[j], &derivative), y = xielu(x[j], part, slope);
			sum[0] += x[j] > 0 ? d[j] * part : 0;
			sum[1] += x[j] > 0 ? 0 : d[j] * part;
			x[j] = d[j] * (XIELU_BETA + (x[j] > 0 ? slope[0] : slope[1]) * derivative);
			d[j] = y;
		}
		put_wide((T *)a.y + row * a.f + i, d, a.f - i, wide);
		put_wide((T *)a.dgu + row * a.f + i, x, a.f - i, wide);
	}
	sum[0] = block_sum(sum[0], scratch);
	sum[1] = block_sum(sum[1], scratch + THREADS / 32);
	if (threadIdx.x >= 2) return;
	float parameter = get(*(const T *)(threadIdx.x ? a.slope[1] : a.slope[0]));
	/* sigmoid is the derivative of softplus */
	partial[blockIdx.x * 2 + threadIdx.x] = (threadIdx.x ? sum[1] : sum[0]) * sigmoid<float>(parameter);
}

/* ---- launchers ---- */

static int64_t blocks_across(int64_t f) { return div_up(f, THREADS * WIDE); }

void cuda_activation_forward(const struct cuda_queue *q, const struct activation_args *form)
{
	const struct activation_args a = *form;
	int64_t across = blocks_across(a.f);
	int wide = wide_rows(a.f, a.y, a.gu, NULL, NULL);
	if (a.sparse)
		BY_ELEMENT(q,
			LAUNCH((sparse_kernel<T, 0>), a.n, THREADS, 3 * (THREADS / 32) * sizeof(float), q->stream, a, wide));
	else if (a.form == MT_SWIGLU && !a.interleaved)
		BY_ELEMENT(q,
			LAUNCH(swiglu_forward_kernel<T>, a.n * across, THREADS, 0, q->stream, (T *)a.y, (const T *)a.gu, a.f,
				(unsigned)across, wide));
	else
		BY_ELEMENT(q,
			LAUNCH((activation_kernel<T, 0>), a.n * across, THREADS, 0, q->stream, a, (unsigned)across, wide));
}

static void xielu_backward(const struct cuda_queue *q, const struct activation_args *form, int wide)
{
	const struct activation_args a = *form;
	int64_t across = blocks_across(a.f), tiles = a.n * across, blocks = partial_blocks(tiles, 2);
	BY_ELEMENT(q,
		LAUNCH(xielu_backward_kernel<T>, blocks, THREADS, 2 * (THREADS / 32) * sizeof(float), q->stream, a, q->work,
			(unsigned)tiles, (unsigned)across, wide));
	for (int i = 0; i < 2; i++) cuda_sum_partials(q, a.dslope[i], a.beta, q->work + i, blocks, 2, 1);
}

void cuda_activation_backward(const struct cuda_queue *q, const struct activation_args *form)
{
	const struct activation_args a = *form;
	int64_t across = blocks_across(a.f);
	int wide = wide_rows(a.f, a.dgu, a.y, a.dy, a.gu);
	if (a.form == MT_XIELU) xielu_backward(q, &a, wide);
	else if (a.sparse)
		BY_ELEMENT(q,
			LAUNCH((sparse_kernel<T, 1>), a.n, THREADS, 3 * (THREADS / 32) * sizeof(float), q->stream, a, wide));
	else if (a.form == MT_SWIGLU && !a.interleaved)
		BY_ELEMENT(q,
			LAUNCH(swiglu_backward_kernel<T>, a.n * across, THREADS, 0, q->stream, (T *)a.dgu, (T *)a.y,
				(const T *)a.dy, (const T *)a.gu, a.f, (unsigned)across, wide));
	else
		BY_ELEMENT(q,
			LAUNCH((activation_kernel<T, 1>), a.n * across, THREADS, 0, q->stream, a, (unsigned)across, wide));
}
