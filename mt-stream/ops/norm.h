/* norm.h: RMSNorm and LayerNorm */
#ifndef MT_STREAM_OPS_NORM_H
#define MT_STREAM_OPS_NORM_H

#include "common.h"

/* Row by row. RMSNorm: y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps).
 * LayerNorm: y = (x - m) rstd w + b, m = mean(x), rstd = 1 / sqrt(mean((x - m)^2) + eps). */
struct norm_forward_args {
	void *y;       /* (N, H) */
	uint16_t *as;  /* cpu: y rounded to bf16, too; here and below the device sets it; NULL: it is not */
	float *rstd;   /* (N); NULL: no norm, y = x w */
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
	const float *rstd; /* (N); NULL: no norm */
	int64_t n, h;
	const float *mean; /* (N), as forward wrote it; NULL: RMSNorm */
	float *db;         /* (H); NULL: without b */
	int one;
	int64_t ld; /* as above, of x and dx */
};

/* clang-format off */
#define norm_forward_arrays(A) \
	A(elem, y, a->n * a->h, 1) \
	A(4, rstd, a->n, 1) \
	A(4, mean, a->n, 1) \
	A(elem, x, a->n * (a->ld ? a->ld : a->h), 0) \
	A(weight, w, a->h, 0) \
	A(weight, b, a->h, 0)
#define norm_backward_arrays(A) \
	A(elem, dx, a->n * (a->ld ? a->ld : a->h), !a->add_dx && !a->ld && a->dx != a->dy) \
	A(4, dw, a->h, a->beta == 0 && a->w) \
	A(4, db, a->h, a->beta == 0 && a->mean) \
	A(elem, dy, a->n * a->h, 0) \
	A(elem, x, a->n * (a->ld ? a->ld : a->h), 0) \
	A(weight, w, a->h, 0) \
	A(4, rstd, a->n, 0) \
	A(4, mean, a->n, 0)
/* clang-format on */

#endif
