/* optim-update.c: tests that the update's SIMD versions give the bits of the scalar one, and that that one is AdamW,
 * Lion or SGD.
 *
 * Bits: random groups with denormals, zeros, infinities and huge values, for every kind of state and gradient.
 * AdamW, Lion, SGD: the scalar version against the formula in double, over steps, with the bound of fp32 rounding.
 * Rounded state: means over many elements, steps of small gradients beside large ones, int8 codes of decoded values.
 * Sums: grad_add, grad_sumsq, grad_copy and those that do both against their definition, bit for bit. `optim-update
 * sums`: these alone, with $MT_ISA.
 * Hash: `optim-update hash` prints that of 20 steps of all 72 kinds by each instruction set of this CPU: the same on
 * every machine. `optim-update isas`: the names alone.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../mt-optim/update.h"
#include "../../mt-optim/sum.h"
#include "splitmix.h"
#include <xxhash.h>

enum { GROUPS = 37, N = GROUPS * MT_GROUP, ROUNDS = 60 };

struct state { /* every array with a guard group on either side */
	_Alignas(64) uint8_t w[(GROUPS + 2) * MT_GROUP * 4];
	_Alignas(64) int16_t lo[(GROUPS + 2) * MT_GROUP];
	_Alignas(64) float m[(GROUPS + 2) * MT_GROUP], v[(GROUPS + 2) * MT_GROUP]; /* or bf16, int8 */
	struct mt_partition partition;
};
static struct state before, want, got;
static _Alignas(64) uint8_t g0[N * 4], g1[N * 4];

static uint64_t seed = 1;
static uint32_t rnd(void) { return (uint32_t)splitmix_next(&seed); }
static float uniform(void) { return (float)rnd() / 2147483648.0f - 1; }

/* wild: any exponent, denormals and both infinities (no NaN: which of two NaNs comes out is the CPU's choice) */
static float number(bool wild)
{
	uint32_t r = rnd();
	if (!wild) return uniform();
	switch (r % 16) {
	case 0: return 0;
	case 1: return -0.0f;
	case 2: return mt_float(rnd() & 0x807fffff);                /* denormal */
	case 3: return mt_float((rnd() & 0x80000000) | 0x00800000); /* smallest normal */
	case 4: return r & 256 ? INFINITY : -INFINITY;
	case 5: return r & 256 ? 3.4e38f : -3.4e38f;
	case 6:
	case 7:
	case 8: {
		uint32_t bits = rnd();
		return (bits & 0x7f800000) == 0x7f800000 ? 1 : mt_float(bits);
	}
	default: return uniform();
	}
}

static const char *word_of(enum mt_dtype d) { return d == MT_INT8 ? "int8" : d == MT_BF16 ? "bf16" : "fp32"; }

static void fill_moment(float *array, enum mt_dtype state, bool is_v, bool wild)
{
	for (uint64_t i = 0; i < N + 2 * MT_GROUP; i++) {
		float x = is_v ? fabsf(number(wild)) : number(wild);
		if (state == MT_INT8) ((uint8_t *)array)[i] = (uint8_t)rnd();
		else if (state == MT_BF16) ((uint16_t *)array)[i] = bf16_round(mt_bits(x));
		else array[i] = x;
		if (state == MT_INT8) int8_scales(array, N + 2 * MT_GROUP)[i / MT_GROUP] = int8_scale(mt_bits(x));
	}
}

static void fill(struct state *s, bool bf16, enum mt_dtype state, bool wild)
{
	for (uint64_t i = 0; i < N + 2 * MT_GROUP; i++) {
		uint32_t bits = mt_bits(number(wild));
		if (bf16) {
			((uint16_t *)s->w)[i] = mt_hi(bits);
			s->lo[i] = mt_lo(bits);
		} else ((uint32_t *)s->w)[i] = bits;
	}
	fill_moment(s->m, state, false, wild);
	fill_moment(s->v, state, true, wild);
	memset(&s->partition, 0, sizeof s->partition);
	atomic_store(&s->partition.index, (uint64_t)(rnd() & 1) << PARTITION_SLOT);
}

