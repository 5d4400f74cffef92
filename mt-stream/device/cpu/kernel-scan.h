/* kernel-scan.h: the selective scan of Mamba 1 (ops/scan.h), some channels of a row a task, VW of them at a time.
 *
 * Of VW channels, a block, vectors have one lane each, and arrays (S, VW). A span's tokens go through one block after
 * another, so that what they share is in the cache.
 */
#include "ops/scan.h"

struct scan_task {
	const struct scan_args *a;
	int64_t row, channel, blocks; /* the first token of the row, the task's first channel */
	float *rate, *h;              /* (blocks, S, VW): A; the state, backward then its gradient */
	/* backward, of a block and a span: the state before each token, and behind the last one; e^(dt A); dA_log */
	float *states, *decays, *da; /* (SCAN_SPAN + 1, S, VW) (SCAN_SPAN, S, VW) (S, VW) */
	float *sums;                 /* (SCAN_SPAN, 2 S, VW): dB, dC of all blocks */
	float *zeros;                /* (S, VW) */
};

/* Lay it out in `scratch`; returns its length in floats */
static int64_t scan_task_at(struct scan_task *w, const struct scan_args *a, int64_t row, int64_t group, float *scratch)
{
	int64_t width = least(SCAN_CHANNELS, a->channels - group * SCAN_CHANNELS), one = a->size * VW, total = 0;
	*w = (struct scan_task){.a = a, .row = row * a->seq, .channel = group * SCAN_CHANNELS, .blocks = div_up(width, VW)};
	const struct {
		float **at;
		int64_t n;
	} parts[] = {{&w->rate, w->blocks * one}, {&w->h, w->blocks * one}, {&w->states, (SCAN_SPAN + 1) * one},
		{&w->decays, SCAN_SPAN * one}, {&w->da, one}, {&w->sums, 2 * SCAN_SPAN * one}, {&w->zeros, one}};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		if (scratch) *parts[i].at = scratch + total;
		total += parts[i].n;
	}
	return total;
}

static size_t scan_scratch(const struct scan_args *a)
{
	struct scan_task w;
	return (size_t)scan_task_at(&w, a, 0, 0, NULL) * sizeof(float);
}

/* From the task's channel c on, lanes that are there */
INLINE int64_t scan_lanes_at(const struct scan_task *w, int64_t block)
{
	return least(VW, w->a->channels - w->channel - block * VW);
}

/* Before the first token: A, and the state, from `state` if there are tokens before */
static void scan_begin(const struct scan_task *w)
{
	const struct scan_args *a = w->a;
	for (int64_t i = 0; i < w->blocks * a->size * VW; i++) {
		int64_t channel = w->channel + i / VW / a->size * VW + i % VW, at = channel * a->size + i / VW % a->size;
		bool is = channel < a->channels;
		w->rate[i] = is ? -expf(((const float *)a->a_log)[at]) : 0;
		w->h[i] = is && a->past ? a->state[at] : 0;
	}
}

INLINE bool scan_starts(const struct scan_args *a, int64_t row, int64_t t)
{
	return a->starts[t] == (uint32_t)(t - row) && !(t == 0 && a->past);
}

struct scan_token {
	vf x, raw, dt;
};
INLINE struct scan_token scan_token_at(const struct scan_task *w, int64_t block, int64_t t)
{
	int64_t channel = w->channel + block * VW, at = t * w->a->channels + channel, n = scan_lanes_at(w, block);
	struct scan_token k = {.x = v_get((const float *)w->a->x + at, n)};
	k.raw = v_get((const float *)w->a->step + at, n) + v_get((const float *)w->a->dt_bias + channel, n);
	k.dt = v_softplus(k.raw);
	return k;
}

/* A block's tokens first .. end - 1 from the state in h on. With `keeps` their states and decays stay in w, else h
 * becomes the last state; with y, that is computed, too. */
