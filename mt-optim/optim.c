/* mt-optim: gradients in, AdamW, new weights out. */
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "optim.h"

/* ---- options */

static uint64_t threads;
static struct mt_strings rings;
static const char *update = "late";

static const struct mt_opt options[] = {
	{"threads", OPT_U64, &threads, "N", "threads of the update (default: half of the cores; all but one for each GPU)"},
	{"update", OPT_CHOICE, &update, "late|early",
		"early: where nothing clips, each unit as soon as its gradient is complete"},
	MT_OPT_RING(rings),
	{0},
};

static const struct mt_program program = {
	.name = "mt-optim",
	.usage = "mt-optim [RUN] [options]",
	.about = "Adds the gradients that the mt-streams of a run send, clips them, and updates the weights by\n"
			 "AdamW, Lion or SGD. Runs until SIGTERM or SIGINT, or until the run is gone.",
	.opts = options,
};

/* ---- start */

static int apply_step(void *optim, const struct mt_attempt *at)
{
	struct optim *o = optim;
	struct scalars a = update_scalars((enum mt_optim)o->control->optim, at->t, &at->hyperparams, at->clip_factor);
	if (o->direct ? apply_direct(o, at, &a) : apply(o, at, &a)) return 0;
	mt_say("stopped in the update of step %llu: mt-tier is not running, and has tiles of it",
		(unsigned long long)at->step);
	return 1;
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
	o->driver.arg = o;
	o->driver.begin = accumulate_begin;
	o->driver.accumulate = accumulate_round;
	o->driver.apply = apply_step;
	int rc = mt_run_attach(&o->run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS, -1, &mt_stopping);
	for (int i = 0; !rc && i < rings.n; i++) rc = mt_ring_map(o->run, rings.v[i]);
	if (!rc) rc = mt_optimizer_open(&o->driver, o->run);
	if (rc < 0 && mt_stopping) exit(0);
	mt_must(rc);
	o->control = mt_control(o->run);
	o->partitions = mt_partitions(o->run);
	o->g_bf16 = o->control->grad == MT_BF16;
	o->direct = o->control->grad == MT_NONE;
	mt_must(units_make(o));
	early_open(o, !strcmp(update, "early"));
	if (o->nodes > 1) nodes_open(o);
	o->threads = threads;
	flush_denormals();
}

int main(int argc, char **argv)
{
	const char *run = NULL;
	mt_cli(&program, argc, argv, &run, 1);
	mt_signals(true);
	static struct optim optim;
	struct optim *o = &optim;
	start(o, mt_cli_run(run));
	mt_must(mt_optimizer_serve(&o->driver));
	mt_run_close(o->run); /* an open attempt that we have part of is aborted with our slot */
	return 0;
}
