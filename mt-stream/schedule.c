/* schedule.c: a micro-batch's way through the model, layer-major: forward through the units, backward through the units,
 * chunks of whole rows inside a unit. The host only launches, a unit or two ahead of the device, so that the next
 * unit's weights come in while this one computes, and gradients of the last one leave while the next one computes.
 *
 *     Q_WEIGHTS   in 0 │ in 1   │ in 2   │ ...     │ in L-1   │ in L-2   │
 *     Q_COMPUTE        │ fwd 0  │ fwd 1  │ ... head│ bwd L    │ bwd L-1  │ ... bwd 0 │
 *     Q_GRADS          │        │        │         │ head out │ L out    │ ...       │ 0 out
 *
 * A weight slot is refilled once its last reader is through: an event. A gradient slot is written again once all of it
 * has left: the host has seen that itself, for it publishes every piece. No wait here is one too many: chaos shows it.
 */
#include <math.h>
#include <stddef.h>

#include "cli.h"
#include "stream.h"

static void launch(struct stream *s, enum queue q, const struct op *op) { s->dev->launch(s->dev, q, op); }
static struct event record(struct stream *s, enum queue q) { return s->dev->record(s->dev, q); }
static void wait(struct stream *s, enum queue q, struct event e) { s->dev->wait(s->dev, q, e); }

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

	return s->plan.tied && p->unit == 0 ? s->plan.tied : slot + p->at;
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
			if (mt_version(s->run, unit) >= s->msg.batch.version)
				break;
			int rc = stream_pause(s, seen, MT_D_WAIT_WEIGHTS, unit);
			if (rc)
				return rc;
		}
	}
	return 0;
}

/* Launch the job's weights into slot `to` once its last reader is through; compute goes on when they are in. */
static void weights_load(struct stream *s, uint32_t job, struct slot *to)
{
	wait(s, Q_WEIGHTS, to->over);
	for (int p = 0; p < s->jobs[job].parts; p++) {
		const struct part *part = &s->jobs[job].part[p];

		launch(s, Q_WEIGHTS, &(struct op){OP_WEIGHTS_IN, .weights_in = {
			.dst = elements_after(s->dev, to->mem, (int64_t)part->at), .n = (int64_t)part->elems,
			.src = mt_at(s->run, mt_unit(s->run, part->unit)->w), .from = s->control->dtype}});
	}
	to->job = job;
	wait(s, Q_COMPUTE, record(s, Q_WEIGHTS));
}

/* *w: the job's weights as compute, from here on, may read them; *used: the slot to mark when compute is through, or NULL
 * where the store is read in place. Of two slots, the one that was not used last is taken. */
static void weights_fetch(struct stream *s, uint32_t job, struct weights *w, struct slot **used)
{
	const struct job *j = &s->jobs[job];
	const void *base[2];

	*used = NULL;
	if (!s->view) {
		struct slot *a = &s->plan.weights[0], *b = &s->plan.weights[1];
		struct slot *to = a->job == job ? a : b->job == job ? b : a->over.at <= b->over.at ? a : b;

		if (to->job != job)
			weights_load(s, job, to);
		*used = to;
	}
	for (int p = 0; p < j->parts; p++) {
		const struct mt_unit *u = mt_unit(s->run, j->part[p].unit);

		base[p] = *used ? elements_after(s->dev, (*used)->mem, (int64_t)j->part[p].at)
				: s->dev->view(s->dev, mt_at(s->run, u->w), s->control->dtype);
		*mt_counter(s->run, 2) += j->part[p].elems * (s->control->dtype == MT_BF16 ? 2 : 4);
	}
	weights_view(s, job, base, w);
}

/* ---- chunks ---- */

/* Tokens [from, from + n) of the micro-batch; what the scratch held is dead */
static struct chunk chunk_of(struct stream *s, int64_t from, int64_t n)
{
	const struct plan *p = &s->plan;

	return (struct chunk){
		.dev = s->dev, .geo = s->geo, .n = n, .seq = p->seq, .tokens = p->tokens + from,
		.targets = p->targets + from, .starts = p->starts + from, .cos = p->cos, .sin = p->sin, .s = p->scratch,
	};
}

/* What unit u put out, from token `from` on */
static void *output(const struct stream *s, uint32_t u, int64_t from)
{
	const struct plan *p = &s->plan;

	return elements_after(s->dev, p->x, ((int64_t)(p->train ? u : u & 1) * p->n + from) * s->geo->hidden);
}

/* A block's saved activations for the chunk at `from`: its own if they are kept, else those of the only chunk */
static struct saved saved_at(const struct stream *s, uint32_t layer, int64_t from)
{
	const struct mt_geometry *g = s->geo;
	int64_t a = (int64_t)g->heads * g->head_dim, k = (int64_t)g->kv_heads * g->head_dim;
	struct saved v = s->plan.saved[s->plan.keep ? layer : 0];

