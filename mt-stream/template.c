/* template.c: embedding, decoder block, final norm with LM head; forward and backward are pairs. */
#include <math.h>
#include <stddef.h>

#include "template.h"

static void launch(const struct chunk *c, const struct op *op) { c->dev->launch(c->dev, Q_COMPUTE, op); }

/* LAUNCH(chunk, OP_GEMM, gemm, .m = ..., ...): an operation with its arguments by name (device.h) */
#define LAUNCH(c, op_code, args, ...) launch(c, &(struct op){op_code, .args = {__VA_ARGS__}})

/* ---- linear layers: weights are (out, in), as Hugging Face stores them ---- */

/* y (n, out) = x (n, in) w' + b + residual (n, out) */
static void linear_forward(const struct chunk *c, void *y, const void *x, const void *w, const void *b,
	const void *residual, int64_t in, int64_t out)
{
	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = out, .k = in, .a = x, .lda = in, .b = w, .ldb = in, .trans_b = 1, .c = y,
		.ldc = out, .bias = b, .add = residual);
}

/* dx (n, in) = dy (n, out) w */
static void linear_backward_input(const struct chunk *c, void *dx, const void *dy, const void *w, int64_t in,
	int64_t out)
{
	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = in, .k = out, .a = dy, .lda = out, .b = w, .ldb = in, .c = dx, .ldc = in);
}

/* dw (out, in) += dy' x;  db (out) += column sums of dy */
static void linear_backward_weights(const struct chunk *c, float *dw, float *db, float beta, const void *dy,
	const void *x, int64_t in, int64_t out)
{
	LAUNCH(c, OP_GEMM, gemm, .m = out, .n = in, .k = c->n, .a = dy, .lda = out, .trans_a = 1, .b = x, .ldb = in,
		.c = dw, .ldc = in, .beta = beta, .fp32 = 1);
	if (db) LAUNCH(c, OP_BIAS_BACKWARD, bias_backward, .db = db, .beta = beta, .dy = dy, .m = c->n, .n = out);
}

static void linear_backward(const struct chunk *c, void *dx, float *dw, float *db, float beta, const void *dy,
	const void *x, const void *w, int64_t in, int64_t out)
{
	linear_backward_input(c, dx, dy, w, in, out);
	linear_backward_weights(c, dw, db, beta, dy, x, in, out);
}

static void norm_forward(const struct chunk *c, void *y, const void *x, const void *w)
{
	LAUNCH(c, OP_RMSNORM_FORWARD, rmsnorm_forward, .y = y, .rstd = c->s.rstd, .x = x, .w = w, .n = c->n,
		.h = c->geo->hidden, .eps = c->geo->norm_eps);
}

/* Uses rstd in the scratch, which norm_forward over the same x has just written */
static void norm_backward(const struct chunk *c, void *dx, int add_dx, float *dw, float beta, const void *dy,
	const void *x, const void *w)
{
	LAUNCH(c, OP_RMSNORM_BACKWARD, rmsnorm_backward, .dx = dx, .add_dx = add_dx, .dw = dw, .beta = beta, .dy = dy,
		.x = x, .w = w, .rstd = c->s.rstd, .n = c->n, .h = c->geo->hidden);
}

/* ---- embedding ---- */

void embed_forward(const struct chunk *c, const struct weights *w, void *x)
{
	LAUNCH(c, OP_EMBED_FORWARD, embed_forward, .x = x, .w = w->t[MT_T_EMBED], .tokens = c->tokens, .n = c->n,
		.h = c->geo->hidden);
}

void embed_backward(const struct chunk *c, const struct grads *g, float beta, const void *dx)
{
	LAUNCH(c, OP_EMBED_BACKWARD, embed_backward, .dw = g->t[MT_T_EMBED], .beta = beta, .dx = dx, .tokens = c->tokens,
		.n = c->n, .h = c->geo->hidden, .vocab = c->geo->vocab, .pad = c->geo->pad_token);
}

/* ---- decoder block ---- */

void rope_table(const struct mt_geometry *geo, uint32_t from, uint32_t to, float *cosines, float *sines)
{
	uint32_t half = geo->head_dim / 2;

	for (uint32_t p = from; p < to; p++)
		for (uint32_t i = 0; i < half; i++) {
			float angle = (float)p * geo->rope_inv_freq[i];

			cosines[(size_t)p * half + i] = cosf(angle) * geo->rope_scaling;
			sines[(size_t)p * half + i] = sinf(angle) * geo->rope_scaling;
		}
}

