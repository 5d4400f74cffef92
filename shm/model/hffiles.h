/* hffiles.h: reads Hugging Face's files. It trusts nothing in them. Functions return 0 or minus an exit code, with a
 * message in mt_errmsg() that begins with the file's name. */
#ifndef MT_HFFILES_H
#define MT_HFFILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- hffiles.c */

bool ends_with(const char *text, const char *end);

#define JSON_LIMIT 100000000u /* maximum bytes of a JSON text: safetensors' own limit for a header */
#define IO_BYTES (16u << 20)  /* one read or write, and one checksummed chunk */

/* A text of a file, safe to print in one line: control characters become '?', long text is cut. Valid until the fourth
 * call after this one. */
const char *shown(const char *text);
int fail_errno(const char *what); /* "what: strerror", with the exit code for errno */

/* Open a regular file for reading. Anything else is 65; a FIFO does not block. */
int file_open_regular(int dirfd, const char *name, int *fd, uint64_t *size);
/* Read all n bytes at off; 65 if the file ends before. `name` is for the message. */
int file_read(int fd, const char *name, void *buf, uint64_t n, uint64_t off);
/* Read a whole small file and append a NUL; to be freed. 65 above `limit` bytes. */
int file_read_all(int dirfd, const char *name, uint64_t limit, char **data, size_t *n);
int file_read_json(int dirfd, const char *name, json_t **); /* an object; NULL on failure */
bool file_name_plain(const char *name);                     /* names a file in its directory: no slash, ... */
bool file_exists(int dirfd, const char *name);

/* ---- safetensors.c */

enum st_dtype { ST_F32 = 1, ST_BF16, ST_F16, ST_I16, ST_U8, ST_F8, ST_E8M0, ST_OTHER }; /* F8: F8_E4M3 */
#define ST_DIMS 8

struct st_tensor {
	const char *name; /* in the file's header */
	const char *dtype_name;
	enum st_dtype dtype;
	uint32_t elem; /* bytes of an element */
	uint32_t ndim;
	uint64_t shape[ST_DIMS];
	uint64_t begin, end; /* from the file's start; checked against its size */
	bool listed;         /* the index lists it, or there is no index */
	bool trained;        /* beside.c: it is the text model's */
};

struct st_file {
	int fd;
	char *name; /* as shown() has it */
	char *path; /* in its directory */
	json_t *header;
	struct st_tensor *tensors;
	size_t n; /* sorted by name */
};

/* beside.c: a constant that older files hold although the class computes it: frequencies of rope, causal masks of
 * GPT-NeoX and GPT-2. It is not carried. */
bool tensor_is_constant(const char *name);
/* Parse the n bytes of a header; the file has size >= 8 + n bytes. Close f after an error, too. */
int st_header(struct st_file *f, const char *text, uint64_t n, uint64_t size);
void st_close(struct st_file *);
struct st_tensor *st_find(const struct st_file *, const char *name);

struct st_files { /* one or several, as one set */
	char *label;  /* for messages: the only file, or the index */
	struct st_file *v;
	uint32_t n;
};

/* Open SET.safetensors, or the shards that SET.safetensors.index.json lists, but not `without`, if it is not NULL; SET:
 * model, optim-m, ... Close it after an error, too. */
int st_files_open(struct st_files *, int dirfd, const char *set, const char *without);
int st_add(struct st_files *, int dirfd, const char *name);
/* Add the shards that a parsed index lists, but not `without` */
int st_shards(struct st_files *, int dirfd, const json_t *index, const char *without);
void st_files_close(struct st_files *);
bool st_exists(int dirfd, const char *set); /* one file or an index */

#endif
