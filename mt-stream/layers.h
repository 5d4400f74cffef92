/* layers.h: what the layers share: layers/, block.c, slices.c, experts.c, head.c; and linear.c, of which they are
 * made. */
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
static const struct norm norm1 = {MT_T_NORM1, MT_T_NORM1B}, norm2 = {MT_T_NORM2, MT_T_NORM2B};
static const struct norm post1 = {MT_T_POST1, 0}, post2 = {MT_T_POST2, 0}, final_norm = {MT_T_FNORM, MT_T_FNORMB};
static const struct norm no_norm = {0, 0}; /* behind Mamba 2 beside attention */
static const struct norm ple_post = {MT_T_PLE_POST, 0};
/* MT_OWN_NORMS */
static const struct norm router_norm = {MT_T_ROUTER_NORM, 0}, shared_post = {MT_T_SHARED_POST, 0},
						 experts_norm = {MT_T_XNORM, 0}, experts_post = {MT_T_XPOST, 0};

/* A slice of the MLP, as a chunk */
struct slice {
	struct chunk c;
	const struct mt_layer *l;
	const struct weights *w;
	const void *in;   /* (P, H) what the MLP reads, before its norm: the second residual, or the block's input */
	const void *x2;   /* (P, H) the second residual */
	bool kept;        /* does the block keep gate | up? else the scratch has it: */
	bool have_gu;     /* experts: it has been computed */
	void *gu;         /* (P, G) gate | up; of experts (R, G) */
	struct norm norm; /* before the MLP */
	struct norm post; /* after it */
	/* (P, H) windows, with a norm behind the experts: what it reads, kept; its gradient. MT_OWN_NORMS:
	 * sum is there without windows too, within one call */
	void *sum, *dsum;
	/* experts [from, to), those of w; their rows: begin .. begin + rows - 1 */
	uint32_t from, to;
	int64_t begin, rows;
};

/* ---- linear.c ---- */

/* A matrix as GEMMs multiply it, beside what it was made from; rows are ld apart. It is x itself, or x narrowed in the
 * scratch's operand of that number, where it stands until the next one. */
struct operand {
	const void *x, *as;
	int64_t ld;
};
enum { OPERAND_X, OPERAND_DY };
/* Of x (rows, width), which is narrowed from row `first` on */
struct operand operand_of(const struct chunk *, int number, const void *x, int64_t first, int64_t rows, int64_t width);

/* y (N, out) = x (N, in) w' + b + residual; rows of y are ld apart */
void linear_forward_rows(const struct chunk *, void *y, int64_t ld, const void *x, const void *w, const void *b,
	const void *residual, int64_t in, int64_t out);
void linear_forward(const struct chunk *, void *y, const void *x, const void *w, const void *b, const void *residual,
	int64_t in, int64_t out);
void linear_forward_fp32(const struct chunk *, float *y, const void *x, const void *w, const void *b, int64_t in,
	int64_t out);
/* dx (N, in) = beta dx + dy (N, out) w */
void linear_backward_input(const struct chunk *, void *dx, float beta, const struct operand *dy, const void *w,
	int64_t in, int64_t out);
void linear_backward_weights(const struct chunk *, float *dw, float *db, float beta, const struct operand *dy,
	const struct operand *x, int64_t in, int64_t out);
/* The gradients of x (N, in), if dx is not NULL, and of the weights */
void linear_backward(const struct chunk *, void *dx, float *dw, float *db, float beta, const void *dy, const void *x,
	const void *w, int64_t in, int64_t out);
/* y (N, H) = add + scale x */
void scaled_add(const struct chunk *, void *y, const void *x, const void *add, float scale);
/* x (N, width), rows ld apart, times scale */
void scale_columns(const struct chunk *, void *x, int64_t width, int64_t ld, float scale);
/* x (N, H), or its gradient, times the block's own number, if it has one */
void scalar_times(const struct chunk *, const struct weights *, void *x);
void norm_forward(const struct chunk *, void *y, const void *x, const struct weights *, struct norm);
void norm_backward(const struct chunk *, void *dx, int add_dx, const struct grads *, float beta, const void *dy,
	const void *x, const struct weights *, struct norm);
const void *input_of(const struct chunk *, const void *x, const struct weights *, struct norm);
void input_backward(const struct chunk *, void *dx, const struct grads *, float beta, const void *x,
	const struct weights *, struct norm);
/* Where residual_apart: y = residual + what the scratch's sub holds, after the norm and the factor. The scratch's h is
 * lost */
void residual_add(const struct chunk *, void *y, const struct weights *, struct norm post, const void *residual);
/* From the gradient of y to that of sub: dy itself, or the scratch's dh. With a norm sub must be there, and the
 * scratch's h is lost */
const void *residual_sub_backward(const struct chunk *, const void *dy, const struct weights *, const struct grads *,
	float beta, struct norm post);

/* ---- slices.c ---- */

/* The slice that starts at token `from`, of a block with experts */
struct slice slice_of(const struct chunk *, uint32_t layer, int64_t from, const struct weights *, const void *x,
	const struct saved *);

/* ---- router.c ---- */

/* logits (P, out) in fp32 = h w' + b */
void logits_forward(const struct slice *, float *logits, const void *h, const void *w, const void *b, int64_t out);
/* dh (P, H) += dlogits (P, out) w (MT_OWN_NORMS: =); dw (out, H) += dlogits' h; db */
void logits_backward(const struct slice *, float *dw, float *db, float beta, const void *dlogits, const void *h,
	const void *w, int64_t out);
/* Slots of the tokens of h, and their weights, into the scratch */
void route(const struct slice *, const void *h);
/* From the gradients of the slots' weights to those of the logits, and of the experts' factors; then those of the
 * router's weights and of h */
void route_backward(const struct slice *, const struct grads *, float beta);
void router_backward(const struct slice *, const struct grads *, float beta, const void *h);

/* ---- experts.c ---- */

/* out (P, H) = x2 + what the experts add */
void experts_forward(const struct slice *, void *out);
/* dx (P, H), the gradient of out: the gradient of the input is added */
void experts_backward(const struct slice *, const struct grads *, float beta, void *dx);
/* The same by windows: routing, in the backward pass also the gradient of what a norm behind the experts read; then
 * each window, in ascending order, whose gradients are the window's alone; then all the rest */
void experts_route(const struct slice *);
void experts_route_backward(const struct slice *, const void *dx);
void experts_window_forward(const struct slice *);
void experts_forward_end(const struct slice *, void *out);
void experts_window_backward(const struct slice *, const struct grads *, float beta, const void *dx);
void experts_backward_end(const struct slice *, const struct grads *, float beta, void *dx);

#endif
