/* update.h: the update of groups of MT_GROUP elements by AdamW, Lion or SGD, and the undo journal that makes it
 * resumable.
 *
 * update.c is the specification; update-avx2.c, update-avx512.c and update-neon.c give the same bits. For one element,
 * all in fp32 and in this order, denormals flushed to zero on the way in and out (torch.optim.AdamW, single tensor,
 * without amsgrad):
 *
 *     g  = (g0 + g1) * clip                          g1 only where a unit has two gradient arrays
 *     p  = p * decay                                 1 - lr wd, or 1 for tensors that do not decay
 *     m  = m + (g - m) * lerp                        lerp = 1 - beta1; from beta1 < 0.5: m = g + (g - m) * -beta1
 *     v  = v * beta2 + (g * one_minus_beta2) * g
 *     p  = p + (m * neg_step) / (sqrt(v) / sqrt_bias2 + eps)
 *
 * State in bf16 or int8 (mt-store create --state): fewer operations, and fused ones, give the same up to rounding:
 *
 *     g  = g0 + g1
 *     m  = fma(m, beta1, g * clip_lerp)              clip (1 - beta1)
 *     v  = fma(h, h, v * beta2)                      h = g * clip_root2: clip sqrt(1 - beta2)
 *     p  = fma(p, decay, m / fma(sqrt(v), per_step, eps_per_step))     per_step = -bias1 / (lr sqrt(bias2))
 *
 * With int8 the root is that of the rounded v, since a table of 16 has it: int8_root.
 *
 * Lion (arXiv 2302.06675, algorithm 2), with every type of state, without v:
 *
 *     g  = (g0 + g1) * clip
 *     c  = m * beta1 + g * one_minus_beta1
 *     p  = p * decay + sign(c) * neg_step            decay: 1 - lr wd, or 1; neg_step: -lr; sign(0) = 0
 *     m  = m * beta2 + g * one_minus_beta2
 *
 * SGD (torch.optim.SGD with momentum, without dampening and nesterov), with every type of state, without v:
 *
 *     g  = (g0 + g1) * clip + p * decay              decay: wd, or 0
 *     m  = m * beta1 + g
 *     p  = p + m * neg_step                          neg_step: -lr
 *
 * Where they are not fp32, the new m and v are rounded stochastically: up or down, with probabilities that make the
 * mean exact. Rounding to nearest would stop v's decay, since 0.1 % a step is less than half of bf16's last place. The
 * random numbers are a hash of the step, the unit and the element, so a repeated update rounds as it did before.
 *
 * State in int8: shm/model/int8.h has the codes. Rounding must not make a step long. A step is about lr m / sqrt(v):
 * the danger is a v that is rounded to 0 beside an m that is not. Therefore:
 *  - No v is 0: a v below 2^-31 of its group's scale becomes 2^-31 of it. So sqrt(v) is at least 2^-16 of the largest
 *    sqrt(v) of its group, and only elements whose gradients stay below that share of the group's largest take smaller
 *    steps.
 *  - m's smallest values are about 2^-15 of its group's scale: nearly the same share. A smaller m becomes 0: the
 *    element takes no step.
 *  - Rounding changes any other m or v by less than an eighth.
 * tests/probes/optim-update.c measures the longest steps. Lion and SGD do not divide by a rounded number. An m that is
 * lost in this way leaves SGD's step without momentum, and Lion's with the sign of the gradient.
 *
 * One group: what lies where the new w goes (the old w, or a part of g), and old lo, m, v to the journal slot that the
 * partition's index does not name | index | new w, lo, m, v, with a compiler fence at each bar. The kernel orders a
 * process's stores before its death is seen, so after a kill at any instruction a successor finds the group untouched,
 * or its old state in the slot that the index names. This holds on arm64, too, whose stores may become visible in
 * another order: an exception is precise there, so a killed thread has done a prefix of its program; the kernel's
 * release of the slot's lock comes after all of it, and the successor's acquisition of the lock after that. Who looks
 * at an optimizer that lives may find a new state beside an old index [tests/model/litmus/journal.litmus].
 */
#ifndef MT_OPTIM_UPDATE_H
#define MT_OPTIM_UPDATE_H

#include <stdatomic.h>

#include "model/bf16.h"
#include "model/int8.h"
#include "mt/control.h"

struct scalars { /* scalars of one step, each derived in double and rounded once */
	float clip, decay, lerp, beta2, one_minus_beta2, neg_step, sqrt_bias2, eps;
	float beta1, clip_lerp, clip_root2, per_step, eps_per_step; /* for state in bf16 and int8 */
	float one_minus_beta1;                                      /* lion */
	float no_decay;                                             /* in place of decay for tensors that do not decay */
	bool lerp_from_g; /* |lerp| >= 0.5: PyTorch's lerp starts from the nearer end */
};

struct tile {    /* a unit's arrays; every pointer is to element 0 and aligned to a group */
	void *w;     /* (elems) bf16 with lo, else fp32 */
	int16_t *lo; /* (elems) the low 16 bits of the fp32 master; NULL in fp32 runs */
	enum mt_optim optim;
	enum mt_dtype state;      /* of m and v: fp32, bf16, or int8, which has scales beside the codes */
	void *m, *v;              /* (elems); v: adamw's alone */
	float *m_scale, *v_scale; /* (elems / MT_GROUP) */
	const void *g[2];         /* (elems) from group g_group on; g[1] NULL: one array */
	uint64_t g_group;         /* group that g begins with: pieces of a unit are updated from where they lie */
	bool g_bf16;
	void *out; /* NULL: new weights replace the old ones. Else these stay, and group i's new ones go to out + */
	uint64_t out_bytes; /* i * out_bytes: over the front of the group's gradient g[0] (early.c) */
};

