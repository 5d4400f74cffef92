/* host.c: registered ranges, bounce buffers
 *
 * A copy through bounce buffers, on the stream and on another one beside it (k: a buffer):
 *
 * in aside host → k ┐ host → k + 1 ┐ out stream device → k ┐ device → k + 1 ...
 *             stream            └ k → device             └ k + 1 → ...           aside              └ k → host
 *
 * `host →` is a function that the driver calls when the stream has reached it. An event tells when a buffer is empty
 * and may be filled again. What is launched on the stream after a copy out runs when the whole copy has arrived.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "ops/common.h"
#include "pool.h"

#ifndef BUFFER_BYTES /* smaller for the emulated GPU */
#define BUFFER_BYTES (8u << 20)
#define TASK_BYTES (512u << 10) /* what a thread of the pool takes at a time */
#endif

/* ---- registered ranges ---- */

bool ranges_open(struct ranges *r, unsigned room)
{
	r->v = calloc(room, sizeof *r->v);
	r->room = room;
	atomic_init(&r->n, 0);
	return r->v != NULL;
}

cudaError_t ranges_add(struct ranges *r, const void *p, size_t bytes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p & ~(page - 1);
	uintptr_t end = ((uintptr_t)p + bytes + page - 1) & ~(page - 1);
	unsigned n = atomic_load_explicit(&r->n, memory_order_relaxed);
	/* small arrays may share a page; a page can be registered only once */
	for (unsigned i = 0; i < n; i++) {
		uintptr_t base = (uintptr_t)r->v[i].base, over = base + r->v[i].bytes;
		if (from >= base && from < over) from = over;
		if (end > base && end <= over) end = base;
	}
	if (from >= end) return cudaSuccess;
	if (n == r->room) return cudaErrorMemoryAllocation;
	cudaError_t e = cudaHostRegister((void *)from, end - from, cudaHostRegisterMapped);
	if (e != cudaSuccess) {
		cudaGetLastError(); /* clear the runtime's error: the caller can go on without the registration */
		return e;
	}
	r->v[n] = (struct registered_range){(char *)from, end - from};
	atomic_store_explicit(&r->n, n + 1, memory_order_release);
	return cudaSuccess;
}

size_t ranges_alike(const struct ranges *r, const void *p, size_t bytes, bool *inside)
{
	unsigned n = atomic_load_explicit(&r->n, memory_order_acquire);
	uintptr_t at = (uintptr_t)p, next = at + bytes;
	for (unsigned i = 0; i < n; i++) {
		uintptr_t base = (uintptr_t)r->v[i].base, over = base + r->v[i].bytes;
		if (at >= base && at < over) {
			*inside = true;
			return over < at + bytes ? over - at : bytes;
		}
		next = base > at && base < next ? base : next;
	}
	*inside = false;
	return next - at;
}

void ranges_close(struct ranges *r)
{
	for (unsigned i = 0; r->v && i < atomic_load(&r->n); i++) cudaHostUnregister(r->v[i].base);
	free(r->v);
}

/* ---- bounce buffers ---- */

static void staged_task(void *arg, int64_t task, int thread)
{
	const struct staged_copy *c = arg;
	size_t at = (size_t)task * TASK_BYTES;
	(void)thread;
	memcpy((char *)c->to + at, (const char *)c->from + at, c->bytes - at < TASK_BYTES ? c->bytes - at : TASK_BYTES);
}

/* The driver may call for several streams at once, but the pool takes one at a time */
static void CUDART_CB staged_run(void *arg)
{
	static pthread_mutex_t taken = PTHREAD_MUTEX_INITIALIZER;
	struct staged_copy *c = arg;
	if (!c->pool || c->bytes <= TASK_BYTES) {
		memcpy(c->to, c->from, c->bytes);
		return;
	}
	pthread_mutex_lock(&taken);
	pool_run(c->pool, (int64_t)((c->bytes + TASK_BYTES - 1) / TASK_BYTES), staged_task, c);
	pthread_mutex_unlock(&taken);
}

