/* control.h: the control region. */
#ifndef LIBMT_CONTROL_H
#define LIBMT_CONTROL_H

#include "layout.h"
#include "model.h"
#include "step.h"

/* clang-format off */

struct mt_partition {                /* one partition of the optimizer's undo journal */
	_Alignas(64) _Atomic uint64_t index;  /* step 24 bits | unit 12 | slot 1 | group 27; 0: nothing written */
	uint64_t reserved[7];
	_Alignas(64) uint8_t slot[2][MT_GROUP * 16]; /* old state of a group: w (64 x 2 or 4 B), lo (bf16 runs), m, v */
};

/* A run on several nodes (machines): each has a run of this name, with all weights, and the optimizer's state of its
 * part alone. Node 0 decides; mt-link copies its decisions to the others, which are mirrors. */
struct mt_nodes {
	uint32_t node, nodes;       /* this one, 0 to nodes - 1; 0 of 1: the run is on one machine */
	/* in other nodes than 0: entries of the table of choices that mt-link is to bring to node 0, the newest first,
	 * linked by `next`; 0 ends the list. An entry that mt-link has copied has MT_CHOICE_TAKEN in `next` */
	_Atomic uint32_t proposed;
	uint32_t streams;           /* mt-streams of each node at most: node r has the numbers from r * streams on */
	uint64_t reserved[6];
	/* [r]: newest txn's k whose step node r has finished: all of its units are at it. By each node's mt-optim for
	 * itself; in node 0, mt-link stores those of the others */
	_Alignas(64) _Atomic uint64_t done[MT_NODES];
	/* By mt-link. [r]: snapshot's word of node r: in node 0 those of all others, in them node 0's. A node's own: what
	 * it has told of it */
	_Alignas(64) _Atomic uint64_t snap[MT_NODES];
	/* Do all see one directory of checkpoints? [0]: number in the name of a file that node 0's mt-ckpt made in it. [r]:
	 * the same when node r's has found that file, one less when it has not. mt-link carries them. 0: not yet */
	_Alignas(64) _Atomic uint64_t token[MT_NODES];
};

/* lo, m and v of the last units in files: see mt/tier.h. Each of the three counters is changed by one stage alone, from
 * q to q + 1; written <= updated <= loaded <= written + slots. */
struct mt_tier {
	uint32_t tiles, slots, dirs, order;   /* of a pass, 0: no tier; of the store; directories; enum mt_pass_order */
	uint32_t first;             /* units of turns from `first` on are on it */
	_Atomic uint32_t moved;     /* bit i: of directory i the second path is true (mt-tier --dir) */
	uint64_t tile_elems;
	uint64_t off_slots, slot_bytes;       /* in the store region: tile q is in slot q mod slots */
	uint64_t off_dirs;          /* in this region: dirs x char[2][MT_TIER_PATH] */
	uint64_t bytes, params;     /* of all files; of the model, on the tier */
	uint64_t t0;                /* Adam's t when the run was filled, */
	uint8_t  from[16];          /* and run_id in the seals of the files then */
	uint64_t reserved1[4];
	_Alignas(64) _Atomic uint64_t loaded;   /* tiles below have been read: by mt-tier */
	uint64_t reserved2[7];
	_Alignas(64) _Atomic uint64_t updated;  /* tiles below are at their pass's t: by mt-optim */
	uint64_t reserved3[7];
	_Alignas(64) _Atomic uint64_t written;  /* tiles below are in their files: by mt-tier */
	uint64_t reserved4[7];
};

struct mt_control {
	struct mt_header h;
	/* the run's one doorbell: every publication rings it, every wait sleeps on it (mt_wait) */
	_Alignas(64) _Atomic uint32_t event;  /* futex word */
	_Atomic uint32_t waiters;
	uint64_t reserved0[7];
	_Alignas(64) char name[MT_RUN_NAME + 8];
	uint32_t uid;
	uint32_t dtype, grad;       /* enum mt_dtype: of w, of g */
	uint32_t n_units, n_tensors;
	uint32_t partitions, group;      /* MT_PARTITIONS, MT_GROUP */
	uint32_t state;             /* enum mt_dtype: of m and v */
	uint64_t step_tokens;       /* tokens that a batch block holds */
	uint64_t piece_elems;       /* elements that a gradient block holds, a multiple of MT_BLOCK */
	uint64_t params;
	uint64_t off_units, off_tensors, off_choices, off_journal, off_config, config_bytes;  /* in this region */
	char     numa[64];          /* policy as given */
	struct mt_geometry geo;
	uint32_t optim;             /* enum mt_optim */
	uint32_t router_dtype;      /* enum mt_dtype: of exact routers in bf16 files, as the loaded ones had; 0: fp32 */
	_Alignas(64) _Atomic uint64_t attempts;  /* the run's attempt counter: opening and aborting take a new one */
	_Atomic uint64_t fills;     /* fillings begun plus fillings ended: odd while init or load is at work */
	uint64_t form;              /* of the loaded files (mt/layout.h), in which files are written */
	uint64_t top;               /* of a teacher's most likely tokens, how many a batch block holds of a token */
	uint64_t reserved1[4];
	struct mt_record record;
	struct mt_snapshot snap;
	struct mt_slot slots[MT_SLOTS];
	struct mt_txn txn[2];       /* txn k lives in txn[k & 1]; txn 0 is the state that was filled: step, t, position */
	/* steps whose lines were not out when the checkpoint was taken that filled the run; a step under long evaluation */
	struct mt_figures unlogged[2];
	/* step s stands in hyper[s & 1], by mt-optim before it commits s; until s + 2 is committed, for checkpoints of s */
	struct mt_hyper hyper[2];
	uint64_t reserved2[20 - 2 * MT_FIGURES_WORDS]; /* room for more figures, without moving `nodes` */
	struct mt_nodes nodes;
	struct mt_tier tier;
	char     train[MT_PATTERNS], freeze[MT_PATTERNS]; /* of mt_layout_freeze, as given */
};

/* clang-format on */

#endif
