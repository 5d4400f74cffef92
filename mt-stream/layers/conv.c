/* conv.c: a short convolution between two gates, as LFM2 has it.
 *
 *     B | C | x = W norm(x)              o = C * convolution(B * x), each channel alone, inside the document
 *
 * Without gates (Mamba 1): silu(convolution(x)).
 */
#include "list.h"

static struct op conv_op(const struct run *r, enum op_code code, const struct node *n)
{
	const struct chunk *c = r->c;
	const struct mt_layer *l = r->l;
	const void *in = value_at(r, n->in[0]), *before = l->mixer == MT_CONV ? in : NULL;
	return (struct op){code,
		.conv = {.n = c->n,
			.seq = c->seq,
			.channels = l->conv_dim,
			.width = l->conv_width,
			.silu = !before,
			.before = before,
			.after = elements_after(c->dev, before, l->conv_dim),
			.x = elements_after(c->dev, in, before ? 2ll * l->conv_dim : 0),
			.ld = row_of(r, n->in[0]),
			.w = r->w->t[MT_T_CONV],
			.bias = r->w->t[MT_T_CONVB],
			.starts = c->starts,
			.past = c->past}};
}

static void conv_forward(struct run *r, const struct node *n)
{
	struct op op = conv_op(r, OP_CONV_FORWARD, n);
	op.conv.y = value_at(r, n->out);
	launch(r->c, &op);
}

static void conv_backward(struct run *r, const struct node *n)
{
	struct op op = conv_op(r, OP_CONV_BACKWARD, n);
	struct conv_args *a = &op.conv;
	a->dv = grad_at(r, n->out);
	void *d_in = grad_at(r, n->in[0]);
	a->dbefore = a->before ? d_in : NULL;
	a->dafter = elements_after(r->c->dev, a->dbefore, a->channels);
	a->dx = elements_after(r->c->dev, d_in, a->before ? 2 * a->channels : 0);
	a->dx_ld = a->ld;
	a->dw = r->g->t[MT_T_CONV];
	a->dbias = r->g->t[MT_T_CONVB];
	a->beta = r->beta;
	launch(r->c, &op);
}

static const struct node_kind conv_kind = {.forward = conv_forward,
	.backward = conv_backward,
	.reads = 1 << 0,
	.grad = {GRAD_OWN}};

int conv_node(struct list *t, int x, int keep)
{
	return node(t, (struct node){.kind = &conv_kind, .in = {x, NONE, NONE}}, t->l->conv_dim, keep);
}

int conv_nodes(struct list *t, int x)
{
	int64_t d = t->l->conv_dim;
	int bcx = linear(t, mixer_input(t, x, t->g->mamba_in_scale), MT_T_DQKV, MT_T_DQKVB, 0, 3 * d, 3 * d,
		KEEP_ALL_BUT_GATE_UP);
	t->v[bcx].past = PAST_SOME;
	return conv_node(t, bcx, KEEP_ATTENTION);
}
