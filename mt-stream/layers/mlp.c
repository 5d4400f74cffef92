/* mlp.c: the MLP, and what a block's own input adds behind it ("per-layer embeddings"):
 *
 *     y = x2 + W_down act(W norm(in))        W: gate | up, or up alone
 *     y += norm(W2 (act(W1 y) * input))
 */
#include <math.h>

#include "list.h"

/* ---- the factor of gate ---- */

static void gate_factor_forward(struct run *r, const struct node *n)
{
	scale_columns(r->c, value_at(r, n->out), r->l->ffn, row_of(r, n->out), r->c->geo->gate_scale);
}
static void gate_factor_backward(struct run *r, const struct node *n)
{
	scale_columns(r->c, grad_at(r, n->out), r->l->ffn, row_of(r, n->out), r->c->geo->gate_scale);
}

static const struct node_kind gate_factor_kind = {.forward = gate_factor_forward,
	.backward = gate_factor_backward,
	.grad = {GRAD_OF_OUT}};

/* ---- the inner function ---- */

static bool interleaved(const struct run *r, const struct node *n)
{
	bool of_experts = r->k.t->v[n->out].slots;
	return of_experts && (r->l->expert_flags & (MT_TRANSPOSED | MT_GATE_FIRST)) == MT_TRANSPOSED;
}

static struct activation_args inner_args(const struct run *r, const struct node *n)
{
	return (struct activation_args){.y = rows_at(r, value_at(r, n->out), n->out),
		.gu = rows_at(r, value_at(r, n->in[0]), n->in[0]),
		.n = rows_in(r, n->out),
		.f = r->k.t->v[n->out].width,
		.form = n->inner.form,
		.interleaved = interleaved(r, n),
		.sparse = n->inner.sparse,
		.deviations = n->inner.deviations,
		.slope = {r->w->t[n->inner.slope], r->w->t[n->inner.negative]}};
}

static void inner_forward(struct run *r, const struct node *n)
{
	struct op op = {OP_ACTIVATION_FORWARD, .activation = inner_args(r, n)};
	if (op.activation.n) launch(r->c, &op);
}

static void inner_backward(struct run *r, const struct node *n)
{
	struct op op = {OP_ACTIVATION_BACKWARD, .activation = inner_args(r, n)};
	struct activation_args *a = &op.activation;
	a->dy = rows_at(r, grad_at(r, n->out), n->out);
	a->dgu = rows_at(r, grad_at(r, n->in[0]), n->in[0]);
	a->dslope[0] = r->g->t[n->inner.slope];
	a->dslope[1] = r->g->t[n->inner.negative];
	a->beta = r->beta;
	if (a->n) launch(r->c, &op);
}

static const struct node_kind inner_kind = {.forward = inner_forward,
	.backward = inner_backward,
	.gives = true,
	.reads = 1 << 0,
	.grad = {GRAD_OVER_INPUT}};

int inner(struct list *t, int gu, int64_t width, struct inner how)
{
	struct node n = {.kind = &inner_kind, .in = {gu, NONE, NONE}, .inner = how};
	int act = node(t, n, width, AGAIN);
	t->v[act].slots = t->v[gu].slots;
	return act;
}

/* x with Phi(x) = p, by Newton's method from the middle on; p is at most 0.9999 */
static float normal_quantile(double p)
{
	double x = 0;
	for (int i = 0; i < 60; i++) {
		double step = (erfc(-x * M_SQRT1_2) / 2 - p) / (exp(-x * x / 2) / sqrt(2 * M_PI));
		x -= fmax(-0.5, fmin(0.5, step));
	}
	return (float)x;
}

int mlp_nodes(struct list *t, int in, int residual)
{
	const struct mt_layer *l = t->l;
	int64_t wide = gate_up_width(l, l->ffn);
	bool gated = mlp_gated(l);
	int gu = linear(t, pre_norm(t, in, t->g->flags & MT_ONE_NORM ? norm1 : norm2), gated ? MT_T_GATE : MT_T_UP,
		gated ? MT_T_GATEB : MT_T_UPB, 0, wide, wide, t->g->altup ? AGAIN : KEEP_ALL);
	if (t->g->gate_scale != 1) gu = node_over(t, (struct node){.kind = &gate_factor_kind, .in = {gu, NONE, NONE}});
	struct inner how = {(enum mt_ffn)l->form, MT_T_SLOPE_P, MT_T_SLOPE_N, .sparse = l->sparsity != 0};
	if (how.sparse) how.deviations = normal_quantile((double)l->sparsity);
	int act = inner(t, gu, l->ffn, how);
	if (t->g->flags & MT_SUB_NORM) act = norm(t, act, down_norm);
	return output_projection(t, residual, act, MT_T_DOWN, MT_T_DOWNB, post2, t->g->mlp_scale);
}

/* ---- a block's own input ---- */

/* Beside act's gate: in the columns behind it */
static struct columns_args own_args(const struct run *r, const struct node *n, void *beside, bool out)
{
	const struct mt_geometry *g = r->c->geo;
	int64_t p = g->ple_dim, row = row_of(r, n->out), all = ple_width(g);
	void *own = elements_after(r->c->dev, r->c->ple, (int64_t)r->layer * p);
	beside = elements_after(r->c->dev, beside, p);
	return (struct columns_args){.dst = out ? own : beside,
		.src = out ? beside : own,
		.n = r->c->n,
		.width = p,
		.dst_ld = out ? all : row,
		.src_ld = out ? row : all};
}

static void own_forward(struct run *r, const struct node *n)
{
	launch(r->c, &(struct op){OP_COLUMNS, .columns = own_args(r, n, value_at(r, n->out), false)});
}

/* Its gradient takes its place: nobody reads it any more */
static void own_backward(struct run *r, const struct node *n)
{
	launch(r->c, &(struct op){OP_COLUMNS, .columns = own_args(r, n, grad_at(r, n->out), true)});
}

static const struct node_kind own_kind = {.forward = own_forward, .backward = own_backward, .grad = {GRAD_OF_OUT}};

int own_input(struct list *t, int y)
{
	int64_t p = t->g->ple_dim;
	int gu = value(t, 2 * p, AGAIN), gate = columns(t, gu, 0, p);
	linear_into(t, gate, y, MT_T_PLE_GATE, p);
	node_into(t, gu, (struct node){.kind = &own_kind, .in = {gate, NONE, NONE}, .in_place = true});
	int act = inner(t, gu, p, (struct inner){.form = (enum mt_ffn)t->l->form});
	return linear(t, act, MT_T_PLE_OUT, 0, 0, t->g->hidden, t->g->hidden, AGAIN);
}

int own_input_nodes(struct list *t, int y) { return residual_sum(t, y, own_input(t, y), ple_post, 1); }
