/* kda.cu: Kimi delta attention (ops/delta.h: `channels`), token by token
 *
 * With S~_t = diag(e^g_t) S_(t-1), which is zero at a document's start:
 *     m_t = S~_t' k_t,  d_t = beta_t (v_t - m_t),  S_t = S~_t + k_t d_t',  o_t = S_t' q_t = S~_t' q_t + (q_t.k_t) d_t
 * Backward, from the last token to the first; dS has the gradient that later tokens give S_t:
 *     dd_t = dS' k_t + (q_t.k_t) do_t,  dv_t = beta_t dd_t,  dbeta_t = dd_t.(v_t - m_t),  dm_t = -beta_t dd_t
 *     dS += q_t do_t',  dq_t = S_t do_t,  dk_t = dS d_t + S~_t dm_t
 *     dS += k_t dm_t',  dg_t = the sums of the rows of dS S~_t (element by element),  dS = diag(e^g_t) dS
 *
 * A warp has a few columns of a head's state in registers, of all keys: sums over keys are sums over its lanes. It
 * computes all tokens of a group of rows (delta_groups_of), of which a block stages a few at a time in shared memory.
 * Columns do not depend on each other, so forward's warps share staged tokens only. Backward sums dq, dk, dg and dbeta
 * over a block's warps, and over slices, if a head needs several blocks (delta_slices).
 *
 * Backward needs S~ of each token. A scan keeps the states between waves of DELTA_SEGMENT tokens. Then, from the last
 * wave to the first, another scan keeps the states between spans of DELTA_SPAN tokens, and kda_back_kernel those in a
 * span. All passes compute a state by the same operations, so its bits are the same.
 *
 * All is fp32 but for the elements of tensors.
 */
#include "kda.h"

#define SCAN_WARPS 4                  /* of a block, at most */
#define BACK_WARPS 16                 /* the same; they have the columns of a slice: delta_slices */
#define COLUMNS(KEYS) (1024 / (KEYS)) /* of a state in a warp: 32 elements a lane */
#define ROWS(KEYS) ((KEYS) / 32)      /* of a state in a lane */
#define STAGED(KEYS) (2048 / (KEYS))  /* tokens in shared memory */
#define SHARE(N) (32 / (N))           /* lanes with the same one of N sums */
/* A lane has rows KEY(p) .. KEY(p) + 3, p < ROWS(KEYS) / 4 */
#define KEY(p) ((p)*128 + (int)threadIdx.x % 32 * 4)

struct kda_room {
	struct delta_groups groups;
	struct delta_spans spans;
	int64_t slices;
	float *dg;     /* (N, HV, DK) */
	float *kept;   /* (waves - 1, groups, HV, DV, DK): the state between waves; later its gradient */
	float *marks;  /* (marks, groups, HV, DV, DK): the state between a wave's spans */
	float *states; /* (tokens of a span, groups, HV, DV, DK): S~ */
	float *sums;   /* (groups, tokens of a wave, HV, slices, delta_sums()) */
	int wide;      /* states are accessed 16 bytes at a time */
};

static struct kda_room room_of(const struct delta_args *a)
{
	int64_t state = a->value_heads * a->key_dim * a->value_dim;
	struct kda_room r = {};
	r.groups = delta_groups_of(a);
	r.spans = delta_spans_of(&r.groups);
	r.slices = delta_slices(a);
	r.kept = a->work;
	r.marks = r.kept + (r.groups.waves - 1) * r.groups.groups * state;
	r.states = r.marks + r.spans.marks * r.groups.groups * state;
	r.dg = r.states + r.spans.span * r.groups.groups * state;
	r.sums = r.dg + a->n * a->value_heads * a->key_dim;
	r.wide = a->key_dim % 4 == 0 && (uintptr_t)a->work % 16 == 0;
	return r;
}

/* What a warp computes: columns of a head from `column` on, for `tokens` tokens of a group from `begin` on. The block's
 * columns begin at `base`, the warp's `mine` behind it. */
struct kda_place {
	int64_t group, head, slice, begin;
	int tokens, goes_on; /* 1: the group goes on behind them */
	int base, mine, column;
};

