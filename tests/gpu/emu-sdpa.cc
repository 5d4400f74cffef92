/* emu-sdpa.cc: an engine of attention for the emulated GPU, with cuDNN's calls and cuDNN's ways: statistics (batch, NH, seq)
 * or (N, NH), work memory that it fills with rubbish, none of a neighbour's tokens. It computes each token by itself.
 *
 * MT_EMU_SDPA=WORDS says what it is like; unset, there is none.
 *     linear, square      work memory by tokens, or also by tokens squared
 *     whole               takes no documents
 *     wrong, fickle       sees a token too many, gives other bits each time
 *     2                   another version
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "../../mt-stream/cuda-cudnn.h"

struct plan { struct sdpa_shape shape; size_t bytes; };

static bool is(const char *word) { return strstr(getenv("MT_EMU_SDPA"), word) != NULL; }

static float widen(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float f;

	memcpy(&f, &bits, sizeof f);
	return f;
}

static uint16_t narrow(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof bits);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* One sequence: its first elements, its tokens */
struct sequence {
	const uint16_t *qkv; uint16_t *o; float *lse;
	const uint16_t *d_o; uint16_t *dqkv;
	int64_t n, lse_token, lse_head;
};

static int64_t first_seen(const struct sdpa_shape &s, int64_t t)
{
	int64_t first = s.window && t >= s.window ? t - s.window + 1 : 0;

	return is("wrong") && first ? first - 1 : first;
}

static float product(const uint16_t *a, const uint16_t *b, int64_t dim)
{
	float sum = 0;

	for (int64_t i = 0; i < dim; i++)
		sum += widen(a[i]) * widen(b[i]);
	return sum;
}

static void head_forward(const struct sdpa_shape &s, const struct sequence &q, int64_t h, int64_t t)
{
	int64_t wide = (s.heads + 2 * s.kv_heads) * s.dim, kv = h / (s.heads / s.kv_heads), first = first_seen(s, t);
	const uint16_t *k = q.qkv + (s.heads + kv) * s.dim, *v = k + s.kv_heads * s.dim;
	std::vector<float> p(t + 1 - first), out(s.dim);
	float top = -INFINITY, sum = 0;

	for (int64_t j = first; j <= t; j++) {
		p[j - first] = s.scale * product(q.qkv + t * wide + h * s.dim, k + j * wide, s.dim);
		top = fmaxf(top, p[j - first]);
	}
	for (float &x : p)
		sum += x = expf(x - top);
	for (int64_t j = first; j <= t; j++)
		for (int64_t i = 0; i < s.dim; i++)
			out[i] += p[j - first] * widen(v[j * wide + i]);
	for (int64_t i = 0; i < s.dim; i++)
		q.o[(t * s.heads + h) * s.dim + i] = narrow(out[i] / sum);
	q.lse[t * q.lse_token + h * q.lse_head] = top + logf(sum);
}

/* The gradients of a key-value head and of its queries */
static void group_backward(const struct sdpa_shape &s, const struct sequence &q, int64_t kv)
{
	int64_t wide = (s.heads + 2 * s.kv_heads) * s.dim, group = s.heads / s.kv_heads, row = s.heads * s.dim;
	int64_t to_k = (s.heads + kv) * s.dim, to_v = to_k + s.kv_heads * s.dim;
	std::vector<float> dk(q.n * s.dim), dv(q.n * s.dim), dq(s.dim);

	for (int64_t h = kv * group; h < (kv + 1) * group; h++)
		for (int64_t t = 0; t < q.n; t++) {
			const uint16_t *query = q.qkv + t * wide + h * s.dim, *d = q.d_o + t * row + h * s.dim;
			float delta = product(d, q.o + t * row + h * s.dim, s.dim);

			for (float &x : dq)
				x = 0;
			for (int64_t j = first_seen(s, t); j <= t; j++) {
				const uint16_t *k = q.qkv + j * wide + to_k, *v = q.qkv + j * wide + to_v;
				float p = expf(s.scale * product(query, k, s.dim) - q.lse[t * q.lse_token + h * q.lse_head]);
				float ds = p * (product(d, v, s.dim) - delta) * s.scale;

				for (int64_t i = 0; i < s.dim; i++) {
					dq[i] += ds * widen(k[i]);
					dk[j * s.dim + i] += ds * widen(query[i]);
					dv[j * s.dim + i] += p * widen(d[i]);
				}
			}
			for (int64_t i = 0; i < s.dim; i++)
				q.dqkv[t * wide + h * s.dim + i] = narrow(dq[i]);
		}
	for (int64_t j = 0; j < q.n; j++)
		for (int64_t i = 0; i < s.dim; i++) {
			q.dqkv[j * wide + to_k + i] = narrow(dk[j * s.dim + i]);
			q.dqkv[j * wide + to_v + i] = narrow(dv[j * s.dim + i]);
		}
}

