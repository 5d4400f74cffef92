/* libmt's check of a gradient message: an accepted one lies in what this node has of its unit, and in the ring's
 * block. */
#include "batch.h"
#include "fuzz.h"
#include "mt/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes in = {data, size};
	static const struct mt_unit units[3] = {{.g = {4096, 8192}}, {.g = {4096}}, {.g = {4096}}};
	/* of the last one, the part of one of several nodes */
	static const struct mt_part own[3] = {{0, 64 * 3 * 64}, {0, 65 * 64}, {4096, 1ull << 32}};
	uint8_t bf16;
	take(&in, &bf16, 1);
	uint64_t most = take_u32(&in) / (bf16 & 1 ? 2 : 4);
	uint32_t u = take_u32(&in);
	struct mt_msg m = {.grad = {.unit = u, .end = take_u32(&in), .off = take_u64(&in), .n = take_u64(&in)}};
	m.grad.zero = take_u32(&in);
	if (u >= 3 || !piece_fits(&m, &units[u], own[u], most)) return 0;
	if (m.grad.end > (u == 0) || m.grad.n > most || m.grad.off < own[u].first || m.grad.off + m.grad.n > own[u].end ||
		m.grad.off % MT_BLOCK || m.grad.zero > 1)
		abort();
	return 0;
}
