/* delta.c: gated DeltaNet (arXiv 2412.06464), as Qwen3.5, Qwen3-Next and OLMo Hybrid have it, and Mamba 2 (arXiv
 * 2405.21060), as Granite 4 and Nemotron-H have it.
 *
 *     qkv | z | b | a = W norm(x)        a short convolution of qkv, silu, and norms of q and k
 *     o = delta rule(q, k, v, a, b)      out projection of norm(o) silu(z), by head
 *
 * Kimi delta attention (arXiv 2510.26692) has gates of each channel of the keys, f, in place of a; they and z are made
 * of latents:
 *
 *     qkv, b, f', z' = W norm(x) each        f = W f', z = W z'        out projection of norm(o) sigmoid(z)
 *
 * Mamba 2 has C and B of groups of heads for q and k, which have no norm, x for v, dt for a, and no b:
 *
 *     C | B | x | z | dt = W norm(x)     out projection of norm(o silu(z)), by group
 *
 * State and convolution begin at zero with each document.
 */
#include "list.h"

static bool is_mamba(const struct mt_layer *l) { return l->mixer == MT_MAMBA; }

/* ---- factors of C, B, x, z and dt, of Mamba 2 ---- */

static void scale_parts(const struct run *r, void *x, int64_t row)
{
	const struct mt_layer *l = r->l;
	int64_t keys = (int64_t)l->key_heads * l->key_dim, values = (int64_t)l->value_heads * l->value_dim, at = 0;
	const int64_t widths[] = {keys, keys, values, values, l->value_heads};
	for (int i = 0; i < 5; at += widths[i++])
		scale_columns(r->c, elements_after(r->c->dev, x, at), widths[i], row, r->c->geo->mamba_scale[i]);
}

static void parts_forward(struct run *r, const struct node *n)
{
	scale_parts(r, value_at(r, n->out), row_of(r, n->out));
}
static void parts_backward(struct run *r, const struct node *n)
{
	scale_parts(r, grad_at(r, n->out), row_of(r, n->out));
}

static const struct node_kind parts_kind = {.forward = parts_forward,
	.backward = parts_backward,
	.grad = {GRAD_OF_OUT}};

/* ---- the convolution ---- */

static struct op conv_op(const struct run *r, enum op_code code, const struct node *n)
{
	const struct chunk *c = r->c;
	const struct mt_layer *l = r->l;
	return (struct op){code,
		.conv = {.n = c->n,
			.seq = c->seq,
			.channels = conv_width(l),
			.width = l->conv_width,
			.q_heads = l->key_heads,
			.k_heads = l->key_heads,
			.dim = l->key_dim,
			.unnormed = is_mamba(l),
			.silu = 1,
			.x = value_at(r, n->in[0]),
			.ld = row_of(r, n->in[0]),
			.w = r->w->t[MT_T_CONV],
			.bias = r->w->t[MT_T_CONVB],
			.starts = c->starts}};
}

/* In a document's middle the open chunk's rows stand before its own (mt-sample) */
static void conv_forward(struct run *r, const struct node *n)
{
	struct op op = conv_op(r, OP_CONV_FORWARD, n);
	op.conv.y = value_at(r, n->out);
	op.conv.past = r->c->past;
	op.conv.redo = r->c->past % DELTA_CHUNK;
	launch(r->c, &op);
}

/* Where q | k of value heads | v begin in the gradient of what the convolution gives */
static void *dqkv_at(const struct run *r, int v, int part)
{
	int64_t keys = r->c->n * r->l->value_heads * r->l->key_dim;
	return elements_after(r->c->dev, grad_at(r, v), part * keys);
}

static void conv_backward(struct run *r, const struct node *n)
{
	struct op op = conv_op(r, OP_CONV_BACKWARD, n);
	struct conv_args *a = &op.conv;
	a->value_heads = r->l->value_heads;
	a->dq = dqkv_at(r, n->out, 0);
	a->dk = dqkv_at(r, n->out, 1);
	a->dv = dqkv_at(r, n->out, 2);
	a->dx = grad_at(r, n->in[0]);
	a->dx_ld = row_of(r, n->in[0]);
	a->dw = r->g->t[MT_T_CONV];
	a->dbias = r->g->t[MT_T_CONVB];
	a->beta = r->beta;
	launch(r->c, &op);
}

