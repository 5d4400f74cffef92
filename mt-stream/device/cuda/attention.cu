/* attention.cu: causal attention inside documents, with windows and grouped queries, in tiles
 *
 * Token t of a row sees tokens [first(t), t], where first(t) is the start of its document or of its window, whichever
 * is later. first(t) never decreases within a row. So a tile of queries sees a range of keys, and a tile of keys is
 * seen by a range of queries; no (seq, seq) matrix is needed. Each block owns the results that it writes:
 *     forward              one tile of queries of one head
 *     backward, dK and dV  one tile of keys of one key-value head; adds its group's heads and queries in their order
 *     backward, dQ         one tile of queries of one head
 *
 * A sink is where a head's softmax starts: its highest score so far is the sink, and the sum is its exp(0) = 1.
 *
 * These kernels use plain multiplications, for fp32 and for heads that the tensor cores do not take. attention-mma.cu
 * uses the tensor cores.
 */
#include "attention.h"
#include "grouped.h"

#define BLOCK 128 /* threads */

/* TILE queries and keys: fewer for large heads, so that every target has the shared memory */
#define TILE_OF(a) ((a)->dim <= 256 && (a)->dim_v <= 256 ? 16 : 8)

/* Pitch of a loaded tile's rows in shared memory: odd, so that the same column of all TILE rows is in different banks.
 * Threads read single floats of rows, so rows need no alignment. */
#define PITCH(dim) ((dim) | 1)

/* The same of forward's scores. Threads read 4 scores at once, of a row each or all of the same row: rows start at 16
 * bytes, and 8 rows that are read together in different banks. */
#define SCORES (TILE + 4)

/* Load `rows` rows of one head into shared memory as fp32 (TILE, PITCH(dim)); the other rows become zeros */
template <int TILE, typename T>
static __device__ __forceinline__ void tile_load(float *to, const T *from, int64_t stride, int64_t rows, int dim)
{
	for (int i = threadIdx.x; i < TILE * dim; i += BLOCK)
		to[i / dim * PITCH(dim) + i % dim] = i / dim < rows ? get(from[i / dim * stride + i % dim]) : 0;
}

/* s (TILE, TILE), rows `pitch` apart, += ALiBi's bias of queries from t0 on for keys from k0 on, if there is one. A
 * thread reads what it wrote itself. */
template <int TILE>
static __device__ __forceinline__ void tile_bias(float *s, int pitch, const struct attention_args *a, int64_t row,
	int64_t t0, int64_t queries, int64_t k0, int64_t head)
{
	if (a->alibi.max == 0) return;
	struct bias bias = bias_of(&a->alibi, head, 1);
	for (int e = threadIdx.x; e < TILE * TILE; e += BLOCK) {
		int64_t t = t0 + e / TILE, start = row + (e / TILE < queries ? a->starts[t] : 0);
		s[e / TILE * pitch + e % TILE] += bias_at(&bias, t - start, k0 + e % TILE - start);
	}
}

/* s (TILE, TILE), rows `pitch` apart, = scale a b' over dim, capped unless cap is 0 */
template <int TILE>
static __device__ __forceinline__ void tile_product(float *s, int pitch, const float *a, const float *b, int dim,
	float scale, float cap)
{
	for (int e = threadIdx.x; e < TILE * TILE; e += BLOCK) {
		const float *x = a + e / TILE * PITCH(dim), *y = b + e % TILE * PITCH(dim);
		float sum = 0;
		for (int i = 0; i < dim; i++) sum += x[i] * y[i];
		sum *= scale;
		s[e / TILE * pitch + e % TILE] = cap != 0 ? cap * tanhf(sum / cap) : sum;
	}
}

