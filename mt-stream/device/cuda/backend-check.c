/* backend-check.c: compare the attention backend with our own kernels before a run relies on it
 *
 * Both compute attention forward and backward with the heads of a call, with the windows of layers and without.
 * The backend's output of a token may differ by the rounding to bf16, no more. When the backend runs again, all bits
 * must be the same.
 *
 * When a run begins, two short rows are checked, one of them with several documents. Before the first step on rows of a
 * new length, one row of that length is checked, as one document and as two: a library's indices may pass 2^31 there
 * and nowhere else (28 heads times the square of 8.8k tokens). Of a long row only samples are compared, from all its
 * parts. A check costs about as much as the attention of three layers.
 */
#include <math.h>
#include <stdlib.h>

#include "backend.h"
#include "layers/block.h"
#include "cli/cli.h"
#include "model/bf16.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "splitmix.h"

#ifndef SHORT       /* smaller for the emulated GPU */
#define SHORT 256   /* tokens of a short row */
#define SAMPLES 512 /* stretches of tokens that are compared, and tokens of each; a short row is compared whole */
#define SAMPLE 8
#define STAGE (2 << 20) /* elements of an input that are made and sent at once */
#endif
#define ROUNDING 0.03 /* of a token's norm, or of the mean token's where it is larger */

struct check {
	struct backend *b;
	const struct cuda_queue *q;
	int64_t rows, seq, n;                           /* n: tokens of all rows */
	int64_t heads, kv_heads, dim, dim_v, wide, out; /* elements of a token's qkv and o */
	float scale;                                    /* of the model's scores */
	int64_t runs, run, m;                           /* tokens compared: m, in `runs` stretches of `run` tokens */
	cudaEvent_t event;
	char *device;
	/* offsets in it; work: bytes of the backend's work memory */
	size_t qkv, d_o, starts, o, dqkv, lse, end, scratch, work;
	uint32_t *host_starts;
	uint16_t *stage; /* pinned */
	uint16_t *got;   /* pinned: o and dqkv of the tokens compared */
	uint16_t *kept;  /* the same of an earlier run */
};

/* ---- memory ---- */

static size_t room(size_t *at, size_t bytes)
{
	size_t here = *at;
	*at += (bytes + 255) & ~(size_t)255;
	return here;
}

static bool call_ok(cudaError_t e, const char *what)
{
	if (e != cudaSuccess) mt_fail(MT_EX_IO, "%s: %s", what, cudaGetErrorName(e));
	return e == cudaSuccess;
}

static bool wait(struct check *c)
{
	return call_ok(cudaEventRecord(c->event, c->q->stream), "cudaEventRecord") &&
		call_ok(cudaEventSynchronize(c->event), "cudaEventSynchronize");
}

static bool copy(struct check *c, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
	return call_ok(cudaMemcpyAsync(to, from, bytes, kind, c->q->stream), "cudaMemcpyAsync");
}

static size_t compared_bytes(const struct check *c) { return (size_t)(c->m * (c->wide + c->out)) * 2; }

static bool memory_open(struct check *c, struct cuda_queue *q)
{
	size_t at = 0, sums = cuda_work_bytes(c->n, c->heads);
	c->qkv = room(&at, (size_t)(c->n * c->wide) * 2);
	c->d_o = room(&at, (size_t)(c->n * c->out) * 2);
	c->starts = room(&at, (size_t)c->n * sizeof(uint32_t));
	c->o = room(&at, (size_t)(c->n * c->out) * 2);
	c->dqkv = room(&at, (size_t)(c->n * c->wide) * 2);
	c->lse = room(&at, (size_t)(c->n * c->heads) * sizeof(float));
	c->end = at;
	c->scratch = room(&at, c->work);
	size_t own = room(&at, q->work_bytes < sums ? sums : 0);
	c->kept = malloc(compared_bytes(c));
	c->host_starts = malloc((size_t)c->n * sizeof(uint32_t));
	if (!c->kept || !c->host_starts) return mt_fail(MT_EX_NOMEM, "no memory"), false;
	if (!call_ok(cudaEventCreateWithFlags(&c->event, cudaEventDisableTiming), "cudaEventCreate") ||
		!call_ok(cudaMalloc((void **)&c->device, at), "cudaMalloc") ||
		!call_ok(cudaHostAlloc((void **)&c->stage, STAGE * 2, cudaHostAllocDefault), "cudaHostAlloc") ||
		!call_ok(cudaHostAlloc((void **)&c->got, compared_bytes(c), cudaHostAllocDefault), "cudaHostAlloc"))
		return false;
	if (q->work_bytes < sums) q->work = (float *)(c->device + own);
	return true;
}