static const struct node_kind conv_kind = {.forward = conv_forward,
	.backward = conv_backward,
	.reads = 1 << 0,
	.grad = {GRAD_OWN}};

/* ---- the delta rule ---- */

static struct op delta_op(const struct run *r, enum op_code code, const struct node *n)
{
	const struct chunk *c = r->c;
	const struct mt_layer *l = r->l;
	struct op op = {code, .delta = delta_sizes(l, c->n, c->seq)};
	struct delta_args *a = &op.delta;
	a->dt_min = l->dt_min;
	a->dt_max = l->dt_max;
	a->qkv = value_at(r, n->in[0]);
	a->a = value_at(r, n->in[1]);
	a->ld = row_of(r, n->in[1]);
	if (a->correct) {
		a->b = value_at(r, n->in[2]);
		a->b_ld = row_of(r, n->in[2]);
	}
	a->a_log = r->w->t[MT_T_A_LOG];
	a->dt_bias = r->w->t[MT_T_DT_BIAS];
	a->dt_lo = r->w->lo[MT_T_DT_BIAS];
	a->skip = r->w->t[MT_T_SKIP];
	a->starts = c->starts;
	a->host_starts = c->host_starts;
	a->o = value_at(r, n->out);
	a->work = c->s.delta;
	a->past = c->past;
	a->state = r->s->state;
	return op;
}

static void delta_forward(struct run *r, const struct node *n)
{
	struct op op = delta_op(r, OP_DELTA_FORWARD, n);
	launch(r->c, &op);
}

static void delta_backward(struct run *r, const struct node *n)
{
	struct op op = delta_op(r, OP_DELTA_BACKWARD, n);
	struct delta_args *a = &op.delta;
	a->d_o = grad_at(r, n->out);
	a->dq = dqkv_at(r, n->in[0], 0);
	a->dk = dqkv_at(r, n->in[0], 1);
	a->dv = dqkv_at(r, n->in[0], 2);
	a->da = grad_at(r, n->in[1]);
	a->db = a->b ? grad_at(r, n->in[2]) : NULL;
	a->d_ld = a->ld;
	a->db_ld = a->b_ld;
	a->da_log = r->g->t[MT_T_A_LOG];
	a->ddt_bias = r->g->t[MT_T_DT_BIAS];
	a->dskip = r->g->t[MT_T_SKIP];
	a->beta = r->beta;
	launch(r->c, &op);
}

static const struct node_kind delta_kind = {.forward = delta_forward,
	.backward = delta_backward,
	.reads = 1 << 0 | 1 << 1 | 1 << 2,
	.grad = {GRAD_OWN, GRAD_OWN, GRAD_OWN}};

/* ---- the gated norm; of Mamba 1 the gate alone ---- */

static struct gated_norm_args gated_norm_args(const struct run *r, const struct node *n)
{
	const struct mt_layer *l = r->l;
	bool scan = l->mixer == MT_MAMBA_1;
	int64_t heads = scan ? 1 : is_mamba(l) ? l->key_heads : l->value_heads;
	return (struct gated_norm_args){.n = r->c->n,
		.heads = heads,
		.dim = scan ? l->conv_dim : (int64_t)l->value_heads * l->value_dim / heads,
		.eps = l->mixer_eps > 0 ? l->mixer_eps : r->c->geo->norm_eps,
		.gate_first = is_mamba(l) && !(l->mamba_flags & MT_NORM_FIRST),
		.sigmoid = l->gate_rank != 0,
		.all_heads = is_mamba(l),
		.o = value_at(r, n->in[0]),
		.z = value_at(r, n->in[1]),
		.ld = row_of(r, n->in[1]),
		.w = scan ? NULL : r->w->t[MT_T_DNORM]}; /* Mamba 1's is of dt */
}

static void gated_norm_forward(struct run *r, const struct node *n)
{
	struct gated_norm_args a = gated_norm_args(r, n);
	a.y = value_at(r, n->out);
	launch(r->c, &(struct op){OP_GATED_NORM_FORWARD, .gated_norm = a});
}

