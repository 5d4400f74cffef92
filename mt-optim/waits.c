/* waits.c: what the update waits for: pins that mt-ckpt clears, and tiles (units' lo, m and v that mt-tier reads into
 * slots and writes from them).
 *
 * Tile q may be updated from when it is loaded until it is counted here. Before and after, its slot is mt-tier's, and
 * may hold another tile.
 */
#include <pthread.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/tier.h"
#include "mt/wait.h"
#include "optim.h"

/* Time in which at least one thread waits for another stage: from the first that begins to the last that ends */
struct waits {
	int counter, waiting;
	double from;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void count_wait(struct optim *o, struct waits *w, int waiters) /* 1: one begins, -1: ends */
{
	pthread_mutex_lock(&lock);
	if (!w->waiting) w->from = mt_now();
	w->waiting += waiters;
	if (!w->waiting) mt_count(o->run, w->counter, (uint64_t)((mt_now() - w->from) * 1e9));
	pthread_mutex_unlock(&lock);
}

/* Each thread waits for the unit of its partition: one that waits for a later unit must not hold up an earlier
 * one. */
void wait_unpinned(struct optim *o, uint32_t u)
{
	static struct waits waits = {.counter = MT_OPTIM_snapshot_wait_ns};
	if (!mt_snap_pinned(o->run, u)) return;
	double from = mt_now();
	count_wait(o, &waits, 1);
	mt_stage_activity(o->run, MT_ACT_WAIT_PIN, u);
	while (mt_snap_wait(o->run, u)) leave_if_gone(o);
	mt_stage_activity(o->run, MT_ACT_APPLY, u);
	count_wait(o, &waits, -1);
	mt_count(o->run, MT_OPTIM_wait_ns, (uint64_t)((mt_now() - from) * 1e9));
}

/* ---- tiles */

/* Where element 0 of the unit would be */
static void *biased(void *array, uint64_t bytes) { return (void *)((uintptr_t)array - bytes); }

struct tile tier_tile(const struct optim *o, const struct tile *of, uint32_t i, uint64_t q)
{
	struct mt_tile place = mt_tile(o->run, i);
	struct tile tile = *of;
	uint8_t *slot = mt_tile_slot(o->run, q);
	uint64_t groups = place.first / MT_GROUP, moment = mt_dtype_bytes(tile.state) * place.first;
	if (place.lo != MT_NO_ARRAY) tile.lo = biased(slot + place.lo, place.first * 2);
	tile.m = biased(slot + place.m, moment);
	if (tile.v) tile.v = biased(slot + place.v, moment);
	if (tile.state != MT_INT8) return tile;
	tile.m_scale = biased(slot + place.m_scale, groups * sizeof(float));
	if (tile.v) tile.v_scale = biased(slot + place.v_scale, groups * sizeof(float));
	return tile;
}

uint64_t tier_updated(struct optim *o, uint64_t q)
{
	uint64_t updated = mt_tier_at(o->run, MT_UPDATED);
	mt_must(mt_tier_check(o->run));
	if (updated - q > o->control->tier.tiles)
		mt_die(MT_EX_DATA, "tile %llu of the tier is due, which is not of this step: tiles %llu to %llu are",
			(unsigned long long)updated, (unsigned long long)q, (unsigned long long)(q + o->control->tier.tiles - 1));
	return updated - q;
}

bool tier_loaded(const struct optim *o, uint64_t q) { return mt_tier_at(o->run, MT_LOADED) > q; }

void tier_count(struct optim *o, uint64_t q)
{
	if (mt_tier_count(o->run, MT_UPDATED, q)) return;
	leave_if_lost(o);
	mt_die(MT_EX_BUG, "tile %llu of the tier: another stage has counted tiles as updated, up to %llu",
		(unsigned long long)q, (unsigned long long)mt_tier_at(o->run, MT_UPDATED));
}

/* Asked to stop, and mt-tier is dead */
static bool gives_up(const struct optim *o) { return mt_stopping && !mt_stage_alive(o->run, MT_TIER); }

bool tier_wait(struct optim *o, uint64_t q, uint32_t u)
{
	static struct waits waits = {.counter = MT_OPTIM_tier_wait_ns};
	bool loaded;
	if (tier_loaded(o, q)) return true;
	count_wait(o, &waits, 1);
	mt_stage_activity(o->run, MT_ACT_WAIT_TIER, q);
	for (;;) {
		uint32_t seen = mt_event(o->run);
		if ((loaded = tier_loaded(o, q)) || gives_up(o)) break;
		leave_if_gone(o);
		mt_wait_on(o->run, seen, 100, MT_ON_TIER);
	}
	if (loaded) mt_stage_activity(o->run, MT_ACT_APPLY, u);
	count_wait(o, &waits, -1);
	return loaded;
}
