/* runjson.h: run.json, what a checkpoint holds beside its arrays. Errors are as in hf/hf.h. */
#ifndef MT_CKPT_RUNJSON_H
#define MT_CKPT_RUNJSON_H

#include "hf/hf.h"
#include "mt/memory.h"
#include "mt/step.h"

#define RUN_JSON "run.json" /* a directory that has it is a checkpoint */

struct run_json {               /* what a checkpoint holds beside its arrays */
	enum mt_dtype dtype, state; /* of w, of m and v */
	uint32_t nodes;             /* that wrote it: with several, each its part of lo, m and v; 0: none said */
	enum mt_optim optim;
	uint64_t step, t;
	struct mt_position position;
	bool mtp; /* written: the run trains multi-token prediction */
	bool has_record;
	struct mt_record record;
	json_t *choices;               /* of the record: object of hexadecimal values by key, or NULL */
	struct mt_hyper hyper;         /* of the step; its step 0: not known */
	struct mt_figures unlogged[2]; /* of steps whose metrics lines are not written; step 0: none */
	uint8_t run_id[16];
	char train[MT_PATTERNS], freeze[MT_PATTERNS]; /* of mt_layout_freeze */
	struct
		run_tier { /* of a run with a tier (mt/tier.h) whose tiles are files of the checkpoint; files NULL: of none */
		uint64_t tile_elems;
		uint32_t first;           /* turn from which on units are in tiles */
		enum mt_pass_order order; /* of a pass: tiles are numbered in it */
		uint8_t run[16];          /* in the tiles' seals; their t is the checkpoint's */
		json_t *files;            /* each tile's name, and the checksum in its seal */
	} tier;
};

int run_json_write(struct out_dir *, const struct run_json *);
/* Read and check it; *files: the object of checksums. *root owns everything; decref it. */
int run_json_read(int dirfd, struct run_json *, json_t **root, json_t **files);
/* The same for a root that has been read */
int run_json_parse(json_t *root, struct run_json *, json_t **files);
int run_json_checksum(json_t *root, uint64_t *sum); /* of everything but the key checksum; 71 */
/* What node 0 must know of another node's files: written beside them, read to take them into `to` */
int part_json_write(struct out_dir *, uint64_t step, uint32_t node);
int part_json_take(struct out_dir *to, int from, uint64_t step, uint32_t node);
json_t *json_hash(uint64_t x);                       /* a text of 16 hexadecimal digits */
uint64_t json_hash_at(const json_t *list, size_t i); /* the number of such a text in a list; 0: it is none */
json_t *json_hex(const uint8_t *bytes, size_t n);    /* a text of 2 n hexadecimal digits, n <= MT_CHOICE_VALUE */
#endif
