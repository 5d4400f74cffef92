/* ops.h: the operations of a layer: their arguments, which all devices share, and the functions of the cpu device.
 *
 * Letters in shapes: N tokens (rows x seq), H hidden size, NH / NKV query and key-value heads, D head size, F the MLP's
 * inner size, V vocabulary. Matrices are row-major; weights are (out, in), as Hugging Face stores them. Elements behind
 * `void *` are the device's own (dev->elem in device.h: fp32 on cpu, fp32 or bf16 on cuda), those of weights and of
 * matrices that are multiplied are operands (dev->operand). Statistics, gradients of weights and losses are fp32 or
 * wider on every device. Pointers are device memory unless they say host.
 *
 * The cpu's operations give the same bits for any number of threads in the pool: work is split into tasks whose shapes
 * depend on the problem alone, a task runs on one thread, and sums across tasks are added in a fixed order.
 */
#ifndef MT_STREAM_OPS_H
#define MT_STREAM_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "mt/types.h"

#ifdef __CUDACC__
#define ON_DEVICE __host__ __device__ /* for kernels, too */
#else
#define ON_DEVICE
#endif

static inline int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* c = a' b' + beta c [+ bias on every row] [+ add]; ld* are row strides in elements. a, b and bias are operands */
struct gemm_args {
	int64_t m, n, k;
	const void *a; /* (m, k); trans_a: (k, m) */
	int64_t lda;
	int trans_a;
	const void *b; /* (k, n); trans_b: (n, k) */
	int64_t ldb;
	int trans_b;
	void *c; /* (m, n); fp32 where `fp32` is set */
	int64_t ldc;
	float beta;       /* 0 (c is not read) or 1 */
	const void *bias; /* (n), or NULL; with beta 0 only */
	const void *add;  /* (m, n), rows ldc apart, or NULL: a residual, added last; with beta 0 only */
	int fp32;
	int exact; /* a, b and bias are fp32, whatever operands are */
	int bf16;  /* cpu: operands are bf16; the device sets it, here and below */
};

/* db = beta db + column sums of dy */
struct bias_backward_args {
	float *db; /* (n) */
	float beta;
	const void *dy; /* (m, n), rows ld apart */
	int64_t m, n, ld;
};

/* Learned positions: the row of a table that a token gets is that of its place in its row - starts, + offset. Both are
 * in bounds, which serve.c has checked, as tokens are < V. */
struct positions {
	int64_t rows, offset, seq; /* of the table; before a document's first token; tokens of a row */
	int64_t past;              /* cpu: the first token's place in its row, if not 0 (mt-sample) */
	const uint32_t *starts;    /* (N): where in its row the token's document starts; NULL: at 0 */
};

static inline ON_DEVICE int64_t position_of(const struct positions *p, int64_t t)
{
	return p->past + t % p->seq - (p->starts ? p->starts[t] : 0) + p->offset;
}

/* x = scale w[tokens] + table[positions] */
struct embed_forward_args {
	void *x;                /* (N, H) */
	const void *w;          /* (V, H) */
	const uint32_t *tokens; /* (N) */
	int64_t n, h;
	float scale;       /* multiplies the rows of w */
	const void *table; /* (at.rows, H), or NULL: zeros */
	struct positions at;
	int bf16; /* cpu: w and table are */
};

/* dw[t] += scale times the sum of dx over the tokens t; dtable[p] += that over the tokens at position p. Both are added
 * in ascending order of tokens */
struct embed_backward_args {
	float *dw;              /* (V, H) */
	float beta;             /* 0: dw and dtable are cleared first */
	const void *dx;         /* (N, H) */
	const uint32_t *tokens; /* (N) */
	int64_t n, h, vocab;
	int64_t pad; /* this row of dw gets no gradient (nn.Embedding's padding_idx); -1: none */
	float scale;
	float *dtable; /* (at.rows, H), or NULL: there is none */
	struct positions at;
};

/* Row by row. RMSNorm: y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps).
 * LayerNorm: y = (x - m) rstd w + b, m = mean(x), rstd = 1 / sqrt(mean((x - m)^2) + eps). */
struct norm_forward_args {
	void *y;       /* (N, H) */
	uint16_t *as;  /* cpu: y rounded to bf16, too; here and below the device sets it; NULL: it is not */
	float *rstd;   /* (N) */
	const void *x; /* (N, H) */
	const void *w; /* (H); NULL: ones */
	int64_t n, h;
	float eps;
	float *mean;   /* (N), written by LayerNorm; NULL: RMSNorm */
	const void *b; /* (H), LayerNorm only; NULL: zeros */
	int one;       /* multiply by 1 + w, not w */
	int64_t ld;    /* from a row of x to the next one; 0: h */
};

/* dx = gradient, or dx += gradient where add_dx; dw = beta dw + gradient; db likewise */
struct norm_backward_args {
	void *dx; /* (N, H) */
	int add_dx;
	float *dw; /* (H); NULL: not wanted, or without w */
	float beta;
	const void *dy;    /* (N, H); dx may be dy */
	const void *x;     /* (N, H) */
	const void *w;     /* (H) */
	const float *rstd; /* (N) */
	int64_t n, h;
	const float *mean; /* (N), as forward wrote it; NULL: RMSNorm */
	float *db;         /* (H); NULL: without b */
	int one;
	int64_t ld; /* as above, of x and dx */
};

/* Rotary positions (arXiv 2104.09864) of q and k, in place, and the RMSNorms that some families have before or after
 * them. The position of token t is its place in its row - starts[t]. In this order: k_is_v, norms, rotation,
 * temperature; with norm_after the norms of q and k follow the rotation. */
