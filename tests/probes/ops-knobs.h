/* ops-knobs.h: the cases of ops.c for norms, rotary positions, activations and factors, in all the forms that families
 * of models ask for. Included by ops.c.
 *
 * Where the definition of a gradient is long, it is the central difference of the forward definition, in double
 * precision: its own error is about 1e-9.
 */

/* ---- norms ---- */

struct normed {
	int64_t n, h;
	int layer, weight, one, bias;
	const float *x, *w, *b, *dy, *dx, *dw; /* dw (2 H): of w, then of b */
	float eps;
	int64_t ld; /* of x and dx, where the operation gets them */
};

/* of one row: y, (rstd, mean), dx, and dw, db += */
static void normed_defined(const struct normed *s, int64_t row, double *y, double *statistics, double *dx, double *dw)
{
	const float *x = s->x + row * s->h, *dy = s->dy + row * s->h;
	double mean = 0, square = 0, dot = 0, sum = 0, h = (double)s->h;
	for (int64_t i = 0; i < s->h; i++) mean += s->layer ? (double)x[i] / h : 0;
	for (int64_t i = 0; i < s->h; i++) square += ((double)x[i] - mean) * ((double)x[i] - mean);
	double r = 1 / sqrt(square / h + (double)s->eps);
	for (int64_t i = 0; i < s->h; i++) {
		double w = s->weight ? (double)s->w[i] + s->one : 1, z = ((double)x[i] - mean) * r, g = (double)dy[i] * w;
		y[i] = z * w + (s->bias ? (double)s->b[i] : 0);
		dot += g * z / h;
		sum += s->layer ? g / h : 0;
		dw[i] += s->weight ? (double)dy[i] * z : 0;
		dw[s->h + i] += s->bias ? (double)dy[i] : 0;
	}
	for (int64_t i = 0; i < s->h; i++) {
		double w = s->weight ? (double)s->w[i] + s->one : 1, z = ((double)x[i] - mean) * r;
		dx[i] = r * ((double)dy[i] * w - sum - z * dot);
	}
	statistics[0] = r;
	statistics[1] = mean;
}

static void run_normed(void *ctx, struct pool *pool, float **out)
{
	struct normed *s = ctx;
	int64_t elems = s->n * s->h, ld = s->ld ? s->ld : s->h;
	float *mean = s->layer ? out[1] + s->n : NULL, *dx = NULL;
	const float *x = apart(s->x, s->n, s->h, ld), *w = s->weight ? again(s->w, s->h) : NULL, *dy = again(s->dy, elems);
	struct norm_forward_args f = {.y = out[0], .rstd = out[1], .x = x, .w = w, .n = s->n, .h = s->h, .eps = s->eps};
	struct norm_backward_args a = {.dx = out[2], .dy = dy, .x = x, .w = w, .rstd = out[1], .n = s->n, .h = s->h};
	f.b = s->bias ? again(s->b, s->h) : NULL;
	f.mean = mean;
	a.mean = mean;
	a.one = f.one = s->one;
	a.ld = f.ld = s->ld;
	op_norm_forward(pool, &f);
	if (!mean) memset(out[1] + s->n, 0, (size_t)s->n * sizeof(float));
	memcpy(out[4], s->dx, (size_t)elems * sizeof(float));
	for (a.add_dx = 0; a.add_dx < 2; a.add_dx++) {
		float *dw = out[a.add_dx ? 5 : 3];
		if (a.add_dx) memcpy(dw, s->dw, (size_t)(2 * s->h) * sizeof(float));
		if (!s->weight) memset(dw, 0, (size_t)s->h * sizeof(float));
		if (!s->bias) memset(dw + s->h, 0, (size_t)s->h * sizeof(float));
		a.dx = dx = apart(out[a.add_dx ? 4 : 2], s->n, s->h, ld);
		a.dw = s->weight ? dw : NULL;
		a.db = s->bias ? dw + s->h : NULL;
		a.beta = (float)a.add_dx;
		op_norm_backward(pool, &a);
		together_again(out[a.add_dx ? 4 : 2], dx, s->n, s->h, ld);
	}
}

static void normed_case(int64_t n, int64_t h, int layer, int weight, int one, int bias, int64_t ld)
{
	float *x = random_floats(n * h), *dw = random_floats(2 * h);
	struct normed s = {n, h, layer, weight, one, bias, x, random_floats(h), random_floats(h), random_floats(n * h),
		random_floats(n * h), dw, 1e-5f, ld};
	double *y = doubles(n * h), *statistics = doubles(2 * n), *dx = doubles(n * h), *d = doubles(2 * h);
	double *dx2 = doubles(n * h), *d2 = doubles(2 * h);
	for (int64_t i = 0; i < n * h; i++) x[i] += 2; /* a mean that is not 0 */
	for (int64_t i = 0; i < 2 * h; i++) dw[i] = (i < h ? weight : bias) ? dw[i] : 0;
	for (int64_t t = 0; t < n; t++) {
		double of_row[2];
		normed_defined(&s, t, y + t * h, of_row, dx + t * h, d);
		statistics[t] = of_row[0];
		statistics[n + t] = of_row[1];
	}
	for (int64_t i = 0; i < n * h; i++) dx2[i] = dx[i] + (double)s.dx[i];
	for (int64_t i = 0; i < 2 * h; i++) d2[i] = d[i] + (double)dw[i];
	char name[100];
	snprintf(name, sizeof name, "%s of %lld rows of %lld%s%s%s%s", layer ? "LayerNorm" : "RMSNorm", (long long)n,
		(long long)h, yes(!weight, ", no weight"), yes(one, ", 1 + w"), yes(bias, ", bias"), yes(!!ld, ", apart"));
	/* a row of one or two elements is all rounding once its mean is gone */
	double few = layer && h < 8 ? 1e-5 : 0, of_y = layer ? 6e-7 : 4e-7, of_dx = layer ? 1e-6 : 6e-7;
	check(name,
		(struct part[]){{"y", NULL, y, n * h, fmax(few, of_y)},
			{"rstd, mean", NULL, statistics, 2 * n, fmax(few, 4e-7)}, {"dx", NULL, dx, n * h, fmax(few, of_dx)},
			{"dw, db", NULL, d, 2 * h, fmax(few, 1e-6)}, {"dx added", NULL, dx2, n * h, fmax(few, of_dx)},
			{"dw, db added", NULL, d2, 2 * h, fmax(few, 1e-6)}},
		6, run_normed, &s);
}

static void test_normed(int64_t n, int64_t h, int layer, int weight, int one, int bias)
{
	normed_case(n, h, layer, weight, one, bias, 0);
}

