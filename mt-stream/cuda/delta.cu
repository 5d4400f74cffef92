/* delta.cu: the gated delta rule and Mamba 2 in chunks of 64 tokens (cpu/kernel-delta.h has their formulas)
 *
 * DELTA_SEGMENT tokens are computed at a time, a wave: whole chunks, of as many documents as there are. What depends on
 * earlier tokens by a document's state alone is computed for all its chunks at once; the rest, chunk after chunk, is as
 * little as possible, and columns of the state are independent, so that a block has SLICE of them:
 *     chunk      one chunk and head: T = (1 + A)^-1, P, and the factors of its tokens
 *     scan       one document, head and slice, forwards: d, o; backward: d and the states before the chunks
 *     scan_back  the same, backwards: r, dv, and the gradients of the states behind the chunks
 *     gradients  one chunk and head: dq, dk, db and the gradient of g
 * Backward first scans all waves but the last for the states between them. Kernels of Mamba 2 (CORRECT 0) have no T:
 * d and r are beta v, beta is dt, and what T and k k' give.
 *
 * All is fp32 but for the elements of tensors. In fp32 runs the kernels use plain multiplications, in bf16 runs tensor
 * cores: there an fp32 number is the sum of two of bf16, which leaves 2^-17 of it; of the product of two such sums the
 * smallest part is left out. What comes from a tensor of bf16 is one.
 */
#include "mma.h"

#define TILE DELTA_CHUNK
#define SLICE 32 /* columns of a state in a block of a scan */
/* Distances of rows in shared memory, so that the pairs of rows and the columns that a warp reads at once lie in
 * different banks */
#define PITCH (TILE + 8)
#define ACROSS (SLICE + 4)
#define ALL (TILE * PITCH)             /* floats of a tile */
#define PART (TILE * ACROSS)           /* of a tile of SLICE columns */
#define FACTORS 4                      /* of a token: */
enum { BETA, DECAY, LEFT, LOG_DECAY }; /* beta or dt, e, l, g */

/* Tokens first .. end - 1, whose chunks and documents (the parts of them that lie here) are counted; launches compute
 * those from from_chunk and from_piece on */
struct wave {
	int64_t number, first, end;
	int chunks, pieces, from_chunk, from_piece;
};

struct room {
	float *kept;             /* (waves - 1, HV, DK, DV): the state between waves; later its gradient */
	float *dg, *dd, *dskip;  /* (N, HV): the gradient of g; Mamba 2: dt's by d, skip's */
	float *T, *P;            /* (tokens of a wave, HV, TILE) */
	float *factors;          /* (tokens, HV, FACTORS) */
	float *d, *r;            /* (tokens, HV, DV) */
	float *states, *dstates; /* (chunks, HV, DK, DV): before a chunk; the gradient of the same */
	int wide;                /* all rows begin at multiples of 16 bytes */
	uint32_t *chunk, *piece; /* (chunks + 1): first tokens; (pieces + 1): first chunks */
};

