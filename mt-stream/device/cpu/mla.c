/* mla.c: q, k and v of multi-head latent attention, forward and backward */
#include "cpu.h"
#include "ops/mla.h"

ROWS_OPERATION(mla_forward, mla)
ROWS_OPERATION(mla_backward, mla)
