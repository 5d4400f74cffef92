/* kernel-altup.h: mixtures of AltUp's copies, and magnitudes */
#include "mt/model.h"
#include "ops/altup.h"

/* ---- mixtures ---- */

INLINE void get_copies(vf v[MT_ALTUP], const float *x, int64_t copies, int64_t h, int64_t i)
{
	for (int64_t s = 0; s < copies; s++) v[s] = v_get(x + s * h + i, h - i);
}

static void mix_forward(const struct mix_args *a, int64_t first, int64_t end)
{
	int64_t h = a->h, copies = a->copies;
	for (int64_t t = first; t < end; t++) {
		const float *x = (const float *)a->x + t * copies * h, *y = a->y ? (const float *)a->y + t * h : NULL;
		const float *c = (const float *)a->c + t * mix_factors(a);
		float *out = (float *)a->out + t * copies * h;
		for (int64_t i = 0; i < h; i += VW) {
			vf in[MT_ALTUP], change = {0};
			get_copies(in, x, copies, h, i);
			if (y) change = v_get(y + i, h - i) - in[0];
			for (int64_t s = 0; s < copies; s++) {
				vf sum = in[s];
				if (y) sum = v_fma(v_set(1 + c[s]), change, sum);
				for (int64_t j = 0; !y && j < copies; j++) sum = v_fma(v_set(c[s * copies + j]), in[j], sum);
				v_put(out + s * h + i, h - i, sum);
			}
		}
	}
}

INLINE void predict_back(const struct mix_args *a, int64_t t)
{
	int64_t h = a->h, copies = a->copies, pairs = copies * copies;
	const float *x = (const float *)a->x + t * copies * h, *c = (const float *)a->c + t * pairs;
	const float *dout = (const float *)a->dout + t * copies * h;
	float *dx = (float *)a->dx + t * copies * h, *dc = (float *)a->dc + t * pairs;
	vf sum[MT_ALTUP * MT_ALTUP] = {{0}};
	for (int64_t i = 0; i < h; i += VW) {
		vf in[MT_ALTUP], d[MT_ALTUP];
		get_copies(in, x, copies, h, i);
		get_copies(d, dout, copies, h, i);
		for (int64_t j = 0; j < copies; j++) {
			vf back = d[j];
			for (int64_t s = 0; s < copies; s++) {
				sum[s * copies + j] = v_fma(d[s], in[j], sum[s * copies + j]);
				back = v_fma(v_set(c[s * copies + j]), d[s], back);
			}
			v_put(dx + j * h + i, h - i, back);
		}
	}
	for (int64_t k = 0; k < pairs; k++) dc[k] = v_sum(sum[k]);
}

INLINE void correct_back(const struct mix_args *a, int64_t t)
{
	int64_t h = a->h, copies = a->copies;
	const float *x = (const float *)a->x + t * copies * h, *y = (const float *)a->y + t * h;
	const float *c = (const float *)a->c + t * copies, *dout = (const float *)a->dout + t * copies * h;
	float *dx = (float *)a->dx + t * copies * h, *dc = (float *)a->dc + t * copies, *dy = (float *)a->dy + t * h;
	vf sum[MT_ALTUP] = {{0}};
	for (int64_t i = 0; i < h; i += VW) {
		vf change = v_get(y + i, h - i) - v_get(x + i, h - i), all = {0}, of_first = v_get(dout + i, h - i);
		for (int64_t s = 0; s < copies; s++) {
			vf d = v_get(dout + s * h + i, h - i);
			sum[s] = v_fma(d, change, sum[s]);
			all = v_fma(v_set(1 + c[s]), d, all);
			v_put(dx + s * h + i, h - i, d);
		}
		v_put(dx + i, h - i, of_first - all);
		v_put(dy + i, h - i, all);
	}
	for (int64_t s = 0; s < copies; s++) dc[s] = v_sum(sum[s]);
}

static void mix_backward(const struct mix_args *a, int64_t first, int64_t end)
{
	for (int64_t t = first; t < end; t++)
		if (a->y) correct_back(a, t);
		else predict_back(a, t);
}

/* ---- magnitudes ---- */

INLINE float row_dot(const float *x, const float *y, int64_t n)
{
	vf sum[2] = {{0}};
	for (int64_t i = 0, j = 0; i < n; i += VW, j ^= 1) sum[j] = v_fma(v_get(x + i, n - i), v_get(y + i, n - i), sum[j]);
	return v_sum(sum[0] + sum[1]);
}

static void magnitude_forward(const struct magnitude_args *a, int64_t first, int64_t end)
{
	int64_t h = a->h;
	for (int64_t t = first; t < end; t++) {
		const float *x = (const float *)a->x + t * a->x_ld, *p = (const float *)a->p + t * a->p_ld;
		float *y = (float *)a->y + t * a->p_ld;
		float square = row_dot(p, p, h) / (float)h, wanted = sqrtf(row_dot(x, x, h) / (float)h);
		float by = wanted / sqrtf(square > MAGNITUDE_LEAST ? square : MAGNITUDE_LEAST);
		for (int64_t i = 0; i < h; i += VW) v_put(y + i, h - i, v_set(by) * v_get(p + i, h - i));
	}
}

/* With q = |p|, s = sum(dy p):  dp = |x| / q (dy - p s / (H q^2)), without the second term at the least q;
 * dx += s / q x / (H |x|) */
static void magnitude_backward(const struct magnitude_args *a, int64_t first, int64_t end)
{
	int64_t h = a->h;
	for (int64_t t = first; t < end; t++) {
		const float *x = (const float *)a->x + t * a->x_ld, *p = (const float *)a->p + t * a->p_ld;
		const float *dy = (const float *)a->dy + t * a->dy_ld;
		float *dp = (float *)a->dp + t * a->p_ld, *dx = (float *)a->dx + t * a->x_ld;
		float square = row_dot(p, p, h) / (float)h, wanted = sqrtf(row_dot(x, x, h) / (float)h);
		float sum = row_dot(dy, p, h) / (float)h, floored = square > MAGNITUDE_LEAST ? square : MAGNITUDE_LEAST;
		float q = sqrtf(floored), back = square >= MAGNITUDE_LEAST ? sum / square : 0;
		float of_x = wanted > 0 ? sum / (q * wanted) : 0;
		for (int64_t i = 0; i < h; i += VW) {
			int64_t n = h - i;
			vf d = v_get(dy + i, n) - v_set(back) * v_get(p + i, n);
			v_put(dx + i, n, v_fma(v_set(of_x), v_get(x + i, n), v_get(dx + i, n)));
			v_put(dp + i, n, v_set(wanted / q) * d);
		}
	}
}
