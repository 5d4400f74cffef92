/* grouped.h: GEMMs and biases of all experts of a layer */
#ifndef MT_STREAM_OPS_GROUPED_H
#define MT_STREAM_OPS_GROUPED_H

#include "gemm.h"

/* For each expert e, with m rows. Forward (sum 0), on its rows of a and c: c = a b_e + bias_e, b_e (k, n), or (n, k) if
 * trans_b. Gradients of weights (sum 1): c_e (k, n) = beta c_e + a' b over its rows of a (R, k) and b (R, n). b_e, c_e
 * and bias_e are `stride` elements apart. All rows of these experts together: `rows`, from row `begin` on. */
struct grouped_gemm_args {
	int64_t experts, begin, rows, n, k;
	const uint32_t *first; /* (E + 1) */
	const void *a;
	int64_t lda;
	const void *b;
	int64_t ldb;
	int trans_b;
	void *c; /* fp32 if sum */
	int64_t ldc;
	int64_t stride;
	const void *bias; /* NULL: none; sum 0 only */
	int64_t bias_stride;
	int sum;
	float beta; /* sum 1 only */
	int bf16;   /* as of gemm_args */
};

/* The GEMM of expert e, whose rows begin at `row`, on operands of `size` bytes; sum: a->sum, a constant in kernels */
static inline ON_DEVICE struct gemm_args gemm_of_expert(const struct grouped_gemm_args *a, int sum, int64_t e,
	int64_t row, int64_t rows, int64_t size)
{
	struct gemm_args g = {};
	g.n = a->n;
	g.a = (const char *)a->a + row * a->lda * size;
	g.lda = a->lda;
	g.ldb = a->ldb;
	g.ldc = a->ldc;
	g.bf16 = a->bf16;
	if (sum) {
		g.m = a->k;
		g.k = rows;
		g.trans_a = 1;
		g.b = (const char *)a->b + row * a->ldb * size;
		g.c = (float *)a->c + e * a->stride;
		g.beta = a->beta;
		return g;
	}
	g.m = rows;
	g.k = a->k;
	g.b = (const char *)a->b + e * a->stride * size;
	g.trans_b = a->trans_b;
	g.c = (float *)a->c + row * a->ldc;
	g.bias = a->bias ? (const char *)a->bias + e * a->bias_stride * size : NULL;
	return g;
}

/* For each expert: db_e (n) = beta db_e + column sums of its rows of dy (R, n). db_e are `stride` elements apart. */
struct grouped_bias_backward_args {
	float *db;
	int64_t stride;
	float beta;
	const void *dy;
	const uint32_t *first;
	int64_t experts, n;
};

/* clang-format off */
#define grouped_gemm_arrays(A) \
	A(operand, a, a->rows * a->lda, 0) \
	A(operand, b, a->sum ? a->rows * a->ldb : a->experts * a->stride, 0) \
	A(operand, bias, a->experts * a->bias_stride, 0) \
	A(a->sum ? 4 : elem, c, a->sum ? a->k * a->n : a->rows * a->ldc, a->sum && a->beta == 0)
#define grouped_bias_backward_arrays(A) \
	A(4, db, a->n, a->beta == 0) \
	A(elem, dy, a->first[a->experts] * a->n, 0)
/* clang-format on */

#endif
