/* ckpt.h: declarations that the files of mt-ckpt share. Errors are as in hf/hf.h. */
#ifndef MT_CKPT_H
#define MT_CKPT_H

#include <pthread.h>
#include "out.h"
#include "runjson.h"
#include "mt/tier.h"

struct mt_committed;
struct mt_run;

/* ---- parts.c */

#define SET_NAME 64

struct parts { /* the tensors of lo, m or v in files: those of the model, or what nodes own of units: tensors of one
				* dimension named unit.U[FIRST:END], by unit and element */
	struct mt_tensor *v;
	/* tensors, and of a part: 2 with int8, codes and scales, which are `exact`; 0: they are the model's */
	uint32_t n, each;
};

/* Those of the nodes [first, end) of `nodes`; without empty ones. v to be freed */
int parts_list(struct parts *, const struct mt_layout *, uint32_t first, uint32_t end, uint32_t nodes, enum st_dtype);
uint32_t parts_find(const struct parts *, uint32_t unit, uint64_t at);          /* that holds the element: its first */
void parts_set(char name[SET_NAME], enum array, uint32_t node, uint32_t nodes); /* "optim-m", "optim-m-node-0-of-2" */

/* ---- chunks.c */

struct chunks { /* of files that run.json lists: which are read, hashed, compared with the checksums and written */
	int from;   /* directory that has them, */
	int (
		*read)(void *arg, uint64_t at, uint64_t *n, void *buf); /* or the bytes of the only one from `at` on, at most */
	void *arg;                                                  /* *n, which becomes how many */
	struct out_dir *to;                                         /* gets them; NULL: they are only read */
	uint64_t *sums; /* the checksums of the only one, which are not known; NULL: they are compared */
	struct listed {
		const char *name;
		const json_t *entry; /* {"bytes": N, "xxh3": [...]} */
		uint64_t chunk;
		struct out_file *to;
	} * v;
	int64_t n;
};

int chunks_add(struct chunks *, const char *name, const json_t *entry); /* the strings and the tree must outlive it */
/* All of them, if rc is 0, and release it. 65 names file and chunk: it has other bytes */
int chunks_pass(struct chunks *, int rc);
/* Verify run.json's object of files: all, one only, or all without one */
int files_verify(int dirfd, json_t *files, const char *only, const char *without);
int files_lengths(int dirfd, json_t *files); /* 74: a file is missing or has another length */

/* ---- steps.c */

#define STEP_NAME 40
void step_name(char name[STEP_NAME], uint64_t step);
bool step_parse(const char *name, uint64_t *step); /* false: it is no checkpoint's name */
bool step_is_in(int dirfd, uint64_t step);
size_t steps_in(int dirfd, uint64_t **steps); /* the newest first, to be freed; returns how many */

/* ---- source.c, and the first one of carried.c */

struct carried { /* what a directory has beside the text model (carried.c); zero: nothing */
	json_t *record;
	const char *source, *prefix, *head; /* directory; what stands before the text model's names; the LM head's name */
	const char *checkpoint;             /* that was loaded, and has the new file; NULL: none */
	bool dropped;                       /* --drop-unused: the tensors are left out */
	struct carried_tensor {
		const char *name, *file; /* in the directory */
		uint64_t begin, bytes;   /* in that file */
		uint64_t at;             /* in the data of the new one */
		bool fp8;                /* there it is FP8, and `bytes` is its length as bf16 */
	} * v;
	uint32_t n;
	char *header; /* of the new file, and its length */
	uint64_t header_bytes, bytes;
	struct shard_other other;  /* the new file, for the index */
	json_t *entry;             /* the new file, as run.json lists it */
	const struct model *model; /* of the directory, to read what is FP8; NULL: not opened */
	int from;                  /* the same, opened */
};

struct source { /* a directory to load or verify */
	const char *path;
	int dirfd; /* path: for messages, and for config.json */
	struct mt_geometry geo;
	struct mt_layout layout; /* layout.tensors: those of lo, m and v; as_read.tensors: those of w */
	struct mt_layout as_read;
	bool full;
	struct run_json json; /* of run.json, if `full` */
	json_t *root, *files;
	struct model model[ARRAYS]; /* lo, m, v: if `full` */
	struct parts parts[ARRAYS]; /* lo, m, v: without names: what tiles have */
	/* w: (as_read.n_tensors); others: (parts.n); NULL: no such array, or tiles have the tensor */
	struct st_entry **found[ARRAYS];
	struct tile_file { /* of a run with a tier: (layout.tier.tiles), in the order of a pass; NULL: it is of none */
		char name[MT_TILE_NAME];
		struct mt_tile tile; /* arrays, seal and bytes are by the file's header */
		uint32_t number;
		uint64_t sum; /* of the seal, by run.json */
	} * tiles;
	struct carried carried; /* of a checkpoint that has the record of it, by carried_find: its file is not opened */
};

