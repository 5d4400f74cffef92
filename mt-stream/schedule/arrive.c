/* arrive.c: rows and weights arrive on the device.
 *
 * A unit's weights come into a slot after the last operation that reads what is there; compute waits until they are
 * there. So the weights of one unit come while the one before computes.
 */
#include "mt/control.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "schedule.h"
#include "trace.h"

/* ---- rows ---- */

/* Rope's tables, unless the last micro-batch left them there */
static void tables_in(struct stream *s)
{
	const struct micro *m = s->micro;
	for (uint32_t k = 0; k < s->geo->n_kinds && s->memory.tables != m->request.seq; k++) {
		size_t table = (size_t)m->request.seq * (s->geo->kind[k].rope_dim / 2) * sizeof(float);
		if (!table) continue;
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {m->layout.cos[k], s->memory.cos[k], table}});
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {m->layout.sin[k], s->memory.sin[k], table}});
	}
	s->memory.tables = m->request.seq;
}

/* Of multi-token prediction: the next tokens, and what they predict; at a document's end there is neither */
static void ahead_make(struct stream *s)
{
	uint32_t seq = s->taken.msg.batch.seq, *out = s->taken.spans;
	size_t n = (size_t)s->taken.msg.batch.rows * seq;
	const uint32_t *tokens = s->taken.host, *targets = tokens + n, *starts = targets + n, *weights = starts + n;
	for (size_t i = 0; i < n; i++) {
		bool last = (i + 1) % seq == 0 || starts[i + 1] != starts[i];
		out[i] = tokens[i + !last];
		out[n + i] = last ? MT_NO_TARGET : targets[i + 1];
		if (s->taken.msg.batch.weights) out[2 * n + i] = weights[i + !last];
	}
}

void batch_in(struct stream *s)
{
	const struct micro *m = s->micro;
	size_t n = (size_t)m->request.rows * m->request.seq;
	size_t tables = (size_t)((char *)m->layout.tokens - (char *)s->memory.arena);
	const struct op ops[] = {
		{OP_DISCARD, .discard = {m->layout.tokens, m->bytes - tables}},
		{OP_COPY, .copy = {m->layout.tokens, s->taken.host, n * 4}},
		{OP_COPY, .copy = {m->layout.targets, s->taken.host + n, n * 4}},
		{OP_COPY, .copy = {m->layout.starts, s->taken.host + 2 * n, n * 4}},
		{OP_COPY, .copy = {m->layout.row_weights, s->taken.host + 3 * n, n * 4}},
	};
	/* those of an objective come from its head */
	bool weights = s->taken.msg.batch.weights && !has_objective(s);
	size_t words = m->layout.teacher ? n * MT_TEACHER_WORDS(m->request.top) : 0;
	size_t copies = sizeof ops / sizeof *ops - !weights;
	launch(s, Q_COMPUTE, &ops[0]);
	queue_wait(s, Q_WEIGHTS, event_record(s, Q_COMPUTE));
	for (size_t i = 1; i < copies; i++) launch(s, Q_COMPUTE, &ops[i]);
	if (words)
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {m->layout.teacher, s->taken.host + 5 * n, words * 4}});
	if (m->layout.span_starts)
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {m->layout.span_starts, s->taken.spans, n * 4}});
	if (m->layout.ahead) {
		ahead_make(s);
		launch(s, Q_COMPUTE,
			&(struct op){OP_COPY, .copy = {m->layout.ahead, s->taken.spans, n * (weights ? 3 : 2) * 4}});
	}
	balance_in(s);
	tables_in(s);
}

/* ---- weights ---- */

uint64_t weight_elem(const struct stream *s) { return mt_dtype_bytes(s->control->dtype); }

/* lo of the unit's exact tensors: in the store, and behind the weights in a slot */
static const int16_t *lo_stored(const struct stream *s, uint32_t unit)
{
	return (const int16_t *)mt_at(s->run, mt_unit(s->run, unit)->lo) + s->unit[unit].exact.first;
}

static void *lo_in_slot(const struct stream *s, uint32_t unit, const struct slot *slot)
{
	return operands_after(s->dev, slot->mem, (int64_t)elems_of(s, unit, 0));
}

static uint64_t lo_bytes(const struct unit *j) { return (j->exact.end - j->exact.first) * sizeof(int16_t); }

/* Where an origin's weights are in the slot. The blocks' own inputs have memory apart, which the head does not need */
static void *origin_at(const struct stream *s, uint32_t unit, int origin, const struct slot *slot)
{
	if (unit == 0 && origin) return s->micro->layout.ple_table;
	return operands_after(s->dev, slot->mem, (int64_t)s->unit[unit].origin[origin].at);
}

