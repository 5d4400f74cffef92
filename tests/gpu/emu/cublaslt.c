/* cublaslt.c: a libcublasLt for the emulator: the functions that cuda/gemm.c calls, computed on the CPU when the stream
 * gets there, and as hard to please as NVIDIA's may be.
 *
 * FAKE_CUBLASLT_SEED=N several algorithms, each with sums in another order and so with other bits; which ones a shape
 *                            has, in which order the heuristic names them and how long each takes is drawn by N. Among
 * them: one whose sums change from run to run, one that wants workspace, one that fails when it
 *                            is run. Without it: one algorithm, always the same
 *     FAKE_CUBLASLT_CLOCK=N  how long each takes is drawn by N instead
 *     FAKE_CUBLASLT_VERSION=N    what cublasLtGetVersion says
 *     FAKE_CUBLASLT_NO_FP8=1 no algorithm takes FP8
 *     FAKE_CUBLASLT_FAIL=N   product N, counted from 1, finds no memory
 *     FAKE_CUBLASLT_REFUSE=1     no algorithm passes cublasLtMatmulAlgoCheck, none runs
 *
 * A caller that passes what a GPU would not survive (pointers less aligned than was promised, too little workspace,
 * matrices that overlap) ends the process.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../shm/splitmix.h"

#ifdef CUBLASLT_OF_NVIDIA /* only to be compiled: every signature and value as NVIDIA's header has it */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
static void emu_takes(double ms) { (void)ms; }
#define ASSERT_VALUE(name, n) _Static_assert((name) == (n), #name)
ASSERT_VALUE(CUBLAS_VER_MAJOR, 13);
ASSERT_VALUE(CUBLAS_STATUS_ALLOC_FAILED, 3);
ASSERT_VALUE(CUBLAS_STATUS_INVALID_VALUE, 7);
ASSERT_VALUE(CUBLAS_STATUS_ARCH_MISMATCH, 8);
ASSERT_VALUE(CUBLAS_STATUS_EXECUTION_FAILED, 13);
ASSERT_VALUE(CUBLAS_STATUS_NOT_SUPPORTED, 15);
ASSERT_VALUE(CUBLAS_COMPUTE_32F, 68);
ASSERT_VALUE(CUDA_R_32F, 0);
ASSERT_VALUE(CUDA_R_16BF, 14);
ASSERT_VALUE(CUDA_R_8F_E4M3, 28);
ASSERT_VALUE(CUBLAS_OP_T, 1);
ASSERT_VALUE(CUBLASLT_EPILOGUE_BIAS, 4);
ASSERT_VALUE(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_TRANSA, 3);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_TRANSB, 4);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_EPILOGUE, 7);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 26);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 31);
ASSERT_VALUE(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 32);
ASSERT_VALUE(CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, 2);
ASSERT_VALUE(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, 3);
ASSERT_VALUE(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1);
ASSERT_VALUE(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3);
ASSERT_VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5);
ASSERT_VALUE(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8);
ASSERT_VALUE(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 3);
_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 64 + 8 + 4 + 4 + 16, "a heuristic's result");
#else
#include "cublaslt.h"
#endif

/* What lies in the opaque structs */
struct desc {
	uint32_t trans_a, trans_b, epilogue;
	int32_t bias_type;
	const void *bias;
	int32_t scale_mode[2]; /* of A and B */
	const void *scale[2];
};
struct layout {
	uint64_t rows, cols;
	int64_t ld;
	uint64_t type;
};
struct preference {
	uint64_t bytes;
	uint32_t mask, align[4];
};
struct algo {
	uint64_t magic;
	uint32_t order, scheme, align[4];
	uint64_t bytes;
};

#define MAGIC 0x6f676c6174736163ull
enum { FORWARD, BACKWARD, INTERLEAVED, BLOCKED, BY_WORKSPACE, UNSTEADY, FAILING, IN_PARTS, ORDERS };

static void die(const char *what)
{
	fprintf(stderr, "fake cuBLASLt: %s\n", what);
	abort();
}

