/* common.h: what the operations of a layer share: the letters of shapes, and the table of all operations. Each one's
 * arguments, which all devices share, are in another header here.
 *
 * Letters in shapes: N tokens (rows x seq), H hidden size, NH / NKV query and key-value heads, D head size, F the MLP's
 * inner size, V vocabulary. Matrices are row-major; weights are (out, in), as Hugging Face stores them. Elements behind
 * `void *` are the device's own (dev->elem in device.h: fp32 on cpu, fp32 or bf16 on cuda), those of weights and of
 * matrices that are multiplied are operands (dev->operand). Statistics, gradients of weights and losses are fp32 or
 * wider on every device. Pointers are device memory unless they say host.
 *
 * Letters of a mixture of experts: E experts, K experts of each token, R = N K rows of experts: one for each token and
 * expert of its. A token's experts are numbered 0 .. K - 1, best first; expert k of token t is slot t K + k. The
 * experts' rows stand expert by expert, each expert's by token: rows first[e] .. first[e + 1] - 1 are expert e's.
 *
 * Letters of mixers beside attention (gated DeltaNet, arXiv 2412.06464, as Qwen3-Next and Qwen3.5 have it; Mamba 2,
 * arXiv 2405.21060) and of gates: HK key heads, HV value heads, DK and DV their sizes. R = HV / HK value heads, one
 * after another, share a key head. State and convolution begin at zero with each document.
 *
 * The cpu's operations give the same bits for any number of threads in the pool: work is split into tasks whose shapes
 * depend on the problem alone, a task runs on one thread, and sums across tasks are added in a fixed order.
 */
#ifndef MT_STREAM_OPS_COMMON_H
#define MT_STREAM_OPS_COMMON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define ON_DEVICE __host__ __device__ /* for kernels, too */
#else
#define ON_DEVICE
#endif

static inline int64_t div_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The operations of a layer but for GEMM: the code (OP_...), the function (op_... of the cpu, cuda_... of a GPU), its
 * arguments (their type, and their name in struct op), and the name in traces and messages */
/* clang-format off */
#define OPS(f) \
	f(BIAS_BACKWARD, bias_backward, bias_backward, "bias backward") \
	f(EMBED_FORWARD, embed_forward, embed_forward, "embedding forward") \
	f(EMBED_BACKWARD, embed_backward, embed_backward, "embedding backward") \
	f(NORM_FORWARD, norm_forward, norm_forward, "norm forward") \
	f(NORM_BACKWARD, norm_backward, norm_backward, "norm backward") \
	f(ROPE_FORWARD, rope_forward, rope, "rope forward") \
	f(ROPE_BACKWARD, rope_backward, rope, "rope backward") \
	f(ATTENTION_FORWARD, attention_forward, attention, "attention forward") \
	f(ATTENTION_BACKWARD, attention_backward, attention, "attention backward") \
	f(ACTIVATION_FORWARD, activation_forward, activation, "activation forward") \
	f(ACTIVATION_BACKWARD, activation_backward, activation, "activation backward") \
	f(SINKS_BACKWARD, sinks_backward, sinks_backward, "sinks backward") \
	f(SCALED_ADD, scaled_add, scaled_add, "scaled add") \
	f(CAP_LOGITS, cap_logits, cap_logits, "cap logits") \
	f(CROSS_ENTROPY, cross_entropy, cross_entropy, "cross-entropy") \
	f(TOP, top, top, "top tokens") \
	f(JOIN, join, join, "join") \
	f(ROUTE_FORWARD, route_forward, route, "route forward") \
	f(ROUTE_BACKWARD, route_backward, route, "route backward") \
	f(DISPATCH, dispatch, dispatch, "dispatch") \
	f(GROUPED_GEMM, grouped_gemm, grouped_gemm, "grouped GEMM") \
	f(GROUPED_BIAS_BACKWARD, grouped_bias_backward, grouped_bias_backward, "grouped bias backward") \
	f(COMBINE, combine, combine, "combine") \
	f(COMBINE_BACKWARD, combine_backward, combine_backward, "combine backward") \
	f(BALANCE_FORWARD, balance_forward, balance, "balance forward") \
	f(BALANCE_BACKWARD, balance_backward, balance, "balance backward") \
	f(CONV_FORWARD, conv_forward, conv, "convolution forward") \
	f(CONV_BACKWARD, conv_backward, conv, "convolution backward") \
	f(DELTA_FORWARD, delta_forward, delta, "delta rule forward") \
	f(DELTA_BACKWARD, delta_backward, delta, "delta rule backward") \
	f(SCAN_FORWARD, scan_forward, scan, "scan forward") \
	f(SCAN_BACKWARD, scan_backward, scan, "scan backward") \
	f(GATED_NORM_FORWARD, gated_norm_forward, gated_norm, "gated norm forward") \
	f(GATED_NORM_BACKWARD, gated_norm_backward, gated_norm, "gated norm backward") \
	f(GATE_FORWARD, gate_forward, gate, "gate forward") \
	f(GATE_BACKWARD, gate_backward, gate, "gate backward") \
	f(COLUMNS, columns, columns, "columns") \
	f(MLA_FORWARD, mla_forward, mla, "latents forward") \
	f(MLA_BACKWARD, mla_backward, mla, "latents backward") \
	f(MIX_FORWARD, mix_forward, mix, "mix forward") \
	f(MIX_BACKWARD, mix_backward, mix, "mix backward") \
	f(MAGNITUDE_FORWARD, magnitude_forward, magnitude, "magnitude forward") \
	f(MAGNITUDE_BACKWARD, magnitude_backward, magnitude, "magnitude backward")
/* Their arguments */
#define OP_ARGS(f) \
	f(bias_backward) f(embed_forward) f(embed_backward) f(norm_forward) f(norm_backward) f(rope) f(attention) \
	f(activation) f(sinks_backward) f(scaled_add) f(cap_logits) f(cross_entropy) f(top) f(join) f(route) f(dispatch) \
	f(grouped_gemm) f(grouped_bias_backward) f(combine) f(combine_backward) f(balance) f(conv) f(delta) \
	f(scan) f(gated_norm) f(gate) f(columns) f(mla) f(mix) f(magnitude)
/* clang-format on */

/* Beside each one's arguments, ARGS_arrays(A) has a row for each array of elements, operands or weights, and for
 * each that is written whole: A(bytes, field, n, written). bytes of an element: elem of the device's own; operand of
 * what GEMMs and the embedding read; weight of operands that a cpu widens first; 4 of fp32 and indices; 8. From its
 * first element to its last one are n. written: the operation writes all of it, and reads nothing of it. `a` are the
 * arguments, `code` the operation. Without a row are the embedding's w and combine_backward's bias, whose sizes are
 * not among the arguments. From these rows follow what device chaos overwrites, which weights a cpu widens, and in
 * which types tests give kernels their arrays. */

/* Codes in the order of traces; what the others do is in device/device.h */
#define OP_CODE(code, op, args, name) OP_##code,
enum op_code {
	OP_NONE,
	OP_COPY,
	OP_ZERO,
	OP_DISCARD,
	OP_WEIGHTS_IN,
	OP_GRADS_OUT,
	OP_NARROW,
	OP_GEMM,
	OPS(OP_CODE) OP_GRADS_FINAL,
};
#undef OP_CODE

/* The functions of the cpu device */
struct pool; /* pool.h */
struct gemm_args;
#define OP_PROTOTYPE(code, op, args, name) \
	struct args##_args; \
	void op_##op(struct pool *, const struct args##_args *);
OPS(OP_PROTOTYPE)

#endif
