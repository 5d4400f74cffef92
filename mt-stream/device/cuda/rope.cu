/* rope.cu: rotary positions (arXiv 2104.09864), and the RMSNorms of q, k and v that some families have beside them */
#include "common.h"
#include "ops/norm.h"
#include "ops/rope.h"

/* ---- rotate_half over whole heads, with or without norms of each head before it ---- */

/* Heads of 16, 32, ... 512: dim / 16 neighbouring lanes compute one head of a token, WIDE elements of each half a
 * lane */
#define ROPE_MOST 512

static int rope_by_lanes(int64_t dim) { return dim >= 16 && dim <= ROPE_MOST && (dim & (dim - 1)) == 0; }

/* The head of a token that a lane works on, and where its elements start in each half. Their number fits 32 bits:
 * 2^32 of the smallest heads would be more memory than any GPU has. Where the last block has more heads than there are
 * (there is 0), they compute the first one with zeros, as other lanes store its elements, and store nothing. */
struct rope_lane {
	int there, is_k;
	int64_t t, item, x, angle;
	int i;
};

static __device__ __forceinline__ struct rope_lane lane_of(const struct rope_args *r, int64_t block)
{
	uint32_t lanes = (uint32_t)r->dim / 16, heads = (uint32_t)(r->heads + r->kv_heads), seq = (uint32_t)r->seq;
	int64_t item = block * (THREADS / lanes) + threadIdx.x / lanes;
	struct rope_lane l;
	l.there = item < r->n * heads;
	if (!l.there) item = 0;
	uint32_t t = (uint32_t)item / heads, head = (uint32_t)item - t * heads;
	l.t = t;
	l.item = item;
	l.is_k = head >= (uint32_t)r->heads;
	l.i = (int)(threadIdx.x % lanes) * WIDE;
	l.x = t * rope_row(r) + head * r->dim + l.i;
	l.angle = (int64_t)(t % seq - r->starts[t]) * (r->dim / 2) + l.i;
	return l;
}

