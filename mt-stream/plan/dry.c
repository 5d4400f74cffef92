/* dry.c: the plan that a stream would select, without a run and without a device: the request is made from options and
 * config.json, and from what is known of GPUs and of this machine's cores.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "cli/cli.h"
#include "dry.h"
#include "mt/create.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "mt/memory.h"

#define LIBRARY_BYTES (64u << 20) /* a GEMM library's workspace */
#define CUDNN_BYTES (1u << 20)    /* of cuDNN's attention, beside what a row takes */
#define KERNEL_BYTES (64u << 20)  /* the kernels' own scratch, at least */

/* Bytes that a GPU takes for itself */
static uint64_t work_of(const struct plan_request *req)
{
	uint64_t lse = (uint64_t)req->rows * req->seq * mt_layer_most(req->geo).heads * sizeof(float);
	return LIBRARY_BYTES + (lse > KERNEL_BYTES ? lse : KERNEL_BYTES);
}

/* Heads for which cuDNN 9.25 to 9.28 has deterministic plans (tests/gpu/cudnn-plans), by compute capability */
static const struct cudnn_heads {
	int capability;
	uint32_t most, also; /* elements of a head: multiples of 8 up to `most`, and `also` */
	bool latent;         /* also 192 of q and k with 128 of v */
	bool documents;      /* also in rows of several documents */
	bool square;         /* the backward pass keeps the gradient of all scores */
} cudnn[] = {
	{80, 128, 0, false, false, true},
	{90, 256, 0, false, true, false},
	{100, 128, 256, true, true, false},
	{120, 128, 0, false, false, true},
};

static bool cudnn_takes(const struct cudnn_heads *c, uint64_t dim, uint64_t dim_v)
{
	return dim % 8 == 0 && dim_v % 8 == 0 &&
		((dim <= c->most && dim_v <= c->most) || (dim == c->also && dim_v == dim) ||
			(c->latent && dim == 192 && dim_v == 128));
}

static const struct cudnn_heads *cudnn_of(int capability)
{
	size_t i = sizeof cudnn / sizeof *cudnn - 1;
	while (i && cudnn[i].capability > capability) i--;
	return &cudnn[i];
}

/* What cuDNN's deterministic backward pass needs for layers of this kind: dQ, dK and dV in fp32 of the heads of a call,
 * where it is square also T^2 in bf16 for each */
static struct attention_call cudnn_call(const struct plan_request *req, const struct mt_layer *l)
{
	const struct cudnn_heads *c = cudnn_of(req->profile.capability);
	uint64_t t = req->seq, dim = l->head_dim, dim_v = (uint64_t)head_dim_v(l), row;
	if (!l->heads || !cudnn_takes(c, dim, dim_v) || (req->packed && !c->documents) ||
		__builtin_mul_overflow(t * l->heads, (c->square ? 2 * t : 0) + 4 * (2 * dim + dim_v), &row))
		return (struct attention_call){0};
	uint32_t of_call = kv_heads_of_call(row, l->kv_heads);
	row = row / l->kv_heads * of_call;
	return (struct attention_call){.row = row, .rows = rows_of_call(row), .kv_heads = of_call, .packs = c->documents};
}

/* Work memory of cuDNN's attention. A run asks the library itself. */
static struct attention_need cudnn_need(const struct plan_request *req)
{
	struct attention_need need = {.fixed = CUDNN_BYTES};
	if (req->dtype != MT_BF16 || !attention_plain(req->geo) || req->seq < 64) return need;
	for (uint32_t k = 0; k < req->geo->n_kinds; k++) {
		need.kind[k] = cudnn_call(req, &req->geo->kind[k]);
		need.there = need.there || need.kind[k].rows;
	}
	return need;
}

