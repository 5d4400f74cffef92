/* plan.c: mt-plan: how a run would compute a step, without a run and without a device: options. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "dry.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "mt/losses.h"

enum { MOST_NODES = 64 }; /* more than a run can have: plans are arithmetic */

static struct requested requested = {.profile = ""};
static struct dry dry = {.r = &requested};
static const char *attention = "cudnn", *loss = "nll", *dtype = "bf16", *grad = "fp32", *state = "fp32",
				  *optim = "adamw", *update = "late", *pack = "docs";
static uint64_t seq, micro, batch, nodes = 1, gpus, micros = 1, top = 64;
static double net;
static bool nodes_given, net_given, micros_given, gpus_given, list;

static const struct mt_opt options[] = {
	{"config", OPT_STR, &dry.config, "FILE", "config.json, or its directory"},
	{"seq", OPT_U64, &seq, "T", "tokens of a row"},
	{"micro", OPT_U64, &micro, "SEQS", "rows of a micro-batch"},
	{"batch", OPT_U64, &batch, "SEQS", "in place of --micro: rows of a step, in micro-batches that make it shortest"},
	{"pack", OPT_CHOICE, &pack, "docs|concat|none", "as mt-step's: rows of several documents, or not"},
	{"dtype", OPT_CHOICE, &dtype, "bf16|fp32", "type of weights"},
	{"grad", OPT_CHOICE, &grad, "fp32|bf16|none", "type of gradients"},
	{"state", OPT_CHOICE, &state, "fp32|bf16|int8", "type of AdamW's m and v"},
	{"optim", OPT_CHOICE, &optim, "adamw|lion|sgd", "rule of the update"},
	{"train", OPT_STR, &dry.train, "PATTERN[,...]", "train only tensors with such names, as mt-store create"},
	{"freeze", OPT_STR, &dry.freeze, "PATTERN[,...]", "do not train tensors with such names"},
	{"mtp", OPT_DOUBLE, &dry.mtp, "X", "train multi-token prediction, too, as mt-store create"},
	{"loss", OPT_CHOICE, &loss, MT_LOSS_CHOICE, "all but nll and kd compute the LM head's forward pass twice"},
	{"top", OPT_U64, &top, "K", "with --loss kd: tokens of the teacher at each target", .least = 1, .most = 1 << 20},
	{"update", OPT_CHOICE, &update, "late|early", "when mt-optim updates"},
	{"device", OPT_STR, &requested.device, "cpu|cuda[:N]", "device of this machine (default: the GPU found, else cpu)"},
	REQUESTED_OPTIONS(requested),
	{"tier-memory", OPT_SIZE, &dry.tier_memory, "BYTES",
		"lo, m and v of the first units that stay in memory (default: what leaves a tenth of --host-memory, "
		"else of the embedding alone)",
		&dry.tier_memory_given, .with = "--tier"},
	{"steps", OPT_U64, &dry.steps, "N", "steps of the run, for how much they write to drives", .with = "--tier"},
	{"chunk-tokens", OPT_U64, &requested.sizes.chunk_tokens, "N", "tokens of a chunk (default: as the plan has it)",
		.most = INT32_MAX},
	{"head-tokens", OPT_U64, &requested.sizes.head_tokens, "N", "tokens of an LM-head chunk (likewise)",
		.most = INT32_MAX},
	{"pass-rows", OPT_U64, &requested.sizes.pass_rows, "N", "compute pass-major, N rows a pass (likewise)",
		.most = INT32_MAX},
	{"nodes", OPT_U64, &nodes, "N", "nodes of the run", &nodes_given, .least = 1, .most = MOST_NODES},
	{"net", OPT_DOUBLE, &net, "GB/s", "bandwidth of the network to and from a node", &net_given, .least = 1e-6,
		.most = 1e6},
	{"gpus", OPT_U64, &gpus, "N", "GPUs of a node: --streams by another name", &gpus_given, .least = 1,
		.most = MT_STREAMS},
	{"micro-batches", OPT_U64, &micros, "N", "micro-batches of each stream in a step", &micros_given, .least = 1,
		.most = INT32_MAX},
	{"attention", OPT_CHOICE, &attention, "cudnn|own", "kernels of attention: cudnn's if their work memory fits"},
	{"list", OPT_FLAG, &list, NULL, "print the rates of all GPUs that --profile knows, in place of a plan"},
	{"json", OPT_FLAG, &dry.json, NULL, "print JSON"},
	{"csv", OPT_FLAG, &dry.csv, NULL, "print the plan's main numbers as CSV: a line of names, a line of values"},
	{0},
};

static struct mt_program program = {
	.name = "mt-plan",
	.usage = "mt-plan --config FILE --seq T --micro SEQS|--batch SEQS [options]\n"
			 "mt-plan --list [--json]",
	.about = "Prints how mt-stream would compute a step of a model, and how long it would take, on this machine or on "
			 "another: no run, no GPU needed. mt-stream --plan runs it.",
	.opts = options,
};

static void profiles_print(void)
{
	for (int i = 0; profile_name(i); i++) puts(profile_name(i));
}

