/* kernel-kda.h: Kimi delta attention (arXiv 2510.26692), the delta rule with a gate for each channel of the key, token
 * by token; one value head of one document a task.
 *
 * The chunks of kernel-delta.h take the decay from one token to a later one as one number. Here it differs by channel.
 * GEMMs would need it as a factor of q times a factor of k, which may overflow. Token by token, e^g <= 1 is the only
 * factor:
 *     S~_t = diag(e^g_t) S_(t-1)    m_t = S~_t' k_t    d_t = beta_t (v_t - m_t)
 *     S_t = S~_t + k_t d_t'    o_t = S_t' q_t
 * Backward, where dS_t is the gradient of S_t by later tokens:
 *     dS_t += q_t do_t'    dq_t = S_t do_t    dd_t = dS_t' k_t    dv_t = beta_t dd_t    dbeta_t = dd_t.(v_t - m_t)
 *     dm_t = -beta_t dd_t    dk_t = dS_t d_t + S~_t dm_t    dS~_t = dS_t + k_t dm_t'
 *     dg_t = the scalar products of the rows of dS~_t with those of S~_t    dS_(t-1) = diag(e^g_t) dS~_t
 *
 * Columns of S do not depend on each other. A strip of KDA_WIDE columns stays in the L1 cache while a block of tokens
 * passes over it. dq, dk, dg and dbeta are sums over strips, in their order.
 *
 * One pass over a strip's rows completes token t and begins t + 1. In arrays of tokens, one of zeros stands before the
 * first token, and one with e^g = 1 and k = 0 after the last, so that the first and the last pass are like the others.
 */
#include "mt/model.h"

/* KDA_WIDE: columns of a strip. KDA_BLOCK: tokens whose S~ backward has at once, which fit the L2 cache */
enum { KDA_VECTORS = MR / 2, KDA_WIDE = KDA_VECTORS * VW, KDA_BLOCK = 16 };

struct kda {
	int64_t n; /* tokens */
	int64_t dk, dv, ldk, strips;
	int64_t strip, size; /* floats of a strip, and of a state */
	float *q, *k, *e;    /* (QT + 2, ldk): token i is row i + 1; e: e^g */
	float *beta;         /* (QT) */
	float *states;       /* (strips, ldk, KDA_WIDE) each; backward: before each block of a segment */
	/* backward */
	float *begun;         /* (KDA_BLOCK + 1, ldk, KDA_WIDE): a strip of S~ of each token, and of S after the last */
	float *error;         /* (KDA_BLOCK, KDA_WIDE): v - m */
	float *dq, *dk_, *dg; /* (KDA_BLOCK + 2, ldk), rows as of q */
	float *dbeta;         /* (KDA_BLOCK) */
	float *dS;            /* (strips, ldk, KDA_WIDE) */
};

/* Lay the arrays out in `scratch`, with room for the states of some chunks; returns their length in floats */
static int64_t kda_at(struct kda *t, const struct delta_args *a, int64_t chunks, float *scratch)
{
	int64_t ldk = round_up(a->key_dim, VW), strips = div_up(a->value_dim, KDA_WIDE), total = 0;
	*t = (struct kda){.dk = a->key_dim, .dv = a->value_dim, .ldk = ldk, .strips = strips, .strip = ldk * KDA_WIDE};
	t->size = strips * t->strip;
	const struct {
		float **at;
		int64_t n;
	} parts[] = {{&t->q, (QT + 2) * ldk}, {&t->k, (QT + 2) * ldk}, {&t->e, (QT + 2) * ldk}, {&t->beta, QT},
		{&t->states, (a->dq ? chunks * (DELTA_CHUNK / KDA_BLOCK) : 1) * t->size},
		{&t->begun, (KDA_BLOCK + 1) * t->strip}, {&t->error, KDA_BLOCK * KDA_WIDE}, {&t->dq, (KDA_BLOCK + 2) * ldk},
		{&t->dk_, (KDA_BLOCK + 2) * ldk}, {&t->dg, (KDA_BLOCK + 2) * ldk}, {&t->dbeta, KDA_BLOCK}, {&t->dS, t->size}};
	for (size_t i = 0; i < sizeof parts / sizeof *parts && (a->dq || parts[i].at != &t->begun); i++) {
		if (scratch) *parts[i].at = scratch + total;
		total += parts[i].n;
	}
	return total;
}

