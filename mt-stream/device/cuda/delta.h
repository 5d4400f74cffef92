/* delta.h: the gated delta rule and Mamba 2 in chunks of 64 tokens (cpu/kernel-delta.h has their formulas)
 *
 * DELTA_SEGMENT tokens of each group of rows are computed at a time, a wave: whole chunks, of as many documents as
 * there are. Groups give a multiprocessor more warps, as a scan waits for its own results. What depends on earlier
 * tokens by a document's state alone is computed for all its chunks at once; the rest, chunk after chunk, is as little
 * as possible, and columns of the state are independent, so that a warp has 16 of them:
 *     chunk      one chunk and head: T = (1 + A)^-1, P, and the factors of its tokens
 *     scan       one document, head and columns, forwards: d, o; backward: d and the states before the chunks
 *     scan_back  the same, backwards: r, dv, and the gradients of the states behind the chunks
 *     gradients  one chunk and head: dq, dk, db and the gradient of g
 * Backward first scans all waves but the last for the states between them. Kernels of Mamba 2 (CORRECT 0) have no T:
 * d and r are beta v, beta is dt, and what T and k k' give. delta.cu and mamba.cu each compile one of the two, as that
 * takes long.
 *
 * All is fp32 but for the elements of tensors. In fp32 runs the kernels use plain multiplications, in bf16 runs tensor
 * cores: there an fp32 number is the sum of two of bf16, which leaves 2^-17 of it; of the product of two such sums the
 * smallest part is left out. What comes from a tensor of bf16 is one, and so are S and d where o is computed, which is
 * rounded and goes into no state.
 *
 * nvcc takes long to compile unrolled loops, so in fp32, where speed matters less, few are, and scans have one size.
 */
#ifndef MT_STREAM_CUDA_DELTA_H
#define MT_STREAM_CUDA_DELTA_H

#include "async.h"
#include "kda.h"
#include "mma.h"

#define TILE DELTA_CHUNK
/* Distances of rows in shared memory, so that the pairs of rows and the columns that a warp reads at once lie in
 * different banks */
#define PITCH (TILE + 8)
#define ALL (TILE * PITCH)                        /* numbers of a tile */
#define PARTS(T) (int)(sizeof(float) / sizeof(T)) /* of T, which an operand has of a number */
#define FACTORS 4                                 /* of a token: */
enum { BETA, DECAY, LEFT, LOG_DECAY };            /* beta or dt, e, l, g */

/* A wave: of each group tokens of up to DELTA_SEGMENT, whose chunks and documents (the parts of them that lie here) are
 * counted, those of the group that has the most. */
struct wave {
	int64_t number;
	int chunks, pieces;
	int goes_on; /* a document goes on behind it */
	int alone;   /* of the backward pass: only the states behind it are wanted, of documents that go on */
};

struct room {
	struct delta_groups groups;
	int64_t wave;            /* tokens of a group's part of a wave, at most */
	float *kept;             /* (waves - 1, groups, HV, DK, DV): the state between waves; later its gradient */
	float *dg, *dd, *dskip;  /* (N, HV): the gradient of g; Mamba 2: dt's by d, skip's */
	float *T, *P;            /* (tokens of a wave, HV, TILE) */
	float *factors;          /* (tokens, HV, FACTORS) */
	float *d, *r;            /* (tokens, HV, DV) */
	float *states, *dstates; /* (chunks, HV, DK, DV): before a chunk; the gradient of the same */
	int wide;                /* all rows begin at multiples of 16 bytes */
	uint32_t *chunk, *piece; /* (waves, groups, wave + 2): how many there are; the chunks' first tokens, and the last
							  * one's end; the pieces' first chunks, and how many chunks there are */
};

/* delta.cu: lay out a->work, and launch what fills the tables of all waves */
struct room delta_tables(const struct cuda_queue *, const struct delta_args *a);
/* delta.cu: da, da_log, ddt_bias, and Mamba 2's dskip, from the gradients of all chunks */
void delta_gates(const struct cuda_queue *, const struct delta_args *a, const struct room *);
/* mamba.cu: without the correction */
void mamba_forward(const struct cuda_queue *, const struct delta_args *);
void mamba_backward(const struct cuda_queue *, const struct delta_args *);
cudaError_t mamba_prepare(void);

/* ---- where chunks are ---- */

static __host__ __device__ __forceinline__ int64_t tokens_before(const struct delta_args *a, const uint32_t *starts,
	int64_t t)
{
	return t % a->seq - starts[t];
}

static __host__ __device__ __forceinline__ int64_t group_end(const struct delta_args *a, const struct delta_groups *g,
	int64_t group)
{
	int64_t end = (group + 1) * g->tokens;
	return end < a->n ? end : a->n;
}

/* A group's part of a wave begins with the first chunk that begins DELTA_SEGMENT tokens or less before */
static __host__ __device__ __forceinline__ int64_t wave_first(const struct delta_args *a, const struct delta_groups *g,
	const uint32_t *starts, int64_t group, int64_t number)
{
	int64_t t = group * g->tokens + number * DELTA_SEGMENT, end = group_end(a, g, group);
	return t >= end ? end : t - tokens_before(a, starts, t) % TILE;
}

/* A chunk: tokens first .. first + n - 1, which the room has from `at` on */
struct delta_chunk {
	int64_t first, n, at;
	int begins, goes_on; /* its document begins with it; goes on behind it */
};

/* Where a block computes: item b / groups of group b % groups, of its chunks or pieces with all heads and slices */
struct delta_place {
	int64_t group, first, end; /* the group's part of the wave */
	int chunks, pieces;        /* there */
	const uint32_t *chunk, *piece;
	int64_t item;
};

static __device__ __forceinline__ struct delta_place place_of(const struct delta_args *a, const struct room *r,
	const struct wave *w)
{
	struct delta_place p;
	p.group = blockIdx.x % r->groups.groups;
	p.item = blockIdx.x / r->groups.groups;
	int64_t table = (w->number * r->groups.groups + p.group) * (r->wave + 2);
	p.chunk = r->chunk + table + 1;
	p.piece = r->piece + table + 1;
	p.chunks = (int)p.chunk[-1];
	p.pieces = (int)p.piece[-1];
	p.first = p.chunk[0];
	p.end = p.chunk[p.chunks];
	/* only the document that goes on */
	if (w->alone && (p.end == group_end(a, &r->groups, p.group) || tokens_before(a, a->starts, p.end) == 0))
		p.pieces = 0;
	return p;
}

