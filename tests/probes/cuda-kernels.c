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

#include "../../mt-stream/ops/ops.h"
#include "../../mt-stream/device/cuda/kernels.h"
#include "model/bf16.h"
#include "mt/layout.h"

#ifndef MT_EMU
#include "../gpu/common.h"
#include "pool.h"

static struct gemms *library;
static bool has_fp8;

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
enum { has_fp8 = true };
#include <sys/mman.h>
#include <unistd.h>

/* What a case gives to a kernel ends before a page that may not be touched: keep() asks for 64 bytes more than it
 * needs, of which 8 are for operands off alignment */
static struct {
	void *given, *base;
	size_t bytes;
} guarded[1024];

static void *guarded_alloc(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), used = (bytes - 64 + 8 + 15) & ~(size_t)15;
	size_t pages = (used + page - 1) / page * page;
	char *base = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED || mprotect(base + pages, page, PROT_NONE)) return NULL;
	for (int i = 0; i < 1024; i++)
		if (!guarded[i].given) {
			guarded[i].base = base;
			guarded[i].bytes = pages + page;
			return guarded[i].given = base + pages - used;
		}
	return NULL;
}

static void guarded_free(void *p)
{
	for (int i = 0; i < 1024; i++)
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

/* ---- operands: fp32 as they are; for bf16 a copy, rounded, which goes back if the operation has changed it ---- */

static struct operand {
	const void *of;
	void *copy;
	int64_t n;
	int elem; /* bytes of an element of the copy: 2 of bf16, where x has 4 of fp32 */
} operands[16];
static int operands_n;
static int exact;    /* operations that can have fp32 operands in bf16 runs have them */
static int straight; /* at 16 bytes: alignment decides between kernels, of attention and by wgmma, so it decides bits */

/* The copy, `off` bytes behind one that is 16-byte aligned */
static void *copied(const void *x, int64_t n, int elem, size_t off)
{
	for (int i = 0; i < operands_n; i++)
		if (operands[i].of == x) return operands[i].copy;
	void *copy = (char *)keep_at(off + (size_t)(n * elem), 0) + off;
	operands[operands_n++] = (struct operand){x, copy, n, elem};
	if (elem != 2) return memcpy(copy, x, (size_t)(n * elem));
	for (int64_t i = 0; i < n; i++) ((uint16_t *)copy)[i] = bf16_round(mt_bits(((const float *)x)[i]));
	return copy;
}

/* Where the operation finds x: fp32 as it is, unless it has to lie straight; bf16 rounded, and off alignment where x
 * is */
static void *as_operand(const void *x, int64_t n)
{
	if (!x || (queue.elem == 4 && !straight)) return (void *)x;
	return copied(x, n, queue.elem, straight ? 0 : 10 * ((uintptr_t)x / 4 % 4));
}

static void copy_back(const struct operand *o)
{
	float *x = (void *)o->of;
	const uint16_t *half = o->copy;
	int changed = 0;
	if (o->elem != 2) {
		memcpy(x, o->copy, (size_t)(o->n * o->elem));
		return;
	}
	for (int64_t i = 0; i < o->n && !changed; i++) changed = half[i] != bf16_round(mt_bits(x[i]));
	for (int64_t i = 0; i < o->n && changed; i++) x[i] = bf16_float(half[i]);
}

/* The operation has been launched: wait for it, and have its operands as ops.c wants them */
static void end(void)
{
#ifndef MT_EMU
	must(cudaGetLastError(), "launch");
	must(cudaDeviceSynchronize(), "kernel");
#endif
	for (int i = 0; i < operands_n; i++) copy_back(&operands[i]);
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

#ifdef MT_EMU
/* An operand that is rounded, as bf16: in the place of its codes */
static const void *fp8_operand(void *codes, const void *of, int64_t rows, int64_t k, int64_t ld, int columns)
{
	int64_t depth = fp8_depth(k), codes_n = rows * depth, tiled_n = fp8_tiled_bytes(rows, k), nonzero = 0;
	uint8_t *tiled = keep_at((size_t)fp8_copy_bytes(rows, k, 1), 0);
	memset(tiled + codes_n, 0xff, (size_t)tiled_n);
	cuda_fp8(&queue, tiled, of, rows, k, ld, columns, 1);
	cuda_fp8(&queue, codes, of, rows, k, ld, columns, 0);
	const float *scale = (const float *)((const char *)codes + codes_n);
	int same = !memcmp(tiled, codes, (size_t)codes_n);
	for (int64_t i = 0; i < codes_n; i += FP8_BLOCK) { /* as cuBLAS's documentation has it */
		int64_t outer = i / depth, inner = i % depth / FP8_BLOCK;
		int64_t at = (inner / 4 * 4 + outer / 128 * fp8_tiles(k) * 4) * 128 + outer % 32 * 16 + outer % 128 / 32 * 4 +
			inner % 4;
		same &= ldexpf(1, tiled[codes_n + at] - 127) == scale[outer];
	}
	for (int64_t i = 0; i < tiled_n; i++) nonzero += tiled[codes_n + i] != 0;
	if (!same || nonzero != codes_n / FP8_BLOCK) say(0, "scales in tiles");
	uint16_t *y = keep_at((size_t)(2 * rows * depth), 0);
	for (int64_t i = 0; i < rows * depth; i++) {
		int code = ((const uint8_t *)codes)[i], e = code >> 3 & 15, m = code & 7;
		float x = e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
		y[i] = bf16_round(mt_bits((code & 128 ? -x : x) * scale[i / depth]));
		if (i % depth >= k && code) abort();
	}
	return y;
}

/* c's operands rounded to FP8, as bf16 */
static void round_operands(struct gemm_args *c)
{
	void *of_b = (char *)c->fp8 + fp8_copy_bytes(c->m, c->k, 1);
	c->a = fp8_operand(c->fp8, c->a, c->m, c->k, c->lda, c->trans_a);
	c->b = fp8_operand(of_b, c->b, c->n, c->k, c->ldb, !c->trans_b);
	c->trans_a = 0;
	c->trans_b = 1;
	c->lda = c->ldb = fp8_depth(c->k);
}
#endif

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
		end();
		return;
	}
	/* weight gradients are fp32; the library's algorithm depends on alignment */
	c.fp32 = g->trans_a || g->fp32;
	straight = 1;
	c.a = as_operand(g->a, (g->trans_a ? g->k : g->m) * g->lda);
	c.b = as_operand(g->b, (g->trans_b ? g->n : g->k) * g->ldb);
	c.bias = as_operand(g->bias, g->n);
	c.add = c.fp32 && queue.elem == 2 ? g->add : as_operand(g->add, g->m * g->ldc);
	c.c = c.fp32 && queue.elem == 2 ? g->c : as_operand(g->c, g->m * g->ldc);
#ifndef MT_EMU
	must_not(gemms_run(library, &queue, &c));
#else
	int apart = c.bias && g->fp32 && queue.elem == 2; /* as gemm.c has it */
	if (apart) c.bias = NULL;
	if (fp8_takes(&c)) round_operands(&c);
	cuda_gemm_plain(&queue, &c);
	c.bias = as_operand(g->bias, g->n);
	if (apart) cuda_add_bias(&queue, &c);
#endif
	end();
}

