/* request.c: plans a micro-batch: says what is wanted and how much memory there is (struct plan_request), lets search.c
 * find the plan, takes the memory, and lays out its arrays. The result is s->planning.micro.
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/choices.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "stream.h"

/* ---- budgets ---- */

static bool is_unified(const struct stream *s) { return s->dev->gpu && s->dev->gpu->unified; }

/* Bytes of device memory that this stream may have in all: what is free now and what it has already, unless less was
 * requested. On the cores: half of what was available of the host's memory, or as requested. */
static uint64_t budget_now(struct stream *s)
{
	uint64_t have = mt_mem_available();
	if (!s->dev->room) {
		if (!s->memory.budget) s->memory.budget = have == UINT64_MAX ? 0 : have / 2;
		return s->memory.budget;
	}
	have = s->dev->room(s->dev) + s->dev->own + s->memory.arena_bytes;
	return s->memory.budget && s->memory.budget < have ? s->memory.budget : have;
}

/* Activations may have what is available of the host's memory, but for an eighth that others may need. On a device
 * whose memory is the host's: what its budget leaves of that; what is requested of a GPU's limits that budget, too.
 * Memory that this stream holds already is available to it. */
static void host_limit(const struct stream *s, struct plan_request *req)
{
	bool one = !s->dev->room || req->unified;
	uint64_t have = mt_mem_available(), mine = s->memory.offload_bytes + (one ? s->memory.arena_bytes : 0);
	req->host_beside = mt_run_bytes(s->run);
	if (req->unified && s->requested.host) {
		uint64_t left = s->requested.host > req->host_beside ? s->requested.host - req->host_beside : 0;
		if (req->memory > left) req->memory = left;
	}
	have = have == UINT64_MAX ? have : have - have / 8 + mine;
	if (one && have != UINT64_MAX) have = have > req->memory ? have - req->memory : 0;
	req->host = have > UINT64_MAX - req->host_beside ? UINT64_MAX : req->host_beside + have;
	if (s->requested.host && s->requested.host < req->host) req->host = s->requested.host;
}

/* ---- requests ---- */

/* The update of units on the tier takes as long as their drives */
static void tier_request(const struct stream *s, struct plan_request *req)
{
	const struct mt_tier *t = &s->control->tier;
	if (!t->tiles || !req->train) return;
	request_tier(req, s->requested.tier * 1e9,
		&(struct mt_layout_tier){.tiles = t->tiles,
			.slots = t->slots,
			.slot_bytes = t->slot_bytes,
			.bytes = t->bytes,
			.params = t->params});
}

static int request_make(struct stream *s, uint32_t rows, uint32_t seq, bool train, struct plan_request *req)
{
	*req = (struct plan_request){
		.geo = s->geo,
		.lists = s->lists,
		.dtype = (enum mt_dtype)s->control->dtype,
		.grad = (enum mt_dtype)s->control->grad,
		.state = (enum mt_dtype)s->control->state,
		.optim = (enum mt_optim)s->control->optim,
		.rows = rows,
		.seq = seq,
		.micros = 1,
		.streams = requested_streams(&s->requested),
		.nodes = 1,
		.train = train,
		.scores = !train && s->taken.msg.batch.scores,
		.elem = s->dev->elem,
		.operand = s->dev->operand,
		.fp8 = s->dev->fp8,
		.zero_copy = s->zero_copy,
		.reads_rows = !s->zero_copy && s->dev->read_rows,
		.unified = is_unified(s),
		.memory = budget_now(s),
		.work = s->dev->own,
		.recompute = s->requested.recompute,
		.without = s->requested.without,
		.expert_window = s->requested.expert_window,
		.chunk_tokens = s->sizes.chunk_tokens,
		.head_tokens = s->sizes.head_tokens,
		.pass_rows = s->sizes.pass_rows,
		.fixed = true,
		.weighted = s->planning.weighted,
		.objective = s->planning.objective,
		.top = s->taken.msg.batch.top,
		.packed = s->planning.packed,
	};
	if (s->dev->attention_need) req->attention = s->dev->attention_need(s->dev, seq, s->planning.packed, train);
	host_limit(s, req);
	request_sizes(req, mt_unit(s->run, 0), mt_tensor(s->run, 0));
	if (s->requested.tier_given) tier_request(s, req);
	if (!s->rates.measured.cores) return profile_parse(s->requested.profile, req->dtype, s->dev->gpu, &req->profile);
	req->profile = s->rates.measured;
	req->selects = s->rates.selects;
	return 0;
}

/* ---- memory ---- */

