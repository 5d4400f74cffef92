/* cost.c: how long a step takes by a plan.
 *
 * The time of a unit is the longest of three that overlap: compute, copying its weights in, copying its gradients out,
 * on several nodes to their owners. A step is the sum over units and passes, and the part of the optimizer's update,
 * and of carrying new weights to all nodes, that nothing hides. Predictions rank plans; expect them to be right to some
 * ten per cent.
 */
#include <math.h>

#include "mt/layout.h"
#include "ops/fp8.h"
#include "plan.h"

/* Of GPUs, those of compute capability 9.0 are measured (shares, below), others assumed. README.md has the sources. */
#define GEMM_HALF 256.0      /* tokens at which a GEMM reaches half its rate */
#define PLAIN_ATTENTION 0.08 /* of the GEMM rate in fp32: our own kernels that use no tensor cores */
#define PLAIN_DELTA 0.15     /* the same of our delta rule: assumed */
#define PLAIN_GROUPED 0.2    /* the same of experts' GEMMs */
#define GROUPED_SPARE 64     /* rows that an expert's last tile of 128 lacks */
#define OWN_HALF 12.0        /* heads of all rows of a chunk at which our attention reaches half its rate: measured, */
#define OWN_SEQ 4096.0       /* with rows of so many tokens; longer ones have as many more blocks of queries a head */
#define LARGE_HEADS 0.72     /* of cuDNN's backward rate, for heads of more than 128: measured */
#define CORES_SHAPES 0.96    /* these, of the host's cores: measured */
#define CORES_GEMM 0.78
#define CORES_GEMM_HALF 16.0
#define CORES_ATTENTION_FORWARD 0.50
#define CORES_ATTENTION_BACKWARD 0.60
#define CORES_ATTENTION_BF16 1.65 /* factor on both, of operands of bf16 */
#define CORES_DELTA 0.70
#define CORES_OF_NODES 1.3  /* factor on several nodes: mt-link and MPI share the cores (one core a node) */
#define LAUNCH 5e-6         /* s that a kernel takes at least */
#define EMBED_BACKWARD 0.03 /* of device memory's bandwidth: rows of one token are added in order. Measured */
#define ROUND_TRIP 20e-6    /* s: the host learns how many rows each expert has, and launches the first window */
#define MASTER_BYTES 4      /* of a weight and its low bits */

/* What kernels reach, by compute capability. Of the GEMM rate: GEMMs of a model's shapes; a library's attention; our
 * kernels in bf16: attention for heads of up to 64, 128, 256 and 512, and for those of 192 with 128 of v; GEMMs of
 * experts; the delta rule. 9.0 was measured on an H100, where experts' GEMMs and attention reached two thirds of what
 * their machine code made us expect, attention's backward pass 0.83, the delta rule 0.28
 * (../device/cuda/results/README.md). The rest is computed from machine code, times this. Our attention has at most
 * nine tenths of a library's rate, which is known better. */
static const struct shares {
	int capability;
	double gemm, library_forward, library_backward;
	double forward[5], backward[5];
	double grouped, grouped_backward, delta;
} shares[] = {
	{80, 0.96, 0.60, 0.40, {0.54, 0.54, 0.36, 0.23, 0.54}, {0.36, 0.36, 0.26, 0.17, 0.30}, 0.64, 0.64, 0.05},
	{86, 0.96, 0.60, 0.40, {0.49, 0.49, 0.49, 0.41, 0.49}, {0.36, 0.36, 0.36, 0.29, 0.36}, 0.60, 0.60, 0.05},
	{90, 1.02, 0.66, 0.42, {0.36, 0.35, 0.20, 0.13, 0.33}, {0.22, 0.22, 0.14, 0.10, 0.17}, 0.44, 0.46, 0.047},
	{100, 0.96, 0.60, 0.40, {0.17, 0.15, 0.09, 0.06, 0.15}, {0.10, 0.10, 0.07, 0.04, 0.07}, 0.20, 0.20, 0.011},
	{120, 0.96, 0.60, 0.40, {0.49, 0.49, 0.49, 0.41, 0.49}, {0.36, 0.36, 0.36, 0.29, 0.36}, 0.60, 0.60, 0.05},
};

static const struct shares *shares_of(const struct profile *p)
{
	size_t i = sizeof shares / sizeof *shares - 1;
	while (i && shares[i].capability > p->capability) i--;
	return &shares[i];
}