/* The block's sums (heads, n) are added in order, to its partial gradients of the norms' weights */
static __device__ __forceinline__ void add_heads(float *partial, const float *sums, int heads, int64_t n)
{
	__syncthreads();
	for (int64_t i = threadIdx.x; i < n; i += THREADS) {
		float total = 0;
		for (int k = 0; k < heads; k++) total += sums[k * n + i];
		partial[blockIdx.x * n + i] = total;
	}
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	rope_forward_lanes(struct rope_args r, T *qkv, T *pre, float *rstd, int wide)
{
	struct rope_lane l = lane_of(&r, blockIdx.x);
	int64_t half = r.dim / 2;
	float a[WIDE], b[WIDE], c[WIDE], s[WIDE];
	get_wide(a, qkv + l.x, l.there ? WIDE : 0, wide && l.there);
	get_wide(b, qkv + l.x + half, l.there ? WIDE : 0, wide && l.there);
	if (r.qnorm) {
		const T *w = (const T *)(l.is_k ? r.knorm : r.qnorm) + l.i;
		float square = 0;

#pragma unroll
		for (int j = 0; j < WIDE; j++) square += a[j] * a[j] + b[j] * b[j];
		float factor = 1.0f / sqrtf(lanes_sum(square, (int)r.dim / 16) / (float)r.dim + r.eps);
		if (l.there && l.i == 0) rstd[l.item] = factor;
		if (l.there) {
			put_wide(pre + l.item * r.dim + l.i, a, WIDE, wide);
			put_wide(pre + l.item * r.dim + l.i + half, b, WIDE, wide);
		}
		get_wide(c, w, WIDE, wide);
		get_wide(s, w + half, WIDE, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			a[j] *= factor * c[j];
			b[j] *= factor * s[j];
		}
	}
	get_wide(c, r.cos + l.angle, WIDE, wide);
	get_wide(s, r.sin + l.angle, WIDE, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		float x = a[j] * c[j] - b[j] * s[j];
		b[j] = b[j] * c[j] + a[j] * s[j];
		a[j] = x;
	}
	if (!l.there) return;
	put_wide(qkv + l.x, a, WIDE, wide);
	put_wide(qkv + l.x + half, b, WIDE, wide);
}

/* Backward through the norm: a, b (the two halves) are the gradient of its output, and become that of its input; the
 * gradients of its weights are added to dw */
template <typename T>
static __device__ __forceinline__ void rope_norm_backward(const struct rope_args *r, const struct rope_lane *l,
	float *a, float *b, float dw[2][WIDE], const T *pre, const float *rstd, int wide)
{
	const T *w = (const T *)(l->is_k ? r->knorm : r->qnorm) + l->i, *x = pre + l->item * r->dim + l->i;
	int64_t half = r->dim / 2;
	float y[WIDE], z[WIDE], g[WIDE], h[WIDE], s = rstd[l->item], dot = 0;

	get_wide(y, x, WIDE, wide);
	get_wide(z, x + half, WIDE, wide);
	get_wide(g, w, WIDE, wide);
	get_wide(h, w + half, WIDE, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		y[j] *= s;
		z[j] *= s;
		dot += a[j] * g[j] * y[j] + b[j] * h[j] * z[j];
		dw[0][j] += a[j] * y[j];
		dw[1][j] += b[j] * z[j];
	}
	float mean = lanes_sum(dot, (int)r->dim / 16) / (float)r->dim;
#pragma unroll
	for (int j = 0; j < WIDE; j++) {
		a[j] = s * (a[j] * g[j] - y[j] * mean);
		b[j] = s * (b[j] * h[j] - z[j] * mean);
	}
}

/* With norms, block b computes items b, b + blocks, ... Each lane sums its gradients of the norms' weights in
 * registers; then the sums of the block's heads are added in order. */
template <typename T, int NORMS>
static __global__ void __launch_bounds__(THREADS) rope_backward_lanes(struct rope_args r, T *dqkv, const T *pre,
	const float *rstd, float *partial, int64_t blocks, int wide)
{
	DYNAMIC_SHARED(float, sums); /* (heads of a block, 2, dim), NORMS only */
	int64_t half = r.dim / 2;
	float dw[2][2][WIDE] = {{{0}}}; /* q's and k's; lower and upper half */

	for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
		struct rope_lane l = lane_of(&r, block);
		float a[WIDE], b[WIDE], c[WIDE], s[WIDE], none[2][WIDE] = {{0}};
		get_wide(a, dqkv + l.x, l.there ? WIDE : 0, wide && l.there);
		get_wide(b, dqkv + l.x + half, l.there ? WIDE : 0, wide && l.there);
		get_wide(c, r.cos + l.angle, WIDE, wide);
		get_wide(s, r.sin + l.angle, WIDE, wide);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			float x = a[j] * c[j] + b[j] * s[j];
			b[j] = b[j] * c[j] - a[j] * s[j];
			a[j] = x;
		}
		if (NORMS) {
			rope_norm_backward(&r, &l, a, b, none, pre, rstd, wide);
#pragma unroll
			for (int j = 0; j < 2 * WIDE; j++) {
				float x = l.there ? none[j / WIDE][j % WIDE] : 0;
				dw[0][j / WIDE][j % WIDE] += l.is_k ? 0 : x;
				dw[1][j / WIDE][j % WIDE] += l.is_k ? x : 0;
			}
		}
		if (l.there) {
			put_wide(dqkv + l.x, a, WIDE, wide);
			put_wide(dqkv + l.x + half, b, WIDE, wide);
		}
	}
	if (!NORMS) return;
	int lanes = (int)r.dim / 16, mine = threadIdx.x / lanes, at = threadIdx.x % lanes * WIDE;
#pragma unroll
	for (int j = 0; j < 4 * WIDE; j++)
		sums[mine * 2 * r.dim + j / (2 * WIDE) * r.dim + j / WIDE % 2 * half + at + j % WIDE] =
			dw[j / (2 * WIDE)][j / WIDE % 2][j % WIDE];
	add_heads(partial, sums, THREADS / lanes, 2 * r.dim);
}

/* ---- everything else that ops/rope.h has ---- */

/* A head of up to 32 WIDE VECS elements: `lanes` neighbouring lanes compute it, elements (v lanes + lane) WIDE .. of it
 * each, for v < VECS. A key's head computes the value's head with it, where that changes (with_v). Where the last block
 * has more heads than there are, they compute the first one with zeros, and store nothing (there is 0). */
