/* ops.c: every operation of the cpu device beside its definition in double precision, on awkward sizes.
 *
 * Backward definitions are gradients written out, or finite differences of the forward definition. ops-case.h says what
 * a case is.
 *
 *     ops [attention | experts | balance | delta]   all cases, or those of attention, ops-experts.h, ... alone
 */
#include "../../mt-stream/device/device.h"
#include "../../mt-stream/ops/fp8.h"
#include "../../mt-stream/ops/ops.h"
#include "model/bf16.h"
#include "pool.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops-case.h"

/* ---- gemm ---- */

/* x (n of them, `step` apart) as one scale rounds them to e4m3: of all numbers of e4m3, the nearest one */
static void round_to_fp8(double *x, int64_t n, int64_t step)
{
	double largest = 0, scale = ldexp(1, -100);
	for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(x[i * step]));
	while (largest / scale > 448) scale *= 2;
	for (int64_t i = 0; i < n; i++) {
		double at = fabs(x[i * step]) / scale, ulp = ldexp(1, at < ldexp(1, -6) ? -9 : ilogb(at) - 3);
		x[i * step] = copysign(nearbyint(at / ulp) * ulp * scale, x[i * step]);
	}
}

/* a' (m, k) or b' (n, k), of which x has `rows` rows of `width`, ld apart, and the other way round if `columns` */
static const double *fp8_defined(const float *x, int64_t rows, int64_t width, int64_t ld, int columns)
{
	double *y = widened(x, rows * ld);
	if (columns)
		for (int64_t i = 0; i < width; i++) round_to_fp8(y + i, rows, ld);
	else
		for (int64_t i = 0; i < rows; i++) round_to_fp8(y + i * ld, width, 1);
	return y;
}

/* Tensor cores add up FP8 with 14 bits, before they add to fp32; an operand that is rounded otherwise gives 1e-3 */
#define FP8_SUMS 3e-4

/* Rows and columns of very different sizes, one of zeros */
static const float *of_sizes(const float *x, int64_t n, int64_t ld)
{
	float *y = again(x, n);
	for (int64_t i = 0; i < n; i++) y[i] = i / ld == 1 ? 0 : ldexpf(x[i], (int)(i / ld % 7 * 4 - i % ld % 5 * 3));
	return y;
}

/* form: bits 1, 2: transposed; 4: added to c; 8: residual; 16: bf16; 32: fp32 whatever the elements are, as a router's
 * logits; 64: operands are rounded to FP8 */
static void test_gemm(int64_t m, int64_t n, int64_t k, int form)
{
	int ta = form & 1, tb = form >> 1 & 1, beta = form >> 2 & 1, bf16 = form >> 4 & 1, fp32 = form >> 5 & 1;
	int fp8 = form >> 6;
	struct gemm_args g = {.m = m, .n = n, .k = k, .trans_a = ta, .trans_b = tb, .bf16 = bf16, .fp32 = fp32};
	int close = fp8 && m % 8 == 0; /* rows that a GPU reads 16 bytes at a time */
	g.lda = (ta ? m : k) + (close ? 0 : 5);
	g.ldb = (tb ? k : n) + (close ? 0 : 1);
	g.ldc = n + 3;
	int64_t na = (ta ? k : m) * g.lda, nb = (tb ? n : k) * g.ldb;
	const float *a = random_operand(na, bf16 | fp32 | fp8), *b = random_operand(nb, bf16 | fp32 | fp8);
	const float *bias = (form & 7) == 2 ? random_operand(n, bf16 | fp32 | fp8) : NULL;
	const float *add = form & 8 ? random_floats(m * g.ldc) : NULL, *c = beta ? random_floats(m * n) : NULL;
	double *want = doubles(m * n);
	if (fp8 && n % FP8_WIDTH) fp8 = 2;
	if (fp8) {
		a = of_sizes(a, na, g.lda);
		b = of_sizes(b, nb, g.ldb);
		g.fp8 = keep_at((size_t)(fp8_copy_bytes(m, k, 2) + fp8_copy_bytes(n, k, 2)), 0);
	}
	const double *x = fp8 == 1 ? fp8_defined(a, ta ? k : m, ta ? m : k, g.lda, ta) : widened(a, na);
	const double *y = fp8 == 1 ? fp8_defined(b, tb ? n : k, tb ? k : n, g.ldb, !tb) : widened(b, nb);
	g.a = bf16 ? (void *)narrowed(a, na) : a;
	g.b = bf16 ? (void *)narrowed(b, nb) : b;
	g.bias = bf16 && bias ? (void *)narrowed(bias, n) : bias;
	g.add = add;
	g.beta = (float)beta;
	g.c = expect_rows_in(beta ? apart(c, m, n, g.ldc) : not_numbers(m * g.ldc), "c", want, m, n, g.ldc,
		fp32 ? IN_FP32(fp8 && on_card ? FP8_SUMS : 1e-6) : 1e-6);
	RUN(GEMM, g);
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			double sum = (beta ? (double)c[i * n + j] : 0) + (bias ? (double)bias[j] : 0);
			sum += add ? (double)add[i * g.ldc + j] : 0;
			for (int64_t l = 0; l < k; l++)
				sum += x[ta ? l * g.lda + i : i * g.lda + l] * y[tb ? j * g.ldb + l : l * g.ldb + j];
			want[i * n + j] = sum;
		}
	CHECK("gemm %ld x %ld x %ld%s%s%s%s%s%s%s%s", m, n, k, yes(bf16, " of bf16"), yes(fp8, ", rounded to FP8"),
		yes(fp32, " in fp32"), yes(ta, ", a transposed"), yes(tb, ", b transposed"), yes(beta, ", added to c"),
		yes(!!bias, ", bias"), yes(!!add, ", residual"));
}

/* The last of a product's sums: what adding it afterwards would give */
static void test_residual(int64_t m, int64_t n, int64_t k)
{
	const float *a = random_floats(m * k), *b = random_floats(n * k), *bias = random_floats(n),
				*x = random_floats(m * n);
	float *at_once = not_numbers(m * n), *after = not_numbers(m * n);
	struct gemm_args g =
		{.m = m, .n = n, .k = k, .a = a, .lda = k, .b = b, .ldb = k, .trans_b = 1, .c = after, .ldc = n, .bias = bias};
	op_gemm(pools[1], &g);
	g.c = at_once;
	g.add = x;
	op_gemm(pools[2], &g);
	int same = 1;
	for (int64_t i = 0; i < m * n; i++) {
		float sum = after[i] + x[i];
		same &= !memcmp(&sum, at_once + i, sizeof sum);
	}
	say(same, "residual of %ld x %ld x %ld: the bits of a sum afterwards", m, n, k);
	forget();
}

/* ---- bias ---- */

static void test_bias(int64_t m, int64_t n, int64_t ld)
{
	const float *dy = random_floats(m * ld);
	double *want = doubles(n);
	struct bias_backward_args a = {.dy = dy, .m = m, .n = n, .ld = ld};
	for (int added = 0; added < 2; added++) {
		a.db = expect_sum("db", want, n, 1e-6, added);
		a.beta = (float)added;
		RUN(BIAS_BACKWARD, a);
	}
	for (int64_t i = 0; i < m * ld; i++)
		if (i % ld < n) want[i % ld] += (double)dy[i];
	CHECK("bias backward %ld x %ld, rows %ld apart", m, n, ld);
}

/* ---- embedding ---- */

