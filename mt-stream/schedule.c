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
 * A block's experts may come by windows (windows.h): all chunks go through attention and router, then through one
 * window after another, then through the rest. So the block has several parts: a window's weights come while the one
 * before computes, and its gradients leave while the next one does.
 *
 * Queues run independently, so memory that several of them use is ordered by events:
 *   weight slots      are refilled after an event says that their last reader has run;
 *   gradient slots    are written again after this thread has seen that all their pieces have left. It must see that
 *                     anyway, because it publishes each piece in the ring when it has arrived there;
 *   offloaded activations (residuals, attention outputs) leave on Q_GRADS while the next unit computes, and return on
 *                     Q_WEIGHTS before the backward pass reads them.
 * Every wait here is needed: tests/42-chaos.bats removes each in turn, and the results change.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "schedule.h"
#include "trace.h"

/* For --trace: what is launched on the queue from here on belongs to unit u */
static void trace_unit(struct stream *s, enum queue q, uint32_t u, const char *what)
{
	trace_at(s->dev->trace, q, u, what);
}

/* ---- the batch in ---- */

/* Forget what the slots hold: the device's memory is laid out anew */
static void progress_begin(struct stream *s)
{
	const struct memory_layout *at = &s->micro->layout;
	struct progress *now = &s->now;

	for (int i = 0; i < 2; i++) now->embed_head[i] = (struct slot){.mem = at->embed_head_weights[i], .job = -1};
	for (uint32_t i = 0; i < s->micro->plan.weight_slots; i++)
		now->blocks[i] = (struct slot){.mem = at->weights[i], .job = -1};
	for (int i = 0; i < 2; i++) now->windows[i] = (struct slot){.mem = at->windows[i], .job = -1};
	now->residual = now->attention = (struct offload){.held = {-1, -1}};
	now->done[0] = now->done[1] = (struct event){0};
}

/* Copy the rows and rope's tables to the device */
static void batch_in(struct stream *s)
{
	const struct micro *m = s->micro;
	size_t n = (size_t)m->request.rows * m->request.seq;
	const struct op ops[] = {
		{OP_DISCARD, .discard = {s->arena, m->bytes}},
		{OP_COPY, .copy = {m->layout.tokens, s->host, n * 4}},
		{OP_COPY, .copy = {m->layout.targets, s->host + n, n * 4}},
		{OP_COPY, .copy = {m->layout.starts, s->host + 2 * n, n * 4}},
	};

	launch(s, Q_COMPUTE, &ops[0]);
	queue_wait(s, Q_WEIGHTS, event_record(s, Q_COMPUTE));
	for (size_t i = 1; i < sizeof ops / sizeof *ops; i++) launch(s, Q_COMPUTE, &ops[i]);
	balance_in(s);
	for (uint32_t k = 0; k < s->geo->n_kinds; k++) {
		size_t table = (size_t)m->request.seq * (s->geo->kind[k].rope_dim / 2) * sizeof(float);

		if (!table) continue;
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {m->layout.cos[k], s->cos[k], table}});
		launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {m->layout.sin[k], s->sin[k], table}});
	}
}

/* ---- weights in ---- */

static uint64_t weight_elem(const struct stream *s) { return s->control->dtype == MT_BF16 ? 2 : 4; }

/* lo of the job's exact tensors: in the store, and behind the weights in a slot */
static const int16_t *lo_stored(const struct stream *s, uint32_t job)
{
	return (const int16_t *)mt_at(s->run, mt_unit(s->run, job)->lo) + s->jobs[job].exact.first;
}

static void *lo_in_slot(const struct stream *s, uint32_t job, const struct slot *slot)
{
	return operands_after(s->dev, slot->mem, (int64_t)elems_of(s, job, 0));
}

static uint64_t lo_bytes(const struct job *j) { return (j->exact.end - j->exact.first) * sizeof(int16_t); }

