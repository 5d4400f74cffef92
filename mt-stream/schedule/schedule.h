/* schedule.h: what the files of the schedule share: schedule.c, parts.c, arrive.c, chunks.c, offload.c, windows.c and
 * leave.c. First of all the parts of which units consist.
 *
 * A unit has one part, or, with windows of experts, one for each window and one for its rest (split.h). The forward
 * pass goes through a unit's windows between the two halves of its rest. The backward pass goes part by part.
 */
#ifndef MT_STREAM_SCHEDULE_H
#define MT_STREAM_SCHEDULE_H

#include "stream.h"

static inline uint32_t head_unit(const struct stream *s) { return s->units - 1; }

/* ---- parts.c ---- */

/* Do the unit's experts come by windows? The number of windows */
bool is_split(const struct stream *, uint32_t unit);
uint32_t windows_in(const struct stream *, uint32_t unit);
/* Elements of one of the unit's origins that are in its slot: all, or the rest beside windows */
uint64_t elems_of(const struct stream *, uint32_t unit, int origin);
void weights_at(struct stream *, uint32_t unit, const void *const base[2], const int16_t *lo, struct weights *);
void grads_at(struct stream *, uint32_t unit, float *slot, struct grads *);
/* Gaps between tensors are copied out with them, so they must be zero. Of elements from .. to - 1 of a unit, which are
 * at g; of all in the unit's slot */
void gaps_clear(struct stream *, uint32_t unit, float *g, uint64_t from, uint64_t to);
void grads_clear_gaps(struct stream *, uint32_t unit, float *slot);
/* Window i's tensors: weights at mem, or with zero-copy in the store; gradients at gs. Either may be left out. */
void window_enter(struct stream *, uint32_t unit, uint32_t i, void *mem, struct weights *, float *gs, struct grads *);
/* Copy those of a part's gradients, which are at gs, that are in blocks of other parts, too, to where these are put
 * together. end: the boundary where the part ends; it begins at the one before */
void boundaries_put(struct stream *, uint32_t unit, const float *gs, const struct extent *, uint32_t end);

/* A part of a unit in the backward pass, by which they are numbered: windows, rest */
struct part {
	uint32_t unit, nth;
};

bool is_window(const struct stream *, struct part);
/* Where its gradients are summed */
float *grads_of(const struct stream *, struct part);
/* The next one: the unit's next part, or the unit below */
struct part part_after(const struct stream *, struct part);

/* Elements e.from .. e.to - 1 of a unit's gradient, the first of which is at g[e.at] */
struct gradient {
	uint32_t unit, end;
	struct extent e;
	float *g;
	/* of a window's experts: where the unit's first one is, and from one to the next; 0: other gradients */
	uint64_t expert_off, expert_stride;
	bool frozen; /* some tensors of the unit are */
};

/* The i-th extent of the gradients that leave with the part, which may be empty; false: i is past the last. Where the
 * embed gradient and the head gradient are summed in one array, the sum leaves as unit 0's gradient. */
bool gradient_of(const struct stream *, struct part, uint32_t i, struct gradient *);

/* ---- arrive.c ---- */

/* Copy the rows, and rope's tables if they are not there yet, to the device */
void batch_in(struct stream *);
uint64_t weight_elem(const struct stream *); /* bytes */
/* Let the unit's weights come into a slot, unless they are there */
void weights_ahead(struct stream *, uint32_t unit);
/* *w: the unit's weights; compute launched from here on may read them. Returns the slot, whose last_read the caller
 * sets once it has launched the last reader; NULL where the device reads the store in place. */
struct slot *weights_fetch(struct stream *, uint32_t unit, struct weights *w);

/* Enter the weights that make the blocks' own inputs, beside the table; compute launched from here on may read them */
void ple_weights(struct stream *, struct weights *);

/* ---- chunks.c ---- */

/* MLP slices of the first n tokens of the pass, which are whole chunks or all of it */
int64_t slices_of(const struct stream *, int64_t n);
/* Tokens [from, from + n) of the pass. All chunks share the scratch. */
struct chunk chunk_of(struct stream *, int64_t from, int64_t n);
int64_t chunk_tokens(const struct stream *, int64_t from); /* of the chunk at `from` */
/* Unit u's output, from token `from` of the pass on; its gradient */
void *output(const struct stream *, uint32_t u, int64_t from);
void *dx_at(const struct stream *, int64_t from);
/* Is what this layer keeps offloaded? */
bool is_offloaded(const struct stream *, uint32_t layer);
/* A block's activations for the chunk at `from` */
struct saved saved_at(const struct stream *, uint32_t layer, int64_t from);

/* A chunk of the pass in a block: its activations, and its input */
struct block_chunk {
	int64_t from; /* token of the pass */
	struct chunk c;
	struct saved v;
	const void *x;
};

/* The first time from and c.n are 0 */
bool next_chunk(struct stream *, uint32_t u, struct block_chunk *);

/* ---- offload.c ---- */

/* The unit's forward pass is about to be launched */
void forward_begins(struct stream *, uint32_t u);
/* It has been launched: offload what it writes. The last two stay, as the backward pass reads them first. */
void forward_ends(struct stream *, uint32_t u);
/* Let a block's offloaded activations come back. At `read` the last reader of the memory that they come into has
 * run. */
void activations_ahead(struct stream *, uint32_t u, struct event read);

/* ---- schedule.c ---- */

/* The first chunk of the micro-batch overwrites a unit's gradients (0), the others add to them (1) */
static inline float beta_at(const struct stream *s, int64_t from) { return s->now.first && from == 0 ? 0 : 1; }
/* What the chunk's backward pass reads and the block has not kept */
void recompute(struct stream *, uint32_t u, const struct weights *, struct block_chunk *);

/* ---- windows.c: blocks whose experts come by windows ---- */

/* Has any token of the pass been sent to the expert? Once the unit's tokens are routed */
bool expert_used(const struct stream *, uint32_t unit, uint32_t expert);
/* Nobody routes: each expert gets as many rows as the others */
void rows_assume(struct stream *, uint32_t u);
int split_forward(struct stream *, uint32_t u, struct weights *); /* 0 or -ex */
/* The first windows' weights may come, for the backward pass */
void windows_ahead(struct stream *, uint32_t u);
/* Before the first window: attention's activations and the router's, of all chunks. Then each window, and the rest. */
void split_backward_begin(struct stream *, uint32_t u);
void window_backward(struct stream *, uint32_t u, uint32_t i, float *gs);
void rest_backward(struct stream *, uint32_t u, float *gs);

/* ---- leave.c ---- */

/* Send the micro-batch's loss; at `ready` the head has computed it */
int loss_out(struct stream *, struct event ready);
/* Send the log-probabilities of its tokens, after the loss */
int scores_out(struct stream *);
/* Compute launched so far has finished the part's gradients */
void grads_final(struct stream *, struct part);
/* Send the part's gradients, which are final at `ready`. All of them have left on return. */
int grads_out(struct stream *, struct part, struct event ready);

#endif
