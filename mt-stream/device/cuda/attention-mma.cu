/* attention-mma.cu: attention in bf16 on tensor cores, for heads of up to 512, after FlashAttention-2 (arXiv
 * 2307.08691)
 *
 * Blocks and the tokens that a token sees are as in attention.cu. A block has a tile of rows and goes through tiles of
 * columns: queries and keys in forward and for dQ, keys and queries for dK and dV. Tiles of columns are copied to
 * shared memory while tensor cores multiply others. Tiles are so small that every target has the shared memory.
 *
 * A warp computes M times 16 rows: with more rows, it reads shared memory less often for the same products. Scores stay
 * in its registers, in the layout that the next multiplication needs. DIM, of q and k, and DIM_V, of v and o, are both
 * 64, 128, 256 or 512, or they are 192 and 128 (multi-head latent attention), as the number of registers must be known
 * at compile time; heads of another size are padded with zeros in shared memory.
 *
 * The results of 16 rows of a large head need more registers than a thread has. So SPLIT warps share their rows, and
 * each has PART elements of the head (DIM is DIM_V then). Scores are sums over the head: the warps add up those of all
 * parts, through shared memory. Then each multiplies them with its own part.
 *
 * FORM is CAPPED for scores with a cap, BIASED with ALiBi: both cost time. Products of queries and keys become
 * scores times a unit: without a cap the scale. With a cap they become tanh(product scale / cap), and the unit is the
 * cap. Heads of more than 128 have no kernels for ALiBi, those of more than 64 none where it is rounded.
 */
#include "async.h"
#include "attention.h"
#include "mma.h"

#define BLOCK 128
#define WARPS (BLOCK / 32)
#define LOG2E 1.4426950408889634f

enum { PLAIN, CAPPED, BIASED };

/* tiles */
#define FORWARD_M (DIM_V <= 128 ? 2 : 1)
#define FORWARD_SPLIT (DIM <= 256 ? 1 : 2)
#define FORWARD_KEYS (DIM <= 64 ? 64 : DIM <= 256 ? 32 : 16)
#define KV_M 1
#define KV_SPLIT (DIM_V <= 128 ? 1 : DIM / 128)
#define KV_QUERIES (DIM <= 64 ? 64 : DIM <= 128 ? 32 : 16)
#define KV_STAGES (DIM <= 256 ? 2 : 1) /* tiles of queries in shared memory */
#define Q_M (DIM <= 128 ? 2 : 1)
#define Q_SPLIT (DIM <= 256 ? 1 : 4)
#define Q_KEYS (DIM <= 256 ? 32 : 16)
#define ROWS_OF(m, split) (16 * (m)*WARPS / (split))

/* of 16 x 8 nt scores a warp in shared memory: 16 bytes a thread for each 16 x 8 */
#define SHARED_SCORES(split, nt) ((split) > 1 ? (nt)*BLOCK : 0)

/* of a row in shared memory; neighbouring rows start in different banks */
#define STRIDE (DIM + 8)
#define STRIDE_V (DIM_V + 8)

/* Begin to copy columns FIRST .. FIRST + WIDTH - 1 of ROWS rows of a head, of which `rows` exist; zeros beyond and from
 * `dim` on */
template <int DIM, int FIRST, int WIDTH, int ROWS>
static __device__ __forceinline__ void columns_copy(struct bf16 *to, const struct bf16 *from, int stride, int rows,
	int dim)
{
	const int step = BLOCK / (WIDTH / 8); /* rows at once */
	int row = threadIdx.x / (WIDTH / 8), column = FIRST + threadIdx.x % (WIDTH / 8) * 8;
	int left = column < dim ? rows - row : 0;
	to += row * STRIDE + column;
	from += (int64_t)row * stride + column;
#pragma unroll
	for (int i = 0; i < ROWS; i += step) {
		copy16_async(to + i * STRIDE, from, i < left);
		from += (int64_t)step * stride;
	}
}

/* All columns. Those of 192 are no power of two, by which threads share a row */
template <int DIM, int ROWS>
static __device__ __forceinline__ void tile_copy(struct bf16 *to, const struct bf16 *from, int stride, int rows,
	int dim)
{
	columns_copy<DIM, 0, DIM == 192 ? 128 : DIM, ROWS>(to, from, stride, rows, dim);
	if (DIM == 192) columns_copy<DIM, 128, 64, ROWS>(to, from, stride, rows, dim);
}

/* s (16 M, 8 NT) = a b' over PART: a's 16 M rows and b's 8 NT rows lie in shared memory. Of all such matrices, a lane
 * holds four elements of each 16 x 8, as c in mma.h; those of 16 rows follow each other. */
