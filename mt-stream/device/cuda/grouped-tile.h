/* grouped-tile.h: what a block of a grouped GEMM on tensor cores computes, and how its warps store it */
#ifndef MT_STREAM_CUDA_GROUPED_TILE_H
#define MT_STREAM_CUDA_GROUPED_TILE_H

#include "grouped.h"

enum form { TRANSPOSED, STRAIGHT, SUM }; /* b_e is (n, k); (k, n); gradients of weights */

#define BM 128 /* a tile of c */
#define BN 256

/* In a sum a's rows are terms, as b's are unless it is transposed */
#define A_BY_TERMS (FORM == SUM)
#define B_BY_TERMS (FORM != TRANSPOSED)

struct tile {            /* of c */
	int64_t expert;      /* -1: there is none */
	int64_t row, column; /* of an expert's c in a sum, else of all rows */
	int64_t term;        /* the first one, of all rows in a sum */
	int rows, columns;   /* that there are, BM and BN at most */
	int terms;
};

static __device__ __forceinline__ int at_most(int64_t n, int most) { return n < most ? (int)n : most; }

/* Tile `number`. down, across: tiles of an expert's c, `down` in sums only */
template <int FORM>
static __device__ __forceinline__ struct tile tile_find(const struct grouped_gemm_args *g, int64_t number, int64_t down,
	int64_t across)
{
	int64_t column = number % across * BN, at = number / across;
	struct tile t = {-1, 0, column, 0, 0, at_most(g->n - column, BN), (int)g->k};
	if (FORM == SUM) {
		t.expert = at / down;
		t.row = at % down * BM;
		t.term = g->first[t.expert];
		t.rows = at_most(g->k - t.row, BM);
		t.terms = (int)(g->first[t.expert + 1] - t.term);
	} else {
		struct expert_rows e = find_expert_rows(g->first, g->experts, at, BM);
		t.expert = e.expert;
		t.row = e.row;
		t.rows = at_most(e.end - e.row, BM);
	}
	return t;
}

/* ---- results: a warp's 16 M rows and 8 N columns, of which a lane has two neighbouring elements of every 8 columns
 * (mma.h) ---- */

/* w[j] of lane i of four = w[i] of lane j */
static __device__ __forceinline__ void transpose_four(uint32_t w[4])
{
	int lane = threadIdx.x % 4;
#pragma unroll
	for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			if (j & bit) continue;
			uint32_t got = __shfl_xor_sync(FULL, lane & bit ? w[j] : w[j | bit], bit);
			if (lane & bit) w[j] = got;
			else w[j | bit] = got;
		}
}

/* To c, which starts at the tile; the warp's part starts at (row0, column0). ALIGNED: four lanes exchange elements, so
 * that each stores 8 neighbouring ones */
template <int ALIGNED, int M, int N>
static __device__ __forceinline__ void tile_store(const float sum[M][N][4], const struct tile *p, int row0, int column0,
	struct bf16 *c, int64_t ldc, const struct bf16 *bias)
{
	int lane = threadIdx.x % 32;
	row0 += lane / 4;
#pragma unroll
	for (int n = 0; n < N; n += 4) {
		int wide = column0 + n * 8 + lane % 4 * 8, column = column0 + n * 8 + lane % 4 * 2;
		float add[8];
#pragma unroll
		for (int j = 0; j < 8; j++) {
			int at = column + j / 2 * 8 + j % 2;
			add[j] = bias && at < p->columns ? get(bias[at]) : 0;
		}
#pragma unroll
		for (int i = 0; i < 2 * M; i++) {
			struct vec16 v;
			int row = row0 + i * 8;
			struct bf16 *to = c + row * ldc;
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const float *two = sum[i / 2][n + j] + i % 2 * 2;
				v.w[j] = pack_bf16(two[0] + add[2 * j], two[1] + add[2 * j + 1]);
			}
			if (ALIGNED) transpose_four(v.w);
			if (row >= p->rows) continue;
			if (!ALIGNED) {
#pragma unroll
				for (int j = 0; j < 8; j++) {
					int at = column + j / 2 * 8 + j % 2;
					if (at < p->columns) to[at].bits = (uint16_t)(v.w[j / 2] >> j % 2 * 16);
				}
			} else if (wide < p->columns) store16(to + wide, v);
		}
	}
}

/* Two neighbouring elements, of which `left` exist; `pair`: at once, both or none */
static __device__ __forceinline__ void get_two(float v[2], const float *from, int left, int pair)
{
	if (pair && left > 0) {
		struct vec8 two = *(const struct vec8 *)from;
		v[0] = as_float(two.w[0]);
		v[1] = as_float(two.w[1]);
	} else {
		if (left > 0) v[0] = from[0];
		if (left > 1) v[1] = from[1];
	}
}

static __device__ __forceinline__ void put_two(float *to, float x, float y, int left, int pair)
{
	struct vec8 two = {{as_bits(x), as_bits(y)}};
	if (pair && left > 0) *(struct vec8 *)to = two;
	else {
		if (left > 0) to[0] = x;
		if (left > 1) to[1] = y;
	}
}

/* The same for gradients of weights, in fp32: c = beta c + the tile. Of `AT_ONCE` times 8 columns all elements are
 * loaded before one is stored, so that a warp waits for memory a few times, not once a pair. */
template <int ALIGNED, int M, int N, int AT_ONCE>
static __device__ __forceinline__ void tile_add(const float sum[M][N][4], const struct tile *p, int row0, int column0,
	float *c, int64_t ldc, float beta)
{
	int lane = threadIdx.x % 32;
	row0 += lane / 4;
	column0 += lane % 4 * 2;
#pragma unroll
	for (int n = 0; n < N; n += AT_ONCE) {
		float v[2 * M][AT_ONCE][2] = {{{0}}};
#pragma unroll
		for (int store = 0; store < 2; store++)
#pragma unroll
			for (int i = 0; i < 2 * M; i++)
#pragma unroll
				for (int j = 0; j < AT_ONCE; j++) {
					const float *two = sum[i / 2][n + j] + i % 2 * 2;
					int row = row0 + i * 8, left = p->columns - (column0 + (n + j) * 8);
					float *to = c + row * ldc + column0 + (n + j) * 8;
					if (row >= p->rows || (!store && beta == 0)) left = 0;
					if (store) put_two(to, two[0] + beta * v[i][j][0], two[1] + beta * v[i][j][1], left, ALIGNED);
					else get_two(v[i][j], to, left, ALIGNED);
				}
	}
}

/* The warp's part to where the form wants it */
template <int FORM, int ALIGNED, int M, int N, int AT_ONCE>
static __device__ __forceinline__ void tile_out(const float sum[M][N][4], const struct grouped_gemm_args *g,
	const struct tile *t, int row0, int column0)
{
	if (FORM == SUM)
		tile_add<ALIGNED, M, N, AT_ONCE>(sum, t, row0, column0,
			(float *)g->c + t->expert * g->stride + t->row * g->ldc + t->column, g->ldc, g->beta);
	else
		tile_store<ALIGNED, M, N>(sum, t, row0, column0, (struct bf16 *)g->c + t->row * g->ldc + t->column, g->ldc,
			g->bias ? (const struct bf16 *)g->bias + t->expert * g->bias_stride + t->column : NULL);
}

/* ---- launchers ---- */

template <int FORM>
static int64_t tiles_of(const struct grouped_gemm_args *a, int64_t down)
{
	return FORM == SUM ? a->experts * down : expert_tiles(a, BM);
}

#endif
