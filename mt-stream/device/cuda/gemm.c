/* gemm.c: GEMMs through cuBLASLt
 *
 * The library is opened at run time: mt-stream needs nothing of CUDA for its other devices. Row-major c = a b is
 * column-major c' = b' a', so the library's A is our b, its m our n. Only algorithms that sum over k in one sequence
 * are taken: the order of partial sums would have to be fixed, and split sums lost k's tail in cuBLAS 12 and 13.
 *
 * The algorithm decides bits. So it is selected once a run for each shape, in the autotune pass before the first step:
 * the heuristic's candidates are timed on the operands themselves, and the fastest is entered into the table of the
 * reproducibility record, where every other mt-stream of the run finds it. Shapes that the library refuses (odd leading
 * dimensions of bf16) are computed by the plain kernel. One line reports it, unless it is a product with a vector, for
 * which that kernel is fast enough.
 *
 * The library adds biases of the result's type only. A router's logits are fp32 in bf16 runs, too: there our own kernel
 * adds the bias.
 *
 * FP8: the library gets copies of both operands, k within, and scales: on 9.0 one a row, later one of each 32 elements,
 * which a row has all the same. Documented are results of bf16 with biases of bf16, and results of fp32. Its faster
 * accumulation, which keeps 14 bits, stays off. Shapes that it refuses are computed in bf16, of operands that are not
 * rounded; one line reports it.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "gemm.h"
#include "mt/choices.h"
#include "mt/error.h"
#include "gpu.h"
#include "device/device.h"
#include "ops/fp8.h"

#ifdef MT_EMU
#include "cublaslt.h"
#else
#include <cublasLt.h>
#endif

#define CANDIDATES 8    /* algorithms requested from the heuristic */
#define REPEATS 3       /* timed runs of each */
#define TIMING_MS 100.0 /* device time spent on one shape; after that no further candidate is timed */

/* the functions of the library that are used */
/* clang-format off */
#define FUNCTIONS(X) \
	X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetVersion) X(cublasLtGetStatusName) \
	X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) \
	X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate) \
	X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic) \
	X(cublasLtMatmulAlgoCheck) X(cublasLtMatmulAlgoConfigGetAttribute) X(cublasLtMatmul)
/* clang-format on */

struct shape { /* what decides an algorithm; compared as bytes, so it is cleared before it is filled */
	int64_t m, n, k, lda, ldb, ldc;
	int trans_a, trans_b, biased, fp32, elem; /* elem: bytes of an operand's: 1: e4m3 */
	uint32_t align_a, align_b, align_c;       /* bytes */
};

struct selection { /* as the record's table keeps it */
	cublasLtMatmulAlgo_t algo;
	uint64_t workspace; /* bytes of it */
	uint64_t plain;     /* 1: our own kernel computes it */
};
_Static_assert(sizeof(struct selection) == 80 && sizeof(struct selection) <= MT_CHOICE_VALUE, "run.json's layout");

struct gemm { /* a shape and how it is computed */
	struct shape shape;
	struct selection by;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, c;
	const void *bias, *scales[2]; /* of the first call with this shape */
};

struct gemms {
	struct mt_run *run; /* NULL: selections stay in this process */
	void *library;
	cublasLtHandle_t handle;
	void *workspace;
	size_t bytes;
	char name[64];
	struct gemm *list;
	size_t n, room;
	bool tiled;       /* FP8: scales of blocks, of rows all the same */
	bool reported[2]; /* that the plain kernel is used, and bf16 in place of FP8 */
	bool first;       /* nothing is timed: the heuristic's first algorithm is taken, so two runs have the same bits */
	cudaEvent_t from, to; /* of a timed run */
#define POINTER(f) __typeof__(&f) f;
	FUNCTIONS(POINTER)
};

