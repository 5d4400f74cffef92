/* events.c: queues are streams, events are CUDA events of a ring; errors; times for a trace.
 *
 * The first error is kept: from then on nothing is launched, and whoever waits gets the call, the error and the unit.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cuda.h"

/* ---- errors ---- */

void failed(struct cuda *c, int ex, const char *why)
{
	char activity[128] = "";

	if (c->ex) return;
	c->ex = ex;
	if (c->run) mt_stage_describe(c->run, c->slot, activity, sizeof activity);
	snprintf(c->why, sizeof c->why, "%s%s%s", why, *activity ? "; mt-stream " : "", activity);
}

bool good(struct cuda *c, cudaError_t e, const char *call)
{
	char why[256];

	if (e == cudaSuccess) return true;
	snprintf(why, sizeof why, "cuda: %s: %s (%s)", call, cudaGetErrorName(e), cudaGetErrorString(e));
	failed(c, e == cudaErrorMemoryAllocation ? MT_EX_NOMEM : MT_EX_IO, why);
	return false;
}

/* ---- events ---- */

struct cuda_stream *stream_of(struct cuda *c, enum queue q) { return &c->q[q]; }

static void reach(struct cuda *c, struct cuda_stream *l, uint64_t at)
{
	if (l->over >= at) return;
	if (good(c, cudaEventSynchronize(l->events[at % EVENTS]), "cudaEventSynchronize")) l->over = at;
}

static bool reached(struct cuda *c, struct cuda_stream *l, uint64_t at)
{
	if (l->over >= at) return true;
	cudaError_t e = cudaEventQuery(l->events[at % EVENTS]);
	if (e == cudaErrorNotReady) {
		cudaGetLastError(); /* it is noted like an error, and is none */
		return false;
	}
	if (good(c, e, "cudaEventQuery")) l->over = at;
	return true;
}

static uint64_t mark(struct cuda *c, struct cuda_stream *l)
{
	uint64_t at = ++l->recorded;

	if (at > EVENTS) reach(c, l, at - EVENTS);
	good(c, cudaEventRecord(l->events[at % EVENTS], l->stream), "cudaEventRecord");
	return at;
}

struct event cuda_record(struct device *d, enum queue queue)
{
	struct cuda *c = (struct cuda *)d;

	return (struct event){queue, c->ex || c->autotuning ? 0 : mark(c, stream_of(c, queue))};
}

void cuda_wait(struct device *d, enum queue queue, struct event e)
{
	struct cuda *c = (struct cuda *)d;
	struct cuda_stream *from = stream_of(c, e.queue);

	/* an event whose place in the ring was taken is over */
	if (c->ex || c->autotuning || e.queue == queue || from->over >= e.at) return;
	good(c, cudaStreamWaitEvent(stream_of(c, queue)->stream, from->events[e.at % EVENTS], 0), "cudaStreamWaitEvent");
}

bool cuda_query(struct device *d, struct event e)
{
	struct cuda *c = (struct cuda *)d;

	return c->ex || reached(c, stream_of(c, e.queue), e.at);
}

int cuda_sync(struct device *d, struct event e)
{
	struct cuda *c = (struct cuda *)d;

	if (!c->ex) reach(c, stream_of(c, e.queue), e.at);
	return c->ex ? mt_fail(c->ex, "%s", c->why) : 0;
}

/* ---- times, for a trace ---- */

/* The time at which the stream gets here goes to *at */
void stamp(struct cuda *c, struct cuda_stream *l, double *at)
{
	if (c->stamps_n == c->stamps_room) {
		size_t more = c->stamps_room ? 2 * c->stamps_room : 1024;
		struct stamp *s = realloc(c->stamps, more * sizeof *s);

		if (!s) return;
		memset(s + c->stamps_room, 0, (more - c->stamps_room) * sizeof *s);
		c->stamps = s;
		c->stamps_room = more;
	}
	struct stamp *s = &c->stamps[c->stamps_n];
	if (!s->event && !good(c, cudaEventCreateWithFlags(&s->event, 0), "cudaEventCreate")) return;
	if (!c->stamps_n++) /* nothing is under way: the stream gets here now */
		c->stamps_from = mt_now();
	s->at = at;
	good(c, cudaEventRecord(s->event, l->stream), "cudaEventRecord");
}

void cuda_times(struct device *d)
{
	struct cuda *c = (struct cuda *)d;
	float ms;

	for (size_t i = 0; i < c->stamps_n && !c->ex; i++)
		if (good(c, cudaEventElapsedTime(&ms, c->stamps[0].event, c->stamps[i].event), "cudaEventElapsedTime"))
			*c->stamps[i].at = c->stamps_from + (double)ms / 1e3;
	c->stamps_n = 0;
}

/* ---- opening and closing ---- */

bool stream_open(struct cuda *c, struct cuda_stream *l)
{
	if (!good(c, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "cudaStreamCreate")) return false;
	for (int i = 0; i < EVENTS; i++)
		if (!good(c, cudaEventCreateWithFlags(&l->events[i], cudaEventDisableTiming | cudaEventBlockingSync),
				"cudaEventCreate"))
			return false;
	return good(c, bounce_open(&l->bounce, l->stream, c->copiers), "bounce buffers");
}

void stream_close(struct cuda_stream *l)
{
	for (int i = 0; i < EVENTS; i++)
		if (l->events[i]) cudaEventDestroy(l->events[i]);
	bounce_close(&l->bounce);
	if (l->stream) cudaStreamDestroy(l->stream);
}