/* Blocks have up to `warps` warps. Of a group: tokens first .. first + tokens - 1 */
template <int KEYS>
static __device__ __forceinline__ struct kda_place place_of(const struct delta_args *a, const struct kda_room *r,
	int warps, int64_t first, int64_t tokens)
{
	int64_t columns = warps * COLUMNS(KEYS), slices = (a->value_dim + columns - 1) / columns;
	struct kda_place p;
	p.slice = blockIdx.x % slices;
	p.head = blockIdx.x / slices % a->value_heads;
	p.group = blockIdx.x / slices / a->value_heads;
	p.begin = p.group * r->groups.tokens + first;
	int64_t left = (p.group + 1) * r->groups.tokens < a->n ? (p.group + 1) * r->groups.tokens : a->n;
	left = left > p.begin ? left - p.begin : 0;
	p.goes_on = tokens < left;
	p.tokens = (int)(p.goes_on ? tokens : left);
	p.base = (int)(p.slice * columns);
	p.mine = threadIdx.x / 32 * COLUMNS(KEYS);
	p.column = p.base + p.mine;
	return p;
}

/* ---- a warp's columns of states ---- */

/* State `number` of the group's head */
static __device__ __forceinline__ float *state_at(const struct delta_args *a, const struct kda_room *r,
	const struct kda_place *p, float *states, int64_t number)
{
	return states + ((number * r->groups.groups + p->group) * a->value_heads + p->head) * a->value_dim * a->key_dim;
}

/* s = columns of the state from `column` on; zeros where there are none */
template <int KEYS>
static __device__ __forceinline__ void state_load(float s[COLUMNS(KEYS)][ROWS(KEYS)], const float *from, int column,
	const struct delta_args *a, int wide)
{
	int keys = (int)a->key_dim, columns = (int)a->value_dim - column;
	from += (int64_t)column * keys + KEY(0);
#pragma unroll
	for (int j = 0; j < COLUMNS(KEYS); j++)
#pragma unroll
		for (int p = 0; p < ROWS(KEYS) / 4; p++) {
			int left = j < columns ? keys - KEY(p) : 0;
			struct vec16 x = {{0, 0, 0, 0}};
			if (wide && left > 0) x = load16(from + j * keys + p * 128);
#pragma unroll
			for (int i = 0; i < 4; i++)
				s[j][4 * p + i] = wide ? as_float(x.w[i]) : i < left ? from[j * keys + p * 128 + i] : 0;
		}
}

template <int KEYS>
static __device__ __forceinline__ void state_store(float *to, const float s[COLUMNS(KEYS)][ROWS(KEYS)], int column,
	const struct delta_args *a, int wide)
{
	int keys = (int)a->key_dim, columns = (int)a->value_dim - column;
	to += (int64_t)column * keys + KEY(0);
#pragma unroll
	for (int j = 0; j < COLUMNS(KEYS); j++)
#pragma unroll
		for (int p = 0; p < ROWS(KEYS) / 4; p++) {
			int left = j < columns ? keys - KEY(p) : 0;
			struct vec16 x;
#pragma unroll
			for (int i = 0; i < 4; i++) x.w[i] = as_bits(s[j][4 * p + i]);
			if (wide && left > 0) store16(to + j * keys + p * 128, x);
#pragma unroll
			for (int i = 0; i < 4; i++)
				if (!wide && i < left) to[j * keys + p * 128 + i] = s[j][4 * p + i];
		}
}

/* Sum N numbers over the warp's lanes, in the same order for each N: lane l gets the sum of x[l / SHARE(N)]. `lanes` is
 * 16; recursion halves it with N. */
template <int N>
static __device__ __forceinline__ float lanes_sums(float x[N], int lanes)
{
	int upper = threadIdx.x & lanes;
#pragma unroll
	for (int i = 0; i < N / 2; i++) {
		float give = upper ? x[i] : x[N / 2 + i], keep = upper ? x[N / 2 + i] : x[i];
		x[i] = keep + __shfl_xor_sync(FULL, give, lanes);
	}
	return lanes_sums<N / 2>(x, lanes / 2);
}
template <>
__device__ __forceinline__ float lanes_sums<1>(float x[1], int lanes)
{
	return lanes_sum(x[0], 2 * lanes);
}