static void memory_close(struct check *c)
{
	if (c->event) cudaEventDestroy(c->event);
	cudaFree(c->device);
	if (c->stage) cudaFreeHost(c->stage);
	if (c->got) cudaFreeHost(c->got);
	free(c->kept);
	free(c->host_starts);
	cudaGetLastError(); /* an error of the check is not an error of the device */
}

/* ---- what goes in ---- */

/* n elements, the first of which is element `from`: uniform in -1.7 .. 1.7, of variance 1 */
static void randoms(uint16_t *to, int64_t from, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t z = (seed << 60) + (uint64_t)(from + i) / 4 * SPLITMIX_STEP; /* four elements of each number */
		z = splitmix_mix(z);
		for (int64_t last = (from + i) | 3;; i++) {
			to[i] = bf16_round(mt_bits((float)(z >> (from + i) % 4 * 16 & 0xffff) / (1 << 15) * 1.732f - 1.732f));
			if (from + i == last || i + 1 == n) break;
		}
	}
}

static bool input(struct check *c, size_t at, int64_t elems, uint64_t seed)
{
	for (int64_t i = 0, n; i < elems; i += n) {
		n = elems - i < STAGE ? elems - i : STAGE;
		randoms(c->stage, i, n, seed);
		if (!copy(c, c->device + at + 2 * i, c->stage, (size_t)n * 2, cudaMemcpyHostToDevice) || !wait(c)) return false;
	}
	return true;
}

/* Documents of the last row. Not packed: one. Packed: of two rows three, one of a token and two in the class of half
 * rows; of a single row two, the second in the class of whole rows. Only a few lengths: each needs separate plans,
 * and making one takes up to a second. */
static bool starts_make(struct check *c, bool packed)
{
	uint32_t *row = c->host_starts + (c->rows - 1) * c->seq;
	const int64_t half = c->seq / 2, at[] = {0, c->rows > 1 ? 1 : half - 1, c->rows > 1 ? half + 1 : c->seq};
	size_t document = 0;
	memset(c->host_starts, 0, (size_t)c->n * sizeof *c->host_starts);
	for (int64_t i = 0; packed && i < c->seq; i++) {
		while (document + 1 < sizeof at / sizeof *at && at[document + 1] <= i) document++;
		row[i] = (uint32_t)at[document];
	}
	/* through the pinned buffer, part by part */
	for (int64_t i = 0, n; i < c->n; i += n) {
		n = c->n - i < STAGE / 2 ? c->n - i : STAGE / 2;
		memcpy(c->stage, c->host_starts + i, (size_t)n * sizeof *c->host_starts);
		if (!copy(c, c->device + c->starts + 4 * i, c->stage, (size_t)n * 4, cudaMemcpyHostToDevice) || !wait(c))
			return false;
	}
	return true;
}

/* ---- what comes out ---- */

/* o and dqkv of the tokens that are compared, to c->got: stretches of tokens at equal distances */
static bool fetch(struct check *c)
{
	const struct {
		size_t at;
		int64_t row;
		uint16_t *to;
	} parts[] = {
		{c->o, c->out, c->got},
		{c->dqkv, c->wide, c->got + c->m * c->out},
	};

	for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
		for (int64_t i = 0; i < c->runs; i++) {
			int64_t from = c->runs > 1 ? i * (c->n - c->run) / (c->runs - 1) : 0, row = parts[p].row;
			if (!copy(c, parts[p].to + i * c->run * row, c->device + parts[p].at + from * row * 2,
					(size_t)(c->run * row) * 2, cudaMemcpyDeviceToHost))
				return false;
		}
	return wait(c);
}