struct rope_args {
	int64_t n, seq, heads, kv_heads, dim; /* seq: tokens of a row; dim: at most 512 */
	int64_t rope_dim;          /* the first elements of a head, which turn: even, at most dim; 0: none, no positions */
	int neighbours;            /* element 2 i pairs with 2 i + 1; else i with i + rope_dim / 2 (rotate_half) */
	const float *cos, *sin;    /* (positions, rope_dim / 2), multiplied by the attention scaling already */
	const uint32_t *starts;    /* (N): where in its row the token's document starts */
	const void *qnorm, *knorm; /* (D), or with row_norm (NH D), (NKV D); NULL: no norm */
	float eps;
	int row_norm;   /* one norm of all q heads together, one of all k heads; else each head has its own */
	int norm_after; /* the norms of q and k follow the rotation; not with row_norm */
	int norm_one;   /* norms multiply by 1 + w */
	int norm_plain; /* q and k have norms of heads, without weights */
	int v_norm;     /* each head of v has a norm without weight; only where q and k have norms of heads */
	int k_is_v;     /* forward: v = k as it comes in. backward: v's gradient is added to that of k as it came in */
	/* q *= 1 + temperature * log(1 + floor((position + from) / positions)), where temperature is not 0 */
	float temperature;
	int64_t temperature_positions, temperature_from;
	int64_t past; /* cpu: the first token's place in its row, if not 0 (mt-sample); cos and sin start there already */
	void *qkv;    /* (N, (NH + 2 NKV) D); backward: the gradient of the results becomes that of the input */
	int64_t ld;   /* from a token's row of qkv to the next one's; 0: (NH + 2 NKV) D */
	/* what the norms got, and their rstd; norms only. Forward writes both, backward reads them. Heads: q's, k's,
	 * with v_norm also v's; rstd with row_norm: q's, k's */
	void *pre;              /* (N, heads D) */
	float *rstd;            /* (N, heads), or with row_norm (N, 2) */
	float *dqnorm, *dknorm; /* as qnorm, knorm; backward with norms: d = beta d + gradient */
	float beta;
};

/* Have q and k norms? */
static inline ON_DEVICE int rope_norms(const struct rope_args *a) { return a->qnorm || a->norm_plain; }
/* Heads that have a norm */
static inline ON_DEVICE int64_t rope_row(const struct rope_args *a)
{
	return a->ld ? a->ld : (a->heads + 2 * a->kv_heads) * a->dim;
}
static inline int64_t rope_normed(const struct rope_args *a) { return a->heads + (a->v_norm ? 2 : 1) * a->kv_heads; }
/* Elements of qnorm and of knorm */
static inline int64_t rope_q_weights(const struct rope_args *a) { return (a->row_norm ? a->heads : 1) * a->dim; }
static inline int64_t rope_k_weights(const struct rope_args *a) { return (a->row_norm ? a->kv_heads : 1) * a->dim; }
/* Layers without positions (NoPE), and without anything else */
static inline int rope_is_nothing(const struct rope_args *a)
{
	return !a->rope_dim && !rope_norms(a) && !a->k_is_v && a->temperature == 0;
}

/* Causal attention inside documents: o = softmax(s) v. s = q k' scale, or with a cap s = cap tanh(q k' scale / cap).
 * Nothing of size seq x seq is kept. */
struct attention_args {
	int64_t n, seq, heads, kv_heads, dim; /* dim: at most 512 */
	int64_t dim_v;                        /* of a head of v and o, at most 512; 0: dim */
	int64_t window;                       /* a token sees itself and window - 1 tokens before it; 0: no window */
	/* cpu, forward: tokens of the first document before the first one; their rows stand before qkv, and no output is
	 * computed for them. A multiple of 64, or n is 1: tiles are counted from the document's start */
	int64_t past;
	float scale;
	const uint32_t *starts; /* (N): where in its row the token's document starts */
	const void *qkv;        /* (N, (NH + NKV) D + NKV DV); DV: dim_v */
	void *o;                /* (N, NH DV); forward writes it, backward reads it */
	float *lse;             /* (N, NH): log-sum-exp of the scaled scores, likewise */
	const void *d_o;        /* (N, NH DV), backward */
	void *dqkv;             /* as qkv, backward; NULL: forward */
	float cap;              /* 0: none */
	const void
		*sinks; /* (NH): each is one more score of every query of its head, of a token whose v is 0; NULL: none */
	/* For an attention backend of the device (device.h): */
	const uint32_t *host_starts; /* host: the same as starts; valid until the micro-batch ends */
	void *work;                  /* (work_bytes), as attention_need reported; NULL: no backend was selected */
	size_t work_bytes;
};

static inline ON_DEVICE int64_t attention_dim_v(const struct attention_args *a) { return a->dim_v ? a->dim_v : a->dim; }
/* Elements of a token in qkv */
static inline ON_DEVICE int64_t attention_row(const struct attention_args *a)
{
	return (a->heads + a->kv_heads) * a->dim + a->kv_heads * attention_dim_v(a);
}

/* dsinks = beta dsinks + gradient: of head j, minus the sum over tokens of exp(sinks[j] - lse) (d_o . o) */
struct sinks_backward_args {
	float *dsinks; /* (NH) */
	float beta;
	const void *sinks;   /* (NH) */
	const void *o, *d_o; /* (N, NH D) */
	const float *lse;    /* (N, NH), as attention's forward wrote it, with sinks */
	int64_t n, heads, dim;
};

