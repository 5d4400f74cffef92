/* kernel-norm.h: RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450) over rows, and column sums */

/* The factor of a normed element. A constant wherever it is used, so that it costs nothing in the loops */
enum weight { WEIGHT, ONE_AND_WEIGHT, NO_WEIGHT };
INLINE enum weight weight_of(const void *w, int one) { return !w ? NO_WEIGHT : one ? ONE_AND_WEIGHT : WEIGHT; }

INLINE vf weight_at(enum weight kind, const float *w, int64_t i, int64_t n)
{
	if (kind == NO_WEIGHT) return v_set(1);
	return kind == ONE_AND_WEIGHT ? v_set(1) + v_get(w + i, n) : v_get(w + i, n);
}

/* ---- RMSNorm ---- */

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

/* y may be x */
INLINE void rms_scale(float *y, const float *x, enum weight kind, const float *w, float rstd, int64_t h)
{
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		v_put(y + i, n, v_get(x + i, n) * v_set(rstd) * weight_at(kind, w, i, n));
	}
}

/* With g = dy w and y = x rstd:  dx = rstd (g - y mean(g y)),  dw += dy y.  dx may be dy. */
INLINE void rms_back(float *dx, int add_dx, float *dw, const float *dy, const float *x, enum weight kind,
	const float *w, float rstd, int64_t h)
{
	vf r = v_set(rstd), sum[2] = {{0}};
	for (int64_t i = 0, j = 0; i < h; i += VW, j ^= 1) {
		int64_t n = h - i;
		vf d = v_get(dy + i, n), y = v_get(x + i, n) * r;
		sum[j] = v_fma(d * weight_at(kind, w, i, n), y, sum[j]);
		if (kind != NO_WEIGHT) v_put(dw + i, n, v_fma(d, y, v_get(dw + i, n)));
	}
	vf mean = v_set(v_sum(sum[0] + sum[1]) / (float)h);
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		vf y = v_get(x + i, n) * r;
		vf g = v_get(dy + i, n) * weight_at(kind, w, i, n);
		vf d = r * (g - y * mean);
		v_put(dx + i, n, add_dx ? v_get(dx + i, n) + d : d);
	}
}

/* ---- LayerNorm ---- */

INLINE float mean_of(const float *x, int64_t h)
{
	vf sum[4] = {{0}};
	int64_t i = 0;
	for (; i + 4 * VW <= h; i += 4 * VW)
		for (int j = 0; j < 4; j++) sum[j] += v_load(x + i + j * VW);
	for (; i < h; i += VW) sum[0] += v_get(x + i, h - i);
	return v_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)h;
}

/* x - mean, and 0 in lanes behind the n-th element */
INLINE vf centred(const float *x, int64_t n, vf mean)
{
	vf d = v_get(x, n) - mean;
	if (n >= VW) return d;
	float lanes[VW] = {0};
	v_store_part(lanes, n, d);
	return v_load(lanes);
}

/* 1 / sqrt(mean((x - mean)^2) + eps) */
INLINE float deviation_of(const float *x, float mean, int64_t h, float eps)
{
	vf m = v_set(mean), sum[4] = {{0}};
	int64_t i = 0;
	for (; i + 4 * VW <= h; i += 4 * VW)
		for (int j = 0; j < 4; j++) {
			vf d = v_load(x + i + j * VW) - m;
			sum[j] = v_fma(d, d, sum[j]);
		}
	for (; i < h; i += VW) {
		vf d = centred(x + i, h - i, m);
		sum[0] = v_fma(d, d, sum[0]);
	}
	return 1.0f / sqrtf(v_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)h + eps);
}

INLINE void layer_scale(float *y, const float *x, enum weight kind, const float *w, const float *b, float mean,
	float rstd, int64_t h)
{
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		vf normed = (v_get(x + i, n) - v_set(mean)) * v_set(rstd), wide = weight_at(kind, w, i, n);
		v_put(y + i, n, b ? v_fma(normed, wide, v_get(b + i, n)) : normed * wide);
	}
}

