/* kernel-misc.h: simple loops over long arrays; most of them the compiler vectorises by itself */

static void add(float *y, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++) y[i] += x[i];
}

/* Without add it starts from zeros. One more product costs nothing: memory is the limit */
INLINE void scaled_add_from(float *y, const float *x, const float *add, float scale, float factor, int64_t n)
{
	vf s = v_set(scale), f = v_set(factor);
	for (int64_t i = 0; i < n; i += VW) {
		vf from = add ? v_get(add + i, n - i) : v_set(0);
		v_put(y + i, n - i, v_fma(s, v_get(x + i, n - i), from) * f);
	}
}

static void scaled_add(float *y, const float *x, const float *add, float scale, float factor, int64_t n)
{
	if (add) scaled_add_from(y, x, add, scale, factor, n);
	else scaled_add_from(y, x, NULL, scale, factor, n);
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
