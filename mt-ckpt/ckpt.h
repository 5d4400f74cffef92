/* ckpt.h: declarations that the files of mt-ckpt share. Functions return 0 or, as libmt's do, minus an exit code with a
 * message in mt_errmsg(). Messages about a file begin with its name. */
#ifndef MT_CKPT_H
#define MT_CKPT_H

#include <dirent.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <xxhash.h>
#ifdef XXH_DISPATCH
#include <xxh_x86dispatch.h> /* the same functions by other names, with the same results */
#endif
#include "mt/error.h"
#include "mt/layout.h"
#include "mt/memory.h"

struct mt_committed;
struct mt_run;

/* ------------------------------------------------------------------------------------------------ hf/files.c */

#define JSON_LIMIT 100000000u /* maximum bytes of a JSON text: safetensors' own limit for a header */
#define IO_BYTES (16u << 20)  /* one read or write, and one checksummed chunk */

/* A text of a file, safe to print in one line: control characters become '?', long text is cut. Valid until the fourth
 * call after this one. */
const char *shown(const char *text);
int fail_errno(const char *what); /* "what: strerror", with the exit code for errno */

/* Open a regular file for reading. Anything else is 65; a FIFO does not block. */
int file_open(int dirfd, const char *name, int *fd, uint64_t *size);
/* Read all n bytes at off; 65 if the file ends before. `name` is for the message. */
int file_read(int fd, const char *name, void *buf, uint64_t n, uint64_t off);
/* Read a whole small file and append a NUL; to be freed. 65 above `limit` bytes. */
int file_read_all(int dirfd, const char *name, uint64_t limit, char **data, size_t *n);
int file_read_json(int dirfd, const char *name, json_t **); /* an object; NULL on failure */
/* The text of a tree, indented by `indent` (0: on one line), with just enough digits to read the same numbers again. To
 * be freed; NULL without memory. */
char *json_text(const json_t *, size_t indent);
/* Add a value to a tree. The first failure (71: no memory; 65: not UTF-8) stays in *rc, and later calls do nothing. The
 * tree owns the value. NULL, which jansson returns without memory, is a failure. */
void json_put(int *rc, json_t *object, const char *key, json_t *value);
/* text up to a NUL or `room`, at most 255 bytes */
void json_put_text(int *rc, json_t *object, const char *key, const char *text, size_t room);
void json_add(int *rc, json_t *array, json_t *value);
json_t *json_number(double);                      /* null for infinity and NaN */
json_t *json_hex(const uint8_t *bytes, size_t n); /* a text of 2 n hexadecimal digits, n <= MT_CHOICE_VALUE */
void hex_decode(const char *digits, uint8_t *);   /* an even number of valid digits -> bytes */
bool file_name_plain(const char *name);           /* names a file in its directory: no slash, ... */
bool file_exists(int dirfd, const char *name);
int dir_open(const char *path, int *fd); /* 66: does not exist; 65: not a directory */
DIR *dir_list(int dirfd);                /* to read its entries, closed by closedir; NULL with errno */

/* ------------------------------------------------------------------------------------------------ outdir.c */

struct out_dir {      /* a new directory: it appears complete or not at all */
	int parent, fd;   /* fd holds a lock: an unlocked temporary directory has no writer */
	char *base, *tmp; /* names in parent: the final one, and the temporary one */
	char path[4300];  /* its final one, for messages */
	/* at its end: renamed to a name that is free; replaces the directory of that name; or its files move to parent */
	enum out_end { OUT_NEW, OUT_REPLACE, OUT_INSIDE } end;
	struct out_file **files;
	uint32_t n_files;
	_Atomic uint32_t unsynced; /* files that were completely written and wait for out_sync */
	bool no_sums;              /* no checksums are computed */
	/* from now on, all is written through the page cache: direct I/O has failed, or somebody waits for what is being
	 * copied, and must not wait for the disk */
	_Atomic bool cached;
};

/* Begin PATH under a temporary name beside it, or inside it if it exists. 73: it is not an empty directory; with
 * `replace`: nor one that mt wrote. Such a directory is deleted when the new one is durable. */
int out_begin(struct out_dir *, const char *path, bool replace);
/* BASE in an open parent of this path; replaces any directory of that name */
int out_begin_at(struct out_dir *, int parent, const char *path, const char *base);
/* Begin the temporary directory .BASE.mt-tmp-SUFFIX alone, from which node 0 takes another node's files */
int out_begin_part(struct out_dir *, int parent, const char *path, const char *base, const char *suffix);
/* Split the path of a directory that does not exist into its parent, opened, and its name, to be freed in any case. */
int out_split(const char *path, int *parent, char **base);
int out_sync(struct out_dir *); /* makes everything durable but the name */
/* Give it its name, and make that durable; then delete the directory that it replaces. On failure nothing of the new
 * directory is left, and what was there before is there again. Releases the out_dir. */
