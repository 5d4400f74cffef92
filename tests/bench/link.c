/* link.c: bytes/s that mt-link carries, and the CPU time that it takes for them, as a line of JSON.
 * usage: link RUN-OF-NODE-0 RUN-OF-NODE-1 CPU CPU MiB [GB/s]
 * The nodes are of this machine, and have mt-link alone. This program opens a transaction in node 0 and takes gradients
 * from a ring there, as mt-optim does; a child gives pieces to node 1's mt-link, as an mt-stream does: pieces that node
 * 0 owns, so all of them go by MPI. Neither writes nor reads pieces: that would be measured, too. Each is on the core
 * that is named. With GB/s, a piece is given no sooner than at that rate. The first 64 MiB are not counted.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/create.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

enum { WARM = 64 << 20 };

static void pin(const char *cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(atoi(cpu), &one);
	(void)sched_setaffinity(0, sizeof one, &one);
}

static struct mt_ring *ring_of(struct mt_run *run, const char *what)
{
	char name[32];
	struct mt_ring *ring;
	snprintf(name, sizeof name, "%s.%u", what, mt_default_streams(2)); /* of node 1's first mt-stream */
	mt_must(mt_ring_open(run, name, &ring));
	return ring;
}

/* CPU time of a process: what the scheduler has counted */
static double cpu_seconds(int pid)
{
	char path[64];
	double ns = 0;
	snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
	FILE *f = fopen(path, "r");
	if (!f || fscanf(f, "%lf", &ns) != 1) mt_die(MT_EX_IO, "%s: no CPU time", path);
	fclose(f);
	return ns * 1e-9;
}

static uint32_t largest(const struct mt_run *run)
{
	uint32_t most = 0;
	for (uint32_t u = 1; u < mt_control(run)->n_units; u++)
		if (mt_unit(run, u)->elems > mt_unit(run, most)->elems) most = u;
	return most;
}

/* Node 1: as many pieces as wanted, once the transaction is open there */
static void give(const char *name, const char *cpu, uint64_t pieces, double rate)
{
	struct mt_run *run;
	pin(cpu);
	mt_must(mt_run_open(&run, name, MT_RUN_RINGS));
	struct mt_ring *ring = ring_of(run, "link");
	uint32_t k, seen;
	while ((seen = mt_event(run), mt_word_phase(mt_txn_word(run, k = mt_txn_newest(run))) != MT_ACCUMULATE))
		mt_wait(run, seen, 100);
	uint32_t unit = largest(run);
	uint64_t n = mt_control(run)->piece_elems, room = mt_part_of(mt_unit(run, unit), 0, 2).end / n;
	if (!room) mt_die(MT_EX_CONFIG, "half of the largest unit is less than a piece");
	struct mt_msg m = {.k = k,
		.attempt = mt_word_attempt(mt_txn_word(run, k)),
		.kind = MT_MSG_GRAD,
		.txn_kind = MT_TRAIN,
		.step = mt_txn(run, k)->step,
		.grad = {.unit = unit, .n = n}};
	double began = mt_now();
	for (uint64_t i = 0; i < pieces; i++) {
		double wait = rate > 0 ? began + (double)(i * mt_ring_block(ring)) / rate - mt_now() : 0;
		if (wait > 0) usleep((useconds_t)(wait * 1e6));
		while ((seen = mt_event(run), !mt_ring_reserve(ring))) mt_wait_on(run, seen, 100, mt_ring_on_room(ring));
		m.grad.off = i % room * n;
		mt_ring_push(ring, &m);
	}
	mt_run_close(run);
}

static void open_txn(struct mt_run *run)
{
	uint64_t before = mt_txn_word(run, 1);
	mt_must(mt_stage_claim(run, MT_STEP, NULL));
	mt_txn(run, 1)->step = 1;
	mt_txn(run, 1)->kind = MT_TRAIN;
	mt_txn(run, 1)->micros = 1;
	if (!mt_txn_cas(run, 1, before, mt_word(1, mt_attempt_next(run), MT_ACCUMULATE)))
		mt_die(MT_EX_BUSY, "a transaction is open");
}

/* Node 0: take `pieces` pieces */
static void take(struct mt_run *run, struct mt_ring *ring, uint64_t pieces)
{
	struct mt_msg m;
	const void *block;
	for (uint64_t n; pieces; pieces -= n) {
		uint32_t seen = mt_event(run);
		for (n = 0; n < pieces && mt_ring_peek(ring, n, &m, &block);) n++;
		mt_ring_pop_many(ring, n);
		if (!n) mt_wait_on(run, seen, 100, mt_ring_on_messages(ring));
	}
}

int main(int argc, char **argv)
{
	struct mt_run *run, *other;
	if (argc < 6) mt_die(MT_EX_USAGE, "usage: link RUN-OF-NODE-0 RUN-OF-NODE-1 CPU CPU MiB [GB/s]");
	mt_must(mt_run_open(&run, argv[1], MT_RUN_RINGS));
	mt_must(mt_run_open(&other, argv[2], MT_RUN_CONTROL | MT_RUN_READONLY));
	int links[2] = {mt_stage_pid(run, MT_LINK), mt_stage_pid(other, MT_LINK)};
	struct mt_ring *ring = ring_of(run, "grad");
	uint64_t piece = mt_control(run)->piece_elems * 4, pieces = strtoull(argv[5], NULL, 10) * (1 << 20) / piece;
	double rate = argc > 6 ? strtod(argv[6], NULL) * 1e9 : 0;
	pid_t child = fork();
	if (!child) {
		give(argv[2], argv[4], pieces + WARM / piece, rate);
		_exit(0);
	}
	pin(argv[3]);
	open_txn(run);
	take(run, ring, WARM / piece);
	double from = mt_now(), cpu = cpu_seconds(links[0]) + cpu_seconds(links[1]);
	take(run, ring, pieces);
	double seconds = mt_now() - from, bytes = (double)(pieces * piece);
	cpu = cpu_seconds(links[0]) + cpu_seconds(links[1]) - cpu;
	uint64_t word = mt_txn_word(run, 1);
	mt_txn_cas(run, 1, word, mt_word(1, mt_word_attempt(word), MT_CLOSED));
	waitpid(child, NULL, 0);
	mt_run_close(run);
	printf("{\"gb_per_s\":%.4f,\"cpu_s_per_gb\":%.5f,\"cpu_share\":%.5f,\"piece\":%llu}\n", bytes * 1e-9 / seconds,
		cpu / bytes * 1e9, cpu / seconds, (unsigned long long)piece);
	return 0;
}
