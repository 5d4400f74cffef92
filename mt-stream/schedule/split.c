/* split.c: where the parts of a block with experts begin and end. */
#include "layers/block.h"
#include "split.h"
#include "mt/layout.h"

#define ALIGN 64u /* elements: arrays begin there in a window's memory, as slabs do in a unit */

static uint64_t aligned(uint64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Experts' tensors are the last ones of their unit. All of one expert are an array, or all experts' of one role are. */
struct split split_of(const struct mt_unit *u, const struct mt_tensor *first)
{
	struct split c = {.elems = u->elems, .first_expert = u->tensors};
	const struct mt_tensor *end = first + u->tensors, *t = first;
	while (t < end && (t->role < MT_T_XGATE || t->role > MT_T_XDOWNB)) t++;
	if (t == end) return c;
	c.first_expert = (uint32_t)(t - first);
	for (; t < end && (t->experts || c.arrays == 0); t++) {
		c.array[c.arrays].off = t->off;
		c.array[c.arrays++].stride = (uint64_t)expert_stride(t, end);
		c.experts = t->experts;
	}
	if (!c.experts) c.experts = end[-1].expert + 1;
	if (c.array[0].stride == 0) c.array[0].stride = c.elems - c.array[0].off; /* a single expert */
	return c;
}

uint64_t split_rest(const struct split *c) { return c->experts ? c->array[0].off : c->elems; }

uint32_t split_boundaries(const struct split *c, uint32_t window)
{
	return c->experts ? c->arrays * windows_of(c, window) : 0;
}

uint64_t split_window(const struct split *c, uint32_t window)
{
	uint64_t n = 0;
	/* behind the last expert there may be a gap */
	for (uint32_t a = 0; a < c->arrays; a++)
		n += aligned((uint64_t)least(window, c->experts) * c->array[a].stride) + ALIGN;
	return n;
}

uint64_t split_boundary(const struct split *c, uint32_t window, uint32_t boundary)
{
	uint32_t windows = windows_of(c, window);
	return c->array[boundary / windows].off +
		(uint64_t)(boundary % windows) * window * c->array[boundary / windows].stride;
}

uint32_t split_boundary_block(const struct split *c, uint32_t window, uint32_t boundary)
{
	uint64_t block = split_boundary(c, window, boundary) / MT_BLOCK;
	while (boundary > 0 && split_boundary(c, window, boundary - 1) / MT_BLOCK == block) boundary--;
	return boundary;
}

void window_extents(const struct split *c, uint32_t window, uint32_t i, struct extent *e)
{
	uint32_t windows = windows_of(c, window), boundaries = split_boundaries(c, window);
	uint64_t at = 0;
	for (uint32_t a = 0; a < c->arrays; a++) {
		uint32_t boundary = a * windows + i;
		uint64_t to = boundary + 1 < boundaries ? split_boundary(c, window, boundary + 1) : c->elems;
		e[a] = (struct extent){split_boundary(c, window, boundary), to, at};
		at += aligned(to - e[a].from);
	}
}