/* The columns of a strip in a row of which `left` remain, zeros after them; and back */
INLINE void columns_get(vf *x, const float *row, int64_t left)
{
	UNROLL
	for (int i = 0; i < KDA_VECTORS; i++) x[i] = i * VW < left ? v_get(row + i * VW, left - i * VW) : (vf){0};
}
INLINE void columns_put(float *row, int64_t left, const vf *x)
{
	UNROLL
	for (int i = 0; i < KDA_VECTORS; i++)
		if (i * VW < left) v_put(row + i * VW, left - i * VW, x[i]);
}
INLINE void columns_zero(vf *x)
{
	UNROLL
	for (int i = 0; i < KDA_VECTORS; i++) x[i] = (vf){0};
}

/* From DK x DV elements, or zeros; and back */
static void kda_state_get(const struct kda *t, float *S, const float *from)
{
	memset(S, 0, (size_t)t->size * sizeof *S);
	for (int64_t s = 0; from && s < t->strips; s++)
		for (int64_t r = 0; r < t->dk; r++) {
			vf x[KDA_VECTORS];
			columns_get(x, from + r * t->dv + s * KDA_WIDE, t->dv - s * KDA_WIDE);
			columns_put(S + s * t->strip + r * KDA_WIDE, KDA_WIDE, x);
		}
}
static void kda_state_put(const struct kda *t, float *to, const float *S)
{
	for (int64_t s = 0; s < t->strips; s++)
		for (int64_t r = 0; r < t->dk; r++) {
			vf x[KDA_VECTORS];
			columns_get(x, S + s * t->strip + r * KDA_WIDE, KDA_WIDE);
			columns_put(to + r * t->dv + s * KDA_WIDE, t->dv - s * KDA_WIDE, x);
		}
}

/* A head's dt_bias */
static void kda_bias(const struct delta_args *a, int64_t head, float *bias)
{
	memcpy(bias, (const float *)a->dt_bias + head * a->key_dim, (size_t)a->key_dim * sizeof *bias);
	for (int64_t i = 0; a->dt_lo && i < a->key_dim; i++) {
		uint32_t bits;
		memcpy(&bits, bias + i, sizeof bits);
		bits += (uint32_t)(int32_t)a->dt_lo[head * a->key_dim + i]; /* as op_join */
		memcpy(bias + i, &bits, sizeof bits);
	}
}

/* From token `first` on, n tokens, at most DELTA_CHUNK: q, k, e, beta */
static void kda_load(struct kda *t, const struct delta_args *a, int64_t head, int64_t first, int64_t n)
{
	int64_t key = head / (a->value_heads / a->key_heads), wide = delta_row(a, 1, 0) - delta_row(a, 0, 0);
	const float *b = (const float *)a->b + first * a->b_ld + head;
	float bias[MT_DELTA_DIM];
	vf rate = v_set(-expf(((const float *)a->a_log)[head]));
	size_t row = (size_t)t->ldk * sizeof(float);
	kda_bias(a, head, bias);
	t->n = n;
	memset(t->q, 0, row);
	memset(t->k, 0, row);
	pack(t->q + t->ldk, t->ldk, delta_row(a, first, key * t->dk), wide, n, t->dk, 1);
	pack(t->k + t->ldk, t->ldk, delta_row(a, first, (a->key_heads + key) * t->dk), wide, n, t->dk, 1);
	memset(t->k + (n + 1) * t->ldk, 0, row);
	for (int64_t r = 0; r <= n; r++) {
		const float *x = (const float *)a->a + (first + r) * a->ld + head * t->dk;
		for (int64_t i = 0; i < t->ldk; i += VW) {
			int64_t left = t->dk - i;
			v_store(t->e + (r + 1) * t->ldk + i,
				r < n ? v_exp(rate * v_softplus(v_get(x + i, left) + v_get(bias + i, left))) : v_set(1));
		}
	}
	for (int64_t r = 0; r < round_up(n, VW); r++) t->beta[r] = r < n ? b[r * a->b_ld] : 0;
	for (int64_t r = 0; r < n; r += VW) v_store(t->beta + r, v_sigmoid(v_load(t->beta + r)));
}

/* What passes give beside states; BEGUN: S~ of each token, v - m, and dq */
enum kda_goal { STATE, OUTPUT, BEGUN };

