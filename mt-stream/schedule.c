/* schedule.c: a micro-batch's way through the model, as its plan has it: forward through the units, backward through
 * the units, chunks of whole rows inside a unit; all rows at once (layer-major), or in passes of some rows each,
 * between which weights and gradients stay on the device. The host only launches, a unit or two ahead of the device, so
 * that the next unit's weights come in while this one computes, and gradients of the last one leave while the next one
 * computes.
 *
 *     Q_WEIGHTS   in 0 │ in 1   │ in 2   │ ...     │ in L-1   │ in L-2   │
 *     Q_COMPUTE        │ fwd 0  │ fwd 1  │ ... head│ bwd L    │ bwd L-1  │ ... bwd 0 │
 *     Q_GRADS          │        │        │         │ head out │ L out    │ ...       │ 0 out
 *
 * A weight slot is refilled once its last reader is through: an event. A gradient slot is written again once all of it
 * has left: the host has seen that itself, for it publishes every piece, many of which are under way at once. Block
 * inputs and attention outputs may be kept by the host: they leave on Q_GRADS while the next unit computes, and come
 * back on Q_WEIGHTS before they are wanted.
 * No wait here is one too many: chaos shows it.
 */
#include <math.h>
#include <stddef.h>

#include "cli/cli.h"
#include "stream.h"
#include "trace.h"

static void launch(struct stream *s, enum queue q, const struct op *op) { s->dev->launch(s->dev, q, op); }
/* In parentheses: tests/probes/stream-chaos.c has macros of these names, to leave out one call of them in turn. */
static struct event(record)(struct stream *s, enum queue q) { return (s->dev->record)(s->dev, q); }
static void(wait)(struct stream *s, enum queue q, struct event e) { (s->dev->wait)(s->dev, q, e); }
static int(sync)(struct stream *s, struct event e) { return (s->dev->sync)(s->dev, e); }

/* For a trace: what is launched on the queue from here on is unit u's */
static void at(struct stream *s, enum queue q, uint32_t u, const char *what) { trace_at(s->dev->trace, q, u, what); }

static uint32_t head_job(const struct stream *s) { return s->units - 1; }

/* ---- where a job's tensors are ---- */

/* fn's view of a job: tensor t of part p, by the role it plays here (the embedding is a tied model's head) */
static unsigned role_in_job(const struct stream *s, uint32_t job, const struct mt_tensor *t)
{
	return job == head_job(s) && t->role == MT_T_EMBED ? MT_T_HEAD : t->role;
}

static void weights_view(struct stream *s, uint32_t job, const void *const base[2], struct weights *w)
{
	*w = (struct weights){0};
	for (int p = 0; p < s->jobs[job].parts; p++) {
		const struct mt_unit *u = mt_unit(s->run, s->jobs[job].part[p].unit);

		for (uint32_t i = 0; i < u->tensors; i++) {
			const struct mt_tensor *t = mt_tensor(s->run, u->first_tensor + i);
			w->t[role_in_job(s, job, t)] = elements_after(s->dev, base[p], (int64_t)t->off);
		}
	}
}

/* A gradient's home: its part of the slot; --grad none sums both ends of tied embeddings in one place */
static float *grads_base(const struct stream *s, uint32_t job, int part, float *slot)
{
	const struct part *p = &s->jobs[job].part[part];

	return s->plan.at.tied && p->unit == 0 ? s->plan.at.tied : slot + p->at;
}

static void grads_view(struct stream *s, uint32_t job, float *slot, struct grads *g)
{
	*g = (struct grads){0};
	for (int p = 0; p < s->jobs[job].parts; p++) {
		const struct mt_unit *u = mt_unit(s->run, s->jobs[job].part[p].unit);

		for (uint32_t i = 0; i < u->tensors; i++) {
			const struct mt_tensor *t = mt_tensor(s->run, u->first_tensor + i);
			g->t[role_in_job(s, job, t)] = grads_base(s, job, p, slot) + t->off;
		}
	}
}

