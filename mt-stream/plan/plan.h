/* plan.h: from geometry, shapes, device memory and a few rates to the plan of a micro-batch: pure arithmetic, which
 * needs neither a run nor a device.
 *
 * Layer-major, a micro-batch goes through the model unit by unit as a whole, in chunks of whole rows (or, where one row
 * is longer than a chunk, its MLP in pieces of a chunk's tokens). Pass-major, groups of rows go forward and backward
 * through all units, whose weights and gradients stay on the device from pass to pass. What decides bits is
 * (chunk_tokens, head_tokens, pass_rows), and is kept in the run record; all else only decides memory and time.
 */
#ifndef MT_STREAM_PLAN_H
#define MT_STREAM_PLAN_H

#include "template.h"

enum recompute { RECOMPUTE_AUTO, RECOMPUTE_FULL, RECOMPUTE_NONE };

/* What a block keeps for its backward pass, beside its input */
enum level {
	LEVEL_INPUT,     /* nothing */
	LEVEL_ATTENTION, /* attention's output and statistics: attention is not computed again */
	LEVEL_BLOCK,     /* also q, k, v and the second residual: gate and up are computed again */
	LEVEL_FULL,      /* also gate and up: only norms and SwiGLU are */
};

struct profile { /* what a machine does in a second */
	char name[64];
	double h2d, d2h, hbm; /* bytes */
	double flops;         /* of large square GEMMs in the run's type, as measured, not as advertised */
	double ram;           /* bytes of host memory that the cores read and write */
	double adam;          /* parameters that the cores update: */
	bool adam_measured;   /* so many, or fewer where ram is not enough for them */
	double memory;        /* bytes of device memory that such a device has; 0: it does not say */
};

struct ask { /* what a plan is wanted for */
	const struct mt_geometry *geo;
	enum mt_dtype dtype, grad;
	uint64_t embed, block, head; /* elements of the three kinds of units; head: with a tied embedding's */
	uint64_t params;
	uint32_t rows, seq; /* of the micro-batch */
	bool train;
	bool packed;                     /* rows may hold several documents */
	struct attention_need attention; /* of such rows */
	uint64_t elem;                   /* bytes of an element on the device */
	bool view;                       /* weights are read where they lie: no slots */
	uint64_t work;                   /* bytes that the device takes for itself */
	uint64_t memory;                 /* bytes of device memory */
	uint64_t host;        /* bytes of host memory, of which the run takes host_beside and activations may have */
	uint64_t host_beside; /* the rest */
	enum recompute recompute;
	uint32_t chunk_tokens, head_tokens, pass_rows; /* chunk_tokens and head_tokens 0: the planner's choice, */
	bool settled;                                  /* and of pass_rows, unless settled */
	struct profile profile;
};

struct choice {
	uint32_t chunk_tokens, head_tokens;
	uint32_t pass_rows;    /* 0: layer-major */
	uint32_t weight_slots; /* of a block's size: the last so many blocks' weights stay from forward to backward */
	uint32_t grad_slots;   /* of a block's size: 1, 2, or (pass-major) one each */
	uint32_t full, block, attention; /* blocks at these levels, from the last one down; the rest: LEVEL_INPUT */
	bool engine;                     /* attention in the way that needs work memory */
	bool x_host, o_host; /* block inputs, attention outputs of those at LEVEL_ATTENTION are kept by the host */
};

struct prediction {           /* seconds */
	double forward, backward; /* of all passes, with the waits for weights and gradients in them */
	double first_forward;     /* what Adam of the step before hides behind; */
	double last_backward;     /* or its own step's, where gradients have no place in the store */
	double adam, stall, tail;
	double step;   /* forward + backward + stall + tail */
	double tflops; /* 6 N plus causal attention, over the step, in 1e12 a second */
	/* what forward and backward are made of: the model's matrix products at the full rate, attention, what is computed
	 * again, all else that computes (norms, rope, SwiGLU, smaller products), waits for the bus */
	double products, attention, again, around, bus;
	uint64_t in, out; /* bytes over the bus: weights and what comes back; gradients and what leaves */
};

struct planned {
	struct choice c;
	uint64_t bytes;      /* of device memory, all of it */
	uint64_t host_bytes; /* of host memory beside the store: what was sent there */
	struct prediction p;
	uint64_t least;      /* the smallest ask.memory that any plan fits; */
	uint64_t least_host; /* or the smallest ask.host that would do instead, UINT64_MAX: none */
};

/* ---- search.c ---- */

