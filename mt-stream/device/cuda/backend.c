/* backend.c: the attention backend: a library (sdpa.h) computes a chunk's attention in as few calls as it can
 *
 * Forward needs almost no work memory: one call computes a whole chunk. Backward, one call computes a group of rows: as
 * many as ROWS_BYTES of work memory are enough for, at least one. If all heads of one row need more than HEADS_BYTES,
 * attention goes by groups of heads (layers/attention.c), and the library knows of one group alone.
 *
 * Rows that hold one document each are computed in one call. Documents of rows with several are sorted into classes by
 * length: those of (seq / 2, seq] tokens, those of (seq / 4, seq / 2], down to SHORTEST. A call computes the documents
 * of one class, and has room for the longest of its class: so a library that keeps a square of the tokens for each
 * document needs no more memory than for whole rows. The number of documents of a call is rounded up to a power of
 * STEP; those that are missing have no tokens. So a shape has few plans, and all are made before the first step. A
 * table of where each document starts is copied to the device before the calls.
 *
 * A row range is the rows that one decision is made for (does the library compute them?): a chunk, or if the library
 * does not take the whole chunk, each group of rows by itself. The decision depends on the documents' lengths alone. So
 * forward, backward and recompute decide alike, and statistics (lse) may have the library's own layout: (rows, NH,
 * seq); for documents (N, NH).
 */
#include <math.h>
#include <stdlib.h>

#include "backend.h"
#include "layers/block.h"
#include "cli/cli.h"
#include "mt/error.h"
#include "mt/layout.h"
#include "plan/calls.h"

#define FIXED_BYTES (1u << 20) /* that do not grow with the rows: work memory of forward plans */
#ifndef SHORTEST               /* smaller for the emulated GPU */
#define SHORTEST 64            /* tokens: shorter documents get this room; shorter rows are not taken */
#endif
#define STEP 8
#define CLASSES 32
#define TABLES 8     /* host copies of tables, used in turn: the host can be this many groups ahead of the GPU */
#define ALIGNMENT 16 /* bytes: alignment of a table's parts */

struct library_plan {
	struct sdpa_shape shape;
	void *plan; /* NULL: not taken */
	size_t bytes;
};

struct backend {
	struct sdpa *sdpa;
	const struct mt_geometry *geo;
	int64_t heads, kv_heads, dim, dim_v; /* of the layers that are asked about, or computed, now */
	bool packed;
	struct library_plan *plans;
	size_t n, room;
	struct table_slot {
		char *mem;        /* pinned */
		cudaEvent_t over; /* after the last copy from it */
	} tables[TABLES];
	size_t table_room; /* of each */
	uint64_t tables_n; /* used so far, in turn */
};

static void heads_set(struct backend *b, int64_t heads, int64_t kv_heads, int64_t dim, int64_t dim_v)
{
	b->heads = heads;
	b->kv_heads = kv_heads;
	b->dim = dim;
	b->dim_v = dim_v;
}

/* ---- plans ---- */

static struct sdpa_shape shape_of(const struct backend *b, int64_t batch, int64_t seq, int64_t window, bool ragged)
{
	struct sdpa_shape s;
	memset(&s, 0, sizeof s);
	s.batch = batch;
	s.seq = seq;
	s.heads = b->heads;
	s.kv_heads = b->kv_heads;
	s.dim = b->dim;
	s.dim_v = b->dim_v;
	s.window = window < seq ? window : 0;
	s.scale = b->geo->attention_scale;
	s.ragged = ragged;
	return s;
}

/* The plan of a shape, made on first use; NULL: the library does not take the shape, or no memory */
static struct library_plan *plan_of(struct backend *b, struct sdpa_shape s, bool backward)
{
	s.backward = backward;
	for (size_t i = 0; i < b->n; i++)
		if (!memcmp(&b->plans[i].shape, &s, sizeof s)) return b->plans[i].plan ? &b->plans[i] : NULL;
	if (b->n == b->room) {
		size_t room = b->room ? 2 * b->room : 64;
		struct library_plan *more = realloc(b->plans, room * sizeof *more);
		if (!more) return NULL;
		b->plans = more;
		b->room = room;
	}
	struct library_plan *p = &b->plans[b->n++];
	*p = (struct library_plan){.shape = s};
	p->plan = b->sdpa->plan(b->sdpa, &s, &p->bytes);
	return p->plan ? p : NULL;
}

