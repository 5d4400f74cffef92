/* trial.c: attention by a library, tried beside our own kernels before a run relies on it: forward and backward on
 * the run's heads, with the windows that its layers have and without. A token's output may differ by what rounding to
 * bf16 does and no more; run again, it must be the same bit for bit.
 *
 * When a run begins, two short rows are tried, one of several documents. Before the first step on rows of a length one
 * row of that length is, as one document and as two: a library's indices may pass 2^31 there and nowhere else (28 heads
 * times the square of 8.8k tokens). Of long rows some tokens in all parts are compared. A trial costs about what
 * attention of three layers costs.
 */
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "engine.h"
#include "model/bf16.h"
#include "splitmix.h"

#ifndef SHORT       /* smaller for the emulated GPU */
#define SHORT 256   /* tokens of a short row */
#define SAMPLES 512 /* runs of tokens that are compared, and tokens of each; a short row is compared whole */
#define SAMPLE 8
#define STAGE (2 << 20) /* elements of an input that are made and sent at once */
#endif
#define ROUNDING 0.03 /* of a token's norm, or of the mean token's where it is larger */

struct trial {
	struct engine *e;
	const struct cuda_queue *q;
	int64_t rows, seq, n;                    /* n: tokens of all rows */
	int64_t heads, kv_heads, dim, wide, out; /* elements of a token's qkv and o */
	int64_t runs, run, m;                    /* tokens compared: m in runs of so many */
	cudaEvent_t event;
	char *device;
	/* offsets in it; work: bytes of the engine's scratch */
	size_t qkv, d_o, starts, o, dqkv, lse, end, scratch, work;
	uint32_t *host_starts;
	uint16_t *stage; /* pinned */
	uint16_t *is;    /* pinned: o and dqkv of the tokens compared, */
	uint16_t *kept;  /* and of another run */
};

/* ---- memory ---- */

static size_t room(size_t *at, size_t bytes)
{
	size_t here = *at;

	*at += (bytes + 255) & ~(size_t)255;
	return here;
}

static bool good(cudaError_t e, const char *what)
{
	if (e != cudaSuccess) mt_fail(MT_EX_IO, "%s: %s", what, cudaGetErrorName(e));
	return e == cudaSuccess;
}

static bool wait(struct trial *t)
{
	return good(cudaEventRecord(t->event, t->q->stream), "cudaEventRecord") &&
		good(cudaEventSynchronize(t->event), "cudaEventSynchronize");
}

static size_t compared_bytes(const struct trial *t) { return (size_t)(t->m * (t->wide + t->out)) * 2; }

static bool memory_open(struct trial *t, struct cuda_queue *q)
{
	size_t at = 0, sums = cuda_work_bytes(t->n, t->heads);

	t->qkv = room(&at, (size_t)(t->n * t->wide) * 2);
	t->d_o = room(&at, (size_t)(t->n * t->out) * 2);
	t->starts = room(&at, (size_t)t->n * sizeof(uint32_t));
	t->o = room(&at, (size_t)(t->n * t->out) * 2);
	t->dqkv = room(&at, (size_t)(t->n * t->wide) * 2);
	t->lse = room(&at, (size_t)(t->n * t->heads) * sizeof(float));
	t->end = at;
	t->scratch = room(&at, t->work);
	size_t own = room(&at, q->work_bytes < sums ? sums : 0);
	t->kept = malloc(compared_bytes(t));
	t->host_starts = malloc((size_t)t->n * sizeof(uint32_t));
	if (!t->kept || !t->host_starts) return mt_fail(MT_EX_NOMEM, "no memory"), false;
	if (!good(cudaEventCreateWithFlags(&t->event, cudaEventDisableTiming), "cudaEventCreate") ||
		!good(cudaMalloc((void **)&t->device, at), "cudaMalloc") ||
		!good(cudaHostAlloc((void **)&t->stage, STAGE * 2, cudaHostAllocDefault), "cudaHostAlloc") ||
		!good(cudaHostAlloc((void **)&t->is, compared_bytes(t), cudaHostAllocDefault), "cudaHostAlloc"))
		return false;
	if (q->work_bytes < sums) q->work = (float *)(t->device + own);
	return true;
}

