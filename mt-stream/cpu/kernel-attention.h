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
 */

enum { QT = 64, KT = 64, BLOCKS = ATTENTION_GROUP / QT };

/* ---- multiplications ---- */

/* c (MR, n vectors) = [c +] a (MR, k) b (k, n vectors). by_row: a (r, i) is a[r lda + i], otherwise a[i lda + r]. */
INLINE void micro(int n, int by_row, int add_c, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
	float *c, int64_t ldc)
{
	vf sum[MR][2];
	UNROLL
	for (int r = 0; r < MR; r++) UNROLL
	for (int j = 0; j < n; j++) sum[r][j] = add_c ? v_load(c + r * ldc + j * VW) : (vf){0};
	for (int64_t i = 0; i < k; i++) {
		vf x[2];
		UNROLL
		for (int j = 0; j < n; j++) x[j] = v_load(b + i * ldb + j * VW);
		UNROLL
		for (int r = 0; r < MR; r++) {
			vf s = v_set(by_row ? a[r * lda + i] : a[i * lda + r]);
			UNROLL
			for (int j = 0; j < n; j++) sum[r][j] = v_fma(s, x[j], sum[r][j]);
		}
	}
	UNROLL
	for (int r = 0; r < MR; r++) UNROLL
	for (int j = 0; j < n; j++) v_store(c + r * ldc + j * VW, sum[r][j]);
}

/* MR rows of c, n columns (a multiple of VW) */
INLINE void panel(int by_row, int add_c, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
	float *c, int64_t ldc)
{
	int64_t j = 0;
	for (; j + 2 * VW <= n; j += 2 * VW) micro(2, by_row, add_c, k, a, lda, b + j, ldb, c + j, ldc);
	if (j < n) micro(1, by_row, add_c, k, a, lda, b + j, ldb, c + j, ldc);
}

/* c = a b, a by rows */
static __attribute__((noinline)) void panel_rows(int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
	int64_t ldb, float *c, int64_t ldc)
{
	panel(1, 0, n, k, a, lda, b, ldb, c, ldc);
}

/* c += a b, a by rows */
static __attribute__((noinline)) void panel_rows_add(int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
	int64_t ldb, float *c, int64_t ldc)
{
	panel(1, 1, n, k, a, lda, b, ldb, c, ldc);
}

/* c += a b, a by columns */
static __attribute__((noinline)) void panel_columns_add(int64_t n, int64_t k, const float *a, int64_t lda,
	const float *b, int64_t ldb, float *c, int64_t ldc)
{
	panel(0, 1, n, k, a, lda, b, ldb, c, ldc);
}

/* ---- tiles ---- */

/* dst (rows up to a multiple of VW, ld) = scale * src (rows, dim), zeros around it */
static void pack(float *dst, int64_t ld, const float *src, int64_t stride, int64_t rows, int64_t dim, float scale)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < dim; i += VW)
			v_store(dst + r * ld + i, v_get(src + r * stride + i, dim - i) * v_set(scale));
	for (int64_t r = rows; r < round_up(rows, VW); r++)
		for (int64_t i = 0; i < ld; i += VW) v_store(dst + r * ld + i, (vf){0});
}

/* Prefetch rows that will be packed or written next: rows of qkv are too far apart for the hardware prefetcher. */
INLINE void foresee(const float *p, int write, int64_t stride, int64_t rows, int64_t dim)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < dim; i += 16) {
			if (write) __builtin_prefetch(p + r * stride + i, 1, 2);
			else __builtin_prefetch(p + r * stride + i, 0, 2);
		}
}

