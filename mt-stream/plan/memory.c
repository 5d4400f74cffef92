/* memory.c: where each array of a micro-batch lies in device memory. The same walk computes the size and hands out the
 * addresses, so that a plan takes exactly what it was counted to take.
 */
#include <string.h>

#include "layers/list.h"
#include "mt/layout.h"
#include "mt/memory.h"
#include "plan.h"

struct sizes {
	const struct mt_layer *most;                   /* the request's */
	uint64_t h, x, elem, pass, chunk, slice, head; /* x: elements of a token in the residual stream */
	uint64_t saved; /* tokens of which a block has what it recomputes: windows go through all chunks of a pass */
};

static struct sizes sizes_of(const struct plan_request *req, const struct plan *plan)
{
	const struct mt_geometry *g = req->geo;
	const struct mt_layer *most = &req->most;
	struct sizes z = {
		.most = most,
		.h = g->hidden,
		.x = (uint64_t)residual_width(g),
		.elem = req->elem,
		.pass = (uint64_t)rows_of_pass(req, plan) * req->seq,
		.chunk = (uint64_t)rows_of_chunk(req, plan) * req->seq,
		.slice = tokens_of_slice(req, plan),
		.head = tokens_of_head(req, plan),
	};
	z.saved = plan->expert_window ? z.pass : z.chunk;
	return z;
}

/* What a block of this kind keeps at a level, of n tokens */
static struct saved take_block(struct walk *w, const struct plan_request *req, uint32_t kind, enum checkpoint level,
	uint64_t n)
{
	struct saved v;
	block_take(&v, &(struct kept){.list = &req->lists[kind], .level = level, .n = n, .elem = req->elem}, walk_take_fn,
		w);
	return v;
}

static void take_any(struct walk *w, const struct plan_request *req, enum checkpoint above, enum checkpoint level,
	uint64_t n, struct saved v[MT_KINDS])
{
	blocks_take(v, &(struct kept){req->lists, above, level, n, req->elem}, req->geo->n_kinds, w);
}

static void take_saved(struct walk *w, const struct plan_request *req, const struct plan *plan, const struct sizes *z,
	struct memory_layout *p)
{
	uint32_t layers = req->geo->layers;
	memset(p->chunk, 0, sizeof p->chunk);
	if (req->still || blocks_at(plan, layers, KEEP_ALL) + blocks_at(plan, layers, KEEP_ALL_BUT_GATE_UP) < layers)
		take_any(w, req, req->still || blocks_at(plan, layers, KEEP_INPUT) ? KEEP_INPUT : KEEP_ATTENTION,
			KEEP_ALL_BUT_GATE_UP, z->saved, p->chunk);
	for (uint32_t l = 0; l < layers; l++) {
		enum checkpoint level = l < blocks_offloaded(plan, layers) ? KEEP_INPUT : checkpoint_of(plan, layers, l);
		struct saved v = {0};
		if (l >= req->still) v = take_block(w, req, req->geo->kind_of[l], level, z->pass);
		if (p->saved) p->saved[l] = v;
	}
	bool sums = req->train && plan->expert_window && req->geo->flags & MT_POST_NORM;
	p->kept = sums ? walk_take(w, layers * z->pass, z->h, z->elem) : NULL;
	p->dsum = sums ? walk_take(w, z->pass, z->h, z->elem) : NULL;
	for (int i = 0; i < 2; i++) {
		p->away_at[i] = w->base ? w->base + w->used : NULL;
		take_any(w, req, KEEP_INPUT, plan->offloaded, z->pass, p->away[i]);
	}
}

uint64_t memory_attention(const struct plan_request *req, const struct plan *plan)
{
	if (!plan->library_attention) return 0;
	uint64_t chunk = rows_of_chunk(req, plan), most = 0, bytes, tables;
	for (uint32_t k = 0; k < req->geo->n_kinds; k++) {
		const struct attention_call *call = &req->attention.kind[k];
		if (__builtin_mul_overflow(chunk < call->rows ? chunk : call->rows, call->row, &bytes)) return UINT64_MAX;
		most = larger(most, bytes);
	}
	return __builtin_mul_overflow(chunk, req->attention.table, &tables) ||
			__builtin_add_overflow(most, tables, &bytes) || __builtin_add_overflow(bytes, req->attention.fixed, &bytes)
		? UINT64_MAX
		: bytes;
}

