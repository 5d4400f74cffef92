/* The values of options: sizes and numbers */
#include <math.h>

#include "cli/cli.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = as_text(data, size);
	uint64_t n;
	double x;
	struct mt_opt size_opt = {.type = OPT_SIZE, .value = &n}, u64 = {.type = OPT_U64, .value = &n},
				  real = {.type = OPT_DOUBLE, .value = &x};
	if (mt_opt_set(&size_opt, text) && n >> 63) abort();
	mt_opt_set(&u64, text);
	if (mt_opt_set(&real, text) && !isfinite(x)) abort();
	free(text);
	return 0;
}
