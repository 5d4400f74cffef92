/* saves.c: a checkpoint of all nodes. Each node's snapshot word says how far the save of its part is; node 0's says how
 * the whole save ended. So each node tells node 0 its word, and node 0 tells its own to all:
 *
 *     another node                              node 0
 *     (n, pinned)                               (n, pinned)
 *     (n, sealed): its files are durable  ──→   when all are sealed: (n, sealed), the directory gets its name
 *     (n, saved)                          ←──   (n, saved)
 *
 * A node whose word becomes failed fails the save: node 0's mt-ckpt sees that, and its word ends all others' saves. */
#include "link.h"
#include "mt/snapshot.h"
#include "mt/wait.h"

static _Atomic uint64_t *heard(struct link *l, uint32_t node) { return &l->control->nodes.snap[node]; }

void saves_open(struct link *l)
{
	for (uint32_t node = 0; node < MT_NODES; node++) { /* what a predecessor knew is not known to its successors */
		atomic_store_explicit(heard(l, node), 0, memory_order_relaxed);
		atomic_store_explicit(&l->control->nodes.token[node], 0, memory_order_release);
	}
}

/* Another node: node 0's word ends the save here, too. */
static void end_save(struct link *l)
{
	uint64_t ended = *heard(l, 0), word = mt_snap(l->run);
	if (!l->node || mt_snap_step(ended) != mt_snap_step(word)) return;
	if (mt_snap_state(ended) == MT_FAILED && mt_snap_busy(word)) mt_snap_fail(l->run, word);
	if (mt_snap_state(ended) == MT_SAVED && mt_snap_state(word) == MT_SEALED) mt_snap_save(l->run, mt_snap_step(word));
}

static void tell(struct link *l, enum control what, uint64_t value)
{
	for (uint32_t i = 0; i < l->nodes; i++) control_say(l, &l->peer[i], what, &value, sizeof value);
}

bool saves_round(struct link *l)
{
	end_save(l);
	uint64_t word = mt_snap(l->run), told = *heard(l, l->node);
	uint64_t token = atomic_load_explicit(&l->control->nodes.token[l->node], memory_order_acquire);
	if (token != l->told_token) tell(l, SAY_TOKEN, l->told_token = token);
	if (word == told) return false;
	tell(l, SAY_SNAP, word);
	atomic_store_explicit(heard(l, l->node), word, memory_order_release);
	mt_wake_on(l->run, MT_ON_SNAP); /* mt-optim may wait for that */
	return true;
}

void saves_hear(struct link *l, struct peer *p, enum control what, uint64_t value)
{
	if (what == SAY_TOKEN) atomic_store_explicit(&l->control->nodes.token[p->node], value, memory_order_release);
	else {
		end_save(l); /* the word that goes may say how a save ended that was pinned here only now */
		atomic_store_explicit(heard(l, p->node), value, memory_order_release);
		end_save(l);
	}
	mt_wake_on(l->run, MT_ON_SNAP);
}
