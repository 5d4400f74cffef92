/* kernels.h: the leaf operations of a layer, as the cuda device computes them: launchers between C and the kernels.
 *
 * A launcher puts kernels on q->stream and returns; errors of a launch are found by cudaGetLastError. Elements of
 * activations and weights are bf16 (q->elem 2) or fp32 (q->elem 4); statistics, gradients of weights and losses are
 * fp32 or wider, and so is all arithmetic. What each operation computes, and the letters of the shapes, are in ops.h.
 *
 * Every result is the same on every run: no atomics, sums in orders that the shapes alone decide.
 */
#ifndef MT_STREAM_CUDA_KERNELS_H
#define MT_STREAM_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>
#ifdef MT_EMU
#include "emu.h"
#else
#include <cuda_runtime_api.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_queue {
	cudaStream_t stream;
	int elem;          /* bytes: 2 bf16, 4 fp32 */
	float *work;       /* scratch of the operations on this stream, device memory; */
	size_t work_bytes; /* at least cuda_work_bytes() of the largest n */
};

/* What operations on n tokens need at most, given `heads` query heads */
size_t cuda_work_bytes(int64_t n, int64_t heads);

void cuda_embed_forward(const struct cuda_queue *, void *x, const void *w, const uint32_t *tokens, int64_t n,
	int64_t h);
void cuda_embed_backward(const struct cuda_queue *, float *dw, float beta, const void *dx, const uint32_t *tokens,
	int64_t n, int64_t h, int64_t vocab, int64_t pad);
void cuda_rmsnorm_forward(const struct cuda_queue *, void *y, float *rstd, const void *x, const void *w, int64_t n,
	int64_t h, float eps);
void cuda_rmsnorm_backward(const struct cuda_queue *, void *dx, int add_dx, float *dw, float beta, const void *dy,
	const void *x, const void *w, const float *rstd, int64_t n, int64_t h);
void cuda_bias_backward(const struct cuda_queue *, float *db, float beta, const void *dy, int64_t m, int64_t n);
void cuda_swiglu_forward(const struct cuda_queue *, void *y, const void *gu, int64_t n, int64_t f);
/* dgu may be gu, and y may be dy (in place) */
void cuda_swiglu_backward(const struct cuda_queue *, void *dgu, void *y, const void *dy, const void *gu, int64_t n,
	int64_t f);
/* fp32 -> bf16, to nearest, ties to even */
void cuda_narrow(const struct cuda_queue *, void *dst, const float *src, int64_t n);
/* the same, to the first 2 n bytes of x itself */
void cuda_narrow_in_place(const struct cuda_queue *, float *x, int64_t n);

struct cuda_rope {
	int64_t n, seq, heads, kv_heads, dim; /* dim at most 512 */
	const float *cos, *sin;
	const uint32_t *starts;
	const void *qnorm, *knorm;
	float eps;
};
void cuda_rope_forward(const struct cuda_queue *, const struct cuda_rope *, void *qkv, void *pre, float *rstd);
void cuda_rope_backward(const struct cuda_queue *, const struct cuda_rope *, void *dqkv, const void *pre,
	const float *rstd, float *dqnorm, float *dknorm, float beta);

struct cuda_loss {
	double sum;
	int64_t targets;
};
void cuda_cross_entropy(const struct cuda_queue *, void *logits, const uint32_t *targets, int64_t n, int64_t vocab,
	float scale, int backward, struct cuda_loss *loss);

struct cuda_attention {
	int64_t n, seq, heads, kv_heads, dim, window; /* dim at most 256 */
	float scale;
	const uint32_t *starts;
};
void cuda_attention_forward(const struct cuda_queue *, const struct cuda_attention *, void *o, float *lse,
	const void *qkv);
void cuda_attention_backward(const struct cuda_queue *, const struct cuda_attention *, void *dqkv, const void *d_o,
	const void *o, const float *lse, const void *qkv);

/* Row-major, as struct gemm in ops.h; c is fp32 where `fp32`, else of the queue's element */
struct cuda_gemm {
	int64_t m, n, k;
	const void *a;
	int64_t lda;
	int trans_a;
	const void *b;
	int64_t ldb;
	int trans_b;
	void *c;
	int64_t ldc;
	float beta;
	const void *bias, *add;
	int fp32;
};
/* Without tensor cores: for shapes that no library takes, and where there is none */
void cuda_gemm_plain(const struct cuda_queue *, const struct cuda_gemm *);

/* Once a process: what kernels want of the device. cudaSuccess, or why not */
cudaError_t cuda_kernels_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
