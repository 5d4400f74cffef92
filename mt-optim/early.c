/* early.c: --update early. Where a step does not clip, a unit's new state depends on its own gradient alone. So it is
 * computed as soon as that is complete, while mt-stream computes the gradients of the units before it.
 *
 * The commit is where it was, after the last gradient. Until then w must be what it was: an attempt that is aborted is
 * computed anew, from the weights of the step before, and others read them. So before the commit only lo, m and v are
 * replaced, and the new w goes to where the unit's gradient was, group by group: nobody needs that any more. After the
 * commit apply() copies it to w, unit by unit, before it publishes the version. A copy that is killed is made again.
 *
 * An aborted attempt takes nothing back. The next one has the same rows and options, and mt computes the same bits: the
 * gradients of what is updated already would come again, so those pieces are dropped. Two words of a unit say how far
 * it is, and outlive this process:
 *
 *     applied     step << 2 | 1    g is complete and finite, and the update has begun
 *                 step << 2 | 2    lo, m and v are those of the step, and w of the step is where g was
 *     squares     the sum of squares of g, for the norm
 *
 * One unit is between 1 and 2 at a time, and none when a step is committed: so the partitions' index words say how far
 * it is, as they do after the commit. A unit on the tier is updated tile by tile, and begun when its first tile is the
 * one that is due; the count of updated tiles says how far it is. A unit's `opened` is a hash of what mt-step opened
 * the step with. If an mt-step opens the step with something else, mt-optim ends with 78: half of the step is done with
 * what was there before.
 *
 * What cannot be taken back, either, is a step that must be skipped. All losses are known when the first unit is
 * complete, and a unit whose gradient is not finite is not begun. But if one comes after others have begun, the store
 * is dirty, as with --grad none.
 */
#include <math.h>
#include <xxhash.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "optim.h"
#include "sum.h"

enum { BEGUN = 1, ENDED = 2 };
enum { SLICE = 1 << 16 }; /* groups: some milliseconds */

void early_open(struct optim *o, bool wanted)
{
	bool bf16 = o->control->dtype == MT_BF16;
	o->early.wanted = wanted;
	o->early.slice_groups = SLICE;
	if (wanted && o->direct)
		mt_die(MT_EX_CONFIG, "--update early: with --grad none units are updated as their gradients come, anyway");
	if (wanted && o->nodes > 1) mt_die(MT_EX_CONFIG, "--update early: on one machine alone");
	if (wanted && !bf16 && o->g_bf16)
		mt_die(MT_EX_CONFIG, "--update early: gradients in bf16 have no room for new weights in fp32");
	if (wanted && mt_tier_any(o->run) && o->control->tier.order != MT_BACKWARD_ORDER)
		mt_die(MT_EX_CONFIG,
			"--update early: the tier's tiles are in the order of a late update: wants a run that mt-store create made "
			"with --update early");
	if (wanted && mt_tier_any(o->run)) o->driver.wakes |= MT_ON_TIER;
	for (uint32_t u = 0; u < o->n_units && !o->direct; u++) {
		struct unit *unit = &o->units[u];
		const struct mt_unit *mu = mt_unit(o->run, u);
		struct mt_part exact = mt_exact(mu, mt_tensor(o->run, mu->first_tensor));
		unit->early = unit->tile;
		unit->early.out = mt_at(o->run, mu->g[0]);
		unit->early.out_bytes = MT_GROUP * (o->g_bf16 ? 2 : 4);
		/* compute reads lo of exact tensors */
		unit->may_early = wanted && !(bf16 && exact.first < exact.end) && unit->groups;
	}
}

/* 0 where no unit is updated early, as before the first step: with --grad none the word is direct.c's */
static uint64_t applied(const struct optim *o, uint32_t u)
{
	if (o->direct || o->nodes > 1) return 0;
	return atomic_load_explicit(&mt_unit(o->run, u)->applied, memory_order_acquire);
}

static bool begun(const struct optim *o, uint32_t u, uint64_t step) { return applied(o, u) >> 2 == step; }

bool early_ended(const struct optim *o, uint32_t u, uint64_t step) { return applied(o, u) == (step << 2 | ENDED); }

static bool any_begun(const struct optim *o, uint64_t step)
{
	bool any = false;
	for (uint32_t u = 0; u < o->n_units; u++) any |= begun(o, u, step);
	return any;
}

