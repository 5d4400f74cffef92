/* leave.c: losses and gradients leave: each message of the gradient ring is published when its copy has arrived there.
 * Gradients that are all 0, of experts without tokens and of tensors that are not trained, are not copied: the message
 * says so.
 */
#include <math.h>
#include <string.h>

#include "mt/control.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "schedule.h"
#include "trace.h"

/* Write the message `ahead` places behind the ring's next one */
static void put(struct stream *s, uint64_t ahead, struct mt_msg m)
{
	m.k = s->taken.msg.k;
	m.attempt = s->taken.msg.attempt;
	m.txn_kind = s->taken.msg.txn_kind;
	m.micro = s->taken.msg.micro;
	m.step = s->taken.msg.step;
	mt_ring_put(s->grad, ahead, &m);
}

/* Before the loss, with which an evaluation is complete */
static int figures_out(struct stream *s)
{
	struct mt_msg m = {.kind = MT_MSG_FIGURES};
	void *block;
	int rc = room_wait(s, head_unit(s), &block);
	if (rc) return rc;
	memcpy(m.figures.figures, s->now.sums.figures, sizeof m.figures.figures);
	put(s, 0, m);
	mt_ring_publish(s->grad, 1);
	return 0;
}

int loss_out(struct stream *s, struct event ready)
{
	void *block;
	int rc = event_sync(s, ready);
	if (!rc && has_objective(s)) rc = figures_out(s);
	if (rc || (rc = room_wait(s, head_unit(s), &block))) return rc;
	struct balance_loss terms = balance_loss(s);
	put(s, 0,
		(struct mt_msg){.kind = MT_MSG_LOSS,
			.loss = {.sum = s->now.loss.sum,
				.targets = (uint64_t)s->now.loss.targets,
				.nonfinite = !isfinite(s->now.loss.sum + s->now.mtp.sum + terms.aux + terms.z),
				.mtp = (float)s->now.mtp.sum,
				.aux = terms.aux,
				.z = terms.z}});
	mt_ring_publish(s->grad, 1);
	return 0;
}

int scores_out(struct stream *s)
{
	uint64_t all = (uint64_t)s->micro->request.rows * s->micro->request.seq;
	uint64_t most = mt_ring_block(s->grad) / sizeof(double), words = MT_TEACHER_WORDS(s->micro->request.top);
	for (uint64_t off = 0; off < all;) {
		uint64_t n = all - off < most ? all - off : most;
		void *block;
		int rc = room_wait(s, head_unit(s), &block);
		if (rc) return rc;
		for (uint64_t i = 0; i < n; i++) {
			double loss = s->memory.scores[off + i];
			((double *)block)[i] = 0 - (s->taken.msg.batch.scores == 2 ? loss : fabs(loss));
		}
		put(s, 0, (struct mt_msg){.kind = MT_MSG_SCORE, .score = {.off = off, .n = n}});
		mt_ring_publish(s->grad, 1);
		off += n;
	}
	most = words ? mt_ring_block(s->grad) / (4 * words) : 0;
	for (uint64_t off = 0; words && off < all;) {
		uint64_t n = all - off < most ? all - off : most;
		void *block;
		int rc = room_wait(s, head_unit(s), &block);
		if (rc) return rc;
		memcpy(block, s->memory.top + off * words, n * words * 4);
		put(s, 0, (struct mt_msg){.kind = MT_MSG_TOP, .score = {.off = off, .n = n}});
		mt_ring_publish(s->grad, 1);
		off += n;
	}
	return 0;
}

static enum mt_dtype grads_type(const struct stream *s) { return s->control->grad == MT_BF16 ? MT_BF16 : MT_FP32; }

/* A gradient leaves in pieces, in order. Each is copied into the ring block of its message, which is published when
 * the copy is done. Many copies are under way at once, so that the link never idles between two. */
enum { FLIGHT = 32 }; /* pieces under way, at most */

struct leaving {
	const struct gradient *gradient;
	uint64_t launched, pushed; /* up to these elements of its unit */
	struct event over[FLIGHT]; /* piece i's in i mod FLIGHT */
	uint64_t first, n;         /* pieces first .. first + n - 1 are under way */
};

/* Are elements [from, to) of the unit all of tensors that are not trained? */
static bool all_frozen(const struct stream *s, uint32_t unit, uint64_t from, uint64_t to)
{
	const struct mt_unit *u = mt_unit(s->run, unit);
	const struct mt_tensor *t = mt_tensor(s->run, u->first_tensor), *end = t + u->tensors;
	for (uint32_t n = u->tensors; n > 1; n -= n / 2) /* t begins at `from`, or before it */
		if (t + n / 2 < end && t[n / 2].off <= from) t += n / 2;
	while (t < end && t->off < to && (t->frozen || t->off + t->n <= from)) t++;
	return t == end || t->off >= to;
}

/* Is the block of gradients that begins at element `from` all of tensors that are not trained, or of experts without
 * tokens? */