/* Rates of all GPUs that are known, one a line */
static void profiles_list(void)
{
	static const char *const names[] = {"capability", "memory_gb", "bf16_tflops", "fp32_tflops", "hbm_gb_s", "h2d_gb_s",
		"d2h_gb_s", "ram_gb_s", "links_gb_s"};
	enum { COLUMNS = sizeof names / sizeof *names };
	struct profile p;
	if (dry.json) putchar('[');
	else printf("%-16s", "gpu");
	for (int j = 0; !dry.json && j < COLUMNS; j++) printf("%12s", names[j]);
	for (int i = 0; profile_name(i); i++) {
		mt_must(profile_parse(profile_name(i), MT_BF16, NULL, &p));
		if (!p.capability) continue; /* cpu, which is measured */
		const double v[COLUMNS] = {p.capability / 10.0, p.memory / 1e9, p.flops / 1e12, p.fp32 * p.flops / 1e12,
			p.hbm / 1e9, p.h2d / 1e9, p.d2h / 1e9, p.ram / 1e9, isinf(p.links) ? 0 : p.links / 1e9};
		if (dry.json) printf("%s{\"gpu\": \"%s\"", i ? ",\n" : "", p.name);
		else printf("\n%-16s", p.name);
		for (int j = 0; j < COLUMNS; j++)
			if (dry.json) printf(", \"%s\": %g", names[j], v[j]);
			else printf("%12g", v[j]);
		if (dry.json) putchar('}');
	}
	puts(dry.json ? "]" : "");
}

/* The GPU of this machine that the plan is for; NULL: its cores, or what --profile names */
static const struct gpu *gpu_here(void)
{
	if (profile_named(requested.profile) || (requested.device && !requested_cuda(&requested))) return NULL;
	int number = requested.device ? requested_gpu(&requested) : 0;
#ifdef HAVE_CUDA
	static struct gpu gpu;
	uint64_t room;
	int rc = gpu_find(number, &gpu, &room);

	if (rc && requested.device) mt_must(rc);
	if (rc) return NULL;
	if (!requested.memory) requested.memory = room;
	return &gpu;
#else
	(void)number;
	if (requested.device) mt_die(MT_EX_CONFIG, NO_CUDA, requested.device);
	return NULL;
#endif
}

/* --nodes and what goes with it; --grad, --seq and --micro are checked already */
static void check_nodes(void)
{
	uint64_t all = nodes * requested_streams(&requested) * micros;
	if (net_given != nodes_given)
		mt_die(MT_EX_USAGE, net_given ? "--net: needs --nodes N" : "--nodes: needs --net, the network's GB/s");
	if (all > 1 && !strcmp(grad, "none"))
		mt_die(MT_EX_USAGE,
			"--grad none: each unit is updated as its gradient arrives: one node, one stream, and one "
			"micro-batch a step");
	if (seq * micro > (1ull << 32) / all) mt_die(MT_EX_USAGE, "more than 4G tokens a step, which no run's rings hold");
}

/* Check the options, and make a request of them */
static struct plan_request request_parse(void)
{
	struct plan_request req = {.train = true};
	enum mt_objective_kind kind;
	if (!dry.config) mt_die(MT_EX_USAGE, "a plan needs --config FILE");
	if (batch && (micro || micros_given)) mt_die(MT_EX_USAGE, "--batch: in place of --micro and --micro-batches");
	dry.batch = (uint32_t)batch;
	if (batch && batch <= INT32_MAX) micro = (batch - 1) / nodes / requested_streams(&requested) + 1; /* at most */
	if (!seq || !micro || seq > INT32_MAX || micro > INT32_MAX)
		mt_die(MT_EX_USAGE, "a plan needs --seq, and --micro or --batch, 1 to %d", INT32_MAX);
	if (seq * micro > 1ull << 32)
		mt_die(MT_EX_USAGE, "--seq times --micro: more than 4G tokens, which no run's rings hold");
	req.dtype = mt_dtype_named(dtype);
	req.grad = mt_dtype_named(grad);
	req.state = mt_dtype_named(state);
	req.optim = mt_optim_named(optim);
	mt_must(mt_loss_parse(loss, &kind));
	req.weighted = mt_is_objective(kind);
	req.top = mt_losses[kind].needs & MT_PART_TEACHER ? (uint32_t)top : 0;
	req.objective = req.weighted && !req.top;
	check_nodes();
	req.early = !strcmp(update, "early");
	if (req.early && (req.grad == MT_NONE || nodes_given))
		mt_die(MT_EX_USAGE, "--update early: on one machine, with gradients that are kept");
	if (requested.tier_given && nodes > 1) mt_die(MT_EX_CONFIG, "--tier: on one machine alone");
	dry.own_attention = !strcmp(attention, "own");
	req.packed = !strcmp(pack, "docs");
	req.elem = req.operand = mt_dtype_bytes(req.dtype);
	req.rows = (uint32_t)micro;
	req.seq = (uint32_t)seq;
	req.micros = (uint32_t)micros;
	req.streams = requested_streams(&requested);
	req.nodes = (uint32_t)nodes;
	req.net = net * 1e9;
	req.recompute = requested.recompute;
	req.without = requested.without;
	req.expert_window = (uint32_t)requested.expert_window;
	req.chunk_tokens = (uint32_t)requested.sizes.chunk_tokens;
	req.head_tokens = (uint32_t)requested.sizes.head_tokens;
	req.pass_rows = (uint32_t)requested.sizes.pass_rows;
	req.fixed = req.pass_rows || req.chunk_tokens;
	return req;
}

int main(int argc, char **argv)
{
	if (!strcmp(argv[0], "mt-stream")) program.name = "mt-stream"; /* which was started with --plan */
	mt_cli(&program, argc, argv, NULL, 0);
	if (dry.csv && (dry.json || list)) mt_die(MT_EX_USAGE, "--csv: not with --json or --list");
	if (gpus_given && requested.streams_given)
		mt_die(MT_EX_USAGE, "--gpus and --streams are the same: give one of them");
	if (gpus_given) {
		requested.streams = gpus;
		requested.streams_given = true;
	}
	requested_parse(&requested);
	if (list || !strcmp(requested.profile, "help")) {
		list ? profiles_list() : profiles_print();
		return 0;
	}
	struct plan_request req = request_parse();

	dry.here = gpu_here();
	mt_must(plan_show(&dry, &req));
	return 0;
}
