/* grouped-wgmma.cu: grouped GEMMs in bf16 on tensor cores of compute capability 9.0 (wgmma.h)
 *
 * A block computes tiles of 128 x 256 of c, one after another; there are as many blocks as multiprocessors. Of its nine
 * warps, two groups of four multiply 64 rows each. The last one copies parts of a and b, 64 terms each, to one place of
 * four after another: also those of the next tile while this one is stored. A part is multiplied when its copy has
 * arrived, and its place is copied to again when both groups have multiplied it.
 *
 * Beyond the matrices' edges copies give zeros. Beyond an expert's rows they give the next expert's: rows of c that are
 * not stored; in a sum terms, which the copying warp overwrites with zeros in both operands, as what is there may be
 * infinite.
 *
 * The order of every sum is one sequence of the terms, 16 at a time, whatever the number of blocks.
 */
#include "grouped-tile.h"
#include "wgmma.h"

#define BK 64    /* terms of a part */
#define STAGES 4 /* parts in shared memory */
#define GROUPS (BM / WGMMA_M)
#define COPIER (GROUPS * 4) /* the warp that copies */
#define WARPS (COPIER + 1)
#define A_BYTES (BM * BK * 2)
#define PART_BYTES ((BM + BN) * BK * 2)
#define SQUARE_BYTES (ROW_ELEMS * ROW_BYTES) /* 64 rows of a tile, or terms of its 64 columns */
#define SHARED_BYTES (TILE_ALIGN + STAGES * PART_BYTES + (2 * STAGES + 1) * sizeof(uint64_t))

struct shared { /* what it has beside parts */
	char *parts;
	uint64_t *full, *empty; /* barriers of a part's place: it can be multiplied; both groups have multiplied it */
	uint64_t *landed;       /* a part's copy has arrived that needs zeros */
};

static __device__ __forceinline__ struct shared shared_of(char *all)
{
	struct shared s;
	s.parts = all + (-shared_address(all) & (TILE_ALIGN - 1));
	s.full = (uint64_t *)(s.parts + STAGES * PART_BYTES);
	s.empty = s.full + STAGES;
	s.landed = s.empty + STAGES;
	return s;
}

struct place { /* of a part; turn: how often all places were used before, odd or even */
	int stage, turn;
};

static __device__ __forceinline__ void place_next(struct place *p)
{
	if (++p->stage < STAGES) return;
	p->stage = 0;
	p->turn ^= 1;
}

/* ---- the copying warp ---- */

/* Begin to copy terms `from` .. from + BK - 1 of tile t, which barrier `arrived` will tell */
template <int FORM>
static __device__ __forceinline__ void part_copy(char *part, uint64_t *arrived, const tensor_map *a,
	const tensor_map *b, const struct tile *t, int from)
{
	int term = (int)t->term + from;
	barrier_expect(arrived, PART_BYTES);
	if (A_BY_TERMS)
#pragma unroll
		for (int m = 0; m < BM; m += ROW_ELEMS) copy_box(part + m * ROW_BYTES, a, (int)t->row + m, term, 0, arrived);
	else copy_box(part, a, term, (int)t->row, 0, arrived);
	part += A_BYTES;
	if (B_BY_TERMS)
#pragma unroll
		for (int n = 0; n < BN; n += ROW_ELEMS)
			copy_box(part + n * ROW_BYTES, b, (int)t->column + n, term, FORM == SUM ? 0 : (int)t->expert, arrived);
	else copy_box(part, b, term, (int)t->column, (int)t->expert, arrived);
}

/* Zeros in the place of terms `from` and on */
static __device__ __forceinline__ void part_cut(char *part, int from)
{
	const struct vec16 zeros = {{0}};
	int lane = threadIdx.x % 32;
#pragma unroll 1
	for (int square = 0; square < PART_BYTES; square += SQUARE_BYTES)
#pragma unroll 1
		for (int at = from * ROW_BYTES + lane * 16; at < SQUARE_BYTES; at += 32 * 16)
			store16_shared(part + square + at, zeros);
	fence_async();
	__syncwarp();
}

/* cuts: parts so far that were cut */
template <int FORM>
static __device__ __forceinline__ void tile_copy(const struct shared *s, struct place *at, const tensor_map *a,
	const tensor_map *b, const struct tile *t, int *cuts)
{
	int first_lane = threadIdx.x % 32 == 0;
#pragma unroll 1
	for (int from = 0; from < t->terms; from += BK) {
		char *part = s->parts + at->stage * PART_BYTES;
		uint64_t *full = s->full + at->stage;
		int cut = FORM == SUM && from + BK > t->terms;
		if (first_lane) {
			barrier_wait(s->empty + at->stage, at->turn ^ 1);
			part_copy<FORM>(part, cut ? s->landed : full, a, b, t, from);
		}
		if (cut) {
			barrier_wait(s->landed, (*cuts)++ & 1);
			part_cut(part, t->terms - from);
			if (first_lane) barrier_arrive(full);
		}
		place_next(at);
	}
}

/* ---- multiplying warps ---- */