template <typename T, int TILE>
static __global__ void __launch_bounds__(BLOCK)
	attention_forward_plain(struct attention_args a, T *o, float *lse, const T *qkv, int64_t tiles)
{
	DYNAMIC_SHARED(float, shared);
	int dim = (int)a.dim, dim_v = (int)attention_dim_v(&a);
	int64_t wide = attention_row(&a), tile = TILE * PITCH(dim), to_v = (a.heads + a.kv_heads) * dim;
	float *q = shared, *k = q + tile, *v = k + tile, *out = v + TILE * PITCH(dim_v), *s = out + TILE * dim_v;
	float *high = s + TILE * SCORES, *sum = high + TILE, *shrink = sum + TILE;
	struct where at = block_where(&a, a.heads, tiles);
	int64_t t0 = at.row + at.tile * TILE, end = at.row + a.seq, queries = end - t0 < TILE ? end - t0 : TILE;
	int64_t kv = at.head / (a.heads / a.kv_heads);

	tile_load<TILE>(q, qkv + t0 * wide + at.head * dim, wide, queries, dim);
	for (int i = threadIdx.x; i < TILE * dim_v; i += BLOCK) out[i] = 0;
	for (int i = threadIdx.x; i < TILE; i += BLOCK) {
		high[i] = a.sinks ? get(((const T *)a.sinks)[at.head]) : -INFINITY;
		sum[i] = a.sinks ? 1 : 0;
	}
	for (int64_t k0 = first_key(&a, at.row, t0); k0 < t0 + queries; k0 += TILE) {
		int64_t keys = t0 + queries - k0 < TILE ? t0 + queries - k0 : TILE;
		tile_load<TILE>(k, qkv + k0 * wide + (a.heads + kv) * dim, wide, keys, dim);
		tile_load<TILE>(v, qkv + k0 * wide + to_v + kv * dim_v, wide, keys, dim_v);
		__syncthreads();
		tile_product<TILE>(s, SCORES, q, k, dim, a.scale, a.cap);
		tile_bias<TILE>(s, SCORES, &a, at.row, t0, queries, k0, at.head);
		__syncthreads();
		for (int i = threadIdx.x; i < queries; i += BLOCK) {
			int64_t first = first_key(&a, at.row, t0 + i);
			float top = high[i], total = 0;
			for (int j = 0; j < TILE; j++) {
				if (k0 + j < first || k0 + j > t0 + i) s[i * SCORES + j] = -INFINITY;
				top = s[i * SCORES + j] > top ? s[i * SCORES + j] : top;
			}
			float base = top == -INFINITY ? 0 : top; /* nothing seen yet */
			for (int j = 0; j < TILE; j++) total += s[i * SCORES + j] = expf(s[i * SCORES + j] - base);
			shrink[i] = expf(high[i] - base);
			sum[i] = sum[i] * shrink[i] + total;
			high[i] = top;
		}
		__syncthreads();
		for (int e = threadIdx.x; e < queries * dim_v; e += BLOCK) {
			int i = e / dim_v;
			float x = out[e] * shrink[i];
			for (int j = 0; j < keys; j++) x += s[i * SCORES + j] * v[j * PITCH(dim_v) + e % dim_v];
			out[e] = x;
		}
		__syncthreads();
	}
	for (int e = threadIdx.x; e < queries * dim_v; e += BLOCK)
		put(o + ((t0 + e / dim_v) * a.heads + at.head) * dim_v + e % dim_v, out[e] / sum[e / dim_v]);
	for (int i = threadIdx.x; i < queries; i += BLOCK) lse[(t0 + i) * a.heads + at.head] = high[i] + logf(sum[i]);
}

/* delta (N, NH) = row sums of d_o * o. `lanes` neighbouring lanes compute one head of a token, WIDE elements at once */
template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	attention_delta(float *delta, const T *d_o, const T *o, int64_t items, int dim, int lanes, int wide)
{
	int64_t item = (int64_t)blockIdx.x * (BLOCK / lanes) + threadIdx.x / lanes;
	int lane = threadIdx.x % lanes;
	float a[WIDE], b[WIDE], sum = 0;
	for (int i = lane * WIDE; item < items && i < dim; i += lanes * WIDE) {
		get_wide(a, d_o + item * dim + i, dim - i, wide);
		get_wide(b, o + item * dim + i, dim - i, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) sum += a[j] * b[j];
	}
	sum = lanes_sum(sum, lanes);
	if (item < items && lane == 0) delta[item] = sum;
}

template <typename T>
static void delta_launch(const struct cuda_queue *q, float *delta, const T *d_o, const T *o, int64_t items, int64_t dim)
{
	int lanes = lanes_of(dim), wide = wide_rows(dim, d_o, o, NULL, NULL);
	LAUNCH(attention_delta<T>, div_up(items, BLOCK / lanes), BLOCK, 0, q->stream, delta, d_o, o, items, (int)dim, lanes,
		wide);
}

