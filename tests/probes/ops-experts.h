/* ops-experts.h: the cases of ops.c for mixtures of experts. Included by ops.c.
 *
 * Whatever is not a number within rounding (which experts, which rows, what must stay as it is) is counted as mistakes,
 * of which a case wants none.
 */

/* What a case wants of its mistakes: none, whatever the bound */
static double no_mistakes[1];

/* Count what is not NaN between used places, and make it 0. x (rows, pitch), of which `used` places a row are used */
static int untouched(float *x, int64_t rows, int64_t pitch, int64_t used)
{
	int wrong = 0;
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = used; i < pitch; i++) {
			wrong += !isnan(x[r * pitch + i]);
			x[r * pitch + i] = 0;
		}
	return wrong;
}

/* ---- routing ---- */

enum logits { RANDOM, TIED, NOT_NUMBERS, TO_ONE };

struct routed {
	struct route_args a; /* without pointers, but for correction and factor */
	enum logits kind;
	const float *logits, *dweight;
	const uint32_t *chosen; /* by definition */
	const float *dfactor;   /* which the gradient is added to */
};

static double score_of(const struct route_args *a, const float *logit, int64_t e)
{
	double most = -INFINITY, sum = 0;
	if (a->score == MT_SIGMOID) return 1 / (1 + exp(-(double)logit[e]));
	if (a->score >= MT_TOP_SOFTMAX) return (double)logit[e];
	for (int64_t i = 0; i < a->experts; i++) most = fmax(most, (double)logit[i]);
	for (int64_t i = 0; i < a->experts; i++) sum += exp((double)logit[i] - most);
	return exp((double)logit[e] - most) / sum;
}

/* Not a number is the worst; of several the one with the highest number is taken first */
static int is_better(float a, int64_t i, float b, int64_t j)
{
	if (isnan(a) || isnan(b)) return isnan(b) && (!isnan(a) || i > j);
	return a > b || (a == b && i < j);
}

static void choose_best(const float *score, int64_t n, uint32_t *chosen, int64_t wanted)
{
	char taken[1024] = {0};
	for (int64_t k = 0; k < wanted; k++) {
		int64_t at = -1;
		for (int64_t i = 0; i < n; i++)
			if (!taken[i] && (at < 0 || is_better(score[i], i, score[at], at))) at = i;
		taken[at] = 1;
		chosen[k] = (uint32_t)at;
	}
}

static void route_defined(const struct route_args *a, const float *logit, uint32_t *chosen)
{
	float score[1024], of_group[1024];
	int64_t each = a->experts / (a->groups > 1 ? a->groups : 1);
	uint32_t two[2], groups[1024];
	for (int64_t e = 0; e < a->experts; e++) {
		float correction = a->correction ? ((const float *)a->correction)[e] : 0;
		score[e] = (float)score_of(a, logit, e) + correction;
	}
	for (int64_t g = 0; a->groups > 1 && g < a->groups; g++) {
		int both = each > 1 && !a->by_best;
		choose_best(score + g * each, each, two, both ? 2 : 1);
		of_group[g] = score[g * each + two[0]] + (both ? score[g * each + two[1]] : 0);
	}
	if (a->groups > 1) {
		choose_best(of_group, a->groups, groups, a->groups_used);
		for (int64_t e = 0; e < a->experts; e++) {
			int keeps = 0;
			for (int64_t i = 0; i < a->groups_used; i++) keeps |= groups[i] == e / each;
			if (!keeps) score[e] = -INFINITY;
		}
	}
	choose_best(score, a->experts, chosen, a->per_token);
}

