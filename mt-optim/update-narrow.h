/* update-narrow.h: the update in registers that cannot hold a group: update-avx2.c's and update-neon.c's. A group's old
 * state is copied to the journal first and read again, from the first-level cache, after the index.
 *
 * With state in bf16 or int8, two registers have the even and the odd ones of 2 WIDTH elements: halves come apart in
 * two operations and are packed in one or two. Only what is fp32 in memory must be permuted then.
 *
 * Defined before, besides what update-simd.h wants:
 *     widen, widen_signed    WIDTH halves in memory, to words
 *     narrow                 the lower halves of words, to memory
 *     upper, lower           the upper, or lower, halves of two registers' words: the first's in the lower halves
 *     apart, together        two registers in order, to even and odd ones; and back
 *     larger, smaller        of two halves
 *     above                  what the first half has more than the second, or 0
 *     mux                    the second where the first is set, else the third
 *     all_largest            to every half the largest of its register: of m and of v
 *     root_of                int8_root of words */
#ifndef MT_OPTIM_UPDATE_NARROW_H
#define MT_OPTIM_UPDATE_NARROW_H

#include "update-simd.h"

INLINE vec32 bits(vec x) { return (vec32)x; }
INLINE vec number(vec32 x) { return (vec)x; }

INLINE vec load(const void *from, int i, bool bf16) /* WIDTH of g */
{
	if (!bf16) return get((const float *)from + i);
	return number(widen((const uint16_t *)from + i) << 16);
}

INLINE vec load_join(const uint16_t *w, const int16_t *lo) /* mt_join */
{
	return number((widen(w) << 16) + widen_signed(lo));
}

/* 2 WIDTH bf16, or fp32, from element i on: the even ones and the odd ones */
INLINE void load_apart(const void *from, int i, bool bf16, vec x[2])
{
	if (bf16) {
		vec32 both = bits(get((const uint16_t *)from + i));
		x[0] = number(both << 16);
		x[1] = number(both & 0xffff0000);
		return;
	}
	apart(get((const float *)from + i), get((const float *)from + i + WIDTH), x);
}

/* 2 WIDTH weights. Where a lower half is negative, mt_join takes one off the upper one: then they need only be put side
 * by side. */
INLINE void load_weights(const void *w, const int16_t *lo, int i, bool bf16, vec p[2])
{
	if (!bf16) {
		load_apart(w, i, false, p);
		return;
	}
	vec32 less = bits(get(lo + i)), hi = bits(get((const uint16_t *)w + i));
	hi = (vec32)((vec16)hi - ((vec16)less >> 15));
	p[0] = number(lower(less, hi));
	p[1] = number(upper(less, hi));
}

INLINE void store_weights(void *w, int16_t *lo, int i, bool bf16, const vec p[2])
{
	if (bf16) {
		vec32 hi = upper(bits(p[0]) + 0x8000, bits(p[1]) + 0x8000);
		put(lo + i, number(lower(bits(p[0]), bits(p[1]))));
		put((uint16_t *)w + i, number(hi));
		return;
	}
	vec x[2];
	together(p, x);
	put((float *)w + i, x[0]);
	put((float *)w + i + WIDTH, x[1]);
}

/* rounding_word of elements 2 j .. 2 (j + WIDTH), neighbours sharing one; those of 32 later are these turned */
INLINE vec32 random_of(uint32_t key, int j)
{
	vec32 x = bits(get(rounding_factors + j)) * key;
	return x ^ x >> 16;
}

INLINE vec32 turn(vec32 x) { return x << ROUNDING_TURN | x >> (32 - ROUNDING_TURN); }

/* ---- int8: the functions of shm/model/int8.h. Part h of a group's codes is one register: bytes 0 and 1 of its words
 * are the codes of elements 2 WIDTH h .. 2 WIDTH (h + 1) - 1, bytes 2 and 3 those of 32 later. Where it saves
 * operations, two registers are packed into one of 16-bit halves first. ---- */

enum { PARTS = 32 / (2 * WIDTH) };

/* Patterns of codes in bytes 0 and 2 (even) and 1 and 3 (odd), as upper halves of fp32, to one a register */
INLINE void spread(vec16 even, vec16 odd, vec x[2][2])
{
	x[0][0] = number((vec32)even << 16);
	x[0][1] = number((vec32)odd << 16);
	x[1][0] = number((vec32)even & 0xffff0000);
	x[1][1] = number((vec32)odd & 0xffff0000);
}

/* Upper halves of m of scale 1, from codes shifted to where they belong; -0 where the code is that of 0 */
INLINE vec16 pattern_m(vec16 x)
{
	const vec16 none = {0};
	vec16 is0 = (vec16)((x & (0x7f << (INT8_CUT - 16))) == 0);
	return mux(is0, none + 0x8000, (x & 0x87f0) | (INT8_M_BASE >> 16));
}

INLINE void decode_m(vec16 codes, vec x[2][2])
{
	typedef int16_t signs __attribute__((vector_size(sizeof(vec))));
	spread(pattern_m((vec16)((signs)(codes << 8) >> 4)), pattern_m((vec16)((signs)codes >> 4)), x);
}

INLINE vec16 pattern_v(vec16 x) { return (x & 0x0ff0) | (INT8_V_BASE >> 16); }

INLINE void decode_v(vec16 codes, vec x[2][2]) { spread(pattern_v(codes << 4), pattern_v(codes >> 4), x); }

struct packed { /* upper halves of a group's rounded m or v: by part, even and odd ones */
	vec16 of[PARTS][2];
};

