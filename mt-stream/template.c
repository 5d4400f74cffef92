/* template.c: embedding, decoder block, final norm with LM head; forward and backward are pairs. */
#include <math.h>
#include <stddef.h>

#include "block.h"

/* ops.h, which C++ reads too, has its own names for mt.h's values */
_Static_assert((int)SWIGLU == MT_SWIGLU && (int)GEGLU == MT_GEGLU && (int)GEGLU_TANH == MT_GEGLU_TANH, "as in mt.h");
_Static_assert((int)SWIGLU_CLAMPED == MT_SWIGLU_CLAMPED && (int)RELU2 == MT_RELU2 && (int)GELU == MT_GELU,
	"as in mt.h");
_Static_assert((int)GELU_TANH == MT_GELU_TANH && (int)XIELU == MT_XIELU, "as in mt.h");

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

/* ---- linear layers: weights are (out, in), as Hugging Face stores them ---- */

struct operand operand_of(const struct chunk *c, int number, const void *x, int64_t first, int64_t rows, int64_t width)
{
	const struct device *d = c->dev;
	void *as = c->s.operand[number];

	if (d->operand == d->elem) return (struct operand){x, x};
	LAUNCH(c, OP_NARROW, narrow, .dst = operands_after(d, as, first * width),
		.src = elements_after(d, x, first * width), .n = rows * width);
	return (struct operand){x, as};
}

/* y (n, out) = x (n, in) w' + b + residual (n, out) */
void linear_forward(const struct chunk *c, void *y, const void *x, const void *w, const void *b, const void *residual,
	int64_t in, int64_t out)
{
	struct operand a = operand_of(c, OPERAND_X, x, 0, c->n, in);

	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = out, .k = in, .a = a.as, .lda = in, .b = w, .ldb = in, .trans_b = 1,
		.c = y, .ldc = out, .bias = b, .add = residual);
}

/* dx (n, in) = dy (n, out) w */
void linear_backward_input(const struct chunk *c, void *dx, const struct operand *dy, const void *w, int64_t in,
	int64_t out)
{
	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = in, .k = out, .a = dy->as, .lda = out, .b = w, .ldb = in, .c = dx,
		.ldc = in);
}

/* dw (out, in) += dy' x;  db (out) += column sums of dy */
void linear_backward_weights(const struct chunk *c, float *dw, float *db, float beta, const struct operand *dy,
	const struct operand *x, int64_t in, int64_t out)
{
	LAUNCH(c, OP_GEMM, gemm, .m = out, .n = in, .k = c->n, .a = dy->as, .lda = out, .trans_a = 1, .b = x->as, .ldb = in,
		.c = dw, .ldc = in, .beta = beta, .fp32 = 1);
	if (db)
		LAUNCH(c, OP_BIAS_BACKWARD, bias_backward, .db = db, .beta = beta, .dy = dy->x, .m = c->n, .n = out, .ld = out);
}

static void linear_backward(const struct chunk *c, void *dx, float *dw, float *db, float beta, const void *dy,
	const void *x, const void *w, int64_t in, int64_t out)
{
	struct operand a = operand_of(c, OPERAND_DY, dy, 0, c->n, out), b = operand_of(c, OPERAND_X, x, 0, c->n, in);

	linear_backward_input(c, dx, &a, w, in, out);
	linear_backward_weights(c, dw, db, beta, &a, &b, in, out);
}

static const struct norm norm1 = {MT_T_NORM1, MT_T_NORM1B}, norm2 = {MT_T_NORM2, MT_T_NORM2B};
static const struct norm post1 = {MT_T_POST1, 0}, post2 = {MT_T_POST2, 0}, final_norm = {MT_T_FNORM, MT_T_FNORMB};

void norm_forward(const struct chunk *c, void *y, const void *x, const struct weights *w, struct norm norm)
{
	LAUNCH(c, OP_NORM_FORWARD, norm_forward, .y = y, .rstd = c->s.rstd, .x = x, .w = w->t[norm.w], .n = c->n,
		.h = c->geo->hidden, .eps = c->geo->norm_eps, .mean = c->geo->flags & MT_LAYERNORM ? c->s.mean : NULL,
		.b = w->t[norm.b], .one = !!(c->geo->flags & MT_NORM_ONE));
}