static struct room room_of(const struct delta_args *a)
{
	int64_t tokens = DELTA_SEGMENT + TILE, heads = a->value_heads, state = heads * a->key_dim * a->value_dim;
	struct room r = {};
	r.kept = a->work;
	r.T = r.kept + delta_kept(a) * state;
	r.P = r.T + (a->correct ? tokens * heads * TILE : 0);
	r.factors = r.P + tokens * heads * TILE;
	r.d = r.factors + tokens * heads * FACTORS;
	r.r = r.d + tokens * heads * a->value_dim;
	r.states = r.r + tokens * heads * a->value_dim;
	r.dstates = r.states + tokens / TILE * state;
	r.dg = r.dstates + tokens / TILE * state;
	r.dd = r.dg + a->n * heads;
	r.dskip = r.dd + a->n * heads;
	r.chunk = (uint32_t *)(r.dg + delta_token(a) * a->n * heads);
	r.piece = r.chunk + tokens + 1;
	r.wide = wide_rows(a->key_dim | a->value_dim, a->qkv, a->d_o, a->work, NULL);
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

/* ---- tiles. Each of 8 warps has 16 rows and half the columns of a result, in pieces of 16 x 8 as mma.h has them: c[n]
 * is a lane's part of piece n ---- */

#define ROW(e) ((int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4 + (e) / 2 * 8)
#define COLUMN(n, e) ((int)threadIdx.x / 128 * 32 + (n)*8 + (int)threadIdx.x % 4 * 2 + (e) % 2)
#define PART_COLUMN(n, e) ((int)threadIdx.x / 128 * 16 + (n)*8 + (int)threadIdx.x % 4 * 2 + (e) % 2)

/* to (TILE, PITCH) = rows of `from`, zeros where there are none; wide: as of get_wide */
template <typename T>
static __device__ __forceinline__ void tile_load(float *to, const T *from, int64_t stride, int64_t rows,
	int64_t columns, int wide)
{
	for (int e = threadIdx.x; e < TILE * TILE / WIDE; e += THREADS) {
		int r = e / (TILE / WIDE), c = e % (TILE / WIDE) * WIDE;
		float v[WIDE] = {0};
		struct vec16 w[2];
		if (r < rows && c < columns) get_wide(v, from + r * stride + c, columns - c, wide);
		memcpy(w, v, sizeof w);
		store16_shared(to + r * PITCH + c, w[0]);
		store16_shared(to + r * PITCH + c + 4, w[1]);
	}
}

/* Two floats as sums of two of bf16 each */
static __device__ __forceinline__ void split(uint32_t *high, uint32_t *low, float a, float b)
{
	*high = pack_bf16(a, b);
	*low = pack_bf16(a - as_float(*high << 16), b - as_float(*high & 0xffff0000u));
}

/* Elements (i, k), (i, k + 1) of a matrix with rows `pitch` apart, or of its transposed */
template <int TURNED>
static __device__ __forceinline__ void split_pair(uint32_t *high, uint32_t *low, const float *m, int pitch, int i,
	int k)
{
	if (TURNED) {
		split(high, low, m[k * pitch + i], m[(k + 1) * pitch + i]);
	} else {
		struct vec8 v = *(const struct vec8 *)(m + i * pitch + k);
		split(high, low, as_float(v.w[0]), as_float(v.w[1]));
	}
}

/* c (16 rows, 8 N columns of the warp) += x y, TILE deep, from row `row` of x and column `column` of y, or with x or y
 * transposed (TX, TY). EX, EY: x, y are of bf16 */
template <int N, int TX, int TY, int EX, int EY>
static __device__ __forceinline__ void add_products(float c[N][4], const float *x, int row, const float *y, int column,
	int pitch)
{
	int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll 2
	for (int k0 = 0; k0 < TILE; k0 += 16) {
		uint32_t a[2][4], b[2][2];
#pragma unroll
		for (int i = 0; i < 4; i++)
			split_pair<TX>(&a[0][i], &a[1][i], x, PITCH, row + g + i % 2 * 8, k0 + 2 * t + i / 2 * 8);
#pragma unroll
		for (int n = 0; n < N; n++) {
#pragma unroll
			for (int i = 0; i < 2; i++)
				split_pair<!TY>(&b[0][i], &b[1][i], y, pitch, column + n * 8 + g, k0 + 2 * t + i * 8);
			mma(c[n], a[0], b[0]);
			if (!EX) mma(c[n], a[1], b[0]);
			if (!EY) mma(c[n], a[0], b[1]);
		}
	}
}

/* The same by plain multiplications, of this lane's elements */
template <int N, int TX, int TY>
static __device__ __forceinline__ void add_products_plain(float c[N][4], const float *x, int row, const float *y,
	int column, int pitch)
{
	row += threadIdx.x % 32 / 4;
	column += threadIdx.x % 4 * 2;
#pragma unroll 4
	for (int m = 0; m < TILE; m++) {
		float p[2], q[2 * N];
#pragma unroll
		for (int i = 0; i < 2; i++) p[i] = TX ? x[m * PITCH + row + 8 * i] : x[(row + 8 * i) * PITCH + m];
#pragma unroll
		for (int i = 0; i < 2 * N; i++) {
			int at = column + i / 2 * 8 + i % 2;
			q[i] = TY ? y[at * pitch + m] : y[m * pitch + at];
		}
#pragma unroll
		for (int n = 0; n < N; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) c[n][e] += p[e / 2] * q[2 * n + e % 2];
	}
}

/* c += x y of tiles */
template <typename T, int TX, int TY, int EX, int EY>
static __device__ __forceinline__ void tile_add(float c[4][4], const float *x, const float *y)
{
	int row = threadIdx.x / 32 % 4 * 16, column = threadIdx.x / 128 * 32;
	if (sizeof(T) == 2) add_products<4, TX, TY, EX, EY>(c, x, row, y, column, PITCH);
	else add_products_plain<4, TX, TY>(c, x, row, y, column, PITCH);
}

/* The same with SLICE columns of y */
template <typename T, int TX, int EX>
static __device__ __forceinline__ void part_add(float c[2][4], const float *x, const float *y)
{
	int row = threadIdx.x / 32 % 4 * 16, column = threadIdx.x / 128 * 16;
	if (sizeof(T) == 2) add_products<2, TX, 0, EX, 0>(c, x, row, y, column, ACROSS);
	else add_products_plain<2, TX, 0>(c, x, row, y, column, ACROSS);
}

static __device__ __forceinline__ void part_store(float *to, const float c[2][4])
{
#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) to[ROW(e) * ACROSS + PART_COLUMN(n, e)] = c[n][e];
}

/* A part's rows times their factors */
static __device__ __forceinline__ void part_scale(float *part, const float *factor)
{
	for (int e = threadIdx.x; e < TILE * SLICE; e += THREADS) part[e / SLICE * ACROSS + e % SLICE] *= factor[e / SLICE];
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

/* D. The exponents are sums of g, not differences of sums, which may be large */
static __device__ __forceinline__ void
decay_tile(float *to, const float *g)
{
	int column = threadIdx.x % TILE, row = threadIdx.x / TILE * 16, end = row + 16;
	float x = 0;
	for (int m = column + 1; m < row; m++) x += g[m];
	for (; row < end; row++) {
		if (row > column) x += g[row];
		to[row * PITCH + column] = row >= column ? expf(x) : 0;
	}
}

/* torch.nn.functional.softplus */
static __device__ __forceinline__ float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }
/* Mamba 2's dt, from softplus; NaN stays NaN */
static __device__ __forceinline__ float step_of(const struct delta_args *a, float soft)
{
	return soft < a->dt_min ? a->dt_min : soft > a->dt_max ? a->dt_max : soft;
}

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

template <typename T, int CORRECT>
static __global__ void __launch_bounds__(THREADS) delta_chunk_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, k);
	float *q = k + ALL, *t = q + ALL, *g = t + ALL, *beta = g + TILE;
	int64_t head = blockIdx.x % a.value_heads;
	struct chunk c = chunk_at(&a, &r, &w, w.from_chunk + blockIdx.x / a.value_heads);
	struct head_rows<T> h = head_rows_of<T>(&a, head, c.first);
	float kk[4][4] = {{0}}, qk[4][4] = {{0}};

	if (threadIdx.x < TILE) {
		int i = threadIdx.x;
		float x = 0, b = 0, rate = expf(get(((const T *)a.a_log)[head]));
		if (i < c.n) {
			x = get(((const T *)a.a)[(c.first + i) * a.ld + head]) + get(((const T *)a.dt_bias)[head]);
			if (CORRECT) b = get(((const T *)a.b)[(c.first + i) * a.ld + head]);
			else b = step_of(&a, softplus(x));
		}
		g[i] = i < c.n ? -rate * (CORRECT ? softplus(x) : b) : 0;
		beta[i] = i < c.n ? (CORRECT ? 1.0f / (1.0f + expf(-b)) : b) : 0;
	}
	for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) {
		__syncthreads();
		tile_load(k, h.k + c0, h.stride, c.n, a.key_dim - c0, r.wide);
		tile_load(q, h.q + c0, h.stride, c.n, a.key_dim - c0, r.wide);
		__syncthreads();
		if (CORRECT) tile_add<T, 0, 1, 1, 1>(kk, k, k);
		tile_add<T, 0, 1, 1, 1>(qk, q, k);
	}
	decay_tile(t, g);
	__syncthreads();
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = ROW(e), column = COLUMN(n, e);
			float decay = t[row * PITCH + column];
			if (CORRECT) k[row * PITCH + column] = row > column ? beta[row] * decay * kk[n][e] : 0;
			if (row < c.n)
				r.P[((c.at + row) * a.value_heads + head) * TILE + column] = row >= column ? decay * qk[n][e] : 0;
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
	if (!CORRECT) return;
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
	const struct room *r, const struct chunk *c, int64_t head)
{
	tile_load(to, from + (c->at * a->value_heads + head) * TILE, a->value_heads * TILE, c->n, TILE, r->wide);
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
static __device__ __forceinline__ void rows_times_state(float c[2][4], float *tile, const T *x, int64_t stride,
	int64_t n, const float *s, int64_t dim, int wide)
{
	for (int64_t c0 = 0; c0 < dim; c0 += TILE) {
		__syncthreads();
		tile_load(tile, x + c0, stride, n, dim - c0, wide);
		__syncthreads();
		part_add<T, 0, 1>(c, tile, s + c0 * ACROSS);
	}
}

/* The columns of x (n rows, DK) from c0 on as a tile, and c = factor of the same rows of s, or zeros (not there) */
template <typename T>
static __device__ __forceinline__ void state_rows(float c[2][4], float *tile, const T *x, int64_t stride, int64_t n,
	const float *s, float factor, int there, int64_t c0, int64_t dim, int wide)
{
	__syncthreads();
	tile_load(tile, x + c0, stride, n, dim - c0, wide);
	__syncthreads();
#pragma unroll
	for (int m = 0; m < 2; m++)
#pragma unroll
		for (int e = 0; e < 4; e++) c[m][e] = there ? factor * s[(c0 + ROW(e)) * ACROSS + PART_COLUMN(m, e)] : 0;
}

static __device__ __forceinline__ void part_zero(float c[2][4])
{
#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) c[n][e] = 0;
}

/* to (n rows, value_dim of each head) = factor of each row (NULL: 1) times c */
template <typename T>
static __device__ __forceinline__ void part_put(T *to, int64_t stride, const float c[2][4], const float *factor,
	int64_t rows, int64_t columns)
{
#pragma unroll
	for (int n = 0; n < 2; n++)
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (ROW(e) < rows && PART_COLUMN(n, e) < columns)
				put(to + ROW(e) * stride + PART_COLUMN(n, e), factor ? factor[ROW(e)] * c[n][e] : c[n][e]);
}

/* c += skip v, v (n rows, the slice's columns) */
template <typename T>
static __device__ __forceinline__ void skip_add(float c[2][4], const struct delta_args *a, const T *v, int64_t stride,
	int64_t n, const struct strip *at)
{
	float skip = get(((const T *)a->skip)[at->head]);
#pragma unroll
	for (int m = 0; m < 2; m++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = ROW(e), column = PART_COLUMN(m, e);
			if (row < n && column < at->columns) c[m][e] += skip * get(v[row * stride + column]);
		}
}

/* MODE 0: forward. 1: the state behind the wave alone; 2: d, and the states before chunks */
template <typename T, int MODE, int CORRECT>
static __global__ void __launch_bounds__(THREADS, 2)
	delta_scan_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, x);
	float *m = x + ALL, *d = m + ALL, *f = d + PART, *s = f + FACTORS * TILE;
	struct strip at = strip_of(&a, &r, &w);
	struct chunk c = chunk_at(&a, &r, &w, at.from);
	int64_t values = a.value_heads * a.value_dim, value = at.head * a.value_dim + at.column;

	state_load(s, c.begins ? NULL : kept_at(&a, &r, w.number - 1, at.head), &a, &at);
	for (int i = at.from; i < at.to; i++) {
		c = chunk_at(&a, &r, &w, i);
		struct head_rows<T> h = head_rows_of<T>(&a, at.head, c.first);
		float sum[2][4] = {{0}};
		__syncthreads();
		factors_load(f, &a, &r, &c, at.head);
		if (CORRECT) matrix_load(m, r.T, &a, &r, &c, at.head);
		if (MODE == 2 && !c.begins) state_store(state_at(&a, r.states, c.at, at.head), s, &a, &at);
		if (CORRECT && !c.begins) rows_times_state(sum, x, h.k, h.stride, c.n, s, a.key_dim, r.wide);
		__syncthreads();
#pragma unroll
		for (int n = 0; n < 2; n++) /* beta (v - e k S) */
#pragma unroll
			for (int e = 0; e < 4; e++) {
				int row = ROW(e), column = PART_COLUMN(n, e);
				float v = row < c.n && column < at.columns ? get(h.v[row * h.stride + at.column + column]) : 0;
				if (CORRECT) v -= f[DECAY * TILE + row] * sum[n][e];
				d[row * ACROSS + column] = sum[n][e] = f[BETA * TILE + row] * v;
			}
		if (CORRECT) {
			part_zero(sum);
			__syncthreads();
			part_add<T, 0, 0>(sum, m, d);
			__syncthreads();
			part_store(d, sum);
		}
		if (MODE == 2) part_put(r.d + c.at * values + value, values, sum, NULL, c.n, at.columns);
		if (MODE == 0) {
			matrix_load(m, r.P, &a, &r, &c, at.head);
			part_zero(sum);
			if (!c.begins) rows_times_state(sum, x, h.q, h.stride, c.n, s, a.key_dim, r.wide);
#pragma unroll
			for (int n = 0; n < 2; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) sum[n][e] *= f[DECAY * TILE + ROW(e)];
			__syncthreads();
			part_add<T, 0, 0>(sum, m, d);
			if (!CORRECT) skip_add<T>(sum, &a, h.v + at.column, h.stride, c.n, &at);
			part_put((T *)a.o + c.first * values + value, values, sum, NULL, c.n, at.columns);
		}
		if (!c.goes_on) continue;
		__syncthreads();
		part_scale(d, f + LEFT * TILE);
		for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) { /* S = e_C S + k' (l d) */
			state_rows(sum, x, h.k, h.stride, c.n, s, f[DECAY * TILE + c.n - 1], !c.begins, c0, a.key_dim, r.wide);
			part_add<T, 1, 1>(sum, x, d);
			part_store(s + c0 * ACROSS, sum);
		}
	}
	__syncthreads();
	if (MODE < 2 && c.goes_on && c.first + c.n == w.end) state_store(kept_at(&a, &r, w.number, at.head), s, &a, &at);
}

