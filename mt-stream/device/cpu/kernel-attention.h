/* kernel-attention.h: causal attention in tiles (FlashAttention, arXiv 2205.14135), on one thread a task
 *
 * A tile is QT queries by KT keys of one document and head. Scores are kept transposed, s (KT, QT), one query in each
 * lane: so the softmax over keys goes down the columns and needs no sum across lanes. Every multiplication of both
 * passes is a sum of rank-1 updates, c (r, :) += a (r, i) b (i, :): a is read scalar by scalar, by rows or columns, and
 * b as it lies in memory. Only q and do are transposed, once for all their keys.
 *
 * A group of BLOCKS tiles of queries goes over the keys together, so that keys and values are gathered, and their
 * gradients spread, once a group: in qkv they lie far apart, a few cache lines to a page.
 *
 * Tiles are counted from the start of the document. So a document gives the same bits wherever it lies in a row.
 *
 * A head's sink is where its softmax starts: the highest score so far is the sink, and the sum is its exp(0) = 1.
 *
 * Operands of multiplications are fp32. With ATTENTION_BF16 they are rounded to bf16, and an operand is a pair of
 * neighbours in the sum: (r, 2i) and (r, 2i + 1) of a, (2i, j) and (2i + 1, j) of b. Scores, softmax and all sums are
 * fp32. An array that is multiplied both ways has a copy for each: of pairs along a row, and of pairs of rows (stack).
 */
#include "ops/attention.h"

#if ATTENTION_BF16
typedef int32_t operand;
typedef vi vo;
enum { EACH = 2 }; /* elements of an operand */
INLINE vo o_set(operand x) { return x - (vo){0}; }
INLINE vf o_fma(vo a, vo b, vf c) { return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b); }
/* Pairs (x[0], x[1]), (x[2], x[3]) ..., of lanes of first, then of second */
INLINE vo o_neighbours(vf first, vf second) { return (vo)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }
/* Pairs (first[i], second[i]) */
#define LANE_OF_HALVES(i, s) ((short)((i) + (s))), ((short)(16 + (i) + (s)))
INLINE vo o_pairs(vf first, vf second)
{
	static const short lanes[] __attribute__((aligned(64))) = {LANES(LANE_OF_HALVES, 0)};
	return (vo)_mm512_permutexvar_epi16(_mm512_load_si512(lanes), (__m512i)o_neighbours(first, second));
}
#else
typedef float operand;
typedef vf vo;
enum { EACH = 1 };
INLINE vo o_set(operand x) { return v_set(x); }
INLINE vf o_fma(vo a, vo b, vf c) { return v_fma(a, b, c); }
#endif
INLINE vo o_load(const operand *p)
{
	vo x;
	memcpy(&x, p, sizeof x);
	return x;
}
INLINE void o_store(operand *p, vo x) { memcpy(p, &x, sizeof x); }

enum { QT = 64, KT = 64, BLOCKS = ATTENTION_GROUP / QT };

/* ---- multiplications ---- */

/* c (MR, n vectors) = [c +] a (MR, k) b (k, n vectors). by_row: a (r, i) is a[r lda + i], otherwise a[i lda + r]. k,
 * lda and ldb count operands. */
INLINE void micro(int n, int by_row, int add_c, int64_t k, const operand *a, int64_t lda, const operand *b, int64_t ldb,
	float *c, int64_t ldc)
{
	vf sum[MR][2];
	UNROLL
	for (int r = 0; r < MR; r++) UNROLL
	for (int j = 0; j < n; j++) sum[r][j] = add_c ? v_load(c + r * ldc + j * VW) : (vf){0};
	for (int64_t i = 0; i < k; i++) {
		vo x[2];
		UNROLL
		for (int j = 0; j < n; j++) x[j] = o_load(b + i * ldb + j * VW);
		UNROLL
		for (int r = 0; r < MR; r++) {
			vo s = o_set(by_row ? a[r * lda + i] : a[i * lda + r]);
			UNROLL
			for (int j = 0; j < n; j++) sum[r][j] = o_fma(s, x[j], sum[r][j]);
		}
	}
	UNROLL
	for (int r = 0; r < MR; r++) UNROLL
	for (int j = 0; j < n; j++) v_store(c + r * ldc + j * VW, sum[r][j]);
}

