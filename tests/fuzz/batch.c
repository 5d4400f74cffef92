/* mt-stream's check of a batch message and its block: an accepted one has only tokens of the vocabulary, documents
 * that start in their row at or before the token, and of an objective only documents that it can be computed of. */
#include <math.h>

#include "batch.h"
#include "fuzz.h"
#include "mt/documents.h"
#include "mt/memory.h"

static void check_teacher(const struct mt_msg *m, const struct batch_parts *b, size_t position, uint32_t vocab)
{
	const uint32_t *ids = b->teacher + position * MT_TEACHER_WORDS(m->batch.top);
	for (uint32_t i = 0; i < m->batch.top; i++)
		if (ids[i] >= vocab || (i && ids[i] <= ids[i - 1])) abort();
}

static void check_objective(const struct mt_msg *m, const struct batch_parts *b, const char *end)
{
	uint32_t seq = m->batch.seq, n = m->batch.rows * seq;
	enum mt_loss_unit unit = mt_losses[b->objective->kind].unit;
	if ((const char *)(b->documents + m->batch.documents) != end || !isfinite(b->objective->scale)) abort();
	for (uint32_t i = 0; i < m->batch.documents; i++) {
		const struct mt_document *d = &b->documents[i], *other = &b->documents[i ^ 1];
		uint32_t row_end = d->begin / seq * seq + seq, next = i + 1 < m->batch.documents ? d[1].begin : n, targets = 0;
		if (d->begin >= n || next <= d->begin || !isfinite(d->ref)) abort();
		for (uint32_t at = d->begin; at < next; at++) {
			if (b->targets[at] == MT_NO_TARGET) continue;
			if (at >= row_end || b->starts[at] != d->begin % seq || !isfinite(b->old[at])) abort();
			targets++;
		}
		if (unit != MT_TARGETS && !targets) abort();
		if (unit != MT_PAIRS) continue;
		if (d->side + other->side != MT_CHOSEN + MT_REJECTED) abort();
		if (d->begin / seq != other->begin / seq) abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum { VOCAB = 50 };
	struct bytes in = {data, size};
	struct mt_msg m = {.batch = {.rows = take_u32(&in), .seq = take_u32(&in), .documents = take_u32(&in)}};
	m.batch.weights = m.batch.documents ? 1 : size & 1;
	m.batch.top = m.batch.documents >> 16;
	m.batch.documents &= 0xffff;
	size_t block = in.n;
	if (batch_fits(&m, block)) return 0;
	size_t n = (size_t)m.batch.rows * m.batch.seq, bytes = batch_bytes(&m);
	char *host = malloc(bytes);
	if (!host || bytes > block) abort();
	take(&in, host, bytes);
	struct batch_parts b = batch_parts(&m, host);
	if (batch_check(&m, host, VOCAB) == 0) {
		for (size_t i = 0; i < n; i++)
			if (b.tokens[i] >= VOCAB || b.starts[i] > i % m.batch.seq) abort();
			else if (b.teacher && b.targets[i] != MT_NO_TARGET) check_teacher(&m, &b, i, VOCAB);
		if (b.objective) check_objective(&m, &b, host + bytes);
	}
	free(host);
	return 0;
}