/* p and ds (TILE queries, TILE keys) from the scores in p and dp in ds: 0 where a query does not see a key. The cap's
 * derivative is 1 - (capped score / cap)^2. */
template <int TILE>
static __device__ __forceinline__ void tile_gradient(float *p, float *ds, const struct attention_args *a, int64_t row,
	int64_t t0, int64_t queries, int64_t k0, int64_t head, const float *lse, const float *delta)
{
	for (int e = threadIdx.x; e < TILE * TILE; e += BLOCK) {
		int64_t t = t0 + e / TILE, j = k0 + e % TILE;
		int sees = e / TILE < queries && j <= t && j >= first_key(a, row, t);
		float x = sees ? expf(p[e] - lse[t * a->heads + head]) : 0;
		ds[e] = sees ? x * (ds[e] - delta[t * a->heads + head]) * a->scale : 0;
		if (sees && a->cap != 0) ds[e] *= 1 - p[e] / a->cap * (p[e] / a->cap);
		p[e] = x;
	}
}

/* to (keys, dim) += s (queries, keys)' from (queries, dim) */
template <int TILE>
static __device__ __forceinline__ void tile_gain(float *to, const float *s, const float *from, int64_t keys,
	int64_t queries, int dim)
{
	for (int e = threadIdx.x; e < keys * dim; e += BLOCK) {
		float x = to[e];
		for (int i = 0; i < queries; i++) x += s[i * TILE + e / dim] * from[i * PITCH(dim) + e % dim];
		to[e] = x;
	}
}

template <typename T, int TILE>
static __global__ void __launch_bounds__(BLOCK) attention_backward_kv_plain(struct attention_args a, T *dqkv,
	const T *d_o, const float *lse, const float *delta, const T *qkv, int64_t tiles)
{
	DYNAMIC_SHARED(float, shared);
	int dim = (int)a.dim, dim_v = (int)attention_dim_v(&a);
	int64_t wide = attention_row(&a), group = a.heads / a.kv_heads, tile = TILE * PITCH(dim),
			tile_v = TILE * PITCH(dim_v);
	float *k = shared, *v = k + tile, *q = v + tile_v, *d = q + tile, *dk = d + tile_v;
	float *dv = dk + TILE * dim, *p = dv + TILE * dim_v, *ds = p + TILE * TILE;
	struct where at = block_where(&a, a.kv_heads, tiles);
	int64_t k0 = at.row + (tiles - 1 - at.tile) * TILE, end = at.row + a.seq, keys = end - k0 < TILE ? end - k0 : TILE;
	int64_t to_k = (a.heads + at.head) * dim, to_v = (a.heads + a.kv_heads) * dim + at.head * dim_v;

	tile_load<TILE>(k, qkv + k0 * wide + to_k, wide, keys, dim);
	tile_load<TILE>(v, qkv + k0 * wide + to_v, wide, keys, dim_v);
	for (int i = threadIdx.x; i < TILE * (dim + dim_v); i += BLOCK) dk[i] = 0; /* and dv */
	for (int64_t h = at.head * group; h < (at.head + 1) * group; h++)
		for (int64_t t0 = k0; t0 < end && first_key(&a, at.row, t0) < k0 + keys; t0 += TILE) {
			int64_t queries = end - t0 < TILE ? end - t0 : TILE;
			__syncthreads(); /* all threads have used the last q, d, p, ds */
			tile_load<TILE>(q, qkv + t0 * wide + h * dim, wide, queries, dim);
			tile_load<TILE>(d, d_o + (t0 * a.heads + h) * dim_v, a.heads * dim_v, queries, dim_v);
			__syncthreads();
			tile_product<TILE>(p, TILE, q, k, dim, a.scale, a.cap);
			tile_bias<TILE>(p, TILE, &a, at.row, t0, queries, k0, h);
			tile_product<TILE>(ds, TILE, d, v, dim_v, 1, 0);
			/* a thread reads below only what it wrote itself */
			tile_gradient<TILE>(p, ds, &a, at.row, t0, queries, k0, h, lse, delta);
			__syncthreads();
			tile_gain<TILE>(dk, ds, q, keys, queries, dim);
			tile_gain<TILE>(dv, p, d, keys, queries, dim_v);
		}
	for (int e = threadIdx.x; e < keys * dim; e += BLOCK) put(dqkv + (k0 + e / dim) * wide + to_k + e % dim, dk[e]);
	for (int e = threadIdx.x; e < keys * dim_v; e += BLOCK)
		put(dqkv + (k0 + e / dim_v) * wide + to_v + e % dim_v, dv[e]);
}

