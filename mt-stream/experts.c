/* experts.c: an MLP that is a mixture of experts, of one slice of a chunk: forward and backward.
 *
 *     scores = router(h)         each token gets the experts with its K best scores: its slots
 *     x = rows of h              expert by expert: R = P K rows, one for each slot
 *     y = down(act(gate_up(x)))  each expert on its rows
 *     out = sum over a token's slots of weight y
 *
 * Each matrix of all experts is one grouped GEMM, whose tiles the threads, or a GPU's multiprocessors, share. Experts
 * may come by windows (windows.c), experts e to f - 1 at a time: then routing is kept for all windows, and the sums are
 * added window by window, in fp32. A shared expert gets every token, with weight 1 or sigmoid(h w'). With MT_OWN_NORMS
 * (Gemma 4: an MLP beside the experts), it and the experts have norms of their own before and after:
 *
 *     out = norm(sum) + norm(shared expert (norm(x)))
 *
 * A block keeps gate and up in the order of experts, or nothing: the rest is recomputed from the same input, so that
 * every token gets the same experts.
 */
#include <math.h>
#include <stddef.h>

#include "layers.h"

/* ---- memory ---- */

void experts_take(struct experts_scratch *x, const struct experts_sizes *z, take_fn *take, void *where)
{
	const struct mt_layer *most = z->most;
	uint64_t slots = z->slice * most->experts_per_token, n = z->slices ? z->pass : z->slice;
	uint64_t inner = larger(slots * most->expert_ffn, z->slice * most->shared_ffn), gated = mlp_gated(most) ? 2 : 1;
	bool exact = z->dtype == MT_BF16 && most->expert_flags & (MT_CORRECTION | MT_EXACT_ROUTER);
	*x = (struct experts_scratch){
		.scores = take(where, n * most->experts, sizeof(float)),
		.weight = take(where, n * most->experts_per_token, sizeof(float)),
		.expert = take(where, n * most->experts_per_token, sizeof(uint32_t)),
		.row = take(where, n * most->experts_per_token, sizeof(uint32_t)),
		.slot = take(where, n * most->experts_per_token, sizeof(uint32_t)),
		.first = take(where, (z->slices ? z->slices : 1) * (most->experts + 1), sizeof(uint32_t)),
		.sum = z->slices ? take(where, n * z->hidden, sizeof(float)) : NULL,
		.shared = take(where, 2 * z->slice, sizeof(float)),
		.x = take(where, slots * z->hidden, z->elem),
		.y = take(where, slots * z->hidden, z->elem),
		.gu = take(where, gated * (z->post_norm ? slots * most->expert_ffn + z->slice * most->shared_ffn : inner),
			z->elem),
		.act = take(where, inner, z->elem),
		.router = exact ? take(where, most->experts * z->hidden, sizeof(float)) : NULL,
		.correction = exact ? take(where, most->experts, sizeof(float)) : NULL,
		.wide = exact && z->elem != sizeof(float) ? take(where, z->slice * z->hidden, sizeof(float)) : NULL,
	};
	if (!z->train) return;
	x->dweight = take(where, n * most->experts_per_token, sizeof(float));
	x->dlogits = take(where, z->slice * most->experts, exact ? sizeof(float) : z->elem);
	x->dshared = take(where, z->slice, sizeof(float));
	x->dgate = take(where, z->slice, z->elem);
	x->dact = take(where, inner, z->elem);
}

/* ---- rows ---- */

/* Of all experts */
static int64_t rows_of(const struct slice *p) { return p->c.n * p->l->experts_per_token; }
/* The first of the slice's rows of an array with `width` elements a row */
static void *begin_of(const struct slice *p, const void *rows, int64_t width)
{
	return elements_after(p->c.dev, rows, p->begin * width);
}

