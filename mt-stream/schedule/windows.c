/* windows.c: a block whose experts come by windows, some experts at a time, with memory for two windows instead of
 * whole blocks. The planner selects windows where memory is short, or where what else fits then is predicted to be
 * faster. All chunks of the pass go through each of these stages before the next one:
 *
 *     first          forward    attention, second residual, router
 *                    backward   recompute what the block did not keep, router
 *     each window,   forward    its experts' outputs, added to each token's sum
 *     ascending      backward   gradients of inputs, likewise; the experts' gradients, which then leave
 *     last           forward    sum and residual; shared expert
 *                    backward   shared expert, router, attention; the rest's gradients
 *
 * So each expert crosses the bus once forward and once backward, and its gradients once. While one window computes, the
 * next one comes and the gradients of the one before leave. What it costs: routing and sums in fp32 are kept of a whole
 * pass, and so is what a block recomputes; each window computes its input's norm again. Each token's sum goes in the
 * order of experts, and each expert's gradient in the order of chunks, so windows change no bit. After routing, this
 * thread waits once for the experts' numbers of rows, since windows are launched with them.
 *
 * Experts without any token in the pass are not fetched. Two windows are fetched before the forward pass has routed the
 * tokens, if these are many. Pieces of gradients that are all of such experts leave as messages without bytes
 * (grad.zero).
 *
 * There are no windows pass-major, where weights and gradients stay on the device. Nor with --grad none: mt-optim then
 * takes a unit's gradient from its beginning on, and the experts, which are behind the rest, are computed first.
 *
 * A norm behind the experts needs their whole sum before any window goes backward. So each block keeps that sum (N, H)
 * from the forward pass on, and before its windows go backward computes the sum's gradient.
 */
#include "mt/control.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "schedule.h"
#include "trace.h"

/* ---- rows of experts ---- */

/* Where the rows of unit u's experts begin, of all slices of the pass: as the routing's `first` */
static uint32_t *rows_of_unit(const struct stream *s, uint32_t u)
{
	const struct plan_request *req = &s->micro->request;
	return s->memory.rows + (u - 1) * slices_of_pass(req, &s->micro->plan) * (req->most.experts + 1);
}

/* Compute launched so far has routed all tokens. Windows are launched with their numbers of rows. */
static int rows_fetch(struct stream *s, uint32_t u)
{
	size_t n = slices_of_pass(&s->micro->request, &s->micro->plan) * (s->unit[u].split.experts + 1);
	launch(s, Q_COMPUTE,
		&(struct op){OP_COPY,
			.copy = {rows_of_unit(s, u), s->micro->layout.scratch.routing.first, n * sizeof *s->memory.rows}});
	return event_sync(s, event_record(s, Q_COMPUTE));
}

void rows_assume(struct stream *s, uint32_t u)
{
	const struct plan_request *req = &s->micro->request;
	uint64_t experts = s->unit[u].split.experts,
			 slots = tokens_of_slice(req, &s->micro->plan) * mt_layer_of(s->geo, u - 1)->experts_per_token;
	uint32_t *first = rows_of_unit(s, u);
	for (uint64_t i = 0; i < slices_of_pass(req, &s->micro->plan) * (experts + 1); i++)
		first[i] = (uint32_t)(slots * (i % (experts + 1)) / experts);
}

bool expert_used(const struct stream *s, uint32_t u, uint32_t expert)
{
	uint32_t stride = s->unit[u].split.experts + 1;
	const uint32_t *first = rows_of_unit(s, u) + expert;
	for (int64_t p = slices_of(s, s->now.n); p > 0; p--, first += stride)
		if (first[1] > first[0]) return true;
	return false;
}

/* Window i, and its rows of the pass's first chunk */
static struct window window_of(const struct stream *s, uint32_t u, uint32_t i)
{
	uint32_t each = s->micro->plan.expert_window, experts = s->unit[u].split.experts, from = i * each;
	return (
		struct window){.from = from, .to = experts - from < each ? experts : from + each, .rows = rows_of_unit(s, u)};
}