/* Open the directory and run.json; `weights`: ignore run.json. 65: it has the name or the optimizer files of a
 * checkpoint, but no run.json. */
int source_open(struct source *, const char *dir, bool weights);
/* config.json -> geo and layout; mtp: with multi-token prediction, whose loss has this weight; 0: as the file says */
int source_config(struct source *, double mtp);
int source_models(struct source *); /* every tensor of config.json's model is there */
int source_checksums(struct source *);
/* n elements of lo, m or v: from element `from` of tensor `index` on, which in its unit is element `at`. lo as it is,
 * m and v as fp32 patterns; raw: for these a buffer of BLOCK_BYTES, where n is at most BLOCK_BYTES / 4 */
int source_state(const struct source *, enum array, uint32_t index, uint64_t from, uint64_t at, uint64_t n, void *raw,
	void *out);
/* Codes and scales of m or v in int8, as the files have them: of n elements of a unit from `at` on, in whole groups */
int source_codes(const struct source *, enum array, uint32_t unit, uint64_t at, uint64_t n, uint8_t *codes,
	float *scales);
void source_close(struct source *);

/* ---- tiles.c */

int tiles_open(struct source *); /* all files of tiles that run.json lists are there, with their seals */
bool tiles_have(const struct source *, enum array, uint32_t unit);
void tiles_leave_out(const struct source *, enum array, struct parts *); /* take the names of those that tiles have */
/* n elements of a unit's array from `at` on, as they are in the files; or the scales of whole groups */
int tiles_read(const struct source *, enum array, bool scales, uint32_t unit, uint64_t at, uint64_t n, void *out);
int tiles_verify(struct source *); /* 65: names file and chunk */
/* Has the run the same tiles, and can links to the checkpoint's files be below its directories? */
bool tiles_fit(const struct mt_run *, const struct source *);
int tiles_link(const struct mt_run *, const struct source *); /* links take the place of all of the run's files */

/* ---- links.c: the tiles of a run with a tier in a checkpoint that serve writes */

struct links {
	struct mt_run *run;
	bool copy; /* --copy-tier */
	int fds[MT_TIER_DIRS];
	uint32_t dirs; /* of the run's tier; 0: it has none, and all below does nothing */
	/* of the save: */
	const struct out_dir *dir;
	uint64_t step, t;
	const uint8_t *run_id; /* in the tiles' seals */
	uint64_t *sums;        /* in the seal of each tile */
};

/* 66: a directory of the tier is gone; 78: links cannot be in dirfd. Deletes what a dead saver has left */
int links_open(struct links *, struct mt_run *, int dirfd, const char *path, bool copy);
void links_close(struct links *);
/* A save of the pinned step, with Adam's t. 74: too little room on the disk. Drop it after an error, too */
int links_begin(struct links *, const struct out_dir *, uint64_t step, uint64_t t);
int links_unit(const struct links *, uint32_t unit); /* its tiles, when they are written. Any thread may call it */
int links_end(struct links *, struct run_json *); /* makes all durable; fills json->tier, whose files are to be freed */
void links_drop(struct links *);

/* ---- kept.c */

struct kept { /* the files of a directory that a run keeps */
	struct mt_file *file;
	void **data;
	uint32_t n;
	uint64_t bytes;
	uint32_t left_out; /* files that are too large or too many; the first one, and why: */
	char why[256];
	bool quiet; /* no warning of them */
};

/* 65: a git-lfs pointer, or not a regular file. Release it after an error, too. */
int kept_read(struct kept *, const struct source *);
/* Answers that are trained on end in one of these tokens, ID[,ID], the first that is a special one of the tokenizer:
 * generation_config.json gets it as eos_token_id, and one line says so. ids: NULL: not known */
int kept_turn_end(struct kept *, const struct source *, const char *ids);
void kept_release(struct kept *);
/* data: becomes its own, also after an error */
int kept_add(struct kept *, const char *name, char *data, size_t bytes);
/* A kept file's name: of a file in a directory, or of one in a directory in it */
bool kept_name_valid(const char *name);
int kept_directory(struct out_dir *, const char *name); /* make the directory in it that the name has, if any */
int kept_write(const char *name, const void *data, size_t bytes, void *out_dir); /* mt_files_each */

