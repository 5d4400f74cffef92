/* model.h: a model as numbers: its geometry, and its tensors. It has no atomics. */
#ifndef LIBMT_MODEL_H
#define LIBMT_MODEL_H

#include <stdint.h>

#include "types.h"

/* clang-format off */

/* mt_geometry.flags: MT_TIED, ..., their bits, and their names where programs print them */
#define MT_FLAGS(F) \
	F(TIED, 0, tied) \
	F(QKV_BIAS, 1, qkv_bias) \
	F(O_BIAS, 2, o_bias) \
	F(MLP_BIAS, 3, mlp_bias) \
	F(QK_NORM, 4, qk_norm)                  /* q and k have norms, of each head */ \
	F(SHORT_ROWS, 5, short_rows)            /* mt-step refuses rows longer than max_position, the length up to which \
											 * frequencies of rope hold, and an indexer chooses all tokens */ \
	F(QK_NORM_ROW, 6, qk_norm_row)          /* with MT_QK_NORM: one norm of all q heads together, one of all k */ \
	F(QK_NORM_AFTER, 7, qk_norm_after)      /* with MT_QK_NORM: after rope */ \
	F(V_NORM, 8, v_norm)                    /* each head of v has a norm without weight */ \
	F(LAYERNORM, 9, layernorm)              /* norms are LayerNorm (of heads too), else RMSNorm */ \
	F(NORM_BIAS, 10, norm_bias)             /* with MT_LAYERNORM: norms of blocks and the final one have a bias */ \
	F(NORM_ONE, 11, norm_one)               /* norms multiply by 1 + w (qk-norms too) */ \
	F(NO_PRE_NORM, 12, no_pre_norm)         /* no norm before attention and MLP */ \
	F(POST_NORM, 13, post_norm)             /* norms after attention and MLP, before they are added to the residual */ \
	F(PARALLEL, 14, parallel)               /* attention and MLP read the block's input, and both are added to it; */ \
	F(ONE_NORM, 15, one_norm)               /* with MT_PARALLEL: behind the same norm */ \
	F(SINKS, 16, sinks)                     /* each head has one more score, which takes its part of the softmax */ \
	F(HEAD_BIAS, 17, head_bias) \
	F(LAYER_SCALAR, 18, layer_scalar)       /* a block's output is multiplied by a number that is not trained */ \
	F(DROPOUT, 19, dropout)                 /* config.json asks for dropout, which mt does not do */ \
	F(NORM_PLAIN, 20, norm_plain)           /* norms of blocks and the final one have no weight */ \
	F(POSITIONS, 21, positions)             /* learned positions: a row of a table is added to a token's embedding */ \
	F(IN_OUT, 22, in_out)                   /* matrices of blocks are (in, out), in files and here */ \
	F(INIT_BY_DEPTH, 23, init_by_depth)     /* random weights of o and down: init_range / sqrt(2 layers) */ \
	F(QK_NORM_PLAIN, 24, qk_norm_plain)     /* with MT_QK_NORM: norms of q and k have no weight, and layers \
											 * without rope none */ \
	F(NOPE_TEMPERATURE, 25, nope_temperature) /* only layers without rope have the temperature, which counts \
											 * positions from 1 */ \
	F(INIT_EMBED, 26, init_embed)           /* random weights of the embedding: 2 init_range */ \
	F(INIT_O, 27, init_o)                   /* with MT_INIT_BY_DEPTH: of o alone */ \
	F(SUB_NORM, 28, sub_norm)               /* norms of what o and down read */ \
	F(SUM_NORM, 29, sum_norm)               /* sums of the residual and what attention or MLP adds have a norm, and \
											 * become the residual: MT_T_NORM2 behind attention; behind an MLP the \
											 * next block's MT_T_IN_NORM, or the final norm */

#define MT_FLAG(name, bit, word) MT_##name = 1 << (bit),
enum { MT_FLAGS(MT_FLAG) };

