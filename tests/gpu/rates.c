/* rates: measures this machine; prints a line of JSON for each rate at once: cuBLASLt's GEMM of 8192 x 8192 x 8192
 * random bf16; registering a run's weights with the driver; copies of them to and from the GPU, alone and both at once;
 * the update on one core, on half of the cores and on all, alone and during copies. The run must be filled and have no
 * stages. It does not change: copies out return what copies in took, and the update has learning rate 0 and gradients
 * 0.
 *
 * usage: rates RUN [SECONDS [GIB [N]]] seconds of GEMM; most GiB to register; GEMM's size. RUN -: GEMM only
 */
#include <pthread.h>
#include <unistd.h>

#include "../../mt-optim/update.h"
#include "common.h"

#define MOST_THREADS 256
#define PINNED (64u << 20)
#define UPDATED 1e9 /* parameters of an update: 26 GB pass through memory, more than any cache holds */

/* ---- copies of registered weights ---- */

struct piece {
	char *host;
	size_t bytes;
};

static struct piece *pieces;
static uint32_t pieces_n, registered_n;
static size_t bytes_all, bytes_most;
static void *dev_in, *dev_out;
static cudaStream_t in, out;

/* Register units' weights, up to `most` bytes; prints the result as JSON. If the GPU uses the host's page tables, a run
 * registers none: then they are copied as they are. */
static void weights_register(struct mt_run *run, size_t most)
{
	const struct mt_control *c = mt_control(run);
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	double began = mt_now();
	cudaError_t e = cudaSuccess;
	int direct = 0;
	must(cudaDeviceGetAttribute(&direct, cudaDevAttrPageableMemoryAccessUsesHostPageTables, 0), "an attribute");
	pieces = calloc(c->n_units, sizeof *pieces);
	for (uint32_t u = 0; u < c->n_units && e == cudaSuccess && (!u || bytes_all < most); u++) {
		struct piece p = {mt_at(run, mt_unit(run, u)->w), mt_unit(run, u)->elems * (c->dtype == MT_BF16 ? 2 : 4)};
		p.bytes = (p.bytes + page - 1) & ~(page - 1);
		if (!direct) e = cudaHostRegister(p.host, p.bytes, cudaHostRegisterDefault);
		if (e != cudaSuccess) break;
		pieces[pieces_n++] = p;
		bytes_all += p.bytes;
		bytes_most = p.bytes > bytes_most ? p.bytes : bytes_most;
	}
	cudaGetLastError();
	registered_n = direct ? 0 : pieces_n;
	if (e != cudaSuccess) printf("{\"what\": \"register\", \"refused\": \"%s\"}\n", cudaGetErrorName(e));
	if (registered_n)
		printf("{\"what\": \"register\", \"gib\": %.2f, \"s\": %.3f, \"s_gib\": %.4f}\n", (double)bytes_all / 0x1p30,
			mt_now() - began, (mt_now() - began) / ((double)bytes_all / 0x1p30));
}

static void weights_unregister(void)
{
	if (!registered_n) return;
	double began = mt_now();

	for (uint32_t i = 0; i < registered_n; i++) cudaHostUnregister(pieces[i].host);
	printf("{\"what\": \"unregister\", \"s_gib\": %.4f}\n", (mt_now() - began) / ((double)bytes_all / 0x1p30));
}

/* Copies in each requested direction for some seconds; GB/s of each. Copies out return what was copied in. */
static void copies(bool to, bool from, double seconds, double rate[2])
{
	double spent = 0, moved[2] = {0};
	for (uint32_t i = 0; spent < seconds; i++) {
		const struct piece *p = &pieces[i % pieces_n], *q = &pieces[(i + 1) % pieces_n];
		if (from) must(cudaMemcpyAsync(dev_out, p->host, p->bytes, cudaMemcpyHostToDevice, out), "H2D");
		must(cudaStreamSynchronize(out), "H2D");
		double began = mt_now();
		for (int k = 0; k < 4; k++) {
			if (to) must(cudaMemcpyAsync(dev_in, q->host, q->bytes, cudaMemcpyHostToDevice, in), "H2D");
			if (from) must(cudaMemcpyAsync(p->host, dev_out, p->bytes, cudaMemcpyDeviceToHost, out), "D2H");
		}
		must(cudaStreamSynchronize(in), "H2D");
		must(cudaStreamSynchronize(out), "D2H");
		spent += mt_now() - began;
		moved[0] += to ? 4 * (double)q->bytes : 0;
		moved[1] += from ? 4 * (double)p->bytes : 0;
	}
	rate[0] = moved[0] / spent / 1e9;
	rate[1] = moved[1] / spent / 1e9;
}

