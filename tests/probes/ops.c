/* ops.c: every operation of the cpu device beside its definition in double precision, on awkward sizes.
 *
 * A case computes its results with pools of 1, 2 and 3 threads and from memory at three alignments: the bits must be
 * the same. Then the results are compared with the definition: the norm of the error against the norm of the result.
 * Backward definitions are gradients written out, or finite differences of the forward definition.
 *
 *     ops [attention | experts | balance | delta]   all cases, or those of attention, ops-experts.h, ... alone
 */
#include "../../mt-stream/device/device.h"
#include "../../mt-stream/ops/ops.h"
#include "pool.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOLS = 3 };

static int failures;
static struct pool *pools[POOLS]; /* of 1, 2 and 3 threads */
static uint64_t seed = 1;
static double slack; /* least bound: for devices that round elements (cuda-kernels.c) */
static int on_gpu;   /* the operations are those of a GPU (cuda-kernels.c) */
static int brief;    /* large cases in fewer forms, as an emulator is slow */

__attribute__((format(printf, 2, 3))) static void say(int ok, const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	printf("%s ", ok ? "ok" : "FAILED");
	vprintf(format, ap);
	printf("\n");
	va_end(ap);
	failures += !ok;
}

static const char *yes(int is, const char *words) { return is ? words : ""; }

/* From 0 to 1 */
static double uniform(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed >> 11) * 0x1p-53;
}

/* The derivative of f at *x, in whose ctx *x is: a central difference */
static double difference(double *x, double step, double (*f)(const void *ctx), const void *ctx)
{
	double was = *x, up, down;
	*x = was + step;
	up = f(ctx);
	*x = was - step;
	down = f(ctx);
	*x = was;
	return (up - down) / (2 * step);
}

/* ---- memory: everything of a case is freed with it; `skew` floats off alignment ---- */

static void *kept[256];
static int kept_n, skew;

static void *keep(size_t bytes)
{
	char *p = calloc(1, bytes + 64);
	if (!p || kept_n == 256) {
		fprintf(stderr, "ops: out of memory\n");
		exit(1);
	}
	kept[kept_n++] = p;
	return p + 4 * skew;
}

/* A case is over. The next one draws the same numbers, whatever cases are before it. */
static void forget(void)
{
	while (kept_n) free(kept[--kept_n]);
	seed = 1;
}

/* about normal, unit variance */
static float *random_floats(int64_t n)
{
	float *x = keep((size_t)n * sizeof *x);
	for (int64_t i = 0; i < n; i++) x[i] = (float)((uniform() + uniform() + uniform() + uniform() - 2) * 1.7320508);
	return x;
}

static float *again(const float *x, int64_t n)
{
	float *y = keep((size_t)n * sizeof *y);
	memcpy(y, x, (size_t)n * sizeof *y);
	return y;
}

/* x's rows (N, width), `ld` apart, NaN between them; and back */
static float *apart(const float *x, int64_t n, int64_t width, int64_t ld)
{
	float *y = keep((size_t)(n * ld) * sizeof *y);
	memset(y, 0xff, (size_t)(n * ld) * sizeof *y);
	for (int64_t t = 0; t < n; t++) memcpy(y + t * ld, x + t * width, (size_t)width * sizeof *y);
	return y;
}

static void together(float *y, const float *x, int64_t n, int64_t width, int64_t ld)
{
	for (int64_t t = 0; t < n; t++) memcpy(y + t * width, x + t * ld, (size_t)width * sizeof *y);
}

/* The same, of rows that `apart` made: no operation may have written between them */
static void together_again(float *y, const float *x, int64_t n, int64_t width, int64_t ld)
{
	int good = 1;
	together(y, x, n, width, ld);
	for (int64_t i = 0; i < n * ld; i++) good &= i % ld < width || isnan(x[i]);
	if (!good) say(0, "an operation wrote between rows");
}

static double *doubles(int64_t n) { return keep((size_t)n * sizeof(double)); }

/* ---- a case ---- */

#define IN_FP32(bound) (-(bound))

struct part {
	const char *name;
	float *got;
	const double *want;
	int64_t n;
	double bound; /* of the error's norm, relative to the norm of `want`; IN_FP32: of sums that no device rounds */
};

static double error_of(const struct part *p)
{
	double error = 0, norm = 0;
	for (int64_t i = 0; i < p->n; i++) {
		double d = (double)p->got[i] - p->want[i];
		error += d * d;
		norm += p->want[i] * p->want[i];
	}
	return sqrt(error) / (sqrt(norm) + 1e-30);
}

