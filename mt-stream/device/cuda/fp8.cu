/* fp8.cu: operands of a GEMM rounded to e4m3, with k as the inner dimension, which tensor cores of 9.0 require
 * (ops/fp8.h). Rounding in integers gives the same bits on every GPU, and the cpu's.
 *
 * Rows of the source are a block's work each. Columns take two kernels: the first one finds the largest element of each
 * part of a column, the second one transposes.
 */
#include "common.h"
#include "ops/fp8.h"

#define NOT_FINITE 0x7fu

static __device__ __forceinline__ uint32_t magnitude(float x) { return as_bits(x) >> 16 & 0x7fff; }

/* 2^-e of the scale 2^e */
static __device__ __forceinline__ float scale_inverse(int e) { return as_float((uint32_t)(127 - e) << 23); }

/* x, divided by the scale, as a code of e4m3 */
static __device__ __forceinline__ uint32_t code_of(float x)
{
	uint32_t bits = as_bits(x) & 0x7fffffff, sign = as_bits(x) >> 31 << 7;
	uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
	/* 2^14 has steps of 2^-9, which are those of small codes */
	uint32_t small = as_bits(as_float(bits) + 16384) - as_bits(16384);
	uint32_t code = bits < as_bits(0x1p-6f) ? small : normal;
	return sign | (bits < as_bits(INFINITY) ? code : NOT_FINITE);
}

/* Put 2^e, the scale of a row: in fp32, or in each of its tiles, of which it has a word. `of` of `by` threads do. */
static __device__ __forceinline__ void put_scale(uint32_t *scale, int64_t row, int e, int64_t depth, int64_t tiles,
	int of, int by)
{
	if (!tiles && of == 0) scale[row] = as_bits(scale_inverse(-e));
	for (int64_t t = of; t < tiles; t += by) {
		int64_t blocks = depth / FP8_BLOCK - t * FP8_TILE_BLOCKS;
		uint32_t all = 0x01010101u * (uint32_t)(e + 127), mask = blocks < 4 ? (1u << 8 * blocks) - 1 : ~0u;
		scale[(row / FP8_TILE_ROWS * tiles + t) * (FP8_TILE_BYTES / 4) + row % 32 * 4 + row % FP8_TILE_ROWS / 32] =
			all & mask;
	}
}

static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* A row of src (rows, k) a block; dst has `depth` elements a row */
static __global__ void __launch_bounds__(THREADS) fp8_rows_kernel(uint8_t *dst, uint32_t *scale, int64_t tiles,
	const struct bf16 *src, int64_t k, int64_t depth, int64_t ld, int wide)
{
	DYNAMIC_SHARED(uint32_t, of_warps);
	const struct bf16 *x = src + blockIdx.x * ld;
	uint32_t most = 0;
	float v[WIDE];
	for (int64_t i = threadIdx.x * WIDE; i < k; i += THREADS * WIDE) {
		get_wide(v, x + i, k - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) most = larger(most, magnitude(v[j]));
	}
#pragma unroll
	for (int lanes = 16; lanes; lanes /= 2) most = larger(most, __shfl_xor_sync(FULL, most, lanes));
	if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < THREADS / 32; w++) most = larger(most, of_warps[w]);
	int e = fp8_exponent(most);
	float down = scale_inverse(e);
	put_scale(scale, blockIdx.x, e, depth, tiles, threadIdx.x, THREADS);
	for (int64_t i = threadIdx.x * WIDE; i < depth; i += THREADS * WIDE) {
		struct vec8 codes = {{0, 0}};
		get_wide(v, x + i, k - i, wide && i < k);
#pragma unroll
		for (int j = 0; j < WIDE; j++) codes.w[j / 4] |= code_of(v[j] * down) << 8 * (j % 4);
		*(struct vec8 *)(dst + blockIdx.x * depth + i) = codes;
	}
}

/* largest (parts, n): of a part of FP8_PART rows of src (k, n). A block takes 32 WIDE columns. */
static __global__ void __launch_bounds__(THREADS) fp8_largest_kernel(uint16_t *largest, const struct bf16 *src,
	int64_t k, int64_t n, int64_t ld, int64_t across, int wide)
{
	DYNAMIC_SHARED(uint32_t, of_warps); /* (warps, 32 WIDE) */
	int64_t part = blockIdx.x / across, from = blockIdx.x % across * 32 * WIDE, end = (part + 1) * FP8_PART;
	int64_t column = from + threadIdx.x % 32 * WIDE;
	uint32_t most[WIDE] = {0};
	float v[WIDE];
	if (end > k) end = k;
	if (column < n)
#pragma unroll 4
		for (int64_t row = part * FP8_PART + threadIdx.x / 32; row < end; row += THREADS / 32) {
			get_wide(v, src + row * ld + column, n - column, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) most[j] = larger(most[j], magnitude(v[j]));
		}
#pragma unroll
	for (int j = 0; j < WIDE; j++) of_warps[threadIdx.x / 32 * 32 * WIDE + threadIdx.x % 32 * WIDE + j] = most[j];
	__syncthreads();
	uint32_t all = 0;
	for (int w = 0; w < THREADS / 32; w++) all = larger(all, of_warps[w * 32 * WIDE + threadIdx.x]);
	if (from + threadIdx.x < n) largest[part * n + from + threadIdx.x] = (uint16_t)all;
}