/* The shared expert's gate: a router of one expert, whose weight is sigmoid(logit) */
static struct op gate_op(const struct slice *p, enum op_code code)
{
	const struct experts_scratch *x = &p->c.s.x;
	return (struct op){code,
		.route = {.n = p->c.n,
			.experts = 1,
			.per_token = 1,
			.score = MT_SIGMOID,
			.scale = 1,
			.scores = x->shared,
			.weight = x->shared + p->c.n,
			.expert = x->expert,
			.dweight = x->dshared,
			.dlogits = x->dgate}};
}

/* y's rows (R, H) = x's (P, H), token by token of each slot; times its weight */
static void dispatch(const struct slice *p, void *y, const void *x, const float *weight)
{
	LAUNCH(&p->c, OP_DISPATCH, dispatch, .y = begin_of(p, y, p->c.geo->hidden), .x = x,
		.slot = p->c.s.x.slot + p->begin, .rows = p->rows, .per_token = p->l->experts_per_token, .h = p->c.geo->hidden,
		.weight = weight);
}

/* Slots' weights, if they multiply what experts read, or what they give; NULL: they do not */
static bool weighs_input(const struct slice *p) { return p->l->expert_flags & MT_WEIGH_INPUT; }
static const float *input_weight(const struct slice *p) { return weighs_input(p) ? p->c.s.x.weight : NULL; }
static const float *output_weight(const struct slice *p) { return weighs_input(p) ? NULL : p->c.s.x.weight; }

/* ---- the experts ---- */

/* Operations get the window's experts as if there were no others. Rows keep their numbers. */
static int64_t experts(const struct slice *p) { return p->to - p->from; }
static const uint32_t *first(const struct slice *p) { return p->c.s.x.first + p->from; }
static int64_t gated(const struct slice *p, int64_t ffn) { return mlp_gated(p->l) ? 2 * ffn : ffn; }
static enum mt_role_tensor gate_up_role(const struct slice *p) { return mlp_gated(p->l) ? MT_T_XGATE : MT_T_XUP; }
static enum mt_role_tensor gate_up_bias(const struct slice *p) { return mlp_gated(p->l) ? MT_T_XGATEB : MT_T_XUPB; }

/* Of the slice's rows */
static struct operand rows_operand(const struct slice *p, int number, const void *x, int64_t width)
{
	return operand_of(&p->c, number, x, p->begin, p->rows, width);
}

/* y (R, out) = x (R, in) w_e' + b_e */
static void grouped_forward(const struct slice *p, void *y, const void *x, enum mt_role_tensor weight,
	enum mt_role_tensor bias, int64_t in, int64_t out)
{
	int transposed = !!(p->l->expert_flags & MT_TRANSPOSED);
	struct operand a = rows_operand(p, OPERAND_X, x, in);
	LAUNCH(&p->c, OP_GROUPED_GEMM, grouped_gemm, .experts = experts(p), .begin = p->begin, .rows = p->rows, .n = out,
		.k = in, .first = first(p), .a = a.as, .lda = in, .b = p->w->t[weight], .ldb = transposed ? out : in,
		.trans_b = !transposed, .c = y, .ldc = out, .stride = p->w->stride[weight], .bias = p->w->t[bias],
		.bias_stride = p->w->stride[bias]);
}

/* dx (R, in) = dy (R, out) w_e */
static void grouped_backward_input(const struct slice *p, void *dx, const struct operand *dy,
	enum mt_role_tensor weight, int64_t in, int64_t out)
{
	int transposed = !!(p->l->expert_flags & MT_TRANSPOSED);
	LAUNCH(&p->c, OP_GROUPED_GEMM, grouped_gemm, .experts = experts(p), .begin = p->begin, .rows = p->rows, .n = in,
		.k = out, .first = first(p), .a = dy->as, .lda = out, .b = p->w->t[weight], .ldb = transposed ? out : in,
		.trans_b = transposed, .c = dx, .ldc = in, .stride = p->w->stride[weight]);
}

