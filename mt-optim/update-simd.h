/* update-simd.h: what update-avx2.c, update-avx512.c and update-neon.c share: a group's arrays, and the rules of
 * update.h. The rules use the compiler's operators on vectors, each of which is one instruction: nothing is fused but
 * by vec_fma. Defined before: ISA, the attribute of the instruction set; vec, a register of fp32; vec_all, one number
 * in all of it; vec_sqrt; vec_fma. */
#ifndef MT_OPTIM_UPDATE_SIMD_H
#define MT_OPTIM_UPDATE_SIMD_H

#include "update.h"

#define INLINE ISA static inline __attribute__((always_inline))

enum { WIDTH = sizeof(vec) / sizeof(float), AHEAD = 6 }; /* groups to prefetch ahead: 384 elements */

/* words and halves: registers of unsigned numbers */
typedef uint32_t vec32 __attribute__((vector_size(sizeof(vec))));
typedef uint16_t vec16 __attribute__((vector_size(sizeof(vec))));

/* ---- a group's arrays */

struct kind { /* constant in each loop */
	bool bf16, g_bf16, two;
	enum mt_optim optim;
	enum mt_dtype state;
	bool has_v; /* adamw's alone */
};

struct arrays {
	const void *w;
	void *out;   /* w, or over g[0] */
	int16_t *lo; /* of bf16 runs */
	char *m, *v;
	float *m_scale, *v_scale; /* int8's */
	const char *g[2];
};

INLINE struct arrays arrays_of(const struct tile *t, uint64_t group, struct kind is)
{
	uint64_t i = group * MT_GROUP, gi = (group - t->g_group) * MT_GROUP * (is.g_bf16 ? 2 : 4);
	return (struct arrays){
		.w = (const char *)t->w + i * (is.bf16 ? 2 : 4),
		.out = t->out ? (char *)t->out + group * t->out_bytes : (char *)t->w + i * (is.bf16 ? 2 : 4),
		.lo = is.bf16 ? t->lo + i : NULL,
		.m = (char *)t->m + i * mt_dtype_bytes(is.state),
		.v = is.has_v ? (char *)t->v + i * mt_dtype_bytes(is.state) : NULL,
		.m_scale = is.state == MT_INT8 ? t->m_scale + group : NULL,
		.v_scale = is.state == MT_INT8 && is.has_v ? t->v_scale + group : NULL,
		.g = {(const char *)t->g[0] + gi, is.two ? (const char *)t->g[1] + gi : NULL},
	};
}

INLINE void prefetch(const void *p, int width)
{
	for (int i = 0; i < MT_GROUP * width; i += 64) __builtin_prefetch((const char *)p + AHEAD * MT_GROUP * width + i);
}

INLINE void arrays_prefetch(const struct arrays *at, struct kind is)
{
	prefetch(at->w, is.bf16 ? 2 : 4);
	if (is.bf16) prefetch(at->lo, 2);
	prefetch(at->m, (int)mt_dtype_bytes(is.state));
	if (is.has_v) prefetch(at->v, (int)mt_dtype_bytes(is.state));
	prefetch(at->g[0], is.g_bf16 ? 2 : 4);
	if (is.two) prefetch(at->g[1], is.g_bf16 ? 2 : 4);
}

/* A register from memory of any type, and to it */
INLINE vec get(const void *from)
{
	vec x;
	memcpy(&x, from, sizeof x);
	return x;
}
INLINE void put(void *to, vec x) { memcpy(to, &x, sizeof x); }

INLINE void copy(void *to, const void *from, int bytes)
{
	for (int i = 0; i < bytes; i += (int)sizeof(vec)) put((char *)to + i, get((const char *)from + i));
}

/* ---- the rules. g: before clipping; they return the new p */

INLINE vec adamw(vec p, vec *m, vec *v, vec g, const struct scalars *a, float decay)
{
	g *= a->clip;
	vec from = a->lerp_from_g ? g : *m;
	*m = from + (g - *m) * a->lerp;
	*v = *v * a->beta2 + (g * a->one_minus_beta2) * g;
	return p * decay + (*m * a->neg_step) / (vec_sqrt(*v) / a->sqrt_bias2 + a->eps);
}

/* State in bf16 or int8: m and v first, which are then rounded. keep_m, keep_v: beta1 and beta2, int8's times the
 * scales; root: of v, int8's of the rounded one */
INLINE void adamw_moments(vec *m, vec *v, vec g, const struct scalars *a, vec keep_m, vec keep_v)
{
	vec g2 = g * a->clip_root2;
	*m = vec_fma(*m, keep_m, g * a->clip_lerp);
	*v = vec_fma(g2, g2, *v * keep_v);
}

INLINE vec adamw_step(vec p, vec m, vec root, const struct scalars *a, float decay)
{
	return vec_fma(p, vec_all(decay), m / vec_fma(root, vec_all(a->per_step), vec_all(a->eps_per_step)));
}

INLINE vec lion(vec p, vec *m, vec g, const struct scalars *a, float decay)
{
	g *= a->clip;
	vec c = *m * a->beta1 + g * a->one_minus_beta1, sign = __builtin_convertvector((c < 0) - (c > 0), vec);
	*m = *m * a->beta2 + g * a->one_minus_beta2;
	return p * decay + sign * a->neg_step;
}

INLINE vec sgd(vec p, vec *m, vec g, const struct scalars *a, float decay)
{
	g = g * a->clip + p * decay;
	*m = *m * a->beta1 + g;
	return p + *m * a->neg_step;
}

/* All but adamw_moments */
INLINE vec rule(vec p, vec *m, vec *v, vec g, const struct scalars *a, float decay, enum mt_optim optim)
{
	if (optim == MT_LION) return lion(p, m, g, a, decay);
	return optim == MT_SGD ? sgd(p, m, g, a, decay) : adamw(p, m, v, g, a, decay);
}

/* ---- The body of an update_fn over an always-inlined `groups` that takes a kind as constant: each of the 72 is a
 * separate loop, without a branch inside. ---- */

#define LOOP(W, G, TWO, OPTIM, STATE) \
	groups(a, t, partition, tag, first, end, decay, (struct kind){W, G, TWO, OPTIM, STATE, (OPTIM) == MT_ADAMW})
#define BY_STATE(...) \
	(t->state == MT_INT8          ? LOOP(__VA_ARGS__, MT_INT8) \
			: t->state == MT_BF16 ? LOOP(__VA_ARGS__, MT_BF16) \
								  : LOOP(__VA_ARGS__, MT_FP32))
#define BY_OPTIM(...) \
	(t->optim == MT_LION         ? BY_STATE(__VA_ARGS__, MT_LION) \
			: t->optim == MT_SGD ? BY_STATE(__VA_ARGS__, MT_SGD) \
								 : BY_STATE(__VA_ARGS__, MT_ADAMW))
#define BY_TWO(...) (t->g[1] ? BY_OPTIM(__VA_ARGS__, true) : BY_OPTIM(__VA_ARGS__, false))
#define BY_G(...) (t->g_bf16 ? BY_TWO(__VA_ARGS__, true) : BY_TWO(__VA_ARGS__, false))
#define UPDATE_SPECIALISE() (t->lo ? BY_G(true) : BY_G(false))

#endif
