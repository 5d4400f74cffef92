/* block.h: stateless layer templates: the layers, as functions of (geometry, weights, input, saved activations) that
 * own nothing. They launch operations on the device's compute queue and return.
 *
 * Letters: N tokens of the chunk, P of a slice, H hidden, V vocabulary; of the layer's kind: A = heads x D, of gated
 * DeltaNet value_heads x value_dim, of a short convolution conv_dim, K = kv_heads x D, F the MLP's inner size, G: 2 F
 * where the MLP is gated, else F.
 * The MLP computes a chunk in slices, which are smaller than the chunk if one row is a large chunk.
 * dx is the gradient of the residual stream: a layer's backward reads the gradient of its output there and writes the
 * gradient of its input. beta is 0 for a unit's first chunk, then 1: weight gradients add up in fp32.
 */
#ifndef MT_STREAM_BLOCK_H
#define MT_STREAM_BLOCK_H

#include "device/device.h"
#include "mt/model.h"

/* Checkpoint level: what a block keeps for its backward pass, beside its input. The rest is recomputed. */
enum checkpoint {
	KEEP_INPUT,           /* nothing */
	KEEP_ATTENTION,       /* attention's output and statistics */
	KEEP_ALL_BUT_GATE_UP, /* also q, k, v and the second residual */
	KEEP_ALL,             /* also gate and up; only norms and SwiGLU are recomputed */
};

#define ROLES (MT_T_MTP_PROJ + 1)

struct weights {
	const void *t[ROLES];
	const int16_t *lo[ROLES]; /* exact tensors', in bf16 runs */
	int64_t stride[ROLES];    /* experts': elements from one expert's tensor to the next one's */
}; /* by enum mt_role_tensor; NULL: this model has none. Of experts' tensors: the first expert's */
struct grads {
	float *t[ROLES];
	int64_t stride[ROLES];
	bool frozen[ROLES]; /* it is not trained, nor is another expert's */
};

/* Where a slice's tokens go, of a mixture of experts: E experts, K of a token, R = P K (ops/common.h). With windows it
 * is kept for every slice of the pass, one after another. */
struct routing {
	float *scores;           /* (P, E) */
	float *weight, *dweight; /* (P, K) */
	uint32_t *expert, *row;  /* (P, K) */
	uint32_t *slot;          /* (R) */
	uint32_t *first;         /* (E + 1) */
	float *sum;              /* (P, H): what the windows so far give; NULL: all experts are there at once */
	/* an exact router's weight and correction (E, H), (E), in fp32. NULL: another router */
	float *router, *correction;
};

/* Of a slice, in models whose blocks have inputs of their own. p: ple_dim, L p: of all blocks */
struct ple_scratch {
	void *all, *normed; /* (P, L p) the part of all blocks' inputs that is made of the embeddings; its norm */
	float *rstd;        /* (P, L) */
};

struct scratch {            /* valid only within one call */
	void *arena[2];         /* what lists place there (layers/place.c): of a chunk's mixers, of a slice's MLP */
	void *h;                /* (N, H)      a norm's output, of the head and of the blocks' own inputs */
	void *dh;               /* (N, H)      its gradient */
	float *rstd;            /* (N)         its statistics */
	float *mean;            /* (N)         LayerNorm's */
	void *logits;           /* (N', V)     N' the tokens of a head chunk; fp32 where losses are asked for */
	double *losses;         /* (N')      of each token; NULL: only their sum is asked for */
	uint32_t *top;          /* (N', MT_TEACHER_WORDS) the most likely ones; NULL: they are not asked for */
	struct routing routing; /* of a slice; models with experts only */
	struct ple_scratch ple;
	void *altup[2];   /* (N, H) each: of models with AltUp, the mean of copies, and one's product */
	void *operand[2]; /* room for operands x and dy; NULL where activations are operands as they are */
	void *fp8;        /* of GEMMs whose operands are rounded to e4m3; NULL: none are */
	void *heads;      /* of attention by groups of heads: a group's q | k | v, o, and their gradients */
	void *attention;  /* work memory of the device's attention backend; NULL: none */
	uint64_t attention_bytes;
	float *delta; /* work memory of the delta rule, and of the scan */
};

enum { LIST_VALUES = 64 }; /* of a block's list, at most (layers/list.h) */

struct saved {            /* what a block's backward needs from its forward, beside the block's input */
	void *v[LIST_VALUES]; /* (N, width) each, of the block's list, but x2. NULL: in the scratch's arena */
	void *x2;             /* (N, H) of blocks with mixer and MLP: the second residual */
	void *dsum;           /* (N, H) windows of experts with a norm behind them: the gradient of what it reads */
	float *state;         /* (value_heads, key_dim, value_dim), (conv_dim, key_dim) mt-sample's; NULL to train */
};