/* dw_e (out, in) += dy' x; db_e (out) += column sums of dy */
static void grouped_backward_weights(const struct slice *p, const struct grads *g, float beta, const struct operand *dy,
	const void *from, enum mt_role_tensor weight, enum mt_role_tensor bias, int64_t in, int64_t out)
{
	int transposed = !!(p->l->expert_flags & MT_TRANSPOSED);
	struct operand x = rows_operand(p, OPERAND_X, from, in);
	LAUNCH(&p->c, OP_GROUPED_GEMM, grouped_gemm, .experts = experts(p), .begin = p->begin, .rows = p->rows,
		.k = transposed ? in : out, .n = transposed ? out : in, .first = first(p), .a = transposed ? x.as : dy->as,
		.lda = transposed ? in : out, .b = transposed ? dy->as : x.as, .ldb = transposed ? out : in, .c = g->t[weight],
		.ldc = transposed ? out : in, .stride = g->stride[weight], .sum = 1, .beta = beta);
	if (g->t[bias])
		LAUNCH(&p->c, OP_GROUPED_BIAS_BACKWARD, grouped_bias_backward, .db = g->t[bias], .stride = g->stride[bias],
			.beta = beta, .dy = dy->x, .first = first(p), .experts = experts(p), .n = out);
}

/* act (rows, ffn) from gate | up; the rows from `begin` on. Backward: also the gradient of gate | up in its place, from
 * dact */
static void activation(const struct slice *p, enum op_code code, void *gu, int64_t begin, int64_t rows, int64_t ffn,
	int interleaved)
{
	const struct experts_scratch *x = &p->c.s.x;
	gu = elements_after(p->c.dev, gu, begin * gated(p, ffn));
	LAUNCH(&p->c, code, activation, .y = elements_after(p->c.dev, x->act, begin * ffn), .gu = gu, .n = rows, .f = ffn,
		.form = (enum mt_ffn)p->l->form, .interleaved = interleaved,
		.dy = elements_after(p->c.dev, x->dact, begin * ffn), .dgu = code == OP_ACTIVATION_BACKWARD ? gu : NULL);
}

static int interleaved(const struct slice *p)
{
	return (p->l->expert_flags & (MT_TRANSPOSED | MT_GATE_FIRST)) == MT_TRANSPOSED;
}

/* ---- forward ---- */

/* y of the slice's rows */
static void rows_forward(const struct slice *p, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	int64_t f = p->l->expert_ffn, hidden = p->c.geo->hidden;
	if (!p->have_gu) {
		dispatch(p, x->x, h, input_weight(p));
		grouped_forward(p, p->gu, x->x, gate_up_role(p), gate_up_bias(p), hidden, gated(p, f));
	}
	activation(p, OP_ACTIVATION_FORWARD, p->gu, p->begin, p->rows, f, interleaved(p));
	grouped_forward(p, x->y, x->act, MT_T_XDOWN, MT_T_XDOWNB, f, hidden);
}

/* y (P, H) = add + each token's sum over its experts' rows of x */
static void combine(const struct slice *p, void *y, const void *add, const void *x, const float *weight)
{
	LAUNCH(&p->c, OP_COMBINE, combine, .y = y, .add = add, .x = x, .weight = weight, .row = p->c.s.x.row, .n = p->c.n,
		.per_token = p->l->experts_per_token, .h = p->c.geo->hidden);
}

/* The same by windows: this window's part of the sums */
static void combine_window(const struct slice *p, const void *x, const float *weight)
{
	float *sum = p->c.s.x.sum;
	LAUNCH(&p->c, OP_COMBINE, combine, .y = sum, .sum = p->from ? sum : NULL, .x = x, .weight = weight,
		.row = p->c.s.x.row, .n = p->c.n, .per_token = p->l->experts_per_token, .h = p->c.geo->hidden, .from = first(p),
		.to = p->c.s.x.first + p->to, .partial = 1);
}

