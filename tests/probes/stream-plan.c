/* stream-plan: what must hold of every plan, over random geometries, shapes and budgets.
 *
 * stream-plan FROM SEEDS seeds FROM .. FROM + SEEDS - 1; a line for each thing that does not hold, then a summary
 *     stream-plan gpu MODEL CAPABILITY MULTIPROCESSORS KHZ MEMORY-KHZ BUS-BITS
 *                                 what such a GPU is taken for: GB/s of bus and memory, TFLOP/s in bf16 and fp32
 *
 * More memory, of the device or of the host, never gives a slower plan; a plan never takes more than there is; the
 * least that is named works and a page less does not; times are finite and positive and add up.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../mt-stream/plan/plan.h"
#include "cli/cli.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "splitmix.h"

static uint64_t state;
static uint64_t now_seed;
static int wrong, plans, kinds[8], windows;

static uint32_t draw(uint32_t below) { return (uint32_t)(splitmix_next(&state) % below); }
static uint32_t between(uint32_t low, uint32_t high) { return low + draw(high - low + 1); }

static void expect(bool holds, const char *what)
{
	if (holds) return;
	wrong++;
	printf("seed %llu: %s\n", (unsigned long long)now_seed, what);
}

static struct mt_geometry geometry(void)
{
	static const uint32_t dims[] = {16, 64, 128};
	struct mt_geometry g = {.family = "llama", .layers = draw(4) ? between(1, 12) : between(13, 80), .pad_token = -1};
	struct mt_layer *l = g.kind;

	l->rope_dim = l->head_dim = dims[draw(3)];
	l->kv_heads = between(1, 8);
	l->heads = l->kv_heads * between(1, 8);
	g.hidden = l->heads * l->head_dim;
	l->ffn = g.hidden * between(1, 8) / 2;
	g.vocab = 256 << draw(10);
	g.flags = draw(64) & (MT_TIED | MT_QKV_BIAS | MT_MLP_BIAS | MT_QK_NORM);
	g.embed_scale = g.residual_scale = g.mlp_scale = g.gate_scale = g.attention_in_scale = g.logit_scale = 1;
	g.n_kinds = 1;
	if (now_seed % 3 == 0) { /* experts, in some seeds those of the families that pack them */
		l->experts = 2u << draw(7);
		l->experts_per_token = between(1, l->experts < 8 ? l->experts : 8);
		l->expert_ffn = g.hidden / (1u << draw(3));
		while (3ull * l->experts * g.hidden * l->expert_ffn >= 1ull << 34) l->experts /= 2; /* the most of a unit */
		l->shared_ffn = draw(2) * l->ffn;
		l->expert_flags = draw(3) ? 0 : MT_PACKED;
		l->ffn = 0;
	}
	if (now_seed % 5 == 1) { /* blocks with inputs of their own */
		g.ple_dim = 16u << now_seed % 4;
		g.ple_vocab = g.vocab;
	}
	if (draw(4) == 0) {
		g.kind[g.n_kinds++] = *l;
		l[1].kv_kind = now_seed % 2; /* in some seeds they read the k and v of the others */
		l[1].window = between(1, 4096);
		if (draw(2)) l[1].heads *= 2; /* and so its blocks keep more */
		if (draw(2)) l[1].ffn *= 2;
		for (uint32_t i = draw(g.layers); i < g.layers; i++) g.kind_of[i] = 1;
	}
	return g;
}

