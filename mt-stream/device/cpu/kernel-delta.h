/* kernel-delta.h: the gated delta rule and Mamba 2 in chunks of 64 tokens, one value head of one document a task.
 *
 * Of a chunk with first state S, where c_i = g_1 + .. + g_i, D_ij = e^(c_i - c_j) for i >= j, e_i = e^c_i,
 * l_j = D_Cj, and low() keeps what is below the diagonal:
 *     A = low(beta_i D_ij k_i.k_j)    P = D_ij q_i.k_j for i >= j
 *     d = (1 + A)^-1 beta (v - e k S)    o = e q S + P d    next S = e_C S + (l k)' d
 * Backward, from do and the gradient dS1 of the next state, with A, P, d recomputed:
 *     r = (1 + A)^-T (P' do + l k dS1)    dv = beta r    db = (1 - beta / most) r.d
 *     dP = D do d' for i >= j    dA = -low(beta D r d')    doS = do S'    dkS = -beta e r    w = l d dS1'
 *     dq = dP k + e doS    dk = (dA + dA') k + dP' q + dkS S' + w    dS = e_C dS1 + (e q)' do + k' dkS
 * Mamba 2, where nothing corrects, is the case A = 0 with d = beta v, beta = dt, and
 *     o = e q S + P d + skip v    r = P' do + l k dS1    dv = beta r + skip do    of dt: r.v    dskip = do.v
 * S is zero before a document's first chunk, and dS1 after its last one: what is multiplied by it is left out.
 *
 * Keys of the delta rule are at most 1 long and beta < most, 1 or 2, so A's inverse is bounded, and D <= 1. Two
 * things are sums where differences would cancel: the exponents c_i - c_j = g_(j+1) + .. + g_i, as c may reach -1000,
 * and the gradient of g (below).
 *
 * All products are those of kernel-attention.h, with tiles of QT = 64 columns or rows of ld elements. A tile's rows
 * from n on, up to a multiple of VW, are zeros, unless no product reads them.
 */
#include "ops/delta.h"

/* ---- a chunk ---- */

struct delta_tile {
	int64_t n, rows;          /* tokens; the same up to a multiple of MR */
	int64_t dk, dv, ldk, ldv; /* DK, DV; up to a multiple of VW */
	float *q, *k, *kl;        /* (QT, ldk); kl: l k, or e q */
	float *kt;                /* (ldk, QT): k' */
	float *v, *kS, *o;        /* (QT, ldv); v becomes d */
	float *kk, *qk;           /* (QT, QT): k k', q k' */
	float *D, *A, *P;         /* (QT, QT); A is minus A; backward: P becomes the gradient of the exponents in D */
	float *g, *beta, *e;      /* (QT) */
	float *states;            /* (ldk, ldv) each; backward: before each chunk of a segment */
	/* backward */
	float *d_o, *r, *dkS; /* (QT, ldv) */
	float *dt;            /* (ldv, QT): d' */
	float *dq, *dk_;      /* (QT, ldk) */
	float *dP, *dA;       /* (QT, QT) */
	float *turned, *dS;   /* (ldv, ldk): S' or dS1'; (ldk, ldv) */
};

enum { DELTA_STATES = DELTA_SEGMENT / DELTA_CHUNK };

