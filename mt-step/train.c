/* train.c: the loop over steps.
 *
 *     rows of n     packed while n - 1 is computed
 *     open n        once n - 1 is committed and n - 2 is logged
 *     accumulate n  each unit as soon as the update of n - 1 has published it
 *     line of n     when n is done; then n is logged
 *
 * In struct trainer, between two turns:
 *
 *  1. `newest` is 0, or the newest training txn, which this mt-step opened; it makes step `began`.
 *  2. `older` is not 0 if and only if the txn before it was opened here and is not logged. Its line comes first [turn].
 *  3. `newest_logged` if and only if the line of `newest` is written, and its word is logged [turn, finish_all].
 *  4. `rows_out` if and only if the rows of `newest` are not given back: a new attempt would deal them again [turn].
 *  5. `counted` is `began` once the outcome of `newest` is counted [count_step].
 *
 * Before the first step, train_resume finishes what a predecessor left as the newest txn k:
 *
 *     accumulate         withdrawn [driver_withdraw]: the txn before it is the newest
 *     apply, skip        waited for: mt-optim finishes it without mt-step [driver_wait]
 *     training, done     its line, after that of k - 1 if that is done; evaluated if that is due [finish_step]
 *     training, logged   evaluated if that is due: its line was written before a long evaluation [evaluate_alone]
 *     evaluation, done   in the line of step k - 1 if that is not logged, else made again [resume_eval]
 *     evaluation, logged the line of step k - 1 is written if that is not logged [resume_eval]
 */
#include <math.h>
#include <stdio.h>

#include "best.h"
#include "metrics.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "progress.h"
#include "saves.h"
#include "train.h"

#define CUT_SAMPLE 1000 /* documents after which the share of cut ones is reported; if there are fewer: at the end */

struct trainer {
	struct driver *d;
	struct eval *eval;
	struct ahead *ahead;
	uint64_t began;               /* step that the newest training txn makes */
	uint32_t newest;              /* that txn; 0: none of ours yet */
	bool newest_logged, rows_out; /* its line is written; its rows are not given back yet */
	uint32_t older;               /* the txn before it while that is not logged, otherwise 0 */
	bool newest_last;
	struct rows *spare; /* rows taken, but a signal came before their step began */
	bool stop_seen;
	uint64_t counted;                  /* newest step whose outcome (applied or skipped) is known */
	uint64_t steps, skipped, in_row;   /* counted steps; those skipped; those skipped since the last that was not */
	const char *why;                   /* reason of the newest skipped step */
	bool broken;                       /* its loss or norm was not finite */
	uint64_t documents, cut_documents; /* of the input so far; those longer than --seq, but for groups: */
	uint64_t groups_dropped;
	bool cut_reported, dropped_reported, end_reported;
	bool from_start;      /* all steps on this input are ours: */
	uint64_t first, rows; /* from this step on, and their rows */
};

static const struct options *opts(const struct trainer *t) { return t->d->o; }

/* ---- lines */

static struct metrics line_of(const struct driver *d, const struct mt_figures *f)
{
	return (struct metrics){.figures = *f,
		.geo = mt_geometry(d->run),
		.loss = d->o->objective.kind,
		.trained = true,
		.pace = mt_pace(d->run, -1, (struct mt_work){0}, (struct mt_work){0}, 0)};
}

static uint64_t since(uint64_t *was, uint64_t now)
{
	uint64_t before = *was;
	*was = now;
	return now < before ? now : now - before; /* a successor counts from 0 */
}

/* What each mt-stream has done since the last call. Returns ns for which the one that waited longest has waited for
 * updates. A wait is counted when it ends, or after 0.1 s: what is left of a step's last one is the next step's. */
static uint64_t streams_worked(const struct driver *d, struct stream_work work[MT_STREAMS])
{
	static struct stream_work was[MT_STREAMS];
	uint64_t most = 0;
	for (int i = 0; i < MT_STREAMS; i++) {
		const struct mt_slot *s = &mt_control(d->run)->slots[MT_STREAM + i];
		struct stream_work *w = &work[i];
		w->tokens = since(&was[i].tokens, s->counters[MT_STREAM_tokens]);
		w->wait_ns = since(&was[i].wait_ns, s->counters[MT_STREAM_wait_ns]);
		w->update_wait_ns = since(&was[i].update_wait_ns, s->counters[MT_STREAM_update_wait_ns]);
		w->on_gpu = false;
		for (int k = 0; k < MT_GPU_WORDS; k++) w->on_gpu |= (w->gpu[k] = s->gpu[k]) != 0;
		w->on_gpu = w->on_gpu && mt_stage_alive(d->run, MT_STREAM + i);
		w->gpu[MT_GPU_energy] = since(&was[i].gpu[MT_GPU_energy], w->gpu[MT_GPU_energy]);
		if (w->update_wait_ns > most) most = w->update_wait_ns;
	}
	return most;
}

