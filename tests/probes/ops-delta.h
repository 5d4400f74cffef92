/* ops-delta.h: the cases of ops.c for gated DeltaNet, Kimi delta attention and Mamba 2 (convolution, delta rule, gated
 * norm), for Mamba 1's scan, and for output gates: beside their definitions, token by token, in double precision;
 * documents alone and beside others; passes with a past. Included by ops.c. */

/* Lengths of documents in rows */
static const int64_t one[] = {0}, mixed[] = {1, 2, 3, 63, 64, 65, 130, 0}, two[] = {900, 0};
static const int64_t long_ones[] = {1025, 2, 1500, 0}, by_one[] = {1, 1, 1, 2, 63, 64, 65, 130, 1, 1, 0};
static const int64_t other[] = {64, 130, 1, 65, 63, 2, 64, 1, 0}, longer[] = {70, 1100, 64, 1026, 0};

/* Documents of these lengths in rows of seq, one after another; the last may be shorter */
static uint32_t *documents_of(int64_t n, int64_t seq, const int64_t *lengths)
{
	uint32_t *starts = indices(n);
	int64_t t = 0, begin = 0;
	for (int i = 0; t < n; begin = t, i++)
		for (int64_t left = lengths[i] ? lengths[i] : n; t < n && left; left--, t++) {
			if (t % seq == 0) begin = t;
			starts[t] = (uint32_t)(begin % seq);
		}
	return starts;
}

/* ---- convolution ---- */

struct shape {
	int64_t key_heads, value_heads, key_dim, value_dim;
};

static double factor_of(const float *factor, int64_t at) { return factor ? (double)factor[at] : 1; }

/* The factor of a channel's normed head */
static double scale_of(const struct conv_args *a, int64_t channel)
{
	return channel < a->q_heads * a->dim && !a->unnormed ? 1 / sqrt((double)a->dim) : 1;
}

/* f(u) of a token in y, f'(u) in slope, and the normed heads; r: 1 / |y| of each head, 1 without norm */
static void conv_token_defined(const struct conv_args *a, int64_t t, double *y, double *slope, double *r)
{
	const float *w = a->w, *bias = a->bias, *x = a->x;
	int64_t before = t % a->seq - a->starts[t];
	for (int64_t c = 0; c < a->channels; c++) {
		double u = bias ? (double)bias[c] : 0;
		for (int64_t back = 0; back <= before && back < a->width; back++)
			u += (double)w[c * a->width + a->width - 1 - back] * (double)x[(t - back) * a->ld + c] *
				factor_of(a->before, (t - back) * a->ld + c);
		double g = sigmoid_of(u);
		y[c] = a->silu ? u * g : u;
		slope[c] = a->silu ? g * (1 + u * (1 - g)) : 1;
	}
	for (int64_t h = 0; h < a->q_heads + a->k_heads; h++) {
		double sum = 0;
		for (int64_t i = 0; i < a->dim; i++) sum += y[h * a->dim + i] * y[h * a->dim + i];
		r[h] = a->unnormed ? 1 : 1 / sqrt(sum + 1e-6);
		for (int64_t i = 0; i < a->dim; i++) y[h * a->dim + i] *= r[h];
	}
}

static void conv_defined(const struct conv_args *a, double *want_y, double *dx, double *dw, double *dbias,
	double *dbefore, double *dafter)
{
	const float *w = a->w, *x = a->x, *dv = a->dv;
	int64_t share = a->k_heads ? a->value_heads / a->k_heads : 1, normed = (a->q_heads + a->k_heads) * a->dim;
	double *y = doubles(a->channels), *slope = doubles(a->channels), *r = doubles(a->q_heads + a->k_heads + 1);
	double *d = doubles(a->channels);
	for (int64_t t = 0; t < a->n; t++) {
		int64_t before = t % a->seq - a->starts[t];
		conv_token_defined(a, t, y, slope, r);
		for (int64_t c = 0; c < a->channels; c++)
			want_y[t * a->channels + c] = y[c] * scale_of(a, c) * factor_of(a->after, t * a->ld + c);
		for (int64_t c = normed; c < a->channels; c++) d[c] = (double)dv[t * (a->channels - normed) + c - normed];
		for (int64_t h = 0; h < a->q_heads + a->k_heads; h++) {
			const float *of = h < a->q_heads ? a->dq : a->dk;
			double along = 0, scale = scale_of(a, h * a->dim);
			for (int64_t i = 0; i < a->dim; i++) {
				double sum = 0;
				for (int64_t k = 0; k < share; k++)
					sum += (double)of[(t * a->value_heads + h % a->k_heads * share + k) * a->dim + i];
				d[h * a->dim + i] = sum * scale;
				if (!a->unnormed) along += sum * scale * y[h * a->dim + i];
			}
			for (int64_t i = 0; i < a->dim; i++)
				d[h * a->dim + i] = r[h] * (d[h * a->dim + i] - along * y[h * a->dim + i]);
		}
		for (int64_t c = 0; c < a->channels; c++) {
			double du = d[c] * slope[c] * factor_of(a->after, t * a->ld + c);
			dafter[t * a->channels + c] = d[c] * y[c];
			if (a->bias) dbias[c] += du;
			for (int64_t back = 0; back <= before && back < a->width; back++) {
				int64_t j = c * a->width + a->width - 1 - back, at = (t - back) * a->channels + c;
				double of_x = (double)x[(t - back) * a->ld + c],
					   of_before = factor_of(a->before, (t - back) * a->ld + c);
				dx[at] += (double)w[j] * du * of_before;
				dbefore[at] += (double)w[j] * du * of_x;
				dw[j] += of_x * du * of_before;
			}
		}
	}
}

static float *apart_elements(int64_t n, int64_t width, int64_t ld)
{
	return apart(random_elements(n * width), n, width, ld);
}

static int64_t channels_of(struct shape s) { return 2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim; }

static struct conv_args conv_of(int64_t n, int64_t seq, const int64_t *lengths, struct shape of, int64_t width)
{
	struct conv_args a =
		{.n = n, .seq = seq, .channels = channels_of(of), .width = width, .dim = of.key_dim, .silu = 1};
	a.q_heads = a.k_heads = of.key_heads;
	a.value_heads = of.value_heads;
	a.starts = documents_of(n, seq, lengths);
	a.w = random_elements(a.channels * width);
	return a;
}

