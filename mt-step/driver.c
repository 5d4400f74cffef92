/* driver.c: one txn at a time through its phases.
 *
 * mt-step keeps no state: what it opens is in the txn, and the rows can be packed again from the position of
 * the txn before. In struct driver:
 *
 *  1. `source` is not NULL only if this mt-step has opened the newest txn, and has not seen that it left accumulate.
 *  2. `attempt` is 0, or the attempt under which micros 0 to next - 1 were pushed. They count if and only if it is the
 *     word's: else all micros are dealt again, and readers drop the older messages [deal, deal_anew].
 *  3. Micros are dealt in ascending order, each to the stream that is expected to end it first [deal_to]: streams that
 *     are equally fast take turns. If the slot of one of the attempt's streams, or mt-optim's if it was there, has
 *     another word than in `participants`, a new attempt begins [deal].
 *
 *     newest txn   what mt-step does in a turn
 *     accumulate   deals micros while rings have room [deal_one]; without a stream, waits for one [peers_assemble]
 *     committed    drops the source: no row is needed again [deal]; phases are mt-optim's until done [driver_phase]
 *     done         nothing: train.c and eval.c write the line and log it [driver_logged]
 *
 * At an exit, a txn in accumulate is withdrawn; one that is committed is final [driver_withdraw]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "driver.h"
#include "mt/choices.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/step.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "progress.h"
#include "saves.h"

enum { SHARE_MOST = 1000 };

/* "3,1": a number for each mt-stream */
static int shares_parse(struct driver *d, const char *text)
{
	const char *next = text;
	d->n_shares = 0;
	for (;;) {
		char *end;
		unsigned long share = *next >= '1' && *next <= '9' ? strtoul(next, &end, 10) : 0;
		if (!share || share > SHARE_MOST || d->n_shares == d->streams || (*end && *end != ',')) break;
		d->shares[d->n_shares++] = (uint32_t)share;
		if (!*end && strlen(text) < MT_CHOICE_VALUE) return 0;
		next = end + 1;
	}
	return mt_fail(MT_EX_USAGE,
		"--shares: '%s' is not a list of numbers from 1 to %d, one for each of at most %d mt-streams", text, SHARE_MOST,
		d->streams);
}

static int shares_take(struct driver *d)
{
	char stands[MT_CHOICE_VALUE];
	if (d->o->shares && mt_nodes(d->run) > 1) return mt_fail(MT_EX_USAGE, "--shares: on one machine alone");
	int rc = d->o->shares ? shares_parse(d, d->o->shares) : 0;
	if (rc == 0 && d->o->shares) rc = mt_shares_enter(d->run, d->o->shares);
	return rc || !mt_shares(d->run, stands) ? rc : shares_parse(d, stands);
}

int driver_open(struct driver *d, struct mt_run *run, const struct options *o)
{
	*d = (struct driver){.run = run, .o = o, .wakes = MT_ON_TXN | MT_ON_SNAP | MT_ON_STAGE};
	d->streams = (int)mt_streams(run);
	bool teacher = mt_losses[o->objective.kind].needs & MT_PART_TEACHER;
	if (teacher) d->top = (uint32_t)mt_control(run)->top;
	if (teacher && !d->top)
		return mt_fail(MT_EX_CONFIG,
			"--loss %s: the run's rings have no room for a teacher's tokens: mt-store create --top K",
			mt_losses[o->objective.kind].name);
	for (int i = 0; i < d->streams; i++) {
		char name[32];
		snprintf(name, sizeof name, "batch.%d", i);
		int rc = mt_ring_open(run, name, &d->ring[i]);
		if (rc) return rc;
		d->wakes |= mt_ring_on_room(d->ring[i]);
		uint64_t most = batch_tokens(mt_ring_block(d->ring[i]), d->top);
		if (most / o->seq < o->micro)
			return mt_fail(MT_EX_USAGE,
				"a micro-batch of %llu row%s of %llu token%s does not fit ring %s, which takes %llu "
				"tokens; take a smaller --micro, or mt-store create --step-tokens %llu",
				(unsigned long long)o->micro, mt_s(o->micro), (unsigned long long)o->seq, mt_s(o->seq), name,
				(unsigned long long)most, (unsigned long long)(o->micro * o->seq));
	}
	return shares_take(d);
}

