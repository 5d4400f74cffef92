/* units.c: the run as the update sees it. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "optim.h"

/* Runs of equal decay. Slabs start at a multiple of MT_GROUP and a slab's tensors decay alike, so a group never holds
 * both kinds; a gap belongs to the tensor before it, and a unit without tensors is a gap. */
static int decay_runs(struct optim *o, uint32_t u)
{
	const struct mt_unit *mu = mt_unit(o->run, u);
	struct unit *unit = &o->units[u];
	uint32_t runs = 0;
	unit->runs = calloc(mu->tensors + 1, sizeof *unit->runs);
	if (!unit->runs) return mt_fail(MT_EX_NOMEM, "no memory for unit %u's tables", u);
	for (uint32_t i = 0; i < mu->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(o->run, mu->first_tensor + i);
		bool decay = t->decay != 0;
		if (i && decay == unit->runs[runs - 1].decay) continue;
		if (runs) unit->runs[runs - 1].end = t->off / MT_GROUP;
		unit->runs[runs++].decay = decay;
	}
	unit->runs[runs ? runs - 1 : 0].end = unit->groups;
	return 0;
}

/* NULL: there is no such array. On the tier nothing is mapped: tier_tile says where a tile's are. */
static void *array_at(const struct optim *o, uint64_t off)
{
	return mt_on_tier(o->run, off) ? (void *)(uintptr_t)off : off ? mt_at(o->run, off) : NULL;
}

int units_make(struct optim *o)
{
	o->node = mt_node(o->run);
	o->nodes = mt_nodes(o->run);
	o->n_units = o->control->n_units;
	o->units = calloc(o->n_units, sizeof *o->units);
	if (!o->units) return mt_fail(MT_EX_NOMEM, "no memory for %u units", o->n_units);
	for (uint32_t u = 0; u < o->n_units; u++) {
		const struct mt_unit *mu = mt_unit(o->run, u);
		struct unit *unit = &o->units[u];
		unit->groups = mu->elems / MT_GROUP;
		unit->blocks = (mu->elems + MT_BLOCK - 1) / MT_BLOCK;
		struct mt_part own = mt_part(o->run, u);
		unit->first_group = own.first / MT_GROUP;
		unit->end_group = own.end / MT_GROUP;
		unit->own_blocks = (own.end - own.first + MT_BLOCK - 1) / MT_BLOCK;
		unit->grads = o->direct || !mu->g[1] ? 1 : 2;
		unit->tile = (struct tile){
			.w = mt_at(o->run, mu->w),
			.lo = array_at(o, mu->lo),
			.m = array_at(o, mu->m),
			.v = array_at(o, mu->v),
			.optim = (enum mt_optim)o->control->optim,
			.state = (enum mt_dtype)o->control->state,
			.m_scale = int8_scales(array_at(o, mu->m), mu->elems),
			.v_scale = mu->v ? int8_scales(array_at(o, mu->v), mu->elems) : NULL,
			.g = {o->direct ? NULL : mt_at(o->run, mu->g[0]), unit->grads == 2 ? mt_at(o->run, mu->g[1]) : NULL},
			.g_bf16 = o->g_bf16,
		};
		int rc = decay_runs(o, u);
		if (rc) return rc;
	}
	return 0;
}

void unit_update(const struct optim *o, const struct scalars *a, const struct tile *tile, uint32_t u, uint64_t step,
	uint32_t partition, uint64_t first, uint64_t end)
{
	for (const struct decay_run *run = o->units[u].runs; first < end; run++) {
		uint64_t stop = end < run->end ? end : run->end;
		if (first >= stop) continue;
		o->update(a, tile, &o->partitions[partition], partition_tag(step, u), first, stop,
			run->decay ? a->decay : a->no_decay);
		first = stop;
	}
}

/* What decides the bits of a training step, and outlives the mt-step that opened it */
static uint64_t hash_of(const struct mt_txn *t, uint64_t steps)
{
	struct {
		uint64_t step, targets, micros, steps;
		struct mt_hyperparams hyperparams;
		struct mt_position position;
	} x = {t->step, t->targets, t->micros, steps, t->hyperparams, t->position};
	return XXH64(&x, sizeof x, 0);
}

bool txn_opened(struct optim *o, uint32_t k, uint64_t word, struct opened *out)
{
	const struct mt_txn *t = mt_txn(o->run, k);
	struct opened op = {
		.step = t->step,
		.targets = t->targets,
		.kind = t->kind,
		.micros = t->micros,
		.hyperparams = t->hyperparams,
		.save = t->save != 0,
		.t = mt_txn(o->run, k - 1)->t + 1,
	};
	op.hash = hash_of(t, op.t);
	/* mt-step may have taken back what was in accumulate, and be writing another txn there: acquire, the copy came
	 * first */
	atomic_thread_fence(memory_order_acquire);
	if (mt_txn_word(o->run, k) != word) return false;
	if (op.kind != MT_TRAIN && op.kind != MT_EVAL) mt_die(MT_EX_BUG, "txn %u: kind %u", k, op.kind);
	if (op.micros < 1 || op.micros > MT_MICROS) mt_die(MT_EX_BUG, "txn %u: %u micro-batches", k, op.micros);
	if (op.kind == MT_TRAIN && o->direct && op.micros != 1)
		mt_die(MT_EX_BUG, "txn %u: %u micro-batches a step, and --grad none has room for one", k, op.micros);
	for (uint32_t u = 0; u < o->n_units && op.kind == MT_TRAIN; u++) {
		uint64_t v = mt_version(o->run, u);
		if (v != op.step && v + 1 != op.step)
			mt_die(MT_EX_BUG, "txn %u: step %llu from version %llu of unit %u", k, (unsigned long long)op.step,
				(unsigned long long)v, u);
	}
	*out = op;
	return true;
}

void leave_if_gone(struct optim *o)
{
	if (mt_run_state(o->run) == MT_GONE) exit(0);
	mt_must(mt_run_dirty(o->run));
	leave_if_lost(o);
	mt_must(mt_run_check(o->run));
	for (uint32_t i = 0; i < o->streams; i++) mt_must(mt_ring_check(o->grad[i]));
	mt_must(mt_ring_check(o->save));
	if (mt_tier_any(o->run)) mt_must(mt_tier_check(o->run));
}

void leave_if_lost(struct optim *o)
{
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	if (mt_stage_mine(o->run)) return;
	pthread_mutex_lock(&once); /* one line, whichever threads find out */
	(void)mt_stage_check(o->run);
	mt_say("%s", mt_errmsg());
	_exit(MT_EX_BUSY); /* other threads are at work: each ends at its next look, or here */
}
