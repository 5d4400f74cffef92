/* progress.h: one line on stderr that is written over, where stderr is a terminal. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdint.h>

void progress_show(uint64_t step, uint64_t until, double loss, double tokens_per_s, double time_s);
/* Call before anything else is said on stderr. */
void progress_clear(void);
/* The last line stays. */
void progress_end(void);

#endif