template <int DIM, int PART, int M, int NT>
static __device__ __forceinline__ void scores(float s[M * NT][4], const struct bf16 *a, const struct bf16 *b)
{
#pragma unroll
	for (int n = 0; n < M * NT; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
	for (int k = 0; k < PART; k += 16) {
		uint32_t x[M][4], y[4];
#pragma unroll
		for (int m = 0; m < M; m++) load_a(x[m], a + m * 16 * STRIDE + k, STRIDE);
#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			load_b_rows(y, b + n * 8 * STRIDE + k, STRIDE);
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma(s[m * NT + n], x[m], y);
				mma(s[m * NT + n + 1], x[m], y + 2);
			}
		}
	}
}

/* out (16 M, PART) += p (16 M, 8 NT) b, b's 8 NT rows in shared memory */
template <int DIM, int PART, int M, int NT>
static __device__ __forceinline__ void accumulate(float out[M * PART / 8][4], float p[M * NT][4], const struct bf16 *b)
{
#pragma unroll
	for (int k = 0; k < NT; k += 2) {
		uint32_t x[M][4], y[4];
#pragma unroll
		for (int m = 0; m < M; m++) round_a(x[m], p[m * NT + k], p[m * NT + k + 1]);
#pragma unroll
		for (int n = 0; n < PART / 8; n += 2) {
			load_b(y, b + k * 8 * STRIDE + n * 8, STRIDE);
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma(out[m * PART / 8 + n], x[m], y);
				mma(out[m * PART / 8 + n + 1], x[m], y + 2);
			}
		}
	}
}

/* A warp's scores to `all`: 16 bytes of each lane for each 16 x 8 */
template <int N>
static __device__ __forceinline__ void scores_put(struct vec16 *all, const float s[N][4])
{
	all += threadIdx.x / 32 * N * 32 + threadIdx.x % 32;
#pragma unroll
	for (int n = 0; n < N; n++) {
		struct vec16 v = {{as_bits(s[n][0]), as_bits(s[n][1]), as_bits(s[n][2]), as_bits(s[n][3])}};
		store16_shared(all + n * 32, v);
	}
}

/* After a barrier: s += the scores of the other warps that share its rows */
template <int SPLIT, int N>
static __device__ __forceinline__ void scores_add(float s[N][4], const struct vec16 *all)
{
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
	for (int w = 1; w < SPLIT; w++)
#pragma unroll
		for (int n = 0; n < N; n++) {
			struct vec16 v = load16(all + ((warp ^ w) * N + n) * 32 + lane);
#pragma unroll
			for (int i = 0; i < 4; i++) s[n][i] += as_float(v.w[i]);
		}
}

/* Both for the two products of the backward pass */
template <int SPLIT, int N>
static __device__ __forceinline__ void scores_share(float p[N][4], float ds[N][4], struct vec16 *all_p,
	struct vec16 *all_ds)
{
	scores_put<N>(all_p, p);
	scores_put<N>(all_ds, ds);
	__syncthreads();
	scores_add<SPLIT, N>(p, all_p);
	scores_add<SPLIT, N>(ds, all_ds);
}

/* The r-th of a lane's 2 M rows, from the warp's first on */
static __device__ __forceinline__ int row_of(int r) { return r / 2 * 16 + r % 2 * 8 + threadIdx.x % 32 / 4; }

/* A lane's row r sees columns low[r] .. high[r] - 1 of a tile: s = value in the others */
template <int M, int NT>
static __device__ __forceinline__ void hide(float s[M * NT][4], const int low[2 * M], const int high[2 * M],
	float value)
{
	int t = threadIdx.x % 4 * 2;
#pragma unroll
	for (int n = 0; n < M * NT; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int column = n % NT * 8 + i % 2, r = n / NT * 2 + i / 2;
			if (column < low[r] - t || column >= high[r] - t) s[n][i] = value;
		}
}

/* Store a warp's results, each row times its factor, to global memory */
template <int M, int PART>
static __device__ __forceinline__ void rows_store(struct bf16 *to, int64_t stride, const float out[M * PART / 8][4],
	const float factor[2 * M], int rows, int dim)
{
	int t = threadIdx.x % 4 * 2;
#pragma unroll
	for (int r = 0; r < 2 * M; r++)
#pragma unroll
		for (int n = 0; n < PART / 8; n++) {
			const float *two = out[r / 2 * (PART / 8) + n] + r % 2 * 2;
			if (row_of(r) < rows && n * 8 < dim)
				*(uint32_t *)(to + row_of(r) * stride + n * 8 + t) = pack_bf16(two[0] * factor[r], two[1] * factor[r]);
		}
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
	x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
	return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
	x += __shfl_xor_sync(FULL, x, 1);
	return x + __shfl_xor_sync(FULL, x, 2);
}

/* How products of queries and keys become scores */
struct scoring {
	float unit, to_log2, to_share;
	struct bias bias; /* BIASED: of the head, in units */
};

