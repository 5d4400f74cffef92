/* preload.c: an LD_PRELOAD library that makes one system call or allocation of a program fail, kills the program there,
 * or records its changes of files.
 *
 *     MT_FAULT=KIND:N     the Nth call of that kind fails, once
 *     MT_FAULT=KIND:N+    the Nth call and every later one fail
 *     MT_FAULT=KIND:N!    SIGKILL kills the program before the Nth call
 *     MT_FAULT_ERRNO=E    calls fail with this errno, not with that of their kind
 *     MT_FAULT_COUNT=FILE at exit: a line "KIND CALLS" for each kind
 * MT_FAULT_RECORD=FILE every change of a file or directory below MT_FAULT_UNDER, in order (tests/fault/powercut.py)
 *
 * KIND is one of the names in `kinds`, or "any": all of them counted together; or "pread" or "pwrite", these calls
 * alone; or "short": such a call moves 512 bytes at most. Counting begins at main, because
 * constructors of libraries (CUDA's for one) may crash without memory. Calls on standard output and error never fail.
 * Calls of this library itself are not counted.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum kind {
	ALLOC,
	OPEN,
	MKDIR,
	READ,
	WRITE,
	FSYNC,
	RENAME,
	MMAP,
	TRUNCATE,
	STAT,
	THREAD,
	LINK,
	KINDS,
	PREAD,
	PWRITE,
	SHORT
};
static const struct {
	const char *name;
	int err;
} kinds[] = {
	[ALLOC] = {"alloc", ENOMEM},
	[OPEN] = {"open", EMFILE},
	[MKDIR] = {"mkdir", ENOSPC},
	[READ] = {"read", EIO},
	[WRITE] = {"write", ENOSPC},
	[FSYNC] = {"fsync", EIO},
	[RENAME] = {"rename", EIO},
	[MMAP] = {"mmap", ENOMEM},
	[TRUNCATE] = {"truncate", ENOSPC},
	[STAT] = {"stat", ENOMEM},
	[THREAD] = {"thread", EAGAIN},
	[LINK] = {"link", EMLINK},
	[KINDS] = {"any", 0},
	[PREAD] = {"pread", EIO},
	[PWRITE] = {"pwrite", EIO},
	[SHORT] = {"short", 0},
};

static _Atomic uint64_t calls[SHORT + 1], all;
static int wanted = -1; /* kind to fail; KINDS: any; -1: none */
static uint64_t nth;
static int wanted_errno; /* 0: that of the kind */
static char how;         /* 0 once, '+' from then on, '!' kill */
static bool armed;
static int record = -1;
static char under[PATH_MAX];
static _Thread_local int inside; /* in this library: its own calls do not count */

