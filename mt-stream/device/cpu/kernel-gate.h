/* kernel-gate.h: the gated norm of heads or groups of channels, and the output gate, forward and backward */
#include "ops/gate.h"

/* A constant wherever it is used */
enum gated_form { NORM_FIRST, GATE_FIRST, NO_NORM };
INLINE enum gated_form gated_form_of(const struct gated_norm_args *a)
{
	return !a->w ? NO_NORM : a->gate_first ? GATE_FIRST : NORM_FIRST;
}

/* One head of a token */
struct gated_head {
	int64_t at, dim; /* its place in o, y and their gradients */
	const float *o, *z, *w;
	int sigmoid;
	vf r; /* 1 / the root of the mean square of what is normed */
};

INLINE vf v_sigmoid(vf x) { return v_set(1) / (v_set(1) + v_exp(-x)); }

/* silu(z), or sigmoid(z), and its slope */
INLINE vf gate_of(int sigmoid, vf z, vf *slope)
{
	if (!sigmoid) return silu(z, slope);
	vf s = v_sigmoid(z);
	*slope = s * (v_set(1) - s);
	return s;
}

/* What is normed: o, or o silu(z), whose slope silu'(z) is; gate: silu(z). With sigmoid: sigmoid(z) */
INLINE vf gated_in(enum gated_form form, const struct gated_head *h, int64_t i, vf *gate, vf *slope)
{
	vf o = v_get(h->o + i, h->dim - i);
	*gate = gate_of(h->sigmoid, v_get(h->z + i, h->dim - i), slope);
	return form == NORM_FIRST ? o : o * *gate;
}

INLINE struct gated_head gated_head_at(enum gated_form form, const struct gated_norm_args *a, int64_t t, int64_t head)
{
	int64_t at = (t * a->heads + head) * a->dim;
	struct gated_head h = {at, a->dim, (const float *)a->o + at, (const float *)a->z + t * a->ld + head * a->dim,
		form == NO_NORM ? NULL : (const float *)a->w + (a->all_heads ? head * a->dim : 0), a->sigmoid, v_set(1)};
	if (form == NORM_FIRST) h.r = v_set(rstd_of(0, h.o, 0, a->dim, a->eps));
	if (form != GATE_FIRST) return h;
	vf sum[4] = {{0}}, gate, slope;
	for (int64_t i = 0; i < a->dim; i += VW) {
		vf x = gated_in(form, &h, i, &gate, &slope);
		sum[i / VW % 4] = v_fma(x, x, sum[i / VW % 4]);
	}
	h.r = v_set(1.0f / sqrtf(v_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)a->dim + a->eps));
	return h;
}

/* y = w n silu(z), n = o rstd; or w h rstd, h = o silu(z); or h */
INLINE void gated_norm_rows(enum gated_form form, const struct gated_norm_args *a, int64_t first, int64_t end)
{
	for (int64_t t = first; t < end; t++)
		for (int64_t head = 0; head < a->heads; head++) {
			struct gated_head h = gated_head_at(form, a, t, head);
			for (int64_t i = 0; i < a->dim; i += VW) {
				int64_t n = a->dim - i;
				vf gate, slope, x = gated_in(form, &h, i, &gate, &slope);
				if (form != NO_NORM) x = v_get(h.w + i, n) * (x * h.r);
				v_put((float *)a->y + h.at + i, n, form == NORM_FIRST ? x * gate : x);
			}
		}
}

static void gated_norm_forward(const struct gated_norm_args *a, int64_t first, int64_t end)
{
	enum gated_form form = gated_form_of(a);
	if (form == NORM_FIRST) gated_norm_rows(NORM_FIRST, a, first, end);
	else if (form == GATE_FIRST) gated_norm_rows(GATE_FIRST, a, first, end);
	else gated_norm_rows(NO_NORM, a, first, end);
}

/* The mean over the head of g n, with g and n as below; dw += its gradient */
INLINE vf gated_norm_mean(enum gated_form form, const struct gated_head *h, const float *dy, float *dw)
{
	vf sum = {0}, gate, slope;
	for (int64_t i = 0; i < h->dim; i += VW) {
		int64_t n = h->dim - i;
		vf d = v_get(dy + i, n), normed = gated_in(form, h, i, &gate, &slope) * h->r;
		vf g = d * v_get(h->w + i, n);
		sum = v_fma(form == NORM_FIRST ? g * gate : g, normed, sum);
		v_put(dw + i, n,
			form == NORM_FIRST ? v_fma(d * normed, gate, v_get(dw + i, n)) : v_fma(d, normed, v_get(dw + i, n)));
	}
	return v_set(v_sum(sum) / (float)h->dim);
}

