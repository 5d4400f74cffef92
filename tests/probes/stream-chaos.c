/* stream-chaos: mt-stream's schedule on the chaos device (cuda-chaos: on the cuda device and an emulated GPU), by many
 * seeds in one process. the schedule's files, wait.c and request.c are compiled in here, with macros for what they
 * wait for and for the planner. Each seed draws plans, shapes and what the other stages do (stream-world.h), and must
 * give the bits of the cpu device.
 *
 *     stream-chaos seeds RUN MODELS FIRST COUNT       prints what the seeds went through; 1: a bit was wrong
 *     stream-chaos without RUN MODELS COUNT           leaves out each wait in turn, then has each event too early, then
 *                                                     memory used twice, until one of COUNT seeds goes wrong,
 *                                                     in either loop order; 1: none did, in neither
 *                                                     (cuda-chaos: only the cuda device's own events)
 *     stream-chaos one RUN MODELS SEED                says what the seed draws, on the way
 */
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "left-out.h"
#include "stream-world.h"

/* ---- what may be left out ---- */

#define SITES ((int)(&__stop_sites[0] - &__start_sites[0]))

static int broken = -1; /* site, or place in memory */
static enum how broken_how;
static bool breaks; /* now */

bool site_is(const struct site *at, enum how how) { return breaks && broken_how == how && at == __start_sites[broken]; }

/* Where the host only keeps itself from running ahead, an operation more or less makes no difference; nor where a
 * window's weights are given up, because the last operation is a sum, which does not read them. Only the cuda device's
 * own events are left out on an emulated GPU. */
static bool matters(const struct site *at, enum how how)
{
#ifdef MT_EMU
	static const char *const schedule[] = {"arrive.c", "chunks.c", "offload.c", "windows.c", "schedule.c", "leave.c"};

	for (size_t i = 0; i < sizeof schedule / sizeof *schedule; i++)
		if (strstr(at->file, schedule[i])) return false;
	return how == LEFT_OUT && strcmp(at->function, "stamp");
#else
	return how == LEFT_OUT ||
		(!strcmp(at->call, "event_record") && strcmp(at->function, "forward") && strcmp(at->function, "window_leave"));
#endif
}

/* By one operation, or a part of one */
static struct event sooner(struct event e)
{
	e.at -= e.at > 0;
	return e;
}

#define queue_wait(s, q, e) (site_is(SITE("queue_wait"), LEFT_OUT) ? (void)0 : (queue_wait)(s, q, e))
#define event_sync(s, e) (site_is(SITE("event_sync"), LEFT_OUT) ? 0 : (event_sync)(s, e))
#define device_sync(d) (site_is(SITE("device_sync"), LEFT_OUT) ? 0 : (device_sync)(d))
#define event_record(s, q) \
	({ \
		const struct site *at = SITE("event_record"); \
		site_is(at, LEFT_OUT)        ? (struct event){0} \
			: site_is(at, TOO_EARLY) ? sooner((event_record)(s, q)) \
									 : (event_record)(s, q); \
	})
#define mt_version(run, u) (site_is(SITE("mt_version"), LEFT_OUT) ? UINT64_MAX : (mt_version)(run, u))
#define mt_stage_activity(run, activity, unit) boundary(s, activity)
static void boundary(struct stream *, enum mt_activity);
#include "../../mt-stream/schedule/arrive.c"
#include "../../mt-stream/schedule/chunks.c"
#include "../../mt-stream/schedule/offload.c"
#include "../../mt-stream/schedule/windows.c"
#include "../../mt-stream/schedule/schedule.c"
#include "../../mt-stream/schedule/leave.c"
#undef queue_wait
#undef event_sync
#undef event_record

/* The run and its other stages, as wait.c sees them, are played by stream-world.h */
#define mt_stage_over(run) ((void)(run), 0)
#define mt_abort_dead(run) ((void)0)
#define mt_txn_word(run, k) world_txn_word(s)
#define mt_wait(run, seen, ms) ((void)(seen), world_wait())
#define mt_wait_on(run, seen, ms, on) ((void)(seen), (void)(on), world_wait())
#include "../../mt-stream/schedule/wait.c"