/* ---- compute ---- */

static double blocks_back(const struct plan_request *req) { return req->geo->layers - req->still; }

/* Elements of a micro-batch's gradients */
static uint64_t grads_mean(const struct plan_request *req)
{
	return req->embed_grads + (req->geo->layers - req->still) * req->block_grads + req->head_grads;
}

/* Blocks at a level, of those that go backward */
static double blocks_back_at(const struct plan_request *req, const struct plan *plan, enum checkpoint level)
{
	double n = 0;
	for (uint32_t i = req->still; i < req->geo->layers; i++) n += checkpoint_of(plan, req->geo->layers, i) == level;
	return n;
}

/* FLOPs of a token in the model's GEMMs: forward; to train, also for the gradients of inputs and of weights */
static double model_flops(const struct plan_request *req)
{
	double block = (double)(req->mean - req->idle), head = (double)req->head, heads = req->geo->mtp != 0 ? 2 : 1;
	double trained = fmax(0, (double)req->block_grads - (double)req->idle), back = blocks_back(req);
	double forward = req->geo->layers * block + head;
	return 2 *
		(req->train ? forward + back * (block + trained) + (2 * heads - 1) * head + heads * (double)req->head_grads
					: forward);
}

static double most(double a, double b) { return a > b ? a : b; }

static double cores_shared(const struct plan_request *req) { return req->nodes > 1 ? CORES_OF_NODES : 1; }

/* GEMMs in FP8 are so many times as fast as those of the run's type; cores multiply them in bf16 */
static double fp8_rate(const struct profile *p) { return p->fp8 > 0 ? p->fp8 : 1; }

static double gemm(const struct plan_request *req, double flops, double tokens)
{
	const struct profile *p = &req->profile;
	if (p->cores) return flops / (p->flops * CORES_GEMM) * (1 + CORES_GEMM_HALF / tokens) * cores_shared(req);
	return flops / (p->flops * shares_of(p)->gemm) * (1 + GEMM_HALF / tokens);
}

/* Seconds of experts' GEMMs, whose tokens are `rows` rows of each expert */
static double grouped_gemm(const struct plan_request *req, double flops, double rows, bool backward)
{
	const struct profile *p = &req->profile;
	double share = req->dtype != MT_BF16 ? PLAIN_GROUPED
		: backward                       ? shares_of(p)->grouped_backward
										 : shares_of(p)->grouped;
	if (flops == 0) return 0;
	if (p->cores) return gemm(req, flops, rows);
	return flops / (p->flops * share) * (1 + GROUPED_SPARE / rows);
}

/* Bytes of host memory that the update of a parameter reads and writes: weight and the optimizer's state of so many
 * bytes, each read and written, and the gradient */
static double bytes_with(const struct plan_request *req, double state)
{
	return 2 * (MASTER_BYTES + state) + mt_dtype_bytes(req->grad);
}

static double update_bytes(const struct plan_request *req)
{
	return bytes_with(req, mt_state_arrays(req->optim) * (double)mt_state_bytes(req->state, MT_GROUP) / MT_GROUP);
}

/* Parameters that a node updates in a second: cores do not scale beyond what their memory gives. What was measured is
 * AdamW's update with state in fp32; with less state it is as much faster. */
static double update_rate(const struct plan_request *req)
{
	const struct profile *p = &req->profile;
	double bytes = update_bytes(req);
	return p->adam_measured ? p->adam * bytes_with(req, 2 * sizeof(float)) / bytes : fmin(p->adam, p->ram / bytes);
}

/* Bytes that the tier's drives read and write between a step's commit and the end of its update: the slots are filled
 * before it, and written after it */
static double tier_moves(const struct plan_request *req)
{
	return req->tier > 0 ? 2 * fmax(0, (double)req->tier_bytes - (double)req->tier_ahead) : 0;
}

/* Bytes of the host's memory that go with these: the drives' transfers, and their checksums */
static double tier_ram(const struct plan_request *req) { return 2 * tier_moves(req); }

/* Seconds of a node's update */
static double update_time(const struct plan_request *req)
{
	double rate = update_rate(req), on = req->tier > 0 ? (double)req->tier_params : 0;
	double ram = fmax(req->profile.ram, rate * update_bytes(req));
	double tier = on > 0 ? fmax((on * update_bytes(req) + tier_ram(req)) / ram, tier_moves(req) / req->tier) : 0;
	return fmax(0, (double)req->trained - on) / (rate * req->nodes) + fmax(on / rate, tier);
}

