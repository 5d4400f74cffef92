/* types.h: what numbers in geometries, runs and operations mean. C++ and CUDA include it, too. */
#ifndef LIBMT_TYPES_H
#define LIBMT_TYPES_H

#include <stdint.h>

/* clang-format off */

enum mt_dtype { MT_BF16 = 1, MT_FP32 = 2, MT_NONE = 3, MT_INT8 = 4 }; /* MT_NONE: --grad, --state; MT_INT8: --state */

/* Bytes of an element; MT_NONE: of a piece in a ring */
static inline uint32_t mt_dtype_bytes(uint32_t dtype) { return dtype == MT_INT8 ? 1 : dtype == MT_BF16 ? 2 : 4; }

/* Rules of the update; mt-optim/update.h has them. AdamW keeps two arrays of state, m and v, the others m alone. */
enum mt_optim { MT_ADAMW = 1, MT_LION = 2, MT_SGD = 3 };
static inline uint32_t mt_state_arrays(uint32_t optim) { return optim == MT_ADAMW ? 2 : 1; }

#ifndef __cplusplus
/* The name of a number, as options and files have it, "?": none has this number; the number of a name, 0: none */
const char *mt_dtype_name(uint32_t dtype);
enum mt_dtype mt_dtype_named(const char *name);
const char *mt_optim_name(uint32_t optim);
enum mt_optim mt_optim_named(const char *name);
#endif

enum mt_ffn {                   /* inner function of the MLP */
	MT_SWIGLU,                  /* silu(gate) up */
	MT_GEGLU,                   /* gelu(gate) up; gelu: x Phi(x) */
	MT_GEGLU_TANH,              /* by gelu's approximation 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
	MT_SWIGLU_CLAMPED,          /* g sigmoid(1.702 g) (u + 1), g = min(gate, 7), u = up clamped to -7 .. 7 */
	MT_RE2GLU,                  /* max(gate, 0)^2 up */
	MT_RELU2,                   /* ungated from here on, up alone: max(x, 0)^2 */
	MT_GELU,
	MT_GELU_TANH,
	MT_XIELU,                   /* arXiv 2411.13010, with trainable slopes and beta 0.5, eps -1e-6 */
	MT_RELU,                    /* max(x, 0) */
	MT_TANH,
};

enum mt_score {                 /* how a router weighs experts */
	MT_SOFTMAX,                 /* softmax of all experts' logits, of which each token takes the largest */
	MT_SIGMOID,                 /* of each logit alone */
	MT_TOP_SOFTMAX,             /* softmax of the largest logits alone */
	MT_TOP_SIGMOID,             /* sigmoid of each of the largest logits */
};

enum { MT_EXPERTS = 1024, MT_EXPERTS_PER_TOKEN = 64 }; /* of a layer, at most */

/* clang-format on */

#endif
