/* attention-mma.cu: attention in bf16 on tensor cores, for heads of up to 128, after FlashAttention-2 (arXiv
 * 2307.08691)
 *
 * Blocks and the tokens that a token sees are as in attention.cu; tiles are 64 queries by 64 keys. A warp computes 16
 * rows of a tile: queries in forward and for dQ, keys for dK and dV. Scores stay in its registers, in the layout that
 * the next multiplication needs. DIM is 64 or 128, as the number of registers must be known at compile time; heads of
 * another size are padded with zeros in shared memory. CAPPED is 1 for scores with a cap: they cost time.
 *
 * Products of queries and keys become scores times a unit: without a cap the scale. With a cap they become
 * tanh(product scale / cap), and the unit is the cap.
 */
#include "attention.h"
#include "mma.h"

#define BLOCK 128
#define TILE 64 /* queries and keys */
#define LOG2E 1.4426950408889634f

/* padding of a row in shared memory, so that neighbouring rows start in different banks */
#define STRIDE (DIM + 8)

/* Load TILE rows of a head; zeros beyond `rows` and `dim` */
template <int DIM>
static __device__ __forceinline__ void tile_load(struct bf16 *to, const struct bf16 *from, int64_t stride, int64_t rows,
	int64_t dim)
{
#pragma unroll
	for (int i = threadIdx.x; i < TILE * DIM / 8; i += BLOCK) {
		int row = i / (DIM / 8), column = i % (DIM / 8) * 8;
		struct vec16 v = {{0, 0, 0, 0}};
		if (row < rows && column < dim) v = load16(from + row * stride + column);
		store16_shared(to + row * STRIDE + column, v);
	}
}

/* s (16, 8 NT) = a b' over DIM: a's 16 rows and b's 8 NT rows lie in shared memory */
template <int DIM, int NT>
static __device__ __forceinline__ void scores(float s[NT][4], const struct bf16 *a, const struct bf16 *b)
{
#pragma unroll
	for (int n = 0; n < NT; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
		/* fully unrolled, the compiler would hoist the loads and run out of registers */
#pragma unroll 2
	for (int k = 0; k < DIM; k += 16) {
		uint32_t x[4], y[4];
		load_a(x, a + k, STRIDE);
#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			load_b_rows(y, b + n * 8 * STRIDE + k, STRIDE);
			mma(s[n], x, y);
			mma(s[n + 1], x, y + 2);
		}
	}
}

/* out (16, DIM) += p (16, 8 NT) m, m's 8 NT rows in shared memory */
template <int DIM, int NT>
static __device__ __forceinline__ void accumulate(float out[DIM / 8][4], float p[NT][4], const struct bf16 *m)
{
#pragma unroll
	for (int k = 0; k < NT; k += 2) {
		uint32_t x[4], y[4];
		round_a(x, p[k], p[k + 1]);
#pragma unroll
		for (int n = 0; n < DIM / 8; n += 2) {
			load_b(y, m + k * 8 * STRIDE + n * 8, STRIDE);
			mma(out[n], x, y);
			mma(out[n + 1], x, y + 2);
		}
	}
}

/* Store rows g and g + 8 of a warp's tile, each times its factor, to global memory */
template <int DIM>
static __device__ __forceinline__ void rows_store(struct bf16 *to, int64_t stride, const float out[DIM / 8][4],
	const float factor[2], int64_t rows, int64_t dim)
{
	int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
	for (int r = 0; r < 2; r++)
#pragma unroll
		for (int n = 0; n < DIM / 8; n++)
			if (g + 8 * r < rows && n * 8 < dim)
				*(uint32_t *)(to + (g + 8 * r) * stride + n * 8 + 2 * t) = pack_bf16(out[n][2 * r] * factor[r],
					out[n][2 * r + 1] * factor[r]);
}

/* 2^x in one instruction: 2 units in the last place, denormals are 0 */
static __device__ __forceinline__ float exp2_fast(float x)
{
#ifdef MT_EMU
	return exp2f(x);
#else
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
#endif
}

