/* kernels.h: every kernel and the table of them; included once for each instruction set, after VW and MR. */
#include "model/bf16.h"
#include "ops/fp8.h"
#include "simd.h"

#include "kernel-norm.h"
#include "kernel-rope.h"
#include "kernel-mla.h"
#include "kernel-activation.h"
#include "kernel-attention.h"
#include "kernel-head.h"
#include "kernel-misc.h"
#include "kernel-fp8.h"
#include "kernel-conv.h"
#include "kernel-gate.h"
#include "kernel-delta.h"
#include "kernel-kda.h"
#include "kernel-scan.h"
#include "kernel-altup.h"

#define KERNELS(set) \
	const struct kernels set = { \
		.name = KERNELS_NAME, \
		.norm_forward = norm_forward, \
		.norm_backward = norm_backward, \
		.column_sums = column_sums, \
		.activation = activation, \
		.rope_forward = rope_forward, \
		.rope_backward = rope_backward, \
		.mla_forward = mla_forward, \
		.mla_backward = mla_backward, \
		.attention = &attention, \
		.sinks_backward = sinks_backward, \
		.cross_entropy = cross_entropy, \
		.cross_entropy_capped = cross_entropy_capped, \
		.distill = distill, \
		.cap_logits = cap_logits, \
		.scaled_add = scaled_add, \
		.add = add, \
		.weighted_sum = weighted_sum, \
		.dot_fp64 = dot_fp64, \
		.scale = scale, \
		.widen = widen, \
		.narrow = narrow, \
		.fp8_row = fp8_row, \
		.fp8_columns = fp8_columns, \
		.transpose = transpose, \
		.conv_forward = conv_forward, \
		.conv_backward = conv_backward, \
		.gated_norm_forward = gated_norm_forward, \
		.gated_norm_backward = gated_norm_backward, \
		.gate_forward = gate_forward, \
		.gate_backward = gate_backward, \
		.mix_forward = mix_forward, \
		.mix_backward = mix_backward, \
		.magnitude_forward = magnitude_forward, \
		.magnitude_backward = magnitude_backward, \
		.delta_scratch = delta_rule_scratch, \
		.delta_forward = delta_rule_forward, \
		.delta_backward = delta_rule_backward, \
		.delta_gates_backward = delta_rule_gates_backward, \
		.scan_scratch = scan_scratch, \
		.scan_forward = scan_forward, \
		.scan_backward = scan_backward, \
	}
