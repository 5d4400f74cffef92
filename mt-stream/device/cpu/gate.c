/* gate.c: the gated norm of gated DeltaNet and Mamba 2, and the output gate of attention, forward and backward */
#include "cpu.h"
#include "ops/gate.h"

ROWS_OPERATION(gated_norm_forward, gated_norm)
ROWS_OPERATION(gate_forward, gate)
ROWS_OPERATION(gate_backward, gate)

static void norm_backward_rows(const void *args, int64_t first, int64_t end, float *dw)
{
	cpu_kernels()->gated_norm_backward(args, dw, first, end);
}

void op_gated_norm_backward(struct pool *pool, const struct gated_norm_args *a)
{
	sum_rows(pool, a->n, norm_backward_rows, a, a->dw, a->beta, gated_norm_weights(a));
}
