/* plan.h: from a model's geometry, the batch's shape, memory and a few rates to the plan of a micro-batch. All of it is
 * arithmetic that needs neither a run nor a device.
 *
 *     plan request ──▶ search.c tries plans ──▶ plan result
 *                       │ memory.c: does the plan fit?
 *                       │ price.c, cost.c: how long does a step take?
 *
 * Layer-major, the whole micro-batch goes through the model unit by unit. Inside a unit it is split into chunks of
 * whole rows; where one row is longer than a chunk, the MLP takes that row in slices of a chunk's tokens. Pass-major,
 * groups of rows go forward and backward through all units, and weights and gradients stay on the device between
 * passes.
 *
 * chunk_tokens, head_tokens and pass_rows decide bits, so they are kept in the reproducibility record. Everything else
 * in a plan changes only memory and time.
 */
#ifndef MT_STREAM_PLAN_H
#define MT_STREAM_PLAN_H

#include "layers/block.h"
#include "mt/layout.h"
#include "schedule/split.h"

enum recompute { RECOMPUTE_AUTO, RECOMPUTE_FULL, RECOMPUTE_NONE };

/* What $MT_WITHOUT leaves out, for tests and benches (tests/bench/README.md): same bits, less overlap */
enum without {
	WITHOUT_SLOTS = 1,    /* weight slots but one */
	WITHOUT_PREFETCH = 2, /* what comes in waits for all compute that was launched before it */
	WITHOUT_GRADS = 4,    /* gradient slots but one: a block's gradients leave before the next block computes */
	WITHOUT_PIECES = 8,   /* pieces under way but one: the next one leaves when mt-optim has added it */
	WITHOUT_UPDATE = 16,  /* the forward pass waits for the whole update */
};

struct profile { /* what a machine does in a second */
	char name[64];
	double h2d, d2h, hbm; /* bytes */
	double duplex;        /* copies in and out at once take this share of the sum of their times alone */
	double flops;         /* of large square GEMMs in the run's type, as measured, not as advertised */
	double ram;           /* bytes of host memory that the cores read and write; several GPUs' copies get as many */
	double links;         /* bytes each way over the host's links to all of its GPUs */
	double adam;          /* parameters that the cores update, */
	bool adam_measured;   /* as measured; else an upper bound, and ram may allow fewer */
	double memory;        /* bytes of device memory that such a device has; 0: unknown */
	bool unified;         /* a GPU whose memory is the host's; memory: all of it */
	double fp32, fp8;     /* GEMMs of fp32 have this share of flops, and those of FP8 */
	int capability;       /* of a GPU: 90: sm_90 */
	bool cores;           /* the host's cores compute, not a GPU, */
	bool attention_bf16;  /* and their attention multiplies bf16 */
};

struct work { /* what operations are made of (price.c) */
	double gemms, fp8, grouped,
		delta[2];                  /* FLOPs of a token: of GEMMs, of those in FP8, of experts', of the delta rule; [1]:
	                                * with channels */
	double attention[MT_KINDS];    /* FLOPs of a token and a key, by kind of layers */
	double bytes[2];               /* that all else loads and stores of a token; [1]: on a GPU, by times_of() */
	double weights[2], kernels[2]; /* bytes of weights and their gradients, and kernels: of a chunk; of a slice */
	double rounded[2];             /* bytes that rounding weights to FP8 loads and stores, likewise */
};
/* Of a block, the mean of all: of one that keeps all, what others do again, what each window of experts does beside it;
 * of the head, and what gives losses alone */
struct counts {
	struct work forward, backward, again[KEEP_ALL], window[2], head, losses;
};