static void fill_g(uint8_t *g, bool bf16, bool wild)
{
	for (uint64_t i = 0; i < N; i++) {
		uint32_t bits = mt_bits(number(wild));
		if (bf16) ((uint16_t *)g)[i] = mt_hi(bits);
		else ((uint32_t *)g)[i] = bits;
	}
}

static struct tile tile_of(struct state *s, bool bf16, enum mt_dtype state, bool g_bf16, bool two)
{
	uint32_t bytes = state == MT_INT8 ? 1 : state == MT_BF16 ? 2 : 4;
	return (struct tile){
		.w = s->w + MT_GROUP * (bf16 ? 2 : 4),
		.lo = bf16 ? s->lo + MT_GROUP : NULL,
		.m = (uint8_t *)s->m + MT_GROUP * bytes,
		.v = (uint8_t *)s->v + MT_GROUP * bytes,
		.optim = MT_ADAMW,
		.state = state,
		.m_scale = int8_scales(s->m, N + 2 * MT_GROUP) + 1,
		.v_scale = int8_scales(s->v, N + 2 * MT_GROUP) + 1,
		.g = {g0, two ? g1 : NULL},
		.g_bf16 = g_bf16,
	};
}

static update_fn *fastest(void)
{
	unsetenv("MT_ISA");
	return update_choose();
}

static int same_bits(const char *isa, update_fn *fn)
{
	for (int round = 0; round < ROUNDS; round++)
		for (int kind = 0; kind < 3 * 48; kind++) {
			static const enum mt_dtype states[] = {MT_FP32, MT_BF16, MT_INT8};
			static const enum mt_optim optims[] = {MT_ADAMW, MT_LION, MT_SGD};
			bool bf16 = kind & 1, g_bf16 = kind & 2, two = kind & 4, wild = kind & 8;
			enum mt_dtype state = states[kind / 16 % 3];
			enum mt_optim optim = optims[kind / 48];
			fill(&before, bf16, state, wild);
			fill_g(g0, g_bf16, wild);
			fill_g(g1, g_bf16, wild);
			want = got = before;
			struct scalars a = update_scalars(optim, 1 + rnd() % 1000,
				&(struct mt_hyperparams){1e-3, round % 3 ? 0.9 : 0.25, 0.999, 1e-8, 0.1, 0}, round & 1 ? 1 : 0.37);
			struct tile t = tile_of(&want, bf16, state, g_bf16, two), s = tile_of(&got, bf16, state, g_bf16, two);
			t.optim = s.optim = optim;
			if (optim != MT_ADAMW) t.v = s.v = t.v_scale = s.v_scale = NULL;
			uint64_t first = rnd() % 5, end = first + rnd() % (GROUPS - 5);
			t.g_group = s.g_group = first ? first - 1 : 0; /* a piece need not begin with the range */
			float decay = round & 2 ? a.decay : a.no_decay;
			update_scalar(&a, &t, &want.partition, partition_tag(9, 3), first, end, decay);
			fn(&a, &s, &got.partition, partition_tag(9, 3), first, end, decay);
			if (!memcmp(&want, &got, sizeof want)) continue;
			fprintf(stderr, "%s differs from scalar: %s, w %s, state %s, g %s, %d arrays, %s\n", isa,
				mt_optim_name(optim), bf16 ? "bf16" : "fp32", word_of(state), g_bf16 ? "bf16" : "fp32", 1 + two,
				wild ? "wild" : "tame");
			return 1;
		}
	printf("%s: same bits as scalar\n", isa);
	return 0;
}

/* One element's p, m and v after a step in double: AdamW, Lion (arXiv 2302.06675, algorithm 2), SGD (torch.optim.SGD
 * without dampening and nesterov). False: Lion's sign hangs on rounding. */
