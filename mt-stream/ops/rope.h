/* rope.h: rotary positions, and norms of heads */
#ifndef MT_STREAM_OPS_ROPE_H
#define MT_STREAM_OPS_ROPE_H

#include "common.h"

/* Rotary positions (arXiv 2104.09864) of q and k, in place, and the RMSNorms that some families have before or after
 * them. The position of token t is its place in its row - starts[t]. In this order: k_is_v, norms, rotation,
 * temperature; with norm_after the norms of q and k follow the rotation. */
struct rope_args {
	int64_t n, seq, heads, kv_heads, dim; /* seq: tokens of a row; dim: at most 512 */
	int64_t rope_dim;          /* the first elements of a head, which turn: even, at most dim; 0: none, no positions */
	int neighbours;            /* element 2 i pairs with 2 i + 1; else i with i + rope_dim / 2 (rotate_half) */
	const float *cos, *sin;    /* (positions, rope_dim / 2), multiplied by the attention scaling already */
	const uint32_t *starts;    /* (N): where in its row the token's document starts */
	const void *qnorm, *knorm; /* (D), or with row_norm (NH D), (NKV D); NULL: no norm */
	float eps;
	int row_norm;   /* one norm of all q heads together, one of all k heads; else each head has its own */
	int norm_after; /* the norms of q and k follow the rotation; not with row_norm */
	int norm_one;   /* norms multiply by 1 + w */
	int norm_plain; /* q and k have norms of heads, without weights */
	int v_norm;     /* each head of v has a norm without weight; only where q and k have norms of heads */
	int k_is_v;     /* forward: v = k as it comes in. backward: v's gradient is added to that of k as it came in */
	/* q *= 1 + temperature * log(1 + floor((position + from) / positions)), where temperature is not 0 */
	float temperature;
	int64_t temperature_positions, temperature_from;
	int64_t past; /* cpu: the first token's place in its row, if not 0 (mt-sample); cos and sin start there already */
	void *qkv;    /* (N, (NH + 2 NKV) D); backward: the gradient of the results becomes that of the input */
	int64_t ld;   /* from a token's row of qkv to the next one's; 0: (NH + 2 NKV) D */
	/* what the norms got, and their rstd; norms only. Forward writes both, backward reads them. Heads: q's, k's,
	 * with v_norm also v's; rstd with row_norm: q's, k's */
	void *pre;              /* (N, heads D) */
	float *rstd;            /* (N, heads), or with row_norm (N, 2) */
	float *dqnorm, *dknorm; /* as qnorm, knorm; backward with norms: d = beta d + gradient */
	float beta;
};

/* Have q and k norms? */
static inline ON_DEVICE int rope_norms(const struct rope_args *a) { return a->qnorm || a->norm_plain; }
/* Heads that have a norm */
static inline ON_DEVICE int64_t rope_row(const struct rope_args *a)
{
	return a->ld ? a->ld : (a->heads + 2 * a->kv_heads) * a->dim;
}
static inline int64_t rope_normed(const struct rope_args *a) { return a->heads + (a->v_norm ? 2 : 1) * a->kv_heads; }
/* Elements of qnorm and of knorm */
static inline int64_t rope_q_weights(const struct rope_args *a) { return (a->row_norm ? a->heads : 1) * a->dim; }
static inline int64_t rope_k_weights(const struct rope_args *a) { return (a->row_norm ? a->kv_heads : 1) * a->dim; }
/* Layers without positions (NoPE), and without anything else */
static inline int rope_is_nothing(const struct rope_args *a)
{
	return !a->rope_dim && !rope_norms(a) && !a->k_is_v && a->temperature == 0;
}

/* clang-format off */
#define rope_arrays(A) \
	A(elem, qkv, a->n * rope_row(a), 0) \
	A(weight, qnorm, rope_q_weights(a), 0) \
	A(weight, knorm, rope_k_weights(a), 0) \
	A(elem, pre, a->n * rope_normed(a) * a->dim, code == OP_ROPE_FORWARD && rope_norms(a)) \
	A(4, rstd, a->n * (a->row_norm ? 2 : rope_normed(a)), code == OP_ROPE_FORWARD && rope_norms(a)) \
	A(4, dqnorm, rope_q_weights(a), code == OP_ROPE_BACKWARD && a->qnorm && a->beta == 0) \
	A(4, dknorm, rope_k_weights(a), code == OP_ROPE_BACKWARD && a->qnorm && a->beta == 0)
/* clang-format on */

#endif
