/* signals.c: requests to stop, and faults in a run's memory. */
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cli.h"
#include "lib.h"
#include "mt/error.h"

/* ---- requests to stop */

volatile int mt_stopping;
static bool second_kills;
static double asked; /* when the first signal came */

/* One request to stop may arrive as several signals: timeout(1) signals its child and the group, a closed terminal and
 * its shell both send HUP, a script passes its signal on. A signal that comes later than this is a second request. */
#define ONE_REQUEST_S 1.0

static void on_signal(int sig)
{
	double now = mt_now(); /* clock_gettime may be called here */
	if (!mt_stopping) {
		asked = now;
		mt_stopping = sig;
	} else if (second_kills && now - asked > ONE_REQUEST_S) {
		signal(sig, SIG_DFL);
		raise(sig); /* delivered as this handler returns */
	}
}

void mt_signals(bool twice_kills)
{
	static const int sigs[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR1};
	second_kills = twice_kills;
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
		struct sigaction old, sa = {.sa_handler = on_signal};
		sigaction(sigs[i], NULL, &old);
		if (old.sa_handler != SIG_IGN) sigaction(sigs[i], &sa, NULL);
	}
}

void mt_die_of_signal(int sig)
{
	signal(sig, SIG_DFL);
	raise(sig);
	_exit(128 + sig);
}

/* ---- lost memory */

static struct sigaction fault_before[2]; /* of SIGBUS, SIGSEGV */

/* A fault inside a region: its file was truncated, or is on a disk that failed. The program cannot continue without it.
 * Any other fault is a bug: restore the previous handler, and the instruction faults again. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code > 0 && region_at(info->si_addr)) {
		static const char text[] =
			": the run's shared memory is gone (a region was truncated): mt-store rm --force, then "
			"load a checkpoint\n";
		static atomic_flag once = ATOMIC_FLAG_INIT;
		while (atomic_flag_test_and_set(&once)) pause(); /* another thread prints it and exits */
		char line[200];
		size_t n = strnlen(mt_program_name, 60);
		memcpy(line, mt_program_name, n);
		memcpy(line + n, text, sizeof text - 1);
		if (write(STDERR_FILENO, line, n + sizeof text - 1) < 0) {}
		_exit(MT_EX_DATA);
	}
	sigaction(sig, &fault_before[sig == SIGSEGV], NULL);
	if (info->si_code <= 0) raise(sig); /* sent by another process: it will not be raised again by itself */
}

void mt_watch_faults(void)
{
	struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	sigaction(SIGBUS, &sa, &fault_before[0]);
	sigaction(SIGSEGV, &sa, &fault_before[1]);
}
