/* optimizer.c: the driver of an optimizer. It serves the oldest transaction that is not done:
 *
 *     accumulate     an attempt begins [begin]; its losses come in [mt_optimizer_take], and the optimizer takes the
 *                    pieces. When all is in, the outcome is written, and then the word changes [mt_optimizer_commit].
 *                    If an abort came first, it wins, and the next attempt writes the outcome again.
 *     apply, skip    every unit goes to the step; what is to be saved is pinned; then the step is done [finish]
 *
 * A successor finds in the word where the one that died was. On several nodes, node 0's optimizer commits for all, and
 * a step is done when it is done on all nodes: only then is nothing read any more that the next update changes.
 */
#include <math.h>
#include <stdio.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/optimizer.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "os.h"

static void count_ns(struct mt_run *run, int counter, double from)
{
	mt_count(run, counter, (uint64_t)((mt_now() - from) * 1e9));
}

static bool stopping(const struct mt_run *run) { return run->stop && *run->stop; }

int mt_optimizer_open(struct mt_optimizer *o, struct mt_run *run)
{
	uint64_t piece = run->control->piece_elems * mt_dtype_bytes(run->control->grad);
	char name[32];
	int rc = mt_run_has_state(run);
	if (!rc) rc = mt_stage_claim(run, MT_OPTIM, NULL);
	o->run = run;
	o->streams = mt_streams(run);
	o->wakes = MT_ON_TXN;
	for (uint32_t i = 0; !rc && i < o->streams; i++) {
		snprintf(name, sizeof name, "grad.%u", i);
		rc = mt_ring_open(run, name, &o->grad[i]);
		if (rc) return rc;
		o->wakes |= mt_ring_on_messages(o->grad[i]);
		/* --ring may name one of another kind */
		if (!piece || mt_ring_block(o->grad[i]) < piece)
			rc = mt_fail(MT_EX_DATA, "ring for %s: blocks of %zu bytes; a gradient piece needs %llu", name,
				mt_ring_block(o->grad[i]), (unsigned long long)piece);
	}
	return rc ? rc : mt_ring_open(run, "save", &o->save);
}

int mt_optimizer_over(const struct mt_optimizer *o)
{
	int rc = mt_stage_over(o->run);
	if (!rc) rc = mt_run_check(o->run);
	for (uint32_t i = 0; !rc && i < o->streams; i++) rc = mt_ring_check(o->grad[i]);
	if (!rc) rc = mt_ring_check(o->save);
	return rc || !mt_tier_any(o->run) ? rc : mt_tier_check(o->run);
}

/* ---- transactions */

static bool committed(enum mt_phase phase) { return phase == MT_APPLY || phase == MT_SKIP; }

static enum mt_phase phase_of(const struct mt_run *run, uint32_t k)
{
	uint64_t word = mt_txn_word(run, k);
	return mt_word_k(word) == k ? mt_word_phase(word) : MT_CLOSED;
}

/* All units of txn k are at its step on the node, and what it saves is pinned there */
static bool finished(const struct mt_run *run, uint32_t node, uint32_t k)
{
	return mt_nodes(run) > 1 && atomic_load_explicit(&run->control->nodes.done[node], memory_order_acquire) >= k;
}

static void say_finished(struct mt_run *run, uint32_t k)
{
	atomic_store_explicit(&run->control->nodes.done[mt_node(run)], k, memory_order_release);
	mt_wake(run);
}

static bool finished_by_all(const struct mt_run *run, uint32_t k, uint32_t from)
{
	for (uint32_t node = from; node < mt_nodes(run); node++)
		if (!finished(run, node, k)) return false;
	return true;
}

/* The oldest txn that is not done here. Txn k + 1 may be open while k is applied, and k + 2 not before. */
static uint32_t oldest_open(const struct mt_run *run)
{
	uint32_t k = mt_txn_newest(run);
	return k && committed(phase_of(run, k - 1)) && !finished(run, mt_node(run), k - 1) ? k - 1 : k;
}

