/* weights.c: operations on weights that are bf16 and stay where they are, in the store (--compute bf16). GEMMs, the
 * embedding and experts' biases read them there. The weights of all other operations are few: these get copies in fp32.
 */
#include "cpu.h"
#include "device/device.h"

enum { MOST = 3 }; /* arrays of an operation */

/* The pointers to an operation's weights, and how many elements each has (ops/common.h) */
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
	enum { elem, operand, weight }; /* no array has so few bytes an element */
	struct arrays found = {0};
#define READS(bytes, field, elements, written) \
	if ((bytes) == weight) add(&found, (const void **)(uintptr_t)&a->field, elements);
#define READS_OF(op_code, op, args, name) \
	case OP_##op_code: { \
		struct args##_args *a = &o->args; \
		args##_arrays(READS) break; \
	}
	switch ((int)o->code) {
		OPS(READS_OF)
	}
	return found;
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
