/* stream.h: what mt-stream's parts share: the stream, its jobs, its plan of device memory. */
#ifndef MT_STREAM_STREAM_H
#define MT_STREAM_STREAM_H

#include "plan/plan.h"

/* What a micro-batch's way through the model is made of: job j is unit j. Its weights come in as one, its gradients
 * leave as one; the LM head of a tied model has the embedding's weights as a second part, and a gradient for them. */
struct job {
	struct part {
		uint32_t unit, end;
		uint64_t at, elems;
	} part[2]; /* at: element in the job's slot */
	int parts;
	uint64_t elems; /* of all parts */
};

/* Activations that the host keeps: i is in device memory i & 1 when it is made, and again when it is wanted. */
struct carry {
	int64_t held[2];      /* which one is there; -1: none */
	struct event left[2]; /* the last one that was there has gone out */
};

/* What is settled for one micro-batch, and how far it is */
struct plan {
	struct ask ask;
	struct choice c;
	struct place at;
	struct carry x, o;
	int64_t base, n;                  /* the pass at work: its first token, its tokens */
	bool first, last;                 /* pass */
	struct event done[2];             /* the last even and the last odd unit's forward is through */
	uint64_t bytes, x_bytes, o_bytes; /* of device memory; of one of each in host memory */
	double predicted;                 /* s, forward and backward */
};

struct stream {
	struct mt_run *run;
	struct mt_control *control;
	const struct mt_geometry *geo;
	struct device *dev;
	int index;
	struct mt_ring *batch, *grad;

	uint32_t chunk_tokens, head_tokens, pass_rows; /* from the run record */
	enum recompute recompute;
	bool verbose;        /* say each plan */
	bool said;           /* the first one for training was */
	const char *profile; /* what the planner takes the machine for */
	uint64_t budget;     /* bytes of device memory, the device's own included; 0: not told */
	uint64_t host_told;  /* bytes of host memory that the run may take, as told; 0: not told */
	struct job *jobs;    /* [units] */
	uint32_t units;
	bool packed; /* a row with several documents has come by */
	bool view;   /* the device reads the store in place */

	struct plan plan;
	void *arena;
	uint64_t arena_bytes; /* device memory; grows between micro-batches, */
	void *spill;
	uint64_t spill_bytes; /* and host memory, for what the device sends there */
	float *cos, *sin;
	uint32_t positions; /* host: rope's tables so far */
	uint32_t *host;     /* the batch, copied out of its ring: tokens, targets, starts */
	struct loss host_loss;

	struct mt_msg msg; /* the micro-batch at work */
	bool sent;         /* a piece of it has left */
	double looked;     /* when the peers' lives were last looked at */
	uint64_t waited;   /* ns, of this micro-batch */
};

/* The run has no use for this micro-batch any more; the run itself is gone, or nobody is left to serve. */
enum { STALE = 1, GONE = 2 };

/* plan/request.c */
int jobs_make(struct stream *);
struct settle {
	uint64_t chunk_tokens, head_tokens, pass_rows;
};                                                                       /* as told; 0: not told */
int record_settle(struct stream *, const struct settle *);               /* 78: other device or sizes */
int plan_make(struct stream *, uint32_t rows, uint32_t seq, bool train); /* -71 */
int rope_grow(struct stream *, uint32_t positions);
void plan_release(struct stream *);

/* schedule.c: the micro-batch s->msg, its rows in s->host. 0, STALE, GONE or -ex */
int schedule_micro(struct stream *);
/* Every operation on the compute queue of a micro-batch as it is planned, for a device that rehearses. 0 or -ex. The
 * plan's places are to be laid anew after it. */
int schedule_rehearse(struct stream *);

/* serve.c */
int serve(struct stream *);                  /* until a signal, or the end of the run: 0, or -ex */
int stream_run_state(const struct stream *); /* 0, GONE, -65: the store is dirty, or -75: the slot is lost */
int stream_wanted(struct stream *);          /* is the micro-batch at work still? 0, STALE, or as stream_run_state */
/* Sleep until the doorbell rings after `seen`. 0: look again; else as stream_wanted */
int stream_pause(struct stream *, uint32_t seen, enum mt_activity, uint64_t arg);

#endif
