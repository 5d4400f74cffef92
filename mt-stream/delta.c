/* delta.c: gated DeltaNet (arXiv 2412.06464), as Qwen3.5 and Qwen3-Next have it, and Mamba 2 (arXiv 2405.21060), as
 * Granite 4 and Nemotron-H have it. Forward and backward are pairs.
 *
 *     qkv | z | b | a = W norm(x)        a short convolution of qkv, silu, and norms of q and k
 *     o = delta rule(q, k, v, a, b)      out projection of norm(o) silu(z), by head
 *
 * Mamba 2 has C and B of groups of heads for q and k, which have no norm, x for v, dt for a, and no b:
 *
 *     C | B | x | z | dt = W norm(x)     out projection of norm(o silu(z)), by group
 *
 * State and convolution begin at zero with each document.
 */
#include "layers.h"

/* Where z, b and a begin in a row of saved->qkv */
static int64_t z_at(const struct mt_layer *l) { return conv_width(l); }
static int64_t b_at(const struct mt_layer *l) { return z_at(l) + (int64_t)l->value_heads * l->value_dim; }
static int64_t a_at(const struct mt_layer *l) { return b_at(l) + (l->mixer == MT_MAMBA ? 0 : l->value_heads); }

/* The factors of C, B, x, z and dt in rows as of saved->qkv, or of their gradients */
static void scale_parts(const struct chunk *c, const struct mt_layer *l, void *x)
{
	int64_t keys = (int64_t)l->key_heads * l->key_dim, values = (int64_t)l->value_heads * l->value_dim, at = 0;
	const int64_t widths[] = {keys, keys, values, values, l->value_heads};
	if (l->mixer != MT_MAMBA) return;
	for (int i = 0; i < 5; at += widths[i++])
		scale_columns(c, elements_after(c->dev, x, at), widths[i], delta_width(l), c->geo->mamba_scale[i]);
}

static struct op conv_op(const struct chunk *c, enum op_code code, const struct mt_layer *l, const struct weights *w,
	const struct saved *s)
{
	return (struct op){code,
		.conv = {.n = c->n,
			.seq = c->seq,
			.channels = conv_width(l),
			.width = l->conv_width,
			.q_heads = l->key_heads,
			.k_heads = l->key_heads,
			.dim = l->key_dim,
			.unnormed = l->mixer == MT_MAMBA,
			.silu = 1,
			.x = s->qkv,
			.ld = delta_width(l),
			.w = w->t[MT_T_CONV],
			.bias = w->t[MT_T_CONVB],
			.starts = c->starts}};
}

/* The convolution into the scratch's mixed, where in a document's middle the open chunk's rows stand before it */
static void conv_forward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct saved *s)
{
	struct op conv = conv_op(c, OP_CONV_FORWARD, l, w, s);
	conv.conv.y = c->s.mixed;
	conv.conv.past = c->past;
	conv.conv.redo = c->past % DELTA_CHUNK;
	launch(c, &conv);
}

static struct op delta_op(const struct chunk *c, enum op_code code, const struct mt_layer *l, const struct weights *w,
	const struct saved *s)
{
	bool mamba = l->mixer == MT_MAMBA;
	return (struct op){code,
		.delta = {.n = c->n,
			.seq = c->seq,
			.key_heads = l->key_heads,
			.value_heads = l->value_heads,
			.key_dim = l->key_dim,
			.value_dim = l->value_dim,
			.correct = !mamba,
			.dt_min = l->dt_min,
			.dt_max = l->dt_max,
			.qkv = c->s.mixed,
			.a = elements_after(c->dev, s->qkv, a_at(l)),
			.b = mamba ? NULL : elements_after(c->dev, s->qkv, b_at(l)),
			.ld = delta_width(l),
			.a_log = w->t[MT_T_A_LOG],
			.dt_bias = w->t[MT_T_DT_BIAS],
			.skip = w->t[MT_T_SKIP],
			.starts = c->starts,
			.host_starts = c->host_starts,
			.o = s->o,
			.work = c->s.delta,
			.past = c->past,
			.state = s->state}};
}

