/* record.c: the reader of records. Little-endian hosts only, as all of mt. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/hfjson.h"
#include "mt/error.h"
#include "record.h"
#include "say.h"

#define BUF_BYTES (1u << 20)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are read without swapping bytes");

int record_unopened(const char *name)
{
	return mt_fail(errno == EACCES ? MT_EX_NOTYOURS : MT_EX_NOINPUT, "%s: %s", name, strerror(errno));
}

int record_open(struct record_reader *r, int fd, const char *name)
{
	*r = (struct record_reader){.fd = fd, .name = name, .buf = malloc(BUF_BYTES)};
	return r->buf ? 0 : mt_fail(MT_EX_NOMEM, "%s: no memory for a buffer of %u bytes", name, BUF_BYTES);
}

void record_close(struct record_reader *r)
{
	free(r->buf);
	r->buf = NULL;
}

/* Read once into the empty buffer. 0 also at the end of the input (eof is set). */
static int refill(struct record_reader *r)
{
	ssize_t n;
	if (r->before_read) r->before_read(r->fd);
	do n = read(r->fd, r->buf, BUF_BYTES);
	while (n < 0 && errno == EINTR);
	if (n < 0) return mt_fail(MT_EX_IO, "%s: read: %s", r->name, strerror(errno));
	r->eof = n == 0;
	r->at = 0;
	r->end = (size_t)n;
	return 0;
}

/* Copy up to n bytes; *got < n only at the end of the input. */
static int take_bytes(struct record_reader *r, void *out, size_t n, size_t *got)
{
	for (*got = 0; *got < n;) {
		if (r->at == r->end) {
			int rc = refill(r);
			if (rc) return rc;
			if (r->eof) return 0;
		}
		size_t m = n - *got < r->end - r->at ? n - *got : r->end - r->at;
		memcpy((char *)out + *got, r->buf + r->at, m);
		r->at += m;
		*got += m;
	}
	return 0;
}

/* Four characters of text, read as a count, are more than 150 million tokens: no document has that many. A gzip header
 * (RFC 1952) can be a plausible count, so its other fields are compared, too. */
int record_check_start(const char *name, const unsigned char *b, size_t n)
{
	bool text = n >= 4;
	for (size_t i = 0; i < 4 && text; i++) text = isprint(b[i]) || b[i] == '\n' || b[i] == '\r' || b[i] == '\t';
	bool gzip = n >= 10 && b[0] == 0x1f && b[1] == 0x8b && b[2] == 8 && b[3] < 0x20 &&
		(b[8] == 0 || b[8] == 2 || b[8] == 4) && (b[9] < 14 || b[9] == 255);
	if (gzip) return mt_fail(MT_EX_DATA, "%s is compressed by gzip: decompress it first (zcat FILE | ...)", name);
	if (text && (b[0] == '{' || b[0] == '['))
		return mt_fail(MT_EX_DATA, "%s starts with '%c' (JSONL?): convert it to records with mt-tokens", name, b[0]);
	if (hf_is_lfs_pointer((const char *)b, n)) return mt_fail(MT_EX_DATA, "%s: " HF_LFS_POINTER, name);
	if (text)
		return mt_fail(MT_EX_DATA,
			"%s starts with '%.4s' (text?): convert it to records with mt-tokens or "
			"mt-feed --bytes",
			name, b);
	return 0;
}

void record_cut(struct record_reader *r, uint32_t n)
{
	r->rest = r->count - n;
	r->count = r->left = n;
}

static int ends_inside(const struct record_reader *r, uint64_t got, uint32_t count)
{
	return mt_fail(MT_EX_DATA, "%s: record %llu: input ends after %llu of its %u element%s", r->name,
		(unsigned long long)r->records, (unsigned long long)got, count, mt_s(count));
}

static int skip_rest(struct record_reader *r)
{
	enum { CHUNK = 1 << 10 };
	uint32_t words[CHUNK], whole = r->count + r->rest;
	while (r->rest) {
		uint32_t n = r->rest < CHUNK ? r->rest : CHUNK;
		size_t got;
		int rc = take_bytes(r, words, (size_t)n * 4, &got);
		if (rc) return rc;
		if (got < (size_t)n * 4) return ends_inside(r, whole - r->rest + got / 4, whole);
		r->rest -= n;
	}
	return 0;
}

int record_next(struct record_reader *r)
{
	uint32_t count;
	size_t got;
	int rc = skip_rest(r);
	if (!rc) rc = take_bytes(r, &count, sizeof count, &got);
	if (rc) return rc;
	if (got == 0) return 0;
	r->records++;
	if (r->records == 1 && got == sizeof count && r->at >= sizeof count) {
		rc = record_check_start(r->name, r->buf + r->at - sizeof count, r->end - r->at + sizeof count);
		if (rc) return rc;
	}
	if (got < sizeof count)
		return mt_fail(MT_EX_DATA, "%s: record %llu: input ends inside its count", r->name,
			(unsigned long long)r->records);
	if (count == 0) return mt_fail(MT_EX_DATA, "%s: record %llu: is empty", r->name, (unsigned long long)r->records);
	if (count > RECORD_MAX)
		return mt_fail(MT_EX_DATA, "%s: record %llu: count %u is above %u; are these records?", r->name,
			(unsigned long long)r->records, count, RECORD_MAX);
	r->count = r->left = count;
	return 1;
}

int record_take(struct record_reader *r, uint32_t *out, uint32_t n)
{
	size_t got;
	int rc = take_bytes(r, out, (size_t)n * 4, &got);
	if (rc) return rc;
	if (got < (size_t)n * 4) return ends_inside(r, r->count - r->left + got / 4, r->count + r->rest);
	r->left -= n;
	return 0;
}
