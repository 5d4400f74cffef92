/* weights.c: operations on weights that are bf16 and stay where they are, in the store (--compute bf16). GEMMs, the
 * embedding and experts' biases read them there. The weights of all other operations are few: these get copies in fp32.
 */
#include "cpu.h"

enum { MOST = 2 }; /* arrays of an operation */

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

static void of_block(struct op *o, struct arrays *a)
{
	struct rope_args *r = &o->rope;
	switch (o->code) {
	case OP_NORM_FORWARD:
		add(a, &o->norm_forward.w, o->norm_forward.h);
		add(a, &o->norm_forward.b, o->norm_forward.h);
		break;
	case OP_NORM_BACKWARD: add(a, &o->norm_backward.w, o->norm_backward.h); break;
	case OP_ROPE_FORWARD:
	case OP_ROPE_BACKWARD:
		add(a, &r->qnorm, (r->row_norm ? r->heads : 1) * r->dim);
		add(a, &r->knorm, (r->row_norm ? r->kv_heads : 1) * r->dim);
		break;
	case OP_ATTENTION_FORWARD:
	case OP_ATTENTION_BACKWARD: add(a, &o->attention.sinks, o->attention.heads); break;
	case OP_SINKS_BACKWARD: add(a, &o->sinks_backward.sinks, o->sinks_backward.heads); break;
	default: break;
	}
}

static struct arrays of(struct op *o)
{
	struct arrays a = {0};
	switch (o->code) {
	case OP_ACTIVATION_FORWARD:
	case OP_ACTIVATION_BACKWARD:
		for (int i = 0; i < 2; i++) add(&a, &o->activation.slope[i], 1);
		break;
	case OP_SCALED_ADD: add(&a, &o->scaled_add.factor, 1); break;
	case OP_ROUTE_FORWARD:
		if (!o->route.exact) add(&a, &o->route.correction, o->route.experts);
		break;
	default: of_block(o, &a);
	}
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