/* The last part: no rows are left, y = add + the sums */
static void combine_end(const struct slice *p, void *y, const void *add)
{
	const uint32_t *none = p->c.s.x.first;
	LAUNCH(&p->c, OP_COMBINE, combine, .y = y, .add = add, .sum = p->c.s.x.sum, .x = p->c.s.x.x, .row = p->c.s.x.row,
		.n = p->c.n, .per_token = p->l->experts_per_token, .h = p->c.geo->hidden, .from = none, .to = none);
}

static enum mt_role_tensor shared_role(const struct slice *p) { return mlp_gated(p->l) ? MT_T_SGATE : MT_T_SUP; }

/* The shared expert's gate | up; where they are kept, or needed together, behind those of the other experts */
static void *shared_gu(const struct slice *p)
{
	return p->kept || p->c.geo->flags & MT_POST_NORM
		? elements_after(p->c.dev, p->gu, rows_of(p) * gated(p, p->l->expert_ffn))
		: p->gu;
}

static void shared_gate_up(const struct slice *p, const void *h)
{
	linear_forward(&p->c, shared_gu(p), h, p->w->t[shared_role(p)], NULL, NULL, p->c.geo->hidden,
		gated(p, p->l->shared_ffn));
}

/* Each token's weight of the shared expert */
static void shared_weight(const struct slice *p, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	struct op gate = gate_op(p, OP_ROUTE_FORWARD);
	if (!p->w->t[MT_T_SHARED_GATE]) return;
	logits_forward(p, x->shared, h, p->w->t[MT_T_SHARED_GATE], NULL, 1);
	launch(&p->c, &gate);
}

/* y = the shared expert's output */
static void shared_output(const struct slice *p, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	int64_t f = p->l->shared_ffn;
	if (!p->have_gu) shared_gate_up(p, h);
	activation(p, OP_ACTIVATION_FORWARD, shared_gu(p), 0, p->c.n, f, 0);
	linear_forward(&p->c, x->y, x->act, p->w->t[MT_T_SDOWN], NULL, NULL, f, p->c.geo->hidden);
}

/* out += what the shared expert adds */
static void shared_forward(const struct slice *p, void *out, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	shared_weight(p, h);
	shared_output(p, h);
	LAUNCH(&p->c, OP_COMBINE, combine, .y = out, .add = out, .x = x->y,
		.weight = p->w->t[MT_T_SHARED_GATE] ? x->shared + p->c.n : NULL, .n = p->c.n, .per_token = 1,
		.h = p->c.geo->hidden);
}

/* ---- inputs and norms ---- */

static bool own_norms(const struct slice *p) { return p->l->expert_flags & MT_OWN_NORMS; }

/* What the shared expert reads, and the experts unless they have a norm of their own; in the scratch's h */
static const void *shared_input(const struct slice *p) { return input_of(&p->c, p->in, p->w, p->norm); }

static const void *experts_input(const struct slice *p)
{
	return own_norms(p) ? input_of(&p->c, p->in, p->w, experts_norm) : shared_input(p);
}

static float router_scale(const struct slice *p) { return 1 / sqrtf((float)p->c.geo->hidden); }

static const void *router_input(const struct slice *p)
{
	if (!own_norms(p)) return shared_input(p);
	norm_forward(&p->c, p->c.s.h, p->in, p->w, router_norm);
	scaled_add(&p->c, p->c.s.h, p->c.s.h, NULL, router_scale(p));
	return p->c.s.h;
}

/* Routes the tokens; returns the experts' input */
static const void *routed(const struct slice *p)
{
	const void *h = router_input(p);
	route(p, h);
	return own_norms(p) ? experts_input(p) : h;
}

/* From the experts' sum to out, with own norms; the shared expert's output is in y then */
static void norms_forward(const struct slice *p, void *out)
{
	const struct experts_scratch *x = &p->c.s.x;
	shared_output(p, shared_input(p));
	norm_forward(&p->c, p->c.s.h, x->y, p->w, shared_post);
	norm_forward(&p->c, out, p->sum, p->w, experts_post);
	scaled_add(&p->c, out, p->c.s.h, out, 1);
}

