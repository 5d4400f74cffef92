/* cuda-gemm.c: matrix products through cuBLASLt
 *
 * The library is opened at run time: mt-stream needs nothing of CUDA for its other devices. Row-major c = a b is
 * column-major c' = b' a', so the library's A is our b, its m our n. Only algorithms whose sums have one order are taken:
 * no split of k, or one whose parts are added up from the workspace. Shapes that the library refuses (odd leading
 * dimensions of bf16) go to the plain kernel, which is said once.
 */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "cuda-gemm.h"

#ifdef MT_EMU
struct gemms { char name[64]; };

struct gemms *gemms_open(void *workspace, size_t bytes, int *ex)
{
	struct gemms *g = calloc(1, sizeof *g);

	(void)workspace, (void)bytes, (void)ex;
	if (g)
		strcpy(g->name, "plain");
	return g;
}
void gemms_close(struct gemms *g) { free(g); }
const char *gemms_name(const struct gemms *g) { return g->name; }
void gemms_attach(struct gemms *g, struct mt_run *run) { (void)g, (void)run; }
int gemms_settle(struct gemms *g, const struct cuda_queue *q, const struct cuda_gemm *p) { return (void)g, (void)q, (void)p, 0; }
int gemms_run(struct gemms *g, const struct cuda_queue *q, const struct cuda_gemm *p)
{
	(void)g;
	cuda_gemm_plain(q, p);
	return 0;
}
#else
#include <cublasLt.h>
#include <dlfcn.h>

#define CANDIDATES 8            /* algorithms asked for */
#define LIBRARY "libcublasLt.so."
#define STRING(x) #x
#define EXPAND(x) STRING(x)

/* the library's functions that are used, and nothing else */
#define FUNCTIONS(X) \
	X(cublasLtCreate) X(cublasLtDestroy) X(cublasLtGetVersion) X(cublasLtGetStatusName) \
	X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy) X(cublasLtMatmulDescSetAttribute) \
	X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) \
	X(cublasLtMatmulPreferenceCreate) X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute) \
	X(cublasLtMatmulAlgoGetHeuristic) X(cublasLtMatmul)

struct shape {                  /* what decides an algorithm; compared as bytes, so it is cleared before it is filled */
	int64_t m, n, k, lda, ldb, ldc;
	int trans_a, trans_b, biased, fp32, elem;
	uint32_t align_a, align_b, align_c;     /* bytes */
};

struct chosen {                 /* as the run record keeps it */
	cublasLtMatmulAlgo_t algo;
	uint64_t workspace;     /* bytes of it */
	uint64_t plain;         /* 1: our own kernel computes it */
};
_Static_assert(sizeof(struct chosen) == 80 && sizeof(struct chosen) <= MT_CHOICE_VALUE, "a choice as run.json has it");

struct product {                /* a shape and how it is computed */
	struct shape shape;
	struct chosen by;
	cublasLtMatmulDesc_t desc;
	cublasLtMatrixLayout_t a, b, c;
};

struct gemms {
	struct mt_run *run;     /* NULL: choices stay in this process */
	void *library;
	cublasLtHandle_t handle;
	void *workspace;
	size_t bytes;
	char name[64];
	struct product *products;
	size_t n, room;
	bool said;              /* that the plain kernel is used */
#define POINTER(f) __typeof__(&f) f;
	FUNCTIONS(POINTER)
};

static int failed(const struct gemms *g, cublasStatus_t s, const char *call, const struct shape *p)
{
	return mt_fail(MT_EX_IO, "cuda: %s of %lld x %lld x %lld: %s", call, (long long)p->m, (long long)p->n, (long long)p->k,
		g->cublasLtGetStatusName(s));
}