/* ---- carried.c */

#define CARRIED_FILE "model-carried.safetensors"
#define CARRIED_RECORD ".mt-carried.json" /* a kept file, which only checkpoints get: what is carried, and from where */

/* Before a checkpoint is loaded: its record, if it has one. 65: neither its file nor any other has the recorded bytes;
 * drop: the file is not looked at. */
int carried_find(struct source *, bool drop);
/* What the source has beside the text model that was found in it, with checksums, or its record: into the kept files.
 * drop: nothing is carried. Empties source's carried */
int carried_note(struct kept *, struct source *, bool drop);
int carried_say(const struct source *, bool drop);         /* only a line on stderr: what is carried */
int carried_open(struct carried *, const struct mt_run *); /* the same of a run */
void carried_close(struct carried *);
/* The tensors of the files under the names that were read, n of them; to be freed */
int carried_table(const struct carried *, const struct mt_layout *files, struct mt_tensor **table, uint32_t *n);
/* Write the file: a copy, or a link to that of a checkpoint beside dir which is not the newest. 66: the source is gone,
 * or has changed */
int carried_write(const struct carried *, struct out_dir *, bool link);

/* ---- state.c */

/* The content of run.json for a run at the committed step `at`. state_release frees it, also after a failure. */
int state_read(struct mt_run *, const struct mt_committed *at, struct run_json *);
void state_release(struct run_json *);
/* The metrics of steps up to `step` whose metrics lines are not written. Waits some seconds for a live mt-step that is
 * about to write them. */
void state_unlogged(struct mt_run *, uint64_t step, struct mt_figures out[2]);

/* ---- convert.c */

static inline bool half_nonfinite(uint16_t bits) { return (bits & 0x7f80) == 0x7f80; } /* of bf16 */
static inline bool full_nonfinite(uint32_t bits) { return (bits & 0x7f800000u) == 0x7f800000u; }

/* n elements. fp32 to bf16; a bf16 run's w and lo to fp32, and back */
void convert_round(uint16_t *out, const uint32_t *bits, uint64_t n);
void convert_join(uint32_t *out, const uint16_t *w, const int16_t *lo, uint64_t n);
void convert_split(uint16_t *w, int16_t *lo, const uint32_t *bits, uint64_t n);
bool convert_any_nonfinite(enum mt_dtype, const void *w, uint64_t n); /* is one infinite or NaN? */

/* ---- nonfinite.c */

struct nonfinite { /* weights that are infinite or NaN, and the first tensor of the table that has one */
	uint64_t n;
	uint32_t index;
	char name[MT_TENSOR_NAME];
};

/* Count those among n weights of tensor `index`. Any thread may call it. Returns the index of the first one, n if all
 * are finite. */
uint64_t nonfinite_count(struct nonfinite *, uint32_t index, const char *tensor, enum mt_dtype, const void *w,
	uint64_t n);
void nonfinite_warn(const struct nonfinite *); /* one line on stderr, if there are any */

/* ---- work.c */

#define WORK_BYTES (1u << 20)    /* of a thread's buffer: small enough for its core's cache; STAGE_BYTES follow it */
#define BLOCK_BYTES (512u << 10) /* that pass through that buffer, or the cache, at once */
enum { WORK_THREADS = 64, SERVE_THREADS = 4 };

extern uint64_t work_threads; /* --threads; 0: not given */

struct work {          /* threads, each with a buffer */
	struct pool *pool; /* NULL: the caller alone */
	void *buf;
};

/* As many threads as there are cores, but not more than `most`, unless --threads says how many */
int work_begin(struct work *, uint64_t most);
int work_size(const struct work *); /* number of threads */
/* fn(arg, task, buf) for every task in 0..tasks-1, which are begun in this order; buf: WORK_BYTES, the thread's own. If
 * tasks fail, later ones are left out, and the result is the error of the first. */
int work_run(struct work *, int64_t tasks, int (*fn)(void *arg, int64_t task, void *buf), void *arg);
void work_end(struct work *);

/* ---- write.c */

struct chunk { /* of a file: what one thread writes at once */
	enum array array;
	uint32_t shard, number;
	uint32_t first, last; /* units whose tensors it holds; last < first: none, it is all header */
	uint32_t turn;        /* of the last of them */
};

/* w; with lo, m and v; the same without what is on the tier */
enum write_what { WRITE_MODEL, WRITE_ALL, WRITE_RESIDENT };

