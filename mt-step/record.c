/* record.c: the reader of records. Little-endian hosts only, as all of mt. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/half.h"
#include "model/hfjson.h"
#include "mt/documents.h"
#include "mt/error.h"
#include "mt/memory.h"
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
	free(r->group);
	r->buf = NULL;
	r->group = NULL;
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
	r->read += (size_t)n;
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
	r->rest = r->now.ids ? 0 : r->count - n; /* what is in memory has been read whole */
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

/* ---- groups */

enum { KNOWN = MT_PART_SIDE | MT_PART_REF | MT_PART_WEIGHTS | MT_PART_OLD | MT_PART_TEACHER };

/* The parts of a document that are one value. Returns what stands behind them. */
static const uint32_t *take_values(const uint32_t *words, struct group_document *d)
{
	if (d->parts & MT_PART_SIDE) d->side = *words++;
	if (d->parts & MT_PART_REF) memcpy(&d->ref, words, sizeof d->ref);
	if (d->parts & MT_PART_REF) words += 2;
	if (!(d->parts & MT_PART_TEACHER)) return words;
	d->top = *words++;
	d->vocabulary = *words++;
	return words;
}

float record_teacher_log(const uint32_t *words, uint32_t top, uint32_t i)
{
	return half_float((uint16_t)(words[top + i / 2] >> i % 2 * 16));
}

static uint32_t infinite_at(const uint32_t *bits, uint32_t n)
{
	for (uint32_t i = 1; bits && i < n; i++) { /* nothing predicts the first */
		float x;
		memcpy(&x, bits + i, sizeof x);
		if (!isfinite(x)) return i;
	}
	return 0;
}

static uint32_t targets_of(const struct group_document *d)
{
	uint32_t n = 0;
	for (uint32_t i = 1; i < d->count; i++) n += record_targets(d, i);
	return n;
}

/* Are these ids that ascend, and logarithms in fp16 of at most 1? That of all other tokens may be of 0 */
static bool teacher_is_valid(const struct group_document *d, const uint32_t *words)
{
	for (uint32_t i = 0; i < d->top; i++)
		if (words[i] >= d->vocabulary || (i && words[i] <= words[i - 1])) return false;
	for (uint32_t i = 0; i <= d->top; i++) {
		float x = record_teacher_log(words, d->top, i);
		if (!(x <= 0) || (i < d->top && isinf(x))) return false;
	}
	return true;
}

static int check_teacher(const char *name, unsigned long long of, uint32_t number, const struct group_document *d)
{
	const uint32_t *words = d->teacher;
	for (uint32_t i = 1; words && i < d->count; i++) {
		if (!record_targets(d, i)) continue;
		if (!teacher_is_valid(d, words))
			return mt_fail(MT_EX_DATA,
				"%s: record %llu, document %u, element %u: its teacher's %u tokens do not ascend below %u, or a "
				"log-probability is not one",
				name, of, number, i, d->top, d->vocabulary);
		words += record_teacher_words(d->top);
	}
	return 0;
}

/* Is what the document has valid? */
static int check_parts(const char *name, unsigned long long of, uint32_t number, const struct group_document *d)
{
	uint32_t weight = infinite_at(d->weight_bits, d->count), old = infinite_at(d->old_bits, d->count);
	if (weight)
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u, element %u: its weight is not finite", name, of,
			number, weight);
	if (old)
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u, element %u: its old log-probability is not finite",
			name, of, number, old);
	if (!isfinite(d->ref))
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: its ref is not finite", name, of, number);
	int rc = check_teacher(name, of, number, d);
	if (rc || !(d->parts & MT_PART_SIDE)) return rc;
	if (d->side != MT_CHOSEN && d->side != MT_REJECTED)
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: side %u is neither 1 (chosen) nor 2 (rejected)", name,
			of, number, d->side);
	if (!targets_of(d))
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: is an answer, and has nothing to predict", name, of,
			number);
	return 0;
}

int group_document(const char *name, uint64_t record, uint32_t number, const uint32_t *words, uint32_t n, uint32_t *at,
	struct group_document *d)
{
	unsigned long long of = record;
	uint32_t parts = n - *at < 2 ? 0 : words[*at + 1];
	uint32_t head = 2 + !!(parts & MT_PART_SIDE) + 2 * !!(parts & MT_PART_REF) + 2 * !!(parts & MT_PART_TEACHER);
	if (parts & ~(uint32_t)KNOWN)
		return mt_fail(MT_EX_DATA,
			"%s: record %llu, document %u: parts %u: this program knows 1 (side), 2 (ref), 8 (weights), 16 (old) and "
			"32 (teacher)",
			name, of, number, parts);
	if (n - *at < head)
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: its group ends inside its head", name, of, number);
	uint32_t count = words[*at], arrays = 1 + !!(parts & MT_PART_WEIGHTS) + !!(parts & MT_PART_OLD);
	if (!count) return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: is empty", name, of, number);
	if (count > (n - *at - head) / arrays)
		return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: its %u element%s need more than the group's %u words",
			name, of, number, count, mt_s(count), n);
	*d = (struct group_document){.count = count, .parts = parts};
	d->ids = take_values(words + *at + 2, d);
	if (parts & MT_PART_WEIGHTS) d->weight_bits = d->ids + count;
	if (parts & MT_PART_OLD) d->old_bits = d->ids + (arrays - 1) * count;
	*at += head + arrays * count;
	if (parts & MT_PART_TEACHER) {
		uint64_t words_of_all = targets_of(d) * record_teacher_words(d->top);
		if (!d->top || words_of_all > n - *at)
			return mt_fail(MT_EX_DATA, "%s: record %llu, document %u: %u tokens of its teacher do not fit its group",
				name, of, number, d->top);
		d->teacher = words + *at;
		*at += (uint32_t)words_of_all;
	}
	return check_parts(name, of, number, d);
}