/* The weights of logits x, by the experts chosen */
static void weights_defined(const struct route_args *a, const double *x, const uint32_t *chosen, double *weight)
{
	double most = -INFINITY, all = 0, sum = 0, p[64];
	for (int64_t e = 0; e < a->experts; e++) most = fmax(most, x[e]);
	for (int64_t e = 0; e < a->experts; e++) all += exp(x[e] - most);
	for (int64_t k = 0; k < a->per_token; k++) {
		p[k] = a->score == MT_SIGMOID || a->score == MT_TOP_SIGMOID ? 1 / (1 + exp(-x[chosen[k]]))
																	: exp(x[chosen[k]] - most) / all;
		sum += p[k];
	}
	if (a->score != MT_TOP_SOFTMAX) sum = a->renormalise ? fmax(sum, (double)a->floor) + (double)a->eps : 1;
	for (int64_t k = 0; k < a->per_token; k++) weight[k] = p[k] / sum * (double)a->scale;
	for (int64_t k = 0; k < a->per_token && a->factor; k++) weight[k] *= (double)((const float *)a->factor)[chosen[k]];
}

struct routed_token {
	const struct route_args *a;
	double logit[1024];
	const uint32_t *chosen;
	const float *dweight;
};

/* The sum of weight times dweight */
static double weights_sum(const void *ctx)
{
	const struct routed_token *t = ctx;
	double weight[64], sum = 0;
	weights_defined(t->a, t->logit, t->chosen, weight);
	for (int64_t k = 0; k < t->a->per_token; k++) sum += weight[k] * (double)t->dweight[k];
	return sum;
}

/* Slots are sorted by expert, those of an expert by number; rows are their places */
static int sorted_wrongly(const struct route_args *a)
{
	int64_t slots = a->n * a->per_token, r = 0;
	int wrong = a->first[a->experts] != slots;
	for (int64_t e = 0; e < a->experts; e++) {
		wrong += a->first[e] != r;
		for (int64_t s = 0; s < slots; s++)
			if (a->expert[s] == e) {
				wrong += a->row[s] != r || a->slot[r] != s;
				r++;
			}
	}
	return wrong;
}

static void run_routed(void *ctx, struct pool *pool, float **out)
{
	struct routed *s = ctx;
	struct route_args a = s->a;
	int64_t slots = a.n * a.per_token;
	uint32_t *where = keep((size_t)(3 * slots + a.experts + 1) * sizeof *where);
	a.scores = again(s->logits, a.n * a.experts);
	a.weight = out[1];
	a.expert = where;
	a.row = where + slots;
	a.slot = where + 2 * slots;
	a.first = where + 3 * slots;
	a.dweight = again(s->dweight, slots);
	a.dlogits = out[2];
	a.dfactor = a.factor ? memcpy(out[3], s->dfactor, (size_t)a.experts * sizeof(float)) : NULL;
	op_route_forward(pool, &a);
	out[0][0] = (float)sorted_wrongly(&a);
	for (int64_t i = 0; i < slots; i++) out[0][0] += a.expert[i] != s->chosen[i];
	if (s->kind == NOT_NUMBERS) {
		memset(out[1], 0, (size_t)slots * sizeof(float));
		memset(out[2], 0, (size_t)(a.n * a.experts) * sizeof(float));
		return;
	}
	op_route_backward(pool, &a);
}

static float *logits_of(enum logits kind, int64_t n, int64_t experts)
{
	float *x = random_floats(n * experts);
	for (int64_t i = 0; i < n * experts; i++) {
		if (kind == TIED) x[i] = x[i] > 1 ? 1 : 0;
		if (kind == NOT_NUMBERS && i / experts % 3 != 1 && x[i] > 0.7f) x[i] = NAN;
		if (kind == NOT_NUMBERS && i / experts % 7 == 6) x[i] = NAN;
		if (kind == TO_ONE && i % experts == experts / 2) x[i] = 4;
		if (kind == TO_ONE && i % experts == experts / 3) x[i] = -4; /* gets none, if a token chooses few */
	}
	return x;
}

