/* schedule.c: computes a planned micro-batch.
 *
 * The forward pass goes through the units from the embedding to the LM head, the backward pass from the head to the
 * embedding. Inside a unit, chunks of whole rows are computed one after another. Layer-major, all rows of the
 * micro-batch go through a unit before the next unit begins. Pass-major, some rows at a time go forward and backward
 * through the whole model, and weights and gradients stay on the device between these passes.
 *
 * This thread only launches operations on the device's three queues. It runs one or two units ahead of them, so that
 * copies overlap with compute: while one unit computes, the next unit's weights come in, and the gradients of the unit
 * before leave.
 *
 *     Q_WEIGHTS   in 0 │ in 1   │ in 2   │ ...     │ in L-1   │ in L-2   │
 *     Q_COMPUTE        │ fwd 0  │ fwd 1  │ ... head│ bwd L    │ bwd L-1  │ ... bwd 0 │
 *     Q_GRADS          │        │        │         │ head out │ L out    │ ...       │ 0 out
 *
 * A block whose experts come by windows (windows.c) has several parts, of which each comes and leaves by itself.
 *
 * Queues run independently, so memory that several of them use is ordered by events:
 *   weight slots      are refilled after an event says that their last reader has run;
 *   gradient slots    are written again after this thread has seen that all their pieces have left. It must see that
 *                     anyway, because it publishes each piece in the ring when it has arrived there;
 *   offloaded activations (residuals, what blocks keep) leave on Q_GRADS while the next unit computes, and return on
 *                     Q_WEIGHTS while the block above goes backward, after an event says that the last reader of their
 *                     memory has run.
 * Every wait here is needed: tests/42-chaos.bats removes each in turn, and the results change.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "batch.h"
#include "cli/cli.h"
#include "mt/stage.h"
#include "schedule.h"
#include "trace.h"

/* ---- how far it is ---- */

/* Forget what the slots hold: the device's memory is laid out anew */
static void progress_begin(struct stream *s)
{
	const struct memory_layout *at = &s->micro->layout;
	struct progress *now = &s->now;
	for (int i = 0; i < 2; i++) now->embed_head[i] = (struct slot){.mem = at->embed_head_weights[i], .holds = -1};
	for (uint32_t i = 0; i < s->micro->plan.weight_slots; i++)
		now->blocks[i] = (struct slot){.mem = at->weights[i], .holds = -1};
	for (int i = 0; i < 2; i++) now->windows[i] = (struct slot){.mem = at->windows[i], .holds = -1};
	now->ple = (struct slot){.mem = at->ple_weights, .holds = -1};
	now->residual = now->kept = (struct offload){.held = {-1, -1}};
	now->done[0] = now->done[1] = (struct event){0};
}

/* ---- a unit, on the compute queue ---- */

/* The same chunk of the next tokens, whose embeddings multi-token prediction reads */
static struct chunk next_of(const struct stream *s, const struct chunk *c, int64_t from)
{
	struct chunk next = *c;
	next.tokens = s->micro->layout.ahead + s->now.base + from;
	return next;
}

static void *next_at(const struct stream *s, int64_t from)
{
	return elements_after(s->dev, s->micro->layout.next, from * s->geo->hidden);
}

static int unit_forward(struct stream *s, uint32_t u)
{
	struct weights w;
	struct slot *slot;
	int rc = 0;
	trace_at(s->dev->trace, Q_COMPUTE, u, "forward");
	slot = weights_fetch(s, u, &w);
	forward_begins(s, u);
	if (is_split(s, u)) rc = split_forward(s, u, &w);
	for (int64_t from = 0, n; from < s->now.n && !is_split(s, u); from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);

		if (u == 0) {
			struct chunk next = next_of(s, &c, from);
			embed_forward(&c, &w, output(s, 0, from));
			if (s->geo->mtp != 0) embed_forward(&next, &w, next_at(s, from));
			if (c.ple) ple_inputs_forward(&c, &w, output(s, 0, from));
		} else {
			struct saved v = saved_at(s, u - 1, from);
			block_forward(&c, u - 1, &w, output(s, u - 1, from), &v, output(s, u, from));
		}
	}
	if (slot) slot->last_read = event_record(s, Q_COMPUTE);
	forward_ends(s, u);
	return rc;
}

/* The table of positions lies beside tied embeddings, and the head has no gradient of it. */
static void positions_clear(struct stream *s, const struct grads *g)
{
	uint64_t n = (uint64_t)(s->geo->max_position + s->geo->position_offset) * s->geo->hidden;
	if (!g->t[MT_T_POSITIONS]) return;
	launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {g->t[MT_T_POSITIONS], n * sizeof(float)}});
}

