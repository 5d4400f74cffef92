/* isa.c: which set of kernels this CPU runs */
#include "cpu.h"
#include "ops/gemm.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct kernels *choose(void)
{
#if defined(__x86_64__)
	const char *ask = getenv("MT_ISA");
	int rank = 2; /* avx512 */
	if (ask && !strcmp(ask, "plain")) rank = 0;
	else if (ask && !strcmp(ask, "avx2")) rank = 1;
	__builtin_cpu_init();
	if (rank == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		return &cpu_kernels_avx512;
	if (rank >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &cpu_kernels_avx2;
#endif
	return &cpu_kernels_plain;
}

const struct kernels *cpu_kernels(void)
{
	static const struct kernels *_Atomic chosen; /* several threads may choose, all the same */
	const struct kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
	if (!k) atomic_store_explicit(&chosen, k = choose(), memory_order_relaxed);
	return k;
}

const struct attention_kernels *attention_bf16(void)
{
#if defined(__x86_64__)
	if (cpu_kernels() == &cpu_kernels_avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"))
		return &attention_avx512_bf16;
#endif
	return NULL;
}

const char *kernels_description(void) { return cpu_kernels()->name; }
