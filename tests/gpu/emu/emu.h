/* emu.h: enough of CUDA to run mt-stream's kernels and its cuda device on a CPU, against them.
 *
 * A kernel's source is compiled by g++ with -DMT_EMU. Each thread of a block is a coroutine; which one goes on after a
 * barrier or a warp operation is drawn by a seed (emu_seed), so that what lacks a __syncthreads reads what is not there
 * yet. Shared memory is poisoned before each block. A barrier that not all threads of a block reach ends the process.
 *
 * The runtime below is as lazy as CUDA allows: what is launched on a stream runs when the host waits for an event, or
 * by chance; a stream is drawn among those that no event holds back, by odds that change, so that streams lag and lead.
 * A copy spoils what it will write, then runs in two parts.
 *
 * What CUDA refuses, or leaves undefined, ends the process: launches beyond the limits of any target, more shared
 * memory than a kernel asked for, accesses of 16 bytes off alignment, asynchronous copies of pageable memory, copies
 * across two registrations, copies beyond an allocation. Overlapping registrations are refused as CUDA refuses them.
 */
#ifndef EMU_H
#define EMU_H

#include <stddef.h>
#include <stdint.h>

/* ---- the runtime's part that cuda/device.c uses, C ---- */
#ifdef __cplusplus
extern "C" {
#endif

#define CUDART_VERSION 13000
typedef enum {
	cudaSuccess,
	cudaErrorInvalidValue,
	cudaErrorMemoryAllocation,
	cudaErrorInsufficientDriver = 35,
	cudaErrorInvalidDeviceFunction = 98,
	cudaErrorNoDevice = 100,
	cudaErrorNoKernelImageForDevice = 209,
	cudaErrorNotReady = 600,
	cudaErrorLaunchFailure = 719,
	cudaErrorHostMemoryAlreadyRegistered = 712
} cudaError_t;
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum {
	cudaStreamNonBlocking = 1,
	cudaEventDefault = 0,
	cudaEventDisableTiming = 2,
	cudaEventBlockingSync = 1,
	cudaHostRegisterDefault = 0,
	cudaHostRegisterMapped = 2,
	cudaHostAllocDefault = 0,
	cudaHostRegisterPortable = 1
};
struct cudaDeviceProp {
	char name[256];
	int major, minor, multiProcessorCount;
	size_t totalGlobalMem;
};
enum cudaDeviceAttr {
	cudaDevAttrClockRate = 13,
	cudaDevAttrMultiProcessorCount = 16,
	cudaDevAttrIntegrated = 18,
	cudaDevAttrMemoryClockRate = 36,
	cudaDevAttrGlobalMemoryBusWidth = 37,
	cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
	cudaDevAttrPageableMemoryAccessUsesHostPageTables = 100
};

#define CUDART_CB
typedef void (*cudaHostFn_t)(void *);
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

cudaError_t cudaDeviceGetAttribute(int *, enum cudaDeviceAttr, int);
cudaError_t cudaGetDeviceCount(int *), cudaSetDevice(int), cudaGetDeviceProperties(struct cudaDeviceProp *, int);
cudaError_t cudaDriverGetVersion(int *), cudaDeviceGetPCIBusId(char *, int bytes, int);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMalloc(void **, size_t), cudaFree(void *), cudaHostAlloc(void **, size_t, unsigned),
	cudaFreeHost(void *);
cudaError_t cudaHostRegister(void *, size_t, unsigned), cudaHostUnregister(void *);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *, unsigned), cudaStreamDestroy(cudaStream_t);
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t, void *), cudaDeviceSynchronize(void);
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute, int);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *, unsigned), cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t), cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventQuery(cudaEvent_t), cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t);
cudaError_t cudaGetLastError(void);
/* of tests/gpu's own programs: at once, when all streams are at rest */
cudaError_t cudaStreamSynchronize(cudaStream_t), cudaMemset(void *, int, size_t);
cudaError_t cudaMemcpy(void *, const void *, size_t, enum cudaMemcpyKind);
const char *cudaGetErrorName(cudaError_t), *cudaGetErrorString(cudaError_t);

void emu_seed(uint64_t seed);
void emu_takes(double ms); /* lengthens the running operation by ms, as events see it */

#ifdef __cplusplus
}

/* ---- the kernels' part, C++ ---- */

#include <functional>

struct emu_index {
	unsigned x, y, z;
};
extern struct emu_index threadIdx, blockIdx, blockDim, gridDim;
extern char *emu_shared;
extern bool emu_broken; /* as after a kernel's invalid access: every wait for the device fails */
struct float4 {
	float x, y, z, w;
};

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

/* `bytes` of shared memory a block; run now where stream is NULL */
void emu_launch(const void *kernel, uint64_t blocks, unsigned threads, size_t bytes, cudaStream_t stream,
	std::function<void()> thread);
