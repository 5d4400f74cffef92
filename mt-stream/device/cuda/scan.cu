/* scan.cu: the selective scan of Mamba 1 (ops/scan.h)
 *
 * scan_lanes() neighbouring threads have a channel, SCAN_MINE elements of its state each; a block has scan_group()
 * channels, whose states go through all tokens of a row in registers. Spans are staged in shared memory.
 * Backward first keeps the state before each span. Then it goes from the last span to the first: it computes the
 * states before its tokens again, and goes back over these. dB and dC are summed over a warp's channels, then a
 * block's, and by a kernel of their own over blocks; so are what rows give the gradients of weights. All is fp32 but
 * for the elements of tensors.
 */
#include "common.h"
#include "ops/scan.h"

#define FLUSH 8 /* tokens whose dB and dC are in shared memory, of each warp */

static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* What a thread computes: SCAN_MINE elements, from `first` on, of a channel's state, which LANES threads share; 0: as
 * many as the arguments say */
struct scan_place {
	int64_t row, end, group, channel;  /* tokens row .. end - 1; is the channel there? */
	int lanes, channels, first, there; /* channels: of the block */
	float rate[SCAN_MINE], skip;       /* A / ln 2 */
};

#define LOG2_E 1.44269504f
#define LN_2 0.69314718f

template <typename T, int LANES>
static __device__ __forceinline__ struct scan_place place_of(const struct scan_args *a)
{
	struct scan_place p;
	p.lanes = LANES ? LANES : (int)scan_lanes(a);
	p.channels = (int)SCAN_THREADS / p.lanes;
	int64_t groups = scan_groups(a, 1), row = blockIdx.x / groups;
	p.group = blockIdx.x % groups;
	p.row = row * a->seq;
	p.end = p.row + a->seq < a->n ? p.row + a->seq : a->n;
	p.channel = p.group * p.channels + threadIdx.x / p.lanes;
	p.there = p.channel < a->channels;
	p.first = (int)threadIdx.x % p.lanes * SCAN_MINE;
	p.skip = p.there ? get(((const T *)a->skip)[p.channel]) : 0;
#pragma unroll
	for (int k = 0; k < SCAN_MINE; k++) {
		int is = p.there && p.first + k < (int)a->size;
		p.rate[k] = is ? -LOG2_E * expf(get(((const T *)a->a_log)[p.channel * a->size + p.first + k])) : 0;
	}
	return p;
}

/* Elements of a token's B, and of its C, in shared memory: zeros behind the state's */
static __device__ __forceinline__ int width_of(const struct scan_place *p) { return p->lanes * SCAN_MINE; }

/* A span in shared memory: B | C (SCAN_SPAN, 2 width), and of the block's channels (SCAN_SPAN, channels) x and dt;
 * backward, too: sigmoid(step + dt_bias), dy */
struct scan_span {
	float *bc, *x, *dt, *slope, *dy;
	int tokens;
};
static __device__ __forceinline__ struct scan_span span_at(float *shared, const struct scan_place *p)
{
	int all = (int)SCAN_SPAN * p->channels;
	float *x = shared + (int)SCAN_SPAN * 2 * width_of(p);
	struct scan_span s = {shared, x, x + all, x + 2 * all, x + 3 * all, 0};
	return s;
}

/* Its tokens from `from` on */
template <typename T>
static __device__ __forceinline__ void stage(const struct scan_args *a, const struct scan_place *p, struct scan_span *s,
	int64_t from, int backward)
{
	int size = (int)a->size, width = width_of(p);
	s->tokens = p->end - from < (int64_t)SCAN_SPAN ? (int)(p->end - from) : (int)SCAN_SPAN;
	__syncthreads(); /* all have read what is there */
	for (int i = (int)threadIdx.x; i < s->tokens * 2 * width; i += (int)SCAN_THREADS) {
		int64_t row = (from + i / (2 * width)) * a->ld;
		int j = i % width;
		const T *of = (const T *)(i % (2 * width) < width ? a->b : a->c);
		s->bc[i] = j < size ? get(of[row + j]) : 0;
	}
	for (int i = (int)threadIdx.x; i < s->tokens * p->channels; i += (int)SCAN_THREADS) {
		int64_t c = p->group * p->channels + i % p->channels, at = (from + i / p->channels) * a->channels + c;
		int there = c < a->channels;
		float raw = there ? get(((const T *)a->step)[at]) + get(((const T *)a->dt_bias)[c]) : 0;
		s->x[i] = there ? get(((const T *)a->x)[at]) : 0;
		s->dt[i] = softplus(raw);
		if (!backward) continue;
		s->slope[i] = 1.0f / (1.0f + expf(-raw));
		s->dy[i] = there ? get(((const T *)a->dy)[at]) : 0;
	}
	__syncthreads();
}

