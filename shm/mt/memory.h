/* memory.h: what lies in shared memory. shm/PROTOCOL.md explains it; step.h has what is kept of a step, control.h
 * the control region as a whole. */
#ifndef LIBMT_MEMORY_H
#define LIBMT_MEMORY_H

#include <stdatomic.h>
#include <stdint.h>

#include "counters.h"

/* clang-format off */

#define MT_RUN_NAME   32        /* characters of a run's name at most */
#define MT_STREAMS    64        /* mt-streams of a run at most, on all of its nodes together */
#define MT_NODES      64        /* nodes of a run at most */
#define MT_MICROS     4096      /* micro-batches a step at most */
/* optimizer's partitions: fixed ranges of a unit's groups; threads take partitions */
#define MT_PARTITIONS      64
#define MT_CHOICES    1024      /* entries of the reproducibility record's table at most */
#define MT_CHOICE_KEY 120       /* bytes of an entry's key, NUL included, */
#define MT_CHOICE_VALUE 120     /* and of its value */
#define MT_NO_TARGET  UINT32_MAX
#define MT_BATCH_TOKEN 36       /* bytes that a batch block has for a token, beside those of a teacher */
#define MT_BATCH_ROOM 72        /* and once */
#define MT_STEP_FIGURES 5       /* sums that an objective has beside its loss */
#define MT_CONTEXT_ONLY 0x80000000u  /* bit 31 of a record's element: no loss for predicting this token */

/* What a teacher says of a position's target, in batches of kd and in answers to evaluations with scores 3: `top` ids
 * in ascending order, then top + 1 floats, of these ids and of all others together. Floats are probabilities in
 * batches, whose sum is 1, and log-probabilities in answers. All 0 without a target. In words of 4 bytes */
#define MT_TEACHER_WORDS(top) ((top) ? 2 * (uint64_t)(top) + 1 : 0)

enum mt_state { MT_EMPTY = 0, MT_FILLING = 1, MT_FILLED = 2, MT_DIRTY = 3, MT_GONE = 4 };

struct mt_header {              /* the first 128 bytes of every region */
	char     magic[8];          /* "mtCONTRL", "mtRINGS ", "mtSTORE ", "mtFILES ", "mtRING  " */
	_Atomic uint32_t abi;       /* MT_ABI, stored last, with release: before it the region is half made */
	_Atomic uint32_t state;     /* enum mt_state; in the control region, of the whole run */
	uint64_t fingerprint;       /* hash of sizeof and offsetof of every shared struct */
	uint64_t size;              /* of the region in bytes */
	uint8_t  run_id[16];        /* random, the same in the run's regions */
	uint8_t  boot_id[16];       /* of the boot that made it: after a reboot, pages on disk may be of different ages */
	uint64_t reserved[8];
};

/* Every stage has a slot. Its word is (pid, locked, start time, generation) and changes by compare-and-swap. */
enum mt_stage_slot { MT_STORE = 0, MT_STEP = 1, MT_OPTIM = 2, MT_CKPT = 3, MT_FILL = 4, MT_TIER = 6,
	MT_LINK = 7, MT_STREAM = 8,
	MT_SLOTS = MT_STREAM + MT_STREAMS };
/* slot of a stream i: MT_STREAM + i. MT_FILL: init or load at work. 5 is free for a stage of your own. */

enum mt_activity {              /* what a stage does now, for `mt-store stat`; the table of words is in stage.c */
	MT_ACT_NONE, MT_ACT_STARTING, MT_ACT_IDLE,
	MT_ACT_READ_INPUT, MT_ACT_WAIT_STREAM, MT_ACT_WAIT_OPTIM, MT_ACT_WAIT_COMMIT, MT_ACT_WAIT_SAVE, MT_ACT_WAIT_BATCH,
	MT_ACT_WAIT_WEIGHTS, MT_ACT_FORWARD, MT_ACT_BACKWARD, MT_ACT_WAIT_GRAD_ROOM, MT_ACT_WAIT_GRADS, MT_ACT_ACCUMULATE,
	MT_ACT_APPLY, MT_ACT_WAIT_PIN, MT_ACT_SAVE, MT_ACT_FILL, MT_ACT_WATCH, MT_ACT_READ_TILE, MT_ACT_WRITE_TILE,
	MT_ACT_WAIT_TIER,
};

/* ns: of a row, forward and backward; of a row's part of the model's arithmetic, at the rate of large GEMMs; of a step,
 * beside its rows */
enum mt_planned { MT_PLANNED_ROW, MT_PLANNED_MODEL, MT_PLANNED_REST, MT_PLANNED };

