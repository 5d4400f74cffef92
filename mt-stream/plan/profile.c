/* profile.c: the rates of a machine: defaults for each kind of GPU, which --profile may replace one by one. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "plan.h"

#define ADAM_CORE 0.57e9 /* parameters/s that a core updates if memory is fast enough: measured, --state int8 */
#define FP8 1.6          /* times the rate in bf16, of GPUs that have it: assumed (README.md) */
#define DUPLEX 0.68      /* by PCIe: measured */
#define DUPLEX_C2C 1     /* by NVLink-C2C, whose copies are */
#define C2C 100          /* faster than so many GB/s */

/* in, out: copies from and to registered host memory, over PCIe or NVLink-C2C; 16 lanes of generation 4 or 5 carry 25
 * or 55 each way, 8 lanes half. hbm: 0.88 of the data sheet's. GEMM: what cuBLAS sustains in bf16 with fp32 sums, and
 * in fp32 without TF32; gpu-bench measures it, and measured the H100's. README.md has the sources. ram: measured on
 * the H100's host; else assumed, since copies and other programs use host memory too: a third of a server's (eight
 * channels of DDR5-4800: 307 GB/s, DDR4-3200: 204; Grace: 384 with 480 GB, 500 with 120), half of a desktop's two
 * channels (90, 51). links: a desktop's CPU has 16 lanes for GPUs, of the generation of the card. memory: the larger,
 * where one name has two. */
static const struct known {
	const char *name;  /* the driver's, without blanks or with '-' in their place */
	int capability;    /* compute capability, 90: 9.0 */
	double in, out;    /* GB/s, to the device and from it; 0: its memory is the host's, which copies read and write */
	double hbm;        /* GB/s */
	double bf16, fp32; /* TFLOP/s */
	double ram;        /* GB/s of the host's memory */
	double links;      /* GB/s each way of the host's links to all of its GPUs; 0: as many as they have */
	double memory;     /* GB */
} known[] = {
	{"H200", 90, 55, 55, 4300, 762, 52, 116, 0, 141},
	{"H100", 90, 54, 52, 3000, 695, 50, 116, 0, 80},
	{"H100NVL", 90, 55, 55, 3500, 579, 45, 116, 0, 94},
	{"H100PCIe", 90, 55, 55, 1800, 463, 40, 116, 0, 80},
	{"GH200", 90, 300, 170, 3400, 695, 50, 125, 0, 96},
	{"GH200-120GB", 90, 375, 170, 3400, 695, 50, 165, 0, 96}, /* of host memory, as in GH200 480GB */
	{"GH200-144G", 90, 300, 170, 4150, 695, 50, 125, 0, 144}, /* of device memory */
	{"B200", 100, 55, 55, 7000, 1600, 62, 100, 0, 180},
	{"GB200", 100, 201, 193, 7000, 1400, 62, 125, 0, 185},
	{"GB300", 103, 201, 193, 7000, 1400, 62, 125, 0, 279},
	{"GB300-WS", 103, 201, 193, 6200, 1400, 62, 125, 0, 252},
	{"GB10", 121, 0, 0, 218, 60, 22, 90, 0, 120},
	{"A100", 80, 25, 25, 1700, 260, 18, 70, 100, 80},
	{"L40S", 89, 25, 25, 780, 280, 60, 70, 0, 48},
	{"RTX6000Ada", 89, 25, 25, 840, 205, 31, 70, 0, 48},
	{"L4", 89, 25, 25, 260, 63, 13, 70, 0, 24},
	{"A6000", 86, 25, 25, 680, 120, 30, 70, 0, 48},
	{"A40", 86, 25, 25, 610, 110, 21, 70, 0, 48},
	{"A10G", 86, 25, 25, 525, 62, 21, 70, 0, 24},
	{"A4000", 86, 25, 25, 390, 56, 10, 25, 25, 16},
	{"RTXPRO6000", 120, 55, 55, 1600, 380, 90, 100, 0, 96},
	{"RTX4000Ada", 89, 25, 25, 315, 43, 12, 45, 25, 20},
	{"RTX2000Ada", 89, 12, 12, 195, 25, 5, 45, 25, 16},
	{"RTX5090", 120, 55, 55, 1600, 200, 80, 45, 55, 32},
	{"RTX5090Laptop", 120, 25, 25, 780, 75, 25, 45, 25, 24},
	{"RTX5080", 120, 55, 55, 840, 92, 30, 45, 55, 16},
	{"RTX5070Ti", 120, 55, 55, 780, 76, 25, 45, 55, 16},
	{"RTX5060Ti", 120, 25, 25, 390, 41, 14, 45, 55, 16},
	{"RTX4090", 89, 25, 25, 900, 155, 60, 45, 25, 24},
	{"RTX4080", 89, 25, 25, 630, 80, 27, 45, 25, 16},
	{"RTX4070TiSUPER", 89, 25, 25, 590, 80, 27, 45, 25, 16},
	{"RTX4070", 89, 25, 25, 440, 54, 18, 45, 25, 12},
	{"RTX4060Ti", 89, 12, 12, 250, 38, 10, 45, 25, 16},
	{"RTX3090", 86, 25, 25, 850, 65, 28, 25, 25, 24},
	{"RTX3080Ti", 86, 25, 25, 800, 65, 21, 25, 25, 12},
	{"RTX3080", 86, 25, 25, 665, 58, 18, 25, 25, 10},
	{"RTX3070", 86, 25, 25, 390, 34, 11, 25, 25, 8},
	{"RTX3060", 86, 25, 25, 315, 22, 7, 25, 25, 12},
	{"cpu", 0, 10, 10, 20, 0.3, 0.3, 20, 0, 0},
};

