/* experts.c: an MLP that is a mixture of experts:
 *
 *     scores = router(h)         each token gets the experts with its K best scores: its slots (router.c)
 *     x = rows of h              expert by expert: R = P K rows, one for each slot
 *     y = down(act(gate_up(x)))  each expert on its rows
 *     out = sum over a token's slots of weight y
 *
 * Each matrix of all experts is one grouped GEMM, whose tiles the threads, or a GPU's multiprocessors, share. Experts
 * may come by windows (windows.c), experts e to f - 1 at a time: then routing is kept for all windows, and the sums are
 * added window by window, in fp32. A shared expert gets every token, with weight 1 or sigmoid(h w'). With MT_OWN_NORMS
 * (Gemma 4: an MLP beside the experts), it, the experts and the router have norms of their own:
 *
 *     out = norm(sum) + norm(shared expert (norm(x)))     scores = router(norm(x) H^-1/2)
 *
 * A block keeps gate and up in the order of experts, or nothing: the rest is made again from the same input, so that
 * every token gets the same experts. The weights' gradients are taken where act is there again: down's node does it in
 * its late step.
 */
#include <math.h>

#include "list.h"

/* Slots' weights multiply what experts read, or what they give. NULL: they do not */
static bool weighs_input(const struct run *r) { return r->l->expert_flags & MT_WEIGH_INPUT; }
static const float *input_weight(const struct run *r) { return weighs_input(r) ? r->c->s.routing.weight : NULL; }
static const float *output_weight(const struct run *r) { return weighs_input(r) ? NULL : r->c->s.routing.weight; }

/* ---- rows ---- */

/* y's rows, those of value v, = x's (P, H), token by token of each slot; times its weight */
static void dispatch(const struct run *r, int v, void *y, const void *x, const float *weight)
{
	if (r->rows)
		LAUNCH(r->c, OP_DISPATCH, dispatch, .y = rows_at(r, y, v), .x = x, .slot = r->c->s.routing.slot + r->begin,
			.rows = r->rows, .per_token = r->l->experts_per_token, .h = r->c->geo->hidden, .weight = weight);
}

/* y (P, H) = add + each token's sum over its experts' rows of x. With windows, this one's part of the sums; at the end,
 * when no rows are left, add + the sums */
static void combine(const struct run *r, void *y, const void *add, const void *x, const float *weight)
{
	const struct routing *at = &r->c->s.routing;
	struct combine_args a = {.y = y,
		.add = add,
		.x = x,
		.weight = weight,
		.row = at->row,
		.n = r->c->n,
		.per_token = r->l->experts_per_token,
		.h = r->c->geo->hidden};
	if (r->k.call == WINDOW_FORWARD || r->k.call == WINDOW_BACKWARD) {
		if (!r->rows && r->from) return;
		a.y = at->sum;
		a.add = NULL;
		a.sum = r->from ? at->sum : NULL;
		a.from = at->first + r->from;
		a.to = at->first + r->to;
		a.partial = 1;
	} else if (r->k.call >= ROUTE_FORWARD) {
		a.sum = at->sum;
		a.weight = NULL;
		a.from = a.to = at->first;
	}
	launch(r->c, &(struct op){OP_COMBINE, .combine = a});
}

static void dispatch_forward(struct run *r, const struct node *n)
{
	dispatch(r, n->out, value_at(r, n->out), value_at(r, n->in[0]), input_weight(r));
}

static void dispatch_backward(struct run *r, const struct node *n)
{
	void *dx = grad_at(r, n->out), *x = value_at(r, n->out), *dh = grad_at(r, n->in[0]);
	int64_t h = r->c->geo->hidden;
	if (weighs_input(r) && r->k.call != END_BACKWARD && r->rows) {
		dispatch(r, n->out, x, value_at(r, n->in[0]), NULL);
		LAUNCH(r->c, OP_COMBINE_BACKWARD, combine_backward, .dweight = r->c->s.routing.dweight,
			.weight = r->c->s.routing.weight, .slot = r->c->s.routing.slot + r->begin, .y = rows_at(r, x, n->out),
			.dy = rows_at(r, dx, n->out), .rows = r->rows, .f = h);
	}
	combine(r, dh, again(r, n->in[0]) ? dh : NULL, dx, input_weight(r));
}