/* dst (ld, QT) = src (QT, ld) transposed, of which rows up to a multiple of VW are filled */
static void turn(float *dst, const float *src, int64_t ld, int64_t rows)
{
	for (int64_t r = 0; r < rows; r += VW)
		for (int64_t i = 0; i < ld; i += VW) {
			vf x[VW];
			UNROLL
			for (int j = 0; j < VW; j++) x[j] = v_load(src + (r + j) * ld + i);
			v_transpose(x);
			UNROLL
			for (int j = 0; j < VW; j++) v_store(dst + (i + j) * QT + r, x[j]);
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
INLINE void keys_by_queries(const struct tile *t, float *s, const float *k, const float *x, int64_t ld, int64_t dim)
{
	int64_t columns = round_up(t->nq, VW);
	for (int64_t r = 0; r < t->nk; r += MR) {
		int64_t c = columns_from(t, r);
		if (c < columns) panel_rows(columns - c, dim, k + r * ld, ld, x + c, QT, s + r * QT + c, QT);
	}
}

/* c (nq, ld) += s' (nq, nk) b (nk, ld) */
INLINE void queries_by_keys(const struct tile *t, float *c, const float *s, const float *b, int64_t ld)
{
	for (int64_t r = 0; r < t->nq; r += MR) {
		int64_t n = t->q + r + MR - t->k;
		panel_columns_add(ld, n < t->nk ? n : t->nk, s + r, QT, b, ld, c + r * ld, ld);
	}
}

/* ---- caps ---- */

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

/* ---- forward ---- */

/* Scores become probabilities relative to the highest so far; sum, high (QT) are updated; rescale (QT) is the factor
 * for earlier sums. */
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
		for (int64_t r = 0; r < n; r++) {
			vf p = v_exp(v_load(s + r * QT + c) - m);
			v_store(s + r * QT + c, p);
			total += p;
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
 * k, v, dk, dv (KT, ld), s and dp (KT, QT) */
static size_t attention_scratch(int64_t dim)
{
	int64_t ld = round_up(dim, VW);
	return (size_t)(5 * BLOCKS * QT * ld + 2 * BLOCKS * QT + 4 * KT * ld + 2 * KT * QT) * sizeof(float);
}

/* A head, in both passes: where its keys and values begin, and the distance between tokens */
struct head {
	int64_t dim, ld, dim_v, ld_v, stride, keys, values, window;
	float cap;
};

INLINE struct head head_of(const struct attention_args *a, int64_t begin, int64_t kv_head)
{
	int64_t stride = attention_row(a), at = begin * stride + a->heads * a->dim, dim_v = attention_dim_v(a);
	return (struct head){.dim = a->dim,
		.ld = round_up(a->dim, VW),
		.dim_v = dim_v,
		.ld_v = round_up(dim_v, VW),
		.stride = stride,
		.keys = at + kv_head * a->dim,
		.values = at + a->kv_heads * a->dim + kv_head * dim_v,
		.window = a->window ? a->window : INT64_MAX,
		.cap = a->cap};
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

/* k, v (KT, ld) = keys and values from k0 on, before `end`; the next ones are prefetched */
static void pack_keys(const struct head *h, const float *qkv, int64_t k0, int64_t end, float *k, float *v)
{
	const float *keys = qkv + h->keys + k0 * h->stride, *values = qkv + h->values + k0 * h->stride;
	int64_t n = least(KT, end - k0), next = least(KT, end - k0 - KT), far = KT * h->stride;
	pack(k, h->ld, keys, h->stride, n, h->dim, 1);
	pack(v, h->ld_v, values, h->stride, n, h->dim_v, 1);
	foresee(keys + far, 0, h->stride, next, h->dim);
	foresee(values + far, 0, h->stride, next, h->dim_v);
}

/* Do the queries of the tile see any of its keys? */
INLINE int meets(int64_t q, int64_t k, int64_t window) { return k <= q && k >= first_tile(q, window); }

/* One tile: scores, probabilities, and sum_v rescaled and added to */
static void attention_tile(const struct tile *t, const float *qt, const float *k, const float *v, const struct head *h,
	float *s, float *high, float *sum, float *rescale, float *sum_v)
{
	keys_by_queries(t, s, k, qt, h->ld, h->dim);
	if (h->cap != 0) cap_scores(t, s, h->cap);
	softmax_columns(t, s, high, sum, rescale);
	for (int64_t r = 0; r < t->nq; r++)
		for (int64_t i = 0; i < h->ld_v; i += VW)
			v_store(sum_v + r * h->ld_v + i, v_load(sum_v + r * h->ld_v + i) * v_set(rescale[r]));
	queries_by_keys(t, sum_v, s, v, h->ld_v);
}

static void attention_forward(const struct attention_args *a, const struct queries *queries, int64_t head,
	float *scratch)
{
	const float *qkv = a->qkv;
	float *out = a->o;
	struct head h = head_of(a, queries->begin, head / (a->heads / a->kv_heads));
	int64_t q0 = queries->first - queries->begin, n = queries->end - queries->first, tile = QT * h.ld;
	int64_t tile_v = QT * h.ld_v;
	float *qt = scratch, *sum_v = qt + BLOCKS * tile, *high = sum_v + BLOCKS * tile_v, *sum = high + BLOCKS * QT;
	float *k = sum + BLOCKS * QT, *v = k + KT * h.ld, *q = v + KT * h.ld_v, *s = q + tile, *rescale = s + KT * QT;
	for (int64_t b = 0; b * QT < n; b++) {
		int64_t nq = least(QT, n - b * QT);
		pack(q, h.ld, qkv + (queries->first + b * QT) * h.stride + head * h.dim, h.stride, nq, h.dim, a->scale);
		turn(qt + b * tile, q, h.ld, nq);
	}
	memset(sum_v, 0, (size_t)(BLOCKS * tile_v) * sizeof *sum_v);
	softmax_begin(a, head, high, sum);
	for (int64_t k0 = first_tile(q0, h.window); k0 < q0 + n; k0 += KT) {
		pack_keys(&h, qkv, k0, q0 + n, k, v);
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

/* p = exp(s - lse), and in place of dp: ds = p (dp - delta), with a cap (0: none) times its derivative 1 - (s / cap)^2,
 * as s is capped */
INLINE void softmax_back(const struct tile *t, float *s, float *dp, const float *lse, const float *delta, float cap)
{
	for (int64_t c = 0; c < t->nq; c += VW) {
		int64_t n = keys_seen(t, c);
		int mask = !all_seen(t, c);
		vf l = v_load(lse + c), d = v_load(delta + c);
		for (int64_t r = 0; r < n; r++) {
			vf x = v_load(s + r * QT + c), share = x;
			if (mask) x = masked(t, c, r, x);
			vf p = v_exp(x - l), ds = p * (v_load(dp + r * QT + c) - d);
			if (cap != 0) {
				share *= v_set(1 / cap);
				ds *= v_fma(-share, share, v_set(1.0f));
			}
			v_store(s + r * QT + c, p);
			v_store(dp + r * QT + c, ds);
		}
	}
}

static __attribute__((noinline)) void softmax_back_capped(const struct tile *t, float *s, float *dp, const float *lse,
	const float *delta, float cap)
{
	cap_scores(t, s, cap);
	softmax_back(t, s, dp, lse, delta, cap);
}

/* dst (nk, ld) += s (nk, nq) x (nq, ld); s is zero where a key comes after its query */
INLINE void keys_gain(const struct tile *t, float *dst, const float *s, const float *x, int64_t ld)
{
	for (int64_t r = 0; r < t->nk; r += MR) {
		int64_t c = columns_from(t, r);
		panel_rows_add(ld, t->nq - c, s + r * QT + c, QT, x + c * ld, ld, dst + r * ld, ld);
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

/* A group's tiles in backward's scratch, block after block */
struct query_group {
	float *q, *qt, *g, *gt, *dq, *lse, *delta, *k, *v, *dk, *dv, *s, *dp;
};

static struct query_group group_in(float *scratch, int64_t ld, int64_t ld_v)
{
	int64_t all = BLOCKS * QT * ld, all_v = BLOCKS * QT * ld_v;
	struct query_group p = {.q = scratch};
	p.qt = p.q + all;
	p.g = p.qt + all;
	p.gt = p.g + all_v;
	p.dq = p.gt + all_v;
	p.lse = p.dq + all;
	p.delta = p.lse + BLOCKS * QT;
	p.k = p.delta + BLOCKS * QT;
	p.v = p.k + KT * ld;
	p.dk = p.v + KT * ld_v;
	p.dv = p.dk + KT * ld;
	p.s = p.dv + KT * ld_v;
	p.dp = p.s + KT * QT;
	return p;
}

INLINE float dot(const float *a, const float *b, int64_t n)
{
	vf sum = {0};
	for (int64_t i = 0; i < n; i += VW) sum = v_fma(v_get(a + i, n - i), v_get(b + i, n - i), sum);
	return v_sum(sum);
}

/* q (scaled), do (here g), their transposes, lse, and delta = do . o of every query; dq is cleared */
static void gather_queries(const struct query_group *p, const struct attention_args *a, const struct queries *queries,
	int64_t head, const struct head *h)
{
	const float *qkv = a->qkv, *d_o = a->d_o, *o = a->o;
	int64_t n = queries->end - queries->first, stride = a->heads * h->dim_v;
	int64_t at = queries->first * stride + head * h->dim_v;
	pack(p->q, h->ld, qkv + queries->first * h->stride + head * h->dim, h->stride, n, h->dim, a->scale);
	pack(p->g, h->ld_v, d_o + at, stride, n, h->dim_v, 1);
	for (int64_t b = 0; b * QT < n; b++) {
		int64_t nq = least(QT, n - b * QT), tile = b * QT * h->ld, tile_v = b * QT * h->ld_v;
		turn(p->qt + tile, p->q + tile, h->ld, nq);
		turn(p->gt + tile_v, p->g + tile_v, h->ld_v, nq);
	}
	memset(p->lse, 0, 2 * BLOCKS * QT * sizeof *p->lse);
	for (int64_t r = 0; r < n; r++) {
		p->delta[r] = dot(p->g + r * h->ld_v, o + at + r * stride, h->dim_v);
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
	struct head h = head_of(a, queries->begin, head / (a->heads / a->kv_heads));
	struct query_group p = group_in(scratch, h.ld, h.ld_v);
	int64_t q0 = queries->first - queries->begin, n = queries->end - queries->first, tile = QT * h.ld;
	int64_t tile_v = QT * h.ld_v;
	gather_queries(&p, a, queries, head, &h);
	for (int64_t k0 = first_tile(q0, h.window); k0 < q0 + n; k0 += KT) {
		int64_t nk = least(KT, q0 + n - k0), keys = h.keys + k0 * h.stride, values = h.values + k0 * h.stride;
		int gain = !(begin && k0 >= q0);
		foresee(dqkv + keys, 1, h.stride, nk, h.dim);
		foresee(dqkv + values, 1, h.stride, nk, h.dim_v);
		pack_keys(&h, qkv, k0, q0 + n, p.k, p.v);
		memset(p.dk, 0, (size_t)(KT * (h.ld + h.ld_v)) * sizeof *p.dk);
		for (int64_t b = 0; b * QT < n; b++) {
			if (!meets(q0 + b * QT, k0, h.window)) continue;
			struct tile t = tile_at(q0 + b * QT, least(QT, n - b * QT), k0, h.window);
			keys_by_queries(&t, p.s, p.k, p.qt + b * tile, h.ld, h.dim);
			keys_by_queries(&t, p.dp, p.v, p.gt + b * tile_v, h.ld_v, h.dim_v);
			if (h.cap != 0) softmax_back_capped(&t, p.s, p.dp, p.lse + b * QT, p.delta + b * QT, h.cap);
			else softmax_back(&t, p.s, p.dp, p.lse + b * QT, p.delta + b * QT, 0);
			queries_by_keys(&t, p.dq + b * tile, p.dp, p.k, h.ld);
			keys_gain(&t, p.dv, p.s, p.g + b * tile_v, h.ld_v);
			keys_gain(&t, p.dk, p.dp, p.q + b * tile, h.ld);
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