/* ---- staged tokens ---- */

/* Of STAGED(KEYS) tokens, in shared memory */
struct staged {
	float *q, *k, *keeps;      /* (tokens, KEYS); keeps: e^g */
	float *v, *d_o;            /* (tokens, the block's columns) */
	float *qk, *beta, *begins; /* (tokens); qk: q.k; begins: 1 where a document begins, else 0 */
};

#define STAGED_FLOATS(KEYS, columns) (STAGED(KEYS) * (3 * (KEYS) + 2 * (columns) + 3))

template <int KEYS>
static __device__ __forceinline__ struct staged staged_of(float *shared, int columns)
{
	struct staged s;
	s.q = shared;
	s.k = s.q + STAGED(KEYS) * KEYS;
	s.keeps = s.k + STAGED(KEYS) * KEYS;
	s.v = s.keeps + STAGED(KEYS) * KEYS;
	s.d_o = s.v + STAGED(KEYS) * columns;
	s.qk = s.d_o + STAGED(KEYS) * columns;
	s.beta = s.qk + STAGED(KEYS);
	s.begins = s.beta + STAGED(KEYS);
	return s;
}

template <typename T>
static __device__ __forceinline__ float beta_of(const struct delta_args *a, int64_t t, int64_t head)
{
	return 1.0f / (1.0f + expf(-get(((const T *)a->b)[t * a->b_ld + head])));
}

/* dt_bias of gate c of all heads' */
template <typename T>
static __device__ __forceinline__ float bias_of(const struct delta_args *a, int64_t c)
{
	float x = get(((const T *)a->dt_bias)[c]);
	return a->dt_lo ? joined(x, a->dt_lo[c]) : x;
}

/* Stage the place's tokens from `first` on, up to end - 1; each warp stages some of them. Returns their number. Only
 * backward needs d_o. */
template <typename T, int KEYS, int BACKWARD>
static __device__ __forceinline__ int stage(const struct staged *s, const struct delta_args *a,
	const struct kda_place *p, int first, int end, int columns)
{
	int lane = threadIdx.x % 32, warps = blockDim.x / 32, column = p->base;
	int n = end - first < STAGED(KEYS) ? end - first : STAGED(KEYS);
	int64_t head = p->head;
	int64_t key = head / (a->value_heads / a->key_heads) * a->key_dim, keys = a->key_heads * a->key_dim;
	int64_t values = a->value_heads * a->value_dim, value = head * a->value_dim + column;
	int64_t gates = head * a->key_dim;
	float rate = -expf(get(((const T *)a->a_log)[head]));
	__syncthreads();
	for (int i = threadIdx.x / 32; i < n; i += warps) {
		int64_t t = p->begin + first + i;
		const T *row = (const T *)a->qkv + t * (2 * keys + values), *gate = (const T *)a->a + t * a->ld;
		float dot = 0;
#pragma unroll
		for (int j = 0; j < ROWS(KEYS); j++) {
			int c = j * 32 + lane, at = i * KEYS + c, there = c < a->key_dim;
			float q = there ? get(row[key + c]) : 0, k = there ? get(row[keys + key + c]) : 0;
			s->q[at] = q;
			s->k[at] = k;
			s->keeps[at] = there ? expf(rate * softplus(get(gate[gates + c]) + bias_of<T>(a, gates + c))) : 0;
			dot += q * k;
		}
		dot = warp_sum(dot);
		if (lane == 0) {
			s->qk[i] = dot;
			s->beta[i] = beta_of<T>(a, t, head);
			s->begins[i] = t % a->seq == a->starts[t];
		}
		for (int c = lane; c < columns; c += 32) {
			int there = column + c < a->value_dim;
			s->v[i * columns + c] = there ? get(row[2 * keys + value + c]) : 0;
			if (BACKWARD) s->d_o[i * columns + c] = there ? get(((const T *)a->d_o)[t * values + value + c]) : 0;
		}
	}
	__syncthreads();
	return n;
}

