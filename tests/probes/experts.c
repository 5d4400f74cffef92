/* experts.c: the operations of a mixture of experts on the cpu device: who is routed where, what comes back, gradients
 * beside finite differences, and the same bits for any number of threads. */
#include "../../mt-stream/ops.h"
#include "ops-common.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 37, E = 6, K = 2, R = N * K, H = 19, F = 70 };

static void fill(float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++) x[i] = (float)(2 * uniform() - 1);
}

/* ---- routing ---- */

static struct routing {
	float logits[N * E], scores[N * E], weight[R], dweight[R], dlogits[N * E];
	uint32_t expert[R], slot[R], row[R], first[E + 1];
} r;

static struct route_args route(enum mt_score score, int renormalise)
{
	return (struct route_args){.n = N,
		.experts = E,
		.per_token = K,
		.score = score,
		.renormalise = renormalise,
		.floor = 1e-20f,
		.scale = 1.5f,
		.groups = 1,
		.groups_used = 1,
		.scores = r.scores,
		.weight = r.weight,
		.expert = r.expert,
		.slot = r.slot,
		.row = r.row,
		.first = r.first,
		.dweight = r.dweight,
		.dlogits = r.dlogits};
}

static void forward(struct route_args *a, struct pool *pool)
{
	memcpy(r.scores, r.logits, sizeof r.scores);
	op_route_forward(pool, a);
}

static void ties(void)
{
	struct route_args a = route(MT_SOFTMAX, 1);
	int ok = 1;
	memset(r.logits, 0, sizeof r.logits);
	forward(&a, pools[0]);
	for (int t = 0; t < N; t++) ok &= r.expert[t * K] == 0 && r.expert[t * K + 1] == 1 && r.weight[t * K] == 0.75f;
	say(ok, "equal scores: the experts with the lowest numbers, with equal weights");
	say(r.first[1] == N && r.first[2] == R && r.first[E] == R, "the other experts get no rows");
}

static void one_expert(void)
{
	struct route_args a = route(MT_SOFTMAX, 0);
	int ok = 1;
	a.per_token = 1;
	fill(r.logits, N * E);
	for (int t = 0; t < N; t++) r.logits[t * E + 3] = 9;
	forward(&a, pools[0]);
	for (int t = 0; t < N; t++) ok &= r.row[t] == (uint32_t)t && r.slot[t] == (uint32_t)t;
	say(ok && r.first[3] == 0 && r.first[4] == N, "all tokens to one expert keep their order");
}

static void not_numbers(void)
{
	struct route_args a = route(MT_SIGMOID, 1);
	int ok = 1;
	for (int i = 0; i < N * E; i++) r.logits[i] = NAN;
	forward(&a, pools[0]);
	for (int t = 0; t < N; t++)
		ok &= r.expert[t * K] < E && r.expert[t * K + 1] < E && r.expert[t * K] != r.expert[t * K + 1];
	say(ok, "scores that are not numbers: two experts all the same");
}

static void correction(void)
{
	struct route_args a = route(MT_SIGMOID, 0);
	float bias[E] = {0, 0, 0, 0, 5, 4};
	int ok = 1;
	a.correction = bias;
	fill(r.logits, N * E);
	forward(&a, pools[0]);
	for (int t = 0; t < N; t++)
		ok &= r.expert[t * K] == 4 && fabs(r.weight[t * K] - 1.5 / (1 + exp(-r.logits[t * E + 4]))) < 1e-6;
	say(ok, "a correction decides who is chosen, not the weight");
}

static void groups(void)
{
	static const float logits[E] = {5, -9, 4, 4, 0, 1}; /* groups of two: sums of sigmoids 0.99, 1.96, 1.23 */
	struct route_args a = route(MT_SIGMOID, 1);
	a.groups = 3;
	a.groups_used = 1;
	for (int t = 0; t < N; t++) memcpy(r.logits + t * E, logits, sizeof logits);
	forward(&a, pools[0]);
	say(r.expert[0] == 2 && r.expert[1] == 3, "experts are of the best group, even if another has the best expert");
}

struct token {
	const struct route_args *a;
	double logit[E];
	int t;
};

/* sum of w' dweight in double: the definition, with the experts that were chosen */
static double objective(const void *ctx)
{
	const struct token *token = ctx;
	const struct route_args *a = token->a;
	const double *logit = token->logit;
	int t = token->t;
	double p[E], sum = 0, top = 0, total = 0;
	for (int e = 0; e < E; e++) sum += exp(logit[e]);
	for (int e = 0; e < E; e++) p[e] = a->score == MT_SIGMOID ? 1 / (1 + exp(-logit[e])) : exp(logit[e]) / sum;
	for (int k = 0; k < K; k++) top += p[r.expert[t * K + k]];
	if (!a->renormalise && a->score != MT_TOP_SOFTMAX) top = 1;
	for (int k = 0; k < K; k++) total += p[r.expert[t * K + k]] / top * a->scale * r.dweight[t * K + k];
	return total;
}