/* Tokens of the room before the group's */
static __device__ __forceinline__ int64_t place_at(const struct room *r, const struct delta_place *p, int64_t t)
{
	return p->group * r->wave + t - p->first;
}

/* Chunk i of the group's part of the wave. false: there is none */
static __device__ __forceinline__ int chunk_at(struct delta_chunk *c, const struct delta_args *a, const struct room *r,
	const struct wave *w, const struct delta_place *p, int64_t i)
{
	if (p->pieces == 0) return 0;
	if (w->alone) i += p->piece[p->pieces - 1];
	if (i >= p->chunks) return 0;
	const uint32_t *at = p->chunk + i;
	c->first = at[0];
	c->n = (int64_t)at[1] - at[0];
	c->at = place_at(r, p, c->first);
	int64_t next = c->first + c->n;
	c->begins = tokens_before(a, a->starts, c->first) == 0;
	c->goes_on = next < a->n && tokens_before(a, a->starts, next) > 0;
	return 1;
}

/* The state before the room's token `at`, of all that are kept */
static __device__ __forceinline__ float *state_at(const struct delta_args *a, float *states, int64_t at, int64_t head)
{
	return states + (at / TILE * a->value_heads + head) * a->key_dim * a->value_dim;
}

/* The group's state at the end of wave `number` */
static __device__ __forceinline__ float *kept_at(const struct delta_args *a, const struct room *r, int64_t number,
	int64_t group, int64_t head)
{
	return r->kept + ((number * r->groups.groups + group) * a->value_heads + head) * a->key_dim * a->value_dim;
}

/* ---- tiles. Each of 8 warps has 16 rows and half the columns of a result, in pieces of 16 x 8 as mma.h has them: c[n]
 * is a group's part of piece n ---- */

#define ROW(e) ((int)threadIdx.x / 32 % 4 * 16 + (int)threadIdx.x % 32 / 4 + (e) / 2 * 8)
#define COLUMN(n, e) ((int)threadIdx.x / 128 * 32 + (n)*8 + (int)threadIdx.x % 4 * 2 + (e) % 2)

/* Two floats as sums of two of bf16 each */
static __device__ __forceinline__ void split(uint32_t *high, uint32_t *low, float a, float b)
{
	*high = pack_bf16(a, b);
	*low = pack_bf16(a - as_float(*high << 16), b - as_float(*high & 0xffff0000u));
}

/* An operand in shared or global memory: numbers of fp32, or their first parts of bf16 with the second ones `distance`
 * behind them; those of 8 numbers, or the first parts alone */
static __device__ __forceinline__ void put_parts(float *to, int, float x) { *to = x; }
static __device__ __forceinline__ void put_parts(struct bf16 *to, int distance, float x)
{
	put(to, x);
	put(to + distance, x - get(*to));
}
static __device__ __forceinline__ void put_wide_parts(float *to, int, const float v[WIDE], int)
{
	struct vec16 w[2];
	memcpy(w, v, sizeof w);
	store16_shared(to, w[0]);
	store16_shared(to + 4, w[1]);
}
static __device__ __forceinline__ void put_wide_parts(struct bf16 *to, int distance, const float v[WIDE], int both)
{
	struct vec16 high, low;
#pragma unroll
	for (int i = 0; i < 4; i++) split(&high.w[i], &low.w[i], v[2 * i], v[2 * i + 1]);
	store16_shared(to, high);
	if (both) store16_shared(to + distance, low);
}

/* to (TILE, PITCH) = rows of `from`, zeros where there are none; wide: as of get_wide */
template <typename T, typename F>
static __device__ __forceinline__ void tile_load(T *to, const F *from, int64_t stride, int64_t rows, int64_t columns,
	int wide)
{
	for (int e = threadIdx.x; e < TILE * TILE / WIDE; e += THREADS) {
		int r = e / (TILE / WIDE), c = e % (TILE / WIDE) * WIDE;
		float v[WIDE] = {0};
		if (r < rows && c < columns) get_wide(v, from + r * stride + c, columns - c, wide);
		put_wide_parts(to + r * PITCH + c, ALL, v, sizeof(F) == 4);
	}
}

/* c (the warp's rows and columns) += x y, or with x or y transposed (TX, TY). EX, EY: x, y are of bf16 */
template <int TX, int TY, int EX, int EY>
static __device__ __forceinline__ void tile_add(float c[4][4], const struct bf16 *x, const struct bf16 *y)
{
	x += ROW(0) / 16 * 16 * (TX ? 1 : PITCH);
	y += COLUMN(0, 0) / 32 * 32 * (TY ? PITCH : 1);
#pragma unroll 2
	for (int k = 0; k < TILE; k += 16) {
		uint32_t a[2][4], b[4];
#pragma unroll
		for (int part = 0; part < 2 - EX; part++)
			if (TX) load_a_columns(a[part], x + part * ALL + k * PITCH, PITCH);
			else load_a(a[part], x + part * ALL + k, PITCH);
#pragma unroll
		for (int n = 0; n < 4; n += 2)
#pragma unroll
			for (int part = 0; part < 2 - EY; part++) {
				if (TY) load_b_rows(b, y + part * ALL + n * 8 * PITCH + k, PITCH);
				else load_b(b, y + part * ALL + k * PITCH + n * 8, PITCH);
#pragma unroll
				for (int i = 0; i < 2; i++) {
					mma(c[n + i], a[0], b + 2 * i);
					if (!EX && part == 0) mma(c[n + i], a[1], b + 2 * i);
				}
			}
	}
}