template <typename T, int CORRECT>
static __global__ void __launch_bounds__(THREADS, 2)
	delta_scan_back_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, x);
	float *m = x + ALL, *g = m + ALL, *y = g + PART, *f = y + PART, *s = f + FACTORS * TILE; /* s: dS; g: d_o; y: r */
	struct strip at = strip_of(&a, &r, &w);
	struct chunk c = chunk_at(&a, &r, &w, at.to - 1);
	int64_t values = a.value_heads * a.value_dim, value = at.head * a.value_dim + at.column;

	state_load(s, c.goes_on ? kept_at(&a, &r, w.number, at.head) : NULL, &a, &at);
	for (int i = at.to - 1; i >= at.from; i--) {
		c = chunk_at(&a, &r, &w, i);
		struct head_rows<T> h = head_rows_of<T>(&a, at.head, c.first);
		float sum[2][4] = {{0}}, minus[2][4];
		__syncthreads();
		factors_load(f, &a, &r, &c, at.head);
		matrix_load(m, r.P, &a, &r, &c, at.head);
		if (c.goes_on) state_store(state_at(&a, r.dstates, c.at + c.n, at.head), s, &a, &at);
		for (int e = threadIdx.x; e < TILE * SLICE; e += THREADS) {
			int row = e / SLICE, column = e % SLICE;
			const T *from = (const T *)a.d_o + (c.first + row) * values + value + column;
			g[row * ACROSS + column] = row < c.n && column < at.columns ? get(*from) : 0;
		}
		if (c.goes_on) rows_times_state(sum, x, h.k, h.stride, c.n, s, a.key_dim, r.wide);
		__syncthreads();
#pragma unroll
		for (int n = 0; n < 2; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) sum[n][e] *= f[LEFT * TILE + ROW(e)];
		part_add<T, 1, 0>(sum, m, g);
		if (CORRECT) {
			part_store(y, sum);
			__syncthreads();
			matrix_load(m, r.T, &a, &r, &c, at.head);
			part_zero(sum);
			__syncthreads();
			part_add<T, 1, 0>(sum, m, y);
			__syncthreads();
			part_store(y, sum);
		}
		part_put(r.r + c.at * values + value, values, sum, NULL, c.n, at.columns);
		if (!CORRECT) { /* dt r + skip do */
#pragma unroll
			for (int n = 0; n < 2; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) sum[n][e] *= f[BETA * TILE + ROW(e)];
			skip_add<T>(sum, &a, (const T *)a.d_o + c.first * values + value, values, c.n, &at);
		}
		part_put((T *)a.dv + c.first * values + value, values, sum, CORRECT ? f + BETA * TILE : NULL, c.n, at.columns);
		if (c.begins) continue;
		__syncthreads();
		part_scale(g, f + DECAY * TILE);
		if (CORRECT) {
			part_scale(y, f + DECAY * TILE);
			part_scale(y, f + BETA * TILE);
		}
		for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) { /* dS = e_C dS + q' (e do) - k' (beta e r) */
			state_rows(sum, x, h.q, h.stride, c.n, s, f[DECAY * TILE + c.n - 1], c.goes_on, c0, a.key_dim, r.wide);
			part_add<T, 1, 1>(sum, x, g);
			if (CORRECT) {
				state_rows(minus, x, h.k, h.stride, c.n, s, 0, 0, c0, a.key_dim, r.wide);
				part_add<T, 1, 1>(minus, x, y);
#pragma unroll
				for (int n = 0; n < 2; n++)
#pragma unroll
					for (int e = 0; e < 4; e++) sum[n][e] -= minus[n][e];
			}
			part_store(s + c0 * ACROSS, sum);
		}
	}
	__syncthreads();
	if (!c.begins) state_store(kept_at(&a, &r, w.number - 1, at.head), s, &a, &at);
}

