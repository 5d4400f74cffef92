/* simd.h: the vectors in which the kernels are written. Included by avx512.c, avx2.c and plain.c, which
 * say how many lanes (VW) and how to do what vector extensions cannot: fused multiply-add, maximum, parts of a vector.
 *
 * vf: VW floats. +, -, *, / are the compiler's. MR: rows of a microkernel's block of registers; divides VW.
 */
#ifndef MT_STREAM_CPU_SIMD_H
#define MT_STREAM_CPU_SIMD_H

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu.h"

#define INLINE static inline __attribute__((always_inline, unused))

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));

INLINE vf v_set(float x) { return x - (vf){0}; }
INLINE vf v_load(const float *p)
{
	vf x;
	memcpy(&x, p, sizeof x);
	return x;
}
INLINE void v_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
/* a in lanes where the comparison `mask` is true, else b */
INLINE vf v_select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

#if VW == 16
INLINE __mmask16 v_first(int64_t n) { return (__mmask16)((1u << n) - 1); }
INLINE vf v_load_part(const float *p, int64_t n) { return (vf)_mm512_maskz_loadu_ps(v_first(n), p); }
INLINE void v_store_part(float *p, int64_t n, vf x) { _mm512_mask_storeu_ps(p, v_first(n), (__m512)x); }
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
/* b where either is NaN */
INLINE vf v_max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf v_min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#define LANES(f, s) \
	f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), f(10, s), f(11, s), \
		f(12, s), f(13, s), f(14, s), f(15, s)
#else
INLINE vf v_load_part(const float *p, int64_t n)
{
	float x[VW] = {0};
	for (int i = 0; i < VW; i++)
		if (i < n) x[i] = p[i];
	return v_load(x);
}
INLINE void v_store_part(float *p, int64_t n, vf x)
{
	for (int i = 0; i < VW; i++)
		if (i < n) p[i] = x[i];
}
#if VW == 8
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
INLINE vf v_max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf v_min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#define LANES(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#if defined(__aarch64__)
INLINE vf v_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
#else
INLINE vf v_fma(vf a, vf b, vf c) { return a * b + c; }
#endif
INLINE vf v_max(vf a, vf b) { return v_select(a > b, a, b); }
INLINE vf v_min(vf a, vf b) { return v_select(a < b, a, b); }
#define LANES(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif
#endif

/* the n elements at p as far as they fill a vector, zeros after them; and back */
INLINE vf v_get(const float *p, int64_t n) { return n >= VW ? v_load(p) : v_load_part(p, n); }
INLINE void v_put(float *p, int64_t n, vf x)
{
	if (n >= VW) v_store(p, x);
	else v_store_part(p, n, x);
}

/* The first n of the pairs at p, first elements and second elements apart, zeros after them; and back */
#define LANE_OF_PAIRS(i, s) (2 * (i) + (s))
#define LANE_IN_PAIRS(i, s) (((i)&1 ? VW : 0) + (i) / 2 + (s))
INLINE void v_get_pairs(const float *p, int64_t n, vf *first, vf *second)
{
	vf a = v_get(p, 2 * n), b = 2 * n > VW ? v_get(p + VW, 2 * n - VW) : (vf){0};
	*first = __builtin_shufflevector(a, b, LANES(LANE_OF_PAIRS, 0));
	*second = __builtin_shufflevector(a, b, LANES(LANE_OF_PAIRS, 1));
}
INLINE void v_put_pairs(float *p, int64_t n, vf first, vf second)
{
	v_put(p, 2 * n, __builtin_shufflevector(first, second, LANES(LANE_IN_PAIRS, 0)));
	if (2 * n > VW) v_put(p + VW, 2 * n - VW, __builtin_shufflevector(first, second, LANES(LANE_IN_PAIRS, VW / 2)));
}

INLINE float v_sum(vf x)
{
	float a[VW];
	v_store(a, x);
	for (int n = VW / 2; n; n /= 2)
		for (int i = 0; i < n; i++) a[i] += a[i + n];
	return a[0];
}

INLINE float v_highest(vf x)
{
	float m = x[0];
	for (int i = 1; i < VW; i++) m = x[i] > m ? x[i] : m;
	return m;
}

/* For -87.3 <= x <= 89: e^r - 1, where x = n ln 2 + r and |r| <= ln 2 / 2; NaN stays NaN. ln 2 in two parts (Cody and
 * Waite), Taylor-like minimax polynomial (Cephes expf). n comes out of the low bits of a sum with 1.5 * 2^23. */
#define EXP_MAGIC 12582912.0f
INLINE vf v_exp_reduced(vf x, vf *sum)
{
	vf shifted = v_fma(x, v_set(1.44269504088896341f), v_set(EXP_MAGIC));
	vf n = shifted - v_set(EXP_MAGIC);
	vf r = v_fma(n, v_set(-0.693359375f), x);
	r = v_fma(n, v_set(2.12194440e-4f), r);
	vf p = v_fma(v_set(1.9875691500e-4f), r, v_set(1.3981999507e-3f));
	p = v_fma(p, r, v_set(8.3334519073e-3f));
	p = v_fma(p, r, v_set(4.1665795894e-2f));
	p = v_fma(p, r, v_set(1.6666665459e-1f));
	p = v_fma(p, r, v_set(5.0000001201e-1f));
	*sum = shifted;
	return v_fma(p, r * r, r);
}

/* e^x within 1.1 ulp; NaN stays NaN; below -87.3, from where on the result would be denormal, 0; above 88.72 infinity.
 * x is clamped at -87.3 even in lanes whose result is 0, as a denormal would cost some hundred cycles. 2^n in two
 * factors, since 2^128 is no float. */