/* Copy the job's weights into slot `to` after its last reader has run; compute waits until they are there. */
static void weights_load(struct stream *s, uint32_t job, struct slot *to)
{
	trace_unit(s, Q_WEIGHTS, job, "weights");
	queue_wait(s, Q_WEIGHTS, to->last_read);
	for (int p = 0; p < s->jobs[job].parts; p++) {
		const struct part *part = &s->jobs[job].part[p];

		launch(s, Q_WEIGHTS,
			&(struct op){OP_WEIGHTS_IN,
				.weights_in = {.dst = operands_after(s->dev, to->mem, (int64_t)part->at),
					.n = (int64_t)elems_of(s, job, p),
					.src = mt_at(s->run, mt_unit(s->run, part->unit)->w),
					.from = s->control->dtype}});
	}
	if (lo_bytes(&s->jobs[job]))
		launch(s, Q_WEIGHTS,
			&(struct op){OP_COPY, .copy = {lo_in_slot(s, job, to), lo_stored(s, job), lo_bytes(&s->jobs[job])}});
	to->job = job;
	queue_wait(s, Q_COMPUTE, event_record(s, Q_WEIGHTS));
}

/* The slot that has the job's weights; else the slot whose last reader is the longest ago. So the weights of the last
 * blocks are still there when the backward pass begins. */
static struct slot *slot_for(struct stream *s, uint32_t job)
{
	struct slot *to = &s->now.blocks[0];

	if (job == 0 || job == head_job(s)) return &s->now.embed_head[job && s->micro->plan.pass_rows];
	for (uint32_t i = 0; i < s->micro->plan.weight_slots; i++) {
		struct slot *slot = &s->now.blocks[i];
		if (slot->job == job) return slot;
		to = slot->last_read.at < to->last_read.at ? slot : to;
	}
	return to;
}

/* *w: the job's weights; compute launched from here on may read them. Returns the slot, whose last_read the caller sets
 * once it has launched the last reader; NULL where the device reads the store in place. */
static struct slot *weights_fetch(struct stream *s, uint32_t job, struct weights *w)
{
	const struct job *j = &s->jobs[job];
	struct slot *slot = s->zero_copy ? NULL : slot_for(s, job);
	const int16_t *lo = NULL;
	const void *base[2];

	if (slot && slot->job != job) weights_load(s, job, slot);
	for (int p = 0; p < j->parts; p++) {
		const struct mt_unit *u = mt_unit(s->run, j->part[p].unit);

		base[p] = slot ? operands_after(s->dev, slot->mem, (int64_t)j->part[p].at)
					   : s->dev->zero_copy(s->dev, mt_at(s->run, u->w), s->control->dtype);
		*mt_counter(s->run, 2) += elems_of(s, job, p) * weight_elem(s);
	}
	if (lo_bytes(j)) lo = slot ? lo_in_slot(s, job, slot) : lo_stored(s, job);
	*mt_counter(s->run, 2) += lo_bytes(j);
	weights_at(s, job, base, lo, w);
	return slot;
}

/* ---- rows of experts ---- */

/* MLP pieces of the first n tokens of the pass, which are whole chunks or all of it */
static int64_t pieces_of(const struct stream *s, int64_t n)
{
	const struct plan_request *req = &s->micro->request;
	const struct plan *plan = &s->micro->plan;
	int64_t chunk = (int64_t)rows_of_chunk(req, plan) * req->seq, piece = (int64_t)tokens_of_piece(req, plan);

	return n / chunk * (int64_t)pieces_of_chunk(req, plan) + (n % chunk + piece - 1) / piece;
}

/* Where the rows of unit u's experts begin, of all pieces of the pass: as the routing's `first` */
static uint32_t *rows_of_unit(const struct stream *s, uint32_t u)
{
	const struct plan_request *req = &s->micro->request;

	return s->rows + (u - 1) * pieces_of_pass(req, &s->micro->plan) * (req->most.experts + 1);
}

/* Compute launched so far has routed all tokens. Windows are launched with their numbers of rows. */
static int rows_fetch(struct stream *s, uint32_t u)
{
	size_t n = pieces_of_pass(&s->micro->request, &s->micro->plan) * (s->jobs[u].cut.experts + 1);

	launch(s, Q_COMPUTE,
		&(struct op){OP_COPY, .copy = {rows_of_unit(s, u), s->micro->layout.scratch.x.first, n * sizeof *s->rows}});
	return event_sync(s, event_record(s, Q_COMPUTE));
}