/* The same by plain multiplications, of this lane's elements */
template <int TX, int TY, int EX, int EY>
static __device__ __attribute__((noinline)) void tile_add(float c[4][4], const float *x, const float *y)
{
	int row = ROW(0), column = COLUMN(0, 0);
#pragma unroll 4
	for (int m = 0; m < TILE; m++) {
		float p[2], q[8];
#pragma unroll
		for (int i = 0; i < 2; i++) p[i] = TX ? x[m * PITCH + row + 8 * i] : x[(row + 8 * i) * PITCH + m];
#pragma unroll
		for (int i = 0; i < 8; i++) {
			int at = column + i / 2 * 8 + i % 2;
			q[i] = TY ? y[at * PITCH + m] : y[m * PITCH + at];
		}
#pragma unroll
		for (int n = 0; n < 4; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) c[n][e] += p[e / 2] * q[2 * n + e % 2];
	}
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
	struct delta_place p = place_of(&a, &r, &w);
	int64_t head = p.item % a.value_heads;
	struct delta_chunk c;
	if (!chunk_at(&c, &a, &r, &w, &p, p.item / a.value_heads)) return;
	struct head_rows<T> h = head_rows_of<T>(&a, head, c.first);
	float kk[4][4] = {{0}}, qk[4][4] = {{0}};

	if (threadIdx.x < TILE) {
		int i = threadIdx.x;
		float x = 0, b = 0, rate = expf(get(((const T *)a.a_log)[head]));
		if (i < c.n) {
			x = get(((const T *)a.a)[(c.first + i) * a.ld + head]) + get(((const T *)a.dt_bias)[head]);
			if (CORRECT) b = get(((const T *)a.b)[(c.first + i) * a.b_ld + head]);
			else b = step_of(&a, softplus(x));
		}
		g[i] = i < c.n ? -rate * (CORRECT ? softplus(x) : b) : 0;
		beta[i] = i < c.n ? (CORRECT ? delta_beta_most(&a) / (1.0f + expf(-b)) : b) : 0;
	}
	for (int64_t c0 = 0; c0 < a.key_dim; c0 += TILE) {
		__syncthreads();
		tile_load((T *)k, h.k + c0, h.stride, c.n, a.key_dim - c0, r.wide);
		tile_load((T *)q, h.q + c0, h.stride, c.n, a.key_dim - c0, r.wide);
		__syncthreads();
		if (CORRECT) tile_add<0, 1, 1, 1>(kk, (T *)k, (T *)k);
		tile_add<0, 1, 1, 1>(qk, (T *)q, (T *)k);
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
				put_parts((T *)r.P + ((c.at + row) * a.value_heads + head) * PARTS(T) * TILE + column, TILE,
					row >= column ? decay * qk[n][e] : 0);
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
		put_parts((T *)r.T + ((c.at + e / TILE) * a.value_heads + head) * PARTS(T) * TILE + e % TILE, TILE,
			t[e / TILE * PITCH + e % TILE]);
}

/* to (FACTORS, TILE): those of the chunk's tokens, zeros after them */
static __device__ __forceinline__ void factors_load(float *to, const struct delta_args *a, const struct room *r,
	const struct delta_chunk *c, int64_t head)
{
	for (int e = threadIdx.x; e < FACTORS * TILE; e += THREADS) {
		int i = e / FACTORS, k = e % FACTORS;
		to[k * TILE + i] = i < c->n ? r->factors[((c->at + i) * a->value_heads + head) * FACTORS + k] : 0;
	}
}

/* ---- scans. A warp has 16 columns of a state, transposed: rows of a piece c are columns of the state, its columns are
 * keys or tokens. So what one product gives is an operand of the next, and warps share only what they read ---- */

#define STRIPS 4 /* warps of a block */
#define SCAN_THREADS (32 * STRIPS)
#define KEY(n, e) ((n)*8 + (int)threadIdx.x % 4 * 2 + (e) % 2) /* or token */
#define VALUE(e) ((int)threadIdx.x % 32 / 4 + (e) / 2 * 8)
#define TOKENS (TILE / 8)                                     /* pieces of a row of tokens */
#define RINGS(T, KEYS) (PARTS(T) == 2 && KEYS == 128 ? 2 : 1) /* buffers for rows of q and k */
#define LEAST_KEYS(T) (PARTS(T) == 2 ? 128 : 256)             /* KEYS of a scan whose keys have up to 128 elements */
/* Distances of rows in shared memory. fp32: of SHARED_MOST, rows of 256 keys leave no more */
#define ROWS_PITCH(T, KEYS) (KEYS + 16 / (int)sizeof(T))
#define MATRIX_PITCH(T) (TILE + (PARTS(T) == 2 ? 8 : 0))
#define MATRIX(T) (PARTS(T) * TILE * MATRIX_PITCH(T))

/* Begin to copy TILE rows of WIDTH elements to shared memory, and zeros where there are no `rows` and `columns`. Each
 * PLANE columns are a tile. Not asynchronously unless `wide` (as of get_wide) */
template <int WIDTH, int PLANE, typename T>
static __device__ __forceinline__ void copy_rows(T *to, int pitch, const T *from, int stride, int rows, int columns,
	int wide)
{
	const int parts = WIDTH * sizeof(T) / 16, at_once = SCAN_THREADS / parts;
	const T zero = {};
	if (wide) {
		int row = threadIdx.x / parts, column = threadIdx.x % parts * (16 / sizeof(T));
		to += column / PLANE * TILE * pitch + row * pitch + column % PLANE;
		from += row * stride + column;
		if (column >= columns) rows = 0;
#pragma unroll 4
		for (; row < TILE; row += at_once, to += at_once * pitch, from += at_once * stride)
			copy16_async(to, from, row < rows);
	} else {
#pragma unroll 1
		for (int e = threadIdx.x; e < TILE * WIDTH; e += SCAN_THREADS) {
			int row = e / WIDTH, column = e % WIDTH;
			to[column / PLANE * TILE * pitch + row * pitch + column % PLANE] = row < rows && column < columns
				? from[row * stride + column]
				: zero;
		}
	}
}

/* What a warp of a scan computes: columns of a head's state; the piece's tokens, which the room has from `at` on. A
 * chunk is the piece's tokens t .. t + n - 1 */
struct strip {
	int64_t group, head, first, at;
	int column, columns, tokens;
	int begins, goes_on; /* the document begins with the piece; goes on behind it */
};

/* false: there is none */
static __device__ __forceinline__ int strip_of(struct strip *s, const struct delta_args *a, const struct room *r,
	const struct wave *w)
{
	struct delta_place p = place_of(a, r, w);
	int64_t slices = (a->value_dim + 16 * STRIPS - 1) / (16 * STRIPS), i = p.item / slices / a->value_heads;
	if (i >= (w->alone && p.pieces ? 1 : p.pieces)) return 0;
	if (w->alone) i = p.pieces - 1;
	int64_t first = p.chunk[p.piece[i]], end = p.chunk[p.piece[i + 1]];
	s->group = p.group;
	s->head = p.item / slices % a->value_heads;
	s->first = first;
	s->at = place_at(r, &p, first);
	s->column = (int)(p.item % slices * STRIPS + threadIdx.x / 32) * 16;
	s->columns = (int)a->value_dim - s->column;
	s->tokens = (int)(end - first);
	s->begins = tokens_before(a, a->starts, first) == 0;
	s->goes_on = end < a->n && tokens_before(a, a->starts, end) > 0;
	return 1;
}

static __device__ __forceinline__ int strip_tokens(const struct strip *s, int t)
{
	return s->tokens - t < TILE ? s->tokens - t : TILE;
}

/* T or P of the chunk */
template <typename T>
static __device__ __forceinline__ void copy_matrix(T *to, const float *from, const struct delta_args *a,
	const struct room *r, const struct strip *s, int t)
{
	const int width = PARTS(T) * TILE;
	copy_rows<width, TILE>(to, MATRIX_PITCH(T), (const T *)from + ((s->at + t) * a->value_heads + s->head) * width,
		(int)a->value_heads * width, s->tokens - t, width, r->wide);
}

/* The chunk's rows of q or k, of which `from` has the piece's */
template <int KEYS, typename T>
static __device__ __forceinline__ void copy_keys(T *to, const T *from, int stride, const struct delta_args *a,
	const struct room *r, const struct strip *s, int t)
{
	copy_rows<KEYS, KEYS>(to, ROWS_PITCH(T, KEYS), from + (int64_t)t * stride, stride, s->tokens - t, (int)a->key_dim,
		r->wide);
}

static __device__ __forceinline__ void copy_factors(float *to, const struct delta_args *a, const struct room *r,
	const struct strip *s, int t)
{
	copy_rows<FACTORS, FACTORS>(to, FACTORS, r->factors + ((s->at + t) * a->value_heads + s->head) * FACTORS,
		(int)a->value_heads * FACTORS, s->tokens - t, FACTORS, r->wide);
}

/* Columns 8 from .. 8 end - 1 of c += x y, 16 deep; x: two neighbouring pieces. Rows of y lie `pitch` apart; TURNED:
 * they are its columns. A number of x is the sum of X of bf16, one of y of Y, whose second ones are the next tile. */
template <int TURNED, int X, int Y>
static __device__ __forceinline__ void strip_multiply(float (*c)[4], const float (*x)[4], const struct bf16 *y,
	int pitch, int from, int end)
{
	uint32_t high[4], low[4], b[4];
#pragma unroll
	for (int i = 0; i < 4; i++) split(&high[i], &low[i], x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]);
#pragma unroll
	for (int n = from; n < end; n += 2)
#pragma unroll
		for (int part = 0; part < Y; part++) {
			const struct bf16 *m = y + part * TILE * pitch + n * 8 * (TURNED ? pitch : 1);
			if (TURNED) load_b_rows(b, m, pitch);
			else load_b(b, m, pitch);
#pragma unroll
			for (int i = 0; i < 2; i++) {
				mma(c[n + i], high, b + 2 * i);
				if (X == 2 && part == 0) mma(c[n + i], low, b + 2 * i);
			}
		}
}