static void arena_release(struct stream *s)
{
	s->dev->release(s->dev, s->memory.arena, s->memory.arena_bytes);
	s->memory.arena = NULL;
	s->memory.arena_bytes = 0;
	s->memory.tables = 0;
}

static int arena_grow(struct stream *s, uint64_t bytes)
{
	if (bytes <= s->memory.arena_bytes) return 0;
	arena_release(s);
	s->memory.arena = s->dev->alloc(s->dev, bytes);
	if (!s->memory.arena)
		return mt_fail(MT_EX_NOMEM, "no %llu MiB of device memory", (unsigned long long)(bytes >> 20));
	s->memory.arena_bytes = bytes;
	return 0;
}

static void offload_free(struct stream *s)
{
	if (s->dev->host_release) s->dev->host_release(s->dev, s->memory.offload_buffer);
	else free(s->memory.offload_buffer);
	s->memory.offload_buffer = NULL;
	s->memory.offload_bytes = 0;
}

static int offload_grow(struct stream *s, uint64_t bytes)
{
	if (bytes <= s->memory.offload_bytes) return 0;
	if (s->memory.offload_buffer) offload_free(s);
	s->memory.offload_buffer = s->dev->host_alloc ? s->dev->host_alloc(s->dev, bytes) : malloc(bytes);
	if (!s->memory.offload_buffer)
		return mt_fail(MT_EX_NOMEM, "no %llu MiB of host memory for activations", (unsigned long long)(bytes >> 20));
	s->memory.offload_bytes = bytes;
	return 0;
}

/* With windows: where each expert's rows begin, of each slice of each layer */
static int rows_grow(struct stream *s, const struct plan_request *req, const struct plan *plan)
{
	uint64_t bytes = plan->expert_window
		? s->geo->layers * slices_of_pass(req, plan) * (req->most.experts + 1) * sizeof *s->memory.rows
		: 0;
	if (bytes <= s->memory.rows_bytes) return 0;
	free(s->memory.rows);
	s->memory.rows_bytes = 0;
	if (!(s->memory.rows = malloc(bytes)))
		return mt_fail(MT_EX_NOMEM, "no %llu MiB of memory for the rows of experts", (unsigned long long)(bytes >> 20));
	s->memory.rows_bytes = bytes;
	return 0;
}

/* Where the losses of a micro-batch's tokens arrive, if there is use for them, and what an objective makes of them */
static int scores_grow(struct stream *s, const struct plan_request *req)
{
	size_t n = needs_losses(req) ? (size_t)req->rows * req->seq : 0;
	size_t top = req->scores ? MT_TEACHER_WORDS(req->top) * sizeof *s->memory.top : 0;
	size_t bytes = n * (sizeof *s->memory.scores + sizeof *s->memory.scales + top);
	s->memory.scales = (float *)(s->memory.scores + n);
	s->memory.top = (uint32_t *)(s->memory.scales + n);
	if (bytes <= s->memory.scores_bytes) return 0;
	free(s->memory.scores);
	s->memory.scores_bytes = 0;
	if (!(s->memory.scores = malloc(bytes)))
		return mt_fail(MT_EX_NOMEM, "no %zu MiB of memory for the losses of tokens", bytes >> 20);
	s->memory.scores_bytes = bytes;
	s->memory.scales = (float *)(s->memory.scores + n);
	s->memory.top = (uint32_t *)(s->memory.scales + n);
	return 0;
}

static int arrays_make(struct memory_layout *at, size_t layers)
{
	if (at->saved) return 0;
	at->weights = calloc(layers, sizeof *at->weights);
	at->grads = calloc(layers, sizeof *at->grads);
	at->x = calloc(layers + 1, sizeof *at->x);
	at->saved = calloc(layers, sizeof *at->saved);
	if (!at->weights || !at->grads || !at->x || !at->saved)
		return mt_fail(MT_EX_NOMEM, "no memory for %zu layers' plan", layers);
	return 0;
}

void plan_release(struct stream *s)
{
	struct memory_layout *at = &s->planning.micro.layout;
	free(at->weights);
	free(at->grads);
	free(at->x);
	free(at->saved);
	free(s->memory.rows);
	free(s->memory.scores);
	if (s->memory.offload_buffer) offload_free(s);
	s->dev->release(s->dev, s->memory.arena, s->memory.arena_bytes);
	for (int k = 0; k < MT_KINDS; k++) {
		free(s->memory.cos[k]);
		free(s->memory.sin[k]);
	}
}

