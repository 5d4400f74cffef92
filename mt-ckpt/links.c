/* links.c: the tiles of a run with a tier (mt/tier.h) in a checkpoint that serve writes: hard links.
 *
 * mt-tier writes a tile when mt-optim has updated it, which waits while the tile's unit is pinned, and it never writes
 * a file that has two links: it makes a new one, which takes the name. So, while a unit is pinned, each of its tiles is
 * awaited until its write is counted, and then linked; no byte is copied, and when the unit is unpinned, the version is
 * held by the links.
 *
 *     link      NAME -> .step-XXXXXXXX.mt-tmp-XXXXXXXX/NAME
 *
 * --copy-tier: the directory may be on another file system. The links stay beside the tiles until they are copied:
 *
 *     link      NAME -> NAME.save
 *     copy      NAME.save, when all units are unpinned; then delete it
 *
 * A saver that dies leaves links in its temporary directory, which its successor deletes, or NAME.save. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "ckpt.h"
#include "mt/control.h"
#include "os.h"
#include "cli/cli.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "mt/wait.h"

#define SAVE ".save"

/* ---- directories */

static int fail_in(const struct links *l, uint32_t dir, const char *name)
{
	char path[MT_TIER_PATH + 64];
	int failed = errno;
	snprintf(path, sizeof path, "%s/%s", mt_tier_dir(l->run, dir), name);
	errno = failed;
	return fail_errno(path);
}

/* What a saver that died has left */
static void clean(const struct links *l)
{
	for (uint32_t i = 0; i < l->dirs; i++)
		for (struct dir_walk w = dir_walk(l->fds[i]); dir_next(&w);)
			if (!strncmp(w.name, "unit-", 5) && ends_with(w.name, SAVE)) (void)unlinkat(l->fds[i], w.name, 0);
}

static int check_device(const struct links *l, int dirfd, const char *path)
{
	struct stat here, there;
	if (fstat(dirfd, &here) < 0) return fail_errno(path);
	for (uint32_t i = 0; i < l->dirs; i++) {
		if (fstat(l->fds[i], &there) < 0) return fail_in(l, i, "");
		if (here.st_dev != there.st_dev)
			return mt_fail(MT_EX_CONFIG,
				"%s is not on the file system of %s: no hard link of a tile can be there (--copy-tier copies them)",
				shown(path), mt_tier_dir(l->run, i));
	}
	return 0;
}

static int open_dirs(struct links *l)
{
	int rc = 0;
	links_close(l);
	for (uint32_t i = 0; i < mt_control(l->run)->tier.dirs && rc == 0; i++)
		if ((rc = mt_tier_open(l->run, i, &l->fds[i])) == 0) l->dirs++;
	return rc;
}

int links_open(struct links *l, struct mt_run *run, int dirfd, const char *path, bool copy)
{
	*l = (struct links){.run = run, .copy = copy};
	if (!mt_tier_any(run)) return 0;
	int rc = open_dirs(l);
	if (rc == 0 && !copy) rc = check_device(l, dirfd, path);
	if (rc == 0) clean(l);
	else links_close(l);
	return rc;
}

void links_close(struct links *l)
{
	for (uint32_t i = 0; i < l->dirs; i++) close(l->fds[i]);
	l->dirs = 0;
}

/* ---- a save */

static int check_room(int fd, const char *path, uint64_t need)
{
	struct statvfs v;
	if (fstatvfs(fd, &v) < 0) return fail_errno(path);
	uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
	if (room >= need) return 0;
	return mt_fail(MT_EX_IO, "%s: %.2f GB are free, and the tiles of a checkpoint want %.2f GB", shown(path),
		(double)room / 1e9, (double)need / 1e9);
}

/* The tiles of the next steps become new files, beside those that the checkpoint holds. */
static int check_rooms(const struct links *l, const struct out_dir *dir)
{
	uint64_t bytes = mt_control(l->run)->tier.bytes, need = bytes + bytes / 100;
	struct stat of[MT_TIER_DIRS];
	int rc = l->copy ? check_room(dir->fd, dir->path, need) : 0;
	for (uint32_t i = 0; i < l->dirs && rc == 0; i++) {
		uint32_t same = 1;
		if (fstat(l->fds[i], &of[i]) < 0) return fail_in(l, i, "");
		for (uint32_t j = 0; j < i; j++) same += of[j].st_dev == of[i].st_dev;
		rc = check_room(l->fds[i], mt_tier_dir(l->run, i), need / l->dirs * same);
	}
	return rc;
}