/* Room for the largest operands that activations are narrowed to: x, what a layer reads, and dy, the gradient of what
 * it writes */
static void take_operands(struct walk *w, const struct plan_request *req, const struct sizes *z, struct scratch *t)
{
	uint64_t mixers[2] = {0}, mlp[2] = {z->h, (uint64_t)ple_width(req->geo)}, x, dy; /* with the blocks' own inputs */
	uint64_t of_stream = req->geo->altup ? z->h : 0;
	if (req->operand == req->elem) return;
	lists_operands(req->lists, req->geo->n_kinds, MIXER, mixers);
	lists_operands(req->lists, req->geo->n_kinds, MLP, mlp);
	x = larger(larger(z->chunk * mixers[0], z->slice * mlp[0]), z->head * z->h);
	mlp[1] = larger(mlp[1], of_stream);
	dy = larger(larger(z->chunk * mixers[1], z->slice * mlp[1]), z->head * larger(req->geo->vocab, of_stream));
	t->operand[0] = walk_take(w, x, 1, req->operand);
	if (req->train) t->operand[1] = walk_take(w, dy, 1, req->operand);
}

static void take_fp8(struct walk *w, const struct plan_request *req, const struct sizes *z, struct scratch *t)
{
	if (!req->fp8) return;
	uint64_t mixers = lists_fp8(req->lists, req->geo->n_kinds, MIXER, z->chunk, req->fp8);
	t->fp8 = walk_take(w, larger(mixers, lists_fp8(req->lists, req->geo->n_kinds, MLP, z->slice, req->fp8)), 1, 1);
}

/* Elements of the work memory of the delta rule or the scan. On cores, the forward pass needs none, and the scan's
 * nowhere. */
static uint64_t delta_elems(const struct plan_request *req, const struct sizes *z)
{
	const struct delta_args a = delta_sizes(z->most, (int64_t)z->chunk, req->seq);
	const struct scan_args scan = {.n = a.n, .seq = a.seq, .channels = z->most->conv_dim, .size = z->most->key_dim};
	bool gpu = !req->profile.cores;
	if (a.value_heads && (gpu || req->train)) return (uint64_t)delta_work_elems(&a, gpu);
	return scan.channels && scan.size && req->train ? (uint64_t)scan_room_of(&scan, gpu).elems : 0;
}

/* What is valid only within one call. Mixers, MLP and head have their arrays in the same memory, as only one of the
 * three computes; but where mixer and MLP are parallel, the MLP computes between two parts of the mixer's backward
 * pass. What windows of experts keep from one call to the next is apart. gu: some blocks do not keep gate and up. */
