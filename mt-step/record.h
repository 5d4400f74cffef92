/* record.h: reading the records of the contract: a little-endian u32 count, then that many u32s: one document. A count
 * with bit 31 is that of the words of a group: documents that stay together in a row, each of
 *
 *     u32 count, u32 parts, [u32 side], [f64 ref], [u32 top, u32 vocabulary], count u32 ids, [count f32 weights],
 *     [count f32 old], [teacher]
 *
 * and parts says which it has (enum mt_record_part). A group with sides is a pair: two documents, one chosen (side 1)
 * and one rejected (2); or one answer, of either side. What stands at an element is about this element; at the first
 * one it is ignored. The teacher has something at elements alone that are predicted, and count: `top` u32 ids in
 * ascending order, of its vocabulary, then top + 1 log-probabilities in fp16, of these ids and of all others together,
 * and padding to a multiple of 4 bytes. */
#ifndef RECORD_H
#define RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mt/losses.h"
#include "mt/memory.h"

#define RECORD_MAX \
	(1u << 30) /* maximum elements of a record; a larger count means that the file holds something else */

#define RECORD_GROUP (1u << 31) /* a bit of a record's count */

/* A document of a group */
struct group_document {
	uint32_t count, parts, side;                  /* parts: of enum mt_record_part; side: enum mt_side */
	double ref;                                   /* sum of a reference model's log-probabilities of its targets */
	const uint32_t *ids, *weight_bits, *old_bits; /* (count); floats as they stand; NULL: it has none */
	uint32_t top, vocabulary;                     /* of its teacher */
	const uint32_t *teacher;                      /* (targets, record_teacher_words) */
};

/* Words of a teacher at an element */
static inline uint64_t record_teacher_words(uint32_t top) { return top + ((uint64_t)top + 2) / 2; }
/* Its log-probability of id i, or of all other tokens (i = top) */
float record_teacher_log(const uint32_t *words, uint32_t top, uint32_t i);

/* Is element i predicted, and does it count? */
static inline bool record_targets(const struct group_document *d, uint32_t i)
{
	return i && !(d->ids[i] & MT_CONTEXT_ONLY);
}

struct record_reader {
	int fd;
	const char *name; /* for messages */
	unsigned char *buf;
	size_t at, end; /* bytes of buf that are not taken yet: [at, end) */
	uint64_t read;  /* bytes of the input that have been in buf */
	/* called, if set after record_open: before each read; with each record as a whole, which is in memory then */
	void (*before_read)(int fd);
	void (*whole)(const uint32_t *words, size_t n);
	bool eof;
	uint64_t records;     /* headers taken so far: the current record's number, from 1 */
	uint32_t count, left; /* of the current document: elements, and those not taken yet */
	uint32_t rest;        /* elements behind them that record_cut left out */
	/* of the current record: its documents, the current one's number from 1, elements of all */
	uint32_t documents, document, total;
	uint32_t words, at_word; /* of a group, 0: it is none; where the next document stands */
	uint32_t *group;         /* its count, then its words */
	size_t room;             /* for that many words */
	/* its current document; of a plain record all 0, but for ids where these are in memory */
	struct group_document now;
};

/* An input could not be opened, for errno: -77 without the permission to read it, otherwise -66 */
int record_unopened(const char *name);
int record_open(struct record_reader *, int fd, const char *name);
void record_close(struct record_reader *); /* frees the buffer; fd stays open */
/* Take the next record's header; the current one must have been taken whole, unless it is a group. A group is read and
 * checked as a whole; its first document becomes the current one. 1, or 0 at the end of the input.
 * -65: the input ends inside the header, or a record that is empty, too long or no valid group. -74: read failed. */
int record_next(struct record_reader *);
/* Go to the next document of the group, if there is one. */
bool record_document(struct record_reader *);
/* The document at words[*at] of a group of n words; *at moves behind it. number: the document's, from 1. -65: it is not
 * valid, in the words of record `record`. */
int group_document(const char *name, uint64_t record, uint32_t number, const uint32_t *words, uint32_t n, uint32_t *at,
	struct group_document *);
/* Its documents, and the elements of all; errors as of group_document, or if sides are those of neither a pair nor one
 * answer */
int group_check(const char *name, uint64_t record, const uint32_t *words, uint32_t n, uint32_t *documents,
	uint32_t *total);
/* Give only the first n elements of the current record, of which none was taken yet: record_next skips the others. */
void record_cut(struct record_reader *, uint32_t n);
/* Are these first bytes of an input text or gzip? 0: no; -65: yes, with a message that says what to do. */
int record_check_start(const char *name, const unsigned char *bytes, size_t n);
/* Take n <= left elements. -65: the input ends inside the record. */
int record_take(struct record_reader *, uint32_t *out, uint32_t n);

#endif
