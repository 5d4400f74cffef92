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

static void must(int rc)
{
	if (rc >= 0) return;
	fprintf(stderr, "lion: %s\n", mt_errmsg());
	exit(-rc);
}

/* What k's record wants to have before it is decided: a loss of each micro, and in training each unit's elements */
static uint64_t expected(const struct mt_txn *t)
{
	uint64_t elems = 0;
	for (uint32_t u = 0; t->kind == MT_TRAIN && u < mt_control(run)->n_units; u++)
		elems += mt_unit(run, u)->elems * (mt_unit(run, u)->g[1] ? 2 : 1); /* tied embeddings have two */
	return t->micros * (1 + elems);
}

/* A new transaction or attempt: nothing of it is here yet */
static void begin(struct mt_txn *t)
{
	memset(t->losses, 0, t->micros * sizeof t->losses[0]);
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++)
		for (int end = 0; end < 2; end++)
			if (mt_unit(run, u)->g[end]) memset(mt_at(run, mt_unit(run, u)->g[end]), 0, mt_unit(run, u)->elems * 4);
}

/* Adds a message to the transaction's outcome; returns how much of what is expected it was */
static uint64_t add(struct mt_txn *t, const struct mt_msg *m, const float *piece)
{
	if (m->kind == MT_MSG_LOSS && m->micro < t->micros) {
		t->losses[m->micro] = (struct mt_loss){m->loss.sum, m->loss.targets, m->loss.nonfinite, 1};
		return 1;
	}
	const struct mt_unit *unit = m->grad.unit < mt_control(run)->n_units ? mt_unit(run, m->grad.unit) : NULL;
	if (m->kind != MT_MSG_GRAD || !unit || m->grad.end > 1 || !unit->g[m->grad.end] || m->grad.n > unit->elems ||
		m->grad.off > unit->elems - m->grad.n || m->grad.n > mt_control(run)->piece_elems)
		must(mt_fail(MT_EX_BUG, "a message that is not valid, in transaction %u", m->k));
	float *g = (float *)mt_at(run, unit->g[m->grad.end]) + m->grad.off;
	for (uint64_t i = 0; i < m->grad.n; i++) g[i] += piece[i];
	return m->grad.n;
}

/* Takes what has come for the attempt in `word`. True when all is there */
static bool accumulate(struct mt_ring *ring, uint64_t word, uint64_t *left)
{
	struct mt_msg m;
	const void *block;
	while (*left && mt_ring_peek(ring, 0, &m, &block)) {
		uint32_t newer = (m.attempt - mt_word_attempt(word)) & 0xffffff;
		if (newer && newer < 0x800000) return false; /* the word has changed: read it again */
		if (!newer && m.k == mt_word_k(word)) *left -= add(mt_txn(run, m.k), &m, block);
		mt_ring_pop(ring);
	}
	must(mt_ring_check(ring));
	return !*left;
}

static double gradient_norm(void)
{
	double sum = 0;
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		float *g = mt_at(run, unit->g[0]), *head = unit->g[1] ? mt_at(run, unit->g[1]) : NULL;
		for (uint64_t i = 0; head && i < unit->elems; i++) g[i] += head[i];
		for (uint64_t i = 0; i < unit->elems; i++) sum += (double)g[i] * g[i];
	}
	return sqrt(sum);
}

/* Waits while the saver has not copied unit u (u: one past the last: any unit), unless the saver is dead */
static void wait_saver(uint32_t u)
{
	for (;;) {
		uint32_t seen = mt_event(run);
		uint64_t word = mt_snap(run);
		if (u < mt_control(run)->n_units ? !mt_snap_pinned(run, u) : !mt_snap_busy(word)) return;
		must(mt_stage_check(run));
		if (mt_snap_state(word) == MT_PINNED && !mt_stage_alive(run, MT_CKPT)) mt_snap_fail(run, word);
		if (mt_run_state(run) == MT_GONE) exit(0);
		mt_wait(run, seen, 100);
	}
}

