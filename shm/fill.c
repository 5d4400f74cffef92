/* fill.c: filling a run with weights, by init or load: its begin and end, what a filled run starts with, and what a run
 * that is not filled says. */
#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

int run_state_error(const struct mt_run *run, enum mt_state state)
{
	switch (state) {
	case MT_FILLED: return 0;
	case MT_FILLING: return mt_fail(MT_EX_BUSY, "run '%s' is being filled", run->name);
	case MT_GONE: return mt_fail(MT_EX_NOINPUT, "run '%s' was removed", run->name);
	case MT_EMPTY: break;
	case MT_DIRTY:
		if (run->other_boot)
			return mt_fail(MT_EX_DATA,
				"run '%s' was made before the machine was started and may have lost part of its memory: "
				"mt-ckpt load, or mt-store rm",
				run->name);
		return mt_fail(MT_EX_DATA, "run '%s': its store is dirty (an update was cut short): mt-ckpt load a checkpoint",
			run->name);
	}
	return mt_fail(MT_EX_PEER, "run '%s' has no weights: mt-store init or mt-ckpt load", run->name);
}

int mt_run_dirty(const struct mt_run *run)
{
	return mt_run_state(run) == MT_DIRTY ? run_state_error(run, MT_DIRTY) : 0;
}

int mt_run_has_state(const struct mt_run *run)
{
	if (run->control->state != MT_NONE) return 0;
	return mt_fail(MT_EX_CONFIG,
		"run '%s' has weights alone, for scores and samples: create the run without --state none", run->name);
}

int mt_run_idle(const struct mt_run *run)
{
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (slot != MT_STORE && slot != MT_FILL && stage_outlives(run, slot))
			return mt_fail(MT_EX_BUSY, "run '%s': %s is at work (pid %d)", run->name, mt_stage_name(slot),
				mt_stage_pid(run, slot));
	return 0;
}

int mt_fill_claim(struct mt_run *run)
{
	int rc = mt_stage_claim(run, MT_FILL, NULL);
	if (!rc) rc = mt_run_idle(run);
	if (rc) return rc;
	enum mt_state before = mt_run_state(run);
	mt_fill_begin(run);
	if ((rc = mt_run_idle(run))) mt_fill_end(run, before); /* a stage came between the look and the state */
	return rc || mt_run_state(run) != MT_GONE ? rc : run_state_error(run, MT_GONE);
}

/* The count is odd only while the state is filling, whenever a filler dies: to savers, a filled run with an odd count
 * would be one that is still being filled. */
void mt_fill_begin(struct mt_run *run)
{
	_Atomic uint64_t *fills = &run->control->fills;
	uint64_t n = atomic_load_explicit(fills, memory_order_relaxed);
	mt_run_set_state(run, MT_FILLING);
	atomic_store_explicit(fills, n + (n % 2 ? 2 : 1), memory_order_release); /* odd: a filler died over it */
	/* release: a reader of a byte of this filling then finds the count of this filling. And a stage that claims its
	 * slot meanwhile is seen by mt_run_idle, or sees that the run is being filled: both sides change `event` between
	 * their store and their load, and the second to change it sees what the first has stored, on arm64, too
	 * [tests/model/litmus/fill.litmus] */
	atomic_thread_fence(memory_order_seq_cst);
}

void mt_fill_end(struct mt_run *run, enum mt_state s)
{
	/* release: a copy that begins after this count has read all of the filling */
	if (s != MT_FILLING) atomic_fetch_add_explicit(&run->control->fills, 1, memory_order_release);
	mt_run_set_state(run, s);
}

uint64_t mt_fills(const struct mt_run *run) { return atomic_load_explicit(&run->control->fills, memory_order_acquire); }

void mt_run_reset(struct mt_run *run, uint64_t step, uint64_t t, const struct mt_position *position)
{
	struct mt_control *c = run->control;
	for (int i = 0; i < 2; i++) memset(&c->txn[i], 0, sizeof c->txn[i]);
	memset(&c->snap, 0, sizeof c->snap);
	memset(&c->record, 0, sizeof c->record);
	memset(c->unlogged, 0, sizeof c->unlogged);
	memset(c->hyper, 0, sizeof c->hyper);
	memset(mt_partitions(run), 0, MT_PARTITIONS * sizeof(struct mt_partition));
	for (int node = 0; node < MT_NODES; node++) {
		atomic_store_explicit(&c->nodes.done[node], 0, memory_order_relaxed);
		atomic_store_explicit(&c->nodes.snap[node], 0, memory_order_relaxed);
	}
	atomic_store_explicit(&c->nodes.proposed, 0, memory_order_relaxed);
	if (run->rings) rings_clear(run->rings, run->rings_map.size);
	run_renew(run);
	for (uint32_t u = 0; u < c->n_units; u++) {
		atomic_store_explicit(&mt_unit(run, u)->pin, 0, memory_order_relaxed);
		atomic_store_explicit(&mt_unit(run, u)->applied, 0, memory_order_relaxed);
		atomic_store_explicit(&mt_unit(run, u)->updated, step, memory_order_relaxed);
		atomic_store_explicit(&mt_unit(run, u)->version, step, memory_order_release);
	}
	c->tier.t0 = t;
	memcpy(c->tier.from, c->h.run_id, sizeof c->tier.from);
	atomic_store_explicit(&c->tier.written, 0, memory_order_relaxed);
	atomic_store_explicit(&c->tier.updated, 0, memory_order_relaxed);
	atomic_store_explicit(&c->tier.loaded, 0, memory_order_relaxed);
	struct mt_txn *filled = &c->txn[0];
	filled->kind = MT_TRAIN;
	filled->step = step;
	filled->t = t;
	if (position) filled->position = *position;
	else filled->position.carry = MT_NO_TARGET;
	/* Its attempt is the newest: messages are compared with it until the first step, whose messages are newer. */
	uint32_t attempt = (uint32_t)atomic_load_explicit(&c->attempts, memory_order_relaxed) & 0xffffff;
	atomic_store_explicit(&filled->word, mt_word(0, attempt, MT_LOGGED), memory_order_release);
	mt_wake(run);
}