static uint64_t mixed(uint64_t z) { return splitmix_mix(z + SPLITMIX_STEP); }

static const char *seed(void) { return getenv("FAKE_CUBLASLT_SEED"); }

/* ---- descriptions ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
	return (*h = calloc(1, 8)) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return free(h), CUBLAS_STATUS_SUCCESS; }
size_t cublasLtGetVersion(void)
{
	const char *v = getenv("FAKE_CUBLASLT_VERSION");
	return v ? strtoull(v, NULL, 10) : 130100;
}
const char *cublasLtGetStatusName(cublasStatus_t s)
{
	return s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
		: s == CUBLAS_STATUS_ALLOC_FAILED   ? "CUBLAS_STATUS_ALLOC_FAILED"
		: s == CUBLAS_STATUS_INVALID_VALUE  ? "CUBLAS_STATUS_INVALID_VALUE"
											: "CUBLAS_STATUS_EXECUTION_FAILED";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
	if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) die("arithmetic that is not fp32");
	*d = calloc(1, sizeof **d);
	*(struct desc *)*d = (struct desc){.epilogue = CUBLASLT_EPILOGUE_DEFAULT, .bias_type = -1};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return free(d), CUBLAS_STATUS_SUCCESS; }

static cublasStatus_t set(void *to, size_t room, const void *from, size_t bytes)
{
	if (bytes != room) return CUBLAS_STATUS_INVALID_VALUE;
	memcpy(to, from, bytes);
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
	const void *v, size_t n)
{
	struct desc *d = (struct desc *)desc;
	switch ((int)which) {
	case CUBLASLT_MATMUL_DESC_TRANSA: return set(&d->trans_a, 4, v, n);
	case CUBLASLT_MATMUL_DESC_TRANSB: return set(&d->trans_b, 4, v, n);
	case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(&d->epilogue, 4, v, n);
	case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(&d->bias_type, 4, v, n);
	case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(&d->bias, 8, v, n);
	case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return set(&d->scale_mode[0], 4, v, n);
	case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return set(&d->scale_mode[1], 4, v, n);
	case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return set(&d->scale[0], 8, v, n);
	case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return set(&d->scale[1], 8, v, n);
	default: return CUBLAS_STATUS_INVALID_VALUE;
	}
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows, uint64_t cols,
	int64_t ld)
{
	if (!rows || !cols || ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
	*l = calloc(1, sizeof **l);
	*(struct layout *)*l = (struct layout){rows, cols, ld, type};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return free(l), CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
	*p = calloc(1, sizeof **p);
	*(struct preference *)*p = (struct preference){0, 7, {256, 256, 256, 256}};
	return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return free(p), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
	cublasLtMatmulPreferenceAttributes_t which, const void *v, size_t n)
{
	struct preference *p = (struct preference *)pref;
	switch ((int)which) {
	case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(&p->bytes, 8, v, n);
	case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(&p->mask, 4, v, n);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(&p->align[0], 4, v, n);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(&p->align[1], 4, v, n);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(&p->align[2], 4, v, n);
	case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(&p->align[3], 4, v, n);
	default: return CUBLAS_STATUS_INVALID_VALUE;
	}
}

/* ---- algorithms ---- */

static uint64_t shape_hash(const struct desc *d, const struct layout *a, const struct layout *b, const struct layout *c)
{
	return mixed(
		a->rows + mixed(a->cols + mixed(b->rows + mixed(b->cols + mixed(c->type + d->trans_a * 2 + d->trans_b)))));
}

/* Of a GPU as MT_EMU_CAPABILITY says */
static int blocks_have_scales(void)
{
	const char *capability = getenv("MT_EMU_CAPABILITY");
	return capability && atoi(capability) >= 100;
}

/* What 9.0 multiplies in FP8: k is the inner dimension of both, rows of 16 bytes; with a scale of each row of A and
 * column of B; and 12.0, with one of each 32 elements */
