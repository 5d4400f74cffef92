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
#include <stdlib.h>

#include "layers/list.h"

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

void block_take(struct saved *s, const struct kept *k, take_fn *take, void *where)
{
	const struct list *t = k->list;
	*s = (struct saved){0};
	for (int v = 1; v < t->values; v++) {
		const struct value *x = &t->v[v];
		if (x->of != NONE || x->keep > (int)k->level) continue;
		void *at = take(where, k->n * (uint64_t)x->width, x->fp32 ? sizeof(float) : k->elem);
		*(v == t->x2 ? &s->x2 : &s->v[v]) = at;
	}
	if (k->level >= KEEP_ALL && t->l->experts) s->gu = take(where, k->n * (uint64_t)kept_width(t->l), k->elem);
}

void blocks_take(struct saved v[MT_KINDS], const struct list *lists, uint32_t kinds, enum checkpoint level, uint64_t n,
	uint64_t elem, struct walk *w)
{
	struct walk most = *w;
	for (uint32_t k = 0; k < kinds; k++) {
		struct walk one = *w;
		block_take(&v[k], &(struct kept){&lists[k], level, n, elem}, walk_take_fn, &one);
		if (one.over || one.used > most.used) most = one;
	}
	*w = most;
}

static void *after(void *p, int64_t elements, size_t size) { return p ? (char *)p + (size_t)elements * size : NULL; }

struct saved saved_after(const struct saved *s, const struct list *lists, uint32_t kind, int64_t from, size_t elem)
{
	const struct list *t = &lists[kind];
	struct saved to = *s;
	for (int v = 1; v < t->values; v++)
		to.v[v] = after(s->v[v], from * t->v[v].width, t->v[v].fp32 ? sizeof(float) : elem);
	to.x2 = after(s->x2, from * t->g->hidden, elem);
	to.gu = after(s->gu, from * kept_width(t->l), elem);
	return to;
}

struct list *lists_make(const struct mt_geometry *g, size_t elem)
{
	struct list *lists = calloc(MT_KINDS, sizeof *lists);
	for (uint32_t k = 0; lists && k < g->n_kinds; k++) list_make(&lists[k], g, &g->kind[k], elem);
	return lists;
}

uint64_t lists_arena(const struct list *lists, uint32_t kinds, int half, uint64_t n, bool gate_up, bool train)
{
	uint64_t most = 0;
	for (const struct list *t = lists; t < lists + kinds; t++)
		for (int backward = 0; backward <= train; backward++)
			most = larger(most, places_bytes(&t->at[half][half == MLP && !gate_up][backward], (int64_t)n));
	return most;
}

/* ---- a block ---- */

void block_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	void *y)
{
	bool mlp = has_mlp(mt_layer_of(c->geo, layer));
	mixer_forward(c, layer, w, x, s, mlp ? s->x2 : y);
	if (mlp) mlp_forward(c, layer, w, x, s, y);
}

/* Numbers that are not trained */
static void no_gradient(const struct chunk *c, const struct grads *g, enum mt_role_tensor role)
{
	if (g->t[role]) launch(c, &(struct op){OP_ZERO, .zero = {g->t[role], sizeof(float)}});
}

/* Behind experts; else it is a node */
static void scalar_backward(const struct chunk *c, uint32_t layer, const struct weights *w, void *dx)
{
	if (mt_layer_of(c->geo, layer)->experts) scalar_times(c, w, dx);
}

/* From the gradient of what the block's own factor multiplies */
void block_backward_rest(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, const struct saved *s, void *dx)
{
	struct run mixers = mixers_backward_begin(c, layer, w, g, beta, x, s, dx);
	bool parallel = c->geo->flags & MT_PARALLEL;
	no_gradient(c, g, MT_T_SCALAR);
	no_gradient(c, g, MT_T_XIELU_BETA);
	no_gradient(c, g, MT_T_XIELU_EPS);
	/* parallel: the mixer's gradients are taken from dx before the MLP adds to it */
	if (parallel) outputs_backward(&mixers);
	if (has_mlp(mixers.l)) mlp_backward(c, layer, w, g, beta, x, s, dx);
	if (!parallel) outputs_backward(&mixers);
	mixers_backward(&mixers);
}

void block_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	const void *x, const struct saved *s, void *dx)
{
	scalar_backward(c, layer, w, dx);
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
	scalar_backward(c, layer, w, dx);
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