/* Nobody routes: each expert gets as many rows as the others */
static void rows_assume(struct stream *s, uint32_t u)
{
	const struct plan_request *req = &s->micro->request;
	uint64_t experts = s->jobs[u].cut.experts,
			 slots = tokens_of_piece(req, &s->micro->plan) * mt_layer_of(s->geo, u - 1)->experts_per_token;
	uint32_t *first = rows_of_unit(s, u);

	for (uint64_t i = 0; i < pieces_of_pass(req, &s->micro->plan) * (experts + 1); i++)
		first[i] = (uint32_t)(slots * (i % (experts + 1)) / experts);
}

bool expert_used(const struct stream *s, uint32_t u, uint32_t expert)
{
	uint32_t stride = s->jobs[u].cut.experts + 1;
	const uint32_t *first = rows_of_unit(s, u) + expert;

	for (int64_t p = pieces_of(s, s->now.n); p > 0; p--, first += stride)
		if (first[1] > first[0]) return true;
	return false;
}

/* Window i, and its rows of the pass's first chunk */
static struct window window_of(const struct stream *s, uint32_t u, uint32_t i)
{
	uint32_t each = s->micro->plan.expert_window, experts = s->jobs[u].cut.experts, from = i * each;

	return (
		struct window){.from = from, .to = experts - from < each ? experts : from + each, .rows = rows_of_unit(s, u)};
}

static struct window window_of_chunk(const struct stream *s, uint32_t u, uint32_t i, const struct chunk *c)
{
	struct window w = window_of(s, u, i);

	w.rows += c->pieces_before * (s->jobs[u].cut.experts + 1);
	return w;
}

/* ---- windows of experts in ---- */

static int64_t window_number(uint32_t job, uint32_t i) { return (int64_t)job * MT_EXPERTS + i; }

static struct slot *window_slot(struct stream *s, uint32_t job, uint32_t i)
{
	struct slot *w = s->now.windows;

	return w[0].job == window_number(job, i) ? &w[0] : w[1].job == window_number(job, i) ? &w[1] : NULL;
}

