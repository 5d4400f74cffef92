/* delta.cu: the gated delta rule in chunks of 64 tokens (cpu/kernel-delta.h has its formulas)
 *
 * DELTA_SEGMENT tokens are computed at a time, a wave: whole chunks, of as many documents as there are. What depends on
 * earlier tokens by a document's state alone is computed for all its chunks at once; the rest, chunk after chunk, is as
 * little as possible, and columns of the state are independent, so that a block has SLICE of them:
 *     chunk      one chunk and head: T = (1 + A)^-1, P, and the factors of its tokens
 *     scan       one document, head and slice, forwards: d, o; backward: d and the states before the chunks
 *     scan_back  the same, backwards: r, dv, and the gradients of the states behind the chunks
 *     gradients  one chunk and head: dq, dk, db and the gradient of g
 * Backward first scans all waves but the last for the states between them.
 *
 * These kernels use plain multiplications. All is fp32 but for the elements of tensors.
 */
#include "common.h"

#define TILE DELTA_CHUNK
#define PITCH (TILE + 1)               /* of a tile's rows in shared memory: no two rows begin in the same bank */
#define SLICE 32                       /* columns of a state in a block of a scan */
#define ACROSS (SLICE + 1)             /* their pitch */
#define ALL (TILE * PITCH)             /* floats of a tile */
#define PART (TILE * ACROSS)           /* of a tile of SLICE columns */
#define FACTORS 4                      /* of a token: */
enum { BETA, DECAY, LEFT, LOG_DECAY }; /* beta, e, l, g */

/* Tokens first .. end - 1, whose chunks and documents (the parts of them that lie here) are counted; launches compute
 * those from from_chunk and from_piece on */
struct wave {
	int64_t number, first, end;
	int chunks, pieces, from_chunk, from_piece;
};

struct room {
	float *kept;             /* (waves - 1, HV, DK, DV): the state between waves; later its gradient */
	float *dg;               /* (N, HV) */
	float *T, *P;            /* (tokens of a wave, HV, TILE) */
	float *factors;          /* (tokens, HV, FACTORS) */
	float *d, *r;            /* (tokens, HV, DV) */
	float *states, *dstates; /* (chunks, HV, DK, DV): before a chunk; the gradient of the same */
	uint32_t *chunk, *piece; /* (chunks + 1): first tokens; (pieces + 1): first chunks */
};

static struct room room_of(const struct delta_args *a)
{
	int64_t tokens = DELTA_SEGMENT + TILE, heads = a->value_heads, state = heads * a->key_dim * a->value_dim;
	struct room r = {};
	r.kept = a->work;
	r.dg = r.kept + delta_kept(a) * state;
	r.T = r.dg + a->n * heads;
	r.P = r.T + tokens * heads * TILE;
	r.factors = r.P + tokens * heads * TILE;
	r.d = r.factors + tokens * heads * FACTORS;
	r.r = r.d + tokens * heads * a->value_dim;
	r.states = r.r + tokens * heads * a->value_dim;
	r.dstates = r.states + tokens / TILE * state;
	r.chunk = (uint32_t *)(r.dstates + tokens / TILE * state);
	r.piece = r.chunk + tokens + 1;
	return r;
}

/* ---- where chunks are ---- */

static __host__ __device__ __forceinline__ int64_t tokens_before(const struct delta_args *a, const uint32_t *starts,
	int64_t t)
{
	return t % a->seq - starts[t];
}

/* The tables of a wave, by one block */
static __global__ void __launch_bounds__(THREADS) delta_table_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(uint32_t, counts); /* (2, warps) */
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	uint32_t chunks = 0, pieces = 0;
	for (int64_t from = w.first; from < w.end; from += THREADS) {
		int64_t t = from + threadIdx.x, before = t < w.end ? tokens_before(&a, a.starts, t) : 1;
		int is_chunk = before % TILE == 0, is_piece = is_chunk && (before == 0 || t == w.first);
		uint32_t chunk_lanes = __ballot_sync(FULL, is_chunk), piece_lanes = __ballot_sync(FULL, is_piece);
		uint32_t lower = (1u << lane) - 1, my_chunk = chunks, my_piece = pieces;
		if (lane == 0) {
			counts[warp] = __popc(chunk_lanes);
			counts[THREADS / 32 + warp] = __popc(piece_lanes);
		}
		__syncthreads();
		for (int i = 0; i < THREADS / 32; i++) {
			if (i < warp) {
				my_chunk += counts[i];
				my_piece += counts[THREADS / 32 + i];
			}
			chunks += counts[i];
			pieces += counts[THREADS / 32 + i];
		}
		my_chunk += __popc(chunk_lanes & lower);
		if (is_chunk) r.chunk[my_chunk] = (uint32_t)t;
		if (is_piece) r.piece[my_piece + __popc(piece_lanes & lower)] = my_chunk;
		__syncthreads();
	}
	if (threadIdx.x > 0) return;
	r.chunk[chunks] = (uint32_t)w.end;
	r.piece[pieces] = chunks;
}

