/* wait.h: the doorbell. */
#ifndef LIBMT_WAIT_H
#define LIBMT_WAIT_H

#include <stdint.h>

/* clang-format off */

struct mt_run;

/*     for (;;) { uint32_t seen = mt_event(run); if (what I wait for) break; mt_wait(run, seen, 100); }          */
uint32_t mt_event(const struct mt_run *);
/* Sleep until the doorbell rings after `seen`, ms passed, or a signal came. Spins briefly first if ms > 2. */
void mt_wait(struct mt_run *, uint32_t seen, int ms);
void mt_wake(struct mt_run *);                      /* ring it; cheap while nobody waits */
/* What is published often has a bit, so that a wait can sleep through what does not concern it. All else wakes
 * everybody: the run's state, slots, the record. shm/PROTOCOL.md has the numbers. */
enum {
	MT_ON_TXN = 1 << 0,         /* a transaction's word */
	MT_ON_VERSION = 1 << 1,     /* a unit's version */
	MT_ON_SNAP = 1 << 2,        /* the snapshot's word */
	MT_ON_PIN = 1 << 3,         /* a unit's pin, cleared */
	MT_ON_STAGE = 1 << 4,       /* between threads of one stage */
	MT_ON_TIER = 1 << 5,        /* one of the tier's counters */
};
#define MT_ON_ALL 0xffffffffu
/* The same for some bits: sleep until the doorbell rings for one of them; ring it for them. Also for a ring's messages
 * and its room: bits of mt_ring_on_messages, mt_ring_on_room. */
void mt_wait_on(struct mt_run *, uint32_t seen, int ms, uint32_t on);
void mt_wake_on(struct mt_run *, uint32_t on);

/* clang-format on */

#endif