/* The MLP's inner function (mt/types.h). Gated: gu (N, 2F) is gate | up; ungated: gu (N, F) */
static inline int activation_gated(int form) { return form < MT_RELU2; }

struct activation_args {
	void *y; /* (N, F); backward: forward's output again, for the gradient of down's weights; may be dy */
	const void *gu;
	int64_t n, f;
	enum mt_ffn form;
	int interleaved;      /* gated: gate is gu's elements 0, 2, 4, ..., up the others */
	const void *slope[2]; /* MT_XIELU: its two parameters, positive side first, (1) each, as in the file */
	const void *dy;       /* (N, F), backward */
	void *dgu;            /* the gradient of gu, backward; may be gu. NULL: forward */
	uint16_t *as;         /* cpu: y, or backward dgu, rounded to bf16 */
	float *dslope[2];     /* MT_XIELU, backward: (1) each, d = beta d + gradient */
	float beta;
};

/* Elements of a row of gu */
static inline int64_t activation_width(const struct activation_args *a)
{
	return activation_gated(a->form) ? 2 * a->f : a->f;
}

/* ---- mixture of experts ----
 *
 * Letters: E experts, K experts of each token, R = N K rows of experts: one for each token and expert of its. A token's
 * experts are numbered 0 .. K - 1, best first; expert k of token t is slot t K + k. The experts' rows stand expert by
 * expert, each expert's by token: rows first[e] .. first[e + 1] - 1 are expert e's. */

/* dst = the fp32 numbers that w and lo are: bits (w << 16) + lo, the master weights of a bf16 run */
struct join_args {
	float *dst;        /* (n) */
	const void *w;     /* (n) */
	const int16_t *lo; /* (n) */
	int64_t n;
	int bf16; /* cpu: w is */
};

/* Forward: from logits to each token's experts and their weights, and the rows of experts. Scores are softmax or
 * sigmoid of the logits; the best K experts by score + correction are chosen, of the best `groups_used` of `groups`
 * groups (by the sum of their two best, or the best alone); equal ones by their number. Their weights are the scores;
 * divided by their sum, which counts as `floor` at least, plus eps, if renormalise; times scale. MT_TOP_SOFTMAX,
 * MT_TOP_SIGMOID: the best K by logit, weights are the softmax of theirs, or their sigmoids (not renormalised). Then
 * times the expert's factor. Backward: from the gradient of the weights to that of the logits, and of the factors (not
 * with MT_TOP_...). */
struct route_args {
	int64_t n, experts, per_token;
	enum mt_score score;
	int renormalise;
	float floor, eps, scale;
	int64_t groups, groups_used; /* groups 1 or less: no groups */
	int by_best;                 /* a group's score is that of its best expert */
	const void *correction;      /* (E), or NULL: zeros; exact: fp32 */
	float *scores;               /* (N, E): forward reads logits and writes scores (MT_TOP_...: leaves them) */
	float *weight;               /* (N, K), in the order of slots */
	uint32_t *expert;            /* (N, K) */
	uint32_t *slot;              /* (R): of each row; NULL: rows are not wanted */
	uint32_t *row;               /* (N, K): of each slot */
	uint32_t *first;             /* (E + 1) */
	const float *dweight;        /* (N, K), backward */
	void *dlogits;               /* (N, E), backward; exact: fp32 */
	int exact;
	const void *factor;   /* (E), or NULL: ones */
	float *dfactor, beta; /* (E), backward; NULL: not wanted */
};

/* y's row r = x's row of the token whose slot it is: slot[r] / K; times the slot's weight */
struct dispatch_args {
	void *y;              /* (R, H) */
	const void *x;        /* (N, H) */
	const uint32_t *slot; /* (R) */
	int64_t rows, per_token, h;
	const float *weight; /* (N, K), or NULL: ones */
};

/* For each expert e, with m rows. Forward (sum 0), on its rows of a and c: c = a b_e + bias_e, b_e (k, n), or (n, k) if
 * trans_b. Gradients of weights (sum 1): c_e (k, n) = beta c_e + a' b over its rows of a (R, k) and b (R, n). b_e, c_e
 * and bias_e are `stride` elements apart. All rows of these experts together: `rows`, from row `begin` on. */
struct grouped_gemm_args {
	int64_t experts, begin, rows, n, k;
	const uint32_t *first; /* (E + 1) */
	const void *a;
	int64_t lda;
	const void *b;
	int64_t ldb;
	int trans_b;
	void *c; /* fp32 if sum */
	int64_t ldc;
	int64_t stride;
	const void *bias; /* NULL: none; sum 0 only */
	int64_t bias_stride;
	int sum;
	float beta; /* sum 1 only */
	int bf16;   /* as of gemm_args */
};

/* The GEMM of expert e, whose rows begin at `row`, on operands of `size` bytes; sum: a->sum, a constant in kernels */
static inline ON_DEVICE struct gemm_args gemm_of_expert(const struct grouped_gemm_args *a, int sum, int64_t e,
	int64_t row, int64_t rows, int64_t size)
{
	struct gemm_args g = {};
	g.n = a->n;
	g.a = (const char *)a->a + row * a->lda * size;
	g.lda = a->lda;
	g.ldb = a->ldb;
	g.ldc = a->ldc;
	g.bf16 = a->bf16;
	if (sum) {
		g.m = a->k;
		g.k = rows;
		g.trans_a = 1;
		g.b = (const char *)a->b + row * a->ldb * size;
		g.c = (float *)a->c + e * a->stride;
		g.beta = a->beta;
		return g;
	}
	g.m = rows;
	g.k = a->k;
	g.b = (const char *)a->b + e * a->stride * size;
	g.trans_b = a->trans_b;
	g.c = (float *)a->c + row * a->ldc;
	g.bias = a->bias ? (const char *)a->bias + e * a->bias_stride * size : NULL;
	return g;
}

