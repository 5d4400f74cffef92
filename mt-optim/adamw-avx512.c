/* adamw-avx512.c: adamw_scalar sixteen at a time: a group is four registers of each array, and its old state goes to
 * the journal from the registers that the update reads it from. Needs AVX-512F alone. */
#if defined __x86_64__
#include <immintrin.h>

#include "adamw.h"

#define ISA __attribute__((target("avx512f")))
#define INLINE ISA static inline __attribute__((always_inline))

enum { WIDTH = 16, REGS = MT_GROUP / WIDTH, AHEAD = 6 }; /* groups to prefetch ahead: 384 elements */

INLINE void prefetch(const void *p, int bytes)
{
	for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

INLINE __m512 load_g(const void *g, uint64_t i, bool g_bf16)
{
	if (!g_bf16) return _mm512_loadu_ps((const float *)g + i);
	__m256i b = _mm256_loadu_si256((const __m256i *)((const uint16_t *)g + i));
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

/* mt_join of sixteen; w and lo as they lie in memory */
INLINE __m512 join(__m256i w, __m256i lo)
{
	__m512i hi = _mm512_slli_epi32(_mm512_cvtepu16_epi32(w), 16);
	return _mm512_castsi512_ps(_mm512_add_epi32(hi, _mm512_cvtepi16_epi32(lo)));
}

/* Sixteen of m or v, to the journal as they lie in memory */
INLINE __m512 load_state(const char *from, uint8_t *old, int r, enum mt_dtype state)
{
	if (state == MT_FP32) {
		__m512 x = _mm512_loadu_ps((const float *)from + r * WIDTH);
		_mm512_storeu_ps((float *)old + r * WIDTH, x);
		return x;
	}
	__m256i x = _mm256_loadu_si256((const __m256i *)from + r);
	_mm256_storeu_si256((__m256i *)old + r, x);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* random: 16 bits of each */
INLINE void store_state(char *to, int r, __m512 x, __m512i random, enum mt_dtype state)
{
	if (state == MT_FP32) {
		_mm512_storeu_ps((float *)to + r * WIDTH, x);
		return;
	}
	__m512i sum = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(x), random), 16);
	_mm256_storeu_si256((__m256i *)to + r, _mm512_cvtepi32_epi16(sum));
}

INLINE __m512i mix(__m512i x, int shift, uint32_t factor)
{
	return _mm512_mullo_epi32(_mm512_xor_si512(x, _mm512_srli_epi32(x, (unsigned)shift)),
		_mm512_set1_epi32((int)factor));
}

/* rounding_bits of elements 0 .. 15 of a group; those of 16 r .. 16 r + 15 are these turned left by 8 r bits */
INLINE __m512i random_of(uint32_t key)
{
	const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	__m512i x = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)ROUNDING_STEP));
	x = mix(_mm512_add_epi32(x, _mm512_set1_epi32((int)key)), 16, ROUNDING_MIX1);
	x = mix(x, 15, ROUNDING_MIX2);
	return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

/* ---- int8: the functions of shm/model/int8.h, sixteen at a time; codes go to the journal as they are ---- */

INLINE __m512 absolute(__m512 x)
{
	return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff)));
}

INLINE __m512 load_codes_m(const char *from, uint8_t *old, int r, float scale)
{
	__m128i x = _mm_loadu_si128((const __m128i *)from + r);
	_mm_storeu_si128((__m128i *)old + r, x);
	__m512 t = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)), _mm512_set1_ps(INT8_M_UNIT));
	return _mm512_mul_ps(_mm512_mul_ps(t, absolute(t)), _mm512_set1_ps(scale));
}

INLINE __m512 load_codes_v(const char *from, uint8_t *old, int r, float scale)
{
	__m128i x = _mm_loadu_si128((const __m128i *)from + r);
	_mm_storeu_si128((__m128i *)old + r, x);
	__m512 t = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x)), _mm512_set1_ps(INT8_V_UNIT));
	t = _mm512_mul_ps(t, t);
	return _mm512_mul_ps(_mm512_mul_ps(t, t), _mm512_set1_ps(scale));
}

INLINE float scale_of(const __m512 x[REGS])
{
	__m512i most = _mm512_castps_si512(absolute(x[0]));
	for (int r = 1; r < REGS; r++) most = _mm512_max_epu32(most, _mm512_castps_si512(absolute(x[r])));
	return mt_float(_mm512_reduce_max_epu32(most));
}

/* One more where random, 16 bits, falls below x's share of the way from low to the next code's value */
INLINE __m512i round_up(__m512i code, __m512i random, __m512 width, __m512 above)
{
	__m512 u = _mm512_mul_ps(_mm512_cvtepi32_ps(random), _mm512_set1_ps(INT8_RANDOM_UNIT));
	__mmask16 up = _mm512_cmp_ps_mask(_mm512_mul_ps(u, width), above, _CMP_LT_OQ);
	return _mm512_mask_add_epi32(code, up, code, _mm512_set1_epi32(1));
}

