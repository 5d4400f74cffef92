/* forward.c: logits of the next token: one pass forward through all units, by mt-stream's layers, on the cpu device.
 *
 * q, k and v of all tokens so far stay in a cache, so that a pass computes only the tokens that are new, as long as the
 * run is at the same step. Layers without attention have their last rows instead, which a convolution and a chunk of
 * gated DeltaNet that is not complete read again, and the latter a state. When a step is committed, the cache is of no
 * use any more: the next pass computes all tokens.
 *
 * A step that is committed during a pass makes the pass begin again. In a run whose steps are shorter than a pass it
 * would never end. So after ATTEMPTS it is computed with each unit at the step that is the newest when its turn comes:
 * then a commit while a unit is read repeats that unit only.
 */
#include <stdlib.h>

#include "cli/cli.h"
#include "layers/list.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "sample.h"

enum {
	ATTEMPTS = 8,
	CHUNK = 512,          /* tokens that go through a block together; a multiple of 64 (attention_args.past) */
	HEAD_ELEMS = 4 << 20, /* elements of the LM head that are multiplied at once, about: 16 MB as fp32 */
	TAIL = DELTA_CHUNK - 1 + MT_CONV_WIDTH - 1 /* rows that gated DeltaNet reads again, at most */
};

/* Rows that the cache of a layer has room for. If few are read, these move to its beginning when it is full. */
static uint64_t tail_rows(uint32_t room) { return (uint64_t)least(room, TAIL + 2 * CHUNK); }
static uint64_t cache_rows(enum past past, uint32_t room) { return past == PAST_ALL ? room : tail_rows(room); }

/* Is the value in the cache? */
static bool is_cached(const struct value *v) { return v->past == PAST_ALL || v->past == PAST_SOME; }

static uint64_t state_elems(const struct mt_layer *l)
{
	return ((uint64_t)l->value_heads * l->value_dim + l->conv_dim) * l->key_dim;
}

/* Elements in the cache of the layers before this one. Of a layer: its values that later tokens read, then the state */
static uint64_t cache_before(const struct forward *f, uint32_t layer, uint32_t room)
{
	uint64_t elems = 0;
	for (uint32_t i = 0; i < layer; i++) {
		const struct list *t = &f->lists[f->geo->kind_of[i]];
		if (t->l->kv_kind) continue;
		for (const struct value *v = t->v; v < t->v + t->values; v++)
			if (is_cached(v)) elems += cache_rows(v->past, room) * (uint64_t)v->width;
		elems += state_elems(t->l);
	}
	return elems;
}

/* The layer whose cache this one uses: its own, or where it reads another one's k and v that one's, over whose q it
 * writes its own */
static uint32_t cache_of(const struct mt_geometry *g, uint32_t layer)
{
	uint32_t of = mt_layer_of(g, layer)->kv_kind;
	while (of && g->kind_of[layer] != of - 1) layer--;
	return layer;
}

static uint32_t head_unit(const struct forward *f) { return f->geo->layers + 1; }

static int64_t head_rows(const struct mt_geometry *g)
{
	int64_t rows = HEAD_ELEMS / g->hidden;
	return least(rows ? rows : 1, g->vocab);
}

/* ---- memory ---- */

static float *take(struct walk *w, uint64_t a, uint64_t b) { return walk_take(w, a, b, sizeof(float)); }

/* Bytes of lo of a unit's exact tensors, which is behind its weights in the slot */
static uint64_t lo_bytes(const struct forward *f, const struct mt_unit *u)
{
	struct mt_part exact = mt_exact(u, mt_tensor(f->weights.run, u->first_tensor));
	return (exact.end - exact.first) * sizeof(int16_t);
}

/* Elements of what makes the blocks' own inputs, before their table, which is last in its unit; 0: none */
static uint64_t ple_beside(const struct forward *f)
{
	if (!f->geo->ple_dim) return 0;
	const struct mt_unit *u = mt_unit(f->weights.run, head_unit(f) + 1);
	return mt_tensor(f->weights.run, u->first_tensor + u->tensors - 1)->off;
}

