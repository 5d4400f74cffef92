/* schedule.h: the learning rate of a step. */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <stdint.h>

enum schedule_kind { SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_CONSTANT };

struct schedule {
	enum schedule_kind kind;
	uint64_t steps, warmup, decay; /* decay: wsd's last steps */
	double lr, min_lr;             /* min_lr: cosine and wsd */
};

/* linear, cosine, wsd or constant. 0, or -64 for another name */
int schedule_parse(const char *name, enum schedule_kind *);
/* Learning rate of step n, which counts from 1. */
double schedule_lr(const struct schedule *, uint64_t n);

#endif
