/* trace.h: what every operation of a micro-batch took, queue by queue, for --trace. */
#ifndef MT_STREAM_TRACE_H
#define MT_STREAM_TRACE_H

#include "device.h"

struct span { /* an operation; the device enters its times, in seconds of mt_now() */
	double from, to;
	const char *what; /* "forward", ... */
	uint32_t unit;
	enum queue queue;
	enum op_code op;
	int64_t size[3]; /* a product's m, n, k; else bytes or elements moved, 0, 0 */
};

struct trace;

/* only: the only step that is wanted, 0: all. NULL: mt_errmsg() says why */
struct trace *trace_open(const char *path, uint64_t only);
void trace_close(struct trace *);

/* All of these take NULL for "nobody wants to know". */
/* What is launched on that queue from here on is for that unit */
void trace_at(struct trace *, enum queue, uint32_t unit, const char *what);
/* The operation's span, whose times the device enters; NULL: none wanted, or no memory */
struct span *trace_span(struct trace *, enum queue, const struct op *);
/* The host waited for another stage */
void trace_wait(struct trace *, bool room, uint32_t unit, double from, double to);
/* A micro-batch begins; has ended, queues at rest: it is written, and a line said about it if it is `whole` */
void trace_begin(struct trace *, uint64_t step, uint32_t micro, uint64_t tokens);
void trace_end(struct trace *, bool whole);

#endif
