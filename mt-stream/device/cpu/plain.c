/* plain.c: the kernels with 4 lanes; the compiler uses SSE2, NEON or scalars */
#define VW 4
#define MR 4
#define KERNELS_NAME "plain"
#include "kernels.h"

KERNELS(cpu_kernels_plain);
