/* options.c: the options table and the checks that need no run. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "options.h"

#define BATCH_MAX (1u << 24)
#define STEPS_MAX ((1u << 24) - 1) /* the optimizer's journal has 24 bits for a step */

static struct options o = {
	.hyperparams = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip = 1},
	.wait = 10,
	.max_skipped = 20,
};
static const char *schedule_name = "linear", *pack_name = "docs", *long_name = "split", *loss_name = "nll", *input,
				  *warmup;
static uint64_t warmup_millionths; /* --warmup as a percentage of --steps: whole numbers, so that 7% of 100 is 7 */
static bool lr_given, decay_given, min_lr_given, until_given, stop_given;
static bool loss_given[MT_LOSS_OPTIONS];
static char loss_help[MT_LOSS_OPTIONS][LOSS_HELP];

#define LOSS_OPTION(which, name, ...) \
	{name, OPT_DOUBLE, &o.objective.option[MT_##which], "X", loss_help[MT_##which], &loss_given[MT_##which], \
		.least = -INFINITY},

static const struct mt_opt table[] = {
	{"steps", OPT_U64, &o.schedule.steps, "N", "number of the last step; length of the learning rate's schedule",
		.least = 1, .most = STEPS_MAX},
	{"until", OPT_U64, &o.until, "M", "stop after step M (default: --steps)", &until_given, .least = 1},
	{"batch", OPT_U64, &o.batch, "SEQS", "rows a step"},
	{"micro", OPT_U64, &o.micro, "SEQS", "rows a micro-batch (default: --batch)"},
	{"seq", OPT_U64, &o.seq, "T", "tokens a row"},
	{"lr", OPT_DOUBLE, &o.schedule.lr, "X", "peak learning rate", &lr_given},
	{"warmup", OPT_STR, &warmup, "STEPS|P%", "warm-up steps of the learning rate, or percent of --steps (default: 0)"},
	{"schedule", OPT_CHOICE, &schedule_name, "linear|cosine|wsd|constant", "schedule of the learning rate"},
	{"decay", OPT_U64, &o.schedule.decay, "STEPS", "wsd: number of steps at the end in which the rate falls",
		&decay_given},
	{"min-lr", OPT_DOUBLE, &o.schedule.min_lr, "X", "cosine, wsd: rate at the end (default: 0)", &min_lr_given},
	{"wd", OPT_DOUBLE, &o.hyperparams.decay, "X", "weight decay (default: 0)"},
	{"beta1", OPT_DOUBLE, &o.hyperparams.beta1, "X", "Adam's first moment, Lion's; SGD's momentum"},
	{"beta2", OPT_DOUBLE, &o.hyperparams.beta2, "X", "Adam's second moment, Lion's m (for it 0.99)", &o.beta2_given},
	{"eps", OPT_DOUBLE, &o.hyperparams.eps, "X", "Adam's epsilon"},
	{"clip", OPT_DOUBLE, &o.hyperparams.clip, "X", "maximum gradient norm (clipping); 0: off, as with --grad none",
		&o.clip_given},
	{"loss", OPT_CHOICE, &loss_name, MT_LOSS_CHOICE, "what is minimized"},
	LOSS_OPTIONS(LOSS_OPTION){"pack", OPT_CHOICE, &pack_name, "docs|concat|none",
		"documents to rows: several, one stream that is cut, or one a row"},
	{"long", OPT_CHOICE, &long_name, "split|drop|truncate", "what becomes of documents longer than a row"},
	{"eval", OPT_STR, &o.eval, "FILE", "records to evaluate on"},
	{"eval-every", OPT_U64, &o.eval_every, "N", "evaluate every N steps, before the first and after the last"},
	{"stop-after", OPT_U64, &o.stop_after, "N", "stop after N evaluations in a row without a lower eval loss",
		&stop_given, .least = 1},
	{"shares", OPT_STR, &o.shares, "N,N...",
		"mt-streams on devices of several types: how many micro-batches each gets of so many (default: alike)"},
	{"ckpt-every", OPT_U64, &o.ckpt_every, "N", "save a checkpoint every N steps and after the last"},
	{"max-skipped", OPT_U64, &o.max_skipped, "N", "stop after N skipped steps in a row, 0: never"},
	{"input", OPT_CHOICE, &input, "new", "stdin is other data than the run was trained on so far"},
	{"metrics", OPT_STR, &o.metrics, "FILE",
		"write metrics to FILE too, each step once; later steps' lines are removed"},
	{"allow-image-tokens", OPT_FLAG, &o.allow_media, NULL,
		"models with images: take records with tokens that stand for images, video or sounds"},
	{"own-metrics", OPT_FLAG, &o.own_metrics, NULL,
		"refuse its FILE unless it is absent or a plain file of this user, no link", .with = "--metrics"},
	{"wait", OPT_DOUBLE, &o.wait, "S", "seconds to wait for a stage that is missing"},
	MT_OPT_RING(o.rings),
	{"check", OPT_FLAG, &o.check, NULL,
		"check the options and exit; with --config also the model and --eval's records"},
	{"count", OPT_FLAG, &o.count, NULL, "count stdin's documents, rows and steps, print them as JSON and exit"},
	{"config", OPT_STR, &o.config, "FILE|DIR", "the model's config.json, or its directory", .with = "--check --count"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-step",
	.usage = "mt-step [RUN] --steps N --batch SEQS --seq T --lr X [options] < records > metrics\n"
			 "mt-step --count --batch SEQS --seq T [options] < records",
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

static void check_counts(void)
{
	if (!o.schedule.steps) mt_die(MT_EX_USAGE, "--steps N is needed, N at least 1");
	if (!until_given) o.until = o.schedule.steps;
	if (o.until > o.schedule.steps) mt_die(MT_EX_USAGE, "--until is above --steps");
	check_rows();
	if (!o.micro) o.micro = o.batch;
	if (o.micro > o.batch) mt_die(MT_EX_USAGE, "--micro is above --batch");
	if ((o.batch + o.micro - 1) / o.micro > MT_MICROS)
		mt_die(MT_EX_USAGE, "--batch makes more than %d micro-batches of --micro", MT_MICROS);
	if (!o.eval != !o.eval_every) mt_die(MT_EX_USAGE, "--eval and --eval-every need each other");
	if (stop_given && !o.eval) mt_die(MT_EX_USAGE, "--stop-after needs --eval");
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
	mt_must(schedule_parse(schedule_name, &s->kind));
	if (!lr_given) mt_die(MT_EX_USAGE, "--lr X is needed");
	bool floors = s->kind == SCHEDULE_COSINE || s->kind == SCHEDULE_WSD;
	if (min_lr_given && !floors) mt_die(MT_EX_USAGE, "--min-lr goes with --schedule cosine or wsd");
	if (s->min_lr > s->lr) mt_die(MT_EX_USAGE, "--min-lr: 0 to --lr");
	if (decay_given != (s->kind == SCHEDULE_WSD)) mt_die(MT_EX_USAGE, "--decay and --schedule wsd need each other");
	if (s->kind == SCHEDULE_WSD && (s->warmup > s->steps || s->decay > s->steps - s->warmup))
		mt_die(MT_EX_USAGE, "--warmup and --decay together are more than --steps");
}

/* --loss, and the options that belong to some losses */
static void check_loss(void)
{
	struct objective *l = &o.objective;
	mt_must(mt_loss_parse(loss_name, &l->kind));
	loss_check_options(l, loss_given);
	if (l->kind != MT_NLL && (o.pack & PACK_HOW) == PACK_CONCAT)
		mt_die(MT_EX_USAGE, "--pack concat cuts the input anywhere, and --loss %s needs whole documents", loss_name);
}

void options_check_seq(const struct options *opt, const struct mt_geometry *g)
{
	if (opt->seq > g->max_position && g->flags & MT_POSITIONS)
		mt_die(MT_EX_CONFIG, "--seq %llu is above %u tokens: the model has learned no more positions",
			(unsigned long long)opt->seq, g->max_position);
	if (opt->seq > g->max_position && g->flags & MT_SHORT_ROWS)
		mt_die(MT_EX_CONFIG,
			"--seq %llu is above %u tokens: there this model's rope (dynamic or longrope) or indexer is not supported",
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
	struct vocabulary v = vocabulary_of(opt, mt_geometry(run), config, bytes);
	v.top = mt_control(run)->top;
	return v;
}

void options_parse(struct options *out, int argc, char **argv)
{
	const char *run = NULL;
	loss_help_make(loss_help);
	mt_cli(&program, argc, argv, &run, 1);
	if (o.count) { /* no run, and no training: the other options may be those of the training to come */
		check_rows();
	} else {
		o.run = mt_cli_run(run);
		check_warmup();
		check_counts();
		check_schedule();
		if (o.hyperparams.beta1 >= 1) mt_die(MT_EX_USAGE, "--beta1: 0 to below 1");
		if (o.hyperparams.beta2 >= 1) mt_die(MT_EX_USAGE, "--beta2: 0 to below 1");
	}
	pack_how_parse(pack_name, &o.pack);
	pack_long_parse(long_name, &o.pack);
	check_loss();
	o.input_new = input != NULL;
	if (!o.check && isatty(STDIN_FILENO)) mt_die(MT_EX_USAGE, "stdin is a terminal; records are read there");
	*out = o;
}
