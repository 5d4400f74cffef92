/* mla.c: multi-head latent attention (arXiv 2405.04434), as DeepSeek V3 has it. Forward and backward are pairs.
 *
 *     q_latent | kv_latent | kr = W norm(x)        q = W norm(q_latent)        kv = W norm(kv_latent), by head
 *     k = kv's first part | turned kr, which all heads share        v = kv's second part        q's last part turns
 *
 * Without a latent of q, q = W norm(x). q, k and v are kept as attention's are; where norms of heads would keep what
 * they got, this keeps the latents and kr.
 */
#include "layers.h"

#define LATENT_EPS 1e-6f /* whatever the other norms have */

static int64_t q_width(const struct mt_layer *l) { return (int64_t)l->heads * l->head_dim; }

/* Where the scratch has kv, behind a normed latent; the gradients of the latents, and of a normed one behind them */
static void *kv_at(const struct chunk *c, const struct mt_layer *l)
{
	return elements_after(c->dev, c->s.mixed, c->n * rank_most(l));
}
static void *dnormed_at(const struct chunk *c, const struct mt_layer *l)
{
	return elements_after(c->dev, c->s.dmixed, c->n * latent_width(l));
}

/* Latents: where they begin in a row of saved->pre, how wide they are, and their norm's weight */
struct latent {
	int64_t at, width;
	int number; /* of its statistics */
	enum mt_role_tensor norm, up;
};
static struct latent q_latent(const struct mt_layer *l)
{
	return (struct latent){0, l->q_rank, 0, MT_T_QNORM, MT_T_QUP};
}
static struct latent kv_latent(const struct mt_layer *l)
{
	return (struct latent){l->q_rank, l->kv_rank, 1, MT_T_KNORM, MT_T_KVUP};
}

static const void *normed(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct saved *s, struct latent of)
{
	LAUNCH(c, OP_NORM_FORWARD, norm_forward, .y = c->s.mixed, .rstd = s->qk_rstd + of.number * c->n,
		.x = elements_after(c->dev, s->pre, of.at), .w = w->t[of.norm], .n = c->n, .h = of.width, .eps = LATENT_EPS,
		.ld = latent_width(l));
	return c->s.mixed;
}

/* q | k | v from q and kv, or their gradients */
static struct op mla_op(const struct chunk *c, enum op_code code, uint32_t layer)
{
	const struct mt_geometry *g = c->geo;
	const struct mt_layer *l = mt_layer_of(g, layer);
	return (struct op){code,
		.mla = {.n = c->n,
			.seq = c->seq,
			.heads = l->heads,
			.dim = l->head_dim,
			.rope_dim = l->rope_dim,
			.dim_v = l->v_dim,
			.neighbours = (int)l->neighbours,
			.cos = c->cos[g->kind_of[layer]],
			.sin = c->sin[g->kind_of[layer]],
			.starts = c->starts,
			.temperature = g->temperature,
			.temperature_positions = g->temperature_positions,
			.past = c->past,
			.kv = kv_at(c, l),
			.ld = latent_width(l)}};
}

static void mla_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	bool have_o)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op mla = mla_op(c, OP_MLA_FORWARD, layer), attention = attention_op(c, OP_ATTENTION_FORWARD, layer, w, s);
	const void *in = input_of(c, x, w, norm1);
	int64_t h = c->geo->hidden;
	if (l->q_rank) {
		linear_forward(c, s->pre, in, w->t[MT_T_Q], w->t[MT_T_QB], NULL, h, latent_width(l));
		linear_forward_rows(c, s->qkv, proj_width(l), normed(c, l, w, s, q_latent(l)), w->t[MT_T_QUP], NULL, NULL,
			l->q_rank, q_width(l));
	} else {
		linear_forward_rows(c, s->qkv, proj_width(l), in, w->t[MT_T_Q], NULL, NULL, h, q_width(l));
		linear_forward(c, s->pre, in, w->t[MT_T_K], w->t[MT_T_KB], NULL, h, latent_width(l));
	}
	linear_forward(c, kv_at(c, l), normed(c, l, w, s, kv_latent(l)), w->t[MT_T_KVUP], NULL, NULL, l->kv_rank,
		pair_width(l));
	mla.mla.qkv = s->qkv;
	mla.mla.kr = elements_after(c->dev, s->pre, latent_width(l) - l->rope_dim);
	launch(c, &mla);
	if (!have_o) launch(c, &attention);
}

