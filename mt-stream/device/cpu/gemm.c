/* gemm.c: GEMM. c is split into tiles, whose shapes depend on m, n, k and the instruction set alone. A thread computes
 * a tile by a BLAS that uses only that thread
 *
 * HAVE_DNNL: oneDNN's sgemm, the fastest that distributions package and the same on every x86-64 CPU (OpenBLAS 0.3.21
 * treats CPUs that it does not know as a Prescott). Otherwise a CBLAS. Operands of bf16: oneDNN on a CPU with AMX or
 * AVX512-BF16. Their sums are fp32.
 */
#include "cpu.h"
#include "ops/fp8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tiles of about m x n, so large that packing their inputs costs little. Packing a transposed a takes longer, so such
 * tiles are wider (fp32). Without AVX-512, b is better packed less often: the LM head's gradient is a fifth faster by
 * large tiles. By AVX512-BF16, too, larger tiles are faster, if there are enough. m is halved, down to least_m, if
 * there are fewer than FEW for the threads. A GEMM of fewer than SMALL multiplications is one tile. In bf16 no shape of
 * these changed a bit of 180 GEMMs that were compared; in fp32 one may. */
static const struct tile_shape {
	int64_t m, n, least_m;
} square = {512, 320, 128}, wide = {128, 640, 64}, large = {512, 640, 64}, largest = {1024, 640, 512};
enum { FEW = 8, MANY = 32, SMALL = 1 << 19 };

#if defined(HAVE_DNNL)
#include <dlfcn.h>
#include <dnnl.h>
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>

/* OpenMP, with which oneDNN may be built; weak, since another build of oneDNN may not bring it */
void omp_set_num_threads(int) __attribute__((weak));

static void use_one_thread(void)
{
	static _Thread_local int done;
	if (!done && omp_set_num_threads) omp_set_num_threads(1);
	done = 1;
}

/* As dnnl_sgemm. oneDNN exports it, but its headers do not have it; weak: a build may lack it */
dnnl_status_t dnnl_gemm_bf16bf16f32(char, char, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
	const uint16_t *a, dnnl_dim_t lda, const uint16_t *b, dnnl_dim_t ldb, float beta, float *c, dnnl_dim_t ldc)
	__attribute__((weak));

#if defined __x86_64__
static int has_isa(dnnl_cpu_isa_t isa) { return ((unsigned)dnnl_get_effective_cpu_isa() & isa) == (unsigned)isa; }

/* Instruction sets beyond avx512_core change no bit of an fp32 GEMM. */
static int has_avx512(void) { return has_isa(dnnl_cpu_isa_avx512_core); }

static int has_amx(void) { return has_isa(dnnl_cpu_isa_avx512_core_amx); }

static const char *isa_name(int bf16)
{
	if (bf16) return has_amx() ? "avx512_amx" : "avx512_bf16";
	if (has_avx512()) return "avx512";
	return has_isa(dnnl_cpu_isa_avx2) ? "avx2" : has_isa(dnnl_cpu_isa_avx) ? "avx" : "sse41";
}
#define LACKS_BF16 (has_isa(dnnl_cpu_isa_avx512_core_bf16) ? NULL : "this CPU has neither AVX512-BF16 nor AMX")
#else /* there its bits of instruction sets mean others */
static int has_avx512(void) { return 1; } /* tiles were compared on x86 alone */
static int has_amx(void) { return 0; }
static const char *isa_name(int bf16)
{
	(void)bf16;
#if defined __aarch64__
	return "neon";
#else
	return "unknown instruction set";
#endif
}
#define LACKS_BF16 "mt has a GEMM of bf16 on x86-64 alone"
#endif

const char *gemm_description(const char *type)
{
	static char words[2][64];
	const dnnl_version_t *v = dnnl_version();
	int bf16 = strcmp(type, "fp32") != 0; /* or what is multiplied in it */
	snprintf(words[bf16], sizeof *words, "oneDNN %d.%d.%d, %s, %s", v->major, v->minor, v->patch, isa_name(bf16), type);
	return words[bf16];
}

const char *gemm_lacks_bf16(void)
{
	if (!dnnl_gemm_bf16bf16f32) return "this oneDNN has no GEMM of bf16";
	return LACKS_BF16;
}

/* Intel's AVX512-BF16 multiplies at less than half of the speed of fp32: its instruction does 79 GFLOP/s on a core of a
 * Xeon where fp32's does 171. AMD's CPUs do twice as much with it as with fp32's. */
int gemm_bf16_is_fast(void)
{
#if defined __x86_64__
	return !gemm_lacks_bf16() && (has_isa(dnnl_cpu_isa_avx512_core_amx) || __builtin_cpu_is("amd"));
#else
	return 0;
#endif
}