/* Lay the tile out in `scratch`, with room for some states; returns its length in floats */
static int64_t delta_tile_at(struct delta_tile *t, const struct delta_args *a, int64_t states, float *scratch)
{
	int64_t ldk = round_up(a->key_dim, VW), ldv = round_up(a->value_dim, VW), total = 0;
	*t = (struct delta_tile){.dk = a->key_dim, .dv = a->value_dim, .ldk = ldk, .ldv = ldv};
	const struct {
		float **at;
		int64_t n;
	} parts[] = {{&t->q, QT * ldk}, {&t->k, QT * ldk}, {&t->kl, QT * ldk}, {&t->kt, QT * ldk}, {&t->v, QT * ldv},
		{&t->kS, QT * ldv}, {&t->o, QT * ldv}, {&t->kk, QT * QT}, {&t->qk, QT * QT}, {&t->D, QT * QT}, {&t->A, QT * QT},
		{&t->P, QT * QT}, {&t->g, QT}, {&t->beta, QT}, {&t->e, QT}, {&t->states, states * ldk * ldv},
		{&t->d_o, QT * ldv}, {&t->r, QT * ldv}, {&t->dkS, QT * ldv}, {&t->dt, QT * ldv}, {&t->dq, QT * ldk},
		{&t->dk_, QT * ldk}, {&t->dP, QT * QT}, {&t->dA, QT * QT}, {&t->turned, ldk * ldv}, {&t->dS, ldk * ldv}};
	for (size_t i = 0; i < sizeof parts / sizeof *parts && (a->dq || parts[i].at != &t->d_o); i++) {
		if (scratch) *parts[i].at = scratch + total;
		total += parts[i].n;
	}
	return total;
}

static size_t delta_scratch(const struct delta_args *a, int64_t states)
{
	struct delta_tile t;
	return (size_t)delta_tile_at(&t, a, states, NULL) * sizeof(float);
}

/* Rows of a head: of q, k, or v */
INLINE const float *delta_row(const struct delta_args *a, int64_t t, int64_t channel)
{
	return (const float *)a->qkv + t * (2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim) + channel;
}
INLINE const float *delta_v(const struct delta_args *a, int64_t t, int64_t head)
{
	return delta_row(a, t, 2 * a->key_heads * a->key_dim + head * a->value_dim);
}

/* log(1 + x) for 0 <= x <= 1, within 2 ulp: 2 atanh(s), s = x / (2 + x), by its series */
INLINE vf v_log1p_unit(vf x)
{
	vf s = x / (v_set(2) + x), z = s * s, twice = s + s;
	vf p = v_fma(v_set(1.0f / 15), z, v_set(1.0f / 13));
	p = v_fma(p, z, v_set(1.0f / 11));
	p = v_fma(p, z, v_set(1.0f / 9));
	p = v_fma(p, z, v_set(1.0f / 7));
	p = v_fma(p, z, v_set(1.0f / 5));
	p = v_fma(p, z, v_set(1.0f / 3));
	return v_fma(twice * z, p, twice);
}

/* log(1 + e^x) */
INLINE vf v_softplus(vf x) { return v_max(v_set(0), x) + v_log1p_unit(v_exp(-v_abs(x))); }

/* Mamba 2's dt, from softplus */
INLINE vf delta_step(const struct delta_args *a, vf soft)
{
	return v_min(v_set(a->dt_max), v_max(v_set(a->dt_min), soft));
}

/* g, beta */
static void delta_gates(const struct delta_tile *t, const struct delta_args *a, int64_t head, int64_t first)
{
	const float *x = (const float *)a->a + first * a->ld + head, *b = (const float *)a->b;
	float rate = -expf(((const float *)a->a_log)[head]), bias = ((const float *)a->dt_bias)[head];
	vf most = v_set(delta_beta_most(a));
	for (int64_t i = 0; i < round_up(t->n, VW); i++) {
		t->g[i] = i < t->n ? x[i * a->ld] + bias : 0;
		t->beta[i] = b && i < t->n ? b[(first + i) * a->b_ld + head] : 0;
	}
	for (int64_t i = 0; i < t->n; i += VW) {
		vf soft = v_softplus(v_load(t->g + i));
		if (!a->correct) soft = delta_step(a, soft);
		v_store(t->g + i, v_set(rate) * soft);
		v_store(t->beta + i, a->correct ? most * v_sigmoid(v_load(t->beta + i)) : soft);
	}
}

