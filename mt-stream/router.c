/* router.c: which experts a token gets, and with which weights: the router of a mixture of experts, of one slice.
 *
 *     logits = h w' + b        fp32; with corrections, exact: from w and lo
 *     scores = score(logits)   each token gets the experts with its K best scores, plus corrections
 *
 * Gemma 4's router has an input of its own: h = norm(x) H^-1/2; and a factor of each expert's weights.
 *
 * Routers that have correction biases (glm4_moe, minimax_m2 and others), and deepseek_v2's, compute in fp32 also in
 * bf16 runs, as transformers does. Released biases are like 6.85 to 7.06, of which bf16 leaves 8 values. So a bf16 run
 * reads the router's weight and the biases as their exact fp32 masters (exact in struct mt_tensor): lo of these few
 * elements comes beside w, OP_JOIN makes fp32 of both in the scratch, and the router's GEMMs, with activations that are
 * not rounded for them, and the gradient of its logits are fp32. transformers keeps both in fp32, but of minimax_m2
 * only if the whole model is: its released files have them in F32, so mt does. Biases are constants: their gradient is
 * 0.
 */
#include "layers.h"

/* Does the router compute in fp32, with its weight and correction as they are in fp32, although the run is bf16? */
static bool is_exact(const struct slice *p) { return p->w->lo[MT_T_ROUTER]; }

static struct op route_op(const struct slice *p, enum op_code code)
{
	const struct mt_layer *l = p->l;
	const struct experts_scratch *x = &p->c.s.x;
	return (struct op){code,
		.route = {.n = p->c.n,
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
			.correction = is_exact(p) && p->w->t[MT_T_CORRECTION] ? x->correction : p->w->t[MT_T_CORRECTION],
			.scores = x->scores,
			.weight = x->weight,
			.expert = x->expert,
			.slot = x->slot,
			.row = x->row,
			.first = x->first,
			.dweight = x->dweight,
			.dlogits = x->dlogits,
			.exact = is_exact(p),
			.factor = p->w->t[MT_T_EXPERT_SCALE]}};
}

void logits_forward(const struct slice *p, float *logits, const void *h, const void *w, const void *b, int64_t out)
{
	linear_forward_fp32(&p->c, logits, h, w, b, p->c.geo->hidden, out);
}

void logits_backward(const struct slice *p, float *dw, float *db, float beta, const void *dlogits, const void *h,
	const void *w, int64_t out)
{
	int64_t in = p->c.geo->hidden;
	struct operand dy = operand_of(&p->c, OPERAND_DY, dlogits, 0, p->c.n, out),
				   x = operand_of(&p->c, OPERAND_X, h, 0, p->c.n, in);
	linear_backward_input(&p->c, p->c.s.dh, p->l->expert_flags & MT_OWN_NORMS ? 0 : 1, &dy, w, in, out);
	linear_backward_weights(&p->c, dw, db, beta, &dy, &x, in, out);
}

/* The auxiliary loss and the z-loss of the logits, which are in scores */
static void balance(const struct slice *p, enum op_code code)
{
	const struct balance *b = &p->c.balance;
	launch(&p->c,
		&(struct op){code,
			.balance = {.n = p->c.n,
				.experts = p->l->experts,
				.per_token = p->l->experts_per_token,
				.logits = p->c.s.x.scores,
				.counted = b->counted,
				.sums = b->sums,
				.aux = b->aux,
				.z = b->z,
				.dlogits = p->c.s.x.dlogits,
				.exact = is_exact(p)}});
}

static void join(const struct slice *p, float *dst, enum mt_role_tensor role, int64_t n)
{
	LAUNCH(&p->c, OP_JOIN, join, .dst = dst, .w = p->w->t[role], .lo = p->w->lo[role], .n = n);
}

/* What an exact router reads beside its input, into the scratch */
static void router_join(const struct slice *p)
{
	const struct experts_scratch *x = &p->c.s.x;
	if (!is_exact(p)) return;
	join(p, x->router, MT_T_ROUTER, p->l->experts * p->c.geo->hidden);
	if (p->w->t[MT_T_CORRECTION]) join(p, x->correction, MT_T_CORRECTION, p->l->experts);
}

