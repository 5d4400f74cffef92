/* activation.h: the inner function of the MLP */
#ifndef MT_STREAM_OPS_ACTIVATION_H
#define MT_STREAM_OPS_ACTIVATION_H

#include "common.h"
#include "mt/types.h"

/* The MLP's inner function (mt/types.h). Gated: gu (N, 2F) is gate | up; ungated: gu (N, F) */
static inline int activation_gated(int form) { return form < MT_RELU2; }

struct activation_args {
	void *y; /* (N, F); backward: forward's output again, for the gradient of down's weights; may be dy */
	const void *gu;
	int64_t n, f;
	enum mt_ffn form;
	/* gated, not interleaved: of each row, gate is max(gate - cut, 0), cut = mean(gate) + deviations std(gate), std of
	 * all f; the gradient goes through mean and std, too */
	int sparse;
	float deviations;
	int interleaved;      /* gated: gate is gu's elements 0, 2, 4, ..., up the others */
	const void *slope[2]; /* MT_XIELU: its two parameters, positive side first, (1) each, as in the file */
	const void *dy;       /* (N, F), backward */
	void *dgu;            /* the gradient of gu, backward; may be gu. NULL: forward */
	uint16_t *as;         /* cpu: y, or backward dgu, rounded to bf16 */
	float *dslope[2];     /* MT_XIELU, backward: (1) each, d = beta d + gradient */
	float beta;
};

/* Elements of a row of gu */
static inline int64_t activation_width(const struct activation_args *a)
{
	return activation_gated(a->form) ? 2 * a->f : a->f;
}

/* clang-format off */
#define activation_arrays(A) \
	A(elem, y, a->n * a->f, code == OP_ACTIVATION_FORWARD || a->y != a->dy) \
	A(elem, gu, a->n * activation_width(a), 0) \
	A(elem, dy, a->n * a->f, 0) \
	A(elem, dgu, a->n * activation_width(a), code == OP_ACTIVATION_BACKWARD && a->dgu != a->gu) \
	A(weight, slope[0], 1, 0) \
	A(weight, slope[1], 1, 0) \
	A(4, dslope[0], 1, code == OP_ACTIVATION_BACKWARD && a->form == MT_XIELU && a->beta == 0) \
	A(4, dslope[1], 1, code == OP_ACTIVATION_BACKWARD && a->form == MT_XIELU && a->beta == 0)
/* clang-format on */

#endif