struct plan_request {
	const struct mt_geometry *geo;
	struct list *lists;               /* of its kinds of layers (block.h); NULL: request_sizes makes them */
	struct counts counts;             /* of what they do */
	enum mt_dtype dtype, grad, state; /* of weights, gradients, the optimizer's m and v */
	enum mt_optim optim;
	uint64_t embed, block, head;  /* elements of units: block: of the largest; head: with a tied embedding's */
	uint64_t ple, ple_beside;     /* of what makes the blocks' own inputs; of that, what is not the table. 0: none */
	uint64_t mean;                /* of a block, the mean of all */
	uint64_t exact;               /* of which a block's slot has lo, too, at most: a multiple of 64 */
	uint64_t rest;                /* of the largest block without its experts; */
	struct split split[MT_KINDS]; /* experts, by kind of layer */
	struct mt_layer most;         /* mt_layer_most of the geometry: every block has room for it */
	uint64_t params;
	/* of these, the experts that a token is not sent to; of a block, the mean of all, and of the model */
	uint64_t idle, idle_params;
	uint64_t grads, weights; /* elements of all units, as gradients of a micro-batch, and as weights that are updated */
	/* of these gradients: of the embedding, of a block that goes backward, the mean of all, and of the head; and of the
	 * parameters, those that are trained */
	uint64_t embed_grads, block_grads, head_grads, trained;
	uint64_t with_state; /* parameters of units of which something is */
	uint32_t still;      /* the first blocks, which do not go backward, as nothing is trained below the next one */
	uint32_t rows, seq;  /* of the micro-batch */
	uint32_t micros;     /* micro-batches of a step that each stream computes, */
	uint32_t streams;    /* streams of a node, each with its own device, */
	uint32_t nodes;      /* and nodes of the run; 1 each: as a plan of one micro-batch */
	double net;          /* of several nodes: bytes a second to a node, and as many from it */
	bool train;
	bool scores;                     /* not train: each token's loss is asked for, too */
	bool weighted;                   /* rows may have weights */
	bool objective;                  /* the loss may be one of documents' log-probabilities */
	uint32_t top;                    /* of a teacher's tokens: of each target, or with scores of each answer */
	bool packed;                     /* rows may hold several documents */
	struct attention_need attention; /* work memory of library attention on such rows */
	uint64_t elem, operand;          /* bytes of an element on the device, and of an operand (device.h) */
	size_t fp8;                      /* as the device's */
	bool zero_copy;                  /* the device reads weights in the store: no weight slots */
	bool reads_rows;                 /* the device reads few rows of the embedding in the store */
	bool early;                      /* mt-optim --update early: units are updated before the step's commit */
	double tier;          /* of lo, m and v on drives (mt/tier.h): bytes a second, read and written. 0: none */
	uint64_t tier_params; /* parameters whose lo, m and v are there; */
	uint64_t tier_bytes, tier_disk; /* bytes that a step reads, and writes, and those of the files; */
	uint64_t tier_ahead;            /* bytes that slots hold, and so are read before a step's commit */
	bool unified;                   /* a GPU whose memory is the host's: nothing is offloaded */
	uint64_t work;                  /* bytes that the device takes for itself */
	uint64_t memory;                /* device memory budget, in bytes */
	uint64_t host;                  /* host memory budget of the run, in bytes */
	uint64_t host_beside;           /* bytes of it that the run takes besides activations */
	enum recompute recompute;
	unsigned without;       /* enum without */
	uint32_t expert_window; /* experts of a window, those of a layer and more: no windows; 0: the planner selects */
	uint32_t chunk_tokens, head_tokens, pass_rows; /* chunk_tokens, head_tokens 0: the planner selects them, */
	bool fixed;                                    /* and pass_rows, unless this is set */
	struct profile profile;
	/* where cores compute: the rates by which the plan is selected. They are fixed, so that the plan does not depend on
	 * what else runs; times are predicted by `profile`. hbm 0: profile does both */
	struct profile selects;
};