/* A run's regions; 0: no memory for a plan */
static uint64_t regions_of(const struct dry *o, const struct mt_layout *l, const struct plan_request *req)
{
	uint64_t tokens = (uint64_t)req->rows * req->seq;
	uint32_t streams = larger(mt_default_streams(req->nodes), req->streams); /* as mt-run has create make rings */
	return mt_node_need(l, o->config_bytes, tokens < 2 ? 2 : tokens, req->top, req->nodes, streams);
}

/* The host memory budget, and what the run takes of it beside activations: the run's regions, and in mt-stream the rows
 * and the rotary tables */
static int host_of(const struct dry *o, const struct mt_layout *l, struct plan_request *req)
{
	uint64_t tokens = (uint64_t)req->rows * req->seq, tables = 0;
	uint64_t regions = regions_of(o, l, req);
	for (uint32_t k = 0; k < req->geo->n_kinds; k++)
		tables += (uint64_t)req->seq * req->geo->kind[k].rope_dim * sizeof(float);
	if (!regions) return mt_fail(MT_EX_NOMEM, "no memory for a plan");
	req->host_beside = regions + req->streams * (tokens * (3 + MT_TEACHER_WORDS(req->top)) * sizeof(uint32_t) + tables);
	uint64_t shared = o->here ? mt_mem_available() : (uint64_t)req->profile.memory;
	req->host = o->r->host ? o->r->host : req->unified ? shared : UINT64_MAX;
	if (req->host_beside > req->host)
		return mt_fail(MT_EX_NOMEM,
			"a run of this model needs %llu MiB of host memory, have %llu MiB: "
			"a smaller model, or a larger --host-memory",
			(unsigned long long)((req->host_beside + (1 << 20) - 1) >> 20), (unsigned long long)(req->host >> 20));
	return 0;
}

/* A stream plans as if its run had one node and its step one micro-batch; what decides bits also as if the node had one
 * GPU. That plan, with the times of a whole step */
static int search(const struct plan_request *req, struct plan_result *p)
{
	struct plan_request alone = *req;
	int rc;
	alone.nodes = alone.micros = alone.streams = 1;
	if ((rc = plan_search(&alone, p))) return rc;
	if (req->streams > 1) {
		alone.streams = req->streams;
		alone.chunk_tokens = p->plan.chunk_tokens;
		alone.head_tokens = p->plan.head_tokens;
		alone.pass_rows = p->plan.pass_rows;
		alone.fixed = true;
		if ((rc = plan_search(&alone, p))) return rc;
	}
	struct times t = unit_times(req, &p->plan, rows_of_pass(req, &p->plan));
	predict(req, &p->plan, &t, &p->predicted);
	predict_parts(req, &p->plan, &p->predicted);
	return 0;
}

/* lo, m and v of the last units are on drives, as mt-store create --tier places them: first as many as can be, to see
 * how much memory is left for the others */
static int tier_of(const struct dry *o, struct mt_layout *l, struct plan_request *req)
{
	enum mt_pass_order order = req->early || req->grad == MT_NONE ? MT_BACKWARD_ORDER : MT_FORWARD_ORDER;
	uint64_t stays = o->tier_memory, most = o->r->host - o->r->host / 10;
	uint32_t first = mt_layout_tier_first(l, o->tier_memory_given ? stays : 0);
	int rc = mt_layout_tier(l, first, MT_TILE_ELEMS, MT_TIER_SLOTS, order);
	uint64_t need = rc || o->tier_memory_given || !o->r->host ? 0 : regions_of(o, l, req);
	if (need && need < most) {
		uint64_t memory = most - need + mt_layout_state_bytes(l, 0); /* which `need` has already */
		rc = mt_layout_tier(l, mt_layout_tier_first(l, memory), MT_TILE_ELEMS, MT_TIER_SLOTS, order);
	}
	if (rc == 0) request_tier(req, o->r->tier * 1e9, &l->tier);
	return rc;
}