static bool block_zero(const struct stream *s, const struct gradient *r, uint64_t from)
{
	uint64_t to = r->e.to - from < MT_BLOCK ? r->e.to : from + MT_BLOCK;
	if (r->frozen && all_frozen(s, r->unit, from, to)) return true;
	if (!r->expert_stride) return false;
	for (uint64_t e = (from - r->expert_off) / r->expert_stride; r->expert_off + e * r->expert_stride < to; e++)
		if (expert_used(s, r->unit, (uint32_t)e)) return false;
	return true;
}

/* Elements of the piece that begins at `from`: blocks that are all zero, or none of them */
static uint64_t piece_elems(const struct stream *s, const struct gradient *r, uint64_t from, bool *zero)
{
	uint64_t most = s->control->piece_elems, n = MT_BLOCK;
	if (r->e.to - from < most) most = r->e.to - from;
	*zero = block_zero(s, r, from);
	if (!r->expert_stride && !r->frozen) return most;
	while (n < most && block_zero(s, r, from + n) == *zero) n += MT_BLOCK;
	return n < most ? n : most;
}

/* Launch copies of as many pieces as the ring has blocks for */
static void pieces_launch(struct stream *s, struct leaving *l)
{
	const struct gradient *r = l->gradient;
	void *block;
	trace_at(s->dev->trace, Q_GRADS, r->unit, "gradients");
	while (l->launched < r->e.to && l->n < FLIGHT && (block = room_ahead(s, l->n))) {
		bool zero;
		uint64_t n = piece_elems(s, r, l->launched, &zero);

		if (!zero)
			launch(s, Q_GRADS,
				&(struct op){OP_GRADS_OUT,
					.grads_out = {.dst = block,
						.src = r->g + r->e.at + (l->launched - r->e.from),
						.n = (int64_t)n,
						.to = grads_type(s),
						.off = (int64_t)(l->launched - r->e.from),
						.elems = (int64_t)(r->e.to - r->e.from)}});
		l->over[(l->first + l->n++) % FLIGHT] = event_record(s, Q_GRADS);
		l->launched += n;
	}
}

static void piece_put(struct stream *s, struct leaving *l, uint64_t ahead)
{
	const struct gradient *r = l->gradient;
	bool zero;
	uint64_t n = piece_elems(s, r, l->pushed, &zero);
	put(s, ahead,
		(struct mt_msg){.kind = MT_MSG_GRAD,
			.grad = {.unit = r->unit, .end = r->end, .off = l->pushed, .n = n, .zero = zero}});
	l->first++;
	l->n--;
	l->pushed += n;
	if (!zero) mt_count(s->run, MT_STREAM_bytes_out, n * mt_dtype_bytes(s->control->grad));
}

/* Wait until the first piece under way has arrived, and publish it with those behind it that have arrived, too */
static int pieces_push(struct stream *s, struct leaving *l)
{
	uint64_t n = 0;
	int rc;
	do { /* a device that has failed says that all has arrived: event_sync knows better */
		if ((rc = event_sync(s, l->over[l->first % FLIGHT]))) return rc;
		piece_put(s, l, n++);
	} while (l->n && s->dev->query(s->dev, l->over[l->first % FLIGHT]));
	if ((rc = micro_wanted(s))) return rc;
	mt_ring_publish(s->grad, n);
	s->now.sent = true;
	return 0;
}

static int gradient_out(struct stream *s, const struct gradient *r)
{
	struct leaving l = {.gradient = r, .launched = r->e.from, .pushed = r->e.from};
	int rc = 0;
	while (!rc && l.pushed < r->e.to) {
		void *block;
		pieces_launch(s, &l);
		rc = l.n ? pieces_push(s, &l) : room_wait(s, r->unit, &block);
	}
	return rc;
}

/* What is not trained adds nothing to the norm */
static void frozen_clear(struct stream *s, const struct gradient *r)
{
	const struct mt_unit *u = mt_unit(s->run, r->unit);
	const struct mt_tensor *t = mt_tensor(s->run, u->first_tensor), *end = t + u->tensors, *next;
	for (; r->frozen && t < end; t = next) {
		for (next = t + 1; next < end && next->frozen && t->frozen;) next++;
		uint64_t from = t->off < r->e.from ? r->e.from : t->off, to = next[-1].off + next[-1].n;
		if (to > r->e.to) to = r->e.to;
		if (t->frozen && from < to)
			launch(s, Q_COMPUTE,
				&(struct op){OP_ZERO, .zero = {r->g + r->e.at + (from - r->e.from), (to - from) * sizeof(float)}});
	}
}

void grads_final(struct stream *s, struct part t)
{
	struct gradient r;
	for (uint32_t i = 0; gradient_of(s, t, i, &r); i++) {
		frozen_clear(s, &r);
		if (r.e.to > r.e.from)
			launch(s, Q_COMPUTE,
				&(struct op){OP_GRADS_FINAL,
					.grads_final = {r.g + r.e.at, (int64_t)(r.e.to - r.e.from), grads_type(s)}});
	}
}

int grads_out(struct stream *s, struct part t, struct event ready)
{
	struct gradient r;
	int rc = 0;
	queue_wait(s, Q_GRADS, ready);
	for (uint32_t i = 0; !rc && gradient_of(s, t, i, &r); i++) rc = gradient_out(s, &r);
	return rc;
}
