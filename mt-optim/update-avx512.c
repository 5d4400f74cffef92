/* update-avx512.c: update_scalar sixteen at a time: a group is four registers of each array. Needs AVX-512F and BW.
 * Shifts, maxima and conversions run on one port each, so where it saves one, two registers are packed into one of
 * 16-bit halves first.
 *
 * A group's registers have its elements in order. With state in bf16 or int8, registers r and r + 1 have the even and
 * the odd ones of 32 elements (`apart` below): 32 halves come apart in two operations and are packed in one, instead of
 * four and two. Only what is fp32 in memory must be permuted then. */
#if defined __x86_64__
#include <immintrin.h>

#define ISA __attribute__((target("avx512f,avx512bw")))
#define vec __m512
#define vec_all _mm512_set1_ps
#define vec_sqrt _mm512_sqrt_ps
#define vec_fma _mm512_fmadd_ps
#include "update-simd.h"

enum { REGS = MT_GROUP / WIDTH };

INLINE __m512 load(const void *from, int i, bool bf16) /* sixteen of g, m or v */
{
	if (!bf16) return _mm512_loadu_ps((const float *)from + i);
	__m256i b = _mm256_loadu_si256((const __m256i *)((const uint16_t *)from + i));
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

/* mt_join of sixteen */
INLINE __m512 join(const uint16_t *w, const int16_t *lo)
{
	__m512i hi = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)w)), 16);
	__m512i more = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)lo));
	return _mm512_castsi512_ps(_mm512_add_epi32(hi, more));
}

INLINE __m512i bits(__m512 x) { return _mm512_castps_si512(x); }
INLINE __m512 number(__m512i x) { return _mm512_castsi512_ps(x); }

/* Made once, before the loop over groups, and hidden from the compiler: it would make them anew in each group, which
 * costs more than to load them. */
struct constants {
	__m512i order;                                  /* of 32 halves, those that are lower first */
	__m512i swap;                                   /* bytes of words' halves, exchanged */
	__m512i roots;                                  /* int8_roots */
	__m512i factors;                                /* of the random numbers */
	__m512i evens, odds, first, second;             /* of two registers, to have elements apart, and in order again */
	__m512i upper, round;                           /* of 16 bits in words */
	__m512i cut, code;                              /* bits that int8 codes lack, and m's code in a pattern */
	__m512i m_mask, m_base, v_mask, v_base;         /* of two codes in a word */
	__m512i unsign, exponent, least, most, to_base; /* of two patterns' upper halves */
	__m512i odd, signs;                             /* of four codes in a word */
};

INLINE __m512i all(uint32_t x)
{
	__m512i same = _mm512_set1_epi32((int)x);
	__asm__("" : "+v"(same));
	return same;
}
INLINE __m512i twice(uint32_t x) { return all(x | x >> 16); } /* a half in both halves */

INLINE __m512i both(__m512i x, __m512i y) { return _mm512_and_si512(x, y); }
/* x where the mask is set, else y; x & mask | bit */
INLINE __m512i mux(__m512i mask, __m512i x, __m512i y) { return _mm512_ternarylogic_epi32(x, y, mask, 0xe4); }
INLINE __m512i and_or(__m512i x, __m512i mask, __m512i bit) { return _mm512_ternarylogic_epi32(x, mask, bit, 0xea); }

INLINE struct constants constants(void)
{
	static const uint16_t order[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 1, 3, 5, 7, 9, 11, 13,
		15, 17, 19, 21, 23, 25, 27, 29, 31};
	static const uint32_t evens[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
	static const uint32_t odds[16] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
	static const uint32_t first[16] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
	static const uint32_t second[16] = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
	__m512i to_base_m = twice(INT8_ONE - INT8_M_BASE), to_base_v = twice(INT8_ONE - INT8_V_BASE);
	return (struct constants){
		.order = _mm512_loadu_si512(order),
		.swap = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)),
		.roots = _mm512_loadu_si512(int8_roots),
		.factors = _mm512_loadu_si512(rounding_factors),
		.evens = _mm512_loadu_si512(evens),
		.odds = _mm512_loadu_si512(odds),
		.first = _mm512_loadu_si512(first),
		.second = _mm512_loadu_si512(second),
		.upper = all(0xffff0000),
		.round = all(0x8000),
		.cut = all((1u << INT8_CUT) - 1),
		.code = all(0x7fu << INT8_CUT),
		.m_mask = all(0x87f087f0),
		.m_base = twice(INT8_M_BASE),
		.v_mask = all(0x0ff00ff0),
		.v_base = twice(INT8_V_BASE),
		.unsign = all(0x7fff7fff),
		.exponent = all(0x7f807f80),
		.least = twice(INT8_LEAST),
		.most = twice(INT8_MOST),
		.to_base = _mm512_shuffle_i64x2(to_base_m, to_base_v, 0x44),
		.odd = all(0xff00ff00),
		.signs = all(0x80808080),
	};
}