/* The plan for a request. 0; -71: device or host memory is short */
static int plan_of(const struct dry *o, struct plan_request *req, struct plan_result *p, uint64_t *store)
{
	struct mt_layout l;
	int rc = mt_layout_make(&l, req->geo, req->dtype, req->grad, req->state, req->optim);
	if (rc) return rc;
	if ((rc = mt_layout_freeze(&l, o->train, o->freeze)) || (o->r->tier_given && (rc = tier_of(o, &l, req)))) {
		mt_layout_release(&l);
		return rc;
	}
	request_sizes(req, l.units, l.tensors);
	if (!req->profile.cores) {
		req->work = work_of(req);
		if (!o->own_attention) req->attention = cudnn_need(req);
	}
	rc = host_of(o, &l, req);
	*store = mt_node_store(&l, req->nodes);
	mt_layout_release(&l);
	/* the cores' memory is the host's, and so may a GPU's be */
	uint64_t left = req->host - req->host_beside;
	if (rc == 0 && ((req->profile.cores && o->r->host) || req->unified) && req->memory > left) req->memory = left;
	return rc ? rc : search(req, p);
}

/* Seconds that the planned step takes for each of its rows */
static double row_time(const struct plan_request *req, const struct plan_result *p)
{
	return p->predicted.step / ((double)req->rows * req->micros);
}

/* The step's rows in micro-batches of equal size, as many as make it shortest: sets rows and micros. Errors as plan_of
 * for the smallest that were tried */
static int plan_split(const struct dry *o, struct plan_request *req, struct plan_result *p, uint64_t *store)
{
	const uint32_t rows = req->rows, most = req->grad == MT_NONE ? 1 : rows;
	struct plan_request best = *req;
	int rc, found = 0;
	for (uint32_t n = 1; n <= most; n += n / 8 + 1) {
		struct plan_request now = *req;
		struct plan_result plan;
		uint64_t bytes;
		now.rows = (rows - 1) / n + 1;
		now.micros = (rows - 1) / now.rows + 1;
		if ((rc = plan_of(o, &now, &plan, &bytes)) && rc != -MT_EX_NOMEM) return rc;
		if (rc || (found && row_time(&now, &plan) >= row_time(&best, p))) continue;
		best = now;
		*p = plan;
		*store = bytes;
		found = 1;
	}
	*req = best;
	if (!found) req->rows = 1;
	return found ? 0 : plan_of(o, req, p, store);
}

enum { WORTH_PERCENT = 3 }; /* a shorter step is advice from here on */

/* The options that would shorten the step most. Where two do it nearly as well, the one that changes less. */
static struct advice advise(const struct dry *o, const struct plan_request *req, const struct plan_result *p)
{
	static const struct {
		const char *options;
		enum mt_dtype grad, state; /* 0: as it is */
		bool host;
	} others[] = {
		{"--grad bf16", MT_BF16, 0, false},
		{"--state int8", 0, MT_INT8, false},
		{"--state int8 --grad bf16", MT_BF16, MT_INT8, false},
		{"a larger --host-memory", 0, 0, true},
	};
	struct advice best = {.times = 1};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		struct plan_request other = *req;
		struct plan_result plan;
		struct dry dry = *o;
		struct requested requested = *o->r;
		uint64_t store;
		bool grad = others[i].grad && req->grad == MT_FP32, state = others[i].state && req->state == MT_FP32;
		if (others[i].grad ? !grad || (others[i].state && !state) : others[i].state ? !state : !requested.host)
			continue;
		if (grad) other.grad = others[i].grad;
		if (state) other.state = others[i].state;
		if (others[i].host) requested.host = 0;
		dry.r = &requested;
		if (plan_of(&dry, &other, &plan, &store)) continue;
		double times = row_time(req, p) / row_time(&other, &plan);
		if (times >= best.times * (1 + WORTH_PERCENT / 100.0))
			best = (struct advice){.options = others[i].options, .times = times};
	}
	return best;
}

