/* attention.c: softmax attention with rope, in some families with a gate on its output, or with k and v of another
 * layer. */
#include <math.h>

#include "list.h"

void rope_table(const struct mt_layer *l, uint32_t from, uint32_t to, float *cosines, float *sines)
{
	uint32_t half = l->rope_dim / 2;
	for (uint32_t p = from; p < to; p++)
		for (uint32_t i = 0; i < half; i++) {
			float angle = (float)p * l->rope_inv_freq[i];
			cosines[(size_t)p * half + i] = cosf(angle) * l->rope_scaling;
			sines[(size_t)p * half + i] = sinf(angle) * l->rope_scaling;
		}
}

/* ---- rope, and norms of q and k ---- */

static struct op rope_op(const struct run *r, enum op_code code, const struct node *n, void *qkv)
{
	const struct chunk *c = r->c;
	const struct mt_geometry *g = c->geo;
	const struct mt_layer *l = r->l;
	bool norms = has_norms(g, l), nope_only = g->flags & MT_NOPE_TEMPERATURE;
	return (struct op){code,
		.rope = {.n = c->n,
			.seq = c->seq,
			.heads = l->heads,
			.kv_heads = own_kv_heads(l),
			.ld = l->kv_kind ? row_of(r, n->out) : 0,
			.dim = l->head_dim,
			.rope_dim = l->rope_dim,
			.neighbours = (int)l->neighbours,
			.cos = c->cos[g->kind_of[r->layer]],
			.sin = c->sin[g->kind_of[r->layer]],
			.starts = c->starts,
			.qnorm = r->w->t[MT_T_QNORM],
			.knorm = r->w->t[MT_T_KNORM],
			.eps = g->norm_eps,
			.row_norm = norms && g->flags & MT_QK_NORM_ROW,
			.norm_after = norms && g->flags & MT_QK_NORM_AFTER,
			.norm_one = norms && g->flags & MT_NORM_ONE,
			.norm_plain = norms && g->flags & MT_QK_NORM_PLAIN,
			.v_norm = norms && g->flags & MT_V_NORM,
			.k_is_v = (int)l->k_is_v,
			.temperature = nope_only && l->rope_dim ? 0 : g->temperature,
			.temperature_positions = g->temperature_positions,
			.temperature_from = nope_only,
			.past = c->past,
			.qkv = qkv,
			.pre = n->side[0] ? value_at(r, n->side[0]) : NULL,
			.rstd = n->side[1] ? value_at(r, n->side[1]) : NULL}};
}

static void rope_forward(struct run *r, const struct node *n)
{
	struct op op = rope_op(r, OP_ROPE_FORWARD, n, value_at(r, n->out));
	launch(r->c, &op);
}

static void rope_backward(struct run *r, const struct node *n)
{
	struct op op = rope_op(r, OP_ROPE_BACKWARD, n, grad_at(r, n->out));
	op.rope.dqnorm = r->g->t[MT_T_QNORM];
	op.rope.dknorm = r->g->t[MT_T_KNORM];
	op.rope.beta = r->beta;
	launch(r->c, &op);
}

static const struct node_kind rope_kind = {.forward = rope_forward,
	.backward = rope_backward,
	.reads = READS_SIDES,
	.grad = {GRAD_OF_OUT}};

static int rope(struct list *t, int qkv)
{
	struct node n = {.kind = &rope_kind, .in = {qkv, NONE, NONE}};
	if (has_norms(t->g, t->l)) {
		n.side[0] = value(t, pre_width(t->g, t->l), KEEP_ALL_BUT_GATE_UP);
		n.side[1] = side(t, rstd_width(t->g, t->l), KEEP_ALL_BUT_GATE_UP);
	}
	return node_over(t, n);
}

/* ---- k and v of another layer ---- */

/* Columns between k | v in rows of q | k | v and the array that layers share */
static struct columns_args shared_args(const struct run *r, const struct node *n, void *kv, void *qkv, bool out)
{
	const struct chunk *c = r->c;
	int64_t width = kv_width(r->l), row = row_of(r, n->out);
	void *own = elements_after(c->dev, qkv, (int64_t)r->l->heads * r->l->head_dim);
	return (struct columns_args){.n = c->n,
		.width = width,
		.dst = out ? kv : own,
		.src = out ? own : kv,
		.dst_ld = out ? width : row,
		.src_ld = out ? row : width};
}