const char *profile_name(int i) { return i < (int)(sizeof known / sizeof *known) ? known[i].name : NULL; }

static const struct known *known_find(const char *name, size_t n)
{
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i].name) == n && !strncasecmp(known[i].name, name, n)) return &known[i];
	return NULL;
}

static bool blank(char c) { return c == ' ' || c == '-'; }

/* Do whole words of `at` spell `name`, blanks of both aside? A Ti is another chip. */
static bool spells(const char *at, const char *name)
{
	for (; *name; at++) {
		if (blank(*at)) continue;
		name += blank(*name);
		if (tolower((unsigned char)*at) != tolower((unsigned char)*name++)) return false;
	}
	return !*at || (blank(*at) && strncasecmp(at + 1, "Ti", 2));
}

/* Laptops have other chips under the same names */
static bool laptop(const char *name) { return strcasestr(name, "Laptop"); }

/* The longest name that fits: "NVIDIA H100 PCIe" is H100PCIe, not H100 */
static const struct known *known_by_driver(const char *model)
{
	const struct known *best = NULL;
	for (const char *at = model; *at; at++)
		for (size_t i = 0; i < sizeof known / sizeof *known; i++)
			if ((at == model || blank(at[-1])) && spells(at, known[i].name) && laptop(known[i].name) == laptop(model) &&
				(!best || strlen(best->name) < strlen(known[i].name)))
				best = &known[i];
	return best;
}

/* Rates of a GPU of unknown name: dense GEMMs with fp32 sums by its architecture and the clocks that the driver
 * reports */
static struct known guess(const struct gpu *g)
{
	static const struct {
		int capability;
		double bf16, fp32, pcie, share;
	} made[] = {
		/* FLOP a clock of a multiprocessor; GB/s; what GEMMs in bf16 reach: on 9.0, where power limits them, as
		 * measured, on 10.0 the same, else assumed */
		{80, 2048, 128, 25, 0.75},
		{86, 512, 256, 25, 0.75},
		{90, 4096, 256, 55, 0.65},
		{100, 8192, 256, 55, 0.65},
		{120, 512, 256, 55, 0.75},
	};
	double clock = 1e3 * g->clock_khz * g->multiprocessors / 1e12,
		   memory = 2e3 * g->memory_khz * (g->bus_bits / 8.0) / 1e9;
	size_t i = 0;

	while (i + 1 < sizeof made / sizeof *made && made[i + 1].capability <= g->capability) i++;
	return (struct known){
		.capability = g->capability,
		.in = g->unified ? 0 : made[i].pcie,
		.out = g->unified ? 0 : made[i].pcie,
		.hbm = 0.88 * memory,
		.bf16 = made[i].share * made[i].bf16 * clock,
		.fp32 = 0.75 * made[i].fp32 * clock,
		.ram = 100,
	};
}