template <int FORM>
static __device__ __forceinline__ struct scoring scoring_of(const struct attention_args *a, int64_t head)
{
	float unit = FORM == CAPPED ? a->cap : a->scale;
	struct bias bias = FORM == BIASED ? bias_of(&a->alibi, head, 1 / unit) : (struct bias){0, 0, 0};
	struct scoring s = {unit, unit * LOG2E, FORM == CAPPED ? a->scale / a->cap : 1, bias};
	return s;
}

/* Elements of a head of v; of a token in qkv; from a token's key of a head to its value. Where heads are alike, the
 * compiler knows it: so these kernels need no more registers. */
template <int DIM, int DIM_V>
static __device__ __forceinline__ int dim_v_of(const struct attention_args *a)
{
	return (int)(DIM == DIM_V ? a->dim : a->dim_v);
}

template <int DIM, int DIM_V>
static __device__ __forceinline__ int wide_of(const struct attention_args *a)
{
	int dim = (int)a->dim, kv_heads = (int)a->kv_heads;
	return ((int)a->heads + kv_heads) * dim + kv_heads * dim_v_of<DIM, DIM_V>(a);
}

template <int DIM, int DIM_V>
static __device__ __forceinline__ int values_after(const struct attention_args *a, int64_t kv_head)
{
	int dim = (int)a->dim;
	return (int)a->kv_heads * dim + (int)kv_head * (dim_v_of<DIM, DIM_V>(a) - dim);
}

static __device__ __forceinline__ int at_most(int64_t n, int most) { return n < most ? (int)n : most; }

/* Where the document of a lane's row r starts, counted from the tile's first token t0, if positions may be rounded.
 * starts: of t0 and on */
template <int DIM, int M>
static __device__ __forceinline__ void starts_of(int start[2 * M], const uint32_t *starts, int64_t to_row, int row,
	int rows)
{
#pragma unroll
	for (int r = 0; r < 2 * M; r++) {
		int token = row + row_of(r);
		start[r] = DIM <= 64 && token < rows ? (int)(to_row + starts[token]) : 0;
	}
}

/* s += ALiBi's bias of rows from `row` on and of columns from `column` on */
template <int DIM, int M, int NT>
static __device__ __forceinline__ void add_bias(float s[M * NT][4], struct bias bias, int row, int column,
	const int start[2 * M], int keys_are_rows)
{
	int t = threadIdx.x % 4 * 2;
	if (DIM > 64) bias.rounded = 0;
#pragma unroll
	for (int n = 0; n < M * NT; n++)
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int r = n / NT * 2 + i / 2, at = row + row_of(r) - start[r];
			int across = column + n % NT * 8 + t + i % 2 - start[r];
			s[n][i] += keys_are_rows ? bias_at(&bias, across, at) : bias_at(&bias, at, across);
		}
}

