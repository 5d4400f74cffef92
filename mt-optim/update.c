/* update.c: the specification of the update, and what its fast versions share. */
#include <math.h>
#include <stdlib.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

#include "update.h"

void flush_denormals(void)
{
#if defined __x86_64__
	_mm_setcsr(_mm_getcsr() | 0x8040); /* FTZ: results, DAZ: operands */
#elif defined __aarch64__
	uint64_t fpcr;
	__asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
	__asm__ volatile("msr fpcr, %0" ::"r"(fpcr | (uint64_t)1 << 24));
#endif
}

/* Lion and SGD: what their formulas in update.h name. Neither has a bias correction, so t does not matter. */
static struct scalars scalars_of_m(enum mt_optim optim, const struct mt_hyperparams *h, double clip_factor)
{
	bool lion = optim == MT_LION;
	return (struct scalars){
		.clip = (float)clip_factor,
		.decay = (float)(lion ? 1 - h->lr * h->decay : h->decay),
		.no_decay = lion ? 1 : 0,
		.beta1 = (float)h->beta1,
		.one_minus_beta1 = (float)(1 - h->beta1),
		.beta2 = (float)h->beta2,
		.one_minus_beta2 = (float)(1 - h->beta2),
		.neg_step = (float)-h->lr,
	};
}

struct scalars update_scalars(enum mt_optim optim, uint64_t t, const struct mt_hyperparams *h, double clip_factor)
{
	if (optim != MT_ADAMW) return scalars_of_m(optim, h, clip_factor);
	double bias1 = 1 - pow(h->beta1, (double)t), bias2 = 1 - pow(h->beta2, (double)t);
	bool from_g = 1 - h->beta1 >= 0.5;
	double per_step = -bias1 / (h->lr * sqrt(bias2));
	bool steps = isfinite((float)per_step); /* lr is not 0 */
	return (struct scalars){
		.clip = (float)clip_factor,
		.decay = (float)(1 - h->lr * h->decay),
		.no_decay = 1,
		.lerp = (float)(from_g ? -h->beta1 : 1 - h->beta1),
		.lerp_from_g = from_g,
		.beta2 = (float)h->beta2,
		.one_minus_beta2 = (float)(1 - h->beta2),
		.neg_step = (float)-(h->lr / bias1),
		.sqrt_bias2 = (float)sqrt(bias2),
		.eps = (float)h->eps,
		.beta1 = (float)h->beta1,
		.clip_lerp = (float)(clip_factor * (1 - h->beta1)),
		.clip_root2 = (float)(clip_factor * sqrt(1 - h->beta2)),
		.per_step = steps ? (float)per_step : 0,
		.eps_per_step = steps ? (float)(h->eps * sqrt(bias2) * per_step) : -INFINITY,
	};
}

static inline void adamw_element(const struct scalars *a, float decay, float g, float *p, float *m, float *v)
{
	g *= a->clip;
	float from = a->lerp_from_g ? g : *m;
	float m1 = from + (g - *m) * a->lerp;
	float v1 = *v * a->beta2 + (g * a->one_minus_beta2) * g;
	*p = *p * decay + (m1 * a->neg_step) / (sqrtf(v1) / a->sqrt_bias2 + a->eps);
	*m = m1;
	*v = v1;
}

/* m and v of the next step, not yet rounded */
static inline void advance_fused(const struct scalars *a, float g, float *m, float *v)
{
	float g2 = g * a->clip_root2;
	*m = fmaf(*m, a->beta1, g * a->clip_lerp);
	*v = fmaf(g2, g2, *v * a->beta2);
}

static inline void step_fused(const struct scalars *a, float decay, float *p, float m, float root)
{
	*p = fmaf(*p, decay, m / fmaf(root, a->per_step, a->eps_per_step));
}

static inline void lion_element(const struct scalars *a, float decay, float g, float *p, float *m)
{
	g *= a->clip;
	float c = *m * a->beta1 + g * a->one_minus_beta1;
	*p = *p * decay + ((float)(c > 0) - (float)(c < 0)) * a->neg_step;
	*m = *m * a->beta2 + g * a->one_minus_beta2;
}

static inline void sgd_element(const struct scalars *a, float decay, float g, float *p, float *m)
{
	g = g * a->clip + *p * decay;
	*m = *m * a->beta1 + g;
	*p = *p + *m * a->neg_step;
}