/* tanh within 2e-7, not relative to it, as multiplications by bf16 round more: 1 - 2 / (e^2x + 1) */
static __device__ __forceinline__ float tanh_fast(float x)
{
#ifdef MT_EMU
	return 1 - 2 / (exp2_fast(2 * LOG2E * x) + 1);
#else
	return 1 - __fdividef(2, exp2_fast(2 * LOG2E * x) + 1);
#endif
}

static __device__ __forceinline__ float quad_max(float x)
{
	for (int lanes = 1; lanes < 4; lanes *= 2) {
		float other = __shfl_xor_sync(FULL, x, lanes);
		x = other > x ? other : x;
	}
	return x;
}

static __device__ __forceinline__ float quad_sum(float x)
{
	x += __shfl_xor_sync(FULL, x, 1);
	return x + __shfl_xor_sync(FULL, x, 2);
}

template <int DIM, int CAPPED>
static __global__ void __launch_bounds__(BLOCK)
	attention_forward_mma(struct attention_args a, struct bf16 *o, float *lse, const struct bf16 *qkv, int64_t tiles)
{
	DYNAMIC_SHARED(struct bf16, q);
	struct bf16 *k = q + TILE * STRIDE, *v = k + TILE * STRIDE;
	int64_t dim = a.dim, wide = (a.heads + 2 * a.kv_heads) * dim;
	struct where at = block_where(&a, a.heads, tiles);
	int64_t t0 = at.row + at.tile * TILE, end = at.row + a.seq, queries = end - t0 < TILE ? end - t0 : TILE;
	int64_t kv = at.head / (a.heads / a.kv_heads), last_first = first_key(&a, at.row, t0 + queries - 1);
	int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float out[DIM / 8][4] = {{0}}, s[TILE / 8][4], high[2], sum[2];
	float unit = CAPPED ? a.cap : a.scale, to_log2 = unit * LOG2E, to_share = CAPPED ? a.scale / a.cap : 1;
	int64_t token[2], first[2];

	for (int r = 0; r < 2; r++) {
		high[r] = a.sinks ? get(((const struct bf16 *)a.sinks)[at.head]) / unit : -INFINITY;
		sum[r] = a.sinks ? 1 : 0;
		token[r] = t0 + warp * 16 + g + 8 * r;
		first[r] = token[r] < end ? first_key(&a, at.row, token[r]) : end; /* beyond the row: sees nothing */
	}
	tile_load<DIM>(q, qkv + t0 * wide + at.head * dim, wide, queries, dim);
	for (int64_t k0 = first_key(&a, at.row, t0); k0 < t0 + queries; k0 += TILE) {
		int64_t keys = t0 + queries - k0 < TILE ? t0 + queries - k0 : TILE;
		int whole = k0 >= last_first && k0 + TILE - 1 <= t0 && queries == TILE; /* all see all */
		tile_load<DIM>(k, qkv + k0 * wide + (a.heads + kv) * dim, wide, keys, dim);
		tile_load<DIM>(v, qkv + k0 * wide + (a.heads + a.kv_heads + kv) * dim, wide, keys, dim);
		__syncthreads();
		scores<DIM, TILE / 8>(s, q + warp * 16 * STRIDE, k);
#pragma unroll
		for (int r = 0; r < 2; r++) {
			float top = high[r], total = 0;
#pragma unroll
			for (int n = 0; n < TILE / 8; n++)
#pragma unroll
				for (int i = 2 * r; i < 2 * r + 2; i++) {
					int64_t j = k0 + n * 8 + 2 * t + i % 2;
					if (CAPPED) s[n][i] = tanh_fast(s[n][i] * to_share);
					if (!whole && (j > token[r] || j < first[r])) s[n][i] = -INFINITY;
					top = s[n][i] > top ? s[n][i] : top;
				}
			top = quad_max(top);
			float base = top == -INFINITY ? 0 : top * to_log2; /* nothing seen yet */
#pragma unroll
			for (int n = 0; n < TILE / 8; n++)
#pragma unroll
				for (int i = 2 * r; i < 2 * r + 2; i++) total += s[n][i] = exp2_fast(s[n][i] * to_log2 - base);
			float shrink = exp2_fast(high[r] * to_log2 - base);
			sum[r] = sum[r] * shrink + quad_sum(total);
			high[r] = top;
#pragma unroll
			for (int n = 0; n < DIM / 8; n++) {
				out[n][2 * r] *= shrink;
				out[n][2 * r + 1] *= shrink;
			}
		}
		accumulate<DIM, TILE / 8>(out, s, v);
		__syncthreads(); /* all threads have used k and v */
	}
	float factor[2] = {1 / sum[0], 1 / sum[1]};
	rows_store<DIM>(o + ((t0 + warp * 16) * a.heads + at.head) * dim, a.heads * dim, out, factor, queries - warp * 16,
		dim);
	for (int r = 0; r < 2; r++)
		if (t == 0 && token[r] < end) lse[token[r] * a.heads + at.head] = high[r] * unit + logf(sum[r]);
}

