/* attention.h: attention, and the gradient of its sinks */
#ifndef MT_STREAM_OPS_ATTENTION_H
#define MT_STREAM_OPS_ATTENTION_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common.h"

/* ALiBi (arXiv 2108.12409): the score of token i and a token j before it gets scale slope (j - i). Head h of n, a power
 * of two, has the slope 2^(-max (h + 1) / n); of other numbers of heads, those beyond the n have every second one of
 * 2 n heads. `rounded`: slopes, positions in the document, and their products are rounded to bf16. */
struct alibi {
	float max, scale; /* max 0: none */
	bool rounded;
	int64_t heads, first; /* of the model, of which these are some: from this one on */
};

/* Causal attention inside documents: o = softmax(s) v. s = q k' scale, or with a cap s = cap tanh(q k' scale / cap), or
 * with ALiBi. Nothing of size seq x seq is kept. */
struct attention_args {
	int64_t n, seq, heads, kv_heads, dim; /* dim: at most 512 */
	int64_t dim_v;                        /* of a head of v and o, at most 512; 0: dim */
	int64_t window;                       /* a token sees itself and window - 1 tokens before it; 0: no window */
	/* cpu, forward: tokens of the first document before the first one; their rows stand before qkv, and no output is
	 * computed for them. A multiple of 64, or n is 1: tiles are counted from the document's start */
	int64_t past;
	float scale;
	const uint32_t *starts; /* (N): where in its row the token's document starts */
	const void *qkv;        /* (N, (NH + NKV) D + NKV DV); DV: dim_v */
	void *o;                /* (N, NH DV); forward writes it, backward reads it */
	float *lse;             /* (N, NH): log-sum-exp of the scaled scores, likewise */
	const void *d_o;        /* (N, NH DV), backward */
	void *dqkv;             /* as qkv, backward; NULL: forward */
	float cap;              /* 0: none */
	struct alibi alibi;
	const void
		*sinks; /* (NH): each is one more score of every query of its head, of a token whose v is 0; NULL: none */
	/* For an attention backend of the device (device.h): */
	const uint32_t *host_starts; /* host: the same as starts; valid until the micro-batch ends */
	void *work;                  /* (work_bytes), as attention_need reported; NULL: no backend was selected */
	size_t work_bytes;
};

static inline ON_DEVICE int64_t attention_dim_v(const struct attention_args *a) { return a->dim_v ? a->dim_v : a->dim; }

/* What a head's scores get, or with scale that times it */
struct bias {
	float slope, scale;
	bool rounded;
};

static inline ON_DEVICE float rounded_to_bf16(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static inline ON_DEVICE struct bias bias_of(const struct alibi *a, int64_t head, float scale)
{
	int64_t n = 1, h = a->first + head;
	while (2 * n <= a->heads) n *= 2;
	float share = h < n ? (float)(h + 1) / (float)n : (float)(2 * (h - n) + 1) / (float)(2 * n);
	float slope = exp2f(-a->max * share);
	struct bias b = {a->rounded ? rounded_to_bf16(slope) : slope, a->scale * scale, a->rounded};
	return b;
}

/* For query i and key j, counted from the document's start */
static inline ON_DEVICE float bias_at(const struct bias *b, int64_t i, int64_t j)
{
	if (!b->rounded) return b->scale * b->slope * (float)(j - i);
	float at_j = rounded_to_bf16(b->slope * rounded_to_bf16((float)j));
	return b->scale * (at_j - rounded_to_bf16(b->slope * rounded_to_bf16((float)i)));
}

/* Elements of a token in qkv */
static inline ON_DEVICE int64_t attention_row(const struct attention_args *a)
{
	return (a->heads + a->kv_heads) * a->dim + a->kv_heads * attention_dim_v(a);
}

/* dsinks = beta dsinks + gradient: of head j, minus the sum over tokens of exp(sinks[j] - lse) (d_o . o) */
struct sinks_backward_args {
	float *dsinks; /* (NH) */
	float beta;
	const void *sinks;   /* (NH) */
	const void *o, *d_o; /* (N, NH D) */
	const float *lse;    /* (N, NH), as attention's forward wrote it, with sinks */
	int64_t n, heads, dim;
};

/* op_attention_forward and op_attention_backward with operands of multiplications rounded to bf16 */
void attention_bf16_forward(struct pool *, const struct attention_args *);
void attention_bf16_backward(struct pool *, const struct attention_args *);
/* This CPU can, and it is faster than fp32 */
bool attention_bf16_is_fast(void);

/* clang-format off */
#define attention_arrays(A) \
	A(elem, qkv, a->n * attention_row(a), 0) \
	A(elem, o, a->n * a->heads * attention_dim_v(a), code == OP_ATTENTION_FORWARD) \
	A(4, lse, a->n * a->heads, code == OP_ATTENTION_FORWARD) \
	A(elem, d_o, a->n * a->heads * attention_dim_v(a), 0) \
	A(elem, dqkv, a->n * attention_row(a), code == OP_ATTENTION_BACKWARD) \
	A(weight, sinks, a->heads, 0)
#define sinks_backward_arrays(A) \
	A(4, dsinks, a->heads, a->beta == 0) \
	A(weight, sinks, a->heads, 0) \
	A(elem, o, a->n * a->heads * a->dim, 0) \
	A(elem, d_o, a->n * a->heads * a->dim, 0)
/* clang-format on */

#endif