#define REAL(f) \
	({ \
		static __typeof__(&f) real_; \
		if (!real_) { \
			inside++; \
			real_ = (__typeof__(&f))dlsym(RTLD_NEXT, #f); \
			inside--; \
		} \
		real_; \
	})

__attribute__((constructor)) static void start(void)
{
	const char *s = getenv("MT_FAULT"), *r = getenv("MT_FAULT_RECORD"), *u = getenv("MT_FAULT_UNDER");
	const char *e = getenv("MT_FAULT_ERRNO");
	inside++;
	if (s) {
		const char *colon = strchr(s, ':');
		size_t len = colon ? (size_t)(colon - s) : 0;
		for (int k = 0; k <= SHORT; k++)
			if (strlen(kinds[k].name) == len && !strncmp(s, kinds[k].name, len)) wanted = k;
		char *end = NULL;
		if (colon) nth = strtoull(colon + 1, &end, 10);
		if (wanted < 0 || !nth) {
			static const char words[] = "preload: MT_FAULT wants KIND:N, KIND:N+ or KIND:N!\n";
			if (write(STDERR_FILENO, words, sizeof words - 1) < 0) abort();
			_exit(99);
		}
		how = *end;
		wanted_errno = e ? atoi(e) : 0;
	}
	if (r && u && realpath(u, under)) record = open(r, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	inside--;
}

typedef int main_fn(int, char **, char **);
static main_fn *real_main;

static int armed_main(int argc, char **argv, char **env)
{
	armed = true;
	return real_main(argc, argv, env);
}

/* libc's start code calls this with the program's main */
int __libc_start_main(main_fn *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
int __libc_start_main(main_fn *m, int argc, char **argv, void (*init)(void), void (*fini)(void), void (*ld_fini)(void),
	void *stack)
{
	real_main = m;
	return REAL(__libc_start_main)(armed_main, argc, argv, init, fini, ld_fini, stack);
}

__attribute__((destructor)) static void finish(void)
{
	const char *path = getenv("MT_FAULT_COUNT");
	armed = false;
	if (!path) return;
	inside++;
	FILE *f = fopen(path, "w");
	for (int k = 0; f && k < KINDS; k++) fprintf(f, "%s %llu\n", kinds[k].name, (unsigned long long)calls[k]);
	if (f) fclose(f);
}

/* Count a call. True if it must fail; errno is set. */
static bool fails(enum kind k)
{
	if (!armed || inside) return false;
	if (k > KINDS && wanted != (int)k) return false;
	uint64_t mine = atomic_fetch_add(&calls[k], 1) + 1, any = k > KINDS ? 0 : atomic_fetch_add(&all, 1) + 1;
	if (wanted != KINDS && wanted != (int)k) return false;
	uint64_t n = wanted == KINDS ? any : mine;
	if (n != nth && !(how == '+' && n > nth)) return false;
	if (how == '!') kill(getpid(), SIGKILL);
	errno = wanted_errno ? wanted_errno : kinds[k].err;
	return true;
}

/* ---- recording ---- */

static void put(const char *fmt, ...)
{
	char line[2 * PATH_MAX + 128];
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	if (syscall(SYS_write, record, line, (size_t)n) != n) abort();
}

/* The absolute path of NAME in DIRFD, if it lies below `under` */
static bool path_of(int dirfd, const char *name, char out[PATH_MAX])
{
	if (record < 0) return false;
	char base[PATH_MAX] = "", link[64];
	if (name[0] != '/') {
		snprintf(link, sizeof link, dirfd == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dirfd);
		ssize_t n = readlink(link, base, sizeof base - 2);
		if (n < 0) return false;
		base[n] = '/';
		base[n + 1] = 0;
	}
	if (strlen(base) + strlen(name) >= PATH_MAX) return false;
	strcat(strcpy(out, base), name);
	size_t u = strlen(under);
	return !strncmp(out, under, u) && out[u] == '/';
}

static unsigned long long inode(int fd)
{
	struct stat st;
	return syscall(SYS_fstat, fd, &st) ? 0 : st.st_ino;
}

static bool fd_below(int fd)
{
	char path[PATH_MAX], link[64];
	if (record < 0) return false;
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof path - 1);
	size_t u = strlen(under);
	if (n < 0) return false;
	path[n] = 0;
	return !strncmp(path, under, u) && (path[u] == '/' || !path[u]);
}

static unsigned long long inode_at(const char *path)
{
	struct stat st;
	return fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) ? 0 : st.st_ino;
}

/* ---- memory ---- */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t n) { return fails(ALLOC) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails(ALLOC) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails(ALLOC) ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t align, size_t n) { return fails(ALLOC) ? NULL : __libc_memalign(align, n); }
int posix_memalign(void **p, size_t align, size_t n)
{
	if (fails(ALLOC)) return ENOMEM;
	*p = __libc_memalign(align, n);
	return *p ? 0 : ENOMEM;
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	return fails(MMAP) ? MAP_FAILED : (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
}
void *mmap64(void *, size_t, int, int, int, off_t) __attribute__((alias("mmap")));

/* Only advice that allocates memory can fail with ENOMEM. */
int madvise(void *p, size_t n, int advice)
{
	if (advice == MADV_POPULATE_WRITE && fails(MMAP)) return -1;
	return (int)syscall(SYS_madvise, p, n, advice);
}

/* ---- opening ---- */

static int do_open(int dirfd, const char *path, int flags, mode_t mode)
{
	if (fails(OPEN)) return -1;
	inside++;
	char full[PATH_MAX];
	bool seen = path_of(dirfd, path, full), was = seen && inode_at(full);
	int fd = (int)syscall(SYS_openat, dirfd, path, flags, mode);
	if (fd >= 0 && seen && flags & O_CREAT && !was) put("create %s\t%llu\n", full, inode(fd));
	if (fd >= 0 && seen && flags & O_TRUNC && was) put("truncate %llu 0\n", inode(fd));
	inside--;
	return fd;
}

#define MODE(last) \
	({ \
		va_list ap_; \
		va_start(ap_, last); \
		mode_t m_ = va_arg(ap_, mode_t); \
		va_end(ap_); \
		m_; \
	})
#define WITH_MODE(flags) ((flags) & (O_CREAT | O_TMPFILE))
int open(const char *path, int flags, ...)
{
	return do_open(AT_FDCWD, path, flags, WITH_MODE(flags) ? MODE(flags) : 0);
}
int open64(const char *, int, ...) __attribute__((alias("open")));
int openat(int d, const char *path, int flags, ...)
{
	return do_open(d, path, flags, WITH_MODE(flags) ? MODE(flags) : 0);
}
int openat64(int, const char *, int, ...) __attribute__((alias("openat")));
int shm_open(const char *name, int flags, mode_t mode) { return fails(OPEN) ? -1 : REAL(shm_open)(name, flags, mode); }
FILE *fopen(const char *path, const char *mode) { return fails(OPEN) ? NULL : REAL(fopen)(path, mode); }
FILE *fopen64(const char *, const char *) __attribute__((alias("fopen")));
DIR *opendir(const char *path) { return fails(OPEN) ? NULL : REAL(opendir)(path); }
DIR *fdopendir(int fd) { return fails(OPEN) ? NULL : REAL(fdopendir)(fd); }

int fstat(int fd, struct stat *st) { return fails(STAT) ? -1 : (int)syscall(SYS_fstat, fd, st); }

/* ---- data ---- */

ssize_t read(int fd, void *p, size_t n) { return fd > 2 && fails(READ) ? -1 : syscall(SYS_read, fd, p, n); }
ssize_t pread(int fd, void *p, size_t n, off_t at)
{
	if (fails(READ) || fails(PREAD)) return -1;
	return syscall(SYS_pread64, fd, p, fails(SHORT) && n > 512 ? 512 : n, at);
}
ssize_t pread64(int, void *, size_t, off_t) __attribute__((alias("pread")));

/* One line, in one write: several processes may record into the file. */
static void wrote(int fd, const void *p, ssize_t n, off_t at)
{
	if (n <= 0 || !fd_below(fd)) return;
	static const char digits[] = "0123456789abcdef";
	int saved = errno;
	char *line = __libc_malloc(128 + 2 * (size_t)n);
	if (!line) abort();
	size_t len = (size_t)sprintf(line, "write %llu %lld %lld ", inode(fd), (long long)at, (long long)n);
	for (ssize_t i = 0; i < n; i++) {
		line[len++] = digits[((const uint8_t *)p)[i] >> 4];
		line[len++] = digits[((const uint8_t *)p)[i] & 15];
	}
	line[len++] = '\n';
	if (syscall(SYS_write, record, line, len) != (long)len) abort();
	free(line);
	errno = saved;
}

ssize_t write(int fd, const void *p, size_t n)
{
	if (fd <= 2 || fd == record) return syscall(SYS_write, fd, p, n);
	if (fails(WRITE)) return -1;
	off_t at = lseek(fd, 0, SEEK_CUR);
	ssize_t put_ = syscall(SYS_write, fd, p, n);
	if (record >= 0) wrote(fd, p, put_, at);
	return put_;
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
	if (fails(WRITE) || fails(PWRITE)) return -1;
	if (fails(SHORT) && n > 512) n = 512;
	ssize_t put_ = syscall(SYS_pwrite64, fd, p, n, at);
	if (record >= 0) wrote(fd, p, put_, at);
	return put_;
}
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));

ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t n, unsigned flags)
{
	if (fails(WRITE)) return -1;
	if (record < 0) return syscall(SYS_copy_file_range, from, in, to, out, n, flags);
	errno = EXDEV; /* what is recorded passes through write */
	return -1;
}