template <int DIM, int DIM_V, int FORM>
static __global__ void __launch_bounds__(BLOCK, 2)
	attention_forward_mma(struct attention_args a, struct bf16 *o, float *lse, const struct bf16 *qkv, int64_t tiles)
{
	enum { M = FORWARD_M, SPLIT = FORWARD_SPLIT, ROWS = ROWS_OF(M, SPLIT), PART = DIM / SPLIT };
	enum { KEYS = FORWARD_KEYS, NT = KEYS / 8, PART_V = DIM_V / SPLIT };
	DYNAMIC_SHARED(struct bf16, q);
	struct bf16 *k = q + ROWS * STRIDE, *v = k + KEYS * STRIDE;
	struct vec16 *shared_scores = (struct vec16 *)(v + KEYS * STRIDE_V);
	int dim = (int)a.dim, dim_v = dim_v_of<DIM, DIM_V>(&a), wide = wide_of<DIM, DIM_V>(&a), warp = threadIdx.x / 32;
	struct where at = block_where(&a, a.heads, tiles);
	int64_t t0 = at.row + at.tile * ROWS, kv = at.head / (a.heads / a.kv_heads);
	int queries = at_most(at.row + a.seq - t0, ROWS);
	int row = warp / SPLIT * 16 * M, part = warp % SPLIT * PART;
	/* tokens from here on from t0 */
	int key = (int)(first_key(&a, at.row, t0) - t0), all_see = (int)(first_key(&a, at.row, t0 + queries - 1) - t0);
	int first[2 * M];
	const struct bf16 *from = qkv + (t0 + key) * wide + (a.heads + kv) * dim; /* a tile of k; v's is to_v further */
	int to_v = values_after<DIM, DIM_V>(&a, kv);
	float out[M * PART_V / 8][4] = {{0}}, s[M * NT][4], top[2 * M], sum[2 * M], factor[2 * M];
	struct scoring form = scoring_of<FORM>(&a, at.head);
	int start[2 * M];

	tile_copy<DIM, ROWS>(q, qkv + t0 * wide + at.head * dim, wide, queries, dim);
	tile_copy<DIM, KEYS>(k, from, wide, queries - key, dim);
	copies_commit();
	if (FORM == BIASED) starts_of<DIM, M>(start, a.starts + t0, at.row - t0, row, queries);
#pragma unroll
	for (int r = 0; r < 2 * M; r++) {
		int token = row + row_of(r);
		top[r] = a.sinks ? get(((const struct bf16 *)a.sinks)[at.head]) / form.unit : -INFINITY;
		sum[r] = a.sinks ? 1 : 0;
		first[r] = token < queries ? (int)(first_key(&a, at.row, t0 + token) - t0) : 0;
	}
#pragma unroll 1
	for (; key < queries; key += KEYS) {
		copies_wait<0>();
		__syncthreads(); /* k is there, and all threads have used v */
		tile_copy<DIM_V, KEYS>(v, from + to_v, wide, queries - key, dim_v);
		copies_commit();
		scores<DIM, PART, M, NT>(s, q + row * STRIDE + part, k + part);
		if (SPLIT > 1) scores_put<M * NT>(shared_scores, s);
		copies_wait<0>();
		__syncthreads(); /* v is there, and all threads have used k */
		from += KEYS * wide;
		if (key + KEYS < queries) tile_copy<DIM, KEYS>(k, from, wide, queries - key - KEYS, dim);
		copies_commit();
		if (SPLIT > 1) scores_add<SPLIT, M * NT>(s, shared_scores);
		if (FORM == CAPPED)
#pragma unroll
			for (int n = 0; n < M * NT; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) s[n][i] = tanh_fast(s[n][i] * form.to_share);
		if (FORM == BIASED) add_bias<DIM, M, NT>(s, form.bias, row, key, start, 0);
		if (key < all_see || key + KEYS - 1 > 0) {
			int low[2 * M], high[2 * M];
#pragma unroll
			for (int r = 0; r < 2 * M; r++) {
				low[r] = first[r] - key;
				high[r] = row + row_of(r) + 1 - key;
			}
			hide<M, NT>(s, low, high, -INFINITY);
		}
		int changed = 0;
#pragma unroll
		for (int r = 0; r < 2 * M; r++) {
			float(*mine)[4] = s + r / 2 * NT, most = top[r], total = 0;
#pragma unroll
			for (int i = 0; i < 2 * NT; i++) most = fmaxf(most, mine[i / 2][r % 2 * 2 + i % 2]);
			most = quad_max(most);
			float base = most == -INFINITY ? 0 : most; /* nothing seen yet */
			float base_log2 = base * form.to_log2;
#pragma unroll
			for (int i = 0; i < 2 * NT; i++) {
				float *x = &mine[i / 2][r % 2 * 2 + i % 2];
				total += *x = exp2_fast(*x * form.to_log2 - base_log2);
			}
			factor[r] = exp2_fast((top[r] - base) * form.to_log2);
			changed |= factor[r] != 1;
			sum[r] = sum[r] * factor[r] + quad_sum(total);
			top[r] = most;
		}
		if (__ballot_sync(FULL, changed))
#pragma unroll
			for (int n = 0; n < M * PART_V / 8; n++)
#pragma unroll
				for (int i = 0; i < 4; i++) out[n][i] *= factor[n / (PART_V / 8) * 2 + i / 2];
		accumulate<DIM_V, PART_V, M, NT>(out, s, v + part);
	}
#pragma unroll
	for (int r = 0; r < 2 * M; r++) {
		int token = row + row_of(r);
		factor[r] = 1 / sum[r];
		if (threadIdx.x % 4 == 0 && part == 0 && token < queries)
			lse[(t0 + token) * a.heads + at.head] = top[r] * form.unit + logf(sum[r]);
	}
	o += ((t0 + row) * a.heads + at.head) * dim_v + part;
	rows_store<M, PART_V>(o, a.heads * dim_v, out, factor, queries - row, dim_v - part);
}

/* With p = exp(score - lse):  ds = p (dp - delta), with a cap times its derivative 1 - tanh^2. p comes in as the
 * product of query and key, ds as dp. The scale, by which ds must be multiplied, is left to rows_store. */
template <int FORM>
static __device__ __forceinline__ void gradient(float *p, float *ds, struct scoring s, float lse_log2, float delta)
{
	float share = FORM == CAPPED ? tanh_fast(*p * s.to_share) : *p;
	*p = exp2_fast(share * s.to_log2 - lse_log2);
	*ds = *p * (*ds - delta);
	if (FORM == CAPPED) *ds *= 1 - share * share;
}

