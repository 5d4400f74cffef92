/* list.c: builds a layer kind's list; and the nodes that all mixers have: norms, linear layers, sums. */
#include "list.h"

#include "cli/cli.h"

#define LATENT_EPS 1e-6f /* whatever the other norms have */

/* ---- building ---- */

int value(struct list *t, int64_t width, int keep)
{
	MT_ASSERT(t->values < LIST_VALUES);
	t->v[t->values] = (struct value){.width = width, .grad_width = width, .keep = keep, .of = NONE, .made = INPUT};
	return t->values++;
}

int columns(struct list *t, int of, int64_t at, int64_t width)
{
	int v = value(t, width, t->v[of].keep);
	t->v[v].of = of;
	t->v[v].at = at;
	t->v[v].made = VIEW;
	return v;
}

int side(struct list *t, int64_t width, int keep)
{
	int v = value(t, width, keep);
	t->v[v].fp32 = true;
	return v;
}

int node_into(struct list *t, int v, struct node n)
{
	MT_ASSERT(t->nodes < NODES);
	n.out = v;
	if (!n.in[3]) n.in[3] = NONE;
	t->v[v].made = t->nodes;
	for (int i = 0; i < NODE_SIDES; i++)
		if (n.side[i] > 0) t->v[n.side[i]].made = t->nodes;
	t->node[t->nodes++] = n;
	return v;
}

int node(struct list *t, struct node n, int64_t width, int keep) { return node_into(t, value(t, width, keep), n); }

int node_over(struct list *t, struct node n)
{
	n.in_place = true;
	return node_into(t, columns(t, n.in[0], 0, t->v[n.in[0]].width), n);
}

int root_of(const struct list *t, int v)
{
	while (t->v[v].of != NONE) v = t->v[v].of;
	return v;
}

int grad_root_of(const struct list *t, int v)
{
	while (t->v[v].of != NONE && !t->v[v].apart) v = t->v[v].of;
	return v;
}

bool is_sum(const struct list *t, int root) { return t->sum != NONE && root == root_of(t, t->sum); }

/* ---- norms ---- */

static struct op norm_op(const struct run *r, const struct node *n)
{
	const struct mt_geometry *g = r->c->geo;
	bool own = n->eps > 0, layer = !own && g->flags & MT_LAYERNORM;
	int64_t width = r->k.t->v[n->out].width, ld = row_of(r, n->in[0]);
	float *rstd = value_at(r, n->side[0]);
	return (struct op){OP_NORM_FORWARD,
		.norm_forward = {.y = value_at(r, n->out),
			.rstd = rstd,
			.x = value_at(r, n->in[0]),
			.w = r->w->t[n->w],
			.n = r->c->n,
			.h = width,
			.eps = own ? n->eps : g->norm_eps,
			.mean = layer ? rstd + r->c->n : NULL,
			.b = r->w->t[n->b],
			.one = !own && g->flags & MT_NORM_ONE,
			.ld = ld == width ? 0 : ld}};
}

static void norm_node_forward(struct run *r, const struct node *n)
{
	struct op op = norm_op(r, n);
	launch(r->c, &op);
}

static void norm_back(struct run *r, const struct node *n, int add)
{
	const struct norm_forward_args f = norm_op(r, n).norm_forward;
	float beta = r->normed[n->w] ? 1 : r->beta;
	r->normed[n->w] = true;
	LAUNCH(r->c, OP_NORM_BACKWARD, norm_backward, .dx = grad_at(r, n->in[0]), .add_dx = add, .dw = r->g->t[n->w],
		.beta = beta, .dy = grad_at(r, n->out), .x = f.x, .w = f.w, .rstd = f.rstd, .n = f.n, .h = f.h, .mean = f.mean,
		.db = r->g->t[n->b], .one = f.one, .ld = f.ld);
}

static void norm_node_backward(struct run *r, const struct node *n) { norm_back(r, n, again(r, n->in[0])); }

