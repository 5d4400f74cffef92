/* init.c: random weights as transformers gives them: linear and embedding weights normal(0, initializer_range), norms
 * 1, biases 0, the embedding row of pad_token_id 0; m and v 0. Threads share blocks of elements; no bit depends on
 * them. */
#include <math.h>
#include <stdlib.h>

#include "mt/control.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "pool.h"
#include "store.h"

enum { BLOCK = 1 << 18, THREADS = 256 };

struct fill {
	struct mt_run *run;
	uint64_t seed;
	uint64_t blocks; /* of all units */
};

/* ---- one block */

static void store_weight(struct mt_run *run, const struct mt_tensor *t, uint64_t i, float x)
{
	const struct mt_unit *u = mt_unit(run, t->unit);
	i += t->off;
	if (mt_control(run)->dtype == MT_FP32) {
		((float *)mt_at(run, u->w))[i] = x;
		return;
	}
	struct mt_part own = mt_part(run, t->unit);
	((uint16_t *)mt_at(run, u->w))[i] = mt_hi(mt_bits(x));
	if (t->exact || (i >= own.first && i < own.end)) ((int16_t *)mt_at(run, u->lo))[i] = mt_lo(mt_bits(x));
}

/* Elements [from, to) of tensor number `index`, counted in the tensor */
static void fill_random(struct fill *f, uint32_t index, uint64_t from, uint64_t to)
{
	const struct mt_tensor *t = mt_tensor(f->run, index);
	const struct mt_geometry *geo = mt_geometry(f->run);
	bool down = t->role == MT_T_DOWN && !(geo->flags & MT_INIT_O);
	bool smaller = geo->flags & MT_INIT_BY_DEPTH && (t->role == MT_T_O || down);
	bool larger = geo->flags & MT_INIT_EMBED && t->role == MT_T_EMBED;
	double std = (double)geo->init_range / (smaller ? sqrt(2.0 * geo->layers) : larger ? 0.5 : 1), z[2];
	for (uint64_t i = from & ~1ull; i < to; i += 2) {
		normal_pair(f->seed, index, i / 2, z);
		if (i >= from) store_weight(f->run, t, i, (float)(std * z[0]));
		if (i + 1 < to) store_weight(f->run, t, i + 1, (float)(std * z[1]));
	}
}

/* A_log: logarithms of numbers that are uniform between 0.01 and 16; Mamba 2: of 1, 2, 3, ...; Mamba 1: so in each
 * channel. Its dt_bias: of steps between 0.001 and 0.1, whose logarithms are uniform, the inverse of softplus. Of two
 * normal numbers, exp(-(a^2 + b^2) / 2) is uniform between 0 and 1. */
static void fill_decay(struct fill *f, uint32_t index, uint64_t from, uint64_t to)
{
	const struct mt_tensor *t = mt_tensor(f->run, index);
	const struct mt_layer *k = mt_layer_of(mt_geometry(f->run), t->unit - 1);
	bool scan = k->mixer == MT_MAMBA_1, mamba = k->mixer == MT_MAMBA || scan;
	double z[2], x;
	for (uint64_t i = from; i < to; i++) {
		normal_pair(f->seed, index, i, z);
		double uniform = exp(-(z[0] * z[0] + z[1] * z[1]) / 2);
		if (t->role == MT_T_DT_BIAS) x = log(expm1(0.001 * pow(100, uniform)));
		else x = log(mamba ? (double)(scan ? i % k->key_dim : i) + 1 : 0.01 + (16 - 0.01) * uniform);
		store_weight(f->run, t, i, (float)x);
	}
}

/* Initial value of a vector, as in transformers' modules. NAN: random */
static float first_value(const struct mt_geometry *geo, uint32_t role)
{
	switch (role) {
	case MT_T_IN_NORM:
	case MT_T_NORM1:
	case MT_T_NORM2:
	case MT_T_POST1:
	case MT_T_POST2:
	case MT_T_FNORM:
	case MT_T_MTP_FINAL:
	case MT_T_MTP_NORM:
	case MT_T_MTP_HNORM:
	case MT_T_QNORM:
	case MT_T_KNORM: /* a factor of 1 where it is RMSNorm; Nemotron's LayerNorms begin with a factor of 2 */
		return geo->flags & MT_NORM_ONE && !(geo->flags & MT_LAYERNORM) ? 0 : 1;
	case MT_T_DT_BIAS:
	case MT_T_SKIP:
	case MT_T_DNORM:
	case MT_T_ALTUP_NORM:
	case MT_T_LAUREL_POST:
	case MT_T_O_NORM:
	case MT_T_DOWN_NORM:
	case MT_T_ROUTER_NORM:
	case MT_T_EXPERT_SCALE:
	case MT_T_SHARED_POST:
	case MT_T_XNORM:
	case MT_T_XPOST:
	case MT_T_PLE_POST:
	case MT_T_PLE_NORM:
	case MT_T_SCALAR: return 1;
	case MT_T_SINKS: return NAN;
	case MT_T_SLOPE_P: return (float)log(expm1(0.8)); /* XIELUActivation: softplus of it is 0.8 */
	case MT_T_SLOPE_N: return (float)log(expm1(0.8 - 0.5));
	case MT_T_XIELU_BETA: return 0.5f;
	case MT_T_XIELU_EPS: return -1e-6f;
	default: return 0; /* biases */
	}
}

/* Vectors that files have as matrices: one row, or one of each expert */
static bool is_vector(uint32_t role)
{
	return role == MT_T_CORRECTION || role == MT_T_XGATEB || role == MT_T_XUPB || role == MT_T_XDOWNB;
}