struct mt_slot {                /* 256 bytes */
	/* pid 22 bits | locked 1 bit: the holder has the slot's byte of the control file locked | start time 25 bits |
	 * generation 16 bits; pid 0: nobody. mt_slot_pid and its neighbours read it */
	_Alignas(64) _Atomic uint64_t word;
	_Atomic uint32_t aborted;   /* generation whose death has already aborted an accumulation */
	_Atomic uint32_t activity;     /* enum mt_activity */
	_Atomic uint64_t activity_arg; /* unit, micro, ... as the table says */
	_Atomic uint64_t counters[8]; /* the stage's own: see counters.h */
	_Atomic uint64_t pid_ns;    /* the namespace that its pid belongs to: inode of the holder's /proc/self/ns/pid */
	/* mt-stream's, of its plan for training: see enum mt_planned. 0: not known */
	_Atomic uint64_t planned[MT_PLANNED];
	_Atomic uint64_t gpu[MT_GPU_WORDS]; /* of an mt-stream on a GPU: see counters.h */
	uint64_t reserved[20 - MT_PLANNED - MT_GPU_WORDS];
};

struct mt_position {            /* where mt-step is in its input; part of a txn, a snapshot and run.json */
	uint64_t records;           /* records placed whole; without those that mt-step --long drops */
	uint64_t offset;            /* elements of the next record already placed (a cut document, or concat) */
	uint64_t hash;              /* XXH64 (seed 0) of the bytes of those whole records, counts included */
	uint64_t hash_cut;          /* XXH64 of the `offset` elements of the next record, 0 if none */
	uint32_t carry;             /* concat: the last element placed, which begins the next row; MT_NO_TARGET: none */
	uint32_t seq, batch, pack;  /* what the rows were made with: a change needs --input new; pack: mt-step/pack.h */
	uint64_t tokens;            /* targets trained so far, over the run's life */
	uint64_t processed;         /* tokens of documents so far, targets or not: without padding */
	uint64_t reserved;
};

enum mt_kind { MT_TRAIN = 1, MT_EVAL = 2 };
enum mt_phase { MT_CLOSED = 0, MT_ACCUMULATE = 1, MT_APPLY = 2, MT_SKIP = 3, MT_DONE = 4, MT_LOGGED = 5 };

struct mt_hyperparams { double lr, beta1, beta2, eps, decay, clip; }; /* of a training step; clip 0: off */
/* Fields of a struct, and the same as one field */
#define MT_HYPERPARAMS \
	union { struct mt_hyperparams hyperparams; struct { double lr, beta1, beta2, eps, decay, clip; }; }

enum mt_snap { MT_SNAP_NONE = 0, MT_PINNED = 1, MT_SEALED = 2, MT_SAVED = 3, MT_FAILED = 4 };

struct mt_snapshot {
	_Alignas(64) _Atomic uint64_t word;   /* step << 8 | enum mt_snap */
	uint64_t reserved0[7];
	_Alignas(64) uint64_t t;
	struct mt_position position;
	_Atomic uint64_t saved;     /* saves that ended so, over the run's life */
	_Atomic uint64_t failed;    /* (step of the last one counted, 40 bits | how many, 24 bits): mt_snap_failures */
	uint64_t reserved1[4];
};

struct mt_record {              /* the reproducibility record: what can change a bit, chosen once, kept in run.json */
	_Alignas(64) _Atomic uint64_t owner;  /* slot word of the stage that is writing it */
	_Atomic uint32_t set;       /* 1: the fields below stand */
	uint32_t chunk_tokens;      /* tokens of a chunk at most: rows per chunk = max(1, chunk_tokens / seq) */
	uint32_t head_tokens;       /* tokens of an LM-head chunk */
	uint32_t pass_rows;         /* 0: layer-major */
	char     device[32];        /* "cpu" or "cuda" */
	char     gemm[64], attention[64];     /* libraries and their versions, in words */
	/* GPU or instruction set, in words; empty: written by an mt that did not look at words */
	char     machine[64];
	/* choices: a list that only grows; entries are numbered from 1, 0 ends it */
	_Atomic uint32_t taken;     /* entries that belong to somebody: more than the list has, where one died */
	_Atomic uint32_t first;
	uint64_t reserved[8];
};

/* The algorithm that a device selected for one operation of one shape, where another one gives other bits. A stage
 * takes an entry, fills it, and links it to the list's end by compare-and-swap: so of two stages that select at once
 * the first one's stands, a kill leaves a whole list, and an entry that was read once stays. */
struct mt_choice {              /* 256 bytes in the control region */
	char     key[MT_CHOICE_KEY];/* the operation and its shape, as its device writes it */
	uint32_t bytes;             /* of value */
	_Atomic uint32_t next;      /* release: from then on this entry and the next are not written any more */
	uint8_t  value[MT_CHOICE_VALUE];
	uint64_t reserved;
};