static void lion(const struct mt_txn *t, const struct mt_tensor *tensor)
{
	const struct mt_unit *unit = mt_unit(run, tensor->unit);
	float *w = (float *)mt_at(run, unit->w) + tensor->off, *m = (float *)mt_at(run, unit->m) + tensor->off;
	const float *g = (const float *)mt_at(run, unit->g[0]) + tensor->off;
	double decay = tensor->decay ? t->decay : 0;
	for (uint64_t i = 0; i < tensor->n; i++) {
		double c = t->beta1 * m[i] + (1 - t->beta1) * g[i];
		w[i] = (float)(w[i] - t->lr * ((c > 0) - (c < 0) + decay * w[i]));
		m[i] = (float)(t->beta2 * m[i] + (1 - t->beta2) * g[i]);
	}
}

static void apply(const struct mt_txn *t)
{
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) {
		wait_saver(u);
		must(mt_stage_check(run));
		const struct mt_unit *unit = mt_unit(run, u);
		for (uint32_t i = 0; !t->skipped && i < unit->tensors; i++) lion(t, mt_tensor(run, unit->first_tensor + i));
		if (!mt_publish(run, u, t->step)) must(mt_stage_check(run));
	}
	if (!t->save) return;
	wait_saver(mt_control(run)->n_units);
	if (!mt_snap_pin(run, t->step, t->t, &t->position)) must(mt_stage_check(run));
}

/* All of the attempt is here: writes the outcome, changes the word, applies the step. If an abort came first, the word
 * has another attempt, and all begins again. */
static void commit(uint32_t k, uint64_t word)
{
	struct mt_txn *t = mt_txn(run, k);
	bool train = t->kind == MT_TRAIN;
	t->norm = train ? gradient_norm() : NAN;
	t->skipped = train && (!t->targets || !isfinite(t->norm));
	for (uint32_t i = 0; train && i < t->micros; i++) t->skipped |= t->losses[i].nonfinite != 0;
	t->t = mt_txn(run, k - 1)->t + (train && !t->skipped); /* whatever k - 1 was, its record has the counter */
	t->clip_factor = 1;
	if (train)
		mt_control(run)->hyper[t->step & 1] = (struct mt_hyper){.step = t->step,
			.lr = t->lr,
			.beta1 = t->beta1,
			.beta2 = t->beta2,
			.eps = t->eps,
			.decay = t->decay,
			.targets = t->targets,
			.micros = t->micros};
	uint64_t decided = mt_word(k, mt_word_attempt(word), !train ? MT_DONE : t->skipped ? MT_SKIP : MT_APPLY);
	if (!mt_txn_cas(run, k, word, decided) || !train) return;
	apply(t);
	mt_txn_cas(run, k, decided, mt_word(k, mt_word_attempt(word), MT_DONE));
}

int main(int argc, char **argv)
{
	struct mt_ring *ring;
	uint64_t seen_word = 0, left = 0;
	signal(SIGTERM, on_signal);
	if (argc != 2) must(mt_fail(MT_EX_USAGE, "usage: lion RUN"));
	must(mt_run_attach(&run, argv[1], MT_RUN_RINGS | MT_RUN_WEIGHTS, 10, &stop));
	if (mt_control(run)->dtype != MT_FP32 || mt_control(run)->grad != MT_FP32)
		must(mt_fail(MT_EX_CONFIG, "run '%s' is not fp32 with fp32 gradients", argv[1]));
	must(mt_stage_claim(run, MT_OPTIM, NULL));
	must(mt_ring_open(run, "grad.0", &ring));
	while (!stop && mt_run_state(run) != MT_GONE) {
		must(mt_stage_check(run));
		must(mt_run_dirty(run));
		uint32_t seen = mt_event(run), k = mt_txn_newest(run);
		uint64_t word = mt_txn_word(run, k);
		if (k && (mt_word_phase(word) == MT_APPLY || mt_word_phase(word) == MT_SKIP)) {
			mt_run_set_state(run, MT_DIRTY); /* a lion before us died while it applied this step */
			continue;
		}
		bool open = k && mt_word_phase(word) == MT_ACCUMULATE;
		if (open && word != seen_word) {
			begin(mt_txn(run, k));
			left = expected(mt_txn(run, k));
			seen_word = word;
		}
		if (open && accumulate(ring, word, &left)) commit(k, word);
		else mt_wait(run, seen, 100);
	}
	mt_run_close(run);
	return 0;
}