/* The column of our own attention for these heads; -1: tensor cores do not take them (attention_takes_mma) */
static int own_column(const struct plan_request *req, const struct mt_layer *l)
{
	int64_t dim = l->head_dim, dim_v = head_dim_v(l);
	if (req->dtype != MT_BF16 || dim % 8 || dim_v % 8 || dim > 512) return -1;
	if (dim != dim_v) return dim <= 192 && dim_v <= 128 ? 4 : -1;
	return dim <= 64 ? 0 : dim <= 128 ? 1 : dim <= 256 ? 2 : 3;
}

/* FLOP/s of attention in layers of this kind */
static double attention_rate(const struct plan_request *req, const struct plan *plan, uint32_t kind, bool goes_back)
{
	const struct mt_layer *l = &req->geo->kind[kind];
	const struct profile *p = &req->profile;
	const struct shares *share = shares_of(p);
	double forward = p->flops * share->library_forward, backward = p->flops * share->library_backward;
	const struct attention_call *call = &req->attention.kind[kind];
	uint32_t group = group_of(req, plan, kind);
	double heads = group ? (double)l->heads / l->kv_heads * group : l->heads;
	double own = p->flops / (1 + OWN_HALF / (heads * rows_of_chunk(req, plan) * most(1, req->seq / OWN_SEQ)));
	bool library = plan->library_attention && call->rows && (call->packs || !req->packed);
	int column = own_column(req, l);
	if (p->cores) {
		double rate = p->flops * p->fp32 * (p->attention_bf16 ? CORES_ATTENTION_BF16 : 1) / cores_shared(req);
		forward = rate * CORES_ATTENTION_FORWARD;
		backward = rate * CORES_ATTENTION_BACKWARD;
	} else if (!library && column >= 0) {
		forward = own * share->forward[column];
		backward = own * share->backward[column];
	} else if (!library) forward = backward = p->flops * p->fp32 * PLAIN_ATTENTION;
	else if (l->head_dim > 128) backward *= LARGE_HEADS;
	return goes_back ? backward : forward;
}

/* Keys that a query sees, the mean of a row's */
static double keys_of(const struct plan_request *req, const struct mt_layer *l)
{
	double t = req->seq, w = l->window && l->window < req->seq ? l->window : t;
	return l->span && l->span < req->seq ? l->span / 2.0 : w - w * w / (2 * t);
}

/* Seconds of attention and the delta rule for n tokens */
static double attention_time(const struct plan_request *req, const struct plan *plan, const struct work *w, double n,
	bool backward)
{
	const struct profile *p = &req->profile;
	double fp32 = p->flops * p->fp32, sum = 0,
		   delta = p->cores     ? fp32 * CORES_DELTA / cores_shared(req)
		: req->dtype == MT_BF16 ? p->flops * shares_of(p)->delta
								: fp32 * PLAIN_DELTA;
	for (uint32_t k = 0; k < req->geo->n_kinds; k++)
		if (w->attention[k] > 0)
			sum += w->attention[k] * keys_of(req, &req->geo->kind[k]) / attention_rate(req, plan, k, backward);
	return n * (sum + w->delta[0] / delta + w->delta[1] / (p->cores ? delta : fp32 * PLAIN_DELTA));
}

/* Seconds of GEMMs, and of reading and writing weights and their gradients: a GPU does both at once */
static double beside(const struct plan_request *req, double products, double weights)
{
	return req->profile.cores ? products + weights : most(products, weights);
}

/* Seconds of copies to and from a group's heads, for n tokens of a block, the mean of all: forward; backward twice */
static double group_time(const struct plan_request *req, const struct plan *plan, double n)
{
	const struct mt_geometry *g = req->geo;
	double bytes = 0;
	for (uint32_t i = 0; i < g->layers; i++) {
		const struct mt_layer *l = mt_layer_of(g, i);
		if (group_of(req, plan, g->kind_of[i])) bytes += 2 * (double)((proj_width(l) + value_width(l)) * req->elem);
	}
	return n * bytes / g->layers / req->profile.hbm;
}

struct pass { /* n tokens through a unit */
	double n, slice, chunks, slices;
};