struct plan {
	uint32_t chunk_tokens, head_tokens;
	uint32_t pass_rows;    /* 0: layer-major */
	uint32_t weight_slots; /* of a block's size; the weights of as many last blocks stay from forward to backward */
	uint32_t grad_slots;   /* of a block's size: 1, 2, or (pass-major) one for each block */
	/* blocks at these checkpoint levels, counted from the last block down; the rest: KEEP_INPUT */
	uint32_t keep_all, keep_but_gate_up, keep_attention;
	/* mixtures of experts: experts of a window. Windows stream, and two of them have memory; a block's slots are for
	 * the rest of it. 0: experts stream with their block */
	uint32_t expert_window;
	bool library_attention;  /* attention by a library (cuDNN), which needs work memory */
	bool by_heads;           /* attention goes by groups of heads, and their gradients replace q, k and v */
	bool residual_offloaded; /* block inputs are kept in host memory */
	/* if set, the rest is at this level, and what these blocks keep is in host memory; keep_attention is 0 then */
	enum checkpoint offloaded;
};

struct prediction {           /* seconds */
	double forward, backward; /* of all passes, waits for weights and gradients included */
	double first_forward;     /* hides the update of the step before; */
	double last_backward;     /* hides this step's update where the store has no gradients (--grad none) */
	double adam, stall, tail; /* adam: of a node's part */
	/* several nodes: by how much the step is longer than with a network that takes no time. In none of the above */
	double network_wait;
	double tier_wait; /* by how much the step is longer than with drives that take no time; in `stall` */
	double step;      /* forward + backward + stall + tail + network_wait */
	double tflops;    /* of all nodes: 6 N plus causal attention, over the step, in 1e12 a second */
	/* forward + backward by what they consist of. gemm: the model's, at the full rate; other_kernels: norms, rope,
	 * SwiGLU, small GEMMs */
	double gemm, attention, recompute, other_kernels, pcie_wait;
	uint64_t in, out; /* bytes over PCIe: weights and activations that return; gradients and activations offloaded */
	/* what a node sends to the others, and gets from them, in a step: bytes; seconds that the network takes for them */
	double grad_bytes, weight_bytes, grad_time, weight_time;
};

struct plan_result {
	struct plan plan;
	uint64_t bytes;      /* of device memory, all of it */
	uint64_t host_bytes; /* of host memory: the offload buffers of a node's streams */
	struct prediction predicted;
	uint64_t least;      /* the smallest device memory budget for which there is a plan; */
	uint64_t least_host; /* or the smallest host memory budget that would do instead, UINT64_MAX: none */
};

/* ---- profile.c ---- */

/* NAME, or NAME,h2d=GB/s,d2h=,hbm=,ram=,links=,flops=TFLOP/s,adam=Gparams/s, each optional. Without NAME: the GPU
 * `here`, by its model's name or else by its architecture and clocks; `here` NULL: an H200. The cores are this
 * machine's. -64 */
int profile_parse(const char *spec, enum mt_dtype, const struct gpu *here, struct profile *);
/* Replace rates: h2d=GB/s,... as above; "" replaces none. -64 */
int profile_change(const char *rates, struct profile *);
/* Does it begin with a NAME? */
bool profile_named(const char *spec);
/* The i-th NAME that profile_parse knows; NULL behind the last */
const char *profile_name(int i);

/* ---- measure.c ---- */

/* Where cores compute: the fixed rates that select plans, and the measured rates of `threads` cores of this machine,
 * which predict times; GEMMs of bf16 or of fp32. rates: K=N,... replaces some of both. 0, -64 or -71 */
int profile_cores(const char *rates, enum mt_dtype, int threads, bool bf16, struct profile *selects,
	struct profile *measured);
/* NAME is cpu, or there is none: the rates behind it; else NULL */
const char *profile_cores_rates(const char *spec);

/* ---- search.c ---- */

