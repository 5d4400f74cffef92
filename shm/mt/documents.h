/* documents.h: what a batch message says of its documents, and of a loss that is not the mean of its targets'. */
#ifndef LIBMT_DOCUMENTS_H
#define LIBMT_DOCUMENTS_H

#include <stdint.h>

#include "mt/losses.h"

/* clang-format off */

enum mt_side { MT_SIDE_NONE = 0, MT_CHOSEN = 1, MT_REJECTED = 2 };

struct mt_objective {           /* 64 bytes: what a step's loss is. NLL has none: its batches have no documents */
	uint32_t kind, reserved0;   /* enum mt_objective_kind */
	double   scale;             /* 1 / what the loss is a mean of, in the whole step: pairs, of pg targets; of kto
	                             * answers, times the weight of rejected ones */
	double   beta, gamma, low, high;      /* those that the kind has */
	double   chosen_scale;      /* orpo: 1 / targets of chosen documents in the whole step; kto: as scale, of chosen
	                             * answers; kd: the share of the data's own targets */
	double   temperature;       /* kd */
};

struct mt_document {            /* 16 bytes: of the micro, in ascending order of begin */
	uint32_t begin;             /* its first position, row * seq + t; it ends where the next one begins, or its row */
	uint32_t side;              /* enum mt_side. Of pg: none. Documents 2 i and 2 i + 1 of a loss of pairs are a
	                             * pair, in one row */
	double   ref;               /* sum of the reference model's log-probabilities of its targets */
};

/* The sums of a figures message. Of pg; of answers and pairs, of which each document of a pair counts as right whose
 * side has the larger reward, and an answer whose reward has its side's sign, half where there is none */
enum { MT_SUM_CLIPPED, MT_SUM_KL, MT_SUM_TARGETS };
enum { MT_SUM_CHOSEN, MT_SUM_REJECTED, MT_SUM_RIGHT, MT_SUM_OF_CHOSEN, MT_SUM_OF_REJECTED };

/* clang-format on */

#endif
