/* outdir.c: a new directory BASE in a parent P. It appears complete or not at all, also after a power cut.
 *
 * Its files are written into a temporary directory T. What is on disk after a power cut behind each step:
 *
 *     step                              BASE                          T
 *     mkdir T, lock it                  as it was                     absent or incomplete
 *     write the files                   as it was                     absent or incomplete
 *     fsync each file and T (out_sync)  as it was                     absent or complete
 *
 *   OUT_NEW: BASE is absent (or an empty directory by now)
 *     rename T to BASE                  absent or complete
 *     fsync P                           complete
 *
 *   OUT_REPLACE: BASE is a directory that mt wrote
 *     exchange T and BASE               the old or the new one        the other one
 *     fsync P                           the new one                   the old one, complete
 *     delete T                          the new one                   any part of the old one
 *
 *   OUT_REPLACE where the file system cannot exchange two names (NFS); W: .BASE.mt-tmp-was
 *     rename BASE to W                  the old one or absent         complete; W: the old one if BASE is absent
 *     rename T to BASE                  old, absent or new            W: the old one if BASE is absent or new
 *     fsync P                           the new one                   W: the old one, complete
 *     delete W                          the new one                   W: any part of the old one
 *
 *   OUT_INSIDE: BASE is an empty directory. It may be a mount point or a shell's working directory, so it is not
 *   replaced: T is made inside it, and the files move up
 *     rename the files but config.json  any of these files            the others
 *     fsync BASE                        all files but config.json
 *     rename config.json                without config.json or complete
 *     fsync BASE and its ancestors      complete
 *   Without config.json neither mt nor transformers takes a directory for a model.
 *
 * A writer that dies leaves T unlocked, or W. The next writer of BASE renames W back if BASE is absent, and deletes the
 * rest (dir_clean). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "out.h"
#include "say.h"

#define INSIDE "files" /* OUT_INSIDE: T is .files.mt-tmp-XXXXXXXX in BASE */
#define LAST "config.json"

int out_split(const char *path, int *parent, char **base)
{
	size_t end = strlen(path), at;
	while (end > 1 && path[end - 1] == '/') end--;
	for (at = end; at && path[at - 1] != '/';) at--;
	char *dir = at ? strndup(path, at > 1 ? at - 1 : 1) : strdup(".");
	*base = strndup(path + at, end - at);
	int rc = !dir || !*base      ? mt_fail(MT_EX_NOMEM, "no memory")
		: file_name_plain(*base) ? dir_open(dir, parent)
								 : mt_fail(MT_EX_EXISTS, "%s: not a valid name for a new directory", shown(path));
	free(dir);
	return rc;
}

/* 73 if a directory has an entry. */
static int check_empty(int dirfd, const char *path)
{
	struct dir_walk w = dir_walk(dirfd);
	bool empty = true;
	if (!w.d) return fail_errno(path);
	while (dir_next(&w)) empty = false;
	return empty ? 0 : mt_fail(MT_EX_EXISTS, "%s: exists and is not empty", shown(path));
}

