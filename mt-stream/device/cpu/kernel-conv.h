/* kernel-conv.h: a short causal convolution, silu, and the norm of q and k heads, forward and backward. Channels go in
 * groups, whole heads of q and k: a group's weights and its last gradients stay in the nearest cache while
 * all rows of a task pass. */
#include "ops/conv.h"

enum { CONV_GROUP = 512, CONV_WIDTH = 4 };
#define CONV_NORM_EPS 1e-6f

/* Channels first .. first + n - 1; q and k heads of `dim`, or dim is 0 */
struct conv_group {
	int64_t first, n, dim;
	float w[CONV_WIDTH][CONV_GROUP];
};

static void conv_group_at(struct conv_group *g, const struct conv_args *a, int64_t first)
{
	int64_t heads = (a->q_heads + a->k_heads) * a->dim, end = first < heads ? heads : a->channels;
	g->first = first;
	g->dim = first < heads ? a->dim : 0;
	g->n = least(g->dim ? CONV_GROUP / g->dim * g->dim : CONV_GROUP, end - first);
	const float *w = (const float *)a->w + first * a->width;
	for (int64_t j = 0; j < a->width; j++) {
		for (int64_t i = 0; i < g->n; i++) g->w[j][i] = w[i * a->width + j];
		for (int64_t i = g->n; i < round_up(g->n, VW); i++) g->w[j][i] = 0;
	}
}

/* Tokens before t in its document */
INLINE int64_t conv_before(const struct conv_args *a, int64_t t)
{
	if (t < 0) return t + a->past;
	int64_t before = t % a->seq - a->starts[t];
	return before == t ? t + a->past : before;
}

/* Channels from i on of a token's row of p, which is x or a factor, or those of dx */
INLINE const float *conv_at(const void *p, const struct conv_args *a, const struct conv_group *g, int64_t t, int64_t i)
{
	return (const float *)p + t * a->ld + g->first + i;
}
INLINE float *conv_to(void *p, const struct conv_args *a, const struct conv_group *g, int64_t t, int64_t i)
{
	return (float *)p + t * a->dx_ld + g->first + i;
}

/* What counts as x */
INLINE vf conv_x(const struct conv_args *a, const struct conv_group *g, int64_t t, int64_t i)
{
	vf x = v_get(conv_at(a->x, a, g, t, i), g->n - i);
	return a->before ? x * v_get(conv_at(a->before, a, g, t, i), g->n - i) : x;
}

/* u (n) of token t */
INLINE void conv_sum(float *u, const struct conv_args *a, const struct conv_group *g, int64_t t, int64_t before)
{
	const float *bias = a->bias ? (const float *)a->bias + g->first : NULL;
	int64_t most = least(before, a->width - 1);
	for (int64_t i = 0; i < g->n; i += VW) {
		vf sum = bias ? v_get(bias + i, g->n - i) : v_set(0);
		for (int64_t back = most; back >= 0; back--)
			sum = v_fma(v_load(g->w[a->width - 1 - back] + i), conv_x(a, g, t - back, i), sum);
		v_store(u + i, sum);
	}
}

/* y = silu(u), and its derivative s (1 + u (1 - s)), s = sigmoid(u) */
INLINE vf silu(vf u, vf *slope)
{
	const vf one = v_set(1);
	vf denominator = one + v_exp(-u), s = one / denominator;
	*slope = s * v_fma(u, one - s, one);
	return u / denominator;
}

/* y = f(u); slope: its derivative, or NULL; y may be u */
INLINE void conv_act(float *y, float *slope, const float *u, int silu_too, int64_t n)
{
	for (int64_t i = 0; i < n; i += VW) {
		vf x = v_load(u + i), d = v_set(1);
		v_store(y + i, silu_too ? silu(x, &d) : x);
		if (slope) v_store(slope + i, d);
	}
}

INLINE float head_dot(const float *x, const float *y, int64_t dim)
{
	vf sum = {0};
	for (int64_t i = 0; i < dim; i += VW) sum = v_fma(v_get(x + i, dim - i), v_get(y + i, dim - i), sum);
	return v_sum(sum);
}

/* The factor of normed q heads; k's have none */
INLINE float conv_scale(const struct conv_args *a, int64_t head)
{
	return head < a->q_heads && !a->unnormed ? 1.0f / sqrtf((float)a->dim) : 1;
}

static void conv_forward(const struct conv_args *a, int64_t first, int64_t end)
{
	struct conv_group g;
	float y[CONV_GROUP];
	for (int64_t c = 0; c < a->channels; c += g.n) {
		conv_group_at(&g, a, c);
		if (a->unnormed) g.dim = 0;
		for (int64_t t = first; t < end; t++) {
			float *to = (float *)a->y + t * a->channels + c;
			conv_sum(y, a, &g, t, conv_before(a, t));
			conv_act(y, NULL, y, a->silu, g.n);
			for (int64_t h = 0; g.dim && h < g.n; h += g.dim) {
				float r = 1.0f / sqrtf(head_dot(y + h, y + h, g.dim) + CONV_NORM_EPS) * conv_scale(a, (c + h) / g.dim);
				for (int64_t i = 0; i < g.dim; i += VW)
					v_put(to + h + i, g.dim - i, v_get(y + h + i, g.dim - i) * v_set(r));
			}
			for (int64_t i = 0; !g.dim && i < g.n; i += VW) {
				vf v = v_load(y + i);
				v_put(to + i, g.n - i, a->after ? v * v_get(conv_at(a->after, a, &g, t, i), g.n - i) : v);
			}
		}
	}
}

/* The gradient of a q or k head's y, from d: that of its value heads, added in their order. Where y is normed, and
 * n = y r: dy = scale r (d - n (n . d)) */