/* Elements of what makes one stream of several again */
static uint64_t altup_elems(const struct forward *f)
{
	uint64_t n = (uint64_t)f->geo->hidden * f->geo->hidden;
	return f->geo->altup ? (f->geo->altup - 1) * ((n + MT_GROUP - 1) / MT_GROUP * MT_GROUP) : 0;
}

/* Elements of the largest part of the weights that is used at once */
static uint64_t slot_elems(const struct forward *f)
{
	uint64_t most = larger((uint64_t)head_rows(f->geo) * f->geo->hidden, ple_beside(f));
	most = larger(most, altup_elems(f));
	for (uint32_t u = 1; u <= f->geo->layers; u++) {
		const struct mt_unit *unit = mt_unit(f->weights.run, u);
		uint64_t elems = unit->elems + lo_bytes(f, unit) / sizeof(float) + 1;
		most = elems > most ? elems : most;
	}
	return most;
}

static void lay_out(struct forward *f, struct walk *w, uint32_t room)
{
	const struct mt_geometry *g = f->geo;
	const struct mt_layer most = mt_layer_most(g);
	uint64_t n = (uint64_t)least(CHUNK, room), conv = (uint64_t)conv_width(&most), widest[2] = {g->hidden};
	f->x = take(w, room, (uint64_t)residual_width(g));
	f->y = take(w, room, (uint64_t)residual_width(g));
	for (uint32_t k = 0; k < g->n_kinds; k++) {
		f->cos[k] = take(w, room, g->kind[k].rope_dim / 2);
		f->sin[k] = take(w, room, g->kind[k].rope_dim / 2);
	}
	f->qkv = take(w, cache_before(f, g->layers, room), 1);
	f->slot = take(w, slot_elems(f), 1);
	f->norm = take(w, g->hidden, 1);
	f->norm_bias = g->flags & MT_NORM_BIAS ? take(w, g->hidden, 1) : NULL;
	f->head_bias = g->flags & MT_HEAD_BIAS ? take(w, g->vocab, 1) : NULL;
	f->ple = g->ple_dim ? take(w, room, (uint64_t)ple_width(g)) : NULL;
	f->starts = (uint32_t *)take(w, n, 1);
	f->conv_rows = conv ? take(w, n + DELTA_CHUNK, conv) : NULL;
	const struct kept all = {.list = f->lists, .level = KEEP_ALL_BUT_GATE_UP, .n = n, .elem = sizeof(float)};
	blocks_take(f->saved, &all, g->n_kinds, w);
	for (int half = 0; half < HALVES; half++) {
		const struct arena_sizes arena = {.half = half, .n = (int64_t)n, .gate_up = true};
		f->scratch.arena[half] = walk_take(w, lists_arena(f->lists, g->n_kinds, &arena), 1, 1);
		lists_operands(f->lists, g->n_kinds, half, widest);
	}
	f->scratch.h = take(w, n, g->hidden);
	for (int i = 0; i < 2 && g->altup; i++) f->scratch.altup[i] = take(w, n, g->hidden);
	f->scratch.rstd = take(w, n, 1);
	f->scratch.mean = g->flags & MT_LAYERNORM ? take(w, n, 1) : NULL;
	f->scratch.logits = take(w, g->vocab, 1);
	if (g->ple_dim) ple_take(&f->scratch.ple, &(struct ple_sizes){g, n, sizeof(float)}, walk_take_fn, w);
	if (f->dev->operand != f->dev->elem) f->scratch.operand[OPERAND_X] = walk_take(w, n, widest[0], f->dev->operand);
	if (most.experts)
		routing_take(&f->scratch.routing,
			&(struct routing_sizes){.most = &most,
				.hidden = g->hidden,
				.slice = n,
				.dtype = (enum mt_dtype)mt_control(f->weights.run)->dtype},
			walk_take_fn, w);
}