static double sine_defined(const struct sines *s, int64_t position, int64_t h, int64_t i)
{
	double angle = (double)position * exp(-(double)(i % (h / 2)) * (double)s->step);
	return position == s->zero ? 0 : i < h / 2 ? sin(angle) : cos(angle);
}

/* seq: learned positions, or with `sines` these, of rows of this length, documents of 7 and some padding; 0: none */
static void test_embed(int64_t n, int64_t h, int64_t vocab, float scale, int64_t seq, int sines)
{
	int64_t offset = seq % 3, rows = seq ? seq + offset + 1 : 0;
	const float *w = random_floats(vocab * h), *dx = random_floats(n * h),
				*table = seq && !sines ? random_floats(rows * h) : NULL;
	uint32_t *tokens = indices(n);
	struct positions at = {.rows = rows, .offset = offset, .seq = seq};
	at.starts = seq ? documents(n / seq, seq, 7, 3) : NULL;
	double *x = doubles(n * h), *dw = doubles(vocab * h), *unpadded = doubles(vocab * h), *dtable = doubles(rows * h);
	struct embed_forward_args f =
		{.w = w, .tokens = tokens, .n = n, .h = h, .vocab = seq ? 0 : vocab, .scale = scale, .table = table, .at = at};
	if (sines) f.sines = (struct sines){0.3f, 4};
	struct embed_backward_args b =
		{.dx = dx, .tokens = tokens, .n = n, .h = h, .vocab = vocab, .scale = scale, .at = at};
	f.x = expect("x", x, n * h, scale == 1 && !seq ? 0 : sines ? 4e-7 : 1e-7);
	RUN(EMBED_FORWARD, f);
	for (int added = 0; added < 2; added++) {
		b.dw = expect_sum(added ? "dw without padding" : "dw", added ? unpadded : dw, vocab * h, 1e-6, added);
		b.dtable = table ? expect_sum("dtable", dtable, rows * h, 1e-6, added) : NULL;
		b.pad = added ? 1 : -1;
		b.beta = (float)added;
		RUN(EMBED_BACKWARD, b);
	}
	for (int64_t t = 0; t < n; t++) {
		int64_t row = seq ? t % seq - at.starts[t] + offset : 0;
		tokens[t] = (uint32_t)(uniform() * uniform() * (double)(vocab + (seq ? 0 : 2)));
		int64_t of = tokens[t] < vocab ? tokens[t] : 0;
		for (int64_t i = 0; i < h; i++) {
			double d = (double)dx[t * h + i];
			x[t * h + i] = (double)scale * (double)w[of * h + i] + (table ? (double)table[row * h + i] : 0);
			if (sines) x[t * h + i] += sine_defined(&f.sines, row, h, i);
			dw[of * h + i] += (double)scale * d;
			unpadded[of * h + i] += of == 1 ? 0 : (double)scale * d;
			if (table) dtable[row * h + i] += d;
		}
	}
	CHECK("embedding of %ld tokens, %ld wide, times %g%s", n, h, (double)scale,
		yes(seq, sines ? ", sines" : ", positions"));
}

/* ---- attention ---- */

static struct sinks_backward_args sinks_of(const struct attention_args *a, float *dsinks)
{
	return (struct sinks_backward_args){.dsinks = dsinks,
		.sinks = a->sinks,
		.o = a->o,
		.d_o = a->d_o,
		.lse = a->lse,
		.n = a->n,
		.heads = a->heads,
		.dim = attention_dim_v(a)};
}

static double bf16_of(double x)
{
	float f = (float)x;
	uint32_t bits;
	memcpy(&bits, &f, sizeof bits);
	return (double)bf16_float(bf16_round(bits));
}

/* ALiBi: a head's bias of a key at that position of its document */
static double bias_defined(const struct alibi *a, int64_t head, int64_t position)
{
	double n = exp2(floor(log2((double)a->heads))), h = (double)(a->first + head), slope;
	slope = exp2((double)-a->max * (h < n ? (h + 1) / n : (h - n + 0.5) / n));
	if (!a->rounded) return (double)a->scale * slope * (double)position;
	return (double)a->scale * bf16_of(bf16_of(slope) * bf16_of((double)position));
}

/* The scores of one query of head h, of the keys first .. t; slope: by which the cap multiplies their gradient */
static void scores_defined(const struct attention_args *a, int64_t t, int64_t first, int64_t h, int64_t at_q,
	int64_t to_k, const float *qkv, double *score, double *slope)
{
	int64_t wide = attention_row(a), at = t % a->seq - a->starts[t];
	for (int64_t j = first; j <= t; j++) {
		score[j] = 0;
		for (int64_t i = 0; i < a->dim; i++) score[j] += (double)qkv[at_q + i] * (double)qkv[j * wide + to_k + i];
		score[j] *= (double)a->scale;
		slope[j] = 1;
		if (a->alibi.max != 0) score[j] += bias_defined(&a->alibi, h, at + j - t) - bias_defined(&a->alibi, h, at);
		if (a->cap == 0) continue;
		double share = tanh(score[j] / (double)a->cap);
		score[j] = (double)a->cap * share;
		slope[j] = 1 - share * share;
	}
}

/* one head of one query: o, lse, and the gradients, added; p: scratch of 2 N */
static void attention_defined(const struct attention_args *a, int64_t t, int64_t h, double *o, double *lse,
	double *dqkv, double *dsinks, const float *d_o, const float *qkv, double *p)
{
	int64_t dim = a->dim, dim_v = attention_dim_v(a), wide = attention_row(a), at_q = t * wide + h * dim;
	int64_t kv = h / (a->heads / a->kv_heads), to_k = (a->heads + kv) * dim;
	int64_t to_v = (a->heads + a->kv_heads) * dim + kv * dim_v;
	int64_t row = t / a->seq * a->seq, first = row + a->starts[t];
	if (a->window && first < t - a->window + 1) first = t - a->window + 1;
	double *slope = p + a->n, sink = a->sinks ? (double)((const float *)a->sinks)[h] : -INFINITY;
	double high = sink, sum = 0, delta = 0;
	scores_defined(a, t, first, h, at_q, to_k, qkv, p, slope);
	for (int64_t j = first; j <= t; j++) high = p[j] > high ? p[j] : high;
	for (int64_t j = first; j <= t; j++) sum += p[j] = exp(p[j] - high);
	sum += exp(sink - high);
	*lse = high + log(sum);
	for (int64_t j = first; j <= t; j++) {
		p[j] /= sum;
		for (int64_t i = 0; i < dim_v; i++) o[i] += p[j] * (double)qkv[j * wide + to_v + i];
	}
	for (int64_t i = 0; i < dim_v; i++) delta += o[i] * (double)d_o[i];
	dsinks[h] -= exp(sink - high) / sum * delta;
	for (int64_t j = first; j <= t; j++) {
		double dp = 0;
		for (int64_t i = 0; i < dim_v; i++) {
			dp += (double)d_o[i] * (double)qkv[j * wide + to_v + i];
			dqkv[j * wide + to_v + i] += p[j] * (double)d_o[i];
		}
		double ds = p[j] * (dp - delta) * slope[j] * (double)a->scale;
		for (int64_t i = 0; i < dim; i++) {
			dqkv[at_q + i] += ds * (double)qkv[j * wide + to_k + i];
			dqkv[j * wide + to_k + i] += ds * (double)qkv[at_q + i];
		}
	}
}