INLINE void scan_tokens(const struct scan_task *w, int64_t block, int64_t first, int64_t end, int keeps, float *y)
{
	const struct scan_args *a = w->a;
	int64_t size = a->size, one = size * VW, n = scan_lanes_at(w, block), channel = w->channel + block * VW;
	const float *rate = w->rate + block * one;
	float *h = keeps ? w->states : w->h + block * one;
	for (int64_t t = first; t < end; t++) {
		const struct scan_token k = scan_token_at(w, block, t);
		const float *b = (const float *)a->b + t * a->ld, *c = (const float *)a->c + t * a->ld;
		const float *before = scan_starts(a, w->row, t) ? w->zeros : h;
		float *decay = w->decays + (t - first) * one;
		vf gained = k.dt * k.x, out = v_get((const float *)a->skip + channel, n) * k.x;
		if (keeps) h += one;
		for (int64_t j = 0; j < size; j++) {
			vf e = v_exp(k.dt * v_load(rate + j * VW));
			vf s = v_fma(e, v_load(before + j * VW), gained * v_set(b[j]));
			v_store(h + j * VW, s);
			if (keeps) v_store(decay + j * VW, e);
			if (y) out = v_fma(s, v_set(c[j]), out);
		}
		if (y) v_put(y + t * a->channels + channel, n, out);
	}
}

static void scan_forward(const struct scan_args *a, int64_t row, int64_t group, float *scratch)
{
	struct scan_task w;
	scan_task_at(&w, a, row, group, scratch);
	int64_t end = least(w.row + a->seq, a->n), one = a->size * VW;
	scan_begin(&w);
	memset(w.zeros, 0, (size_t)one * sizeof(float));
	for (int64_t t = w.row; t < end; t += SCAN_SPAN)
		for (int64_t block = 0; block < w.blocks; block++)
			scan_tokens(&w, block, t, least(t + SCAN_SPAN, end), 0, a->y);
	if (!a->state || end < a->n) return;
	for (int64_t i = 0; i < w.blocks * one; i++) {
		int64_t channel = w.channel + i / one * VW + i % VW;
		if (channel < a->channels) a->state[channel * a->size + i / VW % a->size] = w.h[i];
	}
}

/* ---- backward ---- */

/* to (n lanes) += x */
INLINE void scan_add(float *to, int64_t n, vf x) { v_put(to, n, v_get(to, n) + x); }

/* A block's tokens of a span, whose states w has, from the last to the first; rows: the row's sums of the block */
static void scan_tokens_back(const struct scan_task *w, int64_t block, int64_t first, int64_t end, float *rows)
{
	const struct scan_args *a = w->a;
	int64_t size = a->size, one = size * VW, n = scan_lanes_at(w, block), channel = w->channel + block * VW;
	const float *rate = w->rate + block * one;
	float *dh = w->h + block * one;
	vf skip = v_get((const float *)a->skip + channel, n), dbias = {0}, dskip = {0};
	memset(w->da, 0, (size_t)one * sizeof(float));
	for (int64_t t = end - 1; t >= first; t--) {
		const struct scan_token k = scan_token_at(w, block, t);
		const float *b = (const float *)a->b + t * a->ld, *c = (const float *)a->c + t * a->ld;
		const float *decay = w->decays + (t - first) * one, *before = w->states + (t - first) * one;
		const float *behind = before + one;
		float *db = w->sums + (t - first) * 2 * one, *dc = db + one;
		bool starts = scan_starts(a, w->row, t);
		vf gained = k.dt * k.x, dot = {0}, slope = {0};
		vf dy = v_get((const float *)a->dy + t * a->channels + channel, n);
		if (starts) before = w->zeros;
		for (int64_t j = 0; j < size; j++) {
			vf d = v_fma(dy, v_set(c[j]), v_load(dh + j * VW)), decayed = d * v_load(decay + j * VW);
			vf of_rate = decayed * v_load(before + j * VW) * v_load(rate + j * VW);
			v_store(db + j * VW, v_fma(gained, d, v_load(db + j * VW)));
			v_store(dc + j * VW, v_fma(dy, v_load(behind + j * VW), v_load(dc + j * VW)));
			dot = v_fma(d, v_set(b[j]), dot);
			slope += of_rate;
			v_store(w->da + j * VW, v_fma(of_rate, k.dt, v_load(w->da + j * VW)));
			v_store(dh + j * VW, starts ? (vf){0} : decayed);
		}
		vf dstep = v_fma(k.x, dot, slope) * v_sigmoid(k.raw);
		dbias += dstep;
		dskip = v_fma(k.x, dy, dskip);
		v_put((float *)a->dx + t * a->channels + channel, n, v_fma(k.dt, dot, skip * dy));
		v_put((float *)a->dstep + t * a->channels + channel, n, dstep);
	}
	for (int64_t j = 0; j < size; j++) scan_add(rows + j * a->channels, n, v_load(w->da + j * VW));
	scan_add(rows + size * a->channels, n, dbias);
	scan_add(rows + (size + 1) * a->channels, n, dskip);
}

