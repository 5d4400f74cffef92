/* balance.h: the auxiliary loss and the z-loss of routers */
#ifndef MT_STREAM_OPS_BALANCE_H
#define MT_STREAM_OPS_BALANCE_H

#include "common.h"

/* The auxiliary loss and the z-loss of routers. p = softmax(logits). Forward: adds to sums, over the tokens that count:
 * to sums[e] 1 if e is of the K experts with the largest p (rounded to fp32; equal ones by their number), whatever the
 * router chose; to sums[E + e] p[e]; to sums[2 E] logsumexp(logits)^2. Backward: dlogits += the gradient of
 * aux * (sum over e of sums[e] p[e]) + z * logsumexp(logits)^2 of each token that counts; sums[e] is a constant. */
struct balance_args {
	int64_t n, experts, per_token;
	const float *logits;     /* (N, E) */
	const uint32_t *counted; /* (N): 1, or 0: padding, which does not count */
	double *sums;            /* (2 E + 1) */
	double aux, z;           /* backward */
	void *dlogits;           /* (N, E), backward; exact: fp32 */
	int exact;
};

/* clang-format off */
#define balance_arrays(A) \
	A(4, logits, a->n * a->experts, 0) \
	A(8, sums, 2 * a->experts + 1, 0) \
	A(a->exact ? 4 : elem, dlogits, a->n * a->experts, 0)
/* clang-format on */

#endif