int mt_attempt_read(const struct mt_run *run, uint64_t word, struct mt_attempt *out)
{
	uint32_t k = mt_word_k(word);
	const struct mt_txn *t = mt_txn(run, k);
	struct mt_attempt a = {
		.word = word,
		.step = t->step,
		.targets = t->targets,
		.kind = t->kind,
		.micros = t->micros,
		.hyperparams = t->hyperparams,
		.position = t->position,
		.t = mt_txn(run, k - 1)->t + 1,
	};
	/* mt-step may have taken back what was in accumulate, and be writing another txn there: acquire, the copy came
	 * first */
	atomic_thread_fence(memory_order_acquire);
	if (mt_txn_word(run, k) != word) return 0;
	if (a.kind != MT_TRAIN && a.kind != MT_EVAL) return mt_fail(MT_EX_BUG, "txn %u: kind %u", k, a.kind);
	if (a.micros < 1 || a.micros > MT_MICROS) return mt_fail(MT_EX_BUG, "txn %u: %u micro-batches", k, a.micros);
	if (a.kind == MT_TRAIN && run->control->grad == MT_NONE && a.micros != 1)
		return mt_fail(MT_EX_BUG, "txn %u: %u micro-batches a step, and --grad none has room for one", k, a.micros);
	for (uint32_t u = 0; u < run->control->n_units && a.kind == MT_TRAIN; u++) {
		uint64_t v = mt_version(run, u);
		if (v != a.step && v + 1 != a.step)
			return mt_fail(MT_EX_BUG, "txn %u: step %llu from version %llu of unit %u", k, (unsigned long long)a.step,
				(unsigned long long)v, u);
	}
	*out = a;
	return 1;
}

/* ---- accumulate */

/* 0: the attempt is over already */
static int begin(struct mt_optimizer *o, uint64_t word)
{
	int rc = mt_attempt_read(o->run, word, &o->attempt);
	o->open = rc > 0;
	if (rc <= 0) return rc;
	o->losses_left = mt_node(o->run) ? 0 : o->attempt.micros; /* losses go to the node that commits */
	memset(mt_txn(o->run, mt_word_k(word))->losses, 0, o->attempt.micros * sizeof(struct mt_loss));
	memset(o->terms, 0, o->attempt.micros * sizeof *o->terms);
	if (mt_node(o->run) && o->attempt.kind == MT_EVAL) say_finished(o->run, mt_word_k(word)); /* nothing to update */
	rc = o->begin(o->arg);
	return rc ? rc : 1;
}

static int bad(uint32_t ring, const struct mt_msg *m, const char *why)
{
	return mt_fail(MT_EX_BUG, "grad.%u: message of txn %u, micro-batch %u, kind %u: %s", ring, m->k, m->micro, m->kind,
		why);
}

int mt_optimizer_take(struct mt_optimizer *o, uint32_t ring, const struct mt_msg *m)
{
	/* it was compared with the txn's entry, which mt-step may have begun to write for another attempt */
	if (m->txn_kind != o->attempt.kind || m->micro >= o->attempt.micros) return 0;
	struct mt_loss *loss = &mt_txn(o->run, m->k)->losses[m->micro];
	if (m->kind == MT_MSG_SCORE || m->kind == MT_MSG_TOP)
		return bad(ring, m, "log-probabilities, which mt-score asks for, not mt-step");
	if (m->kind == MT_MSG_FIGURES) {
		/* a micro's come before its loss, so they are in when all losses are */
		if (loss->entered) return bad(ring, m, "figures after their loss");
		memcpy(o->terms[m->micro].figures, m->figures.figures, sizeof m->figures.figures);
		return 1;
	}
	if (loss->entered) return bad(ring, m, "a loss that came before");
	*loss = (struct mt_loss){
		.sum = m->loss.sum,
		.targets = m->loss.targets,
		.entered = 1,
		.nonfinite = m->loss.nonfinite || !isfinite(m->loss.sum),
	};
	o->terms[m->micro].mtp = (double)m->loss.mtp;
	o->terms[m->micro].aux = m->loss.aux;
	o->terms[m->micro].z = m->loss.z;
	o->losses_left--;
	return 1;
}

