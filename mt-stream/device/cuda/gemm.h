/* gemm.h: GEMMs through cuBLASLt, which is opened at run time */
#ifndef MT_STREAM_CUDA_GEMM_H
#define MT_STREAM_CUDA_GEMM_H

#include "kernels.h"

struct gemms;
struct mt_run;

/* workspace: device memory for the library, always the same. NULL: mt_errmsg() says why (78 in *ex). */
struct gemms *gemms_open(void *workspace, size_t bytes, int *ex);
void gemms_close(struct gemms *);
const char *gemms_name(const struct gemms *); /* for the reproducibility record */
/* Operands are rounded to FP8 from now on. 0, or -78: this library or GPU (compute capability 90: 9.0) has none */
int gemms_fp8(struct gemms *, int capability);
/* The run whose table keeps the selected algorithms; without one they are known to this process only */
void gemms_attach(struct gemms *, struct mt_run *);
/* Select a GEMM's algorithm: the one in the run's table, else the fastest, which is entered there. 0 or -ex */
int gemms_select(struct gemms *, const struct cuda_queue *, const struct gemm_args *);
/* Run a GEMM; selects its algorithm if that was not done before. 0 or -ex */
int gemms_run(struct gemms *, const struct cuda_queue *, const struct gemm_args *);

#endif
