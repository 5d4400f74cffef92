/* sum.c: a pass over gradients, twice: plainly, which is the specification, and sixteen elements at a time with AVX2,
 * which is as fast as memory. Every operation is elementwise and in the same order, so the bits are the same.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

#include "model/bf16.h"
#include "mt/layout.h"
#include "sum.h"

/* ---- plain */

static float element(const void *p, size_t i, bool bf16)
{
	return bf16 ? bf16_float(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static double tree(double x[16])
{
	for (int apart = 8; apart; apart /= 2)
		for (int i = 0; i < apart; i++) x[i] += x[i + apart];
	return x[0];
}

/* g = a, or a + b where b is not NULL; without g, the sum stays in fp32. Returns the sum of squares. */
static double pass_plain(void *g, const void *a, const void *b, size_t n, bool bf16)
{
	double sum[16] = {0};
	if (g && !b) memcpy(g, a, n * (bf16 ? 2 : 4));
	for (size_t i = 0; i < n; i++) {
		float x = element(a, i, bf16);
		if (b) x += element(b, i, bf16);
		if (b && g && bf16) {
			((uint16_t *)g)[i] = bf16_round(mt_bits(x));
			x = element(g, i, true);
		} else if (b && g) ((float *)g)[i] = x;
		sum[i % 16] += (double)x * (double)x;
	}
	return tree(sum);
}

/* ---- AVX2 */

#if defined __x86_64__
#define ISA __attribute__((target("avx2")))
#define INLINE ISA static inline __attribute__((always_inline))

/* Sixteen elements. Those of bf16 are the even ones and the odd ones, which are the lower and the upper halves of eight
 * words: widening is a shift and a mask, and no element moves. */
INLINE void load(__m256 x[2], const void *p, size_t i, const bool bf16)
{
	if (bf16) {
		__m256i words = _mm256_loadu_si256((const __m256i *)((const uint16_t *)p + i));
		x[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
		x[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
	} else {
		x[0] = _mm256_loadu_ps((const float *)p + i);
		x[1] = _mm256_loadu_ps((const float *)p + i + 8);
	}
}

INLINE void store(void *g, size_t i, const __m256 x[2], const bool bf16)
{
	if (bf16) {
		__m256i even = _mm256_srli_epi32(_mm256_castps_si256(x[0]), 16), odd = _mm256_castps_si256(x[1]);
		_mm256_storeu_si256((__m256i *)((uint16_t *)g + i), _mm256_or_si256(even, odd));
	} else {
		_mm256_storeu_ps((float *)g + i, x[0]);
		_mm256_storeu_ps((float *)g + i + 8, x[1]);
	}
}

/* As they are, past the caches */
INLINE void stream(void *g, const void *a, size_t i, const bool bf16)
{
	const __m256i *from = (const __m256i *)((const char *)a + i * (bf16 ? 2 : 4));
	__m256i *to = (__m256i *)((char *)g + i * (bf16 ? 2 : 4));
	_mm256_stream_si256(to, _mm256_loadu_si256(from));
	if (!bf16) _mm256_stream_si256(to + 1, _mm256_loadu_si256(from + 1));
}

/* bf16_round without its case of a NaN: one that a sum of bf16s gives is quiet and has a zero lower half, and stays. */
INLINE __m256 nearest8(__m256 x)
{
	__m256i bits = _mm256_castps_si256(x), tie = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
	bits = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), tie);
	return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000)));
}

INLINE void square(__m256d s[4], const __m256 x[2])
{
#pragma GCC unroll 2
	for (int h = 0; h < 2; h++) {
		__m256d lo = _mm256_cvtps_pd(_mm256_castps256_ps128(x[h])),
				hi = _mm256_cvtps_pd(_mm256_extractf128_ps(x[h], 1));
		s[2 * h] += lo * lo;
		s[2 * h + 1] += hi * hi;
	}
}

INLINE double squares_sum(const __m256d s[4], bool bf16)
{
	double partition[16], x[16];
	for (int i = 0; i < 4; i++) _mm256_storeu_pd(partition + 4 * i, s[i]);
	for (int i = 0; i < 16; i++) x[i % 8 * 2 + i / 8] = partition[i];
	return tree(bf16 ? x : partition);
}

/* Streaming stores are ordered by no lock: the fence is what the thread that ends the batch relies on */
INLINE double pass(void *g, const void *a, const void *b, size_t n, const bool stores, const bool two,
	const bool squares, const bool bf16)
{
	__m256d s[4] = {{0}};
	for (size_t i = 0; i < n; i += 16) {
		__m256 x[2], y[2];
		load(x, a, i, bf16);
		if (two) load(y, b, i, bf16);
#pragma GCC unroll 2
		for (int h = 0; h < 2; h++) {
			if (two) x[h] += y[h];
			if (two && stores && bf16) x[h] = nearest8(x[h]);
		}
		if (stores && two) store(g, i, x, bf16);
		if (stores && !two) stream(g, a, i, bf16);
		if (squares) square(s, x);
	}
	if (stores && !two) _mm_sfence();
	return squares ? squares_sum(s, bf16) : 0;
}

/* update_choose has checked $MT_ISA */
static bool wide(void)
{
	static _Atomic int known; /* 0: not yet, 1: no, 2: yes */
	int is = atomic_load_explicit(&known, memory_order_relaxed);
	if (!is) {
		const char *want = getenv("MT_ISA");
		bool plain = want && (!strcmp(want, "scalar") || !strcmp(want, "plain"));
		is = !plain && __builtin_cpu_supports("avx2") ? 2 : 1;
		atomic_store_explicit(&known, is, memory_order_relaxed);
	}
	return is == 2;
}

/* pass with each set of constants. Streaming stores need an aligned g. */
#define PASS(name, stores, two, squares) \
	ISA static double name##_avx2(void *g, const void *a, const void *b, size_t n, bool bf16) \
	{ \
		return bf16 ? pass(g, a, b, n, stores, two, squares, true) : pass(g, a, b, n, stores, two, squares, false); \
	} \
	static double name(void *g, const void *a, const void *b, size_t n, bool bf16) \
	{ \
		bool apart = (stores) && !(two) && (uintptr_t)g % 32; \
		return (wide() && !apart ? name##_avx2 : pass_plain)(g, a, b, n, bf16); \
	}
#else
#define PASS(name, stores, two, squares) \
	static double name(void *g, const void *a, const void *b, size_t n, bool bf16) \
	{ \
		return pass_plain(g, a, b, n, bf16); \
	}
#endif

PASS(copy, true, false, false)
PASS(take, true, false, true)
PASS(add, true, true, false)
PASS(add_take, true, true, true)
PASS(sumsq, false, false, true)
PASS(sumsq_two, false, true, true)

void grad_copy(void *g, const void *piece, size_t n, bool bf16) { copy(g, piece, NULL, n, bf16); }

double grad_take(void *g, const void *piece, size_t n, bool bf16) { return take(g, piece, NULL, n, bf16); }

void grad_add(void *g, const void *piece, size_t n, bool bf16) { add(g, g, piece, n, bf16); }

double grad_add_take(void *g, const void *piece, size_t n, bool bf16) { return add_take(g, g, piece, n, bf16); }

double grad_sumsq(const void *a, const void *b, size_t n, bool bf16)
{
	return (b ? sumsq_two : sumsq)(NULL, a, b, n, bf16);
}

double sum_tree(const double *x, size_t n)
{
	if (n == 0) return 0;
	if (n == 1) return x[0];
	size_t half = 1;
	while (half * 2 < n) half *= 2;
	return sum_tree(x, half) + sum_tree(x + half, n - half);
}
