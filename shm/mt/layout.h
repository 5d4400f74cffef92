/* layout.h: units of a model, and where their arrays and tensors lie. */
#ifndef LIBMT_LAYOUT_H
#define LIBMT_LAYOUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "model.h"

/* clang-format off */

#define MT_GROUP      64        /* elements in a group, the optimizer's unit of undo; every slab starts at a multiple */
#define MT_BLOCK      4096      /* elements in a block of the sum of squares; gradient pieces start at a multiple */

/* A unit is what streams as one: 0 embedding, 1..layers blocks, layers + 1 final norm and LM head, and with ple_dim
 * layers + 2 what makes the blocks' own inputs, which streams with unit 0. Its arrays hold `elems` elements each:
 * tensors in role order, every slab at a multiple of MT_GROUP, gaps (all zero for ever) counted. Unit layers + 1 of a
 * tied model with MT_NORM_PLAIN has no tensors and is one gap. */
/* Units take turns in the order in which a forward pass needs them: updates, saves, mt-link. The unit of a turn, and
 * a unit's turn */
static inline uint32_t mt_unit_of_turn(const struct mt_geometry *g, uint32_t turn)
{
	if (!g->ple_dim || !turn) return turn;
	return turn == 1 ? g->layers + 2 : turn - 1;
}
static inline uint32_t mt_turn_of_unit(const struct mt_geometry *g, uint32_t unit)
{
	if (!g->ple_dim || !unit) return unit;
	return unit == g->layers + 2 ? 1 : unit + 1;
}

struct mt_unit {                /* 256 bytes in the control region, the words that change on separate cache lines */
	uint64_t elems;             /* multiple of MT_GROUP */
	uint64_t params;            /* elements that are parameters */
	uint64_t w, lo, m, v;       /* byte offsets in the store region, 2 MiB-aligned; lo is 0 in fp32 runs,
								 * v where the optimizer has none. --state none, and a unit of which nothing is
								 * trained: m and v are 0; of lo there is what
								 * mt_exact says alone, at the offsets from `lo` that it has in other runs; none: 0.
								 * On the tier lo, m and v lie behind the region's end, where nothing is mapped */
	uint64_t g[2];              /* gradient arrays: [0], and [1] for unit 0 of a tied model (the head's end); 0: none */
	uint32_t first_tensor, tensors;
	uint32_t first_tile, tiles; /* on the tier (mt/tier.h): its tiles of a pass; 0, 0: it is not */
	/* mt-optim's note. --grad none: (last piece's block + 1) << 32 | blocks done. mt-optim --update early: step << 2
	 * | 1 while the step, which is not committed, is applied to lo, m and v, | 2 when it is */
	_Atomic uint64_t applied;
	_Atomic uint64_t updated;   /* several nodes: step that this node's part of w holds; by mt-optim, with release */
	double squares;             /* --update early: sum of squares of the gradient that was applied, and a hash of */
	uint64_t opened;            /* what mt-step opened the step with */
	uint64_t reserved0[2];
	_Alignas(64) _Atomic uint64_t version;  /* step that w holds; stored with release by mt-optim alone */
	uint64_t reserved1[7];
	_Alignas(64) _Atomic uint64_t pin;      /* step that a snapshot wants unchanged; 0: none */
	uint64_t reserved2[7];
};

enum mt_pass_order { MT_FORWARD_ORDER = 0, MT_BACKWARD_ORDER = 1 };

struct mt_layout_tier {         /* which units are on the tier (mt/tier.h), and in which tiles */
	uint32_t tiles, slots, order, first;  /* of a pass; of the store; enum mt_pass_order; units of turns from here on */
	uint64_t tile_elems;        /* a multiple of MT_TILE_ALIGN */
	uint64_t off_slots, slot_bytes;       /* in the store region */
	uint64_t end;               /* of the offsets that lo, m and v have behind the store region */
	uint64_t bytes, params;     /* of all files; of the model, on the tier */
};

struct mt_layout {              /* what create allocates and --plan reasons about; plain process memory */
	struct mt_geometry geo;
	enum mt_dtype dtype, grad, state; enum mt_optim optim;
	uint32_t form;              /* of mt_layout_files; 0: the store's own */
	uint32_t n_units, n_tensors;
	struct mt_unit *units; struct mt_tensor *tensors;
	uint64_t store_bytes;       /* of the store region */
	struct mt_layout_tier tier; /* tiles 0: none */
	uint64_t params;            /* of the model; tied embeddings count once */
};
/* Bytes of m, or of v, for `elems` elements, a multiple of MT_GROUP. int8: elems codes, then a fp32 scale for each
 * group (model/int8.h) */
static inline uint64_t mt_state_bytes(uint32_t state, uint64_t elems)
{
	if (state == MT_NONE) return 0;
	return state == MT_INT8 ? elems + elems / MT_GROUP * 4 : elems * mt_dtype_bytes(state);
}
/* The same of an array in memory, where int8's scales begin at a multiple of 4096 bytes */
static inline uint64_t mt_scales_at(uint64_t elems) { return (elems + 4095) / 4096 * 4096; }
static inline uint64_t mt_moment_bytes(uint32_t state, uint64_t elems)
{
	return state == MT_INT8 ? mt_scales_at(elems) + elems / MT_GROUP * 4 : mt_state_bytes(state, elems);
}
/* dtype: of w; grad: of g; state: of m and v: fp32, bf16, int8, or none, which is of w alone, with grad none */
int mt_layout_make(struct mt_layout *, const struct mt_geometry *, enum mt_dtype dtype, enum mt_dtype grad,
	enum mt_dtype state, enum mt_optim optim);
