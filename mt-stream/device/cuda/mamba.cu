/* mamba.cu: the kernels of delta.h for Mamba 2 */
#include "delta.h"

void mamba_forward(const struct cuda_queue *q, const struct delta_args *a) { BY_KEYS(q, a, forward, 0); }
void mamba_backward(const struct cuda_queue *q, const struct delta_args *a) { BY_KEYS(q, a, backward, 0); }

cudaError_t mamba_prepare(void)
{
	const void *kernels[] = {KERNELS(float, 0), KERNELS(struct bf16, 0)};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
