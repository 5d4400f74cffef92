/* feed.h: mt-feed's files: from options through documents to stdout. */
#ifndef FEED_H
#define FEED_H

#include "cli/cli.h"
#include "loss.h"
#include "mt/media.h"
#include "mt/memory.h"
#include "record.h"

enum feed_format {
	FEED_RECORDS = 0,
	FEED_BYTES = 1,
	FEED_U16 = 2,
	FEED_U32 = 4
}; /* flat formats: bytes of an element */

struct feed_how {
	enum feed_format format;
	bool by_eos;
	uint64_t eos;   /* documents end after it */
	uint64_t block; /* 0, or elements of a block; blocks overlap by one */
	bool shuffle;
	uint64_t seed, epochs;
	bool mix; /* interleave the sources; also if one has a weight */
	bool check;
	uint64_t vocab;           /* of the model; 0: not known */
	struct feed_ends {        /* of all parts of records that are trained on; NULL: they are not counted */
		uint64_t *of[2], all; /* (vocab) how many have each token as the last one, and as the one before; in all */
	} * ends;
	struct mt_media media; /* tokens that records must not have */
	bool by_loss;          /* check that records are those of this loss */
	uint32_t *top;         /* how many tokens of a teacher the first record has; NULL: not asked for */
	enum mt_objective_kind loss;
};

/* ---- sources.c: the operands */
enum { FEED_WEIGHT_1 = 1000000 }; /* weight 1 */
struct feed_source {
	const char *name;           /* of a file or a directory; - is stdin */
	uint64_t weight;            /* millionths */
	bool weighted;              /* a weight was given */
	size_t first_file, n_files; /* those of a directory: in byte order of their names */
};
struct feed_sources {
	struct feed_source *at;
	const char **files; /* of all sources, in order */
	size_t n, n_files, room;
	bool weighted; /* a weight was given to any */
};
/* -64: a weight is not valid. -65, -66: a directory is empty, or cannot be read. */
int sources_open(struct feed_sources *, const char **operands, int n);

/* ---- out.c: writes to stdout. If its reader has closed, the program ends with 0. */
void out_words(const uint32_t *, size_t n);
void out_flush(void);
/* From now on write the elements of records as bytes, and sep after each record. Ends the program with 65 at an element
 * that is not a byte. */
void out_decode(const char *sep);
/* Wait until fd can be read; what was collected is written first, if there is a wait. Ends the program with 0 if the
 * reader of stdout closes before. */
void out_watch(int fd);

/* ---- file.c: a regular file, read at any place */
struct feed_file {
	const char *name;
	int fd;                /* -1: closed */
	uint64_t size;         /* bytes */
	unsigned char *buffer; /* bytes [at, at + held) of the file */
	uint64_t at, held;
};
/* -66: does not exist. -65: a directory, or no regular file although regular is NULL. *regular: is it a regular
 * file? */
int file_open(struct feed_file *, const char *name, bool *regular);
void file_close(struct feed_file *);
/* Call fn for each document, in order, with its first byte and number of elements, until it returns a value that is not
 * 0, which is returned. A group of documents counts as one, of its words: n is RECORD_GROUP | words. -65: a document is
 * cut or invalid. */
int file_documents(struct feed_file *, const struct feed_how *, int (*fn)(void *, uint64_t off, uint32_t n), void *arg);
/* Call fn for the elements of that document, in parts, until it returns a value that is not 0, which is returned. */
int file_words(struct feed_file *, const struct feed_how *, uint64_t off, uint32_t n,
	int (*fn)(void *, const uint32_t *, uint32_t), void *arg);
/* Write that document as a record. */
int file_emit(struct feed_file *, const struct feed_how *, uint64_t off, uint32_t n);

/* ---- index.c: the documents of regular files, in any order */
enum { FEED_OPEN = 16 }; /* files kept open */
struct feed_place {
	uint64_t off;
	uint32_t file, n; /* number of the file; elements */
};
struct feed_index {
	struct feed_place *at;
	size_t n, room;
	uint32_t file;
	const char **files;
	struct feed_opened {
		struct feed_file file;
		uint32_t number;
		bool used;
	} opened[FEED_OPEN]; /* file i: at i % FEED_OPEN */
};
/* Add the documents of files[i], which must stay the same array. Errors as of file_documents. */
int index_file(struct feed_index *, const char **files, size_t i, const struct feed_how *);
/* Write document i as a record. */
int index_emit(struct feed_index *, size_t i, const struct feed_how *);
void index_close(struct feed_index *);
/* A permutation of 0..n-1 that depends on the seed and the pass alone, not on other passes. */
void index_permute(size_t *order, size_t n, uint64_t seed, uint64_t pass);

/* ---- mix.c */
int feed_mixed(const struct feed_sources *, const struct feed_how *);

/* ---- pipe.c: inputs that can be read only once */
int pipe_feed(int fd, const char *name, const struct feed_how *);

/* ---- check.c */
/* 0: the first document of that FILE is valid, with shuffle or mix all documents are, or it is a pipe, which is not
 * opened. -66: no file. -65: invalid, or a token is outside the vocabulary */
int check_file(const char *name, const struct feed_how *);
/* Read the vocabulary of the model from its config.json, and its tokens of media unless these are allowed. -64: it has
 * too many tokens to be trained on bytes */
int check_vocabulary(const char *config, bool allow_media, struct feed_how *);
/* Print the token in which at least half of the parts end that are trained on, and the one before it, if there is one,
 * behind a comma. -74: stdout */
int check_turn_end(const struct feed_how *);

/* ---- flat.c */
/* Elements of a flat format as words. */
void flat_words(enum feed_format, const void *bytes, uint32_t *out, size_t n);
static inline bool flat_ends(const struct feed_how *h, uint32_t word)
{
	return h->by_eos && (word & ~MT_CONTEXT_ONLY) == h->eos;
}

#endif
