/* kernel-norm.h: RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450) over rows, and column sums */
#include "ops/norm.h"

/* The factor of a normed element. A constant wherever it is used, so that it costs nothing in the loops */
enum weight { WEIGHT, ONE_AND_WEIGHT, NO_WEIGHT };
INLINE enum weight weight_of(const void *w, int one) { return !w ? NO_WEIGHT : one ? ONE_AND_WEIGHT : WEIGHT; }

INLINE vf weight_at(enum weight kind, const float *w, int64_t i, int64_t n)
{
	if (kind == NO_WEIGHT) return v_set(1);
	return kind == ONE_AND_WEIGHT ? v_set(1) + v_get(w + i, n) : v_get(w + i, n);
}

/* ---- one row. layer: LayerNorm; else RMSNorm, whose mean is 0. Constants, as the weight's kind is ---- */

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
INLINE vf centred(int layer, const float *x, int64_t n, vf mean)
{
	if (!layer) return v_get(x, n);
	vf d = v_get(x, n) - mean;
	if (n >= VW) return d;
	float lanes[VW] = {0};
	v_store_part(lanes, n, d);
	return v_load(lanes);
}

/* 1 / sqrt(mean((x - mean)^2) + eps) */
INLINE float rstd_of(int layer, const float *x, float mean, int64_t h, float eps)
{
	vf m = v_set(mean), sum[4] = {{0}};
	int64_t i = 0;
	for (; i + 4 * VW <= h; i += 4 * VW)
		for (int j = 0; j < 4; j++) {
			vf d = centred(layer, x + i + j * VW, VW, m);
			sum[j] = v_fma(d, d, sum[j]);
		}
	for (; i < h; i += VW) {
		vf d = centred(layer, x + i, h - i, m);
		sum[0] = v_fma(d, d, sum[0]);
	}
	return 1.0f / sqrtf(v_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)h + eps);
}

/* (x - mean) rstd */
INLINE vf normed(int layer, const float *x, int64_t n, vf mean, vf rstd)
{
	return (layer ? v_get(x, n) - mean : v_get(x, n)) * rstd;
}

/* y may be x; b NULL: zeros */
INLINE void norm_scale(int layer, float *y, const float *x, enum weight kind, const float *w, const float *b,
	float mean, float rstd, int64_t h)
{
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		vf at = normed(layer, x + i, n, v_set(mean), v_set(rstd)), wide = weight_at(kind, w, i, n);
		v_put(y + i, n, layer && b ? v_fma(at, wide, v_get(b + i, n)) : at * wide);
	}
}

/* With g = dy w and y = (x - mean) rstd:  dx = rstd (g - mean(g) - y mean(g y)), of RMSNorm without mean(g);
 * dw += dy y,  db += dy.  dx may be dy. of_row: rstd; NULL: there is no norm, dx = g */
INLINE void norm_back(int layer, float *dx, int add_dx, float *dw, float *db, const float *dy, const float *x,
	enum weight kind, const float *w, float mean, const float *of_row, int64_t h)
{
	float rstd = of_row ? *of_row : 1;
	vf m = v_set(mean), r = v_set(rstd), sum[2] = {{0}}, sum_g[2] = {{0}};
	for (int64_t i = 0, j = 0; i < h; i += VW, j ^= 1) {
		int64_t n = h - i;
		vf d = v_get(dy + i, n), y = normed(layer, x + i, n, m, r), g = d * weight_at(kind, w, i, n);
		sum[j] = v_fma(g, y, sum[j]);
		if (layer) sum_g[j] += g;
		if (kind != NO_WEIGHT) v_put(dw + i, n, v_fma(d, y, v_get(dw + i, n)));
		if (layer && db) v_put(db + i, n, v_get(db + i, n) + d);
	}
	vf mean_gy = v_set(of_row ? v_sum(sum[0] + sum[1]) / (float)h : 0),
	   mean_g = v_set(v_sum(sum_g[0] + sum_g[1]) / (float)h);
	for (int64_t i = 0; i < h; i += VW) {
		int64_t n = h - i;
		vf y = normed(layer, x + i, n, m, r), g = v_get(dy + i, n) * weight_at(kind, w, i, n);
		vf d = r * ((layer ? g - mean_g : g) - y * mean_gy);
		v_put(dx + i, n, add_dx ? v_get(dx + i, n) + d : d);
	}
}

/* ---- rows ---- */

INLINE void norm_rows(const struct norm_forward_args *a, enum weight kind, int64_t first, int64_t end)
{
	const float *x = a->x;
	float *y = (float *)a->y + first * a->h;
	int64_t h = a->h, ld = a->ld ? a->ld : h;
	for (int64_t r = first; r < end; r++, y += h)
		if (a->mean) {
			a->mean[r] = mean_of(x + r * ld, h);
			a->rstd[r] = rstd_of(1, x + r * ld, a->mean[r], h, a->eps);
			norm_scale(1, y, x + r * ld, kind, a->w, a->b, a->mean[r], a->rstd[r], h);
		} else {
			float rstd = a->rstd ? rstd_of(0, x + r * ld, 0, h, a->eps) : 1;
			if (a->rstd) a->rstd[r] = rstd;
			norm_scale(0, y, x + r * ld, kind, a->w, NULL, 0, rstd, h);
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
	int64_t h = a->h, ld = a->ld ? a->ld : h;
	dy += first * h;
	for (int64_t r = first, at = r * ld; r < end; r++, at += ld, dy += h)
		if (a->mean) norm_back(1, dx + at, a->add_dx, dw, db, dy, x + at, kind, a->w, a->mean[r], &a->rstd[r], h);
		else norm_back(0, dx + at, a->add_dx, dw, NULL, dy, x + at, kind, a->w, 0, a->rstd ? &a->rstd[r] : NULL, h);
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
