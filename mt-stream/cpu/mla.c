/* mla.c: q, k and v of multi-head latent attention, forward and backward */
#include "cpu.h"

static void forward_rows(const void *args, int64_t first, int64_t end) { cpu_kernels()->mla_forward(args, first, end); }

void op_mla_forward(struct pool *pool, const struct mla_args *a) { run_rows(pool, a->n, forward_rows, a); }

static void backward_rows(const void *args, int64_t first, int64_t end)
{
	cpu_kernels()->mla_backward(args, first, end);
}

void op_mla_backward(struct pool *pool, const struct mla_args *a) { run_rows(pool, a->n, backward_rows, a); }
