/* peak.c: GFLOP/s of multiply-adds on registers alone, of fp32 and bf16 operands, as one line of JSON; bf16 has null
 * where the CPU has no instruction for it
 *
 * usage: peak [THREADS]
 */
#include "peak.h"

#include <stdio.h>

int main(int argc, char **argv)
{
	struct pool *pool = pool_create(argc > 1 ? atoi(argv[1]) : 2, POOL_SPINS, NULL);
	if (!pool) return 71;
	for (int bf16 = 0; bf16 < 2; bf16++) {
		double flops = peak_flops(pool, bf16);
		const char *name = bf16 ? "bf16" : "fp32";
		printf(bf16 ? ", " : "{");
		if (flops > 0) printf("\"%s\": %.1f, \"%s_by\": \"%s\"", name, flops * 1e-9, name, peak_of(bf16)->name);
		else printf("\"%s\": null, \"%s_by\": null", name, name);
	}
	printf("}\n");
	pool_free(pool);
	return 0;
}