/* without and with a cap and sinks, or ALiBi; a cap that large scores reach and small ones do not feel. dim_v 0: dim */
static void test_attention(int64_t rows, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim, int64_t dim_v,
	int64_t window, int64_t length, int64_t padding)
{
	int64_t n = rows * seq;
	for (int knobs = 0; knobs < 5; knobs += brief && n > 130 ? 3 : 1) {
		struct attention_args a =
			{.n = n, .seq = seq, .heads = heads, .kv_heads = kv_heads, .dim = dim, .dim_v = dim_v};
		int64_t out = heads * attention_dim_v(&a), wide = attention_row(&a);
		const float *qkv = random_floats(n * wide), *d_o = random_floats(n * out);
		double *o = doubles(n * out), *lse = doubles(n * heads), *dqkv = doubles(n * wide), *p = doubles(2 * n);
		double *dsinks = doubles(heads), loose = fmax(3e-6, 4 * slack); /* sums over tokens of terms of either sign */
		char of_v[24] = "";
		a.window = window;
		a.scale = 1.0f / sqrtf((float)dim);
		a.cap = knobs & 1 ? 1.5f : 0;
		a.sinks = knobs & 2 ? random_floats(heads) : NULL;
		bool rounded = (heads + seq) % 3 == 0;
		if (knobs & 4) a.alibi = (struct alibi){4, rounded ? 0.5f : 1, rounded, heads + 3, n % 3};
		a.starts = documents(rows, seq, length, padding);
		a.qkv = qkv;
		a.o = expect("o", o, n * out, 6e-7);
		a.lse = expect("lse", lse, n * heads, 4e-7);
		RUN(ATTENTION_FORWARD, a);
		a.d_o = d_o;
		a.dqkv = expect("dqkv", dqkv, n * wide, 1e-6);
		RUN(ATTENTION_BACKWARD, a);
		for (int added = 0; a.sinks && added < 2; added++) {
			struct sinks_backward_args b = sinks_of(&a, expect_sum("dsinks", dsinks, heads, loose, added));
			b.beta = (float)added;
			RUN(SINKS_BACKWARD, b);
		}
		for (int64_t i = 0; i < n * heads; i++)
			attention_defined(&a, i / heads, i % heads, o + i * (out / heads), lse + i, dqkv, dsinks,
				d_o + i * (out / heads), qkv, p);
		if (dim_v) snprintf(of_v, sizeof of_v, " and %ld", dim_v);
		CHECK("attention %ld x %ld, %ld/%ld heads of %ld%s, window %ld, documents of %ld%s%s%s%s", rows, seq, heads,
			kv_heads, dim, of_v, window, length, yes(a.cap != 0, ", cap"), yes(!!a.sinks, ", sinks"),
			yes(a.alibi.max != 0, a.alibi.rounded ? ", rounded ALiBi" : ", ALiBi"), yes(of_bf16, ", bf16"));
	}
}

/* Memory and operands for one row of n tokens, a document */
static struct attention_args some_attention(int64_t n, int64_t heads, int64_t kv_heads, int64_t dim)
{
	int64_t wide = (heads + 2 * kv_heads) * dim;
	struct attention_args a = {.n = n, .seq = n, .heads = heads, .kv_heads = kv_heads, .dim = dim, .scale = 0.2f};
	a.starts = documents(1, n, 0, 0);
	a.qkv = random_floats(n * wide);
	a.o = not_numbers(n * heads * dim);
	a.lse = not_numbers(n * heads);
	a.d_o = random_floats(n * heads * dim);
	a.dqkv = not_numbers(n * wide);
	return a;
}

/* `part` has the bits of `whole` from its token `from` on; backward: of the gradients, too */
static void expect_part(const struct attention_args *part, const struct attention_args *whole, int64_t from,
	int backward)
{
	int64_t n = part->n, heads = part->heads, out = heads * part->dim, wide = attention_row(part);
	expect_same("o", part->o, (float *)whole->o + from * out, n * out);
	expect_same("lse", part->lse, whole->lse + from * heads, n * heads);
	if (backward) expect_same("dqkv", part->dqkv, (float *)whole->dqkv + from * wide, n * wide);
}

enum { HEADS = 4, KV_HEADS = 2, DIM = 20, WIDE = (HEADS + 2 * KV_HEADS) * DIM };

/* The last n queries of a document give the same bits computed alone, `past` keys before them */
static void test_past(int64_t past, int64_t n, float cap)
{
	struct attention_args a = some_attention(past + n, HEADS, KV_HEADS, DIM);
	struct attention_args end = some_attention(n, HEADS, KV_HEADS, DIM);
	a.window = end.window = 100;
	a.cap = end.cap = cap;
	a.sinks = end.sinks = cap != 0 ? random_floats(HEADS) : NULL;
	end.past = past;
	end.qkv = (const float *)a.qkv + past * WIDE;
	RUN(ATTENTION_FORWARD, a);
	RUN(ATTENTION_FORWARD, end);
	expect_part(&end, &a, past, 0);
	CHECK("attention of %ld queries after %ld tokens%s: the bits of the whole document", n, past,
		yes(cap != 0, ", cap, sinks"));
}

/* A document gives the same bits in a packed row as alone, and does not see infinities beside it. */
static void test_isolation(int64_t before, int64_t length, int64_t after, float cap)
{
	int64_t seq = before + length + after;
	struct attention_args a = some_attention(seq, HEADS, KV_HEADS, DIM);
	struct attention_args alone = some_attention(length, HEADS, KV_HEADS, DIM);
	float *qkv = random_floats(seq * WIDE);
	uint32_t *starts = keep((size_t)seq * sizeof *starts);
	for (int64_t t = 0; t < seq; t++) {
		starts[t] = (uint32_t)(t < before ? 0 : t < before + length ? before : before + length);
		if (t < before || t >= before + length)
			for (int64_t i = 0; i < WIDE; i++) qkv[t * WIDE + i] = i % 3 ? INFINITY : NAN;
	}
	a.starts = starts;
	a.qkv = qkv;
	alone.qkv = qkv + before * WIDE;
	alone.d_o = (const float *)a.d_o + before * HEADS * DIM;
	a.cap = alone.cap = cap;
	a.sinks = alone.sinks = cap != 0 ? random_floats(HEADS) : NULL;
	RUN(ATTENTION_FORWARD, a);
	RUN(ATTENTION_BACKWARD, a);
	RUN(ATTENTION_FORWARD, alone);
	RUN(ATTENTION_BACKWARD, alone);
	expect_part(&alone, &a, before, 1);
	int same = run_case();
	say(same && isfinite(*(const float *)seen(alone.o, 0)) && isfinite(*(const float *)seen(alone.dqkv, 0)),
		"attention of a document of %ld%s beside others and alone: same bits", length,
		yes(cap != 0, " with a cap and sinks"));
	forget();
}

/* One row of n tokens and two heads of 8, forward, backward and the sinks' gradient */
struct small {
	struct attention_args a;
	float *qkv, *o, *lse, *dqkv, *sinks, *dsinks;
};

enum { SMALL = 5, SMALL_DIM = 8, SMALL_WIDE = 6 * SMALL_DIM, SMALL_OUT = 2 * SMALL_DIM };

static struct small small_attention(void)
{
	struct small s = {.a = some_attention(SMALL, 2, 2, SMALL_DIM),
		.qkv = random_floats(SMALL * SMALL_WIDE),
		.sinks = random_floats(2),
		.dsinks = random_floats(2)};
	s.a.scale = 1;
	s.a.cap = 2;
	s.a.qkv = s.qkv;
	s.a.sinks = s.sinks;
	s.o = s.a.o;
	s.lse = s.a.lse;
	s.dqkv = s.a.dqkv;
	return s;
}