/* Does the directory hold a model, as an export or a checkpoint does? */
static bool is_model_dir(int parent, const char *base)
{
	int fd = openat(parent, base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool model = fd >= 0 && file_exists(fd, LAST) && st_exists(fd, "model");
	if (fd >= 0) close(fd);
	return model;
}

/* ---- begin */

/* Make and lock the temporary directory o->tmp for `base` in o->parent, which is open; rc: of naming it. Closes
 * o->parent on failure. */
static int make(struct out_dir *o, const char *base, int rc)
{
	if (rc == 0 && !(o->base = strdup(base))) rc = mt_fail(MT_EX_NOMEM, "no memory");
	if (rc == 0 && mkdirat(o->parent, o->tmp, 0777) < 0) rc = fail_errno(base);
	else if (rc == 0 && (o->fd = openat(o->parent, o->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
		rc = fail_errno(base);
		unlinkat(o->parent, o->tmp, AT_REMOVEDIR);
	}
	if (rc < 0) out_abort(o);
	else flock(o->fd, LOCK_EX | LOCK_NB);
	return rc;
}

static int make_tmp(struct out_dir *o, const char *base)
{
	char suffix[9];
	uint32_t rnd;
	if (getrandom(&rnd, sizeof rnd, 0) != sizeof rnd) rnd = (uint32_t)getpid();
	snprintf(suffix, sizeof suffix, "%08x", rnd);
	return make(o, base, tmp_name(base, suffix, &o->tmp));
}

static int begin_inside(struct out_dir *o, const char *path)
{
	int rc;
	dir_clean(o->parent, INSIDE);
	if ((rc = check_empty(o->parent, path)) == 0) return make_tmp(o, INSIDE);
	close(o->parent);
	return rc;
}

static int open_parent(struct out_dir *o, int parent, const char *path, const char *base, enum out_end end)
{
	*o = (struct out_dir){.parent = fcntl(parent, F_DUPFD_CLOEXEC, 3), .fd = -1, .end = end};
	snprintf(o->path, sizeof o->path, "%s/%s", path, base);
	return o->parent < 0 ? fail_errno(base) : 0;
}

int out_begin_at(struct out_dir *o, int parent, const char *path, const char *base)
{
	int rc = open_parent(o, parent, path, base, OUT_REPLACE);
	if (rc < 0) return rc;
	dir_clean(o->parent, base);
	return make_tmp(o, base);
}

int out_begin_part(struct out_dir *o, int parent, const char *path, const char *base, uint32_t node)
{
	int rc = open_parent(o, parent, path, base, OUT_NEW);
	return rc < 0 ? rc : make(o, base, part_name(base, node, &o->tmp));
}

/* `replace`: an existing directory is replaced if it holds a model. */
static int begin_beside(struct out_dir *o, const char *path, bool replace)
{
	char *base;
	int rc = out_split(path, &o->parent, &base);
	if (rc < 0) {
		free(base);
		return rc;
	}
	dir_clean(o->parent, base); /* before looking for `base`: it may give a directory this name back */
	o->end = replace && file_exists(o->parent, base) ? OUT_REPLACE : OUT_NEW;
	if (o->end == OUT_REPLACE && !is_model_dir(o->parent, base)) {
		close(o->parent);
		rc = mt_fail(MT_EX_EXISTS, "%s: neither empty nor written by mt-ckpt", shown(path));
	} else rc = make_tmp(o, base);
	free(base);
	return rc;
}

int out_begin(struct out_dir *o, const char *path, bool replace)
{
	int rc;
	*o = (struct out_dir){.parent = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .fd = -1, .end = OUT_INSIDE};
	snprintf(o->path, sizeof o->path, "%s", path);
	if (o->parent >= 0) {
		rc = begin_inside(o, path);
		return rc == -MT_EX_EXISTS && replace ? begin_beside(o, path, true) : rc;
	}
	if (errno != ENOENT)
		return errno == ENOTDIR && file_exists(AT_FDCWD, path)
			? mt_fail(MT_EX_EXISTS, "%s: exists and is not a directory", shown(path))
			: fail_errno(path);
	return begin_beside(o, path, replace);
}

/* The entry of T that file i is in, without those of files before it: the file itself, or the directory of a kept file,
 * whose files follow one another. NULL: it was that of a file before */
static const char *entry_of(const struct out_dir *o, uint32_t i, char name[256])
{
	const char *file = o->files[i]->name, *slash = strchr(file, '/');
	size_t n = slash ? (size_t)(slash - file) : 0;
	if (!slash) return file;
	if (i && !strncmp(o->files[i - 1]->name, file, n + 1)) return NULL;
	snprintf(name, 256, "%.*s", (int)n, file);
	return name;
}

static int sync_directory(struct out_dir *o, const char *name)
{
	int fd = openat(o->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int rc = fd < 0 ? fail_errno(name) : dir_sync(fd, name);
	if (fd >= 0) close(fd);
	return rc;
}

int out_sync(struct out_dir *o)
{
	char name[256];
	int rc = 0;
	for (uint32_t i = 0; i < o->n_files && rc == 0; i++) {
		const char *entry = entry_of(o, i, name);
		rc = out_sync_file(o->files[i]);
		if (rc == 0 && entry == name) rc = sync_directory(o, name);
	}
	return rc == 0 ? dir_sync(o->fd, o->base) : rc;
}

/* ---- replace */

/* fsync failed after T was renamed to BASE: rename it back. If that fails, BASE stays, complete, and the directory
 * under T's name (after an exchange: the old one) must not be deleted. */
static int take_back(struct out_dir *o, int flags)
{
	int rc = fail_errno(o->base);
	if (renameat2(o->parent, o->base, o->parent, o->tmp, (unsigned)flags) < 0) {
		free(o->tmp);
		o->tmp = NULL;
	}
	return rc;
}

/* Delete the replaced directory, open as fd; fd -1: it is a link to a directory. */
static void delete_old(struct out_dir *o, const char *name, int fd)
{
	if (fd >= 0 ? dir_delete(o->parent, name, fd) < 0 : unlinkat(o->parent, name, 0) < 0)
		mt_say("the replaced directory cannot be deleted: %s", fd >= 0 ? mt_errmsg() : strerror(errno));
}

/* Replace without exchanging names: the old directory is renamed to W first. */
static int replace_in_turn(struct out_dir *o, int old)
{
	char *was;
	int rc = tmp_name(o->base, TMP_WAS, &was);
	if (rc < 0) return rc;
	if (renameat(o->parent, o->base, o->parent, was) < 0) rc = fail_errno(o->base);
	else if (renameat(o->parent, o->tmp, o->parent, o->base) < 0) {
		rc = fail_errno(o->base);
		renameat(o->parent, was, o->parent, o->base);
	} else if (fsync(o->parent) < 0) {
		rc = take_back(o, 0);
		if (o->tmp) renameat(o->parent, was, o->parent, o->base);
	} else delete_old(o, was, old);
	free(was);
	return rc;
}

static int replace(struct out_dir *o)
{
	/* Opened before anything is renamed: if no descriptor is left, the replacement fails and the old directory stays */
	int old = openat(o->parent, o->base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = 0;
	if (old < 0 && errno != ENOTDIR && errno != ELOOP) return fail_errno(o->base);
	if (renameat2(o->parent, o->tmp, o->parent, o->base, RENAME_EXCHANGE) < 0)
		rc = errno == EINVAL || errno == ENOSYS ? replace_in_turn(o, old) : fail_errno(o->base);
	else if (fsync(o->parent) < 0) rc = take_back(o, RENAME_EXCHANGE);
	else delete_old(o, o->tmp, old);
	if (old >= 0) close(old);
	return rc;
}

/* After ENOTDIR: is BASE a link to a directory? Leaves errno as it is. */
static bool is_dir_link(const struct out_dir *o)
{
	int e = errno;
	struct stat st;
	bool link = e == ENOTDIR && fstatat(o->parent, o->base, &st, 0) == 0 && S_ISDIR(st.st_mode);
	errno = e;
	return link;
}

static int rename_whole(struct out_dir *o)
{
	if (renameat(o->parent, o->tmp, o->parent, o->base) == 0) return fsync(o->parent) < 0 ? take_back(o, 0) : 0;
	if (o->end == OUT_REPLACE && (errno == ENOTEMPTY || errno == EEXIST || is_dir_link(o))) return replace(o);
	if (errno == ENOTDIR) return mt_fail(MT_EX_EXISTS, "%s: exists and is not a directory", shown(o->base));
	return errno == ENOTEMPTY || errno == EEXIST ? mt_fail(MT_EX_EXISTS, "%s: exists and is not empty", shown(o->base))
												 : fail_errno(o->base);
}

/* ---- move up */

static int move_file(struct out_dir *o, const char *name)
{
	if (rename_new(o->fd, name, o->parent, name) == 0) return 0;
	return errno == EEXIST ? mt_fail(MT_EX_EXISTS, "%s: was put there meanwhile", shown(name)) : fail_errno(name);
}

/* Delete a file that move_file moved: such a file is in BASE and not in T. A directory goes back to T. */
static void unlink_moved(struct out_dir *o, const char *name)
{
	if (file_exists(o->fd, name)) return;
	if (unlinkat(o->parent, name, 0) < 0 && errno == EISDIR) renameat(o->parent, name, o->fd, name);
}

static int move_up(struct out_dir *o)
{
	char name[256];
	const char *entry;
	uint32_t moved = 0;
	int rc = 0;
	for (; moved < o->n_files && rc == 0; moved++)
		if ((entry = entry_of(o, moved, name)) && strcmp(entry, LAST)) rc = move_file(o, entry);
	if (rc == 0) rc = dir_sync(o->parent, LAST);
	if (rc == 0) rc = move_file(o, LAST);
	if (rc == 0 && (rc = dir_sync(o->parent, LAST)) == 0) rc = dir_sync_names(o->parent);
	if (rc < 0) /* config.json first: without it the rest is no model */
		unlink_moved(o, LAST);
	while (rc < 0 && moved--)
		if ((entry = entry_of(o, moved, name)) && strcmp(entry, LAST)) unlink_moved(o, entry);
	if (rc == 0) unlinkat(o->parent, o->tmp, AT_REMOVEDIR);
	return rc;
}

/* ---- end */

static void release(struct out_dir *o)
{
	out_release(o);
	if (o->fd >= 0) close(o->fd);
	if (o->parent >= 0) close(o->parent);
	free(o->base);
	free(o->tmp);
	*o = (struct out_dir){.parent = -1, .fd = -1};
}

int out_rename(struct out_dir *o)
{
	int rc = o->end == OUT_INSIDE ? move_up(o) : rename_whole(o);
	if (rc < 0) out_abort(o);
	else release(o);
	return rc;
}

void out_leave(struct out_dir *o) { release(o); }

void out_abort(struct out_dir *o)
{
	char why[512];
	snprintf(why, sizeof why, "%s", mt_errmsg()); /* deleting may overwrite the message of the failure */
	if (o->tmp && o->fd >= 0) dir_delete(o->parent, o->tmp, o->fd);
	release(o);
	if (*why) mt_fail(MT_EX_IO, "%s", why);
}
