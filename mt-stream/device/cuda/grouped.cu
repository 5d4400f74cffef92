/* grouped.cu: grouped GEMMs in fp32, and the gradients of experts' biases */
#include "grouped.h"
#include "plain.h"

/* ---- fp32 ---- */

/* across: tiles of a row of c */
static __global__ void __launch_bounds__(THREADS) grouped_gemm_kernel(struct grouped_gemm_args a, int64_t across)
{
	DYNAMIC_SHARED(float, tiles);
	struct expert_rows e = find_expert_rows(a.first, a.experts, blockIdx.x / across, PLAIN_TILE);
	if (e.expert < 0) return;
	struct gemm_args g = gemm_of_expert(&a, 0, e.expert, e.row, e.end - e.row, sizeof(float));
	plain_tile<float, float>(&g, 0, blockIdx.x % across * PLAIN_TILE, tiles);
}

/* down, across: tiles of an expert's c */
static __global__ void __launch_bounds__(THREADS)
	grouped_sum_kernel(struct grouped_gemm_args a, int64_t down, int64_t across)
{
	DYNAMIC_SHARED(float, tiles);
	int64_t e = blockIdx.x / (down * across), tile = blockIdx.x % (down * across), row = a.first[e];
	struct gemm_args g = gemm_of_expert(&a, 1, e, row, (int64_t)a.first[e + 1] - row, sizeof(float));
	if (g.k == 0 && a.beta != 0) return;
	plain_tile<float, float>(&g, tile / across * PLAIN_TILE, tile % across * PLAIN_TILE, tiles);
}

void cuda_grouped_gemm(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	int64_t down = div_up(a->k, PLAIN_TILE), across = div_up(a->n, PLAIN_TILE);
	if (q->elem == 2) {
		if (!q->wgmma_blocks || !grouped_gemm_by_wgmma(q, a)) grouped_gemm_by_mma(q, a);
	} else if (a->sum)
		LAUNCH(grouped_sum_kernel, a->experts * down * across, THREADS, PLAIN_SHARED, q->stream, *a, down, across);
	else
		LAUNCH(grouped_gemm_kernel, expert_tiles(a, PLAIN_TILE) * across, THREADS, PLAIN_SHARED, q->stream, *a, across);
}

/* ---- bias gradients: column sums of each expert's rows of dy ---- */

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	grouped_bias_kernel(struct grouped_bias_backward_args a, int64_t column_blocks, int wide)
{
	DYNAMIC_SHARED(float, sums); /* (warps, 32 * WIDE) */
	int64_t e = blockIdx.x / column_blocks, from = blockIdx.x % column_blocks * 32 * WIDE;
	float *db = a.db + e * a.stride + from + threadIdx.x;
	float total = column_sum(sums, (const T *)a.dy, a.first[e], a.first[e + 1], a.n, from, a.n, wide);
	if (from + threadIdx.x < a.n) *db = a.beta != 0 ? a.beta * *db + total : total;
}

void cuda_grouped_bias_backward(const struct cuda_queue *q, const struct grouped_bias_backward_args *a)
{
	int64_t columns = div_up(a->n, 32 * WIDE);
	int wide = wide_rows(a->n, a->dy, NULL, NULL, NULL);
	BY_ELEMENT(q,
		LAUNCH(grouped_bias_kernel<T>, a->experts * columns, THREADS, THREADS * WIDE * sizeof(float), q->stream, *a,
			columns, wide));
}