/* What bounds the step: of what 1 % more makes the planned step shortest */
static void bound_find(const struct plan_request *req, const struct plan_result *p, struct advice *a)
{
	const double more = 1.01;
	struct plan_request other = *req;
	struct profile *rates = &other.profile;
	const struct {
		const char *name;
		double *rate, *also;
	} all[] = {
		{"compute", &rates->flops, &rates->hbm},
		{"copies in", &rates->h2d, NULL},
		{"copies out", &rates->d2h, NULL},
		{"links of the host", &rates->links, NULL},
		{"host memory", &rates->ram, NULL},
		{"update", &rates->adam, NULL},
		{"network", &other.net, NULL},
		{"drives", &other.tier, NULL},
	};
	double shortest = INFINITY;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		struct prediction t;
		other = *req;
		*all[i].rate *= more;
		if (all[i].also) *all[i].also *= more;
		struct times times = unit_times(&other, &p->plan, rows_of_pass(&other, &p->plan));
		predict(&other, &p->plan, &times, &t);
		if (t.step >= shortest) continue;
		shortest = t.step;
		a->bound = all[i].name;
	}
	a->share = (1 - shortest / p->predicted.step) / (1 - 1 / more);
}

struct other {
	const struct dry *o;
	struct plan_request req;
};

/* mt_small's need: of the host */
static uint64_t other_need(void *arg, enum mt_dtype grad, enum mt_dtype state, uint32_t rows)
{
	const struct other *other = arg;
	struct plan_request req = other->req;
	struct plan_result p;
	uint64_t store;
	req.grad = grad;
	req.state = state;
	req.rows = rows;
	return plan_of(other->o, &req, &p, &store)
		? UINT64_MAX
		: req.host_beside + p.host_bytes + (req.profile.cores || req.unified ? p.bytes : 0);
}

/* The failure, with what would fit instead */
static int add_remedies(const struct dry *o, const struct plan_request *req)
{
	struct other other = {o, *req};
	struct mt_small s = {.grad = req->grad,
		.state = req->state,
		.rows = req->rows,
		.none = req->nodes == 1 && req->micros == 1,
		.have = UINT64_MAX - 1,
		.need = other_need,
		.arg = &other};
	char why[1024], fits[256];
	snprintf(why, sizeof why, "%s", mt_errmsg());
	return mt_remedies(&s, fits, sizeof fits) ? mt_fail(MT_EX_NOMEM, "%s; fits: %s", why, fits)
											  : mt_fail(MT_EX_NOMEM, "%s", why);
}

/* Drives are made for some number of bytes written, about 1 PB for each TB of good ones */
static void warn_wear(const struct dry *o, const struct plan_request *req)
{
	const double pb = 1e15, most = 0.5e15, least = 10000;
	double written = req->tier > 0 ? (double)req->tier_bytes : 0, all = written * (double)o->steps;
	if (all > most)
		mt_say("warning: %llu steps write %.2f PB to the drives of --tier: look up how much they are rated for (TBW)",
			(unsigned long long)o->steps, all / pb);
	else if (!o->steps && written * least > pb)
		mt_say("warning: %.0f steps write 1 PB to the drives of --tier: look up how much they are rated for (TBW)",
			pb / written);
}

static int show(const struct dry *o, struct plan_request *req);

/* Where --host-memory is short, JSON has the plan without it, whose numbers say how short it is. Returns the failure */
static int show_short(const struct dry *o, const struct plan_request *short_of, struct plan_request req)
{
	struct requested without = *o->r;
	struct dry unlimited = *o;
	char why[1400];
	(void)add_remedies(o, short_of);
	snprintf(why, sizeof why, "%s", mt_errmsg());
	without.host = 0;
	unlimited.r = &without;
	if (o->json && o->r->host) (void)show(&unlimited, &req);
	return mt_fail(MT_EX_NOMEM, "%s", why);
}

