/* saves.h: the snapshots that mt-step requested: are they saved? */
#ifndef SAVES_H
#define SAVES_H

#include "driver.h"

uint64_t saves_reported(struct mt_run *); /* failures that a predecessor has reported; before the slot is claimed */
void saves_begin(struct driver *, uint64_t reported); /* do not count those */
void saves_watch(struct driver *);                    /* report failures since the last call */
bool saves_taken(struct driver *, uint64_t step);     /* has a snapshot of that step been begun? */
/* Wait until no save is under way. */
void saves_finish(struct driver *);

#endif