/* Let other layers read the layer's k and v, or get those that it reads */
static void share_forward(struct run *r, const struct node *n)
{
	uint32_t of = mt_kv_of(r->c->geo, r->layer);
	void *kv = of ? r->c->kv[of - 1] : NULL;
	if (kv)
		launch(r->c, &(struct op){OP_COLUMNS, .columns = shared_args(r, n, kv, value_at(r, n->out), !r->l->kv_kind)});
}

/* Add the gradients of the k and v that it has read to those of the layers above, or get their sum */
static void share_backward(struct run *r, const struct node *n)
{
	const struct mt_geometry *g = r->c->geo;
	uint32_t of = mt_kv_of(g, r->layer);
	if (!of) return;
	struct columns_args a = shared_args(r, n, r->c->dkv[of - 1], grad_at(r, n->out), r->l->kv_kind);
	a.add = !r->l->kv_kind;
	for (uint32_t i = r->layer + 1; i < g->layers && r->l->kv_kind; i++) a.add |= mt_layer_of(g, i)->kv_kind == of;
	launch(r->c, &(struct op){OP_COLUMNS, .columns = a});
}

static const struct node_kind share_kind = {.forward = share_forward,
	.backward = share_backward,
	.grad = {GRAD_OF_OUT}};

/* Does this kind read k and v of another one, or another one those of this? */
static bool shares(const struct list *t)
{
	if (t->l->kv_kind) return true;
	for (uint32_t k = 0; k < t->g->n_kinds; k++)
		if (t->g->kind[k].kv_kind && &t->g->kind[t->g->kind[k].kv_kind - 1] == t->l) return true;
	return false;
}

/* ---- attention ---- */

static struct op attention_op(const struct run *r, enum op_code code, const struct node *n)
{
	const struct chunk *c = r->c;
	const struct mt_layer *l = r->l;
	return (struct op){code,
		.attention = {.n = c->n,
			.seq = c->seq,
			.heads = l->heads,
			.kv_heads = l->kv_heads,
			.dim = l->head_dim,
			.dim_v = l->v_dim,
			.window = l->window,
			.past = c->past,
			.scale = c->geo->attention_scale,
			.starts = l->span ? c->span_starts : c->starts,
			.qkv = value_at(r, n->in[0]),
			.o = value_at(r, n->out),
			.lse = value_at(r, n->side[0]),
			.cap = c->geo->attention_cap,
			.alibi = {.max = c->geo->alibi,
				.scale = c->geo->alibi_scale,
				.rounded = c->geo->alibi_rounded,
				.heads = l->heads},
			.sinks = r->w->t[MT_T_SINKS],
			.host_starts = l->span ? NULL : c->host_starts,
			.work = c->s.attention,
			.work_bytes = c->s.attention_bytes}};
}

/* mt-sample: the spans of its document one by one, which a token sees no further back than. A span need not begin where
 * a tile does: then token by token until the next one does (attention_args.past). */
static void spans_forward(const struct run *r, struct op op)
{
	const struct chunk *c = r->c;
	struct attention_args *a = &op.attention, all = *a;
	a->starts = c->starts;
	for (int64_t t = 0; t < c->n; t += a->n) {
		a->past = (c->past + t) % r->l->span;
		a->n = a->seq = a->past % 64 ? 1 : least(c->n - t, r->l->span - a->past);
		a->qkv = elements_after(c->dev, all.qkv, t * proj_width(r->l));
		a->o = elements_after(c->dev, all.o, t * value_width(r->l));
		a->lse = all.lse + t * r->l->heads;
		launch(c, &op);
	}
}

static void backward_launch(const struct run *r, const struct op *op, float *dsinks)
{
	const struct attention_args *a = &op->attention;
	launch(r->c, op);
	if (a->sinks)
		LAUNCH(r->c, OP_SINKS_BACKWARD, sinks_backward, .dsinks = dsinks, .beta = r->beta, .sinks = a->sinks, .o = a->o,
			.d_o = a->d_o, .lse = a->lse, .n = a->n, .heads = a->heads, .dim = a->dim);
}

