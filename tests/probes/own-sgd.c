/* own-sgd: a custom optimizer in place of mt-optim, using only mt.h: plain SGD, w -= lr * g, for fp32 runs whose steps
 * are one micro-batch. It shows the duties of a replacement: claim the slot, take the messages of the open
 * transaction's attempt, decide by compare-and-swap, publish versions, close the step, and write nothing after it has
 * lost the slot. It keeps no journal: an unfinished update leaves a dirty store. usage: own-sgd RUN */
#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include "mt.h"

static volatile int stop;
static void on_signal(int sig) { stop = sig; }

static void must(int rc)
{
	if (rc >= 0) return;
	fprintf(stderr, "own-sgd: %s\n", mt_errmsg());
	exit(-rc);
}

/* Adds the pieces received for (k, attempt) to g. True when the loss and every element of every unit have arrived. */
static bool accumulate(struct mt_run *run, struct mt_ring *ring, uint32_t k, uint64_t word, uint64_t *left)
{
	struct mt_msg m;
	const void *block;
	while (*left && mt_ring_peek(ring, 0, &m, &block)) {
		uint32_t newer = (m.attempt - mt_word_attempt(word)) & 0xffffff;
		if (newer && newer < 0x800000) return false; /* the word has changed: read it again */
		if (m.k == k && m.attempt == mt_word_attempt(word)) {
			if (m.kind == MT_MSG_LOSS)
				mt_txn(run, k)->losses[m.micro] = (struct mt_loss){m.loss.sum, m.loss.targets, m.loss.nonfinite, 1};
			else if (m.kind == MT_MSG_GRAD)
				memcpy((float *)mt_at(run, mt_unit(run, m.grad.unit)->g[m.grad.end]) + m.grad.off, block, m.grad.n * 4);
			*left -= m.kind == MT_MSG_LOSS ? 1 : m.kind == MT_MSG_GRAD ? m.grad.n : 0;
		}
		mt_ring_pop(ring);
	}
	return !*left;
}

static void apply(struct mt_run *run, const struct mt_txn *t)
{
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) {
		struct mt_unit *unit = mt_unit(run, u);
		float *w = mt_at(run, unit->w);
		must(mt_stage_check(run));
		const float *g = mt_at(run, unit->g[0]), *g2 = unit->g[1] ? mt_at(run, unit->g[1]) : NULL;
		for (uint64_t i = 0; !t->skipped && i < unit->elems; i++) w[i] -= (float)t->lr * (g[i] + (g2 ? g2[i] : 0));
		if (!mt_publish(run, u, t->step)) must(mt_stage_check(run));
	}
}

static uint64_t expected(struct mt_run *run, const struct mt_txn *t)
{
	uint64_t n = 1; /* the loss */
	for (uint32_t u = 0; t->kind == MT_TRAIN && u < mt_control(run)->n_units; u++)
		n += mt_unit(run, u)->elems * (mt_unit(run, u)->g[1] ? 2 : 1);
	return n;
}

int main(int argc, char **argv)
{
	struct mt_run *run;
	struct mt_ring *ring;
	signal(SIGTERM, on_signal);
	if (argc != 2) return MT_EX_USAGE;
	must(mt_run_attach(&run, argv[1], MT_RUN_RINGS | MT_RUN_WEIGHTS, 10, &stop));
	must(mt_stage_claim(run, MT_OPTIM, NULL));
	must(mt_ring_open(run, "grad.0", &ring));
	uint64_t seen_word = 0, left = 0;
	while (!stop && mt_run_state(run) != MT_GONE) {
		must(mt_stage_check(run));
		uint32_t seen = mt_event(run), k = mt_txn_newest(run);
		uint64_t word = mt_txn_word(run, k);
		struct mt_txn *t = mt_txn(run, k);
		if (mt_word_phase(word) == MT_APPLY || mt_word_phase(word) == MT_SKIP) { /* opened before we started */
			mt_run_set_state(run, MT_DIRTY);
			return MT_EX_DATA;
		}
		if (k == 0 || mt_word_phase(word) != MT_ACCUMULATE) {
			mt_wait(run, seen, 100);
			continue;
		}
		if (word != seen_word) { /* a new transaction or attempt: start again */
			left = expected(run, t);
			memset(t->losses, 0, t->micros * sizeof t->losses[0]);
		}
		seen_word = word;
		if (!accumulate(run, ring, k, word, &left)) {
			mt_wait(run, seen, 100);
			continue;
		}
		bool train = t->kind == MT_TRAIN;
		t->skipped = train && (t->losses[0].nonfinite || !t->targets);
		t->t = mt_txn(run, k - 1)->t + (train && !t->skipped); /* whatever k - 1 was, its entry has the counter */
		t->norm = NAN;
		t->clip_factor = 1;
		uint64_t decided = mt_word(k, mt_word_attempt(word), !train ? MT_DONE : t->skipped ? MT_SKIP : MT_APPLY);
		if (!mt_txn_cas(run, k, word, decided) || t->kind == MT_EVAL) continue;
		apply(run, t);
		mt_txn_cas(run, k, decided, mt_word(k, mt_word_attempt(word), MT_DONE));
	}
	mt_run_close(run);
	return 0;
}
