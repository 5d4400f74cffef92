/* placement: on which NUMA nodes the pages of a run's arrays are, as move_pages(2) tells a process that did not make
 * them. It reads each page first, so that the page is in its own tables.
 * usage: placement RUN even NODES: the pages of each array are spread over nodes 0 to NODES - 1, one by one
 *        placement RUN node N: all pages of all arrays are on node N
 * It prints a line an array, and exits with 1 if one of them is elsewhere. */
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"

enum { NODES = 64 };

static void must(int rc)
{
	if (rc >= 0) return;
	fprintf(stderr, "placement: %s\n", mt_errmsg());
	exit(-rc);
}

/* Pages of bytes at p by node; false: the kernel does not know one of them */
static bool count(const char *p, uint64_t bytes, uint64_t on[NODES])
{
	uint64_t size = (uint64_t)sysconf(_SC_PAGESIZE), n = (bytes + size - 1) / size;
	memset(on, 0, NODES * sizeof *on);
	for (uint64_t i = 0; i < n; i++) {
		void *page = (void *)(p + i * size);
		int node = -1;
		(void)*(volatile const char *)page;
		if (move_pages(0, 1, &page, NULL, &node, 0) || node < 0 || node >= NODES) return false;
		on[node]++;
	}
	return true;
}

static bool even(const uint64_t on[NODES], int nodes)
{
	uint64_t least = on[0], most = on[0];
	for (int i = 0; i < NODES; i++) {
		if (i >= nodes && on[i]) return false;
		if (i < nodes && on[i] < least) least = on[i];
		if (i < nodes && on[i] > most) most = on[i];
	}
	return most - least <= 1;
}

static bool only(const uint64_t on[NODES], int node)
{
	for (int i = 0; i < NODES; i++)
		if (i != node && on[i]) return false;
	return on[node] > 0;
}

int main(int argc, char **argv)
{
	struct mt_run *run;
	bool good = true;
	if (argc != 4) must(mt_fail(MT_EX_USAGE, "usage: placement RUN even NODES | RUN node N"));
	must(mt_run_open(&run, argv[1], MT_RUN_WEIGHTS | MT_RUN_READONLY));
	int wanted = atoi(argv[3]);
	bool fp32 = mt_control(run)->dtype == MT_FP32;
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		const struct {
			const char *name;
			uint64_t off, size;
		} arrays[] = {{"w", unit->w, fp32 ? 4 : 2}, {"lo", unit->lo, 2}, {"m", unit->m, 4}, {"v", unit->v, 4},
			{"g", unit->g[0], mt_control(run)->grad == MT_FP32 ? 4 : 2}};
		for (size_t a = 0; a < sizeof arrays / sizeof arrays[0]; a++) {
			uint64_t on[NODES];
			if (!arrays[a].off) continue;
			bool known = count(mt_at(run, arrays[a].off), unit->elems * arrays[a].size, on);
			bool here = known && (strcmp(argv[2], "even") ? only(on, wanted) : even(on, wanted));
			printf("unit %u %s:", u, arrays[a].name);
			for (int i = 0; known && i < NODES; i++)
				if (on[i]) printf(" node %d %lu", i, (unsigned long)on[i]);
			printf("%s\n", here ? "" : !known ? " pages that the kernel does not know" : " (not as wanted)");
			good &= here;
		}
	}
	mt_run_close(run);
	return !good;
}
