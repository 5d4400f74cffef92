/* kernel-head.h: cross-entropy of one row of logits; a row of some 100k floats stays in the second-level cache
 * between its three passes */
#include "ops/head.h"

INLINE float row_max(const float *x, int64_t n)
{
	vf m[4];
	for (int j = 0; j < 4; j++) m[j] = v_set(-INFINITY);
	int64_t i = 0;
	for (; i + 4 * VW <= n; i += 4 * VW)
		for (int j = 0; j < 4; j++) m[j] = v_max(v_load(x + i + j * VW), m[j]);
	float high = v_highest(v_max(v_max(m[0], m[1]), v_max(m[2], m[3])));
	for (; i < n; i++) high = x[i] > high ? x[i] : high;
	return high;
}

enum { EXP_PIECE = 512 }; /* elements that are added up in fp32 */

/* The sum of e^(rate (x - high)) over n elements; store: these become the row */
INLINE float exp_piece(float *row, int64_t n, vf high, float rate, int store)
{
	vf sum[2] = {{0}};
	int64_t i = 0;
	for (; i + 2 * VW <= n; i += 2 * VW)
		for (int j = 0; j < 2; j++) {
			vf e = v_exp((v_load(row + i + j * VW) - high) * v_set(rate));
			sum[j] += e;
			if (store) v_store(row + i + j * VW, e);
		}
	for (; i < n; i += VW) {
		float lanes[VW] = {0};
		vf e = v_exp((v_get(row + i, n - i) - high) * v_set(rate));
		v_put(lanes, n - i, e);
		sum[0] += v_load(lanes);
		if (store) v_put(row + i, n - i, e);
	}
	return v_sum(sum[0] + sum[1]);
}

/* The same over the row. The largest element is 1: an fp32 sum that has it would lose most of a vocabulary's small
 * ones, always downwards. So short pieces are added up in fp32, and these in fp64. */
INLINE double exp_sum(float *row, int64_t vocab, vf high, float rate, int store)
{
	double sum = 0;
	for (int64_t i = 0; i < vocab; i += EXP_PIECE)
		sum += (double)exp_piece(row + i, vocab - i < EXP_PIECE ? vocab - i : EXP_PIECE, high, rate, store);
	return sum;
}

/* row_max ignores a NaN among the logits, but the sum does not: so the result is NaN, as it must be. */
static double cross_entropy(float *row, int64_t target, int64_t vocab, float scale, int backward)
{
	vf high = v_set(row_max(row, vocab));
	double x = (double)row[target], total = exp_sum(row, vocab, high, 1, backward);
	if (backward) {
		vf factor = v_set((float)((double)scale / total));
		for (int64_t i = 0; i < vocab; i += VW) v_put(row + i, vocab - i, v_get(row + i, vocab - i) * factor);
		row[target] -= scale;
	}
	return log(total) + (double)high[0] - x;
}

/* The last pass needs the logits themselves, so it computes their exponentials again */
static double cross_entropy_capped(float *row, int64_t target, int64_t vocab, float scale, float cap)
{
	vf high = v_set(row_max(row, vocab)), one = v_set(1), of_cap = v_set(1 / cap);
	double total = exp_sum(row, vocab, high, 1, 0);
	float x = row[target], t = x * of_cap[0];
	vf factor = v_set((float)((double)scale / total));
	for (int64_t i = 0; i < vocab; i += VW) {
		vf logit = v_get(row + i, vocab - i), part = logit * of_cap;
		v_put(row + i, vocab - i, v_exp(logit - high) * factor * v_fma(-part, part, one));
	}
	row[target] -= scale * (1 - t * t);
	return log(total) + (double)high[0] - (double)x;
}

static float teacher_p(const uint32_t *words, int64_t top, int64_t i)
{
	float p;
	memcpy(&p, words + top + i, sizeof p);
	return p;
}

/* n logits become gradients: of the teacher's part soft e^(rate (x - high)), of the target's hard e^(x - high) */
INLINE void distill_piece(float *row, int64_t n, vf high, float rate, float soft, float hard, float of_cap)
{
	vf one = v_set(1);
	for (int64_t i = 0; i < n; i += VW) {
		vf x = v_get(row + i, n - i), part = x * v_set(of_cap), e = v_exp((x - high) * v_set(rate)) * v_set(soft);
		if (hard != 0) e += v_exp(x - high) * v_set(hard);
		v_put(row + i, n - i, e * v_fma(-part, part, one));
	}
}

/* The row is pieces between the teacher's tokens, which add up to all other tokens: from the sum of all, the teacher's
 * would leave nothing but rounding where the others have little. */
static double distill(float *row, int64_t target, int64_t vocab, const struct teacher *t, const uint32_t *words,
	float scale, float cap, int backward)
{
	float high = row_max(row, vocab), rate = 1 / t->temperature, of_cap = cap != 0 ? 1 / cap : 0;
	float at_target = row[target];
	vf highs = v_set(high);
	double own = 0, others = 0, kl = 0, all = t->hard != 0 ? exp_sum(row, vocab, highs, 1, 0) : 1;
	for (int64_t k = 0, from = 0; k <= t->top; from = words[k++] + 1) {
		int64_t to = k < t->top ? words[k] : vocab;
		others += exp_sum(row + from, to - from, highs, rate, 0);
		if (k < t->top) own += exp((double)rate * ((double)row[to] - (double)high));
		if (k == t->top) break;
	}
	double total = own + others, rest = (double)teacher_p(words, t->top, t->top);
	for (int64_t k = 0; k <= t->top; k++) {
		double p = (double)teacher_p(words, t->top, k);
		double logit = k < t->top ? (double)rate * ((double)row[words[k]] - (double)high) : log(others);
		if (p > 0) kl += p * (log(p) - logit + log(total));
	}
	double soft = (1 - (double)t->hard) / (double)rate, loss = soft / (double)rate * kl;
	if (t->hard != 0) loss += (double)t->hard * (log(all) + (double)high - (double)at_target);
	if (!backward) return loss;
	double of_own = (double)scale * soft / total, hard = (double)scale * (double)t->hard / all;
	double of_others = rest > 0 ? of_own * (1 - rest * total / others) : of_own;
	for (int64_t k = 0, from = 0; k <= t->top; from = words[k++] + 1) {
		int64_t to = k < t->top ? words[k] : vocab;
		distill_piece(row + from, to - from, highs, rate, (float)of_others, (float)hard, of_cap);
		if (k == t->top) break;
		float change = 1 - row[to] * of_cap * row[to] * of_cap;
		distill_piece(row + to, 1, highs, rate, (float)of_own, (float)hard, of_cap);
		row[to] -= scale * (float)soft * teacher_p(words, t->top, k) * change;
	}
	row[target] -= scale * t->hard * (1 - at_target * of_cap * at_target * of_cap);
	return loss;
}

static void cap_logits(float *x, int64_t n, float scale, float cap)
{
	vf inner = v_set(cap != 0 ? scale / cap : scale), outer = v_set(cap);
	if (cap != 0)
		for (int64_t i = 0; i < n; i += VW) v_put(x + i, n - i, v_tanh(v_get(x + i, n - i) * inner) * outer);
	else
		for (int64_t i = 0; i < n; i += VW) v_put(x + i, n - i, v_get(x + i, n - i) * inner);
}
