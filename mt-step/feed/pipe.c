/* pipe.c: stdin and FIFOs. A record begins with its length, so a flat document is held until its end is read. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "feed.h"
#include "mt/error.h"

enum { CHUNK = 1 << 14 }; /* elements */

static int pipe_records(int fd, const char *name)
{
	struct record_reader r;
	uint32_t words[CHUNK];
	int rc = record_open(&r, fd, name);
	r.before_read = out_watch;
	while (!rc && (rc = record_next(&r)) > 0) {
		rc = 0;
		if (r.words) {
			out_words(r.group, (size_t)r.words + 1);
			continue;
		}
		out_words(&r.count, 1);
		while (!rc && r.left) {
			uint32_t n = r.left < CHUNK ? r.left : CHUNK;
			rc = record_take(&r, words, n);
			if (!rc) out_words(words, n);
		}
	}
	record_close(&r);
	return rc;
}

struct document {
	uint32_t *words;
	size_t n, room;
	bool overlap; /* words[0] is the last element of the block before */
};

static int document_add(struct document *d, uint32_t word, const char *name)
{
	if (d->n == RECORD_MAX) return mt_fail(MT_EX_DATA, "%s: more than %u elements in one document", name, RECORD_MAX);
	if (d->n == d->room) {
		size_t room = d->room ? d->room * 2 : CHUNK;
		uint32_t *more = realloc(d->words, room * sizeof *more);
		if (!more) return mt_fail(MT_EX_NOMEM, "%s: no memory for a document of %zu elements", name, room);
		d->words = more;
		d->room = room;
	}
	d->words[d->n++] = word;
	return 0;
}

static void document_end(struct document *d)
{
	if (d->n <= d->overlap) return;
	uint32_t n = (uint32_t)d->n;
	out_words(&n, 1);
	out_words(d->words, d->n);
	d->n = 0;
	d->overlap = false;
}

static int document_word(struct document *d, const struct feed_how *h, uint32_t word, const char *name)
{
	int rc = document_add(d, word, name);
	if (rc) return rc;
	if (flat_ends(h, word)) document_end(d);
	else if (d->n == h->block) {
		document_end(d);
		d->overlap = true;
		rc = document_add(d, word, name);
	}
	return rc;
}

static int pipe_flat(int fd, const char *name, const struct feed_how *h, struct document *d)
{
	unsigned char bytes[CHUNK * 4];
	uint32_t words[CHUNK];
	size_t held = 0, width = h->format;
	for (;;) {
		out_watch(fd);
		ssize_t r = read(fd, bytes + held, CHUNK * width - held);
		if (r < 0 && errno == EINTR) continue;
		if (r < 0) return mt_fail(MT_EX_IO, "%s: read: %s", name, strerror(errno));
		if (r == 0) break;
		held += (size_t)r;
		size_t n = held / width;
		flat_words(h->format, bytes, words, n);
		memmove(bytes, bytes + n * width, held -= n * width);
		for (size_t i = 0; i < n; i++) {
			int rc = document_word(d, h, words[i], name);
			if (rc) return rc;
		}
	}
	if (held) return mt_fail(MT_EX_DATA, "%s: ends inside an element of %zu bytes", name, width);
	document_end(d);
	return 0;
}

int pipe_feed(int fd, const char *name, const struct feed_how *h)
{
	if (h->format == FEED_RECORDS) return pipe_records(fd, name);
	struct document d = {0};
	int rc = pipe_flat(fd, name, h, &d);
	free(d.words);
	return rc;
}
