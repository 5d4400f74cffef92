/* ops.h: the operations of a layer: their arguments, which all devices share, and the functions of the cpu device.
 *
 * Letters in shapes: N tokens (rows x seq), H hidden size, NH / NKV query and key-value heads, D head size, F the MLP's
 * inner size, V vocabulary. Matrices are row-major; weights are (out, in), as Hugging Face stores them. Elements behind
 * `void *` are the device's own (dev->elem in device.h: fp32 on cpu, fp32 or bf16 on cuda). Statistics, gradients of
 * weights and losses are fp32 or wider on every device. Pointers are device memory unless they say host.
 *
 * The cpu's operations give the same bits for any number of threads in the pool: work is cut into tasks whose shapes
 * depend on the problem alone, a task runs on one thread, and sums across tasks are added in a fixed order.
 */
#ifndef MT_STREAM_OPS_H
#define MT_STREAM_OPS_H

#include <stddef.h>
#include <stdint.h>

/* c = a' b' + beta c [+ bias on every row] [+ add]; ld* are row strides in elements */
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
};

/* db = beta db + column sums of dy */
struct bias_backward_args {
	float *db; /* (n) */
	float beta;
	const void *dy; /* (m, n) */
	int64_t m, n;
};

/* x = w[tokens]; tokens are < V, which serve.c has checked */
struct embed_forward_args {
	void *x;                /* (N, H) */
	const void *w;          /* (V, H) */
	const uint32_t *tokens; /* (N) */
	int64_t n, h;
};

/* dw[t] += sum of dx over the positions of token t, added in ascending order of position */
struct embed_backward_args {
	float *dw;              /* (V, H) */
	float beta;             /* 0: dw is cleared first */
	const void *dx;         /* (N, H) */
	const uint32_t *tokens; /* (N) */
	int64_t n, h, vocab;
	int64_t pad; /* this row gets no gradient (nn.Embedding's padding_idx); -1: none */
};

/* y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps), row by row */
struct rmsnorm_forward_args {
	void *y;       /* (N, H) */
	float *rstd;   /* (N) */
	const void *x; /* (N, H) */
	const void *w; /* (H) */
	int64_t n, h;
	float eps;
};

/* dx = gradient, or dx += gradient where add_dx; dw = beta dw + gradient */
struct rmsnorm_backward_args {
	void *dx; /* (N, H) */
	int add_dx;
	float *dw; /* (H) */
	float beta;
	const void *dy;    /* (N, H) */
	const void *x;     /* (N, H) */
	const void *w;     /* (H) */
	const float *rstd; /* (N) */
	int64_t n, h;
};

/* Optional per-head RMSNorm of q and k (qwen3), then rotary positions, in place. Hugging Face's rotate_half layout:
 * element i pairs with i + D / 2. The position of token t is its place in its row - starts[t]. */
struct rope_args {
	int64_t n, seq, heads, kv_heads, dim; /* seq: tokens of a row; dim: at most 512 */
	const float *cos, *sin;               /* (positions, D / 2), multiplied by the attention scaling already */
	const uint32_t *starts;               /* (N): where in its row the token's document starts */
	const void *qnorm, *knorm;            /* (D), or NULL: no norm */
	float eps;
	void *qkv;   /* (N, (NH + 2 NKV) D); backward: the gradient of rotated q, k, becomes that of the input; v stays */
	void *pre;   /* (N, (NH + NKV) D): q, k before the norm; forward writes it, backward reads it. Norms only */
	float *rstd; /* (N, NH + NKV), likewise */
	float *dqnorm, *dknorm; /* (D), backward with norms: d = beta d + gradient */
	float beta;
};

/* Causal attention inside documents: o = softmax(q k' scale) v. Nothing of size seq x seq is kept. */
struct attention_args {
	int64_t n, seq, heads, kv_heads, dim; /* dim: at most 256 on cuda */
	int64_t window;                       /* a token sees itself and window - 1 tokens before it; 0: no window */
	/* cpu, forward: the first document has so many tokens before the first one; their rows stand before qkv, and no
	 * output is computed for them. A multiple of 64, or n is 1: tiles are counted from the document's start */
	int64_t past;
	float scale;
	const uint32_t *starts; /* (N): where in its row the token's document starts */
	const void *qkv;        /* (N, (NH + 2 NKV) D) */
	void *o;                /* (N, NH D); forward writes it, backward reads it */
	float *lse;             /* (N, NH): log-sum-exp of the scaled scores, likewise */
	const void *d_o;        /* (N, NH D), backward */
	void *dqkv;             /* (N, (NH + 2 NKV) D), backward; NULL: forward */
	/* For an attention backend of the device (device.h): */
	const uint32_t *host_starts; /* host: the same as starts; valid until the micro-batch ends */
	void *work;                  /* (work_bytes), as attention_need reported; NULL: no backend was selected */
	size_t work_bytes;
};

