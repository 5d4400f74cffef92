/* search.c: which plan has the shortest predicted step.
 *
 * Which plans are tried does not depend on the memory. So more memory never gives a slower plan, and the smallest size
 * of all plans tried is the smallest budget that works.
 *
 * The functions below try one decision each, and call the next: order (layer-major or passes) → chunks → attention by
 * groups of heads → head chunks → windows of experts → offloading and gradient slots → weight slots → checkpoint levels
 * → consider(). All is done twice. The first time they try few plans (rough), to find a short step. The second time
 * they try all but those whose step would be longer than that in any memory.
 */
#include <math.h>
#include <stdio.h>

#include "mt/error.h"
#include "cli/cli.h"
#include "mt/layout.h"
#include "mt/tier.h"
#include "plan.h"
#include "say.h"

#define SLICE_MIN 1024u          /* tokens: MLP slices are not made smaller than this */
#define TIE 1e-9                 /* steps that differ by less than this share are equally long */
#define CHUNK_TOKENS 4096        /* tokens of a chunk, where the planner does not select them */
#define LOGITS_BYTES (64u << 20) /* a head chunk's logits are about this large, */
#define HEAD_TOKENS_MIN 512      /* but enough tokens that moving the head's weights is little beside its GEMMs */

/* Parameters of a block whose experts a token is not sent to */
static uint64_t idle_of(const struct mt_geometry *g, const struct mt_layer *l)
{
	uint64_t matrices = mlp_gated(l) ? 3 : 2;
	return (uint64_t)(whole_ffn(l) - active_ffn(l)) * matrices * g->hidden;
}

/* What of the units is trained */
static void trained_sizes(struct plan_request *req, const struct mt_unit *units, const struct mt_tensor *tensors)
{
	const struct mt_geometry *g = req->geo;
	uint32_t n = g->layers + 2, all = n + (g->ple_dim ? 1 : 0), lowest = n - 1;
	uint64_t blocks = 0;
	req->trained = req->with_state = req->weights = req->head_grads = req->embed_grads = 0;
	for (uint32_t u = all; u-- > 0;) {
		uint64_t frozen = 0, at = u < n ? u : 0;
		for (uint32_t i = 0; i < units[u].tensors; i++) {
			const struct mt_tensor *t = &tensors[units[u].first_tensor + i];
			frozen += t->frozen ? t->n : 0;
		}
		if (!mt_trained(&units[u])) continue;
		uint64_t elems = units[u].elems - frozen;
		req->with_state += units[u].params;
		req->trained += units[u].params - frozen;
		req->weights += elems;
		*(at == 0 ? &req->embed_grads : at == n - 1 ? &req->head_grads : &blocks) += elems;
		if (at == 0 && u == 0 && g->flags & MT_TIED) req->head_grads += elems;
		if (at < lowest) lowest = (uint32_t)at;
	}
	req->still = req->train && lowest ? lowest - 1 : 0;
	req->grads = req->embed_grads + blocks + req->head_grads;
	req->block_grads = blocks ? blocks / (g->layers - req->still) : 0;
}

void request_sizes(struct plan_request *req, const struct mt_unit *units, const struct mt_tensor *tensors)
{
	uint32_t n = req->geo->layers + 2, all = n + (req->geo->ple_dim ? 1 : 0);
	if (!req->lists) req->lists = lists_make(req->geo, req->elem);
	if (!req->lists) mt_bug(__FILE__, __LINE__, "memory for lists");
	req->most = mt_layer_most(req->geo);
	req->embed = units[0].elems;
	req->ple = req->ple_beside = 0;
	if (all > n) {
		const struct mt_unit *u = &units[n];
		req->ple = u->elems;
		req->ple_beside = tensors[u->first_tensor + u->tensors - 1].off;
	}
	req->block = req->rest = req->exact = 0;
	for (uint32_t u = 1; u + 1 < n; u++) {
		struct split c = split_of(&units[u], tensors + units[u].first_tensor);
		struct mt_part exact = mt_exact(&units[u], tensors + units[u].first_tensor);
		req->split[req->geo->kind_of[u - 1]] = c;
		req->block = larger(units[u].elems, req->block);
		req->rest = larger(split_rest(&c), req->rest);
		req->exact = larger((exact.end - exact.first + 63) / 64 * 64, req->exact);
	}
	req->head = units[n - 1].elems + (req->geo->flags & MT_TIED ? units[0].elems : 0);
	uint64_t blocks = 0;
	req->params = 0;
	for (uint32_t u = 0; u < all; u++) req->params += units[u].params;
	for (uint32_t u = 1; u + 1 < n; u++) blocks += units[u].elems;
	req->mean = blocks / req->geo->layers;
	trained_sizes(req, units, tensors);
	req->idle_params = 0;
	for (uint32_t i = 0; i < req->geo->layers; i++) req->idle_params += idle_of(req->geo, mt_layer_of(req->geo, i));
	req->idle = req->idle_params / req->geo->layers;
	req->counts = price_lists(req, units, tensors);
}