/* As CUDA does, it takes the arguments' values at the launch: their sources may be gone when the kernel runs */
template <typename... P, typename... A>
static inline void emu_call(void (*kernel)(P...), uint64_t blocks, unsigned threads, size_t bytes, cudaStream_t stream,
	A... args)
{
	emu_launch((const void *)kernel, blocks, threads, bytes, stream, [=] { kernel(args...); });
}
#define LAUNCH(kernel, blocks, threads, shared, stream, ...) \
	emu_call(kernel, (uint64_t)(blocks), (threads), (shared), (stream), __VA_ARGS__)
/* p, which `bytes` are read from or written to at once */
const void *emu_aligned(const void *p, size_t bytes);

/* What emu_saw is called for, if a program that watches a kernel's accesses (watch.h) defines it */
enum emu_news {
	EMU_LAUNCH,   /* a launch begins; its shared memory is from p to q */
	EMU_BLOCK,    /* a block begins */
	EMU_BARRIER,  /* all of its threads have reached a barrier */
	EMU_WARP,     /* a thread has reached a warp operation */
	EMU_SYNCWARP, /* the same: it is a __syncwarp */
	EMU_WIDE,     /* a thread accesses 16 bytes at p, by instruction q */
	EMU_COPY,     /* it begins to copy 16 bytes to p from q */
	EMU_ARRIVED,  /* it has waited for that copy */
	EMU_SENDS,    /* it has begun to copy a box, by pieces with EMU_COPY, which counts for mbarrier p */
	EMU_LANDED,   /* a piece of a box has arrived at p from q, if that is not NULL */
	EMU_LOADS,    /* a thread's warp begins to load 16 bytes at p for tensor cores, by instruction q */
	EMU_LOADED,   /* it has waited for that */
	EMU_ARRIVES,  /* a thread arrives at mbarrier p */
	EMU_PASSES,   /* it has waited at it */
	EMU_FENCE,    /* what it has stored is there for copies and tensor cores */
	EMU_END       /* of a launch */
};
void emu_saw(enum emu_news, const void *p, const void *q) __attribute__((weak));
#define DYNAMIC_SHARED(type, name) type *name = (type *)emu_shared

/* A thread's copies of 16 bytes to shared memory, which run while it goes on (PTX: cp.async). Some are done at once;
 * the others leave garbage until a wait, which lets all but the last `groups` groups arrive. */
void emu_copy16(void *dst, const void *src);
void emu_copies_commit(void);
void emu_copies_wait(unsigned groups);

/* mbarriers, copies of boxes and wgmma: wgmma.h says what they do. n and bytes apart: of x, y and z, of y and z */
struct emu_map {
	const char *base;
	int64_t n[3], apart[2];
	int rows;
};
uint32_t emu_shared_address(const void *);
void emu_barrier_init(uint64_t *, unsigned arrivals), emu_barrier_arrive(uint64_t *, unsigned bytes);
void emu_barrier_wait(uint64_t *, unsigned parity);
bool emu_map_make(struct emu_map *, const void *of, const int64_t n[3], int64_t ld, int64_t stride, int rows);
void emu_copy_box(void *shared, const struct emu_map *, int x, int y, int z, uint64_t *barrier);
void emu_fence_async(void);
void emu_wgmma(float *c, uint64_t a, uint64_t b, int a_by_terms, int b_by_terms);
void emu_wgmma_fence(void), emu_wgmma_commit(void), emu_wgmma_wait(unsigned groups);

void __syncthreads(void);
void __syncwarp(unsigned mask = 0xffffffffu);
/* every lane of the warp gives `mine` and sees all 32 in *all until its next warp operation */
struct emu_word {
	uint64_t w[4];
};
void emu_exchange(const struct emu_word *mine, const struct emu_word **all);

template <typename V>
static inline V emu_shuffle(V v, unsigned from)
{
	struct emu_word mine = {{0}};
	const struct emu_word *all;
	V got;

	__builtin_memcpy(&mine, &v, sizeof v);
	emu_exchange(&mine, &all);
	__builtin_memcpy(&got, &all[from & 31], sizeof got);
	return got;
}
template <typename V>
static inline V __shfl_xor_sync(unsigned, V v, int lanes)
{
	return emu_shuffle(v, (threadIdx.x & 31) ^ (unsigned)lanes);
}
template <typename V>
static inline V __shfl_sync(unsigned, V v, int lane)
{
	return emu_shuffle(v, (unsigned)lane);
}
static inline unsigned __ballot_sync(unsigned, int predicate)
{
	struct emu_word mine = {{(uint64_t)(predicate != 0)}};
	const struct emu_word *all;
	unsigned votes = 0;
	emu_exchange(&mine, &all);
	for (int i = 0; i < 32; i++) votes |= (unsigned)all[i].w[0] << i;
	return votes;
}
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
/* (glibc 2.42 has a function of this name) */
static inline float emu_rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
#define rsqrtf emu_rsqrtf
#endif
#endif