/* MR rows of c, n columns (a multiple of VW) */
INLINE void panel(int by_row, int add_c, int64_t n, int64_t k, const operand *a, int64_t lda, const operand *b,
	int64_t ldb, float *c, int64_t ldc)
{
	int64_t j = 0;
	for (; j + 2 * VW <= n; j += 2 * VW) micro(2, by_row, add_c, k, a, lda, b + j, ldb, c + j, ldc);
	if (j < n) micro(1, by_row, add_c, k, a, lda, b + j, ldb, c + j, ldc);
}

/* c = a b, a by rows */
static __attribute__((noinline)) void panel_rows(int64_t n, int64_t k, const operand *a, int64_t lda, const operand *b,
	int64_t ldb, float *c, int64_t ldc)
{
	panel(1, 0, n, k, a, lda, b, ldb, c, ldc);
}

/* c += a b, a by rows */
static __attribute__((noinline)) void panel_rows_add(int64_t n, int64_t k, const operand *a, int64_t lda,
	const operand *b, int64_t ldb, float *c, int64_t ldc)
{
	panel(1, 1, n, k, a, lda, b, ldb, c, ldc);
}

/* c += a b, a by columns */
static __attribute__((noinline)) void panel_columns_add(int64_t n, int64_t k, const operand *a, int64_t lda,
	const operand *b, int64_t ldb, float *c, int64_t ldc)
{
	panel(0, 1, n, k, a, lda, b, ldb, c, ldc);
}

/* ---- tiles ---- */

/* dst (rows up to a multiple of VW, ld) = scale * src (rows, dim), zeros around it */
static void pack(operand *dst, int64_t ld, const float *src, int64_t stride, int64_t rows, int64_t dim, float scale)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < dim; i += VW * EACH) {
			const float *from = src + r * stride + i;
			vf x = v_get(from, dim - i) * v_set(scale);
#if ATTENTION_BF16
			vf second = dim - i > VW ? v_get(from + VW, dim - i - VW) * v_set(scale) : (vf){0};
			o_store(dst + (r * ld + i) / EACH, o_neighbours(x, second));
#else
			o_store(dst + r * ld + i, x);
#endif
		}
	for (int64_t r = rows; r < round_up(rows, VW); r++)
		for (int64_t i = 0; i < ld / EACH; i += VW) o_store(dst + r * (ld / EACH) + i, (vo){0});
}

#if ATTENTION_BF16
/* The same by pairs of rows */
static void stack(operand *dst, int64_t ld, const float *src, int64_t stride, int64_t rows, int64_t dim, float scale)
{
	for (int64_t r = 0; r < round_up(rows, VW); r += EACH)
		for (int64_t i = 0; i < ld; i += VW) {
			const float *from = src + r * stride + i;
			vf first = r < rows && i < dim ? v_get(from, dim - i) * v_set(scale) : (vf){0};
			vf second = r + 1 < rows && i < dim ? v_get(from + stride, dim - i) * v_set(scale) : (vf){0};
			o_store(dst + r / EACH * ld + i, o_pairs(first, second));
		}
}
#else
INLINE void stack(operand *dst, int64_t ld, const float *src, int64_t stride, int64_t rows, int64_t dim, float scale)
{
	pack(dst, ld, src, stride, rows, dim, scale);
}
#endif

/* Prefetch rows that will be packed or written next: rows of qkv are too far apart for the hardware prefetcher. */
INLINE void foresee(const float *p, int write, int64_t stride, int64_t rows, int64_t dim)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < dim; i += 16) {
			if (write) __builtin_prefetch(p + r * stride + i, 1, 2);
			else __builtin_prefetch(p + r * stride + i, 0, 2);
		}
}