INLINE void store_codes_m(char *to, int r, __m512 x, float inverse, __m512i random)
{
	__m512 z = _mm512_mul_ps(_mm512_mul_ps(absolute(x), _mm512_set1_ps(inverse)), _mm512_set1_ps(INT8_M_SPAN));
	__m512i code = _mm512_cvttps_epi32(_mm512_min_ps(_mm512_sqrt_ps(z), _mm512_set1_ps(INT8_M_TOP)));
	__m512 c = _mm512_cvtepi32_ps(code), width = _mm512_add_ps(_mm512_add_ps(c, c), _mm512_set1_ps(1));
	code = round_up(code, random, width, _mm512_sub_ps(z, _mm512_mul_ps(c, c)));
	code = _mm512_min_epi32(code, _mm512_set1_epi32(127));
	__mmask16 negative = _mm512_cmplt_epi32_mask(_mm512_castps_si512(x), _mm512_setzero_si512());
	code = _mm512_mask_sub_epi32(code, negative, _mm512_setzero_si512(), code);
	_mm_storeu_si128((__m128i *)to + r, _mm512_cvtepi32_epi8(code));
}

INLINE void store_codes_v(char *to, int r, __m512 x, __m512 root, float inverse, float root_inverse, __m512i random)
{
	const __m512 one = _mm512_set1_ps(1), top = _mm512_set1_ps(INT8_V_TOP);
	__m512 z = _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(inverse)), _mm512_set1_ps(INT8_V_SPAN));
	__m512 at = _mm512_mul_ps(_mm512_sqrt_ps(_mm512_mul_ps(root, _mm512_set1_ps(root_inverse))), top);
	__m512i code = _mm512_cvttps_epi32(_mm512_min_ps(at, top));
	__m512 c = _mm512_cvtepi32_ps(code), n = _mm512_add_ps(c, one);
	__m512 low = _mm512_mul_ps(c, c), high = _mm512_mul_ps(n, n);
	low = _mm512_mul_ps(low, low);
	high = _mm512_mul_ps(high, high);
	code = round_up(code, random, _mm512_sub_ps(high, low), _mm512_sub_ps(z, low));
	code = _mm512_min_epi32(code, _mm512_set1_epi32(255));
	__mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
	code = _mm512_mask_max_epi32(code, positive, code, _mm512_set1_epi32(INT8_V_LEAST));
	_mm_storeu_si128((__m128i *)to + r, _mm512_cvtepi32_epi8(code));
}

INLINE void store_codes(char *m, char *v, float *m_scale, float *v_scale, const __m512 m1[REGS], const __m512 v1[REGS],
	const __m512 root[REGS], __m512i random)
{
	float scale_m = scale_of(m1), scale_v = scale_of(v1);
	float inverse_m = int8_inverse(scale_m), inverse_v = int8_inverse(scale_v), root_inverse = sqrtf(inverse_v);
#pragma GCC unroll 4
	for (int r = 0; r < REGS; r++) {
		store_codes_m(m, r, m1[r], inverse_m, _mm512_and_si512(random, _mm512_set1_epi32(0xffff)));
		store_codes_v(v, r, v1[r], root[r], inverse_v, root_inverse, _mm512_srli_epi32(random, 16));
		random = _mm512_rol_epi32(random, 8);
	}
	*m_scale = scale_m;
	*v_scale = scale_v;
}