/* The end of the tokens of a row that see key j: first_key never decreases */
static __device__ __forceinline__ int64_t seen_until(const struct attention_args *a, int64_t row, int64_t j)
{
	int64_t low = j, high = a->window && a->window < row + a->seq - j ? j + a->window : row + a->seq;
	while (high - low > 1) {
		int64_t middle = (low + high) / 2;
		if (row + a->starts[middle] <= j) low = middle;
		else high = middle;
	}
	return high;
}

/* of a query: lse in base 2, and delta */
static __device__ __forceinline__ struct vec8 query_load(const float *lse, const float *delta, int64_t i, int there)
{
	struct vec8 v = {{as_bits(there ? lse[i] * LOG2E : 0), as_bits(there ? delta[i] : 0)}};
	return v;
}

/* Begin to copy q and d_o of QUERIES tokens, of which `rows` exist. qkv, whose rows have `wide` elements, and d_o point
 * to token 0, head 0 */
template <int DIM, int DIM_V, int QUERIES>
static __device__ __forceinline__ void queries_copy(struct bf16 *q, struct bf16 *d, const struct bf16 *qkv,
	const struct bf16 *d_o, const struct attention_args *a, int wide, int token, int head, int rows)
{
	int dim = (int)a->dim, dim_v = dim_v_of<DIM, DIM_V>(a), narrow = (int)a->heads * dim_v;
	tile_copy<DIM, QUERIES>(q, qkv + (int64_t)token * wide + head * dim, wide, rows, dim);
	tile_copy<DIM_V, QUERIES>(d, d_o + (int64_t)token * narrow + head * dim_v, narrow, rows, dim_v);
	copies_commit();
}

