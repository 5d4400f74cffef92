/* bench.c: what a drive gives a training: mt-tier's order of reads and writes, without a run. Files are filled once.
 * Then they are read and written again tile by tile, each written after it was read, until the rate of both together is
 * flat: drives write fast into a cache at first, and a training is long. The files have no names, so that nothing of
 * them outlives this process. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "splitmix.h"
#include "tier.h"

enum { SLOTS = 4, FILES = 2 * SLOTS, WINDOWS = 3, LONGEST = 10 /* times --seconds */ };
static const double flat = 0.05; /* the windows' rates differ by less */

struct slot {
	uint64_t q;
	bool write;
	uint32_t next, left; /* chunks to begin, chunks not done */
	uint8_t *bytes;
};

struct measure {
	int fds[FILES];         /* they have the tiles in turn */
	uint32_t files;         /* made so far */
	uint32_t tiles, chunks; /* chunks: of a tile */
	pthread_mutex_t lock;   /* of all below */
	pthread_cond_t more;
	bool stop;
	struct slot slots[SLOTS];
	uint64_t bytes[2]; /* read, written */
	bool filled;
	int err;
};

struct crowd {
	struct measure *m;
	bool write;
};

/* ---- reading and writing */

static int transfer(struct measure *m, struct slot *s, bool write, uint32_t chunk)
{
	uint8_t *p = s->bytes + (uint64_t)chunk * MT_TILE_CHUNK;
	uint64_t tile = s->q % m->tiles, first = tile / FILES * m->chunks + chunk; /* chunk of the file */
	int fd = m->fds[tile % FILES], err = 0;
	if (write) {
		memcpy(p, &s->q, sizeof s->q);
		uint64_t sum = XXH3_64bits(p, MT_TILE_CHUNK);
		memcpy(p + sizeof sum, &sum, sizeof sum);
	}
	for (uint64_t n = 0; n < MT_TILE_CHUNK && !err;) {
		off_t at = (off_t)(first * MT_TILE_CHUNK + n);
		ssize_t more = write ? pwrite(fd, p + n, MT_TILE_CHUNK - n, at) : pread(fd, p + n, MT_TILE_CHUNK - n, at);
		if (more < 0 && errno == EINTR) continue;
		if (more <= 0) err = more ? errno : EIO;
		else n += (uint64_t)more - (uint64_t)more % 4096;
	}
	if (!write && !err && !XXH3_64bits(p, MT_TILE_CHUNK)) err = EIO; /* the sum is taken, as for a run */
	return err;
}

static int make_file(struct measure *m, int parent)
{
	char name[40];
	snprintf(name, sizeof name, ".mt-tier-bench.%d", (int)getpid());
	(void)unlinkat(parent, name, 0); /* of one that was killed between these two calls */
	int fd = openat(parent, name, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0666), err = fd < 0 ? errno : 0;
	if (!err && unlinkat(parent, name, 0)) err = errno;
	uint64_t tiles = (m->tiles - m->files + FILES - 1) / FILES;
	if (!err && fallocate(fd, 0, 0, (off_t)(tiles * m->chunks * MT_TILE_CHUNK))) err = errno;
	if (fd >= 0) m->fds[m->files++] = fd;
	return err;
}

static struct slot *take(struct measure *m, bool write)
{
	struct slot *oldest = NULL;
	for (int i = 0; i < SLOTS; i++) {
		struct slot *s = &m->slots[i];
		if (s->write == write && s->next < m->chunks && (!oldest || s->q < oldest->q)) oldest = s;
	}
	return oldest;
}

/* All of the slot's tile is read, or written */
static void turn(struct measure *m, struct slot *s)
{
	if (s->write) s->q += SLOTS;
	s->write = !s->write || s->q < m->tiles; /* the first pass only writes */
	m->filled |= s->q >= m->tiles;
	s->next = 0;
	s->left = m->chunks;
	pthread_cond_broadcast(&m->more);
}