/* c += x y, 16 DEEP deep. LOWER: y, or y transposed if TURNED, has zeros above the diagonal. fp32 leaves out elements
 * of keys from `size` on, which are zeros: 128, or 256 where keys are longer than 128 */
template <int N, int DEEP, int TURNED, int X, int Y, int LOWER>
static __device__ __forceinline__ void strip_add(float (*c)[4], float (*x)[4], const struct bf16 *y, int pitch, int)
{
#pragma unroll
	for (int k = 0; k < DEEP; k++)
		strip_multiply<TURNED, X, Y>(c, x + 2 * k, y + 16 * k * (TURNED ? 1 : pitch), pitch,
			LOWER && TURNED ? 2 * k : 0, LOWER && !TURNED ? 2 * k + 2 : N);
}

/* The same by plain multiplications. The loops over k and t are not unrolled: that would take long to compile.
 * Registers have no index, so x is rotated by the two pieces of k. At the end x is as before. */
template <int N, int DEEP, int TURNED, int X, int Y, int LOWER>
static __device__ __forceinline__ void strip_add(float (*c)[4], float (*x)[4], const float *y, int pitch, int size)
{
	y += threadIdx.x % 4 * 2 * (TURNED ? pitch : 1);
#pragma unroll 1
	for (int k = 0; k < DEEP; k++) {
#pragma unroll 1
		for (int t = 0; t < 4 && 16 * k < size; t++, y += 2 * (TURNED ? 1 : pitch)) {
			float rows[2][4];
#pragma unroll
			for (int i = 0; i < 8; i++)
				rows[i / 4][i % 4] = __shfl_sync(FULL, x[i / 4][i % 4], (int)threadIdx.x % 32 / 4 * 4 + t);
#pragma unroll
			for (int n = 0; n < N; n++)
				if (LOWER ? (TURNED ? n >= 2 * k : n < 2 * k + 2) : n < 16 || 8 * n < size)
#pragma unroll
					for (int i = 0; i < 16; i++) {
						int row = i / 8 * 8 + i / 4 % 2, column = n * 8 + i % 2;
						c[n][i % 4] += rows[i / 8][i % 4 / 2 * 2 + i / 4 % 2] *
							(TURNED ? y[column * pitch + row] : y[row * pitch + column]);
					}
		}
		y += 8 * (TURNED ? 1 : pitch);
		float first[2][4];
		memcpy(first, x, sizeof first);
#pragma unroll
		for (int n = 0; n < 2 * DEEP; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) x[n][e] = n + 2 < 2 * DEEP ? x[n + 2][e] : first[n + 2 - 2 * DEEP][e];
	}
}

/* c += x T', x P' (TURNED), x T or x P */
template <typename T, int TURNED, int X, int Y>
static __device__ __forceinline__ void strip_add_matrix(float (*c)[4], float (*x)[4], const T *y)
{
	strip_add<TOKENS, TOKENS / 2, TURNED, X, Y, 1>(c, x, y, MATRIX_PITCH(T), TILE);
}

