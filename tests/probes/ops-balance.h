/* ops-balance.h: the cases of ops.c for routers' auxiliary loss and z-loss: values beside their definition, gradients
 * beside finite differences. Included by ops.c. */

enum { BALANCED = 301, CHOICES = 7, CHOSEN = 2, LOGITS = BALANCED * CHOICES, SUMS = 2 * CHOICES + 1 };
#define THERE 0x1p-10f /* what gradients are added to */

/* Every third token is padding */
static struct balance_args balance_args(void)
{
	float *logits = random_floats(LOGITS);
	uint32_t *counted = indices(BALANCED);
	for (int i = 0; i < LOGITS; i++) logits[i] = 3 * (float)(2 * uniform() - 1);
	for (int t = 0; t < BALANCED; t++) counted[t] = t % 3 != 1;
	struct balance_args a = {.n = BALANCED,
		.experts = CHOICES,
		.per_token = CHOSEN,
		.logits = logits,
		.counted = counted};
	a.sums = doubles(SUMS);
	return a;
}

/* ---- the definition, in double ---- */

static double softmax_defined(const double *logit, double *p)
{
	double sum = 0;
	for (int e = 0; e < CHOICES; e++) sum += exp(logit[e]);
	for (int e = 0; e < CHOICES; e++) p[e] = exp(logit[e]) / sum;
	return log(sum);
}

/* How many tokens count; sums[e]: how many of them have e among their CHOSEN largest; then sums of p, and of squares */
static double balance_defined(const struct balance_args *a, double *sums)
{
	double n = 0;
	for (int t = 0; t < BALANCED; t++) {
		double *logit = widened(a->logits + t * CHOICES, CHOICES), p[CHOICES], lse = softmax_defined(logit, p);
		release(kept_n - 1);
		if (!a->counted[t]) continue;
		n++;
		sums[2 * CHOICES] += lse * lse;
		for (int e = 0; e < CHOICES; e++) {
			int larger = 0;
			for (int i = 0; i < CHOICES; i++) larger += p[i] > p[e];
			sums[e] += larger < CHOSEN;
			sums[CHOICES + e] += p[e];
		}
	}
	return n;
}

/* n times the auxiliary loss's sum over experts */
static double aux_of(const double *sums, const double *p)
{
	double aux = 0;
	for (int e = 0; e < CHOICES; e++) aux += sums[e] * p[e];
	return aux;
}

struct balanced_token {
	const struct balance_args *a;
	const double *sums; /* constants, whose gradient is none */
	double *logit;
};

static double objective(const void *ctx)
{
	const struct balanced_token *t = ctx;
	double p[CHOICES], lse = softmax_defined(t->logit, p);
	return t->a->aux * aux_of(t->sums, p) + t->a->z * lse * lse;
}

/* ---- what is compared ---- */

static int about(double got, double want) { return fabs(got - want) < 1e-13 * want; }

static void test_terms(void)
{
	struct balance_args a = balance_args();
	double *want = doubles(SUMS);
	balance_defined(&a, want);
	a.sums = expect_doubles("sums", want, SUMS, 1e-13);
	RUN(BALANCE_FORWARD, a);
	compare("the same sums with 1, 2 and 3 threads");
	const double *sums = seen(a.sums, 0);
	say(!memcmp(sums, want, CHOICES * sizeof *sums), "tokens of each expert, without padding");
	say(about(aux_of(sums, sums + CHOICES), aux_of(want, want + CHOICES)), "the auxiliary loss");
	say(about(sums[2 * CHOICES], want[2 * CHOICES]), "the z-loss");
	forget();
}

/* The gradient of aux times one loss plus z times the other is added to what was there */
static void test_balance_gradients(double aux, double z, const char *what)
{
	struct balance_args a = balance_args();
	double *sums = doubles(SUMS), *want = doubles(LOGITS), n = balance_defined(&a, sums);
	float *there = random_floats(LOGITS);
	int same = 1;
	a.aux = aux * CHOICES / (n * n);
	a.z = z / n;
	for (int i = 0; i < LOGITS; i++) {
		int t = i / CHOICES;
		struct balanced_token token = {&a, sums, widened(a.logits + t * CHOICES, CHOICES)};
		if (a.counted[t]) want[i] = THERE + difference(token.logit + i % CHOICES, 1e-4, objective, &token);
		else want[i] = THERE;
		release(kept_n - 1);
		there[i] = THERE;
	}
	a.dlogits = expect_in(there, "dlogits", want, LOGITS, 1e-7);
	RUN(BALANCE_FORWARD, a);
	RUN(BALANCE_BACKWARD, a);
	compare("%s", what);
	say(bits_agree, "with the same bits with 1, 2 and 3 threads");
	const float *got = seen(a.dlogits, 0);
	for (int i = 0; i < LOGITS; i++) same &= a.counted[i / CHOICES] || got[i] == THERE;
	if (z == 0) say(same, "padding gets no gradient");
	forget();
}

/* Pieces of a chunk add to the same sums */
static void test_pieces(void)
{
	struct balance_args a = balance_args();
	double *want = doubles(SUMS);
	balance_defined(&a, want);
	a.sums = expect_doubles("sums", want, SUMS, 1e-13);
	for (int64_t from = 0; from < BALANCED; from += a.n, a.logits += a.n * CHOICES, a.counted += a.n) {
		a.n = least(BALANCED - from, 100);
		RUN(BALANCE_FORWARD, a);
	}
	CHECK("pieces add up");
}

static void test_balance_extremes(void)
{
	struct balance_args a = balance_args();
	float *logits = random_floats(LOGITS);
	uint32_t *counted = indices(BALANCED);
	double total = 0;
	a.logits = logits;
	a.counted = counted;
	for (int t = 0; t < BALANCED; t++) counted[t] = 1;
	for (int i = 0; i < LOGITS; i++) logits[i] = i % CHOICES == 3 ? 3e4f : -3e4f;
	op_balance_forward(pools[0], &a);
	say(a.sums[3] == BALANCED && a.sums[0] == BALANCED && a.sums[CHOICES + 3] == BALANCED &&
			a.sums[2 * CHOICES] == BALANCED * 9e8,
		"large logits: all to one expert; of equal ones the first comes second");
	for (int i = 0; i < LOGITS; i++) logits[i] = NAN;
	op_balance_forward(pools[0], &a);
	for (int e = 0; e < CHOICES; e++) total += a.sums[e];
	say(total == 2.0 * CHOSEN * BALANCED && isnan(a.sums[CHOICES]) && isnan(a.sums[2 * CHOICES]),
		"not a number stays not a number");
	forget();
}

static void test_balance(void)
{
	test_terms();
	test_balance_gradients(0.7, 0, "gradient of the auxiliary loss");
	test_balance_gradients(0, 0.3, "gradient of the z-loss");
	test_balance_gradients(0.7, 0.3, "gradient of both");
	test_pieces();
	test_balance_extremes();
}