static bool library_open(struct gemms *g)
{
	const char *places[] = {
		getenv("MT_CUBLASLT"), LIBRARY EXPAND(CUBLAS_VER_MAJOR), "/usr/local/cuda/lib64/" LIBRARY EXPAND(CUBLAS_VER_MAJOR),
	};

	for (size_t i = 0; !g->library && i < sizeof places / sizeof *places; i++)
		if (places[i])
			g->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
	if (!g->library) {
		mt_fail(MT_EX_CONFIG, "cuda: " LIBRARY EXPAND(CUBLAS_VER_MAJOR) " is not there: put its directory into "
			"LD_LIBRARY_PATH, or its path into MT_CUBLASLT");
		return false;
	}
#define FIND(f) \
	if (!(g->f = (__typeof__(&f))dlsym(g->library, #f))) { \
		mt_fail(MT_EX_CONFIG, "cuda: cuBLASLt has no " #f); \
		return false; \
	}
	FUNCTIONS(FIND)
	return true;
}

struct gemms *gemms_open(void *workspace, size_t bytes, int *ex)
{
	struct gemms *g = calloc(1, sizeof *g);

	*ex = MT_EX_CONFIG;
	if (!g || !library_open(g)) {
		if (!g)
			mt_fail(*ex = MT_EX_NOMEM, "cuda: no memory");
		free(g);
		return NULL;
	}
	g->workspace = workspace;
	g->bytes = bytes;
	cublasStatus_t s = g->cublasLtCreate(&g->handle);
	if (s) {
		mt_fail(*ex, "cuda: cublasLtCreate: %s", g->cublasLtGetStatusName(s));
		free(g);
		return NULL;
	}
	snprintf(g->name, sizeof g->name, "cuBLASLt %zu, ordered sums", g->cublasLtGetVersion());
	return g;
}

static void product_release(struct gemms *g, struct product *p)
{
	if (p->a)
		g->cublasLtMatrixLayoutDestroy(p->a);
	if (p->b)
		g->cublasLtMatrixLayoutDestroy(p->b);
	if (p->c)
		g->cublasLtMatrixLayoutDestroy(p->c);
	if (p->desc)
		g->cublasLtMatmulDescDestroy(p->desc);
}

void gemms_close(struct gemms *g)
{
	if (!g)
		return;
	for (size_t i = 0; i < g->n; i++)
		product_release(g, &g->products[i]);
	free(g->products);
	g->cublasLtDestroy(g->handle);
	free(g);        /* the library stays: it does not like to be unloaded */
}

const char *gemms_name(const struct gemms *g) { return g->name; }

/* ---- choosing ---- */

/* Bytes at which a matrix of that pitch may start, wherever in a larger one: the same for every plan of a run. All that
 * mt-stream hands out starts at 128. */
static uint32_t alignment(const void *p, int64_t ld, int size)
{
	uintptr_t a = (uintptr_t)p | (uintptr_t)(ld * size) | 128;

	return (uint32_t)(a & -a);
}

static cublasStatus_t describe(struct gemms *g, struct product *p)
{
	const struct shape *s = &p->shape;
	cudaDataType_t in = s->elem == 2 ? CUDA_R_16BF : CUDA_R_32F, out = s->fp32 ? CUDA_R_32F : in;
	cublasOperation_t a = s->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, b = s->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
	uint64_t an = (uint64_t)s->n, bm = (uint64_t)s->m, k = (uint64_t)s->k;
	cublasStatus_t e;

	if ((e = g->cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
	    (e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a)) ||
	    (e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b)))
		return e;
	if (s->biased &&
	    ((e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias)) ||
	     (e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &in, sizeof in))))
		return e;
	if ((e = g->cublasLtMatrixLayoutCreate(&p->a, in, s->trans_b ? k : an, s->trans_b ? an : k, s->ldb)) ||
	    (e = g->cublasLtMatrixLayoutCreate(&p->b, in, s->trans_a ? bm : k, s->trans_a ? k : bm, s->lda)))
		return e;
	return g->cublasLtMatrixLayoutCreate(&p->c, out, an, bm, s->ldc);
}

static cublasStatus_t prefer(struct gemms *g, const struct shape *s, cublasLtMatmulPreference_t f)
{
	uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
	const struct { cublasLtMatmulPreferenceAttributes_t which; const void *value; size_t size; } want[] = {
		{ CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &g->bytes, sizeof g->bytes },
		{ CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &s->align_b, sizeof s->align_b },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &s->align_a, sizeof s->align_a },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &s->align_c, sizeof s->align_c },
		{ CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &s->align_c, sizeof s->align_c },
	};
	cublasStatus_t e = CUBLAS_STATUS_SUCCESS;

	for (size_t i = 0; !e && i < sizeof want / sizeof *want; i++)
		e = g->cublasLtMatmulPreferenceSetAttribute(f, want[i].which, want[i].value, want[i].size);
	return e;
}

/* The first algorithm that fits; none: plain */
static void choose(struct gemms *g, struct product *p)
{
	cublasLtMatmulHeuristicResult_t found[CANDIDATES];
	cublasLtMatmulPreference_t f = NULL;
	int n = 0;

	p->by = (struct chosen){.plain = 1};
	if (g->cublasLtMatmulPreferenceCreate(&f))
		return;
	if (prefer(g, &p->shape, f) ||
	    g->cublasLtMatmulAlgoGetHeuristic(g->handle, p->desc, p->a, p->b, p->c, p->c, f, CANDIDATES, found, &n))
		n = 0;
	g->cublasLtMatmulPreferenceDestroy(f);
	for (int i = 0; p->by.plain && i < n; i++)
		if (!found[i].state && found[i].workspaceSize <= g->bytes)
			p->by = (struct chosen){.algo = found[i].algo, .workspace = found[i].workspaceSize};
}