/* Copy weights of experts from .. to - 1 in, where the window's extents e are in the slot; NULL: count only */
static void experts_load(struct stream *s, uint32_t job, struct slot *slot, const struct extent *e, uint32_t from,
	uint32_t to)
{
	const struct cut *c = &s->jobs[job].cut;
	const char *src = mt_at(s->run, mt_unit(s->run, job)->w);

	for (uint32_t a = 0; a < c->arrays; a++) {
		uint64_t off = c->array[a].off + from * c->array[a].stride, n = (to - from) * c->array[a].stride;

		*mt_counter(s->run, 2) += n * weight_elem(s);
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
static void window_load(struct stream *s, uint32_t job, uint32_t i, bool routed)
{
	struct slot *slot = window_slot(s, job, i);
	struct extent e[EXPERT_ARRAYS];

	if (i >= windows_in(s, job)) return;
	s->now.window = slot ? (int)(slot - s->now.windows) : !s->now.window;
	if (slot) return;
	slot = s->zero_copy ? NULL : &s->now.windows[s->now.window];
	window_extents(&s->jobs[job].cut, s->micro->plan.expert_window, i, e);
	trace_unit(s, Q_WEIGHTS, job, "weights");
	if (slot) queue_wait(s, Q_WEIGHTS, slot->last_read);
	struct window w = window_of(s, job, i);
	for (uint32_t from = w.from, to; from < w.to; from = to) {
		bool used = !routed || expert_used(s, job, from);

		for (to = from + 1; to < w.to && (!routed || expert_used(s, job, to)) == used;) to++;
		if (used) experts_load(s, job, slot, e, from, to);
	}
	if (!slot) return;
	slot->job = window_number(job, i);
	slot->loaded = event_record(s, Q_WEIGHTS);
}

/* The window's weights, in *w; compute launched from here on may read them. window_leave: it has been launched, and the
 * next window but one may come. */
static void window_fetch(struct stream *s, uint32_t job, uint32_t i, struct weights *w)
{
	struct slot *slot = window_slot(s, job, i);

	if (slot) queue_wait(s, Q_COMPUTE, slot->loaded);
	window_enter(s, job, i, slot ? slot->mem : NULL, w, NULL, NULL);
}

static void window_leave(struct stream *s, uint32_t job, uint32_t i)
{
	struct slot *slot = window_slot(s, job, i);

	if (slot) slot->last_read = event_record(s, Q_COMPUTE);
	window_load(s, job, i + 2, true);
}

/* ---- chunks, and where their activations are ---- */

/* Tokens [from, from + n) of the pass. All chunks share the scratch. */
static struct chunk chunk_of(struct stream *s, int64_t from, int64_t n)
{
	const struct memory_layout *at = &s->micro->layout;
	int64_t first = s->now.base + from, all = (int64_t)s->micro->request.rows * s->micro->request.seq;

	struct chunk c = {
		.dev = s->dev,
		.geo = s->geo,
		.n = n,
		.seq = s->micro->request.seq,
		.piece = (int64_t)tokens_of_piece(&s->micro->request, &s->micro->plan),
		.before = from,
		.pieces_before = pieces_of(s, from),
		.tokens = at->tokens + first,
		.targets = at->targets + first,
		.starts = at->starts + first,
		.balance = balance_of(s, first),
		.s = at->scratch,
		.host_starts = s->host + 2 * all + first,
	};

	memcpy(c.cos, at->cos, sizeof c.cos);
	memcpy(c.sin, at->sin, sizeof c.sin);
	return c;
}

/* Unit u's output, from token `from` of the pass on */
static void *output(const struct stream *s, uint32_t u, int64_t from)
{
	const struct memory_layout *at = &s->micro->layout;

	return elements_after(s->dev, at->x[at->outputs == 2 ? u & 1 : u], from * s->geo->hidden);
}

static void *dx_at(const struct stream *s, int64_t from)
{
	return elements_after(s->dev, s->micro->layout.dx, from * s->geo->hidden);
}

/* Is this layer's attention output offloaded? */
static bool attention_offloaded(const struct stream *s, uint32_t layer)
{
	return s->micro->plan.attention_offloaded &&
		checkpoint_of(&s->micro->plan, s->geo->layers, layer) == KEEP_ATTENTION;
}

/* A block's activations for the chunk at `from`. Those that the block keeps have memory of their own; those that it
 * recomputes share one chunk's memory, or with windows of experts one pass's. gu NULL: recomputed in the scratch. */
static struct saved saved_at(const struct stream *s, uint32_t layer, int64_t from)
{
	const struct mt_geometry *g = s->geo;
	const struct mt_layer *l = mt_layer_of(g, layer);
	const struct memory_layout *at = &s->micro->layout;
	int64_t a = (int64_t)l->heads * l->head_dim, k = (int64_t)l->kv_heads * l->head_dim;
	struct saved own = at->saved[layer], v = at->chunk;
	bool windows = s->micro->plan.expert_window;

	if (attention_offloaded(s, layer)) {
		own.o = at->o[layer & 1];
		own.lse = at->lse[layer & 1];
	}
	if (windows && !own.qkv) {
		own.qkv = v.qkv;
		own.pre = v.pre;
		own.qk_rstd = v.qk_rstd;
		own.x2 = v.x2;
	}
	if (windows && !own.o) {
		own.o = v.o;
		own.lse = v.lse;
	}
	if (own.qkv) {
		v.qkv = elements_after(s->dev, own.qkv, from * (a + 2 * k));
		v.pre = elements_after(s->dev, own.pre, from * pre_width(g, l));
		v.qk_rstd = own.qk_rstd ? own.qk_rstd + from * rstd_width(g, l) : NULL;
		v.x2 = elements_after(s->dev, own.x2, from * g->hidden);
	}
	if (own.o) {
		v.o = elements_after(s->dev, own.o, from * a);
		v.lse = own.lse + from * l->heads;
	}
	v.gu = elements_after(s->dev, own.gu, from * kept_width(l));
	return v;
}

/* ---- activations offloaded to host memory ---- */

/* Compute is about to write number i: wait until the previous one in that memory has been copied out */
static void offload_begin(struct stream *s, struct offload *f, uint32_t i)
{
	queue_wait(s, Q_COMPUTE, f->left[i & 1]);
	f->held[i & 1] = i;
}

static void offload_copy(struct stream *s, enum queue q, void *dev, void *host, uint64_t bytes)
{
	bool in = q == Q_WEIGHTS;

	launch(s, q, &(struct op){OP_COPY, .copy = {in ? dev : host, in ? host : dev, bytes}});
}

/* Copy number i between the device and the offload buffer. The buffer has all residuals first, then all attention
 * outputs, each followed by its log-sum-exps. */
static void offload_copies(struct stream *s, enum queue q, const struct offload *f, uint32_t i)
{
	const struct micro *m = s->micro;
	bool residual = f == &s->now.residual;
	uint64_t residuals = m->plan.residual_offloaded ? residuals_away(s->geo) * m->residual_bytes : 0;
	uint64_t lse = (uint64_t)s->now.n * m->request.most.heads * sizeof(float), o = m->attention_bytes - lse;
	char *host = (char *)s->offload_buffer + (residual ? i * m->residual_bytes : residuals + i * m->attention_bytes);

	trace_unit(s, q, i + !residual, "activations");
	if (residual) {
		offload_copy(s, q, output(s, i, 0), host, m->residual_bytes);
		return;
	}
	offload_copy(s, q, m->layout.o[i & 1], host, o);
	offload_copy(s, q, m->layout.lse[i & 1], host + o, lse);
}

/* Compute launched so far has written number i: copy it out */
static void offload_out(struct stream *s, struct offload *f, uint32_t i)
{
	queue_wait(s, Q_GRADS, event_record(s, Q_COMPUTE));
	offload_copies(s, Q_GRADS, f, i);
	f->left[i & 1] = event_record(s, Q_GRADS);
}

/* Compute from here on reads number i: copy it in, unless it is still there. No event is needed for two things: the
 * last reader of that memory has run, and number i has been copied out. This thread has seen that reader's gradients
 * arrive in the ring, and they are copied on the same queue after all offloaded activations. */
static void offload_in(struct stream *s, struct offload *f, uint32_t i)
{
	if (f->held[i & 1] == i) return;
	offload_copies(s, Q_WEIGHTS, f, i);
	f->held[i & 1] = i;
	queue_wait(s, Q_COMPUTE, event_record(s, Q_WEIGHTS));
}

/* Unit u's forward pass is about to be launched */
static void forward_begins(struct stream *s, uint32_t u)
{
	if (s->micro->plan.residual_offloaded) offload_begin(s, &s->now.residual, u);
	if (u > 0 && attention_offloaded(s, u - 1)) offload_begin(s, &s->now.attention, u - 1);
}

/* It has been launched: offload what it writes. The last two stay, as the backward pass reads them first. */
static void forward_ends(struct stream *s, uint32_t u)
{
	if (s->micro->plan.residual_offloaded && u + 2 < s->units - 1) offload_out(s, &s->now.residual, u);
	if (u > 0 && attention_offloaded(s, u - 1) && u + 1 < s->geo->layers && attention_offloaded(s, u + 1))
		offload_out(s, &s->now.attention, u - 1);
}

/* Block u's backward pass is about to be launched */
static void backward_begins(struct stream *s, uint32_t u)
{
	if (s->micro->plan.residual_offloaded) offload_in(s, &s->now.residual, u - 1);
	if (attention_offloaded(s, u - 1)) offload_in(s, &s->now.attention, u - 1);
}

/* ---- a unit, on the compute queue ---- */

static int64_t chunk_tokens(const struct stream *s, int64_t from)
{
	int64_t most = (int64_t)rows_of_chunk(&s->micro->request, &s->micro->plan) * s->micro->request.seq,
			left = s->now.n - from;

	return left < most ? left : most;
}

/* A block's next chunk; the first time from and c.n are 0 */
struct at {
	int64_t from;
	struct chunk c;
	struct saved v;
	const void *x;
};

static bool next_chunk(struct stream *s, uint32_t u, struct at *at)
{
	at->from += at->c.n;
	if (at->from >= s->now.n) return false;
	at->c = chunk_of(s, at->from, chunk_tokens(s, at->from));
	at->v = saved_at(s, u - 1, at->from);
	at->x = output(s, u - 1, at->from);
	return true;
}

/* With few rows an expert, some experts may have none. Then the first windows wait for the routing, too. */
enum { FEW_ROWS = 4 };

static int cut_forward(struct stream *s, uint32_t u, struct weights *w)
{
	const struct mt_layer *l = mt_layer_of(s->geo, u - 1);
	bool few = s->now.n * l->experts_per_token < FEW_ROWS * (int64_t)l->experts;

	for (uint32_t i = 0; i < 2 && !few; i++) window_load(s, u, i, false);
	for (struct at at = {0}; next_chunk(s, u, &at);) {
		block_recompute(&at.c, u - 1, w, at.x, &at.v, false);
		block_route(&at.c, u - 1, w, at.x, &at.v);
	}
	int rc = rows_fetch(s, u);
	if (rc) return rc;
	for (uint32_t i = 0; i < 2 && few; i++) window_load(s, u, i, true);
	for (uint32_t i = 0; i < windows_in(s, u); i++) {
		window_fetch(s, u, i, w);
		for (struct at at = {0}; next_chunk(s, u, &at);) {
			struct window win = window_of_chunk(s, u, i, &at.c);
			block_window_forward(&at.c, u - 1, w, &win, at.x, &at.v);
		}
		window_leave(s, u, i);
	}
	for (struct at at = {0}; next_chunk(s, u, &at);)
		block_windows_end(&at.c, u - 1, w, at.x, &at.v, output(s, u, at.from));
	return 0;
}

static int unit_forward(struct stream *s, uint32_t u)
{
	struct weights w;
	struct slot *slot;
	int rc = 0;

	trace_unit(s, Q_COMPUTE, u, "forward");
	slot = weights_fetch(s, u, &w);
	forward_begins(s, u);
	if (is_cut(s, u)) rc = cut_forward(s, u, &w);
	for (int64_t from = 0, n; from < s->now.n && !is_cut(s, u); from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);

		if (u == 0) {
			embed_forward(&c, &w, output(s, 0, from));
		} else {
			struct saved v = saved_at(s, u - 1, from);
			block_forward(&c, u - 1, &w, output(s, u - 1, from), &v, output(s, u, from));
		}
	}
	if (slot) slot->last_read = event_record(s, Q_COMPUTE);
	forward_ends(s, u);
	return rc;
}

/* The first chunk of the micro-batch overwrites a unit's gradients (0), the others add to them (1) */
static float beta_at(const struct stream *s, int64_t from) { return s->now.first && from == 0 ? 0 : 1; }

/* Final norm, LM head and loss: each chunk forward and, with gradients, at once backward, so that logits of one chunk
 * are enough. Head chunks may cut rows. No other weights are loaded into the head's slot afterwards, so its
 * readers need no event. */
static void head_forward_backward(struct stream *s, float *gs)
{
	const struct micro *m = s->micro;
	int64_t most = (int64_t)tokens_of_head(&m->request, &m->plan);
	struct weights w;
	struct grads g;

	trace_unit(s, Q_COMPUTE, head_job(s), "head");
	weights_fetch(s, head_job(s), &w);
	if (s->now.first) launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {m->layout.loss, sizeof *m->layout.loss}});
	if (gs) grads_at(s, head_job(s), gs, &g);
	if (gs && s->now.first) grads_clear_gaps(s, head_job(s), gs);
	for (int64_t from = 0, n; from < s->now.n; from += n) {
		n = s->now.n - from < most ? s->now.n - from : most;
		struct chunk c = chunk_of(s, from, n);
		const void *x = output(s, s->units - 2, from);

		if (gs)
			head_loss_backward(&c, &w, &g, beta_at(s, from), (float)s->msg.batch.loss_scale, m->layout.loss, x,
				dx_at(s, from));
		else head_loss(&c, &w, m->layout.loss, x);
	}
	if (!s->now.last) return;
	launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {&s->now.loss, m->layout.loss, sizeof *m->layout.loss}});
	balance_out(s);
}