static int rope_grow(struct stream *s, uint32_t positions)
{
	if (positions <= s->memory.positions) return 0;
	for (uint32_t k = 0; k < s->geo->n_kinds; k++) {
		const struct mt_layer *l = &s->geo->kind[k];
		size_t bytes = (size_t)positions * (l->rope_dim / 2) * sizeof(float);
		if (!bytes) continue;
		float *cosines = realloc(s->memory.cos[k], bytes), *sines = cosines ? realloc(s->memory.sin[k], bytes) : NULL;
		if (cosines) s->memory.cos[k] = cosines;
		if (sines) s->memory.sin[k] = sines;
		if (!sines) return mt_fail(MT_EX_NOMEM, "no memory for the rotary table of %u positions", positions);
		rope_table(l, s->memory.positions, positions, cosines, sines);
	}
	s->memory.positions = positions;
	return 0;
}

/* ---- what the run's first stream selects ---- */

/* Is attention over rows of this length computed by a library, which needs work memory? The run's first stream that
 * asks decides, as if the rows were to be trained on and held several documents. The device tests the library in the
 * arena's place. */
static int attention_backend_select(struct stream *s, uint32_t rows, uint32_t seq)
{
	struct device *d = s->dev;
	struct plan_result result;
	struct plan_request req;
	int rc = request_make(s, rows, seq, true, &req);
	if (rc || !req.attention.there || req.attention.selected) return rc;
	req.streams = 1; /* with any number of GPUs, the same bits */
	req.attention = d->attention_need(d, seq, true, true);
	bool with = !plan_search(&req, &result) && result.plan.library_attention;
	if (with) arena_release(s);
	return d->attention_select(d, seq, &with);
}

/* The run's first micro-batch decides the sizes in the reproducibility record, as if it were to be trained on, if the
 * run can be */
static int sizes_select(struct stream *s, uint32_t rows, uint32_t seq)
{
	struct plan_result result;
	struct plan_request req;
	int rc = request_make(s, rows, seq, s->control->state != MT_NONE, &req);
	req.fixed = false;
	req.streams = 1;
	if (rc || (rc = plan_search(&req, &result))) return rc;
	return record_take(s,
		&(struct chunk_sizes){result.plan.chunk_tokens, result.plan.head_tokens, result.plan.pass_rows});
}

/* ---- a micro-batch ---- */

/* The best plan for which there is memory. Between asking how much is free and taking it another process may have taken
 * some: then the best plan for what is left. */
static int plan_take(struct stream *s, struct plan_request *req, struct plan_result *result)
{
	for (;;) {
		int rc = plan_search(req, result);
		if (rc && req->streams > 1) { /* of what is free, the run's other streams may have taken their parts already */
			req->streams = 1;
			continue;
		}
		if (rc || (rc = arena_grow(s, memory_arena(req, result->bytes))) == 0) return rc;
		if (!s->dev->room) return rc;
		uint64_t now = budget_now(s);
		req->memory = now < result->bytes ? now : result->bytes - 1;
	}
}

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

static void plan_report(const struct plan_request *req, const struct plan_result *p, uint32_t micros)
{
	const struct plan *plan = &p->plan;
	const struct prediction *t = &p->predicted;
	uint32_t layers = req->geo->layers, away = blocks_offloaded(plan, layers);
	char windows[64] = "", offloaded[64] = "";
	const char *groups = plan->by_heads ? ", attention by groups of heads" : "";
	if (away) snprintf(offloaded, sizeof offloaded, "; what %u of them keep offloaded to host memory", away);
	if (plan->expert_window)
		snprintf(windows, sizeof windows, ", windows of %u expert%s", plan->expert_window, mt_s(plan->expert_window));
	mt_say(
		"%s: %u row%s of %u token%s: %s of %u row%s, chunks of %u; %u weight and %u gradient slot%s%s%s; blocks keep: "
		"%u all, %u all but gate and up, %u attention's output, %u their input%s%s",
		req->train ? "train" : "eval", req->rows, mt_s(req->rows), req->seq, mt_s(req->seq),
		plan->pass_rows ? "passes" : "one pass", rows_of_pass(req, plan), mt_s(rows_of_pass(req, plan)),
		rows_of_chunk(req, plan), plan->weight_slots, plan->grad_slots, mt_s(plan->grad_slots), windows, groups,
		blocks_at(plan, layers, KEEP_ALL), blocks_at(plan, layers, KEEP_ALL_BUT_GATE_UP),
		blocks_at(plan, layers, KEEP_ATTENTION), blocks_at(plan, layers, KEEP_INPUT),
		plan->residual_offloaded ? "; residuals offloaded to host memory" : "", offloaded);
	mt_say(
		"predicted by the rates of %s: %.2f of %.2f MiB of device memory, %.2f of them the device's own, %.2f MiB of "
		"host memory; a step of %u such micro-batch%s %.3g s: forward %.3g, backward %.3g, stall for the "
		"optimizer %.3g, tail %.3g",
		req->profile.name, mib(p->bytes), mib(req->memory), mib(req->work), mib(p->host_bytes), micros,
		micros == 1 ? "" : "es", micros * (t->forward + t->backward) + t->stall + t->tail, micros * t->forward,
		micros * t->backward, t->stall, t->tail);
}

