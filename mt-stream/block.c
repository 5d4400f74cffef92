/* block.c: a decoder block: the order of its norms and residuals. Forward and backward are pairs.
 *
 *     pre-norm (llama)   x2 = x + attention(norm1(x))          y = x2 + mlp(norm2(x2))
 *     post-norm          x2 = x + post1(attention(x))          y = x2 + post2(mlp(x2))
 *     both (sandwich)    x2 = x + post1(attention(norm1(x)))   y = x2 + post2(mlp(norm2(x2)))
 *     parallel           x2 = x + attention(norm1(x))          y = x2 + mlp(norm2(x)), or norm1
 *
 * In some families what is added is multiplied by a constant, and the whole output by a number of the block's own. In
 * some a block has one half alone: a mixer, or an MLP. In some Mamba 2 is beside attention: both read norm1(x), and x2
 * is the sum of x and both.
 */
#include <stddef.h>

#include "layers.h"

/* ---- where tensors are ---- */

int64_t expert_stride(const struct mt_tensor *t, const struct mt_tensor *end)
{
	if (t->experts) return (int64_t)(t->n / t->experts);
	for (const struct mt_tensor *next = t + 1; next < end; next++)
		if (next->role == t->role) return (int64_t)(next->off - t->off);
	return 0;
}

void weights_enter(struct weights *w, const struct device *dev, const struct mt_tensor *first, uint32_t n,
	const void *base, const int16_t *lo)
{
	const struct mt_tensor *exact = NULL; /* the first one */
	for (const struct mt_tensor *t = first; t < first + n; t++) {
		if (t->expert) continue;
		if (t->exact && !exact) exact = t;
		if (t->exact && lo) w->lo[t->role] = lo + (t->off - exact->off);
		w->t[t->role] = operands_after(dev, base, (int64_t)t->off);
		if (t->role >= MT_T_XGATE && t->role <= MT_T_XDOWNB) w->stride[t->role] = expert_stride(t, first + n);
	}
}

void grads_enter(struct grads *g, const struct mt_tensor *first, uint32_t n, float *base)
{
	for (const struct mt_tensor *t = first; t < first + n; t++) {
		if (t->expert) continue;
		g->t[t->role] = base + t->off;
		if (t->role >= MT_T_XGATE && t->role <= MT_T_XDOWNB) g->stride[t->role] = expert_stride(t, first + n);
	}
}

/* ---- memory ---- */

void *walk_take(struct walk *w, uint64_t a, uint64_t b, uint64_t size)
{
	uint64_t bytes, end;
	void *p = w->base ? w->base + w->used : NULL;
	if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, size, &bytes) ||
		__builtin_add_overflow(bytes, 4095, &bytes) || __builtin_add_overflow(w->used, bytes & ~4095ull, &end)) {
		w->over = true;
		return NULL;
	}
	w->used = end;
	return p;
}

void *walk_take_fn(void *where, uint64_t count, uint64_t size) { return walk_take(where, count, 1, size); }

/* ---- a block ---- */

static const struct mixer *mixer_of(const struct mt_layer *l)
{
	return beside_attention(l)                         ? &attention_mixer
		: l->mixer == MT_DELTA || l->mixer == MT_MAMBA ? &delta_mixer
		: l->mixer == MT_CONV                          ? &conv_mixer
		: l->mixer == MT_MLA                           ? &mla_mixer
													   : &attention_mixer;
}

/* A mixer of a block: what it saves, its output projection, and the gradient of what that reads */
struct branch {
	const struct mixer *mixer;
	struct saved s;
	enum mt_role_tensor o, ob;
	struct norm post;
	int64_t width;
	void *d_o;
};

