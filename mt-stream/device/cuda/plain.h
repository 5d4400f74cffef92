/* plain.h: GEMMs without tensor cores: a tile of 32 x 32, 32 deep; a thread has 4 rows of one column */
#ifndef MT_STREAM_CUDA_PLAIN_H
#define MT_STREAM_CUDA_PLAIN_H

#include "common.h"
#include "ops/gemm.h"

#define PLAIN_TILE 32
#define PLAIN_ACROSS (PLAIN_TILE + 1) /* pitch of a tile's row: no two rows begin in the same bank */
#define PLAIN_SHARED (2 * PLAIN_TILE * PLAIN_ACROSS * sizeof(float))

/* The tile of c that starts at row i0 and column j0; tiles: PLAIN_SHARED bytes of shared memory */
template <typename T, typename C>
static __device__ __forceinline__ void plain_tile(const struct gemm_args *g, int64_t i0, int64_t j0, float *tiles)
{
	float *a = tiles, *b = tiles + PLAIN_TILE * PLAIN_ACROSS, sum[4] = {0};
	int x = threadIdx.x % PLAIN_TILE, y = threadIdx.x / PLAIN_TILE;
	for (int64_t k0 = 0; k0 < g->k; k0 += PLAIN_TILE) {
		for (int r = y; r < PLAIN_TILE; r += THREADS / PLAIN_TILE) {
			/* neighbouring lanes read neighbouring elements: of a (i, k), or transposed (k, i); of b (k, j), or (j,
			 * k) */
			int64_t i = g->trans_a ? i0 + x : i0 + r, k = g->trans_a ? k0 + r : k0 + x;
			float v = i < g->m && k < g->k ? get(((const T *)g->a)[g->trans_a ? k * g->lda + i : i * g->lda + k]) : 0;
			a[g->trans_a ? x * PLAIN_ACROSS + r : r * PLAIN_ACROSS + x] = v; /* (i, k) */

			int64_t j = g->trans_b ? j0 + r : j0 + x;
			k = g->trans_b ? k0 + x : k0 + r;
			v = j < g->n && k < g->k ? get(((const T *)g->b)[g->trans_b ? j * g->ldb + k : k * g->ldb + j]) : 0;
			b[g->trans_b ? x * PLAIN_ACROSS + r : r * PLAIN_ACROSS + x] = v; /* (k, j) */
		}
		__syncthreads();
		for (int k = 0; k < PLAIN_TILE; k++)
#pragma unroll
			for (int r = 0; r < 4; r++)
				sum[r] += a[(y + r * (THREADS / PLAIN_TILE)) * PLAIN_ACROSS + k] * b[k * PLAIN_ACROSS + x];
		__syncthreads();
	}
	for (int r = 0; r < 4; r++) {
		int64_t i = i0 + y + r * (THREADS / PLAIN_TILE), j = j0 + x;
		if (i >= g->m || j >= g->n) continue;
		C *c = (C *)g->c + i * g->ldc + j;
		float v = sum[r] + (g->bias ? get(((const T *)g->bias)[j]) : 0);
		if (g->add) v += get(((const C *)g->add)[i * g->ldc + j]);
		put(c, g->beta != 0 ? v + g->beta * get(*c) : v);
	}
}

#endif