/* The gaps between tensors leave with them, as zeros */
static void grads_clear_gaps(struct stream *s, uint32_t job, float *slot)
{
	for (int p = 0; p < s->jobs[job].parts; p++) {
		const struct mt_unit *u = mt_unit(s->run, s->jobs[job].part[p].unit);
		float *g = grads_base(s, job, p, slot);
		uint64_t end = 0;

		for (uint32_t i = 0; i <= u->tensors; i++) {
			const struct mt_tensor *t = i < u->tensors ? mt_tensor(s->run, u->first_tensor + i) : NULL;
			uint64_t next = t ? t->off : u->elems;

			if (next > end)
				launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {g + end, (next - end) * sizeof(float)}});
			end = t ? t->off + t->n : end;
		}
	}
}

/* ---- weights in ---- */

static int weights_wait(struct stream *s, uint32_t job)
{
	for (int p = 0; p < s->jobs[job].parts; p++) {
		uint32_t unit = s->jobs[job].part[p].unit;

		for (;;) {
			uint32_t seen = mt_event(s->run);
			if (mt_version(s->run, unit) >= s->msg.batch.version) break;
			int rc = stream_pause(s, seen, MT_ACT_WAIT_WEIGHTS, unit);
			if (rc) return rc;
		}
	}
	return 0;
}

/* Launch the job's weights into slot `to` once its last reader is through; compute goes on when they are in. */
static void weights_load(struct stream *s, uint32_t job, struct slot *to)
{
	at(s, Q_WEIGHTS, job, "weights");
	wait(s, Q_WEIGHTS, to->over);
	for (int p = 0; p < s->jobs[job].parts; p++) {
		const struct part *part = &s->jobs[job].part[p];

		launch(s, Q_WEIGHTS,
			&(struct op){OP_WEIGHTS_IN,
				.weights_in = {.dst = elements_after(s->dev, to->mem, (int64_t)part->at),
					.n = (int64_t)part->elems,
					.src = mt_at(s->run, mt_unit(s->run, part->unit)->w),
					.from = s->control->dtype}});
	}
	to->job = job;
	wait(s, Q_COMPUTE, record(s, Q_WEIGHTS));
}

/* The slot that holds the job's weights, or that is the next to be refilled: the one whose last reader is the longest
 * ago.
 * So the last blocks of a forward pass are still there when the backward pass begins. */
static struct slot *slot_for(struct stream *s, uint32_t job)
{
	struct place *at = &s->plan.at;
	struct slot *to = &at->weights[0];

	if (job == 0 || job == head_job(s)) return &at->ends[job && s->plan.c.pass_rows];
	for (uint32_t i = 0; i < s->plan.c.weight_slots; i++) {
		struct slot *slot = &at->weights[i];
		if (slot->job == job) return slot;
		to = slot->over.at < to->over.at ? slot : to;
	}
	return to;
}

/* *w: the job's weights as compute, from here on, may read them. Returns the slot to mark when compute is through, if
 * another job may want it; NULL where the store is read in place. */
static struct slot *weights_fetch(struct stream *s, uint32_t job, struct weights *w)
{
	const struct job *j = &s->jobs[job];
	struct slot *slot = s->view ? NULL : slot_for(s, job);
	const void *base[2];

	if (slot && slot->job != job) weights_load(s, job, slot);
	for (int p = 0; p < j->parts; p++) {
		const struct mt_unit *u = mt_unit(s->run, j->part[p].unit);

		base[p] = slot ? elements_after(s->dev, slot->mem, (int64_t)j->part[p].at)
					   : s->dev->zero_copy(s->dev, mt_at(s->run, u->w), s->control->dtype);
		*mt_counter(s->run, 2) += j->part[p].elems * (s->control->dtype == MT_BF16 ? 2 : 4);
	}
	weights_view(s, job, base, w);
	return slot;
}

/* ---- activations that the host keeps ---- */

/* Compute is about to make number i: what was in its place has left */
static void carry_make(struct stream *s, struct carry *c, int64_t i)
{
	wait(s, Q_COMPUTE, c->left[i & 1]);
	c->held[i & 1] = i;
}

/* Compute, launched so far, has made number i: it leaves */
static void carry_out(struct stream *s, struct carry *c, int64_t i, const struct op *copies, int n)
{
	wait(s, Q_GRADS, record(s, Q_COMPUTE));
	at(s, Q_GRADS, (uint32_t)i + (c == &s->plan.o), "activations");
	for (int k = 0; k < n; k++) launch(s, Q_GRADS, &copies[k]);
	c->left[i & 1] = record(s, Q_GRADS);
}

