/* files: reads files into shared memory with plain preads of several threads: what mt-ckpt load is compared with.
 *
 *     files allocate SHM BYTES THREADS     make a file of shared memory and touch its pages
 *     files read SHM THREADS FILE...       read the files into it, one after the other
 *     files drop FILE...                   forget their pages in the page cache (posix_fadvise): the next read is cold
 *
 * Pages are touched and bytes are read in pieces of PIECE, which the threads take in turns. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli/cli.h"
#include "pool.h"

#define PIECE (4u << 20)
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static uint8_t *map(const char *path, int flags, uint64_t bytes)
{
	struct stat st;
	int fd = open(path, flags | O_RDWR, 0600);
	if (fd < 0 || (bytes && ftruncate(fd, (off_t)bytes) < 0) || fstat(fd, &st) < 0) mt_die(74, "%s: %m", path);
	uint8_t *p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED) mt_die(74, "%s: %m", path);
	return p;
}

static uint64_t pieces(uint64_t bytes) { return (bytes + PIECE - 1) / PIECE; }

/* ---- allocate */

struct memory {
	uint8_t *p;
	uint64_t bytes;
};

static void populate(void *arg, int64_t piece, int thread)
{
	const struct memory *m = arg;
	uint64_t at = (uint64_t)piece * PIECE, n = m->bytes - at < PIECE ? m->bytes - at : PIECE;
	(void)thread;
	if (madvise(m->p + at, n, MADV_POPULATE_WRITE) < 0) memset(m->p + at, 0, n);
}

/* ---- read */

struct file {
	int fd;
	uint64_t bytes, into, first; /* first: number of its first piece */
};

struct reading {
	uint8_t *p;
	struct file *file;
	int n;
};

static void read_piece(void *arg, int64_t piece, int thread)
{
	const struct reading *r = arg;
	int i = 0;
	(void)thread;
	while (i + 1 < r->n && r->file[i + 1].first <= (uint64_t)piece) i++;
	const struct file *f = &r->file[i];
	uint64_t at = ((uint64_t)piece - f->first) * PIECE, end = at + PIECE < f->bytes ? at + PIECE : f->bytes;
	while (at < end) {
		ssize_t got = pread(f->fd, r->p + f->into + at, end - at, (off_t)at);
		if (got <= 0) mt_die(74, "reading: %m");
		at += (uint64_t)got;
	}
}

static void read_files(const char *shm, struct pool *pool, char **names, int n)
{
	struct reading r = {.p = map(shm, 0, 0), .file = calloc((size_t)n, sizeof *r.file), .n = n};
	uint64_t into = 0, first = 0;
	for (int i = 0; i < n; i++) {
		struct file *f = &r.file[i];
		struct stat st;
		if ((f->fd = open(names[i], O_RDONLY)) < 0 || fstat(f->fd, &st) < 0) mt_die(66, "%s: %m", names[i]);
		*f = (struct file){f->fd, (uint64_t)st.st_size, into, first};
		into += f->bytes;
		first += pieces(f->bytes);
	}
	pool_run(pool, (int64_t)first, read_piece, &r);
	free(r.file);
}

static void drop(const char *name)
{
	int fd = open(name, O_RDONLY);
	if (fd < 0 || fsync(fd) < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) mt_die(74, "%s: %m", name);
	close(fd);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";
	if (!strcmp(what, "allocate") && argc == 5) {
		struct memory m = {.bytes = strtoull(argv[3], NULL, 10)};
		m.p = map(argv[2], O_CREAT | O_EXCL, m.bytes);
		(void)madvise(m.p, m.bytes, MADV_HUGEPAGE);
		pool_run(pool_create(atoi(argv[4]), 0, NULL), (int64_t)pieces(m.bytes), populate, &m);
	} else if (!strcmp(what, "read") && argc > 4)
		read_files(argv[2], pool_create(atoi(argv[3]), 0, NULL), argv + 4, argc - 4);
	else if (!strcmp(what, "drop"))
		for (int i = 2; i < argc; i++) drop(argv[i]);
	else mt_die(64, "usage: files allocate SHM BYTES THREADS | read SHM THREADS FILE... | drop FILE...");
	return 0;
}