/* Seconds of operations */
static double time_of(const struct plan_request *req, const struct plan *plan, const struct work *w,
	const struct pass *pass, bool backward)
{
	const struct profile *p = &req->profile;
	const struct mt_layer *l = &req->most;
	double n = pass->n, rows = l->experts ? pass->slice * l->experts_per_token / l->experts : 0;
	double flops = w->gemms + w->fp8 / fp8_rate(p);
	double products = gemm(req, n * flops, pass->slice) + grouped_gemm(req, n * w->grouped, rows, backward);
	double weights = pass->chunks * w->weights[0] + pass->slices * w->weights[1];
	double parts = n / FP8_TOKENS,
		   rounded = most(pass->chunks, parts) * w->rounded[0] + most(pass->slices, parts) * w->rounded[1];
	return beside(req, products, weights / p->hbm) + rounded / p->hbm + attention_time(req, plan, w, n, backward) +
		n * w->bytes[!p->cores] / p->hbm + LAUNCH * (pass->chunks * w->kernels[0] + pass->slices * w->kernels[1]);
}

/* Times in a pass of `rows` rows, in which all n of its tokens go through a unit */
struct times unit_times(const struct plan_request *req, const struct plan *plan, uint32_t rows)
{
	const struct mt_geometry *g = req->geo;
	const struct profile *p = &req->profile;
	const struct counts *c = &req->counts;
	double n = (double)rows * req->seq, h = g->hidden, e = (double)req->elem;
	double per = fmin(n, (double)rows_of_chunk(req, plan) * req->seq),
		   slice = fmin(n, (double)tokens_of_slice(req, plan)), head_n = fmin(n, plan->head_tokens);
	const struct pass pass = {n, slice, ceil(n / per), ceil(n / slice)}, head = {n, head_n, ceil(n / head_n), 0};
	struct times t = {.forward = time_of(req, plan, &c->forward, &pass, false),
		.backward = time_of(req, plan, &c->backward, &pass, true),
		.attention = attention_time(req, plan, &c->forward, n, false),
		.head = time_of(req, plan, &c->head, &head, true)};
	for (int level = KEEP_INPUT; level < KEEP_ALL; level++)
		t.recompute[level] = time_of(req, plan, &c->again[level], &pass, false);
	double groups = group_time(req, plan, n);
	t.forward += groups;
	t.backward += 2 * groups;
	t.recompute[KEEP_INPUT] += groups;
	if (plan->expert_window) {
		double windows = ceil((double)req->most.experts / plan->expert_window);
		t.forward += windows * time_of(req, plan, &c->window[0], &pass, false) + ROUND_TRIP;
		t.backward += windows * time_of(req, plan, &c->window[1], &pass, true);
	}
	if (req->train) t.attention += blocks_back(req) / g->layers * attention_time(req, plan, &c->backward, n, true);
	if (req->train && req->objective) t.head_again = time_of(req, plan, &c->losses, &head, false);
	t.head += t.head_again;
	double ple = (double)ple_width(g) + (double)(residual_width(g) - g->hidden);
	t.embed_forward = 2 * n * h * e / p->hbm + LAUNCH * pass.chunks;
	t.embed_forward += gemm(req, 2 * n * h * ple, slice) + 7 * n * ple * e / p->hbm;
	t.embed_backward = gemm(req, 6 * n * h * ple, slice) + 10 * n * ple * e / p->hbm;
	if (!req->embed_grads) t.embed_backward = 0;
	else
		t.embed_backward += ((double)(req->embed + req->ple) * 4 + n * h * (e + 8) / (p->cores ? 1 : EMBED_BACKWARD)) /
				p->hbm +
			LAUNCH * pass.chunks;
	return t;
}

/* ---- PCIe ---- */

/* Elements of a block's slot, the mean of all blocks */
static uint64_t mean_slot(const struct plan_request *req, const struct plan *plan)
{
	return plan->expert_window && req->rest < req->mean ? req->rest : req->mean;
}

/* Seconds on PCIe: weights in, gradients out, residuals (x) and what a block keeps (o) offloaded and returned. x_copy,
 * o_copy: what offloading takes from compute, in device memory's bandwidth. g_copy: what converting a block's gradients
 * takes and, where that memory is the host's, adding them up. wire: the part of gradients' time that PCIe is busy.
 * slot: of a block's slot, which has all of it, or its rest beside windows of experts. */
struct pcie {
	double embed_in, block_in, slot_in, head_in, embed_out, block_out, slot_out;
	double x_out, o_out, x_in, o_in, x_copy, o_copy, g_copy, wire;
};

