/* saves.c: mt-step requests snapshots, mt-optim takes them, mt-ckpt writes them; mt-step reports failures. */
#include "mt/control.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/wait.h"
#include "saves.h"

uint64_t saves_reported(struct mt_run *run)
{
	uint64_t n = mt_snap_failures(run);
	/* a predecessor that released its slot has reported all; one that was killed had no exit code */
	if (!mt_stage_pid(run, MT_STEP)) return n;
	uint64_t reported = atomic_load_explicit(&mt_control(run)->slots[MT_STEP].counters[MT_STEP_saves_reported],
		memory_order_acquire);
	return reported < n ? reported : n;
}

void saves_begin(struct driver *d, uint64_t reported)
{
	d->failed = reported;
	atomic_store_explicit(mt_counter(d->run, MT_STEP_saves_reported), reported, memory_order_release);
}

void saves_watch(struct driver *d)
{
	uint64_t n = mt_snap_failures(d->run);
	if (n == d->failed) return;
	d->failed = n;
	d->save_failed = true;
	uint64_t w = mt_snap(d->run);
	if (mt_snap_state(w) == MT_FAILED)
		mt_say("the save of step %llu failed; training goes on", (unsigned long long)mt_snap_step(w));
	else mt_say("a save failed; training goes on");
}

bool saves_taken(struct driver *d, uint64_t step)
{
	uint64_t w = mt_snap(d->run);
	return mt_snap_step(w) == step && mt_snap_state(w) != MT_SNAP_NONE;
}

void saves_finish(struct driver *d)
{
	double missing = 0;
	for (;;) {
		uint32_t seen = mt_event(d->run);
		uint64_t w = mt_snap(d->run);
		saves_watch(d);
		if (!mt_snap_busy(w)) return;
		mt_stage_activity(d->run, MT_ACT_WAIT_SAVE, mt_snap_step(w));
		if (mt_stage_alive(d->run, MT_CKPT)) missing = 0;
		else if (!missing) missing = mt_now();
		else if (mt_now() - missing > d->o->wait) {
			mt_say("mt-ckpt is gone: the save of step %llu was not finished", (unsigned long long)mt_snap_step(w));
			d->save_failed = true;
			return;
		}
		if (mt_stage_alive(d->run, MT_CKPT) && peers_frozen(d, MT_CKPT)) {
			mt_say("mt-ckpt (pid %d) is stopped (SIGSTOP): the save of step %llu was not finished",
				mt_stage_pid(d->run, MT_CKPT), (unsigned long long)mt_snap_step(w));
			d->save_failed = true;
			return;
		}
		peers_check_run(d);
		mt_wait_on(d->run, seen, 100, MT_ON_SNAP);
	}
}
