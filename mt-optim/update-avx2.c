/* update-avx2.c: update_scalar eight at a time. A group does not fit sixteen registers, so its old state is copied to
 * the journal first and read again, from the first-level cache, after the index.
 *
 * With state in bf16 or int8, two registers have the even and the odd ones of 16 elements: 16 halves come apart in two
 * operations and are packed in two, instead of four and eight. Only what is fp32 in memory must be permuted then. */
#if defined __x86_64__
#include <immintrin.h>

#define ISA __attribute__((target("avx2,fma")))
#define vec __m256
#define vec_all _mm256_set1_ps
#define vec_sqrt _mm256_sqrt_ps
#define vec_fma _mm256_fmadd_ps
#include "update-simd.h"

INLINE __m256 load(const void *from, int i, bool bf16) /* eight of g */
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

INLINE __m256i bits(__m256 x) { return _mm256_castps_si256(x); }
INLINE __m256 number(__m256i x) { return _mm256_castsi256_ps(x); }

/* The upper halves of y's words, the lower ones of x's */
INLINE __m256i halves(__m256i x, __m256i y) { return _mm256_blend_epi16(x, y, 0xaa); }

/* The upper halves of two registers: those of x in the lower halves. And the lower ones */
INLINE __m256i upper(__m256i x, __m256i y) { return halves(_mm256_srli_epi32(x, 16), y); }
INLINE __m256i lower(__m256i x, __m256i y) { return halves(x, _mm256_slli_epi32(y, 16)); }

