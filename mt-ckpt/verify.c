/* verify.c: checks a directory. Checksums first, since the errors of parsing a damaged file mislead. */
#include "ckpt.h"
#include "model/hfjson.h"

int ckpt_verify(const char *path)
{
	struct source s;
	struct kept kept = {.quiet = true};
	int rc;
	if ((rc = source_open(&s, path, false)) == 0 && (rc = source_checksums(&s)) == 0 && (rc = source_config(&s)) == 0)
		rc = source_models(&s);
	if (rc == 0) rc = tiles_verify(&s);
	if (rc == 0 && !s.full) rc = kept_read(&kept, &s);
	kept_release(&kept);
	if (rc == 0 && family_carries(&s.geo)) rc = s.full ? 0 : carried_say(&s);
	else if (rc == 0) model_name_extras(&s.model[ARRAY_W]);
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
	if (rc == 0 && full) rc = run_json_lengths(s.dirfd, s.files);
	if (rc == 0 && (rc = source_config(&s)) == 0 && (rc = config_same(run, &s.geo)) == 0) rc = source_models(&s);
	source_close(&s);
	return rc < 0 ? mt_fail_in(rc, "reading back what was written") : 0;
}