static void take_scratch(struct walk *w, const struct plan_request *req, const struct plan *plan, const struct sizes *z,
	bool gu, struct scratch *t)
{
	uint64_t delta = delta_elems(req, z), n = larger(z->head, req->ple ? z->slice : 0);
	uint32_t kinds = req->geo->n_kinds;
	bool windows = plan->expert_window;
	struct walk mixers, mlp, head, ple;
	const struct routing_sizes routing = {.most = z->most,
		.hidden = z->h,
		.slice = z->slice,
		.pass = z->pass,
		.slices = windows ? slices_of_pass(req, plan) : 0,
		.train = req->train,
		.dtype = req->dtype};
	uint32_t group[MT_KINDS];
	uint64_t heads = 0;
	for (uint32_t k = 0; k < kinds; k++) {
		group[k] = group_of(req, plan, k);
		heads = larger(heads, (req->train ? 2 : 1) * (uint64_t)group_width(&req->geo->kind[k], group[k]));
	}
	struct arena_sizes arena = {.half = MIXER, .group = group, .n = (int64_t)z->chunk, .train = req->train};
	*t = (struct scratch){0};
	t->attention = plan->library_attention ? walk_take(w, t->attention_bytes = memory_attention(req, plan), 1, 1)
										   : NULL;
	t->delta = delta ? walk_take(w, delta, 1, sizeof(float)) : NULL;
	take_operands(w, req, z, t);
	take_fp8(w, req, z, t);
	if (windows && z->most->experts) routing_take(&t->routing, &routing, walk_take_fn, w);
	mixers = *w;
	t->arena[MIXER] = walk_take(&mixers, lists_arena(req->lists, kinds, &arena), 1, 1);
	t->heads = heads ? walk_take(&mixers, z->chunk, heads, z->elem) : NULL;
	mlp = req->geo->flags & MT_PARALLEL ? mixers : *w;
	arena = (struct arena_sizes){MLP, NULL, (int64_t)z->slice, gu, req->train, windows};
	t->arena[MLP] = walk_take(&mlp, lists_arena(req->lists, kinds, &arena), 1, 1);
	if (!windows && z->most->experts) routing_take(&t->routing, &routing, walk_take_fn, &mlp);
	head = *w;
	t->h = walk_take(&head, n, z->h, z->elem);
	t->rstd = walk_take(&head, n, 1, sizeof(float));
	t->mean = req->geo->flags & MT_LAYERNORM ? walk_take(&head, n, 1, sizeof(float)) : NULL;
	t->dh = req->train ? walk_take(&head, n, z->h, z->elem) : NULL;
	for (int i = 0; i < 2 && req->geo->altup; i++) t->altup[i] = walk_take(&head, n, z->h, z->elem);
	ple = head;
	if (req->ple) ple_take(&t->ple, &(struct ple_sizes){req->geo, z->slice, z->elem}, walk_take_fn, &ple);
	t->logits = walk_take(&head, z->head, req->geo->vocab, needs_losses(req) ? sizeof(float) : z->elem);
	t->losses = needs_losses(req) ? walk_take(&head, z->head, 1, sizeof *t->losses) : NULL;
	t->top = req->scores && req->top ? walk_take(&head, z->head, MT_TEACHER_WORDS(req->top), 4) : NULL;
	w->used = larger(larger(mixers.used, mlp.used), larger(ple.used, head.used));
	w->over |= mixers.over || mlp.over || ple.over || head.over;
}

/* Embedding and head share one slot; pass-major, each has its own */
static void take_slots(struct walk *w, const struct plan_request *req, const struct plan *plan, struct memory_layout *p)
{
	uint64_t most = larger(req->embed, req->head), grads = larger(req->embed + req->ple, req->head);
	p->embed_head_weights[0] = req->zero_copy ? NULL : walk_take(w, most, 1, req->operand);
	p->embed_head_weights[1] = req->zero_copy || !plan->pass_rows ? p->embed_head_weights[0]
																  : walk_take(w, most, 1, req->operand);
	for (uint32_t i = 0; i < plan->weight_slots && !req->zero_copy; i++) {
		void *mem = walk_take(w, slot_elems(req, plan) + req->exact, 1, req->operand);
		if (p->weights) p->weights[i] = mem;
	}
	p->embed_head_grads[0] = p->embed_head_grads[1] = p->tied_grads = NULL;
	if (!req->train) return;
	p->embed_head_grads[0] = walk_take(w, grads, 1, sizeof(float));
	p->embed_head_grads[1] = plan->pass_rows ? walk_take(w, most, 1, sizeof(float)) : p->embed_head_grads[0];
	for (uint32_t i = 0; i < plan->grad_slots; i++) {
		void *mem = walk_take(w, slot_elems(req, plan), 1, sizeof(float));
		if (p->grads) p->grads[i] = mem;
	}
	if (req->grad == MT_NONE && req->geo->flags & MT_TIED) p->tied_grads = walk_take(w, req->embed, 1, sizeof(float));
}

/* What makes the blocks' own inputs, and these. Layer-major, unit 0 computes before the gradients' memory is written,
 * and its weights may lie there. */
