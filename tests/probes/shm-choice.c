/* shm-choice: the reproducibility record's table of choices.
 *
 *     shm-choice kills SEED MOST  A stage is stopped after some instruction of entering a choice, and another one
 *                                 enters its own for the same key; then the first one continues or is killed. The
 *                                 second one's result must never change, and no entry may be half written. The next
 *                                 instruction to stop at is drawn from the MOST after it: 1 takes all. 77: no ptrace
 *     shm-choice full             a choice that does not fit is reported, the existing ones stay
 */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "child.h"
#include "shm-common.h"

enum { OTHERS = 3 }; /* entries made before */

static struct mt_run *run;
static uint64_t *got; /* the final result of the stopped stage */

static void enter(struct mt_run *r, const char *key, uint64_t by, uint64_t *stands)
{
	uint64_t value[10];
	for (int i = 0; i < 10; i++) value[i] = by;
	mt_must(mt_choice_enter(r, key, value, sizeof value));
	for (int i = 1; i < 10; i++)
		if (value[i] != value[0]) mt_die(1, "%s: a torn value", key);
	*stands = value[0];
}

/* A stage, stopped when it begins to enter its choice */
static pid_t stage_start(void)
{
	pid_t pid = fork_child();
	struct mt_run *mine;
	uint64_t any;
	int status;
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		mt_must(mt_run_open(&mine, run_name, MT_RUN_CONTROL));
		enter(mine, "before", 1, &any); /* the loader's work for each function is done */
		raise(SIGSTOP);
		enter(mine, "key", 2, got);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return WIFSTOPPED(status) ? pid : -1;
}

/* Run n instructions; false: it has ended meanwhile */
static bool stage_steps(pid_t pid, int n)
{
	int status;
	while (n-- > 0) {
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL)) exit(errno == EPERM ? 77 : 1);
		waitpid(pid, &status, 0);
		if (!WIFSTOPPED(status)) return false;
	}
	return true;
}

static void list_check(uint64_t stands)
{
	const struct mt_choice *e = NULL;
	uint32_t n = 0, keys = 0;
	uint64_t value;
	for (; (e = mt_choice_next(run, e)) && n <= MT_CHOICES; n++) {
		memcpy(&value, e->value, sizeof value);
		if (!strcmp(e->key, "key") && (keys++ || value != stands || e->bytes != 80))
			mt_die(1, "another value than was found");
	}
	if (n != OTHERS + 2 || keys != 1) mt_die(1, "%u entries, %u of the key", n, keys);
}

/* False: the stage needs fewer instructions */
static bool interrupt(int n, bool dies)
{
	uint64_t stands, again;
	int status;
	char key[24];
	mt_run_reset(run, 0, 0, NULL);
	*got = 0;
	for (int i = 0; i < OTHERS; i++) {
		snprintf(key, sizeof key, "other %d", i);
		enter(run, key, 9, &stands);
	}
	pid_t pid = stage_start();
	if (pid < 0) exit(1);
	if (!stage_steps(pid, n)) return false;
	if (dies) kill(pid, SIGKILL), waitpid(pid, &status, 0);
	enter(run, "key", 3, &stands);
	if (!dies) {
		ptrace(PTRACE_CONT, pid, NULL, NULL);
		waitpid(pid, &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status)) exit(1);
		if (*got != stands) mt_die(1, "after %d instructions two found two values", n);
	}
	list_check(stands);
	enter(run, "key", 4, &again);
	if (again != stands) mt_die(1, "after %d instructions the value changed", n);
	return true;
}

static int kills(uint64_t seed, uint64_t most)
{
	int n = 0, stops = 0;
	/* a sanitizer's code takes a hundred times the instructions: further apart, later on */
	do n += 1 + (int)(splitmix_next(&seed) % (most + (uint64_t)n / 16)), stops++;
	while (interrupt(n, false) && interrupt(n, true));
	printf("%d stops in %d instructions\n", stops, n);
	return n > 100 ? 0 : 1;
}

static int full(void)
{
	char key[32];
	uint64_t value;
	int rc = 0;
	for (value = 0; rc == 0 && value <= MT_CHOICES; value++) {
		snprintf(key, sizeof key, "key %d", (int)value);
		rc = mt_choice_enter(run, key, &value, sizeof value);
	}
	if (rc != -MT_EX_NOMEM || value != MT_CHOICES + 1) mt_die(1, "%d after %d entries", rc, (int)value);
	for (uint64_t i = 0; i < MT_CHOICES; i++) {
		snprintf(key, sizeof key, "key %d", (int)i);
		value = 1 << 20;
		mt_must(mt_choice_enter(run, key, &value, sizeof value));
		if (value != i) mt_die(1, "%s became %d", key, (int)value);
	}
	printf("%s\n", mt_errmsg());
	return 0;
}

int main(int argc, char **argv)
{
	run = tiny_run("choice");
	got = mmap(NULL, sizeof *got, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (argc == 4 && !strcmp(argv[1], "kills")) return kills(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
	return argc == 2 && !strcmp(argv[1], "full") ? full() : 64;
}
