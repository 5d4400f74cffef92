/* drive.c: the tier's directories and files: made with a run and removed with it; mapped by who fills or copies a run
 * that nobody trains; their seals after a filling. mt-tier reads and writes them while a run is trained (shm/tier). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "os.h"
#include "pool.h"

#define MEMORY "memory" /* the file in a tier's directory that says where the run's memory is */

/* ---- names */

/* Each directory has room for two paths, and a bit of `moved` says which is true: so it is changed at once */
static char *place_of(const struct mt_control *c, uint32_t dir, uint32_t second)
{
	return (char *)c + c->tier.off_dirs + (2 * (uint64_t)dir + second) * MT_TIER_PATH;
}

static char *path_of(const struct mt_control *c, uint32_t dir)
{
	/* acquire: the path is whole before its bit */
	return place_of(c, dir, atomic_load_explicit(&c->tier.moved, memory_order_acquire) >> dir & 1);
}

void mt_tier_move(struct mt_run *run, uint32_t dir, const char *path)
{
	struct mt_control *c = run->control;
	uint32_t now = atomic_load_explicit(&c->tier.moved, memory_order_relaxed);
	snprintf(place_of(c, dir, ~now >> dir & 1), MT_TIER_PATH, "%s", path);
	/* release: for path_of */
	atomic_store_explicit(&c->tier.moved, now ^ 1u << dir, memory_order_release);
}

const char *mt_tier_dir(const struct mt_run *run, uint32_t dir) { return path_of(run->control, dir); }

bool tier_valid(const struct mt_control *c)
{
	bool ok = c->tier.dirs >= 1 && c->tier.dirs <= MT_TIER_DIRS;
	for (uint32_t i = 0; ok && i < c->tier.dirs; i++)
		ok = *path_of(c, i) == '/' && memchr(path_of(c, i), 0, MT_TIER_PATH);
	return ok;
}

void mt_tile_name_of(uint32_t unit, uint32_t number, char name[MT_TILE_NAME])
{
	snprintf(name, MT_TILE_NAME, "unit-%04u.tile-%03u", unit, number);
}

void mt_tile_name(const struct mt_run *run, uint32_t i, char name[MT_TILE_NAME])
{
	struct mt_tile t = mt_tile(run, i);
	mt_tile_name_of(t.unit, t.number, name);
}

/* unit-0012.tile-003, or with .new, or with .save (mt-ckpt serve --copy-tier) */
static bool is_tile(const char *name)
{
	unsigned unit, tile;
	int n = 0;
	return sscanf(name, "unit-%u.tile-%u%n", &unit, &tile, &n) == 2 && n &&
		(!name[n] || !strcmp(name + n, ".new") || !strcmp(name + n, ".save"));
}

int mt_tier_open_dir(const char *path, int *fd)
{
	struct stat st;
	*fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*fd < 0) return mt_fail(errno == ENOENT ? MT_EX_NOINPUT : MT_EX_IO, "%s: %s", path, strerror(errno));
	if (!fstat(*fd, &st) && st.st_uid == geteuid()) return 0;
	close(*fd);
	*fd = -1;
	return mt_fail(MT_EX_NOTYOURS, "%s is not yours", path);
}

int mt_tier_open(const struct mt_run *run, uint32_t dir, int *fd)
{
	return mt_tier_open_dir(mt_tier_dir(run, dir), fd);
}

/* ---- a file */

int mt_tile_open(int dirfd, const char *name, int flags)
{
	struct stat st;
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) || S_ISREG(st.st_mode))
		return openat(dirfd, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	errno = ELOOP;
	return -1;
}

struct header {
	char text[MT_TILE_HEADER];
	size_t n;
	uint64_t at; /* of the data, so far */
	uint32_t pads;
};