static void take_ple(struct walk *w, const struct plan_request *req, const struct plan *plan, const struct sizes *z,
	struct memory_layout *p)
{
	bool apart = !req->train || plan->pass_rows;
	p->ple_weights = p->ple_table = p->ple = NULL;
	if (!req->ple) return;
	if (!req->zero_copy) {
		p->ple_weights = walk_take(w, req->ple_beside, 1, req->operand);
		p->ple_table = apart ? walk_take(w, req->ple, 1, req->operand) : p->embed_head_grads[0];
	}
	p->ple = walk_take(w, z->pass, (uint64_t)ple_width(req->geo), z->elem);
}

/* k and v that other layers read */
static void take_kv(struct walk *w, const struct plan_request *req, const struct sizes *z, struct memory_layout *p)
{
	const struct mt_geometry *g = req->geo;
	bool read[MT_KINDS] = {0};
	for (uint32_t k = 0; k < g->n_kinds; k++)
		if (g->kind[k].kv_kind) read[g->kind[k].kv_kind - 1] = true;
	for (uint32_t k = 0; k < MT_KINDS; k++) {
		uint64_t width = read[k] ? (uint64_t)kv_width(&g->kind[k]) : 0;
		p->kv[k] = width ? walk_take(w, z->pass, width, z->elem) : NULL;
		p->dkv[k] = width && req->train ? walk_take(w, z->pass, width, z->elem) : NULL;
	}
}

static void take_balance(struct walk *w, const struct plan_request *req, uint64_t tokens, struct memory_layout *p)
{
	bool terms = req->train && has_balance(req->geo);
	p->counted = terms ? walk_take(w, tokens, 1, sizeof *p->counted) : NULL;
	p->sums = terms ? walk_take(w, 2ull * req->most.experts + 1, 1, sizeof *p->sums) : NULL;
}

/* Two windows of experts, so that one computes while the next one comes or the last one leaves. Boundary blocks
 * leave with the rest of their unit, while the next unit's windows write theirs. */
static void take_windows(struct walk *w, const struct plan_request *req, const struct plan *plan,
	struct memory_layout *p)
{
	uint64_t window = plan->expert_window ? window_elems(req, plan->expert_window) : 0, boundaries = 0;
	for (int k = 0; k < MT_KINDS && plan->expert_window; k++) {
		uint64_t n = split_boundaries(&req->split[k], plan->expert_window);
		boundaries = n > boundaries ? n : boundaries;
	}
	for (int i = 0; i < 2; i++) {
		p->windows[i] = req->zero_copy ? NULL : walk_take(w, window, 1, req->operand);
		p->window_grads[i] = req->train ? walk_take(w, window, 1, sizeof(float)) : NULL;
		p->boundary_blocks[i] = req->train ? walk_take(w, boundaries, MT_BLOCK, sizeof(float)) : NULL;
	}
}

