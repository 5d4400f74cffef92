/* conv.cu: a short causal convolution, silu, and the norm of q and k heads
 *
 * A few neighbouring lanes compute a head, or as many other channels, WIDE channels each, for some tokens one after
 * another: the last tokens' x, and backward their gradients of u, stay in registers. Before a document's first token x
 * counts as zeros. */
#include "common.h"
#include "ops/conv.h"

#define BLOCK 128
#define W 4    /* the most taps */
#define RUN 32 /* tokens of a lane, at least */
#define NORM_EPS 1e-6f

/* A lane's channels: from `first` on, of which n are there; head: -1: neither q nor k */
struct channels {
	int64_t first, n, head;
};

/* Groups of channels: heads of `dim` by `lanes` lanes each, then parts of lanes * WIDE channels */
struct channel_groups {
	int64_t heads, dim, groups;
	int lanes, wide;
};

static struct channel_groups groups_of(const struct conv_args *a, const void *second, int64_t second_ld)
{
	struct channel_groups s = {a->q_heads + a->k_heads, a->dim, 0, 32, 0};
	int64_t normed = s.heads * s.dim;
	if (s.heads) s.lanes = lanes_of(s.dim);
	s.groups = s.heads + div_up(a->channels - normed, s.lanes * WIDE);
	s.wide = wide_rows(a->channels | a->ld | second_ld | (s.heads ? s.dim : 0), a->x, second, a->before, a->after);
	return s;
}

static __device__ __forceinline__ struct channels channels_of(const struct channel_groups *s, int64_t channels,
	int64_t group, int lane)
{
	struct channels c = {group * s->dim + lane * WIDE, s->dim - lane * WIDE, group};
	if (group < s->heads) return c;
	c.first = s->heads * s->dim + ((group - s->heads) * s->lanes + lane) * WIDE;
	c.n = channels - c.first;
	c.head = -1;
	return c;
}

/* Of the channels: w (W taps, the first W - width are zeros), bias */
template <typename T>
struct taps {
	float w[W][WIDE], bias[WIDE];
};

template <typename T>
static __device__ __forceinline__ void taps_get(struct taps<T> *p, const struct conv_args *a, struct channels c)
{
#pragma unroll
	for (int i = 0; i < WIDE; i++) {
		int64_t at = c.first + i;
		p->bias[i] = a->bias && i < c.n ? get(((const T *)a->bias)[at]) : 0;
#pragma unroll
		for (int j = 0; j < W; j++) {
			int64_t tap = j - (W - a->width);
			p->w[j][i] = tap >= 0 && i < c.n ? get(((const T *)a->w)[at * a->width + tap]) : 0;
		}
	}
}

/* Tokens of its document before token t, which is the place-th of its row */
static __device__ __forceinline__ int tokens_before(const struct conv_args *a, int64_t t, int place)
{
	return place - (int)a->starts[t];
}

/* The place of the next token; a division for each token would cost more than its convolution */
static __device__ __forceinline__ int next_place(const struct conv_args *a, int place)
{
	return place + 1 == a->seq ? 0 : place + 1;
}

/* What counts as token t's x */
template <typename T>
static __device__ __forceinline__ void x_get(float x[WIDE], const struct conv_args *a, struct channels c, int64_t t,
	int wide)
{
	float factor[WIDE];
	get_wide(x, (const T *)a->x + t * a->ld + c.first, c.n, wide);
	if (!a->before) return;
	get_wide(factor, (const T *)a->before + t * a->ld + c.first, c.n, wide);
#pragma unroll
	for (int i = 0; i < WIDE; i++) x[i] *= factor[i];
}

/* x's last W tokens up to t, after those up to t - 1 */
template <typename T>
static __device__ __forceinline__ void history_next(float x[W][WIDE], const struct conv_args *a, struct channels c,
	int64_t t, int before, int wide)
{
#pragma unroll
	for (int j = 0; j + 1 < W; j++)
#pragma unroll
		for (int i = 0; i < WIDE; i++) x[j][i] = before == 0 ? 0 : x[j + 1][i];
	x_get<T>(x[W - 1], a, c, t, wide);
}