/* From dy, the gradient of what a latent becomes, to the latent's in the scratch's dmixed */
static void latent_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct grads *g, float beta, const struct saved *s, struct latent of, const struct operand *dy, int64_t out)
{
	struct operand in = operand_of(c, OPERAND_X, normed(c, l, w, s, of), 0, c->n, of.width);
	void *dnormed = dnormed_at(c, l);
	linear_backward_input(c, dnormed, 0, dy, w->t[of.up], of.width, out);
	linear_backward_weights(c, g->t[of.up], NULL, beta, dy, &in, of.width, out);
	LAUNCH(c, OP_NORM_BACKWARD, norm_backward, .dx = elements_after(c->dev, c->s.dmixed, of.at), .dw = g->t[of.norm],
		.beta = beta, .dy = dnormed, .x = elements_after(c->dev, s->pre, of.at), .w = w->t[of.norm],
		.rstd = s->qk_rstd + of.number * c->n, .n = c->n, .h = of.width, .ld = latent_width(l));
}

/* The scratch's dh, from the gradients of latents and kr, and without a latent of q from q's */
static void first_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct grads *g, float beta, const void *x)
{
	int64_t h = c->geo->hidden, wide = latent_width(l);
	struct operand in = operand_of(c, OPERAND_X, x, 0, c->n, h), dy;
	enum mt_role_tensor first = l->q_rank ? MT_T_Q : MT_T_K, bias = l->q_rank ? MT_T_QB : MT_T_KB;
	if (!l->q_rank) {
		dy = operand_of(c, OPERAND_DY, c->s.dqkv, 0, c->n, proj_width(l));
		linear_backward_input(c, c->s.dh, 0, &dy, w->t[MT_T_Q], h, q_width(l));
		linear_backward_weights(c, g->t[MT_T_Q], NULL, beta, &dy, &in, h, q_width(l));
	}
	dy = operand_of(c, OPERAND_DY, c->s.dmixed, 0, c->n, wide);
	linear_backward_input(c, c->s.dh, l->q_rank ? 0 : 1, &dy, w->t[first], h, wide);
	linear_backward_weights(c, g->t[first], g->t[bias], beta, &dy, &in, h, wide);
}

static void mla_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, float norm_beta, const void *x, struct saved *s, void *dx)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op mla = mla_op(c, OP_MLA_BACKWARD, layer), attention = attention_op(c, OP_ATTENTION_BACKWARD, layer, w, s);
	struct operand dy;
	attention.attention.d_o = c->s.d_o;
	attention.attention.dqkv = c->s.dqkv;
	launch(c, &attention);
	mla.mla.qkv = c->s.dqkv;
	mla.mla.kr = elements_after(c->dev, c->s.dmixed, latent_width(l) - l->rope_dim);
	launch(c, &mla);
	dy = operand_of(c, OPERAND_DY, kv_at(c, l), 0, c->n, pair_width(l));
	latent_backward(c, l, w, g, beta, s, kv_latent(l), &dy, pair_width(l));
	if (l->q_rank) {
		dy = operand_of(c, OPERAND_DY, c->s.dqkv, 0, c->n, proj_width(l));
		latent_backward(c, l, w, g, beta, s, q_latent(l), &dy, q_width(l));
	}
	first_backward(c, l, w, g, beta, input_of(c, x, w, norm1));
	input_backward(c, dx, g, norm_beta, x, w, norm1);
}

const struct mixer mla_mixer = {mla_forward, NULL, mla_backward};