/* For each expert: db_e (n) = beta db_e + column sums of its rows of dy (R, n). db_e are `stride` elements apart. */
struct grouped_bias_backward_args {
	float *db;
	int64_t stride;
	float beta;
	const void *dy;
	const uint32_t *first;
	int64_t experts, n;
};

/* y's row t = the sum over k of weight[t, k] x[row[t, k]] + add's row t. The sum goes by experts: in ascending order of
 * rows. So it has the same bits if a window of experts is added at a time, in ascending order: then only rows *from to
 * *to - 1 are summed, `sum` holds the earlier windows' result, and all but the last window write a partial sum. */
struct combine_args {
	void *y;             /* (N, H); may be add; partial: fp32, and may be sum */
	const void *add;     /* (N, H), or NULL: zeros */
	const void *x;       /* (R, H) */
	const float *weight; /* (N, K), or NULL: ones */
	const uint32_t *row; /* (N, K), or NULL: rows are slots */
	int64_t n, per_token, h;
	const uint32_t *from, *to; /* (1) each: where the window's rows begin and end; NULL: all rows */
	const float *sum;          /* (N, H), or NULL: zeros */
	int partial;
};

/* Backward of combine and of the experts' activation, for experts' outputs o = y w' + bias. On entry dy and dgu are
 * the gradients of y and gate | up for weights of 1, and do's rows the gradients of the tokens' outputs. dweight of
 * a slot = do . o = y . dy + do . bias. Then dgu and y, or with a bias dgu and do, of its row are multiplied by its
 * weight: so that the gradients of weights are those of products, do' y and dgu' x. Weights that multiply inputs: y is
 * the inputs without them, dy their gradients, and there is no dgu (g 0). */
struct combine_backward_args {
	float *dweight;       /* (N, K), in the order of slots */
	const float *weight;  /* (N, K) */
	const uint32_t *slot; /* (R), or NULL: rows are slots */
	void *y;              /* (R, F) */
	const void *dy;       /* (R, F) */
	void *dgu;            /* (R, G) */
	int64_t rows, f, g;
	const void *bias; /* of expert e: bias_stride e elements on; NULL: none, and d_o is not used */
	int64_t bias_stride, h;
	void *d_o;              /* (R, H) */
	const uint32_t *expert; /* (N, K), with bias */
	int bf16;               /* cpu: bias is */
};

/* The auxiliary loss and the z-loss of routers. p = softmax(logits). Forward: adds to sums, over the tokens that count:
 * to sums[e] 1 if e is of the K experts with the largest p (rounded to fp32; equal ones by their number), whatever the
 * router chose; to sums[E + e] p[e]; to sums[2 E] logsumexp(logits)^2. Backward: dlogits += the gradient of
 * aux * (sum over e of sums[e] p[e]) + z * logsumexp(logits)^2 of each token that counts; sums[e] is a constant. */
struct balance_args {
	int64_t n, experts, per_token;
	const float *logits;     /* (N, E) */
	const uint32_t *counted; /* (N): 1, or 0: padding, which does not count */
	double *sums;            /* (2 E + 1) */
	double aux, z;           /* backward */
	void *dlogits;           /* (N, E), backward; exact: fp32 */
	int exact;
};

/* Some columns of a matrix: dst = src, or dst += src where add */
struct columns_args {
	void *dst; /* (N, width), rows dst_ld apart */
	const void *src;
	int64_t n, width, dst_ld, src_ld;
	int add;
};

/* y = (add + scale x) factor, element by element; y may be x or add */
struct scaled_add_args {
	void *y;            /* (N) */
	const void *x;      /* (N) */
	const void *add;    /* (N), or NULL: zeros */
	const void *factor; /* (1), or NULL: 1 */
	int64_t n;
	float scale;
	int64_t width, ld; /* y, x and add are rows of `width` elements, ld apart; 0: all one row */
};

/* logits = cap tanh(scale logits / cap), or scale logits if cap is 0; in place */
struct cap_logits_args {
	void *logits; /* (N); fp32 where `fp32` is set */
	int64_t n;
	float scale, cap;
	int fp32;
};

struct loss {
	double sum;
	int64_t targets;
};

/* loss += the rows' -log softmax(logits)[target] in fp64, times their weights, and the number of targets */
struct cross_entropy_args {
	/* (N, V); backward: becomes (softmax - onehot) scale weight, and 0 in rows without target or of weight 0 */
	void *logits;
	uint16_t *as;            /* cpu: the logits that they become, rounded to bf16 */
	const uint32_t *targets; /* (N); UINT32_MAX: no target */
	const float *weights;    /* (N); NULL: 1 each */
	int64_t n, vocab;
	float scale;
	int backward;
	struct loss *loss; /* (1) */
	/* (N) of each row, 0 without target, or NULL. Not NULL: logits are fp32, and not backward; minus the loss (-0 for
	 * 0) where no token is more likely than the target, and none before it as likely */
	double *losses;
	/* backward, if not 0: logits were scaled and capped by OP_CAP_LOGITS, and the gradient is wanted of what they were
	 * before: times logit_scale (1 - (logit / cap)^2) */
	float logit_scale, cap;
};

