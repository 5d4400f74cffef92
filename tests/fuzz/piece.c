/* mt-optim's check of a gradient message: an accepted one lies in what this node has of its unit, and in the ring's
 * block. */
#include "fuzz.h"
#include "optim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes in = {data, size};
	/* the last one's part of one of several nodes */
	struct unit units[3] = {{.groups = 64 * 3, .end_group = 64 * 3, .grads = 2},
		{.groups = 65, .end_group = 65, .grads = 1},
		{.groups = 1ull << 27, .first_group = 64, .end_group = 1ull << 26, .grads = 1}};
	struct optim o = {.units = units, .n_units = 3};
	uint8_t bf16;
	take(&in, &bf16, 1);
	o.g_bf16 = bf16 & 1;
	size_t block = take_u32(&in);
	struct mt_msg m = {.grad = {.unit = take_u32(&in), .end = take_u32(&in), .off = take_u64(&in), .n = take_u64(&in)}};
	if (!piece_fits(&o, &m, block)) return 0;
	if (m.grad.unit >= 3 || m.grad.end >= (uint32_t)units[m.grad.unit].grads || m.grad.n * (o.g_bf16 ? 2 : 4) > block ||
		m.grad.off < units[m.grad.unit].first_group * MT_GROUP ||
		m.grad.off + m.grad.n > units[m.grad.unit].end_group * MT_GROUP || m.grad.off % MT_BLOCK)
		abort();
	return 0;
}