/* Between a block's state and the one that backward keeps of a span: S rows of all channels */
static void scan_keep(const struct scan_task *w, int64_t block, float *kept, const float *h)
{
	for (int64_t j = 0; j < w->a->size; j++)
		v_put(kept + j * w->a->channels, scan_lanes_at(w, block), v_load(h + j * VW));
}
static void scan_kept(const struct scan_task *w, int64_t block, const float *kept, float *h)
{
	for (int64_t j = 0; j < w->a->size; j++)
		v_store(h + j * VW, v_get(kept + j * w->a->channels, scan_lanes_at(w, block)));
}

static void scan_backward(const struct scan_args *a, int64_t row, int64_t group, float *scratch)
{
	const struct scan_room room = scan_room_of(a, 0);
	struct scan_task w;
	scan_task_at(&w, a, row, group, scratch);
	int64_t end = least(w.row + a->seq, a->n), one = a->size * VW, all = a->size * a->channels;
	int64_t spans = div_up(end - w.row, SCAN_SPAN);
	float *kept = a->work + row * scan_spans(a) * all + w.channel;
	float *rows = a->work + room.rows + row * (a->size + 2) * a->channels + w.channel;
	float *groups = a->work + room.groups + group * a->n * 2 * a->size;
	scan_begin(&w);
	memset(w.zeros, 0, (size_t)one * sizeof(float));
	for (int64_t s = 0; s < spans; s++)
		for (int64_t block = 0; block < w.blocks; block++) {
			int64_t first = w.row + s * SCAN_SPAN;
			scan_keep(&w, block, kept + s * all + block * VW, w.h + block * one);
			if (s + 1 < spans) scan_tokens(&w, block, first, first + SCAN_SPAN, 0, NULL);
		}
	memset(w.h, 0, (size_t)(w.blocks * one) * sizeof(float));
	for (int64_t j = 0; j < a->size + 2; j++)
		memset(rows + j * a->channels, 0, (size_t)least(SCAN_CHANNELS, a->channels - w.channel) * sizeof(float));
	for (int64_t s = spans - 1; s >= 0; s--) {
		int64_t first = w.row + s * SCAN_SPAN, last = least(first + SCAN_SPAN, end);
		memset(w.sums, 0, (size_t)(2 * SCAN_SPAN * one) * sizeof(float));
		for (int64_t block = 0; block < w.blocks; block++) {
			scan_kept(&w, block, kept + s * all + block * VW, w.states);
			scan_tokens(&w, block, first, last, 1, NULL);
			scan_tokens_back(&w, block, first, last, rows + block * VW);
		}
		for (int64_t i = 0; i < (last - first) * 2 * a->size; i++)
			groups[first * 2 * a->size + i] = v_sum(v_load(w.sums + i * VW));
	}
}