/* ---- mixers beside attention: gated DeltaNet (arXiv 2412.06464), as Qwen3-Next and Qwen3.5 have it; Mamba 2 (arXiv
 * 2405.21060); and gates ----
 *
 * Letters: HK key heads, HV value heads, DK and DV their sizes. R = HV / HK value heads, one after another, share a key
 * head. State and convolution begin at zero with each document. */

/* y = f(u), u_t = bias + the sum over j < width of w_j x_(t - width + 1 + j), each channel alone, inside the document;
 * f: silu, or nothing. Then the first heads of y, `dim` elements each, are normed: y / sqrt(y . y + 1e-6); q heads come
 * first and are multiplied by dim^-1/2, too. All other channels stay as f leaves them. With `unnormed` heads, theirs do
 * as well (Mamba 2).
 * Backward: the gradients of the q and k heads come for each value head: the R of a key head are added in their order.
 * dx = gradient; dw = beta dw + gradient; dbias likewise.
 * With factors (LFM2, no heads): x counts times `before`, and y times `after`. */
struct conv_args {
	int64_t n, seq, channels, width; /* seq: tokens of a row; width: at most 4 */
	int64_t q_heads, k_heads, dim;   /* 0 heads: none; backward: q_heads is k_heads; dim: at most 256 */
	int unnormed;                    /* heads have no norm and no factor */
	int silu;
	const void *x; /* (N, channels), rows ld apart */
	int64_t ld;
	const void *before, *after; /* as x; both or NULL */
	const void *w;              /* (channels, width) */
	const void *bias;           /* (channels), or NULL: zeros */
	const uint32_t *starts;     /* (N): where in its row the token's document starts */
	void *y;                    /* (N, channels), forward */
	/* cpu, forward (mt-sample): tokens of the first document before the first one; their rows stand before x. y of the
	 * last `redo` of them is computed, too, and stands before y. */
	int64_t past, redo;
	int64_t value_heads; /* backward: HV, a multiple of k_heads */
	const void *dq, *dk; /* (N, HV, dim), backward */
	const void *dv;      /* (N, channels - (q_heads + k_heads) dim), backward */
	void *dx;            /* (N, channels), rows dx_ld apart, backward; NULL: forward */
	int64_t dx_ld;
	void *dbefore, *dafter; /* as dx */
	float *dw;              /* (channels, width) */
	float *dbias;           /* (channels), with bias */
	float beta;
};

/* The gated delta rule. Of each value head, S (DK, DV) the state, fp32:
 *     S_t = e^g_t S_(t-1) + k_t d_t',  d_t = beta_t (v_t - e^g_t S_(t-1)' k_t),  o_t = S_t' q_t
 *     beta = sigmoid(b), g = -exp(A_log) softplus(a + dt_bias)
 * Mamba 2 (correct 0) has no correction, steps in place of beta, and a skip connection:
 *     d_t = dt_t v_t,  o_t = S_t' q_t + skip v_t,  dt = softplus(a + dt_bias), but within dt_min .. dt_max,
 *     g = -exp(A_log) dt         a dt that is not between dt_min and dt_max gives a and dt_bias no gradient
 * There q, k, v are C, B and x, key heads are groups, and DK is the state's size.
 * It is computed by chunks of DELTA_CHUNK tokens, counted from the document's start.
 * Backward recomputes all it needs from q, k, v, a and b. da_log = beta da_log + gradient; ddt_bias, dskip likewise. */
enum {
	DELTA_CHUNK = 64,
	DELTA_SEGMENT = 1024 /* tokens: backward keeps the state before each segment of a document but the first */
};
struct delta_args {
	int64_t n, seq, key_heads, value_heads, key_dim, value_dim; /* DK, DV: at most 256 */
	int correct;                                                /* 1: gated DeltaNet; 0: Mamba 2 */
	float dt_min, dt_max;                                       /* Mamba 2; 0 and infinity: no limits */
	const void *qkv;   /* (N, 2 HK DK + HV DV): q | k | v, as conv leaves them */
	const void *a, *b; /* (N, HV) each, rows ld apart; Mamba 2: without b */
	int64_t ld;
	const void *a_log, *dt_bias; /* (HV) */
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
	void *da, *db;   /* (N, HV), rows d_ld apart, backward; Mamba 2: without db */
	int64_t d_ld;
	float *da_log, *ddt_bias, *dskip; /* (HV), backward */
	float beta;
	float *work; /* (delta_work_elems()): of backward; of a GPU, forward's, too */
};

/* States of all heads that backward keeps. A document that starts at token `begin` has those before its segments from
 * state begin / DELTA_SEGMENT on: no two documents share one. */
static inline ON_DEVICE int64_t delta_kept(const struct delta_args *a) { return (a->n - 1) / DELTA_SEGMENT; }
/* Numbers of a token and value head that backward keeps: the gradient of g; Mamba 2: also that of d's dt, and skip's */
static inline ON_DEVICE int64_t delta_token(const struct delta_args *a) { return a->correct ? 1 : 3; }
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
/* Elements of `work`: delta_token() arrays (N, HV), and these states (.., HV, DK, DV). A GPU has states between waves
 * instead; of the tokens of a wave (.., HV, 64) twice (Mamba 2: once), (.., HV, 4), and (.., HV, DV) twice; of their
 * chunks two states; and for each wave where chunks and documents begin. */