/* Forward and backward, by our own kernels or the backend */
static bool compute(struct check *c, int64_t window, bool own)
{
	char *d = c->device;
	struct attention_args a = {.n = c->n,
		.seq = c->seq,
		.heads = c->heads,
		.kv_heads = c->kv_heads,
		.dim = c->dim,
		.dim_v = c->dim_v,
		.window = window,
		.scale = c->scale,
		.starts = (const uint32_t *)(d + c->starts),
		.qkv = d + c->qkv,
		.o = d + c->o,
		.lse = (float *)(d + c->lse),
		.host_starts = c->host_starts,
		.work = d + c->scratch,
		.work_bytes = c->work};
	if (!call_ok(cudaMemsetAsync(d + c->o, 0xff, c->end - c->o, c->q->stream), "cudaMemsetAsync")) return false;
	for (int backward = 0; backward < 2; backward++) {
		if (backward) {
			a.d_o = d + c->d_o;
			a.dqkv = d + c->dqkv;
		}
		if (!own) {
			if (backend_run(c->b, c->q, &a)) return false;
		} else if (backward) cuda_attention_backward(c->q, &a);
		else cuda_attention_forward(c->q, &a);
	}
	return call_ok(cudaGetLastError(), "a kernel") && fetch(c);
}

static void keep(struct check *c) { memcpy(c->kept, c->got, compared_bytes(c)); }
static bool same(const struct check *c) { return !memcmp(c->kept, c->got, compared_bytes(c)); }

/* The largest difference of a token's elements [from, from + n) from those kept, relative to their norm. `row`:
 * elements of a token. A NaN counts as infinity. */
static double differs(const uint16_t *got, const uint16_t *kept, int64_t m, int64_t row, int64_t from, int64_t n)
{
	double mean = 0, worst = 0;
	for (int pass = 0; pass < 2; pass++)
		for (int64_t i = 0; i < m; i++) {
			double norm = 0, d = 0;
			for (int64_t j = i * row + from; j < i * row + from + n; j++) {
				double x = bf16_float(kept[j]), y = bf16_float(got[j]);
				norm += x * x;
				d += (x - y) * (x - y);
			}
			if (!pass) {
				mean += sqrt(norm) / (double)m;
				continue;
			}
			double part = sqrt(d) / (sqrt(norm) > mean ? sqrt(norm) : mean);
			if (!(part <= worst)) worst = isnan(part) ? INFINITY : part;
		}
	return worst;
}