/* Copy the unit's weights into slot `to` after its last reader has run; compute waits until they are there. */
static void weights_load(struct stream *s, uint32_t unit, struct slot *to)
{
	trace_at(s->dev->trace, Q_WEIGHTS, unit, "weights");
	queue_wait(s, Q_WEIGHTS, to->last_read);
	for (int i = 0; i < s->unit[unit].origins; i++) {
		const struct origin *o = &s->unit[unit].origin[i];
		launch(s, Q_WEIGHTS,
			&(struct op){OP_WEIGHTS_IN,
				.weights_in = {.dst = origin_at(s, unit, i, to),
					.n = (int64_t)elems_of(s, unit, i),
					.src = mt_at(s->run, mt_unit(s->run, o->unit)->w),
					.from = s->control->dtype}});
	}
	if (lo_bytes(&s->unit[unit]))
		launch(s, Q_WEIGHTS,
			&(struct op){OP_COPY, .copy = {lo_in_slot(s, unit, to), lo_stored(s, unit), lo_bytes(&s->unit[unit])}});
	to->holds = unit;
	queue_wait(s, Q_COMPUTE, event_record(s, Q_WEIGHTS));
}

/* The slot that has the unit's weights; else the slot whose last reader is the longest ago. So the weights of the last
 * blocks are still there when the backward pass begins. */
static struct slot *slot_for(struct stream *s, uint32_t unit)
{
	struct slot *to = &s->now.blocks[0];
	if (unit == 0 || unit == head_unit(s)) return &s->now.embed_head[unit && s->micro->plan.pass_rows];
	for (uint32_t i = 0; i < s->micro->plan.weight_slots; i++) {
		struct slot *slot = &s->now.blocks[i];
		if (slot->holds == unit) return slot;
		to = slot->last_read.at < to->last_read.at ? slot : to;
	}
	return to;
}

void weights_ahead(struct stream *s, uint32_t unit)
{
	struct slot *slot = s->zero_copy ? NULL : slot_for(s, unit);
	if (slot && slot->holds != unit) weights_load(s, unit, slot);
}

/* Unit 0's origins in the store, if rows of them are to be read there; else false */
static bool embed_rows(const struct stream *s, const void *base[2])
{
	if (!embed_in_place(&s->micro->request, &s->micro->plan)) return false;
	for (int i = 0; i < s->unit[0].origins; i++) {
		const struct mt_unit *u = mt_unit(s->run, s->unit[0].origin[i].unit);
		base[i] = s->dev->read_rows(s->dev, mt_at(s->run, u->w), u->elems * weight_elem(s), s->control->dtype);
		if (!base[i]) return false;
	}
	return true;
}

void ple_weights(struct stream *s, struct weights *w)
{
	const struct mt_unit *u = mt_unit(s->run, s->unit[0].origin[1].unit);
	const struct mt_tensor *t = mt_tensor(s->run, u->first_tensor);
	struct slot *to = &s->now.ple;
	uint64_t n = s->micro->request.ple_beside;
	const void *base = to->mem, *store = mt_at(s->run, u->w);
	if (s->unit[0].origins < 2) return;
	if (s->zero_copy) base = s->dev->zero_copy(s->dev, store, s->control->dtype);
	else if (to->holds < 0) {
		trace_at(s->dev->trace, Q_WEIGHTS, s->unit[0].origin[1].unit, "weights");
		launch(s, Q_WEIGHTS,
			&(struct op){OP_WEIGHTS_IN, .weights_in = {to->mem, store, (int64_t)n, s->control->dtype}});
		to->holds = 0;
		queue_wait(s, Q_COMPUTE, event_record(s, Q_WEIGHTS));
		mt_count(s->run, MT_STREAM_bytes_in, n * weight_elem(s));
	}
	for (uint32_t i = 0; i < u->tensors && t[i].off < n; i++)
		if (!t[i].expert) w->t[t[i].role] = operands_after(s->dev, base, (int64_t)t[i].off);
}

struct slot *weights_fetch(struct stream *s, uint32_t unit, struct weights *w)
{
	const struct unit *j = &s->unit[unit];
	const void *base[2];
	const int16_t *lo = NULL;
	if (unit == 0 && embed_rows(s, base)) {
		mt_count(s->run, MT_STREAM_bytes_in, elems_of_rows(&s->micro->request) * weight_elem(s));
		weights_at(s, unit, base, NULL, w);
		ple_weights(s, w);
		return NULL;
	}
	struct slot *slot = s->zero_copy ? NULL : slot_for(s, unit);
	weights_ahead(s, unit);
	for (int i = 0; i < j->origins; i++) {
		const struct mt_unit *u = mt_unit(s->run, j->origin[i].unit);
		base[i] = slot ? origin_at(s, unit, i, slot)
					   : s->dev->zero_copy(s->dev, mt_at(s->run, u->w), s->control->dtype);
		mt_count(s->run, MT_STREAM_bytes_in, elems_of(s, unit, i) * weight_elem(s));
	}
	if (lo_bytes(j)) lo = slot ? lo_in_slot(s, unit, slot) : lo_stored(s, unit);
	mt_count(s->run, MT_STREAM_bytes_in, lo_bytes(j));
	weights_at(s, unit, base, lo, w);
	if (unit == 0) ple_weights(s, w);
	return slot;
}
