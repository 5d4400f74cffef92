/* common.h: used by every kernel file: element types, 16-byte accesses, sums over a warp and over a block */
#ifndef MT_STREAM_CUDA_COMMON_H
#define MT_STREAM_CUDA_COMMON_H

#include <math.h>
#include <string.h>
#include "kernels.h"

#ifndef MT_EMU
#include <cuda_runtime.h>
#define LAUNCH(kernel, blocks, threads, shared, stream, ...) \
	kernel<<<(unsigned)(blocks), (threads), (shared), (stream)>>>(__VA_ARGS__)
#define DYNAMIC_SHARED(type, name) \
	extern __shared__ float4 dynamic_shared[]; \
	type *name = (type *)dynamic_shared
#endif

#define FULL 0xffffffffu /* all lanes of a warp */
#define WIDE 8           /* elements of a thread's access: 16 bytes of bf16, 2 x 16 of fp32 */
#define THREADS 256
#define SHARED_MOST (99 << 10) /* bytes of shared memory that a block can have on every target, if requested */

struct bf16 {
	uint16_t bits;
};

#ifdef MT_EMU
struct vec16 {
	uint32_t w[4];
};
struct vec8 {
	uint32_t w[2];
};
#else
struct __align__(16) vec16 { uint32_t w[4]; };
struct __align__(8) vec8 { uint32_t w[2]; };
#endif

/* Access 16 bytes at once; p must be a multiple of 16 */
static __device__ __forceinline__ struct vec16 load16(const void *p)
{
#ifdef MT_EMU
	p = emu_aligned(p, 16);
#endif
	return *(const struct vec16 *)p;
}

/* Store to global memory. In assembler, as the compiler would split an assignment into four stores of 4 bytes if
 * another branch stores the same elements one by one. tests/49-sass.bats checks the machine code. */
static __device__ __forceinline__ void store16(void *p, struct vec16 v)
{
#ifdef MT_EMU
	*(struct vec16 *)emu_aligned(p, 16) = v;
#else
	asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(v.w[0]),
				 "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
				 : "memory");
#endif
}

static __device__ __forceinline__ void store16_shared(void *p, struct vec16 v)
{
#ifdef MT_EMU
	emu_aligned(p, 16);
#endif
	*(struct vec16 *)p = v;
}

static __device__ __forceinline__ float as_float(uint32_t bits)
{
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

static __device__ __forceinline__ uint32_t as_bits(float f)
{
	uint32_t bits;
	memcpy(&bits, &f, sizeof bits);
	return bits;
}

/* v = 4 numbers in shared memory */
static __device__ __forceinline__ void get4(float v[4], const float *p)
{
	struct vec16 x = load16(p);
#pragma unroll
	for (int i = 0; i < 4; i++) v[i] = as_float(x.w[i]);
}

/* two fp32 as bf16, a in the lower half; to nearest, ties to even */
static __device__ __forceinline__ uint32_t pack_bf16(float a, float b)
{
#ifdef MT_EMU
	float v[2] = {a, b};
	uint32_t packed = 0;
	for (int i = 0; i < 2; i++) {
		uint32_t bits = as_bits(v[i]), r = v[i] != v[i] ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
		packed |= r << 16 * i;
	}
	return packed;
#else
	uint32_t packed;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(b), "f"(a));
	return packed;
#endif
}

static __device__ __forceinline__ float get(float x) { return x; }
static __device__ __forceinline__ float get(struct bf16 x) { return as_float((uint32_t)x.bits << 16); }
/* The fp32 number of which w is the upper half, and lo the lower one (mt_join) */
static __device__ __forceinline__ float joined(float w, int16_t lo)
{
	return as_float(as_bits(w) + (uint32_t)(int32_t)lo);
}
static __device__ __forceinline__ void put(float *p, float v) { *p = v; }
static __device__ __forceinline__ void put(struct bf16 *p, float v) { p->bits = (uint16_t)pack_bf16(v, 0); }

/* Load WIDE elements from p. `wide`: p is 16-byte aligned and all exist; else only `left` exist, the rest are zeros */
static __device__ __forceinline__ void get_wide(float v[WIDE], const struct bf16 *p, int64_t left, int wide)
{
	if (wide) {
		struct vec16 x = load16(p);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			v[2 * i] = as_float(x.w[i] << 16);
			v[2 * i + 1] = as_float(x.w[i] & 0xffff0000u);
		}
	} else {
#pragma unroll
		for (int i = 0; i < WIDE; i++) v[i] = i < left ? get(p[i]) : 0;
	}
}

static __device__ __forceinline__ void get_wide(float v[WIDE], const float *p, int64_t left, int wide)
{
	if (wide) {
#pragma unroll
		for (int j = 0; j < 2; j++) {
			struct vec16 x = load16(p + 4 * j);
#pragma unroll
			for (int i = 0; i < 4; i++) v[4 * j + i] = as_float(x.w[i]);
		}
	} else {
#pragma unroll
		for (int i = 0; i < WIDE; i++) v[i] = i < left ? p[i] : 0;
	}
}

static __device__ __forceinline__ void put_wide(struct bf16 *p, const float v[WIDE], int64_t left, int wide)
{
	if (wide) {
		struct vec16 x;
#pragma unroll
		for (int i = 0; i < 4; i++) x.w[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
		store16(p, x);
	} else {
#pragma unroll
		for (int i = 0; i < WIDE; i++)
			if (i < left) put(p + i, v[i]);
	}
}

static __device__ __forceinline__ void put_wide(float *p, const float v[WIDE], int64_t left, int wide)
{
	if (wide) {
#pragma unroll
		for (int j = 0; j < 2; j++) {
			struct vec16 x;
#pragma unroll
			for (int i = 0; i < 4; i++) x.w[i] = as_bits(v[4 * j + i]);
			store16(p + 4 * j, x);
		}
	} else {
#pragma unroll
		for (int i = 0; i < WIDE; i++)
			if (i < left) p[i] = v[i];
	}
}

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
	for (int lanes = 16; lanes; lanes /= 2) x += __shfl_xor_sync(FULL, x, lanes);
	return x;
}

