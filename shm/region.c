/* region.c: a named piece of shared memory: made whole or not at all, checked before it is believed.
 *
 * Order at creation: NUMA policy, allocate, verify placement. Allocation is in full, so that a full tmpfs fails here
 * and never as SIGBUS later; and since allocating beyond what the machine or the cgroup has is a SIGKILL, need is
 * compared with have first.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "abi.h"
#include "lib.h"
#include "mt/error.h"
#include "mt/version.h"
#include "os.h"
#include "pool.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const char *const magics[] = {"mtCONTRL", "mtRINGS ", "mtSTORE ", "mtFILES ", "mtRING  "};

/* ---- names */

int region_name_check(const char *run)
{
	size_t n = strlen(run);
	if (n < 1 || n > MT_RUN_NAME)
		return mt_fail(MT_EX_USAGE, "run name '%.40s': wants 1 to %d characters", run, MT_RUN_NAME);
	for (const char *c = run; *c; c++)
		if (!isalnum((unsigned char)*c) && *c != '_' && *c != '-')
			return mt_fail(MT_EX_USAGE, "run name '%s': only letters, digits, '_' and '-'", run);
	return 0;
}

struct region_name region_name(const char *run, enum region r, const char *ring)
{
	static const char *const suffix[] = {"control", "rings", "store", "files", "ring."};
	struct region_name name;
	snprintf(name.text, sizeof name.text, "mt.%u.%s.%s%s", (unsigned)geteuid(), run, suffix[r], ring ? ring : "");
	return name;
}

const char *region_dir(void)
{
	const char *d = getenv("MT_SHM_DIR");
	return d && *d ? d : "/dev/shm";
}

/* Anybody may put a file of any kind into the directory: do not follow links, and do not wait for a FIFO. */
static int open_named(const char *name, int flags)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", region_dir(), name);
	return open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
}

/* Open a region's file, which must be a regular file of this user's. 0, or an error with its message */
static int open_ours(const char *name, int flags, int *fd, struct stat *st)
{
	int rc = 0;
	*fd = open_named(name, flags);
	if (*fd < 0 && errno == ENOENT) return mt_fail(MT_EX_NOINPUT, "no such run (%s is not there)", name);
	if (*fd < 0 && errno == EACCES) return mt_fail(MT_EX_NOTYOURS, "%s is not yours", name);
	if (*fd < 0 && (errno == ELOOP || errno == ENXIO || errno == EISDIR))
		return mt_fail(MT_EX_DATA, "%s is not a regular file", name);
	if (*fd < 0) return mt_fail(errno == ENOMEM ? MT_EX_NOMEM : MT_EX_IO, "opening %s: %s", name, strerror(errno));
	if (fstat(*fd, st)) rc = mt_fail(MT_EX_IO, "reading the status of %s: %s", name, strerror(errno));
	else if (st->st_uid != geteuid())
		rc = mt_fail(MT_EX_NOTYOURS, "%s is not yours: uid %u owns it", name, (unsigned)st->st_uid);
	else if (!S_ISREG(st->st_mode)) rc = mt_fail(MT_EX_DATA, "%s is not a regular file", name);
	if (!rc) return 0;
	close(*fd);
	*fd = -1;
	return rc;
}

enum region_owner region_owner(const char *name, struct stat *st)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", region_dir(), name);
	if (lstat(path, st)) return REGION_ABSENT;
	return st->st_uid == geteuid() && S_ISREG(st->st_mode) ? REGION_OURS : REGION_NOT_OURS;
}

/* A name that is taken: by this user's own run, or by somebody else's file, which nobody but its owner can remove. */
static int name_taken(const char *name)
{
	struct stat st;
	if (region_owner(name, &st) != REGION_NOT_OURS) return mt_fail(MT_EX_EXISTS, "%s exists already", name);
	return region_not_ours(name, &st);
}

int region_not_ours(const char *name, const struct stat *st)
{
	if (st->st_uid == geteuid()) return mt_fail(MT_EX_DATA, "%s/%s is not a regular file", region_dir(), name);
	return mt_fail(MT_EX_NOTYOURS, "%s/%s is not yours: uid %u owns it: take another run name", region_dir(), name,
		(unsigned)st->st_uid);
}