template <typename T, int TILE>
static __global__ void __launch_bounds__(BLOCK) attention_backward_q_plain(struct attention_args a, T *dqkv,
	const T *d_o, const float *lse, const float *delta, const T *qkv, int64_t tiles)
{
	DYNAMIC_SHARED(float, shared);
	int dim = (int)a.dim, dim_v = (int)attention_dim_v(&a);
	int64_t wide = attention_row(&a), tile = TILE * PITCH(dim), tile_v = TILE * PITCH(dim_v);
	int64_t to_v = (a.heads + a.kv_heads) * dim;
	float *k = shared, *v = k + tile, *q = v + tile_v, *d = q + tile, *dq = d + tile_v;
	float *p = dq + TILE * dim, *ds = p + TILE * TILE;
	struct where at = block_where(&a, a.heads, tiles);
	int64_t t0 = at.row + at.tile * TILE, end = at.row + a.seq, queries = end - t0 < TILE ? end - t0 : TILE;
	int64_t kv = at.head / (a.heads / a.kv_heads);

	tile_load<TILE>(q, qkv + t0 * wide + at.head * dim, wide, queries, dim);
	tile_load<TILE>(d, d_o + (t0 * a.heads + at.head) * dim_v, a.heads * dim_v, queries, dim_v);
	for (int i = threadIdx.x; i < TILE * dim; i += BLOCK) dq[i] = 0;
	for (int64_t k0 = first_key(&a, at.row, t0); k0 < t0 + queries; k0 += TILE) {
		int64_t keys = t0 + queries - k0 < TILE ? t0 + queries - k0 : TILE;
		__syncthreads();
		tile_load<TILE>(k, qkv + k0 * wide + (a.heads + kv) * dim, wide, keys, dim);
		tile_load<TILE>(v, qkv + k0 * wide + to_v + kv * dim_v, wide, keys, dim_v);
		__syncthreads();
		tile_product<TILE>(p, TILE, q, k, dim, a.scale, a.cap);
		tile_bias<TILE>(p, TILE, &a, at.row, t0, queries, k0, at.head);
		tile_product<TILE>(ds, TILE, d, v, dim_v, 1, 0);
		tile_gradient<TILE>(p, ds, &a, at.row, t0, queries, k0, at.head, lse, delta);
		__syncthreads();
		for (int e = threadIdx.x; e < queries * dim; e += BLOCK) {
			int i = e / dim;
			float x = dq[e];
			for (int j = 0; j < keys; j++) x += ds[i * TILE + j] * k[j * PITCH(dim) + e % dim];
			dq[e] = x;
		}
	}
	for (int e = threadIdx.x; e < queries * dim; e += BLOCK)
		put(dqkv + (t0 + e / dim) * wide + at.head * dim + e % dim, dq[e]);
}

#define SINK_ROWS 64 /* tokens of a block */

/* A block sums SINK_ROWS tokens of 32 heads: its partial, minus the sum of exp(sink - lse) delta, replaces the first
 * token's delta, which only this block reads. A warp sums every fourth token; the warps' sums are added in order. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK)
	sinks_backward_kernel(float *delta, const float *lse, const T *sinks, int64_t n, int64_t heads, int64_t across)
{
	DYNAMIC_SHARED(float, sums); /* (warps, 32) */
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int64_t head = blockIdx.x % across * 32 + lane, first = blockIdx.x / across * SINK_ROWS;
	int64_t end = first + SINK_ROWS < n ? first + SINK_ROWS : n;
	float sum = 0;

	if (head < heads)
		for (int64_t t = first + warp; t < end; t += BLOCK / 32)
			sum -= expf(get(sinks[head]) - lse[t * heads + head]) * delta[t * heads + head];
	sums[threadIdx.x] = sum;
	__syncthreads();
	if (warp > 0 || head >= heads) return;
	for (int k = 1; k < BLOCK / 32; k++) sum += sums[k * 32 + lane];
	delta[first * heads + head] = sum;
}

/* ---- launchers ---- */

/* `loaded` tiles of rows of dim and as many of dim_v, sums (tile, sums), and `others` times tile floats: at most 98.3
 * KiB, for dK and dV of heads of 256 */
