/* host.h: host memory as a GPU's copies see it: what is registered with the driver, and bounce buffers for the rest */
#ifndef MT_STREAM_CUDA_HOST_H
#define MT_STREAM_CUDA_HOST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels.h"

/* Ranges that are registered, each by a call of its own: a copy may not cross from one into another. One thread adds to
 * them, others may look meanwhile. */
struct ranges {
	struct range {
		char *base;
		size_t bytes;
	} * v;
	unsigned room;
	atomic_uint n; /* release: so many are there */
};

/* room: ranges at most. false: no memory */
bool ranges_open(struct ranges *, unsigned room);
/* Register the pages that hold [p, p + bytes), but those of the range before it. What a refusal leaves is not
 * registered. */
cudaError_t ranges_add(struct ranges *, const void *p, size_t bytes);
void ranges_close(struct ranges *); /* and takes them back from the driver */
/* How many bytes from p on, `bytes` at most, are alike: all in one range (*inside), or all in none */
size_t ranges_alike(const struct ranges *, const void *p, size_t bytes, bool *inside);

#define BOUNCES 4 /* buffers, used in turn */
#define STAGED 64 /* copies of the host that may wait to run */

/* Copies on one stream, from and to host memory that is not registered. The host's part runs in the stream's order on a
 * thread of the driver and those of a pool: who launches waits for none of it, unless STAGED of them are waiting. */
struct bounce {
	cudaStream_t stream, aside; /* aside: where the host's parts are */
	char *mem[BOUNCES];         /* pinned */
	struct staged_copy {
		void *to;
		const void *from;
		size_t bytes;
		struct pool *pool;
		cudaEvent_t full, empty; /* its buffer is */
	} staged[STAGED];
	uint64_t n;         /* staged so far: number k in k mod STAGED, through buffer k mod BOUNCES */
	cudaEvent_t before; /* what was on the stream when a copy began */
};

/* pool: threads to copy with, of which bounce takes one operation at a time; NULL: one */
cudaError_t bounce_open(struct bounce *, cudaStream_t, struct pool *);
cudaError_t bounce_in(struct bounce *, void *device, const void *host, size_t bytes);
cudaError_t bounce_out(struct bounce *, void *host, const void *device, size_t bytes);
void bounce_close(struct bounce *); /* the device must be at rest */

#endif