static __device__ __forceinline__ int starts_at(const struct scan_args *a, const struct scan_place *p, int64_t t)
{
	return a->starts[t] == (uint32_t)(t - p->row);
}

/* h = the state behind token i of a span */
static __device__ __forceinline__ void advance(float h[SCAN_MINE], const struct scan_place *p,
	const struct scan_span *s, int i, int starts)
{
	int at = i * p->channels + (int)threadIdx.x / p->lanes;
	float b[SCAN_MINE], dt = s->dt[at], gained = dt * s->x[at];
	get4(b, s->bc + i * 2 * width_of(p) + p->first);
#pragma unroll
	for (int k = 0; k < SCAN_MINE; k++) h[k] = (starts ? 0 : exp2f(dt * p->rate[k]) * h[k]) + gained * b[k];
}

/* Forward; or, with `kept`, the states before spans (backward) */
template <typename T, int LANES>
static __global__ void __launch_bounds__(SCAN_THREADS) scan_forward_kernel(struct scan_args a, float *kept)
{
	DYNAMIC_SHARED(float, shared);
	struct scan_place p = place_of<T, LANES>(&a);
	struct scan_span s = span_at(shared, &p);
	float h[SCAN_MINE] = {0};
	int64_t state = (p.row / a.seq * scan_spans(&a) * a.size + p.first) * a.channels + p.channel;
	for (int64_t from = p.row; from < p.end; from += SCAN_SPAN, state += a.size * a.channels) {
#pragma unroll
		for (int k = 0; k < SCAN_MINE; k++)
			if (kept && p.there && p.first + k < (int)a.size) kept[state + k * a.channels] = h[k];
		stage<T>(&a, &p, &s, from, 0);
		for (int i = 0; i < s.tokens; i++) {
			advance(h, &p, &s, i, starts_at(&a, &p, from + i));
			if (kept) continue;
			float c[SCAN_MINE], y = 0;
			get4(c, s.bc + (i * 2 + 1) * width_of(&p) + p.first);
#pragma unroll
			for (int k = 0; k < SCAN_MINE; k++) y += c[k] * h[k];
			y = lanes_sum(y, p.lanes) + p.skip * s.x[i * p.channels + (int)threadIdx.x / p.lanes];
			if (p.there && p.first == 0) put((T *)a.y + (from + i) * a.channels + p.channel, y);
		}
	}
}

/* The sums over a warp's channels of v, dB of the lanes' elements and then dC, to a token's dB | dC: where a warp has 8
 * channels, each of these gets one of 8 sums */
template <int LANES>
static __device__ __forceinline__ void channels_sums(float v[2 * SCAN_MINE], float *to, const struct scan_place *p)
{
	int lane = (int)threadIdx.x % 32, width = width_of(p);
	to += p->first;
	if (LANES == 4) {
		int which = 0;
#pragma unroll
		for (int n = SCAN_MINE, l = 16; n; n /= 2, l /= 2) {
			int upper = lane & l;
			which += upper ? n : 0;
#pragma unroll
			for (int i = 0; i < n; i++) {
				float sent = upper ? v[i] : v[i + n], own = upper ? v[i + n] : v[i];
				v[i] = own + __shfl_xor_sync(FULL, sent, l);
			}
		}
		to[which / SCAN_MINE * width + which % SCAN_MINE] = v[0];
	} else {
#pragma unroll
		for (int i = 0; i < 2 * SCAN_MINE; i++) {
			for (int l = 16; l >= p->lanes; l /= 2) v[i] += __shfl_xor_sync(FULL, v[i], l);
			if (lane < p->lanes) to[i / SCAN_MINE * width + i % SCAN_MINE] = v[i];
		}
	}
}