static void gradients(enum mt_score score, int renormalise, const char *what)
{
	struct route_args a = route(score, renormalise);
	double worst = 0;
	fill(r.logits, N * E);
	fill(r.dweight, R);
	forward(&a, pools[1]);
	op_route_backward(pools[1], &a);
	for (int t = 0; t < N; t++) {
		struct token token = {.a = &a, .t = t};
		for (int e = 0; e < E; e++) token.logit[e] = r.logits[t * E + e];
		for (int e = 0; e < E; e++)
			worst = fmax(worst, fabs(difference(token.logit + e, 1e-5, objective, &token) - r.dlogits[t * E + e]));
	}
	say(worst < 1e-6, "%s", what);
}

/* ---- grouped GEMM and what is around it ---- */

static float x[R * H], w[E * F * H], y[POOLS][R * F], dw[POOLS][E * F * H], bias[E * F], db[POOLS][E * F];

/* Expert 0 gets no tokens, expert 5 most */
static void uneven(void)
{
	struct route_args a = route(MT_SOFTMAX, 1);
	fill(r.logits, N * E);
	for (int t = 0; t < N; t++) {
		r.logits[t * E] = -50;
		if (t % 5) r.logits[t * E + 5] = 9;
	}
	forward(&a, pools[0]);
	say(r.first[1] == 0 && r.first[6] - r.first[5] >= 29, "one expert has no tokens, one has most");
}

static void grouped(void)
{
	double worst = 0, worst_dw = 0;
	int empty = 1, kept = 1;
	fill(x, R * H);
	fill(w, E * F * H);
	fill(bias, E * F);
	for (int p = 0; p < POOLS; p++) {
		for (int i = 0; i < E * F * H; i++) dw[p][i] = NAN;
		for (int i = 0; i < E * F; i++) db[p][i] = NAN;
		op_grouped_gemm(pools[p],
			&(struct grouped_gemm_args){.experts = E,
				.rows = R,
				.n = F,
				.k = H,
				.first = r.first,
				.a = x,
				.lda = H,
				.b = w,
				.ldb = H,
				.trans_b = 1,
				.c = y[p],
				.ldc = F,
				.stride = F * H,
				.bias = bias,
				.bias_stride = F});
		op_grouped_gemm(pools[p],
			&(struct grouped_gemm_args){.experts = E,
				.rows = R,
				.n = H,
				.k = F,
				.first = r.first,
				.a = y[p],
				.lda = F,
				.b = x,
				.ldb = H,
				.c = dw[p],
				.ldc = H,
				.stride = F * H,
				.sum = 1});
		op_grouped_bias_backward(pools[p],
			&(struct grouped_bias_backward_args){.db = db[p],
				.stride = F,
				.dy = y[p],
				.first = r.first,
				.experts = E,
				.n = F});
	}
	for (int e = 0; e < E; e++) {
		for (uint32_t i = r.first[e]; i < r.first[e + 1]; i++)
			for (int f = 0; f < F; f++) {
				double sum = bias[e * F + f];
				for (int h = 0; h < H; h++) sum += (double)x[i * H + (uint32_t)h] * w[(e * F + f) * H + h];
				worst = fmax(worst, fabs(sum - y[0][i * F + (uint32_t)f]));
			}
		for (int f = 0; f < F; f++)
			for (int h = 0; h < H; h++) {
				double sum = 0;
				for (uint32_t i = r.first[e]; i < r.first[e + 1]; i++)
					sum += (double)y[0][i * F + (uint32_t)f] * x[i * H + (uint32_t)h];
				worst_dw = fmax(worst_dw, fabs(sum - dw[0][(e * F + f) * H + h]));
			}
	}
	say(worst < 1e-5, "each expert multiplies its own rows by its own weights");
	say(worst_dw < 1e-4, "each expert's gradient is summed over its own rows");
	for (int i = 0; i < F * H; i++) empty &= dw[0][i] == 0;
	for (int f = 0; f < F; f++) empty &= db[0][f] == 0;
	say(empty, "the gradients of an expert without tokens are zero");
	dw[1][0] = 7;
	op_grouped_gemm(pools[1],
		&(struct grouped_gemm_args){.experts = 1,
			.n = H,
			.k = F,
			.first = r.first,
			.a = y[1],
			.lda = F,
			.b = x,
			.ldb = H,
			.c = dw[1],
			.ldc = H,
			.stride = F * H,
			.sum = 1,
			.beta = 1});
	kept = dw[1][0] == 7;
	say(kept, "and stay what they were where gradients are added");
	dw[1][0] = dw[0][0];
	say(!memcmp(y[0], y[1], sizeof *y) && !memcmp(y[0], y[2], sizeof *y) && !memcmp(dw[0], dw[1], sizeof *dw) &&
			!memcmp(dw[0], dw[2], sizeof *dw) && !memcmp(db[0], db[2], sizeof *db),
		"one, two and three threads give the same bits");
}

