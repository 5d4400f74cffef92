/* host.h: copies between host and GPU: host memory registered with the driver, bounce buffers for other memory */
#ifndef MT_STREAM_CUDA_HOST_H
#define MT_STREAM_CUDA_HOST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "kernels.h"

/* Registered ranges, each by a separate call: one copy may not span two of them. One thread adds ranges while others
 * look them up. */
struct ranges {
	struct registered_range {
		char *base;
		size_t bytes;
	} * v;
	unsigned room;
	atomic_uint n; /* ranges in v; stored with release */
};

/* room: ranges at most. false: no memory */
bool ranges_open(struct ranges *, unsigned room);
/* Register the pages that hold [p, p + bytes), except pages of ranges registered earlier. After an error nothing is
 * added. */
cudaError_t ranges_add(struct ranges *, const void *p, size_t bytes);
void ranges_close(struct ranges *); /* and takes them back from the driver */
/* How many bytes from p on, `bytes` at most, are all in one range (*inside) or all in none */
size_t ranges_alike(const struct ranges *, const void *p, size_t bytes, bool *inside);

#define BOUNCES 4 /* buffers, used in turn */
#define STAGED 64 /* staged copies that may wait to run */

/* Copies on one stream, from and to host memory that is not registered. The host's half runs in the stream's order, on
 * a thread of the driver and those of a pool. The caller does not wait for it, unless STAGED copies are waiting. */
struct bounce {
	cudaStream_t stream, aside; /* aside: runs the host's halves */
	char *mem[BOUNCES];         /* pinned */
	struct staged_copy {
		void *to;
		const void *from;
		size_t bytes;
		struct pool *pool;
		cudaEvent_t full, empty; /* when its buffer is full, empty */
	} staged[STAGED];
	uint64_t n;         /* copies so far: number k is staged[k mod STAGED], through buffer k mod BOUNCES */
	cudaEvent_t before; /* all that was on the stream when a copy began */
};

/* pool: threads to copy with, used for one staged copy at a time; NULL: one thread */
cudaError_t bounce_open(struct bounce *, cudaStream_t, struct pool *);
cudaError_t bounce_in(struct bounce *, void *device, const void *host, size_t bytes);
cudaError_t bounce_out(struct bounce *, void *host, const void *device, size_t bytes);
void bounce_close(struct bounce *); /* the device must be at rest */

#endif
