/* direct.c: --grad none. Nothing holds the gradients, so each piece is updated from the ring's block in which it lies.
 *
 * Why a kill at any instruction loses and repeats nothing. Pieces are done one after the other in the ring's order, and
 * a piece's block stays in the ring until its pop. Partition l has groups [l P / 64, (l + 1) P / 64) of the piece's P,
 * and its index holds the group's number in the unit. Pieces of a step do not overlap. So an index that names this
 * step, this unit and a group in the partition's part of this piece was written while this piece was being done: the
 * partition's groups before it are finished, it is restored, and the partition goes on with it. Any other index means
 * that the partition has not begun. When the partitions have finished, one 64-bit store into the unit's `applied` word
 * adds the piece:
 *
 *     applied     block that the last piece began with, + 1 (32 bits) | blocks done in this step (32 bits)
 *
 * then the unit is published if that was its last block, then the piece is popped. A unit's pieces come in ascending
 * order, so that the one due next begins with the block after those done. One that begins before is done already: a
 * predecessor was killed between counting and popping it, or it was sent twice. One that begins behind leaves a hole,
 * which nothing can fill. The words are cleared before the step's commit.
 */
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "optim.h"
#include "sum.h"

struct piece { /* or a part of one, in one tile */
	struct optim *o;
	const struct scalars *scalars;
	struct tile tile; /* the unit's, with g in the ring's block */
	uint32_t unit;
	uint64_t step, first, groups; /* of the piece, in the unit */
	_Atomic bool nonfinite;
};

struct direct { /* the step, and the number of its pass's tile 0 */
	struct optim *o;
	const struct scalars *scalars;
	uint64_t step, q;
};

static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t part(const struct piece *p, uint32_t partition)
{
	return p->first + p->groups * partition / MT_PARTITIONS;
}

static void check_partition(void *arg, int64_t partition, int thread)
{
	struct piece *p = arg;
	uint64_t first = part(p, (uint32_t)partition), n = (part(p, (uint32_t)partition + 1) - first) * MT_GROUP;
	const float *g = (const float *)p->tile.g[0] + (first - p->first) * MT_GROUP;
	(void)thread;
	if (!isfinite(grad_sumsq(g, NULL, n, false))) atomic_store(&p->nonfinite, true);
}

static void update_partition(void *arg, int64_t task, int thread)
{
	struct piece *p = arg;
	uint32_t partition = (uint32_t)task;
	(void)thread;
	uint64_t first = part(p, partition), end = part(p, partition + 1);
	first = partition_resume(p->o, &p->tile, p->unit, p->step, partition, first, end);
	unit_update(p->o, p->scalars, &p->tile, p->unit, p->step, partition, first, end);
}

/* The state holds half a step that nothing can finish. */
static _Noreturn void dirty(struct optim *o, int ex, uint64_t step, const char *why)
{
	mt_run_set_state(o->run, MT_DIRTY);
	mt_die(ex, "step %llu: %s after the step's commit: the store is dirty, go on from the last checkpoint",
		(unsigned long long)step, why);
}

static void run_piece(struct piece *p, void (*fn)(void *, int64_t, int))
{
	enum { WORTH_SHARING = 1024 }; /* groups: waking a thread costs as much as updating some of them */
	pool_run(p->groups >= WORTH_SHARING ? optim_pool(p->o) : NULL, MT_PARTITIONS, fn, p);
}

/* Tiles that the units' words say are done: a predecessor may have died before it counted one. */
static void count_tiles(struct optim *o, uint64_t q)
{
	for (uint64_t i = tier_updated(o, q); i < o->control->tier.tiles; i++) {
		struct mt_tile at = mt_tile(o->run, (uint32_t)i);
		uint64_t applied = atomic_load_explicit(&mt_unit(o->run, at.unit)->applied, memory_order_acquire);
		if ((applied & UINT32_MAX) * MT_BLOCK < at.end) break;
		tier_count(o, q + i);
	}
}

/* Blocks [first, end) of the unit, which lie in one tile if the unit has tiles. false: asked to stop, and nothing is to
 * be had from the tier */
