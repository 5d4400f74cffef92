/* error.h: exit codes, and the message of an error. */
#ifndef LIBMT_ERROR_H
#define LIBMT_ERROR_H

/* clang-format off */

enum {                          /* sysexits.h where it has the meaning; contract for scripts */
	MT_EX_USAGE = 64, MT_EX_DATA = 65, MT_EX_NOINPUT = 66, MT_EX_PEER = 69, MT_EX_BUG = 70, MT_EX_NOMEM = 71,
	MT_EX_EXISTS = 73, MT_EX_IO = 74, MT_EX_BUSY = 75, MT_EX_ABI = 76, MT_EX_NOTYOURS = 77, MT_EX_CONFIG = 78,
};

/* Set this thread's message and return -ex. The message is one line in lower case, no full stop, no program name. */
int mt_fail(int ex, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Put "where: " in front of the message that stands, return rc unchanged: errors gain context on their way up. */
int mt_fail_in(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *mt_errmsg(void);

/* clang-format on */

#endif
