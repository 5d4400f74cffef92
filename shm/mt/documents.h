/* documents.h: what a batch message says of its documents, and of a loss that is not the mean of its targets'. */
#ifndef LIBMT_DOCUMENTS_H
#define LIBMT_DOCUMENTS_H

#include <stdint.h>

/* clang-format off */

enum mt_objective_kind { MT_NLL = 0, MT_PG = 1, MT_DPO = 2, MT_SIMPO = 3, MT_ORPO = 4 };
enum mt_side { MT_SIDE_NONE = 0, MT_CHOSEN = 1, MT_REJECTED = 2 };

struct mt_objective {           /* 64 bytes: what a step's loss is. NLL has none: its batches have no documents */
	uint32_t kind, reserved0;   /* enum mt_objective_kind */
	double   scale;             /* 1 / what the loss is a mean of, in the whole step: pairs, of pg targets */
	double   beta, gamma, low, high;      /* those that the kind has */
	double   chosen_scale;      /* orpo: 1 / targets of chosen documents in the whole step */
	uint64_t reserved1;
};

struct mt_document {            /* 16 bytes: of the micro, in ascending order of begin */
	uint32_t begin;             /* its first position, row * seq + t; it ends where the next one begins, or its row */
	uint32_t side;              /* enum mt_side. Of pg: none; else documents 2 i and 2 i + 1 are a pair, in one row */
	double   ref;               /* sum of the reference model's log-probabilities of its targets */
};
/* The sums of a figures message: of pairs rewards of chosen documents, of rejected ones, margins, pairs
 * whose margin is above 0 (half of those with 0), pairs; of pg clipped targets, old - log-probability, 0, 0,
 * targets. */

/* clang-format on */

#endif
