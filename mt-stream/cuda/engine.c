/* engine.c: attention by a library, in calls that it takes
 *
 * Backward, a call is for a group of rows: as many as ROWS_BYTES of work memory are enough for, one at least. A row for
 * which all heads would want more than HEADS_BYTES is several calls, each for some key-value heads and their query
 * heads. Forward wants next to no work memory: one call is for a whole chunk.
 *
 * Rows that each hold one document are one call. Rows with several are taken apart by length: documents of (seq / 2,
 * seq] tokens are a call, those of (seq / 4, seq / 2] the next, down to SHORTEST; each call has room for documents of
 * its longest length, so that even a library that keeps a square a document never wants more than for whole rows. How
 * many a call has room for comes in steps too (STEP, STEP^2, ...): what is missing are documents without tokens. So the
 * plans of a shape are few, and all are made before the first step. A table says where in the rows each document is; it
 * goes to the device before its calls.
 *
 * A span is the rows that one decision is for: a chunk, or where the library does not take all of it, each group of
 * rows by itself. It depends on the documents' lengths and on nothing else: forward, backward, and whoever computes the
 * same rows again decide alike, and may keep statistics in a layout of their own: (rows, NH, seq); for documents (N,
 * NH), or where calls are for some heads, those of each call together.
 */
#include <math.h>
#include <stdlib.h>

#include "calls.h"
#include "cli/cli.h"
#include "engine.h"

#define FIXED_BYTES (1u << 20) /* beside what grows with the rows: forward plans and small change */
#ifndef SHORTEST               /* smaller for the emulated GPU */
#define SHORTEST 64            /* tokens: shorter documents have these's room; shorter rows are not taken */
#endif
#define STEP 8
#define CLASSES 32
#define TABLES 8 /* host copies of tables, used in turn: the host is so many groups ahead at most */
#define LINE 16  /* bytes: what a table's parts are aligned to */

struct plan {
	struct sdpa_shape shape;
	void *plan; /* NULL: not taken */
	size_t bytes;
};

struct engine {
	struct sdpa *sdpa;
	int64_t heads, kv_heads, dim;
	float scale;
	bool packed;
	struct plan *plans;
	size_t n, room;
	struct table_slot {
		char *mem;        /* pinned */
		cudaEvent_t over; /* the last copy from it is */
	} tables[TABLES];
	size_t table_room; /* of each */
	uint64_t tables_n; /* used so far, in turn */
};

/* ---- plans ---- */

static struct sdpa_shape shape_of(const struct engine *e, int64_t batch, int64_t seq, int64_t kv_heads, int64_t window,
	bool ragged)
{
	struct sdpa_shape s;

	memset(&s, 0, sizeof s);
	s.batch = batch;
	s.seq = seq;
	s.heads = kv_heads * (e->heads / e->kv_heads);
	s.kv_heads = kv_heads;
	s.all_heads = e->heads;
	s.all_kv_heads = e->kv_heads;
	s.dim = e->dim;
	s.window = window < seq ? window : 0;
	s.scale = e->scale;
	s.ragged = ragged;
	return s;
}

/* The plan of a shape, made when it is first asked for; NULL: none, or no memory */
static struct plan *plan_of(struct engine *e, struct sdpa_shape s, bool backward)
{
	s.backward = backward;
	for (size_t i = 0; i < e->n; i++)
		if (!memcmp(&e->plans[i].shape, &s, sizeof s)) return e->plans[i].plan ? &e->plans[i] : NULL;
	if (e->n == e->room) {
		size_t room = e->room ? 2 * e->room : 64;
		struct plan *more = realloc(e->plans, room * sizeof *more);

		if (!more) return NULL;
		e->plans = more;
		e->room = room;
	}
	struct plan *p = &e->plans[e->n++];
	*p = (struct plan){.shape = s};
	p->plan = e->sdpa->plan(e->sdpa, &s, &p->bytes);
	return p->plan ? p : NULL;
}

/* ---- what is asked before a plan of memory is made ---- */

/* The table of one row's documents: at most a document a token, and as many again in longer classes */
static uint64_t table_bytes(int64_t seq) { return (uint64_t)seq * 40 + CLASSES * 8 * LINE; }

/* Key-value heads of a call over rows of seq tokens that wants work memory, or a layout of statistics that it alone
 * reads */
static int64_t some_kv_heads(struct engine *e, int64_t seq)
{
	struct plan *all = plan_of(e, shape_of(e, 1, seq, e->kv_heads, 0, false), true);
	int64_t n = all ? kv_heads_of_call(all->bytes, (uint32_t)e->kv_heads) : e->kv_heads;

	return seq * n * (e->heads / e->kv_heads) % 4 ? e->kv_heads : n; /* its statistics start at 16 bytes */
}

