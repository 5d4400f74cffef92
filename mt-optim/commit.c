/* commit.c: the decision. Outcome first, then one compare-and-swap of the word. If an abort came first, it wins, and
 * the next attempt writes the outcome again. */
#include <math.h>
#include <string.h>

#include "mt/run.h"
#include "mt/txn.h"
#include "optim.h"
#include "sum.h"

/* Blocks by a fixed tree within a unit, then unit after unit. */
static double gradient_norm(struct optim *o)
{
	double sum = 0;
	for (uint32_t u = 0; u < o->n_units; u++)
		sum += o->accumulation.begun[u] ? early_squares(o, u)
										: sum_tree(o->accumulation.squares[u], o->units[u].blocks);
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

/* Sums in the order of micros: of their figures; of the terms of the loss, weighted by targets, of which the means are
 * entered, NaN where the model has none */
static void terms_enter(struct optim *o, const struct accumulation *g)
{
	const struct mt_geometry *geo = mt_geometry(o->run);
	struct mt_txn *t = mt_txn(o->run, g->k);
	double aux = 0, z = 0, figures[MT_STEP_FIGURES] = {0};
	for (uint32_t i = 0; i < g->txn.micros; i++) {
		aux += g->terms[i].aux * (double)t->losses[i].targets;
		z += g->terms[i].z * (double)t->losses[i].targets;
		for (int f = 0; f < MT_STEP_FIGURES; f++) figures[f] += g->terms[i].figures[f];
	}
	memcpy(t->figures, figures, sizeof figures);
	t->aux = geo->aux_coef != 0 ? aux / (double)g->txn.targets : NAN;
	t->z = geo->z_coef != 0 ? z / (double)g->txn.targets : NAN;
}

static bool decide(struct optim *o, struct accumulation *g, uint64_t word, enum mt_phase phase, double norm,
	double factor)
{
	terms_enter(o, g);
	g->open = false;
	return mt_txn_commit(o->run, word, phase, norm, factor) != 0;
}

bool commit(struct optim *o, struct accumulation *g, uint64_t word)
{
	if (g->txn.kind == MT_EVAL) return decide(o, g, word, MT_DONE, NAN, 1);
	double norm = o->direct ? NAN : gradient_norm(o);
	if (commit_skips(o, g) || (!o->direct && !isfinite(norm))) {
		early_skips(o, g->txn.step);
		return decide(o, g, word, MT_SKIP, norm, 1);
	}
	return decide(o, g, word, MT_APPLY, norm, clip_factor(g->txn.hyperparams.clip, norm));
}

bool commit_direct(struct optim *o, struct accumulation *g, uint64_t word, uint32_t ring)
{
	struct mt_txn *t = mt_txn(o->run, g->k);
	for (uint32_t u = 0; u < o->n_units; u++)
		atomic_store_explicit(&mt_unit(o->run, u)->applied, 0, memory_order_relaxed);
	t->source_ring = ring;
	t->source = mt_stage_word(o->run, MT_STREAM + (int)ring);
	return decide(o, g, word, MT_APPLY, NAN, 1);
}
