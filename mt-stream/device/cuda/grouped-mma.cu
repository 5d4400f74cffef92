/* grouped-mma.cu: grouped GEMMs in bf16 on tensor cores
 *
 * A block computes a tile of 128 x 256 of c: its warps, 2 down and 4 across, 64 x 64 each. It goes through the sum's
 * terms 32 at a time, in one sequence. While tensor cores multiply one part of a and b, the next two are copied to
 * shared memory. There they lie as in memory, so that a copy moves 16 bytes; ldmatrix transposes what must be.
 *
 * Tiles at an edge take the same way: in the place of rows and columns that do not exist the last ones are copied, and
 * what is computed from these is not stored. Terms that do not exist are zeros.
 *
 * ALIGNED 0: rows or experts' matrices do not all start at multiples of 16 bytes. Then elements are copied one by one,
 * with the same bits.
 */
#include "async.h"
#include "grouped.h"
#include "mma.h"

enum form { TRANSPOSED, STRAIGHT, SUM }; /* b_e is (n, k); (k, n); gradients of weights */

#define BM 128 /* a tile of c */
#define BN 256
#define BK 32    /* terms of a part */
#define STAGES 3 /* parts in shared memory */
#define WM 64    /* a warp's tile */
#define WN 64
#define PAD 8    /* elements after a row in shared memory, so that neighbouring rows start in different banks */
#define APART 64 /* rows or columns between two pieces of 8 elements that a thread copies */

/* Elements of a part of a and b. In a sum a's rows are terms, as b's are unless it is transposed */
#define A_BY_TERMS (FORM == SUM)
#define B_BY_TERMS (FORM != TRANSPOSED)
#define A_ACROSS ((A_BY_TERMS ? BM : BK) + PAD)
#define B_ACROSS ((B_BY_TERMS ? BN : BK) + PAD)
#define A_PART ((A_BY_TERMS ? BK : BM) * A_ACROSS)
#define B_PART ((B_BY_TERMS ? BK : BN) * B_ACROSS)
#define PART (A_PART + B_PART)

struct tile { /* of c, and what it is computed from */
	const struct bf16 *a, *b;
	int rows, columns; /* that there are, BM and BN at most */
	int terms;
};

static __device__ __forceinline__ int at_most(int64_t n, int most) { return n < most ? (int)n : most; }

/* ---- copies ---- */

/* What a thread copies of a or b: pieces of 8 elements. BY_TERMS: of one term (row), 64 columns apart; else of 8 terms
 * (columns), 64 rows apart */
struct source {
	const struct bf16 *from; /* the next part */
	int64_t step;            /* from a part to the next */
	int to;                  /* the first piece, in a part */
	int term;                /* the first one of the pieces */
	int count;               /* rows or columns that there are from the first piece's on */
	int piece[BN / APART];   /* elements from `from` */
};

template <int BY_TERMS, int SIDE, int ALIGNED>
static __device__ __forceinline__ void source_init(struct source *s, const struct bf16 *from, int64_t ld, int count,
	int to)
{
	/* 8 lanes copy at once: a line of a row, or rows r and r + 4, which share no bank */
	int t = threadIdx.x, first = BY_TERMS ? t % 8 * 8 : t / 32 * 8 + t / 4 % 2 * 4 + t / 8 % 4;
	s->term = BY_TERMS ? t / 8 : t % 4 * 8;
	s->from = from;
	s->step = BY_TERMS ? BK * ld : BK;
	s->to = to + (BY_TERMS ? s->term * (SIDE + PAD) + first : first * (BK + PAD) + s->term);
	s->count = count - first;
#pragma unroll
	for (int j = 0; j < SIDE / APART; j++) {
		int at = at_most(first + j * APART, count - (BY_TERMS && ALIGNED ? 8 : 1));
		s->piece[j] = (int)(BY_TERMS ? s->term * ld + at : at * ld + s->term);
	}
}

/* Begin to copy the next part, of which `left` terms exist; zeros beyond */
template <int BY_TERMS, int SIDE, int ALIGNED>
static __device__ __forceinline__ void source_copy(struct source *s, struct bf16 *part, int left)
{
#pragma unroll
	for (int j = 0; j < SIDE / APART; j++) {
		struct bf16 *to = part + s->to + j * APART * (BY_TERMS ? 1 : BK + PAD);
		const struct bf16 *from = s->from + s->piece[j];
		if (ALIGNED) copy16_async(to, from, s->term < left);
		else {
			int n = BY_TERMS ? (s->term < left ? s->count - j * APART : 0) : left - s->term;
#pragma unroll 1
			for (int i = 0; i < 8; i++) to[i].bits = i < n ? from[i].bits : 0;
		}
	}
	s->from += s->step;
}