/* Complete the token of a row: S = from + k d', o or dq. Begin the next one: to = S~, m. to may be from */
INLINE void kda_pass(const struct kda *t, enum kda_goal goal, int64_t row, const float *from, float *to, const vf *d,
	const vf *d_o, vf *m, vf *o)
{
	const float *q = t->q + row * t->ldk, *k = t->k + row * t->ldk, *next = k + t->ldk;
	const float *e = t->e + (row + 1) * t->ldk;
	columns_zero(m);
	columns_zero(o);
	for (int64_t c = 0; c < t->ldk; c += VW) {
		vf sums[VW];
		for (int j = 0; j < VW; j++) {
			int64_t r = c + j;
			vf sum = {0}, at_q = v_set(q[r]), at_k = v_set(k[r]), at_next = v_set(next[r]), at_e = v_set(e[r]);
			UNROLL
			for (int i = 0; i < KDA_VECTORS; i++) {
				vf S = v_fma(at_k, d[i], v_load(from + r * KDA_WIDE + i * VW));
				if (goal == OUTPUT) o[i] = v_fma(at_q, S, o[i]);
				if (goal == BEGUN) sum = v_fma(S, d_o[i], sum);
				S *= at_e;
				m[i] = v_fma(at_next, S, m[i]);
				v_store(to + r * KDA_WIDE + i * VW, S);
			}
			if (goal == BEGUN) sums[j] = sum;
		}
		float *dq = t->dq + row * t->ldk + c;
		if (goal == BEGUN) v_store(dq, v_load(dq) + v_sums(sums));
	}
}

/* The tokens from `first` on, from the strip before them to that after them; BEGUN: to t->begun. OUTPUT: o
 * of all but the first `redo` tokens */
INLINE void kda_tokens(const struct kda *t, enum kda_goal goal, const struct delta_args *a, int64_t head, int64_t first,
	int64_t redo, int64_t strip, const float *from, float *to)
{
	int64_t column = strip * KDA_WIDE, left = t->dv - column, heads = a->value_heads;
	vf d[KDA_VECTORS], d_o[KDA_VECTORS], m[KDA_VECTORS], o[KDA_VECTORS];
	columns_zero(d);
	columns_zero(d_o);
	for (int64_t r = 0; r <= t->n; r++) {
		float *S = goal == BEGUN ? t->begun + r * t->strip : to;
		kda_pass(t, goal, r, from, S, d, d_o, m, o);
		from = S;
		if (goal == OUTPUT && r > redo)
			columns_put((float *)a->o + ((first + r - 1) * heads + head) * t->dv + column, left, o);
		if (r == t->n) break;
		columns_get(d, delta_v(a, first + r, head) + column, left);
		UNROLL
		for (int i = 0; i < KDA_VECTORS; i++) {
			d[i] -= m[i];
			if (goal == BEGUN) v_store(t->error + r * KDA_WIDE + i * VW, d[i]);
			d[i] *= v_set(t->beta[r]);
		}
		if (goal == BEGUN)
			columns_get(d_o, (const float *)a->d_o + ((first + r) * heads + head) * t->dv + column, left);
	}
}

static void kda_output(const struct kda *t, const struct delta_args *a, int64_t head, int64_t first, int64_t redo,
	float *S)
{
	for (int64_t s = 0; s < t->strips; s++) {
		float *at = S + s * t->strip;
		kda_tokens(t, OUTPUT, a, head, first, redo, s, at, at);
	}
}

static void kda_next(const struct kda *t, const struct delta_args *a, int64_t head, int64_t first, const float *S,
	float *next)
{
	for (int64_t s = 0; s < t->strips; s++)
		kda_tokens(t, STATE, a, head, first, 0, s, S + s * t->strip, next + s * t->strip);
}

/* ---- forward ---- */

static void kda_forward(const struct delta_args *a, const struct queries *document, int64_t head, float *scratch)
{
	struct kda t;
	int64_t begin = document->begin, end = document->end;
	int64_t from = document->first - (document->first - begin) % DELTA_CHUNK, whole = end - (end - begin) % DELTA_CHUNK;
	float *kept = a->state ? a->state + head * a->key_dim * a->value_dim : NULL;
	kda_at(&t, a, 1, scratch);
	kda_state_get(&t, t.states, from > begin ? kept : NULL);
	for (int64_t n;; from += n) {
		if (kept && end == a->n && from == whole) kda_state_put(&t, kept, t.states);
		if (from == end) break;
		n = least(DELTA_CHUNK, end - from);
		kda_load(&t, a, head, from, n);
		kda_output(&t, a, head, from, from < document->first ? document->first - from : 0, t.states);
	}
}

/* ---- backward ---- */

