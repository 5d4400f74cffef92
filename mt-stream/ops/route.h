/* route.h: a router's choice of experts */
#ifndef MT_STREAM_OPS_ROUTE_H
#define MT_STREAM_OPS_ROUTE_H

#include "common.h"
#include "mt/types.h"

/* Forward: from logits to each token's experts and their weights, and the rows of experts. Scores are softmax or
 * sigmoid of the logits; the best K experts by score + correction are chosen, of the best `groups_used` of `groups`
 * groups (by the sum of their two best, or the best alone); equal ones by their number. Their weights are the scores;
 * divided by their sum, which counts as `floor` at least, plus eps, if renormalise; times scale. MT_TOP_SOFTMAX,
 * MT_TOP_SIGMOID: the best K by logit, weights are the softmax of theirs, or their sigmoids (not renormalised). Then
 * times the expert's factor. Backward: from the gradient of the weights to that of the logits, and of the factors (not
 * with MT_TOP_...). */
struct route_args {
	int64_t n, experts, per_token;
	enum mt_score score;
	int renormalise;
	float floor, eps, scale;
	int64_t groups, groups_used; /* groups 1 or less: no groups */
	int by_best;                 /* a group's score is that of its best expert */
	const void *correction;      /* (E), or NULL: zeros; exact: fp32 */
	float *scores;               /* (N, E): forward reads logits and writes scores (MT_TOP_...: leaves them) */
	float *weight;               /* (N, K), in the order of slots */
	uint32_t *expert;            /* (N, K) */
	uint32_t *slot;              /* (R): of each row; NULL: rows are not wanted */
	uint32_t *row;               /* (N, K): of each slot */
	uint32_t *first;             /* (E + 1) */
	const float *dweight;        /* (N, K), backward */
	void *dlogits;               /* (N, E), backward; exact: fp32 */
	int exact;
	const void *factor;   /* (E), or NULL: ones */
	float *dfactor, beta; /* (E), backward; NULL: not wanted */
};

/* clang-format off */
#define route_arrays(A) \
	A(4, scores, a->n * a->experts, 0) \
	A(a->exact ? 4 : weight, correction, a->experts, 0) \
	A(a->exact ? 4 : weight, factor, a->experts, 0) \
	A(4, weight, a->n * a->per_token, code == OP_ROUTE_FORWARD) \
	A(4, expert, a->n * a->per_token, code == OP_ROUTE_FORWARD) \
	A(4, row, a->n * a->per_token, code == OP_ROUTE_FORWARD && a->slot) \
	A(4, slot, a->n * a->per_token, code == OP_ROUTE_FORWARD) \
	A(4, first, a->experts + 1, code == OP_ROUTE_FORWARD && a->slot) \
	A(4, dweight, a->n * a->per_token, 0) \
	A(a->exact ? 4 : elem, dlogits, a->n * a->experts, code == OP_ROUTE_BACKWARD) \
	A(4, dfactor, a->experts, code == OP_ROUTE_BACKWARD && a->beta == 0)
/* clang-format on */

#endif
