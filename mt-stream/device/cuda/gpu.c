/* gpu.c: finds a GPU and the library for its GEMMs. mt-plan has this file alone of the cuda device. */
#include <stdio.h>

#include "gpu.h"
#include "library.h"
#include "mt/error.h"
#include "os.h"

#ifdef MT_EMU
#include "cublaslt.h"
#else
#include <cublasLt.h>
#endif

#define HOST_PART 8 /* of memory that the host has, too, 1 / HOST_PART is left to others */
#define LIBRARY "libcublasLt.so."
#define STRING(x) #x
#define EXPAND(x) STRING(x)

void *cublaslt_open(void)
{
	void *library = library_find("MT_CUBLASLT", LIBRARY EXPAND(CUBLAS_VER_MAJOR));
	if (!library)
		mt_fail(MT_EX_CONFIG,
			"cuda: " LIBRARY EXPAND(CUBLAS_VER_MAJOR) " is not there: put its directory into "
													  "LD_LIBRARY_PATH, or its path into MT_CUBLASLT");
	return library;
}

int cuda_failed(cudaError_t e, const char *call)
{
	return mt_fail(e == cudaErrorMemoryAllocation ? MT_EX_NOMEM : MT_EX_IO, "cuda: %s: %s (%s)", call,
		cudaGetErrorName(e), cudaGetErrorString(e));
}

static int attribute(int ordinal, enum cudaDeviceAttr a)
{
	int n = 0;
	if (cudaDeviceGetAttribute(&n, a, ordinal) != cudaSuccess) cudaGetLastError();
	return n;
}

/* How many GPUs are there? -78: none */
static int gpu_count(int *n)
{
	cudaError_t e = cudaGetDeviceCount(n);
	if (e == cudaErrorInsufficientDriver) /* also where there is no driver at all */
		return mt_fail(MT_EX_CONFIG,
			"device cuda: no NVIDIA driver, or one that is too old for CUDA %d (nvidia-smi prints its version); "
			"--device cpu works without",
			CUDART_VERSION / 1000);
	if (e != cudaSuccess || *n == 0)
		return mt_fail(MT_EX_CONFIG, "device cuda: no GPU: %s",
			e != cudaSuccess ? cudaGetErrorString(e) : "none found");
	return 0;
}

int gpu_list(void)
{
	struct cudaDeviceProp p;
	int n = 0, rc = gpu_count(&n);
	for (int i = 0; i < n && !rc; i++) {
		cudaError_t e = cudaGetDeviceProperties(&p, i);
		if (e != cudaSuccess) rc = cuda_failed(e, "cudaGetDeviceProperties");
		else
			printf("cuda:%d %s, sm_%d%d, %.0f GiB\n", i, p.name, p.major, p.minor,
				(double)p.totalGlobalMem / (1 << 30));
	}
	return rc;
}

int gpu_open(int ordinal, struct cudaDeviceProp *p, struct gpu *gpu)
{
	int n = 0, rc = gpu_count(&n);
	cudaError_t e;
	if (rc) return rc;
	if (ordinal >= n) return mt_fail(MT_EX_CONFIG, "device cuda:%d: there are %d GPUs, from 0", ordinal, n);
	if ((e = cudaSetDevice(ordinal)) != cudaSuccess) return cuda_failed(e, "cudaSetDevice");
	if ((e = cudaGetDeviceProperties(p, ordinal)) != cudaSuccess) return cuda_failed(e, "cudaGetDeviceProperties");
	if (p->major < 8)
		return mt_fail(MT_EX_CONFIG, "device cuda:%d: '%s' is of compute capability %d.%d: 8.0 or later is needed",
			ordinal, p->name, p->major, p->minor);
	*gpu = (struct gpu){
		.capability = 10 * p->major + p->minor,
		.multiprocessors = attribute(ordinal, cudaDevAttrMultiProcessorCount),
		.clock_khz = attribute(ordinal, cudaDevAttrClockRate),
		.memory_khz = attribute(ordinal, cudaDevAttrMemoryClockRate),
		.bus_bits = attribute(ordinal, cudaDevAttrGlobalMemoryBusWidth),
		.reads_registered = attribute(ordinal, cudaDevAttrCanUseHostPointerForRegisteredMem),
		.unified = attribute(ordinal, cudaDevAttrIntegrated),
		.host_tables = attribute(ordinal, cudaDevAttrPageableMemoryAccessUsesHostPageTables),
	};
	snprintf(gpu->model, sizeof gpu->model, "%s", p->name);
	return 0;
}

uint64_t gpu_available(const struct gpu *gpu)
{
	size_t available = 0, total;
	uint64_t host = gpu->unified ? mt_mem_available() : UINT64_MAX;
	/* cudaMemGetInfo knows neither pages of files, which the kernel takes back, nor limits of cgroups */
	if (host != UINT64_MAX) return host - host / HOST_PART;
	if (cudaMemGetInfo(&available, &total) != cudaSuccess) cudaGetLastError();
	return available;
}

int gpu_find(int ordinal, struct gpu *gpu, uint64_t *room)
{
	struct cudaDeviceProp p;
	int rc = gpu_open(ordinal, &p, gpu);
	if (rc) return rc;
	if (!cublaslt_open()) return -MT_EX_CONFIG;
	*room = gpu_available(gpu);
	return 0;
}
