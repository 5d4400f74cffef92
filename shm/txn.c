/* txn.c: decisions are state.
 *
 * Transaction (txn) k is one training step or one evaluation. It has the entry txn[k & 1], whose word (k, attempt,
 * phase) is the only thing that decides. In a filled run these hold:
 *
 *  1. The word changes by compare-and-swap alone, in a process that holds its slot [mt_txn_cas]. What a phase promises
 *     is stored before it (release), so a reader of the phase may read that (acquire) [mt_txn_word].
 *  2. A word that is not closed is in the entry of its k's parity. If both are not closed, they are k and k + 1, and k
 *     is not in accumulate. If one is closed, the other is neither closed nor in accumulate. [mt_run_check]
 *  3. k is committed if and only if its word is in apply, skip, done or logged, or k + 2 has its entry. No later word
 *     takes that back; before it, nothing of k is decided. [mt_txn_commit]
 *  4. k + 1 is opened only when k is committed and k - 1 is logged, whose entry it takes [driver_begin in mt-step].
 *  5. A message belongs to k if and only if its k and attempt are the word's. Opening and aborting take a new attempt
 *     of one counter for all k [mt_attempt_next], which wraps [mt_attempt_order].
 *  6. t, Adam's step count after k, is that of k - 1, plus 1 if k was applied [mt_txn_commit].
 *  7. A unit's version goes from v - 1 to v when all of its weights of step v are stored [mt_publish].
 *
 *     phase        what may be trusted besides the word                     who changes it
 *     closed       nothing: never used, or withdrawn                        mt-step opens it [driver_begin]
 *     accumulate   step to position, as opened; save may still become 1     mt-optim commits [mt_txn_commit], mt-step
 *                  [driver_save_late]; losses are mt-optim's                withdraws [driver_withdraw], a new attempt
 *                                                                           [abort_accumulation, deal]
 *     apply, skip  also losses, t to z, and hyper[step & 1]. A unit is at   mt-optim, or its successor [finish]
 *                  step - 1 or step
 *     done         also every unit is at step; a wanted snapshot is pinned  mt-step [driver_logged]
 *     logged       the same; its line of metrics is written                 mt-step, for k + 2 [driver_begin]
 *
 * An evaluation goes from accumulate to done, since it changes no unit. On other nodes than 0, mt-link alone changes
 * words. */
#include <math.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

struct mt_txn *mt_txn(const struct mt_run *run, uint32_t k) { return &run->control->txn[k & 1]; }

uint64_t mt_txn_word(const struct mt_run *run, uint32_t k)
{
	/* acquire: a reader of a phase also sees what was written for it; releases are in mt_txn_cas */
	return atomic_load_explicit(&mt_txn(run, k)->word, memory_order_acquire);
}

uint32_t mt_txn_newest(const struct mt_run *run)
{
	uint64_t w[2] = {mt_txn_word(run, 0), mt_txn_word(run, 1)};
	uint32_t k = 0;
	for (int i = 0; i < 2; i++)
		/* a word of the other record's parity is damage: mt_run_check says so, and nobody waits for it here */
		if (mt_word_phase(w[i]) != MT_CLOSED && (mt_word_k(w[i]) & 1) == (uint32_t)i && mt_word_k(w[i]) > k)
			k = mt_word_k(w[i]);
	return k;
}

/* Both words as they stood at one moment */
static void words(const struct mt_run *run, uint64_t w[2])
{
	do {
		w[0] = mt_txn_word(run, 0);
		w[1] = mt_txn_word(run, 1);
	} while (mt_txn_word(run, 0) != w[0]);
}

