/* outdir.c: a directory that comes to be as a whole or not at all.
 *
 * It is written under the name .BASE.mt-tmp-XXXXXXXX beside its place, each file fsynced, then the directory, then it
 * is renamed, then the parent is fsynced. A lock on the directory says that its writer lives: the kernel drops it with
 * the process, so what a dead writer left can be told from what a live one is writing, and deleted.
 *
 * A directory that is there already, and empty, may be a mount point or where somebody stands: it stays what it is. The
 * temporary one is made inside it, and its finished files move up, config.json last: without it nobody, neither mt nor
 * transformers, takes what is there for a model. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "ckpt.h"
#include "cli/cli.h"

#define TMP ".mt-tmp-"
#define IN_PLACE "files" /* BASE of the temporary directory inside DIR */
#define LAST "config.json"
#define WAS "was" /* see step_aside */

/* Path of a directory that is not there -> its parent, opened, and its name. */
static int split(const char *path, int *parent, char **base)
{
	char *copy = strdup(path), *slash;
	int rc;

	*base = NULL;
	if (!copy) return mt_fail(MT_EX_NOMEM, "no memory");
	for (size_t n = strlen(copy); n > 1 && copy[n - 1] == '/'; n--) copy[n - 1] = 0;
	slash = strrchr(copy, '/');
	*base = strdup(slash ? slash + 1 : copy);
	if (slash) slash[slash == copy] = 0;
	rc = !*base                  ? mt_fail(MT_EX_NOMEM, "no memory")
		: file_name_plain(*base) ? dir_open(slash ? copy : ".", parent)
								 : mt_fail(MT_EX_EXISTS, "%s: not a valid name for a new directory", shown(path));
	if (rc < 0) {
		free(*base);
		*base = NULL;
	}
	free(copy);
	return rc;
}