enum {                          /* mt_layer.expert_flags */
	MT_RENORMALISE = 1,         /* a token's weights are divided by their sum */
	MT_ROUTER_BIAS = 2,
	MT_CORRECTION = 4,          /* a bias on scores, which takes part in choosing experts only, and is not trained;
								 * it and the router's weight are exact (mt_tensor) */
	MT_SHARED_GATE = 8,         /* the shared expert's output is multiplied by sigmoid(x w') */
	MT_EXPERT_BIAS = 16,
	MT_PACKED = 32,             /* the store has one tensor of all experts, not one for each */
	MT_TRANSPOSED = 64,         /* experts' weights are (in, out), and gate and up alternate, or with */
	MT_EXACT_ROUTER = 128,      /* the router's weight is exact without a correction, too */
	MT_OWN_NORMS = 256,         /* experts, shared expert and router read norms of their own, and what the experts and
								 * the shared expert add has one each; a token's weights are multiplied by a number of
								 * each expert */
	MT_GATE_FIRST = 1024,       /* gate is the first half */
	MT_WEIGH_INPUT = 2048,      /* a token's weights multiply what its experts read, not what they give */
	MT_GROUPS_BY_BEST = 512,    /* a group's score is that of its best expert, not the sum of its two best */
};

enum mt_mixer {                 /* what combines the tokens of a block */
	MT_ATTENTION,               /* softmax attention */
	MT_DELTA,                   /* gated DeltaNet (arXiv 2412.06464): a state of each head instead of keys and values */
	MT_CONV,                    /* a short convolution between two gates (LFM2) */
	MT_MLA,                     /* multi-head latent attention (arXiv 2405.04434): q, k and v are made of latents */
	MT_MAMBA,                   /* Mamba 2 (arXiv 2405.21060): the same state without the delta rule's correction */
	MT_NO_MIXER,                /* the block is an MLP alone */
	MT_MAMBA_1,                 /* Mamba (arXiv 2312.00752): each channel has a state, and decays of its own */
};

enum {                          /* mt_layer.mamba_flags; MT_CONV and MT_MAMBA_1 have the biases, too, MT_DELTA these: */
	MT_CONV_BIAS = 1,
	MT_BESIDE_ATTENTION = 2,    /* attention and Mamba 2 read the same norm's output, and both are added; heads, ... are
								 * attention's */
	MT_GATE_ALONE = 4,          /* its output is multiplied by silu(z), and has no norm; */
	MT_NORM_FIRST = 8,          /* or the norm is before that */
	MT_IN_BIAS = 16,
	MT_OUT_BIAS = 32,           /* MT_BESIDE_ATTENTION: of its own output projection; else of the block's */
	MT_PRE_NORM = 64,           /* norms are before mixer and MLP alone, whatever the model's flags say */
	MT_TWICE_BETA = 128,        /* beta is 2 sigmoid(b) */
	MT_NORM_WEIGHTS = 256,      /* MT_MAMBA_1: the norms of dt, B and C have weights */
};

enum mt_gate { MT_NO_GATE, MT_GATE_IN_Q, MT_GATE_APART }; /* w is in q_proj, or a tensor of its own */

enum { MT_DELTA_DIM = 256, MT_CONV_WIDTH = 4, MT_SCAN_DIM = 128 }; /* at most */

enum { MT_KINDS = 8, MT_ALTUP = 8 }; /* kinds of layers, and copies by AltUp, at most */