static bool do_part(const struct direct *d, const struct mt_msg *m, const float *g, uint64_t first, uint64_t end)
{
	struct optim *o = d->o;
	uint32_t u = m->grad.unit, i = 0;
	bool tier = mt_unit(o->run, u)->tiles != 0;
	uint64_t to = min64(end * MT_BLOCK, m->grad.off + m->grad.n);
	struct piece p = {
		.o = o,
		.scalars = d->scalars,
		.tile = o->units[u].tile,
		.unit = u,
		.step = d->step,
		.first = first * MT_BLOCK / MT_GROUP,
		.groups = (to - first * MT_BLOCK) / MT_GROUP,
	};
	if (tier) {
		i = mt_tile_at(o->run, u, first * MT_BLOCK);
		if (tier_updated(o, d->q) != i) dirty(o, MT_EX_BUG, d->step, "a gradient piece is not the due tile's");
		p.tile = tier_tile(o, &p.tile, i, d->q + i);
	}
	p.tile.g[0] = g + (first * MT_BLOCK - m->grad.off);
	p.tile.g_group = p.first;
	run_piece(&p, check_partition);
	if (p.nonfinite) dirty(o, MT_EX_DATA, d->step, "a non-finite gradient");
	wait_unpinned(o, u);
	if (tier && !tier_wait(o, d->q + i, u)) return false;
	run_piece(&p, update_partition);
	/* release: the part is whole in the state before it counts */
	atomic_store_explicit(&mt_unit(o->run, u)->applied, (first + 1) << 32 | end, memory_order_release);
	if (tier && to == mt_tile(o->run, i).end) tier_count(o, d->q + i);
	mt_count(o->run, MT_OPTIM_gradient_bytes, p.groups * MT_GROUP * sizeof(float));
	return true;
}

static bool do_piece(const struct direct *d, const struct mt_msg *m, const void *block)
{
	struct optim *o = d->o;
	uint32_t u = m->grad.unit;
	uint64_t first = m->grad.off / MT_BLOCK, end = first + (m->grad.n + MT_BLOCK - 1) / MT_BLOCK, stop;
	uint64_t done = atomic_load_explicit(&mt_unit(o->run, u)->applied, memory_order_acquire) & UINT32_MAX;
	/* A unit's pieces come from 0 upward. One that begins before what is done was sent or read again. */
	if (first > done) dirty(o, MT_EX_BUG, d->step, "a gradient piece is missing");
	for (; first < end; first = stop) {
		stop = end;
		if (mt_unit(o->run, u)->tiles) {
			uint64_t border = o->control->tier.tile_elems / MT_BLOCK;
			stop = min64(end, first - first % border + border);
		}
		if (first != done) continue;
		if (!do_part(d, m, block, first, stop)) return false;
		done = stop;
		if (stop == end) mt_count(o->run, MT_OPTIM_pieces, 1);
	}
	if (done < o->units[u].blocks) return true;
	unit_publish(o, u, d->step);
	return true;
}

static bool all_at(struct optim *o, uint64_t step)
{
	for (uint32_t u = 0; u < o->n_units; u++)
		if (mt_version(o->run, u) != step) return false;
	return true;
}

/* Has the mt-stream that owes us the rest died? A word of 0: it never had a slot, and can only be waited for. */
static bool source_gone(struct optim *o, uint64_t word, uint32_t ring)
{
	int slot = MT_STREAM + (int)ring;
	uint64_t now = mt_stage_word(o->run, slot);
	return word && (now != word || mt_stage_dead(o->run, slot));
}

bool apply_direct(struct optim *o, const struct mt_attempt *at, const struct scalars *scalars)
{
	uint32_t k = mt_word_k(at->word);
	uint64_t source = mt_txn(o->run, k)->source, ring = mt_txn(o->run, k)->source_ring;
	struct direct d = {.o = o, .scalars = scalars, .step = at->step};
	if (ring >= o->driver.streams) mt_die(MT_EX_BUG, "txn %u: gradients from ring %llu", k, (unsigned long long)ring);
	if (mt_tier_any(o->run)) count_tiles(o, d.q = mt_tier_q(o->run, at->t, 0));
	while (!all_at(o, at->step)) {
		uint32_t seen = mt_event(o->run);
		bool gone = source_gone(o, source, (uint32_t)ring); /* before the last look into its ring */
		struct mt_msg m;
		const void *block;
		leave_if_lost(o);
		if (mt_ring_peek(o->driver.grad[ring], 0, &m, NULL)) {
			mt_stage_activity(o->run, MT_ACT_APPLY, m.grad.unit);
			if (!mt_must(mt_grad_peek(o->driver.grad[ring], at->word, &m, &block)) || m.kind != MT_MSG_GRAD)
				mt_die(MT_EX_BUG, "grad.%u: message of txn %u, kind %u: not a piece of txn %u", (uint32_t)ring, m.k,
					m.kind, k);
			double from = mt_now();
			if (mt_version(o->run, m.grad.unit) != at->step && !do_piece(&d, &m, block)) return false;
			mt_count(o->run, MT_OPTIM_update_ns, (uint64_t)((mt_now() - from) * 1e9));
			mt_ring_pop(o->driver.grad[ring]);
			continue;
		}
		if (gone) dirty(o, MT_EX_PEER, at->step, "an mt-stream died");
		leave_if_gone(o);
		mt_stage_activity(o->run, MT_ACT_WAIT_GRADS, at->step);
		mt_wait_on(o->run, seen, 100, o->driver.wakes);
	}
	return true;
}