/* run (ctx, pool) fills results[], each of lengths[i]; parts[i].want is the definition's */
static void check(const char *name, struct part *parts, int count,
	void (*run)(void *ctx, struct pool *, float **results), void *ctx)
{
	int same = 1, good = 1;
	double worst = 0;
	for (int p = 0; p < POOLS; p++) {
		float *results[10];
		skew = p;
		for (int i = 0; i < count; i++) {
			results[i] = keep((size_t)parts[i].n * sizeof(float));
			memset(results[i], 0xff, (size_t)parts[i].n * sizeof(float)); /* NaN: what is not written shows */
		}
		run(ctx, pools[p], results);
		for (int i = 0; i < count; i++)
			if (p) same &= !memcmp(parts[i].got, results[i], (size_t)parts[i].n * sizeof(float));
			else parts[i].got = results[i];
	}
	skew = 0;
	for (int i = 0; i < count; i++) {
		double e = error_of(&parts[i]);
		double bound = parts[i].bound < 0 ? -parts[i].bound : fmax(parts[i].bound, slack);
		if (!(e <= bound)) {
			good = 0;
			printf("  %s: error %.2g, bound %.2g\n", parts[i].name, e, bound);
		}
		worst = e > worst ? e : worst;
	}
	say(same && good, "%s (error %.1e%s)", name, worst, same ? "" : ", bits depend on threads or alignment");
	forget();
}

/* ---- gemm ---- */

struct gemm_case {
	int64_t m, n, k;
	int ta, tb, beta, bias, add, bf16, fp32;
	const float *a, *b, *c, *bias_at, *added;
	int64_t lda, ldb, ldc;
};

/* A copy of an operand, in the case's type */
static const void *typed(const struct gemm_case *s, const float *x, int64_t n)
{
	if (!s->bf16) return again(x, n);
	uint16_t *y = keep((size_t)n * sizeof *y);
	op_narrow(pools[0], y, x, n);
	return y;
}

static void run_gemm(void *ctx, struct pool *pool, float **out)
{
	struct gemm_case *s = ctx;
	int64_t na = (s->ta ? s->k : s->m) * s->lda, nb = (s->tb ? s->n : s->k) * s->ldb;
	struct gemm_args g = {.m = s->m,
		.n = s->n,
		.k = s->k,
		.a = typed(s, s->a, na),
		.lda = s->lda,
		.trans_a = s->ta,
		.b = typed(s, s->b, nb),
		.ldb = s->ldb,
		.trans_b = s->tb,
		.c = out[0],
		.ldc = s->ldc,
		.beta = (float)s->beta,
		.bias = s->bias ? typed(s, s->bias_at, s->n) : NULL,
		.add = s->add ? s->added : NULL,
		.bf16 = s->bf16,
		.fp32 = s->fp32};
	if (s->beta) memcpy(out[0], s->c, (size_t)(s->m * s->ldc) * sizeof(float));
	op_gemm(pool, &g);
	for (int64_t i = 0; i < s->m; i++) /* what lies between rows is not the product's */
		for (int64_t j = s->n; j < s->ldc; j++) out[0][i * s->ldc + j] = 0;
}

static void round_to_bf16(float *x, int64_t n)
{
	uint16_t *half = keep((size_t)n * sizeof *half);
	op_narrow(pools[0], half, x, n);
	op_widen(pools[0], x, half, n);
}

/* Numbers that bf16 has */
static float *random_operand(int64_t n, int bf16)
{
	float *x = random_floats(n);
	if (bf16) round_to_bf16(x, n);
	return x;
}

/* form: bits 1, 2: transposed; 4: added to c; 8: residual; 16: bf16; 32: fp32 whatever the elements are, as a router's
 * logits */
