/* moments.c: loads the optimizer's m and v, into the type that the run has for them. */
#include <math.h>
#include "load.h"
#include "cli/cli.h"
#include "model/int8.h"
#include "mt/control.h"
#include "mt/run.h"

/* m or v of what the run has of a unit, and what to do with n fp32 values that belong to its elements from `at` on.
 * What the run has in bf16 or int8 and the file in fp32 is rounded to nearest, once. */
struct moments {
	void *array;
	uint64_t elems;
	struct mt_part own;
	enum array which;
};
typedef void moments_fn(const struct moments *, uint64_t at, const float *x, uint64_t n);

static void moments_bf16(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	convert_round((uint16_t *)to->array + at, (const uint32_t *)x, n);
}

/* The largest |x| of each group, to where its scale will be */
static void moments_largest(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	float *most = int8_scales(to->array, to->elems);
	for (uint64_t i = 0; i < n; i++)
		if ((mt_bits(x[i]) & 0x7fffffff) > mt_bits(most[(at + i) / MT_GROUP])) most[(at + i) / MT_GROUP] = fabsf(x[i]);
}

static void largest_to_scales(const struct moments *to)
{
	float *scale = int8_scales(to->array, to->elems);
	for (uint64_t group = to->own.first / MT_GROUP; group < to->own.end / MT_GROUP; group++)
		if (scale[group] != 0) scale[group] = int8_scale(int8_round(scale[group], INT8_NEAREST));
}

static void moments_codes(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	const float *scale = int8_scales(to->array, to->elems);
	uint8_t *codes = to->array;
	for (uint64_t i = 0; i < n; i++) {
		float of = scale[(at + i) / MT_GROUP];
		uint32_t rounded = int8_round(x[i], INT8_NEAREST);
		if (of != 0)
			codes[int8_at(at + i)] = to->which == ARRAY_M ? int8_m_code(rounded, of) : int8_v_code(rounded, of);
	}
}

/* Elements [from, end) of a tensor of m or v; take NULL: into the run as they are, in fp32 */
static int read_moments(const struct loader *l, const struct moments *to, uint32_t index, uint64_t from, uint64_t end,
	moments_fn *take, void *buf)
{
	const struct mt_tensor *t = mt_tensor(l->run, index);
	struct piece whole;
	for (; from < end; from += whole.n) {
		int rc = load_piece(mt_geometry(l->run), t, index, from, end, &whole);
		const struct piece p = load_owned(l, whole);
		if (rc < 0) return rc;
		if (!p.n) continue;
		uint32_t *bits = take ? buf : (uint32_t *)to->array + p.at;
		if (!take) load_populate(bits, p.n * 4);
		rc = source_state(l->s, to->which, index, p.from, p.at, p.n, (uint8_t *)buf + BLOCK_BYTES, bits);
		if (rc < 0) return rc;
		if (take) take(to, p.at, (const float *)bits, p.n);
	}
	return 0;
}

static struct moments moments_of(const struct loader *l, enum array which, uint32_t u)
{
	const struct mt_unit *unit = mt_unit(l->run, u);
	return (
		struct moments){mt_at(l->run, which == ARRAY_M ? unit->m : unit->v), unit->elems, mt_part(l->run, u), which};
}

int load_moments(const struct loader *l, const struct part *p, void *buf)
{
	struct moments to = moments_of(l, p->array, mt_tensor(l->run, p->index)->unit);
	bool bf16 = mt_control(l->run)->state == MT_BF16;
	return read_moments(l, &to, p->index, p->from, p->from + p->n, bf16 ? moments_bf16 : NULL, buf);
}

/* A group of int8 may hold elements of two tensors, and its scale is needed before its codes: so the file is read
 * twice. */
int load_codes(const struct loader *l, const struct part *p, void *buf)
{
	const struct mt_unit *unit = mt_unit(l->run, p->index);
	const struct moments to = moments_of(l, p->array, p->index);
	int rc = 0;
	memset((uint8_t *)to.array + to.own.first, 0, to.own.end - to.own.first);
	memset(int8_scales(to.array, to.elems) + to.own.first / MT_GROUP, 0, (to.own.end - to.own.first) / MT_GROUP * 4);
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors && rc == 0; i++)
			rc = read_moments(l, &to, i, 0, mt_tensor(l->run, i)->n, pass ? moments_codes : moments_largest, buf);
		if (pass == 0) largest_to_scales(&to);
	}
	return rc;
}

/* Codes and scales, bit for bit */
int copy_codes(const struct loader *l, const struct part *p)
{
	const struct moments to = moments_of(l, p->array, p->index);
	uint8_t *codes = (uint8_t *)to.array + p->from;
	if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
	load_populate(codes, p->n);
	return source_codes(l->s, p->array, p->index, p->from, p->n, codes,
		int8_scales(to.array, to.elems) + p->from / MT_GROUP);
}