/* Compute, from here on, reads number i. It has left, and the last reader of its place is through: the host has seen
 * the gradients leave of the unit that read there, on the queue on which all carried activations left before. */
static void carry_in(struct stream *s, struct carry *c, int64_t i, const struct op *copies, int n)
{
	if (c->held[i & 1] == i) return;
	at(s, Q_WEIGHTS, (uint32_t)i + (c == &s->plan.o), "activations");
	for (int k = 0; k < n; k++) launch(s, Q_WEIGHTS, &copies[k]);
	c->held[i & 1] = i;
	wait(s, Q_COMPUTE, record(s, Q_WEIGHTS));
}

static void *output(const struct stream *s, uint32_t u, int64_t from);

static struct op x_copy(const struct stream *s, uint32_t u, bool in)
{
	void *host = (char *)s->spill + u * s->plan.x_bytes, *dev = output(s, u, 0);

	return (struct op){OP_COPY, .copy = {in ? dev : host, in ? host : dev, s->plan.x_bytes}};
}

static void o_copies(const struct stream *s, uint32_t layer, bool in, struct op copies[2])
{
	uint64_t lse_bytes = (uint64_t)s->plan.n * s->geo->heads * sizeof(float), o_bytes = s->plan.o_bytes - lse_bytes;
	char *o = (char *)s->spill + (s->plan.c.x_host ? inputs_away(s->geo) * s->plan.x_bytes : 0) +
		layer * s->plan.o_bytes;
	void *dev = s->plan.at.o[layer & 1], *lse = s->plan.at.lse[layer & 1];

	copies[0] = (struct op){OP_COPY, .copy = {in ? dev : o, in ? o : dev, o_bytes}};
	copies[1] = (struct op){OP_COPY, .copy = {in ? lse : o + o_bytes, in ? o + o_bytes : lse, lse_bytes}};
}

/* Does the host keep what attention of this layer put out? */
static bool o_carried(const struct stream *s, uint32_t layer)
{
	return s->plan.c.o_host && level_of(&s->plan.c, s->geo->layers, layer) == LEVEL_ATTENTION;
}

/* Compute is about to go forward through unit u */
static void forward_begins(struct stream *s, uint32_t u)
{
	if (s->plan.c.x_host) carry_make(s, &s->plan.x, u);
	if (u > 0 && o_carried(s, u - 1)) carry_make(s, &s->plan.o, u - 1);
}

/* ... has been launched to do so. The last two stay where they are. */
static void forward_ends(struct stream *s, uint32_t u)
{
	struct op copies[2];

	if (s->plan.c.x_host && u + 2 < s->units - 1) {
		copies[0] = x_copy(s, u, false);
		carry_out(s, &s->plan.x, u, copies, 1);
	}
	if (u > 0 && o_carried(s, u - 1) && u + 1 < s->geo->layers && o_carried(s, u + 1)) {
		o_copies(s, u - 1, false, copies);
		carry_out(s, &s->plan.o, u - 1, copies, 2);
	}
}

/* Compute is about to go backward through block u */
static void backward_begins(struct stream *s, uint32_t u)
{
	struct op copies[2];

	if (s->plan.c.x_host) {
		copies[0] = x_copy(s, u - 1, true);
		carry_in(s, &s->plan.x, u - 1, copies, 1);
	}
	if (o_carried(s, u - 1)) {
		o_copies(s, u - 1, true, copies);
		carry_in(s, &s->plan.o, u - 1, copies, 2);
	}
}

/* ---- chunks ---- */

/* Tokens [from, from + n) of the pass; what the scratch held is dead */
static struct chunk chunk_of(struct stream *s, int64_t from, int64_t n)
{
	const struct place *at = &s->plan.at;
	int64_t first = s->plan.base + from, all = (int64_t)s->plan.ask.rows * s->plan.ask.seq;

	return (struct chunk){
		.dev = s->dev,
		.geo = s->geo,
		.n = n,
		.seq = s->plan.ask.seq,
		.piece = (int64_t)tokens_of_piece(&s->plan.ask, &s->plan.c),
		.tokens = at->tokens + first,
		.targets = at->targets + first,
		.starts = at->starts + first,
		.cos = at->cos,
		.sin = at->sin,
		.s = at->scratch,
		.host_starts = s->host + 2 * all + first,
	};
}

