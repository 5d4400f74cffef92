/* cuda-gemm.h: matrix products through cuBLASLt, which is looked for when a device is opened */
#ifndef MT_STREAM_CUDA_GEMM_H
#define MT_STREAM_CUDA_GEMM_H

#include "cuda-ops.h"

struct gemms;

/* workspace: device memory for the library, fixed for good. NULL: mt_errmsg() says why (78 in *ex). */
struct gemms *gemms_open(void *workspace, size_t bytes, int *ex);
void gemms_close(struct gemms *);
const char *gemms_name(const struct gemms *);   /* for the run record */
/* 0, or -ex. The algorithm of a shape is chosen when it is first seen, and stays. */
int gemms_run(struct gemms *, const struct cuda_queue *, const struct cuda_gemm *);

#endif