/* The sum over `lanes` neighbouring lanes, a power of two, in each of them */
static __device__ __forceinline__ float lanes_sum(float x, int lanes)
{
	for (int l = lanes / 2; l; l /= 2) x += __shfl_xor_sync(FULL, x, l);
	return x;
}

/* The sum over a block of THREADS, in every thread. scratch: THREADS / 32 floats of shared memory, free again after the
 * caller's next barrier. */
static __device__ __forceinline__ float block_sum(float x, float *scratch)
{
	float sum = 0;
	x = warp_sum(x);
	if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
	__syncthreads();
#pragma unroll
	for (int w = 0; w < THREADS / 32; w++) sum += scratch[w];
	return sum;
}

/* A block sums columns from .. from + 32 WIDE - 1 of rows first .. end - 1 of dy (rows, n). Each of 8 warps sums every
 * eighth row; the warps' sums are added in order. Returns the sum of column from + threadIdx.x: THREADS is 32 WIDE.
 * sums (warps, 32 WIDE) are in shared memory. */
template <typename T>
static __device__ __forceinline__ float column_sum(float *sums, const T *dy, int64_t first, int64_t end, int64_t ld,
	int64_t from, int64_t n, int wide)
{
	int64_t column = from + threadIdx.x % 32 * WIDE;
	int warp = threadIdx.x / 32;
	float sum[WIDE] = {0}, v[WIDE], total = 0;
	if (column < n)
		for (int64_t row = first + warp; row < end; row += THREADS / 32) {
			get_wide(v, dy + row * ld + column, n - column, wide);
#pragma unroll
			for (int j = 0; j < WIDE; j++) sum[j] += v[j];
		}
#pragma unroll
	for (int j = 0; j < WIDE; j++) sums[warp * 32 * WIDE + threadIdx.x % 32 * WIDE + j] = sum[j];
	__syncthreads();
	for (int k = 0; k < THREADS / 32; k++) total += sums[k * 32 * WIDE + threadIdx.x];
	return total;
}

/* Factor on q (rope_args) */
static __device__ __forceinline__ float temperature_at(float temperature, int64_t positions, int64_t position)
{
	return 1.0f + temperature * log1pf((float)(position / positions));
}

/* ---- host ---- */

/* Lanes that share a row of `dim` elements, WIDE each at a time */
static inline int lanes_of(int64_t dim)
{
	int lanes = 1;
	while (lanes < 32 && lanes * WIDE < dim) lanes *= 2;
	return lanes;
}

/* May rows of `length` elements that start at these pointers be accessed 16 bytes at a time? */
static inline int wide_rows(int64_t length, const void *a, const void *b, const void *c, const void *d)
{
	uintptr_t all = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
	return length % WIDE == 0 && all % 16 == 0;
}

#ifndef MOST_BLOCKS     /* fewer for the emulated GPU */
#define MOST_BLOCKS 768 /* most partial sums of a weight's gradient: two rounds of 3 blocks a multiprocessor */
#endif
#define PARTIAL_BYTES (32u << 20) /* of work for partial gradients */

/* The number of blocks for n rows whose partial gradients have `width` elements; it depends on the shape alone */
static inline int64_t partial_blocks(int64_t n, int64_t width)
{
	int64_t room = (int64_t)(PARTIAL_BYTES / sizeof(float)) / width;
	return least(least(n, MOST_BLOCKS), room > 1 ? room : 1);
}

/* dst (n) = beta dst + sum over count partials, in their order; partial i starts at i * stride */
void cuda_sum_partials(const struct cuda_queue *, float *dst, float beta, const float *partial, int64_t count,
	int64_t stride, int64_t n);

/* Where rows of a norm start, in elements: of x and dx, of y and dy, of what backward gets as x, and of statistics */
struct norm_rows {
	int64_t x, y, kept, stat;
};

/* The norms of norm.cu where rows lie so. Forward copies x to `kept`, if that is not NULL; backward's x is that copy */
void cuda_norm_rows_forward(const struct cuda_queue *, const struct norm_forward_args *, struct norm_rows, void *kept);
void cuda_norm_rows_backward(const struct cuda_queue *, const struct norm_backward_args *, struct norm_rows);

cudaError_t delta_prepare(void), scan_prepare(void); /* delta.cu's and scan.cu's parts of cuda_kernels_prepare */

/* Request all shared memory that a block can have for these kernels */
static inline cudaError_t kernels_prepare(const void *const *kernels, size_t n)
{
	cudaError_t e = cudaSuccess;
	for (size_t i = 0; !e && i < n; i++)
		e = cudaFuncSetAttribute(kernels[i], cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MOST);
	return e;
}

/* call(T) for the queue's element type T; for the type of this many bytes */
#define BY_ELEMENT(q, launch) BY_BYTES((q)->elem, launch)
#define BY_BYTES(bytes, ...) \
	do { \
		if ((bytes) == 2) { \
			typedef struct bf16 T; \
			__VA_ARGS__; \
		} else { \
			typedef float T; \
			__VA_ARGS__; \
		} \
	} while (0)

#endif