/* floor: of a sum that it exceeds, the gradient is another one. factors: of experts, whose gradients are wanted */
static void test_expert_factors(struct route_args a, enum logits kind, int corrected, int factors)
{
	static const char *const scores[] = {"softmax", "sigmoid", "softmax of the best", "sigmoid of the best"};
	static const char *const kinds[] = {"", ", ties", ", not numbers", ", all to one"};
	float *correction = corrected ? random_operand(a.experts, 1) : NULL;
	uint32_t *chosen = keep((size_t)(a.n * a.per_token) * sizeof *chosen);
	float *factor = factors ? random_operand(a.experts, 1) : NULL;
	a.correction = correction;
	a.factor = factor;
	a.scale = 1.5f;
	struct routed s = {a, kind, logits_of(kind, a.n, a.experts), random_floats(a.n * a.per_token), chosen,
		random_floats(a.experts)};
	double *weight = doubles(a.n * a.per_token), *dlogits = doubles(a.n * a.experts), *dfactor = doubles(a.experts);
	for (int64_t e = 0; e < a.experts; e++) dfactor[e] = (double)(a.beta * s.dfactor[e]);
	for (int64_t t = 0; t < a.n; t++) {
		const float *logit = s.logits + t * a.experts;
		uint32_t *mine = chosen + t * a.per_token;
		struct routed_token token = {.a = &a, .chosen = mine, .dweight = s.dweight + t * a.per_token};
		route_defined(&a, logit, mine);
		for (int64_t e = 0; e < a.experts; e++) token.logit[e] = (double)logit[e];
		if (kind == NOT_NUMBERS) continue;
		weights_defined(&a, token.logit, mine, weight + t * a.per_token);
		for (int64_t k = 0; k < a.per_token && a.factor; k++)
			dfactor[mine[k]] += (double)token.dweight[k] * weight[t * a.per_token + k] / (double)factor[mine[k]];
		for (int64_t e = 0; e < a.experts; e++)
			dlogits[t * a.experts + e] = difference(token.logit + e, 1e-5, weights_sum, &token);
	}
	char name[192];
	snprintf(name, sizeof name, "routing %lld tokens to %lld of %lld experts, %s%s%s%s%s%s%s%s%s", (long long)a.n,
		(long long)a.per_token, (long long)a.experts, scores[a.score], yes(a.renormalise, ", divided by their sum"),
		yes(a.eps > 0, " and a number"), yes(a.floor > 1e-3f, ", which is less than the floor"),
		yes(corrected, ", corrected"), yes(a.groups > 1, ", of groups"), yes(a.by_best, " by their best"),
		yes(a.factor != NULL, ", by factors"), kinds[kind]);
	check(name,
		(struct part[]){{"experts and rows", NULL, no_mistakes, 1, 0},
			{"weights", NULL, weight, a.n * a.per_token, 1e-6}, {"dlogits", NULL, dlogits, a.n * a.experts, 1e-6},
			{"dfactor", NULL, dfactor, a.experts, 1e-6}},
		a.factor ? 4 : 3, run_routed, &s);
}

static void test_routed(struct route_args a, enum logits kind, int corrected)
{
	test_expert_factors(a, kind, corrected, 0);
}

