/* altup.h: the copies of AltUp (arXiv 2301.13310): S rows of H for each token, one after another */
#ifndef MT_STREAM_OPS_ALTUP_H
#define MT_STREAM_OPS_ALTUP_H

#include "common.h"

/* Without y: out_i = x_i + sum_j c_ij x_j. With y: out_i = x_i + (1 + c_i) (y - x_0) */
struct mix_args {
	int64_t n, h, copies; /* copies: at most MT_ALTUP */
	const void *x;        /* (N, S H) */
	const void *y;        /* (N, H); NULL: see above */
	const void *c;        /* (N, S S), with y (N, S) */
	void *out;            /* (N, S H), forward */
	const void *dout;     /* (N, S H), backward, as all that follow */
	void *dx;             /* (N, S H); may be dout. NULL: forward */
	void *dc, *dy;        /* as c and y */
};

static inline ON_DEVICE int64_t mix_factors(const struct mix_args *a)
{
	return a->y ? a->copies : a->copies * a->copies;
}

/* y = p |x| / |p|, with |x|^2 = mean(x^2), |p|^2 = mean(p^2), at least 1e-5. Backward: dp = gradient, dx += gradient;
 * x of zeros has none */
struct magnitude_args {
	int64_t n, h;
	const void *x; /* (N, H), rows x_ld apart */
	const void *p; /* (N, H), rows p_ld apart */
	int64_t x_ld, p_ld;
	void *y;        /* as p, which it may be; forward */
	const void *dy; /* (N, H), rows dy_ld apart, backward */
	int64_t dy_ld;
	void *dp; /* as p, which it may be, backward */
	void *dx; /* as x, backward. NULL: forward */
};
#define MAGNITUDE_LEAST 1e-5f

/* clang-format off */
#define mix_arrays(A) \
	A(elem, x, a->n * a->copies * a->h, 0) \
	A(elem, y, a->n * a->h, 0) \
	A(elem, c, a->n * mix_factors(a), 0) \
	A(elem, out, a->n * a->copies * a->h, code == OP_MIX_FORWARD) \
	A(elem, dout, a->n * a->copies * a->h, 0) \
	A(elem, dx, a->n * a->copies * a->h, code == OP_MIX_BACKWARD && a->dx != a->dout) \
	A(elem, dc, a->n * mix_factors(a), code == OP_MIX_BACKWARD) \
	A(elem, dy, a->n * a->h, code == OP_MIX_BACKWARD)
#define magnitude_arrays(A) \
	A(elem, x, (a->n - 1) * a->x_ld + a->h, 0) \
	A(elem, p, (a->n - 1) * a->p_ld + a->h, 0) \
	A(elem, y, (a->n - 1) * a->p_ld + a->h, code == OP_MAGNITUDE_FORWARD && a->y != a->p && a->p_ld == a->h) \
	A(elem, dy, (a->n - 1) * a->dy_ld + a->h, 0) \
	A(elem, dp, (a->n - 1) * a->p_ld + a->h, code == OP_MAGNITUDE_BACKWARD && a->dp != a->p && a->p_ld == a->h) \
	A(elem, dx, (a->n - 1) * a->x_ld + a->h, 0)
/* clang-format on */

#endif
