/* kernels.h: every kernel and the table of them; included once for each instruction set, after VW and MR. */
#include "model/bf16.h"
#include "simd.h"

#include "kernel-norm.h"
#include "kernel-rope.h"
#include "kernel-swiglu.h"
#include "kernel-attention.h"
#include "kernel-head.h"
#include "kernel-misc.h"

#define KERNELS(set) \
	const struct kernels set = { \
		.name = KERNELS_NAME, \
		.rmsnorm_forward = rmsnorm_forward, \
		.rmsnorm_backward = rmsnorm_backward, \
		.column_sums = column_sums, \
		.swiglu_forward = swiglu_forward, \
		.swiglu_backward = swiglu_backward, \
		.rope_forward = rope_forward, \
		.rope_backward = rope_backward, \
		.attention_scratch = attention_scratch, \
		.attention_forward = attention_forward, \
		.attention_backward = attention_backward, \
		.cross_entropy = cross_entropy, \
		.add = add, \
		.widen = widen, \
		.narrow = narrow, \
	}