/* Of GPUs of one host, each has its part of the memory's bandwidth, and of the host's links. Bytes a second */
static double part_of(const struct plan_request *req, double all)
{
	return req->streams > 1 && !req->profile.cores && !req->unified ? all / req->streams : INFINITY;
}

/* Bytes a second over a GPU's link in one direction */
static double link_rate(const struct plan_request *req, double alone)
{
	return fmin(alone, fmin(part_of(req, req->profile.ram), part_of(req, req->profile.links)));
}

/* Seconds of copies in and out, by the times that they take alone. The host's memory carries both. */
static double both_ways(const struct plan_request *req, double in, double out)
{
	const struct profile *p = &req->profile;
	if (req->unified || p->cores) return most(in, out);
	double bytes = in * link_rate(req, p->h2d) + out * link_rate(req, p->d2h);
	return most(most(most(in, out), p->duplex * (in + out)), bytes / part_of(req, p->ram));
}

static struct pcie pcie_of(const struct plan_request *req, const struct plan *plan)
{
	const struct profile *p = &req->profile;
	double h2d = link_rate(req, p->h2d), d2h = link_rate(req, p->d2h), n = (double)rows_of_pass(req, plan) * req->seq,
		   in = req->zero_copy ? 0 : mt_dtype_bytes(req->dtype) / h2d;
	double size = mt_dtype_bytes(req->grad), embed = (double)(req->embed + req->ple), block = (double)req->block_grads;
	if (embed_in_place(req, plan)) embed = ROWS_TIMES * (double)elems_of_rows(req);
	/* what a node adds: its part of the gradients of all streams of the run */
	double accumulate = req->grad == MT_NONE ? 0 : 2 * size * req->streams / (update_bytes(req) * update_rate(req));
	double leave = most(size / d2h, accumulate);
	if (req->without & WITHOUT_PIECES) leave = size / d2h + (accumulate > 0 ? accumulate : 1 / update_rate(req));
	double out = most(leave, network_grads_time(req, 1)),
		   x = plan->residual_offloaded ? n * (double)residual_width(req->geo) * (double)req->elem : 0;
	double o = plan->offloaded ? (double)memory_away(req, plan) : 0;
	return (struct pcie){
		.embed_in = embed * in,
		.block_in = (double)req->mean * in,
		.slot_in = (double)mean_slot(req, plan) * in,
		.head_in = (double)req->head * in,
		.embed_out = (double)req->embed_grads * out,
		.block_out = block * out,
		.slot_out = fmin((double)mean_slot(req, plan), block) * out,
		.x_out = x / d2h,
		.x_in = x / h2d,
		.x_copy = x / p->hbm,
		.o_out = o / d2h,
		.o_in = o / h2d,
		.o_copy = o / p->hbm,
		.g_copy = p->cores ? 0
						   : block * (sizeof(float) + (req->unified && req->grad != MT_NONE ? 3 : 1) * size) / p->hbm,
		.wire = size / d2h / out,
	};
}

/* ---- a step ---- */

/* Compute, and what comes in for it while the unit before computes */
static double come_and_work(const struct plan_request *req, double in, double work)
{
	return req->without & WITHOUT_PREFETCH ? in + work : most(in, work);
}

/* A backward pass lasts at least from the head's gradient on until the network has carried it and all blocks' to their
 * owners: where blocks leave the network no spare time, the head's gradient delays theirs. The last block's gradient
 * leaves when it is computed, and the network may wait for that. */
static double carried(const struct plan_request *req, const struct times *t)
{
	return t->head + most(network_grads_time(req, req->head_grads), t->backward) +
		network_grads_time(req, (req->geo->layers - req->still) * req->block_grads);
}

/* Layer-major, the backward pass of blocks `from` to `to`, counted from the last one down, all of one checkpoint level,
 * and offloaded or not. The first `here` of these find their weights in a slot, but for experts that come by
 * windows. */