/* Rows that lie `ld` apart, as those of latents do */
static void test_norms_apart(void)
{
	normed_case(33, 64, 0, 1, 0, 0, 104);
	normed_case(3, 20, 0, 1, 0, 0, 27);
	normed_case(5, 512, 0, 1, 0, 0, 2112);
	normed_case(70, 257, 0, 1, 0, 0, 258);
}

static void test_norms(void)
{
	test_norms_apart();
	static const int64_t sizes[][2] = {{1, 3}, {3, 20}, {33, 64}, {100, 100}, {700, 257}};
	test_normed(2100, 257, 0, 1, 0, 0);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		int64_t n = sizes[i][0], h = sizes[i][1];
		test_normed(n, h, 0, 1, 0, 0);
		test_normed(n, h, 0, 1, 1, 0);
		test_normed(n, h, 0, 0, 0, 0);
		test_normed(n, h, 1, 1, 0, 0);
		test_normed(n, h, 1, 1, 0, 1);
		test_normed(n, h, 1, 1, 1, 1);
		test_normed(n, h, 1, 0, 0, 0);
	}
}

/* ---- rotary positions ---- */

enum {
	HEAD_NORMS = 1,
	ROW_NORMS = 2,
	NORMS_AFTER = 4,
	ONE_ADDED = 8,
	V_NORMS = 16,
	K_IS_V = 32,
	NEIGHBOURS = 64,
	WARM = 128,  /* a temperature */
	PAST = 256,  /* the row is the end of a longer one */
	PLAIN = 512, /* norms have no weights; the temperature counts positions from 1 */
};

struct turned {
	struct rope_args r;
	int knobs;
	const float *qkv, *grad, *qnorm, *knorm, *dq, *dk;
	double *of_q, *of_k; /* the norms' weights */
	int64_t q_weights, k_weights, kept, rstd;
};

static void run_turned(void *ctx, struct pool *pool, float **out)
{
	struct turned *s = ctx;
	struct rope_args r = s->r;
	int64_t q = r.heads * r.dim, k = r.kv_heads * r.dim, wide = q + 2 * k;
	int norms = s->knobs & (HEAD_NORMS | ROW_NORMS);
	r.qkv = out[0];
	r.pre = norms ? out[4] : NULL;
	r.rstd = norms ? out[5] : NULL;
	memcpy(out[0], s->qkv, (size_t)(r.n * wide) * sizeof(float));
	/* nothing is read where v is to be */
	for (int64_t t = 0; r.k_is_v && t < r.n; t++) memset(out[0] + t * wide + q + k, 0xff, (size_t)k * sizeof(float));
	op_rope_forward(pool, &r);
	memcpy(out[1], s->grad, (size_t)(r.n * wide) * sizeof(float));
	memcpy(out[2], s->dq, (size_t)s->q_weights * sizeof(float));
	memcpy(out[3], s->dk, (size_t)s->k_weights * sizeof(float));
	r.qkv = out[1];
	r.dqnorm = s->r.qnorm ? out[2] : NULL;
	r.dknorm = s->r.qnorm ? out[3] : NULL;
	r.beta = 1;
	op_rope_backward(pool, &r);
	for (int64_t t = 0; r.k_is_v && t < r.n; t++) memset(out[1] + t * wide + q + k, 0, (size_t)k * sizeof(float));
}

/* x (n) becomes its norm; what it was, and its rstd, are kept */
static double *norm_kept(const struct turned *s, double *x, const double *w, int64_t n, double *pre, double **rstd)
{
	double square = 0;
	for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
	double r = 1 / sqrt(square / (double)n + (double)s->r.eps);
	for (int64_t i = 0; i < n; i++) {
		pre[i] = x[i];
		x[i] *= r * (w ? w[i] + !!(s->knobs & ONE_ADDED) : 1);
	}
	*(*rstd)++ = r;
	return pre + n;
}

static void turn_defined(const struct turned *s, double *x, int64_t position)
{
	int64_t half = s->r.rope_dim / 2;
	for (int64_t i = 0; i < half; i++) {
		int64_t first = s->knobs & NEIGHBOURS ? 2 * i : i, second = s->knobs & NEIGHBOURS ? 2 * i + 1 : half + i;
		double c = (double)s->r.cos[position * half + i], sine = (double)s->r.sin[position * half + i];
		double a = x[first], b = x[second];
		x[first] = a * c - b * sine;
		x[second] = b * c + a * sine;
	}
}

/* row: q | k | v of token t: its heads from .. to - 1 become what rope makes of them; pre and rstd as rope.h has them,
 * where these are all heads */
static void turned_defined(const struct turned *s, int64_t t, double *row, double *pre, double *rstd, int64_t from,
	int64_t to)
{
	int64_t dim = s->r.dim, heads = s->r.heads, both = heads + s->r.kv_heads;
	int64_t position = t % s->r.seq - s->r.starts[t];
	int of_heads = s->knobs & HEAD_NORMS, after = s->knobs & NORMS_AFTER;
	if (s->knobs & K_IS_V) memcpy(row + both * dim, row + heads * dim, (size_t)(s->r.kv_heads * dim) * sizeof *row);
	if (s->knobs & ROW_NORMS) {
		pre = norm_kept(s, row, s->of_q, heads * dim, pre, &rstd);
		pre = norm_kept(s, row + heads * dim, s->of_k, s->r.kv_heads * dim, pre, &rstd);
	}
	for (int64_t j = from; j < both && j < to; j++) {
		const double *w = s->knobs & PLAIN ? NULL : j < heads ? s->of_q : s->of_k;
		if (of_heads && !after) pre = norm_kept(s, row + j * dim, w, dim, pre, &rstd);
		turn_defined(s, row + j * dim, position);
		if (of_heads && after) pre = norm_kept(s, row + j * dim, w, dim, pre, &rstd);
	}
	for (int64_t j = from > both ? from : both; s->knobs & V_NORMS && j < to; j++)
		pre = norm_kept(s, row + j * dim, NULL, dim, pre, &rstd);
	for (int64_t i = 0; s->knobs & WARM && i < heads * dim; i++)
		row[i] *= 1 +
			(double)s->r.temperature *
				log(1 +
					floor((double)(position + s->r.past + s->r.temperature_from) / (double)s->r.temperature_positions));
}

struct turned_token {
	const struct turned *s;
	int64_t t, wide, from, to; /* heads */
	const double *in;
	double *scratch; /* (3 wide) */
};

