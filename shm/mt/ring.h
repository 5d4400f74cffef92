/* ring.h: queues of messages. */
#ifndef LIBMT_RING_H
#define LIBMT_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "memory.h"

/* clang-format off */

struct mt_run;

struct mt_ring;                 /* a process's handle on one end */

/* Rings: "batch.I" of this node's mt-streams (in node 0, of all), "grad.I" of all, "save", and those that mt_ring_make
 * added. A name may have been mapped to another by mt_ring_map. 66: no such ring. */
int mt_ring_open(struct mt_run *, const char *name, struct mt_ring **);
void mt_ring_close(struct mt_ring *);
/* A ring of your own, shaped like ring `like`; region mt.UID.RUN.ring.NAME. 73: exists. */
int mt_ring_make(struct mt_run *, const char *name, const char *like);
/* From now on mt_ring_open(from) opens `to`: what --ring FROM=TO does. spec: "from=to". 64 bad spec. */
int mt_ring_map(struct mt_run *, const char *spec);

size_t mt_ring_block(const struct mt_ring *);       /* bytes of a payload block */
uint64_t mt_ring_slots(const struct mt_ring *);      /* messages that it holds at most */
uint64_t mt_ring_used(const struct mt_ring *);      /* messages published and not popped */
void *mt_ring_blocks(const struct mt_ring *, size_t *bytes);  /* all blocks, one behind another; NULL: it has none */
/* Producer. The block of the next message, or NULL while the ring is full (rings without blocks: any non-NULL). */
void *mt_ring_reserve(struct mt_ring *);
/* The block of the message `ahead` places behind the next one (0: the next), or NULL while there is no room for it.
 * Blocks may be written in any order and at once; their messages are pushed in the ring's. */
void *mt_ring_reserve_ahead(struct mt_ring *, uint64_t ahead);
/* publish it, after mt_ring_reserve; rings the doorbell */
void mt_ring_push(struct mt_ring *, const struct mt_msg *);
/* The same for several at once, which ring the doorbell once. mt_ring_put: write the message `ahead` places behind the
 * next one, after mt_ring_reserve_ahead; mt_ring_publish: publish the next n, all of which were put. */
void mt_ring_put(struct mt_ring *, uint64_t ahead, const struct mt_msg *);
void mt_ring_publish(struct mt_ring *, uint64_t n);
/* -65 when this end has found that the ring's words cannot be: from then on it gives neither room nor messages. Ask
 * before you wait for either. */
int mt_ring_check(const struct mt_ring *);
/* Consumer. Copy message `ahead` places behind the head (0: the head) and point at its block; false: not there yet. The
 * block of gradients that are all 0 is zeros of libmt's own. */
bool mt_ring_peek(struct mt_ring *, uint64_t ahead, struct mt_msg *, const void **block);
void mt_ring_pop(struct mt_ring *);                 /* done with the head and its block; rings the doorbell */
void mt_ring_pop_many(struct mt_ring *, uint64_t n); /* the same with n messages, which have come; 0: nothing */
/* bits for mt_wait_on: that a message is published, that one is popped */
uint32_t mt_ring_on_messages(const struct mt_ring *);
uint32_t mt_ring_on_room(const struct mt_ring *);
/* For an optimizer: peek at the head of a grad ring, if it belongs to the attempt in `word`, the open transaction's.
 * Messages of older attempts are popped. 1: *m has been checked, to be popped when it
 * is done with: a loss of one of the transaction's micros, or a piece: block is the n gradients (elements of the run's
 * --grad) of m->grad. 0: nothing has come yet, or something of a newer attempt: read the word again. -65: the ring is
 * damaged; -70: a message that cannot be. */
int mt_grad_peek(struct mt_ring *, uint64_t word, struct mt_msg *, const void **block);
/* The same `ahead` places behind the head, where all before it belong to the attempt */
int mt_grad_peek_ahead(struct mt_ring *, uint64_t ahead, uint64_t word, struct mt_msg *, const void **block);

/* clang-format on */

#endif
