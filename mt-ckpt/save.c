/* save.c: save and export: write a run that no step is changing as a directory.
 *
 * They take no slot, so no stage waits for them. They read the committed step and the number of fillings before the
 * first byte and after the last one, and delete the copy if these have changed.
 *
 * Of a run on several nodes, save --part writes the node's part, as serve does. On node 0, which is saved last, it
 * takes the other nodes' parts into the checkpoint. */
#include <stdlib.h>
#include <unistd.h>
#include "ckpt.h"
#include "mt/control.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "mt/txn.h"

static int write_all(struct mt_run *run, const struct mt_sample *sample, struct out_dir *dir, enum mt_dtype dtype,
	bool full, uint64_t shard)
{
	struct run_json json;
	struct writer w;
	int rc = state_read(run, &sample->at, &json), held;
	if (rc == 0 && (rc = writer_begin(&w, run, dir, dtype, full ? WRITE_ALL : WRITE_MODEL, shard, WORK_THREADS)) == 0) {
		w.stoppable = true;
		rc = writer_units(&w);
		if (rc == 0 && !(full && mt_node(run))) rc = writer_end(&w);
		if (rc == 0 && full) state_unlogged(run, sample->at.step, json.unlogged);
		/* If the run was filled meanwhile, then unreadable kept files are a consequence: report the filling. */
		if ((rc == 0 || rc == -MT_EX_ABI || rc == -MT_EX_DATA) && (held = mt_sample_holds(run, sample)) < 0) rc = held;
		if (rc == 0) nonfinite_warn(&w.seen);
		writer_drop(&w);
	}
	if (rc == 0 && full && mt_node(run)) rc = part_json_write(dir, sample->at.step, mt_node(run));
	else if (rc == 0 && full) {
		if (mt_nodes(run) > 1) rc = parts_take(run, dir->parent, dir->base, sample->at.step, dir);
		if (rc == 0) rc = run_json_write(dir, &json);
	}
	state_release(&json);
	return rc;
}

/* lo, m and v, or lo alone, for fp32 weights of a bf16 run */
static bool reads_state(const struct mt_run *run, enum mt_dtype dtype, bool full)
{
	return full || (dtype == MT_FP32 && mt_control(run)->dtype == MT_BF16);
}

/* lo, m and v of a run on several nodes are not all here, those of --state none nowhere */
static int check_arrays(struct mt_run *run, const char *name, bool full)
{
	int rc = mt_run_has_state(run);
	if (rc && !full)
		return mt_fail(MT_EX_CONFIG, "run '%s' has bf16 weights alone (--state none): export it without --dtype fp32",
			name);
	if (rc || mt_nodes(run) == 1) return rc;
	return mt_fail(MT_EX_CONFIG, "run '%s' is node %u of %u, and has its part of the %s", name, mt_node(run),
		mt_nodes(run),
		full ? "state: mt-ckpt serve saves it, or save --part"
			 : "fp32 weights: export a checkpoint of it, loaded on one machine");
}

/* Another node than 0: the part stays under its name until node 0 takes it. */
static int save_part(struct mt_run *run, const char *path, uint64_t shard)
{
	struct mt_sample sample;
	struct out_dir dir;
	char *base = NULL;
	int parent = -1, rc = out_split(path, &parent, &base);
	if (rc == 0) dir_clean_parts(parent, mt_node(run));
	if (rc == 0) rc = mt_sample_take(run, &sample);
	if (rc == 0 && (rc = out_begin_part(&dir, parent, ".", base, mt_node(run))) == 0) {
		snprintf(dir.path, sizeof dir.path, "%s", path);
		rc = write_all(run, &sample, &dir, (enum mt_dtype)mt_control(run)->dtype, true, shard);
		if (rc == 0) rc = out_sync(&dir);
		if (rc == 0) out_leave(&dir);
		else out_abort(&dir);
	}
	if (parent >= 0) close(parent);
	free(base);
	return rc;
}

static int write_run(const char *name, const char *path, enum mt_dtype dtype, bool full, bool part, uint64_t shard,
	bool replace)
{
	struct mt_run *run;
	struct mt_sample sample;
	struct out_dir dir;
	int rc = mt_run_open(&run, name, MT_RUN_WEIGHTS | MT_RUN_READONLY);
	if (rc < 0) return rc;
	if (dtype == MT_NONE) dtype = (enum mt_dtype)mt_control(run)->dtype;
	if (!part) rc = reads_state(run, dtype, full) ? check_arrays(run, name, full) : 0;
	else if (mt_nodes(run) == 1) rc = mt_fail(MT_EX_USAGE, "run '%s' is on one machine: save it without --part", name);
	else if (mt_node(run)) {
		rc = save_part(run, path, shard);
		mt_run_close(run);
		return rc;
	}
	if (rc == 0) rc = mt_sample_take(run, &sample);
	if (rc == 0 && reads_state(run, dtype, full) && (rc = mt_tier_settled(run)) == 0) rc = mt_tier_map(run, false);
	if (rc == 0 && (rc = out_begin(&dir, path, replace)) == 0)
		rc = verify_and_rename(&dir, write_all(run, &sample, &dir, dtype, full, shard), mt_geometry(run), full);
	mt_run_close(run);
	return rc;
}

int ckpt_save(const char *run, const char *dir, bool part, uint64_t shard)
{
	return write_run(run, dir, MT_NONE, true, part, shard, false);
}

int ckpt_export(const char *run, const char *dir, enum mt_dtype dtype, uint64_t shard, bool replace)
{
	return write_run(run, dir, dtype, false, false, shard, replace);
}