/* A chunk: tokens first .. first + n - 1; the wave's token `at` is its first */
struct chunk {
	int64_t first, n, at;
	int begins, goes_on; /* its document begins with it; goes on behind it */
};

static __device__ __forceinline__ struct chunk chunk_at(const struct delta_args *a, const struct room *r,
	const struct wave *w, int64_t i)
{
	struct chunk c = {r->chunk[i], (int64_t)r->chunk[i + 1] - r->chunk[i], r->chunk[i] - w->first, 0, 0};
	int64_t next = c.first + c.n;
	c.begins = tokens_before(a, a->starts, c.first) == 0;
	c.goes_on = next < a->n && tokens_before(a, a->starts, next) > 0;
	return c;
}

/* The state before the wave's token `at`, of all that are kept */
static __device__ __forceinline__ float *state_at(const struct delta_args *a, float *states, int64_t at, int64_t head)
{
	return states + (at / TILE * a->value_heads + head) * a->key_dim * a->value_dim;
}

/* The state at the end of wave `number` */
static __device__ __forceinline__ float *kept_at(const struct delta_args *a, const struct room *r, int64_t number,
	int64_t head)
{
	return r->kept + (number * a->value_heads + head) * a->key_dim * a->value_dim;
}

/* ---- tiles. A thread has 4 rows, 4 y .. 4 y + 3, and of a tile columns x, x + 16, x + 32, x + 48, of a part x, x + 16
 * ---- */

#define Y (threadIdx.x / 16)
#define X (threadIdx.x % 16)

/* to (TILE, PITCH) = rows of from, times their factors (FACTORS apart; NULL: 1); zeros where there are none */
template <typename T>
static __device__ __forceinline__ void tile_load(float *to, const T *from, int64_t stride, int64_t rows,
	int64_t columns)
{
	for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) {
		int r = e / TILE, c = e % TILE;
		to[r * PITCH + c] = r < rows && c < columns ? get(from[r * stride + c]) : 0;
	}
}

template <typename T>
static __device__ __forceinline__ void tile_load_times(float *to, const T *from, int64_t stride, int64_t rows,
	int64_t columns, const float *factor)
{
	for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) {
		int r = e / TILE, c = e % TILE;
		to[r * PITCH + c] = r < rows && c < columns ? get(from[r * stride + c]) * factor[r] : 0;
	}
}

/* c += x y (TILE deep), or with x or y transposed */
template <int TX, int TY>
static __device__ __forceinline__ void tile_add(float c[4][4], const float *x, const float *y)
{
#pragma unroll 4
	for (int m = 0; m < TILE; m++) {
		float p[4], q[4];
#pragma unroll
		for (int i = 0; i < 4; i++) {
			p[i] = TX ? x[m * PITCH + 4 * Y + i] : x[(4 * Y + i) * PITCH + m];
			q[i] = TY ? y[(X + 16 * i) * PITCH + m] : y[m * PITCH + X + 16 * i];
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < 4; j++) c[i][j] += p[i] * q[j];
	}
}

/* The same with SLICE columns of y */
template <int TX>
static __device__ __forceinline__ void part_add(float c[4][2], const float *x, const float *y)
{
#pragma unroll 4
	for (int m = 0; m < TILE; m++) {
		float p[4], q[2] = {y[m * ACROSS + X], y[m * ACROSS + X + 16]};
#pragma unroll
		for (int i = 0; i < 4; i++) p[i] = TX ? x[m * PITCH + 4 * Y + i] : x[(4 * Y + i) * PITCH + m];
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) c[i][j] += p[i] * q[j];
	}
}

static __device__ __forceinline__ void part_store(float *to, const float c[4][2])
{
#pragma unroll
	for (int i = 0; i < 4; i++)
#pragma unroll
		for (int j = 0; j < 2; j++) to[(4 * Y + i) * ACROSS + X + 16 * j] = c[i][j];
}

/* A head's q, k and v rows, from the chunk's first token on */
template <typename T>
struct head_rows {
	const T *q, *k, *v;
	int64_t stride;
};

template <typename T>
static __device__ __forceinline__ struct head_rows<T> head_rows_of(const struct delta_args *a, int64_t head,
	int64_t first) {
	int64_t key = head / (a->value_heads / a->key_heads), keys = a->key_heads * a->key_dim;
	int64_t stride = 2 * keys + a->value_heads * a->value_dim;
	const T *row = (const T *)a->qkv + first * stride;
	struct head_rows<T> h = {
		row + key * a->key_dim, row + keys + key * a->key_dim, row + 2 * keys + head * a->value_dim, stride
	};
	return h;
}

/* D of 4 rows from 4 Y on, in a column. The exponents are sums of g, not differences of sums, which may be large */
static __device__ __forceinline__ void
decay_of(float d[4], const float *g, int column)
{
	float x = 0;
	int row = 4 * Y;
	for (int m = column + 1; m < row; m++) x += g[m];
#pragma unroll
	for (int i = 0; i < 4; i++, row++) {
		if (row > column) x += g[row];
		d[i] = row >= column ? expf(x) : 0;
	}
}

/* torch.nn.functional.softplus */
static __device__ __forceinline__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* ---- a chunk: T, P, factors ---- */

