/* ckpt-fail: save and export while one kind of call fails, the n-th call only or all from the n-th on, for every n.
 *
 *     ckpt-fail RUN DIR json       jansson's allocations
 *     ckpt-fail RUN DIR fsync      fsync, EIO
 *     ckpt-fail RUN DIR open       opening files, EMFILE
 *     ckpt-fail RUN DIR counts     write and read a run.json with a count that cannot grow
 *
 * STRIDE: test only every STRIDE-th n. The copy is DIR/x/copy, which is absent, empty, or an export to be replaced. A
 * copy that succeeds must verify. A copy that fails must leave what was there before, and nothing else. Prints the
 * number of failed copies. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "mt/run.h"

static const char *kind;
static bool armed, for_good;
static long at, calls;
static int here; /* DIR */

static bool fails(const char *what)
{
	if (!armed || strcmp(what, kind)) return false;
	calls++;
	return for_good ? calls >= at : calls == at;
}

static void *json_malloc(size_t n) { return fails("json") ? NULL : malloc(n); }

int openat(int fd, const char *name, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (!fails("open")) return (int)syscall(SYS_openat, fd, name, flags, mode);
	errno = EMFILE;
	return -1;
}
int open(const char *name, int flags, ...)
{
	va_list args;
	va_start(args, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return openat(AT_FDCWD, name, flags, mode);
}
int fsync(int fd)
{
	if (!fails("fsync")) return (int)syscall(SYS_fsync, fd);
	errno = EIO;
	return -1;
}

/* Number of entries of a directory without . and .., or -1 */
static int count(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;
	if (!d) return -1;
	while (readdir(d)) n++;
	closedir(d);
	return n - 2;
}

enum before { ABSENT, EMPTY, EXPORT, BEFORES };

/* Make one copy with a failure at `at`. Returns whether it failed. */
static bool one(const char *run, enum before before, bool full)
{
	static const char dir[] = "x", path[] = "x/copy", was[] = "x/copy/was";
	int rc, entries;
	dir_remove(here, dir);
	mkdir(dir, 0777);
	if (before == EMPTY) mkdir(path, 0777);
	if (before == EXPORT) {
		mt_must(ckpt_export(run, path, MT_FP32, SHARD_BYTES, false));
		close(open(was, O_WRONLY | O_CREAT, 0666));
	}
	calls = 0;
	armed = true;
	rc = full ? ckpt_save(run, path, false, SHARD_BYTES) : ckpt_export(run, path, MT_NONE, 5000, true);
	armed = false;
	if (calls < at && rc < 0) mt_die(MT_EX_BUG, "%s: without a failure: %d: %s", kind, -rc, mt_errmsg());
	if (rc == 0) {
		mt_must(ckpt_verify(path, false, &(struct how_load){0}));
		if (before == EXPORT && file_exists(AT_FDCWD, was)) mt_die(MT_EX_BUG, "%s %ld: not replaced", kind, at);
		return false;
	}
	entries = count(path);
	if (count(dir) != (before != ABSENT) || (before == EMPTY && entries) || (before == ABSENT && entries != -1))
		mt_die(MT_EX_BUG, "%s %ld%s: %d (%s) leaves something behind", kind, at, for_good ? " and on" : "", -rc,
			mt_errmsg());
	if (before == EXPORT && (!file_exists(AT_FDCWD, was) || ckpt_verify(path, false, &(struct how_load){0}) < 0))
		mt_die(MT_EX_BUG, "%s %ld: what was there is gone", kind, at);
	return true;
}

static int counts(const char *run, const char *dir)
{
	struct mt_run *r;
	struct run_json json = {.dtype = MT_BF16,
		.state = MT_FP32,
		.optim = MT_ADAMW,
		.step = 1,
		.position.tokens = INT64_MAX};
	json_t *root, *files;
	struct out_dir out;
	mt_must(mt_run_open(&r, run, MT_RUN_CONTROL));
	mt_must(out_begin(&out, dir, false));
	mt_must(out_text(&out, "config.json", "{}", 2));
	mt_must(run_json_write(&out, &json));
	int rc = run_json_read(out.fd, &json, &root, &files);
	printf("%d: %s\n", -rc, mt_errmsg());
	out_abort(&out);
	mt_run_close(r);
	return 0;
}

int main(int argc, char **argv)
{
	int failed = 0;
	long stride = argc > 4 ? atol(argv[4]) : 1;
	if (argc < 4) mt_die(MT_EX_USAGE, "usage: ckpt-fail RUN DIR json|fsync|open|counts [STRIDE]");
	kind = argv[3];
	work_threads = 1;
	if (chdir(argv[2]) < 0 || (here = open(".", O_RDONLY | O_DIRECTORY)) < 0)
		mt_die(MT_EX_NOINPUT, "%s: no such directory", argv[2]);
	if (!strcmp(kind, "counts")) return counts(argv[1], "x");
	json_set_alloc_funcs(json_malloc, free);
	for (int how = 0; how < 2; how++)
		for (int before = 0; before < BEFORES; before++)
			for (int full = before == EXPORT ? 0 : 1; full >= 0; full--) {
				for_good = how;
				at = 1;
				do failed += one(argv[1], (enum before)before, full);
				while (calls >= at && (at += stride));
			}
	printf("%d failed\n", failed);
	return 0;
}
