/* nodes.c: on which NUMA nodes the store is, by samples. */
#include <numaif.h>

#include "mt/run.h"
#include "watch.h"

bool nodes_sample(struct mt_run *run, uint64_t state_bytes, double share[WATCH_NODES])
{
	enum { SAMPLES = 256, PAGE = 4096 };
	void *page[SAMPLES];
	int node[SAMPLES], known = 0, n = 0;
	for (; n < SAMPLES; n++) {
		uint64_t at = state_bytes / SAMPLES * (uint64_t)n / PAGE * PAGE;
		page[n] = mt_at(run, at);
		(void)*(volatile uint8_t *)page[n]; /* move_pages knows pages that this process has mapped */
		share[n % WATCH_NODES] = 0;
	}
	/* without target nodes it moves nothing: it reports where pages are */
	if (move_pages(0, SAMPLES, page, NULL, node, 0)) return false;
	for (int i = 0; i < SAMPLES; i++)
		if (node[i] >= 0 && node[i] < WATCH_NODES) {
			share[node[i]]++;
			known++;
		}
	for (int i = 0; i < WATCH_NODES; i++) share[i] /= known ? known : 1;
	return known > 0;
}