static atomic_bool enough;

static void *copies_main(void *arg)
{
	double *mean = arg, rate[2];
	int n = 0;
	for (*mean = 0; !atomic_load(&enough); n++) {
		copies(true, false, 0.2, rate);
		*mean += rate[0];
	}
	*mean /= n ? n : 1;
	return NULL;
}

/* ---- mt-optim's update: each thread has its part of every unit ---- */

struct worker {
	pthread_t thread;
	struct mt_run *run;
	update_fn *fn;
	uint64_t share, shares;
	uint32_t units;
};

static void *worker_main(void *arg)
{
	struct worker *k = arg;
	struct mt_partition *partition = aligned_alloc(64, sizeof *partition);
	struct scalars a = update_scalars(MT_ADAMW, 10, &(struct mt_hyperparams){0, 0.9, 0.999, 1e-8, 0, 0}, 1);
	flush_denormals();
	memset(partition, 0, sizeof *partition);
	for (uint32_t u = 0; u < k->units; u++) {
		const struct mt_unit *unit = mt_unit(k->run, u);
		struct tile t = {.w = mt_at(k->run, unit->w),
			.lo = unit->lo ? mt_at(k->run, unit->lo) : NULL,
			.m = mt_at(k->run, unit->m),
			.v = mt_at(k->run, unit->v),
			.state = (enum mt_dtype)mt_control(k->run)->state,
			.m_scale = int8_scales(mt_at(k->run, unit->m), unit->elems),
			.v_scale = int8_scales(mt_at(k->run, unit->v), unit->elems),
			.g = {mt_at(k->run, unit->g[0]), NULL},
			.g_bf16 = mt_control(k->run)->grad == MT_BF16};
		uint64_t groups = unit->elems / MT_GROUP;
		k->fn(&a, &t, partition, partition_tag(1, u), groups * k->share / k->shares,
			groups * (k->share + 1) / k->shares, 1);
	}
	free(partition);
	return NULL;
}

/* 1e9 parameters a second */
static double update_rate(struct mt_run *run, int threads)
{
	static struct worker k[MOST_THREADS];
	const struct mt_control *c = mt_control(run);
	double best = 0, all = 0;
	uint32_t units = 0;
	while (units < c->n_units && all < UPDATED) all += (double)mt_unit(run, units++)->elems;
	for (int round = 0; round < 3; round++) { /* the first is a warm-up */
		double began = mt_now();

		for (int i = 0; i < threads; i++) {
			k[i] = (struct worker){.run = run,
				.fn = update_choose(),
				.share = (uint64_t)i,
				.shares = (uint64_t)threads,
				.units = units};
			if (pthread_create(&k[i].thread, NULL, worker_main, &k[i])) exit(71);
		}
		for (int i = 0; i < threads; i++) pthread_join(k[i].thread, NULL);
		double rate = all / (mt_now() - began) / 1e9;
		best = round && rate > best ? rate : best;
	}
	return best;
}

static void updates(struct mt_run *run)
{
	const struct mt_control *c = mt_control(run);
	int cores = mt_cores() < MOST_THREADS ? mt_cores() : MOST_THREADS;
	const char *state = c->state == MT_FP32 ? "fp32" : c->state == MT_BF16 ? "bf16" : "int8";
	double of_state = c->state == MT_FP32 ? 4 : c->state == MT_BF16 ? 2 : 1 + 4.0 / MT_GROUP;
	/* w, lo, m, v read and written, g read */
	double touched = 8 + 4 * of_state + (c->grad == MT_BF16 ? 2 : 4), beside = 0;
	pthread_t copier;
	if (c->grad == MT_NONE) return;
	int threads[] = {1, cores / 2, cores};
	for (int i = 0; i < 3; i++) {
		int n = threads[i];
		if (i && n <= threads[i - 1]) continue;
		double rate = update_rate(run, n);
		printf("{\"what\": \"adam\", \"state\": \"%s\", \"threads\": %d, \"gparams_s\": %.3f, \"gb_s\": %.1f}\n", state,
			n, rate, rate * touched);
	}
	if (!pieces_n || pthread_create(&copier, NULL, copies_main, &beside)) return;
	double rate = update_rate(run, cores);
	atomic_store(&enough, true);
	pthread_join(copier, NULL);
	printf("{\"what\": \"adam beside h2d\", \"state\": \"%s\", \"threads\": %d, \"gparams_s\": %.3f, \"gb_s\": %.1f, "
		   "\"h2d_gb_s\": %.1f}\n",
		state, cores, rate, rate * touched, beside);
}

