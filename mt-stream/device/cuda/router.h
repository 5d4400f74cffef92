/* router.h: what a warp computes of a token's router logits, for route.cu and balance.cu: their softmax and the best
 * of scores. A lane has the experts lane, lane + 32, ...: so each sum has one order. */
#ifndef MT_STREAM_CUDA_ROUTER_H
#define MT_STREAM_CUDA_ROUTER_H

#include "common.h"

static __device__ __forceinline__ double warp_sum_fp64(double x)
{
#pragma unroll
	for (int lanes = 16; lanes; lanes /= 2) x += __shfl_xor_sync(FULL, x, lanes);
	return x;
}

/* p (n) = the softmax of n logits, NaN if one is; *lse, unless it is NULL: the logarithm of the sum of their powers. A
 * lane reads and writes p of its own experts only. */
static __device__ __forceinline__ void softmax(double *p, const float *logit, int n, double *lse)
{
	int lane = threadIdx.x % 32;
	float most = -INFINITY;
	double sum = 0;
	for (int e = lane; e < n; e += 32) most = fmaxf(most, logit[e]); /* ignores a NaN, but the sum does not */
#pragma unroll
	for (int lanes = 16; lanes; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(FULL, most, lanes));
	for (int e = lane; e < n; e += 32) sum += p[e] = exp((double)logit[e] - (double)most);
	sum = warp_sum_fp64(sum);
	if (lse) *lse = (double)most + log(sum);
	double inverse = 1 / sum;
	for (int e = lane; e < n; e += 32) p[e] *= inverse;
}

/* Is a better than b? Of equal ones the one with the lower number i. Not a number is the worst of all; of several the
 * last one is taken, as the cpu does. */
static __device__ __forceinline__ int better(float a, int i, float b, int j)
{
	if (a != a || b != b) return b != b && (a == a || i > j);
	return a > b || (a == b && i < j);
}

/* The best of score (n) that is not taken: bit j of a lane's *taken is that of number lane + 32 j. Then it is taken */
static __device__ __forceinline__ int warp_best(const float *score, int n, uint32_t *taken)
{
	int lane = threadIdx.x % 32, at = -1;
	float best = 0;
	for (int j = 0, i = lane; i < n; i += 32, j++)
		if (!(*taken >> j & 1) && (at < 0 || better(score[i], i, best, at))) {
			best = score[i];
			at = i;
		}
#pragma unroll
	for (int lanes = 16; lanes; lanes /= 2) {
		float other = __shfl_xor_sync(FULL, best, lanes);
		int i = __shfl_xor_sync(FULL, at, lanes);
		if (i >= 0 && (at < 0 || better(other, i, best, at))) {
			best = other;
			at = i;
		}
	}
	if (at % 32 == lane) *taken |= 1u << at / 32;
	return at;
}

#endif
