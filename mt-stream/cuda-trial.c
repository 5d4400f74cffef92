/* cuda-trial.c: attention by a library, tried beside our own kernels before a run relies on it: two rows, one of several
 * documents, on the run's heads; forward and backward, with the model's window and without. A token's output may differ by
 * what rounding to bf16 does and no more; run again, it must be the same bit for bit.
 */
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "cuda-engine.h"

#ifdef MT_EMU
#define SEQ 96
#else
#define SEQ 256
#endif
#define ROWS 2
#define N (ROWS * SEQ)
#define ROUNDING 0.03           /* of a token's norm, or of the mean token's where it is larger */

struct trial {
	struct engine *e;
	const struct cuda_queue *q;
	int64_t heads, kv_heads, dim, wide, out;        /* elements of a token's qkv and o */
	cudaEvent_t event;
	char *device, *host;            /* the same layout in both */
	size_t qkv, o, d_o, dqkv, lse, starts, scratch, sums, bytes;    /* offsets in them; of what the host has too */
	uint16_t *kept;                 /* o and dqkv of another run */
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
	if (e != cudaSuccess)
		mt_fail(MT_EX_IO, "%s: %s", what, cudaGetErrorName(e));
	return e == cudaSuccess;
}

static bool wait(struct trial *t)
{
	return good(cudaEventRecord(t->event, t->q->stream), "cudaEventRecord") &&
		good(cudaEventSynchronize(t->event), "cudaEventSynchronize");
}

static bool memory_open(struct trial *t, uint64_t work)
{
	size_t at = 0;

	t->qkv = room(&at, (size_t)(N * t->wide) * 2);
	t->d_o = room(&at, (size_t)(N * t->out) * 2);
	t->starts = room(&at, N * sizeof(uint32_t));
	t->o = room(&at, (size_t)(N * t->out) * 2);
	t->dqkv = room(&at, (size_t)(N * t->wide) * 2);
	t->lse = room(&at, (size_t)(N * t->heads) * sizeof(float));
	t->bytes = at;
	t->scratch = room(&at, (size_t)work);
	t->sums = room(&at, cuda_work_bytes(N, t->heads));
	t->kept = malloc((size_t)(N * (t->wide + t->out)) * 2);
	if (!t->kept)
		return mt_fail(MT_EX_NOMEM, "no memory"), false;
	return good(cudaEventCreateWithFlags(&t->event, cudaEventDisableTiming), "cudaEventCreate") &&
		good(cudaMalloc((void **)&t->device, at), "cudaMalloc") &&
		good(cudaHostAlloc((void **)&t->host, t->bytes, cudaHostAllocDefault), "cudaHostAlloc");
}

static void memory_close(struct trial *t)
{
	if (t->event)
		cudaEventDestroy(t->event);
	cudaFree(t->device);
	if (t->host)
		cudaFreeHost(t->host);
	free(t->kept);
}

/* ---- what goes in ---- */

