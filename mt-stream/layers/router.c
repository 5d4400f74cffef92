/* router.c: which experts a token gets, and with which weights: the router of a mixture of experts.
 *
 *     logits = h w' + b        fp32; with corrections, exact: from w and lo
 *     scores = score(logits)   each token gets the experts with its K best scores, plus corrections
 *
 * Routers that have correction biases (glm4_moe, minimax_m2 and others), and deepseek_v2's, compute in fp32 also in
 * bf16 runs, as transformers does. Released biases are like 6.85 to 7.06, of which bf16 leaves 8 values. So a bf16 run
 * reads the router's weight and the biases as their exact fp32 masters (exact in struct mt_tensor): lo of these few
 * elements comes beside w, OP_JOIN makes fp32 of both in the scratch, and the router's GEMMs, with activations that are
 * not rounded for them, and the gradient of its logits are fp32. transformers keeps both in fp32, but of minimax_m2
 * only if the whole model is: its released files have them in F32, so mt does. Biases are constants: their gradient is
 * 0.
 *
 * The routing lies in the scratch (struct routing), since windows of experts keep it for a pass: its value has no
 * elements.
 */
#include "list.h"

void routing_take(struct routing *x, const struct routing_sizes *z, take_fn *take, void *where)
{
	const struct mt_layer *most = z->most;
	uint64_t n = z->slices ? z->pass : z->slice, slots = n * most->experts_per_token;
	bool exact = z->dtype == MT_BF16 && most->expert_flags & (MT_CORRECTION | MT_EXACT_ROUTER);
	*x = (struct routing){
		.scores = take(where, n * most->experts, sizeof(float)),
		.weight = take(where, slots, sizeof(float)),
		.dweight = z->train ? take(where, slots, sizeof(float)) : NULL,
		.expert = take(where, slots, sizeof(uint32_t)),
		.row = take(where, slots, sizeof(uint32_t)),
		.slot = take(where, slots, sizeof(uint32_t)),
		.first = take(where, (z->slices ? z->slices : 1) * (most->experts + 1), sizeof(uint32_t)),
		.sum = z->slices ? take(where, n * z->hidden, sizeof(float)) : NULL,
		.router = exact ? take(where, most->experts * z->hidden, sizeof(float)) : NULL,
		.correction = exact ? take(where, most->experts, sizeof(float)) : NULL,
	};
}

/* ---- what routers read ---- */

/* Sides of a routing: the gradient of its logits; an exact router's input in fp32, where the device's elements are not,
 * then that input's gradient. Of the shared expert's weight: its gradient | the number of the expert, 0 */
enum { DLOGITS, WIDE, WEIGHT_GRAD = WIDE };

/* Does the router compute in fp32, with its weight and correction as they are in fp32, although the run is bf16? */
static bool is_exact(const struct run *r) { return r->w->lo[MT_T_ROUTER]; }

static void join(const struct run *r, float *dst, enum mt_role_tensor role, int64_t n)
{
	LAUNCH(r->c, OP_JOIN, join, .dst = dst, .w = r->w->t[role], .lo = r->w->lo[role], .n = n);
}

/* What an exact router reads beside its input, into the scratch */
static void router_join(const struct run *r)
{
	const struct routing *x = &r->c->s.routing;
	if (!is_exact(r)) return;
	join(r, x->router, MT_T_ROUTER, r->l->experts * r->c->geo->hidden);
	if (r->w->t[MT_T_CORRECTION]) join(r, x->correction, MT_T_CORRECTION, r->l->experts);
}

static float *wide_of(const struct run *r, const struct node *n)
{
	return n->side[WIDE] ? value_at(r, n->side[WIDE]) : NULL;
}

/* An exact router's input, in fp32 */
static const float *exact_input(const struct run *r, const struct node *n)
{
	float *wide = wide_of(r, n);
	const void *h = value_at(r, n->in[0]);
	if (!wide) return h;
	LAUNCH(r->c, OP_COMBINE, combine, .y = wide, .x = h, .n = r->c->n, .per_token = 1, .h = r->c->geo->hidden,
		.partial = 1);
	return wide;
}

/* ---- logits ---- */

/* (N, out) in fp32 */
static void logits_forward(const struct run *r, const struct node *n, float *logits, int64_t out)
{
	linear_forward_fp32(r->c, logits, value_at(r, n->in[0]), r->w->t[n->w], r->w->t[n->b], r->c->geo->hidden, out);
}

