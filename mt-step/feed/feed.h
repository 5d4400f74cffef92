/* feed.h: files to records. */
#ifndef FEED_H
#define FEED_H

#include "cli/cli.h"
#include "record.h"

enum feed_format { FEED_RECORDS = 0, FEED_BYTES = 1, FEED_U16 = 2, FEED_U32 = 4 }; /* a flat one: bytes an element */

struct feed_how {
	enum feed_format format;
	bool by_eos;
	uint64_t eos;   /* documents end after it */
	uint64_t block; /* 0, or elements of a block; blocks overlap by one */
	bool shuffle;
	uint64_t seed, epochs;
};

/* ---- out.c: what goes to stdout; a reader that has closed it ends the program with 0 */
void out_words(const uint32_t *, size_t n);
void out_flush(void);
/* Wait until fd can be read. Ends the program with 0 if the reader of stdout is gone before: it will never read. */
void out_watch(int fd);

/* ---- file.c: a regular file, read at any place */
struct feed_file {
	const char *name;
	int fd;                /* -1: closed */
	uint64_t size;         /* bytes */
	unsigned char *window; /* bytes [at, at + held) of the file */
	uint64_t at, held;
};
/* 66 not there, 65 no regular file; *regular (if not NULL) tells instead of failing */
int file_open(struct feed_file *, const char *name, bool *regular);
void file_close(struct feed_file *);
/* fn for each document, in order: its first byte and its elements. -65 what is no whole document. */
int file_documents(struct feed_file *, const struct feed_how *, int (*fn)(void *, uint64_t off, uint32_t n), void *arg);
/* Write that document as a record. */
int file_emit(struct feed_file *, const struct feed_how *, uint64_t off, uint32_t n);

/* ---- pipe.c: what can be read only once */
int pipe_feed(int fd, const char *name, const struct feed_how *);

/* ---- flat.c */
/* Elements of a flat format as words. */
void flat_words(enum feed_format, const void *bytes, uint32_t *out, size_t n);
static inline bool flat_ends(const struct feed_how *h, uint32_t word)
{
	return h->by_eos && (word & ~MT_CONTEXT_ONLY) == h->eos;
}

#endif
