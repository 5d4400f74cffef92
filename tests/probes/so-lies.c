/* so-lies.so, to be preloaded: gives a program wrong answers about which stages are alive.
 *
 *     MT_LIE_LOCK=SLOT    that slot's byte looks unlocked, and locking it seems to succeed. The lock is really taken
 *                         when its holder releases it, so that all others see this process alive from then on
 *     MT_LIE_PROC=ERRNO   opening /proc/PID/... of other processes fails
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "so.h"

static long env_number(const char *name)
{
	const char *s = getenv(name);
	return s && *s ? strtol(s, NULL, 10) : -1;
}

/* ---- locks */

struct wish {
	int fd;
	struct flock lock;
};

static void *wait_for_lock(void *arg)
{
	struct wish *w = arg;
	while (REAL(fcntl)(w->fd, F_OFD_SETLKW, &w->lock) && errno == EINTR) {}
	free(w);
	return NULL;
}

static int lie(int fd, int cmd, struct flock *l)
{
	pthread_t thread;
	if (cmd == F_OFD_GETLK) {
		l->l_type = F_UNLCK;
		return 0;
	}
	if (!REAL(fcntl)(fd, cmd, l) || l->l_type == F_UNLCK) return 0;
	struct wish *w = malloc(sizeof *w);
	if (!w) return -1;
	*w = (struct wish){fd, *l};
	if (!pthread_create(&thread, NULL, wait_for_lock, w)) pthread_detach(thread);
	return 0;
}

int fcntl(int fd, int cmd, ...)
{
	va_list ap;
	va_start(ap, cmd);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	struct flock *l = arg;
	if ((cmd == F_OFD_SETLK || cmd == F_OFD_GETLK) && l->l_start == env_number("MT_LIE_LOCK")) return lie(fd, cmd, l);
	return REAL(fcntl)(fd, cmd, arg);
}
int fcntl64(int fd, int cmd, ...) __attribute__((alias("fcntl")));

/* ---- /proc */

static int refused(const char *path)
{
	int err = (int)env_number("MT_LIE_PROC"), pid = strncmp(path, "/proc/", 6) ? 0 : atoi(path + 6);
	if (err <= 0 || !pid || pid == getpid()) return 0;
	errno = err;
	return 1;
}

int open(const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	int mode = va_arg(ap, int);
	va_end(ap);
	return refused(path) ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) __attribute__((alias("open")));

FILE *fopen(const char *path, const char *mode) { return refused(path) ? NULL : REAL(fopen)(path, mode); }
FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));