void request_tier(struct plan_request *req, double tier, const struct mt_layout_tier *t)
{
	req->tier = tier;
	req->tier_params = t->params;
	req->tier_disk = t->bytes;
	req->tier_bytes = t->bytes - (uint64_t)t->tiles * MT_TILE_HEADER;
	req->tier_ahead = (uint64_t)t->slots * t->slot_bytes;
}

uint32_t default_chunk_tokens(void) { return CHUNK_TOKENS; }

uint32_t default_head_tokens(const struct mt_geometry *geo)
{
	uint64_t n = LOGITS_BYTES / (sizeof(float) * (uint64_t)geo->vocab) / 64 * 64;
	return n < HEAD_TOKENS_MIN ? HEAD_TOKENS_MIN : n > CHUNK_TOKENS ? CHUNK_TOKENS : (uint32_t)n;
}

struct search {
	const struct plan_request *req;
	struct plan_result *best;
	double least_step; /* of all that fit; infinite: none yet */
	bool rough;        /* try some of the plans, for a first least_step */
};

/* Of plans whose steps are equally long. Where the step waits for the optimizer there are many: take the one that
 * computes faster, since the optimizer may be faster than predicted; then library attention; then no windows of
 * experts, which come in twice; then less memory. */
static bool better(const struct plan_result *best, const struct plan *plan, const struct prediction *p, uint64_t bytes)
{
	double work = p->forward + p->backward, least = best->predicted.forward + best->predicted.backward;
	bool windows = plan->expert_window, had = best->plan.expert_window;
	if (work < least || work > least) return work < least;
	if (plan->library_attention != best->plan.library_attention) return plan->library_attention;
	return windows != had ? had : bytes < best->bytes;
}

/* A plan and its bytes: keep it if it fits and none so far is better; note the budgets with which it would fit */
static void consider(struct search *s, const struct plan *plan, const struct times *t, uint64_t bytes)
{
	const struct plan_request *req = s->req;
	uint64_t host = req->streams * memory_host(req, plan);
	bool fits = bytes <= req->memory, host_fits = !host || (host <= req->host && req->host_beside <= req->host - host);
	struct prediction p;
	if (host_fits && bytes < s->best->least) s->best->least = bytes;
	if (fits && host + req->host_beside < s->best->least_host) s->best->least_host = host + req->host_beside;
	if (!fits || !host_fits) return;
	predict(req, plan, t, &p);
	double tie = s->least_step * (1 + TIE);
	if (p.step > tie) return;
	if (p.step < s->least_step) s->least_step = p.step;
	/* a shorter step may just have ended the tie that the best so far was in */
	if (s->best->predicted.step <= s->least_step * (1 + TIE) && s->best->bytes && !better(s->best, plan, &p, bytes))
		return;
	s->best->plan = *plan;
	s->best->predicted = p;
	s->best->bytes = bytes;
}

/* 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, ..., last */
static uint32_t next(uint32_t i, uint32_t last)
{
	uint32_t n = i + (i / 4 ? i / 4 : 1);
	return i < last && n > last ? last : n;
}

/* Bytes that n blocks keep at a level behind the last `after` of them */
static uint64_t bytes_kept(const struct increments *inc, enum checkpoint level, uint32_t after, uint32_t n)
{
	return inc->kept[level][after + n] - inc->kept[level][after];
}

/* The most of these blocks, `at_most` at most, for which the budget has room beside `used` */
static uint32_t room(const struct plan_request *req, uint64_t used, const struct increments *inc, enum checkpoint level,
	uint32_t after, uint32_t at_most)
{
	uint32_t least = 0;
	while (least < at_most) {
		uint32_t n = at_most - (at_most - least) / 2;
		if (used + bytes_kept(inc, level, after, n) <= req->memory) least = n;
		else at_most = n - 1;
	}
	return least;
}

/* Is the step longer than the best so far? */
static bool longer(const struct search *s, const struct plan *plan, const struct times *t)
{
	struct prediction p;
	predict(s->req, plan, t, &p);
	return p.step > s->least_step * (1 + TIE);
}

/* keep_all is given. The smallest number of blocks that keep all but gate and up, 0 to `most`, with which the step is
 * not longer than the best so far even if all others kept attention's output; most + 1: there is none. The more such
 * blocks, the shorter the step. */
