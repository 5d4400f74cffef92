/* plain.c: the kernels in four lanes, for whatever the compiler makes of them: SSE2, NEON or scalars */
#define VW 4
#define MR 4
#define KERNELS_NAME "plain"
#include "kernels.h"

KERNELS(cpu_kernels_plain);
