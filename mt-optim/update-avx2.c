/* update-avx2.c: update_scalar eight at a time, by update-narrow.h. What is here has no operator in vector extensions,
 * or is slower by theirs. */
#if defined __x86_64__
#include <immintrin.h>

#define ISA __attribute__((target("avx2,fma")))
#define vec __m256
#define vec_all _mm256_set1_ps
#define vec_sqrt _mm256_sqrt_ps
#define vec_fma _mm256_fmadd_ps
#include "update-simd.h"

INLINE vec32 widen(const uint16_t *from)
{
	return (vec32)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
}

INLINE vec32 widen_signed(const int16_t *from)
{
	return (vec32)_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)from));
}

INLINE void narrow(void *to, vec32 x)
{
	__m256i packed = _mm256_packus_epi32((__m256i)(x & 0xffff), _mm256_setzero_si256());
	_mm_storeu_si128(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

INLINE vec32 upper(vec32 x, vec32 y) { return (vec32)_mm256_blend_epi16((__m256i)(x >> 16), (__m256i)y, 0xaa); }
INLINE vec32 lower(vec32 x, vec32 y) { return (vec32)_mm256_blend_epi16((__m256i)x, (__m256i)(y << 16), 0xaa); }

INLINE void apart(vec a, vec b, vec x[2])
{
	x[0] = (vec)_mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(a, b, 0x88), 0xd8);
	x[1] = (vec)_mm256_permute4x64_epi64((__m256i)_mm256_shuffle_ps(a, b, 0xdd), 0xd8);
}

INLINE void together(const vec x[2], vec to[2])
{
	vec a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
	to[0] = _mm256_permute2f128_ps(a, b, 0x20);
	to[1] = _mm256_permute2f128_ps(a, b, 0x31);
}

INLINE vec16 larger(vec16 x, vec16 y) { return (vec16)_mm256_max_epu16((__m256i)x, (__m256i)y); }
INLINE vec16 smaller(vec16 x, vec16 y) { return (vec16)_mm256_min_epu16((__m256i)x, (__m256i)y); }
INLINE vec16 above(vec16 x, vec16 y) { return (vec16)_mm256_subs_epu16((__m256i)x, (__m256i)y); }
INLINE vec16 mux(vec16 mask, vec16 x, vec16 y)
{
	return (vec16)_mm256_blendv_epi8((__m256i)y, (__m256i)x, (__m256i)mask);
}

/* Both in one register: those of m in its lower half, those of v in its upper one */
INLINE void all_largest(vec16 *m, vec16 *v)
{
	const __m256i swap = _mm256_broadcastsi128_si256(
		_mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
	__m256i x = (__m256i)*m, y = (__m256i)*v;
	vec16 most = larger((vec16)_mm256_permute2x128_si256(x, y, 0x20), (vec16)_mm256_permute2x128_si256(x, y, 0x31));
	most = larger(most, (vec16)_mm256_shuffle_epi32((__m256i)most, 0x4e));
	most = larger(most, (vec16)_mm256_shuffle_epi32((__m256i)most, 0xb1));
	most = larger(most, (vec16)_mm256_shuffle_epi8((__m256i)most, swap));
	*m = (vec16)_mm256_permute2x128_si256((__m256i)most, (__m256i)most, 0x00);
	*v = (vec16)_mm256_permute2x128_si256((__m256i)most, (__m256i)most, 0x11);
}

INLINE vec root_of(vec32 rounded)
{
	__m256i x = (__m256i)(rounded >> INT8_CUT);
	__m256i even = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)int8_roots), x);
	__m256i odd = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)(int8_roots + 8)), x);
	vec is_odd = (vec)_mm256_slli_epi32(x, 31 - 3); /* the lowest bit of the exponent */
	vec32 root = (vec32)_mm256_blendv_ps((vec)even, (vec)odd, is_odd);
	return (vec)(root + ((vec32)x << (INT8_CUT - 1)));
}

#include "update-narrow.h"

ISA void update_avx2(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	UPDATE_SPECIALISE();
}
#else
typedef int update_avx2_is_for_x86_64;
#endif