/* lo, m and v are on drives that read and write `tier` bytes a second */
void request_tier(struct plan_request *, double tier, const struct mt_layout_tier *);
/* Of all units and their tensors */
void request_sizes(struct plan_request *, const struct mt_unit *units, const struct mt_tensor *tensors);
/* The sizes of a run on a device whose memory is the host's, unless others are requested: the same on all machines */
uint32_t default_chunk_tokens(void);
uint32_t default_head_tokens(const struct mt_geometry *);
/* The plan with the shortest predicted step of all that fit. -71 when none fits: then only least and least_host are
 * set. */
int plan_search(const struct plan_request *, struct plan_result *);

/* ---- price.c: what operations are made of ---- */

/* Of a request whose lists are made */
struct counts price_lists(const struct plan_request *, const struct mt_unit *units, const struct mt_tensor *tensors);

/* ---- cost.c: how long a plan takes ---- */

struct times { /* seconds of compute, of n tokens through one unit */
	double embed_forward, embed_backward, head;
	double head_again; /* of which for the losses of rows that an objective needs first */
	double forward, backward, recompute[KEEP_ALL + 1];
	double attention; /* of forward and backward */
};

struct times unit_times(const struct plan_request *, const struct plan *, uint32_t rows);
/* The times of a step; `times` are those of a pass of this plan. Cheap: the search calls it for every plan. */
void predict(const struct plan_request *, const struct plan *, const struct times *, struct prediction *);
/* What the step consists of: fills the rest of a prediction that predict has made */
void predict_parts(const struct plan_request *, const struct plan *, struct prediction *);

/* ---- network.c: what nodes send to each other ---- */

/* Bytes that a node sends, and gets, of `elems` elements of the gradients of a round, in which each stream computes one
 * micro-batch; and of the weights after a commit. 0: there is one node */
double network_grads(const struct plan_request *, uint64_t elems);
double network_weights(const struct plan_request *, uint64_t elems);
/* Their seconds */
double network_grads_time(const struct plan_request *, uint64_t elems);
double network_weights_time(const struct plan_request *, uint64_t elems);

/* ---- what follows from a plan ---- */

static inline enum checkpoint checkpoint_of(const struct plan *plan, uint32_t layers, uint32_t layer)
{
	uint32_t down = layers - 1 - layer, all = plan->keep_all, most = all + plan->keep_but_gate_up;
	if (down < all) return KEEP_ALL;
	if (down < most) return KEEP_ALL_BUT_GATE_UP;
	return plan->offloaded ? plan->offloaded : down < most + plan->keep_attention ? KEEP_ATTENTION : KEEP_INPUT;
}

/* Blocks whose activations are offloaded: the first ones */
static inline uint32_t blocks_offloaded(const struct plan *plan, uint32_t layers)
{
	return plan->offloaded ? layers - plan->keep_all - plan->keep_but_gate_up : 0;
}
/* Blocks at a level, wherever they keep it */
static inline uint32_t blocks_at(const struct plan *plan, uint32_t layers, enum checkpoint level)
{
	const uint32_t here[] = {layers - plan->keep_all - plan->keep_but_gate_up - plan->keep_attention,
		plan->keep_attention, plan->keep_but_gate_up, plan->keep_all};
	uint32_t away = blocks_offloaded(plan, layers);
	return (level || !away ? here[level] : 0) + (level && level == plan->offloaded ? away : 0);
}

/* Offloaded residuals, and blocks, whose activations leave the device: the last two are still there when the backward
 * pass reads them. */
static inline uint32_t residuals_away(const struct plan_request *req)
{
	return req->still < req->geo->layers ? req->geo->layers - 1 - req->still : 0;
}
static inline uint32_t blocks_away(const struct plan_request *req, const struct plan *plan)
{
	uint32_t blocks = blocks_offloaded(plan, req->geo->layers);
	return blocks > req->still + 2 ? blocks - req->still - 2 : 0;
}

/* The head gives the loss of each row, from logits in fp32 */
static inline bool needs_losses(const struct plan_request *req) { return req->scores || req->objective; }

