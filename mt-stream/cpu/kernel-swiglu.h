/* kernel-swiglu.h: y = silu(gate) up, silu(x) = x sigmoid(x) */

static void swiglu_forward(float *y, const float *gu, int64_t rows, int64_t f)
{
	const vf one = v_set(1);
	for (int64_t r = 0; r < rows; r++) {
		const float *gate = gu + r * 2 * f, *up = gate + f;
		for (int64_t i = 0; i < f; i += VW) {
			int64_t n = f - i;
			vf g = v_get(gate + i, n);
			v_put(y + r * f + i, n, g / (one + v_exp(-g)) * v_get(up + i, n));
		}
	}
}

/* With s = sigmoid(gate):  d gate = dy up s (1 + gate (1 - s)),  d up = dy gate s; and y as above, to the bit */
static void swiglu_backward(float *dgu, float *y, const float *dy, const float *gu, int64_t rows, int64_t f)
{
	const vf one = v_set(1);
	for (int64_t r = 0; r < rows; r++) {
		const float *gate = gu + r * 2 * f, *up = gate + f;
		float *dgate = dgu + r * 2 * f, *dup = dgate + f;
		for (int64_t i = 0; i < f; i += VW) {
			int64_t n = f - i;
			vf g = v_get(gate + i, n), u = v_get(up + i, n), d = v_get(dy + r * f + i, n);
			vf denominator = one + v_exp(-g), s = one / denominator;
			v_put(y + r * f + i, n, g / denominator * u);
			v_put(dgate + i, n, d * u * s * v_fma(g, one - s, one));
			v_put(dup + i, n, d * (g * s));
		}
	}
}
