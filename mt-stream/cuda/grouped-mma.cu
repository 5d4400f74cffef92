/* grouped-mma.cu: grouped GEMMs in bf16 on tensor cores
 *
 * A block computes a tile of 128 x 128 of c: its warps, 2 down and 4 across, 64 x 32 each. It goes through the sum's
 * terms 32 at a time, in one sequence. While tensor cores multiply one part of a and b, the next two are copied to
 * shared memory. There they lie as in memory, so that a copy moves 16 bytes; ldmatrix transposes what must be.
 *
 * ALIGNED 0: rows or experts' matrices do not all start at multiples of 16 bytes. Then elements are copied one by one,
 * with the same bits.
 */
#include "async.h"
#include "grouped.h"
#include "mma.h"

enum form { TRANSPOSED, STRAIGHT, SUM }; /* b_e is (n, k); (k, n); gradients of weights */

#define BM 128 /* a tile of c */
#define BN 128
#define BK 32    /* terms of a part */
#define STAGES 3 /* parts in shared memory */
#define WM 64    /* a warp's tile */
#define WN 32
#define PAD 8 /* elements after a row in shared memory, so that neighbouring rows start in different banks */

/* Elements of a part of a and b. In a sum a's rows are terms, as b's are unless it is transposed */
#define A_ACROSS (FORM == SUM ? BM + PAD : BK + PAD)
#define B_ACROSS (FORM == TRANSPOSED ? BK + PAD : BN + PAD)
#define A_PART ((FORM == SUM ? BK : BM) * A_ACROSS)
#define B_PART ((FORM == TRANSPOSED ? BN : BK) * B_ACROSS)

struct tile { /* of c, and what it is computed from */
	const struct bf16 *a, *b;
	int rows, columns; /* that there are, BM and BN at most */
	int64_t terms;
};

static __device__ __forceinline__ int at_most(int64_t n, int most) { return n < most ? (int)n : most; }

/* to (DOWN, ACROSS) = from, of which `rows` and `columns` exist; zeros beyond */
template <int DOWN, int ACROSS, int ALIGNED>
static __device__ __forceinline__ void copy_part(struct bf16 *to, const struct bf16 *from, int64_t ld, int rows,
	int columns)
{
	const struct vec16 zeros = {{0, 0, 0, 0}};
#pragma unroll
	for (int i = threadIdx.x; i < DOWN * ACROSS / 8; i += THREADS) {
		int row = i / (ACROSS / 8), column = i % (ACROSS / 8) * 8;
		int left = row >= rows || column >= columns ? 0 : columns - column < 8 ? columns - column : 8;
		struct bf16 *at = to + row * (ACROSS + PAD) + column;
		if (ALIGNED && left == 8) copy16_async(at, from + row * ld + column);
		else if (left == 0) store16_shared(at, zeros);
		else {
#pragma unroll
			for (int j = 0; j < 8; j++) at[j].bits = j < left ? from[row * ld + column + j].bits : 0;
		}
	}
}

/* Begin to copy the terms from k0 on */
template <int FORM, int ALIGNED>
static __device__ __forceinline__ void copy_terms(struct bf16 *a, const struct grouped_gemm_args *g,
	const struct tile *p, int64_t k0)
{
	struct bf16 *b = a + A_PART;
	int left = at_most(p->terms - k0, BK);
	if (FORM == SUM) copy_part<BK, BM, ALIGNED>(a, p->a + k0 * g->lda, g->lda, left, p->rows);
	else copy_part<BM, BK, ALIGNED>(a, p->a + k0, g->lda, p->rows, left);
	if (FORM == TRANSPOSED) copy_part<BN, BK, ALIGNED>(b, p->b + k0, g->ldb, p->columns, left);
	else copy_part<BK, BN, ALIGNED>(b, p->b + k0 * g->ldb, g->ldb, left, p->columns);
}