static void add(struct header *h, const char *name, const char *dtype, uint64_t n, uint64_t end)
{
	int more = snprintf(h->text + 8 + h->n, sizeof h->text - 8 - h->n,
		"%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%llu],\"data_offsets\":[%llu,%llu]}", h->n ? "," : "{", name, dtype,
		(unsigned long long)n, (unsigned long long)h->at, (unsigned long long)end);
	h->n += (size_t)more;
	h->at = end;
}

/* An array at `off`, which begins where the one before ends, or behind a gap: safetensors has no gaps */
static void add_array(struct header *h, const struct mt_tile *t, const char *array, const char *dtype, uint64_t off,
	uint64_t n, uint64_t bytes)
{
	char name[80];
	if (off == MT_NO_ARRAY) return;
	snprintf(name, sizeof name, "pad.%u", h->pads++);
	if (h->at < off) add(h, name, "U8", off - h->at, off);
	snprintf(name, sizeof name, "unit.%u[%llu:%llu].%s", t->unit, (unsigned long long)t->first,
		(unsigned long long)t->end, array);
	add(h, name, dtype, n, off + n * bytes);
}

/* The safetensors header of a tile's file, padded with blanks */
static void header_make(const struct mt_run *run, const struct mt_tile *t, struct header *h)
{
	uint32_t state = run->control->state;
	const char *dtype = state == MT_INT8 ? "U8" : state == MT_BF16 ? "BF16" : "F32";
	uint64_t n = t->end - t->first, bytes = mt_dtype_bytes(state);
	memset(h, 0, sizeof *h);
	add_array(h, t, "lo", "I16", t->lo, n, 2);
	add_array(h, t, "m", dtype, t->m, n, bytes);
	add_array(h, t, "m.scale", "F32", t->m_scale, n / MT_GROUP, 4);
	add_array(h, t, "v", dtype, t->v, n, bytes);
	add_array(h, t, "v.scale", "F32", t->v_scale, n / MT_GROUP, 4);
	if (h->at < t->seal) add(h, "pad.seal", "U8", t->seal - h->at, t->seal);
	add(h, "seal", "U8", t->bytes - t->seal, t->bytes);
	h->text[8 + h->n++] = '}';
	memset(h->text + 8 + h->n, ' ', sizeof h->text - 8 - h->n);
	uint64_t length = sizeof h->text - 8;
	memcpy(h->text, &length, 8);
}

/* btrfs copies what is written again, and counts checksums for it, unless the file is marked before its first byte. */
static void no_copy_on_write(int fd)
{
	int flags;
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags)) return;
	flags |= FS_NOCOW_FL;
	(void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

static int write_header(const struct mt_run *run, const struct mt_tile *t, int fd)
{
	struct header *h = aligned_alloc(4096, round_up(sizeof *h, 4096)); /* for direct I/O */
	if (!h) return ENOMEM;
	header_make(run, t, h);
	ssize_t n = pwrite(fd, h->text, sizeof h->text, 0);
	int err = n < 0 ? errno : n == sizeof h->text ? 0 : EIO;
	free(h);
	return err;
}

int mt_tile_create(const struct mt_run *run, uint32_t i, int dirfd, const char *name, int *out)
{
	struct mt_tile t = mt_tile(run, i);
	struct statfs fs;
	int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0666), err = fd < 0 ? errno : 0;
	if (!err && !fstatfs(fd, &fs) && fs.f_type == BTRFS_SUPER_MAGIC) no_copy_on_write(fd);
	if (!err && fallocate(fd, 0, 0, (off_t)(MT_TILE_HEADER + t.bytes))) err = errno;
	if (!err) err = write_header(run, &t, fd);
	*out = fd;
	if (!err) return 0;
	if (fd >= 0) {
		close(fd);
		unlinkat(dirfd, name, 0);
	}
	*out = -1;
	int rc = mt_fail(MT_EX_IO, "making %s/%s of %.2f GB: %s", mt_tier_dir(run, t.dir), name,
		(double)(MT_TILE_HEADER + t.bytes) / 1e9, strerror(err));
	errno = err;
	return rc;
}

