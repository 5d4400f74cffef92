/* sum.c: each sum twice: plainly, which is the specification, and sixteen elements at a time with AVX2, which is as
 * fast as memory. Every operation is elementwise and in the same order, so the bits are the same.
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

static void add_plain(void *g, const void *piece, size_t n, bool bf16)
{
	for (size_t i = 0; i < n; i++) {
		float x = element(g, i, bf16) + element(piece, i, bf16);
		if (bf16) ((uint16_t *)g)[i] = bf16_round(mt_bits(x));
		else ((float *)g)[i] = x;
	}
}

static void copy_plain(void *g, const void *piece, size_t n, bool bf16) { memcpy(g, piece, n * (bf16 ? 2 : 4)); }

static double sumsq_plain(const void *a, const void *b, size_t n, bool bf16)
{
	double sum[16] = {0};
	for (size_t i = 0; i < n; i++) {
		float x = element(a, i, bf16);
		if (b) x += element(b, i, bf16);
		sum[i % 16] += (double)x * (double)x;
	}
	return tree(sum);
}

static double take_plain(void *g, const void *piece, size_t n, bool bf16)
{
	copy_plain(g, piece, n, bf16);
	return sumsq_plain(piece, NULL, n, bf16);
}

static double add_take_plain(void *g, const void *piece, size_t n, bool bf16)
{
	add_plain(g, piece, n, bf16);
	return sumsq_plain(g, NULL, n, bf16);
}

/* ---- AVX2 */

#if defined __x86_64__
#define ISA __attribute__((target("avx2")))
#define INLINE ISA static inline __attribute__((always_inline))

/* Sixteen elements. Those of bf16 are the even ones and the odd ones, which are the lower and the upper halves of eight
 * words: widening is a shift and a mask, and no element moves. */
#define LOAD(x, p, i, bf16) \
	do { \
		if (bf16) { \
			__m256i words = _mm256_loadu_si256((const __m256i *)((const uint16_t *)(p) + (i))); \
			x[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); \
			x[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000))); \
		} else { \
			x[0] = _mm256_loadu_ps((const float *)(p) + (i)); \
			x[1] = _mm256_loadu_ps((const float *)(p) + (i) + 8); \
		} \
	} while (0)

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
		s[2 * h] = _mm256_add_pd(s[2 * h], _mm256_mul_pd(lo, lo));
		s[2 * h + 1] = _mm256_add_pd(s[2 * h + 1], _mm256_mul_pd(hi, hi));
	}
}

INLINE double squares_sum(const __m256d s[4], bool bf16)
{
	double partition[16], x[16];
	for (int i = 0; i < 4; i++) _mm256_storeu_pd(partition + 4 * i, s[i]);
	for (int i = 0; i < 16; i++) x[bf16 ? i % 8 * 2 + i / 8 : i] = partition[i];
	return tree(x);
}

/* g += piece; with squares, those of the sums are added to s */
INLINE void add(void *g, const void *piece, size_t n, const bool bf16, const bool squares, __m256d s[4])
{
	for (size_t i = 0; i < n; i += 16) {
		__m256 x[2], y[2];
		LOAD(x, g, i, bf16);
		LOAD(y, piece, i, bf16);
		for (int h = 0; h < 2; h++) x[h] = _mm256_add_ps(x[h], y[h]);
		if (bf16) {
			for (int h = 0; h < 2; h++) x[h] = nearest8(x[h]);
			__m256i even = _mm256_srli_epi32(_mm256_castps_si256(x[0]), 16), odd = _mm256_castps_si256(x[1]);
			_mm256_storeu_si256((__m256i *)((uint16_t *)g + i), _mm256_or_si256(even, odd));
		} else {
			_mm256_storeu_ps((float *)g + i, x[0]);
			_mm256_storeu_ps((float *)g + i + 8, x[1]);
		}
		if (squares) square(s, x);
	}
}