static void fill_tensor(struct fill *f, uint32_t index, uint64_t from, uint64_t to)
{
	const struct mt_tensor *t = mt_tensor(f->run, index);
	const struct mt_geometry *geo = mt_geometry(f->run);
	float first = t->ndim >= 2 && !is_vector(t->role) ? NAN : first_value(geo, t->role);
	bool steps = t->role == MT_T_DT_BIAS && mt_layer_of(geo, t->unit - 1)->mixer == MT_MAMBA_1;
	if (t->role == MT_T_A_LOG || steps) fill_decay(f, index, from, to);
	else if (isnan(first)) fill_random(f, index, from, to);
	else if (first != 0)
		for (uint64_t i = from; i < to; i++) store_weight(f->run, t, i, first);
	if ((t->role != MT_T_EMBED && t->role != MT_T_PLE_TABLE) || geo->pad_token < 0) return;
	uint64_t row = (uint64_t)geo->pad_token * t->shape[1], end = row + t->shape[1];
	for (uint64_t i = row > from ? row : from; i < (end < to ? end : to); i++) store_weight(f->run, t, i, 0);
}

/* The files of a tier are new, and zero */
static void zero(struct mt_run *run, uint64_t array, uint64_t from, uint64_t to, uint64_t bytes)
{
	if (array && !mt_on_tier(run, array)) memset((uint8_t *)mt_at(run, array) + from * bytes, 0, (to - from) * bytes);
}

/* from, to: multiples of MT_GROUP */
static void zero_moment(struct mt_run *run, const struct mt_unit *u, uint64_t array, uint64_t from, uint64_t to)
{
	uint32_t state = mt_control(run)->state;
	if (!array) return;
	zero(run, array, from, to, mt_dtype_bytes(state));
	if (state == MT_INT8) zero(run, array + mt_scales_at(u->elems), from / MT_GROUP, to / MT_GROUP, 4); /* the scales */
}

/* Elements [from, to) of a unit: all zero first, gaps between slabs too, then what its tensors want */
static void fill_range(struct fill *f, uint32_t unit, uint64_t from, uint64_t to)
{
	const struct mt_unit *u = mt_unit(f->run, unit);
	struct mt_part own = mt_part(f->run, unit);
	if (own.first < from) own.first = from;
	if (own.end > to) own.end = to;
	zero(f->run, u->w, from, to, mt_dtype_bytes(mt_control(f->run)->dtype));
	if (own.first < own.end) {
		zero(f->run, u->lo, own.first, own.end, 2);
		zero_moment(f->run, u, u->m, own.first, own.end);
		zero_moment(f->run, u, u->v, own.first, own.end);
	}
	for (uint32_t i = u->first_tensor; i < u->first_tensor + u->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(f->run, i);
		uint64_t lo = t->off > from ? t->off : from, hi = t->off + t->n < to ? t->off + t->n : to;
		if (lo < hi && t->exact) zero(f->run, u->lo, lo, hi, 2);
		if (lo < hi) fill_tensor(f, i, lo - t->off, hi - t->off);
	}
}

/* ---- all of them */

static uint64_t blocks_of(struct mt_run *run, uint32_t unit) { return (mt_unit(run, unit)->elems + BLOCK - 1) / BLOCK; }

static void fill_block(void *arg, int64_t block, int thread)
{
	struct fill *f = arg;
	uint32_t unit = 0;
	(void)thread;
	if (mt_stopping) return;
	for (; (uint64_t)block >= blocks_of(f->run, unit); unit++) block -= (int64_t)blocks_of(f->run, unit);
	mt_stage_activity(f->run, MT_ACT_FILL, unit);
	uint64_t from = (uint64_t)block * BLOCK, to = from + BLOCK, elems = mt_unit(f->run, unit)->elems;
	fill_range(f, unit, from, to < elems ? to : elems);
}

static void fill_all(struct fill *f)
{
	struct pool *pool = pool_create(mt_cores() < THREADS ? mt_cores() : THREADS, 0, NULL); /* NULL: no threads */
	for (uint32_t u = 0; u < mt_control(f->run)->n_units; u++) f->blocks += blocks_of(f->run, u);
	pool_run(pool, (int64_t)f->blocks, fill_block, f);
	pool_free(pool);
}

/* ---- the verb */

int store_init(const char *name, const struct store_options *o)
{
	struct mt_run *run = NULL;
	int rc = mt_run_open(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS);
	mt_signals(true);
	if (rc == 0) rc = mt_fill_claim(run);
	if (rc) {
		mt_run_close(run);
		return rc;
	}
	struct fill fill = {.run = run, .seed = o->seed};
	rc = mt_tier_map(run, true);
	if (rc == 0) fill_all(&fill);
	int stopped = mt_stopping;
	if (rc == 0 && !stopped) rc = mt_tier_seal(run, 0);
	if (rc == 0 && !stopped) mt_run_reset(run, 0, 0, NULL);
	mt_fill_end(run, rc || stopped ? MT_EMPTY : MT_FILLED);
	if (rc) {
		mt_run_close(run);
		return rc;
	}
	uint64_t params = mt_control(run)->params;
	mt_run_close(run);
	if (stopped) mt_die_of_signal(stopped);
	if (!o->quiet)
		mt_say("run '%s': %llu random parameters from seed %llu", name, (unsigned long long)params,
			(unsigned long long)o->seed);
	return 0;
}