static void test_routing(void)
{
	struct route_args a = {.n = 37, .experts = 6, .per_token = 2, .floor = 1e-20f, .groups = 1, .groups_used = 1};
	for (enum logits kind = RANDOM; kind <= TO_ONE; kind++)
		for (int form = 0; form < 6; form++) {
			a.score = form < 4 ? (enum mt_score)(form / 2) : form == 4 ? MT_TOP_SOFTMAX : MT_TOP_SIGMOID;
			a.renormalise = form < 4 && form % 2;
			test_routed(a, kind, a.score == MT_SIGMOID);
		}
	a.score = MT_SIGMOID;
	a.renormalise = 1;
	a.floor = 10;
	test_routed(a, RANDOM, 0);
	a.eps = 0.5f;
	test_routed(a, RANDOM, 0);
	a.floor = 0;
	test_routed(a, RANDOM, 1);
	a.eps = 0;
	a.floor = 1e-20f;
	a.per_token = 1;
	test_routed(a, TO_ONE, 0);
	test_routed((struct route_args){.n = 3, .experts = 1, .per_token = 1, .score = MT_SIGMOID}, RANDOM, 0);
	a = (struct route_args){.n = 70, .experts = 48, .per_token = 5, .score = MT_SIGMOID, .groups = 8, .groups_used = 3};
	for (enum logits kind = RANDOM; kind < TO_ONE; kind++) test_routed(a, kind, 1);
	a.by_best = 1;
	a.score = MT_SOFTMAX;
	for (enum logits kind = RANDOM; kind < TO_ONE; kind++) test_routed(a, kind, 0);
	a.by_best = 0;
	a.score = MT_SIGMOID;
	a.groups = a.experts;
	a.groups_used = 40; /* groups of one */
	test_routed(a, RANDOM, 0);
	a = (struct route_args){.n = 411, .experts = 70, .per_token = 3, .score = MT_SOFTMAX, .renormalise = 1};
	test_routed(a, RANDOM, 0);
	test_routed(a, TIED, 1);
	test_expert_factors(a, RANDOM, 0, 1);
	a.beta = 1;
	test_expert_factors(a, RANDOM, 0, 1);
	a = (struct route_args){.n = 20, .experts = 300, .per_token = 40, .score = MT_TOP_SOFTMAX};
	test_routed(a, RANDOM, 0);
}

/* ---- grouped GEMMs ---- */

enum { BEFORE = 3, MOST_GROUPS = 40 }; /* rows before the first expert's, as a window of experts has them */

struct grouped_case {
	struct grouped_gemm_args a; /* forward: without pointers */
	const uint32_t *first;
	const float *x, *w, *bias, *dy, *dw; /* x (rows, k), w (E, stride), dy (rows, n) */
};

/* w's element of output j and input i */
static int64_t weight_at(const struct grouped_gemm_args *a, int64_t e, int64_t i, int64_t j)
{
	return e * a->stride + (a->trans_b ? j * a->ldb + i : i * a->ldb + j);
}

/* Rows of no expert, and what lies between experts, must stay as it is */
static int outside(float *y, float *dx, float *dw[2], const struct grouped_gemm_args *a)
{
	return untouched(y, BEFORE, a->n, 0) + untouched(dx, BEFORE, a->k, 0) +
		untouched(dw[0], a->experts, a->stride, a->n * a->k);
}

/* An expert without rows has a gradient of 0, which changes nothing that it is added to: dw: written, added */
static int without_rows(const struct grouped_case *s, float *const dw[2])
{
	int wrong = 0;
	for (int64_t i = 0; i < s->a.experts * s->a.stride; i++) {
		int64_t e = i / s->a.stride;
		if (s->first[e] == s->first[e + 1]) wrong += dw[0][i] != 0 || dw[1][i] != s->dw[i];
	}
	return wrong;
}