struct mt_layer {                /* what all layers of a kind have in common */
	uint32_t heads, kv_heads, head_dim, ffn;
	uint32_t form;              /* enum mt_ffn */
	uint32_t window;            /* a token attends to itself and window - 1 tokens before it; 0: to all */
	uint32_t rope_dim;          /* the first elements of a head, which turn; 0: no positions in these layers (NoPE) */
	uint32_t neighbours;        /* 1: element 2 i pairs with 2 i + 1; 0: i with i + rope_dim / 2 (rotate_half) */
	uint32_t k_is_v;            /* 1: no v_proj, v is k before its norm */
	float    rope_scaling;      /* factor on cos and sin (attention scaling) */
	float    rope_inv_freq[256];/* (rope_dim / 2): angle of pair i at position p is p * inv_freq[i] */
	uint32_t experts;           /* 0: a dense MLP of ffn, or none; else the number of the MLP's experts, and ffn is 0 */
	uint32_t experts_per_token;
	uint32_t expert_ffn, shared_ffn; /* inner sizes: of an expert; of one that gets every token, 0: none */
	uint32_t score;             /* enum mt_score */
	uint32_t expert_flags;
	uint32_t groups, groups_per_token; /* a token's experts are of its best groups; 1: no groups */
	float    expert_scale;      /* factor on the experts' weights */
	float    weight_floor;      /* MT_RENORMALISE: the sum counts as this at least */
	uint32_t mixer;             /* enum mt_mixer. Without attention heads, kv_heads, head_dim, rope_dim are 0. MT_DELTA,
								 * MT_MAMBA (whose keys are B, in groups, and queries C): */
	uint32_t key_heads, value_heads; /* value_heads: a multiple of key_heads */
	uint32_t key_dim, value_dim; /* of a head; key_dim of MT_MAMBA_1: elements of a channel's state */
	uint32_t conv_width;        /* not attention: tokens that the convolution reads */
	uint32_t output_gate;       /* enum mt_gate, MT_ATTENTION: o is multiplied by sigmoid(x w') */
	uint32_t conv_dim;          /* MT_CONV, MT_MAMBA_1: channels */
	float    weight_eps;        /* MT_RENORMALISE: is added to the sum */
	uint32_t q_rank, kv_rank;   /* MT_MLA: elements of its latents; q_rank 0: q has none; MT_MAMBA_1: of dt's latent */
	uint32_t v_dim;             /* MT_MLA: of a head of v; the last rope_dim elements of one of q and k turn */
	uint32_t mamba_flags;       /* not attention: these */
	float    dt_min, dt_max;    /* MT_MAMBA: limits of the time step */
	uint32_t span;              /* a document is cut into spans of so many tokens, and a token attends to those of its
								 * own; 0: it is not cut. Llama 4 calls them chunks */
	uint32_t kv_kind;           /* not 0: k and v are those of the last layer of kind kv_kind - 1 */
	uint32_t gate_rank;         /* MT_DELTA: not 0: Kimi delta attention (arXiv 2510.26692): each channel of a key has
								 * a gate; gates and z, of which sigmoid is taken, are made of latents of this size */
	uint32_t mtp;               /* not 0: the block of multi-token prediction, and how files name it; the last layer */
	uint32_t parts;             /* these: */
	float    mixer_eps;         /* of the norm behind MT_DELTA's rule; 0: norm_eps */
	float    part_eps;          /* MT_MAMBA_1: eps of the norms of dt, B and C; 0: there are none */
	float    sparsity;          /* not 0: this part of a token's gates counts as 0, by their mean and deviation */
	uint32_t reserved[5];
};

enum {                          /* mt_layer.parts */
	MT_IN_NORM = 1,             /* what the block gets has a norm, whose output is the residual, too */
	MT_OWN_O_BIAS = 2,          /* o has a bias, which other layers do not have */
};

