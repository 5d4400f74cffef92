/* copy.c: export --from: the model of a checkpoint as a directory, without a run. A checkpoint's model files are those
 * of an export in its run's dtype: they are copied, and their checksums compared. */
#include <stdlib.h>
#include <unistd.h>
#include "ckpt.h"

/* Belongs to the state beside the model */
static bool is_state(const char *name) { return strncmp(name, "optim-", 6) == 0 || !strcmp(name, CARRIED_RECORD); }

static int copy_chunk(int fd, struct out_file *f, uint64_t number, uint8_t *buf)
{
	struct out_chunk c;
	int rc = out_chunk_begin(&c, f, number, NULL);
	for (uint64_t n; rc == 0 && c.at < c.end;) {
		n = c.end - c.at < BLOCK_BYTES ? c.end - c.at : BLOCK_BYTES;
		if ((rc = file_read(fd, f->name, buf, n, c.at)) == 0) rc = out_write(&c, buf, n);
	}
	return out_chunk_end(&c, rc);
}

static int copy_file(const struct source *s, struct out_dir *dir, const char *name, const json_t *entry, uint8_t *buf)
{
	const json_t *sums = json_object_get(entry, "xxh3");
	struct out_file *f;
	uint64_t size;
	int fd, rc = file_open_regular(s->dirfd, name, &fd, &size);
	if (rc < 0) return rc == -MT_EX_NOINPUT ? mt_fail(MT_EX_DATA, "%s: is missing", shown(name)) : rc;
	if (size != (uint64_t)json_integer_value(json_object_get(entry, "bytes")))
		rc = mt_fail(MT_EX_DATA, "%s: has another length than run.json says", shown(name));
	if (rc == 0 && (rc = kept_directory(dir, name)) == 0) rc = out_create(dir, name, size, &f);
	for (uint64_t i = 0; rc == 0 && i < f->n_sums; i++) {
		rc = copy_chunk(fd, f, i, buf);
		if (rc == 0 && f->sums[i] != strtoull(json_string_value(json_array_get(sums, i)), NULL, 16))
			rc = mt_fail(MT_EX_DATA, "%s: chunk %llu is damaged", shown(name), (unsigned long long)i);
	}
	close(fd);
	return rc;
}

static int copy_model(const struct source *s, struct out_dir *dir)
{
	uint8_t *buf = malloc(BLOCK_BYTES);
	const char *name;
	json_t *entry;
	int rc = buf ? 0 : mt_fail(MT_EX_NOMEM, "no memory to copy a checkpoint's model");
	json_object_foreach(s->files, name, entry)
	{
		if (rc < 0 || is_state(name)) continue;
		bool carried = s->carried.n && !strcmp(name, CARRIED_FILE);
		rc = carried ? carried_write(&s->carried, dir, false) : copy_file(s, dir, name, entry, buf);
	}
	free(buf);
	out_sort(dir);
	return rc;
}

int ckpt_export_from(const char *from, const char *path, bool replace)
{
	struct source s;
	struct out_dir dir;
	int rc = source_open(&s, from, false);
	if (rc == 0 && !s.full) rc = mt_fail(MT_EX_DATA, "%s: is no checkpoint: it has no run.json", shown(from));
	if (rc == 0) rc = source_config(&s);
	if (rc == 0) rc = carried_find(&s, false);
	if (rc == 0 && (rc = out_begin(&dir, path, replace)) == 0) {
		rc = copy_model(&s, &dir);
		if (rc == 0) rc = out_sync(&dir);
		if (rc == 0) rc = verify_written(dir.fd, &s.geo, false);
		if (rc == 0) rc = out_rename(&dir);
		else out_abort(&dir);
	}
	source_close(&s);
	return rc;
}