static void memory_close(struct trial *t)
{
	if (t->event) cudaEventDestroy(t->event);
	cudaFree(t->device);
	if (t->stage) cudaFreeHost(t->stage);
	if (t->is) cudaFreeHost(t->is);
	free(t->kept);
	free(t->host_starts);
	cudaGetLastError(); /* what failed here fails nothing else */
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

static bool input(struct trial *t, size_t at, int64_t elems, uint64_t seed)
{
	for (int64_t i = 0, n; i < elems; i += n) {
		n = elems - i < STAGE ? elems - i : STAGE;
		randoms(t->stage, i, n, seed);
		if (!good(cudaMemcpyAsync(t->device + at + 2 * i, t->stage, (size_t)n * 2, cudaMemcpyHostToDevice,
					  t->q->stream),
				"cudaMemcpyAsync") ||
			!wait(t))
			return false;
	}
	return true;
}

/* The last row is one document, or packed: of two rows' three, a token, and two that have half a row's room; of a row
 * two, the second of which is in the class of whole rows. Few lengths, for each wants plans of its own, and a plan
 * takes up to a second. */
static bool starts_make(struct trial *t, bool packed)
{
	uint32_t *row = t->host_starts + (t->rows - 1) * t->seq;
	const int64_t half = t->seq / 2, at[] = {0, t->rows > 1 ? 1 : half - 1, t->rows > 1 ? half + 1 : t->seq};
	size_t document = 0;

	memset(t->host_starts, 0, (size_t)t->n * sizeof *t->host_starts);
	for (int64_t i = 0; packed && i < t->seq; i++) {
		while (document + 1 < sizeof at / sizeof *at && at[document + 1] <= i) document++;
		row[i] = (uint32_t)at[document];
	}
	/* a line of the stage at a time: it is pinned */
	for (int64_t i = 0, n; i < t->n; i += n) {
		n = t->n - i < STAGE / 2 ? t->n - i : STAGE / 2;
		memcpy(t->stage, t->host_starts + i, (size_t)n * sizeof *t->host_starts);
		if (!good(cudaMemcpyAsync(t->device + t->starts + 4 * i, t->stage, (size_t)n * 4, cudaMemcpyHostToDevice,
					  t->q->stream),
				"cudaMemcpyAsync") ||
			!wait(t))
			return false;
	}
	return true;
}

/* ---- what comes out ---- */

/* o and dqkv of the tokens that are compared, to t->is: runs of tokens from the first to the last, equally far apart */
static bool fetch(struct trial *t)
{
	const struct {
		size_t at;
		int64_t row;
		uint16_t *to;
	} parts[] = {
		{t->o, t->out, t->is},
		{t->dqkv, t->wide, t->is + t->m * t->out},
	};

	for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
		for (int64_t i = 0; i < t->runs; i++) {
			int64_t from = t->runs > 1 ? i * (t->n - t->run) / (t->runs - 1) : 0, row = parts[p].row;

			if (!good(cudaMemcpyAsync(parts[p].to + i * t->run * row, t->device + parts[p].at + from * row * 2,
						  (size_t)(t->run * row) * 2, cudaMemcpyDeviceToHost, t->q->stream),
					"cudaMemcpyAsync"))
				return false;
		}
	return wait(t);
}

/* Both ways */
static bool compute(struct trial *t, int64_t window, bool own)
{
	char *d = t->device;
	struct attention_args a = {.n = t->n,
		.seq = t->seq,
		.heads = t->heads,
		.kv_heads = t->kv_heads,
		.dim = t->dim,
		.window = window,
		.scale = 1.0f / sqrtf((float)t->dim),
		.starts = (const uint32_t *)(d + t->starts),
		.qkv = d + t->qkv,
		.o = d + t->o,
		.lse = (float *)(d + t->lse),
		.host_starts = t->host_starts,
		.work = d + t->scratch,
		.work_bytes = t->work};

	if (!good(cudaMemsetAsync(d + t->o, 0xff, t->end - t->o, t->q->stream), "cudaMemsetAsync")) return false;
	for (int backward = 0; backward < 2; backward++) {
		if (backward) {
			a.d_o = d + t->d_o;
			a.dqkv = d + t->dqkv;
		}
		if (!own) {
			if (engine_run(t->e, t->q, &a)) return false;
		} else if (backward) cuda_attention_backward(t->q, &a);
		else cuda_attention_forward(t->q, &a);
	}
	return good(cudaGetLastError(), "a kernel") && fetch(t);
}

static void keep(struct trial *t) { memcpy(t->kept, t->is, compared_bytes(t)); }
static bool same(const struct trial *t) { return !memcmp(t->kept, t->is, compared_bytes(t)); }

/* The largest difference of a token's elements [from, from + n) of `row` from those kept, as a part of their norm; NaNs
 * are the largest there is */
static double differs(const uint16_t *is, const uint16_t *kept, int64_t m, int64_t row, int64_t from, int64_t n)
{
	double mean = 0, worst = 0;

	for (int pass = 0; pass < 2; pass++)
		for (int64_t i = 0; i < m; i++) {
			double norm = 0, d = 0;

			for (int64_t j = i * row + from; j < i * row + from + n; j++) {
				double x = bf16_float(kept[j]), y = bf16_float(is[j]);
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

static int one(struct trial *t, int64_t window, bool packed)
{
	const int64_t k = t->heads * t->dim, v = k + t->kv_heads * t->dim, m = t->m;
	const char *how = packed ? window ? "packed, window" : "packed" : window ? "window" : "plain";

	if (!starts_make(t, packed) || !compute(t, window, true)) return -MT_EX_IO;
	keep(t);
	if (!compute(t, window, false)) return -MT_EX_IO;
	const uint16_t *is = t->is + m * t->out, *grad = t->kept + m * t->out;
	const struct {
		const char *name;
		double d;
	} parts[] = {
		{"output", differs(t->is, t->kept, m, t->out, 0, t->out)},
		{"dq", differs(is, grad, m, t->wide, 0, k)},
		{"dk", differs(is, grad, m, t->wide, k, v - k)},
		{"dv", differs(is, grad, m, t->wide, v, v - k)},
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (!(parts[i].d <= ROUNDING))
			return mt_fail(MT_EX_DATA, "%s: %s differs from our own kernels' by %.2g of a token's norm", how,
				parts[i].name, parts[i].d);
	keep(t);
	if (!compute(t, window, false)) return -MT_EX_IO;
	return same(t) ? 0 : mt_fail(MT_EX_DATA, "%s: other bits when run again", how);
}

static int trial(struct engine *e, const struct cuda_queue *queue, const struct mt_geometry *g, int64_t rows,
	int64_t seq, bool plain, int64_t window)
{
	struct cuda_queue q = *queue;
	struct trial t = {.e = e,
		.q = &q,
		.rows = rows,
		.seq = seq,
		.n = rows * seq,
		.heads = g->heads,
		.kv_heads = g->kv_heads,
		.dim = g->head_dim};
	struct attention_need need = engine_need(e, seq, true, true);
	int rc = 0;

	if (!need.rows)
		return mt_fail(MT_EX_CONFIG, "no deterministic way for %u and %u heads of %u", g->heads, g->kv_heads,
			g->head_dim);
	t.work = (size_t)(need.fixed + (uint64_t)rows * (need.row + need.table));
	t.out = t.heads * t.dim;
	t.wide = t.out + 2 * t.kv_heads * t.dim;
	t.runs = t.n > SAMPLES * SAMPLE ? SAMPLES : 1;
	t.run = t.runs > 1 ? SAMPLE : t.n;
	t.m = t.runs * t.run;
	if (!memory_open(&t, &q) || !input(&t, t.qkv, t.n * t.wide, 1) || !input(&t, t.d_o, t.n * t.out, 2))
		rc = -MT_EX_NOMEM;
	for (int packed = 0; !rc && packed < 1 + (rows > 1 || engine_packs(e, seq)); packed++) {
		if (plain) rc = one(&t, 0, packed);
		if (!rc && window) rc = one(&t, window, packed);
	}
	memory_close(&t);
	return rc;
}

/* The window of layers that have one, 0: none; *all: every layer has it */
static int64_t window_of(const struct mt_geometry *g, bool *all)
{
	int64_t window = 0;

	*all = true;
	for (uint32_t l = 0; l < g->layers; l++)
		if (g->window_layer[l]) window = g->window;
		else *all = false;
	return window;
}

int engine_trial(struct engine *e, const struct cuda_queue *q, const struct mt_geometry *g)
{
	bool all;
	int64_t window = window_of(g, &all);

	return trial(e, q, g, 2, SHORT, true, window < SHORT / 4 ? window : SHORT / 4);
}

int engine_trial_row(struct engine *e, const struct cuda_queue *q, const struct mt_geometry *g, int64_t seq)
{
	bool all;
	int64_t window = window_of(g, &all);

	return trial(e, q, g, 1, seq, !all || window >= seq, window < seq ? window : 0);
}