/* Uses the statistics in the scratch, which norm_forward over the same x has just written */
void norm_backward(const struct chunk *c, void *dx, int add_dx, const struct grads *g, float beta, const void *dy,
	const void *x, const struct weights *w, struct norm norm)
{
	LAUNCH(c, OP_NORM_BACKWARD, norm_backward, .dx = dx, .add_dx = add_dx, .dw = g->t[norm.w], .beta = beta, .dy = dy,
		.x = x, .w = w->t[norm.w], .rstd = c->s.rstd, .n = c->n, .h = c->geo->hidden,
		.mean = c->geo->flags & MT_LAYERNORM ? c->s.mean : NULL, .db = g->t[norm.b],
		.one = !!(c->geo->flags & MT_NORM_ONE));
}

/* y (N, H) = add + scale x */
void scaled_add(const struct chunk *c, void *y, const void *x, const void *add, float scale)
{
	LAUNCH(c, OP_SCALED_ADD, scaled_add, .y = y, .x = x, .add = add, .n = c->n * c->geo->hidden, .scale = scale);
}

/* ---- embedding ---- */

void embed_forward(const struct chunk *c, const struct weights *w, void *x)
{
	LAUNCH(c, OP_EMBED_FORWARD, embed_forward, .x = x, .w = w->t[MT_T_EMBED], .tokens = c->tokens, .n = c->n,
		.h = c->geo->hidden, .scale = c->geo->embed_scale);
}

void embed_backward(const struct chunk *c, const struct grads *g, float beta, const void *dx)
{
	LAUNCH(c, OP_EMBED_BACKWARD, embed_backward, .dw = g->t[MT_T_EMBED], .beta = beta, .dx = dx, .tokens = c->tokens,
		.n = c->n, .h = c->geo->hidden, .vocab = c->geo->vocab, .pad = c->geo->pad_token, .scale = c->geo->embed_scale);
}

/* ---- decoder block ----
 *
 *     pre-norm (llama)   x2 = x + attention(norm1(x))          y = x2 + mlp(norm2(x2))
 *     post-norm          x2 = x + post1(attention(x))          y = x2 + post2(mlp(x2))
 *     both (sandwich)    x2 = x + post1(attention(norm1(x)))   y = x2 + post2(mlp(norm2(x2)))
 *     parallel           x2 = x + attention(norm1(x))          y = x2 + mlp(norm2(x)), or norm1
 *
 * In some families what is added is multiplied by a constant, and the whole output by a number of the block's own.
 */

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

	struct operand in = operand_of(c, OPERAND_X, x, 0, c->n, h);

	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = l->k_is_v ? a + k : a + 2 * k, .k = h, .a = in.as, .lda = h,
		.b = w->t[MT_T_Q], .ldb = h, .trans_b = 1, .c = qkv, .ldc = a + 2 * k, .bias = w->t[MT_T_QB]);
}

/* dx (N, H), and the gradients of q | k | v's weights and biases */
static void qkv_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct grads *g, float beta, const void *x, void *dx)
{
	int64_t a = (int64_t)l->heads * l->head_dim, k = (int64_t)l->kv_heads * l->head_dim, h = c->geo->hidden;
	int64_t out = l->k_is_v ? a + k : a + 2 * k;
	struct operand dy = operand_of(c, OPERAND_DY, c->s.dqkv, 0, c->n, a + 2 * k),
				   in = operand_of(c, OPERAND_X, x, 0, c->n, h);

	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = h, .k = out, .a = dy.as, .lda = a + 2 * k, .b = w->t[MT_T_Q], .ldb = h,
		.c = dx, .ldc = h);
	LAUNCH(c, OP_GEMM, gemm, .m = out, .n = h, .k = c->n, .a = dy.as, .lda = a + 2 * k, .trans_a = 1, .b = in.as,
		.ldb = h, .c = g->t[MT_T_Q], .ldc = h, .beta = beta, .fp32 = 1);
	if (g->t[MT_T_QB])
		LAUNCH(c, OP_BIAS_BACKWARD, bias_backward, .db = g->t[MT_T_QB], .beta = beta, .dy = c->s.dqkv, .m = c->n,
			.n = out, .ld = a + 2 * k);
}