/* The upper halves of 32 words, those of x in the lower halves; and the lower ones */
INLINE __m512i upper(const struct constants *k, __m512i x, __m512i y)
{
	return _mm512_mask_shuffle_epi8(y, 0x3333333333333333, x, k->swap);
}
INLINE __m512i lower(const struct constants *k, __m512i x, __m512i y)
{
	return _mm512_mask_shuffle_epi8(x, 0xcccccccccccccccc, y, k->swap);
}

/* 32 halves, those of the first register in the lower halves of words: they are in order where elements are apart */
INLINE void store32(const struct constants *k, void *to, __m512i halves, const bool apart)
{
	_mm512_storeu_si512(to, apart ? halves : _mm512_permutexvar_epi16(k->order, halves));
}

/* 32 bf16 to two registers of elements apart */
INLINE void load_apart(const struct constants *k, const void *from, __m512 x[2])
{
	__m512i halves = _mm512_loadu_si512(from);
	x[0] = number(_mm512_slli_epi32(halves, 16));
	x[1] = number(both(halves, k->upper));
}

/* Registers r and r + 1 of g, m or v */
INLINE void load_two(const struct constants *k, const void *from, int r, __m512 x[2], const bool bf16, const bool apart)
{
	if (bf16 && apart) {
		load_apart(k, (const uint16_t *)from + r * WIDTH, x);
		return;
	}
	__m512 a = load(from, r * WIDTH, bf16), b = load(from, (r + 1) * WIDTH, bf16);
	x[0] = apart ? _mm512_permutex2var_ps(a, k->evens, b) : a;
	x[1] = apart ? _mm512_permutex2var_ps(a, k->odds, b) : b;
}

/* What is read goes to the journal from its register */
INLINE __m512i take(const void *from, void *old)
{
	__m512i x = _mm512_loadu_si512(from);
	_mm512_storeu_si512(old, x);
	return x;
}

/* Where a lower half is negative, mt_join takes one off the upper one: then they need only be put side by side. */
INLINE void join_apart(const struct constants *k, __m512i w, __m512i less, __m512 p[2])
{
	__m512i hi = _mm512_add_epi16(w, _mm512_srai_epi16(less, 15));
	p[0] = number(mux(k->upper, _mm512_slli_epi32(hi, 16), less));
	p[1] = number(mux(k->upper, hi, _mm512_srli_epi32(less, 16)));
}

/* A group's weights, to the journal as they lie in memory, and to registers; lo: NULL in fp32 runs */
INLINE void load_weights(const struct constants *k, const void *w, const int16_t *lo, uint8_t *old, __m512 p[REGS],
	const bool bf16, const bool apart)
{
	if (!bf16 || !apart) copy(old + SLOT_W, w, MT_GROUP * (bf16 ? 2 : 4));
	if (bf16 && !apart) copy(old + SLOT_LO, lo, MT_GROUP * 2);
#pragma GCC unroll 2
	for (int r = 0; r < REGS; r += 2) {
		const uint16_t *w16 = (const uint16_t *)w + r * WIDTH;
		if (!bf16) load_two(k, w, r, p + r, false, apart);
		else if (apart)
			join_apart(k, take(w16, old + SLOT_W + r * WIDTH * 2), take(lo + r * WIDTH, old + SLOT_LO + r * WIDTH * 2),
				p + r);
		else {
			p[r] = join(w16, lo + r * WIDTH);
			p[r + 1] = join(w16 + WIDTH, lo + (r + 1) * WIDTH);
		}
	}
}