/* form: bits 1: bias; 2: no silu; 4: factors; 8: heads without norm */
static void test_conv(int64_t rows, int64_t seq, const int64_t *lengths, struct shape of, int64_t width, int form)
{
	int64_t n = rows * seq, channels = channels_of(of), all = n * channels, values = of.value_heads;
	double *y = doubles(all), *dx = doubles(all), *dw = doubles(channels * width), *dbias = doubles(channels);
	double *dbefore = doubles(all), *dafter = doubles(all);
	struct conv_args a = conv_of(n, seq, lengths, of, width);
	a.unnormed = form & 8;
	a.silu = !(form & 2);
	a.bias = form & 1 ? random_elements(channels) : NULL;
	a.ld = channels + 5;
	a.x = apart_elements(n, channels, a.ld);
	a.before = form & 4 ? apart_elements(n, channels, a.ld) : NULL;
	a.after = form & 4 ? apart_elements(n, channels, a.ld) : NULL;
	a.y = expect("y", y, all, 1e-6);
	RUN(CONV_FORWARD, a);
	a.dq = random_elements(n * values * of.key_dim);
	a.dk = random_elements(n * values * of.key_dim);
	a.dv = random_elements(n * values * of.value_dim);
	a.dx_ld = channels + 3;
	a.dx = expect_rows("dx", dx, n, channels, a.dx_ld, 2e-6);
	a.dbefore = form & 4 ? expect_rows("gradient of before", dbefore, n, channels, a.dx_ld, 2e-6) : NULL;
	a.dafter = form & 4 ? expect_rows("gradient of after", dafter, n, channels, a.dx_ld, 2e-6) : NULL;
	for (int added = 0; added < 2; added++) {
		a.dw = expect_sum("dw", dw, channels * width, IN_FP32(2e-6), added);
		a.dbias = expect_sum("dbias", dbias, channels, IN_FP32(2e-6), added || !a.bias); /* without bias it stays */
		a.beta = (float)added;
		RUN(CONV_BACKWARD, a);
	}
	conv_defined(&a, y, dx, dw, dbias, dbefore, dafter);
	CHECK("convolution of %ld x %ld, %ld + %ld heads of %ld and %ld, %ld wide%s%s%s%s", rows, seq, of.key_heads, values,
		of.key_dim, of.value_dim, width, yes(form & 1, ", bias"), yes(form & 2, ", no silu"),
		yes(form & 4, ", factors"), yes(form & 8, ", no norm"));
}

/* ---- the delta rule ---- */

static float *work_of(const struct delta_args *a) { return not_numbers(delta_work_elems(a, on_gpu)); }

struct delta_wants {
	double *o, *dq, *dk, *dv, *da, *db, *ddt_bias, *da_log, *dskip;
	int64_t da_ld, db_ld;
};

/* One head of a document of n tokens that starts at token `begin`, token by token. S (n + 1, DK, DV): all states */
static void delta_defined(const struct delta_args *a, int64_t begin, int64_t n, int64_t h, double *S, double *dS,
	const struct delta_wants *want)
{
	int64_t DK = a->key_dim, DV = a->value_dim, heads = a->value_heads, key = h / (heads / a->key_heads);
	int64_t wide = 2 * a->key_heads * DK + heads * DV, size = DK * DV, gates = a->channels ? DK : 1;
	double m[256], d[256], dd[256], x[256], g[256], keeps[256], rate = exp((double)((const float *)a->a_log)[h]);
	double skip = a->correct ? 0 : (double)((const float *)a->skip)[h], soft = 0, step = 0;
	for (int64_t i = 0; i < size; i++) S[i] = dS[i] = 0;
	for (int64_t pass = 0; pass < 2 * n; pass++) {
		int64_t back = pass >= n, i = back ? 2 * n - 1 - pass : pass, t = begin + i, at = t * heads + h;
		const float *q = (const float *)a->qkv + t * wide + key * DK, *k = q + a->key_heads * DK;
		const float *v = (const float *)a->qkv + t * wide + 2 * a->key_heads * DK + h * DV;
		const float *d_o = (const float *)a->d_o + at * DV;
		double *S0 = S + i * size, *S1 = S0 + size, dbeta = 0, dg[256] = {0};
		for (int64_t r = 0; r < DK; r++) {
			if (r >= gates) {
				keeps[r] = keeps[0];
				continue;
			}
			x[r] = (double)((const float *)a->a)[t * a->ld + h * gates + r] +
				(double)((const float *)a->dt_bias)[h * gates + r];
			step = soft = x[r] > 20 ? x[r] : log1p(exp(x[r]));
			if (!a->correct) step = fmin(fmax(soft, (double)a->dt_min), (double)a->dt_max);
			g[r] = -rate * step;
			keeps[r] = exp(g[r]);
		}
		double most = a->twice ? 2 : 1;
		double beta = a->correct ? most * sigmoid_of((double)((const float *)a->b)[t * a->b_ld + h]) : step;
		for (int64_t c = 0; c < DV; c++) {
			m[c] = 0;
			for (int64_t r = 0; a->correct && r < DK; r++) m[c] += keeps[r] * S0[r * DV + c] * (double)k[r];
			d[c] = beta * ((double)v[c] - m[c]);
			if (!back) want->o[at * DV + c] = skip * (double)v[c];
		}
		for (int64_t r = 0; !back && r < DK; r++)
			for (int64_t c = 0; c < DV; c++) {
				S1[r * DV + c] = keeps[r] * S0[r * DV + c] + (double)k[r] * d[c];
				want->o[at * DV + c] += S1[r * DV + c] * (double)q[r];
			}
		if (!back) continue;
		for (int64_t c = 0; c < DV; c++) {
			dd[c] = 0;
			for (int64_t r = 0; r < DK; r++) {
				dS[r * DV + c] += (double)q[r] * (double)d_o[c];
				dd[c] += dS[r * DV + c] * (double)k[r];
			}
			want->dv[at * DV + c] = beta * dd[c] + skip * (double)d_o[c];
			want->dskip[h] += (double)d_o[c] * (double)v[c];
			dbeta += dd[c] * ((double)v[c] - m[c]);
		}
		double corrects = a->correct ? beta : 0;
		for (int64_t r = 0; r < DK; r++)
			for (int64_t c = 0; c < DV; c++) {
				double *ds = dS + r * DV + c, begun = keeps[r] * S0[r * DV + c];
				want->dq[at * DK + r] += S1[r * DV + c] * (double)d_o[c];
				want->dk[at * DK + r] += *ds * d[c] - begun * corrects * dd[c];
				*ds -= (double)k[r] * corrects * dd[c];
				dg[r < gates ? r : 0] += *ds * begun;
				*ds *= keeps[r];
			}
		for (int64_t r = 0; r < gates; r++) {
			double da = -dg[r] * rate * sigmoid_of(x[r]);
			if (!a->correct) da = step == soft ? da + dbeta * sigmoid_of(x[r]) : 0;
			want->da[t * want->da_ld + h * gates + r] = da;
			want->ddt_bias[h * gates + r] += da;
			want->da_log[h] += dg[r] * g[r];
		}
		if (a->correct) want->db[t * want->db_ld + h] = dbeta * beta * (1 - beta / most);
	}
}