/* Forward, statistics of whole rows stand in the same places however many heads a call is for: it is for all. */
static int64_t kv_heads_of(struct engine *e, int64_t seq, bool ragged, bool backward)
{
	return ragged || backward ? some_kv_heads(e, seq) : e->kv_heads;
}

bool engine_packs(struct engine *e, int64_t seq)
{
	return plan_of(e, shape_of(e, 1, seq, some_kv_heads(e, seq), 0, true), true) != NULL;
}

/* Work memory of a row beside its table, going backward; 0: not taken. Where documents are taken, their calls have room
 * for up to twice the tokens, and so for twice what a library keeps a token: fp32 dQ, dK and dV of every head. */
static uint64_t row_bytes(struct engine *e, int64_t seq, bool packed)
{
	if (seq < SHORTEST || seq * e->heads % 4) /* a row's statistics start at 16 bytes, too */
		return 0;
	int64_t kv_heads = some_kv_heads(e, seq);
	struct plan *plain = plan_of(e, shape_of(e, 1, seq, kv_heads, 0, false), true);
	if (!plain) return 0;
	uint64_t bytes = plain->bytes + 1;
	/* plans move when another one is made */
	if (!plan_of(e, shape_of(e, 1, seq, e->kv_heads, 0, false), false)) return 0;
	if (packed && engine_packs(e, seq)) bytes += (uint64_t)(seq * kv_heads * (e->heads / e->kv_heads) * e->dim) * 12;
	return bytes;
}

static int64_t group_rows(struct engine *e, int64_t seq)
{
	uint64_t row = row_bytes(e, seq, false);

	return !row ? 0 : some_kv_heads(e, seq) < e->kv_heads ? 1 : rows_of_call(row);
}

struct attention_need engine_need(struct engine *e, int64_t seq, bool packed, bool train)
{
	uint64_t row = row_bytes(e, seq, packed);

	e->packed = packed;
	if (!row) return (struct attention_need){0};
	return (struct attention_need){
		.rows = (uint32_t)group_rows(e, seq),
		.fixed = FIXED_BYTES,
		.row = train ? row : 0,
		.table = packed ? table_bytes(seq) : 0,
		.kv_heads = (uint32_t)some_kv_heads(e, seq),
	};
}

/* ---- a group of rows ---- */

struct span {
	int64_t row, rows;
	bool ragged, taken;
}; /* ragged: in calls for documents */

struct part { /* a call, or one for each share of the heads */
	struct sdpa_shape shape;
	size_t at; /* ragged: its part of the table */
	int64_t n; /* documents entered so far */
};

struct group {
	int64_t rows, tokens;
	bool ragged, backward;
	const uint32_t *starts; /* host, from its first row on */
	struct part parts[CLASSES];
	int parts_n;
	size_t bytes; /* of the table */
};

static int64_t class_seq(int64_t seq, int i)
{
	int64_t m = (seq + (1ll << i) - 1) >> i;

	return m < SHORTEST ? SHORTEST : m;
}
static bool class_last(int64_t seq, int i) { return class_seq(seq, i) == SHORTEST; }
static int class_of(int64_t seq, int64_t tokens)
{
	int i = 0;

	while (!class_last(seq, i) && tokens <= class_seq(seq, i + 1)) i++;
	return i;
}
/* documents that so many rows have at most in a class */
static int64_t class_most(int64_t seq, int64_t rows, int i)
{
	return rows * (seq / (class_last(seq, i) ? 1 : class_seq(seq, i + 1) + 1));
}
static int64_t class_room(int64_t documents, int64_t most)
{
	int64_t room = STEP;

	while (room < documents) room *= STEP;
	return room < most ? room : most;
}

/* Tokens of the document that starts at token t of a row */
static int64_t document_tokens(const uint32_t *starts, int64_t t, int64_t seq)
{
	int64_t end = t + 1;

	while (end < seq && starts[end] == starts[t]) end++;
	return end - t;
}

/* Calls fn for each document of the group: its first token, counted from the group's, and its tokens */
static void documents(const struct group *g, int64_t seq, void (*fn)(void *, int64_t at, int64_t tokens), void *arg)
{
	for (int64_t r = 0; r < g->rows; r++)
		for (int64_t t = 0, n; t < seq; t += n) {
			n = document_tokens(g->starts + r * seq, t, seq);
			fn(arg, r * seq + t, n);
		}
}

