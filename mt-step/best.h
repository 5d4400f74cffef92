/* best.h: the best evaluation so far, for --stop-after and the progress line. */
#ifndef BEST_H
#define BEST_H

#include <stdbool.h>
#include <stdint.h>

struct best {
	uint64_t evaluations; /* 0: none is known */
	uint64_t step;        /* of the newest */
	double loss;          /* of the newest */
	uint64_t best_step;   /* of the lowest loss */
	double best_loss;
	uint64_t since; /* evaluations since then */
};

/* The evaluation of the state after `step`. One that is known already, of this step or a later one, does not count. */
void best_note(uint64_t step, double loss);
void best_forget(void);
const struct best *best_known(void);

#endif