INLINE void groups(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay, const bool bf16, const bool g_bf16, const bool two,
	const enum mt_dtype state)
{
	const __m512 clip = _mm512_set1_ps(a->clip), lerp = _mm512_set1_ps(a->lerp), beta2 = _mm512_set1_ps(a->beta2),
				 rest2 = _mm512_set1_ps(a->one_minus_beta2), step = _mm512_set1_ps(a->neg_step),
				 bias2 = _mm512_set1_ps(a->sqrt_bias2), eps = _mm512_set1_ps(a->eps), keep = _mm512_set1_ps(decay);
	const __mmask16 from_g = a->lerp_from_g ? 0xffff : 0;
	const int gb = g_bf16 ? 2 : 4, sb = state == MT_INT8 ? 1 : state == MT_BF16 ? 2 : 4;
	uint32_t slot = partition_slot(atomic_load_explicit(&partition->index, memory_order_relaxed));
	for (uint64_t group = first; group < end; group++) {
		uint64_t i = group * MT_GROUP, gi = (group - t->g_group) * MT_GROUP;
		uint16_t *w16 = (uint16_t *)t->w + i;
		int16_t *lo16 = bf16 ? t->lo + i : NULL;
		float *w32 = (float *)t->w + i;
		char *m = (char *)t->m + i * sb, *v = (char *)t->v + i * sb;
		const char *g0 = (const char *)t->g[0] + gi * gb, *g1 = two ? (const char *)t->g[1] + gi * gb : NULL;
		if (bf16) {
			prefetch(w16 + AHEAD * MT_GROUP, MT_GROUP * 2);
			prefetch(lo16 + AHEAD * MT_GROUP, MT_GROUP * 2);
		} else prefetch(w32 + AHEAD * MT_GROUP, MT_GROUP * 4);
		prefetch(m + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		prefetch(v + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		prefetch(g0 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);
		if (two) prefetch(g1 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);

		__m512i random = state != MT_FP32 ? random_of(rounding_key(tag, group)) : _mm512_setzero_si512();
		slot ^= 1;
		uint8_t *old = partition->slot[slot];
		__m512 p[REGS], m0[REGS], v0[REGS], root[REGS];
		float m_scale = 0, v_scale = 0;
		if (state == MT_INT8) {
			m_scale = t->m_scale[group];
			v_scale = t->v_scale[group];
			memcpy(old + SLOT_M + SLOT_SCALE, &m_scale, sizeof m_scale);
			memcpy(old + SLOT_V + SLOT_SCALE, &v_scale, sizeof v_scale);
		}
#pragma GCC unroll 4
		for (int r = 0; r < REGS; r++) {
			if (bf16) {
				__m256i hi = _mm256_loadu_si256((const __m256i *)(w16 + r * WIDTH));
				__m256i lo = _mm256_loadu_si256((const __m256i *)(lo16 + r * WIDTH));
				_mm256_storeu_si256((__m256i *)(old + SLOT_W) + r, hi);
				_mm256_storeu_si256((__m256i *)(old + SLOT_LO) + r, lo);
				p[r] = join(hi, lo);
			} else {
				p[r] = _mm512_loadu_ps(w32 + r * WIDTH);
				_mm512_storeu_ps((float *)(old + SLOT_W) + r * WIDTH, p[r]);
			}
			if (state == MT_INT8) {
				m0[r] = load_codes_m(m, old + SLOT_M, r, m_scale);
				v0[r] = load_codes_v(v, old + SLOT_V, r, v_scale);
			} else {
				m0[r] = load_state(m, old + SLOT_M, r, state);
				v0[r] = load_state(v, old + SLOT_V, r, state);
			}
		}
		partition_commit(partition, tag | (uint64_t)slot << 27 | group);
#pragma GCC unroll 4
		for (int r = 0; r < REGS; r++) {
			__m512 g = load_g(g0, r * WIDTH, g_bf16);
			if (two) g = _mm512_add_ps(g, load_g(g1, r * WIDTH, g_bf16));
			g = _mm512_mul_ps(g, clip);
			__m512 from = _mm512_mask_blend_ps(from_g, m0[r], g);
			__m512 m1 = _mm512_add_ps(from, _mm512_mul_ps(_mm512_sub_ps(g, m0[r]), lerp));
			__m512 v1 = _mm512_add_ps(_mm512_mul_ps(v0[r], beta2), _mm512_mul_ps(_mm512_mul_ps(g, rest2), g));
			root[r] = _mm512_sqrt_ps(v1);
			__m512 denom = _mm512_add_ps(_mm512_div_ps(root[r], bias2), eps);
			__m512 p1 = _mm512_add_ps(_mm512_mul_ps(p[r], keep), _mm512_div_ps(_mm512_mul_ps(m1, step), denom));
			if (bf16) {
				__m512i bits = _mm512_castps_si512(p1);
				__m512i hi = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
				_mm256_storeu_si256((__m256i *)(w16 + r * WIDTH), _mm512_cvtepi32_epi16(hi));
				_mm256_storeu_si256((__m256i *)(lo16 + r * WIDTH), _mm512_cvtepi32_epi16(bits));
			} else _mm512_storeu_ps(w32 + r * WIDTH, p1);
			if (state == MT_INT8) { /* when the group's scales are known */
				m0[r] = m1;
				v0[r] = v1;
				continue;
			}
			store_state(m, r, m1, _mm512_and_si512(random, _mm512_set1_epi32(0xffff)), state);
			store_state(v, r, v1, _mm512_srli_epi32(random, 16), state);
			random = _mm512_rol_epi32(random, 8);
		}
		if (state == MT_INT8) store_codes(m, v, t->m_scale + group, t->v_scale + group, m0, v0, root, random);
	}
}

ISA void adamw_avx512(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	ADAMW_SPECIALISE(groups);
}
#else
typedef int adamw_avx512_is_for_x86_64;
#endif