template <int FORM, int ALIGNED>
static __device__ __forceinline__ void copy_part(struct source *a, struct source *b, struct bf16 *part, int left)
{
	if (left > 0) {
		source_copy<A_BY_TERMS, BM, ALIGNED>(a, part, left);
		source_copy<B_BY_TERMS, BN, ALIGNED>(b, part, left);
	}
	copies_commit();
}

/* ---- products ---- */

struct fragments { /* of a warp's rows and columns, 16 terms */
	uint32_t a[WM / 16][4], b[WN / 16][4];
};

/* a, b: what the lane addresses of the warp's first rows and columns (place_in_four) */
template <int FORM>
static __device__ __forceinline__ void load(struct fragments *f, const struct bf16 *a, const struct bf16 *b)
{
#pragma unroll
	for (int n = 0; n < WN / 16; n++) load_matrices(f->b[n], b + n * 16 * (B_BY_TERMS ? 1 : B_ACROSS), B_BY_TERMS);
#pragma unroll
	for (int m = 0; m < WM / 16; m++) load_matrices(f->a[m], a + m * 16 * (A_BY_TERMS ? 1 : A_ACROSS), A_BY_TERMS);
}

static __device__ __forceinline__ void multiply(float c[WM / 16][WN / 8][4], const struct fragments *f)
{
#pragma unroll
	for (int m = 0; m < WM / 16; m++)
#pragma unroll
		for (int n = 0; n < WN / 8; n++) mma(c[m][n], f->a[m], f->b[n / 2] + n % 2 * 2);
}

/* c (WM, WN) += all products. shared: STAGES parts. While the products of 16 terms are computed, the next 16 terms'
 * fragments are loaded. */
template <int FORM, int ALIGNED>
static __device__ __forceinline__ void tile_sum(float c[WM / 16][WN / 8][4], const struct grouped_gemm_args *g,
	const struct tile *p, struct bf16 *shared)
{
	int warp = threadIdx.x / 32, m = warp / (BN / WN) * WM, n = warp % (BN / WN) * WN;
	int works = m < p->rows && n < p->columns;
	int of_a = (A_BY_TERMS ? m : m * A_ACROSS) + place_in_four(A_ACROSS, !A_BY_TERMS);
	int of_b = (B_BY_TERMS ? n : n * B_ACROSS) + place_in_four(B_ACROSS, B_BY_TERMS) + A_PART;
	struct bf16 *part = shared, *second = shared + PART, *third = shared + 2 * PART;
	struct source from_a, from_b;
	struct fragments now, next;

	source_init<A_BY_TERMS, BM, ALIGNED>(&from_a, p->a, g->lda, p->rows, 0);
	source_init<B_BY_TERMS, BN, ALIGNED>(&from_b, p->b, g->ldb, p->columns, A_PART);
#pragma unroll
	for (int i = 0; i < STAGES; i++) copy_part<FORM, ALIGNED>(&from_a, &from_b, shared + i * PART, p->terms - i * BK);
	copies_wait<STAGES - 1>();
	__syncthreads(); /* the first part is there for all */
	const struct bf16 *a = part + of_a, *b = part + of_b;
	if (works) load<FORM>(&now, a, b);
#pragma unroll 1
	for (int left = p->terms; left > 0; left -= BK) {
		if (works) {
			load<FORM>(&next, a + 16 * (A_BY_TERMS ? A_ACROSS : 1), b + 16 * (B_BY_TERMS ? B_ACROSS : 1));
			multiply(c, &now);
		}
		copies_wait<STAGES - 2>();
		__syncthreads(); /* the second part is there for all, and all have loaded this one, whose place a copy takes */
		copy_part<FORM, ALIGNED>(&from_a, &from_b, part, left - STAGES * BK);
		a = second + of_a;
		b = second + of_b;
		if (works) {
			load<FORM>(&now, a, b); /* not used after the last part */
			multiply(c, &next);
		}
		struct bf16 *last = part;
		part = second;
		second = third;
		third = last;
	}
}

/* ---- results: a lane has two neighbouring elements of every 8 columns (mma.h) ---- */

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

/* The warp's part of the tile to c, which starts at the tile. ALIGNED: four lanes exchange elements, so that each
 * stores 8 neighbouring ones */
template <int ALIGNED>
static __device__ __forceinline__ void tile_store(const float sum[WM / 16][WN / 8][4], const struct tile *p,
	struct bf16 *c, int64_t ldc, const struct bf16 *bias)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int row0 = warp / (BN / WN) * WM + lane / 4, column0 = warp % (BN / WN) * WN;
