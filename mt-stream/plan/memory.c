/* memory.c: which device memory each thing of a micro-batch has. One walk, for need and places alike, so that what
 * was predicted is what is taken.
 */
#include "plan.h"

struct walk {
	char *base;
	uint64_t used;
	bool over;
}; /* base NULL: only the need is wanted */

/* a * b elements of `size` bytes, on pages of their own */
static void *take(struct walk *w, uint64_t a, uint64_t b, uint64_t size)
{
	uint64_t bytes, end;
	void *p = w->base ? w->base + w->used : NULL;

	if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, size, &bytes) ||
		__builtin_add_overflow(bytes, 4095, &bytes) || __builtin_add_overflow(w->used, bytes & ~4095ull, &end)) {
		w->over = true;
		return NULL;
	}
	w->used = end;
	return p;
}

struct sizes {
	uint64_t h, a, k, f, elem, pass, chunk, piece, head, either;
};

static struct sizes sizes_of(const struct ask *q, const struct choice *c)
{
	const struct mt_geometry *g = q->geo;
	struct sizes z = {
		.h = g->hidden,
		.a = (uint64_t)g->heads * g->head_dim,
		.k = (uint64_t)g->kv_heads * g->head_dim,
		.f = g->ffn,
		.elem = q->elem,
		.pass = (uint64_t)rows_of_pass(q, c) * q->seq,
		.chunk = (uint64_t)rows_of_chunk(q, c) * q->seq,
		.piece = tokens_of_piece(q, c),
		.head = tokens_of_head(q, c),
	};

	z.either = z.chunk > z.head ? z.chunk : z.head;
	return z;
}

static void take_attention(struct walk *w, const struct ask *q, const struct sizes *z, uint64_t n, struct saved *v)
{
	v->o = take(w, n, z->a, z->elem);
	v->lse = take(w, n, q->geo->heads, sizeof(float));
}

/* All but o, lse and gate-up */
static void take_block(struct walk *w, const struct ask *q, const struct sizes *z, uint64_t n, struct saved *v)
{
	v->qkv = take(w, n, z->a + 2 * z->k, z->elem);
	if (q->geo->flags & MT_QK_NORM) {
		v->pre = take(w, n, z->a + z->k, z->elem);
		v->qk_rstd = take(w, n, q->geo->heads + q->geo->kv_heads, sizeof(float));
	}
	v->x2 = take(w, n, z->h, z->elem);
}

static void take_level(struct walk *w, const struct ask *q, const struct sizes *z, enum level level, struct saved *v)
{
	*v = (struct saved){0};
	if (level >= LEVEL_ATTENTION) take_attention(w, q, z, z->pass, v);
	if (level >= LEVEL_BLOCK) take_block(w, q, z, z->pass, v);
	if (level >= LEVEL_FULL) v->gu = take(w, z->pass, 2 * z->f, z->elem);
}

static void take_saved(struct walk *w, const struct ask *q, const struct choice *c, const struct sizes *z,
	struct place *p)
{
	uint32_t layers = q->geo->layers;

	p->chunk = (struct saved){0};
	if (c->full < layers) p->scratch.gu = take(w, z->piece, 2 * z->f, z->elem);
	if (c->full + c->block < layers) {
		take_attention(w, q, z, z->chunk, &p->chunk);
		take_block(w, q, z, z->chunk, &p->chunk);
	}
	for (uint32_t l = 0; l < layers; l++) {
		struct saved v;
		enum level level = level_of(c, layers, l);

		take_level(w, q, z, level == LEVEL_ATTENTION && c->o_host ? LEVEL_INPUT : level, &v);
		if (p->saved) p->saved[l] = v;
	}
	for (int i = 0; i < 2; i++) {
		p->o[i] = c->o_host ? take(w, z->pass, z->a, z->elem) : NULL;
		p->lse[i] = c->o_host ? take(w, z->pass, q->geo->heads, sizeof(float)) : NULL;
	}
}

uint64_t memory_attention(const struct ask *q, const struct choice *c)
{
	if (!c->engine) return 0;
	uint64_t chunk = rows_of_chunk(q, c), rows = chunk < q->attention.rows ? chunk : q->attention.rows, bytes, tables;

	return __builtin_mul_overflow(rows, q->attention.row, &bytes) ||
			__builtin_mul_overflow(chunk, q->attention.table, &tables) ||
			__builtin_add_overflow(bytes, tables, &bytes) || __builtin_add_overflow(bytes, q->attention.fixed, &bytes)
		? UINT64_MAX
		: bytes;
}

