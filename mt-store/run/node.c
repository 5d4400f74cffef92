/* node.c: mt-run --nodes: a launcher (mpirun, srun) starts the same mt-run on each node.
 *
 * A launcher kills its other processes a second after the first one has ended, too soon to save and remove a run. So
 * the process that it starts is a shim. The script, which works, is in another session, where the launcher's signals do
 * not come; the shim writes their numbers in a pipe, the script's descriptor 3, whose end says that the shim is gone.
 *
 *     what happens             what the shim does
 *     HUP, INT, TERM, USR1     writes its number in the pipe (TERM for INT)
 *     the script exits         exits with its code
 *     the script is killed     ends by the last signal, which was meant to end it; else says it, and exits with 69
 *     the launcher is gone     ends: the pipe's end ends the run on all nodes
 *     the shim is killed       the same
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mt/memory.h"
#include "start.h"

enum {
	PIPE_OF_SCRIPT = 3,
	TICK_MS = 200, /* how soon the end of the launcher is seen */
	/* before a failure: once one process has failed, Open MPI 5 shows no more lines of the others, which fail soon */
	LAST_LINES_MS = 1000,
};

static const int passed_on[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1};
static char prefix[32]; /* of what node 1 and above say */

/* ---- signals */

static sigset_t held(void)
{
	sigset_t set;
	sigemptyset(&set);
	for (int i = 0; i < 4; i++) sigaddset(&set, passed_on[i]);
	sigaddset(&set, SIGCHLD);
	return set;
}

void node_hold_signals(void)
{
	sigset_t set = held();
	sigprocmask(SIG_BLOCK, &set, NULL);
}

