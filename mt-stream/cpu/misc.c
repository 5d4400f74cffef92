/* misc.c: copies and conversions of long arrays, cut into pieces */
#include "cpu.h"

#include <string.h>

enum { PIECE = 65536 }; /* elements of a task */
enum { PIECE_BYTES = 262144 };

struct sweep {
	void *dst;
	const void *src;
	int64_t n;
};

static void widen_task(void *arg, int64_t task, int thread)
{
	const struct sweep *s = arg;
	int64_t at = task * PIECE;
	(void)thread;
	cpu_kernels()->widen((float *)s->dst + at, (const uint16_t *)s->src + at, least(PIECE, s->n - at));
}

void op_widen(struct pool *pool, float *dst, const uint16_t *src, int64_t n)
{
	struct sweep s = {.dst = dst, .src = src, .n = n};
	pool_run(pool, div_up(n, PIECE), widen_task, &s);
}

static void join_task(void *arg, int64_t task, int thread)
{
	const struct join_args *a = arg;
	(void)thread;
	for (int64_t i = task * PIECE; i < least((task + 1) * PIECE, a->n); i++) {
		uint32_t hi = a->bf16 ? (uint32_t)((const uint16_t *)a->w)[i] << 16 : ((const uint32_t *)a->w)[i];
		((uint32_t *)a->dst)[i] = hi + (uint32_t)(int32_t)a->lo[i];
	}
}

void op_join(struct pool *pool, const struct join_args *a)
{
	pool_run(pool, div_up(a->n, PIECE), join_task, (void *)a);
}

static void narrow_task(void *arg, int64_t task, int thread)
{
	const struct sweep *s = arg;
	int64_t at = task * PIECE;
	(void)thread;
	cpu_kernels()->narrow((uint16_t *)s->dst + at, (const float *)s->src + at, least(PIECE, s->n - at));
}

void op_narrow(struct pool *pool, uint16_t *dst, const float *src, int64_t n)
{
	struct sweep s = {.dst = dst, .src = src, .n = n};
	pool_run(pool, div_up(n, PIECE), narrow_task, &s);
}

static void copy_task(void *arg, int64_t task, int thread)
{
	const struct sweep *s = arg;
	int64_t at = task * PIECE_BYTES;
	(void)thread;
	memcpy((char *)s->dst + at, (const char *)s->src + at, (size_t)least(PIECE_BYTES, s->n - at));
}

void op_copy(struct pool *pool, void *dst, const void *src, size_t bytes)
{
	struct sweep s = {.dst = dst, .src = src, .n = (int64_t)bytes};
	pool_run(pool, div_up(s.n, PIECE_BYTES), copy_task, &s);
}

static void zero_task(void *arg, int64_t task, int thread)
{
	const struct sweep *s = arg;
	int64_t at = task * PIECE_BYTES;
	(void)thread;
	memset((char *)s->dst + at, 0, (size_t)least(PIECE_BYTES, s->n - at));
}

void op_zero(struct pool *pool, void *dst, size_t bytes)
{
	struct sweep s = {.dst = dst, .n = (int64_t)bytes};
	pool_run(pool, div_up(s.n, PIECE_BYTES), zero_task, &s);
}
