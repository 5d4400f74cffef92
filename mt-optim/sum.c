/* sum.c: one body in vectors of the compiler's, compiled for three instruction sets: every operation is elementwise, so
 * the bits are the same. (A square of a float is exact in double: fused or not is the same too.) */
#include <stdint.h>
#include <string.h>

#include "sum.h"

typedef float f32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))

INLINE void load(f32x8 *out, const void *p, size_t i, bool bf16)
{
	if (bf16) {
		u16x8 h;
		memcpy(&h, (const uint16_t *)p + i, sizeof h);
		u32x8 bits = __builtin_convertvector(h, u32x8) << 16;
		memcpy(out, &bits, sizeof bits);
	} else memcpy(out, (const float *)p + i, sizeof *out);
}

INLINE void add(void *g, const void *piece, size_t n, const bool bf16)
{
	for (size_t i = 0; i < n; i += 8) {
		f32x8 a, b;
		load(&a, g, i, bf16);
		load(&b, piece, i, bf16);
		a += b;
		if (bf16) {
			u32x8 bits;
			memcpy(&bits, &a, sizeof bits);
			bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;    /* a NaN of bf16s has a zero low half: stays NaN */
			u16x8 h = __builtin_convertvector(bits, u16x8);
			memcpy((uint16_t *)g + i, &h, sizeof h);
		} else memcpy((float *)g + i, &a, sizeof a);
	}
}

INLINE double sumsq(const void *a, const void *b, size_t n, const bool bf16, const bool two)
{
	f64x8 acc[2] = { { 0 }, { 0 } };
	for (size_t i = 0; i < n; i += 16)
		for (int h = 0; h < 2; h++) {
			f32x8 x, y;
			load(&x, a, i + (size_t)h * 8, bf16);
			if (two) {
				load(&y, b, i + (size_t)h * 8, bf16);
				x += y;
			}
			f64x8 d = __builtin_convertvector(x, f64x8);
			acc[h] += d * d;
		}
	f64x8 s = acc[0] + acc[1];
	double q[4] = { s[0] + s[4], s[1] + s[5], s[2] + s[6], s[3] + s[7] };
	return (q[0] + q[2]) + (q[1] + q[3]);
}

#define FOR_ISA(isa, attribute) \
attribute static void add_##isa(void *g, const void *piece, size_t n, bool bf16) \
{ \
	if (bf16) add(g, piece, n, true); \
	else add(g, piece, n, false); \
} \
attribute static double sumsq_##isa(const void *a, const void *b, size_t n, bool bf16) \
{ \
	if (b) return bf16 ? sumsq(a, b, n, true, true) : sumsq(a, b, n, false, true); \
	return bf16 ? sumsq(a, b, n, true, false) : sumsq(a, b, n, false, false); \
}

FOR_ISA(plain, )
#if defined __x86_64__
FOR_ISA(avx2, __attribute__((target("avx2"))))
FOR_ISA(avx512, __attribute__((target("avx512f"))))
#define PICK(f, ...) \
	(__builtin_cpu_supports("avx512f") ? f##_avx512(__VA_ARGS__) : \
	 __builtin_cpu_supports("avx2") ? f##_avx2(__VA_ARGS__) : f##_plain(__VA_ARGS__))
#else
#define PICK(f, ...) f##_plain(__VA_ARGS__)
#endif

void grad_add(void *g, const void *piece, size_t n, bool bf16) { PICK(add, g, piece, n, bf16); }

double grad_sumsq(const void *a, const void *b, size_t n, bool bf16) { return PICK(sumsq, a, b, n, bf16); }

double sum_tree(const double *x, size_t n)
{
	if (n == 0) return 0;
	if (n == 1) return x[0];
	size_t half = 1;
	while (half * 2 < n) half *= 2;
	return sum_tree(x, half) + sum_tree(x + half, n - half);
}