/* t = (1 + a)^-1, a strictly lower triangular; y: room for a tile. Blocks of 16 on the diagonal by substitution, then
 * twice pairs of blocks: the inverse of (P 0; A Q) has - Q^-1 A P^-1 below. */
static __device__ __forceinline__ void lower_inverse(float *t, const float *a, float *y)
{
	for (int e = threadIdx.x; e < TILE * TILE; e += THREADS) t[e / TILE * PITCH + e % TILE] = 0;
	__syncthreads();
	if (threadIdx.x < TILE) {
		int base = threadIdx.x / 16 * 16, column = threadIdx.x % 16;
		float x[16];
#pragma unroll
		for (int i = 0; i < 16; i++) {
			x[i] = i == column;
#pragma unroll
			for (int m = 0; m < i; m++) x[i] -= a[(base + i) * PITCH + base + m] * x[m];
			t[(base + i) * PITCH + base + column] = x[i];
		}
	}
	for (int size = 16; size < TILE; size *= 2) {
		__syncthreads();
		for (int e = threadIdx.x; e < TILE / 2 * size; e += THREADS) {
			int base = e / (size * size) * 2 * size, i = base + size + e / size % size, j = base + e % size;
			float sum = 0;
			for (int m = base; m < base + size; m++) sum += a[i * PITCH + m] * t[m * PITCH + j];
			y[i * PITCH + j] = sum;
		}
		__syncthreads();
		for (int e = threadIdx.x; e < TILE / 2 * size; e += THREADS) {
			int base = e / (size * size) * 2 * size, i = base + size + e / size % size, j = base + e % size;
			float sum = 0;
			for (int m = base + size; m < base + 2 * size; m++) sum -= t[i * PITCH + m] * y[m * PITCH + j];
			t[i * PITCH + j] = sum;
		}
	}
	__syncthreads();
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) delta_chunk_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, k);
	float *q = k + ALL, *t = q + ALL, *g = t + ALL, *beta = g + TILE;
	int64_t head = blockIdx.x % a.value_heads;
	struct chunk c = chunk_at(&a, &r, &w, w.from_chunk + blockIdx.x / a.value_heads);
	struct head_rows<T> h = head_rows_of<T>(&a, head, c.first);
	float kk[4][4] = {{0}}, qk[4][4] = {{0}}, decay[4];

	if (threadIdx.x < TILE) {
		int i = threadIdx.x;
		float x = 0, b = 0, rate = expf(get(((const T *)a.a_log)[head]));
		if (i < c.n) {
			x = get(((const T *)a.a)[(c.first + i) * a.ld + head]) + get(((const T *)a.dt_bias)[head]);
			b = get(((const T *)a.b)[(c.first + i) * a.ld + head]);
		}
		g[i] = i < c.n ? -rate * softplus(x) : 0;
		beta[i] = i < c.n ? 1.0f / (1.0f + expf(-b)) : 0;
	}
	for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) {
		__syncthreads();
		tile_load(k, h.k + c0, h.stride, c.n, a.key_dim - c0);
		tile_load(q, h.q + c0, h.stride, c.n, a.key_dim - c0);
		__syncthreads();
		tile_add<0, 1>(kk, k, k);
		tile_add<0, 1>(qk, q, k);
	}
	__syncthreads();
#pragma unroll
	for (int j = 0; j < 4; j++) {
		int column = X + 16 * j;
		decay_of(decay, g, column);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int row = 4 * Y + i;
			k[row * PITCH + column] = row > column ? beta[row] * decay[i] * kk[i][j] : 0;
			if (row < c.n)
				r.P[((c.at + row) * a.value_heads + head) * TILE + column] = row >= column ? decay[i] * qk[i][j] : 0;
		}
	}
	if (threadIdx.x < c.n) {
		int i = threadIdx.x;
		float *to = r.factors + ((c.at + i) * a.value_heads + head) * FACTORS, from = 0, left = 0;
		for (int m = 0; m <= i; m++) from += g[m];
		for (int m = i + 1; m < c.n; m++) left += g[m];
		to[BETA] = beta[i];
		to[DECAY] = expf(from);
		to[LEFT] = expf(left);
		to[LOG_DECAY] = g[i];
	}
	__syncthreads();
	lower_inverse(t, k, q);
	for (int e = threadIdx.x; e < c.n * TILE; e += THREADS)
		r.T[((c.at + e / TILE) * a.value_heads + head) * TILE + e % TILE] = t[e / TILE * PITCH + e % TILE];
}

/* to (FACTORS, TILE): those of the chunk's tokens, zeros after them */
static __device__ __forceinline__ void factors_load(float *to, const struct delta_args *a, const struct room *r,
	const struct chunk *c, int64_t head)
{
	for (int e = threadIdx.x; e < FACTORS * TILE; e += THREADS) {
		int i = e / FACTORS, k = e % FACTORS;
		to[k * TILE + i] = i < c->n ? r->factors[((c->at + i) * a->value_heads + head) * FACTORS + k] : 0;
	}
}