/* For the auxiliary loss and the z-loss of routers. Forward: each router adds to sums (OP_BALANCE_FORWARD); backward:
 * aux and z are the factors of OP_BALANCE_BACKWARD. */
struct balance {
	double *sums; /* (2 E + 1); NULL: neither loss */
	bool backward;
	const uint32_t *counted; /* (N) */
	double aux, z;
};

struct chunk { /* whole rows that go through a layer together */
	struct device *dev;
	const struct mt_geometry *geo;
	int64_t n, seq, slice;
	int in_out;                    /* weights of linear layers are (in, out): a block's in models with MT_IN_OUT */
	int64_t before, slices_before; /* tokens and slices of the pass before the chunk, where experts come by windows */
	int64_t past; /* tokens of its document before the chunk; their rows stand before those of saved. 0 to train */
	const struct list *lists;                  /* of each kind of layers */
	const uint32_t *tokens, *targets, *starts; /* (N) each */
	const float *row_weights;                  /* (N) of targets in the loss; NULL: 1 each */
	struct teacher teacher;                    /* (N) of targets, likewise; its top also that of s.top */
	const uint32_t *host_starts;               /* host: as starts */
	const uint32_t *span_starts; /* (N): where in its row the token's span starts (mt_layer); NULL to sample */
	const float *cos[MT_KINDS], *sin[MT_KINDS]; /* (positions, rope_dim / 2), by kind of layer */
	/* Multi-token prediction: (N, H) what the final norm gives, forward; its gradient, backward. Of the head's chunks:
	 * are they of its rows? */
	void *hidden, *dhidden;
	bool mtp;
	void *ple; /* (N, L p): each block's own input; backward: of blocks that have gone, its gradient. NULL: none */
	/* by kind of layers: k | v (N, 2 K) that other layers read, and the sum of their gradients; kv NULL: it stands
	 * in q | k | v already (mt-sample) */
	void *kv[MT_KINDS], *dkv[MT_KINDS];
	/* by kind of layers: key-value heads of a call of attention, which goes by groups of these and their query heads;
	 * 0: all at once */
	uint32_t group[MT_KINDS];
	struct balance balance;
	struct scratch s;
};

/* x (N, H) = embeddings of the tokens; or their streams. In these models it goes slice by slice, through s.h */
void embed_forward(const struct chunk *, const struct weights *, void *x);
void embed_backward(const struct chunk *, const struct grads *, float beta, const void *dx);
/* x (N, H) = embeddings of the tokens, whether there are streams or not */
void embed_tokens(const struct chunk *, const struct weights *, void *x);
/* The tokens of the chunk's next slice, which begins at `from` */
struct chunk embed_slice(const struct chunk *, int64_t from);

/* The streams x (N, S H) of a slice's embeddings e (N, H); dx_0 += the gradient of e, which is in s.h then */
void altup_begin(const struct chunk *, const struct weights *, const void *e, void *x);
void altup_begin_backward(const struct chunk *, const struct weights *, const struct grads *, float beta, const void *x,
	void *dx);
/* What the final norm reads, mean (N, H), of the streams x (N, S H). dmean is overwritten. */
void altup_end(const struct chunk *, const struct weights *, const void *x, void *mean);
void altup_end_backward(const struct chunk *, const struct weights *, const struct grads *, float beta, const void *x,
	void *dmean, void *dx);

/* c->ple, of the tokens and their embeddings x. Without w's table its rows of the tokens are there already. Backward:
 * dx += the gradient of x */
void ple_inputs_forward(const struct chunk *, const struct weights *, const void *x);
void ple_inputs_backward(const struct chunk *, const struct weights *, const struct grads *, float beta, const void *x,
	void *dx);

/* y (N, H) = block(x); what *saved names is filled. */
void block_forward(const struct chunk *, uint32_t layer, const struct weights *, const void *x, const struct saved *,
	void *y);
/* Its first half: y = x + what the mixers add */
void mixer_forward(const struct chunk *, uint32_t layer, const struct weights *, const void *x, const struct saved *,
	void *y);
/* What a block that kept some level makes again, but for gate and up */
void mixer_again(const struct chunk *, uint32_t layer, const struct weights *, const void *x, const struct saved *,
	enum checkpoint level);
