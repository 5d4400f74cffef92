/* attention.c: softmax attention with rope, in some families with a gate on its output. Forward and backward are
 * pairs. */
#include <math.h>

#include "layers.h"

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

static struct op rope_op(const struct chunk *c, enum op_code code, uint32_t layer, const struct weights *w,
	const struct saved *s)
{
	const struct mt_geometry *g = c->geo;
	const struct mt_layer *l = mt_layer_of(g, layer);
	bool norms = has_norms(g, l), nope_only = g->flags & MT_NOPE_TEMPERATURE;
	return (struct op){code,
		.rope = {.n = c->n,
			.seq = c->seq,
			.heads = l->heads,
			.kv_heads = own_kv_heads(l),
			.ld = l->kv_kind ? proj_width(l) : 0,
			.dim = l->head_dim,
			.rope_dim = l->rope_dim,
			.neighbours = (int)l->neighbours,
			.cos = c->cos[g->kind_of[layer]],
			.sin = c->sin[g->kind_of[layer]],
			.starts = c->starts,
			.qnorm = w->t[MT_T_QNORM],
			.knorm = w->t[MT_T_KNORM],
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
			.qkv = s->qkv,
			.pre = s->pre,
			.rstd = s->qk_rstd}};
}

struct op attention_op(const struct chunk *c, enum op_code code, uint32_t layer, const struct weights *w,
	const struct saved *s)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
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
			.qkv = s->qkv,
			.o = s->o,
			.lse = s->lse,
			.cap = c->geo->attention_cap,
			.sinks = w->t[MT_T_SINKS],
			.host_starts = l->span ? NULL : c->host_starts,
			.work = c->s.attention,
			.work_bytes = c->s.attention_bytes}};
}

static int64_t gate_width(const struct mt_layer *l) { return l->output_gate ? (int64_t)l->heads * l->head_dim : 0; }
/* Rows of q_proj before those of q: the gate's, unless that has a tensor of its own */
static int64_t gate_rows(const struct mt_layer *l) { return l->output_gate == MT_GATE_IN_Q ? gate_width(l) : 0; }
static enum mt_role_tensor gate_role(const struct mt_layer *l)
{
	return l->output_gate == MT_GATE_IN_Q ? MT_T_Q : MT_T_OGATE;
}
static enum mt_role_tensor gate_bias(const struct mt_layer *l) { return l->output_gate == MT_GATE_IN_Q ? MT_T_QB : 0; }

/* ---- k and v of another layer ---- */

/* Columns of k and v in (N, proj_width()) rows of q | k | v */
static void *kv_in(const struct chunk *c, const struct mt_layer *l, const void *qkv)
{
	return elements_after(c->dev, qkv, (int64_t)l->heads * l->head_dim);
}

/* Let other layers read the layer's k and v, or get those that it reads */
static void kv_forward(const struct chunk *c, uint32_t layer, const struct saved *s)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	uint32_t of = mt_kv_of(c->geo, layer);
	void *kv = of ? c->kv[of - 1] : NULL, *own = kv_in(c, l, s->qkv);
	struct columns_args a =
		{.dst = kv, .src = own, .n = c->n, .width = kv_width(l), .dst_ld = kv_width(l), .src_ld = proj_width(l)};
	if (!kv) return;
	if (l->kv_kind) a.dst = own, a.dst_ld = proj_width(l), a.src = kv, a.src_ld = kv_width(l);
	launch(c, &(struct op){OP_COLUMNS, .columns = a});
}

/* Add the gradients of the k and v that it has read to those of the layers above, or get their sum */
static void kv_backward(const struct chunk *c, uint32_t layer)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	uint32_t of = mt_kv_of(c->geo, layer);
	void *dkv = of ? c->dkv[of - 1] : NULL, *own = kv_in(c, l, c->s.dqkv);
	struct columns_args a = {.dst = own,
		.src = dkv,
		.n = c->n,
		.width = kv_width(l),
		.dst_ld = proj_width(l),
		.src_ld = kv_width(l),
		.add = 1};
	if (!of) return;
	if (l->kv_kind) {
		a.dst = dkv, a.dst_ld = kv_width(l), a.src = own, a.src_ld = proj_width(l), a.add = 0;
		for (uint32_t i = layer + 1; i < c->geo->layers; i++) a.add |= mt_layer_of(c->geo, i)->kv_kind == of;
	}
	launch(c, &(struct op){OP_COLUMNS, .columns = a});
}

/* Columns of q | k | v that the layer's own projections give */
static int64_t qkv_out(const struct mt_layer *l)
{
	return (int64_t)(l->heads + (l->k_is_v ? 1 : 2) * own_kv_heads(l)) * l->head_dim;
}

/* (N, out) rows of q | k | v. k_is_v: rows of q | k, and room for v behind each, which rope's operation fills */
static void qkv_forward(const struct chunk *c, const struct mt_layer *l, const struct weights *w, const void *x,
	void *qkv)
{
	int64_t a = (int64_t)l->heads * l->head_dim, k = (int64_t)l->kv_heads * l->head_dim, h = c->geo->hidden;
	linear_forward_rows(c, qkv, a + 2 * k, x, operands_after(c->dev, w->t[MT_T_Q], gate_rows(l) * h),
		operands_after(c->dev, w->t[MT_T_QB], gate_rows(l)), NULL, h, qkv_out(l));
}

