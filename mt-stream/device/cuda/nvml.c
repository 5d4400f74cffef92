/* nvml.c: what the GPU's sensors say, by NVIDIA's management library (NVML), which comes with the driver. A thread
 * stores it in the stage's slot once a second, for mt-top and others. Training never waits for it: where the library is
 * missing, fails or hangs, the slot lacks the values, and all else is the same.
 *
 * Functions and numbers are nvml.h's (docs.nvidia.com/deploy/nvml-api), which not every toolkit has. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"
#include "gpu.h"
#include "mt/control.h"

enum { CLOCK_OF_SMS = 1, TEMPERATURE_OF_GPU = 0, OF_NO_KIND = -1 };
enum { EVERY_S = 1, PATIENCE_S = 1 };

/* Each function takes the GPU, a kind where there are several, and where the result goes: 32 bits, 64 bits, or three
 * times 64 for memory (total, free, used), of which number `at` is taken */
static const struct reading {
	const char *function;
	int kind, at, field;
} readings[] = {
	{"nvmlDeviceGetMemoryInfo", OF_NO_KIND, 0, MT_GPU_memory},
	{"nvmlDeviceGetMemoryInfo", OF_NO_KIND, 2, MT_GPU_memory_used},
	{"nvmlDeviceGetPowerUsage", OF_NO_KIND, 0, MT_GPU_power},
	{"nvmlDeviceGetEnforcedPowerLimit", OF_NO_KIND, 0, MT_GPU_power_limit},
	{"nvmlDeviceGetClockInfo", CLOCK_OF_SMS, 0, MT_GPU_clock},
	{"nvmlDeviceGetMaxClockInfo", CLOCK_OF_SMS, 0, MT_GPU_clock_limit},
	{"nvmlDeviceGetTemperature", TEMPERATURE_OF_GPU, 0, MT_GPU_temperature},
	{"nvmlDeviceGetTotalEnergyConsumption", OF_NO_KIND, 0, MT_GPU_energy},
	{"nvmlDeviceGetCurrentClocksThrottleReasons", OF_NO_KIND, 0, MT_GPU_reasons}, /* before driver 535 */
	{"nvmlDeviceGetCurrentClocksEventReasons", OF_NO_KIND, 0, MT_GPU_reasons},
};
enum { READINGS = sizeof readings / sizeof *readings };

typedef int plain_fn(void *gpu, void *result);
typedef int kind_fn(void *gpu, int kind, void *result);

struct sensors {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;                                /* from then on the slot is not written */
	_Atomic uint64_t *slot;                   /* [MT_GPU_WORDS] */
	char bus_id[32];                          /* CUDA numbers GPUs in another way than NVML */
	void *library, *function[READINGS], *gpu; /* function NULL: this library has it not */
	uint64_t energy;                          /* when this began */
};

static struct timespec after(int seconds)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += seconds;
	return t;
}

static bool library_open(struct sensors *s)
{
	s->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!s->library) return false;
	int (*begin)(void) = (int (*)(void))dlsym(s->library, "nvmlInit_v2");
	int (*find)(const char *, void **) = (int (*)(const char *, void **))dlsym(s->library,
		"nvmlDeviceGetHandleByPciBusId_v2");
	for (int i = 0; i < READINGS; i++) s->function[i] = dlsym(s->library, readings[i].function);
	return begin && find && !begin() && !find(s->bus_id, &s->gpu);
}

/* A value that the library does not give is stored as 0 */
static void sensors_read(const struct sensors *s, uint64_t value[MT_GPU_WORDS])
{
	memset(value, 0, MT_GPU_WORDS * sizeof *value);
	for (int i = 0; i < READINGS; i++) {
		const struct reading *r = &readings[i];
		unsigned long long result[3] = {0};
		bool read = s->function[i] &&
			!(r->kind == OF_NO_KIND ? ((plain_fn *)s->function[i])(s->gpu, result)
									: ((kind_fn *)s->function[i])(s->gpu, r->kind, result));
		if (read) value[r->field] = result[r->at];
	}
}

static void *sensors_main(void *arg)
{
	struct sensors *s = arg;
	uint64_t value[MT_GPU_WORDS];
	bool there = library_open(s);
	while (there) {
		sensors_read(s, value);
		if (!s->energy) s->energy = value[MT_GPU_energy];
		value[MT_GPU_energy] -= value[MT_GPU_energy] ? s->energy : 0;
		pthread_mutex_lock(&s->lock);
		for (int i = 0; i < MT_GPU_WORDS && !s->stop; i++)
			atomic_store_explicit(&s->slot[i], value[i], memory_order_relaxed);
		struct timespec next = after(EVERY_S);
		while (!s->stop && !pthread_cond_clockwait(&s->wake, &s->lock, CLOCK_MONOTONIC, &next)) {}
		there = !s->stop;
		pthread_mutex_unlock(&s->lock);
	}
	return NULL;
}

struct sensors *sensors_begin(int ordinal, _Atomic uint64_t *slot)
{
	struct sensors *s = calloc(1, sizeof *s);
	if (!s) return NULL;
	s->slot = slot;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->wake, NULL);
	if (cudaDeviceGetPCIBusId(s->bus_id, sizeof s->bus_id, ordinal) == cudaSuccess &&
		!pthread_create(&s->thread, NULL, sensors_main, s))
		return s;
	cudaGetLastError();
	free(s);
	return NULL;
}

void sensors_end(struct sensors *s)
{
	if (!s) return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_signal(&s->wake);
	pthread_mutex_unlock(&s->lock);
	struct timespec until = after(PATIENCE_S);
	if (!pthread_clockjoin_np(s->thread, NULL, CLOCK_MONOTONIC, &until)) free(s); /* else it hangs, and may read this */
}
