/* record.h: reading the records of the contract: a little-endian u32 count, then that many u32s: one document. */
#ifndef RECORD_H
#define RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_MAX \
	(1u << 30) /* maximum elements of a record; a larger count means that the file holds something else */

struct record_reader {
	int fd;
	const char *name; /* for messages */
	unsigned char *buf;
	size_t at, end;              /* bytes of buf that are not taken yet: [at, end) */
	void (*before_read)(int fd); /* called before each read, if set after record_open */
	bool eof;
	uint64_t records;     /* headers taken so far: the current record's number, from 1 */
	uint32_t count, left; /* of the current record: elements, and those not taken yet */
	uint32_t rest;        /* elements behind them that record_cut left out */
};

/* An input could not be opened, for errno: -77 without the permission to read it, otherwise -66 */
int record_unopened(const char *name);
int record_open(struct record_reader *, int fd, const char *name);
void record_close(struct record_reader *); /* frees the buffer; fd stays open */
/* Take the next record's header; the current one must have been taken whole. 1, or 0 at the end of the input.
 * -65: the input ends inside the header, or a record that is empty or too long. -74: read failed. */
int record_next(struct record_reader *);
/* Give only the first n elements of the current record, of which none was taken yet: record_next skips the others. */
void record_cut(struct record_reader *, uint32_t n);
/* Are these first bytes of an input text or gzip? 0: no; -65: yes, with a message that says what to do. */
int record_check_start(const char *name, const unsigned char *bytes, size_t n);
/* Take n <= left elements. -65: the input ends inside the record. */
int record_take(struct record_reader *, uint32_t *out, uint32_t n);

#endif
