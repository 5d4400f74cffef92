/* best.c: evaluations arrive with their metrics line, and at the start from the lines that --metrics FILE has. */
#include <math.h>

#include "best.h"

static struct best b;

const struct best *best_known(void) { return &b; }

void best_forget(void) { b = (struct best){0}; }

void best_note(uint64_t step, double loss)
{
	if (b.evaluations && step <= b.step) return;
	bool better = !b.evaluations || loss < b.best_loss || (isnan(b.best_loss) && !isnan(loss));
	b.evaluations++;
	b.step = step;
	b.loss = loss;
	b.since = better ? 0 : b.since + 1;
	if (better) {
		b.best_step = step;
		b.best_loss = loss;
	}
}
