/* altup.c: the copies of AltUp: their mixtures, and magnitudes */
#include "cpu.h"
#include "ops/altup.h"

ROWS_OPERATION(mix_forward, mix)
ROWS_OPERATION(mix_backward, mix)
ROWS_OPERATION(magnitude_forward, magnitude)
ROWS_OPERATION(magnitude_backward, magnitude)
