/* progress.h: a progress line on stderr, if that is a terminal. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdint.h>

void progress_show(uint64_t step, uint64_t until, double loss, double tokens_per_s, double time_s);
/* While --count reads: what it has read so far. */
void progress_count(uint64_t documents, uint64_t tokens);
/* Erase the line: call before anything else is written to stderr. */
void progress_clear(void);
/* Keep the line, and end it. */
void progress_end(void);

#endif