INLINE vf v_exp(vf x)
{
	const vf low = v_set(-87.3f);
	vi keep = ~(x < low);
	vf shifted, p = v_exp_reduced(v_min(v_set(89.0f), v_max(low, x)), &shifted) + v_set(1.0f);
#if VW == 16
	p = (vf)_mm512_scalef_ps((__m512)p, (__m512)(shifted - v_set(EXP_MAGIC)));
#else
	vi i = (vi)shifted - (vi)v_set(EXP_MAGIC), half = i >> 1;
	p = p * (vf)((half + 127) << 23) * (vf)((i - half + 127) << 23);
#endif
	return (vf)((vi)p & keep);
}

/* e^x - 1 of x <= 0, within 2 ulp; NaN stays NaN. 2^n (e^r - 1) + (2^n - 1), which is exact where it is not -1 */
INLINE vf v_expm1_negative(vf x)
{
	vf shifted, p = v_exp_reduced(v_max(v_set(-87.3f), x), &shifted);
	vf power = (vf)(((vi)shifted - (vi)v_set(EXP_MAGIC) + 127) << 23);
	return v_fma(power, p, power - v_set(1.0f));
}

INLINE vf v_abs(vf x) { return (vf)((vi)x & ~(vi)v_set(-0.0f)); }
/* x >= 0 with the sign of s */
INLINE vf v_with_sign(vf x, vf s) { return (vf)((vi)x | ((vi)s & (vi)v_set(-0.0f))); }

/* tanh(x) within 2 ulp; NaN stays NaN. Up to 0.625 x + x^3 P(x^2) with a minimax P, above 1 - 2 / (e^2x + 1) */
INLINE vf v_tanh(vf x)
{
	vf t = v_abs(x), s = x * x, one = v_set(1.0f);
	vf p = v_fma(v_set(2.1429616e-3f), s, v_set(-8.1773974e-3f));
	p = v_fma(p, s, v_set(2.17007026e-2f));
	p = v_fma(p, s, v_set(-5.394676328e-2f));
	p = v_fma(p, s, v_set(1.333320588e-1f));
	p = v_fma(p, s, v_set(-3.333333135e-1f));
	vf high = one - v_set(2.0f) / (v_exp(t + t) + one);
	return v_select(t < v_set(0.625f), v_fma(p * s, x, x), v_with_sign(high, x));
}

/* erf(x) within 2 ulp; NaN stays NaN. Up to 0.925 x + x P(x^2), above 1 - e^(-x - x Q(x)), with minimax P and Q; from 4
 * on the result rounds to 1 */
INLINE vf v_erf(vf x)
{
	vf t = v_abs(x), s = x * x, one = v_set(1.0f);
	vf p = v_fma(v_set(8.349603013e-5f), s, v_set(-8.137852419e-4f));
	p = v_fma(p, s, v_set(5.200604443e-3f));
	p = v_fma(p, s, v_set(-2.685922571e-2f));
	p = v_fma(p, s, v_set(1.128369272e-1f));
	p = v_fma(p, s, v_set(-3.761263490e-1f));
	p = v_fma(p, s, v_set(1.283791661e-1f));
	vf c = v_min(v_set(4.0f), t);
	vf q = v_fma(v_set(-2.139850258e-4f), c, v_set(3.214956261e-3f));
	q = v_fma(q, c, v_set(-2.288996615e-2f));
	q = v_fma(q, c, v_set(1.052618474e-1f));
	q = v_fma(q, c, v_set(6.357182860e-1f));
	q = v_fma(q, c, v_set(1.285143644e-1f));
	vf high = one - v_exp(-v_fma(q, c, c));
	return v_select(t < v_set(0.925f), v_fma(p, x, x), v_with_sign(high, x));
}

/* VW x VW: rows become columns, by exchanging ever larger off-diagonal blocks */
#define LANE_LOW(i, s) ((i) & (s) ? VW + (i) - (s) : (i))
#define LANE_HIGH(i, s) ((i) & (s) ? VW + (i) : (i) + (s))
#define TRANSPOSE_STEP(x, s) \
	for (int i_ = 0; i_ < VW; i_++) \
		if (!(i_ & (s))) { \
			vf low_ = __builtin_shufflevector(x[i_], x[i_ + (s)], LANES(LANE_LOW, s)); \
			x[i_ + (s)] = __builtin_shufflevector(x[i_], x[i_ + (s)], LANES(LANE_HIGH, s)); \
			x[i_] = low_; \
		}
INLINE void v_transpose(vf *x)
{
	TRANSPOSE_STEP(x, 1)
	TRANSPOSE_STEP(x, 2)
#if VW > 4
	TRANSPOSE_STEP(x, 4)
#endif
#if VW > 8
	TRANSPOSE_STEP(x, 8)
#endif
}

/* Lane i of the result: the sum of x[i]'s lanes. x is overwritten */
#define SUMS_STEP(x, s) \
	for (int i_ = 0; i_ < VW; i_ += 2 * (s)) \
		x[i_] = __builtin_shufflevector(x[i_], x[i_ + (s)], LANES(LANE_LOW, s)) + \
			__builtin_shufflevector(x[i_], x[i_ + (s)], LANES(LANE_HIGH, s));
INLINE vf v_sums(vf *x)
{
	SUMS_STEP(x, 1)
	SUMS_STEP(x, 2)
#if VW > 4
	SUMS_STEP(x, 4)
#endif
#if VW > 8
	SUMS_STEP(x, 8)
#endif
	return x[0];
}

INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

#endif
