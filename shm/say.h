/* say.h: one line on stderr. Not public. */
#ifndef MT_SAY_H
#define MT_SAY_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mt_geometry;
struct mt_run;

extern const char *mt_program_name; /* "mt" until mt_cli sets it */
/* "program: message" on stderr, one line; control characters and what is no UTF-8 become '?'. The file MT_LOG of the
 * environment, a plain file of this user's, gets the line first. */
void mt_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void mt_vsay(const char *fmt, va_list) __attribute__((format(printf, 1, 0)));
/* Bytes of the UTF-8 character at s (RFC 3629), or if it is not whole, of as much as could begin one, at least 1 */
size_t mt_utf8_part(const char *s, size_t left, bool *whole);
/* Called before each message, if set: who writes a line over and over on a terminal takes it away */
extern void (*mt_before_say)(void);

/* "%u row%s": what a plural has, for n things */
static inline const char *mt_s(uint64_t n) { return n == 1 ? "" : "s"; }

/* If config.json asks for dropout: a warning that training is without it */
void mt_say_dropout(const struct mt_geometry *);
/* Report once which run this process waits for, and which runs exist. */
void mt_say_waits_for_run(const char *run);
/* A wait for the doorbell ended without it, and it stands at `event`. After 10 s of that: names stages that are
 * stopped. */
void mt_waited_in_vain(struct mt_run *, uint32_t event);

#endif