static struct metrics figures(struct driver *d, uint32_t k)
{
	static struct stream_work work[MT_STREAMS];
	struct mt_figures f;
	uint64_t wait_ns = streams_worked(d, work);
	mt_count(d->run, MT_STEP_update_wait_ns, wait_ns);
	mt_txn_figures(mt_txn(d->run, k), &f);
	struct metrics m = line_of(d, &f);
	memcpy(m.sums, mt_txn(d->run, k)->figures, sizeof m.sums);
	m.work = work;
	double now = mt_now();
	m.pace = mt_pace(d->run, now - d->mark, (struct mt_work){0}, (struct mt_work){1, f.processed, wait_ns},
		d->rows[k & 1]);
	d->mark = now;
	return m;
}

static void write_figures(struct driver *d, const struct metrics *m)
{
	metrics_write(m);
	progress_show(m, d->o->until);
}

static void drop_figures(struct mt_figures *carried) { __atomic_store_n(&carried->step, 0, __ATOMIC_RELEASE); }

/* A long evaluation needs the entry of the step, txn k, for itself. Until its result is written, checkpoints carry the
 * step's metrics from here: an mt-step that loads one of them evaluates the step again. */
static void carry_figures(struct driver *d, uint32_t k)
{
	struct mt_figures *carried = &mt_control(d->run)->unlogged[0], f;
	mt_txn_figures(mt_txn(d->run, k), &f);
	uint64_t step = f.step;
	f.step = 0;
	drop_figures(carried);
	atomic_thread_fence(
		memory_order_release); /* whoever copies a part of the new ones does not find the old step again */
	*carried = f;
	/* release: a reader that sees the step sees its metrics */
	__atomic_store_n(&carried->step, step, __ATOMIC_RELEASE);
}

/* The line of training txn k, which is done, and its evaluation if that is due; k is logged afterwards. */
static void finish_step(struct driver *d, struct eval *eval, uint32_t k, bool evaluate)
{
	struct metrics m = figures(d, k);
	mt_count(d->run, MT_STEP_steps, 1);
	mt_count(d->run, MT_STEP_tokens, m.figures.tokens);
	mt_count(d->run, MT_STEP_processed, m.figures.processed);
	if (!evaluate) {
		write_figures(d, &m);
		driver_logged(d, k);
		return;
	}
	/* Long evaluations need k's entry for themselves: then the line is written before, and again with its result. */
	struct mt_position position = mt_txn(d->run, k)->position;
	bool in_parts = eval->n_parts > 1;
	if (in_parts) {
		write_figures(d, &m);
		carry_figures(d, k);
		driver_logged(d, k);
	}
	m.evaluation = eval_run(eval, d, m.figures.step, &position);
	m.evaluated = true;
	write_figures(d, &m);
	if (in_parts) drop_figures(&mt_control(d->run)->unlogged[0]);
	/* The evaluation first: a successor that finds it logged and its step done writes that line again, with both */
	uint32_t newest = mt_txn_newest(d->run);
	driver_logged(d, newest);
	driver_logged(d, newest - 1);
	d->mark = mt_now();
}

/* The result of an evaluation with nothing else open is written: log its transactions. */
static void eval_logged(struct driver *d)
{
	uint32_t newest = mt_txn_newest(d->run);
	if (driver_phase(d, newest - 1) == MT_DONE) driver_logged(d, newest - 1);
	driver_logged(d, newest);
	d->mark = mt_now();
}

/* Evaluate with nothing open and write a separate line. */
static void evaluate_alone(struct driver *d, struct eval *eval)
{
	struct mt_committed c;
	mt_run_committed(d->run, &c);
	struct metrics m = {.figures.step = c.step,
		.loss = d->o->objective.kind,
		.evaluated = true,
		.evaluation = eval_run(eval, d, c.step, &c.position)};
	metrics_write(&m);
	eval_logged(d);
}