static struct plan_request request_of(const struct mt_geometry *g, const struct mt_layout *l)
{
	struct plan_request req = {
		.geo = g,
		.dtype = l->dtype,
		.grad = l->grad,
		.rows = between(1, 12),
		.seq = 8u << draw(draw(4) ? 10 : 16),
		.micros = between(1, 3),
		.streams = between(1, 3),
		.nodes = 1,
		.train = draw(8) != 0,
		.elem = l->dtype == MT_BF16 && now_seed % 4 ? 2 : 4, /* 4: a cpu that computes in bf16 */
		.operand = l->dtype == MT_BF16 ? 2 : 4,
		.zero_copy = draw(8) == 0,
		.work = draw(1 << 20),
		.host = UINT64_MAX,
		.host_beside = draw(1 << 30),
		.recompute = draw(4) ? RECOMPUTE_AUTO : (enum recompute)draw(3),
		.without = draw(4) ? 0 : draw(2 * WITHOUT_UPDATE),
		.expert_window = g->kind[0].experts && draw(4) == 0 ? between(1, g->kind[0].experts) : 0,
	};
	int gpus = 0;
	while (profile_name(gpus)) gpus++;
	request_sizes(&req, l->units, l->tensors);
	if (draw(4) == 0) {
		req.fixed = true;
		req.chunk_tokens = between(1, 2 * req.seq);
		req.head_tokens = between(1, 8192);
		req.pass_rows = draw(2) ? between(1, req.rows) : 0;
	}
	mt_must(profile_parse(profile_name((int)draw((uint32_t)gpus)), req.dtype, NULL, &req.profile));
	/* every other one: another way of attention, which takes work memory */
	if (now_seed % 2)
		req.attention = (struct attention_need){.fixed = 1 << 20,
			.kind = {{.row = (now_seed * 2654435761u) % (1 << 28), .rows = 1 + now_seed / 2 % 8}},
			.table = now_seed / 4 % 2 << 20,
			.there = true,
			.selected = now_seed / 16 % 4 == 0};
	if (draw(4) == 0) req.profile.h2d = req.profile.d2h = req.profile.h2d * between(1, 100);
	if (draw(3) == 0) {
		req.nodes = between(2, 64);
		req.net = 1e8 * between(1, 1000);
	}
	return req;
}

static void check_plan(const struct plan_request *req, const struct plan_result *p)
{
	const double parts[] = {p->predicted.gemm, p->predicted.attention, p->predicted.recompute,
		p->predicted.other_kernels, p->predicted.pcie_wait, p->predicted.stall, p->predicted.tail,
		p->predicted.network_wait};
	double sum = 0, all = (double)req->micros * req->streams * req->nodes;
	plans++;
	kinds[p->plan.pass_rows                                   ? 0
			: p->plan.residual_offloaded && p->plan.offloaded ? 1
			: p->plan.residual_offloaded                      ? 2
			: p->plan.offloaded                               ? 3
			: p->plan.keep_all == req->geo->layers            ? 4
			: p->plan.keep_but_gate_up                        ? 5
			: p->plan.keep_attention                          ? 6
															  : 7]++;
	windows += p->plan.expert_window != 0;
	expect(!p->plan.expert_window ||
			(p->plan.expert_window < req->most.experts && !p->plan.pass_rows &&
				(!req->expert_window || p->plan.expert_window == req->expert_window)),
		"windows of experts that are none");
	expect(memory_lay(req, &p->plan, NULL, NULL) == p->bytes, "the layout takes other bytes than the plan says");
	expect(p->plan.library_attention ? req->attention.there : !req->attention.selected || !req->attention.there,
		"attention in a way that is not there");
	expect(p->bytes <= req->memory, "over the budget");
	expect(p->least <= p->bytes, "least is more than a plan takes");
	expect(p->host_bytes == req->streams * memory_host(req, &p->plan), "the host's bytes are not the plan's");
	expect(!p->host_bytes || p->host_bytes + req->host_beside <= req->host, "over the host's budget");
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		expect(isfinite(parts[i]) && parts[i] >= 0, "a part of the step is not a time");
		sum += parts[i];
	}
	expect(isfinite(p->predicted.step) && p->predicted.step > 0, "the step is not a time");
	expect(fabs(sum - p->predicted.step) <= 1e-6 * p->predicted.step, "the parts are not the step");
	expect(isfinite(p->predicted.tflops) && p->predicted.tflops > 0 &&
			p->predicted.tflops * 1e12 <= all * req->profile.flops * 1.0001,
		"faster than the machine");
	expect(p->plan.keep_all + p->plan.keep_but_gate_up + p->plan.keep_attention +
				blocks_offloaded(&p->plan, req->geo->layers) <=
			req->geo->layers,
		"more blocks kept than there are");
}

/* Plans for budgets from `from` to `to`, of what *budget is (req->memory or req->host): once one works all do, none is
 * slower */
static void climb(struct plan_request *req, uint64_t *budget, double from, double to, double factor, double more)
{
	double last = INFINITY;
	struct plan_result p;
	for (double at = from; at < to; at = at * factor + more) {
		*budget = (uint64_t)at;
		if (plan_search(req, &p)) {
			expect(isinf(last), "fitted with less");
			continue;
		}
		check_plan(req, &p);
		expect(p.predicted.step <= last * (1 + 1e-8),
			budget == &req->host ? "slower with more host memory" : "slower with more device memory");
		last = p.predicted.step;
	}
	expect(!isinf(last), "nothing fits");
}