int mt_run_check(const struct mt_run *run)
{
	uint64_t w[2];
	bool ok = true, closed[2];
	words(run, w);
	for (uint32_t i = 0; i < 2; i++) {
		closed[i] = mt_word_phase(w[i]) == MT_CLOSED;
		ok &= mt_word_phase(w[i]) <= MT_LOGGED && (closed[i] || (mt_word_k(w[i]) & 1) == i);
	}
	if (!closed[0] && !closed[1]) {
		uint32_t newer = mt_word_k(w[1]) > mt_word_k(w[0]);
		ok &= mt_word_k(w[newer]) - mt_word_k(w[!newer]) == 1 && mt_word_phase(w[!newer]) != MT_ACCUMULATE;
	}
	/* what is filled has at least the transaction that stands for the filling; an accumulation has one before it */
	for (uint32_t i = 0; i < 2; i++) ok &= !closed[i] || (!closed[!i] && mt_word_phase(w[!i]) != MT_ACCUMULATE);
	if (!ok)
		return mt_fail(MT_EX_DATA, "run '%s': its transaction words are damaged (%016llx, %016llx): load a checkpoint",
			run->name, (unsigned long long)w[0], (unsigned long long)w[1]);
	return choices_check(run);
}

uint32_t mt_attempt_next(struct mt_run *run)
{
	uint32_t n;
	/* 24 bits that wrap, and never 0: no attempt has that number */
	do n = (uint32_t)(atomic_fetch_add_explicit(&run->control->attempts, 1, memory_order_relaxed) + 1) & 0xffffff;
	while (!n);
	return n;
}

bool mt_txn_cas(struct mt_run *run, uint32_t k, uint64_t expect, uint64_t want)
{
	if (!mt_stage_mine(run)) return false;
	/* release: the fields that the new phase speaks of stand before it */
	bool ok = atomic_compare_exchange_strong_explicit(&mt_txn(run, k)->word, &expect, want, memory_order_acq_rel,
		memory_order_acquire);
	/* release: fields that are written for a later txn stay behind this word (mt_run_committed reads it again). On
	 * arm64, acq_rel alone lets them pass it [tests/model/litmus/txn.litmus] */
	atomic_thread_fence(memory_order_release);
	if (ok) mt_wake_on(run, MT_ON_TXN);
	return ok;
}

/* For checkpoints of the step, which may be written when the next but one has its record. */
static void keep_hyper(struct mt_run *run, const struct mt_txn *t)
{
	run->control->hyper[t->step & 1] =
		(struct mt_hyper){.step = t->step, .hyperparams = t->hyperparams, .targets = t->targets, .micros = t->micros};
}

uint64_t mt_txn_commit(struct mt_run *run, uint64_t word, enum mt_phase phase, double norm, double clip_factor)
{
	uint32_t k = mt_word_k(word);
	struct mt_txn *t = mt_txn(run, k);
	if (!mt_stage_mine(run)) return 0;
	t->t = mt_txn(run, k - 1)->t + (phase == MT_APPLY); /* whatever k - 1 was, its record has Adam's step count */
	t->norm = norm;
	t->clip_factor = clip_factor;
	t->skipped = phase == MT_SKIP;
	if (phase != MT_DONE) keep_hyper(run, t);
	/* an abort that came first wins; what was written for nothing is written again by the next attempt */
	uint64_t committed = mt_word(k, mt_word_attempt(word), phase);
	return mt_txn_cas(run, k, word, committed) ? committed : 0;
}

void mt_run_committed(const struct mt_run *run, struct mt_committed *out)
{
	for (;;) {
		uint32_t k = mt_txn_newest(run);
		uint64_t w = mt_txn_word(run, k);
		/* an open txn has decided nothing; the one before it has, and its record stands until k + 1 opens */
		uint32_t d = mt_word_phase(w) == MT_ACCUMULATE && k ? k - 1 : k;
		uint64_t dw = mt_txn_word(run, d);
		const struct mt_txn *t = mt_txn(run, d);
		*out = (struct mt_committed){t->step, t->t, t->position};
		/* acquire: the fields were read before the words are read again; the release is mt_txn_cas, which takes the
		 * entry for a later txn */
		atomic_thread_fence(memory_order_acquire);
		if (mt_txn_newest(run) == k && mt_txn_word(run, k) == w && mt_txn_word(run, d) == dw) return;
	}
}

uint64_t mt_run_step(const struct mt_run *run)
{
	struct mt_committed c;
	mt_run_committed(run, &c);
	return c.step;
}

