/* batch.c: what a message may say. It comes from a peer: nothing in it may lead out of bounds. */
#include <math.h>
#include <string.h>

#include "batch.h"
#include "mt/documents.h"
#include "mt/error.h"
#include "mt/memory.h"
#include "say.h"

uint64_t batch_tokens(size_t block, uint32_t top)
{
	return block < MT_BATCH_ROOM ? 0 : (block - MT_BATCH_ROOM) / (MT_BATCH_TOKEN + 4 * MT_TEACHER_WORDS(top));
}

/* How many of a teacher's the block has of each position: with scores 3 they are asked for */
static uint32_t top_of(const struct mt_msg *m) { return m->batch.documents ? m->batch.top : 0; }

int batch_fits(const struct mt_msg *m, size_t block)
{
	uint64_t rows = m->batch.rows, seq = m->batch.seq, most = batch_tokens(block, top_of(m));
	if (!rows || !seq || rows > most / seq)
		return mt_fail(MT_EX_PEER, "%llu row%s of %llu token%s do not fit in a block of %llu token%s",
			(unsigned long long)rows, mt_s(rows), (unsigned long long)seq, mt_s(seq), (unsigned long long)most,
			mt_s(most));
	if (m->batch.weights > 1) return mt_fail(MT_EX_PEER, "weights of kind %u", m->batch.weights);
	if (m->batch.documents > rows * seq)
		return mt_fail(MT_EX_PEER, "%u documents in %llu row%s of %llu token%s", m->batch.documents,
			(unsigned long long)rows, mt_s(rows), (unsigned long long)seq, mt_s(seq));
	if (m->batch.documents && !m->batch.weights) return mt_fail(MT_EX_PEER, "an objective without weights");
	return 0;
}

size_t batch_objective_at(uint64_t n, uint32_t top)
{
	return (n * (5 + MT_TEACHER_WORDS(top)) * sizeof(uint32_t) + 7) / 8 * 8;
}

size_t batch_bytes(const struct mt_msg *m)
{
	uint64_t n = (uint64_t)m->batch.rows * m->batch.seq;
	if (!m->batch.documents) return n * (m->batch.weights ? 4 : 3) * sizeof(uint32_t);
	return batch_objective_at(n, m->batch.top) + sizeof(struct mt_objective) +
		m->batch.documents * sizeof(struct mt_document);
}

struct batch_parts batch_parts(const struct mt_msg *m, const void *block)
{
	const uint32_t *tokens = block;
	uint64_t n = (uint64_t)m->batch.rows * m->batch.seq;
	struct batch_parts b = {.tokens = tokens, .targets = tokens + n, .starts = tokens + 2 * n};
	if (m->batch.weights) b.weights = (const float *)block + 3 * n;
	if (!m->batch.documents) return b;
	b.old = (const float *)block + 4 * n;
	if (m->batch.top) b.teacher = tokens + 5 * n;
	b.objective = (const void *)((const char *)block + batch_objective_at(n, m->batch.top));
	b.documents = (const void *)(b.objective + 1);
	return b;
}

static int check_rows(const struct mt_msg *m, const struct batch_parts *b, uint32_t vocab)
{
	uint32_t seq = m->batch.seq;
	for (size_t i = 0, n = (size_t)m->batch.rows * seq; i < n; i++) {
		uint32_t t = (uint32_t)(i % seq);
		if (b->tokens[i] >= vocab || (b->targets[i] >= vocab && b->targets[i] != MT_NO_TARGET))
			return mt_fail(MT_EX_PEER, "row %zu, position %u: token %u, target %u: the vocabulary is %u", i / seq, t,
				b->tokens[i], b->targets[i], vocab);
		/* a document starts here, or is the one before */
		if (b->starts[i] != t && (t == 0 || b->starts[i] != b->starts[i - 1]))
			return mt_fail(MT_EX_PEER, "row %zu, position %u: document starts at %u", i / seq, t, b->starts[i]);
		if (b->weights && !isfinite(b->weights[i]))
			return mt_fail(MT_EX_PEER, "row %zu, position %u: its weight is not finite", i / seq, t);
		if (b->old && !isfinite(b->old[i]))
			return mt_fail(MT_EX_PEER, "row %zu, position %u: its old log-probability is not finite", i / seq, t);
	}
	return 0;
}

/* Is what a teacher says of a target a distribution over ids of the vocabulary, each at most once? */
static bool is_distribution(const uint32_t *words, uint32_t top, uint32_t vocab)
{
	double sum = 0;
	for (uint32_t i = 0; i <= top; i++) {
		float p;
		memcpy(&p, words + top + i, sizeof p);
		if (i < top && (words[i] >= vocab || (i && words[i] <= words[i - 1]))) return false;
		if (!(p >= 0)) return false;
		sum += (double)p;
	}
	return fabs(sum - 1) < 1e-3;
}