int rows_rewind(struct row_source *s)
{
	(void)s;
	return 0;
}

struct mt_document *objective_fill(const struct row_source *s, uint64_t n, uint32_t *block)
{
	struct mt_objective *to = (void *)((char *)block + batch_objective_at(n, s->top));
	*to = s->objective;
	return (void *)(to + 1);
}

int rows_fill(struct row_source *s, uint64_t first, uint32_t n, uint32_t *block)
{
	const struct rows_source *r = (const struct rows_source *)s;
	bool objective = s->objective.kind != MT_NLL;
	uint64_t at = first * r->seq, count = n * r->seq;
	memcpy(block, r->tokens + at, count * 4);
	memcpy(block + count, r->targets + at, count * 4);
	memcpy(block + 2 * count, r->starts + at, count * 4);
	if (s->weighted || objective) memcpy(block + 3 * count, r->weights + at, count * 4);
	s->documents = 0;
	if (!objective) return 0;
	memcpy(block + 4 * count, r->old + at, count * 4);
	uint64_t words = MT_TEACHER_WORDS(s->top);
	if (words) memcpy(block + 5 * count, r->teacher + at * words, count * words * 4);
	struct mt_document *to = objective_fill(s, count, block);
	for (uint32_t row = 0; row < n; row++)
		for (uint32_t i = 0; i < r->n_documents[first + row]; i++) {
			to[s->documents] = r->documents[at + row * r->seq + i];
			to[s->documents++].begin += row * (uint32_t)r->seq;
		}
	return 0;
}

enum mt_phase driver_phase(struct driver *d, uint32_t k)
{
	uint64_t w = mt_txn_word(d->run, k);
	return mt_word_k(w) == k ? mt_word_phase(w) : MT_LOGGED; /* a later txn has its entry: it was logged */
}

uint32_t driver_begin(struct driver *d, enum mt_kind kind, uint64_t step, double lr, bool save, bool last,
	const struct mt_position *position, struct row_source *source)
{
	driver_check(d);
	uint32_t before = mt_txn_newest(d->run), k = before + 1;
	if (before >= MT_TXN_LAST)
		mt_die(MT_EX_CONFIG,
			"run '%s' has used all of its %u transactions: save it with mt-ckpt, load the checkpoint, "
			"and continue",
			d->o->run, before);
	MT_ASSERT(driver_phase(d, before) != MT_ACCUMULATE);
	struct mt_txn *t = mt_txn(d->run, k);
	/* the entry that k takes over: logged, withdrawn, or never used */
	uint64_t old = mt_txn_word(d->run, k);
	MT_ASSERT(mt_word_phase(old) == MT_LOGGED || mt_word_phase(old) == MT_CLOSED);

	const struct options *o = d->o;
	t->step = step;
	/* release: who finds one of the values below in the entry of an earlier step finds another step, too (look.c) */
	atomic_thread_fence(memory_order_release);
	t->kind = kind;
	d->micros = t->micros = (uint32_t)((source->rows + o->micro - 1) / o->micro);
	t->targets = source->targets;
	t->processed = source->processed;
	t->hyperparams = o->hyperparams;
	t->lr = lr;
	if (kind == MT_EVAL) t->clip = 0;
	t->save = save;
	t->last = last;
	t->position = *position;
	t->aux = t->z = t->mtp = NAN; /* for an optimizer that leaves them */
	memset(t->figures, 0, sizeof t->figures);
	memset(t->losses, 0, sizeof t->losses[0] * t->micros);
	d->source = source;
	d->rows[k & 1] = source->rows;
	d->attempt = 0;
	bool opened = mt_txn_cas(d->run, k, old, mt_word(k, mt_attempt_next(d->run), MT_ACCUMULATE));
	if (!opened) driver_check(d);
	MT_ASSERT(opened); /* nobody else changes a word that is logged or closed */
	return k;
}

