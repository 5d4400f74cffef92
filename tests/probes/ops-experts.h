/* ops-experts.h: the cases of ops.c for mixtures of experts. Included by ops.c. */

/* Sort slots by expert, those of an expert by number; rows are their places */
static void sort_slots(const uint32_t *expert, int64_t slots, int64_t experts, uint32_t *row, uint32_t *slot,
	uint32_t *first)
{
	uint32_t r = 0;
	for (int64_t e = 0; e < experts; e++) {
		first[e] = r;
		for (int64_t i = 0; i < slots; i++)
			if (expert[i] == e) {
				row[i] = r;
				slot[r++] = (uint32_t)i;
			}
	}
	first[experts] = r;
}

/* ---- routing ---- */

enum logits { RANDOM, TIED, NOT_NUMBERS, TO_ONE };

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
static void test_routed(struct route_args a, enum logits kind, int corrected, int factors)
{
	static const char *const scores[] = {"softmax", "sigmoid", "softmax of the best", "sigmoid of the best"};
	static const char *const kinds[] = {"", ", ties", ", not numbers", ", all to one"};
	int64_t slots = a.n * a.per_token, all = a.n * a.experts;
	uint32_t *expert = indices(slots), *row = indices(slots), *slot = indices(slots), *first = indices(a.experts + 1);
	float *factor = factors ? random_operand(a.experts, 1) : NULL, *logits = logits_of(kind, a.n, a.experts);
	const float *dweight = random_floats(slots);
	double *weight = doubles(slots), *dlogits = doubles(all), *dfactor = doubles(a.experts);
	a.correction = corrected ? random_operand(a.experts, 1) : NULL;
	a.factor = factor;
	a.scale = 1.5f;
	for (int64_t t = 0; t < a.n; t++) {
		uint32_t *mine = expert + t * a.per_token;
		struct routed_token token = {.a = &a, .chosen = mine, .dweight = dweight + t * a.per_token};
		route_defined(&a, logits + t * a.experts, mine);
		for (int64_t e = 0; e < a.experts; e++) token.logit[e] = (double)logits[t * a.experts + e];
		if (kind == NOT_NUMBERS) continue;
		weights_defined(&a, token.logit, mine, weight + t * a.per_token);
		for (int64_t k = 0; k < a.per_token && factor; k++)
			dfactor[mine[k]] += (double)token.dweight[k] * weight[t * a.per_token + k] / (double)factor[mine[k]];
		for (int64_t e = 0; e < a.experts; e++)
			dlogits[t * a.experts + e] = difference(token.logit + e, 1e-5, weights_sum, &token);
	}
	sort_slots(expert, slots, a.experts, row, slot, first);
	a.scores = logits;
	a.weight = kind == NOT_NUMBERS ? not_numbers(slots) : expect("weights", weight, slots, 1e-6);
	a.expert = expect_bits("experts", expert, slots);
	a.row = expect_bits("rows", row, slots);
	a.slot = expect_bits("slots", slot, slots);
	a.first = expect_bits("first rows", first, a.experts + 1);
	RUN(ROUTE_FORWARD, a);
	a.dweight = dweight;
	a.dlogits = kind == NOT_NUMBERS ? not_numbers(all) : expect("dlogits", dlogits, all, 1e-6);
	a.dfactor = factor ? expect_sum("dfactor", dfactor, a.experts, 1e-6, a.beta != 0) : NULL;
	if (kind != NOT_NUMBERS) RUN(ROUTE_BACKWARD, a);
	CHECK("routing %ld tokens to %ld of %ld experts, %s%s%s%s%s%s%s%s%s", a.n, a.per_token, a.experts, scores[a.score],
		yes(a.renormalise, ", divided by their sum"), yes(a.eps > 0, " and a number"),
		yes(a.floor > 1e-3f, ", which is less than the floor"), yes(corrected, ", corrected"),
		yes(a.groups > 1, ", of groups"), yes(a.by_best, " by their best"), yes(factors, ", by factors"), kinds[kind]);
}

