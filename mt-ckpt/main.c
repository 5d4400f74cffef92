/* mt-ckpt: a run's state and the disk: Hugging Face directories in and out, checkpoints, verification. */
#include <signal.h>
#include "ckpt.h"
#include "cli/cli.h"

static struct {
	bool weights, new_record, new_record_seen, dtype_seen, dir_seen, keep_seen, weights_seen, shard_seen;
	bool replace, replace_seen;
} given;
static const char *dtype, *dir;
static uint64_t keep = 2, shard = SHARD_BYTES;

static const struct mt_opt options[] = {
	{"weights", OPT_FLAG, &given.weights, NULL, "load: only weights, although run.json is there", &given.weights_seen},
	{"new-record", OPT_FLAG, &given.new_record, NULL,
		"load: all but the run record: another machine or device goes on, with other bits", &given.new_record_seen},
	{"dtype", OPT_STR, &dtype, "bf16|fp32", "export: dtype of the weights (default: the run's)", &given.dtype_seen},
	{"replace", OPT_FLAG, &given.replace, NULL, "export: replace a DIR that export or save wrote before",
		&given.replace_seen},
	{"dir", OPT_STR, &dir, "DIR", "serve: where checkpoints step-XXXXXXXX go", &given.dir_seen},
	{"keep", OPT_U64, &keep, "K", "serve: how many checkpoints stay (default: 2)", &given.keep_seen},
	{"shard", OPT_SIZE, &shard, "BYTES", "save, export, serve: tensor bytes of a file at most (default: 5 GB)",
		&given.shard_seen},
	{0},
};

static const struct mt_program program = {
	.name = "mt-ckpt",
	.usage = "mt-ckpt load [RUN] DIR [--weights] [--new-record]\n"
			 "mt-ckpt save [RUN] DIR\n"
			 "mt-ckpt export [RUN] DIR [--dtype bf16|fp32] [--replace]\n"
			 "mt-ckpt verify DIR\n"
			 "mt-ckpt serve [RUN] --dir DIR [--keep K]",
	.about =
		"Loads a Hugging Face directory or a checkpoint into a run, writes a run as either, verifies a directory,\n"
		"or serves a run: saves the checkpoints that mt-step asks for. RUN omitted is $MT_RUN.",
	.opts = options,
};

enum { WEIGHTS = 1, DTYPE = 2, DIRECTORY = 4, KEEP = 8, SHARD = 16, NEW_RECORD = 32, REPLACE = 64 };

static const struct command {
	const char *name;
	int operands, options;
} commands[] = {
	{"load", 2, WEIGHTS | NEW_RECORD},
	{"save", 2, SHARD},
	{"export", 2, DTYPE | SHARD | REPLACE},
	{"verify", 1, 0},
	{"serve", 1, DIRECTORY | KEEP | SHARD},
};

static void check_option(const struct command *c, bool seen, int option, const char *name)
{
	if (seen && !(c->options & option)) mt_die(MT_EX_USAGE, "%s has no option --%s", c->name, name);
}

static void check_options(const struct command *c)
{
	check_option(c, given.weights_seen, WEIGHTS, "weights");
	check_option(c, given.new_record_seen, NEW_RECORD, "new-record");
	check_option(c, given.dtype_seen, DTYPE, "dtype");
	check_option(c, given.replace_seen, REPLACE, "replace");
	check_option(c, given.dir_seen, DIRECTORY, "dir");
	check_option(c, given.keep_seen, KEEP, "keep");
	check_option(c, given.shard_seen, SHARD, "shard");
	if (dtype && strcmp(dtype, "bf16") && strcmp(dtype, "fp32"))
		mt_die(MT_EX_USAGE, "--dtype: '%s' is neither bf16 nor fp32", dtype);
	if (keep < 1) mt_die(MT_EX_USAGE, "--keep: at least 1 checkpoint must stay");
	if (shard < 1) mt_die(MT_EX_USAGE, "--shard: 0 bytes hold nothing");
	if (!strcmp(c->name, "serve") && !dir) mt_die(MT_EX_USAGE, "serve needs --dir DIR");
}

static int run_command(const struct command *c, const char *run, const char *path)
{
	enum mt_dtype d = !dtype ? MT_NONE : !strcmp(dtype, "bf16") ? MT_BF16 : MT_FP32;

	if (!strcmp(c->name, "load")) return ckpt_load(run, path, given.weights, given.new_record);
	if (!strcmp(c->name, "save")) return ckpt_save(run, path, shard);
	if (!strcmp(c->name, "export")) return ckpt_export(run, path, d, shard, given.replace);
	if (!strcmp(c->name, "verify")) return ckpt_verify(path);
	return ckpt_serve(run, dir, keep, shard);
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
	if (n - 1 > c->operands) mt_die(MT_EX_USAGE, "unexpected operand '%s'; see --help", operand[n - 1]);
	if (!strcmp(c->name, "serve")) run = mt_cli_run(n == 2 ? operand[1] : NULL);
	else {
		if (n < 2) mt_die(MT_EX_USAGE, "%s needs DIR; see --help", c->name);
		path = operand[n - 1];
		if (strcmp(c->name, "verify")) run = mt_cli_run(n == 3 ? operand[1] : NULL);
	}

	if (strcmp(c->name, "verify")) mt_signals(true);
	signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of write, which leaves nothing behind */
	int rc = run_command(c, run, path);
	if (rc < 0 && mt_stopping) mt_die_of_signal(mt_stopping);
	return -mt_must(rc);
}
