/* snapshot.c: the snapshot's word (step, state): which step mt-ckpt is to save, and how far the save is.
 * In a filled run:
 *
 *  1. The word changes by compare-and-swap alone, in a process that holds its slot [word_cas].
 *  2. A unit is pinned if and only if its pin is s, not 0, and the word is (s, pinned) [mt_snap_pinned]. So failing a
 *     snapshot releases all of its units at once.
 *  3. When the word becomes (s, pinned), every unit's pin is s [mt_snap_pin]. It becomes 0 when mt-ckpt has copied the
 *     unit [mt_snap_unpin]. So if all pins are s, nothing has been overwritten since [mt_snap_intact].
 *  4. The word (s, failed) has been counted if and only if the high bits of `failed` are s + 1 [mt_snap_failures].
 *     mt-optim counts it before it writes the next word [mt_snap_pin].
 *
 *     state    what may be trusted                                    who changes it
 *     none     nothing: no save since the run was filled              mt-optim [mt_snap_pin]
 *     pinned   t and position are the step's, so are pinned units     mt-ckpt: sealed [mt_snap_seal]; failed
 *                                                                     [mt_snap_fail], mt-optim too if mt-ckpt is dead
 *     sealed   all files are written and synced; the directory may    mt-ckpt or its successor: saved [mt_snap_save],
 *              have its name already                                  failed [mt_snap_fail]
 *     saved    the checkpoint has its name                            mt-optim, for a later step [mt_snap_pin]
 *     failed   nothing: the step counts as not saved                  the same
 *
 * On other nodes than 0, "saved" and "failed" come from node 0 by mt-link, which ends the save there. */
#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/wait.h"

uint64_t mt_snap(const struct mt_run *run)
{
	/* acquire: what the word speaks of; for mt-optim: the saver's reads of a unit come before our writes to it. The
	 * releases are in word_cas */
	return atomic_load_explicit(&run->control->snap.word, memory_order_acquire);
}

static bool word_cas(struct mt_run *run, uint64_t expect, uint64_t want)
{
	/* release: a reader that sees the new word sees what was written for it */
	if (!mt_stage_mine(run) ||
		!atomic_compare_exchange_strong_explicit(&run->control->snap.word, &expect, want, memory_order_acq_rel,
			memory_order_acquire))
		return false;
	mt_wake_on(run, MT_ON_SNAP);
	return true;
}

bool mt_snap_pin(struct mt_run *run, uint64_t step, uint64_t t, const struct mt_position *position)
{
	struct mt_snapshot *snap = &run->control->snap;
	uint64_t word = mt_snap(run);
	if (mt_snap_step(word) == step && mt_snap_state(word) != MT_SNAP_NONE) return true;
	if (!mt_stage_mine(run)) return false;
	mt_snap_failures(run); /* the word that goes may be a failure that nobody has counted yet */
	snap->position = *position;
	snap->t = t;
	for (uint32_t u = 0; u < run->control->n_units; u++)
		atomic_store_explicit(&mt_unit(run, u)->pin, step, memory_order_relaxed); /* the word's release is theirs */
	return word_cas(run, word, mt_snap_word(step, MT_PINNED));
}

bool mt_snap_pinned(const struct mt_run *run, uint32_t unit)
{
	/* acquire: the saver has read the unit before we write to it; the release is in mt_snap_unpin */
	uint64_t pin = atomic_load_explicit(&mt_unit(run, unit)->pin, memory_order_acquire);
	return pin && mt_snap(run) == mt_snap_word(pin, MT_PINNED);
}

/* May another step be pinned? Of several nodes, the others must have heard how the save before ended. */
static bool over(const struct mt_run *run, uint64_t word)
{
	bool tells = mt_nodes(run) > 1 && !mt_node(run);
	return !mt_snap_busy(word) &&
		(!tells || atomic_load_explicit(&run->control->nodes.snap[0], memory_order_acquire) == word);
}

