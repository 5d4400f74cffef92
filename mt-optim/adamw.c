/* adamw.c: the specification of the update, and what its fast versions share. */
#include <math.h>
#include <stdlib.h>
#if defined __x86_64__
#include <immintrin.h>
#endif

#include "adamw.h"

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

struct adamw adamw_scalars(uint64_t t, double lr, double beta1, double beta2, double eps, double decay,
	double clip_factor)
{
	double bias1 = 1 - pow(beta1, (double)t), bias2 = 1 - pow(beta2, (double)t);
	bool from_g = 1 - beta1 >= 0.5;
	return (struct adamw){
		.clip = (float)clip_factor,
		.decay = (float)(1 - lr * decay),
		.lerp = (float)(from_g ? -beta1 : 1 - beta1),
		.lerp_from_g = from_g,
		.beta2 = (float)beta2,
		.one_minus_beta2 = (float)(1 - beta2),
		.neg_step = (float)-(lr / bias1),
		.sqrt_bias2 = (float)sqrt(bias2),
		.eps = (float)eps,
	};
}

static inline void adamw_element(const struct adamw *a, float decay, float g, float *p, float *m, float *v)
{
	float from = a->lerp_from_g ? g : *m;
	float m1 = from + (g - *m) * a->lerp;
	float v1 = *v * a->beta2 + (g * a->one_minus_beta2) * g;
	*p = *p * decay + (m1 * a->neg_step) / (sqrtf(v1) / a->sqrt_bias2 + a->eps);
	*m = m1;
	*v = v1;
}

static inline float gradient(const struct adamw *a, const struct tile *t, uint64_t i)
{
	float g = t->g_bf16 ? bf16_float(((const uint16_t *)t->g[0])[i]) : ((const float *)t->g[0])[i];
	if (t->g[1]) g += t->g_bf16 ? bf16_float(((const uint16_t *)t->g[1])[i]) : ((const float *)t->g[1])[i];
	return g * a->clip;
}

static uint64_t moment_bytes(const struct tile *t) { return t->state_bf16 ? 2 : 4; }
static uint8_t *moments(const struct tile *t, void *array, uint64_t i)
{
	return (uint8_t *)array + i * moment_bytes(t);
}

static float moment(const struct tile *t, const void *array, uint64_t i)
{
	return t->state_bf16 ? bf16_float(((const uint16_t *)array)[i]) : ((const float *)array)[i];
}

static void set_moment(const struct tile *t, void *array, uint64_t i, float x, uint32_t random)
{
	if (t->state_bf16) ((uint16_t *)array)[i] = (uint16_t)((mt_bits(x) + random) >> 16);
	else ((float *)array)[i] = x;
}

static void journal(const struct tile *t, uint8_t *slot, uint64_t i)
{
	if (t->lo) {
		memcpy(slot + SLOT_W, (uint16_t *)t->w + i, MT_GROUP * 2);
		memcpy(slot + SLOT_LO, t->lo + i, MT_GROUP * 2);
	} else memcpy(slot + SLOT_W, (float *)t->w + i, MT_GROUP * 4);
	memcpy(slot + SLOT_M, moments(t, t->m, i), moment_bytes(t) * MT_GROUP);
	memcpy(slot + SLOT_V, moments(t, t->v, i), moment_bytes(t) * MT_GROUP);
}

void adamw_restore(const struct tile *t, const struct mt_partition *partition)
{
	uint64_t index = atomic_load_explicit(&partition->index, memory_order_relaxed),
			 i = partition_group(index) * MT_GROUP;
	const uint8_t *slot = partition->slot[partition_slot(index)];
	if (t->lo) {
		memcpy((uint16_t *)t->w + i, slot + SLOT_W, MT_GROUP * 2);
		memcpy(t->lo + i, slot + SLOT_LO, MT_GROUP * 2);
	} else memcpy((float *)t->w + i, slot + SLOT_W, MT_GROUP * 4);
	memcpy(moments(t, t->m, i), slot + SLOT_M, moment_bytes(t) * MT_GROUP);
	memcpy(moments(t, t->v, i), slot + SLOT_V, moment_bytes(t) * MT_GROUP);
}

void adamw_scalar(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	uint32_t slot = partition_slot(atomic_load_explicit(&partition->index, memory_order_relaxed));
	for (uint64_t group = first; group < end; group++) {
		uint64_t i0 = group * MT_GROUP, g0 = (group - t->g_group) * MT_GROUP;
		uint32_t key = rounding_key(tag, group);
		slot ^= 1;
		journal(t, partition->slot[slot], i0);
		partition_commit(partition, tag | (uint64_t)slot << 27 | group);
		for (uint64_t j = 0; j < MT_GROUP; j++) {
			uint64_t i = i0 + j;
			float g = gradient(a, t, g0 + j), m = moment(t, t->m, i), v = moment(t, t->v, i);
			uint32_t random = rounding_bits(key, (uint32_t)j);
			if (t->lo) {
				uint16_t *w = (uint16_t *)t->w + i;
				float p = mt_float(mt_join(*w, t->lo[i]));
				adamw_element(a, decay, g, &p, &m, &v);
				*w = mt_hi(mt_bits(p));
				t->lo[i] = mt_lo(mt_bits(p));
			} else adamw_element(a, decay, g, (float *)t->w + i, &m, &v);
			set_moment(t, t->m, i, m, random & 0xffff);
			set_moment(t, t->v, i, v, random >> 16);
		}
	}
}

adamw_fn *adamw_choose(void)
{
	const char *want = getenv("MT_ISA");
	if (want && (!strcmp(want, "scalar") || !strcmp(want, "plain")))
		return adamw_scalar; /* mt-stream's word; its kernels' bits differ by set, ours do not */
#if defined __x86_64__
	__builtin_cpu_init();
	bool avx2 = __builtin_cpu_supports("avx2"), avx512 = __builtin_cpu_supports("avx512f");
	if (want && !strcmp(want, "avx2")) return avx2 ? adamw_avx2 : NULL;
	if (want && !strcmp(want, "avx512")) return avx512 ? adamw_avx512 : NULL;
	if (want && *want) return NULL;
	return avx512 ? adamw_avx512 : avx2 ? adamw_avx2 : adamw_scalar;
#else
	return want && *want ? NULL : adamw_scalar;
#endif
}