/* ---- by groups of heads: key-value heads and their query heads ----
 *
 * A group's q | k | v and o are copied together, and attention sees a model that has no other heads. Its gradients then
 * replace its q | k | v, so those of all heads need no memory. Each head has the bits that it has among all. Statistics
 * stand group by group, as each call wrote them.
 */

struct group {
	const struct run *r;
	struct attention_args all, own; /* of all heads; of the group's, in scratch.heads */
	int64_t first, first_q;         /* its first key-value head, and query head */
};

static struct group group_make(const struct run *r, const struct op *op)
{
	const struct chunk *c = r->c;
	struct group g = {.r = r, .all = op->attention, .own = op->attention};
	struct attention_args *own = &g.own;
	own->kv_heads = c->group[c->geo->kind_of[r->layer]];
	own->heads = own->heads / r->l->kv_heads * own->kv_heads;
	int64_t wide = c->n * attention_row(own), out = c->n * own->heads * attention_dim_v(own);
	own->qkv = c->s.heads;
	own->o = elements_after(c->dev, own->qkv, wide);
	own->d_o = elements_after(c->dev, own->o, out);
	own->dqkv = elements_after(c->dev, own->d_o, out);
	return g;
}

/* The next group; false: there is none */
static bool group_next(struct group *g, bool begin)
{
	const struct device *d = g->r->c->dev;
	if (!begin) g->first += g->own.kv_heads;
	g->first_q = g->first * (g->all.heads / g->all.kv_heads);
	g->own.lse = g->all.lse + g->all.n * g->first_q;
	g->own.alibi.first = g->first_q;
	g->own.sinks = operands_after(d, g->all.sinks, g->first_q);
	return g->first < g->all.kv_heads;
}

/* Columns of all heads' array to the group's, or back */
static void group_copy(const struct group *g, void *all, int64_t all_row, int64_t from, void *own, int64_t own_row,
	int64_t to, int64_t width, bool back)
{
	const struct chunk *c = g->r->c;
	void *a = elements_after(c->dev, all, from), *b = elements_after(c->dev, own, to);
	LAUNCH(c, OP_COLUMNS, columns, .n = c->n, .width = width, .dst = back ? a : b, .src = back ? b : a,
		.dst_ld = back ? all_row : own_row, .src_ld = back ? own_row : all_row);
}

static void group_copy_o(const struct group *g, const void *all, const void *own, bool back)
{
	int64_t dim = attention_dim_v(&g->all), row = g->own.heads * dim;
	group_copy(g, (void *)(uintptr_t)all, g->all.heads * dim, g->first_q * dim, (void *)(uintptr_t)own, row, 0, row,
		back);
}

static void group_copy_qkv(const struct group *g, const void *all, const void *own, bool back)
{
	const struct attention_args *a = &g->all, *b = &g->own;
	int64_t dim = a->dim, dim_v = attention_dim_v(a);
	const struct {
		int64_t from, to, width;
	} parts[] = {
		{g->first_q * dim, 0, b->heads * dim},
		{(a->heads + g->first) * dim, b->heads * dim, b->kv_heads * dim},
		{(a->heads + a->kv_heads) * dim + g->first * dim_v, (b->heads + b->kv_heads) * dim, b->kv_heads * dim_v},
	};
	for (int i = 0; i < 3; i++)
		group_copy(g, (void *)(uintptr_t)all, attention_row(a), parts[i].from, (void *)(uintptr_t)own, attention_row(b),
			parts[i].to, parts[i].width, back);
}

static void groups_forward(const struct run *r, const struct op *op)
{
	struct group g = group_make(r, op);
	g.own.d_o = g.own.dqkv = NULL;
	for (bool more = group_next(&g, true); more; more = group_next(&g, false)) {
		group_copy_qkv(&g, g.all.qkv, g.own.qkv, false);
		launch(r->c, &(struct op){op->code, .attention = g.own});
		group_copy_o(&g, g.all.o, g.own.o, true);
	}
}

static void groups_backward(const struct run *r, const struct op *op)
{
	struct group g = group_make(r, op);
	for (bool more = group_next(&g, true); more; more = group_next(&g, false)) {
		group_copy_qkv(&g, g.all.qkv, g.own.qkv, false);
		group_copy_o(&g, g.all.o, g.own.o, false);
		group_copy_o(&g, g.all.d_o, g.own.d_o, false);
		float *dsinks = r->g->t[MT_T_SINKS];
		backward_launch(r, &(struct op){op->code, .attention = g.own}, dsinks ? dsinks + g.first_q : NULL);
		group_copy_qkv(&g, g.all.dqkv, g.own.dqkv, true);
	}
}