#define plan_search(req, result) draw_plan(req, result)
#define memory_lay(req, plan, layout, base) lay(req, plan, layout, base)
#define mt_mem_available() UINT64_MAX /* plans are drawn, whatever the machine has */
#define mt_run_bytes(run) ((void)(run), (uint64_t)0)
static int draw_plan(const struct plan_request *, struct plan_result *);
static uint64_t lay(const struct plan_request *, const struct plan *, struct memory_layout *, void *);
#include "../../mt-stream/request.c"
#undef memory_lay
#undef mt_mem_available
#undef mt_run_bytes

/* ---- plans ---- */

static bool talks;
static struct {
	unsigned micros, evals, zero_copies, windows, groups, residual_offloaded, offloaded, stale, levels[KEEP_ALL + 1];
	unsigned without[3]; /* prefetch, pieces, update */
} went;

static void levels_draw(const struct plan_request *req, struct plan *plan)
{
	uint32_t layers = req->geo->layers;
	plan->keep_all = (uint32_t)draw(2) * (uint32_t)draw(layers + 1);
	plan->keep_but_gate_up = (uint32_t)draw(2) * (uint32_t)draw(layers - plan->keep_all + 1);
	uint32_t rest = layers - plan->keep_all - plan->keep_but_gate_up;
	plan->residual_offloaded = draw(2);
	plan->offloaded = rest && draw(2) ? (enum checkpoint)(1 + draw(KEEP_ALL)) : KEEP_INPUT;
	plan->keep_attention = plan->offloaded ? 0 : (uint32_t)draw(rest + 1);
}

/* Any plan that the planner might choose, if memory and bandwidths were so */
static int draw_plan(const struct plan_request *req, struct plan_result *p)
{
	uint32_t layers = req->geo->layers, two = layers < 2 ? layers : 2;
	struct plan plan = {.chunk_tokens = req->chunk_tokens,
		.head_tokens = req->head_tokens,
		.pass_rows = req->geo->aux_coef != 0 ? 0 : req->pass_rows};
	plan.weight_slots = req->zero_copy ? 0 : plan.pass_rows ? layers : 1 + (uint32_t)draw(draw(2) ? layers : two);
	plan.grad_slots = plan.pass_rows ? layers : req->train ? 1 + (uint32_t)draw(two) : 0;
	if (plan.pass_rows) plan.keep_all = layers;
	else if (req->train) levels_draw(req, &plan);
	if (req->most.experts && !plan.pass_rows && draw(3)) plan.expert_window = 1 + (uint32_t)draw(req->most.experts);
	plan.by_heads = draw(2);
	*p = (struct plan_result){.plan = plan,
		.bytes = memory_lay(req, &plan, NULL, NULL),
		.host_bytes = memory_host(req, &plan)};
	if (talks)
		mt_say("plan: %u rows of %u, %s; %u weight slots, %u gradient slots, windows of %u; %u full, %u block, %u "
			   "attention%s%s%s%s",
			req->rows, req->seq, plan.pass_rows ? "pass-major" : "layer-major", plan.weight_slots, plan.grad_slots,
			plan.expert_window, plan.keep_all, plan.keep_but_gate_up, plan.keep_attention,
			plan.residual_offloaded ? ", residuals offloaded" : "", plan.offloaded ? ", the others offloaded" : "",
			plan.by_heads ? ", by groups of heads" : "", req->zero_copy ? ", in place" : "");
	went.residual_offloaded += plan.residual_offloaded;
	went.offloaded += plan.offloaded != 0;
	went.zero_copies += req->zero_copy;
	went.windows += plan.expert_window != 0;
	for (uint32_t k = 0; k < req->geo->n_kinds; k++) went.groups += group_of(req, &plan, k) != 0;
	for (uint32_t l = 0; req->train && l < layers; l++) went.levels[checkpoint_of(&plan, layers, l)]++;
	return 0;
}

