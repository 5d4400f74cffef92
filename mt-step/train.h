/* train.h: the loop over steps. */
#ifndef TRAIN_H
#define TRAIN_H

#include "driver.h"
#include "eval.h"

/* Finish what a predecessor left: withdraw an open accumulation, wait for an update that has begun, write the line of a
 * step that has none. eval may be NULL. Nothing is open afterwards. */
void train_resume(struct driver *, struct eval *);
/* Has the run made steps, and skipped all of them? Then 65, and a message; otherwise 0. */
int train_nothing(struct driver *);
/* Train from the run's step on. Returns the program's exit code; 0 also after a signal (mt_stopping). */
int train(struct driver *, struct eval *, int input);

#endif
