/* nodes.c: mt-optim's part in a run on several nodes.
 *
 * Each node's mt-optim adds gradients, and updates weights, of what the node owns. Node 0's commits for all: it needs
 * the sum of squares of every block, so the others send theirs, through mt-link, when all of their pieces are in. The
 * same numbers are then added in the same order as on one machine. After the commit each node updates its part; mt-link
 * carries the new weights, and publishes a unit's version when all of it is here.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/txn.h"
#include "optim.h"

/* Of a block of another node whose sum has not come in; a sum of squares is not negative */
static const double MISSING = -1;

void nodes_open(struct optim *o)
{
	char name[32];
	for (uint32_t node = 1; node < o->nodes; node++) {
		snprintf(name, sizeof name, "squares.%u", node);
		if (o->node) continue;
		mt_must(mt_ring_open(o->run, name, &o->squares[node]));
		o->driver.wakes |= mt_ring_on_messages(o->squares[node]);
	}
	if (!o->node) return;
	mt_must(mt_ring_open(o->run, "squares", &o->squares[0]));
	o->driver.wakes |= mt_ring_on_room(o->squares[0]);
}

void nodes_begin(struct optim *o)
{
	struct accumulation *g = &o->accumulation;
	g->send_unit = 0;
	g->send_block = 0;
	for (uint32_t u = 0; u < o->n_units && !o->node; u++) {
		g->squares_left += o->units[u].blocks - o->units[u].own_blocks;
		for (uint64_t i = o->units[u].own_blocks; i < o->units[u].blocks; i++) g->squares[u][i] = MISSING;
	}
}

/* ---- sums of squares */

static _Noreturn void bad(uint32_t node, const struct mt_msg *m, const char *why)
{
	mt_die(MT_EX_BUG, "squares.%u: unit %u, elements %llu to %llu: %s", node, m->grad.unit,
		(unsigned long long)m->grad.off, (unsigned long long)(m->grad.off + m->grad.n), why);
}

static void take_squares(struct optim *o, uint32_t node, const struct mt_msg *m, const double *sums)
{
	struct accumulation *g = &o->accumulation;
	const struct mt_attempt *at = &o->driver.attempt;
	if (m->kind != MT_MSG_SQUARES || m->k != mt_word_k(at->word) || m->step != at->step || m->grad.unit >= o->n_units)
		bad(node, m, "not of the open txn");
	struct mt_part part = mt_part_of(mt_unit(o->run, m->grad.unit), node, o->nodes);
	if (m->grad.off < part.first || m->grad.off % MT_BLOCK || m->grad.off >= part.end || !m->grad.n ||
		m->grad.n > part.end - m->grad.off || m->grad.n > mt_ring_block(o->squares[node]) / sizeof(double) * MT_BLOCK)
		bad(node, m, "not that node's");
	double *to = g->squares[m->grad.unit] + m->grad.off / MT_BLOCK;
	for (uint64_t i = 0; i < (m->grad.n + MT_BLOCK - 1) / MT_BLOCK; i++) {
		if (to[i] != MISSING) bad(node, m, "sums that came before");
		to[i] = sums[i];
		g->squares_left--;
	}
}

/* Node 0: what the other nodes have sent */
static bool take_all(struct optim *o)
{
	bool moved = false;
	struct mt_msg m;
	const void *block;
	for (uint32_t node = 1; node < o->nodes; node++) {
		uint64_t n = 0;
		while (mt_ring_peek(o->squares[node], n, &m, &block)) {
			int order = mt_attempt_order(m.attempt, mt_word_attempt(o->driver.attempt.word));
			if (order > 0) break;
			if (order == 0) take_squares(o, node, &m, block);
			n++;
		}
		mt_ring_pop_many(o->squares[node], n);
		moved |= n > 0;
		mt_must(mt_ring_check(o->squares[node]));
	}
	return moved;
}

/* Another node: one message with the sums of as many blocks as it holds; false: all are sent, or the ring is full */
static bool send_some(struct optim *o)
{
	struct accumulation *g = &o->accumulation;
	const struct mt_attempt *at = &o->driver.attempt;
	while (g->send_unit < o->n_units && g->send_block == o->units[g->send_unit].own_blocks) {
		g->send_unit++;
		g->send_block = 0;
	}
	double *block = g->send_unit < o->n_units ? mt_ring_reserve(o->squares[0]) : NULL;
	if (!block) return false;
	uint64_t n = o->units[g->send_unit].own_blocks - g->send_block, room = mt_ring_block(o->squares[0]) / sizeof *block;
	if (n > room) n = room;
	struct mt_part own = mt_part(o->run, g->send_unit);
	uint64_t first = own.first + g->send_block * MT_BLOCK, elems = own.end - first;
	memcpy(block, g->squares[g->send_unit] + first / MT_BLOCK, n * sizeof *block);
	mt_ring_push(o->squares[0],
		&(struct mt_msg){.k = mt_word_k(at->word),
			.attempt = mt_word_attempt(at->word),
			.kind = MT_MSG_SQUARES,
			.txn_kind = MT_TRAIN,
			.step = at->step,
			.grad = {.unit = g->send_unit, .off = first, .n = elems < n * MT_BLOCK ? elems : n * MT_BLOCK}});
	g->send_block += n;
	return true;
}

bool nodes_round(struct optim *o)
{
	bool moved = false;
	if (!o->node) return take_all(o);
	while (o->driver.attempt.kind == MT_TRAIN && !o->accumulation.pieces_left && send_some(o)) moved = true;
	return moved;
}

uint64_t nodes_at(const struct optim *o, uint32_t unit)
{
	if (o->nodes == 1) return mt_version(o->run, unit);
	return atomic_load_explicit(&mt_unit(o->run, unit)->updated, memory_order_acquire);
}