/* S~ of staged token i from the state before it */
template <int KEYS>
static __device__ __forceinline__ void state_decay(float s[COLUMNS(KEYS)][ROWS(KEYS)], const struct staged *at, int i)
{
	int begins = at->begins[i] != 0;
#pragma unroll
	for (int p = 0; p < ROWS(KEYS) / 4; p++) {
		float keeps[4];
		get4(keeps, at->keeps + i * KEYS + KEY(p));
#pragma unroll
		for (int j = 0; j < COLUMNS(KEYS); j++)
#pragma unroll
			for (int e = 0; e < 4; e++) s[j][4 * p + e] = begins ? 0 : s[j][4 * p + e] * keeps[e];
	}
}

/* The state after staged token i, from S~; `column`: the warp's first one in the block. OUT: returns o of column
 * column + lane / SHARE(N) % COLUMNS(KEYS), N = 2 COLUMNS(KEYS), in lanes 16 .. 31 */
template <int KEYS, int OUT>
static __device__ __forceinline__ float state_add(float s[COLUMNS(KEYS)][ROWS(KEYS)], const struct staged *at, int i,
	int column, int columns)
{
	const int N = COLUMNS(KEYS) * (1 + OUT);
	int lane = threadIdx.x % 32, own = lane / SHARE(N) % COLUMNS(KEYS);
	float sums[N] = {0}, x, d;
#pragma unroll
	for (int p = 0; p < ROWS(KEYS) / 4; p++) {
		float k[4], q[4];
		get4(k, at->k + i * KEYS + KEY(p));
		if (OUT) get4(q, at->q + i * KEYS + KEY(p));
#pragma unroll
		for (int j = 0; j < COLUMNS(KEYS); j++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				sums[j] += s[j][4 * p + e] * k[e];
				if (OUT) sums[COLUMNS(KEYS) + j] += s[j][4 * p + e] * q[e];
			}
	}
	x = lanes_sums<N>(sums, 16);
	d = at->beta[i] * (at->v[i * columns + column + own] - x);
#pragma unroll
	for (int j = 0; j < COLUMNS(KEYS); j++) sums[j] = __shfl_sync(FULL, d, j * SHARE(N));
#pragma unroll
	for (int p = 0; p < ROWS(KEYS) / 4; p++) {
		float k[4];
		get4(k, at->k + i * KEYS + KEY(p));
#pragma unroll
		for (int j = 0; j < COLUMNS(KEYS); j++)
#pragma unroll
			for (int e = 0; e < 4; e++) s[j][4 * p + e] += k[e] * sums[j];
	}
	return OUT ? x + __shfl_sync(FULL, d, own * SHARE(N)) * at->qk[i] : 0;
}

/* ---- forwards ---- */

/* A scan: of each group tokens first .. first + tokens - 1, from state `number` of `from` (NULL: from zero). Not
 * forward: the states after `every` tokens each go to `to`. */
struct scan {
	int64_t first, tokens, every, number;
	float *from, *to;
};

template <typename T, int KEYS, int FORWARD>
static __global__ void __launch_bounds__(32 * SCAN_WARPS)
	kda_scan_kernel(struct delta_args a, struct kda_room r, struct scan w)
{
	DYNAMIC_SHARED(float, shared);
	const int columns = SCAN_WARPS * COLUMNS(KEYS), N = 2 * COLUMNS(KEYS);
	struct kda_place p = place_of<KEYS>(&a, &r, SCAN_WARPS, w.first, w.tokens);
	struct staged at = staged_of<KEYS>(shared, columns);
	int lane = threadIdx.x % 32, own = p.column + lane / SHARE(N) % COLUMNS(KEYS);
	float s[COLUMNS(KEYS)][ROWS(KEYS)] = {{0}};

	if (p.tokens == 0) return;
	if (w.from) state_load<KEYS>(s, state_at(&a, &r, &p, w.from, w.number), p.column, &a, r.wide);
	for (int t = 0; t < p.tokens; t += STAGED(KEYS)) {
		int n = stage<T, KEYS, 0>(&at, &a, &p, t, p.tokens, columns);
#pragma unroll 1
		for (int i = 0; i < n; i++) {
			state_decay<KEYS>(s, &at, i);
			float o = state_add<KEYS, FORWARD>(s, &at, i, p.mine, columns);
			int64_t done = t + i + 1;
			if (FORWARD && lane >= 16 && lane % SHARE(N) == 0 && own < a.value_dim)
				put((T *)a.o + ((p.begin + t + i) * a.value_heads + p.head) * a.value_dim + own, o);
			if (!FORWARD && done % w.every == 0)
				state_store<KEYS>(state_at(&a, &r, &p, w.to, done / w.every - 1), s, p.column, &a, r.wide);
		}
	}
}

