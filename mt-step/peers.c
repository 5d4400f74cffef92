/* peers.c: watches stages that mt-step needs: mt-optim, at least one mt-stream, and in a run with a tier mt-tier. */
#include "driver.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "mt/wait.h"

#define LOOK_EVERY 0.02 /* seconds between checks: a check costs system calls */

bool peers_assemble(struct driver *d)
{
	d->n_live = 0;
	int most = d->n_shares ? d->n_shares : d->streams;
	for (int i = 0; i < most; i++)
		if (mt_stage_alive(d->run, MT_STREAM + i)) d->live[d->n_live++] = i;
	for (int s = 0; s < MT_SLOTS; s++) d->participants[s] = mt_stage_word(d->run, s);
	return d->n_live > 0 && (!d->n_shares || d->n_live == d->n_shares);
}

static bool left(struct driver *d, int slot)
{
	/* a new holder has a new generation; a released slot has no pid */
	return mt_stage_word(d->run, slot) != d->participants[slot];
}

bool peers_changed(struct driver *d)
{
	for (int i = 0; i < d->n_live; i++)
		if (left(d, MT_STREAM + d->live[i])) return true;
	if (mt_slot_pid(d->participants[MT_OPTIM]) == 0) { /* mt-optim was not there when the attempt began */
		d->participants[MT_OPTIM] = mt_stage_word(d->run, MT_OPTIM);
		return false;
	}
	return left(d, MT_OPTIM);
}

#define ANY_STREAM MT_SLOTS /* index in driver.lost: there is no mt-stream */

static _Noreturn void give_up(struct driver *d, int slot)
{
	for (int s = MT_STREAM; slot == ANY_STREAM && s < MT_SLOTS; s++)
		if (mt_stage_dead(d->run, s)) slot = s;
	if (slot == ANY_STREAM) mt_die(MT_EX_PEER, "no mt-stream came in %g s", d->o->wait);
	if (mt_stage_dead(d->run, slot))
		mt_die(MT_EX_PEER, "%s is dead and nobody took its place for %g s", mt_stage_name(slot), d->o->wait);
	mt_die(MT_EX_PEER, "no %s came in %g s", mt_stage_name(slot), d->o->wait);
}

/* Did it release its slot, as on a request to stop? Then nobody will take its place. */
static bool released(struct driver *d, int slot)
{
	for (int s = slot == ANY_STREAM ? MT_STREAM : slot; s < (slot == ANY_STREAM ? MT_SLOTS : slot + 1); s++)
		if (mt_stage_dead(d->run, s)) return false;
	return true;
}

/* A stage that is needed: end the program if it has been missing for --wait seconds. */
static void need(struct driver *d, int slot, bool there, double now)
{
	if (there) {
		d->lost[slot] = 0;
		return;
	}
	/* it was requested to stop as we were: the step in accumulate stays undecided */
	if (mt_stopping && driver_phase(d, mt_txn_newest(d->run)) == MT_ACCUMULATE && released(d, slot)) {
		d->abandoned = true;
		return;
	}
	if (!d->lost[slot]) d->lost[slot] = now;
	if (now - d->lost[slot] > d->o->wait) give_up(d, slot);
}

/* Waiting for a stage that is stopped by SIGSTOP may never end. It may be continued soon, so wait a
 * moment. */
bool peers_frozen(struct driver *d, int slot)
{
	const double grace = 2;
	double now = mt_now();
	if (!mt_stopping) return false;
	if (!d->stop_requested) d->stop_requested = now;
	return now - d->stop_requested > grace && mt_stage_stopped(d->run, slot);
}

/* A stop was requested, and the open txn needs a stage that is stopped: leave the txn to our successor. */
static void watch_frozen(struct driver *d)
{
	uint32_t k = mt_txn_newest(d->run);
	bool accumulating = driver_phase(d, k) == MT_ACCUMULATE;
	if (!mt_stopping || (driver_phase(d, k) >= MT_DONE && (k == 0 || driver_phase(d, k - 1) >= MT_DONE))) return;
	for (int s = MT_STREAM; s < MT_SLOTS && !d->frozen && accumulating; s++)
		if (peers_frozen(d, s)) d->frozen = s + 1;
	if (!d->frozen && peers_frozen(d, MT_OPTIM)) d->frozen = MT_OPTIM + 1;
	if (!d->frozen && mt_tier_any(d->run) && peers_frozen(d, MT_TIER)) d->frozen = MT_TIER + 1;
	if (d->frozen) d->abandoned = true;
}

void peers_check_run(struct driver *d)
{
	if (mt_run_state(d->run) == MT_GONE) mt_die(MT_EX_PEER, "run '%s' was removed", d->o->run);
	mt_must(mt_run_dirty(d->run));
	mt_must(mt_run_check(d->run));
	driver_check(d);
}

void peers_watch(struct driver *d)
{
	double now = mt_now();
	if (now - d->looked < LOOK_EVERY) return;
	d->looked = now;
	peers_check_run(d);
	mt_abort_dead(d->run);
	watch_frozen(d);
	bool optim = mt_stage_alive(d->run, MT_OPTIM);
	if (!optim) mt_stage_activity(d->run, MT_ACT_WAIT_OPTIM, 0);
	need(d, MT_OPTIM, optim, now);
	/* its death aborts nothing: mt-optim waits for its successor */
	if (mt_tier_any(d->run)) need(d, MT_TIER, mt_stage_alive(d->run, MT_TIER), now);
	if (mt_nodes(d->run) > 1) need(d, MT_LINK, mt_stage_alive(d->run, MT_LINK), now);
	int streams = 0;
	for (int s = MT_STREAM; s < MT_STREAM + d->streams; s++) {
		bool alive = mt_stage_alive(d->run, s);
		streams += alive;
		if (alive) d->met[s] = true;
		/* one that has released its slot is not needed while others are there */
		bool shares = s - MT_STREAM < d->n_shares;
		if (d->met[s] || shares) need(d, s, alive || (!shares && !mt_stage_dead(d->run, s)), now);
	}
	need(d, ANY_STREAM, streams > 0, now);
	/* only a successor of a dead saver can finish a sealed save, and mt-optim waits for that */
	need(d, MT_CKPT, mt_snap_state(mt_snap(d->run)) != MT_SEALED || mt_stage_alive(d->run, MT_CKPT), now);
}

void peers_need_saver(struct driver *d)
{
	double start = mt_now();
	while (!mt_stage_alive(d->run, MT_CKPT)) {
		uint32_t seen = mt_event(d->run);
		if (mt_now() - start > d->o->wait)
			mt_die(MT_EX_PEER, "--ckpt-every: no mt-ckpt serve came in %g s", d->o->wait);
		if (mt_stopping) return;
		peers_check_run(d);
		mt_wait(d->run, seen, 100);
	}
}
