/* outfile.c: the files of a new directory: written from front to back, checksummed on the way, fsynced when closed. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "ckpt.h"

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
	/* Reserve the space now: a full disk is reported at once, not after an hour. Not every file system can reserve. */
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