static void run_grouped(void *ctx, struct pool *pool, float **out)
{
	struct grouped_case *s = ctx;
	struct grouped_gemm_args a = s->a, g = s->a, dx = s->a;
	int64_t all = a.experts * a.stride;
	a.first = g.first = dx.first = s->first;
	g.a = a.trans_b ? again(s->dy, a.rows * a.n) : again(s->x, a.rows * a.k);
	g.b = a.trans_b ? again(s->x, a.rows * a.k) : again(s->dy, a.rows * a.n);
	g.lda = g.k = a.trans_b ? a.n : a.k;
	g.ldb = g.ldc = g.n = a.trans_b ? a.k : a.n;
	dx.a = a.trans_b ? g.a : g.b;
	a.a = a.trans_b ? g.b : g.a;
	a.b = dx.b = again(s->w, all);
	a.bias = s->bias ? again(s->bias, a.experts * a.bias_stride) : NULL;
	a.c = out[1];
	op_grouped_gemm(pool, &a);
	dx.lda = dx.k = a.n;
	dx.ldc = dx.n = a.k;
	dx.trans_b = !a.trans_b;
	dx.c = out[2];
	op_grouped_gemm(pool, &dx);
	g.sum = 1;
	g.trans_b = 0;
	g.c = out[3];
	op_grouped_gemm(pool, &g);
	memcpy(out[4], s->dw, (size_t)all * sizeof(float));
	g.c = out[4];
	g.beta = 1;
	op_grouped_gemm(pool, &g);
	struct grouped_bias_backward_args b = {.db = out[5],
		.stride = a.n + 1,
		.first = s->first,
		.experts = a.experts,
		.n = a.n};
	b.dy = dx.a;
	op_grouped_bias_backward(pool, &b);
	memcpy(out[6], s->dw, (size_t)(a.experts * b.stride) * sizeof(float));
	b.db = out[6];
	b.beta = 1;
	op_grouped_bias_backward(pool, &b);
	out[0][0] = (float)(outside(out[1], out[2], out + 3, &a) + untouched(out[5], a.experts, b.stride, a.n));
	out[0][0] += (float)without_rows(s, out + 3);
}

/* All that run_grouped computes */
static void grouped_defined(const struct grouped_case *s, double *y, double *dx, double *dw, double *db)
{
	const struct grouped_gemm_args *a = &s->a;
	for (int64_t e = 0; e < a->experts; e++)
		for (int64_t r = s->first[e]; r < s->first[e + 1]; r++)
			for (int64_t j = 0; j < a->n; j++) {
				double sum = s->bias ? (double)s->bias[e * a->bias_stride + j] : 0, d = (double)s->dy[r * a->n + j];
				for (int64_t i = 0; i < a->k; i++) {
					double x = (double)s->x[r * a->k + i], w = (double)s->w[weight_at(a, e, i, j)];
					sum += x * w;
					dx[r * a->k + i] += d * w;
					dw[weight_at(a, e, i, j)] += d * x;
				}
				y[r * a->n + j] = sum;
				db[e * (a->n + 1) + j] += d;
			}
}

/* rows: of each expert, then a negative number */
static void test_grouped(const int *rows, int64_t n, int64_t k, int trans_b, int gap, int biased)
{
	uint32_t *first = keep((MOST_GROUPS + 1) * sizeof *first);
	struct grouped_case s = {.first = first};
	int64_t experts = 0;
	for (first[0] = BEFORE; rows[experts] >= 0; experts++)
		first[experts + 1] = first[experts] + (uint32_t)rows[experts];
	int64_t all = first[experts], stride = n * k + gap, of_bias = experts * (n + 1);
	s.a = (struct grouped_gemm_args){.experts = experts, .rows = all, .n = n, .k = k, .lda = k, .ldc = n};
	s.a.ldb = trans_b ? k : n;
	s.a.trans_b = trans_b;
	s.a.stride = stride;
	s.a.bias_stride = n + gap;
	s.x = random_floats(all * k);
	s.w = random_floats(experts * stride);
	s.dy = random_floats(all * n);
	s.bias = biased ? random_floats(experts * s.a.bias_stride) : NULL;
	float *dw = random_floats(experts * stride + of_bias);
	s.dw = dw;
	double *y = doubles(all * n), *dx = doubles(all * k), *d = doubles(experts * stride), *db = doubles(of_bias);
	double *d2 = doubles(experts * stride), *db2 = doubles(of_bias);
	grouped_defined(&s, y, dx, d, db);
	for (int64_t i = 0; i < experts * stride; i++) d2[i] = d[i] + (double)dw[i];
	for (int64_t i = 0; i < of_bias; i++) db2[i] = db[i] + (double)dw[i];
	char name[100];
	snprintf(name, sizeof name, "grouped GEMM of %lld experts, %lld rows, %lld x %lld%s%s%s", (long long)experts,
		(long long)all - BEFORE, (long long)n, (long long)k, yes(trans_b, ", b transposed"), yes(gap, ", apart"),
		yes(biased, ", bias"));
	check(name,
		(struct part[]){{"what is no result's", NULL, no_mistakes, 1, 0}, {"y", NULL, y, all * n, 1e-6},
			{"dx", NULL, dx, all * k, 1e-6}, {"dw", NULL, d, experts * stride, 1e-6},
			{"dw added", NULL, d2, experts * stride, 1e-6}, {"db", NULL, db, of_bias, 1e-6},
			{"db added", NULL, db2, of_bias, 1e-6}},
		7, run_grouped, &s);
}