struct count {
	int64_t seq, of[CLASSES];
};

static void document_count(void *arg, int64_t at, int64_t tokens)
{
	struct count *c = arg;

	(void)at;
	c->of[class_of(c->seq, tokens)]++;
}

static size_t part_bytes(int64_t batch)
{
	return (size_t)(batch + 1) * 3 * sizeof(int64_t) + ((size_t)batch * sizeof(int32_t) + LINE) / LINE * LINE + LINE;
}

static void part_add(struct engine *e, struct group *g, const struct attention_args *a, int64_t batch, int64_t seq)
{
	struct part *p = &g->parts[g->parts_n++];
	struct sdpa_shape s = shape_of(e, batch, seq, kv_heads_of(e, a->seq, g->ragged, g->backward), a->window, g->ragged);

	*p = (struct part){.shape = s, .at = g->bytes};
	g->bytes += g->ragged ? part_bytes(batch) : 0;
}

static struct group group_make(struct engine *e, const struct attention_args *c, const struct span *span, int64_t row,
	int64_t rows, bool backward)
{
	struct group g = {.rows = rows,
		.tokens = rows * c->seq,
		.ragged = span->ragged,
		.backward = backward,
		.starts = c->host_starts + row * c->seq};
	struct count count = {.seq = c->seq};

	if (!g.ragged) {
		part_add(e, &g, c, rows, c->seq);
		return g;
	}
	documents(&g, c->seq, document_count, &count);
	for (int i = 0; i < CLASSES; i++)
		if (count.of[i]) part_add(e, &g, c, class_room(count.of[i], class_most(c->seq, rows, i)), class_seq(c->seq, i));
	return g;
}

/* Is there a plan for each of its calls, in the work memory that was promised? */
static bool group_taken(struct engine *e, const struct group *g, int64_t seq)
{
	uint64_t row = row_bytes(e, seq, g->ragged);

	if (!row || g->bytes > (uint64_t)g->rows * table_bytes(seq)) return false;
	for (int i = 0; i < g->parts_n; i++) {
		struct plan *p = plan_of(e, g->parts[i].shape, g->backward);

		if (!p || p->bytes > (g->backward ? (uint64_t)g->rows * row : FIXED_BYTES / 2)) return false;
	}
	return true;
}

/* ---- a span of rows ---- */

/* Both ways: forward and backward must agree. */
static bool span_taken(struct engine *e, const struct attention_args *c, const struct span *s, int64_t most)
{
	struct group forward = group_make(e, c, s, s->row, s->rows, false);

	if (!group_taken(e, &forward, c->seq)) return false;
	for (int64_t row = 0, n; row < s->rows; row += n) {
		n = s->rows - row < most ? s->rows - row : most;
		struct group backward = group_make(e, c, s, s->row + row, n, true);
		if (!group_taken(e, &backward, c->seq)) return false;
	}
	return true;
}

static struct span span_make(struct engine *e, const struct attention_args *c, int64_t row, int64_t rows, int64_t most)
{
	const uint32_t *starts = c->host_starts + row * c->seq;
	struct span s = {.row = row, .rows = rows};

	for (int64_t t = 0; !s.ragged && t < rows * c->seq; t++) s.ragged = starts[t] != 0;
	/* where calls are for some heads of documents, what is forward one group must be one backward */
	bool one = rows <= most || !s.ragged || some_kv_heads(e, c->seq) == e->kv_heads;
	s.taken = most && one && span_taken(e, c, &s, most);
	return s;
}

/* The span that starts at a row: all that is left of the chunk where it is the first, or a group of rows */
static struct span span_next(struct engine *e, const struct attention_args *c, int64_t row, int64_t most)
{
	int64_t rest = c->n / c->seq - row;
	struct span s = {0};

	if (!row) s = span_make(e, c, row, rest, most);
	return s.taken || !most ? s : span_make(e, c, row, rest < most ? rest : most, most);
}

/* ---- the table ---- */

struct table {
	int64_t *qkv_at, *o_at, *lse_at;
	int32_t *lengths;
};

static struct table table_of(char *base, const struct part *p)
{
	int64_t *at = (int64_t *)(base + p->at), n = p->shape.batch + 1;

	return (struct table){at, at + n, at + 2 * n, (int32_t *)(at + 3 * n)};
}

static void entry(const struct sdpa_shape *s, const struct table *t, int64_t i, int64_t token)
{
	t->qkv_at[i] = token * (s->all_heads + 2 * s->all_kv_heads) * s->dim;
	t->o_at[i] = token * s->all_heads * s->dim;
	t->lse_at[i] = token * s->heads;
}