/* The sum of a token's results, of some of its heads, times their gradients */
static double weighed(const void *ctx)
{
	const struct turned_token *token = ctx;
	int64_t t = token->t, wide = token->wide, dim = token->s->r.dim;
	double sum = 0, *y = token->scratch, *pre = y + wide, *rstd = pre + wide;
	memcpy(y, token->in, (size_t)wide * sizeof *y);
	turned_defined(token->s, t, y, pre, rstd, token->from, token->to);
	for (int64_t i = token->from * dim; i < token->to * dim; i++) sum += y[i] * (double)token->s->grad[t * wide + i];
	return sum;
}

/* d[i] += the derivative of the token's sum by at[i], which is part of its row or of the weights */
static void differences(const struct turned_token *token, double *at, int64_t n, double *d)
{
	for (int64_t i = 0; i < n; i++) d[i] += difference(at + i, 1e-5, weighed, token);
}

/* By the elements of its row: where heads are apart, what a head's become is all that changes with them */
static void row_differences(struct turned_token token, double *row, int64_t n, double *d)
{
	int64_t dim = token.s->r.dim;
	if (token.s->knobs & (ROW_NORMS | K_IS_V)) {
		differences(&token, row, n, d);
		return;
	}
	for (int64_t j = 0; j < n / dim; j++) {
		token.from = j;
		token.to = j + 1;
		differences(&token, row + j * dim, dim, d + j * dim);
	}
}

static void turned_case(struct turned *s)
{
	struct rope_args *r = &s->r;
	int64_t heads = r->heads + 2 * r->kv_heads, wide = heads * r->dim, n = r->n, q = s->q_weights, k = s->k_weights;
	double *y = doubles(n * wide), *dx = doubles(n * wide), *dq = doubles(q), *dk = doubles(k);
	double *pre = doubles(n * s->kept), *rstd = doubles(n * s->rstd), *row = doubles(wide),
		   *scratch = doubles(3 * wide);
	int norms = s->knobs & (HEAD_NORMS | ROW_NORMS);
	for (int64_t i = 0; i < q; i++) dq[i] = (double)s->dq[i];
	for (int64_t i = 0; i < k; i++) dk[i] = (double)s->dk[i];
	for (int64_t t = 0; t < n; t++) {
		for (int64_t i = 0; i < wide; i++) row[i] = y[t * wide + i] = (double)s->qkv[t * wide + i];
		turned_defined(s, t, y + t * wide, pre + t * s->kept, rstd + t * s->rstd, 0, heads);
		struct turned_token token = {s, t, wide, 0, heads, row, scratch};
		row_differences(token, row, s->knobs & K_IS_V ? wide - r->kv_heads * r->dim : wide, dx + t * wide);
		if (r->qnorm) differences(&token, s->of_q, q, dq);
		if (r->qnorm) differences(&token, s->of_k, k, dk);
	}
	char name[200];
	snprintf(name, sizeof name, "rope %lld x %lld, %lld/%lld heads of %lld, %lld turn%s%s%s%s%s%s%s%s%s",
		(long long)(n / r->seq), (long long)r->seq, (long long)r->heads, (long long)r->kv_heads, (long long)r->dim,
		(long long)r->rope_dim, yes(s->knobs & HEAD_NORMS, ", norms"), yes(s->knobs & ROW_NORMS, ", norms of rows"),
		yes(s->knobs & NORMS_AFTER, " after"), yes(s->knobs & PLAIN, " without weights"),
		yes(s->knobs & ONE_ADDED, " by 1 + w"), yes(s->knobs & V_NORMS, ", v's norm"),
		yes(s->knobs & K_IS_V, ", k is v"), yes(s->knobs & NEIGHBOURS, ", neighbours"),
		yes(s->knobs & WARM, s->knobs & PAST ? ", temperature, 13 tokens before" : ", temperature"));
	check(name,
		(struct part[]){{"qkv", NULL, y, n * wide, 4e-7},
			{"dqkv", NULL, dx, n * wide, s->knobs & ~HEAD_NORMS ? 8e-7 : 6e-7}, {"dqnorm", NULL, dq, q, 1e-6},
			{"dknorm", NULL, dk, k, 1e-6}, {"pre", NULL, pre, n * s->kept, 4e-7},
			{"rstd", NULL, rstd, n * s->rstd, 4e-7}},
		norms ? 6 : 4, run_turned, s);
}

static void test_turned(int64_t rows, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim, int64_t rope_dim,
	int knobs)
{
	int64_t n = rows * seq, wide = (heads + 2 * kv_heads) * dim, row_norms = knobs & ROW_NORMS;
	int norms = knobs & (HEAD_NORMS | ROW_NORMS);
	struct turned s = {.knobs = knobs, .qkv = random_floats(n * wide), .grad = random_floats(n * wide)};
	s.q_weights = row_norms ? heads * dim : dim;
	s.k_weights = row_norms ? kv_heads * dim : dim;
	s.qnorm = random_floats(s.q_weights);
	s.knorm = random_floats(s.k_weights);
	s.dq = random_floats(s.q_weights);
	s.dk = random_floats(s.k_weights);
	s.of_q = doubles(s.q_weights);
	s.of_k = doubles(s.k_weights);
	for (int64_t i = 0; i < s.q_weights; i++) s.of_q[i] = (double)s.qnorm[i];
	for (int64_t i = 0; i < s.k_weights; i++) s.of_k[i] = (double)s.knorm[i];
	s.kept = (heads + (knobs & V_NORMS ? 2 : 1) * kv_heads) * dim;
	s.rstd = row_norms ? 2 : s.kept / dim;
	s.r = (struct rope_args){.n = n,
		.seq = seq,
		.heads = heads,
		.kv_heads = kv_heads,
		.dim = dim,
		.rope_dim = rope_dim,
		.neighbours = !!(knobs & NEIGHBOURS),
		.cos = rope_dim ? random_floats(seq * rope_dim / 2) : NULL,
		.sin = rope_dim ? random_floats(seq * rope_dim / 2) : NULL,
		.starts = documents(rows, seq, seq < 17 ? 5 : 17, 1),
		.qnorm = norms && !(knobs & PLAIN) ? s.qnorm : NULL,
		.knorm = norms && !(knobs & PLAIN) ? s.knorm : NULL,
		.norm_plain = norms && knobs & PLAIN,
		.eps = 1e-6f,
		.row_norm = !!row_norms,
		.norm_after = !!(knobs & NORMS_AFTER),
		.norm_one = !!(knobs & ONE_ADDED),
		.v_norm = !!(knobs & V_NORMS),
		.k_is_v = !!(knobs & K_IS_V),
		.temperature = knobs & WARM ? 0.1f : 0,
		.temperature_positions = knobs & WARM ? 5 : 0,
		.temperature_from = !!(knobs & PLAIN),
		.past = knobs & PAST ? 13 : 0};
	turned_case(&s);
}

