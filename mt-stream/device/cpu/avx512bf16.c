/* avx512bf16.c: attention with operands of bf16, for AVX-512 with AVX512-BF16 */
#if defined(__x86_64__)
#if defined(__clang__)
#include <immintrin.h>
#include "cpu.h"
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma"))), \
	apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prefer-vector-width=512")
#include <immintrin.h>
#endif

#define VW 16
#define MR 8
#define ATTENTION_BF16 1
#include "simd.h"

#include "kernel-attention.h"

const struct attention_kernels attention_avx512_bf16 = {attention_scratch, attention_forward, attention_backward};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int cpu_avx512bf16_is_x86_only;
#endif