struct mt_geometry {            /* a model family as a table; shm/model/families.c has the table */
	char     family[32];        /* model_type of config.json: "llama", "qwen3", "gemma2", ... */
	uint32_t layers, hidden, vocab, max_position;
	uint32_t flags;
	uint32_t names;             /* enum mt_names of shm/model/names.h */
	int32_t  pad_token;         /* -1: none; its embedding row gets no gradient at the embedding end */
	float    norm_eps;
	float    init_range;        /* standard deviation of random weights */
	float    embed_scale;       /* factor on embeddings; 1: none, as in all that follow */
	float    residual_scale;    /* factor on what the mixer adds to the residual */
	float    attention_scale;   /* factor on q k' */
	float    attention_cap;     /* scores are cap tanh(score / cap); 0: no cap */
	float    logit_scale;       /* factor on logits, before the cap */
	float    logit_cap;         /* 0: no cap */
	float    temperature;       /* q *= 1 + temperature log(1 + floor(position / temperature_positions)); 0: none */
	uint32_t temperature_positions;
	uint32_t n_kinds;
	uint8_t  kind_of[1024];     /* each layer's kind; layers <= 1024 */
	struct mt_layer kind[MT_KINDS];
	float    aux_coef;          /* the loss has aux_coef times the auxiliary loss, which balances experts; 0: not */
	float    z_coef;            /* and z_coef times the z-loss of routers; 0: not. mt-stream/balance.c defines both */
	char     wrapper[32];       /* model_type of the class for images too whose text model this is; "": of none */
	uint64_t carried_bytes;     /* of tensors beside its config.json that are not the text model's, and */
	uint32_t carried;           /* how many; 0: none, or not known */
	uint32_t position_offset;   /* MT_POSITIONS, sines: rows of the table before that of a document's first token */
	float    mlp_scale;         /* factors on what the MLP adds to the residual; */
	float    mamba_out_scale;   /* and Mamba 2 beside attention; */
	float    gate_scale;        /* on gate, before the MLP's function; */
	float    mamba_scale[5];    /* on C, B, x, z and dt of Mamba 2, as the in projection gives them; */
	float    mamba_in_scale;    /* on what that reads; */
	float    attention_in_scale;/* and on what q, k and v are made of */
	uint32_t ple_dim;           /* elements of each block's own input ("per-layer embeddings"); 0: none */
	uint32_t ple_vocab;         /* rows of their table; a token beyond it has the first one's */
	float    alibi;             /* not 0: attention has ALiBi (arXiv 2108.12409): of n heads, a power of two, the last
								 * one has the slope 2^-alibi; */
	float    alibi_scale;       /* a factor on it; */
	uint32_t alibi_rounded;     /* and 1: slopes, positions and their products are rounded to bf16 */
	float    mtp;               /* weight of the loss of multi-token prediction, of which the last of `layers` is the
								 * block (mt-stream/README.md); 0: there is none */
	float    sine_step;         /* not 0: sines and cosines are added to embeddings: of position p and element i of each
								 * half the angle p exp(-i sine_step); positions count from position_offset, and that
								 * of pad_token's number has zeros */
	uint32_t altup;             /* copies of the residual stream (AltUp, arXiv 2301.13310); 0: it is one */
	uint32_t laurel_rank;       /* LAuReL (arXiv 2411.07501): of the matrices beside attention; with altup only */
	uint32_t reserved[15];
};

static inline const struct mt_layer *mt_layer_of(const struct mt_geometry *g, uint32_t layer)
{
	return &g->kind[g->kind_of[layer]];
}

/* 1 + the kind of layers whose k and v this layer reads, or, as the last one of a kind that others read, gives; 0:
 * neither */
static inline uint32_t mt_kv_of(const struct mt_geometry *g, uint32_t layer)
{
	uint32_t own = 1u + g->kind_of[layer];
	if (mt_layer_of(g, layer)->kv_kind) return mt_layer_of(g, layer)->kv_kind;
	for (uint32_t i = layer + 1; i < g->layers; i++)
		if (g->kind_of[i] + 1u == own) return 0;
	for (uint32_t k = 0; k < g->n_kinds; k++)
		if (g->kind[k].kv_kind == own) return own;
	return 0;
}

/* Sizes (heads, kv_heads, head_dim, ffn, rope_dim, experts', ...): the largest of all kinds; form: a gated one if
 * any is; mixer: Mamba 2 if any is. Room for such a layer is room for all of them. */