static int show(const struct dry *o, struct plan_request *req)
{
	const struct plan_request as_given = *req;
	struct plan_result p;
	uint64_t store;
	int rc = o->batch ? plan_split(o, req, &p, &store) : plan_of(o, req, &p, &store);
	if (rc == -MT_EX_NOMEM) return show_short(o, req, as_given);
	if (rc) return rc;
	if (!profile_named(o->r->profile))
		mt_say("plans for this machine's %s; --profile NAME plans for another, --profile help lists them",
			req->profile.name);
	if (req->nodes > MT_NODES || req->nodes * req->streams > MT_STREAMS)
		mt_say("plans for %u node%s of %u stream%s; a run has at most %d nodes, and %d streams in all", req->nodes,
			mt_s(req->nodes), req->streams, mt_s(req->streams), MT_NODES, MT_STREAMS);
	warn_wear(o, req);
	struct advice advice = advise(o, req, &p);
	bound_find(req, &p, &advice);
	if (o->json) show_json(req, &p, store, &advice);
	else if (o->csv) show_csv(req, &p, &advice);
	else show_text(req, &p, store, &advice);
	return 0;
}

/* Plan for this machine's cores. As in a run, they multiply bf16 weights in bf16 if that is faster, and read weights in
 * place if they are operands. */
static int cores_of(const struct dry *o, const char *rates, struct plan_request *req)
{
	const char *lacks = gemm_lacks_bf16();
	bool bf16 = req->dtype == MT_BF16 && (o->r->compute ? o->r->compute == MT_BF16 : gemm_bf16_is_fast());
	if (bf16 && lacks) return mt_fail(MT_EX_CONFIG, "--compute bf16: %s", lacks);
	if (o->r->compute == MT_BF16 && !bf16)
		return mt_fail(MT_EX_CONFIG, "--compute %s: the cores compute in fp32 where weights are fp32",
			o->r->compute_words);
	int rc = profile_cores(rates, req->dtype, requested_threads(o->r), bf16, &req->selects, &req->profile);

	req->elem = sizeof(float);
	req->operand = bf16 ? 2 : 4;
	req->fp8 = o->r->fp8 ? 2 : 0;
	req->zero_copy = bf16 || req->dtype == MT_FP32;
	req->memory = o->r->memory ? o->r->memory : mt_mem_available() / 2;
	if (!req->chunk_tokens) req->chunk_tokens = default_chunk_tokens();
	if (!req->head_tokens) req->head_tokens = default_head_tokens(req->geo);
	req->fixed = true;
	return rc;
}

static int rates_of(const struct dry *o, struct plan_request *req)
{
	const char *spec = o->r->profile, *rates = profile_cores_rates(spec);
	if (rates && (profile_named(spec) || !o->here)) return cores_of(o, rates, req);
	if (o->r->compute && o->r->compute != req->dtype)
		return mt_fail(MT_EX_CONFIG, "--compute: a GPU computes in the run's --dtype");
	int rc = profile_parse(spec, req->dtype, o->here, &req->profile);
	req->fp8 = o->r->fp8;
	if (!rc && o->r->fp8 && req->profile.fp8 == 0)
		return mt_fail(MT_EX_CONFIG, "--compute fp8: needs a GPU of compute capability 9.0 or later, this is %d.%d",
			req->profile.capability / 10, req->profile.capability % 10);
	req->memory = o->r->memory ? o->r->memory : (uint64_t)req->profile.memory;
	req->unified = req->profile.unified;
	req->zero_copy = req->unified && (!o->here || o->here->host_tables);
	req->reads_rows = !req->zero_copy;
	return rc;
}

int plan_show(struct dry *o, struct plan_request *req)
{
	struct mt_geometry geo;
	char *text = NULL;
	int rc = mt_config_read_mtp(o->config, o->mtp, &geo, &text);
	req->geo = &geo;
	o->config_bytes = rc ? 0 : strlen(text);
	if (rc == 0) rc = rates_of(o, req);
	if (rc == 0) rc = show(o, req);
	free(text);
	return rc;
}
