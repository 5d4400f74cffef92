/* mt-stream's check of a batch message and its block: an accepted one has only tokens of the vocabulary, and documents
 * that start in their row at or before the token. */
#include "batch.h"
#include "fuzz.h"
#include "mt/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	enum { VOCAB = 50 };
	struct bytes in = {data, size};
	struct mt_msg m = {.batch = {.rows = take_u32(&in), .seq = take_u32(&in), .weights = size & 1}};
	size_t block = in.n;
	if (batch_fits(&m, block)) return 0;
	size_t n = (size_t)m.batch.rows * m.batch.seq;
	uint32_t *host = malloc(batch_bytes(&m));
	if (!host) abort();
	take(&in, host, batch_bytes(&m));
	if (batch_check(&m, host, VOCAB) == 0)
		for (size_t i = 0; i < n; i++)
			if (host[i] >= VOCAB || host[2 * n + i] > i % m.batch.seq) abort();
	free(host);
	return 0;
}
