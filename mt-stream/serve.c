/* serve.c: micro-batches from the batch ring, one after another; what is stale is dropped, and every wait keeps an eye
 * on the transaction and on the peers.
 */
#include "batch.h"
#include "cli/cli.h"
#include "stream.h"
#include "trace.h"

/* ---- waiting ---- */

/* 0; GONE: the run was removed; -65: an update was cut short, and nobody will take what this stream has; -75: another
 * process has this stream's place */
int stream_run_state(const struct stream *s)
{
	if (mt_run_state(s->run) == MT_GONE) return GONE;
	int rc = mt_run_dirty(s->run);
	return rc ? rc : mt_stage_check(s->run);
}

/* Is the micro-batch at work still wanted? With --grad none the commit comes with the first piece, so the others are
 * wanted after it. */
int stream_wanted(struct stream *s)
{
	uint64_t w = mt_txn_word(s->run, s->msg.k);
	enum mt_phase phase = mt_word_phase(w);
	bool ours = mt_word_k(w) == s->msg.k && mt_word_attempt(w) == s->msg.attempt;

	int rc = stream_run_state(s);
	if (rc) return rc;
	if (ours && phase == MT_ACCUMULATE) return 0;
	if (ours && s->sent && s->control->grad == MT_NONE && (phase == MT_APPLY || phase == MT_SKIP)) return 0;
	return STALE;
}

static void look_after_peers(struct stream *s)
{
	double now = mt_now();

	if (now - s->looked < 0.1) return;
	s->looked = now;
	mt_abort_dead(s->run);
}

int stream_pause(struct stream *s, uint32_t seen, enum mt_activity activity, uint64_t arg)
{
	int rc = stream_wanted(s);

	if (rc || (rc = mt_ring_check(s->grad))) return rc;
	/* nobody waits for an undecided step; what --grad none has committed must have the rest of its pieces */
	if (mt_stopping && !mt_stage_alive(s->run, MT_STEP) &&
		mt_word_phase(mt_txn_word(s->run, s->msg.k)) == MT_ACCUMULATE)
		return GONE;
	double began = mt_now();
	mt_stage_activity(s->run, activity, arg);
	mt_wait(s->run, seen, 100);
	look_after_peers(s);
	double now = mt_now();
	trace_wait(s->dev->trace, activity == MT_ACT_WAIT_GRAD_ROOM, (uint32_t)arg, began, now);
	s->waited += (uint64_t)((now - began) * 1e9);
	return 0;
}

/* ---- batches ---- */

static int batch_take(struct stream *s, const void *block)
{
	int rc = batch_fits(&s->msg, mt_ring_block(s->batch));

	if (rc) return rc;
	memcpy(s->host, block, (size_t)s->msg.batch.rows * s->msg.batch.seq * 12);
	return batch_check(&s->msg, s->host, s->geo->vocab);
}

static int micro_serve(struct stream *s)
{
	double began = mt_now();

	s->waited = 0;
	int rc = schedule_micro(s);
	if (rc) return rc;
	*mt_counter(s->run, 0) += 1;
	*mt_counter(s->run, 1) += (uint64_t)s->msg.batch.rows * s->msg.batch.seq;
	*mt_counter(s->run, 5) += (uint64_t)((mt_now() - began) * 1e9) - s->waited;
	*mt_counter(s->run, 6) += (uint64_t)(s->plan.predicted * 1e9);
	return 0;
}

/* The batch at the head of the ring: 0 done or dropped, GONE, or -ex. Tries are the run's only clock: after a load the
 * numbers of txns begin again, and a message from before the load may have any. What a newer try than the newest word's
 * means is only known when the word has been read again. */
static int batch_serve(struct stream *s, const void *block)
{
	uint64_t w = mt_txn_word(s->run, mt_txn_newest(s->run));
	int32_t newer_attempt = (int32_t)((s->msg.attempt - mt_word_attempt(w)) << 8);

	if (newer_attempt > 0) return STALE;
	int rc = stream_wanted(s);
	if (rc < 0 || rc == GONE) return rc;
	if (rc == STALE) {
		mt_ring_pop(s->batch);
		return 0;
	}
	if (s->msg.kind != MT_MSG_BATCH || (s->msg.txn_kind != MT_TRAIN && s->msg.txn_kind != MT_EVAL))
		return mt_fail(MT_EX_PEER, "batch.%d: message of kind %u, %u", s->index, s->msg.kind, s->msg.txn_kind);
	rc = batch_take(s, block);
	if (!mt_stage_mine(s->run)) /* what was copied may be a later message's */
		return mt_stage_check(s->run);
	if (rc)
		return mt_fail_in(rc, "batch.%d: step %llu, micro-batch %u", s->index, (unsigned long long)s->msg.step,
			s->msg.micro);
	mt_ring_pop(s->batch);
	rc = micro_serve(s);
	return rc == STALE ? 0 : rc;
}

/* A signal ends the stream between steps: a step that is open is finished as long as somebody drives it. */
static bool may_leave(struct stream *s)
{
	return mt_word_phase(mt_txn_word(s->run, mt_txn_newest(s->run))) != MT_ACCUMULATE ||
		!mt_stage_alive(s->run, MT_STEP);
}

int serve(struct stream *s)
{
	for (;;) {
		uint32_t seen = mt_event(s->run);
		const void *block;
		int rc;

		if ((rc = stream_run_state(s)) || (rc = mt_run_check(s->run)) || (rc = mt_ring_check(s->batch)))
			return rc < 0 ? rc : 0;
		rc = STALE;
		s->sent = false;
		if (mt_ring_peek(s->batch, 0, &s->msg, &block)) rc = batch_serve(s, block);
		if (rc == GONE) return 0;
		if (rc < 0) return rc;
		if (rc == 0) continue;
		if (mt_stopping && may_leave(s)) return 0;
		double began = mt_now();
		mt_stage_activity(s->run, MT_ACT_WAIT_BATCH, 0);
		mt_wait(s->run, seen, 100);
		look_after_peers(s);
		*mt_counter(s->run, 4) += (uint64_t)((mt_now() - began) * 1e9);
	}
}