/* Of a GPU that reports no clocks either: the slowest known one of its architecture, with copies by PCIe */
static const struct known *known_slowest(const struct gpu *g)
{
	const struct known *best = NULL;
	for (const struct known *k = known; k->capability; k++) {
		if (k->capability > g->capability || k->in > C2C || (k->in == 0) != g->unified) continue;
		if (!best || k->capability > best->capability || (k->capability == best->capability && k->hbm < best->hbm))
			best = k;
	}
	return best;
}

static void profile_of(const struct known *k, enum mt_dtype dtype, struct profile *p)
{
	*p = (struct profile){
		.h2d = (k->in > 0 ? k->in : k->hbm / 2) * 1e9,
		.d2h = (k->out > 0 ? k->out : k->hbm / 2) * 1e9,
		.hbm = k->hbm * 1e9,
		.duplex = k->in > C2C ? DUPLEX_C2C : DUPLEX,
		.flops = (dtype == MT_BF16 ? k->bf16 : k->fp32) * 1e12,
		.fp32 = dtype == MT_BF16 ? k->fp32 / k->bf16 : 1,
		.fp8 = k->capability >= 90 ? FP8 : 0,
		.capability = k->capability,
		.ram = k->ram * 1e9,
		.links = k->links > 0 ? k->links * 1e9 : INFINITY,
		.adam = INFINITY,
		.memory = k->memory * 1e9,
		.unified = k->in == 0,
	};
}

/* The GPU of this machine, and its cores */
static void profile_here(const struct gpu *g, const struct known *named, enum mt_dtype dtype, struct profile *p)
{
	const struct known *k = named ? named : known_by_driver(g->model);
	const struct known other = guess(g);
	int cores = mt_cores(); /* mt-stream takes one of them */
	if (!k && other.hbm > 0 && other.bf16 > 0) k = &other;
	if (!k) k = known_slowest(g);
	profile_of(k ? k : known, dtype, p);
	p->unified = g->unified;
	p->adam = ADAM_CORE * (cores > 1 ? cores - 1 : 1);
}

/* Reads "h2d=55" and advances *at */
static int number_parse(const char **at, struct profile *p)
{
	const struct {
		const char *name;
		double *to, unit;
	} numbers[] = {
		{"h2d=", &p->h2d, 1e9},
		{"d2h=", &p->d2h, 1e9},
		{"hbm=", &p->hbm, 1e9},
		{"flops=", &p->flops, 1e12},
		{"ram=", &p->ram, 1e9},
		{"links=", &p->links, 1e9},
		{"adam=", &p->adam, 1e9},
	};

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		size_t n = strlen(numbers[i].name);
		char *end;
		if (strncasecmp(*at, numbers[i].name, n)) continue;
		double x = strtod(*at + n, &end);
		if (end == *at + n || (*end && *end != ',') || !(x > 0 && x < 1e9)) return -1;
		*numbers[i].to = x * numbers[i].unit;
		p->adam_measured = p->adam_measured || numbers[i].to == &p->adam;
		*at = *end ? end + 1 : end;
		return 0;
	}
	return -1;
}

int profile_parse(const char *spec, enum mt_dtype dtype, const struct gpu *here, struct profile *p)
{
	size_t n = strcspn(spec, ",");
	bool named = profile_named(spec);
	const struct known *k = named ? known_find(spec, n) : NULL;
	const char *at = !named ? spec : spec[n] ? spec + n + 1 : spec + n;
	if (named && !k)
		return mt_fail(MT_EX_USAGE,
			"--profile: '%.*s': not a kind of GPU known here; mt-plan --profile help lists them", (int)n, spec);
	if (here) profile_here(here, k, dtype, p);
	else profile_of(k ? k : known, dtype, p);
	snprintf(p->name, sizeof p->name, "%.48s", k ? k->name : here ? here->model : known->name);
	return profile_change(at, p);
}

int profile_change(const char *rates, struct profile *p)
{
	size_t n = strlen(p->name);
	if (*rates) snprintf(p->name + n, sizeof p->name - n, ", changed");
	while (*rates)
		if (number_parse(&rates, p))
			return mt_fail(MT_EX_USAGE,
				"--profile: '%s': expected h2d=, d2h=, hbm=, ram=, links=, flops= or adam= and a number", rates);
	return 0;
}

bool profile_named(const char *spec)
{
	size_t n = strcspn(spec, ",");
	return n && !memchr(spec, '=', n);
}
