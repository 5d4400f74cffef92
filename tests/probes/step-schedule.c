/* step-schedule: learning rates of all steps. usage: step-schedule KIND STEPS LR WARMUP DECAY MIN_LR */
#include <stdio.h>
#include <stdlib.h>

#include "../../mt-step/schedule.h"
#include "cli/cli.h"

int main(int argc, char **argv)
{
	if (argc != 7) return 64;
	struct schedule s = {.steps = strtoull(argv[2], NULL, 10),
		.lr = atof(argv[3]),
		.warmup = strtoull(argv[4], NULL, 10),
		.decay = strtoull(argv[5], NULL, 10),
		.min_lr = atof(argv[6])};
	mt_must(schedule_parse(argv[1], &s.kind));
	for (uint64_t n = 1; n <= s.steps; n++) printf("%.17g\n", schedule_lr(&s, n));
	return 0;
}