/* Throw away what the rings hold of attempts that are over, when no txn is in accumulate; true if anything moved */
static bool drop(struct mt_optimizer *o, uint64_t word)
{
	bool moved = false;
	struct mt_msg m;
	for (uint32_t i = 0; i < o->streams; i++) {
		uint64_t n = 0;
		while (mt_ring_peek(o->grad[i], n, &m, NULL) && mt_attempt_order(m.attempt, mt_word_attempt(word)) <= 0) n++;
		mt_ring_pop_many(o->grad[i], n);
		moved |= n > 0;
	}
	return moved;
}

/* ---- commit */

bool mt_optimizer_skips(const struct mt_optimizer *o)
{
	const struct mt_loss *losses = mt_txn(o->run, mt_word_k(o->attempt.word))->losses;
	bool nonfinite = false;
	for (uint32_t i = 0; i < o->attempt.micros; i++) nonfinite |= losses[i].entered && losses[i].nonfinite;
	return nonfinite || o->attempt.targets == 0;
}

bool mt_optimizer_ready(const struct mt_optimizer *o)
{
	uint32_t k = mt_word_k(o->attempt.word);
	if (o->losses_left || mt_nodes(o->run) == 1) return !o->losses_left;
	if (mt_node(o->run) || committed(mt_word_phase(mt_txn_word(o->run, k - 1)))) return false;
	/* an evaluation is done with its commit, which must not come before the other nodes know of it */
	return o->attempt.kind != MT_EVAL || finished_by_all(o->run, k, 1);
}

/* torch.nn.utils.clip_grad_norm_ */
static double clip_factor(double clip, double norm)
{
	double f = clip / (norm + 1e-6);
	return clip > 0 && f < 1 ? f : 1;
}

/* Sums in the order of micros: of their figures; of the terms of the loss, weighted by targets, of which the means are
 * entered, NaN where the model has none */
static void terms_enter(struct mt_optimizer *o)
{
	const struct mt_geometry *geo = mt_geometry(o->run);
	struct mt_txn *t = mt_txn(o->run, mt_word_k(o->attempt.word));
	double aux = 0, z = 0, mtp = 0, figures[MT_STEP_FIGURES] = {0};
	for (uint32_t i = 0; i < o->attempt.micros; i++) {
		mtp += o->terms[i].mtp;
		aux += o->terms[i].aux * (double)t->losses[i].targets;
		z += o->terms[i].z * (double)t->losses[i].targets;
		for (int f = 0; f < MT_STEP_FIGURES; f++) figures[f] += o->terms[i].figures[f];
	}
	memcpy(t->figures, figures, sizeof figures);
	t->mtp = geo->mtp != 0 ? mtp / (double)o->attempt.targets : NAN;
	t->aux = geo->aux_coef != 0 ? aux / (double)o->attempt.targets : NAN;
	t->z = geo->z_coef != 0 ? z / (double)o->attempt.targets : NAN;
}

uint64_t mt_optimizer_commit(struct mt_optimizer *o, bool apply, double norm)
{
	enum mt_phase phase = o->attempt.kind == MT_EVAL ? MT_DONE : apply ? MT_APPLY : MT_SKIP;
	terms_enter(o);
	o->open = false;
	return mt_txn_commit(o->run, o->attempt.word, phase, norm,
		phase == MT_APPLY ? clip_factor(o->attempt.hyperparams.clip, norm) : 1);
}

/* ---- what is committed */

int mt_optimizer_publish(struct mt_optimizer *o, uint32_t u, uint64_t step)
{
	if (mt_nodes(o->run) > 1) {
		/* release: mt-link sends what stands before it, and publishes the version when all of the unit is here */
		atomic_store_explicit(&mt_unit(o->run, u)->updated, step, memory_order_release);
		mt_wake_on(o->run, MT_ON_VERSION);
		return 0;
	}
	if (mt_publish(o->run, u, step)) return 0;
	int rc = mt_stage_check(o->run);
	return rc ? rc
			  : mt_fail(MT_EX_BUG, "unit %u: another stage published version %llu, expected %llu", u,
					(unsigned long long)mt_version(o->run, u), (unsigned long long)step);
}

/* Units that do not change: in a skipped step all, which on several nodes mt-link publishes; else those that are not
 * trained */