static void blas(const struct gemm_args *g)
{
	char a = g->trans_a ? 'T' : 'N', b = g->trans_b ? 'T' : 'N';
	dnnl_status_t status = g->bf16
		? dnnl_gemm_bf16bf16f32(a, b, g->m, g->n, g->k, 1, g->a, g->lda, g->b, g->ldb, g->beta, g->c, g->ldc)
		: dnnl_sgemm(a, b, g->m, g->n, g->k, 1, g->a, g->lda, g->b, g->ldb, g->beta, g->c, g->ldc);
	/* the arguments are valid, so the error is: no memory for buffers or for the code that it generates */
	if (status != dnnl_success)
		op_no_memory("a GEMM of %lld x %lld x %lld (oneDNN status %d)", (long long)g->m, (long long)g->n,
			(long long)g->k, (int)status);
}

static void exception_left(void) { op_no_memory("oneDNN"); }

/* Can this many more bytes of address space be mapped? */
static int has_room(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p != MAP_FAILED && munmap(p, bytes) == 0;
}

/* One GEMM of each kind */
static void generate_code(int bf16)
{
	enum { N = 64 };
	static float a[N * N], b[N * N], c[N * N];                                     /* zeros, in either type */
	static const int64_t size[][3] = {{N, N, N}, {1, N, N}, {N, 1, N}, {4, N, N}}; /* (m, n, k) */
	use_one_thread();
	for (size_t i = 0; i < sizeof size / sizeof *size; i++)
		for (int kind = 0; kind < 8; kind++)
			blas(&(struct gemm_args){.m = size[i][0],
				.n = size[i][1],
				.k = size[i][2],
				.a = a,
				.lda = N,
				.b = b,
				.ldb = N,
				.c = c,
				.ldc = N,
				.trans_a = kind & 1,
				.trans_b = kind >> 1 & 1,
				.beta = kind & 4 ? 1 : 0,
				.bf16 = bf16});
}

static struct sigaction fault_before;

/* A fault while code is generated: through a null pointer it is oneDNN's, which got no memory */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	enum { NULL_PAGE = 4096 };
	(void)context;
	if (info->si_code > 0 && (uintptr_t)info->si_addr < NULL_PAGE) op_no_memory("oneDNN's code");
	sigaction(sig, &fault_before, NULL); /* the same instruction, or raise, brings it to the handler before */
	if (info->si_code <= 0) raise(sig);
}

/* oneDNN generates code at the first GEMM of each kind. If it cannot map memory for it, oneDNN 2 writes through a null
 * pointer; oneDNN 3 computes by other code from then on, which gives other bits, and only errno shows it. So this
 * function runs one GEMM of each kind, in one thread, after checking for address space, and catches both, as other
 * limits may make the mapping fail, too. Later GEMMs only allocate buffers, which oneDNN checks. */
static int code_ready(int bf16)
{
	enum { ROOM = 64 << 20 }; /* 6 MiB are taken, measured with oneDNN 2 */
	struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	if (!has_room(ROOM)) return 0;
	sigaction(SIGSEGV, &sa, &fault_before);
	errno = 0;
	generate_code(bf16);
	int failed = errno;
	sigaction(SIGSEGV, &fault_before, NULL);
	return failed != ENOMEM;
}

int gemm_ready(void)
{
	typedef void handler(void);
	void *frame, *set_terminate = dlsym(RTLD_DEFAULT, "_ZSt13set_terminatePFvvE");

	/* An exception that oneDNN does not catch itself: its C++ runtime would abort */
	if (set_terminate) ((handler * (*)(handler *)) set_terminate)(exception_left);
	/* oneDNN throws an exception when it has no memory. libc loads libgcc to unwind the first one; without memory that
	 * fails, too, and libc aborts. So load libgcc now: backtrace does that. */
	return backtrace(&frame, 1) > 0 && code_ready(0);
}

int gemm_bf16_ready(void) { return code_ready(1); }
#else
#include <cblas.h>

void openblas_set_num_threads(int) __attribute__((weak));

static void use_one_thread(void)
{
	if (openblas_set_num_threads) openblas_set_num_threads(1);
}

char *openblas_get_config(void) __attribute__((weak));
char *openblas_get_corename(void) __attribute__((weak));

static int has_avx512(void) { return 1; } /* tiles were compared with oneDNN alone */
static int has_amx(void) { return 0; }

const char *gemm_lacks_bf16(void) { return "mt was built without oneDNN"; }
int gemm_bf16_is_fast(void) { return 0; }

const char *gemm_description(const char *type)
{
	static char words[64];
	const char *config = openblas_get_config ? openblas_get_config() : "a CBLAS", *space = strchr(config, ' ');
	const char *core = openblas_get_corename ? openblas_get_corename() : "unknown core";
	(void)type;
	/* its name and version, which are two words; the core chooses the kernels */
	space = space ? strchrnul(space + 1, ' ') : config + strlen(config);
	snprintf(words, sizeof words, "%.*s, %.20s, fp32", (int)(space - config < 30 ? space - config : 30), config, core);
	return words;
}

