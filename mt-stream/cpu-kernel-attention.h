/* cpu-kernel-attention.h: causal attention in tiles (FlashAttention, arXiv 2205.14135), on one thread a task
 *
 * A tile is QT queries by KT keys of one document and head. Scores are kept transposed, s (KT, QT), a query a lane: so
 * the softmax over keys goes down the columns without a sum across lanes, and every product of the two passes is a sum
 * of rank-1 updates, c (r, :) += a (r, i) b (i, :), whose a is read scalar by scalar, row- or column-wise, and whose b
 * lies as it lies in memory. Only q and do are transposed, once for all the keys they meet.
 *
 * Tiles are counted from the start of the document. So a document gives the same bits wherever it lies in a row.
 */

enum { QT = 64, KT = 64 };

/* ---- products ---- */

/* c (MR, n vectors) = [c +] a (MR, k) b (k, n vectors). by_row: a (r, i) is a[r lda + i], otherwise a[i lda + r]. */
INLINE void micro(int n, int by_row, int add_c, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
	float *c, int64_t ldc)
{
	vf sum[MR][2];
	UNROLL
	for (int r = 0; r < MR; r++)
		UNROLL
		for (int j = 0; j < n; j++)
			sum[r][j] = add_c ? v_load(c + r * ldc + j * VW) : (vf){0};
	for (int64_t i = 0; i < k; i++) {
		vf x[2];
		UNROLL
		for (int j = 0; j < n; j++)
			x[j] = v_load(b + i * ldb + j * VW);
		UNROLL
		for (int r = 0; r < MR; r++) {
			vf s = v_set(by_row ? a[r * lda + i] : a[i * lda + r]);
			UNROLL
			for (int j = 0; j < n; j++)
				sum[r][j] = v_fma(s, x[j], sum[r][j]);
		}
	}
	UNROLL
	for (int r = 0; r < MR; r++)
		UNROLL
		for (int j = 0; j < n; j++)
			v_store(c + r * ldc + j * VW, sum[r][j]);
}

/* MR rows of c, n columns (a multiple of VW) */
INLINE void panel(int by_row, int add_c, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
	float *c, int64_t ldc)
{
	int64_t j = 0;
	for (; j + 2 * VW <= n; j += 2 * VW)
		micro(2, by_row, add_c, k, a, lda, b + j, ldb, c + j, ldc);
	if (j < n)
		micro(1, by_row, add_c, k, a, lda, b + j, ldb, c + j, ldc);
}

/* c = a b, a by rows */
static __attribute__((noinline)) void panel_rows(int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
	int64_t ldb, float *c, int64_t ldc)
{
	panel(1, 0, n, k, a, lda, b, ldb, c, ldc);
}

/* c += a b, a by columns */
static __attribute__((noinline)) void panel_columns(int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
	int64_t ldb, float *c, int64_t ldc)
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
		for (int64_t i = 0; i < ld; i += VW)
			v_store(dst + r * ld + i, (vf){0});
}

/* dst (ld, QT) = src (QT, ld) transposed, of which rows up to a multiple of VW are filled */
static void turn(float *dst, const float *src, int64_t ld, int64_t rows)
{
	for (int64_t r = 0; r < rows; r += VW)
		for (int64_t i = 0; i < ld; i += VW) {
			vf x[VW];
			UNROLL
			for (int j = 0; j < VW; j++)
				x[j] = v_load(src + (r + j) * ld + i);
			v_transpose(x);
			UNROLL
			for (int j = 0; j < VW; j++)
				v_store(dst + (i + j) * QT + r, x[j]);
		}
}

/* Where a tile lies: queries q .. q + nq - 1 and keys k .. k + nk - 1, both counted from the document's start; a query
 * sees the keys up to itself, and only `window` of them. */
struct tile { int64_t q, nq, k, nk, window; };

INLINE struct tile tile_at(int64_t q, int64_t nq, int64_t k, int64_t window)
{
	int64_t left = q + nq - k;
	return (struct tile){ .q = q, .nq = nq, .k = k, .nk = left < KT ? left : KT, .window = window };
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
	for (int i = 0; i < VW; i++)
		lane[i] = i;
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
		if (c < columns)
			panel_rows(columns - c, dim, k + r * ld, ld, x + c, QT, s + r * QT + c, QT);
	}
}

