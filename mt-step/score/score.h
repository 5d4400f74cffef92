/* score.h: the parts of mt-score: rows of the input, what the mt-streams answer, and what is written. */
#ifndef SCORE_H
#define SCORE_H

#include "driver.h"
#include "mt/step.h"

/* Rows of one evaluation, of the run's transactions: they are in memory until its answers have come */
struct part {
	struct rows_source in;
	uint64_t most;        /* rows of a full one */
	struct place *places; /* (most, seq) the record and document of the token */
	double *logp;         /* (most, seq) of the target, as a score message with scores 2 has it */
	uint32_t top;         /* most likely tokens that are asked for; 0: none */
	uint32_t vocabulary;  /* of which they are */
	uint32_t *teacher;    /* (most, seq, MT_TEACHER_WORDS(top)), as a top message has it */
};

/* ---- part.c */

int part_open(struct part *, uint64_t rows, uint64_t seq, uint32_t top, uint32_t vocabulary);
/* Pack the next rows. The number of rows, 0 at the end of the input, or an error. */
int64_t part_read(struct part *, struct packer *);

/* ---- answers.c: this process in mt-optim's place */

/* Claim mt-optim's slot on a handle of its own, and open its rings, whose blocks hold `top` tokens of a position. */
void answers_open(const struct options *, uint32_t top);
/* Doorbell bits of the answers' rings */
uint32_t answers_wake(void);
/* Take what has come for txn k into the part. True: all has come, and k is committed. */
bool answers_take(struct driver *, uint32_t k, struct part *);
/* Which share of the part's answers has come */
double answers_share(void);
void answers_leave(void);

/* ---- lines.c */

enum lines {
	LINES_DOCUMENTS,
	LINES_TOKENS,
	LINES_SUM,
	LINES_REF,
	LINES_OLD,
	LINES_TOP /* these: records, by join.c */
};

/* Add the part's log-probabilities, and with LINES_SUM the losses of txn k, which is committed; write the lines of
 * documents that are complete. */
void lines_add(enum lines, const struct part *, const struct mt_txn *);
/* The input has ended after this many records. */
void lines_end(enum lines, uint64_t records);

/* ---- join.c */

/* A record that has been read, with its count: record_reader's `whole` */
void join_keep(const uint32_t *words, size_t n);
/* Write the next document, which is of this record, with the part: ref is `sum`, old tokens[n] with NaN where there is
 * none, a teacher teacher[targets] as in messages, of this vocabulary. Records before it that have none were left
 * out. */
struct joined {
	enum mt_record_part part;
	double sum;
	const double *tokens;
	size_t n;
	const uint32_t *teacher;
	uint32_t top, vocabulary;
};
void join_document(const struct joined *, uint64_t record);
/* How many records were left out, at the end of the input */
uint64_t join_end(void);

#endif