/* dx (N, H), to which a gate has given its part, and the gradients of q | k | v's weights and biases */
static void qkv_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct grads *g, float beta, const void *x, void *dx)
{
	int64_t a = (int64_t)l->heads * l->head_dim, k = (int64_t)l->kv_heads * l->head_dim, h = c->geo->hidden;
	int64_t out = qkv_out(l), gate = gate_rows(l);
	struct operand dy = operand_of(c, OPERAND_DY, c->s.dqkv, 0, c->n, a + 2 * k),
				   in = operand_of(c, OPERAND_X, x, 0, c->n, h);
	linear_backward_input(c, dx, l->output_gate ? 1 : 0, &dy, operands_after(c->dev, w->t[MT_T_Q], gate * h), h, out);
	linear_backward_weights(c, g->t[MT_T_Q] + gate * h, g->t[MT_T_QB] ? g->t[MT_T_QB] + gate : NULL, beta, &dy, &in, h,
		out);
}

/* mt-sample: the spans of its document one by one, which a token sees no further back than. A span need not begin where
 * a tile does: then token by token until the next one does (attention_args.past). */
static void spans_forward(const struct chunk *c, const struct mt_layer *l, const struct saved *s, struct op op)
{
	struct attention_args *a = &op.attention;
	a->starts = c->starts;
	for (int64_t t = 0; t < c->n; t += a->n) {
		a->past = (c->past + t) % l->span;
		a->n = a->seq = a->past % 64 ? 1 : least(c->n - t, l->span - a->past);
		a->qkv = elements_after(c->dev, s->qkv, t * proj_width(l));
		a->o = elements_after(c->dev, s->o, t * value_width(l));
		a->lse = s->lse + t * l->heads;
		launch(c, &op);
	}
}

static void attention_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	struct saved *s, bool have_o)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op rope = rope_op(c, OP_ROPE_FORWARD, layer, w, s);
	struct op attention = attention_op(c, OP_ATTENTION_FORWARD, layer, w, s);
	const void *in = scaled_input(c, x, w, c->geo->attention_in_scale);
	if (l->output_gate)
		linear_forward(c, s->gate, in, w->t[gate_role(l)], w->t[gate_bias(l)], NULL, c->geo->hidden, gate_width(l));
	qkv_forward(c, l, w, in, s->qkv);
	launch(c, &rope);
	kv_forward(c, layer, s);
	if (have_o) return;
	if (l->span && !c->span_starts) spans_forward(c, l, s, attention);
	else launch(c, &attention);
}

static const void *attention_out(const struct chunk *c, uint32_t layer, const struct weights *w, const struct saved *s)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	int64_t a = gate_width(l);
	(void)w;
	if (!l->output_gate) return s->o;
	LAUNCH(c, OP_GATE_FORWARD, gate, .n = c->n, .width = a, .o = s->o, .gate = s->gate, .ld = a, .y = c->s.mixed);
	return c->s.mixed;
}

static void attention_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, float norm_beta, const void *x, struct saved *s, void *dx)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op attention = attention_op(c, OP_ATTENTION_BACKWARD, layer, w, s);
	struct op rope = rope_op(c, OP_ROPE_BACKWARD, layer, w, s);
	int64_t gate = gate_width(l);
	if (gate)
		LAUNCH(c, OP_GATE_BACKWARD, gate, .n = c->n, .width = gate, .o = s->o, .gate = s->gate, .ld = gate,
			.dy = c->s.d_o, .d_o = c->s.d_o, .dgate = s->gate, .dgate_ld = gate);
	attention.attention.d_o = c->s.d_o;
	attention.attention.dqkv = c->s.dqkv;
	launch(c, &attention);
	if (w->t[MT_T_SINKS])
		LAUNCH(c, OP_SINKS_BACKWARD, sinks_backward, .dsinks = g->t[MT_T_SINKS], .beta = beta,
			.sinks = w->t[MT_T_SINKS], .o = s->o, .d_o = c->s.d_o, .lse = s->lse, .n = c->n, .heads = l->heads,
			.dim = l->head_dim);
	kv_backward(c, layer);
	rope.rope.qkv = c->s.dqkv;
	rope.rope.dqnorm = g->t[MT_T_QNORM];
	rope.rope.dknorm = g->t[MT_T_KNORM];
	rope.rope.beta = beta;
	launch(c, &rope);
	const void *in = scaled_input(c, x, w, c->geo->attention_in_scale);
	if (gate)
		linear_backward(c, c->s.dh, g->t[gate_role(l)], g->t[gate_bias(l)], beta, s->gate, in, w->t[gate_role(l)],
			c->geo->hidden, gate);
	qkv_backward(c, l, w, g, beta, in, c->s.dh);
	scaled_input_backward(c, dx, g, norm_beta, x, w, c->geo->attention_in_scale);
}

const struct mixer attention_mixer = {attention_forward, attention_out, attention_backward};