/* ---- the gradients of a chunk ---- */

/* A chunk's arrays in shared memory: its factors; what goes from the state to each token and from it to the next state,
 * each as the sums of two warps; what goes from token to token */
struct chunk_sums {
	float *f, *reads, *writes, *column; /* (FACTORS, TILE), (2, TILE) x 2, (TILE) */
};
#define SUMS (FACTORS + 5)

/* sum += the dot product of the thread's rows of two tiles */
static __device__ __forceinline__ void rows_dot(float *sum, const float *u, const float *v)
{
	if (threadIdx.x < TILE)
		for (int m = 0; m < TILE; m++) *sum += u[threadIdx.x * PITCH + m] * v[threadIdx.x * PITCH + m];
}

/* dP and dA as tiles; db, or what dt gets from d, and dskip; and s->column. u, v: room for tiles */
template <typename T, int CORRECT>
static __device__ __forceinline__ void chunk_pairs(float *dP, float *dA, float *u, float *v, const struct chunk_sums *s,
	const struct delta_args *a, const struct room *r, const struct chunk *c, int64_t head)
{
	int64_t values = a->value_heads * a->value_dim, value = head * a->value_dim;
	struct head_rows<T> h = head_rows_of<T>(a, head, c->first);
	float p[4][4] = {{0}}, b[4][4] = {{0}}, kk[4][4] = {{0}}, qk[4][4] = {{0}}, db = 0, dskip = 0;
	for (int64_t c0 = 0; c0 < a->value_dim; c0 += TILE) {
		int64_t left = a->value_dim - c0;
		__syncthreads();
		tile_load(u, (const T *)a->d_o + c->first * values + value + c0, values, c->n, left, r->wide);
		tile_load(v, r->d + c->at * values + value + c0, values, c->n, left, r->wide);
		__syncthreads();
		tile_add<T, 0, 1, 1, 0>(p, u, v);
		__syncthreads();
		if (!CORRECT) {
			tile_load(v, h.v + c0, h.stride, c->n, left, r->wide);
			__syncthreads();
			rows_dot(&dskip, u, v);
			__syncthreads();
		}
		tile_load(u, r->r + c->at * values + value + c0, values, c->n, left, r->wide);
		__syncthreads();
		if (CORRECT) tile_add<T, 0, 1, 0, 0>(b, u, v);
		rows_dot(&db, u, v);
	}
	if (threadIdx.x < c->n) {
		int64_t t = c->first + threadIdx.x, at = t * a->value_heads + head;
		if (CORRECT) put((T *)a->db + t * a->d_ld + head, (1.0f - s->f[BETA * TILE + threadIdx.x]) * db);
		if (!CORRECT) r->dd[at] = db;
		if (!CORRECT) r->dskip[at] = dskip;
	}
	for (int64_t c0 = 0; c0 < a->key_dim; c0 += TILE) {
		__syncthreads();
		tile_load(u, h.k + c0, h.stride, c->n, a->key_dim - c0, r->wide);
		tile_load(v, h.q + c0, h.stride, c->n, a->key_dim - c0, r->wide);
		__syncthreads();
		if (CORRECT) tile_add<T, 0, 1, 1, 1>(kk, u, u);
		tile_add<T, 0, 1, 1, 1>(qk, v, u);
	}
	__syncthreads();
	decay_tile(v, s->f + LOG_DECAY * TILE);
	__syncthreads();
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = ROW(e), column = COLUMN(n, e), at = row * PITCH + column;
			float decay = v[at];
			dP[at] = row >= column ? p[n][e] * decay : 0;
			if (CORRECT) dA[at] = row > column ? -b[n][e] * s->f[BETA * TILE + row] * decay : 0;
			u[at] = row > column ? dP[at] * qk[n][e] + (CORRECT ? dA[at] * kk[n][e] : 0) : 0;
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

/* The products of a chunk with states, TILE columns of keys from c0 on: q = do S', k = r S', w = d dS1' */
template <typename T, int CORRECT>
static __device__ __forceinline__ void chunk_by_states(float q[4][4], float k[4][4], float w[4][4], float *u, float *v,
	const float *S, const float *dS1, const struct delta_args *a, const struct room *r, const struct chunk *c,
	int64_t head, int64_t c0)
{
	int64_t values = a->value_heads * a->value_dim, value = head * a->value_dim;
	for (int64_t j0 = 0; j0 < a->value_dim; j0 += TILE) {
		int64_t left = a->value_dim - j0;
		if (S) {
			__syncthreads();
			tile_load(v, S + c0 * a->value_dim + j0, a->value_dim, a->key_dim - c0, left, r->wide);
			tile_load(u, (const T *)a->d_o + c->first * values + value + j0, values, c->n, left, r->wide);
			__syncthreads();
			tile_add<T, 0, 1, 1, 0>(q, u, v);
		}
		if (CORRECT && S) {
			__syncthreads();
			tile_load(u, r->r + c->at * values + value + j0, values, c->n, left, r->wide);
			__syncthreads();
			tile_add<T, 0, 1, 0, 0>(k, u, v);
		}
		if (dS1) {
			__syncthreads();
			tile_load(v, dS1 + c0 * a->value_dim + j0, a->value_dim, a->key_dim - c0, left, r->wide);
			tile_load(u, r->d + c->at * values + value + j0, values, c->n, left, r->wide);
			__syncthreads();
			tile_add<T, 0, 1, 0, 0>(w, u, v);
		}
	}
}

/* q = e q, k = dkS S', w = l w; their parts of the gradient of g, with k in u and q in v, are added to the sums; k += w
 */
static __device__ __forceinline__ void chunk_reads_writes(float q[4][4], float k[4][4], float w[4][4], const float *u,
	const float *v, const struct chunk_sums *s)
{
	float reads[2] = {0, 0}, writes[2] = {0, 0};
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = ROW(e), at = row * PITCH + COLUMN(n, e);
			float decay = s->f[DECAY * TILE + row];
			q[n][e] *= decay;
			k[n][e] *= -s->f[BETA * TILE + row] * decay;
			w[n][e] *= s->f[LEFT * TILE + row];
			reads[e / 2] += q[n][e] * v[at] + k[n][e] * u[at]; /* k.(dkS S') is dkS.(k S) */
			writes[e / 2] += w[n][e] * u[at];
			k[n][e] += w[n][e];
		}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int at = threadIdx.x / 128 * TILE + ROW(2 * i);
#pragma unroll
		for (int lanes = 2; lanes; lanes /= 2) {
			reads[i] += __shfl_xor_sync(FULL, reads[i], lanes);
			writes[i] += __shfl_xor_sync(FULL, writes[i], lanes);
		}
		if (threadIdx.x % 4 > 0) continue;
		s->reads[at] += reads[i];
		s->writes[at] += writes[i];
	}
}