static int variant_check(struct check *c, int64_t window, bool packed)
{
	const int64_t k = c->heads * c->dim, v = k + c->kv_heads * c->dim, m = c->m;
	const char *how = packed ? window ? "packed, window" : "packed" : window ? "window" : "plain";
	if (!starts_make(c, packed) || !compute(c, window, true)) return -MT_EX_IO;
	keep(c);
	if (!compute(c, window, false)) return -MT_EX_IO;
	const uint16_t *got = c->got + m * c->out, *grad = c->kept + m * c->out;
	const struct {
		const char *name;
		double d;
	} parts[] = {
		{"output", differs(c->got, c->kept, m, c->out, 0, c->out)},
		{"dq", differs(got, grad, m, c->wide, 0, k)},
		{"dk", differs(got, grad, m, c->wide, k, v - k)},
		{"dv", differs(got, grad, m, c->wide, v, c->wide - v)},
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (!(parts[i].d <= ROUNDING))
			return mt_fail(MT_EX_DATA, "%s: %s differs from our own kernels' by %.2g of a token's norm", how,
				parts[i].name, parts[i].d);
	keep(c);
	if (!compute(c, window, false)) return -MT_EX_IO;
	return same(c) ? 0 : mt_fail(MT_EX_DATA, "%s: other bits when run again", how);
}

/* Layers with these heads */
struct heads_check {
	struct attention_need need;
	const struct mt_layer *heads;
	struct attention_call call;
	float scale;
	int64_t window; /* of some of them, 0: of none */
	bool plain;     /* some have none */
};

static int rows_check(struct backend *b, const struct cuda_queue *queue, const struct heads_check *h, int64_t rows,
	int64_t seq)
{
	struct cuda_queue q = *queue;
	struct check c = {.b = b,
		.q = &q,
		.rows = rows,
		.seq = seq,
		.n = rows * seq,
		.heads = h->heads->heads / h->heads->kv_heads * h->call.kv_heads,
		.kv_heads = h->call.kv_heads,
		.dim = h->heads->head_dim,
		.dim_v = head_dim_v(h->heads),
		.scale = h->scale};
	int rc = 0;
	c.work = (size_t)(h->need.fixed + (uint64_t)rows * (h->call.row + h->need.table));
	c.out = c.heads * c.dim_v;
	c.wide = (c.heads + c.kv_heads) * c.dim + c.kv_heads * c.dim_v;
	c.runs = c.n > SAMPLES * SAMPLE ? SAMPLES : 1;
	c.run = c.runs > 1 ? SAMPLE : c.n;
	c.m = c.runs * c.run;
	if (!memory_open(&c, &q) || !input(&c, c.qkv, c.n * c.wide, 1) || !input(&c, c.d_o, c.n * c.out, 2))
		rc = -MT_EX_NOMEM;
	for (int packed = 0; !rc && packed < 1 + (rows > 1 || h->call.packs); packed++) {
		if (h->plain) rc = variant_check(&c, 0, packed);
		if (!rc && h->window) rc = variant_check(&c, h->window, packed);
	}
	memory_close(&c);
	return rc;
}

static bool same_heads(const struct mt_layer *a, const struct mt_layer *b)
{
	return a->heads == b->heads && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim && a->v_dim == b->v_dim;
}

/* Does an earlier kind of layers have the heads of kind k? */
static bool checked_before(const struct mt_geometry *g, uint32_t k)
{
	for (uint32_t i = 0; i < k; i++)
		if (same_heads(&g->kind[i], &g->kind[k])) return true;
	return false;
}

/* Layers of kind k, and of later kinds with the same heads, over rows of seq tokens. A window that is longer does not
 * count. */
static struct heads_check heads_of(const struct mt_geometry *g, uint32_t k, int64_t seq)
{
	struct heads_check h = {.heads = &g->kind[k], .scale = g->attention_scale};
	for (uint32_t i = k; i < g->n_kinds; i++) {
		int64_t window = g->kind[i].window;
		if (!same_heads(&g->kind[i], &g->kind[k])) continue;
		if (window && window < seq) h.window = window;
		else h.plain = true;
	}
	return h;
}

static int kinds_check(struct backend *b, const struct cuda_queue *q, const struct mt_geometry *g, int64_t rows,
	int64_t seq)
{
	struct attention_need need = backend_need(b, seq, true, true);
	int rc = 0;
	if (!need.there)
		return mt_fail(MT_EX_CONFIG, "no deterministic way for %u and %u heads of %u", g->kind[0].heads,
			g->kind[0].kv_heads, g->kind[0].head_dim);
	for (uint32_t k = 0; !rc && k < g->n_kinds; k++) {
		struct heads_check h = heads_of(g, k, rows > 1 ? INT64_MAX : seq);
		h.need = need;
		h.call = need.kind[k];
		if (rows > 1) h.plain = true;
		if (rows > 1 && h.window > SHORT / 4) h.window = SHORT / 4;
		if (h.call.rows && !checked_before(g, k)) rc = rows_check(b, q, &h, rows, seq);
	}
	return rc;
}

int backend_check(struct backend *b, const struct cuda_queue *q, const struct mt_geometry *g)
{
	return kinds_check(b, q, g, 2, SHORT);
}

int backend_check_row(struct backend *b, const struct cuda_queue *q, const struct mt_geometry *g, int64_t seq)
{
	return kinds_check(b, q, g, 1, seq);
}
