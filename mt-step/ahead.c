/* ahead.c: a packing thread and the driver exchange two sets of rows. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "ahead.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/wait.h"

#define SETS 2

struct ahead {
	struct mt_run *run;
	const struct options *o;
	struct record_reader in;
	struct packer packer;
	struct mt_position from;
	uint64_t steps;
	bool look;
	int bad; /* error found while looking ahead: returned in place of the rows behind it */
	struct rows sets[SETS];
	pthread_mutex_t lock;
	pthread_cond_t room;
	uint64_t made, taken, back; /* sets packed, handed out, given back: back <= taken <= made <= back + SETS */
};

static int pack_step(struct ahead *a, struct rows *r)
{
	uint64_t seq = a->o->seq, before = a->packer.tokens;
	struct loss_counts counts = {0};
	if (a->bad) return a->bad; /* its message still stands in this thread */
	r->n = 0;
	r->last = r->weighted = false;
	while (r->n < a->o->batch) {
		uint64_t at = r->n * seq;
		a->packer.weights = r->weights + at;
		if (r->documents) a->packer.in_row = r->documents + at;
		if (r->documents) a->packer.old = r->old + at;
		if (r->teacher) a->packer.teacher = r->teacher + at * MT_TEACHER_WORDS(a->packer.vocab.top);
		int rc = packer_row(&a->packer, r->tokens + at, r->targets + at, r->starts + at);
		if (rc < 0) return rc;
		if (rc == 0) break;
		r->weighted |= a->packer.weighted;
		loss_count(&counts, r->targets + at, (uint32_t)seq, a->packer.in_row, a->packer.n_in_row);
		if (r->documents) r->n_documents[r->n] = a->packer.n_in_row;
		r->n++;
	}
	r->n_targets = counts.targets;
	r->objective = loss_objective(&a->o->objective, &counts, counts.targets);
	r->n_processed = a->packer.tokens - before;
	if (r->n < a->o->batch) r->last = true;
	else if (a->look) {
		int rc = packer_more(&a->packer);
		r->last = rc == 0;
		if (rc < 0) a->bad = rc;
	}
	a->from.tokens += r->n_targets;
	a->from.processed += r->n_processed;
	a->from.batch = (uint32_t)a->o->batch;
	packer_position(&a->packer, &a->from);
	r->records = a->packer.documents;
	r->groups_dropped = a->packer.groups_dropped;
	r->cut_documents = a->o->pack == PACK_CONCAT ? 0 : a->packer.longer - r->groups_dropped;
	r->position = a->from;
	return r->n ? 0 : packer_check_any(&a->packer);
}

static void *work(void *arg)
{
	struct ahead *a = arg;
	bool consumed = a->from.records || a->from.offset;
	int rc = consumed ? packer_skip(&a->packer, &a->from) : 0;
	for (bool more = true; more;) {
		pthread_mutex_lock(&a->lock);
		while (a->made - a->back == SETS) pthread_cond_wait(&a->room, &a->lock);
		pthread_mutex_unlock(&a->lock);

		struct rows *r = &a->sets[a->made % SETS];
		if (rc == 0) rc = pack_step(a, r);
		r->rc = rc;
		if (rc < 0) snprintf(r->error, sizeof r->error, "%s", mt_errmsg());
		more = rc == 0 && r->n && a->made + 1 < a->steps;

		pthread_mutex_lock(&a->lock);
		a->made++;
		pthread_mutex_unlock(&a->lock);
		mt_wake_on(a->run, MT_ON_STAGE);
	}
	return NULL;
}

static int make_sets(struct ahead *a)
{
	uint64_t n = a->o->batch * a->o->seq, words = MT_TEACHER_WORDS(mt_control(a->run)->top);
	bool teacher = mt_losses[a->o->objective.kind].needs & MT_PART_TEACHER;
	for (int i = 0; i < SETS; i++) {
		struct rows *r = &a->sets[i];
		r->tokens = calloc(n * 3, sizeof *r->tokens);
		r->weights = calloc(n, sizeof *r->weights);
		if (!r->tokens || !r->weights)
			return mt_fail(MT_EX_NOMEM, "no memory for the rows of a step: %llu bytes", (unsigned long long)n * 16);
		r->targets = r->tokens + n;
		r->starts = r->targets + n;
		if (a->o->objective.kind == MT_NLL) continue;
		r->old = calloc(n, sizeof *r->old);
		if (teacher) r->teacher = calloc(n * words, sizeof *r->teacher);
		r->documents = calloc(n, sizeof *r->documents);
		r->n_documents = calloc(a->o->batch, sizeof *r->n_documents);
		if (!r->old || !r->documents || !r->n_documents || (teacher && !r->teacher))
			return mt_fail(MT_EX_NOMEM, "no memory for the documents of a step: %llu bytes",
				(unsigned long long)n * (20 + 4 * words));
	}
	return 0;
}

int ahead_start(struct ahead **out, struct mt_run *run, const struct options *o, int fd, const struct mt_position *from,
	uint64_t steps, bool look)
{
	struct ahead *a = calloc(1, sizeof *a);
	if (!a) return mt_fail(MT_EX_NOMEM, "no memory");
	a->run = run;
	a->o = o;
	a->from = *from;
	a->steps = steps;
	a->look = look;
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->room, NULL);
	struct vocabulary vocab = vocabulary_of_run(o, run);
	int rc = make_sets(a);
	if (!rc) rc = record_open(&a->in, fd, "stdin");
	if (!rc) rc = packer_open(&a->packer, &a->in, o->pack, (uint32_t)o->seq, &vocab);
	if (rc) return rc;
	a->packer.loss = &o->objective;

	pthread_t thread;
	sigset_t all, old; /* signals are for the driver, which sleeps on the doorbell */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int e = pthread_create(&thread, NULL, work, a);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (e) return mt_fail(MT_EX_NOMEM, "thread: %s", strerror(e));
	pthread_detach(thread);
	*out = a;
	return 0;
}

struct rows *ahead_take(struct ahead *a)
{
	pthread_mutex_lock(&a->lock);
	struct rows *r = a->taken < a->made ? &a->sets[a->taken++ % SETS] : NULL;
	pthread_mutex_unlock(&a->lock);
	return r;
}

void ahead_give_back(struct ahead *a)
{
	pthread_mutex_lock(&a->lock);
	MT_ASSERT(a->back < a->taken);
	a->back++;
	pthread_cond_signal(&a->room);
	pthread_mutex_unlock(&a->lock);
}
