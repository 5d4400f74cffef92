/* misc.c: copies and conversions of long arrays, split into tasks */
#include "cpu.h"
#include "device/device.h"

#include <string.h>

enum { GRAIN = 65536 }; /* elements of a task */
enum { GRAIN_BYTES = 262144 };

struct sweep {
	void *dst;
	const void *src;
};

static void widen_task(const void *args, int64_t first, int64_t end)
{
	const struct sweep *s = args;
	cpu_kernels()->widen((float *)s->dst + first, (const uint16_t *)s->src + first, end - first);
}

void op_widen(struct pool *pool, float *dst, const uint16_t *src, int64_t n)
{
	run_tasks(pool, n, GRAIN, widen_task, &(struct sweep){dst, src});
}

static void join_task(const void *args, int64_t first, int64_t end)
{
	const struct join_args *a = args;
	for (int64_t i = first; i < end; i++) {
		uint32_t hi = a->bf16 ? (uint32_t)((const uint16_t *)a->w)[i] << 16 : ((const uint32_t *)a->w)[i];
		((uint32_t *)a->dst)[i] = hi + (uint32_t)(int32_t)a->lo[i];
	}
}

void op_join(struct pool *pool, const struct join_args *a) { run_tasks(pool, a->n, GRAIN, join_task, a); }

void narrow_rows(uint16_t *as, const void *y, int64_t width, int64_t first, int64_t end)
{
	if (as) cpu_kernels()->narrow(as + first * width, (const float *)y + first * width, (end - first) * width);
}

static void narrow_task(const void *args, int64_t first, int64_t end)
{
	const struct sweep *s = args;
	narrow_rows(s->dst, s->src, 1, first, end);
}

void op_narrow(struct pool *pool, uint16_t *dst, const float *src, int64_t n)
{
	run_tasks(pool, n, GRAIN, narrow_task, &(struct sweep){dst, src});
}

bool cpu_fuse(struct op *o, const struct op *next)
{
	const void *written = NULL;
	int64_t n = 0;
	uint16_t **as = NULL;
	switch (o->code) {
	case OP_NORM_FORWARD:
		written = o->norm_forward.y, n = o->norm_forward.n * o->norm_forward.h, as = &o->norm_forward.as;
		break;
	case OP_ACTIVATION_FORWARD:
		written = o->activation.y, n = o->activation.n * o->activation.f, as = &o->activation.as;
		break;
	case OP_ACTIVATION_BACKWARD:
		written = o->activation.dgu, n = o->activation.n * activation_width(&o->activation), as = &o->activation.as;
		break;
	case OP_CROSS_ENTROPY:
		written = o->cross_entropy.logits, n = o->cross_entropy.n * o->cross_entropy.vocab, as = &o->cross_entropy.as;
		break;
	default: break;
	}
	if (!as || next->code != OP_NARROW || next->narrow.src != written || next->narrow.n != n) return false;
	*as = next->narrow.dst;
	return true;
}

static void copy_task(const void *args, int64_t first, int64_t end)
{
	const struct sweep *s = args;
	memcpy((char *)s->dst + first, (const char *)s->src + first, (size_t)(end - first));
}

void op_copy(struct pool *pool, void *dst, const void *src, size_t bytes)
{
	run_tasks(pool, (int64_t)bytes, GRAIN_BYTES, copy_task, &(struct sweep){dst, src});
}

static void zero_task(const void *args, int64_t first, int64_t end)
{
	const struct sweep *s = args;
	memset((char *)s->dst + first, 0, (size_t)(end - first));
}

void op_zero(struct pool *pool, void *dst, size_t bytes)
{
	run_tasks(pool, (int64_t)bytes, GRAIN_BYTES, zero_task, &(struct sweep){.dst = dst});
}
