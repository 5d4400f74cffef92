/* mt-ckpt: loads a run from Hugging Face directories and checkpoints, writes a run as either, verifies them. */
#include <signal.h>
#include "ckpt.h"
#include "cli/cli.h"

enum {
	WEIGHTS,
	NEW_RECORD,
	DTYPE,
	REPLACE,
	FROM,
	DIRECTORY,
	KEEP,
	KEEP_BEST,
	SHARD,
	THREADS,
	PART,
	COPY_TIER,
	DROP,
	AS_LOAD,
	TURN_END,
	OPTIONS
}; /* in the table's order */
static bool seen[OPTIONS], weights, new_record, replace, part, copy_tier, as_load;
static struct how_load how;
static const char *dtype, *dir, *best, *from;
static uint64_t keep = 2, shard = SHARD_BYTES;

static const struct mt_opt options[] = {
	{"weights", OPT_FLAG, &weights, NULL, "load: only the weights of a checkpoint, at step 0", &seen[WEIGHTS]},
	{"new-record", OPT_FLAG, &new_record, NULL,
		"load: all but the reproducibility record: another machine or device may continue", &seen[NEW_RECORD]},
	{"dtype", OPT_STR, &dtype, "bf16|fp32", "export: dtype of the weights (default: the run's)", &seen[DTYPE]},
	{"replace", OPT_FLAG, &replace, NULL, "export: replace a DIR that export or save wrote before", &seen[REPLACE]},
	{"from", OPT_STR, &from, "CHECKPOINT", "export: the model of a checkpoint, without a run", &seen[FROM]},
	{"dir", OPT_STR, &dir, "DIR", "serve: directory of the checkpoints step-XXXXXXXX", &seen[DIRECTORY]},
	{"keep", OPT_U64, &keep, "K", "serve: number of checkpoints to keep (default: 2)", &seen[KEEP]},
	{"keep-best", OPT_STR, &best, "METRICS", "serve: keep also the lowest eval_loss of this file of mt-step's",
		&seen[KEEP_BEST]},
	{"shard", OPT_SIZE, &shard, "BYTES", "save, export, serve: maximum tensor bytes in a file (default: 5 GB)",
		&seen[SHARD]},
	{"threads", OPT_U64, &work_threads, "N", "threads that read or write; default: the cores, serve: at most 4 of them",
		&seen[THREADS]},
	{"part", OPT_FLAG, &part, NULL, "save, on one of several nodes: write its part; node 0, the last, takes all parts",
		&seen[PART]},
	{"copy-tier", OPT_FLAG, &copy_tier, NULL,
		"serve: copy the tiles of a run with a tier, where hard links would be on the same disk, or cannot be",
		&seen[COPY_TIER]},
	{"drop-unused", OPT_FLAG, &how.drop, NULL,
		"load, verify: leave out tensors that the model does not train; without it, they are carried", &seen[DROP]},
	{"as-load", OPT_FLAG, &as_load, NULL, "verify: tensors that load can take from elsewhere may be damaged",
		&seen[AS_LOAD]},
	{"turn-end", OPT_STR, &how.turn_end, "ID[,ID]",
		"load, verify: answers end in this token, which generation_config.json shall have", &seen[TURN_END]},
	{0},
};

static const struct mt_program program = {
	.name = "mt-ckpt",
	.usage = "mt-ckpt load [RUN] DIR [--weights] [--new-record] [--drop-unused] [--turn-end ID[,ID]]\n"
			 "mt-ckpt save [RUN] DIR [--part]\n"
			 "mt-ckpt export [RUN] DIR [--dtype bf16|fp32] [--replace]\n"
			 "mt-ckpt export --from CHECKPOINT DIR [--replace]\n"
			 "mt-ckpt verify DIR [--as-load] [--drop-unused] [--turn-end ID[,ID]]\n"
			 "mt-ckpt serve [RUN] --dir DIR [--keep K] [--keep-best METRICS] [--copy-tier]",
	.about =
		"Loads a Hugging Face directory or a checkpoint into a run, writes a run as either, or verifies a directory.\n"
		"serve writes the checkpoints that mt-step requests during training. RUN defaults to $MT_RUN.",
	.opts = options,
};