static bool library_open(struct gemms *g)
{
	if (!(g->library = cublaslt_open())) return false;
#define FIND(f) \
	if (!(g->f = (__typeof__(&f))dlsym(g->library, #f))) { \
		mt_fail(MT_EX_CONFIG, "cuda: cuBLASLt has no " #f); \
		return false; \
	}
	FUNCTIONS(FIND)
	return true;
}

static void gemm_release(struct gemms *g, struct gemm *p)
{
	if (p->a) g->cublasLtMatrixLayoutDestroy(p->a);
	if (p->b) g->cublasLtMatrixLayoutDestroy(p->b);
	if (p->c) g->cublasLtMatrixLayoutDestroy(p->c);
	if (p->desc) g->cublasLtMatmulDescDestroy(p->desc);
}

/* The library stays loaded: unloading it is not safe */
void gemms_close(struct gemms *g)
{
	if (!g) return;
	for (size_t i = 0; i < g->n; i++) gemm_release(g, &g->list[i]);
	free(g->list);
	if (g->handle) g->cublasLtDestroy(g->handle);
	if (g->from) cudaEventDestroy(g->from);
	if (g->to) cudaEventDestroy(g->to);
	free(g);
}

/* Open the library and make the events. 0 or -ex */
static int gemms_prepare(struct gemms *g)
{
	cudaError_t e;
	cublasStatus_t s;
	if (!library_open(g)) return -MT_EX_CONFIG;
	if ((e = cudaEventCreateWithFlags(&g->from, cudaEventDefault)) ||
		(e = cudaEventCreateWithFlags(&g->to, cudaEventDefault)))
		return cuda_failed(e, "cudaEventCreate");
	if ((s = g->cublasLtCreate(&g->handle)))
		return mt_fail(MT_EX_CONFIG, "cuda: cublasLtCreate: %s", g->cublasLtGetStatusName(s));
	snprintf(g->name, sizeof g->name, "cuBLASLt %zu, sums unsplit", g->cublasLtGetVersion());
	return 0;
}

struct gemms *gemms_open(void *workspace, size_t bytes, int *ex)
{
	struct gemms *g = calloc(1, sizeof *g);
	int rc = g ? gemms_prepare(g) : mt_fail(MT_EX_NOMEM, "cuda: no memory");
	if (rc) {
		*ex = -rc;
		gemms_close(g);
		return NULL;
	}
	const char *how = getenv("MT_GEMM");

	g->first = how && !strcmp(how, "first");
	g->workspace = workspace;
	g->bytes = bytes;
	return g;
}

const char *gemms_name(const struct gemms *g) { return g->name; }

/* Vectors of scales came with cuBLAS 12.9, for 9.0 alone. From 10.0 on there are those of blocks of 32. */
int gemms_fp8(struct gemms *g, int capability)
{
	enum { LEAST = 120900 };
	g->tiled = capability >= 100;
	if (capability < 90)
		return mt_fail(MT_EX_CONFIG, "--compute fp8: needs a GPU of compute capability 9.0 or later, this is %d.%d",
			capability / 10, capability % 10);
	if (g->cublasLtGetVersion() < LEAST)
		return mt_fail(MT_EX_CONFIG, "--compute fp8: needs cuBLASLt %d or later, this is %zu", LEAST,
			g->cublasLtGetVersion());
	strcat(g->name, FP8_WORDS);
	return 0;
}

/* ---- choosing ---- */

/* The alignment in bytes that every part of a matrix of that pitch has: so it is the same for every plan of a run. The
 * matrices that mt-stream allocates start at multiples of 128. */
static uint32_t alignment(const void *p, int64_t ld, int size)
{
	uintptr_t a = (uintptr_t)p | (uintptr_t)(ld * size) | 128;
	return (uint32_t)(a & -a);
}

/* Where the scales of operands A and B of the library are */
static cublasStatus_t scales_set(struct gemms *g, const struct gemm *p, const void *const scales[2])
{
	cublasStatus_t e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales[0],
		sizeof *scales);
	return e
		? e
		: g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales[1], sizeof *scales);
}

static cublasStatus_t describe(struct gemms *g, struct gemm *p)
{
	const struct shape *s = &p->shape;
	cudaDataType_t wide = s->elem <= 2 ? CUDA_R_16BF : CUDA_R_32F, in = s->elem == 1 ? CUDA_R_8F_E4M3 : wide,
				   out = s->fp32 ? CUDA_R_32F : wide;
	cublasOperation_t a = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, b = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	uint32_t bias = CUBLASLT_EPILOGUE_BIAS;
	int32_t bias_type = (int32_t)wide,
			scales = g->tiled ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
	uint64_t an = (uint64_t)s->n, bm = (uint64_t)s->m, k = (uint64_t)s->k;
	cublasStatus_t e;
	if ((e = g->cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
		(e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a)) ||
		(e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b)))
		return e;
	if (s->biased &&
		((e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias)) ||
			(e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
				 sizeof bias_type)) ||
			/* the heuristic looks at its alignment */
			(e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
				 sizeof p->bias))))
		return e;
	if (s->elem == 1 &&
		((e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &scales, sizeof scales)) ||
			(e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &scales,
				 sizeof scales)) ||
			(e = scales_set(g, p, p->scales))))
		return e;
	if ((e = g->cublasLtMatrixLayoutCreate(&p->a, in, s->trans_b ? k : an, s->trans_b ? an : k, s->ldb)) ||
		(e = g->cublasLtMatrixLayoutCreate(&p->b, in, s->trans_a ? bm : k, s->trans_a ? k : bm, s->lda)))
		return e;
	return g->cublasLtMatrixLayoutCreate(&p->c, out, an, bm, s->ldc);
}