/* c (WM, WN) += the products of a part; a and b start at the warp's rows and columns */
template <int FORM>
static __device__ __forceinline__ void multiply(float c[WM / 16][WN / 8][4], const struct bf16 *a, const struct bf16 *b)
{
#pragma unroll
	for (int k = 0; k < BK; k += 16) {
		uint32_t x[4], y[WN / 16][4];
#pragma unroll
		for (int n = 0; n < WN / 16; n++)
			if (FORM == TRANSPOSED) load_b_rows(y[n], b + n * 16 * B_ACROSS + k, B_ACROSS);
			else load_b(y[n], b + k * B_ACROSS + n * 16, B_ACROSS);
#pragma unroll
		for (int m = 0; m < WM / 16; m++) {
			if (FORM == SUM) load_a_columns(x, a + k * A_ACROSS + m * 16, A_ACROSS);
			else load_a(x, a + m * 16 * A_ACROSS + k, A_ACROSS);
#pragma unroll
			for (int n = 0; n < WN / 8; n++) mma(c[m][n], x, y[n / 2] + n % 2 * 2);
		}
	}
}

/* c (WM, WN) += all products. shared: STAGES parts */
template <int FORM, int ALIGNED>
static __device__ __forceinline__ void tile_sum(float c[WM / 16][WN / 8][4], const struct grouped_gemm_args *g,
	const struct tile *p, struct bf16 *shared)
{
	int warp = threadIdx.x / 32, m = warp / (BN / WN) * WM, n = warp % (BN / WN) * WN;
	int parts = (int)((p->terms + BK - 1) / BK), at = 0,
		next_at = STAGES - 1; /* places of parts i and i + STAGES - 1 */
#pragma unroll
	for (int i = 0; i < STAGES - 1; i++) {
		if (i < parts) copy_terms<FORM, ALIGNED>(shared + i * (A_PART + B_PART), g, p, i * BK);
		copies_commit();
	}
#pragma unroll 1
	for (int i = 0; i < parts; i++) {
		const struct bf16 *a = shared + at * (A_PART + B_PART), *b = a + A_PART;
		int next = i + STAGES - 1;
		copies_wait<STAGES - 2>();
		__syncthreads(); /* part i is there for all, and all have used part i - 1, whose place the next copy takes */
		if (next < parts) copy_terms<FORM, ALIGNED>(shared + next_at * (A_PART + B_PART), g, p, (int64_t)next * BK);
		copies_commit();
		if (m < p->rows && n < p->columns)
			multiply<FORM>(c, FORM == SUM ? a + m : a + m * A_ACROSS, FORM == TRANSPOSED ? b + n * B_ACROSS : b + n);
		at = at == STAGES - 1 ? 0 : at + 1;
		next_at = next_at == STAGES - 1 ? 0 : next_at + 1;
	}
}

/* two neighbouring elements, of which `left` exist; `pair`: at once */
static __device__ __forceinline__ void put_two(struct bf16 *to, float x, float y, int left, int pair)
{
	if (pair && left >= 2) *(uint32_t *)to = pack_bf16(x, y);
	else {
		if (left >= 1) put(to, x);
		if (left >= 2) put(to + 1, y);
	}
}

static __device__ __forceinline__ void add_two(float *to, float x, float y, float beta, int left, int pair)
{
	if (pair && left >= 2) {
		struct vec8 v = {{0, 0}};
		if (beta != 0) v = *(const struct vec8 *)to;
		x += beta != 0 ? beta * as_float(v.w[0]) : 0;
		y += beta != 0 ? beta * as_float(v.w[1]) : 0;
		v.w[0] = as_bits(x);
		v.w[1] = as_bits(y);
		*(struct vec8 *)to = v;
		return;
	}
	if (left >= 1) to[0] = beta != 0 ? x + beta * to[0] : x;
	if (left >= 2) to[1] = beta != 0 ? y + beta * to[1] : y;
}

/* The warp's part of the tile to c, which starts at the tile */
template <int FORM, int ALIGNED>
static __device__ __forceinline__ void tile_store(const float sum[WM / 16][WN / 8][4],
	const struct grouped_gemm_args *g, const struct tile *p, void *c, const struct bf16 *bias)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int row0 = warp / (BN / WN) * WM + lane / 4, column0 = warp % (BN / WN) * WN + lane % 4 * 2;
