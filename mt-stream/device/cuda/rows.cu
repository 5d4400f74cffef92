/* rows.cu: sums over partials, bias gradients, rounding, sums and factors element by element */
#include "common.h"
#include "ops/gemm.h"
#include "ops/rows.h"

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

/* ---- bias gradients: column sums of dy (m, n) ---- */

#define BIAS_ROWS 64 /* fewest rows of a block */

/* partial (parts, n): of `rows` rows each */
template <typename T>
static __global__ void __launch_bounds__(THREADS) bias_backward_kernel(float *partial, const T *dy, int64_t m,
	int64_t n, int64_t ld, int64_t rows, int64_t column_blocks, int wide)
{
	DYNAMIC_SHARED(float, sums); /* (warps, 32 * WIDE) */
	int64_t part = blockIdx.x / column_blocks, first = part * rows, end = first + rows < m ? first + rows : m;
	int64_t from = blockIdx.x % column_blocks * 32 * WIDE, column = from + threadIdx.x;
	float total = column_sum(sums, dy, first, end, ld, from, n, wide);
	if (column < n) partial[part * n + column] = total;
}

void cuda_bias_backward(const struct cuda_queue *q, const struct bias_backward_args *a)
{
	int64_t m = a->m, n = a->n, columns = div_up(n, 32 * WIDE), parts = partial_blocks(div_up(m, BIAS_ROWS), n);
	int64_t rows = div_up(m, parts);
	int wide = n % WIDE == 0 && wide_rows(a->ld, a->dy, NULL, NULL, NULL);
	parts = div_up(m, rows);
	BY_ELEMENT(q,
		LAUNCH(bias_backward_kernel<T>, columns * parts, THREADS, THREADS * WIDE * sizeof(float), q->stream, q->work,
			(const T *)a->dy, m, n, a->ld, rows, columns, wide));
	cuda_sum_partials(q, a->db, a->beta, q->work, parts, n, n);
}

static __global__ void __launch_bounds__(THREADS)
	add_bias_kernel(float *c, const struct bf16 *bias, int64_t n, int64_t ldc, int64_t across)
{
	int64_t column = blockIdx.x % across * THREADS + threadIdx.x;
	if (column < n) c[blockIdx.x / across * ldc + column] += get(bias[column]);
}

void cuda_add_bias(const struct cuda_queue *q, const struct gemm_args *g)
{
	int64_t across = div_up(g->n, THREADS);
	LAUNCH(add_bias_kernel, g->m * across, THREADS, 0, q->stream, (float *)g->c, (const struct bf16 *)g->bias, g->n,
		g->ldc, across);
}

/* ---- rounding, and its inverse ---- */

/* T is bf16: fp32 runs have no lo */
static __global__ void __launch_bounds__(THREADS)
	join_kernel(float *dst, const struct bf16 *w, const int16_t *lo, int64_t n)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
	if (i < n) dst[i] = joined(get(w[i]), lo[i]);
}

void cuda_join(const struct cuda_queue *q, const struct join_args *a)
{
	LAUNCH(join_kernel, div_up(a->n, THREADS), THREADS, 0, q->stream, a->dst, (const struct bf16 *)a->w, a->lo, a->n);
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

/* ---- copies of host memory, where a GPU uses the host's page tables ---- */

#define COPY_BLOCKS \
	32 /* with 16 bytes of each thread on their way: enough for NVLink-C2C, a quarter of the GPU at most */

/* n bytes; vectors: of 16 bytes, the rest by pairs of bytes */
static __global__ void __launch_bounds__(THREADS) copy_kernel(char *dst, const char *src, int64_t n, int64_t vectors)
{
	int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;
	for (int64_t i = first; i < vectors; i += step) ((float4 *)dst)[i] = ((const float4 *)src)[i];
	for (int64_t i = 16 * vectors + 2 * first; i < n; i += 2 * step) {
		dst[i] = src[i];
		if (i + 1 < n) dst[i + 1] = src[i + 1];
	}
}

void cuda_copy(const struct cuda_queue *q, void *dst, const void *src, size_t bytes)
{
	int64_t n = (int64_t)bytes, vectors = ((uintptr_t)dst | (uintptr_t)src) % 16 ? 0 : n / 16;
	LAUNCH(copy_kernel, least(div_up(n, 16 * THREADS), COPY_BLOCKS), THREADS, 0, q->stream, (char *)dst,
		(const char *)src, n, vectors);
}

/* ---- sums and factors ---- */

/* y = (add + scale x) factor; y may be x or add. Threads of a row: `per` */
template <typename T>
static __global__ void __launch_bounds__(THREADS) scaled_add_kernel(struct scaled_add_args a, int64_t per, int aligned)
{
	int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = a.ld ? t / per : 0, i = (t - row * per) * WIDE;
	int64_t left = (a.ld ? a.width : a.n) - i, at = row * a.ld + i;
	int wide = aligned && left >= WIDE;
	float v[WIDE], sum[WIDE] = {0}, f = a.factor ? get(*(const T *)a.factor) : 1.0f;
	if (left <= 0 || row * a.width >= a.n) return;
	get_wide(v, (const T *)a.x + at, left, wide);
	if (a.add) get_wide(sum, (const T *)a.add + at, left, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) v[j] = (sum[j] + a.scale * v[j]) * f;
	put_wide((T *)a.y + at, v, left, wide);
}

void cuda_scaled_add(const struct cuda_queue *q, const struct scaled_add_args *a)
{
	int64_t width = a->width ? a->width : a->n, per = div_up(width, WIDE);
	int aligned = wide_rows(WIDE | a->ld, a->y, a->x, a->add, NULL);
	BY_ELEMENT(q,
		LAUNCH(scaled_add_kernel<T>, div_up(a->n / width * per, THREADS), THREADS, 0, q->stream, *a, per, aligned));
}

/* ---- columns of matrices ---- */

/* A thread copies WIDE elements of a row, which has `parts` of these */
template <typename T>
static __global__ void __launch_bounds__(THREADS) columns_kernel(struct columns_args a, int64_t parts, int aligned)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / parts, column = i % parts * WIDE;
	if (row >= a.n) return;
	T *dst = (T *)a.dst + row * a.dst_ld + column;
	const T *src = (const T *)a.src + row * a.src_ld + column;
	int64_t left = a.width - column;
	int wide = aligned && left >= WIDE;
	float v[WIDE], sum[WIDE] = {0};
	get_wide(v, src, left, wide);
	if (a.add) get_wide(sum, dst, left, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) v[j] += sum[j];
	put_wide(dst, v, left, wide);
}

void cuda_columns(const struct cuda_queue *q, const struct columns_args *a)
{
	int64_t parts = div_up(a->width, WIDE);
	int aligned = a->dst_ld % WIDE == 0 && wide_rows(a->src_ld, a->dst, a->src, NULL, NULL);
	BY_ELEMENT(q, LAUNCH(columns_kernel<T>, div_up(a->n * parts, THREADS), THREADS, 0, q->stream, *a, parts, aligned));
}
