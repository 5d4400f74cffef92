/* tmpdir.c: temporary directories: their names, deleting them, and cleaning up those of writers that died.
 *
 * Beside BASE there may be
 *
 *     .BASE.mt-tmp-XXXXXXXX   a new directory that is being written, or (after an exchange) a replaced one that is
 *                             being deleted; X: random hexadecimal digits
 *     .BASE.mt-tmp-was        a directory that is being replaced where the file system cannot exchange two names
 *     .BASE.mt-tmp-old        a directory that is being deleted
 *     .BASE.mt-tmp-node-R     files of another node than 0, which writes them alone and cleans up after itself
 *
 * A live writer holds a lock (flock) on its .BASE.mt-tmp-XXXXXXXX. The kernel releases it when the process ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "out.h"
#include "os.h"

#define MARK ".mt-tmp-"
#define OLD "old"
#define PART "node-%u"

int tmp_name(const char *base, const char *suffix, char **name)
{
	if (asprintf(name, ".%s" MARK "%s", base, suffix) >= 0) return 0;
	*name = NULL;
	return mt_fail(MT_EX_NOMEM, "no memory");
}

int part_name(const char *base, uint32_t node, char **name)
{
	char suffix[16];
	snprintf(suffix, sizeof suffix, PART, node);
	return tmp_name(base, suffix, name);
}

int rename_new(int from, const char *name, int to, const char *new_name)
{
	if (renameat2(from, name, to, new_name, RENAME_NOREPLACE) == 0) return 0;
	if (errno != EINVAL && errno != ENOSYS) return -1;
	if (!file_exists(to, new_name)) return renameat(from, name, to, new_name); /* a file system without that flag */
	errno = EEXIST;
	return -1;
}

/* ---- deleting */

static int delete_tree(int parent, const char *name);

/* Read an open directory once from its beginning, and delete each entry. Errors are ignored: if an entry is left, then
 * removing the directory fails. */
static void delete_entries(int fd)
{
	_Alignas(struct dirent64) char buf[2048];
	long n;

	lseek(fd, 0, SEEK_SET);
	while ((n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
		for (long at = 0; at < n;) {
			const struct dirent64 *e = (const void *)(buf + at);
			if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(fd, e->d_name, 0) < 0 && errno == EISDIR)
				delete_tree(fd, e->d_name);
			at += e->d_reclen;
		}
}

int dir_delete(int parent, const char *name, int fd)
{
	enum { PASSES = 4 }; /* deleting entries while reading a directory may hide others from the same pass */
	for (int pass = 0; pass < PASSES; pass++) {
		delete_entries(fd);
		if (unlinkat(parent, name, AT_REMOVEDIR) == 0) return 0;
		if (errno != ENOTEMPTY && errno != EEXIST) break;
	}
	return fail_errno(name);
}

/* Delete a directory with everything in it, or a file or link of that name. */
static int delete_tree(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc;
	if (fd < 0) return (errno == ENOTDIR || errno == ELOOP) && unlinkat(parent, name, 0) == 0 ? 0 : fail_errno(name);
	rc = dir_delete(parent, name, fd);
	close(fd);
	return rc;
}

int dir_remove(int parent, const char *name)
{
	char *old;
	int rc = tmp_name(name, OLD, &old);
	if (rc < 0) return rc;
	delete_tree(parent, old); /* left by a process that died here */
	rc = renameat(parent, name, parent, old) < 0 ? fail_errno(name) : dir_sync(parent, name);
	if (rc == 0) rc = delete_tree(parent, old);
	free(old);
	return rc;
}

/* ---- durable names */

int dir_sync(int fd, const char *name) { return fsync(fd) < 0 ? fail_errno(name) : 0; }

int dir_sync_names(int fd)
{
	struct stat at, above;
	int rc = 0, up = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC), next;
	if (fstat(fd, &at) < 0) rc = fail_errno("..");
	/* An ancestor that this process may not read existed before: it was not made for this directory. */
	while (rc == 0 && up >= 0 && fstat(up, &above) == 0 && above.st_dev == at.st_dev && above.st_ino != at.st_ino) {
		if (fsync(up) < 0 && (errno == EIO || errno == ENOSPC || errno == EDQUOT)) rc = fail_errno("..");
		at = above;
		next = openat(up, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		close(up);
		up = next;
	}
	if (up >= 0) close(up);
	return rc;
}

/* ---- dead writers */

/* The suffix of a temporary directory's name; NULL if the name is not one for `base` (NULL: for step- and digits). */
static const char *suffix_of(const char *name, const char *base)
{
	const char *mark = strstr(name, MARK);
	size_t n = mark ? (size_t)(mark - name) : 0;
	if (name[0] != '.' || n < 2) return NULL;
	const char *suffix = mark + strlen(MARK);
	bool random = strlen(suffix) == 8 && strspn(suffix, "0123456789abcdef") == 8;
	if (!random && strcmp(suffix, OLD) && strcmp(suffix, TMP_WAS)) return NULL;
	bool same = base ? strlen(base) == n - 1 && !memcmp(name + 1, base, n - 1)
					 : !strncmp(name + 1, "step-", 5) && strspn(name + 6, "0123456789") == n - 6;
	return same ? suffix : NULL;
}

/* Give a directory its name back, if its writer died between moving it aside and naming the new one. */
static bool put_back(int parent, const char *name, const char *suffix)
{
	char base[256];
	if (strcmp(suffix, TMP_WAS)) return false;
	snprintf(base, sizeof base, "%.*s", (int)(suffix - strlen(MARK) - (name + 1)), name + 1);
	return rename_new(parent, name, parent, base) == 0;
}

/* A writer that is being killed keeps its lock until the kernel has unmapped its memory */
static bool writer_is_dead(int fd)
{
	enum { TRIES = 100, EACH_MS = 20 };
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
		if (errno != EWOULDBLOCK || i == TRIES) return false;
		mt_nap(EACH_MS);
	}
	return true;
}

void dir_clean(int parent, const char *base)
{
	for (struct dir_walk w = dir_walk(parent); dir_next(&w);) {
		const char *suffix = suffix_of(w.name, base);
		int fd = suffix ? openat(parent, w.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
		if (fd < 0) continue;
		/* It may be a directory that was replaced: the new name must be durable before the old directory is deleted. */
		if (writer_is_dead(fd) && !put_back(parent, w.name, suffix) && fsync(parent) == 0) delete_tree(parent, w.name);
		close(fd);
	}
}

void dir_clean_parts(int parent, uint32_t node)
{
	char end[32];
	snprintf(end, sizeof end, MARK PART, node);
	for (struct dir_walk w = dir_walk(parent); dir_next(&w);)
		if (!strncmp(w.name, ".step-", 6) && ends_with(w.name, end)) delete_tree(parent, w.name);
}