static uint32_t least_but_gate_up(const struct search *s, const struct plan *plan, const struct times *t, uint32_t most)
{
	struct plan best = *plan;
	uint32_t least = 0, end = most + 1;
	while (least < end) {
		best.keep_but_gate_up = least + (end - least - 1) / 2;
		best.keep_attention = plan->offloaded ? 0 : s->req->geo->layers - plan->keep_all - best.keep_but_gate_up;
		if (longer(s, &best, t)) least = best.keep_but_gate_up + 1;
		else end = best.keep_but_gate_up;
	}
	return least;
}

/* keep_all is given. Try every number of blocks that keep all but gate and up; the room that is left goes to attention
 * outputs, or the rest is offloaded. Trying only the largest number would not do: a little more memory could then mean
 * one more of these and many fewer attention outputs, and so a slower plan. */
static void try_levels(struct search *s, struct plan *plan, const struct times *t, const struct increments *inc,
	uint64_t used)
{
	const struct plan_request *req = s->req;
	uint32_t all = plan->keep_all, others = req->geo->layers - all;
	plan->keep_but_gate_up = plan->keep_attention = 0;
	used += bytes_kept(inc, KEEP_ALL, 0, all);
	if (!others) {
		if (!plan->offloaded) consider(s, plan, t, used - inc->no_gu - inc->no_chunk);
		return;
	}
	consider(s, plan, t, used);
	if (req->recompute == RECOMPUTE_FULL || !req->train) return;
	plan->keep_but_gate_up = others;
	if (!plan->offloaded)
		consider(s, plan, t, used + bytes_kept(inc, KEEP_ALL_BUT_GATE_UP, all, others) - inc->no_chunk);
	uint32_t most = room(req, used, inc, KEEP_ALL_BUT_GATE_UP, all, others - 1);
	for (uint32_t n = s->rough ? most : least_but_gate_up(s, plan, t, most); n <= most; n++) {
		uint64_t now = used + bytes_kept(inc, KEEP_ALL_BUT_GATE_UP, all, n);
		plan->keep_but_gate_up = n;
		if (n && plan->offloaded == KEEP_ALL) now += inc->no_gu; /* which `used` is without */
		plan->keep_attention = plan->offloaded ? 0 : room(req, now, inc, KEEP_ATTENTION, all + n, others - n - 1);
		consider(s, plan, t, now + bytes_kept(inc, KEEP_ATTENTION, all + n, plan->keep_attention));
		if (plan->offloaded) continue;
		plan->keep_attention = others - n;
		consider(s, plan, t, now + bytes_kept(inc, KEEP_ATTENTION, all + n, others - n) - inc->no_attention);
	}
}

/* Is the step longer than the best so far even if all blocks but the keep_all recompute only gate and up? Then it is
 * for a smaller keep_all, too. Of offloaded blocks that keep all: even if they recompute nothing. */
static bool hopeless(const struct search *s, const struct plan *plan, const struct times *t)
{
	struct plan best = *plan;
	if (plan->offloaded == KEEP_ALL) best.keep_all = s->req->geo->layers;
	best.keep_but_gate_up = s->req->geo->layers - best.keep_all;
	best.keep_attention = 0;
	return longer(s, &best, t);
}

/* The number of weight slots is given. smallest: the plan with the least keep_all may be the smallest of all, so it is
 * tried even if it is hopeless. */
static void try_keep_all(struct search *s, struct plan *plan, const struct times *t, const struct increments *inc,
	uint64_t base, bool smallest)
{
	const struct plan_request *req = s->req;
	uint32_t layers = req->geo->layers, from = 0, to = layers;
	if (req->recompute == RECOMPUTE_FULL || !req->train) to = 0;
	if ((req->recompute == RECOMPUTE_NONE && req->train) || plan->pass_rows) from = layers;
	plan->keep_all = layers;
	bool worth = !hopeless(s, plan, t);
	if (!worth && !smallest) return;
	plan->keep_all = from;
	try_levels(s, plan, t, inc, base);
	if (!worth || from >= to) return;
	plan->keep_all = to;
	try_levels(s, plan, t, inc, base);
	plan->keep_all = room(req, base - inc->no_chunk, inc, KEEP_ALL, 0, to - 1);
	for (; plan->keep_all > from && !hopeless(s, plan, t); plan->keep_all--) {
		try_levels(s, plan, t, inc, base);
		if (s->rough) return;
	}
}

