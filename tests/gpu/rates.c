/* rates: what this machine can do, as JSON: registering shared memory, copies of it to and from the GPU, alone and at once,
 * and cuBLASLt's product of 8192 x 8192 x 8192 random bf16 over SECONDS.
 *
 * usage: rates [GIB [SECONDS]]
 */
#include <sys/mman.h>

#include "common.h"

static double copies(void *dev_in, void *dev_out, char *host, size_t bytes, cudaStream_t in, cudaStream_t out)
{
	double began;

	for (int round = 0; round < 2; round++) {       /* the first is for warmth */
		began = mt_now();
		if (in)
			must(cudaMemcpyAsync(dev_in, host, bytes / 2, cudaMemcpyHostToDevice, in), "H2D");
		if (out)
			must(cudaMemcpyAsync(host + bytes / 2, dev_out, bytes / 2, cudaMemcpyDeviceToHost, out), "D2H");
		must(cudaDeviceSynchronize(), "copies");
	}
	return (double)bytes / 2 / (mt_now() - began) / 1e9;
}

static double product_rate(double seconds)
{
	int64_t n = 8192, done = 0;
	struct gemms *g = library_open();
	struct cuda_queue q = {.elem = 2};
	struct cuda_gemm p = {.m = n, .n = n, .k = n, .a = device_random((size_t)(n * n) * 2, 1), .lda = n,
		.b = device_random((size_t)(n * n) * 2, 2), .ldb = n, .trans_b = 1, .c = device_random((size_t)(n * n) * 2, 3),
		.ldc = n};
	double began = 0;

	must(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking), "cudaStreamCreate");
	for (int warm = 1; warm || mt_now() - began < seconds; warm = 0) {
		for (int i = 0; i < 20; i++)
			if (gemms_run(g, &q, &p)) {
				fprintf(stderr, "rates: %s\n", mt_errmsg());
				exit(1);
			}
		must(cudaStreamSynchronize(q.stream), "products");
		if (warm)
			began = mt_now();
		else
			done += 20;
	}
	return (double)done * 2 * (double)(n * n * n) / (mt_now() - began) / 1e12;
}

int main(int argc, char **argv)
{
	size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 4) << 30;
	double seconds = argc > 2 ? atof(argv[2]) : 10, began;
	char *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	void *dev_in, *dev_out;
	cudaStream_t in, out;

	if (host == MAP_FAILED) {
		perror("rates: mmap");
		return 1;
	}
	memset(host, 1, bytes);
	must(cudaMalloc(&dev_in, bytes / 2), "cudaMalloc");
	must(cudaMalloc(&dev_out, bytes / 2), "cudaMalloc");
	must(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking), "cudaStreamCreate");
	must(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking), "cudaStreamCreate");
	began = mt_now();
	cudaError_t e = cudaHostRegister(host, bytes, cudaHostRegisterDefault);
	if (e == cudaSuccess)
		printf("{\"register_gib_s\": %.2f, ", (double)(bytes >> 30) / (mt_now() - began));
	else
		printf("{\"register\": \"%s\", ", cudaGetErrorName(e));
	cudaGetLastError();
	printf("\"h2d_gb_s\": %.1f, ", copies(dev_in, dev_out, host, bytes, in, NULL));
	printf("\"d2h_gb_s\": %.1f, ", copies(dev_in, dev_out, host, bytes, NULL, out));
	printf("\"both_gb_s_each\": %.1f, ", copies(dev_in, dev_out, host, bytes, in, out));
	printf("\"cublas_tflops\": %.1f}\n", product_rate(seconds));
	return 0;
}
