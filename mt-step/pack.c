/* pack.c: documents to rows, resumable at any row's end.
 *
 * Elements are placed as they are read; a document is in memory as a whole only in a group. Only placed elements are
 * hashed, of a group all words with its first element: a position does not depend on whether the next record's header
 * was read. A group of several documents, and an answer, go whole into a row, so that no position is inside them.
 */
#include <stdlib.h>

#include "mt/error.h"
#include "pack.h"
#include "say.h"

static const struct {
	const char *name;
	uint32_t pack;
} hows[] = {{"docs", PACK_DOCS}, {"concat", PACK_CONCAT}, {"none", PACK_NONE}},
  longs[] = {{"split", LONG_SPLIT}, {"drop", LONG_DROP}, {"truncate", LONG_TRUNCATE}};

bool pack_how_parse(const char *name, uint32_t *pack)
{
	for (int i = 0; i < 3; i++)
		if (!strcmp(name, hows[i].name)) {
			*pack |= hows[i].pack;
			return true;
		}
	return false;
}

bool pack_long_parse(const char *name, uint32_t *pack)
{
	for (int i = 0; i < 3; i++)
		if (!strcmp(name, longs[i].name)) {
			*pack |= longs[i].pack;
			return true;
		}
	return false;
}

const char *pack_how_name(uint32_t pack)
{
	for (int i = 0; i < 3; i++)
		if ((pack & PACK_HOW) == hows[i].pack) return hows[i].name;
	return "?";
}

const char *pack_long_name(uint32_t pack)
{
	for (int i = 0; i < 3; i++)
		if ((pack & LONG_MASK) == longs[i].pack) return longs[i].name;
	return "?";
}

int packer_open(struct packer *p, struct record_reader *in, uint32_t pack, uint32_t seq, const struct vocabulary *vocab)
{
	*p = (struct packer){.in = in,
		.pack = pack,
		.seq = seq,
		.vocab = *vocab,
		.carry = MT_NO_TARGET,
		.raw = calloc(seq, sizeof *p->raw),
		.raw_weights = calloc(seq, sizeof *p->raw_weights),
		.raw_old = calloc(seq, sizeof *p->raw_old)};
	if (!p->raw || !p->raw_weights || !p->raw_old)
		return mt_fail(MT_EX_NOMEM, "no memory for a row of %u token%s", seq, mt_s(seq));
	XXH64_reset(&p->all, 0);
	XXH64_reset(&p->cut, 0);
	p->hash = XXH64_digest(&p->all);
	return 0;
}

void packer_close(struct packer *p)
{
	free(p->raw);
	free(p->raw_weights);
	free(p->raw_old);
	p->raw = NULL;
	p->raw_weights = p->raw_old = NULL;
}

/* Leave out of a document longer than a row what --long leaves out. A position counts and hashes only what is placed,
 * so a successor leaves out the same. */
static void cut_long(struct packer *p)
{
	bool several = p->in->documents > 1 || (p->loss && mt_losses[p->loss->kind].unit != MT_TARGETS);
	p->groups_dropped += several;
	if ((p->pack & LONG_MASK) == LONG_DROP || several) record_cut(p->in, 0);
	else if ((p->pack & LONG_MASK) == LONG_TRUNCATE) record_cut(p->in, p->seq);
}

/* Read the header of the next record that is not dropped, unless one is open. 1: a record is open; 0: end of input. */
static int look(struct packer *p)
{
	while (!p->open && !p->ended) {
		int rc = record_next(p->in);
		if (rc < 0) return rc;
		p->ended = rc == 0;
		if (p->ended) break;
		uint32_t n = p->in->total;
		p->documents++;
		if (p->in->words && (p->pack & PACK_HOW) == PACK_CONCAT)
			return mt_fail(MT_EX_DATA, "%s: record %llu: is a group, and --pack concat keeps no record together",
				p->in->name, (unsigned long long)p->in->records);
		if (p->loss && (rc = loss_check_record(p->loss->kind, p->in)) < 0) return rc;
		if (n > p->longest) p->longest = n;
		p->longer += n > p->seq;
		if (n > p->seq) cut_long(p);
		p->open = p->in->count != 0;
	}
	return p->open;
}

