/* adamw-avx2.c: adamw_scalar eight at a time. A group does not fit sixteen registers, so its old state is copied to the
 * journal first and read again, from the first-level cache, after the index. */
#if defined __x86_64__
#include <immintrin.h>

#include "adamw.h"

#define ISA __attribute__((target("avx2")))
#define INLINE ISA static inline __attribute__((always_inline))

enum { WIDTH = 8, AHEAD = 6 }; /* groups to prefetch ahead: 384 elements */

INLINE void prefetch(const void *p, int bytes)
{
	for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

INLINE void copy(void *to, const void *from, int bytes)
{
	for (int i = 0; i < bytes; i += 32)
		_mm256_storeu_si256((__m256i *)((char *)to + i), _mm256_loadu_si256((const __m256i *)((const char *)from + i)));
}

INLINE __m256 load_g(const void *g, uint64_t i, bool g_bf16)
{
	if (!g_bf16) return _mm256_loadu_ps((const float *)g + i);
	__m128i b = _mm_loadu_si128((const __m128i *)((const uint16_t *)g + i));
	return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
}

INLINE __m256 load_join(const uint16_t *w, const int16_t *lo) /* mt_join */
{
	__m256i hi = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)w)), 16);
	__m256i low = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)lo));
	return _mm256_castsi256_ps(_mm256_add_epi32(hi, low));
}

INLINE void store16(void *p, __m256i x) /* the low half of each of eight */
{
	__m256i packed = _mm256_packus_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0xffff)), _mm256_setzero_si256());
	_mm_storeu_si128(p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

INLINE __m256 load_state(const char *from, int j, enum mt_dtype state)
{
	return load_g(from, (uint64_t)j, state == MT_BF16);
}

/* random: 16 bits of each */
INLINE void store_state(char *to, int j, __m256 x, __m256i random, enum mt_dtype state)
{
	if (state == MT_BF16)
		store16((uint16_t *)to + j, _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), random), 16));
	else _mm256_storeu_ps((float *)to + j, x);
}

INLINE __m256i mix(__m256i x, int shift, uint32_t factor)
{
	return _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, shift)), _mm256_set1_epi32((int)factor));
}

/* rounding_bits of elements j .. j + 7, j 0 or 8; those of 16 r later are these turned left by 8 r bits */
INLINE __m256i random_of(uint32_t key, int j)
{
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	__m256i x = _mm256_mullo_epi32(_mm256_add_epi32(lane, _mm256_set1_epi32(j)), _mm256_set1_epi32((int)ROUNDING_STEP));
	x = mix(_mm256_add_epi32(x, _mm256_set1_epi32((int)key)), 16, ROUNDING_MIX1);
	x = mix(x, 15, ROUNDING_MIX2);
	return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

INLINE __m256i turn(__m256i x) { return _mm256_or_si256(_mm256_slli_epi32(x, 8), _mm256_srli_epi32(x, 24)); }

/* ---- int8: the functions of shm/model/int8.h, eight at a time ---- */

INLINE __m256 absolute(__m256 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }

INLINE __m256 load_codes_m(const char *from, int j, float scale)
{
	__m256i code = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(from + j)));
	__m256 t = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(INT8_M_UNIT));
	return _mm256_mul_ps(_mm256_mul_ps(t, absolute(t)), _mm256_set1_ps(scale));
}

INLINE __m256 load_codes_v(const char *from, int j, float scale)
{
	__m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + j)));
	__m256 t = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(INT8_V_UNIT));
	t = _mm256_mul_ps(t, t);
	return _mm256_mul_ps(_mm256_mul_ps(t, t), _mm256_set1_ps(scale));
}

