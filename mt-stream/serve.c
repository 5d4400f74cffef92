/* serve.c: takes micro-batches off the batch ring, one after another: checks each, drops it if its step is no longer
 * open, plans it, lets the device autotune a new shape, and computes it.
 */
#include <string.h>

#include "batch.h"
#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "stream.h"
#include "trace.h"

/* Where the spans of documents start (mt_layer): of tokens, not of rows */
static void spans_make(struct stream *s)
{
	uint32_t span = mt_layer_most(s->geo).span, seq = s->taken.msg.batch.seq;
	size_t n = (size_t)s->taken.msg.batch.rows * seq;
	const uint32_t *starts = s->taken.host + 2 * n;
	for (size_t i = 0; span && i < n; i++)
		s->taken.spans[i] = starts[i] + ((uint32_t)(i % seq) - starts[i]) / span * span;
}

static int batch_take(struct stream *s, const void *block)
{
	int rc = batch_fits(&s->taken.msg, mt_ring_block(s->batch));
	if (rc) return rc;
	if (s->taken.msg.batch.scores > (s->taken.msg.txn_kind == MT_EVAL ? 3 : 0))
		return mt_fail(MT_EX_PEER, "log-probabilities of kind %u are asked for", s->taken.msg.batch.scores);
	uint32_t top = s->taken.msg.batch.top;
	bool asked = s->taken.msg.batch.scores == 3;
	if (asked ? !top || top > s->geo->vocab || MT_TEACHER_WORDS(top) * 4 > mt_ring_block(s->grad)
			  : top && !s->taken.msg.batch.documents)
		return mt_fail(MT_EX_PEER, "%u tokens of a teacher with log-probabilities of kind %u", top,
			s->taken.msg.batch.scores);
	if (s->geo->flags & MT_POSITIONS && s->taken.msg.batch.seq > s->geo->max_position)
		return mt_fail(MT_EX_PEER, "rows of %u tokens: the model has %u positions", s->taken.msg.batch.seq,
			s->geo->max_position);
	if (s->geo->mtp != 0 && s->taken.msg.batch.documents)
		return mt_fail(MT_EX_PEER, "multi-token prediction has no loss of documents");
	memcpy(s->taken.host, block, batch_bytes(&s->taken.msg));
	rc = batch_check(&s->taken.msg, s->taken.host, s->geo->vocab);
	if (rc == 0) spans_make(s);
	return rc;
}

static int micro_serve(struct stream *s)
{
	double began = mt_now();
	bool new_shape;
	s->waits.idle = 0;
	int rc = plan_make(s, &new_shape);
	if (rc) return rc;
	if (new_shape) {
		mt_stage_activity(s->run, MT_ACT_STARTING, 0);
		if ((rc = schedule_autotune(s))) return rc;
	}
	if ((rc = schedule_run(s))) return rc;
	mt_count(s->run, MT_STREAM_micros, 1);
	mt_count(s->run, MT_STREAM_tokens, (uint64_t)s->taken.msg.batch.rows * s->taken.msg.batch.seq);
	mt_count(s->run, MT_STREAM_busy_ns, (uint64_t)((mt_now() - began) * 1e9) - s->waits.idle);
	mt_count(s->run, MT_STREAM_predicted_ns, (uint64_t)(s->micro->predicted * 1e9));
	return 0;
}

/* The batch at the head of the ring. 0: done or dropped; STALE: look again; GONE, or -ex. Only attempts tell what is
 * newer: after a load the numbers of transactions begin again, and a message from before the load may have any. A batch
 * of a newer attempt than the newest transaction's is one whose transaction has not been read yet. */
static int batch_serve(struct stream *s, const void *block)
{
	uint64_t w = mt_txn_word(s->run, mt_txn_newest(s->run));
	int32_t newer_attempt = (int32_t)((s->taken.msg.attempt - mt_word_attempt(w)) << 8);
	if (newer_attempt > 0) return STALE;
	int rc = micro_wanted(s);
	if (rc < 0 || rc == GONE) return rc;
	if (rc == STALE) {
		mt_ring_pop(s->batch);
		return 0;
	}
	if (s->taken.msg.kind != MT_MSG_BATCH || (s->taken.msg.txn_kind != MT_TRAIN && s->taken.msg.txn_kind != MT_EVAL))
		return mt_fail(MT_EX_PEER, "batch.%d: message of kind %u, %u", s->index, s->taken.msg.kind,
			s->taken.msg.txn_kind);
	if (s->taken.msg.txn_kind == MT_TRAIN && (rc = mt_run_has_state(s->run))) return rc;
	rc = batch_take(s, block);
	if (rc)
		return mt_fail_in(rc, "batch.%d: step %llu, micro-batch %u", s->index, (unsigned long long)s->taken.msg.step,
			s->taken.msg.micro);
	mt_ring_pop(s->batch);
	rc = micro_serve(s);
	return rc == STALE ? 0 : rc;
}

/* After a signal: an open step is finished first, as long as an mt-step drives it. */
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
		if ((rc = run_state(s)) || (rc = mt_run_check(s->run)) || (rc = mt_ring_check(s->batch)))
			return rc < 0 ? rc : 0;
		rc = STALE;
		s->now.sent = false;
		if (mt_ring_peek(s->batch, 0, &s->taken.msg, &block)) rc = batch_serve(s, block);
		if (rc == GONE) return 0;
		if (rc < 0) return rc;
		if (rc == 0) continue;
		if (mt_stopping && may_leave(s)) return 0;
		batch_wait(s, seen);
	}
}