template <typename T, int LANES>
static __global__ void __launch_bounds__(SCAN_THREADS) scan_backward_kernel(struct scan_args a)
{
	DYNAMIC_SHARED(float, shared); /* a span; of each warp (FLUSH, 2 width), dB | dC */
	struct scan_place p = place_of<T, LANES>(&a);
	struct scan_span s = span_at(shared, &p);
	struct scan_room room = scan_room_of(&a, 1);
	int size = (int)a.size, width = width_of(&p), mine = (int)threadIdx.x / p.lanes;
	float *sums = s.dy + (int)SCAN_SPAN * p.channels, *of_warp = sums + (int)threadIdx.x / 32 * FLUSH * 2 * width;
	float dh[SCAN_MINE] = {0}, da[SCAN_MINE] = {0}, dbias = 0, dskip = 0;
	int64_t row = p.row / a.seq, spans = (p.end - p.row + SCAN_SPAN - 1) / SCAN_SPAN;
	for (int64_t number = spans - 1; number >= 0; number--) {
		int64_t from = p.row + number * SCAN_SPAN;
		const float *kept = a.work + (row * scan_spans(&a) + number) * size * a.channels + p.channel;
		float before[SCAN_SPAN][SCAN_MINE], h[SCAN_MINE];
		float span_da[SCAN_MINE] = {0}, span_dbias = 0, span_dskip = 0;
		stage<T>(&a, &p, &s, from, 1);
#pragma unroll
		for (int k = 0; k < SCAN_MINE; k++) h[k] = p.there && p.first + k < size ? kept[(p.first + k) * a.channels] : 0;
#pragma unroll
		for (int i = 0; i < SCAN_SPAN; i++) {
#pragma unroll
			for (int k = 0; k < SCAN_MINE; k++) before[i][k] = h[k];
			if (i + 1 < s.tokens) advance(h, &p, &s, i, starts_at(&a, &p, from + i));
		}
#pragma unroll
		for (int i = SCAN_SPAN - 1; i >= 0; i--) {
			if (i < s.tokens) {
				int at = i * p.channels + mine, starts = starts_at(&a, &p, from + i);
				float x = s.x[at], dt = s.dt[at], dy = s.dy[at], gained = dt * x, dot = 0, slope = 0;
				float b[SCAN_MINE], c[SCAN_MINE], v[2 * SCAN_MINE];
				get4(b, s.bc + i * 2 * width + p.first);
				get4(c, s.bc + (i * 2 + 1) * width + p.first);
#pragma unroll
				for (int k = 0; k < SCAN_MINE; k++) {
					float e = exp2f(dt * p.rate[k]), d = dh[k] + dy * c[k];
					float was = starts ? 0 : e * before[i][k], of_rate = d * was * p.rate[k];
					v[k] = d * gained;
					v[SCAN_MINE + k] = dy * (was + gained * b[k]);
					dot += d * b[k];
					slope += of_rate;
					span_da[k] += of_rate * dt;
					dh[k] = starts ? 0 : e * d;
				}
				channels_sums<LANES>(v, of_warp + i % FLUSH * 2 * width, &p);
				dot = lanes_sum(dot, p.lanes);
				float dstep = (x * dot + LN_2 * lanes_sum(slope, p.lanes)) * s.slope[at];
				span_dbias += dstep;
				span_dskip += x * dy;
				if (p.there && p.first == 0) {
					put((T *)a.dx + (from + i) * a.channels + p.channel, dt * dot + p.skip * dy);
					put((T *)a.dstep + (from + i) * a.channels + p.channel, dstep);
				}
			}
			if (i % FLUSH || i >= s.tokens) continue;
			__syncthreads();
			int flushed = s.tokens - i < FLUSH ? s.tokens - i : FLUSH;
			float *groups = a.work + room.groups + (p.group * a.n + from + i) * 2 * size;
			for (int j = (int)threadIdx.x; j < flushed * 2 * size; j += (int)SCAN_THREADS) {
				const float *sum_at = sums + j / size * width + j % size;
				float sum = 0;
				for (int w = 0; w < (int)SCAN_THREADS / 32; w++) sum += sum_at[w * FLUSH * 2 * width];
				groups[j] = sum;
			}
			__syncthreads();
		}
#pragma unroll
		for (int k = 0; k < SCAN_MINE; k++) da[k] += span_da[k];
		dbias += span_dbias;
		dskip += span_dskip;
	}
	float *rows = a.work + room.rows + row * (size + 2) * a.channels + p.channel;
#pragma unroll
	for (int k = 0; k < SCAN_MINE; k++)
		if (p.there && p.first + k < size) rows[(p.first + k) * a.channels] = LN_2 * da[k];
	if (p.there && p.first == 0) {
		rows[size * a.channels] = dbias;
		rows[(size + 1) * a.channels] = dskip;
	}
}

