/* store.h: mt-store's verbs. Each is a file of its own; each returns 0 or minus an exit code, its line in mt_errmsg(). */
#ifndef MT_STORE_H
#define MT_STORE_H

#include "cli.h"

struct store_options {          /* of all verbs together; mt-store.c checks which verb takes which */
	const char *config, *dtype, *grad, *numa;
	const char *ring, *like;
	uint64_t step_tokens, seed;
	bool json, force;
};

int store_create(const char *run, const struct store_options *);
int store_init(const char *run, const struct store_options *);
int store_serve(const char *run, const struct store_options *);
int store_stat(const char *run, const struct store_options *);
int store_ls(const char *run, const struct store_options *);    /* run may be NULL: all */
int store_rm(const char *run, const struct store_options *);
int store_ring(const char *run, const struct store_options *);

/* words.c: what several verbs say alike */
const char *dtype_word(uint32_t dtype);             /* "bf16", "fp32", "none" */
const char *state_word(enum mt_state);
uint64_t store_bytes(struct mt_run *);              /* of the store region; the run is open with MT_RUN_WEIGHTS */
/* Do regions lie on a file system that is not memory, and so stay when the machine goes down? */
bool outlives_memory(void);
/* Does a session's last logout delete this user's files in /dev/shm? (systemd's RemoveIPC) */
bool logout_removes(void);

/* random.c: normal numbers that depend on (seed, stream, index) alone, so that threads may share the work as they like.
 * normal_pair gives those of index 2 * pair and 2 * pair + 1. */
void normal_pair(uint64_t seed, uint32_t stream, uint64_t pair, double out[2]);

#endif
