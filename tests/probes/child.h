/* child.h: fork for probes. The child ends with its parent, however that ends: one that outlived a test that failed
 * would keep what the test writes to open, for which bats waits. */
#ifndef PROBES_CHILD_H
#define PROBES_CHILD_H

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static inline pid_t fork_child(void)
{
	pid_t parent = getpid(), pid = fork();
	if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)) _exit(1);
	return pid;
}

#endif
