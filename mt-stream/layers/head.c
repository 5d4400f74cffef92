/* head.c: the two ends of a model: embedding, and final norm with LM head and cross-entropy. Forward and backward are
 * pairs. */
#include "layers.h"

/* ---- embedding ---- */

static struct positions positions(const struct chunk *c)
{
	const struct mt_geometry *g = c->geo;
	return (struct positions){(int64_t)g->max_position + g->position_offset, g->position_offset, c->seq, c->past,
		c->starts};
}

void embed_tokens(const struct chunk *c, const struct weights *w, void *x)
{
	LAUNCH(c, OP_EMBED_FORWARD, embed_forward, .x = x, .w = w->t[MT_T_EMBED], .tokens = c->tokens, .n = c->n,
		.h = c->geo->hidden, .scale = c->geo->embed_scale, .table = w->t[MT_T_POSITIONS], .at = positions(c),
		.sines = {c->geo->sine_step, c->geo->pad_token});
}

void embed_forward(const struct chunk *c, const struct weights *w, void *x)
{
	if (!c->geo->altup) return embed_tokens(c, w, x);
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct chunk slice = embed_slice(c, from);
		embed_tokens(&slice, w, slice.s.h);
		altup_begin(&slice, w, slice.s.h, elements_after(c->dev, x, from * residual_width(c->geo)));
	}
}

static void rows_backward(const struct chunk *c, const struct grads *g, float beta, const void *dx)
{
	LAUNCH(c, OP_EMBED_BACKWARD, embed_backward, .dw = g->t[MT_T_EMBED], .beta = beta, .dx = dx, .tokens = c->tokens,
		.n = c->n, .h = c->geo->hidden, .vocab = c->geo->vocab, .pad = c->geo->pad_token, .scale = c->geo->embed_scale,
		.dtable = g->t[MT_T_POSITIONS], .at = positions(c));
}

void embed_backward(const struct chunk *c, const struct grads *g, float beta, const void *dx)
{
	int64_t h = c->geo->hidden, all = residual_width(c->geo);
	if (!c->geo->altup) return rows_backward(c, g, beta, dx);
	for (int64_t from = 0; from < c->n; from += c->slice, beta = 1) {
		struct chunk slice = embed_slice(c, from);
		LAUNCH(&slice, OP_COLUMNS, columns, .dst = slice.s.h, .src = elements_after(c->dev, dx, from * all),
			.n = slice.n, .width = h, .dst_ld = h, .src_ld = all);
		rows_backward(&slice, g, beta, slice.s.h);
	}
}

/* ---- final norm, LM head, cross-entropy ---- */

/* Rows of the model that multi-token prediction reads, too, are normed */
static bool is_normed(const struct chunk *c) { return c->geo->mtp != 0 && !c->mtp; }

void head_norm(const struct chunk *c, const struct weights *w, const void *x)
{
	if (is_normed(c)) return scaled_add(c, c->s.h, x, NULL, 1);
	if (c->geo->altup) {
		altup_end(c, w, x, c->s.altup[0]);
		x = c->s.altup[0];
	}
	norm_forward(c, c->s.h, x, w, final_norm);
}

static bool logits_changed(const struct mt_geometry *g) { return g->logit_scale != 1 || g->logit_cap != 0; }

void head_logits(const struct chunk *c, const struct weights *w, int64_t rows)
{
	bool fp32 = c->s.losses;
	if (fp32) linear_forward_fp32(c, c->s.logits, c->s.h, w->t[MT_T_HEAD], w->t[MT_T_HEADB], c->geo->hidden, rows);
	else linear_forward(c, c->s.logits, c->s.h, w->t[MT_T_HEAD], w->t[MT_T_HEADB], NULL, c->geo->hidden, rows);
	if (logits_changed(c->geo))
		LAUNCH(c, OP_CAP_LOGITS, cap_logits, .logits = c->s.logits, .n = c->n * rows, .scale = c->geo->logit_scale,
			.cap = c->geo->logit_cap, .fp32 = fp32);
}

static void head_forward(const struct chunk *c, const struct weights *w, float scale, int backward, struct loss *loss,
	const void *x)
{
	bool changed = logits_changed(c->geo);
	head_norm(c, w, x);
	head_logits(c, w, c->geo->vocab);
	LAUNCH(c, OP_CROSS_ENTROPY, cross_entropy, .logits = c->s.logits, .targets = c->targets, .n = c->n,
		.vocab = c->geo->vocab, .scale = scale, .backward = backward, .loss = loss, .losses = c->s.losses,
		.weights = c->s.losses ? NULL : c->row_weights, .logit_scale = changed ? c->geo->logit_scale : 0,
		.cap = changed ? c->geo->logit_cap : 0, .teacher = c->teacher);
	if (c->s.losses && c->s.top)
		LAUNCH(c, OP_TOP, top, .logits = c->s.logits, .targets = c->targets, .losses = c->s.losses, .n = c->n,
			.vocab = c->geo->vocab, .top = c->teacher.top, .words = c->s.top);
}

void head_loss(const struct chunk *c, const struct weights *w, struct loss *loss, const void *x)
{
	head_forward(c, w, 1, 0, loss, x);
}

void head_loss_backward(const struct chunk *c, const struct weights *w, const struct grads *g, float beta, float scale,
	struct loss *loss, const void *x, void *dx)
{
	head_forward(c, w, scale, 1, loss, x);
	linear_backward(c, c->s.dh, matrix_grad(g, MT_T_HEAD), g->t[MT_T_HEADB], c->mtp ? 1 : beta, c->s.logits, c->s.h,
		w->t[MT_T_HEAD], c->geo->hidden, c->geo->vocab);
	if (is_normed(c)) return scaled_add(c, dx, c->s.dh, NULL, 1);
	if (!c->geo->altup) return norm_backward(c, dx, 0, g, beta, c->s.dh, x, w, final_norm);
	norm_backward(c, c->s.dh, 0, g, beta, c->s.dh, c->s.altup[0], w, final_norm);
	altup_end_backward(c, w, g, beta, x, c->s.dh, dx);
}