/* D, e from g. Row i's exponents are those of row i - 1 plus g_i, and 0 on the diagonal */
static void delta_decay(const struct delta_tile *t)
{
	float exponent[QT], sum = 0;
	for (int64_t j = 0; j < QT; j++) {
		exponent[j] = -INFINITY;
		t->e[j] = 0;
	}
	for (int64_t i = 0; i < t->rows; i++) {
		float *row = t->D + i * QT;
		int64_t columns = i < t->n ? round_up(i + 1, VW) : 0;
		for (int64_t j = 0; j < columns; j += VW) v_store(exponent + j, v_load(exponent + j) + v_set(t->g[i]));
		exponent[i] = 0;
		for (int64_t j = 0; j < columns; j += VW) v_store(row + j, v_exp(v_load(exponent + j)));
		for (int64_t j = columns; j < QT; j += VW) v_store(row + j, (vf){0});
		if (i < t->n) t->e[i] = sum += t->g[i];
	}
	for (int64_t i = 0; i < QT; i += VW) v_store(t->e + i, v_exp(v_load(t->e + i)));
}

/* Columns of the block of rows that starts at r, of a matrix that is zero above its diagonal */
INLINE int64_t lower_columns(int64_t r) { return round_up(r + MR, VW); }

/* c (QT, QT) = x y' as far as lower_columns: x (QT, ld), turned (ld, QT) is y' */
static void lower_product(const struct delta_tile *t, float *c, const float *x, int64_t ld, const float *turned,
	int64_t dim)
{
	for (int64_t r = 0; r < t->rows; r += MR)
		panel_rows(lower_columns(r), dim, x + r * ld, ld, turned, QT, c + r * QT, QT);
}

/* c = factor D c with the diagonal, or without it: then the factors are minus beta */
INLINE void lower_scale(const struct delta_tile *t, float *c, const float *from, int strictly)
{
	for (int64_t i = 0; i < t->rows; i++) {
		vf factor = v_set(strictly ? -t->beta[i] : 1);
		for (int64_t j = 0; j < lower_columns(i / MR * MR); j += VW)
			v_store(c + i * QT + j, factor * v_load(t->D + i * QT + j) * v_load(from + i * QT + j));
		if (strictly) c[i * QT + i] = 0;
	}
}

/* dst (QT, ld) = src's rows times factor */
INLINE void scale_rows(float *dst, const float *src, const float *factor, int64_t rows, int64_t ld)
{
	for (int64_t r = 0; r < rows; r++)
		for (int64_t i = 0; i < ld; i += VW) v_store(dst + r * ld + i, v_load(src + r * ld + i) * v_set(factor[r]));
}

/* c (rows, ldc) = [c +] x m: x (rows, dim), m (dim, ldc) */
INLINE void rows_times(const struct delta_tile *t, int add_c, float *c, int64_t ldc, const float *x, int64_t ld,
	int64_t dim, const float *m)
{
	for (int64_t r = 0; r < t->rows; r += MR)
		if (add_c) panel_rows_add(ldc, dim, x + r * ld, ld, m, ldc, c + r * ldc, ldc);
		else panel_rows(ldc, dim, x + r * ld, ld, m, ldc, c + r * ldc, ldc);
}

/* c (rows, ld) += m x, m zero above its diagonal */
INLINE void lower_times(const struct delta_tile *t, float *c, const float *m, const float *x, int64_t ld)
{
	for (int64_t r = 0; r < t->rows; r += MR)
		panel_rows_add(ld, least(r + MR, t->n), m + r * QT, QT, x, ld, c + r * ld, ld);
}

/* c (rows, ld) += m' x */
INLINE void upper_times(const struct delta_tile *t, float *c, const float *m, const float *x, int64_t ld)
{
	for (int64_t r = 0; r < t->n; r += MR)
		panel_columns_add(ld, t->n - r, m + r * QT + r, QT, x + r * ld, ld, c + r * ld, ld);
}

