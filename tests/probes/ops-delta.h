/* ops-delta.h: the cases of ops.c for gated DeltaNet, Kimi delta attention and Mamba 2 (convolution, delta rule, gated
 * norm) and for output gates: beside their definitions, token by token, in double precision; documents alone and beside
 * others; passes with a past. Included by ops.c. */

/* Numbers that a device's elements have */
static float *random_elements(int64_t n) { return random_operand(n, n && slack > 0); }

static double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }

/* Documents of these lengths in rows of seq, one after another; the last may be shorter */
static uint32_t *documents_of(int64_t n, int64_t seq, const int64_t *lengths)
{
	uint32_t *starts = keep((size_t)n * sizeof *starts);
	int64_t t = 0, begin = 0;
	for (int i = 0; t < n; begin = t, i++)
		for (int64_t left = lengths[i] ? lengths[i] : n; t < n && left; left--, t++) {
			if (t % seq == 0) begin = t;
			starts[t] = (uint32_t)(begin % seq);
		}
	return starts;
}

/* ---- convolution ---- */

struct conv_case {
	struct conv_args a;
	int64_t value_channels;
	const float *x, *before, *after, *dq, *dk, *dv, *dw, *dbias; /* before, after: NULL: no factors */
};

static float *not_numbers(int64_t n)
{
	float *x = keep((size_t)n * sizeof *x);
	return memset(x, 0xff, (size_t)n * sizeof *x);
}

static void run_conv(void *ctx, struct pool *pool, float **out)
{
	struct conv_case *s = ctx;
	struct conv_args a = s->a;
	int64_t heads = a.n * a.value_heads * a.dim;
	a.x = apart(s->x, a.n, a.channels, a.ld);
	a.w = again(s->a.w, a.channels * a.width);
	if (s->before) {
		a.before = apart(s->before, a.n, a.channels, a.ld);
		a.after = apart(s->after, a.n, a.channels, a.ld);
		a.dbefore = not_numbers(a.n * a.dx_ld);
		a.dafter = not_numbers(a.n * a.dx_ld);
	}
	if (a.bias) a.bias = again(s->a.bias, a.channels);
	a.y = out[0];
	op_conv_forward(pool, &a);
	a.dq = again(s->dq, heads);
	a.dk = again(s->dk, heads);
	a.dv = again(s->dv, a.n * s->value_channels);
	a.dx = not_numbers(a.n * a.dx_ld);
	a.dw = out[2];
	a.dbias = out[4];
	op_conv_backward(pool, &a);
	together(out[1], a.dx, a.n, a.channels, a.dx_ld);
	if (a.before) together(out[6], a.dbefore, a.n, a.channels, a.dx_ld);
	if (a.before) together(out[7], a.dafter, a.n, a.channels, a.dx_ld);
	memcpy(out[3], s->dw, (size_t)(a.channels * a.width) * sizeof(float));
	memcpy(out[5], s->dbias, (size_t)a.channels * sizeof(float));
	a.dw = out[3];
	a.dbias = out[5];
	a.beta = 1;
	op_conv_backward(pool, &a);
	if (!a.bias) memset(out[4], 0, (size_t)a.channels * sizeof(float));
}

static double factor_of(const float *factor, int64_t at) { return factor ? (double)factor[at] : 1; }

/* The factor of a channel's normed head */
static double scale_of(const struct conv_args *a, int64_t channel)
{
	return channel < a->q_heads * a->dim && !a->unnormed ? 1 / sqrt((double)a->dim) : 1;
}