/* y = residual + x w' + b, the sum of which a norm or a factor may apply to what is added. The scratch's h is lost
 * then, and sub holds x w' + b. */
static void residual_forward(const struct chunk *c, void *y, const void *x, const struct weights *w,
	enum mt_role_tensor weight, enum mt_role_tensor bias, struct norm post, const void *residual, int64_t in)
{
	if (!residual_apart(c->geo)) {
		linear_forward(c, y, x, w->t[weight], w->t[bias], residual, in, c->geo->hidden);
		return;
	}
	linear_forward(c, c->s.sub, x, w->t[weight], w->t[bias], NULL, in, c->geo->hidden);
	residual_add(c, y, w, post, residual);
}

void residual_add(const struct chunk *c, void *y, const struct weights *w, struct norm post, const void *residual)
{
	const void *add = c->s.sub;

	if (c->geo->flags & MT_POST_NORM) {
		norm_forward(c, c->s.h, c->s.sub, w, post);
		add = c->s.h;
	}
	scaled_add(c, y, add, residual, c->geo->residual_scale);
}

/* The gradient of x w' + b above, from that of y: y's own, or one in the scratch's dh. With a norm x w' + b is
 * recomputed; the scratch's h is lost then. */
static const void *residual_backward(const struct chunk *c, const void *dy, const void *x, const struct weights *w,
	const struct grads *g, float beta, enum mt_role_tensor weight, enum mt_role_tensor bias, struct norm post,
	int64_t in)
{
	if (c->geo->flags & MT_POST_NORM)
		linear_forward(c, c->s.sub, x, w->t[weight], w->t[bias], NULL, in, c->geo->hidden);
	return residual_sub_backward(c, dy, w, g, beta, post);
}

const void *residual_sub_backward(const struct chunk *c, const void *dy, const struct weights *w, const struct grads *g,
	float beta, struct norm post)
{
	if (!residual_apart(c->geo)) return dy;
	if (!(c->geo->flags & MT_POST_NORM)) {
		scaled_add(c, c->s.dh, dy, NULL, c->geo->residual_scale);
		return c->s.dh;
	}
	norm_forward(c, c->s.h, c->s.sub, w, post);
	if (c->geo->residual_scale != 1) {
		scaled_add(c, c->s.h, dy, NULL, c->geo->residual_scale);
		dy = c->s.h;
	}
	norm_backward(c, c->s.dh, 0, g, beta, dy, c->s.sub, w, post);
	return c->s.dh;
}

/* The input of attention or MLP: norm(x) in the scratch, or x itself */
const void *input_of(const struct chunk *c, const void *x, const struct weights *w, struct norm norm)
{
	if (c->geo->flags & MT_NO_PRE_NORM) return x;
	norm_forward(c, c->s.h, x, w, norm);
	return c->s.h;
}

/* dx += the gradient of x, from that of input_of in the scratch's dh */
void input_backward(const struct chunk *c, void *dx, const struct grads *g, float beta, const void *x,
	const struct weights *w, struct norm norm)
{
	if (c->geo->flags & MT_NO_PRE_NORM) scaled_add(c, dx, c->s.dh, dx, 1);
	else norm_backward(c, dx, 1, g, beta, c->s.dh, x, w, norm);
}

/* s->x2 = x + what attention adds */
void block_recompute(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
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

/* ---- MLP ---- */

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

/* The slice that starts at token `from` */
static struct slice slice_of(const struct chunk *c, uint32_t layer, int64_t from, const struct weights *w,
	const void *x, const struct saved *s)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	bool parallel = c->geo->flags & MT_PARALLEL;
	struct slice p = {.c = *c,
		.l = l,
		.w = w,
		.in = elements_after(c->dev, parallel ? x : s->x2, from * c->geo->hidden),
		.x2 = elements_after(c->dev, s->x2, from * c->geo->hidden),
		.kept = s->gu != NULL,
		.gu = s->gu      ? elements_after(c->dev, s->gu, from * kept_width(l))
			: l->experts ? c->s.x.gu
						 : c->s.gu,
		.norm = c->geo->flags & MT_ONE_NORM ? norm1 : norm2,
		.post = post2,
		.to = l->experts};

	p.c.n = c->n - from < c->slice ? c->n - from : c->slice;
	if (p.c.balance.sums) p.c.balance.counted += from;
	p.rows = p.c.n * l->experts_per_token;
	if (l->experts && c->s.x.sum) experts_of_pass(&p, c->before + from, c->slices_before + from / c->slice);
	return p;
}