/* c (ldk, ldv) = factor from + x' y: x (n, ldk), y (n, ldv); from NULL: zeros; c may be from */
static void state_add(const struct delta_tile *t, float *c, const float *from, float factor, const float *x,
	const float *y)
{
	for (int64_t i = 0; i < t->ldk * t->ldv; i += VW) v_store(c + i, from ? v_load(from + i) * v_set(factor) : (vf){0});
	for (int64_t r = 0; r < t->ldk; r += MR)
		panel_columns_add(t->ldv, t->n, x + r, t->ldk, y, t->ldv, c + r * t->ldv, t->ldv);
}

/* x (rows, ldv) = (1 + A)^-1 x: blocks of MR rows downwards */
static void delta_solve(const struct delta_tile *t, float *x)
{
	int64_t ld = t->ldv;
	for (int64_t r = 0; r < t->rows; r += MR) {
		float *at = x + r * ld;
		const float *A = t->A + r * QT;
		if (r) panel_rows_add(ld, r, A, QT, x, ld, at, ld);
		for (int64_t i = 0; i < ld; i += VW) {
			vf d[MR];
			UNROLL
			for (int j = 0; j < MR; j++) {
				d[j] = v_load(at + j * ld + i);
				UNROLL
				for (int m = 0; m < j; m++) d[j] = v_fma(v_set(A[j * QT + r + m]), d[m], d[j]);
				v_store(at + j * ld + i, d[j]);
			}
		}
	}
}

/* x = (1 + A)^-T x: upwards */
static void delta_solve_back(const struct delta_tile *t, float *x)
{
	int64_t ld = t->ldv;
	for (int64_t r = t->rows - MR; r >= 0; r -= MR) {
		float *at = x + r * ld;
		const float *A = t->A + r * QT + r;
		if (r + MR < t->n) panel_columns_add(ld, t->n - r - MR, A + MR * QT, QT, at + MR * ld, ld, at, ld);
		for (int64_t i = 0; i < ld; i += VW) {
			vf d[MR];
			UNROLL
			for (int j = MR - 1; j >= 0; j--) {
				d[j] = v_load(at + j * ld + i);
				UNROLL
				for (int m = j + 1; m < MR; m++) d[j] = v_fma(v_set(A[m * QT + j]), d[m], d[j]);
				v_store(at + j * ld + i, d[j]);
			}
		}
	}
}

/* From token `first` on, n tokens: k, v, gates, D, A; then d from the state S before the chunk (NULL: zeros), in v */
static void delta_chunk(struct delta_tile *t, const struct delta_args *a, int64_t head, int64_t first, int64_t n,
	const float *S)
{
	int64_t key = head / (a->value_heads / a->key_heads), wide = delta_row(a, 1, 0) - delta_row(a, 0, 0);
	t->n = n;
	t->rows = round_up(n, MR);
	pack(t->k, t->ldk, delta_row(a, first, (a->key_heads + key) * t->dk), wide, n, t->dk, 1);
	pack(t->v, t->ldv, delta_v(a, first, head), wide, n, t->dv, 1);
	delta_gates(t, a, head, first);
	delta_decay(t);
	if (!a->correct) {
		scale_rows(t->v, t->v, t->beta, n, t->ldv);
		return;
	}
	turn(t->kt, t->k, t->ldk, n);
	lower_product(t, t->kk, t->k, t->ldk, t->kt, t->dk);
	lower_scale(t, t->A, t->kk, 1);
	if (S) rows_times(t, 0, t->kS, t->ldv, t->k, t->ldk, t->dk, S);
	for (int64_t r = 0; r < t->n; r++) {
		float *d = t->v + r * t->ldv, *kS = t->kS + r * t->ldv;
		vf e = v_set(-t->e[r]), beta = v_set(t->beta[r]);
		for (int64_t i = 0; i < t->ldv; i += VW)
			v_store(d + i, beta * (S ? v_fma(e, v_load(kS + i), v_load(d + i)) : v_load(d + i)));
	}
	delta_solve(t, t->v);
}