int forward_room(struct forward *f, uint64_t tokens)
{
	struct walk size = {0}, w = {0};
	f->cached = 0;
	if (tokens <= f->room) return 0;
	f->dev->release(f->dev, f->arena, f->arena_bytes);
	f->arena = NULL;
	f->room = f->positions = 0;
	if (tokens <= UINT32_MAX / 2) lay_out(f, &size, (uint32_t)tokens);
	if (!size.used || size.over || !(f->arena = f->dev->alloc(f->dev, size.used)))
		return mt_fail(MT_EX_NOMEM, "no memory for a document of %llu tokens", (unsigned long long)tokens);
	f->arena_bytes = size.used;
	f->room = (uint32_t)tokens;
	w.base = f->arena;
	lay_out(f, &w, f->room);
	return 0;
}

int forward_open(struct forward *f, struct mt_run *run, int threads, enum mt_dtype compute, double wait_s)
{
	*f = (struct forward){.geo = mt_geometry(run), .dev = device_cpu(threads)};
	if (!f->dev) return mt_fail(MT_EX_NOMEM, "no memory or no threads");
	if (!(f->lists = lists_make(f->geo, sizeof(float)))) return mt_fail(MT_EX_NOMEM, "no memory");
	f->weights = (struct weights_reader){.run = run, .dev = f->dev, .wait_s = wait_s};
	if (compute != MT_BF16) return 0;
	if (mt_control(run)->dtype != MT_BF16) return mt_fail(MT_EX_CONFIG, "--compute bf16: the run's weights are fp32");
	return f->dev->compute(f->dev, MT_BF16, NULL);
}

void forward_close(struct forward *f)
{
	f->dev->release(f->dev, f->arena, f->arena_bytes);
	f->dev->close(f->dev);
	free(f->lists);
}

/* ---- units ---- */

/* Each of these computes tokens from .. n - 1 with weights of the reader's step. Weights that are read in place are
 * checked when they have been used, others when they have been copied. */

static int copied(struct forward *f)
{
	int rc;
	if (f->weights.in_place) return 0;
	rc = device_sync(f->dev);
	return rc ? rc : weights_check(&f->weights);
}

static int used(struct forward *f)
{
	int rc = device_sync(f->dev);
	return rc || !f->weights.in_place ? rc : weights_check(&f->weights);
}

static struct chunk chunk_of(const struct forward *f, int64_t from, int64_t n)
{
	struct chunk c = {
		.dev = f->dev,
		.geo = f->geo,
		.n = n,
		.seq = n,
		.slice = n,
		.past = from,
		.in_out = !!(f->geo->flags & MT_IN_OUT),
		.ple = elements_after(f->dev, f->ple, from * ple_width(f->geo)),
		.starts = f->starts,
		.host_starts = f->starts,
		.s = f->scratch,
		.lists = f->lists,
	};
	for (uint32_t k = 0; k < f->geo->n_kinds; k++) {
		c.cos[k] = f->cos[k] + from * (f->geo->kind[k].rope_dim / 2);
		c.sin[k] = f->sin[k] + from * (f->geo->kind[k].rope_dim / 2);
	}
	return c;
}

/* The tensor of that role, and in *unit where it is */
static const struct mt_tensor *tensor_of(const struct forward *f, enum mt_role_tensor role, uint32_t *unit)
{
	const struct mt_unit *u = mt_unit(f->weights.run,
		*unit = role == MT_T_EMBED || role == MT_T_POSITIONS ? 0 : head_unit(f) - (role == MT_T_MTP_FINAL));
	for (uint32_t i = 0; i < u->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(f->weights.run, u->first_tensor + i);
		if (t->role == role) return t;
	}
	mt_bug(__FILE__, __LINE__, "the unit has the tensor");
}

/* Where in unit 0 the table of positions begins */
static uint64_t positions_at(const struct forward *f)
{
	uint32_t unit;
	return f->geo->flags & MT_POSITIONS ? tensor_of(f, MT_T_POSITIONS, &unit)->off : 0;
}

/* The sines of n positions from `from` on, to y */
static const float *sines(const struct mt_geometry *g, int64_t from, int64_t n, float *y)
{
	const struct sines s = {g->sine_step, g->pad_token};
	for (int64_t t = 0; t < n; t++)
		for (int64_t i = 0; i < g->hidden; i++)
			y[t * g->hidden + i] = sine_of(&s, g->position_offset + from + t, g->hidden, i);
	return y;
}