/* T or P of the chunk */
static __device__ __forceinline__ void matrix_load(float *to, const float *from, const struct delta_args *a,
	const struct chunk *c, int64_t head)
{
	tile_load(to, from + (c->at * a->value_heads + head) * TILE, a->value_heads * TILE, c->n, TILE);
}

/* ---- scans ---- */

/* What a block of a scan computes, and the columns of its slice */
struct strip {
	int64_t head, column, columns;
	int from, to; /* chunks */
};

static __device__ __forceinline__ struct strip strip_of(const struct delta_args *a, const struct room *r,
	const struct wave *w)
{
	int64_t slices = (a->value_dim + SLICE - 1) / SLICE, b = blockIdx.x;
	struct strip s = {b / slices % a->value_heads, b % slices * SLICE, 0, 0, 0};
	int64_t piece = w->from_piece + b / slices / a->value_heads;
	s.columns = a->value_dim - s.column;
	s.from = (int)r->piece[piece];
	s.to = (int)r->piece[piece + 1];
	return s;
}

/* s (DK up to a multiple of TILE, ACROSS) = a state's slice; from NULL: zeros */
static __device__ __forceinline__ void state_load(float *s, const float *from, const struct delta_args *a,
	const struct strip *at)
{
	for (int e = threadIdx.x; e < (a->key_dim + TILE - 1) / TILE * TILE * SLICE; e += THREADS) {
		int r = e / SLICE, c = e % SLICE;
		s[r * ACROSS + c] = from && r < a->key_dim && c < at->columns ? from[r * a->value_dim + at->column + c] : 0;
	}
}

static __device__ __forceinline__ void state_store(float *to, const float *s, const struct delta_args *a,
	const struct strip *at)
{
	for (int e = threadIdx.x; e < a->key_dim * SLICE; e += THREADS) {
		int r = e / SLICE, c = e % SLICE;
		if (c < at->columns) to[r * a->value_dim + at->column + c] = s[r * ACROSS + c];
	}
}

/* c += x s: x (n rows, DK) by tiles in `tile` */
template <typename T>
static __device__ __forceinline__ void rows_times_state(float c[4][2], float *tile, const T *x, int64_t stride,
	int64_t n, const float *s, int64_t dim)
{
	for (int64_t c0 = 0; c0 < dim; c0 += TILE) {
		__syncthreads();
		tile_load(tile, x + c0, stride, n, dim - c0);
		__syncthreads();
		part_add<0>(c, tile, s + c0 * ACROSS);
	}
}