struct writer { /* writes a run's arrays into a directory */
	struct mt_run *run;
	struct out_dir *dir;
	enum mt_dtype dtype; /* of the weights in the files */
	struct shards set[ARRAYS];
	bool has[ARRAYS];
	struct parts parts[ARRAYS]; /* lo, m and v that are written here */
	char set_name[ARRAYS][SET_NAME];
	struct carried carried;
	struct mt_layout files; /* w, in the form in which it was loaded */
	enum write_what what;
	struct mt_tensor *table; /* the same of a wrapper, under the names in the files; NULL: it is of none */
	struct work work;
	struct chunk *chunks; /* in the order of units */
	uint32_t n_chunks;
	_Atomic uint32_t *left; /* (units) chunks that hold parts of it and are not written yet */
	pthread_mutex_t opening;
	bool stoppable;        /* a signal stops it */
	struct nonfinite seen; /* of the weights written so far */
	/* called by any thread when all of a unit is written; may be NULL */
	int (*copied)(void *arg, uint32_t unit);
	/* does somebody wait for units that are not written yet? May be NULL */
	bool (*awaited)(void *arg);
	void *arg;
};

/* Of several nodes the first writes w, each its part of the rest. limit: maximum bytes of a shard. threads: at most */
int writer_begin(struct writer *, struct mt_run *, struct out_dir *, enum mt_dtype, enum write_what, uint64_t limit,
	uint64_t threads);
int writer_units(struct writer *); /* all units, about in ascending order */
int writer_end(struct writer *);   /* writes the indexes, config.json, the kept files */
void writer_drop(struct writer *);

/* ---- nodes.c */

struct shared { /* the directory of checkpoints, of which all nodes must see the same one */
	struct mt_run *run;
	const char *path;
	int dirfd, fd;  /* fd: node 0: of the file that shows it, locked */
	uint64_t token; /* node 0: number in that file's name; others: the number to look for */
	double since;
};

/* Node 0: make the file, and wait until all other nodes' mt-ckpt have found it. 78: one has not; 1: the run is gone, or
 * the process was asked to stop */
int shared_begin(struct shared *, struct mt_run *, const char *path, int dirfd);
/* To be called in every round. Another node: 78: it is not the directory in which node 0 made its file */
int shared_look(struct shared *);
void shared_end(struct shared *);
int check_pinned(struct mt_run *, uint64_t step); /* 66: the run is gone; 69: its save was given up */
/* Node 0: take the other nodes' files of the step when all are written. 69: one has failed */
int parts_collect(struct mt_run *, int dirfd, const char *base, uint64_t step, struct out_dir *to);
/* The same of parts that are there already */
int parts_take(struct mt_run *, int dirfd, const char *base, uint64_t step, struct out_dir *to);

/* ---- verify.c */

/* Read back a new directory before an older one is deleted: run.json, config.json, every header and length. The tensor
 * bytes, whose checksums were computed while they were written, are not read. */
int verify_written(int dirfd, const struct mt_geometry *run, bool full);
/* rc: of writing it: if that is 0, make it durable, read it back, and give it its name; else delete it */
int verify_and_rename(struct out_dir *, int rc, const struct mt_geometry *run, bool full);

/* ---- best.c */

/* Of these n steps the one with the lowest eval loss in mt-step's metrics. 1; 0: none was evaluated; -74: the file
 * cannot be read */
int best_checkpoint(const char *metrics, const uint64_t *steps, size_t n, uint64_t *best);

/* ---- commands */

struct how_load {         /* what load, and verify as if it loaded, make of a directory */
	bool drop;            /* --drop-unused */
	const char *turn_end; /* --turn-end; NULL: not given */
};

int ckpt_load(const char *run, const char *dir, bool weights, bool new_record, const struct how_load *); /* load.c */
int ckpt_save(const char *run, const char *dir, bool part, uint64_t shard); /* save.c; part: of several nodes */
int ckpt_export(const char *run, const char *dir, enum mt_dtype, uint64_t shard, bool replace); /* save.c */
int ckpt_export_from(const char *from, const char *dir, bool replace);                          /* copy.c */
/* a directory whose model has other rows of tokens */
int ckpt_resize(const char *from, const char *dir, uint64_t vocab, bool replace); /* resize.c */
int ckpt_map(const char *run);                                                    /* map.c */
/* best: keep the best checkpoint of this file of metrics, too; may be NULL */
int ckpt_serve(const char *run, const char *dir, uint64_t keep, const char *best, uint64_t shard,
	bool copy_tier); /* serve.c */
/* as_load: what load takes from elsewhere may be damaged; drop: as load's */
int ckpt_verify(const char *dir, bool as_load, const struct how_load *); /* verify.c */

#endif
