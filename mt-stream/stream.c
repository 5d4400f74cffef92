/* stream.c: mt-stream: options, setting up, serving. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "stream.h"
#include "trace.h"

static struct requested requested = {.device = "cpu"};
static const char *trace_path;
static uint64_t trace_step, place;
static struct mt_strings rings;
static bool verbose, plan, list, place_given;

static const struct mt_opt options[] = {
	{"device", OPT_STR, &requested.device, "cpu|chaos:SEED|cuda[:N]", "cuda where it was built in; chaos is for tests"},
	REQUESTED_OPTIONS(requested),
	{"chunk-tokens", OPT_U64, &requested.sizes.chunk_tokens, "N",
		"tokens of a chunk, if the run has no record yet (default: 4096)", .most = INT32_MAX},
	{"head-tokens", OPT_U64, &requested.sizes.head_tokens, "N",
		"tokens of an LM-head chunk, if the run has no record yet", .most = INT32_MAX},
	{"pass-rows", OPT_U64, &requested.sizes.pass_rows, "N",
		"compute pass-major, N rows a pass, if the run has no record yet (default: layer-major)", .most = INT32_MAX},
	{"index", OPT_U64, &place, "I", "which of its node's mt-streams this is, from 0 (default: the lowest free)",
		&place_given},
	MT_OPT_RING(rings),
	{"trace", OPT_STR, &trace_path, "FILE", "write the times of all operations, for chrome://tracing and Perfetto"},
	{"trace-step", OPT_U64, &trace_step, "N", "trace step N only"},
	{"verbose", OPT_FLAG, &verbose, NULL, "report the plan of each new shape of micro-batch"},
	{"gpus", OPT_FLAG, &list, NULL, "print the GPUs that cuda:N names, a line each, and exit"},
	{"plan", OPT_FLAG, &plan, NULL, "run mt-plan with all other options: no run, no GPU needed (mt-plan --help)"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-stream",
	.usage = "mt-stream [RUN] [options]\n"
			 "mt-stream --gpus\n"
			 "mt-stream --plan [options of mt-plan]",
	.about = "Streams a run's weights through a device: forward, backward, gradients out. Serves one mt-step after "
			 "another until SIGTERM, SIGINT or the end of the run. Several may serve one run.",
	.opts = options,
};

/* With --plan: become mt-plan, which lies where this program does and then speaks in its name */
static void plan_instead(int argc, char **argv)
{
	char path[PATH_MAX + 16] = "mt-plan";
	int at = 1;
	while (at < argc && strcmp(argv[at], "--plan") && strcmp(argv[at], "--")) at++;
	if (at >= argc || strcmp(argv[at], "--plan")) return;
	for (; at < argc; at++) argv[at] = argv[at + 1];
	argv[0] = "mt-stream";
	ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
	while (n > 0 && path[n - 1] != '/') n--;
	if (n > 0) {
		strcpy(path + n, "mt-plan");
		execv(path, argv);
	}
	mt_program_name = program.name;
	mt_die(MT_EX_CONFIG, "--plan: %s: %s", path, strerror(errno));
}

static struct device *cuda_open(void)
{
	int gpu = requested_gpu(&requested);
#ifdef HAVE_CUDA
	int ex;
	struct device *d = device_cuda(gpu, &ex);

	if (!d) mt_die(ex, "%s", mt_errmsg());
	return d;
#else
	(void)gpu;
	mt_die(MT_EX_CONFIG, NO_CUDA, requested.device);
#endif
}

static int gpus_print(void)
{
#ifdef HAVE_CUDA
	int rc = mt_must(gpu_list());
	return fflush(stdout) ? -MT_EX_IO : rc;
#else
	mt_die(MT_EX_CONFIG, NO_CUDA, "cuda");
#endif
}

