/* altup.c: Gemma 3n's block, and the two ends of its residual stream, which has S copies of each token (AltUp, arXiv
 * 2301.13310). A block's attention and MLP read and write the first one:
 *
 *     p_i = x_i + sum_j a_ij x_j                              a = A tanh(W norm(x_0) / H)
 *     h = norm1(p_0), x2 = (p_0 + post1(attention(h)) + h + norm(R L h)) / sqrt(2)       LAuReL, arXiv 2411.07501
 *     y = x2 + post2(mlp(norm2(x2)))
 *     q_i = p_i + (1 + b_i) (y - p_0)                         b = B tanh(W norm(y) / H)
 *     out_0 = q_0, out_i = q_i + what the block's own input adds (ple.c), made of q_0 w
 *
 * The first block reads e and its products with a matrix for each other copy, of the magnitude of e; the head reads
 * the mean of the first copy and, likewise, of products of the others.
 *
 * All nodes are the list's first half: the MLP's changes go to all copies of its tokens, which the halves would have
 * to hand over.
 */
#include <math.h>

#include "list.h"
#include "mt/layout.h"

static const struct norm altup_norm = {MT_T_ALTUP_NORM, 0}, laurel_post = {MT_T_LAUREL_POST, 0};

static void columns_op(const struct chunk *c, void *dst, int64_t dst_ld, const void *src, int64_t src_ld, int64_t width,
	int add)
{
	LAUNCH(c, OP_COLUMNS, columns, .dst = dst, .src = src, .n = c->n, .width = width, .dst_ld = dst_ld,
		.src_ld = src_ld, .add = add);
}

/* ---- mixtures of copies ---- */

static struct mix_args mix_args(const struct run *r, const struct node *n)
{
	return (struct mix_args){.n = r->c->n,
		.h = r->c->geo->hidden,
		.copies = r->c->geo->altup,
		.x = value_at(r, n->in[0]),
		.c = value_at(r, n->in[1]),
		.y = n->in[2] == NONE ? NULL : value_at(r, n->in[2])};
}

static void mix_forward(struct run *r, const struct node *n)
{
	struct mix_args a = mix_args(r, n);
	a.out = value_at(r, n->out);
	launch(r->c, &(struct op){OP_MIX_FORWARD, .mix = a});
}

static void mix_backward(struct run *r, const struct node *n)
{
	struct mix_args a = mix_args(r, n);
	a.dout = grad_at(r, n->out);
	a.dx = grad_at(r, n->in[0]);
	a.dc = grad_at(r, n->in[1]);
	if (a.y) {
		a.dy = grad_at(r, n->in[2]);
		again(r, n->in[2]);
	}
	launch(r->c, &(struct op){OP_MIX_BACKWARD, .mix = a});
}

static const struct node_kind mix_kind = {.forward = mix_forward,
	.backward = mix_backward,
	.reads = 1 << 0 | 1 << 1 | 1 << 2,
	.grad = {GRAD_OF_OUT}};

/* Factors (N, n) by what the router sees in x. first: of the block's two routers, which have the same weights, the one
 * that comes first, and whose gradients are added to those of the other */
static int factors(struct list *t, int x, enum mt_role_tensor w, int64_t n, bool first)
{
	int64_t copies = t->g->altup;
	int in = scaled(t, norm(t, x, altup_norm), 1.0f / (float)t->g->hidden);
	int logits = linear(t, in, MT_T_ALTUP_ROUTER, 0, 0, copies, copies, AGAIN);
	t->node[t->v[logits].made].adds = first;
	return linear(t, inner(t, logits, copies, (struct inner){.form = MT_TANH}), w, 0, 0, n, n, AGAIN);
}

static int mix(struct list *t, int x, int c, int y)
{
	return node(t, (struct node){.kind = &mix_kind, .in = {x, c, y}}, residual_width(t->g), AGAIN);
}

/* ---- attention and LAuReL ---- */

static void join_forward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	void *out = value_at(r, n->out);
	int64_t h = c->geo->hidden;
	scaled_add(c, out, value_at(r, n->in[1]), value_at(r, n->in[2]), 1);
	columns_op(c, out, h, value_at(r, n->in[0]), row_of(r, n->in[0]), h, 1);
	scaled_add(c, out, out, NULL, n->scale);
}

static void join_backward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	void *d = grad_at(r, n->out);
	int64_t h = c->geo->hidden;
	scaled_add(c, d, d, NULL, n->scale);
	columns_op(c, grad_at(r, n->in[0]), row_of(r, n->in[0]), d, h, h, 1);
}