static void delta_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	struct saved *s, bool have_o)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op delta = delta_op(c, OP_DELTA_FORWARD, l, w, s);
	in_projection_forward(c, s->qkv, x, w, delta_width(l));
	scale_parts(c, l, s->qkv);
	if (have_o) return;
	conv_forward(c, l, w, s);
	launch(c, &delta);
}

static struct op norm_op(const struct chunk *c, enum op_code code, const struct mt_layer *l, const struct weights *w,
	const struct saved *s)
{
	bool mamba = l->mixer == MT_MAMBA;
	int64_t heads = mamba ? l->key_heads : l->value_heads;
	return (struct op){code,
		.gated_norm = {.n = c->n,
			.heads = heads,
			.dim = (int64_t)l->value_heads * l->value_dim / heads,
			.eps = c->geo->norm_eps,
			.gate_first = mamba && !(l->mamba_flags & MT_NORM_FIRST),
			.all_heads = mamba,
			.o = s->o,
			.z = elements_after(c->dev, s->qkv, z_at(l)),
			.ld = delta_width(l),
			.w = w->t[MT_T_DNORM]}};
}

static const void *delta_out(const struct chunk *c, uint32_t layer, const struct weights *w, const struct saved *s)
{
	struct op norm = norm_op(c, OP_GATED_NORM_FORWARD, mt_layer_of(c->geo, layer), w, s);
	norm.gated_norm.y = c->s.mixed;
	launch(c, &norm);
	return c->s.mixed;
}

static void conv_backward(const struct chunk *c, const struct mt_layer *l, const struct weights *w,
	const struct grads *g, float beta, const struct saved *s)
{
	struct op conv = conv_op(c, OP_CONV_BACKWARD, l, w, s);
	int64_t keys = c->n * l->value_heads * l->key_dim;
	conv.conv.value_heads = l->value_heads;
	conv.conv.dq = c->s.dmixed;
	conv.conv.dk = elements_after(c->dev, c->s.dmixed, keys);
	conv.conv.dv = elements_after(c->dev, c->s.dmixed, 2 * keys);
	conv.conv.dx = c->s.dqkv;
	conv.conv.dx_ld = delta_width(l);
	conv.conv.dw = g->t[MT_T_CONV];
	conv.conv.dbias = g->t[MT_T_CONVB];
	conv.conv.beta = beta;
	launch(c, &conv);
}

static void delta_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, float norm_beta, const void *x, struct saved *s, void *dx)
{
	const struct mt_layer *l = mt_layer_of(c->geo, layer);
	struct op norm = norm_op(c, OP_GATED_NORM_BACKWARD, l, w, s);
	struct op delta = delta_op(c, OP_DELTA_BACKWARD, l, w, s);
	int64_t keys = c->n * l->value_heads * l->key_dim;
	norm.gated_norm.dy = norm.gated_norm.d_o = c->s.d_o;
	norm.gated_norm.dz = elements_after(c->dev, c->s.dqkv, z_at(l));
	norm.gated_norm.dz_ld = delta_width(l);
	norm.gated_norm.dw = g->t[MT_T_DNORM];
	norm.gated_norm.beta = beta;
	launch(c, &norm);
	conv_forward(c, l, w, s);
	delta.delta.d_o = c->s.d_o;
	delta.delta.dq = c->s.dmixed;
	delta.delta.dk = elements_after(c->dev, c->s.dmixed, keys);
	delta.delta.dv = elements_after(c->dev, c->s.dmixed, 2 * keys);
	delta.delta.da = elements_after(c->dev, c->s.dqkv, a_at(l));
	delta.delta.db = l->mixer == MT_MAMBA ? NULL : elements_after(c->dev, c->s.dqkv, b_at(l));
	delta.delta.d_ld = delta_width(l);
	delta.delta.da_log = g->t[MT_T_A_LOG];
	delta.delta.ddt_bias = g->t[MT_T_DT_BIAS];
	delta.delta.dskip = g->t[MT_T_SKIP];
	delta.delta.beta = beta;
	launch(c, &delta);
	conv_backward(c, l, w, g, beta, s);
	scale_parts(c, l, c->s.dqkv);
	in_projection_backward(c, dx, x, w, g, beta, norm_beta, delta_width(l));
}

const struct mixer delta_mixer = {delta_forward, delta_out, delta_backward};
