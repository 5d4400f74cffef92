/* stream.h: what mt-stream's parts share: the stream, its units, the micro-batch that it is working on.
 *
 * A micro-batch goes one way: serve.c takes it off the ring, plan_make plans it, schedule_autotune lets the device
 * select algorithms for a new shape, schedule_run computes it. wait.c is where all of these wait for other stages.
 */
#ifndef MT_STREAM_STREAM_H
#define MT_STREAM_STREAM_H

#include "mt/layout.h"
#include "mt/memory.h"
#include "objective.h"
#include "plan/options.h"
#include "plan/plan.h"

/* A unit of the run, whose weights come together and whose gradients leave together. It computes with its own weights;
 * the LM head of a tied model also with the embedding's, for which it has a separate gradient. */
struct unit {
	struct origin {
		uint32_t unit, end; /* whose weights; end: 0, or 1: the head gradient of a tied embedding */
		uint64_t at, elems; /* at: element in the slot */
		bool trained;       /* something of it; */
		bool frozen;        /* and something is not */
	} origin[2];            /* unit 0's second one: what makes the blocks' own inputs */
	int origins;
	uint64_t elems;       /* of all origins */
	struct mt_part exact; /* elements of a block whose lo comes too; in its slot behind the weights */
	bool trained;         /* something of an origin */
	struct split split;   /* of a block with experts, where the plan has windows of them */
};

/* A planned micro-batch. plan_make writes it; nobody else changes it. */
struct micro {
	struct plan_request request; /* rows 0: nothing is planned yet */
	struct plan plan;
	struct memory_layout layout;
	uint64_t bytes; /* of device memory */
	/* in the offload buffer: of one unit's residual, of one block's attention output */
	uint64_t residual_bytes, away_bytes;
	double predicted; /* s, forward and backward; 0: not predicted */
};

/* Device memory for one unit's weights, or for a window's */
struct slot {
	void *mem;
	int64_t holds;          /* whose weights are there, -1: none. A window's: see window_number() */
	struct event last_read; /* the last operation that reads them has run */
	struct event loaded;    /* a window's: they are there */
};

/* Activations in the offload buffer: number i is in device memory i & 1 when it is computed, and again when it is
 * read */
struct offload {
	int64_t held[2];      /* which one is there; -1: none */
	struct event left[2]; /* the last one that was there has been copied out */
};

/* Auxiliary loss and z-loss of a training micro-batch */
struct terms {
	uint32_t *counted; /* (n) 1, or 0: padding; allocated for n up to */
	uint64_t room;
	double logits; /* number of logit vectors: counted tokens times MoE layers */
	double weight; /* of the micro-batch in the step: its share of the step's targets */
	double *sums;  /* (2 E + 1) copied from the device */
};

/* How far schedule.c is with the micro-batch */
struct progress {
	int64_t base, n;           /* this pass: its first token, its tokens */
	bool first, last;          /* this pass is the first one, the last one */
	bool backward;             /* the pass has gone forward */
	struct slot embed_head[2]; /* of embedding and head; both use the first one, layer-major */
	struct slot *blocks;       /* [units] room for the plan's weight slots */
	struct slot ple;           /* what makes the blocks' own inputs, beside the table */
	struct slot windows[2];    /* of experts; */
	int window;                /* the one that was loaded last */
	struct weights weights;    /* of the block with windows whose backward pass is under way; */
	struct slot *slot;         /* where those of its rest are; NULL: in the store */
	struct offload residual, kept;
	struct event done[2];  /* the forward pass of the last even and of the last odd unit has run */
	struct loss loss, mtp; /* copied from the device, or of: */
	struct objective_sums sums;
	bool autotune; /* nothing runs: the device is shown all launches */
	bool sent;     /* a piece of the micro-batch's gradients has left */
};

/* The rates by which cores' times are predicted; measured.cores false: they are not */
struct rates {
	struct profile selects, measured; /* those by which plans are selected */
};

/* Set by serve.c: the micro-batch that it works on */
struct taken {
	struct mt_msg msg;
	uint32_t *host;  /* its block, copied out of the ring */
	uint32_t *spans; /* spans' starts of models that have spans; or as memory_layout.ahead */
};

/* Set by request.c: what it plans, and what it has seen of micro-batches so far */
struct planning {
	struct micro micro;
	bool weighted;  /* rows with weights */
	bool objective; /* one whose loss is an objective's */
	bool packed;    /* a row with several documents */
	bool reported;  /* the first plan for training was reported */
};

/* Set by request.c: memory, which only grows, between micro-batches */
struct memory {
	uint64_t budget; /* bytes of device memory; 0: not requested */
	void *arena;     /* device memory */
	uint64_t arena_bytes;
	uint32_t tables;      /* length of rows whose rotary tables it begins with; 0: none */
	void *offload_buffer; /* host memory for offloaded activations */
	uint64_t offload_bytes;
	float *cos[MT_KINDS], *sin[MT_KINDS]; /* rope's tables of each kind of layers */
	uint32_t positions;                   /* positions that these tables have */
	uint32_t *rows;                       /* with windows: rows_of_layer() of each layer */
	uint64_t rows_bytes;
	double *scores; /* of the micro-batch's tokens: their losses, if they are asked for or an objective needs them; */
	float *scales;  /* behind them, what the objective makes of these; */
	uint32_t *top;  /* and the most likely tokens, if they are asked for */
	uint64_t scores_bytes;
};