static const struct node_kind join_kind = {.forward = join_forward,
	.backward = join_backward,
	.grad = {GRAD_OWN, GRAD_OF_OUT, GRAD_OF_OUT}};

static int attention_half(struct list *t, int p)
{
	int64_t h = t->g->hidden, rank = t->g->laurel_rank;
	int in = norm(t, p, norm1), o = attention_of(t, in);
	int low = linear(t, in, MT_T_LAUREL_LEFT, 0, 0, rank, rank, AGAIN);
	int laurel = sum_node(t, in, norm(t, linear(t, low, MT_T_LAUREL_RIGHT, 0, 0, h, h, AGAIN), laurel_post), 1);
	int a = norm(t, linear(t, o, MT_T_O, MT_T_OB, 0, h, h, AGAIN), post1);
	struct node join = {.kind = &join_kind, .in = {p, a, laurel}, .scale = sqrtf(0.5f)};
	return node(t, join, h, KEEP_ALL_BUT_GATE_UP);
}

/* ---- the block's own input ---- */

/* Elements times weights: a norm without statistics */
static void weigh_forward(struct run *r, const struct node *n)
{
	LAUNCH(r->c, OP_NORM_FORWARD, norm_forward, .y = value_at(r, n->out), .x = value_at(r, n->in[0]),
		.w = r->w->t[n->w], .n = r->c->n, .h = r->c->geo->hidden, .ld = row_of(r, n->in[0]));
}

static void weigh_backward(struct run *r, const struct node *n)
{
	LAUNCH(r->c, OP_NORM_BACKWARD, norm_backward, .dx = grad_at(r, n->in[0]), .add_dx = again(r, n->in[0]),
		.dw = r->g->t[n->w], .beta = r->beta, .dy = grad_at(r, n->out), .x = value_at(r, n->in[0]), .w = r->w->t[n->w],
		.n = r->c->n, .h = r->c->geo->hidden, .ld = row_of(r, n->in[0]));
}

static const struct node_kind weigh_kind = {.forward = weigh_forward, .backward = weigh_backward, .reads = 1 << 0};

static void spread_forward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	int64_t h = c->geo->hidden, all = residual_width(c->geo);
	void *out = value_at(r, n->out);
	columns_op(c, out, all, value_at(r, n->in[0]), all, all, 0);
	for (int64_t at = h; at < all; at += h)
		columns_op(c, elements_after(c->dev, out, at), all, value_at(r, n->in[1]), h, h, 1);
}

static void spread_backward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	int64_t h = c->geo->hidden, all = residual_width(c->geo);
	void *d = grad_at(r, n->in[1]);
	for (int64_t at = h; at < all; at += h)
		columns_op(c, d, h, elements_after(c->dev, grad_at(r, n->out), at), all, h, at > h);
}

static const struct node_kind spread_kind = {.forward = spread_forward,
	.backward = spread_backward,
	.grad = {GRAD_OF_OUT}};

int altup_nodes(struct list *t, int x)
{
	int64_t h = t->g->hidden, copies = t->g->altup;
	int p = mix(t, x, factors(t, columns(t, x, 0, h), MT_T_ALTUP_PREDICT, copies * copies, true), NONE);
	int x2 = attention_half(t, columns(t, p, 0, h)), y = mlp_nodes(t, x2, x2);
	t->v[y].keep = KEEP_ALL_BUT_GATE_UP;
	int q = mix(t, p, factors(t, y, MT_T_ALTUP_CORRECT, copies, false), y);
	struct node weigh = {.kind = &weigh_kind, .in = {columns(t, q, 0, h), NONE, NONE}, .w = MT_T_ALTUP_SCALE};
	int z = norm(t, own_input(t, node(t, weigh, h, AGAIN)), ple_post);
	return node(t, (struct node){.kind = &spread_kind, .in = {q, z, NONE}}, residual_width(t->g), AGAIN);
}

/* ---- the ends of the residual stream ---- */

/* Elements from one copy's matrix to the next one's */
static int64_t matrix_stride(const struct mt_geometry *g)
{
	int64_t n = (int64_t)g->hidden * g->hidden;
	return (n + MT_GROUP - 1) / MT_GROUP * MT_GROUP;
}

struct copy {
	int64_t h, all;
	void *x, *dx;  /* of the copy, rows `all` apart; dx NULL: none */
	const void *w; /* its matrix */
	float *dw;
};

