/* verify.c: is a directory what it says it is? Checksums first: a damaged file may read as anything. */
#include "ckpt.h"

int ckpt_verify(const char *path)
{
	struct source s;
	int rc;

	if ((rc = source_open(&s, path, false)) == 0 && (rc = source_checksums(&s)) == 0 && (rc = source_config(&s)) == 0)
		rc = source_models(&s);
	if (rc == 0)
		model_name_extras(&s.model[ARRAY_W]);
	source_close(&s);
	return rc;
}
