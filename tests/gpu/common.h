/* common.h: fill and compare GPU memory, for the programs of tests/gpu */
#ifndef GPU_COMMON_H
#define GPU_COMMON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../mt-stream/device/cuda/gemm.h"
#include "../../mt-stream/ops/ops.h"
#include "cli/cli.h"
#include "mt/error.h"
#include "mt/run.h"

static inline void must(cudaError_t e, const char *what)
{
	if (e != cudaSuccess) {
		fprintf(stderr, "%s: %s (%s)\n", what, cudaGetErrorName(e), cudaGetErrorString(e));
		exit(1);
	}
}

static inline void *device_bytes(size_t bytes)
{
	void *p;
	must(cudaMalloc(&p, bytes), "cudaMalloc");
	return p;
}

#define RANDOM_BYTES (64u << 20)

/* Device memory filled with bf16 from -1 to 1, drawn by `seed`: copies of one block, each with another shift */
static inline void *device_random(size_t bytes, uint64_t seed)
{
	static uint16_t *block;
	char *p = device_bytes(bytes);
	if (!block) block = malloc(RANDOM_BYTES);
	for (size_t i = 0; i < RANDOM_BYTES / 2; i++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		block[i] = mt_hi(mt_bits((float)(int32_t)(seed >> 32) * 0x1p-31f));
	}
	for (size_t at = 0, n; at < bytes; at += n) {
		n = bytes - at < RANDOM_BYTES - 3 * 4096 ? bytes - at : RANDOM_BYTES - 3 * 4096;
		must(cudaMemcpy(p + at, (char *)block + at / RANDOM_BYTES % 3 * 4096, n, cudaMemcpyHostToDevice), "cudaMemcpy");
	}
	return p;
}

/* A failure of ours, which mt_errmsg has */
static inline void must_not(int failed)
{
	if (!failed) return;
	fprintf(stderr, "%s\n", mt_errmsg());
	exit(1);
}

static inline struct gemms *gemms_here(void)
{
	int ex;
	must(cuda_kernels_prepare(), "cudaFuncSetAttribute");
	struct gemms *g = gemms_open(device_bytes(64u << 20), 64u << 20, &ex);
	must_not(!g);
	return g;
}

/* Has GPU 0 FP8? Then g uses it */
static inline bool fp8_here(struct gemms *g)
{
	struct cudaDeviceProp p;
	must(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
	return gemms_fp8(g, 10 * p.major + p.minor) == 0;
}

#endif
