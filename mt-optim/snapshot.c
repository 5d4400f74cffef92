/* snapshot.c: mt-optim's side of a snapshot: pins before done, and no pinned unit overwritten. */
#include <pthread.h>

#include "cli/cli.h"
#include "optim.h"

static uint64_t snap_word(struct optim *o)
{
	/* acquire: with a saver's release, its last reads of a unit come before our writes to it */
	return atomic_load_explicit(&o->control->snap.word, memory_order_acquire);
}

bool fail_dead_saver(struct optim *o)
{
	uint64_t word = snap_word(o);
	if ((word & 0xff) != MT_PINNED || mt_stage_alive(o->run, MT_CKPT)) return false;
	leave_if_lost(o);
	return mt_snap_move(o->run, word >> 8, MT_PINNED, MT_FAILED);
}

static bool pinned(struct optim *o, uint32_t u)
{
	uint64_t pin = atomic_load_explicit(&mt_unit(o->run, u)->pin, memory_order_acquire);
	return pin && snap_word(o) == mt_snap_word(pin, MT_PINNED);
}

/* Threads wait each for the unit of their own partition: one that waits for a later unit must not hold up an earlier
 * one. */
void wait_unpinned(struct optim *o, uint32_t u)
{
	static pthread_mutex_t look = PTHREAD_MUTEX_INITIALIZER; /* whether a stage lives is for one thread to ask */
	if (!pinned(o, u)) return;
	double from = mt_now();
	for (;;) {
		uint32_t seen = mt_event(o->run);
		if (!pinned(o, u)) break;
		mt_stage_activity(o->run, MT_ACT_WAIT_PIN, u);
		pthread_mutex_lock(&look);
		fail_dead_saver(o);
		pthread_mutex_unlock(&look);
		if (!pinned(o, u)) break;
		leave_if_gone(o);
		mt_wait(o->run, seen, 100);
	}
	mt_stage_activity(o->run, MT_ACT_APPLY, u);
	count(o, C_WAIT_NS, (uint64_t)((mt_now() - from) * 1e9));
}

/* Until the snapshot before is saved or failed. A saver that has died sealed a save which its successor alone can
 * judge. */
static bool wait_before(struct optim *o, uint64_t step)
{
	mt_stage_activity(o->run, MT_ACT_WAIT_SAVE, step);
	for (;;) {
		uint32_t seen = mt_event(o->run);
		uint64_t word = snap_word(o);
		if (word >> 8 == step || ((word & 0xff) != MT_PINNED && (word & 0xff) != MT_SEALED)) return true;
		if (fail_dead_saver(o)) continue;
		if (mt_stopping && !mt_stage_alive(o->run, MT_CKPT)) return false;
		leave_if_gone(o);
		mt_wait(o->run, seen, 100);
	}
}

/* Only a wake-up: the word is what counts, so a full ring loses nothing. */
static void send_save(struct optim *o, uint32_t k, uint64_t step)
{
	if (!mt_ring_reserve(o->save)) return;
	mt_ring_push(o->save,
		&(struct mt_msg){.k = k,
			.attempt = mt_word_attempt(mt_txn_word(o->run, k)),
			.kind = MT_MSG_SAVE,
			.txn_kind = MT_TRAIN,
			.step = step});
}

/* By compare-and-swap, and only from an earlier step: a successor's pin stays */
static void pin(struct optim *o, uint32_t u, uint64_t step)
{
	uint64_t before = atomic_load_explicit(&mt_unit(o->run, u)->pin, memory_order_relaxed);
	leave_if_lost(o);
	if (before > step) return;
	atomic_compare_exchange_strong_explicit(&mt_unit(o->run, u)->pin, &before, step, memory_order_release,
		memory_order_relaxed);
}

bool snapshot(struct optim *o, uint32_t k, const struct opened *op)
{
	if (!wait_before(o, op->step)) return false;
	struct mt_snapshot *snap = &o->control->snap;
	const struct mt_txn *t = mt_txn(o->run, k);
	uint64_t word = snap_word(o);
	if (word >> 8 != op->step || (word & 0xff) == MT_SNAP_NONE) {
		leave_if_lost(o);
		mt_snap_failures(o->run); /* the word that goes may be a failure that nobody has counted yet */
		snap->position = t->position;
		snap->t = t->t;
		for (uint32_t u = 0; u < o->n_units; u++) pin(o, u, op->step);
		/* release: record and pins are whole before the word makes them count; only mt-optim leaves saved and failed,
		 * and if another has meanwhile, this one has lost its slot */
		leave_if_lost(o);
		if (!atomic_compare_exchange_strong_explicit(&snap->word, &word, mt_snap_word(op->step, MT_PINNED),
				memory_order_release, memory_order_relaxed))
			leave_if_lost(o);
		mt_wake(o->run);
	}
	send_save(o, k, op->step);
	fail_dead_saver(o);
	return true;
}
