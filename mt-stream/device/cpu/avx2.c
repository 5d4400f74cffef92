/* avx2.c: the kernels for AVX2 with FMA: 8 lanes, 16 registers */
#if defined(__x86_64__)
#if defined(__clang__)
#include <immintrin.h>
#include "cpu.h"
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#endif

#define VW 8
#define MR 4
#define KERNELS_NAME "avx2"
#include "kernels.h"

KERNELS(cpu_kernels_avx2);

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int cpu_avx2_is_x86_only;
#endif
