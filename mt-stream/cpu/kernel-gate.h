/* kernel-gate.h: the gated norm of heads and the output gate, forward and backward */

/* y = w n silu(z), n = o rstd */
static void gated_norm_forward(const struct gated_norm_args *a, int64_t first, int64_t end)
{
	const float *w = a->w;
	int64_t dim = a->dim;
	for (int64_t t = first; t < end; t++)
		for (int64_t h = 0; h < a->heads; h++) {
			int64_t at = (t * a->heads + h) * dim;
			const float *o = (const float *)a->o + at, *z = (const float *)a->z + t * a->ld + h * dim;
			float *y = (float *)a->y + at;
			vf r = v_set(rstd_of(0, o, 0, dim, a->eps)), slope;
			for (int64_t i = 0; i < dim; i += VW) {
				int64_t n = dim - i;
				v_put(y + i, n, v_get(w + i, n) * (v_get(o + i, n) * r) * silu(v_get(z + i, n), &slope));
			}
		}
}

/* With g = dy w silu(z):  d_o = rstd (g - n mean(n g)),  dz = dy w n silu'(z),  dw += dy n silu(z) */
INLINE void gated_norm_head_back(const struct gated_norm_args *a, float *dw, int64_t at, const float *z, float *dz)
{
	const float *o = (const float *)a->o + at, *dy = (const float *)a->dy + at, *w = a->w;
	float *d_o = (float *)a->d_o + at, *y = a->y ? (float *)a->y + at : NULL;
	int64_t dim = a->dim;
	vf r = v_set(rstd_of(0, o, 0, dim, a->eps)), sum = {0}, slope;
	for (int64_t i = 0; i < dim; i += VW) {
		int64_t n = dim - i;
		vf d = v_get(dy + i, n), normed = v_get(o + i, n) * r, gate = silu(v_get(z + i, n), &slope);
		sum = v_fma(d * v_get(w + i, n) * gate, normed, sum);
		v_put(dw + i, n, v_fma(d * normed, gate, v_get(dw + i, n)));
	}
	vf mean = v_set(v_sum(sum) / (float)dim);
	for (int64_t i = 0; i < dim; i += VW) {
		int64_t n = dim - i;
		vf d = v_get(dy + i, n), normed = v_get(o + i, n) * r, gate = silu(v_get(z + i, n), &slope);
		vf weight = v_get(w + i, n);
		v_put(dz + i, n, d * weight * normed * slope);
		v_put(d_o + i, n, r * (d * weight * gate - normed * mean));
		if (y) v_put(y + i, n, weight * normed * gate);
	}
}

static void gated_norm_backward(const struct gated_norm_args *a, float *dw, int64_t first, int64_t end)
{
	for (int64_t t = first; t < end; t++)
		for (int64_t h = 0; h < a->heads; h++)
			gated_norm_head_back(a, dw, (t * a->heads + h) * a->dim, (const float *)a->z + t * a->ld + h * a->dim,
				(float *)a->dz + t * a->dz_ld + h * a->dim);
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
