/* The transaction word and the unit versions under adversarial schedules, with threads.
 *
 * txn: a driver opens transactions; a committer and two aborters race for each word. Exactly one of commit and abort
 * must succeed each time; data written before a word must be visible after reading the word; an attempt is used once.
 * versions: an updater rewrites units and publishes; readers that acquire version v must find at least v everywhere.
 * usage: shm-txn txn|versions [SEED [COUNT]] */
#include <pthread.h>

#include "shm-common.h"

static struct mt_run *run;
static uint64_t count;
static _Atomic bool over;
static _Atomic uint64_t aborts;

/* ---- txn */

static void open_txn(uint32_t k, uint64_t *seed)
{
	struct mt_txn *t = mt_txn(run, k);
	uint64_t before = mt_txn_word(run, k);
	CHECK(mt_word_phase(before) == MT_LOGGED || mt_word_phase(before) == MT_CLOSED, "record of %u is in use", k);
	t->step = k; /* plain stores: the word's release covers them */
	t->lr = (double)k / 7;
	stumble(seed);
	CHECK(mt_txn_cas(run, k, before, mt_word(k, mt_attempt_next(run), MT_ACCUMULATE)), "opening %u lost", k);
}

static void *driver(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	for (uint32_t k = 1; k <= count; k++) {
		open_txn(k, &seed);
		for (;;) {
			uint32_t seen = mt_event(run);
			uint64_t w = mt_txn_word(run, k);
			if (mt_word_phase(w) == MT_DONE) {
				const struct mt_txn *t = mt_txn(run, k);
				CHECK(t->t == k, "outcome of %u is not there", k);
				CHECK(t->source == mt_word_attempt(w), "%u was committed under try %llu, its word says %u", k,
					(unsigned long long)t->source, mt_word_attempt(w));
				CHECK(mt_txn_cas(run, k, w, mt_word(k, mt_word_attempt(w), MT_LOGGED)), "logging %u lost", k);
				break;
			}
			mt_wait(run, seen, 100);
		}
	}
	atomic_store(&over, true);
	mt_wake(run);
	return NULL;
}

static void *committer(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	while (!atomic_load(&over)) {
		uint32_t seen = mt_event(run), k = mt_txn_newest(run);
		uint64_t w = mt_txn_word(run, k);
		if (!k || mt_word_phase(w) != MT_ACCUMULATE || mt_word_k(w) != k) {
			mt_wait(run, seen, 1);
			continue;
		}
		struct mt_txn *t = mt_txn(run, k);
		CHECK(t->step == k && t->lr == (double)k / 7, "what opened %u is not there", k);
		stumble(&seed);
		t->t = k;
		t->source = mt_word_attempt(w); /* in the record: this attempt's decision */
		uint64_t apply = mt_word(k, mt_word_attempt(w), MT_APPLY);
		if (!mt_txn_cas(run, k, w, apply)) continue; /* the loser accepts */
		stumble(&seed);
		CHECK(mt_txn_cas(run, k, apply, mt_word(k, mt_word_attempt(w), MT_DONE)),
			"a committed txn was changed by another");
	}
	return NULL;
}

static void *aborter(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	while (!atomic_load(&over)) {
		uint32_t k = mt_txn_newest(run);
		uint64_t w = mt_txn_word(run, k);
		stumble(&seed);
		if (splitmix_next(&seed) % 4 == 0 && mt_word_phase(w) == MT_ACCUMULATE && mt_word_k(w) == k &&
			mt_txn_cas(run, k, w, mt_word(k, mt_attempt_next(run), MT_ACCUMULATE)))
			atomic_fetch_add(&aborts, 1);
	}
	return NULL;
}

/* ---- versions */

static void *updater(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	uint32_t units = mt_control(run)->n_units;
	for (uint64_t v = 1; v <= count; v++)
		for (uint32_t u = 0; u < units; u++) {
			struct mt_unit *t = mt_unit(run, u);
			_Atomic uint16_t *w = mt_at(run, t->w);
			for (uint64_t i = 0; i < t->elems; i += 97) atomic_store_explicit(&w[i], (uint16_t)v, memory_order_relaxed);
			stumble(&seed);
			mt_publish(run, u, v);
		}
	atomic_store(&over, true);
	mt_wake(run);
	return NULL;
}

static void *reader(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg, want = 1;
	uint32_t units = mt_control(run)->n_units;
	while (!atomic_load(&over) && want <= count) {
		for (uint32_t u = 0; u < units && !atomic_load(&over);) {
			uint32_t seen = mt_event(run);
			uint64_t v = mt_version(run, u);
			if (v < want) {
				mt_wait(run, seen, 50);
				continue;
			}
			struct mt_unit *t = mt_unit(run, u);
			_Atomic uint16_t *w = mt_at(run, t->w);
			stumble(&seed);
			for (uint64_t i = 0; i < t->elems; i += 97)
				CHECK(atomic_load_explicit(&w[i], memory_order_relaxed) >= (uint16_t)v,
					"unit %u announced version %llu and holds older", u, (unsigned long long)v);
			u++;
		}
		want++;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "txn";
	uint64_t seed = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 2654435761u + 1;
	count = argc > 3 ? strtoull(argv[3], NULL, 10) : 2000;
	bool txn = !strcmp(what, "txn");
	void *(*const role[4])(
		void *) = {txn ? driver : updater, txn ? committer : reader, txn ? aborter : reader, txn ? aborter : reader};
	pthread_t t[4];
	run = tiny_run("txn");
	for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, role[i], (void *)(uintptr_t)(seed + (uint64_t)i * 7919));
	for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
	if (txn) {
		CHECK(atomic_load(&aborts) > 0, "no abort ever won: the schedule tested nothing");
		printf("%llu aborts\n", (unsigned long long)atomic_load(&aborts));
	}
	mt_run_close(run);
	return 0;
}