static const struct node_kind dispatch_kind = {.forward = dispatch_forward,
	.backward = dispatch_backward,
	.reads = 1 << 1};
/* The rows' memory is needed for those without weights */
static const struct node_kind dispatch_weighed_kind = {.forward = dispatch_forward,
	.backward = dispatch_backward,
	.reads = 1 << 0 | 1 << 1 | READS_OUT};

static void combine_forward(struct run *r, const struct node *n)
{
	combine(r, value_at(r, n->out), n->in[0] == NONE ? NULL : value_at(r, n->in[0]), value_at(r, n->in[1]),
		output_weight(r));
}

/* For weights of 1: what is multiplied by them follows in down's late step */
static void combine_backward(struct run *r, const struct node *n)
{
	dispatch(r, n->in[1], grad_at(r, n->in[1]), grad_at(r, n->out), NULL);
}

static const struct node_kind combine_kind = {.forward = combine_forward,
	.backward = combine_backward,
	.reads = 1 << 2,
	.grad = {GRAD_OF_OUT}};

/* ---- grouped linear layers. Operations get the call's experts as if there were no others. Rows keep their numbers. */

static bool is_transposed(const struct run *r) { return r->l->expert_flags & MT_TRANSPOSED; }
static int64_t width_of(const struct run *r, int v) { return r->k.t->v[v].width; }
static const uint32_t *first(const struct run *r) { return r->c->s.routing.first + r->from; }
static struct operand rows_operand(const struct run *r, int number, const void *x, int v)
{
	return operand_of(r->c, number, x, r->begin, r->rows, width_of(r, v));
}

/* y (R, out) = x (R, in) w_e' + b_e */
static void grouped_forward(struct run *r, const struct node *n)
{
	int64_t in = width_of(r, n->in[0]), out = width_of(r, n->out);
	int transposed = is_transposed(r);
	if (!r->rows) return;
	struct operand a = rows_operand(r, OPERAND_X, value_at(r, n->in[0]), n->in[0]);
	LAUNCH(r->c, OP_GROUPED_GEMM, grouped_gemm, .experts = r->to - r->from, .begin = r->begin, .rows = r->rows,
		.n = out, .k = in, .first = first(r), .a = a.as, .lda = in, .b = r->w->t[n->w], .ldb = transposed ? out : in,
		.trans_b = !transposed, .c = value_at(r, n->out), .ldc = out, .stride = r->w->stride[n->w],
		.bias = r->w->t[n->b], .bias_stride = r->w->stride[n->b]);
}

/* dx (R, in) = dy (R, out) w_e */
static void grouped_input_backward(struct run *r, const struct node *n)
{
	int64_t in = width_of(r, n->in[0]), out = width_of(r, n->out);
	int transposed = is_transposed(r);
	if (r->rows)
		LAUNCH(r->c, OP_GROUPED_GEMM, grouped_gemm, .experts = r->to - r->from, .begin = r->begin, .rows = r->rows,
			.n = in, .k = out, .first = first(r), .a = r->dy.as, .lda = out, .b = r->w->t[n->w],
			.ldb = transposed ? out : in, .trans_b = transposed, .c = grad_at(r, n->in[0]), .ldc = in,
			.stride = r->w->stride[n->w]);
}

/* dw_e (out, in) += dy' x; db_e (out) += column sums of dy. A unit's first chunk begins gradients also of experts
 * without rows. */
static void grouped_weights_backward(struct run *r, const struct node *n)
{
	int64_t in = width_of(r, n->in[0]), out = width_of(r, n->out);
	int transposed = is_transposed(r);
	if (!r->rows && r->beta != 0) return;
	float *dw = matrix_grad(r->g, n->w);
	struct operand x = rows_operand(r, OPERAND_X, value_at(r, n->in[0]), n->in[0]);
	if (dw)
		LAUNCH(r->c, OP_GROUPED_GEMM, grouped_gemm, .experts = r->to - r->from, .begin = r->begin, .rows = r->rows,
			.k = transposed ? in : out, .n = transposed ? out : in, .first = first(r),
			.a = transposed ? x.as : r->dy.as, .lda = transposed ? in : out, .b = transposed ? r->dy.as : x.as,
			.ldb = transposed ? out : in, .c = dw, .ldc = transposed ? out : in, .stride = r->g->stride[n->w], .sum = 1,
			.beta = r->beta);
	if (r->g->t[n->b])
		LAUNCH(r->c, OP_GROUPED_BIAS_BACKWARD, grouped_bias_backward, .db = r->g->t[n->b], .stride = r->g->stride[n->b],
			.beta = r->beta, .dy = r->dy.x, .first = first(r), .experts = r->to - r->from, .n = out);
}