/* The tokens' rows, copied to x, multiplied, and those of their positions added */
static void copy_rows(const struct forward *f, uint32_t u, float *x)
{
	struct weights_reader r = f->weights;
	struct chunk c = chunk_of(f, f->from, f->n - f->from);
	uint64_t h = f->geo->hidden;
	const void *positions = NULL;
	r.in_place = false;
	for (uint32_t i = f->from; i < f->n; i++) weights_launch(&r, u, f->tokens[i] * h, h, x + (i - f->from) * h);
	if (f->geo->flags & MT_POSITIONS)
		positions = weights_launch(&r, u, positions_at(f) + (f->geo->position_offset + f->from) * h, (uint64_t)c.n * h,
			f->y);
	if (f->geo->sine_step != 0) positions = sines(f->geo, f->from, c.n, f->y);
	if (f->geo->embed_scale != 1 || positions) scaled_add(&c, x, x, positions, f->geo->embed_scale);
}

/* The blocks' own inputs, of the tokens and their embeddings; before them, streams of the embeddings, which are in y */
static int layer_inputs(struct forward *f, uint32_t u)
{
	const struct mt_unit *unit = mt_unit(f->weights.run, u);
	const struct mt_tensor *t = mt_tensor(f->weights.run, unit->first_tensor);
	struct chunk c = chunk_of(f, f->from, f->n - f->from);
	struct weights_reader rows = f->weights;
	struct weights w = {0};
	uint64_t width = (uint64_t)ple_width(f->geo), table = ple_beside(f);
	float *x = f->x + f->from * residual_width(f->geo);
	int rc = weights_wait(&f->weights, u);
	if (rc) return rc;
	c.tokens = f->tokens + f->from;
	c.slice = least(CHUNK, c.n);
	weights_enter(&w, f->dev, t, unit->tensors, weights_launch(&f->weights, u, 0, table, f->slot), NULL);
	rows.in_place = false;
	w.t[MT_T_PLE_TABLE] = f->dev->operand == f->dev->elem
		? NULL
		: operands_after(f->dev, mt_at(f->weights.run, unit->w), (int64_t)table);
	for (uint32_t i = f->from; i < f->n && !w.t[MT_T_PLE_TABLE]; i++)
		weights_launch(&rows, u, table + (uint64_t)embed_row(f->tokens[i], f->geo->ple_vocab) * width, width,
			f->ple + i * width);
	for (int64_t at = 0; at < c.n && f->geo->altup; at += c.slice) {
		struct chunk slice = embed_slice(&c, at);
		altup_begin(&slice, &w, f->y + at * f->geo->hidden, x + at * residual_width(f->geo));
	}
	ple_inputs_forward(&c, &w, x);
	return 0;
}

/* x = the tokens' rows of the embedding, of which all others are left alone */
static int embed(struct forward *f, uint32_t u)
{
	struct chunk c = chunk_of(f, f->from, f->n - f->from);
	struct weights w = {0};
	float *x = f->geo->altup ? f->y : f->x + (uint64_t)f->from * f->geo->hidden;
	int rc = weights_wait(&f->weights, u);
	if (rc) return rc;
	c.tokens = f->tokens + f->from;
	c.starts = NULL;
	if (f->dev->operand == f->dev->elem) {
		copy_rows(f, u, x);
	} else {
		w.t[MT_T_EMBED] = mt_at(f->weights.run, mt_unit(f->weights.run, u)->w);
		if (f->geo->flags & MT_POSITIONS)
			w.t[MT_T_POSITIONS] = operands_after(f->dev, w.t[MT_T_EMBED], (int64_t)positions_at(f));
		embed_tokens(&c, &w, x);
	}
	if (f->geo->ple_dim && (rc = layer_inputs(f, head_unit(f) + 1))) return rc;
	rc = device_sync(f->dev);
	return rc ? rc : weights_check(&f->weights);
}

