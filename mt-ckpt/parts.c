/* parts.c: lo, m and v in a checkpoint of several nodes. Each node writes what it owns of every unit, in the order of
 * the run's elements, so that any number of nodes can read any part of it:
 *
 *     optim-m-node-0-of-2.safetensors     unit.0[0:8192] (8192), unit.1[0:4096] (4096), ...
 *     optim-m-node-1-of-2.safetensors     unit.0[8192:16384] (8192), unit.1[4096:12288] (8192), ...
 *
 * An element's number counts gaps of the unit's arrays, too.
 *
 * m and v in int8 are in parts also on one machine, since a group may hold elements of two tensors: whole units. A
 * part's codes have its name, its scales follow them:
 *
 *     optim-m.safetensors     unit.0[0:16384] (16384), unit.0[0:16384].scale (256), ...
 */
#include <stdlib.h>
#include "ckpt.h"

/* elems: of an entry of the tensor, 1 or, of scales, MT_GROUP. Which node a part belongs to is kept in the field that
 * says whose expert a tensor is. */
static void fill(struct mt_tensor *t, uint32_t unit, uint32_t node, struct mt_part p, uint64_t elems)
{
	*t = (struct mt_tensor){.unit = unit,
		.ndim = 1,
		.shape = {(p.end - p.first) / elems, 1},
		.off = p.first / elems,
		.n = (p.end - p.first) / elems,
		.expert = node,
		.exact = elems > 1};
	snprintf(t->name, sizeof t->name, "unit.%u[%llu:%llu]%s", unit, (unsigned long long)p.first,
		(unsigned long long)p.end, elems > 1 ? ".scale" : "");
}

int parts_list(struct parts *l, const struct mt_layout *of, uint32_t first, uint32_t end, uint32_t nodes,
	enum st_dtype dtype)
{
	*l = (struct parts){.each = dtype == ST_U8 ? 2 : nodes > 1, .n = of->n_tensors};
	l->v = calloc(l->each ? (size_t)of->n_units * (end - first) * l->each + 1 : l->n, sizeof *l->v);
	if (!l->v) return mt_fail(MT_EX_NOMEM, "no memory for a table of tensors");
	if (!l->each) memcpy(l->v, of->tensors, l->n * sizeof *l->v);
	else l->n = 0;
	for (uint32_t i = 0; i < l->n; i++)
		if (!mt_trained(&of->units[l->v[i].unit])) *l->v[i].name = 0;
	for (uint32_t u = 0; u < of->n_units && l->each; u++)
		for (uint32_t node = first; node < end; node++) {
			struct mt_part p = mt_part_of(&of->units[u], node, nodes);
			for (uint32_t i = 0; i < l->each && p.first < p.end; i++) fill(&l->v[l->n++], u, node, p, i ? MT_GROUP : 1);
		}
	return 0;
}

uint32_t parts_find(const struct parts *l, uint32_t unit, uint64_t at)
{
	uint32_t low = 0, high = l->n / l->each;
	while (high - low > 1) { /* part `low` begins at the element, or before it */
		uint32_t mid = low + (high - low) / 2;
		const struct mt_tensor *t = &l->v[mid * l->each];
		if (t->unit < unit || (t->unit == unit && t->off <= at)) low = mid;
		else high = mid;
	}
	return low * l->each;
}

void parts_set(char name[SET_NAME], enum array a, uint32_t node, uint32_t nodes)
{
	int n = snprintf(name, SET_NAME, "%s", st_sets[a]);
	if (nodes > 1) snprintf(name + n, SET_NAME - (size_t)n, "-node-%u-of-%u", node, nodes);
}
