/* kernels.h: the leaf operations of a layer, as the cuda device computes them: launchers between C and the kernels.
 *
 * A launcher puts kernels on q->stream and returns; errors of a launch are found by cudaGetLastError. Elements of
 * activations and weights are bf16 (q->elem 2) or fp32 (q->elem 4); statistics, gradients of weights and losses are
 * fp32 or wider, and so is all arithmetic. What each operation computes, and the letters of the shapes, are in ../ops/.
 *
 * Every result is the same on every run: no atomics, sums in orders that the shapes alone decide.
 */
#ifndef MT_STREAM_CUDA_KERNELS_H
#define MT_STREAM_CUDA_KERNELS_H

#include "ops/common.h"

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
	float *work;       /* device memory, scratch of the operations on this stream */
	size_t work_bytes; /* at least cuda_work_bytes() of the largest n */
	int wgmma_blocks;  /* of grouped GEMMs that do without mma (cuda_wgmma_prepare); 0: none */
};

/* Bytes of `work` that operations on n tokens with `heads` query heads need */
size_t cuda_work_bytes(int64_t n, int64_t heads);

#define CUDA_PROTOTYPE(code, op, args, name) void cuda_##op(const struct cuda_queue *, const struct args##_args *);
OPS(CUDA_PROTOTYPE)
/* GEMM without tensor cores, for shapes that cuBLASLt does not take */
void cuda_gemm_plain(const struct cuda_queue *, const struct gemm_args *);
/* the product's c (m, n), fp32, += its bias (n) on every row */
void cuda_add_bias(const struct cuda_queue *, const struct gemm_args *);
/* to, fp8_copy_bytes(rows, k, 1): codes (rows, fp8_depth(k)) of e4m3, zeros behind k; behind them the scales, (rows) in
 * fp32, or tiled: of each block of a row the same e8m0; of bf16 (rows, k), or with `columns` (k, rows), rows ld apart
 * (ops/fp8.h) */
void cuda_fp8(const struct cuda_queue *, void *to, const void *from, int64_t rows, int64_t k, int64_t ld, int columns,
	int tiled);
/* dst (n) bf16 = src (n), to nearest, ties to even */
void cuda_narrow(const struct cuda_queue *, void *dst, const float *src, int64_t n);
/* the same, to the first 2 n bytes of x (n) itself */
void cuda_narrow_in_place(const struct cuda_queue *, float *x, int64_t n);
/* dst = src, either of which may be host memory that the GPU reads and writes */
void cuda_copy(const struct cuda_queue *, void *dst, const void *src, size_t bytes);

/* Once a process, before the first launch: request the shared memory that kernels need. cudaSuccess or the error */
cudaError_t cuda_kernels_prepare(void);
/* The same for kernels of compute capability 9.0 alone. false: this GPU does not run them */
bool cuda_wgmma_prepare(void);

#ifdef __cplusplus
}
#endif
#endif
