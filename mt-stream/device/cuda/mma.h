/* mma.h: tensor cores, by the warp: fragments of bf16 matrices, and c += a b in fp32 (PTX ISA 9.0, 9.7.14.5.8 "Matrix
 * Fragments for mma.m16n8k16 with floating point type": groupID is g, threadID_in_group is t; 9.7.14.5.15 ldmatrix:
 * lane 8 j + i gives the address of row i of matrix j, and gets of each matrix columns 2t, 2t + 1 of row g, or, with
 * .trans, rows 2t, 2t + 1 of column g). With g = lane / 4 and t = lane % 4, a lane holds these elements of
 *
 *     a (16, 16)   4 words   rows g, g + 8, g, g + 8;  columns 2t, 2t + 1 of the left half twice, then of the right
 *     b (16, 8)    2 words   column g;                 rows 2t, 2t + 1 of the upper half, then of the lower
 *     c (16, 8)    4 floats  rows g, g, g + 8, g + 8;  columns 2t, 2t + 1
 *
 * So c of two neighbouring tiles, rounded, is an a. Matrices lie in shared memory, rows `stride` elements apart, each
 * row at a multiple of 16 bytes.
 */
#ifndef MT_STREAM_CUDA_MMA_H
#define MT_STREAM_CUDA_MMA_H

#include "common.h"

#ifdef MT_EMU

static inline void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	struct emu_word mine = {{(uint64_t)a[1] << 32 | a[0], (uint64_t)a[3] << 32 | a[2], (uint64_t)b[1] << 32 | b[0], 0}};
	const struct emu_word *all;
	unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	emu_exchange(&mine, &all);
	for (unsigned k = 0; k < 16; k++) {
		unsigned holder = k % 8 / 2, right = k / 8, shift = k % 2 * 16;
		float x[2], y[2];
		for (unsigned i = 0; i < 2; i++) {
			x[i] = as_float((uint32_t)(all[4 * g + holder].w[right] >> (32 * i + shift)) << 16);
			y[i] = as_float((uint32_t)(all[4 * (2 * t + i) + holder].w[2] >> (32 * right + shift)) << 16);
		}
		for (unsigned i = 0; i < 4; i++) c[i] += x[i / 2] * y[i % 2];
	}
}

/* four 8 x 8 matrices; lane 8 j + i has the address of matrix j's row i */
static inline void load_matrices(uint32_t r[4], const struct bf16 *row, int transposed)
{
	struct emu_word mine = {{(uint64_t)(uintptr_t)emu_aligned(row, 16)}};
	const struct emu_word *all;
	unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	emu_exchange(&mine, &all);
	for (unsigned j = 0; j < 4; j++) {
		uint32_t low, high;
		if (transposed) {
			low = ((const struct bf16 *)(uintptr_t)all[8 * j + 2 * t].w[0])[g].bits;
			high = ((const struct bf16 *)(uintptr_t)all[8 * j + 2 * t + 1].w[0])[g].bits;
		} else {
			low = ((const struct bf16 *)(uintptr_t)all[8 * j + g].w[0])[2 * t].bits;
			high = ((const struct bf16 *)(uintptr_t)all[8 * j + g].w[0])[2 * t + 1].bits;
		}
		r[j] = high << 16 | low;
	}
}

#else

static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
{
	asm volatile(
		"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		: "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void load_matrices(uint32_t r[4], const struct bf16 *row, int transposed)
{
	uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
	if (transposed)
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
					 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
					 : "r"(at)
					 : "memory");
	else
		asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
					 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
					 : "r"(at)
					 : "memory");
}

#endif

/* The element of m[0..15][0..15] that the lane addresses: row lane % 8 of matrix lane / 8 of the four 8 x 8 matrices,
 * the second one of which is below the first (down 1) or right of it */
static __device__ __forceinline__ int place_in_four(int stride, int down)
{
	int lane = threadIdx.x % 32, j = lane / 8, row = down ? j % 2 : j / 2, column = down ? j / 2 : j % 2;
	return (row * 8 + lane % 8) * stride + column * 8;
}

static __device__ __forceinline__ void load_four(uint32_t r[4], const struct bf16 *m, int stride, int down,
	int transposed)
{
	load_matrices(r, m + place_in_four(stride, down), transposed);
}

/* a = m[0..15][0..15]; a = the same transposed */
static __device__ __forceinline__ void load_a(uint32_t a[4], const struct bf16 *m, int stride)
{
	load_four(a, m, stride, 1, 0);
}
static __device__ __forceinline__ void load_a_columns(uint32_t a[4], const struct bf16 *m, int stride)
{
	load_four(a, m, stride, 0, 1);
}

/* Two b beside each other: m[0..15][0..15] as it lies; columns are m's rows 0..15, rows are m's columns 0..15 */
static __device__ __forceinline__ void load_b(uint32_t b[4], const struct bf16 *m, int stride)
{
	load_four(b, m, stride, 1, 1);
}
static __device__ __forceinline__ void load_b_rows(uint32_t b[4], const struct bf16 *m, int stride)
{
	load_four(b, m, stride, 0, 0);
}

/* a from c of two neighbouring tiles */
static __device__ __forceinline__ void round_a(uint32_t a[4], const float left[4], const float right[4])
{
	a[0] = pack_bf16(left[0], left[1]);
	a[1] = pack_bf16(left[2], left[3]);
	a[2] = pack_bf16(right[0], right[1]);
	a[3] = pack_bf16(right[2], right[3]);
}

#endif