static struct window window_of_chunk(const struct stream *s, uint32_t u, uint32_t i, const struct chunk *c)
{
	struct window w = window_of(s, u, i);
	w.rows += c->slices_before * (s->unit[u].split.experts + 1);
	return w;
}

/* ---- weights ---- */

static int64_t window_number(uint32_t unit, uint32_t i) { return (int64_t)unit * MT_EXPERTS + i; }

static struct slot *window_slot(struct stream *s, uint32_t unit, uint32_t i)
{
	struct slot *w = s->now.windows;
	return w[0].holds == window_number(unit, i) ? &w[0] : w[1].holds == window_number(unit, i) ? &w[1] : NULL;
}

/* Copy weights of experts from .. to - 1 in, where the window's extents e are in the slot; NULL: count only */
static void experts_load(struct stream *s, uint32_t unit, struct slot *slot, const struct extent *e, uint32_t from,
	uint32_t to)
{
	const struct split *c = &s->unit[unit].split;
	const char *src = mt_at(s->run, mt_unit(s->run, unit)->w);
	for (uint32_t a = 0; a < c->arrays; a++) {
		uint64_t off = c->array[a].off + from * c->array[a].stride, n = (to - from) * c->array[a].stride;
		mt_count(s->run, MT_STREAM_bytes_in, n * weight_elem(s));
		if (slot)
			launch(s, Q_WEIGHTS,
				&(struct op){OP_WEIGHTS_IN,
					.weights_in = {.dst = operands_after(s->dev, slot->mem, (int64_t)(e[a].at + off - e[a].from)),
						.n = (int64_t)n,
						.src = src + off * weight_elem(s),
						.from = s->control->dtype}});
	}
}

/* Copy the window's weights in, if there is one of that number, into the slot that the window before it is not in.
 * routed: the rows of experts are known, and those without any stay away. */
static void window_load(struct stream *s, uint32_t unit, uint32_t i, bool routed)
{
	struct slot *slot = window_slot(s, unit, i);
	struct extent e[EXPERT_ARRAYS];
	if (i >= windows_in(s, unit)) return;
	s->now.window = slot ? (int)(slot - s->now.windows) : !s->now.window;
	if (slot) return;
	slot = s->zero_copy ? NULL : &s->now.windows[s->now.window];
	window_extents(&s->unit[unit].split, s->micro->plan.expert_window, i, e);
	trace_at(s->dev->trace, Q_WEIGHTS, unit, "weights");
	if (slot) queue_wait(s, Q_WEIGHTS, slot->last_read);
	struct window w = window_of(s, unit, i);
	for (uint32_t from = w.from, to; from < w.to; from = to) {
		bool used = !routed || expert_used(s, unit, from);
		for (to = from + 1; to < w.to && (!routed || expert_used(s, unit, to)) == used;) to++;
		if (used) experts_load(s, unit, slot, e, from, to);
	}
	if (!slot) return;
	slot->holds = window_number(unit, i);
	slot->loaded = event_record(s, Q_WEIGHTS);
}

/* The window's weights, in *w; compute launched from here on may read them. window_leave: it has been launched, and the
 * next window but one may come. */
static void window_fetch(struct stream *s, uint32_t unit, uint32_t i, struct weights *w)
{
	struct slot *slot = window_slot(s, unit, i);
	if (slot) queue_wait(s, Q_COMPUTE, slot->loaded);
	window_enter(s, unit, i, slot ? slot->mem : NULL, w, NULL, NULL);
}

static void window_leave(struct stream *s, uint32_t unit, uint32_t i)
{
	struct slot *slot = window_slot(s, unit, i);
	if (slot) slot->last_read = event_record(s, Q_COMPUTE);
	window_load(s, unit, i + 2, true);
}

/* ---- forward ---- */

/* With few rows an expert, some experts may have none. Then the first windows wait for the routing, too. */
enum { FEW_ROWS = 4 };

