/* out.h: writes a new directory, which appears complete or not at all. Errors are as in hf/hf.h. */
#ifndef MT_CKPT_OUT_H
#define MT_CKPT_OUT_H

#include <stdatomic.h>
#include <xxhash.h>
#ifdef XXH_DISPATCH
#include <xxh_x86dispatch.h> /* the same functions by other names, with the same results */
#endif
#include "hf/hf.h"

/* ---- outdir.c */

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
/* Begin the temporary directory .BASE.mt-tmp-node-R alone, from which node 0 takes another node's files */
int out_begin_part(struct out_dir *, int parent, const char *path, const char *base, uint32_t node);
/* Split the path of a directory that does not exist into its parent, opened, and its name, to be freed in any case. */
int out_split(const char *path, int *parent, char **base);
int out_sync(struct out_dir *); /* makes everything durable but the name */
/* Give it its name, and make that durable; then delete the directory that it replaces. On failure nothing of the new
 * directory is left, and what was there before is there again. Releases the out_dir. */
int out_rename(struct out_dir *);
void out_leave(struct out_dir *); /* releases the out_dir; its directory stays as it is */
void out_abort(struct out_dir *); /* deletes it; mt_errmsg() stays */

/* ---- outfile.c */

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
	uint64_t sum;    /* at its end, if it is hashed */
	uint8_t *stage;  /* for direct I/O: the bytes before `at` that are not written yet; NULL: none */
	uint64_t staged; /* how many */
};

/* Make a file, and reserve its space. After a failure it is not there. */
int out_create(struct out_dir *, const char *name, uint64_t bytes, struct out_file **);
/* Write the file with direct I/O, if its file system has it: through the page cache, writing takes more CPU time, and
 * pushes other things out of memory. To be called before its first chunk */
void out_direct(struct out_file *);
#define STAGE_BYTES (2u << 20) /* of one direct write */
/* stage: STAGE_BYTES on a page boundary, or NULL: write through the page cache. hash: where the directory has no
 * checksums, too. A file without a descriptor is only hashed */
int out_chunk_begin(struct out_chunk *, struct out_file *, uint64_t number, void *stage, bool hash);
int out_write(struct out_chunk *, const void *data, uint64_t n); /* at most up to its end */
/* rc: of writing it; returned if it is an error. Every begun chunk is ended. */
int out_chunk_end(struct out_chunk *, int rc);
int out_sync_file(struct out_file *);
int out_text(struct out_dir *, const char *name, const void *data, uint64_t n);    /* a whole file */
int out_json(struct out_dir *, const char *name, json_t *, size_t indent, int rc); /* rc: of making it; releases it */
/* A file of directory `from`, of which run.json has this entry: move it; link it; 1: the file system cannot */
int out_move(struct out_dir *, int from, const char *name, const json_t *entry);
int out_link(struct out_dir *, int from, const char *name, const json_t *entry);
void out_sort(struct out_dir *);            /* the files so far, by name: run.json lists them in this order */
uint64_t out_bytes(const struct out_dir *); /* of the files so far */
void out_release(struct out_dir *);         /* close them, free what is known of them */

/* ---- tmpdir.c */

#define TMP_WAS "was"                                            /* see tmpdir.c */
int tmp_name(const char *base, const char *suffix, char **name); /* .BASE.mt-tmp-SUFFIX, to be freed */
int part_name(const char *base, uint32_t node, char **name);     /* .BASE.mt-tmp-node-R: another node's files of it */
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
void dir_clean_parts(int parent, uint32_t node); /* delete the node's .step-XXXXXXXX.mt-tmp-node-R */
/* Clean up in `parent` after writers of `base` that died; base NULL: of any checkpoint of a step. */
void dir_clean(int parent, const char *base);

#endif