enum rule { GATED, TWICE, STEPS, CHANNELS }; /* gated DeltaNet, with beta up to 2, Mamba 2, Kimi delta attention */

static const struct decay {
	const char *name;
	double least, most, b;
	int same_keys;
	enum rule rule;
	double dt_min, dt_max; /* Mamba 2: limits of dt; both 0: none */
} slow = {", slow decay", 0.001, 0.01, 0, 0, GATED, 0, 0}, common = {"", 0.2, 2, 0, 0, GATED, 0, 0},
  wide_decay = {", any decay", 0.01, 16, 0, 0, GATED, 0, 0}, fast = {", fast decay", 50, 400, 0, 0, GATED, 0, 0},
  alike = {", keys alike", 0.2, 2, 0.5, 1, GATED, 0, 0}, quiet = {", beta near 0", 0.2, 2, -4, 0, GATED, 0, 0},
  twice = {", beta up to 2", 0.2, 2, 1, 0, TWICE, 0, 0},
  slow_twice = {", beta up to 2, slow decay", 0.001, 0.01, 1, 0, TWICE, 0, 0},
  steps = {", steps", 0.2, 2, 0, 0, STEPS, 0, 0}, slow_steps = {", slow steps", 0.001, 0.01, 0, 0, STEPS, 0, 0},
  fast_steps = {", fast steps", 50, 400, 0, 0, STEPS, 0, 0},
  limited = {", limited steps", 0.02, 0.2, 0, 0, STEPS, 0.25, 1.5},
  by_channel = {", gates of channels", 0.2, 2, 0, 0, CHANNELS, 0, 0},
  slow_by_channel = {", slow gates of channels", 0.001, 0.01, 0, 0, CHANNELS, 0, 0},
  any_by_channel = {", any gates of channels", 0.01, 16, 0, 0, CHANNELS, 0, 0},
  fast_by_channel = {", fast gates of channels", 20, 50, 0, 0, CHANNELS, 0, 0},
  alike_by_channel = {", gates of channels, keys alike", 0.2, 2, 0.5, 1, CHANNELS, 0, 0},
  quiet_by_channel = {", gates of channels, beta near 0", 0.2, 2, -4, 0, CHANNELS, 0, 0};

/* q, k, v as the convolution leaves them; a, b; parameters whose decay lies between least and most. The rows of b are
 * those of a, elsewhere where gates are of channels, and nowhere in Mamba 2 */
static struct delta_args delta_of(int64_t n, int64_t seq, const int64_t *lengths, struct shape of, struct decay decay)
{
	struct delta_args s = {.n = n, .seq = seq, .key_heads = of.key_heads, .value_heads = of.value_heads};
	s.key_dim = of.key_dim;
	s.value_dim = of.value_dim;
	s.correct = decay.rule != STEPS;
	s.channels = decay.rule == CHANNELS;
	s.twice = decay.rule == TWICE;
	s.dt_min = (float)decay.dt_min;
	s.dt_max = decay.dt_max > 0 ? (float)decay.dt_max : INFINITY;
	s.starts = s.host_starts = documents_of(n, seq, lengths);
	int64_t wide = channels_of(of), heads = of.value_heads, gates = delta_gates_of(&s);
	float *qkv = random_floats(n * wide), *a = random_floats(n * gates), *b = random_floats(n * heads);
	float *a_log = random_floats(heads);
	for (int64_t t = 0; t < n; t++) {
		for (int64_t h = 0; s.correct && h < 2 * of.key_heads; h++) {
			float *x = qkv + t * wide + h * of.key_dim;
			double sum = 1e-6, scale = h < of.key_heads ? sqrt((double)of.key_dim) : 1;
			for (int64_t i = 0; i < of.key_dim; i++) sum += (double)x[i] * (double)x[i];
			for (int64_t i = 0; i < of.key_dim; i++) x[i] = (float)((double)x[i] / (sqrt(sum) * scale));
		}
		if (decay.same_keys) memcpy(qkv + t * wide, qkv, (size_t)(2 * of.key_heads * of.key_dim) * sizeof *qkv);
		for (int64_t h = 0; h < heads; h++) b[t * heads + h] += (float)decay.b;
	}
	for (int64_t h = 0; h < heads; h++)
		a_log[h] = (float)(log(decay.least) + uniform() * (log(decay.most) - log(decay.least)));
	if (slack > 0) {
		round_to_bf16(qkv, n * wide);
		round_to_bf16(a, n * gates);
		round_to_bf16(b, n * heads);
		round_to_bf16(a_log, heads);
	}
	s.ld = s.d_ld = gates + heads + 1;
	s.b_ld = s.channels ? heads + 2 : s.ld;
	s.db_ld = s.channels ? heads + 3 : s.ld;
	float *at = apart(a, n, gates, s.ld), *b_at = s.channels ? not_numbers(n * s.b_ld) : at + gates;
	for (int64_t t = 0; s.correct && t < n; t++) memcpy(b_at + t * s.b_ld, b + t * heads, (size_t)heads * sizeof *b);
	s.a = at;
	s.b = s.correct ? b_at : NULL;
	s.qkv = qkv;
	s.a_log = a_log;
	s.dt_bias = random_elements(gates);
	s.skip = s.correct ? NULL : random_elements(heads);
	s.d_o = random_elements(n * heads * of.value_dim);
	return s;
}