/* With g = dy w and y = (x - mean) rstd:  dx = rstd (g - mean(g) - y mean(g y)),  dw += dy y,  db += dy */
INLINE void layer_back(float *dx, int add_dx, float *dw, float *db, const float *dy, const float *x, enum weight kind,
	const float *w, float mean, float rstd, int64_t h)
{
	vf m = v_set(mean), r = v_set(rstd), sum[2] = {{0}}, sum_g[2] = {{0}};
	for (int64_t i = 0, j = 0; i < h; i += VW, j ^= 1) {
		int64_t n = h - i;
		vf d = v_get(dy + i, n), y = (v_get(x + i, n) - m) * r, g = d * weight_at(kind, w, i, n);
		sum[j] = v_fma(g, y, sum[j]);
		sum_g[j] += g;
		if (kind != NO_WEIGHT) v_put(dw + i, n, v_fma(d, y, v_get(dw + i, n)));
		if (db) v_put(db + i, n, v_get(db + i, n) + d);
	}
	vf mean_gy = v_set(v_sum(sum[0] + sum[1]) / (float)h), mean_g = v_set(v_sum(sum_g[0] + sum_g[1]) / (float)h);
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		vf y = (v_get(x + i, n) - m) * r;
		vf g = v_get(dy + i, n) * weight_at(kind, w, i, n);
		vf d = r * (g - mean_g - y * mean_gy);
		v_put(dx + i, n, add_dx ? v_get(dx + i, n) + d : d);
	}
}

/* ---- rows ---- */

INLINE void norm_rows(const struct norm_forward_args *a, enum weight kind, int64_t first, int64_t end)
{
	const float *x = a->x;
	float *y = a->y;
	int64_t h = a->h;
	for (int64_t r = first; r < end; r++)
		if (a->mean) {
			a->mean[r] = mean_of(x + r * h, h);
			a->rstd[r] = deviation_of(x + r * h, a->mean[r], h, a->eps);
			layer_scale(y + r * h, x + r * h, kind, a->w, a->b, a->mean[r], a->rstd[r], h);
		} else {
			a->rstd[r] = rms_of(x + r * h, h, a->eps);
			rms_scale(y + r * h, x + r * h, kind, a->w, a->rstd[r], h);
		}
}

static void norm_forward(const struct norm_forward_args *a, int64_t first, int64_t end)
{
	switch (weight_of(a->w, a->one)) {
	case WEIGHT: norm_rows(a, WEIGHT, first, end); break;
	case ONE_AND_WEIGHT: norm_rows(a, ONE_AND_WEIGHT, first, end); break;
	case NO_WEIGHT: norm_rows(a, NO_WEIGHT, first, end); break;
	}
}

INLINE void norm_rows_back(const struct norm_backward_args *a, enum weight kind, float *dw, float *db, int64_t first,
	int64_t end)
{
	const float *x = a->x, *dy = a->dy;
	float *dx = a->dx;
	int64_t h = a->h;
	for (int64_t r = first, at = r * h; r < end; r++, at += h)
		if (a->mean) layer_back(dx + at, a->add_dx, dw, db, dy + at, x + at, kind, a->w, a->mean[r], a->rstd[r], h);
		else rms_back(dx + at, a->add_dx, dw, dy + at, x + at, kind, a->w, a->rstd[r], h);
}

static void norm_backward(const struct norm_backward_args *a, float *dw, float *db, int64_t first, int64_t end)
{
	switch (weight_of(a->w, a->one)) {
	case WEIGHT: norm_rows_back(a, WEIGHT, dw, db, first, end); break;
	case ONE_AND_WEIGHT: norm_rows_back(a, ONE_AND_WEIGHT, dw, db, first, end); break;
	case NO_WEIGHT: norm_rows_back(a, NO_WEIGHT, dw, db, first, end); break;
	}
}

static void column_sums(float *sum, const float *x, int64_t rows, int64_t n, int64_t ld)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < n; i += VW) v_put(sum + i, n - i, v_get(sum + i, n - i) + v_get(x + r * ld + i, n - i));
}