/* c (tokens) += s x', or s (keys) += c x: x has rows of q or k */
template <typename T, int KEYS, int S>
static __device__ __forceinline__ void strip_read(float (*c)[4], float (*s)[4], const T *x, int size)
{
	strip_add<TOKENS, KEYS / 16, 1, S, 1, 0>(c, s, x, ROWS_PITCH(T, KEYS), size);
}
template <typename T, int KEYS>
static __device__ __forceinline__ void strip_write(float (*s)[4], float (*c)[4], const T *x, int size)
{
	strip_add<KEYS / 8, TOKENS / 2, 0, 2, 1, 0>(s, c, x, ROWS_PITCH(T, KEYS), size);
}

template <int N>
static __device__ __forceinline__ void strip_zero(float c[N][4])
{
#pragma unroll
	for (int n = 0; n < N; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) c[n][e] = 0;
}

/* A factor of a token; f: of the first one. volatile: else all four would be loaded at once, and need registers */
static __device__ __forceinline__ float factor_of(const float *f, int token)
{
	return *(const volatile float *)(f + token * FACTORS);
}

/* c = sign times factor of each token's c */
static __device__ __forceinline__ void strip_scale(float c[TOKENS][4], const float *f, float sign)
{
#pragma unroll
	for (int n = 0; n < TOKENS; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) c[n][e] *= sign * factor_of(f, KEY(n, e));
}

/* The next 8 rows. As the compiler cannot see through it, it computes no addresses in advance, for which registers
 * would not suffice */
template <typename T>
static __device__ __forceinline__ void next_rows(T **row, int stride, int *rows)
{
	*row += 8 * stride;
	*rows -= 8;
#ifndef MT_EMU
	asm volatile("" : "+l"(*row), "+r"(*rows));
	__builtin_assume(__isGlobal(*row));
#endif
}

/* c = the warp's columns of x, transposed; zeros where there are none */
template <int N, typename T>
static __device__ __forceinline__ void strip_load(float c[N][4], const T *x, int stride, int rows, int columns)
{
	x += KEY(0, 0) * stride + VALUE(0);
	rows -= KEY(0, 0);
	columns -= VALUE(0);
#pragma unroll
	for (int n = 0; n < N; n++, next_rows(&x, stride, &rows))
#pragma unroll
		for (int e = 0; e < 4; e++)
			c[n][e] = e % 2 < rows && e / 2 * 8 < columns ? get(x[e % 2 * stride + e / 2 * 8]) : 0;
}

template <int N, typename T>
static __device__ __forceinline__ void strip_store(T *to, const float c[N][4], int stride, int rows, int columns)
{
	to += KEY(0, 0) * stride + VALUE(0);
	rows -= KEY(0, 0);
	columns -= VALUE(0);
#pragma unroll
	for (int n = 0; n < N; n++, next_rows(&to, stride, &rows))
#pragma unroll
		for (int e = 0; e < 4; e++)
			if (e % 2 < rows && e / 2 * 8 < columns) put(to + e % 2 * stride + e / 2 * 8, c[n][e]);
}

/* FORWARD 0: the states before the chunks and d, or, if w.alone, the state behind the wave alone */
template <typename T, int KEYS, int FORWARD, int CORRECT>
static __global__ void __launch_bounds__(SCAN_THREADS)
	delta_scan_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, f);
	const int rings = RINGS(T, KEYS);
	T *k = (T *)(f + FACTORS * TILE), *q = k + (rings - 1) * TILE * ROWS_PITCH(T, KEYS);
	T *P = k + rings * TILE * ROWS_PITCH(T, KEYS), *inverse = P + FORWARD * MATRIX(T);
	struct strip at;
	if (!strip_of(&at, &a, &r, &w)) return;
	struct head_rows<T> h = head_rows_of<T>(&a, at.head, at.first);
	int stride = (int)h.stride, values = (int)(a.value_heads * a.value_dim), keys = (int)a.key_dim;
	int size = keys <= 128 ? 128 : 256;
	int64_t value = at.head * a.value_dim + at.column;
	float s[KEYS / 8][4];

	strip_load<KEYS / 8>(s, kept_at(&a, &r, w.number - 1, at.group, at.head) + at.column, (int)a.value_dim,
		at.begins ? 0 : keys, at.columns);
	for (int t = 0; t < at.tokens; t += TILE) {
		int length = strip_tokens(&at, t), has_state = t > 0 || !at.begins;
		float d[TOKENS][4], v[TOKENS][4];
		if (rings == 1 || t == 0) {
			__syncthreads();
			copy_keys<KEYS>(k, h.k, stride, &a, &r, &at, t);
			copies_commit();
		}
		copies_wait<0>();
		__syncthreads();
		copy_factors(f, &a, &r, &at, t);
		if (CORRECT) copy_matrix<T>(inverse, r.T, &a, &r, &at, t);
		copies_commit();
		if (FORWARD) copy_matrix<T>(P, r.P, &a, &r, &at, t);
		if (FORWARD && rings == 2) copy_keys<KEYS>(q, h.q, stride, &a, &r, &at, t);
		if (!FORWARD && rings == 2 && t + TILE < at.tokens) copy_keys<KEYS>(q, h.k, stride, &a, &r, &at, t + TILE);
		copies_commit();
		if (!FORWARD && !w.alone && has_state)
			strip_store<KEYS / 8>(state_at(&a, r.states, at.at + t, at.head) + at.column, s, (int)a.value_dim, keys,
				at.columns);
		if (KEYS == 128) strip_load<TOKENS>(v, h.v + (int64_t)t * stride + at.column, stride, length, at.columns);
		strip_zero<TOKENS>(d);
		if (CORRECT && has_state) strip_read<T, KEYS, 2>(d, s, k, size);
		copies_wait<1>();
		__syncthreads();
		if (KEYS > 128) strip_load<TOKENS>(v, h.v + (int64_t)t * stride + at.column, stride, length, at.columns);
#pragma unroll
		for (int n = 0; n < TOKENS; n++) /* beta (v - e k S) */
#pragma unroll
			for (int e = 0; e < 4; e++)
				d[n][e] = factor_of(f + BETA, KEY(n, e)) *
					(CORRECT ? v[n][e] - factor_of(f + DECAY, KEY(n, e)) * d[n][e] : v[n][e]);
		if (CORRECT) {
			float x[TOKENS][4];
			strip_zero<TOKENS>(x);
			strip_add_matrix<T, 1, 2, 2>(x, d, inverse);
			memcpy(d, x, sizeof d);
		}
		if (!FORWARD && !w.alone)
			strip_store<TOKENS>(r.d + (at.at + t) * values + value, d, values, length, at.columns);
		if (FORWARD) {
			float o[TOKENS][4];
			if (rings == 1) {
				__syncthreads();
				copy_keys<KEYS>(q, h.q, stride, &a, &r, &at, t);
				copies_commit();
			}
			copies_wait<0>();
			__syncthreads();
			strip_zero<TOKENS>(o);
			if (has_state) strip_read<T, KEYS, 1>(o, s, q, size);
			strip_scale(o, f + DECAY, 1);
			strip_add_matrix<T, 1, 1, 1>(o, d, P);
			if (!CORRECT) {
				float skip = get(((const T *)a.skip)[at.head]);
				if (KEYS > 128)
					strip_load<TOKENS>(v, h.v + (int64_t)t * stride + at.column, stride, length, at.columns);
#pragma unroll
				for (int n = 0; n < TOKENS; n++)
#pragma unroll
					for (int e = 0; e < 4; e++) o[n][e] += skip * v[n][e];
			}
			strip_store<TOKENS>((T *)a.o + (at.first + t) * values + value, o, values, length, at.columns);
			__syncthreads(); /* q is free */
			if (rings == 1) copy_keys<KEYS>(k, h.k, stride, &a, &r, &at, t);
			else if (t + TILE < at.tokens) copy_keys<KEYS>(q, h.k, stride, &a, &r, &at, t + TILE);
			copies_commit();
			if (rings == 1) {
				copies_wait<0>();
				__syncthreads();
			}
		}
		if (t + TILE < at.tokens || at.goes_on) { /* S = e_C S + k' (l d) */
			float decay = f[(length - 1) * FACTORS + DECAY];
#pragma unroll
			for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) s[n][e] *= decay;
			strip_scale(d, f + LEFT, 1);
			strip_write<T, KEYS>(s, d, k, size);
		}
		if (rings == 2) {
			T *other = q;
			q = k;
			k = other;
		}
	}
	if ((FORWARD || w.alone) && at.goes_on)
		strip_store<KEYS / 8>(kept_at(&a, &r, w.number, at.group, at.head) + at.column, s, (int)a.value_dim, keys,
			at.columns);
}