static uint32_t placed(const struct packer *p) { return p->open ? p->in->count - p->in->left : 0; }

static void hash_first(struct packer *p)
{
	const struct record_reader *in = p->in;
	XXH64_reset(&p->cut, 0);
	if (!in->words) XXH64_update(&p->all, &in->count, sizeof in->count);
	if (in->words) XXH64_update(&p->all, in->group, ((size_t)in->words + 1) * 4);
	if (in->words) XXH64_update(&p->cut, in->group, ((size_t)in->words + 1) * 4);
}

/* Take n elements of the open document into out, and account for them as placed. */
static int place(struct packer *p, uint32_t *out, uint32_t n)
{
	bool first = placed(p) == 0 && p->in->document == 1;
	int rc = record_take(p->in, out, n);
	if (rc) return rc;
	if (first) hash_first(p);
	if (!p->in->words) XXH64_update(&p->all, out, (size_t)n * 4);
	p->carry = out[n - 1];
	p->tokens += n;
	if (p->in->left) {
		if (!p->in->words) XXH64_update(&p->cut, out, (size_t)n * 4);
		return 0;
	}
	if (record_document(p->in)) return 0;
	p->open = false;
	p->records++;
	p->hash = XXH64_digest(&p->all);
	return 0;
}

int packer_skip(struct packer *p, const struct mt_position *to)
{
	enum { CHUNK = 1 << 14 };
	static const char other[] = "input is not what this run was trained on (--input new starts on other input)";
	uint32_t *chunk = malloc(CHUNK * 4);
	if (!chunk) return mt_fail(MT_EX_NOMEM, "no memory to read the input");
	int rc = 0;
	bool ended = false;
	while (p->records < to->records || placed(p) < to->offset) {
		rc = look(p);
		ended = rc == 0;
		if (rc <= 0) break;
		uint64_t want = p->records < to->records ? p->in->left : to->offset - placed(p);
		if (want > p->in->left) break;
		if ((rc = place(p, chunk, want < CHUNK ? (uint32_t)want : CHUNK)) < 0) break;
	}
	free(chunk);
	if (rc < 0) return rc;
	uint64_t cut = to->offset ? XXH64_digest(&p->cut) : 0;
	if (ended)
		return mt_fail(MT_EX_DATA, "%s: %s: it ends after %llu record%s, the run has consumed %llu", p->in->name, other,
			(unsigned long long)p->records, mt_s(p->records), (unsigned long long)to->records);
	bool short_of = p->records < to->records || placed(p) < to->offset;
	if (short_of || p->hash != to->hash || cut != to->hash_cut) {
		unsigned long long n = to->records + (to->offset != 0);
		if (n == 1) return mt_fail(MT_EX_DATA, "%s: %s: the first record differs", p->in->name, other);
		return mt_fail(MT_EX_DATA, "%s: %s: the first %llu records differ", p->in->name, other, n);
	}
	if ((p->pack & PACK_HOW) == PACK_CONCAT) p->carry = to->carry;
	return 0;
}

static int check_ids(const struct packer *p, uint32_t at, uint32_t n, uint64_t record, uint64_t element)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t id = p->raw[at + i] & ~MT_CONTEXT_ONLY;
		if (id >= p->vocab.size)
			return mt_fail(MT_EX_DATA, "%s: record %llu, element %llu: " MT_OUTSIDE, p->in->name,
				(unsigned long long)record, (unsigned long long)(element + i), id, p->vocab.size);
		const char *key = mt_media_key(&p->vocab.media, id);
		if (key)
			return mt_fail(MT_EX_DATA,
				"%s: record %llu, element %llu: token %u is %s of config.json and stands for no text; "
				"--allow-image-tokens trains on it",
				p->in->name, (unsigned long long)record, (unsigned long long)(element + i), id, key);
	}
	return 0;
}