/* ---- backwards ---- */

enum { DQ, DK, DG, DBETA }; /* sums of a token and head; the first three have key_dim elements */

/* Store element c of a sum */
template <typename T>
static __device__ __forceinline__ void sum_store(const struct delta_args *a, const struct kda_room *r, int64_t t,
	int64_t head, int which, int c, float x)
{
	int64_t at = (t * a->value_heads + head) * a->key_dim + c;
	if (which == DQ) put((T *)a->dq + at, x);
	else if (which == DK) put((T *)a->dk + at, x);
	else if (which == DG) r->dg[at] = x;
	else {
		float beta = beta_of<T>(a, t, head);
		put((T *)a->db + t * a->db_ld + head, x * beta * (1.0f - beta));
	}
}

/* The sums of one of several slices: of token t of the group's wave */
static __device__ __forceinline__ float *sums_at(const struct delta_args *a, const struct kda_room *r, int64_t group,
	int64_t t, int64_t head, int64_t slice)
{
	return r->sums + (((group * r->spans.tokens + t) * a->value_heads + head) * r->slices + slice) * delta_sums(a);
}

/* The block's sums of the place's token t, from those of its warps: rows (warps, DBETA, KEYS), dbeta (warps) */
template <typename T, int KEYS>
static __device__ __forceinline__ void block_sums(const struct delta_args *a, const struct kda_room *r,
	const struct kda_place *p, int t, const float *rows, const float *dbeta)
{
	int warps = blockDim.x / 32, keys = (int)a->key_dim;
	float *to = sums_at(a, r, p->group, t, p->head, p->slice);
	for (int e = threadIdx.x; e < DBETA * KEYS; e += blockDim.x) {
		int which = e / KEYS, c = e % KEYS;
		float sum = 0;
		if (c >= keys) continue;
		for (int w = 0; w < warps; w++) sum += rows[w * DBETA * KEYS + e];
		if (r->slices > 1) to[which * keys + c] = sum;
		else sum_store<T>(a, r, p->begin + t, p->head, which, c, sum);
	}
	if (threadIdx.x + 1 == blockDim.x) {
		float sum = 0;
		for (int w = 0; w < warps; w++) sum += dbeta[w];
		if (r->slices > 1) to[DBETA * keys] = sum;
		else sum_store<T>(a, r, p->begin + t, p->head, DBETA, 0, sum);
	}
}

/* Staged token i, whose S~ is s: ds becomes the gradient of the state before it. dv is stored; the warp's sums dq, dk
 * and dg go to `rows` (DBETA, KEYS), its part of dbeta to *dbeta */
