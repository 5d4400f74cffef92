/* gate.c: the gated norm of gated DeltaNet and Mamba 2, and the output gate of attention, forward and backward */
#include "cpu.h"

static void norm_forward_rows(const void *args, int64_t first, int64_t end)
{
	cpu_kernels()->gated_norm_forward(args, first, end);
}

void op_gated_norm_forward(struct pool *pool, const struct gated_norm_args *a)
{
	run_rows(pool, a->n, norm_forward_rows, a);
}

static void norm_backward_rows(const void *args, int64_t first, int64_t end, float *dw)
{
	cpu_kernels()->gated_norm_backward(args, dw, first, end);
}

void op_gated_norm_backward(struct pool *pool, const struct gated_norm_args *a)
{
	sum_rows(pool, a->n, norm_backward_rows, a, a->dw, a->beta, gated_norm_weights(a));
}

static void forward_rows(const void *args, int64_t first, int64_t end)
{
	cpu_kernels()->gate_forward(args, first, end);
}

void op_gate_forward(struct pool *pool, const struct gate_args *a) { run_rows(pool, a->n, forward_rows, a); }

static void backward_rows(const void *args, int64_t first, int64_t end)
{
	cpu_kernels()->gate_backward(args, first, end);
}

void op_gate_backward(struct pool *pool, const struct gate_args *a) { run_rows(pool, a->n, backward_rows, a); }
