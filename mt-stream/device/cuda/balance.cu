/* balance.cu: the auxiliary loss and the z-loss of routers. A warp has a token. All in fp64, as on the cpu. */
#include "router.h"
#include "ops/balance.h"

#ifndef BALANCE_BLOCKS
#define BALANCE_BLOCKS 1024 /* warps that add up tokens, at most */
#endif
#define BALANCE_WARPS 4 /* of a block, backward */

/* ---- forward: a block is a warp, which adds up `each` tokens ---- */

static __global__ void __launch_bounds__(32) balance_sums_kernel(struct balance_args a, double *partial, int64_t each)
{
	DYNAMIC_SHARED(double, sums); /* (2 E + 1), then a token's probabilities (E), and these rounded (E) */
	int n = (int)a.experts, lane = threadIdx.x;
	double *p = sums + 2 * n + 1, lse;
	float *rounded = (float *)(p + n);
	int64_t end = (blockIdx.x + 1) * each;

	end = end < a.n ? end : a.n;
	for (int i = lane; i < 2 * n + 1; i += 32) sums[i] = 0;
	__syncwarp();
	for (int64_t t = blockIdx.x * each; t < end; t++) {
		uint32_t taken = 0;
		if (!a.counted[t]) continue;
		softmax(p, a.logits + t * n, n, &lse);
		for (int e = lane; e < n; e += 32) {
			rounded[e] = (float)p[e];
			sums[n + e] += p[e];
		}
		/* a lane reads only what it has written itself */
		for (int k = 0; k < a.per_token; k++) warp_best(rounded, n, &taken);
		for (int j = 0, e = lane; e < n; e += 32, j++) sums[e] += taken >> j & 1;
		if (lane == 0) sums[2 * n] += lse * lse;
	}
	__syncwarp();
	for (int i = lane; i < 2 * n + 1; i += 32) partial[(int64_t)blockIdx.x * (2 * n + 1) + i] = sums[i];
}

static __global__ void __launch_bounds__(THREADS)
	balance_add_kernel(double *sums, const double *partial, int blocks, int width)
{
	int i = blockIdx.x * THREADS + threadIdx.x;
	double sum = 0;
	if (i >= width) return;
#pragma unroll 8
	for (int b = 0; b < blocks; b++) sum += partial[(int64_t)b * width + i];
	sums[i] += sum;
}

void cuda_balance_forward(const struct cuda_queue *q, const struct balance_args *a)
{
	int64_t width = 2 * a->experts + 1, each = div_up(a->n, BALANCE_BLOCKS), blocks = div_up(a->n, each);
	size_t shared = (size_t)(width + a->experts) * sizeof(double) + (size_t)a->experts * sizeof(float);
	double *partial = (double *)q->work;
	LAUNCH(balance_sums_kernel, blocks, 32, shared, q->stream, *a, partial, each);
	LAUNCH(balance_add_kernel, div_up(width, THREADS), THREADS, 0, q->stream, a->sums, partial, (int)blocks,
		(int)width);
}

/* ---- backward ---- */

template <typename T>
static __global__ void __launch_bounds__(32 * BALANCE_WARPS) balance_backward_kernel(struct balance_args a)
{
	DYNAMIC_SHARED(double, shared); /* (warps, E) */
	int n = (int)a.experts, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	int64_t t = (int64_t)blockIdx.x * BALANCE_WARPS + warp;
	double *p = shared + warp * n, lse, mean = 0;
	T *d = (T *)a.dlogits + t * n;

	if (t >= a.n || !a.counted[t]) return;
	softmax(p, a.logits + t * n, n, &lse);
	for (int e = lane; e < n; e += 32) mean += p[e] * a.sums[e];
	mean = warp_sum_fp64(mean);
	for (int e = lane; e < n; e += 32)
		put(d + e, get(d[e]) + (float)(p[e] * (a.aux * (a.sums[e] - mean) + 2 * a.z * lse)));
}

void cuda_balance_backward(const struct cuda_queue *q, const struct balance_args *a)
{
	BY_BYTES(a->exact ? 4 : q->elem,
		LAUNCH(balance_backward_kernel<T>, div_up(a->n, BALANCE_WARPS), 32 * BALANCE_WARPS,
			(size_t)(BALANCE_WARPS * a->experts) * sizeof(double), q->stream, *a));
}