static void test_gemm(int64_t m, int64_t n, int64_t k, int form)
{
	struct gemm_case s = {.m = m,
		.n = n,
		.k = k,
		.ta = form & 1,
		.tb = form >> 1 & 1,
		.beta = form >> 2 & 1,
		.bias = (form & 7) == 2,
		.add = form >> 3 & 1,
		.bf16 = form >> 4 & 1,
		.fp32 = form >> 5,
		.ldc = n + 3};
	s.lda = (s.ta ? m : k) + 5;
	s.ldb = (s.tb ? k : n) + 1;
	s.a = random_operand((s.ta ? k : m) * s.lda, s.bf16 | s.fp32);
	s.b = random_operand((s.tb ? n : k) * s.ldb, s.bf16 | s.fp32);
	s.c = random_floats(m * s.ldc);
	s.bias_at = random_operand(n, s.bf16 | s.fp32);
	s.added = s.add ? random_floats(m * s.ldc) : NULL;
	double *want = doubles(m * s.ldc);
	for (int64_t i = 0; i < m; i++)
		for (int64_t j = 0; j < n; j++) {
			double x = s.beta ? (double)s.c[i * s.ldc + j] : s.bias ? (double)s.bias_at[j] : 0;
			x += s.add ? (double)s.added[i * s.ldc + j] : 0;
			for (int64_t l = 0; l < k; l++)
				x += (double)s.a[s.ta ? l * s.lda + i : i * s.lda + l] *
					(double)s.b[s.tb ? j * s.ldb + l : l * s.ldb + j];
			want[i * s.ldc + j] = x;
		}
	char name[100];
	snprintf(name, sizeof name, "gemm %lld x %lld x %lld%s%s%s%s%s%s%s", (long long)m, (long long)n, (long long)k,
		yes(s.bf16, " of bf16"), yes(s.fp32, " in fp32"), yes(s.ta, ", a transposed"), yes(s.tb, ", b transposed"),
		yes(s.beta, ", added to c"), yes(s.bias, ", bias"), yes(s.add, ", residual"));
	check(name, (struct part[]){{"c", NULL, want, m * s.ldc, s.fp32 ? IN_FP32(1e-6) : 1e-6}}, 1, run_gemm, &s);
}

/* The last of a product's sums: what adding it afterwards would give */
static void test_residual(int64_t m, int64_t n, int64_t k)
{
	const float *a = random_floats(m * k), *b = random_floats(n * k), *bias = random_floats(n),
				*x = random_floats(m * n);
	float *at_once = keep((size_t)(m * n) * sizeof *at_once), *after = keep((size_t)(m * n) * sizeof *after);
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
	say(same, "residual of %lld x %lld x %lld: the bits of a sum afterwards", (long long)m, (long long)n, (long long)k);
	forget();
}

/* ---- bias ---- */

struct bias_case {
	int64_t m, n, ld;
	const float *dy, *db;
};

static void run_bias(void *ctx, struct pool *pool, float **out)
{
	struct bias_case *s = ctx;
	struct bias_backward_args a = {.db = out[0], .dy = again(s->dy, s->m * s->ld), .m = s->m, .n = s->n, .ld = s->ld};
	op_bias_backward(pool, &a);
	memcpy(out[1], s->db, (size_t)s->n * sizeof(float));
	a.db = out[1];
	a.beta = 1;
	op_bias_backward(pool, &a);
}

static void test_bias(int64_t m, int64_t n, int64_t ld)
{
	struct bias_case s = {m, n, ld, random_floats(m * ld), random_floats(n)};
	double *set = doubles(n), *added = doubles(n);
	for (int64_t j = 0; j < n; j++) {
		for (int64_t i = 0; i < m; i++) set[j] += (double)s.dy[i * ld + j];
		added[j] = set[j] + (double)s.db[j];
	}
	char name[80];
	snprintf(name, sizeof name, "bias backward %lld x %lld, rows %lld apart", (long long)m, (long long)n,
		(long long)ld);
	check(name, (struct part[]){{"db", NULL, set, n, 1e-6}, {"db added", NULL, added, n, 1e-6}}, 2, run_bias, &s);
}

/* ---- embedding ---- */

struct embed_case {
	int64_t n, h, vocab, pad;
	float scale;
	const uint32_t *tokens;
	const float *w, *dx, *dw, *table, *dtable;
	struct positions at; /* seq 0: none */
};

static void run_embed(void *ctx, struct pool *pool, float **out)
{
	struct embed_case *s = ctx;
	int64_t rows = s->at.rows * s->h;
	struct embed_forward_args f = {.x = out[0],
		.w = again(s->w, s->vocab * s->h),
		.tokens = s->tokens,
		.n = s->n,
		.h = s->h,
		.scale = s->scale,
		.table = rows ? again(s->table, rows) : NULL,
		.at = s->at};
	struct embed_backward_args a = {.dw = out[1],
		.dx = again(s->dx, s->n * s->h),
		.tokens = s->tokens,
		.n = s->n,
		.h = s->h,
		.vocab = s->vocab,
		.pad = -1,
		.scale = s->scale,
		.dtable = rows ? out[3] : NULL,
		.at = s->at};
	op_embed_forward(pool, &f);
	op_embed_backward(pool, &a);
	memcpy(out[2], s->dw, (size_t)(s->vocab * s->h) * sizeof(float));
	if (rows) memcpy(out[4], s->dtable, (size_t)rows * sizeof(float));
	a.dw = out[2];
	a.dtable = rows ? out[4] : NULL;
	a.beta = 1;
	a.pad = s->pad;
	op_embed_backward(pool, &a);
}

