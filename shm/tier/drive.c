/* drive.c: threads that read and write. Each directory has as many readers as writers, so that neither waits for the
 * other; whoever is free takes the next transfer of the oldest tile that has one. One lock covers all jobs: a transfer
 * takes a thousand times as long as what is done under it. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/stage.h"
#include "mt/wait.h"
#include "tier.h"

struct crowd { /* the readers, or the writers, of a directory */
	struct drive *drive;
	uint32_t dir;
	bool write;
	pthread_cond_t more;
};

struct drive {
	struct tier *tier;
	pthread_mutex_t lock; /* of all below, and of the jobs that are given and not done */
	bool stop;
	struct crowd crowds[MT_TIER_DIRS][2];
	pthread_t *threads;
	uint32_t n_threads;
	uint32_t under_way; /* transfers, of all jobs */
	double busy_from;   /* since when there are any */
	double busy;        /* seconds before that, not yet reported */
};

/* The next transfer of the oldest job of this crowd that has one */
static struct job *take(const struct crowd *c, uint32_t *transfer)
{
	struct tier *t = c->drive->tier;
	struct job *oldest = NULL;
	for (uint32_t i = 0; i < t->control->tier.slots; i++) {
		struct job *j = &t->jobs[i];
		bool open = j->step >= JOB_OPEN && j->step <= JOB_END && j->write == c->write && j->tile.dir == c->dir;
		if (!open || j->fault.what || j->next == j->transfers || (oldest && oldest->q < j->q)) continue;
		if (j->wait_until && mt_now() < j->wait_until) continue;
		oldest = j;
	}
	if (!oldest) return NULL;
	oldest->wait_until = 0;
	*transfer = oldest->next++;
	return oldest;
}

static void begun(struct drive *d, struct job *j)
{
	double now = mt_now();
	if (!d->under_way++) d->busy_from = now;
	j->under_way++;
	j->moved = now;
}

/* true: mt-tier's main thread has something to do */
static bool ended(struct crowd *c, struct job *j, const struct fault *f)
{
	struct drive *d = c->drive;
	double now = mt_now();
	if (!--d->under_way) d->busy += now - d->busy_from;
	j->moved = now;
	if (f->what && !j->fault.what) j->fault = *f;
	if (--j->under_way || (j->next < j->transfers && !j->fault.what)) return false;
	job_next(d->tier, j);
	if (j->step == JOB_MOVE) pthread_cond_broadcast(&c->more);
	else pthread_cond_signal(&c->more);
	return j->step == JOB_DONE || j->step == JOB_FAILED;
}