/* The least that is named works, a page less does not; returns it */
static uint64_t least_of(struct plan_request *req)
{
	struct plan_result p;
	req->memory = 4096;
	expect(plan_search(req, &p) == -MT_EX_NOMEM && p.least != UINT64_MAX, "nothing fits, and nothing is named");
	uint64_t least = req->memory = p.least;
	expect(plan_search(req, &p) == 0 && p.bytes == least, "the least does not work");
	req->memory = least - 4096;
	expect(plan_search(req, &p) == -MT_EX_NOMEM && p.least == least, "less than the least works");
	return least;
}

/* Likewise of the host's memory, where the device has `least` and would need more without it */
static void least_of_host(struct plan_request *req, uint64_t least)
{
	struct plan_result p;
	req->memory = least;
	req->host = 0;
	if (plan_search(req, &p) == 0) return;
	expect(p.least > least, "the least without the host's memory is not more");
	expect(p.least_host != UINT64_MAX, "no host memory is named that would do");
	req->host = p.least_host;
	expect(plan_search(req, &p) == 0, "the host's least does not work");
	req->host--;
	expect(plan_search(req, &p) == -MT_EX_NOMEM, "less than the host's least works");
}

/* From somewhere, in steps smaller than what any block keeps */
static void climb_slowly(struct plan_request *req, uint64_t least)
{
	double from = (double)least * (1 + draw(400) / 100.0),
		   o = (double)req->rows * req->seq * req->geo->kind[0].heads * req->geo->kind[0].head_dim * (double)req->elem;
	climb(req, &req->memory, from, from + 12 * o, 1, fmax(o / (1 + draw(3)), 4096));
}

static void try(uint64_t seed)
{
	static const enum mt_dtype grads[] = {MT_FP32, MT_BF16, MT_NONE};
	struct mt_layout l;
	now_seed = state = seed;
	struct mt_geometry g = geometry();
	enum mt_dtype dtype = draw(2) ? MT_BF16 : MT_FP32;
	mt_must(mt_layout_make(&l, &g, dtype, dtype == MT_FP32 ? MT_FP32 : grads[draw(3)], MT_FP32, MT_ADAMW));
	struct plan_request req = request_of(&g, &l);

	uint64_t least = least_of(&req);
	climb(&req, &req.memory, (double)least, fmin(60 * (double)least, 4e12), 1.1 + draw(100) / 300.0, 4096);
	climb_slowly(&req, least);
	least_of_host(&req, least);
	req.memory = least + least / 2;
	climb(&req, &req.host, (double)req.host_beside, 1e15, 1.5, 4096);
	free(req.lists);
	mt_layout_release(&l);
}

static int gpu(char **a)
{
	struct gpu g = {.capability = atoi(a[1]),
		.multiprocessors = atoi(a[2]),
		.clock_khz = atoi(a[3]),
		.memory_khz = atoi(a[4]),
		.bus_bits = atoi(a[5])};
	struct profile p[2];
	snprintf(g.model, sizeof g.model, "%s", a[0]);
	mt_must(profile_parse("", MT_BF16, &g, &p[0]));
	mt_must(profile_parse("", MT_FP32, &g, &p[1]));
	printf("%.0f", p[0].h2d / 1e9);
	if (p[0].d2h < p[0].h2d || p[0].d2h > p[0].h2d) printf("/%.0f", p[0].d2h / 1e9);
	printf(" %.0f %.0f %.0f\n", p[0].hbm / 1e9, p[0].flops / 1e12, p[1].flops / 1e12);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 8 && !strcmp(argv[1], "gpu")) return gpu(argv + 2);
	uint64_t from = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;

	for (uint64_t seed = from; seed < from + seeds; seed++) try(seed);
	printf(
		"%d plans: %d pass-major; offloaded: %d residuals and attention outputs, %d residuals, %d attention outputs; "
		"kept: %d all, %d but gate and up, %d attention, %d inputs; %d by windows of experts; %d wrong\n",
		plans, kinds[0], kinds[1], kinds[2], kinds[3], kinds[4], kinds[5], kinds[6], kinds[7], windows, wrong);
	return wrong != 0;
}
