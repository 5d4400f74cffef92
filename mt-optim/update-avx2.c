/* update-avx2.c: update_scalar eight at a time. A group does not fit sixteen registers, so its old state is copied to
 * the journal first and read again, from the first-level cache, after the index. */
#if defined __x86_64__
#include <immintrin.h>

#include "update.h"

#define ISA __attribute__((target("avx2,fma")))
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

INLINE __m256 load(const void *from, int i, bool bf16) /* eight of g, m or v */
{
	if (!bf16) return _mm256_loadu_ps((const float *)from + i);
	__m128i b = _mm_loadu_si128((const __m128i *)((const uint16_t *)from + i));
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

INLINE __m256i both(__m256i x, uint32_t mask) { return _mm256_and_si256(x, _mm256_set1_epi32((int)mask)); }

INLINE void store_upper(char *to, int j, __m256i x) { store16((uint16_t *)to + j, _mm256_srli_epi32(x, 16)); }

/* rounding_word of elements j .. j + 7, j 0 or 8, and of those 16 later; those of 32 later are these turned */
INLINE __m256i random_of(uint32_t key, int j)
{
	__m256i factors = _mm256_loadu_si256((const __m256i *)(rounding_factors + j));
	__m256i x = _mm256_mullo_epi32(factors, _mm256_set1_epi32((int)key));
	return _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
}

INLINE __m256i turn(__m256i x)
{
	return _mm256_or_si256(_mm256_slli_epi32(x, ROUNDING_TURN), _mm256_srli_epi32(x, 32 - ROUNDING_TURN));
}

INLINE __m256i high_number(__m256i word, int bits) { return _mm256_srli_epi32(word, 32 - bits); }
INLINE __m256i low_number(__m256i word, int bits) { return both(word, (1u << bits) - 1); }

/* ---- int8: the functions of shm/model/int8.h, eight at a time. Half h of a group's codes is one register; byte r of
 * its words are the codes of elements 16 r + 8 h .. 16 r + 8 h + 7. ---- */

/* Up where positive */
INLINE __m256i shift(__m256i x, int up) { return up < 0 ? _mm256_srli_epi32(x, -up) : _mm256_slli_epi32(x, up); }

/* Of scale 1; -0 where the code is that of 0 */
INLINE __m256 decode_m(__m256i codes, int r)
{
	__m256i x = both(shift(codes, INT8_CUT - 8 * r), 0x7fu << INT8_CUT),
			sign = both(shift(codes, 24 - 8 * r), 0x80000000);
	__m256i is0 = _mm256_cmpeq_epi32(x, _mm256_setzero_si256());
	x = _mm256_or_si256(_mm256_add_epi32(x, _mm256_set1_epi32((int)INT8_M_BASE)), sign);
	return _mm256_blendv_ps(_mm256_castsi256_ps(x), _mm256_set1_ps(-0.0f), _mm256_castsi256_ps(is0));
}

INLINE __m256 decode_v(__m256i codes, int r)
{
	__m256i x = both(shift(codes, INT8_CUT - 8 * r), 0xffu << INT8_CUT);
	return _mm256_castsi256_ps(_mm256_add_epi32(x, _mm256_set1_epi32((int)INT8_V_BASE)));
}

INLINE float scale_of(__m256i most)
{
	__m128i four = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
	four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
	four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
	return int8_scale((uint32_t)_mm_cvtsi128_si32(four));
}

struct rounded { /* m and v of a group after the update, before its scales are known; the largest of each lane */
	__m256i m[MT_GROUP / WIDTH], v[MT_GROUP / WIDTH], most_m, most_v;
};

INLINE void keep_rounded(struct rounded *x, int k, __m256i m, __m256i v) /* v: 0 where there is none */
{
	x->m[k] = m;
	x->v[k] = v;
	x->most_m = _mm256_max_epu32(x->most_m, both(x->m[k], 0x7fffffff));
	x->most_v = _mm256_max_epu32(x->most_v, x->v[k]);
}

/* The upper 12 bits of two registers of patterns, in 16 each: from each half of both */
INLINE __m256i upper_12(__m256i x, __m256i y)
{
	return _mm256_packus_epi32(_mm256_srli_epi32(x, INT8_CUT), _mm256_srli_epi32(y, INT8_CUT));
}

INLINE __m256i all16(uint32_t x) { return _mm256_set1_epi16((short)x); }

INLINE __m256i m_codes(__m256i x, __m256i base)
{
	__m256i code = _mm256_subs_epu16(_mm256_and_si256(x, all16(0x7ff)), base);
	__m256i sign = _mm256_and_si256(_mm256_srli_epi16(x, 4), all16(0x80));
	return _mm256_or_si256(_mm256_and_si256(code, all16(0x7f)), sign);
}

INLINE __m256i v_codes(__m256i x, __m256i base) { return _mm256_and_si256(_mm256_subs_epu16(x, base), all16(0xff)); }

/* Codes of upper_12 of registers 0 and 1, and of 2 and 3: byte r of each word is register r's */
INLINE void store_bytes(char *to, __m256i x, __m256i y)
{
	const __m256i order = _mm256_broadcastsi128_si256(
		_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
	_mm256_storeu_si256((__m256i *)to, _mm256_shuffle_epi8(_mm256_packus_epi16(x, y), order));
}

INLINE void store_codes(char *m, char *v, float *m_scale, float *v_scale, const struct rounded *x, const bool has_v)
{
	*m_scale = scale_of(x->most_m);
	if (has_v) *v_scale = scale_of(x->most_v);
	__m256i base_m = all16((mt_bits(*m_scale) - (INT8_ONE - INT8_M_BASE)) >> INT8_CUT);
	__m256i base_v = all16(((has_v ? mt_bits(*v_scale) : 0) - (INT8_ONE - INT8_V_BASE)) >> INT8_CUT);
	for (int h = 0; h < 2; h++) {
		const __m256i *a = x->m + h, *b = x->v + h;
		store_bytes(m + 32 * h, m_codes(upper_12(a[0], a[2]), base_m), m_codes(upper_12(a[4], a[6]), base_m));
		if (has_v)
			store_bytes(v + 32 * h, v_codes(upper_12(b[0], b[2]), base_v), v_codes(upper_12(b[4], b[6]), base_v));
	}
}

/* ---- the rules of update.h, eight at a time ---- */

INLINE __m256 advance(__m256 p, __m256 *m, __m256 *v, __m256 g, const struct scalars *a, float decay)
{
	g = _mm256_mul_ps(g, _mm256_set1_ps(a->clip));
	const __m256 from_g = _mm256_castsi256_ps(_mm256_set1_epi32(a->lerp_from_g ? -1 : 0));
	__m256 from = _mm256_blendv_ps(*m, g, from_g),
		   g2 = _mm256_mul_ps(_mm256_mul_ps(g, _mm256_set1_ps(a->one_minus_beta2)), g);
	*m = _mm256_add_ps(from, _mm256_mul_ps(_mm256_sub_ps(g, *m), _mm256_set1_ps(a->lerp)));
	*v = _mm256_add_ps(_mm256_mul_ps(*v, _mm256_set1_ps(a->beta2)), g2);
	__m256 root = _mm256_div_ps(_mm256_sqrt_ps(*v), _mm256_set1_ps(a->sqrt_bias2));
	__m256 denom = _mm256_add_ps(root, _mm256_set1_ps(a->eps));
	__m256 step = _mm256_div_ps(_mm256_mul_ps(*m, _mm256_set1_ps(a->neg_step)), denom);
	return _mm256_add_ps(_mm256_mul_ps(p, _mm256_set1_ps(decay)), step);
}

/* keep_m, keep_v: beta1 and beta2; int8: times the scales */
INLINE void advance_fused(__m256 *m, __m256 *v, __m256 g, const struct scalars *a, __m256 keep_m, __m256 keep_v)
{
	__m256 g1 = _mm256_mul_ps(g, _mm256_set1_ps(a->clip_lerp)), g2 = _mm256_mul_ps(g, _mm256_set1_ps(a->clip_root2));
	*m = _mm256_fmadd_ps(*m, keep_m, g1);
	*v = _mm256_fmadd_ps(g2, g2, _mm256_mul_ps(*v, keep_v));
}

/* int8_root of eight */
INLINE __m256 root_of(__m256i rounded)
{
	__m256i x = _mm256_srli_epi32(rounded, INT8_CUT);
	__m256i even = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)int8_roots), x);
	__m256i odd = _mm256_permutevar8x32_epi32(_mm256_loadu_si256((const __m256i *)(int8_roots + 8)), x);
	__m256 is_odd = _mm256_castsi256_ps(_mm256_slli_epi32(x, 31 - 3)); /* the lowest bit of the exponent */
	__m256 root = _mm256_blendv_ps(_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd), is_odd);
	x = _mm256_slli_epi32(x, INT8_CUT - 1);
	return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(root), x));
}

