/* accumulate.c: gradients into g, in an order that does not depend on speed.
 *
 * Every block of MT_BLOCK elements of g counts the micro-batches that it holds. A piece is taken when each of its
 * blocks holds exactly the micros before the piece's own; until then it stays at the head of its ring. The streams get
 * their micros in ascending order, so the ring with the smallest unfinished micro always has something to give. Pieces
 * may be cut differently by different streams.
 *
 * What the rings hold is taken as one batch, whose blocks the threads share, and popped when all of it has been added:
 * waking threads for each piece would cost more than a GPU's bus leaves for one.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/txn.h"
#include "optim.h"
#include "sum.h"

enum taken { TAKEN, LATER, NEWER, FULL };

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- an attempt begins */

static void allocate(struct optim *o)
{
	struct accumulation *g = &o->accumulation;
	for (uint32_t u = 0; u < o->n_units; u++) {
		for (int end = 0; end < o->units[u].grads; end++)
			g->micros[end][u] = calloc(o->units[u].blocks, sizeof(uint16_t));
		g->squares[u] = calloc(o->units[u].blocks, sizeof(double));
		if (!g->micros[0][u] || !g->micros[o->units[u].grads - 1][u] || !g->squares[u])
			mt_die(MT_EX_NOMEM, "no memory to count the gradients of %u units", o->n_units);
	}
}

int accumulate_begin(void *optim)
{
	struct optim *o = optim;
	struct accumulation *g = &o->accumulation;
	if (!g->squares[0] && !o->direct) allocate(o);
	g->squares_left = 0;
	g->pieces_left = 0;
	memset(g->begun, 0, sizeof g->begun);
	if (o->driver.attempt.kind == MT_EVAL || o->direct) return 0;
	for (uint32_t u = 0; u < o->n_units; u++) {
		for (int end = 0; end < o->units[u].grads; end++)
			memset(g->micros[end][u], 0, o->units[u].blocks * sizeof(uint16_t));
		g->left[u] = o->units[u].own_blocks * o->driver.attempt.micros * (uint64_t)o->units[u].grads;
		g->pieces_left += g->left[u];
	}
	early_attempt(o);
	if (o->nodes > 1) nodes_begin(o);
	return 0;
}

/* ---- pieces */

struct piece { /* on its way into g */
	uint32_t unit, end, micro;
	uint64_t off, n;
	uint64_t first; /* its first block, counted in the batch */
	const char *from;
};

/* Pieces that touch no block twice, and of a tied unit one end alone */
enum { BATCH = 64, SHARE = 4 }; /* pieces; blocks that a thread takes at once */
struct batch {
	struct optim *o;
	struct piece v[BATCH];
	uint32_t n;
	uint64_t blocks;
};

/* After the last micro: the block's sum of squares. In a tied unit (embed and head gradient), whichever gradient
 * completes last computes it, of their sum. */
static void square(struct optim *o, const struct piece *p, uint64_t block, uint64_t n)
{
	struct accumulation *g = &o->accumulation;
	const struct unit *unit = &o->units[p->unit];
	uint64_t bytes = block * MT_BLOCK * (o->g_bf16 ? 2 : 4);
	const char *a = (const char *)unit->tile.g[0] + bytes, *b = NULL;
	if (unit->grads == 2) {
		if (g->micros[!p->end][p->unit][block] != o->driver.attempt.micros) return;
		b = (const char *)unit->tile.g[1] + bytes;
	}
	g->squares[p->unit][block] = grad_sumsq(a, b, n, o->g_bf16);
}

/* Block i of a piece */
static void add_block(struct optim *o, const struct piece *p, uint64_t i)
{
	if (o->accumulation.begun[p->unit]) return;
	uint64_t width = o->g_bf16 ? 2 : 4, at = p->off + i * MT_BLOCK, n = min64(MT_BLOCK, p->n - i * MT_BLOCK);
	const char *from = p->from + i * MT_BLOCK * width;
	char *to = (char *)mt_at(o->run, mt_unit(o->run, p->unit)->g[p->end]) + at * width;
	bool last = p->micro + 1 == o->driver.attempt.micros;
	double *squares = &o->accumulation.squares[p->unit][at / MT_BLOCK];
	if (last && o->units[p->unit].grads == 1) { /* in one pass */
		*squares = (p->micro ? grad_add_take : grad_take)(to, from, n, o->g_bf16);
		return;
	}
	if (p->micro) grad_add(to, from, n, o->g_bf16);
	else grad_copy(to, from, n, o->g_bf16);
	if (last) square(o, p, at / MT_BLOCK, n);
}

