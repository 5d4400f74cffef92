/* wgmma-check.c: compare grouped GEMMs by wgmma with those by mma before a run relies on them
 *
 * No GPU has run these kernels yet. Forward, its transpose and the sum over rows are computed by both, of experts with
 * whole and cut tiles, and none. Their results may differ by rounding; by wgmma twice, they must have the same bits.
 * Rows of no expert are NaN: nothing of them may get into a result. Kernels that wait for each other for ever end this
 * program, as nothing else ends them.
 */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cuda.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "model/bf16.h"
#include "ops/grouped.h"
#include "splitmix.h"

#ifndef LOOKS        /* fewer for the emulated GPU */
#define LOOKS 100000 /* whether it has ended, 100 us apart: 10 s at least */
#endif
enum { EXPERTS = 4, ROWS = 256, N = 264, K = 328, FIRST_WORDS = 8 };
#define ROUNDING 0.01 /* of the root of the results' mean square */

struct memory {
	uint32_t first[FIRST_WORDS];
	uint16_t x[ROWS * K], dy[ROWS * N], w[EXPERTS * N * K]; /* what goes in */
	uint16_t y[ROWS * N], dx[ROWS * K];                     /* what comes out */
	float dw[EXPERTS * N * K];
};

/* Uniform, of variance 1 */
static void randoms(uint16_t *to, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t z = splitmix_mix((seed << 32) + (uint64_t)i * SPLITMIX_STEP);
		to[i] = bf16_round(mt_bits((float)(z >> 40) / (1 << 23) * 1.732f - 1.732f));
	}
}

static void input(struct memory *m)
{
	const uint32_t first[EXPERTS + 1] = {0, 70, 70, 200, 232};
	memcpy(m->first, first, sizeof first);
	randoms(m->x, ROWS * K, 1);
	randoms(m->dy, ROWS * N, 2);
	randoms(m->w, EXPERTS * N * K, 3);
	memset(m->x + 232 * K, 0xff, (ROWS - 232) * K * sizeof *m->x);
	memset(m->dy + 232 * N, 0xff, (ROWS - 232) * N * sizeof *m->dy);
	memset(m->y, 0, sizeof *m - offsetof(struct memory, y));
}

static cudaError_t await(cudaStream_t stream)
{
	cudaEvent_t end;
	cudaError_t e = cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
	if (e) return e;
	e = cudaEventRecord(end, stream);
	for (int i = 0; !e && (e = cudaEventQuery(end)) == cudaErrorNotReady && i < LOOKS; i++) {
		usleep(100);
		e = cudaSuccess;
	}
	cudaGetLastError(); /* the runtime notes cudaErrorNotReady as an error, but it is none */
	if (e == cudaErrorNotReady) {
		mt_say("cuda: GEMMs of experts by wgmma do not end: start mt-stream again; other kernels will compute them");
		abort();
	}
	cudaEventDestroy(end);
	return e;
}

/* On the device, by the kernels that q names; then *host is what is there */
static cudaError_t run(const struct cuda_queue *q, struct memory *device, struct memory *host)
{
	struct grouped_gemm_args forward = {.experts = EXPERTS,
		.rows = ROWS,
		.n = N,
		.k = K,
		.first = device->first,
		.a = device->x,
		.lda = K,
		.b = device->w,
		.ldb = K,
		.trans_b = 1,
		.c = device->y,
		.ldc = N,
		.stride = N * K};
	struct grouped_gemm_args back = forward, sum = forward;
	back.a = sum.a = device->dy;
	back.n = back.ldc = sum.n = sum.ldb = sum.ldc = K;
	back.k = back.lda = sum.k = sum.lda = N;
	back.trans_b = sum.trans_b = 0;
	back.c = device->dx;
	sum.b = device->x;
	sum.c = device->dw;
	sum.sum = 1;
	input(host);
	cudaError_t e = cudaMemcpyAsync(device, host, sizeof *host, cudaMemcpyHostToDevice, q->stream);
	cuda_grouped_gemm(q, &forward);
	cuda_grouped_gemm(q, &back);
	cuda_grouped_gemm(q, &sum);
	if (!e) e = cudaMemcpyAsync(host, device, sizeof *host, cudaMemcpyDeviceToHost, q->stream);
	if (!e) e = cudaGetLastError();
	return e ? e : await(q->stream);
}

/* Of n numbers, bf16 or else fp32, the largest difference, in parts of the root of their mean square; NaN: one is */
static double difference(const void *of, const void *other, int64_t n, bool bf16)
{
	double most = 0, squares = 0;
	for (int64_t i = 0; i < n; i++) {
		double x = (double)(bf16 ? bf16_float(((const uint16_t *)of)[i]) : ((const float *)of)[i]);
		double y = (double)(bf16 ? bf16_float(((const uint16_t *)other)[i]) : ((const float *)other)[i]);
		double d = fabs(x - y) - (bf16 ? 0x1p-7 * fabs(x) : 0);
		if (!(d <= most)) most = d;
		squares += x * x;
	}
	return most / sqrt(squares / (double)n);
}

static int compare(const struct memory *mma, const struct memory *wgmma, const struct memory *again)
{
	const double d[] = {difference(mma->y, wgmma->y, ROWS * N, true), difference(mma->dx, wgmma->dx, ROWS * K, true),
		difference(mma->dw, wgmma->dw, EXPERTS * N * K, false)};
	for (int i = 0; i < 3; i++)
		if (!(d[i] <= ROUNDING))
			return mt_fail(MT_EX_IO, "results of form %d differ by %.3g of their size from those by mma", i, d[i]);
	if (memcmp(wgmma, again, sizeof *again)) return mt_fail(MT_EX_IO, "results differ from run to run");
	return 0;
}

int wgmma_check(const struct cuda_queue *q, int blocks)
{
	struct cuda_queue by_mma = *q, by_wgmma = *q;
	struct memory *device = NULL, *host = NULL;
	int rc = 0;
	by_mma.wgmma_blocks = 0;
	by_wgmma.wgmma_blocks = blocks;
	cudaError_t e = cudaMalloc((void **)&device, sizeof *device);
	if (!e) e = cudaHostAlloc((void **)&host, 3 * sizeof *host, cudaHostAllocDefault);
	if (!e) e = run(&by_mma, device, host);
	if (!e) e = run(&by_wgmma, device, host + 1);
	if (!e) e = run(&by_wgmma, device, host + 2);
	rc = e ? mt_fail(MT_EX_IO, "%s", cudaGetErrorName(e)) : compare(host, host + 1, host + 2);
	cudaFree(device);
	if (host) cudaFreeHost(host);
	cudaGetLastError(); /* an error of the check is not an error of the device */
	return rc;
}