int gemm_ready(void) { return 1; }
int gemm_bf16_ready(void) { return 1; }

static void blas(const struct gemm_args *g)
{
	cblas_sgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans, g->trans_b ? CblasTrans : CblasNoTrans,
		(int)g->m, (int)g->n, (int)g->k, 1.0f, g->a, (int)g->lda, g->b, (int)g->ldb, g->beta, g->c, (int)g->ldc);
}
#endif

static struct tiling split_length(int64_t n, int64_t tile)
{
	/* a multiple of 16 lines and rows suits every kernel's blocks */
	int64_t each = div_up(div_up(n, div_up(n, tile)), 16) * 16;
	return (struct tiling){.count = div_up(n, each), .each = each};
}

/* Put the bias into every row of c (m, n) */
static void fill_rows(const struct gemm_args *g)
{
	float *c = g->c;
	const float *from = g->bias;
	if (g->bf16) {
		cpu_kernels()->widen(c, g->bias, g->n);
		from = c;
	}
	for (int64_t r = g->bf16; r < g->m; r++) memcpy(c + r * g->ldc, from, (size_t)g->n * sizeof *c);
}

static void tile_in_place(struct gemm_args *g)
{
	if (g->bias) {
		fill_rows(g);
		g->beta = 1;
	}
	blas(g);
	if (!g->add) return;
	for (int64_t r = 0; r < g->m; r++)
		cpu_kernels()->add((float *)g->c + r * g->ldc, (const float *)g->add + r * g->ldc, g->n);
}

/* Through a buffer that stays in the second cache. oneDNN's kernels for AMX store 64 bytes of each of 16 rows at a
 * time: where rows lie far apart, waiting for memory takes up to half of the time, which whole rows do not. Sums that
 * are added to c take this way with every kernel, so that they are added once, whatever parts of k a kernel has. */
static void tile_buffered(const struct gemm_args *g, float *buffer)
{
	struct gemm_args own = *g;
	own.c = buffer;
	own.ldc = g->n;
	own.add = NULL;
	own.beta = 0;
	tile_in_place(&own);
	for (int64_t r = 0; r < g->m; r++) {
		float *c = (float *)g->c + r * g->ldc;
		const float *sum = buffer + r * g->n, *add = g->add;
		if (g->beta != 0) cpu_kernels()->scaled_add(c, c, sum, g->beta, 1, g->n);
		else if (add) cpu_kernels()->scaled_add(c, add + r * g->ldc, sum, 1, 1, g->n);
		else memcpy(c, sum, (size_t)g->n * sizeof *c);
		if (g->beta != 0 && add) cpu_kernels()->add(c, add + r * g->ldc, g->n);
	}
}

/* The GEMM of one tile */
static struct gemm_args tile_args(const struct gemm_tiles *t, int64_t tile)
{
	struct gemm_args g = *t->g;
	int64_t i = tile / t->n.count * t->m.each, j = tile % t->n.count * t->n.each, size = operand_bytes(g.bf16);
	g.m = least(t->m.each, g.m - i);
	g.n = least(t->n.each, g.n - j);
	g.a = (const char *)g.a + size * (g.trans_a ? i : i * g.lda);
	g.b = (const char *)g.b + size * (g.trans_b ? j * g.ldb : j);
	g.c = (float *)g.c + i * g.ldc + j;
	if (g.bias) g.bias = (const char *)g.bias + size * j;
	if (g.add) g.add = (const float *)g.add + i * g.ldc + j;
	return g;
}

void gemm_tile(struct pool *pool, int thread, const struct gemm_tiles *t, int64_t tile)
{
	struct gemm_args g = tile_args(t, tile);
	use_one_thread();
	if (g.bf16 && g.n < g.ldc && (has_amx() || g.beta != 0))
		tile_buffered(&g, op_scratch(pool, thread, (size_t)(g.m * g.n) * sizeof(float)));
	else tile_in_place(&g);
}

static int64_t tiles_of(const struct gemm_args *g, int64_t m, const struct tile_shape *s)
{
	return div_up(g->m, m) * div_up(g->n, s->n);
}

static const struct tile_shape *shape_of(const struct gemm_args *g)
{
	if (g->bf16) return !has_amx() && tiles_of(g, largest.least_m, &largest) >= FEW ? &largest : &square;
	if (!g->trans_a) return &square;
	return !has_avx512() && tiles_of(g, large.m, &large) >= MANY ? &large : &wide;
}

