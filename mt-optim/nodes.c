/* nodes.c: mt-optim's part in a run on several nodes.
 *
 * Each node's mt-optim adds gradients, and updates weights, of what the node owns. Node 0's commits for all: it needs
 * the sum of squares of every block, so the others send theirs, through mt-link, when all of their pieces are in. The
 * same numbers are then added in the same order as on one machine. After the commit each node updates its part; mt-link
 * carries the new weights, and publishes a unit's version when all of it is here. A step is done when it is done on all
 * nodes: only then is nothing read any more that the next update changes.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/txn.h"
#include "mt/wait.h"
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
		o->wakes |= mt_ring_on_messages(o->squares[node]);
	}
	if (!o->node) return;
	mt_must(mt_ring_open(o->run, "squares", &o->squares[0]));
	o->wakes |= mt_ring_on_room(o->squares[0]);
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
	if (m->kind != MT_MSG_SQUARES || m->k != g->k || m->step != g->txn.step || m->grad.unit >= o->n_units)
		bad(node, m, "not of the open txn");
	struct mt_part part = mt_part_of(mt_unit(o->run, m->grad.unit)->elems, node, o->nodes);
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
			int order = mt_attempt_order(m.attempt, o->accumulation.attempt);
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
		&(struct mt_msg){.k = g->k,
			.attempt = g->attempt,
			.kind = MT_MSG_SQUARES,
			.txn_kind = MT_TRAIN,
			.step = g->txn.step,
			.grad = {.unit = g->send_unit, .off = first, .n = elems < n * MT_BLOCK ? elems : n * MT_BLOCK}});
	g->send_block += n;
	return true;
}

/* ---- done */

static bool finished(const struct optim *o, uint32_t node, uint32_t k)
{
	return atomic_load_explicit(&o->control->nodes.done[node], memory_order_acquire) >= k;
}

bool nodes_finished(const struct optim *o, uint32_t k) { return finished(o, o->node, k); }

void nodes_say_finished(struct optim *o, uint32_t k)
{
	atomic_store_explicit(&o->control->nodes.done[o->node], k, memory_order_release);
	mt_wake(o->run);
}

bool nodes_round(struct optim *o, uint64_t word)
{
	struct accumulation *g = &o->accumulation;
	bool moved = false;
	if (!o->node) return take_all(o);
	if (g->txn.kind == MT_EVAL) {
		if (!nodes_finished(o, mt_word_k(word))) nodes_say_finished(o, mt_word_k(word)); /* nothing to update */
		return false;
	}
	while (!g->pieces_left && send_some(o)) moved = true;
	return moved;
}

static bool finished_by_all(const struct optim *o, uint32_t k, uint32_t from)
{
	for (uint32_t node = from; node < o->nodes; node++)
		if (!finished(o, node, k)) return false;
	return true;
}

bool nodes_may_commit(struct optim *o, uint32_t k)
{
	enum mt_phase before = mt_word_phase(mt_txn_word(o->run, k - 1));
	if (o->node || before == MT_APPLY || before == MT_SKIP) return false;
	/* an evaluation is done with its commit, which must not come before the other nodes know of it */
	return o->accumulation.txn.kind != MT_EVAL || finished_by_all(o, k, 1);
}

bool nodes_done(struct optim *o)
{
	uint32_t newest = mt_txn_newest(o->run);
	for (uint32_t k = newest ? newest - 1 : 0; k <= newest && !o->node; k++) {
		uint64_t word = mt_txn_word(o->run, k);
		enum mt_phase phase = mt_word_phase(word);
		if (mt_word_k(word) != k || (phase != MT_APPLY && phase != MT_SKIP) || !finished_by_all(o, k, 0)) continue;
		return mt_txn_cas(o->run, k, word, mt_word(k, mt_word_attempt(word), MT_DONE));
	}
	return false;
}

bool nodes_wait(const struct optim *o)
{
	for (uint32_t i = 0; i < 2 && o->nodes > 1; i++) {
		enum mt_phase phase = mt_word_phase(mt_txn_word(o->run, i));
		if (phase == MT_APPLY || phase == MT_SKIP) return true;
	}
	return false;
}

/* ---- versions */

uint64_t nodes_at(const struct optim *o, uint32_t unit)
{
	if (o->nodes == 1) return mt_version(o->run, unit);
	return atomic_load_explicit(&mt_unit(o->run, unit)->updated, memory_order_acquire);
}

void nodes_updated(struct optim *o, uint32_t unit, uint64_t step)
{
	/* release: mt-link sends what stands before it */
	atomic_store_explicit(&mt_unit(o->run, unit)->updated, step, memory_order_release);
	mt_wake_on(o->run, MT_ON_VERSION);
}

void nodes_wait_units(struct optim *o, uint64_t step)
{
	for (uint32_t u = 0; u < o->n_units; u++)
		for (;;) {
			uint32_t seen = mt_event(o->run);
			if (mt_version(o->run, u) == step) break;
			leave_if_gone(o);
			mt_snap_fail_dead(o->run); /* mt-link writes to no unit that is pinned */
			mt_stage_activity(o->run, MT_ACT_WAIT_WEIGHTS, u);
			mt_wait_on(o->run, seen, 100, MT_ON_VERSION);
		}
}
