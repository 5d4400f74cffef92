/* train.h: the loop over steps. */
#ifndef TRAIN_H
#define TRAIN_H

#include "driver.h"
#include "eval.h"

/* What a predecessor left: an open accumulation is withdrawn, an update that has begun is waited for, a step whose line
 * was
 * not written gets it. eval may be NULL. Nothing is open afterwards. */
void train_resume(struct driver *, struct eval *);
/* Has the run made steps, and skipped all of them? Then said, and the exit code is 65, else 0. */
int train_nothing(struct driver *);
/* Train from the run's step on. Returns the program's exit code; 0 also after a signal (mt_stopping). */
int train(struct driver *, struct eval *, int input);

#endif