/* a (N, gates) in rows of ld, whose next `heads` elements may be b */
static void behind(const void **a, const void **b, int64_t n, int64_t ld, int64_t heads, int64_t gates)
{
	int inside = *b == (const float *)*a + gates;
	*a = as_operand(*a, (n - 1) * ld + gates + inside * heads);
	if (*a && inside) *b = (const char *)*a + gates * queue.elem;
}

/* What the arrays' rows in ops/ do not say */
static void first_operands(enum op_code code, void *args)
{
	straight = code == OP_ATTENTION_FORWARD || code == OP_ATTENTION_BACKWARD || code == OP_SINKS_BACKWARD;
	if (code == OP_EMBED_FORWARD) {
		struct embed_forward_args *a = args;
		int64_t vocab = 0;
		for (int64_t i = 0; i < a->n; i++) vocab = a->tokens[i] >= vocab ? a->tokens[i] + 1 : vocab;
		a->w = as_operand(a->w, vocab * a->h);
	} else if (code == OP_CROSS_ENTROPY) { /* targets and loss may be variables on the stack */
		struct cross_entropy_args *a = args;
		a->targets = copied(a->targets, a->n * (int64_t)sizeof *a->targets, 1, 0);
		if (a->weights) a->weights = copied(a->weights, a->n * (int64_t)sizeof *a->weights, 1, 0);
		a->loss = copied(a->loss, sizeof *a->loss, 1, 0);
		int64_t words = a->n * (2 * a->teacher.top + 1);
		if (a->teacher.words) a->teacher.words = copied(a->teacher.words, words * 4, 1, 0);
	} else if (code == OP_ROUTE_FORWARD || code == OP_ROUTE_BACKWARD) {
		((struct route_args *)args)->exact = exact;
	} else if (code == OP_COMBINE_BACKWARD) {
		struct combine_backward_args *a = args;
		int64_t experts = 0;
		for (int64_t i = 0; a->bias && i < a->rows; i++) experts = a->expert[i] >= experts ? a->expert[i] + 1 : experts;
		a->bias = as_operand(a->bias, experts * a->bias_stride);
	} else if (code == OP_DELTA_FORWARD || code == OP_DELTA_BACKWARD) { /* b may be in a's rows, behind a; and so may */
		struct delta_args *a = args;                                    /* their gradients */
		behind(&a->a, &a->b, a->n, a->ld, a->value_heads, delta_gates_of(a));
		behind((const void **)&a->da, (const void **)&a->db, a->n, a->d_ld, a->value_heads, delta_gates_of(a));
		a->work = work_of(a);
	} else if (code == OP_GROUPED_GEMM && queue.wgmma_blocks) {
		struct grouped_gemm_args *a = args;
		straight = 1;
		if (a->sum) a->c = copied(a->c, (a->experts - 1) * a->stride + a->n * a->k, sizeof(float), 0);
	}
}

