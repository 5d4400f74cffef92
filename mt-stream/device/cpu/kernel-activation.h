/* kernel-activation.h: the inner function of the MLP and its gradient. The functions of an element are written once,
 * and inlined into separate loops by constant arguments: a form, and where gate and up stand.
 *
 * Functions that have a `slope` set it to the derivative; forward's loops do not use it, and the compiler drops it. */
#include "ops/activation.h"

/* gelu(x) = x Phi(x), Phi the normal distribution (arXiv 1606.08415); its derivative is Phi(x) + x Phi'(x) */
INLINE vf gelu(vf x, vf *slope)
{
	const vf half = v_set(0.5f);
	vf distribution = v_fma(half, v_erf(x * v_set(0.70710678118654752f)), half);
	vf density = v_set(0.39894228040143268f) * v_exp(-half * x * x);
	*slope = v_fma(x, density, distribution);
	return x * distribution;
}

/* 0.5 x (1 + tanh(z)), z = sqrt(2 / pi) (x + 0.044715 x^3), is x sigmoid(2 z): only one exponential, and no
 * cancellation below 0 */
INLINE vf gelu_tanh(vf x, vf *slope)
{
	const vf one = v_set(1.0f), a = v_set(1.5957691216057308f), b = v_set(1.5957691216057308f * 0.044715f);
	vf square = x * x, z2 = x * v_fma(b, square, a);
	vf denominator = one + v_exp(-z2), s = one / denominator;
	*slope = s * v_fma(x * v_fma(v_set(3.0f) * b, square, a), one - s, one);
	return x / denominator;
}

/* max(x, 0); NaN stays NaN */
INLINE vf relu(vf x, vf *slope)
{
	*slope = v_select(x > v_set(0), v_set(1), v_set(0));
	return v_max(v_set(0), x);
}

/* Its square */
INLINE vf relu2(vf x, vf *slope)
{
	vf positive = v_max(v_set(0), x);
	*slope = positive + positive;
	return positive * positive;
}

INLINE vf hyperbolic(vf x, vf *slope)
{
	vf y = v_tanh(x);
	*slope = v_set(1) - y * y;
	return y;
}

/* ---- gated: gate and up ---- */

/* silu(gate) up, silu(x) = x sigmoid(x) (SwiGLU, arXiv 2002.05202). Of the gradient d of the result, with s =
 * sigmoid(gate): d gate = d up s (1 + gate (1 - s)),  d up = d gate s */
INLINE vf swiglu(vf g, vf u, vf d, vf *dgate, vf *dup)
{
	const vf one = v_set(1);
	vf denominator = one + v_exp(-g), s = one / denominator;
	*dgate = d * u * s * v_fma(g, one - s, one);
	*dup = d * (g * s);
	return g / denominator * u;
}

/* GPT-OSS's: g sigmoid(1.702 g) (u + 1), g = min(gate, 7), u = up clamped to -7 .. 7; no gradient where clamped */
INLINE vf swiglu_clamped(vf gate, vf up, vf d, vf *dgate, vf *dup)
{
	const vf one = v_set(1), limit = v_set(7), alpha = v_set(1.702f);
	vf g = v_min(limit, gate), u = v_max(-limit, v_min(limit, up)) + one;
	vf denominator = one + v_exp(-alpha * g), s = one / denominator;
	*dgate = v_select(gate > limit, v_set(0), d * u * s * v_fma(alpha * g, one - s, one));
	*dup = v_select(v_abs(up) > limit, v_set(0), d * (g * s));
	return g / denominator * u;
}

INLINE vf gated(enum mt_ffn form, vf gate, vf up, vf d, vf *dgate, vf *dup)
{
	vf slope, value;
	if (form == MT_SWIGLU) return swiglu(gate, up, d, dgate, dup);
	if (form == MT_SWIGLU_CLAMPED) return swiglu_clamped(gate, up, d, dgate, dup);
	value = form == MT_RE2GLU ? relu2(gate, &slope) : form == MT_GEGLU ? gelu(gate, &slope) : gelu_tanh(gate, &slope);
	*dgate = d * up * slope;
	*dup = d * value;
	return value * up;
}