template <typename T, int KEYS, int CORRECT>
static __global__ void __launch_bounds__(SCAN_THREADS)
	delta_scan_back_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(float, f);
	const int rings = RINGS(T, KEYS);
	T *k = (T *)(f + FACTORS * TILE), *q = k + (rings - 1) * TILE * ROWS_PITCH(T, KEYS);
	T *P = k + rings * TILE * ROWS_PITCH(T, KEYS), *inverse = P + MATRIX(T);
	struct strip at;
	if (!strip_of(&at, &a, &r, &w)) return;
	struct head_rows<T> h = head_rows_of<T>(&a, at.head, at.first);
	int stride = (int)h.stride, values = (int)(a.value_heads * a.value_dim), keys = (int)a.key_dim;
	int size = keys <= 128 ? 128 : 256;
	int64_t value = at.head * a.value_dim + at.column;
	float s[KEYS / 8][4]; /* dS */

	strip_load<KEYS / 8>(s, kept_at(&a, &r, w.number, at.group, at.head) + at.column, (int)a.value_dim,
		at.goes_on ? keys : 0, at.columns);
	for (int t = (at.tokens - 1) / TILE * TILE; t >= 0; t -= TILE) {
		int length = strip_tokens(&at, t), goes_on = t + TILE < at.tokens || at.goes_on;
		float sum[TOKENS][4], g[TOKENS][4]; /* r; do */
		if (rings == 1 || t + TILE >= at.tokens) {
			__syncthreads();
			copy_keys<KEYS>(k, h.k, stride, &a, &r, &at, t);
			copies_commit();
		}
		copies_wait<0>();
		__syncthreads();
		copy_factors(f, &a, &r, &at, t);
		copy_matrix<T>(P, r.P, &a, &r, &at, t);
		if (CORRECT) copy_matrix<T>(inverse, r.T, &a, &r, &at, t);
		copies_commit();
		if (rings == 2 && (t > 0 || !at.begins)) copy_keys<KEYS>(q, h.q, stride, &a, &r, &at, t);
		copies_commit();
		if (goes_on)
			strip_store<KEYS / 8>(state_at(&a, r.dstates, at.at + t + length, at.head) + at.column, s, (int)a.value_dim,
				keys, at.columns);
		if (KEYS == 128)
			strip_load<TOKENS>(g, (const T *)a.d_o + (at.first + t) * values + value, values, length, at.columns);
		strip_zero<TOKENS>(sum);
		if (goes_on) strip_read<T, KEYS, 2>(sum, s, k, size);
		copies_wait<1>();
		__syncthreads();
		strip_scale(sum, f + LEFT, 1);
		if (KEYS > 128)
			strip_load<TOKENS>(g, (const T *)a.d_o + (at.first + t) * values + value, values, length, at.columns);
		strip_add_matrix<T, 0, 1, 2>(sum, g, P);
		if (CORRECT) {
			float x[TOKENS][4];
			strip_zero<TOKENS>(x);
			strip_add_matrix<T, 0, 2, 2>(x, sum, inverse);
			memcpy(sum, x, sizeof sum);
		}
		strip_store<TOKENS>(r.r + (at.at + t) * values + value, sum, values, length, at.columns);
		strip_scale(sum, f + BETA, 1);
		if (!CORRECT) { /* dt r + skip do */
			float skip = get(((const T *)a.skip)[at.head]);
#pragma unroll
			for (int n = 0; n < TOKENS; n++)
#pragma unroll
				for (int e = 0; e < 4; e++) sum[n][e] += skip * g[n][e];
		}
		strip_store<TOKENS>((T *)a.dv + (at.first + t) * values + value, sum, values, length, at.columns);
		if (t == 0 && at.begins) break;
		float decay = f[(length - 1) * FACTORS + DECAY]; /* dS = e_C dS + q' (e do) - k' (beta e r) */
#pragma unroll
		for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
			for (int e = 0; e < 4; e++) s[n][e] *= decay;
		if (CORRECT) {
			strip_scale(sum, f + DECAY, -1);
			strip_write<T, KEYS>(s, sum, k, size);
		}
		if (rings == 1) {
			__syncthreads();
			copy_keys<KEYS>(q, h.q, stride, &a, &r, &at, t);
			copies_commit();
		}
		copies_wait<0>();
		__syncthreads();
		if (rings == 2 && t > 0) copy_keys<KEYS>(k, h.k, stride, &a, &r, &at, t - TILE);
		copies_commit();
		if (KEYS > 128)
			strip_load<TOKENS>(g, (const T *)a.d_o + (at.first + t) * values + value, values, length, at.columns);
		strip_scale(g, f + DECAY, 1);
		strip_write<T, KEYS>(s, g, q, size);
	}
	if (!at.begins)
		strip_store<KEYS / 8>(kept_at(&a, &r, w.number - 1, at.group, at.head) + at.column, s, (int)a.value_dim, keys,
			at.columns);
}