/* Complete the gradients of the token after a row's, which has S~, d and dm. Begin those of the row's: dS, dd */
INLINE void kda_back_pass(const struct kda *t, int64_t row, float *dS, const float *S, const vf *d, const vf *dm,
	const vf *d_o, vf *dd)
{
	const float *q = t->q + row * t->ldk, *before = t->k + row * t->ldk, *k = before + t->ldk;
	const float *e = t->e + (row + 1) * t->ldk;
	columns_zero(dd);
	for (int64_t c = 0; c < t->ldk; c += VW) {
		float *dk = t->dk_ + (row + 1) * t->ldk + c, *dg = t->dg + (row + 1) * t->ldk + c;
		vf dks[VW], dgs[VW];
		for (int j = 0; j < VW; j++) {
			int64_t r = c + j;
			vf for_k = {0}, for_g = {0};
			vf at_q = v_set(q[r]), at_before = v_set(before[r]), at_k = v_set(k[r]), at_e = v_set(e[r]);
			UNROLL
			for (int i = 0; i < KDA_VECTORS; i++) {
				vf x = v_load(dS + r * KDA_WIDE + i * VW), begun = v_load(S + r * KDA_WIDE + i * VW);
				for_k = v_fma(x, d[i], v_fma(begun, dm[i], for_k));
				x = v_fma(at_k, dm[i], x);
				for_g = v_fma(x, begun, for_g);
				x = v_fma(at_q, d_o[i], at_e * x);
				dd[i] = v_fma(at_before, x, dd[i]);
				v_store(dS + r * KDA_WIDE + i * VW, x);
			}
			dks[j] = for_k;
			dgs[j] = for_g;
		}
		v_store(dk, v_load(dk) + v_sums(dks));
		v_store(dg, v_load(dg) + v_sums(dgs));
	}
}

/* The gradients of a strip of a block, of which kda_tokens has given BEGUN */
static void kda_strip_back(const struct kda *t, const struct delta_args *a, int64_t head, int64_t first, int64_t strip)
{
	int64_t column = strip * KDA_WIDE, left = t->dv - column;
	float *dS = t->dS + strip * t->strip;
	vf d[KDA_VECTORS], dm[KDA_VECTORS], d_o[KDA_VECTORS], dd[KDA_VECTORS];
	columns_zero(d);
	columns_zero(dm);
	for (int64_t r = t->n; r > 0; r--) {
		int64_t at = ((first + r - 1) * a->value_heads + head) * t->dv + column;
		vf beta = v_set(t->beta[r - 1]), dbeta = {0}, dv[KDA_VECTORS];
		columns_get(d_o, (const float *)a->d_o + at, left);
		kda_back_pass(t, r, dS, t->begun + r * t->strip, d, dm, d_o, dd);
		UNROLL
		for (int i = 0; i < KDA_VECTORS; i++) {
			vf error = v_load(t->error + (r - 1) * KDA_WIDE + i * VW);
			dbeta = v_fma(dd[i], error, dbeta);
			d[i] = beta * error;
			dv[i] = beta * dd[i];
			dm[i] = -dv[i];
		}
		columns_put((float *)a->dv + at, left, dv);
		t->dbeta[r - 1] += v_sum(dbeta);
	}
	columns_zero(d_o);
	kda_back_pass(t, 0, dS, t->begun, d, dm, d_o, dd);
}

/* What backward keeps of a token and head: the gradients of g */
INLINE float *kda_kept_token(const struct delta_args *a, int64_t t, int64_t head)
{
	int64_t states = delta_kept(a) * a->value_heads * a->key_dim * a->value_dim;
	return a->work + states + (t * a->value_heads + head) * a->key_dim;
}

/* The gradients of a block of n tokens from `first` on, with the state S before it; t->dS is that of the next block's
 * state, and becomes that of S */
static void kda_block_back(struct kda *t, const struct delta_args *a, int64_t head, int64_t first, int64_t n,
	const float *S)
{
	int64_t at = (first * a->value_heads + head) * t->dk, apart = a->value_heads * t->dk;
	float *sums[] = {t->dq, t->dk_, t->dg},
		  *to[] = {(float *)a->dq + at, (float *)a->dk + at, kda_kept_token(a, first, head)};
	kda_load(t, a, head, first, n);
	for (int i = 0; i < 3; i++) memset(sums[i], 0, (size_t)((n + 2) * t->ldk) * sizeof(float));
	memset(t->dbeta, 0, KDA_BLOCK * sizeof(float));
	for (int64_t s = 0; s < t->strips; s++) {
		kda_tokens(t, BEGUN, a, head, first, 0, s, S + s * t->strip, NULL);
		kda_strip_back(t, a, head, first, s);
	}
	for (int i = 0; i < 3; i++) spread(to[i], apart, 0, sums[i] + t->ldk, t->ldk, n, t->dk, 1);
	for (int64_t r = 0; r < n; r++)
		((float *)a->db)[(first + r) * a->db_ld + head] = t->dbeta[r] * t->beta[r] * (1 - t->beta[r]);
}

