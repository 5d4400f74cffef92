/* stream.c: mt-stream: options, setting up, serving. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "plan/show.h"
#include "stream.h"
#include "trace.h"

static const char *device_spec = "cpu", *recompute_spec = "auto", *trace_path;
static uint64_t device_memory, host_memory, threads, trace_step, expert_window;
static struct chunk_sizes requested;
static struct mt_strings rings;

static bool plan_only, verbose, device_given;
static const char *compute_spec, *attention_spec = "cudnn", *dtype_spec = "bf16", *grad_spec = "fp32",
								 *state_spec = "fp32", *optim_spec = "adamw";
static struct plan_options plan = {.nodes = 1, .streams = 1, .micros = 1};
enum { PLAN_NODES = 64, PLAN_STREAMS = 64 }; /* more than a run can have: plans are arithmetic */
static bool nodes_given, net_given;

static const struct mt_opt options[] = {
	{"device", OPT_STR, &device_spec, "DEV", "cpu (default) or chaos:SEED; cuda[:N] where it was built in",
		&device_given},
	{"device-memory", OPT_SIZE, &device_memory, "BYTES",
		"device memory that it may use (default: what is free; cpu: half of what is available)", NULL},
	{"host-memory", OPT_SIZE, &host_memory, "BYTES", "host memory that the run may use (default: what is available)",
		NULL},
	{"recompute", OPT_STR, &recompute_spec, "HOW", "auto, full (keep block inputs only) or none (keep all); same bits",
		NULL},
	{"expert-window", OPT_U64, &expert_window, "N",
		"stream mixtures of experts N experts at a time (default: as the plan has it); same bits", NULL},
	{"compute", OPT_STR, &compute_spec, "TYPE",
		"cpu: multiply in bf16 (default if weights are bf16 and the CPU has AMX or is AMD's with AVX512-BF16) or fp32",
		NULL},
	{"threads", OPT_U64, &threads, "N", "compute threads (default: usable cores); same bits", NULL},
	{"chunk-tokens", OPT_U64, &requested.chunk_tokens, "N",
		"tokens of a chunk, if the run has no record yet (default 4096)", NULL},
	{"head-tokens", OPT_U64, &requested.head_tokens, "N", "tokens of an LM-head chunk, if the run has no record yet",
		NULL},
	{"pass-rows", OPT_U64, &requested.pass_rows, "N",
		"compute pass-major, N rows a pass, if the run has no record yet (default: layer-major)", NULL},
	{"ring", OPT_LIST, &rings, "FROM=TO", "use ring TO in place of ring FROM; may be repeated", NULL},
	{"trace", OPT_STR, &trace_path, "FILE", "write the times of all operations, for chrome://tracing and Perfetto",
		NULL},
	{"trace-step", OPT_U64, &trace_step, "N", "trace step N only", NULL},
	{"verbose", OPT_FLAG, &verbose, NULL, "report the plan of each new shape of micro-batch", NULL},
	{"plan", OPT_FLAG, &plan_only, NULL, "print the plan for the options below; no run, no GPU needed", NULL},
	{"config", OPT_STR, &plan.config, "FILE", "--plan: config.json, or its directory", NULL},
	{"seq", OPT_U64, &plan.seq, "T", "--plan: tokens of a row", NULL},
	{"micro", OPT_U64, &plan.micro, "SEQS", "--plan: rows of a micro-batch", NULL},
	{"dtype", OPT_STR, &dtype_spec, "TYPE", "--plan: bf16 (default) or fp32", NULL},
	{"state", OPT_STR, &state_spec, "TYPE", "--plan: AdamW's m and v in fp32 (default), bf16 or int8", NULL},
	{"optim", OPT_STR, &optim_spec, "RULE", "--plan: adamw (default), lion or sgd", NULL},
	{"grad", OPT_STR, &grad_spec, "TYPE", "--plan: gradients in fp32 (default), bf16 or none", NULL},
	{"profile", OPT_STR, &plan.profile, "GPU[,K=N...]",
		"rates to plan with: H200, H100, ..., cpu (help lists them; default: the GPU found, else cpu); h2d=, d2h=, "
		"hbm=, ram= GB/s, flops= TFLOP/s, adam= G params/s",
		NULL},
	{"nodes", OPT_U64, &plan.nodes, "N", "--plan: nodes of the run (default 1)", &nodes_given},
	{"net", OPT_DOUBLE, &plan.net, "GB/s", "--plan: what the network carries to a node, and as much from it",
		&net_given},
	{"streams", OPT_U64, &plan.streams, "N", "--plan: streams of a node, each with such a device (default 1)", NULL},
	{"micro-batches", OPT_U64, &plan.micros, "N", "--plan: micro-batches of each stream in a step (default 1)", NULL},
	{"attention", OPT_STR, &attention_spec, "HOW", "--plan: cudnn (default, if its work memory fits) or own", NULL},
	{"json", OPT_FLAG, &plan.json, NULL, "--plan: print JSON", NULL},
	{0},
};