/* The end of the document that begins at token t */
static int64_t end_of(const struct delta_args *a, int64_t t)
{
	for (t++; t < a->n && t % a->seq && a->starts[t] != t % a->seq;) t++;
	return t;
}

static void test_delta(int64_t rows, int64_t seq, const int64_t *lengths, struct shape of, struct decay decay)
{
	int64_t n = rows * seq, heads = of.value_heads, keys = n * heads * of.key_dim, values = n * heads * of.value_dim;
	struct delta_args a = delta_of(n, seq, lengths, of, decay);
	int64_t gates = delta_gates_of(&a), wide = gates + (a.channels || !a.correct ? 0 : heads);
	double *S = doubles((n + 1) * of.key_dim * of.value_dim), *dS = doubles(of.key_dim * of.value_dim);
	double loose = slack <= 0 ? 1e-5 : decay.same_keys ? 3e-4 : 1e-4; /* sums over tokens cancel where keys are alike */
	struct delta_wants want = {doubles(values), doubles(keys), doubles(keys), doubles(values), doubles(n * wide), NULL,
		doubles(gates), doubles(heads), doubles(heads), wide, a.channels ? heads : wide};
	want.db = a.channels ? doubles(n * heads) : want.da + gates;
	a.o = expect("o", want.o, values, 2e-6);
	a.work = work_of(&a);
	RUN(DELTA_FORWARD, a);
	a.dq = expect("dq", want.dq, keys, 2e-6);
	a.dk = expect("dk", want.dk, keys, 2e-6);
	a.dv = expect("dv", want.dv, values, 2e-6);
	float *da = expect_rows("da, db", want.da, n, wide, a.d_ld, 4e-6);
	a.da = da;
	a.db = a.channels ? expect_rows("db", want.db, n, heads, a.db_ld, 4e-6) : a.correct ? da + gates : NULL;
	for (int added = 0; added < 2; added++) {
		a.ddt_bias = expect_sum("ddt_bias", want.ddt_bias, gates, IN_FP32(loose), added);
		a.da_log = expect_sum("da_log", want.da_log, heads, IN_FP32(loose), added);
		a.dskip = a.correct ? NULL : expect_sum("dskip", want.dskip, heads, IN_FP32(1e-5), added);
		a.work = work_of(&a);
		a.beta = (float)added;
		RUN(DELTA_BACKWARD, a);
	}
	for (int64_t t = 0; t < n; t = end_of(&a, t))
		for (int64_t h = 0; h < heads; h++) delta_defined(&a, t, end_of(&a, t) - t, h, S, dS, &want);
	CHECK("delta rule of %ld x %ld, %ld + %ld heads of %ld and %ld%s", rows, seq, of.key_heads, heads, of.key_dim,
		of.value_dim, decay.name);
}

/* ---- documents alone and beside others ---- */

struct mixer {
	struct conv_args c;
	struct delta_args d;
};

static struct mixer mixer_of(int64_t n, int64_t seq, const int64_t *lengths, struct shape of, struct decay decay)
{
	struct mixer m = {conv_of(n, seq, lengths, of, 4), delta_of(n, seq, lengths, of, decay)};
	m.c.unnormed = decay.rule == STEPS;
	m.c.bias = random_floats(m.c.channels);
	m.c.x = random_floats(n * m.c.channels);
	m.c.ld = m.c.dx_ld = m.c.channels;
	return m;
}

/* The same for n of its tokens from `first` on */
static struct mixer mixer_part(const struct mixer *m, int64_t first, int64_t n, int64_t seq, const uint32_t *starts)
{
	struct mixer p = *m;
	int64_t values = p.d.value_heads * p.d.value_dim;
	p.c.n = p.d.n = n;
	p.c.seq = p.d.seq = seq;
	p.c.starts = p.d.starts = p.d.host_starts = starts;
	p.c.x = (const float *)m->c.x + first * p.c.ld;
	p.d.a = (const float *)m->d.a + first * p.d.ld;
	p.d.b = p.d.correct ? (const float *)m->d.b + first * p.d.b_ld : NULL;
	p.d.d_o = (const float *)m->d.d_o + first * values;
	p.d.qkv = p.c.y = random_floats(n * p.c.channels);
	p.d.o = random_floats(n * values);
	p.d.work = work_of(&p.d);
	return p;
}

static void mixer_run(struct mixer *m, struct pool *pool)
{
	struct conv_args *c = &m->c;
	struct delta_args *d = &m->d;
	op_conv_forward(pool, c);
	op_delta_forward(pool, d);
	c->dq = d->dq = random_floats(d->n * d->value_heads * d->key_dim);
	c->dk = d->dk = random_floats(d->n * d->value_heads * d->key_dim);
	c->dv = d->dv = random_floats(d->n * d->value_heads * d->value_dim);
	float *da = keep((size_t)(d->n * d->d_ld) * sizeof *da); /* between its rows are zeros in every type */
	d->da = da;
	d->db = d->channels ? keep((size_t)(d->n * d->db_ld) * sizeof *da) : d->correct ? da + delta_gates_of(d) : NULL;
	d->da_log = random_floats(d->value_heads);
	d->ddt_bias = random_floats(delta_gates_of(d));
	d->dskip = random_floats(d->value_heads);
	op_delta_backward(pool, d);
	c->dx = random_floats(c->n * c->channels);
	c->dw = random_floats(c->channels * c->width);
	c->dbias = random_floats(c->channels);
	op_conv_backward(pool, c);
}

static int same_tokens(const void *alone, const void *among, int64_t first, int64_t n, int64_t width)
{
	return !memcmp(alone, (const float *)among + first * width, (size_t)(n * width) * sizeof(float));
}

