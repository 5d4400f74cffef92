/* partitions.c: the update of a whole model by threads that take partitions.
 *
 * Partition p of MT_PARTITIONS has groups [p G / 64, (p + 1) G / 64) of the G that this node owns of each unit.
 * However many threads there are, a partition goes through the units by turns (mt_unit_of_turn: the order in which the
 * next forward pass needs them), so that its one index word says all that it has done: a partition that stands in a
 * unit has finished its part of those whose turns come before. Partitions are taken unit by unit; a unit's version is
 * published when all partitions have finished it, by turns.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/txn.h"
#include "optim.h"

struct apply {
	struct optim *o;
	const struct scalars *scalars;
	uint64_t step;
	uint32_t first; /* turn of task 0 */
	struct {
		uint32_t turn;
		uint64_t group;
	} start[MT_PARTITIONS];             /* where a predecessor left the partition */
	_Atomic uint32_t at[MT_PARTITIONS]; /* turn that the partition does next */
	_Atomic uint32_t *done;             /* (turns): partitions finished */
	pthread_mutex_t publishing;
	uint32_t published; /* units of turns 0..published - 1 are at the step */
};

static uint32_t unit_of(const struct optim *o, uint32_t turn) { return mt_unit_of_turn(&o->control->geo, turn); }

static uint64_t partition_first(const struct unit *unit, uint32_t partition)
{
	return unit->first_group + (unit->end_group - unit->first_group) * partition / MT_PARTITIONS;
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

/* The partition's index names this step only when a predecessor died in it. */
static void find_start(struct apply *a, uint32_t partition)
{
	struct optim *o = a->o;
	uint64_t index = atomic_load_explicit(&o->partitions[partition].index, memory_order_acquire);
	uint32_t turn = a->published;
	/* (what was updated before the commit has left its last word there) */
	if (partition_in_step(index, a->step) && !early_ended(o, partition_unit(index), a->step)) {
		uint32_t stands = mt_turn_of_unit(&o->control->geo, partition_unit(index));
		if (stands > turn) turn = stands;
	}
	if (turn >= o->n_units) turn = o->n_units;
	a->start[partition].turn = turn;
	if (turn < o->n_units) {
		uint32_t u = unit_of(o, turn);
		uint64_t first = partition_first(&o->units[u], partition), end = partition_first(&o->units[u], partition + 1);
		a->start[partition].group = first;
		if (!early_ended(o, u, a->step))
			a->start[partition].group = partition_resume(o, &o->units[u].tile, u, a->step, partition, first, end);
	}
	atomic_init(&a->at[partition], turn);
	for (uint32_t done = a->published; done < turn; done++) atomic_fetch_add(&a->done[done], 1);
}

void not_published(struct optim *o, uint32_t u, uint64_t step)
{
	leave_if_lost(o);
	mt_die(MT_EX_BUG, "unit %u: another stage published version %llu, expected %llu", u,
		(unsigned long long)mt_version(o->run, u), (unsigned long long)step);
}

static void publish_ready(struct apply *a)
{
	struct optim *o = a->o;
	pthread_mutex_lock(&a->publishing);
	while (a->published < o->n_units && atomic_load(&a->done[a->published]) == MT_PARTITIONS) {
		uint32_t u = unit_of(o, a->published);
		if (o->nodes > 1) nodes_updated(o, u, a->step);
		else if (!mt_publish(o->run, u, a->step)) not_published(o, u, a->step);
		a->published++;
		mt_stage_activity(o->run, MT_ACT_APPLY, a->published < o->n_units ? unit_of(o, a->published) : u);
		count(o, C_UPDATES, 1);
	}
	pthread_mutex_unlock(&a->publishing);
}

/* Task t: partition t mod 64 of the unit whose turn is first + t / 64 */
static void update_partition(void *arg, int64_t task, int thread)
{
	struct apply *a = arg;
	struct optim *o = a->o;
	uint32_t turn = a->first + (uint32_t)(task / MT_PARTITIONS), partition = (uint32_t)(task % MT_PARTITIONS);
	uint32_t u = unit_of(o, turn);
	(void)thread;
	if (a->start[partition].turn > turn) return; /* a predecessor's work, counted in find_start */
	/* Acquire: whichever thread had the partition in the unit before, its index and journal come first. */
	while (atomic_load_explicit(&a->at[partition], memory_order_acquire) != turn) sched_yield();
	wait_unpinned(o, u);
	uint64_t first = partition_first(&o->units[u], partition), end = partition_first(&o->units[u], partition + 1);
	if (a->start[partition].turn == turn) first = a->start[partition].group;
	if (early_ended(o, u, a->step)) early_copy(o, u, first, end);
	else unit_update(o, a->scalars, &o->units[u].tile, u, a->step, partition, first, end);
	atomic_store_explicit(&a->at[partition], turn + 1, memory_order_release);
	if (atomic_fetch_add(&a->done[turn], 1) + 1 == MT_PARTITIONS) publish_ready(a);
}

static void update_units(struct apply *a, struct pool *pool, uint32_t first, uint32_t end)
{
	a->first = first;
	pool_run(pool, (int64_t)(end - first) * MT_PARTITIONS, update_partition, a);
}

void apply(struct optim *o, const struct opened *op, const struct scalars *scalars)
{
	struct apply a = {
		.o = o,
		.scalars = scalars,
		.step = op->step,
		.publishing = PTHREAD_MUTEX_INITIALIZER,
		.done = calloc(o->n_units, sizeof *a.done),
	};
	if (!a.done) mt_die(MT_EX_NOMEM, "no memory for the partitions of %u units", o->n_units);
	while (a.published < o->n_units && nodes_at(o, unit_of(o, a.published)) == op->step) a.published++;
	mt_stage_activity(o->run, MT_ACT_APPLY, a.published < o->n_units ? unit_of(o, a.published) : 0);
	for (uint32_t partition = 0; partition < MT_PARTITIONS; partition++) find_start(&a, partition);
	publish_ready(&a); /* a predecessor may have died between the last partition and the publication */
	double from = mt_now();
	uint32_t alone = o->control->geo.ple_dim ? 2 : 1; /* units without which no mt-stream can begin */
	if (a.published < alone) update_units(&a, optim_pool_alone(o), a.published, alone);
	update_units(&a, optim_pool(o), a.published, o->n_units);
	count(o, C_UPDATE_NS, (uint64_t)((mt_now() - from) * 1e9));
	MT_ASSERT(a.published == o->n_units);
	free(a.done);
}