static uint16_t narrow(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float widen(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

/* uniform in -1.7 .. 1.7: of variance 1 */
static void randoms(uint16_t *to, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t z = seed += 0x9e3779b97f4a7c15u;       /* splitmix64 */

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		to[i] = narrow((float)((z ^ z >> 31) >> 40) / (1 << 23) * 1.732f - 1.732f);
	}
}

/* The first row is one document; the second one too, or three: a token, and two that have half a row's room. Few lengths,
 * for each wants plans of its own, and a plan takes up to a second. */
static void starts_make(uint32_t *starts, bool packed)
{
	static const int at[] = {0, 1, SEQ / 2 + 1};
	size_t document = 0;

	memset(starts, 0, N * sizeof *starts);
	for (int t = 0; packed && t < SEQ; t++) {
		while (document + 1 < sizeof at / sizeof *at && at[document + 1] <= t)
			document++;
		starts[SEQ + t] = (uint32_t)at[document];
	}
}

static bool inputs(struct trial *t, bool packed)
{
	randoms((uint16_t *)(t->host + t->qkv), N * t->wide, 1);
	randoms((uint16_t *)(t->host + t->d_o), N * t->out, 2);
	starts_make((uint32_t *)(t->host + t->starts), packed);
	return good(cudaMemcpyAsync(t->device, t->host, t->o, cudaMemcpyHostToDevice, t->q->stream), "cudaMemcpyAsync") && wait(t);
}

/* ---- what comes out ---- */

static struct cuda_attention attention(const struct trial *t, int64_t window)
{
	return (struct cuda_attention){.n = N, .seq = SEQ, .heads = t->heads, .kv_heads = t->kv_heads, .dim = t->dim,
		.window = window, .scale = 1.0f / sqrtf((float)t->dim), .starts = (const uint32_t *)(t->device + t->starts)};
}

/* Both ways, then o and dqkv in t->host */
static bool compute(struct trial *t, int64_t window, bool own, size_t work)
{
	struct cuda_attention a = attention(t, window);
	char *d = t->device;
	struct engine_call c = {.a = a, .host_starts = (const uint32_t *)(t->host + t->starts), .qkv = d + t->qkv,
		.o = d + t->o, .lse = (float *)(d + t->lse), .work = d + t->scratch, .bytes = work};

	if (!good(cudaMemsetAsync(d + t->o, 0xff, t->bytes - t->o, t->q->stream), "cudaMemsetAsync"))
		return false;
	if (own) {
		cuda_attention_forward(t->q, &a, c.o, c.lse, c.qkv);
		cuda_attention_backward(t->q, &a, d + t->dqkv, d + t->d_o, c.o, c.lse, c.qkv);
	} else {
		if (engine_run(t->e, t->q, &c))
			return false;
		c.d_o = d + t->d_o;
		c.dqkv = d + t->dqkv;
		if (engine_run(t->e, t->q, &c))
			return false;
	}
	return good(cudaGetLastError(), "a kernel") &&
		good(cudaMemcpyAsync(t->host + t->o, d + t->o, t->lse - t->o, cudaMemcpyDeviceToHost, t->q->stream),
			"cudaMemcpyAsync") && wait(t);
}

static const uint16_t *o_of(const struct trial *t) { return (const uint16_t *)(t->host + t->o); }
static const uint16_t *dqkv_of(const struct trial *t) { return (const uint16_t *)(t->host + t->dqkv); }

static void keep(struct trial *t)
{
	memcpy(t->kept, o_of(t), (size_t)(N * t->out) * 2);
	memcpy(t->kept + N * t->out, dqkv_of(t), (size_t)(N * t->wide) * 2);
}

static bool same(const struct trial *t)
{
	return !memcmp(t->kept, o_of(t), (size_t)(N * t->out) * 2) &&
		!memcmp(t->kept + N * t->out, dqkv_of(t), (size_t)(N * t->wide) * 2);
}

/* The largest difference of a token's elements [from, from + n) of `row` from those kept, as a part of their norm; NaNs
 * are the largest there is */
static double differs(const uint16_t *is, const uint16_t *kept, int64_t row, int64_t from, int64_t n)
{
	double mean = 0, worst = 0;

	for (int pass = 0; pass < 2; pass++)
		for (int64_t i = 0; i < N; i++) {
			double norm = 0, d = 0;

			for (int64_t j = i * row + from; j < i * row + from + n; j++) {
				double x = widen(kept[j]), y = widen(is[j]);
				norm += x * x;
				d += (x - y) * (x - y);
			}
			if (!pass) {
				mean += sqrt(norm) / N;
				continue;
			}
			double part = sqrt(d) / (sqrt(norm) > mean ? sqrt(norm) : mean);
			if (!(part <= worst))
				worst = isnan(part) ? INFINITY : part;
		}
	return worst;
}

static int one(struct trial *t, int64_t window, bool packed, size_t work)
{
	const int64_t k = t->heads * t->dim, v = k + t->kv_heads * t->dim;
	const char *how = packed ? window ? "packed, window" : "packed" : window ? "window" : "plain";

	if (!inputs(t, packed) || !compute(t, window, true, work))
		return -MT_EX_IO;
	keep(t);
	if (!compute(t, window, false, work))
		return -MT_EX_IO;
	const uint16_t *grad = t->kept + N * t->out;
	const struct { const char *name; double d; } parts[] = {
		{ "output", differs(o_of(t), t->kept, t->out, 0, t->out) }, { "dq", differs(dqkv_of(t), grad, t->wide, 0, k) },
		{ "dk", differs(dqkv_of(t), grad, t->wide, k, v - k) }, { "dv", differs(dqkv_of(t), grad, t->wide, v, v - k) },
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (!(parts[i].d <= ROUNDING))
			return mt_fail(MT_EX_DATA, "%s: %s differs from our own kernels' by %.2g of a token's norm", how,
				parts[i].name, parts[i].d);
	keep(t);
	if (!compute(t, window, false, work))
		return -MT_EX_IO;
	return same(t) ? 0 : mt_fail(MT_EX_DATA, "%s: other bits when run again", how);
}

static int64_t window_of(const struct mt_geometry *g)
{
	for (uint32_t l = 0; l < g->layers; l++)
		if (g->window_layer[l])
			return g->window < SEQ / 4 ? g->window : SEQ / 4;
	return 0;
}

int engine_trial(struct engine *e, const struct cuda_queue *queue, const struct mt_geometry *g)
{
	struct cuda_queue q = *queue;
	struct trial t = {.e = e, .q = &q, .heads = g->heads, .kv_heads = g->kv_heads, .dim = g->head_dim};
	struct attention_need need = engine_need(e, SEQ, true, true);
	uint64_t work = need.fixed + ROWS * need.row;
	int64_t window = window_of(g);
	int rc = 0;

	t.out = t.heads * t.dim;
	t.wide = t.out + 2 * t.kv_heads * t.dim;
	if (!need.rows)
		return mt_fail(MT_EX_CONFIG, "no deterministic way for %u and %u heads of %u", g->heads, g->kv_heads, g->head_dim);
	if (!memory_open(&t, work))
		rc = -MT_EX_NOMEM;
	q.work = (float *)(t.device + t.sums);
	for (int packed = 0; !rc && packed < 2; packed++)
		for (int windowed = 0; !rc && windowed <= (window > 0); windowed++)
			rc = one(&t, windowed ? window : 0, packed, work);
	memory_close(&t);
	return rc;
}
