/* ops-knobs.h: the cases of ops.c for norms, rotary positions, activations and factors, in all the forms that families
 * of models ask for. Included by ops.c.
 *
 * Where the definition of a gradient is long, it is the central difference of the forward definition, in double
 * precision: its own error is about 1e-9.
 */

/* ---- norms ---- */

/* A row of a norm: y, its rstd and mean, dx, and dw, db += */
static void normed_defined(const struct norm_backward_args *a, const float *b, const float *x, const float *dy,
	double *y, double *rstd, double *mean, double *dx, double *dw, double *db)
{
	double square = 0, dot = 0, sum = 0, h = (double)a->h;
	*mean = 0;
	for (int64_t i = 0; i < a->h; i++) *mean += a->mean ? (double)x[i] / h : 0;
	for (int64_t i = 0; i < a->h; i++) square += ((double)x[i] - *mean) * ((double)x[i] - *mean);
	*rstd = 1 / sqrt(square / h + (double)1e-5f);
	for (int pass = 0; pass < 2; pass++)
		for (int64_t i = 0; i < a->h; i++) {
			double w = a->w ? (double)((const float *)a->w)[i] + a->one : 1, z = ((double)x[i] - *mean) * *rstd;
			double d = (double)dy[i], g = d * w;
			if (pass) {
				dx[i] = *rstd * (g - sum - z * dot);
				continue;
			}
			y[i] = z * w + (b ? (double)b[i] : 0);
			dot += g * z / h;
			sum += a->mean ? g / h : 0;
			dw[i] += d * z;
			db[i] += d;
		}
}

/* ld: rows of x and dx lie so far apart, as those of latents do; 0: h */
static void test_normed(int64_t n, int64_t h, int layer, int weight, int one, int bias, int64_t ld)
{
	int64_t apart_by = ld ? ld : h;
	float *x = random_floats(n * h), *dy = random_floats(n * h), *w = weight ? random_floats(h) : NULL;
	float *b = bias ? random_floats(h) : NULL, *dx_was = random_floats(n * h);
	double *y = doubles(n * h), *rstd = doubles(n), *mean = doubles(n), *dx = doubles(n * h), *dw = doubles(h);
	double *db = doubles(h), *dx_added = doubles(n * h);
	/* a row of one or two elements is all rounding once its mean is gone */
	double few = layer && h < 8 ? 1e-5 : 0, of_y = fmax(few, layer ? 6e-7 : 4e-7),
		   of_dx = fmax(few, layer ? 1e-6 : 6e-7);
	for (int64_t i = 0; i < n * h; i++) x[i] += 2; /* a mean that is not 0 */
	struct norm_forward_args f = {.w = w, .n = n, .h = h, .eps = 1e-5f, .b = b, .one = one, .ld = ld};
	f.x = apart(x, n, h, apart_by);
	f.y = expect("y", y, n * h, of_y);
	f.rstd = expect("rstd", rstd, n, fmax(few, 4e-7));
	f.mean = layer ? expect("mean", mean, n, fmax(few, 4e-7)) : NULL;
	RUN(NORM_FORWARD, f);
	struct norm_backward_args a = {.dy = dy, .x = f.x, .w = w, .rstd = f.rstd, .n = n, .h = h, .one = one, .ld = ld};
	a.mean = f.mean;
	for (a.add_dx = 0; a.add_dx < 2; a.add_dx++) {
		a.dx = expect_rows_in(a.add_dx ? apart(dx_was, n, h, apart_by) : not_numbers(n * apart_by), "dx",
			a.add_dx ? dx_added : dx, n, h, apart_by, of_dx);
		a.dw = weight ? expect_sum("dw", dw, h, fmax(few, 1e-6), a.add_dx) : NULL;
		a.db = bias ? expect_sum("db", db, h, fmax(few, 1e-6), a.add_dx) : NULL;
		a.beta = (float)a.add_dx;
		RUN(NORM_BACKWARD, a);
	}
	for (int64_t t = 0; t < n; t++)
		normed_defined(&a, b, x + t * h, dy + t * h, y + t * h, rstd + t, mean + t, dx + t * h, dw, db);
	for (int64_t i = 0; i < n * h; i++) dx_added[i] = dx[i] + (double)dx_was[i];
	CHECK("%s of %ld rows of %ld%s%s%s%s", layer ? "LayerNorm" : "RMSNorm", n, h, yes(!weight, ", no weight"),
		yes(one, ", 1 + w"), yes(bias, ", bias"), yes(!!ld, ", apart"));
}

/* RMSNorm with w, by 1 + w, without; LayerNorm with w, with w and a bias, by 1 + w and a bias, without */
static const int norm_forms[][4] = {{0, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 0, 0}, {1, 1, 0, 0}, {1, 1, 0, 1}, {1, 1, 1, 1},
	{1, 0, 0, 0}};
enum { NORM_FORMS = 7, ALL_NORMS = (1 << NORM_FORMS) - 1 };