static bool eval_due(const struct driver *d, const struct eval *eval, uint64_t step, bool last)
{
	return eval && (step % d->o->eval_every == 0 || step == d->o->until || last);
}

/* ---- resume */

/* The newest txn is an evaluation that is done; its result may not have been written. */
static void resume_eval(struct driver *d, struct eval *eval, uint32_t k)
{
	bool of_step = k > 1 && driver_phase(d, k - 1) == MT_DONE && mt_txn(d->run, k - 1)->kind == MT_TRAIN;
	bool open = driver_phase(d, k) == MT_DONE;
	if (of_step) {
		struct metrics m = figures(d, k - 1);
		m.evaluated = eval && eval_was(eval, d, k, &m.evaluation);
		write_figures(d, &m);
	}
	if (k > 0 && driver_phase(d, k - 1) == MT_DONE) driver_logged(d, k - 1);
	if (open && !of_step && eval) evaluate_alone(d, eval);
	else if (open) driver_logged(d, k);
}

/* No step is open, and the lines of all are written: the newest txn is a logged step or an evaluation. */
static bool steps_are_logged(struct driver *d)
{
	uint32_t k = mt_txn_newest(d->run);
	return k == 0 || driver_phase(d, k) == MT_LOGGED || mt_txn(d->run, k)->kind == MT_EVAL;
}

/* Write the lines that had not been written when the checkpoint was taken that filled the run: nobody else will. The
 * last may be that of the run's current step, whose evaluation is then missing as well; or a killed predecessor was at
 * that evaluation. */
static void write_unlogged(struct driver *d, struct eval *eval)
{
	struct mt_control *c = mt_control(d->run);
	struct mt_committed now;
	mt_run_committed(d->run, &now);
	for (int i = 0; i < 2; i++) {
		if (!c->unlogged[i].step) continue;
		struct metrics m = line_of(d, &c->unlogged[i]);
		m.evaluated = m.figures.step == now.step && steps_are_logged(d) && eval_due(d, eval, m.figures.step, false);
		if (m.evaluated) {
			m.evaluation = eval_run(eval, d, m.figures.step, &now.position);
			eval_logged(d);
		}
		metrics_write(&m);
		drop_figures(&c->unlogged[i]); /* a killed mt-step's successor writes a line again rather than never */
	}
}

/* A checkpoint was loaded whose last step had the learning rate of another schedule. */
static void report_seam(const struct driver *d)
{
	uint64_t step = mt_run_step(d->run);
	const struct mt_hyper *was = &mt_control(d->run)->hyper[step & 1];
	const struct schedule *s = &d->o->schedule;
	if (mt_txn_newest(d->run) || !step || step >= d->o->until || was->step != step || s->lr <= 0) return;
	double same = schedule_lr(s, step);
	if (fabs(same - was->lr) <= 1e-9 * fmax(same, was->lr)) return;
	mt_say("the learning rate goes from %.3g at step %llu to %.3g at step %llu: --steps (%llu), --lr or the schedule "
		   "is not that of the training so far",
		was->lr, (unsigned long long)step, schedule_lr(s, step + 1), (unsigned long long)step + 1,
		(unsigned long long)s->steps);
}

void train_resume(struct driver *d, struct eval *eval)
{
	struct stream_work before[MT_STREAMS];
	d->mark = mt_now();
	streams_worked(d, before);
	report_seam(d);
	driver_withdraw(d);
	write_unlogged(d, eval);
	uint32_t k = mt_txn_newest(d->run);
	if (k == 0) return;
	/* mt-optim finishes an update that has begun, whichever mt-step opened it */
	if (driver_phase(d, k) < MT_DONE) driver_wait(d, k, MT_DONE);
	const struct mt_txn *t = mt_txn(d->run, k);
	if (t->kind == MT_EVAL) {
		resume_eval(d, eval, k);
		return;
	}
	if (k > 1 && driver_phase(d, k - 1) == MT_DONE) {
		if (mt_txn(d->run, k - 1)->kind == MT_TRAIN) finish_step(d, NULL, k - 1, false);
		else driver_logged(d, k - 1);
	}
	bool due = eval_due(d, eval, t->step, t->last);
	if (driver_phase(d, k) == MT_DONE) finish_step(d, eval, k, due);
	else if (due) evaluate_alone(d, eval); /* its line was written before a long evaluation, of which nothing is done */
}

/* ---- steps */