/* Its second half: y = x2 + what the MLP adds */
void mlp_forward(const struct chunk *, uint32_t layer, const struct weights *, const void *x, const struct saved *,
	void *y);
/* dx, the gradient of y, becomes that of x */
void block_backward(const struct chunk *, uint32_t layer, const struct weights *, const struct grads *, float beta,
	const void *x, const struct saved *, void *dx);

/* A block whose experts come by windows, all chunks of a pass through one step before the next one begins. Forward:
 * mixer_forward to x2, block_route; each window, in ascending order; mlp_forward gives y. Backward: the same *saved and
 * block_backward_route; each window; block_backward. A token's sum goes in the order of experts, so the bits are those
 * of a block whose experts are there at once. */
struct window {
	uint32_t from, to;    /* experts; of their roles w and g have expert `from`'s tensors */
	const uint32_t *rows; /* host: as `first`, of the chunk's slices, E + 1 of each */
};

void block_route(const struct chunk *, uint32_t layer, const struct weights *, const void *x, const struct saved *);
void block_window_forward(const struct chunk *, uint32_t layer, const struct weights *, const struct window *,
	const void *x, const struct saved *);
void block_backward_route(const struct chunk *, uint32_t layer, const struct weights *, const void *x,
	const struct saved *, void *dx);
void block_window_backward(const struct chunk *, uint32_t layer, const struct weights *, const struct grads *,
	float beta, const struct window *, const void *x, const struct saved *, void *dx);

/* Final norm, LM head and cross-entropy over N tokens (here a head chunk, not whole rows). Adds to *loss; with g, loss
 * is scaled and dx (N, H) is written. head is w's own or, tied, the embedding's. */
void head_loss(const struct chunk *, const struct weights *, struct loss *loss, const void *x);
void head_loss_backward(const struct chunk *, const struct weights *, const struct grads *, float beta, float scale,
	struct loss *loss, const void *x, void *dx);

/* The two parts of the head before the loss. s.h (N, H) = the final norm of x (N, H); s.logits (N, rows) = s.h times
 * the first `rows` rows of the head's weight */
void head_norm(const struct chunk *, const struct weights *, const void *x);
void head_logits(const struct chunk *, const struct weights *, int64_t rows);

/* Rope's tables of a kind of layers (positions, rope_dim / 2), rows `from` to `to` - 1: cos and sin of position *
 * inv_freq as transformers' rotary embedding has them, all in fp32 */
void rope_table(const struct mt_layer *, uint32_t from, uint32_t to, float *cos, float *sin);

/* ---- sizes ---- */

/* Lays out arrays in an allocation, one after another. base NULL: only the size is wanted */
struct walk {
	char *base;
	uint64_t used;
	bool over; /* more than 64 bits count */
};
/* a * b elements of `size` bytes, on separate pages */
void *walk_take(struct walk *, uint64_t a, uint64_t b, uint64_t size);

typedef void *take_fn(void *where, uint64_t count, uint64_t size);
take_fn walk_take_fn; /* where: a struct walk */

/* Arrays of *saved that a block of this kind keeps at a level and does not keep at level `above`, for n tokens, from
 * take(where, count, bytes of an element); the others are NULL. elem: bytes of the device's elements. */
struct kept {
	const struct list *list;
	enum checkpoint above, level;
	uint64_t n, elem;
};
void block_take(struct saved *, const struct kept *, take_fn *take, void *where);
/* Likewise of any of so many kinds, of the first of which the list is: the arrays of each kind, in the same memory */
void blocks_take(struct saved[MT_KINDS], const struct kept *, uint32_t kinds, struct walk *);
/* What a norm behind experts reads, where they come by windows, lies at `sum`. NULL: no windows */
void keep_sum(struct saved *, const struct list *, uint32_t kind, void *sum);
/* The same of the next tokens' embeddings, of multi-token prediction */
void keep_next(struct saved *, const struct list *, uint32_t kind, void *next);
/* Those of the tokens from `from` on */
struct saved saved_after(const struct saved *, const struct list *, uint32_t kind, int64_t from, size_t elem);

/* The lists of a geometry's kinds, of a device with elements of so many bytes: free() them. NULL: no memory */
struct list *lists_make(const struct mt_geometry *, size_t elem);
/* Bytes of an arena that any of them needs */
struct arena_sizes {
	int half;              /* of mixers (0), or of MLPs (1) */
	const uint32_t *group; /* of mixers: as chunk.group */
	int64_t n;
	bool gate_up, train, windows; /* also for gate and up; also backward; experts come by windows */
};
uint64_t lists_arena(const struct list *, uint32_t kinds, const struct arena_sizes *);

