/* trace.h: --trace: the times of every operation of a micro-batch, by queue. */
#ifndef MT_STREAM_TRACE_H
#define MT_STREAM_TRACE_H

#include "device/device.h"

struct span { /* an operation; the device enters its times, in seconds of mt_now() */
	double from, to;
	const char *what; /* "forward", ... */
	uint32_t unit;
	enum queue queue;
	enum op_code op;
	int64_t size[3]; /* a GEMM's m, n, k; else bytes or elements copied, 0, 0 */
};

struct trace;

/* only: trace this step alone; 0: all. NULL: mt_errmsg() says why */
struct trace *trace_open(const char *path, uint64_t only);
void trace_close(struct trace *);

/* All of these do nothing if the trace is NULL. */
/* What is launched on that queue from here on belongs to that unit */
void trace_at(struct trace *, enum queue, uint32_t unit, const char *what);
/* The operation's span, in which the device enters its times; NULL: it is not traced, or no memory */
struct span *trace_span(struct trace *, enum queue, const struct op *);
/* The host waited for another stage */
void trace_wait(struct trace *, bool room, uint32_t unit, double from, double to);
/* A micro-batch begins; it has ended, with all queues at rest: write it, and if it is `whole` report it in a line */
void trace_begin(struct trace *, uint64_t step, uint32_t micro, uint64_t tokens);
void trace_end(struct trace *, bool whole);

#endif
