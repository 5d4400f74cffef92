/* async.h: copies from global to shared memory that run while a thread computes (PTX ISA 9.0, 9.7.9.25.3 "cp.async")
 *
 * A thread's copies since its last copies_commit are a group. After copies_wait<N> all its groups but the last N have
 * arrived, for itself; for the block's other threads after the next barrier.
 */
#ifndef MT_STREAM_CUDA_ASYNC_H
#define MT_STREAM_CUDA_ASYNC_H

#include "common.h"

/* Copy 16 bytes, or zeros where `exists` is 0; both addresses are multiples of 16 */
static __device__ __forceinline__ void copy16_async(void *shared, const void *from, int exists)
{
#ifdef MT_EMU
	static const uint32_t zeros[4] = {0, 0, 0, 0};
	emu_copy16((void *)emu_aligned(shared, 16), exists ? emu_aligned(from, 16) : zeros);
#else
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
				 "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0)
				 : "memory");
#endif
}

static __device__ __forceinline__ void copies_commit(void)
{
#ifdef MT_EMU
	emu_copies_commit();
#else
	asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int N>
static __device__ __forceinline__ void copies_wait(void)
{
#ifdef MT_EMU
	emu_copies_wait(N);
#else
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