/* ---- q, k and v of multi-head latent attention ---- */

struct latents {
	struct mla_args a;
	const float *qkv, *grad, *kv, *kr;
};

static void run_latents(void *ctx, struct pool *pool, float **out)
{
	struct latents *s = ctx;
	struct mla_args a = s->a;
	int64_t wide = a.heads * (2 * a.dim + a.dim_v), pair = a.heads * (a.dim - a.rope_dim + a.dim_v);
	float *q = out[0];
	memcpy(q, s->qkv, (size_t)(a.n * wide) * sizeof(float));
	/* nothing is read where k and v are to be */
	for (int64_t t = 0; t < a.n; t++)
		memset(q + t * wide + a.heads * a.dim, 0xff, (size_t)(wide - a.heads * a.dim) * sizeof(float));
	a.qkv = q;
	a.kv = again(s->kv, a.n * pair);
	a.kr = apart(s->kr, a.n, a.rope_dim, a.ld);
	op_mla_forward(pool, &a);
	together_again(out[3], a.kr, a.n, a.rope_dim, a.ld);
	memcpy(out[1], s->grad, (size_t)(a.n * wide) * sizeof(float));
	a.qkv = out[1];
	a.kv = out[2];
	op_mla_backward(pool, &a);
	together_again(out[3], a.kr, a.n, a.rope_dim, a.ld);
	/* of k and v, the gradients are in kv and kr */
	for (int64_t t = 0; t < a.n; t++)
		memset(out[1] + t * wide + a.heads * a.dim, 0, (size_t)(wide - a.heads * a.dim) * sizeof(float));
}

/* x (rope_dim) is turned: sign 1; or back: -1 */
static void latent_turn(const struct mla_args *a, double *x, int64_t position, double sign)
{
	int64_t half = a->rope_dim / 2;
	for (int64_t i = 0; i < half; i++) {
		int64_t first = a->neighbours ? 2 * i : i, second = a->neighbours ? 2 * i + 1 : half + i;
		double c = (double)a->cos[position * half + i], sine = sign * (double)a->sin[position * half + i];
		double u = x[first], v = x[second];
		x[first] = u * c - v * sine;
		x[second] = v * c + u * sine;
	}
}

/* One head of a token: rows of q, k and v in y from those of kv and of kr; and their gradients, kr's added */
static void latents_defined(const struct latents *s, int64_t t, int64_t h, double *y, double *dq, double *dkv,
	double *dkr)
{
	const struct mla_args *a = &s->a;
	int64_t nope = a->dim - a->rope_dim, wide = a->heads * (2 * a->dim + a->dim_v),
			position = t % a->seq - a->starts[t];
	int64_t q = h * a->dim, k = (a->heads + h) * a->dim, v = 2 * a->heads * a->dim + h * a->dim_v;
	const float *row = s->qkv + t * wide, *g = s->grad + t * wide;
	const float *pair = s->kv + (t * a->heads + h) * (nope + a->dim_v), *kr = s->kr + t * a->rope_dim;
	double heat = a->temperature != 0
		? 1 + (double)a->temperature * log(1 + floor((double)position / (double)a->temperature_positions))
		: 1;
	double dturned[64];
	for (int64_t i = 0; i < a->dim; i++) {
		y[q + i] = (double)row[q + i];
		y[k + i] = (double)(i < nope ? pair[i] : kr[i - nope]);
		dq[q + i] = heat * (double)g[q + i];
		if (i < nope) dkv[i] = (double)g[k + i];
		else dturned[i - nope] = (double)g[k + i];
	}
	for (int64_t i = 0; i < a->dim_v; i++) {
		y[v + i] = (double)pair[nope + i];
		dkv[nope + i] = (double)g[v + i];
	}
	latent_turn(a, y + q + nope, position, 1);
	latent_turn(a, y + k + nope, position, 1);
	latent_turn(a, dq + q + nope, position, -1);
	latent_turn(a, dturned, position, -1);
	for (int64_t i = 0; i < a->rope_dim; i++) dkr[i] += dturned[i];
	for (int64_t i = 0; i < a->dim; i++) y[q + i] *= heat;
}

static void latents_case(int64_t rows, int64_t seq, int64_t heads, int64_t dim, int64_t rope_dim, int64_t dim_v,
	int neighbours, int warm)
{
	int64_t n = rows * seq, wide = heads * (2 * dim + dim_v), pair = dim - rope_dim + dim_v;
	struct latents s = {.qkv = random_floats(n * wide), .grad = random_floats(n * wide)};
	s.kv = random_floats(n * heads * pair);
	s.kr = random_floats(n * rope_dim);
	s.a = (struct mla_args){.n = n,
		.seq = seq,
		.heads = heads,
		.dim = dim,
		.rope_dim = rope_dim,
		.dim_v = dim_v,
		.neighbours = neighbours,
		.cos = random_floats(seq * rope_dim / 2),
		.sin = random_floats(seq * rope_dim / 2),
		.starts = documents(rows, seq, seq < 17 ? 5 : 17, 1),
		.temperature = warm ? 0.1f : 0,
		.temperature_positions = warm ? 5 : 0,
		.ld = rope_dim + 8 + rope_dim % 8};
	double *y = doubles(n * wide), *dq = doubles(n * wide), *dkv = doubles(n * heads * pair),
		   *dkr = doubles(n * rope_dim);
	for (int64_t t = 0; t < n; t++)
		for (int64_t h = 0; h < heads; h++)
			latents_defined(&s, t, h, y + t * wide, dq + t * wide, dkv + (t * heads + h) * pair, dkr + t * rope_dim);
	char name[120];
	snprintf(name, sizeof name, "latents %lld x %lld, %lld heads of %lld and %lld, %lld turn%s%s", (long long)rows,
		(long long)seq, (long long)heads, (long long)dim, (long long)dim_v, (long long)rope_dim,
		yes(neighbours, ", neighbours"), yes(warm, ", temperature"));
	check(name,
		(struct part[]){{"qkv", NULL, y, n * wide, 4e-7}, {"dq", NULL, dq, n * wide, 4e-7},
			{"dkv", NULL, dkv, n * heads * pair, 4e-7}, {"dkr", NULL, dkr, n * rope_dim, 6e-7}},
		4, run_latents, &s);
}

static void test_latents(void)
{
	for (int form = 0; form < 4; form++) {
		latents_case(1, 3, 1, 6, 2, 1, form & 1, form & 2);
		latents_case(2, 20, 3, 24, 8, 20, form & 1, form & 2);
		latents_case(2, 33, 5, 96, 32, 64, form & 1, form & 2);
		latents_case(1, 40, 4, 192, 64, 128, form & 1, form & 2);
	}
}