int links_begin(struct links *l, const struct out_dir *dir, uint64_t step, uint64_t t)
{
	const struct mt_control *c = mt_control(l->run);
	if (!mt_tier_any(l->run)) return 0;
	int rc = mt_tier_check(l->run);
	if (rc == 0) rc = open_dirs(l); /* mt-tier --dir may have moved one */
	if (rc == 0 && !l->copy) rc = check_device(l, dir->fd, dir->path);
	if (rc == 0) rc = check_rooms(l, dir);
	if (rc < 0) return rc;
	l->dir = dir;
	l->step = step;
	l->t = t;
	/* no pass since the run was filled: what it was filled with */
	l->run_id = t == c->tier.t0 ? c->tier.from : c->h.run_id;
	l->sums = calloc(c->tier.tiles, sizeof *l->sums);
	return l->sums ? 0 : mt_fail(MT_EX_NOMEM, "no memory for checksums of tiles");
}

/* Until the tile's write is counted. At most S tiles of an update are not written when its snapshot is pinned. */
static int await_written(const struct links *l, uint32_t tile)
{
	enum { STOP_S = 30 }; /* for a mt-tier that is started to end a run */
	double since = mt_now();
	if (l->t == mt_control(l->run)->tier.t0) return 0;
	for (;;) {
		uint32_t seen = mt_event(l->run);
		if (mt_tier_at(l->run, MT_WRITTEN) > mt_tier_q(l->run, l->t, tile)) return 0;
		int rc = check_pinned(l->run, l->step);
		if (rc < 0) return rc;
		if (!mt_stopping || mt_stage_alive(l->run, MT_TIER)) since = mt_now();
		else if (mt_now() - since > STOP_S)
			return mt_fail(MT_EX_PEER, "mt-tier is gone, and tiles are not in their files");
		mt_wait_on(l->run, seen, 100, MT_ON_TIER | MT_ON_SNAP);
	}
}

/* The seal of what has been linked */
static int read_seal(const struct links *l, uint32_t i, const struct mt_tile *t, int dirfd, const char *name)
{
	uint64_t bytes = t->bytes - t->seal;
	struct mt_seal *seal = malloc(bytes);
	int fd = mt_tile_open(dirfd, name, O_RDONLY);
	int rc = !seal ? mt_fail(MT_EX_NOMEM, "no memory for a tile's seal") : fd < 0 ? fail_in(l, t->dir, name) : 0;
	if (rc == 0) rc = file_read(fd, name, seal, bytes, MT_TILE_HEADER + t->seal);
	const char *wrong = rc == 0 ? mt_seal_wrong(seal, l->run_id, i, mt_tile_chunks(t), l->t) : NULL;
	if (wrong) rc = mt_fail(MT_EX_IO, "%s/%s: %s", mt_tier_dir(l->run, t->dir), name, wrong);
	if (rc == 0) l->sums[i] = seal->sum;
	if (fd >= 0) close(fd);
	free(seal);
	return rc;
}

static void save_name(const struct links *l, const char *name, char out[MT_TILE_NAME + 8])
{
	snprintf(out, MT_TILE_NAME + 8, "%s%s", name, l->copy ? SAVE : "");
}

static int link_tile(const struct links *l, uint32_t i)
{
	const struct mt_tile t = mt_tile(l->run, i);
	int to = l->copy ? l->fds[t.dir] : l->dir->fd;
	char name[MT_TILE_NAME], as[MT_TILE_NAME + 8];
	mt_tile_name(l->run, i, name);
	save_name(l, name, as);
	int rc = await_written(l, i);
	if (rc == 0 && linkat(l->fds[t.dir], name, to, as, 0) < 0) rc = fail_in(l, t.dir, name);
	return rc == 0 ? read_seal(l, i, &t, to, as) : rc;
}

