/* check.c: --check. Does each FILE hold what the options say, and only tokens of the vocabulary? Its size and its first
 * document show that; with --shuffle and --mix, all its documents are read: they need the places of all before they
 * write the first. Nothing is written. A pipe can be read only once, so it is not opened. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "feed.h"
#include "model/hffiles.h"
#include "mt/error.h"
#include "mt/model.h"

enum { BYTES_VOCAB = 512, DEFAULT_VOCAB = 32000 }; /* llama's, where config.json has none */

static const struct other { /* files that are often given in place of records */
	const char *magic, *suffix, *reader;
} others[] = {
	{"\x1f\x8b", ".gz", "zcat"},
	{"\xfd\x37zX", ".xz", "xzcat"},
	{"\x28\xb5\x2f\xfd", ".zst", "zstdcat"},
	{"PAR1", ".parquet", NULL},
};

/* `bad`: not valid in the format that was requested. 0, or -65 with the command that converts the file. */
static int check_other(const char *name, const struct feed_how *how, const char *start, bool bad)
{
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		const struct other *x = &others[i];
		if (strncmp(start, x->magic, strlen(x->magic)) != 0 || !(bad || ends_with(name, x->suffix))) continue;
		if (x->reader)
			return mt_fail(MT_EX_DATA, "%s: is compressed: %s %s | mt-run ... --data -", name, x->reader, name);
		return mt_fail(MT_EX_DATA, "%s: is a Parquet file; write its rows as JSON lines, then records with mt-tokens",
			name);
	}
	if (bad && how->format == FEED_RECORDS && (*start == '{' || *start == '['))
		return mt_fail(MT_EX_DATA, "%s: is JSON, not records; convert JSON lines with mt-tokens MODEL %s > FILE", name,
			name);
	return 0;
}

struct checked {
	struct feed_file *file;
	const struct feed_how *how;
	uint64_t documents, element; /* how many; the next element: of the record, or of a flat file */
	uint32_t last[2];            /* the element before, with its flag, and the one before that; MT_CONTEXT_ONLY: none */
};

/* Behind the element before, which is valid, something else begins. */
static void count_end(struct checked *c)
{
	struct feed_ends *ends = c->how->ends;
	bool trained = ends && !(c->last[0] & MT_CONTEXT_ONLY);
	if (trained) ends->all++;
	for (int i = 0; i < 2; i++) {
		if (trained && !(c->last[i] & MT_CONTEXT_ONLY)) ends->of[i][c->last[i]]++;
		c->last[i] = MT_CONTEXT_ONLY;
	}
}

static void count_ends(struct checked *c, const uint32_t *words, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (words[i] & MT_CONTEXT_ONLY) count_end(c);
		c->last[1] = c->last[0];
		c->last[0] = words[i];
	}
}

static bool is_foreign(const struct feed_how *how, uint32_t token)
{
	return token >= how->vocab || mt_media_key(&how->media, token);
}

static int check_words(void *arg, const uint32_t *words, uint32_t n)
{
	struct checked *c = arg;
	char record[48] = "";
	uint32_t i = 0;
	while (i < n && !is_foreign(c->how, words[i] & ~MT_CONTEXT_ONLY)) i++;
	c->element += i;
	if (i == n) {
		if (c->how->ends) count_ends(c, words, n);
		return 0;
	}
	if (c->how->format == FEED_RECORDS)
		snprintf(record, sizeof record, "record %llu, ", (unsigned long long)c->documents);
	const char *key = mt_media_key(&c->how->media, words[i] & ~MT_CONTEXT_ONLY);
	if (key)
		return mt_fail(MT_EX_DATA,
			"%s: %selement %llu: token %u is %s of config.json and stands for no text; "
			"--allow-image-tokens trains on it",
			c->file->name, record, (unsigned long long)c->element, words[i] & ~MT_CONTEXT_ONLY, key);
	return mt_fail(MT_EX_DATA, "%s: %selement %llu: " MT_OUTSIDE, c->file->name, record, (unsigned long long)c->element,
		words[i] & ~MT_CONTEXT_ONLY, (uint32_t)c->how->vocab);
}

static int gather(void *arg, const uint32_t *words, uint32_t n)
{
	uint32_t **to = arg;
	memcpy(*to, words, (size_t)n * 4);
	*to += n;
	return 0;
}

/* group: its count, then its n words, of so many documents; NULL: the record is plain */
static int check_loss(const struct checked *c, uint32_t *group, uint32_t n, uint32_t documents)
{
	struct record_reader r = {.name = c->file->name,
		.records = c->documents,
		.group = group,
		.words = n,
		.documents = documents};
	return c->how->by_loss ? loss_check_record(c->how->loss, &r) : 0;
}

