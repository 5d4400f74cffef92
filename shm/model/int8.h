/* int8.h: AdamW's m and v with one byte an element (mt-store create --state int8), and back.
 *
 * An array of a unit is elems codes | elems / MT_GROUP scales (fp32). A group's scale is its largest |x|.
 *
 *     m: codes -127 .. 127     |x| = (|code| / 127)^2 scale     steps between neighbours are a share of |x|, not of
 *     v: codes 0, 2 .. 255      x  = (code / 255)^4 scale       the scale: elements far below the largest keep digits
 *
 * The largest element gets the highest code, whatever the random number, and that code is the scale exactly. So the
 * values tell the scale, and to code decoded values again (with INT8_NEAREST) gives the same codes: checkpoints keep
 * the values alone. Plain IEEE operations in one order: SIMD versions give the same bits.
 */
#ifndef MT_INT8_H
#define MT_INT8_H

#include <float.h>
#include <math.h>

#include "mt.h"

#define INT8_M_TOP 127.0f
#define INT8_V_TOP 255.0f
#define INT8_V_LEAST 2               /* code of the smallest positive v: mt-optim/adamw.h says why */
#define INT8_M_UNIT (1 / INT8_M_TOP) /* rounded, but times the top it is 1 */
#define INT8_V_UNIT (1 / INT8_V_TOP)
#define INT8_M_SPAN (INT8_M_TOP * INT8_M_TOP)
#define INT8_V_SPAN (INT8_V_TOP * INT8_V_TOP * INT8_V_TOP * INT8_V_TOP) /* rounded to fp32 */
#define INT8_NEAREST 0x8000u                                            /* for a random number */
#define INT8_RANDOM_UNIT 0x1p-16f

static inline float *int8_scales(const void *codes, uint64_t elems) { return (float *)((uintptr_t)codes + elems); }

static inline float int8_m(int8_t code, float scale)
{
	float t = (float)code * INT8_M_UNIT;
	return t * fabsf(t) * scale;
}

static inline float int8_v(uint8_t code, float scale)
{
	float t = (float)code * INT8_V_UNIT, t2 = t * t;
	return t2 * t2 * scale;
}

/* The larger of a scale and |x|. As integers, a NaN is the largest, so the order of elements does not matter. */
static inline float int8_larger(float scale, float x)
{
	uint32_t a = mt_bits(scale), b = mt_bits(x) & 0x7fffffff;
	return mt_float(a > b ? a : b);
}

static inline float int8_inverse(float scale) { return scale >= FLT_MIN ? 1 / scale : 0; }

/* random: 16 bits. z is |x| in units in which the value of code c is c^2; above c by its share of the way to c + 1 */
static inline int8_t int8_m_code(float x, float inverse, uint32_t random)
{
	float z = fabsf(x) * inverse * INT8_M_SPAN, root = sqrtf(z);
	int32_t code = (int32_t)(root < INT8_M_TOP ? root : INT8_M_TOP); /* a NaN: the highest */
	float c = (float)code, width = c + c + 1;
	code += (float)random * INT8_RANDOM_UNIT * width < z - c * c;
	code = code < 127 ? code : 127;
	return (int8_t)(mt_bits(x) >> 31 ? -code : code);
}

/* root: sqrt(x), which the update has at hand; root_inverse: sqrt(inverse) */
static inline uint8_t int8_v_code(float x, float root, float inverse, float root_inverse, uint32_t random)
{
	float z = x * inverse * INT8_V_SPAN, at = sqrtf(root * root_inverse) * INT8_V_TOP;
	int32_t code = (int32_t)(at < INT8_V_TOP ? at : INT8_V_TOP), least = x > 0 ? INT8_V_LEAST : 0;
	float c = (float)code, n = c + 1, low = c * c * (c * c), high = n * n * (n * n);
	code += (float)random * INT8_RANDOM_UNIT * (high - low) < z - low;
	code = code < 255 ? code : 255;
	return (uint8_t)(code > least ? code : least);
}

#endif
