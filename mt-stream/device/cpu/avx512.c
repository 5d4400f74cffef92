/* avx512.c: the kernels for AVX-512 (Skylake-X's F, BW, DQ, VL): 16 lanes, 32 registers */
#if defined(__x86_64__)
#if defined(__clang__)
#include <immintrin.h>
#include "cpu.h"
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), \
	apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#include <immintrin.h>
#endif

#define VW 16
#define MR 8
#define KERNELS_NAME "avx512"
#include "kernels.h"

KERNELS(cpu_kernels_avx512);

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int cpu_avx512_is_x86_only;
#endif