/* 73 where a directory, which is closed, has an entry. */
static int check_empty(int fd, const char *base)
{
	DIR *d = fdopendir(fd);
	bool empty = true;

	if (!d) return fail_errno(base);
	for (struct dirent *e; (e = readdir(d));) empty = empty && (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."));
	closedir(d);
	return empty ? 0 : mt_fail(MT_EX_EXISTS, "%s: exists and is not empty", shown(base));
}

/* Does it hold a model, as an export or a checkpoint does? */
static bool is_model_dir(int parent, const char *base)
{
	static const char *const weights[] = {"model.safetensors", "model.safetensors.index.json"};
	int fd = openat(parent, base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool model = fd >= 0 && file_exists(fd, LAST) && (file_exists(fd, weights[0]) || file_exists(fd, weights[1]));

	if (fd >= 0) close(fd);
	return model;
}

/* The temporary directory for `base` in `parent`; o->parent is open. */
static int make_tmp(struct out_dir *o, const char *base)
{
	uint32_t rnd;
	int rc = 0;

	dir_clean(o->parent, base);
	if (getrandom(&rnd, sizeof rnd, 0) != sizeof rnd) rnd = (uint32_t)getpid();
	if (asprintf(&o->tmp, ".%s" TMP "%08x", base, rnd) < 0) o->tmp = NULL;
	if (!(o->base = strdup(base)) || !o->tmp) rc = mt_fail(MT_EX_NOMEM, "no memory");
	else if (mkdirat(o->parent, o->tmp, 0777) < 0) rc = fail_errno(base);
	else if ((o->fd = openat(o->parent, o->tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
		rc = fail_errno(base);
		unlinkat(o->parent, o->tmp, AT_REMOVEDIR);
	}
	if (rc < 0) {
		out_abort(o);
		return rc;
	}
	flock(o->fd, LOCK_EX | LOCK_NB);
	return 0;
}

static int begin_inside(struct out_dir *o, const char *path)
{
	int rc, look;

	dir_clean(o->parent, IN_PLACE);
	look = openat(o->parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	rc = look < 0 ? fail_errno(path) : check_empty(look, path);
	if (rc < 0) {
		close(o->parent);
		return rc;
	}
	return make_tmp(o, IN_PLACE);
}

int out_begin_at(struct out_dir *o, int parent, const char *base)
{
	*o = (struct out_dir){.parent = fcntl(parent, F_DUPFD_CLOEXEC, 3), .fd = -1, .end = OUT_REPLACE};
	return o->parent < 0 ? fail_errno(base) : make_tmp(o, base);
}

/* A directory that is not empty goes as a whole, when the new one stands; whether it is one that may go is looked at
 * now. */
static int begin_beside(struct out_dir *o, const char *path, bool replace)
{
	char *base = NULL;
	int rc = split(path, &o->parent, &base);

	if (rc < 0) return rc;
	dir_clean(o->parent, base); /* before the look: it may put back what had the name */
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

/* ------------------------------------------------------------------------------------------------ files of it */

static int write_error(const struct out_stream *s) { return fail_errno(s->name); }

int out_open(struct out_dir *o, const char *name, uint64_t expected, struct out_stream *s)
{
	*s = (struct out_stream){.dir = o, .fd = -1};
	s->name = strdup(name);
	s->hash = XXH3_createState();
	if (!s->name || !s->hash) return mt_fail(MT_EX_NOMEM, "no memory");
	XXH3_64bits_reset(s->hash);
	s->fd = openat(o->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (s->fd < 0) return write_error(s);
	/* A disk that is too full says so now and not after an hour; a file system that cannot tell is believed. */
	if (expected && fallocate(s->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)expected) < 0 &&
		(errno == ENOSPC || errno == EFBIG))
		return write_error(s);
	return 0;
}

static int add_sum(struct out_stream *s)
{
	uint64_t *sums = realloc(s->sums, (s->n_sums + 1) * sizeof *sums);

	if (!sums) return mt_fail(MT_EX_NOMEM, "no memory");
	s->sums = sums;
	sums[s->n_sums++] = XXH3_64bits_digest(s->hash);
	XXH3_64bits_reset(s->hash);
	return 0;
}

int out_write(struct out_stream *s, const void *data, uint64_t n)
{
	const uint8_t *p = data;

	while (n) {
		uint64_t room = IO_BYTES - s->bytes % IO_BYTES;
		ssize_t put = write(s->fd, p, n < room ? n : room);
		if (put < 0 && errno == EINTR) continue;
		if (put < 0) return write_error(s);
		XXH3_64bits_update(s->hash, p, (size_t)put);
		s->bytes += (uint64_t)put;
		p += put;
		n -= (uint64_t)put;
		if (s->bytes % IO_BYTES == 0) {
			int rc = add_sum(s);
			if (rc < 0) return rc;
		}
	}
	return 0;
}

void out_drop(struct out_stream *s)
{
	if (s->fd >= 0) close(s->fd);
	XXH3_freeState(s->hash);
	free(s->name);
	free(s->sums);
	*s = (struct out_stream){.fd = -1};
}

int out_close(struct out_stream *s)
{
	struct out_dir *o = s->dir;
	struct out_file *files;

	if (s->bytes % IO_BYTES) {
		int rc = add_sum(s);
		if (rc < 0) return rc;
	}
	if (fsync(s->fd) < 0) return write_error(s);
	int fd = s->fd;
	s->fd = -1;
	if (close(fd) < 0) return write_error(s);
	files = realloc(o->files, (o->n_files + 1) * sizeof *files);
	if (!files) return mt_fail(MT_EX_NOMEM, "no memory");
	o->files = files;
	files[o->n_files++] = (struct out_file){s->name, s->bytes, s->sums, s->n_sums};
	s->name = NULL;
	s->sums = NULL;
	out_drop(s);
	return 0;
}

int out_text(struct out_dir *o, const char *name, const void *data, uint64_t n)
{
	struct out_stream s;
	int rc;

	if ((rc = out_open(o, name, n, &s)) < 0 || (rc = out_write(&s, data, n)) < 0 || (rc = out_close(&s)) < 0)
		out_drop(&s);
	return rc;
}

uint64_t out_bytes(const struct out_dir *o)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < o->n_files; i++) n += o->files[i].bytes;
	return n;
}

/* ------------------------------------------------------------------------------------------------ its end */

static void release(struct out_dir *o)
{
	for (uint32_t i = 0; i < o->n_files; i++) {
		free(o->files[i].name);
		free(o->files[i].sums);
	}
	free(o->files);
	if (o->fd >= 0) close(o->fd);
	if (o->parent >= 0) close(o->parent);
	free(o->base);
	free(o->tmp);
	*o = (struct out_dir){.parent = -1, .fd = -1};
}

static int delete_tree(int parent, const char *name);

/* One look through an open directory from its beginning, deleting. What is wrong with an entry, its directory tells. */
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

/* An open directory and everything in it. It takes neither memory nor a file descriptor: this cleans up after their
 * want. */
static int delete_dir(int parent, const char *name, int fd)
{
	enum { LOOKS = 4 }; /* entries that go while a directory is read may hide others */

	for (int look = 0; look < LOOKS; look++) {
		delete_entries(fd);
		if (unlinkat(parent, name, AT_REMOVEDIR) == 0) return 0;
		if (errno != ENOTEMPTY && errno != EEXIST) break;
	}
	return fail_errno(name);
}

/* A directory with everything in it; or what else has the name. */
static int delete_tree(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc;

	if (fd < 0) return (errno == ENOTDIR || errno == ELOOP) && unlinkat(parent, name, 0) == 0 ? 0 : fail_errno(name);
	rc = delete_dir(parent, name, fd);
	close(fd);
	return rc;
}

static int sync_dir(int fd, const char *name) { return fsync(fd) < 0 ? fail_errno(name) : 0; }

int dir_remove(int parent, const char *name)
{
	char *tmp;
	int rc;

	if (asprintf(&tmp, ".%s" TMP "old", name) < 0) return mt_fail(MT_EX_NOMEM, "no memory");
	delete_tree(parent, tmp); /* of one who died at this */
	rc = renameat(parent, name, parent, tmp) < 0 ? fail_errno(name) : sync_dir(parent, name);
	if (rc == 0) rc = delete_tree(parent, tmp);
	free(tmp);
	return rc;
}

int dir_sync_names(int fd)
{
	struct stat at, above;
	int rc = 0, up = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC), next;

	if (fstat(fd, &at) < 0) rc = fail_errno("..");
	/* one that may not be read was not made for us */
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

/* .BASE.mt-tmp-XXXXXXXX, .BASE.mt-tmp-old or .BASE.mt-tmp-was; BASE NULL: step- and digits */
static bool is_tmp(const char *name, const char *base)
{
	const char *mark = strstr(name, TMP);
	size_t n = mark ? (size_t)(mark - name) : 0;

	if (name[0] != '.' || n < 2) return false;
	const char *end = mark + strlen(TMP);
	if (strcmp(end, "old") && strcmp(end, WAS) && (strlen(end) != 8 || strspn(end, "0123456789abcdef") != 8))
		return false;
	if (base) return strlen(base) == n - 1 && !memcmp(name + 1, base, n - 1);
	return !strncmp(name + 1, "step-", 5) && strspn(name + 6, "0123456789") == n - 6;
}

/* What was moved out of the way by one who died before the new one had its place: it gets its name back. */
static bool put_back(int parent, const char *tmp)
{
	char base[256] = "";
	size_t n = (size_t)(strstr(tmp, TMP) - tmp) - 1;

	if (strcmp(strstr(tmp, TMP) + strlen(TMP), WAS) || n >= sizeof base) return false;
	memcpy(base, tmp + 1, n);
	return renameat2(parent, tmp, parent, base, RENAME_NOREPLACE) == 0 ||
		((errno == EINVAL || errno == ENOSYS) && !file_exists(parent, base) &&
			renameat(parent, tmp, parent, base) == 0);
}

void dir_clean(int parent, const char *base)
{
	int fd = openat(parent, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d && fd >= 0) close(fd);
	if (!d) return;
	for (struct dirent *e; (e = readdir(d));) {
		if (!is_tmp(e->d_name, base)) continue;
		int held = openat(parent, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (held < 0) continue;
		/* it may be what another one replaces: that is durable before it goes */
		if (flock(held, LOCK_EX | LOCK_NB) == 0 && !put_back(parent, e->d_name) && fsync(parent) == 0)
			delete_tree(parent, e->d_name);
		close(held);
	}
	closedir(d);
}

int out_sync(struct out_dir *o) { return sync_dir(o->fd, o->base); }

/* ------------------------------------------------------------------------------------------------ its name */

/* Durability failed after the name was given. The new one gives it up again; where it cannot, it stays, and whole: what
 * is under the temporary name then is not ours to delete. */
static int take_back(struct out_dir *o, int flags)
{
	int rc = fail_errno(o->base);

	if (renameat2(o->parent, o->base, o->parent, o->tmp, (unsigned)flags) < 0) {
		free(o->tmp);
		o->tmp = NULL;
	}
	return rc;
}

/* fd: of the directory; -1: it is a link to one */
static void delete_old(struct out_dir *o, const char *name, int fd)
{
	if (fd >= 0 ? delete_dir(o->parent, name, fd) < 0 : unlinkat(o->parent, name, 0) < 0)
		mt_say("the replaced directory cannot be deleted: %s", fd >= 0 ? mt_errmsg() : strerror(errno));
}

/* A file system that cannot exchange two names (NFS): the old one steps aside under a name that dir_clean knows. */
static int step_aside(struct out_dir *o, int old)
{
	char *was;
	int rc = 0;

	if (asprintf(&was, ".%s" TMP WAS, o->base) < 0) return mt_fail(MT_EX_NOMEM, "no memory");
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

/* Two directories change names. The old one goes only when that is durable: a power cut before finds one of them
 * whole. */
static int exchange(struct out_dir *o)
{
	/* opened now: a descriptor that is not to be had keeps the old one, not what is left of it */
	int old = openat(o->parent, o->base, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), rc = 0;

	if (old < 0 && errno != ENOTDIR && errno != ELOOP) return fail_errno(o->base);
	if (renameat2(o->parent, o->tmp, o->parent, o->base, RENAME_EXCHANGE) < 0)
		rc = errno == EINVAL || errno == ENOSYS ? step_aside(o, old) : fail_errno(o->base);
	else if (fsync(o->parent) < 0) rc = take_back(o, RENAME_EXCHANGE);
	else delete_old(o, o->tmp, old);
	if (old >= 0) close(old);
	return rc;
}

/* After ENOTDIR: is it a link to a directory? Leaves errno as it is. */
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
	if (o->end == OUT_REPLACE && (errno == ENOTEMPTY || errno == EEXIST || is_dir_link(o))) return exchange(o);
	if (errno == ENOTDIR) return mt_fail(MT_EX_EXISTS, "%s: exists and is not a directory", shown(o->base));
	return errno == ENOTEMPTY || errno == EEXIST ? mt_fail(MT_EX_EXISTS, "%s: exists and is not empty", shown(o->base))
												 : fail_errno(o->base);
}

/* One finished file into its place, where nothing may stand. */
static int move_file(struct out_dir *o, const char *name)
{
	if (renameat2(o->fd, name, o->parent, name, RENAME_NOREPLACE) == 0) return 0;
	if ((errno == EINVAL || errno == ENOSYS) && !file_exists(o->parent, name)) /* a file system without that flag */
		return renameat(o->fd, name, o->parent, name) == 0 ? 0 : fail_errno(name);
	return errno == EEXIST || errno == EINVAL || errno == ENOSYS
		? mt_fail(MT_EX_EXISTS, "%s: was put there meanwhile", shown(name))
		: fail_errno(name);
}

/* What stands above and not below was moved by us. */
static void unlink_moved(struct out_dir *o, const char *name)
{
	if (!file_exists(o->fd, name)) unlinkat(o->parent, name, 0);
}

static int move_up(struct out_dir *o)
{
	uint32_t moved = 0;
	int rc = 0;

	for (; moved < o->n_files && rc == 0; moved++)
		if (strcmp(o->files[moved].name, LAST)) rc = move_file(o, o->files[moved].name);
	if (rc == 0) rc = sync_dir(o->parent, LAST);
	if (rc == 0) rc = move_file(o, LAST);
	if (rc == 0 && (rc = sync_dir(o->parent, LAST)) == 0) rc = dir_sync_names(o->parent);
	if (rc < 0) /* config.json first: without it nobody takes the rest for a model */
		unlink_moved(o, LAST);
	while (rc < 0 && moved--)
		if (strcmp(o->files[moved].name, LAST)) unlink_moved(o, o->files[moved].name);
	if (rc == 0) unlinkat(o->parent, o->tmp, AT_REMOVEDIR);
	return rc;
}

int out_rename(struct out_dir *o)
{
	int rc = o->end == OUT_INSIDE ? move_up(o) : rename_whole(o);

	if (rc < 0) out_abort(o);
	else release(o);
	return rc;
}

void out_abort(struct out_dir *o)
{
	char why[512];

	/* the message of the failure must outlive the clean-up */
	snprintf(why, sizeof why, "%s", mt_errmsg());
	if (o->tmp && o->fd >= 0) delete_dir(o->parent, o->tmp, o->fd);
	release(o);
	if (*why) mt_fail(MT_EX_IO, "%s", why);
}