/* What the chunk's backward pass reads and the block has not kept */
static void recompute(struct stream *s, uint32_t u, const struct weights *w, struct at *at)
{
	enum checkpoint level = checkpoint_of(&s->micro->plan, s->geo->layers, u - 1);

	if (level >= KEEP_ALL_BUT_GATE_UP) return;
	trace_unit(s, Q_COMPUTE, u, "recompute");
	block_recompute(&at->c, u - 1, w, at->x, &at->v, level == KEEP_ATTENTION);
	trace_unit(s, Q_COMPUTE, u, "backward");
}

static void block_unit_backward(struct stream *s, uint32_t u, const struct grads *g)
{
	struct weights w;
	struct slot *slot = weights_fetch(s, u, &w);

	backward_begins(s, u);
	for (struct at at = {0}; next_chunk(s, u, &at);) {
		recompute(s, u, &w, &at);
		block_backward(&at.c, u - 1, &w, g, beta_at(s, at.from), at.x, &at.v, dx_at(s, at.from));
	}
	if (slot) slot->last_read = event_record(s, Q_COMPUTE);
}

static void unit_backward(struct stream *s, uint32_t u, float *gs)
{
	float *tied = s->micro->layout.tied_grads;
	struct grads g;

	trace_unit(s, Q_COMPUTE, u, "backward");
	if (s->now.first) launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, s->jobs[u].elems * sizeof(float)}});
	if (u == head_job(s)) {
		head_forward_backward(s, gs);
		return;
	}
	grads_at(s, u, gs, &g);
	if (s->now.first && (u > 0 || !tied)) grads_clear_gaps(s, u, gs);
	if (u > 0) {
		block_unit_backward(s, u, &g);
		return;
	}
	for (int64_t from = 0, n; from < s->now.n; from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);
		embed_backward(&c, &g, tied ? 1 : beta_at(s, from), dx_at(s, from));
	}
}