/* Documents of these lengths in rows of seq, every other one of NaN: the others have the bits that they have alone */
static void test_mixer_isolation(int64_t rows, int64_t seq, const int64_t *lengths, struct shape of, struct decay decay)
{
	int64_t n = rows * seq, tested = 0, same = 1, keys = of.value_heads * of.key_dim, channels = channels_of(of);
	int64_t values = of.value_heads * of.value_dim;
	struct mixer m = mixer_of(n, seq, lengths, of, decay);
	const float *x = m.c.x;
	for (int part = 0; part < 2; part++) { /* every other document is NaN: the odd ones, then the even ones */
		float *with = again(x, n * channels);
		m.c.x = with;
		for (int64_t t = 0, i = 0, end; t < n; t = end, i++) {
			end = end_of(&m.d, t);
			for (int64_t j = t * channels; i % 2 != part && j < end * channels; j++) with[j] = j % 3 ? INFINITY : NAN;
		}
		struct mixer all = mixer_part(&m, 0, n, seq, m.d.starts);
		mixer_run(&all, pools[1 + part]);
		for (int64_t t = 0, i = 0; t < n; t = end_of(&m.d, t), i++) {
			if (i % 2 != part) continue;
			int64_t l = end_of(&m.d, t) - t, held = kept_n;
			struct mixer lone = mixer_part(&m, t, l, l, indices(l));
			mixer_run(&lone, pools[0]);
			same &= same_tokens(lone.c.y, all.c.y, t, l, channels) && same_tokens(lone.d.o, all.d.o, t, l, values) &&
				same_tokens(lone.d.dq, all.d.dq, t, l, keys) && same_tokens(lone.d.dk, all.d.dk, t, l, keys) &&
				same_tokens(lone.d.dv, all.d.dv, t, l, values) && same_tokens(lone.d.da, all.d.da, t, l, lone.d.d_ld) &&
				(!lone.d.channels || same_tokens(lone.d.db, all.d.db, t, l, lone.d.db_ld)) &&
				same_tokens(lone.c.dx, all.c.dx, t, l, channels) && all_finite(lone.d.o, l * values) &&
				all_finite(lone.c.dx, l * channels);
			release((int)held);
			tested++;
		}
	}
	say((int)same, "convolution and delta rule of %ld documents in %ld rows of %ld%s, beside NaN and alone: same bits",
		tested, rows, seq, decay.name);
	forget();
}

/* ---- passes with a past, as mt-sample's ---- */

enum { PAST_ROW = 400 };

/* A document of PAST_ROW tokens in passes that end at these tokens: the bits of one pass */
static void test_mixer_past(const int64_t *ends, struct shape of, struct decay decay)
{
	int64_t values = of.value_heads * of.value_dim, channels = channels_of(of), same = 1, passes = 0;
	struct mixer m = mixer_of(PAST_ROW, PAST_ROW, one, of, decay);
	struct mixer all = mixer_part(&m, 0, PAST_ROW, PAST_ROW, m.d.starts);
	float *state = not_numbers(of.value_heads * of.key_dim * of.value_dim);
	op_conv_forward(pools[0], &all.c);
	op_delta_forward(pools[0], &all.d);
	for (int64_t past = 0; past < PAST_ROW; past = *ends++, passes++) {
		int64_t n = *ends - past, redo = past % DELTA_CHUNK;
		struct mixer p = mixer_part(&m, past, n, n, m.d.starts);
		float *y = random_floats((redo + n) * channels);
		p.c.past = p.d.past = past;
		p.c.redo = redo;
		p.d.qkv = p.c.y = y + redo * channels;
		p.d.state = state;
		op_conv_forward(pools[passes % POOLS], &p.c);
		op_delta_forward(pools[passes % POOLS], &p.d);
		same &= same_tokens(y, all.c.y, past - redo, redo + n, channels) &&
			same_tokens(p.d.o, all.d.o, past, n, values);
	}
	say((int)same && all_finite(all.d.o, PAST_ROW * values),
		"convolution and delta rule of %d tokens in %ld passes%s: the bits of one", PAST_ROW, passes, decay.name);
	forget();
}

/* ---- gated norm, output gate ---- */

/* Forms of the gated norm */
enum { GATE_FIRST = 1, NO_NORM = 2, ALL_HEADS = 4, SIGMOID = 8 };

/* A head of a token, whose elements are at o and on; z: its gates */
static void gated_norm_defined(const struct gated_norm_args *a, const float *o, const float *z, const float *w,
	const float *dy, double *y, double *d_o, double *dz, double *dw)
{
	double sum = 0, mean = 0, n = (double)a->dim;
	for (int pass = 0; pass < 3; pass++)
		for (int64_t i = 0; i < a->dim; i++) {
			double of_z = (double)z[i], g = sigmoid_of(of_z), gate = a->sigmoid ? g : of_z * g;
			double slope = a->sigmoid ? g * (1 - g) : g * (1 + of_z * (1 - g)), of_o = (double)o[i], d = (double)dy[i];
			double x = a->gate_first ? of_o * gate : of_o, after = a->gate_first ? 1 : gate;
			double r = 1 / sqrt(sum / n + (double)1e-3f), weight = w ? (double)w[i] : 1, in;
			if (!w) {
				y[i] = of_o * gate;
				d_o[i] = d * gate;
				dz[i] = d * of_o * slope;
			} else if (pass == 0) {
				sum += x * x;
			} else if (pass == 1) {
				y[i] = weight * x * r * after;
				dw[i] += d * x * r * after;
				mean += d * weight * after * x * r / n;
			} else {
				in = r * (d * weight * after - x * r * mean);
				d_o[i] = a->gate_first ? in * gate : in;
				dz[i] = slope * (a->gate_first ? in * of_o : d * weight * x * r);
			}
		}
}

static const char *alias_name(int alias)
{
	static const char *const names[] = {"", ", y is dy", ", d_o is dy", ", dgate is gate"};
	return names[alias];
}

