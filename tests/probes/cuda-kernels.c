/* cuda-kernels.c: every kernel of the cuda device beside the definitions that ops.c has for the cpu's operations: the
 * same cases, in fp32 with the same bounds, and in bf16. Built with MT_EMU it runs emulated kernels (tests/gpu/emu),
 * else those of GPU 0 and cuBLASLt, on host memory that the GPU can reach.
 *
 * What ops.c does with three pools happens here under three seeds: in each, the threads of a block go on after barriers
 * in another order, and the operands lie at another alignment. The bits must be the same.
 *
 *     cuda-kernels [TOPIC...]      all cases, or those of some files of kernels: `cuda-kernels norm rope`
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../mt-stream/ops.h"
#include "../../mt-stream/cuda/kernels.h"
#include "model/bf16.h"
#include "mt/layout.h"

#ifndef MT_EMU
#include "../gpu/common.h"
#include "pool.h"

static struct gemms *library;

static void *reachable(size_t bytes)
{
	void *p = NULL;
	must(cudaHostAlloc(&p, bytes, cudaHostAllocDefault), "cudaHostAlloc");
	memset(p, 0, bytes);
	return p;
}

static void emu_seed(uint64_t seed) { (void)seed; }
#define calloc(n, size) reachable((n) * (size))
#define free(p) must(cudaFreeHost(p), "cudaFreeHost")
#else
#include <sys/mman.h>

/* What a case gives to a kernel ends before a page that may not be touched: keep() asks for 64 bytes more than it
 * needs, of which 8 are for operands off alignment */
static struct {
	void *given, *base;
	size_t bytes;
} guarded[512];

static void *guarded_alloc(size_t bytes)
{
	size_t used = (bytes - 64 + 8 + 15) & ~(size_t)15, pages = (used + 4095) / 4096 * 4096;
	char *base = mmap(NULL, pages + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED || mprotect(base + pages, 4096, PROT_NONE)) return NULL;
	for (int i = 0; i < 512; i++)
		if (!guarded[i].given) {
			guarded[i].base = base;
			guarded[i].bytes = pages + 4096;
			return guarded[i].given = base + pages - used;
		}
	return NULL;
}

static void guarded_free(void *p)
{
	for (int i = 0; i < 512; i++)
		if (guarded[i].given == p) {
			munmap(guarded[i].base, guarded[i].bytes);
			guarded[i].given = NULL;
		}
}
#define calloc(n, size) guarded_alloc((n) * (size))
#define free(p) guarded_free(p)
#endif
#define main ops_main
#include "ops.c"
#undef main
#undef calloc
#undef free

struct pool {
	uint64_t seed;
};

static struct cuda_queue queue = {.elem = 4};

/* ---- operands: fp32 as they are; for bf16 a copy, rounded, which goes back when the operation is over ---- */

static struct operand {
	const float *of;
	void *copy;
	int64_t n;
} operands[16];
static int operands_n;
static int exact;    /* operations that can have fp32 operands in bf16 runs have them */
static int straight; /* at 16 bytes: attention's alignment decides between kernels, so it decides bits */

/* Where the operation finds x: fp32 as it is, unless it has to lie straight; bf16 rounded */
static void *operand(const float *x, int64_t n)
{
	if (!x || (queue.elem == 4 && !straight)) return (void *)x;
	for (int i = 0; i < operands_n; i++)
		if (operands[i].of == x) return operands[i].copy;
	struct operand *o = &operands[operands_n++];
	/* 16-byte aligned, or off it where x is */
	size_t off = straight ? 0 : 10 * ((uintptr_t)x / 4 % 4);
	int was = skew;
	skew = 0;
	char *at = keep(off + (size_t)n * (size_t)queue.elem);
	at += off;
	skew = was;
	*o = (struct operand){x, at, n};
	for (int64_t i = 0; i < n; i++)
		if (queue.elem == 4) ((float *)o->copy)[i] = x[i];
		else ((uint16_t *)o->copy)[i] = bf16_round(mt_bits(x[i]));
	return o->copy;
}

