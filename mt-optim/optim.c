/* mt-optim: gradients in, AdamW, new weights out. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "optim.h"

/* ---- options */

static uint64_t threads;
static struct mt_strings rings;
static const char *update = "late";

static const struct mt_opt options[] = {
	{"threads", OPT_U64, &threads, "N", "threads of the update; default: half of the cores, with a GPU all but one",
		NULL},
	{"update", OPT_STR, &update, "WHEN",
		"late (default), or early: where nothing clips, each unit as soon as its gradient is complete", NULL},
	{"ring", OPT_LIST, &rings, "FROM=TO", "use ring TO in place of ring FROM; may be repeated", NULL},
	{0},
};

static const struct mt_program program = {
	.name = "mt-optim",
	.usage = "mt-optim RUN [--threads N] [--update early|late] [--ring FROM=TO ...]",
	.about = "Adds the gradients that the mt-streams of a run send, clips them, and updates the weights by\n"
			 "AdamW, Lion or SGD. Runs until SIGTERM or SIGINT, or until the run is gone.",
	.opts = options,
};

/* ---- start */

static void open_rings(struct optim *o)
{
	for (int i = 0; i < rings.n; i++) mt_must(mt_ring_map(o->run, rings.v[i]));
	o->streams = mt_streams(o->run);
	for (uint32_t i = 0; i < o->streams; i++) {
		char name[32];
		snprintf(name, sizeof name, "grad.%u", i);
		mt_must(mt_ring_open(o->run, name, &o->grad[i]));
		/* --ring may name one of another kind */
		uint64_t piece = o->control->piece_elems * (o->g_bf16 ? 2 : 4);
		if (!piece || mt_ring_block(o->grad[i]) < piece)
			mt_die(MT_EX_DATA, "ring for %s: blocks of %zu bytes; a gradient piece needs %llu", name,
				mt_ring_block(o->grad[i]), (unsigned long long)piece);
		o->wakes |= mt_ring_on_messages(o->grad[i]);
	}
	mt_must(mt_ring_open(o->run, "save", &o->save));
}

static void start(struct optim *o, const char *name)
{
	o->update = update_choose();
	if (!o->update) {
		struct update_isa isas[UPDATE_ISAS];
		char names[64] = "";
		for (int i = 0, n = update_isas(isas); i < n; i++) strcat(strcat(names, i ? ", " : ""), isas[i].name);
		mt_die(MT_EX_USAGE, "MT_ISA is '%s': this CPU has %s", getenv("MT_ISA"), names);
	}
	int rc = mt_run_attach(&o->run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS, -1, &mt_stopping);
	if (rc < 0 && mt_stopping) exit(0);
	mt_must(rc);
	mt_must(mt_run_has_state(o->run));
	o->control = mt_control(o->run);
	o->partitions = mt_partitions(o->run);
	o->g_bf16 = o->control->grad == MT_BF16;
	o->direct = o->control->grad == MT_NONE;
	rc = mt_stage_claim(o->run, MT_OPTIM, NULL);
	if (rc < 0 && mt_stopping) exit(0);
	mt_must(rc);
	mt_stage_activity(o->run, MT_ACT_STARTING, 0);
	open_rings(o);
	mt_must(units_make(o));
	early_open(o, !strcmp(update, "early"));
	if (o->nodes > 1) nodes_open(o);
	o->wakes |= MT_ON_TXN;
	o->threads = threads;
	flush_denormals();
}

/* ---- serve */

static enum mt_phase phase_of(struct optim *o, uint32_t k)
{
	uint64_t word = mt_txn_word(o->run, k);
	return mt_word_k(word) == k ? mt_word_phase(word) : MT_CLOSED;
}

/* Txn k is committed: bring every unit to its step, then say so. False: asked to stop while waiting to save, or for
 * tiles of a mt-tier that is dead: a successor finishes it. */