static inline int64_t delta_work_elems(const struct delta_args *a, int gpu)
{
	int64_t state = a->value_heads * a->key_dim * a->value_dim, all = delta_token(a) * a->n * a->value_heads;
	if (!gpu) return delta_kept(a) * state + all;
	struct delta_groups g = delta_groups_of(a);
	int64_t tokens = g.most * delta_wave(&g), chunks = tokens / DELTA_CHUNK;
	all += tokens * a->value_heads * ((a->correct ? 2 : 1) * DELTA_CHUNK + 4 + 2 * a->value_dim);
	return all + (g.most * (g.waves - 1) + 2 * chunks) * state + g.most * g.waves * 2 * (delta_wave(&g) + 2);
}

/* Head by head: y = w o rstd silu(z), rstd = 1 / sqrt(mean(o^2) + eps). With gate_first: y = w h rstd, h = o silu(z),
 * rstd = 1 / sqrt(mean(h^2) + eps). Without w there is no norm: y = o silu(z).
 * Backward: d_o and dz = gradients, dw = beta dw + gradient */
struct gated_norm_args {
	int64_t n, heads, dim;
	float eps;
	int gate_first;
	int all_heads; /* w is (heads dim): each head has its own */
	const void *o; /* (N, heads dim) */
	const void *z; /* (N, heads dim), rows ld apart */
	int64_t ld;
	const void *w;  /* (dim), see all_heads; NULL: no norm */
	void *y;        /* (N, heads dim); backward: forward's output again, which may be dy; NULL: not wanted */
	const void *dy; /* (N, heads dim), backward */
	void *d_o;      /* (N, heads dim), backward; may be dy if y is not. NULL: forward */
	void *dz;       /* (N, heads dim), rows dz_ld apart, backward */
	int64_t dz_ld;
	float *dw; /* as w, backward */
	float beta;
};

/* Elements of w */
static inline ON_DEVICE int64_t gated_norm_weights(const struct gated_norm_args *a)
{
	return !a->w ? 0 : a->all_heads ? a->heads * a->dim : a->dim;
}

/* y = o sigmoid(gate). Backward: d_o = dy s, dgate = dy o s (1 - s), s = sigmoid(gate) */
struct gate_args {
	int64_t n, width;
	const void *o;    /* (N, width) */
	const void *gate; /* (N, width), rows ld apart */
	int64_t ld;
	void *y;        /* (N, width); forward: may be o; backward: as of gated_norm_args */
	const void *dy; /* (N, width), backward */
	void *d_o;      /* (N, width), backward; may be dy if y is not. NULL: forward */
	void *dgate;    /* (N, width), rows dgate_ld apart, backward; may be gate */
	int64_t dgate_ld;
};

/* Between the projections of multi-head latent attention (arXiv 2405.04434) and attention, whose k has parts that do
 * not turn, and one part of rope_dim elements that does and that all heads share. kv has, head by head, k's first part
 * and v. Forward: q's last rope_dim elements turn, all of q is multiplied by the temperature (rope_args), and k and v
 * are written. Backward: the gradients of q, k and v become those of q before it, of kv and of kr, to which the heads
 * add in their order. */
struct mla_args {
	int64_t n, seq, heads, dim, rope_dim, dim_v; /* of a head of q and k: dim, of which rope_dim turn; of v: dim_v */
	int neighbours;                              /* these, and temperature, and past: as of rope_args */
	const float *cos, *sin;
	const uint32_t *starts;
	float temperature;
	int64_t temperature_positions;
	int64_t past;
	void *qkv; /* (N, heads (2 dim + dim_v)): q | k | v, or their gradients */
	void *kv;  /* (N, heads (dim - rope_dim + dim_v)): forward reads it, backward writes its gradient */
	void *kr;  /* (N, rope_dim), rows ld apart: likewise */
	int64_t ld;
};

/* The operations of a layer but for GEMM: the code (OP_...), the function (op_... of the cpu, cuda_... of a GPU), its
 * arguments (their type, and their name in struct op), and the name in traces and messages */
/* clang-format off */
#define OPS(f) \
	f(BIAS_BACKWARD, bias_backward, bias_backward, "bias backward") \
	f(EMBED_FORWARD, embed_forward, embed_forward, "embedding forward") \
	f(EMBED_BACKWARD, embed_backward, embed_backward, "embedding backward") \
	f(NORM_FORWARD, norm_forward, norm_forward, "norm forward") \
	f(NORM_BACKWARD, norm_backward, norm_backward, "norm backward") \
	f(ROPE_FORWARD, rope_forward, rope, "rope forward") \
	f(ROPE_BACKWARD, rope_backward, rope, "rope backward") \
	f(ATTENTION_FORWARD, attention_forward, attention, "attention forward") \
	f(ATTENTION_BACKWARD, attention_backward, attention, "attention backward") \
	f(ACTIVATION_FORWARD, activation_forward, activation, "activation forward") \
	f(ACTIVATION_BACKWARD, activation_backward, activation, "activation backward") \
	f(SINKS_BACKWARD, sinks_backward, sinks_backward, "sinks backward") \
	f(SCALED_ADD, scaled_add, scaled_add, "scaled add") \
	f(CAP_LOGITS, cap_logits, cap_logits, "cap logits") \
	f(CROSS_ENTROPY, cross_entropy, cross_entropy, "cross-entropy")