/* The shape in words, as the run record's table names it */
static void shape_words(const struct shape *s, char words[MT_CHOICE_KEY])
{
	snprintf(words, MT_CHOICE_KEY, "gemm %s%s %c%c %lld %lld %lld ld %lld %lld %lld at %u %u %u%s",
		s->elem == 2 ? "bf16" : "fp32", s->fp32 && s->elem == 2 ? ">fp32" : "", s->trans_a ? 't' : 'n',
		s->trans_b ? 't' : 'n', (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->lda, (long long)s->ldb,
		(long long)s->ldc, s->align_a, s->align_b, s->align_c, s->biased ? " bias" : "");
}

/* The algorithm that the run's table names, or a new choice, which the table takes unless another stream was faster */
static int settle(struct gemms *g, struct product *p)
{
	char words[MT_CHOICE_KEY];
	int rc = 0;

	shape_words(&p->shape, words);
	if (describe(g, p))
		p->by.plain = 1;
	if (g->run && mt_choice_find(g->run, words, &p->by, sizeof p->by))
		return 0;
	if (!p->by.plain)
		choose(g, p);
	return g->run && (rc = mt_choice_enter(g->run, words, &p->by, sizeof p->by)) ? mt_fail_in(rc, "cuda") : 0;
}

/* NULL: mt_errmsg() says why, *rc the code */
static struct product *product_of(struct gemms *g, const struct shape *s, int *rc)
{
	for (size_t i = 0; i < g->n; i++)
		if (!memcmp(&g->products[i].shape, s, sizeof *s))
			return &g->products[i];
	if (g->n == g->room) {
		size_t room = g->room ? 2 * g->room : 64;
		struct product *more = realloc(g->products, room * sizeof *more);

		if (!more) {
			*rc = mt_fail(MT_EX_NOMEM, "cuda: no memory for a product's algorithm");
			return NULL;
		}
		g->products = more;
		g->room = room;
	}
	struct product *p = &g->products[g->n];
	memset(p, 0, sizeof *p);
	p->shape = *s;
	*rc = settle(g, p);
	if (*rc) {
		product_release(g, p);
		return NULL;
	}
	g->n++;
	if (p->by.plain && !g->said) {
		g->said = true;
		mt_say("cuda: cuBLASLt does not take %lld x %lld x %lld at these strides: such products are slow",
			(long long)s->m, (long long)s->n, (long long)s->k);
	}
	return p;
}

/* ---- running ---- */

static void shape_of(const struct cuda_queue *q, const struct cuda_gemm *c, struct shape *s)
{
	memset(s, 0, sizeof *s);
	s->m = c->m, s->n = c->n, s->k = c->k, s->lda = c->lda, s->ldb = c->ldb, s->ldc = c->ldc;
	s->trans_a = c->trans_a, s->trans_b = c->trans_b, s->biased = c->bias != NULL;
	s->fp32 = c->fp32 || q->elem == 4, s->elem = q->elem;
	s->align_a = alignment(c->a, c->lda, q->elem);
	s->align_b = alignment(c->b, c->ldb, q->elem);
	s->align_c = alignment(c->c, c->ldc, s->fp32 ? 4 : q->elem);
}

void gemms_attach(struct gemms *g, struct mt_run *run) { g->run = run; }

int gemms_settle(struct gemms *g, const struct cuda_queue *q, const struct cuda_gemm *c)
{
	struct shape s;
	int rc = 0;

	shape_of(q, c, &s);
	product_of(g, &s, &rc);
	return rc;
}

int gemms_run(struct gemms *g, const struct cuda_queue *q, const struct cuda_gemm *c)
{
	const float one = 1, beta = c->add ? 1 : c->beta;
	const void *added = c->add ? c->add : c->c;
	struct shape s;
	int rc = 0;

	shape_of(q, c, &s);
	struct product *p = product_of(g, &s, &rc);
	if (!p)
		return rc;
	if (p->by.plain) {
		cuda_gemm_plain(q, c);
		return 0;
	}
	cublasStatus_t e = CUBLAS_STATUS_SUCCESS;
	if (c->bias)
		e = g->cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &c->bias, sizeof c->bias);
	if (!e)
		e = g->cublasLtMatmul(g->handle, p->desc, &one, c->b, p->a, c->a, p->b, &beta, added, p->c, c->c, p->c, &p->by.algo,
			g->workspace, p->by.workspace, q->stream);
	return e ? failed(g, e, "cublasLtMatmul", &s) : 0;
}
#endif
