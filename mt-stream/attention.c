/* attention.c: softmax attention with rope. Forward and backward are pairs. */
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

void attention_take(struct saved *s, const struct kept *k, take_fn *take, void *where)
{
	const struct mt_layer *l = k->layer;
	uint64_t dim = l->head_dim, fp32 = sizeof(float);
	if (k->level < KEEP_ATTENTION) return;
	s->o = take(where, k->n * l->heads * dim, k->elem);
	s->lse = take(where, k->n * l->heads, fp32);
	if (k->level < KEEP_ALL_BUT_GATE_UP) return;
	s->qkv = take(where, k->n * (l->heads + 2ull * l->kv_heads) * dim, k->elem);
	if (!(k->geo->flags & MT_QK_NORM)) return;
	s->pre = take(where, k->n * (uint64_t)pre_width(k->geo, l), k->elem);
	s->qk_rstd = take(where, k->n * (uint64_t)rstd_width(k->geo, l), fp32);
}

static struct op rope_op(const struct chunk *c, enum op_code code, uint32_t layer, const struct weights *w,
	const struct saved *s)
{
	const struct mt_geometry *g = c->geo;
	const struct mt_layer *l = mt_layer_of(g, layer);
	bool norms = g->flags & MT_QK_NORM;
	return (struct op){code,
		.rope = {.n = c->n,
			.seq = c->seq,
			.heads = l->heads,
			.kv_heads = l->kv_heads,
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
			.v_norm = norms && g->flags & MT_V_NORM,
			.k_is_v = (int)l->k_is_v,
			.temperature = g->temperature,
			.temperature_positions = g->temperature_positions,
			.past = c->past,
			.qkv = s->qkv,
			.pre = s->pre,
			.rstd = s->qk_rstd}};
}

static struct op attention_op(const struct chunk *c, enum op_code code, uint32_t layer, const struct weights *w,
	const struct saved *s)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	return (struct op){code,
		.attention = {.n = c->n,
			.seq = c->seq,
			.heads = l->heads,
			.kv_heads = l->kv_heads,
			.dim = l->head_dim,
			.window = l->window,
			.past = c->past,
			.scale = c->geo->attention_scale,
			.starts = c->starts,
			.qkv = s->qkv,
			.o = s->o,
			.lse = s->lse,
			.cap = c->geo->attention_cap,
			.sinks = w->t[MT_T_SINKS],
			.host_starts = c->host_starts,
			.work = c->s.attention,
			.work_bytes = c->s.attention_bytes}};
}

/* (N, out) rows of q | k | v. k_is_v: rows of q | k, and room for v behind each, which rope's operation fills */
static void qkv_forward(const struct chunk *c, const struct mt_layer *l, const struct weights *w, const void *x,
	void *qkv)
{
	int64_t a = (int64_t)l->heads * l->head_dim, k = (int64_t)l->kv_heads * l->head_dim, h = c->geo->hidden;
	int64_t out = l->k_is_v ? a + k : a + 2 * k;
	struct operand in = operand_of(c, OPERAND_X, x, 0, c->n, h);

	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = out, .k = h, .a = in.as, .lda = h, .b = w->t[MT_T_Q],
		.ldb = c->in_out ? out : h, .trans_b = !c->in_out, .c = qkv, .ldc = a + 2 * k, .bias = w->t[MT_T_QB]);
}

/* dx (N, H), and the gradients of q | k | v's weights and biases */
static void qkv_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct grads *g, float beta, const void *x, void *dx)
{
	int64_t a = (int64_t)l->heads * l->head_dim, k = (int64_t)l->kv_heads * l->head_dim, h = c->geo->hidden;
	int64_t out = l->k_is_v ? a + k : a + 2 * k;
	struct operand dy = operand_of(c, OPERAND_DY, c->s.dqkv, 0, c->n, a + 2 * k),
				   in = operand_of(c, OPERAND_X, x, 0, c->n, h);
	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = h, .k = out, .a = dy.as, .lda = a + 2 * k, .b = w->t[MT_T_Q],
		.ldb = c->in_out ? out : h, .trans_b = c->in_out, .c = dx, .ldc = h);
	if (c->in_out) weights_gradient(c, g->t[MT_T_Q], beta, h, in.as, h, out, dy.as, a + 2 * k);
	else weights_gradient(c, g->t[MT_T_Q], beta, out, dy.as, a + 2 * k, h, in.as, h);
	if (g->t[MT_T_QB])
		LAUNCH(c, OP_BIAS_BACKWARD, bias_backward, .db = g->t[MT_T_QB], .beta = beta, .dy = c->s.dqkv, .m = c->n,
			.n = out, .ld = a + 2 * k);
}

void attention_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	bool have_attention)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op rope = rope_op(c, OP_ROPE_FORWARD, layer, w, s);
	struct op attention = attention_op(c, OP_ATTENTION_FORWARD, layer, w, s);
	qkv_forward(c, l, w, input_of(c, x, w, norm1), s->qkv);
	launch(c, &rope);
	if (!have_attention) launch(c, &attention);
	residual_forward(c, s->x2, s->o, w, MT_T_O, MT_T_OB, post1, x, (int64_t)l->heads * l->head_dim);
}

void output_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w, const struct grads *g,
	float beta, const struct saved *s, const void *dx)
{
	int64_t a = (int64_t)l->heads * l->head_dim;
	const void *dsub = residual_backward(c, dx, s->o, w, g, beta, MT_T_O, MT_T_OB, post1, a);
	linear_backward(c, c->s.d_o, g->t[MT_T_O], g->t[MT_T_OB], beta, dsub, s->o, w->t[MT_T_O], a, c->geo->hidden);
}

void attention_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, float norm_beta, const void *x, struct saved *s, void *dx)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op attention = attention_op(c, OP_ATTENTION_BACKWARD, layer, w, s);
	struct op rope = rope_op(c, OP_ROPE_BACKWARD, layer, w, s);
	attention.attention.d_o = c->s.d_o;
	attention.attention.dqkv = c->s.dqkv;
	launch(c, &attention);
	if (w->t[MT_T_SINKS])
		LAUNCH(c, OP_SINKS_BACKWARD, sinks_backward, .dsinks = g->t[MT_T_SINKS], .beta = beta,
			.sinks = w->t[MT_T_SINKS], .o = s->o, .d_o = c->s.d_o, .lse = s->lse, .n = c->n, .heads = l->heads,
			.dim = l->head_dim);
	rope.rope.qkv = c->s.dqkv;
	rope.rope.dqnorm = g->t[MT_T_QNORM];
	rope.rope.dknorm = g->t[MT_T_KNORM];
	rope.rope.beta = beta;
	launch(c, &rope);
	qkv_backward(c, l, w, g, beta, input_of(c, x, w, norm1), c->s.dh);
	input_backward(c, dx, g, norm_beta, x, w, norm1);
}