/* ---- the gradients of a chunk ---- */

/* A chunk's arrays in shared memory: its factors; what goes from the state to each token and from it to the next state,
 * each as the sums of two warps; what goes from token to token */
struct chunk_sums {
	float *f, *reads, *writes, *column; /* (FACTORS, TILE), (2, TILE) x 2, (TILE) */
};
#define SUMS (FACTORS + 5)

/* dP and dA as tiles; db, or what dt gets from d, and dskip; and s->column. u, v: room for tiles */
template <typename T, int CORRECT>
static __device__ __forceinline__ void chunk_pairs(T *dP, T *dA, T *u, T *v, const struct chunk_sums *s,
	const struct delta_args *a, const struct room *r, const struct delta_chunk *c, int64_t head)
{
	int64_t values = a->value_heads * a->value_dim, value = head * a->value_dim;
	struct head_rows<T> h = head_rows_of<T>(a, head, c->first);
	float p[4][4] = {{0}}, b[4][4] = {{0}}, kk[4][4] = {{0}}, qk[4][4] = {{0}};
	float *scratch = (float *)u, *decays = (float *)v;
	for (int64_t c0 = 0; c0 < a->value_dim; c0 += TILE) { /* do d', r d'; Mamba 2: r v', do v' */
		int64_t left = a->value_dim - c0;
		__syncthreads();
		tile_load(u, (const T *)a->d_o + c->first * values + value + c0, values, c->n, left, r->wide);
		tile_load(v, r->d + c->at * values + value + c0, values, c->n, left, r->wide);
		tile_load(dA, r->r + c->at * values + value + c0, values, c->n, left, r->wide);
		if (!CORRECT) tile_load(dP, h.v + c0, h.stride, c->n, left, r->wide);
		__syncthreads();
		tile_add<0, 1, 1, 0>(p, u, v);
		if (CORRECT) {
			tile_add<0, 1, 0, 0>(b, dA, v);
		} else {
			tile_add<0, 1, 0, 1>(b, dA, dP);
			tile_add<0, 1, 1, 1>(kk, u, dP);
		}
	}
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = ROW(e);
			int64_t t = c->first + row, at = t * a->value_heads + head;
			if (row != COLUMN(n, e) || row >= c->n) continue;
			float share = s->f[BETA * TILE + row] / delta_beta_most(a);
			if (CORRECT) put((T *)a->db + t * a->db_ld + head, (1.0f - share) * b[n][e]);
			if (!CORRECT) r->dd[at] = b[n][e];
			if (!CORRECT) r->dskip[at] = kk[n][e];
		}
	for (int64_t c0 = 0; c0 < a->key_dim; c0 += TILE) {
		__syncthreads();
		tile_load(u, h.k + c0, h.stride, c->n, a->key_dim - c0, r->wide);
		tile_load(v, h.q + c0, h.stride, c->n, a->key_dim - c0, r->wide);
		__syncthreads();
		if (CORRECT) tile_add<0, 1, 1, 1>(kk, u, u);
		tile_add<0, 1, 1, 1>(qk, v, u);
	}
	__syncthreads();
	decay_tile(decays, s->f + LOG_DECAY * TILE);
	__syncthreads();
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int e = 0; e < 4; e++) {
			int row = ROW(e), column = COLUMN(n, e), at = row * PITCH + column;
			float decay = decays[at], dp = row >= column ? p[n][e] * decay : 0;
			float da = CORRECT && row > column ? -b[n][e] * s->f[BETA * TILE + row] * decay : 0;
			put_parts(dP + at, ALL, dp);
			if (CORRECT) put_parts(dA + at, ALL, da);
			scratch[row * (TILE + 1) + column] = row > column ? dp * qk[n][e] + (CORRECT ? da * kk[n][e] : 0) : 0;
		}
	__syncthreads();
	if (threadIdx.x < TILE) { /* [i, l]: the sum over j < l */
		float sum = 0;
		for (int l = 0; l < TILE; l++) {
			float x = scratch[threadIdx.x * (TILE + 1) + l];
			scratch[threadIdx.x * (TILE + 1) + l] = sum;
			sum += x;
		}
	}
	__syncthreads();
	if (threadIdx.x < TILE) {
		float sum = 0;
		for (int i = threadIdx.x; i < TILE; i++) sum += scratch[i * (TILE + 1) + threadIdx.x];
		s->column[threadIdx.x] = sum;
	}
}

/* The products of a chunk with states, TILE columns of keys from c0 on: q = do S', k = r S', w = d dS1' */
template <typename T, int CORRECT>
static __device__ __forceinline__ void chunk_by_states(float q[4][4], float k[4][4], float w[4][4], T *u, T *v,
	const float *S, const float *dS1, const struct delta_args *a, const struct room *r, const struct delta_chunk *c,
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
			tile_add<0, 1, 1, 0>(q, u, v);
		}
		if (CORRECT && S) {
			__syncthreads();
			tile_load(u, r->r + c->at * values + value + j0, values, c->n, left, r->wide);
			__syncthreads();
			tile_add<0, 1, 0, 0>(k, u, v);
		}
		if (dS1) {
			__syncthreads();
			tile_load(v, dS1 + c0 * a->value_dim + j0, a->value_dim, a->key_dim - c0, left, r->wide);
			tile_load(u, r->d + c->at * values + value + j0, values, c->n, left, r->wide);
			__syncthreads();
			tile_add<0, 1, 0, 0>(w, u, v);
		}
	}
}