/* q, q k', P */
static void delta_queries(struct delta_tile *t, const struct delta_args *a, int64_t head, int64_t first)
{
	int64_t key = head / (a->value_heads / a->key_heads), wide = delta_row(a, 1, 0) - delta_row(a, 0, 0);
	pack(t->q, t->ldk, delta_row(a, first, key * t->dk), wide, t->n, t->dk, 1);
	if (!a->correct) turn(t->kt, t->k, t->ldk, t->n);
	lower_product(t, t->qk, t->q, t->ldk, t->kt, t->dk);
	lower_scale(t, t->P, t->qk, 0);
}

/* next = the state after the chunk; may be S */
static void delta_next(struct delta_tile *t, float *next, const float *S)
{
	scale_rows(t->kl, t->k, t->D + (t->n - 1) * QT, t->n, t->ldk);
	state_add(t, next, S, t->e[t->n - 1], t->kl, t->v);
}

/* Between a state of the tile and one of DK x DV elements */
static void state_get(const struct delta_tile *t, float *S, const float *from)
{
	for (int64_t r = 0; r < t->ldk; r++)
		for (int64_t i = 0; i < t->ldv; i += VW)
			v_store(S + r * t->ldv + i, r < t->dk ? v_get(from + r * t->dv + i, t->dv - i) : (vf){0});
}

static void state_put(const struct delta_tile *t, float *to, const float *S)
{
	for (int64_t r = 0; r < t->dk; r++)
		for (int64_t i = 0; i < t->dv; i += VW)
			v_put(to + r * t->dv + i, t->dv - i, S ? v_load(S + r * t->ldv + i) : (vf){0});
}

/* ---- forward ---- */

static void delta_forward(const struct delta_args *a, const struct queries *document, int64_t head, float *scratch)
{
	struct delta_tile t;
	int64_t from = document->first - (document->first - document->begin) % DELTA_CHUNK;
	float *S = NULL, *kept = a->state ? a->state + head * a->key_dim * a->value_dim : NULL;
	vf skip = v_set(a->correct ? 0 : ((const float *)a->skip)[head]);
	delta_tile_at(&t, a, 1, scratch);
	if (from > document->begin) state_get(&t, S = t.states, kept);
	for (int64_t n; from < document->end; from += n) {
		n = least(DELTA_CHUNK, document->end - from);
		delta_chunk(&t, a, head, from, n, S);
		delta_queries(&t, a, head, from);
		if (S) {
			rows_times(&t, 0, t.o, t.ldv, t.q, t.ldk, t.dk, S);
			scale_rows(t.o, t.o, t.e, t.rows, t.ldv);
		} else {
			memset(t.o, 0, (size_t)(t.rows * t.ldv) * sizeof *t.o);
		}
		lower_times(&t, t.o, t.P, t.v, t.ldv);
		for (int64_t r = from < document->first ? document->first - from : 0; r < n; r++) {
			float *o = (float *)a->o + ((from + r) * a->value_heads + head) * t.dv;
			for (int64_t i = 0; i < t.dv; i += VW) {
				vf x = v_load(t.o + r * t.ldv + i);
				if (!a->correct) x = v_fma(skip, v_get(delta_v(a, from + r, head) + i, t.dv - i), x);
				v_put(o + i, t.dv - i, x);
			}
		}
		if (n < DELTA_CHUNK || (from + n == document->end && !kept)) break;
		delta_next(&t, t.states, S);
		S = t.states;
	}
	if (kept && document->end == a->n) state_put(&t, kept, S);
}

/* ---- backward ---- */

/* turned (ldv, ldk) = the transposed of S */
static void state_turn(const struct delta_tile *t, const float *S)
{
	for (int64_t r = 0; r < t->ldk; r += VW)
		for (int64_t i = 0; i < t->ldv; i += VW) {
			vf x[VW];
			UNROLL
			for (int j = 0; j < VW; j++) x[j] = v_load(S + (r + j) * t->ldv + i);
			v_transpose(x);
			UNROLL
			for (int j = 0; j < VW; j++) v_store(t->turned + (i + j) * t->ldk + r, x[j]);
		}
}