struct head {
	int there, is_k, lane, lanes;
	int64_t position;
	int64_t x, v;         /* where in qkv */
	int64_t kept, kept_v; /* the head's number in rstd, and in units of heads in pre */
};

static __device__ __forceinline__ struct head head_of(const struct rope_args *r, int64_t block, int lanes)
{
	uint32_t heads = (uint32_t)(r->heads + r->kv_heads), seq = (uint32_t)r->seq;
	int64_t item = block * (THREADS / lanes) + threadIdx.x / lanes;
	struct head h;
	h.there = item < r->n * heads;
	if (!h.there) item = 0;
	uint32_t t = (uint32_t)item / heads, j = (uint32_t)item - t * heads;
	h.is_k = j >= (uint32_t)r->heads;
	h.lane = (int)(threadIdx.x % lanes);
	h.lanes = lanes;
	h.position = t % seq - r->starts[t];
	h.x = t * rope_row(r) + j * r->dim;
	h.v = h.x + (h.is_k ? r->kv_heads * r->dim : 0);
	h.kept = r->v_norm ? (int64_t)t * (heads + r->kv_heads) + j : item;
	h.kept_v = h.kept + (h.is_k ? r->kv_heads : 0);
	return h;
}

/* The first element of a lane's access v */
static __device__ __forceinline__ int64_t first_of(const struct head *h, int v)
{
	return (int64_t)(v * h->lanes + h->lane) * WIDE;
}

template <typename T, int VECS>
static __device__ __forceinline__ void get_head(float a[VECS][WIDE], const T *x, const struct head *h, int64_t dim,
	int wide)
{
#pragma unroll
	for (int v = 0; v < VECS; v++) {
		int64_t i = first_of(h, v), left = h->there ? dim - i : 0;
		get_wide(a[v], x + i, left, wide && left > 0);
	}
}

template <typename T, int VECS>
static __device__ __forceinline__ void put_head(T *x, const float a[VECS][WIDE], const struct head *h, int64_t dim,
	int wide)
{
#pragma unroll
	for (int v = 0; v < VECS; v++) {
		int64_t i = first_of(h, v);
		if (h->there && i < dim) put_wide(x + i, a[v], dim - i, wide);
	}
}

/* What the norm multiplies by: w, 1 + w, or 1 without w */
template <typename T, int VECS>
static __device__ __forceinline__ void get_weights(float g[VECS][WIDE], const T *w, const struct head *h,
	const struct rope_args *r, int wide)
{
	if (w) get_head<T, VECS>(g, w, h, r->dim, wide);
#pragma unroll
	for (int j = 0; j < VECS * WIDE; j++) {
		float *at = &g[j / WIDE][j % WIDE];
		*at = !w ? 1.0f : r->norm_one ? 1.0f + *at : *at;
	}
}

/* a becomes its norm; a itself and rstd are kept as head number `kept` */
template <typename T, int VECS>
static __device__ __forceinline__ void norm_head(float a[VECS][WIDE], const T *w, const struct head *h,
	const struct rope_args *r, int64_t kept, int wide)
{
	float g[VECS][WIDE], square = 0;
#pragma unroll
	for (int j = 0; j < VECS * WIDE; j++) square += a[j / WIDE][j % WIDE] * a[j / WIDE][j % WIDE];
	float s = 1.0f / sqrtf(lanes_sum(square, h->lanes) / (float)r->dim + r->eps);
	if (h->there && h->lane == 0) r->rstd[kept] = s;
	put_head<T, VECS>((T *)r->pre + kept * r->dim, a, h, r->dim, wide);
	get_weights<T, VECS>(g, w, h, r, wide);
#pragma unroll
	for (int j = 0; j < VECS * WIDE; j++) a[j / WIDE][j % WIDE] *= s * g[j / WIDE][j % WIDE];
}