static int check_group(struct checked *c, uint64_t off, uint32_t n)
{
	struct group_document d;
	uint32_t *group = malloc(((size_t)n + 1) * 4), *words = group + 1, *end = words;
	if (!group) return mt_fail(MT_EX_NOMEM, "%s: no memory for a group of %u words", c->file->name, n);
	int rc = file_words(c->file, c->how, off, n, gather, &end);
	uint32_t documents, total;
	if (!rc) rc = group_check(c->file->name, c->documents, words, n, &documents, &total);
	if (!rc) rc = check_loss(c, group, n, documents);
	for (uint32_t at = 0, number = 1; at < n && !rc; number++) {
		rc = group_document(c->file->name, c->documents, number, words, n, &at, &d);
		c->element = 0;
		if (!rc && c->how->vocab) rc = check_words(c, d.ids, d.count);
		if (!rc && c->how->vocab && c->how->by_loss && c->how->loss == MT_KD)
			rc = loss_check_teacher(c->file->name, c->documents, &d, 0, (uint32_t)c->how->vocab);
		if (!rc && c->how->top && !*c->how->top) *c->how->top = d.top;
		if (!rc) count_end(c);
	}
	free(group);
	return rc;
}

/* file_documents */
static int check_document(void *arg, uint64_t off, uint32_t n)
{
	struct checked *c = arg;
	const struct feed_how *how = c->how;
	int rc = 0;
	c->documents++;
	c->element = how->format == FEED_RECORDS ? 0 : off / how->format;
	if (n & RECORD_GROUP) rc = check_group(c, off, n & ~RECORD_GROUP);
	else if ((rc = check_loss(c, NULL, 0, 1)) == 0 && how->vocab) rc = file_words(c->file, how, off, n, check_words, c);
	if (!rc) count_end(c);
	return rc ? rc : !how->shuffle && !how->mix;
}

int check_file(const char *name, const struct feed_how *how)
{
	struct feed_file f;
	struct stat st;
	char start[5] = "";
	if (!strcmp(name, "-")) return 0;
	if (stat(name, &st) || access(name, R_OK)) return record_unopened(name);
	bool pipe = !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
	if (pipe && !how->shuffle && !how->mix && how->epochs == 1) return 0;
	int rc = file_open(&f, name, NULL);
	if (rc) return rc;
	if (pread(f.fd, start, 4, 0) < 0) start[0] = 0; /* file_documents reports it */
	struct checked checked = {.file = &f, .how = how, .last = {MT_CONTEXT_ONLY, MT_CONTEXT_ONLY}};
	int found = file_documents(&f, how, check_document, &checked);
	rc = check_other(name, how, start, found < 0 && !checked.documents);
	if (!rc && found < 0) rc = found; /* with the message of file_documents */
	if (!rc && !checked.documents) rc = mt_fail(MT_EX_DATA, "%s: no record at all", name);
	file_close(&f);
	return rc;
}

int check_turn_end(const struct feed_how *how)
{
	const struct feed_ends *ends = how->ends;
	const char *before = "";
	for (int place = 0; place < 2 && ends->all; place++) {
		uint64_t i = 0;
		while (i < how->vocab && 2 * ends->of[place][i] < ends->all) i++;
		if (i < how->vocab) printf("%s%llu", before, (unsigned long long)i), before = ",";
	}
	if (*before) putchar('\n');
	return fflush(stdout) ? mt_fail(MT_EX_IO, "stdout: %s", strerror(errno)) : 0;
}

int check_vocabulary(const char *config, bool allow_media, struct feed_how *how)
{
	struct mt_geometry g;
	char *text = NULL;
	json_t *root = NULL;
	(void)file_read_json(AT_FDCWD, config, &root);
	json_t *vocab = json_object_get(root, "vocab_size");
	long long n = json_is_integer(vocab) ? json_integer_value(vocab) : DEFAULT_VOCAB;
	bool known = json_is_integer(vocab) && n > 0;
	if (!mt_config_read(config, &g, &text) && *g.wrapper) {
		n = g.vocab;
		known = true;
		if (!allow_media) mt_media_read(text, strlen(text), &how->media);
	}
	free(text);
	bool above = how->format && n >= 1ll << 8 * how->format; /* every element */
	if (known && !above) how->vocab = (uint64_t)n;
	if (!root) n = 0; /* mt-store create reports what is wrong with it */
	json_decref(root);
	if (how->format != FEED_BYTES || n <= BYTES_VOCAB) return 0;
	return mt_fail(MT_EX_USAGE, "--bytes: a vocabulary of %lld wants a tokenizer; see mt-tokens", n);
}
