/* mt-store: make, fill, own, look into and remove a run's memory.
 *
 *     mt-store.c   main: options, which verb takes which
 *     create.c     config.json -> three regions
 *     init.c       random weights (random.c: the generator)
 *     serve.c      claim, watch the stages, ring when one dies
 *     owner.c      serve --until-eof: save and remove a run whose owner has died
 *     stat.c ls.c  what is there, for people and as JSON (look.c: one look at a run; prometheus.c: for Prometheus)
 *     abi.c        the layout of shared memory
 *     memory.c     what a new run may take
 */
#include <stdio.h>

#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "store.h"

int store_rm(const char *run, const struct store_options *o) { return mt_run_remove(run, o->force); }

int store_ring(const char *name, const struct store_options *o)
{
	struct mt_run *run;
	int rc = mt_run_open(&run, name, MT_RUN_RINGS);
	if (rc) return rc;
	rc = mt_ring_make(run, o->ring, o->like);
	mt_run_close(run);
	return rc;
}

static struct store_options given =
	{.dtype = "bf16", .state = "fp32", .optim = "adamw", .numa = "default", .update = "late", .step_tokens = 128 << 10};

static const struct mt_opt options[] = {
	{"config", OPT_STR, &given.config, "FILE|DIR", "the model's config.json, or its directory", .with = "create",
		.needed = true},
	{"dtype", OPT_CHOICE, &given.dtype, "bf16|fp32", "weights; bf16 keeps the exact fp32 master in two halves",
		.with = "create"},
	{"grad", OPT_CHOICE, &given.grad, "fp32|bf16|none", "gradients; none: not kept (default: fp32)", .with = "create"},
	{"state", OPT_CHOICE, &given.state, "fp32|bf16|int8|none",
		"AdamW's m and v; bf16 and int8 are rounded stochastically; none: weights alone, for scores and samples",
		.with = "create"},
	{"optim", OPT_CHOICE, &given.optim, "adamw|lion|sgd", "rule of the update; sgd has momentum", .with = "create"},
	{"train", OPT_STR, &given.train, "PATTERN[,...]",
		"train only tensors with such names (* ? [abc]); a unit without any has weights alone", .with = "create"},
	{"freeze", OPT_STR, &given.freeze, "PATTERN[,...]", "do not train tensors with such names", .with = "create"},
	{"mtp", OPT_DOUBLE, &given.mtp, "X",
		"train the model's block of multi-token prediction, too, whose loss has weight X; 0: do not", .with = "create"},
	{"step-tokens", OPT_SIZE, &given.step_tokens, "N", "maximum tokens of a micro-batch", .with = "create"},
	{"top", OPT_U64, &given.top, "K", "most likely tokens of a teacher that each may have (mt-step --loss kd)",
		.with = "create", .most = 1 << 20},
	{"numa", OPT_STR, &given.numa, "POLICY", "default, interleave[:NODES], bind:NODES or preferred:NODE",
		.with = "create"},
	{"node", OPT_STR, &given.node, "R/N",
		"node R (0 to N - 1) of a run on N machines: it has the optimizer's state of its part", .with = "create"},
	{"streams", OPT_STR, &given.streams, "N",
		"maximum mt-streams of this machine, 64 on all (default: 8 / machines, at least 1); each takes memory",
		.with = "create"},
	{"tier", OPT_STR, &given.tier, "DIR[,DIR...]",
		"lo, m and v of the last units in files below these directories, on NVMe; mt-tier moves them",
		.with = "create"},
	{"tier-memory", OPT_STR, &given.tier_memory, "BYTES",
		"lo, m and v that stay in memory (default: what leaves a tenth of the RAM free)", .with = "create --tier"},
	{"tier-tile", OPT_SIZE, &given.tile, "ELEMS", "elements of a tile, a multiple of 65536 (default: 16M)",
		.with = "create --tier"},
	{"tier-slots", OPT_U64, &given.tier_slots, "N", "tiles that are in memory at once (default: 4 a directory)",
		.with = "create --tier"},
	{"update", OPT_CHOICE, &given.update, "late|early", "with --tier: early is for a run of mt-optim --update early",
		.with = "create"},
	{"id", OPT_STR, &given.id, "DIGITS",
		"32 hexadecimal digits that tell the run from others of its name (default: random)", .with = "create"},
	{"seed", OPT_U64, &given.seed, "N", "the same seed gives the same weights", .with = "init", .needed = true},
	{"quiet", OPT_FLAG, &given.quiet, NULL, "errors and warnings only", .with = "create init"},
	{"until-eof", OPT_FLAG, &given.until_eof, NULL,
		"at the end of stdin (a pipe), finish the step, save it in --dir, remove the run", .with = "serve"},
	{"dir", OPT_STR, &given.dir, "DIR", "directory of the checkpoints step-XXXXXXXX", .with = "serve --until-eof"},
	{"json", OPT_FLAG, &given.json, NULL, "JSON, one object a run and line", .with = "stat ls"},
	{"prometheus", OPT_FLAG, &given.prometheus, NULL, "metrics in Prometheus's text format", .with = "stat"},
	{"abi", OPT_FLAG, &given.abi, NULL, "offset, size and type of every shared field (no RUN)", .with = "stat"},
	{"memory", OPT_FLAG, &given.memory, NULL,
		"memory that a new run may take on this machine, or in this cgroup (no RUN)", .with = "stat"},
	{"force", OPT_FLAG, &given.force, NULL, "also with live stages", .with = "rm"},
	{"like", OPT_STR, &given.like, "RING", "an existing ring with the same sizes", .with = "ring", .needed = true},
	{0},
};

static const struct verb {
	const char *name;
	int (*go)(const char *run, const struct store_options *);
} verbs[] = {{"create", store_create}, {"init", store_init}, {"serve", store_serve}, {"stat", store_stat},
	{"ls", store_ls}, {"rm", store_rm}, {"ring", store_ring}};

static const struct mt_program program = {
	.name = "mt-store",
	.usage = "mt-store create RUN --config FILE|DIR [options]\n"
			 "mt-store init RUN --seed N\n"
			 "mt-store serve RUN [--until-eof --dir DIR]\n"
			 "mt-store stat RUN [--json|--prometheus]\n"
			 "mt-store stat --abi|--memory [--json]\n"
			 "mt-store ls [RUN] [--json]\n"
			 "mt-store rm RUN [--force]\n"
			 "mt-store ring RUN NAME --like RING",
	.about =
		"Makes, fills, owns, shows and removes a run's memory: the weights and optimizer state in shared memory that\n"
		"mt's other programs work on. An omitted RUN is $MT_RUN.",
	.opts = options,
	.verbs = "create init serve stat ls rm ring",
};

int main(int argc, char **argv)
{
	const char *operands[3] = {NULL, NULL, NULL};
	int n = mt_cli(&program, argc, argv, operands, 3);
	const struct verb *verb = verbs;
	while (strcmp(verb->name, operands[0])) verb++;
	if (verb->go == store_ring) { /* the ring's name is the last operand: RUN may be left out before it */
		if (n < 2) mt_die(MT_EX_USAGE, "ring needs the new ring's NAME");
		given.ring = operands[--n];
		operands[n] = NULL;
	} else if (n > 2) mt_die(MT_EX_USAGE, "unexpected operand '%s'; see --help", operands[2]);
	bool optional = verb->go == store_stat || verb->go == store_ls;
	mt_must(verb->go(optional ? operands[1] : mt_cli_run(operands[1]), &given));
	if (fflush(stdout) || ferror(stdout)) mt_die(MT_EX_IO, "stdout: cannot be written");
	return 0;
}