/* q alone, its rows apart: the same as side by side, and what is between the rows stays */
static void test_q_apart(int64_t heads, int64_t dim, int64_t rope_dim, int64_t ld, int v_norm)
{
	int64_t n = 2 * 19, q = heads * dim;
	float *row = random_floats(n * ld), *pre = random_floats(n * q), *rstd = random_floats(n * heads),
		  *dw = random_floats(dim);
	float *row2 = random_floats(n * q), *pre2 = random_floats(n * q), *rstd2 = random_floats(n * heads),
		  *dw2 = random_floats(dim);
	const float *x = random_floats(n * ld);
	struct rope_args a = {.n = n,
		.seq = 19,
		.heads = heads,
		.dim = dim,
		.rope_dim = rope_dim,
		.cos = random_floats(19 * rope_dim / 2),
		.sin = random_floats(19 * rope_dim / 2),
		.starts = documents(2, 19, 17, 1),
		.qnorm = random_floats(dim),
		.eps = 1e-6f,
		.v_norm = v_norm,
		.qkv = row,
		.ld = ld,
		.pre = pre,
		.rstd = rstd,
		.dqnorm = dw};
	struct rope_args b = a;
	b.ld = 0, b.qkv = row2, b.pre = pre2, b.rstd = rstd2, b.dqnorm = dw2;
	memcpy(row, x, (size_t)(n * ld) * sizeof *row);
	for (int64_t t = 0; t < n; t++) memcpy(row2 + t * q, x + t * ld, (size_t)q * sizeof *row);
	int good = 1;
	for (int backward = 0; backward < 2; backward++) {
		(backward ? op_rope_backward : op_rope_forward)(pools[0], &a);
		(backward ? op_rope_backward : op_rope_forward)(pools[0], &b);
		for (int64_t t = 0; t < n; t++) {
			good &= !memcmp(row + t * ld, row2 + t * q, (size_t)q * sizeof *row);
			for (int64_t i = t * ld + q; i < (t + 1) * ld; i++) good &= fabsf(row[i] - x[i]) <= 0.01f * fabsf(x[i]);
		}
	}
	good &= !memcmp(dw, dw2, (size_t)dim * sizeof *dw) && !memcmp(pre, pre2, (size_t)(n * q) * sizeof *pre);
	say(good, "rope of q alone, %lld heads of %lld, rows %lld apart", (long long)heads, (long long)dim, (long long)ld);
	forget();
}

static void test_rope(void)
{
	test_q_apart(3, 6, 6, 30, 1);
	test_q_apart(2, 24, 12, 96, 1);
	test_q_apart(4, 64, 64, 264, 0);
	test_turned(2, 7, 4, 2, 20, 20, 0);
	test_turned(3, 40, 4, 4, 64, 64, HEAD_NORMS);
	test_turned(2, 19, 3, 1, 6, 6, HEAD_NORMS);
	test_turned(2, 19, 3, 1, 6, 6, 0);
	test_turned(2, 19, 3, 1, 16, 6, 0);
	test_turned(2, 19, 4, 2, 64, 32, 0);
	test_turned(2, 19, 3, 1, 6, 6, NEIGHBOURS);
	test_turned(2, 19, 2, 1, 40, 34, NEIGHBOURS);
	test_turned(1, 23, 4, 2, 64, 32, NEIGHBOURS);
	test_turned(1, 7, 2, 1, 12, 0, 0);
	test_turned(2, 40, 2, 1, 20, 20, WARM);
	test_turned(2, 40, 2, 1, 20, 0, WARM);
	test_turned(2, 19, 3, 1, 24, 24, HEAD_NORMS);
	test_turned(2, 19, 3, 1, 24, 24, HEAD_NORMS | ONE_ADDED);
	test_turned(2, 19, 3, 1, 24, 24, HEAD_NORMS | NORMS_AFTER);
	test_turned(2, 19, 3, 1, 10, 4, HEAD_NORMS | NORMS_AFTER | ONE_ADDED | NEIGHBOURS);
	test_turned(1, 9, 2, 2, 12, 0, HEAD_NORMS);
	test_turned(2, 19, 3, 1, 24, 24, HEAD_NORMS | NORMS_AFTER | PLAIN | NEIGHBOURS);
	test_turned(2, 40, 2, 1, 20, 0, WARM | PLAIN);
	test_turned(2, 19, 3, 1, 24, 24, HEAD_NORMS | V_NORMS);
	test_turned(2, 19, 4, 2, 32, 32, HEAD_NORMS | V_NORMS | K_IS_V);
	test_turned(1, 35, 3, 1, 18, 8, HEAD_NORMS | V_NORMS | K_IS_V | NORMS_AFTER | WARM);
	test_turned(2, 19, 2, 1, 24, 24, K_IS_V);
	test_turned(2, 19, 3, 1, 20, 20, ROW_NORMS);
	test_turned(1, 70, 4, 2, 9 * 2, 18, ROW_NORMS | ONE_ADDED | WARM);
	test_turned(1, 9, 2, 1, 64, 0, ROW_NORMS | K_IS_V);
}

/* ---- activations ---- */

static const char *const form_names[] = {"SwiGLU", "GeGLU", "GeGLU with tanh", "clamped SwiGLU", "squared ReLU", "GELU",
	"GELU with tanh", "xIELU", "ReLU"};

struct active {
	int64_t n, f;
	enum mt_ffn form;
	int interleaved;
	const float *gu, *dy, *slope, *dslope; /* slope, dslope (2) */
	int differs;
};

static double softplus_defined(double x) { return log1p(exp(x)); }

/* gate g; gated: up u; a: xIELU's parameters */
static double active_defined(enum mt_ffn form, double g, double u, const double *a)
{
	double swish = g / (1 + exp(-g)), normal = g * erfc(-g / sqrt(2)) / 2;
	double curved = g / 2 * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
	double low = fmin(g, 7), clamped = fmax(-7, fmin(u, 7));
	switch (form) {
	case MT_SWIGLU: return swish * u;
	case MT_GEGLU: return normal * u;
	case MT_GEGLU_TANH: return curved * u;
	case MT_SWIGLU_CLAMPED: return low / (1 + exp(-1.702 * low)) * (clamped + 1);
	case MT_RELU2: return g > 0 ? g * g : 0;
	case MT_RELU: return fmax(g, 0);
	case MT_GELU: return normal;
	case MT_GELU_TANH: return curved;
	case MT_XIELU:
		if (g > 0) return softplus_defined(a[0]) * g * g + 0.5 * g;
		return (expm1(fmin(g, -1e-6)) - g) * (0.5 + softplus_defined(a[1])) + 0.5 * g;
	}
	return NAN;
}

