/* threads.c: how many threads share a job. They are made when there is one: by then the
 * reproducibility record says on what device the run is computed, and with a GPU it needs hardly a core. Between jobs
 * they sleep: the cores belong to mt-stream then. */
#include "cli/cli.h"
#include "optim.h"

struct pool *optim_pool(struct optim *o)
{
	if (o->pool) return o->pool;
	const struct mt_record *record = mt_record(o->run);
	bool gpu = record && !strncmp(record->device, "cuda", 4);
	uint64_t cores = (uint64_t)mt_cores(), n = o->threads ? o->threads : gpu ? cores - 1 : cores / 2;
	o->pool = pool_create(n < 1 ? 1 : n > MT_PARTITIONS ? MT_PARTITIONS : (int)n, 0, flush_denormals);
	if (!o->pool) mt_die(MT_EX_NOMEM, "cannot start %llu threads", (unsigned long long)n);
	return o->pool;
}
