/* files.c: small files that belong to a run (its tokenizer, ...), kept in a separate region so that the directory
 * they came from may vanish. The region: header, u32 count, then the table and the bytes. */
#include <errno.h>
#include <stdlib.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"

struct files {
	struct mt_header h;
	uint32_t n, reserved[31];
	struct mt_file file[];
};

int mt_files_put(struct mt_run *run, const struct mt_file *files, const void *const *data, uint32_t n)
{
	struct region_name file = region_name(run->name, REGION_FILES, NULL);
	const char *name = file.text;
	struct map map = {0};
	uint64_t at = sizeof(struct files) + n * sizeof(struct mt_file), size = at;
	for (uint32_t i = 0; i < n; i++) size += round_up(files[i].bytes, 64);
	struct stat st;
	if (region_owner(name, &st) == REGION_NOT_OURS) return region_not_ours(name, &st);
	int rc = region_unlink(name);
	if (rc && rc != -ENOENT) return mt_fail(MT_EX_IO, "replacing %s: %s", name, strerror(-rc));
	if (!n) return 0;
	rc = region_room(size, NULL, NULL);
	if (!rc) rc = region_create(name, REGION_FILES, size, NULL, 0, run->control->h.run_id, NULL, &map, NULL, NULL);
	if (rc) return rc;
	struct files *f = map.p;
	f->n = n;
	for (uint32_t i = 0; i < n; i++) {
		f->file[i] = files[i];
		f->file[i].off = at;
		memcpy((uint8_t *)map.p + at, data[i], files[i].bytes);
		at += round_up(files[i].bytes, 64);
	}
	return region_join(run, name, &map);
}

int mt_files_each(const struct mt_run *run, int (*fn)(const char *name, const void *data, size_t bytes, void *arg),
	void *arg)
{
	struct region_name file = region_name(run->name, REGION_FILES, NULL);
	const char *name = file.text;
	struct map map = {0};
	struct stat st;
	if (region_owner(name, &st) == REGION_NOT_OURS) return (void)region_not_ours(name, &st), 1;
	int rc = region_open(name, REGION_FILES, true, run->control->h.run_id, &map);
	if (rc == -MT_EX_NOINPUT) return 0;
	if (rc) return rc;
	const struct files *f = map.p;
	uint64_t most = (map.size - sizeof *f) / sizeof *f->file;
	for (uint32_t i = 0; i < f->n && i < most && !rc; i++) {
		struct mt_file e = f->file[i];
		if (e.off > map.size || e.bytes > map.size - e.off || !memchr(e.name, 0, sizeof e.name))
			rc = mt_fail(MT_EX_DATA, "%s is damaged", name);
		else rc = fn(e.name, (const uint8_t *)map.p + e.off, e.bytes, arg);
	}
	region_unmap(&map);
	return rc;
}