/* g_l decays what goes from a token before l to one from l on (pairs, in P), from S to a token from l on (reads), from
 * a token before l to the next state (writes), and from S to that (through). dg_l is the sum of these alone: as a
 * difference of sums over rows and columns most of its digits may cancel. */
static void delta_decay_back(const struct delta_tile *t, float *dg, const float *reads, const float *writes,
	float through)
{
	float sum = 0;
	memset(dg, 0, QT * sizeof *dg);
	for (int64_t i = 1; i < t->n; i++, sum = 0)
		for (int64_t l = 1; l <= i; l++) {
			sum += t->P[i * QT + l - 1];
			dg[l] += sum;
		}
	for (int64_t l = t->n - 1; l >= 0; l--) dg[l] += sum += reads[l];
	sum = through;
	for (int64_t l = 0; l < t->n; l++) {
		dg[l] += sum;
		sum += writes[l];
	}
}

/* What backward keeps of a token and head, arrays (N, HV): the gradient of g; Mamba 2: then dt's by d, then skip's */
INLINE float *delta_kept_token(const struct delta_args *a, int64_t array, int64_t t, int64_t head)
{
	int64_t states = delta_kept(a) * a->value_heads * a->key_dim * a->value_dim;
	return a->work + states + (array * a->n + t) * a->value_heads + head;
}

/* r; and of its gradients dv, db, or those of dt and skip */
static void delta_back_values(const struct delta_tile *t, const struct delta_args *a, int64_t head, int64_t first,
	int have_dS)
{
	vf skip = v_set(a->correct ? 0 : ((const float *)a->skip)[head]);
	if (have_dS) {
		rows_times(t, 0, t->r, t->ldv, t->k, t->ldk, t->dk, t->dS);
		scale_rows(t->r, t->r, t->D + (t->n - 1) * QT, t->rows, t->ldv);
	} else {
		memset(t->r, 0, (size_t)(t->rows * t->ldv) * sizeof *t->r);
	}
	upper_times(t, t->r, t->P, t->d_o, t->ldv);
	if (a->correct) delta_solve_back(t, t->r);
	for (int64_t i = 0; i < t->n; i++) {
		float *dv = (float *)a->dv + ((first + i) * a->value_heads + head) * t->dv;
		const float *r = t->r + i * t->ldv, *d_o = t->d_o + i * t->ldv;
		for (int64_t j = 0; j < t->dv; j += VW) {
			vf x = v_load(r + j) * v_set(t->beta[i]);
			if (!a->correct) x = v_fma(skip, v_load(d_o + j), x);
			v_put(dv + j, t->dv - j, x);
		}
		if (a->correct) {
			((float *)a->db)[(first + i) * a->db_ld + head] = (1 - t->beta[i] / delta_beta_most(a)) *
				dot(r, t->v + i * t->ldv, t->ldv);
		} else {
			*delta_kept_token(a, 1, first + i, head) = head_dot(r, delta_v(a, first + i, head), t->dv);
			*delta_kept_token(a, 2, first + i, head) = head_dot(d_o, delta_v(a, first + i, head), t->dv);
		}
	}
}

/* dP, dA, and pairs in P */
static void delta_back_pairs(const struct delta_tile *t, int correct)
{
	turn(t->dt, t->v, t->ldv, t->n);
	lower_product(t, t->dP, t->d_o, t->ldv, t->dt, t->dv);
	lower_scale(t, t->dP, t->dP, 0);
	if (correct) {
		lower_product(t, t->dA, t->r, t->ldv, t->dt, t->dv);
		lower_scale(t, t->dA, t->dA, 1);
	}
	for (int64_t i = 0; i < t->n; i++)
		for (int64_t j = 0; j <= i; j += VW) {
			int64_t at = i * QT + j;
			vf dA = correct ? v_load(t->dA + at) * v_load(t->kk + at) : v_set(0);
			v_store(t->P + at, v_fma(v_load(t->dP + at), v_load(t->qk + at), dA));
		}
}