int region_unlink(const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", region_dir(), name);
	return unlink(path) ? -errno : 0;
}

/* ---- room */

void region_boot_id(uint8_t id[16])
{
	/* 36 characters: 32 hexadecimal digits and four '-' */
	char text[40] = "";
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0, digits = 0;
	unsigned byte;
	if (f) fclose(f);
	memset(id, 0, 16);
	for (size_t i = 0; i + 1 < n && digits < 16; i += 2) {
		if (text[i] == '-') i++;
		if (sscanf(text + i, "%2x", &byte) != 1) break;
		id[digits++] = (uint8_t)byte;
	}
	if (digits < 16) memset(id, 0, 16); /* unknown: nothing is compared with it */
}

bool region_other_boot(const struct mt_header *h)
{
	static const uint8_t none[16];
	uint8_t now[16];
	region_boot_id(now);
	return memcmp(now, none, 16) && memcmp(now, h->boot_id, 16);
}

int region_peek(const char *name, struct mt_header *h)
{
	struct stat st;
	int fd, rc = open_ours(name, O_RDONLY, &fd, &st);
	if (rc) return rc;
	if (pread(fd, h, sizeof *h, 0) != sizeof *h) rc = mt_fail(MT_EX_ABI, "%s is half made", name);
	close(fd);
	return rc;
}

/* ---- who makes it */

/* The creator of a run holds a write lock on a byte of its control file until the run is whole. The kernel drops the
 * lock with the process, so a half-made run whose byte is free will never be finished. */
enum { MAKER_BYTE = 128 };
_Static_assert(MAKER_BYTE >= (int)MT_SLOTS, "the first bytes are the slots'");

static int maker_lock(int fd, short type)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = MAKER_BYTE, .l_len = 1};
	return fcntl(fd, F_OFD_SETLK, &l);
}

void region_made(int maker)
{
	/* by hand: the mapping keeps the open file, and its locks, after its descriptor is closed */
	if (maker < 0) return;
	maker_lock(maker, F_UNLCK);
	close(maker);
}

enum region_making region_making(const char *control)
{
	struct stat st;
	struct mt_header h = {0};
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = MAKER_BYTE, .l_len = 1};
	int fd;
	if (open_ours(control, O_RDONLY, &fd, &st)) return REGION_WHOLE;
	bool half = pread(fd, &h, sizeof h, 0) != sizeof h || !h.abi;
	/* a kernel or file system without such locks: it may be at work */
	bool held = fcntl(fd, F_OFD_GETLK, &l) || l.l_type != F_UNLCK;
	close(fd);
	return !half ? REGION_WHOLE : held ? REGION_MAKING : REGION_ABANDONED;
}

int region_seize(const char *control, int *maker)
{
	struct mt_header h = {0};
	struct stat st, named;
	*maker = open_named(control, O_RDWR | O_CREAT | O_EXCL);
	int rc = *maker >= 0 ? fstat(*maker, &st) : open_ours(control, O_RDWR, maker, &st);
	if (rc) return rc;
	if (maker_lock(*maker, F_WRLCK)) rc = -MT_EX_BUSY;
	/* looked at under the lock: it may have become whole, or its name another file's */
	else if ((pread(*maker, &h, sizeof h, 0) == sizeof h && h.abi) || region_owner(control, &named) != REGION_OURS ||
		named.st_ino != st.st_ino)
		rc = -MT_EX_NOINPUT;
	if (rc) region_made(*maker);
	return rc;
}

