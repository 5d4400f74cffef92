/* execute.c: runs one operation of the devices cpu and chaos, on operands of the type that was selected for the run */
#include "cpu.h"
#include "device/device.h"
#include "mt/error.h"

#include <string.h>

int cpu_compute(struct device *d, enum mt_dtype dtype, const char *attention)
{
	static const char words[] = "tiled, bf16";
	bool bf16 = dtype == MT_BF16;
	const char *lacks = bf16 ? gemm_lacks_bf16() : NULL;
	if (lacks) return mt_fail(MT_EX_CONFIG, "--compute bf16: %s", lacks);
	d->operand = mt_dtype_bytes(dtype);
	d->gemm = gemm_description(d->fp8 ? "fp8" : bf16 ? "bf16" : "fp32");
	d->attention_bf16 = bf16 && attention_bf16_is_fast() && (!attention || !strcmp(attention, words));
	if (d->attention_bf16) d->attention = words;
	return bf16 && !gemm_bf16_ready() ? mt_fail(MT_EX_NOMEM, "no memory for oneDNN's code") : 0;
}

const void *cpu_zero_copy(struct device *d, const void *host, enum mt_dtype dtype)
{
	return mt_dtype_bytes(dtype) == d->operand ? host : NULL;
}

static void run_weights_in(struct pool *p, const struct op *o, bool bf16)
{
	if (o->weights_in.from == MT_BF16 && !bf16) op_widen(p, o->weights_in.dst, o->weights_in.src, o->weights_in.n);
	else op_copy(p, o->weights_in.dst, o->weights_in.src, (size_t)(o->weights_in.n * operand_bytes(bf16)));
}

static void run_grads_out(struct pool *p, const struct op *o)
{
	if (o->grads_out.to == MT_BF16) op_narrow(p, o->grads_out.dst, o->grads_out.src, o->grads_out.n);
	else op_copy(p, o->grads_out.dst, o->grads_out.src, (size_t)o->grads_out.n * sizeof(float));
}

#define RUN(code, op, args, name) \
	case OP_##code: op_##op(p, &o->args); break;

static void execute_op(struct pool *p, const struct op *o, bool bf16)
{
	switch (o->code) {
	case OP_NONE:
	case OP_DISCARD:
	case OP_GRADS_FINAL: break;
	case OP_COPY: op_copy(p, o->copy.dst, o->copy.src, o->copy.bytes); break;
	case OP_ZERO: op_zero(p, o->zero.dst, o->zero.bytes); break;
	case OP_WEIGHTS_IN: run_weights_in(p, o, bf16); break;
	case OP_GRADS_OUT: run_grads_out(p, o); break;
	case OP_NARROW: op_narrow(p, o->narrow.dst, o->narrow.src, o->narrow.n); break;
	case OP_GEMM:
		op_gemm(p, &o->gemm);
		break;
		OPS(RUN)
	}
}

void cpu_execute(struct pool *p, const struct op *o, const struct device *d)
{
	struct op own = *o;
	if (d->operand == sizeof(float)) {
		execute_op(p, o, false);
		return;
	}
	switch (own.code) {
	case OP_GEMM: own.gemm.bf16 = !own.gemm.exact; break;
	case OP_JOIN: own.join.bf16 = 1; break;
	case OP_GROUPED_GEMM: own.grouped_gemm.bf16 = 1; break;
	case OP_EMBED_FORWARD: own.embed_forward.bf16 = 1; break;
	case OP_COMBINE_BACKWARD: own.combine_backward.bf16 = 1; break;
	default: weights_widen(p, &own);
	}
	if (d->attention_bf16 && own.code == OP_ATTENTION_FORWARD) attention_bf16_forward(p, &own.attention);
	else if (d->attention_bf16 && own.code == OP_ATTENTION_BACKWARD) attention_bf16_backward(p, &own.attention);
	else execute_op(p, &own, true);
}
