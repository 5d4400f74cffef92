/* cuda-kernels.c: every kernel of the cuda device, emulated (tests/gpu/emu.h), beside the definitions that ops.c has for
 * the cpu's operations: the same cases, in fp32 with the same bounds, and in bf16.
 *
 * What ops.c does with three pools happens here under three seeds: in each, the threads of a block go on after barriers
 * in another order, and the operands lie at another alignment. The bits must be the same.
 */
#include <stdint.h>

#include "../../mt-stream/ops.h"
#include "../../mt-stream/cuda-ops.h"

#define main ops_main
#include "ops.c"
#undef main

struct pool { uint64_t seed; };

static struct cuda_queue queue = { .elem = 4 };

/* ---- operands: fp32 as they are; for bf16 a copy, rounded, which goes back when the operation is over ---- */

static struct operand { const float *of; uint16_t *copy; int64_t n; } operands[16];
static int operands_n;
static int straight;            /* at 16 bytes: attention's alignment decides between kernels, so it decides bits */

static uint16_t narrow(float x)
{
	uint32_t b;

	memcpy(&b, &x, 4);
	return (uint16_t)(isnan(x) ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static float widen(uint16_t x)
{
	uint32_t b = (uint32_t)x << 16;
	float f;

	memcpy(&f, &b, 4);
	return f;
}

static void *operand(const float *x, int64_t n)
{
	if (queue.elem == 4 || !x)
		return (void *)x;
	for (int i = 0; i < operands_n; i++)
		if (operands[i].of == x)
			return operands[i].copy;
	struct operand *o = &operands[operands_n++];
	*o = (struct operand){ x, keep((size_t)n * 2 + 64), n };
	/* 16-byte aligned, or off it where x is */
	o->copy = (uint16_t *)(((uintptr_t)o->copy + 15) & ~(uintptr_t)15);
	o->copy += straight ? 0 : 5 * ((uintptr_t)x / 4 % 4);
	for (int64_t i = 0; i < n; i++)
		o->copy[i] = narrow(x[i]);
	return o->copy;
}

/* The operation is over and has written x */
static void back(const float *x)
{
	for (int i = 0; i < operands_n; i++)
		for (int64_t j = 0; x == operands[i].of && j < operands[i].n; j++)
			((float *)x)[j] = widen(operands[i].copy[j]);
}

static void begin(struct pool *p)
{
	emu_seed(p->seed);
	operands_n = straight = 0;
	memset(queue.work, 0xff, queue.work_bytes < 1 << 20 ? queue.work_bytes : 1 << 20);
}

/* ---- the operations of ops.h, through the kernels ---- */

struct pool *pool_create(int threads)
{
	struct pool *p = malloc(sizeof *p);

	*p = (struct pool){ (uint64_t)threads * 77 };
	return p;
}
void pool_free(struct pool *p) { free(p); }
int pool_threads(const struct pool *p) { return (int)(p->seed / 77); }
void pool_run(struct pool *p, int64_t tasks, void (*fn)(void *, int64_t, int), void *arg)
{
	for (int64_t i = 0; i < tasks; i++)
		fn(arg, i, pool_threads(p) - 1);
}

void op_gemm(struct pool *p, const struct gemm *g)
{
	struct cuda_gemm c = { .m = g->m, .n = g->n, .k = g->k, .lda = g->lda, .trans_a = g->trans_a, .ldb = g->ldb,
		.trans_b = g->trans_b, .ldc = g->ldc, .beta = g->beta };

	begin(p);
	/* weight gradients are fp32 */
	c.fp32 = g->trans_a;
	c.a = operand(g->a, (g->trans_a ? g->k : g->m) * g->lda);
	c.b = operand(g->b, (g->trans_b ? g->n : g->k) * g->ldb);
	c.bias = operand(g->bias, g->n);
	c.c = c.fp32 ? g->c : operand(g->c, g->m * g->ldc);
	cuda_gemm_plain(&queue, &c);
	back(g->c);
}

void op_bias_backward(struct pool *p, float *db, float beta, const float *dy, int64_t ldy, int64_t m, int64_t n)
{
	float *dense = keep((size_t)(m * n) * sizeof *dense);

	begin(p);
	for (int64_t i = 0; i < m; i++)
		memcpy(dense + i * n, dy + i * ldy, (size_t)n * sizeof *dense);
	cuda_bias_backward(&queue, db, beta, operand(dense, m * n), m, n);
}

void op_embed_forward(struct pool *p, float *x, const float *w, const uint32_t *tokens, int64_t n, int64_t h)
{
	int64_t vocab = 0;

	begin(p);
	for (int64_t i = 0; i < n; i++)
		vocab = tokens[i] >= vocab ? tokens[i] + 1 : vocab;
	cuda_embed_forward(&queue, operand(x, n * h), operand(w, vocab * h), tokens, n, h);
	back(x);
}

void op_embed_backward(struct pool *p, float *dw, float beta, const float *dx, const uint32_t *tokens, int64_t n, int64_t h,
	int64_t vocab, int64_t pad)
{
	begin(p);
	cuda_embed_backward(&queue, dw, beta, operand(dx, n * h), tokens, n, h, vocab, pad);
}

void op_rmsnorm_forward(struct pool *p, float *y, float *rstd, const float *x, const float *w, int64_t n, int64_t h,
	float eps)
{
	begin(p);
	cuda_rmsnorm_forward(&queue, operand(y, n * h), rstd, operand(x, n * h), operand(w, h), n, h, eps);
	back(y);
}

void op_rmsnorm_backward(struct pool *p, float *dx, int add_dx, float *dw, float beta, const float *dy, const float *x,
	const float *w, const float *rstd, int64_t n, int64_t h)
{
	begin(p);
	cuda_rmsnorm_backward(&queue, operand(dx, n * h), add_dx, dw, beta, operand(dy, n * h), operand(x, n * h),
		operand(w, h), rstd, n, h);
	back(dx);
}

void op_add(struct pool *p, float *y, const float *a, const float *b, int64_t n)
{
	begin(p);
	cuda_add(&queue, operand(y, n), operand(a, n), operand(b, n), n);
	back(y);
}

static struct cuda_rope rope_of(const struct rope *r)
{
	return (struct cuda_rope){ .n = r->n, .seq = r->seq, .heads = r->heads, .kv_heads = r->kv_heads, .dim = r->dim,
		.cos = r->cos, .sin = r->sin, .starts = r->starts, .qnorm = operand(r->qnorm, r->dim),
		.knorm = operand(r->knorm, r->dim), .eps = r->eps };
}

void op_rope_forward(struct pool *p, const struct rope *r, float *qkv, float *pre, float *rstd)
{
	begin(p);
	struct cuda_rope c = rope_of(r);
	cuda_rope_forward(&queue, &c, operand(qkv, r->n * (r->heads + 2 * r->kv_heads) * r->dim),
		operand(pre, r->n * (r->heads + r->kv_heads) * r->dim), rstd);
	back(qkv);
	back(pre);
}

void op_rope_backward(struct pool *p, const struct rope *r, float *dqkv, const float *pre, const float *rstd, float *dqnorm,
	float *dknorm, float beta)
{
	begin(p);
	struct cuda_rope c = rope_of(r);
	cuda_rope_backward(&queue, &c, operand(dqkv, r->n * (r->heads + 2 * r->kv_heads) * r->dim),
		operand(pre, r->n * (r->heads + r->kv_heads) * r->dim), rstd, dqnorm, dknorm, beta);
	back(dqkv);
}

static struct cuda_attention attention_of(const struct attention *a)
{
	return (struct cuda_attention){ a->n, a->seq, a->heads, a->kv_heads, a->dim, a->window, a->scale, a->starts };
}

void op_attention_forward(struct pool *p, const struct attention *a, float *o, float *lse, const float *qkv)
{
	begin(p);
	struct cuda_attention c = attention_of(a);
	straight = 1;
	cuda_attention_forward(&queue, &c, operand(o, a->n * a->heads * a->dim), lse,
		operand(qkv, a->n * (a->heads + 2 * a->kv_heads) * a->dim));
	back(o);
}

void op_attention_backward(struct pool *p, const struct attention *a, float *dqkv, const float *d_o, const float *o,
	const float *lse, const float *qkv)
{
	int64_t out = a->n * a->heads * a->dim, wide = a->n * (a->heads + 2 * a->kv_heads) * a->dim;

	begin(p);
	struct cuda_attention c = attention_of(a);
	straight = 1;
	cuda_attention_backward(&queue, &c, operand(dqkv, wide), operand(d_o, out), operand(o, out), lse, operand(qkv, wide));
	back(dqkv);
}

void op_swiglu_forward(struct pool *p, float *y, const float *gu, int64_t n, int64_t f)
{
	begin(p);
	cuda_swiglu_forward(&queue, operand(y, n * f), operand(gu, n * 2 * f), n, f);
	back(y);
}

void op_swiglu_backward(struct pool *p, float *dgu, const float *dy, const float *gu, int64_t n, int64_t f)
{
	begin(p);
	cuda_swiglu_backward(&queue, operand(dgu, n * 2 * f), operand(dy, n * f), operand(gu, n * 2 * f), n, f);
	back(dgu);
}

double op_cross_entropy(struct pool *p, float *logits, const uint32_t *targets, int64_t n, int64_t vocab, float scale,
	int backward, int64_t *count)
{
	struct cuda_loss loss = { 0, 0 };

	begin(p);
	cuda_cross_entropy(&queue, operand(logits, n * vocab), targets, n, vocab, scale, backward, &loss);
	back(logits);
	*count = loss.targets;
	return loss.sum;
}

void op_narrow(struct pool *p, uint16_t *dst, const float *src, int64_t n)
{
	begin(p);
	cuda_narrow(&queue, dst, src, n);
}

void op_widen(struct pool *p, float *dst, const uint16_t *src, int64_t n)
{
	(void)p;
	for (int64_t i = 0; i < n; i++)
		dst[i] = widen(src[i]);
}

void op_copy(struct pool *p, void *dst, const void *src, size_t bytes) { (void)p; memcpy(dst, src, bytes); }
void op_zero(struct pool *p, void *dst, size_t bytes) { (void)p; memset(dst, 0, bytes); }

/* ---- cases: those of ops.c, and shapes at which the kernels change their way ---- */

static void all(void)
{
	static const int64_t gemms[][3] = { {1, 1, 1}, {3, 5, 7}, {17, 1, 33}, {1, 64, 20}, {64, 48, 80}, {65, 33, 63} };
	static const int64_t norms[][2] = { {1, 3}, {3, 20}, {33, 64}, {600, 16}, {5, 2056}, {2, 11000} };

	for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++)
		for (int form = 0; form < 8; form++)
			test_gemm(gemms[i][0], gemms[i][1], gemms[i][2], form);
	test_bias(1, 1);
	test_bias(70, 33);
	test_bias(301, 600);
	test_embed(1, 1, 3);
	test_embed(500, 100, 37);
	test_embed(300, 2080, 7);
	for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
		test_norm(norms[i][0], norms[i][1]);
	test_rope(2, 7, 4, 2, 20, 0);
	test_rope(3, 40, 4, 4, 64, 1);
	test_rope(2, 19, 3, 1, 6, 1);
	test_rope(1, 5, 2, 1, 256, 1);
	test_rope(5, 200, 6, 2, 4, 1);
	test_attention(1, 1, 1, 1, 1, 0, 0, 0);
	test_attention(2, 5, 4, 2, 8, 0, 0, 0);
	test_attention(2, 64, 2, 2, 32, 0, 0, 0);
	test_attention(1, 200, 4, 1, 20, 0, 0, 3);
	test_attention(2, 150, 4, 2, 64, 0, 67, 5);
	test_attention(1, 300, 2, 1, 80, 33, 0, 0);
	test_attention(1, 300, 2, 2, 16, 64, 130, 1);
	test_attention(1, 150, 2, 2, 16, 1, 0, 0);
	test_attention(1, 70, 2, 1, 256, 30, 0, 0);
	test_attention(3, 33, 3, 3, 7, 0, 1, 0);
	test_attention(1, 130, 2, 1, 33, 500, 129, 0);
	test_attention(2, 190, 2, 1, 128, 0, 100, 7);
	test_swiglu(3, 20);
	test_swiglu(40, 344);
	test_head(1, 1, 0);
	test_head(7, 33, 0);
	test_head(20, 1000, 0);
	test_head(300, 64, 0);
	test_head(4, 100, 1);
	test_head(3, 32003, 0);
	test_not_a_number();
}

int main(void)
{
	queue.work_bytes = cuda_work_bytes(4096, 64);
	queue.work = malloc(queue.work_bytes);
	for (int i = 0; i < 3; i++)
		if (!queue.work || !(pools[i] = pool_create(i + 1)))
			return 1;
	all();
	test_swiglu(1, 1);
	test_conversions();
	printf("bf16\n");
	queue.elem = 2;
	slack = 8e-3;
	all();
	for (int i = 0; i < 3; i++)
		pool_free(pools[i]);
	return failures != 0;
}