static int check_teacher(const struct mt_msg *m, const struct batch_parts *b, uint32_t vocab)
{
	uint32_t seq = m->batch.seq, top = m->batch.top;
	bool needs = mt_losses[b->objective->kind].needs & MT_PART_TEACHER;
	if (needs != (top != 0))
		return mt_fail(MT_EX_PEER, "objective of kind %u with %u tokens of a teacher", b->objective->kind, top);
	for (size_t i = 0, n = top ? (size_t)m->batch.rows * seq : 0; i < n; i++)
		if (b->targets[i] != MT_NO_TARGET && !is_distribution(b->teacher + i * MT_TEACHER_WORDS(top), top, vocab))
			return mt_fail(MT_EX_PEER, "row %zu, position %zu: its teacher's is no distribution over %u tokens",
				i / seq, i % seq, vocab);
	return 0;
}

static int check_objective(const struct mt_objective *o)
{
	const double numbers[] = {o->scale, o->beta, o->gamma, o->low, o->high, o->chosen_scale, o->temperature};
	if (!mt_is_objective(o->kind)) return mt_fail(MT_EX_PEER, "objective of kind %u", o->kind);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (!isfinite(numbers[i])) return mt_fail(MT_EX_PEER, "objective: number %zu is not finite", i);
	return 0;
}

static int check_documents(const struct mt_msg *m, const struct batch_parts *b)
{
	uint32_t seq = m->batch.seq, documents = m->batch.documents;
	size_t n = (size_t)m->batch.rows * seq;
	enum mt_loss_unit unit = mt_losses[b->objective->kind].unit;
	bool pairs = unit == MT_PAIRS;
	if (pairs && documents % 2) return mt_fail(MT_EX_PEER, "%u documents are not pairs", documents);
	for (uint32_t i = 0; i < documents; i++) {
		const struct mt_document *d = &b->documents[i];
		if (d->begin >= n || (i && d->begin <= d[-1].begin) || b->starts[d->begin] != d->begin % seq)
			return mt_fail(MT_EX_PEER, "document %u: begins at %u", i, d->begin);
		if (unit != MT_TARGETS ? d->side != MT_CHOSEN && d->side != MT_REJECTED : d->side != MT_SIDE_NONE)
			return mt_fail(MT_EX_PEER, "document %u: side %u", i, d->side);
		if (!isfinite(d->ref)) return mt_fail(MT_EX_PEER, "document %u: its reference is not finite", i);
		if (pairs && i % 2 && (d->side == d[-1].side || d->begin / seq != d[-1].begin / seq))
			return mt_fail(MT_EX_PEER, "documents %u and %u are not a pair of one row", i - 1, i);
	}
	return 0;
}

/* Each target is of the last document that begins before it, and answers have some. */
static int check_targets(const struct mt_msg *m, const struct batch_parts *b)
{
	uint32_t seq = m->batch.seq, documents = m->batch.documents, began = 0;
	bool answers = mt_losses[b->objective->kind].unit != MT_TARGETS, has = true;
	for (size_t i = 0, n = (size_t)m->batch.rows * seq; i <= n; i++) {
		if (i == n || (began < documents && b->documents[began].begin == i)) {
			if (answers && !has) return mt_fail(MT_EX_PEER, "document %u: has no target", began - 1);
			if (i == n) break;
			began++;
			has = false;
		}
		if (b->targets[i] == MT_NO_TARGET) continue;
		has = true;
		if (!began || b->documents[began - 1].begin != i - i % seq + b->starts[i])
			return mt_fail(MT_EX_PEER, "row %zu, position %zu: a target of no document", i / seq, i % seq);
	}
	return 0;
}

int batch_check(const struct mt_msg *m, const void *block, uint32_t vocab)
{
	struct batch_parts b = batch_parts(m, block);
	int rc = check_rows(m, &b, vocab);
	if (!rc && b.objective) rc = check_objective(b.objective);
	if (!rc && b.objective) rc = check_teacher(m, &b, vocab);
	if (!rc && b.objective) rc = check_documents(m, &b);
	if (!rc && b.objective) rc = check_targets(m, &b);
	return rc;
}

bool piece_fits(const struct mt_msg *m, const struct mt_unit *unit, struct mt_part own, uint64_t most)
{
	uint64_t off = m->grad.off, n = m->grad.n;
	return m->grad.end <= (unit->g[1] != 0) && m->grad.zero <= 1 && off % MT_BLOCK == 0 && off >= own.first &&
		off < own.end && n && n <= own.end - off && (n % MT_BLOCK == 0 || n == own.end - off) && n <= most;
}