static void small_run(struct small *s)
{
	attend(pools[0], &s->a);
	attend_back(pools[0], &s->a);
	if (!s->a.sinks) return;
	struct sinks_backward_args b = sinks_of(&s->a, s->dsinks);
	op_sinks_backward(pools[0], &b);
}

static int all_finite(const float *x, int64_t n)
{
	int good = 1;
	for (int64_t i = 0; i < n; i++) good &= !!isfinite(x[i]);
	return good;
}

/* Infinite scores become the cap, and have no gradient */
static void test_infinite_scores(void)
{
	struct small s = small_attention();
	s.a.sinks = NULL;
	for (int i = 0; i < SMALL_DIM; i++) /* the last query of head 0 meets scores of inf, inf, -inf, 0, 0 */
		for (int t = 0; t < SMALL; t++) {
			s.qkv[t * SMALL_WIDE + i] = 1e25f;
			s.qkv[t * SMALL_WIDE + 2 * SMALL_DIM + i] = t < 2 ? 1e25f : t == 2 ? -1e25f : 0;
		}
	small_run(&s);
	double want = log(2 * exp(2) + exp(-2) + 2), got = (double)s.lse[(SMALL - 1) * 2], slopes = 0;
	for (int i = 0; i < SMALL_DIM; i++) slopes += fabs((double)s.dqkv[2 * SMALL_WIDE + 2 * SMALL_DIM + i]);
	say(fabs(got - want) < 1e-6 && all_finite(s.o, SMALL * SMALL_OUT) && slopes == 0,
		"infinite scores become the cap, without gradient: lse %.8g for %.8g", got, want);
	forget();
}

static void test_attention_not_a_number(float cap)
{
	struct small s = small_attention();
	s.a.cap = cap;
	s.qkv[2 * SMALL_WIDE] = NAN; /* query 2 of head 0 */
	small_run(&s);
	int good = isnan(s.o[2 * SMALL_OUT]) && isnan(s.lse[2 * 2]) && isnan(s.dqkv[2 * SMALL_WIDE]) && isnan(s.dsinks[0]);
	good &= all_finite(s.o, 2 * SMALL_OUT) && all_finite(s.o + 3 * SMALL_OUT, 2 * SMALL_OUT);
	for (int t = 0; t < SMALL; t++) good &= all_finite(s.o + t * SMALL_OUT + SMALL_DIM, SMALL_DIM);
	say(good && isfinite(s.dsinks[1]), "attention with NaN in a query%s: NaN there alone, and in its sink's gradient",
		yes(cap != 0, ", cap"));
	forget();
	s = small_attention();
	s.a.cap = cap;
	s.sinks[1] = NAN;
	small_run(&s);
	good = isnan(s.dsinks[1]) && isfinite(s.dsinks[0]);
	for (int t = 0; t < SMALL; t++) {
		good &= all_finite(s.o + t * SMALL_OUT, SMALL_DIM) && isnan(s.o[t * SMALL_OUT + SMALL_DIM]);
		good &= isfinite(s.lse[t * 2]) && isnan(s.lse[t * 2 + 1]);
	}
	say(good, "a sink of NaN%s: NaN in its head alone", yes(cap != 0, ", cap"));
	forget();
}

/* Sinks of -inf and of much less than every score: the bits of attention without sinks, and gradients of 0 */
static void test_low_sinks(float sink, float cap)
{
	struct small s = small_attention();
	s.a.cap = cap;
	s.a.window = 2;
	s.sinks[0] = s.sinks[1] = sink;
	small_run(&s);
	float *o = again(s.o, SMALL * SMALL_OUT), *lse = again(s.lse, SMALL * 2), *dqkv = again(s.dqkv, SMALL * SMALL_WIDE);
	s.a.sinks = NULL;
	small_run(&s);
	say(!memcmp(o, s.o, SMALL * SMALL_OUT * 4) && !memcmp(lse, s.lse, SMALL * 2 * 4) &&
			!memcmp(dqkv, s.dqkv, SMALL * SMALL_WIDE * 4) && s.dsinks[0] == 0 && s.dsinks[1] == 0,
		"sinks of %g%s: the bits of no sinks, and gradients of 0", (double)sink, yes(cap != 0, ", cap"));
	forget();
}

static void test_attention_extremes(void)
{
	test_infinite_scores();
	for (int capped = 0; capped < 2; capped++) {
		test_attention_not_a_number(2 * (float)capped);
		test_low_sinks(-INFINITY, 2 * (float)capped);
		test_low_sinks(-1e30f, 2 * (float)capped);
	}
}

/* ---- cross-entropy ---- */

/* weighted: with weights of all kinds, among them 0 and below 0 */
static void test_head(int64_t n, int64_t vocab, float scale, float cap, int none, int weighted)
{
	float *raw = random_floats(n * vocab), *weights = random_floats(n);
	uint32_t *targets = indices(n);
	double *logits = doubles(n * vocab), *grad = doubles(n * vocab), loss = 0, most = 0, k = (double)scale,
		   c = (double)cap;
	struct loss *losses[2];
	int plain = scale == 1 && cap == 0, good = 1; /* most models' logits are neither scaled nor capped */
	int64_t count = 0;
	for (int64_t r = 0; r < n; r++) {
		double *x = logits + r * vocab, *d = grad + r * vocab, sum = 0;
		targets[r] = none || r % 5 == 2 ? UINT32_MAX : (uint32_t)(uniform() * (double)vocab);
		weights[r] = weighted ? (r % 3 == 1 ? 0 : 2 * weights[r]) : 1;
		for (int64_t i = 0; i < vocab; i++) {
			raw[r * vocab + i] *= 3;
			x[i] = k * (double)raw[r * vocab + i];
			if (cap != 0) x[i] = c * tanh(x[i] / c);
			sum += exp(x[i]);
		}
		if (targets[r] == UINT32_MAX) continue;
		for (int64_t i = 0; i < vocab; i++)
			d[i] = (double)weights[r] * 0.01 * (exp(x[i]) / sum - (i == targets[r])) * k *
				(cap != 0 ? 1 - x[i] / c * (x[i] / c) : 1);
		loss += (double)weights[r] * (log(sum) - x[targets[r]]);
		most += fabs((double)weights[r]) * (log(sum) - x[targets[r]]);
		count++;
	}
	for (int backward = 0; backward < 2; backward++) { /* the gradient is that of what the logits were */
		struct cross_entropy_args a = {.targets = targets, .n = n, .vocab = vocab, .scale = 0.01f};
		a.backward = backward;
		double bound = backward ? (plain ? 1e-6 : 2e-6) : plain ? 0 : 4e-7;
		a.logits = expect_in(again(raw, n * vocab), backward ? "gradient" : "logits", backward ? grad : logits,
			n * vocab, bound);
		a.weights = weighted ? weights : NULL;
		a.loss = losses[backward] = keep_at(sizeof *a.loss, 0);
		a.logit_scale = plain ? 0 : scale;
		a.cap = cap;
		struct cap_logits_args capped = {.logits = a.logits, .n = n * vocab, .scale = scale, .cap = cap};
		if (!plain) RUN(CAP_LOGITS, capped);
		RUN(CROSS_ENTROPY, a);
	}
	compare("cross-entropy %ld x %ld, logits times %g, cap %g%s%s", n, vocab, k, c, yes(none, ", no targets"),
		yes(weighted, ", weights"));
	const struct loss *first = seen(losses[0], 0);
	for (int i = 0; i < 2 * POOLS; i++) {
		const struct loss *l = seen(losses[i % 2], i / 2);
		good &= l->targets == count && l->sum == first->sum && fabs(l->sum - loss) <= fmax(3e-7, slack) * most + 1e-15;
	}
	say(good, "%s: loss %.9g for %.9g over %ld targets", case_name, first->sum, loss, count);
	forget();
}