struct fill {
	struct group *g;
	int64_t seq;
	char *table;
};

static void document_enter(void *arg, int64_t at, int64_t tokens)
{
	struct fill *f = arg;
	struct part *p = f->g->parts;

	while (p->shape.seq != class_seq(f->seq, class_of(f->seq, tokens))) p++;
	struct table t = table_of(f->table, p);
	entry(&p->shape, &t, p->n, at);
	entry(&p->shape, &t, p->n + 1, at + tokens); /* the next one's, or the end */
	t.lengths[p->n++] = (int32_t)tokens;
}

static void tables_close(struct engine *e)
{
	for (int i = 0; i < TABLES; i++) {
		if (e->tables[i].over) {
			cudaEventSynchronize(e->tables[i].over);
			cudaEventDestroy(e->tables[i].over);
		}
		if (e->tables[i].mem) cudaFreeHost(e->tables[i].mem);
		e->tables[i] = (struct table_slot){0};
	}
	e->table_room = 0;
}

static cudaError_t tables_open(struct engine *e, size_t bytes)
{
	cudaError_t x = cudaSuccess;

	if (bytes <= e->table_room) return x;
	tables_close(e);
	for (int i = 0; !x && i < TABLES; i++)
		if (!(x = cudaHostAlloc((void **)&e->tables[i].mem, bytes, cudaHostAllocDefault)))
			x = cudaEventCreateWithFlags(&e->tables[i].over, cudaEventDisableTiming | cudaEventBlockingSync);
	if (!x) e->table_room = bytes;
	return x;
}

static void table_make(struct group *g, int64_t seq, char *table)
{
	struct fill f = {g, seq, table};

	memset(table, 0, g->bytes); /* what lies between is copied too */
	documents(g, seq, document_enter, &f);
	for (int i = 0; i < g->parts_n; i++) {
		struct part *p = &g->parts[i];
		struct table t = table_of(table, p);
		int64_t end = t.lse_at[p->n] / p->shape.heads;

		for (; p->n < p->shape.batch; p->n++) entry(&p->shape, &t, p->n + 1, end); /* without tokens */
	}
}

/* Make the group's table, and have it copied to where its calls look for it */
static cudaError_t table_send(struct engine *e, const struct cuda_queue *q, struct group *g, int64_t seq, void *to)
{
	cudaError_t x = tables_open(e, g->bytes);
	struct table_slot *t = &e->tables[e->tables_n++ % TABLES];

	if (x || (x = cudaEventSynchronize(t->over))) return x;
	table_make(g, seq, t->mem);
	if ((x = cudaMemcpyAsync(to, t->mem, g->bytes, cudaMemcpyHostToDevice, q->stream))) return x;
	return cudaEventRecord(t->over, q->stream);
}

/* ---- running ---- */

/* The part of a call that is a group of rows */
static struct attention_args slice(const struct engine *e, const struct attention_args *c, int64_t row, int64_t rows)
{
	int64_t at = row * c->seq, out = at * e->heads * e->dim, wide = at * (e->heads + 2 * e->kv_heads) * e->dim;
	struct attention_args s = *c;

	s.n = rows * c->seq;
	s.starts += at;
	s.qkv = (const uint16_t *)c->qkv + wide;
	s.o = (uint16_t *)c->o + out;
	s.lse = c->lse + at * e->heads;
	if (c->dqkv) {
		s.d_o = (const uint16_t *)c->d_o + out;
		s.dqkv = (uint16_t *)c->dqkv + wide;
	}
	return s;
}

static int part_run(struct engine *e, const struct cuda_queue *q, const struct attention_args *s, const struct group *g,
	const struct part *p, size_t table)
{
	struct plan *plan = plan_of(e, p->shape, g->backward);
	struct sdpa_args a = {.qkv = s->qkv, .o = s->o, .lse = s->lse, .d_o = s->d_o, .dqkv = s->dqkv};
	struct table t = table_of(s->work, p);

	if (g->ragged) {
		a.qkv_at = t.qkv_at;
		a.o_at = t.o_at;
		a.lse_at = t.lse_at;
		a.lengths = t.lengths;
	}
	a.work = (char *)s->work + table;
	MT_ASSERT(table + plan->bytes <= s->work_bytes);
	for (; a.kv_head < e->kv_heads; a.kv_head += p->shape.kv_heads) {
		if (e->sdpa->run(e->sdpa, plan->plan, q->stream, &a))
			return mt_fail(MT_EX_IO, "cuda: %s: %s", e->sdpa->name, e->sdpa->why);
		a.lse += p->shape.heads * g->tokens;
	}
	return 0;
}

