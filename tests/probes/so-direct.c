/* so-direct.so, to be preloaded: what direct I/O does on other file systems and disks.
 *
 *     MT_DIRECT=none    files cannot be opened with O_DIRECT
 *     MT_DIRECT=N       direct writes fail from the Nth on, counted from 0
 *     MT_DIRECT_LOG=F   each direct write adds a line to F
 *     MT_DIRECT_GATE=F  direct writes wait until F exists */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "so.h"

int openat(int dir, const char *name, int flags, ...)
{
	const char *how = getenv("MT_DIRECT");
	va_list ap;

	va_start(ap, flags);
	unsigned mode = flags & O_CREAT ? va_arg(ap, unsigned) : 0;
	va_end(ap);
	if (!(flags & O_DIRECT) || !how || strcmp(how, "none") != 0) return REAL(openat)(dir, name, flags, mode);
	errno = EINVAL;
	return -1;
}

static void note(const char *log)
{
	int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0 || write(fd, "\n", 1) != 1) abort();
	close(fd);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
	static _Atomic long count;
	const char *how = getenv("MT_DIRECT"), *log = getenv("MT_DIRECT_LOG"), *gate = getenv("MT_DIRECT_GATE");

	if (!(fcntl(fd, F_GETFL) & O_DIRECT)) return REAL(pwrite)(fd, data, n, at);
	if (log) note(log);
	while (gate && access(gate, F_OK) < 0) usleep(10000);
	if (!how || atomic_fetch_add(&count, 1) < atol(how)) return REAL(pwrite)(fd, data, n, at);
	errno = EINVAL;
	return -1;
}