static bool step_defined(enum mt_optim optim, const struct mt_hyperparams *h, double step, double g, double *p,
	double *m, double *v)
{
	double c = h->beta1 * *m + (1 - h->beta1) * g;
	if (optim == MT_LION) {
		*p -= h->lr * ((c > 0) - (c < 0) + h->decay * *p);
		*m = h->beta2 * *m + (1 - h->beta2) * g;
		return fabs(c) >= 1e-6;
	}
	if (optim == MT_SGD) {
		*m = h->beta1 * *m + g + h->decay * *p;
		*p -= h->lr * *m;
		return true;
	}
	*p *= 1 - h->lr * h->decay;
	*m = c;
	*v = *v * h->beta2 + g * g * (1 - h->beta2);
	*p -= h->lr / (1 - pow(h->beta1, step)) * *m / (sqrt(*v) / sqrt(1 - pow(h->beta2, step)) + h->eps);
	return true;
}

/* The rule in double beside it; the states start equal, so what differs is fp32 rounding of 100 steps: m and v carry a
 * few ulps (2^-23 relative), AdamW's p adds at most 1.5 ulp of p a step, the others' two or three roundings. Elements
 * at which Lion's sign hangs on rounding, of which there are few, are left out. */
static int follows(enum mt_optim optim, double beta1)
{
	enum { STEPS = 100 };
	const double clip = 0.5;
	const struct mt_hyperparams h = {1e-3, beta1, optim == MT_ADAMW ? 0.999 : 0.99, 1e-8, 0.1, 0};
	static double p[N], m[N], v[N];
	static bool unsure[N];
	fill(&got, true, MT_FP32, false);
	struct tile t = tile_of(&got, true, MT_FP32, false, true);
	t.optim = optim;
	for (uint64_t i = 0; i < N; i++) {
		p[i] = mt_float(mt_join(((uint16_t *)t.w)[i], t.lo[i]));
		m[i] = ((float *)t.m)[i] = 0;
		v[i] = ((float *)t.v)[i] = 0;
		unsure[i] = false;
	}
	if (optim != MT_ADAMW) t.v = NULL;
	for (uint64_t step = 1; step <= STEPS; step++) {
		struct scalars a = update_scalars(optim, step, &h, clip);
		fill_g(g0, false, false);
		fill_g(g1, false, false);
		update_scalar(&a, &t, &got.partition, partition_tag(step, 0), 0, GROUPS, a.decay);
		for (uint64_t i = 0; i < N; i++) {
			double g = ((double)((float *)g0)[i] + ((float *)g1)[i]) * clip;
			unsure[i] |= !step_defined(optim, &h, (double)step, g, p + i, m + i, v + i);
		}
	}
	/* |p| stays below 1.2 with AdamW, 1 + 100 steps of lr at most, else below 2 */
	double worst = 0, bound = STEPS * 0x1p-24 * (optim == MT_ADAMW ? 1.5 * 1.2 : 2.5 * 2);
	int left_out = 0;
	for (uint64_t i = 0; i < N; i++) {
		double d = fabs(mt_float(mt_join(((uint16_t *)t.w)[i], t.lo[i])) - p[i]);
		left_out += unsure[i];
		if (!unsure[i] && d > worst) worst = d;
	}
	printf("%s, beta1 %g: worst difference from double after %d steps: %.3g of %.3g; %d elements left out\n",
		mt_optim_name(optim), beta1, STEPS, worst, bound, left_out);
	return worst > bound || left_out > (optim == MT_LION ? N / 20 : 0);
}

/* Lion without gradients: sign(0) is 0, so that no weight moves that does not decay */
static int lion_rests(void)
{
	fill(&got, true, MT_FP32, false);
	struct tile t = tile_of(&got, true, MT_FP32, false, false);
	t.optim = MT_LION, t.v = NULL;
	memset(g0, 0, sizeof g0);
	memset(got.m, 0, sizeof got.m);
	want = got;
	struct scalars a = update_scalars(MT_LION, 1, &(struct mt_hyperparams){1e-3, 0.9, 0.99, 0, 0.1, 0}, 1);
	update_scalar(&a, &t, &got.partition, partition_tag(1, 0), 0, GROUPS, a.no_decay);
	if (!memcmp(want.w, got.w, sizeof want.w) && !memcmp(want.lo, got.lo, sizeof want.lo)) return 0;
	return fprintf(stderr, "lion: a weight without gradients moves\n"), 1;
}

