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

enum option {
	O_CONFIG,
	O_DTYPE,
	O_GRAD,
	O_STATE,
	O_OPTIM,
	O_STEP_TOKENS,
	O_NUMA,
	O_SEED,
	O_JSON,
	O_FORCE,
	O_LIKE,
	O_UNTIL_EOF,
	O_DIR,
	O_PROMETHEUS,
	O_ABI,
	O_MEMORY,
	O_NODE,
	O_STREAMS,
	O_TIER,
	O_TIER_MEMORY,
	O_TIER_TILE,
	O_TIER_SLOTS,
	O_UPDATE,
	O_ID,
	O_COUNT
};

static struct store_options given =
	{.dtype = "bf16", .state = "fp32", .optim = "adamw", .numa = "default", .update = "late", .step_tokens = 128 << 10};
static bool seen[O_COUNT];

static const struct mt_opt options[] = {
	[O_CONFIG] = {"config", OPT_STR, &given.config, "FILE|DIR", "create: the model's config.json, or its directory",
		&seen[O_CONFIG]},
	[O_DTYPE] = {"dtype", OPT_STR, &given.dtype, "TYPE",
		"create: weights in bf16 (exact fp32 master in two halves; "
		"the default) or fp32",
		&seen[O_DTYPE]},
	[O_GRAD] = {"grad", OPT_STR, &given.grad, "TYPE", "create: gradients in fp32 (default), bf16, or none (not kept)",
		&seen[O_GRAD]},
	[O_STATE] = {"state", OPT_STR, &given.state, "TYPE",
		"create: AdamW's m and v in fp32 (default), bf16 or int8 (rounded stochastically); "
		"none: weights alone, for scores and samples",
		&seen[O_STATE]},
	[O_OPTIM] = {"optim", OPT_STR, &given.optim, "RULE", "create: adamw (default), lion or sgd (with momentum)",
		&seen[O_OPTIM]},
	[O_STEP_TOKENS] = {"step-tokens", OPT_SIZE, &given.step_tokens, "N",
		"create: maximum tokens of a micro-batch "
		"(default 128K)",
		&seen[O_STEP_TOKENS]},
	[O_NUMA] = {"numa", OPT_STR, &given.numa, "POLICY",
		"create: default, interleave[:NODES], bind:NODES or "
		"preferred:NODE",
		&seen[O_NUMA]},
	[O_SEED] = {"seed", OPT_U64, &given.seed, "N", "init: the same seed gives the same weights", &seen[O_SEED]},
	[O_JSON] = {"json", OPT_FLAG, &given.json, NULL, "stat, ls: JSON, one object a run and line", &seen[O_JSON]},
	[O_FORCE] = {"force", OPT_FLAG, &given.force, NULL, "rm: also with live stages", &seen[O_FORCE]},
	[O_LIKE] = {"like", OPT_STR, &given.like, "RING", "ring: an existing ring with the same sizes", &seen[O_LIKE]},
	[O_UNTIL_EOF] = {"until-eof", OPT_FLAG, &given.until_eof, NULL,
		"serve: at the end of stdin (a pipe), finish the step, save it in --dir, remove the run", &seen[O_UNTIL_EOF]},
	[O_DIR] = {"dir", OPT_STR, &given.dir, "DIR", "serve --until-eof: directory of the checkpoints step-XXXXXXXX",
		&seen[O_DIR]},
	[O_PROMETHEUS] = {"prometheus", OPT_FLAG, &given.prometheus, NULL, "stat: metrics in Prometheus's text format",
		&seen[O_PROMETHEUS]},
	[O_ABI] = {"abi", OPT_FLAG, &given.abi, NULL, "stat: offset, size and type of every shared field (no RUN)",
		&seen[O_ABI]},
	[O_MEMORY] = {"memory", OPT_FLAG, &given.memory, NULL,
		"stat: memory that a new run may take on this machine, or in this cgroup (no RUN)", &seen[O_MEMORY]},
	[O_NODE] = {"node", OPT_STR, &given.node, "R/N",
		"create: node R (0 to N - 1) of a run on N machines: it has the optimizer's state of its part", &seen[O_NODE]},
	[O_STREAMS] = {"streams", OPT_STR, &given.streams, "N",
		"create: maximum mt-streams of this machine, 64 on all (default 8 / machines, at least 1): each takes memory "
		"for rings",
		&seen[O_STREAMS]},
	[O_TIER] = {"tier", OPT_STR, &given.tier, "DIR[,DIR...]",
		"create: lo, m and v of the last units in files below these directories, on NVMe; mt-tier moves them",
		&seen[O_TIER]},
	[O_TIER_MEMORY] = {"tier-memory", OPT_STR, &given.tier_memory, "BYTES",
		"create --tier: lo, m and v that stay in memory (default: what leaves a tenth of the RAM free)",
		&seen[O_TIER_MEMORY]},
	[O_TIER_TILE] = {"tier-tile", OPT_SIZE, &given.tile, "ELEMS",
		"create --tier: elements of a tile, a multiple of 65536 (default 16M)", &seen[O_TIER_TILE]},
	[O_TIER_SLOTS] = {"tier-slots", OPT_U64, &given.tier_slots, "N",
		"create --tier: tiles that are in memory at once (default 4 a directory)", &seen[O_TIER_SLOTS]},
	[O_UPDATE] = {"update", OPT_STR, &given.update, "WHEN",
		"create --tier: late (default), or early, for a run of mt-optim --update early", &seen[O_UPDATE]},
	[O_ID] = {"id", OPT_STR, &given.id, "DIGITS",
		"create: 32 hexadecimal digits that tell the run from others of its name (default random)", &seen[O_ID]},
	[O_COUNT] = {.name = NULL},
};