/* Memory that is handed out twice: the second of two begins within the first */
static const char *const overlaps[] = {"weight slots", "gradient slots", "offloaded residuals", "offloaded blocks",
	"embed and head gradients", "embed and head weights", "a block's and the embed gradient", "windows' weights",
	"windows' gradients", "boundary blocks of two units", "a window's and its block's gradients"};
#ifdef MT_EMU
#define OVERLAPS 0
#else
#define OVERLAPS ((int)(sizeof overlaps / sizeof *overlaps))
#endif

static void away_shift(struct saved *to, const struct saved *from, size_t by)
{
	void **t = (void **)to, *const *f = (void *const *)from;
	for (size_t i = 0; i < sizeof *to / sizeof *t; i++) t[i] = f[i] ? (char *)f[i] + by : NULL;
}

static void overlap(struct memory_layout *p, const struct plan *plan)
{
	const size_t by = 256;
	switch (broken) {
	case 0:
		if (plan->weight_slots > 1) p->weights[1] = (char *)p->weights[0] + by;
		break;
	case 1:
		if (plan->grad_slots > 1) p->grads[1] = p->grads[0] + by;
		break;
	case 2:
		if (p->outputs == 2) p->x[1] = (char *)p->x[0] + by;
		break;
	case 3:
		for (int k = 0; plan->offloaded && k < MT_KINDS; k++) away_shift(&p->away[1][k], &p->away[0][k], by);
		if (plan->offloaded) p->away_at[1] = (char *)p->away_at[0] + by;
		break;
	case 4:
		if (plan->pass_rows) p->embed_head_grads[1] = p->embed_head_grads[0] + by;
		break;
	case 5:
		if (plan->pass_rows) p->embed_head_weights[1] = (char *)p->embed_head_weights[0] + by;
		break;
	case 6:
		if (plan->grad_slots) p->grads[0] = p->embed_head_grads[0] + by;
		break;
	case 7:
		if (plan->expert_window) p->windows[1] = (char *)p->windows[0] + by;
		break;
	case 8:
		if (plan->expert_window) p->window_grads[1] = p->window_grads[0] + by;
		break;
	case 9:
		if (plan->expert_window) p->boundary_blocks[1] = p->boundary_blocks[0] + by;
		break;
	case 10:
		if (plan->expert_window) p->window_grads[0] = p->grads[0] + by;
		break;
	}
}

static uint64_t lay(const struct plan_request *req, const struct plan *plan, struct memory_layout *p, void *base)
{
	uint64_t bytes = (memory_lay)(req, plan, p, base);
	if (p && breaks && broken_how == OVERLAP) overlap(p, plan);
	return bytes;
}

/* ---- a stream ---- */

static const char *wrong; /* what the seed showed, beside bits */

/* The host has come to the next unit: what it had launched when it came to the fifth last must be over, or it runs
 * ahead of the device further than an aborted step should cost. */
#define AHEAD 5
static struct event boundaries[AHEAD];
static unsigned boundary_n;

/* What $MT_WITHOUT leaves out must not be there: the update behind the forward pass, two pieces in the ring */
static void left_out(const struct stream *s, enum mt_activity activity)
{
	unsigned without = s->requested.without;
	for (uint32_t u = 0; without & WITHOUT_UPDATE && activity == MT_ACT_FORWARD && u < s->units; u++)
		for (int i = 0; i < s->unit[u].origins; i++)
			if ((mt_version)(s->run, s->unit[u].origin[i].unit) < s->taken.msg.batch.version)
				wrong = "a unit is not updated, and the forward pass has begun";
	if (without & WITHOUT_PIECES && mt_ring_used(s->grad) > 1) wrong = "two pieces are under way";
}