/* ---- GEMM ---- */

static void gemms(double seconds, int64_t n)
{
	int64_t times = 0;
	struct gemms *g = gemms_here();
	struct cuda_queue q = {.elem = 2};
	struct gemm_args p = {.m = n,
		.n = n,
		.k = n,
		.a = device_random((size_t)(n * n) * 2, 1),
		.lda = n,
		.b = device_random((size_t)(n * n) * 2, 2),
		.ldb = n,
		.trans_b = 1,
		.c = device_random((size_t)(n * n) * 2, 3),
		.ldc = n};
	double began = 0;
	must(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking), "cudaStreamCreate");
	/* by the fastest algorithm, which mt-stream would select */
	must_not(gemms_select(g, &q, &p));
	for (int warm = 1; warm || mt_now() - began < seconds; warm = 0) {
		for (int i = 0; i < 20; i++) must_not(gemms_run(g, &q, &p));
		must(cudaStreamSynchronize(q.stream), "gemms");
		if (warm) began = mt_now();
		else times += 20;
	}
	printf("{\"what\": \"gemm\", \"n\": %lld, \"s\": %.1f, \"tflops\": %.1f}\n", (long long)n, mt_now() - began,
		(double)times * 2 * (double)(n * n * n) / (mt_now() - began) / 1e12);
}

static void all_copies(struct mt_run *run, size_t most, double seconds)
{
	double rate[2];
	weights_register(run, most);
	if (!pieces_n) { /* then measure the driver's own pinned memory */
		must(cudaHostAlloc((void **)&pieces[0].host, PINNED, cudaHostAllocDefault), "cudaHostAlloc");
		bytes_most = pieces[0].bytes = PINNED;
		pieces_n = 1;
	}
	dev_in = device_bytes(bytes_most);
	dev_out = device_bytes(bytes_most);
	copies(true, false, seconds / 5, rate); /* a warm-up */
	copies(true, false, seconds, rate);
	printf("{\"what\": \"h2d\", \"gb_s\": %.1f}\n", rate[0]);
	copies(false, true, seconds, rate);
	printf("{\"what\": \"d2h\", \"gb_s\": %.1f}\n", rate[1]);
	copies(true, true, seconds, rate);
	printf("{\"what\": \"both ways\", \"h2d_gb_s\": %.1f, \"d2h_gb_s\": %.1f}\n", rate[0], rate[1]);
}

int main(int argc, char **argv)
{
	double seconds = argc > 2 ? atof(argv[2]) : 10, gib = argc > 3 ? atof(argv[3]) : 16;
	int64_t n = argc > 4 ? atoll(argv[4]) : 8192;
	struct mt_run *run;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 2 || n < 16 || n > 65536) mt_die(MT_EX_USAGE, "usage: rates RUN [SECONDS [GIB [N]]]");
	must(cudaSetDevice(0), "cudaSetDevice");
	must(cudaStreamCreateWithFlags(&in, cudaStreamNonBlocking), "cudaStreamCreate");
	must(cudaStreamCreateWithFlags(&out, cudaStreamNonBlocking), "cudaStreamCreate");
	gemms(seconds, n); /* the limit that all else is compared with */
	if (strcmp(argv[1], "-")) {
		mt_must(mt_run_open(&run, argv[1], MT_RUN_WEIGHTS));
		all_copies(run, (size_t)(gib * 0x1p30), seconds < 1 ? seconds : 1);
		updates(run);
		weights_unregister();
		mt_run_close(run);
	}
	return 0;
}