static void *work(void *arg)
{
	const struct crowd *c = arg;
	struct measure *m = c->m;
	pthread_mutex_lock(&m->lock);
	while (!m->stop) {
		struct slot *s = take(m, c->write);
		if (!s) {
			pthread_cond_wait(&m->more, &m->lock);
			continue;
		}
		uint32_t chunk = s->next++;
		pthread_mutex_unlock(&m->lock);
		int err = transfer(m, s, c->write, chunk);
		pthread_mutex_lock(&m->lock);
		if (err && !m->err) m->err = err;
		m->stop |= err != 0;
		m->bytes[c->write] += MT_TILE_CHUNK;
		if (!--s->left) turn(m, s);
	}
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

/* ---- the rate */

struct rate {
	double read, written;
};

static struct rate window(struct measure *m, double s)
{
	uint64_t from[2], to[2];
	pthread_mutex_lock(&m->lock);
	memcpy(from, m->bytes, sizeof from);
	pthread_mutex_unlock(&m->lock);
	double began = mt_now();
	while (mt_now() < began + s && !m->stop && !mt_stopping) mt_nap(s < 0.1 ? 10 : 100);
	s = mt_now() - began;
	pthread_mutex_lock(&m->lock);
	memcpy(to, m->bytes, sizeof to);
	pthread_mutex_unlock(&m->lock);
	return (struct rate){(double)(to[0] - from[0]) / s, (double)(to[1] - from[1]) / s};
}

/* true: it was flat in the end */
static bool measure_rate(struct measure *m, double seconds, struct rate *mean, double *took)
{
	struct rate last[WINDOWS] = {{0, 0}};
	double each = seconds / (2 * WINDOWS);
	while (!m->filled && !m->stop && !mt_stopping) mt_nap(10);
	double began = mt_now();
	while (!m->stop && !mt_stopping) {
		double low = 1e300, high = 0;
		memmove(last, last + 1, sizeof last - sizeof *last);
		last[WINDOWS - 1] = window(m, each);
		*mean = (struct rate){0, 0};
		for (int i = 0; i < WINDOWS; i++) {
			double sum = last[i].read + last[i].written;
			low = sum < low ? sum : low;
			high = sum > high ? sum : high;
			mean->read += last[i].read / WINDOWS;
			mean->written += last[i].written / WINDOWS;
		}
		*took = mt_now() - began;
		bool is_flat = high - low <= flat * high;
		if ((is_flat && *took >= seconds) || *took >= LONGEST * seconds) return is_flat;
	}
	return false;
}

static int print(const char *dir, int parent, const struct rate *r, double took, bool is_flat, uint64_t bytes)
{
	json_t *j = json_pack("{ss, sI, sI, sI, sf, sb, sI}", "dir", dir, "read", (json_int_t)r->read, "written",
		(json_int_t)r->written, "sum", (json_int_t)(r->read + r->written), "seconds", took, "flat", is_flat, "bytes",
		(json_int_t)bytes);
	char *text = j ? json_dumps(j, JSON_REAL_PRECISION(6)) : NULL;
	json_decref(j);
	if (!text) return mt_fail(MT_EX_NOMEM, "no memory for the result, or '%s' is not UTF-8", dir);
	(void)unlinkat(parent, ".mt-tier-bench.json", 0); /* whatever it is: a new file is written */
	int fd = openat(parent, ".mt-tier-bench.json", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	bool ok = fd >= 0 && dprintf(fd, "%s\n", text) > 0;
	if (fd >= 0) close(fd);
	if (!ok || renameat(parent, ".mt-tier-bench.json", parent, "mt-tier-bench.json"))
		mt_say("%s/mt-tier-bench.json: %s", dir, strerror(errno));
	printf("%s\n", text);
	free(text);
	return fflush(stdout) || ferror(stdout) ? mt_fail(MT_EX_IO, "stdout: cannot be written") : 0;
}

/* ---- start and end */

static int prepare(struct measure *m, const char *dir, int parent, uint64_t *bytes)
{
	struct statvfs fs;
	if (fstatvfs(parent, &fs)) return mt_fail(MT_EX_IO, "%s: %s", dir, strerror(errno));
	uint64_t room = fs.f_bavail * fs.f_frsize, most = (uint64_t)64 << 30, least = 2 * SLOTS * MT_TILE_CHUNK;
	if (!*bytes) *bytes = room / 2 < most ? room / 2 : most;
	if (*bytes < least || *bytes > room)
		return mt_fail(MT_EX_CONFIG, "--bench %s: files of %llu bytes: wants at least 8M, and has room for %llu", dir,
			(unsigned long long)*bytes, (unsigned long long)room);
	const uint32_t tile = 160; /* chunks: of 2^24 elements in fp32 */
	uint64_t chunks = *bytes / MT_TILE_CHUNK;
	m->chunks = chunks / (2 * SLOTS) < tile ? (uint32_t)(chunks / (2 * SLOTS)) : tile;
	m->tiles = (uint32_t)(chunks / m->chunks);
	*bytes = (uint64_t)m->tiles * m->chunks * MT_TILE_CHUNK;
	while (m->files < FILES && !mt_stopping) {
		int err = make_file(m, parent);
		if (err == EINVAL) return mt_fail(MT_EX_CONFIG, "%s: its file system has no direct I/O", dir);
		if (err) return mt_fail(MT_EX_IO, "%s: making files of %.1f GB: %s", dir, (double)*bytes / 1e9, strerror(err));
	}
	return 0;
}

static int fill_slots(struct measure *m)
{
	uint64_t size = (uint64_t)m->chunks * MT_TILE_CHUNK;
	uint8_t *p = mmap(NULL, SLOTS * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return mt_fail(MT_EX_NOMEM, "%.2f GB of memory: %s", (double)(SLOTS * size) / 1e9, strerror(errno));
	for (uint64_t i = 0; i < SLOTS * size / 8; i++)
		((uint64_t *)p)[i] = splitmix_mix(i); /* nothing that a drive could pack */
	for (int i = 0; i < SLOTS; i++)
		m->slots[i] =
			(struct slot){.q = (uint64_t)i, .write = true, .left = m->chunks, .bytes = p + (uint64_t)i * size};
	return 0;
}

static int run_threads(struct measure *m, uint32_t threads, double seconds, struct rate *r, double *took, bool *is_flat)
{
	struct crowd crowds[2] = {{m, false}, {m, true}};
	pthread_t *ids = calloc(2 * threads, sizeof *ids);
	uint32_t n = 0;
	sigset_t all, before;
	if (!ids) return mt_fail(MT_EX_NOMEM, "no memory");
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->more, NULL);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (n < 2 * threads && !pthread_create(&ids[n], NULL, work, &crowds[n & 1])) n++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (n == 2 * threads) *is_flat = measure_rate(m, seconds, r, took);
	pthread_mutex_lock(&m->lock);
	m->stop = true;
	pthread_cond_broadcast(&m->more);
	pthread_mutex_unlock(&m->lock);
	for (uint32_t i = 0; i < n; i++) pthread_join(ids[i], NULL);
	free(ids);
	if (n < 2 * threads) return mt_fail(MT_EX_NOMEM, "%u threads cannot be started: --threads", 2 * threads);
	return m->err ? mt_fail(MT_EX_IO, "reading and writing: %s", strerror(m->err)) : 0;
}

int bench(const char *dir, uint32_t threads, double seconds, uint64_t bytes)
{
	struct measure m = {.files = 0};
	struct rate r = {0, 0};
	double took = 0;
	bool is_flat = false;
	if (!(seconds > 0 && seconds <= 86400)) mt_die(MT_EX_USAGE, "--seconds: wants 0 to 86400");
	mt_signals(true);
	int parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (parent < 0) mt_die(errno == ENOENT ? MT_EX_NOINPUT : MT_EX_IO, "--bench %s: %s", dir, strerror(errno));
	int rc = prepare(&m, dir, parent, &bytes);
	if (!rc) rc = fill_slots(&m);
	if (!rc && !mt_stopping) rc = run_threads(&m, threads, seconds, &r, &took, &is_flat);
	for (uint32_t i = 0; i < m.files; i++) close(m.fds[i]);
	if (!rc && !mt_stopping && !is_flat) mt_say("%s: the rate was not flat after %.0f s", dir, took);
	if (!rc && !mt_stopping) rc = print(dir, parent, &r, took, is_flat, bytes);
	mt_must(rc);
	if (mt_stopping) mt_die_of_signal(mt_stopping);
	return 0;
}