static void test_norms(void)
{
	static const struct {
		int64_t n, h;
		int forms[2]; /* on a cpu, on a GPU: bit i: norm_forms[i] */
	} sizes[] = {{1, 3, {ALL_NORMS, 1}}, {3, 20, {ALL_NORMS, ALL_NORMS}}, {33, 64, {ALL_NORMS, 1}},
		{100, 100, {ALL_NORMS, 0}}, {700, 257, {ALL_NORMS, 0}}, {2100, 257, {1, 0}}, {600, 16, {0, 1}},
		{60, 72, {0, ALL_NORMS}}, {5, 2056, {0, 1 | 16}}, {3, 5000, {0, 1 | 2 | 32}}, {2, 11000, {0, 1 | 32}}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int j = 0; j < NORM_FORMS; j++) {
			const int *f = norm_forms[j];
			if (sizes[i].forms[on_gpu] >> j & 1) test_normed(sizes[i].n, sizes[i].h, f[0], f[1], f[2], f[3], 0);
		}
	test_normed(33, 64, 0, 1, 0, 0, 104);
	test_normed(3, 20, 0, 1, 0, 0, 27);
	test_normed(5, 512, 0, 1, 0, 0, 2112);
	test_normed(70, 257, 0, 1, 0, 0, 258);
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

/* x (2 half) turns by angles whose cosines and sines are given: sign 1; or back: -1 */
static void turn(double *x, int64_t half, int neighbours, const float *cosines, const float *sines, double sign)
{
	for (int64_t i = 0; i < half; i++) {
		double *first = x + (neighbours ? 2 * i : i), *second = x + (neighbours ? 2 * i + 1 : half + i), was = *first;
		*first = was * (double)cosines[i] - sign * *second * (double)sines[i];
		*second = *second * (double)cosines[i] + sign * was * (double)sines[i];
	}
}

static double heat_of(double temperature, int64_t position, int64_t positions)
{
	return temperature != 0 ? 1 + temperature * log(1 + floor((double)position / (double)positions)) : 1;
}

/* One token: what becomes of its heads from .. to - 1, and the derivative of their sum, each times its gradient */
struct turned {
	const struct rope_args *r;
	double *of_q, *of_k; /* the norms' weights */
	int64_t t, from, to;
	const double *in;  /* its row */
	const float *grad; /* of what it becomes */
	double *scratch;   /* (3 rows) */
};

/* x (n) becomes its norm; what it was, and its rstd, are kept */
static double *norm_kept(const struct turned *s, double *x, const double *w, int64_t n, double *pre, double **rstd)
{
	double square = 0;
	for (int64_t i = 0; i < n; i++) square += x[i] * x[i];
	double r = 1 / sqrt(square / (double)n + (double)s->r->eps);
	for (int64_t i = 0; i < n; i++) {
		pre[i] = x[i];
		x[i] *= r * (w ? w[i] + s->r->norm_one : 1);
	}
	*(*rstd)++ = r;
	return pre + n;
}

/* row: q | k | v of the token, whose heads become what rope makes of them; pre and rstd as rope.h has them, where these
 * are all heads */
static void turned_defined(const struct turned *s, double *row, double *pre, double *rstd)
{
	const struct rope_args *r = s->r;
	int64_t dim = r->dim, heads = r->heads, both = heads + r->kv_heads, half = r->rope_dim / 2;
	int64_t position = s->t % r->seq - r->starts[s->t];
	int of_heads = rope_norms(r) && !r->row_norm;
	if (r->k_is_v) memcpy(row + both * dim, row + heads * dim, (size_t)(r->kv_heads * dim) * sizeof *row);
	if (r->row_norm) {
		pre = norm_kept(s, row, s->of_q, heads * dim, pre, &rstd);
		pre = norm_kept(s, row + heads * dim, s->of_k, r->kv_heads * dim, pre, &rstd);
	}
	for (int64_t j = s->from; j < both && j < s->to; j++) {
		const double *w = r->norm_plain ? NULL : j < heads ? s->of_q : s->of_k;
		if (of_heads && !r->norm_after) pre = norm_kept(s, row + j * dim, w, dim, pre, &rstd);
		if (half) turn(row + j * dim, half, r->neighbours, r->cos + position * half, r->sin + position * half, 1);
		if (of_heads && r->norm_after) pre = norm_kept(s, row + j * dim, w, dim, pre, &rstd);
	}
	for (int64_t j = s->from > both ? s->from : both; r->v_norm && j < s->to; j++)
		pre = norm_kept(s, row + j * dim, NULL, dim, pre, &rstd);
	for (int64_t i = 0; i < heads * dim; i++)
		row[i] *= heat_of((double)r->temperature, position + r->past + r->temperature_from, r->temperature_positions);
}

static double weighed(const void *ctx)
{
	const struct turned *s = ctx;
	int64_t wide = (s->r->heads + 2 * s->r->kv_heads) * s->r->dim;
	double sum = 0, *y = s->scratch;
	memcpy(y, s->in, (size_t)wide * sizeof *y);
	turned_defined(s, y, y + wide, y + 2 * wide);
	for (int64_t i = s->from * s->r->dim; i < s->to * s->r->dim; i++) sum += y[i] * (double)s->grad[i];
	return sum;
}

/* d[i] += the derivative by at[i], which is part of the row or of the weights */
static void differences(const struct turned *s, double *at, int64_t n, double *d)
{
	for (int64_t i = 0; i < n; i++) d[i] += difference(at + i, 1e-5, weighed, s);
}

/* By the elements of its row: where heads are apart, what a head's become is all that changes with them */
static void row_differences(struct turned s, double *row, int64_t n, double *d)
{
	int64_t dim = s.r->dim, apart_by = s.r->row_norm || s.r->k_is_v ? n : dim;
	for (int64_t at = 0; at < n; at += apart_by) {
		if (apart_by == dim) s.from = at / dim;
		if (apart_by == dim) s.to = s.from + 1;
		differences(&s, row + at, apart_by, d + at);
	}
}

/* Arguments without arrays but of positions */
static struct rope_args turned_args(int64_t rows, int64_t seq, int64_t rope_dim, int knobs)
{
	struct rope_args r = {.n = rows * seq, .seq = seq, .rope_dim = rope_dim, .eps = 1e-6f};
	r.neighbours = !!(knobs & NEIGHBOURS);
	r.cos = rope_dim ? random_floats(seq * rope_dim / 2) : NULL;
	r.sin = rope_dim ? random_floats(seq * rope_dim / 2) : NULL;
	r.starts = documents(rows, seq, seq < 17 ? 5 : 17, 1);
	r.norm_plain = knobs & PLAIN && knobs & (HEAD_NORMS | ROW_NORMS);
	r.row_norm = !!(knobs & ROW_NORMS);
	r.norm_after = !!(knobs & NORMS_AFTER);
	r.norm_one = !!(knobs & ONE_ADDED);
	r.v_norm = !!(knobs & V_NORMS);
	r.k_is_v = !!(knobs & K_IS_V);
	r.temperature = knobs & WARM ? 0.1f : 0;
	r.temperature_positions = knobs & WARM ? 5 : 0;
	r.temperature_from = !!(knobs & PLAIN);
	r.past = knobs & PAST ? 13 : 0;
	return r;
}

/* ld: rows lie so far apart, 0: side by side */
static void test_turned(int64_t rows, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim, int64_t rope_dim,
	int knobs, int64_t ld)
{
	int norms = knobs & (HEAD_NORMS | ROW_NORMS), weights = norms && !(knobs & PLAIN);
	struct rope_args r = turned_args(rows, seq, rope_dim, knobs);
	r.heads = heads;
	r.kv_heads = kv_heads;
	r.dim = dim;
	int64_t n = r.n, wide = (heads + 2 * kv_heads) * dim, q = rope_q_weights(&r), k = rope_k_weights(&r);
	int64_t normed = rope_normed(&r) * dim, rstds = r.row_norm ? 2 : rope_normed(&r);
	int64_t in = wide - (r.k_is_v ? kv_heads * dim : 0);
	float *qnorm = random_floats(q), *knorm = random_floats(k), *qkv[2], *dqkv[2], *kept_pre[2];
	const float *x = random_floats(n * wide), *grad = random_floats(n * wide);
	double *y = doubles(n * wide), *dx = doubles(n * in), *dq = doubles(q), *dk = doubles(k), *row = doubles(wide);
	double *pre = doubles(n * normed), *rstd = doubles(n * rstds);
	struct turned s = {&r, widened(qnorm, q), widened(knorm, k), 0, 0, heads + 2 * kv_heads, row, grad,
		doubles(3 * wide)};
	r.qnorm = weights ? qnorm : NULL;
	r.knorm = weights && kv_heads ? knorm : NULL;
	for (int side = 0; side < (ld ? 2 : 1); side++) { /* rows apart, and side by side */
		r.ld = side ? 0 : ld;
		r.qkv = qkv[side] = expect_rows_in(apart(x, n, wide, rope_row(&r)), "qkv", y, n, wide, rope_row(&r), 4e-7);
		/* nothing is read where v is to be */
		for (int64_t i = 0; r.k_is_v && i < n * wide; i++) qkv[side][i] = i % wide < in ? x[i] : NAN;
		r.pre = kept_pre[side] = norms ? expect("pre", pre, n * normed, 4e-7) : NULL;
		r.rstd = norms ? expect("rstd", rstd, n * rstds, 4e-7) : NULL;
		r.beta = 0;
		RUN(ROPE_FORWARD, r);
		r.qkv = dqkv[side] = expect_rows_in(apart(grad, n, wide, rope_row(&r)), "dqkv", dx, n, in, rope_row(&r),
			knobs & ~HEAD_NORMS ? 8e-7 : 6e-7);
		r.dqnorm = weights ? expect_sum("dqnorm", dq, q, 1e-6, !side) : NULL;
		r.dknorm = r.knorm ? expect_sum("dknorm", dk, k, 1e-6, !side) : NULL;
		r.beta = (float)!side;
		RUN(ROPE_BACKWARD, r);
	}
	if (ld) expect_same("pre side by side", kept_pre[0], kept_pre[1], n * normed);
	for (int64_t t = 0; ld && t < n; t++) {
		expect_same("qkv side by side", qkv[0] + t * ld, qkv[1] + t * wide, wide);
		expect_same("dqkv side by side", dqkv[0] + t * ld, dqkv[1] + t * wide, wide);
	}
	for (s.t = 0; s.t < n; s.t++, s.grad += wide) {
		for (int64_t i = 0; i < wide; i++) row[i] = y[s.t * wide + i] = (double)x[s.t * wide + i];
		turned_defined(&s, y + s.t * wide, pre + s.t * normed, rstd + s.t * rstds);
		row_differences(s, row, in, dx + s.t * in);
		if (r.qnorm) differences(&s, s.of_q, q, dq);
		if (r.knorm) differences(&s, s.of_k, k, dk);
	}
	if (ld) CHECK("rope of q alone, %ld heads of %ld, rows %ld apart", heads, dim, ld);
	else
		CHECK("rope %ld x %ld, %ld/%ld heads of %ld, %ld turn%s%s%s%s%s%s%s%s%s", rows, seq, heads, kv_heads, dim,
			rope_dim, yes(knobs & HEAD_NORMS, ", norms"), yes(knobs & ROW_NORMS, ", norms of rows"),
			yes(knobs & NORMS_AFTER, " after"), yes(knobs & PLAIN, " without weights"), yes(r.norm_one, " by 1 + w"),
			yes(r.v_norm, ", v's norm"), yes(r.k_is_v, ", k is v"), yes(r.neighbours, ", neighbours"),
			yes(knobs & WARM, knobs & PAST ? ", temperature, 13 tokens before" : ", temperature"));
}

/* ---- q, k and v of multi-head latent attention ---- */

static void test_latent(int64_t rows, int64_t seq, int64_t heads, int64_t dim, int64_t rope_dim, int64_t dim_v,
	int form)
{
	int64_t n = rows * seq, wide = heads * (2 * dim + dim_v), nope = dim - rope_dim, pair = nope + dim_v;
	int64_t q = heads * dim, half = rope_dim / 2;
	struct mla_args a = {.n = n, .seq = seq, .heads = heads, .dim = dim, .rope_dim = rope_dim, .dim_v = dim_v};
	a.neighbours = form & 1;
	a.cos = random_floats(seq * half);
	a.sin = random_floats(seq * half);
	a.starts = documents(rows, seq, seq < 17 ? 5 : 17, 1);
	a.temperature = form & 2 ? 0.1f : 0;
	a.temperature_positions = form & 2 ? 5 : 0;
	a.ld = rope_dim + 8 + rope_dim % 8;
	const float *x = random_floats(n * q), *grad = random_floats(n * wide), *kv = random_floats(n * heads * pair);
	const float *kr = random_floats(n * rope_dim);
	double *y = doubles(n * wide), *dq = doubles(n * q), *dkv = doubles(n * heads * pair), *dkr = doubles(n * rope_dim);
	a.kv = again(kv, n * heads * pair);
	a.kr = apart(kr, n, rope_dim, a.ld);
	a.qkv = expect_in(apart(x, n, q, wide), "qkv", y, n * wide, 4e-7); /* nothing is read where k and v are to be */
	expect_same("kr", a.kr, again(a.kr, n * a.ld), n * a.ld);
	RUN(MLA_FORWARD, a);
	/* k's and v's gradients are in kv and kr */
	a.qkv = expect_rows_in(again(grad, n * wide), "dq", dq, n, q, wide, 4e-7);
	a.kv = expect("dkv", dkv, n * heads * pair, 4e-7);
	a.kr = expect_rows("dkr", dkr, n, rope_dim, a.ld, 6e-7);
	RUN(MLA_BACKWARD, a);
	for (int64_t i = 0; i < n * heads; i++) {
		int64_t t = i / heads, h = i % heads, position = t % seq - a.starts[t];
		const float *cosines = a.cos + position * half, *sines = a.sin + position * half, *g = grad + t * wide;
		double heat = heat_of((double)a.temperature, position, a.temperature_positions), dturned[64];
		double *of_q = y + t * wide + h * dim, *of_k = of_q + q, *of_v = y + t * wide + 2 * q + h * dim_v;
		for (int64_t j = 0; j < dim; j++) {
			of_q[j] = (double)x[t * q + h * dim + j];
			of_k[j] = (double)(j < nope ? kv[i * pair + j] : kr[t * rope_dim + j - nope]);
			dq[t * q + h * dim + j] = heat * (double)g[h * dim + j];
			*(j < nope ? &dkv[i * pair + j] : &dturned[j - nope]) = (double)g[q + h * dim + j];
		}
		for (int64_t j = 0; j < dim_v; j++) {
			of_v[j] = (double)kv[i * pair + nope + j];
			dkv[i * pair + nope + j] = (double)g[2 * q + h * dim_v + j];
		}
		turn(of_q + nope, half, a.neighbours, cosines, sines, 1);
		turn(of_k + nope, half, a.neighbours, cosines, sines, 1);
		turn(dq + t * q + h * dim + nope, half, a.neighbours, cosines, sines, -1);
		turn(dturned, half, a.neighbours, cosines, sines, -1);
		for (int64_t j = 0; j < rope_dim; j++) dkr[t * rope_dim + j] += dturned[j];
		for (int64_t j = 0; j < dim; j++) of_q[j] *= heat;
	}
	CHECK("latents %ld x %ld, %ld heads of %ld and %ld, %ld turn%s%s", rows, seq, heads, dim, dim_v, rope_dim,
		yes(form & 1, ", neighbours"), yes(form & 2, ", temperature"));
}

static void test_latents(void)
{
	for (int form = 0; form < 4; form++) {
		test_latent(1, 3, 1, 6, 2, 1, form);
		test_latent(2, 20, 3, 24, 8, 20, form);
		test_latent(2, 33, 5, 96, 32, 64, form);
		test_latent(1, 40, 4, 192, 64, 128, form);
	}
}

/* The last number says where a case runs */
static const int64_t ropes[][9] = {{2, 7, 4, 2, 20, 20, 0, 0, CPU | GPU},
	{3, 40, 4, 4, 64, 64, HEAD_NORMS, 0, CPU | GPU}, {2, 19, 3, 1, 6, 6, HEAD_NORMS, 0, CPU | GPU},
	{2, 19, 3, 1, 6, 6, 0, 0, CPU | GPU}, {2, 19, 3, 1, 16, 6, 0, 0, CPU | GPU}, {2, 19, 4, 2, 64, 32, 0, 0, CPU | GPU},
	{2, 19, 3, 1, 6, 6, NEIGHBOURS, 0, CPU | GPU}, {2, 19, 2, 1, 40, 34, NEIGHBOURS, 0, CPU | GPU},
	{1, 23, 4, 2, 64, 32, NEIGHBOURS, 0, CPU | GPU}, {1, 7, 2, 1, 12, 0, 0, 0, CPU | GPU},
	{2, 40, 2, 1, 20, 20, WARM, 0, CPU | GPU}, {2, 40, 2, 1, 20, 0, WARM, 0, CPU | GPU},
	{2, 19, 3, 1, 24, 24, HEAD_NORMS, 0, CPU | GPU}, {2, 19, 3, 1, 24, 24, HEAD_NORMS | ONE_ADDED, 0, CPU | GPU},
	{2, 19, 3, 1, 24, 24, HEAD_NORMS | NORMS_AFTER, 0, CPU | GPU},
	{2, 19, 3, 1, 10, 4, HEAD_NORMS | NORMS_AFTER | ONE_ADDED | NEIGHBOURS, 0, CPU | GPU},
	{1, 9, 2, 2, 12, 0, HEAD_NORMS, 0, CPU | GPU},
	{2, 19, 3, 1, 24, 24, HEAD_NORMS | NORMS_AFTER | PLAIN | NEIGHBOURS, 0, CPU | GPU},
	{2, 40, 2, 1, 20, 0, WARM | PLAIN, 0, CPU | GPU}, {2, 19, 3, 1, 24, 24, HEAD_NORMS | V_NORMS, 0, CPU | GPU},
	{2, 19, 4, 2, 32, 32, HEAD_NORMS | V_NORMS | K_IS_V, 0, CPU | GPU},
	{1, 35, 3, 1, 18, 8, HEAD_NORMS | V_NORMS | K_IS_V | NORMS_AFTER | WARM, 0, CPU | GPU},
	{2, 19, 2, 1, 24, 24, K_IS_V, 0, CPU | GPU}, {2, 19, 3, 1, 20, 20, ROW_NORMS, 0, CPU | GPU},
	{1, 70, 4, 2, 9 * 2, 18, ROW_NORMS | ONE_ADDED | WARM, 0, CPU | GPU},
	{1, 9, 2, 1, 64, 0, ROW_NORMS | K_IS_V, 0, CPU | GPU}, {1, 5, 2, 1, 256, 256, HEAD_NORMS, 0, GPU},
	{5, 200, 6, 2, 4, 4, HEAD_NORMS, 0, GPU}, {3, 70, 3, 1, 16, 16, HEAD_NORMS, 0, GPU},
	{2, 150, 9, 3, 128, 128, HEAD_NORMS, 0, GPU}, {2, 33, 3, 1, 128, 128, 0, 0, GPU},
	{1, 3, 1, 1, 512, 512, HEAD_NORMS, 0, GPU}, {2, 150, 9, 3, 32, 32, HEAD_NORMS | ONE_ADDED, 0, GPU},
	{1, 3, 1, 1, 512, 300, HEAD_NORMS | V_NORMS | K_IS_V, 0, GPU},
	{1, 5, 2, 1, 272, 64, NORMS_AFTER | HEAD_NORMS | NEIGHBOURS, 0, GPU}, {1, 20, 2, 1, 20, 20, WARM | PAST, 0, CPU},
	{2, 19, 3, 0, 6, 6, HEAD_NORMS | V_NORMS, 30, CPU | GPU},
	{2, 19, 2, 0, 24, 12, HEAD_NORMS | V_NORMS, 96, CPU | GPU}, {2, 19, 4, 0, 64, 64, HEAD_NORMS, 264, CPU | GPU}};

static void test_rope(void)
{
	for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++) {
		const int64_t *r = ropes[i];
		if (is_here(r[8])) test_turned(r[0], r[1], r[2], r[3], r[4], r[5], (int)r[6], r[7]);
	}
}