int out_rename(struct out_dir *);
void out_leave(struct out_dir *); /* releases the out_dir; its directory stays as it is */
void out_abort(struct out_dir *); /* deletes it; mt_errmsg() stays */

/* ------------------------------------------------------------------------------------------------ outfile.c */

struct out_file { /* a file of a new directory */
	struct out_dir *dir;
	char *name;
	int fd;                        /* until it is synced */
	int direct;                    /* the same with O_DIRECT; -1: none */
	uint64_t bytes, *sums, n_sums; /* XXH3 (64 bits) of each IO_BYTES of it; sums NULL: not computed */
	_Atomic uint64_t left;         /* chunks that are not written yet */
};

struct out_chunk { /* IO_BYTES of a file, or its rest, which one thread writes from front to back */
	struct out_file *file;
	uint64_t number, at, end; /* at: of the next byte in the file */
	XXH3_state_t *hash;
	uint8_t *stage;  /* for direct I/O: the bytes before `at` that are not written yet; NULL: none */
	uint64_t staged; /* how many */
};

/* Make a file, and reserve its space. After a failure it is not there. */
int out_create(struct out_dir *, const char *name, uint64_t bytes, struct out_file **);
/* Write the file with direct I/O, if its file system has it: through the page cache, writing takes more CPU time, and
 * pushes other things out of memory. To be called before its first chunk */
void out_direct(struct out_file *);
#define STAGE_BYTES (2u << 20) /* of one direct write */
/* stage: STAGE_BYTES on a page boundary, or NULL: write through the page cache */
int out_chunk_begin(struct out_chunk *, struct out_file *, uint64_t number, void *stage);
int out_write(struct out_chunk *, const void *data, uint64_t n); /* at most up to its end */
/* rc: of writing it; returned if it is an error. Every begun chunk is ended. */
int out_chunk_end(struct out_chunk *, int rc);
int out_sync_file(struct out_file *);
int out_text(struct out_dir *, const char *name, const void *data, uint64_t n); /* a whole file */
/* Move a file that another process wrote from directory `from`; its checksums are copied */
int out_take(struct out_dir *, int from, const char *name, uint64_t bytes, const uint64_t *sums, uint64_t n_sums);
void out_sort(struct out_dir *);            /* the files so far, by name: run.json lists them in this order */
uint64_t out_bytes(const struct out_dir *); /* of the files so far */
void out_release(struct out_dir *);         /* close them, free what is known of them */

/* ------------------------------------------------------------------------------------------------ tmpdir.c */

#define TMP_WAS "was"                                            /* see tmpdir.c */
int tmp_name(const char *base, const char *suffix, char **name); /* .BASE.mt-tmp-SUFFIX, to be freed */
/* rename, unless new_name exists: -1 with errno EEXIST */
int rename_new(int from, const char *name, int to, const char *new_name);
/* Delete a directory that is open as fd, with everything in it. This needs neither memory nor another file descriptor
 * (but for directories inside it): it must work when either has run out. */
int dir_delete(int parent, const char *name, int fd);
/* Delete a directory. It is renamed first, and that made durable: a half-deleted directory never has its name. */
int dir_remove(int parent, const char *name);
int dir_sync(int fd, const char *name); /* name: for the message */
/* Make the path of an open directory durable: fsync its ancestors on the same file system. */
int dir_sync_names(int fd);
/* Delete the directories .step-XXXXXXXX.mt-tmp-SUFFIX */
void dir_clean_parts(int parent, const char *suffix);
/* Clean up in `parent` after writers of `base` that died; base NULL: of any checkpoint of a step. */
void dir_clean(int parent, const char *base);

/* ------------------------------------------------------------------------------------------------ hf/safetensors.c */

enum st_dtype { ST_F32 = 1, ST_BF16, ST_F16, ST_I16, ST_U8, ST_OTHER };
#define ST_DIMS 8

struct st_tensor {
	const char *name; /* in the file's header */
	const char *dtype_name;
	enum st_dtype dtype;
	uint32_t ndim;
	uint64_t shape[ST_DIMS];
	uint64_t begin, end; /* from the file's start; checked against its size */
	bool listed;         /* the index lists it, or there is no index */
};

