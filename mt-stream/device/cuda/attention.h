/* attention.h: what the plain kernels of attention and those for tensor cores share */
#ifndef MT_STREAM_CUDA_ATTENTION_H
#define MT_STREAM_CUDA_ATTENTION_H

#include "common.h"
#include "ops/attention.h"

/* first key that token t of its row (which starts at token `row`) sees */
static __device__ __forceinline__ int64_t first_key(const struct attention_args *a, int64_t row, int64_t t)
{
	int64_t start = row + a->starts[t], window = a->window ? t - a->window + 1 : row;
	return window > start ? window : start;
}

struct where {
	int64_t row, tile, head;
}; /* row: its first token */

/* The last tiles of a row see the most keys, so they are launched first. */
static __device__ __forceinline__ struct where block_where(const struct attention_args *a, int64_t heads, int64_t tiles)
{
	int64_t b = blockIdx.x;
	struct where w = {b / tiles / heads * a->seq, tiles - 1 - b % tiles, b / tiles % heads};
	return w;
}

/* Do tensor cores take it? bf16, heads of up to 512, or of up to 192 and 128 of v without a cap, in whole 16 bytes, and
 * tensors that start at 16 bytes */
int attention_takes_mma(const struct cuda_queue *, const struct attention_args *, int backward);
void attention_forward_by_mma(const struct cuda_queue *, const struct attention_args *);
/* delta (N, NH) = row sums of d_o * o */
void attention_backward_by_mma(const struct cuda_queue *, const struct attention_args *, const float *delta);
cudaError_t attention_mma_prepare(void);

#endif