INLINE __m256 step_fused(__m256 p, __m256 m, __m256 root, const struct scalars *a, float decay)
{
	__m256 denom = _mm256_fmadd_ps(root, _mm256_set1_ps(a->per_step), _mm256_set1_ps(a->eps_per_step));
	return _mm256_fmadd_ps(p, _mm256_set1_ps(decay), _mm256_div_ps(m, denom));
}

INLINE __m256 lion(__m256 p, __m256 *m, __m256 g, const struct scalars *a, float decay)
{
	const __m256 one = _mm256_set1_ps(1), zero = _mm256_setzero_ps();
	g = _mm256_mul_ps(g, _mm256_set1_ps(a->clip));
	__m256 c = _mm256_add_ps(_mm256_mul_ps(*m, _mm256_set1_ps(a->beta1)),
		_mm256_mul_ps(g, _mm256_set1_ps(a->one_minus_beta1)));
	__m256 sign = _mm256_sub_ps(_mm256_and_ps(_mm256_cmp_ps(c, zero, _CMP_GT_OQ), one),
		_mm256_and_ps(_mm256_cmp_ps(c, zero, _CMP_LT_OQ), one));
	*m = _mm256_add_ps(_mm256_mul_ps(*m, _mm256_set1_ps(a->beta2)),
		_mm256_mul_ps(g, _mm256_set1_ps(a->one_minus_beta2)));
	return _mm256_add_ps(_mm256_mul_ps(p, _mm256_set1_ps(decay)), _mm256_mul_ps(sign, _mm256_set1_ps(a->neg_step)));
}