/* Those of a mixture of experts */
#define EXPERT_OPS(f) \
	f(JOIN, join, join, "join") \
	f(ROUTE_FORWARD, route_forward, route, "route forward") \
	f(ROUTE_BACKWARD, route_backward, route, "route backward") \
	f(DISPATCH, dispatch, dispatch, "dispatch") \
	f(GROUPED_GEMM, grouped_gemm, grouped_gemm, "grouped GEMM") \
	f(GROUPED_BIAS_BACKWARD, grouped_bias_backward, grouped_bias_backward, "grouped bias backward") \
	f(COMBINE, combine, combine, "combine") \
	f(COMBINE_BACKWARD, combine_backward, combine_backward, "combine backward")
/* Those of the auxiliary loss and the z-loss */
#define BALANCE_OPS(f) \
	f(BALANCE_FORWARD, balance_forward, balance, "balance forward") \
	f(BALANCE_BACKWARD, balance_backward, balance, "balance backward")
/* Those of mixers beside attention, and of gates */
#define MIXER_OPS(f) \
	f(CONV_FORWARD, conv_forward, conv, "convolution forward") \
	f(CONV_BACKWARD, conv_backward, conv, "convolution backward") \
	f(DELTA_FORWARD, delta_forward, delta, "delta rule forward") \
	f(DELTA_BACKWARD, delta_backward, delta, "delta rule backward") \
	f(GATED_NORM_FORWARD, gated_norm_forward, gated_norm, "gated norm forward") \
	f(GATED_NORM_BACKWARD, gated_norm_backward, gated_norm, "gated norm backward") \
	f(GATE_FORWARD, gate_forward, gate, "gate forward") \
	f(GATE_BACKWARD, gate_backward, gate, "gate backward") \
	f(COLUMNS, columns, columns, "columns") \
	f(MLA_FORWARD, mla_forward, mla, "latents forward") \
	f(MLA_BACKWARD, mla_backward, mla, "latents backward")
/* What an operation writes and does not read: its code, its arguments `a`, when it does so, where, how many elements of
 * how many bytes: elem of the device's, operand of operands, 4 of fp32. Device chaos overwrites all of it before. What
 * is not here is partly kept, or read too. */