/* A denormal m decays no further, so it must go; and a denormal weight counts as zero. */
static int flushes(void)
{
	fill(&got, false, MT_FP32, false);
	struct tile t = tile_of(&got, false, MT_FP32, false, false);
	memset(g0, 0, sizeof g0);
	for (uint64_t i = 0; i < N; i++) ((float *)t.m)[i] = mt_float(1 + (uint32_t)i), ((float *)t.v)[i] = mt_float(77);
	struct scalars a = update_scalars(MT_ADAMW, 10, &(struct mt_hyperparams){1e-3, 0.9, 0.999, 1e-8, 0, 0}, 1);
	update_scalar(&a, &t, &got.partition, partition_tag(1, 0), 0, GROUPS, 1);
	for (uint64_t i = 0; i < N; i++)
		if (mt_bits(((float *)t.m)[i]) || mt_bits(((float *)t.v)[i])) {
			fprintf(stderr, "a denormal stayed\n");
			return 1;
		}
	return 0;
}

/* m and v, rounded, with gradients of several sizes in a group. Gradients of 1 times the size until v is near its mean,
 * then of 0.1: v falls to a hundredth as in fp32, although a step's decay is less than half of bf16's last place (so is
 * m's with beta1 0.999); and the mean of m and of v over the elements of each size is that of fp32. */
enum { SIZES = 8 };

static const struct fairness {
	enum mt_optim optim;
	enum mt_dtype state;
	double beta1, far_m, far_v;
	int sizes;
	float size[SIZES];
} fairness[] = {
	/* an element's v strays by some 2^-8 sqrt(500 steps) of it, the mean of 2368 by a fiftieth of that */
	{MT_ADAMW, MT_BF16, 0.9, 1e-3, 5e-3, 1, {1}},
	/* neighbouring codes differ by an eighth or less, and an element's v strays by two of them: the mean of 296 by
	 * 1.5 % */
	{MT_ADAMW, MT_INT8, 0.9, 0.01, 0.04, SIZES, {1, 0.7f, 0.3f, 0.1f, 0.03f, 0.01f, 1e-3f, 1e-4f}},
	/* an element's m strays by up to an eighth (int8) or 2^-8 (bf16) times sqrt(500 steps) of it, the mean of 592 by a
	 * twenty-fourth of that */
	{MT_LION, MT_BF16, 0.999, 0.01, 0, 4, {1, 0.3f, 0.1f, 0.01f}},
	{MT_LION, MT_INT8, 0.999, 0.1, 0, 4, {1, 0.3f, 0.1f, 0.01f}},
	{MT_SGD, MT_BF16, 0.999, 0.01, 0, 4, {1, 0.3f, 0.1f, 0.01f}},
	{MT_SGD, MT_INT8, 0.999, 0.1, 0, 4, {1, 0.3f, 0.1f, 0.01f}},
};

