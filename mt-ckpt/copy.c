/* copy.c: export --from: the model of a checkpoint as a directory, without a run. A checkpoint's model files are those
 * of an export in its run's dtype: they are copied, and their checksums compared. */
#include "ckpt.h"

/* Belongs to the state beside the model */
static bool is_state(const char *name) { return strncmp(name, "optim-", 6) == 0 || !strcmp(name, CARRIED_RECORD); }

static int copy_model(const struct source *s, struct out_dir *dir)
{
	const char *name;
	json_t *entry;
	int rc = 0;
	json_object_foreach(s->files, name, entry)
	{
		struct chunks c = {.from = s->dirfd, .to = dir};
		if (rc < 0 || is_state(name)) continue;
		bool carried = s->carried.n && !strcmp(name, CARRIED_FILE);
		rc = carried ? carried_write(&s->carried, dir, false) : chunks_pass(&c, chunks_add(&c, name, entry));
	}
	out_sort(dir);
	return rc;
}

int ckpt_export_from(const char *from, const char *path, bool replace)
{
	struct source s;
	struct out_dir dir;
	int rc = source_open(&s, from, false);
	if (rc == 0 && !s.full) rc = mt_fail(MT_EX_DATA, "%s: is no checkpoint: it has no run.json", shown(from));
	if (rc == 0) rc = source_config(&s, 0);
	if (rc == 0) rc = carried_find(&s, false);
	if (rc == 0 && (rc = out_begin(&dir, path, replace)) == 0)
		rc = verify_and_rename(&dir, copy_model(&s, &dir), &s.geo, false);
	source_close(&s);
	return rc;
}