static struct op rope_op(const struct chunk *c, enum op_code code, const struct weights *w, const struct saved *s)
{
	return (struct op){code,
		.rope = {.n = c->n,
			.seq = c->seq,
			.heads = c->geo->heads,
			.kv_heads = c->geo->kv_heads,
			.dim = c->geo->head_dim,
			.cos = c->cos,
			.sin = c->sin,
			.starts = c->starts,
			.qnorm = w->t[MT_T_QNORM],
			.knorm = w->t[MT_T_KNORM],
			.eps = c->geo->norm_eps,
			.qkv = s->qkv,
			.pre = s->pre,
			.rstd = s->qk_rstd}};
}

static struct op attention_op(const struct chunk *c, enum op_code code, uint32_t layer, const struct saved *s)
{
	return (struct op){code,
		.attention = {.n = c->n,
			.seq = c->seq,
			.heads = c->geo->heads,
			.kv_heads = c->geo->kv_heads,
			.dim = c->geo->head_dim,
			.window = c->geo->window_layer[layer] ? c->geo->window : 0,
			.past = c->past,
			.scale = 1.0f / sqrtf((float)c->geo->head_dim),
			.starts = c->starts,
			.qkv = s->qkv,
			.o = s->o,
			.lse = s->lse,
			.host_starts = c->host_starts,
			.work = c->s.attention,
			.work_bytes = c->s.attention_bytes}};
}

/* x2 = x + o_proj(attention(rope(qkv(norm1(x))))) */
void block_recompute(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	bool have_attention)
{
	const struct mt_geometry *geo = c->geo;
	int64_t h = geo->hidden, a = (int64_t)geo->heads * geo->head_dim, k = (int64_t)geo->kv_heads * geo->head_dim;
	struct op rope = rope_op(c, OP_ROPE_FORWARD, w, s), attention = attention_op(c, OP_ATTENTION_FORWARD, layer, s);

	norm_forward(c, c->s.h, x, w->t[MT_T_NORM1]);
	linear_forward(c, s->qkv, c->s.h, w->t[MT_T_Q], w->t[MT_T_QB], NULL, h, a + 2 * k);
	launch(c, &rope);
	if (!have_attention) launch(c, &attention);
	linear_forward(c, s->x2, s->o, w->t[MT_T_O], w->t[MT_T_OB], x, a, h);
}

/* The MLP's piece that starts at token `from`, as a chunk of its own. *x2: its second residual; *gu: its gate | up, in
 * the scratch unless the block keeps them */
static struct chunk piece_of(const struct chunk *c, int64_t from, const struct saved *s, void **x2, void **gu)
{
	struct chunk p = *c;

	p.n = c->n - from < c->piece ? c->n - from : c->piece;
	*x2 = elements_after(c->dev, s->x2, from * c->geo->hidden);
	*gu = s->gu ? elements_after(c->dev, s->gu, from * 2 * c->geo->ffn) : c->s.gu;
	return p;
}

/* gate | up of norm2(x2), whose output stays in the scratch */
static void gate_up(const struct chunk *p, const struct weights *w, const void *x2, void *gu)
{
	norm_forward(p, p->s.h, x2, w->t[MT_T_NORM2]);
	linear_forward(p, gu, p->s.h, w->t[MT_T_GATE], w->t[MT_T_GATEB], NULL, p->geo->hidden, 2ll * p->geo->ffn);
}

/* y = x2 + down(silu(gate) * up) */
static void mlp_forward(const struct chunk *c, const struct weights *w, const struct saved *s, void *y)
{
	int64_t h = c->geo->hidden, f = c->geo->ffn;

	for (int64_t from = 0; from < c->n; from += c->piece) {
		void *x2, *gu, *out = elements_after(c->dev, y, from * h);
		struct chunk p = piece_of(c, from, s, &x2, &gu);

		gate_up(&p, w, x2, gu);
		LAUNCH(&p, OP_SWIGLU_FORWARD, swiglu_forward, .y = c->s.act, .gu = gu, .n = p.n, .f = f);
		linear_forward(&p, out, c->s.act, w->t[MT_T_DOWN], w->t[MT_T_DOWNB], x2, f, h);
	}
}

void block_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	void *y)
{
	block_recompute(c, layer, w, x, s, false);
	mlp_forward(c, w, s, y);
}