/* In bf16 runs mt_hi and mt_lo */
INLINE void store_weights(const struct constants *k, void *w, int16_t *lo, const __m512 p[REGS], const bool bf16,
	const bool apart)
{
#pragma GCC unroll 2
	for (int r = 0; r < REGS; r += 2) {
		__m512i x = bits(p[r]), y = bits(p[r + 1]);
		if (bf16) {
			store32(k, lo + r * WIDTH, lower(k, x, y), apart);
			store32(k, (uint16_t *)w + r * WIDTH,
				upper(k, _mm512_add_epi32(x, k->round), _mm512_add_epi32(y, k->round)), apart);
			continue;
		}
		float *to = (float *)w + r * WIDTH;
		_mm512_storeu_ps(to, apart ? _mm512_permutex2var_ps(p[r], k->first, p[r + 1]) : p[r]);
		_mm512_storeu_ps(to + WIDTH, apart ? _mm512_permutex2var_ps(p[r], k->second, p[r + 1]) : p[r + 1]);
	}
}

/* rounding_word of the first 32 elements of a group, neighbours sharing one; those of 32 later are these turned */
INLINE __m512i random_of(__m512i factors, uint32_t key)
{
	__m512i x = _mm512_mullo_epi32(factors, _mm512_set1_epi32((int)key));
	return _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
}

/* ---- state in int8: the functions of shm/model/int8.h, sixteen at a time. A group's codes are one register; byte r of
 * its words are the codes of register r's elements. ---- */

/* Patterns of codes in bytes 0 and 2 (even) and 1 and 3 (odd), as upper halves of fp32, to one a register */
INLINE void spread(const struct constants *k, __m512i even, __m512i odd, __m512 x[REGS])
{
	x[0] = number(_mm512_slli_epi32(even, 16));
	x[1] = number(_mm512_slli_epi32(odd, 16));
	x[2] = number(both(even, k->upper));
	x[3] = number(both(odd, k->upper));
}

/* Of scale 1; not0: where the code is not that of 0 */
INLINE void decode_m(const struct constants *k, __m512i codes, __m512 x[REGS], __mmask16 not0[REGS])
{
	__m512i even = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 4), odd = _mm512_srai_epi16(codes, 4);
	spread(k, and_or(even, k->m_mask, k->m_base), and_or(odd, k->m_mask, k->m_base), x);
#pragma GCC unroll 4
	for (int r = 0; r < REGS; r++) not0[r] = _mm512_test_epi32_mask(bits(x[r]), k->code);
}

INLINE void decode_v(const struct constants *k, __m512i codes, __m512 x[REGS])
{
	__m512i even = _mm512_slli_epi16(codes, 4), odd = _mm512_srli_epi16(codes, 4);
	spread(k, and_or(even, k->v_mask, k->v_base), and_or(odd, k->v_mask, k->v_base), x);
}

/* The largest of 32 halves, in all of m's half of the register and all of v's */
INLINE __m512i largest(__m512i m, __m512i v)
{
	__m512i most = _mm512_max_epu16(_mm512_shuffle_i64x2(m, v, 0x44), _mm512_shuffle_i64x2(m, v, 0xee));
	most = _mm512_max_epu16(most, _mm512_shuffle_i64x2(most, most, 0xb1));
	most = _mm512_max_epu16(most, _mm512_shuffle_epi32(most, 0x4e));
	most = _mm512_max_epu16(most, _mm512_shuffle_epi32(most, 0xb1));
	return _mm512_max_epu16(most, _mm512_rol_epi32(most, 16));
}

struct packed { /* upper halves of a group's rounded m or v */
	__m512i even, odd;
};

/* Codes of what lies above `base` */
INLINE __m512i coded(const struct constants *k, __m512i even, __m512i odd, __m512i base)
{
	return mux(k->odd, _mm512_slli_epi16(_mm512_subs_epu16(odd, base), 4),
		_mm512_srli_epi16(_mm512_subs_epu16(even, base), 4));
}

INLINE void store_codes(const struct constants *k, const struct arrays *at, struct packed x, struct packed y,
	const bool has_v)
{
	__m512i even = both(x.even, k->unsign), odd = both(x.odd, k->unsign);
	__m512i scale = largest(_mm512_max_epu16(even, odd), _mm512_max_epu16(y.even, y.odd));
	scale = both(scale, k->exponent);
	scale = _mm512_max_epu16(scale, k->least);
	scale = _mm512_min_epu16(scale, k->most);
	__m512i base = _mm512_sub_epi16(scale, k->to_base);
	__m512i codes = coded(k, even, odd, _mm512_shuffle_i64x2(base, base, 0x00));
	__m512i signs = mux(k->odd, x.odd, _mm512_srli_epi16(x.even, 8));
	_mm512_storeu_si512(at->m, mux(k->signs, signs, codes));
	if (has_v) _mm512_storeu_si512(at->v, coded(k, y.even, y.odd, _mm512_shuffle_i64x2(base, base, 0xaa)));
	scale = _mm512_slli_epi32(scale, 16);
	_mm_store_ss(at->m_scale, _mm_castsi128_ps(_mm512_castsi512_si128(scale)));
	if (has_v) _mm_store_ss(at->v_scale, _mm_castsi128_ps(_mm512_extracti32x4_epi32(scale, 2)));
}