/* dst (ld, QT) = src (QT, ld) transposed, of which rows up to a multiple of VW are filled; ld counts operands */
static void turn(operand *dst, const operand *src, int64_t ld, int64_t rows)
{
	for (int64_t r = 0; r < rows; r += VW)
		for (int64_t i = 0; i < ld; i += VW) {
			vf x[VW];
			UNROLL
			for (int j = 0; j < VW; j++) x[j] = (vf)o_load(src + (r + j) * ld + i);
			v_transpose(x);
			UNROLL
			for (int j = 0; j < VW; j++) o_store(dst + (i + j) * QT + r, (vo)x[j]);
		}
}

/* Where a tile lies: queries q .. q + nq - 1 and keys k .. k + nk - 1, both counted from the document's start; a query
 * sees the keys up to itself, and only `window` of them. */
struct tile {
	int64_t q, nq, k, nk, window;
};

INLINE struct tile tile_at(int64_t q, int64_t nq, int64_t k, int64_t window)
{
	int64_t left = q + nq - k;
	return (struct tile){.q = q, .nq = nq, .k = k, .nk = left < KT ? left : KT, .window = window};
}

/* Keys of the tile that any of the VW queries from column c sees: what lies beyond is neither computed nor read. */
INLINE int64_t keys_seen(const struct tile *t, int64_t c)
{
	int64_t n = t->q + c + VW - t->k;
	return n < t->nk ? n : t->nk;
}

/* The first column, a multiple of VW, whose queries see a key of row r and further */
INLINE int64_t columns_from(const struct tile *t, int64_t r)
{
	int64_t c = t->k + r - t->q;
	return c > 0 ? c / VW * VW : 0;
}

/* Does every query of the VW from column c see every key of the tile? */
INLINE int all_seen(const struct tile *t, int64_t c)
{
	return t->q + c >= t->k + t->nk - 1 && t->q + c + VW - 1 - t->k < t->window;
}

/* x where the query (lane) sees key r, otherwise -inf */
INLINE vf masked(const struct tile *t, int64_t c, int64_t r, vf x)
{
	int32_t lane[VW];
	for (int i = 0; i < VW; i++) lane[i] = i;
	vi ahead;
	memcpy(&ahead, lane, sizeof ahead);
	ahead += (int32_t)(t->q + c - t->k - r);
	int32_t window = t->window < INT32_MAX ? (int32_t)t->window : INT32_MAX;
	vi see = (ahead >= 0) & (ahead < window);
	return (vf)((see & (vi)x) | (~see & (vi)v_set(-INFINITY)));
}

/* s (nk, QT) = k (nk, ld) x (ld, QT), columns_from each block of rows on */
INLINE void keys_by_queries(const struct tile *t, float *s, const operand *k, const operand *x, int64_t ld, int64_t dim)
{
	int64_t columns = round_up(t->nq, VW);
	for (int64_t r = 0; r < t->nk; r += MR) {
		int64_t c = columns_from(t, r);
		if (c < columns)
			panel_rows(columns - c, div_up(dim, EACH), k + r * (ld / EACH), ld / EACH, x + c, QT, s + r * QT + c, QT);
	}
}

/* c (nq, ld) += s' (nq, nk) b (nk, ld) */
INLINE void queries_by_keys(const struct tile *t, float *c, const operand *s, const operand *b, int64_t ld)
{
	for (int64_t r = 0; r < t->nq; r += MR) {
		int64_t n = t->q + r + MR - t->k;
		panel_columns_add(ld, div_up(n < t->nk ? n : t->nk, EACH), s + r, QT, b, ld, c + r * ld, ld);
	}
}

/* ---- caps, ALiBi ---- */

/* s = cap tanh(s / cap), where a query may see the key */
static void cap_scores(const struct tile *t, float *s, float cap)
{
	for (int64_t c = 0; c < t->nq; c += VW) {
		int64_t n = keys_seen(t, c);
		for (int64_t r = 0; r < n; r++) {
			float *at = s + r * QT + c;
			v_store(at, v_tanh(v_load(at) * v_set(1 / cap)) * v_set(cap));
		}
	}
}

