/* attention.h: attention, and the gradient of its sinks */
#ifndef MT_STREAM_OPS_ATTENTION_H
#define MT_STREAM_OPS_ATTENTION_H

#include <stdbool.h>

#include "common.h"

/* Causal attention inside documents: o = softmax(s) v. s = q k' scale, or with a cap s = cap tanh(q k' scale / cap).
 * Nothing of size seq x seq is kept. */
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
	const void
		*sinks; /* (NH): each is one more score of every query of its head, of a token whose v is 0; NULL: none */
	/* For an attention backend of the device (device.h): */
	const uint32_t *host_starts; /* host: the same as starts; valid until the micro-batch ends */
	void *work;                  /* (work_bytes), as attention_need reported; NULL: no backend was selected */
	size_t work_bytes;
};

static inline ON_DEVICE int64_t attention_dim_v(const struct attention_args *a) { return a->dim_v ? a->dim_v : a->dim; }
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
