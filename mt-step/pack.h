/* pack.h: packs documents into rows. */
#ifndef PACK_H
#define PACK_H

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "loss.h"
#include "mt/media.h"
#include "mt/memory.h"
#include "record.h"

/* mt_position.pack: how documents share rows, plus what happens to those longer than a row. */
enum pack_how { PACK_DOCS = 1, PACK_CONCAT = 2, PACK_NONE = 3, PACK_HOW = 0xff /* mask */ };
enum pack_long { LONG_SPLIT = 0, LONG_DROP = 1 << 8, LONG_TRUNCATE = 2 << 8, LONG_MASK = 0xff << 8 };

/* Documents that begin with context-only tokens, such as chats: an answer is a run of tokens with loss, its question
 * the context before it. An answer is cut if a token of it is in a later row than its question's first one. */
struct answers {
	uint64_t n, cut; /* answers; those that are cut */
	bool of_document, in_answer, is_cut;
	uint64_t row; /* where the question begins */
};

struct vocabulary {        /* the tokens that records may have: */
	uint32_t size;         /* those below it, */
	struct mt_media media; /* but not these; */
	uint64_t top;          /* and how many of a teacher, with a loss that needs it. 0: any number */
};

struct place {
	uint64_t record;   /* from 1; 0: padding */
	uint32_t document; /* in a group of several documents, from 1; 0: the record is one document */
};

struct packer {
	struct record_reader *in;
	uint32_t pack; /* as in mt_position */
	uint32_t seq;
	struct vocabulary vocab;
	bool ended;                     /* the end of the input was read */
	bool open;                      /* the header of in's current record was read, and not all of it is placed */
	uint64_t records;               /* records placed whole: of a truncated one the part that is kept */
	uint64_t hash;                  /* of their bytes */
	uint64_t documents, longer;     /* records read so far, dropped ones too; those that are longer than a row, */
	uint64_t groups_dropped;        /* and of these the groups of several documents, which are dropped */
	uint32_t longest;               /* elements of the longest one */
	uint64_t tokens, rows, padding; /* elements placed; rows made; elements of them that hold no token */
	struct answers answers;         /* of documents that begin with a prompt */
	uint32_t carry;                 /* last element placed of a cut document, or of the stream; MT_NO_TARGET: none */
	XXH64_state_t all, cut;         /* over all bytes placed; over the open record's elements placed */
	struct place *places;           /* (seq) of each place in the row, its document; NULL: not asked for */
	float *weights;                 /* (seq) of each target of the row, 1 without weights; NULL: not asked for */
	bool weighted;                  /* a document in the current row has weights */
	const struct objective *loss;   /* records must be of this loss; NULL: of any */
	float *old; /* (seq) of each target of the row, the sampler's log-probability, 0 without; NULL: not asked for */
	/* (seq, MT_TEACHER_WORDS) what a teacher says of each target, with a loss that needs it; NULL: not asked for */
	uint32_t *teacher;
	/* (seq) the row's documents, with places in the row as `begin`; NULL: not asked for; and how many (concat: 0) */
	struct mt_document *in_row;
	uint32_t n_in_row;
	uint32_t *raw;                /* (seq) elements of the current row, with their bit 31, */
	float *raw_weights, *raw_old; /* and what stands at them */
};

/* Add what the name of a --pack or --long stands for to *pack. false: it is no such name. */
bool pack_how_parse(const char *name, uint32_t *pack);
bool pack_long_parse(const char *name, uint32_t *pack);
const char *pack_how_name(uint32_t pack);
const char *pack_long_name(uint32_t pack);

int packer_open(struct packer *, struct record_reader *, uint32_t pack, uint32_t seq, const struct vocabulary *);
void packer_close(struct packer *);
/* Skip what the position says was consumed. -65: the input is shorter than that, or its hash differs. */
int packer_skip(struct packer *, const struct mt_position *);
/* Make a row: tokens, targets, starts, (seq) each, as a batch message has them. 1, or 0 at the end of the input. Errors
 * as the reader's, and -65 for a token outside the vocabulary or of media. */
int packer_row(struct packer *, uint32_t *tokens, uint32_t *targets, uint32_t *starts);
/* Is there another row? Waits for input. 1, 0 or an error. */
int packer_more(struct packer *);
/* At the end of the input: -65 if no document was placed, otherwise 0. */
int packer_check_any(const struct packer *);
/* Where the rows made so far end; seq and pack are set, batch and tokens left alone. */
void packer_position(const struct packer *, struct mt_position *);
/* Targets of a row that predict something. */
uint64_t targets_count(const uint32_t *targets, uint64_t n);

#endif