struct st_file {
	int fd;
	char *name;
	json_t *header;
	struct st_tensor *tensors;
	size_t n; /* sorted by name */
};

int st_open(struct st_file *, int dirfd, const char *name);
/* Parse the n bytes of a header; the file has size >= 8 + n bytes. Close f after an error, too. */
int st_header(struct st_file *f, const char *text, uint64_t n, uint64_t size);
void st_close(struct st_file *);
struct st_tensor *st_find(const struct st_file *, const char *name);

/* ------------------------------------------------------------------------------------------------ hf/model.c */

struct st_entry {
	struct st_file *file;
	struct st_tensor *tensor;
	bool used;
};

struct model {   /* one or several safetensors files */
	char *label; /* for messages: the only file, or the index */
	struct st_file *files;
	uint32_t n_files;
	struct st_entry *entries;
	size_t n; /* sorted by name */
	/* transformers' other names, NULL: none: what stands before the names of the base class, as in model.norm.weight;
	 * and the weights of the LM head, which tied embeddings may be called */
	const char *base, *head;
	size_t base_bytes;
};

/* Open SET.safetensors, or the shards that SET.safetensors.index.json lists; SET: model, optim-m, ... */
int model_open(struct model *, int dirfd, const char *set);
/* Open the n sets in `names`, each a file, as one model. label: a name for all */
int model_open_sets(struct model *, int dirfd, const char *label, char (*names)[64], uint32_t n);
/* Open the shards that a parsed index lists */
int model_shards(struct model *, int dirfd, const json_t *index);
void model_close(struct model *);
bool model_exists(int dirfd, const char *set); /* one file or an index */
struct st_entry *model_find(const struct model *, const char *name);
/* Find every tensor of the table, with its shape and dtype; found[i] belongs to table[i]. ST_OTHER: any dtype that a
 * weight may have. ST_U8: exact ones are F32. */
int model_match(struct model *, const struct mt_tensor *table, uint32_t n, enum st_dtype, struct st_entry **found);
/* If the file has a head for a tied model, then it must equal the embeddings. */
int model_match_tied(struct model *, const char *embed_name, const char *head_name);
/* Print one line on stderr about tensors that were not used, except rotary inv_freq and causal masks. */
void model_name_extras(const struct model *);
/* Read n elements of a tensor of 1, 2 or 4 bytes each, beginning with element `from`, as they are in the file. */
int st_read(const struct st_entry *, uint64_t from, uint64_t n, void *data);
/* Read n elements of a tensor, beginning with element `from`, as fp32 patterns. `raw` is a buffer of 2 n bytes. */
int model_read(const struct st_entry *, uint64_t from, uint64_t n, void *raw, uint32_t *bits);

/* ------------------------------------------------------------------------------------------------ hf/shards.c */

#define SHARD_BYTES 5000000000ull /* maximum of a file, as transformers' max_shard_size */

enum array { ARRAY_W, ARRAY_LO, ARRAY_M, ARRAY_V, ARRAYS };

struct shard { /* a file: header, then the tensors [first, end) of the table */
	uint32_t first, end;
	char *header;
	uint64_t header_bytes, bytes; /* bytes: of the file */
	struct out_file *file;        /* NULL: not made yet */
};

struct shards { /* one array of all tensors, in the table's order */
	struct out_dir *dir;
	const char *set; /* "model", "optim-m", ... */
	enum st_dtype dtype;
	uint64_t exact_roles; /* bits: exact tensors of these roles are fp32, whatever dtype is */
	const struct mt_tensor *table;
	uint32_t n;
	uint64_t *begin; /* (n) of each tensor, in its file's data */
	struct shard *shard;
	uint32_t n_shards;
	uint64_t total; /* tensor bytes of all */
};

extern const struct st_set { /* the files of an array: NAME.safetensors, or NAME-00001-of-...; w: model, bf16 or fp32 */
	const char *name;
	enum st_dtype dtype;
} st_sets[ARRAYS];

/* The strings and the table must outlive it. */
int shards_begin(struct shards *, struct out_dir *, const char *set, enum st_dtype, uint64_t exact_roles,
	const struct mt_tensor *table, uint32_t n, uint64_t limit);
uint64_t shards_elem(const struct shards *, uint32_t tensor); /* bytes of an element */
int shards_open(struct shards *, uint32_t shard); /* make its file, unless it is there; one thread at a time */
uint32_t shards_tensor(const struct shards *, uint32_t shard, uint64_t at); /* whose bytes are there in its data */
int shards_index(const struct shards *);                                    /* the index, if there are several */
void shards_drop(struct shards *);