void driver_withdraw(struct driver *d)
{
	uint32_t k = mt_txn_newest(d->run);
	d->source = NULL;
	while (mt_stage_mine(d->run)) {
		uint64_t w = mt_txn_word(d->run, k);
		if (mt_word_k(w) != k || mt_word_phase(w) != MT_ACCUMULATE) return; /* it was committed, which is final */
		if (mt_txn_cas(d->run, k, w, mt_word(k, mt_word_attempt(w), MT_CLOSED))) return;
	}
}

void driver_check(struct driver *d)
{
	if (!mt_stage_mine(d->run)) mt_must(mt_stage_check(d->run));
}

void driver_leave(struct driver *d)
{
	progress_end();
	if (!d->run || mt_run_state(d->run) == MT_GONE) return;
	driver_withdraw(d); /* neither does anything if another process has the slot now */
	mt_stage_release(d->run);
}

void driver_abandon(struct driver *d)
{
	unsigned long long step = mt_txn(d->run, mt_txn_newest(d->run))->step;
	if (d->frozen)
		mt_say("step %llu is not finished: %s (pid %d) is stopped (SIGSTOP): kill -CONT %d", step,
			mt_stage_name(d->frozen - 1), mt_stage_pid(d->run, d->frozen - 1), mt_stage_pid(d->run, d->frozen - 1));
	else mt_say("step %llu is not finished: the stages were stopped as well", step);
	driver_leave(d);
	mt_die_of_signal(mt_stopping);
}

/* How fast the attempt's streams are, by what each computed in the better of two attempts. Where one is not known, as
 * those of other nodes are not, all count as equal. So do those that are nearly as fast as the fastest one, and those
 * that lose less than `noise` with a micro-batch. */
static void paces_measure(struct driver *d)
{
	const double nearly = 1.25, forget = 0.9, noise = 1e7; /* ns */
	double micro = (double)(d->o->micro * d->o->seq), fastest = INFINITY;
	for (int i = 0; i < d->n_live; i++) {
		struct dealt *s = &d->dealt[d->live[i]];
		const _Atomic uint64_t *now = mt_control(d->run)->slots[MT_STREAM + d->live[i]].counters;
		uint64_t tokens = now[MT_STREAM_tokens], busy = now[MT_STREAM_busy_ns];
		if (tokens < s->tokens || busy < s->busy_ns) *s = (struct dealt){0}; /* a successor counts from 0 */
		if (tokens > s->tokens) {
			s->last[1] = s->last[0];
			s->last[0] = (double)(busy - s->busy_ns) / (double)(tokens - s->tokens);
		} else {
			s->last[0] *= forget; /* one that was too slow to get any is tried again */
		}
		s->tokens = tokens;
		s->busy_ns = busy;
		s->micros = 0;
		s->pace = fmin(s->last[0], s->last[1]);
		fastest = fmin(fastest, s->pace);
	}
	for (int i = 0; i < d->n_live; i++) {
		struct dealt *s = &d->dealt[d->live[i]];
		bool slower = fastest > 0 && s->pace > nearly * fastest && (s->pace - fastest) * micro > noise;
		if (d->n_shares) s->pace = 1.0 / d->shares[d->live[i]];
		else if (!slower) s->pace = fmax(fastest, 1);
	}
}

/* The stream that ends another micro first. Gradients are added in the order of micros: so a slow stream's are late
 * ones. */
static int deal_to(const struct driver *d)
{
	int to = d->live[0];
	for (int i = 1; i < d->n_live; i++) {
		const struct dealt *s = &d->dealt[d->live[i]], *first = &d->dealt[to];
		if ((s->micros + 1) * s->pace < (first->micros + 1) * first->pace) to = d->live[i];
	}
	return to;
}

/* Start dealing under the txn's attempt. */
static bool deal_anew(struct driver *d, uint32_t attempt)
{
	if (!peers_assemble(d)) {
		mt_stage_activity(d->run, MT_ACT_WAIT_STREAM, 0);
		return false;
	}
	mt_must(d->source->rewind(d->source));
	paces_measure(d);
	d->attempt = attempt;
	d->next = 0;
	mt_stage_activity(d->run, MT_ACT_WAIT_COMMIT, mt_txn(d->run, mt_txn_newest(d->run))->step);
	return true;
}