/* Those up to first - 1 */
template <typename T>
static __device__ __forceinline__ void history_begin(float x[W][WIDE], const struct conv_args *a, struct channels c,
	int64_t first, int place, int wide)
{
	int before = tokens_before(a, first, place);
#pragma unroll
	for (int j = 0; j < W; j++) {
		int back = W - j; /* from `first` */
#pragma unroll
		for (int i = 0; i < WIDE; i++) x[j][i] = 0;
		if (back <= before && back < W) x_get<T>(x[j], a, c, first - back, wide);
	}
}

/* y = f(u), slope = f'(u) */
template <typename T>
static __device__ __forceinline__ void conv_act(float y[WIDE], float slope[WIDE], const struct taps<T> *p,
	float x[W][WIDE], int silu)
{
#pragma unroll
	for (int i = 0; i < WIDE; i++) {
		float u = p->bias[i];
#pragma unroll
		for (int j = 0; j < W; j++) u += p->w[j][i] * x[j][i];
		float denominator = 1.0f + expf(-u), s = 1.0f / denominator;
		y[i] = silu ? u / denominator : u;
		slope[i] = silu ? s * (1.0f + u * (1.0f - s)) : 1.0f;
	}
}

static __device__ __forceinline__ float q_scale(const struct conv_args *a, int64_t head)
{
	return head < a->q_heads && !a->unnormed ? 1.0f / sqrtf((float)a->dim) : 1.0f;
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK) conv_forward_kernel(struct conv_args a, struct channel_groups s)
{
	int64_t item = (int64_t)blockIdx.x * (BLOCK / s.lanes) + threadIdx.x / s.lanes, group = item % s.groups;
	int64_t first = item / s.groups * RUN, end = first + RUN < a.n ? first + RUN : a.n;
	struct channels c = channels_of(&s, a.channels, group, threadIdx.x % s.lanes);
	struct taps<T> p;
	float x[W][WIDE], y[WIDE], slope[WIDE], after[WIDE];

	if (first >= a.n) c.n = 0;
	int there = c.n > 0, place = (int)(first % a.seq);
	if (there) {
		taps_get(&p, &a, c);
		history_begin<T>(x, &a, c, first, place, s.wide);
	}
	/* all lanes of a warp, for its sums */
	for (int64_t t = first; t < first + RUN; t++, place = next_place(&a, place)) {
		float sum = 0;
		int now = there && t < end;
		if (now) {
			history_next<T>(x, &a, c, t, tokens_before(&a, t, place), s.wide);
			conv_act(y, slope, &p, x, a.silu);
#pragma unroll
			for (int i = 0; i < WIDE; i++) sum += i < c.n ? y[i] * y[i] : 0;
		}
		sum = lanes_sum(sum, s.lanes);
		if (!now) continue;
		float r = c.head < 0 || a.unnormed ? 1.0f : 1.0f / sqrtf(sum + NORM_EPS) * q_scale(&a, c.head);
#pragma unroll
		for (int i = 0; i < WIDE; i++) y[i] *= r;
		if (a.after) {
			get_wide(after, (const T *)a.after + t * a.ld + c.first, c.n, s.wide);
#pragma unroll
			for (int i = 0; i < WIDE; i++) y[i] *= after[i];
		}
		put_wide((T *)a.y + t * a.channels + c.first, y, c.n, s.wide);
	}
}