static const int16_t *lo_launch(const struct forward *f, const struct mt_unit *u)
{
	const int16_t *lo = mt_at(f->weights.run, u->lo);
	size_t bytes = lo_bytes(f, u);
	void *dst = f->slot + u->elems;
	if (!bytes) return NULL;
	lo += mt_exact(u, mt_tensor(f->weights.run, u->first_tensor)).first;
	if (f->weights.in_place) return lo;
	f->dev->launch(f->dev, Q_COMPUTE, &(struct op){OP_COPY, .copy = {dst, lo, bytes}});
	return dst;
}

/* Where the arrays of a layer's chunk are that later tokens read: in its cache, from row `tail` on, or that of the
 * first token; and the delta rule's, behind rows that it makes again. moved: the rows before went to the cache's
 * beginning. */
static void past_at(const struct forward *f, uint32_t layer, int64_t from, uint32_t tail, uint32_t moved,
	struct saved *s)
{
	const struct list *t = &f->lists[f->geo->kind_of[layer]];
	float *cache = f->qkv + cache_before(f, cache_of(f->geo, layer), f->room);
	for (int i = 0; i < t->values; i++) {
		const struct value *v = &t->v[i];
		int64_t row = v->past == PAST_ALL ? from : tail;
		if (v->past == PAST_CHUNK) s->v[i] = f->conv_rows + DELTA_CHUNK * v->width;
		if (!is_cached(v)) continue;
		if (v->past == PAST_SOME && moved)
			f->dev->launch(f->dev, Q_COMPUTE,
				&(struct op){OP_COPY,
					.copy = {cache, cache + (moved - TAIL) * v->width, TAIL * (size_t)v->width * sizeof *cache}});
		s->v[i] = cache + row * v->width;
		cache += cache_rows(v->past, f->room) * (uint64_t)v->width;
	}
	s->state = state_elems(t->l) ? cache : NULL;
}

static int block(struct forward *f, uint32_t u)
{
	const struct mt_unit *unit = mt_unit(f->weights.run, u);
	int64_t h = residual_width(f->geo);
	uint32_t tail = f->tail_row;
	struct weights w = {0};
	int rc = weights_wait(&f->weights, u);
	if (rc) return rc;
	const void *base = weights_launch(&f->weights, u, 0, unit->elems, f->slot);
	weights_enter(&w, f->dev, mt_tensor(f->weights.run, unit->first_tensor), unit->tensors, base, lo_launch(f, unit));
	if ((rc = copied(f))) return rc;
	for (int64_t from = f->from, n; from < f->n; from += n) {
		n = least(CHUNK, f->n - from);
		struct chunk c = chunk_of(f, from, n);
		struct saved s = f->saved[f->geo->kind_of[u - 1]];
		uint32_t moved = tail + (uint64_t)n > tail_rows(f->room) ? tail : 0;
		if (moved) tail = TAIL;
		past_at(f, u - 1, from, tail, moved, &s);
		block_forward(&c, u - 1, &w, f->x + from * h, &s, f->y + from * h);
		tail += (uint32_t)n;
	}
	f->tail_end = tail;
	return used(f);
}