static void try_slots(struct search *s, struct plan *plan, const struct times *t)
{
	const struct plan_request *req = s->req;
	uint32_t layers = req->geo->layers, least = req->zero_copy ? 0 : plan->pass_rows ? layers : 1;
	struct increments inc;
	plan->keep_but_gate_up = plan->keep_attention = 0;
	plan->weight_slots = least ? layers : 0;
	plan->keep_all = layers;
	bool never = hopeless(s, plan, t);
	/* nor is it the smallest of all */
	if (never && !plan->pass_rows && (plan->offloaded || plan->grad_slots > 1)) return;
	plan->weight_slots = least;
	plan->keep_all = 0;
	memory_increments(req, plan, &inc);
	uint64_t base = memory_lay(req, plan, NULL, NULL);
	if (base == UINT64_MAX) return;
	for (uint32_t slots = least;; slots = next(slots, layers)) {
		plan->weight_slots = slots;
		try_keep_all(s, plan, t, &inc, base, slots == least);
		if (never || !slots || slots >= layers || req->without & WITHOUT_SLOTS) break;
		base += (next(slots, layers) - slots) * inc.slot;
	}
}

static void try_offload(struct search *s, struct plan *plan)
{
	const struct plan_request *req = s->req;
	struct times t = unit_times(req, plan, rows_of_pass(req, plan));
	uint32_t layers = req->geo->layers, two = req->without & WITHOUT_GRADS ? 1 : 2,
			 most_slots = req->train ? (layers < two ? layers : two) : 0;
	bool offloads = req->train && !plan->pass_rows && !req->unified;
	for (int host = 0; host < (offloads ? 2 * (KEEP_ALL + 1) : 1); host++) {
		plan->residual_offloaded = host & 1;
		plan->offloaded = (enum checkpoint)(host / 2);
		if (plan->offloaded && req->recompute != RECOMPUTE_AUTO) continue;
		if (plan->pass_rows) {
			plan->grad_slots = layers;
			try_slots(s, plan, &t);
			continue;
		}
		for (plan->grad_slots = req->train ? 1 : 0; plan->grad_slots <= most_slots; plan->grad_slots++)
			try_slots(s, plan, &t);
	}
}

/* Experts may stream by windows: not where they stay on the device between passes, nor with --grad none, where a unit's
 * gradient leaves from its beginning on, and its experts are computed first. */
static bool windows_possible(const struct plan_request *req, const struct plan *plan)
{
	return req->most.experts && !plan->pass_rows && (!req->train || req->grad != MT_NONE);
}

/* Half of a layer's experts at a time, a quarter, ... */
static void try_windows(struct search *s, struct plan *plan)
{
	uint32_t wanted = s->req->expert_window, experts = s->req->most.experts;
	bool possible = windows_possible(s->req, plan);
	plan->expert_window = 0;
	if (!possible || !wanted || wanted >= experts) try_offload(s, plan);
	if (!possible) return;
	for (uint32_t n = wanted ? wanted : experts / 2; n && n < experts; n = wanted ? 0 : n / 2) {
		plan->expert_window = n;
		try_offload(s, plan);
	}
}

static void try_head(struct search *s, struct plan *plan)
{
	static const uint32_t tokens[] = {128, 512, 2048, 8192};
	plan->head_tokens = s->req->head_tokens;
	if (plan->head_tokens) try_windows(s, plan);
	else
		for (size_t i = s->rough ? 2 : 0; i < sizeof tokens / sizeof *tokens; i++) {
			plan->head_tokens = tokens[i];
			try_windows(s, plan);
		}
}

/* Does any layer's attention change if it goes by groups of heads? */
static bool heads_possible(const struct plan_request *req, const struct plan *plan)
{
	const struct plan all = {.library_attention = plan->library_attention},
					  some = {.library_attention = plan->library_attention, .by_heads = true};
	for (uint32_t k = 0; k < req->geo->n_kinds; k++)
		if (group_of(req, &all, k) != group_of(req, &some, k)) return true;
	return false;
}

/* By groups of heads, where one row is a chunk: of several, one row a chunk takes less */
static void try_groups(struct search *s, struct plan *plan)
{
	const struct plan_request *req = s->req;
	bool groups = req->train && rows_of_chunk(req, plan) == 1 && heads_possible(req, plan);
	for (int i = 0; i <= groups; i++) {
		plan->by_heads = i;
		try_head(s, plan);
	}
	plan->by_heads = false;
}