static inline uint32_t rows_of_pass(const struct plan_request *req, const struct plan *plan)
{
	return plan->pass_rows && plan->pass_rows < req->rows ? plan->pass_rows : req->rows;
}
static inline uint32_t rows_of_chunk(const struct plan_request *req, const struct plan *plan)
{
	uint32_t rows = plan->chunk_tokens / req->seq ? plan->chunk_tokens / req->seq : 1, pass = rows_of_pass(req, plan);
	return rows < pass ? rows : pass;
}
/* Are the embedding's rows read in the store, one for each token, in place of copying all of them in? Then they take
 * ROWS_TIMES as long as as many bytes of a copy (assumed). */
enum { ROWS_TIMES = 2 };
static inline uint64_t rows_of_embed(const struct plan_request *req) /* with learned positions, a token has two */
{
	return (uint64_t)req->rows * req->seq * (req->geo->flags & MT_POSITIONS ? 2 : 1);
}
/* Elements of these rows, which are of the table of the blocks' own inputs, too */
static inline uint64_t elems_of_rows(const struct plan_request *req)
{
	return rows_of_embed(req) * (req->geo->hidden + (uint64_t)ple_width(req->geo));
}
static inline bool embed_in_place(const struct plan_request *req, const struct plan *plan)
{
	return req->reads_rows && !plan->pass_rows && rows_of_embed(req) * ROWS_TIMES < req->geo->vocab;
}
/* Elements of a block's slot, and of a window's */
static inline uint64_t slot_elems(const struct plan_request *req, const struct plan *plan)
{
	return plan->expert_window ? req->rest : req->block;
}
static inline uint64_t window_elems(const struct plan_request *req, uint32_t window)
{
	uint64_t most = 0;
	for (int k = 0; k < MT_KINDS; k++) {
		uint64_t n = split_window(&req->split[k], window);
		most = n > most ? n : most;
	}
	return most;
}
/* Tokens of an MLP slice, and of a chunk of the LM head */
static inline uint64_t tokens_of_slice(const struct plan_request *req, const struct plan *plan)
{
	uint64_t n = (uint64_t)rows_of_chunk(req, plan) * req->seq;
	return n < plan->chunk_tokens ? n : plan->chunk_tokens;
}
/* MLP slices of a chunk, and of a pass at most */
static inline uint64_t slices_of_chunk(const struct plan_request *req, const struct plan *plan)
{
	uint64_t n = (uint64_t)rows_of_chunk(req, plan) * req->seq, slice = tokens_of_slice(req, plan);
	return (n + slice - 1) / slice;
}
static inline uint64_t slices_of_pass(const struct plan_request *req, const struct plan *plan)
{
	uint64_t rows = rows_of_chunk(req, plan), chunks = (rows_of_pass(req, plan) + rows - 1) / rows;
	return chunks * slices_of_chunk(req, plan);
}
/* Key-value heads of a call of attention in layers of this kind, as chunk.group. A library's calls have as many as its
 * work memory allows (calls.h), whatever the plan; others one, or where there are many, a share of HEAD_GROUPS. */
enum { HEAD_GROUPS = 8 };
static inline uint32_t group_of(const struct plan_request *req, const struct plan *plan, uint32_t kind)
{
	const struct attention_call *call = &req->attention.kind[kind];
	uint32_t all = req->geo->kind[kind].kv_heads, n = plan->by_heads ? (all + HEAD_GROUPS - 1) / HEAD_GROUPS : all;
	if (plan->library_attention && call->rows) n = call->kv_heads;
	while (n && all % n) n++;
	return n < all ? n : 0;
}
static inline uint64_t tokens_of_head(const struct plan_request *req, const struct plan *plan)
{
	uint64_t n = (uint64_t)rows_of_pass(req, plan) * req->seq;
	return n < plan->head_tokens ? n : plan->head_tokens;
}

/* ---- memory.c: where each array lies. One walk computes the size and hands out the addresses. ---- */

