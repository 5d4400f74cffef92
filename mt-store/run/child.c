/* child.c: the programs that mt-run starts. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mt/error.h"
#include "supervise.h"

void child_defaults(void)
{
	static const int sigs[] = {SIGPIPE, SIGCHLD, SIGALRM};
	sigset_t none;
	for (int i = 0; i < 3; i++) signal(sigs[i], SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* HUP, INT and TERM also come to a whole process group, and are for mt-run alone: it sends USR1 to whom it means, which
 * its caller, or the keeper, may ignore. */
static void set_signals(void)
{
	static const int for_mt_run[] = {SIGHUP, SIGINT, SIGTERM};
	for (int i = 0; i < 3; i++) signal(for_mt_run[i], SIG_IGN);
	signal(SIGUSR1, SIG_DFL);
	child_defaults();
}

pid_t child_fork(void)
{
	pid_t pid = fork();
	if (pid < 0) mt_die(MT_EX_NOMEM, "a new process: %s", strerror(errno));
	if (pid == 0) set_signals();
	return pid;
}

static void use(int fd, const char *file, int flags, int as)
{
	if (file) fd = open(*file ? file : "/dev/null", flags | O_CLOEXEC, 0666);
	if (fd < 0 || (fd != as && dup2(fd, as) < 0)) mt_die(MT_EX_IO, "%s: %s", file ? file : "a pipe", strerror(errno));
}

pid_t child_start(char *const argv[], const struct streams *s)
{
	pid_t parent = getpid(), pid = child_fork();
	if (pid) return pid;
	if (s->ends_with_us && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)) _exit(MT_EX_PEER);
	use(s->in, s->in_file, O_RDONLY, STDIN_FILENO);
	use(s->out, s->out_file, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
	if (s->err) use(s->err, NULL, 0, STDERR_FILENO);
	if (s->err_file) {
		use(-1, s->err_file, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
		setenv("MT_LOG", "", 1);
	}
	if (s->keep) fcntl(s->keep, F_SETFD, 0);
	if (s->without_locks) {
		close(FD_LOCK_TMP);
		close(FD_LOCK_OUT);
	}
	execvp(argv[0], argv);
	mt_say("%s: %s", argv[0], strerror(errno));
	_exit(MT_EX_NOMEM);
}

int child_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