int ftruncate(int fd, off_t size)
{
	if (fails(TRUNCATE)) return -1;
	int rc = (int)syscall(SYS_ftruncate, fd, size);
	if (!rc && fd_below(fd)) put("truncate %llu %lld\n", inode(fd), (long long)size);
	return rc;
}
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
int fallocate(int fd, int mode, off_t at, off_t n)
{
	if (fails(TRUNCATE)) return -1;
	struct stat st;
	int rc = (int)syscall(SYS_fallocate, fd, mode, at, n);
	bool longer = !rc && !(mode & FALLOC_FL_KEEP_SIZE) && fd_below(fd) && !syscall(SYS_fstat, fd, &st);
	if (longer) put("truncate %llu %lld\n", (unsigned long long)st.st_ino, (long long)st.st_size);
	return rc;
}
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));
int posix_fallocate(int fd, off_t at, off_t n) { return fails(TRUNCATE) ? ENOSPC : REAL(posix_fallocate)(fd, at, n); }

static int do_fsync(int fd, long call)
{
	if (fails(FSYNC)) return -1;
	int rc = (int)syscall(call, fd);
	if (!rc && fd_below(fd)) put("fsync %llu\n", inode(fd));
	return rc;
}
int fsync(int fd) { return do_fsync(fd, SYS_fsync); }
int fdatasync(int fd) { return do_fsync(fd, SYS_fdatasync); }

