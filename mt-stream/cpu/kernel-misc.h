/* kernel-misc.h: loops that the compiler vectorises by itself */

static void add(float *y, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static void widen(float *dst, const uint16_t *src, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t bits = (uint32_t)src[i] << 16;
		memcpy(dst + i, &bits, sizeof bits);
	}
}

/* nearest, ties to even; a NaN stays one (quiet, its sign and upper payload kept) */
static void narrow(uint16_t *dst, const float *src, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, src + i, sizeof bits);
		uint32_t nan = (bits & 0x7fffffff) > 0x7f800000;
		uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
		dst[i] = (uint16_t)(nan ? bits >> 16 | 0x40 : rounded);
	}
}