/* A copy already */
static int is_copy(const void *x)
{
	for (int i = 0; i < operands_n; i++)
		if ((const char *)x >= (const char *)operands[i].copy &&
			(const char *)x < (const char *)operands[i].copy + operands[i].n * operands[i].elem)
			return 1;
	return 0;
}

#define OPERAND(bytes, field, n, written) \
	if ((bytes) == elem && !is_copy(a->field)) a->field = as_operand(a->field, n);
#define OPERATION(number, op, args, name) \
	void op_##op(struct pool *p, const struct args##_args *given) \
	{ \
		enum { elem = 1, operand = 1, weight = 1 }; \
		const enum op_code code = OP_##number; \
		struct args##_args c = *given, *a = &c; \
		begin(p); \
		first_operands(code, a); \
		args##_arrays(OPERAND)(void) code; \
		cuda_##op(&queue, a); \
		end(); \
	}
OPS(OPERATION)

bool cpu_fuse(struct op *o, const struct op *next) { return o && next && false; }
const char *gemm_lacks_bf16(void) { return "operands have the elements' type"; }
bool attention_bf16_is_fast(void) { return false; }
void attention_bf16_forward(struct pool *p, const struct attention_args *a) { op_attention_forward(p, a); }
void attention_bf16_backward(struct pool *p, const struct attention_args *a) { op_attention_backward(p, a); }

