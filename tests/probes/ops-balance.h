/* ops-balance.h: the cases of ops.c for routers' auxiliary loss and z-loss: values beside their definition, gradients
 * beside finite differences, and the same bits for any number of threads. Included by ops.c. */

enum { BALANCED = 301, CHOICES = 7, CHOSEN = 2, LOGITS = BALANCED * CHOICES, SUMS = 2 * CHOICES + 1 };

static struct {
	float logits[LOGITS], dlogits[POOLS][LOGITS];
	uint32_t counted[BALANCED];
	double sums[POOLS][SUMS], exact[LOGITS];
} router;

static struct balance_args balance_args(int p)
{
	return (struct balance_args){.n = BALANCED,
		.experts = CHOICES,
		.per_token = CHOSEN,
		.logits = router.logits,
		.counted = router.counted,
		.sums = router.sums[p],
		.dlogits = router.dlogits[p]};
}

/* Every third token is padding */
static void balance_fill(void)
{
	for (int i = 0; i < LOGITS; i++) router.logits[i] = 3 * (float)(2 * uniform() - 1);
	for (int t = 0; t < BALANCED; t++) router.counted[t] = t % 3 != 1;
	memset(router.sums, 0, sizeof router.sums);
}

static int same_bits(const void *of_pools, size_t bytes)
{
	const char *p = of_pools;
	return !memcmp(p, p + bytes, bytes) && !memcmp(p, p + 2 * bytes, bytes);
}

/* ---- the definition, in double ---- */

static double softmax_defined(const double *logit, double *p)
{
	double sum = 0;
	for (int e = 0; e < CHOICES; e++) sum += exp(logit[e]);
	for (int e = 0; e < CHOICES; e++) p[e] = exp(logit[e]) / sum;
	return log(sum);
}

/* tokens[e]: how many have e among their CHOSEN largest; the two terms over all tokens that count */
static void balance_defined(const double *fixed, double *tokens, double *aux, double *z)
{
	double mean[CHOICES] = {0}, squares = 0, n = 0;
	for (int e = 0; e < CHOICES; e++) tokens[e] = 0;
	for (int t = 0; t < BALANCED; t++) {
		double p[CHOICES], lse = softmax_defined(router.exact + t * CHOICES, p);
		if (!router.counted[t]) continue;
		n++;
		squares += lse * lse;
		for (int e = 0; e < CHOICES; e++) {
			int larger = 0;
			for (int i = 0; i < CHOICES; i++) larger += p[i] > p[e];
			tokens[e] += larger < CHOSEN;
			mean[e] += p[e];
		}
	}
	*aux = 0;
	*z = squares / n;
	for (int e = 0; e < CHOICES; e++) *aux += CHOICES * ((fixed ? fixed : tokens)[e] / n) * (mean[e] / n);
}

static double number_counted(void)
{
	double n = 0;
	for (int t = 0; t < BALANCED; t++) n += router.counted[t];
	return n;
}

/* ---- what is compared ---- */

static void test_terms(void)
{
	const double *sums = router.sums[0];
	double n, tokens[CHOICES], aux, z, got = 0;
	int same = 1;
	balance_fill();
	for (int i = 0; i < LOGITS; i++) router.exact[i] = router.logits[i];
	for (int p = 0; p < POOLS; p++) {
		struct balance_args a = balance_args(p);
		op_balance_forward(pools[p], &a);
	}
	n = number_counted();
	balance_defined(NULL, tokens, &aux, &z);
	for (int e = 0; e < CHOICES; e++) {
		got += CHOICES * (sums[e] / n) * (sums[CHOICES + e] / n);
		same &= sums[e] == tokens[e];
	}
	say(same, "tokens of each expert, without padding");
	say(fabs(got - aux) < 1e-13 * aux, "the auxiliary loss");
	say(fabs(sums[2 * CHOICES] / n - z) < 1e-13 * z, "the z-loss");
	say(same_bits(router.sums, sizeof *router.sums), "the same sums with 1, 2 and 3 threads");
}

