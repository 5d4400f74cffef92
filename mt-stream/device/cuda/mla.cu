/* mla.cu: q, k and v of multi-head latent attention (arXiv 2405.04434), from its projections, and back
 *
 * A block computes a token, its threads one item after another: WIDE elements that only move, or WIDE pairs that turn.
 * Backward, pairs of kr are sums over all heads in their order: these items come first, as they take longest.
 */
#include "common.h"
#include "ops/mla.h"

/* WIDE pairs that turn, from pair i of a head on: where they lie in two times WIDE elements of its last rope_dim, how
 * many of each exist, and where their angles are. Neighbours: each pair's elements are beside each other. Else the
 * second ones are half of all further on. */
struct pairs {
	int at[2], left[2];
	int64_t angle;
	int angles;
};

static __device__ __forceinline__ struct pairs pairs_from(const struct mla_args *m, int64_t position, int i)
{
	int half = (int)m->rope_dim / 2, first = m->neighbours ? 2 * i : i, second = first + (m->neighbours ? WIDE : half);
	int end = m->neighbours ? 2 * half : half;
	struct pairs p = {{first, second}, {end - first, m->neighbours ? end - second : end - first}, position * half + i,
		half - i};
	return p;
}

template <typename T>
static __device__ __forceinline__ void pairs_get(float x[2][WIDE], const T *head, const struct pairs *p, int wide)
{
	get_wide(x[0], head + p->at[0], p->left[0], wide);
	get_wide(x[1], head + p->at[1], p->left[1], wide);
}

template <typename T>
static __device__ __forceinline__ void pairs_put(T *head, const float x[2][WIDE], const struct pairs *p, int wide)
{
	put_wide(head + p->at[0], x[0], p->left[0], wide);
	put_wide(head + p->at[1], x[1], p->left[1], wide);
}

static __device__ __forceinline__ void pair_turn(float *a, float *b, float c, float s)
{
	float x = *a;
	*a = x * c - *b * s;
	*b = *b * c + x * s;
}

/* Turn by the token's position, sign 1; or back: -1 */
static __device__ __forceinline__ void pairs_turn(float x[2][WIDE], const struct mla_args *m, const struct pairs *p,
	float sign, int wide)
{
	float c[WIDE], s[WIDE];
	get_wide(c, m->cos + p->angle, p->angles, wide);
	get_wide(s, m->sin + p->angle, p->angles, wide);
	if (m->neighbours)
#pragma unroll
		for (int j = 0; j < WIDE; j++) {
			float *two = &x[2 * j / WIDE][2 * j % WIDE];
			pair_turn(two, two + 1, c[j], sign * s[j]);
		}
	else
#pragma unroll
		for (int j = 0; j < WIDE; j++) pair_turn(&x[0][j], &x[1][j], c[j], sign * s[j]);
}

/* What a token's items are, for each head: pairs of q (forward also of k), parts of k and of v that move, and the rest
 * of q, where it has a temperature */
struct token {
	int heads, dim, nope, dim_v, pair;  /* pair: a head's elements in kv */
	int turns, moves_k, moves_v, moves; /* items */
	int64_t position;
	float heat;
};

static __device__ __forceinline__ int items_of(int elements) { return (elements + WIDE - 1) / WIDE; }

static __device__ __forceinline__ struct token token_of(const struct mla_args *m)
{
	struct token t;
	t.heads = (int)m->heads;
	t.dim = (int)m->dim;
	t.nope = (int)(m->dim - m->rope_dim);
	t.dim_v = (int)m->dim_v;
	t.pair = t.nope + t.dim_v;
	t.turns = items_of((int)m->rope_dim / 2);
	t.moves_k = items_of(t.nope);
	t.moves_v = items_of(t.dim_v);
	t.moves = t.moves_k + t.moves_v + (m->temperature != 0 ? t.moves_k : 0);
	t.position = blockIdx.x % m->seq - m->starts[blockIdx.x];
	t.heat = m->temperature != 0 ? temperature_at(m->temperature, m->temperature_positions, t.position) : 1;
	return t;
}

/* Where an item that moves lies in its head: in kv and in k or v; or in q, where is_q */
struct move {
	int is_q, kv, qkv, left;
};

static __device__ __forceinline__ struct move move_of(const struct token *t, int h, int item)
{
	int is_v = item >= t->moves_k && item < t->moves_k + t->moves_v, is_q = item >= t->moves_k + t->moves_v;
	int i = (item - (is_v ? t->moves_k : is_q ? t->moves_k + t->moves_v : 0)) * WIDE;
	int head = is_v ? 2 * t->heads * t->dim + h * t->dim_v : ((is_q ? 0 : t->heads) + h) * t->dim;
	struct move m = {is_q, h * t->pair + (is_v ? t->nope : 0) + i, head + i, (is_v ? t->dim_v : t->nope) - i};
	return m;
}