template <typename T, int CORRECT>
static __global__ void __launch_bounds__(THREADS, 1)
	delta_gradients_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, dP);
	float *dA = dP + ALL, *u = dA + ALL, *v = u + ALL, *f = v + ALL, *scratch = f + SUMS * TILE;
	struct chunk_sums s = {f, f + FACTORS * TILE, f + (FACTORS + 2) * TILE, f + (FACTORS + 4) * TILE};
	int64_t head = blockIdx.x % a.value_heads;
	struct chunk c = chunk_at(&a, &r, &w, blockIdx.x / a.value_heads);
	struct head_rows<T> h = head_rows_of<T>(&a, head, c.first);
	const float *S = c.begins ? NULL : state_at(&a, r.states, c.at, head);
	const float *dS1 = c.goes_on ? state_at(&a, r.dstates, c.at + c.n, head) : NULL;
	float through = 0;

	factors_load(f, &a, &r, &c, head);
	if (threadIdx.x < 2 * TILE) s.reads[threadIdx.x] = s.writes[threadIdx.x] = 0;
	chunk_pairs<T, CORRECT>(dP, dA, u, v, &s, &a, &r, &c, head);
	if (S && dS1) {
		for (int64_t e = threadIdx.x; e < a.key_dim * a.value_dim; e += THREADS) through += S[e] * dS1[e];
		through = block_sum(through, scratch) * f[DECAY * TILE + c.n - 1];
	}
	for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) {
		float q[4][4] = {{0}}, k[4][4] = {{0}}, x[4][4] = {{0}};
		chunk_by_states<T, CORRECT>(q, k, x, u, v, S, dS1, &a, &r, &c, head, c0);
		__syncthreads();
		tile_load(u, h.k + c0, h.stride, c.n, a.key_dim - c0, r.wide);
		tile_load(v, h.q + c0, h.stride, c.n, a.key_dim - c0, r.wide);
		__syncthreads();
		chunk_reads_writes(q, k, x, u, v, &s);
		tile_add<T, 0, 0, 0, 1>(q, dP, u);
		if (CORRECT) {
			tile_add<T, 0, 0, 0, 1>(k, dA, u);
			tile_add<T, 1, 0, 0, 1>(k, dA, u);
		}
		tile_add<T, 1, 0, 0, 1>(k, dP, v);
#pragma unroll
		for (int n = 0; n < 4; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				int64_t row = ROW(e), column = c0 + COLUMN(n, e);
				int64_t to = ((c.first + row) * a.value_heads + head) * a.key_dim + column;
				if (row >= c.n || column >= a.key_dim) continue;
				put((T *)a.dq + to, q[n][e]);
				put((T *)a.dk + to, k[n][e]);
			}
	}
	__syncthreads();
	if (threadIdx.x < c.n) {
		int l = threadIdx.x;
		float sum = s.column[l], reads = 0, writes = 0;
		for (int i = (int)c.n - 1; i >= l; i--) reads += s.reads[i] + s.reads[TILE + i];
		for (int i = 0; i < l; i++) writes += s.writes[i] + s.writes[TILE + i];
		r.dg[(c.first + l) * a.value_heads + head] = sum + reads + (through + writes);
	}
}