/* The operation has been launched and writes x: wait for it, and have x as ops.c wants it */
static void back(const float *x)
{
#ifndef MT_EMU
	must(cudaGetLastError(), "launch");
	must(cudaDeviceSynchronize(), "kernel");
#endif
	for (int i = 0; i < operands_n; i++)
		for (int64_t j = 0; x == operands[i].of && j < operands[i].n; j++)
			((float *)x)[j] = queue.elem == 4 ? ((float *)operands[i].copy)[j]
											  : bf16_float(((uint16_t *)operands[i].copy)[j]);
}

static void begin(struct pool *p)
{
	emu_seed(p->seed);
	operands_n = straight = 0;
	memset(queue.work, 0xff, queue.work_bytes < 1 << 20 ? queue.work_bytes : 1 << 20);
}

/* ---- the operations of ops.h, through the kernels ---- */

struct pool *pool_create(int threads, int spins, void (*start)(void))
{
	struct pool *p = malloc(sizeof *p);
	(void)spins;
	(void)start;
	*p = (struct pool){(uint64_t)threads * 77};
	return p;
}
void pool_free(struct pool *p) { free(p); }
int pool_threads(const struct pool *p) { return (int)(p->seed / 77); }
void pool_run(struct pool *p, int64_t tasks, void (*fn)(void *, int64_t, int), void *arg)
{
	for (int64_t i = 0; i < tasks; i++) fn(arg, i, pool_threads(p) - 1);
}

void op_gemm(struct pool *p, const struct gemm_args *g)
{
	struct gemm_args c = *g;
	begin(p);
	c.exact = exact;
	if (exact) {
#ifndef MT_EMU
		gemms_run(library, &queue, &c);
#else
		cuda_gemm_plain(&queue, &c);
#endif
		back(NULL);
		return;
	}
	/* weight gradients are fp32; the library's algorithm depends on alignment */
	c.fp32 = g->trans_a || g->fp32;
	straight = 1;
	c.a = operand(g->a, (g->trans_a ? g->k : g->m) * g->lda);
	c.b = operand(g->b, (g->trans_b ? g->n : g->k) * g->ldb);
	c.bias = operand(g->bias, g->n);
	c.add = c.fp32 && queue.elem == 2 ? g->add : operand(g->add, g->m * g->ldc);
	c.c = c.fp32 && queue.elem == 2 ? g->c : operand(g->c, g->m * g->ldc);
#ifndef MT_EMU
	must_not(gemms_run(library, &queue, &c));
#else
	int apart = c.bias && g->fp32 && queue.elem == 2; /* as gemm.c has it */
	if (apart) c.bias = NULL;
	cuda_gemm_plain(&queue, &c);
	c.bias = operand(g->bias, g->n);
	if (apart) cuda_add_bias(&queue, &c);
#endif
	back(g->c);
}

void op_bias_backward(struct pool *p, const struct bias_backward_args *a)
{
	struct bias_backward_args c = *a;
	begin(p);
	c.dy = operand(a->dy, a->m * a->ld);
	cuda_bias_backward(&queue, &c);
	back(a->db);
}

void op_embed_forward(struct pool *p, const struct embed_forward_args *a)
{
	struct embed_forward_args c = *a;
	int64_t vocab = 0;
	begin(p);
	for (int64_t i = 0; i < a->n; i++) vocab = a->tokens[i] >= vocab ? a->tokens[i] + 1 : vocab;
	c.x = operand(a->x, a->n * a->h);
	c.w = operand(a->w, vocab * a->h);
	c.table = operand(a->table, a->at.rows * a->h);
	cuda_embed_forward(&queue, &c);
	back(a->x);
}

void op_embed_backward(struct pool *p, const struct embed_backward_args *a)
{
	struct embed_backward_args c = *a;
	begin(p);
	c.dx = operand(a->dx, a->n * a->h);
	cuda_embed_backward(&queue, &c);
	back(a->dw);
	back(a->dtable);
}

void op_norm_forward(struct pool *p, const struct norm_forward_args *a)
{
	struct norm_forward_args c = *a;
	begin(p);
	c.y = operand(a->y, a->n * a->h);
	c.x = operand(a->x, a->n * (a->ld ? a->ld : a->h));
	c.w = operand(a->w, a->h);
	c.b = operand(a->b, a->h);
	cuda_norm_forward(&queue, &c);
	back(a->y);
}

