/* snapshot.h: a step that is being saved. */
#ifndef LIBMT_SNAPSHOT_H
#define LIBMT_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "memory.h"

/* clang-format off */

struct mt_run;

static inline uint64_t mt_snap_word(uint64_t step, enum mt_snap s) { return step << 8 | (uint64_t)s; }
static inline uint64_t mt_snap_step(uint64_t word) { return word >> 8; }
static inline enum mt_snap mt_snap_state(uint64_t word) { return (enum mt_snap)(word & 0xff); }
/* Pinned or sealed: the save is neither done nor failed */
static inline bool mt_snap_busy(uint64_t word)
{ return mt_snap_state(word) == MT_PINNED || mt_snap_state(word) == MT_SEALED; }

/* The snapshot word. Acquire. All changes below are compare-and-swaps with release that ring the doorbell, and change
 * nothing once this process has lost its slot. */
uint64_t mt_snap(const struct mt_run *);
/* For mt-optim, when no save is busy: pin every unit at `step` and set the word to pinned, with t and position. A word
 * that speaks of the step already stays. false: this process has lost its slot. */
bool mt_snap_pin(struct mt_run *, uint64_t step, uint64_t t, const struct mt_position *);
bool mt_snap_pinned(const struct mt_run *, uint32_t unit); /* the saver has not copied it: do not write to it */
/* For an optimizer, before it writes to the unit: wait until no snapshot has it pinned (n_units: until no save is busy,
 * so that mt_snap_pin may follow). A snapshot that is pinned and whose saver is dead fails. Looks at mt_stage_over in
 * any case, and returns what that does; also 1 when *stop of mt_run_attach is set and nobody will end the save. */
int mt_snap_wait(struct mt_run *, uint32_t unit);
bool mt_snap_fail_dead(struct mt_run *); /* if what is pinned has no saver: true if this call has failed it */
/* For the saver. No unit has been unpinned since the step was pinned */
bool mt_snap_intact(const struct mt_run *, uint64_t step);
/* The unit has been copied. 75: this process has lost its slot; 69: the snapshot was failed meanwhile; 70 */
int mt_snap_unpin(struct mt_run *, uint32_t unit, uint64_t step);
bool mt_snap_seal(struct mt_run *, uint64_t step);  /* from pinned: all is on disk but for the name */
void mt_snap_save(struct mt_run *, uint64_t step); /* from sealed: the directory has its name; counts it */
/* `word`, pinned or sealed, becomes failed, and is counted. false: the word is another now */
bool mt_snap_fail(struct mt_run *, uint64_t word);
/* Number of failed saves over the run's life, including the one that the word may name. It never decreases. Call this
 * before a new word replaces a failed one. */
uint64_t mt_snap_failures(struct mt_run *);

/* clang-format on */

#endif