static bool by_groups(const struct run *r) { return r->c->group[r->c->geo->kind_of[r->layer]]; }

static void attend_forward(struct run *r, const struct node *n)
{
	struct op op = attention_op(r, OP_ATTENTION_FORWARD, n);
	if (r->l->span && !r->c->span_starts) spans_forward(r, op);
	else if (by_groups(r)) groups_forward(r, &op);
	else launch(r->c, &op);
}

static void attend_backward(struct run *r, const struct node *n)
{
	struct op op = attention_op(r, OP_ATTENTION_BACKWARD, n);
	op.attention.d_o = grad_at(r, n->out);
	op.attention.dqkv = grad_at(r, n->in[0]);
	if (by_groups(r)) groups_backward(r, &op);
	else backward_launch(r, &op, r->g->t[MT_T_SINKS]);
}

static const struct node_kind attend_kind = {.forward = attend_forward,
	.backward = attend_backward,
	.by_heads = true,
	.reads = 1 << 0 | READS_OUT | READS_SIDES,
	.grad = {GRAD_OWN}};

int attend(struct list *t, int qkv)
{
	struct node n = {.kind = &attend_kind, .in = {qkv, NONE, NONE}};
	t->v[root_of(t, qkv)].past = PAST_ALL;
	n.side[0] = side(t, t->l->heads, KEEP_ATTENTION);
	return node(t, n, value_width(t->l), KEEP_ATTENTION);
}

/* ---- the gate on its output ---- */

static struct gate_args gate_args(const struct run *r, const struct node *n)
{
	int64_t width = r->k.t->v[n->out].width;
	return (struct gate_args){.n = r->c->n,
		.width = width,
		.o = value_at(r, n->in[0]),
		.gate = value_at(r, n->in[1]),
		.ld = width};
}

static void gate_forward(struct run *r, const struct node *n)
{
	struct gate_args a = gate_args(r, n);
	a.y = value_at(r, n->out);
	launch(r->c, &(struct op){OP_GATE_FORWARD, .gate = a});
}

static void gate_backward(struct run *r, const struct node *n)
{
	struct gate_args a = gate_args(r, n);
	a.dy = grad_at(r, n->out);
	a.d_o = grad_at(r, n->in[0]);
	a.dgate = grad_at(r, n->in[1]);
	a.dgate_ld = a.width;
	launch(r->c, &(struct op){OP_GATE_BACKWARD, .gate = a});
}

static const struct node_kind gate_kind = {.forward = gate_forward,
	.backward = gate_backward,
	.reads = 1 << 0 | 1 << 1,
	.grad = {GRAD_OF_OUT, GRAD_OVER_INPUT}};

int attention_nodes(struct list *t, int x) { return attention_of(t, mixer_input(t, x, t->g->attention_in_scale)); }

int attention_of(struct list *t, int in)
{
	const struct mt_layer *l = t->l;
	int64_t a = (int64_t)l->heads * l->head_dim, in_q = l->output_gate == MT_GATE_IN_Q ? a : 0;
	int64_t own = (int64_t)(l->heads + (l->k_is_v ? 1 : 2) * own_kv_heads(l)) * l->head_dim;
	int gate = NONE;
	/* k_is_v: q | k, and room for v behind each, which rope fills */
	int qkv = linear(t, in, MT_T_Q, MT_T_QB, in_q, own, proj_width(l), KEEP_ALL_BUT_GATE_UP);
	if (l->output_gate)
		gate = linear(t, in, in_q ? MT_T_Q : MT_T_OGATE, in_q ? MT_T_QB : 0, 0, a, a, KEEP_ALL_BUT_GATE_UP);
	qkv = rope(t, qkv);
	if (shares(t)) qkv = node_over(t, (struct node){.kind = &share_kind, .in = {qkv, NONE, NONE}});
	int o = attend(t, qkv);
	if (gate != NONE) o = node(t, (struct node){.kind = &gate_kind, .in = {o, gate, NONE}}, a, AGAIN);
	return t->g->flags & MT_SUB_NORM ? norm(t, o, o_norm) : o;
}
