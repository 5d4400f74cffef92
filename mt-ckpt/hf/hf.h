/* hf.h: reads and writes Hugging Face's files, on buffers and descriptors of its caller. Functions return 0 or, as
 * libmt's do, minus an exit code with a message in mt_errmsg(). Messages about a file begin with its name. */
#ifndef MT_CKPT_HF_H
#define MT_CKPT_HF_H

#include <dirent.h>
#include <jansson.h>
#include "model/hffiles.h"
#include "mt/error.h"
#include "mt/layout.h"

struct out_dir;
struct out_file;

/* ---- files.c */

/* The text of a tree, indented by `indent` (0: on one line), with just enough digits to read the same numbers again. To
 * be freed; NULL without memory. */
char *json_text(const json_t *, size_t indent);
/* Add a value to a tree. The first failure (71: no memory; 65: not UTF-8) stays in *rc, and later calls do nothing. The
 * tree owns the value. NULL, which jansson returns without memory, is a failure. */
void json_put(int *rc, json_t *object, const char *key, json_t *value);
/* text up to a NUL or `room`, at most 255 bytes */
void json_put_text(int *rc, json_t *object, const char *key, const char *text, size_t room);
void json_add(int *rc, json_t *array, json_t *value);
json_t *json_number(double);             /* null for infinity and NaN */
int dir_open(const char *path, int *fd); /* 66: does not exist; 65: not a directory */
/* for (struct dir_walk w = dir_walk(dirfd); dir_next(&w);): all entries but . and .., to the end. d: NULL with errno */
struct dir_walk {
	DIR *d;
	const char *name;
};
struct dir_walk dir_walk(int dirfd);
bool dir_next(struct dir_walk *);

/* ---- model.c */

struct st_entry {
	struct st_file *file;
	struct st_tensor *tensor;
	bool used;
	/* quantized.c: of FP8: a scale for each block, by row and column of blocks, of each matrix of `rows`; */
	float *scale; /* (matrices, scale_rows, scale_cols); NULL: not FP8 */
	uint64_t rows, scale_rows, scale_cols, block[2];
	const struct st_entry *scales; /* of MXFP4: their tensor; NULL: not MXFP4 */
};

struct model {
	struct st_files files;
	struct st_entry *entries;
	size_t n; /* sorted by name */
	/* transformers' other names, NULL: none: what stands before the names of the base class, as in model.norm.weight;
	 * and the weights of the LM head, which tied embeddings may be called */
	const char *base, *head;
	size_t base_bytes;
	/* what the file has in place of base, if it has neither that nor nothing; NULL: none */
	const char *prefix;
	int prefix_bytes;
	uint64_t block[2]; /* rows and columns of weights in FP8 that have one scale */
};

/* Open SET.safetensors, or the shards that SET.safetensors.index.json lists, but not `without`, if it is not NULL; SET:
 * model, optim-m, ... */
int model_open(struct model *, int dirfd, const char *set, const char *without);
/* Open the n sets in `names`, each a file, as one model. label: a name for all */
int model_open_sets(struct model *, int dirfd, const char *label, char (*names)[64], uint32_t n);
void model_close(struct model *);
struct st_entry *model_find(const struct model *, const char *name);
/* What stands before the names of the base class, by the embeddings' name, which must outlive the model */
void model_base(struct model *, const char *embed_name);
/* Find every tensor of the table that has a name, with its shape and dtype; found[i], NULL, belongs to table[i].
 * ST_OTHER: any dtype that a weight may have. ST_U8: exact ones are F32. */
int model_match(struct model *, const struct mt_tensor *table, uint32_t n, enum st_dtype, struct st_entry **found);
/* How little the files fit the table, in names and shapes: 0: they have all of it. A missing expert counts less than
 * another tensor. */
