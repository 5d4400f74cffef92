/* ls.c: this user's runs, one a line: bytes, step, live stages; half-made runs and those of other builds too. */
#include <glob.h>
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "store.h"

struct listing {
	const char *only;
	bool json, header;
	size_t found;
};

/* Of all files mt.UID.RUN.*: a run that cannot be opened has a size as well */
static uint64_t files_bytes(const char *name)
{
	const char *dir = getenv("MT_SHM_DIR");
	char pattern[4300];
	uint64_t bytes = 0;
	glob_t found;
	snprintf(pattern, sizeof pattern, "%s/mt.%u.%s.*", dir && *dir ? dir : "/dev/shm", (unsigned)geteuid(), name);
	if (glob(pattern, GLOB_NOSORT, NULL, &found)) return 0;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		struct stat st;
		if (lstat(found.gl_pathv[i], &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid())
			bytes += (uint64_t)st.st_blocks * 512; /* what it really takes */
	}
	globfree(&found);
	return bytes;
}

static json_t *live_stages(struct mt_run *run)
{
	json_t *live = json_array();
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (mt_stage_alive(run, slot)) json_array_append_new(live, json_string(mt_stage_name(slot)));
	return live;
}

static void print_line(struct listing *l, json_t *o)
{
	json_t *step = json_object_get(o, "step"), *live = json_object_get(o, "stages");
	if (!l->header) printf("%-20s %15s %9s  %s\n", "RUN", "BYTES", "STEP", "STATE AND STAGES");
	l->header = true;
	printf("%-20s %15lld ", json_string_value(json_object_get(o, "run")),
		(long long)json_integer_value(json_object_get(o, "bytes")));
	if (json_is_integer(step)) printf("%9lld", (long long)json_integer_value(step));
	else printf("%9s", "-");
	printf("  %s", json_string_value(json_object_get(o, "state")));
	for (size_t i = 0; i < json_array_size(live); i++)
		printf("%s %s", i ? "," : ":", json_string_value(json_array_get(live, i)));
	putchar('\n');
}

static int list_one(const char *name, void *arg)
{
	struct listing *l = arg;
	if (l->only && strcmp(l->only, name) != 0) return 0;
	l->found++;
	struct mt_run *run = NULL;
	int rc = mt_run_open(&run, name, MT_RUN_CONTROL | MT_RUN_READONLY);
	json_t *o = json_pack("{s:s, s:I}", "run", name, "bytes", (json_int_t)files_bytes(name));
	if (rc == 0) {
		enum mt_state state = mt_run_state(run);
		json_object_set_new(o, "step", state == MT_FILLED ? json_integer((json_int_t)mt_run_step(run)) : json_null());
		json_object_set_new(o, "state", json_string(state_word(state)));
		json_object_set_new(o, "stages", live_stages(run));
		mt_run_close(run);
	} else {
		json_object_set_new(o, "step", json_null());
		json_object_set_new(o, "state", json_string(mt_errmsg())); /* half made, of another ABI version, ... */
		json_object_set_new(o, "stages", json_array());
	}
	if (!l->json) print_line(l, o);
	else if (json_dumpf(o, stdout, JSON_COMPACT) == 0) putchar('\n');
	json_decref(o);
	return 0;
}

int store_ls(const char *run, const struct store_options *options)
{
	struct listing l = {.only = run, .json = options->json};
	int rc = mt_run_list(list_one, &l);
	if (rc == 0 && run && l.found == 0) rc = mt_fail(MT_EX_NOINPUT, "no such run: '%s'", run);
	return rc;
}