/* The next elements of the open record, placed in the next row */
static void count_answers(struct packer *p, const uint32_t *raw, uint32_t n, bool first)
{
	struct answers *a = &p->answers;
	if (first) {
		a->of_document = raw[0] & MT_CONTEXT_ONLY;
		a->in_answer = true; /* a question begins */
	}
	for (uint32_t i = 0; i < n && a->of_document; i++) {
		bool answer = !(raw[i] & MT_CONTEXT_ONLY);
		if (!answer && a->in_answer) a->row = p->rows;
		if (answer && !a->in_answer) a->is_cut = false;
		a->n += answer && !a->in_answer;
		a->in_answer = answer;
		if (!answer || a->is_cut || a->row == p->rows) continue;
		a->is_cut = true;
		a->cut++;
	}
}

/* What stands at n elements of a group's document, or what plain records have */
static void take_floats(float *out, const uint32_t *bits, float plain, uint32_t n)
{
	if (bits) memcpy(out, bits, n * sizeof *bits);
	else
		for (uint32_t i = 0; i < n; i++) out[i] = plain;
}

/* What the teacher says of n elements, from `element` on, of which the first one is placed at row's `at`: a target's is
 * that of the position before it */
static int take_teacher(struct packer *p, const struct group_document *d, uint32_t at, uint32_t n, uint64_t element)
{
	const uint32_t *words = d->teacher;
	bool needed = p->loss && mt_losses[p->loss->kind].needs & MT_PART_TEACHER;
	if (!needed) return 0;
	int rc = element ? 0 : loss_check_teacher(p->in->name, p->in->records, d, p->vocab.top, p->vocab.size);
	p->vocab.top = d->top;
	for (uint64_t i = 1; !rc && p->teacher && i < element + n; i++) {
		if (!record_targets(d, (uint32_t)i)) continue;
		uint64_t place = at + i - element - 1;
		if (i >= element) loss_teacher(p->loss, words, d->top, p->teacher + place * MT_TEACHER_WORDS(p->vocab.top));
		words += record_teacher_words(d->top);
	}
	return rc;
}

/* Place the next piece of the open record at raw[at], n elements of it. */
static int place_piece(struct packer *p, uint32_t at, uint32_t n)
{
	uint64_t record = p->in->records, element = placed(p);
	struct group_document of = p->in->now;
	int rc = place(p, p->raw + at, n);
	if (rc) return rc;
	p->weighted |= of.weight_bits != NULL;
	take_floats(p->raw_weights + at, of.weight_bits ? of.weight_bits + element : NULL, 1, n);
	take_floats(p->raw_old + at, of.old_bits ? of.old_bits + element : NULL, 0, n);
	count_answers(p, p->raw + at, n, element == 0);
	rc = check_ids(p, at, n, record, element);
	return rc ? rc : take_teacher(p, &of, at, n, element);
}

static void begin_piece(uint32_t *starts, uint32_t at, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) starts[at + i] = at;
}

/* The number of elements placed in the row; 0: end of input. */
static int64_t docs_row(struct packer *p, uint32_t *starts)
{
	uint32_t at = 0, seq = p->seq;
	for (int rc; at < seq;) {
		if ((rc = look(p)) < 0) return rc;
		if (rc == 0) break;
		uint32_t others = p->in->documents - p->in->document, done = placed(p), from = at;
		uint32_t n = others ? p->in->total : p->in->left;
		if (done) { /* the rest of a cut document, from its last token on */
			p->raw[at++] = p->carry;
			if (n > seq - 1) n = seq - 1;
		} else if (n > seq) {
			if (at) break;
			n = seq;
		} else if (n > seq - at) {
			break;
		}
		uint32_t document = others ? 1 : 0;
		do {
			if (document) n = p->in->left;
			if (p->in_row) p->in_row[p->n_in_row++] = (struct mt_document){from, p->in->now.side, p->in->now.ref};
			if ((rc = place_piece(p, at, n)) < 0) return rc;
			at += n;
			begin_piece(starts, from, at - from);
			for (uint32_t i = from; p->places && i < at; i++) p->places[i] = (struct place){p->in->records, document};
			from = at;
			document++;
		} while (others--);
		if ((p->pack & PACK_HOW) == PACK_NONE) break;
	}
	return at;
}