static int fit_fp8(const struct desc *d, const struct layout *a, const struct layout *b, const struct layout *to)
{
	uint64_t size = to->type == CUDA_R_32F ? 4 : 2;
	return d->trans_a && !d->trans_b && a->rows % 16 == 0 && a->ld % 16 == 0 && b->ld % 16 == 0 &&
		to->rows * size % 16 == 0 && (uint64_t)to->ld * size % 16 == 0 && d->scale_mode[1] == d->scale_mode[0] &&
		d->scale_mode[0] ==
		(blocks_have_scales() ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0
							  : CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) &&
		(a->rows % 32 == 0 || !blocks_have_scales());
}

/* Matrices as they can be multiplied, and of types that go together */
static int fit(const struct desc *d, const struct layout *a, const struct layout *b, const struct layout *c,
	const struct layout *to)
{
	uint64_t m = d->trans_a ? a->cols : a->rows, k = d->trans_a ? a->rows : a->cols;
	uint64_t l = d->trans_b ? b->cols : b->rows, n = d->trans_b ? b->rows : b->cols;
	uint64_t bias = a->type == CUDA_R_8F_E4M3 ? CUDA_R_16BF : to->type;
	return k == l && to->rows == m && to->cols == n && c->rows == m && c->cols == n && c->type == to->type &&
		a->type == b->type &&
		(to->type == (a->type == CUDA_R_8F_E4M3 ? CUDA_R_16BF : a->type) || to->type == CUDA_R_32F) &&
		(d->epilogue != CUBLASLT_EPILOGUE_BIAS || d->bias_type == (int32_t)bias) &&
		(a->type != CUDA_R_8F_E4M3 || fit_fp8(d, a, b, to));
}

static struct algo algo_of(const struct preference *p, unsigned order)
{
	struct algo g = {.magic = MAGIC,
		.order = order,
		.scheme = order == UNSTEADY ? CUBLASLT_REDUCTION_SCHEME_INPLACE
			: order == IN_PARTS     ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
									: CUBLASLT_REDUCTION_SCHEME_NONE,
		.bytes = order == BY_WORKSPACE ? 1 << 20
			: order == IN_PARTS        ? 4096
									   : 0};
	memcpy(g.align, p->align, sizeof g.align);
	return g;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t pref,
	int wanted, cublasLtMatmulHeuristicResult_t *found, int *n)
{
	const struct preference *p = (const struct preference *)pref;
	const struct layout *la = (const struct layout *)a, *lb = (const struct layout *)b, *lc = (const struct layout *)c;
	const struct desc *what = (const struct desc *)desc;
	uint64_t drawn = mixed(shape_hash(what, la, lb, lc) + (seed() ? strtoull(seed(), NULL, 10) : 0));
	(void)h;
	*n = 0;
	if (!fit(what, la, lb, lc, (const struct layout *)d) || (what->epilogue == CUBLASLT_EPILOGUE_BIAS && !what->bias))
		return CUBLAS_STATUS_INVALID_VALUE;
	if (la->type == CUDA_R_8F_E4M3 &&
		(getenv("FAKE_CUBLASLT_NO_FP8") || p->align[0] < 16 || p->align[1] < 16 || p->align[3] < 16))
		return CUBLAS_STATUS_NOT_SUPPORTED;
	/* an odd pitch of bf16 */
	if (p->align[0] < 4 || p->align[1] < 4 || p->align[3] < 4) return CUBLAS_STATUS_NOT_SUPPORTED;
	for (unsigned i = 0; i < (seed() ? ORDERS : 1) && *n < wanted; i++) {
		struct algo g = algo_of(p, seed() ? (unsigned)((drawn + i * (2 * (drawn >> 8 & 3) + 1)) % ORDERS) : FORWARD);
		if ((g.scheme & ~p->mask) || g.bytes > p->bytes || (g.order == BLOCKED && p->align[0] < 16)) continue;
		found[*n] = (cublasLtMatmulHeuristicResult_t){.workspaceSize = g.bytes,
			.state = seed() && (drawn >> 16 & 7) == i ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS};
		memcpy(&found[(*n)++].algo, &g, sizeof g);
	}
	return *n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
	cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulHeuristicResult_t *result)
{
	const struct algo *g = (const struct algo *)algo;
	(void)h;
	if (getenv("FAKE_CUBLASLT_REFUSE") || g->magic != MAGIC || g->order >= ORDERS) return CUBLAS_STATUS_NOT_SUPPORTED;
	if (!fit((const struct desc *)desc, (const struct layout *)a, (const struct layout *)b, (const struct layout *)c,
			(const struct layout *)d))
		return CUBLAS_STATUS_INVALID_VALUE;
	result->workspaceSize = g->bytes;
	result->state = CUBLAS_STATUS_SUCCESS;
	return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
	cublasLtMatmulAlgoConfigAttributes_t which, void *v, size_t n, size_t *written)
{
	if (which != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || n != 4) return CUBLAS_STATUS_INVALID_VALUE;
	/* NVIDIA's succeeds too where an algorithm has no such attribute, and writes nothing */
	*written = ((const struct algo *)algo)->order == FORWARD ? 0 : 4;
	memcpy(v, &((const struct algo *)algo)->scheme, *written);
	return CUBLAS_STATUS_SUCCESS;
}