static void test_grouped_gemms(void)
{
	static const int few[] = {0, 5, 1, 0, 17, -1}, one[] = {0, 0, 40, -1}, none[] = {0, 0, 0, -1};
	static const int uneven[] = {127, 0, 128, 1, 129, 33, -1},
					 lines[] = {1, 2, 0, 1, 3, 1, 0, 0, 2, 1, 1, 4, 1, 1, 2, 1, 0, 1, 1, 2, 1, 1, 1, 0, 1, 1, 1, 5, 1,
						 1, 1, 2, 1, 0, 1, 1, 3, -1};
	for (int form = 0; form < 8; form++) test_grouped(few, 19, 7, form & 1, form & 2 ? 5 : 0, form >> 2);
	for (int trans_b = 0; trans_b < 2; trans_b++) {
		test_grouped(few, 40, 72, trans_b, 8, 1);
		test_grouped(one, 64, 32, trans_b, 0, 0);
		test_grouped(uneven, 136, 96, trans_b, 0, 1);
		test_grouped(lines, 33, 24, trans_b, 0, 1);
	}
	test_grouped(none, 16, 8, 0, 8, 1);
	test_grouped(uneven, 24, 264, 1, 8, 0);
	test_grouped(one, 300, 130, 0, 0, 1);
	test_grouped(uneven, 328, 200, 1, 0, 1);
	test_grouped(uneven, 331, 67, 0, 3, 0);
}

/* ---- rows to experts and back ---- */

struct combined {
	int64_t n, per_token, h, experts;
	int weighted, by_row, added;
	const uint32_t *row, *slot, *first;
	const float *x, *tokens, *weight;
};

/* Experts in two or three windows, one after another */
static void combine_windows(struct combine_args a, struct pool *pool, const struct combined *s, float *y)
{
	int64_t windows = s->experts < 3 ? s->experts : 3, from = 0;
	const void *add = a.add;
	float *sum = keep((size_t)(a.n * a.h) * sizeof *sum);
	for (int64_t i = 1; i <= windows; i++) {
		int64_t to = s->experts * i / windows;
		a.partial = i < windows;
		a.y = a.partial ? sum : y;
		a.add = a.partial ? NULL : add;
		a.sum = i > 1 ? sum : NULL;
		a.from = s->first + from;
		a.to = s->first + to;
		op_combine(pool, &a);
		from = to;
	}
}

static void run_combined(void *ctx, struct pool *pool, float **out)
{
	struct combined *s = ctx;
	int64_t rows = s->n * s->per_token, elems = s->n * s->h;
	const float *tokens = again(s->tokens, elems);
	struct dispatch_args d = {out[1], tokens, s->slot, rows, s->per_token, s->h, NULL};
	d.weight = s->weighted ? again(s->weight, rows) : NULL;
	struct combine_args a = {.x = again(s->x, rows * s->h), .n = s->n, .per_token = s->per_token, .h = s->h};
	a.weight = s->weighted ? again(s->weight, rows) : NULL;
	a.row = s->by_row ? s->row : NULL;
	a.add = s->added ? tokens : NULL;
	op_dispatch(pool, &d);
	a.y = out[2];
	op_combine(pool, &a);
	memcpy(out[3], tokens, (size_t)elems * sizeof(float));
	out[0][0] = 0;
	if (s->by_row) {
		float *y = keep((size_t)elems * sizeof *y);
		combine_windows(a, pool, s, y);
		out[0][0] = memcmp(y, out[2], (size_t)elems * sizeof *y) != 0;
	}
	a.y = out[3]; /* in place */
	a.add = out[3];
	op_combine(pool, &a);
}