static const struct mt_program program = {
	.name = "mt-stream",
	.usage =
		"mt-stream [RUN] [--device cpu|chaos:SEED|cuda[:N]] [--device-memory BYTES] [--host-memory BYTES]\n"
		"       [--recompute auto|full|none] [--expert-window N] [--compute bf16|fp32] [--threads N]\n"
		"       [--ring FROM=TO]...\n"
		"       mt-stream --plan --config FILE [--device-memory BYTES] [--host-memory BYTES] --seq T --micro SEQS\n"
		"       [--dtype bf16|fp32] [--grad fp32|bf16|none] [--state fp32|bf16|int8] [--optim adamw|lion|sgd]\n"
		"       [--nodes N --net GB/s] [--streams N] [--micro-batches N] [--profile GPU] [--attention cudnn|own]\n"
		"       [--json]",
	.about = "Streams a run's weights through a device: forward, backward, gradients out. Serves one mt-step after "
			 "another until SIGTERM, SIGINT or the end of the run. Several may serve one run.",
	.opts = options,
};

static enum recompute recompute_parse(const char *spec)
{
	if (!strcmp(spec, "auto")) return RECOMPUTE_AUTO;
	if (!strcmp(spec, "full")) return RECOMPUTE_FULL;
	if (!strcmp(spec, "none")) return RECOMPUTE_NONE;
	mt_die(MT_EX_USAGE, "--recompute: '%s': not auto, full or none", spec);
}

/* cuda or cuda:N */
static struct device *cuda_open(const char *spec)
{
	char *end = NULL;
	unsigned long ordinal = spec[4] ? strtoul(spec + 5, &end, 10) : 0;

	if (spec[4] && (!spec[5] || spec[5] == '-' || *end || ordinal > 4095))
		mt_die(MT_EX_USAGE, "--device: '%s': the GPU's number is 0 to 4095", spec);
#ifdef HAVE_CUDA
	int ex;
	struct device *d = device_cuda((int)ordinal, &ex);

	if (!d) mt_die(ex, "%s", mt_errmsg());
	return d;
#else
	mt_die(MT_EX_CONFIG, "--device %s: mt was built without CUDA: install nvcc, then make clean all", spec);
#endif
}

static int compute_threads(void) { return threads ? (int)threads : mt_cores(); }

static struct device *device_open(const char *spec)
{
	struct device *d = NULL;
	int n = compute_threads();