void op_norm_backward(struct pool *p, const struct norm_backward_args *a)
{
	struct norm_backward_args c = *a;
	int64_t ld = a->ld ? a->ld : a->h;
	begin(p);
	c.dx = operand(a->dx, a->n * ld);
	c.dy = operand(a->dy, a->n * a->h);
	c.x = operand(a->x, a->n * ld);
	c.w = operand(a->w, a->h);
	cuda_norm_backward(&queue, &c);
	back(a->dx);
}

static struct rope_args rope_operands(struct pool *p, const struct rope_args *r)
{
	struct rope_args c = *r;
	int64_t normed = r->heads + (r->v_norm ? 2 : 1) * r->kv_heads;
	begin(p);
	c.qnorm = operand(r->qnorm, (r->row_norm ? r->heads : 1) * r->dim);
	c.knorm = operand(r->knorm, (r->row_norm ? r->kv_heads : 1) * r->dim);
	c.qkv = operand(r->qkv, r->n * (r->heads + 2 * r->kv_heads) * r->dim);
	c.pre = operand(r->pre, r->n * normed * r->dim);
	return c;
}

void op_rope_forward(struct pool *p, const struct rope_args *r)
{
	struct rope_args c = rope_operands(p, r);
	cuda_rope_forward(&queue, &c);
	back(r->qkv);
	back(r->pre);
}

void op_rope_backward(struct pool *p, const struct rope_args *r)
{
	struct rope_args c = rope_operands(p, r);
	cuda_rope_backward(&queue, &c);
	back(r->qkv);
}

static struct mla_args mla_operands(struct pool *p, const struct mla_args *a)
{
	struct mla_args c = *a;
	begin(p);
	c.qkv = operand(a->qkv, a->n * a->heads * (2 * a->dim + a->dim_v));
	c.kv = operand(a->kv, a->n * a->heads * (a->dim - a->rope_dim + a->dim_v));
	c.kr = operand(a->kr, a->n * a->ld);
	return c;
}

void op_mla_forward(struct pool *p, const struct mla_args *a)
{
	struct mla_args c = mla_operands(p, a);
	cuda_mla_forward(&queue, &c);
	back(a->qkv);
}

void op_mla_backward(struct pool *p, const struct mla_args *a)
{
	struct mla_args c = mla_operands(p, a);
	cuda_mla_backward(&queue, &c);
	back(a->qkv);
	back(a->kv);
	back(a->kr);
}

static struct attention_args attention_operands(struct pool *p, const struct attention_args *a)
{
	int64_t out = a->n * a->heads * attention_dim_v(a), wide = a->n * attention_row(a);
	struct attention_args c = *a;
	begin(p);
	straight = 1;
	c.qkv = operand(a->qkv, wide);
	c.o = operand(a->o, out);
	c.d_o = operand(a->d_o, out);
	c.dqkv = operand(a->dqkv, wide);
	c.sinks = operand(a->sinks, a->heads);
	return c;
}

void op_attention_forward(struct pool *p, const struct attention_args *a)
{
	struct attention_args c = attention_operands(p, a);
	cuda_attention_forward(&queue, &c);
	back(a->o);
}

void op_attention_backward(struct pool *p, const struct attention_args *a)
{
	struct attention_args c = attention_operands(p, a);
	cuda_attention_backward(&queue, &c);
	back(a->dqkv);
}

static int64_t inputs_of(enum mt_ffn form, int64_t n, int64_t f) { return (activation_gated(form) ? 2 : 1) * n * f; }

void op_sinks_backward(struct pool *p, const struct sinks_backward_args *a)
{
	int64_t out = a->n * a->heads * a->dim;
	struct sinks_backward_args c = *a;
	begin(p);
	straight = 1;
	c.sinks = operand(a->sinks, a->heads);
	c.o = operand(a->o, out);
	c.d_o = operand(a->d_o, out);
	cuda_sinks_backward(&queue, &c);
	back(a->dsinks);
}

void op_activation_forward(struct pool *p, const struct activation_args *a)
{
	struct activation_args c = *a;
	begin(p);
	c.y = operand(a->y, a->n * a->f);
	c.gu = operand(a->gu, inputs_of(a->form, a->n, a->f));
	for (int i = 0; i < 2; i++) c.slope[i] = operand(a->slope[i], 1);
	cuda_activation_forward(&queue, &c);
	back(a->y);
}

