/* combine.h: tokens' rows to experts, and experts' outputs back to tokens */
#ifndef MT_STREAM_OPS_COMBINE_H
#define MT_STREAM_OPS_COMBINE_H

#include "common.h"

/* y's row r = x's row of the token whose slot it is: slot[r] / K; times the slot's weight */
struct dispatch_args {
	void *y;              /* (R, H) */
	const void *x;        /* (N, H) */
	const uint32_t *slot; /* (R) */
	int64_t rows, per_token, h;
	const float *weight; /* (N, K), or NULL: ones */
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

/* clang-format off */
#define dispatch_arrays(A) \
	A(elem, y, a->rows * a->h, 1) \
	A(elem, x, a->rows / a->per_token * a->h, 0)
#define combine_arrays(A) \
	A(a->partial ? 4 : elem, y, a->n * a->h, a->y != a->add && a->y != a->sum) \
	A(elem, add, a->n * a->h, 0) \
	A(elem, x, a->n * a->per_token * a->h, 0) \
	A(4, sum, a->n * a->h, 0)
#define combine_backward_arrays(A) \
	A(4, dweight, a->rows, !a->slot) \
	A(elem, y, a->rows * a->f, 0) \
	A(elem, dy, a->rows * a->f, 0) \
	A(elem, dgu, a->rows * a->g, 0) \
	A(elem, d_o, a->rows * a->h, 0)
/* clang-format on */

#endif
