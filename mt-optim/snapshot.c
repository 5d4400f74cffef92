/* snapshot.c: mt-optim's side of a snapshot: pins before done, and no pinned unit overwritten. */
#include <pthread.h>

#include "cli/cli.h"
#include "mt/ring.h"
#include "mt/snapshot.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "optim.h"

static struct waits waits = WAITS(MT_OPTIM_snapshot_wait_ns);

void count_wait(struct optim *o, struct waits *w, int waiters)
{
	pthread_mutex_lock(&w->lock);
	if (!w->waiting) w->from = mt_now();
	w->waiting += waiters;
	if (!w->waiting) mt_count(o->run, w->counter, (uint64_t)((mt_now() - w->from) * 1e9));
	pthread_mutex_unlock(&w->lock);
}

/* Each thread waits for the unit of its partition: one that waits for a later unit must not hold up an earlier
 * one. */
void wait_unpinned(struct optim *o, uint32_t u)
{
	if (!mt_snap_pinned(o->run, u)) return;
	double from = mt_now();
	count_wait(o, &waits, 1);
	mt_stage_activity(o->run, MT_ACT_WAIT_PIN, u);
	while (mt_snap_wait(o->run, u)) leave_if_gone(o);
	mt_stage_activity(o->run, MT_ACT_APPLY, u);
	count_wait(o, &waits, -1);
	mt_count(o->run, MT_OPTIM_wait_ns, (uint64_t)((mt_now() - from) * 1e9));
}

/* Wait until the snapshot before is saved or failed. If its saver has died after sealing, its successor alone can
 * finish it. false: asked to stop */
static bool wait_before(struct optim *o, uint64_t step)
{
	bool over = mt_snap_step(mt_snap(o->run)) == step; /* a predecessor has pinned it */
	mt_stage_activity(o->run, MT_ACT_WAIT_SAVE, step);
	count_wait(o, &waits, 1);
	while (!over && !(over = !mt_snap_wait(o->run, o->n_units))) {
		leave_if_gone(o);
		if (mt_stopping) break;
	}
	count_wait(o, &waits, -1);
	return over;
}

/* Only a wake-up: the word is what counts, so a full ring loses nothing. */
static void send_save(struct optim *o, uint32_t k, uint64_t step)
{
	if (!mt_ring_reserve(o->save)) return;
	mt_ring_push(o->save,
		&(struct mt_msg){.k = k,
			.attempt = mt_word_attempt(mt_txn_word(o->run, k)),
			.kind = MT_MSG_SAVE,
			.txn_kind = MT_TRAIN,
			.step = step});
}

bool snapshot(struct optim *o, uint32_t k, const struct opened *op)
{
	if (!wait_before(o, op->step)) return false;
	const struct mt_txn *t = mt_txn(o->run, k);
	if (!mt_snap_pin(o->run, op->step, t->t, &t->position)) leave_if_lost(o);
	send_save(o, k, op->step);
	mt_snap_fail_dead(o->run);
	return true;
}