static cublasStatus_t prefer(struct gemms *g, const struct shape *s, cublasLtMatmulPreference_t f)
{
	uint32_t sums = CUBLASLT_REDUCTION_SCHEME_NONE;
	const struct {
		cublasLtMatmulPreferenceAttributes_t which;
		const void *value;
		size_t size;
	} want[] = {
		{CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &g->bytes, sizeof g->bytes},
		{CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &s->align_b, sizeof s->align_b},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &s->align_a, sizeof s->align_a},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &s->align_c, sizeof s->align_c},
		{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &s->align_c, sizeof s->align_c},
	};
	cublasStatus_t e = CUBLAS_STATUS_SUCCESS;

	for (size_t i = 0; !e && i < sizeof want / sizeof *want; i++)
		e = g->cublasLtMatmulPreferenceSetAttribute(f, want[i].which, want[i].value, want[i].size);
	return e;
}

/* The shape as text: its key in the record's table */
static void shape_words(const struct shape *s, char words[MT_CHOICE_KEY])
{
	snprintf(words, MT_CHOICE_KEY, "gemm %s%s %c%c %lld %lld %lld ld %lld %lld %lld at %u %u %u%s",
		s->elem == 1       ? "fp8"
			: s->elem == 2 ? "bf16"
						   : "fp32",
		s->fp32 && s->elem <= 2 ? ">fp32" : "", s->trans_a ? 't' : 'n', s->trans_b ? 't' : 'n', (long long)s->m,
		(long long)s->n, (long long)s->k, (long long)s->lda, (long long)s->ldb, (long long)s->ldc, s->align_a,
		s->align_b, s->align_c, s->biased ? " bias" : "");
}

/* Bytes of an element of a and b; of bias and of c, unless that is fp32 */
static int operand_bytes(const struct cuda_queue *q, const struct gemm_args *c)
{
	return c->exact ? 4 : c->fp8 ? 1 : q->elem;
}
static int wide_bytes(const struct cuda_queue *q, const struct gemm_args *c) { return c->exact ? 4 : q->elem; }

/* Of copies in FP8: behind the codes */
static void scales_of(const struct gemm_args *c, const void *scales[2])
{
	scales[0] = (const char *)c->b + c->n * c->k;
	scales[1] = (const char *)c->a + c->m * c->k;
}

/* Is the bias added after the product? */
static bool bias_apart(const struct cuda_queue *q, const struct gemm_args *c)
{
	return c->bias && c->fp32 && wide_bytes(q, c) == 2;
}

static void shape_of(const struct cuda_queue *q, const struct gemm_args *c, struct shape *s)
{
	int elem = operand_bytes(q, c);
	memset(s, 0, sizeof *s);
	s->m = c->m, s->n = c->n, s->k = c->k, s->lda = c->lda, s->ldb = c->ldb, s->ldc = c->ldc;
	s->trans_a = c->trans_a, s->trans_b = c->trans_b, s->biased = c->bias != NULL && !bias_apart(q, c);
	s->fp32 = c->fp32 || elem == 4, s->elem = elem;
	s->align_a = alignment(c->a, c->lda, elem);
	s->align_b = alignment(c->b, c->ldb, elem);
	s->align_c = alignment(c->c, c->ldc, s->fp32 ? 4 : wide_bytes(q, c));
}