static void *work(void *arg)
{
	struct crowd *c = arg;
	struct drive *d = c->drive;
	pthread_mutex_lock(&d->lock);
	while (!d->stop) {
		uint32_t transfer;
		struct job *j = take(c, &transfer);
		if (!j) {
			pthread_cond_wait(&c->more, &d->lock);
			continue;
		}
		begun(d, j);
		pthread_mutex_unlock(&d->lock);
		struct fault f = job_transfer(d->tier, j, transfer);
		pthread_mutex_lock(&d->lock);
		if (!ended(c, j, &f)) continue;
		pthread_mutex_unlock(&d->lock);
		mt_wake_on(d->tier->run, MT_ON_STAGE);
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* Signals are for the main thread, but for faults in the run's memory. */
static bool start_threads(struct drive *d, uint32_t threads)
{
	sigset_t most, before;
	bool ok = true;
	sigfillset(&most);
	sigdelset(&most, SIGBUS);
	sigdelset(&most, SIGSEGV);
	pthread_sigmask(SIG_SETMASK, &most, &before);
	for (uint32_t dir = 0; dir < d->tier->control->tier.dirs; dir++)
		for (uint32_t i = 0; i < 2 * threads && ok; i++) {
			ok = !pthread_create(&d->threads[d->n_threads], NULL, work, &d->crowds[dir][i & 1]);
			d->n_threads += ok;
		}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return ok;
}

struct drive *drive_start(struct tier *t, uint32_t threads)
{
	struct drive *d = calloc(1, sizeof *d);
	if (!d) return NULL;
	d->tier = t;
	d->threads = calloc((size_t)t->control->tier.dirs * 2 * threads, sizeof *d->threads);
	pthread_mutex_init(&d->lock, NULL);
	for (uint32_t dir = 0; dir < t->control->tier.dirs; dir++)
		for (int w = 0; w < 2; w++) {
			d->crowds[dir][w] = (struct crowd){.drive = d, .dir = dir, .write = w};
			pthread_cond_init(&d->crowds[dir][w].more, NULL);
		}
	if (d->threads && start_threads(d, threads)) return d;
	drive_stop(d);
	return NULL;
}

static struct job *job_of(const struct drive *d, uint64_t q)
{
	return &d->tier->jobs[q % d->tier->control->tier.slots];
}

void drive_give(struct drive *d, uint64_t q, bool write)
{
	pthread_mutex_lock(&d->lock);
	struct job *j = job_of(d, q);
	MT_ASSERT(j->step == JOB_NONE);
	job_begin(d->tier, j, q, write);
	pthread_cond_signal(&d->crowds[j->tile.dir][write].more);
	pthread_mutex_unlock(&d->lock);
}

bool drive_done(struct drive *d, uint64_t q, bool write)
{
	pthread_mutex_lock(&d->lock);
	struct job *j = job_of(d, q);
	bool done = j->step == JOB_DONE && j->q == q && j->write == write;
	if (done) j->step = JOB_NONE;
	pthread_mutex_unlock(&d->lock);
	return done;
}

const struct job *drive_failed(struct drive *d)
{
	const struct job *failed = NULL;
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < d->tier->control->tier.slots && !failed; i++)
		if (d->tier->jobs[i].step == JOB_FAILED) failed = &d->tier->jobs[i];
	pthread_mutex_unlock(&d->lock);
	return failed;
}

bool drive_has_no_room(struct drive *d)
{
	bool waits = false;
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < d->tier->control->tier.slots; i++) waits |= d->tier->jobs[i].wait_until > 0;
	pthread_mutex_unlock(&d->lock);
	return waits;
}

void drive_poke(struct drive *d)
{
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < d->tier->control->tier.slots; i++) {
		struct job *j = &d->tier->jobs[i];
		if (j->wait_until) pthread_cond_signal(&d->crowds[j->tile.dir][j->write].more);
	}
	pthread_mutex_unlock(&d->lock);
}

void drive_stop(struct drive *d)
{
	pthread_mutex_lock(&d->lock);
	d->stop = true;
	for (uint32_t dir = 0; dir < d->tier->control->tier.dirs; dir++)
		for (int w = 0; w < 2; w++) pthread_cond_broadcast(&d->crowds[dir][w].more);
	pthread_mutex_unlock(&d->lock);
	for (uint32_t i = 0; i < d->n_threads; i++) pthread_join(d->threads[i], NULL);
	free(d->threads);
	free(d);
}

uint64_t drive_busy_ns(struct drive *d)
{
	double now = mt_now();
	pthread_mutex_lock(&d->lock);
	double busy = d->busy;
	if (d->under_way) {
		busy += now - d->busy_from;
		d->busy_from = now;
	}
	d->busy = 0;
	pthread_mutex_unlock(&d->lock);
	return busy > 0 ? (uint64_t)(busy * 1e9) : 0;
}

bool drive_hangs(struct drive *d, double seconds, char name[MT_TILE_NAME], double *since)
{
	double now = mt_now();
	*since = 0;
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < d->tier->control->tier.slots; i++) {
		const struct job *j = &d->tier->jobs[i];
		if (!j->under_way || now - j->moved < seconds || now - j->moved < *since) continue;
		*since = now - j->moved;
		memcpy(name, j->name, MT_TILE_NAME);
	}
	pthread_mutex_unlock(&d->lock);
	return *since > 0;
}