/* The gradients of h, of the weights and of the bias, from that of the logits */
static void logits_backward(struct run *r, const struct node *n, const void *dlogits, int64_t out)
{
	int64_t in = r->c->geo->hidden;
	struct operand dy = operand_of(r->c, OPERAND_DY, dlogits, 0, r->c->n, out),
				   x = operand_of(r->c, OPERAND_X, value_at(r, n->in[0]), 0, r->c->n, in);
	linear_backward_input(r->c, grad_at(r, n->in[0]), (float)again(r, n->in[0]), &dy, r->w->t[n->w], in, out);
	linear_backward_weights(r->c, r->g->t[n->w], r->g->t[n->b], r->beta, &dy, &x, in, out);
}

static void router_forward(const struct run *r, const struct node *n)
{
	const struct routing *x = &r->c->s.routing;
	int64_t in = r->c->geo->hidden, out = r->l->experts;
	if (is_exact(r))
		LAUNCH(r->c, OP_GEMM, gemm, .m = r->c->n, .n = out, .k = in, .a = exact_input(r, n), .lda = in, .b = x->router,
			.ldb = in, .trans_b = 1, .c = x->scores, .ldc = out, .fp32 = 1, .exact = 1);
	else logits_forward(r, n, x->scores, out);
}

/* As logits_backward. The gradient of h is rounded once, when it is added. */
static void exact_backward(struct run *r, const struct node *n, const void *dlogits)
{
	const struct routing *x = &r->c->s.routing;
	int64_t in = r->c->geo->hidden, out = r->l->experts;
	const float *h = exact_input(r, n);
	float *wide = wide_of(r, n);
	void *dh = grad_at(r, n->in[0]);
	int add = again(r, n->in[0]);
	LAUNCH(r->c, OP_GEMM, gemm, .m = out, .n = in, .k = r->c->n, .a = dlogits, .lda = out, .trans_a = 1, .b = h,
		.ldb = in, .c = r->g->t[MT_T_ROUTER], .ldc = in, .beta = r->beta, .fp32 = 1, .exact = 1);
	LAUNCH(r->c, OP_GEMM, gemm, .m = r->c->n, .n = in, .k = out, .a = dlogits, .lda = out, .b = x->router, .ldb = in,
		.c = wide ? wide : dh, .ldc = in, .beta = wide ? 0 : (float)add, .fp32 = 1, .exact = 1);
	if (wide)
		LAUNCH(r->c, OP_COMBINE, combine, .y = dh, .add = add ? dh : NULL, .sum = wide, .x = wide, .n = r->c->n,
			.per_token = 1, .h = in, .from = x->first, .to = x->first);
}

/* ---- the routing ---- */

static struct op route_op(const struct run *r, const struct node *n, enum op_code code)
{
	const struct mt_layer *l = r->l;
	const struct routing *x = &r->c->s.routing;
	return (struct op){code,
		.route = {.n = r->c->n,
			.experts = l->experts,
			.per_token = l->experts_per_token,
			.score = (enum mt_score)l->score,
			.renormalise = !!(l->expert_flags & MT_RENORMALISE),
			.floor = l->weight_floor,
			.eps = l->weight_eps,
			.scale = l->expert_scale,
			.groups = l->groups,
			.groups_used = l->groups_per_token,
			.by_best = !!(l->expert_flags & MT_GROUPS_BY_BEST),
			.correction = is_exact(r) && r->w->t[MT_T_CORRECTION] ? x->correction : r->w->t[MT_T_CORRECTION],
			.scores = x->scores,
			.weight = x->weight,
			.expert = x->expert,
			.slot = x->slot,
			.row = x->row,
			.first = x->first,
			.dweight = x->dweight,
			.dlogits = value_at(r, n->side[DLOGITS]),
			.exact = is_exact(r),
			.factor = r->w->t[MT_T_EXPERT_SCALE]}};
}

/* The auxiliary loss and the z-loss of the logits, which are in scores */
static void balance(const struct run *r, const struct node *n, enum op_code code)
{
	const struct balance *b = &r->c->balance;
	launch(r->c,
		&(struct op){code,
			.balance = {.n = r->c->n,
				.experts = r->l->experts,
				.per_token = r->l->experts_per_token,
				.logits = r->c->s.routing.scores,
				.counted = b->counted,
				.sums = b->sums,
				.aux = b->aux,
				.z = b->z,
				.dlogits = value_at(r, n->side[DLOGITS]),
				.exact = is_exact(r)}});
}