/* Norm first: with g = dy w silu(z), n = o rstd:  d_o = rstd (g - n mean(n g)),  dz = dy w n silu'(z),
 * dw += dy n silu(z).
 * Gate first: with g = dy w, n = o silu(z) rstd, dh = rstd (g - n mean(n g)):  d_o = dh silu(z),  dz = dh o silu'(z),
 * dw += dy n. No norm: dh = dy. With sigmoid: sigmoid(z) in place of silu(z) */
INLINE void gated_norm_rows_back(enum gated_form form, const struct gated_norm_args *a, float *dw, int64_t first,
	int64_t end)
{
	for (int64_t t = first; t < end; t++)
		for (int64_t head = 0; head < a->heads; head++) {
			struct gated_head h = gated_head_at(form, a, t, head);
			const float *dy = (const float *)a->dy + h.at;
			float *d_o = (float *)a->d_o + h.at, *y = a->y ? (float *)a->y + h.at : NULL;
			float *dz = (float *)a->dz + t * a->dz_ld + head * a->dim;
			vf mean = {0}, gate, slope;
			if (form != NO_NORM) mean = gated_norm_mean(form, &h, dy, dw + (h.w - (const float *)a->w));
			for (int64_t i = 0; i < a->dim; i += VW) {
				int64_t n = a->dim - i;
				vf d = v_get(dy + i, n), normed = gated_in(form, &h, i, &gate, &slope) * h.r;
				vf weight = form == NO_NORM ? v_set(1) : v_get(h.w + i, n);
				if (form == NORM_FIRST) {
					v_put(dz + i, n, d * weight * normed * slope);
					v_put(d_o + i, n, h.r * (d * weight * gate - normed * mean));
					if (y) v_put(y + i, n, weight * normed * gate);
					continue;
				}
				if (form == GATE_FIRST) d = h.r * (d * weight - normed * mean);
				v_put(dz + i, n, d * v_get(h.o + i, n) * slope);
				v_put(d_o + i, n, d * gate);
				if (y) v_put(y + i, n, weight * normed);
			}
		}
}

static void gated_norm_backward(const struct gated_norm_args *a, float *dw, int64_t first, int64_t end)
{
	enum gated_form form = gated_form_of(a);
	if (form == NORM_FIRST) gated_norm_rows_back(NORM_FIRST, a, dw, first, end);
	else if (form == GATE_FIRST) gated_norm_rows_back(GATE_FIRST, a, dw, first, end);
	else gated_norm_rows_back(NO_NORM, a, dw, first, end);
}

static void gate_forward(const struct gate_args *a, int64_t first, int64_t end)
{
	const vf one = v_set(1);
	for (int64_t t = first; t < end; t++) {
		const float *o = (const float *)a->o + t * a->width, *gate = (const float *)a->gate + t * a->ld;
		float *y = (float *)a->y + t * a->width;
		for (int64_t i = 0; i < a->width; i += VW) {
			int64_t n = a->width - i;
			v_put(y + i, n, v_get(o + i, n) / (one + v_exp(-v_get(gate + i, n))));
		}
	}
}

static void gate_backward(const struct gate_args *a, int64_t first, int64_t end)
{
	const vf one = v_set(1);
	for (int64_t t = first; t < end; t++) {
		int64_t at = t * a->width;
		const float *o = (const float *)a->o + at, *gate = (const float *)a->gate + t * a->ld;
		const float *dy = (const float *)a->dy + at;
		float *d_o = (float *)a->d_o + at, *y = a->y ? (float *)a->y + at : NULL;
		float *dgate = (float *)a->dgate + t * a->dgate_ld;
		for (int64_t i = 0; i < a->width; i += VW) {
			int64_t n = a->width - i;
			vf d = v_get(dy + i, n), x = v_get(o + i, n), denominator = one + v_exp(-v_get(gate + i, n));
			vf s = one / denominator;
			v_put(dgate + i, n, d * x * s * (one - s));
			v_put(d_o + i, n, d * s);
			if (y) v_put(y + i, n, x / denominator);
		}
	}
}