/* Rounded patterns of part h */
INLINE void pack(struct packed *p, int h, vec32 x[2][2])
{
	p->of[h][0] = (vec16)upper(x[0][0], x[1][0]);
	p->of[h][1] = (vec16)upper(x[0][1], x[1][1]);
}

INLINE vec16 largest_of(const struct packed *p, uint16_t mask)
{
	vec16 most = {0};
#pragma GCC unroll 4
	for (int h = 0; h < PARTS; h++) most = larger(most, larger(p->of[h][0] & mask, p->of[h][1] & mask));
	return most;
}

/* int8_scale of upper halves */
INLINE vec16 scale_of(vec16 most)
{
	const vec16 none = {0};
	return smaller(larger(most & 0x7f80, none + (INT8_LEAST >> 16)), none + (INT8_MOST >> 16));
}

/* Codes of what lies above `base` */
INLINE vec16 coded(vec16 even, vec16 odd, vec16 base)
{
	return (above(odd, base) << 4 & 0xff00) | (above(even, base) >> 4 & 0x00ff);
}

INLINE void store_codes(char *m, char *v, float *m_scale, float *v_scale, const struct packed *x,
	const struct packed *y, const bool has_v)
{
	vec16 scale_m = largest_of(x, 0x7fff), scale_v = {0};
	if (has_v) scale_v = largest_of(y, 0xffff);
	all_largest(&scale_m, &scale_v);
	scale_m = scale_of(scale_m);
	scale_v = scale_of(scale_v);
	vec16 base_m = scale_m - ((INT8_ONE - INT8_M_BASE) >> 16), base_v = scale_v - ((INT8_ONE - INT8_V_BASE) >> 16);
#pragma GCC unroll 4
	for (int h = 0; h < PARTS; h++) {
		vec16 even = x->of[h][0], odd = x->of[h][1];
		vec16 codes = coded(even & 0x7fff, odd & 0x7fff, base_m) & 0x7f7f;
		put(m + WIDTH * 4 * h, (vec)(codes | (odd & 0x8000) | (even >> 8 & 0x0080)));
		if (has_v) put(v + WIDTH * 4 * h, (vec)coded(y->of[h][0], y->of[h][1], base_v));
	}
	*m_scale = number((vec32)scale_m << 16)[0];
	if (has_v) *v_scale = number((vec32)scale_v << 16)[0];
}

/* ---- an update ---- */

/* The rest of a group's update with fp32 state, once its old state is in the journal */
INLINE void update_fp32(const struct scalars *a, const struct arrays *t, float decay, struct kind is)
{
	const uint16_t *w16 = t->w;
	const float *w32 = t->w;
	float *m = (float *)t->m, *v = (float *)t->v;
#pragma GCC unroll 16
	for (int j = 0; j < MT_GROUP; j += WIDTH) {
		vec x = get(m + j), y = {0};
		if (is.has_v) y = get(v + j);
		vec g = load(t->g[0], j, is.g_bf16), p = is.bf16 ? load_join(w16 + j, t->lo + j) : get(w32 + j);
		if (is.two) g += load(t->g[1], j, is.g_bf16);
		p = rule(p, &x, &y, g, a, decay, is.optim);
		if (is.bf16) {
			narrow((uint16_t *)t->out + j, (bits(p) + 0x8000) >> 16);
			narrow(t->lo + j, bits(p));
		} else put((float *)t->out + j, p);
		put(m + j, x);
		if (is.has_v) put(v + j, y);
	}
}

/* The same with bf16 or int8 state: 2 WIDTH at a time, in the order in which int8's codes lie */
INLINE void update_apart(const struct scalars *a, const struct arrays *t, float decay, uint32_t key, struct kind is)
{
	const bool int8 = is.state == MT_INT8, has_v = is.has_v;
	const int random_bits = int8 ? INT8_CUT : 16;
	vec scale = vec_all(int8 ? *t->m_scale : 1), keep_m = vec_all(a->beta1), keep_v = vec_all(a->beta2);
	struct packed pm, pv;
	if (int8) {
		keep_m *= scale;
		if (has_v) keep_v *= *t->v_scale;
	}
#pragma GCC unroll 4
	for (int h = 0; h < PARTS; h++) {
		vec x[2][2], y[2][2];           /* m and v: even and odd ones, of 2 WIDTH elements and of those 32 later */
		vec32 new_x[2][2], new_y[2][2]; /* rounded */
		vec32 random = random_of(key, WIDTH * h);
		if (int8) {
			decode_m((vec16)get(t->m + WIDTH * 4 * h), x);
			if (has_v) decode_v((vec16)get(t->v + WIDTH * 4 * h), y);
		}
#pragma GCC unroll 2
		for (int q = 0; q < 2; q++) {
			const int j = 32 * q + 2 * WIDTH * h;
			vec g[2], more[2], p[2];
			vec32 high = random >> (32 - random_bits), low = random & ((1u << random_bits) - 1);
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
				new_x[q][r] = bits(x[q][r]) + (r ? low : high);
				if (!has_v) continue;
				new_y[q][r] = bits(y[q][r]) + (r ? high : low);
				p[r] = adamw_step(p[r], x[q][r], int8 ? root_of(new_y[q][r]) : vec_sqrt(y[q][r]), a, decay);
			}
			store_weights(t->out, t->lo, j, is.bf16, p);
			if (!int8) {
				put((uint16_t *)t->m + j, number(upper(new_x[q][0], new_x[q][1])));
				if (has_v) put((uint16_t *)t->v + j, number(upper(new_y[q][0], new_y[q][1])));
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

#endif
