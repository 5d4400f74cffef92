/* so-nvml.so, in the place of libnvidia-ml.so.1: the sensors of emulated GPUs. Each has a line in file $NVML_SENSORS,
 * which is read each time: MEMORY USED POWER LIMIT CLOCK HIGHEST TEMPERATURE ENERGY REASONS, in NVML's units; "-": not
 * supported. Without a file, NVML does not begin; with an empty one it hangs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOTAL, USED, POWER, LIMIT, CLOCK, HIGHEST, TEMPERATURE, ENERGY, REASONS };
enum { SUCCESS, NOT_SUPPORTED = 3, NOT_FOUND = 6, UNKNOWN = 999 };

int nvmlInit_v2(void), nvmlDeviceGetHandleByPciBusId_v2(const char *, void **);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, unsigned long long *), nvmlDeviceGetPowerUsage(void *, unsigned *);
int nvmlDeviceGetEnforcedPowerLimit(void *, unsigned *), nvmlDeviceGetClockInfo(void *, int, unsigned *);
int nvmlDeviceGetMaxClockInfo(void *, int, unsigned *), nvmlDeviceGetTemperature(void *, int, unsigned *);
int nvmlDeviceGetTotalEnergyConsumption(void *, unsigned long long *);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *);

static int numbers[64]; /* a GPU's handle points to its number */

static int sensor(const void *gpu, int field, unsigned long long *value)
{
	char line[512] = "", *word = line;
	FILE *f = fopen(getenv("NVML_SENSORS"), "r");
	for (int i = 0; f && i <= *(const int *)gpu; i++)
		if (!fgets(line, sizeof line, f)) *line = 0;
	if (f) fclose(f);
	for (int i = 0; i < field; i++) word += strcspn(word, " ") + 1;
	if (*word == '-') return NOT_SUPPORTED;
	*value = strtoull(word, NULL, 0);
	return SUCCESS;
}

static int sensor32(const void *gpu, int field, unsigned *value)
{
	unsigned long long x;
	int rc = sensor(gpu, field, &x);
	if (!rc) *value = (unsigned)x;
	return rc;
}

int nvmlInit_v2(void)
{
	const char *path = getenv("NVML_SENSORS");
	FILE *f = path ? fopen(path, "r") : NULL;
	if (!f) return UNKNOWN;
	while (fgetc(f) == EOF) pause();
	fclose(f);
	return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **gpu)
{
	unsigned number;
	if (sscanf(id, "emulated:%x:00.0", &number) != 1 || number >= 64) return NOT_FOUND;
	numbers[number] = (int)number;
	*gpu = &numbers[number];
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu)
{
	unsigned long long memory = 0;
	char id[32];
	snprintf(id, sizeof id, "emulated:%x:00.0", index);
	return nvmlDeviceGetHandleByPciBusId_v2(id, gpu) || sensor(*gpu, TOTAL, &memory) || !memory ? NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long *of)
{
	int rc = sensor(gpu, TOTAL, &of[0]);
	if (!rc) rc = sensor(gpu, USED, &of[2]);
	of[1] = of[0] - of[2];
	return rc;
}
int nvmlDeviceGetPowerUsage(void *gpu, unsigned *mw) { return sensor32(gpu, POWER, mw); }
int nvmlDeviceGetEnforcedPowerLimit(void *gpu, unsigned *mw) { return sensor32(gpu, LIMIT, mw); }
int nvmlDeviceGetClockInfo(void *gpu, int kind, unsigned *mhz)
{
	return kind == 1 ? sensor32(gpu, CLOCK, mhz) : UNKNOWN;
}
int nvmlDeviceGetMaxClockInfo(void *gpu, int kind, unsigned *mhz)
{
	return kind == 1 ? sensor32(gpu, HIGHEST, mhz) : UNKNOWN;
}
int nvmlDeviceGetTemperature(void *gpu, int kind, unsigned *c)
{
	return kind == 0 ? sensor32(gpu, TEMPERATURE, c) : UNKNOWN;
}
int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *mj) { return sensor(gpu, ENERGY, mj); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *bits)
{
	return sensor(gpu, REASONS, bits);
}
