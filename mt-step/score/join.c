/* join.c: the records again, with a part that has come from scores. Everything else stays as it was, byte for byte;
 * plain records become groups of one document. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/half.h"
#include "mt/error.h"
#include "score.h"

struct kept { /* a record that has been read, and not written */
	struct kept *next;
	uint32_t at;      /* word at which the next document to write begins */
	uint32_t words[]; /* its count, then what stands behind it */
};

static struct {
	struct kept *first, **end;
	uint64_t record; /* the first one's number */
	uint64_t left_out;
} join = {.end = &join.first, .record = 1};

void join_keep(const uint32_t *words, size_t n)
{
	struct kept *k = malloc(sizeof *k + n * sizeof *words);
	if (!k) mt_die(MT_EX_NOMEM, "no memory for a record of %zu words", n);
	memcpy(k->words, words, n * sizeof *words);
	k->next = NULL;
	k->at = 0;
	*join.end = k;
	join.end = &k->next;
}

static void drop_first(void)
{
	struct kept *k = join.first;
	join.first = k->next;
	if (!join.first) join.end = &join.first;
	free(k);
	join.record++;
}

static void put(const void *words, size_t n)
{
	if (fwrite(words, 4, n, stdout) != n) mt_die(MT_EX_IO, "stdout: %s", strerror(errno));
}

/* The next document of the record; false: there is none. */
static bool next_document(struct kept *k, uint32_t *at, struct group_document *d)
{
	uint32_t n = *k->words & ~RECORD_GROUP;
	if (*at == n) return false;
	if (*k->words & RECORD_GROUP) return group_document("stdin", join.record, 0, k->words + 1, n, at, d) == 0;
	*d = (struct group_document){.count = n, .ids = k->words + 1};
	*at = n;
	return true;
}

static uint64_t teacher_words(const struct group_document *d, uint32_t top)
{
	uint64_t words = 0;
	for (uint32_t i = 0; i < d->count; i++) words += record_targets(d, i) ? record_teacher_words(top) : 0;
	return words;
}

/* With a joined part; a teacher that the document has is replaced */
static uint64_t words_of(const struct group_document *d, const struct joined *j)
{
	uint32_t parts = d->parts | j->part, arrays = 1 + !!(parts & MT_PART_WEIGHTS) + !!(parts & MT_PART_OLD);
	uint32_t top = j->part == MT_PART_TEACHER ? j->top : d->top;
	uint64_t words = 2 + !!(parts & MT_PART_SIDE) + 2 * !!(parts & MT_PART_REF) + (uint64_t)arrays * d->count;
	return parts & MT_PART_TEACHER ? words + 2 + teacher_words(d, top) : words;
}

static void put_count(struct kept *k, const struct joined *j)
{
	struct group_document d;
	uint64_t words = 0;
	for (uint32_t at = 0; next_document(k, &at, &d);) words += words_of(&d, j);
	if (words > RECORD_MAX)
		mt_die(MT_EX_DATA, "stdin: record %llu: would be longer than %u words", (unsigned long long)join.record,
			RECORD_MAX);
	put(&(uint32_t){RECORD_GROUP | (uint32_t)words}, 1);
}

static void put_old(const double *logp, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		float x = isnan(logp[i]) ? 0 : (float)logp[i];
		if (!isfinite(x))
			mt_die(MT_EX_DATA, "record %llu, element %u: its log-probability is not finite",
				(unsigned long long)join.record, i);
		put(&x, 1);
	}
}

/* What messages have of each target, as records have it: the same order, log-probabilities in fp16 */
static void put_teacher(const struct joined *j, const struct group_document *d)
{
	const uint32_t *words = j->teacher;
	for (uint32_t i = 0; i < d->count; i++) {
		if (!record_targets(d, i)) continue;
		put(words, j->top);
		for (uint32_t k = 0; k <= j->top; k += 2) {
			float x[2] = {0};
			memcpy(x, words + j->top + k, (k < j->top ? 2 : 1) * sizeof *x);
			if (isnan(x[0]) || isnan(x[1]) || (isinf(x[0]) && k < j->top))
				mt_die(MT_EX_DATA, "record %llu, element %u: its teacher's log-probability is not finite",
					(unsigned long long)join.record, i);
			put(&(uint32_t){half_round(fminf(x[0], 0)) | (uint32_t)half_round(fminf(x[1], 0)) << 16}, 1);
		}
		words += MT_TEACHER_WORDS(j->top);
	}
}

void join_document(const struct joined *j, uint64_t record)
{
	struct group_document d;
	enum mt_record_part part = j->part;
	for (; join.record < record; join.left_out++) drop_first();
	struct kept *k = join.first;
	if (!k->at) put_count(k, j);
	bool is_there = next_document(k, &k->at, &d);
	MT_ASSERT(is_there && (part != MT_PART_OLD || j->n == d.count));
	d.parts |= part;
	if (part == MT_PART_REF) d.ref = j->sum;
	if (!isfinite(d.ref))
		mt_die(MT_EX_DATA, "record %llu: its log-probability is not finite", (unsigned long long)record);
	put((uint32_t[]){d.count, d.parts}, 2);
	if (d.parts & MT_PART_SIDE) put(&d.side, 1);
	if (d.parts & MT_PART_REF) put(&d.ref, 2);
	if (part == MT_PART_TEACHER) put((uint32_t[]){j->top, j->vocabulary}, 2);
	else if (d.top) put((uint32_t[]){d.top, d.vocabulary}, 2);
	put(d.ids, d.count);
	if (d.weight_bits) put(d.weight_bits, d.count);
	if (part == MT_PART_OLD) put_old(j->tokens, d.count);
	else if (d.old_bits) put(d.old_bits, d.count);
	if (part == MT_PART_TEACHER) put_teacher(j, &d);
	else if (d.top) put(d.teacher, teacher_words(&d, d.top));
	if (k->at == (*k->words & ~RECORD_GROUP)) drop_first();
}

uint64_t join_end(void)
{
	for (; join.first; join.left_out++) drop_first();
	return join.left_out;
}
