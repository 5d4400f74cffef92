/* mt-run: starts the script run/mt-run, which has the programs first in its PATH. On several nodes this process stays
 * between the launcher and the script, see node.c. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include "supervise.h"

/* Without descriptors, programs and redirections of a shell fail here and there, some of them without a word. The
 * script and its stages need 18 each. */
enum { DESCRIPTORS = 20 };

static void check_descriptors(void)
{
	struct rlimit may;
	if (getrlimit(RLIMIT_NOFILE, &may) == 0 && may.rlim_cur < DESCRIPTORS)
		mt_die(MT_EX_NOMEM, "needs %d file descriptors, and may open %d: ulimit -n %d", DESCRIPTORS, (int)may.rlim_cur,
			DESCRIPTORS);
}

/* The path of the directory that has the file `path`, without links in it */
static void folder_of(const char *path, char folder[PATH_MAX])
{
	char name[PATH_MAX];
	snprintf(name, sizeof name, "%s", path);
	char *slash = strrchr(name, '/');
	if (slash) slash[slash == name] = 0;
	if (!realpath(slash ? name : ".", folder)) mt_die(MT_EX_NOMEM, "%s: %s", name, strerror(errno));
}

/* The other programs are beside a link to mt-run, or beside mt-run. The script is in run/ there, or where `make
 * install` puts it. */
static void find(char script[PATH_MAX + 32])
{
	char called[PATH_MAX], program[PATH_MAX], here[PATH_MAX], real[PATH_MAX], path[3 * PATH_MAX];
	const char *old = getenv("PATH");
	snprintf(called, sizeof called, "%s", (const char *)getauxval(AT_EXECFN));
	if (!realpath(called, program)) mt_die(MT_EX_NOMEM, "%s: %s", called, strerror(errno));
	folder_of(called, here);
	folder_of(program, real);
	snprintf(path, sizeof path, "%s:%s:%s", here, real, old ? old : "/usr/local/bin:/usr/bin:/bin");
	setenv("PATH", path, 1);
	snprintf(script, PATH_MAX + 32, "%s/run/mt-run", real);
	if (access(script, F_OK)) snprintf(script, PATH_MAX + 32, "%s/../lib/mt/run/mt-run", real);
}

_Noreturn static void say(int argc, char **argv) { mt_die(0, "%s", argc > 1 ? argv[1] : ""); }

/* What the script calls this program for: a shell cannot do it well */
static const struct {
	const char *name;
	void (*run)(int argc, char **argv);
} parts[] = {{"supervise", supervise}, {"count", count}, {"json", json}, {"options", run_options}, {"object", object},
	{"unborn", unborn}, {"samples", samples}, {"say", say}};

int main(int argc, char **argv)
{
	bool nodes = false, dry = false;
	char script[PATH_MAX + 32];
	const char *as = getenv("MT_RUN_AS");
	mt_program_name = "mt-run";
	unsetenv("MT_RUN_AS");
	child_defaults(); /* launchers ignore PIPE, for example, and a shell could not change that */
	if (as) mt_open_standard_fds();
	for (size_t i = 0; as && i < sizeof parts / sizeof *parts; i++)
		if (!strcmp(as, parts[i].name)) parts[i].run(argc, argv);
	for (int i = 1; i < argc; i++) {
		nodes |= !strcmp(argv[i], "--nodes");
		dry |= !strcmp(argv[i], "--dry-run");
	}
	if (nodes) node_hold_signals();
	check_descriptors();
	find(script);
	unsetenv("MT_RUN_NODE");
	if (nodes && node_find() > 1 && !dry) node_shim(script, argv); /* a dry run has nothing to save */
	if (nodes) node_release_signals();
	execv(script, argv);
	mt_die(MT_EX_NOMEM, "%s: %s", script, strerror(errno));
}