/* One element in any optimizer and type of state. new_m, new_v: patterns, rounded unless they are fp32 */
static inline void element(const struct scalars *a, const struct tile *t, float decay, struct rounding random, float g,
	float *p, float m, float v, uint32_t *new_m, uint32_t *new_v)
{
	bool fused = t->optim == MT_ADAMW && t->state != MT_FP32;
	if (t->optim == MT_LION) lion_element(a, decay, g, p, &m);
	else if (t->optim == MT_SGD) sgd_element(a, decay, g, p, &m);
	else if (fused) advance_fused(a, g, &m, &v);
	else adamw_element(a, decay, g, p, &m, &v);
	*new_m = mt_bits(m) + random.m;
	*new_v = mt_bits(v) + random.v;
	if (fused) step_fused(a, decay, p, m, t->state == MT_INT8 ? int8_root(*new_v) : sqrtf(v));
}

static inline float gradient(const struct tile *t, uint64_t i)
{
	float g = t->g_bf16 ? bf16_float(((const uint16_t *)t->g[0])[i]) : ((const float *)t->g[0])[i];
	if (t->g[1]) g += t->g_bf16 ? bf16_float(((const uint16_t *)t->g[1])[i]) : ((const float *)t->g[1])[i];
	return g;
}

static uint64_t moment_bytes(const struct tile *t) { return mt_dtype_bytes(t->state); }

/* One group's m or v, as it lies in a tile */
struct moment {
	void *x;      /* (MT_GROUP) */
	float *scale; /* int8's */
};

static struct moment moment_m(const struct tile *t, uint64_t group)
{
	return (struct moment){(uint8_t *)t->m + group * MT_GROUP * moment_bytes(t),
		t->state == MT_INT8 ? t->m_scale + group : NULL};
}

/* x is NULL where the optimizer has no v: each function below then leaves v out */
static struct moment moment_v(const struct tile *t, uint64_t group)
{
	if (!t->v) return (struct moment){NULL, NULL};
	return (struct moment){(uint8_t *)t->v + group * MT_GROUP * moment_bytes(t),
		t->state == MT_INT8 ? t->v_scale + group : NULL};
}

static void moment_save(const struct tile *t, struct moment m, uint8_t *slot)
{
	if (!m.x) return;
	memcpy(slot, m.x, moment_bytes(t) * MT_GROUP);
	if (t->state == MT_INT8) memcpy(slot + SLOT_SCALE, m.scale, sizeof *m.scale);
}

static void moment_restore(const struct tile *t, struct moment m, const uint8_t *slot)
{
	if (!m.x) return;
	memcpy(m.x, slot, moment_bytes(t) * MT_GROUP);
	if (t->state == MT_INT8) memcpy(m.scale, slot + SLOT_SCALE, sizeof *m.scale);
}

typedef float decode_fn(uint8_t code, float scale);       /* int8_m, int8_v */
typedef uint8_t encode_fn(uint32_t rounded, float scale); /* int8_m_code, int8_v_code */

static void moment_load(const struct tile *t, struct moment from, decode_fn *decode, float x[MT_GROUP])
{
	for (uint64_t j = 0; from.x && j < MT_GROUP; j++)
		if (t->state == MT_INT8) x[j] = decode(((const uint8_t *)from.x)[int8_at(j)], *from.scale);
		else x[j] = t->state == MT_BF16 ? bf16_float(((const uint16_t *)from.x)[j]) : ((const float *)from.x)[j];
}

static void store_codes(struct moment to, encode_fn *encode, const uint32_t x[MT_GROUP])
{
	uint32_t most = 0;
	for (uint32_t j = 0; j < MT_GROUP; j++)
		if (most < (x[j] & 0x7fffffff)) most = x[j] & 0x7fffffff;
	*to.scale = int8_scale(most);
	for (uint32_t j = 0; j < MT_GROUP; j++) ((uint8_t *)to.x)[int8_at(j)] = encode(x[j], *to.scale);
}

