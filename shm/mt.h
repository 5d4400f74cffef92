/* mt.h: the one public header of libmt: what mt's programs share, and what a stage of your own needs.
 *
 * A run has a name and three regions of shared memory (shm/README.md draws them byte by byte):
 *   control  header, geometry, unit and tensor tables, stage slots, reproducibility record, transactions, journal
 *   rings    messages and their payload blocks
 *   store    the state itself: one contiguous tile a unit, cut into arrays w | lo | m | v | g
 *
 * Conventions. A function that can fail returns 0, or minus a sysexits code (-MT_EX_DATA, ...) and leaves one line for
 * people in mt_errmsg(); the library prints nothing and never exits. Offsets in shared memory are bytes from the
 * region's start. "element" is one parameter. Anything read from a ring or a txn is copied once, then checked.
 */
#ifndef MT_H
#define MT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MT_VERSION "0.1.0"
#define MT_ABI 11

#ifdef __cplusplus
#error "mt.h is C; talk to libmt from C++ through a C file"
#endif

/* Records and prototypes are set as tables: clang-format leaves them alone. */
/* clang-format off */

/* ------------------------------------------------------------------------------------------------ exit codes */

enum {                          /* sysexits.h where it has the meaning; contract for scripts */
	MT_EX_USAGE = 64, MT_EX_DATA = 65, MT_EX_NOINPUT = 66, MT_EX_PEER = 69, MT_EX_BUG = 70, MT_EX_NOMEM = 71,
	MT_EX_EXISTS = 73, MT_EX_IO = 74, MT_EX_BUSY = 75, MT_EX_ABI = 76, MT_EX_NOTYOURS = 77, MT_EX_CONFIG = 78,
};

/* ------------------------------------------------------------------------------------------------ limits */

#define MT_RUN_NAME   32        /* characters of a run's name at most */
#define MT_STREAMS    64        /* mt-streams of a run at most, on all of its nodes together */
#define MT_NODES      64        /* nodes of a run at most */
#define MT_MICROS     4096      /* micro-batches a step at most */
/* optimizer's partitions: fixed ranges of a unit's groups; threads take partitions */
#define MT_PARTITIONS      64
#define MT_GROUP      64        /* elements in a group, the optimizer's unit of undo; every slab starts at a multiple */
#define MT_BLOCK      4096      /* elements in a block of the sum of squares; gradient pieces start at a multiple */
#define MT_CHOICES    1024      /* entries of the reproducibility record's table at most */
#define MT_CHOICE_KEY 120       /* bytes of an entry's key, NUL included, */
#define MT_CHOICE_VALUE 120     /* and of its value */
#define MT_TENSOR_NAME 120      /* bytes of a tensor's name, NUL included */
#define MT_NO_TARGET  UINT32_MAX
#define MT_CONTEXT_ONLY 0x80000000u  /* bit 31 of a record's element: no loss for predicting this token */

/* ------------------------------------------------------------------------------------------------ errors */

