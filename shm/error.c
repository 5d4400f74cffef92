/* error.c: a message for people, per thread; the library sets it, the program says it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "mt/error.h"

static _Thread_local char message[1024];

int mt_fail(int ex, const char *fmt, ...)
{
	char fresh[sizeof message]; /* an argument may be the message that stands */
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(fresh, sizeof fresh, fmt, ap);
	va_end(ap);
	memcpy(message, fresh, sizeof message);
	return -ex;
}

int mt_fail_in(int rc, const char *fmt, ...)
{
	char inner[sizeof message];
	va_list ap;
	memcpy(inner, message, sizeof inner);
	va_start(ap, fmt);
	int n = vsnprintf(message, sizeof message, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n + 3 < sizeof message) {
		size_t room = sizeof message - (size_t)n - 3, len = strnlen(inner, sizeof inner);
		memcpy(message + n, ": ", 2);
		memcpy(message + n + 2, inner, len < room ? len : room);
		message[(size_t)n + 2 + (len < room ? len : room)] = 0;
	}
	return rc;
}

const char *mt_errmsg(void) { return message; }