/* s += bias, where a query may see the key: the keys' one minus the queries', from the tile's first query on */
static void bias_scores(const struct tile *t, float *s, const struct bias *bias)
{
	float of_keys[KT], of_queries[QT];
	for (int64_t r = 0; r < t->nk; r++) of_keys[r] = bias_at(bias, t->q, t->k + r);
	for (int64_t c = 0; c < QT; c++) of_queries[c] = bias_at(bias, t->q, t->q + c);
	for (int64_t c = 0; c < t->nq; c += VW) {
		int64_t n = keys_seen(t, c);
		for (int64_t r = 0; r < n; r++) {
			float *at = s + r * QT + c;
			v_store(at, v_load(at) + (v_set(of_keys[r]) - v_load(of_queries + c)));
		}
	}
}

/* ---- forward ---- */

/* Scores become probabilities relative to the highest so far, as operands in the same memory; sum, high (QT) are
 * updated; rescale (QT) is the factor for earlier sums. */
INLINE void softmax_columns(const struct tile *t, float *s, float *high, float *sum, float *rescale)
{
	for (int64_t c = 0; c < t->nq; c += VW) {
		int64_t n = keys_seen(t, c);
		int mask = !all_seen(t, c);
		vf old = v_load(high + c), m = old, total = {0};
		for (int64_t r = 0; r < n; r++) {
			vf x = v_load(s + r * QT + c);
			if (mask) {
				x = masked(t, c, r, x);
				v_store(s + r * QT + c, x);
			}
			m = v_max(x, m);
		}
		for (int64_t r = 0; r < n; r += EACH) {
			vf p = v_exp(v_load(s + r * QT + c) - m);
			total += p;
#if ATTENTION_BF16
			vf second = r + 1 < n ? v_exp(v_load(s + (r + 1) * QT + c) - m) : (vf){0};
			total += second;
			o_store((operand *)s + r / EACH * QT + c, o_pairs(p, second));
#else
			v_store(s + r * QT + c, p);
#endif
		}
		vf factor = v_exp(old - m);
		v_store(rescale + c, factor);
		v_store(high + c, m);
		v_store(sum + c, v_fma(v_load(sum + c), factor, total));
	}
}

/* The first tile of keys that a query at q sees with this window */
INLINE int64_t first_tile(int64_t q, int64_t window) { return q < window ? 0 : (q - window + 1) / KT * KT; }

/* For backward, which needs more: q, do, their transposes and dq (BLOCKS, 64, ld), lse and delta (BLOCKS, QT), and once
 * k, v, dk, dv (KT, ld), s and dp (KT, QT). Of bf16 half as much of what is no sum, but k and the gradient of scores
 * twice. */
static size_t attention_scratch(int64_t dim)
{
	int64_t ld = round_up(dim, VW * EACH);
	return (size_t)(5 * BLOCKS * QT * ld + 2 * BLOCKS * QT + 4 * KT * ld + 2 * KT * QT) * sizeof(float);
}

/* A head, in both passes: where its keys and values begin, and the distance between tokens */
struct head {
	int64_t dim, ld, dim_v, ld_v, stride, keys, values, window;
	float cap;
	struct bias bias; /* slope 0: none */
};

INLINE struct head head_of(const struct attention_args *a, int64_t begin, int64_t head)
{
	int64_t kv_head = head / (a->heads / a->kv_heads);
	int64_t stride = attention_row(a), at = begin * stride + a->heads * a->dim, dim_v = attention_dim_v(a);
	return (struct head){.dim = a->dim,
		.ld = round_up(a->dim, VW * EACH),
		.dim_v = dim_v,
		.ld_v = round_up(dim_v, VW * EACH),
		.stride = stride,
		.keys = at + kv_head * a->dim,
		.values = at + a->kv_heads * a->dim + kv_head * dim_v,
		.window = a->window ? a->window : INT64_MAX,
		.cap = a->cap,
		.bias = a->alibi.max != 0 ? bias_of(&a->alibi, head, 1) : (struct bias){0}};
}

/* Where the softmax of a head's queries starts: the highest score so far, and the sum relative to it. The highest is
 * not -inf, whose difference with itself is NaN. */