static void test_routing(void)
{
	struct route_args a = {.n = 37, .experts = 6, .per_token = 2, .floor = 1e-20f, .groups = 1, .groups_used = 1};
	for (enum logits kind = RANDOM; kind <= TO_ONE; kind++)
		for (int form = 0; form < 6; form++) {
			a.score = form < 4 ? (enum mt_score)(form / 2) : form == 4 ? MT_TOP_SOFTMAX : MT_TOP_SIGMOID;
			a.renormalise = form < 4 && form % 2;
			test_routed(a, kind, a.score == MT_SIGMOID, 0);
		}
	a.score = MT_SIGMOID;
	a.renormalise = 1;
	a.floor = 10;
	test_routed(a, RANDOM, 0, 0);
	a.eps = 0.5f;
	test_routed(a, RANDOM, 0, 0);
	a.floor = 0;
	test_routed(a, RANDOM, 1, 0);
	a.eps = 0;
	a.floor = 1e-20f;
	a.per_token = 1;
	test_routed(a, TO_ONE, 0, 0);
	test_routed((struct route_args){.n = 3, .experts = 1, .per_token = 1, .score = MT_SIGMOID}, RANDOM, 0, 0);
	a = (struct route_args){.n = 70, .experts = 48, .per_token = 5, .score = MT_SIGMOID, .groups = 8, .groups_used = 3};
	for (enum logits kind = RANDOM; kind < TO_ONE; kind++) test_routed(a, kind, 1, 0);
	a.by_best = 1;
	a.score = MT_SOFTMAX;
	for (enum logits kind = RANDOM; kind < TO_ONE; kind++) test_routed(a, kind, 0, 0);
	a.by_best = 0;
	a.score = MT_SIGMOID;
	a.groups = a.experts;
	a.groups_used = 40; /* groups of one */
	test_routed(a, RANDOM, 0, 0);
	a = (struct route_args){.n = 411, .experts = 70, .per_token = 3, .score = MT_SOFTMAX, .renormalise = 1};
	test_routed(a, RANDOM, 0, 0);
	test_routed(a, TIED, 1, 0);
	test_routed(a, RANDOM, 0, 1);
	a.beta = 1;
	test_routed(a, RANDOM, 0, 1);
	a = (struct route_args){.n = 20, .experts = 300, .per_token = 40, .score = MT_TOP_SOFTMAX};
	test_routed(a, RANDOM, 0, 0);
}

/* ---- grouped GEMMs ---- */

enum { BEFORE = 3, MOST_GROUPS = 40 }; /* rows before the first expert's, as a window of experts has them */

/* Of forward's arguments, with rows from the first expert's on */
static void grouped_defined(const struct grouped_gemm_args *a, const float *dy, double *y, double *dx, double *dw,
	double *db)
{
	const float *x = a->a, *w = a->b, *bias = a->bias;
	int64_t n = a->n, k = a->k;
	for (int64_t e = 0; e < a->experts; e++)
		for (int64_t r = a->first[e]; r < a->first[e + 1]; r++)
			for (int64_t j = 0; j < n; j++) {
				double sum = bias ? (double)bias[e * a->bias_stride + j] : 0, d = (double)dy[r * n + j];
				for (int64_t i = 0; i < k; i++) {
					int64_t at = a->trans_b ? j * k + i : i * n + j;
					double xi = (double)x[r * k + i], wij = (double)w[e * a->stride + at];
					sum += xi * wij;
					dx[(r - BEFORE) * k + i] += d * wij;
					dw[e * n * k + at] += d * xi;
				}
				y[(r - BEFORE) * n + j] = sum;
				db[e * n + j] += d;
			}
}