static void boundary(struct stream *s, enum mt_activity activity)
{
	world.activity = activity;
	left_out(s, activity);
	if (activity != MT_ACT_FORWARD && activity != MT_ACT_BACKWARD) return;
	struct event *e = &boundaries[boundary_n++ % AHEAD];
	if (!s->dev->query(s->dev, *e)) wrong = "the host runs ahead";
	*e = s->dev->record(s->dev, Q_COMPUTE);
}

/* (An event that is recorded on an emulated GPU is over only after a wait for it.) */
static void at_rest(struct stream *s)
{
#ifndef MT_EMU
	for (enum queue q = 0; q < QUEUES; q++)
		if (!s->dev->query(s->dev, s->dev->record(s->dev, q)))
			wrong = "the micro-batch is over, but queues are at work";
#endif
	(void)s;
}

/* Seed 0: who knows what is right */
static struct device *device_open(uint64_t seed)
{
#ifdef MT_EMU
	char text[32];
	int ex;

	snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
	setenv("MT_EMU_SEED", text, 1);
	if (seed % 3 == 2) setenv("MT_EMU_NO_PINNING", "", 1);
	else unsetenv("MT_EMU_NO_PINNING");
	struct device *d = device_cuda(0, &ex);
	MT_ASSERT(d);
	mt_must(d->attach(d, world.run, MT_STREAM));
	return d;
#else
	return seed ? device_chaos(1, seed) : device_cpu(1);
#endif
}

struct fixed_sizes {
	uint32_t chunk_tokens, head_tokens, pass_rows;
};

/* Half of the runs with weights of bf16 multiply in bf16, where the CPU does */
static bool in_bf16(const struct fixed_sizes *z)
{
	return !gemm_lacks_bf16() && (z->head_tokens == 64 || z->head_tokens == 48);
}

static void stream_begin(struct stream *s, struct device *dev, const struct fixed_sizes *z)
{
	*s = (struct stream){.run = world.run,
		.control = world.control,
		.geo = mt_geometry(world.run),
		.lists = lists_make(mt_geometry(world.run), dev->elem),
		.dev = dev,
		.sizes = {z->chunk_tokens, z->head_tokens, z->pass_rows},
		.requested = {.profile = "cpu"}};
	if (dev->compute && s->control->dtype == MT_BF16 && in_bf16(z)) mt_must(dev->compute(dev, MT_BF16, NULL));
	s->zero_copy = dev->zero_copy && dev->zero_copy(dev, mt_at(s->run, 0), s->control->dtype);
	s->taken.host = malloc(HOST_BYTES + 3 * TOKENS * sizeof(uint32_t));
	s->taken.spans = s->taken.host + HOST_BYTES / sizeof(uint32_t);
	mt_must(mt_ring_open(s->run, "grad.0", &s->grad));
	mt_must(units_make(s));
}

static void stream_end(struct stream *s)
{
	plan_release(s);
	balance_release(s);
	s->dev->close(s->dev);
	mt_ring_close(s->grad);
	free(s->unit);
	free(s->lists);
	free(s->now.blocks);
	free(s->taken.host);
}

/* What the shape gives, on the stream's device, with neighbours that are so and a plan that is drawn */
static struct seen micro(struct stream *s, const struct shape *z, uint64_t random, unsigned eager, int64_t stale_in)
{
	bool new_shape;
	memset(boundaries, 0, sizeof boundaries);
	s->planning.micro.request.rows = 0; /* planned anew */
	world_begin(s, z, random, eager, stale_in);
	int rc = plan_make(s, &new_shape);
	if (!rc) rc = schedule_autotune(s);
	if (!rc) rc = schedule_run(s);
	at_rest(s);
	world_end(s);
	if (rc == STALE) {
		went.stale++;
		return micro(s, z, random + 1, eager, -1);
	}
	MT_ASSERT(rc == 0);
	return world.seen;
}

/* ---- what is gone through ---- */