/* alias: backward's y (1), or its d_o (2), is dy */
static void test_gated_norm(int64_t n, int64_t heads, int64_t dim, int alias, int form)
{
	int64_t width = heads * dim, all = n * width, weights = form & ALL_HEADS ? width : dim;
	struct gated_norm_args a = {.n = n, .heads = heads, .dim = dim, .eps = 1e-3f, .ld = width + 9, .dz_ld = width + 2};
	const float *o = random_elements(all), *z = random_elements(all), *w = random_elements(weights);
	const float *dy = random_elements(all);
	double *y = doubles(all), *d_o = doubles(all), *dz = doubles(all), *dw = doubles(weights);
	a.gate_first = form & GATE_FIRST;
	a.sigmoid = form & SIGMOID;
	a.all_heads = form & ALL_HEADS;
	a.o = o;
	a.z = apart(z, n, width, a.ld);
	a.w = form & NO_NORM ? NULL : w;
	a.y = expect("y", y, all, 1e-6);
	RUN(GATED_NORM_FORWARD, a);
	a.dz = expect_rows("dz", dz, n, width, a.dz_ld, 1e-6);
	for (int added = 0; added < 2; added++) {
		float *g = again(dy, all), *was = a.d_o;
		a.dy = g;
		a.y = added ? NULL : expect_in(alias == 1 ? g : not_numbers(all), "y again", y, all, 1e-6);
		a.d_o = expect_in(alias == 2 && !added ? g : not_numbers(all), "d_o", d_o, all, 1e-6);
		a.dw = a.w ? expect_sum("dw", dw, weights, IN_FP32(2e-6), added) : NULL;
		a.beta = (float)added;
		RUN(GATED_NORM_BACKWARD, a);
		if (added) expect_same("d_o again", a.d_o, was, all);
	}
	for (int64_t i = 0; i < n * heads; i++) {
		int64_t at = i * dim, own = form & ALL_HEADS ? i % heads * dim : 0;
		gated_norm_defined(&a, o + at, z + at, a.w ? w + own : NULL, dy + at, y + at, d_o + at, dz + at, dw + own);
	}
	CHECK("gated norm of %ld x %ld heads of %ld%s%s%s%s%s", n, heads, dim, yes(form & GATE_FIRST, ", gate first"),
		yes(form & NO_NORM, ", no norm"), yes(form & ALL_HEADS, ", all heads' weights"),
		yes(form & SIGMOID, ", sigmoid"), alias_name(alias));
}

/* alias: as above, or dgate is gate (3) */
static void test_gate(int64_t n, int64_t width, int alias)
{
	int64_t all = n * width;
	const float *o = random_elements(all), *z = random_elements(all), *dy = random_elements(all);
	double *y = doubles(all), *d_o = doubles(all), *dgate = doubles(all);
	float *gate = apart(z, n, width, width + 9), *g = again(dy, all);
	struct gate_args a = {.n = n, .width = width, .o = o, .gate = gate, .ld = width + 9};
	a.y = expect("y", y, all, 4e-7);
	RUN(GATE_FORWARD, a);
	a.dy = g;
	a.y = expect_in(alias == 1 ? g : not_numbers(all), "y again", y, all, 4e-7);
	a.d_o = expect_in(alias == 2 ? g : not_numbers(all), "d_o", d_o, all, 4e-7);
	a.dgate_ld = width + (alias == 3 ? 9 : 1);
	a.dgate = expect_rows_in(alias == 3 ? gate : not_numbers(n * a.dgate_ld), "dgate", dgate, n, width, a.dgate_ld,
		4e-7);
	RUN(GATE_BACKWARD, a);
	a.gate = apart(z, n, width, width + 9);
	a.o = a.y = expect_in(again(o, all), "y in o's place", y, all, 4e-7);
	RUN(GATE_FORWARD, a);
	for (int64_t i = 0; i < all; i++) {
		double s = sigmoid_of((double)z[i]);
		y[i] = (double)o[i] * s;
		d_o[i] = (double)dy[i] * s;
		dgate[i] = (double)dy[i] * (double)o[i] * s * (1 - s);
	}
	CHECK("gate of %ld x %ld%s", n, width, alias_name(alias));
}

static void test_gates(void)
{
	for (int alias = 0; alias < 3; alias++) {
		test_gated_norm(1, 1, 1, alias, 0);
		test_gated_norm(70, 3, 20, alias, 0);
		test_gated_norm(33, 2, 128, alias, 0);
	}
	for (int alias = 0; alias < 4; alias++) {
		test_gate(1, 1, alias);
		test_gate(70, 50, alias);
		test_gate(37, 256, alias);
	}
}

/* Of delta rules; alone: their documents, beside others and alone */
struct mixed_rows {
	int64_t rows, seq;
	const int64_t *lengths;
	struct shape of;
	const struct decay *decay;
	int alone, on; /* on: 0: everywhere */
};

static void test_mixed_rows(const struct mixed_rows *m, size_t n)
{
	for (; n--; m++) {
		struct shape of = m->of;
		if (brief && m->seq > 2000) of.key_heads = of.value_heads = 1;
		if (m->on && !is_here(m->on)) continue;
		(m->alone ? test_mixer_isolation : test_delta)(m->rows, m->seq, m->lengths, of, *m->decay);
	}
}
#define TEST_MIXED_ROWS(rows) test_mixed_rows(rows, sizeof(rows) / sizeof *(rows))

static void test_deltas(void)
{
	static const struct mixed_rows rows[] = {{1, 328, mixed, {1, 2, 16, 8}, &wide_decay, 0, 0},
		{2, 150, mixed, {1, 3, 20, 33}, &common, 0, 0}, {1, 70, one, {2, 2, 7, 50}, &common, 0, 0},
		{1, 1, one, {2, 4, 16, 8}, &common, 0, 0}, {1, 200, one, {1, 2, 128, 128}, &common, 0, 0},
		{1, 70, one, {1, 1, 256, 200}, &common, 0, 0}, {1, 1100, two, {1, 2, 8, 12}, &common, 0, 0},
		{2, 150, mixed, {1, 3, 20, 33}, &twice, 0, 0}, {1, 300, one, {2, 4, 16, 8}, &slow_twice, 0, 0}};
	test_conv(1, 200, mixed, (struct shape){2, 4, 16, 8}, 4, 0);
	test_conv(2, 40, one, (struct shape){1, 3, 20, 33}, 4, 1);
	test_conv(3, 5, one, (struct shape){2, 2, 7, 50}, 4, 3);
	test_conv(1, 1, one, (struct shape){2, 4, 16, 8}, 2, 0);
	test_conv(1, 67, one, (struct shape){0, 3, 0, 700}, 3, 2);
	test_conv(1, 130, one, (struct shape){1, 2, 128, 128}, 4, 0);
	test_conv(1, 200, mixed, (struct shape){0, 1, 0, 40}, 3, 6);
	test_conv(2, 70, one, (struct shape){0, 1, 0, 700}, 3, 6);
	test_conv(1, 5, one, (struct shape){0, 1, 0, 33}, 4, 7);
	test_gates();
	TEST_MIXED_ROWS(rows);
}

