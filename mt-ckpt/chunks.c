/* chunks.c: the one loop over the bytes of files that run.json lists: their chunks are read, hashed, compared with the
 * checksums there and, where a new directory shall have the files, written into it. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt.h"
#include "say.h"

static uint64_t bytes_of(const json_t *entry) { return (uint64_t)json_integer_value(json_object_get(entry, "bytes")); }

/* Open the file: it has the length that run.json says */
static int open_listed(int dirfd, const char *name, const json_t *entry, int *fd)
{
	uint64_t size, want = bytes_of(entry);
	int rc = file_open_regular(dirfd, name, fd, &size);
	if (rc < 0) return rc == -MT_EX_NOINPUT ? mt_fail(MT_EX_DATA, "%s: is missing", shown(name)) : rc;
	if (size == want) return 0;
	close(*fd);
	return mt_fail(MT_EX_DATA, "%s: has %" PRIu64 " bytes where " RUN_JSON " says %" PRIu64, shown(name), size, want);
}

static int check_sum(const struct chunks *c, const struct listed *l, uint64_t sum, uint64_t at, uint64_t end)
{
	const json_t *sums = json_object_get(l->entry, "xxh3");
	if (c->sums) c->sums[l->chunk] = sum;
	if (c->sums || at == end || sum == json_hash_at(sums, l->chunk)) return 0;
	if (c->read) return mt_fail(MT_EX_DATA, "its tensors have changed since they were loaded");
	return mt_fail(MT_EX_DATA, "%s: chunk %zu (bytes %" PRIu64 " to %" PRIu64 ") is damaged", shown(l->name), l->chunk,
		at, end - 1);
}

/* Block by block, so that a block is hashed and written while it is in the cache */
static int pass_chunk(void *arg, int64_t task, void *buf)
{
	const struct chunks *c = arg;
	const struct listed *l = &c->v[task];
	struct out_file none = {.fd = -1, .direct = -1, .bytes = bytes_of(l->entry)};
	struct out_chunk out;
	uint64_t at = l->chunk * (uint64_t)IO_BYTES;
	int fd = -1, rc = c->read ? 0 : open_listed(c->from, l->name, l->entry, &fd);
	if (rc < 0) return rc;
	rc = out_chunk_begin(&out, l->to ? l->to : &none, l->chunk, NULL, true);
	for (uint64_t n; rc == 0 && out.at < out.end;) {
		n = out.end - out.at < BLOCK_BYTES ? out.end - out.at : BLOCK_BYTES;
		rc = c->read ? c->read(c->arg, out.at, &n, buf) : file_read(fd, l->name, buf, n, out.at);
		if (rc == 0) rc = out_write(&out, buf, n);
	}
	rc = out_chunk_end(&out, rc);
	if (fd >= 0) close(fd);
	return rc == 0 ? check_sum(c, l, out.sum, at, out.end) : rc;
}

int chunks_add(struct chunks *c, const char *name, const json_t *entry)
{
	uint64_t n = (bytes_of(entry) + IO_BYTES - 1) / IO_BYTES;
	struct listed *more = realloc(c->v, ((size_t)c->n + n + 1) * sizeof *more);
	struct out_file *to = NULL;
	if (!more) return mt_fail(MT_EX_NOMEM, "no memory for the chunks of %s", shown(name));
	c->v = more;
	int rc = c->to ? kept_directory(c->to, name) : 0;
	if (rc == 0 && c->to) rc = out_create(c->to, name, bytes_of(entry), &to);
	/* an empty one has one chunk, so that its length is checked */
	for (uint64_t i = 0; rc == 0 && (i < n || i == 0); i++) c->v[c->n++] = (struct listed){name, entry, i, to};
	return rc;
}

int chunks_pass(struct chunks *c, int rc)
{
	struct work work = {0};
	if (rc == 0) rc = work_begin(&work, c->n < WORK_THREADS ? (uint64_t)c->n : WORK_THREADS);
	if (rc == 0) rc = work_run(&work, c->n, pass_chunk, c);
	work_end(&work);
	free(c->v);
	return rc;
}

int files_verify(int dirfd, json_t *files, const char *only, const char *without)
{
	struct chunks c = {.from = dirfd};
	const char *name;
	json_t *f;
	int rc = 0;
	if (only && !json_object_get(files, only)) rc = mt_fail(MT_EX_DATA, RUN_JSON ": has no checksums of %s", only);
	json_object_foreach(files, name, f) if (rc == 0 && (!only || !strcmp(name, only)) &&
		(!without || strcmp(name, without) != 0)) rc = chunks_add(&c, name, f);
	return chunks_pass(&c, rc);
}

int files_lengths(int dirfd, json_t *files)
{
	const char *name;
	json_t *f;
	json_object_foreach(files, name, f)
	{
		uint64_t want = bytes_of(f);
		struct stat st;
		if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0) return fail_errno(name);
		if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != want)
			return mt_fail(MT_EX_IO, "%s: has %" PRIu64 " byte%s, but %" PRIu64 " were written", shown(name),
				(uint64_t)st.st_size, mt_s((uint64_t)st.st_size), want);
	}
	return 0;
}