static bool newest_evaluates(const struct trainer *t) { return eval_due(t->d, t->eval, t->began, t->newest_last); }

/* On the first signal: the step in accumulate becomes the last, and is saved if there is a saver. */
static void see_stop(struct trainer *t)
{
	if (!mt_stopping || t->stop_seen) return;
	t->stop_seen = true;
	if (t->newest && mt_stage_alive(t->d->run, MT_CKPT)) driver_save_late(t->d);
}

static void turn(struct trainer *t)
{
	struct driver *d = t->d;
	driver_turn(d);
	see_stop(t);
	if (t->older && driver_phase(d, t->older) == MT_DONE) {
		finish_step(d, t->eval, t->older, false);
		t->older = 0;
	}
	if (t->newest && !t->older && !t->newest_logged && !newest_evaluates(t) && driver_phase(d, t->newest) == MT_DONE) {
		finish_step(d, t->eval, t->newest, false);
		t->newest_logged = true;
	}
	if (t->rows_out && !d->source) {
		ahead_give_back(t->ahead);
		t->rows_out = false;
	}
	if (d->abandoned && (!t->older || d->frozen)) driver_abandon(d);
}

/* The next step's rows; NULL when a signal came first. */
static struct rows *next_rows(struct trainer *t)
{
	for (;;) {
		uint32_t seen = mt_event(t->d->run);
		turn(t);
		struct rows *r = ahead_take(t->ahead);
		if (r) return r;
		if (mt_stopping) return NULL;
		if (!t->newest || t->newest_logged) mt_stage_activity(t->d->run, MT_ACT_READ_INPUT, 0);
		driver_sleep(t->d, seen);
	}
}

static const char *skip_reason(const struct mt_txn *txn)
{
	bool finite = true;
	if (!txn->targets) return "it has no target: every token is context only";
	for (uint32_t j = 0; j < txn->micros; j++) finite &= !txn->losses[j].nonfinite && isfinite(txn->losses[j].sum);
	return finite ? "the gradient norm is not finite" : "the loss is not finite";
}

/* The newest txn is committed: was it skipped? The first skipped step is reported: otherwise only a word in
 * the metrics shows that nothing is trained. */
static void count_step(struct trainer *t)
{
	if (!t->newest || t->counted == t->began) return;
	const struct mt_txn *txn = mt_txn(t->d->run, t->newest);
	t->counted = t->began;
	t->steps++;
	t->in_row = txn->skipped ? t->in_row + 1 : 0;
	t->skipped += txn->skipped;
	if (!txn->skipped) return;
	t->why = skip_reason(txn);
	t->broken = txn->targets != 0;
	if (t->skipped == 1) mt_say("step %llu is skipped: %s; no weight is changed", (unsigned long long)t->began, t->why);
}

/* Until the newest txn is committed and the one before it logged. */
static void wait_committed(struct trainer *t)
{
	while (t->newest && !t->newest_logged) {
		uint32_t seen = mt_event(t->d->run);
		turn(t);
		if (driver_phase(t->d, t->newest) != MT_ACCUMULATE && !t->older && !t->rows_out) break;
		driver_sleep(t->d, seen);
	}
	count_step(t);
}

/* Until nothing is open and every line is written. */
static void finish_all(struct trainer *t)
{
	wait_committed(t);
	while (t->newest && !t->newest_logged) {
		uint32_t seen = mt_event(t->d->run);
		turn(t);
		if (newest_evaluates(t) && driver_phase(t->d, t->newest) == MT_DONE) {
			finish_step(t->d, t->eval, t->newest, true);
			t->newest_logged = true;
		}
		if (!t->newest_logged) driver_sleep(t->d, seen);
	}
}

/* How many times the input would have to be read for --steps; 0: unknown, since an earlier mt-step trained on it. */
static unsigned long long epochs_needed(const struct trainer *t)
{
	const struct options *o = opts(t);
	if (!t->from_start || !t->rows) return 0;
	uint64_t need = (o->schedule.steps - t->first) * o->batch;
	return (need + t->rows - 1) / t->rows;
}

/* The input has ended, and the last step has that many rows. If that is before --until, the learning rate has not
 * reached its end: the model is not what --steps and --schedule promise. */