static int64_t concat_row(struct packer *p, uint32_t *starts)
{
	uint32_t at = 0, seq = p->seq;
	if (p->carry != MT_NO_TARGET) p->raw[at++] = p->carry;
	uint32_t before = at;
	for (int rc; at < seq;) {
		if ((rc = look(p)) < 0) return rc;
		if (rc == 0) break;
		uint32_t n = p->in->left < seq - at ? p->in->left : seq - at;
		if ((rc = place_piece(p, at, n)) < 0) return rc;
		at += n;
	}
	begin_piece(starts, 0, at);
	return at > before ? at : 0;
}

int packer_row(struct packer *p, uint32_t *tokens, uint32_t *targets, uint32_t *starts)
{
	p->weighted = false;
	p->n_in_row = 0;
	if (p->teacher) memset(p->teacher, 0, p->seq * MT_TEACHER_WORDS(p->vocab.top) * sizeof *p->teacher);
	int64_t n = (p->pack & PACK_HOW) == PACK_CONCAT ? concat_row(p, starts) : docs_row(p, starts);
	if (n <= 0) return (int)n;
	for (uint32_t i = 0; i < n; i++) {
		bool last = i + 1 == n || starts[i + 1] != starts[i];
		tokens[i] = p->raw[i] & ~MT_CONTEXT_ONLY;
		targets[i] = last || (p->raw[i + 1] & MT_CONTEXT_ONLY) ? MT_NO_TARGET : p->raw[i + 1];
		if (p->weights) p->weights[i] = targets[i] == MT_NO_TARGET ? 1 : p->raw_weights[i + 1];
		if (p->old) p->old[i] = targets[i] == MT_NO_TARGET ? 0 : p->raw_old[i + 1];
	}
	for (uint32_t i = (uint32_t)n; i < p->seq; i++) { /* padding: a separate document that predicts nothing */
		tokens[i] = 0;
		targets[i] = MT_NO_TARGET;
		starts[i] = (uint32_t)n;
		if (p->places) p->places[i] = (struct place){0};
		if (p->weights) p->weights[i] = 1;
		if (p->old) p->old[i] = 0;
	}
	p->rows++;
	p->padding += p->seq - (uint64_t)n;
	return 1;
}

int packer_more(struct packer *p) { return look(p); }

int packer_check_any(const struct packer *p)
{
	if (p->records || placed(p)) return 0;
	if (!p->documents) return mt_fail(MT_EX_DATA, "%s: no record at all", p->in->name);
	if ((p->pack & LONG_MASK) != LONG_DROP)
		return mt_fail(MT_EX_DATA, "%s: every record is a group longer than --seq %u, which is dropped", p->in->name,
			p->seq);
	return mt_fail(MT_EX_DATA, "%s: every document is longer than --seq %u, and --long drop drops them", p->in->name,
		p->seq);
}

void packer_position(const struct packer *p, struct mt_position *pos)
{
	pos->records = p->records;
	pos->offset = placed(p);
	pos->hash = p->hash;
	pos->hash_cut = pos->offset ? XXH64_digest(&p->cut) : 0;
	pos->carry = (p->pack & PACK_HOW) == PACK_CONCAT ? p->carry : MT_NO_TARGET;
	pos->seq = p->seq;
	pos->pack = p->pack;
}

uint64_t targets_count(const uint32_t *targets, uint64_t n)
{
	uint64_t count = 0;
	for (uint64_t i = 0; i < n; i++) count += targets[i] != MT_NO_TARGET;
	return count;
}