/* The gradients of both norms' inputs from that of out, in the scratch's dh: there of the experts' sum, in sub of the
 * shared expert's output. */
static void norms_backward(const struct slice *p, const struct grads *g, float beta)
{
	const struct scratch *s = &p->c.s;
	norm_forward(&p->c, s->h, s->x.y, p->w, shared_post);
	norm_backward(&p->c, s->sub, 0, g, beta, s->dh, s->x.y, p->w, shared_post);
	norm_forward(&p->c, s->h, p->sum, p->w, experts_post);
	norm_backward(&p->c, s->dh, 0, g, beta, s->dh, p->sum, p->w, experts_post);
}

/* out = add + what all experts add */
static void all_forward(const struct slice *p, void *out, const void *add)
{
	const void *h = routed(p);
	rows_forward(p, h);
	combine(p, own_norms(p) ? p->sum : out, add, p->c.s.x.y, output_weight(p));
	if (own_norms(p)) norms_forward(p, out);
	else if (p->l->shared_ffn) shared_forward(p, out, h);
}

/* The same where the windows' sums are there */
static void end_forward(const struct slice *p, void *out, const void *add)
{
	combine_end(p, own_norms(p) ? p->sum : out, add);
	if (own_norms(p)) norms_forward(p, out);
	else if (p->l->shared_ffn) shared_forward(p, out, shared_input(p));
}

static void add_forward(const struct slice *p, void *out,
	void (*add_experts)(const struct slice *, void *out, const void *add))
{
	if (!residual_apart(p->c.geo)) {
		add_experts(p, out, p->x2);
		return;
	}
	add_experts(p, p->c.s.sub, NULL);
	residual_add(&p->c, out, p->w, p->post, p->x2);
}

void experts_forward(const struct slice *p, void *out) { add_forward(p, out, all_forward); }

void experts_route(const struct slice *p) { route(p, router_input(p)); }

void experts_window_forward(const struct slice *p)
{
	if (p->rows) rows_forward(p, experts_input(p));
	if (p->rows || p->from == 0) combine_window(p, p->c.s.x.y, output_weight(p));
}

void experts_forward_end(const struct slice *p, void *out) { add_forward(p, out, end_forward); }

/* ---- backward ---- */

/* From the gradients of outputs (y) and of gate | up, and what they were computed from; returns the operand that
 * gate | up's gradient is */
static struct operand weights_backward(const struct slice *p, const struct grads *g, float beta)
{
	const struct experts_scratch *x = &p->c.s.x;
	int64_t f = p->l->expert_ffn, hidden = p->c.geo->hidden;
	struct operand dy = rows_operand(p, OPERAND_DY, x->y, hidden);
	grouped_backward_weights(p, g, beta, &dy, x->act, MT_T_XDOWN, MT_T_XDOWNB, f, hidden);
	dy = rows_operand(p, OPERAND_DY, p->gu, gated(p, f));
	grouped_backward_weights(p, g, beta, &dy, x->x, gate_up_role(p), gate_up_bias(p), hidden, gated(p, f));
	return dy;
}

/* From dsub, the gradient of the experts' sum: the gradients of their weights, of their slots' weights (dweight), and
 * of their inputs (x) */
