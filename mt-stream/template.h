/* template.h: the layers, as functions of (geometry, weights, input, saved activations). A template owns no
 * weights and no state; it launches operations on the device's compute queue and returns.
 *
 * Letters: N tokens of the chunk, P of a piece, H hidden, A = heads x D, K = kv_heads x D, F the MLP's inner size,
 * V vocabulary. The MLP computes a chunk in pieces, which are smaller than the chunk if one row is a large chunk.
 * dx is the gradient of the residual stream: a template's backward reads the gradient of its output there and writes
 * the gradient of its input. beta is 0 for a unit's first chunk, then 1: weight gradients add up in fp32.
 */
#ifndef MT_STREAM_TEMPLATE_H
#define MT_STREAM_TEMPLATE_H

#include "device.h"

#define ROLES (MT_T_HEAD + 1)

struct weights {
	const void *t[ROLES];
}; /* by enum mt_role_tensor; NULL: this model has none */
struct grads {
	float *t[ROLES];
};

struct scratch {     /* valid only within one call of a template */
	void *h;         /* (N, H)      a norm's output */
	void *dh;        /* (N, H)      its gradient */
	float *rstd;     /* (N)         its statistics */
	void *act;       /* (P, F)      SwiGLU's output or its gradient */
	void *d_o;       /* (N, A)      gradient of attention's output */
	void *dqkv;      /* (N, A + 2K) */
	void *gu;        /* (P, 2F)     gate | up of blocks that do not keep it */
	void *logits;    /* (N', V)     N' the tokens of a head chunk */
	void *attention; /* work memory of the device's attention backend; NULL: none */
	uint64_t attention_bytes;
};

struct saved {      /* what a block's backward needs from its forward, beside the block's input */
	void *qkv;      /* (N, A + 2K) after rope */
	void *pre;      /* (N, A + K)  q, k before their norms; qk-norm models only */
	float *qk_rstd; /* (N, heads + kv_heads) */
	void *o;        /* (N, A)      attention's output */
	float *lse;     /* (N, heads)  its log-sum-exps */
	void *x2;       /* (N, H)      the second residual */
	void *gu;       /* (N, 2F)     gate | up; backward writes its gradient here. NULL: recomputed */
};

struct chunk { /* whole rows that go through a layer together */
	struct device *dev;
	const struct mt_geometry *geo;
	int64_t n, seq, piece;
	int64_t past; /* tokens before the chunk that it attends to; their q | k | v stand before saved->qkv. 0 to train */
	const uint32_t *tokens, *targets, *starts; /* (N) each */
	const uint32_t *host_starts;               /* host: as starts */
	const float *cos, *sin;                    /* (positions, D / 2) */
	struct scratch s;
};

/* x (N, H) = embeddings of the tokens */
void embed_forward(const struct chunk *, const struct weights *, void *x);
void embed_backward(const struct chunk *, const struct grads *, float beta, const void *dx);

/* y (N, H) = block(x); *saved is filled. */
void block_forward(const struct chunk *, uint32_t layer, const struct weights *, const void *x, struct saved *,
	void *y);
/* Recompute *saved, except gu; o and lse are there already if have_attention. */
void block_recompute(const struct chunk *, uint32_t layer, const struct weights *, const void *x, struct saved *,
	bool have_attention);
void block_backward(const struct chunk *, uint32_t layer, const struct weights *, const struct grads *, float beta,
	const void *x, struct saved *, void *dx);

/* Final norm, LM head and cross-entropy over N tokens (here a head chunk, not whole rows). Adds to *loss; with g, loss
 * is scaled and dx (N, H) is written. head is w's own or, tied, the embedding's. */
void head_loss(const struct chunk *, const struct weights *, struct loss *loss, const void *x);
void head_loss_backward(const struct chunk *, const struct weights *, const struct grads *, float beta, float scale,
	struct loss *loss, const void *x, void *dx);

/* The two parts of the head before the loss. s.h (N, H) = the final norm of x (N, H); s.logits (N, rows) = s.h times
 * the first `rows` rows of the head's weight */
void head_norm(const struct chunk *, const struct weights *, const void *x);
void head_logits(const struct chunk *, const struct weights *, int64_t rows);

/* Rope's tables (positions, D / 2), rows `from` to `to` - 1: cos and sin of position * inv_freq as transformers' rotary
 * embedding has them, all in fp32 */
void rope_table(const struct mt_geometry *, uint32_t from, uint32_t to, float *cos, float *sin);

/* `elements` after p, in elements of the device */
static inline void *elements_after(const struct device *d, const void *p, int64_t elements)
{
	return p ? (char *)p + (size_t)elements * d->elem : NULL;
}

#endif