/* n elements of gate and up, from `i` on, in a row of gu; and back */
INLINE void get_gated(const float *gu, int64_t f, int64_t i, int interleaved, vf *gate, vf *up)
{
	if (interleaved) {
		v_get_pairs(gu + 2 * i, f - i, gate, up);
	} else {
		*gate = v_get(gu + i, f - i);
		*up = v_get(gu + f + i, f - i);
	}
}

INLINE void put_gated(float *gu, int64_t f, int64_t i, int interleaved, vf gate, vf up)
{
	if (interleaved) {
		v_put_pairs(gu + 2 * i, f - i, gate, up);
	} else {
		v_put(gu + i, f - i, gate);
		v_put(gu + f + i, f - i, up);
	}
}

INLINE void gated_rows(const struct activation_args *a, int64_t first, int64_t end, enum mt_ffn form, int interleaved,
	int backward)
{
	int64_t f = a->f;
	for (int64_t r = first; r < end; r++) {
		const float *gu = (const float *)a->gu + r * 2 * f, *dy = (const float *)a->dy + r * f;
		float *dgu = (float *)a->dgu + r * 2 * f, *y = (float *)a->y + r * f;
		for (int64_t i = 0; i < f; i += VW) {
			vf gate, up, dgate, dup;
			get_gated(gu, f, i, interleaved, &gate, &up);
			v_put(y + i, f - i, gated(form, gate, up, backward ? v_get(dy + i, f - i) : v_set(0), &dgate, &dup));
			if (backward) put_gated(dgu, f, i, interleaved, dgate, dup);
		}
	}
}

/* A part of the row's gates counts as 0. Backward: of y = f(max(g - m - k s, 0)), d g = d' - sum(d') / F
 * (1 + k (g - m) / s), where d' is d f' above the cut, 0 below it */
INLINE void sparse_rows(const struct activation_args *a, int64_t first, int64_t end, enum mt_ffn form, int backward)
{
	int64_t f = a->f;
	for (int64_t r = first; r < end; r++) {
		const float *gu = (const float *)a->gu + r * 2 * f, *dy = (const float *)a->dy + r * f;
		float *dgu = (float *)a->dgu + r * 2 * f, *y = (float *)a->y + r * f;
		float mean = mean_of(gu, f), std = 1 / rstd_of(1, gu, mean, f, 0), shift = 0, tilt = 0;
		vf cut = v_set(mean + std * a->deviations), none = v_set(0), sum = none, gate, up, dgate, dup;
		for (int64_t i = 0; backward && i < f; i += VW) {
			get_gated(gu, f, i, 0, &gate, &up);
			gated(form, v_max(none, gate - cut), up, v_get(dy + i, f - i), &dgate, &dup);
			sum += v_select(gate > cut, dgate, none);
		}
		if (backward) shift = v_sum(sum) / (float)f, tilt = std > 0 ? shift * a->deviations / std : 0;
		for (int64_t i = 0; i < f; i += VW) {
			get_gated(gu, f, i, 0, &gate, &up);
			vf d = backward ? v_get(dy + i, f - i) : none;
			v_put(y + i, f - i, gated(form, v_max(none, gate - cut), up, d, &dgate, &dup));
			dgate = v_select(gate > cut, dgate, none) - v_set(shift) - v_set(tilt) * (gate - v_set(mean));
			if (backward) put_gated(dgu, f, i, 0, dgate, dup);
		}
	}
}

/* ---- ungated ---- */

INLINE vf ungated(enum mt_ffn form, vf x, vf *slope)
{
	switch (form) {
	case MT_RELU: return relu(x, slope);
	case MT_RELU2: return relu2(x, slope);
	case MT_GELU: return gelu(x, slope);
	case MT_TANH: return hyperbolic(x, slope);
	default: return gelu_tanh(x, slope);
	}
}

INLINE void ungated_rows(const struct activation_args *a, int64_t first, int64_t end, enum mt_ffn form, int backward)
{
	const float *x = a->gu, *dy = a->dy;
	float *dx = a->dgu, *y = a->y;
	for (int64_t i = first * a->f; i < end * a->f; i += VW) {
		int64_t n = end * a->f - i;
		vf slope, d = backward ? v_get(dy + i, n) : v_set(0);
		v_put(y + i, n, ungated(form, v_get(x + i, n), &slope));
		if (backward) v_put(dx + i, n, d * slope);
	}
}