void op_activation_backward(struct pool *p, const struct activation_args *a)
{
	struct activation_args c = *a;
	begin(p);
	c.dgu = operand(a->dgu, inputs_of(a->form, a->n, a->f));
	c.y = operand(a->y, a->n * a->f);
	c.dy = operand(a->dy, a->n * a->f);
	c.gu = operand(a->gu, inputs_of(a->form, a->n, a->f));
	for (int i = 0; i < 2; i++) c.slope[i] = operand(a->slope[i], 1);
	cuda_activation_backward(&queue, &c);
	back(a->dgu);
	back(a->y);
}

static struct route_args route_operands(struct pool *p, const struct route_args *a)
{
	struct route_args c = *a;
	begin(p);
	c.exact = exact;
	if (!exact) c.correction = operand(a->correction, a->experts);
	if (!exact) c.factor = operand(a->factor, a->experts);
	return c;
}

void op_route_forward(struct pool *p, const struct route_args *a)
{
	struct route_args c = route_operands(p, a);
	cuda_route_forward(&queue, &c);
	back(NULL);
}

void op_route_backward(struct pool *p, const struct route_args *a)
{
	struct route_args c = route_operands(p, a);
	if (!exact) c.dlogits = operand(a->dlogits, a->n * a->experts);
	cuda_route_backward(&queue, &c);
	back(a->dlogits);
}

void op_dispatch(struct pool *p, const struct dispatch_args *a)
{
	struct dispatch_args c = *a;
	begin(p);
	c.y = operand(a->y, a->rows * a->h);
	c.x = operand(a->x, a->rows / a->per_token * a->h);
	cuda_dispatch(&queue, &c);
	back(a->y);
}

void op_grouped_gemm(struct pool *p, const struct grouped_gemm_args *a)
{
	struct grouped_gemm_args c = *a;
	begin(p);
	c.a = operand(a->a, a->rows * a->lda);
	c.b = operand(a->b, a->sum ? a->rows * a->ldb : a->experts * a->stride);
	c.bias = operand(a->bias, a->experts * a->bias_stride);
	if (!a->sum) c.c = operand(a->c, a->rows * a->ldc);
	cuda_grouped_gemm(&queue, &c);
	back(a->c);
}

void op_grouped_bias_backward(struct pool *p, const struct grouped_bias_backward_args *a)
{
	struct grouped_bias_backward_args c = *a;
	begin(p);
	c.dy = operand(a->dy, a->first[a->experts] * a->n);
	cuda_grouped_bias_backward(&queue, &c);
	back(a->db);
}

void op_combine(struct pool *p, const struct combine_args *a)
{
	struct combine_args c = *a;
	begin(p);
	c.x = operand(a->x, a->n * a->per_token * a->h);
	c.add = operand(a->add, a->n * a->h);
	if (!a->partial) c.y = operand(a->y, a->n * a->h);
	cuda_combine(&queue, &c);
	back(a->y);
}

void op_combine_backward(struct pool *p, const struct combine_backward_args *a)
{
	struct combine_backward_args c = *a;
	int64_t experts = 0;
	begin(p);
	for (int64_t i = 0; a->bias && i < a->rows; i++) experts = a->expert[i] >= experts ? a->expert[i] + 1 : experts;
	c.y = operand(a->y, a->rows * a->f);
	c.dy = operand(a->dy, a->rows * a->f);
	c.dgu = operand(a->dgu, a->rows * a->g);
	c.bias = operand(a->bias, experts * a->bias_stride);
	c.d_o = operand(a->d_o, a->rows * a->h);
	cuda_combine_backward(&queue, &c);
	back(a->y);
	back(a->dgu);
	back(a->d_o);
}

void op_scaled_add(struct pool *p, const struct scaled_add_args *a)
{
	struct scaled_add_args c = *a;
	begin(p);
	c.y = operand(a->y, a->n);
	c.x = operand(a->x, a->n);
	c.add = operand(a->add, a->n);
	c.factor = operand(a->factor, 1);
	cuda_scaled_add(&queue, &c);
	back(a->y);
}

