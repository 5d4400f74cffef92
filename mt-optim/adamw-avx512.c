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
INLINE __m512 load_state(const char *from, uint8_t *old, int r, bool bf16)
{
	if (!bf16) {
		__m512 x = _mm512_loadu_ps((const float *)from + r * WIDTH);
		_mm512_storeu_ps((float *)old + r * WIDTH, x);
		return x;
	}
	__m256i x = _mm256_loadu_si256((const __m256i *)from + r);
	_mm256_storeu_si256((__m256i *)old + r, x);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* random: 16 bits of each */
INLINE void store_state(char *to, int r, __m512 x, __m512i random, bool bf16)
{
	if (!bf16) {
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

INLINE void groups(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay, const bool bf16, const bool g_bf16, const bool two,
	const bool state_bf16)
{
	const __m512 clip = _mm512_set1_ps(a->clip), lerp = _mm512_set1_ps(a->lerp), beta2 = _mm512_set1_ps(a->beta2),
				 rest2 = _mm512_set1_ps(a->one_minus_beta2), step = _mm512_set1_ps(a->neg_step),
				 bias2 = _mm512_set1_ps(a->sqrt_bias2), eps = _mm512_set1_ps(a->eps), keep = _mm512_set1_ps(decay);
	const __mmask16 from_g = a->lerp_from_g ? 0xffff : 0;
	const int gb = g_bf16 ? 2 : 4, sb = state_bf16 ? 2 : 4;
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

		__m512i random = state_bf16 ? random_of(rounding_key(tag, group)) : _mm512_setzero_si512();
		slot ^= 1;
		uint8_t *old = partition->slot[slot];
		__m512 p[REGS], m0[REGS], v0[REGS];
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
			m0[r] = load_state(m, old + SLOT_M, r, state_bf16);
			v0[r] = load_state(v, old + SLOT_V, r, state_bf16);
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
			__m512 denom = _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(v1), bias2), eps);
			__m512 p1 = _mm512_add_ps(_mm512_mul_ps(p[r], keep), _mm512_div_ps(_mm512_mul_ps(m1, step), denom));
			if (bf16) {
				__m512i bits = _mm512_castps_si512(p1);
				__m512i hi = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
				_mm256_storeu_si256((__m256i *)(w16 + r * WIDTH), _mm512_cvtepi32_epi16(hi));
				_mm256_storeu_si256((__m256i *)(lo16 + r * WIDTH), _mm512_cvtepi32_epi16(bits));
			} else _mm512_storeu_ps(w32 + r * WIDTH, p1);
			store_state(m, r, m1, _mm512_and_si512(random, _mm512_set1_epi32(0xffff)), state_bf16);
			store_state(v, r, v1, _mm512_srli_epi32(random, 16), state_bf16);
			random = _mm512_rol_epi32(random, 8);
		}
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
