/* sample.h: what mt-sample's parts share: weights of one committed step, a forward pass over them, the next token. */
#ifndef MT_SAMPLE_H
#define MT_SAMPLE_H

#include "layers/block.h"

/* ---- weights.c: weights out of a run that may be training. Nothing is written into the run. ---- */

enum { CHANGED = 1 }; /* a step was committed, or the run filled, since weights_begin: what was read is of no use */

struct weights_reader {
	struct mt_run *run;
	struct device *dev;
	double wait_s;  /* seconds to wait for a stage that has died */
	bool in_place;  /* the device reads the store itself */
	uint64_t fills; /* whose weights are read: what weights_begin found */
	uint64_t step;
};

/* From here on, weights are those of the newest committed step. 66 the run was removed; 65 its store is dirty; 69 it is
 * half filled, and nobody fills it */
int weights_begin(struct weights_reader *);
/* Wait until mt-optim has written that step's weights of the unit. 0, CHANGED, or 69: it has died */
int weights_wait(const struct weights_reader *, uint32_t unit);
/* Elements off .. off + n - 1 of the unit, as the device's operands: dst (n), filled, or the place in the store.
 * Launched, not done. */
const void *weights_launch(const struct weights_reader *, uint32_t unit, uint64_t off, uint64_t n, void *dst);
/* Has all that was read since weights_begin, with the device at rest, been of that step? 0 or CHANGED */
int weights_check(const struct weights_reader *);

/* ---- forward.c: logits of the next token ---- */

struct forward {
	struct weights_reader weights;
	struct device *dev;
	const struct mt_geometry *geo;
	struct list *lists; /* of its kinds of layers */
	bool mixed;         /* each unit may be of another step */
	bool mixed_reported;
	uint64_t fills, step; /* what the cache was computed with */
	uint32_t cached;      /* tokens whose q | k | v the cache has; 0: none */
	uint32_t from, n;     /* this pass computes tokens from .. n - 1 */
	uint32_t tail_row;    /* where the pass's rows begin in the caches of layers without attention, */
	uint32_t tail_end;    /* and where they end */
	const uint32_t *tokens;

	/* device memory, one allocation, for `room` tokens */
	char *arena;
	size_t arena_bytes;
	uint32_t room, positions;             /* rows of cos and sin that are filled */
	float *x, *y;                         /* (room, H): a unit's input and output */
	float *cos[MT_KINDS], *sin[MT_KINDS]; /* (room, rope_dim / 2), by kind of layers */
	float *qkv;                           /* the cache: of each layer values that later tokens read, and its state */
	float *ple;                           /* (room, L p): the blocks' own inputs */
	float *conv_rows;                     /* (DELTA_CHUNK + CHUNK, conv_width()) */
	float *slot;                          /* weights that are not read in place: of a block, or of a part of the head */
	float *norm, *norm_bias;              /* (H) each: the final norm's weight and bias, likewise */
	float *head_bias;                     /* (V) */
	uint32_t *starts;                     /* (CHUNK): zeros, one document */
	struct saved saved[MT_KINDS];         /* of a chunk; all but what is in the cache */
	struct scratch scratch;               /* logits (V) */
};

/* compute: the type that GEMMs multiply. 0, 71 or 78: not bf16 here, or not with these weights */
int forward_open(struct forward *, struct mt_run *, int threads, enum mt_dtype compute, double wait_s);
void forward_close(struct forward *);
/* Make room for a document of `tokens` tokens; forgets the cache. 0 or 71 */
int forward_room(struct forward *, uint64_t tokens);
/* *logits (V): those of the token after the n tokens; they stand until the next call. Earlier calls since forward_room
 * have had the first tokens of these. 0 or -ex */
int forward_logits(struct forward *, const uint32_t *tokens, uint32_t n, const float **logits);

/* ---- draw.c ---- */

struct draw {
	double temperature; /* 0: the most likely token */
	uint64_t top_k;     /* 0: all */
	double top_p;       /* 1: all */
	uint64_t seed;
	uint32_t vocab;
	struct candidate *candidates; /* (vocab) */
};

int draw_open(struct draw *); /* 0 or 71 */
/* The token at a place of a record's continuation. -65: a logit is not finite */
int draw_token(const struct draw *, const float *logits, uint64_t record, uint64_t place, uint32_t *token);

/* ---- stop.c ---- */

enum { STOPS = 32 };
struct stop_text {
	const char *bytes;
	size_t n;
};
struct stops {
	uint32_t id[STOPS];
	int n;
	struct stop_text text[STOPS];
	int texts;
	size_t longest;          /* bytes of the longest text */
	struct stop_text *token; /* (vocab): what each token adds to the text */
	char *tail;              /* the continuation's last bytes */
	size_t tail_n;
};

/* The model's own: eos_token_id of generation_config.json if the run keeps one that has it, else of config.json */
void stops_of_run(const struct mt_run *, struct stops *);
bool stops_have(const struct stops *, uint32_t token);
/* A text that ends a continuation; \n, \t and \\ in it are a line break, a tab and a backslash. 0 or 71 */
int stops_add_text(struct stops *, const char *text);
/* Learn the texts of tokens from the run's tokenizer.json; without one, tokens of a vocabulary of at most 512 are
 * bytes. 0, 65, 71, or 78: there is none, or it is of another kind */
int stops_open_texts(const struct mt_run *, struct stops *, uint32_t vocab);
/* Does the next token of a continuation complete a text? first: it is the continuation's first */
bool stops_text_completed(struct stops *, bool first, uint32_t token);

#endif
