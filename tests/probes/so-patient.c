/* so-patient.so, to be preloaded: waits on the doorbell have no time-out. A stage that sleeps through a publication
 * which it waits for then sleeps for good, where it would have noticed nothing but a delay. */
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/syscall.h>

#pragma GCC diagnostic ignored "-Wpedantic"

typedef long syscall_fn(long, ...);

long syscall(long number, ...)
{
	syscall_fn *real = (syscall_fn *)dlsym(RTLD_NEXT, "syscall");
	va_list ap;
	long a[6];
	va_start(ap, number);
	for (int i = 0; i < 6; i++) a[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_futex && (a[1] == FUTEX_WAIT || a[1] == FUTEX_WAIT_BITSET)) a[3] = 0;
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