static void run_active(void *ctx, struct pool *pool, float **out)
{
	struct active *s = ctx;
	int gated = activation_gated((int)s->form);
	int64_t wide = s->n * (gated ? 2 : 1) * s->f, elems = s->n * s->f;
	const float *positive = again(s->slope, 1), *negative = again(s->slope + 1, 1);
	float *apart = again(s->dslope, 2);
	struct activation_args forward = {.y = out[0],
		.gu = again(s->gu, wide),
		.n = s->n,
		.f = s->f,
		.form = s->form,
		.interleaved = s->interleaved,
		.slope = {positive, negative}};
	struct activation_args a = {.dgu = out[1],
		.y = out[2],
		.dy = out[2],
		.gu = out[1],
		.n = s->n,
		.f = s->f,
		.form = s->form,
		.interleaved = s->interleaved,
		.slope = {positive, negative},
		.dslope = {out[3], out[3] + 1}};
	op_activation_forward(pool, &forward);
	memcpy(out[1], s->gu, (size_t)wide * sizeof(float));
	memcpy(out[2], s->dy, (size_t)elems * sizeof(float));
	if (s->form != MT_XIELU) memset(out[3], 0, 2 * sizeof(float));
	op_activation_backward(pool, &a);
	float *dgu = again(s->gu, wide), *y = again(s->dy, elems);
	a.dgu = dgu;
	a.y = y;
	a.dy = again(s->dy, elems);
	a.gu = again(s->gu, wide);
	a.dslope[0] = apart;
	a.dslope[1] = apart + 1;
	a.beta = 1;
	op_activation_backward(pool, &a);
	memcpy(out[4], apart, 2 * sizeof(float));
	s->differs |= memcmp(dgu, out[1], (size_t)wide * sizeof(float)) ||
		memcmp(y, out[2], (size_t)elems * sizeof(float)) || memcmp(y, out[0], (size_t)elems * sizeof(float));
}

struct active_element {
	enum mt_ffn form;
	double g, u, a[2];
};

static double element_defined(const void *ctx)
{
	const struct active_element *e = ctx;
	return active_defined(e->form, e->g, e->u, e->a);
}

/* by *x, which is in e */
static double derivative(struct active_element *e, double *x) { return difference(x, 1e-6, element_defined, e); }

/* How far the gradient of one of xIELU's parameters may be from its definition, s = sigma sum t_i, t_i = dy_i bend_i,
 * sigma = sigmoid(parameter). All of it is computed in fp32, of operands that the type of elements has: u = 2^-24.
 *
 * Terms. bend is x x above 0, else g - x with g = e^min(x, eps) - 1, which is exact up to 4 u |g| (test_accuracy). With
 * the roundings of x x or g - x and of the product with dy, a term errs by at most u (2 |t_i| + 4 |dy_i g_i|).
 *
 * Sum. A term takes part in at most h = f + n additions, in any order: of a row, then of rows. An addition whose result
 * is S_k errs by at most u |S_k|. dy has a random sign, so the mean of the squares of a partial sum is the sum of the
 * squares of its terms, and that of all additions together at most h sum t_i^2.
 *
 * These errors have random signs, too. So the chance that their sum exceeds L times the root of the sum of the squares
 * of their bounds is at most 2 exp(-L^2 / 2) (Hoeffding): 3e-8 for L = 6. sigma, the products with it and the sums of
 * partial results err by at most 8 u |s|, and what is added to an old value by u of both.
 *
 * A term that is left out shows: its mean size is sqrt(sum t_i^2 / (n f)). Of 3 x 40000 elements that is 3e-3 of
 * sqrt(sum t_i^2), and the bound 7e-5 of it. */
struct sum_bound {
	double squares, errors; /* sum t_i^2; sum of (2 |t_i| + 4 |dy_i g_i|)^2 */
};

static void bound_term(struct sum_bound *b, double dy, double x)
{
	double g = x > 0 ? 0 : expm1(fmin(x, -1e-6)), t = dy * (x > 0 ? x * x : g - x);
	b->squares += t * t;
	b->errors += pow(2 * fabs(t) + 4 * fabs(dy * g), 2);
}

static double bound_sum(const struct sum_bound *b, double additions, double parameter, double sum, double old)
{
	double random = 6 * (sqrt(additions * b->squares) + sqrt(b->errors)) / (1 + exp(-parameter));
	return 0x1p-24 * (random + 8 * fabs(sum) + fabs(old) + fabs(old + sum));
}

static double norm_of(const double x[2]) { return hypot(x[0], x[1]); }

static void test_active(int64_t n, int64_t f, enum mt_ffn form, int interleaved)
{
	int gated = activation_gated((int)form);
	int64_t wide = n * (gated ? 2 : 1) * f;
	float *gu = random_floats(wide);
	/* clamped, and where functions are flat, sigmoids near 0 and 1: not if that is all there is, as their tails have
	 * few exact digits */
	for (int64_t i = 0; wide > 8 && i < wide; i += 3) gu[i] *= form == MT_SWIGLU ? 20 : 5;
	/* rounding takes some across a clamp, where gradients jump; and a difference across a kink is no derivative */
	if (slack != 0) round_to_bf16(gu, wide);
	for (int64_t i = 0; i < wide; i++)
		if (form == MT_XIELU) gu[i] = fabsf(gu[i]) < 1e-5f ? 0x1p-10f : gu[i];
		else gu[i] += fabsf(gu[i]) < 1e-5f || fabsf(fabsf(gu[i]) - 7) < 1e-5f ? 0x1p-5f : 0;
	struct active s = {n, f, form, interleaved, gu, random_operand(n * f, form == MT_XIELU && slack != 0),
		random_operand(2, form == MT_XIELU && slack != 0), random_floats(2), 0};
	double *y = doubles(n * f), *dgu = doubles(wide), *d = doubles(2), *d2 = doubles(2);
	struct sum_bound sums[2] = {{0}};
	double bound[2] = {0}, bound2[2] = {0};
	int sharp = 1;
	struct active_element e = {.form = form, .a = {(double)s.slope[0], (double)s.slope[1]}};
	for (int64_t i = 0; i < n * f; i++) {
		int64_t row = i / f, at = !gated ? i : interleaved ? 2 * i : row * 2 * f + i % f;
		int64_t at_up = !gated ? at : interleaved ? at + 1 : at + f;
		double dy = (double)s.dy[i];
		e.g = (double)gu[at];
		e.u = (double)gu[at_up];
		y[i] = element_defined(&e);
		if (gated) dgu[at_up] = dy * derivative(&e, &e.u);
		dgu[at] = dy * derivative(&e, &e.g);
		for (int j = 0; form == MT_XIELU && j < 2; j++) d[j] += dy * derivative(&e, e.a + j);
		if (form == MT_XIELU) bound_term(&sums[e.g <= 0], dy, e.g);
	}
	for (int j = 0; j < 2; j++) {
		double old = (double)s.dslope[j];
		d2[j] = old + d[j];
		bound[j] = bound_sum(&sums[j], (double)(n + f), e.a[j], d[j], 0);
		bound2[j] = bound_sum(&sums[j], (double)(n + f), e.a[j], d[j], old);
		sharp &= bound[j] < sqrt(sums[j].squares / (double)(n * f)) / (1 + exp(-e.a[j]));
	}
	char name[100];
	snprintf(name, sizeof name, "%s %lld x %lld%s", form_names[form], (long long)n, (long long)f,
		interleaved ? ", interleaved" : "");
	check(name,
		(struct part[]){{"y", NULL, y, n * f, 4e-7}, {"dgu", NULL, dgu, wide, 6e-7},
			{"y of backward", NULL, y, n * f, 4e-7},
			{"slopes' gradients", NULL, d, 2, IN_FP32(norm_of(bound) / (norm_of(d) + 1e-30))},
			{"slopes' gradients added", NULL, d2, 2, IN_FP32(norm_of(bound2) / (norm_of(d2) + 1e-30))}},
		5, run_active, &s);
	if (form == MT_XIELU && wide > 8)
		say(sharp, "%s: slopes' gradients without a term of mean size would be wrong", name);
	say(!s.differs, "%s: backward in place gives the same bits, and forward's output", name);
}