static struct copy copy_at(const struct chunk *c, int i, const void *x, const void *dx, const void *w, float *dw)
{
	struct copy s = {.h = c->geo->hidden, .all = residual_width(c->geo)};
	s.x = elements_after(c->dev, x, i * s.h);
	s.dx = elements_after(c->dev, dx, i * s.h);
	s.w = operands_after(c->dev, w, (i - 1) * matrix_stride(c->geo));
	s.dw = dw ? dw + (i - 1) * matrix_stride(c->geo) : NULL;
	return s;
}

void altup_begin(const struct chunk *c, const struct weights *w, const void *e, void *x)
{
	int64_t h = c->geo->hidden, all = residual_width(c->geo);
	columns_op(c, x, all, e, h, h, 0);
	for (int i = 1; i < (int)c->geo->altup; i++) {
		struct copy s = copy_at(c, i, x, NULL, w->t[MT_T_ALTUP_IN], NULL);
		linear_forward_rows(c, s.x, all, e, s.w, NULL, NULL, h, h, NULL);
		LAUNCH(c, OP_MAGNITUDE_FORWARD, magnitude, .n = c->n, .h = h, .x = x, .x_ld = all, .p = s.x, .p_ld = all,
			.y = s.x);
	}
}

void altup_begin_backward(const struct chunk *c, const struct weights *w, const struct grads *g, float beta,
	const void *x, void *dx)
{
	int64_t h = c->geo->hidden, all = residual_width(c->geo);
	void *e = c->s.h, *p = c->s.altup[1];
	columns_op(c, e, h, x, all, h, 0);
	for (int i = 1; i < (int)c->geo->altup; i++) {
		struct copy s = copy_at(c, i, x, dx, w->t[MT_T_ALTUP_IN], matrix_grad(g, MT_T_ALTUP_IN));
		linear_forward(c, p, e, s.w, NULL, NULL, h, h);
		LAUNCH(c, OP_MAGNITUDE_BACKWARD, magnitude, .n = c->n, .h = h, .x = x, .x_ld = all, .p = p, .p_ld = h,
			.dy = s.dx, .dy_ld = all, .dp = p, .dx = dx);
		linear_backward(c, c->s.dh, s.dw, NULL, beta, p, e, s.w, h, h);
		columns_op(c, dx, all, c->s.dh, h, h, 1);
	}
}

/* The product of the copy: in altup[1]; the copy: in s.h */
static void copy_product(const struct chunk *c, const struct copy *s)
{
	columns_op(c, c->s.h, s->h, s->x, s->all, s->h, 0);
	linear_forward(c, c->s.altup[1], c->s.h, s->w, NULL, NULL, s->h, s->h);
}

void altup_end(const struct chunk *c, const struct weights *w, const void *x, void *mean)
{
	int64_t h = c->geo->hidden, all = residual_width(c->geo);
	void *p = c->s.altup[1];
	columns_op(c, mean, h, x, all, h, 0);
	for (int i = 1; i < (int)c->geo->altup; i++) {
		struct copy s = copy_at(c, i, x, NULL, w->t[MT_T_ALTUP_OUT], NULL);
		copy_product(c, &s);
		LAUNCH(c, OP_MAGNITUDE_FORWARD, magnitude, .n = c->n, .h = h, .x = x, .x_ld = all, .p = p, .p_ld = h, .y = p);
		scaled_add(c, mean, p, mean, 1);
	}
	scaled_add(c, mean, mean, NULL, 1.0f / (float)c->geo->altup);
}

void altup_end_backward(const struct chunk *c, const struct weights *w, const struct grads *g, float beta,
	const void *x, void *dmean, void *dx)
{
	int64_t h = c->geo->hidden, all = residual_width(c->geo);
	void *p = c->s.altup[1], *d = c->s.altup[0];
	scaled_add(c, dmean, dmean, NULL, 1.0f / (float)c->geo->altup);
	columns_op(c, dx, all, dmean, h, h, 0);
	for (int i = 1; i < (int)c->geo->altup; i++) {
		struct copy s = copy_at(c, i, x, dx, w->t[MT_T_ALTUP_OUT], matrix_grad(g, MT_T_ALTUP_OUT));
		copy_product(c, &s);
		LAUNCH(c, OP_MAGNITUDE_BACKWARD, magnitude, .n = c->n, .h = h, .x = x, .x_ld = all, .p = p, .p_ld = h,
			.dy = dmean, .dy_ld = h, .dp = p, .dx = dx);
		linear_backward(c, d, s.dw, NULL, beta, p, c->s.h, s.w, h, h);
		columns_op(c, s.dx, all, d, h, h, 0);
	}
}