double model_misfit(const struct model *, const struct mt_tensor *table, uint32_t n);
/* 65: the layers of the table have more experts than the table, or have them in a second form */
int model_check_experts(const struct model *, const struct mt_tensor *table, uint32_t n, struct st_entry *const *found);
/* If the file has a head for a tied model, then it must equal the embeddings. */
int model_match_tied(struct model *, const char *embed_name, const char *head_name);
/* Its LM head, whatever stands before the name; NULL: none */
struct st_entry *model_head(const struct model *, const char *head_name);
/* Read n elements of a tensor of 1, 2 or 4 bytes each, beginning with element `from`, as they are in the file. */
int st_read(const struct st_entry *, uint64_t from, uint64_t n, void *data);
/* Read n elements of a tensor, beginning with element `from`, as fp32 patterns. `raw` is a buffer of 2 n bytes. */
int model_read(const struct st_entry *, uint64_t from, uint64_t n, void *raw, uint32_t *bits);

/* ---- quantized.c */

#define MXFP4_COLS (1u << 17)      /* maximum of a row */
#define TRANSPOSED_COLS (1u << 16) /* the same of transposed matrices */

int quantized_config(struct model *, int dirfd); /* model.block, by config.json */
/* Find the scales of a tensor of the model: of one in FP8, whose dtype and shape are right; in MXFP4 */
int fp8_match(const struct model *, struct st_entry *);
bool fp8_has_scales(const struct model *, const struct st_entry *); /* is it in FP8, and are scales beside it? */
int mxfp4_match(const struct model *, struct st_entry *, const struct mt_tensor *want);
bool is_mxfp4(const struct st_entry *);
/* 65: a scale has no weight in FP8 or MXFP4 */
int quantized_check(const struct model *);
/* As model_read, of codes that have been read */
void fp8_decode(const struct st_entry *, uint64_t from, uint64_t n, const uint8_t *codes, uint32_t *bits);
/* Read rows of `cols` elements, beginning with `row`, as columns: bits has (cols, rows). raw: rows * cols bytes */
int mxfp4_read(const struct st_entry *, uint64_t row, uint64_t rows, uint64_t cols, void *raw, uint32_t *bits);
/* Say once on stderr what was read as what, and how large an export will be. */
void quantized_say(const struct model *, const struct mt_layout *, enum mt_dtype);

/* ---- shards.c */

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
	/* one more file that the index lists, which others write, and its tensors; NULL: none */
	const struct shard_other {
		const char *file, **names;
		uint32_t n;
		uint64_t bytes;
	} * other;
};

extern const char *const st_sets[ARRAYS]; /* the files of an array: NAME.safetensors, or NAME-00001-of-... */
enum st_dtype array_dtype(enum array, uint32_t type); /* in files; type: enum mt_dtype: of w, or of m and v */

/* A file's header, from its JSON, which it takes: the length, 8 bytes little-endian, and the text, padded to a multiple
 * of 8. To be freed; NULL without memory, or if rc is not 0 */
char *shard_header(json_t *root, int rc, uint64_t *bytes);
/* The strings and the table must outlive it. */
int shards_begin(struct shards *, struct out_dir *, const char *set, enum st_dtype, uint64_t exact_roles,
	const struct mt_tensor *table, uint32_t n, uint64_t limit);
/* After shards_begin: there is one more file */
void shards_add(struct shards *, const struct shard_other *);
uint64_t shards_elem(const struct shards *, uint32_t tensor); /* bytes of an element */
int shards_open(struct shards *, uint32_t shard); /* make its file, unless it is there; one thread at a time */
uint32_t shards_tensor(const struct shards *, uint32_t shard, uint64_t at); /* whose bytes are there in its data */
int shards_index(const struct shards *);                                    /* the index, if there are several */
void shards_drop(struct shards *);

/* ---- config.c */

/* A config.json of this geometry for transformers 4 and 5: both dialects' keys are written, unknown keys stay. no_mtp:
 * it announces no layers of multi-token prediction. To be freed. */
int config_export(const struct mt_geometry *, const char *config, size_t bytes, enum mt_dtype, bool no_mtp,
	char **text);
/* 65 and the key if two geometries are not the same model. */
int config_same(const struct mt_geometry *run, const struct mt_geometry *dir);

#endif
