/* convert.c: loops over elements, which are compiled twice: for every x86-64, and for AVX2, which is about three times
 * as fast. The results are the same bits. */
#include "ckpt.h"
#include "model/bf16.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void round_loop(uint16_t *restrict out, const uint32_t *restrict bits, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) out[i] = bf16_round(bits[i]);
}

INLINE void join_loop(uint32_t *restrict out, const uint16_t *restrict w, const int16_t *restrict lo, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) out[i] = mt_join(w[i], lo[i]);
}

INLINE void split_loop(uint16_t *restrict w, int16_t *restrict lo, const uint32_t *restrict bits, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) w[i] = mt_hi(bits[i]);
	for (uint64_t i = 0; i < n; i++) lo[i] = mt_lo(bits[i]);
}

INLINE bool any_half_loop(const uint16_t *w, uint64_t n)
{
	uint16_t any = 0;
	for (uint64_t i = 0; i < n; i++) any |= half_nonfinite(w[i]);
	return any;
}

INLINE bool any_full_loop(const uint32_t *w, uint64_t n)
{
	uint32_t any = 0;
	for (uint64_t i = 0; i < n; i++) any |= full_nonfinite(w[i]);
	return any;
}

#if defined __x86_64__
#define AVX2(call) \
	if (__builtin_cpu_supports("avx2")) return call
#define FOR_AVX2 __attribute__((target("avx2")))
FOR_AVX2 static void round_avx2(uint16_t *out, const uint32_t *bits, uint64_t n) { round_loop(out, bits, n); }
FOR_AVX2 static void join_avx2(uint32_t *out, const uint16_t *w, const int16_t *lo, uint64_t n)
{
	join_loop(out, w, lo, n);
}
FOR_AVX2 static void split_avx2(uint16_t *w, int16_t *lo, const uint32_t *bits, uint64_t n)
{
	split_loop(w, lo, bits, n);
}
FOR_AVX2 static bool any_half_avx2(const uint16_t *w, uint64_t n) { return any_half_loop(w, n); }
FOR_AVX2 static bool any_full_avx2(const uint32_t *w, uint64_t n) { return any_full_loop(w, n); }
#else
#define AVX2(call)
#endif

void convert_round(uint16_t *out, const uint32_t *bits, uint64_t n)
{
	AVX2(round_avx2(out, bits, n));
	round_loop(out, bits, n);
}

void convert_join(uint32_t *out, const uint16_t *w, const int16_t *lo, uint64_t n)
{
	AVX2(join_avx2(out, w, lo, n));
	join_loop(out, w, lo, n);
}

void convert_split(uint16_t *w, int16_t *lo, const uint32_t *bits, uint64_t n)
{
	AVX2(split_avx2(w, lo, bits, n));
	split_loop(w, lo, bits, n);
}

bool convert_any_nonfinite(enum mt_dtype dtype, const void *w, uint64_t n)
{
	if (dtype == MT_BF16) {
		AVX2(any_half_avx2(w, n));
		return any_half_loop(w, n);
	}
	AVX2(any_full_avx2(w, n));
	return any_full_loop(w, n);
}