	if (!s->plan.keep)
		return v;
	v.qkv = elements_after(s->dev, v.qkv, from * (a + 2 * k));
	v.pre = elements_after(s->dev, v.pre, from * (a + k));
	v.qk_rstd = v.qk_rstd ? v.qk_rstd + from * (g->heads + g->kv_heads) : NULL;
	v.o = elements_after(s->dev, v.o, from * a);
	v.lse += from * g->heads;
	v.x2 = elements_after(s->dev, v.x2, from * g->hidden);
	v.gu = elements_after(s->dev, v.gu, from * 2 * g->ffn);
	return v;
}

/* ---- units, as jobs on the compute queue ---- */

static int64_t chunk_tokens(const struct stream *s, int64_t from)
{
	int64_t most = s->plan.chunk_rows * s->plan.seq, left = s->plan.n - from;

	return left < most ? left : most;
}

static void unit_forward(struct stream *s, uint32_t u)
{
	struct weights w;
	struct slot *slot;

	weights_fetch(s, u, &w, &slot);
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
	if (slot)
		slot->over = record(s, Q_COMPUTE);
}

/* Final norm, LM head and loss, forward and (training) backward at once, in head chunks of any tokens */
static void head_both(struct stream *s, float *gs)
{
	const struct plan *p = &s->plan;
	struct weights w;
	struct grads g;
	struct slot *slot;

	weights_fetch(s, head_job(s), &w, &slot);
	launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {p->loss, sizeof *p->loss}});
	if (gs) {
		grads_view(s, head_job(s), gs, &g);
		grads_clear_gaps(s, head_job(s), gs);
	}
	for (int64_t from = 0, n; from < p->n; from += n) {
		n = p->n - from < p->head_n ? p->n - from : p->head_n;
		struct chunk c = chunk_of(s, from, n);
		const void *x = output(s, s->units - 2, from);

		if (gs)
			head_loss_backward(&c, &w, &g, from ? 1 : 0, (float)s->msg.batch.loss_scale, p->loss, x,
				elements_after(s->dev, p->dx, from * s->geo->hidden));
		else
			head_loss(&c, &w, p->loss, x);
	}
	launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {&s->host_loss, p->loss, sizeof *p->loss}});
	if (slot)
		slot->over = record(s, Q_COMPUTE);
}

static void block_unit_backward(struct stream *s, uint32_t u, const struct grads *g)
{
	struct weights w;
	struct slot *slot;

	weights_fetch(s, u, &w, &slot);
	for (int64_t from = 0, n; from < s->plan.n; from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);
		struct saved v = saved_at(s, u - 1, from);
		const void *x = output(s, u - 1, from);

		if (!s->plan.keep)
			block_forward(&c, u - 1, &w, x, &v, NULL);
		block_backward(&c, u - 1, &w, g, from ? 1 : 0, x, &v,
			elements_after(s->dev, s->plan.dx, from * s->geo->hidden));
	}
	if (slot)
		slot->over = record(s, Q_COMPUTE);
}

static void unit_backward(struct stream *s, uint32_t u, float *gs)
{
	struct grads g;

	launch(s, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {gs, s->jobs[u].elems * sizeof(float)}});
	if (u == head_job(s)) {
		head_both(s, gs);
		return;
	}
	grads_view(s, u, gs, &g);
	if (u > 0) {
		grads_clear_gaps(s, u, gs);
		block_unit_backward(s, u, &g);
		return;
	}
	if (!s->plan.tied)
		grads_clear_gaps(s, u, gs);
	for (int64_t from = 0, n; from < s->plan.n; from += n) {
		n = chunk_tokens(s, from);
		struct chunk c = chunk_of(s, from, n);
		embed_backward(&c, &g, from || s->plan.tied ? 1 : 0,
			elements_after(s->dev, s->plan.dx, from * s->geo->hidden));
	}
}

/* ---- gradients out ---- */

static void push(struct stream *s, struct mt_msg m)
{
	m.k = s->msg.k;
	m.try_ = s->msg.try_;
	m.txn_kind = s->msg.txn_kind;
	m.micro = s->msg.micro;
	m.step = s->msg.step;
	mt_ring_push(s->grad, &m);
}

static int room_wait(struct stream *s, uint32_t unit, void **block)
{
	for (;;) {
		uint32_t seen = mt_event(s->run);
		if ((*block = mt_ring_reserve(s->grad)))
			return stream_wanted(s);
		int rc = stream_pause(s, seen, MT_D_WAIT_GRAD_ROOM, unit);
		if (rc)
			return rc;
	}
}

/* The micro's loss, once the head's work (up to `ready`) is over */
static int loss_out(struct stream *s, struct event ready)
{
	void *block;
	int rc = s->dev->sync(s->dev, ready);

	if (rc || (rc = room_wait(s, head_job(s), &block)))
		return rc;
	push(s, (struct mt_msg){.kind = MT_MSG_LOSS, .loss = {
		.sum = s->host_loss.sum, .targets = (uint64_t)s->host_loss.targets,
		.nonfinite = !isfinite(s->host_loss.sum)}});
	return 0;
}