uint64_t memory_lay(const struct plan_request *req, const struct plan *plan, struct memory_layout *layout, void *base)
{
	struct walk w = {.base = base};
	struct memory_layout none = {0}, *p = layout ? layout : &none;
	struct sizes z = sizes_of(req, plan);
	uint64_t all = (uint64_t)req->rows * req->seq;
	/* first, so that the rows' length alone decides where they are: they stay there from one micro-batch to the next */
	for (uint32_t k = 0; k < req->geo->n_kinds; k++) {
		p->cos[k] = walk_take(&w, req->seq, req->geo->kind[k].rope_dim / 2, sizeof(float));
		p->sin[k] = walk_take(&w, req->seq, req->geo->kind[k].rope_dim / 2, sizeof(float));
	}
	p->tokens = walk_take(&w, all, 1, 4);
	p->targets = walk_take(&w, all, 1, 4);
	p->starts = walk_take(&w, all, 1, 4);
	p->ahead = req->geo->mtp != 0 ? walk_take(&w, all, 3, 4) : NULL;
	p->row_weights = req->weighted ? walk_take(&w, all, 1, sizeof(float)) : NULL;
	p->teacher = req->top && !req->scores ? walk_take(&w, all, MT_TEACHER_WORDS(req->top), 4) : NULL;
	p->span_starts = req->most.span ? walk_take(&w, all, 1, 4) : NULL;
	p->loss = walk_take(&w, 2, 1, sizeof *p->loss);
	take_balance(&w, req, all, p);
	take_slots(&w, req, plan, p);
	take_windows(&w, req, plan, p);
	p->outputs = req->train && !plan->residual_offloaded ? req->geo->layers - req->still + 1 + (req->still > 0) : 2;
	for (uint32_t i = 0; i < p->outputs; i++) {
		void *x = walk_take(&w, z.pass, z.x, z.elem);
		if (p->x) p->x[i] = x;
	}
	p->dx = req->train ? walk_take(&w, z.pass, z.x, z.elem) : NULL;
	p->hidden = req->geo->mtp != 0 ? walk_take(&w, z.pass, z.h, z.elem) : NULL;
	p->next = req->geo->mtp != 0 ? walk_take(&w, z.pass, z.h, z.elem) : NULL;
	take_ple(&w, req, plan, &z, p);
	take_kv(&w, req, &z, p);
	bool gu = req->still || blocks_at(plan, req->geo->layers, KEEP_ALL) < req->geo->layers;
	take_scratch(&w, req, plan, &z, gu, &p->scratch);
	take_saved(&w, req, plan, &z, p);
	walk_take(&w, req->work, 1, 1);
	return w.over ? UINT64_MAX : w.used;
}

uint64_t memory_arena(const struct plan_request *req, uint64_t bytes)
{
	struct walk w = {0};
	walk_take(&w, req->work, 1, 1);
	return bytes - w.used;
}

void memory_increments(const struct plan_request *req, const struct plan *plan, struct increments *inc)
{
	const struct mt_geometry *g = req->geo;
	struct sizes z = sizes_of(req, plan);
	struct walk w[5] = {{0}};
	struct scratch scratch;
	struct saved any[MT_KINDS];
	walk_take(&w[0], req->zero_copy ? 0 : slot_elems(req, plan) + req->exact, 1, req->operand);
	take_scratch(&w[1], req, plan, &z, true, &scratch);
	take_scratch(&w[3], req, plan, &z, false, &scratch);
	take_any(&w[2], req, KEEP_INPUT, KEEP_ALL_BUT_GATE_UP, z.saved, any);
	take_any(&w[4], req, KEEP_ATTENTION, KEEP_ALL_BUT_GATE_UP, z.saved, any);
	inc->slot = w[0].used;
	inc->no_gu = req->still ? 0 : w[1].used - w[3].used;
	inc->no_chunk = req->still ? 0 : w[2].used;
	inc->no_attention = req->still ? 0 : w[2].used - w[4].used;
	for (enum checkpoint level = KEEP_INPUT; level <= KEEP_ALL; level++) {
		struct walk kind[MT_KINDS] = {{0}};
		for (uint32_t k = 0; k < g->n_kinds; k++) take_block(&kind[k], req, k, level, z.pass);
		inc->kept[level][0] = 0;
		for (uint32_t n = 0; n < g->layers; n++)
			inc->kept[level][n + 1] = inc->kept[level][n] +
				(n < g->layers - req->still ? kind[g->kind_of[g->layers - 1 - n]].used : 0);
	}
}

uint64_t memory_away(const struct plan_request *req, const struct plan *plan)
{
	struct sizes z = sizes_of(req, plan);
	struct saved any[MT_KINDS];
	struct walk w = {0};
	take_any(&w, req, KEEP_INPUT, plan->offloaded, z.pass, any);
	return w.used;
}

uint64_t memory_host(const struct plan_request *req, const struct plan *plan)
{
	struct sizes z = sizes_of(req, plan);
	uint64_t blocks = blocks_away(req, plan);
	return (plan->residual_offloaded ? residuals_away(req) * z.pass * z.x * z.elem : 0) +
		(blocks ? blocks * memory_away(req, plan) : 0);
}
