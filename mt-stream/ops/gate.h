/* gate.h: the gated norm, and the output gate */
#ifndef MT_STREAM_OPS_GATE_H
#define MT_STREAM_OPS_GATE_H

#include "common.h"

/* Head by head: y = w o rstd silu(z), rstd = 1 / sqrt(mean(o^2) + eps). With gate_first: y = w h rstd, h = o silu(z),
 * rstd = 1 / sqrt(mean(h^2) + eps). Without w there is no norm: y = o silu(z).
 * Backward: d_o and dz = gradients, dw = beta dw + gradient */
struct gated_norm_args {
	int64_t n, heads, dim;
	float eps;
	int gate_first;
	int sigmoid;   /* sigmoid(z) in place of silu(z) */
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

/* clang-format off */
#define gated_norm_arrays(A) \
	A(elem, o, a->n * a->heads * a->dim, 0) \
	A(elem, z, (a->n - 1) * a->ld + a->heads * a->dim, 0) \
	A(weight, w, gated_norm_weights(a), 0) \
	A(elem, y, a->n * a->heads * a->dim, code == OP_GATED_NORM_FORWARD || a->y != a->dy) \
	A(elem, dy, a->n * a->heads * a->dim, 0) \
	A(elem, d_o, a->n * a->heads * a->dim, code == OP_GATED_NORM_BACKWARD && a->d_o != a->dy) \
	A(elem, dz, (a->n - 1) * a->dz_ld + a->heads * a->dim, \
		code == OP_GATED_NORM_BACKWARD && a->dz_ld == a->heads * a->dim) \
	A(4, dw, gated_norm_weights(a), code == OP_GATED_NORM_BACKWARD && a->beta == 0)
#define gate_arrays(A) \
	A(elem, o, a->n * a->width, 0) \
	A(elem, gate, (a->n - 1) * a->ld + a->width, 0) \
	A(elem, y, a->n * a->width, a->y != (code == OP_GATE_FORWARD ? a->o : a->dy)) \
	A(elem, dy, a->n * a->width, 0) \
	A(elem, d_o, a->n * a->width, code == OP_GATE_BACKWARD && a->d_o != a->dy) \
	A(elem, dgate, (a->n - 1) * a->dgate_ld + a->width, \
		code == OP_GATE_BACKWARD && a->dgate != a->gate && a->dgate_ld == a->width)
/* clang-format on */

#endif
