/* slices.c: a chunk through the MLP or the experts in its place, slice by slice. */
#include "layers/list.h"

/* Where the slice's routing and sums are, of all slices of a pass: by tokens and slices before it */
static void experts_of_pass(struct slice *p, int64_t tokens, int64_t slices)
{
	struct experts_scratch *x = &p->c.s.x;
	int64_t slots = tokens * p->l->experts_per_token;
	x->scores += tokens * p->l->experts;
	x->weight += slots;
	x->expert += slots;
	x->row += slots;
	x->slot += slots;
	if (x->dweight) x->dweight += slots;
	x->first += slices * (p->l->experts + 1);
	x->sum += tokens * p->c.geo->hidden;
}

struct slice slice_of(const struct chunk *c, uint32_t layer, int64_t from, const struct weights *w, const void *x,
	const struct saved *s)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	const void *x2 = has_mixer(l) ? s->x2 : x;
	bool parallel = c->geo->flags & MT_PARALLEL;
	struct slice p = {.c = *c,
		.l = l,
		.w = w,
		.in = elements_after(c->dev, parallel ? x : x2, from * c->geo->hidden),
		.x2 = elements_after(c->dev, x2, from * c->geo->hidden),
		.kept = s->gu != NULL,
		.gu = s->gu ? elements_after(c->dev, s->gu, from * kept_width(l)) : c->s.x.gu,
		.norm = c->geo->flags & MT_ONE_NORM ? norm1 : norm2,
		.post = post2,
		.to = l->experts};
	p.c.n = c->n - from < c->slice ? c->n - from : c->slice;
	if (p.c.balance.sums) p.c.balance.counted += from;
	p.rows = p.c.n * l->experts_per_token;
	if (l->expert_flags & MT_OWN_NORMS) p.sum = c->s.x.x;
	if (s->sum) {
		p.sum = elements_after(c->dev, s->sum, from * c->geo->hidden);
		p.dsum = elements_after(c->dev, s->dsum, from * c->geo->hidden);
		if (!(l->expert_flags & MT_OWN_NORMS)) p.c.s.sub = p.sum;
	}
	if (c->s.x.sum) experts_of_pass(&p, c->before + from, c->slices_before + from / c->slice);
	return p;
}

void mlp_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	void *y)
{
	if (!mt_layer_of(c->geo, layer)->experts) {
		mlp_list_forward(c, layer, w, x, s, y);
		return;
	}
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct slice p = slice_of(c, layer, from, w, x, s);
		void *out = elements_after(c->dev, y, from * c->geo->hidden);
		(c->s.x.sum ? experts_forward_end : experts_forward)(&p, out);
		scalar_times(&p.c, w, out);
	}
}

void mlp_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	const void *x, const struct saved *s, void *dx)
{
	if (!mt_layer_of(c->geo, layer)->experts) {
		mlp_list_backward(c, layer, w, g, beta, x, s, dx);
		return;
	}
	for (int64_t from = 0; from < c->n; from += c->slice, beta = 1) {
		struct slice p = slice_of(c, layer, from, w, x, s);
		(c->s.x.sum ? experts_backward_end : experts_backward)(&p, g, beta,
			elements_after(c->dev, dx, from * c->geo->hidden));
	}
}