static int publish_same(struct mt_optimizer *o, uint64_t step, bool skipped)
{
	int rc = 0;
	for (uint32_t turn = 0; !(skipped && mt_nodes(o->run) > 1) && !rc && turn < o->run->control->n_units; turn++) {
		uint32_t u = mt_unit_of_turn(mt_geometry(o->run), turn);
		if ((skipped || !mt_trained(mt_unit(o->run, u))) && mt_version(o->run, u) != step)
			rc = mt_optimizer_publish(o, u, step);
	}
	return rc;
}

/* On several nodes: until mt-link has published all units at the step. 1: the run was removed */
static int wait_units(struct mt_optimizer *o, uint64_t step)
{
	for (uint32_t u = 0; mt_nodes(o->run) > 1 && u < o->run->control->n_units; u++)
		for (;;) {
			uint32_t seen = mt_event(o->run);
			if (mt_version(o->run, u) == step) break;
			int rc = mt_optimizer_over(o);
			if (rc) return rc;
			mt_snap_fail_dead(o->run); /* mt-link writes to no unit that is pinned */
			mt_stage_activity(o->run, MT_ACT_WAIT_WEIGHTS, u);
			mt_wait_on(o->run, seen, 100, MT_ON_VERSION);
		}
	return 0;
}

/* Pin the step that all units are at, when the save before is over. If its saver has died after sealing, its successor
 * alone can finish it. 1: asked to stop, or the run was removed, before */
static int snapshot(struct mt_optimizer *o, const struct mt_txn *t)
{
	struct mt_run *run = o->run;
	double from = mt_now();
	mt_stage_activity(run, MT_ACT_WAIT_SAVE, t->step);
	/* a predecessor may have pinned it */
	int rc = mt_snap_step(mt_snap(run)) == t->step ? 0 : mt_snap_wait(run, run->control->n_units);
	count_ns(run, MT_OPTIM_snapshot_wait_ns, from);
	if (rc) return rc;
	if (!mt_snap_pin(run, t->step, t->t, &t->position) && (rc = mt_stage_check(run))) return rc;
	/* Only a wake-up: the word is what counts, so a full ring loses nothing. */
	if (mt_ring_reserve(o->save)) {
		uint64_t word = atomic_load_explicit(&t->word, memory_order_relaxed);
		mt_ring_push(o->save,
			&(struct mt_msg){.k = mt_word_k(word),
				.attempt = mt_word_attempt(word),
				.kind = MT_MSG_SAVE,
				.txn_kind = MT_TRAIN,
				.step = t->step});
	}
	mt_snap_fail_dead(run);
	return 0;
}

/* Txn k is committed: bring every unit to its step, then say so. If it is asked to stop while it waits to save, or for
 * tiles of a mt-tier that is dead, a successor finishes it. */
static int finish(struct mt_optimizer *o, uint32_t k)
{
	uint64_t word = mt_txn_word(o->run, k);
	const struct mt_txn *t = mt_txn(o->run, k);
	struct mt_attempt a;
	int rc = mt_attempt_read(o->run, word, &a);
	if (!rc) /* a word that is committed is ours alone to change */
		rc = mt_fail(MT_EX_BUG, "txn %u: changed by another stage after its commit", k);
	if (rc < 0) return rc;
	a.t = t->t; /* txn k + 1 may be where k - 1 was */
	a.clip_factor = t->clip_factor;
	bool apply = mt_word_phase(word) == MT_APPLY;
	rc = publish_same(o, a.step, !apply);
	if (!rc && apply) rc = o->apply(o->arg, &a);
	if (!rc) rc = wait_units(o, a.step);
	if (!rc && t->save) rc = snapshot(o, t);
	if (rc) return rc < 0 ? rc : (o->left = true);
	if (mt_nodes(o->run) > 1) say_finished(o->run, k); /* after the pins: then the next step may be opened */
	else mt_txn_cas(o->run, k, word, mt_word(k, mt_word_attempt(word), MT_DONE));
	return 1;
}