static void report_end(struct trainer *t, uint64_t rows)
{
	const struct options *o = opts(t);
	const struct schedule *s = &o->schedule;
	unsigned long long step = t->began, steps = s->steps, epochs = epochs_needed(t);
	char cut[96] = "", lr[96] = "", again[32] = "N";
	if (rows < o->batch)
		snprintf(cut, sizeof cut, ", which has %llu of %llu rows", (unsigned long long)rows,
			(unsigned long long)o->batch);
	t->end_reported = true;
	if (step >= o->until) {
		mt_say("input ended at step %llu of %llu%s", step, steps, cut);
		return;
	}
	if (s->kind != SCHEDULE_CONSTANT || step <= s->warmup)
		snprintf(lr, sizeof lr, " the schedule is incomplete (lr is %.2g):", schedule_lr(s, step));
	if (epochs) snprintf(again, sizeof again, "%llu", epochs);
	mt_say("input ended at step %llu of %llu%s:%s use --steps %llu, or feed more data (mt-feed --epochs %s)", step,
		steps, cut, lr, step, again);
}

static void report_dropped(struct trainer *t)
{
	if (t->dropped_reported || !t->groups_dropped) return;
	t->dropped_reported = true;
	mt_say("%llu of %llu records %s longer than --seq %llu and %s dropped", (unsigned long long)t->groups_dropped,
		(unsigned long long)t->documents, t->groups_dropped == 1 ? "is a group" : "are groups",
		(unsigned long long)opts(t)->seq, t->groups_dropped == 1 ? "is" : "are");
}

/* Many cut documents mean that --seq was mistyped, or is too short for the data. */
static void report_cut(struct trainer *t)
{
	report_dropped(t);
	if (t->cut_reported || !t->cut_documents) return;
	uint32_t how = opts(t)->pack & LONG_MASK;
	t->cut_reported = true;
	mt_say("%.0f %% of documents (%llu of %llu) are longer than --seq %llu and are %s",
		100 * (double)t->cut_documents / (double)t->documents, (unsigned long long)t->cut_documents,
		(unsigned long long)t->documents, (unsigned long long)opts(t)->seq,
		how == LONG_DROP           ? "dropped"
			: how == LONG_TRUNCATE ? "truncated"
								   : "cut");
}

static void begin_step(struct trainer *t, const struct rows *r, bool save_anyway)
{
	static struct rows_source feed; /* of the txn in accumulate: there is one at a time */
	const struct options *o = opts(t);
	uint64_t step = t->began + 1;
	bool last = step == o->until || r->last;
	/* a step that evaluates may turn out to be the last by --stop-after, which is known after its commit only */
	bool may_stop = o->stop_after && eval_due(t->d, t->eval, step, last);
	bool save = save_anyway || (o->ckpt_every && (last || may_stop || step % o->ckpt_every == 0));
	if (t->newest && !t->newest_logged) {
		if (newest_evaluates(t)) finish_all(t);
		else t->older = t->newest;
	}
	feed = (struct rows_source){.source = {.rows = r->n,
									.targets = r->n_targets,
									.processed = r->n_processed,
									.weighted = r->weighted,
									.objective = r->objective,
									.top = t->d->top,
									.fill = rows_fill,
									.rewind = rows_rewind},
		.seq = o->seq,
		.tokens = r->tokens,
		.targets = r->targets,
		.starts = r->starts,
		.weights = r->weights,
		.old = r->old,
		.teacher = r->teacher,
		.documents = r->documents,
		.n_documents = r->n_documents};
	t->newest = driver_begin(t->d, MT_TRAIN, step, schedule_lr(&o->schedule, step), save, last, &r->position,
		&feed.source);
	t->newest_logged = false;
	t->rows_out = true;
	t->newest_last = last;
	t->began = step;
	t->rows += r->n;
	t->documents = r->records;
	t->cut_documents = r->cut_documents;
	t->groups_dropped = r->groups_dropped;
	if (t->documents >= CUT_SAMPLE) report_cut(t);
	if (r->n < o->batch || (r->last && step < o->until)) report_end(t, r->n);
}

/* A signal came after the newest step was committed, too late to save it: train one more step, with a save. */
static void save_at_stop(struct trainer *t)
{
	if (!t->newest || !mt_stage_alive(t->d->run, MT_CKPT) || saves_taken(t->d, t->began)) return;
	struct rows *r = t->spare; /* the next rows, already taken */
	if (!r && t->began < opts(t)->until) r = ahead_take(t->ahead);
	if (!r || r->rc < 0 || !r->n) {
		mt_say("no checkpoint of step %llu: it was done when the signal came", (unsigned long long)t->began);
		return;
	}
	begin_step(t, r, true);
	finish_all(t);
}