static void test_documents(void)
{
	static const struct mixed_rows rows[] = {{1, 200, one, {2, 4, 16, 8}, &common, 0, 0},
		{1, 300, one, {2, 4, 16, 8}, &slow, 0, 0}, {1, 100, one, {2, 4, 16, 8}, &fast, 0, 0},
		{1, 150, one, {2, 4, 16, 8}, &alike, 0, 0}, {1, 150, one, {2, 4, 16, 8}, &quiet, 0, 0},
		{1, 2600, long_ones, {1, 2, 16, 8}, &common, 0, 0}, {2, 1100, one, {1, 1, 8, 12}, &slow, 0, CPU},
		{2, 1100, one, {1, 1, 8, 12}, &common, 0, GPU}, {3, 70, one, {1, 24, 8, 256}, &common, 0, GPU},
		{1, 400, by_one, {2, 4, 16, 8}, &common, 1, 0}, {2, 195, other, {1, 3, 20, 33}, &common, 1, 0},
		{1, 2400, longer, {1, 2, 16, 8}, &common, 1, 0}};
	TEST_MIXED_ROWS(rows); /* of 3 x 70, a GPU has two rows in a group */
}

/* Mamba 2 */
static void test_steps(void)
{
	static const struct mixed_rows rows[] = {{1, 328, mixed, {1, 2, 16, 8}, &steps, 0, 0},
		{2, 150, mixed, {1, 3, 20, 33}, &limited, 0, 0}, {1, 70, one, {2, 2, 7, 50}, &steps, 0, 0},
		{1, 1, one, {2, 4, 16, 8}, &steps, 0, 0}, {1, 200, one, {1, 2, 128, 64}, &slow_steps, 0, 0},
		{1, 70, one, {1, 1, 256, 200}, &steps, 0, 0}, {1, 1100, two, {1, 2, 8, 12}, &slow_steps, 0, 0},
		{1, 300, one, {2, 4, 16, 8}, &slow_steps, 0, 0}, {1, 100, one, {2, 4, 16, 8}, &fast_steps, 0, 0},
		{1, 300, one, {2, 4, 16, 8}, &limited, 0, 0}, {1, 2600, long_ones, {1, 2, 16, 8}, &slow_steps, 0, 0},
		{1, 400, by_one, {2, 4, 16, 8}, &steps, 1, 0}, {2, 195, other, {1, 3, 20, 33}, &steps, 1, 0},
		{1, 2400, longer, {1, 2, 16, 8}, &limited, 1, 0}};
	test_conv(1, 200, mixed, (struct shape){2, 4, 16, 8}, 4, 8);
	test_conv(2, 40, one, (struct shape){1, 3, 20, 33}, 4, 9);
	test_conv(1, 130, one, (struct shape){1, 2, 256, 64}, 4, 9);
	for (int alias = 0; alias < 3; alias++) {
		test_gated_norm(70, 3, 20, alias, GATE_FIRST | ALL_HEADS);
		test_gated_norm(33, 1, 900, alias, GATE_FIRST | ALL_HEADS);
		test_gated_norm(37, 2, 300, alias, ALL_HEADS);
		test_gated_norm(37, 1, 50, alias, NO_NORM);
	}
	test_gated_norm(5, 1, 5120, 2, GATE_FIRST | ALL_HEADS);
	test_gated_norm(9, 2, 33, 0, GATE_FIRST);
	test_gated_norm(9, 2, 1280, 1, NO_NORM);
	TEST_MIXED_ROWS(rows);
}

/* Kimi delta attention */
static void test_channels(void)
{
	static const struct mixed_rows rows[] = {{1, 328, mixed, {2, 2, 16, 8}, &any_by_channel, 0, 0},
		{2, 150, mixed, {3, 3, 20, 33}, &by_channel, 0, 0}, {1, 70, one, {2, 2, 7, 50}, &by_channel, 0, 0},
		{1, 150, one, {1, 2, 16, 8}, &by_channel, 0, 0}, {1, 1, one, {4, 4, 16, 8}, &by_channel, 0, 0},
		{1, 200, one, {2, 2, 128, 128}, &by_channel, 0, 0}, {1, 70, one, {1, 1, 256, 200}, &by_channel, 0, 0},
		{1, 1100, two, {2, 2, 8, 12}, &by_channel, 0, 0}, {1, 300, one, {4, 4, 16, 8}, &slow_by_channel, 0, 0},
		{1, 100, one, {4, 4, 16, 8}, &fast_by_channel, 0, 0}, {1, 150, one, {4, 4, 16, 8}, &alike_by_channel, 0, 0},
		{1, 150, one, {4, 4, 16, 8}, &quiet_by_channel, 0, 0}, {1, 2600, long_ones, {2, 2, 16, 8}, &by_channel, 0, 0},
		{2, 1100, one, {1, 1, 8, 12}, &slow_by_channel, 0, CPU}, {2, 1100, one, {1, 1, 8, 12}, &by_channel, 0, GPU},
		{1, 400, by_one, {4, 4, 16, 8}, &by_channel, 1, 0}, {2, 195, other, {3, 3, 20, 33}, &by_channel, 1, 0},
		{1, 2400, longer, {2, 2, 16, 8}, &any_by_channel, 1, 0}};
	for (int alias = 0; alias < 3; alias++) {
		test_gated_norm(70, 3, 20, alias, SIGMOID);
		test_gated_norm(33, 2, 128, alias, SIGMOID);
		test_gated_norm(37, 2, 50, alias, SIGMOID | GATE_FIRST | ALL_HEADS);
		test_gated_norm(37, 1, 50, alias, SIGMOID | NO_NORM);
	}
	TEST_MIXED_ROWS(rows);
}

/* ---- the scan of Mamba 1 ---- */

struct scan_wants {
	double *y, *dx, *dstep, *db, *dc, *da_log, *ddt_bias, *dskip;
};