#pragma unroll
	for (int n = 0; n < WN / 8; n++) {
		int column = column0 + n * 8;
		int left = p->columns - column;
		float add[2] = {bias && left > 0 ? get(bias[column]) : 0, bias && left > 1 ? get(bias[column + 1]) : 0};
#pragma unroll
		for (int i = 0; i < WM / 8; i++) {
			const float *two = sum[i / 2][n] + i % 2 * 2;
			int row = row0 + i * 8;
			int64_t at = row * g->ldc + column;
			if (row >= p->rows) continue;
			if (FORM == SUM) add_two((float *)c + at, two[0], two[1], g->beta, left, ALIGNED);
			else put_two((struct bf16 *)c + at, two[0] + add[0], two[1] + add[1], left, ALIGNED);
		}
	}
}

/* down, across: tiles of an expert's c, `down` in sums only */
template <int FORM, int ALIGNED>
static __global__ void __launch_bounds__(THREADS, 2)
	grouped_gemm_mma(struct grouped_gemm_args g, int64_t down, int64_t across)
{
	DYNAMIC_SHARED(struct bf16, shared);
	float sum[WM / 16][WN / 8][4] = {{{0}}};
	int64_t column = blockIdx.x % across * BN, tile = blockIdx.x / across;
	struct tile p = {(const struct bf16 *)g.a, (const struct bf16 *)g.b, 0, at_most(g.n - column, BN), g.k};

	if (FORM == SUM) {
		int64_t e = tile / down, i = tile % down * BM, first = g.first[e];
		p.a += first * g.lda + i;
		p.b += first * g.ldb + column;
		p.rows = at_most(g.k - i, BM);
		p.terms = (int64_t)g.first[e + 1] - first;
		if (p.terms == 0 && g.beta != 0) return;
		tile_sum<FORM, ALIGNED>(sum, &g, &p, shared);
		tile_store<FORM, ALIGNED>(sum, &g, &p, (float *)g.c + e * g.stride + i * g.ldc + column, NULL);
	} else {
		struct expert_rows e = find_expert_rows(g.first, g.experts, tile, BM);
		if (e.expert < 0) return;
		p.a += e.row * g.lda;
		p.b += e.expert * g.stride + (FORM == TRANSPOSED ? column * g.ldb : column);
		p.rows = at_most(e.end - e.row, BM);
		tile_sum<FORM, ALIGNED>(sum, &g, &p, shared);
		tile_store<FORM, ALIGNED>(sum, &g, &p, (struct bf16 *)g.c + e.row * g.ldc + column,
			g.bias ? (const struct bf16 *)g.bias + e.expert * g.bias_stride + column : NULL);
	}
}

/* ---- launchers ---- */

template <int FORM, int ALIGNED>
static void grouped(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	int64_t down = div_up(a->k, BM), across = div_up(a->n, BN);
	int64_t tiles = FORM == SUM ? a->experts * down : expert_tiles(a, BM);
	LAUNCH((grouped_gemm_mma<FORM, ALIGNED>), tiles * across, THREADS, STAGES * (A_PART + B_PART) * sizeof(struct bf16),
		q->stream, *a, down, across);
}

template <int FORM>
static void by_alignment(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	if (wide_rows(a->lda | a->ldb | a->ldc | a->stride, a->a, a->b, a->c, NULL)) grouped<FORM, 1>(q, a);
	else grouped<FORM, 0>(q, a);
}

void grouped_gemm_by_mma(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	if (a->sum) by_alignment<SUM>(q, a);
	else if (a->trans_b) by_alignment<TRANSPOSED>(q, a);
	else by_alignment<STRAIGHT>(q, a);
}

#define KERNELS(form) (const void *)grouped_gemm_mma<form, 0>, (const void *)grouped_gemm_mma<form, 1>

cudaError_t grouped_mma_prepare(void)
{
	const void *kernels[] = {KERNELS(TRANSPOSED), KERNELS(STRAIGHT), KERNELS(SUM)};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
