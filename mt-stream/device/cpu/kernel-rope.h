/* kernel-rope.h: rotary positions (arXiv 2104.09864), with the RMSNorms of q, k and v that some families have before or
 * after them, and the factor of q that grows with the position */
#include "ops/rope.h"

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

/* The same, where a and b stand side by side */
INLINE void rotate_neighbours(float *x, const float *cosine, const float *sine, float sign, int64_t half)
{
	for (int64_t i = 0; i < half; i += VW) {
		int64_t n = half - i;
		vf a, b, c = v_get(cosine + i, n), s = v_get(sine + i, n) * v_set(sign);
		v_get_pairs(x + 2 * i, n, &a, &b);
		v_put_pairs(x + 2 * i, n, a * c - b * s, b * c + a * s);
	}
}

/* One head, by its token's rows of the tables */
INLINE void rotate_head(float *x, const float *cosine, const float *sine, float sign, int64_t half, int neighbours)
{
	if (neighbours) rotate_neighbours(x, cosine, sine, sign, half);
	else rotate(x, cosine, sine, sign, half);
}

/* ---- norms of n elements that stand in a row of q, k and v ---- */

INLINE void norm_part(const struct rope_args *r, float *x, const float *w, float *rstd, int64_t n)
{
	*rstd = rstd_of(0, x, 0, n, r->eps);
	if (!w) norm_scale(0, x, x, NO_WEIGHT, NULL, NULL, 0, *rstd, n);
	else if (r->norm_one) norm_scale(0, x, x, ONE_AND_WEIGHT, w, NULL, 0, *rstd, n);
	else norm_scale(0, x, x, WEIGHT, w, NULL, 0, *rstd, n);
}

INLINE void norm_part_back(const struct rope_args *r, float *dx, float *dw, const float *x, const float *w, float rstd,
	int64_t n)
{
	if (!w) norm_back(0, dx, 0, NULL, NULL, dx, x, NO_WEIGHT, NULL, 0, &rstd, n);
	else if (r->norm_one) norm_back(0, dx, 0, dw, NULL, dx, x, ONE_AND_WEIGHT, w, 0, &rstd, n);
	else norm_back(0, dx, 0, dw, NULL, dx, x, WEIGHT, w, 0, &rstd, n);
}

INLINE int64_t rstd_width(const struct rope_args *r) { return r->row_norm ? 2 : rope_normed(r); }

/* ---- q's factor ---- */

INLINE float temperature_of(const struct rope_args *r, int64_t position)
{
	return 1.0f + r->temperature * logf(1.0f + (float)(position / r->temperature_positions));
}

INLINE void heat(const struct rope_args *r, float *q, int64_t position)
{
	position += r->past + r->temperature_from;
	if (r->temperature == 0 || position < r->temperature_positions) return;
	vf factor = v_set(temperature_of(r, position));
	for (int64_t i = 0, n = r->heads * r->dim; i < n; i += VW) v_put(q + i, n - i, v_get(q + i, n - i) * factor);
}

/* ---- tokens ---- */

/* Norms and rotation of the heads of one token's q and k */
INLINE void rope_token(const struct rope_args *r, float *row, float *pre, float *rstd, int64_t position)
{
	int64_t dim = r->dim, half = r->rope_dim / 2, heads = r->heads, all = heads + r->kv_heads;
	const float *c = r->cos + position * half, *s = r->sin + position * half, *qnorm = r->qnorm, *knorm = r->knorm;
	int norms = rope_norms(r), before = norms && !r->row_norm && !r->norm_after, after = norms && r->norm_after;
	for (int64_t j = 0; j < all; j++) {
		float *x = row + j * dim;
		if (before) norm_part(r, x, j < heads ? qnorm : knorm, rstd + j, dim);
		rotate_head(x, c, s, 1, half, r->neighbours);
		if (!after) continue;
		memcpy(pre + j * dim, x, (size_t)dim * sizeof *x);
		norm_part(r, x, j < heads ? qnorm : knorm, rstd + j, dim);
	}
}