/* Where a group's new weights go */
static inline void *tile_out(const struct tile *t, uint64_t group)
{
	return t->out ? (char *)t->out + group * t->out_bytes : (char *)t->w + group * MT_GROUP * (t->lo ? 2 : 4);
}

/* partition's index word: step 24 bits | slot 1 | unit 11 | group 28. A tag is an index with slot and group 0. */
#define PARTITION_GROUPS ((uint64_t)1 << 28)
#define PARTITION_SLOT 39 /* bit */
static inline uint64_t partition_tag(uint64_t step, uint32_t unit)
{
	return (step & 0xffffff) << 40 | (uint64_t)unit << 28;
}
static inline uint64_t partition_group(uint64_t index) { return index & (PARTITION_GROUPS - 1); }
static inline uint32_t partition_slot(uint64_t index) { return (uint32_t)(index >> PARTITION_SLOT) & 1; }
static inline uint32_t partition_unit(uint64_t index) { return (uint32_t)(index >> 28) & 0x7ff; }
static inline bool partition_in_step(uint64_t index, uint64_t step)
{
	return index && index >> 40 == (step & 0xffffff);
}

/* Where a slot keeps what: w (64 x 2 or 4 bytes; lo follows bf16's), m, v. The scale of int8 follows the codes. */
enum { SLOT_W = 0, SLOT_LO = MT_GROUP * 2, SLOT_M = MT_GROUP * 4, SLOT_V = MT_GROUP * 8, SLOT_SCALE = MT_GROUP };

/* The index store between the two compiler fences: the journal is written before it, the state after it. */
static inline void partition_commit(struct mt_partition *partition, uint64_t index)
{
	atomic_signal_fence(memory_order_seq_cst);
	atomic_store_explicit(&partition->index, index, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
}

/* Update groups [first, end) of a tile; decay is a->decay or a->no_decay. The calling thread has flushed denormals. */
typedef void update_fn(const struct scalars *a, const struct tile *, struct mt_partition *, uint64_t tag,
	uint64_t first, uint64_t end, float decay);
update_fn update_scalar, update_avx2, update_avx512, update_neon;

/* For state in bf16 and int8. Two random numbers, the highest 16 (bf16) or INT8_CUT (int8) bits of a word and as many
 * of the lowest, round m and v of two neighbours: the even one's m and the odd one's v take the high one. Only the high
 * bits of a random number matter in practice, and m and v of an element never share a number. A group's key is a hash
 * of the step, the unit and the group. Each of sixteen odd factors maps it to another word, which is as evenly
 * distributed; elements 32 apart have the same word, rotated. The rotation leaves at least 6 bits between the first
 * bits of any two of a word's four numbers: these correlate by 2^-6, others by less than can be measured. */
static inline uint32_t rounding_key(uint64_t tag, uint64_t group)
{
	uint64_t z = (tag | group) + 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (uint32_t)(z ^ z >> 31);
}
static const uint32_t rounding_factors[16] = {0x7b1dcdaf, 0xa1b965f5, 0x8009454f, 0x724c81ed, 0x51a8749b, 0x747ea2eb,
	0x1f4532e1, 0xc916ab3d, 0x41c98ac3, 0x368cb0a7, 0x3cb13d09, 0x055bdef7, 0xe0bbdb7b, 0x983aa92f, 0x00cc4d19,
	0x971d80ab};
enum { ROUNDING_TURN = 6 };
static inline uint32_t rounding_word(uint32_t key, uint32_t j)
{
	uint32_t x = key * rounding_factors[j % 32 / 2];
	x ^= x >> 16;
	return j < 32 ? x : x << ROUNDING_TURN | x >> (32 - ROUNDING_TURN);
}
struct rounding { /* random numbers, with this number of bits */
	uint32_t m, v;
};
static inline struct rounding rounding_of(uint32_t key, uint32_t j, uint32_t bits)
{
	uint32_t word = rounding_word(key, j), high = word >> (32 - bits), low = word & ((1u << bits) - 1);
	return j % 2 ? (struct rounding){low, high} : (struct rounding){high, low};
}

/* The instruction sets that this CPU has, the widest last: scalar; avx2, avx512 (x86-64); neon (arm64) */
enum { UPDATE_ISAS = 3 };
struct update_isa {
	const char *name;
	update_fn *update;
};
int update_isas(struct update_isa[UPDATE_ISAS]); /* how many */

/* By the widest instruction set of this CPU, or by that which $MT_ISA names (plain: scalar); NULL: the CPU lacks it */
update_fn *update_choose(void);

/* The scalars of Adam's step t. clip_factor stands for the maximum norm of the hyperparameters. */
struct scalars update_scalars(enum mt_optim, uint64_t t, const struct mt_hyperparams *, double clip_factor);

/* Put the group that the partition's index names back to what it was before its update began. Idempotent. */
void update_restore(const struct tile *, const struct mt_partition *);

/* FTZ and DAZ (FZ on arm64) in the calling thread. Adam over denormals is ten times slower. */
void flush_denormals(void);

#endif
