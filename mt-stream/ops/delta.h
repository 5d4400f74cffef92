/* delta.h: the gated delta rule, with one gate a head or one for each channel, and Mamba 2 */
#ifndef MT_STREAM_OPS_DELTA_H
#define MT_STREAM_OPS_DELTA_H

#include "common.h"

/* The gated delta rule. Of each value head, S (DK, DV) the state, fp32:
 *     S_t = e^g_t S_(t-1) + k_t d_t',  d_t = beta_t (v_t - e^g_t S_(t-1)' k_t),  o_t = S_t' q_t
 *     beta = sigmoid(b), or with `twice` 2 sigmoid(b), g = -exp(A_log) softplus(a + dt_bias)
 * Mamba 2 (correct 0) has no correction, steps in place of beta, and a skip connection:
 *     d_t = dt_t v_t,  o_t = S_t' q_t + skip v_t,  dt = softplus(a + dt_bias), but within dt_min .. dt_max,
 *     g = -exp(A_log) dt         a dt that is not between dt_min and dt_max gives a and dt_bias no gradient
 * There q, k, v are C, B and x, key heads are groups, and DK is the state's size.
 * Kimi delta attention (`channels`, arXiv 2510.26692) has a gate for each channel of the key, so a and dt_bias have DK
 * elements a head, and e^g_t is a diagonal matrix.
 * It is computed by chunks of DELTA_CHUNK tokens, counted from the document's start.
 * Backward recomputes all it needs from q, k, v, a and b. da_log = beta da_log + gradient; ddt_bias, dskip likewise. */
enum {
	DELTA_CHUNK = 64,
	DELTA_SEGMENT = 1024 /* tokens: backward keeps the state before each segment of a document but the first */
};
struct delta_args {
	int64_t n, seq, key_heads, value_heads, key_dim, value_dim; /* DK, DV: at most 256 */
	int correct;                                                /* 1: gated DeltaNet; 0: Mamba 2 */
	int channels;                                               /* 1: Kimi delta attention; wants correct */
	int twice;                                                  /* 1: wants correct, without channels */
	float dt_min, dt_max;                                       /* Mamba 2; 0 and infinity: no limits */
	const void *qkv;   /* (N, 2 HK DK + HV DV): q | k | v, as conv leaves them */
	const void *a, *b; /* (N, HV) each, rows ld and b_ld apart; a of `channels`: (N, HV, DK); Mamba 2: without b */
	int64_t ld, b_ld;
	const void *a_log, *dt_bias; /* (HV); dt_bias of `channels`: (HV, DK) */
	const int16_t *dt_lo;        /* as dt_bias, whose low halves these are (mt_tensor.exact); NULL: it has none */
	const void *skip;            /* (HV), Mamba 2; else NULL */
	const uint32_t *starts;      /* (N): where in its row the token's document starts */
	const uint32_t *host_starts; /* host: the same as starts; valid until the micro-batch ends */
	void *o;                     /* (N, HV, DV), forward */
	/* cpu, forward (mt-sample): tokens of the first document before the first one. The last past % DELTA_CHUNK rows of
	 * them stand before qkv, a and b; no output is computed for them. `state` holds S after the last whole chunk before
	 * the first token, if past is at least a chunk; it becomes S after the last whole chunk of the last document. */
	int64_t past;
	float *state;    /* (HV, DK, DV), or NULL: the states are not wanted, and past is 0 */
	const void *d_o; /* (N, HV, DV), backward */
	void *dq, *dk;   /* (N, HV, DK), backward; dq NULL: forward */
	void *dv;        /* (N, HV, DV), backward */
	void *da, *db;   /* as a and b, rows d_ld and db_ld apart, backward; Mamba 2: without db */
	int64_t d_ld, db_ld;
	float *da_log, *ddt_bias, *dskip; /* as a_log, dt_bias and skip, backward */
	float beta;
	float *work; /* (delta_work_elems()): of backward; of a GPU, forward's, too */
};

/* States of all heads that backward keeps. A document that starts at token `begin` has those before its segments from
 * state begin / DELTA_SEGMENT on: no two documents share one. */
static inline ON_DEVICE int64_t delta_kept(const struct delta_args *a) { return (a->n - 1) / DELTA_SEGMENT; }
/* beta is less than */
static inline ON_DEVICE float delta_beta_most(const struct delta_args *a) { return a->twice ? 2 : 1; }
/* Gates of a token */
static inline ON_DEVICE int64_t delta_gates_of(const struct delta_args *a)
{
	return a->channels ? a->value_heads * a->key_dim : a->value_heads;
}
/* Numbers of a token and value head that backward keeps: the gradients of g; Mamba 2: also those of d's dt, of skip */
static inline ON_DEVICE int64_t delta_token(const struct delta_args *a)
{
	return a->channels ? a->key_dim : a->correct ? 1 : 3;
}
/* A GPU computes groups of rows side by side: as many as have DELTA_STRIPS warps, each with 16 columns of a state. Of a
 * group it computes DELTA_SEGMENT tokens at a time, a wave. */