static int group_run(struct engine *e, const struct cuda_queue *q, const struct attention_args *s, struct group *g)
{
	size_t table = (g->bytes + 255) & ~(size_t)255;

	cudaError_t x = g->bytes ? table_send(e, q, g, s->seq, s->work) : cudaSuccess;

	if (x) return mt_fail(MT_EX_IO, "cuda: table of documents: %s", cudaGetErrorName(x));
	for (int i = 0; i < g->parts_n; i++) {
		int rc = part_run(e, q, s, g, &g->parts[i], table);
		if (rc) return rc;
	}
	return 0;
}

static void group_own(const struct cuda_queue *q, const struct attention_args *s)
{
	if (s->dqkv) cuda_attention_backward(q, s);
	else cuda_attention_forward(q, s);
}

static int span_run(struct engine *e, const struct cuda_queue *q, const struct attention_args *c,
	const struct span *span, int64_t most)
{
	bool backward = c->dqkv != NULL;

	if (!backward) most = span->rows;
	for (int64_t row = 0, n; row < span->rows; row += n) {
		n = span->rows - row < most ? span->rows - row : most;
		struct attention_args s = slice(e, c, span->row + row, n);
		struct group g = group_make(e, c, span, span->row + row, n, backward);
		int rc = group_run(e, q, &s, &g);

		if (rc) return rc;
	}
	return 0;
}

int engine_run(struct engine *e, const struct cuda_queue *q, const struct attention_args *c)
{
	int64_t rows = c->n / c->seq, most = group_rows(e, c->seq);
	struct span s;

	for (int64_t row = 0; row < rows; row += s.rows) {
		s = span_next(e, c, row, most);
		struct attention_args own = slice(e, c, s.row, s.rows);
		int rc = 0;

		if (s.taken) rc = span_run(e, q, c, &s, most);
		else group_own(q, &own);
		if (rc) return rc;
	}
	return 0;
}

static void rehearse_group(struct engine *e, const struct attention_args *c, int64_t rows, bool backward)
{
	int64_t seq = c->seq;

	if (!rows) return;
	plan_of(e, shape_of(e, rows, seq, kv_heads_of(e, seq, false, backward), c->window, false), backward);
	for (int i = 0; e->packed && i < CLASSES; i++) {
		int64_t most = class_most(seq, rows, i), room;

		for (int64_t documents = 1;; documents = room + 1) {
			room = class_room(documents, most);
			plan_of(e, shape_of(e, room, class_seq(seq, i), kv_heads_of(e, seq, true, backward), c->window, true),
				backward);
			if (room >= most) break;
		}
		if (class_last(seq, i)) break;
	}
}

void engine_rehearse(struct engine *e, const struct attention_args *c)
{
	int64_t rows = c->n / c->seq, most = group_rows(e, c->seq);

	if (!most) return;
	if (e->packed && tables_open(e, (size_t)(rows * (int64_t)table_bytes(c->seq))))
		cudaGetLastError(); /* tried again when it is wanted, and said then */
	int64_t group = rows < most ? rows : most, rest = rows % group;
	rehearse_group(e, c, rows, false);
	rehearse_group(e, c, group, true);
	rehearse_group(e, c, rest, true);
	/* chunks with documents that are not one span */
	if (e->packed && rows > most && (some_kv_heads(e, c->seq) < e->kv_heads || !engine_packs(e, c->seq))) {
		rehearse_group(e, c, group, false);
		rehearse_group(e, c, rest, false);
	}
}

/* ---- opening and closing ---- */

struct engine *engine_open(struct sdpa *sdpa, const struct mt_geometry *g)
{
	struct engine *e = calloc(1, sizeof *e);

	if (!e) {
		sdpa->close(sdpa);
		return NULL;
	}
	e->sdpa = sdpa;
	e->heads = g->heads;
	e->kv_heads = g->kv_heads;
	e->dim = g->head_dim;
	e->scale = 1.0f / sqrtf((float)g->head_dim);
	return e;
}

void engine_close(struct engine *e)
{
	if (!e) return;
	for (size_t i = 0; i < e->n; i++)
		if (e->plans[i].plan) e->sdpa->plan_release(e->sdpa, e->plans[i].plan);
	e->sdpa->close(e->sdpa);
	tables_close(e);
	free(e->plans);
	free(e);
}

const char *engine_name(const struct engine *e) { return e->sdpa->name; }