static int rounds_fairly(const struct fairness *f)
{
	enum { STEPS = 6000 };
	const double beta2 = 0.999, decay = f->optim == MT_LION ? beta2 : f->beta1;
	double mean_m[SIZES] = {0}, mean_v[SIZES] = {0}, m = 0, v = 0, each = N / f->sizes;
	int rc = 0;
	memset(&got, 0, sizeof got);
	struct tile t = tile_of(&got, true, f->state, false, false);
	t.optim = f->optim;
	if (f->optim != MT_ADAMW) t.v = NULL;
	for (uint64_t step = 1; step <= 2 * STEPS; step++) {
		struct scalars a = update_scalars(f->optim, step, &(struct mt_hyperparams){0, f->beta1, beta2, 1e-8, 0, 0}, 1);
		float g = step <= STEPS ? 1 : 0.1f;
		for (uint64_t i = 0; i < N; i++) ((float *)g0)[i] = g * f->size[i % (uint64_t)f->sizes];
		fastest()(&a, &t, &got.partition, partition_tag(step, 0), 0, GROUPS, a.no_decay);
		m = decay * m + g * (f->optim == MT_SGD ? 1 : 1 - decay);
		v = beta2 * v + (1 - beta2) * (double)g * g;
	}
	for (uint64_t i = 0; i < N; i++) {
		bool int8 = f->state == MT_INT8;
		uint64_t k = i % (uint64_t)f->sizes, group = i / MT_GROUP, at = int8_at(i);
		mean_m[k] += (double)(int8 ? int8_m(((uint8_t *)t.m)[at], t.m_scale[group])
								   : bf16_float(((uint16_t *)t.m)[i])) /
			each;
		if (t.v)
			mean_v[k] += (double)(int8 ? int8_v(((uint8_t *)t.v)[at], t.v_scale[group])
									   : bf16_float(((uint16_t *)t.v)[i])) /
				each;
	}
	for (int k = 0; k < f->sizes; k++) {
		double of_m = mean_m[k] / (m * f->size[k]), of_v = t.v ? mean_v[k] / (v * f->size[k] * f->size[k]) : 1;
		printf("%s, state %s, gradients of %g: mean m %.4f", mt_optim_name(f->optim), word_of(f->state),
			(double)f->size[k], of_m);
		if (t.v) printf(", mean v %.4f", of_v);
		printf(" of fp32's\n");
		rc |= fabs(of_m - 1) > f->far_m || fabs(of_v - 1) > f->far_v;
	}
	return rc;
}

/* Random gradients in a group whose sizes differ by up to 10^7, and elements without any: no step is much longer than
 * those of fp32 state, and elements without gradients do not move. */
static int steps_stay_short(void)
{
	enum { STEPS = 3000 };
	static const float size[SIZES] = {1, 0.1f, 1e-2f, 1e-3f, 1e-4f, 1e-5f, 1e-7f, 0};
	static struct state plain;
	struct tile t[2] = {tile_of(&plain, false, MT_FP32, false, false), tile_of(&got, false, MT_INT8, false, false)};
	struct state *s[2] = {&plain, &got};
	double longest[2][SIZES] = {{0}};
	int rc = 0;
	seed = 1;
	memset(&plain, 0, sizeof plain);
	memset(&got, 0, sizeof got);
	for (uint64_t step = 1; step <= STEPS; step++) {
		struct scalars a = update_scalars(MT_ADAMW, step, &(struct mt_hyperparams){1, 0.9, 0.999, 1e-12, 0, 0}, 1);
		for (uint64_t i = 0; i < N; i++) ((float *)g0)[i] = (uniform() + uniform() + uniform()) * size[i % SIZES];
		for (int k = 0; k < 2; k++) {
			float *w = t[k].w;
			memset(w, 0, N * 4); /* what it is after the update is the step */
			fastest()(&a, &t[k], &s[k]->partition, partition_tag(step, 0), 0, GROUPS, 1);
			for (uint64_t i = 0; i < N; i++) longest[k][i % SIZES] = fmax(longest[k][i % SIZES], fabs((double)w[i]));
		}
	}
	for (int i = 0; i < SIZES; i++) {
		printf("longest step with gradients of %g: fp32 %.2f, int8 %.2f lr\n", (double)size[i], longest[0][i],
			longest[1][i]);
		rc |= !(longest[1][i] <= 16) || (size[i] == 0 && longest[1][i] != 0);
	}
	return rc;
}

/* Decoded values, coded again: the same values, of every code. Groups of random values: their scale is that of their
 * decoded values, no value is rounded to another than its two neighbours, and each code is within reach. */