/* a, the gradient of the norm's output, becomes that of its input; dw gets that of the norm's weight */
template <typename T, int VECS>
static __device__ __forceinline__ void norm_head_backward(float a[VECS][WIDE], float dw[VECS][WIDE], const T *w,
	const struct head *h, const struct rope_args *r, int64_t kept, int wide)
{
	float y[VECS][WIDE], g[VECS][WIDE], s = r->rstd[kept], dot = 0;
	get_head<T, VECS>(y, (const T *)r->pre + kept * r->dim, h, r->dim, wide);
	get_weights<T, VECS>(g, w, h, r, wide);
#pragma unroll
	for (int j = 0; j < VECS * WIDE; j++) {
		int v = j / WIDE, i = j % WIDE;
		y[v][i] *= s;
		dot += a[v][i] * g[v][i] * y[v][i];
		dw[v][i] = a[v][i] * y[v][i];
	}
	float mean = lanes_sum(dot, h->lanes) / (float)r->dim;
#pragma unroll
	for (int j = 0; j < VECS * WIDE; j++) {
		int v = j / WIDE, i = j % WIDE;
		a[v][i] = s * (a[v][i] * g[v][i] - y[v][i] * mean);
	}
}

/* cos and sin for elements i .. i + WIDE - 1; sin with the sign that it has in the sum. `quick`: the table's rows start
 * at multiples of 16 bytes and have multiples of 8 elements. */
static __device__ __forceinline__ void get_angles(float c[WIDE], float s[WIDE], const struct rope_args *r,
	int64_t position, int64_t i, float sign, int quick)
{
	int64_t half = r->rope_dim / 2;
	const float *cosines = r->cos + position * half, *sines = r->sin + position * half;
	if (quick && !r->neighbours) {
		get_wide(c, cosines + (i < half ? i : i - half), WIDE, 1);
		get_wide(s, sines + (i < half ? i : i - half), WIDE, 1);
	} else if (quick) {
		struct vec16 x = load16(cosines + i / 2), y = load16(sines + i / 2);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			c[j] = as_float(x.w[j / 2]);
			s[j] = as_float(y.w[j / 2]);
		}
	} else {
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			int64_t e = i + j, pair = r->neighbours ? e / 2 : e < half ? e : e - half;
			c[j] = e < r->rope_dim ? cosines[pair] : 1;
			s[j] = e < r->rope_dim ? sines[pair] : 0;
		}
	}
#pragma unroll
	for (int j = 0; j < WIDE; j++)
		if (r->neighbours ? j % 2 == 0 : i + j < half) s[j] *= -sign;
		else s[j] *= sign;
}

/* Turn a head by its position: sign 1; or back: -1. An element's partner may be another lane's: they meet in shared
 * memory, `meet` (VECS, WIDE, 32) of the warp, whose layout has no bank conflicts. */
template <int VECS>
static __device__ __forceinline__ void turn_head(float a[VECS][WIDE], float *meet, const struct head *h,
	const struct rope_args *r, float sign, int quick)
{
	int half = (int)r->rope_dim / 2, first_lane = (int)threadIdx.x % 32 - h->lane;
	if (half == 0) return;
	__syncwarp();
#pragma unroll
	for (int j = 0; j < VECS * WIDE; j++) meet[j * 32 + threadIdx.x % 32] = a[j / WIDE][j % WIDE];
	__syncwarp();
#pragma unroll
	for (int v = 0; v < VECS; v++) {
		int i = (int)first_of(h, v);
		float c[WIDE], s[WIDE];
		if (i >= r->rope_dim) continue;
		get_angles(c, s, r, h->position, i, sign, quick);
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			int e = i + j, other = r->neighbours ? e ^ 1 : e < half ? e + half : e - half, vec = other / WIDE;
			if (e >= r->rope_dim) continue;
			int from = (vec / h->lanes * WIDE + other % WIDE) * 32 + first_lane + vec % h->lanes;
			a[v][j] = a[v][j] * c[j] + meet[from] * s[j];
		}
	}
}

template <int VECS>
static __device__ __forceinline__ void scale_head(float a[VECS][WIDE], float factor)
{
#pragma unroll
	for (int j = 0; j < VECS * WIDE; j++) a[j / WIDE][j % WIDE] *= factor;
}

#define MEET (32 * WIDE * VECS) /* floats of a warp */

