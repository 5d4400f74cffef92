/* objective.h: losses that are functions of documents' log-probabilities: all but nll of mt/losses.h. All of it is
 * arithmetic in fp64, on the host: schedule.c gets the log-probabilities from the LM head's forward pass, and gives the
 * scales to its backward pass.
 *
 * At every target the gradient of such a loss by the logits is s (softmax - onehot), where s = -dloss / dlogp: so a
 * loss consists of its value and of an s for each target. A new loss of pairs is a line in objective_pair, one of
 * answers or of targets a function like objective_answer or objective_target.
 */
#ifndef MT_STREAM_OBJECTIVE_H
#define MT_STREAM_OBJECTIVE_H

#include <stdbool.h>

#include "mt/documents.h"
#include "mt/memory.h"

struct side {    /* an answer, which is a document of some side */
	double logp; /* of its targets, the sum; */
	double ref;  /* by the reference model */
	uint64_t targets;
};

struct pair {
	double loss;      /* its part of the step's */
	double scale[2];  /* of each target: of the chosen document, of the rejected one */
	double reward[2]; /* as TRL has them */
};

struct pair objective_pair(const struct mt_objective *, const struct side *chosen, const struct side *rejected);

struct answer {
	double loss, scale, reward;
};

struct answer objective_answer(const struct mt_objective *, enum mt_side, const struct side *);

struct target { /* of pg */
	double loss, scale;
	bool clipped;
};

struct target objective_target(const struct mt_objective *, double logp, double old, double advantage);

/* What a batch says of its documents (mt/memory.h), arrays by position of the micro-batch, and what the head has
 * computed */
struct objective {
	const struct mt_objective *how;
	const struct mt_document *document;
	uint32_t documents, seq;
	const uint32_t *targets;
	const float *advantages, *old;
	const double *losses; /* as of OP_CROSS_ENTROPY */
	double loss_scale;    /* by which the backward pass multiplies each scale */
};

struct objective_sums {
	double loss; /* their part of the step's */
	uint64_t targets;
	double figures[MT_STEP_FIGURES];
};

/* Add those of positions from .. to - 1, which are whole rows, and set their scales. Where a scale is too large for
 * fp32, the loss is NaN. scales NULL: losses only */
void objective_add(const struct objective *, uint32_t from, uint32_t to, float *scales, struct objective_sums *);

#endif
