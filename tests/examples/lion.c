/* lion: an optimizer of your own in place of mt-optim, by mt.h alone: Lion (arXiv 2302.06675, algorithm 2).
 *     c = beta1 m + (1 - beta1) g;    w -= lr (sign(c) + decay w);    m = beta2 m + (1 - beta2) g
 * For fp32 runs with gradients and one mt-stream. mt-step's --lr, --wd, --beta1 and --beta2 are Lion's (the paper takes
 * --beta2 0.99); --eps and --clip change nothing. It may be killed at any instant but while it applies a step: unlike
 * mt-optim it keeps no journal, so the store is then dirty. usage: lion RUN */
#include <math.h>
#include <signal.h>
#include <stdlib.h>

#include "mt.h"

static struct mt_run *run;
static volatile int stop;
static void on_signal(int sig) { stop = sig; }

static int must(int rc)
{
	if (rc >= 0) return rc;
	fprintf(stderr, "lion: %s\n", mt_errmsg());
	exit(-rc);
}

/* An attempt at txn t begins: nothing of it is here yet. Returns what is to come: a loss of each micro, and in training
 * each unit's elements. Of tied embeddings two gradients come; their sum is what counts, so both go into g[0]. */
static uint64_t begin(struct mt_txn *t)
{
	uint64_t elems = 0;
	memset(t->losses, 0, t->micros * sizeof t->losses[0]);
	for (uint32_t u = 0; t->kind == MT_TRAIN && u < mt_control(run)->n_units; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		memset(mt_at(run, unit->g[0]), 0, unit->elems * sizeof(float));
		elems += unit->elems * (unit->g[1] ? 2 : 1);
	}
	return t->micros * (1 + elems);
}

/* Takes what has come of the attempt in `word`. True when nothing is left to come */
static bool accumulate(struct mt_ring *ring, uint64_t word, uint64_t *left)
{
	struct mt_msg m;
	const void *block;
	while (*left && must(mt_grad_peek(ring, word, &m, &block))) {
		if (m.kind == MT_MSG_LOSS) {
			mt_txn(run, m.k)->losses[m.micro] = (struct mt_loss){m.loss.sum, m.loss.targets, m.loss.nonfinite, 1};
			*left -= 1;
		} else if (m.kind == MT_MSG_GRAD) { /* figures of objectives are dropped */
			float *g = (float *)mt_at(run, mt_unit(run, m.grad.unit)->g[0]) + m.grad.off;
			for (uint64_t i = 0; i < m.grad.n; i++) g[i] += ((const float *)block)[i];
			*left -= m.grad.n;
		}
		mt_ring_pop(ring);
	}
	return !*left;
}

static double gradient_norm(void)
{
	double sum = 0;
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) {
		const float *g = mt_at(run, mt_unit(run, u)->g[0]);
		for (uint64_t i = 0; i < mt_unit(run, u)->elems; i++) sum += (double)g[i] * g[i];
	}
	return sqrt(sum);
}

static void lion(const struct mt_txn *t, const struct mt_unit *unit, const struct mt_tensor *tensor)
{
	float *w = (float *)mt_at(run, unit->w) + tensor->off, *m = (float *)mt_at(run, unit->m) + tensor->off;
	const float *g = (const float *)mt_at(run, unit->g[0]) + tensor->off;
	double decay = tensor->decay ? t->decay : 0;
	for (uint64_t i = 0; i < tensor->n; i++) {
		double c = t->beta1 * m[i] + (1 - t->beta1) * g[i];
		w[i] = (float)(w[i] - t->lr * ((c > 0) - (c < 0) + decay * w[i]));
		m[i] = (float)(t->beta2 * m[i] + (1 - t->beta2) * g[i]);
	}
}

/* Brings every unit to t's step; one that a snapshot has pinned only after mt-ckpt has copied it. A stage that has
 * lost its slot changes nothing by mt_publish, and its next look at mt_stage_over ends it. */
static void apply(const struct mt_txn *t)
{
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		if (must(mt_snap_wait(run, u))) exit(0); /* the run was removed */
		for (uint32_t i = 0; !t->skipped && i < unit->tensors; i++)
			lion(t, unit, mt_tensor(run, unit->first_tensor + i));
		mt_publish(run, u, t->step);
	}
	if (!t->save) return;
	if (must(mt_snap_wait(run, mt_control(run)->n_units))) exit(0);
	mt_snap_pin(run, t->step, t->t, &t->position);
}

/* All of the attempt in `word` is here. If an abort comes before the commit, all begins again. */
static void finish(uint64_t word)
{
	const struct mt_txn *t = mt_txn(run, mt_word_k(word));
	struct mt_figures figures;
	mt_txn_figures(t, &figures); /* its loss is NaN without targets, too: such a step changes nothing */
	double norm = t->kind == MT_TRAIN ? gradient_norm() : NAN;
	enum mt_phase phase = t->kind == MT_EVAL ? MT_DONE : isfinite(figures.loss) && isfinite(norm) ? MT_APPLY : MT_SKIP;
	uint64_t committed = mt_txn_commit(run, word, phase, norm, 1);
	if (!committed || phase == MT_DONE) return;
	apply(t);
	mt_txn_cas(run, mt_word_k(word), committed, mt_word(mt_word_k(word), mt_word_attempt(word), MT_DONE));
}

int main(int argc, char **argv)
{
	struct mt_ring *ring;
	uint64_t begun = 0, left = 0;
	signal(SIGTERM, on_signal);
	if (argc != 2) must(mt_fail(MT_EX_USAGE, "usage: lion RUN"));
	must(mt_run_attach(&run, argv[1], MT_RUN_RINGS | MT_RUN_WEIGHTS, 10, &stop));
	if (mt_control(run)->dtype != MT_FP32 || mt_control(run)->grad != MT_FP32)
		must(mt_fail(MT_EX_CONFIG, "run '%s' is not fp32 with fp32 gradients", argv[1]));
	must(mt_stage_claim(run, MT_OPTIM, NULL));
	must(mt_ring_open(run, "grad.0", &ring));
	for (uint32_t k = 0; k < 2; k++) { /* an optimizer before us died while it applied a step */
		enum mt_phase phase = mt_word_phase(mt_txn_word(run, k));
		if (phase == MT_APPLY || phase == MT_SKIP) mt_run_set_state(run, MT_DIRTY);
	}
	while (!stop && !must(mt_stage_over(run))) {
		uint32_t seen = mt_event(run);
		uint64_t word = mt_txn_word(run, mt_txn_newest(run));
		if (mt_word_phase(word) == MT_ACCUMULATE && word != begun) {
			left = begin(mt_txn(run, mt_word_k(word)));
			begun = word;
		}
		if (mt_word_phase(word) == MT_ACCUMULATE && accumulate(ring, word, &left)) finish(word);
		else mt_wait(run, seen, 100);
	}
	mt_run_close(run);
	return 0;
}
