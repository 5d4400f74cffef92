/* linear.c: linear layers, norms and residuals, of which attention, MLP, experts and head are made. */
#include "layers.h"
#include "ops/fp8.h"

/* ---- linear layers: weights are (out, in), as Hugging Face stores them, or with in_out (in, out), as of GPT-2 ---- */

struct operand operand_of(const struct chunk *c, int number, const void *x, int64_t first, int64_t rows, int64_t width)
{
	const struct device *d = c->dev;
	void *as = c->s.operand[number];
	if (d->operand == d->elem) return (struct operand){x, x, width, NULL};
	LAUNCH(c, OP_NARROW, narrow, .dst = operands_after(d, as, first * width),
		.src = elements_after(d, x, first * width), .n = rows * width);
	return (struct operand){x, as, width, NULL};
}

/* A GEMM over the chunk's tokens; where operands are rounded to FP8, over some at a time */
static void launch_gemm(const struct chunk *c, const struct gemm_args *g)
{
	int64_t each = fp8_takes(g) ? FP8_TOKENS : c->n;
	for (int64_t from = 0; from < c->n; from += each) {
		int64_t n = c->n - from < each ? c->n - from : each;
		struct op op = {OP_GEMM, .gemm = *g};
		op.gemm.a = operands_after(c->dev, g->a, from * g->lda);
		if (g->trans_a) {
			op.gemm.k = n;
			op.gemm.b = operands_after(c->dev, g->b, from * g->ldb);
			if (from) op.gemm.beta = 1;
		} else {
			op.gemm.m = n;
			op.gemm.c = elements_after(c->dev, g->c, from * g->ldc);
			op.gemm.add = elements_after(c->dev, g->add, from * g->ldc);
		}
		launch(c, &op);
	}
}
#define LAUNCH_GEMM(c, ...) launch_gemm(c, &(struct gemm_args){__VA_ARGS__})

void linear_forward_rows(const struct chunk *c, void *y, int64_t ld, const void *x, const void *w, const void *b,
	const void *residual, int64_t in, int64_t out, void *fp8)
{
	struct operand a = operand_of(c, OPERAND_X, x, 0, c->n, in);
	LAUNCH_GEMM(c, .m = c->n, .n = out, .k = in, .a = a.as, .lda = in, .b = w, .ldb = c->in_out ? out : in,
		.trans_b = !c->in_out, .c = y, .ldc = ld, .bias = b, .add = residual, .fp8 = fp8);
}

void linear_forward(const struct chunk *c, void *y, const void *x, const void *w, const void *b, const void *residual,
	int64_t in, int64_t out)
{
	linear_forward_rows(c, y, out, x, w, b, residual, in, out, NULL);
}

/* Logits: y in fp32, whatever the device's elements are */
void linear_forward_fp32(const struct chunk *c, float *y, const void *x, const void *w, const void *b, int64_t in,
	int64_t out)
{
	struct operand a = operand_of(c, OPERAND_X, x, 0, c->n, in);
	LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = out, .k = in, .a = a.as, .lda = in, .b = w, .ldb = in, .trans_b = 1,
		.c = y, .ldc = out, .bias = b, .fp32 = 1);
}

void linear_backward_input(const struct chunk *c, void *dx, float beta, const struct operand *dy, const void *w,
	int64_t in, int64_t out)
{
	LAUNCH_GEMM(c, .m = c->n, .n = in, .k = out, .a = dy->as, .lda = dy->ld, .b = w, .ldb = c->in_out ? out : in,
		.trans_b = c->in_out, .c = dx, .ldc = in, .beta = beta, .fp8 = dy->fp8);
}

/* dw (out, in) += dy' x, or with in_out its transpose; db (out) += column sums of dy */
void linear_backward_weights(const struct chunk *c, float *dw, float *db, float beta, const struct operand *dy,
	const struct operand *x, int64_t in, int64_t out)
{
	const struct operand *a = c->in_out ? x : dy, *b = c->in_out ? dy : x;
	int64_t m = c->in_out ? in : out, n = c->in_out ? out : in;
	if (dw)
		LAUNCH_GEMM(c, .m = m, .n = n, .k = c->n, .a = a->as, .lda = a->ld, .trans_a = 1, .b = b->as, .ldb = b->ld,
			.c = dw, .ldc = n, .beta = beta, .fp32 = 1, .fp8 = dy->fp8);
	if (db)
		LAUNCH(c, OP_BIAS_BACKWARD, bias_backward, .db = db, .beta = beta, .dy = dy->x, .m = c->n, .n = out,
			.ld = dy->ld);
}

void linear_backward(const struct chunk *c, void *dx, float *dw, float *db, float beta, const void *dy, const void *x,
	const void *w, int64_t in, int64_t out)
{
	struct operand a = operand_of(c, OPERAND_DY, dy, 0, c->n, out), b = operand_of(c, OPERAND_X, x, 0, c->n, in);
	linear_backward_input(c, dx, 0, &a, w, in, out);
	linear_backward_weights(c, dw, db, beta, &a, &b, in, out);
}

void norm_forward(const struct chunk *c, void *y, const void *x, const struct weights *w, struct norm norm)
{
	LAUNCH(c, OP_NORM_FORWARD, norm_forward, .y = y, .rstd = c->s.rstd, .x = x, .w = w->t[norm.w], .n = c->n,
		.h = c->geo->hidden, .eps = c->geo->norm_eps, .mean = c->geo->flags & MT_LAYERNORM ? c->s.mean : NULL,
		.b = w->t[norm.b], .one = !!(c->geo->flags & MT_NORM_ONE));
}

/* Uses the statistics in the scratch, which norm_forward over the same x has just written */
void norm_backward(const struct chunk *c, void *dx, int add_dx, const struct grads *g, float beta, const void *dy,
	const void *x, const struct weights *w, struct norm norm)
{
	LAUNCH(c, OP_NORM_BACKWARD, norm_backward, .dx = dx, .add_dx = add_dx, .dw = g->t[norm.w], .beta = beta, .dy = dy,
		.x = x, .w = w->t[norm.w], .rstd = c->s.rstd, .n = c->n, .h = c->geo->hidden,
		.mean = c->geo->flags & MT_LAYERNORM ? c->s.mean : NULL, .db = g->t[norm.b],
		.one = !!(c->geo->flags & MT_NORM_ONE));
}

/* y (N, H) = add + scale x */
void scaled_add(const struct chunk *c, void *y, const void *x, const void *add, float scale)
{
	LAUNCH(c, OP_SCALED_ADD, scaled_add, .y = y, .x = x, .add = add, .n = c->n * c->geo->hidden, .scale = scale);
}

void scale_columns(const struct chunk *c, void *x, int64_t width, int64_t ld, float scale)
{
	if (scale != 1)
		LAUNCH(c, OP_SCALED_ADD, scaled_add, .y = x, .x = x, .n = c->n * width, .scale = scale, .width = width,
			.ld = ld);
}
