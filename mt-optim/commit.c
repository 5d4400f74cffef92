/* commit.c: the decision. Outcome first, then one compare-and-swap of the word; an abort that came first wins, and the
 * outcome written for nothing is written again by the next attempt. */
#include <math.h>

#include "cli/cli.h"
#include "optim.h"
#include "sum.h"

/* Adam's step count before txn k: the record of k - 1 has it, whatever k - 1 was. */
static uint64_t t_before(struct optim *o, uint32_t k) { return mt_txn(o->run, k - 1)->t; }

/* Blocks by a fixed tree within a unit, then unit after unit. */
static double gradient_norm(struct optim *o)
{
	double sum = 0;
	for (uint32_t u = 0; u < o->n_units; u++) sum += sum_tree(o->accumulation.squares[u], o->units[u].blocks);
	return sqrt(sum);
}

/* torch.nn.utils.clip_grad_norm_ */
static double clip_factor(double clip, double norm)
{
	double f = clip / (norm + 1e-6);
	return clip > 0 && f < 1 ? f : 1;
}

bool commit_skips(struct optim *o, const struct accumulation *g)
{
	const struct mt_txn *t = mt_txn(o->run, g->k);
	bool nonfinite = false;
	for (uint32_t i = 0; i < g->txn.micros; i++) nonfinite |= t->losses[i].entered && t->losses[i].nonfinite;
	return nonfinite || g->txn.targets == 0;
}

/* For checkpoints of this step, which may be written when the next but one has its record. */
static void keep_hyper(struct optim *o, const struct mt_txn *t)
{
	o->control->hyper[t->step & 1] = (struct mt_hyper){.step = t->step,
		.lr = t->lr,
		.beta1 = t->beta1,
		.beta2 = t->beta2,
		.eps = t->eps,
		.decay = t->decay,
		.clip = t->clip,
		.targets = t->targets,
		.micros = t->micros};
}

static bool decide(struct optim *o, struct accumulation *g, uint64_t word, enum mt_phase phase, double norm,
	double factor)
{
	struct mt_txn *t = mt_txn(o->run, g->k);
	leave_if_lost(o);
	t->t = t_before(o, g->k) + (phase == MT_APPLY);
	t->norm = norm;
	t->clip_factor = factor;
	t->skipped = phase == MT_SKIP;
	if (phase != MT_DONE) keep_hyper(o, t);
	g->open = false;
	return mt_txn_cas(o->run, g->k, word, mt_word(g->k, g->attempt, phase));
}

bool commit(struct optim *o, struct accumulation *g, uint64_t word)
{
	if (g->txn.kind == MT_EVAL) return decide(o, g, word, MT_DONE, NAN, 1);
	double norm = o->direct ? NAN : gradient_norm(o);
	if (commit_skips(o, g) || (!o->direct && !isfinite(norm))) return decide(o, g, word, MT_SKIP, norm, 1);
	return decide(o, g, word, MT_APPLY, norm, clip_factor(g->txn.clip, norm));
}

bool commit_direct(struct optim *o, struct accumulation *g, uint64_t word, uint32_t ring)
{
	struct mt_txn *t = mt_txn(o->run, g->k);
	leave_if_lost(o);
	for (uint32_t u = 0; u < o->n_units; u++)
		atomic_store_explicit(&mt_unit(o->run, u)->applied, 0, memory_order_relaxed);
	t->source_ring = ring;
	t->source = mt_stage_word(o->run, MT_STREAM + (int)ring);
	return decide(o, g, word, MT_APPLY, NAN, 1);
}
