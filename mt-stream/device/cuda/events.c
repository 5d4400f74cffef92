/* events.c: queues are CUDA streams; a queue's events are CUDA events used in turn; errors; times for a trace.
 *
 * The first error is kept. From then on nothing is launched, and waiting fails with that error: the call, its error and
 * what mt-stream was doing, with the unit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cuda.h"
#include "mt/error.h"
#include "mt/stage.h"

/* ---- errors ---- */

void error_keep(struct cuda *c, int ex, const char *why)
{
	char activity[128] = "";
	if (c->ex) return;
	c->ex = ex;
	if (c->run) mt_stage_describe(c->run, c->slot, activity, sizeof activity);
	snprintf(c->why, sizeof c->why, "%s%s%s", why, *activity ? "; mt-stream " : "", activity);
}

bool cuda_ok(struct cuda *c, cudaError_t e, const char *call)
{
	char why[256];
	if (e == cudaSuccess) return true;
	bool memory = e == cudaErrorMemoryAllocation;
	snprintf(why, sizeof why, "cuda:%d: %s: %s (%s)%s", c->ordinal, call, cudaGetErrorName(e), cudaGetErrorString(e),
		memory ? "" : "; dmesg has an Xid if the GPU is at fault");
	error_keep(c, memory ? MT_EX_NOMEM : MT_EX_IO, why);
	return false;
}

/* ---- events ---- */

static void event_sync(struct cuda *c, struct cuda_stream *s, uint64_t at)
{
	if (s->over >= at) return;
	if (cuda_ok(c, cudaEventSynchronize(s->events[at % EVENTS]), "cudaEventSynchronize")) s->over = at;
}

struct event cuda_record(struct device *d, enum queue queue)
{
	struct cuda *c = (struct cuda *)d;
	struct cuda_stream *s = &c->q[queue];
	if (c->ex || c->autotuning) return (struct event){queue, 0};
	uint64_t at = ++s->recorded;
	if (at > EVENTS) event_sync(c, s, at - EVENTS);
	cuda_ok(c, cudaEventRecord(s->events[at % EVENTS], s->stream), "cudaEventRecord");
	return (struct event){queue, at};
}

void cuda_wait(struct device *d, enum queue queue, struct event e)
{
	struct cuda *c = (struct cuda *)d;
	struct cuda_stream *from = &c->q[e.queue];
	/* if the CUDA event was used again since, the event has completed */
	if (c->ex || c->autotuning || e.queue == queue || from->over >= e.at) return;
	cuda_ok(c, cudaStreamWaitEvent(c->q[queue].stream, from->events[e.at % EVENTS], 0), "cudaStreamWaitEvent");
}

bool cuda_query(struct device *d, struct event e)
{
	struct cuda *c = (struct cuda *)d;
	struct cuda_stream *s = &c->q[e.queue];
	if (c->ex || s->over >= e.at) return true;
	cudaError_t x = cudaEventQuery(s->events[e.at % EVENTS]);
	if (x == cudaErrorNotReady) {
		cudaGetLastError(); /* the runtime notes it as an error, but it is none */
		return false;
	}
	if (cuda_ok(c, x, "cudaEventQuery")) s->over = e.at;
	return true;
}

int cuda_sync(struct device *d, struct event e)
{
	struct cuda *c = (struct cuda *)d;
	if (!c->ex) event_sync(c, &c->q[e.queue], e.at);
	return c->ex ? mt_fail(c->ex, "%s", c->why) : 0;
}

/* ---- times, for a trace ---- */

/* *at becomes the time at which the stream gets here; cuda_times stores it */
void timestamp_record(struct cuda *c, struct cuda_stream *s, double *at)
{
	if (c->timestamps_n == c->timestamps_room) {
		size_t more = c->timestamps_room ? 2 * c->timestamps_room : 1024;
		struct timestamp *t = realloc(c->timestamps, more * sizeof *t);
		if (!t) return;
		memset(t + c->timestamps_room, 0, (more - c->timestamps_room) * sizeof *t);
		c->timestamps = t;
		c->timestamps_room = more;
	}
	struct timestamp *t = &c->timestamps[c->timestamps_n];
	if (!t->event && !cuda_ok(c, cudaEventCreateWithFlags(&t->event, 0), "cudaEventCreate")) return;
	if (!c->timestamps_n++) /* the first of a micro-batch: the stream is idle and gets here now */
		c->timestamps_from = mt_now();
	t->at = at;
	cuda_ok(c, cudaEventRecord(t->event, s->stream), "cudaEventRecord");
}

void cuda_times(struct device *d)
{
	struct cuda *c = (struct cuda *)d;
	float ms;
	for (size_t i = 0; i < c->timestamps_n && !c->ex; i++)
		if (cuda_ok(c, cudaEventElapsedTime(&ms, c->timestamps[0].event, c->timestamps[i].event),
				"cudaEventElapsedTime"))
			*c->timestamps[i].at = c->timestamps_from + (double)ms / 1e3;
	c->timestamps_n = 0;
}

/* ---- opening and closing ---- */

bool stream_open(struct cuda *c, struct cuda_stream *s)
{
	if (!cuda_ok(c, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "cudaStreamCreate")) return false;
	for (int i = 0; i < EVENTS; i++)
		if (!cuda_ok(c, cudaEventCreateWithFlags(&s->events[i], cudaEventDisableTiming | cudaEventBlockingSync),
				"cudaEventCreate"))
			return false;
	return c->gpu.host_tables || cuda_ok(c, bounce_open(&s->bounce, s->stream, c->copiers), "bounce buffers");
}

void stream_close(struct cuda_stream *s)
{
	for (int i = 0; i < EVENTS; i++)
		if (s->events[i]) cudaEventDestroy(s->events[i]);
	bounce_close(&s->bounce);
	if (s->stream) cudaStreamDestroy(s->stream);
}
