/* random.c: a counter-based generator: number i of stream s is a function of (seed, s, i) and of nothing before it. */
#include <math.h>

#include "store.h"

/* Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC11) */
static void philox(uint32_t x[4], uint64_t key)
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
	for (int round = 0; round < 10; round++) {
		uint64_t a = 0xD2511F53ull * x[0], b = 0xCD9E8D57ull * x[2];
		uint32_t y0 = (uint32_t)(b >> 32) ^ x[1] ^ k0, y2 = (uint32_t)(a >> 32) ^ x[3] ^ k1;
		x[0] = y0;
		x[1] = (uint32_t)b;
		x[2] = y2;
		x[3] = (uint32_t)a;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
}

/* in (0, 1): 53 bits and a half */
static double uniform(uint32_t hi, uint32_t lo)
{
	uint64_t bits = (uint64_t)hi << 32 | lo;
	return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

void normal_pair(uint64_t seed, uint32_t stream, uint64_t pair, double out[2])
{
	uint32_t x[4] = {(uint32_t)pair, (uint32_t)(pair >> 32), stream, 0};
	philox(x, seed);
	/* Box and Muller, in double: what is rounded to fp32 later does not depend on the last bits of log, sin and cos */
	double radius = sqrt(-2 * log(uniform(x[0], x[1]))), angle = 2 * M_PI * uniform(x[2], x[3]);
	out[0] = radius * cos(angle);
	out[1] = radius * sin(angle);
}
