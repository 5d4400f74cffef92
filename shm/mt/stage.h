/* stage.h: slots of stages: who works on a run. */
#ifndef LIBMT_STAGE_H
#define LIBMT_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "counters.h"
#include "figures.h"
#include "memory.h"

/* clang-format off */

struct mt_run;

/* Claim a slot: lock its byte of the control region, then take its word. slot MT_STREAM takes the lowest free stream.
 * If the holder is dead, aborts its generation's accumulation first (not for MT_CKPT, MT_STORE, MT_FILL). Waits up to
 * a minute for a holder that is being killed. 75: a live stage holds it (or all of this node's), or that is unknown;
 * 66: the run has no such mt-stream. The run must be open for writing, and no process forked since: a child shares the
 * lock. If a filling began after mt_run_attach, gives the slot back and claims it again when the run is filled; errors
 * as mt_run_attach then. A run that was removed after mt_run_attach: 0, and its state is MT_GONE. */
int mt_stage_claim(struct mt_run *, int slot, int *claimed);
/* The same of this node's mt-stream i, from 0 */
int mt_stream_claim(struct mt_run *, uint64_t i, int *claimed);
void mt_stage_release(struct mt_run *);             /* this process's slot; also done by mt_run_close */
/* What is known of the slot's holder. Dead is proved: the kernel has dropped its lock. Unknown: the lock cannot be
 * looked at, or the word says that its holder has none. A stopped holder is alive. */
enum mt_life { MT_NOBODY = 0, MT_ALIVE = 1, MT_DEAD = 2, MT_UNKNOWN = 3 };
enum mt_life mt_stage_life(const struct mt_run *, int slot);
bool mt_stage_alive(const struct mt_run *, int slot); /* alive, or unknown: nobody may take its place */
bool mt_stage_dead(const struct mt_run *, int slot); /* dead by proof */
/* The fence: does this process still hold the slot that it claimed (or has it claimed none)? One load. The lock sees to
 * it. mt_txn_cas, mt_publish, rings, aborts and the snapshot's functions check it themselves, and do nothing if not: a
 * loop that tries again until they have done it looks here. */
bool mt_stage_mine(const struct mt_run *);
int mt_stage_check(const struct mt_run *); /* 0, or -75 and who has the slot now */
/* Must this stage end? Check it in every loop and wait. 0: no; 1: the run was removed, so end with 0; -65: the store is
 * dirty, or of an earlier boot; -75: another process has this one's slot. */
int mt_stage_over(const struct mt_run *);
uint64_t mt_stage_word(const struct mt_run *, int slot); /* the slot's word. Acquire */
static inline int mt_slot_pid(uint64_t word) { return (int)(word >> 42); }
static inline bool mt_slot_locked(uint64_t word) { return word >> 41 & 1; }
static inline uint64_t mt_slot_start(uint64_t word) { return word >> 16 & 0x1ffffff; }  /* clock ticks, low 25 bits */
static inline uint32_t mt_slot_generation(uint64_t word) { return (uint32_t)(word & 0xffff); }
int mt_stage_pid(const struct mt_run *, int slot); /* 0: nobody */
bool mt_stage_pid_here(const struct mt_run *, int slot); /* that pid is one of this process's PID namespace */
bool mt_stage_stopped(const struct mt_run *, int slot); /* state T */
const char *mt_stage_name(int slot);                /* "mt-optim", "mt-stream 1", ... */
void mt_stage_activity(struct mt_run *, enum mt_activity, uint64_t arg);
/* "waits for weights of unit 7" from slot's activity */
void mt_stage_describe(const struct mt_run *, int slot, char *buf, size_t n);
/* "power limit, temperature" of a GPU's word MT_GPU_reasons; empty: its clock is not held down */
enum { MT_GPU_HELD = 128 };
void mt_gpu_held(uint64_t reasons, char buf[MT_GPU_HELD]);
_Atomic uint64_t *mt_counter(const struct mt_run *, int i); /* this stage's counter i, of counters.h */
static inline void mt_count(const struct mt_run *run, int i, uint64_t n)
{ atomic_fetch_add_explicit(mt_counter(run, i), n, memory_order_relaxed); }
_Atomic uint64_t *mt_planned(const struct mt_run *, enum mt_planned); /* this stage's, likewise */
/* Of the steps between two sums, which took s seconds; below 0, or without a step: not known. The plan of the first
 * live mt-stream says what a step of `rows` rows (0: not known) takes, if there are no others, which that plan does not
 * know, and what the model's arithmetic takes at the rate of large GEMMs on all live streams. */
struct mt_pace mt_pace(struct mt_run *, double s, struct mt_work from, struct mt_work to, uint64_t rows);
/* If a stage that matters to the accumulation has died: abort it (attempt + 1), once per slot and generation. Returns
 * true if this call aborted. Streams, mt-optim and mt-step matter. */
bool mt_abort_dead(struct mt_run *);

/* clang-format on */

#endif
