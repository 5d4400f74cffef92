/* fp8.c: a GEMM of operands rounded to e4m3, which the cpu multiplies in bf16 (ops/fp8.h) */
#include "cpu.h"
#include "ops/fp8.h"

struct copy { /* of (rows, n), a row's elements or a column's with one scale */
	uint16_t *dst;
	const uint16_t *src;
	int64_t rows, n, ld;
};

static void row_task(const void *args, int64_t first, int64_t end)
{
	const struct copy *c = args;
	for (int64_t r = first; r < end; r++) cpu_kernels()->fp8_row(c->dst + r * c->n, c->src + r * c->ld, c->n);
}

static void column_task(const void *args, int64_t first, int64_t end)
{
	const struct copy *c = args;
	cpu_kernels()->fp8_columns(c->dst + first, c->n, c->src + first, c->ld, c->rows, end - first);
}

static void round_operand(struct pool *pool, const struct copy *c, int rows)
{
	enum { ROWS = 16 };
	if (rows) run_tasks(pool, c->rows, ROWS, row_task, c);
	else run_tasks(pool, c->n, FP8_COLUMNS, column_task, c);
}

void gemm_fp8(struct pool *pool, const struct gemm_args *g)
{
	struct gemm_args own = *g;
	struct copy a = {g->fp8, g->a, g->trans_a ? g->k : g->m, g->trans_a ? g->m : g->k, g->lda};
	struct copy b = {a.dst + g->m * g->k, g->b, g->trans_b ? g->n : g->k, g->trans_b ? g->k : g->n, g->ldb};
	round_operand(pool, &a, !g->trans_a);
	round_operand(pool, &b, g->trans_b);
	own.fp8 = NULL;
	own.a = a.dst;
	own.lda = a.n;
	own.b = b.dst;
	own.ldb = b.n;
	op_gemm(pool, &own);
}