/* Node 0: move a txn to done that all nodes have finished; true if it did */
static bool all_done(struct mt_run *run)
{
	uint32_t newest = mt_txn_newest(run);
	if (mt_nodes(run) == 1 || mt_node(run)) return false;
	for (uint32_t k = newest ? newest - 1 : 0; k <= newest; k++) {
		uint64_t word = mt_txn_word(run, k);
		if (mt_word_k(word) == k && committed(mt_word_phase(word)) && finished_by_all(run, k, 0))
			return mt_txn_cas(run, k, word, mt_word(k, mt_word_attempt(word), MT_DONE));
	}
	return false;
}

/* ---- serve */

/* A step is committed, and not done on all nodes */
static bool waits_for_nodes(const struct mt_run *run)
{
	return mt_nodes(run) > 1 &&
		(committed(mt_word_phase(mt_txn_word(run, 0))) || committed(mt_word_phase(mt_txn_word(run, 1))));
}

/* Asked to stop: finish the open step as long as an mt-step drives it, and no tile is missing that nobody reads. */
static bool may_leave(struct mt_optimizer *o, uint32_t k, enum mt_phase phase)
{
	if (!o->stop_requested) o->leave_after = mt_txn_newest(o->run);
	o->stop_requested = true;
	if (o->open && o->waits == MT_ACT_WAIT_TIER && !mt_stage_alive(o->run, MT_TIER)) return true;
	return phase != MT_ACCUMULATE || k != o->leave_after || !mt_stage_alive(o->run, MT_STEP);
}

/* One look at everything. 1: something has changed; 0: nothing */
static int round_of(struct mt_optimizer *o)
{
	struct mt_run *run = o->run;
	int rc = mt_stage_check(run);
	if (rc || all_done(run)) return rc ? rc : 1;
	uint32_t k = oldest_open(run);
	uint64_t word = mt_txn_word(run, k);
	enum mt_phase phase = phase_of(run, k);
	if (committed(phase) && !finished(run, mt_node(run), k)) return finish(o, k);
	if (stopping(run) && !waits_for_nodes(run) && may_leave(o, k, phase)) return o->left = true;
	if (phase != MT_ACCUMULATE) return drop(o, word) || mt_snap_fail_dead(run);
	if (mt_word_k(word) != k || mt_word_phase(word) != MT_ACCUMULATE) return 1;
	if ((!o->open || o->attempt.word != word) && (rc = begin(o, word)) <= 0) return rc ? rc : 1;
	o->waits = MT_ACT_WAIT_GRADS;
	return o->accumulate(o->arg);
}

int mt_optimizer_serve(struct mt_optimizer *o)
{
	for (double looked = mt_now(); !o->left;) {
		uint32_t seen = mt_event(o->run);
		int rc = round_of(o);
		if (rc > 0) continue;
		if (!rc) rc = mt_optimizer_over(o);
		if (rc) return rc < 0 ? rc : 0;
		mt_stage_activity(o->run, o->open ? o->waits : MT_ACT_IDLE, o->attempt.step);
		double from = mt_now();
		mt_wait_on(o->run, seen, 100, o->wakes);
		if (o->open) count_ns(o->run, MT_OPTIM_wait_ns, from);
		if (o->open && o->waits == MT_ACT_WAIT_TIER) count_ns(o->run, MT_OPTIM_tier_wait_ns, from);
		if (mt_now() - looked < 0.1) continue;
		mt_abort_dead(o->run);
		looked = mt_now();
	}
	return 0;
}

/* ---- an optimizer of one's own */

struct own {
	struct mt_optimizer driver;
	mt_update_fn *update;
	uint64_t left;      /* elements of gradients that have not come */
	uint64_t committed; /* word of the newest step that this process has committed */
};

/* Of tied embeddings two gradients come; their sum is what counts, so both go into g[0]. */
static int own_begin(void *arg)
{
	struct own *own = arg;
	struct mt_run *run = own->driver.run;
	own->left = 0;
	for (uint32_t u = 0; own->driver.attempt.kind == MT_TRAIN && u < run->control->n_units; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		uint64_t elems = mt_part(run, u).end; /* all, or none */
		memset(mt_at(run, unit->g[0]), 0, elems * sizeof(float));
		own->left += own->driver.attempt.micros * elems * (unit->g[1] ? 2 : 1);
	}
	return 0;
}

