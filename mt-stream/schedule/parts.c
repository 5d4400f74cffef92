/* parts.c: the parts of which units consist, as the schedule goes through them: where the tensors of each are, and
 * which of the gradients leave with it.
 */
#include <stddef.h>
#include <stdlib.h>

#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "schedule.h"

/* ---- units ---- */

static void origin_add(const struct stream *s, struct unit *u, uint32_t unit, uint32_t end)
{
	const struct mt_unit *of = mt_unit(s->run, unit);
	struct origin *o = &u->origin[u->origins++];
	*o = (struct origin){unit, end, u->elems, of->elems, .trained = mt_trained(of)};
	for (uint32_t i = 0; i < of->tensors; i++) o->frozen |= mt_tensor(s->run, of->first_tensor + i)->frozen;
	u->elems += of->elems;
	u->trained |= o->trained;
}

int units_make(struct stream *s)
{
	s->units = s->geo->layers + 2;
	s->unit = calloc(s->units, sizeof *s->unit);
	s->now.blocks = calloc(s->units, sizeof *s->now.blocks);
	if (!s->unit || !s->now.blocks) return mt_fail(MT_EX_NOMEM, "no memory for %u units", s->units);
	for (uint32_t u = 0; u < s->units; u++) origin_add(s, &s->unit[u], u, 0);
	for (uint32_t u = 1; u + 1 < s->units; u++) {
		const struct mt_unit *unit = mt_unit(s->run, u);
		s->unit[u].split = split_of(unit, mt_tensor(s->run, unit->first_tensor));
		s->unit[u].exact = mt_exact(unit, mt_tensor(s->run, unit->first_tensor));
	}
	if (s->geo->flags & MT_TIED) origin_add(s, &s->unit[s->units - 1], 0, 1);
	if (s->geo->ple_dim) origin_add(s, &s->unit[0], s->units, 0);
	while (s->lowest < head_unit(s) && !s->unit[s->lowest].trained) s->lowest++;
	return 0;
}

bool is_split(const struct stream *s, uint32_t unit)
{
	return s->micro->plan.expert_window && s->unit[unit].split.experts;
}

uint32_t windows_in(const struct stream *s, uint32_t unit)
{
	return windows_of(&s->unit[unit].split, s->micro->plan.expert_window);
}

uint64_t elems_of(const struct stream *s, uint32_t unit, int origin)
{
	return is_split(s, unit) ? split_rest(&s->unit[unit].split) : s->unit[unit].origin[origin].elems;
}

static uint32_t tensors_of(const struct stream *s, uint32_t unit, int origin)
{
	return is_split(s, unit) ? s->unit[unit].split.first_expert
							 : mt_unit(s->run, s->unit[unit].origin[origin].unit)->tensors;
}

/* ---- where a unit's tensors are ---- */

void weights_at(struct stream *s, uint32_t unit, const void *const base[2], const int16_t *lo, struct weights *w)
{
	*w = (struct weights){0};
	for (int i = 0; i < s->unit[unit].origins; i++) {
		const struct mt_unit *u = mt_unit(s->run, s->unit[unit].origin[i].unit);
		weights_enter(w, s->dev, mt_tensor(s->run, u->first_tensor), tensors_of(s, unit, i), base[i], lo);
	}
	/* a tied model's embedding is the head's weight */
	if (unit == head_unit(s) && w->t[MT_T_EMBED]) w->t[MT_T_HEAD] = w->t[MT_T_EMBED];
}

/* Where an origin's gradient is summed: in its place in the slot. With --grad none a tied model sums the embed gradient
 * and the head gradient in one array. */
static float *grads_base(const struct stream *s, uint32_t unit, int origin, float *slot)
{
	const struct origin *o = &s->unit[unit].origin[origin];
	return s->micro->layout.tied_grads && o->unit == 0 ? s->micro->layout.tied_grads : slot + o->at;
}