/* The input of an exact router in fp32: h itself, or a copy in the scratch */
static const float *router_input(const struct slice *p, const void *h)
{
	float *wide = p->c.s.x.wide;
	if (!wide) return h;
	LAUNCH(&p->c, OP_COMBINE, combine, .y = wide, .x = h, .n = p->c.n, .per_token = 1, .h = p->c.geo->hidden,
		.partial = 1);
	return wide;
}

static void router_forward(const struct slice *p, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	int64_t in = p->c.geo->hidden, out = p->l->experts;
	if (!is_exact(p)) {
		logits_forward(p, x->scores, h, p->w->t[MT_T_ROUTER], p->w->t[MT_T_ROUTERB], out);
		return;
	}
	LAUNCH(&p->c, OP_GEMM, gemm, .m = p->c.n, .n = out, .k = in, .a = router_input(p, h), .lda = in, .b = x->router,
		.ldb = in, .trans_b = 1, .c = x->scores, .ldc = out, .fp32 = 1, .exact = 1);
}

/* As logits_backward. The gradient of h is rounded once, when it is added. */
static void weights_backward(const struct slice *p, const struct grads *g, float beta, const void *h)
{
	const struct experts_scratch *x = &p->c.s.x;
	int64_t in = p->c.geo->hidden, out = p->l->experts;
	const float *wide;
	if (!is_exact(p)) {
		logits_backward(p, g->t[MT_T_ROUTER], g->t[MT_T_ROUTERB], beta, x->dlogits, h, p->w->t[MT_T_ROUTER], out);
		return;
	}
	wide = router_input(p, h);
	LAUNCH(&p->c, OP_GEMM, gemm, .m = out, .n = in, .k = p->c.n, .a = x->dlogits, .lda = out, .trans_a = 1, .b = wide,
		.ldb = in, .c = g->t[MT_T_ROUTER], .ldc = in, .beta = beta, .fp32 = 1, .exact = 1);
	LAUNCH(&p->c, OP_GEMM, gemm, .m = p->c.n, .n = in, .k = out, .a = x->dlogits, .lda = out, .b = x->router, .ldb = in,
		.c = x->wide ? x->wide : p->c.s.dh, .ldc = in, .beta = x->wide ? 0 : 1, .fp32 = 1, .exact = 1);
	if (x->wide)
		LAUNCH(&p->c, OP_COMBINE, combine, .y = p->c.s.dh, .add = p->c.s.dh, .sum = x->wide, .x = x->x, .n = p->c.n,
			.per_token = 1, .h = in, .from = x->first, .to = x->first);
}

void route(const struct slice *p, const void *h)
{
	struct op op = route_op(p, OP_ROUTE_FORWARD);
	router_join(p);
	router_forward(p, h);
	if (p->c.balance.sums && !p->c.balance.backward) balance(p, OP_BALANCE_FORWARD);
	launch(&p->c, &op);
}

void route_backward(const struct slice *p, const struct grads *g, float beta)
{
	struct op op = route_op(p, OP_ROUTE_BACKWARD);
	op.route.dfactor = g->t[MT_T_EXPERT_SCALE];
	op.route.beta = beta;
	launch(&p->c, &op);
}

void router_backward(const struct slice *p, const struct grads *g, float beta, const void *h)
{
	router_join(p);          /* with windows other slices have been routed since */
	if (p->c.balance.sums) { /* the router's scores have taken the place of its logits */
		router_forward(p, h);
		balance(p, OP_BALANCE_BACKWARD);
	}
	weights_backward(p, g, beta, h);
	if (g->t[MT_T_CORRECTION] && beta == 0)
		LAUNCH(&p->c, OP_ZERO, zero, .dst = g->t[MT_T_CORRECTION], .bytes = p->l->experts * sizeof(float));
}
