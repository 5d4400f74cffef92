/* answers.c: what the mt-streams answer: the losses of micro-batches, and the log-probabilities of their positions.
 *
 * mt-score has mt-optim's slot, too, on a second handle of the run: so it is the consumer of the rings `grad.I`, and
 * commits its evaluations itself. Of a micro, the loss comes first, then its positions in ascending order, all from one
 * mt-stream. When a stage dies, a new attempt begins, and all answers come again. */
#include <math.h>
#include <stdio.h>

#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/step.h"
#include "mt/txn.h"
#include "score.h"

static struct {
	struct mt_run *run;
	struct mt_ring *grad[MT_STREAMS];
	uint32_t streams;
	uint64_t word; /* of the attempt that the rest is of; 0: of none */
	/* positions of each micro that have come: their log-probabilities, their most likely tokens */
	uint64_t done[2][MT_MICROS];
	uint64_t all, left; /* of all micros, positions and losses; those that have not come */
} got;

void answers_open(const struct options *o, uint32_t top)
{
	mt_must(mt_run_attach(&got.run, o->run, MT_RUN_RINGS, o->wait, &mt_stopping));
	mt_must(mt_stage_claim(got.run, MT_OPTIM, NULL));
	mt_stage_activity(got.run, MT_ACT_WAIT_GRADS, 0);
	got.streams = mt_streams(got.run);
	for (uint32_t i = 0; i < got.streams; i++) {
		char name[32];
		snprintf(name, sizeof name, "grad.%u", i);
		mt_must(mt_ring_open(got.run, name, &got.grad[i]));
		if (4 * MT_TEACHER_WORDS(top) > mt_ring_block(got.grad[i]))
			mt_die(MT_EX_CONFIG, "--top %u: a position's tokens do not fit a block of ring %s, of %zu bytes", top, name,
				mt_ring_block(got.grad[i]));
	}
}

uint32_t answers_wake(void)
{
	uint32_t bits = 0;
	for (uint32_t i = 0; i < got.streams; i++) bits |= mt_ring_on_messages(got.grad[i]);
	return bits;
}

void answers_leave(void)
{
	if (got.run) mt_stage_release(got.run);
}

static uint64_t positions_of(const struct driver *d, const struct part *p, uint32_t micro)
{
	uint64_t first = micro * d->o->micro, left = p->in.source.rows - first;
	return (left < d->o->micro ? left : d->o->micro) * p->in.seq;
}

static void begin(uint64_t word, uint32_t k, const struct part *p)
{
	struct mt_txn *t = mt_txn(got.run, k);
	got.word = word;
	got.left = got.all = p->in.source.rows * p->in.seq * (p->top ? 2 : 1) + t->micros;
	for (uint32_t i = 0; i < t->micros; i++) {
		got.done[0][i] = got.done[1][i] = 0;
		t->losses[i] = (struct mt_loss){0};
	}
}

static _Noreturn void bad(const struct mt_msg *m, const char *why)
{
	mt_die(MT_EX_BUG, "message of txn %u, micro-batch %u, kind %u: %s", m->k, m->micro, m->kind, why);
}

static void take(struct driver *d, const struct mt_msg *m, const void *block, struct part *p)
{
	struct mt_loss *loss = &mt_txn(got.run, m->k)->losses[m->micro];
	bool top = m->kind == MT_MSG_TOP;
	uint64_t *done = &got.done[top][m->micro], first = m->micro * d->o->micro * p->in.seq;
	uint64_t each = top ? 4 * MT_TEACHER_WORDS(p->top) : sizeof *p->logp;
	char *to = top ? (char *)p->teacher : (char *)p->logp;
	if (m->kind == MT_MSG_LOSS) {
		if (loss->entered) bad(m, "a loss that came before");
		*loss = (struct mt_loss){.sum = m->loss.sum,
			.targets = m->loss.targets,
			.entered = 1,
			.nonfinite = m->loss.nonfinite || !isfinite(m->loss.sum)};
		got.left--;
		return;
	}
	if ((m->kind != MT_MSG_SCORE && (!top || !each)) || m->score.off != *done ||
		m->score.n > positions_of(d, p, m->micro) - *done || m->score.n * each > mt_ring_block(got.grad[0]))
		bad(m, "not the micro-batch's next log-probabilities");
	memcpy(to + (first + *done) * each, block, m->score.n * each);
	*done += m->score.n;
	got.left -= m->score.n;
}

double answers_share(void) { return got.all ? 1 - (double)got.left / (double)got.all : 0; }

bool answers_take(struct driver *d, uint32_t k, struct part *p)
{
	uint64_t word = mt_txn_word(got.run, k);
	if (mt_word_k(word) != k || mt_word_phase(word) != MT_ACCUMULATE) return false;
	if (word != got.word) begin(word, k, p);
	for (uint32_t i = 0; i < got.streams; i++) {
		struct mt_msg m;
		const void *block;
		while (mt_must(mt_grad_peek(got.grad[i], word, &m, &block))) {
			take(d, &m, block, p);
			mt_ring_pop(got.grad[i]);
		}
	}
	return !got.left && mt_txn_commit(got.run, word, MT_DONE, NAN, 1);
}
