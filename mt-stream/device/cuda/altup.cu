/* altup.cu: the copies of AltUp: their mixtures, and magnitudes */
#include "common.h"
#include "mt/model.h"
#include "ops/altup.h"

/* ---- mixtures. MOST: copies at most ---- */

template <typename T, int MOST>
static __device__ __forceinline__ void get_copies(float v[MOST][WIDE], const T *x, int copies, int64_t h, int64_t i,
	int wide)
{
#pragma unroll
	for (int s = 0; s < MOST; s++)
		if (s < copies) get_wide(v[s], x + s * h + i, h - i, wide);
}

/* WIDE columns of a row's copies a thread, `across` threads a row */
template <typename T, int MOST>
static __global__ void __launch_bounds__(THREADS) mix_forward_kernel(struct mix_args a, int64_t across, int wide)
{
	int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = at / across, i = at % across * WIDE, h = a.h;
	int copies = (int)a.copies;
	if (row >= a.n) return;
	const T *c = (const T *)a.c + row * mix_factors(&a);
	float in[MOST][WIDE], y[WIDE], sum[WIDE];
	get_copies<T, MOST>(in, (const T *)a.x + row * copies * h, copies, h, i, wide);
	if (a.y) get_wide(y, (const T *)a.y + row * h + i, h - i, wide);
#pragma unroll
	for (int s = 0; s < MOST; s++) {
		if (s >= copies) break;
#pragma unroll
		for (int k = 0; k < WIDE; k++) sum[k] = a.y ? in[s][k] + (1 + get(c[s])) * (y[k] - in[0][k]) : in[s][k];
#pragma unroll
		for (int j = 0; j < MOST; j++) {
			if (a.y || j >= copies) break;
			float by = get(c[s * copies + j]);
#pragma unroll
			for (int k = 0; k < WIDE; k++) sum[k] += by * in[j][k];
		}
		put_wide((T *)a.out + (row * copies + s) * h + i, sum, h - i, wide);
	}
}

/* A block a row. scratch: of MOST MOST sums */
template <typename T, int MOST>
static __global__ void __launch_bounds__(THREADS) predict_backward_kernel(struct mix_args a, int wide)
{
	DYNAMIC_SHARED(float, scratch);
	int64_t row = blockIdx.x, h = a.h;
	int copies = (int)a.copies;
	const T *c = (const T *)a.c + row * copies * copies;
	float in[MOST][WIDE], d[MOST][WIDE], back[WIDE], sum[MOST][MOST] = {{0}};
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_copies<T, MOST>(in, (const T *)a.x + row * copies * h, copies, h, i, wide);
		get_copies<T, MOST>(d, (const T *)a.dout + row * copies * h, copies, h, i, wide);
#pragma unroll
		for (int j = 0; j < MOST; j++) {
			if (j >= copies) break;
#pragma unroll
			for (int k = 0; k < WIDE; k++) back[k] = d[j][k];
#pragma unroll
			for (int s = 0; s < MOST; s++) {
				if (s >= copies) break;
				float by = get(c[s * copies + j]);
#pragma unroll
				for (int k = 0; k < WIDE; k++) {
					sum[s][j] += d[s][k] * in[j][k];
					back[k] += by * d[s][k];
				}
			}
			put_wide((T *)a.dx + (row * copies + j) * h + i, back, h - i, wide);
		}
	}
#pragma unroll
	for (int s = 0; s < MOST; s++)
#pragma unroll
		for (int j = 0; j < MOST; j++) {
			if (s >= copies || j >= copies) break;
			float all = block_sum(sum[s][j], scratch + (s * MOST + j) * (THREADS / 32));
			if (threadIdx.x == 0) put((T *)a.dc + (row * copies + s) * copies + j, all);
		}
}

/* The same. scratch: of MOST sums */
template <typename T, int MOST>
static __global__ void __launch_bounds__(THREADS) correct_backward_kernel(struct mix_args a, int wide)
{
	DYNAMIC_SHARED(float, scratch);
	int64_t row = blockIdx.x, h = a.h;
	int copies = (int)a.copies;
	const T *c = (const T *)a.c + row * copies;
	float d[MOST][WIDE], x[WIDE], y[WIDE], all[WIDE], sum[MOST] = {0};
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_copies<T, MOST>(d, (const T *)a.dout + row * copies * h, copies, h, i, wide);
		get_wide(x, (const T *)a.x + row * copies * h + i, h - i, wide);
		get_wide(y, (const T *)a.y + row * h + i, h - i, wide);
#pragma unroll
		for (int k = 0; k < WIDE; k++) all[k] = 0;
#pragma unroll
		for (int s = 0; s < MOST; s++) {
			if (s >= copies) break;
			float by = 1 + get(c[s]);
#pragma unroll
			for (int k = 0; k < WIDE; k++) {
				sum[s] += d[s][k] * (y[k] - x[k]);
				all[k] += by * d[s][k];
			}
			if (s) put_wide((T *)a.dx + (row * copies + s) * h + i, d[s], h - i, wide);
		}
#pragma unroll
		for (int k = 0; k < WIDE; k++) d[0][k] -= all[k];
		put_wide((T *)a.dx + row * copies * h + i, d[0], h - i, wide);
		put_wide((T *)a.dy + row * h + i, all, h - i, wide);
	}