/* What unit u put out, from token `from` of the pass on */
static void *output(const struct stream *s, uint32_t u, int64_t from)
{
	const struct place *at = &s->plan.at;

	return elements_after(s->dev, at->x[at->outputs == 2 ? u & 1 : u], from * s->geo->hidden);
}

static void *dx_at(const struct stream *s, int64_t from)
{
	return elements_after(s->dev, s->plan.at.dx, from * s->geo->hidden);
}

/* A block's activations for the chunk at `from`: where it keeps them, else where the chunk's are; gu: NULL */
static struct saved saved_at(const struct stream *s, uint32_t layer, int64_t from)
{
	const struct mt_geometry *g = s->geo;
	const struct place *at = &s->plan.at;
	int64_t a = (int64_t)g->heads * g->head_dim, k = (int64_t)g->kv_heads * g->head_dim;
	struct saved own = at->saved[layer], v = at->chunk;

	if (o_carried(s, layer)) {
		own.o = at->o[layer & 1];
		own.lse = at->lse[layer & 1];
	}
	if (own.qkv) {
		v.qkv = elements_after(s->dev, own.qkv, from * (a + 2 * k));
		v.pre = elements_after(s->dev, own.pre, from * (a + k));
		v.qk_rstd = own.qk_rstd ? own.qk_rstd + from * (g->heads + g->kv_heads) : NULL;
		v.x2 = elements_after(s->dev, own.x2, from * g->hidden);
	}
	if (own.o) {
		v.o = elements_after(s->dev, own.o, from * a);
		v.lse = own.lse + from * g->heads;
	}
	v.gu = elements_after(s->dev, own.gu, from * 2 * g->ffn);
	return v;
}

/* ---- units, as jobs on the compute queue ---- */

static int64_t chunk_tokens(const struct stream *s, int64_t from)
{
	int64_t most = (int64_t)rows_of_chunk(&s->plan.ask, &s->plan.c) * s->plan.ask.seq, left = s->plan.n - from;

	return left < most ? left : most;
}

static void unit_forward(struct stream *s, uint32_t u)
{
	struct weights w;
	struct slot *slot;

	at(s, Q_COMPUTE, u, "forward");
	slot = weights_fetch(s, u, &w);
	forward_begins(s, u);
	for (int64_t from = 0, n; from < s->plan.n; from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);

		if (u == 0) {
			embed_forward(&c, &w, output(s, 0, from));
		} else {
			struct saved v = saved_at(s, u - 1, from);
			block_forward(&c, u - 1, &w, output(s, u - 1, from), &v, output(s, u, from));
		}
	}
	if (slot) slot->over = record(s, Q_COMPUTE);
	forward_ends(s, u);
}

/* What a unit's gradients are multiplied by before the chunk at `from` adds to them */
static float beta_at(const struct stream *s, int64_t from) { return s->plan.first && from == 0 ? 0 : 1; }

/* Final norm, LM head and loss, forward and (training) backward at once, in head chunks of any tokens. Nothing comes
 * into the head's slot after it. */
static void head_both(struct stream *s, float *gs)
{
	const struct plan *p = &s->plan;
	int64_t most = (int64_t)tokens_of_head(&p->ask, &p->c);
	struct weights w;
	struct grads g;

	at(s, Q_COMPUTE, head_job(s), "head");
	weights_fetch(s, head_job(s), &w);
	if (p->first) launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {p->at.loss, sizeof *p->at.loss}});
	if (gs) grads_view(s, head_job(s), gs, &g);
	if (gs && p->first) grads_clear_gaps(s, head_job(s), gs);
	for (int64_t from = 0, n; from < p->n; from += n) {
		n = p->n - from < most ? p->n - from : most;
		struct chunk c = chunk_of(s, from, n);
		const void *x = output(s, s->units - 2, from);

		if (gs)
			head_loss_backward(&c, &w, &g, beta_at(s, from), (float)s->msg.batch.loss_scale, p->at.loss, x,
				dx_at(s, from));
		else head_loss(&c, &w, p->at.loss, x);
	}
	if (p->last) launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {&s->host_loss, p->at.loss, sizeof *p->at.loss}});
}