double early_squares(const struct optim *o, uint32_t u) { return mt_unit(o->run, u)->squares; }

static void say(struct optim *o, uint32_t u, uint64_t step, uint64_t how)
{
	leave_if_lost(o);
	/* release: what it says of the unit is stored */
	atomic_store_explicit(&mt_unit(o->run, u)->applied, step << 2 | how, memory_order_release);
	/* release: who copies a byte of the update then finds that it has begun (mt_sample_holds) */
	atomic_thread_fence(memory_order_seq_cst);
}

/* ---- one unit */

static uint64_t partition_at(const struct early *e, uint64_t part, uint64_t parts)
{
	return e->first + (e->end - e->first) * part / parts;
}

/* Groups [first, end) of the unit come next. Partitions go on where their index words say. */
static void range(struct optim *o, const struct tile *tile, uint64_t first, uint64_t end)
{
	struct early *e = &o->early;
	e->tile = *tile;
	e->first = first;
	e->end = end;
	e->slice = 0;
	e->slices = (end - first + e->slice_groups - 1) / e->slice_groups;
	for (uint32_t p = 0; p < MT_PARTITIONS; p++)
		e->start[p] = partition_resume(o, tile, e->unit, e->step, p, partition_at(e, p, MT_PARTITIONS),
			partition_at(e, p + 1, MT_PARTITIONS));
}

static void ended(struct optim *o)
{
	say(o, o->early.unit, o->early.step, ENDED);
	mt_count(o->run, MT_OPTIM_early_updates, 1);
	o->early.busy = false;
}

/* The unit's next tile. Whatever an index says of one that was counted, its range is not that tile's. */
static void next_tile(struct optim *o)
{
	struct early *e = &o->early;
	const struct mt_unit *mu = mt_unit(o->run, e->unit);
	uint64_t i = tier_updated(o, e->q);
	if (i < mu->first_tile) mt_die(MT_EX_BUG, "unit %u was begun before its first tile was due", e->unit);
	if (i >= (uint64_t)mu->first_tile + mu->tiles) {
		ended(o);
		return;
	}
	struct mt_tile at = mt_tile(o->run, (uint32_t)i);
	struct tile tile = tier_tile(o, &o->units[e->unit].early, (uint32_t)i, e->q + i);
	e->i = (uint32_t)i;
	range(o, &tile, at.first / MT_GROUP, at.end / MT_GROUP);
}

static bool on_tier(const struct optim *o) { return mt_unit(o->run, o->early.unit)->tiles != 0; }

/* Unit u is at 1. */
static void go_on(struct optim *o, uint32_t u)
{
	struct early *e = &o->early;
	const struct mt_attempt *at = &o->driver.attempt;
	const struct unit *unit = &o->units[u];
	e->busy = true;
	e->unit = u;
	e->step = at->step;
	e->scalars = update_scalars((enum mt_optim)o->control->optim, at->t, &at->hyperparams, 1);
	if (!on_tier(o)) {
		range(o, &unit->early, unit->first_group, unit->end_group);
		return;
	}
	e->q = mt_tier_q(o->run, at->t, 0);
	next_tile(o);
}

/* A slice has a part of each partition's groups */
static void slice_partition(void *arg, int64_t partition, int thread)
{
	struct optim *o = arg;
	const struct early *e = &o->early;
	uint64_t parts = MT_PARTITIONS * e->slices, part = (uint64_t)partition * e->slices + e->slice;
	uint64_t first = partition_at(e, part, parts), end = partition_at(e, part + 1, parts);
	(void)thread;
	if (first < e->start[partition]) first = e->start[partition];
	if (first < end) unit_update(o, &e->scalars, &e->tile, e->unit, e->step, (uint32_t)partition, first, end);
}

/* false: its tile is not loaded */
static bool slice(struct optim *o)
{
	struct early *e = &o->early;
	double from = mt_now();
	leave_if_lost(o);
	if (on_tier(o) && !tier_loaded(o, e->q + e->i)) return false;
	mt_stage_activity(o->run, MT_ACT_APPLY, e->unit);
	pool_run(optim_pool(o), MT_PARTITIONS, slice_partition, o);
	mt_count(o->run, MT_OPTIM_update_ns, (uint64_t)((mt_now() - from) * 1e9));
	if (++e->slice < e->slices) return true;
	if (on_tier(o)) {
		tier_count(o, e->q + e->i);
		next_tile(o);
	} else ended(o);
	return true;
}