static void take_scratch(struct walk *w, const struct ask *q, const struct choice *c, const struct sizes *z,
	struct scratch *t)
{
	*t = (struct scratch){0};
	t->h = take(w, z->either, z->h, z->elem);
	t->attention = c->engine ? take(w, t->attention_bytes = memory_attention(q, c), 1, 1) : NULL;
	t->rstd = take(w, z->either, 1, sizeof(float));
	t->act = take(w, z->piece, z->f, z->elem);
	t->logits = take(w, z->head, q->geo->vocab, z->elem);
	if (!q->train) return;
	t->dh = take(w, z->either, z->h, z->elem);
	t->d_o = take(w, z->chunk, z->a, z->elem);
	t->dqkv = take(w, z->chunk, z->a + 2 * z->k, z->elem);
}

/* Embedding and head have a slot of their own between them, and (pass-major) one each */
static void take_slots(struct walk *w, const struct ask *q, const struct choice *c, struct place *p)
{
	uint64_t most = q->embed > q->head ? q->embed : q->head;

	for (int i = 0; i < 2 && !q->view; i++) {
		void *mem = i == 0 || c->pass_rows ? take(w, most, 1, q->elem) : NULL;
		if (p->ends) p->ends[i] = (struct slot){.mem = mem, .job = -1};
	}
	for (uint32_t i = 0; i < c->weight_slots && !q->view; i++) {
		void *mem = take(w, q->block, 1, q->elem);
		if (p->weights) p->weights[i] = (struct slot){.mem = mem, .job = -1};
	}
	p->end_grads[0] = p->end_grads[1] = p->tied = NULL;
	if (!q->train) return;
	p->end_grads[0] = take(w, most, 1, sizeof(float));
	p->end_grads[1] = c->pass_rows ? take(w, most, 1, sizeof(float)) : p->end_grads[0];
	for (uint32_t i = 0; i < c->grad_slots; i++) {
		void *mem = take(w, q->block, 1, sizeof(float));
		if (p->grads) p->grads[i] = mem;
	}
	if (q->grad == MT_NONE && q->geo->flags & MT_TIED) p->tied = take(w, q->embed, 1, sizeof(float));
}

uint64_t memory_lay(const struct ask *q, const struct choice *c, struct place *place, void *base)
{
	struct walk w = {.base = base};
	struct place none = {0}, *p = place ? place : &none;
	struct sizes z = sizes_of(q, c);
	uint64_t all = (uint64_t)q->rows * q->seq;

	p->tokens = take(&w, all, 1, 4);
	p->targets = take(&w, all, 1, 4);
	p->starts = take(&w, all, 1, 4);
	p->loss = take(&w, 1, 1, sizeof *p->loss);
	p->cos = take(&w, q->seq, q->geo->head_dim / 2, sizeof(float));
	p->sin = take(&w, q->seq, q->geo->head_dim / 2, sizeof(float));
	take_slots(&w, q, c, p);
	p->outputs = q->train && !c->x_host ? q->geo->layers + 1 : 2;
	for (uint32_t i = 0; i < p->outputs; i++) {
		void *x = take(&w, z.pass, z.h, z.elem);
		if (p->x) p->x[i] = x;
	}
	p->dx = q->train ? take(&w, z.pass, z.h, z.elem) : NULL;
	take_scratch(&w, q, c, &z, &p->scratch);
	take_saved(&w, q, c, &z, p);
	take(&w, q->work, 1, 1);
	return w.over ? UINT64_MAX : w.used;
}

uint64_t memory_arena(const struct ask *q, uint64_t bytes)
{
	struct walk w = {0};

	take(&w, q->work, 1, 1);
	return bytes - w.used;
}

void memory_increments(const struct ask *q, const struct choice *c, struct increments *inc)
{
	struct sizes z = sizes_of(q, c);
	struct saved v = {0};
	struct walk w[6] = {{0}};

	take(&w[0], q->view ? 0 : q->block, 1, q->elem);
	take_level(&w[1], q, &z, LEVEL_FULL, &v);
	take_level(&w[2], q, &z, LEVEL_BLOCK, &v);
	take_level(&w[3], q, &z, c->o_host ? LEVEL_INPUT : LEVEL_ATTENTION, &v);
	take(&w[4], z.piece, 2 * z.f, z.elem);
	take_attention(&w[5], q, &z, z.chunk, &v);
	take_block(&w[5], q, &z, z.chunk, &v);
	*inc = (struct increments){w[0].used, w[1].used, w[2].used, w[3].used, w[4].used, w[5].used};
}

uint64_t memory_host(const struct ask *q, const struct choice *c)
{
	struct sizes z = sizes_of(q, c);
	uint64_t x = z.pass * z.h * z.elem, o = z.pass * (z.a * z.elem + q->geo->heads * sizeof(float));

	return (c->x_host ? inputs_away(q->geo) * x : 0) + (c->o_host ? outputs_away(c->attention) * o : 0);
}