enum { DELTA_STRIPS = 1024 };
struct delta_groups {
	int64_t groups, most;  /* most: what there is room for, so that more rows never need less */
	int64_t tokens, waves; /* tokens of a group, waves that they take */
};
static inline ON_DEVICE struct delta_groups delta_groups_of(const struct delta_args *a)
{
	int64_t rows = (a->n + a->seq - 1) / a->seq, strips = a->value_heads * ((a->value_dim + 15) / 16);
	int64_t most = strips < (int64_t)DELTA_STRIPS ? (int64_t)DELTA_STRIPS / strips : 1, each = (rows + most - 1) / most;
	struct delta_groups g = {(rows + each - 1) / each, rows < most ? rows : most, each * a->seq, 0};
	g.waves = (g.tokens + DELTA_SEGMENT - 1) / DELTA_SEGMENT;
	return g;
}
/* Room for a group's tokens of a wave, whole chunks: its last chunk may end behind it */
static inline ON_DEVICE int64_t delta_wave(const struct delta_groups *g)
{
	int64_t tokens = g->tokens < (int64_t)DELTA_SEGMENT ? g->tokens : (int64_t)DELTA_SEGMENT;
	return (tokens + 2 * DELTA_CHUNK - 1) / DELTA_CHUNK * DELTA_CHUNK;
}
/* Kimi delta attention on a GPU: a slice is as many columns of a head's state as a block computes backward, which keeps
 * the state before each DELTA_SPAN tokens of a wave, and in one such span the state of each token. */
enum { DELTA_SPAN = 32 };
static inline ON_DEVICE int64_t delta_slices(const struct delta_args *a)
{
	int64_t columns = a->key_dim > 128 ? 64 : 128;
	return (a->value_dim + columns - 1) / columns;
}
/* Tokens of a group in a wave, spans in it but the first, and tokens of a span, at most */
struct delta_spans {
	int64_t tokens, marks, span;
};
static inline ON_DEVICE struct delta_spans delta_spans_of(const struct delta_groups *g)
{
	int64_t tokens = g->tokens < (int64_t)DELTA_SEGMENT ? g->tokens : (int64_t)DELTA_SEGMENT;
	struct delta_spans s = {tokens, (tokens - 1) / DELTA_SPAN,
		tokens < (int64_t)DELTA_SPAN ? tokens : (int64_t)DELTA_SPAN};
	return s;
}
/* Elements of a token's and head's dq, dk, gradients of g, and that of beta: sums over a slice's columns */
static inline ON_DEVICE int64_t delta_sums(const struct delta_args *a) { return 3 * a->key_dim + 1; }
/* Elements of `work`: delta_token() arrays (N, HV), and these states (.., HV, DK, DV). A GPU has states between waves
 * instead; of the tokens of a wave (.., HV, 64) twice (Mamba 2: once), (.., HV, 4), and (.., HV, DV) twice; of their
 * chunks two states; and for each wave where chunks and documents begin. Kimi delta attention on a GPU has states
 * between waves, those of a wave's spans and of a span's tokens, and with several slices the sums of each for the
 * tokens of a wave. */
static inline int64_t delta_work_elems(const struct delta_args *a, int gpu)
{
	int64_t state = a->value_heads * a->key_dim * a->value_dim, all = delta_token(a) * a->n * a->value_heads;
	if (!gpu) return delta_kept(a) * state + all;
	struct delta_groups g = delta_groups_of(a);
	if (a->channels) {
		struct delta_spans s = delta_spans_of(&g);
		int64_t slices = delta_slices(a), sums = slices > 1 ? slices * delta_sums(a) : 0;
		return all + g.most * ((g.waves - 1 + s.marks + s.span) * state + s.tokens * a->value_heads * sums);
	}
	int64_t tokens = g.most * delta_wave(&g), chunks = tokens / DELTA_CHUNK;
	all += tokens * a->value_heads * ((a->correct ? 2 : 1) * DELTA_CHUNK + 4 + 2 * a->value_dim);
	return all + (g.most * (g.waves - 1) + 2 * chunks) * state + g.most * g.waves * 2 * (delta_wave(&g) + 2);
}

/* clang-format off */
#define delta_arrays(A) \
	A(elem, qkv, a->n * (2 * a->key_heads * a->key_dim + a->value_heads * a->value_dim), 0) \
	A(elem, a, (a->n - 1) * a->ld + delta_gates_of(a), 0) \
	A(elem, b, (a->n - 1) * a->b_ld + a->value_heads, 0) \
	A(weight, a_log, a->value_heads, 0) \
	A(weight, dt_bias, delta_gates_of(a), 0) \
	A(2, dt_lo, delta_gates_of(a), 0) \
	A(weight, skip, a->value_heads, 0) \
	A(elem, o, a->n * a->value_heads * a->value_dim, code == OP_DELTA_FORWARD) \
	A(elem, d_o, a->n * a->value_heads * a->value_dim, 0) \
	A(elem, dq, a->n * a->value_heads * a->key_dim, code == OP_DELTA_BACKWARD) \
	A(elem, dk, a->n * a->value_heads * a->key_dim, code == OP_DELTA_BACKWARD) \
	A(elem, dv, a->n * a->value_heads * a->value_dim, code == OP_DELTA_BACKWARD) \
	A(elem, da, (a->n - 1) * a->d_ld + delta_gates_of(a), code == OP_DELTA_BACKWARD && a->d_ld == delta_gates_of(a)) \
	A(elem, db, (a->n - 1) * a->db_ld + a->value_heads, 0) \
	A(4, da_log, a->value_heads, code == OP_DELTA_BACKWARD && a->beta == 0) \
	A(4, ddt_bias, delta_gates_of(a), code == OP_DELTA_BACKWARD && a->beta == 0) \
	A(4, dskip, a->value_heads, code == OP_DELTA_BACKWARD && a->beta == 0 && !a->correct) \
	A(4, work, delta_work_elems(a, 0), code == OP_DELTA_BACKWARD)
/* clang-format on */

#endif