bool mt_run_quiet(const struct mt_run *run)
{
	for (uint32_t i = 0; i < 2; i++) {
		enum mt_phase p = mt_word_phase(mt_txn_word(run, i));
		if (p == MT_APPLY || p == MT_SKIP || (p == MT_ACCUMULATE && mt_stage_alive(run, MT_STEP))) return false;
	}
	return true;
}

static int check_filled(const struct mt_run *run)
{
	int rc = run_state_error(run, mt_run_state(run));
	if (rc == -MT_EX_PEER) return -MT_EX_DATA; /* no weights: a copy does not wait for them */
	return rc ? rc : mt_run_check(run);
}

uint64_t mt_run_half(const struct mt_run *run)
{
	for (uint32_t u = 0; run->control->grad != MT_NONE && u < run->control->n_units; u++) {
		/* acquire: a copy that was made before this look has nothing of the next step; the release is mt-optim's */
		uint64_t applied = atomic_load_explicit(&mt_unit(run, u)->applied, memory_order_acquire);
		if (applied && applied >> 2 == mt_version(run, u) + 1) return applied >> 2;
	}
	return 0;
}

static int check_half(const struct mt_run *run)
{
	unsigned long long step = mt_run_half(run);
	return step
		? mt_fail(MT_EX_BUSY, "run '%s': step %llu is half done (--update early): let it end, or load a checkpoint",
			  run->name, step)
		: 0;
}

/* The order is what counts. The step is read first: if a step commits later, mt_sample_holds sees another step number.
 * Then every unit's version: all are at the step, so its update has ended. */
int mt_sample_take(const struct mt_run *run, struct mt_sample *s)
{
	s->fills = mt_fills(run);
	int rc = check_filled(run);
	if (rc) return rc;
	if (s->fills % 2) return mt_fail(MT_EX_BUSY, "run '%s' is being filled", run->name);
	mt_run_committed(run, &s->at);
	bool quiet = mt_run_quiet(run);
	for (uint32_t u = 0; u < run->control->n_units; u++) quiet &= mt_version(run, u) == s->at.step;
	if (!quiet) return mt_fail(MT_EX_BUSY, "run '%s': step %llu is open", run->name, (unsigned long long)s->at.step);
	return check_half(run);
}

int mt_sample_holds(const struct mt_run *run, const struct mt_sample *s)
{
	/* acquire: what was copied was read before the words that tell whether it changed; releases: mt_txn_cas, and
	 * mt_fill_begin */
	atomic_thread_fence(memory_order_acquire);
	int rc = check_filled(run);
	if (rc) return rc;
	if (mt_fills(run) != s->fills) return mt_fail(MT_EX_BUSY, "run '%s' was filled meanwhile", run->name);
	if (mt_run_step(run) != s->at.step || !mt_run_quiet(run))
		return mt_fail(MT_EX_BUSY, "run '%s': a step was committed meanwhile", run->name);
	return check_half(run);
}

static double mean_loss(const struct mt_txn *t)
{
	double sum = 0;
	for (uint32_t j = 0; j < t->micros && j < MT_MICROS; j++) sum += t->losses[j].nonfinite ? NAN : t->losses[j].sum;
	return sum / (double)t->targets;
}

void mt_txn_figures(const struct mt_txn *t, struct mt_figures *out)
{
#define COPY(x, field, kind, from, ...) .field = from,
	*out = (struct mt_figures){.step = t->step, MT_FIGURES(COPY, )};
}

uint64_t mt_version(const struct mt_run *run, uint32_t unit)
{
	/* acquire: the weights of that version are there to be read; the release is in mt_publish */
	return atomic_load_explicit(&mt_unit(run, unit)->version, memory_order_acquire);
}

bool mt_publish(struct mt_run *run, uint32_t unit, uint64_t v)
{
	uint64_t before = v - 1;
	/* release: every store of the update comes before the version that announces it. From v - 1 alone: a stage that has
	 * lost its place, and has not seen it yet, must not take back what its successor published. */
	if (!mt_stage_mine(run) ||
		!atomic_compare_exchange_strong_explicit(&mt_unit(run, unit)->version, &before, v, memory_order_acq_rel,
			memory_order_relaxed))
		return false;
	mt_wake_on(run, MT_ON_VERSION);
	return true;
}
