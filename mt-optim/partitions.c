/* partitions.c: the update of a whole model by threads that take partitions.
 *
 * The model is cut into items: a unit in memory is one, a tile of a unit on the tier is one. Partition p of
 * MT_PARTITIONS has groups [p G / 64, (p + 1) G / 64) of the G of each item that this node owns. However many threads
 * there are, a partition goes through the items in their order, so that its one index word says all that it has done: a
 * partition that stands in an item has finished its part of those before. Partitions are taken item by item. When all
 * partitions have finished an item, a tile is counted; then, if it was its unit's last item, the unit's version is
 * published.
 *
 * The order of items: units by turns (mt_unit_of_turn: the order in which the next forward pass needs them). If the
 * tier's tiles go from the last unit to the first, they come after all other units. A unit whose lo, m and v were
 * updated before the commit is one item wherever it is: only its w is copied.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "optim.h"

struct item {
	uint32_t unit, i;    /* i: tile of the pass; NO_TILE: the unit is in memory */
	uint64_t first, end; /* groups of the unit */
	bool last;           /* of its unit */
	struct tile tile;
};
enum { NO_TILE = UINT32_MAX };

struct apply {
	struct optim *o;
	const struct scalars *scalars;
	uint64_t step, q; /* q: number of the pass's tile 0 */
	struct item *items;
	uint32_t n;
	uint32_t first; /* item of task 0 */
	struct {
		uint32_t item;
		uint64_t group;
	} start[MT_PARTITIONS];             /* where a predecessor left the partition */
	_Atomic uint32_t at[MT_PARTITIONS]; /* item that the partition does next */
	_Atomic uint32_t *done;             /* (items): partitions finished */
	pthread_mutex_t publishing;
	uint32_t passed;     /* items before it are updated, counted and published */
	_Atomic bool leaves; /* asked to stop, and nothing is to be had from the tier */
};

static uint64_t partition_first(const struct item *item, uint32_t partition)
{
	return item->first + (item->end - item->first) * partition / MT_PARTITIONS;
}

uint64_t partition_resume(struct optim *o, const struct tile *tile, uint32_t u, uint64_t step, uint32_t partition,
	uint64_t first, uint64_t end)
{
	uint64_t index = atomic_load_explicit(&o->partitions[partition].index, memory_order_acquire);
	uint64_t group = partition_group(index);
	if (!partition_in_step(index, step) || partition_unit(index) != u || group < first || group >= end) return first;
	update_restore(tile, &o->partitions[partition]);
	return group;
}

void unit_publish(struct optim *o, uint32_t u, uint64_t step)
{
	int rc = mt_optimizer_publish(&o->driver, u, step);
	if (rc) leave_if_lost(o);
	mt_must(rc);
	mt_count(o->run, MT_OPTIM_updates, 1);
}

/* ---- items */

static void add_item(struct apply *a, struct item item)
{
	if (a->n) a->items[a->n - 1].last = a->items[a->n - 1].unit != item.unit;
	item.last = true;
	a->items[a->n++] = item;
}

static void add_unit(struct apply *a, uint32_t u)
{
	const struct unit *unit = &a->o->units[u];
	if (!unit->groups) return; /* libmt's driver has published it */
	add_item(a, (struct item){u, NO_TILE, unit->first_group, unit->end_group, .tile = unit->tile});
}

static void add_tile(struct apply *a, uint32_t i)
{
	struct mt_tile at = mt_tile(a->o->run, i);
	if (early_ended(a->o, at.unit, a->step)) return;
	struct tile tile = tier_tile(a->o, &a->o->units[at.unit].tile, i, a->q + i);
	add_item(a, (struct item){at.unit, i, at.first / MT_GROUP, at.end / MT_GROUP, .tile = tile});
}

/* A successor makes the same: which units were updated before the commit does not change after it. */
static void items_make(struct apply *a)
{
	struct optim *o = a->o;
	const struct mt_tier *tier = &o->control->tier;
	uint64_t most = (uint64_t)o->n_units + tier->tiles;
	a->items = calloc(most, sizeof *a->items);
	a->done = calloc(most, sizeof *a->done);
	if (!a->items || !a->done) mt_die(MT_EX_NOMEM, "no memory for the partitions of %u units", o->n_units);
	for (uint32_t turn = 0; turn < o->n_units; turn++) {
		uint32_t u = mt_unit_of_turn(&o->control->geo, turn);
		const struct mt_unit *mu = mt_unit(o->run, u);
		if (!mu->tiles || early_ended(o, u, a->step)) add_unit(a, u);
		else
			for (uint32_t i = 0; i < mu->tiles && tier->order == MT_FORWARD_ORDER; i++) add_tile(a, mu->first_tile + i);
	}
	for (uint32_t i = 0; i < tier->tiles && tier->order == MT_BACKWARD_ORDER; i++) add_tile(a, i);
}

static void publish(struct apply *a, const struct item *item)
{
	if (item->last) unit_publish(a->o, item->unit, a->step);
}

/* What predecessors have counted and published. One may have died between the two. */
static void find_passed(struct apply *a)
{
	struct optim *o = a->o;
	uint64_t tiles = o->control->tier.tiles ? tier_updated(o, a->q) : 0;
	for (; a->passed < a->n; a->passed++) {
		const struct item *item = &a->items[a->passed];
		if (nodes_at(o, item->unit) == a->step) continue;
		if (item->i == NO_TILE || item->i >= tiles) break;
		publish(a, item);
	}
}

