/* stream.h: what mt-stream's parts share: the stream, its jobs, its plan of device memory. */
#ifndef MT_STREAM_STREAM_H
#define MT_STREAM_STREAM_H

#include "planner.h"

/* What a micro-batch's way through the model is made of: job j is unit j. Its weights come in as one, its gradients
 * leave as one; the LM head of a tied model has the embedding's weights as a second part, and a gradient for them. */
struct job {
	struct part { uint32_t unit, end; uint64_t at, elems; } part[2];    /* at: element in the job's slot */
	int parts;
	uint64_t elems;             /* of all parts */
};

/* Where everything of one micro-batch lies: the same walk tells the need and hands out the memory. */
struct plan {
	uint32_t rows, seq;
	bool train, keep;           /* keep: blocks keep what they save (recompute none) */
	int64_t n, chunk_rows, head_n;      /* tokens of the micro-batch; rows of a chunk; tokens of a head chunk */
	uint32_t *tokens, *targets, *starts;    /* (n) */
	struct loss *loss;
	float *cos, *sin;           /* (seq, D / 2) */
	void *x;                    /* (units - 1, n, H): what each unit puts out; an evaluation has two and alternates */
	void *dx;                   /* (n, H) */
	struct saved *saved;        /* [layers] of all n tokens each if keep, else one, of a chunk */
	struct scratch scratch;
	struct slot weights[2];     /* as large as the largest job each */
	float *grads[2];            /* likewise */
	float *tied;                /* --grad none, tied: both ends' gradient adds up here */
	uint64_t bytes;
};

struct stream {
	struct mt_run *run;
	struct mt_control *control;
	const struct mt_geometry *geo;
	struct device *dev;
	int index;
	struct mt_ring *batch, *grad;

	uint32_t chunk_tokens, head_tokens;     /* from the run record */
	enum recompute recompute;
	uint64_t budget;            /* bytes of device memory */
	struct job *jobs;           /* [units] */
	uint32_t units;
	bool view;                  /* the device reads the store in place */

	struct plan plan;
	void *arena; uint64_t arena_bytes;      /* device memory; grows between micro-batches */
	float *cos, *sin; uint32_t positions;   /* host: rope's tables so far */
	uint32_t *host;             /* the batch, copied out of its ring: tokens, targets, starts */
	struct loss host_loss;

	struct mt_msg msg;          /* the micro-batch at work */
	bool sent;                  /* a piece of it has left */
	double looked;              /* when the peers' lives were last looked at */
	uint64_t waited;            /* ns, of this micro-batch */
};

/* The run has no use for this micro-batch any more; the run itself is gone, or nobody is left to serve. */
enum { STALE = 1, GONE = 2 };

/* plan.c */
int jobs_make(struct stream *);
int record_settle(struct stream *, uint64_t chunk_tokens, uint64_t head_tokens);    /* 78: other device or sizes */
int plan_make(struct stream *, uint32_t rows, uint32_t seq, bool train);            /* -71 */
int rope_grow(struct stream *, uint32_t positions);
uint64_t budget_default(void);

/* schedule.c: the micro-batch s->msg, its rows in s->host. 0, STALE, GONE or -ex */
int schedule_micro(struct stream *);

/* serve.c */
int serve(struct stream *);             /* until a signal, or the end of the run: 0, or -ex */
int stream_wanted(struct stream *);     /* is the micro-batch at work still? 0, STALE or GONE */
/* Sleep until the doorbell rings after `seen`. 0: look again; STALE or GONE */
int stream_pause(struct stream *, uint32_t seen, enum mt_doing, uint64_t arg);

#endif