/* Elements of a token in the largest operands of their GEMMs: what a layer reads, and the gradient of what it gives; in
 * most[0] and most[1], if these are not larger */
void lists_operands(const struct list *, uint32_t kinds, int half, uint64_t most[2]);
/* Bytes of scratch.fp8 that any of their linear layers needs for these tokens, by the bytes of an element */
uint64_t lists_fp8(const struct list *, uint32_t kinds, int half, uint64_t tokens, size_t bytes);

/* Every array of a routing for slices of `slice` tokens, likewise; `most`: as mt_layer_most; to train: also the arrays
 * of backward. With windows of experts, a pass has `pass` tokens in `slices` slices; else `slices` is 0. */
struct routing_sizes {
	const struct mt_layer *most;
	uint64_t hidden, slice, pass, slices;
	bool train;
	enum mt_dtype dtype; /* of the run's weights */
};
void routing_take(struct routing *, const struct routing_sizes *, take_fn *take, void *where);

/* The same of a ple_scratch for slices of `slice` tokens */
struct ple_sizes {
	const struct mt_geometry *geo;
	uint64_t slice, elem;
};
void ple_take(struct ple_scratch *, const struct ple_sizes *, take_fn *take, void *where);

static inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Elements of a token: of attention, a head of v, what it gives, and q | k | v; of gated DeltaNet and Mamba 2, what the
 * convolution reads, and qkv | z | b | a (Kimi: not as one) */
static inline int64_t head_dim_v(const struct mt_layer *l) { return l->v_dim ? l->v_dim : l->head_dim; }
static inline int64_t value_width(const struct mt_layer *l) { return l->heads * head_dim_v(l); }
static inline bool beside_attention(const struct mt_layer *l) { return l->mamba_flags & MT_BESIDE_ATTENTION; }
static inline int64_t proj_width(const struct mt_layer *l)
{
	return ((int64_t)l->heads + l->kv_heads) * l->head_dim + l->kv_heads * head_dim_v(l);
}
/* Elements of a token in scratch.heads, for the forward pass; to train, twice as many */
static inline int64_t group_width(const struct mt_layer *l, uint32_t group)
{
	return group ? (proj_width(l) + value_width(l)) / l->kv_heads * group : 0;
}
/* Which halves has a block of this kind, or any of these kinds? */
static inline bool has_mixer(const struct mt_layer *l) { return l->heads || l->value_heads || l->conv_dim; }
static inline bool has_mlp(const struct mt_layer *l) { return l->ffn || l->experts; }
/* Elements of a token in the residual stream */
static inline int64_t residual_width(const struct mt_geometry *g)
{
	return (g->altup ? g->altup : 1) * (int64_t)g->hidden;
}
static inline int64_t conv_width(const struct mt_layer *l)
{
	return 2ll * l->key_heads * l->key_dim + (int64_t)l->value_heads * l->value_dim;
}
static inline int64_t delta_width(const struct mt_layer *l)
{
	int64_t gates = l->mixer == MT_MAMBA ? 1 : l->gate_rank ? 1ll + l->key_dim : 2;
	return conv_width(l) + (int64_t)l->value_heads * (l->value_dim + gates);
}
/* Sizes and kind of its rule, of n tokens in rows of seq: what the operation's work memory depends on */
static inline struct delta_args delta_sizes(const struct mt_layer *l, int64_t n, int64_t seq)
{
	return (struct delta_args){.n = n,
		.seq = seq,
		.key_heads = l->key_heads,
		.value_heads = l->value_heads,
		.key_dim = l->key_dim,
		.value_dim = l->value_dim,
		.correct = l->mixer != MT_MAMBA,
		.twice = l->mamba_flags & MT_TWICE_BETA ? 1 : 0,
		.channels = l->gate_rank != 0};
}
/* MLA, else 0: elements of a token in its latents and in the part of k that all heads share; in what kv's latent
 * becomes: for each head the other part of k, and v */