/* documents of the given length (0: one a row), padding in the last `padding` tokens of a row, each a document */
static uint32_t *documents(int64_t rows, int64_t seq, int64_t length, int64_t padding)
{
	uint32_t *starts = keep((size_t)(rows * seq) * sizeof *starts);
	for (int64_t t = 0; t < rows * seq; t++) {
		int64_t at = t % seq;
		starts[t] = (uint32_t)(at >= seq - padding ? at : length ? at / length * length : 0);
	}
	return starts;
}

/* seq: learned positions, of rows of so many tokens, documents of 7 and some padding; 0: none */
static void test_embed(int64_t n, int64_t h, int64_t vocab, float scale, int64_t seq)
{
	uint32_t *tokens = keep((size_t)n * sizeof *tokens);
	int64_t offset = seq % 3, rows = seq ? seq + offset + 1 : 0;
	struct embed_case s = {n, h, vocab, 1, scale, tokens, random_floats(vocab * h), random_floats(n * h),
		random_floats(vocab * h), random_floats(rows * h), random_floats(rows * h),
		{.rows = rows, .offset = offset, .seq = seq, .starts = seq ? documents(n / seq, seq, 7, 3) : NULL}};
	double *x = doubles(n * h), *set = doubles(vocab * h), *added = doubles(vocab * h), *set_rows = doubles(rows * h),
		   *added_rows = doubles(rows * h);
	for (int64_t i = 0; i < vocab * h; i++) added[i] = (double)s.dw[i];
	for (int64_t i = 0; i < rows * h; i++) added_rows[i] = (double)s.dtable[i];
	for (int64_t t = 0; t < n; t++) {
		int64_t row = seq ? t % seq - s.at.starts[t] + offset : 0;
		tokens[t] = (uint32_t)(uniform() * uniform() * (double)vocab);
		for (int64_t i = 0; i < h; i++) {
			double d = (double)scale * (double)s.dx[t * h + i];
			x[t * h + i] = (double)scale * (double)s.w[tokens[t] * h + i] + (seq ? (double)s.table[row * h + i] : 0);
			set[tokens[t] * h + i] += d;
			added[tokens[t] * h + i] += tokens[t] == s.pad ? 0 : d;
			if (!seq) continue;
			set_rows[row * h + i] += (double)s.dx[t * h + i];
			added_rows[row * h + i] += (double)s.dx[t * h + i];
		}
	}
	char name[100];
	snprintf(name, sizeof name, "embedding of %lld tokens, %lld wide, times %g%s", (long long)n, (long long)h,
		(double)scale, yes(seq, ", positions"));
	check(name,
		(struct part[]){{"x", NULL, x, n * h, scale == 1 && !seq ? 0 : 1e-7}, {"dw", NULL, set, vocab * h, 1e-6},
			{"dw added, without padding", NULL, added, vocab * h, 1e-6}, {"dtable", NULL, set_rows, rows * h, 1e-6},
			{"dtable added", NULL, added_rows, rows * h, 1e-6}},
		seq ? 5 : 3, run_embed, &s);
}

/* ---- attention ---- */

static int of_bf16; /* its operands are rounded */

static void attend(struct pool *pool, const struct attention_args *a)
{
	if (of_bf16) attention_bf16_forward(pool, a);
	else op_attention_forward(pool, a);
}

static void attend_back(struct pool *pool, const struct attention_args *a)
{
	if (of_bf16) attention_bf16_backward(pool, a);
	else op_attention_backward(pool, a);
}

struct attention_case {
	struct attention_args a;
	const float *qkv, *d_o, *dsinks;
};

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

static void run_attention(void *ctx, struct pool *pool, float **out)
{
	struct attention_case *s = ctx;
	struct attention_args a = s->a;
	a.qkv = again(s->qkv, a.n * attention_row(&a));
	a.o = out[0];
	a.lse = out[1];
	attend(pool, &a);
	a.d_o = again(s->d_o, a.n * a.heads * attention_dim_v(&a));
	a.dqkv = out[2];
	attend_back(pool, &a);
	if (!a.sinks) return;
	struct sinks_backward_args b = sinks_of(&a, out[3]);
	op_sinks_backward(pool, &b);
	memcpy(out[4], s->dsinks, (size_t)a.heads * sizeof(float));
	b.dsinks = out[4];
	b.beta = 1;
	op_sinks_backward(pool, &b);
}