void grads_at(struct stream *s, uint32_t unit, float *slot, struct grads *g)
{
	*g = (struct grads){0};
	for (int i = 0; i < s->unit[unit].origins; i++) {
		const struct mt_unit *u = mt_unit(s->run, s->unit[unit].origin[i].unit);
		grads_enter(g, mt_tensor(s->run, u->first_tensor), tensors_of(s, unit, i), grads_base(s, unit, i, slot));
	}
	if (unit != head_unit(s) || !g->t[MT_T_EMBED]) return;
	g->t[MT_T_HEAD] = g->t[MT_T_EMBED];
	g->frozen[MT_T_HEAD] = g->frozen[MT_T_EMBED];
}

void gaps_clear(struct stream *s, uint32_t unit, float *g, uint64_t from, uint64_t to)
{
	const struct mt_unit *u = mt_unit(s->run, unit);
	uint64_t end = from;
	for (uint32_t i = 0; i <= u->tensors && end < to; i++) {
		const struct mt_tensor *t = i < u->tensors ? mt_tensor(s->run, u->first_tensor + i) : NULL;
		uint64_t next = t && t->off < to ? t->off : to;
		if (next > end)
			launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {g + (end - from), (next - end) * sizeof(float)}});
		if (next > end) end = next;
		if (t && t->off + t->n > end) end = t->off + t->n;
	}
}

void grads_clear_gaps(struct stream *s, uint32_t unit, float *slot)
{
	/* the head has cleared those of an array that it shares with the embedding */
	for (int i = unit == 0 && s->micro->layout.tied_grads; i < s->unit[unit].origins; i++)
		gaps_clear(s, s->unit[unit].origin[i].unit, grads_base(s, unit, i, slot), 0, elems_of(s, unit, i));
}

void window_enter(struct stream *s, uint32_t unit, uint32_t i, void *mem, struct weights *w, float *gs, struct grads *g)
{
	const struct split *c = &s->unit[unit].split;
	const struct mt_unit *u = mt_unit(s->run, unit);
	const struct mt_tensor *t = mt_tensor(s->run, u->first_tensor + c->first_expert);
	struct extent e[EXPERT_ARRAYS];
	window_extents(c, s->micro->plan.expert_window, i, e);
	for (uint32_t n = c->first_expert; n < u->tensors; n++, t++) {
		if (g) g->frozen[t->role] = t->frozen && (!t->expert || g->frozen[t->role]);
		if (t->expert) continue;
		uint32_t a = t->experts ? n - c->first_expert : 0;
		int64_t in = (int64_t)(t->off - c->array[a].off), stride = (int64_t)c->array[a].stride;
		if (w) {
			w->t[t->role] = mem
				? operands_after(s->dev, mem, (int64_t)e[a].at + in)
				: operands_after(s->dev, s->dev->zero_copy(s->dev, mt_at(s->run, u->w), s->control->dtype),
					  (int64_t)e[a].from + in);
			w->stride[t->role] = stride;
		}
		if (g) {
			g->t[t->role] = gs + e[a].at + in;
			g->stride[t->role] = stride;
		}
	}
}

/* ---- boundary blocks ---- */

/* Copy elements from .. to - 1 of unit u's gradient, which are at src, to where their boundary block is put
 * together. `boundary` is one between parts, in the same block. */
static void boundary_put(struct stream *s, uint32_t u, uint32_t boundary, const float *src, uint64_t from, uint64_t to)
{
	uint32_t block = split_boundary_block(&s->unit[u].split, s->micro->plan.expert_window, boundary);
	float *dst = s->micro->layout.boundary_blocks[u & 1] + (uint64_t)block * MT_BLOCK + from % MT_BLOCK;
	launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {dst, src, (to - from) * sizeof(float)}});
}

/* Of a part's elements, those in blocks that are all its own */
static struct extent inside(const struct split *c, const struct extent *e)
{
	uint64_t from = (e->from + MT_BLOCK - 1) / MT_BLOCK * MT_BLOCK;
	uint64_t to = e->to == c->elems ? e->to : e->to / MT_BLOCK * MT_BLOCK;
	return (struct extent){from, to > from ? to : from, e->at + from - e->from};
}

