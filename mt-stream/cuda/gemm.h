/* gemm.h: matrix products through cuBLASLt, which is looked for when a device is opened */
#ifndef MT_STREAM_CUDA_GEMM_H
#define MT_STREAM_CUDA_GEMM_H

#include "kernels.h"

struct gemms;
struct mt_run;

/* workspace: device memory for the library, fixed for good. NULL: mt_errmsg() says why (78 in *ex). */
struct gemms *gemms_open(void *workspace, size_t bytes, int *ex);
void gemms_close(struct gemms *);
const char *gemms_name(const struct gemms *); /* for the run record */
/* The run whose table of choices keeps the algorithms; none: they are chosen and kept by this process alone */
void gemms_attach(struct gemms *, struct mt_run *);
/* Settle a product's algorithm: what the run's table says, or a new choice, which is entered there. 0 or -ex */
int gemms_settle(struct gemms *, const struct cuda_queue *, const struct gemm_args *);
/* 0, or -ex. What was not settled before is now. */
int gemms_run(struct gemms *, const struct cuda_queue *, const struct gemm_args *);

#endif
