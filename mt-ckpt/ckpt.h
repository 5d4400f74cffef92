/* ckpt.h: what the files of mt-ckpt share. Functions return 0, or minus an exit code with the line in mt_errmsg(),
 * as libmt's do. Messages about files begin with the file's name. */
#ifndef MT_CKPT_H
#define MT_CKPT_H

#include <jansson.h>
#include <xxhash.h>
#include "mt.h"

/* ------------------------------------------------------------------------------------------------ hf/files.c */

#define JSON_LIMIT 100000000u /* bytes of a JSON text at most: safetensors' own limit for a header */
#define IO_BYTES (16u << 20)  /* one read or write, and one checksummed chunk */

/* What a file says, fit for one line of a message: control characters become '?', long text is cut. Valid until the
 * fourth call after it. */
const char *shown(const char *text);
int fail_errno(const char *what); /* "what: strerror", with the exit code that errno means */

/* Open a regular file for reading; anything else in its place is 65, and a FIFO is never waited for. */
int file_open(int dirfd, const char *name, int *fd, uint64_t *size);
/* All n bytes at off: 65 where the file ends early. `name` is for the message. */
int file_read(int fd, const char *name, void *buf, uint64_t n, uint64_t off);
/* The whole of a small file, with a NUL behind it, to be freed. 65 above `limit`. */
int file_read_all(int dirfd, const char *name, uint64_t limit, char **data, size_t *n);
int file_read_json(int dirfd, const char *name, json_t **); /* the root is an object; NULL on failure */
/* Indented by `indent` (0: on one line), and with no more digits than it takes to read the same numbers again. To be
 * freed; NULL without memory. */
char *json_text(const json_t *, size_t indent);
/* A tree under construction: the first failure (71: no memory; 65: not UTF-8) stays in *rc, and nothing is done after
 * it. The value is taken over; NULL, which is what jansson returns without memory, is a failure. */
void json_put(int *rc, json_t *object, const char *key, json_t *value);
/* text up to a NUL, 255 bytes at most */
void json_put_text(int *rc, json_t *object, const char *key, const char *text, size_t room);
void json_add(int *rc, json_t *array, json_t *value);
json_t *json_number(double);            /* null where JSON has no such number */
bool file_name_plain(const char *name); /* a name inside its directory, and nothing else */
bool file_exists(int dirfd, const char *name);
int dir_open(const char *path, int *fd); /* 66, 65 not a directory */

/* ------------------------------------------------------------------------------------------------ outdir.c */

struct out_file { /* a finished file of a new directory */
	char *name;
	uint64_t bytes, *sums, n_sums; /* XXH3 (64 bits) of every IO_BYTES of it */
};

struct out_dir {      /* a directory that comes to be as a whole or not at all */
	int parent, fd;   /* fd carries a lock: without it the directory is an orphan */
	char *base, *tmp; /* names in parent: to be, and meanwhile */
	/* how it ends: it gets its name; or takes the place of one that has it; or parent is the directory itself */
	enum out_end { OUT_NEW, OUT_REPLACE, OUT_INSIDE } end;
	struct out_file *files;
	uint32_t n_files;
};

struct out_stream { /* a file being written from front to back */
	struct out_dir *dir;
	char *name;
	int fd;
	uint64_t bytes, *sums, n_sums;
	XXH3_state_t *hash;
};

/* Begin PATH under a temporary name beside it, or in it where it is there. 73: it is not an empty directory; with
 * `replace`: nor one that mt wrote, which otherwise goes when the new one stands. */
int out_begin(struct out_dir *, const char *path, bool replace);
int out_begin_at(struct out_dir *, int parent, const char *base); /* whatever has the name is replaced */
int out_open(struct out_dir *, const char *name, uint64_t expected, struct out_stream *);
int out_write(struct out_stream *, const void *data, uint64_t n);
int out_close(struct out_stream *); /* fsynced, and entered in files */
void out_drop(struct out_stream *); /* after an error */
int out_text(struct out_dir *, const char *name, const void *data, uint64_t n);
int out_sync(struct out_dir *); /* everything is durable but the name */
/* And now the name. What it replaces goes only when that is durable. On failure nothing is left of the new one, and
 * what was there is there again. The out_dir is released. */
int out_rename(struct out_dir *);
void out_abort(struct out_dir *);           /* nothing is left */
uint64_t out_bytes(const struct out_dir *); /* of the files so far */
/* Delete a directory: first renamed, and that durable, so that none that is half deleted ever looks whole. */
int dir_remove(int parent, const char *name);
/* Make the names durable under which an open directory is found: those of its ancestors on the same file system. */
int dir_sync_names(int fd);
/* Delete what writers that died left in `parent` of `base`, or with NULL of any checkpoint of a step. */
void dir_clean(int parent, const char *base);

