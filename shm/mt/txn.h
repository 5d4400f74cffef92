/* txn.h: transactions, versions of units, and what is committed. */
#ifndef LIBMT_TXN_H
#define LIBMT_TXN_H

#include <stdbool.h>
#include <stdint.h>

#include "memory.h"

/* clang-format off */

struct mt_run;
struct mt_txn;
struct mt_figures;

static inline uint64_t mt_word(uint32_t k, uint32_t attempt, enum mt_phase phase)
{ return (uint64_t)k << 32 | (uint64_t)(attempt & 0xffffff) << 8 | (uint64_t)phase; }
static inline uint32_t mt_word_k(uint64_t w) { return (uint32_t)(w >> 32); }
static inline uint32_t mt_word_attempt(uint64_t w) { return (uint32_t)(w >> 8) & 0xffffff; }
/* Attempts are 24 bits that wrap. Below 0: a is older than b, 0: the same, above: newer */
static inline int mt_attempt_order(uint32_t a, uint32_t b)
{
	uint32_t ahead = (a - b) & 0xffffff;
	return ahead == 0 ? 0 : ahead < 0x800000 ? 1 : -1;
}
static inline enum mt_phase mt_word_phase(uint64_t w) { return (enum mt_phase)(w & 0xff); }

/* The word in txn k's entry. Acquire. An entry whose phase is closed holds no txn: it was never used, or mt-step
 * withdrew what it had in accumulate; its k may be opened again under a new attempt. */
uint64_t mt_txn_word(const struct mt_run *, uint32_t k);
/* The largest k that is not closed; 0 stands for the state that was filled. */
uint32_t mt_txn_newest(const struct mt_run *);
struct mt_txn *mt_txn(const struct mt_run *, uint32_t k); /* the entry that k uses, of two */
/* a new attempt, 1 to 2^24 - 1; they wrap: compare by difference */
uint32_t mt_attempt_next(struct mt_run *);
#define MT_TXN_LAST 0xfffeffffu                     /* k ends here: 32 bits do not wrap. A load begins with 0 again */
/* Compare-and-swap of txn k's word, release on success, doorbell rung. false: somebody else changed it, or this process
 * has lost its slot: a loop that tries again looks at mt_stage_mine. */
bool mt_txn_cas(struct mt_run *, uint32_t k, uint64_t expect, uint64_t want);
/* For mt-optim, and an optimizer of your own. All of the attempt in `word` has come, and the txn's losses are written:
 * write the rest of the outcome (t, norm, clip_factor, skipped; in training also the step's hyper), and then change the
 * word to `phase`: MT_DONE for an evaluation, MT_APPLY or MT_SKIP in training. norm: of the gradient before clipping,
 * NaN: not taken; clip_factor: 1 without clipping. Returns the new word; 0: the attempt is over, or this process has
 * lost its slot. */
uint64_t mt_txn_commit(struct mt_run *, uint64_t word, enum mt_phase phase, double norm, double clip_factor);
struct mt_committed { uint64_t step, t; struct mt_position position; };
/* What is decided: the newest committed step, Adam's t and the input's position after it. The store holds it once no
 * txn is in apply or skip. */
void mt_run_committed(const struct mt_run *, struct mt_committed *);
uint64_t mt_run_step(const struct mt_run *); /* its step alone */
/* Nothing is open: no txn in apply or skip, and none in accumulate unless mt-step is gone. */
bool mt_run_quiet(const struct mt_run *);

/* The next step, if lo, m and v of units are its already, and it is not committed (mt-optim --update early); 0: none */
uint64_t mt_run_half(const struct mt_run *);

/* For a copy of the units without a slot: take the sample, copy, check that it still holds. Then no step was applied
 * and nothing was filled from before the first byte to after the last one. */
struct mt_sample { uint64_t fills; struct mt_committed at; };
/* 75: a step is open, or the run is being filled; 65: it holds no weights, or half a step; 66: it was removed. */
int mt_sample_take(const struct mt_run *, struct mt_sample *);
/* 75: a step was taken, or the run was filled, since; 65, 66 as above. */
int mt_sample_holds(const struct mt_run *, const struct mt_sample *);

/* The values of the metrics line of a committed training txn. They stand until the txn is logged. */
void mt_txn_figures(const struct mt_txn *, struct mt_figures *);

uint64_t mt_version(const struct mt_run *, uint32_t unit); /* acquire */
/* Version v - 1 becomes v, by compare-and-swap with release; doorbell. false: it was another, or this process has lost
 * its slot: nothing changed. */
bool mt_publish(struct mt_run *, uint32_t unit, uint64_t v);
/* For a filled run. 65: the transaction words, or the table of choices, are damaged: no order of stores leaves them. */
int mt_run_check(const struct mt_run *);

/* clang-format on */

#endif