/* Push micro d->next if its ring has room. */
static bool deal_one(struct driver *d, uint32_t k)
{
	int to = deal_to(d);
	struct mt_ring *ring = d->ring[to];
	uint32_t *block = mt_ring_reserve(ring);
	if (!block) {
		mt_must(mt_ring_check(ring));
		return false;
	}
	const struct mt_txn *t = mt_txn(d->run, k);
	uint64_t first = d->next * d->o->micro, left = d->source->rows - first;
	uint32_t rows = (uint32_t)(left < d->o->micro ? left : d->o->micro);
	mt_must(d->source->fill(d->source, first, rows, block));
	struct mt_msg m = {
		.k = k,
		.attempt = d->attempt,
		.kind = MT_MSG_BATCH,
		.txn_kind = (uint16_t)t->kind,
		.micro = d->next,
		.step = t->step,
		.batch = {.version = t->kind == MT_TRAIN ? t->step - 1 : t->step,
			.rows = rows,
			.seq = (uint32_t)d->o->seq,
			.loss_scale = t->targets ? 1.0 / (double)t->targets : 0,
			.micros = d->micros,
			.scores = (uint16_t)d->scores,
			.weights = d->source->weighted || d->source->documents,
			.top = d->top,
			.documents = d->source->documents},
	};
	mt_ring_push(ring, &m);
	d->dealt[to].micros++;
	d->next++;
	return true;
}

static void deal(struct driver *d)
{
	uint32_t k = mt_txn_newest(d->run);
	uint64_t w = mt_txn_word(d->run, k);
	if (mt_word_k(w) != k || mt_word_phase(w) != MT_ACCUMULATE) {
		d->source = NULL; /* committed: its rows are not needed again */
		return;
	}
	if (d->attempt && peers_changed(d)) {
		/* a participant has left, perhaps in order: what it held is lost, so deal everything again */
		mt_txn_cas(d->run, k, w, mt_word(k, mt_attempt_next(d->run), MT_ACCUMULATE));
		d->attempt = 0;
		return;
	}
	if (mt_word_attempt(w) != d->attempt && !deal_anew(d, mt_word_attempt(w))) return;
	while (d->next < d->micros && deal_one(d, k)) {}
}

void driver_turn(struct driver *d)
{
	driver_check(d);
	peers_watch(d);
	progress_look();
	if (d->source) deal(d);
	saves_watch(d);
}

void driver_sleep(struct driver *d, uint32_t seen) { mt_wait_on(d->run, seen, 100, d->wakes); }

void driver_wait(struct driver *d, uint32_t k, enum mt_phase phase)
{
	for (;;) {
		uint32_t seen = mt_event(d->run);
		driver_turn(d);
		if (driver_phase(d, k) >= phase) return;
		if (d->abandoned) driver_abandon(d);
		driver_sleep(d, seen);
	}
}

void driver_logged(struct driver *d, uint32_t k)
{
	uint64_t w = mt_txn_word(d->run, k);
	MT_ASSERT(mt_word_k(w) == k && mt_word_phase(w) == MT_DONE);
	mt_txn_cas(d->run, k, w, mt_word(k, mt_word_attempt(w), MT_LOGGED));
}

bool driver_save_late(struct driver *d)
{
	uint32_t k = mt_txn_newest(d->run);
	struct mt_txn *t = mt_txn(d->run, k);
	/* a save requested while mt-link copies the commit might reach only some nodes */
	if (mt_nodes(d->run) > 1) return false;
	for (;;) {
		driver_check(d);
		uint64_t w = mt_txn_word(d->run, k);
		if (mt_word_k(w) != k || mt_word_phase(w) != MT_ACCUMULATE || t->kind != MT_TRAIN) return false;
		t->save = 1;
		/* The word does not change, but the commit comes after this exchange, and so sees the flag. */
		if (mt_txn_cas(d->run, k, w, w)) return true;
	}
}