static int codes_stay(void)
{
	enum { TIMES = 20000 };
	bool seen[2][256] = {{0}};
	for (uint32_t e = INT8_LEAST >> 23; e <= INT8_MOST >> 23; e++) {
		float scale = mt_float(e << 23);
		for (int c = 0; c < 256; c++) {
			float m = int8_m((uint8_t)c, scale), v = int8_v((uint8_t)c, scale);
			if (int8_m(int8_m_code(int8_round(m, INT8_NEAREST), scale), scale) != m ||
				int8_v_code(int8_round(v, INT8_NEAREST), scale) != c)
				return fprintf(stderr, "code %d of scale %g changes\n", c, (double)scale), 1;
		}
	}
	for (int k = 0; k < TIMES; k++) {
		uint32_t x[MT_GROUP], rounded[MT_GROUP], most = 0, again_m = 0, again_v = 0,
												 top = 0x12000000 + rnd() % 0x6c000000;
		for (int i = 0; i < MT_GROUP; i++) {
			x[i] = top - (i ? rnd() % (33u << 23) % top : 0);
			rounded[i] = int8_round(mt_float(x[i]), rnd() >> (32 - INT8_CUT));
			if (most < rounded[i]) most = rounded[i];
		}
		float scale = int8_scale(most);
		for (int i = 0; i < MT_GROUP; i++) {
			float is = mt_float(x[i]), least = scale * 0x1p-15f;
			uint8_t m_code = int8_m_code(rounded[i] | rnd() << 31, scale), v_code = int8_v_code(rounded[i], scale);
			float m = fabsf(int8_m(m_code, scale)), v = int8_v(v_code, scale);
			if (!(fabsf(m - is) < is / 8) && !(is < least * 1.125f && (m == 0 || m == least * 1.125f)))
				return fprintf(stderr, "m: %g of scale %g is rounded to %g\n", (double)is, (double)scale, (double)m), 1;
			if (!(fabsf(v - is) < is / 8) && !(is < scale * 0x1p-31f && v == scale * 0x1p-31f))
				return fprintf(stderr, "v: %g of scale %g is rounded to %g\n", (double)is, (double)scale, (double)v), 1;
			seen[0][m_code] = seen[1][v_code] = true;
			if (again_m < int8_round(m, INT8_NEAREST)) again_m = int8_round(m, INT8_NEAREST);
			if (again_v < int8_round(v, INT8_NEAREST)) again_v = int8_round(v, INT8_NEAREST);
		}
		if (int8_scale(again_m) != scale || int8_scale(again_v) != scale)
			return fprintf(stderr, "decoded values of scale %g have another scale\n", (double)scale), 1;
	}
	for (int c = 0; c < 256; c++)
		if (!seen[0][c] || !seen[1][c]) return fprintf(stderr, "no value has code %d\n", c), 1;
	return 0;
}

/* Another step, unit or element: other random numbers, but for pairs of neighbours: the one's m and the other's v share
 * one. No bit is more often set than not; and the numbers of m and v of elements that lie 32 apart, of the next pair,
 * and of an element's next step are nearly independent. */
static int draws_bits(enum mt_dtype state)
{
	enum { KEYS = 4096, ELEMENTS = 4, KINDS = 2 * ELEMENTS };
	const uint32_t n_bits = state == MT_INT8 ? INT8_CUT : 16;
	uint32_t set[32] = {0}, same = 0, last = 0;
	double product[KINDS][KINDS] = {{0}}, worst = 0;
	for (uint64_t k = 0; k < KEYS; k++)
		for (uint32_t j = 0; j < 32; j += 2) {
			uint64_t step = 1 + k / 64;
			uint32_t key = rounding_key(partition_tag(step, (uint32_t)(k % 64)), k % 7), word = rounding_word(key, j);
			uint32_t next = rounding_key(partition_tag(step + 1, (uint32_t)(k % 64)), k % 7);
			struct rounding of[ELEMENTS] = {rounding_of(key, j, n_bits), rounding_of(key, j + 32, n_bits),
				rounding_of(next, j, n_bits), rounding_of(key, j + 2, n_bits)};
			for (uint32_t r = 0; r < 2; r++) {
				struct rounding other = rounding_of(key, j + 1 + 32 * r, n_bits);
				if (other.m != of[r].v || other.v != of[r].m)
					return fprintf(stderr, "neighbours do not share their numbers\n"), 1;
			}
			double u[KINDS]; /* between -1 and 1 */
			for (int i = 0; i < ELEMENTS; i++) {
				u[2 * i] = of[i].m / (double)(1u << (n_bits - 1)) - 1;
				u[2 * i + 1] = of[i].v / (double)(1u << (n_bits - 1)) - 1;
			}
			for (int a = 0; a < KINDS; a++)
				for (int b = 0; b < a; b++) product[a][b] += u[a] * u[b];
			same += word == last;
			last = word;
			for (int b = 0; b < 32; b++) set[b] += word >> b & 1;
		}
	for (int b = 0; b < 32; b++)
		if (fabs(set[b] / (double)(KEYS * 16) - 0.5) > 0.01) return fprintf(stderr, "bit %d is not fair\n", b), 1;
	for (int a = 0; a < KINDS; a++)
		for (int b = 0; b < a; b++) worst = fmax(worst, fabs(product[a][b] * 3 / (KEYS * 16)));
	printf("random numbers of state in %s: greatest correlation %.3f\n", word_of(state), worst);
	return same > 1 || worst > 0.015625 + 0.015;
}