/* The partition's index names this step only when a predecessor died in it. It may name a tile that was counted since:
 * then that tile's slot may hold another one by now, and nothing of it is restored. */
static void find_start(struct apply *a, uint32_t partition)
{
	struct optim *o = a->o;
	uint64_t index = atomic_load_explicit(&o->partitions[partition].index, memory_order_acquire);
	uint32_t u = partition_unit(index), at = a->passed;
	/* (what was updated before the commit has left its last word there) */
	if (partition_in_step(index, a->step) && !early_ended(o, u, a->step)) {
		const struct item *item = a->items + at;
		while (at < a->n && (item->unit != u || partition_group(index) >= item->end)) at++, item++;
		if (at == a->n) at = a->passed;
	}
	a->start[partition].item = at;
	if (at < a->n) {
		const struct item *item = &a->items[at];
		uint64_t first = partition_first(item, partition), end = partition_first(item, partition + 1);
		a->start[partition].group = first;
		if (!early_ended(o, item->unit, a->step))
			a->start[partition].group = partition_resume(o, &item->tile, item->unit, a->step, partition, first, end);
	}
	atomic_init(&a->at[partition], at);
	for (uint32_t done = a->passed; done < at; done++) atomic_fetch_add(&a->done[done], 1);
}

/* ---- the update */

static void publish_ready(struct apply *a)
{
	struct optim *o = a->o;
	pthread_mutex_lock(&a->publishing);
	while (a->passed < a->n && atomic_load(&a->done[a->passed]) == MT_PARTITIONS) {
		const struct item *item = &a->items[a->passed];
		if (item->i != NO_TILE) tier_count(o, a->q + item->i);
		publish(a, item);
		a->passed++;
		mt_stage_activity(o->run, MT_ACT_APPLY, a->passed < a->n ? a->items[a->passed].unit : item->unit);
	}
	pthread_mutex_unlock(&a->publishing);
}

/* May groups of the item be updated? */
static bool wait_item(struct apply *a, const struct item *item)
{
	wait_unpinned(a->o, item->unit);
	if (item->i == NO_TILE || tier_wait(a->o, a->q + item->i, item->unit)) return true;
	atomic_store(&a->leaves, true);
	return false;
}

/* Task t: partition t mod 64 of item first + t / 64 */
static void update_partition(void *arg, int64_t task, int thread)
{
	struct apply *a = arg;
	struct optim *o = a->o;
	uint32_t i = a->first + (uint32_t)(task / MT_PARTITIONS), partition = (uint32_t)(task % MT_PARTITIONS);
	const struct item *item = &a->items[i];
	uint32_t u = item->unit;
	(void)thread;
	if (a->start[partition].item > i) return; /* a predecessor's work, counted in find_start */
	/* Acquire: whichever thread had the partition in the item before, its index and journal come first. */
	while (atomic_load_explicit(&a->at[partition], memory_order_acquire) != i) {
		if (atomic_load(&a->leaves)) return;
		sched_yield();
	}
	if (atomic_load(&a->leaves) || !wait_item(a, item)) return;
	uint64_t first = partition_first(item, partition), end = partition_first(item, partition + 1);
	if (a->start[partition].item == i) first = a->start[partition].group;
	if (early_ended(o, u, a->step)) early_copy(o, u, first, end);
	else unit_update(o, a->scalars, &item->tile, u, a->step, partition, first, end);
	atomic_store_explicit(&a->at[partition], i + 1, memory_order_release);
	if (atomic_fetch_add(&a->done[i], 1) + 1 == MT_PARTITIONS) publish_ready(a);
}

static void update_items(struct apply *a, struct pool *pool, uint32_t end)
{
	if (atomic_load(&a->leaves) || a->passed >= end) return;
	a->first = a->passed;
	pool_run(pool, (int64_t)(end - a->first) * MT_PARTITIONS, update_partition, a);
}

bool apply(struct optim *o, const struct mt_attempt *at, const struct scalars *scalars)
{
	struct apply a = {
		.o = o,
		.scalars = scalars,
		.step = at->step,
		.q = o->control->tier.tiles ? mt_tier_q(o->run, at->t, 0) : 0,
		.publishing = PTHREAD_MUTEX_INITIALIZER,
	};
	items_make(&a);
	find_passed(&a);
	mt_stage_activity(o->run, MT_ACT_APPLY, a.passed < a.n ? a.items[a.passed].unit : 0);
	for (uint32_t partition = 0; partition < MT_PARTITIONS; partition++) find_start(&a, partition);
	publish_ready(&a); /* a predecessor may have died between the last partition and the publication */
	double from = mt_now();
	uint32_t turns = o->control->geo.ple_dim ? 2 : 1, alone = 0; /* units without which no mt-stream can begin */
	while (alone < a.n && mt_turn_of_unit(&o->control->geo, a.items[alone].unit) < turns) alone++;
	update_items(&a, optim_pool_alone(o), alone);
	update_items(&a, optim_pool(o), a.n);
	mt_count(o->run, MT_OPTIM_update_ns, (uint64_t)((mt_now() - from) * 1e9));
	MT_ASSERT(a.passed == a.n || a.leaves);
	free(a.items);
	free(a.done);
	return !a.leaves;
}