/* Set this thread's message and return -ex. The message is one line in lower case, no full stop, no program name. */
int mt_fail(int ex, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Put "where: " in front of the message that stands, return rc unchanged: errors gain context on their way up. */
int mt_fail_in(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *mt_errmsg(void);

/* ------------------------------------------------------------------------------------------------ geometry */

enum mt_dtype { MT_BF16 = 1, MT_FP32 = 2, MT_NONE = 3, MT_INT8 = 4 }; /* MT_NONE: --grad none; MT_INT8: --state */

/* Rules of the update; mt-optim/update.h has them. AdamW keeps two arrays of state, m and v, the others m alone. */
enum mt_optim { MT_ADAMW = 1, MT_LION = 2, MT_SGD = 3 };
static inline const char *mt_optim_name(uint32_t optim)
{
	return optim == MT_ADAMW ? "adamw" : optim == MT_LION ? "lion" : optim == MT_SGD ? "sgd" : "?";
}
/* 0: no optimizer has this name */
static inline enum mt_optim mt_optim_named(const char *name)
{
	for (enum mt_optim i = MT_ADAMW; i <= MT_SGD; i++)
		if (!strcmp(name, mt_optim_name(i))) return i;
	return (enum mt_optim)0;
}
static inline uint32_t mt_state_arrays(uint32_t optim) { return optim == MT_ADAMW ? 2 : 1; }

enum {                          /* mt_geometry.flags */
	MT_TIED = 1, MT_QKV_BIAS = 2, MT_O_BIAS = 4, MT_MLP_BIAS = 8,
	MT_QK_NORM = 16,            /* q and k have norms, of each head */
	MT_ROPE_DYNAMIC = 32,       /* rows longer than max_position would want other frequencies: refused by mt-step.
								 * With longrope, max_position is the length up to which its short factors hold */
	MT_QK_NORM_ROW = 64,        /* with MT_QK_NORM: one norm of all q heads together, one of all k heads */
	MT_QK_NORM_AFTER = 128,     /* with MT_QK_NORM: after rope */
	MT_V_NORM = 256,            /* each head of v has a norm without weight */
	MT_LAYERNORM = 512,         /* norms are LayerNorm (of heads too), else RMSNorm */
	MT_NORM_BIAS = 1024,        /* with MT_LAYERNORM: norms of blocks and the final one have a bias */
	MT_NORM_ONE = 2048,         /* norms multiply by 1 + w (qk-norms too) */
	MT_NO_PRE_NORM = 4096,      /* no norm before attention and MLP */
	MT_POST_NORM = 8192,        /* norms after attention and MLP, before they are added to the residual */
	MT_PARALLEL = 16384,        /* attention and MLP read the block's input, and both are added to it; */
	MT_ONE_NORM = 32768,        /* with MT_PARALLEL: behind the same norm */
	MT_SINKS = 65536,           /* each head has one more score, which takes its part of the softmax */
	MT_HEAD_BIAS = 131072,
	MT_LAYER_SCALAR = 262144,   /* a block's output is multiplied by a number that is not trained */
	MT_DROPOUT = 524288,        /* config.json asks for dropout, which mt does not do */
	MT_NORM_PLAIN = 1048576,    /* norms of blocks and the final one have no weight */
};

enum mt_ffn {                   /* inner function of the MLP: gate | up or, from MT_RELU2 on, up alone -> ffn */
	MT_SWIGLU, MT_GEGLU, MT_GEGLU_TANH, MT_SWIGLU_CLAMPED, MT_RELU2, MT_GELU, MT_GELU_TANH, MT_XIELU,
};

enum mt_names {                 /* which names a block's tensors have in files; the table is in layout.c */
	MT_NAMES_LLAMA, MT_NAMES_GEMMA, MT_NAMES_GLM, MT_NAMES_PHI, MT_NAMES_STARCODER, MT_NAMES_HUNYUAN,
	MT_NAMES_APERTUS, MT_NAMES_FALCON, MT_NAMES_FALCON_40B, MT_NAMES_MIXTRAL, MT_NAMES_QWEN_MOE, MT_NAMES_GRANITE_MOE,
	MT_NAMES_ERNIE_MOE, MT_NAMES_GPT_OSS, MT_NAMES_NEOX,
	MT_NAMES,                   /* how many */
};

enum mt_score {                 /* how a router weighs experts */
	MT_SOFTMAX,                 /* softmax of all experts' logits, of which each token takes the largest */
	MT_SIGMOID,                 /* of each logit alone */
	MT_TOP_SOFTMAX,             /* softmax of the largest logits alone */
};

enum {                          /* mt_layer.expert_flags */
	MT_RENORMALISE = 1,         /* a token's weights are divided by their sum */
	MT_ROUTER_BIAS = 2,
	MT_CORRECTION = 4,          /* a bias on scores, which takes part in choosing experts only, and is not trained;
								 * it and the router's weight are exact (mt_tensor) */
	MT_SHARED_GATE = 8,         /* the shared expert's output is multiplied by sigmoid(x w') */
	MT_EXPERT_BIAS = 16,
	MT_PACKED = 32,             /* files have one tensor of all experts, not one for each */
	MT_TRANSPOSED = 64,         /* experts' weights are (in, out), and gate and up alternate */
};

enum { MT_EXPERTS = 1024, MT_EXPERTS_PER_TOKEN = 64 }; /* of a layer, at most */

enum { MT_KINDS = 8 };          /* kinds of layers at most */

struct mt_layer {                /* what all layers of a kind have in common */
	uint32_t heads, kv_heads, head_dim, ffn;
	uint32_t form;              /* enum mt_ffn */
	uint32_t window;            /* a token attends to itself and window - 1 tokens before it; 0: to all */
	uint32_t rope_dim;          /* the first elements of a head, which turn; 0: no positions in these layers (NoPE) */
	uint32_t neighbours;        /* 1: element 2 i pairs with 2 i + 1; 0: i with i + rope_dim / 2 (rotate_half) */
	uint32_t k_is_v;            /* 1: no v_proj, v is k before its norm */
	float    rope_scaling;      /* factor on cos and sin (attention scaling) */
	float    rope_inv_freq[256];/* (rope_dim / 2): angle of pair i at position p is p * inv_freq[i] */
	uint32_t experts;           /* 0: a dense MLP of ffn; else the MLP is a mixture of so many experts, and ffn is 0 */
	uint32_t experts_per_token;
	uint32_t expert_ffn, shared_ffn; /* inner sizes: of an expert; of one that gets every token, 0: none */
	uint32_t score;             /* enum mt_score */
	uint32_t expert_flags;
	uint32_t groups, groups_per_token; /* a token's experts are of its best groups (by their two best); 1: no groups */
	float    expert_scale;      /* factor on the experts' weights */
	float    weight_floor;      /* MT_RENORMALISE: the sum counts as this at least */
	uint32_t reserved[4];
};

struct mt_geometry {            /* a model family as a table; no code knows a family by name but config.c */
	char     family[32];        /* model_type of config.json: "llama", "qwen3", "gemma2", ... */
	uint32_t layers, hidden, vocab, max_position;
	uint32_t flags;
	uint32_t names;             /* enum mt_names */
	int32_t  pad_token;         /* -1: none; its embedding row gets no gradient at the embedding end */
	float    norm_eps;
	float    init_range;        /* standard deviation of random weights */
	float    embed_scale;       /* factor on embeddings; 1: none, as in all that follow */
	float    residual_scale;    /* factor on what attention and MLP add to the residual */
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
	float    z_coef;            /* and z_coef times the z-loss of routers; 0: not. mt-stream/README.md defines both */
	uint32_t reserved[30];
};

static inline const struct mt_layer *mt_layer_of(const struct mt_geometry *g, uint32_t layer)
{
	return &g->kind[g->kind_of[layer]];
}
/* Sizes (heads, kv_heads, head_dim, ffn, rope_dim, experts', ...): the largest of all kinds; form: a gated one if
 * any is. Room for such a layer is room for all of them. */
struct mt_layer mt_layer_most(const struct mt_geometry *);

/* Read config.json (path: the file, or the directory that holds it). *text (if not NULL) gets the file as it is, to be
 * freed. Errors: 66 not there, 65 not JSON, 78 not supported, each naming the key. */
int mt_config_read(const char *path, struct mt_geometry *, char **text);

/* ------------------------------------------------------------------------------------------------ layout */

enum mt_role_tensor {           /* what a tensor is; a unit's tensors stand in this order. D: head_dim of the kind */
	MT_T_EMBED = 1,             /* (vocab, hidden)                                   unit 0 */
	MT_T_NORM1,                 /* (hidden)                  before attention        blocks */
	MT_T_NORM1B,                /* (hidden)                  its bias */
	MT_T_Q, MT_T_K, MT_T_V,     /* (heads D, hidden) (kv D, hidden) x 2: one slab, one GEMM; in some files one tensor,
								 * which has MT_T_Q's role */
	MT_T_QB, MT_T_KB, MT_T_VB,  /* (heads D) (kv D) x 2: one slab */
	MT_T_QNORM, MT_T_KNORM,     /* (D) each, or (heads D) and (kv D); slabs of their own */
	MT_T_SINKS,                 /* (heads) */
	MT_T_O,                     /* (hidden, heads D) */
	MT_T_OB,                    /* (hidden) */
	MT_T_POST1,                 /* (hidden)                  after attention */
	MT_T_NORM2,                 /* (hidden)                  before the MLP */
	MT_T_NORM2B,                /* (hidden)                  its bias */
	MT_T_GATE, MT_T_UP,         /* (ffn, hidden) x 2: one slab; in some files one tensor with MT_T_GATE's role */
	MT_T_GATEB, MT_T_UPB,       /* (ffn) x 2: one slab */
	MT_T_SLOPE_P, MT_T_SLOPE_N, /* (1) each                  xIELU's, for positive and negative inputs */
	MT_T_XIELU_BETA, MT_T_XIELU_EPS, /* () each             constants of xIELU, which files hold: gradient 0 */
	MT_T_DOWN,                  /* (hidden, ffn) */
	MT_T_DOWNB,                 /* (hidden) */
	MT_T_ROUTER,                /* (experts, hidden)         in place of the five above */
	MT_T_ROUTERB,               /* (experts) */
	MT_T_CORRECTION,            /* (experts)                 not trained, its gradient is 0 */
	MT_T_SHARED_GATE,           /* (1, hidden)               the shared expert's factor */
	MT_T_SGATE, MT_T_SUP,       /* (shared_ffn, hidden) x 2: one slab; the shared expert's */
	MT_T_SDOWN,                 /* (hidden, shared_ffn) */
	MT_T_POST2,                 /* (hidden)                  after the MLP */
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
};

struct mt_tensor {              /* 192 bytes in the control region */
	char     name[MT_TENSOR_NAME]; /* Hugging Face's */
	uint32_t role, unit;
	uint32_t ndim;              /* 0 to 2, or 3: (experts, rows, columns) */
	uint32_t decay;             /* 1: weight decay applies (two dimensions and more) */
	uint64_t shape[2];          /* (rows, columns), (n, 1), or (1, 1) */
	uint64_t off;               /* first element, counted in the unit's arrays */
	uint64_t n;                 /* elements */
	uint32_t expert;            /* whose tensor it is, 0 in all others; */
	uint32_t experts;           /* or how many experts' tensors it is, one after another; 0: no such tensor */
	uint32_t exact;             /* 1: bf16 runs compute with w and lo: routers with corrections, and these */
	uint32_t reserved[3];
};

/* The tensor's dimensions in files: ndim of these */
static inline void mt_tensor_dims(const struct mt_tensor *t, uint64_t dims[3])
{
	uint32_t first = t->ndim == 3;
	dims[0] = t->experts;
	dims[first] = t->shape[0];
	dims[first + 1] = t->shape[1];
}

/* A unit is what streams as one: 0 embedding, 1..layers blocks, layers + 1 final norm and LM head. Its arrays hold
 * `elems` elements each: tensors in role order, every slab at a multiple of MT_GROUP, gaps (all zero for ever)
 * counted. The last unit of a tied model with MT_NORM_PLAIN has no tensors and is one gap. */
struct mt_unit {                /* 256 bytes in the control region, the words that change on cache lines of their own */
	uint64_t elems;             /* multiple of MT_GROUP */
	uint64_t params;            /* elements that are parameters */
	uint64_t w, lo, m, v;       /* byte offsets in the store region, 2 MiB-aligned; lo is 0 in fp32 runs,
								 * v where the optimizer has none */
	uint64_t g[2];              /* gradient arrays: [0], and [1] for unit 0 of a tied model (the head's end); 0: none */
	uint32_t first_tensor, tensors;
	_Atomic uint64_t applied;   /* --grad none: mt-optim's note of (last piece's block + 1) << 32 | blocks done */
	_Atomic uint64_t updated;   /* several nodes: step that this node's part of w holds; by mt-optim, with release */
	uint64_t reserved0[5];
	_Alignas(64) _Atomic uint64_t version;  /* step that w holds; stored with release by mt-optim alone */
	uint64_t reserved1[7];
	_Alignas(64) _Atomic uint64_t pin;      /* step that a snapshot wants unchanged; 0: none */
	uint64_t reserved2[7];
};

struct mt_layout {              /* what create allocates and --plan reasons about; plain process memory */
	struct mt_geometry geo;
	enum mt_dtype dtype, grad, state; enum mt_optim optim;
	uint32_t n_units, n_tensors;
	struct mt_unit *units; struct mt_tensor *tensors;
	uint64_t store_bytes;       /* of the store region */
	uint64_t params;            /* of the model; tied embeddings count once */
};
/* Bytes of m, or of v, for `elems` elements, a multiple of MT_GROUP. int8: elems codes, then a fp32 scale for each
 * group (model/int8.h) */
static inline uint64_t mt_state_bytes(uint32_t state, uint64_t elems)
{
	return state == MT_INT8 ? elems + elems / MT_GROUP * 4 : elems * (state == MT_BF16 ? 2 : 4);
}
/* dtype: of w; grad: of g; state: of m and v: fp32, bf16 or int8 */
int mt_layout_make(struct mt_layout *, const struct mt_geometry *, enum mt_dtype dtype, enum mt_dtype grad,
	enum mt_dtype state, enum mt_optim optim);
void mt_layout_release(struct mt_layout *);
/* Some files have the rows of q | k | v in another order. Element `from` of the tensor in its file is the tensor's
 * element *at here, and so on for *n elements; from < t->n. Other tensors: *at is `from`, *n is all that follow. */
void mt_tensor_piece(const struct mt_geometry *, const struct mt_tensor *t, uint64_t from, uint64_t *at, uint64_t *n);

/* ------------------------------------------------------------------------------------------------ regions */

enum mt_state { MT_EMPTY = 0, MT_FILLING = 1, MT_FILLED = 2, MT_DIRTY = 3, MT_GONE = 4 };

struct mt_header {              /* the first 128 bytes of every region */
	char     magic[8];          /* "mtCONTRL", "mtRINGS ", "mtSTORE ", "mtFILES ", "mtRING  " */
	_Atomic uint32_t abi;       /* MT_ABI, stored last, with release: before it the region is half made */
	_Atomic uint32_t state;     /* enum mt_state; in the control region, of the whole run */
	uint64_t fingerprint;       /* hash of sizeof and offsetof of every shared struct */
	uint64_t size;              /* of the region in bytes */
	uint8_t  run_id[16];        /* random, the same in the run's regions */
	uint8_t  boot_id[16];       /* of the boot that made it: after a reboot, pages on disk may be of different ages */
	uint64_t reserved[8];
};

/* Every stage has a slot. Its word is (pid, locked, start time, generation) and changes by compare-and-swap. */
enum mt_role { MT_STORE = 0, MT_STEP = 1, MT_OPTIM = 2, MT_CKPT = 3, MT_FILL = 4, MT_LINK = 7, MT_STREAM = 8,
	MT_SLOTS = MT_STREAM + MT_STREAMS };
/* slot of a stream i: MT_STREAM + i. MT_FILL: init or load at work. 5 and 6 are free for stages of your own. */

enum mt_activity {              /* what a stage does now, for `mt-store stat`; the table of words is in stage.c */
	MT_ACT_NONE, MT_ACT_STARTING, MT_ACT_IDLE,
	MT_ACT_READ_INPUT, MT_ACT_WAIT_STREAM, MT_ACT_WAIT_OPTIM, MT_ACT_WAIT_COMMIT, MT_ACT_WAIT_SAVE, MT_ACT_WAIT_BATCH,
	MT_ACT_WAIT_WEIGHTS, MT_ACT_FORWARD, MT_ACT_BACKWARD, MT_ACT_WAIT_GRAD_ROOM, MT_ACT_WAIT_GRADS, MT_ACT_ACCUMULATE,
	MT_ACT_APPLY, MT_ACT_WAIT_PIN, MT_ACT_SAVE, MT_ACT_FILL, MT_ACT_WATCH,
};

struct mt_slot {                /* 256 bytes */
	/* pid 22 bits | locked 1 bit: the holder has the slot's byte of the control file locked | start time 25 bits |
	 * generation 16 bits; pid 0: nobody. mt_slot_pid and its neighbours read it */
	_Alignas(64) _Atomic uint64_t word;
	_Atomic uint32_t aborted;   /* generation whose death has already aborted an accumulation */
	_Atomic uint32_t activity;     /* enum mt_activity */
	_Atomic uint64_t activity_arg; /* unit, micro, ... as the table says */
	/* The stage's own. mt-stream: micros, tokens, bytes in, bytes out, wait ns, busy ns, predicted ns; mt-optim:
	 * pieces, bytes of g, updates, update ns, wait ns; mt-step: steps, targets, processed tokens, failed saves
	 * that an earlier one reported; mt-ckpt: saves, bytes */
	_Atomic uint64_t counters[8];
	_Atomic uint64_t pid_ns;    /* the namespace that its pid belongs to: inode of the holder's /proc/self/ns/pid */
	uint64_t reserved[20];
};

struct mt_position {            /* where mt-step is in its input; part of a txn, a snapshot and run.json */
	uint64_t records;           /* records placed whole; without those that mt-step --long drops */
	uint64_t offset;            /* elements of the next record already placed (a cut document, or concat) */
	uint64_t hash;              /* XXH64 (seed 0) of the bytes of those whole records, counts included */
	uint64_t hash_cut;          /* XXH64 of the `offset` elements of the next record, 0 if none */
	uint32_t carry;             /* concat: the last element placed, which begins the next row; MT_NO_TARGET: none */
	uint32_t seq, batch, pack;  /* what the rows were made with: a change needs --input new; pack: mt-step/pack.h */
	uint64_t tokens;            /* targets trained so far, over the run's life */
	uint64_t processed;         /* tokens of documents so far, targets or not: without padding */
	uint64_t reserved;
};

enum mt_kind { MT_TRAIN = 1, MT_EVAL = 2 };
enum mt_phase { MT_CLOSED = 0, MT_ACCUMULATE = 1, MT_APPLY = 2, MT_SKIP = 3, MT_DONE = 4, MT_LOGGED = 5 };

struct mt_loss { double sum; uint64_t targets; uint32_t nonfinite, entered; };  /* of one micro */

struct mt_txn {
	/* (k 32 bits | attempt 24 bits | phase 8 bits): the only thing that decides */
	_Alignas(64) _Atomic uint64_t word;
	uint64_t reserved0[7];
	/* opened: by mt-step, before the word */
	_Alignas(64) uint64_t step; /* train: turns version step - 1 into step; eval: wants version step */
	uint32_t kind, micros;
	uint64_t targets;           /* of the whole step: loss scale is 1 / targets */
	double   lr, beta1, beta2, eps, decay, clip;   /* as given; mt-optim rounds what it derives; clip 0: off */
	/* snapshot this step (read after the commit: a signal may set it in accumulate); the last one */
	uint32_t save, last;
	struct mt_position position;/* after this step's rows */
	uint64_t processed;         /* train: tokens of documents in this step's rows, without padding */
	uint64_t reserved1[4];
	/* outcome: by mt-optim, before it commits */
	_Alignas(64) uint64_t t;    /* Adam's step count after this txn (eval and skip: as before) */
	double   norm;              /* of the gradient before clipping; NaN when not taken */
	double   clip_factor;       /* 1 when not clipped */
	uint32_t skipped, reserved2;
	uint64_t source, source_ring;   /* --grad none: slot word and ring of the mt-stream whose pieces are applied */
	double   aux, z;            /* terms of the loss: mean of the micros', weighted by their targets; NaN: none */
	/* by mt-optim as they come */
	struct mt_loss losses[MT_MICROS];
};

enum mt_snap { MT_SNAP_NONE = 0, MT_PINNED = 1, MT_SEALED = 2, MT_SAVED = 3, MT_FAILED = 4 };

struct mt_snapshot {
	_Alignas(64) _Atomic uint64_t word;   /* step << 8 | enum mt_snap */
	uint64_t reserved0[7];
	_Alignas(64) uint64_t t;
	struct mt_position position;
	_Atomic uint64_t saved;     /* saves that ended so, over the run's life */
	_Atomic uint64_t failed;    /* (step of the last one counted, 40 bits | how many, 24 bits): mt_snap_failures */
	uint64_t reserved1[4];
};

struct mt_record {              /* the reproducibility record: what can change a bit, chosen once, kept in run.json */
	_Alignas(64) _Atomic uint64_t owner;  /* slot word of the stage that is writing it */
	_Atomic uint32_t set;       /* 1: the fields below stand */
	uint32_t chunk_tokens;      /* tokens of a chunk at most: rows per chunk = max(1, chunk_tokens / seq) */
	uint32_t head_tokens;       /* tokens of an LM-head chunk */
	uint32_t pass_rows;         /* 0: layer-major */
	char     device[32];        /* "cpu" or "cuda" */
	char     gemm[64], attention[64];     /* libraries and their versions, in words */
	/* GPU or instruction set, in words; empty: written by an mt that did not look at words */
	char     machine[64];
	/* choices: a list that only grows; entries are numbered from 1, 0 ends it */
	_Atomic uint32_t taken;     /* entries that belong to somebody: more than the list has, where one died */
	_Atomic uint32_t first;
	uint64_t reserved[8];
};

/* What a device chose for one operation of one shape (an algorithm), where another choice gives other bits. Whoever
 * wants one takes an entry, fills it, and links it to the list's end by compare-and-swap: so of two who choose at once
 * the first stands, whoever is killed leaves a whole list, and what was read once stays. */
struct mt_choice {              /* 256 bytes in the control region */
	char     key[MT_CHOICE_KEY];/* the operation and its shape, as its device writes it */
	uint32_t bytes;             /* of value */
	_Atomic uint32_t next;      /* release: from then on this entry and the next are not written any more */
	uint8_t  value[MT_CHOICE_VALUE];
	uint64_t reserved;
};

#define MT_CHOICE_TAKEN UINT32_MAX

struct mt_partition {                /* one partition of the optimizer's undo journal */
	_Alignas(64) _Atomic uint64_t index;  /* step 24 bits | unit 12 | slot 1 | group 27; 0: nothing written */
	uint64_t reserved[7];
	_Alignas(64) uint8_t slot[2][MT_GROUP * 16]; /* old state of a group: w (64 x 2 or 4 B), lo (bf16 runs), m, v */
};

struct mt_figures {             /* what a step's metrics line says; 72 bytes */
	uint64_t step;              /* 0: none */
	double   loss, norm, lr;
	uint64_t tokens;            /* targets */
	uint32_t skipped, reserved0;
	double   aux, z;            /* as in the txn */
	uint64_t processed;         /* as in the txn; 0: unknown, of a checkpoint that an older mt wrote */
};

struct mt_hyper {               /* what a training step was made with; 80 bytes */
	uint64_t step;              /* 0: none */
	double   lr, beta1, beta2, eps, decay, clip;
	uint64_t targets;
	uint32_t micros, reserved0;
	uint64_t reserved;
};

/* A run on several nodes (machines): each has a run of this name, with all weights, and the optimizer's state of its
 * part alone. Node 0 decides; mt-link copies its decisions to the others, which are mirrors. */
struct mt_nodes {
	uint32_t node, nodes;       /* this one, 0 to nodes - 1; 0 of 1: the run is on one machine */
	/* in other nodes than 0: entries of the table of choices that mt-link is to bring to node 0, the newest first,
	 * linked by `next`; 0 ends the list. An entry that mt-link has copied has MT_CHOICE_TAKEN in `next` */
	_Atomic uint32_t proposed;
	uint32_t streams;           /* mt-streams of each node at most: node r has the numbers from r * streams on */
	uint64_t reserved[6];
	/* [r]: newest txn's k whose step node r has finished: all of its units are at it. By each node's mt-optim for
	 * itself; in node 0, mt-link stores those of the others */
	_Alignas(64) _Atomic uint64_t done[MT_NODES];
	/* By mt-link. [r]: snapshot's word of node r: in node 0 those of all others, in them node 0's. A node's own: what
	 * it has told of it */
	_Alignas(64) _Atomic uint64_t snap[MT_NODES];
	/* Do all see one directory of checkpoints? [0]: number in the name of a file that node 0's mt-ckpt made in it. [r]:
	 * the same when node r's has found that file, one less when it has not. mt-link carries them. 0: not yet */
	_Alignas(64) _Atomic uint64_t token[MT_NODES];
};

struct mt_control {
	struct mt_header h;
	/* the run's one doorbell: who publishes anything rings it, who waits for anything sleeps on it (mt_wait) */
	_Alignas(64) _Atomic uint32_t event;  /* futex word */
	_Atomic uint32_t waiters;
	uint64_t reserved0[7];
	_Alignas(64) char name[MT_RUN_NAME + 8];
	uint32_t uid;
	uint32_t dtype, grad;       /* enum mt_dtype: of w, of g */
	uint32_t n_units, n_tensors;
	uint32_t partitions, group;      /* MT_PARTITIONS, MT_GROUP */
	uint32_t state;             /* enum mt_dtype: of m and v */
	uint64_t step_tokens;       /* tokens that a batch block holds */
	uint64_t piece_elems;       /* elements that a gradient block holds, a multiple of MT_BLOCK */
	uint64_t params;
	uint64_t off_units, off_tensors, off_choices, off_journal, off_config, config_bytes;  /* in this region */
	char     numa[64];          /* policy as given */
	struct mt_geometry geo;
	uint32_t optim;             /* enum mt_optim */
	uint32_t router_dtype;      /* enum mt_dtype: of exact routers in bf16 files, as the loaded ones had; 0: fp32 */
	_Alignas(64) _Atomic uint64_t attempts;  /* the run's attempt counter: opening and aborting take a new one */
	_Atomic uint64_t fills;     /* fillings begun plus fillings ended: odd while init or load is at work */
	uint64_t reserved1[6];
	struct mt_record record;
	struct mt_snapshot snap;
	struct mt_slot slots[MT_SLOTS];
	struct mt_txn txn[2];       /* txn k lives in txn[k & 1]; txn 0 is the state that was filled: step, t, position */
	/* steps whose lines were not out when the checkpoint was taken that filled the run; a step under long evaluation */
	struct mt_figures unlogged[2];
	/* step s stands in hyper[s & 1], by mt-optim before it commits s; until s + 2 is committed, for checkpoints of s */
	struct mt_hyper hyper[2];
	uint64_t reserved2[2];
	struct mt_nodes nodes;
};

/* ------------------------------------------------------------------------------------------------ runs */

struct mt_run;                  /* a process's handle on a run */

struct mt_create {
	const char *name; const char *config_text; size_t config_bytes;
	enum mt_dtype dtype, grad, state; /* state 0: fp32 */
	enum mt_optim optim;              /* 0: adamw */
	uint64_t step_tokens; const char *numa;
	uint32_t node, nodes;       /* nodes 0 or 1: the run is on one machine */
	uint32_t streams;           /* mt-streams of this node at most; 0: mt_default_streams */
};
/* Make the three regions, allocated in full, state empty. 73 exists, 71 not enough memory (need, have, remedy),
 * 64 bad name, policy, node or number of mt-streams. Nothing is left behind when it fails. */
int mt_run_create(const struct mt_create *, const struct mt_geometry *);
/* Bytes of the regions that it makes for a run on one machine; 0: no memory to say */
uint64_t mt_run_need(const struct mt_layout *, size_t config_bytes, uint64_t step_tokens);
/* The same of the one of several nodes (or of one) that has most, with the rings that mt-link reads there; and of its
 * store region alone. streams: of each node, 0: mt_default_streams. There may be more than a run has, for plans. */
uint64_t mt_node_need(const struct mt_layout *, size_t config_bytes, uint64_t step_tokens, uint32_t nodes,
	uint32_t streams);
uint64_t mt_node_store(const struct mt_layout *, uint32_t nodes);

struct mt_small {               /* a run that is to become smaller */
	enum mt_dtype grad, state; uint32_t rows;   /* as asked; rows 0: they do not matter */
	bool none;                  /* --grad none is possible */
	bool binary;                /* say GiB, not GB */
	uint64_t have;              /* bytes */
	/* Bytes that a run with these choices takes; UINT64_MAX: there is no such run */
	uint64_t (*need)(void *arg, enum mt_dtype grad, enum mt_dtype state, uint32_t rows); void *arg;
};
/* Names the one or two smaller choices of --micro, --state and --grad that fit, those that change least first, in buf:
 * "--state bf16 (1206.5 GB) or --state int8 (974.3 GB)". How many; 0: none fits, and buf is empty. */
int mt_remedies(const struct mt_small *, char *buf, size_t n);

/* ------------------------------------------------------------------------------------------------ nodes */

/* mt-streams that each of so many nodes may have, where create is not told: few, since each takes memory for rings */
static inline uint32_t mt_default_streams(uint32_t nodes) { return nodes < 8 ? 8 / nodes : 1; }
/* The part of a unit of `elems` elements that one of several nodes owns: elements [first, end). Its borders are
 * multiples of MT_BLOCK, or the unit's end. */
struct mt_part { uint64_t first, end; };
static inline struct mt_part mt_part_of(uint64_t elems, uint32_t node, uint32_t nodes)
{
	uint64_t blocks = (elems + MT_BLOCK - 1) / MT_BLOCK;
	struct mt_part p = { blocks * node / nodes * MT_BLOCK, blocks * (node + 1) / nodes * MT_BLOCK };
	if (p.end > elems) p.end = elems;
	return p;
}
/* Elements [first, end) of a bf16 run's unit from its first exact tensor to its last; none: first == end. All nodes
 * have lo of them. tensor: the unit's first */
struct mt_part mt_exact(const struct mt_unit *, const struct mt_tensor *tensor);

enum {                          /* mt_run_open flags */
	MT_RUN_CONTROL = 0,         /* the control region alone */
	MT_RUN_RINGS = 1, MT_RUN_WEIGHTS = 2 /* the store, mapped read-write */, MT_RUN_READONLY = 4 /* all read-only */,
};
/* 64 bad name, 66 no such run, 76 other ABI version or half made, 77 not yours, 65 damaged. */
int mt_run_open(struct mt_run **, const char *name, int flags);
void mt_run_close(struct mt_run *);
/* Wait until the run is there: for one that does not exist wait_s seconds (< 0: 10), for one that is being made while
 * it takes. *stop is looked at (a signal handler may set it): then -MT_EX_BUSY. Errors as mt_run_open; 76: it is half
 * made, and whoever made it is dead. */
int mt_run_await(struct mt_run **, const char *name, int flags, double wait_s, const volatile int *stop);
/* The same, and until it is filled; for stages. For weights wait_s seconds (< 0: without limit), while a run is being
 * filled as long as it takes. 69 no weights came in time; 65 the store is dirty, or of an earlier boot. */
int mt_run_attach(struct mt_run **, const char *name, int flags, double wait_s, const volatile int *stop);
int mt_run_remove(const char *name, bool force);    /* waits for stages that are being killed. 66, 75 live stages, 77 */
/* fn for each of this user's runs, also half-made ones; a non-zero return ends it and is returned */
int mt_run_list(int (*fn)(const char *name, void *arg), void *arg);

/* const: the function changes neither the handle nor the run's words; the shared memory that it points to may change */
struct mt_control *mt_control(const struct mt_run *);
const struct mt_geometry *mt_geometry(const struct mt_run *);
struct mt_unit *mt_unit(const struct mt_run *, uint32_t unit);
struct mt_tensor *mt_tensor(const struct mt_run *, uint32_t i);
struct mt_partition *mt_partitions(const struct mt_run *);
const char *mt_config_text(const struct mt_run *, size_t *bytes);
void *mt_at(const struct mt_run *, uint64_t off); /* pointer into the store region */
uint32_t mt_node(const struct mt_run *);        /* this node's number, and how many the run has */
uint32_t mt_nodes(const struct mt_run *);
/* mt-streams are numbered over all nodes. How many numbers each node has, from mt_node times as many on; and all */
uint32_t mt_node_streams(const struct mt_run *);
uint32_t mt_streams(const struct mt_run *);
/* What this node owns of a unit. lo, m, v and g of the rest are holes in the store region: nobody touches them. */
struct mt_part mt_part(const struct mt_run *, uint32_t unit);
uint64_t mt_store_memory(const struct mt_run *); /* bytes of the store region that this node has */
uint64_t mt_run_bytes(const struct mt_run *); /* of all regions */
enum mt_state mt_run_state(const struct mt_run *);
void mt_run_set_state(struct mt_run *, enum mt_state);   /* release, rings the doorbell */
/* 0; 65: the store is dirty, or of an earlier boot, and only a load helps. For stages, wherever they wait */
int mt_run_dirty(const struct mt_run *);
int mt_run_idle(const struct mt_run *);             /* 0; 75: a stage other than mt-store or a filler is at work */
/* For init and load: claim MT_FILL and begin to fill. 75: a stage is at work, and the state is as it was */
int mt_fill_claim(struct mt_run *);
/* Filling, by init and load, which hold MT_FILL: the state is filling and control.fills odd from begin to end; a filler
 * that dies leaves them so. end: the state that stands then (MT_FILLING: what stood before is still half filled). */
void mt_fill_begin(struct mt_run *);
void mt_fill_end(struct mt_run *, enum mt_state);
/* control.fills, acquire. Even, and the same after reading as before: no filling was at work meanwhile. */
uint64_t mt_fills(const struct mt_run *);
/* Reset transactions, rings, journal, versions, pins, snapshot and record to "filled at `step`"; state is not touched.
 * For init and load, which hold MT_FILL while the state is filling. */
void mt_run_reset(struct mt_run *, uint64_t step, uint64_t t, const struct mt_position *);

/* Files kept with a run (tokenizer.json, ...): what `load` found beside the weights. Region mt.UID.RUN.files. */
struct mt_file { char name[64]; uint64_t off, bytes; };
int mt_files_put(struct mt_run *, const struct mt_file *, const void *const *data, uint32_t n);  /* replaces all */
/* fn for each file; data is valid during the call. No files region: nothing is called. 1, and a message: nor with a
 * file of another user's in its place. */
int mt_files_each(const struct mt_run *, int (*fn)(const char *name, const void *data, size_t bytes, void *arg),
	void *arg);

/* ------------------------------------------------------------------------------------------------ waiting */

/*     for (;;) { uint32_t seen = mt_event(run); if (what I wait for) break; mt_wait(run, seen, 100); }          */
uint32_t mt_event(const struct mt_run *);
/* Sleep until the doorbell rings after `seen`, ms passed, or a signal came. Spins briefly first if ms > 2. */
void mt_wait(struct mt_run *, uint32_t seen, int ms);
void mt_wake(struct mt_run *);                      /* ring it; cheap while nobody waits */
/* What is published often has a bit, so that a wait can sleep through what does not concern it. All else wakes
 * everybody: the run's state, slots, the record. shm/README.md has the numbers. */
enum {
	MT_ON_TXN = 1 << 0,         /* a transaction's word */
	MT_ON_VERSION = 1 << 1,     /* a unit's version */
	MT_ON_SNAP = 1 << 2,        /* the snapshot's word */
	MT_ON_PIN = 1 << 3,         /* a unit's pin, cleared */
	MT_ON_STAGE = 1 << 4,       /* between threads of one stage */
};
#define MT_ON_ALL 0xffffffffu
/* The same for some bits: sleep until the doorbell rings for one of them; ring it for them. Also for a ring's messages
 * and its room: bits of mt_ring_on_messages, mt_ring_on_room. */
void mt_wait_on(struct mt_run *, uint32_t seen, int ms, uint32_t on);
void mt_wake_on(struct mt_run *, uint32_t on);

/* ------------------------------------------------------------------------------------------------ stages */

/* Claim a slot: lock its byte of the control region, then take its word. slot MT_STREAM takes the lowest free stream.
 * If the holder is dead, its generation's accumulation is aborted first (not for MT_CKPT, MT_STORE, MT_FILL). One that
 * is being killed is waited for, a minute at most. 75: a live one holds it (or all of this node's), or nobody can tell;
 * 66: the run has no such mt-stream. The run must be open for writing, and no process forked since: a child shares the
 * lock. A run that is not filled when the slot is ours (somebody began to fill it after mt_run_attach): the slot is
 * given back, and claimed again when the run is filled; errors as mt_run_attach then. A run that was removed after
 * mt_run_attach: 0, and its state is MT_GONE. */
int mt_stage_claim(struct mt_run *, int slot, int *claimed);
void mt_stage_release(struct mt_run *);             /* this process's slot; also done by mt_run_close */
/* What can be said of the slot's holder. Dead is a proof: the kernel has dropped its lock, or its pid is gone from this
 * process's PID namespace. Whatever hinders a look (no descriptor, another namespace) is unknown. A stopped one is
 * alive. */
enum mt_life { MT_NOBODY = 0, MT_ALIVE = 1, MT_DEAD = 2, MT_UNKNOWN = 3 };
enum mt_life mt_stage_life(const struct mt_run *, int slot);
bool mt_stage_alive(const struct mt_run *, int slot); /* alive, or unknown: nobody may take its place */
bool mt_stage_dead(const struct mt_run *, int slot); /* dead by proof */
/* The fence: does this process still hold the slot that it claimed (or has it claimed none)? One load: to be looked at
 * before each write that a successor's state would suffer from. mt_txn_cas, mt_publish, mt_ring_push and mt_ring_pop
 * look. */
bool mt_stage_mine(const struct mt_run *);
int mt_stage_check(const struct mt_run *); /* 0, or -75 and who has the slot now */
/* Must this stage end? To be looked at in every loop and wait. 0: no; 1: the run was removed, so end with 0; -65: the
 * store is dirty, or of an earlier boot; -75: another process has this one's slot. */
int mt_stage_over(const struct mt_run *);
uint64_t mt_stage_word(const struct mt_run *, int slot); /* the slot's word. Acquire */
static inline int mt_slot_pid(uint64_t word) { return (int)(word >> 42); }
static inline bool mt_slot_locked(uint64_t word) { return word >> 41 & 1; }
static inline uint64_t mt_slot_start(uint64_t word) { return word >> 16 & 0x1ffffff; }  /* clock ticks, low 25 bits */
static inline uint32_t mt_slot_generation(uint64_t word) { return (uint32_t)(word & 0xffff); }
int mt_stage_pid(const struct mt_run *, int slot); /* 0: nobody */
bool mt_stage_pid_here(const struct mt_run *, int slot); /* that pid is one of this process's PID namespace */
bool mt_stage_stopped(const struct mt_run *, int slot); /* state T */
const char *mt_stage_name(int slot);                /* "mt-optim", "mt-stream 1", ... */
void mt_stage_activity(struct mt_run *, enum mt_activity, uint64_t arg);
/* "waits for weights of unit 7" from slot's activity */
void mt_stage_describe(const struct mt_run *, int slot, char *buf, size_t n);
_Atomic uint64_t *mt_counter(const struct mt_run *, int i); /* this stage's counter i */
/* If a stage that matters to the accumulation has died: abort it (attempt + 1), once per slot and generation. Returns
 * true if this call aborted. Streams, mt-optim and mt-step matter. */
bool mt_abort_dead(struct mt_run *);

/* ------------------------------------------------------------------------------------------------ rings */

enum mt_msg_kind { MT_MSG_BATCH = 1, MT_MSG_LOSS = 2, MT_MSG_GRAD = 3, MT_MSG_SAVE = 4, MT_MSG_SQUARES = 5 };

struct mt_msg {                 /* 64 bytes; fields of the txn first, then by kind */
	uint32_t k, attempt;
	uint16_t kind;              /* enum mt_msg_kind */
	uint16_t txn_kind;          /* enum mt_kind */
	uint32_t micro;
	uint64_t step;
	union {
		struct { uint64_t version;     /* units must be at this version or later */
			 uint32_t rows, seq; double loss_scale; uint32_t micros, reserved0; uint64_t reserved1; } batch;
		struct { double sum; uint64_t targets; uint32_t nonfinite, reserved;
			 double aux, z; /* of this micro, without coefficients; 0 where the geometry's is 0 */ } loss;
		struct { uint32_t unit, end;   /* end 1: the head's end of tied embeddings */
			 uint64_t off, n;      /* elements, in the unit's arrays; off a multiple of MT_BLOCK */
			 uint32_t zero;        /* 1: all n are 0, and nobody wrote the block */
			 uint32_t reserved0; uint64_t reserved1; } grad;
		uint8_t bytes[40];
	};
};
/* Payload of a batch message: three arrays of rows x seq u32, one after the other:
 *   tokens  ids; padding is 0
 *   targets id to predict, or MT_NO_TARGET
 *   starts  index in the row at which the token's document starts: it attends from there, its position counts from
 *           there; padding is a document of its own
 * Payload of a grad message: n elements, bf16 or fp32 as the run's --grad says (fp32 for none).
 * A squares message has the fields of grad; its payload is a double for each block of MT_BLOCK of the n elements: the
 * sum of squares of the gradient there. */

struct mt_ringbuf {             /* 256 bytes in the rings region: one ring, single producer, single consumer */
	char     name[32];
	uint32_t slots;             /* S, a power of two: message k stands in messages[k mod S] and owns block k mod S */
	uint32_t reserved0;
	uint64_t off_messages;      /* S x struct mt_msg, in this region */
	uint64_t off_blocks, block_bytes;     /* S blocks; 0, 0: no payload */
	uint64_t reserved1[8];
	_Alignas(64) _Atomic uint64_t tail;   /* messages published: stored by the producer alone, with release */
	uint64_t reserved2[7];
	_Alignas(64) _Atomic uint64_t head;   /* messages finished: stored by the consumer alone, with release */
	uint64_t reserved3[7];
};
#define MT_RINGS (2 * MT_STREAMS + 1)   /* at most */
struct mt_rings {               /* the rings region; a ring of your own is a region of the same shape with n = 1 */
	struct mt_header h;
	uint32_t n, reserved[31];
	struct mt_ringbuf ring[];
};

struct mt_ring;                 /* a process's handle on one end */

/* Rings: "batch.I" of this node's mt-streams (in node 0, of all), "grad.I" of all, "save", and those that mt_ring_make
 * added. A name may have been mapped to another by mt_ring_map. 66: no such ring. */
int mt_ring_open(struct mt_run *, const char *name, struct mt_ring **);
void mt_ring_close(struct mt_ring *);
/* A ring of your own, shaped like ring `like`; region mt.UID.RUN.ring.NAME. 73: exists. */
int mt_ring_make(struct mt_run *, const char *name, const char *like);
/* From now on mt_ring_open(from) opens `to`: what --ring FROM=TO does. spec: "from=to". 64 bad spec. */
int mt_ring_map(struct mt_run *, const char *spec);

size_t mt_ring_block(const struct mt_ring *);       /* bytes of a payload block */
uint64_t mt_ring_slots(const struct mt_ring *);      /* messages that it holds at most */
uint64_t mt_ring_used(const struct mt_ring *);      /* messages published and not popped */
void *mt_ring_blocks(const struct mt_ring *, size_t *bytes);  /* all blocks, one behind another; NULL: it has none */
/* Producer. The block of the next message, or NULL while the ring is full (rings without blocks: any non-NULL). */
void *mt_ring_reserve(struct mt_ring *);
/* The block of the message `ahead` places behind the next one (0: the next), or NULL while there is no room for it.
 * Blocks may be written in any order and at once; their messages are pushed in the ring's. */
void *mt_ring_reserve_ahead(struct mt_ring *, uint64_t ahead);
/* publish it, after mt_ring_reserve; rings the doorbell */
void mt_ring_push(struct mt_ring *, const struct mt_msg *);
/* The same for several at once, which ring the doorbell once. mt_ring_put: write the message `ahead` places behind the
 * next one, after mt_ring_reserve_ahead; mt_ring_publish: publish the next n, all of which were put. */
void mt_ring_put(struct mt_ring *, uint64_t ahead, const struct mt_msg *);
void mt_ring_publish(struct mt_ring *, uint64_t n);
/* -65 when this end has found that the ring's words cannot be: from then on it gives neither room nor messages. Ask
 * before you wait for either. */
int mt_ring_check(const struct mt_ring *);
/* Consumer. Copy message `ahead` places behind the head (0: the head) and point at its block; false: not there yet. The
 * block of gradients that are all 0 is zeros of libmt's own. */
bool mt_ring_peek(struct mt_ring *, uint64_t ahead, struct mt_msg *, const void **block);
void mt_ring_pop(struct mt_ring *);                 /* done with the head and its block; rings the doorbell */
void mt_ring_pop_many(struct mt_ring *, uint64_t n); /* the same with n messages, which have come; 0: nothing */
/* bits for mt_wait_on: that a message is published, that one is popped */
uint32_t mt_ring_on_messages(const struct mt_ring *);
uint32_t mt_ring_on_room(const struct mt_ring *);
/* For an optimizer of your own with one mt-stream: peek at the head of its grad ring, if it belongs to the attempt in
 * `word`, the open transaction's. Messages of older attempts are popped. 1: *m has been checked, to be popped when it
 * is done with: a loss of one of the transaction's micros, or a piece: block is the n gradients (elements of the run's
 * --grad) of m->grad. 0: nothing has come yet, or something of a newer attempt: read the word again. -65: the ring is
 * damaged; -70: a message that cannot be. */
int mt_grad_peek(struct mt_ring *, uint64_t word, struct mt_msg *, const void **block);

/* ------------------------------------------------------------------------------------------------ transactions */

static inline uint64_t mt_word(uint32_t k, uint32_t attempt, enum mt_phase phase)
{ return (uint64_t)k << 32 | (uint64_t)(attempt & 0xffffff) << 8 | (uint64_t)phase; }
static inline uint32_t mt_word_k(uint64_t w) { return (uint32_t)(w >> 32); }
static inline uint32_t mt_word_attempt(uint64_t w) { return (uint32_t)(w >> 8) & 0xffffff; }
/* Attempts are 24 bits that wrap. Below 0: a is older than b, 0: the same, above: newer */
static inline int mt_attempt_order(uint32_t a, uint32_t b)
{
	uint32_t ahead = (a - b) & 0xffffff;
	return ahead == 0 ? 0 : ahead < 0x800000 ? 1 : -1;
}
static inline enum mt_phase mt_word_phase(uint64_t w) { return (enum mt_phase)(w & 0xff); }

/* The word in txn k's record. Acquire. A record whose phase is closed holds no txn: it was never used, or mt-step
 * withdrew what it had in accumulate; its k may be opened again under a new attempt. */
uint64_t mt_txn_word(const struct mt_run *, uint32_t k);
/* The largest k that is not closed; 0 stands for the state that was filled. */
uint32_t mt_txn_newest(const struct mt_run *);
struct mt_txn *mt_txn(const struct mt_run *, uint32_t k); /* the record that k uses */
/* a new attempt, 1 to 2^24 - 1; they wrap: compare by difference */
uint32_t mt_attempt_next(struct mt_run *);
#define MT_TXN_LAST 0xfffeffffu                     /* k ends here: 32 bits do not wrap. A load begins with 0 again */
/* Compare-and-swap of txn k's word, release on success, doorbell rung. false: somebody else changed it, or this process
 * has lost its slot: a loop that tries again looks at mt_stage_mine. */
bool mt_txn_cas(struct mt_run *, uint32_t k, uint64_t expect, uint64_t want);
/* For mt-optim, and an optimizer of your own. All of the attempt in `word` has come, and the txn's losses are written:
 * write the rest of the outcome (t, norm, clip_factor, skipped; in training also the step's hyper), and then change the
 * word to `phase`: MT_DONE for an evaluation, MT_APPLY or MT_SKIP in training. norm: of the gradient before clipping,
 * NaN: not taken; clip_factor: 1 without clipping. Returns the new word; 0: the attempt is over, or this process has
 * lost its slot. */
uint64_t mt_txn_commit(struct mt_run *, uint64_t word, enum mt_phase phase, double norm, double clip_factor);
struct mt_committed { uint64_t step, t; struct mt_position position; };
/* What is decided: the newest committed step, Adam's t and the input's position after it. The store holds it once no
 * txn is in apply or skip. */
void mt_run_committed(const struct mt_run *, struct mt_committed *);
uint64_t mt_run_step(const struct mt_run *); /* its step alone */
/* Nothing is open: no txn in apply or skip, and none in accumulate unless mt-step is gone. */
bool mt_run_quiet(const struct mt_run *);

/* What a copy of the units that takes no slot is a copy of. Take the sample, copy, look whether it still holds: then no
 * step was applied and nothing was filled from before the first byte to after the last one. */
struct mt_sample { uint64_t fills; struct mt_committed at; };
/* 75: a step is open, or the run is being filled; 65: it holds no weights, or half a step; 66: it was removed. */
int mt_sample_take(const struct mt_run *, struct mt_sample *);
/* 75: a step was taken, or the run was filled, since; 65, 66 as above. */
int mt_sample_holds(const struct mt_run *, const struct mt_sample *);

/* What the metrics line of a committed training txn says. The record stands until the txn is logged. */
void mt_txn_figures(const struct mt_txn *, struct mt_figures *);

uint64_t mt_version(const struct mt_run *, uint32_t unit); /* acquire */
/* Version v - 1 becomes v, by compare-and-swap with release; doorbell. false: it was another, or this process has lost
 * its slot: nothing changed. */
bool mt_publish(struct mt_run *, uint32_t unit, uint64_t v);
/* 65: the transaction words, or the table of choices, are not what any order of stores leaves. For a run that is
 * filled. */
int mt_run_check(const struct mt_run *);

/* ------------------------------------------------------------------------------------------------ snapshots */

static inline uint64_t mt_snap_word(uint64_t step, enum mt_snap s) { return step << 8 | (uint64_t)s; }
static inline uint64_t mt_snap_step(uint64_t word) { return word >> 8; }
static inline enum mt_snap mt_snap_state(uint64_t word) { return (enum mt_snap)(word & 0xff); }
/* Pinned or sealed: the save is neither done nor failed */
static inline bool mt_snap_busy(uint64_t word)
{ return mt_snap_state(word) == MT_PINNED || mt_snap_state(word) == MT_SEALED; }

/* The snapshot word. Acquire. All changes below are compare-and-swaps with release that ring the doorbell, and change
 * nothing once this process has lost its slot. */
uint64_t mt_snap(const struct mt_run *);
/* For mt-optim, when no save is busy: pin every unit at `step` and set the word to pinned, with t and position. A word
 * that speaks of the step already stays. false: this process has lost its slot. */
bool mt_snap_pin(struct mt_run *, uint64_t step, uint64_t t, const struct mt_position *);
bool mt_snap_pinned(const struct mt_run *, uint32_t unit); /* the saver has not copied it: do not write to it */
/* For an optimizer of your own, before it writes to the unit: wait until no snapshot has it pinned (n_units: until no
 * save is busy, so that mt_snap_pin may follow). A snapshot that is pinned and whose saver is dead fails. Looks at
 * mt_stage_over in any case, and returns what that does. */
int mt_snap_wait(struct mt_run *, uint32_t unit);
/* For the saver. No unit has been unpinned since the step was pinned */
bool mt_snap_intact(const struct mt_run *, uint64_t step);
/* The unit has been copied. 75: this process has lost its slot; 69: the snapshot was failed meanwhile; 70 */
int mt_snap_unpin(struct mt_run *, uint32_t unit, uint64_t step);
bool mt_snap_seal(struct mt_run *, uint64_t step);  /* from pinned: all is on disk but for the name */
void mt_snap_save(struct mt_run *, uint64_t step); /* from sealed: the directory has its name; counts it */
/* `word`, pinned or sealed, becomes failed, and is counted. false: the word is another now */
bool mt_snap_fail(struct mt_run *, uint64_t word);
/* How many saves have failed over the run's life, the one that the word may speak of counted. It never goes down. Who
 * is about to write a new word over a failed one calls this before. */
uint64_t mt_snap_failures(struct mt_run *);

/* ------------------------------------------------------------------------------------------------ choices */

/* The reproducibility record once it stands; NULL: nothing was computed yet. Acquire. */
const struct mt_record *mt_record(const struct mt_run *);
/* May this stage decide what the record says? One stage at a time may; the others wait (doorbell) until the record is
 * there or that stage has died. */
bool mt_record_claim(struct mt_run *);
/* Set the record: its fields from chunk_tokens to machine are those of `from` from now on. Only for the stage that
 * claimed the record, and for a program that fills the run. */
void mt_record_set(struct mt_run *, const struct mt_record *from);
/* 0, or 78: the record names another device, machine, GEMM library or attention backend than mine, which would give
 * other bits. The record does not change. */
int mt_record_agrees(const struct mt_run *, const struct mt_record *mine);
/* The value (`bytes` of it) that stands for key. false: nobody has chosen, or a value of another size */
bool mt_choice_find(const struct mt_run *, const char *key, void *value, size_t bytes);
/* Let the value stand for key, unless one does already; *value is then what stands. 0; 71: the table is full; 65: what
 * stands is of another size. Several stages may do so at once; none waits. In other nodes than 0 it waits for node 0's;
 * 69: the run was removed meanwhile, or as mt_stage_over. */
int mt_choice_enter(struct mt_run *, const char *key, void *value, size_t bytes);
/* For mt-link: the proposals that wait, one a call, with what they propose; false: none. */
bool mt_choice_proposed(struct mt_run *, struct mt_choice *out);
/* The entry after `e` (NULL: the first), or NULL. The list may grow meanwhile. */
const struct mt_choice *mt_choice_next(const struct mt_run *, const struct mt_choice *e);

/* ------------------------------------------------------------------------------------------------ exact master */

/* The fp32 pattern as two 16-bit halves: w is the round-to-nearest (ties away from zero) bf16, lo what is missing.
 * Exact for all 2^32 patterns (modulo 2^32). */
static inline uint16_t mt_hi(uint32_t bits) { return (uint16_t)((bits + 0x8000u) >> 16); }
static inline int16_t mt_lo(uint32_t bits) { return (int16_t)(uint16_t)bits; }
static inline uint32_t mt_join(uint16_t w, int16_t lo) { return ((uint32_t)w << 16) + (uint32_t)(int32_t)lo; }
static inline uint32_t mt_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float mt_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

/* clang-format on */

#endif