static const struct verb {
	const char *name;
	int (*go)(const char *run, const struct store_options *);
	unsigned takes, needs; /* bits of enum option */
	bool optional;         /* RUN may be left out */
	bool ring;             /* takes a ring's name as well */
} verbs[] = {
	{"create", store_create,
		1 << O_CONFIG | 1 << O_DTYPE | 1 << O_GRAD | 1 << O_STATE | 1 << O_OPTIM | 1 << O_STEP_TOKENS | 1 << O_NUMA |
			1 << O_NODE | 1 << O_STREAMS | 1 << O_TIER | 1 << O_TIER_MEMORY | 1 << O_TIER_TILE | 1 << O_TIER_SLOTS |
			1 << O_UPDATE | 1 << O_ID,
		1 << O_CONFIG, false, false},
	{"init", store_init, 1 << O_SEED, 1 << O_SEED, false, false},
	{"serve", store_serve, 1 << O_UNTIL_EOF | 1 << O_DIR, 0, false, false},
	{"stat", store_stat, 1 << O_JSON | 1 << O_PROMETHEUS | 1 << O_ABI | 1 << O_MEMORY, 0, true, false},
	{"ls", store_ls, 1 << O_JSON, 0, true, false},
	{"rm", store_rm, 1 << O_FORCE, 0, false, false},
	{"ring", store_ring, 1 << O_LIKE, 1 << O_LIKE, false, true},
};

static const struct mt_program program = {
	.name = "mt-store",
	.usage = "mt-store create RUN --config FILE|DIR [--dtype bf16|fp32] [--grad fp32|bf16|none] "
			 "[--state fp32|bf16|int8|none] [--optim adamw|lion|sgd] [--step-tokens N] [--numa POLICY] [--node R/N] "
			 "[--streams N] [--tier DIR[,DIR...]] [--tier-memory BYTES] [--tier-tile ELEMS] [--tier-slots N] "
			 "[--update late|early] [--id DIGITS]\n"
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
};

static const struct verb *find_verb(const char *name)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		if (name && strcmp(name, verbs[i].name) == 0) return &verbs[i];
	if (!name) mt_die(MT_EX_USAGE, "no verb: create, init, serve, stat, ls, rm or ring; see --help");
	mt_die(MT_EX_USAGE, "unknown verb '%s'; see --help", name);
}

static void check_options(const struct verb *verb)
{
	for (int i = 0; i < O_COUNT; i++) {
		if (seen[i] && !(verb->takes & 1u << i)) mt_die(MT_EX_USAGE, "%s takes no --%s", verb->name, options[i].name);
		if (!seen[i] && verb->needs & 1u << i)
			mt_die(MT_EX_USAGE, "%s needs --%s %s", verb->name, options[i].name, options[i].arg);
	}
}

int main(int argc, char **argv)
{
	const char *operands[3] = {NULL, NULL, NULL};
	int n = mt_cli(&program, argc, argv, operands, 3);
	const struct verb *verb = find_verb(operands[0]);
	check_options(verb);
	if (verb->ring) { /* the ring's name is the last operand: RUN may be left out before it */
		if (n < 2) mt_die(MT_EX_USAGE, "ring needs the new ring's NAME");
		given.ring = operands[--n];
		operands[n] = NULL;
	} else if (n > 2) mt_die(MT_EX_USAGE, "unexpected operand '%s'; see --help", operands[2]);
	const char *run = verb->optional ? operands[1] : mt_cli_run(operands[1]);
	mt_must(verb->go(run, &given));
	if (fflush(stdout) || ferror(stdout)) mt_die(MT_EX_IO, "stdout: cannot be written");
	return 0;
}