	if (!strcmp(spec, "cpu")) {
		d = device_cpu(n);
	} else if (!strncmp(spec, "chaos:", 6)) {
		char *end;
		unsigned long long seed = strtoull(spec + 6, &end, 10);

		if (!spec[6] || *end || spec[6] == '-') mt_die(MT_EX_USAGE, "--device: '%s': the seed is a number", spec);
		if (trace_path) mt_die(MT_EX_USAGE, "--trace: device chaos has no times that mean anything");
		d = device_chaos(n, seed);
	} else if (!strcmp(spec, "cuda") || !strncmp(spec, "cuda:", 5)) {
		d = cuda_open(spec);
	} else {
		mt_die(MT_EX_USAGE, "--device: '%s': not cpu, chaos:SEED or cuda[:N]", spec);
	}
	if (!d) mt_die(MT_EX_NOMEM, "device %s: no memory or no threads", spec);
	return d;
}

static void check_options(void)
{
	if ((trace_path && !*trace_path) || (trace_step && !trace_path))
		mt_die(MT_EX_USAGE, "--trace: needs a file's name");
	if (expert_window > INT32_MAX) mt_die(MT_EX_USAGE, "--expert-window: more than %d", INT32_MAX);
	if (threads > 4096) mt_die(MT_EX_USAGE, "--threads: %llu: more than 4096", (unsigned long long)threads);
	if (requested.chunk_tokens > INT32_MAX || requested.head_tokens > INT32_MAX || requested.pass_rows > INT32_MAX)
		mt_die(MT_EX_USAGE, "--chunk-tokens, --head-tokens, --pass-rows: more than %d", INT32_MAX);
}

/* ---- a plan without a run ---- */

static enum mt_dtype type_parse(const char *option, const char *spec)
{
	if (!strcmp(spec, "bf16")) return MT_BF16;
	if (!strcmp(spec, "fp32")) return MT_FP32;
	if (!strcmp(spec, "none") && !strcmp(option, "grad")) return MT_NONE;
	if (!strcmp(spec, "int8") && !strcmp(option, "state")) return MT_INT8;
	mt_die(MT_EX_USAGE, "--%s: '%s': not a type for it", option, spec);
}

static void profiles_print(void)
{
	for (int i = 0; profile_name(i); i++) puts(profile_name(i));
	exit(0);
}

/* The GPU of this machine that the plan is for; NULL: its cores, or what --profile names */
static struct device *plan_here(void)
{
	if (profile_named(plan.profile) || (device_given && strncmp(device_spec, "cuda", 4))) return NULL;
	if (device_given) return device_open(device_spec);
#ifdef HAVE_CUDA
	int ex;
	return device_cuda(0, &ex);
#else
	return NULL;
#endif
}

/* --nodes and what goes with it; plan.grad, plan.seq and plan.micro are checked already */
static void plan_check_nodes(void)
{
	uint64_t all = plan.nodes * plan.streams * plan.micros;

	if (!plan.nodes || plan.nodes > PLAN_NODES)
		mt_die(MT_EX_USAGE, "--nodes: %llu: 1 to %d", (unsigned long long)plan.nodes, PLAN_NODES);
	if (!plan.streams || plan.streams > PLAN_STREAMS)
		mt_die(MT_EX_USAGE, "--streams: %llu: 1 to %d", (unsigned long long)plan.streams, PLAN_STREAMS);
	if (!plan.micros || plan.micros > INT32_MAX)
		mt_die(MT_EX_USAGE, "--micro-batches: %llu: 1 to %d", (unsigned long long)plan.micros, INT32_MAX);
	if (net_given && !(plan.net >= 1e-6 && plan.net <= 1e6))
		mt_die(MT_EX_USAGE, "--net: %g: 1e-6 to 1e6 GB/s", plan.net);
	if (net_given != nodes_given)
		mt_die(MT_EX_USAGE, net_given ? "--net: needs --nodes N" : "--nodes: needs --net, the network's GB/s");
	if (all > 1 && plan.grad == MT_NONE)
		mt_die(MT_EX_USAGE,
			"--grad none: each unit is updated as its gradient arrives: one node, one stream, and one "
			"micro-batch a step");
	if (plan.seq * plan.micro > (1ull << 32) / all)
		mt_die(MT_EX_USAGE, "--plan: more than 4G tokens a step, which no run's rings hold");
}

