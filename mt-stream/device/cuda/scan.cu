/* scan.cu: the selective scan of Mamba 1 (ops/scan.h)
 *
 * scan_lanes() neighbouring threads have a channel, SCAN_MINE elements of its state each; a block has scan_group()
 * channels, whose states go through all tokens of a row in registers. B and C of a span are staged in shared memory.
 * Backward first keeps the state before each span. Then it goes from the last span to the first: it computes the
 * states before its tokens again, and goes back over these. dB and dC are summed over a warp's channels, then a
 * block's, and by a kernel of their own over blocks; so are what rows give the gradients of weights. All is fp32 but
 * for the elements of tensors.
 */
#include "common.h"
#include "ops/scan.h"

#define FLUSH 8 /* tokens whose dB and dC are in shared memory, of each warp */

static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* What a thread computes */
struct scan_place {
	int64_t row, end, group, channel; /* tokens row .. end - 1 */
	int lanes, first, size, there;    /* elements `first` .. of the state, of `size`; is the channel there? */
	float rate[SCAN_MINE], bias, skip;
};

template <typename T>
static __device__ __forceinline__ struct scan_place place_of(const struct scan_args *a)
{
	struct scan_place p;
	p.lanes = (int)scan_lanes(a);
	int64_t groups = scan_groups(a, 1), row = blockIdx.x / groups;
	p.group = blockIdx.x % groups;
	p.row = row * a->seq;
	p.end = p.row + a->seq < a->n ? p.row + a->seq : a->n;
	p.channel = p.group * (SCAN_THREADS / p.lanes) + threadIdx.x / p.lanes;
	p.there = p.channel < a->channels;
	p.size = (int)a->size;
	p.first = threadIdx.x % p.lanes * SCAN_MINE;
	p.bias = p.there ? get(((const T *)a->dt_bias)[p.channel]) : 0;
	p.skip = p.there ? get(((const T *)a->skip)[p.channel]) : 0;
#pragma unroll
	for (int k = 0; k < SCAN_MINE; k++) {
		int is = p.there && p.first + k < p.size;
		p.rate[k] = is ? -expf(get(((const T *)a->a_log)[p.channel * p.size + p.first + k])) : 0;
	}
	return p;
}

static __device__ __forceinline__ int span_tokens(const struct scan_place *p, int64_t from)
{
	return p->end - from < (int64_t)SCAN_SPAN ? (int)(p->end - from) : (int)SCAN_SPAN;
}

/* B and C of tokens from `first` on, `tokens` of them, to shared (SCAN_SPAN, 2 S) */
template <typename T>
static __device__ __forceinline__ void stage(const struct scan_args *a, float *shared, int64_t first, int tokens)
{
	int size = (int)a->size;
	__syncthreads(); /* all have read what is there */
	for (int i = (int)threadIdx.x; i < tokens * 2 * size; i += (int)SCAN_THREADS) {
		int64_t row = (first + i / (2 * size)) * a->ld;
		int j = i % (2 * size);
		shared[i] = get(j < size ? ((const T *)a->b)[row + j] : ((const T *)a->c)[row + j - size]);
	}
	__syncthreads();
}

/* This thread's elements of a token's B or C; zeros where there are none */
static __device__ __forceinline__ void mine(float v[SCAN_MINE], const float *shared, const struct scan_place *p)
{
#pragma unroll
	for (int k = 0; k < SCAN_MINE; k++) v[k] = p->first + k < p->size ? shared[p->first + k] : 0;
}

struct scan_token {
	float x, raw, dt;
	int starts;
};
template <typename T>
static __device__ __forceinline__ struct scan_token token_at(const struct scan_args *a, const struct scan_place *p,
	int64_t t)
{
	struct scan_token k;
	int64_t at = t * a->channels + p->channel;
	k.x = p->there ? get(((const T *)a->x)[at]) : 0;
	k.raw = (p->there ? get(((const T *)a->step)[at]) : 0) + p->bias;
	k.dt = softplus(k.raw);
	k.starts = a->starts[t] == (uint32_t)(t - p->row);
	return k;
}