static void route_forward(struct run *r, const struct node *n)
{
	struct op op = route_op(r, n, OP_ROUTE_FORWARD);
	router_join(r);
	router_forward(r, n);
	if (r->c->balance.sums && !r->c->balance.backward) balance(r, n, OP_BALANCE_FORWARD);
	launch(r->c, &op);
}

static void route_backward(struct run *r, const struct node *n)
{
	struct op op = route_op(r, n, OP_ROUTE_BACKWARD);
	op.route.dfactor = r->g->t[MT_T_EXPERT_SCALE];
	op.route.beta = r->beta;
	launch(r->c, &op);
	router_join(r);           /* with windows other slices have been routed since */
	if (r->c->balance.sums) { /* the router's scores have taken the place of its logits */
		router_forward(r, n);
		balance(r, n, OP_BALANCE_BACKWARD);
	}
	if (is_exact(r)) exact_backward(r, n, op.route.dlogits);
	else logits_backward(r, n, op.route.dlogits, r->l->experts);
	if (r->g->t[MT_T_CORRECTION] && r->beta == 0)
		LAUNCH(r->c, OP_ZERO, zero, .dst = r->g->t[MT_T_CORRECTION], .bytes = r->l->experts * sizeof(float));
}

static const struct node_kind route_kind = {.forward = route_forward,
	.multiplies = true,
	.backward = route_backward,
	.reads = 1 << 0 | READS_OUT | READS_SIDES};

int routing_node(struct list *t, int h)
{
	bool exact = t->l->expert_flags & (MT_CORRECTION | MT_EXACT_ROUTER);
	struct node n = {.kind = &route_kind, .in = {h, NONE, NONE}, .w = MT_T_ROUTER, .b = MT_T_ROUTERB};
	n.cols = t->l->experts;
	n.side[DLOGITS] = side(t, t->l->experts, AGAIN);
	if (exact && t->elem != sizeof(float)) n.side[WIDE] = side(t, t->g->hidden, AGAIN);
	return t->routing = node(t, n, 0, AGAIN);
}

/* ---- the shared expert's gate: a router of one expert, whose weight is sigmoid(logit) ---- */

/* Its value is score | weight */
static struct op gate_op(const struct run *r, const struct node *n, enum op_code code)
{
	float *scores = value_at(r, n->out), *d = value_at(r, n->side[WEIGHT_GRAD]);
	int64_t rows = r->c->n;
	return (struct op){code,
		.route = {.n = rows,
			.experts = 1,
			.per_token = 1,
			.score = MT_SIGMOID,
			.scale = 1,
			.scores = scores,
			.weight = scores + rows,
			.expert = (uint32_t *)(d + rows),
			.dweight = d,
			.dlogits = value_at(r, n->side[DLOGITS])}};
}

struct shared_weight shared_weight_at(const struct run *r, int v)
{
	const struct op op = gate_op(r, &r->k.t->node[r->k.t->v[v].made], OP_ROUTE_FORWARD);
	return (struct shared_weight){op.route.weight, (float *)op.route.dweight};
}

static void gate_forward(struct run *r, const struct node *n)
{
	struct op op = gate_op(r, n, OP_ROUTE_FORWARD);
	logits_forward(r, n, op.route.scores, 1);
	launch(r->c, &op);
}

static void gate_backward(struct run *r, const struct node *n)
{
	struct op op = gate_op(r, n, OP_ROUTE_BACKWARD);
	launch(r->c, &op);
	logits_backward(r, n, op.route.dlogits, 1);
}

static const struct node_kind gate_kind = {.forward = gate_forward,
	.multiplies = true,
	.backward = gate_backward,
	.reads = 1 << 0 | READS_OUT | READS_SIDES};

int shared_weight_node(struct list *t, int h)
{
	struct node n = {.kind = &gate_kind, .in = {h, NONE, NONE}, .w = MT_T_SHARED_GATE};
	n.side[DLOGITS] = side(t, 1, AGAIN);
	n.side[WEIGHT_GRAD] = side(t, 2, AGAIN);
	int v = node(t, n, 2, AGAIN);
	t->v[v].fp32 = true;
	return v;
}
