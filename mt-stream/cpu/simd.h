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
INLINE vf v_select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
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

/* e^x within 1.1 ulp; NaN stays NaN; below -87.3, from where on the result would be denormal, 0; above 88.72 infinity.
 * x is clamped at -87.3 even in lanes whose result is 0, as a denormal would cost some hundred cycles.
 * x = n ln 2 + r with ln 2 in two parts (Cody and Waite), Taylor-like minimax polynomial of e^r on +-ln 2 / 2 (Cephes
 * expf), then 2^n in two factors, since 2^128 is no float. n comes out of the low bits of a sum with 1.5 * 2^23. */
INLINE vf v_exp(vf x)
{
	const vf magic = v_set(12582912.0f);
	const vf low = v_set(-87.3f);
	vi keep = ~(x < low);
	vf c = v_min(v_set(89.0f), v_max(low, x));
	vf shifted = v_fma(c, v_set(1.44269504088896341f), magic);
	vf n = shifted - magic;
	vf r = v_fma(n, v_set(-0.693359375f), c);
	r = v_fma(n, v_set(2.12194440e-4f), r);
	vf p = v_fma(v_set(1.9875691500e-4f), r, v_set(1.3981999507e-3f));
	p = v_fma(p, r, v_set(8.3334519073e-3f));
	p = v_fma(p, r, v_set(4.1665795894e-2f));
	p = v_fma(p, r, v_set(1.6666665459e-1f));
	p = v_fma(p, r, v_set(5.0000001201e-1f));
	p = v_fma(p, r * r, r) + v_set(1.0f);
#if VW == 16
	p = (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
	vi i = (vi)shifted - (vi)magic, half = i >> 1;
	p = p * (vf)((half + 127) << 23) * (vf)((i - half + 127) << 23);
#endif
	return (vf)((vi)p & keep);
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

INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

#endif
