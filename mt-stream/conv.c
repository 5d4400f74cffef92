/* conv.c: a short convolution between two gates, as LFM2 has it. Forward and backward are pairs.
 *
 *     B | C | x = W norm(x)              o = C * convolution(B * x), each channel alone, inside the document
 */
#include "layers.h"

/* B stands at the beginning of a row, C and x behind it */
static struct op conv_op(const struct chunk *c, enum op_code code, const struct mt_layer *l, const struct weights *w,
	const struct saved *s)
{
	return (struct op){code,
		.conv = {.n = c->n,
			.seq = c->seq,
			.channels = l->conv_dim,
			.width = l->conv_width,
			.before = s->qkv,
			.after = elements_after(c->dev, s->qkv, l->conv_dim),
			.x = elements_after(c->dev, s->qkv, 2ll * l->conv_dim),
			.ld = 3ll * l->conv_dim,
			.w = w->t[MT_T_CONV],
			.bias = w->t[MT_T_CONVB],
			.starts = c->starts,
			.past = c->past}};
}

static void forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, struct saved *s,
	bool have_o)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op conv = conv_op(c, OP_CONV_FORWARD, l, w, s);
	in_projection_forward(c, s->qkv, x, w, 3ll * l->conv_dim);
	conv.conv.y = s->o;
	if (!have_o) launch(c, &conv);
}

static void backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	float norm_beta, const void *x, struct saved *s, void *dx)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op conv = conv_op(c, OP_CONV_BACKWARD, l, w, s);
	conv.conv.dv = c->s.d_o;
	conv.conv.dbefore = c->s.dqkv;
	conv.conv.dafter = elements_after(c->dev, c->s.dqkv, l->conv_dim);
	conv.conv.dx = elements_after(c->dev, c->s.dqkv, 2ll * l->conv_dim);
	conv.conv.dx_ld = 3ll * l->conv_dim;
	conv.conv.dw = g->t[MT_T_CONV];
	conv.conv.dbias = g->t[MT_T_CONVB];
	conv.conv.beta = beta;
	launch(c, &conv);
	in_projection_backward(c, dx, x, w, g, beta, norm_beta, 3ll * l->conv_dim);
}

const struct mixer conv_mixer = {forward, NULL, backward};