static void rows_backward(const struct slice *p, const struct grads *g, float beta, const void *dsub, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	int64_t f = p->l->expert_ffn, hidden = p->c.geo->hidden, bias_stride = p->w->stride[MT_T_XDOWNB];
	const void *bias = p->w->t[MT_T_XDOWNB];
	struct operand dy;
	dispatch(p, x->x, h, input_weight(p));
	dispatch(p, x->y, dsub, NULL);
	if (!p->have_gu) grouped_forward(p, p->gu, x->x, gate_up_role(p), gate_up_bias(p), hidden, gated(p, f));
	dy = rows_operand(p, OPERAND_DY, x->y, hidden);
	grouped_backward_input(p, x->dact, &dy, MT_T_XDOWN, f, hidden);
	activation(p, OP_ACTIVATION_BACKWARD, p->gu, p->begin, p->rows, f, interleaved(p));
	if (bias) /* experts have their own numbers here: the first one's would be there */
		bias = (const char *)bias - (size_t)(p->from * bias_stride) * p->c.dev->operand;
	if (!weighs_input(p))
		LAUNCH(&p->c, OP_COMBINE_BACKWARD, combine_backward, .dweight = x->dweight, .weight = x->weight,
			.slot = x->slot + p->begin, .y = begin_of(p, x->act, f), .dy = begin_of(p, x->dact, f),
			.dgu = begin_of(p, p->gu, gated(p, f)), .rows = p->rows, .f = f, .g = gated(p, f), .bias = bias,
			.bias_stride = bias_stride, .h = hidden, .d_o = begin_of(p, x->y, hidden), .expert = x->expert);
	dy = weights_backward(p, g, beta);
	grouped_backward_input(p, x->x, &dy, gate_up_role(p), hidden, gated(p, f));
	if (!weighs_input(p)) return;
	dispatch(p, x->y, h, NULL);
	LAUNCH(&p->c, OP_COMBINE_BACKWARD, combine_backward, .dweight = x->dweight, .weight = x->weight,
		.slot = x->slot + p->begin, .y = begin_of(p, x->y, hidden), .dy = begin_of(p, x->x, hidden), .rows = p->rows,
		.f = hidden);
}

/* The gradients of the shared expert's weights; in the scratch's dh, where dsub may have been, that of its input */
static void shared_backward(const struct slice *p, const struct grads *g, float beta, const void *dsub, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	int64_t f = p->l->shared_ffn, hidden = p->c.geo->hidden;
	void *gu = shared_gu(p);
	struct operand dy = operand_of(&p->c, OPERAND_DY, dsub, 0, p->c.n, hidden), in;

	if (!p->have_gu) shared_gate_up(p, h);
	shared_weight(p, h);
	linear_backward_input(&p->c, x->dact, 0, &dy, p->w->t[MT_T_SDOWN], f, hidden);
	activation(p, OP_ACTIVATION_BACKWARD, gu, 0, p->c.n, f, 0);
	if (p->w->t[MT_T_SHARED_GATE]) {
		struct op gate = gate_op(p, OP_ROUTE_BACKWARD);
		LAUNCH(&p->c, OP_COMBINE_BACKWARD, combine_backward, .dweight = x->dshared, .weight = x->shared + p->c.n,
			.y = x->act, .dy = x->dact, .dgu = gu, .rows = p->c.n, .f = f, .g = gated(p, f));
		launch(&p->c, &gate);
	}
	in = operand_of(&p->c, OPERAND_X, x->act, 0, p->c.n, f);
	linear_backward_weights(&p->c, g->t[MT_T_SDOWN], NULL, beta, &dy, &in, f, hidden);
	dy = operand_of(&p->c, OPERAND_DY, gu, 0, p->c.n, gated(p, f));
	in = operand_of(&p->c, OPERAND_X, h, 0, p->c.n, hidden);
	linear_backward_weights(&p->c, g->t[shared_role(p)], NULL, beta, &dy, &in, hidden, gated(p, f));
	linear_backward_input(&p->c, p->c.s.dh, 0, &dy, p->w->t[shared_role(p)], hidden, gated(p, f));
	if (p->w->t[MT_T_SHARED_GATE])
		logits_backward(p, g->t[MT_T_SHARED_GATE], NULL, beta, x->dgate, h, p->w->t[MT_T_SHARED_GATE], 1);
}

static struct slice backward_of(const struct slice *p)
{
	struct slice b = *p;
	b.have_gu = p->kept;
	return b;
}

/* From dx, the gradient of the block's output, to that of the experts' sum: dx, or the scratch's dh. With own norms
 * also that of the shared expert's output, in sub */