/* The table of roots has those of sqrtf */
static int has_roots(void)
{
	for (uint32_t x = 0x00800000; x < 0x7f800000; x += 1u << INT8_CUT)
		if (mt_bits(int8_root(x)) != mt_bits(sqrtf(mt_float(x))) || int8_root(x | 0xfffff) != int8_root(x))
			return fprintf(stderr, "the root of %g is wrong\n", (double)mt_float(x)), 1;
	return !(int8_root(0) < 0x1p-62f);
}

/* A learning rate of 0 changes no weight that does not decay, even where v is 0 */
static int rests_at_0(enum mt_dtype state)
{
	fill(&got, false, state, false);
	struct tile t = tile_of(&got, false, state, false, false);
	fill_g(g0, false, false);
	memset(g0, 0, MT_GROUP * 4);
	memset(t.v, 0, mt_state_bytes(state, MT_GROUP) / 2);
	memcpy(want.w, got.w, sizeof want.w);
	struct scalars a = update_scalars(MT_ADAMW, 10, &(struct mt_hyperparams){0, 0.9, 0.999, 1e-8, 0.1, 0}, 1);
	update_scalar(&a, &t, &got.partition, partition_tag(1, 0), 0, GROUPS, a.decay);
	if (!memcmp(want.w, got.w, sizeof want.w)) return 0;
	return fprintf(stderr, "state %s: a weight moves although the learning rate is 0\n", word_of(state)), 1;
}

static float g_of(const uint8_t *g, bool bf16, uint64_t i)
{
	return bf16 ? bf16_float(((const uint16_t *)g)[i]) : ((const float *)g)[i];
}

static int sums(bool bf16)
{
	fill_g(g0, bf16, false);
	fill_g(g1, bf16, false);
	static uint8_t sum[N * 4], again[N * 4];
	memcpy(sum, g0, sizeof sum);
	memcpy(again, g0, sizeof again);
	grad_add(sum, g1, N, bf16);
	if (grad_add_take(again, g1, N, bf16) != grad_sumsq(sum, NULL, N, bf16) || memcmp(again, sum, sizeof sum))
		return fprintf(stderr, "grad_add_take: not grad_add and its squares\n"), 1;
	for (uint64_t i = 0; i < N; i++) {
		float x = g_of(g0, bf16, i) + g_of(g1, bf16, i);
		uint32_t bits = mt_bits(x);
		if (bf16) bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000; /* nearest, ties to even */
		if (mt_bits(g_of(sum, bf16, i)) != bits) return fprintf(stderr, "grad_add: element %d\n", (int)i), 1;
	}
	for (int two = 0; two < 2; two++) {
		double acc[16] = {0};
		for (uint64_t i = 0; i < N; i++) {
			float x = g_of(g0, bf16, i) + (two ? g_of(g1, bf16, i) : 0);
			acc[i % 16] += (double)x * x;
		}
		for (int half = 8; half; half /= 2)
			for (int j = 0; j < half; j++) acc[j] += acc[j + half];
		if (grad_sumsq(g0, two ? g1 : NULL, N, bf16) != acc[0])
			return fprintf(stderr, "grad_sumsq: not its definition\n"), 1;
	}
	/* at an address for streaming stores, and beside one */
	static _Alignas(64) uint8_t copied[N * 4 + 64];
	size_t bytes = N * (bf16 ? 2 : 4);
	for (int apart = 0; apart <= 4; apart += 4) {
		memset(copied, 0xff, sizeof copied);
		grad_copy(copied + apart, g0, N, bf16);
		if (memcmp(copied + apart, g0, bytes) || copied[apart + bytes] != 0xff)
			return fprintf(stderr, "grad_copy: not a copy\n"), 1;
		memset(copied, 0xff, sizeof copied);
		if (grad_take(copied + apart, g0, N, bf16) != grad_sumsq(g0, NULL, N, bf16) ||
			memcmp(copied + apart, g0, bytes) || copied[apart + bytes] != 0xff)
			return fprintf(stderr, "grad_take: not a copy and its squares\n"), 1;
	}
	return 0;
}