template <int DIM, int DIM_V, int FORM>
static __global__ void __launch_bounds__(BLOCK, 2) attention_backward_kv_mma(struct attention_args a, struct bf16 *dqkv,
	const struct bf16 *d_o, const float *lse, const float *delta, const struct bf16 *qkv, int64_t tiles)
{
	enum { M = KV_M, SPLIT = KV_SPLIT, ROWS = ROWS_OF(M, SPLIT), PART = DIM / SPLIT };
	enum { QUERIES = KV_QUERIES, NT = QUERIES / 8, STAGES = KV_STAGES, TILE = QUERIES * STRIDE };
	enum { PART_V = DIM_V / SPLIT, TILE_V = QUERIES * STRIDE_V };
	DYNAMIC_SHARED(struct bf16, k);
	struct bf16 *v = k + ROWS * STRIDE, *q = v + ROWS * STRIDE_V, *d = q + STAGES * TILE; /* (STAGES, TILE), TILE_V */
	struct vec16 *shared_p = (struct vec16 *)(d + STAGES * TILE_V),
				 *shared_ds = shared_p + SHARED_SCORES(SPLIT, M * NT);
	struct vec8 *stat = (struct vec8 *)(shared_ds + SHARED_SCORES(SPLIT, M * NT)); /* (STAGES, QUERIES) */
	int *until = (int *)(stat + STAGES * QUERIES);                                 /* (ROWS) */
	int heads = (int)a.heads, dim = (int)a.dim, dim_v = dim_v_of<DIM, DIM_V>(&a), wide = wide_of<DIM, DIM_V>(&a);
	int group = heads / (int)a.kv_heads, warp = threadIdx.x / 32, me = threadIdx.x;
	struct where at = block_where(&a, a.kv_heads, tiles);
	int64_t k0 = at.row + (tiles - 1 - at.tile) * ROWS, first_query = k0 * heads + at.head * group;
	int to_v = values_after<DIM, DIM_V>(&a, at.head);
	int keys = at_most(at.row + a.seq - k0, ROWS), row = warp / SPLIT * 16 * M, part = warp % SPLIT * PART;
	/* a tile of queries: the group's head, the first token from k0 on, its stage; and tokens from k0 on */
	int head = 0, query = 0, stage = 0;
	float dk[M * PART / 8][4] = {{0}}, dv[M * PART_V / 8][4] = {{0}}, p[M * NT][4], ds[M * NT][4];
	struct scoring form = scoring_of<FORM>(&a, at.head * group);
	int start[2 * M];

	if (FORM == BIASED) starts_of<DIM, M>(start, a.starts + k0, at.row - k0, row, keys);
	qkv += k0 * wide;
	dqkv += k0 * wide + (heads + at.head) * dim;
	tile_copy<DIM, ROWS>(k, qkv + (heads + at.head) * dim, wide, keys, dim);
	tile_copy<DIM_V, ROWS>(v, qkv + (heads + at.head) * dim + to_v, wide, keys, dim_v);
	if (me < ROWS) until[me] = me < keys ? (int)(seen_until(&a, at.row, k0 + me) - k0) : 0;
	__syncthreads();
	int end = until[keys - 1], all_see = until[0];
	qkv += at.head * group * dim;
	d_o += first_query * dim_v;
	queries_copy<DIM, DIM_V, QUERIES>(q, d, qkv, d_o, &a, wide, 0, 0, end);
	if (me < QUERIES) stat[me] = query_load(lse, delta, first_query + (int64_t)me * heads, me < end);
#pragma unroll 1
	while (head < group) {
		int rest = query + QUERIES < end, next = rest ? query + QUERIES : 0, next_head = rest ? head : head + 1;
		int next_stage = STAGES - 1 - stage;
		struct bf16 *my_q = q + stage * TILE + part, *my_d = d + stage * TILE_V + part;
		struct bf16 *next_q = q + next_stage * TILE, *next_d = d + next_stage * TILE_V;
		struct vec8 next_stat = {{0, 0}};
		copies_wait<0>();
		__syncthreads(); /* this tile is there, and all threads have used the last one */
		if (STAGES > 1 && next_head < group)
			queries_copy<DIM, DIM_V, QUERIES>(next_q, next_d, qkv, d_o, &a, wide, next, next_head, end - next);
		if (me < QUERIES && next_head < group)
			next_stat = query_load(lse, delta, first_query + (int64_t)(next + me) * heads + next_head, next + me < end);
		/* keys down, queries across */
		scores<DIM, PART, M, NT>(p, k + row * STRIDE + part, my_q);
		scores<DIM_V, PART_V, M, NT>(ds, v + row * STRIDE_V + part, my_d);
		if (SPLIT > 1) scores_share<SPLIT, M * NT>(p, ds, shared_p, shared_ds);
		if (FORM == BIASED)
			add_bias<DIM, M, NT>(p, bias_of(&a.alibi, at.head * group + head, 1 / form.unit), row, query, start, 1);
#pragma unroll
		for (int n = 0; n < NT; n++) {
			struct vec16 two = load16(stat + stage * QUERIES + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
			for (int i = 0; i < 4 * M; i++)
				gradient<FORM>(&p[i / 4 * NT + n][i % 4], &ds[i / 4 * NT + n][i % 4], form, as_float(two.w[i % 2 * 2]),
					as_float(two.w[i % 2 * 2 + 1]));
		}
		if (query < ROWS - 1 || query + QUERIES > all_see) {
			int low[2 * M], high[2 * M];
#pragma unroll
			for (int r = 0; r < 2 * M; r++) {
				low[r] = row + row_of(r) - query;
				high[r] = until[row + row_of(r)] - query;
			}
			hide<M, NT>(p, low, high, 0);
			hide<M, NT>(ds, low, high, 0);
		}
		accumulate<DIM_V, PART_V, M, NT>(dv, p, my_d);
		accumulate<DIM, PART, M, NT>(dk, ds, my_q);
		if (STAGES == 1) {
			__syncthreads(); /* all threads have used this tile */
			if (next_head < group)
				queries_copy<DIM, DIM_V, QUERIES>(next_q, next_d, qkv, d_o, &a, wide, next, next_head, end - next);
		}
		if (me < QUERIES) stat[next_stage * QUERIES + me] = next_stat;
		head = next_head;
		query = next;
		stage = next_stage;
	}
	float one[2 * M], scale[2 * M];
#pragma unroll
	for (int r = 0; r < 2 * M; r++) {
		one[r] = 1;
		scale[r] = a.scale;
	}
	dqkv += row * wide + part;
	rows_store<M, PART>(dqkv, wide, dk, scale, keys - row, dim - part);
	rows_store<M, PART_V>(dqkv + to_v, wide, dv, one, keys - row, dim_v - part);
}

template <int DIM, int DIM_V, int FORM>
static __global__ void __launch_bounds__(BLOCK, 2) attention_backward_q_mma(struct attention_args a, struct bf16 *dqkv,
	const struct bf16 *d_o, const float *lse, const float *delta, const struct bf16 *qkv, int64_t tiles)
{
	enum { M = Q_M, SPLIT = Q_SPLIT, ROWS = ROWS_OF(M, SPLIT), PART = DIM / SPLIT, KEYS = Q_KEYS, NT = KEYS / 8 };
	enum { PART_V = DIM_V / SPLIT };
	DYNAMIC_SHARED(struct bf16, q);
	struct bf16 *d = q + ROWS * STRIDE, *k = d + ROWS * STRIDE_V, *v = k + KEYS * STRIDE;
	struct vec16 *shared_p = (struct vec16 *)(v + KEYS * STRIDE_V),
				 *shared_ds = shared_p + SHARED_SCORES(SPLIT, M * NT);
	int dim = (int)a.dim, dim_v = dim_v_of<DIM, DIM_V>(&a), wide = wide_of<DIM, DIM_V>(&a), warp = threadIdx.x / 32;
	struct where at = block_where(&a, a.heads, tiles);
	int64_t t0 = at.row + at.tile * ROWS, kv = at.head / (a.heads / a.kv_heads);
	int queries = at_most(at.row + a.seq - t0, ROWS);
	int row = warp / SPLIT * 16 * M, part = warp % SPLIT * PART;
	/* tokens from here on from t0 */
	int key = (int)(first_key(&a, at.row, t0) - t0), all_see = (int)(first_key(&a, at.row, t0 + queries - 1) - t0);
	int first[2 * M];
	const struct bf16 *from = qkv + (t0 + key) * wide + (a.heads + kv) * dim; /* a tile of k; v's is to_v further */
	int to_v = values_after<DIM, DIM_V>(&a, kv);
	float dq[M * PART / 8][4] = {{0}}, p[M * NT][4], ds[M * NT][4], scale[2 * M];
	struct vec8 stat[2 * M];
	struct scoring form = scoring_of<FORM>(&a, at.head);
	int start[2 * M];

	queries_copy<DIM, DIM_V, ROWS>(q, d, qkv + t0 * wide, d_o + t0 * a.heads * dim_v, &a, wide, 0, (int)at.head,
		queries);
	tile_copy<DIM_V, KEYS>(v, from + to_v, wide, queries - key, dim_v);
	copies_commit();
	if (FORM == BIASED) starts_of<DIM, M>(start, a.starts + t0, at.row - t0, row, queries);
#pragma unroll
	for (int r = 0; r < 2 * M; r++) {
		int token = row + row_of(r), there = token < queries;
		first[r] = there ? (int)(first_key(&a, at.row, t0 + token) - t0) : 0;
		stat[r] = query_load(lse, delta, (t0 + token) * a.heads + at.head, there);
		scale[r] = a.scale;
	}
#pragma unroll 1
	for (; key < queries; key += KEYS) {
		copies_wait<0>();
		__syncthreads(); /* v is there, and all threads have used k */
		tile_copy<DIM, KEYS>(k, from, wide, queries - key, dim);
		copies_commit();
		scores<DIM_V, PART_V, M, NT>(ds, d + row * STRIDE_V + part, v + part);
		copies_wait<0>();
		__syncthreads(); /* k is there, and all threads have used v */
		from += KEYS * wide;
		if (key + KEYS < queries) tile_copy<DIM_V, KEYS>(v, from + to_v, wide, queries - key - KEYS, dim_v);
		copies_commit();
		scores<DIM, PART, M, NT>(p, q + row * STRIDE + part, k + part);
		if (SPLIT > 1) scores_share<SPLIT, M * NT>(p, ds, shared_p, shared_ds);
		if (FORM == BIASED) add_bias<DIM, M, NT>(p, form.bias, row, key, start, 0);
#pragma unroll
		for (int n = 0; n < M * NT; n++)
#pragma unroll
			for (int i = 0; i < 4; i++) {
				struct vec8 one = stat[n / NT * 2 + i / 2];
				gradient<FORM>(&p[n][i], &ds[n][i], form, as_float(one.w[0]), as_float(one.w[1]));
			}
		if (key < all_see || key + KEYS - 1 > 0) {
			int low[2 * M], high[2 * M];
#pragma unroll
			for (int r = 0; r < 2 * M; r++) {
				low[r] = first[r] - key;
				high[r] = row + row_of(r) + 1 - key;
			}
			hide<M, NT>(ds, low, high, 0);
		}
		accumulate<DIM, PART, M, NT>(dq, ds, k + part);
	}
	dqkv += (t0 + row) * wide + at.head * dim + part;
	rows_store<M, PART>(dqkv, wide, dq, scale, queries - row, dim - part);
}

/* ---- launchers ---- */

/* Heads of v of another size than those of q and k have one kernel, in which rows of 192 and of 128 elements fit */
static int is_unlike(const struct attention_args *a) { return attention_dim_v(a) != a->dim; }

int attention_takes_mma(const struct cuda_queue *q, const struct attention_args *a, int backward)
{
	const void *x = backward ? a->dqkv : a->o, *y = backward ? a->d_o : NULL;
	int biased = a->alibi.max != 0, unlike_fits = a->dim <= 192 && a->dim_v <= 128 && a->cap == 0 && !biased;
	int fits = is_unlike(a) ? unlike_fits : a->dim <= (!biased ? 512 : a->alibi.rounded ? 64 : 128);
	return q->elem == 2 && fits && wide_rows(a->dim | attention_dim_v(a), a->qkv, x, y, NULL);
}

/* Bytes of shared memory for `elements`, and SHARED_SCORES */
static size_t shared_bytes(int elements, int scores) { return (size_t)(elements * 2 + scores * 16); }

template <int DIM, int DIM_V, int FORM>
static void forward(const struct cuda_queue *q, const struct attention_args a)
{
	enum { M = FORWARD_M, SPLIT = FORWARD_SPLIT, ROWS = ROWS_OF(M, SPLIT), KEYS = FORWARD_KEYS };
	int64_t tiles = div_up(a.seq, ROWS);
	size_t bytes = shared_bytes((ROWS + KEYS) * STRIDE + KEYS * STRIDE_V, SHARED_SCORES(SPLIT, M * KEYS / 8));
	LAUNCH((attention_forward_mma<DIM, DIM_V, FORM>), a.n / a.seq * a.heads * tiles, BLOCK, bytes, q->stream, a,
		(struct bf16 *)a.o, a.lse, (const struct bf16 *)a.qkv, tiles);
}

template <int DIM, int DIM_V, int FORM>
static void backward_kv(const struct cuda_queue *q, const struct attention_args a, const float *delta)
{
	enum { M = KV_M, SPLIT = KV_SPLIT, ROWS = ROWS_OF(M, SPLIT), QUERIES = KV_QUERIES, STAGES = KV_STAGES };
	int64_t tiles = div_up(a.seq, ROWS);
	size_t bytes = shared_bytes((ROWS + STAGES * QUERIES) * (STRIDE + STRIDE_V),
		2 * SHARED_SCORES(SPLIT, M * QUERIES / 8));
	bytes += STAGES * QUERIES * sizeof(struct vec8) + ROWS * sizeof(int);
	LAUNCH((attention_backward_kv_mma<DIM, DIM_V, FORM>), a.n / a.seq * a.kv_heads * tiles, BLOCK, bytes, q->stream, a,
		(struct bf16 *)a.dqkv, (const struct bf16 *)a.d_o, a.lse, delta, (const struct bf16 *)a.qkv, tiles);
}

template <int DIM, int DIM_V, int FORM>
static void backward_q(const struct cuda_queue *q, const struct attention_args a, const float *delta)
{
	enum { M = Q_M, SPLIT = Q_SPLIT, ROWS = ROWS_OF(M, SPLIT), KEYS = Q_KEYS };
	int64_t tiles = div_up(a.seq, ROWS);
	size_t bytes = shared_bytes((ROWS + KEYS) * (STRIDE + STRIDE_V), 2 * SHARED_SCORES(SPLIT, M * KEYS / 8));
	LAUNCH((attention_backward_q_mma<DIM, DIM_V, FORM>), a.n / a.seq * a.heads * tiles, BLOCK, bytes, q->stream, a,
		(struct bf16 *)a.dqkv, (const struct bf16 *)a.d_o, a.lse, delta, (const struct bf16 *)a.qkv, tiles);
}

/* call<DIM, DIM_V, FORM>(...) for these heads */
#define BY_HEADS(a, call, ...) \
	do { \
		if (is_unlike(a)) call<192, 128, PLAIN>(__VA_ARGS__); \
		else if ((a)->alibi.max != 0 && (a)->dim <= 64) call<64, 64, BIASED>(__VA_ARGS__); \
		else if ((a)->alibi.max != 0) call<128, 128, BIASED>(__VA_ARGS__); \
		else if ((a)->cap == 0) BY_DIM(a, call, PLAIN, __VA_ARGS__); \
		else BY_DIM(a, call, CAPPED, __VA_ARGS__); \
	} while (0)
#define BY_DIM(a, call, form, ...) \
	do { \
		if ((a)->dim <= 64) call<64, 64, form>(__VA_ARGS__); \
		else if ((a)->dim <= 128) call<128, 128, form>(__VA_ARGS__); \
		else if ((a)->dim <= 256) call<256, 256, form>(__VA_ARGS__); \
		else call<512, 512, form>(__VA_ARGS__); \
	} while (0)

void attention_forward_by_mma(const struct cuda_queue *q, const struct attention_args *a)
{
	BY_HEADS(a, forward, q, *a);
}

void attention_backward_by_mma(const struct cuda_queue *q, const struct attention_args *a, const float *delta)
{
	BY_HEADS(a, backward_kv, q, *a, delta);
	BY_HEADS(a, backward_q, q, *a, delta);
}

#define KERNELS(dim, dim_v, form) \
	(const void *)attention_forward_mma<dim, dim_v, form>, (const void *)attention_backward_kv_mma<dim, dim_v, form>, \
		(const void *)attention_backward_q_mma<dim, dim_v, form>

cudaError_t attention_mma_prepare(void)
{
	const void *kernels[] = {KERNELS(64, 64, PLAIN), KERNELS(64, 64, CAPPED), KERNELS(64, 64, BIASED),
		KERNELS(128, 128, PLAIN), KERNELS(128, 128, CAPPED), KERNELS(128, 128, BIASED), KERNELS(192, 128, PLAIN),
		KERNELS(256, 256, PLAIN), KERNELS(256, 256, CAPPED), KERNELS(512, 512, PLAIN), KERNELS(512, 512, CAPPED)};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
