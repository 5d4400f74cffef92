/* optimizer.h: what an optimizer does, whatever its arithmetic. mt-optim and one of your own have the same driver. */
#ifndef LIBMT_OPTIMIZER_H
#define LIBMT_OPTIMIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "memory.h"

/* clang-format off */

struct mt_run;
struct mt_ring;
struct mt_txn;
struct mt_tensor;

/* ---- an optimizer of your own, for runs whose weights, gradients and state are fp32 */

/* Update one tensor. w, m, v, g: (tensor->n) fp32; m and v begin as 0, v is NULL where the run was created without it
 * (mt-store create --optim). t: the step's hyperparameters, its Adam step count `t`, and clip_factor, by which g is to
 * be multiplied. tensor->decay: 0 where no weight decay applies. */
typedef void mt_update_fn(const struct mt_txn *t, const struct mt_tensor *tensor, float *w, float *m, float *v,
	const float *g);
/* Serve the run in place of mt-optim, on this thread, until the run is removed or a signal handler sets *stop: 0. Like
 * mt-optim it adds the gradients of all micro-batches and mt-streams, takes their norm, skips what is not finite,
 * publishes units in the order in which they are needed, and pins steps that are saved. Sums depend on the order in
 * which several mt-streams send. It may be killed at any instant but while a step is applied: there is no journal, so
 * the store is dirty then. One at a time in a process. 78: not fp32, on several nodes, with a tier, or a step is half
 * done (mt-optim --update early); 65: the store is dirty; 70: a message that cannot be; others as mt_run_attach and
 * mt_stage_claim. */
int mt_optimize(const char *name, mt_update_fn *update, const volatile int *stop);

/* ---- the driver of both */

struct mt_attempt {             /* what mt-step wrote of a transaction before an attempt, copied once and checked */
	uint64_t word, step, targets;
	uint32_t kind, micros;      /* enum mt_kind; micro-batches, 1 to MT_MICROS */
	struct mt_hyperparams hyperparams;
	struct mt_position position;
	uint64_t t;                 /* Adam's step count if it is applied */
	double clip_factor;         /* for `apply` alone */
};

struct mt_optimizer {
	/* The optimizer's own, which mt_optimizer_serve calls with arg. They return 0, or an error, with which it ends */
	void *arg;
	int (*begin)(void *arg);    /* an attempt begins: nothing of it is here yet; nothing of earlier ones counts */
	int (*accumulate)(void *arg); /* take what the rings hold, and commit when all is in; 1: something has changed */
	/* Bring every unit to the step and publish it, also what a dead predecessor has begun. 1: asked to stop, and a
	 * successor is to go on */
	int (*apply)(void *arg, const struct mt_attempt *);

	struct mt_run *run;
	struct mt_ring *grad[MT_STREAMS], *save;
	uint32_t streams;           /* rings of gradients: of all nodes' mt-streams */
	uint32_t wakes;             /* what ends a wait between two rounds: pieces, transactions; bits may be added */
	bool open;                  /* `attempt` is at a transaction in accumulate */
	struct mt_attempt attempt;
	uint32_t losses_left;       /* that have not come; 0 on other nodes than 0, which alone commits */
	/* Set by `accumulate`, in each round, when nothing but a tile holds up the commit: MT_ACT_WAIT_TIER */
	enum mt_activity waits;
	struct { double aux, z, mtp, figures[MT_STEP_FIGURES]; } terms[MT_MICROS];  /* of the loss; 0: none have come */
	bool left, stop_requested;  /* it ends; *stop of mt_run_attach was seen, when txn leave_after was newest */
	uint32_t leave_after;
};

/* Claim mt-optim's slot and open the rings of a run that mt_run_attach has mapped with rings and weights; `arg` to
 * `apply` are set, all else is 0. 78: the run has weights alone; 65: a ring's blocks are too small for pieces; others
 * as mt_stage_claim and mt_ring_open. */
int mt_optimizer_open(struct mt_optimizer *, struct mt_run *);
/* Serve transactions until *stop of mt_run_attach is set and nothing would be lost, or the run is removed: 0. An error:
 * as mt_optimizer_over, or that of a function called. */
int mt_optimizer_serve(struct mt_optimizer *);
/* Must it end? For other waits. 1: the run was removed; 65: the run or one of its rings is dirty or damaged; 75 */
int mt_optimizer_over(const struct mt_optimizer *);
/* Copy and check the entry of the transaction in `word`. 1: done; 0: the word has changed; 70: it is not valid */
int mt_attempt_read(const struct mt_run *, uint64_t word, struct mt_attempt *);

/* For `accumulate`. Enter a message of ring grad.I that mt_grad_peek gave and that is no piece: a loss, or figures. 1;
 * 0: the message is not of this attempt: the word is another now; 70: it came before, or cannot be */
int mt_optimizer_take(struct mt_optimizer *, uint32_t ring, const struct mt_msg *);
bool mt_optimizer_skips(const struct mt_optimizer *); /* a loss that is in is not finite, or the step has no targets */
bool mt_optimizer_ready(const struct mt_optimizer *); /* all losses are in, and no other node holds up the commit */
/* All is in: commit. An evaluation is done; a training step is applied, or skipped. norm: of the gradient before
 * clipping, NaN: not taken. The transaction's new word; 0: the attempt is over. */
uint64_t mt_optimizer_commit(struct mt_optimizer *, bool apply, double norm);
/* For `apply`, from any thread: the unit is at the step. Else 70, or 75 if this process has lost its slot */
int mt_optimizer_publish(struct mt_optimizer *, uint32_t unit, uint64_t step);

/* clang-format on */

#endif