/* f(u) of a token in y, f'(u) in slope, and the normed heads; r: 1 / |y| of each head, 1 without norm */
static void conv_token_defined(const struct conv_case *s, int64_t t, double *y, double *slope, double *r)
{
	const struct conv_args *a = &s->a;
	const float *w = a->w, *bias = a->bias;
	int64_t before = t % a->seq - a->starts[t];
	for (int64_t c = 0; c < a->channels; c++) {
		double u = bias ? (double)bias[c] : 0;
		for (int64_t back = 0; back <= before && back < a->width; back++)
			u += (double)w[c * a->width + a->width - 1 - back] * (double)s->x[(t - back) * a->channels + c] *
				factor_of(s->before, (t - back) * a->channels + c);
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

static void conv_defined(const struct conv_case *s, double *want_y, double *dx, double *dw, double *dbias,
	double *dbefore, double *dafter)
{
	const struct conv_args *a = &s->a;
	const float *w = a->w;
	int64_t share = a->k_heads ? a->value_heads / a->k_heads : 1, normed = (a->q_heads + a->k_heads) * a->dim;
	double *y = doubles(a->channels), *slope = doubles(a->channels), *r = doubles(a->q_heads + a->k_heads + 1);
	double *d = doubles(a->channels);
	for (int64_t t = 0; t < a->n; t++) {
		int64_t before = t % a->seq - a->starts[t];
		conv_token_defined(s, t, y, slope, r);
		for (int64_t c = 0; c < a->channels; c++)
			want_y[t * a->channels + c] = y[c] * scale_of(a, c) * factor_of(s->after, t * a->channels + c);
		for (int64_t c = normed; c < a->channels; c++) d[c] = (double)s->dv[t * s->value_channels + c - normed];
		for (int64_t h = 0; h < a->q_heads + a->k_heads; h++) {
			double along = 0, scale = scale_of(a, h * a->dim);
			for (int64_t i = 0; i < a->dim; i++) {
				double sum = 0;
				for (int64_t k = 0; k < share; k++)
					sum += (double)(h < a->q_heads
							? s->dq
							: s->dk)[(t * a->value_heads + h % a->k_heads * share + k) * a->dim + i];
				d[h * a->dim + i] = sum * scale;
				if (!a->unnormed) along += sum * scale * y[h * a->dim + i];
			}
			for (int64_t i = 0; i < a->dim; i++)
				d[h * a->dim + i] = r[h] * (d[h * a->dim + i] - along * y[h * a->dim + i]);
		}
		for (int64_t c = 0; c < a->channels; c++) {
			double du = d[c] * slope[c] * factor_of(s->after, t * a->channels + c);
			dafter[t * a->channels + c] = d[c] * y[c];
			dbias[c] += du;
			for (int64_t back = 0; back <= before && back < a->width; back++) {
				int64_t j = c * a->width + a->width - 1 - back, at = (t - back) * a->channels + c;
				dx[at] += (double)w[j] * du * factor_of(s->before, at);
				dbefore[at] += (double)w[j] * du * (double)s->x[at];
				dw[j] += (double)s->x[at] * du * factor_of(s->before, at);
			}
		}
	}
}

struct shape {
	int64_t key_heads, value_heads, key_dim, value_dim;
};

/* form: bits 1: bias; 2: no silu; 4: factors; 8: heads without norm */
static void test_conv(int64_t rows, int64_t seq, const int64_t *lengths, struct shape of, int64_t width, int form)
{
	int64_t n = rows * seq, channels = 2 * of.key_heads * of.key_dim + of.value_heads * of.value_dim;
	struct conv_case s = {.a = {.n = n,
							  .seq = seq,
							  .channels = channels,
							  .width = width,
							  .q_heads = of.key_heads,
							  .k_heads = of.key_heads,
							  .dim = of.key_dim,
							  .unnormed = form & 8,
							  .silu = !(form & 2),
							  .value_heads = of.value_heads,
							  .starts = documents_of(n, seq, lengths),
							  .w = random_elements(channels * width),
							  .bias = form & 1 ? random_elements(channels) : NULL,
							  .ld = channels + 5,
							  .dx_ld = channels + 3},
		.value_channels = of.value_heads * of.value_dim,
		.x = random_elements(n * channels),
		.before = form & 4 ? random_elements(n * channels) : NULL,
		.after = form & 4 ? random_elements(n * channels) : NULL,
		.dq = random_elements(n * of.value_heads * of.key_dim),
		.dk = random_elements(n * of.value_heads * of.key_dim),
		.dv = random_elements(n * of.value_heads * of.value_dim),
		.dw = random_floats(channels * width),
		.dbias = random_floats(channels)};
	double *y = doubles(n * channels), *dx = doubles(n * channels), *dw = doubles(channels * width);
	double *dbias = doubles(channels), *dw_added = doubles(channels * width), *dbias_added = doubles(channels);
	double *dbefore = doubles(n * channels), *dafter = doubles(n * channels);
	conv_defined(&s, y, dx, dw, dbias, dbefore, dafter);
	for (int64_t i = 0; i < channels * width; i++) dw_added[i] = dw[i] + (double)s.dw[i];
	for (int64_t i = 0; i < channels; i++) {
		dbias_added[i] = (double)s.dbias[i] + (form & 1 ? dbias[i] : 0);
		if (!(form & 1)) dbias[i] = 0;
	}
	char name[140];
	snprintf(name, sizeof name, "convolution of %lld x %lld, %lld + %lld heads of %lld and %lld, %lld wide%s%s%s%s",
		(long long)rows, (long long)seq, (long long)of.key_heads, (long long)of.value_heads, (long long)of.key_dim,
		(long long)of.value_dim, (long long)width, yes(form & 1, ", bias"), yes(form & 2, ", no silu"),
		yes(form & 4, ", factors"), yes(form & 8, ", no norm"));
	check(name,
		(struct part[]){{"y", NULL, y, n * channels, 1e-6}, {"dx", NULL, dx, n * channels, 2e-6},
			{"dw", NULL, dw, channels * width, IN_FP32(2e-6)},
			{"dw added", NULL, dw_added, channels * width, IN_FP32(2e-6)},
			{"dbias", NULL, dbias, channels, IN_FP32(2e-6)},
			{"dbias added", NULL, dbias_added, channels, IN_FP32(2e-6)},
			{"gradient of before", NULL, dbefore, n * channels, 2e-6},
			{"gradient of after", NULL, dafter, n * channels, 2e-6}},
		form & 4 ? 8 : 6, run_conv, &s);
}

/* ---- the delta rule ---- */

struct delta_case {
	struct delta_args a;
	const float *qkv, *gates, *d_o, *da_log, *ddt_bias, *dskip; /* gates (N, gates_wide()): a | b */
};

static int64_t channels_of(const struct delta_args *a)
{
	return 2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim;
}

static float *work_of(const struct delta_args *a)
{
	int64_t n = delta_work_elems(a, on_gpu);
	float *work = keep((size_t)n * sizeof *work);
	memset(work, 0xff, (size_t)n * sizeof *work);
	return work;
}

static int64_t gates_wide(const struct delta_args *a) { return delta_gates_of(a) + a->value_heads; }

/* b and its gradient behind a and its, or neither in Mamba 2 */
static void gates_of(struct delta_args *a, const float *gates, float *dgates)
{
	a->a = gates;
	a->b = a->correct ? gates + delta_gates_of(a) : NULL;
	a->da = dgates;
	a->db = a->correct && dgates ? dgates + delta_gates_of(a) : NULL;
}

/* `width` columns of x's rows (N, ld) as rows of their own */
static float *columns_of(const float *x, int64_t n, int64_t width, int64_t ld)
{
	float *y = keep((size_t)(n * width) * sizeof *y);
	together(y, x, n, width, ld);
	return y;
}

static void run_delta(void *ctx, struct pool *pool, float **out)
{
	struct delta_case *s = ctx;
	struct delta_args a = s->a;
	int64_t heads = a.value_heads, gates = delta_gates_of(&a), wide = gates_wide(&a);
	a.ld = a.b_ld = a.d_ld = a.db_ld = wide + 1;
	float *dgates = keep((size_t)(a.n * a.ld) * sizeof *dgates), *db = NULL;
	gates_of(&a, apart(s->gates, a.n, wide, a.ld), dgates);
	if (a.channels) { /* b's rows are elsewhere */
		a.b_ld = heads + 2;
		a.db_ld = heads + 3;
		a.b = apart(columns_of(s->gates + gates, a.n, heads, wide), a.n, heads, a.b_ld);
		a.db = db = keep((size_t)(a.n * a.db_ld) * sizeof *db);
	}
	a.qkv = again(s->qkv, a.n * channels_of(&a));
	a.a_log = again(s->a.a_log, heads);
	a.dt_bias = again(s->a.dt_bias, gates);
	if (!a.correct) a.skip = again(s->a.skip, heads);
	a.o = out[0];
	op_delta_forward(pool, &a);
	a.d_o = again(s->d_o, a.n * heads * a.value_dim);
	a.dq = out[1];
	a.dk = out[2];
	a.dv = out[3];
	memcpy(out[6], s->ddt_bias, (size_t)gates * sizeof(float));
	memcpy(out[7], s->da_log, (size_t)heads * sizeof(float));
	a.ddt_bias = out[6];
	a.da_log = out[7];
	if (!a.correct) a.dskip = memcpy(out[9], s->dskip, (size_t)heads * sizeof(float));
	a.beta = 1;
	a.work = work_of(&a);
	op_delta_backward(pool, &a);
	together(out[4], dgates, a.n, wide, a.d_ld);
	for (int64_t t = 0; db && t < a.n; t++)
		memcpy(out[4] + t * wide + gates, db + t * a.db_ld, (size_t)heads * sizeof *db);
	a.ddt_bias = out[5];
	a.da_log = out[5] + gates;
	if (!a.correct) a.dskip = out[8];
	a.beta = 0;
	memset(a.work, 0xff, (size_t)delta_work_elems(&a, on_gpu) * sizeof(float));
	op_delta_backward(pool, &a);
}

/* One head of a document of n tokens that starts at token `begin`, token by token. S (n + 1, DK, DV): all states */
static void delta_defined(const struct delta_case *s, int64_t begin, int64_t n, int64_t h, double *S, double *dS,
	double *const out[10])
{
	const struct delta_args *a = &s->a;
	int64_t DK = a->key_dim, DV = a->value_dim, heads = a->value_heads, key = h / (heads / a->key_heads);
	int64_t wide = channels_of(a), size = DK * DV;
	double d[512], m[512], dd[512], rate = exp((double)((const float *)a->a_log)[h]);
	double skip = a->correct ? 0 : (double)((const float *)a->skip)[h];
	for (int64_t i = 0; i < size; i++) S[i] = dS[i] = 0;
	for (int64_t pass = 0; pass < 2 * n; pass++) {
		int64_t back = pass >= n, i = back ? 2 * n - 1 - pass : pass, t = begin + i;
		const float *q = s->qkv + t * wide + key * DK, *k = q + a->key_heads * DK;
		const float *v = s->qkv + t * wide + 2 * a->key_heads * DK + h * DV;
		const float *d_o = s->d_o + (t * heads + h) * DV;
		double x = (double)s->gates[t * 2 * heads + h] + (double)((const float *)a->dt_bias)[h];
		double beta = sigmoid_of((double)s->gates[t * 2 * heads + heads + h]), soft = x > 20 ? x : log1p(exp(x));
		double step = a->correct ? soft : fmin(fmax(soft, (double)a->dt_min), (double)a->dt_max);
		double g = -rate * step, keeps = exp(g), *S0 = S + i * size, *S1 = S0 + size;
		if (!a->correct) beta = step;
		double corrects = a->correct ? beta * keeps : 0;
		for (int64_t c = 0; c < DV; c++) {
			m[c] = 0;
			for (int64_t r = 0; a->correct && r < DK; r++) m[c] += S0[r * DV + c] * (double)k[r];
			d[c] = beta * ((double)v[c] - keeps * m[c]);
		}
		if (!back) {
			for (int64_t c = 0; c < DV; c++) out[0][(t * heads + h) * DV + c] = skip * (double)v[c];
			for (int64_t r = 0; r < DK; r++)
				for (int64_t c = 0; c < DV; c++) {
					S1[r * DV + c] = keeps * S0[r * DV + c] + (double)k[r] * d[c];
					out[0][(t * heads + h) * DV + c] += S1[r * DV + c] * (double)q[r];
				}
			continue;
		}
		double *dq = out[1] + (t * heads + h) * DK, *dk = out[2] + (t * heads + h) * DK, dkeeps = 0, dbeta = 0;
		for (int64_t c = 0; c < DV; c++) {
			dd[c] = 0;
			for (int64_t r = 0; r < DK; r++) {
				dS[r * DV + c] += (double)q[r] * (double)d_o[c];
				dd[c] += dS[r * DV + c] * (double)k[r];
			}
			out[3][(t * heads + h) * DV + c] = beta * dd[c] + skip * (double)d_o[c];
			dbeta += dd[c] * ((double)v[c] - keeps * m[c]);
			dkeeps -= beta * dd[c] * m[c];
		}
		for (int64_t r = 0; r < DK; r++)
			for (int64_t c = 0; c < DV; c++) {
				double *at = dS + r * DV + c, before = S0[r * DV + c];
				dq[r] += S1[r * DV + c] * (double)d_o[c];
				dk[r] += *at * d[c] - before * corrects * dd[c];
				dkeeps += *at * before;
				*at = keeps * *at - (double)k[r] * corrects * dd[c];
			}
		double dg = dkeeps * keeps, da = -dg * rate * sigmoid_of(x);
		if (!a->correct) {
			da = step == soft ? da + dbeta * sigmoid_of(x) : 0;
			for (int64_t c = 0; c < DV; c++) out[8][h] += (double)d_o[c] * (double)v[c];
		}
		out[4][t * 2 * heads + h] = da;
		if (a->correct) out[4][t * 2 * heads + heads + h] = dbeta * beta * (1 - beta);
		out[5][h] += da;
		out[5][heads + h] += dg * g;
	}
}

/* The same of Kimi delta attention */
static void channels_defined(const struct delta_case *s, int64_t begin, int64_t n, int64_t h, double *S, double *dS,
	double *const out[10])
{
	const struct delta_args *a = &s->a;
	int64_t DK = a->key_dim, DV = a->value_dim, heads = a->value_heads, key = h / (heads / a->key_heads);
	int64_t wide = channels_of(a), size = DK * DV, gates = gates_wide(a);
	double m[256], d[256], dd[256], rate = exp((double)((const float *)a->a_log)[h]);
	for (int64_t i = 0; i < size; i++) S[i] = dS[i] = 0;
	for (int64_t pass = 0; pass < 2 * n; pass++) {
		int64_t back = pass >= n, i = back ? 2 * n - 1 - pass : pass, t = begin + i;
		const float *q = s->qkv + t * wide + key * DK, *k = q + a->key_heads * DK;
		const float *v = s->qkv + t * wide + 2 * a->key_heads * DK + h * DV;
		const float *d_o = s->d_o + (t * heads + h) * DV, *bias = (const float *)a->dt_bias + h * DK;
		double beta = sigmoid_of((double)s->gates[t * gates + heads * DK + h]), dbeta = 0, x[256], g[256];
		double *S0 = S + i * size, *S1 = S0 + size;
		for (int64_t r = 0; r < DK; r++) {
			x[r] = (double)s->gates[t * gates + h * DK + r] + (double)bias[r];
			g[r] = -rate * (x[r] > 20 ? x[r] : log1p(exp(x[r])));
		}
		for (int64_t c = 0; c < DV; c++) {
			m[c] = 0;
			for (int64_t r = 0; r < DK; r++) m[c] += exp(g[r]) * S0[r * DV + c] * (double)k[r];
			d[c] = beta * ((double)v[c] - m[c]);
		}
		for (int64_t r = 0; !back && r < DK; r++)
			for (int64_t c = 0; c < DV; c++) {
				S1[r * DV + c] = exp(g[r]) * S0[r * DV + c] + (double)k[r] * d[c];
				out[0][(t * heads + h) * DV + c] += S1[r * DV + c] * (double)q[r];
			}
		if (!back) continue;
		double *dq = out[1] + (t * heads + h) * DK, *dk = out[2] + (t * heads + h) * DK;
		for (int64_t c = 0; c < DV; c++) {
			dd[c] = 0;
			for (int64_t r = 0; r < DK; r++) {
				dS[r * DV + c] += (double)q[r] * (double)d_o[c];
				dd[c] += dS[r * DV + c] * (double)k[r];
			}
			out[3][(t * heads + h) * DV + c] = beta * dd[c];
			dbeta += dd[c] * ((double)v[c] - m[c]);
		}
		for (int64_t r = 0; r < DK; r++) {
			double keeps = exp(g[r]), dg = 0;
			for (int64_t c = 0; c < DV; c++) {
				double *at = dS + r * DV + c, begun = keeps * S0[r * DV + c];
				dq[r] += S1[r * DV + c] * (double)d_o[c];
				dk[r] += *at * d[c] - begun * beta * dd[c];
				*at -= (double)k[r] * beta * dd[c];
				dg += *at * begun;
				*at *= keeps;
			}
			double da = -dg * rate * sigmoid_of(x[r]);
			out[4][t * gates + h * DK + r] = da;
			out[5][h * DK + r] += da;
			out[5][heads * DK + h] += dg * g[r];
		}
		out[4][t * gates + heads * DK + h] = dbeta * beta * (1 - beta);
	}
}

enum rule { GATED, STEPS, CHANNELS }; /* gated DeltaNet, Mamba 2, Kimi delta attention */

static const struct decay {
	const char *name;
	double least, most, b;
	int same_keys;
	enum rule rule;
	double dt_min, dt_max; /* Mamba 2: limits of dt; both 0: none */
} slow = {", slow decay", 0.001, 0.01, 0, 0, GATED, 0, 0}, common = {"", 0.2, 2, 0, 0, GATED, 0, 0},
  wide_decay = {", any decay", 0.01, 16, 0, 0, GATED, 0, 0}, fast = {", fast decay", 50, 400, 0, 0, GATED, 0, 0},
  alike = {", keys alike", 0.2, 2, 0.5, 1, GATED, 0, 0}, quiet = {", beta near 0", 0.2, 2, -4, 0, GATED, 0, 0},
  steps = {", steps", 0.2, 2, 0, 0, STEPS, 0, 0}, slow_steps = {", slow steps", 0.001, 0.01, 0, 0, STEPS, 0, 0},
  fast_steps = {", fast steps", 50, 400, 0, 0, STEPS, 0, 0},
  limited = {", limited steps", 0.02, 0.2, 0, 0, STEPS, 0.25, 1.5},
  by_channel = {", gates of channels", 0.2, 2, 0, 0, CHANNELS, 0, 0},
  slow_by_channel = {", slow gates of channels", 0.001, 0.01, 0, 0, CHANNELS, 0, 0},
  any_by_channel = {", any gates of channels", 0.01, 16, 0, 0, CHANNELS, 0, 0},
  fast_by_channel = {", fast gates of channels", 20, 50, 0, 0, CHANNELS, 0, 0},
  alike_by_channel = {", gates of channels, keys alike", 0.2, 2, 0.5, 1, CHANNELS, 0, 0},
  quiet_by_channel = {", gates of channels, beta near 0", 0.2, 2, -4, 0, CHANNELS, 0, 0};

/* q, k, v as the convolution leaves them; a, b; parameters whose decay lies between least and most */
static struct delta_case delta_case_of(int64_t n, int64_t seq, const int64_t *lengths, struct shape of,
	struct decay decay)
{
	struct delta_case s = {.a = {.n = n,
							   .seq = seq,
							   .key_heads = of.key_heads,
							   .value_heads = of.value_heads,
							   .key_dim = of.key_dim,
							   .value_dim = of.value_dim,
							   .correct = decay.rule != STEPS,
							   .channels = decay.rule == CHANNELS,
							   .dt_min = (float)decay.dt_min,
							   .dt_max = decay.dt_max > 0 ? (float)decay.dt_max : INFINITY,
							   .starts = documents_of(n, seq, lengths)}};
	int64_t wide = channels_of(&s.a), heads = of.value_heads, gates = gates_wide(&s.a);
	float *qkv = random_floats(n * wide), *a_b = random_floats(n * gates), *a_log = random_floats(heads);
	for (int64_t t = 0; t < n; t++) {
		for (int64_t h = 0; decay.rule != STEPS && h < 2 * of.key_heads; h++) {
			float *x = qkv + t * wide + h * of.key_dim;
			double sum = 1e-6, scale = h < of.key_heads ? sqrt((double)of.key_dim) : 1;
			for (int64_t i = 0; i < of.key_dim; i++) sum += (double)x[i] * (double)x[i];
			for (int64_t i = 0; i < of.key_dim; i++) x[i] = (float)((double)x[i] / (sqrt(sum) * scale));
		}
		if (decay.same_keys) memcpy(qkv + t * wide, qkv, (size_t)(2 * of.key_heads * of.key_dim) * sizeof *qkv);
		for (int64_t h = 0; h < heads; h++) a_b[(t + 1) * gates - heads + h] += (float)decay.b;
	}
	for (int64_t h = 0; h < heads; h++)
		a_log[h] = (float)(log(decay.least) + uniform() * (log(decay.most) - log(decay.least)));
	if (slack > 0) {
		round_to_bf16(qkv, n * wide);
		round_to_bf16(a_b, n * gates);
		round_to_bf16(a_log, heads);
	}
	s.qkv = qkv;
	s.gates = a_b;
	s.a.a_log = a_log;
	s.a.dt_bias = random_elements(delta_gates_of(&s.a));
	s.a.host_starts = s.a.starts;
	s.d_o = random_elements(n * heads * of.value_dim);
	s.da_log = random_floats(heads);
	s.ddt_bias = random_floats(delta_gates_of(&s.a));
	if (decay.rule != STEPS) return s;
	s.a.skip = random_elements(heads);
	s.dskip = random_floats(heads);
	return s;
}

static void test_delta(int64_t rows, int64_t seq, const int64_t *lengths, struct shape of, struct decay decay)
{
	int64_t n = rows * seq, heads = of.value_heads, keys = n * heads * of.key_dim, values = n * heads * of.value_dim;
	struct delta_case s = delta_case_of(n, seq, lengths, of, decay);
	int64_t gates = delta_gates_of(&s.a), wide = gates_wide(&s.a);
	double *S = doubles((n + 1) * of.key_dim * of.value_dim), *dS = doubles(of.key_dim * of.value_dim);
	double *out[10] = {doubles(values), doubles(keys), doubles(keys), doubles(values), doubles(n * wide), doubles(wide),
		doubles(gates), doubles(heads), doubles(heads), doubles(heads)};
	for (int64_t t = 0, end; t < n; t = end) {
		for (end = t + 1; end < n && end % seq && s.a.starts[end] != end % seq;) end++;
		for (int64_t h = 0; h < heads; h++)
			(s.a.channels ? channels_defined : delta_defined)(&s, t, end - t, h, S, dS, out);
	}
	for (int64_t i = 0; i < gates; i++) out[6][i] = out[5][i] + (double)s.ddt_bias[i];
	for (int64_t h = 0; h < heads; h++) {
		out[7][h] = out[5][gates + h] + (double)s.da_log[h];
		if (!s.a.correct) out[9][h] = out[8][h] + (double)s.dskip[h];
	}
	char name[120];
	snprintf(name, sizeof name, "delta rule of %lld x %lld, %lld + %lld heads of %lld and %lld%s", (long long)rows,
		(long long)seq, (long long)of.key_heads, (long long)of.value_heads, (long long)of.key_dim,
		(long long)of.value_dim, decay.name);
	check(name,
		(struct part[]){{"o", NULL, out[0], values, 2e-6}, {"dq", NULL, out[1], keys, 2e-6},
			{"dk", NULL, out[2], keys, 2e-6}, {"dv", NULL, out[3], values, 2e-6},
			{"da, db", NULL, out[4], n * wide, 4e-6},
			{"ddt_bias, da_log", NULL, out[5], wide, IN_FP32(slack > 0 ? 1e-4 : 1e-5)},
			{"ddt_bias added", NULL, out[6], gates, IN_FP32(slack > 0 ? 1e-4 : 1e-5)},
			{"da_log added", NULL, out[7], heads, IN_FP32(slack > 0 ? 1e-4 : 1e-5)},
			{"dskip", NULL, out[8], heads, IN_FP32(1e-5)}, {"dskip added", NULL, out[9], heads, IN_FP32(1e-5)}},
		s.a.correct ? 8 : 10, run_delta, &s);
}

/* ---- documents alone and beside others ---- */

/* A document's rows of convolution and delta rule, forward and backward */
struct mixer_out {
	float *y, *o, *dq, *dk, *dv, *dgates, *dx;
};

static struct mixer_out mixer_run(const struct conv_case *c, const struct delta_case *s, int64_t first, int64_t n,
	int64_t seq, const uint32_t *starts, int pool)
{
	int64_t channels = c->a.channels, heads = s->a.value_heads, keys = heads * s->a.key_dim;
	int64_t values = heads * s->a.value_dim, gates = gates_wide(&s->a);
	struct mixer_out r = {random_floats(n * channels), random_floats(n * values), random_floats(n * keys),
		random_floats(n * keys), random_floats(n * values), random_floats(n * gates), random_floats(n * channels)};
	struct conv_args a = c->a;
	struct delta_args d = s->a;
	a.n = d.n = n;
	a.seq = d.seq = seq;
	a.starts = d.starts = d.host_starts = starts;
	a.x = c->x + first * channels;
	a.ld = a.dx_ld = channels;
	a.y = r.y;
	op_conv_forward(pools[pool], &a);
	d.qkv = r.y;
	d.ld = d.b_ld = d.d_ld = d.db_ld = gates;
	gates_of(&d, s->gates + first * d.ld, r.dgates);
	if (!d.correct) memset(r.dgates, 0, (size_t)(n * d.ld) * sizeof *r.dgates);
	d.o = r.o;
	op_delta_forward(pools[pool], &d);
	d.d_o = s->d_o + first * values;
	d.dq = r.dq;
	d.dk = r.dk;
	d.dv = r.dv;
	d.da_log = random_floats(heads);
	d.ddt_bias = random_floats(delta_gates_of(&d));
	d.dskip = random_floats(heads);
	d.work = work_of(&d);
	op_delta_backward(pools[pool], &d);
	a.dq = r.dq;
	a.dk = r.dk;
	a.dv = r.dv;
	a.dx = r.dx;
	a.dw = random_floats(channels * a.width);
	a.dbias = random_floats(channels);
	op_conv_backward(pools[pool], &a);
	return r;
}

static int same_rows(const float *alone, const float *among, int64_t first, int64_t n, int64_t width)
{
	return !memcmp(alone, among + first * width, (size_t)(n * width) * sizeof *alone);
}

/* Documents of these lengths in rows of seq, every other one of NaN: the others have the bits that they have alone */
static void test_mixer_isolation(int64_t rows, int64_t seq, const int64_t *lengths, struct shape of, struct decay decay)
{
	int64_t n = rows * seq, documents = 0, same = 1;
	struct delta_case s = delta_case_of(n, seq, lengths, of, decay);
	int64_t channels = channels_of(&s.a), heads = of.value_heads, keys = heads * of.key_dim;
	int64_t values = heads * of.value_dim;
	float *x = random_floats(n * channels);
	uint32_t *starts = documents_of(n, seq, lengths);
	struct conv_case c = {.a = {.channels = channels,
							  .width = 4,
							  .q_heads = of.key_heads,
							  .k_heads = of.key_heads,
							  .dim = of.key_dim,
							  .unnormed = decay.rule == STEPS,
							  .silu = 1,
							  .value_heads = heads,
							  .w = random_floats(channels * 4),
							  .bias = random_floats(channels)},
		.x = x};
	for (int part = 0; part < 2; part++) { /* every other document is NaN: the odd ones, then the even ones */
		float *was = again(x, n * channels);
		for (int64_t t = 0, i = 0, end; t < n; t = end, i++) {
			for (end = t + 1; end < n && end % seq && starts[end] != end % seq;) end++;
			for (int64_t j = t * channels; i % 2 != part && j < end * channels; j++) x[j] = j % 3 ? INFINITY : NAN;
		}
		struct mixer_out all = mixer_run(&c, &s, 0, n, seq, starts, 1 + part);
		for (int64_t t = 0, i = 0, end; t < n; t = end, i++) {
			for (end = t + 1; end < n && end % seq && starts[end] != end % seq;) end++;
			if (i % 2 != part) continue;
			int64_t l = end - t;
			int held = kept_n;
			struct mixer_out one = mixer_run(&c, &s, t, l, l, keep((size_t)l * 4), 0);
			same &= same_rows(one.y, all.y, t, l, channels) && same_rows(one.o, all.o, t, l, values) &&
				same_rows(one.dq, all.dq, t, l, keys) && same_rows(one.dk, all.dk, t, l, keys) &&
				same_rows(one.dv, all.dv, t, l, values) && same_rows(one.dgates, all.dgates, t, l, gates_wide(&s.a)) &&
				same_rows(one.dx, all.dx, t, l, channels) && all_finite(one.o, l * values) &&
				all_finite(one.dx, l * channels);
			while (kept_n > held) free(kept[--kept_n]);
			documents++;
		}
		memcpy(x, was, (size_t)(n * channels) * sizeof *x);
	}
	say((int)same,
		"convolution and delta rule of %lld documents in %lld rows of %lld%s, beside NaN and alone: same bits",
		(long long)documents, (long long)rows, (long long)seq, decay.name);
	forget();
}

/* ---- passes with a past, as mt-sample's ---- */

enum { PAST_ROW = 400 };

/* A document of PAST_ROW tokens in passes that end at these tokens: the bits of one pass */
static void test_mixer_past(const int64_t *ends, struct shape of, struct decay decay)
{
	static const int64_t one[] = {0};
	int64_t heads = of.value_heads, values = heads * of.value_dim, same = 1, passes = 0;
	struct delta_case s = delta_case_of(PAST_ROW, PAST_ROW, one, of, decay);
	int64_t channels = channels_of(&s.a), size = heads * of.key_dim * of.value_dim;
	uint32_t *starts = keep(PAST_ROW * sizeof *starts);
	float *x = random_floats(PAST_ROW * channels), *y = random_floats(PAST_ROW * channels);
	float *o = random_floats(PAST_ROW * values), *state = keep((size_t)size * sizeof *state);
	struct conv_args a = {.n = PAST_ROW,
		.seq = PAST_ROW,
		.channels = channels,
		.width = 4,
		.q_heads = of.key_heads,
		.k_heads = of.key_heads,
		.dim = of.key_dim,
		.unnormed = decay.rule == STEPS,
		.silu = 1,
		.x = x,
		.ld = channels,
		.w = random_floats(channels * 4),
		.starts = starts,
		.y = y};
	struct delta_args d = s.a;
	d.qkv = y;
	d.ld = d.b_ld = gates_wide(&d);
	gates_of(&d, s.gates, NULL);
	d.o = o;
	op_conv_forward(pools[0], &a);
	op_delta_forward(pools[0], &d);
	memset(state, 0xff, (size_t)size * sizeof *state);
	for (int64_t past = 0; past < PAST_ROW; past = *ends++, passes++) {
		int64_t n = *ends - past, redo = past % DELTA_CHUNK;
		float *part_y = random_floats((redo + n) * channels), *part_o = random_floats(n * values);
		a.n = a.seq = d.n = d.seq = n;
		a.past = d.past = past;
		a.redo = redo;
		a.x = x + past * channels;
		a.y = part_y + redo * channels;
		op_conv_forward(pools[passes % POOLS], &a);
		d.qkv = a.y;
		gates_of(&d, s.gates + past * d.ld, NULL);
		d.o = part_o;
		d.state = state;
		op_delta_forward(pools[passes % POOLS], &d);
		same &= same_rows(part_y, y, past - redo, redo + n, channels) && same_rows(part_o, o, past, n, values);
	}
	say((int)same && all_finite(o, PAST_ROW * values),
		"convolution and delta rule of %d tokens in %lld passes%s: the bits of one", PAST_ROW, (long long)passes,
		decay.name);
	forget();
}

/* ---- gated norm, output gate ---- */

struct gated_case {
	int64_t n, heads, dim;
	int alias; /* backward's y, or its d_o, is dy */
	const float *o, *z, *w, *dy, *dw;
	int form; /* of the gated norm */
};

/* In `dy`'s place, or at a new one */
static float *beside(int alias, const float *dy, int64_t n) { return alias ? (float *)dy : random_floats(n); }

/* Forms of the gated norm */
enum { GATE_FIRST = 1, NO_NORM = 2, ALL_HEADS = 4, SIGMOID = 8 };

static int64_t gated_weights(const struct gated_case *s) { return s->form & ALL_HEADS ? s->heads * s->dim : s->dim; }

static void run_gated_norm(void *ctx, struct pool *pool, float **out)
{
	struct gated_case *s = ctx;
	int64_t width = s->heads * s->dim, n = s->n * width, weights = gated_weights(s);
	struct gated_norm_args a = {.n = s->n,
		.heads = s->heads,
		.dim = s->dim,
		.eps = 1e-3f,
		.gate_first = s->form & GATE_FIRST,
		.sigmoid = s->form & SIGMOID,
		.all_heads = s->form & ALL_HEADS,
		.o = again(s->o, n),
		.z = apart(s->z, s->n, width, width + 9),
		.ld = width + 9,
		.w = s->form & NO_NORM ? NULL : again(s->w, weights),
		.y = out[0]};
	op_gated_norm_forward(pool, &a);
	float *dz = keep((size_t)(s->n * (width + 2)) * sizeof *dz), *dy = again(s->dy, n);
	a.dy = dy;
	a.y = beside(s->alias == 1, dy, n);
	a.d_o = beside(s->alias == 2, dy, n);
	a.dz = dz;
	a.dz_ld = width + 2;
	if (a.w) a.dw = out[4];
	op_gated_norm_backward(pool, &a);
	memcpy(out[1], a.d_o, (size_t)n * sizeof(float));
	together(out[2], dz, s->n, width, width + 2);
	memcpy(out[3], a.y, (size_t)n * sizeof(float));
	if (s->alias) a.dy = again(s->dy, n);
	a.y = NULL;
	a.d_o = random_floats(n);
	if (a.w) a.dw = memcpy(out[5], s->dw, (size_t)weights * sizeof(float));
	a.beta = 1;
	op_gated_norm_backward(pool, &a);
	if (memcmp(a.d_o, out[1], (size_t)n * sizeof(float))) out[1][0] = NAN;
}

/* A head of a token, with its weights and their gradient */
static void gated_norm_defined(const struct gated_case *s, int64_t at, const float *w, double *y, double *d_o,
	double *dz, double *dw)
{
	double sum = 0, mean = 0, n = (double)s->dim;
	for (int pass = 0; pass < 3; pass++)
		for (int64_t i = at; i < at + s->dim; i++) {
			double z = (double)s->z[i], g = sigmoid_of(z), gate = z * g, slope = g * (1 + z * (1 - g));
			if (s->form & SIGMOID) {
				gate = g;
				slope = g * (1 - g);
			}
			double o = (double)s->o[i], x = s->form & GATE_FIRST ? o * gate : o,
				   after = s->form & GATE_FIRST ? 1 : gate;
			double r = 1 / sqrt(sum / n + (double)1e-3f), weight = (double)w[i - at], d = (double)s->dy[i], in;
			if (s->form & NO_NORM) {
				y[i] = o * gate;
				d_o[i] = d * gate;
				dz[i] = d * o * slope;
				continue;
			}
			if (pass == 0) {
				sum += x * x;
			} else if (pass == 1) {
				y[i] = weight * x * r * after;
				dw[i - at] += d * x * r * after;
				mean += d * weight * after * x * r / n;
			} else {
				in = r * (d * weight * after - x * r * mean);
				d_o[i] = s->form & GATE_FIRST ? in * gate : in;
				dz[i] = slope * (s->form & GATE_FIRST ? in * o : d * weight * x * r);
			}
		}
}

static void test_gated_norm(int64_t n, int64_t heads, int64_t dim, int alias, int form)
{
	int64_t all = n * heads * dim, weights = form & ALL_HEADS ? heads * dim : dim;
	struct gated_case s = {n, heads, dim, alias, random_elements(all), random_elements(all), random_elements(weights),
		random_elements(all), random_floats(weights), form};
	double *y = doubles(all), *d_o = doubles(all), *dz = doubles(all), *dw = doubles(weights),
		   *added = doubles(weights);
	for (int64_t h = 0; h < n * heads; h++) {
		int64_t own = form & ALL_HEADS ? h % heads * dim : 0;
		gated_norm_defined(&s, h * dim, s.w + own, y, d_o, dz, dw + own);
	}
	for (int64_t i = 0; i < weights; i++) added[i] = dw[i] + (double)s.dw[i];
	char name[120];
	snprintf(name, sizeof name, "gated norm of %lld x %lld heads of %lld%s%s%s%s%s", (long long)n, (long long)heads,
		(long long)dim, yes(form & GATE_FIRST, ", gate first"), yes(form & NO_NORM, ", no norm"),
		yes(form & ALL_HEADS, ", all heads' weights"), yes(form & SIGMOID, ", sigmoid"),
		alias == 1       ? ", y is dy"
			: alias == 2 ? ", d_o is dy"
						 : "");
	check(name,
		(struct part[]){{"y", NULL, y, all, 1e-6}, {"d_o", NULL, d_o, all, 1e-6}, {"dz", NULL, dz, all, 1e-6},
			{"y again", NULL, y, all, 1e-6}, {"dw", NULL, dw, weights, IN_FP32(2e-6)},
			{"dw added", NULL, added, weights, IN_FP32(2e-6)}},
		form & NO_NORM ? 4 : 6, run_gated_norm, &s);
}

static void run_gate(void *ctx, struct pool *pool, float **out)
{
	struct gated_case *s = ctx;
	int64_t n = s->n * s->dim;
	float *gate = apart(s->z, s->n, s->dim, s->dim + 9), *dy = again(s->dy, n);
	struct gate_args a = {.n = s->n, .width = s->dim, .o = again(s->o, n), .gate = gate, .ld = s->dim + 9, .y = out[0]};
	op_gate_forward(pool, &a);
	a.dy = dy;
	a.y = beside(s->alias == 1, dy, n);
	a.d_o = beside(s->alias == 2, dy, n);
	a.dgate_ld = s->dim + (s->alias == 3 ? 9 : 1);
	a.dgate = s->alias == 3 ? gate : keep((size_t)(s->n * a.dgate_ld) * sizeof(float));
	op_gate_backward(pool, &a);
	memcpy(out[1], a.d_o, (size_t)n * sizeof(float));
	together(out[2], a.dgate, s->n, s->dim, a.dgate_ld);
	memcpy(out[3], a.y, (size_t)n * sizeof(float));
	a.gate = apart(s->z, s->n, s->dim, s->dim + 9);
	memcpy(out[4], s->o, (size_t)n * sizeof(float));
	a.o = a.y = out[4];
	op_gate_forward(pool, &a);
}

static void test_gate(int64_t n, int64_t width, int alias)
{
	int64_t all = n * width;
	struct gated_case s = {n, 1, width, alias, random_elements(all), random_elements(all), NULL, random_elements(all),
		NULL, 0};
	double *y = doubles(all), *d_o = doubles(all), *dgate = doubles(all);
	for (int64_t i = 0; i < all; i++) {
		double g = sigmoid_of((double)s.z[i]);
		y[i] = (double)s.o[i] * g;
		d_o[i] = (double)s.dy[i] * g;
		dgate[i] = (double)s.dy[i] * (double)s.o[i] * g * (1 - g);
	}
	char name[100];
	snprintf(name, sizeof name, "gate of %lld x %lld%s", (long long)n, (long long)width,
		alias == 1       ? ", y is dy"
			: alias == 2 ? ", d_o is dy"
			: alias == 3 ? ", dgate is gate"
						 : "");
	check(name,
		(struct part[]){{"y", NULL, y, all, 4e-7}, {"d_o", NULL, d_o, all, 4e-7}, {"dgate", NULL, dgate, all, 4e-7},
			{"y again", NULL, y, all, 4e-7}, {"y in o's place", NULL, y, all, 4e-7}},
		5, run_gate, &s);
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

static void test_deltas(void)
{
	static const int64_t one[] = {0}, mixed[] = {1, 2, 3, 63, 64, 65, 130, 0}, two[] = {900, 0};
	const struct shape small = {2, 4, 16, 8}, odd = {1, 3, 20, 33}, whole = {1, 2, 128, 128}, flat = {2, 2, 7, 50};
	test_conv(1, 200, mixed, small, 4, 0);
	test_conv(2, 40, one, odd, 4, 1);
	test_conv(3, 5, one, flat, 4, 3);
	test_conv(1, 1, one, small, 2, 0);
	test_conv(1, 67, one, (struct shape){0, 3, 0, 700}, 3, 2);
	test_conv(1, 130, one, whole, 4, 0);
	test_conv(1, 200, mixed, (struct shape){0, 1, 0, 40}, 3, 6);
	test_conv(2, 70, one, (struct shape){0, 1, 0, 700}, 3, 6);
	test_conv(1, 5, one, (struct shape){0, 1, 0, 33}, 4, 7);
	test_gates();
	test_delta(1, 328, mixed, (struct shape){1, 2, 16, 8}, wide_decay);
	test_delta(2, 150, mixed, odd, common);
	test_delta(1, 70, one, flat, common);
	test_delta(1, 1, one, small, common);
	test_delta(1, 200, one, whole, common);
	test_delta(1, 70, one, (struct shape){1, 1, 256, 200}, common);
	test_delta(1, 1100, two, (struct shape){1, 2, 8, 12}, common);
}

static void test_documents(void)
{
	static const int64_t one[] = {0}, long_ones[] = {1025, 2, 1500, 0},
						 by_one[] = {1, 1, 1, 2, 63, 64, 65, 130, 1, 1, 0};
	static const int64_t other[] = {64, 130, 1, 65, 63, 2, 64, 1, 0}, longer[] = {70, 1100, 64, 1026, 0};
	const struct shape small = {2, 4, 16, 8}, few = {1, brief ? 1 : 2, 16, 8};
	test_delta(1, 200, one, small, common);
	test_delta(1, 300, one, small, slow);
	test_delta(1, 100, one, small, fast);
	test_delta(1, 150, one, small, alike);
	test_delta(1, 150, one, small, quiet);
	test_delta(1, 2600, long_ones, few, common);
	test_delta(2, 1100, one, (struct shape){1, 1, 8, 12}, brief ? common : slow);
	if (on_gpu) test_delta(3, 70, one, (struct shape){1, 24, 8, 256}, common); /* two rows in a group */
	test_mixer_isolation(1, 400, by_one, small, common);
	test_mixer_isolation(2, 195, other, (struct shape){1, 3, 20, 33}, common);
	test_mixer_isolation(1, 2400, longer, few, common);
}

/* Mamba 2 */
static void test_steps(void)
{
	static const int64_t one[] = {0}, mixed[] = {1, 2, 3, 63, 64, 65, 130, 0}, two[] = {900, 0};
	static const int64_t long_ones[] = {1025, 2, 1500, 0}, by_one[] = {1, 1, 1, 2, 63, 64, 65, 130, 1, 1, 0};
	static const int64_t other[] = {64, 130, 1, 65, 63, 2, 64, 1, 0}, longer[] = {70, 1100, 64, 1026, 0};
	const struct shape small = {2, 4, 16, 8}, odd = {1, 3, 20, 33}, few = {1, brief ? 1 : 2, 16, 8};
	test_conv(1, 200, mixed, small, 4, 8);
	test_conv(2, 40, one, odd, 4, 9);
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
	test_delta(1, 328, mixed, (struct shape){1, 2, 16, 8}, steps);
	test_delta(2, 150, mixed, odd, limited);
	test_delta(1, 70, one, (struct shape){2, 2, 7, 50}, steps);
	test_delta(1, 1, one, small, steps);
	test_delta(1, 200, one, (struct shape){1, 2, 128, 64}, slow_steps);
	test_delta(1, 70, one, (struct shape){1, 1, 256, 200}, steps);
	test_delta(1, 1100, two, (struct shape){1, 2, 8, 12}, slow_steps);
	test_delta(1, 300, one, small, slow_steps);
	test_delta(1, 100, one, small, fast_steps);
	test_delta(1, 300, one, small, limited);
	test_delta(1, 2600, long_ones, few, slow_steps);
	test_mixer_isolation(1, 400, by_one, small, steps);
	test_mixer_isolation(2, 195, other, odd, steps);
	test_mixer_isolation(1, 2400, longer, few, limited);
}

/* Kimi delta attention */
static void test_channels(void)
{
	static const int64_t one[] = {0}, mixed[] = {1, 2, 3, 63, 64, 65, 130, 0}, two[] = {900, 0};
	static const int64_t long_ones[] = {1025, 2, 1500, 0}, by_one[] = {1, 1, 1, 2, 63, 64, 65, 130, 1, 1, 0};
	static const int64_t other[] = {64, 130, 1, 65, 63, 2, 64, 1, 0}, longer[] = {70, 1100, 64, 1026, 0};
	const struct shape small = {4, 4, 16, 8}, odd = {3, 3, 20, 33}, few = {brief ? 1 : 2, brief ? 1 : 2, 16, 8};
	for (int alias = 0; alias < 3; alias++) {
		test_gated_norm(70, 3, 20, alias, SIGMOID);
		test_gated_norm(33, 2, 128, alias, SIGMOID);
		test_gated_norm(37, 2, 50, alias, SIGMOID | GATE_FIRST | ALL_HEADS);
		test_gated_norm(37, 1, 50, alias, SIGMOID | NO_NORM);
	}
	test_delta(1, 328, mixed, (struct shape){2, 2, 16, 8}, any_by_channel);
	test_delta(2, 150, mixed, odd, by_channel);
	test_delta(1, 70, one, (struct shape){2, 2, 7, 50}, by_channel);
	test_delta(1, 150, one, (struct shape){1, 2, 16, 8}, by_channel);
	test_delta(1, 1, one, small, by_channel);
	test_delta(1, 200, one, (struct shape){2, 2, 128, 128}, by_channel);
	test_delta(1, 70, one, (struct shape){1, 1, 256, 200}, by_channel);
	test_delta(1, 1100, two, (struct shape){2, 2, 8, 12}, by_channel);
	test_delta(1, 300, one, small, slow_by_channel);
	test_delta(1, 100, one, small, fast_by_channel);
	test_delta(1, 150, one, small, alike_by_channel);
	test_delta(1, 150, one, small, quiet_by_channel);
	test_delta(1, 2600, long_ones, few, by_channel);
	test_delta(2, 1100, one, (struct shape){1, 1, 8, 12}, brief ? by_channel : slow_by_channel);
	test_mixer_isolation(1, 400, by_one, small, by_channel);
	test_mixer_isolation(2, 195, other, odd, by_channel);
	test_mixer_isolation(1, 2400, longer, few, any_by_channel);
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