/* Set by wait.c, and by event_record */
struct waits {
	double looked;          /* when this stream last looked for dead peers */
	uint64_t idle;          /* ns in which compute was at rest, too, during this micro-batch */
	struct event computing; /* the newest on the compute queue */
};

struct stream {
	/* set by stream.c when it starts */
	struct mt_run *run;
	struct mt_control *control;
	const struct mt_geometry *geo;
	struct list *lists; /* of its kinds of layers */
	struct device *dev;
	int index;
	bool entered; /* its machine, where streams differ */
	struct mt_ring *batch, *grad;
	struct unit *unit;      /* [units] */
	uint32_t units, lowest; /* lowest: the first one of which something is trained */
	struct requested requested;
	struct rates rates;
	bool verbose;   /* report each plan */
	bool zero_copy; /* the device reads the store in place */

	struct taken taken;
	struct chunk_sizes sizes; /* set by record.c: as in the record; chunk_tokens 0: not known yet */
	struct planning planning; /* others read its micro-batch as */
	const struct micro *micro;
	struct memory memory;
	struct terms terms;  /* set by balance.c */
	struct progress now; /* set by schedule.c */
	struct waits waits;
};

/* Is the loss a function of documents' log-probabilities (objective.h)? A teacher's is one of each row's logits. */
static inline bool has_objective(const struct stream *s)
{
	return s->taken.msg.batch.documents && !s->taken.msg.batch.top;
}

/* ---- the device, as schedule.c uses it ---- */

static inline void launch(struct stream *s, enum queue q, const struct op *op) { s->dev->launch(s->dev, q, op); }
/* An event: all that is launched on the queue so far has run */
static inline struct event event_record(struct stream *s, enum queue q)
{
	struct event e = s->dev->record(s->dev, q);
	if (q == Q_COMPUTE) s->waits.computing = e;
	return e;
}
/* What is launched on the queue from here on runs after the event */
static inline void queue_wait(struct stream *s, enum queue q, struct event e)
{
	s->dev->wait(s->dev, q, e);
	if (q == Q_WEIGHTS && s->requested.without & WITHOUT_PREFETCH)
		s->dev->wait(s->dev, q, s->dev->record(s->dev, Q_COMPUTE));
}
/* This thread waits for the event. 0 or -ex */
static inline int event_sync(struct stream *s, struct event e) { return s->dev->sync(s->dev, e); }

/* ---- what each file does ---- */

/* The micro-batch is no longer needed; the run is gone, or nobody is left to serve */
enum { STALE = 1, GONE = 2 };

/* serve.c */
int serve(struct stream *); /* until a signal, or the end of the run: 0, or -ex */

/* record.c: the reproducibility record, which keeps what decides bits. 0, GONE, or -ex (78: another device or
 * other sizes) */
int record_select(struct stream *, const struct chunk_sizes *requested);
/* Set dev->fp8: as requested, else as the record has it */
void compute_fp8(const struct stream *);
/* Read it; the first stream of a run writes it, with these sizes */
int record_take(struct stream *, const struct chunk_sizes *);

/* request.c: plan the micro-batch that was taken; fill s->micro, and take the memory that it needs. *new_shape: the
 * last one was of another shape. 0, GONE, or -ex (71: it fits in no way) */
int plan_make(struct stream *, bool *new_shape);
void plan_release(struct stream *);

/* parts.c: s->unit, of the run's units */
int units_make(struct stream *);
/* schedule.c. Show the device all compute of the planned micro-batch, to select algorithms; nothing runs. 0 or -ex */
int schedule_autotune(struct stream *);
/* Compute the planned micro-batch. 0, STALE, GONE or -ex */
int schedule_run(struct stream *);

/* balance.c: the auxiliary loss and the z-loss of routers. No-ops for models without these terms. */
int balance_begin(struct stream *); /* of the micro-batch that is planned. 0 or -71 */
void balance_in(struct stream *);   /* launch what the first router needs, */
void balance_out(struct stream *);  /* and, behind the last one's forward pass, the copy of the sums */
/* For the chunk at token `first` of the micro-batch */
struct balance balance_of(const struct stream *, int64_t first);
/* The two terms, without their coefficients; 0 where the coefficient is. The sums have been copied. */
struct balance_loss {
	double aux, z;
} balance_loss(const struct stream *);
void balance_release(struct stream *);

/* wait.c: 0, STALE, GONE or -ex */
int run_state(const struct stream *);    /* 0, GONE, -65: the store is dirty, or -75: another process has the slot */
int micro_wanted(const struct stream *); /* STALE: the micro-batch is no longer needed; else as run_state */
int weights_wait(struct stream *, uint32_t u);               /* until the unit's weights are this step's */
int room_wait(struct stream *, uint32_t unit, void **block); /* until the gradient ring has room for a block */
void *room_ahead(const struct stream *, uint64_t ahead);     /* the block `ahead` behind its next one; NULL: no room */
void batch_wait(struct stream *, uint32_t seen);             /* until the doorbell rings after `seen` */
int record_wait(const struct stream *,
	uint32_t seen); /* likewise, for the stream that writes the reproducibility record */

#endif