template <typename T, int VECS>
static __global__ void __launch_bounds__(THREADS) rope_forward_heads(struct rope_args r, int lanes, int wide, int quick)
{
	DYNAMIC_SHARED(float, meet);
	struct head h = head_of(&r, blockIdx.x, lanes);
	const T *w = (const T *)(h.is_k ? r.knorm : r.qnorm);
	T *qkv = (T *)r.qkv;
	float a[VECS][WIDE], b[VECS][WIDE];

	get_head<T, VECS>(a, qkv + h.x, &h, r.dim, wide);
	if (r.k_is_v || r.v_norm) get_head<T, VECS>(b, qkv + (r.k_is_v ? h.x : h.v), &h, r.dim, wide);
	if (rope_norms(&r) && !r.norm_after) norm_head<T, VECS>(a, w, &h, &r, h.kept, wide);
	turn_head<VECS>(a, meet + threadIdx.x / 32 * MEET, &h, &r, 1, quick);
	if (rope_norms(&r) && r.norm_after) norm_head<T, VECS>(a, w, &h, &r, h.kept, wide);
	if (r.temperature != 0 && !h.is_k)
		scale_head<VECS>(a, temperature_at(r.temperature, r.temperature_positions, h.position + r.temperature_from));
	put_head<T, VECS>(qkv + h.x, a, &h, r.dim, wide);
	h.there &= h.is_k; /* from here on: the value's head */
	if (r.v_norm) norm_head<T, VECS>(b, NULL, &h, &r, h.kept_v, wide);
	if (r.k_is_v || r.v_norm) put_head<T, VECS>(qkv + h.v, b, &h, r.dim, wide);
}

/* With norms, block b computes heads b, b + blocks, ... Each lane sums its gradients of norms' weights in registers;
 * then the sums of the block's heads are added in order. */
template <typename T, int VECS>
static __global__ void __launch_bounds__(THREADS)
	rope_backward_heads(struct rope_args r, float *partial, int64_t blocks, int lanes, int wide, int quick)
{
	DYNAMIC_SHARED(float, meet);
	float *sums = meet + THREADS / 32 * MEET; /* (heads of a block, 2, dim), norms only */
	float dw[2][VECS][WIDE] = {{{0}}};        /* q's and k's */
	T *dqkv = (T *)r.qkv;

	for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
		struct head h = head_of(&r, block, lanes);
		const T *w = (const T *)(h.is_k ? r.knorm : r.qnorm);
		float a[VECS][WIDE], b[VECS][WIDE], mine[VECS][WIDE];

		get_head<T, VECS>(a, dqkv + h.x, &h, r.dim, wide);
		if (r.k_is_v || r.v_norm) get_head<T, VECS>(b, dqkv + h.v, &h, r.dim, wide);
		if (r.temperature != 0 && !h.is_k)
			scale_head<VECS>(a,
				temperature_at(r.temperature, r.temperature_positions, h.position + r.temperature_from));
		if (rope_norms(&r) && r.norm_after) norm_head_backward<T, VECS>(a, mine, w, &h, &r, h.kept, wide);
		turn_head<VECS>(a, meet + threadIdx.x / 32 * MEET, &h, &r, -1, quick);
		if (rope_norms(&r) && !r.norm_after) norm_head_backward<T, VECS>(a, mine, w, &h, &r, h.kept, wide);
#pragma unroll
		for (int j = 0; j < VECS * WIDE; j++) {
			float x = r.qnorm && h.there ? mine[j / WIDE][j % WIDE] : 0;
			dw[0][j / WIDE][j % WIDE] += h.is_k ? 0 : x;
			dw[1][j / WIDE][j % WIDE] += h.is_k ? x : 0;
		}
		if (r.v_norm) norm_head_backward<T, VECS>(b, mine, NULL, &h, &r, h.kept_v, wide);
#pragma unroll
		for (int j = 0; j < VECS * WIDE; j++)
			if (r.k_is_v && h.is_k) a[j / WIDE][j % WIDE] += b[j / WIDE][j % WIDE];
		put_head<T, VECS>(dqkv + h.x, a, &h, r.dim, wide);
		h.there &= h.is_k;
		if (r.v_norm) put_head<T, VECS>(dqkv + h.v, b, &h, r.dim, wide);
	}
	if (!r.qnorm) return;
	int mine = threadIdx.x / lanes;