static const struct node_kind norm_kind = {.forward = norm_node_forward,
	.backward = norm_node_backward,
	.reads = 1 << 0 | READS_SIDES};

/* The only reader of x, whose gradient comes in place of the norm's, which is the residual's */
static void residual_backward(struct run *r, const struct node *n) { norm_back(r, n, 0); }

static const struct node_kind residual_kind = {.forward = norm_node_forward,
	.backward = residual_backward,
	.reads = 1 << 0 | READS_SIDES,
	.grad = {GRAD_OF_OUT}};

static int norm_of(struct list *t, const struct node_kind *kind, int x, struct norm norm, float eps)
{
	struct node n = {.kind = kind, .in = {x, NONE, NONE}, .w = norm.w, .b = norm.b, .eps = eps};
	n.side[0] = side(t, t->g->flags & MT_LAYERNORM ? 2 : 1, AGAIN);
	return node(t, n, t->v[x].width, AGAIN);
}

int norm(struct list *t, int x, struct norm norm) { return norm_of(t, &norm_kind, x, norm, 0); }

int own_norm(struct list *t, int x, enum mt_role_tensor w, float eps)
{
	return norm_of(t, &norm_kind, x, (struct norm){w, 0}, eps);
}

int latent_norm(struct list *t, int x, enum mt_role_tensor w) { return own_norm(t, x, w, LATENT_EPS); }

/* x itself, whose gradient is added to that of x when it is whole */
static void apart_backward(struct run *r, const struct node *n)
{
	void *d = grad_at(r, n->in[0]);
	scaled_add(r->c, d, grad_at(r, n->out), d, 1);
}

static const struct node_kind apart_kind = {.backward = apart_backward};

int pre_norm(struct list *t, int x, struct norm n)
{
	if (has_pre_norms(t->g, t->l)) return norm(t, x, n);
	int v = columns(t, x, 0, t->v[x].width);
	t->v[v].apart = true;
	return node_into(t, v, (struct node){.kind = &apart_kind, .in = {x, NONE, NONE}});
}

/* ---- factors ---- */

static void scale_forward(struct run *r, const struct node *n)
{
	scaled_add(r->c, value_at(r, n->out), value_at(r, n->in[0]), NULL, n->scale);
}

static void scale_backward(struct run *r, const struct node *n)
{
	scaled_add(r->c, grad_at(r, n->in[0]), grad_at(r, n->out), NULL, n->scale);
}

static const struct node_kind scale_kind = {.forward = scale_forward,
	.backward = scale_backward,
	.grad = {GRAD_OF_OUT}};

int scaled(struct list *t, int x, float by)
{
	return node_over(t, (struct node){.kind = &scale_kind, .in = {x, NONE, NONE}, .scale = by});
}

int mixer_input(struct list *t, int x, float by)
{
	int in = pre_norm(t, x, norm1);
	if (by == 1) return in;
	if (has_pre_norms(t->g, t->l)) return scaled(t, in, by);
	return node(t, (struct node){.kind = &scale_kind, .in = {in, NONE, NONE}, .scale = by}, t->v[x].width, AGAIN);
}

/* ---- linear layers ---- */

/* Those of the first and the last block stay in bf16: these are the most sensitive ones (README.md) */
static void *fp8_of(const struct run *r) { return r->layer && r->layer + 1 < r->c->geo->layers ? r->c->s.fp8 : NULL; }

void linear_node_forward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	int64_t in = r->k.t->v[n->in[0]].width;
	linear_forward_rows(c, value_at(r, n->out), row_of(r, n->out), value_at(r, n->in[0]),
		operands_after(c->dev, r->w->t[n->w], n->row * in), operands_after(c->dev, r->w->t[n->b], n->row),
		n->in[1] == NONE ? NULL : value_at(r, n->in[1]), in, n->cols, fp8_of(r));
}