/* One part of a job's gradients, in pieces from 0 upward */
static int part_out(struct stream *s, const struct part *p, const float *g)
{
	uint64_t piece = s->control->piece_elems, size = s->control->grad == MT_BF16 ? 2 : 4;

	for (uint64_t off = 0, n; off < p->elems; off += n) {
		void *block;
		int rc = room_wait(s, p->unit, &block);

		if (rc)
			return rc;
		n = p->elems - off < piece ? p->elems - off : piece;
		launch(s, Q_GRADS, &(struct op){OP_GRADS_OUT, .grads_out = {
			.dst = block, .src = g + off, .n = (int64_t)n,
			.to = s->control->grad == MT_BF16 ? MT_BF16 : MT_FP32}});
		if ((rc = s->dev->sync(s->dev, record(s, Q_GRADS))))
			return rc;
		push(s, (struct mt_msg){.kind = MT_MSG_GRAD, .grad = {.unit = p->unit, .end = p->end, .off = off, .n = n}});
		s->sent = true;
		*mt_counter(s->run, 3) += n * size;
	}
	return 0;
}

/* A job's gradients, with which compute is through at `ready`, leave slot gs; all of them have left on return */
static int grads_out(struct stream *s, uint32_t job, float *gs, struct event ready)
{
	int rc = 0;

	wait(s, Q_GRADS, ready);
	for (int p = 0; !rc && p < s->jobs[job].parts; p++)
		if (!s->plan.tied || s->jobs[job].part[p].end == 0)
			rc = part_out(s, &s->jobs[job].part[p], grads_base(s, job, p, gs));
	return rc;
}

/* ---- the micro-batch ---- */

static void batch_in(struct stream *s)
{
	const struct plan *p = &s->plan;
	size_t n = (size_t)p->n, table = (size_t)p->seq * (s->geo->head_dim / 2) * sizeof(float);
	const struct op ops[] = {
		{OP_DISCARD, .discard = {s->arena, p->bytes}},
		{OP_COPY, .copy = {p->tokens, s->host, n * 4}},
		{OP_COPY, .copy = {p->targets, s->host + n, n * 4}},
		{OP_COPY, .copy = {p->starts, s->host + 2 * n, n * 4}},
		{OP_COPY, .copy = {p->cos, s->cos, table}},
		{OP_COPY, .copy = {p->sin, s->sin, table}},
	};

	launch(s, Q_COMPUTE, &ops[0]);
	wait(s, Q_WEIGHTS, record(s, Q_COMPUTE));
	for (size_t i = 1; i < sizeof ops / sizeof *ops; i++)
		launch(s, Q_COMPUTE, &ops[i]);
}

/* The units below the head. The host launches a unit while the one before the last is at work: no queue runs dry, and
 * little is wasted when the step is aborted. */
static int forward(struct stream *s)
{
	struct event done[2] = {{0}};
	int rc;

	for (uint32_t u = 0; u < head_job(s); u++) {
		if ((rc = stream_wanted(s)) || (rc = weights_wait(s, u)))
			return rc;
		mt_stage_doing(s->run, MT_D_FORWARD, u);
		unit_forward(s, u);
		if ((rc = s->dev->sync(s->dev, done[u & 1])))
			return rc;
		done[u & 1] = record(s, Q_COMPUTE);
	}
	return weights_wait(s, head_job(s));
}

static int evaluate(struct stream *s)
{
	int rc = forward(s);

	if (rc)
		return rc;
	mt_stage_doing(s->run, MT_D_FORWARD, head_job(s));
	head_both(s, NULL);
	return loss_out(s, record(s, Q_COMPUTE));
}

static int train(struct stream *s)
{
	struct event ready[2];
	int rc = forward(s);

	/* unit u's gradients leave while unit u - 1 computes */
	for (uint32_t u = head_job(s); !rc; u--) {
		rc = stream_wanted(s);
		if (rc)
			break;
		mt_stage_doing(s->run, MT_D_BACKWARD, u);
		unit_backward(s, u, s->plan.grads[u & 1]);
		ready[u & 1] = record(s, Q_COMPUTE);
		if (u + 1 == head_job(s))
			rc = loss_out(s, ready[!(u & 1)]);
		if (!rc && u < head_job(s))
			rc = grads_out(s, u + 1, s->plan.grads[!(u & 1)], ready[!(u & 1)]);
		if (u == 0)
			break;
	}
	return rc ? rc : grads_out(s, 0, s->plan.grads[0], ready[0]);
}

int schedule_micro(struct stream *s)
{
	int rc = plan_make(s, s->msg.batch.rows, s->msg.batch.seq, s->msg.txn_kind == MT_TRAIN);

	if (rc)
		return rc;
	s->sent = false;
	batch_in(s);
	rc = s->plan.train ? train(s) : evaluate(s);
	int failed = device_sync(s->dev);
	return rc ? rc : failed;
}