INLINE void softmax_begin(const struct attention_args *a, int64_t head, float *high, float *sum)
{
	const float *sinks = a->sinks;
	float start = sinks && !(sinks[head] < -FLT_MAX) ? sinks[head] : -FLT_MAX;
	for (int i = 0; i < BLOCKS * QT; i++) {
		high[i] = start;
		sum[i] = sinks ? 1 : 0;
	}
}

/* k, v (KT, ld) = keys and values from k0 on, before `end`; the next ones are prefetched. Forward multiplies v by
 * rows of keys, and has no k_sum; backward multiplies k both ways. */
static void pack_keys(const struct head *h, const float *qkv, int64_t k0, int64_t end, operand *k, operand *v,
	operand *k_sum)
{
	const float *keys = qkv + h->keys + k0 * h->stride, *values = qkv + h->values + k0 * h->stride;
	int64_t n = least(KT, end - k0), next = least(KT, end - k0 - KT), far = KT * h->stride;
	pack(k, h->ld, keys, h->stride, n, h->dim, 1);
	if (k_sum) pack(v, h->ld_v, values, h->stride, n, h->dim_v, 1);
	else stack(v, h->ld_v, values, h->stride, n, h->dim_v, 1);
	if (k_sum && k_sum != k) stack(k_sum, h->ld, keys, h->stride, n, h->dim, 1);
	foresee(keys + far, 0, h->stride, next, h->dim);
	foresee(values + far, 0, h->stride, next, h->dim_v);
}

/* Do the queries of the tile see any of its keys? */
INLINE int meets(int64_t q, int64_t k, int64_t window) { return k <= q && k >= first_tile(q, window); }

/* One tile: scores, probabilities, and sum_v rescaled and added to */
static void attention_tile(const struct tile *t, const operand *qt, const operand *k, const operand *v,
	const struct head *h, float *s, float *high, float *sum, float *rescale, float *sum_v)
{
	keys_by_queries(t, s, k, qt, h->ld, h->dim);
	if (h->cap != 0) cap_scores(t, s, h->cap);
	else if (h->bias.slope != 0) bias_scores(t, s, &h->bias);
	softmax_columns(t, s, high, sum, rescale);
	for (int64_t r = 0; r < t->nq; r++)
		for (int64_t i = 0; i < h->ld_v; i += VW)
			v_store(sum_v + r * h->ld_v + i, v_load(sum_v + r * h->ld_v + i) * v_set(rescale[r]));
	queries_by_keys(t, sum_v, (const operand *)s, v, h->ld_v);
}

static void attention_forward(const struct attention_args *a, const struct queries *queries, int64_t head,
	float *scratch)
{
	const float *qkv = a->qkv;
	float *out = a->o;
	struct head h = head_of(a, queries->begin, head);
	int64_t q0 = queries->first - queries->begin, n = queries->end - queries->first, tile = QT * h.ld / EACH;
	int64_t tile_v = QT * h.ld_v;
	operand *qt = (operand *)scratch, *k = qt + BLOCKS * tile, *v = k + KT * h.ld, *q = v + KT * h.ld_v;
	float *sum_v = (float *)q + QT * h.ld, *high = sum_v + BLOCKS * tile_v, *sum = high + BLOCKS * QT;
	float *s = sum + BLOCKS * QT, *rescale = s + KT * QT;
	for (int64_t b = 0; b * QT < n; b++) {
		int64_t nq = least(QT, n - b * QT);
		pack(q, h.ld, qkv + (queries->first + b * QT) * h.stride + head * h.dim, h.stride, nq, h.dim, a->scale);
		turn(qt + b * tile, q, h.ld / EACH, nq);
	}
	memset(sum_v, 0, (size_t)(BLOCKS * tile_v) * sizeof *sum_v);
	softmax_begin(a, head, high, sum);
	for (int64_t k0 = first_tile(q0, h.window); k0 < q0 + n; k0 += KT) {
		pack_keys(&h, qkv, k0, q0 + n, k, v, NULL);
		for (int64_t b = 0; b * QT < n; b++)
			if (meets(q0 + b * QT, k0, h.window)) {
				struct tile t = tile_at(q0 + b * QT, least(QT, n - b * QT), k0, h.window);
				attention_tile(&t, qt + b * tile, k, v, &h, s, high + b * QT, sum + b * QT, rescale,
					sum_v + b * tile_v);
			}
	}
	for (int64_t r = 0; r < n; r++) {
		float *row = out + ((queries->first + r) * a->heads + head) * h.dim_v;
		for (int64_t i = 0; i < h.dim_v; i += VW)
			v_put(row + i, h.dim_v - i, v_load(sum_v + r * h.ld_v + i) * v_set(1.0f / sum[r]));
		a->lse[(queries->first + r) * a->heads + head] = high[r] + logf(sum[r]);
	}
}

