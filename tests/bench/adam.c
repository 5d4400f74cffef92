/* adam.c: bytes a second of the update, and of a loop that only reads and writes the same arrays, as JSON lines.
 * usage: adam [MILLIONS OF PARAMETERS] (default 32)
 * One thread. A parameter of a bf16 run reads 16 bytes and writes 12. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../mt-optim/adamw.h"

enum { ROUNDS = 7 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *array(uint64_t bytes)
{
	void *p = aligned_alloc(1 << 21, (bytes + (1 << 21) - 1) >> 21 << 21);
	if (!p) exit(71);
	memset(p, 0, bytes);
	return p;
}

/* Reads and writes the update's arrays, with almost no computation. */
static void touch(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	(void)a, (void)partition, (void)tag;
	uint16_t *w = t->w;
	int16_t *lo = t->lo;
	const float *g = t->g[0];
	float *m = t->m, *v = t->v;
	for (uint64_t k = first; k < end; k++)
		for (uint64_t i = k * MT_GROUP; i < (k + 1) * MT_GROUP; i++) {
			w[i] = (uint16_t)(w[i] + 1);
			lo[i] = (int16_t)(lo[i] + 1);
			m[i] = m[i] * decay + g[i];
			v[i] = v[i] * decay + g[i];
		}
}

static void measure(const char *name, adamw_fn *fn, const struct tile *t, uint64_t n)
{
	static struct mt_partition partition;
	struct adamw a = adamw_scalars(10, 1e-3, 0.9, 0.999, 1e-8, 0.1, 1);
	double best = 1e9, bytes = 12 + 4.0 * (double)mt_state_bytes(t->state, MT_GROUP) / MT_GROUP;
	for (int r = 0; r < ROUNDS; r++) {
		double start = now();
		fn(&a, t, &partition, partition_tag(1, 0), 0, n / MT_GROUP, 0.999f);
		double took = now() - start;
		if (took < best) best = took;
	}
	printf("{\"bench\":\"adam\",\"loop\":\"%s\",\"params\":%llu,\"gb_per_s\":%.2f,\"gparams_per_s\":%.3f}\n", name,
		(unsigned long long)n, (double)n * bytes * 1e-9 / best, (double)n * 1e-9 / best);
}

static void measure_all(struct tile *t, enum mt_dtype state, uint64_t n)
{
	static const char *const names[][3] = {[MT_FP32] = {"scalar", "avx2", "avx512"},
		[MT_BF16] = {"scalar, state bf16", "avx2, state bf16", "avx512, state bf16"},
		[MT_INT8] = {"scalar, state int8", "avx2, state int8", "avx512, state int8"}};
	memset(t->m, 0, mt_state_bytes(state, n));
	memset(t->v, 0, mt_state_bytes(state, n));
	t->state = state;
	t->m_scale = int8_scales(t->m, n);
	t->v_scale = int8_scales(t->v, n);
	measure(names[state][0], adamw_scalar, t, n);
	if (__builtin_cpu_supports("avx2")) measure(names[state][1], adamw_avx2, t, n);
	if (__builtin_cpu_supports("avx512f")) measure(names[state][2], adamw_avx512, t, n);
}

int main(int argc, char **argv)
{
	uint64_t n = (argc > 1 ? strtoull(argv[1], NULL, 10) : 32) << 20;
	if (!n) return 64;
	flush_denormals();
	struct tile t = {.w = array(n * 2),
		.lo = array(n * 2),
		.m = array(n * 4),
		.v = array(n * 4),
		.state = MT_FP32,
		.g = {array(n * 4), NULL}};
	for (uint64_t i = 0; i < n; i++) {
		((float *)(uintptr_t)t.g[0])[i] = (float)(i * 2654435761u % 1000) * 1e-5f;
		((uint16_t *)t.w)[i] = mt_hi(mt_bits(0.01f));
	}
	measure("reads and writes alone", touch, &t, n);
	measure_all(&t, MT_FP32, n);
	measure_all(&t, MT_BF16, n);
	measure_all(&t, MT_INT8, n);
	return 0;
}
