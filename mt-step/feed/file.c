/* file.c: the documents of a regular file. Finding them stores nothing but what the caller's function keeps. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "feed.h"
#include "mt/error.h"

enum { BUFFER = 1 << 20, CHUNK = 1 << 14 }; /* bytes; elements */

int file_open(struct feed_file *f, const char *name, bool *regular)
{
	struct stat st;
	/* opening a FIFO would wait for its writer, unlike out_watch with records unwritten and stdout unwatched */
	*f = (struct feed_file){.name = name, .fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
	if (f->fd < 0) return record_unopened(name);
	(void)fcntl(f->fd, F_SETFL, 0);
	int rc = 0;
	if (fstat(f->fd, &st)) rc = mt_fail(MT_EX_IO, "%s: %s", name, strerror(errno));
	else if (S_ISDIR(st.st_mode)) rc = mt_fail(MT_EX_DATA, "%s: is a directory", name);
	else if (regular) *regular = S_ISREG(st.st_mode);
	else if (!S_ISREG(st.st_mode))
		rc = mt_fail(MT_EX_DATA, "%s: can be read only once: not with --epochs, --shuffle, --mix or a weight", name);
	if (!rc) {
		f->size = (uint64_t)st.st_size;
		f->buffer = malloc(BUFFER);
		if (!f->buffer) rc = mt_fail(MT_EX_NOMEM, "no memory to read %s", name);
	}
	if (rc) file_close(f);
	return rc;
}

void file_close(struct feed_file *f)
{
	if (f->fd >= 0) close(f->fd);
	f->fd = -1;
	free(f->buffer);
	f->buffer = NULL;
	f->held = 0;
}

/* Point at bytes [off, off + n), n <= BUFFER. `more`: the bytes behind them come next, so fill the whole buffer. */
static int file_bytes(struct feed_file *f, uint64_t off, size_t n, bool more, const unsigned char **out)
{
	if (off < f->at || off + n > f->at + f->held) {
		size_t want = more ? BUFFER : n;
		f->at = off;
		f->held = 0;
		while (f->held < n) {
			ssize_t r = pread(f->fd, f->buffer + f->held, want - f->held, (off_t)(off + f->held));
			if (r < 0 && errno == EINTR) continue;
			if (r < 0) return mt_fail(MT_EX_IO, "%s: read: %s", f->name, strerror(errno));
			if (r == 0) return mt_fail(MT_EX_DATA, "%s: has become shorter", f->name);
			f->held += (uint64_t)r;
		}
	}
	*out = f->buffer + (off - f->at);
	return 0;
}

static int record_documents(struct feed_file *f, int (*fn)(void *, uint64_t, uint32_t), void *arg)
{
	uint64_t record = 0;
	const unsigned char *start;
	size_t known = f->size < 64 ? (size_t)f->size : 64;
	int bad = file_bytes(f, 0, known, true, &start);
	if (!bad) bad = record_check_start(f->name, start, known);
	if (bad) return bad;
	for (uint64_t off = 0; off < f->size;) {
		const unsigned char *b;
		uint32_t n;
		record++;
		if (f->size - off < 4)
			return mt_fail(MT_EX_DATA, "%s: record %llu: input ends inside its count", f->name,
				(unsigned long long)record);
		int rc = file_bytes(f, off, 4, true, &b);
		if (rc) return rc;
		memcpy(&n, b, 4);
		off += 4;
		uint32_t words = n & ~RECORD_GROUP;
		if (words == 0) return mt_fail(MT_EX_DATA, "%s: record %llu: is empty", f->name, (unsigned long long)record);
		if (words > RECORD_MAX)
			return mt_fail(MT_EX_DATA, "%s: record %llu: count %u is above %u; are these records?", f->name,
				(unsigned long long)record, n, RECORD_MAX);
		if (words > (f->size - off) / 4)
			return mt_fail(MT_EX_DATA, "%s: record %llu: input ends after %llu of its %u element%s", f->name,
				(unsigned long long)record, (unsigned long long)(f->size - off) / 4, words, mt_s(words));
		if ((rc = fn(arg, off, n))) return rc;
		off += (uint64_t)words * 4;
	}
	return 0;
}

static int eos_documents(struct feed_file *f, const struct feed_how *h, uint64_t n,
	int (*fn)(void *, uint64_t, uint32_t), void *arg)
{
	uint32_t words[CHUNK];
	uint64_t begin = 0;
	for (uint64_t i = 0; i < n;) {
		uint32_t m = n - i < CHUNK ? (uint32_t)(n - i) : CHUNK;
		const unsigned char *b;
		int rc = file_bytes(f, i * h->format, m * h->format, true, &b);
		if (rc) return rc;
		flat_words(h->format, b, words, m);
		for (uint32_t j = 0; j < m; j++, i++) {
			if (i - begin >= RECORD_MAX)
				return mt_fail(MT_EX_DATA, "%s: more than %u elements without --eos %llu", f->name, RECORD_MAX,
					(unsigned long long)h->eos);
			if (!flat_ends(h, words[j])) continue;
			if ((rc = fn(arg, begin * h->format, (uint32_t)(i + 1 - begin)))) return rc;
			begin = i + 1;
		}
	}
	return begin < n ? fn(arg, begin * h->format, (uint32_t)(n - begin)) : 0;
}

int file_documents(struct feed_file *f, const struct feed_how *h, int (*fn)(void *, uint64_t, uint32_t), void *arg)
{
	if (h->format == FEED_RECORDS) return record_documents(f, fn, arg);
	if (f->size % h->format)
		return mt_fail(MT_EX_DATA, "%s: %llu byte%s no whole number of %d-byte elements", f->name,
			(unsigned long long)f->size, f->size == 1 ? " is" : "s are", (int)h->format);
	uint64_t n = f->size / h->format;
	if (h->by_eos) return eos_documents(f, h, n, fn, arg);
	if (!h->block && n > RECORD_MAX)
		return mt_fail(MT_EX_DATA, "%s: more than %u elements in one document; take --block or --eos", f->name,
			RECORD_MAX);
	uint64_t block = h->block ? h->block : n;
	if (n == 1) return fn(arg, 0, 1);
	for (uint64_t i = 0; i + 1 < n; i += block - 1) {
		int rc = fn(arg, i * h->format, (uint32_t)(n - i < block ? n - i : block));
		if (rc) return rc;
	}
	return 0;
}

int file_words(struct feed_file *f, const struct feed_how *h, uint64_t off, uint32_t n,
	int (*fn)(void *, const uint32_t *, uint32_t), void *arg)
{
	uint32_t words[CHUNK];
	unsigned bytes = h->format == FEED_RECORDS ? 4 : h->format;
	n &= ~RECORD_GROUP;
	for (uint32_t done = 0; done < n;) {
		uint32_t m = n - done < CHUNK ? n - done : CHUNK;
		const unsigned char *b;
		int rc = file_bytes(f, off + (uint64_t)done * bytes, (size_t)m * bytes, !h->shuffle || h->check, &b);
		if (rc) return rc;
		flat_words(h->format, b, words, m);
		if ((rc = fn(arg, words, m))) return rc;
		done += m;
	}
	return 0;
}

static int emit_words(void *arg, const uint32_t *words, uint32_t n)
{
	(void)arg;
	out_words(words, n);
	return 0;
}

int file_emit(struct feed_file *f, const struct feed_how *h, uint64_t off, uint32_t n)
{
	out_words(&n, 1);
	return file_words(f, h, off, n, emit_words, NULL);
}
