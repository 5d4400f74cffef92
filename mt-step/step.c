/* mt-step: reads records, opens a run's transactions, deals its micro-batches, writes metrics. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "count.h"
#include "metrics.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "progress.h"
#include "saves.h"
#include "train.h"

static struct driver driver;

static void leave(void) { driver_leave(&driver); }

/* Claim the run's mt-step slot: there is one mt-step. */
static void enter(struct options *o)
{
	struct mt_run *run;
	int rc = mt_run_attach(&run, o->run, MT_RUN_RINGS, o->wait, &mt_stopping);
	if (mt_stopping) mt_die_of_signal(mt_stopping);
	mt_must(rc);
	mt_must(mt_run_has_state(run));
	for (int i = 0; i < o->rings.n; i++) mt_must(mt_ring_map(run, o->rings.v[i]));
	uint64_t reported = saves_reported(run);
	mt_must(mt_stage_claim(run, MT_STEP, NULL));
	driver.run = run; /* from here on leave() releases the slot */
	atexit(leave);
	mt_must(driver_open(&driver, run, o));
	saves_begin(&driver, reported);
}

/* --check: checks that need no run */
static void check_model(const struct options *o)
{
	static struct eval eval;
	struct mt_geometry g;
	struct mt_run *run;
	int rc = mt_run_open(&run, o->run, MT_RUN_READONLY);
	if (rc == -MT_EX_USAGE) mt_must(rc); /* its name */
	if (rc == 0) mt_run_close(run);
	if (!o->config) return;
	char *text;
	mt_must(mt_config_read(o->config, &g, &text));
	struct vocabulary vocab = vocabulary_of(o, &g, text, strlen(text));
	free(text);
	mt_say_dropout(&g);
	options_check_seq(o, &g);
	if (o->eval) mt_must(eval_open(&eval, o, &vocab));
}

/* Do the options fit the run? */
static void check_run(struct options *o)
{
	const struct mt_control *c = mt_control(driver.run);
	const struct mt_geometry *g = mt_geometry(driver.run);
	if (c->optim == MT_LION && !o->beta2_given) o->hyperparams.beta2 = 0.99; /* the paper's; beta1 is the same */
	if (c->grad == MT_NONE) {
		if (o->micro != o->batch)
			mt_die(MT_EX_USAGE, "run '%s' has --grad none: a step is one micro-batch, so --micro must be --batch",
				o->run);
		if (o->clip_given && o->hyperparams.clip > 0)
			mt_die(MT_EX_USAGE, "run '%s' has --grad none, which cannot clip: take --clip 0 or leave it out", o->run);
		o->hyperparams.clip = 0;
	}
	if (g->mtp != 0 && o->objective.kind != MT_NLL)
		mt_die(MT_EX_USAGE, "run '%s' trains multi-token prediction (--mtp), which goes with --loss nll alone", o->run);
	options_check_seq(o, g);
	struct mt_committed was;
	mt_run_committed(driver.run, &was);
	const struct mt_position *p = &was.position;
	bool consumed = p->records || p->offset;
	if (consumed && !o->input_new && (p->seq != o->seq || p->batch != o->batch || p->pack != o->pack))
		mt_die(MT_EX_USAGE,
			"run '%s' was trained with --seq %u --batch %u --pack %s --long %s so far; other values need --input new",
			o->run, p->seq, p->batch, pack_how_name(p->pack), pack_long_name(p->pack));
}

static int finish(int code)
{
	bool newest_failed = driver.save_failed && mt_snap_state(mt_snap(driver.run)) == MT_FAILED;
	if (mt_stopping && !newest_failed) {
		leave();
		mt_die_of_signal(mt_stopping);
	}
	if ((code == 0 || mt_stopping) && driver.save_failed) {
		mt_say("a save has failed, as said above: not every checkpoint of this run is there");
		code = MT_EX_IO;
	}
	if (code == 0 && (metrics_file_failed() || metrics_failed())) code = MT_EX_IO;
	return code;
}

int main(int argc, char **argv)
{
	static struct options o;
	static struct eval eval;
	mt_before_say = progress_clear;
	options_parse(&o, argc, argv);
	if (o.check) check_model(&o);
	else if (o.count) mt_must(count_input(&o, STDIN_FILENO));
	if (o.check || o.count) return 0;
	mt_signals(true);
	signal(SIGPIPE, SIG_IGN);
	enter(&o);
	check_run(&o);
	if (o.metrics)
		mt_must(metrics_file_open(o.metrics, o.own_metrics, mt_run_step(driver.run), mt_txn_newest(driver.run) == 0));
	if (o.eval) {
		struct vocabulary vocab = vocabulary_of_run(&o, driver.run);
		mt_must(eval_open(&eval, &o, &vocab));
	}
	train_resume(&driver, o.eval ? &eval : NULL);
	uint64_t step = mt_run_step(driver.run);
	if (step >= o.until) {
		mt_say("run '%s' is at step %llu already", o.run, (unsigned long long)step);
		saves_finish(&driver);
		return finish(train_nothing(&driver));
	}
	if (o.ckpt_every) peers_need_saver(&driver);
	if (mt_stopping) return finish(0);
	return finish(train(&driver, o.eval ? &eval : NULL, STDIN_FILENO));
}
