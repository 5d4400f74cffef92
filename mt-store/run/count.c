/* count.c: how many steps the data makes: mt-feed and mt-step --count, until both have ended. If the script is killed,
 * the launcher is gone, or USR1 comes, with which the script passes a signal on, both are killed: they own nothing. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mt/error.h"
#include "supervise.h"

enum { FEED, STEP, BOTH, TICK_MS = 20 };

static void copy(int from, int to)
{
	char text[4096];
	ssize_t n;
	lseek(from, 0, SEEK_SET);
	while ((n = read(from, text, sizeof text)) > 0 && write(to, text, (size_t)n) == n) {}
}

/* The script's death, the launcher's end, USR1 */
static void watch(struct pollfd fds[3], int script, bool shim)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fds[0] = (struct pollfd){.fd = (int)syscall(SYS_pidfd_open, script, 0), .events = POLLIN};
	fds[1] = (struct pollfd){.fd = shim ? FD_SHIM : -1, .events = POLLIN};
	fds[2] = (struct pollfd){.fd = signalfd(-1, &set, SFD_CLOEXEC), .events = POLLIN};
}

static int code_of(int status, const char *name)
{
	int code = child_code(status);
	if (code < 128) return code;
	mt_say("%s was killed by signal %d", name, code - 128);
	return MT_EX_PEER;
}

/* SCRIPT SHIM N WORDS...: the script's pid; 1: there is a pipe from the launcher (node.c); the first N words are
 * mt-feed's, the others mt-step's */
void count(int argc, char **argv)
{
	int n = argc > 5 ? atoi(argv[3]) : 0, ends[2], status[BOTH], left = BOTH;
	if (n < 1 || n > argc - 5) mt_die(MT_EX_USAGE, "count: for the script alone");
	char **step = argv + 4 + n, *feed[n + 1];
	for (int i = 0; i < n; i++) feed[i] = argv[4 + i];
	feed[n] = NULL;
	struct pollfd fds[3];
	watch(fds, atoi(argv[1]), atoi(argv[2]));
	bool shown = isatty(STDERR_FILENO); /* mt-step's line of progress; else what it says is kept, see below */
	int errors = shown ? STDERR_FILENO : memfd_create("errors", MFD_CLOEXEC);
	if (errors < 0 || pipe2(ends, O_CLOEXEC)) mt_die(MT_EX_NOMEM, "a pipe: %s", strerror(errno));
	const struct streams of[BOTH] = {{.in = STDIN_FILENO, .out = ends[1], .ends_with_us = true},
		{.in = ends[0], .out = STDOUT_FILENO, .err = errors, .ends_with_us = true}};
	pid_t pids[BOTH] = {child_start(feed, &of[FEED]), child_start(step, &of[STEP])};
	close(ends[0]);
	close(ends[1]);
	close(STDIN_FILENO);
	while (left) {
		bool over = poll(fds, 3, TICK_MS) > 0;
		for (int i = 0; i < BOTH; i++) {
			if (over && pids[i]) kill(pids[i], SIGKILL);
			if (!pids[i] || waitpid(pids[i], &status[i], over ? 0 : WNOHANG) != pids[i]) continue;
			pids[i] = 0;
			left--;
			if (i == STEP && status[STEP] && pids[FEED]) kill(pids[FEED], SIGALRM); /* nobody reads what it writes */
		}
		char sig = 0; /* from the launcher */
		if (over) _exit(fds[1].revents && read(FD_SHIM, &sig, 1) == 1 ? 128 + sig : MT_EX_PEER);
	}
	int fed = WIFSIGNALED(status[FEED]) && WTERMSIG(status[FEED]) == SIGALRM ? 0 : code_of(status[FEED], "mt-feed");
	if (fed) exit(fed); /* mt-step complains only about the cut input */
	if (!shown) copy(errors, STDERR_FILENO);
	exit(code_of(status[STEP], "mt-step"));
}