uint64_t region_free(void)
{
	struct statfs fs;
	bool limited = !statfs(region_dir(), &fs) && fs.f_blocks;
	return limited ? (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize : UINT64_MAX;
}

bool region_is_mount(void)
{
	char parent[4096];
	struct stat here, above;
	snprintf(parent, sizeof parent, "%s/..", region_dir());
	return !stat(region_dir(), &here) && !stat(parent, &above) &&
		(here.st_dev != above.st_dev || here.st_ino == above.st_ino);
}

/* What makes room for `bytes`, `more` than are free: a container's /dev/shm cannot be mounted anew in it */
static const char *enlarge(uint64_t bytes, uint64_t more, char *buf, size_t n)
{
	struct statfs fs;
	uint64_t now = statfs(region_dir(), &fs) ? 0 : (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
	unsigned long long gib = ((now + more) >> 30) + 1;
	bool container = !access("/.dockerenv", F_OK) || !access("/run/.containerenv", F_OK);
	if (container && !strcmp(region_dir(), "/dev/shm"))
		snprintf(buf, n, "start the container with --shm-size=%lluG, or with a volume as MT_SHM_DIR", gib);
	else if (region_is_mount()) snprintf(buf, n, "mount -o remount,size=%lluG %s", gib, region_dir());
	else
		snprintf(buf, n, "mount -t tmpfs -o size=%lluG mt DIR, and MT_SHM_DIR=DIR",
			(unsigned long long)(bytes >> 30) + 1);
	return buf;
}

int region_room(uint64_t bytes, region_remedy *remedy, void *arg)
{
	char text[4096] = "";
	double need = (double)bytes / 0x1p30;
	uint64_t machine = mt_mem_total(); /* first: no larger tmpfs helps where there is no memory behind it */
	uint64_t in_shm = region_free(), ram = mt_machine_available(), group = mt_cgroup_available();
	if (bytes <= machine && bytes > in_shm)
		return mt_fail(MT_EX_NOMEM,
			"not enough shared memory: need %.2f GiB, %s has %.2f GiB free: %s, or rm an old run (mt-store ls)", need,
			region_dir(), (double)in_shm / 0x1p30, enlarge(bytes, bytes - in_shm, text, sizeof text));
	if (bytes <= group && bytes <= ram) return 0;
	uint64_t have = group < ram ? group : ram;
	if (remedy) remedy(arg, have, text, sizeof text - sizeof ", ");
	if (*text) strcat(text, ", ");
	if (bytes > machine)
		return mt_fail(MT_EX_NOMEM,
			"not enough memory: need %.2f GiB, this machine has %.2f GiB of RAM in all: %sa smaller model, or more RAM",
			need, (double)machine / 0x1p30, text);
	if (group <= ram)
		return mt_fail(MT_EX_NOMEM,
			"not enough memory: need %.2f GiB, the cgroup has %.2f GiB left: %sa smaller model, or a higher limit",
			need, (double)have / 0x1p30, text);
	return mt_fail(MT_EX_NOMEM,
		"not enough memory: need %.2f GiB, have %.2f GiB available: %sa smaller model, or more RAM", need,
		(double)have / 0x1p30, text);
}

/* ---- NUMA */

/* libnuma calls this to warn; libmt itself reports an invalid policy, once. */
void numa_warn(int number, char *where, ...) { (void)number, (void)where; }

/* Is there room on the nodes of bind:NODES? Other nodes do not help out: the kernel kills a process that takes more. */
static int numa_room(const struct bitmask *mask, const char *nodes, uint64_t size)
{
	uint64_t have = 0;
	for (unsigned node = 0; node < mask->size; node++) {
		uint64_t more = numa_bitmask_isbitset(mask, node) ? mt_node_available((int)node) : 0;
		have = more > UINT64_MAX - have ? UINT64_MAX : have + more;
	}
	if (size <= have) return 0;
	return mt_fail(MT_EX_NOMEM,
		"not enough memory on NUMA node %s: need %.2f GiB, have %.2f GiB available: "
		"bind to more nodes, or --numa interleave",
		nodes, (double)size / 0x1p30, (double)have / 0x1p30);
}

/* Nodes without cores get nothing of what no policy sends there */
static int numa_leave_out(void *p, uint64_t size)
{
	bool coreless[MT_NUMA_NODES];
	if (!mt_numa_coreless(coreless) || numa_available() < 0) return 0;
	struct bitmask *mask = numa_get_mems_allowed();
	for (unsigned node = 0; node < mask->size && node < MT_NUMA_NODES; node++)
		if (coreless[node]) numa_bitmask_clearbit(mask, node);
	long rc = numa_bitmask_weight(mask) ? mbind(p, size, MPOL_BIND, mask->maskp, mask->size + 1, 0) : 0;
	int err = errno;
	numa_bitmask_free(mask);
	return rc ? mt_fail(MT_EX_NOMEM, "binding memory to NUMA nodes with cores: mbind: %s", strerror(err)) : 0;
}

/* The nodes of a policy without a list: all that have cores */
static struct bitmask *numa_all(void)
{
	bool coreless[MT_NUMA_NODES];
	struct bitmask *mask = numa_parse_nodestring("all");
	if (!mask || !mt_numa_coreless(coreless)) return mask;
	for (unsigned node = 0; node < mask->size && node < MT_NUMA_NODES; node++)
		if (coreless[node]) numa_bitmask_clearbit(mask, node);
	return mask;
}

/* "default", "interleave[:NODES]", "bind:NODES", "preferred:NODE" onto a fresh mapping */
static int numa_apply(void *p, uint64_t size, const char *policy)
{
	if (!policy || !*policy || !strcmp(policy, "default")) return numa_leave_out(p, size);
	static const struct {
		const char *word;
		int mode;
	} modes[] = {
		{"interleave", MPOL_INTERLEAVE},
		{"bind", MPOL_BIND},
		{"preferred", MPOL_PREFERRED},
	};
	size_t len = strcspn(policy, ":");
	const char *nodes = policy[len] ? policy + len + 1 : NULL;
	int mode = -1;
	for (int i = 0; i < 3; i++)
		if (strlen(modes[i].word) == len && !strncmp(policy, modes[i].word, len)) mode = modes[i].mode;
	if (mode < 0 || (mode != MPOL_INTERLEAVE && !policy[len]))
		return mt_fail(MT_EX_USAGE, "--numa '%s': wants default, interleave[:NODES], bind:NODES or preferred:NODE",
			policy);
	if (numa_available() < 0) return mt_fail(MT_EX_USAGE, "--numa '%s': this kernel has no NUMA support", policy);
	struct bitmask *mask = nodes ? numa_parse_nodestring(nodes) : numa_all();
	if (!mask) return mt_fail(MT_EX_USAGE, "--numa '%s': no such nodes '%s'", policy, nodes ? nodes : "all");
	int room = mode == MPOL_BIND ? numa_room(mask, nodes, size) : 0;
	long rc = room ? 0 : mbind(p, size, mode, mask->maskp, mask->size + 1, MPOL_MF_STRICT | MPOL_MF_MOVE);
	int err = errno;
	numa_bitmask_free(mask);
	if (room) return room;
	if (rc) return mt_fail(MT_EX_NOMEM, "--numa '%s': mbind: %s", policy, strerror(err));
	return 0;
}

/* ---- allocation */

struct populate {
	char *p;
	const struct range *parts;
	const volatile int *stop;
	_Atomic int err;
};

enum { STEP = 64 << 20 }; /* small calls, so that a signal is not held off for minutes */

static uint64_t steps_of(const struct range *part) { return (part->end - part->from + STEP - 1) / STEP; }

static void populate(void *arg, int64_t step, int thread)
{
	struct populate *j = arg;
	const struct range *part = j->parts;
	for (; (uint64_t)step >= steps_of(part); part++) step -= (int64_t)steps_of(part);
	uint64_t at = part->from + (uint64_t)step * STEP, n = part->end - at < STEP ? part->end - at : STEP;
	(void)thread;
	if (j->stop && *j->stop) j->err = ECANCELED;
	while (!j->err && madvise(j->p + at, n, MADV_POPULATE_WRITE))
		if (errno != EINTR && errno != EAGAIN) j->err = errno;
}

/* Touch every page from as many threads as pay (the kernel clears some GB/s a core). Huge pages where shmem has them
 * on advice. Kernels before 5.14 lack MADV_POPULATE_WRITE: posix_fallocate does it there. */
static int allocate(int fd, char *p, const struct range *parts, uint32_t n_parts, const volatile int *stop)
{
	enum { MAX = 64 };
	struct populate j = {.p = p, .parts = parts, .stop = stop};
	uint64_t n = ranges_bytes(parts, n_parts) / (256 << 20), cores = (uint64_t)mt_cores(), steps = 0;
	if (n > cores) n = cores;
	struct pool *pool = n > 1 ? pool_create(n < MAX ? (int)n : MAX, 0, NULL) : NULL; /* NULL: this thread alone */
	for (uint32_t i = 0; i < n_parts; i++) {
		/* advice: refused where there are none */
		(void)madvise(p + parts[i].from, parts[i].end - parts[i].from, MADV_HUGEPAGE);
		steps += steps_of(&parts[i]);
	}
	pool_run(pool, (int64_t)steps, populate, &j);
	pool_free(pool);
	int err = j.err;
	if (err != EINVAL && err != ENOSYS) return err;
	err = 0;
	for (uint32_t i = 0; i < n_parts && !err; i++)
		err = posix_fallocate(fd, (off_t)parts[i].from, (off_t)(parts[i].end - parts[i].from));
	return err;
}

static uint64_t region_fingerprint(void)
{
#define FIELD(s, f, off, size) off, size,
#define SIZE(s, size) size,
	static const uint64_t facts[] = {MT_ABI_FIELDS(FIELD) MT_ABI_SIZES(SIZE)}; /* abi.c asserts that they hold */
#undef FIELD
#undef SIZE
	return XXH64(facts, sizeof facts, MT_ABI);
}

/* ---- create, open */

/* Where this process has regions mapped; read by a signal handler, so without locks. A region that finds no place is
 * mapped all the same: only the message about its loss is missing then. */
enum { MAPPED = 64 };
static struct {
	_Atomic uintptr_t from, to;
} mapped[MAPPED];

static void mapped_add(const struct map *map)
{
	for (int i = 0; i < MAPPED; i++) {
		uintptr_t none = 0;
		if (!atomic_compare_exchange_strong(&mapped[i].from, &none, (uintptr_t)map->p)) continue;
		atomic_store(&mapped[i].to, (uintptr_t)map->p + map->size);
		return;
	}
}

static void mapped_drop(const struct map *map)
{
	for (int i = 0; i < MAPPED; i++)
		if (atomic_load(&mapped[i].from) == (uintptr_t)map->p) {
			atomic_store(&mapped[i].to, 0);
			atomic_store(&mapped[i].from, 0);
			return;
		}
}

bool region_at(const void *p)
{
	for (int i = 0; i < MAPPED; i++)
		if ((uintptr_t)p >= atomic_load(&mapped[i].from) && (uintptr_t)p < atomic_load(&mapped[i].to)) return true;
	return false;
}

static int map_fd(int fd, uint64_t size, bool readonly, struct map *map)
{
	void *p = mmap(NULL, size, readonly ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) return mt_fail(MT_EX_NOMEM, "mapping %.2f GiB: %s", (double)size / 0x1p30, strerror(errno));
	(void)madvise(p, size, MADV_DONTFORK); /* a child must not keep a dead stage's mapping alive */
	map->p = p;
	map->size = size;
	mapped_add(map);
	return 0;
}

int region_create(const char *name, enum region r, uint64_t size, const struct range *parts, uint32_t n,
	const uint8_t run_id[16], const char *numa, struct map *map, int *maker, const volatile int *stop)
{
	size = round_up(size, mt_page());
	const struct range all = {0, size};
	if (!parts) parts = &all, n = 1;
	int fd = open_named(name, O_RDWR | O_CREAT | O_EXCL);
	if (fd < 0 && errno == EEXIST) return name_taken(name);
	if (fd < 0) return mt_fail(MT_EX_IO, "making %s: %s", name, strerror(errno));
	/* without such locks, others wait for a dead creator, too */
	struct stat st;
	if (maker && ((maker_lock(fd, F_WRLCK) && errno == EAGAIN) || (!fstat(fd, &st) && !st.st_nlink))) {
		close(fd);
		return mt_fail(MT_EX_BUSY, "%s: another program has just removed it as half made; try again", name);
	}
	int rc = 0, err = ftruncate(fd, (off_t)size) ? errno : 0;
	if (err) rc = mt_fail(MT_EX_IO, "sizing %s to %.2f GiB: %s", name, (double)size / 0x1p30, strerror(err));
	if (!rc) rc = map_fd(fd, size, false, map);
	if (!rc && (rc = numa_apply(map->p, size, numa)) == 0 && (err = allocate(fd, map->p, parts, n, stop)) != 0)
		rc = err == ECANCELED
			? mt_fail(MT_EX_BUSY, "making %s was stopped", name)
			: mt_fail(MT_EX_NOMEM, "not enough shared memory for %s: need %.2f GiB: %s", name,
				  (double)ranges_bytes(parts, n) / 0x1p30, err == EFAULT ? "tmpfs is full" : strerror(err));
	if (rc || !maker) close(fd);
	else *maker = fd;
	if (rc) {
		region_unmap(map);
		region_unlink(name);
		return rc;
	}
	struct mt_header *h = map->p;
	memcpy(h->magic, magics[r], sizeof h->magic);
	h->fingerprint = region_fingerprint();
	h->size = size;
	memcpy(h->run_id, run_id, sizeof h->run_id);
	region_boot_id(h->boot_id);
	return 0;
}

void region_publish(struct map *map)
{
	atomic_store_explicit(&((struct mt_header *)map->p)->abi, MT_ABI, memory_order_release);
}

int region_open_keep(const char *name, enum region r, bool readonly, const uint8_t *run_id, struct map *map, int *keep)
{
	struct stat st;
	*keep = -1;
	int fd, rc = open_ours(name, readonly ? O_RDONLY : O_RDWR, &fd, &st);
	if (rc) return rc;
	if ((size_t)st.st_size < sizeof(struct mt_header)) rc = mt_fail(MT_EX_ABI, "%s is half made", name);
	else rc = map_fd(fd, (uint64_t)st.st_size, readonly, map);
	if (rc) {
		close(fd);
		return rc;
	}
	const struct mt_header *h = map->p;
	uint32_t abi = atomic_load_explicit(&h->abi, memory_order_acquire);
	if (abi == 0) rc = mt_fail(MT_EX_ABI, "%s is half made", name);
	else if (memcmp(h->magic, magics[r], sizeof h->magic)) rc = mt_fail(MT_EX_DATA, "%s is not a region of mt", name);
	else if (abi != MT_ABI) rc = mt_fail(MT_EX_ABI, "%s is of ABI version %u, this is %u", name, abi, MT_ABI);
	else if (h->fingerprint != region_fingerprint()) rc = mt_fail(MT_EX_ABI, "%s was made by another build", name);
	else if (h->size != map->size)
		rc = mt_fail(MT_EX_DATA, "%s has %llu bytes and says %llu", name, (unsigned long long)map->size,
			(unsigned long long)h->size);
	else if (run_id && memcmp(run_id, h->run_id, sizeof h->run_id))
		rc = mt_fail(MT_EX_DATA, "%s belongs to another run of that name", name);
	if (rc) {
		region_unmap(map);
		close(fd);
		return rc;
	}
	*keep = fd;
	return 0;
}

bool region_map_half(const char *control, uint64_t least, struct map *map)
{
	struct stat st;
	int fd;
	if (open_ours(control, O_RDWR, &fd, &st)) return false;
	bool fits = (uint64_t)st.st_size >= least && map_fd(fd, (uint64_t)st.st_size, false, map) == 0;
	close(fd);
	if (!fits) return false;
	const struct mt_header *h = map->p;
	if (!memcmp(h->magic, magics[REGION_CONTROL], sizeof h->magic) && h->fingerprint == region_fingerprint() && !h->abi)
		return true;
	region_unmap(map);
	return false;
}

int region_open(const char *name, enum region r, bool readonly, const uint8_t *run_id, struct map *map)
{
	int fd, rc = region_open_keep(name, r, readonly, run_id, map, &fd);
	if (fd >= 0) close(fd);
	return rc;
}

void region_unmap(struct map *map)
{
	if (map->p) mapped_drop(map);
	if (map->p) munmap(map->p, map->size);
	*map = (struct map){0};
}