/* The head's chunk at `from`, which may split rows, and what it reads; losses: of each row, too; mtp: of multi-token
 * prediction */
static struct chunk head_chunk(struct stream *s, int64_t from, bool losses, bool mtp, void **x)
{
	const struct plan_request *req = &s->micro->request;
	const uint32_t *ahead = s->micro->layout.ahead + (int64_t)req->rows * req->seq + s->now.base + from;
	int64_t most = (int64_t)tokens_of_head(&s->micro->request, &s->micro->plan), left = s->now.n - from;
	struct chunk c = chunk_of(s, from, left < most ? left : most);
	c.in_out = 0;
	if (!losses) c.s.losses = NULL;
	*x = s->geo->mtp != 0 && !mtp ? c.dhidden : output(s, s->units - 2, from);
	if (!mtp) return c;
	c.mtp = true;
	c.targets = ahead;
	if (c.row_weights) c.row_weights = (const float *)ahead + (int64_t)req->rows * req->seq;
	return c;
}

/* All chunks of the pass forward. losses: those of their rows go to host memory */
static void head_forward(struct stream *s, const struct weights *w, bool losses)
{
	for (int64_t from = 0, n; from < s->now.n; from += n) {
		void *x;
		struct chunk c = head_chunk(s, from, losses, false, &x);
		n = c.n;
		head_loss(&c, w, s->micro->layout.loss, x);
		if (losses)
			launch(s, Q_COMPUTE,
				&(struct op){OP_COPY,
					.copy = {s->memory.scores + s->now.base + from, c.s.losses, (size_t)n * sizeof *c.s.losses}});
		uint64_t words = MT_TEACHER_WORDS(c.teacher.top);
		if (losses && c.s.top)
			launch(s, Q_COMPUTE,
				&(struct op){OP_COPY,
					.copy = {s->memory.top + (uint64_t)(s->now.base + from) * words, c.s.top, (size_t)n * words * 4}});
	}
}

/* The same, and each chunk at once backward, so that logits of one chunk are enough */
static void head_backward(struct stream *s, const struct weights *w, const struct grads *g, bool mtp)
{
	double scale = s->taken.msg.batch.loss_scale * (mtp ? (double)s->geo->mtp : 1);
	for (int64_t from = 0, n; from < s->now.n; from += n) {
		void *x;
		struct chunk c = head_chunk(s, from, false, mtp, &x);
		n = c.n;
		head_loss_backward(&c, w, g, beta_at(s, from), (float)scale, s->micro->layout.loss + mtp, x,
			x == c.dhidden ? x : dx_at(s, from));
	}
}

/* The loss from the log-probabilities of the pass, for which this thread waits; with gradients also the weights of rows
 * in the backward pass. Documents, and pairs of them, lie within rows, so a pass has them whole. */
static int objective_run(struct stream *s, bool train)
{
	struct batch_parts batch = batch_parts(&s->taken.msg, s->taken.host);
	struct objective o = {
		.how = batch.objective,
		.document = batch.documents,
		.documents = s->taken.msg.batch.documents,
		.seq = s->taken.msg.batch.seq,
		.targets = batch.targets,
		.advantages = batch.weights,
		.old = batch.old,
		.losses = s->memory.scores,
		.loss_scale = s->taken.msg.batch.loss_scale,
	};
	uint32_t from = (uint32_t)s->now.base, to = from + (uint32_t)s->now.n;
	float *scales = s->memory.scales;
	int rc = event_sync(s, event_record(s, Q_COMPUTE));
	if (rc) return rc;
	if (s->now.first) s->now.sums = (struct objective_sums){0};
	objective_add(&o, from, to, train ? scales : NULL, &s->now.sums);
	s->now.loss = (struct loss){s->now.sums.loss / o.loss_scale, s->now.sums.targets};
	if (train)
		launch(s, Q_COMPUTE,
			&(struct op){OP_COPY,
				.copy = {s->micro->layout.row_weights + from, scales + from, (to - from) * sizeof *scales}});
	return 0;
}

/* Final norm, LM head and loss. No other weights are loaded into the head's slot afterwards, so its readers need no
 * event. */
