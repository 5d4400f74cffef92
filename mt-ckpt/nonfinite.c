/* nonfinite.c: warns of weights that are infinite or NaN, usually after a far too high learning rate. No training can
 * go on from them. */
#include <pthread.h>
#include "ckpt.h"
#include "say.h"

uint64_t nonfinite_count(struct nonfinite *seen, uint32_t index, const char *tensor, enum mt_dtype dtype, const void *w,
	uint64_t n)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for *seen */
	const uint16_t *half = w;                                /* (n) */
	const uint32_t *full = w;                                /* (n) */
	uint64_t bad = 0, first = n;
	if (!convert_any_nonfinite(dtype, w, n)) return n; /* almost always */
	for (uint64_t i = n; i--;)
		if (dtype == MT_BF16 ? half_nonfinite(half[i]) : full_nonfinite(full[i])) {
			bad++;
			first = i;
		}
	pthread_mutex_lock(&lock);
	if (!seen->n || index < seen->index) {
		seen->index = index;
		snprintf(seen->name, sizeof seen->name, "%s", tensor);
	}
	seen->n += bad;
	pthread_mutex_unlock(&lock);
	return first;
}

void nonfinite_warn(const struct nonfinite *seen)
{
	if (seen->n)
		mt_say("warning: %llu weights are infinite or NaN, the first of them in '%s'", (unsigned long long)seen->n,
			seen->name);
}