/* ---- running one ---- */

/* Launch the GEMM by that algorithm */
static cublasStatus_t gemm_launch(struct gemms *g, struct gemm *p, const struct selection *by,
	const struct cuda_queue *q, const struct gemm_args *c)
{
	const float one = 1, beta = c->add ? 1 : c->beta;
	const void *added = c->add ? c->add : c->c;
	cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
	const void *scales[2];
	if (p->shape.elem == 1) {
		scales_of(c, scales);
		e = scales_set(g, p, scales);
	}
	if (!e && p->shape.biased)
		e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
	return e ? e
			 : g->cublasLtMatmul(g->handle, p->desc, &one, c->b, p->a, c->a, p->b, &beta, added, p->c, c->c, p->c,
				   &by->algo, g->workspace, by->workspace, q->stream);
}

enum { REFUSED = 1 };

/* What a status of the library means. REFUSED: this algorithm cannot compute this shape here. -ex: an error that may
 * not recur, so no algorithm may be ruled out by it */
static int library_failed(struct gemms *g, cublasStatus_t s, const struct gemm *p, const char *call)
{
	char words[MT_CHOICE_KEY];
	if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE || s == CUBLAS_STATUS_ARCH_MISMATCH)
		return REFUSED;
	shape_words(&p->shape, words);
	return mt_fail(s == CUBLAS_STATUS_ALLOC_FAILED ? MT_EX_NOMEM : MT_EX_IO, "cuda: %s of '%s': %s", call, words,
		g->cublasLtGetStatusName(s));
}

/* Run it once; *ms: device time. REFUSED: the library does not run it; -ex: an error */
static int time_once(struct gemms *g, struct gemm *p, const struct selection *by, const struct cuda_queue *q,
	const struct gemm_args *c, float *ms)
{
	cublasStatus_t s;
	cudaError_t e;
	if ((e = cudaEventRecord(g->from, q->stream))) return cuda_failed(e, "cudaEventRecord");
	if ((s = gemm_launch(g, p, by, q, c))) return library_failed(g, s, p, "cublasLtMatmul");
	if ((e = cudaEventRecord(g->to, q->stream)) || (e = cudaEventSynchronize(g->to)) ||
		(e = cudaEventElapsedTime(ms, g->from, g->to)))
		return cuda_failed(e, "timing a GEMM");
	return 0;
}

/* ---- choosing ---- */

/* Does the algorithm report that it splits its sums? The preference forbids that, but not every algorithm obeys. */
static bool splits_sums(struct gemms *g, const cublasLtMatmulAlgo_t *algo)
{
	uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
	size_t n = 0;
	return !g->cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme,
			   &n) &&
		n == sizeof scheme && scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
}

/* The heuristic's algorithms that we can use, in its order; returns how many, or -ex */
static int candidates(struct gemms *g, struct gemm *p, struct selection all[CANDIDATES])
{
	cublasLtMatmulHeuristicResult_t found[CANDIDATES];
	cublasLtMatmulPreference_t f = NULL;
	int n = 0, taken = 0, rc;
	cublasStatus_t s = g->cublasLtMatmulPreferenceCreate(&f);
	if (!s && !(s = prefer(g, &p->shape, f)))
		s = g->cublasLtMatmulAlgoGetHeuristic(g->handle, p->desc, p->a, p->b, p->c, p->c, f, CANDIDATES, found, &n);
	if (f) g->cublasLtMatmulPreferenceDestroy(f);
	if (s) return (rc = library_failed(g, s, p, "cublasLtMatmulAlgoGetHeuristic")) == REFUSED ? 0 : rc;
	for (int i = 0; i < n; i++)
		if (!found[i].state && found[i].workspaceSize <= g->bytes && !splits_sums(g, &found[i].algo))
			all[taken++] = (struct selection){.algo = found[i].algo, .workspace = found[i].workspaceSize};
	return taken;
}

/* *least: the shortest of REPEATS runs, after one that loads the kernel; a candidate that is clearly slower than `best`
 * runs fewer times. *spent grows by the time that all of them took. */
