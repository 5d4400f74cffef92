/* grouped.c: the GEMMs of all experts of a layer as one operation, in tiles; so threads share experts of any size */
#include <string.h>

#include "cpu.h"
#include "ops/grouped.h"

/* The GEMM of one expert, and the number of the first of its tiles among all */
struct expert_gemm {
	struct gemm_args gemm;
	struct gemm_tiles tiles;
	int64_t begin;
};

struct expert_gemms {
	struct pool *pool;
	const struct expert_gemm *of; /* (n + 1): the last one's begin is the number of tiles */
	int64_t n;
};

/* The GEMM of a tile: the last that begins at it or before */
static const struct expert_gemm *gemm_of_tile(const struct expert_gemms *g, int64_t tile)
{
	int64_t lo = 0, hi = g->n;
	while (hi - lo > 1) {
		int64_t mid = (lo + hi) / 2;
		if (g->of[mid].begin <= tile) lo = mid;
		else hi = mid;
	}
	return &g->of[lo];
}

static void tile_task(void *arg, int64_t task, int thread)
{
	const struct expert_gemms *all = arg;
	const struct expert_gemm *g = gemm_of_tile(all, task);
	if (g->gemm.k) gemm_tile(all->pool, thread, &g->tiles, task - g->begin);
	else if (g->gemm.beta == 0) /* an expert without tokens */
		for (int64_t r = 0; r < g->gemm.m; r++)
			memset((float *)g->gemm.c + r * g->gemm.ldc, 0, (size_t)g->gemm.n * sizeof(float));
}

void op_grouped_gemm(struct pool *pool, const struct grouped_gemm_args *a)
{
	struct expert_gemm *of = op_shared(pool, (size_t)(a->experts + 1) * sizeof *of);
	struct expert_gemms gemms = {pool, of, 0};
	int64_t tiles = 0;
	for (int64_t e = 0; e < a->experts; e++) {
		struct expert_gemm *g = &of[gemms.n];
		g->gemm = gemm_of_expert(a, a->sum, e, a->first[e], (int64_t)a->first[e + 1] - a->first[e],
			operand_bytes(a->bf16));
		if (g->gemm.m == 0) continue;
		g->tiles = g->gemm.k ? gemm_split(&g->gemm) : (struct gemm_tiles){.m = {1, 0}, .n = {1, 0}};
		g->begin = tiles;
		tiles += g->tiles.m.count * g->tiles.n.count;
		gemms.n++;
	}
	pool_run(pool, tiles, tile_task, &gemms);
}

static void bias_task(void *arg, int64_t e, int thread)
{
	const struct grouped_bias_backward_args *a = arg;
	float *db = a->db + e * a->stride;
	(void)thread;
	if (a->beta == 0) memset(db, 0, (size_t)a->n * sizeof *db);
	cpu_kernels()->column_sums(db, (const float *)a->dy + a->first[e] * a->n, a->first[e + 1] - a->first[e], a->n,
		a->n);
}

void op_grouped_bias_backward(struct pool *pool, const struct grouped_bias_backward_args *a)
{
	pool_run(pool, a->experts, bias_task, (void *)a);
}