static void grouped_backward(struct run *r, const struct node *n)
{
	r->dy = rows_operand(r, OPERAND_DY, grad_at(r, n->out), n->out);
	grouped_weights_backward(r, n);
	grouped_input_backward(r, n);
}

static void down_backward(struct run *r, const struct node *n)
{
	r->dy = rows_operand(r, OPERAND_DY, grad_at(r, n->out), n->out);
	grouped_input_backward(r, n);
}

/* gate | up, of which down's input was made */
static int gate_up_of(const struct run *r, const struct node *down)
{
	const struct list *t = r->k.t;
	return t->node[t->v[down->in[0]].made].in[0];
}

/* The gradients of slots' weights, and what is multiplied by these; then the weights' gradients */
static void down_late(struct run *r, const struct node *n)
{
	const struct routing *x = &r->c->s.routing;
	int act = n->in[0], y = n->out, gu = gate_up_of(r, n);
	int64_t bias_stride = r->w->stride[n->b];
	const void *bias = r->w->t[n->b];
	if (bias) /* experts have their own numbers here: the first one's would be there */
		bias = (const char *)bias - (size_t)(r->from * bias_stride) * r->c->dev->operand;
	if (r->rows && !weighs_input(r))
		LAUNCH(r->c, OP_COMBINE_BACKWARD, combine_backward, .dweight = x->dweight, .weight = x->weight,
			.slot = x->slot + r->begin, .y = rows_at(r, value_at(r, act), act), .dy = rows_at(r, grad_at(r, act), act),
			.dgu = rows_at(r, grad_at(r, gu), gu), .rows = r->rows, .f = width_of(r, act), .g = width_of(r, gu),
			.bias = bias, .bias_stride = bias_stride, .h = width_of(r, y), .d_o = rows_at(r, grad_at(r, y), y),
			.expert = x->expert);
	r->dy = rows_operand(r, OPERAND_DY, grad_at(r, y), y);
	grouped_weights_backward(r, n);
}

static const struct node_kind gate_up_kind = {.forward = grouped_forward,
	.multiplies = true,
	.backward = grouped_backward,
	.reads = 1 << 0,
	.grad = {GRAD_OVER_INPUT}};
/* Its input is read once more */
static const struct node_kind gate_up_apart_kind = {.forward = grouped_forward,
	.multiplies = true,
	.backward = grouped_backward,
	.reads = 1 << 0};
static const struct node_kind down_kind = {.forward = grouped_forward,
	.multiplies = true,
	.backward = down_backward,
	.late = down_late,
	.reads = 1 << 2};

static int rows_node(struct list *t, struct node n, int64_t width, int keep)
{
	int v = node(t, n, width, keep);
	t->v[v].slots = (int)t->l->experts_per_token;
	return v;
}

/* residual + the experts' sum, of rows of h */
static int rows_nodes(struct list *t, int h, int residual)
{
	const struct mt_layer *l = t->l;
	bool gated = mlp_gated(l), weighed = l->expert_flags & MT_WEIGH_INPUT;
	int64_t hidden = t->g->hidden;
	t->dispatch = t->nodes;
	int x = rows_node(t,
		(struct node){.kind = weighed ? &dispatch_weighed_kind : &dispatch_kind, .in = {h, t->routing, NONE}}, hidden,
		AGAIN);
	int gu = rows_node(t,
		(struct node){.kind = weighed ? &gate_up_apart_kind : &gate_up_kind,
			.in = {x, NONE, NONE},
			.w = gated ? MT_T_XGATE : MT_T_XUP,
			.b = gated ? MT_T_XGATEB : MT_T_XUPB},
		gate_up_width(l, l->expert_ffn), KEEP_ALL);
	int y = rows_node(t,
		(struct node){.kind = &down_kind,
			.in = {inner(t, gu, l->expert_ffn, (struct inner){.form = (enum mt_ffn)l->form}), NONE, t->routing},
			.w = MT_T_XDOWN,
			.b = MT_T_XDOWNB},
		hidden, AGAIN);
	t->combine = t->nodes;
	return node(t, (struct node){.kind = &combine_kind, .in = {residual, y, t->routing}}, hidden, AGAIN);
}

