/* so-patient.so, to be preloaded: waits on the doorbell have no time-out. A stage that sleeps through a publication
 * which it waits for then sleeps for good, where it would have noticed nothing but a delay. */
#include <linux/futex.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>

#include "so.h"

long syscall(long number, ...)
{
	va_list ap;
	long a[6];
	va_start(ap, number);
	for (int i = 0; i < 6; i++) a[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_futex && (a[1] == FUTEX_WAIT || a[1] == FUTEX_WAIT_BITSET)) a[3] = 0;
	return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
