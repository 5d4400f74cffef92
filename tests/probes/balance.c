/* balance.c: the operations of routers' auxiliary loss and z-loss, on the cpu device: values beside their
 * definition, gradients beside finite differences, and the same bits for any number of threads. */
#include "../../mt-stream/ops.h"
#include "ops-common.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 301, E = 7, K = 2, SUMS = 2 * E + 1 };

static float logits[N * E], dlogits[POOLS][N * E];
static uint32_t counted[N];
static double sums[POOLS][SUMS];

static struct balance_args args(int p)
{
	return (struct balance_args){.n = N,
		.experts = E,
		.per_token = K,
		.logits = logits,
		.counted = counted,
		.sums = sums[p],
		.dlogits = dlogits[p]};
}

/* Every third token is padding */
static void fill(void)
{
	for (int i = 0; i < N * E; i++) logits[i] = 3 * (float)(2 * uniform() - 1);
	for (int t = 0; t < N; t++) counted[t] = t % 3 != 1;
	memset(sums, 0, sizeof sums);
}

/* ---- the definition, in double ---- */

static double softmax(const double *logit, double *p)
{
	double sum = 0;
	for (int e = 0; e < E; e++) sum += exp(logit[e]);
	for (int e = 0; e < E; e++) p[e] = exp(logit[e]) / sum;
	return log(sum);
}

/* tokens[e]: how many have e among their K largest; the two terms over all tokens that count */
static void define(const double *logit, const double *fixed, double *tokens, double *aux, double *z)
{
	double mean[E] = {0}, squares = 0, n = 0;
	for (int e = 0; e < E; e++) tokens[e] = 0;
	for (int t = 0; t < N; t++) {
		double p[E], lse = softmax(logit + t * E, p);
		if (!counted[t]) continue;
		n++;
		squares += lse * lse;
		for (int e = 0; e < E; e++) {
			int larger = 0;
			for (int i = 0; i < E; i++) larger += p[i] > p[e];
			tokens[e] += larger < K;
			mean[e] += p[e];
		}
	}
	*aux = 0;
	*z = squares / n;
	for (int e = 0; e < E; e++) *aux += E * ((fixed ? fixed : tokens)[e] / n) * (mean[e] / n);
}

static double exact[N * E];

static double number_counted(void)
{
	double n = 0;
	for (int t = 0; t < N; t++) n += counted[t];
	return n;
}

/* ---- what is compared ---- */

static void terms(void)
{
	double n, tokens[E], aux, z, got = 0;
	int same = 1;
	fill();
	for (int i = 0; i < N * E; i++) exact[i] = logits[i];
	for (int p = 0; p < POOLS; p++) {
		struct balance_args a = args(p);
		op_balance_forward(pools[p], &a);
	}
	n = number_counted();
	define(exact, NULL, tokens, &aux, &z);
	for (int e = 0; e < E; e++) {
		got += E * (sums[0][e] / n) * (sums[0][E + e] / n);
		same &= sums[0][e] == tokens[e];
	}
	say(same, "tokens of each expert, without padding");
	say(fabs(got - aux) < 1e-13 * aux, "the auxiliary loss");
	say(fabs(sums[0][2 * E] / n - z) < 1e-13 * z, "the z-loss");
	say(!memcmp(sums[0], sums[1], sizeof *sums) && !memcmp(sums[0], sums[2], sizeof *sums),
		"the same sums with 1, 2 and 3 threads");
}

/* The gradient of aux_coef times one term plus z_coef times the other is added to what was there */
#define BEFORE 0x1p-10f

struct objective {
	double aux_coef, z_coef;
	const double *tokens; /* constants, whose gradient is none */
};

static double objective(const void *ctx)
{
	const struct objective *o = ctx;
	double other[E], aux, z;
	define(exact, o->tokens, other, &aux, &z);
	return o->aux_coef * aux + o->z_coef * z;
}

static void gradients(double aux_coef, double z_coef, const char *what)
{
	double n = number_counted(), tokens[E], aux, z, worst = 0;
	struct objective o = {aux_coef, z_coef, tokens};
	define(exact, NULL, tokens, &aux, &z);
	for (int p = 0; p < POOLS; p++) {
		struct balance_args a = args(p);
		for (int i = 0; i < N * E; i++) dlogits[p][i] = BEFORE;
		a.aux = aux_coef * E / (n * n);
		a.z = z_coef / n;
		op_balance_backward(pools[p], &a);
	}
	for (int i = 0; i < N * E; i += 5) {
		double want = difference(exact + i, 1e-4, objective, &o);
		worst = fmax(worst, fabs(want - ((double)dlogits[0][i] - BEFORE)));
	}
	say(worst < 1e-9, "%s", what);
	say(!memcmp(dlogits[0], dlogits[1], sizeof *dlogits) && !memcmp(dlogits[0], dlogits[2], sizeof *dlogits),
		"with the same bits with 1, 2 and 3 threads");
}

static void padding(void)
{
	int kept = 1;
	for (int t = 0; t < N; t++)
		for (int e = 0; e < E && !counted[t]; e++) kept &= dlogits[0][t * E + e] == BEFORE;
	say(kept, "padding gets no gradient");
}

/* Pieces of a chunk add to the same sums */
static void pieces(void)
{
	struct balance_args a = args(1);
	double worst = 0;
	memset(sums[1], 0, sizeof *sums);
	for (int from = 0; from < N; from += 100) {
		a.n = N - from < 100 ? N - from : 100;
		a.logits = logits + from * E;
		a.counted = counted + from;
		op_balance_forward(pools[1], &a);
	}
	for (int i = 0; i < SUMS; i++) worst = fmax(worst, fabs(sums[1][i] - sums[0][i]) / sums[0][i]);
	say(worst < 1e-13, "pieces add up");
}

static void extremes(void)
{
	struct balance_args a = args(0);
	double total = 0;
	fill();
	for (int t = 0; t < N; t++) counted[t] = 1;
	for (int i = 0; i < N * E; i++) logits[i] = i % E == 3 ? 3e4f : -3e4f;
	op_balance_forward(pools[0], &a);
	say(sums[0][3] == N && sums[0][0] == N && sums[0][E + 3] == N && sums[0][2 * E] == N * 9e8,
		"large logits: all to one expert; of equal ones the first comes second");
	for (int i = 0; i < N * E; i++) logits[i] = NAN;
	op_balance_forward(pools[0], &a);
	for (int e = 0; e < E; e++) total += sums[0][e];
	say(total == 2.0 * K * N && isnan(sums[0][E]) && isnan(sums[0][2 * E]), "not a number stays not a number");
}

int main(void)
{
	for (int p = 0; p < POOLS; p++) pools[p] = pool_create(p + 1, 0, NULL);
	terms();
	gradients(0.7, 0, "gradient of the auxiliary loss");
	padding();
	gradients(0, 0.3, "gradient of the z-loss");
	gradients(0.7, 0.3, "gradient of both");
	pieces();
	extremes();
	for (int p = 0; p < POOLS; p++) pool_free(pools[p]);
	return failures != 0;
}
