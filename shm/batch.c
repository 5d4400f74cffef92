/* batch.c: what a message may say. It comes from a peer: nothing in it may lead out of bounds. */
#include <math.h>
#include <string.h>

#include "batch.h"
#include "mt/error.h"
#include "mt/memory.h"
#include "say.h"

int batch_fits(const struct mt_msg *m, size_t block)
{
	uint64_t rows = m->batch.rows, seq = m->batch.seq, most = block / MT_BATCH_TOKEN;
	if (!rows || !seq || rows > most / seq)
		return mt_fail(MT_EX_PEER, "%llu row%s of %llu token%s do not fit in a block of %llu token%s",
			(unsigned long long)rows, mt_s(rows), (unsigned long long)seq, mt_s(seq), (unsigned long long)most,
			mt_s(most));
	if (m->batch.weights > 1) return mt_fail(MT_EX_PEER, "weights of kind %u", m->batch.weights);
	return 0;
}

size_t batch_bytes(const struct mt_msg *m)
{
	return (size_t)m->batch.rows * m->batch.seq * (m->batch.weights ? MT_BATCH_TOKEN : 3 * sizeof(uint32_t));
}

int batch_check(const struct mt_msg *m, const uint32_t *tokens, uint32_t vocab)
{
	uint32_t seq = m->batch.seq;
	size_t n = (size_t)m->batch.rows * seq;
	const uint32_t *targets = tokens + n, *starts = targets + n;
	for (size_t i = 0; i < n; i++) {
		uint32_t t = (uint32_t)(i % seq);
		if (tokens[i] >= vocab || (targets[i] >= vocab && targets[i] != MT_NO_TARGET))
			return mt_fail(MT_EX_PEER, "row %zu, position %u: token %u, target %u: the vocabulary is %u", i / seq, t,
				tokens[i], targets[i], vocab);
		/* a document starts here, or is the one before */
		if (starts[i] != t && (t == 0 || starts[i] != starts[i - 1]))
			return mt_fail(MT_EX_PEER, "row %zu, position %u: document starts at %u", i / seq, t, starts[i]);
		float weight = 1;
		if (m->batch.weights) memcpy(&weight, starts + n + i, sizeof weight);
		if (!isfinite(weight)) return mt_fail(MT_EX_PEER, "row %zu, position %u: its weight is not finite", i / seq, t);
	}
	return 0;
}

bool piece_fits(const struct mt_msg *m, const struct mt_unit *unit, struct mt_part own, uint64_t most)
{
	uint64_t off = m->grad.off, n = m->grad.n;
	return m->grad.end <= (unit->g[1] != 0) && m->grad.zero <= 1 && off % MT_BLOCK == 0 && off >= own.first &&
		off < own.end && n && n <= own.end - off && (n % MT_BLOCK == 0 || n == own.end - off) && n <= most;
}