/* on a device with its own memory the first plan for training is always reported, for what it predicts of a step */
static void report(struct stream *s, const struct plan_request *req, const struct plan_result *result)
{
	if (s->verbose || (s->dev->room && req->train && !s->planning.reported))
		plan_report(req, result, s->taken.msg.batch.micros);
	s->planning.reported = s->planning.reported || req->train;
}

/* Fixed rates of cores select a plan, but say nothing of this machine */
static bool predicts(const struct stream *s) { return s->dev->room || s->rates.measured.cores; }

/* What mt-step and mt-top show beside a step's time. Of several micro-batches, the last may be smaller than the step's
 * others. */
static void planned_note(struct stream *s, const struct plan_request *req, const struct prediction *t)
{
	const struct mt_msg *m = &s->taken.msg;
	if (!req->train || !predicts(s) || (m->micro && m->micro + 1 == m->batch.micros)) return;
	*mt_planned(s->run, MT_PLANNED_ROW) = (uint64_t)(1e9 * (t->forward + t->backward) / req->rows);
	*mt_planned(s->run, MT_PLANNED_MODEL) = (uint64_t)(1e21 * t->tflops * t->step / req->profile.flops / req->rows);
	*mt_planned(s->run, MT_PLANNED_REST) = (uint64_t)(1e9 * (t->stall + t->tail));
}

static int plan_shape(struct stream *s, uint32_t rows, uint32_t seq, bool train)
{
	struct micro *m = &s->planning.micro;
	struct plan_request *req = &m->request;
	struct plan_result result;
	int rc;
	if ((rc = attention_backend_select(s, rows, seq)) || (rc = arrays_make(&m->layout, s->geo->layers)) ||
		(rc = request_make(s, rows, seq, train, req)) || (rc = plan_take(s, req, &result)) ||
		(rc = offload_grow(s, result.host_bytes / req->streams)) || (rc = rows_grow(s, req, &result.plan)) ||
		(rc = scores_grow(s, req)) || (rc = rope_grow(s, seq)))
		return rc;
	report(s, req, &result);
	planned_note(s, req, &result.predicted);
	uint64_t tokens = (uint64_t)rows_of_pass(req, &result.plan) * seq;
	m->plan = result.plan;
	m->predicted = predicts(s) ? result.predicted.forward + result.predicted.backward : 0;
	m->residual_bytes = tokens * (uint64_t)residual_width(s->geo) * s->dev->elem;
	m->away_bytes = memory_away(req, &m->plan);
	m->bytes = memory_arena(req, memory_lay(req, &m->plan, &m->layout, s->memory.arena));
	return 0;
}

static bool rows_packed(const uint32_t *starts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (starts[i]) return true;
	return false;
}

/* Before the first choice: is this the device whose choices stand? */
static int machine_enter(struct stream *s)
{
	char shares[MT_CHOICE_VALUE];
	if (s->entered || !mt_shares(s->run, shares)) return 0;
	s->entered = true;
	return mt_machine_enter(s->run, s->index, s->dev->machine);
}

int plan_make(struct stream *s, bool *new_shape)
{
	uint32_t rows = s->taken.msg.batch.rows, seq = s->taken.msg.batch.seq;
	bool train = s->taken.msg.txn_kind == MT_TRAIN;
	struct plan_request *last = &s->planning.micro.request;
	size_t n = (size_t)rows * seq;
	int rc;
	s->planning.weighted = s->planning.weighted || s->taken.msg.batch.weights;
	s->planning.objective = s->planning.objective || has_objective(s);
	s->planning.packed = s->planning.packed || rows_packed(s->taken.host + 2 * n, n);
	if ((rc = machine_enter(s)) || (!s->sizes.chunk_tokens && (rc = sizes_select(s, rows, seq)))) return rc;
	s->micro = &s->planning.micro;
	*new_shape = last->rows != rows || last->seq != seq || last->train != train ||
		last->scores != !!s->taken.msg.batch.scores || last->packed != s->planning.packed ||
		last->weighted != s->planning.weighted || last->top != s->taken.msg.batch.top ||
		last->objective != s->planning.objective;
	if (!*new_shape) return 0;
	if ((rc = plan_shape(s, rows, seq, train))) last->rows = 0;
	return rc;
}