static double backward_range(const struct plan_request *req, const struct plan *plan, const struct times *t,
	const struct pcie *b, enum checkpoint level, bool offloaded, uint32_t from, uint32_t to)
{
	uint32_t slots = req->zero_copy ? req->geo->layers : plan->weight_slots,
			 here = to < slots ? to
		: slots > from         ? slots
							   : from;
	double o_in = offloaded ? b->o_in : 0, o_copy = offloaded ? b->o_copy : 0;
	double work = t->backward + t->recompute[level] + b->x_copy + o_copy + b->g_copy, in = b->x_in + o_in;
	double out = b->block_out, away = in + b->block_in, windows = b->block_in - b->slot_in;
	if (plan->grad_slots < 2) work += b->slot_out;
	double wire = out * b->wire, held = most(most(work, both_ways(req, in + windows, wire)), out);
	double come = most(most(work, both_ways(req, away, wire)), out);
	if (req->without & WITHOUT_PREFETCH) {
		held = most(held, work + in + windows);
		come = most(come, work + away);
	} else if (slots < 2) come = most(come, plan->expert_window ? work + away - windows : work + away);
	return (here - from) * held + (to - here) * come;
}

static void predict_layers(const struct plan_request *req, const struct plan *plan, const struct times *t,
	struct prediction *p)
{
	const struct pcie b = pcie_of(req, plan);
	uint32_t layers = req->geo->layers, away = blocks_offloaded(plan, layers), last = layers - away,
			 back = layers - req->still,
			 at[5] = {0, plan->keep_all, plan->keep_all + plan->keep_but_gate_up,
				 plan->keep_all + plan->keep_but_gate_up + plan->keep_attention, last};
	double block = t->forward + b.x_copy, leaves = b.x_out;
	if (req->without & WITHOUT_PREFETCH) block += b.block_in;
	else if (!req->zero_copy && plan->weight_slots < 2) block += b.slot_in;
	double stays = most(block, both_ways(req, b.block_in, leaves)),
		   goes = most(block + b.o_copy, both_ways(req, b.block_in, leaves + b.o_out));
	p->forward = come_and_work(req, b.embed_in, t->embed_forward) + last * stays + away * goes;
	p->first_forward = p->forward;
	if (!req->train) {
		p->forward += come_and_work(req, b.head_in, t->head);
		return;
	}
	p->backward = come_and_work(req, b.head_in, t->head);
	for (int i = 0; i < 5; i++) at[i] = at[i] < back ? at[i] : back;
	for (int i = 0; i < 4; i++)
		p->backward += backward_range(req, plan, t, &b, (enum checkpoint)(KEEP_ALL - i), false, at[i], at[i + 1]);
	p->backward += backward_range(req, plan, t, &b, plan->offloaded, true, at[4], back);
	p->backward = most(p->backward + t->embed_backward, carried(req, t));
	p->last_backward = p->backward;
	p->tail = b.embed_out;
}

/* Pass-major: weights come in during the first forward pass, gradients leave during the last backward pass. full:
 * passes of pass_rows rows; rest: rows of a last, smaller one. */
static void predict_passes(const struct plan_request *req, const struct plan *plan, const struct times *t,
	struct prediction *p)
{
	const struct pcie b = pcie_of(req, plan);
	uint32_t layers = req->geo->layers, full = req->rows / plan->pass_rows, rest = req->rows % plan->pass_rows;
	struct times r = rest ? unit_times(req, plan, rest) : *t, z = full ? *t : r;
	p->first_forward = come_and_work(req, b.embed_in, z.embed_forward) +
		layers * come_and_work(req, b.block_in, z.forward);
	p->forward = p->first_forward + come_and_work(req, b.head_in, z.head) - z.head;
	double pass = z.embed_forward + layers * z.forward;
	const struct times *last = rest ? &r : &z;
	double back = blocks_back(req);
	p->forward += pass * (full ? full - 1 : 0) + (full && rest ? r.embed_forward + layers * r.forward : 0);
	double block = last->backward + last->recompute[KEEP_ALL];
	p->backward = full * (z.head + back * (z.backward + z.recompute[KEEP_ALL]) + z.embed_backward) +
		(rest ? r.head + back * (r.backward + r.recompute[KEEP_ALL]) + r.embed_backward : 0);
	p->backward += back * (most(block + b.g_copy, b.block_out) - block);
	double leaves = last->head + back * most(block + b.g_copy, b.block_out) + last->embed_backward;
	p->last_backward = most(leaves, carried(req, last));
	p->backward += p->last_backward - leaves;
	p->tail = b.embed_out;
}

/* Seconds of the next step's first forward pass, behind which what is left of the update hides */
static double hides(const struct plan_request *req, const struct prediction *p)
{
	return req->without & WITHOUT_UPDATE ? 0 : p->first_forward;
}