int split_forward(struct stream *s, uint32_t u, struct weights *w)
{
	const struct mt_layer *l = mt_layer_of(s->geo, u - 1);
	bool few = s->now.n * l->experts_per_token < FEW_ROWS * (int64_t)l->experts;
	for (uint32_t i = 0; i < 2 && !few; i++) window_load(s, u, i, false);
	for (struct block_chunk at = {0}; next_chunk(s, u, &at);) {
		mixer_forward(&at.c, u - 1, w, at.x, &at.v, at.v.x2);
		block_route(&at.c, u - 1, w, at.x, &at.v);
	}
	int rc = rows_fetch(s, u);
	if (rc) return rc;
	for (uint32_t i = 0; i < 2 && few; i++) window_load(s, u, i, true);
	for (uint32_t i = 0; i < windows_in(s, u); i++) {
		window_fetch(s, u, i, w);
		for (struct block_chunk at = {0}; next_chunk(s, u, &at);) {
			struct window win = window_of_chunk(s, u, i, &at.c);
			block_window_forward(&at.c, u - 1, w, &win, at.x, &at.v);
		}
		window_leave(s, u, i);
	}
	for (struct block_chunk at = {0}; next_chunk(s, u, &at);)
		mlp_forward(&at.c, u - 1, w, at.x, &at.v, output(s, u, at.from));
	return 0;
}

/* ---- backward, part by part ---- */

void windows_ahead(struct stream *s, uint32_t u)
{
	for (uint32_t i = 0; i < 2; i++) window_load(s, u, i, true);
}

/* Attention's activations and the router's, of all chunks */
void split_backward_begin(struct stream *s, uint32_t u)
{
	struct weights *w = &s->now.weights;
	uint64_t blocks = (uint64_t)split_boundaries(&s->unit[u].split, s->micro->plan.expert_window) * MT_BLOCK;
	trace_at(s->dev->trace, Q_COMPUTE, u, "backward");
	s->now.slot = weights_fetch(s, u, w);
	launch(s, Q_COMPUTE,
		&(struct op){OP_DISCARD, .discard = {s->micro->layout.boundary_blocks[u & 1], blocks * sizeof(float)}});
	for (struct block_chunk at = {0}; next_chunk(s, u, &at);) {
		recompute(s, u, w, &at);
		block_backward_route(&at.c, u - 1, w, at.x, &at.v, dx_at(s, at.from));
	}
}

void window_backward(struct stream *s, uint32_t u, uint32_t i, float *gs)
{
	const struct split *c = &s->unit[u].split;
	uint32_t each = s->micro->plan.expert_window;
	struct weights *w = &s->now.weights;
	struct extent e[EXPERT_ARRAYS];
	struct grads g = {0};
	launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, split_window(c, each) * sizeof(float)}});
	window_extents(c, each, i, e);
	for (uint32_t a = 0; a < c->arrays; a++) gaps_clear(s, u, gs + e[a].at, e[a].from, e[a].to);
	window_fetch(s, u, i, w);
	window_enter(s, u, i, NULL, NULL, gs, &g);
	for (struct block_chunk at = {0}; next_chunk(s, u, &at);) {
		struct window win = window_of_chunk(s, u, i, &at.c);
		block_window_backward(&at.c, u - 1, w, &g, beta_at(s, at.from), &win, at.x, &at.v, dx_at(s, at.from));
	}
	window_leave(s, u, i);
	for (uint32_t a = 0; a < c->arrays; a++) boundaries_put(s, u, gs, &e[a], a * windows_in(s, u) + i + 1);
}

void rest_backward(struct stream *s, uint32_t u, float *gs)
{
	struct extent e = {0, split_rest(&s->unit[u].split), 0};
	struct grads g;
	launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, e.to * sizeof(float)}});
	grads_at(s, u, gs, &g);
	grads_clear_gaps(s, u, gs);
	for (struct block_chunk at = {0}; next_chunk(s, u, &at);)
		block_backward(&at.c, u - 1, &s->now.weights, &g, beta_at(s, at.from), at.x, &at.v, dx_at(s, at.from));
	if (s->now.slot) s->now.slot->last_read = event_record(s, Q_COMPUTE);
	boundaries_put(s, u, gs, &e, 0);
}
