/* half.h: fp16, and back. */
#ifndef MT_HALF_H
#define MT_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* fp16 pattern -> fp32 pattern, exact for all */
static inline uint32_t half_bits(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 1023, bits;
	if (exp == 31) return sign | 0x7f800000u | frac << 13;
	if (exp) return sign | (exp + 112) << 23 | frac << 13;
	float denormal = (float)frac * 0x1p-24f; /* exact in fp32 */
	memcpy(&bits, &denormal, sizeof bits);
	return sign | bits;
}

static inline float half_float(uint16_t h)
{
	uint32_t bits = half_bits(h);
	float f;
	memcpy(&f, &bits, sizeof f);
	return f;
}

/* The nearest fp16, ties to even, of any number but NaN */
static inline uint16_t half_round(float x)
{
	uint32_t bits;
	float size = fabsf(x);
	uint16_t sign = signbit(x) ? 0x8000 : 0;
	memcpy(&bits, &size, sizeof bits);
	if (size < 0x1p-14f) return (uint16_t)(sign | lrintf(size * 0x1p24f));
	if (size >= 65520) return sign | 0x7c00; /* infinity */
	return (uint16_t)(sign | (((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112u << 10)));
}

#endif
