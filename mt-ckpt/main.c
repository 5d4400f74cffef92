/* mt-ckpt: loads a run from Hugging Face directories and checkpoints, writes a run as either, verifies them. */
#include <signal.h>
#include "ckpt.h"
#include "cli/cli.h"

static bool weights, new_record, replace, part, copy_tier, as_load, shard_given;
static struct how_load how;
static const char *dtype, *dir, *best, *from;
static uint64_t keep = 2, shard = SHARD_BYTES, vocab, multiple = 1;

static const struct mt_opt options[] = {
	{"weights", OPT_FLAG, &weights, NULL, "only the weights of a checkpoint, at step 0", .with = "load"},
	{"new-record", OPT_FLAG, &new_record, NULL,
		"all but the reproducibility record: another machine or device may continue", .with = "load"},
	{"dtype", OPT_CHOICE, &dtype, "bf16|fp32", "dtype of the weights (default: the run's)", .with = "export"},
	{"replace", OPT_FLAG, &replace, NULL, "replace a DIR that export or save wrote before", .with = "export convert"},
	{"from", OPT_STR, &from, "CHECKPOINT", "the model of a checkpoint, without a run", .with = "export"},
	{"dir", OPT_STR, &dir, "DIR", "directory of the checkpoints step-XXXXXXXX", .with = "serve", .needed = true},
	{"keep", OPT_U64, &keep, "K", "number of checkpoints to keep", .with = "serve", .least = 1},
	{"keep-best", OPT_STR, &best, "METRICS", "keep also the lowest eval_loss of this file of mt-step's",
		.with = "serve"},
	{"shard", OPT_SIZE, &shard, "BYTES", "maximum tensor bytes in a file", &shard_given, .with = "save export serve",
		.least = 1},
	{"threads", OPT_U64, &work_threads, "N",
		"threads that read or write (default: the cores, serve: at most 4 of them)"},
	{"part", OPT_FLAG, &part, NULL, "on one of several nodes: write its part; node 0, the last, takes all parts",
		.with = "save"},
	{"copy-tier", OPT_FLAG, &copy_tier, NULL,
		"copy the tiles of a run with a tier, where hard links would be on the same disk, or cannot be",
		.with = "serve"},
	{"drop-unused", OPT_FLAG, &how.drop, NULL,
		"leave out tensors that the model does not train; without it, they are carried", .with = "load verify"},
	{"as-load", OPT_FLAG, &as_load, NULL, "tensors that load can take from elsewhere may be damaged", .with = "verify"},
	{"turn-end", OPT_STR, &how.turn_end, "ID[,ID]",
		"answers end in this token, which generation_config.json shall have", .with = "load verify"},
	{"resize-vocab", OPT_U64, &vocab, "N",
		"rows for N tokens: new ones are the mean of the old ones, last ones are cut", .with = "convert",
		.needed = true, .least = 1, .most = 1 << 24},
	{"multiple-of", OPT_U64, &multiple, "M", "round N up to a multiple of M", .with = "convert", .least = 1,
		.most = 1 << 16},
	{0},
};

static const struct mt_program program = {
	.name = "mt-ckpt",
	.usage = "mt-ckpt load [RUN] DIR [options]\n"
			 "mt-ckpt save [RUN] DIR [options]\n"
			 "mt-ckpt export [RUN] DIR [options]\n"
			 "mt-ckpt export --from CHECKPOINT DIR [--replace]\n"
			 "mt-ckpt convert FROM DIR --resize-vocab N [options]\n"
			 "mt-ckpt map [RUN]\n"
			 "mt-ckpt verify DIR [options]\n"
			 "mt-ckpt serve [RUN] --dir DIR [options]",
	.about =
		"Loads a Hugging Face directory or a checkpoint into a run, writes a run as either, or verifies a directory.\n"
		"convert writes a directory with another vocabulary, map says where a run has each tensor of an export. "
		"serve writes the checkpoints that mt-step requests during training. RUN defaults to $MT_RUN.",
	.opts = options,
	.verbs = "load save export convert map verify serve",
};

static void check_options(void)
{
	if (from && (dtype || shard_given)) mt_die(MT_EX_USAGE, "--from: the files are those of the checkpoint");
	if (how.turn_end && strspn(how.turn_end, "0123456789,") != strlen(how.turn_end))
		mt_die(MT_EX_USAGE, "--turn-end: '%s' is not a token's number, or two behind one another with a comma",
			how.turn_end);
}

static int run_command(const char *verb, const char *run, const char *path)
{
	enum mt_dtype d = dtype ? mt_dtype_named(dtype) : MT_NONE;
	if (!strcmp(verb, "load")) return ckpt_load(run, path, weights, new_record, &how);
	if (!strcmp(verb, "save")) return ckpt_save(run, path, part, shard);
	if (from) return ckpt_export_from(from, path, replace);
	if (!strcmp(verb, "export")) return ckpt_export(run, path, d, shard, replace);
	if (!strcmp(verb, "convert")) return ckpt_resize(run, path, (vocab + multiple - 1) / multiple * multiple, replace);
	if (!strcmp(verb, "map")) return ckpt_map(run);
	if (!strcmp(verb, "verify")) return ckpt_verify(path, as_load, &how);
	return ckpt_serve(run, dir, keep, best, shard, copy_tier);
}

int main(int argc, char **argv)
{
	const char *operand[3], *run = NULL, *path = NULL;
	int n = mt_cli(&program, argc, argv, operand, 3);
	const char *verb = operand[0];
	bool run_only = !strcmp(verb, "serve") || !strcmp(verb, "map");
	bool verify = !strcmp(verb, "verify"), convert = !strcmp(verb, "convert");
	check_options();
	if (n > 3 - run_only - verify - !!from) mt_die(MT_EX_USAGE, "unexpected operand '%s'; see --help", operand[n - 1]);
	if (run_only) run = mt_cli_run(n == 2 ? operand[1] : NULL);
	else {
		if (n < 2 + convert) mt_die(MT_EX_USAGE, "%s needs %sDIR; see --help", verb, convert ? "FROM and " : "");
		path = operand[n - 1];
		if (convert) run = operand[1];
		else if (!verify && !from) run = mt_cli_run(n == 3 ? operand[1] : NULL);
	}

	if (!verify) mt_signals(true);
	signal(SIGXFSZ, SIG_IGN); /* beyond the file size limit, write fails with EFBIG, and what was written is deleted */
	int rc = run_command(verb, run, path);
	if (rc < 0 && mt_stopping) mt_die_of_signal(mt_stopping);
	return -mt_must(rc);
}
