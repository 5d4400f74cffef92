/* cuda-balance.c: balance.c's cases on the emulated kernels of the cuda device (tests/gpu/emu), in fp32, and the
 * gradient in bf16. Where balance.c has pools, here are seeds: in each, the threads of a block go on in another
 * order. */
#include <stdint.h>
#include <stdlib.h>

#include "../../mt-stream/ops.h"
#include "../../mt-stream/cuda/kernels.h"

#define main balance_main
#include "balance.c"
#undef main

struct pool {
	uint64_t seed;
};

static struct cuda_queue queue = {.elem = 4};

struct pool *pool_create(int threads, int spins, void (*start)(void))
{
	struct pool *p = malloc(sizeof *p);
	(void)spins;
	(void)start;
	if (p) p->seed = (uint64_t)threads;
	return p;
}

void pool_free(struct pool *p) { free(p); }

void op_balance_forward(struct pool *p, const struct balance_args *a)
{
	emu_seed(p->seed);
	cuda_balance_forward(&queue, a);
	cudaDeviceSynchronize();
}

void op_balance_backward(struct pool *p, const struct balance_args *a)
{
	emu_seed(p->seed);
	cuda_balance_backward(&queue, a);
	cudaDeviceSynchronize();
}

static float widen(uint16_t x)
{
	uint32_t b = (uint32_t)x << 16;
	float f;
	memcpy(&f, &b, 4);
	return f;
}

/* What is added is rounded once */
static void in_bf16(void)
{
	static uint16_t d[N * E];
	struct balance_args a = args(0);
	double worst = 0;
	fill();
	op_balance_forward(pools[0], &a);
	a.aux = 1e-4;
	a.z = 1e-3;
	memset(dlogits, 0, sizeof dlogits);
	op_balance_backward(pools[0], &a);
	for (int i = 0; i < N * E; i++) d[i] = 0x3f80; /* 1 */
	a.dlogits = d;
	queue.elem = 2;
	op_balance_backward(pools[0], &a);
	for (int i = 0; i < N * E; i++) worst = fmax(worst, fabs(widen(d[i]) - 1 - (double)dlogits[0][i]));
	say(worst > 1e-4 && worst <= 0x1p-8, "in bf16, the gradient is added and rounded");
}

int main(void)
{
	queue.work_bytes = cuda_work_bytes(4096, 64);
	queue.work = malloc(queue.work_bytes);
	if (!queue.work || balance_main()) return 1;
	for (int p = 0; p < POOLS; p++) pools[p] = pool_create(p + 1, 0, NULL);
	in_bf16();
	return failures != 0;
}