void linear_input_backward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	int64_t in = r->k.t->v[n->in[0]].width;
	r->dy = operand_of(c, OPERAND_DY, grad_at(r, n->out), 0, c->n, row_of(r, n->out));
	r->dy.fp8 = fp8_of(r);
	linear_backward_input(c, grad_at(r, n->in[0]), (float)again(r, n->in[0]), &r->dy,
		operands_after(c->dev, r->w->t[n->w], n->row * in), in, n->cols);
}

void linear_weights_backward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	int64_t in = r->k.t->v[n->in[0]].width;
	struct operand x = operand_of(c, OPERAND_X, value_at(r, n->in[0]), 0, c->n, in);
	float *dw = matrix_grad(r->g, n->w);
	float *db = r->g->t[n->b] ? r->g->t[n->b] + n->row : NULL;
	linear_backward_weights(c, dw ? dw + n->row * in : NULL, db, n->adds ? 1 : r->beta, &r->dy, &x, in, n->cols);
}

static void linear_node_backward(struct run *r, const struct node *n)
{
	linear_input_backward(r, n);
	linear_weights_backward(r, n);
}

static const struct node_kind linear_kind = {.forward = linear_node_forward,
	.multiplies = true,
	.backward = linear_node_backward,
	.reads = 1 << 0,
	.grad = {GRAD_OWN, GRAD_OF_OUT}};
/* Its input is given again: until then the input's gradient is there */
static const struct node_kind linear_late_kind = {.forward = linear_node_forward,
	.multiplies = true,
	.backward = linear_input_backward,
	.late = linear_weights_backward,
	.grad = {GRAD_OVER_INPUT, GRAD_OF_OUT}};

static struct node linear_node(const struct list *t, int x, enum mt_role_tensor w, enum mt_role_tensor b, int64_t row,
	int64_t cols)
{
	int made = t->v[x].made;
	const struct node_kind *kind = made >= 0 && t->node[made].kind->gives ? &linear_late_kind : &linear_kind;
	return (struct node){.kind = kind, .in = {x, NONE, NONE}, .w = w, .b = b, .row = row, .cols = cols};
}

int linear(struct list *t, int x, enum mt_role_tensor w, enum mt_role_tensor b, int64_t row, int64_t cols,
	int64_t width, int keep)
{
	return node(t, linear_node(t, x, w, b, row, cols), width, keep);
}

void linear_into(struct list *t, int v, int x, enum mt_role_tensor w, int64_t cols)
{
	node_into(t, v, linear_node(t, x, w, 0, 0, cols));
}

/* ---- residuals ---- */

static void add_forward(struct run *r, const struct node *n)
{
	scaled_add(r->c, value_at(r, n->out), value_at(r, n->in[1]), value_at(r, n->in[0]), n->scale);
}

/* The residual's gradient is the sum's */
static void add_backward(struct run *r, const struct node *n)
{
	again(r, n->in[0]);
	if (n->scale != 1) scaled_add(r->c, grad_at(r, n->in[1]), grad_at(r, n->out), NULL, n->scale);
}

static const struct node_kind add_kind = {.forward = add_forward,
	.backward = add_backward,
	.grad = {GRAD_OF_OUT, GRAD_OF_OUT}};
static const struct node_kind add_scaled_kind = {.forward = add_forward,
	.backward = add_backward,
	.grad = {GRAD_OF_OUT, GRAD_OWN}};

int sum_node(struct list *t, int x, int z, float scale)
{
	struct node n = {.kind = scale == 1 ? &add_kind : &add_scaled_kind, .in = {x, z, NONE}, .scale = scale};
	return node(t, n, t->g->hidden, AGAIN);
}

int residual_sum(struct list *t, int residual, int z, struct norm post, float scale)
{
	if (has_post_norms(t->g, t->l)) z = norm(t, z, post);
	return sum_node(t, residual, z, scale);
}