static int plan_print(void)
{
	plan.profile = plan.profile ? plan.profile : "";
	if (!strcmp(plan.profile, "help")) profiles_print();
	if (!plan.config) mt_die(MT_EX_USAGE, "--plan: needs --config FILE");
	if (!plan.seq || !plan.micro || plan.seq > INT32_MAX || plan.micro > INT32_MAX)
		mt_die(MT_EX_USAGE, "--plan: needs --seq and --micro, 1 to %d", INT32_MAX);
	if (plan.seq * plan.micro > 1ull << 32)
		mt_die(MT_EX_USAGE, "--plan: --seq times --micro: more than 4G tokens, which no run's rings hold");
	plan.dtype = type_parse("dtype", dtype_spec);
	plan.grad = type_parse("grad", grad_spec);
	plan.state = type_parse("state", state_spec);
	plan.optim = mt_optim_named(optim_spec);
	if (!plan.optim) mt_die(MT_EX_USAGE, "--optim: '%s' is not adamw, lion or sgd", optim_spec);
	plan_check_nodes();
	plan.compute = compute_spec ? type_parse("compute", compute_spec) : 0;
	plan.recompute = recompute_parse(recompute_spec);
	plan.expert_window = (uint32_t)expert_window;
	plan.own_attention = !strcmp(attention_spec, "own");
	if (!plan.own_attention && strcmp(attention_spec, "cudnn"))
		mt_die(MT_EX_USAGE, "--attention: '%s': not cudnn or own", attention_spec);
	plan.memory = device_memory;
	plan.host = host_memory;
	plan.chunk_tokens = requested.chunk_tokens;
	plan.head_tokens = requested.head_tokens;
	plan.pass_rows = requested.pass_rows;
	struct device *here = plan_here();
	plan.here = here ? here->gpu : NULL;
	plan.threads = compute_threads();
	if (here && !plan.memory && here->room) plan.memory = here->room(here) + here->own;
	int rc = plan_show(&plan);
	if (here) here->close(here);
	mt_must(rc);
	return 0;
}

/* ---- setting up ---- */

static int ring_open(struct stream *s, const char *kind, struct mt_ring **ring)
{
	char name[16];

	snprintf(name, sizeof name, "%s.%d", kind, s->index);
	return mt_ring_open(s->run, name, ring);
}

/* Of several nodes, mt-link takes the gradients and gives each node its part: what --ring says comes first. */
static int rings_map(struct stream *s)
{
	char link[48];
	int rc = 0;

	for (int i = 0; i < rings.n && !rc; i++) rc = mt_ring_map(s->run, rings.v[i]);
	if (rc || mt_nodes(s->run) == 1) return rc;
	snprintf(link, sizeof link, "grad.%d=link.%d", s->index, s->index);
	return mt_ring_map(s->run, link);
}

/* A ring that another program has made may have blocks of another size */
static int blocks_check(const struct stream *s)
{
	uint64_t piece = s->control->piece_elems, size = s->control->grad == MT_BF16 ? 2 : 4;

	if (!piece || piece % MT_BLOCK || piece > mt_ring_block(s->grad) / size || mt_ring_block(s->batch) < 12)
		return mt_fail(MT_EX_DATA, "ring blocks of %zu and %zu bytes, pieces of %llu elements", mt_ring_block(s->batch),
			mt_ring_block(s->grad), (unsigned long long)piece);
	return 0;
}

