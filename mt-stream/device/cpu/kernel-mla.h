/* kernel-mla.h: q, k and v of multi-head latent attention (arXiv 2405.04434), from its projections, and back */
#include "ops/mla.h"
#include "ops/rope.h"

/* Elements of a token in qkv, and in kv */
INLINE int64_t mla_row(const struct mla_args *a) { return a->heads * (2 * a->dim + a->dim_v); }
INLINE int64_t mla_pair(const struct mla_args *a) { return a->dim - a->rope_dim + a->dim_v; }

INLINE void mla_turn(const struct mla_args *a, float *x, int64_t position, float sign)
{
	int64_t half = a->rope_dim / 2;
	rotate_head(x, a->cos + position * half, a->sin + position * half, sign, half, a->neighbours);
}

INLINE void mla_heat(const struct mla_args *a, float *q, int64_t position)
{
	const struct rope_args r = {.heads = a->heads,
		.dim = a->dim,
		.temperature = a->temperature,
		.temperature_positions = a->temperature_positions,
		.past = a->past};
	heat(&r, q, position);
}

static void mla_forward(const struct mla_args *a, int64_t first, int64_t end)
{
	int64_t nope = a->dim - a->rope_dim, heads = a->heads;
	size_t unturned = (size_t)nope * sizeof(float), turned = (size_t)a->rope_dim * sizeof(float);
	float shared[512];
	for (int64_t t = first; t < end; t++) {
		int64_t position = t % a->seq - a->starts[t];
		float *q = (float *)a->qkv + t * mla_row(a), *k = q + heads * a->dim, *v = k + heads * a->dim;
		const float *kv = (const float *)a->kv + t * heads * mla_pair(a);
		memcpy(shared, (const float *)a->kr + t * a->ld, turned);
		mla_turn(a, shared, position, 1);
		for (int64_t h = 0; h < heads; h++, kv += mla_pair(a)) {
			mla_turn(a, q + h * a->dim + nope, position, 1);
			memcpy(k + h * a->dim, kv, unturned);
			memcpy(k + h * a->dim + nope, shared, turned);
			memcpy(v + h * a->dim_v, kv + nope, (size_t)a->dim_v * sizeof(float));
		}
		mla_heat(a, q, position);
	}
}

static void mla_backward(const struct mla_args *a, int64_t first, int64_t end)
{
	int64_t nope = a->dim - a->rope_dim, heads = a->heads;
	for (int64_t t = first; t < end; t++) {
		int64_t position = t % a->seq - a->starts[t];
		float *q = (float *)a->qkv + t * mla_row(a), *k = q + heads * a->dim, *v = k + heads * a->dim;
		float *kv = (float *)a->kv + t * heads * mla_pair(a), *kr = (float *)a->kr + t * a->ld;
		mla_heat(a, q, position);
		memset(kr, 0, (size_t)a->rope_dim * sizeof(float));
		for (int64_t h = 0; h < heads; h++, kv += mla_pair(a)) {
			const float *turned = k + h * a->dim + nope;
			mla_turn(a, q + h * a->dim + nope, position, -1);
			memcpy(kv, k + h * a->dim, (size_t)nope * sizeof(float));
			memcpy(kv + nope, v + h * a->dim_v, (size_t)a->dim_v * sizeof(float));
			for (int64_t i = 0; i < a->rope_dim; i++) kr[i] += turned[i];
		}
		mla_turn(a, kr, position, -1);
	}
}
