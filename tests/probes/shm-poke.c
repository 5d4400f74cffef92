/* shm-poke: set a run's words to values that no stage would set.
 *
 *     shm-poke RUN attempts N       the attempt counter
 *     shm-poke RUN k K              the newest transaction, logged, has number K
 *     shm-poke RUN generation S N   slot S is free, its last holder was generation N, and a death of N was handled
 *                                   65536 holders ago
 *     shm-poke RUN word I HEX       the word of record I
 *     shm-poke RUN slot S HEX       the word of slot S
 *     shm-poke RUN choices cycle|outside        a choice table with a cycle, or with an offset outside it
 *     shm-poke RUN layout unit|tensor|geometry|types   a table that does not match the geometry
 *     shm-poke RUN half U           unit U as mt-optim --update early leaves it before the commit
 *     shm-poke RUN ring|file|fill   at the end of stdin, give the run a ring of its own, or a file to keep, or begin to
 *                                   fill it
 *     shm-poke RUN watch            until SIGTERM: versions and the step never go back, rings stay valid; prints how
 *                                   many changes it saw
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/choices.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/txn.h"
#include "mt/wait.h"

static uint64_t number(const char *s) { return strtoull(s ? s : "0", NULL, 0); }

static void choices(struct mt_run *run, bool cycle)
{
	char value[8] = "value";
	const struct mt_choice *e = NULL, *last = NULL;
	for (const char *key = "a"; *key < 'd'; key = *key == 'a' ? "b" : *key == 'b' ? "c" : "d")
		mt_must(mt_choice_enter(run, key, value, sizeof value));
	mt_must(mt_run_check(run));
	while ((e = mt_choice_next(run, e))) last = e;
	atomic_store(&((struct mt_choice *)(uintptr_t)last)->next, cycle ? 1 : MT_CHOICES + 7);
}

static void layout(struct mt_run *run, const char *what)
{
	if (!strcmp(what, "unit")) mt_unit(run, 1)->m += 64;
	else if (!strcmp(what, "tensor")) mt_tensor(run, 2)->off -= MT_GROUP;
	else if (!strcmp(what, "geometry")) mt_control(run)->geo.hidden *= 2;
	else mt_control(run)->dtype = 7;
}

/* ---- watching */

enum { WORDS = 4096 };
static uint64_t was[WORDS], changes;

static void see(const char *what, uint32_t which, uint32_t i, uint64_t now)
{
	if (now == was[i]) return;
	if (now < was[i])
		mt_die(1, "%s %u went back from %llu to %llu", what, which, (unsigned long long)was[i],
			(unsigned long long)now);
	was[i] = now;
	changes++;
}

static void watch(struct mt_run *run)
{
	struct mt_ring *ring[2 * MT_STREAMS];
	uint32_t rings = 2 * mt_streams(run);
	for (uint32_t i = 0; i < rings; i++) {
		char name[32];
		snprintf(name, sizeof name, "%s.%u", i % 2 ? "grad" : "batch", i / 2);
		mt_must(mt_ring_open(run, name, &ring[i]));
	}
	mt_signals(false);
	puts("watching");
	fflush(stdout);
	while (!mt_stopping && mt_run_state(run) != MT_GONE) {
		uint32_t seen = mt_event(run), n = 0;
		for (uint32_t u = 0; u < mt_control(run)->n_units; u++) see("the version of unit", u, n++, mt_version(run, u));
		see("the step", 0, n++, mt_run_step(run));
		for (uint32_t i = 0; i < rings; i++) {
			uint64_t used = mt_ring_used(ring[i]);
			if (used > 1 << 20) mt_die(1, "ring %u holds %llu messages", i, (unsigned long long)used);
		}
		mt_wait(run, seen, 1);
	}
	printf("%llu changes\n", (unsigned long long)changes);
}

static void give(struct mt_run *run, const char *what)
{
	const struct mt_file file = {.name = "tokenizer.json", .bytes = 4};
	const void *data = "none";
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF) continue;
	if (!strcmp(what, "ring")) mt_must(mt_ring_make(run, "own", "batch.0"));
	else if (!strcmp(what, "file")) mt_must(mt_files_put(run, &file, &data, 1));
	else mt_must(mt_fill_claim(run));
}

int main(int argc, char **argv)
{
	struct mt_run *run;
	if (argc < 3) mt_die(MT_EX_USAGE, "usage: shm-poke RUN WHAT [...]");
	mt_must(mt_run_open(&run, argv[1], MT_RUN_RINGS));
	struct mt_control *c = mt_control(run);
	const char *what = argv[2];
	uint64_t a = number(argv[3]), b = argc > 4 ? strtoull(argv[4], NULL, 0) : 0;
	if (!strcmp(what, "attempts")) atomic_store(&c->attempts, a);
	else if (!strcmp(what, "k")) {
		struct mt_txn *from = mt_txn(run, mt_txn_newest(run)), *to = mt_txn(run, (uint32_t)a), copy = *from;
		atomic_store(&mt_txn(run, 0)->word, 0);
		atomic_store(&mt_txn(run, 1)->word, 0);
		*to = copy;
		atomic_store(&to->word, mt_word((uint32_t)a, 1, MT_LOGGED));
	} else if (!strcmp(what, "generation")) {
		atomic_store(&c->slots[a].word, b - 1);
		atomic_store(&c->slots[a].aborted, (uint32_t)b + 1);
	} else if (!strcmp(what, "slot")) atomic_store(&c->slots[a].word, b);
	else if (!strcmp(what, "word")) atomic_store(&c->txn[a].word, b);
	else if (!strcmp(what, "half"))
		atomic_store(&mt_unit(run, (uint32_t)a)->applied, (mt_version(run, (uint32_t)a) + 1) << 2 | 2);
	else if (!strcmp(what, "choices")) choices(run, !strcmp(argv[3], "cycle"));
	else if (!strcmp(what, "layout")) layout(run, argv[3]);
	else if (!strcmp(what, "watch")) watch(run);
	else if (!strcmp(what, "ring") || !strcmp(what, "file") || !strcmp(what, "fill")) give(run, what);
	else mt_die(MT_EX_USAGE, "%s: no such thing to poke", what);
	mt_run_close(run);
	return 0;
}