static inline int64_t latent_width(const struct mt_layer *l)
{
	return l->kv_rank ? (int64_t)l->q_rank + l->kv_rank + l->rope_dim : 0;
}
static inline int64_t pair_width(const struct mt_layer *l)
{
	return l->kv_rank ? (int64_t)l->heads * (l->head_dim - l->rope_dim + l->v_dim) : 0;
}
static inline bool mlp_gated(const struct mt_layer *l) { return activation_gated((int)l->form); }
/* Elements of a row of gate | up, of an MLP with that inner size */
static inline int64_t gate_up_width(const struct mt_layer *l, int64_t ffn) { return mlp_gated(l) ? 2 * ffn : ffn; }
/* The MLP's inner size: of all its experts together; and of those that a token uses */
static inline int64_t whole_ffn(const struct mt_layer *l)
{
	return l->ffn + (int64_t)l->experts * l->expert_ffn + l->shared_ffn;
}
static inline int64_t active_ffn(const struct mt_layer *l)
{
	return l->ffn + (int64_t)l->experts_per_token * l->expert_ffn + l->shared_ffn;
}
/* Heads of k whose projection the layer has */
static inline uint32_t own_kv_heads(const struct mt_layer *l) { return l->kv_kind ? 0 : l->kv_heads; }
static inline int64_t kv_width(const struct mt_layer *l) { return 2ll * l->kv_heads * l->head_dim; }
/* The blocks' inputs of their own, of all blocks */
static inline int64_t ple_width(const struct mt_geometry *g) { return (int64_t)g->layers * g->ple_dim; }
/* Elements of a token in what norms of q and k got, and in their statistics; MLA: in the latents */
static inline int64_t pre_width(const struct mt_geometry *g, const struct mt_layer *l)
{
	if (l->kv_rank) return latent_width(l);
	return (int64_t)(l->heads + (g->flags & MT_V_NORM ? 2 : 1) * own_kv_heads(l)) * l->head_dim;
}
static inline int64_t rstd_width(const struct mt_geometry *g, const struct mt_layer *l)
{
	int64_t of_kv = g->flags & MT_V_NORM ? 2 : 1;
	return g->flags & MT_QK_NORM_ROW || l->kv_rank ? 2 : l->heads + of_kv * own_kv_heads(l);
}
/* Do q and k have norms, of heads or of latents? */
static inline bool has_norms(const struct mt_geometry *g, const struct mt_layer *l)
{
	bool plain = g->flags & MT_QK_NORM_PLAIN;
	return (g->flags & MT_QK_NORM && l->heads && (l->rope_dim || !plain)) || l->kv_rank;
}
/* Have scores neither a cap nor sinks nor ALiBi, and documents no spans? An attention backend computes nothing else. */
static inline bool attention_plain(const struct mt_geometry *g)
{
	for (uint32_t k = 0; k < g->n_kinds; k++)
		if (g->kind[k].span) return false;
	return !(g->flags & MT_SINKS) && g->attention_cap == 0 && g->alibi == 0;
}

/* Has the model an auxiliary loss or a z-loss of routers? */
static inline bool has_balance(const struct mt_geometry *g) { return g->aux_coef != 0 || g->z_coef != 0; }

/* Has the layer norms before its mixer and MLP, and behind them? */
static inline bool has_pre_norms(const struct mt_geometry *g, const struct mt_layer *l)
{
	return !(g->flags & (MT_NO_PRE_NORM | MT_SUM_NORM)) || l->mamba_flags & MT_PRE_NORM;
}
static inline bool has_post_norms(const struct mt_geometry *g, const struct mt_layer *l)
{
	return g->flags & MT_POST_NORM && !(l->mamba_flags & MT_PRE_NORM);
}

/* Is what attention and MLP add to the residual not added by the GEMM that computes it? */
static inline bool residual_apart(const struct mt_geometry *g)
{
	return g->flags & MT_POST_NORM || g->residual_scale != 1 || g->mlp_scale != 1 || beside_attention(g->kind);
}

/* `elements` after p, in elements of the device */
static inline void *elements_after(const struct device *d, const void *p, int64_t elements)
{
	return p ? (char *)p + (size_t)elements * d->elem : NULL;
}

/* The same in operands: weights */
static inline void *operands_after(const struct device *d, const void *p, int64_t elements)
{
	return p ? (char *)p + (size_t)elements * d->operand : NULL;
}

/* Elements from one expert's tensor of t's role to the next one's; t is the first expert's, or all experts' */
int64_t expert_stride(const struct mt_tensor *t, const struct mt_tensor *end);
/* Enter the tensors first[0] .. first[n - 1] of a unit, whose weights or gradients begin at base; lo: of mt_exact's
 * elements, NULL: none */
void weights_enter(struct weights *, const struct device *, const struct mt_tensor *first, uint32_t n, const void *base,
	const int16_t *lo);
void grads_enter(struct grads *, const struct mt_tensor *first, uint32_t n, float *base);
/* Where the gradient of the matrix goes that begins with tensors of role w; NULL: none of it is trained */
float *matrix_grad(const struct grads *, enum mt_role_tensor w);

#endif