/* ---- names ---- */

int mkdirat(int dirfd, const char *path, mode_t mode)
{
	if (fails(MKDIR)) return -1;
	char full[PATH_MAX];
	int rc = (int)syscall(SYS_mkdirat, dirfd, path, mode);
	if (!rc && path_of(dirfd, path, full)) put("mkdir %s\t%llu\n", full, inode_at(full));
	return rc;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
	if (fails(RENAME)) return -1;
	char x[PATH_MAX], y[PATH_MAX];
	bool seen = path_of(from, a, x) && path_of(to, b, y);
	int rc = (int)syscall(SYS_renameat2, from, a, to, b, flags);
	if (!rc && seen) put("%s %s\t%s\n", flags & RENAME_EXCHANGE ? "exchange" : "rename", x, y);
	return rc;
}
int rename(const char *a, const char *b) { return renameat2(AT_FDCWD, a, AT_FDCWD, b, 0); }
int renameat(int from, const char *a, int to, const char *b) { return renameat2(from, a, to, b, 0); }

int linkat(int from, const char *a, int to, const char *b, int flags)
{
	if (fails(LINK)) return -1;
	char full[PATH_MAX];
	int rc = (int)syscall(SYS_linkat, from, a, to, b, flags);
	if (!rc && path_of(to, b, full)) put("link %s\t%llu\n", full, inode_at(full));
	return rc;
}
int link(const char *a, const char *b) { return linkat(AT_FDCWD, a, AT_FDCWD, b, 0); }

int unlinkat(int dirfd, const char *path, int flags)
{
	char full[PATH_MAX];
	bool seen = path_of(dirfd, path, full);
	int rc = (int)syscall(SYS_unlinkat, dirfd, path, flags);
	if (!rc && seen) put("unlink %s\n", full);
	return rc;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

/* ---- threads ---- */

int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	return fails(THREAD) ? EAGAIN : REAL(pthread_create)(t, attr, fn, arg);
}