template <typename T>
static __device__ __forceinline__ void q_scale(T *q, float heat, int left, int wide)
{
	float x[WIDE];
	get_wide(x, q, left, wide);
#pragma unroll
	for (int j = 0; j < WIDE; j++) x[j] *= heat;
	put_wide(q, x, left, wide);
}

template <typename T>
static __device__ __forceinline__ void move_elements(T *to, const T *from, int left, int wide)
{
	float x[WIDE];
	get_wide(x, from, left, wide);
	put_wide(to, x, left, wide);
}

static __device__ __forceinline__ void pairs_scale(float x[2][WIDE], float factor)
{
#pragma unroll
	for (int j = 0; j < 2 * WIDE; j++) x[j / WIDE][j % WIDE] *= factor;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
	mla_forward_kernel(struct mla_args m, T *qkv, const T *kv, const T *kr, int wide)
{
	struct token t = token_of(&m);
	int each = 2 * t.turns + t.moves;
	qkv += blockIdx.x * (int64_t)t.heads * (2 * t.dim + t.dim_v);
	kv += blockIdx.x * (int64_t)t.heads * t.pair;
	kr += blockIdx.x * m.ld;
	for (int i = threadIdx.x; i < t.heads * each; i += THREADS) {
		int h = i / each, item = i % each, is_k = item >= t.turns;
		if (item < 2 * t.turns) {
			float x[2][WIDE];
			struct pairs p = pairs_from(&m, t.position, (is_k ? item - t.turns : item) * WIDE);
			T *to = qkv + ((is_k ? t.heads : 0) + h) * t.dim + t.nope;
			pairs_get(x, is_k ? kr : (const T *)to, &p, wide);
			pairs_turn(x, &m, &p, 1, wide);
			pairs_scale(x, is_k ? 1 : t.heat);
			pairs_put(to, x, &p, wide);
			continue;
		}
		struct move one = move_of(&t, h, item - 2 * t.turns);
		if (one.is_q) q_scale(qkv + one.qkv, t.heat, one.left, wide);
		else move_elements(qkv + one.qkv, kv + one.kv, one.left, wide);
	}
}

/* From dqkv, in which q's part becomes what its projection needs */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	mla_backward_kernel(struct mla_args m, T *dqkv, T *dkv, T *dkr, int wide)
{
	struct token t = token_of(&m);
	int each = t.turns + t.moves;
	dqkv += blockIdx.x * (int64_t)t.heads * (2 * t.dim + t.dim_v);
	dkv += blockIdx.x * (int64_t)t.heads * t.pair;
	dkr += blockIdx.x * m.ld;
	for (int i = threadIdx.x; i < t.turns + t.heads * each; i += THREADS) {
		int is_kr = i < t.turns, h = is_kr ? 0 : (i - t.turns) / each, item = is_kr ? i : (i - t.turns) % each;
		if (item < t.turns) {
			float x[2][WIDE], y[2][WIDE];
			struct pairs p = pairs_from(&m, t.position, item * WIDE);
			T *q = dqkv + h * t.dim + t.nope;
			const T *k = dqkv + t.heads * t.dim + t.nope;
			pairs_get(x, is_kr ? k : (const T *)q, &p, wide);
			for (int head = 1; is_kr && head < t.heads; head++) {
				pairs_get(y, k + head * t.dim, &p, wide);
#pragma unroll
				for (int j = 0; j < 2 * WIDE; j++) x[j / WIDE][j % WIDE] += y[j / WIDE][j % WIDE];
			}
			pairs_scale(x, is_kr ? 1 : t.heat);
			pairs_turn(x, &m, &p, -1, wide);
			pairs_put(is_kr ? dkr : q, x, &p, wide);
			continue;
		}
		struct move one = move_of(&t, h, item - t.turns);
		if (one.is_q) q_scale(dqkv + one.qkv, t.heat, one.left, wide);
		else move_elements(dkv + one.kv, (const T *)dqkv + one.qkv, one.left, wide);
	}
}

/* ---- launchers ---- */

static int mla_wide(const struct mla_args *m)
{
	return wide_rows(m->dim | m->dim_v | m->rope_dim / 2 | m->ld, m->qkv, m->kv, m->kr, m->cos) &&
		wide_rows(WIDE, m->sin, NULL, NULL, NULL);
}

void cuda_mla_forward(const struct cuda_queue *q, const struct mla_args *m)
{
	BY_ELEMENT(q,
		LAUNCH(mla_forward_kernel<T>, m->n, THREADS, 0, q->stream, *m, (T *)m->qkv, (const T *)m->kv, (const T *)m->kr,
			mla_wide(m)));
}

void cuda_mla_backward(const struct cuda_queue *q, const struct mla_args *m)
{
	BY_ELEMENT(q,
		LAUNCH(mla_backward_kernel<T>, m->n, THREADS, 0, q->stream, *m, (T *)m->qkv, (T *)m->kv, (T *)m->kr,
			mla_wide(m)));
}
