/* driver.c: libcuda.so.1 for machines without a GPU: no device, but programs that only describe one may load the
 * machine code that it has made. cuDNN looks for these functions before it finishes a plan.
 */
#define NO_DEVICE 100 /* CUDA_ERROR_NO_DEVICE */
/* clang-format off */
#define REFUSED(X) \
	X(cuInit) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuCtxGetLimit) X(cuCtxPopCurrent) X(cuCtxPushCurrent) \
	X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDeviceGetCount) X(cuDevicePrimaryCtxRelease) \
	X(cuDevicePrimaryCtxReset) X(cuDevicePrimaryCtxRetain) X(cuFuncGetAttribute) X(cuFuncSetAttribute) \
	X(cuGetErrorName) X(cuGetErrorString) X(cuLaunchCooperativeKernel) X(cuLaunchKernel) X(cuLaunchKernelEx) \
	X(cuLibraryLoadFromFile) X(cuLinkAddData) X(cuLinkAddData_v2) X(cuLinkAddFile_v2) X(cuLinkComplete) \
	X(cuLinkCreate) X(cuLinkCreate_v2) X(cuLinkDestroy) X(cuMemcpyDtoH_v2) X(cuModuleGetFunction) \
	X(cuModuleGetGlobal_v2) X(cuModuleLoadData) X(cuModuleLoadDataEx) X(cuModuleLoadFatBinary) X(cuModuleUnload) \
	X(cuOccupancyMaxActiveBlocksPerMultiprocessor) X(cuOccupancyMaxPotentialClusterSize) X(cuStreamGetCtx) \
	X(cuStreamSynchronize) X(cuTensorMapEncodeIm2col) X(cuTensorMapEncodeTiled) X(cuKernelGetFunction)
/* clang-format on */
#define REFUSE(f) \
	int f(void); \
	int f(void) { return NO_DEVICE; }
REFUSED(REFUSE)

int cuDriverGetVersion(int *v), cuLibraryLoadData(void **), cuLibraryGetKernel(void **), cuLibraryUnload(void *);
int cuKernelGetAttribute(int *), cuKernelSetAttribute(void *);

static int thing;

int cuDriverGetVersion(int *v) { return *v = 13000, 0; }
int cuLibraryLoadData(void **library) { return *library = &thing, 0; }
int cuLibraryGetKernel(void **kernel) { return *kernel = &thing, 0; }
int cuLibraryUnload(void *library) { return (void)library, 0; }
int cuKernelGetAttribute(int *v) { return *v = 0, 0; }
int cuKernelSetAttribute(void *v) { return (void)v, 0; }