/* Each token's experts are drawn; rows as routing has them */
static void draw_rows(struct combined *s)
{
	int64_t slots = s->n * s->per_token, r = 0;
	uint32_t *row = keep((size_t)slots * sizeof *row), *slot = keep((size_t)slots * sizeof *slot);
	uint32_t *first = keep((size_t)(s->experts + 1) * sizeof *first), *expert = keep((size_t)slots * sizeof *expert);
	for (int64_t i = 0; i < slots; i++) /* by steps that lead to no expert twice */
		expert[i] = i % s->per_token ? (expert[i - 1] + 1) % (uint32_t)s->experts
									 : (uint32_t)(uniform() * uniform() * (double)s->experts);
	for (int64_t e = 0; e < s->experts; e++) {
		first[e] = (uint32_t)r;
		for (int64_t i = 0; i < slots; i++)
			if (expert[i] == e) {
				row[i] = (uint32_t)r;
				slot[r++] = (uint32_t)i;
			}
	}
	first[s->experts] = (uint32_t)r;
	s->row = row;
	s->slot = slot;
	s->first = first;
}

static void test_combined(int64_t n, int64_t per_token, int64_t h, int64_t experts, int form)
{
	int64_t rows = n * per_token;
	struct combined s = {.n = n, .per_token = per_token, .h = h, .experts = experts, .weighted = form & 1};
	s.by_row = form >> 1 & 1;
	s.added = form >> 2 & 1;
	s.x = random_floats(rows * h);
	s.tokens = random_floats(n * h);
	s.weight = random_floats(rows);
	draw_rows(&s);
	double *y = doubles(rows * h), *sum = doubles(n * h), *in_place = doubles(n * h);
	for (int64_t i = 0; i < rows * h; i++)
		y[i] = (s.weighted ? (double)s.weight[s.slot[i / h]] : 1) *
			(double)s.tokens[s.slot[i / h] / per_token * h + i % h];
	for (int64_t i = 0; i < n * h; i++) {
		for (int64_t k = i / h * per_token; k < (i / h + 1) * per_token; k++)
			sum[i] += (s.weighted ? (double)s.weight[k] : 1) * (double)s.x[(s.by_row ? s.row[k] : k) * h + i % h];
		in_place[i] = sum[i] + (double)s.tokens[i];
		sum[i] += s.added ? (double)s.tokens[i] : 0;
	}
	char name[100];
	snprintf(name, sizeof name, "combining %lld tokens of %lld, %lld of %lld experts%s%s%s", (long long)n, (long long)h,
		(long long)per_token, (long long)experts, yes(s.weighted, ", weighted"), yes(s.by_row, ", by rows"),
		yes(s.added, ", added"));
	check(name,
		(struct part[]){{"windows of experts", NULL, no_mistakes, 1, 0}, {"rows", NULL, y, rows * h, 1e-7},
			{"sum", NULL, sum, n * h, 1e-6}, {"sum in place", NULL, in_place, n * h, 1e-6}},
		4, run_combined, &s);
}

struct uncombined {
	int64_t rows, f, g, h, experts;
	const uint32_t *slot, *expert;
	const float *weight, *y, *dy, *dgu, *d_o, *bias;
};