#pragma unroll
	for (int j = 0; j < 2 * VECS * WIDE; j++) {
		int64_t i = (int64_t)(j / WIDE % VECS * lanes + threadIdx.x % lanes) * WIDE + j % WIDE;
		if (i < r.dim)
			sums[(mine * 2 + j / (VECS * WIDE)) * r.dim + i] = dw[j / (VECS * WIDE)][j / WIDE % VECS][j % WIDE];
	}
	add_heads(partial, sums, THREADS / lanes, 2 * r.dim);
}

/* ---- launchers ---- */

/* Is it what the kernels above for whole heads compute? */
static int rope_is_plain(const struct rope_args *r)
{
	return rope_by_lanes(r->dim) && r->rope_dim == r->dim && !r->neighbours && !r->row_norm && !r->norm_after &&
		!r->norm_one && !r->norm_plain && !r->v_norm && !r->k_is_v && r->temperature == 0;
}

static int rope_wide(const struct rope_args *r)
{
	return wide_rows(r->dim / 2, r->qkv, r->pre, r->cos, r->sin) && wide_rows(WIDE, r->qnorm, r->knorm, NULL, NULL);
}

static int heads_wide(const struct rope_args *r) { return wide_rows(r->dim, r->qkv, r->pre, r->qnorm, r->knorm); }

static int heads_quick(const struct rope_args *r) { return wide_rows(r->rope_dim / 2, r->cos, r->sin, NULL, NULL); }

/* Lanes of a head, each with VECS accesses */
static int heads_lanes(int64_t dim, int vecs)
{
	int lanes = 1;
	while (lanes * WIDE * vecs < dim) lanes *= 2;
	return lanes;
}

/* Row norms are operations of their own, between the copy of k and the rotation. The arguments of one of these two */
static struct rope_args without_norms(const struct rope_args *rope, int rotates)
{
	struct rope_args r = *rope;
	r.qnorm = r.knorm = NULL;
	r.row_norm = 0;
	if (rotates) r.k_is_v = 0;
	else r.rope_dim = 0, r.temperature = 0;
	return r;
}

/* Where q's (is_k 0) or k's rows start, in elements: in qkv and in pre */
static struct norm_rows norm_rows_of(const struct rope_args *r)
{
	int64_t wide = (r->heads + 2 * r->kv_heads) * r->dim;
	return (struct norm_rows){wide, wide, (r->heads + r->kv_heads) * r->dim, 2};
}

template <typename T>
static void row_norms_forward(const struct cuda_queue *q, const struct rope_args *r)
{
	for (int is_k = 0; is_k < 2; is_k++) {
		int64_t from = is_k ? r->heads * r->dim : 0;
		struct norm_forward_args a = {};
		a.x = a.y = (T *)r->qkv + from;
		a.rstd = r->rstd + is_k;
		a.w = is_k ? r->knorm : r->qnorm;
		a.n = r->n;
		a.h = (is_k ? r->kv_heads : r->heads) * r->dim;
		a.eps = r->eps;
		a.one = r->norm_one;
		cuda_norm_rows_forward(q, &a, norm_rows_of(r), (T *)r->pre + from);
	}
}

template <typename T>
static void row_norms_backward(const struct cuda_queue *q, const struct rope_args *r)
{
	for (int is_k = 0; is_k < 2; is_k++) {
		int64_t from = is_k ? r->heads * r->dim : 0;
		struct norm_backward_args a = {};
		a.dy = a.dx = (T *)r->qkv + from;
		a.dw = is_k ? r->dknorm : r->dqnorm;
		a.beta = r->beta;
		a.x = (const T *)r->pre + from;
		a.w = is_k ? r->knorm : r->qnorm;
		a.rstd = r->rstd + is_k;
		a.n = r->n;
		a.h = (is_k ? r->kv_heads : r->heads) * r->dim;
		a.one = r->norm_one;
		cuda_norm_rows_backward(q, &a, norm_rows_of(r));
	}
}

template <typename T, int VECS>
static void heads_forward(const struct cuda_queue *q, const struct rope_args r)
{
	int lanes = heads_lanes(r.dim, VECS);
	int64_t blocks = div_up(r.n * (r.heads + r.kv_heads), THREADS / lanes);
	LAUNCH((rope_forward_heads<T, VECS>), blocks, THREADS, THREADS / 32 * MEET * sizeof(float), q->stream, r, lanes,
		heads_wide(&r), heads_quick(&r));
}