/* ---- activations ---- */

static const char *const form_names[] = {"SwiGLU", "GeGLU", "GeGLU with tanh", "clamped SwiGLU",
	"squared ReLU with a gate", "squared ReLU", "GELU", "GELU with tanh", "xIELU", "ReLU", "tanh"};

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
	case MT_RE2GLU: return g > 0 ? g * g * u : 0;
	case MT_RELU2: return g > 0 ? g * g : 0;
	case MT_RELU: return fmax(g, 0);
	case MT_TANH: return tanh(g);
	case MT_GELU: return normal;
	case MT_GELU_TANH: return curved;
	case MT_XIELU:
		if (g > 0) return softplus_defined(a[0]) * g * g + 0.5 * g;
		return (expm1(fmin(g, -1e-6)) - g) * (0.5 + softplus_defined(a[1])) + 0.5 * g;
	}
	return NAN;
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

static void test_active(int64_t n, int64_t f, enum mt_ffn form, int interleaved)
{
	int gated = activation_gated((int)form), xielu = form == MT_XIELU;
	int64_t elems = n * f, wide = gated ? 2 * elems : elems;
	float *gu = random_floats(wide);
	/* clamped, and where functions are flat, sigmoids near 0 and 1: not if that is all there is, as their tails have
	 * few exact digits */
	for (int64_t i = 0; wide > 8 && i < wide; i += 3) gu[i] *= form == MT_SWIGLU ? 20 : 5;
	/* rounding takes some across a clamp, where gradients jump; and a difference across a kink is no derivative */
	if (slack != 0) round_to_bf16(gu, wide);
	for (int64_t i = 0; i < wide; i++)
		if (xielu) gu[i] = fabsf(gu[i]) < 1e-5f ? 0x1p-10f : gu[i];
		else gu[i] += fabsf(gu[i]) < 1e-5f || fabsf(fabsf(gu[i]) - 7) < 1e-5f ? 0x1p-5f : 0;
	const float *dy = random_operand(elems, xielu && slack != 0), *slope = random_operand(2, xielu && slack != 0);
	double *y = doubles(elems), *dgu = doubles(wide), *d = doubles(2);
	struct sum_bound sums[2] = {{0}};
	struct active_element e = {.form = form, .a = {(double)slope[0], (double)slope[1]}};
	for (int64_t i = 0; i < elems; i++) {
		int64_t row = i / f, at = !gated ? i : interleaved ? 2 * i : row * 2 * f + i % f;
		int64_t at_up = !gated ? at : interleaved ? at + 1 : at + f;
		double g = (double)dy[i];
		e.g = (double)gu[at];
		e.u = (double)gu[at_up];
		y[i] = element_defined(&e);
		if (gated) dgu[at_up] = g * derivative(&e, &e.u);
		dgu[at] = g * derivative(&e, &e.g);
		for (int j = 0; xielu && j < 2; j++) d[j] += g * derivative(&e, e.a + j);
		if (xielu) bound_term(&sums[e.g <= 0], g, e.g);
	}
	struct activation_args a = {.gu = gu, .n = n, .f = f, .form = form, .interleaved = interleaved};
	a.slope[0] = slope;
	a.slope[1] = slope + 1;
	a.y = expect("y", y, elems, 4e-7);
	RUN(ACTIVATION_FORWARD, a);
	int sharp = 1;
	float *of_gu[2], *of_y[2], *forward = a.y;
	for (int added = 0; added < 2; added++) { /* in place, and not */
		a.dgu = of_gu[added] = expect_in(again(gu, wide), "dgu", dgu, wide, 6e-7);
		a.y = of_y[added] = expect_in(again(dy, elems), "y of backward", y, elems, 4e-7);
		a.dy = added ? dy : a.y;
		a.gu = added ? gu : a.dgu;
		a.beta = (float)added;
		float *dslope = expect_sum("slopes' gradients", d, 2, 0, added || !xielu); /* others' stay */
		double bound = 0, whole = 0;
		for (int j = 0; j < 2; j++) {
			double old = added || !xielu ? (double)dslope[j] : 0;
			double of = bound_sum(&sums[j], (double)(n + f), e.a[j], d[j], old);
			bound = hypot(bound, of);
			whole = hypot(whole, old + d[j]);
			sharp &= added || of < sqrt(sums[j].squares / (double)elems) / (1 + exp(-e.a[j]));
			a.dslope[j] = dslope + j;
		}
		parts[parts_n - 1].bound = IN_FP32(bound / (whole + 1e-30));
		RUN(ACTIVATION_BACKWARD, a);
	}
	expect_same("dgu in place", of_gu[0], of_gu[1], wide);
	expect_same("y of backward in place", of_y[0], of_y[1], elems);
	expect_same("y of backward", of_y[1], forward, elems);
	compare("%s %ld x %ld%s", form_names[form], n, f, yes(interleaved, ", interleaved"));
	if (xielu && wide > 8) say(sharp, "%s: slopes' gradients without a term of mean size would be wrong", case_name);
	say(twins_agree, "%s: backward in place gives the same bits, and forward's output", case_name);
	forget();
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

/* The same of a gated form of which a part of each row's gates counts as 0 */
static void test_sparse(int64_t n, int64_t f, enum mt_ffn form)
{
	const float *gu = random_elements(2 * n * f), *dy = random_elements(n * f);
	double *y = doubles(n * f), *dgu = doubles(2 * n * f);
	struct activation_args a = {.gu = gu, .n = n, .f = f, .form = form, .sparse = 1, .deviations = 0.3f};
	a.y = expect("y", y, n * f, 6e-7);
	RUN(ACTIVATION_FORWARD, a);
	a.dy = dy;
	a.y = expect("y of backward", y, n * f, 6e-7);
	a.dgu = expect_in(again(gu, 2 * n * f), "dgu", dgu, 2 * n * f, 2e-6);
	a.gu = a.dgu;
	RUN(ACTIVATION_BACKWARD, a);
	for (int64_t r = 0; r < n; r++) {
		const float *g = gu + 2 * r * f;
		double mean = 0, square = 0, sum = 0;
		for (int64_t i = 0; i < f; i++) mean += (double)g[i] / (double)f;
		for (int64_t i = 0; i < f; i++) square += ((double)g[i] - mean) * ((double)g[i] - mean) / (double)f;
		double cut = mean + (double)a.deviations * sqrt(square);
		for (int64_t i = 0; i < f; i++) {
			struct active_element e = {.form = form, .g = (double)g[i] - cut, .u = (double)g[f + i]};
			double d = (double)dy[r * f + i];
			if (e.g <= 0) continue;
			y[r * f + i] = element_defined(&e);
			dgu[2 * r * f + f + i] = d * derivative(&e, &e.u);
			dgu[2 * r * f + i] = d * derivative(&e, &e.g);
			sum += dgu[2 * r * f + i] / (double)f;
		}
		for (int64_t i = 0; i < f; i++)
			dgu[2 * r * f + i] -= sum * (1 + (double)a.deviations * ((double)g[i] - mean) / sqrt(square));
	}
	CHECK("sparse gates of %ld x %ld, form %d", n, f, (int)form);
}

static void test_activations(void)
{
	static const int64_t sizes[2][4][2] = {{{1, 1}, {3, 20}, {100, 333}, {3, 40000}}, {{3, 20}, {4, 333}, {2, 4104}}};
	for (int i = 0; i < 4 && sizes[on_gpu][i][0]; i++)
		for (enum mt_ffn form = MT_SWIGLU; form <= MT_TANH; form++)
			for (int interleaved = 0; interleaved <= activation_gated((int)form); interleaved++)
				test_active(sizes[on_gpu][i][0], sizes[on_gpu][i][1], form, interleaved);
	test_sparse(7, 3000, MT_GEGLU_TANH);
	test_sparse(3, 50, MT_SWIGLU);
	test_sparse(40, 333, MT_RE2GLU);
}

/* ---- factors ---- */

/* form: bits 1: with `add`; 2: with a factor; 4: y is x; 8: y is add */
static void test_scaled(int64_t n, int form)
{
	const float *x = random_floats(n), *add = form & 1 ? random_floats(n) : NULL;
	const float *factor = form & 2 ? random_floats(1) : NULL;
	double *y = doubles(n);
	struct scaled_add_args a = {.x = x, .add = add, .factor = factor, .n = n, .scale = 0.3f};
	a.y = expect_in(form & 4 ? again(x, n) : form & 8 ? again(add, n) : not_numbers(n), "y", y, n, 2e-7);
	if (form & 4) a.x = a.y;
	if (form & 8) a.add = a.y;
	RUN(SCALED_ADD, a);
	for (int64_t i = 0; i < n; i++)
		y[i] = ((add ? (double)add[i] : 0) + (double)0.3f * (double)x[i]) * (factor ? (double)*factor : 1);
	CHECK("scaled add of %ld%s%s%s", n, yes(!add, ", nothing added"), yes(!!factor, ", a factor"),
		form & 4 ? ", y is x" : yes(form & 8, ", y is add"));
}

/* Columns 3 to 3 + width - 1 of rows of `ld`, in place: all others stay */
static void test_columns(int64_t rows, int64_t width, int64_t ld)
{
	const float *x = random_floats(rows * ld);
	double *y = doubles(rows * ld);
	float *at = expect_in(again(x, rows * ld), "y", y, rows * ld, 2e-7) + 3;
	struct scaled_add_args a = {.y = at, .x = at, .n = rows * width, .scale = 0.3f, .width = width, .ld = ld};
	RUN(SCALED_ADD, a);
	for (int64_t i = 0; i < rows * ld; i++)
		y[i] = (i % ld >= 3 && i % ld < 3 + width ? (double)0.3f : 1) * (double)x[i];
	CHECK("scaled columns, %ld of %ld, of %ld rows", width, ld, rows);
}

/* ---- columns ---- */

static void test_moved(int64_t n, int64_t width, int64_t dst_ld, int64_t src_ld, int add)
{
	int64_t elems = (n - 1) * dst_ld + width;
	const float *src = random_floats((n - 1) * src_ld + width), *dst = random_floats(elems);
	double *y = doubles(elems);
	struct columns_args a = {.src = src, .n = n, .width = width, .dst_ld = dst_ld, .src_ld = src_ld, .add = add};
	a.dst = expect_in(again(dst, elems), "y", y, elems, 2e-7);
	RUN(COLUMNS, a);
	for (int64_t i = 0; i < elems; i++) {
		int64_t row = i / dst_ld, column = i % dst_ld;
		y[i] = column < width && !add ? 0 : (double)dst[i];
		if (column < width) y[i] += (double)src[row * src_ld + column];
	}
	CHECK("%s %ld columns of %ld rows, %ld and %ld apart", add ? "add" : "copy", width, n, dst_ld, src_ld);
}

/* ---- AltUp ---- */

static void test_mix(int64_t n, int64_t h, int64_t copies, int correct)
{
	int64_t all = n * copies * h, each = copies * (correct ? 1 : copies);
	const float *x = random_elements(all), *y = correct ? random_elements(n * h) : NULL, *c = random_elements(n * each),
				*dout = random_elements(all);
	double *out = doubles(all), *dx = doubles(all), *dc = doubles(n * each), *dy = doubles(n * h);
	struct mix_args a = {.n = n, .h = h, .copies = copies, .x = x, .y = y, .c = c};
	a.out = expect("out", out, all, 1e-6);
	RUN(MIX_FORWARD, a);
	a.out = NULL;
	for (int in_place = 0; in_place < 2; in_place++) {
		a.dx = expect_in(in_place ? again(dout, all) : not_numbers(all), "dx", dx, all, 1e-6);
		a.dout = in_place ? a.dx : dout;
		a.dc = expect("dc", dc, n * each, 2e-6);
		a.dy = correct ? expect("dy", dy, n * h, 1e-6) : NULL;
		RUN(MIX_BACKWARD, a);
	}
	for (int64_t k = 0; k < all; k++) {
		int64_t t = k / (copies * h), i = k / h % copies, e = k % h, first = t * copies * h + e;
		double d = (double)dout[k], change = correct ? (double)y[t * h + e] - (double)x[first] : 0;
		out[k] += (double)x[k];
		dx[k] += d;
		if (correct) {
			double by = 1 + (double)c[t * each + i];
			out[k] += by * change;
			dy[t * h + e] += by * d;
			dx[first] -= by * d;
			dc[t * each + i] += d * change;
		}
		for (int64_t j = 0; !correct && j < copies; j++) {
			int64_t at = t * each + i * copies + j;
			out[k] += (double)c[at] * (double)x[first + j * h];
			dx[first + j * h] += (double)c[at] * d;
			dc[at] += d * (double)x[first + j * h];
		}
	}
	CHECK("mix of %ld x %ld copies of %ld%s", n, copies, h, yes(correct, ", correction"));
}

static void test_magnitude(int64_t n, int64_t h, int64_t ld, float small)
{
	float *of_p = random_elements(n * h), *x0 = random_elements(n * h);
	const float *dy = random_elements(n * h), *dx0 = random_elements(n * h);
	for (int64_t i = 0; i < h; i++) of_p[i] *= small; /* of the first row */
	for (int64_t i = 0; i < h; i++) x0[(n - 1) * h + i] *= n > 1 ? 0 : 1;
	double *y = doubles(n * h), *dp = doubles(n * h), *dx = doubles(n * h);
	float *p = apart(of_p, n, h, ld);
	struct magnitude_args a = {.n = n, .h = h, .x = apart(x0, n, h, ld), .x_ld = ld, .p = p, .p_ld = ld};
	a.y = expect_rows_in(p, "y", y, n, h, ld, 1e-6);
	RUN(MAGNITUDE_FORWARD, a);
	a.y = NULL;
	a.p = p = apart(of_p, n, h, ld);
	a.dy = apart(dy, n, h, ld);
	a.dy_ld = ld;
	a.dp = expect_rows_in(p, "dp", dp, n, h, ld, 2e-6);
	a.dx = expect_rows_in(apart(dx0, n, h, ld), "dx", dx, n, h, ld, 2e-6);
	RUN(MAGNITUDE_BACKWARD, a);
	for (int64_t t = 0; t < n; t++) {
		const float *px = x0 + t * h, *pp = of_p + t * h;
		double xx = 0, pp2 = 0, dot = 0;
		for (int64_t i = 0; i < h; i++) {
			xx += (double)px[i] * (double)px[i] / (double)h;
			pp2 += (double)pp[i] * (double)pp[i] / (double)h;
			dot += (double)dy[t * h + i] * (double)pp[i] / (double)h;
		}
		double q = sqrt(fmax(pp2, 1e-5)), wanted = sqrt(xx);
		for (int64_t i = 0; i < h; i++) {
			int64_t k = t * h + i;
			y[k] = (double)pp[i] * wanted / q;
			dp[k] = wanted / q * ((double)dy[k] - (pp2 > 1e-5 ? (double)pp[i] * dot / pp2 : 0));
			dx[k] = (double)dx0[k] + (wanted > 0 ? dot / q * (double)px[i] / wanted : 0);
		}
	}
	CHECK("magnitude of %ld x %ld, rows %ld apart, times %g", n, h, ld, (double)small);
}

/* A norm without statistics */
static void test_weighed(int64_t n, int64_t h, int64_t ld)
{
	const float *x = random_elements(n * h), *w = random_operand(h, 0), *dy = random_elements(n * h);
	const float *dx0 = random_elements(n * h);
	double *y = doubles(n * h), *dx = doubles(n * h), *dw = doubles(h);
	float *rows = apart(x, n, h, ld);
	struct norm_forward_args f = {.x = rows, .w = w, .n = n, .h = h, .ld = ld};
	struct norm_backward_args b = {.add_dx = 1, .dy = dy, .x = rows, .w = w, .n = n, .h = h, .ld = ld};
	f.y = expect("y", y, n * h, 2e-7);
	RUN(NORM_FORWARD, f);
	b.dx = expect_rows_in(apart(dx0, n, h, ld), "dx", dx, n, h, ld, 4e-7);
	b.dw = expect_sum("dw", dw, h, 2e-6, 0);
	RUN(NORM_BACKWARD, b);
	for (int64_t k = 0; k < n * h; k++) {
		y[k] = (double)x[k] * (double)w[k % h];
		dx[k] = (double)dx0[k] + (double)dy[k] * (double)w[k % h];
		dw[k % h] += (double)dy[k] * (double)x[k];
	}
	CHECK("%ld x %ld elements times weights, rows %ld apart", n, h, ld);
}

static void test_altup(void)
{
	for (int correct = 0; correct < 2; correct++) {
		test_mix(1, 1, 2, correct);
		test_mix(40, 50, 4, correct);
		test_mix(3, 2200, 4, correct);
		test_mix(5, 77, 7, correct);
	}
	test_magnitude(1, 1, 1, 1);
	test_magnitude(37, 64, 192, 1e-4f);
	test_magnitude(3, 2100, 2101, 1);
	test_weighed(37, 50, 51);
	test_weighed(70, 256, 1024);
}

static void test_factors(void)
{
	test_altup();
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
		if (form < 8 || form & 1) test_scaled(form & 1 ? 200003 : 37, form);
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

static void test_knobs(void)
{
	test_norms();
	test_rope();
	test_activations();
	test_factors();
}