static int head_forward_backward(struct stream *s, float *gs)
{
	const struct micro *m = s->micro;
	bool objective = has_objective(s), losses = objective || m->request.scores;
	struct weights w;
	struct grads g;
	trace_at(s->dev->trace, Q_COMPUTE, head_unit(s), "head");
	weights_fetch(s, head_unit(s), &w);
	if (s->now.first) launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {m->layout.loss, 2 * sizeof *m->layout.loss}});
	if (gs) grads_at(s, head_unit(s), gs, &g);
	if (gs && s->now.first) grads_clear_gaps(s, head_unit(s), gs);
	if (gs && s->now.first) positions_clear(s, &g);
	if (!gs || objective) head_forward(s, &w, losses);
	int rc = objective && !s->now.autotune ? objective_run(s, gs) : 0;
	if (rc) return rc;
	if (gs) head_backward(s, &w, &g, false);
	if (gs && s->geo->mtp != 0) head_backward(s, &w, &g, true);
	if (!s->now.last) return 0;
	if (!objective)
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {&s->now.loss, m->layout.loss, sizeof *m->layout.loss}});
	if (s->geo->mtp != 0)
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {&s->now.mtp, m->layout.loss + 1, sizeof s->now.mtp}});
	balance_out(s);
	return 0;
}

void recompute(struct stream *s, uint32_t u, const struct weights *w, struct block_chunk *at)
{
	enum checkpoint level = checkpoint_of(&s->micro->plan, s->geo->layers, u - 1);
	if (level >= KEEP_ALL_BUT_GATE_UP) return;
	trace_at(s->dev->trace, Q_COMPUTE, u, "recompute");
	mixer_again(&at->c, u - 1, w, at->x, &at->v, level);
	trace_at(s->dev->trace, Q_COMPUTE, u, "backward");
}

static void block_unit_backward(struct stream *s, uint32_t u, const struct grads *g)
{
	struct weights w;
	struct slot *slot = weights_fetch(s, u, &w);
	for (struct block_chunk at = {0}; next_chunk(s, u, &at);) {
		recompute(s, u, &w, &at);
		block_backward(&at.c, u - 1, &w, g, beta_at(s, at.from), at.x, &at.v, dx_at(s, at.from));
	}
	if (slot) slot->last_read = event_record(s, Q_COMPUTE);
}

static int unit_backward(struct stream *s, uint32_t u, float *gs)
{
	float *tied = s->micro->layout.tied_grads;
	struct grads g;
	trace_at(s->dev->trace, Q_COMPUTE, u, "backward");
	if (s->now.first) launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, s->unit[u].elems * sizeof(float)}});
	if (u == head_unit(s)) return head_forward_backward(s, gs);
	grads_at(s, u, gs, &g);
	if (s->now.first) grads_clear_gaps(s, u, gs);
	if (u > 0) {
		block_unit_backward(s, u, &g);
		return 0;
	}
	struct weights w = {0};
	ple_weights(s, &w);
	for (int64_t from = 0, n; from < s->now.n; from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);
		if (c.ple) ple_inputs_backward(&c, &w, &g, beta_at(s, from), output(s, 0, from), dx_at(s, from));
		struct chunk next = next_of(s, &c, from);
		embed_backward(&c, &g, tied ? 1 : beta_at(s, from), dx_at(s, from));
		if (s->geo->mtp != 0) embed_backward(&next, &g, 1, next_at(s, from));
	}
	return 0;
}

/* What the next block reads comes while this part computes, and does not wait until the gradients of the part before
 * have left. The embedding's backward pass reads nothing. */
static void fetch_ahead(struct stream *s, struct part next, struct event before)
{
	if (next.unit == 0 || next.nth) return;
	weights_ahead(s, next.unit);
	if (is_split(s, next.unit)) windows_ahead(s, next.unit);
	activations_ahead(s, next.unit, before);
}

static int part_backward(struct stream *s, struct part t)
{
	if (is_split(s, t.unit) && t.nth == 0) split_backward_begin(s, t.unit);
	if (is_window(s, t)) window_backward(s, t.unit, t.nth, grads_of(s, t));
	else if (is_split(s, t.unit)) rest_backward(s, t.unit, grads_of(s, t));
	else return unit_backward(s, t.unit, grads_of(s, t));
	return 0;
}

/* ---- the passes of a micro-batch ---- */

/* All units but the head. This thread stays at most two units ahead of compute: enough to keep the queues busy, and
 * little work is wasted if the step is aborted. */
static int forward(struct stream *s)
{
	struct event *done = s->now.done;
	int rc;
	s->now.backward = false;
	for (uint32_t u = 0; s->requested.without & WITHOUT_UPDATE && u < s->units; u++)
		if ((rc = weights_wait(s, u))) return rc;
	for (uint32_t u = 0; u < head_unit(s); u++) {
		if ((rc = micro_wanted(s)) || (rc = weights_wait(s, u))) return rc;
		mt_stage_activity(s->run, MT_ACT_FORWARD, u);
		if ((rc = unit_forward(s, u)) || (rc = event_sync(s, done[u & 1]))) return rc;
		done[u & 1] = event_record(s, Q_COMPUTE);
	}
	return weights_wait(s, head_unit(s));
}

