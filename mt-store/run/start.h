/* start.h: mt-run's program: the start of its script, and what stays of it on several nodes. */
#ifndef MT_STORE_START_H
#define MT_STORE_START_H

#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "mt/error.h"

/* options.c: --help, --version and --options (shm/cli/README.md) of mt-run, for the script */
_Noreturn void run_options(int argc, char **argv);

/* node.c. Before all else, where mt-run runs on several nodes: from now on signals wait until somebody looks for them.
 * A launcher's signals must end nothing that has just begun. */
void node_hold_signals(void);
/* Which node this is by the launcher's environment: sets MT_RUN_NODE for the script, "NODE/NODES/". Ends with 64 if a
 * launcher has not started this process, or its environment names no node of the run. Returns the number of nodes; if
 * that is 1, MT_RUN_NODE is not set: the run is one of one machine. */
int node_find(void);
/* Start the script as a worker, pass signals on to it, and end as it does */
_Noreturn void node_shim(const char *script, char **argv);
/* The process goes on as the script, which handles signals by itself */
void node_release_signals(void);

#endif
