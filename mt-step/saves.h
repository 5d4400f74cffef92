/* saves.h: what becomes of the snapshots that mt-step asked for. */
#ifndef SAVES_H
#define SAVES_H

#include "driver.h"

uint64_t saves_told(struct mt_run *);             /* failures that a predecessor has told; before the slot is claimed */
void saves_begin(struct driver *, uint64_t told); /* those are not ours */
void saves_watch(struct driver *);                /* say what failed since the last look */
bool saves_taken(struct driver *, uint64_t step); /* has a snapshot of that step been begun? */
/* Wait until no save is under way. */
void saves_settle(struct driver *);

#endif
