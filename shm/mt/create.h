/* create.h: to make a run, and what it needs. */
#ifndef LIBMT_CREATE_H
#define LIBMT_CREATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"
#include "types.h"

/* clang-format off */

struct mt_geometry;
struct mt_layout;

struct mt_create {
	const char *name; const char *config_text; size_t config_bytes;
	enum mt_dtype dtype, grad, state; /* state 0: fp32 */
	enum mt_optim optim;              /* 0: adamw */
	uint64_t step_tokens; const char *numa;
	uint64_t top;               /* as in the control region */
	uint32_t node, nodes;       /* nodes 0 or 1: the run is on one machine */
	uint32_t streams;           /* mt-streams of this node at most; 0: mt_default_streams */
	const char *const *tier; uint32_t tiers;  /* directories of the tier; 0: none */
	uint64_t tier_memory;       /* of lo, m and v that stay in memory; UINT64_MAX: a tenth of the RAM stays free */
	uint64_t tile_elems; uint32_t slots;      /* 0: MT_TILE_ELEMS; 4 for each directory */
	const char *train, *freeze; /* of mt_layout_freeze */
	enum mt_pass_order order;   /* --grad none: MT_BACKWARD_ORDER in any case */
	uint8_t id[16];             /* run_id; zero: random */
	const volatile int *stop;   /* not 0: making it is given up; NULL: never */
};
/* Make the three regions, allocated in full, state empty. 73 exists, 71 not enough memory (need, have, remedy),
 * 64 bad name, policy, node or number of mt-streams. Nothing is left behind when it fails. */
int mt_run_create(const struct mt_create *, const struct mt_geometry *);
/* Bytes of the regions that it makes on the one of several nodes (or of one) that has most, with the rings that mt-link
 * reads there, and of its store region alone; 0: no memory to say. streams: of each node, 0: mt_default_streams. There
 * may be more than a run has, for plans. */
uint64_t mt_node_need(const struct mt_layout *, size_t config_bytes, uint64_t step_tokens, uint64_t top,
	uint32_t nodes, uint32_t streams);
uint64_t mt_node_store(const struct mt_layout *, uint32_t nodes);

struct mt_small {               /* a run that is to become smaller */
	enum mt_dtype grad, state; uint32_t rows;   /* as asked; rows 0: they do not matter */
	bool none;                  /* --grad none is possible */
	bool binary;                /* say GiB, not GB */
	uint64_t have;              /* bytes */
	/* Bytes that a run with these choices takes; UINT64_MAX: there is no such run */
	uint64_t (*need)(void *arg, enum mt_dtype grad, enum mt_dtype state, uint32_t rows); void *arg;
};
/* Names the one or two smaller choices of --micro, --state and --grad that fit, those that change least first, in buf:
 * "--state bf16 (1206.5 GB) or --state int8 (974.3 GB)". How many; 0: none fits, and buf is empty. */
int mt_remedies(const struct mt_small *, char *buf, size_t n);

/* Default number of mt-streams that each of `nodes` nodes may have: few, since each takes memory for rings */
static inline uint32_t mt_default_streams(uint32_t nodes) { return nodes < 8 ? 8 / nodes : 1; }

/* clang-format on */

#endif