static int stream_open(struct stream *s)
{
	int rc;

	s->control = mt_control(s->run);
	s->geo = mt_geometry(s->run);
	if ((rc = mt_stage_claim(s->run, MT_STREAM, &s->index))) return rc;
	s->index -= MT_STREAM;
	mt_stage_activity(s->run, MT_ACT_STARTING, 0);
	if ((rc = rings_map(s))) return rc;
	if (s->dev->attach && (rc = s->dev->attach(s->dev, s->run, MT_STREAM + s->index))) return rc;
	s->budget = device_memory;
	if ((rc = ring_open(s, "batch", &s->batch)) || (rc = ring_open(s, "grad", &s->grad)) || (rc = blocks_check(s)) ||
		(rc = record_select(s, &requested)) || (rc = units_make(s)))
		return rc;
	size_t bytes;
	const void *blocks = mt_ring_blocks(s->grad, &bytes);
	if (s->dev->host_register) s->dev->host_register(s->dev, blocks, bytes);
	s->zero_copy = s->dev->zero_copy(s->dev, mt_at(s->run, 0), s->control->dtype) != NULL;
	s->host = malloc(mt_ring_block(s->batch));
	/* measuring takes a moment: only for who reads what it predicts */
	const char *rates = s->verbose && !s->dev->room ? profile_cores_rates(s->profile) : NULL;
	if (rates &&
		(rc = profile_cores(rates, (enum mt_dtype)s->control->dtype, compute_threads(), s->dev->operand == 2,
			 &s->selects, &s->rates)))
		return rc;
	return s->host ? 0 : mt_fail(MT_EX_NOMEM, "no memory for a batch of %zu bytes", mt_ring_block(s->batch));
}

static void stream_close(struct stream *s)
{
	plan_release(s);
	trace_close(s->dev->trace);
	s->dev->close(s->dev);
	if (s->batch) mt_ring_close(s->batch);
	if (s->grad) mt_ring_close(s->grad);
	mt_run_close(s->run);
	free(s->unit);
	free(s->now.blocks);
	balance_release(s);
	free(s->host);
}

/* Measured and predicted time of all micro-batches; waits for the optimizer and the ring do not count, unless compute
 * works meanwhile */
static void report_times(const struct stream *s)
{
	uint64_t micros = *mt_counter(s->run, 0);

	if (micros)
		mt_say("%llu micro-batch%s: %.3g s, predicted %.3g s", (unsigned long long)micros, micros == 1 ? "" : "es",
			1e-9 * (double)*mt_counter(s->run, 5), 1e-9 * (double)*mt_counter(s->run, 6));
}

int main(int argc, char **argv)
{
	const char *operand = NULL;
	struct stream s = {0};

	mt_cli(&program, argc, argv, &operand, 1);
	if (plan_only) {
		check_options();
		return plan_print();
	}
	const char *run = mt_cli_run(operand);
	check_options();
	mt_signals(true);
	s.recompute = recompute_parse(recompute_spec);
	s.expert_window = (uint32_t)expert_window;
	s.compute = compute_spec ? type_parse("compute", compute_spec) : 0;
	s.verbose = verbose;
	s.host_requested = host_memory;
	s.profile = plan.profile ? plan.profile : strncmp(device_spec, "cuda", 4) ? "cpu" : "";
	struct profile known;
	mt_must(profile_parse(s.profile, MT_BF16, NULL, &known));
	s.dev = device_open(device_spec);
	if (trace_path && !(s.dev->trace = trace_open(trace_path, trace_step))) mt_die(MT_EX_IO, "%s", mt_errmsg());
	int rc = mt_run_attach(&s.run, run, MT_RUN_RINGS | MT_RUN_WEIGHTS, -1, &mt_stopping);
	if (rc == -MT_EX_BUSY && mt_stopping) return 0;
	mt_must(rc);

	rc = stream_open(&s);
	if (rc == -MT_EX_BUSY && mt_stopping) /* while it waited for weights */
		rc = GONE;
	if (rc == 0) rc = serve(&s);
	if (verbose) report_times(&s);
	if (rc < 0) mt_say("%s", mt_errmsg());
	stream_close(&s);
	return rc < 0 ? -rc : 0;
}