/* How products of queries and keys become scores */
struct scoring {
	float scale, to_log2, to_share;
};

template <int CAPPED>
static __device__ __forceinline__ struct scoring scoring_of(const struct attention_args *a)
{
	struct scoring s = {a->scale, (CAPPED ? a->cap : a->scale) * LOG2E, CAPPED ? a->scale / a->cap : 1};
	return s;
}

/* With p = exp(score - lse):  ds = p (dp - delta) scale, with a cap times its derivative 1 - tanh^2; both 0 where a
 * query does not see a key. p comes in as the product of query and key, ds as dp. */
template <int CAPPED>
static __device__ __forceinline__ void gradient(float *p, float *ds, int sees, struct scoring s, float lse, float delta)
{
	float share = CAPPED ? tanh_fast(*p * s.to_share) : *p;
	float x = sees ? exp2_fast(share * s.to_log2 - lse * LOG2E) : 0;
	*p = x;
	*ds = sees ? x * (*ds - delta) * s.scale : 0;
	if (CAPPED && sees) *ds *= 1 - share * share;
}

#define PART 32 /* queries whose scores are in registers at once */

template <int DIM, int CAPPED>
static __global__ void __launch_bounds__(BLOCK) attention_backward_kv_mma(struct attention_args a, struct bf16 *dqkv,
	const struct bf16 *d_o, const float *lse, const float *delta, const struct bf16 *qkv, int64_t tiles)
{
	DYNAMIC_SHARED(struct bf16, k);
	struct bf16 *v = k + TILE * STRIDE, *q = v + TILE * STRIDE, *d = q + TILE * STRIDE;
	float *lse_at = (float *)(d + TILE * STRIDE), *delta_at = lse_at + TILE;
	int *first_at = (int *)(delta_at + TILE); /* of each query, from the tile's first key on */
	int64_t dim = a.dim, wide = (a.heads + 2 * a.kv_heads) * dim, group = a.heads / a.kv_heads;
	struct where at = block_where(&a, a.kv_heads, tiles);
	int64_t k0 = at.row + (tiles - 1 - at.tile) * TILE, end = at.row + a.seq, keys = end - k0 < TILE ? end - k0 : TILE;
	int64_t to_k = (a.heads + at.head) * dim, to_v = to_k + a.kv_heads * dim;
	int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float dk[DIM / 8][4] = {{0}}, dv[DIM / 8][4] = {{0}}, p[PART / 8][4], ds[PART / 8][4];
	struct scoring form = scoring_of<CAPPED>(&a);

	tile_load<DIM>(k, qkv + k0 * wide + to_k, wide, keys, dim);
	tile_load<DIM>(v, qkv + k0 * wide + to_v, wide, keys, dim);
	for (int64_t h = at.head * group; h < (at.head + 1) * group; h++)
		for (int64_t t0 = k0; t0 < end && first_key(&a, at.row, t0) < k0 + keys; t0 += TILE) {
			int64_t queries = end - t0 < TILE ? end - t0 : TILE;
			__syncthreads(); /* all threads have used the last q and d */
			tile_load<DIM>(q, qkv + t0 * wide + h * dim, wide, queries, dim);
			tile_load<DIM>(d, d_o + (t0 * a.heads + h) * dim, a.heads * dim, queries, dim);
			for (int i = threadIdx.x; i < TILE; i += BLOCK) {
				int64_t token = t0 + i, first = TILE;
				if (i < queries) {
					first = first_key(&a, at.row, token) - k0;
					first = first < 0 ? 0 : first < TILE ? first : TILE;
				}
				lse_at[i] = i < queries ? lse[token * a.heads + h] : 0;
				delta_at[i] = i < queries ? delta[token * a.heads + h] : 0;
				first_at[i] = (int)first;
			}
			__syncthreads();
#pragma unroll 1
			for (int part = 0; part < TILE; part += PART) {
				/* keys down, queries across */
				scores<DIM, PART / 8>(p, k + warp * 16 * STRIDE, q + part * STRIDE);
				scores<DIM, PART / 8>(ds, v + warp * 16 * STRIDE, d + part * STRIDE);
#pragma unroll
				for (int n = 0; n < PART / 8; n++)
#pragma unroll
					for (int i = 0; i < 4; i++) {
						int query = part + n * 8 + 2 * t + i % 2, key = warp * 16 + g + i / 2 * 8;
						int sees = key >= first_at[query] && k0 + key <= t0 + query;
						gradient<CAPPED>(&p[n][i], &ds[n][i], sees, form, lse_at[query], delta_at[query]);
					}
				accumulate<DIM, PART / 8>(dv, p, d + part * STRIDE);
				accumulate<DIM, PART / 8>(dk, ds, q + part * STRIDE);
			}
		}
	const float one[2] = {1, 1};
	struct bf16 *to = dqkv + (k0 + warp * 16) * wide;
	rows_store<DIM>(to + to_k, wide, dk, one, keys - warp * 16, dim);
	rows_store<DIM>(to + to_v, wide, dv, one, keys - warp * 16, dim);
}