/* First the states before all segments but the first. Then, from the last segment to the first, the states before its
 * blocks, and from the last block to the first the gradients. */
static void kda_backward(const struct delta_args *a, const struct queries *document, int64_t head, float *scratch)
{
	struct kda t;
	int64_t begin = document->begin, length = document->end - begin, segments = div_up(length, DELTA_SEGMENT);
	kda_at(&t, a, least(DELTA_STATES, div_up(length, DELTA_CHUNK)), scratch);
	kda_state_get(&t, t.states, NULL);
	for (int64_t c = 0; c < (segments - 1) * DELTA_SEGMENT; c += DELTA_CHUNK) {
		kda_load(&t, a, head, begin + c, DELTA_CHUNK);
		kda_next(&t, a, head, begin + c, t.states, t.states);
		if ((c + DELTA_CHUNK) % DELTA_SEGMENT == 0)
			kda_state_put(&t, delta_kept_at(a, begin, (c + DELTA_CHUNK) / DELTA_SEGMENT, head), t.states);
	}
	kda_state_get(&t, t.dS, NULL);
	for (int64_t s = segments - 1; s >= 0; s--) {
		int64_t from = begin + s * DELTA_SEGMENT, end = least(from + DELTA_SEGMENT, document->end);
		int64_t blocks = div_up(end - from, KDA_BLOCK);
		kda_state_get(&t, t.states, s ? delta_kept_at(a, begin, s, head) : NULL);
		for (int64_t b = 0; b + 1 < blocks; b++) {
			float *S = t.states + b * t.size;
			kda_load(&t, a, head, from + b * KDA_BLOCK, KDA_BLOCK);
			kda_next(&t, a, head, from + b * KDA_BLOCK, S, S + t.size);
		}
		for (int64_t b = blocks - 1; b >= 0; b--) {
			int64_t at = from + b * KDA_BLOCK;
			kda_block_back(&t, a, head, at, least(KDA_BLOCK, end - at), t.states + b * t.size);
		}
	}
}

/* As delta_gates_backward; sum: the gradients of a_log (HV) and dt_bias (HV, DK) += */
static void kda_gates_backward(const struct delta_args *a, float *sum, int64_t first, int64_t end)
{
	int64_t DK = a->key_dim;
	for (int64_t h = 0; h < a->value_heads; h++) {
		float bias[MT_DELTA_DIM];
		kda_bias(a, h, bias);
		for (int64_t t = first; t < end; t++) {
			const float *x = (const float *)a->a + t * a->ld + h * DK;
			const float *dg = kda_kept_token(a, t, h);
			float *da = (float *)a->da + t * a->d_ld + h * DK, *ddt_bias = sum + a->value_heads + h * DK;
			vf rate = v_set(-expf(((const float *)a->a_log)[h])), da_log = {0};
			for (int64_t i = 0; i < DK; i += VW) {
				int64_t n = DK - i;
				vf in = v_get(x + i, n) + v_get(bias + i, n), d = v_get(dg + i, n) * rate, dx = d * v_sigmoid(in);
				da_log = v_fma(d, v_softplus(in), da_log);
				v_put(da + i, n, dx);
				v_put(ddt_bias + i, n, v_get(ddt_bias + i, n) + dx);
			}
			sum[h] += v_sum(da_log);
		}
	}
}

/* ---- any of the rules ---- */

static size_t delta_rule_scratch(const struct delta_args *a, int64_t chunks)
{
	struct kda t;
	return a->channels ? (size_t)kda_at(&t, a, chunks, NULL) * sizeof(float) : delta_scratch(a, chunks);
}

static void delta_rule_forward(const struct delta_args *a, const struct queries *document, int64_t head, float *scratch)
{
	if (a->channels) kda_forward(a, document, head, scratch);
	else delta_forward(a, document, head, scratch);
}

static void delta_rule_backward(const struct delta_args *a, const struct queries *document, int64_t head,
	float *scratch)
{
	if (a->channels) kda_backward(a, document, head, scratch);
	else delta_backward(a, document, head, scratch);
}

static void delta_rule_gates_backward(const struct delta_args *a, float *sum, int64_t first, int64_t end)
{
	if (a->channels) kda_gates_backward(a, sum, first, end);
	else delta_gates_backward(a, sum, first, end);
}
