/* mlp.c: the MLP, slice by slice, or the experts in its place. Forward and backward are pairs. */
#include "layers.h"

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
		.gu = s->gu      ? elements_after(c->dev, s->gu, from * kept_width(l))
			: l->experts ? c->s.x.gu
						 : c->s.gu,
		.norm = c->geo->flags & MT_ONE_NORM ? norm1 : norm2,
		.post = post2,
		.to = l->experts};
	p.c.n = c->n - from < c->slice ? c->n - from : c->slice;
	if (p.c.balance.sums) p.c.balance.counted += from;
	p.c.ple = elements_after(c->dev, c->ple, from * ple_width(c->geo));
	p.rows = p.c.n * l->experts_per_token;
	if (l->expert_flags & MT_OWN_NORMS) p.sum = c->s.x.x;
	if (s->sum) {
		p.sum = elements_after(c->dev, s->sum, from * c->geo->hidden);
		p.dsum = elements_after(c->dev, s->dsum, from * c->geo->hidden);
		if (!(l->expert_flags & MT_OWN_NORMS)) p.c.s.sub = p.sum;
	}
	if (l->experts && c->s.x.sum) experts_of_pass(&p, c->before + from, c->slices_before + from / c->slice);
	return p;
}

/* Weights of gate | up, which is up alone where the MLP is not gated */
static enum mt_role_tensor gate_up_role(const struct slice *p) { return mlp_gated(p->l) ? MT_T_GATE : MT_T_UP; }
static enum mt_role_tensor gate_up_bias(const struct slice *p) { return mlp_gated(p->l) ? MT_T_GATEB : MT_T_UPB; }

/* The factor of gate, or of its gradient */
static void scale_gate(const struct slice *p)
{
	scale_columns(&p->c, p->gu, p->l->ffn, gate_up_width(p->l), p->c.geo->gate_scale);
}

static void gate_up(const struct slice *p)
{
	linear_forward(&p->c, p->gu, input_of(&p->c, p->in, p->w, p->norm), p->w->t[gate_up_role(p)],
		p->w->t[gate_up_bias(p)], NULL, p->c.geo->hidden, gate_up_width(p->l));
	scale_gate(p);
}

static void activation_forward(const struct slice *p)
{
	LAUNCH(&p->c, OP_ACTIVATION_FORWARD, activation, .y = p->c.s.act, .gu = p->gu, .n = p->c.n, .f = p->l->ffn,
		.form = (enum mt_ffn)p->l->form, .slope = {p->w->t[MT_T_SLOPE_P], p->w->t[MT_T_SLOPE_N]});
}

/* The gradient of gate | up in its place, from that of the inner output in act, which becomes the inner output */
static void activation_backward(const struct slice *p, const struct grads *g, float beta)
{
	LAUNCH(&p->c, OP_ACTIVATION_BACKWARD, activation, .dgu = p->gu, .y = p->c.s.act, .dy = p->c.s.act, .gu = p->gu,
		.n = p->c.n, .f = p->l->ffn, .form = (enum mt_ffn)p->l->form,
		.slope = {p->w->t[MT_T_SLOPE_P], p->w->t[MT_T_SLOPE_N]}, .dslope = {g->t[MT_T_SLOPE_P], g->t[MT_T_SLOPE_N]},
		.beta = beta);
	scale_gate(p);
}

void mlp_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	void *y)
{
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct slice p = slice_of(c, layer, from, w, x, s);
		void *out = elements_after(c->dev, y, from * c->geo->hidden);
		if (p.l->experts) {
			(c->s.x.sum ? experts_forward_end : experts_forward)(&p, out);
		} else {
			gate_up(&p);
			activation_forward(&p);
			residual_forward(&p.c, out, c->s.act, w, MT_T_DOWN, MT_T_DOWNB, post2, p.x2, p.l->ffn);
		}
		if (c->ple) ple_forward(&p, layer, out);
		if (w->t[MT_T_SCALAR])
			LAUNCH(&p.c, OP_SCALED_ADD, scaled_add, .y = out, .x = out, .n = p.c.n * c->geo->hidden, .scale = 1,
				.factor = w->t[MT_T_SCALAR]);
	}
}

void mlp_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	const void *x, const struct saved *s, void *dx)
{
	int64_t h = c->geo->hidden;
	for (int64_t from = 0; from < c->n; from += c->slice, beta = 1) {
		struct slice p = slice_of(c, layer, from, w, x, s);
		void *d = elements_after(c->dev, dx, from * h);
		const void *dsub, *in = NULL;
		int64_t f = p.l->ffn;
		if (p.l->experts) {
			(c->s.x.sum ? experts_backward_end : experts_backward)(&p, g, beta, d);
			continue;
		}
		/* the input is computed here where nothing else overwrites it before the weights' gradients */
		if (!s->gu) gate_up(&p);
		else if (!(c->geo->flags & MT_POST_NORM)) in = input_of(&p.c, p.in, w, p.norm);
		if (c->geo->flags & MT_POST_NORM) activation_forward(&p);
		if (c->ple) {
			linear_forward(&p.c, c->s.sub, c->s.act, w->t[MT_T_DOWN], w->t[MT_T_DOWNB], NULL, f, h);
			residual_add(&p.c, c->s.ple.y, w, post2, p.x2);
			ple_backward(&p, layer, g, beta, c->s.ple.y, d);
			dsub = residual_sub_backward(&p.c, d, w, g, beta, post2);
		} else dsub = residual_backward(&p.c, d, c->s.act, w, g, beta, MT_T_DOWN, MT_T_DOWNB, post2, f);
		/* act holds the gradient of the inner output, then the inner output, for the gradient of down's weights */
		struct operand dy = operand_of(&p.c, OPERAND_DY, dsub, 0, p.c.n, h);
		linear_backward_input(&p.c, c->s.act, 0, &dy, w->t[MT_T_DOWN], f, h);
		activation_backward(&p, g, beta);
		struct operand act = operand_of(&p.c, OPERAND_X, c->s.act, 0, p.c.n, f);
		linear_backward_weights(&p.c, g->t[MT_T_DOWN], g->t[MT_T_DOWNB], beta, &dy, &act, f, h);
		if (c->geo->flags & MT_POST_NORM) in = input_of(&p.c, p.in, w, p.norm);
		else if (!in) in = c->geo->flags & MT_NO_PRE_NORM ? p.in : c->s.h;
		linear_backward(&p.c, c->s.dh, g->t[gate_up_role(&p)], g->t[gate_up_bias(&p)], beta, p.gu, in,
			w->t[gate_up_role(&p)], h, gate_up_width(p.l));
		input_backward(&p.c, d, g, beta, p.in, w, p.norm);
	}
}
