/* nodes.c: a run on several nodes: what each owns, and which bytes of the store it has.
 *
 * All nodes have all weights, and lo of exact tensors. Of the rest of a unit's lo, and of its m, v and g, each has the
 * part that it owns, at the offsets that these arrays have in a run on one machine: what is left of the arrays are
 * holes of the store's file, which take no memory until somebody touches them, and nobody does.
 */
#include <stdlib.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "os.h"

uint32_t mt_node(const struct mt_run *run) { return run->control->nodes.node; }

uint32_t mt_nodes(const struct mt_run *run) { return run->control->nodes.nodes; }

uint32_t mt_node_streams(const struct mt_run *run) { return run->control->nodes.streams; }

uint32_t mt_streams(const struct mt_run *run) { return run->control->nodes.streams * run->control->nodes.nodes; }

struct mt_part mt_part(const struct mt_run *run, uint32_t unit)
{
	return mt_part_of(mt_unit(run, unit), mt_node(run), mt_nodes(run));
}

int nodes_check(uint32_t node, uint32_t nodes, uint32_t streams, enum mt_dtype grad)
{
	if (nodes > MT_NODES) return mt_fail(MT_EX_USAGE, "--node: a run has %d nodes at most", MT_NODES);
	if (node >= nodes) return mt_fail(MT_EX_USAGE, "--node: there is no node %u of %u; the first is 0", node, nodes);
	if (nodes > 1 && grad == MT_NONE)
		return mt_fail(MT_EX_USAGE, "--grad none: each unit is updated as its gradient arrives, on one machine alone");
	if (!streams || streams > MT_STREAMS / nodes)
		return mt_fail(MT_EX_USAGE, "--streams: %u on each of %u nodes: a run has 1 to %d mt-streams in all", streams,
			nodes, MT_STREAMS);
	return 0;
}

/* ---- ranges */

struct list {
	struct range *v;
	uint32_t n;
};

/* Whole pages; arrays come in the order of their offsets, and neighbours become one range */
static void add(struct list *l, uint64_t from, uint64_t bytes)
{
	uint64_t page = mt_page(), end = round_up(from + bytes, page);
	from -= from % page;
	if (!bytes) return;
	if (l->n && from <= l->v[l->n - 1].end) l->v[l->n - 1].end = end;
	else l->v[l->n++] = (struct range){from, end};
}

static void add_moment(struct list *l, uint32_t state, uint64_t array, uint64_t elems, struct mt_part p)
{
	uint64_t n = p.end - p.first;
	if (state != MT_INT8) {
		uint64_t width = mt_state_bytes(state, 1);
		add(l, array + p.first * width, n * width);
		return;
	}
	add(l, array + p.first, n);
	add(l, array + mt_scales_at(elems) + p.first / MT_GROUP * 4, n / MT_GROUP * 4);
}

/* lo of elements [from, end) */
static void add_lo(struct list *l, const struct mt_unit *u, uint64_t from, uint64_t end)
{
	if (from < end) add(l, u->lo + from * 2, (end - from) * 2);
}

static void add_unit(struct list *l, const struct mt_layout *layout, const struct mt_unit *u, struct mt_part p)
{
	struct mt_part exact = mt_exact(u, layout->tensors + u->first_tensor);
	uint64_t n = p.end - p.first, grad = mt_dtype_bytes(layout->grad);
	add(l, u->w, u->elems * mt_dtype_bytes(layout->dtype));
	add_lo(l, u, exact.first, exact.end < p.first ? exact.end : p.first);
	if (u->lo) add_lo(l, u, p.first, p.end);
	add_lo(l, u, exact.first > p.end ? exact.first : p.end, exact.end);
	add_moment(l, layout->state, u->m, u->elems, p);
	if (u->v) add_moment(l, layout->state, u->v, u->elems, p);
	for (int end = 0; end < 2; end++)
		if (u->g[end]) add(l, u->g[end] + p.first * grad, n * grad);
}

int nodes_ranges(const struct mt_layout *layout, uint32_t node, uint32_t nodes, struct range **v, uint32_t *n)
{
	enum { ARRAYS = 10 }; /* ranges of a unit at most: w, three of lo, m and v with their scales, two g */
	struct list l = {.v = malloc((1 + (size_t)layout->n_units * ARRAYS) * sizeof *l.v)};
	if (!l.v) return mt_fail(MT_EX_NOMEM, "no memory for a table of the store's parts");
	add(&l, 0, nodes > 1 ? sizeof(struct mt_header) : layout->store_bytes);
	for (uint32_t u = 0; nodes > 1 && u < layout->n_units; u++)
		add_unit(&l, layout, &layout->units[u], mt_part_of(&layout->units[u], node, nodes));
	*v = l.v;
	*n = l.n;
	return 0;
}

uint64_t ranges_bytes(const struct range *v, uint32_t n)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < n; i++) bytes += v[i].end - v[i].from;
	return bytes;
}

uint64_t nodes_memory(const struct mt_layout *layout, uint32_t node, uint32_t nodes)
{
	struct range *v;
	uint32_t n;
	if (nodes <= 1) return layout->store_bytes;
	if (nodes_ranges(layout, node, nodes, &v, &n)) return 0;
	uint64_t bytes = ranges_bytes(v, n);
	free(v);
	return bytes;
}

uint64_t mt_node_store(const struct mt_layout *layout, uint32_t nodes)
{
	uint64_t most = 0;
	for (uint32_t node = 0; node < nodes; node++) {
		uint64_t bytes = nodes_memory(layout, node, nodes);
		if (!bytes) return 0;
		if (bytes > most) most = bytes;
	}
	return most;
}

uint64_t mt_store_memory(const struct mt_run *run) { return run->memory; }