#pragma unroll
	for (int n = 0; n < WN / 8; n += 4) {
		int wide = column0 + n * 8 + lane % 4 * 8, column = column0 + n * 8 + lane % 4 * 2;
		float add[8];
#pragma unroll
		for (int j = 0; j < 8; j++) {
			int at = column + j / 2 * 8 + j % 2;
			add[j] = bias && at < p->columns ? get(bias[at]) : 0;
		}
#pragma unroll
		for (int i = 0; i < WM / 8; i++) {
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

/* The same for gradients of weights, in fp32: c = beta c + the tile. Of 32 columns all elements are loaded before one
 * is stored, so that a warp waits for memory twice, not 64 times. */
template <int ALIGNED>
static __device__ __forceinline__ void tile_add(const float sum[WM / 16][WN / 8][4], const struct tile *p, float *c,
	int64_t ldc, float beta)
{
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int row0 = warp / (BN / WN) * WM + lane / 4, column0 = warp % (BN / WN) * WN + lane % 4 * 2;
#pragma unroll
	for (int n = 0; n < WN / 8; n += 4) {
		float v[WM / 8][4][2] = {{{0}}};
#pragma unroll
		for (int store = 0; store < 2; store++)
#pragma unroll
			for (int i = 0; i < WM / 8; i++)
#pragma unroll
				for (int j = 0; j < 4; j++) {
					const float *two = sum[i / 2][n + j] + i % 2 * 2;
					int row = row0 + i * 8, left = p->columns - (column0 + (n + j) * 8);
					float *to = c + row * ldc + column0 + (n + j) * 8;
					if (row >= p->rows || (!store && beta == 0)) left = 0;
					if (store) put_two(to, two[0] + beta * v[i][j][0], two[1] + beta * v[i][j][1], left, ALIGNED);
					else get_two(v[i][j], to, left, ALIGNED);
				}
	}
}

/* down, across: tiles of an expert's c, `down` in sums only */
template <int FORM, int ALIGNED>
static __global__ void __launch_bounds__(THREADS, 1)
	grouped_gemm_mma(struct grouped_gemm_args g, int64_t down, int64_t across)
{
	DYNAMIC_SHARED(struct bf16, shared);
	float sum[WM / 16][WN / 8][4] = {{{0}}};
	int64_t column = blockIdx.x % across * BN, tile = blockIdx.x / across;
	struct tile p = {(const struct bf16 *)g.a, (const struct bf16 *)g.b, 0, at_most(g.n - column, BN), (int)g.k};

	if (FORM == SUM) {
		int64_t e = tile / down, i = tile % down * BM, first = g.first[e];
		p.a += first * g.lda + i;
		p.b += first * g.ldb + column;
		p.rows = at_most(g.k - i, BM);
		p.terms = (int)(g.first[e + 1] - first);
		if (p.terms == 0 && g.beta != 0) return;
		tile_sum<FORM, ALIGNED>(sum, &g, &p, shared);
		tile_add<ALIGNED>(sum, &p, (float *)g.c + e * g.stride + i * g.ldc + column, g.ldc, g.beta);
	} else {
		struct expert_rows e = find_expert_rows(g.first, g.experts, tile, BM);
		if (e.expert < 0) return;
		p.a += e.row * g.lda;
		p.b += e.expert * g.stride + (FORM == TRANSPOSED ? column * g.ldb : column);
		p.rows = at_most(e.end - e.row, BM);
		tile_sum<FORM, ALIGNED>(sum, &g, &p, shared);
		tile_store<ALIGNED>(sum, &p, (struct bf16 *)g.c + e.row * g.ldc + column, g.ldc,
			g.bias ? (const struct bf16 *)g.bias + e.expert * g.bias_stride + column : NULL);
	}
}

/* ---- launchers ---- */

template <int FORM, int ALIGNED>
static void grouped(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	int64_t down = div_up(a->k, BM), across = div_up(a->n, BN);
	int64_t tiles = FORM == SUM ? a->experts * down : expert_tiles(a, BM);
	LAUNCH((grouped_gemm_mma<FORM, ALIGNED>), tiles * across, THREADS, STAGES * PART * sizeof(struct bf16), q->stream,
		*a, down, across);
}

template <int FORM>
static void by_alignment(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	if (wide_rows(a->n | a->k | a->lda | a->ldb | a->ldc | a->stride, a->a, a->b, a->c, NULL)) grouped<FORM, 1>(q, a);
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