/* q = e q, k = dkS S', w = l w; their parts of the gradient of g, with k in u and q in v, are added to the sums; k += w
 */
template <typename T>
static __device__ __forceinline__ void chunk_reads_writes(float q[4][4], float k[4][4], float w[4][4], const T *u,
	const T *v, const struct chunk_sums *s)
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
			reads[e / 2] += q[n][e] * get(v[at]) + k[n][e] * get(u[at]); /* k.(dkS S') is dkS.(k S) */
			writes[e / 2] += w[n][e] * get(u[at]);
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
static __global__ void __launch_bounds__(THREADS, 2)
	delta_gradients_kernel(struct delta_args a, struct room r, struct wave w)
{
	DYNAMIC_SHARED(T, dP);
	T *dA = dP + PARTS(T) * ALL, *u = dA + PARTS(T) * ALL, *v = u + PARTS(T) * ALL;
	float *f = (float *)(v + PARTS(T) * ALL), *scratch = f + SUMS * TILE;
	struct chunk_sums s = {f, f + FACTORS * TILE, f + (FACTORS + 2) * TILE, f + (FACTORS + 4) * TILE};
	struct delta_place p = place_of(&a, &r, &w);
	int64_t head = p.item % a.value_heads;
	struct delta_chunk c;
	if (!chunk_at(&c, &a, &r, &w, &p, p.item / a.value_heads)) return;
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
		tile_add<0, 0, 0, 1>(q, dP, u);
		if (CORRECT) {
			tile_add<0, 0, 0, 1>(k, dA, u);
			tile_add<1, 0, 0, 1>(k, dA, u);
		}
		tile_add<1, 0, 0, 1>(k, dP, v);
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

/* ---- launchers ---- */

static struct wave wave_of(const struct delta_args *a, const struct delta_groups *g, int64_t number)
{
	struct wave w = {number, 0, 0, 0, 0};
	for (int64_t group = 0; group < g->groups; group++) {
		int64_t first = wave_first(a, g, a->host_starts, group, number);
		int64_t end = wave_first(a, g, a->host_starts, group, number + 1);
		int64_t row = first / a->seq * a->seq;
		int chunks = 0, pieces = 0;
		for (int64_t t = first; t < end; t++) {
			if (t - row == a->seq) row = t;
			int64_t before = t - row - a->host_starts[t];
			chunks += before % TILE == 0;
			pieces += before == 0 || t == first;
		}
		if (chunks > w.chunks) w.chunks = chunks;
		if (pieces > w.pieces) w.pieces = pieces;
		if (end < group_end(a, g, group) && tokens_before(a, a->host_starts, end) > 0) w.goes_on = 1;
	}
	return w;
}

/* Of rows of q and k, and T, P or both */
template <typename T, int KEYS>
static size_t scan_shared(int matrices)
{
	return FACTORS * TILE * sizeof(float) +
		(RINGS(T, KEYS) * TILE * ROWS_PITCH(T, KEYS) + matrices * MATRIX(T)) * sizeof(T);
}

#define CHUNK_SHARED ((3 * ALL + 2 * TILE) * sizeof(float))
#define GRADIENTS_SHARED ((4 * ALL + SUMS * TILE + THREADS / 32) * sizeof(float))

template <typename T, int KEYS, int FORWARD, int CORRECT>
static void wave_scan(const struct cuda_queue *q, const struct delta_args a, const struct room r, const struct wave w)
{
	int64_t slices = div_up(a.value_dim, 16 * STRIPS), across = r.groups.groups * a.value_heads;
	int64_t chunks = w.alone ? least(w.chunks, DELTA_SEGMENT / TILE + 1) : w.chunks, pieces = w.alone ? 1 : w.pieces;
	LAUNCH((delta_chunk_kernel<T, CORRECT>), chunks * across, THREADS, CHUNK_SHARED, q->stream, a, r, w);
	LAUNCH((delta_scan_kernel<T, KEYS, FORWARD, CORRECT>), pieces * across * slices, SCAN_THREADS,
		(scan_shared<T, KEYS>(FORWARD + CORRECT)), q->stream, a, r, w);
}

template <typename T, int KEYS, int CORRECT>
static void forward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct room r = delta_tables(q, &a);
	for (int64_t i = 0; i < r.groups.waves; i++) wave_scan<T, KEYS, 1, CORRECT>(q, a, r, wave_of(&a, &r.groups, i));
}

template <typename T, int KEYS, int CORRECT>
static void backward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct room r = delta_tables(q, &a);
	int64_t heads = a.value_heads, across = r.groups.groups * heads, slices = div_up(a.value_dim, 16 * STRIPS);
	for (int64_t i = 0; i + 1 < r.groups.waves; i++) {
		struct wave w = wave_of(&a, &r.groups, i);
		w.alone = 1;
		if (w.goes_on) wave_scan<T, KEYS, 0, CORRECT>(q, a, r, w);
	}
	for (int64_t i = r.groups.waves - 1; i >= 0; i--) {
		const struct wave w = wave_of(&a, &r.groups, i);
		wave_scan<T, KEYS, 0, CORRECT>(q, a, r, w);
		LAUNCH((delta_scan_back_kernel<T, KEYS, CORRECT>), w.pieces * across * slices, SCAN_THREADS,
			(scan_shared<T, KEYS>(1 + CORRECT)), q->stream, a, r, w);
		LAUNCH((delta_gradients_kernel<T, CORRECT>), w.chunks * across, THREADS, GRADIENTS_SHARED, q->stream, a, r, w);
	}
	delta_gates(q, &a, &r);
}

#define BY_KEYS(q, a, direction, correct) \
	BY_ELEMENT(q, \
		((a)->key_dim <= 128 ? direction<T, LEAST_KEYS(T), correct>(q, *(a)) : direction<T, 256, correct>(q, *(a))))
#define SCANS(type, keys, correct) \
	(const void *)delta_scan_kernel<type, keys, 0, correct>, (const void *)delta_scan_kernel<type, keys, 1, correct>, \
		(const void *)delta_scan_back_kernel<type, keys, correct>
#define KERNELS(type, correct) \
	(const void *)delta_chunk_kernel<type, correct>, SCANS(type, LEAST_KEYS(type), correct), \
		SCANS(type, 256, correct), (const void *)delta_gradients_kernel<type, correct>

#endif