/* rows: of each expert, then a negative number */
static void test_grouped(const int *rows, int64_t n, int64_t k, int trans_b, int gap, int biased)
{
	uint32_t *first = indices(MOST_GROUPS + 1);
	int64_t experts = 0;
	for (first[0] = BEFORE; rows[experts] >= 0; experts++)
		first[experts + 1] = first[experts] + (uint32_t)rows[experts];
	int64_t all = first[experts], used = all - BEFORE, stride = n * k + gap;
	const float *x = random_floats(all * k), *w = random_floats(experts * stride), *dy = random_floats(all * n);
	const float *bias = biased ? random_floats(experts * (n + gap)) : NULL;
	float *of_y = not_numbers(all * n), *of_dx = not_numbers(all * k);
	double *y = doubles(used * n), *dx = doubles(used * k), *dw = doubles(experts * n * k), *db = doubles(experts * n);
	struct grouped_gemm_args f = {.experts = experts, .rows = all, .n = n, .k = k, .first = first, .lda = k, .ldc = n};
	f.ldb = trans_b ? k : n;
	f.trans_b = trans_b;
	f.stride = stride;
	f.bias_stride = n + gap;
	struct grouped_gemm_args d = f, g = f;
	f.a = x;
	f.b = d.b = w;
	f.bias = bias;
	f.c = of_y;
	d.a = dy;
	d.lda = d.k = n;
	d.ldc = d.n = k;
	d.trans_b = !trans_b;
	d.c = of_dx;
	g.a = trans_b ? dy : x;
	g.b = trans_b ? x : dy;
	g.lda = g.k = trans_b ? n : k;
	g.ldb = g.ldc = g.n = trans_b ? k : n;
	g.sum = 1;
	g.trans_b = 0;
	RUN(GROUPED_GEMM, f);
	RUN(GROUPED_GEMM, d);
	expect_in(of_y + BEFORE * n, "y", y, used * n, 1e-6);
	expect_in(of_dx + BEFORE * k, "dx", dx, used * k, 1e-6);
	expect_rows_in(of_y, "y of no expert", y, 1, 0, BEFORE * n, 0);
	expect_rows_in(of_dx, "dx of no expert", dx, 1, 0, BEFORE * k, 0);
	for (int added = 0; added < 2; added++) {
		float *c = expect_sum_rows("dw", dw, experts, n * k, stride, 1e-6, added);
		struct grouped_bias_backward_args b = {.stride = n + 1, .dy = dy, .first = first, .experts = experts, .n = n};
		b.db = expect_sum_rows("db", db, experts, n, n + 1, 1e-6, added);
		g.c = c;
		g.beta = b.beta = (float)added;
		RUN(GROUPED_GEMM, g);
		RUN(GROUPED_BIAS_BACKWARD, b);
		for (int64_t e = 0; e < experts; e++)
			if (first[e] == first[e + 1]) /* a gradient of 0, which changes nothing that it is added to */
				expect_same("dw of an expert without rows", c + e * stride,
					added ? again(c + e * stride, n * k) : keep((size_t)(n * k) * sizeof *c), n * k);
	}
	grouped_defined(&f, dy, y, dx, dw, db);
	CHECK("grouped GEMM of %ld experts, %ld rows, %ld x %ld%s%s%s", experts, used, n, k, yes(trans_b, ", b transposed"),
		yes(gap, ", apart"), yes(biased, ", bias"));
}

static void test_grouped_gemms(void)
{
	static const int few[] = {0, 5, 1, 0, 17, -1}, one[] = {0, 0, 40, -1}, none[] = {0, 0, 0, -1};
	static const int uneven[] = {127, 0, 128, 1, 129, 33, -1},
					 lines[] = {1, 2, 0, 1, 3, 1, 0, 0, 2, 1, 1, 4, 1, 1, 2, 1, 0, 1, 1, 2, 1, 1, 1, 0, 1, 1, 1, 5, 1,
						 1, 1, 2, 1, 0, 1, 1, 3, -1};
	/* more terms than shared memory has at once, and several tiles */
	static const int many[] = {70, 300, 0, 192, 1, -1};
	for (int form = 0; form < 8; form++) test_grouped(few, 19, 7, form & 1, form & 2 ? 5 : 0, form >> 2);
	for (int trans_b = 0; trans_b < 2; trans_b++) {
		test_grouped(few, 40, 72, trans_b, 8, 1);
		test_grouped(one, 64, 32, trans_b, 0, 0);
		test_grouped(uneven, 136, 96, trans_b, 0, 1);
		test_grouped(lines, 33, 24, trans_b, 0, 1);
		test_grouped(many, 264, 200, trans_b, 8, 1);
		test_grouped(few, 72, 584, trans_b, 0, 0);
	}
	test_grouped(none, 16, 8, 0, 8, 1);
	test_grouped(uneven, 24, 264, 1, 8, 0);
	test_grouped(one, 300, 130, 0, 0, 1);
	test_grouped(uneven, 328, 200, 1, 0, 1);
	test_grouped(uneven, 331, 67, 0, 3, 0);
}

/* ---- rows to experts and back ---- */

