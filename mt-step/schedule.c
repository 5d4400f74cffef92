/* schedule.c: the numbers of transformers' get_*_schedule functions (optimization.py), whose step counts from 0. */
#include <math.h>
#include <string.h>

#include "mt/error.h"
#include "schedule.h"

int schedule_parse(const char *name, enum schedule_kind *kind)
{
	static const char *const names[] = {"linear", "cosine", "wsd", "constant"};
	for (int i = 0; i < 4; i++)
		if (!strcmp(name, names[i])) {
			*kind = (enum schedule_kind)i;
			return 0;
		}
	return mt_fail(MT_EX_USAGE, "--schedule: '%s' is not linear, cosine, wsd or constant", name);
}

/* The fraction of `length` that is done. As in transformers, the divisor is at least 1. */
static double progress(double step, double length) { return step / fmax(1, length); }

static double half_cosine(double x) { return 0.5 * (1 + cos(M_PI * x)); }

static double with_floor(double factor, double floor) { return fmax(0, factor * (1 - floor) + floor); }

double schedule_lr(const struct schedule *s, uint64_t n)
{
	double step = (double)(n - 1), steps = (double)s->steps, warmup = (double)s->warmup, decay = (double)s->decay;
	double floor = s->min_lr / s->lr; /* min_lr_rate, min_lr_ratio */
	if (step < warmup) {
		double factor = progress(step, warmup);
		return s->lr * (s->kind == SCHEDULE_WSD ? with_floor(factor, floor) : factor);
	}
	switch (s->kind) {
	case SCHEDULE_LINEAR: return s->lr * fmax(0, progress(steps - step, steps - warmup));
	case SCHEDULE_COSINE: return s->lr * with_floor(half_cosine(progress(step - warmup, steps - warmup)), floor);
	case SCHEDULE_WSD:
		if (step < steps - decay) return s->lr;
		if (step < steps) return s->lr * with_floor(half_cosine(progress(step - (steps - decay), decay)), floor);
		return s->lr * floor;
	case SCHEDULE_CONSTANT: return s->lr;
	}
	return 0;
}
