/* measure.c: the rates of this machine's cores, measured in about a second: times without a GPU are predicted by them.
 * The best of several tries counts, since other programs run meanwhile. */
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "plan.h"
#include "pool.h"

enum {
	TRIES = 5,
	GEMM = 1024,         /* m, n and k: as large as the tiles of a small model's blocks */
	COPY = 32u << 20,    /* bytes that a thread copies: more than its caches hold */
	ADAM_BYTES = 8,      /* GB/s of host memory that a core's update reads and writes, as for a GPU's host */
	ADAM_PARAMETER = 26, /* bytes that the update of a parameter reads and writes */
};

/* mem is zeros, in either type */
static double gemm_flops(struct pool *pool, bool bf16, float *mem)
{
	size_t n = (size_t)GEMM * GEMM;
	struct gemm_args g = {.m = GEMM,
		.n = GEMM,
		.k = GEMM,
		.a = mem,
		.b = mem + n,
		.c = mem + 2 * n,
		.lda = GEMM,
		.ldb = GEMM,
		.ldc = GEMM,
		.bf16 = bf16};
	double best = INFINITY;
	for (int i = 0; i < TRIES; i++) {
		double began = mt_now();
		op_gemm(pool, &g);
		best = fmin(best, mt_now() - began);
	}
	return 2.0 * GEMM * GEMM * GEMM / best;
}

static void copy_part(void *arg, int64_t task, int thread)
{
	char *at = (char *)arg + 2 * COPY * (size_t)task;
	(void)thread;
	memcpy(at, at + COPY, COPY);
}

/* Bytes read and written */
static double copy_rate(struct pool *pool, int threads, void *mem)
{
	double best = INFINITY;
	for (int i = 0; i < TRIES; i++) {
		double began = mt_now();
		pool_run(pool, threads, copy_part, mem);
		best = fmin(best, mt_now() - began);
	}
	return 2.0 * COPY * threads / best;
}

static int measure(int threads, bool bf16, struct profile *p)
{
	size_t bytes = 2ull * COPY * (size_t)threads, gemm = 3 * sizeof(float) * GEMM * GEMM;
	struct pool *pool = gemm_ready() ? pool_create(threads, POOL_SPINS, NULL) : NULL;
	char *mem = pool ? malloc(bytes > gemm ? bytes : gemm) : NULL;
	int rc = 0;
	if (mem) {
		memset(mem, 0, bytes > gemm ? bytes : gemm);
		double flops = gemm_flops(pool, bf16, (float *)(void *)mem), all = copy_rate(pool, threads, mem);
		double fp32 = bf16 ? gemm_flops(pool, false, (float *)(void *)mem) : flops;
		*p = (struct profile){
			.name = "cpu, measured",
			.h2d = copy_rate(pool, 1, mem), /* a queue copies on one thread */
			.d2h = copy_rate(pool, 1, mem),
			.hbm = all,
			.flops = flops,
			.fp32 = fp32 / flops,
			.ram = all,
			.links = INFINITY,
			.adam = 1e9 * ADAM_BYTES / ADAM_PARAMETER * threads,
			.cores = true,
			.attention_bf16 = bf16 && attention_bf16_is_fast(),
		};
	} else rc = mt_fail(MT_EX_NOMEM, "no memory or no threads to measure this machine");
	free(mem);
	if (pool) pool_free(pool);
	return rc;
}

int profile_cores(const char *rates, enum mt_dtype dtype, int threads, bool bf16, struct profile *selects,
	struct profile *measured)
{
	int rc = profile_parse("cpu", dtype, NULL, selects);
	if (!rc) rc = profile_change(rates, selects);
	if (!rc) rc = measure(threads, bf16, measured);
	return rc ? rc : profile_change(rates, measured);
}

const char *profile_cores_rates(const char *spec)
{
	if (!profile_named(spec)) return spec;
	if (strncasecmp(spec, "cpu", 3) || (spec[3] && spec[3] != ',')) return NULL;
	return spec[3] ? spec + 4 : spec + 3;
}