void boundaries_put(struct stream *s, uint32_t u, const float *gs, const struct extent *e, uint32_t end)
{
	const struct split *c = &s->unit[u].split;
	struct extent in = inside(c, e);
	const float *g = gs + e->at;
	if (in.from > e->from) boundary_put(s, u, end - 1, g, e->from, in.from < e->to ? in.from : e->to);
	if (in.to < e->to) boundary_put(s, u, end, g + (in.to - e->from), in.to, e->to);
}

/* ---- parts of the backward pass, and what of the gradients leaves with them ---- */

static uint32_t parts_of(const struct stream *s, uint32_t u) { return is_split(s, u) ? windows_in(s, u) + 1 : 1; }
bool is_window(const struct stream *s, struct part t) { return t.nth + 1 < parts_of(s, t.unit); }

float *grads_of(const struct stream *s, struct part t)
{
	const struct memory_layout *at = &s->micro->layout;
	if (is_window(s, t)) return at->window_grads[t.nth & 1];
	if (t.unit == 0 || t.unit == head_unit(s)) return at->embed_head_grads[t.unit != 0];
	return at->grads[(t.unit - 1) % s->micro->plan.grad_slots];
}

struct part part_after(const struct stream *s, struct part t)
{
	return is_window(s, t) ? (struct part){t.unit, t.nth + 1} : (struct part){t.unit - 1, 0};
}

/* The boundary block of the i-th boundary, if that is the first one in it */
static struct gradient boundary_block(const struct stream *s, uint32_t u, uint32_t i)
{
	const struct split *c = &s->unit[u].split;
	uint32_t each = s->micro->plan.expert_window;
	uint64_t boundary = split_boundary(c, each, i), off = boundary / MT_BLOCK * MT_BLOCK;
	uint64_t before = i ? split_boundary(c, each, i - 1) : 0;
	bool first = before <= off; /* of the boundaries inside the block */
	uint64_t end = c->elems - off < MT_BLOCK ? c->elems : off + MT_BLOCK;
	return (struct gradient){.unit = u,
		.e = {off, boundary == off || !first ? off : end, 0},
		.g = s->micro->layout.boundary_blocks[u & 1] + (uint64_t)split_boundary_block(c, each, i) * MT_BLOCK};
}

bool gradient_of(const struct stream *s, struct part t, uint32_t i, struct gradient *r)
{
	const struct unit *u = &s->unit[t.unit];
	const struct split *c = &u->split;
	uint32_t each = s->micro->plan.expert_window;
	struct extent e[EXPERT_ARRAYS];
	if (!u->trained) return false;
	if (is_window(s, t)) {
		if (i >= c->arrays) return false;
		window_extents(c, each, t.nth, e);
		*r = (struct gradient){t.unit, 0, inside(c, &e[i]), grads_of(s, t), .expert_off = c->array[i].off,
			.expert_stride = c->array[i].stride};
	} else if (is_split(s, t.unit)) {
		if (i > split_boundaries(c, each)) return false;
		e[0] = (struct extent){0, split_rest(c), 0};
		*r = i ? boundary_block(s, t.unit, i - 1) : (struct gradient){t.unit, 0, inside(c, e), grads_of(s, t), 0, 0};
	} else {
		if (i >= (uint32_t)u->origins) return false;
		*r = (struct gradient){.unit = u->origin[i].unit,
			.end = u->origin[i].end,
			.e.to = !u->origin[i].trained || (s->micro->layout.tied_grads && u->origin[i].end) ? 0 : u->origin[i].elems,
			.g = grads_base(s, t.unit, (int)i, grads_of(s, t))};
	}
	r->frozen = u->origin[is_split(s, t.unit) ? 0 : i].frozen;
	return true;
}