/* ---- directories */

/* Hard links say which files may be written: only local file systems count them truly. */
static int check_file_system(const char *path)
{
	static const uint32_t known[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC};
	struct statfs fs;
	if (statfs(path, &fs)) return mt_fail(MT_EX_IO, "%s: %s", path, strerror(errno));
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if ((uint32_t)fs.f_type == known[i]) return 0;
	return mt_fail(MT_EX_CONFIG,
		"--tier %s: wants a directory on ext4, xfs, btrfs or f2fs, not on a file system of type %lx", path,
		(unsigned long)fs.f_type);
}

/* Direct I/O: asked once, so that a file system without it is an error before anything is made */
static int check_direct(int dirfd, const char *path)
{
	int fd = openat(dirfd, ".direct", O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0666), err = errno;
	if (fd >= 0) close(fd);
	unlinkat(dirfd, ".direct", 0);
	return fd >= 0 ? 0 : mt_fail(MT_EX_CONFIG, "--tier %s: direct I/O: %s", path, strerror(err));
}

/* Deletes what tiles are in it, and the directory if nothing else is */
static int empty_dir(int fd)
{
	int copy = dup(fd), err = 0;
	DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
	if (!d) return errno;
	rewinddir(d);
	for (struct dirent *e; (e = readdir(d));)
		if (is_tile(e->d_name) && unlinkat(fd, e->d_name, 0)) err = errno;
	closedir(d);
	return err;
}

int mt_tier_drop(const char *path)
{
	/* the name says whose it is: never another directory */
	const char *base = strrchr(path, '/') + 1;
	size_t n = strlen(base);
	int fd, rc;
	if (strncmp(base, "mt.", 3) || n < 8 || strcmp(base + n - 5, ".tier"))
		return mt_fail(MT_EX_DATA, "%s is not a tier's directory", path);
	if ((rc = mt_tier_open_dir(path, &fd))) return rc;
	int err = empty_dir(fd);
	if (!err && unlinkat(fd, MEMORY, 0) && errno != ENOENT) err = errno;
	close(fd);
	if (!err && rmdir(path)) err = errno;
	return err ? mt_fail(MT_EX_IO, "%s: %s", path, strerror(err)) : 0;
}

void tier_remove(const struct mt_run *run)
{
	for (uint32_t i = 0; i < run->control->tier.dirs; i++) (void)mt_tier_drop(mt_tier_dir(run, i));
}

/* Where the run's memory is: the boot, device, inode and path of its control region. By this anybody can see whether
 * the run is gone, whatever its ABI, MT_SHM_DIR or container */