static int evaluate(struct stream *s)
{
	int rc = forward(s);
	if (rc) return rc;
	mt_stage_activity(s->run, MT_ACT_FORWARD, head_unit(s));
	if ((rc = head_forward_backward(s, NULL)) || !s->now.last) return rc;
	rc = loss_out(s, event_record(s, Q_COMPUTE));
	return rc || !s->micro->request.scores ? rc : scores_out(s);
}

/* The backward pass ends with the lowest unit that is trained */
static bool is_end(const struct stream *s, struct part t) { return t.unit == s->lowest && !is_window(s, t); }

/* In the last pass, a part's gradients leave while the next part computes. If both have the same memory (early), they
 * must leave before. */
static int backward(struct stream *s)
{
	struct part t = {head_unit(s), 0}, before = t;
	struct event ready = {0}; /* the gradients of the part before are final */
	bool last = s->now.last;
	int rc = 0;
	s->now.backward = true;
	for (;;) {
		bool below = t.unit < head_unit(s), early = last && below && grads_of(s, t) == grads_of(s, before);
		if ((rc = micro_wanted(s)) || (early && (rc = grads_out(s, before, ready)))) return rc;
		if (t.nth == 0) mt_stage_activity(s->run, MT_ACT_BACKWARD, t.unit);
		if ((rc = part_backward(s, t))) return rc;
		if (last) grads_final(s, t);
		struct event done = event_record(s, Q_COMPUTE);
		if (!is_end(s, t)) fetch_ahead(s, part_after(s, t), ready);
		if (!last) rc = event_sync(s, ready);
		else if (below && before.unit == head_unit(s)) rc = loss_out(s, ready);
		if (!rc && last && below && !early) rc = grads_out(s, before, ready);
		if (rc) return rc;
		if (is_end(s, t) && last && !below) rc = loss_out(s, done);
		if (rc || is_end(s, t)) return rc || !last ? rc : grads_out(s, t, done);
		ready = done;
		before = t;
		t = part_after(s, t);
	}
}

static int pass(struct stream *s)
{
	int rc;
	if (!s->micro->request.train) return evaluate(s);
	return (rc = forward(s)) ? rc : backward(s);
}

static int each_pass(struct stream *s, int (*fn)(struct stream *))
{
	const struct plan_request *req = &s->micro->request;
	int64_t all = (int64_t)req->rows * req->seq, most = (int64_t)rows_of_pass(req, &s->micro->plan) * req->seq;
	struct progress *now = &s->now;
	int rc = 0;
	for (now->base = 0; !rc && now->base < all; now->base += most) {
		now->n = all - now->base < most ? all - now->base : most;
		now->first = now->base == 0;
		now->last = now->base + now->n == all;
		rc = fn(s);
	}
	return rc;
}

int schedule_run(struct stream *s)
{
	int rc = balance_begin(s);
	if (rc) return rc;
	s->now.sent = false;
	progress_begin(s);
	trace_begin(s->dev->trace, s->taken.msg.step, s->taken.msg.micro,
		(uint64_t)s->taken.msg.batch.rows * s->taken.msg.batch.seq);
	batch_in(s);
	rc = each_pass(s, pass);
	int failed = device_sync(s->dev);
	if (s->dev->trace && s->dev->times) s->dev->times(s->dev);
	trace_end(s->dev->trace, !rc && !failed);
	return rc ? rc : failed;
}

/* ---- autotune: the same compute, launched in the device's autotune pass: nothing runs, nothing is sent ---- */

static int autotune_pass(struct stream *s)
{
	int rc = 0;
	for (uint32_t u = 0; !rc && u < head_unit(s); u++) {
		if (is_split(s, u)) rows_assume(s, u);
		rc = unit_forward(s, u);
	}
	if (rc) return rc;
	if (!s->micro->request.train) return head_forward_backward(s, NULL);
	for (struct part t = {head_unit(s), 0};; t = part_after(s, t)) {
		if ((rc = part_backward(s, t)) || is_end(s, t)) return rc;
		fetch_ahead(s, part_after(s, t), (struct event){0});
	}
}

int schedule_autotune(struct stream *s)
{
	uint64_t bytes_in = *mt_counter(s->run, MT_STREAM_bytes_in); /* which weights_fetch counts */
	if (!s->dev->autotune) return 0;
	int rc = s->dev->autotune(s->dev, true);
	progress_begin(s);
	s->now.autotune = true;
	if (!rc) rc = each_pass(s, autotune_pass);
	s->now.autotune = false;
	*mt_counter(s->run, MT_STREAM_bytes_in) = bytes_in;
	int failed = s->dev->autotune(s->dev, false);
	return rc ? rc : failed;
}
