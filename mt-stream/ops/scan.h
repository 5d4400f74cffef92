/* scan.h: the selective scan of Mamba 1 */
#ifndef MT_STREAM_OPS_SCAN_H
#define MT_STREAM_OPS_SCAN_H

#include "common.h"

/* Mamba 1 (arXiv 2312.00752). Of each channel, h (S) the state, fp32, which is zeros before a document's first token:
 *     h_t = e^(dt A) h_(t-1) + dt x_t B_t,  y_t = C_t . h_t + skip x_t,  dt = softplus(step_t + dt_bias),
 *     A = -exp(A_log)
 * All channels share B and C. Token by token.
 * Backward, from the last token to the first; dh has the gradient that later tokens give h_t:
 *     dh += dy_t C_t,  dC_t = the sum over channels of dy_t h_t,  dB_t = that of dt x_t dh
 *     dx_t = dt (dh . B_t) + skip dy_t,  ddt = x_t (dh . B_t) + A . (dh e^(dt A) h_(t-1)),  dstep_t = ddt softplus'
 *     dA_log += A dt dh e^(dt A) h_(t-1),  dskip += x_t dy_t,  then dh = e^(dt A) dh
 * It keeps the state before each SCAN_SPAN tokens of a row, and computes those in between again, span by span.
 * da_log = beta da_log + gradient; ddt_bias, dskip likewise. */
enum {
	SCAN_SPAN = 16,      /* tokens */
	SCAN_CHANNELS = 128, /* of a task of a cpu, at most: each sums dB and dC over its channels; */
	SCAN_THREADS = 256,  /* a GPU's have this many threads, */
	SCAN_MINE = 4        /* elements of a state that each has */
};
struct scan_args {
	int64_t n, seq, channels, size; /* size: S, at most 128 */
	const void *x, *step;           /* (N, channels) */
	const void *b, *c;              /* (N, S), rows ld apart */
	int64_t ld;
	const void *a_log;          /* (channels, S) */
	const void *dt_bias, *skip; /* (channels) */
	const uint32_t *starts;     /* (N): where in its row the token's document starts */
	void *y;                    /* (N, channels), forward */
	/* cpu, forward (mt-sample): tokens of the first document before the first one; `state` holds h behind them, if
	 * there are any, and becomes that behind the last token */
	int64_t past;
	float *state;     /* (channels, S), or NULL: the state is not wanted, and past is 0 */
	const void *dy;   /* (N, channels), backward */
	void *dx, *dstep; /* as x, backward; dx NULL: forward */
	void *db, *dc;    /* as b, rows d_ld apart, backward */
	int64_t d_ld;
	float *da_log, *ddt_bias, *dskip; /* as a_log, dt_bias and skip, backward */
	float beta;
	float *work; /* (scan_room_of()), backward */
};

static inline ON_DEVICE int64_t scan_rows(const struct scan_args *a) { return (a->n + a->seq - 1) / a->seq; }
static inline ON_DEVICE int64_t scan_spans(const struct scan_args *a) { return (a->seq + SCAN_SPAN - 1) / SCAN_SPAN; }
/* A GPU: threads that share a channel, of a warp's */
static inline ON_DEVICE int64_t scan_lanes(const struct scan_args *a)
{
	int64_t lanes = 1;
	while (lanes * SCAN_MINE < a->size) lanes *= 2;
	return lanes;
}
/* Channels of a task, or of a block of a GPU; how many of these there are */
static inline ON_DEVICE int64_t scan_group(const struct scan_args *a, int gpu)
{
	return gpu ? SCAN_THREADS / scan_lanes(a) : (int64_t)SCAN_CHANNELS;
}
static inline ON_DEVICE int64_t scan_groups(const struct scan_args *a, int gpu)
{
	int64_t group = scan_group(a, gpu);
	return (a->channels + group - 1) / group;
}
/* What backward has in `work`: the states before spans (rows, spans, S, channels); from `groups` on sums over a group's
 * channels (groups, N, 2 S), of dB, then dC; from `rows` on sums over a row's tokens (rows, S + 2, channels), of
 * da_log, ddt_bias and dskip */
struct scan_room {
	int64_t groups, rows, elems;
};
static inline ON_DEVICE struct scan_room scan_room_of(const struct scan_args *a, int gpu)
{
	struct scan_room r;
	r.groups = scan_rows(a) * scan_spans(a) * a->size * a->channels;
	r.rows = r.groups + scan_groups(a, gpu) * a->n * 2 * a->size;
	r.elems = r.rows + scan_rows(a) * (a->size + 2) * a->channels;
	return r;
}

/* clang-format off */
#define scan_arrays(A) \
	A(elem, x, a->n * a->channels, 0) \
	A(elem, step, a->n * a->channels, 0) \
	A(elem, b, (a->n - 1) * a->ld + a->size, 0) \
	A(elem, c, (a->n - 1) * a->ld + a->size, 0) \
	A(weight, a_log, a->channels * a->size, 0) \
	A(weight, dt_bias, a->channels, 0) \
	A(weight, skip, a->channels, 0) \
	A(elem, y, a->n * a->channels, code == OP_SCAN_FORWARD) \
	A(elem, dy, a->n * a->channels, 0) \
	A(elem, dx, a->n * a->channels, code == OP_SCAN_BACKWARD) \
	A(elem, dstep, a->n * a->channels, code == OP_SCAN_BACKWARD) \
	A(elem, db, (a->n - 1) * a->d_ld + a->size, code == OP_SCAN_BACKWARD && a->d_ld == a->size) \
	A(elem, dc, (a->n - 1) * a->d_ld + a->size, code == OP_SCAN_BACKWARD && a->d_ld == a->size) \
	A(4, da_log, a->channels * a->size, code == OP_SCAN_BACKWARD && a->beta == 0) \
	A(4, ddt_bias, a->channels, code == OP_SCAN_BACKWARD && a->beta == 0) \
	A(4, dskip, a->channels, code == OP_SCAN_BACKWARD && a->beta == 0) \
	A(4, work, scan_room_of(a, 0).elems, code == OP_SCAN_BACKWARD)
/* clang-format on */

#endif