struct mt_layer mt_layer_most(const struct mt_geometry *);

/* Read config.json (path: the file, or the directory that holds it). *text (if not NULL) gets the file as it is, to be
 * freed. Errors: 66 not there, 65 not JSON, 78 not supported, each naming the key. */
int mt_config_read(const char *path, struct mt_geometry *, char **text);
/* The same with the model's block of multi-token prediction, whose loss has this weight; 0: as the file says. 64: the
 * weight; 78: the family */
int mt_config_read_mtp(const char *path, double weight, struct mt_geometry *, char **text);

#define MT_TENSOR_NAME 120      /* bytes of a tensor's name, NUL included */

enum mt_role_tensor {           /* what a tensor is; a unit's tensors stand in this order. D: head_dim of the kind */
	MT_T_EMBED = 1,             /* (vocab, hidden)                                   unit 0 */
	MT_T_IN_NORM, MT_T_IN_NORMB,/* (hidden) each             of what a block gets    */
	MT_T_ALTUP_NORM,            /* (hidden)                  before the router of copies    blocks */
	MT_T_ALTUP_ROUTER,          /* (altup, hidden) */
	MT_T_ALTUP_PREDICT,         /* (altup^2, altup)          what each copy gets of each before the block's halves, */
	MT_T_ALTUP_CORRECT,         /* (altup, altup)            and of what they change, behind them */
	MT_T_ALTUP_SCALE,           /* (hidden)                  of what the block's own input reads */
	MT_T_LAUREL_LEFT,           /* (laurel_rank, hidden) */
	MT_T_LAUREL_RIGHT,          /* (hidden, laurel_rank) */
	MT_T_LAUREL_POST,           /* (hidden) */
	MT_T_NORM1,                 /* (hidden)                  before attention        blocks */
	MT_T_NORM1B,                /* (hidden)                  its bias */
	MT_T_Q, MT_T_K, MT_T_V,     /* (heads D, hidden) (kv D, hidden) x 2: one slab, one GEMM; in some files one tensor,
								 * which has MT_T_Q's role. MT_GATE_IN_Q: q is (2 heads D, hidden), gate's rows first */
	MT_T_QB, MT_T_KB, MT_T_VB,  /* (heads D) (kv D) x 2: one slab */
	MT_T_QNORM, MT_T_KNORM,     /* (D) each, or (heads D) and (kv D); separate slabs */
								/* gate_rank: (value_heads key_dim, hidden) x 2 and (value_heads value_dim, hidden) */
								/* MT_MLA: q is (q_rank, hidden), or (heads D, hidden) without a latent, k (kv_rank +
								 * rope_dim, hidden), of their biases, and of the norms of both latents; no v */
	MT_T_QUP,                   /* (heads D, q_rank); gate_rank: (value_heads key_dim, gate_rank), gates; MT_MAMBA_1:
								 * (conv_dim, q_rank), dt */
	MT_T_KVUP,                  /* (heads (D - rope_dim + v_dim), kv_rank): of each head k's rows, then v's; gate_rank:
								 * (value_heads value_dim, gate_rank), z */
	MT_T_SINKS,                 /* (heads) */
	MT_T_OGATE,                 /* (heads D, hidden)         MT_GATE_APART */
	MT_T_DQKV, MT_T_DZ, MT_T_DB, MT_T_DA, /* gated DeltaNet's: (2 key_heads key_dim + value_heads value_dim, hidden)
								 * (value_heads value_dim, hidden) (value_heads, hidden) x 2: one slab, one GEMM.
								 * MT_MAMBA: all but DB, in one tensor: C | B | x | z | dt, in files z | x | B | C | dt.
								 * MT_CONV: only the first one, (3 conv_dim, hidden). gate_rank: all but the first, the
								 * latents of z and of the gates (gate_rank, hidden). MT_MAMBA_1: the first one, x | z
								 * (2 conv_dim, hidden), and DA: dt's latent | B | C (q_rank + 2 key_dim, conv_dim) */
	MT_T_DQKVB,                 /* (rows of the above)       its bias */
	MT_T_CONV,                  /* (2 key_heads key_dim + value_heads value_dim, conv_width), or (conv_dim, conv_width);
								 * files: (..., 1, width) */
	MT_T_CONVK, MT_T_CONVV,     /* gate_rank: of k and of v, which three tensors are one slab */
	MT_T_CONVB,                 /* its bias */
	MT_T_DT_BIAS, MT_T_A_LOG,   /* (value_heads) each; gate_rank: (value_heads key_dim), (1, 1, value_heads, 1);
								 * MT_MAMBA_1: (conv_dim), (conv_dim, key_dim) */
	MT_T_SKIP,                  /* (value_heads), (conv_dim) Mamba: the factor of x, which is added to its output */
	MT_T_DNORM,                 /* (value_dim), MT_MAMBA: (value_heads value_dim): the norm behind it, without 1 +.
								 * MT_MAMBA_1: (q_rank), of dt's latent; KNORM and QNORM (key_dim) are B's and C's */
	MT_T_O_NORM,                /* (heads D)                 of what o reads */
	MT_T_O,                     /* (hidden, heads D); its columns in MT_MLA: heads v_dim; in MT_DELTA, MT_MAMBA:
								 * value_heads value_dim; in MT_CONV, MT_MAMBA_1: conv_dim */
	MT_T_OB,                    /* (hidden) */
	MT_T_MAMBA_O,               /* (hidden, value_heads value_dim)   MT_BESIDE_ATTENTION: O is attention's */
	MT_T_MAMBA_OB,              /* (hidden) */
	MT_T_POST1,                 /* (hidden)                  after attention */
	MT_T_NORM2,                 /* (hidden)                  before the MLP */
	MT_T_NORM2B,                /* (hidden)                  its bias */
	MT_T_GATE, MT_T_UP,         /* (ffn, hidden) x 2: one slab; in some files one tensor with MT_T_GATE's role */
	MT_T_GATEB, MT_T_UPB,       /* (ffn) x 2: one slab */
	MT_T_SLOPE_P, MT_T_SLOPE_N, /* (1) each                  xIELU's, for positive and negative inputs */
	MT_T_XIELU_BETA, MT_T_XIELU_EPS, /* () each             constants of xIELU, which files hold: gradient 0 */
	MT_T_DOWN_NORM,             /* (ffn)                     of what down reads */
	MT_T_DOWN,                  /* (hidden, ffn) */
	MT_T_DOWNB,                 /* (hidden) */
	MT_T_ROUTER,                /* (experts, hidden)         in place of the five above */
	MT_T_ROUTERB,               /* (experts) */
	MT_T_CORRECTION,            /* (experts)                 not trained, its gradient is 0 */
	MT_T_SHARED_GATE,           /* (1, hidden)               the shared expert's factor */
	MT_T_SGATE, MT_T_SUP,       /* (shared_ffn, hidden) x 2: one slab; the shared expert's */
	MT_T_SDOWN,                 /* (hidden, shared_ffn) */
	MT_T_ROUTER_NORM,           /* (hidden)                  MT_OWN_NORMS: before the router, times hidden^-1/2; */
	MT_T_EXPERT_SCALE,          /* (experts)                 factors of tokens' weights; */
	MT_T_SHARED_POST,           /* (hidden)                  after the shared expert, before which NORM2 is; */
	MT_T_XNORM, MT_T_XPOST,     /* (hidden) x 2              before and after the experts */
	MT_T_POST2,                 /* (hidden)                  after the MLP */
	MT_T_PLE_GATE,              /* (ple_dim, hidden)         what a block adds of its own input behind the MLP */
	MT_T_PLE_OUT,               /* (hidden, ple_dim) */
	MT_T_PLE_POST,              /* (hidden)                  after it */
	MT_T_SCALAR,                /* (1)                       MT_LAYER_SCALAR: not trained, its gradient is 0 */
	/* Experts, one after another: all tensors of the first, of the second, ... MT_PACKED: one tensor of all experts in
	 * each role. MT_TRANSPOSED: (hidden, 2 ffn), and down (ffn, hidden) */
	MT_T_XGATE, MT_T_XUP,       /* (ffn, hidden) x 2: one slab */
	MT_T_XGATEB, MT_T_XUPB,     /* (ffn) x 2: one slab */
	MT_T_XDOWN,                 /* (hidden, ffn) */
	MT_T_XDOWNB,                /* (hidden) */
	MT_T_FNORM,                 /* (hidden)                  model.norm              unit L + 1 */
	MT_T_FNORMB,                /* (hidden)                  its bias */
	MT_T_HEAD,                  /* (vocab, hidden)           lm_head; absent when tied */
	MT_T_HEADB,                 /* (vocab) */
	MT_T_ALTUP_OUT,            /* (hidden, hidden)          of each copy but the first, one after another */
	MT_T_POSITIONS,             /* (max_position + position_offset, hidden)          unit 0, behind the embedding */
	MT_T_PLE_MODEL,             /* (layers ple_dim, hidden)                          unit L + 2: all blocks' inputs */
	MT_T_PLE_NORM,              /* (ple_dim) */
	MT_T_ALTUP_IN,             /* (hidden, hidden)          the same */
	MT_T_PLE_TABLE,             /* (ple_vocab, layers ple_dim) */
	/* mt_layer.mtp: these come before the block's others. With it the head's unit has the norm behind the block */
	MT_T_MTP_FINAL,             /* (hidden)                  model.norm */
	MT_T_MTP_NORM,              /* (hidden)                  of the next token's embedding */
	MT_T_MTP_HNORM,             /* (hidden)                  of what model.norm gives */
	MT_T_MTP_PROJ,              /* (hidden, 2 hidden)        of both, the embedding's first */
};