#define TILE 64   /* columns of src that a block transposes, */
#define DEPTH 128 /* and rows at a time; a word more of each column keeps banks apart */

/* dst (n, depth) = src (k, n) transposed. A block takes TILE columns of a part of FP8_PART rows. */
static __global__ void __launch_bounds__(THREADS)
	fp8_columns_kernel(uint8_t *dst, uint32_t *scale, int64_t tiles, const uint16_t *largest, int64_t parts,
		const struct bf16 *src, int64_t k, int64_t depth, int64_t n, int64_t ld, int64_t across, int wide)
{
	DYNAMIC_SHARED(uint32_t, shared);
	uint32_t *codes = shared; /* (TILE, DEPTH / 4 + 1): four codes each */
	float *down = (float *)(codes + TILE * (DEPTH / 4 + 1));
	int64_t part = blockIdx.x / across, from = blockIdx.x % across * TILE;
	int64_t end = (part + 1) * FP8_PART < depth ? (part + 1) * FP8_PART : depth;
	int column = threadIdx.x / 8 / 16 * 32 + threadIdx.x % 4 * WIDE, quad = threadIdx.x / 4 % 32;
	if (threadIdx.x < TILE && from + threadIdx.x < n) {
		uint32_t most = 0;
		for (int64_t p = 0; p < parts; p++) most = larger(most, largest[p * n + from + threadIdx.x]);
		int e = fp8_exponent(most);
		down[threadIdx.x] = scale_inverse(e);
		if (part == 0) put_scale(scale, from + threadIdx.x, e, depth, tiles, 0, 1);
	}
	for (int64_t first = part * FP8_PART; first < end; first += DEPTH) {
		uint32_t packed[WIDE] = {0};
		__syncthreads();
#pragma unroll
		for (int r = 0; r < 4; r++) {
			int64_t row = first + 4 * quad + r, left = row < k ? n - from - column : 0;
			float v[WIDE];
			get_wide(v, src + row * ld + from + column, left, wide && left > 0);
#pragma unroll
			for (int j = 0; j < WIDE; j++)
				if (j < left) packed[j] |= code_of(v[j] * down[column + j]) << 8 * r;
		}
#pragma unroll
		for (int j = 0; j < WIDE; j++) codes[(column + j) * (DEPTH / 4 + 1) + quad] = packed[j];
		__syncthreads();
		for (int i = threadIdx.x; i < TILE * DEPTH / 16; i += THREADS) {
			int at = i / (DEPTH / 16), of = i % (DEPTH / 16);
			struct vec16 out;
			if (from + at >= n || first + 16 * of >= depth) continue;
#pragma unroll
			for (int w = 0; w < 4; w++) out.w[w] = codes[at * (DEPTH / 4 + 1) + 4 * of + w];
			store16(dst + (from + at) * depth + first + 16 * of, out);
		}
	}
}

void cuda_fp8(const struct cuda_queue *q, void *to, const void *from, int64_t rows, int64_t k, int64_t ld, int columns,
	int tiled)
{
	int64_t depth = fp8_depth(k), tiles = tiled ? fp8_tiles(k) : 0;
	const struct bf16 *src = (const struct bf16 *)from;
	uint8_t *dst = (uint8_t *)to;
	uint32_t *scale = (uint32_t *)(dst + rows * depth);
	uint16_t *largest = (uint16_t *)((char *)scale + fp8_scales_bytes(rows, k));
	int wide = (columns ? rows : k) % WIDE == 0 && wide_rows(ld, src, NULL, NULL, NULL);
	/* the last tile's other rows */
	if (tiled && rows % FP8_TILE_ROWS) cudaMemsetAsync(scale, 0, (size_t)fp8_tiled_bytes(rows, k), q->stream);
	if (!columns) {
		LAUNCH(fp8_rows_kernel, rows, THREADS, THREADS / 32 * sizeof(uint32_t), q->stream, dst, scale, tiles, src, k,
			depth, ld, wide);
		return;
	}
	int64_t parts = div_up(k, FP8_PART), across = div_up(rows, 32 * WIDE), strips = div_up(rows, TILE);
	LAUNCH(fp8_largest_kernel, parts * across, THREADS, THREADS * WIDE * sizeof(uint32_t), q->stream, largest, src, k,
		rows, ld, across, wide);
	LAUNCH(fp8_columns_kernel, parts * strips, THREADS, (TILE * (DEPTH / 4 + 1) + TILE) * sizeof(uint32_t), q->stream,
		dst, scale, tiles, largest, parts, src, k, depth, rows, ld, strips, wide);
}