static bool finish(struct optim *o, uint32_t k)
{
	uint64_t word = mt_txn_word(o->run, k);
	struct opened op;
	if (!txn_opened(o, k, word, &op)) /* a word that is committed is ours alone to change */
		mt_die(MT_EX_BUG, "txn %u: changed by another stage after its commit", k);
	const struct mt_txn *t = mt_txn(o->run, k);
	if (mt_word_phase(word) == MT_APPLY) {
		struct scalars a = update_scalars((enum mt_optim)o->control->optim, t->t, &op.hyperparams, t->clip_factor);
		op.t = t->t; /* txn k + 1 may be where k - 1 was */
		if (!(o->direct ? apply_direct(o, k, &op, &a) : apply(o, &op, &a))) {
			mt_say("stopped in the update of step %llu: mt-tier is not running, and has tiles of it",
				(unsigned long long)op.step);
			return false;
		}
	} else if (o->nodes == 1)
		for (uint32_t turn = 0; turn < o->n_units; turn++) {
			uint32_t u = mt_unit_of_turn(&o->control->geo, turn);
			if (mt_version(o->run, u) != op.step && !mt_publish(o->run, u, op.step)) not_published(o, u, op.step);
		}
	if (o->nodes > 1) nodes_wait_units(o, op.step);
	if (op.save && !snapshot(o, k, &op)) return false;
	if (o->nodes > 1) nodes_say_finished(o, k); /* after the pins: then the next step may be opened */
	else mt_txn_cas(o->run, k, word, mt_word(k, mt_word_attempt(word), MT_DONE));
	return true;
}

/* The oldest txn that is not done. Txn k + 1 may be open while k is applied, and k + 2 not before. */
static uint32_t oldest_open(struct optim *o)
{
	uint32_t k = mt_txn_newest(o->run);
	enum mt_phase before = k ? phase_of(o, k - 1) : MT_CLOSED;
	if (o->nodes > 1 && k && nodes_finished(o, k - 1)) return k; /* what is left of k - 1 is for other nodes */
	return before == MT_APPLY || before == MT_SKIP ? k - 1 : k;
}

/* Asked to stop: finish the open step as long as an mt-step drives it, and no tile is missing that nobody reads. */
static bool may_leave(struct optim *o, uint32_t k, enum mt_phase phase)
{
	if (!o->stop_requested) o->leave_after = mt_txn_newest(o->run);
	o->stop_requested = true;
	if (early_waits(o) && tier_gives_up(o)) return true;
	return phase != MT_ACCUMULATE || k != o->leave_after || !mt_stage_alive(o->run, MT_STEP);
}

/* One look at everything; true if anything moved. *left: asked to stop, and nothing would be lost. */
static bool serve(struct optim *o, bool *left)
{
	leave_if_lost(o);
	if (o->nodes > 1 && nodes_done(o)) return true;
	uint32_t k = oldest_open(o);
	enum mt_phase phase = phase_of(o, k);
	if ((phase == MT_APPLY || phase == MT_SKIP) && !(o->nodes > 1 && nodes_finished(o, k)))
		return finish(o, k) || (*left = true);
	if (mt_stopping && !nodes_wait(o) && may_leave(o, k, phase)) return *left = true;
	if (phase == MT_ACCUMULATE) return accumulate_round(o, k);
	return accumulate_drop(o, mt_txn_word(o->run, k)) || mt_snap_fail_dead(o->run);
}

int main(int argc, char **argv)
{
	const char *run = NULL;
	mt_cli(&program, argc, argv, &run, 1);
	if (strcmp(update, "early") && strcmp(update, "late"))
		mt_die(MT_EX_USAGE, "--update is '%s': wants early or late", update);
	mt_signals(true);
	static struct optim optim;
	struct optim *o = &optim;
	start(o, mt_cli_run(run));
	double looked = mt_now();
	for (bool left = false; !left;) {
		uint32_t seen = mt_event(o->run);
		if (serve(o, &left)) continue;
		leave_if_gone(o);
		bool tier = early_waits(o);
		mt_stage_activity(o->run,
			tier                       ? MT_ACT_WAIT_TIER
				: o->accumulation.open ? MT_ACT_WAIT_GRADS
									   : MT_ACT_IDLE,
			o->accumulation.txn.step);
		double from = mt_now();
		mt_wait_on(o->run, seen, 100, o->wakes);
		if (o->accumulation.open) mt_count(o->run, MT_OPTIM_wait_ns, (uint64_t)((mt_now() - from) * 1e9));
		if (tier) mt_count(o->run, MT_OPTIM_tier_wait_ns, (uint64_t)((mt_now() - from) * 1e9));
		if (mt_now() - looked < 0.1) continue;
		mt_abort_dead(o->run);
		looked = mt_now();
	}
	mt_run_close(o->run); /* an open attempt that we have part of is aborted with our slot */
	return 0;
}