/* The gradient of aux_coef times one term plus z_coef times the other is added to what was there */
#define THERE 0x1p-10f

struct objective {
	double aux_coef, z_coef;
	const double *tokens; /* constants, whose gradient is none */
};

static double objective(const void *ctx)
{
	const struct objective *o = ctx;
	double other[CHOICES], aux, z;
	balance_defined(o->tokens, other, &aux, &z);
	return o->aux_coef * aux + o->z_coef * z;
}

static void test_balance_gradients(double aux_coef, double z_coef, const char *what)
{
	double n = number_counted(), tokens[CHOICES], aux, z, worst = 0;
	struct objective o = {aux_coef, z_coef, tokens};
	balance_defined(NULL, tokens, &aux, &z);
	for (int p = 0; p < POOLS; p++) {
		struct balance_args a = balance_args(p);
		for (int i = 0; i < LOGITS; i++) router.dlogits[p][i] = THERE;
		a.aux = aux_coef * CHOICES / (n * n);
		a.z = z_coef / n;
		op_balance_backward(pools[p], &a);
	}
	for (int i = 0; i < LOGITS; i += 5) {
		double want = difference(router.exact + i, 1e-4, objective, &o);
		worst = fmax(worst, fabs(want - ((double)router.dlogits[0][i] - THERE)));
	}
	say(worst < 1e-9, "%s", what);
	say(same_bits(router.dlogits, sizeof *router.dlogits), "with the same bits with 1, 2 and 3 threads");
}

static void test_padding(void)
{
	int same = 1;
	for (int i = 0; i < LOGITS; i++) same &= router.counted[i / CHOICES] || router.dlogits[0][i] == THERE;
	say(same, "padding gets no gradient");
}

/* Pieces of a chunk add to the same sums */
static void test_pieces(void)
{
	struct balance_args a = balance_args(1);
	double worst = 0;
	memset(a.sums, 0, sizeof *router.sums);
	for (int from = 0; from < BALANCED; from += 100) {
		a.n = BALANCED - from < 100 ? BALANCED - from : 100;
		a.logits = router.logits + from * CHOICES;
		a.counted = router.counted + from;
		op_balance_forward(pools[1], &a);
	}
	for (int i = 0; i < SUMS; i++) worst = fmax(worst, fabs(router.sums[1][i] - router.sums[0][i]) / router.sums[0][i]);
	say(worst < 1e-13, "pieces add up");
}

static void test_balance_extremes(void)
{
	struct balance_args a = balance_args(0);
	double total = 0;
	balance_fill();
	for (int t = 0; t < BALANCED; t++) router.counted[t] = 1;
	for (int i = 0; i < LOGITS; i++) router.logits[i] = i % CHOICES == 3 ? 3e4f : -3e4f;
	op_balance_forward(pools[0], &a);
	say(a.sums[3] == BALANCED && a.sums[0] == BALANCED && a.sums[CHOICES + 3] == BALANCED &&
			a.sums[2 * CHOICES] == BALANCED * 9e8,
		"large logits: all to one expert; of equal ones the first comes second");
	for (int i = 0; i < LOGITS; i++) router.logits[i] = NAN;
	op_balance_forward(pools[0], &a);
	for (int e = 0; e < CHOICES; e++) total += a.sums[e];
	say(total == 2.0 * CHOSEN * BALANCED && isnan(a.sums[CHOICES]) && isnan(a.sums[2 * CHOICES]),
		"not a number stays not a number");
}

static void test_balance(void)
{
	test_terms();
	test_balance_gradients(0.7, 0, "gradient of the auxiliary loss");
	test_padding();
	test_balance_gradients(0, 0.3, "gradient of the z-loss");
	test_balance_gradients(0.7, 0.3, "gradient of both");
	test_pieces();
	test_balance_extremes();
}