INLINE __m256 sgd(__m256 p, __m256 *m, __m256 g, const struct scalars *a, float decay)
{
	g = _mm256_add_ps(_mm256_mul_ps(g, _mm256_set1_ps(a->clip)), _mm256_mul_ps(p, _mm256_set1_ps(decay)));
	*m = _mm256_add_ps(_mm256_mul_ps(*m, _mm256_set1_ps(a->beta1)), g);
	return _mm256_add_ps(p, _mm256_mul_ps(*m, _mm256_set1_ps(a->neg_step)));
}

INLINE void groups(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay, const bool bf16, const bool g_bf16, const bool two,
	const enum mt_optim optim, const enum mt_dtype state)
{
	const int gb = g_bf16 ? 2 : 4, sb = state == MT_INT8 ? 1 : state == MT_BF16 ? 2 : 4;
	const bool has_v = optim == MT_ADAMW;
	const struct scalars scalars = *a; /* so that no store can change them */
	uint32_t slot = partition_slot(atomic_load_explicit(&partition->index, memory_order_relaxed));
	for (uint64_t group = first; group < end; group++) {
		uint64_t i = group * MT_GROUP, gi = (group - t->g_group) * MT_GROUP;
		uint16_t *w16 = (uint16_t *)t->w + i;
		int16_t *lo16 = bf16 ? t->lo + i : NULL;
		float *w32 = (float *)t->w + i;
		char *m = (char *)t->m + i * sb, *v = has_v ? (char *)t->v + i * sb : NULL;
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
		if (has_v) copy(old + SLOT_V, v, MT_GROUP * sb);
		__m256 keep_m = _mm256_set1_ps(scalars.beta1), keep_v = _mm256_set1_ps(scalars.beta2),
			   scale = _mm256_setzero_ps(); /* m's, of int8 */
		if (state == MT_INT8) {
			memcpy(old + SLOT_M + SLOT_SCALE, t->m_scale + group, sizeof(float));
			if (has_v) memcpy(old + SLOT_V + SLOT_SCALE, t->v_scale + group, sizeof(float));
			scale = _mm256_set1_ps(t->m_scale[group]);
			keep_m = _mm256_mul_ps(keep_m, scale);
			if (has_v) keep_v = _mm256_mul_ps(keep_v, _mm256_set1_ps(t->v_scale[group]));
		}
		prefetch(m + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		if (has_v) prefetch(v + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		prefetch(g0 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);
		if (two) prefetch(g1 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);
		partition_commit(partition, tag | (uint64_t)slot << 27 | group);
		__m256i random[2]; /* words of the next eight elements, and of those after */
		if (state != MT_FP32) {
			uint32_t key = rounding_key(tag, group);
			random[0] = random_of(key, 0);
			random[1] = random_of(key, 8);
		}
		struct rounded rounded = {.most_m = _mm256_setzero_si256(), .most_v = _mm256_setzero_si256()};
#pragma GCC unroll 8
		for (int j = 0; j < MT_GROUP; j += WIDTH) {
			const int r = j / 16, h = j / 8 % 2;
			__m256 x, y = _mm256_setzero_ps();
			if (state == MT_INT8) {
				x = decode_m(_mm256_loadu_si256((const __m256i *)m + h), r);
				if (has_v) y = decode_v(_mm256_loadu_si256((const __m256i *)v + h), r);
				else x = _mm256_mul_ps(x, scale); /* int8_m; adamw has keep_m for it */
			} else {
				x = load(m, j, state == MT_BF16);
				if (has_v) y = load(v, j, state == MT_BF16);
			}
			__m256 g = load(g0, j, g_bf16), p = bf16 ? load_join(w16 + j, lo16 + j) : _mm256_loadu_ps(w32 + j);
			if (two) g = _mm256_add_ps(g, load(g1, j, g_bf16));
			__m256i new_x, new_y = _mm256_setzero_si256(); /* rounded */
			if (optim == MT_LION) p = lion(p, &x, g, &scalars, decay);
			else if (optim == MT_SGD) p = sgd(p, &x, g, &scalars, decay);
			else if (state == MT_FP32) p = advance(p, &x, &y, g, &scalars, decay);
			else advance_fused(&x, &y, g, &scalars, keep_m, keep_v);
			if (state != MT_FP32) {
				const int bits = state == MT_INT8 ? INT8_CUT : 16;
				__m256i high = high_number(random[h], bits), low = low_number(random[h], bits);
				new_x = _mm256_add_epi32(_mm256_castps_si256(x), r % 2 ? low : high);
				if (has_v) new_y = _mm256_add_epi32(_mm256_castps_si256(y), r % 2 ? high : low);
				if (has_v) p = step_fused(p, x, state == MT_INT8 ? root_of(new_y) : _mm256_sqrt_ps(y), &scalars, decay);
				if (r % 2) random[h] = turn(random[h]);
			}
			if (bf16) {
				__m256i bits = _mm256_castps_si256(p);
				store16(w16 + j, _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16));
				store16(lo16 + j, bits);
			} else _mm256_storeu_ps(w32 + j, p);
			if (state == MT_INT8) keep_rounded(&rounded, j / WIDTH, new_x, new_y);
			else if (state == MT_BF16) {
				store_upper(m, j, new_x);
				if (has_v) store_upper(v, j, new_y);
			} else {
				_mm256_storeu_ps((float *)m + j, x);
				if (has_v) _mm256_storeu_ps((float *)v + j, y);
			}
		}
		if (state == MT_INT8) store_codes(m, v, t->m_scale + group, t->v_scale + group, &rounded, has_v);
	}
}

ISA void update_avx2(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	ADAMW_SPECIALISE(groups);
}
#else
typedef int update_avx2_is_for_x86_64;
#endif