/* Losses of rows, of logits with many ties: those below 0 are of targets that are the first of the largest */
static void test_greedy(int64_t n, int64_t vocab)
{
	float *logits = random_floats(n * vocab);
	uint32_t *targets = keep((size_t)n * sizeof *targets);
	double *losses = doubles(n), all = 0;
	struct loss loss = {0};
	int good = 1, greedy = 0;
	for (int64_t i = 0; i < n * vocab; i++) logits[i] = roundf(2 * logits[i]) / 2;
	for (int64_t r = 0; r < n; r++) {
		int64_t target = (int64_t)(uniform() * (double)vocab);
		for (int64_t i = 0; i < vocab && r % 3; i++) /* the first or the last of the largest */
			if (logits[r * vocab + i] >= logits[r * vocab + target] + (r % 3 == 1 ? 0.25f : 0)) target = i;
		targets[r] = r % 7 == 6 ? UINT32_MAX : (uint32_t)target;
	}
	struct cross_entropy_args a = {.logits = logits, .targets = targets, .n = n, .vocab = vocab, .scale = 1};
	a.loss = &loss;
	a.losses = losses;
	op_cross_entropy(pools[1], &a);
	for (int64_t r = 0; r < n; r++) {
		const float *x = logits + r * vocab;
		double sum = 0;
		int64_t first = 0;
		for (int64_t i = 0; i < vocab; i++) {
			sum += exp((double)x[i]);
			if (x[i] > x[first]) first = i;
		}
		if (targets[r] == UINT32_MAX) {
			good &= losses[r] == 0;
			continue;
		}
		double want = log(sum) - (double)x[targets[r]];
		good &= fabs(fabs(losses[r]) - want) < 1e-5 && !signbit(losses[r]) == (first != targets[r]);
		greedy += first == targets[r];
		all += fabs(losses[r]);
	}
	say(good && fabs(loss.sum - all) <= 1e-12 * all,
		"cross-entropy %ld x %ld: %d losses are marked as of the likeliest", n, vocab, greedy);
	forget();
}

/* ---- a teacher ---- */

/* A teacher's words of a row: some ids, ascending, and probabilities of these and, with rest, of all others */
static void draw_teacher(uint32_t *ids, int64_t vocab, int64_t top, int rest)
{
	float *p = (float *)(ids + top);
	double sum = 0;
	for (int64_t i = 0, n = 0; i < vocab && n < top; i++)
		if (uniform() * (double)(vocab - i) < (double)(top - n)) ids[n++] = (uint32_t)i;
	for (int64_t k = 0; k <= top; k++) {
		p[k] = k < top ? (float)(k % 4 == 3 ? 0 : uniform() + 0.01) : rest && top < vocab ? 0.3f : 0;
		sum += (double)p[k];
	}
	for (int64_t k = 0; k <= top; k++) p[k] = (float)((double)p[k] / sum);
}

/* From logits x, their gradient d without the scale, and the loss */
static double teach(const uint32_t *ids, int64_t top, const double *x, double *d, int64_t vocab, uint32_t target,
	double t, double hard)
{
	const float *p = (const float *)(ids + top);
	double all = 0, total = 0, others = 0, kl = 0, rest = (double)p[top];
	int64_t k = 0;
	for (int64_t i = 0; i < vocab; i++) {
		int own = k < top && ids[k] == i;
		all += exp(x[i]);
		total += exp(x[i] / t);
		others += own ? 0 : exp(x[i] / t);
		k += own;
	}
	for (k = 0; k < top; k++)
		if (p[k] > 0) kl += (double)p[k] * (log((double)p[k]) - x[ids[k]] / t + log(total));
	if (rest > 0) kl += rest * log(rest * total / others);
	k = 0;
	for (int64_t i = 0; i < vocab; i++) {
		int own = k < top && ids[k] == i;
		double q = exp(x[i] / t) / total, want = own ? (double)p[k] : rest > 0 ? rest * exp(x[i] / t) / others : 0;
		d[i] = (1 - hard) * t * (q - want) + hard * (exp(x[i]) / all - (i == target));
		k += own;
	}
	return (1 - hard) * t * t * kl + hard * (log(all) - x[target]);
}

static void test_teacher(int64_t n, int64_t vocab, int64_t top, float t, float hard, int rest, float scale, float cap)
{
	float *raw = random_elements(n * vocab), *weights = random_floats(n);
	uint32_t *targets = indices(n), *words = indices(n * (2 * top + 1));
	double *logits = doubles(n * vocab), *grad = doubles(n * vocab), loss = 0, most = 0, k = (double)scale;
	struct loss *losses[2];
	int plain = scale == 1 && cap == 0, good = 1;
	for (int64_t r = 0; r < n; r++) {
		double *x = logits + r * vocab, *d = grad + r * vocab, c = (double)cap;
		targets[r] = r % 5 == 2 ? UINT32_MAX : (uint32_t)(uniform() * (double)vocab);
		weights[r] = r % 3 == 1 ? 0 : 2 * weights[r];
		draw_teacher(words + r * (2 * top + 1), vocab, top, rest);
		for (int64_t i = 0; i < vocab; i++) {
			raw[r * vocab + i] *= 4;
			x[i] = k * (double)raw[r * vocab + i];
			if (cap != 0) x[i] = c * tanh(x[i] / c);
		}
		if (targets[r] == UINT32_MAX || weights[r] == 0) continue;
		double of_row = teach(words + r * (2 * top + 1), top, x, d, vocab, targets[r], (double)t, (double)hard);
		for (int64_t i = 0; i < vocab; i++)
			d[i] *= (double)weights[r] * 0.01 * k * (cap != 0 ? 1 - x[i] / c * (x[i] / c) : 1);
		loss += (double)weights[r] * of_row;
		most += fabs((double)weights[r]) * (of_row + (double)(t * t)); /* KL is a difference of larger sums */
	}
	for (int backward = 0; backward < 2; backward++) {
		struct cross_entropy_args a = {.targets = targets, .n = n, .vocab = vocab, .scale = 0.01f};
		a.backward = backward;
		a.logits = expect_in(again(raw, n * vocab), backward ? "gradient" : "logits", backward ? grad : logits,
			n * vocab, backward ? fmax(4e-6, 2 * slack) : 4e-7);
		a.weights = weights;
		a.loss = losses[backward] = keep_at(sizeof *a.loss, 0);
		a.logit_scale = plain ? 0 : scale;
		a.cap = cap;
		a.teacher = (struct teacher){words, top, t, hard};
		struct cap_logits_args capped = {.logits = a.logits, .n = n * vocab, .scale = scale, .cap = cap};
		if (!plain) RUN(CAP_LOGITS, capped);
		RUN(CROSS_ENTROPY, a);
	}
	compare("a teacher's %ld of %ld tokens%s, t %g, hard %g, logits times %g, cap %g", top, vocab,
		yes(rest, " and all others"), (double)t, (double)hard, k, (double)cap);
	const struct loss *first = seen(losses[0], 0);
	for (int i = 0; i < 2 * POOLS; i++) {
		const struct loss *l = seen(losses[i % 2], i / 2);
		good &= l->sum == first->sum && fabs(l->sum - loss) <= fmax(1e-6, slack) * most + 1e-15;
	}
	say(good, "%s: loss %.9g for %.9g", case_name, first->sum, loss);
	forget();
}