/* ---- the parts of a block with windows of experts, backward ---- */

/* Attention's activations and the router's, of all chunks */
static void cut_backward_begin(struct stream *s, uint32_t u)
{
	struct weights *w = &s->now.weights;
	uint64_t edges = (uint64_t)cut_edges(&s->jobs[u].cut, s->micro->plan.expert_window) * MT_BLOCK;

	trace_unit(s, Q_COMPUTE, u, "backward");
	s->now.slot = weights_fetch(s, u, w);
	for (uint32_t i = 0; i < 2; i++) window_load(s, u, i, true);
	backward_begins(s, u);
	launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {s->micro->layout.edges[u & 1], edges * sizeof(float)}});
	for (struct at at = {0}; next_chunk(s, u, &at);) {
		recompute(s, u, w, &at);
		block_backward_route(&at.c, u - 1, w, at.x, &at.v, dx_at(s, at.from));
	}
}

static void window_backward(struct stream *s, uint32_t u, uint32_t i, float *gs)
{
	const struct cut *c = &s->jobs[u].cut;
	uint32_t each = s->micro->plan.expert_window;
	struct weights *w = &s->now.weights;
	struct extent e[EXPERT_ARRAYS];
	struct grads g = {0};

	launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, cut_window(c, each) * sizeof(float)}});
	window_extents(c, each, i, e);
	for (uint32_t a = 0; a < c->arrays; a++) gaps_clear(s, u, gs + e[a].at, e[a].from, e[a].to);
	window_fetch(s, u, i, w);
	window_enter(s, u, i, NULL, NULL, gs, &g);
	for (struct at at = {0}; next_chunk(s, u, &at);) {
		struct window win = window_of_chunk(s, u, i, &at.c);
		block_window_backward(&at.c, u - 1, w, &g, beta_at(s, at.from), &win, at.x, &at.v, dx_at(s, at.from));
	}
	window_leave(s, u, i);
	for (uint32_t a = 0; a < c->arrays; a++) edges_put(s, u, gs, &e[a], a * windows_in(s, u) + i + 1);
}