struct memory_layout {
	uint32_t *tokens, *targets, *starts; /* (n) of the whole micro-batch */
	float *row_weights;                  /* (n) likewise, where rows may have weights */
	uint32_t *teacher;                   /* (n, MT_TEACHER_WORDS) likewise, with a loss that needs it */
	uint32_t *span_starts;               /* (n) of models with spans */
	uint32_t *ahead;   /* (3, n) with multi-token prediction: next tokens, their targets, and weights of these */
	struct loss *loss; /* (2) the second one is multi-token prediction's */
	uint32_t *counted; /* (n), and */
	double *sums;      /* (2 E + 1): training with an auxiliary loss or a z-loss (ops/balance.h) */
	float *cos[MT_KINDS], *sin[MT_KINDS]; /* (seq, rope_dim / 2), by kind of layers */
	void *embed_head_weights[2];          /* of embedding and head: the same memory, layer-major */
	void **weights;                       /* [weight_slots] */
	float *embed_head_grads[2];           /* as embed_head_weights */
	float **grads;                        /* [grad_slots] */
	void *windows[2];                     /* experts that come by windows: their weights, */
	float *window_grads[2];               /* and gradients; */
	float *boundary_blocks[2];            /* blocks of gradients that belong to several parts (split.h), by unit */
	float *tied_grads; /* --grad none, tied embeddings: the sum of the embed gradient and the head gradient */
	/* [outputs] (n of a pass, H): each unit's output from unit req.still on; those before alternate between the first
	 * one and the last one. If there are two, all alternate */
	void **x;
	uint32_t outputs;
	void *dx;            /* (n of a pass, H) */
	void *hidden, *next; /* multi-token prediction: (n of a pass, H) what the head and its block read; then gradients */
	void *ple_weights, *ple_table; /* what makes the blocks' own inputs: W' and the norm; all of it, while unit 0 */
	void *ple;                     /* computes. (n of a pass, L p): the inputs */
	void *kv[MT_KINDS], *dkv[MT_KINDS]; /* (n of a pass, 2 K): k | v that other layers read, and their gradients */
	struct scratch scratch;
	struct saved *saved; /* [layers], what each block keeps of all tokens of a pass; NULL: recomputed */
	/* what blocks recompute, of one chunk, or with windows of a pass: by kind of layers, in the same memory; gu is in
	 * the scratch */
	struct saved chunk[MT_KINDS];
	void *kept, *dsum; /* to train by windows with a norm behind experts: (layers, n of a pass, H) and one block's */
	struct saved away[2][MT_KINDS]; /* offloaded: what a block keeps, on its way out or in, likewise */
	void *away_at[2];
};

/* Bytes of device memory that the plan takes. With a layout and a base it also sets the addresses; the layout's arrays
 * must be large enough. UINT64_MAX: more than 64 bits count. */
uint64_t memory_lay(const struct plan_request *, const struct plan *, struct memory_layout *, void *base);
/* Of a plan's bytes, those that lie at base: all but what the device takes for itself */
uint64_t memory_arena(const struct plan_request *, uint64_t bytes);
/* Bytes of one more weight slot; bytes that are saved once no block recomputes gate and up, nothing but norms and
 * SwiGLU, or attention; and bytes that the last 0, 1, 2, ... blocks keep, by checkpoint level */
enum { MOST_LAYERS = sizeof((struct mt_geometry *)0)->kind_of };
struct increments {
	uint64_t slot, no_gu, no_chunk, no_attention;
	uint64_t kept[KEEP_ALL + 1][MOST_LAYERS + 1];
};
void memory_increments(const struct plan_request *, const struct plan *, struct increments *);
/* Bytes that an offloaded block keeps: all of memory_layout.away[i] */
uint64_t memory_away(const struct plan_request *, const struct plan *);
/* Bytes of the offload buffer */
uint64_t memory_host(const struct plan_request *, const struct plan *);
/* Bytes of library attention's work memory */
uint64_t memory_attention(const struct plan_request *, const struct plan *);

#endif