int mt_snap_wait(struct mt_run *run, uint32_t unit)
{
	for (;;) {
		uint32_t seen = mt_event(run);
		uint64_t word = mt_snap(run);
		int rc = mt_stage_over(run);
		if (rc || (unit < run->control->n_units ? !mt_snap_pinned(run, unit) : over(run, word))) return rc;
		/* what is sealed is whole: its saver's successor judges it */
		if (mt_snap_fail_dead(run)) continue;
		if (unit >= run->control->n_units && run->stop && *run->stop && !mt_stage_alive(run, MT_CKPT)) return 1;
		mt_wait_on(run, seen, 100, MT_ON_SNAP | MT_ON_PIN);
	}
}

bool mt_snap_fail_dead(struct mt_run *run)
{
	uint64_t word = mt_snap(run);
	return mt_snap_state(word) == MT_PINNED && !mt_stage_alive(run, MT_CKPT) && mt_snap_fail(run, word);
}

bool mt_snap_intact(const struct mt_run *run, uint64_t step)
{
	for (uint32_t u = 0; u < run->control->n_units; u++)
		if (atomic_load_explicit(&mt_unit(run, u)->pin, memory_order_acquire) != step) return false;
	return true;
}

int mt_snap_unpin(struct mt_run *run, uint32_t unit, uint64_t step)
{
	uint64_t pin = step;
	int rc = mt_stage_check(run);
	if (rc) return rc;
	/* only while the word stands was the unit the saver's; release: it was read before mt-optim may overwrite it */
	if (mt_snap(run) != mt_snap_word(step, MT_PINNED)) rc = mt_fail(MT_EX_PEER, "the snapshot was given up");
	else if (!atomic_compare_exchange_strong_explicit(&mt_unit(run, unit)->pin, &pin, 0, memory_order_acq_rel,
				 memory_order_relaxed))
		rc = mt_fail(MT_EX_BUG, "unit %u has lost its pin", unit);
	mt_wake_on(run, MT_ON_PIN);
	return rc;
}

bool mt_snap_seal(struct mt_run *run, uint64_t step)
{
	return word_cas(run, mt_snap_word(step, MT_PINNED), mt_snap_word(step, MT_SEALED));
}

void mt_snap_save(struct mt_run *run, uint64_t step)
{
	if (!mt_stage_mine(run)) return; /* its successor finds the save sealed, and counts it */
	atomic_fetch_add_explicit(&run->control->snap.saved, 1, memory_order_relaxed);
	word_cas(run, mt_snap_word(step, MT_SEALED), mt_snap_word(step, MT_SAVED));
}

bool mt_snap_fail(struct mt_run *run, uint64_t word)
{
	if (!word_cas(run, word, mt_snap_word(mt_snap_step(word), MT_FAILED))) return false;
	mt_snap_failures(run); /* counts it now; if this process dies before, another one will */
	return true;
}

/* The count follows the word: the next process that sees the word counts, under the failure's step. So nobody sees one
 * without the other, a death between them loses nothing, and nothing is counted twice. */
uint64_t mt_snap_failures(struct mt_run *run)
{
	enum { COUNT_BITS = 24 };
	const uint64_t count = ((uint64_t)1 << COUNT_BITS) - 1;
	struct mt_snapshot *snap = &run->control->snap;
	for (;;) {
		uint64_t failed = atomic_load_explicit(&snap->failed, memory_order_acquire), word = mt_snap(run);
		/* step + 1: a step of 0 is one too, and none has been counted yet */
		uint64_t counted = (mt_snap_step(word) + 1) << COUNT_BITS | ((failed + 1) & count);
		if (mt_snap_state(word) != MT_FAILED || failed >> COUNT_BITS == counted >> COUNT_BITS) return failed & count;
		if (run->flags & MT_RUN_READONLY) return counted & count;
		if (atomic_compare_exchange_strong_explicit(&snap->failed, &failed, counted, memory_order_acq_rel,
				memory_order_acquire))
			return counted & count;
	}
}
