/* gemm.h: matrix multiplication */
#ifndef MT_STREAM_OPS_GEMM_H
#define MT_STREAM_OPS_GEMM_H

#include "common.h"

/* c = a' b' + beta c [+ bias on every row] [+ add]; ld* are row strides in elements. a, b and bias are operands */
struct gemm_args {
	int64_t m, n, k;
	const void *a; /* (m, k); trans_a: (k, m) */
	int64_t lda;
	int trans_a;
	const void *b; /* (k, n); trans_b: (n, k) */
	int64_t ldb;
	int trans_b;
	void *c; /* (m, n); fp32 where `fp32` is set */
	int64_t ldc;
	float beta;       /* 0 (c is not read) or 1 */
	const void *bias; /* (n), or NULL; with beta 0 only */
	const void *add;  /* (m, n), rows ldc apart, or NULL: a residual, added last; with beta 0 only */
	int fp32;
	int exact; /* a, b and bias are fp32, whatever operands are */
	int bf16;  /* cpu: operands are bf16; the device sets it, here and below */
	/* --compute fp8: a' and b' are rounded to e4m3 (ops/fp8.h) in this work memory before they are multiplied; NULL:
	 * they are not */
	void *fp8;
};

/* The GEMM library with its version and the type of its operands, and the instruction set of all other operations: both
 * decide bits, and go into the reproducibility record */
const char *gemm_description(const char *type);
const char *kernels_description(void);
/* Why GEMMs cannot multiply bf16 here; NULL: they can */
const char *gemm_lacks_bf16(void);
/* They can, and it is faster than fp32 */
int gemm_bf16_is_fast(void);
/* What the cpu and chaos devices report of themselves. They have one name, because they give the same bits. */
#define CPU_IDENTITY \
	.name = "cpu", .gemm = gemm_description("fp32"), .attention = "tiled, fp32", .machine = kernels_description(), \
	.elem = sizeof(float), .operand = sizeof(float)
/* Load what oneDNN needs to report that it has no memory; and what it needs to multiply bf16. 0: there is no memory */
int gemm_ready(void);
int gemm_bf16_ready(void);

void op_gemm(struct pool *, const struct gemm_args *);

#endif