static void add_share(void *arg, int64_t share, int thread)
{
	const struct batch *b = arg;
	uint64_t i = (uint64_t)share * SHARE, end = min64(i + SHARE, b->blocks);
	uint32_t piece = 0;
	(void)thread;
	for (; i < end; i++) {
		while (piece + 1 < b->n && b->v[piece + 1].first <= i) piece++;
		add_block(b->o, &b->v[piece], i - b->v[piece].first);
	}
}

static void batch_add(struct batch *b)
{
	enum { WORTH_SHARING = 16 }; /* blocks: waking a thread costs as much as adding some of them */
	if (!b->n) return;
	mt_stage_activity(b->o->run, MT_ACT_ACCUMULATE, b->v[0].unit);
	pool_run(b->blocks >= WORTH_SHARING ? optim_pool(b->o) : NULL, (int64_t)((b->blocks + SHARE - 1) / SHARE),
		add_share, b);
}

static _Noreturn void bad(uint32_t ring, const struct mt_msg *m, const char *why)
{
	mt_die(MT_EX_BUG, "grad.%u: message of txn %u, micro-batch %u, kind %u: %s", ring, m->k, m->micro, m->kind, why);
}

/* A unit's other end, or its next micro, waits for the batch that has the one before */
static bool batch_takes(const struct batch *b, const struct mt_msg *m)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->v[i].unit == m->grad.unit && (b->v[i].end != m->grad.end || b->v[i].micro != m->micro)) return false;
	return b->n < BATCH;
}

static enum taken take_piece(struct optim *o, struct batch *b, uint32_t ring, const struct mt_msg *m, const void *block)
{
	struct accumulation *g = &o->accumulation;
	uint64_t first = m->grad.off / MT_BLOCK, blocks = (m->grad.n + MT_BLOCK - 1) / MT_BLOCK;
	uint16_t *micros = g->micros[m->grad.end][m->grad.unit] + first;
	for (uint64_t i = 0; i < blocks; i++)
		if (micros[i] > m->micro) bad(ring, m, "a piece that came before");
	for (uint64_t i = 0; i < blocks; i++)
		if (micros[i] < m->micro) return LATER;
	if (!batch_takes(b, m)) return FULL;
	b->v[b->n++] = (struct piece){.unit = m->grad.unit,
		.end = m->grad.end,
		.micro = m->micro,
		.off = m->grad.off,
		.n = m->grad.n,
		.first = b->blocks,
		.from = block};
	b->blocks += blocks;
	for (uint64_t i = 0; i < blocks; i++) micros[i]++;
	g->pieces_left -= blocks;
	g->left[m->grad.unit] -= blocks;
	mt_count(o->run, MT_OPTIM_pieces, 1);
	mt_count(o->run, MT_OPTIM_gradient_bytes, m->grad.n * (o->g_bf16 ? 2 : 4));
	return TAKEN;
}

/* ---- commit: all of the attempt is in */

/* Blocks by a fixed tree within a unit, then unit after unit. */
static double gradient_norm(struct optim *o)
{
	double sum = 0;
	for (uint32_t u = 0; u < o->n_units; u++)
		sum += o->accumulation.begun[u] ? early_squares(o, u)
										: sum_tree(o->accumulation.squares[u], o->units[u].blocks);
	return sqrt(sum);
}

static void commit(struct optim *o)
{
	bool train = o->driver.attempt.kind == MT_TRAIN, taken = train && !o->direct;
	double norm = taken ? gradient_norm(o) : NAN;
	bool skips = mt_optimizer_skips(&o->driver) || (taken && !isfinite(norm));
	if (train && skips) early_skips(o, o->driver.attempt.step);
	mt_optimizer_commit(&o->driver, !skips, norm);
}