/* --update early: all but the embedding is updated while the last micro-batch goes backward, as far as adding up its
 * gradients leaves the host's memory. After the commit come the embedding, what is left, and the copy of the new
 * weights to their place, while the next step goes forward. */
static double stall_early(const struct plan_request *req, const struct prediction *p)
{
	double rate = update_rate(req) * update_bytes(req), first = (double)req->embed_grads / update_rate(req);
	double added = 2.0 * mt_dtype_bytes(req->grad) * req->streams * (double)req->grads / rate;
	double copied = 2.0 * mt_dtype_bytes(req->dtype) * fmax(0, (double)req->trained - (double)req->embed_grads) / rate;
	double left = most(0, p->adam - first - most(0, p->last_backward - added));
	double updated = (double)req->trained * update_bytes(req) + tier_ram(req);
	double taken = req->unified ? (updated + copied * rate) / req->profile.hbm : 0;
	return most(first, first + left + copied - hides(req, p)) + taken;
}

/* The update hides behind the next step's first forward pass, which waits for each unit's new weights. Without
 * gradients in the store it hides behind the backward pass instead: a unit is updated as its gradient arrives, and the
 * embedding's, which the next step needs first, arrives last. Nothing hides the update of the embedding itself.
 *
 * Of several nodes, each updates its part of a unit, and the network carries one unit's parts while the next one is
 * updated. The last block goes forward when its weights have come; the head's come meanwhile.
 *
 * Meanwhile the first forward pass writes what it offloads: the host memory's bandwidth is shared. Where host and GPU
 * share one memory, the update takes its bandwidth from the GPU, so nothing hides that time.
 *
 * Of units on the tier, the update is at most as fast as their drives. */
static double stall_of(const struct plan_request *req, const struct plan *plan, const struct times *t,
	const struct prediction *p)
{
	if (req->early) return stall_early(req, p);
	uint64_t head = req->head_grads - (req->geo->flags & MT_TIED ? req->grads - req->weights : 0);
	double behind = req->grad == MT_NONE ? p->last_backward : hides(req, p);
	/* what makes the blocks' own inputs is updated with the embedding, and needed with it */
	double first = (double)req->embed_grads / (update_rate(req) * req->nodes);
	double updated = (double)req->trained * update_bytes(req) / req->nodes + tier_ram(req);
	double written = (double)(req->streams * memory_host(req, plan));
	double shared = (updated + written) / most(req->profile.ram, update_rate(req) * update_bytes(req));
	double update = written > 0 && req->grad != MT_NONE ? most(p->adam, shared) : p->adam;
	double all = most(update, first + network_weights_time(req, req->weights));
	if (req->nodes > 1) all = most(all, first + network_weights_time(req, req->weights - head) + t->forward);
	double taken = req->unified ? updated / req->profile.hbm : 0;
	return most(first + network_weights_time(req, req->embed_grads), all - behind) + taken;
}

/* From one micro-batch to a step of several. An embedding's gradient, which leaves last, leaves while the next
 * micro-batch goes forward, and then holds up that one's gradients if the network is slower. */
static void several_micros(const struct plan_request *req, struct prediction *p)
{
	double carry = network_grads_time(req, grads_mean(req));
	double held = most(0, carry - p->forward - p->backward);
	p->forward *= req->micros;
	p->backward = req->micros * p->backward + (req->micros - 1) * held;
}

static void predict_step(const struct plan_request *req, const struct plan *plan, const struct times *t,
	struct prediction *p)
{
	*p = (struct prediction){0};
	if (plan->pass_rows) predict_passes(req, plan, t, p);
	else predict_layers(req, plan, t, p);
	if (req->train) {
		p->adam = update_time(req);
		p->stall = stall_of(req, plan, t, p);
	}
	several_micros(req, p);
	p->step = p->forward + p->backward + p->stall + p->tail;
	/* however much is read ahead, the drives carry all of a step's tiles in each step */
	double drives = req->train && req->tier > 0 ? 2 * (double)req->tier_bytes / req->tier : 0;
	p->stall += most(0, drives - p->step);
	p->step = most(p->step, drives);
}

void predict(const struct plan_request *req, const struct plan *plan, const struct times *t, struct prediction *p)
{
	predict_step(req, plan, t, p);
	if (req->nodes < 2) return;
	struct plan_request no_wait = *req;
	double step = p->step;

	no_wait.net = INFINITY;
	predict_step(&no_wait, plan, t, p);
	p->network_wait = step - p->step;
	p->step = step;
}