static const struct run {
	const char *model;
	uint32_t layers, experts;
	enum mt_dtype dtype, grad;
	const char *train; /* patterns; NULL: all */
} runs[] = {
	{"llama3", 5, 1, MT_FP32, MT_FP32, NULL},
	{"qwen3", 3, 1, MT_BF16, MT_BF16, NULL},
	{"qwen2-window", 6, 1, MT_BF16, MT_FP32, NULL},
	{"qwen3", 4, 1, MT_FP32, MT_NONE, NULL},
	{"llama-bias", 1, 1, MT_BF16, MT_NONE, NULL},
	{"qwen3-5", 3, 1, MT_FP32, MT_FP32, NULL},
	{"llama2", 7, 1, MT_BF16, MT_BF16, NULL},
	{"llama3", 2, 1, MT_BF16, MT_FP32, NULL},
	{"gemma2", 3, 1, MT_FP32, MT_FP32, NULL},
	{"cohere2", 4, 1, MT_BF16, MT_BF16, NULL},
	{"gemma4-e", 6, 1, MT_BF16, MT_FP32, NULL},
	{"gemma4-e", 5, 1, MT_FP32, MT_NONE, NULL},
	{"qwen2-moe", 4, 40, MT_FP32, MT_FP32, NULL}, /* experts of 2.8 blocks of gradients */
	{"deepseek-v3-mtp", 3, 1, MT_BF16, MT_FP32, NULL},
	{"gpt-oss-aux", 2, 30, MT_BF16, MT_BF16, NULL}, /* all experts' tensors in one, 2 and 1.2 blocks an expert */
	/* no gradient of the head, nor of the first two blocks; of some experts */
	{"llama3", 7, 1, MT_BF16, MT_FP32, "*.[25].*,*.3.*norm*"},
	{"qwen2-moe", 3, 40, MT_FP32, MT_FP32, "*norm*,*.1.mlp.experts.[135].*"},
};
#define RUNS ((int)(sizeof runs / sizeof *runs))

static const struct shape shapes[] = {
	{4, 16, true, true}, {3, 24, false, true}, {5, 12, true, true}, {4, 16, true, false}, {2, 30, true, true},
	{1, 8, false, true}, /* few rows an expert */
};
#define SHAPES ((int)(sizeof shapes / sizeof *shapes))

static const struct fixed_sizes sizes_of_runs[] = {
	{4096, 64, 0},
	{4096, 64, 2},
	{32, 20, 0},
	{32, 20, 2},
	{16, 48, 0},
	{16, 48, 1},
	{20, 4096, 0},
	{20, 4096, 3},
};
#define SIZES ((int)(sizeof sizes_of_runs / sizeof *sizes_of_runs))

static struct seen expected[RUNS][SIZES][SHAPES]; /* losses 0: not computed yet */

/* The cpu's: with neighbours that keep nobody waiting */
static const struct seen *reference(int of_run, int sizes, int shape)
{
	struct seen *e = &expected[of_run][sizes][shape];
	struct stream s;
	if (e->losses) return e;
	bool was = breaks, talked = talks;
	breaks = talks = false;
	stream_begin(&s, device_open(0), &sizes_of_runs[sizes]);
	*e = micro(&s, &shapes[shape], 1, 99, -1);
	stream_end(&s);
	breaks = was;
	talks = talked;
	MT_ASSERT(isfinite(e->loss) && e->loss != 0 && e->targets > 0);
	return e;
}

static bool same(const struct seen *want, const struct seen *got, uint64_t seed)
{
	if (!wrong && !memcmp(want, got, sizeof *want)) return true;
	printf("seed %llu: ", (unsigned long long)seed);
	if (!wrong && memcmp(want->terms, got->terms, sizeof want->terms)) wrong = "other terms of the loss";
	if (!wrong && memcmp(&want->loss, &got->loss, sizeof want->loss))
		wrong = isnan(got->loss) ? "the loss is not a number" : "another loss";
	else if (!wrong && want->targets != got->targets) wrong = "other targets";
	for (uint32_t u = UNITS; !wrong && u--;)
		for (int end = 0; !wrong && end < 2; end++)
			if (want->hash[u][end] != got->hash[u][end]) {
				printf("other bits in unit %u's gradient", u);
				wrong = end ? ", the head's end" : "";
			}
	printf("%s", wrong);
	return false;
}

