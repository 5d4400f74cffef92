/* parts.c: lo, m and v in a checkpoint of several nodes. Each node writes what it owns of every unit, in the order of
 * the run's elements, so that any number of nodes can read any part of it:
 *
 *     optim-m-node-0-of-2.safetensors     unit.0[0:8192] (8192), unit.1[0:4096] (4096), ...
 *     optim-m-node-1-of-2.safetensors     unit.0[8192:16384] (8192), unit.1[4096:12288] (8192), ...
 *
 * An element's number counts gaps of the unit's arrays, too. */
#include <stdlib.h>
#include "ckpt.h"

/* Which node a part belongs to is kept in the field that says whose expert a tensor is. */
static void fill(struct mt_tensor *t, uint32_t unit, uint32_t node, struct mt_part p)
{
	*t = (struct mt_tensor){.unit = unit,
		.ndim = 1,
		.shape = {p.end - p.first, 1},
		.off = p.first,
		.n = p.end - p.first,
		.expert = node};
	snprintf(t->name, sizeof t->name, "unit.%u[%llu:%llu]", unit, (unsigned long long)p.first,
		(unsigned long long)p.end);
}

int parts_list(struct parts *l, const struct mt_unit *units, uint32_t n_units, uint32_t first, uint32_t end,
	uint32_t nodes)
{
	*l = (struct parts){.v = calloc((size_t)n_units * (end - first) + 1, sizeof *l->v)};
	if (!l->v) return mt_fail(MT_EX_NOMEM, "no memory for a table of the nodes' parts");
	for (uint32_t u = 0; u < n_units; u++)
		for (uint32_t node = first; node < end; node++) {
			struct mt_part p = mt_part_of(units[u].elems, node, nodes);
			if (p.first < p.end) fill(&l->v[l->n++], u, node, p);
		}
	return 0;
}

uint32_t parts_find(const struct parts *l, uint32_t unit, uint64_t at)
{
	uint32_t low = 0, high = l->n;

	while (high - low > 1) { /* part `low` begins at the element, or before it */
		uint32_t mid = low + (high - low) / 2;
		if (l->v[mid].unit < unit || (l->v[mid].unit == unit && l->v[mid].off <= at)) low = mid;
		else high = mid;
	}
	return low;
}

void parts_set(char name[SET_NAME], enum array a, uint32_t node, uint32_t nodes)
{
	snprintf(name, SET_NAME, "%s-node-%u-of-%u", st_sets[a].name, node, nodes);
}
