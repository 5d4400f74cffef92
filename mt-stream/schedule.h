/* schedule.h: what schedule.c shares with parts.c and leave.c: the parts of which units consist.
 *
 * A unit has one part, or, with windows of experts, one for each window and one for its rest (windows.h). The forward
 * pass goes through a unit's windows between the two halves of its rest. In the backward pass each part is a step.
 */
#ifndef MT_STREAM_SCHEDULE_H
#define MT_STREAM_SCHEDULE_H

#include "stream.h"

static inline uint32_t head_job(const struct stream *s) { return s->units - 1; }

/* ---- parts.c ---- */

/* Do the job's experts come by windows? If so, by so many */
bool is_cut(const struct stream *, uint32_t job);
uint32_t windows_in(const struct stream *, uint32_t job);
/* Elements of a part of the job that are in its slot: all, or the rest beside windows */
uint64_t elems_of(const struct stream *, uint32_t job, int part);
void weights_at(struct stream *, uint32_t job, const void *const base[2], const int16_t *lo, struct weights *);
/* Where a part's gradient is summed: in its part of the slot. With --grad none a tied model sums the embed gradient and
 * the head gradient in one array. */
float *grads_base(const struct stream *, uint32_t job, int part, float *slot);
void grads_at(struct stream *, uint32_t job, float *slot, struct grads *);
/* Gaps between tensors are copied out with them, so they must be zero. Of elements from .. to - 1 of a unit, which are
 * at g; of all in the job's slot */
void gaps_clear(struct stream *, uint32_t unit, float *g, uint64_t from, uint64_t to);
void grads_clear_gaps(struct stream *, uint32_t job, float *slot);
/* Window i's tensors: weights at mem, or with zero-copy in the store; gradients at gs. Either may be left out. */
void window_enter(struct stream *, uint32_t job, uint32_t i, void *mem, struct weights *, float *gs, struct grads *);
/* Copy those of a part's gradients, which are at gs, that are in blocks of other parts, too, to where these are put
 * together. end: the bound where the part ends; it begins at the one before */
void edges_put(struct stream *, uint32_t unit, const float *gs, const struct extent *, uint32_t end);

/* A part of a unit in the backward pass, by which they are numbered: windows, rest */
struct step {
	uint32_t unit, part;
};

bool is_window(const struct stream *, struct step);
/* Where its gradients are summed */
float *grads_of(const struct stream *, struct step);
/* The next one: the unit's next part, or the unit below */
struct step step_after(const struct stream *, struct step);

/* Elements off .. off + n - 1 of a unit's gradient, which are at g */
struct range {
	uint32_t unit, end;
	uint64_t off, n;
	float *g;
	/* of a window's experts: where the unit's first one is, and from one to the next; 0: other gradients */
	uint64_t expert_off, expert_stride;
};

/* The i-th range of what leaves with the step, which may be empty; false: there are not so many. Where the embed
 * gradient and the head gradient are summed in one array, the sum leaves as unit 0's gradient. */
bool range_of(const struct stream *, struct step, uint32_t i, struct range *);

/* Has any token of the pass been sent to the expert? With windows, and once the unit's tokens are routed */
bool expert_used(const struct stream *, uint32_t unit, uint32_t expert);

/* ---- leave.c ---- */

/* Send the micro-batch's loss; at `ready` the head has computed it */
int loss_out(struct stream *, struct event ready);
/* Compute launched so far has finished the step's gradients */
void grads_final(struct stream *, struct step);
/* Send the step's gradients, which are final at `ready`. All of them have left on return. */
int grads_out(struct stream *, struct step, struct event ready);

#endif