/* 16 bf16, or fp32, from element i on: the even ones and the odd ones */
INLINE void load_apart(const void *from, int i, bool bf16, __m256 x[2])
{
	if (bf16) {
		__m256i words = _mm256_loadu_si256((const __m256i *)((const uint16_t *)from + i));
		x[0] = number(_mm256_slli_epi32(words, 16));
		x[1] = number(both(words, 0xffff0000));
		return;
	}
	__m256 a = _mm256_loadu_ps((const float *)from + i), b = _mm256_loadu_ps((const float *)from + i + WIDTH);
	x[0] = number(_mm256_permute4x64_epi64(bits(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
	x[1] = number(_mm256_permute4x64_epi64(bits(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
}

/* 16 weights. Where a lower half is negative, mt_join takes one off the upper one: then they need only be put side by
 * side. */
INLINE void load_weights(const void *w, const int16_t *lo, int i, bool bf16, __m256 p[2])
{
	if (!bf16) {
		load_apart(w, i, false, p);
		return;
	}
	__m256i less = _mm256_loadu_si256((const __m256i *)(lo + i));
	__m256i hi = _mm256_loadu_si256((const __m256i *)((const uint16_t *)w + i));
	hi = _mm256_add_epi16(hi, _mm256_srai_epi16(less, 15));
	p[0] = number(lower(less, hi));
	p[1] = number(upper(less, hi));
}

INLINE void store_weights(void *w, int16_t *lo, int i, bool bf16, const __m256 p[2])
{
	if (bf16) {
		const __m256i round = _mm256_set1_epi32(0x8000);
		__m256i hi = upper(_mm256_add_epi32(bits(p[0]), round), _mm256_add_epi32(bits(p[1]), round));
		_mm256_storeu_si256((__m256i *)(lo + i), lower(bits(p[0]), bits(p[1])));
		_mm256_storeu_si256((__m256i *)((uint16_t *)w + i), hi);
		return;
	}
	__m256 a = _mm256_unpacklo_ps(p[0], p[1]), b = _mm256_unpackhi_ps(p[0], p[1]);
	_mm256_storeu_ps((float *)w + i, _mm256_permute2f128_ps(a, b, 0x20));
	_mm256_storeu_ps((float *)w + i + WIDTH, _mm256_permute2f128_ps(a, b, 0x31));
}

/* rounding_word of elements 2 j .. 2 j + 15, j 0 or 8, neighbours sharing one; those of 32 later are these turned */
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

/* ---- int8: the functions of shm/model/int8.h. Half h of a group's codes is one register: bytes 0 and 1 of its words
 * are the codes of elements 16 h .. 16 h + 15, bytes 2 and 3 those of 32 later. Where it saves operations, two
 * registers are packed into one of 16-bit halves first. ---- */

INLINE __m256i all16(uint32_t x) { return _mm256_set1_epi16((short)x); }
INLINE __m256i both16(__m256i x, uint32_t mask) { return _mm256_and_si256(x, all16(mask)); }

/* Patterns of codes in bytes 0 and 2 (even) and 1 and 3 (odd), as upper halves of fp32, to one a register */
INLINE void spread(__m256i even, __m256i odd, __m256 x[2][2])
{
	x[0][0] = number(_mm256_slli_epi32(even, 16));
	x[0][1] = number(_mm256_slli_epi32(odd, 16));
	x[1][0] = number(both(even, 0xffff0000));
	x[1][1] = number(both(odd, 0xffff0000));
}

/* Upper halves of m of scale 1, from codes shifted to where they belong; -0 where the code is that of 0 */
INLINE __m256i pattern_m(__m256i x)
{
	__m256i is0 = _mm256_cmpeq_epi16(both16(x, 0x7f << (INT8_CUT - 16)), _mm256_setzero_si256());
	x = _mm256_or_si256(both16(x, 0x87f0), all16(INT8_M_BASE >> 16));
	return _mm256_blendv_epi8(x, all16(0x8000), is0);
}

INLINE void decode_m(__m256i codes, __m256 x[2][2])
{
	spread(pattern_m(_mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 4)), pattern_m(_mm256_srai_epi16(codes, 4)), x);
}

INLINE __m256i pattern_v(__m256i x) { return _mm256_or_si256(both16(x, 0x0ff0), all16(INT8_V_BASE >> 16)); }

INLINE void decode_v(__m256i codes, __m256 x[2][2])
{
	spread(pattern_v(_mm256_slli_epi16(codes, 4)), pattern_v(_mm256_srli_epi16(codes, 4)), x);
}

struct packed { /* upper halves of a group's rounded m or v: by half, even and odd ones */
	__m256i of[2][2];
};

/* Rounded patterns of half h */
INLINE void pack(struct packed *p, int h, __m256i x[2][2])
{
	p->of[h][0] = upper(x[0][0], x[1][0]);
	p->of[h][1] = upper(x[0][1], x[1][1]);
}

INLINE __m256i larger(__m256i x, __m256i y) { return _mm256_max_epu16(x, y); }

INLINE __m256i largest_of(const struct packed *p, uint32_t mask)
{
	return larger(larger(both16(p->of[0][0], mask), both16(p->of[0][1], mask)),
		larger(both16(p->of[1][0], mask), both16(p->of[1][1], mask)));
}

/* The scales' upper halves: m's in all of the lower half of the register, v's in the upper one */
INLINE __m256i scales_of(__m256i m, __m256i v)
{
	const __m256i swap = _mm256_broadcastsi128_si256(
		_mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
	__m256i most = larger(_mm256_permute2x128_si256(m, v, 0x20), _mm256_permute2x128_si256(m, v, 0x31));
	most = larger(most, _mm256_shuffle_epi32(most, 0x4e));
	most = larger(most, _mm256_shuffle_epi32(most, 0xb1));
	most = both16(larger(most, _mm256_shuffle_epi8(most, swap)), 0x7f80);
	return _mm256_min_epu16(larger(most, all16(INT8_LEAST >> 16)), all16(INT8_MOST >> 16));
}

/* Bytes of odd elements from x, those of even ones from y */
INLINE __m256i bytes(__m256i x, __m256i y, uint32_t odd, uint32_t even)
{
	return _mm256_or_si256(both16(x, odd), both16(y, even));
}

/* Codes of what lies above `base` */
INLINE __m256i coded(__m256i even, __m256i odd, __m256i base)
{
	return bytes(_mm256_slli_epi16(_mm256_subs_epu16(odd, base), 4),
		_mm256_srli_epi16(_mm256_subs_epu16(even, base), 4), 0xff00, 0x00ff);
}

INLINE void store_codes(char *m, char *v, float *m_scale, float *v_scale, const struct packed *x,
	const struct packed *y, const bool has_v)
{
	__m256i scale = scales_of(largest_of(x, 0x7fff), has_v ? largest_of(y, 0xffff) : _mm256_setzero_si256());
	__m256i base_m = _mm256_sub_epi16(_mm256_permute2x128_si256(scale, scale, 0x00),
				all16((INT8_ONE - INT8_M_BASE) >> 16)),
			base_v = _mm256_sub_epi16(_mm256_permute2x128_si256(scale, scale, 0x11),
				all16((INT8_ONE - INT8_V_BASE) >> 16));
	for (int h = 0; h < 2; h++) {
		__m256i even = x->of[h][0], odd = x->of[h][1];
		__m256i codes = both16(coded(both16(even, 0x7fff), both16(odd, 0x7fff), base_m), 0x7f7f);
		codes = _mm256_or_si256(codes, bytes(odd, _mm256_srli_epi16(even, 8), 0x8000, 0x0080));
		_mm256_storeu_si256((__m256i *)(m + 32 * h), codes);
		if (has_v) _mm256_storeu_si256((__m256i *)(v + 32 * h), coded(y->of[h][0], y->of[h][1], base_v));
	}
	scale = _mm256_slli_epi32(scale, 16);
	_mm_store_ss(m_scale, _mm_castsi128_ps(_mm256_castsi256_si128(scale)));
	if (has_v) _mm_store_ss(v_scale, _mm_castsi128_ps(_mm256_extracti128_si256(scale, 1)));
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

/* The rest of a group's update with fp32 state, once its old state is in the journal */
INLINE void update_fp32(const struct scalars *a, const struct arrays *t, float decay, struct kind is)
{
	const uint16_t *w16 = t->w;
	const float *w32 = t->w;
	float *m = (float *)t->m, *v = (float *)t->v;
#pragma GCC unroll 8
	for (int j = 0; j < MT_GROUP; j += WIDTH) {
		__m256 x = _mm256_loadu_ps(m + j), y = is.has_v ? _mm256_loadu_ps(v + j) : _mm256_setzero_ps();
		__m256 g = load(t->g[0], j, is.g_bf16), p = is.bf16 ? load_join(w16 + j, t->lo + j) : _mm256_loadu_ps(w32 + j);
		if (is.two) g += load(t->g[1], j, is.g_bf16);
		p = rule(p, &x, &y, g, a, decay, is.optim);
		if (is.bf16) {
			store16((uint16_t *)t->out + j,
				_mm256_srli_epi32(_mm256_add_epi32(bits(p), _mm256_set1_epi32(0x8000)), 16));
			store16(t->lo + j, bits(p));
		} else _mm256_storeu_ps((float *)t->out + j, p);
		_mm256_storeu_ps(m + j, x);
		if (is.has_v) _mm256_storeu_ps(v + j, y);
	}
}

/* The same with bf16 or int8 state: sixteen at a time, from element 0, 32, 16 and 48 on, as int8's codes lie */
INLINE void update_apart(const struct scalars *a, const struct arrays *t, float decay, uint32_t key, struct kind is)
{
	const bool int8 = is.state == MT_INT8, has_v = is.has_v;
	const int random_bits = int8 ? INT8_CUT : 16;
	__m256 scale = _mm256_set1_ps(int8 ? *t->m_scale : 1), keep_m = _mm256_set1_ps(a->beta1),
		   keep_v = _mm256_set1_ps(a->beta2);
	struct packed pm, pv;
	if (int8) {
		keep_m *= scale;
		if (has_v) keep_v *= *t->v_scale;
	}
#pragma GCC unroll 2
	for (int h = 0; h < 2; h++) {
		__m256 x[2][2], y[2][2];          /* m and v: even and odd ones, of 16 elements and of those 32 later */
		__m256i new_x[2][2], new_y[2][2]; /* rounded */
		__m256i random = random_of(key, 8 * h);
		if (int8) {
			decode_m(_mm256_loadu_si256((const __m256i *)t->m + h), x);
			if (has_v) decode_v(_mm256_loadu_si256((const __m256i *)t->v + h), y);
		}
#pragma GCC unroll 2
		for (int q = 0; q < 2; q++) {
			const int j = 32 * q + 16 * h;
			__m256 g[2], more[2], p[2];
			__m256i high = _mm256_srli_epi32(random, 32 - random_bits), low = both(random, (1u << random_bits) - 1);
			if (!int8) load_apart(t->m, j, true, x[q]);
			if (!int8 && has_v) load_apart(t->v, j, true, y[q]);
			load_apart(t->g[0], j, is.g_bf16, g);
			if (is.two) load_apart(t->g[1], j, is.g_bf16, more);
			load_weights(t->w, t->lo, j, is.bf16, p);
#pragma GCC unroll 2
			for (int r = 0; r < 2; r++) {
				if (is.two) g[r] += more[r];
				if (int8 && !has_v) x[q][r] *= scale; /* int8_m; adamw has keep_m for it */
				if (has_v) adamw_moments(&x[q][r], &y[q][r], g[r], a, keep_m, keep_v);
				else p[r] = rule(p[r], &x[q][r], NULL, g[r], a, decay, is.optim);
				new_x[q][r] = _mm256_add_epi32(bits(x[q][r]), r ? low : high);
				if (!has_v) continue;
				new_y[q][r] = _mm256_add_epi32(bits(y[q][r]), r ? high : low);
				p[r] = adamw_step(p[r], x[q][r], int8 ? root_of(new_y[q][r]) : _mm256_sqrt_ps(y[q][r]), a, decay);
			}
			store_weights(t->out, t->lo, j, is.bf16, p);
			if (!int8) {
				_mm256_storeu_si256((__m256i *)((uint16_t *)t->m + j), upper(new_x[q][0], new_x[q][1]));
				if (has_v) _mm256_storeu_si256((__m256i *)((uint16_t *)t->v + j), upper(new_y[q][0], new_y[q][1]));
			}
			random = turn(random);
		}
		if (int8) pack(&pm, h, new_x);
		if (int8 && has_v) pack(&pv, h, new_y);
	}
	if (int8) store_codes(t->m, t->v, t->m_scale, t->v_scale, &pm, &pv, has_v);
}

INLINE void groups(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay, const struct kind is)
{
	const struct scalars scalars = *a; /* so that no store can change them */
	uint32_t slot = partition_slot(atomic_load_explicit(&partition->index, memory_order_relaxed));
	for (uint64_t group = first; group < end; group++) {
		struct arrays at = arrays_of(t, group, is);
		const int state_bytes = MT_GROUP * (int)mt_dtype_bytes(is.state);
		slot ^= 1;
		uint8_t *old = partition->slot[slot];
		copy(old + SLOT_W, at.out, MT_GROUP * (is.bf16 ? 2 : 4));
		if (is.bf16) copy(old + SLOT_LO, at.lo, MT_GROUP * 2);
		copy(old + SLOT_M, at.m, state_bytes);
		if (is.has_v) copy(old + SLOT_V, at.v, state_bytes);
		if (is.state == MT_INT8) {
			memcpy(old + SLOT_M + SLOT_SCALE, at.m_scale, sizeof(float));
			if (is.has_v) memcpy(old + SLOT_V + SLOT_SCALE, at.v_scale, sizeof(float));
		}
		char g[MT_GROUP * 4]; /* new weights go over the gradient, in another order than it is read */
		if (t->out) copy(g, at.g[0], MT_GROUP * (is.g_bf16 ? 2 : 4));
		arrays_prefetch(&at, is);
		if (t->out) at.g[0] = g;
		partition_commit(partition, tag | (uint64_t)slot << PARTITION_SLOT | group);
		if (is.state == MT_FP32) update_fp32(&scalars, &at, decay, is);
		else update_apart(&scalars, &at, decay, rounding_key(tag, group), is);
	}
}

ISA void update_avx2(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	UPDATE_SPECIALISE();
}
#else
typedef int update_avx2_is_for_x86_64;
#endif
