/* conv.c: a short causal convolution with the norm of q and k heads, forward and backward */
#include "cpu.h"
#include "ops/conv.h"

static void forward_rows(const void *args, int64_t first, int64_t end)
{
	const struct conv_args *a = args;
	cpu_kernels()->conv_forward(a, first - a->redo, end - a->redo);
}

void op_conv_forward(struct pool *pool, const struct conv_args *a) { run_rows(pool, a->n + a->redo, forward_rows, a); }

static void backward_rows(const void *args, int64_t first, int64_t end, float *sum)
{
	const struct conv_args *a = args;
	cpu_kernels()->conv_backward(a, sum, a->bias ? sum + a->channels * a->width : NULL, first, end);
}

void op_conv_backward(struct pool *pool, const struct conv_args *a)
{
	struct sums of[2] = {{a->dw, a->channels * a->width}, {a->dbias, a->channels}};
	sum_rows_each(pool, a->n, backward_rows, a, of, a->bias ? 2 : 1, a->beta);
}