static size_t plain_shared(int64_t tile, int64_t loaded, int64_t sums, int64_t others)
{
	return (size_t)(tile * (loaded + sums + others)) * sizeof(float);
}

template <typename T, int TILE>
static void forward_plain(const struct cuda_queue *q, const struct attention_args a)
{
	int64_t tiles = div_up(a.seq, TILE), blocks = a.n / a.seq * a.heads * tiles, dim_v = attention_dim_v(&a);
	size_t bytes = plain_shared(TILE, 2 * PITCH(a.dim) + PITCH(dim_v), dim_v, SCORES + 3);
	LAUNCH((attention_forward_plain<T, TILE>), blocks, BLOCK, bytes, q->stream, a, (T *)a.o, a.lse, (const T *)a.qkv,
		tiles);
}

template <typename T, int TILE>
static void backward_plain(const struct cuda_queue *q, const struct attention_args a, const float *delta)
{
	int64_t tiles = div_up(a.seq, TILE), blocks = a.n / a.seq * tiles, dim_v = attention_dim_v(&a);
	int64_t loaded = 2 * (PITCH(a.dim) + PITCH(dim_v));
	LAUNCH((attention_backward_kv_plain<T, TILE>), blocks * a.kv_heads, BLOCK,
		plain_shared(TILE, loaded, a.dim + dim_v, 2 * TILE), q->stream, a, (T *)a.dqkv, (const T *)a.d_o, a.lse, delta,
		(const T *)a.qkv, tiles);
	LAUNCH((attention_backward_q_plain<T, TILE>), blocks * a.heads, BLOCK, plain_shared(TILE, loaded, a.dim, 2 * TILE),
		q->stream, a, (T *)a.dqkv, (const T *)a.d_o, a.lse, delta, (const T *)a.qkv, tiles);
}

void cuda_attention_forward(const struct cuda_queue *q, const struct attention_args *a)
{
	if (attention_takes_mma(q, a, 0)) attention_forward_by_mma(q, a);
	else if (TILE_OF(a) == 16) BY_BYTES(q->elem, forward_plain<T, 16>(q, *a));
	else BY_BYTES(q->elem, forward_plain<T, 8>(q, *a));
}

void cuda_attention_backward(const struct cuda_queue *q, const struct attention_args *a)
{
	float *delta = q->work;
	BY_ELEMENT(q, delta_launch(q, delta, (const T *)a->d_o, (const T *)a->o, a->n * a->heads, attention_dim_v(a)));
	if (attention_takes_mma(q, a, 1)) attention_backward_by_mma(q, a, delta);
	else if (TILE_OF(a) == 16) BY_BYTES(q->elem, backward_plain<T, 16>(q, *a, delta));
	else BY_BYTES(q->elem, backward_plain<T, 8>(q, *a, delta));
}

void cuda_sinks_backward(const struct cuda_queue *q, const struct sinks_backward_args *a)
{
	int64_t parts = div_up(a->n, SINK_ROWS), across = div_up(a->heads, 32);
	float *delta = q->work;
	BY_ELEMENT(q, delta_launch(q, delta, (const T *)a->d_o, (const T *)a->o, a->n * a->heads, a->dim));
	BY_ELEMENT(q,
		LAUNCH(sinks_backward_kernel<T>, parts * across, BLOCK, BLOCK * sizeof(float), q->stream, delta, a->lse,
			(const T *)a->sinks, a->n, a->heads, across));
	cuda_sum_partials(q, a->dsinks, a->beta, delta, parts, SINK_ROWS * a->heads, a->heads);
}

#define KERNELS(type, tile) \
	(const void *)attention_forward_plain<type, tile>, (const void *)attention_backward_kv_plain<type, tile>, \
		(const void *)attention_backward_q_plain<type, tile>

/* More than 48 KiB of shared memory a block must be requested before the launch */
cudaError_t cuda_kernels_prepare(void)
{
	cudaError_t e = attention_mma_prepare();
	if (!e) e = grouped_mma_prepare();
	if (!e) e = delta_prepare();
	if (!e) e = scan_prepare();
	const void *kernels[] = {KERNELS(float, 16), KERNELS(float, 8), KERNELS(struct bf16, 16), KERNELS(struct bf16, 8)};
	return e ? e : kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