struct gemm_tiles gemm_split(const struct gemm_args *g)
{
	int small = g->m * g->n < SMALL && g->m * g->n * g->k < SMALL;
	const struct tile_shape *tile = shape_of(g);
	struct gemm_tiles t = {.g = g, .m = {1, g->m}, .n = {1, g->n}};
	if (!small) {
		t.n = split_length(g->n, tile->n);
		for (int64_t m = tile->m; m >= tile->least_m; m /= 2)
			if ((t.m = split_length(g->m, m)).count * t.n.count >= FEW) break;
	}
	return t;
}

struct job {
	struct pool *pool;
	struct gemm_tiles tiles;
};

static void tile_task(void *arg, int64_t task, int thread)
{
	const struct job *job = arg;
	gemm_tile(job->pool, thread, &job->tiles, task);
}

/* y = x W' with a transposed copy of W, a panel at a time: some columns of tiles, and a part of k. oneDNN packs its
 * operands for every tile, and takes longer to pack a transposed one; the copy is made once for all tiles of a column.
 * Each column of tiles has its own array (k, ld). */
struct panel {
	struct job job;
	float *copy;
	int64_t ld, first, count; /* columns of tiles */
	int64_t from, depth;      /* of k */
};

enum { STRIP = 64 }; /* rows of W that a task copies */

static float *copy_of(const struct panel *p, int64_t column) { return p->copy + column * p->depth * p->ld; }

static void copy_strip(void *arg, int64_t task, int thread)
{
	const struct panel *p = arg;
	const struct gemm_args *g = p->job.tiles.g;
	int64_t each = p->job.tiles.n.each, strips = div_up(each, STRIP), column = task / strips,
			row = task % strips * STRIP, from = (p->first + column) * each + row;
	(void)thread;
	if (from < g->n)
		cpu_kernels()->transpose(copy_of(p, column) + row, p->ld, (const float *)g->b + from * g->ldb + p->from, g->ldb,
			least(least(STRIP, each - row), g->n - from), p->depth);
}

static void copied_tile(void *arg, int64_t task, int thread)
{
	const struct panel *p = arg;
	int64_t column = task % p->count, k = p->job.tiles.g->k;
	struct gemm_args g = tile_args(&p->job.tiles, task / p->count * p->job.tiles.n.count + p->first + column);
	(void)thread;
	g.k = p->depth;
	g.a = (const float *)g.a + p->from;
	g.b = copy_of(p, column);
	g.ldb = p->ld;
	g.trans_b = 0;
	if (p->from) g.beta = 1, g.bias = NULL;
	if (p->from + p->depth < k) g.add = NULL;
	use_one_thread();
	tile_in_place(&g);
}

/* Columns of a panel: so few that it stays in the last cache, but enough to keep all threads busy. No bit changes. */
static int64_t columns_of(const struct pool *pool, const struct gemm_tiles *t, int64_t column)
{
	enum { PANEL = 2 << 20, MOST = 32 << 20, TILES_EACH = 4 }; /* elements, twice; tiles for a thread */
	int64_t count = PANEL / column + 1, busy = div_up(TILES_EACH * pool_threads(pool), t->m.count);
	if (count < busy) count = least(busy, MOST / column + 1);
	return least(count, t->n.count);
}

static void run_copied(struct pool *pool, const struct gemm_args *g)
{
	enum { DEPTH = 2048, LINE = 16 }; /* of k in a panel; elements of a cache line */
	struct panel p = {.job = {pool, gemm_split(g)}};
	const struct tiling *m = &p.job.tiles.m, *n = &p.job.tiles.n, k = split_length(g->k, DEPTH);
	/* Not a power of two: the rows of such an array share few sets of a cache */
	p.ld = div_up(n->each, LINE) * LINE + LINE;
	if (!(p.ld & (p.ld - 1))) p.ld += LINE;
	int64_t columns = columns_of(pool, &p.job.tiles, k.each * p.ld);
	p.copy = op_shared(pool, (size_t)(columns * k.each * p.ld) * sizeof *p.copy);
	for (p.first = 0; p.first < n->count; p.first += p.count) {
		p.count = least(columns, n->count - p.first);
		for (p.from = 0; p.from < g->k; p.from += p.depth) {
			p.depth = least(k.each, g->k - p.from);
			pool_run(pool, p.count * div_up(n->each, STRIP), copy_strip, &p);
			pool_run(pool, m->count * p.count, copied_tile, &p);
		}
	}
}

void op_gemm(struct pool *pool, const struct gemm_args *g)
{
	enum { REUSE = 256 }; /* rows of c that are worth a copy of b */
	if (fp8_takes(g)) {
		gemm_fp8(pool, g);
		return;
	}
	if (!g->bf16 && g->trans_b && !g->trans_a && g->m >= REUSE) {
		run_copied(pool, g);
		return;
	}
	struct job job = {pool, gemm_split(g)};
	pool_run(pool, job.tiles.m.count * job.tiles.n.count, tile_task, &job);
}