/* x: patterns, rounded unless they are fp32 */
static void moment_store(const struct tile *t, struct moment to, encode_fn *encode, const uint32_t x[MT_GROUP])
{
	if (!to.x) return;
	if (t->state == MT_INT8) store_codes(to, encode, x);
	else if (t->state == MT_FP32) memcpy(to.x, x, MT_GROUP * 4);
	else
		for (uint32_t j = 0; j < MT_GROUP; j++) ((uint16_t *)to.x)[j] = (uint16_t)(x[j] >> 16);
}

static void journal(const struct tile *t, uint8_t *slot, uint64_t group)
{
	memcpy(slot + SLOT_W, tile_out(t, group), MT_GROUP * (t->lo ? 2 : 4));
	if (t->lo) memcpy(slot + SLOT_LO, t->lo + group * MT_GROUP, MT_GROUP * 2);
	moment_save(t, moment_m(t, group), slot + SLOT_M);
	moment_save(t, moment_v(t, group), slot + SLOT_V);
}

void update_restore(const struct tile *t, const struct mt_partition *partition)
{
	uint64_t index = atomic_load_explicit(&partition->index, memory_order_relaxed), group = partition_group(index);
	const uint8_t *slot = partition->slot[partition_slot(index)];
	memcpy(tile_out(t, group), slot + SLOT_W, MT_GROUP * (t->lo ? 2 : 4));
	if (t->lo) memcpy(t->lo + group * MT_GROUP, slot + SLOT_LO, MT_GROUP * 2);
	moment_restore(t, moment_m(t, group), slot + SLOT_M);
	moment_restore(t, moment_v(t, group), slot + SLOT_V);
}

void update_scalar(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	uint32_t slot = partition_slot(atomic_load_explicit(&partition->index, memory_order_relaxed));
	for (uint64_t group = first; group < end; group++) {
		uint64_t i0 = group * MT_GROUP, g0 = (group - t->g_group) * MT_GROUP;
		void *out = tile_out(t, group);
		float g[MT_GROUP], m[MT_GROUP], v[MT_GROUP] = {0};
		uint32_t new_m[MT_GROUP], new_v[MT_GROUP];
		slot ^= 1;
		journal(t, partition->slot[slot], group);
		partition_commit(partition, tag | (uint64_t)slot << PARTITION_SLOT | group);
		for (uint64_t j = 0; j < MT_GROUP; j++) g[j] = gradient(t, g0 + j); /* out may be where they are */
		moment_load(t, moment_m(t, group), int8_m, m);
		moment_load(t, moment_v(t, group), int8_v, v);
		uint32_t key = rounding_key(tag, group), bits = t->state == MT_INT8 ? INT8_CUT : 16;
		for (uint32_t j = 0; j < MT_GROUP; j++) {
			uint64_t i = i0 + j;
			float p = t->lo ? mt_float(mt_join(((uint16_t *)t->w)[i], t->lo[i])) : ((float *)t->w)[i];
			struct rounding random = t->state == MT_FP32 ? (struct rounding){0, 0} : rounding_of(key, j, bits);
			element(a, t, decay, random, g[j], &p, m[j], v[j], &new_m[j], &new_v[j]);
			if (t->lo) {
				((uint16_t *)out)[j] = mt_hi(mt_bits(p));
				t->lo[i] = mt_lo(mt_bits(p));
			} else ((float *)out)[j] = p;
		}
		moment_store(t, moment_m(t, group), int8_m_code, new_m);
		moment_store(t, moment_v(t, group), int8_v_code, new_v);
	}
}

int update_isas(struct update_isa isas[UPDATE_ISAS])
{
	int n = 0;
	isas[n++] = (struct update_isa){"scalar", update_scalar};
#if defined __x86_64__
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		isas[n++] = (struct update_isa){"avx2", update_avx2};
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
		isas[n++] = (struct update_isa){"avx512", update_avx512};
#elif defined __aarch64__
	isas[n++] = (struct update_isa){"neon", update_neon};
#endif
	return n;
}

update_fn *update_choose(void)
{
	struct update_isa isas[UPDATE_ISAS];
	int n = update_isas(isas);
	const char *want = getenv("MT_ISA");
	if (!want || !*want) return isas[n - 1].update;
	if (!strcmp(want, "plain")) want = "scalar"; /* mt-stream's word; its kernels' bits differ by set, ours do not */
	for (int i = 0; i < n; i++)
		if (!strcmp(want, isas[i].name)) return isas[i].update;
	return NULL;
}