static void block_unit_backward(struct stream *s, uint32_t u, const struct grads *g)
{
	enum level level = level_of(&s->plan.c, s->geo->layers, u - 1);
	struct weights w;
	struct slot *slot = weights_fetch(s, u, &w);

	backward_begins(s, u);
	for (int64_t from = 0, n; from < s->plan.n; from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);
		struct saved v = saved_at(s, u - 1, from);
		const void *x = output(s, u - 1, from);

		if (level < LEVEL_BLOCK) {
			at(s, Q_COMPUTE, u, "again");
			block_again(&c, u - 1, &w, x, &v, level == LEVEL_ATTENTION);
		}
		at(s, Q_COMPUTE, u, "backward");
		block_backward(&c, u - 1, &w, g, beta_at(s, from), x, &v, dx_at(s, from));
	}
	if (slot) slot->over = record(s, Q_COMPUTE);
}

static void unit_backward(struct stream *s, uint32_t u, float *gs)
{
	float *tied = s->plan.at.tied;
	struct grads g;

	at(s, Q_COMPUTE, u, "backward");
	if (s->plan.first)
		launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, s->jobs[u].elems * sizeof(float)}});
	if (u == head_job(s)) {
		head_both(s, gs);
		return;
	}
	grads_view(s, u, gs, &g);
	if (s->plan.first && (u > 0 || !tied)) grads_clear_gaps(s, u, gs);
	if (u > 0) {
		block_unit_backward(s, u, &g);
		return;
	}
	for (int64_t from = 0, n; from < s->plan.n; from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);
		embed_backward(&c, &g, tied ? 1 : beta_at(s, from), dx_at(s, from));
	}
}

/* Where unit u's gradients add up */
static float *grads_of(const struct stream *s, uint32_t u)
{
	const struct place *at = &s->plan.at;

	if (u == 0 || u == head_job(s)) return at->end_grads[u != 0];
	return at->grads[(u - 1) % s->plan.c.grad_slots];
}

/* ---- gradients out ---- */

static void push(struct stream *s, struct mt_msg m)
{
	m.k = s->msg.k;
	m.attempt = s->msg.attempt;
	m.txn_kind = s->msg.txn_kind;
	m.micro = s->msg.micro;
	m.step = s->msg.step;
	mt_ring_push(s->grad, &m);
}

static int room_wait(struct stream *s, uint32_t unit, void **block)
{
	for (;;) {
		uint32_t seen = mt_event(s->run);
		if ((*block = mt_ring_reserve(s->grad))) return stream_wanted(s);
		int rc = stream_pause(s, seen, MT_ACT_WAIT_GRAD_ROOM, unit);
		if (rc) return rc;
	}
}

/* The micro's loss, once the head's work (up to `ready`) is over */
static int loss_out(struct stream *s, struct event ready)
{
	void *block;
	int rc = sync(s, ready);

	if (rc || (rc = room_wait(s, head_job(s), &block))) return rc;
	push(s,
		(struct mt_msg){.kind = MT_MSG_LOSS,
			.loss = {.sum = s->host_loss.sum,
				.targets = (uint64_t)s->host_loss.targets,
				.nonfinite = !isfinite(s->host_loss.sum)}});
	return 0;
}

static enum mt_dtype grads_type(const struct stream *s) { return s->control->grad == MT_BF16 ? MT_BF16 : MT_FP32; }

/* One part of a job's gradients leaves in pieces from 0 upward, many under way at once: a device that is far from the
 * host would else stand still between two of them. Each goes into the block of the message that will be its own, and is
 * published when it has arrived. */
enum { FLIGHT = 32 }; /* pieces under way at most */

struct leaving {
	const struct part *part;
	const float *g;
	uint64_t launched, pushed; /* elements */
	struct event over[FLIGHT]; /* piece i's in i mod FLIGHT */
	uint64_t first, n;         /* pieces first .. first + n - 1 are under way */
};

static uint64_t piece_elems(const struct stream *s, const struct part *p, uint64_t off)
{
	uint64_t piece = s->control->piece_elems;

	return p->elems - off < piece ? p->elems - off : piece;
}