/* ------------------------------------------------------------------------------------------------ hf/safetensors.c */

enum st_dtype { ST_F32 = 1, ST_BF16, ST_F16, ST_I16, ST_OTHER };
#define ST_DIMS 8

struct st_tensor {
	const char *name; /* in the file's header */
	const char *dtype_name;
	enum st_dtype dtype;
	uint32_t ndim;
	uint64_t shape[ST_DIMS];
	uint64_t begin, end; /* bytes from the file's start, checked against its size */
	bool listed;         /* the index names it, or there is no index */
};

struct st_file {
	int fd;
	char *name;
	json_t *header;
	struct st_tensor *tensors;
	size_t n; /* sorted by name */
};

int st_open(struct st_file *, int dirfd, const char *name);
/* The n bytes of a header, of a file of size >= 8 + n bytes; close f after an error as well */
int st_header(struct st_file *f, const char *text, uint64_t n, uint64_t size);
void st_close(struct st_file *);
struct st_tensor *st_find(const struct st_file *, const char *name);

/* ------------------------------------------------------------------------------------------------ hf/model.c */

struct st_entry {
	struct st_file *file;
	struct st_tensor *tensor;
	bool used;
};

struct model {   /* safetensors files taken together */
	char *label; /* the file that a missing tensor is missed in */
	struct st_file *files;
	uint32_t n_files;
	struct st_entry *entries;
	size_t n; /* sorted by name */
};

/* model.safetensors, or the shards that model.safetensors.index.json names; `set` other than "model": optim-m, ... */
int model_open(struct model *, int dirfd, const char *set);
/* The parsed index: opens the shards that it names */
int model_shards(struct model *, int dirfd, const json_t *index);
void model_close(struct model *);
struct st_entry *model_find(const struct model *, const char *name);
/* Every tensor of the table is there with its shape and a dtype that can be read; found[i] belongs to table[i].
 * dtype ST_OTHER: any floating point dtype that a weight may have. */
int model_match(struct model *, const struct mt_tensor *table, uint32_t n, enum st_dtype, struct st_entry **found);
/* What the file has for a tied model's head must be its embeddings. */
int model_match_tied(struct model *);
/* One line about tensors that nothing used, on stderr; rotary inv_freq is passed over. */
void model_name_extras(const struct model *);
/* n elements of a tensor from element `from`, as fp32 patterns. `raw` holds 2 n bytes. */
int model_read(const struct st_entry *, uint64_t from, uint64_t n, void *raw, uint32_t *bits);

/* ------------------------------------------------------------------------------------------------ hf/shards.c */

#define SHARD_BYTES 5000000000ull /* of a file at most, as transformers' max_shard_size */

enum array { ARRAY_W, ARRAY_LO, ARRAY_M, ARRAY_V, ARRAYS };

struct shards { /* one array of all tensors, written in the tensors' order */
	struct out_dir *dir;
	const char *set; /* "model", "optim-m", ... */
	const char *dtype;
	uint32_t elem; /* safetensors' name and bytes of an element */
	const struct mt_tensor *table;
	uint32_t n;
	uint32_t *first;
	uint32_t n_shards;    /* tensors first[s] to first[s + 1] stand in shard s */
	uint32_t next;        /* tensor to come */
	uint64_t total, left; /* tensor bytes; of them, what the tensor under way still lacks */
	bool open;
	struct out_stream out;
};

int shards_begin(struct shards *, struct out_dir *, const char *set, const char *dtype, uint32_t elem,
	const struct mt_tensor *table, uint32_t n, uint64_t limit);
int shards_write(struct shards *, const void *data, uint64_t bytes); /* any part of what comes next */
int shards_end(struct shards *);                                     /* the index too, where there are several */
void shards_drop(struct shards *);

/* ------------------------------------------------------------------------------------------------ hf/config.c */

/* config.json for transformers 4 and 5: the run's text, unknown keys kept, both dialects present. To be freed. */
int config_export(struct mt_run *, enum mt_dtype, char **text);
/* 65 naming the key where two geometries are not the same model. */
int config_same(const struct mt_geometry *run, const struct mt_geometry *dir);

/* ------------------------------------------------------------------------------------------------ runjson.c */