/* A student that gives all other tokens next to nothing: their share is not what is left of 1 */
static void test_small_rest(void)
{
	enum { V = 1000, TOP = 2, WORDS = 2 * TOP + 1 };
	float *x = random_elements(V), *got = not_numbers(V);
	uint32_t *words = indices(WORDS), target = 1;
	double *wide = doubles(V), *want = doubles(V), error = 0, norm = 0;
	struct loss loss = {0};
	words[0] = 1;
	words[1] = 500;
	memcpy(words + TOP, (float[]){0.5f, 0.4999f, 0.0001f}, (TOP + 1) * sizeof *words);
	x[1] = x[500] = 30;
	for (int i = 0; i < V; i++) wide[i] = (double)x[i];
	double right = teach(words, TOP, wide, want, V, target, 1, 0);
	memcpy(got, x, V * sizeof *x);
	struct cross_entropy_args a = {.logits = got, .targets = &target, .n = 1, .vocab = V, .scale = 1, .backward = 1};
	a.loss = &loss;
	a.teacher = (struct teacher){words, TOP, 1, 0};
	op_cross_entropy(pools[0], &a);
	for (int i = 0; i < V; i++) {
		double d = (double)got[i] - want[i];
		error += i == 1 || i == 500 ? 0 : d * d;
		norm += i == 1 || i == 500 ? 0 : want[i] * want[i];
	}
	say(sqrt(error / norm) < fmax(1e-5, slack) && fabs(loss.sum - right) < 1e-6 * right,
		"all other tokens with 1e-12 of the mass: loss %.9g for %.9g, gradient off by %.1e", loss.sum, right,
		sqrt(error / norm));
	forget();
}

/* The most likely tokens of logits with many ties */
static void test_top(int64_t n, int64_t vocab, int64_t top)
{
	int64_t width = 2 * top + 1;
	float *logits = random_floats(n * vocab);
	uint32_t *targets = indices(n), *words = expect_bits("words", indices(n * width), n * width);
	uint32_t *want = (uint32_t *)parts[parts_n - 1].twin;
	double *losses = doubles(n);
	for (int64_t i = 0; i < n * vocab; i++) logits[i] = roundf(4 * logits[i]) / 4;
	for (int64_t r = 0; r < n; r++) {
		const float *x = logits + r * vocab;
		uint32_t *ids = want + r * width;
		float *logp = (float *)(ids + top);
		double sum = 0, mass = 0;
		int64_t k = 0;
		targets[r] = r % 7 == 6 ? UINT32_MAX : (uint32_t)(uniform() * (double)vocab);
		if (targets[r] == UINT32_MAX) continue;
		for (int64_t i = 0; i < vocab; i++) sum += exp((double)x[i]);
		losses[r] = (r % 2 ? -1 : 1) * (log(sum) - (double)x[targets[r]]);
		for (int64_t i = 0; i < vocab; i++) {
			int64_t before = 0;
			for (int64_t j = 0; j < vocab; j++) before += x[j] > x[i] || (x[j] == x[i] && j < i);
			if (before >= top) continue;
			double log_p = (double)x[i] - (fabs(losses[r]) + (double)x[targets[r]]);
			logp[k] = (float)log_p;
			ids[k++] = (uint32_t)i;
			mass += exp(log_p);
		}
		logp[top] = top < vocab ? (float)log1p(-mass) : -INFINITY;
	}
	struct top_args a = {logits, targets, losses, n, vocab, top, words};
	RUN(TOP, a);
	int good = run_case();
	const uint32_t *got = seen(words, 0);
	for (int64_t i = 0; i < n * width && !good; i++) { /* sums of all others may differ in their order */
		float x, y;
		memcpy(&x, got + i, 4);
		memcpy(&y, want + i, 4);
		if (got[i] != want[i] && (i % width != width - 1 || !(fabsf(x - y) < 1e-5f * fabsf(y)))) break;
		good = i + 1 == n * width;
	}
	say(good && bits_agree, "the %ld likeliest of %ld tokens", top, vocab);
	forget();
}

static void test_teachers(void)
{
	for (int64_t vocab = 3; vocab < (brief ? 400 : 3000); vocab = 3 * vocab + 2)
		for (int64_t top = 1; top <= vocab; top = 7 * top < vocab || top == vocab ? 7 * top : vocab) {
			if (top > 400) break;
			test_top(15, vocab, top);
			for (int rest = 0; rest < 2; rest++) {
				test_teacher(11, vocab, top, 1, 0, rest, 1, 0);
				test_teacher(11, vocab, top, 1, 0.25f, rest, 0.5f, 0);
			}
			test_teacher(11, vocab, top, 2, 0.5f, 0, 1, 5);
		}
	test_small_rest();
}

/* ---- the rest ---- */

static void test_not_a_number(void)
{
	enum { N = 3, V = 37 };
	uint32_t targets[N] = {1, 2, 3};
	for (int where = 0; where < V; where += 6) {
		float *logits = random_floats(N * V);
		struct loss loss = {0};
		logits[V + where] = NAN;
		struct cross_entropy_args a = {.logits = logits, .targets = targets, .n = N, .vocab = V, .scale = 1};
		a.backward = 1;
		a.loss = &loss;
		op_cross_entropy(pools[1], &a);
		say(isnan(loss.sum), "cross-entropy with NaN at %d is NaN", where);
		forget();
	}
	float *gu = random_floats(2 * V), *y = random_floats(V), *w = random_floats(V), rstd;
	gu[5] = NAN;
	op_activation_forward(pools[0], &(struct activation_args){.y = y, .gu = gu, .n = 1, .f = V});
	say(isnan(y[5]) && isfinite(y[4]), "swiglu of NaN is NaN");
	op_norm_forward(pools[0],
		&(struct norm_forward_args){.y = y, .rstd = &rstd, .x = gu, .w = w, .n = 1, .h = V, .eps = 1e-5f});
	say(isnan(y[0]) && isnan(rstd), "rmsnorm with NaN is NaN");
	forget();
}

/* An operation and, in one with it, its rounding to bf16: the bits of both, one after another */
static void test_fused(const char *name, struct op op, float *y, int64_t n)
{
	uint16_t *as = keep((size_t)n * sizeof *as), *after = keep((size_t)n * sizeof *after);
	float *before = again(y, n), *fused = not_numbers(n);
	struct op next = {OP_NARROW, .narrow = {as, y, n}}, shorter = {OP_NARROW, .narrow = {as, y, n - 1}}, own = op;
	int good = !cpu_fuse(&own, &shorter) && cpu_fuse(&own, &next);
	execute(pools[2], &own);
	memcpy(fused, y, (size_t)n * sizeof *y);
	memcpy(y, before, (size_t)n * sizeof *y);
	execute(pools[1], &op);
	op_narrow(pools[1], after, y, n);
	say(good && !memcmp(fused, y, (size_t)n * sizeof *y) && !memcmp(as, after, (size_t)n * sizeof *as),
		"%s and its rounding to bf16: the bits of both", name);
	forget();
}