/* ---- the shared expert ---- */

static void shared_down_late(struct run *r, const struct node *n)
{
	struct shared_weight s = shared_weight_at(r, n->in[2]);
	int act = n->in[0], gu = gate_up_of(r, n);
	LAUNCH(r->c, OP_COMBINE_BACKWARD, combine_backward, .dweight = s.dweight, .weight = s.weight, .y = value_at(r, act),
		.dy = grad_at(r, act), .dgu = grad_at(r, gu), .rows = r->c->n, .f = width_of(r, act), .g = width_of(r, gu));
	linear_weights_backward(r, n);
}

static const struct node_kind shared_down_kind = {.forward = linear_node_forward,
	.multiplies = true,
	.backward = linear_input_backward,
	.late = shared_down_late,
	.reads = 1 << 2,
	.grad = {GRAD_OWN}};

static void shared_sum_forward(struct run *r, const struct node *n)
{
	const float *weight = n->in[2] == NONE ? NULL : shared_weight_at(r, n->in[2]).weight;
	void *y = value_at(r, n->out);
	LAUNCH(r->c, OP_COMBINE, combine, .y = y, .add = y, .x = value_at(r, n->in[1]), .weight = weight, .n = r->c->n,
		.per_token = 1, .h = r->c->geo->hidden);
}

static const struct node_kind shared_sum_kind = {.forward = shared_sum_forward, .grad = {GRAD_OF_OUT, GRAD_OF_OUT}};

/* What the shared expert gives; `weight`: by which it is multiplied, or NONE */
static int shared_nodes(struct list *t, int h, int weight)
{
	const struct mt_layer *l = t->l;
	bool gated = mlp_gated(l);
	int64_t wide = gate_up_width(l, l->shared_ffn);
	int gu = linear(t, h, gated ? MT_T_SGATE : MT_T_SUP, 0, 0, wide, wide, KEEP_ALL);
	int act = inner(t, gu, l->shared_ffn, (struct inner){.form = (enum mt_ffn)l->form});
	if (weight == NONE) return linear(t, act, MT_T_SDOWN, 0, 0, t->g->hidden, t->g->hidden, AGAIN);
	struct node down = {.kind = &shared_down_kind, .in = {act, NONE, weight}, .w = MT_T_SDOWN, .cols = t->g->hidden};
	return node(t, down, t->g->hidden, AGAIN);
}

/* sum + what the shared expert gives, in its place */
static int shared_sum(struct list *t, int h, int sum)
{
	int weight = t->l->expert_flags & MT_SHARED_GATE ? shared_weight_node(t, h) : NONE;
	int y = shared_nodes(t, h, weight);
	return node_over(t, (struct node){.kind = &shared_sum_kind, .in = {sum, y, weight}});
}

/* ---- all of it ---- */

/* The last one forward is the first one backward to add to the gradient of x */
static int own_norms_nodes(struct list *t, int x)
{
	int shared = shared_nodes(t, norm(t, x, norm2), NONE);
	int in = scaled(t, norm(t, x, router_norm), 1 / sqrtf((float)t->g->hidden));
	routing_node(t, in);
	t->sum = rows_nodes(t, norm(t, x, experts_norm), NONE);
	int y = norm(t, shared, shared_post);
	return sum_node(t, norm(t, t->sum, experts_post), y, 1);
}

static int plain_nodes(struct list *t, int x, int residual)
{
	int h = pre_norm(t, x, t->g->flags & MT_ONE_NORM ? norm1 : norm2);
	routing_node(t, h);
	int sum = rows_nodes(t, h, residual);
	if (t->l->shared_ffn) sum = shared_sum(t, h, sum);
	if (t->g->flags & MT_POST_NORM) t->sum = sum;
	return sum;
}

int experts_nodes(struct list *t, int x, int residual)
{
	bool own = t->l->expert_flags & MT_OWN_NORMS, apart = own || residual_apart(t->g);
	int sum = own ? own_norms_nodes(t, x) : plain_nodes(t, x, apart ? NONE : residual);
	return apart ? residual_sum(t, residual, sum, post2, t->g->mlp_scale) : sum;
}
