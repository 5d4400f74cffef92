/* wait.c: every wait for another stage. While it waits, a stream checks that the run and its micro-batch are still
 * there, and aborts the step if a peer has died.
 */
#include "cli/cli.h"
#include "mt/control.h"
#include "mt/ring.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "stream.h"
#include "trace.h"

int run_state(const struct stream *s)
{
	int rc = mt_stage_over(s->run);
	return rc > 0 ? GONE : rc;
}

/* With --grad none the commit comes with the first piece, and the other pieces are needed after it. */
int micro_wanted(const struct stream *s)
{
	uint64_t w = mt_txn_word(s->run, s->taken.msg.k);
	enum mt_phase phase = mt_word_phase(w);
	bool ours = mt_word_k(w) == s->taken.msg.k && mt_word_attempt(w) == s->taken.msg.attempt;
	int rc = run_state(s);
	if (rc) return rc;
	if (ours && phase == MT_ACCUMULATE) return 0;
	if (ours && s->now.sent && s->control->grad == MT_NONE && (phase == MT_APPLY || phase == MT_SKIP)) return 0;
	return STALE;
}

/* Sleep until the doorbell rings for `on` or for the transaction after `seen`, and at most 100 ms; abort the step if a
 * peer has died. Returns ns. */
static uint64_t doze(struct stream *s, uint32_t seen, uint32_t on, enum mt_activity activity, uint32_t unit)
{
	double began = mt_now();
	mt_stage_activity(s->run, activity, unit);
	mt_wait_on(s->run, seen, 100, on | MT_ON_TXN);
	double now = mt_now();
	if (now - s->waits.looked >= 0.1) {
		s->waits.looked = now;
		mt_abort_dead(s->run);
	}
	if (activity != MT_ACT_WAIT_BATCH) trace_wait(s->dev->trace, activity == MT_ACT_WAIT_GRAD_ROOM, unit, began, now);
	return (uint64_t)((now - began) * 1e9);
}

/* One sleep while a micro-batch is under way. This thread alone waits while compute has work left: then the stage is
 * busy. Nothing is launched during the sleep, so compute that has work at its end had some all the time. */
static int micro_wait(struct stream *s, uint32_t seen, uint32_t on, enum mt_activity activity, uint32_t unit)
{
	int rc = micro_wanted(s);
	if (rc || (rc = mt_ring_check(s->grad))) return rc;
	/* an undecided step may be left; one that --grad none has committed needs the rest of its pieces */
	if (mt_stopping && !mt_stage_alive(s->run, MT_STEP) &&
		mt_word_phase(mt_txn_word(s->run, s->taken.msg.k)) == MT_ACCUMULATE)
		return GONE;
	uint64_t slept = doze(s, seen, on, activity, unit);
	if (!s->dev->query(s->dev, s->waits.computing)) return 0;
	s->waits.idle += slept;
	if (activity == MT_ACT_WAIT_WEIGHTS) mt_count(s->run, MT_STREAM_update_wait_ns, slept);
	return 0;
}

int weights_wait(struct stream *s, uint32_t u)
{
	for (int i = 0; i < s->unit[u].origins; i++) {
		uint32_t unit = s->unit[u].origin[i].unit;
		for (;;) {
			uint32_t seen = mt_event(s->run);
			if (mt_version(s->run, unit) >= s->taken.msg.batch.version) break;
			int rc = micro_wait(s, seen, MT_ON_VERSION, MT_ACT_WAIT_WEIGHTS, unit);
			if (rc) return rc;
		}
	}
	return 0;
}

void *room_ahead(const struct stream *s, uint64_t ahead)
{
	if (s->requested.without & WITHOUT_PIECES && (ahead || mt_ring_used(s->grad))) return NULL;
	return mt_ring_reserve_ahead(s->grad, ahead);
}

int room_wait(struct stream *s, uint32_t unit, void **block)
{
	for (;;) {
		uint32_t seen = mt_event(s->run);
		if ((*block = room_ahead(s, 0))) return micro_wanted(s);
		int rc = micro_wait(s, seen, mt_ring_on_room(s->grad), MT_ACT_WAIT_GRAD_ROOM, unit);
		if (rc) return rc;
	}
}

void batch_wait(struct stream *s, uint32_t seen)
{
	mt_count(s->run, MT_STREAM_wait_ns, doze(s, seen, mt_ring_on_messages(s->batch), MT_ACT_WAIT_BATCH, 0));
}

int record_wait(const struct stream *s, uint32_t seen)
{
	mt_wait(s->run, seen, 100);
	return mt_stopping ? GONE : run_state(s);
}