static void gated_norm_backward(struct run *r, const struct node *n)
{
	struct gated_norm_args a = gated_norm_args(r, n);
	a.dy = grad_at(r, n->out);
	a.d_o = grad_at(r, n->in[0]);
	a.dz = grad_at(r, n->in[1]);
	a.dz_ld = a.ld;
	a.dw = a.w ? r->g->t[MT_T_DNORM] : NULL;
	a.beta = r->beta;
	launch(r->c, &(struct op){OP_GATED_NORM_BACKWARD, .gated_norm = a});
}

static const struct node_kind gated_norm_kind = {.forward = gated_norm_forward,
	.backward = gated_norm_backward,
	.reads = 1 << 0 | 1 << 1,
	.grad = {GRAD_OF_OUT, GRAD_OWN}};

int gated_norm_node(struct list *t, int o, int z)
{
	return node(t, (struct node){.kind = &gated_norm_kind, .in = {o, z, NONE}}, t->v[o].width, AGAIN);
}

/* q | k | v behind the convolution */
static int qkv_conv_node(struct list *t, int qkv)
{
	const struct mt_layer *l = t->l;
	int conv = node(t, (struct node){.kind = &conv_kind, .in = {qkv, NONE, NONE}}, conv_width(l), AGAIN);
	t->v[conv].past = PAST_CHUNK;
	t->v[conv].grad_width = l->value_heads * (2ll * l->key_dim + l->value_dim);
	return conv;
}

static int rule_nodes(struct list *t, int conv, int a, int b, int z)
{
	int64_t values = (int64_t)t->l->value_heads * t->l->value_dim;
	return gated_norm_node(t, node(t, (struct node){.kind = &delta_kind, .in = {conv, a, b}}, values, KEEP_ATTENTION),
		z);
}

static int kimi_nodes(struct list *t, int x)
{
	const struct mt_layer *l = t->l;
	int64_t values = (int64_t)l->value_heads * l->value_dim, gates = (int64_t)l->value_heads * l->key_dim;
	int64_t rank = l->gate_rank, qkv_wide = conv_width(l);
	int in = mixer_input(t, x, 1);
	int qkv = linear(t, in, MT_T_Q, 0, 0, qkv_wide, qkv_wide, KEEP_ALL_BUT_GATE_UP), conv = qkv_conv_node(t, qkv);
	int b = linear(t, in, MT_T_DB, 0, 0, l->value_heads, l->value_heads, KEEP_ALL_BUT_GATE_UP);
	int of_f = linear(t, in, MT_T_DA, 0, 0, rank, rank, KEEP_ALL_BUT_GATE_UP);
	int f = linear(t, of_f, MT_T_QUP, 0, 0, gates, gates, AGAIN);
	int of_z = linear(t, in, MT_T_DZ, 0, 0, rank, rank, KEEP_ALL_BUT_GATE_UP);
	int z = linear(t, of_z, MT_T_KVUP, 0, 0, values, values, AGAIN);
	t->v[qkv].past = t->v[b].past = t->v[f].past = PAST_SOME;
	return rule_nodes(t, conv, f, b, z);
}

int delta_nodes(struct list *t, int x)
{
	const struct mt_layer *l = t->l;
	int64_t wide = delta_width(l), qkv = conv_width(l), values = (int64_t)l->value_heads * l->value_dim;
	int64_t a = wide - l->value_heads;
	if (l->gate_rank) return kimi_nodes(t, x);
	int all = linear(t, mixer_input(t, x, t->g->mamba_in_scale), MT_T_DQKV, MT_T_DQKVB, 0, wide, wide,
		KEEP_ALL_BUT_GATE_UP);
	t->v[all].past = PAST_SOME;
	if (is_mamba(l)) all = node_over(t, (struct node){.kind = &parts_kind, .in = {all, NONE, NONE}});
	int conv = qkv_conv_node(t, columns(t, all, 0, qkv));
	int b = is_mamba(l) ? NONE : columns(t, all, qkv + values, l->value_heads);
	return rule_nodes(t, conv, columns(t, all, a, l->value_heads), b, columns(t, all, qkv, values));
}