/* ---- a step */

/* What decides the bits of a training step, and outlives the mt-step that opened it */
static uint64_t hash_of(const struct mt_attempt *at)
{
	struct {
		uint64_t step, targets, micros, steps;
		struct mt_hyperparams hyperparams;
		struct mt_position position;
	} x = {at->step, at->targets, at->micros, at->t, at->hyperparams, at->position};
	return XXH64(&x, sizeof x, 0);
}

void early_attempt(struct optim *o)
{
	struct accumulation *g = &o->accumulation;
	uint64_t step = o->driver.attempt.step;
	o->early.hash = hash_of(&o->driver.attempt);
	o->early.busy = o->early.spoiled = false;
	for (uint32_t u = 0; u < o->n_units; u++) {
		g->begun[u] = begun(o, u, step);
		if (!g->begun[u]) continue;
		if (mt_unit(o->run, u)->opened != o->early.hash)
			mt_die(MT_EX_CONFIG,
				"step %llu is half done with other rows or options (--update early): give the same ones, or load "
				"a checkpoint",
				(unsigned long long)step);
		if (!early_ended(o, u, step)) go_on(o, u);
	}
}

/* May units be updated before the commit? Only if it cannot skip the step, for all that is known. */
static bool may_begin(struct optim *o)
{
	static bool warned;
	if (!o->early.wanted || o->early.spoiled || o->driver.losses_left || mt_optimizer_skips(&o->driver)) return false;
	if (!(o->driver.attempt.hyperparams.clip > 0)) return true;
	if (!warned) mt_say("--update early: steps are clipped, so units are updated after the commit");
	warned = true;
	return false;
}

/* The complete units: those that the backward pass has left first */
static bool begin_one(struct optim *o)
{
	struct accumulation *g = &o->accumulation;
	const struct mt_attempt *at = &o->driver.attempt;
	for (uint32_t turn = o->n_units; turn-- > 0;) {
		uint32_t u = mt_unit_of_turn(&o->control->geo, turn);
		struct mt_unit *mu = mt_unit(o->run, u);
		if (g->left[u] || g->begun[u] || !o->units[u].may_early || mt_snap_pinned(o->run, u)) continue;
		if (mu->tiles && tier_updated(o, mt_tier_q(o->run, at->t, 0)) != mu->first_tile) continue;
		double squares = sum_tree(g->squares[u], o->units[u].blocks);
		if (!isfinite(squares)) {
			o->early.spoiled = true;
			return false;
		}
		if (mt_txn_word(o->run, mt_word_k(at->word)) != at->word) return false;
		mu->squares = squares;
		mu->opened = o->early.hash;
		say(o, u, at->step, BEGUN);
		g->begun[u] = true;
		go_on(o, u);
		return true;
	}
	return false;
}

bool early_round(struct optim *o)
{
	if (o->driver.attempt.kind != MT_TRAIN || !o->accumulation.pieces_left) return false;
	if (!o->early.busy && (!may_begin(o) || !begin_one(o))) return false;
	return slice(o);
}

bool early_finish(struct optim *o)
{
	while (o->early.busy)
		if (!slice(o)) return false;
	return true;
}

void early_skips(struct optim *o, uint64_t step)
{
	if (!any_begun(o, step)) return;
	mt_run_set_state(o->run, MT_DIRTY);
	mt_die(MT_EX_DATA,
		"step %llu: a gradient that is not finite, when units were updated (--update early): the store is dirty, go on "
		"from the last checkpoint",
		(unsigned long long)step);
}

static void copy(const struct tile *t, uint64_t first, uint64_t end)
{
	uint64_t bytes = MT_GROUP * (t->lo ? 2 : 4);
	char *w = (char *)t->w + first * bytes;
	if (t->out_bytes == bytes) memcpy(w, tile_out(t, first), (end - first) * bytes);
	else
		for (; first < end; first++, w += bytes) memcpy(w, tile_out(t, first), bytes);
}

void early_copy(struct optim *o, uint32_t u, uint64_t first, uint64_t end)
{
	for (const struct decay_run *run = o->units[u].runs; first < end; run++) {
		uint64_t stop = end < run->end ? end : run->end;
		if (first >= stop) continue;
		if (!run->frozen) copy(&o->units[u].early, first, stop);
		first = stop;
	}
}
