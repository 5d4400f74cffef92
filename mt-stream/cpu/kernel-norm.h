/* kernel-norm.h: RMSNorm (arXiv 1910.07467) over rows, and column sums */

/* 1 / sqrt(mean(x^2) + eps) */
INLINE float rms_of(const float *x, int64_t h, float eps)
{
	vf sum[4] = {{0}};
	int64_t i = 0;
	for (; i + 4 * VW <= h; i += 4 * VW)
		for (int j = 0; j < 4; j++) {
			vf v = v_load(x + i + j * VW);
			sum[j] = v_fma(v, v, sum[j]);
		}
	for (; i < h; i += VW) {
		vf v = v_get(x + i, h - i);
		sum[0] = v_fma(v, v, sum[0]);
	}
	return 1.0f / sqrtf(v_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)h + eps);
}

INLINE void rms_scale(float *y, const float *x, const float *w, float rstd, int64_t h)
{
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		v_put(y + i, n, v_get(x + i, n) * v_set(rstd) * v_get(w + i, n));
	}
}

/* With g = dy w and y = x rstd:  dx = rstd (g - y mean(g y)),  dw += dy y.  dx may be dy. */
INLINE void rms_back(float *dx, int add_dx, float *dw, const float *dy, const float *x, const float *w, float rstd,
	int64_t h)
{
	vf r = v_set(rstd), sum[2] = {{0}};
	for (int64_t i = 0, j = 0; i < h; i += VW, j ^= 1) {
		int64_t n = h - i;
		vf d = v_get(dy + i, n), y = v_get(x + i, n) * r;
		sum[j] = v_fma(d * v_get(w + i, n), y, sum[j]);
		v_put(dw + i, n, v_fma(d, y, v_get(dw + i, n)));
	}
	vf mean = v_set(v_sum(sum[0] + sum[1]) / (float)h);
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		vf y = v_get(x + i, n) * r;
		vf g = v_get(dy + i, n) * v_get(w + i, n);
		vf d = r * (g - y * mean);
		v_put(dx + i, n, add_dx ? v_get(dx + i, n) + d : d);
	}
}

static void rmsnorm_forward(float *y, float *rstd, const float *x, const float *w, int64_t rows, int64_t h, float eps)
{
	for (int64_t r = 0; r < rows; r++) {
		rstd[r] = rms_of(x + r * h, h, eps);
		rms_scale(y + r * h, x + r * h, w, rstd[r], h);
	}
}

static void rmsnorm_backward(float *dx, int add_dx, float *dw, const float *dy, const float *x, const float *w,
	const float *rstd, int64_t rows, int64_t h)
{
	for (int64_t r = 0; r < rows; r++) rms_back(dx + r * h, add_dx, dw, dy + r * h, x + r * h, w, rstd[r], h);
}

static void column_sums(float *sum, const float *x, int64_t rows, int64_t n)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < n; i += VW) v_put(sum + i, n - i, v_get(sum + i, n - i) + v_get(x + r * n + i, n - i));
}