static void run_uncombined(void *ctx, struct pool *pool, float **out)
{
	struct uncombined *s = ctx;
	struct combine_backward_args a =
		{.dweight = out[0], .slot = s->slot, .rows = s->rows, .f = s->f, .g = s->g, .h = s->h};
	memcpy(out[1], s->y, (size_t)(s->rows * s->f) * sizeof(float));
	memcpy(out[2], s->dgu, (size_t)(s->rows * s->g) * sizeof(float));
	memcpy(out[3], s->d_o, (size_t)(s->rows * s->h) * sizeof(float));
	a.weight = again(s->weight, s->rows);
	a.y = out[1];
	a.dy = again(s->dy, s->rows * s->f);
	a.dgu = s->g ? out[2] : NULL;
	a.expert = s->expert;
	if (s->bias) {
		a.bias = again(s->bias, s->experts * (s->h + 8));
		a.bias_stride = s->h + 8;
		a.d_o = out[3];
	}
	op_combine_backward(pool, &a);
}

static void test_uncombined(int64_t rows, int64_t f, int64_t g, int64_t h, int biased, int in_slots)
{
	enum { EXPERTS = 3 };
	uint32_t *slot = keep((size_t)rows * sizeof *slot), *expert = keep((size_t)rows * sizeof *expert);
	struct uncombined s = {rows, f, g, h, EXPERTS, in_slots ? NULL : slot, expert, random_floats(rows),
		random_floats(rows * f), random_floats(rows * f), random_floats(rows * g + 1), random_floats(rows * h), NULL};
	if (biased) s.bias = random_floats(EXPERTS * (h + 8));
	double *dweight = doubles(rows), *y = doubles(rows * f), *dgu = doubles(rows * s.g), *d_o = doubles(rows * h);
	for (int64_t r = 0; r < rows; r++) {
		int64_t at = in_slots ? r : rows - 1 - r;
		double w = (double)s.weight[at];
		slot[r] = (uint32_t)at;
		expert[at] = (uint32_t)(uniform() * EXPERTS);
		for (int64_t i = 0; i < f; i++) dweight[at] += (double)s.y[r * f + i] * (double)s.dy[r * f + i];
		for (int64_t i = 0; biased && i < h; i++)
			dweight[at] += (double)s.d_o[r * h + i] * (double)s.bias[expert[at] * (h + 8) + i];
		for (int64_t i = 0; i < f; i++) y[r * f + i] = (double)s.y[r * f + i] * (biased ? 1 : w);
		for (int64_t i = 0; i < h; i++) d_o[r * h + i] = (double)s.d_o[r * h + i] * (biased ? w : 1);
		for (int64_t i = 0; i < s.g; i++) dgu[r * s.g + i] = (double)s.dgu[r * s.g + i] * w;
	}
	char name[100];
	snprintf(name, sizeof name, "gradients of %lld rows' weights, %lld and %lld%s%s", (long long)rows, (long long)f,
		(long long)h, yes(biased, ", bias"), yes(in_slots, ", in slots"));
	check(name,
		(struct part[]){{"dweight", NULL, dweight, rows, 2e-6}, {"y", NULL, y, rows * f, 1e-7},
			{"dgu", NULL, dgu, rows * s.g, 1e-7}, {"do", NULL, d_o, rows * h, 1e-7}},
		4, run_uncombined, &s);
}

static void test_rows_of_experts(void)
{
	for (int form = 0; form < 8; form++) test_combined(37, 2, 19, 6, form);
	test_combined(5, 40, 24, 50, 3);
	test_combined(3, 1, 2056, 2, 7);
	test_combined(9, 8, 64, 16, 7);
	for (int form = 0; form < 4; form++) {
		test_uncombined(23, 70, 143, 19, form & 1, form >> 1);
		test_uncombined(5, 2056, 4115, 80, form & 1, form >> 1);
	}
	test_uncombined(23, 70, 0, 19, 0, 0); /* weights of inputs */
}

static void test_experts(void)
{
	test_routing();
	test_grouped_gemms();
	test_rows_of_experts();
	test_gemm(37, 6, 19, 2 | 32);
	test_gemm(5, 300, 40, 2 | 32);
	test_gemm(70, 1, 24, 2 | 32);
}