template <typename T, int KEYS>
static __device__ __forceinline__ void token_back(float ds[COLUMNS(KEYS)][ROWS(KEYS)],
	const float s[COLUMNS(KEYS)][ROWS(KEYS)], float *rows, float *dbeta, T *dv, const struct staged *at, int i,
	int column, int columns, int left)
{
	const int N = 2 * COLUMNS(KEYS);
	int lane = threadIdx.x % 32, own = lane / SHARE(N) % COLUMNS(KEYS), begins = at->begins[i] != 0;
	const float *d_o = at->d_o + i * columns + column;
	float sums[N] = {0}, d[COLUMNS(KEYS)], dm[COLUMNS(KEYS)], g[COLUMNS(KEYS)], beta = at->beta[i], part = 0, x;
#pragma unroll
	for (int p = 0; p < ROWS(KEYS) / 4; p++) {
		float k[4];
		get4(k, at->k + i * KEYS + KEY(p));
#pragma unroll
		for (int j = 0; j < COLUMNS(KEYS); j++)
#pragma unroll
			for (int e = 0; e < 4; e++) {
				sums[j] += s[j][4 * p + e] * k[e];
				sums[COLUMNS(KEYS) + j] += ds[j][4 * p + e] * k[e];
			}
	}
	x = lanes_sums<N>(sums, 16);
	x = lane < 16 ? at->v[i * columns + column + own] - x : x + d_o[own] * at->qk[i]; /* v - m; dd */
	if (lane >= 16 && lane % SHARE(N) == 0 && own < left) put(dv + own, beta * x);
#pragma unroll
	for (int j = 0; j < COLUMNS(KEYS); j++) {
		float error = __shfl_sync(FULL, x, j * SHARE(N)), dd = __shfl_sync(FULL, x, 16 + j * SHARE(N));
		part += error * dd;
		d[j] = beta * error;
		dm[j] = -beta * dd;
		g[j] = d_o[j];
	}
	__syncthreads(); /* the sums of the token before have been read */
	if (lane == 0) *dbeta = part;
#pragma unroll
	for (int p = 0; p < ROWS(KEYS) / 4; p++) {
		float q[4], k[4], keeps[4];
		struct vec16 dq, dk, dg;
		get4(q, at->q + i * KEYS + KEY(p));
		get4(k, at->k + i * KEYS + KEY(p));
		get4(keeps, at->keeps + i * KEYS + KEY(p));
#pragma unroll
		for (int e = 0; e < 4; e++) {
			float sums_q = 0, sums_k = 0, sums_g = 0;
#pragma unroll
			for (int j = 0; j < COLUMNS(KEYS); j++) {
				float before = s[j][4 * p + e], back = ds[j][4 * p + e] + q[e] * g[j];
				sums_q += (before + k[e] * d[j]) * g[j];
				sums_k += back * d[j] + before * dm[j];
				back += k[e] * dm[j];
				sums_g += back * before;
				ds[j][4 * p + e] = begins ? 0 : back * keeps[e];
			}
			dq.w[e] = as_bits(sums_q);
			dk.w[e] = as_bits(sums_k);
			dg.w[e] = as_bits(sums_g);
		}
		store16_shared(rows + DQ * KEYS + KEY(p), dq);
		store16_shared(rows + DK * KEYS + KEY(p), dk);
		store16_shared(rows + DG * KEYS + KEY(p), dg);
	}
}

/* S~ of tokens first .. till - 1, a span, to r.states; s: the state before them. Returns the first token that stays
 * staged */
template <typename T, int KEYS>
static __device__ __forceinline__ int span_states(float s[COLUMNS(KEYS)][ROWS(KEYS)], const struct staged *at,
	const struct delta_args *a, const struct kda_room *r, const struct kda_place *p, int first, int till, int columns)
{
	int t;
	for (t = first; t < till; t += STAGED(KEYS)) {
		int n = stage<T, KEYS, 1>(at, a, p, t, till, columns);
#pragma unroll 1
		for (int i = 0; i < n; i++) {
			state_decay<KEYS>(s, at, i);
			state_store<KEYS>(state_at(a, r, p, r->states, t + i - first), s, p->column, a, r->wide);
			state_add<KEYS, 0>(s, at, i, p->mine, columns);
		}
	}
	return t - STAGED(KEYS);
}

#define BACK_FLOATS(KEYS) (STAGED_FLOATS(KEYS, BACK_WARPS * COLUMNS(KEYS)) + BACK_WARPS * (DBETA * (KEYS) + 1))