struct mt_tensor {              /* 192 bytes in the control region */
	char     name[MT_TENSOR_NAME]; /* Hugging Face's */
	uint32_t role, unit;
	uint32_t ndim;              /* 0 to 2, or 3: (experts, rows, columns), or MT_T_CONV's (rows, 1, columns), or 4:
								 * (1, 1, rows, 1) */
	uint32_t decay;             /* 1: weight decay applies (two dimensions and more) */
	uint64_t shape[2];          /* (rows, columns), (n, 1), or (1, 1) */
	uint64_t off;               /* first element, counted in the unit's arrays */
	uint64_t n;                 /* elements */
	uint32_t expert;            /* whose tensor it is, 0 in all others; */
	uint32_t experts;           /* or how many experts' tensors it is, one after another; 0: no such tensor */
	uint32_t exact;             /* 1: bf16 runs compute with w and lo: routers with corrections, and these */
	uint32_t transposed;        /* 1: files have the transpose of each expert's matrix (mt_layout_files); 0 in runs */
	uint32_t frozen;            /* 1: it is not trained (mt_layout_freeze) */
	uint32_t reserved;
};

/* The tensor's dimensions in files: ndim of these */
static inline void mt_tensor_dims(const struct mt_tensor *t, uint64_t dims[4])
{
	uint32_t first = t->ndim == 3 && t->experts;
	if (t->ndim == 4) {
		dims[0] = dims[1] = dims[3] = 1;
		dims[2] = t->n;
		return;
	}
	dims[0] = t->experts;
	dims[first] = t->shape[0];
	if (t->ndim == 3 && !t->experts) dims[1] = 1;
	dims[t->ndim == 3 ? 2 : 1] = t->shape[1];
}

/* clang-format on */

#endif