/* As many pieces as there are blocks for */
static void pieces_launch(struct stream *s, struct leaving *l)
{
	const struct part *p = l->part;
	void *block;

	at(s, Q_GRADS, p->unit, "gradients");
	/* what is launched will be written into the ring's blocks: not into a successor's */
	while (l->launched < p->elems && l->n < FLIGHT && mt_stage_mine(s->run) &&
		(block = mt_ring_reserve_ahead(s->grad, l->n))) {
		uint64_t n = piece_elems(s, p, l->launched);

		launch(s, Q_GRADS,
			&(struct op){OP_GRADS_OUT,
				.grads_out = {.dst = block,
					.src = l->g + l->launched,
					.n = (int64_t)n,
					.to = grads_type(s),
					.off = (int64_t)l->launched,
					.elems = (int64_t)p->elems}});
		l->over[(l->first + l->n++) % FLIGHT] = record(s, Q_GRADS);
		l->launched += n;
	}
}

/* The first of those under way, once it has arrived */
static int piece_push(struct stream *s, struct leaving *l)
{
	const struct part *p = l->part;
	uint64_t n = piece_elems(s, p, l->pushed);
	int rc = sync(s, l->over[l->first % FLIGHT]);

	if (rc || (rc = stream_wanted(s))) return rc;
	push(s, (struct mt_msg){.kind = MT_MSG_GRAD, .grad = {.unit = p->unit, .end = p->end, .off = l->pushed, .n = n}});
	l->first++;
	l->n--;
	l->pushed += n;
	s->sent = true;
	*mt_counter(s->run, 3) += n * (s->control->grad == MT_BF16 ? 2 : 4);
	return 0;
}

static int part_out(struct stream *s, const struct part *p, const float *g)
{
	struct leaving l = {.part = p, .g = g};
	int rc = 0;

	while (!rc && l.pushed < p->elems) {
		void *block;

		pieces_launch(s, &l);
		rc = l.n ? piece_push(s, &l) : room_wait(s, p->unit, &block);
	}
	return rc;
}

/* Does part p of a job's gradients leave with it? Where both ends of a tied embedding add up in one place, that leaves
 * as unit 0's. */
static bool leaves(const struct stream *s, uint32_t job, int p)
{
	return !s->plan.at.tied || s->jobs[job].part[p].end == 0;
}

/* Compute, launched so far, is through with the job's gradients */
static void grads_final(struct stream *s, uint32_t job)
{
	for (int p = 0; p < s->jobs[job].parts; p++)
		if (leaves(s, job, p))
			launch(s, Q_COMPUTE,
				&(struct op){OP_GRADS_FINAL,
					.grads_final = {grads_base(s, job, p, grads_of(s, job)), (int64_t)s->jobs[job].part[p].elems,
						grads_type(s)}});
}

/* A job's gradients, with which compute is through at `ready`, leave; all of them have left on return */
static int grads_out(struct stream *s, uint32_t job, struct event ready)
{
	float *gs = grads_of(s, job);
	int rc = 0;

	wait(s, Q_GRADS, ready);
	for (int p = 0; !rc && p < s->jobs[job].parts; p++)
		if (leaves(s, job, p)) rc = part_out(s, &s->jobs[job].part[p], grads_base(s, job, p, gs));
	return rc;
}

/* ---- the micro-batch ---- */

static void batch_in(struct stream *s)
{
	const struct plan *p = &s->plan;
	size_t n = (size_t)p->ask.rows * p->ask.seq, table = (size_t)p->ask.seq * (s->geo->head_dim / 2) * sizeof(float);
	const struct op ops[] = {
		{OP_DISCARD, .discard = {s->arena, p->bytes}},
		{OP_COPY, .copy = {p->at.tokens, s->host, n * 4}},
		{OP_COPY, .copy = {p->at.targets, s->host + n, n * 4}},
		{OP_COPY, .copy = {p->at.starts, s->host + 2 * n, n * 4}},
		{OP_COPY, .copy = {p->at.cos, s->cos, table}},
		{OP_COPY, .copy = {p->at.sin, s->sin, table}},
	};

	launch(s, Q_COMPUTE, &ops[0]);
	wait(s, Q_WEIGHTS, record(s, Q_COMPUTE));
	for (size_t i = 1; i < sizeof ops / sizeof *ops; i++) launch(s, Q_COMPUTE, &ops[i]);
}

/* The units below the head. The host launches a unit while the one before the last is at work: no queue runs dry, and
 * little is wasted when the step is aborted. */