void op_cap_logits(struct pool *p, const struct cap_logits_args *a)
{
	struct cap_logits_args c = *a;
	begin(p);
	c.logits = operand(a->logits, a->n);
	cuda_cap_logits(&queue, &c);
	back(a->logits);
}

void op_cross_entropy(struct pool *p, const struct cross_entropy_args *a)
{
	struct cross_entropy_args c = *a;
	uint32_t *targets = keep((size_t)a->n * sizeof *targets);
	c.loss = keep(sizeof *c.loss + 64);
	c.loss = (struct loss *)(((uintptr_t)c.loss + 15) & ~(uintptr_t)15);
	c.targets = memcpy(targets, a->targets, (size_t)a->n * sizeof *targets);
	begin(p);
	c.logits = operand(a->logits, a->n * a->vocab);
	cuda_cross_entropy(&queue, &c);
	back(a->logits);
	a->loss->sum += c.loss->sum;
	a->loss->targets += c.loss->targets;
}

void op_balance_forward(struct pool *p, const struct balance_args *a)
{
	begin(p);
	cuda_balance_forward(&queue, a);
	back(NULL);
}

void op_balance_backward(struct pool *p, const struct balance_args *a)
{
	struct balance_args c = *a;
	begin(p);
	c.dlogits = operand(a->dlogits, a->n * a->experts);
	cuda_balance_backward(&queue, &c);
	back(a->dlogits);
}

const char *gemm_lacks_bf16(void) { return "operands have the elements' type"; }

void op_narrow(struct pool *p, uint16_t *dst, const float *src, int64_t n)
{
	begin(p);
	cuda_narrow(&queue, dst, src, n);
	back(src);
}

void op_widen(struct pool *p, float *dst, const uint16_t *src, int64_t n)
{
	(void)p;
	for (int64_t i = 0; i < n; i++) dst[i] = bf16_float(src[i]);
}

void op_copy(struct pool *p, void *dst, const void *src, size_t bytes)
{
	(void)p;
	memcpy(dst, src, bytes);
}
void op_zero(struct pool *p, void *dst, size_t bytes)
{
	(void)p;
	memset(dst, 0, bytes);
}

/* ---- cases: those of ops.c, and shapes at which the kernels change their way ---- */

/* Topics are named like the files of their kernels */
static void rows(void)
{
	test_bias(1, 1, 1);
	test_bias(70, 33, 33);
	test_bias(301, 600, 600);
	test_bias(70, 33, 41);
	test_bias(257, 48, 72);
	for (int in_place = 0; in_place < 3; in_place++) test_scaled(4099, in_place == 2, in_place != 1, in_place);
	test_scaled(64, 1, 0, 0);
	if (queue.elem == 4) test_conversions();
}

static void norms(void)
{
	static const int64_t sizes[][2] = {{1, 3}, {3, 20}, {33, 64}, {600, 16}, {5, 2056}, {3, 5000}, {2, 11000}};
	static const int64_t of_families[][2] = {{3, 20}, {60, 72}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) test_normed(sizes[i][0], sizes[i][1], 0, 1, 0, 0);
	for (int i = 0; i < 2; i++)
		for (int knobs = 0; knobs < 8; knobs++)
			if ((knobs & 3) != 2)
				test_normed(of_families[i][0], of_families[i][1], knobs >> 2, knobs & 1, knobs >> 1 & 1, knobs == 7);
	test_norms_apart();
	test_normed(5, 2056, 1, 1, 0, 1);
	test_normed(3, 5000, 1, 1, 1, 1);
	test_normed(3, 5000, 0, 1, 1, 0);
	test_normed(2, 11000, 1, 1, 1, 1);
}

static void rope(void)
{
	test_rope();
	test_turned(1, 5, 2, 1, 256, 256, HEAD_NORMS);
	test_turned(5, 200, 6, 2, 4, 4, HEAD_NORMS);
	test_turned(3, 70, 3, 1, 16, 16, HEAD_NORMS);
	test_turned(2, 150, 9, 3, 128, 128, HEAD_NORMS);
	test_turned(2, 33, 3, 1, 128, 128, 0);
	test_turned(1, 3, 1, 1, 512, 512, HEAD_NORMS);
	test_turned(2, 150, 9, 3, 32, 32, HEAD_NORMS | ONE_ADDED);
	test_turned(1, 3, 1, 1, 512, 300, HEAD_NORMS | V_NORMS | K_IS_V);
	test_turned(1, 5, 2, 1, 272, 64, NORMS_AFTER | HEAD_NORMS | NEIGHBOURS);
}

