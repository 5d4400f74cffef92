/* verify.c: checks a directory. Checksums first, since the errors of parsing a damaged file mislead. */
#include "ckpt.h"

int ckpt_verify(const char *path, bool as_load, const struct how_load *how)
{
	struct source s;
	struct kept kept = {.quiet = true};
	int rc;
	rc = source_open(&s, path, false);
	if (rc == 0 && as_load) rc = carried_find(&s, how->drop);
	if (rc == 0 && (rc = source_checksums(&s)) == 0 && (rc = source_config(&s, 0)) == 0) rc = source_models(&s);
	if (rc == 0) rc = tiles_verify(&s);
	if (rc == 0 && !s.full) rc = kept_read(&kept, &s);
	if (rc == 0 && !s.full) rc = kept_turn_end(&kept, &s, how->turn_end);
	kept_release(&kept);
	if (rc == 0 && !s.full) rc = carried_say(&s, how->drop);
	source_close(&s);
	return rc;
}

int verify_written(int dirfd, const struct mt_geometry *run, bool full)
{
	struct source s;
	char path[40];
	int rc;
	snprintf(path, sizeof path, "/proc/self/fd/%d", dirfd); /* its name may have changed */
	rc = source_open(&s, path, !full);
	if (rc == 0 && full) rc = files_lengths(s.dirfd, s.files);
	if (rc == 0 && (rc = source_config(&s, 0)) == 0 && (rc = config_same(run, &s.geo)) == 0) rc = source_models(&s);
	source_close(&s);
	return rc < 0 ? mt_fail_in(rc, "reading back what was written") : 0;
}

int verify_and_rename(struct out_dir *dir, int rc, const struct mt_geometry *run, bool full)
{
	if (rc == 0) rc = out_sync(dir);
	if (rc == 0) rc = verify_written(dir->fd, run, full);
	if (rc == 0) return out_rename(dir);
	out_abort(dir);
	return rc;
}
