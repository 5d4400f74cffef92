/* progress.h: a progress line on stderr, if that is a terminal. */
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdint.h>

struct metrics;

/* A step, the newest evaluation, and the time that is left to step `until` */
void progress_show(const struct metrics *, uint64_t until);
/* While --count reads: what it has read so far. */
void progress_count(uint64_t documents, uint64_t tokens);
/* While records are scored: how many, at which speed; NaN: the time left is not known */
void progress_score(uint64_t records, double tokens_per_s, double left_s);
/* Call often: draws the line again when the terminal has another width. */
void progress_look(void);
/* Erase the line: call before anything but a message is written to the terminal. mt_before_say */
void progress_clear(void);
/* Keep the line, and end it. */
void progress_end(void);

#endif
