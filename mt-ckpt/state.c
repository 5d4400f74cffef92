/* state.c: what a checkpoint stores beside the arrays: run.json, unlogged metrics. */
#include <math.h>
#include <stdlib.h>
#include "ckpt.h"
#include "mt/control.h"
#include "os.h"
#include "mt/choices.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"

/* The hyperparameters of `step`, which mt-optim keeps until step + 2 is committed. The caller makes sure that this does
 * not happen meanwhile. */
static struct mt_hyper hyper_of(struct mt_run *run, uint64_t step)
{
	const struct mt_hyper h = mt_control(run)->hyper[step & 1];
	return step && h.step == step ? h : (struct mt_hyper){0};
}

/* The choices that are in the record's table now. No step up to this one used an entry that a stage adds meanwhile. */
static json_t *choices_json(struct mt_run *run, int *rc)
{
	const struct mt_choice *e = NULL;
	json_t *all = json_object();
	if (!all) *rc = mt_fail(MT_EX_NOMEM, "no memory for the record's table of choices");
	for (int i = 0; i < MT_CHOICES && *rc == 0 && (e = mt_choice_next(run, e)); i++) {
		char key[MT_CHOICE_KEY + 1] = "";
		memcpy(key, e->key, sizeof e->key);
		json_put(rc, all, key, json_hex(e->value, e->bytes));
	}
	return all;
}

int state_read(struct mt_run *run, const struct mt_committed *at, struct run_json *out)
{
	struct mt_control *c = mt_control(run);
	int rc = 0;
	*out = (struct run_json){.dtype = (enum mt_dtype)c->dtype,
		.state = (enum mt_dtype)c->state,
		.nodes = mt_nodes(run),
		.optim = (enum mt_optim)c->optim,
		.mtp = c->geo.mtp != 0,
		.step = at->step,
		.t = at->t,
		.position = at->position};
	out->has_record = mt_record(run) != NULL;
	if (out->has_record) {
		memcpy(&out->record, &c->record, sizeof out->record);
		out->choices = choices_json(run, &rc);
	}
	memcpy(out->train, c->train, sizeof out->train);
	memcpy(out->freeze, c->freeze, sizeof out->freeze);
	memcpy(out->run_id, c->h.run_id, sizeof out->run_id);
	out->hyper = hyper_of(run, at->step);
	return rc;
}

void state_release(struct run_json *j)
{
	json_decref(j->choices);
	json_decref(j->tier.files);
	j->choices = j->tier.files = NULL;
}

/* ---- unlogged metrics */

/* Seconds to wait for a metrics line. mt-step writes it right after the commit, unless it is stopped or the reader of
 * its stdout is. */
#define LINE_S 5.0

/* The metrics of transaction i, if it has any and they are not logged */
static bool figures_in(struct mt_run *run, uint32_t i, uint64_t step, struct mt_figures *out)
{
	uint64_t word = mt_txn_word(run, i), now;
	enum mt_phase phase = mt_word_phase(word);
	const struct mt_txn *t = mt_txn(run, i);
	if (phase != MT_APPLY && phase != MT_SKIP && phase != MT_DONE) return false;
	bool mine = t->kind == MT_TRAIN && t->step && t->step <= step;
	if (mine) mt_txn_figures(t, out);
	atomic_thread_fence(memory_order_acquire); /* the fields were read before the word is read again */
	now = mt_txn_word(run, i);
	return mine && mt_word_k(now) == mt_word_k(word) && mt_word_phase(now) != MT_LOGGED;
}

/* The run's metrics beside the transactions: of a step whose evaluation takes many transactions, or of the loaded
 * checkpoint, until an mt-step has logged them */
static bool figures_carried(struct mt_run *run, int i, uint64_t step, struct mt_figures *out)
{
	const struct mt_figures *f = &mt_control(run)->unlogged[i];
	uint64_t of = __atomic_load_n(&f->step, __ATOMIC_ACQUIRE);
	if (!of || of > step) return false;
	*out = *f;
	atomic_thread_fence(memory_order_acquire); /* the fields were read before the step is read again */
	return __atomic_load_n(&f->step, __ATOMIC_RELAXED) == of;
}

static int look_for_lines(struct mt_run *run, uint64_t step, struct mt_figures out[2])
{
	int n = 0;
	memset(out, 0, 2 * sizeof *out);
	/* Transactions first: mt-step copies metrics to `unlogged` before it marks the transaction as logged, so for a
	 * moment a step is in both. */
	for (uint32_t i = 0; i < 2; i++) n += figures_in(run, i, step, &out[n]);
	for (int i = 0; i < 2 && n < 2; i++)
		if (figures_carried(run, i, step, &out[n]) && (n == 0 || out[0].step != out[n].step)) n++;
	if (n == 2 && out[0].step > out[1].step) {
		struct mt_figures first = out[1];
		out[1] = out[0];
		out[0] = first;
	}
	for (int i = n; i < 2; i++) out[i] = (struct mt_figures){0};
	return n;
}

/* mt-step evaluates before it writes the step's line, however long that takes. */
static bool evaluates(struct mt_run *run)
{
	uint32_t k = mt_txn_newest(run);
	return k && mt_txn(run, k)->kind == MT_EVAL;
}

void state_unlogged(struct mt_run *run, uint64_t step, struct mt_figures out[2])
{
	double from = mt_now();
	for (;;) { /* mt_wait would write to the run, which save opens read-only */
		if (!look_for_lines(run, step, out) || !mt_stage_alive(run, MT_STEP) || mt_stage_stopped(run, MT_STEP) ||
			evaluates(run) || mt_now() - from > LINE_S)
			return;
		mt_nap(2);
	}
}