static void attention(void)
{
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
	test_attention(1, 100, 2, 1, 40, 0, 60, 3);
	test_attention(1, 130, 4, 2, 96, 70, 0, 0);
	test_attention(1, 130, 2, 1, 192, 0, 75, 4);
	test_attention(2, 65, 2, 2, 256, 40, 0, 0);
	test_attention(1, 90, 2, 1, 512, 37, 61, 2);
	test_attention(1, 75, 2, 2, 512, 0, 0, 0);
	test_attention(1, 70, 2, 2, 300, 17, 0, 0);
	test_values(1, 140, 2, 2, 192, 128, 0, 90, 3);
	test_values(2, 66, 2, 1, 136, 72, 30, 0, 0);
	test_values(1, 130, 2, 2, 96, 64, 0, 70, 0);
	test_values(1, 50, 4, 2, 40, 24, 0, 33, 2);
	test_values(1, 40, 2, 2, 24, 152, 0, 0, 0);
	test_values(1, 70, 2, 1, 5, 19, 0, 9, 0);
#ifdef MT_EMU
	test_attention_extremes();
#endif
}

static void activation(void)
{
	test_active(3, 20, MT_SWIGLU, 0);
	test_active(40, 344, MT_SWIGLU, 0);
	for (enum mt_ffn form = MT_SWIGLU; form <= MT_RELU; form++)
		for (int interleaved = 0; interleaved <= activation_gated(form); interleaved++) {
			test_active(3, 20, form, interleaved);
			test_active(4, 333, form, interleaved);
			test_active(2, 4104, form, interleaved);
		}
	test_active(15, 3000, MT_XIELU, 0);
	if (queue.elem == 2) return;
	test_active(1, 1, MT_SWIGLU, 0);
	test_edges();
	test_accuracy();
}

static void vocab(void)
{
	static const int64_t gemms[][3] = {{1, 1, 1}, {3, 5, 7}, {17, 1, 33}, {1, 64, 20}, {64, 48, 80}, {65, 33, 63}};
	for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++)
		for (int form = 0; form < 12; form++) test_gemm(gemms[i][0], gemms[i][1], gemms[i][2], form);
	test_gemm(37, 6, 19, 2 | 32);
	test_gemm(5, 300, 40, 2 | 32);
	test_gemm(70, 1, 24, 2 | 32);
	test_embed(1, 1, 3, 1, 0);
	test_embed(500, 100, 37, 1, 0);
	test_embed(300, 2080, 7, 1, 0);
	test_embed(70, 100, 37, 22.5f, 0);
	test_embed(70, 100, 37, 1, 35);
	test_embed(24, 12, 5, 22.5f, 8);
	test_head(1, 1, 1, 0, 0);
	test_head(7, 33, 1, 0, 0);
	test_head(20, 1000, 1, 0, 0);
	test_head(300, 64, 1, 0, 0);
	test_head(4, 100, 1, 0, 1);
	test_head(3, 32003, 1, 0, 0);
	test_head(7, 33, 0.25f, 0, 0);
	test_head(7, 64, 0.5f, 3, 0);
	test_head(3, 3000, 1, 30, 0);
#ifdef MT_EMU
	test_not_a_number(); /* of variables on the stack */
#endif
}

void op_conv_forward(struct pool *p, const struct conv_args *a)
{
	struct conv_args c = *a;
	begin(p);
	c.x = operand(a->x, a->n * a->ld);
	c.w = operand(a->w, a->channels * a->width);
	c.bias = operand(a->bias, a->channels);
	c.before = operand(a->before, a->n * a->ld);
	c.after = operand(a->after, a->n * a->ld);
	c.y = operand(a->y, a->n * a->channels);
	cuda_conv_forward(&queue, &c);
	back(a->y);
}