static void rest_backward(struct stream *s, uint32_t u, float *gs)
{
	struct extent e = {0, cut_rest(&s->jobs[u].cut), 0};
	struct grads g;

	launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, e.to * sizeof(float)}});
	grads_at(s, u, gs, &g);
	grads_clear_gaps(s, u, gs);
	for (struct at at = {0}; next_chunk(s, u, &at);)
		block_backward_windows_end(&at.c, u - 1, &s->now.weights, &g, beta_at(s, at.from), at.x, &at.v,
			dx_at(s, at.from));
	if (s->now.slot) s->now.slot->last_read = event_record(s, Q_COMPUTE);
	edges_put(s, u, gs, &e, 0);
}

static void step_backward(struct stream *s, struct step t)
{
	if (is_cut(s, t.unit) && t.part == 0) cut_backward_begin(s, t.unit);
	if (is_window(s, t)) window_backward(s, t.unit, t.part, grads_of(s, t));
	else if (is_cut(s, t.unit)) rest_backward(s, t.unit, grads_of(s, t));
	else unit_backward(s, t.unit, grads_of(s, t));
}

/* ---- the passes of a micro-batch ---- */

/* All units but the head. This thread stays at most two units ahead of compute: enough to keep the queues busy, and
 * little work is wasted if the step is aborted. */