static struct device *device_open(void)
{
	const char *spec = requested.device;
	struct device *d = NULL;
	int n = requested_threads(&requested);
	if (!strcmp(spec, "cpu")) {
		d = device_cpu(n);
	} else if (!strncmp(spec, "chaos:", 6)) {
		char *end;
		unsigned long long seed = strtoull(spec + 6, &end, 10);
		if (!spec[6] || *end || spec[6] == '-') mt_die(MT_EX_USAGE, "--device: '%s': the seed is a number", spec);
		if (trace_path) mt_die(MT_EX_USAGE, "--trace: device chaos has no times that mean anything");
		d = device_chaos(n, seed);
	} else if (requested_cuda(&requested)) {
		d = cuda_open();
	} else {
		mt_die(MT_EX_USAGE, "--device: '%s': not cpu, chaos:SEED or cuda[:N]", spec);
	}
	if (!d) mt_die(MT_EX_NOMEM, "device %s: no memory or no threads", spec);
	return d;
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
	uint64_t piece = s->control->piece_elems, size = mt_dtype_bytes(s->control->grad);
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
	if (place_given) rc = mt_stream_claim(s->run, place, &s->index);
	else rc = mt_stage_claim(s->run, MT_STREAM, &s->index);
	if (rc) return rc;
	s->index -= MT_STREAM;
	mt_stage_activity(s->run, MT_ACT_STARTING, 0);
	if ((rc = rings_map(s))) return rc;
	compute_fp8(s);
	if (s->dev->attach && (rc = s->dev->attach(s->dev, s->run, MT_STREAM + s->index))) return rc;
	if (!(s->lists = lists_make(s->geo, s->dev->elem))) return mt_fail(MT_EX_NOMEM, "no memory");
	if ((rc = ring_open(s, "batch", &s->batch)) || (rc = ring_open(s, "grad", &s->grad)) || (rc = blocks_check(s)) ||
		(rc = record_select(s, &requested.sizes)) || (rc = units_make(s)))
		return rc;
	size_t bytes;
	const void *blocks = mt_ring_blocks(s->grad, &bytes);
	if (s->dev->host_register) s->dev->host_register(s->dev, blocks, bytes);
	s->zero_copy = s->dev->zero_copy && s->dev->zero_copy(s->dev, mt_at(s->run, 0), s->control->dtype);
	size_t block = (mt_ring_block(s->batch) + 3) / 4; /* words, which are more than enough for spans, too */
	s->taken.host = malloc(2 * block * sizeof *s->taken.host);
	if (s->taken.host) s->taken.spans = s->taken.host + block;
	/* measuring takes a moment: only with --verbose, which shows predictions */
	const char *rates = s->verbose && !s->dev->room ? profile_cores_rates(s->requested.profile) : NULL;
	if (rates &&
		(rc = profile_cores(rates, (enum mt_dtype)s->control->dtype, requested_threads(&requested),
			 s->dev->operand == 2, &s->rates.selects, &s->rates.measured)))
		return rc;
	return s->taken.host ? 0 : mt_fail(MT_EX_NOMEM, "no memory for a batch of %zu bytes", mt_ring_block(s->batch));
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
	free(s->taken.host);
	free(s->lists);
}

/* Measured and predicted time of all micro-batches; waits for the optimizer and the ring do not count, unless compute
 * works meanwhile */
static void report_times(const struct stream *s)
{
	uint64_t micros = *mt_counter(s->run, MT_STREAM_micros);
	if (micros)
		mt_say("%llu micro-batch%s: %.3g s, predicted %.3g s", (unsigned long long)micros, micros == 1 ? "" : "es",
			1e-9 * (double)*mt_counter(s->run, MT_STREAM_busy_ns),
			1e-9 * (double)*mt_counter(s->run, MT_STREAM_predicted_ns));
}

int main(int argc, char **argv)
{
	const char *operand = NULL;
	struct stream s = {0};
	plan_instead(argc, argv);
	mt_cli(&program, argc, argv, &operand, 1);
	if (list) return -gpus_print();
	const char *run = mt_cli_run(operand);
	requested_parse(&requested);
	if (!requested.profile) requested.profile = requested_cuda(&requested) ? "" : "cpu";
	if ((trace_path && !*trace_path) || (trace_step && !trace_path))
		mt_die(MT_EX_USAGE, "--trace: needs a file's name");
	mt_signals(true);
	s.requested = requested;
	s.memory.budget = requested.memory;
	s.verbose = verbose;
	struct profile known;
	mt_must(profile_parse(requested.profile, MT_BF16, NULL, &known));
	s.dev = device_open();
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
