/* layers.h: what lists, head and the blocks' own inputs share; and linear.c, of which they are made. */
#ifndef MT_STREAM_LAYERS_H
#define MT_STREAM_LAYERS_H

#include "block.h"

static inline void launch(const struct chunk *c, const struct op *op) { c->dev->launch(c->dev, Q_COMPUTE, op); }

/* LAUNCH(chunk, OP_GEMM, gemm, .m = ..., ...): an operation with its arguments by name (device.h) */
#define LAUNCH(c, op_code, args, ...) launch(c, &(struct op){op_code, .args = {__VA_ARGS__}})

/* A norm's weight and bias, or their gradients, are of these roles */
struct norm {
	enum mt_role_tensor w, b;
};
static const struct norm in_norm = {MT_T_IN_NORM, MT_T_IN_NORMB};
static const struct norm norm1 = {MT_T_NORM1, MT_T_NORM1B}, norm2 = {MT_T_NORM2, MT_T_NORM2B};
static const struct norm post1 = {MT_T_POST1, 0}, post2 = {MT_T_POST2, 0}, final_norm = {MT_T_FNORM, MT_T_FNORMB};
static const struct norm no_norm = {0, 0}; /* none, or one without weight */
static const struct norm ple_post = {MT_T_PLE_POST, 0}, o_norm = {MT_T_O_NORM, 0}, down_norm = {MT_T_DOWN_NORM, 0};
/* MT_OWN_NORMS */
static const struct norm router_norm = {MT_T_ROUTER_NORM, 0}, shared_post = {MT_T_SHARED_POST, 0},
						 experts_norm = {MT_T_XNORM, 0}, experts_post = {MT_T_XPOST, 0};

/* ---- linear.c ---- */

/* A matrix as GEMMs multiply it, beside what it was made from; rows are ld apart. It is x itself, or x narrowed in the
 * scratch's operand of that number, where it stands until the next one. */
struct operand {
	const void *x, *as;
	int64_t ld;
	void *fp8; /* GEMMs with it round their operands to FP8 in this work memory; NULL: not */
};
enum { OPERAND_X, OPERAND_DY };
/* Of x (rows, width), which is narrowed from row `first` on */
struct operand operand_of(const struct chunk *, int number, const void *x, int64_t first, int64_t rows, int64_t width);

/* y (N, out) = x (N, in) w' + b + residual; rows of y are ld apart; fp8: as an operand's */
void linear_forward_rows(const struct chunk *, void *y, int64_t ld, const void *x, const void *w, const void *b,
	const void *residual, int64_t in, int64_t out, void *fp8);
void linear_forward(const struct chunk *, void *y, const void *x, const void *w, const void *b, const void *residual,
	int64_t in, int64_t out);
void linear_forward_fp32(const struct chunk *, float *y, const void *x, const void *w, const void *b, int64_t in,
	int64_t out);
/* dx (N, in) = beta dx + dy (N, out) w */
void linear_backward_input(const struct chunk *, void *dx, float beta, const struct operand *dy, const void *w,
	int64_t in, int64_t out);
/* Either of dw and db may be NULL */
void linear_backward_weights(const struct chunk *, float *dw, float *db, float beta, const struct operand *dy,
	const struct operand *x, int64_t in, int64_t out);
/* The gradients of x (N, in), if dx is not NULL, and of the weights */
void linear_backward(const struct chunk *, void *dx, float *dw, float *db, float beta, const void *dy, const void *x,
	const void *w, int64_t in, int64_t out);
/* y (N, H) = add + scale x */
void scaled_add(const struct chunk *, void *y, const void *x, const void *add, float scale);
/* x (N, width), rows ld apart, times scale */
void scale_columns(const struct chunk *, void *x, int64_t width, int64_t ld, float scale);
void norm_forward(const struct chunk *, void *y, const void *x, const struct weights *, struct norm);
void norm_backward(const struct chunk *, void *dx, int add_dx, const struct grads *, float beta, const void *dy,
	const void *x, const struct weights *, struct norm);

#endif