/* c (nq, ld) += s' (nq, nk) b (nk, ld) */
INLINE void queries_by_keys(const struct tile *t, float *c, const float *s, const float *b, int64_t ld)
{
	for (int64_t r = 0; r < t->nq; r += MR) {
		int64_t n = t->q + r + MR - t->k;
		panel_columns(ld, n < t->nk ? n : t->nk, s + r, QT, b, ld, c + r * ld, ld);
	}
}

/* ---- forward ---- */

/* Scores become probabilities relative to the highest so far; sum, high (QT) follow; rescale (QT) is what earlier sums are
 * to be multiplied by. Highs start at -FLT_MAX, not -inf, whose difference with itself is NaN. */
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
INLINE int64_t first_tile(int64_t q, int64_t window)
{
	return q < window ? 0 : (q - window + 1) / KT * KT;
}

/* For backward, which needs more: q, do and their transposes, k, v, dq (64, ld), s and dp (KT, QT), lse and delta (QT) */
static size_t attention_scratch(int64_t dim)
{
	int64_t ld = round_up(dim, VW);
	return (size_t)(7 * QT * ld + 2 * KT * QT + 2 * QT) * sizeof(float);
}

static void attention_forward(const struct attention *a, const struct span *span, int64_t head, float *o, float *lse,
	const float *qkv, float *scratch)
{
	int64_t dim = a->dim, ld = round_up(dim, VW), stride = (a->heads + 2 * a->kv_heads) * dim;
	int64_t kv_head = head / (a->heads / a->kv_heads), window = a->window ? a->window : INT64_MAX;
	int64_t q0 = span->first - span->begin, nq = span->end - span->first;
	const float *keys = qkv + span->begin * stride + (a->heads + kv_head) * dim;
	float *q = scratch, *qt = q + QT * ld, *k = qt + QT * ld, *v = k + KT * ld, *sum_v = v + KT * ld;
	float *s = sum_v + QT * ld, *high = s + KT * QT, *sum = high + QT, *rescale = sum + QT;

	pack(q, ld, qkv + span->first * stride + head * dim, stride, nq, dim, a->scale);
	turn(qt, q, ld, nq);
	memset(sum_v, 0, (size_t)(QT * ld) * sizeof *sum_v);
	memset(sum, 0, QT * sizeof *sum);
	for (int i = 0; i < QT; i++)
		high[i] = -FLT_MAX;
	for (int64_t k0 = first_tile(q0, window); k0 < q0 + nq; k0 += KT) {
		struct tile t = tile_at(q0, nq, k0, window);
		pack(k, ld, keys + k0 * stride, stride, t.nk, dim, 1);
		pack(v, ld, keys + k0 * stride + a->kv_heads * dim, stride, t.nk, dim, 1);
		keys_by_queries(&t, s, k, qt, ld, dim);
		softmax_columns(&t, s, high, sum, rescale);
		for (int64_t r = 0; r < nq; r++)
			for (int64_t i = 0; i < ld; i += VW)
				v_store(sum_v + r * ld + i, v_load(sum_v + r * ld + i) * v_set(rescale[r]));
		queries_by_keys(&t, sum_v, s, v, ld);
	}
	for (int64_t r = 0; r < nq; r++) {
		float *row = o + ((span->first + r) * a->heads + head) * dim;
		for (int64_t i = 0; i < dim; i += VW)
			v_put(row + i, dim - i, v_load(sum_v + r * ld + i) * v_set(1.0f / sum[r]));
		lse[(span->first + r) * a->heads + head] = high[r] + logf(sum[r]);
	}
}

/* ---- backward ---- */

/* p = exp(s - lse), and in place of dp: ds = p (dp - delta) */
INLINE void softmax_back(const struct tile *t, float *s, float *dp, const float *lse, const float *delta)
{
	for (int64_t c = 0; c < t->nq; c += VW) {
		int64_t n = keys_seen(t, c);
		int mask = !all_seen(t, c);
		vf l = v_load(lse + c), d = v_load(delta + c);
		for (int64_t r = 0; r < n; r++) {
			vf x = v_load(s + r * QT + c);
			if (mask)
				x = masked(t, c, r, x);
			vf p = v_exp(x - l);
			v_store(s + r * QT + c, p);
			v_store(dp + r * QT + c, p * (v_load(dp + r * QT + c) - d));
		}
	}
}