static void test_all_fused(void)
{
	enum { N = 150, H = 33, V = 1001 };
	float *y = random_floats(N * H);
	struct norm_forward_args norm = {.y = y, .x = random_floats(N * H), .rstd = random_floats(N), .n = N, .h = H};
	test_fused("norm", (struct op){OP_NORM_FORWARD, .norm_forward = norm}, y, N * H);
	y = random_floats(N * H);
	struct activation_args a = {.y = y, .gu = random_floats(2 * N * H), .n = N, .f = H};
	test_fused("activation", (struct op){OP_ACTIVATION_FORWARD, .activation = a}, y, N * H);
	y = a.dgu = random_floats(2 * N * H);
	a.y = random_floats(N * H);
	a.dy = random_floats(N * H);
	a.gu = random_floats(2 * N * H);
	test_fused("activation backward", (struct op){OP_ACTIVATION_BACKWARD, .activation = a}, y, 2 * N * H);
	y = random_floats(N * V);
	uint32_t *targets = indices(N);
	for (int i = 0; i < N; i++) targets[i] = i % 7 ? (uint32_t)(i * 31 % V) : UINT32_MAX;
	struct cross_entropy_args ce = {.logits = y, .targets = targets, .n = N, .vocab = V, .scale = 0.1f, .backward = 1};
	ce.loss = keep_at(sizeof *ce.loss, 0);
	test_fused("cross-entropy backward", (struct op){OP_CROSS_ENTROPY, .cross_entropy = ce}, y, N * V);
}

static void test_conversions(void)
{
	enum { N = 200003 };
	float *x = random_floats(N), *back = random_floats(N), *y = random_floats(N), *copy = random_floats(N);
	uint16_t *half = keep(N * sizeof *half);
	x[0] = NAN;
	x[1] = INFINITY;
	x[2] = -0.0f;
	x[3] = 3.3961775e38f;
	x[4] = 1e-40f;
	int good = 1;
	op_narrow(pools[1], half, x, N);
	op_widen(pools[2], back, half, N);
	for (int64_t i = 3; i < N; i++) {
		uint32_t b;
		memcpy(&b, x + i, 4);
		uint32_t low = b & 0xffff, up = low > 0x8000 || (low == 0x8000 && (b >> 16 & 1));
		good &= half[i] == (uint16_t)((b >> 16) + up);
	}
	say(good && isnan(back[0]) && isinf(back[1]) && back[2] == 0 && signbit(back[2]) && isinf(back[3]),
		"bf16: nearest, ties to even, NaN and infinity kept");
	op_copy(pools[2], copy, y, N * sizeof *y);
	good = !memcmp(copy, y, N * sizeof *y);
	op_zero(pools[1], copy, N * sizeof *copy - 4);
	for (int64_t i = 0; i < N - 1; i++) good &= copy[i] == 0;
	say(good && memcmp(copy + N - 1, y + N - 1, 4) == 0, "copies and zeros of %d elements", N);
	forget();
}

/* w and lo of fp32 numbers, where lo is of either sign, give these */
static void test_join(void)
{
	enum { N = 70001 };
	float *x = random_floats(N), *y = random_floats(N);
	uint16_t *w = keep(N * sizeof *w);
	int16_t *lo = keep(N * sizeof *lo);
	x[0] = 6.9921875f;
	x[1] = -1e-40f;
	for (int64_t i = 0; i < N; i++) {
		uint32_t b;
		memcpy(&b, x + i, 4);
		w[i] = (uint16_t)((b + 0x8000) >> 16);
		lo[i] = (int16_t)(b - ((uint32_t)w[i] << 16));
	}
	op_join(pools[2], &(struct join_args){.dst = y, .w = w, .lo = lo, .n = N, .bf16 = 1});
	say(!memcmp(x, y, N * sizeof *x), "join: %d numbers from w and lo", N);
	forget();
}

static void count_task(void *arg, int64_t task, int thread)
{
	(void)thread;
	((unsigned char *)arg)[task]++;
}

/* Many short jobs of changing size: each task runs once, and before pool_run returns. */
static void test_pool(void)
{
	int good = 1;
	for (int p = 0; p < POOLS; p++)
		for (int round = 0; round < 20000; round++) {
			unsigned char ran[40] = {0};
			int64_t tasks = round % 40;
			pool_run(pools[p], tasks, count_task, ran);
			for (int64_t i = 0; i < 40; i++) good &= ran[i] == (i < tasks);
		}
	say(good && pool_threads(pools[2]) == 3, "pool: every task of 60000 jobs ran once");
}

#include "ops-knobs.h"
#include "ops-experts.h"
#include "ops-balance.h"
#include "ops-delta.h"

/* The last number says where a case runs */
static const int64_t attentions[][10] = {{1, 1, 1, 1, 1, 0, 0, 0, 0, CPU | GPU}, {2, 5, 4, 2, 8, 0, 0, 0, 0, CPU | GPU},
	{2, 64, 2, 2, 32, 0, 0, 0, 0, CPU | GPU}, {1, 200, 4, 1, 20, 0, 0, 0, 3, CPU | GPU},
	{2, 150, 4, 2, 64, 0, 0, 67, 5, CPU | GPU}, {1, 300, 2, 1, 80, 0, 33, 0, 0, CPU | GPU},
	{1, 300, 2, 2, 16, 0, 64, 130, 1, CPU | GPU}, {1, 150, 2, 2, 16, 0, 1, 0, 0, CPU | GPU},
	{1, 257, 2, 2, 256, 0, 100, 0, 0, CPU}, {1, 130, 2, 1, 512, 0, 70, 0, 0, CPU}, {1, 70, 2, 1, 256, 0, 30, 0, 0, GPU},
	{3, 33, 3, 3, 7, 0, 0, 1, 0, CPU | GPU}, {1, 130, 2, 1, 33, 0, 500, 129, 0, CPU | GPU},
	{2, 190, 2, 1, 128, 0, 0, 100, 7, GPU}, {1, 100, 2, 1, 40, 0, 0, 60, 3, GPU}, {1, 130, 4, 2, 96, 0, 70, 0, 0, GPU},
	{1, 130, 2, 1, 192, 0, 0, 75, 4, GPU}, {2, 65, 2, 2, 256, 0, 40, 0, 0, GPU}, {1, 90, 2, 1, 512, 0, 37, 61, 2, GPU},
	{1, 75, 2, 2, 512, 0, 0, 0, 0, GPU}, {1, 70, 2, 2, 300, 0, 17, 0, 0, GPU}, {1, 150, 2, 2, 192, 128, 0, 80, 3, CPU},
	{2, 70, 4, 2, 40, 24, 33, 0, 0, CPU}, {1, 140, 2, 2, 192, 128, 0, 90, 3, GPU},
	{2, 66, 2, 1, 136, 72, 30, 0, 0, GPU}, {1, 130, 2, 2, 96, 64, 0, 70, 0, GPU}, {1, 50, 4, 2, 40, 24, 0, 33, 2, GPU},
	{1, 40, 2, 2, 24, 152, 0, 0, 0, GPU}, {1, 70, 2, 1, 5, 19, 0, 9, 0, CPU | GPU}};

static void test_attention_shapes(void)
{
	for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
		const int64_t *a = attentions[i];
		if (is_here(a[9])) test_attention(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
	}
}

static void test_attentions(void)
{
	test_attention_shapes();
	for (int capped = 0; capped < 2; capped++) {
		test_isolation(70, 130, 45, 2 * (float)capped);
		test_isolation(3, 9, 1, 2 * (float)capped);
		test_isolation(1, 64, 100, 2 * (float)capped);
		test_past(128, 70, 2 * (float)capped);
		test_past(199, 1, 2 * (float)capped);
	}
	test_attention_extremes();
}

