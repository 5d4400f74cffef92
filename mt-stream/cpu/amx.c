/* amx.c: GEMM of bf16 by AMX tiles, on one thread; sums are fp32, over k in ascending order
 *
 * A tile register has 16 rows of 64 bytes: 16 x 32 bf16 of a, 32 x 16 of b (a row holds two rows of b, pair by pair),
 * or 16 x 16 sums. A block of c is 2 x 2 of them. Both a and b are packed into tiles, with zeros behind their ends.
 *
 * oneDNN 2.6 has AMX, too. With 640 to 4096 for m, n and k it does 240 to 450 GFLOP/s on a core that does 700 to 900
 * here; weights in its own formats gain a third at most.
 */
#include "cpu.h"

#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<amxbf16intrin.h>)
#define HAVE_AMX
#endif
#endif

#ifdef HAVE_AMX
#include <cpuid.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__clang__)
#include <immintrin.h>
#define TARGET "amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#pragma clang attribute push(__attribute__((target(TARGET))), apply_to = function)
#else
#pragma GCC target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#include <immintrin.h>
#endif

#define VW 16
#include "simd.h"

enum {
	SIDE = 16,          /* rows of a tile */
	STEP = 32,          /* k of a tile */
	TILE = SIDE * STEP, /* elements of a tile of a or b */
	BLOCK = 2 * SIDE,   /* of c */
	DEEP = 768,         /* k at a time, about: so a block's rows of a and columns of b stay in the first two caches */
};

/* What is packed: 32 rows of a, all columns of b; and sums of blocks at c's edges */
struct work {
	_Alignas(64) float c[BLOCK * BLOCK];
	uint16_t a[BLOCK * DEEP];
	uint16_t b[];
};

/* ---- packing ---- */

/* Columns j .. j + 31 of row i of x (rows, columns); zeros where x ends */
INLINE __m512i row(const uint16_t *x, int64_t ld, int64_t i, int64_t rows, int64_t j, int64_t columns)
{
	int64_t n = columns - j;
	if (i >= rows || n <= 0) return _mm512_setzero_si512();
	if (n >= STEP) return _mm512_loadu_si512(x + i * ld + j);
	return _mm512_maskz_loadu_epi16((__mmask32)((1u << n) - 1), x + i * ld + j);
}

/* Two tiles of rows i .. i + 15 and i + 16 .. i + 31, columns j .. j + 31 */
INLINE void pack_rows(uint16_t *to, const uint16_t *x, int64_t ld, int64_t i, int64_t rows, int64_t j, int64_t columns)
{
	for (int r = 0; r < BLOCK; r++) _mm512_store_si512(to + r * STEP, row(x, ld, i + r, rows, j, columns));
}

/* The same tiles with rows' pairs of elements as columns */
INLINE void turn(uint16_t *tile)
{
	vf x[SIDE];
	UNROLL
	for (int r = 0; r < SIDE; r++) memcpy(&x[r], tile + r * STEP, sizeof x[r]);
	v_transpose(x);
	UNROLL
	for (int r = 0; r < SIDE; r++) memcpy(tile + r * STEP, &x[r], sizeof x[r]);
}

/* Two tiles of columns j .. j + 15 and j + 16 .. j + 31, rows i .. i + 31, in pairs of rows */
INLINE void pack_pairs(uint16_t *to, const uint16_t *x, int64_t ld, int64_t i, int64_t rows, int64_t j, int64_t columns)
{
	int16_t low[STEP], high[STEP];
	for (int16_t p = 0; p < STEP; p++) {
		low[p] = (int16_t)(p / 2 + (p & 1 ? STEP : 0));
		high[p] = (int16_t)(low[p] + SIDE);
	}
	__m512i first = _mm512_loadu_si512(low), second = _mm512_loadu_si512(high);
	for (int r = 0; r < SIDE; r++) {
		__m512i x0 = row(x, ld, i + 2 * r, rows, j, columns), x1 = row(x, ld, i + 2 * r + 1, rows, j, columns);
		_mm512_store_si512(to + r * STEP, _mm512_permutex2var_epi16(x0, first, x1));
		_mm512_store_si512(to + TILE + r * STEP, _mm512_permutex2var_epi16(x0, second, x1));
	}
}

/* 32 rows of a from i on, k0 to k1: step by step two tiles, of 16 rows each */
static void pack_a(uint16_t *to, const struct gemm_args *g, int64_t i, int64_t k0, int64_t k1)
{
	for (int64_t k = k0; k < k1; k += STEP, to += 2 * TILE) {
		if (!g->trans_a) {
			pack_rows(to, g->a, g->lda, i, g->m, k, k1);
			continue;
		}
		pack_pairs(to, g->a, g->lda, k, k1, i, g->m);
		turn(to);
		turn(to + TILE);
	}
}

/* 32 columns of b from j on, likewise */
static void pack_b(uint16_t *to, const struct gemm_args *g, int64_t j, int64_t k0, int64_t k1)
{
	for (int64_t k = k0; k < k1; k += STEP, to += 2 * TILE) {
		if (!g->trans_b) {
			pack_pairs(to, g->b, g->ldb, k, k1, j, g->n);
			continue;
		}
		pack_rows(to, g->b, g->ldb, j, g->n, k, k1);
		turn(to);
		turn(to + TILE);
	}
}

/* ---- blocks ---- */