/* xIELU, as transformers' XIELUActivation: alpha_p x^2 + beta x above 0, else alpha_n (e^m - 1 - x) + beta x with
 * m = min(x, eps). `bend` is what alpha is multiplied by, `positive` which alpha it is. As m is constant above eps, the
 * derivative there is that of - alpha_n x + beta x. */
#define XIELU_BETA 0.5f
#define XIELU_EPS (-1e-6f)
INLINE vf xielu(vf x, const float alpha[2], vi *positive, vf *bend, vf *slope)
{
	const vf beta = v_set(XIELU_BETA), eps = v_set(XIELU_EPS), one = v_set(1.0f);
	vf grown = v_expm1_negative(v_min(eps, x));
	vf tilt = v_select(x < eps, grown, -one);
	*positive = x > v_set(0);
	*bend = v_select(*positive, x * x, grown - x);
	vf a = v_select(*positive, v_set(alpha[0]), v_set(alpha[1]));
	*slope = v_fma(a, v_select(*positive, x + x, tilt), beta);
	return v_fma(a, *bend, beta * x);
}

/* Backward: sums += the gradients of both alphas */
INLINE void xielu_rows(const struct activation_args *a, const float alpha[2], double sums[2], int64_t first,
	int64_t end, int backward)
{
	for (int64_t r = first; r < end; r++) {
		const float *x = (const float *)a->gu + r * a->f, *dy = (const float *)a->dy + r * a->f;
		float *dx = (float *)a->dgu + r * a->f, *y = (float *)a->y + r * a->f;
		vf above = {0}, below = {0};
		for (int64_t i = 0; i < a->f; i += VW) {
			int64_t n = a->f - i;
			vf bend, slope, d = backward ? v_get(dy + i, n) : v_set(0);
			vi positive;
			v_put(y + i, n, xielu(v_get(x + i, n), alpha, &positive, &bend, &slope));
			if (!backward) continue;
			v_put(dx + i, n, d * slope);
			above += v_select(positive, d * bend, v_set(0));
			below += v_select(positive, v_set(0), d * bend);
		}
		sums[0] += (double)v_sum(above);
		sums[1] += (double)v_sum(below);
	}
}

/* ---- selecting the form ---- */

INLINE void gated_by_order(const struct activation_args *a, int64_t first, int64_t end, enum mt_ffn form, int backward)
{
	if (a->sparse) sparse_rows(a, first, end, form, backward);
	else if (a->interleaved) gated_rows(a, first, end, form, 1, backward);
	else gated_rows(a, first, end, form, 0, backward);
}

INLINE void activation_rows(const struct activation_args *a, const float alpha[2], double sums[2], int64_t first,
	int64_t end, int backward)
{
	switch (a->form) {
	case MT_SWIGLU: gated_by_order(a, first, end, MT_SWIGLU, backward); break;
	case MT_GEGLU: gated_by_order(a, first, end, MT_GEGLU, backward); break;
	case MT_GEGLU_TANH: gated_by_order(a, first, end, MT_GEGLU_TANH, backward); break;
	case MT_SWIGLU_CLAMPED: gated_by_order(a, first, end, MT_SWIGLU_CLAMPED, backward); break;
	case MT_RE2GLU: gated_by_order(a, first, end, MT_RE2GLU, backward); break;
	case MT_RELU2: ungated_rows(a, first, end, MT_RELU2, backward); break;
	case MT_RELU: ungated_rows(a, first, end, MT_RELU, backward); break;
	case MT_GELU: ungated_rows(a, first, end, MT_GELU, backward); break;
	case MT_GELU_TANH: ungated_rows(a, first, end, MT_GELU_TANH, backward); break;
	case MT_TANH: ungated_rows(a, first, end, MT_TANH, backward); break;
	case MT_XIELU: xielu_rows(a, alpha, sums, first, end, backward); break;
	}
}

static void activation(const struct activation_args *a, const float alpha[2], double sums[2], int64_t first,
	int64_t end)
{
	if (a->dgu) activation_rows(a, alpha, sums, first, end, 1);
	else activation_rows(a, alpha, sums, first, end, 0);
}