static const struct command {
	const char *name;
	int operands, options; /* bits 1 << WEIGHTS, ... */
} commands[] = {
	{"load", 2, 1 << WEIGHTS | 1 << NEW_RECORD | 1 << THREADS | 1 << DROP | 1 << TURN_END},
	{"save", 2, 1 << SHARD | 1 << THREADS | 1 << PART},
	{"export", 2, 1 << DTYPE | 1 << SHARD | 1 << REPLACE | 1 << FROM | 1 << THREADS},
	{"verify", 1, 1 << THREADS | 1 << DROP | 1 << AS_LOAD | 1 << TURN_END},
	{"serve", 1, 1 << DIRECTORY | 1 << KEEP | 1 << KEEP_BEST | 1 << SHARD | 1 << THREADS | 1 << COPY_TIER},
};

static void check_options(const struct command *c)
{
	for (int i = 0; i < OPTIONS; i++)
		if (seen[i] && !(c->options & 1 << i)) mt_die(MT_EX_USAGE, "%s has no option --%s", c->name, options[i].name);
	enum mt_dtype type = dtype ? mt_dtype_named(dtype) : MT_FP32;
	if (type != MT_BF16 && type != MT_FP32) mt_die(MT_EX_USAGE, "--dtype: '%s' is neither bf16 nor fp32", dtype);
	if (from && (dtype || seen[SHARD])) mt_die(MT_EX_USAGE, "--from: the files are those of the checkpoint");
	if (how.turn_end && strspn(how.turn_end, "0123456789,") != strlen(how.turn_end))
		mt_die(MT_EX_USAGE, "--turn-end: '%s' is not a token's number, or two behind one another with a comma",
			how.turn_end);
	if (keep < 1) mt_die(MT_EX_USAGE, "--keep: at least 1 checkpoint must stay");
	if (shard < 1) mt_die(MT_EX_USAGE, "--shard: 0 bytes hold nothing");
	if (!strcmp(c->name, "serve") && !dir) mt_die(MT_EX_USAGE, "serve needs --dir DIR");
}

static int run_command(const struct command *c, const char *run, const char *path)
{
	enum mt_dtype d = dtype ? mt_dtype_named(dtype) : MT_NONE;
	if (!strcmp(c->name, "load")) return ckpt_load(run, path, weights, new_record, &how);
	if (!strcmp(c->name, "save")) return ckpt_save(run, path, part, shard);
	if (from) return ckpt_export_from(from, path, replace);
	if (!strcmp(c->name, "export")) return ckpt_export(run, path, d, shard, replace);
	if (!strcmp(c->name, "verify")) return ckpt_verify(path, as_load, &how);
	return ckpt_serve(run, dir, keep, best, shard, copy_tier);
}

int main(int argc, char **argv)
{
	const char *operand[3], *run = NULL, *path = NULL;
	int n = mt_cli(&program, argc, argv, operand, 3);
	const struct command *c = NULL;
	for (size_t i = 0; n > 0 && i < sizeof commands / sizeof commands[0]; i++)
		if (!strcmp(operand[0], commands[i].name)) c = &commands[i];
	if (!c) mt_die(MT_EX_USAGE, n ? "no command '%s'; see --help" : "no command; see --help", n ? operand[0] : "");
	check_options(c);
	if (n - 1 > c->operands - (from != NULL))
		mt_die(MT_EX_USAGE, "unexpected operand '%s'; see --help", operand[n - 1]);
	if (!strcmp(c->name, "serve")) run = mt_cli_run(n == 2 ? operand[1] : NULL);
	else {
		if (n < 2) mt_die(MT_EX_USAGE, "%s needs DIR; see --help", c->name);
		path = operand[n - 1];
		if (strcmp(c->name, "verify") && !from) run = mt_cli_run(n == 3 ? operand[1] : NULL);
	}

	if (strcmp(c->name, "verify")) mt_signals(true);
	signal(SIGXFSZ, SIG_IGN); /* beyond the file size limit, write fails with EFBIG, and what was written is deleted */
	int rc = run_command(c, run, path);
	if (rc < 0 && mt_stopping) mt_die_of_signal(mt_stopping);
	return -mt_must(rc);
}