/* No rows: end of input or an error. Returns the exit code. */
static int input_over(struct trainer *t, const struct rows *r)
{
	if (r->rc < 0) {
		mt_say("%s", r->error);
		return -r->rc;
	}
	if (!t->end_reported) report_end(t, opts(t)->batch);
	return 0;
}

int train_nothing(struct driver *d)
{
	struct mt_committed c;
	mt_run_committed(d->run, &c);
	if (c.t || !c.step) return 0;
	if (c.step == 1) mt_say("nothing was trained: the only step of the run was skipped");
	else mt_say("nothing was trained: all %llu steps of the run were skipped", (unsigned long long)c.step);
	return MT_EX_DATA;
}

/* Does the run end with a model that gives no finite loss? A single such step may be due to its rows; half of this
 * mt-step's steps, or of the run's, may not. */
static bool ends_broken(struct trainer *t)
{
	struct mt_committed c;
	mt_run_committed(t->d->run, &c);
	return t->broken && ((t->in_row >= 3 && 2 * t->in_row >= t->steps) || 2 * c.t <= c.step);
}

/* 65 if too many steps were skipped in a row, or up to the end, otherwise 0. Counted from this mt-step's start. */
static int skipped_too_many(struct trainer *t, bool end)
{
	uint64_t most = opts(t)->max_skipped;
	if (!most || !t->in_row) return 0;
	if (t->in_row < most && !(end && ends_broken(t))) return 0;
	mt_say("%s: the last %llu of %llu step%s %s skipped: %s; the weights are those from before them",
		end ? "nothing more was trained" : "training stops (--max-skipped)", (unsigned long long)t->in_row,
		(unsigned long long)t->steps, mt_s(t->steps), t->in_row == 1 ? "was" : "were", t->why);
	return MT_EX_DATA;
}

/* --stop-after: has the eval loss not become lower for that long? */
static bool stale(struct trainer *t)
{
	const struct best *b = best_known();
	const struct options *o = opts(t);
	if (!o->stop_after) return false;
	if (t->newest && !t->newest_logged && newest_evaluates(t)) finish_all(t);
	if (mt_stopping || b->since < o->stop_after) return false;
	mt_say("stopped at step %llu of %llu: %llu evaluation%s in a row without a lower loss than %.4f at step %llu "
		   "(--stop-after)",
		(unsigned long long)t->began, (unsigned long long)o->schedule.steps, (unsigned long long)b->since,
		mt_s(b->since), b->best_loss, (unsigned long long)b->best_step);
	return true;
}

int train(struct driver *d, struct eval *eval, int input)
{
	struct trainer t = {.d = d, .eval = eval};
	const struct options *o = d->o;
	struct mt_committed c;
	mt_run_committed(d->run, &c);
	t.began = c.step;
	if (o->input_new) c.position = (struct mt_position){.tokens = c.position.tokens, .carry = MT_NO_TARGET};
	t.first = c.step;
	t.from_start = !c.position.records && !c.position.offset;
	bool look = o->ckpt_every || eval;
	mt_must(ahead_start(&t.ahead, d->run, o, input, &c.position, o->until - c.step, look));
	if (eval && c.step == 0 && mt_txn_newest(d->run) == 0) evaluate_alone(d, eval);
	d->mark = mt_now();

	int code = 0;
	while (t.began < o->until && !code && !mt_stopping && !stale(&t)) {
		struct rows *r = next_rows(&t);
		if (!r) break;
		t.spare = r;
		wait_committed(&t);
		if (mt_stopping) break;
		t.spare = NULL;
		if ((code = skipped_too_many(&t, false)) != 0) break;
		if (r->rc < 0 || !r->n) {
			finish_all(&t);
			code = input_over(&t, r);
			break;
		}
		if (mt_txn_newest(d->run) >= MT_TXN_LAST) finish_all(&t); /* driver_begin reports it, and ends */
		begin_step(&t, r, false);
	}
	finish_all(&t);
	if (mt_stopping) save_at_stop(&t);
	if (!code) report_cut(&t);
	saves_finish(d);
	if (!code && !mt_stopping) code = train_nothing(d);
	if (!code && !mt_stopping) code = skipped_too_many(&t, true);
	return code;
}