/* The scores of one query, of the keys first .. t; slope: by which the cap multiplies their gradient */
static void scores_defined(const struct attention_args *a, int64_t t, int64_t first, int64_t at_q, int64_t to_k,
	const float *qkv, double *score, double *slope)
{
	int64_t wide = attention_row(a);
	for (int64_t j = first; j <= t; j++) {
		score[j] = 0;
		for (int64_t i = 0; i < a->dim; i++) score[j] += (double)qkv[at_q + i] * (double)qkv[j * wide + to_k + i];
		score[j] *= (double)a->scale;
		slope[j] = 1;
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
	scores_defined(a, t, first, at_q, to_k, qkv, p, slope);
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

static void test_attention_with(struct attention_args a, int64_t length, int64_t padding)
{
	int64_t n = a.n, heads = a.heads, dim_v = attention_dim_v(&a), wide = attention_row(&a);
	a.starts = documents(n / a.seq, a.seq, length, padding);
	struct attention_case s = {a, random_floats(n * wide), random_floats(n * heads * dim_v), random_floats(heads)};
	double *o = doubles(n * heads * dim_v), *lse = doubles(n * heads), *dqkv = doubles(n * wide), *p = doubles(2 * n);
	double *dsinks = doubles(heads), *added = doubles(heads);
	for (int64_t t = 0; t < n; t++)
		for (int64_t h = 0; h < heads; h++)
			attention_defined(&a, t, h, o + (t * heads + h) * dim_v, lse + t * heads + h, dqkv, dsinks,
				s.d_o + (t * heads + h) * dim_v, s.qkv, p);
	for (int64_t h = 0; h < heads; h++) added[h] = dsinks[h] + (double)s.dsinks[h];
	char name[140], of_v[24] = "";
	if (a.dim_v) snprintf(of_v, sizeof of_v, " and %lld", (long long)dim_v);
	snprintf(name, sizeof name,
		"attention %lld x %lld, %lld/%lld heads of %lld%s, window %lld, documents of %lld%s%s%s", (long long)n / a.seq,
		(long long)a.seq, (long long)heads, (long long)a.kv_heads, (long long)a.dim, of_v, (long long)a.window,
		(long long)length, yes(a.cap != 0, ", cap"), yes(!!a.sinks, ", sinks"), yes(of_bf16, ", bf16"));
	double loose = fmax(3e-6, 4 * slack); /* sums over tokens of terms of either sign */
	check(name,
		(struct part[]){{"o", NULL, o, n * heads * dim_v, 6e-7}, {"lse", NULL, lse, n * heads, 4e-7},
			{"dqkv", NULL, dqkv, n * wide, 1e-6}, {"dsinks", NULL, dsinks, heads, loose},
			{"dsinks added", NULL, added, heads, loose}},
		a.sinks ? 5 : 3, run_attention, &s);
}

/* without and with a cap and sinks; a cap that large scores reach and small ones do not feel */
static void test_values(int64_t rows, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim, int64_t dim_v,
	int64_t window, int64_t length, int64_t padding)
{
	for (int knobs = 0; knobs < 4; knobs += brief && rows * seq > 130 ? 3 : 1)
		test_attention_with((struct attention_args){.n = rows * seq,
								.seq = seq,
								.heads = heads,
								.kv_heads = kv_heads,
								.dim = dim,
								.dim_v = dim_v,
								.window = window,
								.scale = 1.0f / sqrtf((float)dim),
								.cap = knobs & 1 ? 1.5f : 0,
								.sinks = knobs & 2 ? random_floats(heads) : NULL},
			length, padding);
}

static void test_attention(int64_t rows, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim, int64_t window,
	int64_t length, int64_t padding)
{
	test_values(rows, seq, heads, kv_heads, dim, 0, window, length, padding);
}

/* Memory and operands for one row of n tokens, a document */
static struct attention_args some_attention(int64_t n, int64_t heads, int64_t kv_heads, int64_t dim)
{
	int64_t wide = (heads + 2 * kv_heads) * dim;
	return (struct attention_args){.n = n,
		.seq = n,
		.heads = heads,
		.kv_heads = kv_heads,
		.dim = dim,
		.scale = 0.2f,
		.starts = documents(1, n, 0, 0),
		.qkv = random_floats(n * wide),
		.o = keep((size_t)(n * heads * dim) * sizeof(float)),
		.lse = keep((size_t)(n * heads) * sizeof(float)),
		.d_o = random_floats(n * heads * dim),
		.dqkv = keep((size_t)(n * wide) * sizeof(float))};
}

/* Has `part` the bits of `whole` from its token `from` on? backward: of the gradients, too */
static int same_attention(const struct attention_args *part, const struct attention_args *whole, int64_t from,
	int backward)
{
	int64_t n = part->n, heads = part->heads, out = heads * part->dim, wide = out + 2 * part->kv_heads * part->dim;
	return !memcmp(part->o, (float *)whole->o + from * out, (size_t)(n * out) * sizeof(float)) &&
		!memcmp(part->lse, whole->lse + from * heads, (size_t)(n * heads) * sizeof(float)) &&
		(!backward || !memcmp(part->dqkv, (float *)whole->dqkv + from * wide, (size_t)(n * wide) * sizeof(float)));
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
	attend(pools[1], &a);
	attend(pools[2], &end);
	say(same_attention(&end, &a, past, 0),
		"attention of %lld queries after %lld tokens%s: the bits of the whole document", (long long)n, (long long)past,
		yes(cap != 0, ", cap, sinks"));
	forget();
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
	attend(pools[1], &a);
	attend_back(pools[1], &a);
	attend(pools[0], &alone);
	attend_back(pools[0], &alone);
	say(same_attention(&alone, &a, before, 1) && isfinite(*(float *)alone.o) && isfinite(*(float *)alone.dqkv),
		"attention of a document of %lld%s beside others and alone: same bits", (long long)length,
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

struct head_case {
	int64_t n, vocab;
	const float *raw;
	const uint32_t *targets;
	const float *weights;
	float scale, cap;
	double losses[2 * POOLS];
	int at;
	int64_t count;
};

/* Most models' logits are neither scaled nor capped */
static int are_plain(const struct head_case *s) { return s->scale == 1 && s->cap == 0; }

/* out: logits as the forward has them, and the gradient of what they were */
static void run_head(void *ctx, struct pool *pool, float **out)
{
	struct head_case *s = ctx;
	for (int backward = 0; backward < 2; backward++) {
		struct loss loss = {0};
		struct cross_entropy_args a = {.logits = out[backward],
			.targets = s->targets,
			.weights = s->weights,
			.n = s->n,
			.vocab = s->vocab,
			.scale = 0.01f,
			.backward = backward,
			.loss = &loss,
			.logit_scale = are_plain(s) ? 0 : s->scale,
			.cap = s->cap};
		struct cap_logits_args c = {.logits = a.logits, .n = s->n * s->vocab, .scale = s->scale, .cap = s->cap};
		memcpy(a.logits, s->raw, (size_t)c.n * sizeof(float));
		if (!are_plain(s)) op_cap_logits(pool, &c);
		op_cross_entropy(pool, &a);
		s->losses[s->at++] = loss.sum;
		s->count = loss.targets;
	}
}

/* weighted: with weights of all kinds, among them 0 and below 0 */
static void test_head(int64_t n, int64_t vocab, float scale, float cap, int none, int weighted)
{
	float *raw = random_floats(n * vocab);
	uint32_t *targets = keep((size_t)n * sizeof *targets);
	struct head_case s = {.n = n, .vocab = vocab, .raw = raw, .targets = targets, .scale = scale, .cap = cap};
	float *weights = random_floats(n);
	double *logits = doubles(n * vocab), *grad = doubles(n * vocab), loss = 0, most = 0, k = (double)scale,
		   c = (double)cap;
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
	char name[100];
	snprintf(name, sizeof name, "cross-entropy %lld x %lld, logits times %g, cap %g%s%s", (long long)n,
		(long long)vocab, k, c, yes(none, ", no targets"), yes(weighted, ", weights"));
	if (weighted) s.weights = weights;
	check(name,
		(struct part[]){{"logits", NULL, logits, n * vocab, are_plain(&s) ? 0 : 4e-7},
			{"gradient", NULL, grad, n * vocab, are_plain(&s) ? 1e-6 : 2e-6}},
		2, run_head, &s);
	int good = s.count == count;
	for (int i = 0; i < s.at; i++)
		good &= s.losses[i] == s.losses[0] && fabs(s.losses[i] - loss) <= fmax(3e-7, slack) * most + 1e-15;
	say(good, "%s: loss %.9g for %.9g over %lld targets", name, s.losses[0], loss, (long long)s.count);
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
	op_cross_entropy(pools[1],
		&(struct cross_entropy_args){.logits = logits,
			.targets = targets,
			.n = n,
			.vocab = vocab,
			.scale = 1,
			.loss = &loss,
			.losses = losses});
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
		"cross-entropy %lld x %lld: %d losses are marked as of the likeliest", (long long)n, (long long)vocab, greedy);
	forget();
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
		op_cross_entropy(pools[1],
			&(struct cross_entropy_args){.logits = logits,
				.targets = targets,
				.n = N,
				.vocab = V,
				.scale = 1,
				.backward = 1,
				.loss = &loss});
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
static void test_fused(const char *name, struct op op, void (*run)(struct pool *, const struct op *), float *y,
	int64_t n)
{
	uint16_t *as = keep((size_t)n * sizeof *as), *after = keep((size_t)n * sizeof *after);
	float *before = again(y, n), *fused = keep((size_t)n * sizeof *fused);
	struct op next = {OP_NARROW, .narrow = {as, y, n}}, shorter = {OP_NARROW, .narrow = {as, y, n - 1}}, own = op;
	int good = !cpu_fuse(&own, &shorter) && cpu_fuse(&own, &next);
	run(pools[2], &own);
	memcpy(fused, y, (size_t)n * sizeof *y);
	memcpy(y, before, (size_t)n * sizeof *y);
	run(pools[1], &op);
	op_narrow(pools[1], after, y, n);
	say(good && !memcmp(fused, y, (size_t)n * sizeof *y) && !memcmp(as, after, (size_t)n * sizeof *as),
		"%s and its rounding to bf16: the bits of both", name);
	forget();
}

static void run_norm(struct pool *p, const struct op *o) { op_norm_forward(p, &o->norm_forward); }
static void run_activation(struct pool *p, const struct op *o) { op_activation_forward(p, &o->activation); }
static void run_activation_back(struct pool *p, const struct op *o) { op_activation_backward(p, &o->activation); }
static void run_loss(struct pool *p, const struct op *o) { op_cross_entropy(p, &o->cross_entropy); }

static void test_all_fused(void)
{
	enum { N = 150, H = 33, V = 1001 };
	static uint32_t targets[N];
	static struct loss loss;
	float *y = random_floats(N * H);
	test_fused("norm",
		(struct op){OP_NORM_FORWARD,
			.norm_forward = {.y = y, .x = random_floats(N * H), .rstd = random_floats(N), .n = N, .h = H}},
		run_norm, y, N * H);
	y = random_floats(N * H);
	test_fused("activation",
		(struct op){OP_ACTIVATION_FORWARD, .activation = {.y = y, .gu = random_floats(2 * N * H), .n = N, .f = H}},
		run_activation, y, N * H);
	y = random_floats(2 * N * H);
	struct activation_args back = {.y = random_floats(N * H),
		.dy = random_floats(N * H),
		.gu = random_floats(2 * N * H),
		.dgu = y,
		.n = N,
		.f = H};
	test_fused("activation backward", (struct op){OP_ACTIVATION_BACKWARD, .activation = back}, run_activation_back, y,
		2 * N * H);
	y = random_floats(N * V);
	for (int i = 0; i < N; i++) targets[i] = i % 7 ? (uint32_t)(i * 31 % V) : UINT32_MAX;
	struct cross_entropy_args ce =
		{.logits = y, .targets = targets, .n = N, .vocab = V, .scale = 0.1f, .backward = 1, .loss = &loss};
	test_fused("cross-entropy backward", (struct op){OP_CROSS_ENTROPY, .cross_entropy = ce}, run_loss, y, N * V);
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

static void test_attentions(void)
{
	test_attention(1, 1, 1, 1, 1, 0, 0, 0);
	test_attention(2, 5, 4, 2, 8, 0, 0, 0);
	test_attention(2, 64, 2, 2, 32, 0, 0, 0);
	test_attention(1, 200, 4, 1, 20, 0, 0, 3);
	test_attention(2, 150, 4, 2, 64, 0, 67, 5);
	test_attention(1, 300, 2, 1, 80, 33, 0, 0);
	test_attention(1, 300, 2, 2, 16, 64, 130, 1);
	test_attention(1, 150, 2, 2, 16, 1, 0, 0);
	test_attention(1, 257, 2, 2, 256, 100, 0, 0);
	test_attention(1, 130, 2, 1, 512, 70, 0, 0);
	test_attention(3, 33, 3, 3, 7, 0, 1, 0);
	test_attention(1, 130, 2, 1, 33, 500, 129, 0);
	test_values(1, 150, 2, 2, 192, 128, 0, 80, 3);
	test_values(2, 70, 4, 2, 40, 24, 33, 0, 0);
	test_values(1, 70, 2, 1, 5, 19, 0, 9, 0);
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

static void test_all(void)
{
	test_pool();
	static const int64_t gemms[][3] = {{1, 1, 1}, {3, 5, 7}, {17, 1, 33}, {1, 64, 20}, {64, 48, 80}, {129, 257, 63},
		{300, 700, 40}, {513, 33, 257}};
	for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++)
		for (int form = 0; form < 8; form++) test_gemm(gemms[i][0], gemms[i][1], gemms[i][2], form);
	test_bias(1, 1, 1);
	test_bias(70, 33, 33);
	test_bias(3001, 600, 600);
	test_embed(1, 1, 3, 1, 0);
	test_embed(500, 100, 37, 1, 0);
	test_embed(1, 1, 3, 22.5f, 0);
	test_embed(300, 100, 37, 22.5f, 0);
	test_embed(300, 100, 37, 1, 100);
	test_embed(36, 24, 5, 22.5f, 12);
	test_attentions();
	test_attention_of_bf16();
	test_head(1, 1, 1, 0, 0, 0);
	test_head(7, 33, 1, 0, 0, 0);
	test_head(20, 1000, 1, 0, 0, 0);
	test_head(4, 100, 1, 0, 1, 0);
	test_head(9, 32003, 1, 0, 0, 0);
	test_head(1, 1, 0.25f, 0, 0, 0);
	test_head(7, 33, 0.25f, 0, 0, 0);
	test_head(7, 33, 1, 5, 0, 0);
	test_head(20, 1000, 0.5f, 3, 0, 0);
	test_head(9, 32003, 1, 30, 0, 0);
	test_head(7, 33, 1, 0, 0, 1);
	test_head(20, 1000, 1, 0, 0, 1);
	test_head(20, 1000, 0.5f, 3, 0, 1);
	for (int64_t vocab = 1; vocab < 3000; vocab = 3 * vocab + 2) test_greedy(40, vocab);
	test_not_a_number();
	test_conversions();
	if (!on_gpu) test_all_fused();
	test_knobs();
	test_experts();
	test_edges();
	test_turned_past();
	test_latents();
	test_accuracy();
	for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++)
		for (int form = 8; form < 12; form++) test_gemm(gemms[i][0], gemms[i][1], gemms[i][2], form);
	/* b is transposed in several panels, of columns or of k: with a bias, added to c, with a residual */
	static const int panels[] = {2, 6, 10};
	for (int i = 0; i < 3; i++) {
		test_gemm(257, 3001, 900, panels[i]);
		test_gemm(257, 70, 4500, panels[i]);
	}
	static const int64_t bf16_sizes[][3] = {{16, 16, 32}, {33, 47, 800}, {70, 31, 1600}, {1100, 40, 96}, {64, 700, 64}};
	int bf16 = !gemm_lacks_bf16();
	for (size_t i = 0; bf16 && i < sizeof gemms / sizeof *gemms; i++)
		for (int form = 16; form < 28; form++) test_gemm(gemms[i][0], gemms[i][1], gemms[i][2], form);
	for (size_t i = 0; bf16 && i < sizeof bf16_sizes / sizeof *bf16_sizes; i++)
		for (int form = 16; form < 28; form++) test_gemm(bf16_sizes[i][0], bf16_sizes[i][1], bf16_sizes[i][2], form);
	test_residual(3, 5, 7);
	test_residual(700, 650, 100);
	test_bias(70, 33, 41);
	test_bias(257, 48, 72);
	test_join();
	test_balance();
	test_deltas();
	test_documents();
	test_steps();
	test_channels();
	test_mixer_pasts();
}

int main(int argc, char **argv)
{
	const char *only = argc > 1 ? argv[1] : "";
	for (int i = 0; i < POOLS; i++)
		if (!(pools[i] = pool_create(i + 1, POOL_SPINS, NULL))) return 1;
	if (!strcmp(only, "experts")) test_experts();
	else if (!strcmp(only, "attention")) test_attentions(), test_attention_of_bf16();
	else if (!strcmp(only, "balance")) test_balance();
	else if (!strcmp(only, "delta")) test_deltas(), test_documents(), test_steps(), test_channels(), test_mixer_pasts();
	else test_all();
	for (int i = 0; i < POOLS; i++) pool_free(pools[i]);
	return failures != 0;
}
