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

INLINE __m256 load_state(const char *from, int j, bool bf16) { return load_g(from, (uint64_t)j, bf16); }

/* random: 16 bits of each */
INLINE void store_state(char *to, int j, __m256 x, __m256i random, bool bf16)
{
	if (bf16) store16((uint16_t *)to + j, _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(x), random), 16));
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

INLINE void groups(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay, const bool bf16, const bool g_bf16, const bool two,
	const bool state_bf16)
{
	const __m256 clip = _mm256_set1_ps(a->clip), lerp = _mm256_set1_ps(a->lerp), beta2 = _mm256_set1_ps(a->beta2),
				 rest2 = _mm256_set1_ps(a->one_minus_beta2), step = _mm256_set1_ps(a->neg_step),
				 bias2 = _mm256_set1_ps(a->sqrt_bias2), eps = _mm256_set1_ps(a->eps), keep = _mm256_set1_ps(decay);
	const __m256 from_g = _mm256_castsi256_ps(_mm256_set1_epi32(a->lerp_from_g ? -1 : 0));
	const int gb = g_bf16 ? 2 : 4, sb = state_bf16 ? 2 : 4;
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
		prefetch(m + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		prefetch(v + AHEAD * MT_GROUP * sb, MT_GROUP * sb);
		prefetch(g0 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);
		if (two) prefetch(g1 + AHEAD * MT_GROUP * gb, MT_GROUP * gb);
		partition_commit(partition, tag | (uint64_t)slot << 27 | group);
		__m256i next = _mm256_setzero_si256(),
				later = next; /* random bits of the next eight elements, and of those after */
		if (state_bf16) {
			uint32_t key = rounding_key(tag, group);
			next = random_of(key, 0);
			later = random_of(key, 8);
		}
		for (int j = 0; j < MT_GROUP; j += WIDTH) {
			__m256 p = bf16 ? load_join(w16 + j, lo16 + j) : _mm256_loadu_ps(w32 + j);
			__m256 m0 = load_state(m, j, state_bf16), v0 = load_state(v, j, state_bf16);
			__m256 g = load_g(g0, j, g_bf16);
			if (two) g = _mm256_add_ps(g, load_g(g1, j, g_bf16));
			g = _mm256_mul_ps(g, clip);
			__m256 from = _mm256_blendv_ps(m0, g, from_g);
			__m256 m1 = _mm256_add_ps(from, _mm256_mul_ps(_mm256_sub_ps(g, m0), lerp));
			__m256 v1 = _mm256_add_ps(_mm256_mul_ps(v0, beta2), _mm256_mul_ps(_mm256_mul_ps(g, rest2), g));
			__m256 denom = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(v1), bias2), eps);
			p = _mm256_add_ps(_mm256_mul_ps(p, keep), _mm256_div_ps(_mm256_mul_ps(m1, step), denom));
			if (bf16) {
				__m256i bits = _mm256_castps_si256(p);
				store16(w16 + j, _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16));
				store16(lo16 + j, bits);
			} else _mm256_storeu_ps(w32 + j, p);
			__m256i random = next;
			store_state(m, j, m1, _mm256_and_si256(random, _mm256_set1_epi32(0xffff)), state_bf16);
			store_state(v, j, v1, _mm256_srli_epi32(random, 16), state_bf16);
			if (state_bf16) {
				next = later;
				later = turn(random);
			}
		}
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
