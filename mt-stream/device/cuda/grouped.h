/* grouped.h: the GEMMs of all experts of a layer as one launch. Only the device knows how many rows an expert has: the
 * grid is as large as the worst case needs, each block finds its tile by `first`, and the blocks beyond exit. */
#ifndef MT_STREAM_CUDA_GROUPED_H
#define MT_STREAM_CUDA_GROUPED_H

#include "common.h"
#include "ops/grouped.h"

struct expert_rows { /* rows row .. end - 1 of expert `expert` */
	int64_t expert, row, end;
};

/* Each expert's rows are split into tiles of `height`. Of tile number `tile` of all: its expert, its first row, and the
 * expert's last. expert -1: past the last tile. Every warp finds it by itself. */
static __device__ __forceinline__ struct expert_rows find_expert_rows(const uint32_t *first, int64_t experts,
	int64_t tile, int height)
{
	struct expert_rows g = {-1, 0, 0};
	int lane = threadIdx.x % 32;
	for (int64_t e0 = 0; e0 < experts; e0 += 32) {
		int64_t e = e0 + lane;
		int n = e < experts ? (int)((first[e + 1] - first[e] + height - 1) / height) : 0, sum = n;
#pragma unroll
		for (int lanes = 1; lanes < 32; lanes *= 2) {
			int before = __shfl_sync(FULL, sum, (lane - lanes) & 31);
			if (lane >= lanes) sum += before;
		}
		uint32_t past = __ballot_sync(FULL, tile < sum);
		int at = past ? __ffs(past) - 1 : 31;
		int before = __shfl_sync(FULL, sum - n, at), all = __shfl_sync(FULL, sum, 31);
		if (past) {
			g.expert = e0 + at;
			g.row = first[g.expert] + (tile - before) * height;
			g.end = first[g.expert + 1];
			return g;
		}
		tile -= all;
	}
	return g;
}

/* The most tiles of `height` that experts' rows can make */
static inline int64_t expert_tiles(const struct grouped_gemm_args *a, int height)
{
	return a->rows / height + least(a->experts, a->rows);
}

/* Do all rows start at multiples of 16 bytes? */
static inline int grouped_aligned(const struct grouped_gemm_args *a)
{
	return wide_rows(a->n | a->k | a->lda | a->ldb | a->ldc | a->stride, a->a, a->b, a->c, NULL);
}

/* In bf16, on tensor cores (grouped-mma.cu; grouped-wgmma.cu: only aligned ones, false: it was not launched) */
void grouped_gemm_by_mma(const struct cuda_queue *, const struct grouped_gemm_args *);
bool grouped_gemm_by_wgmma(const struct cuda_queue *, const struct grouped_gemm_args *);
cudaError_t grouped_mma_prepare(void);

#endif
