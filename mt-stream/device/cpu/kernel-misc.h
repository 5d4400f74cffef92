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

/* Four vectors of y's elements at a time stay in registers while all rows are added */
INLINE void weighted_sum_part(float *y, const float *before, const float *const *x, const float *weight, int64_t rows,
	const float *add, int64_t at, int64_t n)
{
	vf sum[4];
	int64_t left = n - at;
	UNROLL for (int v = 0; v < 4; v++) sum[v] = before && left > v * VW ? v_get(before + at + v * VW, left - v * VW)
																		: v_set(0);
	for (int64_t r = 0; r < rows; r++) {
		vf w = v_set(weight[r]);
		UNROLL for (int v = 0; v < 4; v++) if (left > v * VW) sum[v] += w * v_get(x[r] + at + v * VW, left - v * VW);
	}
	UNROLL for (int v = 0; v < 4; v++)
	{
		if (left <= v * VW) continue;
		if (add) sum[v] += v_get(add + at + v * VW, left - v * VW);
		v_put(y + at + v * VW, left - v * VW, sum[v]);
	}
}

static void weighted_sum(float *y, const float *before, const float *const *x, const float *weight, int64_t rows,
	const float *add, int64_t n)
{
	int64_t at = 0;
	for (; n - at >= 4 * VW; at += 4 * VW) weighted_sum_part(y, before, x, weight, rows, add, at, at + 4 * VW);
	if (at < n) weighted_sum_part(y, before, x, weight, rows, add, at, n);
}

/* In 16 sums, whatever VW is */
static double dot_fp64(const float *x, const float *y, int64_t n)
{
	enum { SUMS = 16 };
	double sum[SUMS] = {0};
	int64_t i = 0;
	for (; n - i >= SUMS; i += SUMS)
		for (int k = 0; k < SUMS; k++) sum[k] += (double)x[i + k] * y[i + k];
	for (int k = 0; i + k < n; k++) sum[k] += (double)x[i + k] * y[i + k];
	for (int k = SUMS / 2; k; k /= 2)
		for (int j = 0; j < k; j++) sum[j] += sum[j + k];
	return sum[0];
}

static void scale(float *x, float w, int64_t n)
{
	for (int64_t i = 0; i < n; i++) x[i] *= w;
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

/* A block of VW x VW, or of its first rows and cols */
INLINE void transpose_block(float *dst, int64_t dst_ld, const float *src, int64_t src_ld, int64_t rows, int64_t cols)
{
	vf x[VW];
	UNROLL for (int i = 0; i < VW; i++) x[i] = i < rows ? v_get(src + i * src_ld, cols) : v_set(0);
	v_transpose(x);
	UNROLL for (int i = 0; i < VW; i++) if (i < cols) v_put(dst + i * dst_ld, rows, x[i]);
}

static void transpose(float *dst, int64_t dst_ld, const float *src, int64_t src_ld, int64_t rows, int64_t cols)
{
	for (int64_t r = 0; r < rows; r += VW)
		for (int64_t c = 0; c < cols; c += VW) {
			float *to = dst + c * dst_ld + r;
			const float *from = src + r * src_ld + c;
			if (rows - r >= VW && cols - c >= VW) transpose_block(to, dst_ld, from, src_ld, VW, VW);
			else transpose_block(to, dst_ld, from, src_ld, rows - r, cols - c);
		}
}