/* ------------------------------------------------------------------------------------------------ parts.c */

#define SET_NAME 64

struct parts { /* of units, that nodes own: tensors of one dimension named unit.U[FIRST:END], by unit and element */
	struct mt_tensor *v;
	uint32_t n, each; /* tensors, and of a part: 2 with int8, codes and scales, which are `exact` */
};

/* Those of the nodes [first, end) of `nodes`; without empty ones. each: 1 or 2. v to be freed */
int parts_list(struct parts *, const struct mt_unit *units, uint32_t n_units, uint32_t first, uint32_t end,
	uint32_t nodes, uint32_t each);
uint32_t parts_find(const struct parts *, uint32_t unit, uint64_t at);          /* that holds the element: its first */
void parts_set(char name[SET_NAME], enum array, uint32_t node, uint32_t nodes); /* "optim-m-node-0-of-2" */

/* ------------------------------------------------------------------------------------------------ hf/config.c */

/* The run's config.json for transformers 4 and 5: both dialects' keys are written, unknown keys stay. To be freed. */
int config_export(struct mt_run *, enum mt_dtype, char **text);
/* 65 and the key if two geometries are not the same model. */
int config_same(const struct mt_geometry *run, const struct mt_geometry *dir);

/* ------------------------------------------------------------------------------------------------ runjson.c */

struct run_json {               /* what a checkpoint holds beside its arrays */
	enum mt_dtype dtype, state; /* of w, of m and v */
	bool codes;                 /* read: int8 state is codes and scales, not fp32 as older versions wrote it */
	uint32_t nodes;             /* that wrote it: with several, each its part of lo, m and v; 0: none said */
	enum mt_optim optim;
	uint64_t step, t;
	struct mt_position position;
	bool has_record;
	struct mt_record record;
	json_t *choices;               /* of the record: object of hexadecimal values by key, or NULL */
	struct mt_hyper hyper;         /* of the step; its step 0: not known */
	struct mt_figures unlogged[2]; /* of steps whose metrics lines are not written; step 0: none */
	uint8_t run_id[16];
};

int run_json_write(struct out_dir *, const struct run_json *);
/* Read and check it; *files: the object of checksums. *root owns everything; decref it. */
int run_json_read(int dirfd, struct run_json *, json_t **root, json_t **files);
/* The same for a root that has been read */
int run_json_parse(json_t *root, struct run_json *, json_t **files);
int run_json_checksum(json_t *root, uint64_t *sum); /* of everything but the key checksum; 71 */
/* What node 0 must know of another node's files: written beside them, read to take them into `to` */
int part_json_write(struct out_dir *, uint64_t step, uint32_t node);
int part_json_take(struct out_dir *to, int from, uint64_t step, uint32_t node);
/* Verify the checksums of all its files, or of one; 65 names file and chunk. */
int run_json_verify(int dirfd, json_t *files, const char *only);
int run_json_lengths(int dirfd, json_t *files); /* 74: a file is missing or has another length */

/* ------------------------------------------------------------------------------------------------ source.c */

struct source { /* a directory to load or verify */
	const char *path;
	int dirfd; /* path: for messages, and for config.json */
	struct mt_geometry geo;
	struct mt_layout layout; /* layout.tensors: those that must be there */
	bool full;
	struct run_json json; /* of run.json, if `full` */
	json_t *root, *files;
	struct model model[ARRAYS];      /* lo, m, v: if `full` */
	struct parts parts[ARRAYS];      /* lo, m, v of several nodes, m, v in int8; v NULL: tensors as in layout */
	struct st_entry **found[ARRAYS]; /* (layout.n_tensors) or (parts.n); NULL: no such array */
};

/* Open the directory and run.json; `weights`: ignore run.json. 65: it has the name or the optimizer files of a
 * checkpoint, but no run.json. */
int source_open(struct source *, const char *dir, bool weights);
int source_config(struct source *); /* config.json -> geo and layout */
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

/* ------------------------------------------------------------------------------------------------ kept.c */

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
void kept_release(struct kept *);
/* A kept file's name: of a file in a directory, or of one in a directory in it */
bool kept_name_valid(const char *name);
int kept_directory(struct out_dir *, const char *name); /* make the directory in it that the name has, if any */
int kept_write(const char *name, const void *data, size_t bytes, void *out_dir); /* mt_files_each */

/* ------------------------------------------------------------------------------------------------ state.c */