INLINE void conv_head_back(float *dy, const struct conv_args *a, const float *y, int64_t head, int64_t t)
{
	int64_t dim = a->dim, share = a->value_heads / a->k_heads, at = head % a->k_heads * share;
	const float *d = (const float *)(head < a->q_heads ? a->dq : a->dk) + (t * a->value_heads + at) * dim;
	float r = 1.0f / sqrtf(head_dot(y, y, dim) + CONV_NORM_EPS), scale = conv_scale(a, head);
	vf dot = {0};
	for (int64_t i = 0; i < dim; i += VW) {
		vf sum = v_get(d + i, dim - i);
		for (int64_t k = 1; k < share; k++) sum += v_get(d + k * dim + i, dim - i);
		sum *= v_set(scale);
		dot = v_fma(sum, v_get(y + i, dim - i) * v_set(r), dot);
		v_put(dy + i, dim - i, sum);
	}
	vf along = v_set(v_sum(dot));
	for (int64_t i = 0; !a->unnormed && i < dim; i += VW) {
		vf n = v_get(y + i, dim - i) * v_set(r);
		v_put(dy + i, dim - i, v_set(r) * (v_get(dy + i, dim - i) - n * along));
	}
}

/* du (n), the gradient of u at token t; own: write that of the factor, too */
INLINE void conv_back_u(float *du, const struct conv_args *a, const struct conv_group *g, int64_t t, int64_t before,
	bool own)
{
	float y[CONV_GROUP], slope[CONV_GROUP];
	int64_t heads = (a->q_heads + a->k_heads) * a->dim;
	conv_sum(y, a, g, t, before);
	conv_act(y, slope, y, a->silu, g->n);
	if (!g->dim) {
		const float *dv = (const float *)a->dv + t * (a->channels - heads) + g->first - heads;
		for (int64_t i = 0; i < g->n; i += VW) {
			vf d = v_get(dv + i, g->n - i);
			if (a->after && own) v_put(conv_to(a->dafter, a, g, t, i), g->n - i, d * v_load(y + i));
			if (a->after) d *= v_get(conv_at(a->after, a, g, t, i), g->n - i);
			v_store(du + i, d * v_load(slope + i));
		}
		return;
	}
	for (int64_t h = 0; h < g->n; h += g->dim) conv_head_back(du + h, a, y + h, (g->first + h) / g->dim, t);
	for (int64_t i = g->n; i < round_up(g->n, VW); i++) du[i] = 0;
	for (int64_t i = 0; i < g->n; i += VW) v_store(du + i, v_load(du + i) * v_load(slope + i));
}

/* dx of token t = the sum over back of w_(width - 1 - back) du_(t + back), inside the document */
INLINE void conv_back_x(const struct conv_args *a, const struct conv_group *g, int64_t t,
	const float du[CONV_WIDTH][CONV_GROUP])
{
	int64_t n = 1;
	while (n < a->width && t + n < a->n && conv_before(a, t + n) >= n) n++;
	for (int64_t i = 0; i < g->n; i += VW) {
		vf sum = {0};
		for (int64_t back = 0; back < n; back++)
			sum = v_fma(v_load(g->w[a->width - 1 - back] + i), v_load(du[(t + back) % CONV_WIDTH] + i), sum);
		if (a->before) {
			v_put(conv_to(a->dbefore, a, g, t, i), g->n - i, sum * v_get(conv_at(a->x, a, g, t, i), g->n - i));
			sum *= v_get(conv_at(a->before, a, g, t, i), g->n - i);
		}
		v_put(conv_to(a->dx, a, g, t, i), g->n - i, sum);
	}
}

/* dw (width, n) += x_(t - back) du, dbias (n) += du */
INLINE void conv_back_w(float dw[CONV_WIDTH][CONV_GROUP], float *dbias, const struct conv_args *a,
	const struct conv_group *g, int64_t t, int64_t before, const float *du)
{
	int64_t most = least(before, a->width - 1);
	for (int64_t i = 0; i < g->n; i += VW) {
		vf d = v_load(du + i);
		for (int64_t back = most; back >= 0; back--) {
			float *to = dw[a->width - 1 - back] + i;
			v_store(to, v_fma(conv_x(a, g, t - back, i), d, v_load(to)));
		}
		if (dbias) v_put(dbias + i, g->n - i, v_get(dbias + i, g->n - i) + d);
	}
}

/* Rows first .. end - 1. Their dx needs the gradients of u of the next width - 1 tokens, too. */
static void conv_backward(const struct conv_args *a, float *dw, float *dbias, int64_t first, int64_t end)
{
	struct conv_group g;
	float du[CONV_WIDTH][CONV_GROUP], sum[CONV_WIDTH][CONV_GROUP];
	int64_t far = a->width - 1;
	for (int64_t c = 0; c < a->channels; c += g.n) {
		conv_group_at(&g, a, c);
		memset(sum, 0, sizeof sum);
		for (int64_t t = first; t < end + far; t++) {
			int64_t before = t < a->n ? conv_before(a, t) : 0;
			if (t < end || (t < a->n && before > t - end)) conv_back_u(du[t % CONV_WIDTH], a, &g, t, before, t < end);
			if (t < end) conv_back_w(sum, dbias ? dbias + c : NULL, a, &g, t, before, du[t % CONV_WIDTH]);
			if (t - far >= first) conv_back_x(a, &g, t - far, du);
		}
		for (int64_t i = 0; i < g.n; i++)
			for (int64_t j = 0; j < a->width; j++) dw[(c + i) * a->width + j] += sum[j][i];
	}
}