static void rope_forward(const struct rope_args *r, int64_t first, int64_t end)
{
	int64_t dim = r->dim, q = r->heads * dim, k = r->kv_heads * dim, kept = rope_normed(r) * dim;
	for (int64_t t = first; t < end; t++) {
		int64_t position = t % r->seq - r->starts[t];
		float *row = (float *)r->qkv + t * rope_row(r), *pre = NULL, *rstd = NULL;
		if (r->k_is_v) memcpy(row + q + k, row + q, (size_t)k * sizeof *row);
		if (rope_norms(r)) {
			pre = (float *)r->pre + t * kept;
			rstd = r->rstd + t * rstd_width(r);
			memcpy(pre, row, (size_t)kept * sizeof *row);
		}
		if (r->qnorm && r->row_norm) {
			norm_part(r, row, r->qnorm, rstd, q);
			norm_part(r, row + q, r->knorm, rstd + 1, k);
		}
		rope_token(r, row, pre, rstd, position);
		for (int64_t j = r->heads + r->kv_heads; r->v_norm && j < rope_normed(r); j++) {
			rstd[j] = rstd_of(0, row + j * dim, 0, dim, r->eps);
			norm_scale(0, row + j * dim, row + j * dim, NO_WEIGHT, NULL, NULL, 0, rstd[j], dim);
		}
		heat(r, row, position);
	}
}

INLINE void rope_token_back(const struct rope_args *r, float *row, float *dqnorm, float *dknorm, const float *pre,
	const float *rstd, int64_t position)
{
	int64_t dim = r->dim, half = r->rope_dim / 2, heads = r->heads, all = heads + r->kv_heads;
	const float *c = r->cos + position * half, *s = r->sin + position * half, *qnorm = r->qnorm, *knorm = r->knorm;
	int norms = rope_norms(r), before = norms && !r->row_norm && !r->norm_after, after = norms && r->norm_after;
	for (int64_t j = 0; j < all; j++) {
		float *dx = row + j * dim, *dw = j < heads ? dqnorm : dknorm;
		const float *w = j < heads ? qnorm : knorm;
		if (after) norm_part_back(r, dx, dw, pre + j * dim, w, rstd[j], dim);
		rotate_head(dx, c, s, -1, half, r->neighbours);
		if (before) norm_part_back(r, dx, dw, pre + j * dim, w, rstd[j], dim);
	}
}

static void rope_backward(const struct rope_args *r, float *dqnorm, float *dknorm, int64_t first, int64_t end)
{
	int64_t dim = r->dim, q = r->heads * dim, k = r->kv_heads * dim, kept = rope_normed(r) * dim;
	for (int64_t t = first; t < end; t++) {
		int64_t position = t % r->seq - r->starts[t];
		float *row = (float *)r->qkv + t * rope_row(r);
		const float *pre = rope_norms(r) ? (const float *)r->pre + t * kept : NULL;
		const float *rstd = rope_norms(r) ? r->rstd + t * rstd_width(r) : NULL;
		heat(r, row, position);
		rope_token_back(r, row, dqnorm, dknorm, pre, rstd, position);
		if (r->qnorm && r->row_norm) {
			norm_part_back(r, row, dqnorm, pre, r->qnorm, rstd[0], q);
			norm_part_back(r, row + q, dknorm, pre + q, r->knorm, rstd[1], k);
		}
		for (int64_t j = r->heads + r->kv_heads; r->v_norm && j < rope_normed(r); j++)
			norm_back(0, row + j * dim, 0, NULL, NULL, row + j * dim, pre + j * dim, NO_WEIGHT, NULL, 0, &rstd[j], dim);
		for (int64_t i = 0; r->k_is_v && i < k; i += VW)
			v_put(row + q + i, k - i, v_get(row + q + i, k - i) + v_get(row + q + k + i, k - i));
	}
}
