/* threads.c: how many threads share the work. They are created with the first work: by then the reproducibility record
 * names the run's device, and with GPUs an mt-stream needs hardly a core. Without work they sleep: the cores belong to
 * the mt-streams then. */
#include "cli/cli.h"
#include "mt/choices.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "optim.h"

static struct pool *make(uint64_t threads)
{
	int n = threads < 1 ? 1 : threads > MT_PARTITIONS ? MT_PARTITIONS : (int)threads;
	struct pool *pool = pool_create(n, 0, flush_denormals);
	if (!pool) mt_die(MT_EX_NOMEM, "cannot start %d thread%s", n, mt_s((uint64_t)n));
	return pool;
}

static bool on_gpu(struct optim *o)
{
	const struct mt_record *record = mt_record(o->run);
	return record && !strncmp(record->device, "cuda", 4);
}

/* What this node's mt-streams on GPUs leave: each has a thread that launches operations */
static uint64_t cores_left(const struct optim *o, uint64_t cores)
{
	int streams = (int)mt_node_streams(o->run), first = MT_STREAM + streams * (int)mt_node(o->run);
	uint64_t live = 0;
	for (int i = 0; i < streams; i++) live += mt_stage_alive(o->run, first + i);
	live = live ? live : 1;
	return cores > live ? cores - live : 1;
}

struct pool *optim_pool(struct optim *o)
{
	if (o->pool) return o->pool;
	uint64_t cores = (uint64_t)mt_cores();
	o->pool = make(o->threads ? o->threads : on_gpu(o) ? cores_left(o, cores) : cores / 2);
	return o->pool;
}

struct pool *optim_pool_alone(struct optim *o)
{
	if (o->threads || on_gpu(o)) return optim_pool(o);
	if (!o->alone) o->alone = make((uint64_t)mt_cores());
	return o->alone;
}