/* The gradients of a chunk of n tokens from `first` on, with the state S before it (NULL: zeros); t->dS is that of the
 * next state, if have_dS, and becomes that of S */
static void delta_chunk_back(struct delta_tile *t, const struct delta_args *a, int64_t head, int64_t first, int64_t n,
	const float *S, int have_dS)
{
	float reads[QT] = {0}, writes[QT] = {0}, dg[QT], through = 0;
	int64_t ldk = t->ldk, ldv = t->ldv, heads = a->value_heads, at = first * heads + head;
	delta_chunk(t, a, head, first, n, S);
	delta_queries(t, a, head, first);
	pack(t->d_o, ldv, (const float *)a->d_o + at * t->dv, heads * t->dv, n, t->dv, 1);
	delta_back_values(t, a, head, first, have_dS);
	delta_back_pairs(t, a->correct);
	memset(t->dk_, 0, (size_t)(t->rows * ldk) * sizeof *t->dk_);
	memset(t->dq, 0, (size_t)(t->rows * ldk) * sizeof *t->dq);
	if (have_dS) {
		state_turn(t, t->dS);
		rows_times(t, 0, t->dk_, ldk, t->v, ldv, t->dv, t->turned);
		scale_rows(t->dk_, t->dk_, t->D + (n - 1) * QT, t->rows, ldk);
		for (int64_t i = 0; i < n; i++) writes[i] = dot(t->k + i * ldk, t->dk_ + i * ldk, ldk);
	}
	if (S) {
		float *dkS = t->dkS;
		state_turn(t, S);
		rows_times(t, 0, t->dq, ldk, t->d_o, ldv, t->dv, t->turned);
		scale_rows(t->dq, t->dq, t->e, t->rows, ldk);
		for (int64_t i = 0; i < t->rows; i++) reads[i] = dot(t->q + i * ldk, t->dq + i * ldk, ldk);
		for (int64_t i = 0; a->correct && i < t->rows; i++) {
			vf factor = v_set(-t->beta[i] * t->e[i]);
			for (int64_t j = 0; j < ldv; j += VW) v_store(dkS + i * ldv + j, v_load(t->r + i * ldv + j) * factor);
			reads[i] += dot(dkS + i * ldv, t->kS + i * ldv, ldv);
		}
		if (a->correct) rows_times(t, 1, t->dk_, ldk, dkS, ldv, t->dv, t->turned);
		if (have_dS) through = t->e[n - 1] * dot(S, t->dS, ldk * ldv);
		scale_rows(t->kl, t->q, t->e, n, ldk);
		state_add(t, t->dS, have_dS ? t->dS : NULL, t->e[n - 1], t->kl, t->d_o);
		for (int64_t r = 0; a->correct && r < ldk; r += MR)
			panel_columns_add(ldv, n, t->k + r, ldk, dkS, ldv, t->dS + r * ldv, ldv);
	}
	lower_times(t, t->dq, t->dP, t->k, ldk);
	if (a->correct) {
		lower_times(t, t->dk_, t->dA, t->k, ldk);
		upper_times(t, t->dk_, t->dA, t->k, ldk);
	}
	upper_times(t, t->dk_, t->dP, t->q, ldk);
	spread((float *)a->dq + at * t->dk, heads * t->dk, 0, t->dq, ldk, n, t->dk, 1);
	spread((float *)a->dk + at * t->dk, heads * t->dk, 0, t->dk_, ldk, n, t->dk, 1);
	delta_decay_back(t, dg, reads, writes, through);
	for (int64_t i = 0; i < n; i++) *delta_kept_token(a, 0, first + i, head) = dg[i];
}