/* y = silu(gate) up */
struct swiglu_forward_args {
	void *y;        /* (N, F) */
	const void *gu; /* (N, 2F): gate | up */
	int64_t n, f;
};

/* Reads gate, up and dy once; writes their gradients, and y again with the bits of forward, for the gradient of down's
 * weights */
struct swiglu_backward_args {
	void *dgu;      /* (N, 2F); may be gu */
	void *y;        /* (N, F); may be dy */
	const void *dy; /* (N, F) */
	const void *gu; /* (N, 2F) */
	int64_t n, f;
};

struct loss {
	double sum;
	int64_t targets;
};

/* loss += the rows' -log softmax(logits)[target] in fp64, and the number of targets */
struct cross_entropy_args {
	void *logits;            /* (N, V); backward: becomes (softmax - onehot) scale, and 0 in rows without target */
	const uint32_t *targets; /* (N); UINT32_MAX: no target */
	int64_t n, vocab;
	float scale;
	int backward;
	struct loss *loss; /* (1) */
};

/* The operations of a layer but for GEMM: the code (OP_...), the function (op_... of the cpu, cuda_... of a GPU), its
 * arguments (their type, and their name in struct op), and the name in traces and messages */
/* clang-format off */
#define OPS(f) \
	f(BIAS_BACKWARD, bias_backward, bias_backward, "bias backward") \
	f(EMBED_FORWARD, embed_forward, embed_forward, "embedding forward") \
	f(EMBED_BACKWARD, embed_backward, embed_backward, "embedding backward") \
	f(RMSNORM_FORWARD, rmsnorm_forward, rmsnorm_forward, "rmsnorm forward") \
	f(RMSNORM_BACKWARD, rmsnorm_backward, rmsnorm_backward, "rmsnorm backward") \
	f(ROPE_FORWARD, rope_forward, rope, "rope forward") \
	f(ROPE_BACKWARD, rope_backward, rope, "rope backward") \
	f(ATTENTION_FORWARD, attention_forward, attention, "attention forward") \
	f(ATTENTION_BACKWARD, attention_backward, attention, "attention backward") \
	f(SWIGLU_FORWARD, swiglu_forward, swiglu_forward, "swiglu forward") \
	f(SWIGLU_BACKWARD, swiglu_backward, swiglu_backward, "swiglu backward") \
	f(CROSS_ENTROPY, cross_entropy, cross_entropy, "cross-entropy")
/* clang-format on */

/* ---- the cpu device ---- */

struct pool; /* pool.h */

/* The GEMM library with its version, and the instruction set of all other operations: both decide bits, and go into the
 * reproducibility record */
const char *gemm_description(void);
const char *kernels_description(void);
/* What the cpu and chaos devices report of themselves. They have one name, because they give the same bits. */
#define CPU_IDENTITY \
	.name = "cpu", .gemm = gemm_description(), .attention = "tiled, fp32", .machine = kernels_description(), \
	.elem = sizeof(float)
/* Load what oneDNN needs to report that it has no memory. 0: there is no memory for that */
int gemm_ready(void);

void op_gemm(struct pool *, const struct gemm_args *);
#define OP_PROTOTYPE(code, op, args, name) void op_##op(struct pool *, const struct args##_args *);
OPS(OP_PROTOTYPE)
void op_copy(struct pool *, void *dst, const void *src, size_t bytes);
void op_widen(struct pool *, float *dst, const uint16_t *src, int64_t n);  /* bf16 -> fp32, exact */
void op_narrow(struct pool *, uint16_t *dst, const float *src, int64_t n); /* fp32 -> bf16, nearest even */
void op_zero(struct pool *, void *dst, size_t bytes);

#endif