/* One channel of a row, token by token; h (N + 1, S) */
static void scan_defined(const struct scan_args *a, int64_t row, int64_t c, double *h, const struct scan_wants *want)
{
	int64_t end = least(row + a->seq, a->n), size = a->size;
	const float *x = a->x, *step = a->step, *b = a->b, *out = a->c, *dy = a->dy, *a_log = a->a_log, *bias = a->dt_bias;
	double skip = (double)((const float *)a->skip)[c], *dh = doubles(size);
	for (int64_t t = row; t < end; t++) {
		double raw = (double)step[t * a->channels + c] + (double)bias[c], dt = log1p(exp(raw));
		double of = (double)x[t * a->channels + c], y = skip * of;
		for (int64_t j = 0; j < size; j++) {
			double before = a->starts[t] == (uint32_t)(t - row) ? 0 : h[(t - row) * size + j];
			double now = exp(-exp((double)a_log[c * size + j]) * dt) * before + dt * of * (double)b[t * a->ld + j];
			h[(t - row + 1) * size + j] = now;
			y += (double)out[t * a->ld + j] * now;
		}
		want->y[t * a->channels + c] = y;
	}
	for (int64_t t = end - 1; t >= row; t--) {
		double raw = (double)step[t * a->channels + c] + (double)bias[c], dt = log1p(exp(raw));
		double of = (double)x[t * a->channels + c], g = (double)dy[t * a->channels + c], dx = skip * g, ddt = 0;
		int starts = a->starts[t] == (uint32_t)(t - row);
		for (int64_t j = 0; j < size; j++) {
			double rate = -exp((double)a_log[c * size + j]), e = exp(rate * dt), in = (double)b[t * a->ld + j];
			double d = dh[j] + g * (double)out[t * a->ld + j], before = starts ? 0 : h[(t - row) * size + j];
			want->dc[t * size + j] += g * h[(t - row + 1) * size + j];
			want->db[t * size + j] += d * dt * of;
			dx += d * dt * in;
			ddt += d * (of * in + rate * e * before);
			want->da_log[c * size + j] += d * dt * e * before * rate;
			dh[j] = starts ? 0 : d * e;
		}
		want->dx[t * a->channels + c] = dx;
		want->dstep[t * a->channels + c] = ddt * sigmoid_of(raw);
		want->ddt_bias[c] += ddt * sigmoid_of(raw);
		want->dskip[c] += g * of;
	}
}

static void test_scan(int64_t rows, int64_t seq, const int64_t *lengths, int64_t channels, int64_t size)
{
	int64_t n = rows * seq, all = n * channels, shared = n * size, ld = size + 3;
	struct scan_args a = {.n = n, .seq = seq, .channels = channels, .size = size, .ld = ld, .d_ld = size + 2};
	const struct scan_wants want = {doubles(all), doubles(all), doubles(all), doubles(shared), doubles(shared),
		doubles(channels * size), doubles(channels), doubles(channels)};
	float *a_log = random_floats(channels * size);
	for (int64_t i = 0; i < channels * size; i++) a_log[i] = (float)(log(0.01) + uniform() * (log(4) - log(0.01)));
	a.a_log = slack > 0 ? round_to_bf16(a_log, channels * size) : a_log;
	a.starts = documents_of(n, seq, lengths);
	a.x = random_elements(all);
	a.step = random_elements(all);
	a.b = apart(random_elements(shared), n, size, ld);
	a.c = apart(random_elements(shared), n, size, ld);
	a.dt_bias = random_elements(channels);
	a.skip = random_elements(channels);
	a.dy = random_elements(all);
	a.y = expect("y", want.y, all, 2e-6);
	RUN(SCAN_FORWARD, a);
	a.work = not_numbers(scan_room_of(&a, on_gpu).elems);
	a.dx = expect("dx", want.dx, all, 2e-6);
	a.dstep = expect("dstep", want.dstep, all, 4e-6);
	a.db = expect_rows("db", want.db, n, size, a.d_ld, 4e-6);
	a.dc = expect_rows("dc", want.dc, n, size, a.d_ld, 4e-6);
	for (int added = 0; added < 2; added++) {
		a.da_log = expect_sum("da_log", want.da_log, channels * size, IN_FP32(1e-5), added);
		a.ddt_bias = expect_sum("ddt_bias", want.ddt_bias, channels, IN_FP32(1e-5), added);
		a.dskip = expect_sum("dskip", want.dskip, channels, IN_FP32(1e-5), added);
		a.beta = (float)added;
		RUN(SCAN_BACKWARD, a);
	}
	double *h = doubles((seq + 1) * size);
	for (int64_t i = 0, held = kept_n; i < rows * channels; i++, release((int)held))
		scan_defined(&a, i / channels * seq, i % channels, h, &want);
	CHECK("scan of %ld x %ld, %ld channels of %ld%s", rows, seq, channels, size, yes(lengths != one, ", documents"));
}

static void test_scans(void)
{
	test_scan(1, 1, one, 5, 16);
	test_scan(1, 16, one, 33, 6);
	test_scan(2, 70, mixed, 130, 16);
	test_scan(3, 33, by_one, 20, 1);
	test_scan(1, 50, mixed, 300, 10);
	test_scan(1, 40, other, 19, 128);
	test_scan(1, brief ? 70 : 1100, two, 17, 20);
}

/* What the cpu alone computes */
static void test_mixer_pasts(void)
{
	static const int64_t ends[] = {130, 131, 132, 191, 192, 193, 256, 257, 390, PAST_ROW};
	static const int64_t others[] = {1, 2, 63, 64, 65, 128, 129, 320, 399, PAST_ROW},
						 chunks[] = {64, 128, 384, PAST_ROW};
	test_mixer_past(ends, (struct shape){2, 4, 16, 8}, common);
	test_mixer_past(others, (struct shape){1, 3, 20, 33}, common);
	test_mixer_past(chunks, (struct shape){1, 1, 64, 128}, common);
	test_mixer_past(ends, (struct shape){2, 4, 16, 8}, slow_steps);
	test_mixer_past(others, (struct shape){1, 3, 20, 33}, limited);
	test_mixer_past(chunks, (struct shape){1, 1, 64, 128}, steps);
	test_mixer_past(ends, (struct shape){4, 4, 16, 8}, slow_by_channel);
	test_mixer_past(others, (struct shape){3, 3, 20, 33}, by_channel);
	test_mixer_past(chunks, (struct shape){1, 1, 64, 128}, any_by_channel);
}