void op_conv_backward(struct pool *p, const struct conv_args *a)
{
	struct conv_args c = *a;
	int64_t keys = a->n * a->value_heads * a->dim;
	begin(p);
	c.x = operand(a->x, a->n * a->ld);
	c.w = operand(a->w, a->channels * a->width);
	c.bias = operand(a->bias, a->channels);
	c.dq = operand(a->dq, keys);
	c.dk = operand(a->dk, keys);
	c.dv = operand(a->dv, a->n * (a->channels - (a->q_heads + a->k_heads) * a->dim));
	c.before = operand(a->before, a->n * a->ld);
	c.after = operand(a->after, a->n * a->ld);
	c.dx = operand(a->dx, a->n * a->dx_ld);
	c.dbefore = operand(a->dbefore, a->n * a->dx_ld);
	c.dafter = operand(a->dafter, a->n * a->dx_ld);
	cuda_conv_backward(&queue, &c);
	back(a->dx);
	back(a->dbefore);
	back(a->dafter);
}

/* b is in a's rows, behind a; so are their gradients */
static struct delta_args delta_operands(const struct delta_args *a)
{
	struct delta_args c = *a;
	int64_t gates = (a->n - 1) * a->ld + 2 * a->value_heads;
	c.qkv = operand(a->qkv, a->n * (2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim));
	c.a = operand(a->a, gates);
	if (a->correct) c.b = (const char *)c.a + a->value_heads * queue.elem;
	c.a_log = operand(a->a_log, a->value_heads);
	c.dt_bias = operand(a->dt_bias, a->value_heads);
	c.skip = operand(a->skip, a->value_heads);
	return c;
}

void op_delta_forward(struct pool *p, const struct delta_args *a)
{
	begin(p);
	struct delta_args c = delta_operands(a);
	c.work = keep((size_t)delta_work_elems(a, 1) * sizeof(float));
	memset(c.work, 0xff, (size_t)delta_work_elems(a, 1) * sizeof(float));
	c.o = operand(a->o, a->n * a->value_heads * a->value_dim);
	cuda_delta_forward(&queue, &c);
	back(a->o);
}

void op_delta_backward(struct pool *p, const struct delta_args *a)
{
	int64_t gates = (a->n - 1) * a->d_ld + 2 * a->value_heads;
	begin(p);
	struct delta_args c = delta_operands(a);
	c.d_o = operand(a->d_o, a->n * a->value_heads * a->value_dim);
	c.dq = operand(a->dq, a->n * a->value_heads * a->key_dim);
	c.dk = operand(a->dk, a->n * a->value_heads * a->key_dim);
	c.dv = operand(a->dv, a->n * a->value_heads * a->value_dim);
	c.da = operand(a->da, gates);
	if (a->correct) c.db = (char *)c.da + a->value_heads * queue.elem;
	cuda_delta_backward(&queue, &c);
	back(a->dq);
	back(a->dk);
	back(a->dv);
	back(a->da);
}

void op_gated_norm_forward(struct pool *p, const struct gated_norm_args *a)
{
	struct gated_norm_args c = *a;
	int64_t width = a->heads * a->dim;
	begin(p);
	c.o = operand(a->o, a->n * width);
	c.z = operand(a->z, (a->n - 1) * a->ld + width);
	c.w = operand(a->w, gated_norm_weights(a));
	c.y = operand(a->y, a->n * width);
	cuda_gated_norm_forward(&queue, &c);
	back(a->y);
}

void op_gated_norm_backward(struct pool *p, const struct gated_norm_args *a)
{
	struct gated_norm_args c = *a;
	int64_t width = a->heads * a->dim;
	begin(p);
	c.o = operand(a->o, a->n * width);
	c.z = operand(a->z, (a->n - 1) * a->ld + width);
	c.w = operand(a->w, gated_norm_weights(a));
	c.dy = operand(a->dy, a->n * width);
	c.y = operand(a->y, a->n * width);
	c.d_o = operand(a->d_o, a->n * width);
	c.dz = operand(a->dz, (a->n - 1) * a->dz_ld + width);
	cuda_gated_norm_backward(&queue, &c);
	back(a->y);
	back(a->d_o);
	back(a->dz);
}

