/* txn.c: decisions are state. A txn's word (k, try, phase) changes by compare-and-swap and is the only thing that
 * decides; everything else in the record is written before the word says so. Two records alternate: txn k + 1 is
 * opened only when k is committed and k - 1 is logged. */
#include "lib.h"

struct mt_txn *mt_txn(struct mt_run *run, uint32_t k) { return &run->control->txn[k & 1]; }

uint64_t mt_txn_word(struct mt_run *run, uint32_t k)
{
	/* acquire: who reads a phase also sees what was written for it */
	return atomic_load_explicit(&mt_txn(run, k)->word, memory_order_acquire);
}

uint32_t mt_txn_newest(struct mt_run *run)
{
	uint64_t w[2] = { mt_txn_word(run, 0), mt_txn_word(run, 1) };
	uint32_t k = 0;
	for (int i = 0; i < 2; i++)
		if (mt_word_phase(w[i]) != MT_CLOSED && mt_word_k(w[i]) > k) k = mt_word_k(w[i]);
	return k;
}

uint32_t mt_try_next(struct mt_run *run)
{
	return (uint32_t)(atomic_fetch_add_explicit(&run->control->tries, 1, memory_order_relaxed) + 1) & 0xffffff;
}

bool mt_txn_cas(struct mt_run *run, uint32_t k, uint64_t expect, uint64_t want)
{
	/* release: the fields that the new phase speaks of stand before it */
	bool ok = atomic_compare_exchange_strong_explicit(&mt_txn(run, k)->word, &expect, want, memory_order_acq_rel,
		memory_order_acquire);
	if (ok) mt_wake(run);
	return ok;
}

void mt_run_committed(struct mt_run *run, struct mt_committed *out)
{
	for (;;) {
		uint32_t k = mt_txn_newest(run);
		uint64_t w = mt_txn_word(run, k);
		/* an open txn has decided nothing; the one before it has, and its record stands until k + 1 opens */
		uint32_t d = mt_word_phase(w) == MT_GATHER && k ? k - 1 : k;
		uint64_t dw = mt_txn_word(run, d);
		const struct mt_txn *t = mt_txn(run, d);
		*out = (struct mt_committed){ t->step, t->t, t->position };
		atomic_thread_fence(memory_order_acquire);
		if (mt_txn_newest(run) == k && mt_txn_word(run, k) == w && mt_txn_word(run, d) == dw) return;
	}
}

uint64_t mt_run_step(struct mt_run *run)
{
	struct mt_committed c;
	mt_run_committed(run, &c);
	return c.step;
}

bool mt_run_quiet(struct mt_run *run)
{
	uint32_t k = mt_txn_newest(run);
	enum mt_phase p = mt_word_phase(mt_txn_word(run, k)), before = k ? mt_word_phase(mt_txn_word(run, k - 1)) : MT_LOGGED;
	if (p == MT_APPLY || p == MT_SKIP || before == MT_APPLY || before == MT_SKIP) return false;
	return p != MT_GATHER || !mt_stage_alive(run, MT_STEP);
}

uint64_t mt_version(struct mt_run *run, uint32_t unit)
{
	/* acquire: the weights of that version are there to be read */
	return atomic_load_explicit(&mt_unit(run, unit)->version, memory_order_acquire);
}

void mt_publish(struct mt_run *run, uint32_t unit, uint64_t v)
{
	/* release: every store of the update comes before the version that announces it */
	atomic_store_explicit(&mt_unit(run, unit)->version, v, memory_order_release);
	mt_wake(run);
}

void mt_run_reset(struct mt_run *run, uint64_t step, uint64_t t, const struct mt_position *position)
{
	struct mt_control *c = run->control;
	for (int i = 0; i < 2; i++) memset(&c->txn[i], 0, sizeof c->txn[i]);
	memset(&c->snap, 0, sizeof c->snap);
	memset(&c->record, 0, sizeof c->record);
	memset(mt_lanes(run), 0, MT_LANES * sizeof(struct mt_lane));
	if (run->rings) rings_clear(run->rings, run->rings_map.size);
	run_renew(run);
	for (uint32_t u = 0; u < c->n_units; u++) {
		atomic_store_explicit(&mt_unit(run, u)->pin, 0, memory_order_relaxed);
		atomic_store_explicit(&mt_unit(run, u)->applied, 0, memory_order_relaxed);
		atomic_store_explicit(&mt_unit(run, u)->version, step, memory_order_release);
	}
	struct mt_txn *filled = &c->txn[0];
	filled->kind = MT_TRAIN;
	filled->step = step;
	filled->t = t;
	if (position) filled->position = *position;
	else filled->position.carry = MT_NO_TARGET;
	atomic_store_explicit(&filled->word, mt_word(0, 0, MT_LOGGED), memory_order_release);
	mt_wake(run);
}