/* One group of m and v in any type. Without has_v, the optimizer keeps m alone. */
struct moments {
	__m512 m[REGS], v[REGS];
	__m512 keep_m, keep_v; /* adamw: beta1, beta2; int8: times the scale */
	__mmask16 not0[REGS];  /* where m is not 0 (int8) */
};

/* int8_m of what decode_m gave */
INLINE void scale_m(struct moments *x, float scale)
{
#pragma GCC unroll 4
	for (int r = 0; r < REGS; r++) x->m[r] = _mm512_mask_mul_ps(vec_all(-0.0f), x->not0[r], x->m[r], vec_all(scale));
}

/* To the journal as they lie in memory, and to registers */
INLINE void load_moments(const struct constants *k, struct moments *x, const struct scalars *a, const struct arrays *at,
	uint8_t *old, struct kind is)
{
	const bool bf16 = is.state == MT_BF16;

	x->keep_m = _mm512_set1_ps(a->beta1);
	x->keep_v = _mm512_set1_ps(a->beta2);
	if (is.state == MT_INT8) {
		memcpy(old + SLOT_M + SLOT_SCALE, at->m_scale, sizeof(float));
		decode_m(k, take(at->m, old + SLOT_M), x->m, x->not0);
		if (!is.has_v) {
			scale_m(x, *at->m_scale);
			return;
		}
		memcpy(old + SLOT_V + SLOT_SCALE, at->v_scale, sizeof(float));
		x->keep_m *= *at->m_scale;
		x->keep_v *= *at->v_scale;
		decode_v(k, take(at->v, old + SLOT_V), x->v);
		return;
	}
	copy(old + SLOT_M, at->m, MT_GROUP * (int)mt_dtype_bytes(is.state));
	if (is.has_v) copy(old + SLOT_V, at->v, MT_GROUP * (int)mt_dtype_bytes(is.state));
#pragma GCC unroll 2
	for (int r = 0; r < REGS; r += 2) {
		load_two(k, at->m, r, x->m + r, bf16, bf16);
		if (is.has_v) load_two(k, at->v, r, x->v + r, bf16, bf16);
	}
}

/* ---- an update ---- */

/* int8_root of sixteen */
INLINE __m512 root_of(const struct constants *k, __m512i rounded)
{
	__m512i x = _mm512_srli_epi32(rounded, INT8_CUT);
	return number(_mm512_add_epi32(_mm512_slli_epi32(x, INT8_CUT - 1), _mm512_permutexvar_epi32(x, k->roots)));
}

/* Neighbours, which registers r and r + 1 have, share a word: the even one's m and the odd one's v take its high
 * half. */
INLINE void store_bf16(const struct constants *k, const struct moments *x, const struct arrays *at, uint32_t key,
	const bool has_v)
{
	__m512i random = random_of(k->factors, key);
#pragma GCC unroll 2
	for (int r = 0; r < REGS; r += 2) {
		__m512i high = _mm512_srli_epi32(random, 16), low = _mm512_andnot_si512(k->upper, random);
		store32(k, (uint16_t *)at->m + r * WIDTH,
			upper(k, _mm512_add_epi32(bits(x->m[r]), high), _mm512_add_epi32(bits(x->m[r + 1]), low)), true);
		if (has_v)
			store32(k, (uint16_t *)at->v + r * WIDTH,
				upper(k, _mm512_add_epi32(bits(x->v[r]), low), _mm512_add_epi32(bits(x->v[r + 1]), high)), true);
		random = _mm512_rol_epi32(random, ROUNDING_TURN);
	}
}

