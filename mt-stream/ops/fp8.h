/* fp8.h: operands of a GEMM rounded to FP8 (--compute fp8)
 *
 * e4m3 has 4 bits of exponent and 3 of mantissa: 448 at most, 2^-6 the smallest normal number, steps of 2^-9 below.
 * Each row of a' and each column of b' is divided by a power of two of its own, the smallest by which all of it is at
 * most 448, and rounded to nearest even. This is torchao's recipe "rowwise" (powers of two, e4m3 for gradients, too).
 * What is not finite becomes NaN.
 *
 * Such a number times its power of two is a number of bf16. So a device without FP8 multiplies the same operands in
 * bf16.
 */
#ifndef MT_STREAM_OPS_FP8_H
#define MT_STREAM_OPS_FP8_H

#include "gemm.h"

/* Tokens of a GEMM whose operands are rounded, at most: this keeps the copies small. A gradient of
 * weights, which is a sum over tokens, has scales of its own for as many. */
#define FP8_TOKENS 16384
#define FP8_WIDTH 16   /* elements: the library takes rows of c of multiples of it, */
#define FP8_BLOCK 32   /* and of copies of multiples of this, which may have a scale */
#define FP8_PART 1024  /* elements of a column whose largest one a block of threads finds */
#define FP8_LEAST -100 /* exponents of a scale, at least */

/* Are the operands of this GEMM rounded? Else it is computed as without --compute fp8 */
static inline int fp8_takes(const struct gemm_args *g) { return g->fp8 && g->n % FP8_WIDTH == 0; }

/* k as the copies have it, with zeros at the end */
static inline int64_t fp8_depth(int64_t k) { return div_up(k, FP8_BLOCK) * FP8_BLOCK; }

/* Scales in tiles, of rows and of the blocks of each: tiles that a row goes through. A tile has
 * offset = row % 32 * 16 + row % 128 / 32 * 4 + block (cuBLAS's documentation) */
enum { FP8_TILE_ROWS = 128, FP8_TILE_BLOCKS = 4, FP8_TILE_BYTES = FP8_TILE_ROWS * FP8_TILE_BLOCKS };
static inline int64_t fp8_tiles(int64_t k) { return div_up(k, FP8_BLOCK * FP8_TILE_BLOCKS); }
static inline int64_t fp8_tiled_bytes(int64_t rows, int64_t k)
{
	return div_up(rows, FP8_TILE_ROWS) * fp8_tiles(k) * FP8_TILE_BYTES;
}

/* The work memory of a GEMM: both copies, with `bytes` an element; behind each, the scales of its rows, in fp32 or in
 * tiles, and of each part of a row its largest element */
static inline int64_t fp8_scales_bytes(int64_t rows, int64_t k)
{
	int64_t tiled = fp8_tiled_bytes(rows, k);
	return tiled > 4 * rows ? tiled : 4 * rows;
}
static inline int64_t fp8_copy_bytes(int64_t rows, int64_t k, size_t bytes)
{
	int64_t codes = rows * fp8_depth(k) * (int64_t)bytes, largest = 2 * rows * (k / FP8_PART + 1);
	return div_up(codes + fp8_scales_bytes(rows, k) + largest, 256) * 256;
}

/* The scale's exponent, by the largest element of a row: its magnitude as bits of bf16. 448 is 1.75 * 2^8. */
ON_DEVICE static inline int fp8_exponent(unsigned largest)
{
	int e = (int)(largest >> 7) - 127 - 8 + ((largest & 0x7f) > 0x60);
	return e > FP8_LEAST ? e : FP8_LEAST;
}

#endif