/* One element: gradients of gate and up where functions have kinks, as PyTorch has them (dup NAN: there is no up), and
 * a gate that is NaN */
static void check_edge(enum mt_ffn form, float gate, float up, float dgate, float dup)
{
	float *gu = random_floats(2), *dgu = random_floats(2), *dy = random_floats(1), *y = random_floats(1);
	float *slope = random_floats(2), *dslope = random_floats(2);
	gu[0] = gate;
	gu[1] = up;
	dgu[1] = 0;
	dy[0] = 1;
	slope[1] = 0.5f;
	struct activation_args f = {.y = y, .gu = gu, .n = 1, .f = 1, .form = form, .slope = {slope, slope + 1}};
	struct activation_args b = {.dgu = dgu,
		.y = y,
		.dy = dy,
		.gu = gu,
		.n = 1,
		.f = 1,
		.form = form,
		.slope = {slope, slope + 1},
		.dslope = {dslope, dslope + 1}};
	op_activation_backward(pools[0], &b);
	int good = fabsf(dgu[0] - dgate) <= 1e-6f * fabsf(dgate);
	good &= isnan(dup) || fabsf(dgu[1] - dup) <= 1e-6f * fabsf(dup);
	gu[0] = NAN;
	op_activation_forward(pools[0], &f);
	say(good && isnan(*y), "%s at (%g, %g): gradients %g, %g; of NaN it is NaN", form_names[form], (double)gate,
		(double)up, (double)dgu[0], (double)dgu[1]);
	forget();
}

static void test_edges(void)
{
	double at7 = 1 / (1 + exp(-1.702 * 7)), slope7 = at7 * (1 + 1.702 * 7 * (1 - at7));
	check_edge(MT_SWIGLU_CLAMPED, 7, 7, (float)(8 * slope7), (float)(7 * at7));
	check_edge(MT_SWIGLU_CLAMPED, 7.0000005f, 7.0000005f, 0, 0);
	check_edge(MT_SWIGLU_CLAMPED, 7, -7, (float)(-6 * slope7), (float)(7 * at7));
	check_edge(MT_SWIGLU_CLAMPED, 7, -8, (float)(-6 * slope7), 0);
	check_edge(MT_RELU, 0, 0, 0, NAN);
	check_edge(MT_RELU2, 0, 0, 0, NAN);
	check_edge(MT_RELU2, -3, 0, 0, NAN);
	check_edge(MT_XIELU, 0, 0, (float)(0.5 - 0.5 - softplus_defined(0.5)), NAN);
	check_edge(MT_XIELU, -1e-7f, 0, (float)(0.5 - 0.5 - softplus_defined(0.5)), NAN);
	check_edge(MT_XIELU, 1e-30f, 0, 0.5f, NAN);
	check_edge(MT_XIELU, -200, 0, (float)(0.5 - 0.5 - softplus_defined(0.5)), NAN);
	check_edge(MT_GELU, 0, 0, 0.5f, NAN);
	check_edge(MT_GELU, 300, 0, 1, NAN);
	check_edge(MT_GELU, -300, 0, 0, NAN);
	check_edge(MT_GELU_TANH, 300, 0, 1, NAN);
	check_edge(MT_GELU_TANH, -300, 0, 0, NAN);
	check_edge(MT_GEGLU, 0, 3, 1.5f, 0);
	check_edge(MT_GEGLU_TANH, 300, 3, 3, 300);
}