/* Wave `number`: all but da, da_log and ddt_bias */
template <typename T, int KEYS>
static __global__ void __launch_bounds__(32 * BACK_WARPS, 1)
	kda_back_kernel(struct delta_args a, struct kda_room r, int64_t number)
{
	DYNAMIC_SHARED(float, shared);
	const int columns = BACK_WARPS * COLUMNS(KEYS);
	struct kda_place p = place_of<KEYS>(&a, &r, BACK_WARPS, number * DELTA_SEGMENT, DELTA_SEGMENT);
	struct staged at = staged_of<KEYS>(shared, columns);
	float *rows = shared + STAGED_FLOATS(KEYS, columns), *dbeta = rows + BACK_WARPS * DBETA * KEYS;
	float s[COLUMNS(KEYS)][ROWS(KEYS)], ds[COLUMNS(KEYS)][ROWS(KEYS)] = {{0}};
	int warp = threadIdx.x / 32, left = (int)a.value_dim - p.column;

	if (p.tokens == 0) return;
	if (p.goes_on) state_load<KEYS>(ds, state_at(&a, &r, &p, r.kept, number), p.column, &a, r.wide);
	for (int span = (p.tokens - 1) / DELTA_SPAN; span >= 0; span--) {
		int first = span * DELTA_SPAN, till = first + DELTA_SPAN < p.tokens ? first + DELTA_SPAN : p.tokens;
		const float *from = span > 0 ? state_at(&a, &r, &p, r.marks, span - 1)
			: number > 0             ? state_at(&a, &r, &p, r.kept, number - 1)
									 : NULL;
		if (from) state_load<KEYS>(s, from, p.column, &a, r.wide);
		else memset(s, 0, sizeof s);
		int t = span_states<T, KEYS>(s, &at, &a, &r, &p, first, till, columns);
		int n = till - t;
		state_load<KEYS>(s, state_at(&a, &r, &p, r.states, till - 1 - first), p.column, &a, r.wide);
		for (;;) {
#pragma unroll 1
			for (int i = n - 1; i >= 0; i--) {
				token_back<T, KEYS>(ds, s, rows + warp * DBETA * KEYS, dbeta + warp,
					(T *)a.dv + ((p.begin + t + i) * a.value_heads + p.head) * a.value_dim + p.column, &at, i, p.mine,
					columns, left);
				if (t + i > first) /* that of the token before arrives while the block sums */
					state_load<KEYS>(s, state_at(&a, &r, &p, r.states, t + i - 1 - first), p.column, &a, r.wide);
				__syncthreads();
				block_sums<T, KEYS>(&a, &r, &p, t + i, rows, dbeta);
			}
			if (t == first) break;
			t -= STAGED(KEYS);
			n = stage<T, KEYS, 1>(&at, &a, &p, t, till, columns);
		}
	}
	if (number > 0) state_store<KEYS>(state_at(&a, &r, &p, r.kept, number - 1), ds, p.column, &a, r.wide);
}

/* The sums over slices of a wave's tokens: a block has one token and head */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	kda_slices_kernel(struct delta_args a, struct kda_room r, int64_t number)
{
	int64_t head = blockIdx.x % a.value_heads, item = blockIdx.x / a.value_heads, at = item % r.spans.tokens;
	int64_t group = item / r.spans.tokens, inside = number * DELTA_SEGMENT + at;
	int64_t t = group * r.groups.tokens + inside;
	int size = (int)delta_sums(&a), keys = (int)a.key_dim;
	if (inside >= r.groups.tokens || t >= a.n) return;
	const float *from = sums_at(&a, &r, group, at, head, 0);
	for (int e = threadIdx.x; e < size; e += THREADS) {
		float sum = 0;
		for (int slice = 0; slice < r.slices; slice++) sum += from[slice * size + e];
		sum_store<T>(&a, &r, t, head, e / keys, e % keys, sum);
	}
}

/* da; a block's partials: the sums of its head over `rows` tokens: partial (parts, HV, DK) of ddt_bias, rates (parts,
 * HV) of da_log */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	kda_gates_kernel(struct delta_args a, struct kda_room r, float *partial, float *rates, int64_t rows)
{
	DYNAMIC_SHARED(float, scratch);
	int64_t head = blockIdx.x % a.value_heads, first = blockIdx.x / a.value_heads * rows;
	int64_t end = first + rows < a.n ? first + rows : a.n, c = head * a.key_dim + threadIdx.x;
	float rate = -expf(get(((const T *)a.a_log)[head])), sum = 0, sum_rate = 0;
	if (threadIdx.x < a.key_dim) {
		float bias = bias_of<T>(&a, c);
		for (int64_t t = first; t < end; t++) {
			float x = get(((const T *)a.a)[t * a.ld + c]) + bias;
			float d = r.dg[t * a.value_heads * a.key_dim + c] * rate, da = d / (1.0f + expf(-x));
			put((T *)a.da + t * a.d_ld + c, da);
			sum += da;
			sum_rate += d * softplus(x);
		}
		partial[blockIdx.x * a.key_dim + threadIdx.x] = sum;
	}
	sum_rate = block_sum(sum_rate, scratch);
	if (threadIdx.x == 0) rates[blockIdx.x] = sum_rate;
}

