/* conv.h: a short convolution, and the norm of q and k heads */
#ifndef MT_STREAM_OPS_CONV_H
#define MT_STREAM_OPS_CONV_H

#include "common.h"

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

/* clang-format off */
#define conv_arrays(A) \
	A(elem, x, a->n * a->ld, 0) \
	A(elem, before, a->n * a->ld, 0) \
	A(elem, after, a->n * a->ld, 0) \
	A(weight, w, a->channels * a->width, 0) \
	A(weight, bias, a->channels, 0) \
	A(elem, y, a->n * a->channels, code == OP_CONV_FORWARD && !a->past) \
	A(elem, dq, a->n * a->value_heads * a->dim, 0) \
	A(elem, dk, a->n * a->value_heads * a->dim, 0) \
	A(elem, dv, a->n * (a->channels - (a->q_heads + a->k_heads) * a->dim), 0) \
	A(elem, dx, a->n * a->dx_ld, code == OP_CONV_BACKWARD && a->dx_ld == a->channels) \
	A(elem, dbefore, a->n * a->dx_ld, 0) \
	A(elem, dafter, a->n * a->dx_ld, 0) \
	A(4, dw, a->channels * a->width, code == OP_CONV_BACKWARD && a->beta == 0) \
	A(4, dbias, a->channels, code == OP_CONV_BACKWARD && a->beta == 0)
/* clang-format on */

#endif
