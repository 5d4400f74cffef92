/* weights.c: after a commit each node updates its part of every unit, and this carries the parts to all others, from
 * one store into the other: of w, and of lo of exact tensors. A unit's version is published when all of it is here.
 *
 * Receives are posted only when the commit stands here: the parts of a faster node may come before it, while mt-streams
 * here still read the weights that they replace. */
#include <stdlib.h>

#include "link.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/txn.h"

enum { WINDOW = 8, CHUNK = 64 << 20 }; /* units that are received at once; bytes of one MPI message */

struct moves { /* of a unit's parts, from or to all other nodes */
	MPI_Request *request;
	int n, room;
};

static struct {
	uint64_t step;                     /* that is carried now; 0: none */
	uint32_t sent, awaited, published; /* turns of units: of which sending, receiving has begun; that are at the step */
	struct moves out, in[WINDOW];      /* of turn t in in[t % WINDOW] */
} w;

static MPI_Request *request(struct moves *m)
{
	if (m->n == m->room) {
		m->room = m->room ? 2 * m->room : 16;
		m->request = realloc(m->request, (size_t)m->room * sizeof *m->request);
		if (!m->request) mt_die(MT_EX_NOMEM, "no memory for weights on their way");
	}
	return &m->request[m->n++];
}

static bool moved_all(struct link *l, struct moves *m)
{
	int done;
	link_mpi(l, MPI_Testall(m->n, m->request, &done, MPI_STATUSES_IGNORE), "moving weights");
	if (done) m->n = 0;
	return done;
}

/* Elements of an array, in pieces: to `node`, or from it where that is the owner */
static void move(struct link *l, uint64_t array, struct mt_part part, uint64_t width, uint32_t owner, uint32_t node,
	struct moves *m)
{
	enum { TAG = 1 };
	uint64_t end = part.end * width;
	for (uint64_t at = part.first * width, n; at < end; at += n) {
		char *p = (char *)mt_at(l->run, array) + at;
		n = end - at < CHUNK ? end - at : CHUNK;
		if (owner == l->node)
			link_mpi(l, MPI_Isend(p, (int)n, MPI_BYTE, (int)node, TAG, MPI_COMM_WORLD, request(m)), "sending weights");
		else
			link_mpi(l, MPI_Irecv(p, (int)n, MPI_BYTE, (int)owner, TAG, MPI_COMM_WORLD, request(m)),
				"receiving weights");
	}
}

/* What `owner` owns of a unit's weights, and of lo of its exact tensors */
static void move_part(struct link *l, uint32_t unit, uint32_t owner, uint32_t node, struct moves *m)
{
	const struct mt_unit *u = mt_unit(l->run, unit);
	struct mt_part part = mt_part_of(u, owner, l->nodes), lo = mt_exact(u, mt_tensor(l->run, u->first_tensor));
	move(l, u->w, part, mt_dtype_bytes(l->control->dtype), owner, node, m);
	if (lo.first < part.first) lo.first = part.first;
	if (lo.end > part.end) lo.end = part.end;
	move(l, u->lo, lo, 2, owner, node, m);
}

static uint32_t unit_of(const struct link *l, uint32_t turn) { return mt_unit_of_turn(&l->control->geo, turn); }

static uint64_t updated(const struct link *l, uint32_t unit)
{
	return atomic_load_explicit(&mt_unit(l->run, unit)->updated, memory_order_acquire);
}

static void publish(struct link *l, uint32_t unit, uint64_t step)
{
	if (mt_version(l->run, unit) != step && !mt_publish(l->run, unit, step))
		link_end(l, MT_EX_BUG, "node %u: unit %u is at version %llu, expected %llu", l->node, unit,
			(unsigned long long)mt_version(l->run, unit), (unsigned long long)step);
}

static bool carry(struct link *l)
{
	uint32_t n = l->control->n_units;
	bool moved = false;
	for (; w.sent < n && updated(l, unit_of(l, w.sent)) == w.step; w.sent++, moved = true)
		for (uint32_t d = 1; d < l->nodes; d++) /* not all to node 0 first */
			move_part(l, unit_of(l, w.sent), l->node, (l->node + d) % l->nodes, &w.out);
	/* mt-ckpt may still copy what a snapshot has pinned */
	for (; w.awaited < n && w.awaited < w.published + WINDOW && !mt_snap_pinned(l->run, unit_of(l, w.awaited));
		 w.awaited++, moved = true)
		for (uint32_t d = 1; d < l->nodes; d++) {
			uint32_t owner = (l->node + l->nodes - d) % l->nodes;
			move_part(l, unit_of(l, w.awaited), owner, owner, &w.in[w.awaited % WINDOW]);
		}
	while (w.published < w.awaited && w.published < w.sent && moved_all(l, &w.in[w.published % WINDOW])) {
		publish(l, unit_of(l, w.published++), w.step);
		moved = true;
	}
	if (moved_all(l, &w.out) && w.published == n && w.sent == n) w.step = 0;
	return moved;
}

/* The newest committed training step, if units are behind it: its phase, else MT_CLOSED */
static enum mt_phase committed(struct link *l, uint64_t *step)
{
	uint32_t last = unit_of(l, l->control->n_units - 1);
	for (uint32_t i = 0; i < 2; i++) {
		enum mt_phase phase = mt_word_phase(mt_txn_word(l->run, i));
		*step = mt_txn(l->run, i)->step;
		if ((phase == MT_APPLY || phase == MT_SKIP) && mt_version(l->run, last) + 1 == *step) return phase;
	}
	return MT_CLOSED;
}

bool weights_round(struct link *l)
{
	uint64_t step;
	if (w.step) return carry(l);
	enum mt_phase phase = committed(l, &step);
	for (uint32_t turn = 0; phase == MT_SKIP && turn < l->control->n_units; turn++) {
		uint32_t u = unit_of(l, turn);
		atomic_store_explicit(&mt_unit(l->run, u)->updated, step, memory_order_release);
		publish(l, u, step);
	}
	if (phase != MT_APPLY) return phase == MT_SKIP;
	w.step = step;
	w.sent = w.awaited = w.published = 0;
	return true;
}

bool weights_move(void) { return w.step != 0; }
