/* int8.h: AdamW's m and v with one byte an element (mt-store create --state int8), and back.
 *
 * An array of a unit is elems codes | elems / MT_GROUP scales (fp32), which begin at a multiple of 4096 bytes. A code
 * is a float of 8 bits, with three bits of fraction: neighbours differ by 6 to 12 %. A group's scale is the power of
 * two that begins the binade of its largest value after rounding, from 2^-95 to 2^127; 0 in a group that was never
 * written.
 *
 *     m: sign | exponent 4 | fraction 3     |x| = scale 2^(exponent - 15) (1 + fraction / 8), but code 0 is 0
 *     v:        exponent 5 | fraction 3      x  = scale 2^(exponent - 31) (1 + fraction / 8), never 0
 *
 * Each of a group's 16 words has the codes of two neighbours and of those 32 later: elements 2 j, 2 j + 1, 2 j + 32 and
 * 2 j + 33. So SIMD takes codes apart by shifts, into registers of even and of odd elements, as it does with bf16.
 *
 * A code and its scale are the upper 12 bits of a rounded fp32 pattern, so coding is integer arithmetic, the same in
 * every instruction set. The values tell the scale, and to code decoded values again gives the same codes, but for the
 * sign of an m of 0.
 */
#ifndef MT_INT8_H
#define MT_INT8_H

#include "mt/layout.h"

#define INT8_CUT 20             /* bits of an fp32 pattern that a code lacks */
#define INT8_NEAREST 0x80000u   /* for a random number of as many bits */
#define INT8_M_BASE 0x38000000u /* m's code c of scale 1 is the pattern INT8_M_BASE + (c << INT8_CUT) */
#define INT8_V_BASE 0x30000000u /* v's */
#define INT8_ONE 0x3f800000u
#define INT8_LEAST 0x10000000u /* 2^-95: v's smallest value is then 2^-126, the smallest normal number */
#define INT8_MOST 0x7f000000u

static inline float *int8_scales(const void *codes, uint64_t elems)
{
	return (float *)((uintptr_t)codes + mt_scales_at(elems));
}

/* Where the code of element i of an array is */
static inline uint64_t int8_at(uint64_t i) { return i - i % MT_GROUP + i % 32 / 2 * 4 + i % MT_GROUP / 32 * 2 + i % 2; }

/* x rounded, as a pattern whose upper 12 bits count. random: INT8_CUT bits */
static inline uint32_t int8_round(float x, uint32_t random) { return mt_bits(x) + random; }

/* The scale of a group whose largest |x|, rounded, is `most` */
static inline float int8_scale(uint32_t most)
{
	uint32_t x = most & 0x7f800000;
	return mt_float(x < INT8_LEAST ? INT8_LEAST : x > INT8_MOST ? INT8_MOST : x);
}

/* What is too small for a code is 0 */
static inline uint8_t int8_m_code(uint32_t rounded, float scale)
{
	uint32_t x = rounded & 0x7fffffff, base = mt_bits(scale) - (INT8_ONE - INT8_M_BASE);
	return (uint8_t)(rounded >> 31 << 7 | ((x > base ? x - base : 0) >> INT8_CUT & 0x7f));
}

/* x is not negative. What is too small for a code becomes the smallest value: mt-optim/update.h says why. */
static inline uint8_t int8_v_code(uint32_t rounded, float scale)
{
	uint32_t base = mt_bits(scale) - (INT8_ONE - INT8_V_BASE);
	return (uint8_t)((rounded > base ? rounded - base : 0) >> INT8_CUT);
}

/* 0 is -0: added to any number, it changes no bit, so SIMD may leave it out */
static inline float int8_m(uint8_t code, float scale)
{
	uint32_t c = code & 0x7f;
	return c ? mt_float((uint32_t)code >> 7 << 31 | (INT8_M_BASE + (c << INT8_CUT))) * scale : -0.0f;
}

static inline float int8_v(uint8_t code, float scale)
{
	return mt_float(INT8_V_BASE + ((uint32_t)code << INT8_CUT)) * scale;
}

/* The square root of a rounded v, whose lowest INT8_CUT bits do not count: a table of 16, by the lowest bit of the
 * exponent and the three of the fraction. Exact as sqrtf is, but below 2^-126 about 2^-63. */
static const uint32_t int8_roots[16] = {0x1fb504f3, 0x1fb80000, 0x1fba62c2, 0x1fbc4395, 0x1fbdb3d7, 0x1fbec15a,
	0x1fbf7751, 0x1fbfdef6, 0x1fc00000, 0x1fbfc3b6, 0x1fbf1bbd, 0x1fbe17e3, 0x1fbcc471, 0x1fbb2b2b, 0x1fb953fd,
	0x1fb7456f};
static inline float int8_root(uint32_t rounded)
{
	uint32_t x = rounded >> INT8_CUT;
	return mt_float((x << (INT8_CUT - 1)) + int8_roots[x % 16]);
}

#endif
