/* snapshot.c: no pinned unit is overwritten. */
#include <pthread.h>

#include "cli/cli.h"
#include "mt/snapshot.h"
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