/* ---- launchers ---- */

template <typename T, int KEYS, int FORWARD>
static void scan_launch(const struct cuda_queue *q, const struct delta_args a, const struct kda_room r,
	const struct scan w)
{
	int64_t columns = SCAN_WARPS * COLUMNS(KEYS), slices = div_up(a.value_dim, columns);
	unsigned threads = 32 * (unsigned)least(SCAN_WARPS, div_up(a.value_dim, COLUMNS(KEYS)));
	LAUNCH((kda_scan_kernel<T, KEYS, FORWARD>), r.groups.groups * a.value_heads * slices, threads,
		STAGED_FLOATS(KEYS, columns) * sizeof(float), q->stream, a, r, w);
}

template <typename T, int KEYS>
static void forward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct kda_room r = room_of(&a);
	const struct scan all = {0, r.groups.tokens, 1, 0, NULL, NULL};
	scan_launch<T, KEYS, 1>(q, a, r, all);
}

template <typename T, int KEYS>
static void backward(const struct cuda_queue *q, const struct delta_args a)
{
	const struct kda_room r = room_of(&a);
	int64_t heads = a.value_heads, width = heads * (a.key_dim + 1), last = r.groups.waves - 1;
	int64_t rows = div_up(a.n, partial_blocks(div_up(a.n, 32), width)), parts = div_up(a.n, rows);
	unsigned threads = 32 * (unsigned)least(BACK_WARPS, div_up(a.value_dim, COLUMNS(KEYS)));
	float *rates = q->work + parts * heads * a.key_dim;
	const struct scan waves = {0, last * DELTA_SEGMENT, DELTA_SEGMENT, 0, NULL, r.kept};

	if (last > 0) scan_launch<T, KEYS, 0>(q, a, r, waves);
	for (int64_t i = last; i >= 0; i--) {
		const struct scan spans = {i * DELTA_SEGMENT, r.spans.marks * DELTA_SPAN, DELTA_SPAN, i - 1,
			i > 0 ? r.kept : NULL, r.marks};
		if (r.spans.marks > 0) scan_launch<T, KEYS, 0>(q, a, r, spans);
		LAUNCH((kda_back_kernel<T, KEYS>), r.groups.groups * heads * r.slices, threads,
			BACK_FLOATS(KEYS) * sizeof(float), q->stream, a, r, i);
		if (r.slices > 1)
			LAUNCH(kda_slices_kernel<T>, r.groups.groups * r.spans.tokens * heads, THREADS, 0, q->stream, a, r, i);
	}
	LAUNCH(kda_gates_kernel<T>, parts * heads, THREADS, THREADS / 32 * sizeof(float), q->stream, a, r, q->work, rates,
		rows);
	cuda_sum_partials(q, a.ddt_bias, a.beta, q->work, parts, heads * a.key_dim, heads * a.key_dim);
	cuda_sum_partials(q, a.da_log, a.beta, rates, parts, heads, heads);
}

#define BY_KEYS(q, a, direction) \
	BY_ELEMENT(q, ((a)->key_dim <= 128 ? direction<T, 128>(q, *(a)) : direction<T, 256>(q, *(a))))

void kda_forward(const struct cuda_queue *q, const struct delta_args *a) { BY_KEYS(q, a, forward); }
void kda_backward(const struct cuda_queue *q, const struct delta_args *a) { BY_KEYS(q, a, backward); }

cudaError_t kda_prepare(void)
{
	const void *kernels[] = {(const void *)kda_back_kernel<float, 128>, (const void *)kda_back_kernel<float, 256>,
		(const void *)kda_back_kernel<struct bf16, 128>, (const void *)kda_back_kernel<struct bf16, 256>};
	return kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
}
