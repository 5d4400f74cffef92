/* head.h: cross-entropy, and the scale and cap of logits before it */
#ifndef MT_STREAM_OPS_HEAD_H
#define MT_STREAM_OPS_HEAD_H

#include "common.h"

/* logits = cap tanh(scale logits / cap), or scale logits if cap is 0; in place */
struct cap_logits_args {
	void *logits; /* (N); fp32 where `fp32` is set */
	int64_t n;
	float scale, cap;
	int fp32;
};

struct loss {
	double sum;
	int64_t targets;
};

/* What a teacher says of each row's target, and the loss of it (Hinton et al., arXiv 1503.02531): t^2 KL(p || softmax
 * of logits / t), times 1 - hard; and cross-entropy with the target, times hard. The last of p is that of all tokens
 * which are not among ids, as one class; where it is 0, they are none. */
struct teacher {
	const uint32_t *words; /* (N, MT_TEACHER_WORDS(top)) ids, ascending, then p, fp32; NULL: there is none */
	int64_t top;
	float temperature, hard;
};

/* loss += the rows' -log softmax(logits)[target] in fp64, times their weights, and the number of targets */
struct cross_entropy_args {
	/* (N, V); backward: becomes the gradient, which without a teacher is (softmax - onehot), times scale and weight;
	 * and 0 in rows without target or of weight 0 */
	void *logits;
	uint16_t *as;            /* cpu: the logits that they become, rounded to bf16 */
	const uint32_t *targets; /* (N); UINT32_MAX: no target */
	const float *weights;    /* (N); NULL: 1 each */
	int64_t n, vocab;
	float scale;
	int backward;
	struct loss *loss; /* (1) */
	/* (N) of each row, 0 without target, or NULL. Not NULL: logits are fp32, and not backward; minus the loss (-0 for
	 * 0) where no token is more likely than the target, and none before it as likely */
	double *losses;
	/* backward, if not 0: logits were scaled and capped by OP_CAP_LOGITS, and the gradient is wanted of what they were
	 * before: times logit_scale (1 - (logit / cap)^2) */
	float logit_scale, cap;
	struct teacher teacher; /* its losses are not asked for */
};

/* The most likely tokens of rows with a target, by logits in fp32: ids in ascending order, of equally likely ones the
 * first ones; then the log-probabilities of these, and of all others together */
struct top_args {
	const float *logits;
	const uint32_t *targets;
	const double *losses; /* as OP_CROSS_ENTROPY has them */
	int64_t n, vocab, top;
	uint32_t *words; /* (N, MT_TEACHER_WORDS(top)); 0 in rows without a target */
};

/* The order of floats as one of unsigned numbers, in which 0 and -0 are the same */
static inline ON_DEVICE uint32_t top_key(uint32_t bits)
{
	if (bits == 0x80000000u) bits = 0;
	return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* clang-format off */
#define cap_logits_arrays(A) \
	A(a->fp32 ? 4 : elem, logits, a->n, 0)
#define cross_entropy_arrays(A) \
	A(a->losses ? 4 : elem, logits, a->n * a->vocab, 0) \
	A(8, losses, a->n, 1)
#define top_arrays(A) \
	A(4, logits, a->n * a->vocab, 0) \
	A(4, words, a->n * (2 * a->top + 1), 1)
/* clang-format on */

#endif