/* w, lo, m, v, scales and journal of 20 steps of each optimizer, state, dtype of w and g, and number of gradients */
static uint64_t hash(update_fn *fn)
{
	enum { STEPS = 20, KINDS = 72 };
	static const enum mt_dtype states[] = {MT_FP32, MT_BF16, MT_INT8};
	static const enum mt_optim optims[] = {MT_ADAMW, MT_LION, MT_SGD};
	uint64_t sum = 0;
	memset(&got, 0, sizeof got);
	for (int kind = 0; kind < KINDS; kind++) {
		bool bf16 = kind & 1, g_bf16 = kind & 2, two = kind & 4;
		enum mt_dtype state = states[kind / 8 % 3];
		seed = (uint64_t)kind;
		fill(&got, bf16, state, false);
		struct tile t = tile_of(&got, bf16, state, g_bf16, two);
		t.optim = optims[kind / 24];
		if (t.optim != MT_ADAMW) t.v = t.v_scale = NULL;
		for (uint32_t step = 1; step <= STEPS; step++) {
			const struct mt_hyperparams h = {1e-3, 0.9, 0.999, 1e-8, 0.1, 1};
			struct scalars a = update_scalars(t.optim, step, &h, 0.5);
			fill_g(g0, g_bf16, false);
			fill_g(g1, g_bf16, false);
			fn(&a, &t, &got.partition, partition_tag(step, 3), 0, GROUPS, step & 1 ? a.decay : a.no_decay);
		}
		sum = XXH64(&got, sizeof got, sum);
	}
	return sum;
}

int main(int argc, char **argv)
{
	flush_denormals();
	struct update_isa isas[UPDATE_ISAS];
	int rc = 0, n_isas = update_isas(isas);
	if (argc > 1 && !strcmp(argv[1], "sums")) return sums(false) | sums(true);
	if (argc > 1 && !strcmp(argv[1], "isas")) {
		for (int i = 0; i < n_isas; i++) puts(isas[i].name);
		return 0;
	}
	if (argc > 1 && !strcmp(argv[1], "hash")) {
		for (int i = 0; i < n_isas; i++) printf("%s %016llx\n", isas[i].name, (unsigned long long)hash(isas[i].update));
		return 0;
	}
	for (int i = 1; i < n_isas; i++) rc |= same_bits(isas[i].name, isas[i].update);
	rc |= follows(MT_ADAMW, 0.9) | follows(MT_ADAMW, 0.25) | follows(MT_ADAMW, 0);
	rc |= follows(MT_LION, 0.9) | follows(MT_SGD, 0.9) | lion_rests();
	for (size_t i = 0; i < sizeof fairness / sizeof *fairness; i++) rc |= rounds_fairly(&fairness[i]);
	rc |= draws_bits(MT_BF16) | draws_bits(MT_INT8);
	rc |= has_roots() | rests_at_0(MT_FP32) | rests_at_0(MT_BF16) | rests_at_0(MT_INT8);
	rc |= steps_stay_short() | codes_stay();
	rc |= flushes() | sums(false) | sums(true);
	return rc;
}