/* Weights of gate | up, which is up alone where the MLP is not gated */
static enum mt_role_tensor gate_up_role(const struct slice *p) { return mlp_gated(p->l) ? MT_T_GATE : MT_T_UP; }
static enum mt_role_tensor gate_up_bias(const struct slice *p) { return mlp_gated(p->l) ? MT_T_GATEB : MT_T_UPB; }

static void gate_up(const struct slice *p)
{
	linear_forward(&p->c, p->gu, input_of(&p->c, p->in, p->w, p->norm), p->w->t[gate_up_role(p)],
		p->w->t[gate_up_bias(p)], NULL, p->c.geo->hidden, gate_up_width(p->l));
}

static void activation_forward(const struct slice *p)
{
	LAUNCH(&p->c, OP_ACTIVATION_FORWARD, activation_forward, .y = p->c.s.act, .gu = p->gu, .n = p->c.n, .f = p->l->ffn,
		.form = (enum activation)p->l->form, .slope = {p->w->t[MT_T_SLOPE_P], p->w->t[MT_T_SLOPE_N]});
}

/* The gradient of gate | up in its place, from that of the inner output in act, which becomes the inner output */
static void activation_backward(const struct slice *p, const struct grads *g, float beta)
{
	LAUNCH(&p->c, OP_ACTIVATION_BACKWARD, activation_backward, .dgu = p->gu, .y = p->c.s.act, .dy = p->c.s.act,
		.gu = p->gu, .n = p->c.n, .f = p->l->ffn, .form = (enum activation)p->l->form,
		.slope = {p->w->t[MT_T_SLOPE_P], p->w->t[MT_T_SLOPE_N]}, .dslope = {g->t[MT_T_SLOPE_P], g->t[MT_T_SLOPE_N]},
		.beta = beta);
}

/* y = x2 + what the MLP adds */
static void mlp_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, void *y)
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
		if (w->t[MT_T_SCALAR])
			LAUNCH(&p.c, OP_SCALED_ADD, scaled_add, .y = out, .x = out, .n = p.c.n * c->geo->hidden, .scale = 1,
				.factor = w->t[MT_T_SCALAR]);
	}
}

void block_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	void *y)
{
	block_recompute(c, layer, w, x, s, false);
	mlp_forward(c, layer, w, x, s, y);
}

/* dx: the gradient of y becomes that of x2 (of x, where attention and MLP are parallel), through the residual
 * connection and through the MLP */
static void mlp_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, const struct saved *s, void *dx)
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
		dsub = residual_backward(&p.c, d, c->s.act, w, g, beta, MT_T_DOWN, MT_T_DOWNB, post2, f);
		/* act holds the gradient of the inner output, then the inner output, for the gradient of down's weights */
		struct operand dy = operand_of(&p.c, OPERAND_DY, dsub, 0, p.c.n, h);
		linear_backward_input(&p.c, c->s.act, &dy, w->t[MT_T_DOWN], f, h);
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

/* dx, the gradient of x2, becomes in the scratch's d_o the gradient of attention's output */
static void output_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct grads *g, float beta, const struct saved *s, const void *dx)
{
	int64_t a = (int64_t)l->heads * l->head_dim;
	const void *dsub = residual_backward(c, dx, s->o, w, g, beta, MT_T_O, MT_T_OB, post1, a);

	linear_backward(c, c->s.d_o, g->t[MT_T_O], g->t[MT_T_OB], beta, dsub, s->o, w->t[MT_T_O], a, c->geo->hidden);
}

/* From the gradient of attention's output to that of x, which is added to dx */
static void attention_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
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

/* Numbers that are not trained */
static void no_gradient(const struct chunk *c, const struct grads *g, enum mt_role_tensor role)
{
	if (g->t[role]) launch(c, &(struct op){OP_ZERO, .zero = {g->t[role], sizeof(float)}});
}