/* The last token's logits, some rows of the head's weight at a time */
static int head(struct forward *f, uint32_t u)
{
	const struct mt_geometry *g = f->geo;
	struct chunk c = chunk_of(f, f->n - 1, 1);
	struct weights w = {0};
	uint32_t norm_unit, unit;
	const struct mt_tensor *t = tensor_of(f, g->flags & MT_TIED ? MT_T_EMBED : MT_T_HEAD, &unit);
	const struct mt_tensor *t_out;
	const void *bias = NULL;
	int64_t h = g->hidden, rows;
	int rc;
	if ((rc = weights_wait(&f->weights, u)) || (rc = weights_wait(&f->weights, unit))) return rc;
	if (!(g->flags & MT_NORM_PLAIN)) {
		const struct mt_tensor *norm = tensor_of(f, g->mtp != 0 ? MT_T_MTP_FINAL : MT_T_FNORM, &norm_unit);
		if ((rc = weights_wait(&f->weights, norm_unit))) return rc;
		w.t[MT_T_FNORM] = weights_launch(&f->weights, norm_unit, norm->off, g->hidden, f->norm);
	}
	if (g->flags & MT_NORM_BIAS)
		w.t[MT_T_FNORMB] = weights_launch(&f->weights, head_unit(f), tensor_of(f, MT_T_FNORMB, &norm_unit)->off,
			g->hidden, f->norm_bias);
	if (g->flags & MT_HEAD_BIAS)
		bias = weights_launch(&f->weights, head_unit(f), tensor_of(f, MT_T_HEADB, &norm_unit)->off, g->vocab,
			f->head_bias);
	if ((rc = copied(f))) return rc;
	c.in_out = 0;
	c.mtp = true; /* what it reads has no norm yet */
	if (g->altup) {
		t_out = tensor_of(f, MT_T_ALTUP_OUT, &norm_unit);
		w.t[MT_T_ALTUP_OUT] = weights_launch(&f->weights, head_unit(f), t_out->off, altup_elems(f), f->slot);
		if ((rc = copied(f))) return rc;
	}
	head_norm(&c, &w, f->x + (f->n - 1) * residual_width(g));
	for (int64_t first = 0; first < g->vocab; first += rows) {
		rows = least(head_rows(g), g->vocab - first);
		w.t[MT_T_HEAD] = weights_launch(&f->weights, unit, t->off + (uint64_t)(first * h), (uint64_t)(rows * h),
			f->slot);
		if ((rc = copied(f))) return rc;
		w.t[MT_T_HEADB] = operands_after(f->dev, bias, first);
		c.s.logits = (float *)f->scratch.logits + first;
		head_logits(&c, &w, rows);
	}
	return used(f);
}

/* ---- a pass ---- */

static int unit_forward(struct forward *f, uint32_t u)
{
	int rc;
	do {
		if (f->mixed && (rc = weights_begin(&f->weights))) return rc;
		rc = u == 0 ? embed(f, u) : u == head_unit(f) ? head(f, u) : block(f, u);
	} while (f->mixed && rc == CHANGED);
	if (!rc && u > 0 && u < head_unit(f)) {
		float *x = f->x;
		f->x = f->y;
		f->y = x;
	}
	return rc;
}

/* mixed: each unit at the newest step when its turn comes. 0, CHANGED or -ex */
static int pass(struct forward *f, bool mixed)
{
	int rc = weights_begin(&f->weights);
	if (rc) return rc;
	if (mixed || f->weights.fills != f->fills || f->weights.step != f->step) f->cached = 0;
	f->mixed = mixed;
	/* copied in any case: a unit is then read in the time of a copy */
	f->weights.in_place = !mixed &&
		f->dev->zero_copy(f->dev, f->arena, (enum mt_dtype)mt_control(f->weights.run)->dtype);
	f->from = f->cached;
	if (!f->from) f->tail_row = 0;
	f->cached = 0;
	for (uint32_t u = 0; !rc && u <= head_unit(f); u++)
		if (u == 0 || u == head_unit(f) || !mt_layer_of(f->geo, u - 1)->mtp) rc = unit_forward(f, u);
	if (rc || mixed) return rc;
	f->cached = f->n;
	f->tail_row = f->tail_end;
	f->fills = f->weights.fills;
	f->step = f->weights.step;
	return 0;
}

int forward_logits(struct forward *f, const uint32_t *tokens, uint32_t n, const float **logits)
{
	int rc = CHANGED;
	MT_ASSERT(n > f->cached && n <= f->room);
	if (n > f->positions) {
		for (uint32_t k = 0; k < f->geo->n_kinds; k++)
			rope_table(&f->geo->kind[k], f->positions, n, f->cos[k], f->sin[k]);
		f->positions = n;
	}
	f->tokens = tokens;
	f->n = n;
	for (int i = 0; rc == CHANGED && i < ATTEMPTS; i++) rc = pass(f, false);
	if (rc == CHANGED) {
		if (!f->mixed_reported)
			mt_say("warning: steps are shorter than a forward pass: some tokens come from units of several steps");
		f->mixed_reported = true;
		rc = pass(f, true);
	}
	*logits = f->scratch.logits;
	return rc;
}
