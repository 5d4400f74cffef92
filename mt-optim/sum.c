/* sum.c: a pass over gradients, twice: plainly, which is the specification, and sixteen elements at a time with AVX2 or
 * NEON, which is as fast as memory. Every operation is elementwise and in the same order, so the bits are the same.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
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

/* ---- SIMD: sixteen elements at a time. Those of bf16 are the even ones and the odd ones of a register, which are the
 * lower and the upper halves of its words: widening is a shift and a mask, and no element moves. */

#if defined __x86_64__ || defined __aarch64__
#if defined __x86_64__
#define ISA __attribute__((target("avx2")))
enum { WIDTH = 8 };
#else
#define ISA
enum { WIDTH = 4 };
#endif
#define INLINE ISA static inline __attribute__((always_inline))
enum { REGS = 16 / WIDTH };
typedef float vec __attribute__((vector_size(WIDTH * 4)));
typedef uint32_t vec32 __attribute__((vector_size(WIDTH * 4)));
typedef double squares __attribute__((vector_size(WIDTH * 4)));

INLINE vec get(const void *from)
{
	vec x;
	memcpy(&x, from, sizeof x);
	return x;
}
INLINE void put(void *to, vec x) { memcpy(to, &x, sizeof x); }

/* ... past the caches, where the instruction set can. Neoverse does it by itself where lines are written whole. */
INLINE void put_past(void *to, vec x)
{
#if defined __x86_64__
	_mm256_stream_ps(to, x);
#else
	put(to, x);
#endif
}

/* Streaming stores are ordered by no lock: this is what the thread that ends the batch relies on */
INLINE void put_past_ends(void)
{
#if defined __x86_64__
	_mm_sfence();
#endif
}

/* The first half of x, and the second one */
INLINE void widen(vec x, squares to[2])
{
#if defined __x86_64__
	to[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
	to[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
#else
	to[0] = vcvt_f64_f32(vget_low_f32(x));
	to[1] = vcvt_high_f64_f32(x);
#endif
}

INLINE void load(vec x[REGS], const void *p, size_t i, const bool bf16)
{
#pragma GCC unroll 4
	for (int r = 0; r < REGS; r += bf16 ? 2 : 1) {
		if (bf16) {
			vec32 both = (vec32)get((const uint16_t *)p + i + r * WIDTH);
			x[r] = (vec)(both << 16);
			x[r + 1] = (vec)(both & 0xffff0000);
		} else x[r] = get((const float *)p + i + r * WIDTH);
	}
}

INLINE void store(void *g, size_t i, const vec x[REGS], const bool bf16)
{
#pragma GCC unroll 4
	for (int r = 0; r < REGS; r += bf16 ? 2 : 1)
		if (bf16) put((uint16_t *)g + i + r * WIDTH, (vec)((vec32)x[r] >> 16 | (vec32)x[r + 1]));
		else put((float *)g + i + r * WIDTH, x[r]);
}

/* As they are */
INLINE void stream(void *g, const void *a, size_t i, const bool bf16)
{
	const size_t bytes = bf16 ? 2 : 4;
#pragma GCC unroll 4
	for (int r = 0; r < REGS; r += bf16 ? 2 : 1) {
		size_t at = (i + (size_t)r * WIDTH) * bytes;
		put_past((char *)g + at, get((const char *)a + at));
	}
}

/* bf16_round without its case of a NaN: one that a sum of bf16s gives is quiet and has a zero lower half, and stays. */
INLINE vec nearest(vec x)
{
	vec32 bits = (vec32)x;
	return (vec)((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

/* In order; registers of bf16 have the even and the odd ones */
INLINE double squares_sum(const squares s[2 * REGS], const bool bf16)
{
	double sum[16], x[16];
	for (int i = 0; i < 2 * REGS; i++) put(sum + i * WIDTH / 2, (vec)s[i]);
	for (int r = 0; r < REGS; r++)
		for (int j = 0; j < WIDTH; j++)
			x[bf16 ? r / 2 * 2 * WIDTH + 2 * j + r % 2 : r * WIDTH + j] = sum[r * WIDTH + j];
	return tree(x);
}

INLINE double pass(void *g, const void *a, const void *b, size_t n, const bool stores, const bool two,
	const bool squared, const bool bf16)
{
	squares s[2 * REGS] = {{0}};
	for (size_t i = 0; i < n; i += 16) {
		vec x[REGS], y[REGS];
		load(x, a, i, bf16);
		if (two) load(y, b, i, bf16);
#pragma GCC unroll 4
		for (int r = 0; r < REGS; r++) {
			if (two) x[r] += y[r];
			if (two && stores && bf16) x[r] = nearest(x[r]);
			if (!squared) continue;
			squares wide[2];
			widen(x[r], wide);
			s[2 * r] += wide[0] * wide[0];
			s[2 * r + 1] += wide[1] * wide[1];
		}
		if (stores && two) store(g, i, x, bf16);
		if (stores && !two) stream(g, a, i, bf16);
	}
	if (stores && !two) put_past_ends();
	return squared ? squares_sum(s, bf16) : 0;
}

/* update_choose has checked $MT_ISA */
static bool wide(void)
{
	static _Atomic int known; /* 0: not yet, 1: no, 2: yes */
	int is = atomic_load_explicit(&known, memory_order_relaxed);
	if (!is) {
		const char *want = getenv("MT_ISA");
		bool plain = want && (!strcmp(want, "scalar") || !strcmp(want, "plain"));
#if defined __x86_64__
		plain = plain || !__builtin_cpu_supports("avx2");
#endif
		is = plain ? 1 : 2;
		atomic_store_explicit(&known, is, memory_order_relaxed);
	}
	return is == 2;
}

/* pass with each set of constants. Streaming stores need an aligned g. */
#define PASS(name, stores, two, squared) \
	ISA static double name##_wide(void *g, const void *a, const void *b, size_t n, bool bf16) \
	{ \
		return bf16 ? pass(g, a, b, n, stores, two, squared, true) : pass(g, a, b, n, stores, two, squared, false); \
	} \
	static double name(void *g, const void *a, const void *b, size_t n, bool bf16) \
	{ \
		bool apart = (stores) && !(two) && (uintptr_t)g % sizeof(vec); \
		return (wide() && !apart ? name##_wide : pass_plain)(g, a, b, n, bf16); \
	}
#else
#define PASS(name, stores, two, squared) \
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
