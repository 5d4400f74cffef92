/* messages.c: messages that end a program. */
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"
#include "mt/error.h"

void mt_die(int ex, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	mt_vsay(fmt, ap);
	va_end(ap);
	exit(ex);
}

int mt_must(int rc)
{
	if (rc < 0) mt_die(-rc, "%s", mt_errmsg());
	return rc;
}

void mt_bug(const char *file, int line, const char *what)
{
	mt_say("bug at %s:%d: %s does not hold", file, line, what);
	_exit(MT_EX_BUG);
}