/* MODE 0: forward. 1: the state behind the wave alone; 2: d, and the states before chunks */
template <typename T, int MODE>
static __global__ void __launch_bounds__(THREADS, 2) delta_scan_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, x);
	float *m = x + ALL, *d = m + ALL, *f = d + PART, *s = f + FACTORS * TILE;
	struct strip at = strip_of(&a, &r, &w);
	struct chunk c = chunk_at(&a, &r, &w, at.from);

	state_load(s, c.begins ? NULL : kept_at(&a, &r, w.number - 1, at.head), &a, &at);
	for (int i = at.from; i < at.to; i++) {
		c = chunk_at(&a, &r, &w, i);
		struct head_rows<T> h = head_rows_of<T>(&a, at.head, c.first);
		float sum[4][2] = {{0}};
		__syncthreads();
		factors_load(f, &a, &r, &c, at.head);
		matrix_load(m, r.T, &a, &c, at.head);
		if (MODE == 2 && !c.begins) state_store(state_at(&a, r.states, c.at, at.head), s, &a, &at);
		if (!c.begins) rows_times_state(sum, x, h.k, h.stride, c.n, s, a.key_dim);
		__syncthreads();
#pragma unroll
		for (int j = 0; j < 4; j++) /* beta (v - e k S) */
#pragma unroll
			for (int l = 0; l < 2; l++) {
				int row = 4 * Y + j, column = X + 16 * l;
				float v = row < c.n && column < at.columns ? get(h.v[row * h.stride + at.column + column]) : 0;
				d[row * ACROSS + column] = f[BETA * TILE + row] * (v - f[DECAY * TILE + row] * sum[j][l]);
				sum[j][l] = 0;
			}
		__syncthreads();
		part_add<0>(sum, m, d);
		__syncthreads();
		part_store(d, sum);
#pragma unroll
		for (int j = 0; MODE == 2 && j < 4; j++)
#pragma unroll
			for (int l = 0; l < 2; l++) {
				int row = 4 * Y + j, column = X + 16 * l;
				if (row < c.n && column < at.columns)
					r.d[((c.at + row) * a.value_heads + at.head) * a.value_dim + at.column + column] = sum[j][l];
			}
		if (MODE == 0) {
			matrix_load(m, r.P, &a, &c, at.head);
#pragma unroll
			for (int j = 0; j < 4; j++) sum[j][0] = sum[j][1] = 0;
			if (!c.begins) rows_times_state(sum, x, h.q, h.stride, c.n, s, a.key_dim);
#pragma unroll
			for (int j = 0; j < 4; j++)
#pragma unroll
				for (int l = 0; l < 2; l++) sum[j][l] *= f[DECAY * TILE + 4 * Y + j];
			__syncthreads();
			part_add<0>(sum, m, d);
#pragma unroll
			for (int j = 0; j < 4; j++)
#pragma unroll
				for (int l = 0; l < 2; l++) {
					int row = 4 * Y + j, column = X + 16 * l;
					if (row < c.n && column < at.columns)
						put((T *)a.o + ((c.first + row) * a.value_heads + at.head) * a.value_dim + at.column + column,
							sum[j][l]);
				}
		}
		float whole = f[DECAY * TILE + c.n - 1];
		for (int64_t c0 = 0; c.goes_on && c0 < a.key_dim; c0 += TILE) { /* S = e_C S + (l k)' d */
			__syncthreads();
			tile_load_times(x, h.k + c0, h.stride, c.n, a.key_dim - c0, f + LEFT * TILE);
			__syncthreads();
#pragma unroll
			for (int j = 0; j < 4; j++)
#pragma unroll
				for (int l = 0; l < 2; l++)
					sum[j][l] = c.begins ? 0 : whole * s[(c0 + 4 * Y + j) * ACROSS + X + 16 * l];
			part_add<1>(sum, x, d);
			part_store(s + c0 * ACROSS, sum);
		}
	}
	__syncthreads();
	if (MODE < 2 && c.goes_on && c.first + c.n == w.end) state_store(kept_at(&a, &r, w.number, at.head), s, &a, &at);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	delta_scan_back_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, x);
	float *m = x + ALL, *g = m + ALL, *y = g + PART, *f = y + PART, *s = f + FACTORS * TILE; /* s: dS; g: d_o; y: r */
	struct strip at = strip_of(&a, &r, &w);
	struct chunk c = chunk_at(&a, &r, &w, at.to - 1);
	int64_t values = a.value_heads * a.value_dim;

	state_load(s, c.goes_on ? kept_at(&a, &r, w.number, at.head) : NULL, &a, &at);
	for (int i = at.to - 1; i >= at.from; i--) {
		c = chunk_at(&a, &r, &w, i);
		struct head_rows<T> h = head_rows_of<T>(&a, at.head, c.first);
		int64_t value = at.head * a.value_dim + at.column;
		float sum[4][2] = {{0}};
		__syncthreads();
		factors_load(f, &a, &r, &c, at.head);
		matrix_load(m, r.P, &a, &c, at.head);
		if (c.goes_on) state_store(state_at(&a, r.dstates, c.at + c.n, at.head), s, &a, &at);
		for (int e = threadIdx.x; e < TILE * SLICE; e += THREADS) {
			int row = e / SLICE, column = e % SLICE;
			g[row * ACROSS + column] = row < c.n && column < at.columns
				? get(((const T *)a.d_o)[(c.first + row) * values + value + column])
				: 0;
		}
		if (c.goes_on) rows_times_state(sum, x, h.k, h.stride, c.n, s, a.key_dim);
		__syncthreads();
#pragma unroll
		for (int j = 0; j < 4; j++)
#pragma unroll
			for (int l = 0; l < 2; l++) sum[j][l] *= f[LEFT * TILE + 4 * Y + j];
		part_add<1>(sum, m, g);
		part_store(y, sum);
		__syncthreads();
		matrix_load(m, r.T, &a, &c, at.head);
#pragma unroll
		for (int j = 0; j < 4; j++) sum[j][0] = sum[j][1] = 0;
		__syncthreads();
		part_add<1>(sum, m, y);
		__syncthreads();
		part_store(y, sum);
#pragma unroll
		for (int j = 0; j < 4; j++)
#pragma unroll
			for (int l = 0; l < 2; l++) {
				int row = 4 * Y + j, column = X + 16 * l;
				if (row >= c.n || column >= at.columns) continue;
				r.r[(c.at + row) * values + value + column] = sum[j][l];
				put((T *)a.dv + (c.first + row) * values + value + column, f[BETA * TILE + row] * sum[j][l]);
			}
		if (c.begins) continue;
		float whole = f[DECAY * TILE + c.n - 1];
		for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) { /* dS = e_C dS + (e q)' do - (beta e k)' r */
			float minus[4][2] = {{0}};
			__syncthreads();
			tile_load_times(x, h.q + c0, h.stride, c.n, a.key_dim - c0, f + DECAY * TILE);
			if (c0 == 0)
				for (int e = threadIdx.x; e < TILE * SLICE; e += THREADS) /* r's rows get their factors */
					y[e / SLICE * ACROSS + e % SLICE] *= f[BETA * TILE + e / SLICE] * f[DECAY * TILE + e / SLICE];
#pragma unroll
			for (int j = 0; j < 4; j++)
#pragma unroll
				for (int l = 0; l < 2; l++)
					sum[j][l] = c.goes_on ? whole * s[(c0 + 4 * Y + j) * ACROSS + X + 16 * l] : 0;
			__syncthreads();
			part_add<1>(sum, x, g);
			__syncthreads();
			tile_load(x, h.k + c0, h.stride, c.n, a.key_dim - c0);
			__syncthreads();
			part_add<1>(minus, x, y);
#pragma unroll
			for (int j = 0; j < 4; j++)
#pragma unroll
				for (int l = 0; l < 2; l++) sum[j][l] -= minus[j][l];
			part_store(s + c0 * ACROSS, sum);
		}
	}
	__syncthreads();
	if (!c.begins) state_store(kept_at(&a, &r, w.number - 1, at.head), s, &a, &at);
}