/* The gradient of y (as f leaves it) of token t: of a q or k head from the sum of its value heads' */
template <typename T>
static __device__ __forceinline__ void y_gradient(float d[WIDE], const float y[WIDE], const struct conv_args *a,
	const struct channel_groups *s, struct channels c, int64_t t, int there)
{
	float sum = 0, dot = 0, v[WIDE];
	if (there && c.head < 0) {
		int64_t normed = s->heads * s->dim;
		get_wide(d, (const T *)a->dv + t * (a->channels - normed) + c.first - normed, c.n, s->wide);
	}
	if (there && c.head >= 0) {
		int64_t share = a->value_heads / a->k_heads, at = t * a->value_heads + c.head % a->k_heads * share;
		const T *from = (const T *)(c.head < a->q_heads ? a->dq : a->dk) + at * a->dim + (a->dim - c.n);
		float scale = q_scale(a, c.head);
		get_wide(d, from, c.n, s->wide);
		for (int64_t k = 1; k < share; k++) {
			get_wide(v, from + k * a->dim, c.n, s->wide);
#pragma unroll
			for (int i = 0; i < WIDE; i++) d[i] += v[i];
		}
#pragma unroll
		for (int i = 0; i < WIDE; i++) {
			d[i] *= scale;
			sum += i < c.n ? y[i] * y[i] : 0;
			dot += i < c.n ? y[i] * d[i] : 0;
		}
	}
	sum = lanes_sum(sum, s->lanes);
	dot = lanes_sum(dot, s->lanes);
	float r = 1.0f / sqrtf(sum + NORM_EPS);
#pragma unroll
	for (int i = 0; i < WIDE; i++)
		if (there && c.head >= 0 && !a->unnormed) d[i] = r * (d[i] - y[i] * r * (dot * r));
}

/* d, the gradient of y times its factor, becomes that of y; own: write that of the factor */
template <typename T>
static __device__ __forceinline__ void after_gradient(float d[WIDE], const float y[WIDE], const struct conv_args *a,
	struct channels c, int64_t t, int own, int wide)
{
	float after[WIDE], gradient[WIDE];
	get_wide(after, (const T *)a->after + t * a->ld + c.first, c.n, wide);
#pragma unroll
	for (int i = 0; i < WIDE; i++) {
		gradient[i] = d[i] * y[i];
		d[i] *= after[i];
	}
	if (own) put_wide((T *)a->dafter + t * a->dx_ld + c.first, gradient, c.n, wide);
}

/* d, the gradient of what counts as x, becomes that of x; that of its factor is written */
template <typename T>
static __device__ __forceinline__ void before_gradient(float d[WIDE], const struct conv_args *a, struct channels c,
	int64_t t, int wide)
{
	float x[WIDE], before[WIDE];
	get_wide(x, (const T *)a->x + t * a->ld + c.first, c.n, wide);
	get_wide(before, (const T *)a->before + t * a->ld + c.first, c.n, wide);
#pragma unroll
	for (int i = 0; i < WIDE; i++) {
		x[i] *= d[i];
		d[i] *= before[i];
	}
	put_wide((T *)a->dbefore + t * a->dx_ld + c.first, x, c.n, wide);
}

/* `rows` tokens a part; their dx needs the gradients of u of the next W - 1 tokens, too.
 * partial (parts, channels (width + 1)): dw, then dbias */