#define WRITTEN(W) \
	W(COPY, copy, 1, a->dst, a->bytes, 1) \
	W(WEIGHTS_IN, weights_in, 1, a->dst, a->n, operand) \
	W(GRADS_OUT, grads_out, 1, a->dst, a->n, mt_dtype_bytes(a->to)) \
	W(NARROW, narrow, 1, a->dst, a->n, operand) \
	W(GEMM, gemm, a->beta == 0 && a->ldc == a->n && a->add != a->c, a->c, a->m * a->n, elem) \
	W(BIAS_BACKWARD, bias_backward, a->beta == 0, a->db, a->n, 4) \
	W(EMBED_FORWARD, embed_forward, 1, a->x, a->n * a->h, elem) \
	W(EMBED_BACKWARD, embed_backward, a->beta == 0, a->dw, a->vocab * a->h, 4) \
	W(EMBED_BACKWARD, embed_backward, a->beta == 0, a->dtable, a->at.rows * a->h, 4) \
	W(NORM_FORWARD, norm_forward, 1, a->y, a->n * a->h, elem) \
	W(NORM_FORWARD, norm_forward, 1, a->rstd, a->n, 4) \
	W(NORM_FORWARD, norm_forward, 1, a->mean, a->n, 4) \
	W(NORM_BACKWARD, norm_backward, !a->add_dx && !a->ld && a->dx != a->dy, a->dx, a->n * a->h, elem) \
	W(NORM_BACKWARD, norm_backward, a->beta == 0 && a->w, a->dw, a->h, 4) \
	W(NORM_BACKWARD, norm_backward, a->beta == 0 && a->mean, a->db, a->h, 4) \
	W(ROPE_FORWARD, rope, rope_norms(a), a->pre, a->n * rope_normed(a) * a->dim, elem) \
	W(ROPE_FORWARD, rope, rope_norms(a), a->rstd, a->n * (a->row_norm ? 2 : rope_normed(a)), 4) \
	W(ROPE_BACKWARD, rope, a->qnorm && a->beta == 0, a->dqnorm, rope_q_weights(a), 4) \
	W(ROPE_BACKWARD, rope, a->qnorm && a->beta == 0, a->dknorm, rope_k_weights(a), 4) \
	W(ATTENTION_FORWARD, attention, 1, a->o, a->n * a->heads * attention_dim_v(a), elem) \
	W(ATTENTION_FORWARD, attention, 1, a->lse, a->n * a->heads, 4) \
	W(ATTENTION_BACKWARD, attention, 1, a->dqkv, a->n * attention_row(a), elem) \
	W(ACTIVATION_FORWARD, activation, 1, a->y, a->n * a->f, elem) \
	W(ACTIVATION_BACKWARD, activation, a->dgu != a->gu, a->dgu, a->n * activation_width(a), elem) \
	W(ACTIVATION_BACKWARD, activation, a->y != a->dy, a->y, a->n * a->f, elem) \
	W(ACTIVATION_BACKWARD, activation, a->form == MT_XIELU && a->beta == 0, a->dslope[0], 1, 4) \
	W(ACTIVATION_BACKWARD, activation, a->form == MT_XIELU && a->beta == 0, a->dslope[1], 1, 4) \
	W(SINKS_BACKWARD, sinks_backward, a->beta == 0, a->dsinks, a->heads, 4) \
	W(SCALED_ADD, scaled_add, !a->width && a->y != a->x && a->y != a->add, a->y, a->n, elem) \
	W(COLUMNS, columns, !a->add && a->dst_ld == a->width, a->dst, a->n * a->width, elem) \
	W(JOIN, join, 1, a->dst, a->n, 4) \
	W(ROUTE_FORWARD, route, 1, a->weight, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, 1, a->expert, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, a->slot, a->row, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, a->slot, a->slot, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, a->slot, a->first, a->experts + 1, 4) \
	W(ROUTE_BACKWARD, route, 1, a->dlogits, a->n * a->experts, a->exact ? 4 : elem) \
	W(ROUTE_BACKWARD, route, a->beta == 0, a->dfactor, a->experts, 4) \
	W(DISPATCH, dispatch, 1, a->y, a->rows * a->h, elem) \
	/* sum: between experts' gradients are others' */ \
	W(GROUPED_GEMM, grouped_gemm, !a->sum, (char *)a->c + (size_t)(a->begin * a->n) * elem, a->rows * a->n, elem) \
	W(GROUPED_GEMM, grouped_gemm, a->sum && a->beta == 0, a->c, a->k * a->n, 4) \
	W(GROUPED_BIAS_BACKWARD, grouped_bias_backward, a->beta == 0, a->db, a->n, 4) \
	W(COMBINE, combine, a->y != a->add && a->y != a->sum, a->y, a->n * a->h, elem) \
	/* with slots, the rows may be a window's, whose slots are anywhere */ \
	W(COMBINE_BACKWARD, combine_backward, !a->slot, a->dweight, a->rows, 4) \
	W(CROSS_ENTROPY, cross_entropy, 1, a->losses, a->n, 8) \
	W(CONV_FORWARD, conv, !a->past, a->y, a->n * a->channels, elem) \
	W(CONV_BACKWARD, conv, a->dx_ld == a->channels, a->dx, a->n * a->channels, elem) \
	W(CONV_BACKWARD, conv, a->beta == 0, a->dw, a->channels * a->width, 4) \
	W(CONV_BACKWARD, conv, a->beta == 0 && a->dbias, a->dbias, a->channels, 4) \
	W(DELTA_FORWARD, delta, 1, a->o, a->n * a->value_heads * a->value_dim, elem) \
	W(DELTA_BACKWARD, delta, 1, a->dq, a->n * a->value_heads * a->key_dim, elem) \
	W(DELTA_BACKWARD, delta, 1, a->dk, a->n * a->value_heads * a->key_dim, elem) \
	W(DELTA_BACKWARD, delta, 1, a->dv, a->n * a->value_heads * a->value_dim, elem) \
	W(DELTA_BACKWARD, delta, a->beta == 0, a->da_log, a->value_heads, 4) \
	W(DELTA_BACKWARD, delta, a->beta == 0, a->ddt_bias, a->value_heads, 4) \
	W(DELTA_BACKWARD, delta, a->beta == 0 && !a->correct, a->dskip, a->value_heads, 4) \
	W(DELTA_BACKWARD, delta, 1, a->work, delta_work_elems(a, 0), 4) \
	W(GATED_NORM_FORWARD, gated_norm, 1, a->y, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->d_o != a->dy, a->d_o, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->y && a->y != a->dy, a->y, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->dz_ld == a->heads * a->dim, a->dz, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->beta == 0, a->dw, gated_norm_weights(a), 4) \
	W(MLA_BACKWARD, mla, 1, a->kv, a->n * a->heads * (a->dim - a->rope_dim + a->dim_v), elem) \
	W(GATE_FORWARD, gate, a->y != a->o, a->y, a->n * a->width, elem) \
	W(GATE_BACKWARD, gate, a->d_o != a->dy, a->d_o, a->n * a->width, elem) \
	W(GATE_BACKWARD, gate, a->y && a->y != a->dy, a->y, a->n * a->width, elem) \
	W(GATE_BACKWARD, gate, a->dgate != a->gate && a->dgate_ld == a->width, a->dgate, a->n * a->width, elem)
/* clang-format on */

/* ---- the cpu device ---- */

struct pool; /* pool.h */

/* The GEMM library with its version and the type of its operands, and the instruction set of all other operations: both
 * decide bits, and go into the reproducibility record */
const char *gemm_description(int bf16);
const char *kernels_description(void);
/* Why GEMMs cannot multiply bf16 here; NULL: they can */
const char *gemm_lacks_bf16(void);
/* They can, and it is faster than fp32 */
int gemm_bf16_is_fast(void);
/* What the cpu and chaos devices report of themselves. They have one name, because they give the same bits. */
#define CPU_IDENTITY \
	.name = "cpu", .gemm = gemm_description(0), .attention = "tiled, fp32", .machine = kernels_description(), \
	.elem = sizeof(float), .operand = sizeof(float)
/* Load what oneDNN needs to report that it has no memory; and what it needs to multiply bf16. 0: there is no memory */
int gemm_ready(void);
int gemm_bf16_ready(void);

void op_gemm(struct pool *, const struct gemm_args *);
#define OP_PROTOTYPE(code, op, args, name) void op_##op(struct pool *, const struct args##_args *);
OPS(OP_PROTOTYPE)
EXPERT_OPS(OP_PROTOTYPE)
BALANCE_OPS(OP_PROTOTYPE)
MIXER_OPS(OP_PROTOTYPE)
void op_copy(struct pool *, void *dst, const void *src, size_t bytes);
void op_widen(struct pool *, float *dst, const uint16_t *src, int64_t n);  /* bf16 -> fp32, exact */
void op_narrow(struct pool *, uint16_t *dst, const float *src, int64_t n); /* fp32 -> bf16, nearest even */
void op_zero(struct pool *, void *dst, size_t bytes);

#endif