void mt_layout_release(struct mt_layout *);

#define MT_PATTERNS 512         /* bytes of a list of patterns, NUL included */
/* Freezes all tensors but those with a name in `train` (NULL, "": all have), and those with a name in `freeze`:
 * patterns of names as fnmatch(3) has them, with commas between. Arrays are placed anew: a unit of which nothing is
 * trained has w alone, and lo of exact tensors. Before mt_layout_tier. 64: a pattern that no tensor has, or nothing is
 * trained; 78: tensors of one matrix differ inside a group. */
int mt_layout_freeze(struct mt_layout *, const char *train, const char *freeze);
/* Is something of the unit trained? --state none: no */
static inline bool mt_trained(const struct mt_unit *u) { return u->m != 0; }

#define MT_TILE_ALIGN 65536     /* elements: then each array of a tile begins on a page */
#define MT_TILE_ELEMS (1u << 24)/* default */
#define MT_TILE_MOST  (1u << 25)
#define MT_TIER_SLOTS 4         /* default, for each directory */
/* Places the arrays of a layout anew, with lo, m and v of units whose turn is `first` or later on the tier. Where lo is
 * read by compute (exact tensors), it stays. 64: tile_elems is no multiple of MT_TILE_ALIGN; 78: no unit is on it. */
int mt_layout_tier(struct mt_layout *, uint32_t first, uint64_t tile_elems, uint32_t slots, enum mt_pass_order);
/* lo, m and v of the unit of a turn */
uint64_t mt_layout_state_bytes(const struct mt_layout *, uint32_t turn);
/* The first turn on the tier, if lo, m and v of the units before it may take `memory` bytes: 1 or more */
uint32_t mt_layout_tier_first(const struct mt_layout *, uint64_t memory);

/* How files name, pack and transpose a model's tensors: MT_FORM_NEW or not, plus one of the others. 0: as the family's
 * released files do */
enum mt_form {
	MT_FORM_NEW = 1,            /* names are those of transformers 5's classes */
	MT_FORM_SINGLE = 2,         /* of each expert gate_proj, up_proj, down_proj */
	MT_FORM_PACKED = 4,         /* of all gate_up_proj (experts, 2 ffn, hidden), down_proj (experts, hidden, ffn) */
	MT_FORM_TRANSPOSED = 6,     /* the same of transposed matrices: (experts, hidden, 2 ffn), (experts, ffn, hidden) */
	MT_FORMS = 8,
};
/* How many forms files of this model may have: all forms below that number */
uint32_t mt_forms(const struct mt_geometry *);
/* The layout of which `tensors` are those of files in this form. `off` is still where the store has the first element,
 * mt_tensor_piece says where it has the others. */
int mt_layout_files(struct mt_layout *, const struct mt_geometry *, uint32_t form);

/* Some files have the rows of q | k | v in another order. Element `from` of the tensor in its file is the tensor's
 * element *at here, and so on for *n elements; from < t->n. Of experts *at may go beyond the tensor of the first one.
 * Other tensors: *at is `from`, *n is all that follow. */
void mt_tensor_piece(const struct mt_geometry *, const struct mt_tensor *t, uint64_t from, uint64_t *at, uint64_t *n);

/* The part of a unit that one of several nodes owns: elements [first, end). Its borders are multiples of MT_BLOCK, or
 * the unit's end. Nobody owns a unit that is not trained. */
struct mt_part { uint64_t first, end; };
static inline struct mt_part mt_part_of(const struct mt_unit *u, uint32_t node, uint32_t nodes)
{
	uint64_t elems = mt_trained(u) ? u->elems : 0;
	uint64_t blocks = (elems + MT_BLOCK - 1) / MT_BLOCK;
	struct mt_part p = { blocks * node / nodes * MT_BLOCK, blocks * (node + 1) / nodes * MT_BLOCK };
	if (p.end > elems) p.end = elems;
	return p;
}
/* Elements [first, end) of a bf16 run's unit from its first exact tensor to its last; none: first == end. All nodes
 * have lo of them, and runs with --state none. tensor: the unit's first */
struct mt_part mt_exact(const struct mt_unit *, const struct mt_tensor *tensor);

/* The fp32 pattern as two 16-bit halves: w is the round-to-nearest (ties away from zero) bf16, lo what is missing.
 * Exact for all 2^32 patterns (modulo 2^32). */
static inline uint16_t mt_hi(uint32_t bits) { return (uint16_t)((bits + 0x8000u) >> 16); }
static inline int16_t mt_lo(uint32_t bits) { return (int16_t)(uint16_t)bits; }
static inline uint32_t mt_join(uint16_t w, int16_t lo) { return ((uint32_t)w << 16) + (uint32_t)(int32_t)lo; }
static inline uint32_t mt_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float mt_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

/* clang-format on */

#endif