/* An element of db or dc, from the sums over each group's channels */
template <typename T>
static __global__ void __launch_bounds__(THREADS) scan_shared_kernel(struct scan_args a)
{
	int64_t wide = 2 * a.size, i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / wide, j = i % wide;
	const float *from = a.work + scan_room_of(&a, 1).groups;
	float sum = 0;
	if (t >= a.n) return;
	for (int64_t g = 0; g < scan_groups(&a, 1); g++) sum += from[g * a.n * wide + i];
	put((T *)(j < a.size ? a.db : a.dc) + t * a.d_ld + j % a.size, sum);
}

/* An element of da_log, ddt_bias or dskip, from the sums over each row's tokens */
static __global__ void __launch_bounds__(THREADS) scan_own_kernel(struct scan_args a)
{
	int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, c = i % a.channels, j = i / a.channels;
	const float *from = a.work + scan_room_of(&a, 1).rows;
	if (j >= a.size + 2) return;
	float *to = j < a.size ? a.da_log + c * a.size + j : (j == a.size ? a.ddt_bias : a.dskip) + c;
	float sum = a.beta == 0 ? 0 : a.beta * *to;
	for (int64_t r = 0; r < scan_rows(&a); r++) sum += from[r * (a.size + 2) * a.channels + i];
	*to = sum;
}

/* Bytes of shared memory of a span with so many arrays of channels, and so many more rows of B | C */
static size_t span_bytes(const struct scan_args *a, int arrays, int more)
{
	size_t lanes = (size_t)scan_lanes(a), wide = 2 * lanes * SCAN_MINE;
	return ((SCAN_SPAN + (size_t)more) * wide + SCAN_SPAN * SCAN_THREADS / lanes * (size_t)arrays) * sizeof(float);
}

template <typename T, int LANES>
static void forward(const struct cuda_queue *q, const struct scan_args *a, float *kept)
{
	LAUNCH((scan_forward_kernel<T, LANES>), scan_rows(a) * scan_groups(a, 1), SCAN_THREADS, span_bytes(a, 2, 0),
		q->stream, *a, kept);
}

template <typename T, int LANES>
static void backward(const struct cuda_queue *q, const struct scan_args *a)
{
	forward<T, LANES>(q, a, a->work);
	LAUNCH((scan_backward_kernel<T, LANES>), scan_rows(a) * scan_groups(a, 1), SCAN_THREADS,
		span_bytes(a, 4, SCAN_THREADS / 32 * FLUSH), q->stream, *a);
	LAUNCH(scan_shared_kernel<T>, div_up(a->n * 2 * a->size, THREADS), THREADS, 0, q->stream, *a);
}

#define BY_LANES(a, call, ...) (scan_lanes(a) == 4 ? call<T, 4>(__VA_ARGS__) : call<T, 0>(__VA_ARGS__))

void cuda_scan_forward(const struct cuda_queue *q, const struct scan_args *a)
{
	BY_ELEMENT(q, BY_LANES(a, forward, q, a, NULL));
}

void cuda_scan_backward(const struct cuda_queue *q, const struct scan_args *a)
{
	BY_ELEMENT(q, BY_LANES(a, backward, q, a));
	LAUNCH(scan_own_kernel, div_up((a->size + 2) * a->channels, THREADS), THREADS, 0, q->stream, *a);
}

#define KERNELS(T) \
	(const void *)scan_forward_kernel<T, 4>, (const void *)scan_forward_kernel<T, 0>, \
		(const void *)scan_backward_kernel<T, 4>, (const void *)scan_backward_kernel<T, 0>

cudaError_t scan_prepare(void)
{
	const void *kernels[] = {KERNELS(float), KERNELS(struct bf16)};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
