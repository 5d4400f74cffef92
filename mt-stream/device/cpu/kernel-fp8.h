/* kernel-fp8.h: bf16 rounded to what e4m3 times a power of two has (ops/fp8.h); the compiler vectorises the loops */

static float fp8_power(int e)
{
	uint32_t bits = (uint32_t)(127 + e) << 23;
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

/* x, divided by the scale, rounded to e4m3: at most 448, or not finite */
INLINE float fp8_rounded(float x)
{
	uint32_t bits, sign;
	memcpy(&bits, &x, sizeof bits);
	sign = bits & 0x80000000;
	bits ^= sign;
	float size, steps = 1 << 14; /* whose last bit is 2^-9 */
	memcpy(&size, &bits, sizeof size);
	float small = size + steps - steps;
	uint32_t normal = (bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000, of_small;
	memcpy(&of_small, &small, sizeof of_small);
	normal = bits < 0x3c800000 ? of_small : normal; /* 2^-6 */
	normal = (bits >= 0x7f800000 ? 0x7fc00000 : normal) | sign;
	memcpy(&x, &normal, sizeof x);
	return x;
}

INLINE uint16_t fp8_one(uint16_t x, float down, float up)
{
	float y = fp8_rounded(bf16_float(x) * down) * up;
	uint32_t bits;
	memcpy(&bits, &y, sizeof bits);
	return (uint16_t)(bits >> 16);
}

/* A row of n */
static void fp8_row(uint16_t *dst, const uint16_t *src, int64_t n)
{
	uint16_t largest = 0;
	for (int64_t i = 0; i < n; i++) {
		uint16_t size = src[i] & 0x7fff;
		largest = size > largest ? size : largest;
	}
	int e = fp8_exponent(largest);
	float down = fp8_power(-e), up = fp8_power(e);
	for (int64_t i = 0; i < n; i++) dst[i] = fp8_one(src[i], down, up);
}

/* n columns of `rows` rows, each with a scale; rows are ld apart */
static void fp8_columns(uint16_t *dst, int64_t dst_ld, const uint16_t *src, int64_t ld, int64_t rows, int64_t n)
{
	uint16_t largest[FP8_COLUMNS] = {0};
	float down[FP8_COLUMNS], up[FP8_COLUMNS];
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < n; i++) {
			uint16_t size = src[r * ld + i] & 0x7fff;
			largest[i] = size > largest[i] ? size : largest[i];
		}
	for (int64_t i = 0; i < n; i++) {
		int e = fp8_exponent(largest[i]);
		down[i] = fp8_power(-e);
		up[i] = fp8_power(e);
	}
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < n; i++) dst[r * dst_ld + i] = fp8_one(src[r * ld + i], down[i], up[i]);
}
