/* nonfinite.c: weights that are infinite or NaN: no training goes on from them. A learning rate that is far too high
 * makes them; whoever writes or reads them is told. */
#include "ckpt.h"
#include "cli/cli.h"

uint64_t count_nonfinite(enum mt_dtype dtype, const void *w, uint64_t n, uint64_t *first)
{
	const uint16_t *half = w; /* (n) */
	const uint32_t *full = w; /* (n) */
	uint64_t bad = 0;

	if (dtype == MT_BF16)
		for (uint64_t i = 0; i < n; i++) bad += (half[i] & 0x7f80) == 0x7f80;
	else
		for (uint64_t i = 0; i < n; i++) bad += (full[i] & 0x7f800000u) == 0x7f800000u;
	for (uint64_t i = 0; bad && i < n; i++)
		if (dtype == MT_BF16 ? (half[i] & 0x7f80) == 0x7f80 : (full[i] & 0x7f800000u) == 0x7f800000u) {
			*first = i;
			break;
		}
	return bad;
}

void nonfinite_add(struct nonfinite *seen, const char *tensor, uint64_t n)
{
	if (!seen->n && n) snprintf(seen->name, sizeof seen->name, "%s", tensor);
	seen->n += n;
}

void nonfinite_warn(const struct nonfinite *seen)
{
	if (seen->n)
		mt_say("warning: %llu weights are infinite or NaN, the first of them in '%s'", (unsigned long long)seen->n,
			seen->name);
}
