/* sdpa.cc: an attention backend for the emulated GPU, with cuDNN's calls and cuDNN's ways: statistics (batch, NH,
 * seq) or (N, NH), work memory that it fills with garbage, none of a neighbour's tokens. It computes each token by
 * itself.
 *
 * MT_EMU_SDPA=WORDS says what it is like; unset, there is none.
 *     linear, square      work memory by tokens, or also by tokens squared
 *     whole               takes no documents
 *     small               takes no heads of more than 8 elements
 *     wrong, fickle       sees a token too many, gives other bits each time
 *     breaks, crashes     every later wait for the device fails; the process dies
 *     2                   another version
 * and of rows of more than FAULTY tokens, where indices would pass 2^31:
 *     far-forward, far-backward, far-head     wrong numbers that way; backward, in the last head alone
 *     far-refusal                             does not run
 *     far-breaks, far-crashes                 as above, on these rows alone
 * MT_EMU_SDPA_LOG=FILE: a line for each call is added to it: forward or backward, sequences, tokens, query heads,
 * key-value heads, bytes of work memory
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "../../../mt-stream/device/cuda/sdpa.h"

#define FAULTY 98

struct plan {
	struct sdpa_shape shape;
	size_t bytes;
};

static bool is(const char *word) { return strstr(getenv("MT_EMU_SDPA"), word) != NULL; }

static bool far_is(const struct sdpa_shape &s, const char *word) { return s.seq > FAULTY && is(word); }

/* breaks and crashes, of all rows or of long ones alone */
static bool fault_is(const struct sdpa_shape &s, const char *word, const char *far_word)
{
	return is(far_word) ? s.seq > FAULTY : is(word);
}

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

/* One sequence, of the call's heads: first elements of q, k and v, and of their gradients; its tokens */
struct sequence {
	const uint16_t *q, *k, *v;
	uint16_t *o;
	float *lse;
	const uint16_t *d_o;
	uint16_t *dq, *dk, *dv;
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
	for (int64_t i = 0; i < dim; i++) sum += widen(a[i]) * widen(b[i]);
	return sum;
}

static void head_forward(const struct sdpa_shape &s, const struct sequence &q, int64_t h, int64_t t)
{
	int64_t wide = sdpa_row(&s), kv = h / (s.heads / s.kv_heads), first = first_seen(s, t);
	const uint16_t *k = q.k + kv * s.dim, *v = q.v + kv * s.dim_v;
	std::vector<float> p(t + 1 - first), out(s.dim_v);
	float top = -INFINITY, sum = 0;

	for (int64_t j = first; j <= t; j++) {
		p[j - first] = s.scale * product(q.q + t * wide + h * s.dim, k + j * wide, s.dim);
		top = fmaxf(top, p[j - first]);
	}
	for (float &x : p) sum += x = expf(x - top);
	for (int64_t j = first; j <= t; j++)
		for (int64_t i = 0; i < s.dim_v; i++) out[i] += p[j - first] * widen(v[j * wide + i]);
	for (int64_t i = 0; i < s.dim_v; i++)
		q.o[t * sdpa_out(&s) + h * s.dim_v + i] = narrow(
			out[i] / sum * (far_is(s, "far-forward") && t > FAULTY ? 2 : 1));
	q.lse[t * q.lse_token + h * q.lse_head] = top + logf(sum);
}

/* The gradients of a key-value head and of its queries */
static void group_backward(const struct sdpa_shape &s, const struct sequence &q, int64_t kv)
{
	int64_t wide = sdpa_row(&s), group = s.heads / s.kv_heads, row = sdpa_out(&s);
	bool wrong = far_is(s, "far-backward") || (far_is(s, "far-head") && kv == s.kv_heads - 1);
	std::vector<float> dk(q.n * s.dim), dv(q.n * s.dim_v), dq(s.dim);

	for (int64_t h = kv * group; h < (kv + 1) * group; h++)
		for (int64_t t = 0; t < q.n; t++) {
			const uint16_t *query = q.q + t * wide + h * s.dim, *d = q.d_o + t * row + h * s.dim_v;
			float delta = product(d, q.o + t * row + h * s.dim_v, s.dim_v);
			for (float &x : dq) x = 0;
			for (int64_t j = first_seen(s, t); j <= t; j++) {
				const uint16_t *k = q.k + j * wide + kv * s.dim, *v = q.v + j * wide + kv * s.dim_v;
				float p = expf(s.scale * product(query, k, s.dim) - q.lse[t * q.lse_token + h * q.lse_head]);
				float ds = p * (product(d, v, s.dim_v) - delta) * s.scale;
				for (int64_t i = 0; i < s.dim; i++) {
					dq[i] += ds * widen(k[i]);
					dk[j * s.dim + i] += ds * widen(query[i]);
				}
				for (int64_t i = 0; i < s.dim_v; i++) dv[j * s.dim_v + i] += p * widen(d[i]);
			}
			for (int64_t i = 0; i < s.dim; i++) q.dq[t * wide + h * s.dim + i] = narrow(dq[i]);
		}
	for (int64_t j = 0; j < q.n; j++) {
		for (int64_t i = 0; i < s.dim; i++)
			q.dk[j * wide + kv * s.dim + i] = narrow(dk[j * s.dim + i] + (wrong && j > FAULTY ? 1 : 0));
		for (int64_t i = 0; i < s.dim_v; i++) q.dv[j * wide + kv * s.dim_v + i] = narrow(dv[j * s.dim_v + i]);
	}
}

