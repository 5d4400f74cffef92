/* kernel-rope.h: rotary positions (arXiv 2104.09864) in Hugging Face's rotate_half layout, with the per-head RMSNorm
 * of q and k that some families have before it */

/* x (2 half): (a, b) becomes (a cos - b sin, b cos + a sin); sign -1 turns the other way, which is the gradient */
INLINE void rotate(float *x, const float *cosine, const float *sine, float sign, int64_t half)
{
	for (int64_t i = 0; i < half; i += VW) {
		int64_t n = half - i;
		vf a = v_get(x + i, n), b = v_get(x + half + i, n);
		vf c = v_get(cosine + i, n), s = v_get(sine + i, n) * v_set(sign);
		v_put(x + i, n, a * c - b * s);
		v_put(x + half + i, n, b * c + a * s);
	}
}

static void rope_forward(const struct rope_args *r, int64_t first, int64_t end)
{
	int64_t heads = r->heads + r->kv_heads, dim = r->dim, half = dim / 2;
	float *qkv = r->qkv, *pre = r->pre, *rstd = r->rstd;
	for (int64_t t = first; t < end; t++) {
		float *row = qkv + t * (heads + r->kv_heads) * dim;
		int64_t position = t % r->seq - r->starts[t];
		if (r->qnorm) memcpy(pre + t * heads * dim, row, (size_t)(heads * dim) * sizeof *row);
		for (int64_t j = 0; j < heads; j++) {
			float *x = row + j * dim;
			if (r->qnorm) {
				float *s = rstd + t * heads + j;
				*s = rms_of(x, dim, r->eps);
				rms_scale(x, x, j < r->heads ? r->qnorm : r->knorm, *s, dim);
			}
			rotate(x, r->cos + position * half, r->sin + position * half, 1, half);
		}
	}
}

static void rope_backward(const struct rope_args *r, float *dqnorm, float *dknorm, int64_t first, int64_t end)
{
	int64_t heads = r->heads + r->kv_heads, dim = r->dim, half = dim / 2;
	float *dqkv = r->qkv;
	const float *pre = r->pre, *rstd = r->rstd;
	for (int64_t t = first; t < end; t++) {
		float *row = dqkv + t * (heads + r->kv_heads) * dim;
		int64_t position = t % r->seq - r->starts[t];
		for (int64_t j = 0; j < heads; j++) {
			float *dx = row + j * dim;
			int is_q = j < r->heads;
			rotate(dx, r->cos + position * half, r->sin + position * half, -1, half);
			if (r->qnorm)
				rms_back(dx, 0, is_q ? dqnorm : dknorm, dx, pre + (t * heads + j) * dim, is_q ? r->qnorm : r->knorm,
					rstd[t * heads + j], dim);
		}
	}
}