#pragma unroll
	for (int s = 0; s < MOST; s++) {
		if (s >= copies) break;
		float total = block_sum(sum[s], scratch + s * (THREADS / 32));
		if (threadIdx.x == 0) put((T *)a.dc + row * copies + s, total);
	}
}

/* ---- magnitudes: a block a row ---- */

template <typename T, int BACKWARD>
static __global__ void __launch_bounds__(THREADS) magnitude_kernel(struct magnitude_args a, int wide)
{
	DYNAMIC_SHARED(float, scratch); /* of three sums */
	int64_t row = blockIdx.x, h = a.h;
	const T *x = (const T *)a.x + row * a.x_ld, *p = (const T *)a.p + row * a.p_ld;
	const T *dy = (const T *)a.dy + (BACKWARD ? row * a.dy_ld : 0);
	float v[WIDE], w[WIDE], d[WIDE], sum[3] = {0};
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(v, x + i, h - i, wide);
		get_wide(w, p + i, h - i, wide);
		if (BACKWARD) get_wide(d, dy + i, h - i, wide);
#pragma unroll
		for (int k = 0; k < WIDE; k++) {
			sum[0] += v[k] * v[k];
			sum[1] += w[k] * w[k];
			if (BACKWARD) sum[2] += d[k] * w[k];
		}
	}
	float wanted = sqrtf(block_sum(sum[0], scratch) / (float)h);
	float square = block_sum(sum[1], scratch + THREADS / 32) / (float)h;
	float dot = BACKWARD ? block_sum(sum[2], scratch + 2 * (THREADS / 32)) / (float)h : 0;
	float q = sqrtf(square > MAGNITUDE_LEAST ? square : MAGNITUDE_LEAST);
	float back = square >= MAGNITUDE_LEAST ? dot / square : 0, of_x = wanted > 0 ? dot / (q * wanted) : 0;
	for (int64_t i = threadIdx.x * WIDE; i < h; i += THREADS * WIDE) {
		get_wide(w, p + i, h - i, wide);
		if (BACKWARD) {
			T *dx = (T *)a.dx + row * a.x_ld + i;
			float to[WIDE];
			get_wide(v, x + i, h - i, wide);
			get_wide(d, dy + i, h - i, wide);
			get_wide(to, dx, h - i, wide);
#pragma unroll
			for (int k = 0; k < WIDE; k++) {
				to[k] += of_x * v[k];
				w[k] = d[k] - back * w[k];
			}
			put_wide(dx, to, h - i, wide);
		}
#pragma unroll
		for (int k = 0; k < WIDE; k++) w[k] *= wanted / q;
		put_wide((T *)(BACKWARD ? a.dp : a.y) + row * a.p_ld + i, w, h - i, wide);
	}
}

/* ---- launchers ---- */

#define BY_COPIES(q, a, ...) \
	do { \
		if ((a)->copies <= 4) { \
			enum { MOST = 4 }; \
			BY_BYTES((q)->elem, __VA_ARGS__); \
		} else { \
			enum { MOST = MT_ALTUP }; \
			BY_BYTES((q)->elem, __VA_ARGS__); \
		} \
	} while (0)

void cuda_mix_forward(const struct cuda_queue *q, const struct mix_args *a)
{
	int64_t across = div_up(a->h, WIDE);
	int wide = wide_rows(a->h, a->x, a->y, a->out, NULL);
	BY_COPIES(q, a,
		LAUNCH((mix_forward_kernel<T, MOST>), div_up(a->n * across, THREADS), THREADS, 0, q->stream, *a, across, wide));
}

void cuda_mix_backward(const struct cuda_queue *q, const struct mix_args *a)
{
	int wide = wide_rows(a->h, a->x, a->y, a->dout, a->dx) && wide_rows(WIDE, a->dy, NULL, NULL, NULL);
	if (a->y)
		BY_COPIES(q, a,
			LAUNCH((correct_backward_kernel<T, MOST>), a->n, THREADS, MOST * (THREADS / 32) * sizeof(float), q->stream,
				*a, wide));
	else
		BY_COPIES(q, a,
			LAUNCH((predict_backward_kernel<T, MOST>), a->n, THREADS, MOST * MOST * (THREADS / 32) * sizeof(float),
				q->stream, *a, wide));
}

void cuda_magnitude_forward(const struct cuda_queue *q, const struct magnitude_args *a)
{
	int wide = wide_rows(a->h | a->x_ld | a->p_ld, a->x, a->p, a->y, NULL);
	BY_ELEMENT(q,
		LAUNCH((magnitude_kernel<T, 0>), a->n, THREADS, 3 * (THREADS / 32) * sizeof(float), q->stream, *a, wide));
}

void cuda_magnitude_backward(const struct cuda_queue *q, const struct magnitude_args *a)
{
	int wide = wide_rows(a->h | a->x_ld | a->p_ld | a->dy_ld, a->x, a->p, a->dy, a->dp) &&
		wide_rows(WIDE, a->dx, NULL, NULL, NULL);
	BY_ELEMENT(q,
		LAUNCH((magnitude_kernel<T, 1>), a->n, THREADS, 3 * (THREADS / 32) * sizeof(float), q->stream, *a, wide));
}