/* Chunks of whole rows; for chunks of one row, also the MLP in slices */
static void try_chunks(struct search *s, struct plan *plan)
{
	const struct plan_request *req = s->req;
	uint64_t most_rows = (uint64_t)INT32_MAX / req->seq;
	uint32_t rows = req->rows < most_rows ? req->rows : (uint32_t)most_rows;
	plan->chunk_tokens = req->chunk_tokens;
	if (plan->chunk_tokens) {
		try_groups(s, plan);
		return;
	}
	for (uint32_t n = req->seq / 2; n >= SLICE_MIN; n /= 2) {
		plan->chunk_tokens = n;
		try_groups(s, plan);
	}
	for (uint32_t r = 1; r <= rows; r = next(r, rows)) {
		plan->chunk_tokens = r * req->seq;
		try_groups(s, plan);
	}
}

/* Names the smallest device memory that works, and the smallest host memory that would do instead */
static int nothing_fits(const struct plan_request *req, const struct plan_result *best)
{
	unsigned long long least = (best->least + (1 << 20) - 1) >> 20, have = req->memory >> 20;
	char host[128] = "", remedy[32] = "";
	if (best->least_host != UINT64_MAX) {
		snprintf(host, sizeof host, ", or %llu MiB of the host's, have %llu MiB",
			(unsigned long long)((best->least_host + (1 << 20) - 1) >> 20), (unsigned long long)(req->host >> 20));
		snprintf(remedy, sizeof remedy, " or --host-memory");
	}
	return mt_fail(MT_EX_NOMEM,
		"a micro-batch of %u row%s of %u token%s needs %llu MiB of device memory, have %llu MiB%s: "
		"a smaller --micro or --seq, or a larger --device-memory%s",
		req->rows, mt_s(req->rows), req->seq, mt_s(req->seq), least, have, host, remedy);
}

static void try_orders(struct search *s, bool library)
{
	const struct plan_request *req = s->req;
	struct plan plan = {.pass_rows = req->pass_rows, .library_attention = library};
	if (!plan.pass_rows || !req->train) try_chunks(s, &plan);
	bool passes = req->train && !req->fixed && req->geo->aux_coef == 0 &&
		!(req->without & (WITHOUT_SLOTS | WITHOUT_GRADS)); /* which have slots for all blocks */
	for (uint32_t r = 1; passes && r <= req->rows; r = next(r, req->rows)) {
		plan = (struct plan){.pass_rows = r, .chunk_tokens = r * req->seq, .library_attention = library};
		if ((uint64_t)r * req->seq <= INT32_MAX) try_head(s, &plan);
	}
	if (req->pass_rows && req->train) {
		plan = (struct plan){.pass_rows = req->pass_rows, .library_attention = library};
		try_chunks(s, &plan);
	}
}

/* The gradient of a loss that balances experts is known when all rows of the micro-batch have gone forward. The search
 * selects no passes for such a model, but they may have been requested, or be in the record. */
static int passes_check(const struct plan_request *req)
{
	if (!req->train || req->geo->aux_coef == 0 || !req->pass_rows || req->pass_rows >= req->rows) return 0;
	return mt_fail(MT_EX_CONFIG,
		"passes of %u row%s: a loss that balances experts (output_router_logits in config.json) needs all %u rows of a "
		"micro-batch at once",
		req->pass_rows, mt_s(req->pass_rows), req->rows);
}

int plan_search(const struct plan_request *req, struct plan_result *best)
{
	struct plan_request fixed = *req;
	struct search s = {.req = req, .best = best, .least_step = INFINITY};
	int rc = passes_check(req);
	if (rc) return rc;
	if (req->selects.hbm > 0) {
		fixed.profile = req->selects;
		s.req = &fixed;
	}
	*best = (struct plan_result){.least = UINT64_MAX, .least_host = UINT64_MAX};
	for (int turn = 0; turn < 2; turn++) {
		s.rough = turn == 0;
		best->bytes = 0;
		if (req->attention.there) try_orders(&s, true);
		if (!req->attention.there || !req->attention.selected) try_orders(&s, false);
	}
	if (isinf(s.least_step)) return nothing_fits(req, best);
	/* blocks that do not go backward keep nothing, whatever the search has counted */
	uint32_t back = req->geo->layers - req->still,
			 *kept[] = {&best->plan.keep_all, &best->plan.keep_but_gate_up, &best->plan.keep_attention};
	for (int i = 0; i < 3; back -= *kept[i++])
		if (*kept[i] > back) *kept[i] = back;
	if (s.req == &fixed) {
		struct times t = unit_times(req, &best->plan, rows_of_pass(req, &best->plan));
		predict(req, &best->plan, &t, &best->predicted);
	}
	predict_parts(req, &best->plan, &best->predicted);
	best->host_bytes = req->streams * memory_host(req, &best->plan);
	return 0;
}