/* ---- requests while memory is planned ---- */

/* The table of one row's documents: at most a document a token, and as many again in longer classes */
static uint64_t table_bytes(int64_t seq) { return (uint64_t)seq * 40 + CLASSES * 8 * ALIGNMENT; }

/* Key-value heads of one call over rows of seq tokens */
static int64_t some_kv_heads(struct backend *b, int64_t seq)
{
	struct library_plan *all = plan_of(b, shape_of(b, 1, seq, 0, false), true);
	int64_t n = all ? kv_heads_of_call(all->bytes, (uint32_t)b->kv_heads) : b->kv_heads;
	return seq * n * (b->heads / b->kv_heads) % 4 ? b->kv_heads : n; /* statistics start at 16 bytes */
}

static bool packs(struct backend *b, int64_t seq) { return plan_of(b, shape_of(b, 1, seq, 0, true), true) != NULL; }

/* Work memory of a row in the backward pass, without its table; 0: the library does not take such rows. Calls for
 * documents have room for up to twice the tokens, so they need twice what a library keeps for each token: fp32 dQ, dK
 * and dV of every head. */
static uint64_t row_bytes(struct backend *b, int64_t seq, bool packed)
{
	if (seq < SHORTEST || seq * b->heads % 4) /* each row's statistics must start at a multiple of 16 bytes */
		return 0;
	struct library_plan *plain = plan_of(b, shape_of(b, 1, seq, 0, false), true);
	if (!plain) return 0;
	uint64_t bytes = plain->bytes + 1;
	/* `plain` is not used below: making a plan may move the others */
	if (!plan_of(b, shape_of(b, 1, seq, 0, false), false)) return 0;
	if (packed && packs(b, seq)) bytes += (uint64_t)(seq * b->heads * (2 * b->dim + b->dim_v)) * sizeof(float);
	return bytes;
}

static int64_t group_rows(struct backend *b, int64_t seq)
{
	uint64_t row = row_bytes(b, seq, false);
	return row ? rows_of_call(row) : 0;
}

/* What calls for layers of this kind need; rows 0: the library does not take them */
static struct attention_call call_need(struct backend *b, const struct mt_layer *l, int64_t seq, bool packed,
	bool train)
{
	if (!l->heads) return (struct attention_call){0};
	heads_set(b, l->heads, l->kv_heads, l->head_dim, head_dim_v(l));
	int64_t kv_heads = some_kv_heads(b, seq);
	heads_set(b, l->heads / l->kv_heads * kv_heads, kv_heads, l->head_dim, head_dim_v(l));
	uint64_t row = row_bytes(b, seq, packed);
	if (!row) return (struct attention_call){0};
	return (struct attention_call){.row = train ? row : 0,
		.rows = (uint32_t)group_rows(b, seq),
		.kv_heads = (uint32_t)kv_heads,
		.packs = packed && packs(b, seq)};
}

struct attention_need backend_need(struct backend *b, int64_t seq, bool packed, bool train)
{
	struct attention_need need = {.fixed = FIXED_BYTES, .table = packed ? table_bytes(seq) : 0};
	b->packed = packed;
	for (uint32_t k = 0; k < b->geo->n_kinds; k++) {
		need.kind[k] = call_need(b, &b->geo->kind[k], seq, packed, train);
		need.there = need.there || need.kind[k].rows;
	}
	return need;
}

/* ---- a group of rows ---- */

struct row_range {
	int64_t row, rows;
	bool ragged, taken;
}; /* ragged: computed in calls for documents; taken: by the library */

struct call {
	struct sdpa_shape shape;
	size_t at; /* ragged: where its part of the table begins */
	int64_t n; /* documents entered so far */
};