template <int DIM, int CAPPED>
static __global__ void __launch_bounds__(BLOCK) attention_backward_q_mma(struct attention_args a, struct bf16 *dqkv,
	const struct bf16 *d_o, const float *lse, const float *delta, const struct bf16 *qkv, int64_t tiles)
{
	DYNAMIC_SHARED(struct bf16, k);
	struct bf16 *v = k + TILE * STRIDE, *q = v + TILE * STRIDE, *d = q + TILE * STRIDE;
	int64_t dim = a.dim, wide = (a.heads + 2 * a.kv_heads) * dim;
	struct where at = block_where(&a, a.heads, tiles);
	int64_t t0 = at.row + at.tile * TILE, end = at.row + a.seq, queries = end - t0 < TILE ? end - t0 : TILE;
	int64_t kv = at.head / (a.heads / a.kv_heads);
	int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
	float dq[DIM / 8][4] = {{0}}, p[TILE / 8][4], ds[TILE / 8][4], my_lse[2], my_delta[2];
	struct scoring form = scoring_of<CAPPED>(&a);
	int64_t token[2], first[2];

	for (int r = 0; r < 2; r++) {
		token[r] = t0 + warp * 16 + g + 8 * r;
		int there = token[r] < end;
		first[r] = there ? first_key(&a, at.row, token[r]) : end;
		my_lse[r] = there ? lse[token[r] * a.heads + at.head] : 0;
		my_delta[r] = there ? delta[token[r] * a.heads + at.head] : 0;
	}
	tile_load<DIM>(q, qkv + t0 * wide + at.head * dim, wide, queries, dim);
	tile_load<DIM>(d, d_o + (t0 * a.heads + at.head) * dim, a.heads * dim, queries, dim);
	for (int64_t k0 = first_key(&a, at.row, t0); k0 < t0 + queries; k0 += TILE) {
		int64_t keys = t0 + queries - k0 < TILE ? t0 + queries - k0 : TILE;
		__syncthreads();
		tile_load<DIM>(k, qkv + k0 * wide + (a.heads + kv) * dim, wide, keys, dim);
		tile_load<DIM>(v, qkv + k0 * wide + (a.heads + a.kv_heads + kv) * dim, wide, keys, dim);
		__syncthreads();
		scores<DIM, TILE / 8>(p, q + warp * 16 * STRIDE, k);
		scores<DIM, TILE / 8>(ds, d + warp * 16 * STRIDE, v);
#pragma unroll
		for (int n = 0; n < TILE / 8; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				int64_t j = k0 + n * 8 + 2 * t + i % 2;
				int r = i / 2;
				gradient<CAPPED>(&p[n][i], &ds[n][i], j <= token[r] && j >= first[r], form, my_lse[r], my_delta[r]);
			}
		accumulate<DIM, TILE / 8>(dq, ds, k);
	}
	const float one[2] = {1, 1};
	rows_store<DIM>(dqkv + (t0 + warp * 16) * wide + at.head * dim, wide, dq, one, queries - warp * 16, dim);
}