/* Direct: its loss is in, and the ring brings the first piece */
static void commit_direct(struct optim *o, uint32_t ring)
{
	struct mt_txn *t = mt_txn(o->run, mt_word_k(o->driver.attempt.word));
	for (uint32_t u = 0; u < o->n_units; u++)
		atomic_store_explicit(&mt_unit(o->run, u)->applied, 0, memory_order_relaxed);
	t->source_ring = ring;
	t->source = mt_stage_word(o->run, MT_STREAM + (int)ring);
	mt_optimizer_commit(&o->driver, true, NAN);
}

/* ---- rings */

static enum taken take(struct optim *o, struct batch *b, uint32_t ring, const struct mt_msg *m, const void *block)
{
	const struct mt_attempt *at = &o->driver.attempt;
	if (m->kind != MT_MSG_GRAD) return mt_must(mt_optimizer_take(&o->driver, ring, m)) ? TAKEN : NEWER;
	/* it was compared with the txn's entry, which mt-step may have begun to write for another attempt */
	if (m->txn_kind != at->kind || m->micro >= at->micros) return NEWER;
	if (!o->direct) return take_piece(o, b, ring, m, block);
	if (o->driver.losses_left) bad(ring, m, "a piece before its loss");
	if (mt_optimizer_skips(&o->driver)) return LATER; /* accumulate_round commits the skip, and then it is stale */
	if (m->grad.off) bad(ring, m, "the step's first piece does not begin its unit");
	commit_direct(o, ring);
	return NEWER; /* committed or aborted, the word has changed; the piece stays where it is */
}

/* What a ring holds goes into the batch, from its head on, but no more than half of its blocks: its producer writes the
 * others meanwhile. A message that is no piece is handled at once, if no piece is before it. *pop: messages to pop when
 * the batch has been added. */
static enum taken collect(struct optim *o, struct batch *b, uint32_t ring, uint64_t *pop, bool *moved)
{
	uint64_t word = o->driver.attempt.word;
	struct mt_msg m;
	const void *block;
	size_t bytes;
	mt_ring_blocks(o->driver.grad[ring], &bytes);
	uint64_t half = (bytes / mt_ring_block(o->driver.grad[ring]) + 1) / 2;
	*pop = 0;
	while (mt_must(mt_grad_peek_ahead(o->driver.grad[ring], *pop, word, &m, &block))) {
		uint32_t pieces = b->n;
		if (*pop == half) return FULL;
		enum taken r = take(o, b, ring, &m, block);
		if (r != TAKEN) return r;
		*moved = true;
		if (*pop || b->n > pieces) (*pop)++;
		else mt_ring_pop(o->driver.grad[ring]);
	}
	return LATER;
}

/* One batch. NEWER: the word is another now; FULL: there is more; else LATER */
static enum taken accumulate_batch(struct optim *o, bool *moved)
{
	struct batch b;
	uint64_t pop[MT_STREAMS] = {0};
	enum taken all = LATER;
	b.o = o;
	b.n = 0;
	b.blocks = 0;
	for (uint32_t i = 0; i < o->driver.streams && all != NEWER; i++) {
		enum taken r = collect(o, &b, i, &pop[i], moved);
		if (r != LATER) all = r;
	}
	batch_add(&b);
	for (uint32_t i = 0; i < o->driver.streams; i++)
		if (pop[i]) mt_ring_pop_many(o->driver.grad[i], pop[i]);
	return all;
}

int accumulate_round(void *optim)
{
	struct optim *o = optim;
	struct accumulation *g = &o->accumulation;
	const struct mt_attempt *at = &o->driver.attempt;
	bool moved = false;
	enum taken r;
	do r = accumulate_batch(o, &moved);
	while (r == FULL);
	if (r == NEWER) return mt_txn_word(o->run, mt_word_k(at->word)) != at->word || moved;
	if (early_round(o)) return true;
	if (o->nodes > 1) moved |= nodes_round(o);
	if (g->pieces_left || g->squares_left || !mt_optimizer_ready(&o->driver)) return moved;
	bool waits_for_piece = o->direct && at->kind == MT_TRAIN && !mt_optimizer_skips(&o->driver);
	if (waits_for_piece) return moved;
	if (!early_finish(o)) {
		o->driver.waits = MT_ACT_WAIT_TIER;
		return moved;
	}
	commit(o);
	return true;
}