static int forward(struct stream *s)
{
	struct event *done = s->plan.done;
	int rc;

	for (uint32_t u = 0; u < head_job(s); u++) {
		if ((rc = stream_wanted(s)) || (rc = weights_wait(s, u))) return rc;
		mt_stage_activity(s->run, MT_ACT_FORWARD, u);
		unit_forward(s, u);
		if ((rc = sync(s, done[u & 1]))) return rc;
		done[u & 1] = record(s, Q_COMPUTE);
	}
	return weights_wait(s, head_job(s));
}

static int evaluate(struct stream *s)
{
	int rc = forward(s);

	if (rc) return rc;
	mt_stage_activity(s->run, MT_ACT_FORWARD, head_job(s));
	head_both(s, NULL);
	return s->plan.last ? loss_out(s, record(s, Q_COMPUTE)) : 0;
}

/* In the last pass unit u's gradients leave while unit u - 1 computes; before it, if that one needs their place */
static int backward(struct stream *s)
{
	struct event ready[2] = {{0}};
	int rc = 0;

	for (uint32_t u = head_job(s);; u--) {
		bool behind = u < head_job(s), early = s->plan.last && behind && grads_of(s, u) == grads_of(s, u + 1);

		if ((rc = stream_wanted(s)) || (early && (rc = grads_out(s, u + 1, ready[!(u & 1)])))) return rc;
		mt_stage_activity(s->run, MT_ACT_BACKWARD, u);
		unit_backward(s, u, grads_of(s, u));
		if (s->plan.last) grads_final(s, u);
		ready[u & 1] = record(s, Q_COMPUTE);
		if (!s->plan.last) rc = sync(s, ready[!(u & 1)]);
		else if (u + 1 == head_job(s)) rc = loss_out(s, ready[!(u & 1)]);
		if (!rc && s->plan.last && behind && !early) rc = grads_out(s, u + 1, ready[!(u & 1)]);
		if (rc) return rc;
		if (u == 0) return s->plan.last ? grads_out(s, 0, ready[0]) : 0;
	}
}

static int pass(struct stream *s)
{
	int rc;

	if (!s->plan.ask.train) return evaluate(s);
	return (rc = forward(s)) ? rc : backward(s);
}

static int each_pass(struct stream *s, int (*fn)(struct stream *))
{
	struct plan *p = &s->plan;
	int64_t all = (int64_t)p->ask.rows * p->ask.seq, most = (int64_t)rows_of_pass(&p->ask, &p->c) * p->ask.seq;
	int rc = 0;

	for (p->base = 0; !rc && p->base < all; p->base += most) {
		p->n = all - p->base < most ? all - p->base : most;
		p->first = p->base == 0;
		p->last = p->base + p->n == all;
		rc = fn(s);
	}
	return rc;
}

int schedule_micro(struct stream *s)
{
	int rc = plan_make(s, s->msg.batch.rows, s->msg.batch.seq, s->msg.txn_kind == MT_TRAIN);

	if (rc) return rc;
	s->sent = false;
	trace_begin(s->dev->trace, s->msg.step, s->msg.micro, (uint64_t)s->msg.batch.rows * s->msg.batch.seq);
	batch_in(s);
	rc = each_pass(s, pass);
	int failed = device_sync(s->dev);
	if (s->dev->trace && s->dev->times) s->dev->times(s->dev);
	trace_end(s->dev->trace, !rc && !failed);
	return rc ? rc : failed;
}

/* ---- rehearsal: the same launches, none of which runs, and so no waiting and nothing sent ---- */

static int pass_rehearse(struct stream *s)
{
	for (uint32_t u = 0; u < head_job(s); u++) unit_forward(s, u);
	if (!s->plan.ask.train) {
		head_both(s, NULL);
		return 0;
	}
	for (uint32_t u = s->units; u-- > 0;) unit_backward(s, u, grads_of(s, u));
	return 0;
}

int schedule_rehearse(struct stream *s)
{
	uint64_t bytes_in = *mt_counter(s->run, 2);
	int rc = s->dev->autotune(s->dev, true);

	if (!rc) each_pass(s, pass_rehearse);
	*mt_counter(s->run, 2) = bytes_in;
	int failed = s->dev->autotune(s->dev, false);
	return rc ? rc : failed;
}