/* h = the state behind a token */
static __device__ __forceinline__ void advance(float h[SCAN_MINE], const struct scan_place *p,
	const struct scan_token *k, const float b[SCAN_MINE])
{
#pragma unroll
	for (int i = 0; i < SCAN_MINE; i++) h[i] = (k->starts ? 0 : expf(k->dt * p->rate[i]) * h[i]) + k->dt * k->x * b[i];
}

/* Forward; or, with `kept`, the states before spans (backward) */
template <typename T>
static __global__ void __launch_bounds__(SCAN_THREADS) scan_forward_kernel(struct scan_args a, float *kept)
{
	DYNAMIC_SHARED(float, shared); /* (SCAN_SPAN, 2 S) */
	struct scan_place p = place_of<T>(&a);
	float h[SCAN_MINE] = {0};
	int64_t state = (p.row / a.seq * scan_spans(&a) * p.size + p.first) * a.channels + p.channel;
	for (int64_t from = p.row; from < p.end; from += SCAN_SPAN, state += p.size * a.channels) {
		int tokens = span_tokens(&p, from);
#pragma unroll
		for (int k = 0; k < SCAN_MINE; k++)
			if (kept && p.there && p.first + k < p.size) kept[state + k * a.channels] = h[k];
		stage<T>(&a, shared, from, tokens);
		for (int i = 0; i < tokens; i++) {
			struct scan_token k = token_at<T>(&a, &p, from + i);
			float b[SCAN_MINE], c[SCAN_MINE], y = 0;
			mine(b, shared + i * 2 * p.size, &p);
			advance(h, &p, &k, b);
			if (kept) continue;
			mine(c, shared + i * 2 * p.size + p.size, &p);
#pragma unroll
			for (int j = 0; j < SCAN_MINE; j++) y += c[j] * h[j];
			y = lanes_sum(y, p.lanes) + p.skip * k.x;
			if (p.there && p.first == 0) put((T *)a.y + (from + i) * a.channels + p.channel, y);
		}
	}
}

/* The sum over the channels of a warp, in its first one's lanes */
static __device__ __forceinline__ float channels_sum(float x, int lanes)
{
	for (int l = 16; l >= lanes; l /= 2) x += __shfl_xor_sync(FULL, x, l);
	return x;
}

