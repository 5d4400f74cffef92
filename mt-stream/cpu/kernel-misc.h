/* kernel-misc.h: loops that the compiler vectorises by itself */

static void add(float *y, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

static void widen(float *dst, const uint16_t *src, int64_t n)
{
	for (int64_t i = 0; i < n; i++) dst[i] = bf16_float(src[i]);
}

static void narrow(uint16_t *dst, const float *src, int64_t n)
{
	for (int64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, src + i, sizeof bits);
		dst[i] = bf16_round(bits);
	}
}