int group_check(const char *name, uint64_t record, const uint32_t *words, uint32_t n, uint32_t *documents,
	uint32_t *total)
{
	struct group_document d;
	uint32_t chosen = 0, rejected = 0;
	*documents = *total = 0;
	for (uint32_t at = 0; at < n;) {
		int rc = group_document(name, record, *documents + 1, words, n, &at, &d);
		if (rc) return rc;
		++*documents;
		*total += d.count;
		chosen += d.side == MT_CHOSEN;
		rejected += d.side == MT_REJECTED;
	}
	if (chosen + rejected && *documents > 1 && (chosen != 1 || rejected != 1 || *documents != 2))
		return mt_fail(MT_EX_DATA,
			"%s: record %llu: has %u chosen, %u rejected and %u other documents: a pair is one chosen and one rejected",
			name, (unsigned long long)record, chosen, rejected, *documents - chosen - rejected);
	return 0;
}

bool record_document(struct record_reader *r)
{
	if (r->document == r->documents ||
		group_document(r->name, r->records, r->document + 1, r->group + 1, r->words, &r->at_word,
			&r->now)) /* it has been checked */
		return false;
	r->document++;
	r->count = r->left = r->now.count;
	return true;
}

/* The words arrive before more memory is taken: a count alone takes none. */
static int read_words(struct record_reader *r, uint32_t count)
{
	enum { PIECE = 1 << 16 };
	uint32_t words = count & ~RECORD_GROUP;
	for (uint32_t have = 0; have < words;) {
		uint32_t n = words - have < PIECE ? words - have : PIECE;
		size_t got;
		if (1 + have + n > r->room) {
			size_t room = 2 * (size_t)(1 + have + n);
			uint32_t *more = realloc(r->group, room * sizeof *more);
			if (!more) return mt_fail(MT_EX_NOMEM, "%s: no memory for a record of %u words", r->name, words);
			r->group = more;
			r->room = room;
		}
		int rc = take_bytes(r, r->group + 1 + have, (size_t)n * 4, &got);
		if (rc) return rc;
		if (got < (size_t)n * 4) return ends_inside(r, have + got / 4, words);
		have += n;
	}
	r->group[0] = count;
	return 0;
}

static int begin_group(struct record_reader *r)
{
	int rc = group_check(r->name, r->records, r->group + 1, r->words, &r->documents, &r->total);
	r->document = r->at_word = 0;
	if (!rc) record_document(r);
	return rc;
}

/* ---- records */

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
	r->words = 0;
	r->now = (struct group_document){0};
	bool group = count & RECORD_GROUP && (count & ~RECORD_GROUP) <= RECORD_MAX;
	if (count == 0 || count == RECORD_GROUP)
		return mt_fail(MT_EX_DATA, "%s: record %llu: is empty", r->name, (unsigned long long)r->records);
	if (count > RECORD_MAX && !group)
		return mt_fail(MT_EX_DATA, "%s: record %llu: count %u is above %u; are these records?", r->name,
			(unsigned long long)r->records, count, RECORD_MAX);
	if (group || r->whole) {
		if ((rc = read_words(r, count))) return rc;
		r->now.ids = r->group + 1;
	}
	if (group) {
		r->words = count & ~RECORD_GROUP;
		if ((rc = begin_group(r)) < 0) return rc;
	}
	if (r->whole) r->whole(r->group, 1 + (size_t)(count & ~RECORD_GROUP));
	if (group) return 1;
	r->count = r->left = r->total = count;
	r->documents = r->document = 1;
	return 1;
}

int record_take(struct record_reader *r, uint32_t *out, uint32_t n)
{
	size_t got = (size_t)n * 4;
	int rc = 0;
	if (r->now.ids) memcpy(out, r->now.ids + (r->count - r->left), got);
	else rc = take_bytes(r, out, (size_t)n * 4, &got);
	if (rc) return rc;
	if (got < (size_t)n * 4) return ends_inside(r, r->count - r->left + got / 4, r->count + r->rest);
	r->left -= n;
	return 0;
}
