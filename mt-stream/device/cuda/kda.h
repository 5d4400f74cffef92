/* kda.h: the delta rule with a gate for each channel of the key, kda.cu's part of the operation */
#ifndef MT_STREAM_CUDA_KDA_H
#define MT_STREAM_CUDA_KDA_H

#include "common.h"
#include "ops/delta.h"

void kda_forward(const struct cuda_queue *, const struct delta_args *);
void kda_backward(const struct cuda_queue *, const struct delta_args *);
cudaError_t kda_prepare(void);

/* torch.nn.functional.softplus */
static __device__ __forceinline__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

#endif