/* The content of run.json for a run at the committed step `at`. state_release frees it, also after a failure. */
int state_read(struct mt_run *, const struct mt_committed *at, struct run_json *);
void state_release(struct run_json *);
/* The metrics of steps up to `step` whose metrics lines are not written. Waits some seconds for a live mt-step that is
 * about to write them. */
void state_unlogged(struct mt_run *, uint64_t step, struct mt_figures out[2]);

/* ------------------------------------------------------------------------------------------------ convert.c */

static inline bool half_nonfinite(uint16_t bits) { return (bits & 0x7f80) == 0x7f80; } /* of bf16 */
static inline bool full_nonfinite(uint32_t bits) { return (bits & 0x7f800000u) == 0x7f800000u; }

/* n elements. fp32 to bf16; a bf16 run's w and lo to fp32, and back */
void convert_round(uint16_t *out, const uint32_t *bits, uint64_t n);
void convert_join(uint32_t *out, const uint16_t *w, const int16_t *lo, uint64_t n);
void convert_split(uint16_t *w, int16_t *lo, const uint32_t *bits, uint64_t n);
bool convert_any_nonfinite(enum mt_dtype, const void *w, uint64_t n); /* is one infinite or NaN? */

/* ------------------------------------------------------------------------------------------------ nonfinite.c */

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

/* ------------------------------------------------------------------------------------------------ work.c */

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

/* ------------------------------------------------------------------------------------------------ write.c */

struct chunk { /* of a file: what one thread writes at once */
	enum array array;
	uint32_t shard, number;
	uint32_t first, last; /* units whose tensors it holds; last < first: none, it is all header */
};

struct writer { /* writes a run's arrays into a directory */
	struct mt_run *run;
	struct out_dir *dir;
	enum mt_dtype dtype; /* of the weights in the files */
	struct shards set[ARRAYS];
	bool has[ARRAYS];
	struct parts parts[ARRAYS]; /* of lo, m and v of several nodes, this one's; of m and v in int8 */
	char set_name[ARRAYS][SET_NAME];
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

/* full: with lo, m and v; of several nodes the first writes w, each its part of the rest. limit: maximum bytes of a
 * shard. threads: at most */
int writer_begin(struct writer *, struct mt_run *, struct out_dir *, enum mt_dtype, bool full, uint64_t limit,
	uint64_t threads);
int writer_units(struct writer *); /* all units, about in ascending order */
int writer_end(struct writer *);   /* writes the indexes, config.json, the kept files */
void writer_drop(struct writer *);

/* ------------------------------------------------------------------------------------------------ nodes.c */

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
/* Another node's directory for its files of a checkpoint, .step-XXXXXXXX.mt-tmp-node-R */
void part_suffix(char suffix[16], uint32_t node);
/* Node 0: take the other nodes' files of the step when all are written. 69: one has failed */
int parts_collect(struct mt_run *, int dirfd, const char *base, uint64_t step, struct out_dir *to);
/* The same of parts that are there already */
int parts_take(struct mt_run *, int dirfd, const char *base, uint64_t step, struct out_dir *to);

/* ------------------------------------------------------------------------------------------------ verify.c */

/* Read back a new directory before an older one is deleted: run.json, config.json, every header and length. The tensor
 * bytes, whose checksums were computed while they were written, are not read. */
int verify_written(int dirfd, const struct mt_geometry *run, bool full);

/* ------------------------------------------------------------------------------------------------ best.c */

/* Of these n steps the one with the lowest eval loss in mt-step's metrics. 1; 0: none was evaluated; -74: the file
 * cannot be read */
int best_checkpoint(const char *metrics, const uint64_t *steps, size_t n, uint64_t *best);

/* ------------------------------------------------------------------------------------------------ commands */

int ckpt_load(const char *run, const char *dir, bool weights, bool new_record); /* load.c */
int ckpt_save(const char *run, const char *dir, uint64_t shard);                /* save.c */
int ckpt_save_part(const char *run, const char *dir, uint64_t shard);
int ckpt_export(const char *run, const char *dir, enum mt_dtype, uint64_t shard, bool replace); /* save.c */
int ckpt_export_from(const char *from, const char *dir, bool replace);                          /* copy.c */
/* best: keep the best checkpoint of this file of metrics, too; may be NULL */
int ckpt_serve(const char *run, const char *dir, uint64_t keep, const char *best, uint64_t shard); /* serve.c */
int ckpt_verify(const char *dir);                                                                  /* verify.c */

#endif
