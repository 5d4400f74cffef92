/* peak.h: what a core's instructions for multiply-adds do on registers alone: the limit of every GEMM
 *
 * Sums are independent, and enough of them to hide an instruction's latency: of up to 6 cycles, two a cycle. */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include "common.h"
#include "pool.h"

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* s_i += a b, in a loop over s_0 .. s_(SUMS - 1), with one kind of instruction. Empty assembly says that each sum is in
 * a register: otherwise the compiler would compute one of these equal sums for all. */
#if defined(__x86_64__)
#define IN_REGISTER "+v"
#else
#define IN_REGISTER "+w"
#endif
#define PEAK_LOOP(name, attribute, sums, sum, operand, a, b, multiply_add) \
	static attribute void peak_##name(int64_t rounds) \
	{ \
		sum s[sums] = {0}; \
		operand x = a, y = b; \
		for (int64_t n = 0; n < rounds; n++) { \
			_Pragma("GCC unroll 24") for (int i = 0; i < (sums); i++) \
			{ \
				s[i] = multiply_add; \
				__asm__ volatile("" : IN_REGISTER(s[i])); \
			} \
		} \
	}

#if defined(__x86_64__)
#define TARGET(t) __attribute__((target(t)))
PEAK_LOOP(avx512, TARGET("avx512f"), 24, __m512, __m512, _mm512_set1_ps(0.5f), _mm512_set1_ps(-0.25f),
	_mm512_fmadd_ps(x, y, s[i]))
PEAK_LOOP(avx2, TARGET("avx2,fma"), 12, __m256, __m256, _mm256_set1_ps(0.5f), _mm256_set1_ps(-0.25f),
	_mm256_fmadd_ps(x, y, s[i]))
PEAK_LOOP(sse, , 12, __m128, __m128, _mm_set1_ps(0.5f), _mm_set1_ps(-0.25f), _mm_add_ps(_mm_mul_ps(x, y), s[i]))
PEAK_LOOP(dot, TARGET("avx512f,avx512bf16"), 24, __m512, __m512bh, (__m512bh)_mm512_set1_epi16(0x3f00),
	(__m512bh)_mm512_set1_epi16((short)0xbe80), _mm512_dpbf16_ps(s[i], x, y))

/* A tile of AMX has 16 rows of 64 bytes. Tiles 0 to 3 are sums. Zeros take as long as other numbers. */
static TARGET("amx-tile,amx-bf16") void peak_tiles(int64_t rounds)
{
	enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };
	struct {
		uint8_t palette, start, reserved[14];
		uint16_t bytes[16];
		uint8_t rows[16];
	} config = {.palette = 1};
	for (int i = 0; i < TILES; i++) config.bytes[i] = ROW_BYTES, config.rows[i] = ROWS;
	/* all tiles are zeros then (gcc 12's _tile_loadconfig says that it reads 8 bytes, and stores to the others are
	 * dropped) */
	__asm__ volatile("ldtilecfg %0" : : "m"(config));
	for (int64_t n = 0; n < rounds; n++) {
		_tile_dpbf16ps(0, 4, 6);
		_tile_dpbf16ps(1, 4, 7);
		_tile_dpbf16ps(2, 5, 6);
		_tile_dpbf16ps(3, 5, 7);
	}
	_tile_release();
}

/* Leaf 7 says what the CPU has; Linux lets a process use tiles when it asks for them */
static int has_tiles(void)
{
	enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
	unsigned a, b, c, d = 0;
	__asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
	return d & AMX_BF16 && d & AMX_TILE && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#elif defined(__aarch64__)
PEAK_LOOP(neon, , 24, float32x4_t, float32x4_t, vdupq_n_f32(0.5f), vdupq_n_f32(-0.25f), vfmaq_f32(s[i], x, y))
#endif

struct peak {
	const char *name;
	void (*run)(int64_t rounds);
	double round; /* operations of one */
};

/* The fastest instruction of this CPU for operands of the type. NULL: none is known */
static const struct peak *peak_of(int bf16)
{
#if defined(__x86_64__)
	static const struct peak tiles = {"AMX", peak_tiles, 4 * 2 * 16 * 16 * 32},
							 dot = {"AVX512-BF16", peak_dot, 24 * 2 * 32},
							 avx512 = {"AVX-512", peak_avx512, 24 * 2 * 16}, avx2 = {"AVX2", peak_avx2, 12 * 2 * 8},
							 sse = {"SSE", peak_sse, 12 * 2 * 4};
	__builtin_cpu_init();
	if (bf16) return has_tiles() ? &tiles : __builtin_cpu_supports("avx512bf16") ? &dot : NULL;
	if (__builtin_cpu_supports("avx512f")) return &avx512;
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2 : &sse;
#elif defined(__aarch64__)
	static const struct peak neon = {"NEON", peak_neon, 24 * 2 * 4};
	return bf16 ? NULL : &neon;
#else
	(void)bf16;
	return NULL;
#endif
}

struct peak_job {
	const struct peak *peak;
	int64_t rounds;
	double *seconds; /* (tasks), of the thread's CPU time */
};

static void peak_task(void *arg, int64_t task, int thread)
{
	const struct peak_job *job = arg;
	double began = now(CLOCK_THREAD_CPUTIME_ID);
	(void)thread;
	job->peak->run(job->rounds);
	job->seconds[task] = now(CLOCK_THREAD_CPUTIME_ID) - began;
}

/* Operations a second of all threads at once, of CPU time: the best of tries of some milliseconds, since the CPU's
 * clock is not always the same. 0: the CPU has no such instruction */
static double peak_flops(struct pool *pool, int bf16)
{
	enum { TRIES = 100, MOST = 1024 };
	const double try_s = 5e-3;
	static double seconds[MOST];
	struct peak_job job = {peak_of(bf16), 1000, seconds};
	int threads = pool_threads(pool) < MOST ? pool_threads(pool) : MOST;
	double best = 0;
	for (int i = 0; job.peak && i < TRIES; i++) {
		double sum = 0;
		pool_run(pool, threads, peak_task, &job);
		for (int t = 0; t < threads; t++) sum += seconds[t];
		double flops = job.peak->round * (double)job.rounds * threads * threads / sum;
		if (flops > best) best = flops;
		if (sum / threads < try_s / 2) job.rounds *= 2;
	}
	return best;
}

#endif