/* ---- what a step consists of ---- */

/* By how much the tier's drives make the step longer */
static double tier_wait(const struct plan_request *req, const struct plan *plan, const struct prediction *p)
{
	struct plan_request no_wait = *req;
	struct prediction other;
	struct times t = unit_times(req, plan, rows_of_pass(req, plan));
	no_wait.tier = INFINITY;
	predict_step(&no_wait, plan, &t, &other);
	return p->step - other.step;
}

/* Add the compute of `passes` passes of `rows` rows each, by what it consists of */
static void add_compute(const struct plan_request *req, const struct plan *plan, uint32_t rows, double passes,
	struct prediction *p)
{
	struct times t = unit_times(req, plan, rows);
	double layers = req->geo->layers, n = (double)rows * req->seq;
	double shape = req->profile.cores ? CORES_SHAPES : shares_of(&req->profile)->gemm;
	double fp8 = layers * req->counts.forward.fp8 + (req->train ? blocks_back(req) * req->counts.backward.fp8 : 0);
	double whole = n * (model_flops(req) - fp8 * (1 - 1 / fp8_rate(&req->profile))) / (req->profile.flops * shape);
	double attention = layers * t.attention, recompute = t.head_again;
	double all = t.embed_forward + layers * t.forward + t.head - t.head_again;
	if (req->train) {
		all += blocks_back(req) * t.backward + t.embed_backward;
		for (enum checkpoint level = KEEP_INPUT; level <= KEEP_ALL; level++)
			recompute += blocks_back_at(req, plan, level) * t.recompute[level];
	}
	p->gemm += passes * whole;
	p->attention += passes * attention;
	p->recompute += passes * recompute;
	p->other_kernels += passes * (all - whole - attention);
}

/* Bytes over PCIe: weights, gradients, offloaded activations. twice: blocks whose weights come in again for the
 * backward pass; windows of experts always do. */
static void traffic(const struct plan_request *req, const struct plan *plan, struct prediction *p)
{
	uint64_t layers = req->geo->layers,
			 w = req->zero_copy ? 0
		: req->dtype == MT_BF16 ? 2
								: 4,
			 g = mt_dtype_bytes(req->grad);
	uint64_t back = layers - req->still;
	uint64_t twice = req->train && !plan->pass_rows && back > plan->weight_slots ? back - plan->weight_slots : 0;
	uint64_t kept = memory_host(req, plan), slot = mean_slot(req, plan);
	uint64_t again = twice * slot + (req->train ? back * (req->mean - slot) : 0);
	uint64_t embed = embed_in_place(req, plan) ? elems_of_rows(req) + req->ple_beside : req->embed + req->ple;
	p->in = req->micros * ((embed + req->head + layers * req->mean + again) * w + kept);
	p->out = req->micros * ((req->train ? grads_mean(req) * g : 0) + kept);
}

static void network(const struct plan_request *req, struct prediction *p)
{
	p->grad_bytes = req->micros * network_grads(req, req->grads);
	p->grad_time = req->micros * network_grads_time(req, req->grads);
	p->weight_bytes = network_weights(req, req->weights);
	p->weight_time = network_weights_time(req, req->weights);
}

void predict_parts(const struct plan_request *req, const struct plan *plan, struct prediction *p)
{
	double tokens = (double)req->rows * req->seq, micros = req->micros, all = micros * req->streams * req->nodes;
	const struct work *w = &req->counts.forward;
	double attention = w->delta[0] + w->delta[1];
	for (uint32_t k = 0; k < req->geo->n_kinds; k++) attention += w->attention[k] * keys_of(req, &req->geo->kind[k]);
	attention *= req->geo->layers * tokens;
	uint32_t pass = rows_of_pass(req, plan);
	traffic(req, plan, p);
	network(req, p);
	add_compute(req, plan, pass, micros * (req->rows / pass), p);
	if (req->rows % pass) add_compute(req, plan, req->rows % pass, micros, p);
	if (req->tier > 0) p->tier_wait = tier_wait(req, plan, p);
	p->pcie_wait = most(0, p->forward + p->backward - p->gemm - p->attention - p->recompute - p->other_kernels);
	double passes = req->train ? 1 + 2 * blocks_back(req) / req->geo->layers : 1;
	p->tflops = all * (model_flops(req) * tokens + passes * attention) / p->step / 1e12;
}