static int candidate_time(struct gemms *g, struct gemm *p, const struct selection *by, const struct cuda_queue *q,
	const struct gemm_args *c, float best, float *least, float *spent)
{
	float ms;
	int rc = time_once(g, p, by, q, c, &ms);
	*least = INFINITY;
	for (int i = 0; !rc && i < REPEATS && (i == 0 || *least < 1.5f * best); i++) {
		if ((rc = time_once(g, p, by, q, c, &ms))) return rc;
		*least = ms < *least ? ms : *least;
		*spent += i == 0 ? 2 * ms : ms;
	}
	return rc;
}

/* Select p->by: the fastest when timed on the operands of c, whose contents do not matter. c NULL: a step is running,
 * so nothing is timed and the heuristic's first algorithm is used. No candidate: our own kernel */
static int fastest(struct gemms *g, struct gemm *p, const struct cuda_queue *q, const struct gemm_args *c)
{
	struct selection all[CANDIDATES];
	int n = candidates(g, p, all), rc;
	float best = INFINITY, ms, spent = 0;
	if (n < 0) return n;
	p->by = n && !c ? all[0] : (struct selection){.plain = 1};
	for (int i = 0; c && i < n && spent < TIMING_MS && (p->by.plain || !g->first); i++) {
		if ((rc = candidate_time(g, p, &all[i], q, c, best, &ms, &spent)) < 0) return rc;
		if (rc == 0 && ms < best) {
			best = ms;
			p->by = all[i];
		}
	}
	return 0;
}

/* ---- selecting ---- */

/* Prepare the algorithm p->by that the table names; an error if it cannot run here */
static int selection_use(struct gemms *g, struct gemm *p, const struct cuda_queue *q, const struct gemm_args *c,
	const char *words)
{
	cublasLtMatmulHeuristicResult_t r = {.workspaceSize = 0};
	float ms;
	int rc = REFUSED;
	if (p->by.plain) return 0;
	bool checks = !g->cublasLtMatmulAlgoCheck(g->handle, p->desc, p->a, p->b, p->c, p->c, &p->by.algo, &r);
	/* In the autotune pass it runs once, which loads its kernel. An algorithm that runs is accepted even if the check
	 * refuses it. */
	if (p->by.workspace <= g->bytes && r.workspaceSize <= p->by.workspace)
		rc = c ? time_once(g, p, &p->by, q, c, &ms) : checks ? 0 : REFUSED;
	if (rc == REFUSED)
		return mt_fail(MT_EX_CONFIG,
			"cuda: '%s' was computed by an algorithm that cuBLASLt refuses here: other bits, which go "
			"on by mt-run --resume --new-record, or after mt-ckpt load --new-record",
			words);
	return rc;
}

/* The algorithm that the run's table names; else a new selection, which is entered unless another stream was faster */
static int select_algorithm(struct gemms *g, struct gemm *p, const struct cuda_queue *q, const struct gemm_args *c)
{
	char words[MT_CHOICE_KEY];
	struct selection mine;
	int rc = 0;
	shape_words(&p->shape, words);
	if (describe(g, p)) return mt_fail(MT_EX_IO, "cuda: cuBLASLt does not know '%s'", words);
	if (g->run && mt_choice_find(g->run, words, &p->by, sizeof p->by)) return selection_use(g, p, q, c, words);
	if ((rc = fastest(g, p, q, c)) || !g->run) return rc;
	mine = p->by;
	if ((rc = mt_choice_enter(g->run, words, &p->by, sizeof p->by))) return mt_fail_in(rc, "cuda");
	return memcmp(&mine, &p->by, sizeof mine) ? selection_use(g, p, q, c, words) : 0;
}

/* ---- the GEMMs of this process ---- */

static struct gemm *gemm_slot(struct gemms *g)
{
	if (g->n == g->room) {
		size_t room = g->room ? 2 * g->room : 64;
		struct gemm *more = realloc(g->list, room * sizeof *more);
		if (!more) return NULL;
		g->list = more;
		g->room = room;
	}
	return &g->list[g->n];
}

