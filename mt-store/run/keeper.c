/* keeper.c: between mt-run and mt-store stands a process that makes the run, and then keeps it served until it is gone.
 * It outlives mt-run: however that ends, there is somebody who ends the run. mt-store's stdin is a pipe whose other end
 * only mt-run has (see owner.c).
 *
 *     what happens                       what follows
 *     mt-run dies while create works     create ends, mt-store serves, sees the pipe's end, and removes the run
 *     mt-run dies later                  mt-store sees the pipe's end, saves what was trained, and removes the run
 *     create is killed                   the keeper removes what it has made; mt-run ends
 *     the keeper dies while create works create dies with it; mt-run removes what it has made, and ends
 *     mt-store is killed                 the keeper starts another one, unless the run is gone
 *     the keeper is killed later         mt-store goes on; mt-run starts another keeper, which waits for its end, also
 *                                        if it comes to the run later than one which that keeper starts
 *     mt-run and the keeper are killed   mt-store sees the pipe's end
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "lib.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/wait.h"
#include "supervise.h"

enum { MOST_STARTS = 100, LOOK_MS = 50, LEAVE_LOOKS = 100, DYING_S = 60 };

static int wait_for(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR) return 128;
	return child_code(status);
}

/* Is there a run? Sets the pid of the mt-store that serves it, 0: none. What cannot be found out is for mt-store to
 * say. */
static bool is_there(const char *name, pid_t *server)
{
	struct mt_run *run;
	int rc = mt_run_open(&run, name, MT_RUN_CONTROL | MT_RUN_READONLY);
	*server = !rc && mt_stage_alive(run, MT_STORE) ? mt_stage_pid(run, MT_STORE) : 0;
	if (!rc) mt_run_close(run);
	return rc != -MT_EX_NOINPUT;
}

/* Until the mt-store has ended whose keeper was killed. Returns whether the run is there. */
static bool await_server(const char *name)
{
	pid_t server, last = 0;
	bool there;
	while ((there = is_there(name, &server)) && server) {
		last = server;
		mt_nap(LOOK_MS);
	}
	for (int i = 0; last && i < LEAVE_LOOKS && kill(last, 0) == 0; i++) mt_nap(LOOK_MS); /* it has left the run */
	return there;
}

static int serve(const struct keeper *k)
{
	char *argv[] = {"mt-store", "serve", (char *)k->run, "--until-eof", "--dir", (char *)k->dir, NULL};
	const struct streams streams = {.in = k->owner[0], .out_file = ""};
	pid_t server;
	for (int i = 0; i < MOST_STARTS; i++) {
		if (!await_server(k->run)) return 0;
		int code = wait_for(child_start(argv, &streams));
		/* that of a keeper which was killed has come to the run since, or has ended it */
		if (code == MT_EX_BUSY && (!is_there(k->run, &server) || server)) continue;
		if (code < 128) return code;
		if (is_there(k->run, &server)) mt_say("mt-store was killed by signal %d", code - 128); /* not at its end */
	}
	return MT_EX_PEER;
}

/* What is half made then, the next create of this name removes */
static uint64_t remove_unborn(const char *run, const char *digits)
{
	uint8_t id[16];
	uint64_t bytes;
	(void)run_remove_half(run, mt_parse_hex(digits, id, sizeof id) ? NULL : id, DYING_S, &bytes);
	return bytes;
}

/* RUN ID: prints the bytes that it had */
void unborn(int argc, char **argv)
{
	if (argc != 3) mt_die(MT_EX_USAGE, "unborn: for the script alone");
	printf("%llu\n", (unsigned long long)remove_unborn(argv[1], argv[2]));
	exit(0);
}

_Noreturn static void keep(const struct keeper *k, char *const create[], int report)
{
	static const int of_mt_run[] = {FD_SHIM, FD_REQUESTS, FD_ANSWERS, FD_STDIN};
	for (int i = 0; i < 4; i++) close(of_mt_run[i]);
	close(k->owner[1]);
	signal(SIGUSR1, SIG_IGN);
	signal(SIGPIPE, SIG_IGN); /* mt-run may be gone */
	if (create) {
		const struct streams streams = {.in_file = "", .out_file = "", .ends_with_us = true};
		unsigned char code = (unsigned char)wait_for(child_start(create, &streams));
		if (code > 128) remove_unborn(k->run, k->id);
		ssize_t w = write(report, &code, 1);
		(void)w;
		if (code) _exit(0);
		close(report);
	}
	_exit(serve(k));
}

void keeper_start(struct keeper *k, char *const create[])
{
	int report[2] = {-1, -1};
	if (k->owner[1] < 0 && pipe2(k->owner, O_CLOEXEC)) mt_die(MT_EX_NOMEM, "a pipe: %s", strerror(errno));
	if (create && pipe2(report, O_CLOEXEC)) mt_die(MT_EX_NOMEM, "a pipe: %s", strerror(errno));
	k->pid = child_fork();
	if (k->pid == 0) {
		if (create) close(report[0]);
		keep(k, create, report[1]);
	}
	if (create) close(report[1]);
	k->report = report[0];
	if (k->over) keeper_end(k);
}

int keeper_created(struct keeper *k)
{
	unsigned char code;
	if (read(k->report, &code, 1) != 1) {
		code = 128 + SIGKILL;
		remove_unborn(k->run, k->id);
	}
	close(k->report);
	k->report = -1;
	return code;
}

void keeper_tell(const struct keeper *k, const char *line)
{
	if (k->owner[1] < 0) return;
	ssize_t w = write(k->owner[1], line, strlen(line));
	(void)w; /* mt-store has a pipe of 64 KiB */
}

void keeper_end(struct keeper *k)
{
	keeper_tell(k, "over\n");
	for (int i = 0; i < 2; i++) {
		if (k->owner[i] >= 0) close(k->owner[i]);
		k->owner[i] = -1;
	}
	k->over = true;
}