INLINE void store8(char *to, __m256i x) /* the low byte of each of eight */
{
	const __m256i low = _mm256_set1_epi32(0x0c080400); /* in each half, to its first four bytes */
	x = _mm256_shuffle_epi8(x, low);
	_mm_storel_epi64((__m128i *)to, _mm_unpacklo_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

INLINE __m256i larger(__m256i scale, __m256 x) { return _mm256_max_epu32(scale, _mm256_castps_si256(absolute(x))); }

INLINE float largest(__m256i x)
{
	__m128i four = _mm_max_epu32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
	four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
	four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
	return mt_float((uint32_t)_mm_cvtsi128_si32(four));
}

/* One more where random, 16 bits, falls below x's share of the way from low to the next code's value */
INLINE __m256i round_up(__m256i code, __m256i random, __m256 width, __m256 above)
{
	__m256 u = _mm256_mul_ps(_mm256_cvtepi32_ps(random), _mm256_set1_ps(INT8_RANDOM_UNIT));
	__m256 up = _mm256_cmp_ps(_mm256_mul_ps(u, width), above, _CMP_LT_OQ); /* -1 where it does */
	return _mm256_sub_epi32(code, _mm256_castps_si256(up));
}

INLINE void store_codes_m(char *to, __m256 x, float inverse, __m256i random)
{
	__m256 z = _mm256_mul_ps(_mm256_mul_ps(absolute(x), _mm256_set1_ps(inverse)), _mm256_set1_ps(INT8_M_SPAN));
	__m256i code = _mm256_cvttps_epi32(_mm256_min_ps(_mm256_sqrt_ps(z), _mm256_set1_ps(INT8_M_TOP)));
	__m256 c = _mm256_cvtepi32_ps(code), width = _mm256_add_ps(_mm256_add_ps(c, c), _mm256_set1_ps(1));
	code = round_up(code, random, width, _mm256_sub_ps(z, _mm256_mul_ps(c, c)));
	code = _mm256_min_epi32(code, _mm256_set1_epi32(127));
	store8(to, _mm256_sign_epi32(code, _mm256_castps_si256(x))); /* + 0 has code 0 already */
}

INLINE void store_codes_v(char *to, __m256 x, __m256 root, float inverse, float root_inverse, __m256i random)
{
	const __m256 one = _mm256_set1_ps(1), top = _mm256_set1_ps(INT8_V_TOP);
	__m256 z = _mm256_mul_ps(_mm256_mul_ps(x, _mm256_set1_ps(inverse)), _mm256_set1_ps(INT8_V_SPAN));
	__m256 at = _mm256_mul_ps(_mm256_sqrt_ps(_mm256_mul_ps(root, _mm256_set1_ps(root_inverse))), top);
	__m256i code = _mm256_cvttps_epi32(_mm256_min_ps(at, top));
	__m256 c = _mm256_cvtepi32_ps(code), n = _mm256_add_ps(c, one);
	__m256 low = _mm256_mul_ps(c, c), high = _mm256_mul_ps(n, n);
	low = _mm256_mul_ps(low, low);
	high = _mm256_mul_ps(high, high);
	code = round_up(code, random, _mm256_sub_ps(high, low), _mm256_sub_ps(z, low));
	code = _mm256_min_epi32(code, _mm256_set1_epi32(255));
	__m256 positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ);
	__m256i least = _mm256_and_si256(_mm256_castps_si256(positive), _mm256_set1_epi32(INT8_V_LEAST));
	store8(to, _mm256_max_epi32(code, least));
}

struct fresh { /* m, v and sqrt(v) of a group after the update, before they are coded */
	float m[MT_GROUP], v[MT_GROUP], root[MT_GROUP];
};

/* most_m, most_v: bits of the largest |m| and |v|, in any of the eight. next, later: see groups */
INLINE void store_codes(char *m, char *v, float *m_scale, float *v_scale, const struct fresh *f, __m256i most_m,
	__m256i most_v, __m256i next, __m256i later)
{
	float scale_m = largest(most_m), scale_v = largest(most_v);
	float inverse_m = int8_inverse(scale_m), inverse_v = int8_inverse(scale_v), root_inverse = sqrtf(inverse_v);
	for (int j = 0; j < MT_GROUP; j += WIDTH) {
		__m256i random = next;
		store_codes_m(m + j, _mm256_loadu_ps(f->m + j), inverse_m, _mm256_and_si256(random, _mm256_set1_epi32(0xffff)));
		store_codes_v(v + j, _mm256_loadu_ps(f->v + j), _mm256_loadu_ps(f->root + j), inverse_v, root_inverse,
			_mm256_srli_epi32(random, 16));
		next = later;
		later = turn(random);
	}
	*m_scale = scale_m;
	*v_scale = scale_v;
}

INLINE void groups(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay, const bool bf16, const bool g_bf16, const bool two,
	const enum mt_dtype state)
{
	const __m256 clip = _mm256_set1_ps(a->clip), lerp = _mm256_set1_ps(a->lerp), beta2 = _mm256_set1_ps(a->beta2),
				 rest2 = _mm256_set1_ps(a->one_minus_beta2), step = _mm256_set1_ps(a->neg_step),
				 bias2 = _mm256_set1_ps(a->sqrt_bias2), eps = _mm256_set1_ps(a->eps), keep = _mm256_set1_ps(decay);
	const __m256 from_g = _mm256_castsi256_ps(_mm256_set1_epi32(a->lerp_from_g ? -1 : 0));
	const int gb = g_bf16 ? 2 : 4, sb = state == MT_INT8 ? 1 : state == MT_BF16 ? 2 : 4;
	uint32_t slot = partition_slot(atomic_load_explicit(&partition->index, memory_order_relaxed));
	for (uint64_t group = first; group < end; group++) {
		uint64_t i = group * MT_GROUP, gi = (group - t->g_group) * MT_GROUP;
		uint16_t *w16 = (uint16_t *)t->w + i;
		int16_t *lo16 = bf16 ? t->lo + i : NULL;
		float *w32 = (float *)t->w + i;
		char *m = (char *)t->m + i * sb, *v = (char *)t->v + i * sb;
		const char *g0 = (const char *)t->g[0] + gi * gb, *g1 = two ? (const char *)t->g[1] + gi * gb : NULL;
		slot ^= 1;
		uint8_t *old = partition->slot[slot];
		if (bf16) {
			copy(old + SLOT_W, w16, MT_GROUP * 2);
			copy(old + SLOT_LO, lo16, MT_GROUP * 2);
			prefetch(w16 + AHEAD * MT_GROUP, MT_GROUP * 2);
			prefetch(lo16 + AHEAD * MT_GROUP, MT_GROUP * 2);
		} else {
			copy(old + SLOT_W, w32, MT_GROUP * 4);
			prefetch(w32 + AHEAD * MT_GROUP, MT_GROUP * 4);
		}
		copy(old + SLOT_M, m, MT_GROUP * sb);
		copy(old + SLOT_V, v, MT_GROUP * sb);
		float m_scale = 0, v_scale = 0;
		if (state == MT_INT8) {
			m_scale = t->m_scale[group];
			v_scale = t->v_scale[group];
			memcpy(old + SLOT_M + SLOT_SCALE, &m_scale, sizeof m_scale);
			memcpy(old + SLOT_V + SLOT_SCALE, &v_scale, sizeof v_scale);
		}
		prefetch(m + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		prefetch(v + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		prefetch(g0 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);
		if (two) prefetch(g1 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);
		partition_commit(partition, tag | (uint64_t)slot << 27 | group);
		__m256i next = _mm256_setzero_si256(),
				later = next; /* random bits of the next eight elements, and of those after */
		if (state != MT_FP32) {
			uint32_t key = rounding_key(tag, group);
			next = random_of(key, 0);
			later = random_of(key, 8);
		}
		struct fresh fresh;
		__m256i most_m = _mm256_setzero_si256(), most_v = most_m;
		for (int j = 0; j < MT_GROUP; j += WIDTH) {
			__m256 p = bf16 ? load_join(w16 + j, lo16 + j) : _mm256_loadu_ps(w32 + j);
			__m256 m0 = state == MT_INT8 ? load_codes_m(m, j, m_scale) : load_state(m, j, state);
			__m256 v0 = state == MT_INT8 ? load_codes_v(v, j, v_scale) : load_state(v, j, state);
			__m256 g = load_g(g0, j, g_bf16);
			if (two) g = _mm256_add_ps(g, load_g(g1, j, g_bf16));
			g = _mm256_mul_ps(g, clip);
			__m256 from = _mm256_blendv_ps(m0, g, from_g);
			__m256 m1 = _mm256_add_ps(from, _mm256_mul_ps(_mm256_sub_ps(g, m0), lerp));
			__m256 v1 = _mm256_add_ps(_mm256_mul_ps(v0, beta2), _mm256_mul_ps(_mm256_mul_ps(g, rest2), g));
			__m256 root = _mm256_sqrt_ps(v1);
			__m256 denom = _mm256_add_ps(_mm256_div_ps(root, bias2), eps);
			p = _mm256_add_ps(_mm256_mul_ps(p, keep), _mm256_div_ps(_mm256_mul_ps(m1, step), denom));
			if (bf16) {
				__m256i bits = _mm256_castps_si256(p);
				store16(w16 + j, _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16));
				store16(lo16 + j, bits);
			} else _mm256_storeu_ps(w32 + j, p);
			if (state == MT_INT8) {
				_mm256_storeu_ps(fresh.m + j, m1);
				_mm256_storeu_ps(fresh.v + j, v1);
				_mm256_storeu_ps(fresh.root + j, root);
				most_m = larger(most_m, m1);
				most_v = larger(most_v, v1);
				continue;
			}
			__m256i random = next;
			store_state(m, j, m1, _mm256_and_si256(random, _mm256_set1_epi32(0xffff)), state);
			store_state(v, j, v1, _mm256_srli_epi32(random, 16), state);
			if (state == MT_BF16) {
				next = later;
				later = turn(random);
			}
		}
		if (state == MT_INT8)
			store_codes(m, v, t->m_scale + group, t->v_scale + group, &fresh, most_m, most_v, next, later);
	}
}

ISA void adamw_avx2(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	ADAMW_SPECIALISE(groups);
}
#else
typedef int adamw_avx2_is_for_x86_64;
#endif