cudaError_t bounce_open(struct bounce *b, cudaStream_t stream, struct pool *pool)
{
	const unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync;
	cudaError_t e;
	b->stream = stream;
	if ((e = cudaStreamCreateWithFlags(&b->aside, cudaStreamNonBlocking)) ||
		(e = cudaEventCreateWithFlags(&b->before, flags)))
		return e;
	for (int i = 0; i < BOUNCES; i++)
		if ((e = cudaHostAlloc((void **)&b->mem[i], BUFFER_BYTES, cudaHostAllocDefault))) return e;
	for (int i = 0; i < STAGED; i++) {
		b->staged[i].pool = pool;
		if ((e = cudaEventCreateWithFlags(&b->staged[i].full, flags)) ||
			(e = cudaEventCreateWithFlags(&b->staged[i].empty, flags)))
			return e;
	}
	return cudaSuccess;
}

/* The next staged copy; waits until one is free. The stream that fills its buffer waits until the buffer is empty. */
static cudaError_t staged_next(struct bounce *b, cudaStream_t filler, struct staged_copy **c, char **mem)
{
	uint64_t k = b->n++;
	cudaError_t e = cudaSuccess;
	*c = &b->staged[k % STAGED];
	*mem = b->mem[k % BOUNCES];
	if (k >= STAGED) e = cudaEventSynchronize((*c)->empty);
	if (!e && k >= BOUNCES) e = cudaStreamWaitEvent(filler, b->staged[(k - BOUNCES) % STAGED].empty, 0);
	return e;
}

/* The host's half of a staged copy: to = from, on stream `aside` */
static cudaError_t staged_launch(struct bounce *b, struct staged_copy *c, void *to, const void *from, size_t bytes)
{
	c->to = to;
	c->from = from;
	c->bytes = bytes;
	return cudaLaunchHostFunc(b->aside, staged_run, c);
}

/* Stream `after` waits for all that is on stream `first` now */
static cudaError_t join(cudaStream_t first, cudaEvent_t at, cudaStream_t after)
{
	cudaError_t e = cudaEventRecord(at, first);
	return e ? e : cudaStreamWaitEvent(after, at, 0);
}

cudaError_t bounce_in(struct bounce *b, void *device, const void *host, size_t bytes)
{
	/* the host's memory may be written by what is on the stream already */
	cudaError_t e = join(b->stream, b->before, b->aside);
	struct staged_copy *c;
	char *mem;
	for (size_t at = 0, n; !e && at < bytes; at += n) {
		n = bytes - at < BUFFER_BYTES ? bytes - at : BUFFER_BYTES;
		if ((e = staged_next(b, b->aside, &c, &mem)) || (e = staged_launch(b, c, mem, (const char *)host + at, n)) ||
			(e = join(b->aside, c->full, b->stream)) ||
			(e = cudaMemcpyAsync((char *)device + at, mem, n, cudaMemcpyHostToDevice, b->stream)))
			break;
		e = cudaEventRecord(c->empty, b->stream);
	}
	return e;
}

cudaError_t bounce_out(struct bounce *b, void *host, const void *device, size_t bytes)
{
	cudaError_t e = cudaSuccess;
	struct staged_copy *c = NULL;
	char *mem;
	for (size_t at = 0, n; !e && at < bytes; at += n) {
		n = bytes - at < BUFFER_BYTES ? bytes - at : BUFFER_BYTES;
		if ((e = staged_next(b, b->stream, &c, &mem)) ||
			(e = cudaMemcpyAsync(mem, (const char *)device + at, n, cudaMemcpyDeviceToHost, b->stream)) ||
			(e = join(b->stream, c->full, b->aside)) || (e = staged_launch(b, c, (char *)host + at, mem, n)))
			break;
		e = cudaEventRecord(c->empty, b->aside);
	}
	return e || !c ? e : cudaStreamWaitEvent(b->stream, c->empty, 0);
}

void bounce_close(struct bounce *b)
{
	for (int i = 0; i < STAGED; i++) {
		if (b->staged[i].full) cudaEventDestroy(b->staged[i].full);
		if (b->staged[i].empty) cudaEventDestroy(b->staged[i].empty);
	}
	for (int i = 0; i < BOUNCES; i++)
		if (b->mem[i]) cudaFreeHost(b->mem[i]);
	if (b->before) cudaEventDestroy(b->before);
	if (b->aside) cudaStreamDestroy(b->aside);
}
