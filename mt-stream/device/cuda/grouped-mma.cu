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
#include "grouped-tile.h"
#include "mma.h"

#define BK 32    /* terms of a part */
#define STAGES 3 /* parts in shared memory */
#define WM 64    /* a warp's tile */
#define WN 64
#define PAD 8    /* elements after a row in shared memory, so that neighbouring rows start in different banks */
#define APART 64 /* rows or columns between two pieces of 8 elements that a thread copies */

/* Elements of a part of a and b */
#define A_ACROSS ((A_BY_TERMS ? BM : BK) + PAD)
#define B_ACROSS ((B_BY_TERMS ? BN : BK) + PAD)
#define A_PART ((A_BY_TERMS ? BK : BM) * A_ACROSS)
#define B_PART ((B_BY_TERMS ? BK : BN) * B_ACROSS)
#define PART (A_PART + B_PART)

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
	const struct bf16 *all_a = (const struct bf16 *)g->a, *all_b = (const struct bf16 *)g->b;

	all_a += FORM == SUM ? p->term * g->lda + p->row : p->row * g->lda;
	all_b += FORM == SUM ? p->term * g->ldb : p->expert * g->stride;
	source_init<A_BY_TERMS, BM, ALIGNED>(&from_a, all_a, g->lda, p->rows, 0);
	source_init<B_BY_TERMS, BN, ALIGNED>(&from_b, all_b + p->column * (B_BY_TERMS ? 1 : g->ldb), g->ldb, p->columns,
		A_PART);
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

/* down, across: of tile_find */
template <int FORM, int ALIGNED>
static __global__ void __launch_bounds__(THREADS, 1)
	grouped_gemm_mma(struct grouped_gemm_args g, int64_t down, int64_t across)
{
	DYNAMIC_SHARED(struct bf16, shared);
	float sum[WM / 16][WN / 8][4] = {{{0}}};
	struct tile t = tile_find<FORM>(&g, blockIdx.x, down, across);
	int warp = threadIdx.x / 32;

	if (t.expert < 0 || (t.terms == 0 && g.beta != 0)) return;
	tile_sum<FORM, ALIGNED>(sum, &g, &t, shared);
	tile_out<FORM, ALIGNED, WM / 16, WN / 8, 4>(sum, &g, &t, warp / (BN / WN) * WM, warp % (BN / WN) * WN);
}

/* ---- launchers ---- */

template <int FORM, int ALIGNED>
static void grouped(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	int64_t down = div_up(a->k, BM), across = div_up(a->n, BN);
	LAUNCH((grouped_gemm_mma<FORM, ALIGNED>), tiles_of<FORM>(a, down) * across, THREADS,
		STAGES * PART * sizeof(struct bf16), q->stream, *a, down, across);
}

template <int FORM>
static void by_alignment(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	if (grouped_aligned(a)) grouped<FORM, 1>(q, a);
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
