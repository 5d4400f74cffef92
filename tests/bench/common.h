/* common.h: time and memory for the programs of tests/bench */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* By CLOCK_THREAD_CPUTIME_ID: of this thread alone, without the time of others on its core */
static inline double now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void *array(size_t bytes)
{
	void *p = aligned_alloc(1 << 21, (bytes + (1 << 21) - 1) >> 21 << 21);
	if (!p) exit(71);
	memset(p, 0, bytes);
	return p;
}

#endif