/* The GEMM of c's shape with its algorithm; `timing`: candidates may be timed on c's operands. NULL: *rc is -ex */
static struct gemm *gemm_of(struct gemms *g, const struct cuda_queue *q, const struct gemm_args *c, bool timing,
	int *rc)
{
	struct shape s;
	struct gemm *p;
	shape_of(q, c, &s);
	for (size_t i = 0; i < g->n; i++)
		if (!memcmp(&g->list[i].shape, &s, sizeof s)) return &g->list[i];
	if (!(p = gemm_slot(g))) {
		*rc = mt_fail(MT_EX_NOMEM, "cuda: no memory for a GEMM's algorithm");
		return NULL;
	}
	memset(p, 0, sizeof *p);
	p->shape = s;
	p->bias = c->bias;
	if (s.elem == 1) scales_of(c, p->scales);
	if ((*rc = select_algorithm(g, p, q, timing ? c : NULL))) {
		gemm_release(g, p);
		return NULL;
	}
	g->n++;
	bool *reported = &g->reported[s.elem == 1];
	if (p->by.plain && !*reported && s.m > 1 && s.n > 1 && s.k > 1) {
		*reported = true;
		mt_say("cuda: cuBLASLt does not take %lld x %lld x %lld %s", (long long)s.m, (long long)s.n, (long long)s.k,
			s.elem == 1 ? "in FP8: such GEMMs are computed in bf16" : "at these strides: such GEMMs are slow");
	}
	return p;
}

void gemms_attach(struct gemms *g, struct mt_run *run) { g->run = run; }

static int gemm_run(struct gemms *g, struct gemm *p, const struct cuda_queue *q, const struct gemm_args *c)
{
	cublasStatus_t e = gemm_launch(g, p, &p->by, q, c);
	if (!e && bias_apart(q, c)) cuda_add_bias(q, c);
	return !e ? 0
			  : mt_fail(MT_EX_IO, "cuda: cublasLtMatmul of %lld x %lld x %lld: %s", (long long)c->m, (long long)c->n,
					(long long)c->k, g->cublasLtGetStatusName(e));
}

/* The GEMM of copies in FP8, in the work memory */
static struct gemm_args copies_of(const struct gemm_args *c)
{
	struct gemm_args of = *c;
	of.a = c->fp8;
	of.b = (const char *)c->fp8 + fp8_copy_bytes(c->m, c->k, 1);
	of.k = of.lda = of.ldb = fp8_depth(c->k);
	of.trans_a = 0;
	of.trans_b = 1;
	return of;
}

/* The GEMM with operands that are not rounded */
static struct gemm_args unrounded(const struct gemm_args *c)
{
	struct gemm_args of = *c;
	of.fp8 = NULL;
	return of;
}

static int fp8_run(struct gemms *g, const struct cuda_queue *q, const struct gemm_args *c)
{
	struct gemm_args of = copies_of(c);
	int rc = 0;
	struct gemm *p = gemm_of(g, q, &of, false, &rc);
	if (!p) return rc;
	if (p->by.plain) {
		of = unrounded(c);
		return gemms_run(g, q, &of);
	}
	cuda_fp8(q, (void *)of.a, c->a, c->m, c->k, c->lda, c->trans_a, g->tiled);
	cuda_fp8(q, (void *)of.b, c->b, c->n, c->k, c->ldb, !c->trans_b, g->tiled);
	return gemm_run(g, p, q, &of);
}

int gemms_select(struct gemms *g, const struct cuda_queue *q, const struct gemm_args *c)
{
	struct gemm_args of = fp8_takes(c) ? copies_of(c) : unrounded(c);
	int rc = 0;
	struct gemm *p = gemm_of(g, q, &of, true, &rc);
	if (!p || !fp8_takes(c) || !p->by.plain) return rc;
	of = unrounded(c);
	return gemms_select(g, q, &of);
}

int gemms_run(struct gemms *g, const struct cuda_queue *q, const struct gemm_args *c)
{
	struct gemm_args of = unrounded(c);
	int rc = 0;
	if (fp8_takes(c)) return fp8_run(g, q, c);
	struct gemm *p = gemm_of(g, q, &of, false, &rc);
	if (!p) return rc;
	if (!p->by.plain) return gemm_run(g, p, q, &of);
	cuda_gemm_plain(q, &of);
	return 0;
}