/* The block's only one, or attention and Mamba 2; how many */
static int branches_of(const struct chunk *c, const struct mt_layer *l, const struct saved *s, struct branch b[2])
{
	b[0] = (struct branch){mixer_of(l), *s, MT_T_O, MT_T_OB, post1, mixer_width(l), c->s.d_o};
	if (!beside_attention(l)) return 1;
	b[1] = (struct branch){&delta_mixer, *s, MT_T_MAMBA_O, MT_T_MAMBA_OB, no_norm, mamba_o_width(l), c->s.d_mamba};
	b[1].s.qkv = s->mamba_qkv;
	b[1].s.o = s->mamba_o;
	return 2;
}

/* What mixers keep: those of one kind of layers, or of all kinds together (mt_layer_most) */
static void mixer_take(struct saved *s, const struct kept *k, take_fn *take, void *where)
{
	const struct mt_layer *l = k->layer;
	if (k->level < KEEP_ATTENTION) return;
	s->o = take(where, k->n * (uint64_t)mixer_width(l), k->elem);
	if (beside_attention(l)) s->mamba_o = take(where, k->n * (uint64_t)mamba_o_width(l), k->elem);
	if (l->heads) s->lse = take(where, k->n * l->heads, sizeof(float));
	if (k->level < KEEP_ALL_BUT_GATE_UP) return;
	s->qkv = take(where, k->n * (uint64_t)proj_width(l), k->elem);
	if (beside_attention(l)) s->mamba_qkv = take(where, k->n * (uint64_t)mamba_width(l), k->elem);
	if (l->output_gate) s->gate = take(where, k->n * l->heads * l->head_dim, k->elem);
	if (!has_norms(k->geo, l)) return;
	s->pre = take(where, k->n * (uint64_t)pre_width(k->geo, l), k->elem);
	s->qk_rstd = take(where, k->n * (uint64_t)rstd_width(k->geo, l), sizeof(float));
}

void block_take(struct saved *s, const struct kept *k, take_fn *take, void *where)
{
	*s = (struct saved){0};
	mixer_take(s, k, take, where);
	if (k->level >= KEEP_ALL_BUT_GATE_UP && has_mixer(k->layer) && has_mlp(k->layer))
		s->x2 = take(where, k->n * k->geo->hidden, k->elem);
	mlp_take(s, k, take, where);
}

/* (N, width) what its output projection reads */
static const void *out_of(const struct chunk *c, uint32_t layer, const struct weights *w, const struct branch *b)
{
	return b->mixer->out ? b->mixer->out(c, layer, w, &b->s) : b->s.o;
}

/* y = x + what the mixers add */
static void output_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, void *y)
{
	struct branch b[2];
	int n = branches_of(c, mt_layer_of(c->geo, layer), s, b);
	for (int i = 0; i < n; i++)
		residual_forward(c, y, out_of(c, layer, w, &b[i]), w, b[i].o, b[i].ob, b[i].post, i ? y : x, b[i].width);
}

void mixer_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	bool have_o)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct branch b[2];
	if (!has_mixer(l)) return;
	int n = branches_of(c, l, s, b);
	for (int i = 0; i < n; i++) b[i].mixer->forward(c, layer, w, x, &b[i].s, have_o);
	if (has_mlp(l)) output_forward(c, layer, w, x, s, s->x2);
}

/* dx, the gradient of x2, becomes in the scratch's d_o and d_mamba those of what the output projections read */
static void output_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const struct saved *s, const void *dx)
{
	struct branch b[2];
	int n = branches_of(c, mt_layer_of(c->geo, layer), s, b);
	for (int i = 0; i < n; i++) {
		const void *out = out_of(c, layer, w, &b[i]);
		const void *dsub = residual_backward(c, dx, out, w, g, beta, b[i].o, b[i].ob, b[i].post, b[i].width);
		linear_backward(c, b[i].d_o, g->t[b[i].o], g->t[b[i].ob], beta, dsub, out, w->t[b[i].o], b[i].width,
			c->geo->hidden);
	}
}