/* The best plan; -71 when nothing fits: then only least and least_host are set. */
int planner_make(const struct ask *, struct planned *);
void planner_predict(const struct ask *, const struct choice *, struct prediction *);
/* NAME, or NAME,h2d=GB/s,d2h=,hbm=,ram=,flops=TFLOP/s,adam=Gparams/s, each as wanted. Without NAME it is the GPU that
 * is `here`, by its model's name or else by its architecture and clocks, or (NULL) an H200; the cores are those that
 * are here. -64 */
int profile_parse(const char *spec, enum mt_dtype, const struct gpu *here, struct profile *);
/* Names of what profile_parse knows, one after another; NULL behind the last */
const char *profile_name(int i);
void ask_sizes(struct ask *, const struct mt_unit *units, uint32_t n);

static inline enum level level_of(const struct choice *c, uint32_t layers, uint32_t layer)
{
	uint32_t down = layers - 1 - layer;

	return down < c->full                          ? LEVEL_FULL
		: down < c->full + c->block                ? LEVEL_BLOCK
		: down < c->full + c->block + c->attention ? LEVEL_ATTENTION
												   : LEVEL_INPUT;
}

/* Block inputs, and of `attention` blocks the outputs of attention, that leave the device where the host keeps them:
 * the last two are still there when they are wanted. */
static inline uint32_t inputs_away(const struct mt_geometry *g) { return g->layers - 1; }
static inline uint32_t outputs_away(uint32_t attention) { return attention > 2 ? attention - 2 : 0; }

/* What follows from a choice: rows of a pass and of a chunk; tokens of an MLP piece and of a head chunk */
static inline uint32_t rows_of_pass(const struct ask *a, const struct choice *c)
{
	return c->pass_rows && c->pass_rows < a->rows ? c->pass_rows : a->rows;
}
static inline uint32_t rows_of_chunk(const struct ask *a, const struct choice *c)
{
	uint32_t rows = c->chunk_tokens / a->seq ? c->chunk_tokens / a->seq : 1, pass = rows_of_pass(a, c);

	return rows < pass ? rows : pass;
}
static inline uint64_t tokens_of_piece(const struct ask *a, const struct choice *c)
{
	uint64_t n = (uint64_t)rows_of_chunk(a, c) * a->seq;

	return n < c->chunk_tokens ? n : c->chunk_tokens;
}
static inline uint64_t tokens_of_head(const struct ask *a, const struct choice *c)
{
	uint64_t n = (uint64_t)rows_of_pass(a, c) * a->seq;

	return n < c->head_tokens ? n : c->head_tokens;
}

/* ---- memory.c: where each thing lies; the same walk tells the need and hands out the memory ---- */

struct slot { /* device memory for one job's weights */
	void *mem;
	int64_t job;       /* whose they are, -1: nobody's */
	struct event over; /* their last reader is through */
};

struct place {
	uint32_t *tokens, *targets, *starts; /* (n) of the whole micro-batch */
	struct loss *loss;
	float *cos, *sin;            /* (seq, D / 2) */
	struct slot *ends, *weights; /* [2] for embedding and head (the same one, layer-major), [weight_slots] */
	float *end_grads[2];         /* likewise */
	float **grads;               /* [grad_slots] */
	float *tied;                 /* --grad none, tied: both ends' gradient adds up here */
	void **x;                    /* [outputs] (n of a pass, H): what each unit puts out, in turn if there are but two */
	uint32_t outputs;
	void *dx; /* (n of a pass, H) */
	struct scratch scratch;
	struct saved *saved; /* [layers], what each keeps of all tokens of a pass; NULLs: that it does not */
	struct saved chunk;  /* what blocks do not keep, of one chunk; gu is in the scratch */
	void *o[2];
	float *lse[2]; /* o_host: attention outputs on their way out or in */
};

/* Bytes of device memory that the choice takes; with p and base also says where: p's arrays are as large as they must
 * be (slots: -1, NULL events). UINT64_MAX: more than there can be. */
uint64_t memory_lay(const struct ask *, const struct choice *, struct place *p, void *base);
/* Of a plan's bytes, those that lie at base: all but what the device takes for itself */
uint64_t memory_arena(const struct ask *, uint64_t bytes);
/* Bytes that one more weight slot, and one more block at each level, take; and those that nobody takes any more once no
 * block needs gate and up, or anything, computed again. */
struct increments {
	uint64_t slot, full, block, attention, no_gu, no_chunk;
};
void memory_increments(const struct ask *, const struct choice *, struct increments *);
uint64_t memory_host(const struct ask *, const struct choice *);
/* Bytes of those that attention by an engine works in */
uint64_t memory_attention(const struct ask *, const struct choice *);

#endif