struct micro_drawn {
	int shape;
	unsigned eager;
	int64_t stale_in;
};

static struct micro_drawn micro_draw(void)
{
	static const unsigned eager[] = {0, 20, 70, 95};
	return (struct micro_drawn){(int)draw(SHAPES), eager[draw(4)], draw(4) ? -1 : (int64_t)draw(30)};
}

/* Two or three micro-batches, one after another */
static bool seed_right(uint64_t seed)
{
	enum { MOST = 3 };
	int of_run = (int)(seed % RUNS), sizes = (int)(seed / RUNS % SIZES), n = 2 + (int)(seed / 3 % 2);
	struct micro_drawn m[MOST];
	struct stream s;
	bool right = true;
	world.random = seed;
	world.control->piece_elems = draw(2) ? MT_BLOCK
										 : mt_ring_block(world.taken) / (world.control->grad == MT_BF16 ? 2 : 4);
	for (int i = 0; i < MOST; i++) m[i] = micro_draw();
	/* before the seed's own device is opened: two of the cuda's cannot register the same memory in one process */
	for (int i = 0; i < n; i++) reference(of_run, sizes, m[i].shape);
	stream_begin(&s, device_open(seed), &sizes_of_runs[sizes]);
	for (int i = 0; i < 3; i++) {
		static const enum without levers[] = {WITHOUT_PREFETCH, WITHOUT_PIECES, WITHOUT_UPDATE};
		bool without = draw(4) == 0;
		if (without) s.requested.without |= levers[i];
		went.without[i] += without;
	}
	for (int i = 0; right && i < n; i++) {
		const struct shape *z = &shapes[m[i].shape];
		if (talks)
			mt_say("seed %llu: %s, sizes %d, without %u; neighbours: eager %u, stale in %lld", (unsigned long long)seed,
				runs[of_run].model, sizes, s.requested.without, m[i].eager, (long long)m[i].stale_in);
		struct seen got = micro(&s, z, seed * 1000 + (uint64_t)i * 10, m[i].eager, m[i].stale_in);
		right = same(reference(of_run, sizes, m[i].shape), &got, seed);
		went.micros++;
		went.evals += !z->train;
	}
	stream_end(&s);
	return right;
}

static enum { ANY, LAYERS, PASSES } order; /* of the seeds to go through */

static bool in_order(uint64_t seed)
{
	bool passes = sizes_of_runs[seed / RUNS % SIZES].pass_rows != 0;
	return order == ANY || passes == (order == PASSES);
}

/* Seeds from, from + 1, ...: those of each run one after another */
static bool seeds_right(const char *name, const char *models, uint64_t from, uint64_t count)
{
	bool right = true;
	for (int i = 0; right && i < RUNS; i++) {
		char model[4096];
		snprintf(model, sizeof model, "%s/%s/model", models, runs[i].model);
		world_open(name, model, runs[i].layers, runs[i].experts, runs[i].dtype, runs[i].grad, runs[i].train);
		for (uint64_t seed = from; right && seed < from + count; seed++)
			if (seed % RUNS == (uint64_t)i && in_order(seed)) right = seed_right(seed);
		world_close(name);
	}
	return right;
}