INLINE double sumsq(const void *a, const void *b, size_t n, const bool bf16, const bool two)
{
	__m256d s[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
	for (size_t i = 0; i < n; i += 16) {
		__m256 x[2], y[2];
		LOAD(x, a, i, bf16);
		if (two) {
			LOAD(y, b, i, bf16);
			for (int h = 0; h < 2; h++) x[h] = _mm256_add_ps(x[h], y[h]);
		}
		square(s, x);
	}
	return squares_sum(s, bf16);
}

/* Streaming stores are ordered by no lock: the fence is what the thread that ends the batch relies on */
INLINE void copy(void *g, const void *piece, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 64) {
		const __m256i *from = (const __m256i *)((const char *)piece + i);
		__m256i x = _mm256_loadu_si256(from), y = _mm256_loadu_si256(from + 1);
		_mm256_stream_si256((__m256i *)((char *)g + i), x);
		_mm256_stream_si256((__m256i *)((char *)g + i) + 1, y);
	}
	_mm_sfence();
}

/* Squares as in sumsq; the piece is read once */
INLINE double take(void *g, const void *piece, size_t n, const bool bf16)
{
	__m256d s[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
	size_t width = bf16 ? 2 : 4;
	for (size_t i = 0; i < n; i += 16) {
		const __m256i *from = (const __m256i *)((const char *)piece + i * width);
		__m256i *to = (__m256i *)((char *)g + i * width);
		__m256 x[2];
		LOAD(x, piece, i, bf16);
		_mm256_stream_si256(to, _mm256_loadu_si256(from));
		if (!bf16) _mm256_stream_si256(to + 1, _mm256_loadu_si256(from + 1));
		square(s, x);
	}
	_mm_sfence();
	return squares_sum(s, bf16);
}

static bool aligned(const void *g) { return (uintptr_t)g % 32 == 0; }

ISA static void copy_avx2(void *g, const void *piece, size_t n, bool bf16)
{
	if (aligned(g)) copy(g, piece, n * (bf16 ? 2 : 4));
	else copy_plain(g, piece, n, bf16);
}

ISA static double take_avx2(void *g, const void *piece, size_t n, bool bf16)
{
	if (!aligned(g)) return take_plain(g, piece, n, bf16);
	return bf16 ? take(g, piece, n, true) : take(g, piece, n, false);
}

ISA static void add_avx2(void *g, const void *piece, size_t n, bool bf16)
{
	if (bf16) add(g, piece, n, true, false, NULL);
	else add(g, piece, n, false, false, NULL);
}

ISA static double add_take_avx2(void *g, const void *piece, size_t n, bool bf16)
{
	__m256d s[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
	if (bf16) add(g, piece, n, true, true, s);
	else add(g, piece, n, false, true, s);
	return squares_sum(s, bf16);
}

ISA static double sumsq_avx2(const void *a, const void *b, size_t n, bool bf16)
{
	if (b) return bf16 ? sumsq(a, b, n, true, true) : sumsq(a, b, n, false, true);
	return bf16 ? sumsq(a, b, n, true, false) : sumsq(a, b, n, false, false);
}
#endif

/* ---- which */

#if defined __x86_64__
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
#define PICK(f, ...) (wide() ? f##_avx2(__VA_ARGS__) : f##_plain(__VA_ARGS__))
#else
#define PICK(f, ...) f##_plain(__VA_ARGS__)
#endif

void grad_copy(void *g, const void *piece, size_t n, bool bf16) { PICK(copy, g, piece, n, bf16); }

double grad_take(void *g, const void *piece, size_t n, bool bf16) { return PICK(take, g, piece, n, bf16); }

void grad_add(void *g, const void *piece, size_t n, bool bf16) { PICK(add, g, piece, n, bf16); }

double grad_add_take(void *g, const void *piece, size_t n, bool bf16) { return PICK(add_take, g, piece, n, bf16); }

double grad_sumsq(const void *a, const void *b, size_t n, bool bf16) { return PICK(sumsq, a, b, n, bf16); }

double sum_tree(const double *x, size_t n)
{
	if (n == 0) return 0;
	if (n == 1) return x[0];
	size_t half = 1;
	while (half * 2 < n) half *= 2;
	return sum_tree(x, half) + sum_tree(x + half, n - half);
}