/* The state before a segment of a document that starts at token begin */
static float *delta_kept_at(const struct delta_args *a, int64_t begin, int64_t segment, int64_t head)
{
	int64_t at = begin / DELTA_SEGMENT + segment - 1;
	return a->work + (at * a->value_heads + head) * a->key_dim * a->value_dim;
}

/* First the states before all segments but the first. Then, from the last segment to the first, the states before its
 * chunks, and from the last chunk to the first the gradients. */
static void delta_backward(const struct delta_args *a, const struct queries *document, int64_t head, float *scratch)
{
	struct delta_tile t;
	int64_t begin = document->begin, length = document->end - begin, segments = div_up(length, DELTA_SEGMENT);
	float *S = NULL;
	delta_tile_at(&t, a, least(DELTA_STATES, div_up(length, DELTA_CHUNK)), scratch);
	for (int64_t c = 0; c < (segments - 1) * DELTA_SEGMENT; c += DELTA_CHUNK) {
		delta_chunk(&t, a, head, begin + c, DELTA_CHUNK, S);
		delta_next(&t, t.states, S);
		S = t.states;
		if ((c + DELTA_CHUNK) % DELTA_SEGMENT == 0)
			state_put(&t, delta_kept_at(a, begin, (c + DELTA_CHUNK) / DELTA_SEGMENT, head), S);
	}
	for (int64_t s = segments - 1, have_dS = 0; s >= 0; s--) {
		int64_t from = s * DELTA_SEGMENT, chunks = div_up(least(length - from, DELTA_SEGMENT), DELTA_CHUNK);
		int64_t size = t.ldk * t.ldv;
		if (s) state_get(&t, t.states, delta_kept_at(a, begin, s, head));
		for (int64_t c = 0; c + 1 < chunks; c++) {
			S = s || c ? t.states + c * size : NULL;
			delta_chunk(&t, a, head, begin + from + c * DELTA_CHUNK, DELTA_CHUNK, S);
			delta_next(&t, t.states + (c + 1) * size, S);
		}
		for (int64_t c = chunks - 1; c >= 0; c--, have_dS = 1) {
			int64_t at = from + c * DELTA_CHUNK;
			delta_chunk_back(&t, a, head, begin + at, least(DELTA_CHUNK, length - at),
				s || c ? t.states + c * size : NULL, (int)have_dS);
		}
	}
}

/* From what backward kept of tokens first .. end - 1: their da; sum: the gradients of a_log, dt_bias, skip (HV) += */
static void delta_gates_backward(const struct delta_args *a, float *sum, int64_t first, int64_t end)
{
	const float *a_log = a->a_log, *dt_bias = a->dt_bias;
	float *da_log = sum, *ddt_bias = sum + a->value_heads, *dskip = ddt_bias + a->value_heads;
	for (int64_t t = first; t < end; t++)
		for (int64_t i = 0; i < a->value_heads; i += VW) {
			int64_t n = a->value_heads - i;
			vf x = v_get((const float *)a->a + t * a->ld + i, n) + v_get(dt_bias + i, n), soft = v_softplus(x);
			vf rate = -v_exp(v_get(a_log + i, n)), d = v_get(delta_kept_token(a, 0, t, i), n) * rate;
			vf dt = a->correct ? soft : delta_step(a, soft), da = d * v_sigmoid(x);
			if (!a->correct) {
				vi within = (soft >= v_set(a->dt_min)) & (soft <= v_set(a->dt_max));
				da = (d + v_get(delta_kept_token(a, 1, t, i), n)) * v_sigmoid(x);
				da = v_select(within, da, v_set(0));
				v_put(dskip + i, n, v_get(dskip + i, n) + v_get(delta_kept_token(a, 2, t, i), n));
			}
			v_put((float *)a->da + t * a->d_ld + i, n, da);
			v_put(da_log + i, n, v_fma(d, dt, v_get(da_log + i, n)));
			v_put(ddt_bias + i, n, v_get(ddt_bias + i, n) + da);
		}
}