static void sequence_run(const struct sdpa_shape &s, const struct sequence &q)
{
	if (s.backward) {
		for (int64_t kv = 0; kv < s.kv_heads; kv++)
			group_backward(s, q, kv);
		return;
	}
	for (int64_t h = 0; h < s.heads; h++)
		for (int64_t t = 0; t < q.n; t++)
			head_forward(s, q, h, t);
}

static struct sequence sequence_of(const struct sdpa_shape &s, const struct sdpa_args &a, int64_t b)
{
	int64_t wide = (s.heads + 2 * s.kv_heads) * s.dim, row = s.heads * s.dim;
	int64_t qkv = s.ragged ? a.qkv_at[b] : b * s.seq * wide, o = s.ragged ? a.o_at[b] : b * s.seq * row;
	int64_t lse = s.ragged ? a.lse_at[b] : b * s.heads * s.seq;

	return (struct sequence){(const uint16_t *)a.qkv + qkv, (uint16_t *)a.o + o, a.lse + lse,
		(const uint16_t *)a.d_o + (a.d_o ? o : 0), (uint16_t *)a.dqkv + (a.dqkv ? qkv : 0), s.ragged ? a.lengths[b] : s.seq,
		s.ragged ? s.heads : 1, s.ragged ? 1 : s.seq};
}

static void check(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "emu: attention: %s\n", what);
	abort();
}

/* What cuDNN may count on */
static void table_check(const struct sdpa_shape &s, const struct sdpa_args &a)
{
	for (int64_t b = 0; s.ragged && b < s.batch; b++) {
		int64_t tokens = (a.lse_at[b + 1] - a.lse_at[b]) / s.heads;

		check(a.lengths[b] >= 0 && a.lengths[b] <= s.seq, "a document longer than the plan's");
		check(a.lengths[b] <= tokens, "documents that overlap");
		check(a.qkv_at[b] == a.lse_at[b] * (s.heads + 2 * s.kv_heads) / s.heads * s.dim && a.o_at[b] == a.lse_at[b] * s.dim,
			"tables that differ");
	}
}

static void call(struct plan p, struct sdpa_args a)
{
	static unsigned calls;

	if (threadIdx.x || blockIdx.x)
		return;
	memset(a.work, 0x5a, p.bytes);
	table_check(p.shape, a);
	for (int64_t b = 0; b < p.shape.batch; b++)
		sequence_run(p.shape, sequence_of(p.shape, a, b));
	if (is("fickle") && !p.shape.backward && calls++ & 1)
		((uint16_t *)a.o)[0] ^= 1;
}

static void *emu_plan(struct sdpa *sdpa, const struct sdpa_shape *s, size_t *bytes)
{
	int64_t square = s->backward && is("square") ? s->seq * s->seq : 0;

	if (s->ragged && is("whole")) {
		snprintf(sdpa->why, sizeof sdpa->why, "no documents");
		return NULL;
	}
	*bytes = s->backward ? (size_t)(s->batch * s->heads * (square * 2 + s->seq * (8 * s->dim + 4))) : 256;
	return new plan{*s, *bytes};
}

static void emu_plan_release(struct sdpa *, void *plan) { delete (struct plan *)plan; }

static int emu_run(struct sdpa *, void *plan, cudaStream_t stream, const struct sdpa_args *a)
{
	struct plan p = *(struct plan *)plan;
	struct sdpa_args args = *a;

	LAUNCH(call, 1, 32, 0, stream, p, args);
	return 0;
}

static void emu_close(struct sdpa *sdpa) { delete sdpa; }

extern "C" struct sdpa *cudnn_open(int, int, int, char *why)
{
	if (!getenv("MT_EMU_SDPA")) {
		*why = 0;
		return NULL;
	}
	struct sdpa *s = new struct sdpa();
	snprintf(s->name, sizeof s->name, "emulated engine %d", is("2") ? 2 : 1);
	s->plan = emu_plan;
	s->plan_release = emu_plan_release;
	s->run = emu_run;
	s->close = emu_close;
	return s;
}