static void sequence_run(const struct sdpa_shape &s, const struct sequence &q)
{
	if (s.backward) {
		for (int64_t kv = 0; kv < s.kv_heads; kv++) group_backward(s, q, kv);
		return;
	}
	for (int64_t h = 0; h < s.heads; h++)
		for (int64_t t = 0; t < q.n; t++) head_forward(s, q, h, t);
}

static struct sequence sequence_of(const struct sdpa_shape &s, const struct sdpa_args &a, int64_t b)
{
	int64_t q = s.ragged ? a.qkv_at[b] : b * s.seq * sdpa_row(&s), o = s.ragged ? a.o_at[b] : b * s.seq * sdpa_out(&s);
	int64_t k = q + s.heads * s.dim, v = k + s.kv_heads * s.dim;
	int64_t lse = s.ragged ? a.lse_at[b] : b * s.heads * s.seq;
	const uint16_t *in = (const uint16_t *)a.qkv, *d_o = (const uint16_t *)a.d_o;
	uint16_t *to = (uint16_t *)a.dqkv;
	return (struct sequence){in + q, in + k, in + v, (uint16_t *)a.o + o, a.lse + lse, d_o ? d_o + o : NULL,
		to ? to + q : NULL, to ? to + k : NULL, to ? to + v : NULL, s.ragged ? a.lengths[b] : s.seq,
		s.ragged ? s.heads : 1, s.ragged ? 1 : s.seq};
}

static void check(bool holds, const char *what)
{
	if (holds) return;
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
		check(a.qkv_at[b] == a.lse_at[b] / s.heads * sdpa_row(&s) && a.o_at[b] == a.lse_at[b] / s.heads * sdpa_out(&s),
			"tables that differ");
	}
}

static void call(struct plan p, struct sdpa_args a)
{
	static unsigned calls;
	if (threadIdx.x || blockIdx.x) return;
	memset(a.work, 0x5a, p.bytes);
	table_check(p.shape, a);
	for (int64_t b = 0; b < p.shape.batch; b++) sequence_run(p.shape, sequence_of(p.shape, a, b));
	if (is("fickle") && !p.shape.backward && calls++ & 1) ((uint16_t *)a.o)[0] ^= 1;
}

static void *emu_plan(struct sdpa *sdpa, const struct sdpa_shape *s, size_t *bytes)
{
	int64_t square = s->backward && is("square") ? s->seq * s->seq : 0;
	const char *refused = s->ragged && is("whole") ? "no documents" : s->dim > 8 && is("small") ? "large heads" : NULL;
	if (refused) {
		snprintf(sdpa->why, sizeof sdpa->why, "%s", refused);
		return NULL;
	}
	*bytes = s->backward ? (size_t)(s->batch * s->heads * (square * 2 + s->seq * (4 * (s->dim + s->dim_v) + 4))) : 256;
	return new plan{*s, *bytes};
}

static void emu_plan_release(struct sdpa *, void *plan) { delete (struct plan *)plan; }

static void log_call(const struct plan &p)
{
	const char *path = getenv("MT_EMU_SDPA_LOG");
	FILE *f = path ? fopen(path, "a") : NULL;
	if (!f) return;
	fprintf(f, "%s %d %d %d %d %zu\n", p.shape.backward ? "backward" : "forward", (int)p.shape.batch, (int)p.shape.seq,
		(int)p.shape.heads, (int)p.shape.kv_heads, p.bytes);
	fclose(f);
}

static int emu_run(struct sdpa *sdpa, void *plan, cudaStream_t stream, const struct sdpa_args *a)
{
	struct plan p = *(struct plan *)plan;
	struct sdpa_args args = *a;
	if (far_is(p.shape, "far-refusal")) {
		snprintf(sdpa->why, sizeof sdpa->why, "refused");
		return -1;
	}
	if (fault_is(p.shape, "crashes", "far-crashes")) abort();
	if (fault_is(p.shape, "breaks", "far-breaks")) emu_broken = true;
	log_call(p);
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
	snprintf(s->name, sizeof s->name, "emulated backend %d", is(",2") ? 2 : 1);
	s->plan = emu_plan;
	s->plan_release = emu_plan_release;
	s->run = emu_run;
	s->close = emu_close;
	return s;
}
