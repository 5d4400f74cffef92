/* supervise.h: mt-run while a run is there: who is started, watched and ended. */
#ifndef MT_STORE_SUPERVISE_H
#define MT_STORE_SUPERVISE_H

#include <stdbool.h>
#include <sys/types.h>

#include "start.h"

/* Descriptors that the script has opened, see bin/run/mt-run. The locks also go to stages: OUT is in use as long as one
 * of them lives. */
enum { FD_SHIM = 3, FD_REQUESTS = 4, FD_LOCK_TMP = 5, FD_LOCK_OUT = 7, FD_ANSWERS = 8, FD_STDIN = 9 };

/* ---- child.c: programs */

/* Where a program's stdin, stdout and stderr come from and go to: a descriptor, or the name of a file; "": /dev/null.
 * Where its errors go to a file, they do not go to MT_LOG. */
struct streams {
	int in, out;
	const char *in_file, *out_file, *err_file; /* NULL: the descriptor */
	int err;                                   /* 0: mt-run's stderr */
	int keep;                                  /* a descriptor that it holds too; 0: none */
	bool without_locks;
	bool ends_with_us; /* it is killed when this process ends */
};
/* Reset the signals that mt-run and its programs count on, which the caller may ignore or block. Not HUP, INT, TERM and
 * USR1: a caller that ignores them wants mt-run to do so. */
void child_defaults(void);
/* A new process, to which HUP, INT and TERM mean nothing, and USR1 what it means by default. Returns 0 in it */
pid_t child_fork(void);
/* Start argv, which PATH finds */
pid_t child_start(char *const argv[], const struct streams *);
int child_code(int status); /* its exit code, or 128 and the signal */

/* ---- keeper.c: the process that makes the run and keeps it served, also when mt-run has died */

struct keeper {
	const char *run, *id, *dir;
	pid_t pid;
	int owner[2]; /* mt-store's stdin, and the end that nobody else has; -1: closed, in order */
	int report;   /* the exit code of create comes from here; -1: it has come */
	bool over;
};
/* create: mt-store's words; NULL: the run is there */
void keeper_start(struct keeper *, char *const create[]);
/* The exit code of create, read from `report`. 137: it was killed, and nothing of the run is left */
int keeper_created(struct keeper *);
void keeper_tell(const struct keeper *, const char *line); /* to mt-store, see owner.c */
void keeper_end(struct keeper *);                          /* the run's owner ends, in order */

/* ---- supervise.c, count.c, json.c, keeper.c, samples.c: what the program does in the script's name */

_Noreturn void supervise(int argc, char **argv);
_Noreturn void count(int argc, char **argv);
_Noreturn void json(int argc, char **argv);
_Noreturn void object(int argc, char **argv);
_Noreturn void unborn(int argc, char **argv);
_Noreturn void samples(int argc, char **argv);

#endif