static const void *sum_backward(const struct slice *p, const struct grads *g, float beta, const void *dx)
{
	const void *dsub = residual_sub_backward(&p->c, dx, p->w, g, beta, p->post);
	if (own_norms(p)) norms_backward(p, g, beta);
	return dsub;
}

void experts_route_backward(const struct slice *p, const void *dx)
{
	static const struct grads none;
	struct slice to = backward_of(p);
	experts_route(p);
	if (!p->dsum) return;
	to.c.s.dh = p->dsum;
	if (own_norms(p)) norms_forward(&to, p->c.s.sub);
	sum_backward(&to, &none, 0, dx);
}

void experts_window_backward(const struct slice *p, const struct grads *g, float beta, const void *dx)
{
	struct slice b = backward_of(p);
	if (p->rows) {
		const void *dsub = p->dsum ? p->dsum : residual_sub_backward(&p->c, dx, p->w, g, beta, p->post);
		rows_backward(&b, g, beta, dsub, experts_input(p));
	} else if (beta == 0) {
		weights_backward(p, g, beta);
	}
	if (p->rows || p->from == 0) combine_window(p, p->c.s.x.x, input_weight(p));
}

/* All but the experts, with own norms: the gradients of three inputs, each through its norm. They have the same
 * statistics. */
static void norms_rest_backward(const struct slice *p, const struct grads *g, float beta, bool windows, void *dx)
{
	void *dh = p->c.s.dh;
	experts_input(p);
	route_backward(p, g, beta);
	if (windows) combine_end(p, dh, NULL);
	else combine(p, dh, NULL, p->c.s.x.x, NULL);
	input_backward(&p->c, dx, g, beta, p->in, p->w, experts_norm);
	router_backward(p, g, beta, router_input(p));
	scaled_add(&p->c, dh, dh, NULL, router_scale(p));
	input_backward(&p->c, dx, g, beta, p->in, p->w, router_norm);
	shared_backward(p, g, beta, p->c.s.sub, shared_input(p));
	input_backward(&p->c, dx, g, beta, p->in, p->w, p->norm);
}

/* All but the experts; with windows their inputs' gradients are summed already */
static void rest_backward(const struct slice *p, const struct grads *g, float beta, const void *dsub, const void *h,
	bool windows, void *dx)
{
	const struct experts_scratch *x = &p->c.s.x;
	void *dh = p->c.s.dh;
	if (own_norms(p)) {
		norms_rest_backward(p, g, beta, windows, dx);
		return;
	}
	route_backward(p, g, beta);
	if (p->l->shared_ffn) shared_backward(p, g, beta, dsub, h);
	if (windows) combine_end(p, dh, p->l->shared_ffn ? dh : NULL);
	else combine(p, dh, p->l->shared_ffn ? dh : NULL, x->x, input_weight(p));
	router_backward(p, g, beta, h);
	input_backward(&p->c, dx, g, beta, p->in, p->w, p->norm);
}

void experts_backward(const struct slice *forward, const struct grads *g, float beta, void *dx)
{
	struct slice b = backward_of(forward), *p = &b;
	const void *dsub, *h;
	if (p->c.geo->flags & MT_POST_NORM) {
		all_forward(p, p->c.s.sub, NULL);
		p->have_gu = true;
	}
	dsub = sum_backward(p, g, beta, dx);
	h = routed(p);
	rows_backward(p, g, beta, dsub, h);
	rest_backward(p, g, beta, dsub, h, false, dx);
}

void experts_backward_end(const struct slice *p, const struct grads *g, float beta, void *dx)
{
	struct slice b = backward_of(p);
	const void *dsub;
	if (own_norms(p)) {
		norms_forward(&b, p->c.s.sub);
		b.have_gu = true;
	}
	dsub = sum_backward(p, g, beta, dx);
	rest_backward(&b, g, beta, dsub, shared_input(p), true, dx);
}