void op_narrow(struct pool *p, uint16_t *dst, const float *src, int64_t n)
{
	begin(p);
	cuda_narrow(&queue, dst, src, n);
	end();
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

/* Any length, between any places */
static void test_copies(void)
{
	enum { MOST = 300001 };
	static const struct {
		int to, from, n;
	} each[] = {{0, 0, MOST}, {0, 16, 16}, {32, 0, 1}, {2, 1, 4099}, {2, 6, 70000}, {16, 16, 4097}};
	char *src = keep_at(MOST + 64, 0), *dst = keep_at(MOST + 64, 0);
	int right = 0, cases = sizeof each / sizeof *each;
	for (int i = 0; i < MOST + 64; i++) src[i] = (char)(i * 31 + i / 256);
	for (int c = 0; c < cases; c++) {
		for (int i = 0; i < MOST + 64; i++) dst[i] = 0x55;
		begin(pools[0]);
		cuda_copy(&queue, dst + each[c].to, src + each[c].from, (size_t)each[c].n);
		end();
		int same = !memcmp(dst + each[c].to, src + each[c].from, (size_t)each[c].n);
		for (int i = 0; i < MOST + 64; i++)
			if (i < each[c].to || i >= each[c].to + each[c].n) same &= dst[i] == 0x55;
		right += same;
	}
	say(right == cases, "%d copies of host memory by a kernel", cases);
	forget();
}

/* Topics are named like the files of their kernels */
static void rows(void)
{
	test_biases();
	test_copies();
	test_scaled(4099, 2);
	test_scaled(4099, 4);
	test_scaled(4099, 1 | 2 | 8);
	test_scaled(64, 1);
	if (queue.elem == 4) test_conversions();
}

static void attention(void)
{
	test_attention_shapes();
#ifdef MT_EMU
	test_attention_extremes();
#endif
}

static void activation(void)
{
	test_active(40, 344, MT_SWIGLU, 0);
	test_activations();
	test_active(15, 3000, MT_XIELU, 0);
	if (queue.elem == 2) return;
	test_active(1, 1, MT_SWIGLU, 0);
	test_edges();
	test_accuracy();
}

static void vocab(void)
{
	test_gemms(0, 12);
	if (queue.elem == 2 && has_fp8) test_fp8_gemms(32);
	test_router_gemms();
	test_vocabulary();
#ifdef MT_EMU
	test_not_a_number(); /* of variables on the stack */
#endif
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

static void balance(void)
{
	if (queue.elem == 4) {
		test_balance();
		return;
	}
	struct balance_args a = balance_args();
	float *single = again(a.logits, LOGITS), *half = again(a.logits, LOGITS);
	double worst = 0;
	for (int i = 0; i < LOGITS; i++) single[i] = 0, half[i] = 1;
	op_balance_forward(pools[0], &a);
	a.aux = 1e-4;
	a.z = 1e-3;
	a.dlogits = half;
	op_balance_backward(pools[0], &a);
	a.dlogits = single;
	queue.elem = 4;
	op_balance_backward(pools[0], &a);
	queue.elem = 2;
	for (int i = 0; i < LOGITS; i++) worst = fmax(worst, fabs((double)half[i] - 1 - (double)single[i]));
	say(worst > 1e-4 && worst <= 0x1p-8, "in bf16, the gradient is added and rounded once");
	forget();
}

/* Grouped GEMMs by wgmma, in few blocks, so that each computes several tiles */
static void wgmma(void)
{
	if (queue.elem != 2 || !cuda_wgmma_prepare()) return;
	queue.wgmma_blocks = 3;
	test_grouped_gemms();
	queue.wgmma_blocks = 0;
}

static const struct {
	const char *name;
	void (*run)(void);
} topics[] = {{"vocab", vocab}, {"rows", rows}, {"norm", test_norms}, {"rope", test_rope}, {"mla", test_latents},
	{"attention", attention}, {"activation", activation}, {"route", route}, {"grouped", test_grouped_gemms},
	{"wgmma", wgmma}, {"combine", test_rows_of_experts}, {"balance", balance}, {"delta", test_deltas},
	{"documents", test_documents}, {"steps", test_steps}, {"channels", test_channels}, {"scan", test_scans},
	{"altup", test_altup}};

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
	library = gemms_here();
	has_fp8 = fp8_here(library);
	on_card = 1;
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
