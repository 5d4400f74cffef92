/* units.c: the run as the update sees it. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "optim.h"

/* Runs of equal decay, trained or not. Slabs start at a multiple of MT_GROUP, a slab's tensors decay alike, and
 * mt_layout_freeze refuses what would cut a group. So a group never holds both kinds; a gap belongs to the tensor
 * before it, and a unit without tensors is a gap. */
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
		if (i && decay == unit->runs[runs - 1].decay && t->frozen == unit->runs[runs - 1].frozen) continue;
		if (runs) unit->runs[runs - 1].end = t->off / MT_GROUP;
		unit->runs[runs++] = (struct decay_run){.decay = decay, .frozen = t->frozen};
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
		uint64_t elems = mt_trained(mu) ? mu->elems : 0;
		unit->groups = elems / MT_GROUP;
		unit->blocks = (elems + MT_BLOCK - 1) / MT_BLOCK;
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
		if (!run->frozen)
			o->update(a, tile, &o->partitions[partition], partition_tag(step, u), first, stop,
				run->decay ? a->decay : a->no_decay);
		first = stop;
	}
}

void leave_if_gone(struct optim *o)
{
	int rc = mt_optimizer_over(&o->driver);
	if (rc == -MT_EX_BUSY) leave_if_lost(o);
	if (rc > 0) exit(0);
	mt_must(rc);
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