/* ---- the gradients of a chunk ---- */

/* The sum over the 16 threads of a row, in each of them */
static __device__ __forceinline__ float row_sum(float x)
{
#pragma unroll
	for (int lanes = 8; lanes; lanes /= 2) x += __shfl_xor_sync(FULL, x, lanes);
	return x;
}

/* A chunk's arrays in shared memory */
struct chunk_sums {
	float *f, *reads, *writes, *column; /* (FACTORS, TILE), (TILE) each */
};

/* dP and dA as tiles; db; and of the gradient of g what goes from token to token, in `column`. u, v: room for tiles */
template <typename T>
static __device__ __forceinline__ void chunk_pairs(float *dP, float *dA, float *u, float *v, const struct chunk_sums *s,
	const struct delta_args *a, const struct room *r, const struct chunk *c, int64_t head)
{
	int64_t values = a->value_heads * a->value_dim, value = head * a->value_dim;
	struct head_rows<T> h = head_rows_of<T>(a, head, c->first);
	float p[4][4] = {{0}}, b[4][4] = {{0}}, kk[4][4] = {{0}}, qk[4][4] = {{0}}, decay[4], db = 0;
	for (int64_t c0 = 0; c0 < a->value_dim; c0 += TILE) {
		__syncthreads();
		tile_load(u, (const T *)a->d_o + c->first * values + value + c0, values, c->n, a->value_dim - c0);
		tile_load(v, r->d + c->at * values + value + c0, values, c->n, a->value_dim - c0);
		__syncthreads();
		tile_add<0, 1>(p, u, v);
		__syncthreads();
		tile_load(u, r->r + c->at * values + value + c0, values, c->n, a->value_dim - c0);
		__syncthreads();
		tile_add<0, 1>(b, u, v);
		if (threadIdx.x < TILE)
			for (int m = 0; m < TILE; m++) db += u[threadIdx.x * PITCH + m] * v[threadIdx.x * PITCH + m];
	}
	if (threadIdx.x < c->n)
		put((T *)a->db + (c->first + threadIdx.x) * a->d_ld + head, (1.0f - s->f[BETA * TILE + threadIdx.x]) * db);
	for (int64_t c0 = 0; c0 < a->key_dim; c0 += TILE) {
		__syncthreads();
		tile_load(u, h.k + c0, h.stride, c->n, a->key_dim - c0);
		tile_load(v, h.q + c0, h.stride, c->n, a->key_dim - c0);
		__syncthreads();
		tile_add<0, 1>(kk, u, u);
		tile_add<0, 1>(qk, v, u);
	}
	__syncthreads();
#pragma unroll
	for (int j = 0; j < 4; j++) {
		int column = X + 16 * j;
		decay_of(decay, s->f + LOG_DECAY * TILE, column);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int row = 4 * Y + i, at = row * PITCH + column;
			dP[at] = row >= column ? p[i][j] * decay[i] : 0;
			dA[at] = row > column ? -b[i][j] * s->f[BETA * TILE + row] * decay[i] : 0;
			u[at] = row > column ? dP[at] * qk[i][j] + dA[at] * kk[i][j] : 0;
		}
	}
	__syncthreads();
	if (threadIdx.x < TILE) { /* [i, l]: the sum over j < l */
		float sum = 0;
		for (int l = 0; l < TILE; l++) {
			float x = u[threadIdx.x * PITCH + l];
			u[threadIdx.x * PITCH + l] = sum;
			sum += x;
		}
	}
	__syncthreads();
	if (threadIdx.x < TILE) {
		float sum = 0;
		for (int i = threadIdx.x; i < TILE; i++) sum += u[i * PITCH + threadIdx.x];
		s->column[threadIdx.x] = sum;
	}
}