/* Arrays of sums over tokens: da_log, ddt_bias; Mamba 2: dskip */
static __host__ __device__ __forceinline__ int64_t gate_sums(const struct delta_args *a) { return a->correct ? 2 : 3; }

/* da; a block's partial: the sums over `rows` tokens */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	delta_gates_kernel(struct delta_args a, struct room r, float *partial, int64_t rows)
{
	int64_t first = blockIdx.x * rows, end = first + rows < a.n ? first + rows : a.n;
	partial += blockIdx.x * gate_sums(&a) * a.value_heads;
	for (int64_t h = threadIdx.x; h < a.value_heads; h += THREADS) {
		float rate = -expf(get(((const T *)a.a_log)[h])), bias = get(((const T *)a.dt_bias)[h]), sums[3] = {0, 0, 0};
		for (int64_t t = first; t < end; t++) {
			int64_t at = t * a.value_heads + h;
			float x = get(((const T *)a.a)[t * a.ld + h]) + bias, d = r.dg[at] * rate, soft = softplus(x);
			float step = a.correct ? soft : step_of(&a, soft);
			float da = (a.correct ? d : step == soft ? d + r.dd[at] : 0) / (1.0f + expf(-x));
			put((T *)a.da + t * a.d_ld + h, da);
			sums[0] += d * step;
			sums[1] += da;
			if (!a.correct) sums[2] += r.dskip[at];
		}
		partial[h] = sums[0];
		partial[a.value_heads + h] = sums[1];
		if (!a.correct) partial[2 * a.value_heads + h] = sums[2];
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
#define GRADIENTS_SHARED ((4 * ALL + SUMS * TILE + THREADS / 32) * sizeof(float))

template <typename T, int MODE, int CORRECT>
static void wave_scan(const struct cuda_queue *q, const struct delta_args a, const struct room r, const struct wave w)
{
	int64_t slices = div_up(a.value_dim, SLICE);
	LAUNCH(delta_table_kernel, 1, THREADS, 2 * (THREADS / 32) * sizeof(uint32_t), q->stream, a, r, w);
	LAUNCH((delta_chunk_kernel<T, CORRECT>), (w.chunks - w.from_chunk) * a.value_heads, THREADS, CHUNK_SHARED,
		q->stream, a, r, w);
	LAUNCH((delta_scan_kernel<T, MODE, CORRECT>), (w.pieces - w.from_piece) * a.value_heads * slices, THREADS,
		scan_shared(&a, 1), q->stream, a, r, w);
}

template <typename T, int CORRECT>
static void forward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct room r = room_of(&a);
	for (int64_t i = 0; i * DELTA_SEGMENT < a.n; i++) wave_scan<T, 0, CORRECT>(q, a, r, wave_of(&a, i));
}

template <typename T, int CORRECT>
static void backward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct room r = room_of(&a);
	int64_t waves = div_up(a.n, DELTA_SEGMENT), heads = a.value_heads, slices = div_up(a.value_dim, SLICE);
	for (int64_t i = 0; i + 1 < waves; i++) {
		struct wave w = wave_of(&a, i);
		if (wave_last(&a, &w)) wave_scan<T, 1, CORRECT>(q, a, r, w);
	}
	for (int64_t i = waves - 1; i >= 0; i--) {
		const struct wave w = wave_of(&a, i);
		wave_scan<T, 2, CORRECT>(q, a, r, w);
		LAUNCH((delta_scan_back_kernel<T, CORRECT>), w.pieces * heads * slices, THREADS, scan_shared(&a, 2), q->stream,
			a, r, w);
		LAUNCH((delta_gradients_kernel<T, CORRECT>), w.chunks * heads, THREADS, GRADIENTS_SHARED, q->stream, a, r, w);
	}
	int64_t width = gate_sums(&a) * heads, rows = div_up(a.n, partial_blocks(div_up(a.n, 32), width));
	int64_t parts = div_up(a.n, rows);
	LAUNCH(delta_gates_kernel<T>, parts, THREADS, 0, q->stream, a, r, q->work, rows);
	cuda_sum_partials(q, a.da_log, a.beta, q->work, parts, width, heads);
	cuda_sum_partials(q, a.ddt_bias, a.beta, q->work + heads, parts, width, heads);
	if (!CORRECT) cuda_sum_partials(q, a.dskip, a.beta, q->work + 2 * heads, parts, width, heads);
}

#define BY_RULE(q, a, direction) BY_ELEMENT(q, ((a)->correct ? direction<T, 1>(q, *(a)) : direction<T, 0>(q, *(a))))
void cuda_delta_forward(const struct cuda_queue *q, const struct delta_args *a) { BY_RULE(q, a, forward); }
void cuda_delta_backward(const struct cuda_queue *q, const struct delta_args *a) { BY_RULE(q, a, backward); }

#define KERNELS(type, correct) \
	(const void *)delta_chunk_kernel<type, correct>, (const void *)delta_scan_kernel<type, 0, correct>, \
		(const void *)delta_scan_kernel<type, 1, correct>, (const void *)delta_scan_kernel<type, 2, correct>, \
		(const void *)delta_scan_back_kernel<type, correct>, (const void *)delta_gradients_kernel<type, correct>

/* More than 48 KiB of shared memory a block must be requested before the launch */
cudaError_t delta_prepare(void)
{
	const void *kernels[] = {KERNELS(float, 0), KERNELS(float, 1), KERNELS(struct bf16, 0), KERNELS(struct bf16, 1)};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
