/* ple.c: an input of its own for each block ("per-layer embeddings"). With p elements for each of L blocks:
 *
 *     inputs (N, L p) = (sqrt(p) table[tokens] + norm(x W' / sqrt(H))) / sqrt(2)       x the embeddings; norms over p
 *     behind block l's MLP   y += norm(W2 (act(W1 y) * inputs_l))      layers/mlp.c
 *
 * All blocks' inputs are made once for a pass. The gradient of a block's input takes its place when the block has gone
 * backward, as nobody reads it any more. Forward and backward are pairs.
 */
#include <math.h>

#include "layers.h"

void ple_take(struct ple_scratch *s, const struct ple_sizes *z, take_fn *take, void *where)
{
	uint64_t n = z->slice, all = (uint64_t)ple_width(z->geo);
	s->all = take(where, n * all, z->elem);
	s->normed = take(where, n * all, z->elem);
	s->rstd = take(where, n * z->geo->layers, sizeof(float));
}

/* ---- all inputs ---- */

struct chunk embed_slice(const struct chunk *c, int64_t from)
{
	struct chunk part = *c;
	part.n = c->n - from < c->slice ? c->n - from : c->slice;
	part.tokens = c->tokens + from;
	part.ple = elements_after(c->dev, c->ple, from * ple_width(c->geo));
	part.in_out = 0;
	return part;
}

/* Of the slice that begins there, embeddings in rows one after another: as they are, or those of the first stream */
static const void *embeddings(const struct chunk *c, const void *x)
{
	if (c->geo->altup)
		LAUNCH(c, OP_COLUMNS, columns, .dst = c->s.h, .src = x, .n = c->n, .width = c->geo->hidden,
			.dst_ld = c->geo->hidden, .src_ld = residual_width(c->geo));
	return c->geo->altup ? c->s.h : x;
}

/* norm(x W' / sqrt(H)) is the norm of x W' with another epsilon */
static void normed_forward(const struct chunk *c, const struct weights *w, const void *x)
{
	const struct mt_geometry *g = c->geo;
	linear_forward(c, c->s.ple.all, x, w->t[MT_T_PLE_MODEL], NULL, NULL, g->hidden, ple_width(g));
	LAUNCH(c, OP_NORM_FORWARD, norm_forward, .y = c->s.ple.normed, .rstd = c->s.ple.rstd, .x = c->s.ple.all,
		.w = w->t[MT_T_PLE_NORM], .n = c->n * g->layers, .h = g->ple_dim, .eps = g->norm_eps * (float)g->hidden);
}

static void sum_scaled(const struct chunk *c, void *y, const void *x, const void *add, double scale)
{
	LAUNCH(c, OP_SCALED_ADD, scaled_add, .y = y, .x = x, .add = add, .n = c->n * ple_width(c->geo),
		.scale = (float)scale);
}

static double table_scale(const struct mt_geometry *g) { return sqrt(g->ple_dim / 2.0); }

void ple_inputs_forward(const struct chunk *all, const struct weights *w, const void *x)
{
	const struct mt_geometry *g = all->geo;
	for (int64_t from = 0; from < all->n; from += all->slice) {
		struct chunk part = embed_slice(all, from), *c = &part;
		if (w->t[MT_T_PLE_TABLE])
			LAUNCH(c, OP_EMBED_FORWARD, embed_forward, .x = c->ple, .w = w->t[MT_T_PLE_TABLE], .tokens = c->tokens,
				.n = c->n, .h = ple_width(g), .vocab = g->ple_vocab, .scale = (float)table_scale(g));
		else sum_scaled(c, c->ple, c->ple, NULL, table_scale(g));
		normed_forward(c, w, embeddings(c, elements_after(c->dev, x, from * residual_width(g))));
		sum_scaled(c, c->ple, c->s.ple.normed, c->ple, sqrt(0.5));
	}
}

void ple_inputs_backward(const struct chunk *all, const struct weights *w, const struct grads *grads, float beta,
	const void *x, void *dx)
{
	const struct mt_geometry *g = all->geo;
	for (int64_t from = 0; from < all->n; from += all->slice, beta = 1) {
		struct chunk part = embed_slice(all, from), *c = &part;
		const void *at = elements_after(c->dev, x, from * residual_width(g)), *in = embeddings(c, at);
		void *d = elements_after(c->dev, dx, from * residual_width(g)), *normed = c->s.ple.normed;
		if (g->altup) altup_begin_backward(c, w, grads, beta, at, d);
		normed_forward(c, w, in);
		sum_scaled(c, normed, c->ple, NULL, sqrt(0.5));
		LAUNCH(c, OP_NORM_BACKWARD, norm_backward, .dx = normed, .dw = grads->t[MT_T_PLE_NORM], .beta = beta,
			.dy = normed, .x = c->s.ple.all, .w = w->t[MT_T_PLE_NORM], .rstd = c->s.ple.rstd, .n = c->n * g->layers,
			.h = g->ple_dim);
		linear_backward(c, c->s.dh, grads->t[MT_T_PLE_MODEL], NULL, beta, normed, in, w->t[MT_T_PLE_MODEL], g->hidden,
			ple_width(g));
		LAUNCH(c, OP_COLUMNS, columns, .dst = d, .src = c->s.dh, .n = c->n, .width = g->hidden,
			.dst_ld = residual_width(g), .src_ld = g->hidden, .add = 1);
		LAUNCH(c, OP_EMBED_BACKWARD, embed_backward, .dw = grads->t[MT_T_PLE_TABLE], .beta = beta, .dx = c->ple,
			.tokens = c->tokens, .n = c->n, .h = ple_width(g), .vocab = g->ple_vocab, .pad = g->pad_token,
			.scale = (float)table_scale(g));
	}
}