/* dst (nk rows at stride, dim) = [dst +] s (nk, nq) x (nq, ld); s is zero where a key comes after its query */
INLINE void keys_gain(const struct tile *t, float *dst, int64_t stride, int64_t dim, int add_dst, const float *s,
	const float *x, int64_t ld, float *sum)
{
	for (int64_t r = 0; r < t->nk; r += MR) {
		int64_t c = columns_from(t, r), rows = t->nk - r < MR ? t->nk - r : MR;
		panel_rows(ld, t->nq - c, s + r * QT + c, QT, x + c * ld, ld, sum, ld);
		for (int64_t j = 0; j < rows; j++)
			for (int64_t i = 0; i < dim; i += VW) {
				float *to = dst + (r + j) * stride + i;
				vf y = v_load(sum + j * ld + i);
				v_put(to, dim - i, add_dst ? v_get(to, dim - i) + y : y);
			}
	}
}

/* The gradients of one block of queries: dq is complete; dk and dv gain, or begin, where `begin` says so and the tile is the
 * block's own (the first that a key meets is the one of the query beside it). */
static void attention_back_block(const struct attention *a, const struct span *span, int64_t head, int begin, float *dqkv,
	const float *d_o, const float *o, const float *lse, const float *qkv, float *scratch)
{
	int64_t dim = a->dim, ld = round_up(dim, VW), stride = (a->heads + 2 * a->kv_heads) * dim;
	int64_t kv_head = head / (a->heads / a->kv_heads), window = a->window ? a->window : INT64_MAX;
	int64_t q0 = span->first - span->begin, nq = span->end - span->first, o_stride = a->heads * dim;
	int64_t to_keys = span->begin * stride + (a->heads + kv_head) * dim;
	float *q = scratch, *qt = q + QT * ld, *k = qt + QT * ld, *v = k + KT * ld, *g = v + KT * ld, *gt = g + QT * ld;
	float *dq = gt + QT * ld, *s = dq + QT * ld, *dp = s + KT * QT, *l = dp + KT * QT, *delta = l + QT;

	pack(q, ld, qkv + span->first * stride + head * dim, stride, nq, dim, a->scale);
	turn(qt, q, ld, nq);
	pack(g, ld, d_o + span->first * o_stride + head * dim, o_stride, nq, dim, 1);
	turn(gt, g, ld, nq);
	memset(l, 0, 2 * QT * sizeof *l);
	for (int64_t r = 0; r < nq; r++) {
		const float *row = o + (span->first + r) * o_stride + head * dim;
		vf sum = {0};
		for (int64_t i = 0; i < dim; i += VW)
			sum = v_fma(v_load(g + r * ld + i), v_get(row + i, dim - i), sum);
		delta[r] = v_sum(sum);
		l[r] = lse[(span->first + r) * a->heads + head];
	}
	memset(dq, 0, (size_t)(QT * ld) * sizeof *dq);
	for (int64_t k0 = first_tile(q0, window); k0 < q0 + nq; k0 += KT) {
		struct tile t = tile_at(q0, nq, k0, window);
		int64_t at = to_keys + k0 * stride;
		int gain = !(begin && k0 == q0);
		pack(k, ld, qkv + at, stride, t.nk, dim, 1);
		pack(v, ld, qkv + at + a->kv_heads * dim, stride, t.nk, dim, 1);
		keys_by_queries(&t, s, k, qt, ld, dim);
		keys_by_queries(&t, dp, v, gt, ld, dim);
		softmax_back(&t, s, dp, l, delta);
		queries_by_keys(&t, dq, dp, k, ld);
		/* v is not needed any more, and has room for MR rows */
		keys_gain(&t, dqkv + at + a->kv_heads * dim, stride, dim, gain, s, g, ld, v);
		keys_gain(&t, dqkv + at, stride, dim, gain, dp, q, ld, v);
	}
	for (int64_t r = 0; r < nq; r++) {
		float *row = dqkv + (span->first + r) * stride + head * dim;
		for (int64_t i = 0; i < dim; i += VW)
			v_put(row + i, dim - i, v_load(dq + r * ld + i) * v_set(a->scale));
	}
}

/* All heads that share a key-value head, so that its dk and dv have one owner */
static void attention_backward(const struct attention *a, const struct span *span, int64_t kv_head, float *dqkv,
	const float *d_o, const float *o, const float *lse, const float *qkv, float *scratch)
{
	int64_t group = a->heads / a->kv_heads;
	for (int64_t q = span->begin; q < span->end; q += QT) {
		struct span block = { span->begin, q, q + QT < span->end ? q + QT : span->end };
		for (int64_t j = 0; j < group; j++)
			attention_back_block(a, &block, kv_head * group + j, j == 0, dqkv, d_o, o, lse, qkv, scratch);
	}
}