/* Operands rounded to bf16 are off by e = 2^-9 / sqrt(3) in the root mean square, as in 73-compute.bats. The longest
 * way to a result has four multiplications: q k', p v (in delta), do v', ds k or ds' q, with two operands each, whose
 * errors are independent: e sqrt(8), and the bound is 3 of it. Scores are about 1 here, so softmax does not amplify
 * their errors. */
static void test_attention_of_bf16(void)
{
	if (!attention_bf16_is_fast()) return;
	of_bf16 = 1;
	slack = 3 * 0x1p-9 / sqrt(3) * sqrt(8);
	test_attentions();
	of_bf16 = 0;
	slack = 0;
}

/* The last number of a row says where it runs, in all of these lists */
static const int64_t gemms[][4] = {{1, 1, 1, CPU | GPU}, {3, 5, 7, CPU | GPU}, {17, 1, 33, CPU | GPU},
	{1, 64, 20, CPU | GPU}, {64, 48, 80, CPU | GPU}, {65, 33, 63, GPU}, {129, 257, 63, CPU}, {300, 700, 40, CPU},
	{513, 33, 257, CPU}};

static void test_gemms(int from, int to)
{
	for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++)
		for (int form = from; is_here(gemms[i][3]) && form < to; form++)
			test_gemm(gemms[i][0], gemms[i][1], gemms[i][2], form);
}

/* Logits of routers */
static void test_router_gemms(void)
{
	test_gemm(37, 6, 19, 2 | 32);
	test_gemm(5, 300, 40, 2 | 32);
	test_gemm(70, 1, 24, 2 | 32);
}

static void test_vocabulary(void)
{
	static const struct {
		int64_t n, h, vocab, seq, on;
		float scale;
	} embeds[] = {{1, 1, 3, 0, CPU | GPU, 1}, {500, 100, 37, 0, CPU | GPU, 1}, {1, 1, 3, 0, CPU, 22.5f},
		{300, 100, 37, 0, CPU, 22.5f}, {300, 100, 37, 100, CPU, 1}, {36, 24, 5, 12, CPU, 22.5f},
		{300, 2080, 7, 0, GPU, 1}, {70, 100, 37, 0, GPU, 22.5f}, {70, 100, 37, 35, GPU, 1}, {24, 12, 5, 8, GPU, 22.5f}};
	static const struct {
		int64_t n, vocab, on;
		float scale, cap;
		int none, weighted;
	} heads[] = {{1, 1, CPU | GPU, 1, 0, 0, 0}, {7, 33, CPU | GPU, 1, 0, 0, 0}, {20, 1000, CPU | GPU, 1, 0, 0, 0},
		{4, 100, CPU | GPU, 1, 0, 1, 0}, {9, 32003, CPU, 1, 0, 0, 0}, {1, 1, CPU, 0.25f, 0, 0, 0},
		{7, 33, CPU | GPU, 0.25f, 0, 0, 0}, {7, 33, CPU, 1, 5, 0, 0}, {20, 1000, CPU, 0.5f, 3, 0, 0},
		{9, 32003, CPU, 1, 30, 0, 0}, {7, 33, CPU, 1, 0, 0, 1}, {20, 1000, CPU | GPU, 1, 0, 0, 1},
		{20, 1000, CPU, 0.5f, 3, 0, 1}, {7, 33, GPU, 0.5f, 3, 0, 1}, {300, 64, GPU, 1, 0, 0, 0},
		{3, 32003, GPU, 1, 0, 0, 0}, {7, 64, GPU, 0.5f, 3, 0, 0}, {3, 3000, GPU, 1, 30, 0, 0}};
	for (size_t i = 0; i < sizeof embeds / sizeof *embeds; i++)
		if (is_here(embeds[i].on))
			test_embed(embeds[i].n, embeds[i].h, embeds[i].vocab, embeds[i].scale, embeds[i].seq, 0);
	test_embed(70, 100, 37, 1, 35, 1);
	test_embed(36, 24, 5, 22.5f, 12, 1);
	for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
		if (is_here(heads[i].on))
			test_head(heads[i].n, heads[i].vocab, heads[i].scale, heads[i].cap, heads[i].none, heads[i].weighted);
	for (int64_t vocab = 1; vocab < 3000; vocab = 3 * vocab + 2) test_greedy(40, vocab);
	test_teachers();
}

static void test_biases(void)
{
	test_bias(1, 1, 1);
	test_bias(70, 33, 33);
	test_bias(on_gpu ? 301 : 3001, 600, 600);
	test_bias(70, 33, 41);
	test_bias(257, 48, 72);
}

static void test_mixers(void)
{
	test_deltas();
	test_documents();
	test_steps();
	test_channels();
	test_scans();
	test_mixer_pasts();
}

/* b is transposed in several panels, of columns or of k: with a bias, added to c, with a residual */
static void test_panels(void)
{
	for (int form = 2; form <= 10; form += 4) {
		test_gemm(257, 3001, 900, form);
		test_gemm(257, 70, 4500, form);
	}
}

/* of: 16, what the cpu multiplies; 32: results in fp32, so that an operand that is rounded otherwise shows */
static void test_fp8_gemms(int of)
{
	static const int64_t sizes[][3] = {{1, 16, 1}, {33, 48, 80}, {70, 32, 157}, {80, 144, 32}, {16, 272, 1096}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int form = 0; form < 4; form++)
			if (!on_card || sizes[i][0] % FP8_WIDTH == 0) /* else cuBLASLt may refuse it, and nothing is rounded */
				test_gemm(sizes[i][0], sizes[i][1], sizes[i][2], 64 | of | form);
	for (int form = 4; form < 12; form++) test_gemm(48, 48, 80, 64 | of | form);
	test_gemm(16, 8, 2100, 64 | of | 2); /* n is no multiple of FP8_WIDTH: nothing is rounded */
	test_gemm(16, 16, 2100, 64 | of | 2);
}

static void test_bf16_gemms(void)
{
	static const int64_t sizes[][3] = {{16, 16, 32}, {33, 47, 800}, {70, 31, 1600}, {1100, 40, 96}, {64, 700, 64}};
	if (gemm_lacks_bf16()) return;
	test_gemms(16, 28);
	test_fp8_gemms(16);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int form = 16; form < 28; form++) test_gemm(sizes[i][0], sizes[i][1], sizes[i][2], form);
}

static void test_all(void)
{
	test_pool();
	test_gemms(0, 12);
	test_biases();
	test_vocabulary();
	test_attentions();
	test_attention_of_bf16();
	test_not_a_number();
	test_conversions();
	test_all_fused();
	test_knobs();
	test_experts();
	test_router_gemms();
	test_edges();
	test_latents();
	test_accuracy();
	test_panels();
	test_bf16_gemms();
	test_residual(3, 5, 7);
	test_residual(700, 650, 100);
	test_join();
	test_balance();
	test_mixers();
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : "";
	for (int i = 0; i < POOLS; i++)
		if (!(pools[i] = pool_create(i + 1, POOL_SPINS, NULL))) return 1;
	if (!strcmp(only, "experts")) test_experts(), test_router_gemms();
	else if (!strcmp(only, "attention")) test_attentions(), test_attention_of_bf16();
	else if (!strcmp(only, "balance")) test_balance();
	else if (!strcmp(only, "delta")) test_mixers();
	else test_all();
	for (int i = 0; i < POOLS; i++) pool_free(pools[i]);
	return failures != 0;
}
