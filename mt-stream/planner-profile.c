/* planner-profile.c: what a machine does in a second: defaults for each kind of GPU, numbers of one's own beside them. */
#include <stdlib.h>

#include "planner.h"

/* Bus: what registered host memory reaches over the card's PCIe. GEMM: what cuBLAS sustains in bf16 with fp32 sums,
 * and in fp32 without TF32; from published benchmarks and data sheets, to be replaced by what gpu-bench measures.
 * Adam: a server's or a desktop's memory at 26 bytes a parameter. */
static const struct known {
	const char *name;
	double bus, hbm;            /* GB/s */
	double bf16, fp32;          /* TFLOP/s */
	double adam;                /* G parameters/s */
	double memory;              /* GB */
} known[] = {
	{"H200",     53, 4300, 700, 50, 6, 141},
	{"H100",     53, 3000, 660, 50, 6, 80},
	{"B200",     53, 7000, 1500, 60, 6, 180},
	{"A100",     24, 1700, 250, 18, 5, 80},
	{"L40S",     24, 780, 280, 60, 5, 48},
	{"RTX5090",  50, 1600, 200, 80, 2.5, 32},
	{"RTX4090",  24, 900, 155, 60, 2.5, 24},
	{"RTX3090",  24, 850, 65, 28, 2, 24},
	{"cpu",      10, 20, 0.3, 0.3, 1, 0},
};

const char *profile_name(int i) { return i < (int)(sizeof known / sizeof *known) ? known[i].name : NULL; }

static const struct known *known_find(const char *name, size_t n)
{
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strlen(known[i].name) == n && !strncasecmp(known[i].name, name, n))
			return &known[i];
	return NULL;
}

/* "h2d=55": *at goes behind it */
static int number_parse(const char **at, struct profile *p)
{
	const struct { const char *name; double *to, unit; } numbers[] = {
		{"h2d=", &p->h2d, 1e9}, {"d2h=", &p->d2h, 1e9}, {"hbm=", &p->hbm, 1e9}, {"flops=", &p->flops, 1e12},
		{"adam=", &p->adam, 1e9},
	};

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		size_t n = strlen(numbers[i].name);
		char *end;

		if (strncasecmp(*at, numbers[i].name, n))
			continue;
		double x = strtod(*at + n, &end);
		if (end == *at + n || (*end && *end != ',') || !(x > 0 && x < 1e9))
			return -1;
		*numbers[i].to = x * numbers[i].unit;
		*at = *end ? end + 1 : end;
		return 0;
	}
	return -1;
}

int profile_parse(const char *spec, enum mt_dtype dtype, struct profile *p)
{
	size_t n = strcspn(spec, ",");
	const struct known *k = memchr(spec, '=', n) ? NULL : known_find(spec, n);
	const char *at = memchr(spec, '=', n) ? spec : spec[n] ? spec + n + 1 : spec + n;

	if (!k && at != spec)
		return mt_fail(MT_EX_USAGE, "--profile: '%.*s': not a kind of GPU known here", (int)n, spec);
	if (!k)
		k = known;
	*p = (struct profile){
		.h2d = k->bus * 1e9, .d2h = k->bus * 1e9, .hbm = k->hbm * 1e9,
		.flops = (dtype == MT_BF16 ? k->bf16 : k->fp32) * 1e12, .adam = k->adam * 1e9, .memory = k->memory * 1e9,
	};
	snprintf(p->name, sizeof p->name, "%s%s", k->name, *at ? ", changed" : "");
	while (*at)
		if (number_parse(&at, p))
			return mt_fail(MT_EX_USAGE, "--profile: '%s': not h2d=, d2h=, hbm=, flops= or adam= and a number", at);
	return 0;
}