static void test_activations(void)
{
	static const int64_t sizes[][2] = {{1, 1}, {3, 20}, {100, 333}, {3, 40000}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (enum mt_ffn form = MT_SWIGLU; form <= MT_RELU; form++)
			for (int interleaved = 0; interleaved <= activation_gated((int)form); interleaved++)
				test_active(sizes[i][0], sizes[i][1], form, interleaved);
}

/* ---- factors ---- */

struct scaled {
	int64_t n;
	const float *x, *add, *factor;
	int in_place; /* y is 1: x, 2: add */
	int64_t width, ld;
};

static void run_scaled(void *ctx, struct pool *pool, float **out)
{
	struct scaled *s = ctx;
	struct scaled_add_args a = {.y = out[0], .x = s->x, .add = s->add, .factor = s->factor, .n = s->n, .scale = 0.3f};
	if (s->in_place) memcpy(out[0], s->in_place == 1 ? s->x : s->add, (size_t)s->n * sizeof(float));
	if (s->in_place == 1) a.x = out[0];
	else a.x = again(s->x, s->n);
	if (s->in_place == 2) a.add = out[0];
	else if (s->add) a.add = again(s->add, s->n);
	if (s->factor) a.factor = again(s->factor, 1);
	op_scaled_add(pool, &a);
}

static void test_scaled(int64_t n, int with_add, int with_factor, int in_place)
{
	struct scaled s = {n, random_floats(n), with_add ? random_floats(n) : NULL, with_factor ? random_floats(1) : NULL,
		in_place, 0, 0};
	double *y = doubles(n);
	for (int64_t i = 0; i < n; i++)
		y[i] = ((s.add ? (double)s.add[i] : 0) + (double)0.3f * (double)s.x[i]) * (s.factor ? (double)*s.factor : 1);
	char name[100];
	snprintf(name, sizeof name, "scaled add of %lld%s%s%s", (long long)n, with_add ? "" : ", nothing added",
		yes(with_factor, ", a factor"),
		in_place == 1       ? ", y is x"
			: in_place == 2 ? ", y is add"
							: "");
	check(name, (struct part[]){{"y", NULL, y, n, 2e-7}}, 1, run_scaled, &s);
}

/* Columns 3 to 3 + width - 1 of rows of `ld`, in place: all others stay */
static void run_columns(void *ctx, struct pool *pool, float **out)
{
	struct scaled *s = ctx;
	memcpy(out[0], s->x, (size_t)(s->n * s->ld) * sizeof(float));
	op_scaled_add(pool,
		&(struct scaled_add_args){.y = out[0] + 3,
			.x = out[0] + 3,
			.n = s->n * s->width,
			.scale = 0.3f,
			.width = s->width,
			.ld = s->ld});
}

static void test_columns(int64_t rows, int64_t width, int64_t ld)
{
	struct scaled s = {.n = rows, .x = random_floats(rows * ld), .width = width, .ld = ld};
	double *y = doubles(rows * ld);
	for (int64_t i = 0; i < rows * ld; i++)
		y[i] = (i % ld >= 3 && i % ld < 3 + width ? (double)0.3f : 1) * (double)s.x[i];
	char name[100];
	snprintf(name, sizeof name, "scaled columns, %lld of %lld, of %lld rows", (long long)width, (long long)ld,
		(long long)rows);
	check(name, (struct part[]){{"y", NULL, y, rows * ld, 2e-7}}, 1, run_columns, &s);
}

/* ---- columns ---- */

struct moved {
	struct columns_args a;
	const float *dst;
	int64_t elems; /* of dst */
};

static void run_moved(void *ctx, struct pool *pool, float **out)
{
	struct moved *s = ctx;
	struct columns_args a = s->a;
	memcpy(out[0], s->dst, (size_t)s->elems * sizeof(float));
	a.dst = out[0];
	a.src = again(a.src, (a.n - 1) * a.src_ld + a.width);
	op_columns(pool, &a);
}

static void test_moved(int64_t n, int64_t width, int64_t dst_ld, int64_t src_ld, int add)
{
	struct moved s = {.elems = (n - 1) * dst_ld + width};
	const float *src = random_floats((n - 1) * src_ld + width), *dst = random_floats(s.elems);
	double *y = doubles(s.elems);
	s.dst = dst;
	s.a = (struct columns_args){.src = src, .n = n, .width = width, .dst_ld = dst_ld, .src_ld = src_ld, .add = add};
	for (int64_t i = 0; i < s.elems; i++) {
		int64_t row = i / dst_ld, column = i % dst_ld;
		y[i] = (double)dst[i];
		if (column < width) y[i] = (add ? y[i] : 0) + (double)src[row * src_ld + column];
	}
	char name[100];
	snprintf(name, sizeof name, "%s %lld columns of %lld rows, %lld and %lld apart", add ? "add" : "copy",
		(long long)width, (long long)n, (long long)dst_ld, (long long)src_ld);
	check(name, (struct part[]){{"y", NULL, y, s.elems, 2e-7}}, 1, run_moved, &s);
}

static void test_factors(void)
{
	test_columns(1, 1, 4);
	test_columns(70, 16, 24);
	test_columns(999, 250, 301);
	for (int add = 0; add < 2; add++) {
		test_moved(1, 1, 1, 1, add);
		test_moved(70, 6, 6, 42, add);
		test_moved(130, 16, 40, 16, add);
		test_moved(33, 300, 301, 512, add);
	}
	for (int form = 0; form < 12; form++)
		if (form / 4 != 2 || form & 1) test_scaled(form & 1 ? 200003 : 37, form & 1, form >> 1 & 1, form / 4);
}

/* ---- functions of an element, beside libm's, from op to op: the greatest error in units of 2^-24 ---- */

enum { GRID = 400000 };

static void accurate(const char *name, const float *x, const float *y, double (*of)(double), double (*size)(double),
	double bound)
{
	double worst = 0, at = 0;
	for (int64_t i = 0; i < GRID; i++) {
		double e = fabs((double)y[i] - of((double)x[i])) / (size((double)x[i]) * 0x1p-24);
		if (!(e <= worst)) {
			worst = e;
			at = (double)x[i];
		}
	}
	say(worst <= bound, "%s within %.3g x 2^-24 (at %g)", name, worst, at);
}

static double gelu_of(double x) { return x / 2 * erfc(-x / sqrt(2)); }
static double half_expm1(double x) { return expm1(x) / 2; }
static double tanh_size(double x) { return fabs(tanh(x)); }
static double gelu_size(double x) { return fabs(x) * fmax(0.5, erfc(-x / sqrt(2)) / 2); }

static void test_accuracy(void)
{
	float *x = keep(GRID * sizeof *x), *y = keep(GRID * sizeof *y), *slope = keep(sizeof *slope);
	*slope = -200;
	for (int64_t i = 0; i < GRID; i++) x[i] = (float)((double)(i - GRID / 2) * 12 / (GRID / 2) + 1e-9);
	for (int64_t i = 0; i < GRID; i += 7) x[i] *= 1e-3f;
	memcpy(y, x, GRID * sizeof *y);
	op_cap_logits(pools[1], &(struct cap_logits_args){.logits = y, .n = GRID, .scale = 1, .cap = 1});
	accurate("tanh", x, y, tanh, tanh_size, 4);
	struct activation_args a = {.y = y, .gu = x, .n = 1, .f = GRID, .form = MT_GELU};
	op_activation_forward(pools[1], &a);
	accurate("gelu, by erf", x, y, gelu_of, gelu_size, 4);
	/* with this slope below 0, xIELU is (e^x - 1) / 2 */
	for (int64_t i = 0; i < GRID; i++) x[i] = -fabsf(x[i]) - 1e-5f;
	a.form = MT_XIELU;
	a.slope[0] = a.slope[1] = slope;
	op_activation_forward(pools[1], &a);
	accurate("xIELU, by e^x - 1", x, y, half_expm1, fabs, 4);
	forget();
}

/* For mt-sample, which computes a row in chunks */
static void test_turned_past(void) { test_turned(1, 20, 2, 1, 20, 20, WARM | PAST); }

static void test_knobs(void)
{
	test_norms();
	test_rope();
	test_activations();
	test_factors();
}