static void combine(void)
{
	static float sum[N * H], tokens[N * H], rows[R * H];
	double worst = 0;
	int same = 1;
	fill(tokens, N * H);
	op_dispatch(pools[2], &(struct dispatch_args){rows, tokens, r.slot, R, K, H});
	for (int s = 0; s < R; s++) same &= !memcmp(rows + r.row[s] * H, tokens + s / K * H, H * sizeof *rows);
	say(same, "each slot's row is its token's");
	op_combine(pools[2],
		&(struct combine_args){.y = sum,
			.add = tokens,
			.x = x,
			.weight = r.weight,
			.row = r.row,
			.n = N,
			.per_token = K,
			.h = H});
	for (int t = 0; t < N; t++)
		for (int h = 0; h < H; h++) {
			double want = tokens[t * H + h];
			for (int k = 0; k < K; k++) want += (double)r.weight[t * K + k] * x[r.row[t * K + k] * H + (uint32_t)h];
			worst = fmax(worst, fabs(want - sum[t * H + h]));
		}
	say(worst < 1e-6, "a token gets the weighted sum of its experts' outputs");
}

/* Experts 0 .. 1, 2 .. 3 and 4 .. 5 one after another */
static void combine_windows(void)
{
	static float tokens[N * H], whole[N * H], sum[N * H];
	struct combine_args a = {.add = tokens, .x = x, .weight = r.weight, .row = r.row, .n = N, .per_token = K, .h = H};
	fill(tokens, N * H);
	a.y = whole;
	op_combine(pools[0], &a);
	for (int e = 0; e < E; e += 2) {
		int last = e + 2 == E;
		a.y = sum;
		a.add = last ? tokens : NULL;
		a.sum = e ? sum : NULL;
		a.from = r.first + e;
		a.to = r.first + e + 2;
		a.partial = !last;
		op_combine(pools[1], &a);
	}
	say(memcmp(whole, sum, sizeof sum) == 0, "experts that are added a window at a time give the same bits");
}

static void combine_backward(void)
{
	static float act[R * F], dact[R * F], dgu[R * 2 * F], before[R * F];
	double worst = 0;
	fill(act, R * F);
	fill(dact, R * F);
	fill(dgu, R * 2 * F);
	memcpy(before, act, sizeof act);
	op_combine_backward(pools[2],
		&(struct combine_backward_args){.dweight = r.dweight,
			.weight = r.weight,
			.slot = r.slot,
			.y = act,
			.dy = dact,
			.dgu = dgu,
			.rows = R,
			.f = F,
			.g = 2 * F});
	for (int i = 0; i < R; i++) {
		double want = 0;
		for (int f = 0; f < F; f++) {
			want += (double)before[i * F + f] * dact[i * F + f];
			worst = fmax(worst, fabs(act[i * F + f] - (double)before[i * F + f] * r.weight[r.slot[i]]));
		}
		worst = fmax(worst, fabs(want - r.dweight[r.slot[i]]));
	}
	say(worst < 1e-5, "the gradient of a weight is the product of output and gradient");
}

int main(void)
{
	for (int i = 0; i < POOLS; i++) pools[i] = pool_create(i + 1, 0, NULL);
	if (!gemm_ready()) return 71;
	ties();
	one_expert();
	not_numbers();
	correction();
	groups();
	gradients(MT_SOFTMAX, 0, "gradients of softmax");
	gradients(MT_SOFTMAX, 1, "gradients of softmax, weights divided by their sum");
	gradients(MT_SIGMOID, 0, "gradients of sigmoid");
	gradients(MT_SIGMOID, 1, "gradients of sigmoid, weights divided by their sum");
	gradients(MT_TOP_SOFTMAX, 0, "gradients of the softmax of the chosen logits");
	uneven();
	grouped();
	combine();
	combine_windows();
	combine_backward();
	for (int i = 0; i < POOLS; i++) pool_free(pools[i]);
	return failures != 0;
}
