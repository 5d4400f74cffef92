/* ops.h: the leaf operations of a layer, as the cpu device computes them.
 *
 * Every matrix is row-major fp32. N is the number of tokens of a chunk (rows x seq), H the hidden size,
 * NH / NKV / D the query heads, key-value heads and head size, F the MLP's inner size, V the vocabulary.
 * Weights are stored as Hugging Face stores them: (out, in).
 *
 * Every operation gives the same bits for any number of threads in the pool: work is cut into tasks whose shapes
 * depend on the problem alone, a task runs on one thread, and sums across tasks are added in a fixed order.
 */
#ifndef MT_STREAM_OPS_H
#define MT_STREAM_OPS_H

#include <stddef.h>
#include <stdint.h>

struct pool;

/* The instruction set that the other operations use, in a word; likewise */
const char *kernels_words(void);

/* A pool of threads - 1 workers; the caller of pool_run is the last one. threads >= 1. NULL: no memory or threads. */
struct pool *pool_create(int threads);
void pool_free(struct pool *);
int pool_threads(const struct pool *);
/* Run fn(arg, task, thread) for every task in 0..tasks-1, any order, any thread; returns when all have run. */
void pool_run(struct pool *, int64_t tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg);

/* ---- GEMM ---- c (m, n) = a' b' + beta c [+ bias (n) on every row] [+ add (m, n)]
 * a' is a (m, k), or a (k, m) transposed; b' is b (k, n), or b (n, k) transposed. ld* are row strides in elements. */
struct gemm {
	int64_t m, n, k;
	const float *a;
	int64_t lda;
	int trans_a;
	const float *b;
	int64_t ldb;
	int trans_b;
	float *c;
	int64_t ldc;
	float beta;        /* 0 (c is not read) or 1 */
	const float *bias; /* (n), or NULL; with beta 0 only */
	const float *add;  /* a residual, its rows ldc apart, or NULL; it is added last; with beta 0 only */
};
void op_gemm(struct pool *, const struct gemm *);
/* What computes it, in words: where they are others, so may be the bits */
const char *gemm_words(void);
/* Load what oneDNN needs to report that it has no memory. 0: there is no memory for that */
int gemm_ready(void);
/* db (n) = beta db + column sums of dy (m, n) with row stride ldy; fixed tree over blocks of rows */
void op_bias_backward(struct pool *, float *db, float beta, const float *dy, int64_t ldy, int64_t m, int64_t n);

/* ---- embedding ---- x (N, H) = w[tokens]; tokens >= V were refused before */
void op_embed_forward(struct pool *, float *x, const float *w, const uint32_t *tokens, int64_t n, int64_t h);
/* dw (V, H): rows that occur gain the sum of their dx in ascending token position, in one defined order; the row
 * `pad` (nn.Embedding's padding_idx; -1: none) gains nothing. beta 0: dw is cleared first. */
void op_embed_backward(struct pool *, float *dw, float beta, const float *dx, const uint32_t *tokens, int64_t n,
	int64_t h, int64_t vocab, int64_t pad);

/* ---- RMSNorm ---- y = x * rstd * w, rstd (N) = 1 / sqrt(mean(x^2) + eps); rows of h elements, row stride ldx / ldy */
void op_rmsnorm_forward(struct pool *, float *y, float *rstd, const float *x, const float *w, int64_t n, int64_t h,
	float eps);
/* dx (N, H) (+)= ...; dw (H) = beta_w dw + ...   add_dx: dx += instead of = */
void op_rmsnorm_backward(struct pool *, float *dx, int add_dx, float *dw, float beta_w, const float *dy, const float *x,
	const float *w, const float *rstd, int64_t n, int64_t h);

/* ---- q, k: optional per-head RMSNorm (qwen3), then rope, in place on qkv (N, (NH + 2 NKV) D) ----
 * Hugging Face's rotate_half layout: element i pairs with i + D/2. Position of token t is t_in_row - starts[t].
 * cos, sin: (positions, D/2), already multiplied by the attention scaling. seq: tokens in a row.
 * qnorm, knorm: (D) or NULL; with them pre (N, (NH + NKV) D) receives q, k as they were, rstd (N, NH + NKV). */
struct rope {
	int64_t n, seq, heads, kv_heads, dim;
	const float *cos, *sin;
	const uint32_t *starts; /* (N): where in its row the token's document starts */
	const float *qnorm, *knorm;
	float eps;
};
void op_rope_forward(struct pool *, const struct rope *, float *qkv, float *pre, float *rstd);
/* dqkv in place: on entry gradients of rotated q, k (and v, untouched); on return of q, k before norm and rope.
 * dqnorm, dknorm (D) = beta_w * itself + ... */
void op_rope_backward(struct pool *, const struct rope *, float *dqkv, const float *pre, const float *rstd,
	float *dqnorm, float *dknorm, float beta_w);

/* ---- attention ---- causal, inside documents, softmax(q k' * scale); window 0: none, else a token sees itself and the
 * window - 1 tokens before it. qkv (N, (NH + 2 NKV) D); o (N, NH D); lse (N, NH): log-sum-exp of the scaled scores.
 * Nothing of size seq x seq is kept; tiles only, scratch per thread. */
struct attention {
	int64_t n, seq, heads, kv_heads, dim, window;
	float scale;
	const uint32_t *starts; /* (N) */
};
void op_attention_forward(struct pool *, const struct attention *, float *o, float *lse, const float *qkv);
void op_attention_backward(struct pool *, const struct attention *, float *dqkv, const float *d_o, const float *o,
	const float *lse, const float *qkv);

/* ---- SwiGLU ---- gu (N, 2F): gate | up;  y (N, F) = silu(gate) * up */
void op_swiglu_forward(struct pool *, float *y, const float *gu, int64_t n, int64_t f);
/* Reads gate, up and dy once: writes their gradients and y again, with the bits that forward gave it, for the gradient
 * of down's weights. dgu may be gu, and y may be dy (in place) */
void op_swiglu_backward(struct pool *, float *dgu, float *y, const float *dy, const float *gu, int64_t n, int64_t f);

/* ---- cross-entropy over a chunk ---- logits (n, V) with row stride V; targets (n), UINT32_MAX: no target.
 * Returns the sum of -log softmax over the targets in double, rows in order; *count gets the targets.
 * backward: logits become (softmax - onehot) * scale; rows without target become 0. */
double op_cross_entropy(struct pool *, float *logits, const uint32_t *targets, int64_t n, int64_t vocab, float scale,
	int backward, int64_t *count);

/* ---- copies, split over the pool ---- */
void op_copy(struct pool *, void *dst, const void *src, size_t bytes);
void op_widen(struct pool *, float *dst, const uint16_t *src, int64_t n);  /* bf16 -> fp32, exact */
void op_narrow(struct pool *, uint16_t *dst, const float *src, int64_t n); /* fp32 -> bf16, nearest even */
void op_zero(struct pool *, void *dst, size_t bytes);

#endif