void node_release_signals(void)
{
	sigset_t set = held();
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

_Noreturn static void end_by(int sig)
{
	node_release_signals();
	mt_die_of_signal(sig);
}

/* ---- which node it is */

static bool read_number(const char *text, int *number)
{
	char *end;
	if (!text || *text < '0' || *text > '9' || (*text == '0' && text[1]) || strlen(text) > 4) return false;
	*number = (int)strtol(text, &end, 10);
	return !*end;
}

int node_find(void)
{
	/* of Open MPI, PMI, PMIx and Slurm. Slurm's PMIx names the number of processes as Slurm does */
	static const char *const names[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, {"PMI_RANK", "PMI_SIZE"},
		{"PMIX_RANK", "SLURM_NTASKS"}, {"SLURM_PROCID", "SLURM_NTASKS"}};
	const char *rank = NULL, *size = NULL;
	int node, nodes;
	char text[32];
	for (int i = 0; i < 4 && !(rank && *rank); i++) {
		rank = getenv(names[i][0]);
		size = getenv(names[i][1]);
	}
	if (!rank || !*rank)
		mt_die(MT_EX_USAGE, "--nodes: no launcher has started this process: mpirun -n NODES mt-run --nodes ...");
	if (!read_number(rank, &node) || !read_number(size, &nodes) || node >= nodes)
		mt_die(MT_EX_USAGE,
			"--nodes: by the launcher's environment this is process '%s of %s'; expected 0 of N to N-1 of N", rank,
			size ? size : "");
	if (nodes > MT_STREAMS) mt_die(MT_EX_USAGE, "--nodes: %d nodes, and a run has %d at most", nodes, MT_STREAMS);
	if (node) snprintf(prefix, sizeof prefix, "node %d: ", node);
	snprintf(text, sizeof text, "%d/%d/", node, nodes);
	if (nodes > 1) setenv("MT_RUN_NODE", text, 1);
	return nodes;
}

/* A launcher that died before this process looked for its parent: that is another process now. A launcher with PMIx
 * listens on a port of this node as long as it lives. */
static bool launcher_listens(void)
{
	const char *uri = getenv("PMIX_SERVER_URI2"); /* its latest form is URI4 */
	if (!uri) uri = getenv("PMIX_SERVER_URI4");
	const char *port = uri ? strstr(uri, ";tcp4://") : NULL;
	char line[512], entry[64];
	port = port ? strrchr(port, ':') : NULL;
	FILE *f = port ? fopen("/proc/net/tcp", "re") : NULL;
	if (!f) return true;
	bool listens = false;
	snprintf(entry, sizeof entry, ":%04X 00000000:0000 0A", (unsigned)atoi(port + 1)); /* 0A: LISTEN */
	while (!listens && fgets(line, sizeof line, f)) listens = strstr(line, entry);
	fclose(f);
	return listens;
}

/* ---- the shim */

/* MPICH's launcher passes a socket, whose number may be one that the script uses */
static void move_socket(void)
{
	const char *number = getenv("PMI_FD");
	int fd = number ? atoi(number) : -1, high = fd > 2 ? fcntl(fd, F_DUPFD, 20) : -1;
	char text[16];
	if (high < 0) return;
	close(fd);
	snprintf(text, sizeof text, "%d", high);
	setenv("PMI_FD", text, 1);
}

_Noreturn static void work(const char *script, char **argv, int pipe)
{
	setsid();
	move_socket();
	if (dup2(pipe, PIPE_OF_SCRIPT) < 0) mt_die(MT_EX_NOMEM, "its pipe: %s", strerror(errno));
	node_release_signals();
	execv(script, argv);
	mt_die(MT_EX_NOMEM, "%s: %s", script, strerror(errno));
}

/* Sets the pipe's write end, which nobody else has */
static pid_t start(const char *script, char **argv, int *pipe)
{
	int ends[2], high[2];
	char text[64];
	snprintf(text, sizeof text, "%s%d", getenv("MT_RUN_NODE"), (int)getpid());
	setenv("MT_RUN_NODE", text, 1);
	if (pipe2(ends, O_CLOEXEC)) mt_die(MT_EX_NOMEM, "a pipe: %s", strerror(errno));
	for (int i = 0; i < 2; i++) { /* away from the descriptors 0 to 3 */
		high[i] = fcntl(ends[i], F_DUPFD_CLOEXEC, 10);
		if (high[i] < 0) mt_die(MT_EX_NOMEM, "a pipe: %s", strerror(errno));
		close(ends[i]);
	}
	fcntl(high[1], F_SETFL, O_NONBLOCK);
	pid_t worker = fork();
	if (worker < 0) mt_die(MT_EX_NOMEM, "fork: %s", strerror(errno));
	if (worker == 0) work(script, argv, high[0]);
	close(high[0]);
	*pipe = high[1];
	return worker;
}

static void pass_on(int pipe, int sig)
{
	char number = (char)(sig == SIGINT ? SIGTERM : sig);
	ssize_t w = write(pipe, &number, 1); /* fails if the worker has ended, or has not read 64 KiB of them */
	(void)w;
}

/* Returns at the end of the worker, with its status */
static int watch(pid_t worker, int pipe, pid_t launcher, int *last)
{
	sigset_t set = held();
	struct signalfd_siginfo info;
	int status, fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0) mt_die(MT_EX_NOMEM, "signalfd: %s", strerror(errno));
	for (;;) {
		struct pollfd in = {.fd = fd, .events = POLLIN};
		poll(&in, 1, TICK_MS);
		while (read(fd, &info, sizeof info) == sizeof info) {
			if (info.ssi_signo == SIGCHLD) continue;
			*last = (int)info.ssi_signo;
			pass_on(pipe, *last);
		}
		if (waitpid(worker, &status, WNOHANG) == worker) return status;
		if (getppid() != launcher) _exit(MT_EX_PEER);
	}
}

void node_shim(const char *script, char **argv)
{
	int pipe, last = 0;
	pid_t launcher = getppid();
	if (!launcher_listens()) exit(MT_EX_PEER); /* nobody would read why */
	signal(SIGPIPE, SIG_IGN);
	pid_t worker = start(script, argv, &pipe);
	int status = watch(worker, pipe, launcher, &last);
	if (status) poll(NULL, 0, LAST_LINES_MS);
	if (WIFEXITED(status)) exit(WEXITSTATUS(status));
	if (last) end_by(last);
	mt_die(MT_EX_PEER, "%sits worker was killed by signal %d", prefix, WTERMSIG(status));
}
