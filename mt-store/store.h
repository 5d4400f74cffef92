/* store.h: mt-store's verbs. Each is a separate file; each returns 0 or minus an exit code, its line in
 * mt_errmsg(). */
#ifndef MT_STORE_H
#define MT_STORE_H

#include "cli/cli.h"
#include "mt/memory.h"

struct store_options { /* of all verbs together; mt-store.c checks which verb takes which */
	const char *config, *dtype, *grad, *state, *optim, *numa;
	const char *ring, *like, *dir, *node, *streams;
	const char *tier, *tier_memory, *update, *id, *train, *freeze;
	uint64_t step_tokens, top, seed, tile, tier_slots;
	double mtp;
	bool json, force, until_eof, prometheus, abi, memory, quiet;
};

int store_create(const char *run, const struct store_options *);
int store_init(const char *run, const struct store_options *);
int store_serve(const char *run, const struct store_options *);
int store_stat(const char *run, const struct store_options *); /* run may be NULL: $MT_RUN */
int store_ls(const char *run, const struct store_options *);   /* run may be NULL: all */
int store_rm(const char *run, const struct store_options *);
int store_ring(const char *run, const struct store_options *);

/* owner.c: serve --until-eof: the run ends with its owner, who keeps the write end of the pipe on our stdin */
struct owner_end {
	uint64_t requested;         /* slot word of the mt-step that was asked to stop */
	int insisted;               /* signals since */
	bool owned;                 /* there is an owner: serve --until-eof */
	bool failed;                /* the owner has said that a stage has failed, and kills mt-step */
	bool unsaved;               /* of several nodes: the owner has said that the last save has failed */
	bool in_order;              /* the owner has announced its end */
	const char *dir;            /* where steps are saved */
	bool replaceable[MT_SLOTS]; /* the last holder of mt-optim's, mt-tier's or mt-ckpt's slot is that, not a user's */
	int optim, tier, saver; /* pids of those that were started to finish an update; 0: none, -1: it cannot be started */
};
int owner_check(const struct store_options *); /* 0, or 64: this stdin cannot show the owner's end */
/* Is stdin at its end? Also reads the owner's lines */
bool owner_gone(struct owner_end *);
/* from then on TERM, INT and HUP are counted, also if they were ignored at exec */
void owner_signals(void);
/* one look; true: nobody changes the run any more */
bool owner_end_turn(struct mt_run *, const char *name, struct owner_end *);
/* Save the state in dir, if it is not there, and remove the run. An error, and the run stays, if it cannot be saved. */
int owner_end_run(struct mt_run *, const char *name, const char *dir, const struct owner_end *);

/* abi.c: stat --abi: the shared structures, as shm/ABI.md lists them, and as JSON. 0 or minus an exit code */
int abi_text(void);
int abi_json(void);
/* memory.c: stat --memory: what a new run may take, as lines or as JSON */
void memory_print(bool json);
/* prometheus.c: stat --prometheus, in the text exposition format 0.0.4 */
struct look;
void print_prometheus(const struct look *);

/* words.c: words that several verbs share */
void run_id_text(struct mt_run *, char id[33]); /* as run.json has it */
/* Behind the other types: ", optimizer state bf16"; nothing for fp32 */
const char *moments_words(uint32_t dtype);
/* Before it: ", optimizer lion"; nothing for adamw */
const char *optim_words(uint32_t optim);
const char *state_word(enum mt_state);
uint64_t store_bytes(struct mt_run *); /* of the store region; the run is open with MT_RUN_WEIGHTS */
/* The share of the store, by samples, that lies on huge pages; below 0: it cannot be found out. The run is open with
 * MT_RUN_WEIGHTS. */
double store_on_huge_pages(struct mt_run *);
/* Do regions lie on a file system that is not memory, and so stay when the machine goes down? */
bool outlives_memory(void);
/* Does a session's last logout delete this user's files in /dev/shm? (systemd's RemoveIPC) */
bool logout_removes(void);

/* random.c: normal numbers that depend on (seed, stream, index) alone, so that threads may share the work as they like.
 * normal_pair gives those of index 2 * pair and 2 * pair + 1. */
void normal_pair(uint64_t seed, uint32_t stream, uint64_t pair, double out[2]);

#endif