/* The products of a chunk with states, TILE columns of keys from c0 on: q = do S', k = - (beta e r) S', w = d dS1' */
template <typename T>
static __device__ __forceinline__ void chunk_by_states(float q[4][4], float k[4][4], float w[4][4], float *u, float *v,
	const float *S, const float *dS1, const struct delta_args *a, const struct room *r, const struct chunk *c,
	int64_t head, int64_t c0)
{
	int64_t values = a->value_heads * a->value_dim, value = head * a->value_dim;
	for (int64_t j0 = 0; j0 < a->value_dim; j0 += TILE) {
		int64_t left = a->value_dim - j0;
		if (S) {
			__syncthreads();
			tile_load(v, S + c0 * a->value_dim + j0, a->value_dim, a->key_dim - c0, left);
			tile_load(u, (const T *)a->d_o + c->first * values + value + j0, values, c->n, left);
			__syncthreads();
			tile_add<0, 1>(q, u, v);
			__syncthreads();
			tile_load(u, r->r + c->at * values + value + j0, values, c->n, left);
			__syncthreads();
			tile_add<0, 1>(k, u, v);
		}
		if (dS1) {
			__syncthreads();
			tile_load(v, dS1 + c0 * a->value_dim + j0, a->value_dim, a->key_dim - c0, left);
			tile_load(u, r->d + c->at * values + value + j0, values, c->n, left);
			__syncthreads();
			tile_add<0, 1>(w, u, v);
		}
	}
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 1)
	delta_gradients_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, dP);
	float *dA = dP + ALL, *u = dA + ALL, *v = u + ALL, *scratch = v + ALL + (FACTORS + 3) * TILE;
	struct chunk_sums s = {v + ALL, v + ALL + FACTORS * TILE, v + ALL + (FACTORS + 1) * TILE,
		v + ALL + (FACTORS + 2) * TILE};
	int64_t head = blockIdx.x % a.value_heads;
	struct chunk c = chunk_at(&a, &r, &w, blockIdx.x / a.value_heads);
	struct head_rows<T> h = head_rows_of<T>(&a, head, c.first);
	const float *S = c.begins ? NULL : state_at(&a, r.states, c.at, head);
	const float *dS1 = c.goes_on ? state_at(&a, r.dstates, c.at + c.n, head) : NULL;
	float through = 0;

	factors_load(s.f, &a, &r, &c, head);
	if (threadIdx.x < TILE) s.reads[threadIdx.x] = s.writes[threadIdx.x] = 0;
	__syncthreads();
	chunk_pairs<T>(dP, dA, u, v, &s, &a, &r, &c, head);
	if (S && dS1) {
		for (int64_t e = threadIdx.x; e < a.key_dim * a.value_dim; e += THREADS) through += S[e] * dS1[e];
		through = block_sum(through, scratch) * s.f[DECAY * TILE + c.n - 1];
	}
	for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) {
		float q[4][4] = {{0}}, k[4][4] = {{0}}, x[4][4] = {{0}};
		chunk_by_states<T>(q, k, x, u, v, S, dS1, &a, &r, &c, head, c0);
		__syncthreads();
		tile_load(u, h.k + c0, h.stride, c.n, a.key_dim - c0);
		tile_load(v, h.q + c0, h.stride, c.n, a.key_dim - c0);
		__syncthreads();
#pragma unroll
		for (int i = 0; i < 4; i++) {
			int row = 4 * Y + i;
			float e = s.f[DECAY * TILE + row], back = -s.f[BETA * TILE + row] * e, left = s.f[LEFT * TILE + row];
			float reads = 0, writes = 0;
#pragma unroll
			for (int j = 0; j < 4; j++) {
				int at = row * PITCH + X + 16 * j;
				q[i][j] *= e;
				k[i][j] *= back;
				x[i][j] *= left;
				reads += q[i][j] * v[at] + k[i][j] * u[at]; /* k.(dkS S') is dkS.(k S) */
				writes += x[i][j] * u[at];
				k[i][j] += x[i][j];
			}
			reads = row_sum(reads);
			writes = row_sum(writes);
			if (X == 0) {
				s.reads[row] += reads;
				s.writes[row] += writes;
			}
		}
		tile_add<0, 0>(q, dP, u);
		tile_add<0, 0>(k, dA, u);
		tile_add<1, 0>(k, dA, u);
		tile_add<1, 0>(k, dP, v);
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				int64_t row = 4 * Y + i, column = c0 + X + 16 * j;
				int64_t to = ((c.first + row) * a.value_heads + head) * a.key_dim + column;
				if (row >= c.n || column >= a.key_dim) continue;
				put((T *)a.dq + to, q[i][j]);
				put((T *)a.dk + to, k[i][j]);
			}
	}
	__syncthreads();
	if (threadIdx.x < c.n) {
		int l = threadIdx.x;
		float sum = s.column[l], reads = 0, writes = 0;
		for (int i = (int)c.n - 1; i >= l; i--) reads += s.reads[i];
		for (int i = 0; i < l; i++) writes += s.writes[i];
		r.dg[(c.first + l) * a.value_heads + head] = sum + reads + (through + writes);
	}
}

/* da; a block's partial: da_log, ddt_bias of `rows` tokens */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	delta_gates_kernel(struct delta_args a, const float *dg, float *partial, int64_t rows)
{
	int64_t first = blockIdx.x * rows, end = first + rows < a.n ? first + rows : a.n;
	for (int64_t h = threadIdx.x; h < a.value_heads; h += THREADS) {
		float rate = -expf(get(((const T *)a.a_log)[h])), bias = get(((const T *)a.dt_bias)[h]), logs = 0, biases = 0;
		for (int64_t t = first; t < end; t++) {
			float x = get(((const T *)a.a)[t * a.ld + h]) + bias, d = dg[t * a.value_heads + h] * rate;
			float da = d / (1.0f + expf(-x));
			put((T *)a.da + t * a.d_ld + h, da);
			logs += d * softplus(x);
			biases += da;
		}
		partial[blockIdx.x * 2 * a.value_heads + h] = logs;
		partial[(blockIdx.x * 2 + 1) * a.value_heads + h] = biases;
	}
}