struct run_json { /* what a checkpoint knows beside its arrays */
	enum mt_dtype dtype;
	uint64_t step, t;
	struct mt_position position;
	bool has_record;
	struct mt_record record;
	json_t *choices;               /* the record's table: object of hexadecimal values by key, or NULL */
	json_t *hyper;                 /* object or NULL */
	struct mt_figures unlogged[2]; /* of steps whose metrics lines are not out; step 0: none */
	uint8_t run_id[16];
};

int run_json_write(struct out_dir *, const struct run_json *);
/* Read and check it; *files gets the object of checksums. Release *root, which owns all. */
int run_json_read(int dirfd, struct run_json *, json_t **root, json_t **files);
/* The same of a root that has been read already */
int run_json_parse(json_t *root, struct run_json *, json_t **files);
int run_json_checksum(json_t *root, uint64_t *sum); /* of all but the checksum itself; 71 */
/* Recompute the checksums of all files that it names, or of one: 65 names file and chunk. */
int run_json_verify(int dirfd, json_t *files, const char *only);
int run_json_lengths(int dirfd, json_t *files); /* each file is there and as long as it says */

/* ------------------------------------------------------------------------------------------------ source.c */

struct source { /* a directory to load or verify */
	const char *path;
	int dirfd; /* path: for messages, and for config.json */
	struct mt_geometry geo;
	struct mt_layout layout; /* layout.tensors: what must be there */
	bool full;
	struct run_json json; /* there is a run.json, and it counts */
	json_t *root, *files;
	struct model model[ARRAYS];      /* lo, m, v of full state only */
	struct st_entry **found[ARRAYS]; /* (layout.n_tensors) each; NULL: no such array */
};

/* The directory and run.json. 65: it is named as a checkpoint or holds an optimizer's state, but has no run.json, and
 * not its weights alone are wanted. */
int source_open(struct source *, const char *dir, bool weights);
int source_config(struct source *); /* config.json -> geo and layout */
int source_models(struct source *); /* every tensor is where it should be, as config.json wants it */
int source_checksums(struct source *);
void source_close(struct source *);

/* ------------------------------------------------------------------------------------------------ state.c */

/* What run.json says of a run at `at`, which is committed. state_release frees what it holds, also after a failure. */
int state_read(struct mt_run *, const struct mt_committed *at, struct run_json *);
void state_release(struct run_json *);
/* The figures of steps up to `step` whose metrics lines are not out. A live mt-step that is about to write them is
 * waited for, some seconds at most. */
void state_unlogged(struct mt_run *, uint64_t step, struct mt_figures out[2]);

/* ------------------------------------------------------------------------------------------------ nonfinite.c */

struct nonfinite {
	uint64_t n;
	char name[MT_TENSOR_NAME];
}; /* weights that are infinite or NaN; the first's tensor */

/* How many of n weights; *first: the index of one. */
uint64_t count_nonfinite(enum mt_dtype, const void *w, uint64_t n, uint64_t *first);
void nonfinite_add(struct nonfinite *, const char *tensor, uint64_t n);
void nonfinite_warn(const struct nonfinite *); /* one line on stderr, if there are any */

/* ------------------------------------------------------------------------------------------------ write.c */

struct writer { /* a run's arrays on their way into a directory, unit by unit */
	struct mt_run *run;
	struct out_dir *dir;
	enum mt_dtype dtype; /* of the weights in the file */
	struct shards set[ARRAYS];
	bool has[ARRAYS];
	void *buf;             /* IO_BYTES, for conversions */
	bool stoppable;        /* a signal ends it */
	struct nonfinite seen; /* of the weights written so far */
};

/* full: with lo, m and v. limit: bytes of a shard. */
int writer_begin(struct writer *, struct mt_run *, struct out_dir *, enum mt_dtype, bool full, uint64_t limit);
int writer_unit(struct writer *, uint32_t unit); /* units in ascending order */
int writer_end(struct writer *);                 /* the indexes, config.json, the kept files */
void writer_drop(struct writer *);

/* ------------------------------------------------------------------------------------------------ verify.c */

/* What has just been written, read again before anything older goes: run.json, config.json, every header, every length.
 * The bytes were summed on their way and are not read. */
int verify_written(int dirfd, const struct mt_geometry *run, bool full);

/* ------------------------------------------------------------------------------------------------ commands */

int ckpt_load(const char *run, const char *dir, bool weights, bool new_record);                 /* load.c */
int ckpt_save(const char *run, const char *dir, uint64_t shard);                                /* save.c */
int ckpt_export(const char *run, const char *dir, enum mt_dtype, uint64_t shard, bool replace); /* save.c */
int ckpt_serve(const char *run, const char *dir, uint64_t keep, uint64_t shard);                /* serve.c */
int ckpt_verify(const char *dir);                                                               /* verify.c */

#endif