/* sum += the products of a part; `group` of the warps */
template <int FORM>
static __device__ __forceinline__ void part_multiply(float sum[WGMMA_N / 8][4], const char *part, int group)
{
	uint64_t a = tile_descriptor(shared_address(part + group * SQUARE_BYTES), SQUARE_BYTES);
	uint64_t b = tile_descriptor(shared_address(part + A_BYTES), SQUARE_BYTES);
	wgmma_fence();
#pragma unroll
	for (int k = 0; k < BK; k += STEP_TERMS) {
		wgmma<A_BY_TERMS, B_BY_TERMS>(sum, a, b);
		a = next_terms<A_BY_TERMS>(a);
		b = next_terms<B_BY_TERMS>(b);
	}
	wgmma_commit();
}

static __device__ __forceinline__ void leave_place(const struct shared *s, int stage)
{
	if (threadIdx.x % 32 == 0) barrier_arrive(s->empty + stage);
}

/* sum = all products. A place is left when the next part is being multiplied. */
template <int FORM>
static __device__ __forceinline__ void tile_multiply(float sum[WGMMA_N / 8][4], const struct shared *s,
	struct place *at, const struct tile *t)
{
	int group = threadIdx.x / 128, last = -1;
#pragma unroll 1
	for (int from = 0; from < t->terms; from += BK) {
		barrier_wait(s->full + at->stage, at->turn);
		part_multiply<FORM>(sum, s->parts + at->stage * PART_BYTES, group);
		wgmma_wait<1>();
		if (last >= 0) leave_place(s, last);
		last = at->stage;
		place_next(at);
	}
	wgmma_end(sum);
	if (last >= 0) leave_place(s, last);
}

/* ---- kernel ---- */

/* tiles: at most; down, across: of tile_find */
template <int FORM>
static __global__ void __launch_bounds__(WARPS * 32, 1)
	grouped_gemm_wgmma(struct grouped_gemm_args g, const __grid_constant__ tensor_map a,
		const __grid_constant__ tensor_map b, int64_t tiles, int64_t down, int64_t across)
{
#if defined(MT_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
	DYNAMIC_SHARED(char, all);
	const struct shared s = shared_of(all);
	struct place at = {0, 0};
	int warp = threadIdx.x / 32, cuts = 0;

	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(s.full + i, 1);
			barrier_init(s.empty + i, COPIER);
		}
		barrier_init(s.landed, 1);
		fence_async();
	}
	__syncthreads();
#pragma unroll 1
	for (int64_t number = blockIdx.x; number < tiles; number += gridDim.x) {
		struct tile t = tile_find<FORM>(&g, number, down, across);
		if (t.expert < 0) break;
		if (t.terms == 0 && g.beta != 0) continue;
		if (warp == COPIER) tile_copy<FORM>(&s, &at, &a, &b, &t, &cuts);
		else {
			float sum[WGMMA_N / 8][4] = {{0}};
			tile_multiply<FORM>(sum, &s, &at, &t);
			tile_out<FORM, 1, 1, WGMMA_N / 8, 8>(&sum, &g, &t, warp * 16, 0);
		}
	}
#endif
}

/* ---- launchers ---- */

template <int FORM>
static bool grouped(const struct cuda_queue *q, const struct grouped_gemm_args *g)
{
	int64_t down = div_up(g->k, BM), across = div_up(g->n, BN), tiles = tiles_of<FORM>(g, down) * across;
	int64_t rows = g->begin + g->rows;
	const int64_t n_a[3] = {g->k, rows, 1};
	const int64_t n_b[3] = {FORM == TRANSPOSED ? g->k : g->n,
		FORM == SUM              ? rows
			: FORM == TRANSPOSED ? g->n
								 : g->k,
		FORM == SUM ? 1 : g->experts};
	tensor_map a, b;

	if (!map_make(&a, g->a, n_a, g->lda, g->lda, A_BY_TERMS ? BK : BM) ||
		!map_make(&b, g->b, n_b, g->ldb, FORM == SUM ? g->ldb : g->stride, B_BY_TERMS ? BK : BN))
		return false;
	LAUNCH((grouped_gemm_wgmma<FORM>), least(tiles, q->wgmma_blocks), WARPS * 32, SHARED_BYTES, q->stream, *g, a, b,
		tiles, down, across);
	return true;
}

bool grouped_gemm_by_wgmma(const struct cuda_queue *q, const struct grouped_gemm_args *a)
{
	if (!grouped_aligned(a) || a->rows == 0) return false;
	return a->sum ? grouped<SUM>(q, a) : a->trans_b ? grouped<TRANSPOSED>(q, a) : grouped<STRAIGHT>(q, a);
}

bool cuda_wgmma_prepare(void)
{
	const void *kernels[] = {(const void *)grouped_gemm_wgmma<TRANSPOSED>, (const void *)grouped_gemm_wgmma<STRAIGHT>,
		(const void *)grouped_gemm_wgmma<SUM>};
	for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
		if (cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES)) {
			cudaGetLastError();
			return false;
		}
	return maps_open();
}