/* Four registers become one. v's patterns, rounded, are in j then. */
INLINE void store_int8(const struct constants *k, const struct moments *x, const struct arrays *at, uint32_t key,
	__m512i j[REGS], const bool has_v)
{
	__m512i i[REGS], random = random_of(k->factors, key);
#pragma GCC unroll 2
	for (int r = 0; r < REGS; r += 2) {
		__m512i high = _mm512_srli_epi32(random, 32 - INT8_CUT), low = both(random, k->cut);
		i[r] = _mm512_add_epi32(bits(x->m[r]), high);
		j[r] = has_v ? _mm512_add_epi32(bits(x->v[r]), low) : _mm512_setzero_si512();
		i[r + 1] = _mm512_add_epi32(bits(x->m[r + 1]), low);
		j[r + 1] = has_v ? _mm512_add_epi32(bits(x->v[r + 1]), high) : _mm512_setzero_si512();
		random = _mm512_rol_epi32(random, ROUNDING_TURN);
	}
	struct packed pm = {upper(k, i[0], i[2]), upper(k, i[1], i[3])}, pv = {upper(k, j[0], j[2]), upper(k, j[1], j[3])};
	store_codes(k, at, pm, pv, has_v);
}

INLINE void store_fp32(const struct moments *x, const struct arrays *at, const bool has_v)
{
#pragma GCC unroll 4
	for (int r = 0; r < REGS; r++) {
		_mm512_storeu_ps((float *)at->m + r * WIDTH, x->m[r]);
		if (has_v) _mm512_storeu_ps((float *)at->v + r * WIDTH, x->v[r]);
	}
}

/* p, or with adamw's state in bf16 or int8 m and v, which are rounded before p: register r of them */
INLINE void advance(__m512 p[REGS], struct moments *x, int r, __m512 g, const struct scalars *a, float decay,
	struct kind is)
{
	__m512 m = x->m[r];
	if (!is.has_v || is.state == MT_FP32) p[r] = rule(p[r], &x->m[r], &x->v[r], g, a, decay, is.optim);
	else adamw_moments(&x->m[r], &x->v[r], g, a, x->keep_m, x->keep_v);
	if (is.has_v && is.state == MT_INT8) /* 0 has no code of its own: its m is not multiplied */
		x->m[r] = _mm512_mask3_fmadd_ps(m, x->keep_m, g * a->clip_lerp, x->not0[r]);
}

INLINE void groups(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay, const struct kind is)
{
	const bool apart = is.state != MT_FP32;
	const struct constants k = constants();
	const struct scalars scalars = *a; /* so that no store can change them */
	uint32_t slot = partition_slot(atomic_load_explicit(&partition->index, memory_order_relaxed));
	for (uint64_t group = first; group < end; group++) {
		const struct arrays at = arrays_of(t, group, is);
		arrays_prefetch(&at, is);
		slot ^= 1;
		uint8_t *old = partition->slot[slot];
		__m512 p[REGS];
		__m512i rounded[REGS]; /* v's patterns (int8) */
		struct moments x;
		load_weights(&k, at.w, at.lo, old, p, is.bf16, apart);
		if (t->out) copy(old + SLOT_W, at.out, MT_GROUP * (is.bf16 ? 2 : 4));
		load_moments(&k, &x, &scalars, &at, old, is);
		partition_commit(partition, tag | (uint64_t)slot << PARTITION_SLOT | group);
#pragma GCC unroll 2
		for (int r = 0; r < REGS; r += 2) {
			__m512 g[2], more[2];
			load_two(&k, at.g[0], r, g, is.g_bf16, apart);
			if (is.two) load_two(&k, at.g[1], r, more, is.g_bf16, apart);
#pragma GCC unroll 2
			for (int h = 0; h < 2; h++) {
				if (is.two) g[h] += more[h];
				advance(p, &x, r + h, g[h], &scalars, decay, is);
			}
		}
		if (is.state == MT_INT8) store_int8(&k, &x, &at, rounding_key(tag, group), rounded, is.has_v);
		else if (is.state == MT_BF16) store_bf16(&k, &x, &at, rounding_key(tag, group), is.has_v);
		else store_fp32(&x, &at, is.has_v);
#pragma GCC unroll 4
		for (int r = 0; r < REGS; r++)
			if (is.has_v && apart)
				p[r] = adamw_step(p[r], x.m[r], is.state == MT_INT8 ? root_of(&k, rounded[r]) : vec_sqrt(x.v[r]),
					&scalars, decay);
		store_weights(&k, at.out, at.lo, p, is.bf16, apart);
	}
}

ISA void update_avx512(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	UPDATE_SPECIALISE();
}
#else
typedef int update_avx512_is_for_x86_64;
#endif