void op_gate_forward(struct pool *p, const struct gate_args *a)
{
	struct gate_args c = *a;
	begin(p);
	c.o = operand(a->o, a->n * a->width);
	c.gate = operand(a->gate, (a->n - 1) * a->ld + a->width);
	c.y = operand(a->y, a->n * a->width);
	cuda_gate_forward(&queue, &c);
	back(a->y);
}

void op_gate_backward(struct pool *p, const struct gate_args *a)
{
	struct gate_args c = *a;
	begin(p);
	c.o = operand(a->o, a->n * a->width);
	c.gate = operand(a->gate, (a->n - 1) * a->ld + a->width);
	c.dy = operand(a->dy, a->n * a->width);
	c.y = operand(a->y, a->n * a->width);
	c.d_o = operand(a->d_o, a->n * a->width);
	c.dgate = operand(a->dgate, (a->n - 1) * a->dgate_ld + a->width);
	cuda_gate_backward(&queue, &c);
	back(a->y);
	back(a->d_o);
	back(a->dgate);
}

void op_join(struct pool *p, const struct join_args *a)
{
	begin(p);
	cuda_join(&queue, a);
	back(NULL);
}

/* Exact routers of bf16 runs: bounds of fp32 */
static void exact_router(void)
{
	double bound = slack;
	exact = 1;
	slack = 0;
	test_join();
	for (int form = 0; form < 12; form++) test_gemm(65, 33, 63, form);
	test_routing();
	exact = 0;
	slack = bound;
}

static void route(void)
{
	test_routing();
	if (queue.elem == 2) exact_router();
}

#ifdef MT_EMU
/* (What these cases give to the kernels is no memory that a GPU can reach.) */
static void balance(void)
{
	struct balance_args a = balance_args(0);
	double worst = 0;
	if (queue.elem == 4) return; /* both types here */
	queue.elem = 4;
	test_balance();
	balance_fill();
	op_balance_forward(pools[0], &a);
	a.aux = 1e-4;
	a.z = 1e-3;
	memset(router.dlogits[0], 0, sizeof router.dlogits[0]);
	op_balance_backward(pools[0], &a);
	for (int i = 0; i < LOGITS; i++) router.dlogits[1][i] = 1;
	a.dlogits = router.dlogits[1];
	queue.elem = 2;
	op_balance_backward(pools[0], &a);
	for (int i = 0; i < LOGITS; i++)
		worst = fmax(worst, fabs((double)router.dlogits[1][i] - 1 - (double)router.dlogits[0][i]));
	say(worst > 1e-4 && worst <= 0x1p-8, "in bf16, the gradient is added and rounded once");
}
#else
static void balance(void) {}
#endif

static const struct {
	const char *name;
	void (*run)(void);
} topics[] = {{"vocab", vocab}, {"rows", rows}, {"norm", norms}, {"rope", rope}, {"mla", test_latents},
	{"attention", attention}, {"activation", activation}, {"route", route}, {"grouped", test_grouped_gemms},
	{"combine", test_rows_of_experts}, {"balance", balance}, {"delta", test_deltas}, {"documents", test_documents},
	{"steps", test_steps}};

static int is_wanted(const char *topic, char **wanted)
{
	int all = !*wanted;
	for (; *wanted; wanted++) all |= !strcmp(topic, *wanted);
	return all;
}

int main(int argc, char **argv)
{
	queue.work_bytes = cuda_work_bytes(4096, 64);
	brief = on_gpu = 1;
#ifdef MT_EMU
	queue.work = malloc(queue.work_bytes);
	cuda_kernels_prepare();
#else
	queue.work = reachable(queue.work_bytes);
	library = library_open();
	printf("%s\n", gemms_name(library));
#endif
	for (int i = 0; i < POOLS; i++)
		if (!queue.work || !(pools[i] = pool_create(i + 1, 0, NULL))) return 1;
	for (queue.elem = 4; queue.elem; queue.elem -= 2, slack = 8e-3) {
		printf("%s\n", queue.elem == 4 ? "fp32" : "bf16");
		for (size_t i = 0; i < sizeof topics / sizeof *topics; i++)
			if (is_wanted(topics[i].name, argv + (argc > 0))) topics[i].run();
	}
	for (int i = 0; i < POOLS; i++) pool_free(pools[i]);
	return failures != 0;
}