template <typename T>
static __global__ void __launch_bounds__(SCAN_THREADS) scan_backward_kernel(struct scan_args a)
{
	DYNAMIC_SHARED(float, shared); /* (SCAN_SPAN, 2 S); of each warp (FLUSH, 2 S) */
	struct scan_place p = place_of<T>(&a);
	struct scan_room room = scan_room_of(&a, 1);
	int wide = 2 * p.size, warp = (int)threadIdx.x / 32;
	float *sums = shared + SCAN_SPAN * wide;
	float dh[SCAN_MINE] = {0}, da[SCAN_MINE] = {0}, dbias = 0, dskip = 0;
	int64_t row = p.row / a.seq, spans = (p.end - p.row + SCAN_SPAN - 1) / SCAN_SPAN;
	for (int64_t s = spans - 1; s >= 0; s--) {
		int64_t from = p.row + s * SCAN_SPAN;
		int tokens = span_tokens(&p, from);
		const float *kept = a.work + (row * scan_spans(&a) + s) * p.size * a.channels + p.channel;
		float before[SCAN_SPAN][SCAN_MINE], h[SCAN_MINE], b[SCAN_MINE], c[SCAN_MINE];
		float span_da[SCAN_MINE] = {0}, span_dbias = 0, span_dskip = 0;
		stage<T>(&a, shared, from, tokens);
#pragma unroll
		for (int k = 0; k < SCAN_MINE; k++)
			h[k] = p.there && p.first + k < p.size ? kept[(p.first + k) * a.channels] : 0;
#pragma unroll
		for (int i = 0; i < SCAN_SPAN; i++) {
#pragma unroll
			for (int k = 0; k < SCAN_MINE; k++) before[i][k] = h[k];
			if (i + 1 >= tokens) continue;
			struct scan_token k = token_at<T>(&a, &p, from + i);
			mine(b, shared + i * wide, &p);
			advance(h, &p, &k, b);
		}
#pragma unroll
		for (int i = SCAN_SPAN - 1; i >= 0; i--) {
			if (i < tokens) {
				int64_t at = (from + i) * a.channels + p.channel;
				struct scan_token k = token_at<T>(&a, &p, from + i);
				float dy = p.there ? get(((const T *)a.dy)[at]) : 0, dot = 0, slope = 0;
				float *to = sums + (warp * FLUSH + i % FLUSH) * wide + p.first;
				mine(b, shared + i * wide, &p);
				mine(c, shared + i * wide + p.size, &p);
#pragma unroll
				for (int j = 0; j < SCAN_MINE; j++) {
					float gained = k.dt * k.x, e = expf(k.dt * p.rate[j]), was = k.starts ? 0 : before[i][j];
					float d = dh[j] + dy * c[j], of_rate = d * e * was * p.rate[j];
					float db = channels_sum(d * gained, p.lanes);
					float dc = channels_sum(dy * (e * was + gained * b[j]), p.lanes);
					if ((int)threadIdx.x % 32 < p.lanes && p.first + j < p.size) {
						to[j] = db;
						to[p.size + j] = dc;
					}
					dot += d * b[j];
					slope += of_rate;
					span_da[j] += of_rate * k.dt;
					dh[j] = k.starts ? 0 : e * d;
				}
				dot = lanes_sum(dot, p.lanes);
				float dstep = (k.x * dot + lanes_sum(slope, p.lanes)) / (1.0f + expf(-k.raw));
				span_dbias += dstep;
				span_dskip += k.x * dy;
				if (p.there && p.first == 0) {
					put((T *)a.dx + at, k.dt * dot + p.skip * dy);
					put((T *)a.dstep + at, dstep);
				}
			}
			if (i % FLUSH || i >= tokens) continue;
			__syncthreads();
			int flushed = tokens - i < FLUSH ? tokens - i : FLUSH;
			float *groups = a.work + room.groups + (p.group * a.n + from + i) * wide;
			for (int j = (int)threadIdx.x; j < flushed * wide; j += (int)SCAN_THREADS) {
				float sum = 0;
				for (int w = 0; w < SCAN_THREADS / 32; w++) sum += sums[w * FLUSH * wide + j];
				groups[j] = sum;
			}
			__syncthreads();
		}
#pragma unroll
		for (int k = 0; k < SCAN_MINE; k++) da[k] += span_da[k];
		dbias += span_dbias;
		dskip += span_dskip;
	}
	float *rows = a.work + room.rows + row * (p.size + 2) * a.channels + p.channel;
#pragma unroll
	for (int k = 0; k < SCAN_MINE; k++)
		if (p.there && p.first + k < p.size) rows[(p.first + k) * a.channels] = da[k];
	if (p.there && p.first == 0) {
		rows[p.size * a.channels] = dbias;
		rows[(p.size + 1) * a.channels] = dskip;
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

void cuda_scan_forward(const struct cuda_queue *q, const struct scan_args *a)
{
	size_t shared = SCAN_SPAN * 2 * (size_t)a->size * sizeof(float);
	BY_ELEMENT(q,
		LAUNCH(scan_forward_kernel<T>, scan_rows(a) * scan_groups(a, 1), SCAN_THREADS, shared, q->stream, *a,
			(float *)NULL));
}

void cuda_scan_backward(const struct cuda_queue *q, const struct scan_args *a)
{
	size_t wide = 2 * (size_t)a->size * sizeof(float), shared = (SCAN_SPAN + SCAN_THREADS / 32 * FLUSH) * wide;
	int64_t blocks = scan_rows(a) * scan_groups(a, 1);
	BY_ELEMENT(q, LAUNCH(scan_forward_kernel<T>, blocks, SCAN_THREADS, SCAN_SPAN * wide, q->stream, *a, a->work);
			   LAUNCH(scan_backward_kernel<T>, blocks, SCAN_THREADS, shared, q->stream, *a);
			   LAUNCH(scan_shared_kernel<T>, div_up(a->n * 2 * a->size, THREADS), THREADS, 0, q->stream, *a));
	LAUNCH(scan_own_kernel, div_up((a->size + 2) * a->channels, THREADS), THREADS, 0, q->stream, *a);
}

cudaError_t scan_prepare(void)
{
	const void *kernels[] = {(const void *)scan_backward_kernel<float>,
		(const void *)scan_backward_kernel<struct bf16>};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