/* ---- backward ---- */

/* row (QT), an operand after the other, from column c on = x */
INLINE void put_operands(float *row, int64_t c, vf x)
{
#if ATTENTION_BF16
	_mm256_storeu_si256((__m256i *)(void *)(row + c / EACH), (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
	v_store(row + c, x);
#endif
}

/* p = exp(s - lse), and in place of dp: ds = p (dp - delta), with a cap (0: none) times its derivative 1 - (s / cap)^2,
 * as s is capped. Both become operands, ds also in ds_sum (KT / EACH, QT) for sums over keys. */
INLINE void softmax_back(const struct tile *t, float *s, float *dp, operand *ds_sum, const float *lse,
	const float *delta, float cap)
{
	for (int64_t c = 0; c < t->nq; c += VW) {
		int64_t n = keys_seen(t, c);
		int mask = !all_seen(t, c);
		vf l = v_load(lse + c), d = v_load(delta + c);
#if ATTENTION_BF16
		vf before = {0};
#endif
		for (int64_t r = 0; r < n; r++) {
			vf x = v_load(s + r * QT + c), share = x;
			if (mask) x = masked(t, c, r, x);
			vf p = v_exp(x - l), ds = p * (v_load(dp + r * QT + c) - d);
			if (cap != 0) {
				share *= v_set(1 / cap);
				ds *= v_fma(-share, share, v_set(1.0f));
			}
			put_operands(s + r * QT, c, p);
			put_operands(dp + r * QT, c, ds);
#if ATTENTION_BF16
			if (r & 1) o_store(ds_sum + r / 2 * QT + c, o_pairs(before, ds));
			else if (r + 1 == n) o_store(ds_sum + r / 2 * QT + c, o_pairs(ds, (vf){0}));
			before = ds;
#endif
		}
	}
	(void)ds_sum;
}

static __attribute__((noinline)) void softmax_back_capped(const struct tile *t, float *s, float *dp, operand *ds_sum,
	const float *lse, const float *delta, float cap)
{
	cap_scores(t, s, cap);
	softmax_back(t, s, dp, ds_sum, lse, delta, cap);
}

/* dst (nk, ld) += s (nk, nq) x (nq, ld); s is zero where a key comes after its query */
INLINE void keys_gain(const struct tile *t, float *dst, const operand *s, const operand *x, int64_t ld)
{
	for (int64_t r = 0; r < t->nk; r += MR) {
		int64_t c = columns_from(t, r);
		panel_rows_add(ld, div_up(t->nq - c, EACH), s + r * QT + c / EACH, QT, x + c / EACH * ld, ld, dst + r * ld, ld);
	}
}

/* dst (n rows at stride, dim) = [dst +] scale * src (n, ld) */
static void spread(float *dst, int64_t stride, int add_dst, const float *src, int64_t ld, int64_t n, int64_t dim,
	float scale)
{
	for (int64_t r = 0; r < n; r++)
		for (int64_t i = 0; i < dim; i += VW) {
			float *to = dst + r * stride + i;
			vf x = v_load(src + r * ld + i) * v_set(scale);
			v_put(to, dim - i, add_dst ? v_get(to, dim - i) + x : x);
		}
}

/* A group's tiles in backward's scratch, block after block. k_sum, ds_sum: k and the gradient of scores for sums over
 * keys; of fp32 they are k and dp */
struct query_group {
	operand *q, *qt, *g, *gt, *k, *v, *k_sum, *ds_sum;
	float *dq, *lse, *delta, *dk, *dv, *s, *dp;
};

static struct query_group group_in(float *scratch, int64_t ld, int64_t ld_v)
{
	int64_t all = BLOCKS * QT * ld, all_v = BLOCKS * QT * ld_v;
	struct query_group p = {.q = (operand *)scratch};
	p.qt = p.q + all / EACH;
	p.g = p.qt + all / EACH;
	p.gt = p.g + all_v / EACH;
	p.k = p.gt + all_v / EACH;
	p.v = p.k + KT * ld / EACH;
	p.dq = (float *)(p.v + KT * ld_v / EACH);
	p.lse = p.dq + all;
	p.delta = p.lse + BLOCKS * QT;
	p.dk = p.delta + BLOCKS * QT;
	p.dv = p.dk + KT * ld;
	p.s = p.dv + KT * ld_v;
	p.dp = p.s + KT * QT;
	p.k_sum = EACH == 1 ? p.k : (operand *)(p.dp + KT * QT);
	p.ds_sum = EACH == 1 ? (operand *)p.dp : p.k_sum + KT * ld / EACH;
	return p;
}

INLINE float dot(const float *a, const float *b, int64_t n)
{
	vf sum = {0};
	for (int64_t i = 0; i < n; i += VW) sum = v_fma(v_get(a + i, n - i), v_get(b + i, n - i), sum);
	return v_sum(sum);
}

/* x (QT / EACH, ld) and xt (ld / EACH, QT) = nq rows of src and their transpose; rows (QT, ld / EACH) is overwritten */
INLINE void gather_tile(operand *x, operand *xt, operand *rows, const float *src, int64_t stride, int64_t nq,
	int64_t dim, int64_t ld, float scale)
{
	if (EACH == 1) rows = x;
	else stack(x, ld, src, stride, nq, dim, scale);
	pack(rows, ld, src, stride, nq, dim, scale);
	turn(xt, rows, ld / EACH, nq);
}

/* q (scaled), do (here g), their transposes, lse, and delta = do . o of every query; dq is cleared */
static void gather_queries(const struct query_group *p, const struct attention_args *a, const struct queries *queries,
	int64_t head, const struct head *h)
{
	const float *qkv = a->qkv, *d_o = a->d_o, *o = a->o;
	int64_t n = queries->end - queries->first, stride = a->heads * h->dim_v;
	int64_t at = queries->first * stride + head * h->dim_v;
	const float *q = qkv + queries->first * h->stride + head * h->dim, *g = d_o + at;
	for (int64_t b = 0; b * QT < n; b++) {
		int64_t nq = least(QT, n - b * QT), tile = b * QT * h->ld / EACH, tile_v = b * QT * h->ld_v / EACH;
		operand *rows = (operand *)p->dk; /* and dv, which are cleared later */
		gather_tile(p->q + tile, p->qt + tile, rows, q + b * QT * h->stride, h->stride, nq, h->dim, h->ld, a->scale);
		gather_tile(p->g + tile_v, p->gt + tile_v, rows, g + b * QT * stride, stride, nq, h->dim_v, h->ld_v, 1);
	}
	memset(p->lse, 0, 2 * BLOCKS * QT * sizeof *p->lse);
	for (int64_t r = 0; r < n; r++) {
		p->delta[r] = dot(g + r * stride, o + at + r * stride, h->dim_v);
		p->lse[r] = a->lse[(queries->first + r) * a->heads + head];
	}
	memset(p->dq, 0, (size_t)(BLOCKS * QT * h->ld) * sizeof *p->dq);
}

/* The gradients of a group of queries: dq is complete. dk and dv are added to; with `begin`, the first group that sees
 * these keys (the one on the diagonal) overwrites them. */
static void attention_back_group(const struct attention_args *a, const struct queries *queries, int64_t head, int begin,
	float *scratch)
{
	const float *qkv = a->qkv;
	float *dqkv = a->dqkv;
	struct head h = head_of(a, queries->begin, head);
	struct query_group p = group_in(scratch, h.ld, h.ld_v);
	int64_t q0 = queries->first - queries->begin, n = queries->end - queries->first, tile = QT * h.ld / EACH;
	int64_t tile_v = QT * h.ld_v / EACH;
	gather_queries(&p, a, queries, head, &h);
	for (int64_t k0 = first_tile(q0, h.window); k0 < q0 + n; k0 += KT) {
		int64_t nk = least(KT, q0 + n - k0), keys = h.keys + k0 * h.stride, values = h.values + k0 * h.stride;
		int gain = !(begin && k0 >= q0);
		foresee(dqkv + keys, 1, h.stride, nk, h.dim);
		foresee(dqkv + values, 1, h.stride, nk, h.dim_v);
		pack_keys(&h, qkv, k0, q0 + n, p.k, p.v, p.k_sum);
		memset(p.dk, 0, (size_t)(KT * (h.ld + h.ld_v)) * sizeof *p.dk);
		for (int64_t b = 0; b * QT < n; b++) {
			if (!meets(q0 + b * QT, k0, h.window)) continue;
			struct tile t = tile_at(q0 + b * QT, least(QT, n - b * QT), k0, h.window);
			keys_by_queries(&t, p.s, p.k, p.qt + b * tile, h.ld, h.dim);
			keys_by_queries(&t, p.dp, p.v, p.gt + b * tile_v, h.ld_v, h.dim_v);
			if (h.cap != 0) softmax_back_capped(&t, p.s, p.dp, p.ds_sum, p.lse + b * QT, p.delta + b * QT, h.cap);
			else {
				if (h.bias.slope != 0) bias_scores(&t, p.s, &h.bias);
				softmax_back(&t, p.s, p.dp, p.ds_sum, p.lse + b * QT, p.delta + b * QT, 0);
			}
			queries_by_keys(&t, p.dq + b * QT * h.ld, p.ds_sum, p.k_sum, h.ld);
			keys_gain(&t, p.dv, (const operand *)p.s, p.g + b * tile_v, h.ld_v);
			keys_gain(&t, p.dk, (const operand *)p.dp, p.q + b * tile, h.ld);
		}
		spread(dqkv + keys, h.stride, gain, p.dk, h.ld, nk, h.dim, 1);
		spread(dqkv + values, h.stride, gain, p.dv, h.ld_v, nk, h.dim_v, 1);
	}
	spread(dqkv + queries->first * h.stride + head * h.dim, h.stride, 0, p.dq, h.ld, n, h.dim, a->scale);
}

/* All heads that share a key-value head, so that its dk and dv have one owner */
static void attention_backward(const struct attention_args *a, const struct queries *queries, int64_t kv_head,
	float *scratch)
{
	int64_t group = a->heads / a->kv_heads;
	for (int64_t q = queries->begin; q < queries->end; q += BLOCKS * QT) {
		struct queries part = {queries->begin, q, q + BLOCKS * QT < queries->end ? q + BLOCKS * QT : queries->end};
		for (int64_t j = 0; j < group; j++) attention_back_group(a, &part, kv_head * group + j, j == 0, scratch);
	}
}

#if !ATTENTION_BF16
/* sum (NH) -= exp(sink - lse) (d_o . o) of tokens first .. end - 1 */
static void sinks_backward(const struct sinks_backward_args *a, int64_t first, int64_t end, float *sum)
{
	const float *o = a->o, *d_o = a->d_o, *sinks = a->sinks;
	for (int64_t t = first; t < end; t++)
		for (int64_t j = 0; j < a->heads; j++) {
			int64_t at = t * a->heads + j;
			sum[j] -= expf(sinks[j] - a->lse[at]) * dot(d_o + at * a->dim, o + at * a->dim, a->dim);
		}
}

static const struct attention_kernels attention = {attention_scratch, attention_forward, attention_backward};
#endif