int links_unit(const struct links *l, uint32_t unit)
{
	const struct mt_unit *u = mt_unit(l->run, unit);
	int rc = 0;
	for (uint32_t i = u->first_tile; l->dirs && i < u->first_tile + u->tiles && rc == 0; i++) rc = link_tile(l, i);
	return rc;
}

/* ---- copies */

/* Shares blocks where the file system can; else the kernel copies, or, between two file systems, we do. */
static int copy_bytes(int from, int to, uint64_t bytes, uint8_t *buf)
{
	uint64_t at = 0;
	for (bool kernel = true; at < bytes;) {
		loff_t in = (loff_t)at, out = (loff_t)at;
		ssize_t n = kernel ? copy_file_range(from, &in, to, &out, bytes - at, 0) : 0;
		if (n > 0) {
			at += (uint64_t)n;
			continue;
		}
		if (n < 0 && errno != EXDEV && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS) return -1;
		kernel = false;
		n = pread(from, buf, bytes - at < WORK_BYTES ? bytes - at : WORK_BYTES, (off_t)at);
		if (n == 0) errno = EIO;
		if (n <= 0 || (n = pwrite(to, buf, (size_t)n, (off_t)at)) < 0) return -1;
		at += (uint64_t)n;
	}
	return 0;
}

static int copy_tile(const struct links *l, const struct mt_tile *t, const char *name, uint8_t *buf)
{
	char as[MT_TILE_NAME + 8];
	save_name(l, name, as);
	int from = mt_tile_open(l->fds[t->dir], as, O_RDONLY);
	int to = openat(l->dir->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = 0;
	if (from < 0) rc = fail_in(l, t->dir, as);
	else if (to < 0 || copy_bytes(from, to, MT_TILE_HEADER + t->bytes, buf) < 0 || fsync(to) < 0) rc = fail_errno(name);
	if (from >= 0) (void)posix_fadvise(from, 0, 0, POSIX_FADV_DONTNEED);
	if (to >= 0) (void)posix_fadvise(to, 0, 0, POSIX_FADV_DONTNEED);
	if (from >= 0) close(from);
	if (to >= 0 && close(to) < 0 && rc == 0) rc = fail_errno(name);
	if (rc == 0 && unlinkat(l->fds[t->dir], as, 0) < 0) rc = fail_in(l, t->dir, as);
	return rc;
}

static int sync_tile(const struct links *l, const char *name)
{
	int fd = mt_tile_open(l->dir->fd, name, O_RDONLY), rc = 0;
	if (fd < 0 || fsync(fd) < 0) rc = fail_errno(name);
	if (fd >= 0) close(fd);
	return rc;
}

static int finish_tile(void *arg, int64_t i, void *buf)
{
	const struct links *l = arg;
	const struct mt_tile t = mt_tile(l->run, (uint32_t)i);
	char name[MT_TILE_NAME];
	mt_tile_name(l->run, (uint32_t)i, name);
	return l->copy ? copy_tile(l, &t, name, buf) : sync_tile(l, name);
}

int links_end(struct links *l, struct run_json *json)
{
	const struct mt_tier *t = &mt_control(l->run)->tier;
	struct work work = {0};
	char name[MT_TILE_NAME];
	if (!l->dirs) return 0;
	int rc = work_begin(&work, SERVE_THREADS);
	if (rc == 0) rc = work_run(&work, t->tiles, finish_tile, l);
	work_end(&work);
	json->tier = (struct run_tier){.tile_elems = t->tile_elems,
		.first = t->first,
		.order = (enum mt_pass_order)t->order,
		.files = json_object()};
	memcpy(json->tier.run, l->run_id, sizeof json->tier.run);
	for (uint32_t i = 0; i < t->tiles && rc == 0; i++) {
		mt_tile_name(l->run, i, name);
		json_put(&rc, json->tier.files, name, json_hash(l->sums[i]));
	}
	return rc;
}

void links_drop(struct links *l)
{
	if (l->copy && l->sums) clean(l);
	free(l->sums);
	l->sums = NULL;
}