static double own_norm(const struct mt_run *run)
{
	double sum = 0;
	for (uint32_t u = 0; u < run->control->n_units; u++) {
		const float *g = mt_at(run, mt_unit(run, u)->g[0]);
		for (uint64_t i = 0; i < mt_part(run, u).end; i++) sum += (double)g[i] * g[i];
	}
	return sqrt(sum);
}

static int own_accumulate(void *arg)
{
	struct own *own = arg;
	struct mt_optimizer *o = &own->driver;
	struct mt_msg m;
	const void *block;
	int moved = 0;
	for (uint32_t i = 0; i < o->streams; i++)
		for (int rc; (rc = mt_grad_peek(o->grad[i], o->attempt.word, &m, &block)) != 0; moved = 1) {
			if (rc > 0 && m.kind != MT_MSG_GRAD) rc = mt_optimizer_take(o, i, &m);
			else if (rc > 0 && m.grad.n > own->left) rc = bad(i, &m, "a piece that came before");
			if (rc <= 0) return rc;
			if (m.kind == MT_MSG_GRAD) {
				float *g = (float *)mt_at(o->run, mt_unit(o->run, m.grad.unit)->g[0]) + m.grad.off;
				for (uint64_t j = 0; j < m.grad.n; j++) g[j] += ((const float *)block)[j];
				own->left -= m.grad.n;
			}
			mt_ring_pop(o->grad[i]);
		}
	if (own->left || !mt_optimizer_ready(o)) return moved;
	double norm = o->attempt.kind == MT_TRAIN ? own_norm(o->run) : NAN;
	own->committed = mt_optimizer_commit(o, isfinite(norm) && !mt_optimizer_skips(o), norm);
	return 1;
}

static int own_apply(void *arg, const struct mt_attempt *a)
{
	struct own *own = arg;
	struct mt_run *run = own->driver.run;
	int rc = 0;
	for (uint32_t turn = 0; !rc && turn < run->control->n_units; turn++) {
		uint32_t u = mt_unit_of_turn(mt_geometry(run), turn);
		const struct mt_unit *unit = mt_unit(run, u);
		if (mt_version(run, u) == a->step) continue; /* a predecessor's work */
		if (a->word != own->committed) {             /* one died in the middle of it */
			mt_run_set_state(run, MT_DIRTY);
			return mt_run_dirty(run);
		}
		if ((rc = mt_snap_wait(run, u))) return rc;
		for (uint32_t i = 0; i < unit->tensors; i++) {
			const struct mt_tensor *x = mt_tensor(run, unit->first_tensor + i);
			float *w = mt_at(run, unit->w), *m = mt_at(run, unit->m), *v = unit->v ? mt_at(run, unit->v) : NULL;
			const float *g = mt_at(run, unit->g[0]);
			if (x->frozen) continue;
			own->update(mt_txn(run, mt_word_k(a->word)), x, w + x->off, m + x->off, v ? v + x->off : NULL, g + x->off);
		}
		rc = mt_optimizer_publish(&own->driver, u, a->step);
	}
	return rc;
}

static int own_fits(const struct mt_run *run)
{
	const struct mt_control *c = run->control;
	bool fp32 = c->dtype == MT_FP32 && c->grad == MT_FP32 && c->state == MT_FP32;
	if (fp32 && mt_nodes(run) == 1 && !mt_tier_any(run) && !mt_run_half(run)) return 0;
	return mt_fail(MT_EX_CONFIG,
		"run '%s' needs mt-optim: another optimizer takes fp32 weights, gradients and state, one node, no tier, and no "
		"step that is half done",
		run->name);
}

int mt_optimize(const char *name, mt_update_fn *update, const volatile int *stop)
{
	static struct own own;
	struct mt_run *run = NULL;
	memset(&own, 0, sizeof own);
	own.update = update;
	own.driver.arg = &own;
	own.driver.begin = own_begin;
	own.driver.accumulate = own_accumulate;
	own.driver.apply = own_apply;
	int rc = mt_run_attach(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS, -1, stop);
	if (!rc) rc = own_fits(run);
	if (!rc) rc = mt_optimizer_open(&own.driver, run);
	if (!rc) rc = mt_optimizer_serve(&own.driver);
	else if (stop && *stop) rc = 0;
	mt_run_close(run);
	return rc;
}
