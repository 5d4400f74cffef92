/* gpu.h: finding a GPU, and the library for its GEMMs */
#ifndef MT_STREAM_CUDA_GPU_H
#define MT_STREAM_CUDA_GPU_H

#ifdef MT_EMU
#include "emu.h"
#else
#include <cuda_runtime_api.h>
#endif

#include "device/device.h"

/* Is GPU `ordinal` there, and of a capability that the kernels support? Then it is this thread's. 0, -71, -74 or -78 */
int gpu_open(int ordinal, struct cudaDeviceProp *, struct gpu *);
/* Bytes of its memory that are free; of memory that is the host's, those that a run may take. 0: the driver does not
 * tell */
uint64_t gpu_available(const struct gpu *);
/* cuBLASLt, which stays loaded; NULL: mt_errmsg() says why (78) */
void *cublaslt_open(void);
/* mt_fail for an error of a call: -71 or -74 */
int cuda_failed(cudaError_t, const char *call);

#endif
