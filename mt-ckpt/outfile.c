/* outfile.c: the files of a new directory. Their lengths are known before they are written. Threads write them in
 * chunks of IO_BYTES, each with its checksum, in any order; out_sync makes them durable. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "out.h"
#include "runjson.h"

enum { UNSYNCED = 64 }; /* complete files that may wait for out_sync: each has a descriptor */

/* fail_errno with the file's path, which says on which disk it is */
static int fail_file(const struct out_file *f)
{
	char path[4600];
	int failed = errno;
	snprintf(path, sizeof path, "%s/%s", f->dir->path, f->name);
	errno = failed;
	return fail_errno(path);
}

static void close_direct(struct out_file *f)
{
	if (f->direct >= 0) close(f->direct);
	f->direct = -1;
}

static void file_free(struct out_file *f)
{
	close_direct(f);
	if (f->fd >= 0) close(f->fd);
	free(f->name);
	free(f->sums);
	free(f);
}

/* Reserve the space now: a full disk is reported at once, not after an hour. Not every file system can reserve. */
static int reserve(const struct out_file *f)
{
	if (!f->bytes || fallocate(f->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)f->bytes) == 0) return 0;
	return errno == ENOSPC || errno == EFBIG ? fail_file(f) : 0;
}

static int make(struct out_dir *o, struct out_file *f)
{
	int rc;
	if (!f->name || (!f->sums && !o->no_sums)) return mt_fail(MT_EX_NOMEM, "no memory");
	f->fd = openat(o->fd, f->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (f->fd < 0) return fail_file(f);
	if ((rc = reserve(f)) < 0) unlinkat(o->fd, f->name, 0);
	return rc;
}

/* An entry for a file that is not there yet */
static int add(struct out_dir *o, const char *name, uint64_t bytes, struct out_file **file)
{
	uint64_t n = (bytes + IO_BYTES - 1) / IO_BYTES;
	struct out_file **files = realloc(o->files, (o->n_files + 1) * sizeof *files), *f;
	if (files) o->files = files;
	f = files ? malloc(sizeof *f) : NULL;
	if (!f) return mt_fail(MT_EX_NOMEM, "no memory");
	*f = (struct out_file){.dir = o,
		.name = strdup(name),
		.fd = -1,
		.direct = -1,
		.bytes = bytes,
		.n_sums = n,
		.left = n};
	f->sums = o->no_sums ? NULL : calloc(n + 1, sizeof *f->sums);
	*file = f;
	return 0;
}

/* Keep the entry, if rc is 0 */
static int keep(struct out_dir *o, struct out_file *f, int rc)
{
	if (rc < 0) file_free(f);
	else o->files[o->n_files++] = f;
	return rc;
}

int out_create(struct out_dir *o, const char *name, uint64_t bytes, struct out_file **file)
{
	int rc = add(o, name, bytes, file);
	return rc < 0 ? rc : keep(o, *file, make(o, *file));
}

/* An entry for a file as run.json lists it, which rename or linkat has brought here: done */
static int add_listed(struct out_dir *o, const char *name, const json_t *entry, int done)
{
	const json_t *list = json_object_get(entry, "xxh3");
	struct out_file *f = NULL;
	int rc = done < 0 ? fail_errno(name) : 0;
	if (rc == 0) rc = add(o, name, (uint64_t)json_integer_value(json_object_get(entry, "bytes")), &f);
	if (rc < 0) return rc;
	for (uint64_t i = 0; f->sums && i < f->n_sums; i++) f->sums[i] = json_hash_at(list, i);
	return keep(o, f, f->name && (f->sums || o->no_sums) ? 0 : mt_fail(MT_EX_NOMEM, "no memory"));
}

int out_move(struct out_dir *o, int from, const char *name, const json_t *entry)
{
	return add_listed(o, name, entry, rename_new(from, name, o->fd, name));
}

int out_link(struct out_dir *o, int from, const char *name, const json_t *entry)
{
	return linkat(from, name, o->fd, name, 0) < 0 ? 1 : add_listed(o, name, entry, 0);
}

void out_release(struct out_dir *o)
{
	for (uint32_t i = 0; i < o->n_files; i++) file_free(o->files[i]);
	free(o->files);
	o->files = NULL;
	o->n_files = 0;
}

int out_sync_file(struct out_file *f)
{
	int fd = f->fd;
	if (fd < 0) return 0;
	if (fsync(fd) < 0) return fail_file(f);
	f->fd = -1;
	return close(fd) < 0 ? fail_file(f) : 0;
}

void out_direct(struct out_file *f)
{
	enum { WORTH = 512 << 10 }; /* bytes of a file from which it saves anything */
	if (f->bytes >= WORTH) f->direct = openat(f->dir->fd, f->name, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
}

int out_chunk_begin(struct out_chunk *c, struct out_file *f, uint64_t number, void *stage, bool hash)
{
	uint64_t at = number * IO_BYTES, end = at + IO_BYTES < f->bytes ? at + IO_BYTES : f->bytes;
	*c = (struct out_chunk){.file = f, .number = number, .at = at, .end = end};
	if (f->direct >= 0 && !f->dir->cached) c->stage = stage;
	if (!f->sums && !hash) return 0;
	c->hash = XXH3_createState();
	if (!c->hash) return mt_fail(MT_EX_NOMEM, "no memory");
	XXH3_64bits_reset(c->hash);
	return 0;
}

/* How many of n bytes are written before an error */
static uint64_t put(int fd, const uint8_t *p, uint64_t n, uint64_t at)
{
	uint64_t done = 0;
	while (done < n) {
		ssize_t part = pwrite(fd, p + done, n - done, (off_t)(at + done));
		if (part < 0 && errno == EINTR) continue;
		if (part < 0) break;
		done += (uint64_t)part;
	}
	return done;
}

/* Write n bytes of the stage at `at`, a multiple of a page: whole pages by direct I/O, the file's last partial page
 * through the page cache. If direct I/O fails, the rest goes through the page cache, too; if that fails, the error is
 * returned. */
static int put_stage(struct out_chunk *c, uint64_t n, uint64_t at)
{
	enum { PAGE = 4096 };
	struct out_file *f = c->file;
	uint64_t whole = n - n % PAGE, done = 0;
	if (!f->dir->cached) {
		done = put(f->direct, c->stage, whole, at);
		if (done < whole) f->dir->cached = true;
	}
	return put(f->fd, c->stage + done, n - done, at + done) < n - done ? fail_file(f) : 0;
}

static int stage(struct out_chunk *c, const uint8_t *p, uint64_t n)
{
	int rc = 0;
	while (n && rc == 0) {
		uint64_t part = STAGE_BYTES - c->staged < n ? STAGE_BYTES - c->staged : n;
		memcpy(c->stage + c->staged, p, part);
		c->staged += part;
		c->at += part;
		p += part;
		n -= part;
		if (c->staged < STAGE_BYTES && c->at < c->end) continue;
		rc = put_stage(c, c->staged, c->at - c->staged);
		c->staged = 0;
	}
	return rc;
}

int out_write(struct out_chunk *c, const void *data, uint64_t n)
{
	/* first: it brings into the cache what is then copied */
	if (c->hash) XXH3_64bits_update(c->hash, data, n);
	if (c->stage) return stage(c, data, n);
	if (c->file->fd >= 0 && put(c->file->fd, data, n, c->at) < n) return fail_file(c->file);
	c->at += n;
	return 0;
}

int out_chunk_end(struct out_chunk *c, int rc)
{
	struct out_file *f = c->file;
	if (rc == 0 && c->hash) c->sum = XXH3_64bits_digest(c->hash);
	if (rc == 0 && f->sums) f->sums[c->number] = c->sum;
	XXH3_freeState(c->hash);
	if (rc < 0 || !f->dir || atomic_fetch_sub(&f->left, 1) > 1) return rc;
	close_direct(f);
	return atomic_fetch_add(&f->dir->unsynced, 1) < UNSYNCED ? 0 : out_sync_file(f);
}

int out_text(struct out_dir *o, const char *name, const void *data, uint64_t n)
{
	struct out_file *f;
	int rc = out_create(o, name, n, &f);
	for (uint64_t i = 0; i * IO_BYTES < n && rc == 0; i++) {
		struct out_chunk c;
		if ((rc = out_chunk_begin(&c, f, i, NULL, false)) < 0) break;
		rc = out_chunk_end(&c, out_write(&c, (const uint8_t *)data + c.at, c.end - c.at));
	}
	return rc;
}

int out_json(struct out_dir *o, const char *name, json_t *root, size_t indent, int rc)
{
	char *text = rc == 0 ? json_text(root, indent) : NULL;
	json_decref(root);
	if (rc == 0 && !text) rc = mt_fail(MT_EX_NOMEM, "no memory");
	rc = rc < 0 ? mt_fail_in(rc, "%s", name) : out_text(o, name, text, strlen(text));
	free(text);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(struct out_file *const *)a)->name, (*(struct out_file *const *)b)->name);
}

void out_sort(struct out_dir *o)
{
	if (o->n_files) qsort(o->files, o->n_files, sizeof *o->files, by_name);
}

uint64_t out_bytes(const struct out_dir *o)
{
	uint64_t n = 0;
	for (uint32_t i = 0; i < o->n_files; i++) n += o->files[i]->bytes;
	return n;
}