static int forward(struct stream *s)
{
	struct event *done = s->now.done;
	int rc;

	s->now.backward = false;
	for (uint32_t u = 0; u < head_job(s); u++) {
		if ((rc = micro_wanted(s)) || (rc = weights_wait(s, u))) return rc;
		mt_stage_activity(s->run, MT_ACT_FORWARD, u);
		if ((rc = unit_forward(s, u)) || (rc = event_sync(s, done[u & 1]))) return rc;
		done[u & 1] = event_record(s, Q_COMPUTE);
	}
	return weights_wait(s, head_job(s));
}

static int evaluate(struct stream *s)
{
	int rc = forward(s);

	if (rc) return rc;
	mt_stage_activity(s->run, MT_ACT_FORWARD, head_job(s));
	head_forward_backward(s, NULL);
	return s->now.last ? loss_out(s, event_record(s, Q_COMPUTE)) : 0;
}

/* In the last pass, a step's gradients leave while the next step computes. If both have the same memory (early), they
 * must leave before. */
static int backward(struct stream *s)
{
	struct step t = {head_job(s), 0}, before = t;
	struct event ready = {0}; /* the gradients of the step before are final */
	bool last = s->now.last;
	int rc = 0;

	s->now.backward = true;
	for (;;) {
		bool below = t.unit < head_job(s), early = last && below && grads_of(s, t) == grads_of(s, before);

		if ((rc = micro_wanted(s)) || (early && (rc = grads_out(s, before, ready)))) return rc;
		if (t.part == 0) mt_stage_activity(s->run, MT_ACT_BACKWARD, t.unit);
		step_backward(s, t);
		if (last) grads_final(s, t);
		struct event done = event_record(s, Q_COMPUTE);
		if (!last) rc = event_sync(s, ready);
		else if (below && before.unit == head_job(s)) rc = loss_out(s, ready);
		if (!rc && last && below && !early) rc = grads_out(s, before, ready);
		if (rc) return rc;
		if (t.unit == 0) return last ? grads_out(s, t, done) : 0;
		ready = done;
		before = t;
		t = step_after(s, t);
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
	s->sent = false;
	progress_begin(s);
	trace_begin(s->dev->trace, s->msg.step, s->msg.micro, (uint64_t)s->msg.batch.rows * s->msg.batch.seq);
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

	for (uint32_t u = 0; !rc && u < head_job(s); u++) {
		if (is_cut(s, u)) rows_assume(s, u);
		rc = unit_forward(s, u);
	}
	if (rc) return rc;
	if (!s->micro->request.train) {
		head_forward_backward(s, NULL);
		return 0;
	}
	for (struct step t = {head_job(s), 0};; t = step_after(s, t)) {
		step_backward(s, t);
		if (t.unit == 0) return 0;
	}
}

int schedule_autotune(struct stream *s)
{
	uint64_t bytes_in = *mt_counter(s->run, 2); /* which weights_fetch counts */

	if (!s->dev->autotune) return 0;
	int rc = s->dev->autotune(s->dev, true);
	progress_begin(s);
	if (!rc) rc = each_pass(s, autotune_pass);
	*mt_counter(s->run, 2) = bytes_in;
	int failed = s->dev->autotune(s->dev, false);
	return rc ? rc : failed;
}
