/* bf16.h: the one rounding of fp32 to bf16, and back. The exact split into two halves (w and lo) is in mt/layout.h. */
#ifndef MT_BF16_H
#define MT_BF16_H

#include <stdint.h>
#include <string.h>

/* An fp32 pattern to the nearest bf16, ties to even. A NaN stays one: quiet, with its sign and upper payload. Without
 * branches, so that loops over it are vectorised. */
static inline uint16_t bf16_round(uint32_t bits)
{
	uint32_t nan = (bits & 0x7fffffff) > 0x7f800000;
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
	return (uint16_t)(nan ? bits >> 16 | 0x40 : rounded);
}

static inline float bf16_float(uint16_t b)
{
	uint32_t bits = (uint32_t)b << 16;
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

#endif
