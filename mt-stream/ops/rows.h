/* rows.h: simple operations on rows and long arrays */
#ifndef MT_STREAM_OPS_ROWS_H
#define MT_STREAM_OPS_ROWS_H

#include "common.h"

/* db = beta db + column sums of dy */
struct bias_backward_args {
	float *db; /* (n) */
	float beta;
	const void *dy; /* (m, n), rows ld apart */
	int64_t m, n, ld;
};

/* dst = the fp32 numbers that w and lo are: bits (w << 16) + lo, the master weights of a bf16 run */
struct join_args {
	float *dst;        /* (n) */
	const void *w;     /* (n) */
	const int16_t *lo; /* (n) */
	int64_t n;
	int bf16; /* cpu: w is */
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
/* Elements from the first to the last of them */
static inline int64_t scaled_add_span(const struct scaled_add_args *a)
{
	return a->width ? (a->n / a->width - 1) * a->ld + a->width : a->n;
}

void op_copy(struct pool *, void *dst, const void *src, size_t bytes);
void op_widen(struct pool *, float *dst, const uint16_t *src, int64_t n);  /* bf16 -> fp32, exact */
void op_narrow(struct pool *, uint16_t *dst, const float *src, int64_t n); /* fp32 -> bf16, nearest even */
void op_zero(struct pool *, void *dst, size_t bytes);

/* clang-format off */
#define bias_backward_arrays(A) \
	A(4, db, a->n, a->beta == 0) \
	A(elem, dy, a->m * a->ld, 0)
#define join_arrays(A) \
	A(4, dst, a->n, 1)
#define columns_arrays(A) \
	A(elem, dst, (a->n - 1) * a->dst_ld + a->width, !a->add && a->dst_ld == a->width) \
	A(elem, src, (a->n - 1) * a->src_ld + a->width, 0)
#define scaled_add_arrays(A) \
	A(elem, y, scaled_add_span(a), !a->width && a->y != a->x && a->y != a->add) \
	A(elem, x, scaled_add_span(a), 0) \
	A(elem, add, scaled_add_span(a), 0) \
	A(weight, factor, 1, 0)
/* clang-format on */

#endif