/* form: bits 1: weighted; 2: by rows, and again by windows of experts; 4: added to the tokens */
static void test_combined(int64_t n, int64_t per_token, int64_t h, int64_t experts, int form)
{
	int64_t rows = n * per_token, windows = experts < 3 ? experts : 3;
	const float *x = random_floats(rows * h), *tokens = random_floats(n * h), *weight = random_floats(rows);
	uint32_t *expert = indices(rows), *row = indices(rows), *slot = indices(rows), *first = indices(experts + 1);
	for (int64_t i = 0; i < rows; i++) /* by steps that lead to no expert twice */
		expert[i] = i % per_token ? (expert[i - 1] + 1) % (uint32_t)experts
								  : (uint32_t)(uniform() * uniform() * (double)experts);
	sort_slots(expert, rows, experts, row, slot, first);
	double *y = doubles(rows * h), *sum = doubles(n * h), *in_place = doubles(n * h);
	struct dispatch_args d = {.x = tokens, .slot = slot, .rows = rows, .per_token = per_token, .h = h};
	struct combine_args a = {.x = x, .n = n, .per_token = per_token, .h = h};
	a.weight = d.weight = form & 1 ? weight : NULL;
	a.row = form & 2 ? row : NULL;
	a.add = form & 4 ? tokens : NULL;
	d.y = expect("rows", y, rows * h, 1e-7);
	RUN(DISPATCH, d);
	float *whole = a.y = expect("sum", sum, n * h, 1e-6), *part = not_numbers(n * h), *last = not_numbers(n * h);
	RUN(COMBINE, a);
	for (int64_t i = 1; form & 2 && i <= windows; i++) {
		struct combine_args w = a;
		w.partial = i < windows;
		w.y = w.partial ? part : last;
		w.add = w.partial ? NULL : a.add;
		w.sum = i > 1 ? part : NULL;
		w.from = first + experts * (i - 1) / windows;
		w.to = first + experts * i / windows;
		RUN(COMBINE, w);
	}
	if (form & 2) expect_same("sum by windows of experts", last, whole, n * h);
	a.y = expect_in(again(tokens, n * h), "sum in place", in_place, n * h, 1e-6);
	a.add = a.y;
	RUN(COMBINE, a);
	for (int64_t i = 0; i < rows * h; i++)
		y[i] = (form & 1 ? (double)weight[slot[i / h]] : 1) * (double)tokens[slot[i / h] / per_token * h + i % h];
	for (int64_t i = 0; i < n * h; i++) {
		for (int64_t k = i / h * per_token; k < (i / h + 1) * per_token; k++)
			sum[i] += (form & 1 ? (double)weight[k] : 1) * (double)x[(form & 2 ? row[k] : k) * h + i % h];
		in_place[i] = sum[i] + (double)tokens[i];
		sum[i] += form & 4 ? (double)tokens[i] : 0;
	}
	CHECK("combining %ld tokens of %ld, %ld of %ld experts%s%s%s", n, h, per_token, experts,
		yes(form & 1, ", weighted"), yes(form & 2, ", by rows"), yes(form & 4, ", added"));
}

static void test_uncombined(int64_t rows, int64_t f, int64_t g, int64_t h, int biased, int in_slots)
{
	enum { EXPERTS = 3 };
	uint32_t *slot = indices(rows), *expert = indices(rows);
	const float *weight = random_floats(rows), *x = random_floats(rows * f), *dx = random_floats(rows * f);
	const float *bias = biased ? random_floats(EXPERTS * (h + 8)) : NULL, *gu = random_floats(rows * g);
	const float *from = random_floats(rows * h);
	double *dweight = doubles(rows), *y = doubles(rows * f), *dgu = doubles(rows * g), *d_o = doubles(rows * h);
	struct combine_backward_args a =
		{.weight = weight, .dy = dx, .rows = rows, .f = f, .g = g, .h = h, .expert = expert};
	a.dweight = expect("dweight", dweight, rows, 2e-6);
	a.slot = in_slots ? NULL : slot;
	a.y = expect_in(again(x, rows * f), "y", y, rows * f, 1e-7);
	a.dgu = g ? expect_in(again(gu, rows * g), "dgu", dgu, rows * g, 1e-7) : NULL;
	a.bias = bias;
	a.bias_stride = h + 8;
	a.d_o = expect_in(again(from, rows * h), "do", d_o, rows * h, 1e-7);
	RUN(COMBINE_BACKWARD, a);
	for (int64_t r = 0; r < rows; r++) {
		int64_t at = in_slots ? r : rows - 1 - r;
		double w = (double)weight[at];
		slot[r] = (uint32_t)at;
		expert[at] = (uint32_t)(uniform() * EXPERTS);
		for (int64_t i = 0; i < f; i++) dweight[at] += (double)x[r * f + i] * (double)dx[r * f + i];
		for (int64_t i = 0; i < h; i++) {
			d_o[r * h + i] = (double)from[r * h + i] * (biased ? w : 1);
			dweight[at] += bias ? (double)from[r * h + i] * (double)bias[expert[at] * (h + 8) + i] : 0;
		}
		for (int64_t i = 0; i < f; i++) y[r * f + i] = (double)x[r * f + i] * (biased ? 1 : w);
		for (int64_t i = 0; i < g; i++) dgu[r * g + i] = (double)gu[r * g + i] * w;
	}
	CHECK("gradients of %ld rows' weights, %ld and %ld%s%s", rows, f, h, yes(biased, ", bias"),
		yes(in_slots, ", in slots"));
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
}