/* dx: the gradient of y becomes the gradient of x2, through the residual connection and through the MLP */
static void mlp_backward(const struct chunk *c, const struct weights *w, const struct grads *g, float beta,
	const struct saved *s, void *dx)
{
	int64_t h = c->geo->hidden, f = c->geo->ffn;

	for (int64_t from = 0; from < c->n; from += c->piece, beta = 1) {
		void *x2, *gu, *d = elements_after(c->dev, dx, from * h);
		struct chunk p = piece_of(c, from, s, &x2, &gu);

		if (s->gu) norm_forward(&p, c->s.h, x2, w->t[MT_T_NORM2]);
		else gate_up(&p, w, x2, gu);
		/* act holds the gradient of SwiGLU's output, then SwiGLU's output, for the gradient of down's weights */
		linear_backward_input(&p, c->s.act, d, w->t[MT_T_DOWN], f, h);
		LAUNCH(&p, OP_SWIGLU_BACKWARD, swiglu_backward, .dgu = gu, .y = c->s.act, .dy = c->s.act, .gu = gu, .n = p.n,
			.f = f);
		linear_backward_weights(&p, g->t[MT_T_DOWN], g->t[MT_T_DOWNB], beta, d, c->s.act, f, h);
		linear_backward(&p, c->s.dh, g->t[MT_T_GATE], g->t[MT_T_GATEB], beta, gu, c->s.h, w->t[MT_T_GATE], h, 2 * f);
		norm_backward(&p, d, 1, g->t[MT_T_NORM2], beta, c->s.dh, x2, w->t[MT_T_NORM2]);
	}
}

void block_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	const void *x, struct saved *s, void *dx)
{
	const struct mt_geometry *geo = c->geo;
	int64_t h = geo->hidden, a = (int64_t)geo->heads * geo->head_dim, k = (int64_t)geo->kv_heads * geo->head_dim;

	mlp_backward(c, w, g, beta, s, dx);

	/* attention: dx is now the gradient of x2 */
	struct op attention = attention_op(c, OP_ATTENTION_BACKWARD, layer, s), rope = rope_op(c, OP_ROPE_BACKWARD, w, s);
	linear_backward(c, c->s.d_o, g->t[MT_T_O], g->t[MT_T_OB], beta, dx, s->o, w->t[MT_T_O], a, h);
	attention.attention.d_o = c->s.d_o;
	attention.attention.dqkv = c->s.dqkv;
	launch(c, &attention);
	rope.rope.qkv = c->s.dqkv;
	rope.rope.dqnorm = g->t[MT_T_QNORM];
	rope.rope.dknorm = g->t[MT_T_KNORM];
	rope.rope.beta = beta;
	launch(c, &rope);
	norm_forward(c, c->s.h, x, w->t[MT_T_NORM1]);
	linear_backward(c, c->s.dh, g->t[MT_T_Q], g->t[MT_T_QB], beta, c->s.dqkv, c->s.h, w->t[MT_T_Q], h, a + 2 * k);
	norm_backward(c, dx, 1, g->t[MT_T_NORM1], beta, c->s.dh, x, w->t[MT_T_NORM1]);
}

/* ---- final norm, LM head, cross-entropy ---- */

void head_norm(const struct chunk *c, const struct weights *w, const void *x)
{
	norm_forward(c, c->s.h, x, w->t[MT_T_FNORM]);
}

void head_logits(const struct chunk *c, const struct weights *w, int64_t rows)
{
	linear_forward(c, c->s.logits, c->s.h, w->t[MT_T_HEAD], NULL, NULL, c->geo->hidden, rows);
}

static void head_forward(const struct chunk *c, const struct weights *w, float scale, int backward, struct loss *loss,
	const void *x)
{
	head_norm(c, w, x);
	head_logits(c, w, c->geo->vocab);
	LAUNCH(c, OP_CROSS_ENTROPY, cross_entropy, .logits = c->s.logits, .targets = c->targets, .n = c->n,
		.vocab = c->geo->vocab, .scale = scale, .backward = backward, .loss = loss);
}

void head_loss(const struct chunk *c, const struct weights *w, struct loss *loss, const void *x)
{
	head_forward(c, w, 1, 0, loss, x);
}

void head_loss_backward(const struct chunk *c, const struct weights *w, const struct grads *g, float beta, float scale,
	struct loss *loss, const void *x, void *dx)
{
	head_forward(c, w, scale, 1, loss, x);
	linear_backward(c, c->s.dh, g->t[MT_T_HEAD], NULL, beta, c->s.logits, c->s.h, w->t[MT_T_HEAD], c->geo->hidden,
		c->geo->vocab);
	norm_backward(c, dx, 0, g->t[MT_T_FNORM], beta, c->s.dh, x, w->t[MT_T_FNORM]);
}