/* ---- computing: column-major, as the library has it ---- */

struct job {
	struct desc what;
	struct layout a, b, d;
	const void *pa, *pb, *pc;
	void *pd;
	float alpha, beta;
	struct algo by;
	float *workspace;
};

/* The number of a code: the largest ones are NaN */
static float e4m3(uint8_t code)
{
	int e = code >> 3 & 15, m = code & 7;
	float x = (code & 127) == 127 ? NAN : e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
	return code & 128 ? -x : x;
}

static float get(const void *p, uint64_t type, uint64_t i)
{
	uint32_t bits;
	float f;
	if (type == CUDA_R_32F) return ((const float *)p)[i];
	if (type == CUDA_R_8F_E4M3) return e4m3(((const uint8_t *)p)[i]);
	bits = (uint32_t)((const uint16_t *)p)[i] << 16;
	memcpy(&f, &bits, 4);
	return f;
}

static void put(void *p, uint64_t type, uint64_t i, float f)
{
	uint32_t bits;
	if (type == CUDA_R_32F) {
		((float *)p)[i] = f;
		return;
	}
	memcpy(&bits, &f, 4);
	((uint16_t *)p)[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff
																	 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Of a block of 32 elements, e8m0 in tiles of 128 rows and 4 blocks */
static float block_scale(const void *scales, uint64_t row, uint64_t block, uint64_t k)
{
	uint64_t tile = row / 128 * ((k + 127) / 128) + block / 4;
	return ldexpf(1, ((const uint8_t *)scales)[tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4] - 127);
}

static float term(const struct job *j, uint64_t row, uint64_t col, uint64_t k)
{
	float scale = 1;
	for (int i = 0; i < 2 && j->what.scale_mode[0] == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0; i++)
		scale *= block_scale(j->what.scale[i], i ? col : row, k / 32, j->a.rows);
	return scale * get(j->pa, j->a.type, j->what.trans_a ? row * (uint64_t)j->a.ld + k : k * (uint64_t)j->a.ld + row) *
		get(j->pb, j->b.type, j->what.trans_b ? k * (uint64_t)j->b.ld + col : col * (uint64_t)j->b.ld + k);
}

static float dot(const struct job *j, uint64_t row, uint64_t col, uint64_t n)
{
	static uint64_t runs;
	float sum[8] = {0};
	uint64_t from = j->by.order == UNSTEADY ? mixed(++runs) % n : 0;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t k = j->by.order == BACKWARD || j->by.order == BY_WORKSPACE ? n - 1 - i : (i + from) % n;
		unsigned at = j->by.order == INTERLEAVED ? i & 1
			: j->by.order == BLOCKED             ? i & 7
			: j->by.order == IN_PARTS            ? (unsigned)(i * 8 / n)
												 : 0;
		sum[at] += term(j, row, col, k);
	}
	for (int i = 1; i < 8; i++) sum[0] += sum[i];
	return sum[0];
}

static void compute(void *arg)
{
	struct job *j = arg;
	uint64_t n = j->what.trans_a ? j->a.rows : j->a.cols;
	if (j->by.bytes) memset(j->workspace, 0x5a, j->by.bytes);
	for (uint64_t col = 0; col < j->d.cols; col++)
		for (uint64_t row = 0; row < j->d.rows; row++) {
			uint64_t at = col * (uint64_t)j->d.ld + row;
			float v = j->alpha * dot(j, row, col, n);
			if (j->what.scale_mode[0] == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F)
				v *= ((const float *)j->what.scale[0])[row] * ((const float *)j->what.scale[1])[col];
			if (j->beta != 0) v += j->beta * get(j->pc, j->d.type, at);
			if (j->what.epilogue == CUBLASLT_EPILOGUE_BIAS) v += get(j->what.bias, (uint64_t)j->what.bias_type, row);
			put(j->pd, j->d.type, at, v);
		}
	if (seed()) {
		const char *clock = getenv("FAKE_CUBLASLT_CLOCK");
		uint64_t by = strtoull(clock ? clock : seed(), NULL, 10);
		emu_takes((double)(1 + mixed(by + j->by.order + shape_hash(&j->what, &j->a, &j->b, &j->d)) % 6));
	}
	free(j);
}

static void check_pointers(const struct job *j, size_t bytes)
{
	const void *p[] = {j->pa, j->pb, j->pc, j->pd};
	size_t size = j->d.type == CUDA_R_32F ? 4 : 2, last = ((j->d.cols - 1) * (uint64_t)j->d.ld + j->d.rows) * size;
	for (int i = 0; i < 4; i++)
		if ((uintptr_t)p[i] % j->by.align[i]) die("a matrix that starts elsewhere than was promised");
	if (j->what.epilogue == CUBLASLT_EPILOGUE_BIAS && (!j->what.bias || (uintptr_t)j->what.bias % 16))
		die("a bias that does not start at 16 bytes");
	for (int i = 0; i < 2 && j->a.type == CUDA_R_8F_E4M3; i++)
		if (!j->what.scale[i] || (uintptr_t)j->what.scale[i] % 16) die("scales that do not start at 16 bytes");
	if (bytes < j->by.bytes || (uintptr_t)j->workspace % 256 || (j->by.bytes && !j->workspace))
		die("too little workspace, or not at 256 bytes");
	if (j->pc != j->pd && (const char *)j->pc < (const char *)j->pd + last &&
		(const char *)j->pd < (const char *)j->pc + last)
		die("C and D overlap");
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
	cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb, const void *beta, const void *c,
	cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *workspace,
	size_t bytes, cudaStream_t stream)
{
	struct job *j = malloc(sizeof *j);
	static long products;
	const char *fail = getenv("FAKE_CUBLASLT_FAIL");
	(void)h;
	if (fail && ++products == atol(fail)) {
		free(j);
		return CUBLAS_STATUS_ALLOC_FAILED;
	}
	*j = (struct job){.what = *(struct desc *)desc,
		.a = *(struct layout *)la,
		.b = *(struct layout *)lb,
		.d = *(struct layout *)ld,
		.pa = a,
		.pb = b,
		.pc = c,
		.pd = d,
		.alpha = *(const float *)alpha,
		.beta = *(const float *)beta,
		.by = *(const struct algo *)algo,
		.workspace = workspace};
	if (j->by.magic != MAGIC || !fit(&j->what, &j->a, &j->b, (struct layout *)lc, &j->d)) {
		free(j);
		return CUBLAS_STATUS_INVALID_VALUE;
	}
	check_pointers(j, bytes);
	if (j->by.order == FAILING || getenv("FAKE_CUBLASLT_REFUSE")) {
		free(j);
		return CUBLAS_STATUS_NOT_SUPPORTED;
	}
	return cudaLaunchHostFunc(stream, compute, j) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}