static int seeds(const char *name, const char *models, uint64_t from, uint64_t count)
{
	unsigned passes = 0;
	for (uint64_t seed = from; seed < from + count; seed++) passes += sizes_of_runs[seed / RUNS % SIZES].pass_rows != 0;
	if (!seeds_right(name, models, from, count)) {
		printf("\n");
		return 1;
	}
	printf(
		"%llu seeds layer-major, %u pass-major: %u micro-batches, %u of them evaluations, %u aborted and sent again; "
		"%u in place, %u by windows of experts, %u by groups of heads, %u residuals offloaded, %u blocks offloaded; "
		"checkpoint levels %u %u %u %u; without prefetch %u, pieces %u, update %u\n",
		(unsigned long long)count - passes, passes, went.micros, went.evals, went.stale, went.zero_copies, went.windows,
		went.groups, went.residual_offloaded, went.offloaded, went.levels[0], went.levels[1], went.levels[2],
		went.levels[3], went.without[0], went.without[1], went.without[2]);
	return 0;
}

/* ---- without each in turn ---- */

/* In a separate process: garbage as a token leads anywhere */
static bool missed(const char *name, const char *models, uint64_t count)
{
	int status;
	fflush(stdout);
	pid_t pid = fork_child();
	if (pid == 0) {
		alarm(120);
		if (!freopen("/dev/null", "w", stderr)) _exit(2);
		breaks = true;
		bool right = seeds_right(name, models, 1, count);
		fflush(stdout);
		_exit(right ? 0 : 1);
	}
	MT_ASSERT(pid > 0 && waitpid(pid, &status, 0) == pid);
	mt_run_remove(name, true);
	bool ended = !WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM;
	if (WIFSIGNALED(status)) printf("%s", strsignal(WTERMSIG(status)));
	else if (WEXITSTATUS(status) > 1) printf("exits with %d", WEXITSTATUS(status));
	else if (WEXITSTATUS(status) == 0) printf("not missed");
	return ended && (WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
}

/* In one loop order at least: layer-major has more to wait for, but does not come by all of it. */
static int missed_in_orders(const char *name, const char *models, uint64_t count, const char *what)
{
	printf("%s: layer-major: ", what);
	order = LAYERS;
	bool layers = missed(name, models, count);
	printf("; pass-major: ");
	order = PASSES;
	bool passes = missed(name, models, count);
	printf("%s\n", layers || passes ? "" : ": NEEDLESS");
	return layers || passes ? 0 : 1;
}

static int without(const char *name, const char *models, uint64_t count)
{
	static const char *const words[] = {"left out", "too early"};
	char what[256];
	int status = 0;
	/* and so nobody has to compute what is right again */
	MT_ASSERT(seeds_right(name, models, 1, count));
	for (int how = LEFT_OUT; how <= TOO_EARLY; how++)
		for (broken = 0, broken_how = (enum how)how; broken < SITES; broken++) {
			const struct site *at = __start_sites[broken];
			snprintf(what, sizeof what, "%s:%d: %s: %s %s", strrchr(at->file, '/') + 1, at->line, at->function,
				at->call, words[how]);
			if (matters(at, (enum how)how)) status |= missed_in_orders(name, models, count, what);
		}
	for (broken = 0, broken_how = OVERLAP; broken < OVERLAPS; broken++) {
		snprintf(what, sizeof what, "%s overlap", overlaps[broken]);
		status |= missed_in_orders(name, models, count, what);
	}
	return status;
}

int main(int argc, char **argv)
{
	mt_cli(&(struct mt_program){.name = "stream-chaos",
			   .usage = "see the source",
			   .about = "",
			   .opts = (const struct mt_opt[]){{0}}},
		1, argv, NULL, 0);
	if (argc == 6 && !strcmp(argv[1], "seeds"))
		return seeds(argv[2], argv[3], strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
	talks = argc == 5 && !strcmp(argv[1], "one");
	if (talks) return seeds(argv[2], argv[3], strtoull(argv[4], NULL, 10), 1);
	if (argc == 5 && !strcmp(argv[1], "without")) return without(argv[2], argv[3], strtoull(argv[4], NULL, 10));
	mt_die(MT_EX_USAGE, "seeds RUN MODELS FIRST COUNT, without RUN MODELS COUNT, or one RUN MODELS SEED");
}