void cuda_rope_forward(const struct cuda_queue *q, const struct rope_args *rope)
{
	const struct rope_args r = *rope;
	if (rope_is_nothing(&r)) return;
	if (r.row_norm) {
		const struct rope_args before = without_norms(&r, 0), after = without_norms(&r, 1);
		cuda_rope_forward(q, &before);
		BY_ELEMENT(q, row_norms_forward<T>(q, &r));
		cuda_rope_forward(q, &after);
	} else if (rope_is_plain(&r))
		BY_ELEMENT(q,
			LAUNCH(rope_forward_lanes<T>, div_up(r.n * (r.heads + r.kv_heads), THREADS / (r.dim / 16)), THREADS, 0,
				q->stream, r, (T *)r.qkv, (T *)r.pre, r.rstd, rope_wide(&r)));
	else if (r.dim <= 32 * WIDE) BY_ELEMENT(q, (heads_forward<T, 1>(q, r)));
	else BY_ELEMENT(q, (heads_forward<T, 2>(q, r)));
}

template <typename T, int NORMS>
static void rope_backward_by_lanes(const struct cuda_queue *q, const struct rope_args r, int64_t blocks, int64_t all)
{
	size_t shared = NORMS ? THREADS / (size_t)(r.dim / 16) * 2 * (size_t)r.dim * sizeof(float) : 0;
	LAUNCH((rope_backward_lanes<T, NORMS>), blocks, THREADS, shared, q->stream, r, (T *)r.qkv, (const T *)r.pre, r.rstd,
		q->work, all, rope_wide(&r));
}

template <typename T, int VECS>
static void heads_backward(const struct cuda_queue *q, const struct rope_args r, int64_t blocks, int64_t all)
{
	int lanes = heads_lanes(r.dim, VECS);
	size_t shared = (THREADS / 32 * MEET + (r.qnorm ? THREADS / lanes * 2 * (size_t)r.dim : 0)) * sizeof(float);
	LAUNCH((rope_backward_heads<T, VECS>), blocks, THREADS, shared, q->stream, r, q->work, all, lanes, heads_wide(&r),
		heads_quick(&r));
}

/* Norms of heads: all heads of `lanes` lanes, then the sums over blocks */
static void rope_heads_backward(const struct cuda_queue *q, const struct rope_args r)
{
	int plain = rope_is_plain(&r), vecs = r.dim <= 32 * WIDE ? 1 : 2;
	int lanes = plain ? (int)r.dim / 16 : heads_lanes(r.dim, vecs);
	int64_t all = div_up(r.n * (r.heads + r.kv_heads), THREADS / lanes);
	int64_t blocks = r.qnorm ? least(all, MOST_BLOCKS) : all;
	if (plain && r.qnorm) BY_ELEMENT(q, (rope_backward_by_lanes<T, 1>(q, r, blocks, all)));
	else if (plain) BY_ELEMENT(q, (rope_backward_by_lanes<T, 0>(q, r, blocks, all)));
	else if (vecs == 1) BY_ELEMENT(q, (heads_backward<T, 1>(q, r, blocks, all)));
	else BY_ELEMENT(q, (heads_backward<T, 2>(q, r, blocks, all)));
	if (!r.qnorm) return;
	cuda_sum_partials(q, r.dqnorm, r.beta, q->work, blocks, 2 * r.dim, r.dim);
	if (r.kv_heads) cuda_sum_partials(q, r.dknorm, r.beta, q->work + r.dim, blocks, 2 * r.dim, r.dim);
}

void cuda_rope_backward(const struct cuda_queue *q, const struct rope_args *rope)
{
	const struct rope_args r = *rope;
	if (rope_is_nothing(&r)) return;
	if (r.row_norm) {
		const struct rope_args before = without_norms(&r, 0), after = without_norms(&r, 1);
		cuda_rope_backward(q, &after);
		BY_ELEMENT(q, row_norms_backward<T>(q, &r));
		cuda_rope_backward(q, &before);
	} else rope_heads_backward(q, r);
}
