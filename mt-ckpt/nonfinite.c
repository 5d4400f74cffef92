/* nonfinite.c: warns of weights that are infinite or NaN, usually after a far too high learning rate. No training can
 * go on from them. */
#include "ckpt.h"
#include "cli/cli.h"

static bool half_nonfinite(uint16_t bits) { return (bits & 0x7f80) == 0x7f80; }
static bool full_nonfinite(uint32_t bits) { return (bits & 0x7f800000u) == 0x7f800000u; }

uint64_t nonfinite_count(struct nonfinite *seen, const char *tensor, enum mt_dtype dtype, const void *w, uint64_t n)
{
	const uint16_t *half = w; /* (n) */
	const uint32_t *full = w; /* (n) */
	uint64_t bad = 0, first = 0;

	if (dtype == MT_BF16)
		for (uint64_t i = 0; i < n; i++) bad += half_nonfinite(half[i]);
	else
		for (uint64_t i = 0; i < n; i++) bad += full_nonfinite(full[i]);
	if (!bad) return n;
	if (!seen->n) snprintf(seen->name, sizeof seen->name, "%s", tensor);
	seen->n += bad;
	while (dtype == MT_BF16 ? !half_nonfinite(half[first]) : !full_nonfinite(full[first])) first++;
	return first;
}

void nonfinite_warn(const struct nonfinite *seen)
{
	if (seen->n)
		mt_say("warning: %llu weights are infinite or NaN, the first of them in '%s'", (unsigned long long)seen->n,
			seen->name);
}
