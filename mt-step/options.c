/* options.c: the options table and the checks that need no run. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "mt/error.h"
#include "mt/run.h"
#include "options.h"

#define BATCH_MAX (1u << 24)
#define STEPS_MAX ((1u << 24) - 1) /* the optimizer's journal has 24 bits for a step */

static struct options o = {
	.schedule = {.kind = SCHEDULE_LINEAR},
	.hyperparams = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip = 1},
	.wait = 10,
	.max_skipped = 20,
};
static const char *schedule_name, *pack_name, *long_name, *loss_name, *input, *warmup;
static uint64_t warmup_millionths; /* --warmup as a percentage of --steps: whole numbers, so that 7% of 100 is 7 */
static bool lr_given, decay_given, min_lr_given, until_given, stop_given;
static bool loss_given[MT_LOSS_OPTIONS];
static char losses_help[LOSS_HELP], loss_help[MT_LOSS_OPTIONS][LOSS_HELP];

#define LOSS_OPTION(which, name, ...) \
	{name, OPT_DOUBLE, &o.objective.option[MT_##which], "X", loss_help[MT_##which], &loss_given[MT_##which]},

static const struct mt_opt table[] = {
	{"steps", OPT_U64, &o.schedule.steps, "N", "number of the last step; length of the learning rate's schedule", NULL},
	{"until", OPT_U64, &o.until, "M", "stop after step M (default: --steps)", &until_given},
	{"batch", OPT_U64, &o.batch, "SEQS", "rows a step", NULL},
	{"micro", OPT_U64, &o.micro, "SEQS", "rows a micro-batch (default: --batch)", NULL},
	{"seq", OPT_U64, &o.seq, "T", "tokens a row", NULL},
	{"lr", OPT_DOUBLE, &o.schedule.lr, "X", "peak learning rate", &lr_given},
	{"warmup", OPT_STR, &warmup, "STEPS|P%", "warm-up steps of the learning rate, or percent of --steps (default: 0)",
		NULL},
	{"schedule", OPT_STR, &schedule_name, "NAME", "linear (default), cosine, wsd or constant", NULL},
	{"decay", OPT_U64, &o.schedule.decay, "STEPS", "wsd: number of steps at the end in which the rate falls",
		&decay_given},
	{"min-lr", OPT_DOUBLE, &o.schedule.min_lr, "X", "cosine, wsd: rate at the end (default: 0)", &min_lr_given},
	{"wd", OPT_DOUBLE, &o.hyperparams.decay, "X", "weight decay (default: 0)", NULL},
	{"beta1", OPT_DOUBLE, &o.hyperparams.beta1, "X", "Adam's first moment, Lion's; SGD's momentum (default: 0.9)",
		NULL},
	{"beta2", OPT_DOUBLE, &o.hyperparams.beta2, "X", "Adam's second moment (default: 0.999), Lion's m (0.99)",
		&o.beta2_given},
	{"eps", OPT_DOUBLE, &o.hyperparams.eps, "X", "Adam's epsilon (default: 1e-8)", NULL},
	{"clip", OPT_DOUBLE, &o.hyperparams.clip, "X",
		"maximum gradient norm (clipping); 0: off (default: 1; off with --grad none)", &o.clip_given},
	{"loss", OPT_STR, &loss_name, "NAME", losses_help, NULL},
	LOSS_OPTIONS(LOSS_OPTION){"pack", OPT_STR, &pack_name, "HOW", "docs (default), concat or none", NULL},
	{"long", OPT_STR, &long_name, "HOW", "documents longer than a row: split (default), drop or truncate", NULL},
	{"eval", OPT_STR, &o.eval, "FILE", "records to evaluate on", NULL},
	{"eval-every", OPT_U64, &o.eval_every, "N", "evaluate every N steps, before the first and after the last", NULL},
	{"stop-after", OPT_U64, &o.stop_after, "N", "stop after N evaluations in a row without a lower eval loss",
		&stop_given},
	{"shares", OPT_STR, &o.shares, "N,N...",
		"mt-streams on devices of several types: of each N micro-batches in turn (default: equal devices)", NULL},
	{"ckpt-every", OPT_U64, &o.ckpt_every, "N", "save a checkpoint every N steps and after the last", NULL},
	{"max-skipped", OPT_U64, &o.max_skipped, "N", "stop after N skipped steps in a row, 0: never (default: 20)", NULL},
	{"input", OPT_STR, &input, "new", "stdin is other data than the run was trained on so far", NULL},
	{"metrics", OPT_STR, &o.metrics, "FILE",
		"write metrics to FILE too, each step once; later steps' lines are removed", NULL},
	{"allow-image-tokens", OPT_FLAG, &o.allow_media, NULL,
		"models with images: take records with tokens that stand for images, video or sounds", NULL},
	{"own-metrics", OPT_FLAG, &o.own_metrics, NULL,
		"refuse the FILE of --metrics unless it is absent or a plain file of this user, no link", NULL},
	{"wait", OPT_DOUBLE, &o.wait, "S", "seconds to wait for a stage that is missing (default: 10)", NULL},
	{"ring", OPT_LIST, &o.rings, "FROM=TO", "use ring TO in place of FROM", NULL},
	{"check", OPT_FLAG, &o.check, NULL, "check the options and exit; with --config also the model and --eval's records",
		NULL},
	{"count", OPT_FLAG, &o.count, NULL, "count stdin's documents, rows and steps, print them as JSON and exit", NULL},
	{"config", OPT_STR, &o.config, "FILE", "with --check, --count: the model's config.json", NULL},
	{NULL, OPT_FLAG, NULL, NULL, NULL, NULL},
};

static const struct mt_program program = {
	.name = "mt-step",
	.usage = "mt-step RUN --steps N --batch SEQS --seq T --lr X [options] < records > metrics\n"
			 "mt-step --count --batch SEQS --seq T [--pack HOW] [--long HOW] [--config FILE] < records",
	.about =
		"Drives the training of RUN: packs the records on stdin into rows, deals them to mt-stream as micro-batches,\n"
		"and writes one JSON object a step on stdout.",
	.opts = table,
};

static void check_rows(void)
{
	if (!o.batch || o.batch > BATCH_MAX) mt_die(MT_EX_USAGE, "--batch SEQS is needed, 1 to %u", BATCH_MAX);
	if (o.seq < 2 || o.seq > SEQ_MAX) mt_die(MT_EX_USAGE, "--seq T is needed, 2 to %u", SEQ_MAX);
}

static void check_pack(void)
{
	if (!pack_how_parse(pack_name ? pack_name : "docs", &o.pack))
		mt_die(MT_EX_USAGE, "--pack: '%s' is not docs, concat or none", pack_name);
	if (!pack_long_parse(long_name ? long_name : "split", &o.pack))
		mt_die(MT_EX_USAGE, "--long: '%s' is not split, drop or truncate", long_name);
}

static void check_counts(void)
{
	if (!o.schedule.steps) mt_die(MT_EX_USAGE, "--steps N is needed, N at least 1");
	if (o.schedule.steps > STEPS_MAX) mt_die(MT_EX_USAGE, "--steps: at most %u", STEPS_MAX);
	if (!until_given) o.until = o.schedule.steps;
	if (!o.until) mt_die(MT_EX_USAGE, "--until: at least 1");
	if (o.until > o.schedule.steps) mt_die(MT_EX_USAGE, "--until is above --steps");
	check_rows();
	if (!o.micro) o.micro = o.batch;
	if (o.micro > o.batch) mt_die(MT_EX_USAGE, "--micro is above --batch");
	if ((o.batch + o.micro - 1) / o.micro > MT_MICROS)
		mt_die(MT_EX_USAGE, "--batch makes more than %d micro-batches of --micro", MT_MICROS);
	if (!o.eval != !o.eval_every) mt_die(MT_EX_USAGE, "--eval and --eval-every need each other");
	if (stop_given && !o.eval) mt_die(MT_EX_USAGE, "--stop-after needs --eval");
	if (stop_given && !o.stop_after) mt_die(MT_EX_USAGE, "--stop-after: at least 1");
}

/* --warmup: a number of steps, or a percentage. */
static void check_warmup(void)
{
	const struct mt_opt steps = {.type = OPT_U64, .value = &o.schedule.warmup};
	char *end;
	if (!warmup || mt_opt_set(&steps, warmup)) return;
	double x = strtod(warmup, &end);
	bool number = end != warmup && isfinite(x) && x >= 0;
	if (number && !strcmp(end, "%")) {
		if (x > 100) mt_die(MT_EX_USAGE, "--warmup: '%s' is above 100%%", warmup);
		warmup_millionths = (uint64_t)llround(x * 1e4);
	} else if (number && !*end && x != floor(x)) {
		mt_die(MT_EX_USAGE,
			"--warmup STEPS wants a whole number: '%s' is a fraction; write a percentage of --steps as 10%%", warmup);
	} else {
		mt_die(MT_EX_USAGE,
			"--warmup: '%s' is not valid: expected a number of steps, or a percentage of --steps such as 10%%", warmup);
	}
}

static void check_schedule(void)
{
	struct schedule *s = &o.schedule;
	/* rounded up, as get_warmup_steps of transformers' TrainingArguments does */
	if (warmup_millionths) s->warmup = (s->steps * warmup_millionths + 999999) / 1000000;
	if (schedule_name) mt_must(schedule_parse(schedule_name, &s->kind));
	if (!lr_given || s->lr < 0) mt_die(MT_EX_USAGE, "--lr X is needed, and not below 0");
	bool floors = s->kind == SCHEDULE_COSINE || s->kind == SCHEDULE_WSD;
	if (min_lr_given && !floors) mt_die(MT_EX_USAGE, "--min-lr goes with --schedule cosine or wsd");
	if (!(s->min_lr >= 0 && s->min_lr <= s->lr)) mt_die(MT_EX_USAGE, "--min-lr: 0 to --lr");
	if (decay_given != (s->kind == SCHEDULE_WSD)) mt_die(MT_EX_USAGE, "--decay and --schedule wsd need each other");
	if (s->kind == SCHEDULE_WSD && (s->warmup > s->steps || s->decay > s->steps - s->warmup))
		mt_die(MT_EX_USAGE, "--warmup and --decay together are more than --steps");
}

static void check_adam(void)
{
	if (!(o.hyperparams.decay >= 0)) mt_die(MT_EX_USAGE, "--wd: 0 or more");
	if (!(o.hyperparams.beta1 >= 0 && o.hyperparams.beta1 < 1)) mt_die(MT_EX_USAGE, "--beta1: 0 to below 1");
	if (!(o.hyperparams.beta2 >= 0 && o.hyperparams.beta2 < 1)) mt_die(MT_EX_USAGE, "--beta2: 0 to below 1");
	if (!(o.hyperparams.eps >= 0)) mt_die(MT_EX_USAGE, "--eps: 0 or more");
	if (!(o.hyperparams.clip >= 0)) mt_die(MT_EX_USAGE, "--clip: 0 or more");
	if (!(o.wait >= 0)) mt_die(MT_EX_USAGE, "--wait: 0 or more");
}

/* --loss, and the options that belong to some losses */
static void check_loss(void)
{
	struct objective *l = &o.objective;
	if (loss_name) mt_must(mt_loss_parse(loss_name, &l->kind));
	loss_check_options(l, loss_given);
	if (l->kind != MT_NLL && (o.pack & PACK_HOW) == PACK_CONCAT)
		mt_die(MT_EX_USAGE, "--pack concat cuts the input anywhere, and --loss %s needs whole documents", loss_name);
}

void options_check_seq(const struct options *opt, const struct mt_geometry *g)
{
	if (opt->seq > g->max_position && g->flags & MT_POSITIONS)
		mt_die(MT_EX_CONFIG, "--seq %llu is above %u tokens: the model has learned no more positions",
			(unsigned long long)opt->seq, g->max_position);
	if (opt->seq > g->max_position && g->flags & MT_ROPE_DYNAMIC)
		mt_die(MT_EX_CONFIG,
			"--seq %llu is above %u tokens: there this model's rope (dynamic or longrope) is not supported",
			(unsigned long long)opt->seq, g->max_position);
	if (opt->seq > g->max_position)
		mt_say("--seq %llu is above the model's max_position_embeddings %u", (unsigned long long)opt->seq,
			g->max_position);
}

struct vocabulary vocabulary_of(const struct options *opt, const struct mt_geometry *g, const char *config,
	size_t bytes)
{
	struct vocabulary v = {.size = g->vocab};
	if (*g->wrapper && !opt->allow_media) mt_media_read(config, bytes, &v.media);
	return v;
}

struct vocabulary vocabulary_of_run(const struct options *opt, const struct mt_run *run)
{
	size_t bytes;
	const char *config = mt_config_text(run, &bytes);
	return vocabulary_of(opt, mt_geometry(run), config, bytes);
}

void options_parse(struct options *out, int argc, char **argv)
{
	const char *run = NULL;
	loss_help_make(losses_help, loss_help);
	mt_cli(&program, argc, argv, &run, 1);
	if (o.count) { /* no run, and no training: the other options may be those of the training to come */
		check_rows();
	} else {
		o.run = mt_cli_run(run);
		check_warmup();
		check_counts();
		check_schedule();
		check_adam();
	}
	check_pack();
	check_loss();
	if (input && strcmp(input, "new")) mt_die(MT_EX_USAGE, "--input: expected 'new'");
	o.input_new = input != NULL;
	if (o.own_metrics && !o.metrics) mt_die(MT_EX_USAGE, "--own-metrics goes with --metrics FILE");
	if (o.config && !o.check && !o.count) mt_die(MT_EX_USAGE, "--config goes with --check or --count");
	if (!o.check && isatty(STDIN_FILENO)) mt_die(MT_EX_USAGE, "stdin is a terminal; records are read there");
	*out = o;
}