static void scalar_backward(const struct chunk *c, const struct weights *w, void *dx)
{
	if (w->t[MT_T_SCALAR])
		LAUNCH(c, OP_SCALED_ADD, scaled_add, .y = dx, .x = dx, .n = c->n * c->geo->hidden, .scale = 1,
			.factor = w->t[MT_T_SCALAR]);
}

/* From the gradient of what the block's own factor multiplies */
static void sums_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, struct saved *s, void *dx)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	bool parallel = c->geo->flags & MT_PARALLEL;

	no_gradient(c, g, MT_T_SCALAR);
	no_gradient(c, g, MT_T_XIELU_BETA);
	no_gradient(c, g, MT_T_XIELU_EPS);
	/* parallel: attention's gradients are taken from dx before the MLP adds to it */
	if (parallel) output_backward(c, l, w, g, beta, s, dx);
	mlp_backward(c, layer, w, g, beta, x, s, dx);
	if (!parallel) output_backward(c, l, w, g, beta, s, dx);
	attention_backward(c, layer, w, g, beta, c->geo->flags & MT_ONE_NORM ? 1 : beta, x, s, dx);
}

void block_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	const void *x, struct saved *s, void *dx)
{
	scalar_backward(c, w, dx);
	sums_backward(c, layer, w, g, beta, x, s, dx);
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

void block_windows_end(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, void *y)
{
	mlp_forward(c, layer, w, x, s, y);
}

void block_backward_route(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, void *dx)
{
	scalar_backward(c, w, dx);
	block_route(c, layer, w, x, s);
}

void block_window_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const struct window *win, const void *x, const struct saved *s, const void *dx)
{
	for (int64_t from = 0; from < c->n; from += c->slice, beta = 1) {
		struct slice p = window_slice(c, layer, from, w, win, x, s);

		experts_window_backward(&p, g, beta, elements_after(c->dev, dx, from * c->geo->hidden));
	}
}

void block_backward_windows_end(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, struct saved *s, void *dx)
{
	sums_backward(c, layer, w, g, beta, x, s, dx);
}

/* ---- final norm, LM head, cross-entropy ---- */

void head_norm(const struct chunk *c, const struct weights *w, const void *x)
{
	norm_forward(c, c->s.h, x, w, final_norm);
}

static bool logits_changed(const struct mt_geometry *g) { return g->logit_scale != 1 || g->logit_cap != 0; }

void head_logits(const struct chunk *c, const struct weights *w, int64_t rows)
{
	linear_forward(c, c->s.logits, c->s.h, w->t[MT_T_HEAD], w->t[MT_T_HEADB], NULL, c->geo->hidden, rows);
	if (logits_changed(c->geo))
		LAUNCH(c, OP_CAP_LOGITS, cap_logits, .logits = c->s.logits, .n = c->n * rows, .scale = c->geo->logit_scale,
			.cap = c->geo->logit_cap);
}

static void head_forward(const struct chunk *c, const struct weights *w, float scale, int backward, struct loss *loss,
	const void *x)
{
	bool changed = logits_changed(c->geo);

	head_norm(c, w, x);
	head_logits(c, w, c->geo->vocab);
	LAUNCH(c, OP_CROSS_ENTROPY, cross_entropy, .logits = c->s.logits, .targets = c->targets, .n = c->n,
		.vocab = c->geo->vocab, .scale = scale, .backward = backward, .loss = loss,
		.logit_scale = changed ? c->geo->logit_scale : 0, .cap = changed ? c->geo->logit_cap : 0);
}

void head_loss(const struct chunk *c, const struct weights *w, struct loss *loss, const void *x)
{
	head_forward(c, w, 1, 0, loss, x);
}

void head_loss_backward(const struct chunk *c, const struct weights *w, const struct grads *g, float beta, float scale,
	struct loss *loss, const void *x, void *dx)
{
	head_forward(c, w, scale, 1, loss, x);
	linear_backward(c, c->s.dh, g->t[MT_T_HEAD], g->t[MT_T_HEADB], beta, c->s.logits, c->s.h, w->t[MT_T_HEAD],
		c->geo->hidden, c->geo->vocab);
	norm_backward(c, dx, 0, g, beta, c->s.dh, x, w, final_norm);
}
