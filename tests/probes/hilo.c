/* hilo.c: tests the two halves of an fp32 master weight for all 2^32 patterns: joined they give the pattern, and the
 * high half is the nearest bf16 (ties away from zero), judged by the distance to its neighbours, not by the formula. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "mt/layout.h"

enum { THREADS = 16 };

/* All patterns with this high half: the arithmetic, in a form that a compiler turns into vectors. */
static uint32_t joins(uint32_t high)
{
	uint32_t wrong = 0;
	for (uint32_t low = 0; low < 65536; low++) {
		uint32_t bits = high << 16 | low;
		wrong += mt_join(mt_hi(bits), mt_lo(bits)) != bits;
	}
	return wrong;
}

/* The same for nearness: between the bf16 below (high) and above (high + 1) the distance of x = low / 65536 of the way
 * decides; magnitudes of one sign are ordered as their patterns are, and adjacent bf16s are equally far from each other
 * on both sides of every fp32 between them. */
static uint32_t nearest(uint32_t high)
{
	uint32_t wrong = 0;
	if ((high & 0x7f80) == 0x7f80) return 0; /* infinities and NaNs have no nearest */
	double below = mt_float(high << 16);
	double above = (high & 0x7fff) == 0x7f7f ? copysign(0x1p128, below) : mt_float((high + 1) << 16);
	double half = (below + above) / 2;
	for (uint32_t low = 0; low < 65536; low++) {
		uint32_t bits = high << 16 | low;
		double x = mt_float(bits);
		bool up = fabs(x) >= fabs(half);
		wrong += mt_hi(bits) != (uint16_t)(high + up);
	}
	return wrong;
}

static _Atomic uint32_t next, wrong_joins, wrong_nearest;

static void *work(void *arg)
{
	(void)arg;
	for (uint32_t high; (high = atomic_fetch_add(&next, 1)) < 65536;) {
		uint32_t j = joins(high), n = nearest(high);
		if (j) atomic_fetch_add(&wrong_joins, j);
		if (n) atomic_fetch_add(&wrong_nearest, n);
	}
	return NULL;
}

int main(void)
{
	pthread_t t[THREADS];
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int n = cores < 1 ? 1 : cores > THREADS ? THREADS : (int)cores;
	for (int i = 1; i < n; i++)
		if (pthread_create(&t[i], NULL, work, NULL)) return perror("pthread_create"), 1;
	work(NULL);
	for (int i = 1; i < n; i++) pthread_join(t[i], NULL);
	printf("4294967296 patterns: %u not joined, %u not nearest\n", wrong_joins, wrong_nearest);
	return wrong_joins || wrong_nearest;
}