#define MT_CHOICE_TAKEN UINT32_MAX

enum mt_msg_kind { MT_MSG_BATCH = 1, MT_MSG_LOSS = 2, MT_MSG_GRAD = 3, MT_MSG_SAVE = 4, MT_MSG_SQUARES = 5,
	MT_MSG_SCORE = 6, MT_MSG_FIGURES = 7, MT_MSG_TOP = 8 };

struct mt_msg {                 /* 64 bytes; fields of the txn first, then by kind */
	uint32_t k, attempt;
	uint16_t kind;              /* enum mt_msg_kind */
	uint16_t txn_kind;          /* enum mt_kind */
	uint32_t micro;
	uint64_t step;
	union {
		struct { uint64_t version;     /* units must be at this version or later */
			 uint32_t rows, seq; double loss_scale; uint32_t micros;
			 uint16_t scores;      /* 1: an evaluation that is answered with log-probabilities, too; 2: and
						  with what their signs say; 3: and with the most likely tokens */
			 uint16_t weights;     /* 1: the block has weights, too */
			 uint32_t top;         /* of a teacher's most likely tokens, how many the block has of each
						  position, or with scores 3 the answer */
			 uint32_t documents; } batch;  /* of the micro; above 0: the block has an objective, too */
		struct { double sum; uint64_t targets; uint32_t nonfinite;
			 float mtp;            /* sum of multi-token prediction's; 0 where the geometry's is 0 */
			 double aux, z; /* of this micro, without coefficients; 0 where the geometry's is 0 */ } loss;
		struct { uint32_t unit, end;   /* end 1: the head's end of tied embeddings */
			 uint64_t off, n;      /* elements, in the unit's arrays; off a multiple of MT_BLOCK */
			 uint32_t zero;        /* 1: all n are 0, and nobody wrote the block */
			 uint32_t reserved0; uint64_t reserved1; } grad;
		struct { uint64_t off, n; uint64_t reserved[3]; /* positions of the micro, row after row */ } score;
		struct { double figures[MT_STEP_FIGURES]; } figures;  /* sums over the micro */
		uint8_t bytes[40];
	};
};
/* Payload of a batch message: three arrays of rows x seq u32, one after the other:
 *   tokens  ids; padding is 0
 *   targets id to predict, or MT_NO_TARGET
 *   starts  index in the row at which the token's document starts: it attends from there, its position counts from
 *           there; padding is a separate document
 * and with `weights` a fourth of f32: the weight of the position's target in the loss. 1 where there is no target.
 * With `documents`, `weights` is 1, too, and there follow
 *   old     a fifth array of f32: the log-probability of the position's target under the policy that sampled it; 0
 *           where there is none
 *   teacher with `top`: MT_TEACHER_WORDS(top) words of each position
 * and, from the next multiple of 8 bytes on, a struct mt_objective and `documents` x struct mt_document (documents.h).
 * Payload of a grad message: n elements, bf16 or fp32 as the run's --grad says (fp32 for none).
 * A squares message has the fields of grad; its payload is a double for each block of MT_BLOCK of the n elements: the
 * sum of squares of the gradient there.
 * Payload of a score message: n doubles, for positions off .. off + n - 1 of the micro: the log-probability of the
 * position's target; 0 where there is none. With scores 2 it is positive, +0 included, where the target is the
 * most likely token, of equally likely ones the first.
 * Payload of a top message, whose fields are those of score: MT_TEACHER_WORDS(top) words of each of the n positions.
 * A figures message has none; documents.h says what its sums are. */

struct mt_ringbuf {             /* 256 bytes in the rings region: one ring, single producer, single consumer */
	char     name[32];
	uint32_t slots;             /* S, a power of two: message k stands in messages[k mod S] and owns block k mod S */
	uint32_t reserved0;
	uint64_t off_messages;      /* S x struct mt_msg, in this region */
	uint64_t off_blocks, block_bytes;     /* S blocks; 0, 0: no payload */
	uint64_t reserved1[8];
	_Alignas(64) _Atomic uint64_t tail;   /* messages published: stored by the producer alone, with release */
	uint64_t reserved2[7];
	_Alignas(64) _Atomic uint64_t head;   /* messages finished: stored by the consumer alone, with release */
	uint64_t reserved3[7];
};
#define MT_RINGS (2 * MT_STREAMS + 1)   /* at most */
struct mt_rings {               /* the rings region; a ring of your own is a region of the same shape with n = 1 */
	struct mt_header h;
	uint32_t n, reserved[31];
	struct mt_ringbuf ring[];
};

/* clang-format on */

#endif