/* c (32, 32) = [c +] a b, of so many steps; with one column of tiles, or one row, the other's are not computed */
INLINE void block(int rows, int columns, int64_t steps, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc,
	int add_c)
{
	int64_t bytes = ldc * 4;
	_tile_zero(0);
	_tile_zero(1);
	_tile_zero(2);
	_tile_zero(3);
	if (add_c) {
		_tile_loadd(0, c, bytes);
		if (columns > 1) _tile_loadd(1, c + SIDE, bytes);
		if (rows > 1) _tile_loadd(2, c + SIDE * ldc, bytes);
		if (rows > 1 && columns > 1) _tile_loadd(3, c + SIDE * ldc + SIDE, bytes);
	}
	for (int64_t s = 0; s < steps; s++, a += 2 * TILE, b += 2 * TILE) {
		_tile_loadd(4, a, STEP * 2);
		_tile_loadd(6, b, STEP * 2);
		_tile_dpbf16ps(0, 4, 6);
		if (columns > 1) {
			_tile_loadd(7, b + TILE, STEP * 2);
			_tile_dpbf16ps(1, 4, 7);
		}
		if (rows > 1) {
			_tile_loadd(5, a + TILE, STEP * 2);
			_tile_dpbf16ps(2, 5, 6);
			if (columns > 1) _tile_dpbf16ps(3, 5, 7);
		}
	}
	_tile_stored(0, c, bytes);
	if (columns > 1) _tile_stored(1, c + SIDE, bytes);
	if (rows > 1) _tile_stored(2, c + SIDE * ldc, bytes);
	if (rows > 1 && columns > 1) _tile_stored(3, c + SIDE * ldc + SIDE, bytes);
}

static void block_of(int64_t m, int64_t n, int64_t steps, const uint16_t *a, const uint16_t *b, float *c, int64_t ldc,
	int add_c)
{
	if (m > SIDE && n > SIDE) block(2, 2, steps, a, b, c, ldc, add_c);
	else if (m > SIDE) block(2, 1, steps, a, b, c, ldc, add_c);
	else if (n > SIDE) block(1, 2, steps, a, b, c, ldc, add_c);
	else block(1, 1, steps, a, b, c, ldc, add_c);
}

static void copy_block(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t m, int64_t n)
{
	for (int64_t r = 0; r < m; r++) memcpy(to + r * ld_to, from + r * ld_from, (size_t)n * sizeof *to);
}

/* Rows i .. i + 31 of c, of k0 to k1; b is packed */
static void strip_rows(const struct gemm_args *g, struct work *w, int64_t i, int64_t k0, int64_t k1, int add_c)
{
	int64_t m = least(BLOCK, g->m - i), steps = div_up(k1 - k0, STEP);
	pack_a(w->a, g, i, k0, k1);
	for (int64_t j = 0; j < g->n; j += BLOCK) {
		int64_t n = least(BLOCK, g->n - j);
		float *c = (float *)g->c + i * g->ldc + j;
		const uint16_t *b = w->b + j * steps * STEP;
		if (m == BLOCK && n == BLOCK) {
			block(2, 2, steps, w->a, b, c, g->ldc, add_c);
			continue;
		}
		if (add_c) copy_block(w->c, BLOCK, c, g->ldc, m, n);
		block_of(m, n, steps, w->a, b, w->c, BLOCK, add_c);
		copy_block(c, g->ldc, w->c, BLOCK, m, n);
	}
}

/* k at a time: equal parts of it */
static int64_t deep_of(const struct gemm_args *g) { return round_up(div_up(g->k, div_up(g->k, DEEP)), STEP); }

size_t amx_scratch(const struct gemm_args *g)
{
	return sizeof(struct work) + (size_t)(round_up(g->n, BLOCK) * deep_of(g)) * sizeof(uint16_t);
}

static void tiles_begin(void)
{
	struct {
		uint8_t palette, start, reserved[14];
		uint16_t bytes[SIDE];
		uint8_t rows[SIDE];
	} config = {.palette = 1};
	for (int i = 0; i < 8; i++) {
		config.bytes[i] = STEP * 2;
		config.rows[i] = SIDE;
	}
	_tile_loadconfig(&config);
}

void amx_gemm(const struct gemm_args *g, void *scratch)
{
	struct work *w = scratch;
	int64_t deep = deep_of(g);
	tiles_begin();
	for (int64_t k0 = 0; k0 < g->k; k0 += deep) {
		int64_t k1 = least(k0 + deep, g->k), steps = div_up(k1 - k0, STEP);
		for (int64_t j = 0; j < g->n; j += BLOCK) pack_b(w->b + j * steps * STEP, g, j, k0, k1);
		for (int64_t i = 0; i < g->m; i += BLOCK) strip_rows(g, w, i, k0, k1, k0 > 0 || g->beta != 0);
	}
	_tile_release();
}

#if defined(__clang__)
#pragma clang attribute pop
#endif

/* The CPU has AMX's tiles and bf16 (CPUID 7), and the kernel lets this process use tiles (arch_prctl(2)) */
int amx_ready(void)
{
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
	const char *ask = getenv("MT_ISA");
	unsigned a, b, c, d;
	if (ask && !strcmp(ask, "avx512")) return 0;
	if (strcmp(cpu_kernels()->name, "avx512") || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
	return d >> 22 & 1 && d >> 24 & 1 && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
#else
int amx_ready(void) { return 0; }
size_t amx_scratch(const struct gemm_args *g) { return g ? 0 : 0; }
void amx_gemm(const struct gemm_args *g, void *scratch)
{
	(void)g;
	(void)scratch;
}
#endif