/* ---- launchers ---- */

/* Wave `number`: from the first chunk that begins DELTA_SEGMENT tokens or less before, by host_starts */
static int64_t wave_first(const struct delta_args *a, int64_t number)
{
	int64_t t = number * DELTA_SEGMENT;
	return t >= a->n ? a->n : t - tokens_before(a, a->host_starts, t) % TILE;
}

static struct wave wave_of(const struct delta_args *a, int64_t number)
{
	struct wave w = {number, wave_first(a, number), wave_first(a, number + 1), 0, 0, 0, 0};
	for (int64_t t = w.first; t < w.end; t++) {
		int64_t before = tokens_before(a, a->host_starts, t);
		w.chunks += before % TILE == 0;
		w.pieces += before == 0 || t == w.first;
	}
	return w;
}

/* Only the document that goes on behind the wave; 0: none does */
static int wave_last(const struct delta_args *a, struct wave *w)
{
	int64_t before = w->end < a->n ? tokens_before(a, a->host_starts, w->end) : 0;
	if (before == 0) return 0;
	int64_t first = w->end - before > w->first ? w->end - before : w->first;
	w->from_piece = w->pieces - 1;
	w->from_chunk = w->chunks - (int)((w->end - first) / TILE);
	return 1;
}

static size_t scan_shared(const struct delta_args *a, int parts)
{
	return (size_t)(2 * ALL + parts * PART + FACTORS * TILE + div_up(a->key_dim, TILE) * TILE * ACROSS) * sizeof(float);
}

#define CHUNK_SHARED ((3 * ALL + 2 * TILE) * sizeof(float))
#define GRADIENTS_SHARED ((4 * ALL + (FACTORS + 3) * TILE + THREADS / 32) * sizeof(float))

template <typename T, int MODE>
static void wave_scan(const struct cuda_queue *q, const struct delta_args a, const struct room r, const struct wave w)
{
	int64_t slices = div_up(a.value_dim, SLICE);
	LAUNCH(delta_table_kernel, 1, THREADS, 2 * (THREADS / 32) * sizeof(uint32_t), q->stream, a, r, w);
	LAUNCH(delta_chunk_kernel<T>, (w.chunks - w.from_chunk) * a.value_heads, THREADS, CHUNK_SHARED, q->stream, a, r, w);
	LAUNCH((delta_scan_kernel<T, MODE>), (w.pieces - w.from_piece) * a.value_heads * slices, THREADS,
		scan_shared(&a, 1), q->stream, a, r, w);
}

template <typename T>
static void forward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct room r = room_of(&a);
	for (int64_t i = 0; i * DELTA_SEGMENT < a.n; i++) wave_scan<T, 0>(q, a, r, wave_of(&a, i));
}

template <typename T>
static void backward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct room r = room_of(&a);
	int64_t waves = div_up(a.n, DELTA_SEGMENT), heads = a.value_heads, slices = div_up(a.value_dim, SLICE);
	for (int64_t i = 0; i + 1 < waves; i++) {
		struct wave w = wave_of(&a, i);
		if (wave_last(&a, &w)) wave_scan<T, 1>(q, a, r, w);
	}
	for (int64_t i = waves - 1; i >= 0; i--) {
		const struct wave w = wave_of(&a, i);
		wave_scan<T, 2>(q, a, r, w);
		LAUNCH(delta_scan_back_kernel<T>, w.pieces * heads * slices, THREADS, scan_shared(&a, 2), q->stream, a, r, w);
		LAUNCH(delta_gradients_kernel<T>, w.chunks * heads, THREADS, GRADIENTS_SHARED, q->stream, a, r, w);
	}
	int64_t rows = div_up(a.n, partial_blocks(div_up(a.n, 32), 2 * heads)), parts = div_up(a.n, rows);
	LAUNCH(delta_gates_kernel<T>, parts, THREADS, 0, q->stream, a, r.dg, q->work, rows);
	cuda_sum_partials(q, a.da_log, a.beta, q->work, parts, 2 * heads, heads);
	cuda_sum_partials(q, a.ddt_bias, a.beta, q->work + heads, parts, 2 * heads, heads);
}

void cuda_delta_forward(const struct cuda_queue *q, const struct delta_args *a) { BY_ELEMENT(q, forward<T>(q, *a)); }
void cuda_delta_backward(const struct cuda_queue *q, const struct delta_args *a) { BY_ELEMENT(q, backward<T>(q, *a)); }

#define KERNELS(type) \
	(const void *)delta_chunk_kernel<type>, (const void *)delta_scan_kernel<type, 0>, \
		(const void *)delta_scan_kernel<type, 1>, (const void *)delta_scan_kernel<type, 2>, \
		(const void *)delta_scan_back_kernel<type>, (const void *)delta_gradients_kernel<type>

/* More than 48 KiB of shared memory a block must be requested before the launch */
cudaError_t delta_prepare(void)
{
	const void *kernels[] = {KERNELS(float), KERNELS(struct bf16)};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
