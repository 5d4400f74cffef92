/* save.c: save and export: a run that nothing is changing, written as a directory. */
#include <stdlib.h>
#include "ckpt.h"
#include "cli.h"

static int open_quiet(struct mt_run **run, const char *name)
{
	int rc = mt_run_open(run, name, MT_RUN_WEIGHTS | MT_RUN_READONLY);

	if (rc < 0)
		return rc;
	rc = state_weights(*run, name);
	if (rc == 0 && !mt_run_quiet(*run))
		rc = mt_fail(MT_EX_BUSY, "run '%s': step %llu is open", name, (unsigned long long)mt_run_step(*run));
	if (rc < 0)
		mt_run_close(*run);
	return rc;
}

/* Steps only grow: the same one, with nothing open, means that no byte changed in between. */
static int still_quiet(struct mt_run *run, const char *name, uint64_t step)
{
	if (state_weights(run, name) == 0 && mt_run_quiet(run) && mt_run_step(run) == step)
		return 0;
	return mt_fail(MT_EX_BUSY, "run '%s': a step was taken meanwhile", name);
}

static int write_all(struct mt_run *run, const char *name, struct out_dir *dir, enum mt_dtype dtype, bool full,
		     uint64_t shard)
{
	struct run_json now = state_now(run);
	struct writer w;
	int rc = writer_begin(&w, run, dir, dtype, full, shard);

	if (rc == 0) {
		w.stoppable = true;
		for (uint32_t u = 0; u < mt_control(run)->n_units && rc == 0; u++)
			rc = writer_unit(&w, u);
		if (rc == 0)
			rc = still_quiet(run, name, now.step);
		if (rc == 0)
			rc = writer_end(&w);
		if (rc < 0)
			writer_drop(&w);
	}
	if (rc == 0 && full)
		rc = run_json_write(dir, &now);
	json_decref(now.hyper);
	json_decref(now.choices);
	return rc;
}

static int write_run(const char *name, const char *path, enum mt_dtype dtype, bool full, uint64_t shard)
{
	struct mt_run *run;
	struct out_dir dir;
	int rc = open_quiet(&run, name);

	if (rc < 0)
		return rc;
	if (dtype == MT_NONE)
		dtype = (enum mt_dtype)mt_control(run)->dtype;
	if ((rc = out_begin(&dir, path)) == 0) {
		rc = write_all(run, name, &dir, dtype, full, shard);
		if (rc == 0)
			rc = out_sync(&dir);
		if (rc == 0)
			rc = out_rename(&dir);
		else
			out_abort(&dir);
	}
	mt_run_close(run);
	return rc;
}

int ckpt_save(const char *run, const char *dir, uint64_t shard)
{
	return write_run(run, dir, MT_NONE, true, shard);
}

int ckpt_export(const char *run, const char *dir, enum mt_dtype dtype, uint64_t shard)
{
	return write_run(run, dir, dtype, false, shard);
}
