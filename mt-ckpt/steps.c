/* steps.c: the checkpoints in a directory: step-XXXXXXXX, each with run.json, without which it is no checkpoint. */
#include <stdlib.h>
#include "ckpt.h"

void step_name(char name[STEP_NAME], uint64_t step)
{
	snprintf(name, STEP_NAME, "step-%08llu", (unsigned long long)step);
}

bool step_parse(const char *name, uint64_t *step)
{
	char again[STEP_NAME];
	if (strncmp(name, "step-", 5)) return false;
	*step = strtoull(name + 5, NULL, 10);
	step_name(again, *step);
	return !strcmp(name, again);
}

bool step_is_in(int dirfd, uint64_t step)
{
	char name[STEP_NAME + sizeof "/" RUN_JSON];
	step_name(name, step);
	return file_exists(dirfd, strcat(name, "/" RUN_JSON));
}

static int newest_first(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? 1 : x > y ? -1 : 0;
}

size_t steps_in(int dirfd, uint64_t **steps)
{
	uint64_t step, *more;
	size_t n = 0;
	*steps = NULL;
	for (struct dir_walk w = dir_walk(dirfd); dir_next(&w);)
		if (step_parse(w.name, &step) && step_is_in(dirfd, step) && (more = realloc(*steps, (n + 1) * sizeof *more))) {
			*steps = more;
			more[n++] = step;
		}
	if (n) qsort(*steps, n, sizeof **steps, newest_first);
	return n;
}
