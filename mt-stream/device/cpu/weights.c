/* weights.c: operations on weights that are bf16 and stay where they are, in the store (--compute bf16). GEMMs, the
 * embedding and experts' biases read them there. The weights of all other operations are few: these get copies in fp32.
 */
#include "cpu.h"
#include "device/device.h"

enum { MOST = 3 }; /* arrays of an operation */

/* The pointers to an operation's weights, and how many elements each has */
struct arrays {
	struct {
		const void **at;
		int64_t n;
	} v[MOST];
	int count;
};

static void add(struct arrays *a, const void **at, int64_t n)
{
	if (!*at) return;
	a->v[a->count].at = at;
	a->v[a->count++].n = n;
}

static struct arrays of(struct op *o)
{
	struct arrays a = {0};
#define READS(op_code, array, elements) \
	if (o->code == OP_##op_code) add(&a, &o->array, elements)
	READS(NORM_FORWARD, norm_forward.w, o->norm_forward.h);
	READS(NORM_FORWARD, norm_forward.b, o->norm_forward.h);
	READS(NORM_BACKWARD, norm_backward.w, o->norm_backward.h);
	READS(ROPE_FORWARD, rope.qnorm, rope_q_weights(&o->rope));
	READS(ROPE_FORWARD, rope.knorm, rope_k_weights(&o->rope));
	READS(ROPE_BACKWARD, rope.qnorm, rope_q_weights(&o->rope));
	READS(ROPE_BACKWARD, rope.knorm, rope_k_weights(&o->rope));
	READS(ATTENTION_FORWARD, attention.sinks, o->attention.heads);
	READS(ATTENTION_BACKWARD, attention.sinks, o->attention.heads);
	READS(SINKS_BACKWARD, sinks_backward.sinks, o->sinks_backward.heads);
	READS(ACTIVATION_FORWARD, activation.slope[0], 1);
	READS(ACTIVATION_FORWARD, activation.slope[1], 1);
	READS(ACTIVATION_BACKWARD, activation.slope[0], 1);
	READS(ACTIVATION_BACKWARD, activation.slope[1], 1);
	READS(SCALED_ADD, scaled_add.factor, 1);
	READS(CONV_FORWARD, conv.w, o->conv.channels * o->conv.width);
	READS(CONV_FORWARD, conv.bias, o->conv.channels);
	READS(CONV_BACKWARD, conv.w, o->conv.channels * o->conv.width);
	READS(CONV_BACKWARD, conv.bias, o->conv.channels);
	READS(DELTA_FORWARD, delta.a_log, o->delta.value_heads);
	READS(DELTA_FORWARD, delta.dt_bias, o->delta.value_heads);
	READS(DELTA_FORWARD, delta.skip, o->delta.value_heads);
	READS(DELTA_BACKWARD, delta.a_log, o->delta.value_heads);
	READS(DELTA_BACKWARD, delta.dt_bias, o->delta.value_heads);
	READS(DELTA_BACKWARD, delta.skip, o->delta.value_heads);
	READS(GATED_NORM_FORWARD, gated_norm.w, gated_norm_weights(&o->gated_norm));
	READS(GATED_NORM_BACKWARD, gated_norm.w, gated_norm_weights(&o->gated_norm));
	READS(ROUTE_FORWARD, route.factor, o->route.experts);
	READS(ROUTE_BACKWARD, route.factor, o->route.experts);
#undef READS
	if (o->code == OP_ROUTE_FORWARD && !o->route.exact) add(&a, &o->route.correction, o->route.experts);
	return a;
}

void weights_widen(struct pool *pool, struct op *o)
{
	struct arrays a = of(o);
	int64_t n = 0;
	for (int i = 0; i < a.count; i++) n += a.v[i].n;
	if (!n) return;
	float *to = op_scratch(pool, pool_threads(pool) + 1, (size_t)n * sizeof *to);
	for (int i = 0; i < a.count; i++) {
		cpu_kernels()->widen(to, *a.v[i].at, a.v[i].n);
		*a.v[i].at = to;
		to += a.v[i].n;
	}
}