struct group {
	int64_t rows, tokens;
	bool ragged, backward;
	const uint32_t *starts; /* host, from its first row on */
	struct call calls[CLASSES];
	int calls_n;
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
/* the most documents of class i that `rows` rows can have */
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

static size_t call_bytes(int64_t batch)
{
	return (size_t)(batch + 1) * 3 * sizeof(int64_t) +
		((size_t)batch * sizeof(int32_t) + ALIGNMENT) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
}

static void call_add(struct backend *b, struct group *g, const struct attention_args *a, int64_t batch, int64_t seq)
{
	struct call *p = &g->calls[g->calls_n++];
	struct sdpa_shape s = shape_of(b, batch, seq, a->window, g->ragged);
	*p = (struct call){.shape = s, .at = g->bytes};
	g->bytes += g->ragged ? call_bytes(batch) : 0;
}

static struct group group_make(struct backend *b, const struct attention_args *c, const struct row_range *range,
	int64_t row, int64_t rows, bool backward)
{
	struct group g = {.rows = rows,
		.tokens = rows * c->seq,
		.ragged = range->ragged,
		.backward = backward,
		.starts = c->host_starts + row * c->seq};
	struct count count = {.seq = c->seq};
	if (!g.ragged) {
		call_add(b, &g, c, rows, c->seq);
		return g;
	}
	documents(&g, c->seq, document_count, &count);
	for (int i = 0; i < CLASSES; i++)
		if (count.of[i]) call_add(b, &g, c, class_room(count.of[i], class_most(c->seq, rows, i)), class_seq(c->seq, i));
	return g;
}

/* Does each of its calls have a plan that needs no more work memory than backend_need reported? */
static bool group_taken(struct backend *b, const struct group *g, int64_t seq)
{
	uint64_t row = row_bytes(b, seq, g->ragged);
	if (!row || g->bytes > (uint64_t)g->rows * table_bytes(seq)) return false;
	for (int i = 0; i < g->calls_n; i++) {
		struct library_plan *p = plan_of(b, g->calls[i].shape, g->backward);
		if (!p || p->bytes > (g->backward ? (uint64_t)g->rows * row : FIXED_BYTES / 2)) return false;
	}
	return true;
}

/* ---- a range of rows ---- */

/* Does the library take it, forward and backward? Both passes must decide alike. */
static bool range_taken(struct backend *b, const struct attention_args *c, const struct row_range *s, int64_t most)
{
	struct group forward = group_make(b, c, s, s->row, s->rows, false);
	if (!group_taken(b, &forward, c->seq)) return false;
	for (int64_t row = 0, n; row < s->rows; row += n) {
		n = s->rows - row < most ? s->rows - row : most;
		struct group backward = group_make(b, c, s, s->row + row, n, true);
		if (!group_taken(b, &backward, c->seq)) return false;
	}
	return true;
}

static struct row_range range_make(struct backend *b, const struct attention_args *c, int64_t row, int64_t rows,
	int64_t most)
{
	const uint32_t *starts = c->host_starts + row * c->seq;
	struct row_range s = {.row = row, .rows = rows};
	for (int64_t t = 0; !s.ragged && t < rows * c->seq; t++) s.ragged = starts[t] != 0;
	s.taken = most && range_taken(b, c, &s, most);
	return s;
}

/* The range that starts at a row: the whole chunk if the library takes it, else a group of rows */
static struct row_range range_next(struct backend *b, const struct attention_args *c, int64_t row, int64_t most)
{
	int64_t rest = c->n / c->seq - row;
	struct row_range s = {0};
	if (!row) s = range_make(b, c, row, rest, most);
	return s.taken || !most ? s : range_make(b, c, row, rest < most ? rest : most, most);
}

/* ---- the table ---- */

struct table {
	int64_t *qkv_at, *o_at, *lse_at;
	int32_t *lengths;
};

static struct table table_of(char *base, const struct call *p)
{
	int64_t *at = (int64_t *)(base + p->at), n = p->shape.batch + 1;
	return (struct table){at, at + n, at + 2 * n, (int32_t *)(at + 3 * n)};
}

static void entry(const struct sdpa_shape *s, const struct table *t, int64_t i, int64_t token)
{
	t->qkv_at[i] = token * sdpa_row(s);
	t->o_at[i] = token * sdpa_out(s);
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
	struct call *p = f->g->calls;
	while (p->shape.seq != class_seq(f->seq, class_of(f->seq, tokens))) p++;
	struct table t = table_of(f->table, p);
	entry(&p->shape, &t, p->n, at);
	entry(&p->shape, &t, p->n + 1, at + tokens); /* start of the next document, or the end */
	t.lengths[p->n++] = (int32_t)tokens;
}

static void tables_close(struct backend *b)
{
	for (int i = 0; i < TABLES; i++) {
		if (b->tables[i].over) {
			cudaEventSynchronize(b->tables[i].over);
			cudaEventDestroy(b->tables[i].over);
		}
		if (b->tables[i].mem) cudaFreeHost(b->tables[i].mem);
		b->tables[i] = (struct table_slot){0};
	}
	b->table_room = 0;
}

static cudaError_t tables_open(struct backend *b, size_t bytes)
{
	cudaError_t x = cudaSuccess;
	if (bytes <= b->table_room) return x;
	tables_close(b);
	for (int i = 0; !x && i < TABLES; i++)
		if (!(x = cudaHostAlloc((void **)&b->tables[i].mem, bytes, cudaHostAllocDefault)))
			x = cudaEventCreateWithFlags(&b->tables[i].over, cudaEventDisableTiming | cudaEventBlockingSync);
	if (!x) b->table_room = bytes;
	return x;
}

static void table_make(struct group *g, int64_t seq, char *table)
{
	struct fill f = {g, seq, table};
	memset(table, 0, g->bytes); /* the gaps are copied, too */
	documents(g, seq, document_enter, &f);
	for (int i = 0; i < g->calls_n; i++) {
		struct call *p = &g->calls[i];
		struct table t = table_of(table, p);
		int64_t end = t.lse_at[p->n] / p->shape.heads;
		for (; p->n < p->shape.batch; p->n++) entry(&p->shape, &t, p->n + 1, end); /* without tokens */
	}
}

/* Make the group's table and copy it to the device */
static cudaError_t table_send(struct backend *b, const struct cuda_queue *q, struct group *g, int64_t seq, void *to)
{
	cudaError_t x = tables_open(b, g->bytes);
	struct table_slot *t = &b->tables[b->tables_n++ % TABLES];
	if (x || (x = cudaEventSynchronize(t->over))) return x;
	table_make(g, seq, t->mem);
	if ((x = cudaMemcpyAsync(to, t->mem, g->bytes, cudaMemcpyHostToDevice, q->stream))) return x;
	return cudaEventRecord(t->over, q->stream);
}

/* ---- running ---- */

/* The arguments for some rows of a chunk */
static struct attention_args slice(const struct attention_args *c, int64_t row, int64_t rows)
{
	int64_t at = row * c->seq, out = at * c->heads * attention_dim_v(c), wide = at * attention_row(c);
	struct attention_args s = *c;
	s.n = rows * c->seq;
	s.starts += at;
	s.qkv = (const uint16_t *)c->qkv + wide;
	s.o = (uint16_t *)c->o + out;
	s.lse = c->lse + at * c->heads;
	if (c->dqkv) {
		s.d_o = (const uint16_t *)c->d_o + out;
		s.dqkv = (uint16_t *)c->dqkv + wide;
	}
	return s;
}

static int call_run(struct backend *b, const struct cuda_queue *q, const struct attention_args *s,
	const struct group *g, const struct call *p, size_t table)
{
	struct library_plan *plan = plan_of(b, p->shape, g->backward);
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
	return b->sdpa->run(b->sdpa, plan->plan, q->stream, &a)
		? mt_fail(MT_EX_IO, "cuda: %s: %s", b->sdpa->name, b->sdpa->why)
		: 0;
}

static int group_run(struct backend *b, const struct cuda_queue *q, const struct attention_args *s, struct group *g)
{
	size_t table = (g->bytes + 255) & ~(size_t)255;
	cudaError_t x = g->bytes ? table_send(b, q, g, s->seq, s->work) : cudaSuccess;

	if (x) return mt_fail(MT_EX_IO, "cuda: table of documents: %s", cudaGetErrorName(x));
	for (int i = 0; i < g->calls_n; i++) {
		int rc = call_run(b, q, s, g, &g->calls[i], table);
		if (rc) return rc;
	}
	return 0;
}

static void group_own(const struct cuda_queue *q, const struct attention_args *s)
{
	if (s->dqkv) cuda_attention_backward(q, s);
	else cuda_attention_forward(q, s);
}

static int range_run(struct backend *b, const struct cuda_queue *q, const struct attention_args *c,
	const struct row_range *range, int64_t most)
{
	bool backward = c->dqkv != NULL;
	if (!backward) most = range->rows;
	for (int64_t row = 0, n; row < range->rows; row += n) {
		n = range->rows - row < most ? range->rows - row : most;
		struct attention_args s = slice(c, range->row + row, n);
		struct group g = group_make(b, c, range, range->row + row, n, backward);
		int rc = group_run(b, q, &s, &g);

		if (rc) return rc;
	}
	return 0;
}

int backend_run(struct backend *b, const struct cuda_queue *q, const struct attention_args *c)
{
	heads_set(b, c->heads, c->kv_heads, c->dim, attention_dim_v(c));
	int64_t rows = c->n / c->seq, most = group_rows(b, c->seq);
	struct row_range s;
	for (int64_t row = 0; row < rows; row += s.rows) {
		s = range_next(b, c, row, most);
		struct attention_args own = slice(c, s.row, s.rows);
		int rc = 0;

		if (s.taken) rc = range_run(b, q, c, &s, most);
		else group_own(q, &own);
		if (rc) return rc;
	}
	return 0;
}

static void autotune_group(struct backend *b, const struct attention_args *c, int64_t rows, bool backward)
{
	int64_t seq = c->seq;
	if (!rows) return;
	plan_of(b, shape_of(b, rows, seq, c->window, false), backward);
	for (int i = 0; b->packed && i < CLASSES; i++) {
		int64_t most = class_most(seq, rows, i), room;
		for (int64_t documents = 1;; documents = room + 1) {
			room = class_room(documents, most);
			plan_of(b, shape_of(b, room, class_seq(seq, i), c->window, true), backward);
			if (room >= most) break;
		}
		if (class_last(seq, i)) break;
	}
}

void backend_autotune(struct backend *b, const struct attention_args *c)
{
	heads_set(b, c->heads, c->kv_heads, c->dim, attention_dim_v(c));
	int64_t rows = c->n / c->seq, most = group_rows(b, c->seq);
	if (!most) return;
	if (b->packed && tables_open(b, (size_t)(rows * (int64_t)table_bytes(c->seq))))
		cudaGetLastError(); /* table_send tries again, and reports it */
	int64_t group = rows < most ? rows : most, rest = rows % group;
	autotune_group(b, c, rows, false);
	autotune_group(b, c, group, true);
	autotune_group(b, c, rest, true);
	/* chunks with documents that the library does not take as one range */
	if (b->packed && rows > most && !packs(b, c->seq)) {
		autotune_group(b, c, group, false);
		autotune_group(b, c, rest, false);
	}
}

/* ---- opening and closing ---- */

struct backend *backend_open(struct sdpa *sdpa, const struct mt_geometry *g)
{
	struct backend *b = calloc(1, sizeof *b);
	if (!b) {
		sdpa->close(sdpa);
		return NULL;
	}
	b->sdpa = sdpa;
	b->geo = g;
	return b;
}

void backend_close(struct backend *b)
{
	if (!b) return;
	for (size_t i = 0; i < b->n; i++)
		if (b->plans[i].plan) b->sdpa->plan_release(b->sdpa, b->plans[i].plan);
	b->sdpa->close(b->sdpa);
	tables_close(b);
	free(b->plans);
	free(b);
}

const char *backend_name(const struct backend *b) { return b->sdpa->name; }