/* And then dx that of x. Norms that MLP or mixers share add their gradients up. */
static void mixer_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, const struct saved *s, void *dx)
{
	struct branch b[2];
	int n = branches_of(c, mt_layer_of(c->geo, layer), s, b);
	for (int i = 0; i < n; i++) {
		struct chunk own = *c;
		own.s.d_o = b[i].d_o;
		b[i].mixer->backward(&own, layer, w, g, beta, i || c->geo->flags & MT_ONE_NORM ? 1 : beta, x, &b[i].s, dx);
	}
}

void block_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	void *y)
{
	mixer_forward(c, layer, w, x, s, false);
	if (has_mlp(mt_layer_of(c->geo, layer))) mlp_forward(c, layer, w, x, s, y);
	else output_forward(c, layer, w, x, s, y);
}

/* Numbers that are not trained */
static void no_gradient(const struct chunk *c, const struct grads *g, enum mt_role_tensor role)
{
	if (g->t[role]) launch(c, &(struct op){OP_ZERO, .zero = {g->t[role], sizeof(float)}});
}

static void scalar_backward(const struct chunk *c, const struct weights *w, void *dx)
{
	if (w->t[MT_T_SCALAR])
		LAUNCH(c, OP_SCALED_ADD, scaled_add, .y = dx, .x = dx, .n = c->n * c->geo->hidden, .scale = 1,
			.factor = w->t[MT_T_SCALAR]);
}

/* From the gradient of what the block's own factor multiplies */
void block_backward_rest(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, struct saved *s, void *dx)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	bool parallel = c->geo->flags & MT_PARALLEL;
	no_gradient(c, g, MT_T_SCALAR);
	no_gradient(c, g, MT_T_XIELU_BETA);
	no_gradient(c, g, MT_T_XIELU_EPS);
	/* parallel: the mixer's gradients are taken from dx before the MLP adds to it */
	if (parallel) output_backward(c, layer, w, g, beta, s, dx);
	if (has_mlp(l)) mlp_backward(c, layer, w, g, beta, x, s, dx);
	if (!has_mixer(l)) return;
	if (!parallel) output_backward(c, layer, w, g, beta, s, dx);
	mixer_backward(c, layer, w, g, beta, x, s, dx);
}

void block_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	const void *x, struct saved *s, void *dx)
{
	scalar_backward(c, w, dx);
	block_backward_rest(c, layer, w, g, beta, x, s, dx);
}

/* ---- a block whose experts come by windows ---- */

void block_route(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s)
{
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct slice p = slice_of(c, layer, from, w, x, s);
		experts_route(&p);
	}
}

/* The window's experts and rows of the slice that starts at token `from` */
static struct slice window_slice(const struct chunk *c, uint32_t layer, int64_t from, const struct weights *w,
	const struct window *win, const void *x, const struct saved *s)
{
	struct slice p = slice_of(c, layer, from, w, x, s);
	const uint32_t *rows = win->rows + from / c->slice * (p.l->experts + 1);
	p.from = win->from;
	p.to = win->to;
	p.begin = rows[p.from];
	p.rows = (int64_t)rows[p.to] - p.begin;
	return p;
}

void block_window_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct window *win,
	const void *x, const struct saved *s)
{
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct slice p = window_slice(c, layer, from, w, win, x, s);
		experts_window_forward(&p);
	}
}

void block_backward_route(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, void *dx)
{
	scalar_backward(c, w, dx);
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct slice p = slice_of(c, layer, from, w, x, s);
		experts_route_backward(&p, elements_after(c->dev, dx, from * c->geo->hidden));
	}
}

void block_window_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const struct window *win, const void *x, const struct saved *s, const void *dx)
{
	for (int64_t from = 0; from < c->n; from += c->slice, beta = 1) {
		struct slice p = window_slice(c, layer, from, w, win, x, s);
		experts_window_backward(&p, g, beta, elements_after(c->dev, dx, from * c->geo->hidden));
	}
}