template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	conv_backward_kernel(struct conv_args a, struct channel_groups s, float *partial, int64_t rows)
{
	int64_t item = (int64_t)blockIdx.x * (BLOCK / s.lanes) + threadIdx.x / s.lanes, group = item % s.groups;
	int64_t part = item / s.groups, first = part * rows, end = first + rows < a.n ? first + rows : a.n;
	struct channels c = channels_of(&s, a.channels, group, threadIdx.x % s.lanes);
	struct taps<T> p;
	float x[W][WIDE], du[W][WIDE] = {{0}}, dw[W][WIDE] = {{0}}, dbias[WIDE] = {0}, y[WIDE], slope[WIDE], d[WIDE];
	int before[W] = {0};

	if (first >= a.n) c.n = 0;
	int there = c.n > 0, place = (int)(first % a.seq);
	if (there) {
		taps_get(&p, &a, c);
		history_begin<T>(x, &a, c, first, place, s.wide);
	}
	for (int64_t t = first; t < first + rows + W - 1; t++, place = next_place(&a, place)) {
		int now = there && t < a.n ? tokens_before(&a, t, place) : -1;
		int used = now >= 0 && (t < end || now > t - end);
#pragma unroll
		for (int j = 0; j + 1 < W; j++) {
			before[j] = before[j + 1];
#pragma unroll
			for (int i = 0; i < WIDE; i++) du[j][i] = du[j + 1][i];
		}
		before[W - 1] = now;
		if (used) {
			history_next<T>(x, &a, c, t, now, s.wide);
			conv_act(y, slope, &p, x, a.silu);
		}
		y_gradient<T>(d, y, &a, &s, c, t, used);
		if (used && a.after) after_gradient<T>(d, y, &a, c, t, t < end, s.wide);
#pragma unroll
		for (int i = 0; i < WIDE; i++) du[W - 1][i] = used ? d[i] * slope[i] : 0;
		if (!there) continue;
		if (t < end) {
#pragma unroll
			for (int i = 0; i < WIDE; i++) {
				dbias[i] += du[W - 1][i];
#pragma unroll
				for (int j = 0; j < W; j++) dw[j][i] += x[j][i] * du[W - 1][i];
			}
		}
		int64_t to = t - (W - 1);
		if (to < first || to >= end) continue;
#pragma unroll
		for (int i = 0; i < WIDE; i++) d[i] = 0;
#pragma unroll
		for (int back = 0; back < W; back++)
			if (before[back] >= back) {
#pragma unroll
				for (int i = 0; i < WIDE; i++) d[i] += p.w[W - 1 - back][i] * du[back][i];
			}
		if (a.before) before_gradient<T>(d, &a, c, to, s.wide);
		put_wide((T *)a.dx + to * a.dx_ld + c.first, d, c.n, s.wide);
	}
	if (!there) return;
	partial += part * a.channels * (a.width + 1);
#pragma unroll
	for (int i = 0; i < WIDE; i++) {
		if (i >= c.n) continue;
		partial[a.channels * a.width + c.first + i] = dbias[i];
#pragma unroll
		for (int j = 0; j < W; j++)
			if (j >= W - a.width) partial[(c.first + i) * a.width + j - (W - a.width)] = dw[j][i];
	}
}

template <typename T>
static void forward(const struct cuda_queue *q, const struct conv_args a)
{
	struct channel_groups s = groups_of(&a, a.y, 0);
	LAUNCH(conv_forward_kernel<T>, div_up(div_up(a.n, RUN) * s.groups, BLOCK / s.lanes), BLOCK, 0, q->stream, a, s);
}

template <typename T>
static void backward(const struct cuda_queue *q, const struct conv_args a)
{
	int64_t width = a.channels * (a.width + 1), parts = partial_blocks(div_up(a.n, RUN), width);
	int64_t rows = div_up(a.n, parts);
	struct channel_groups s = groups_of(&a, a.dx, a.dx_ld);
	s.wide = s.wide && wide_rows(WIDE, a.dq, a.dk, a.dv, NULL) && wide_rows(WIDE, a.dbefore, a.dafter, NULL, NULL);
	parts = div_up(a.n, rows);
	LAUNCH(conv_backward_kernel<T>, div_up(parts * s.groups, BLOCK / s.lanes), BLOCK, 0, q->stream, a, s, q->work,
		rows);
	cuda_sum_partials(q, a.dw, a.beta, q->work, parts, width, a.channels * a.width);
	if (a.bias) cuda_sum_partials(q, a.dbias, a.beta, q->work + a.channels * a.width, parts, width, a.channels);
}

void cuda_conv_forward(const struct cuda_queue *q, const struct conv_args *a) { BY_ELEMENT(q, forward<T>(q, *a)); }
void cuda_conv_backward(const struct cuda_queue *q, const struct conv_args *a) { BY_ELEMENT(q, backward<T>(q, *a)); }