int output_projection(struct list *t, int residual, int o, enum mt_role_tensor w, enum mt_role_tensor b,
	struct norm post, float scale)
{
	int64_t h = t->g->hidden;
	struct node n = linear_node(t, o, w, b, 0, h);
	if (!residual_apart(t->g)) {
		n.in[1] = residual;
		return node(t, n, h, AGAIN);
	}
	return residual_sum(t, residual, node(t, n, h, AGAIN), post, scale);
}

/* ---- a number of the block's own ---- */

static void number_times(const struct run *r, const struct node *n, void *x)
{
	LAUNCH(r->c, OP_SCALED_ADD, scaled_add, .y = x, .x = x, .n = r->c->n * r->k.t->v[n->out].width, .scale = 1,
		.factor = r->w->t[MT_T_SCALAR]);
}

static void number_forward(struct run *r, const struct node *n) { number_times(r, n, value_at(r, n->out)); }

static void number_backward(struct run *r, const struct node *n) { number_times(r, n, grad_at(r, n->out)); }

static const struct node_kind number_kind = {.forward = number_forward,
	.backward = number_backward,
	.once = true,
	.grad = {GRAD_OF_OUT}};

/* ---- a block ---- */

/* Attention and Mamba 2 beside it, or the only mixer */
static int mixers(struct list *t, int x)
{
	const struct mt_layer *l = t->l;
	int mamba = beside_attention(l) ? delta_nodes(t, x) : NONE; /* first, so that attention's gradients are */
	bool recurrent = mamba == NONE && (l->mixer == MT_DELTA || l->mixer == MT_MAMBA);
	int o = recurrent            ? delta_nodes(t, x)
		: l->mixer == MT_CONV    ? conv_nodes(t, x)
		: l->mixer == MT_MAMBA_1 ? scan_nodes(t, x)
		: l->mixer == MT_MLA     ? mla_nodes(t, x)
								 : attention_nodes(t, x);
	t->outs = t->nodes;
	x = output_projection(t, x, o, MT_T_O, MT_T_OB, post1, t->g->residual_scale);
	if (mamba == NONE) return x;
	return output_projection(t, x, mamba, MT_T_MAMBA_O, MT_T_MAMBA_OB, no_norm, t->g->mamba_out_scale);
}

void list_make(struct list *t, const struct mt_geometry *g, const struct mt_layer *l, size_t elem)
{
	*t = (struct list){.g = g, .l = l, .elem = elem, .x2 = NONE, .y = NONE};
	t->routing = t->dispatch = t->combine = t->sum = t->next = NONE;
	int first = value(t, residual_width(g), AGAIN);
	if (g->altup) {
		t->y = altup_nodes(t, first);
		t->mlp = t->nodes;
		list_place(t);
		return;
	}
	if (l->mtp) first = mtp_nodes(t, first);
	int x = l->parts & MT_IN_NORM ? norm_of(t, &residual_kind, first, in_norm, 0) : first;
	int x2 = has_mixer(l) ? mixers(t, x) : x, in = g->flags & MT_PARALLEL ? x : x2, y = x2;
	t->mlp = t->nodes;
	if (has_mlp(l)) {
		if (x2 != x) {
			t->x2 = root_of(t, x2);
			t->v[t->x2].keep = KEEP_ALL_BUT_GATE_UP;
		}
		if (g->flags & MT_SUM_NORM) in = x2 = norm_of(t, &residual_kind, x2, norm2, 0);
		y = l->experts ? experts_nodes(t, in, x2) : mlp_nodes(t, in, x2);
		if (g->ple_dim && !l->experts) y = own_input_nodes(t, y);
		if (g->flags & MT_LAYER_SCALAR) y = node_over(t, (struct node){.kind = &number_kind, .in = {y, NONE, NONE}});
	}
	t->y = root_of(t, y);
	list_place(t);
}