static int write_memory(const struct mt_run *run, const char *path)
{
	struct region_name control = region_name(run->control->name, REGION_CONTROL, NULL);
	struct stat st = {0};
	uint8_t boot[16];
	char *real = realpath(region_dir(), NULL), text[33];
	int dir, fd = -1, rc = mt_tier_open_dir(path, &dir);
	if (rc == 0) fd = openat(dir, MEMORY, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	region_boot_id(boot);
	for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", boot[i]);
	(void)region_owner(control.text, &st);
	bool ok = fd >= 0 && real &&
		dprintf(fd, "%s %llu %llu\n%s/%s\n", text, (unsigned long long)st.st_dev, (unsigned long long)st.st_ino, real,
			control.text) > 0;
	if (rc == 0 && !ok) rc = mt_fail(MT_EX_IO, "%s/" MEMORY ": %s", path, strerror(errno));
	if (fd >= 0) close(fd);
	if (dir >= 0) close(dir);
	free(real);
	return rc;
}

int mt_tier_make(const struct mt_run *run, const char *given, char path[MT_TIER_PATH])
{
	const uint8_t *id = run->control->h.run_id;
	char *real;
	*path = 0;
	if (mkdir(given, 0777) && errno != EEXIST) return mt_fail(MT_EX_EXISTS, "--tier %s: %s", given, strerror(errno));
	real = realpath(given, NULL);
	if (!real) return mt_fail(MT_EX_NOINPUT, "--tier %s: %s", given, strerror(errno));
	int n = snprintf(path, MT_TIER_PATH, "%s/mt.%u.%s.%02x%02x%02x%02x.tier", real, (unsigned)geteuid(),
			run->control->name, id[0], id[1], id[2], id[3]),
		rc = n < MT_TIER_PATH ? check_file_system(real)
							  : mt_fail(MT_EX_USAGE, "--tier %s: its path is too long", given);
	free(real);
	if (rc) {
		*path = 0;
		return rc;
	}
	if (mkdir(path, 0700)) return mt_fail(MT_EX_EXISTS, "%s: %s", path, strerror(errno));
	rc = write_memory(run, path);
	if (rc) (void)mt_tier_drop(path);
	return rc;
}

static int create_all(struct mt_run *run, int fds[MT_TIER_DIRS])
{
	int rc = 0, fd;
	char name[MT_TILE_NAME];
	for (uint32_t i = 0; i < run->control->tier.tiles && !rc; i++) {
		mt_tile_name(run, i, name);
		rc = mt_tile_create(run, i, fds[i % run->control->tier.dirs], name, &fd);
		if (!rc) close(fd);
	}
	return rc;
}

static void close_dirs(const struct mt_run *run, int fds[MT_TIER_DIRS])
{
	for (uint32_t i = 0; i < run->control->tier.dirs; i++)
		if (fds[i] >= 0) close(fds[i]);
}

static int open_dirs(const struct mt_run *run, int fds[MT_TIER_DIRS])
{
	int rc = 0;
	for (uint32_t i = 0; i < MT_TIER_DIRS; i++) fds[i] = -1;
	for (uint32_t i = 0; i < run->control->tier.dirs && !rc; i++) rc = mt_tier_open(run, i, &fds[i]);
	if (rc) close_dirs(run, fds);
	return rc;
}

/* int8's scales follow one another in files of tiles as they do in memory only at multiples of 4096 bytes. */
static int check_pages(uint32_t state)
{
	if (mt_page() <= (state == MT_INT8 ? 4096 : MT_TILE_PAGE)) return 0;
	return mt_fail(MT_EX_CONFIG, "--tier with --state int8 wants a kernel with pages of 4 KiB; this one's have %llu",
		(unsigned long long)mt_page() / 1024);
}

int tier_create(struct mt_run *run, const char *const *dirs)
{
	struct mt_tier *t = &run->control->tier;
	int fds[MT_TIER_DIRS], rc = check_pages(run->control->state);
	uint32_t made = 0, dirs_given = t->dirs;
	while (!rc && made < dirs_given && !(rc = mt_tier_make(run, dirs[made], path_of(run->control, made)))) made++;
	t->dirs = made;
	if (!rc && !(rc = open_dirs(run, fds))) {
		for (uint32_t i = 0; i < made && !rc; i++) rc = check_direct(fds[i], mt_tier_dir(run, i));
		if (!rc) rc = create_all(run, fds);
		close_dirs(run, fds);
	}
	if (rc) tier_remove(run);
	t->dirs = dirs_given;
	return rc;
}

/* ---- mapped */

static int map_array(struct mt_run *run, uint64_t off, int fd, uint64_t in_file, uint64_t bytes)
{
	int prot = run->flags & MT_RUN_READONLY ? PROT_READ : PROT_READ | PROT_WRITE;
	void *p = (uint8_t *)run->tier_map.p + (off - run->state_bytes);
	if (mmap(p, round_up(bytes, 4096), prot, MAP_SHARED | MAP_FIXED, fd, (off_t)(MT_TILE_HEADER + in_file)) !=
		MAP_FAILED)
		return 0;
	return mt_fail(MT_EX_NOMEM, "mapping a tile: %s%s", strerror(errno),
		errno == ENOMEM ? ": more maps than sysctl vm.max_map_count, or ulimit -v" : "");
}

static int map_tile(struct mt_run *run, const struct mt_tile *t, int fd)
{
	const struct mt_unit *u = mt_unit(run, t->unit);
	uint64_t n = t->end - t->first, bytes = mt_dtype_bytes(run->control->state), groups = t->first / MT_GROUP * 4;
	int rc = 0;
	if (t->lo != MT_NO_ARRAY) rc = map_array(run, u->lo + t->first * 2, fd, t->lo, n * 2);
	if (!rc) rc = map_array(run, u->m + t->first * bytes, fd, t->m, n * bytes);
	if (!rc && t->v != MT_NO_ARRAY) rc = map_array(run, u->v + t->first * bytes, fd, t->v, n * bytes);
	if (!rc && t->m_scale != MT_NO_ARRAY)
		rc = map_array(run, u->m + mt_scales_at(u->elems) + groups, fd, t->m_scale, n / MT_GROUP * 4);
	if (!rc && t->v_scale != MT_NO_ARRAY)
		rc = map_array(run, u->v + mt_scales_at(u->elems) + groups, fd, t->v_scale, n / MT_GROUP * 4);
	return rc;
}

/* A new file in place of one that a checkpoint may have linked */
static int open_fresh(const struct mt_run *run, uint32_t i, int dirfd, const char *name, int *fd)
{
	if (unlinkat(dirfd, name, 0) && errno != ENOENT)
		return mt_fail(MT_EX_IO, "%s/%s: %s", mt_tier_dir(run, i % run->control->tier.dirs), name, strerror(errno));
	int rc = mt_tile_create(run, i, dirfd, name, fd);
	if (!rc) (void)fcntl(*fd, F_SETFL, 0); /* the page cache writes it */
	return rc;
}

static int open_tile(const struct mt_run *run, uint32_t i, int dirfd, const char *name, int *fd)
{
	const char *path = mt_tier_dir(run, i % run->control->tier.dirs);
	struct mt_tile t = mt_tile(run, i);
	struct stat st;
	*fd = mt_tile_open(dirfd, name, run->flags & MT_RUN_READONLY ? O_RDONLY : O_RDWR);
	if (*fd < 0)
		return mt_fail(errno == ENOENT ? MT_EX_NOINPUT : MT_EX_IO, "%s/%s: %s", path, name,
			errno == ELOOP ? "is a link or not a plain file" : strerror(errno));
	if (!fstat(*fd, &st) && (uint64_t)st.st_size == MT_TILE_HEADER + t.bytes) return 0;
	close(*fd);
	return mt_fail(MT_EX_DATA, "%s/%s: has another length than a tile of this run", path, name);
}

int mt_tier_map(struct mt_run *run, bool fresh)
{
	const struct mt_tier *tier = &run->control->tier;
	int fds[MT_TIER_DIRS];
	if (!tier->tiles || run->tier_map.p) return 0;
	int rc = check_pages(run->control->state);
	if (!rc) rc = open_dirs(run, fds);
	if (rc) return rc;
	void *p = mmap(NULL, run->tier_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) rc = mt_fail(MT_EX_NOMEM, "no address space for the tier: %s", strerror(errno));
	else run->tier_map = (struct map){p, run->tier_bytes};
	for (uint32_t i = 0; i < tier->tiles && !rc; i++) {
		struct mt_tile t = mt_tile(run, i);
		char name[MT_TILE_NAME];
		int fd;
		mt_tile_name(run, i, name);
		rc = (fresh ? open_fresh : open_tile)(run, i, fds[t.dir], name, &fd);
		if (!rc) {
			rc = map_tile(run, &t, fd);
			close(fd);
		}
	}
	close_dirs(run, fds);
	if (rc) tier_unmap(run);
	return rc;
}

void tier_unmap(struct mt_run *run)
{
	if (run->tier_map.p) munmap(run->tier_map.p, run->tier_map.size);
	run->tier_map = (struct map){0};
}

/* ---- seals */

struct sealing {
	struct mt_run *run;
	uint64_t t;
	int fds[MT_TIER_DIRS];
	_Atomic int err;
	_Atomic uint32_t tile; /* the one that failed */
};

/* XXH3 of a chunk of a file. Where nobody has written, it is not read: a large model's m and v are zero at first. */
static int chunk_sum(int fd, uint64_t at, uint64_t bytes, uint8_t *buf, uint64_t *sum)
{
	off_t data = lseek(fd, (off_t)at, SEEK_DATA);
	if ((data < 0 && errno == ENXIO) || (data >= 0 && (uint64_t)data >= at + bytes)) memset(buf, 0, bytes);
	else
		for (uint64_t n = 0; n < bytes;) {
			ssize_t got = pread(fd, buf + n, bytes - n, (off_t)(at + n));
			if (got <= 0) return got ? errno : EIO;
			n += (uint64_t)got;
		}
	*sum = XXH3_64bits(buf, bytes);
	return 0;
}

static int seal_file(struct sealing *s, uint32_t i, int fd)
{
	struct mt_tile t = mt_tile(s->run, i);
	uint32_t chunks = mt_tile_chunks(&t);
	struct mt_seal *seal = calloc(1, t.bytes - t.seal);
	uint8_t *buf = malloc(MT_TILE_CHUNK);
	int err = seal && buf ? 0 : ENOMEM;
	for (uint32_t k = 0; k < chunks && !err; k++) {
		uint64_t from, bytes;
		mt_tile_chunk(&t, k, &from, &bytes);
		err = chunk_sum(fd, MT_TILE_HEADER + from, bytes, buf, &seal->chunk[k]);
	}
	if (!err) {
		mt_seal_make(seal, s->run->control->h.run_id, i, chunks, s->t);
		ssize_t n = pwrite(fd, seal, t.bytes - t.seal, (off_t)(MT_TILE_HEADER + t.seal));
		err = n < 0 ? errno : (uint64_t)n == t.bytes - t.seal ? 0 : EIO;
	}
	if (!err && fdatasync(fd)) err = errno;
	if (!err) (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	free(seal);
	free(buf);
	return err;
}

static void seal_tile(void *arg, int64_t i, int thread)
{
	struct sealing *s = arg;
	char name[MT_TILE_NAME];
	(void)thread;
	if (s->err) return;
	mt_tile_name(s->run, (uint32_t)i, name);
	int fd = mt_tile_open(s->fds[i % s->run->control->tier.dirs], name, O_RDWR);
	int err = fd < 0 ? errno : seal_file(s, (uint32_t)i, fd);
	if (fd >= 0) close(fd);
	if (!err) return;
	s->tile = (uint32_t)i;
	s->err = err;
}

int mt_tier_seal(struct mt_run *run, uint64_t t)
{
	enum { THREADS = 16 };
	struct sealing s = {.run = run, .t = t};
	if (!run->control->tier.tiles) return 0;
	tier_unmap(run);
	int rc = open_dirs(run, s.fds), cores = mt_cores();
	if (rc) return rc;
	struct pool *pool = pool_create(cores < THREADS ? cores : THREADS, 0, NULL); /* NULL: no threads */
	pool_run(pool, run->control->tier.tiles, seal_tile, &s);
	pool_free(pool);
	close_dirs(run, s.fds);
	if (!s.err) return 0;
	char name[MT_TILE_NAME];
	mt_tile_name(run, s.tile, name);
	return mt_fail(MT_EX_IO, "%s/%s: %s", mt_tier_dir(run, s.tile % run->control->tier.dirs), name, strerror(s.err));
}