/* ---- launchers ---- */

int attention_takes_mma(const struct cuda_queue *q, const struct attention_args *a, int backward)
{
	const void *x = backward ? a->dqkv : a->o, *y = backward ? a->d_o : NULL;
	return q->elem == 2 && a->dim <= 128 && wide_rows(a->dim, a->qkv, x, y, NULL);
}

static size_t shared_bytes(int tiles, int dim)
{
	return (size_t)tiles * TILE * (dim + 8) * 2 + 3 * TILE * sizeof(float);
}

template <int DIM, int CAPPED>
static void forward(const struct cuda_queue *q, const struct attention_args a)
{
	int64_t tiles = div_up(a.seq, TILE);
	LAUNCH((attention_forward_mma<DIM, CAPPED>), a.n / a.seq * a.heads * tiles, BLOCK, shared_bytes(3, DIM), q->stream,
		a, (struct bf16 *)a.o, a.lse, (const struct bf16 *)a.qkv, tiles);
}

template <int DIM, int CAPPED>
static void backward(const struct cuda_queue *q, const struct attention_args a, const float *delta)
{
	int64_t tiles = div_up(a.seq, TILE), rows = a.n / a.seq;
	LAUNCH((attention_backward_kv_mma<DIM, CAPPED>), rows * a.kv_heads * tiles, BLOCK, shared_bytes(4, DIM), q->stream,
		a, (struct bf16 *)a.dqkv, (const struct bf16 *)a.d_o, a.lse, delta, (const struct bf16 *)a.qkv, tiles);
	LAUNCH((attention_backward_q_mma<DIM, CAPPED>), rows * a.heads * tiles, BLOCK, shared_bytes(4, DIM), q->stream, a,
		(struct bf16 *)a.dqkv, (const struct bf16 *)a.d_o, a.lse, delta, (const struct bf16 *)a.qkv, tiles);
}

/* call<DIM, CAPPED>(...) for these heads */
#define BY_HEADS(a, call, ...) \
	do { \
		if ((a)->dim <= 64 && (a)->cap == 0) call<64, 0>(__VA_ARGS__); \
		else if ((a)->dim <= 64) call<64, 1>(__VA_ARGS__); \
		else if ((a)->cap == 0) call<128, 0>(__VA_ARGS__); \
		else call<128, 1>(__VA_ARGS__); \
	} while (0)

void attention_forward_by_mma(const struct cuda_queue *q, const struct attention_args *a)
{
	BY_HEADS(a, forward, q, *a);
}

void attention_backward_by_mma(const struct cuda_queue *q, const struct attention_args *a, const float *delta)
{
	BY_HEADS(a, backward, q, *a, delta);
}

#define KERNELS(dim, capped) \
	(const void *)attention_forward_mma<dim, capped>, (const void *)attention_backward_kv_mma<dim, capped>, \
		(const void *)attention_backward_q_mma<dim, capped>

cudaError_t attention_mma_prepare(void)
{
	const void *kernels[] = {KERNELS(64, 0), KERNELS(64, 1), KERNELS(128, 0), KERNELS(128, 1)};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
