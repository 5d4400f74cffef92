/* flows.c: messages of rings that cross nodes. A message is its 64 bytes, and its payload in a second MPI message,
 * which goes from the block of one ring to the block of another: nothing between them is copied by mt-link.
 *
 *     batch.I      node 0 → the node of mt-stream I
 *     link.I       an mt-stream's gradients: a piece is cut at the borders of what nodes own; each part goes to its
 *                  owner's grad.I, a loss and its figures to node 0's
 *     squares      another node's sums of squares → squares.R of node 0
 *
 * Each flow has its own ring and tags on both sides, so the others move while one of them waits; mt-optim
 * always finds the smallest unfinished micro-batch. A ring that is full holds its sender up: MPI leaves a payload of
 * some size where it is until somebody receives it, and its message is popped only then.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "batch.h"
#include "link.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"

enum { SLOTS = 64 }; /* messages of a ring that are on their way at most */

struct part { /* of a message, for one node */
	uint32_t node;
	struct mt_msg m;
	const char *payload;
	size_t bytes;
};

struct sent { /* a message, from when it is begun to be sent until its ring may write its block again */
	MPI_Request request[2 * MT_NODES];
	struct mt_msg header[MT_NODES];
	int n;
};

struct outflow {
	struct mt_ring *from, *to; /* to: for what stays here; NULL: nothing does */
	int tag;
	uint32_t node;           /* where whole messages go: all but pieces */
	struct sent sent[SLOTS]; /* message k of the ring in sent[k % SLOTS] */
	uint64_t first, n;       /* those on their way: the ring's head is `first` */
};

struct inflow {
	struct mt_ring *to;
	int node, tag;
	struct mt_msg next; /* header that is awaited */
	MPI_Request header;
	bool posted;
	MPI_Request payload[SLOTS]; /* of messages that have come without it, message k in payload[k % SLOTS] */
	uint64_t first, n;
};

static struct {
	struct outflow *out[MT_STREAMS + 1];
	struct inflow *in[MT_STREAMS + MT_NODES];
	int outs, ins;
	uint64_t bytes;
} flows;

/* Tags of a flow: its header's, and the payload's one higher */
static int tag_of(enum mt_msg_kind kind, uint32_t number) { return 2 * ((int)kind * 256 + (int)number); }

/* ---- payloads */

/* UINT64_MAX: no such message can be */
static uint64_t payload_bytes(const struct link *l, const struct mt_msg *m)
{
	uint64_t width = mt_dtype_bytes(l->control->grad), n = m->grad.n;
	switch (m->kind) {
	case MT_MSG_BATCH: return batch_bytes(m);
	case MT_MSG_LOSS:
	case MT_MSG_FIGURES: return 0;
	case MT_MSG_GRAD: return m->grad.zero ? 0 : n > INT_MAX ? UINT64_MAX : n * width;
	case MT_MSG_SQUARES: return n > INT_MAX ? UINT64_MAX : (n + MT_BLOCK - 1) / MT_BLOCK * sizeof(double);
	default: return UINT64_MAX;
	}
}

static size_t checked_bytes(struct link *l, const struct mt_ring *ring, const struct mt_msg *m)
{
	uint64_t bytes = payload_bytes(l, m);
	if (bytes > mt_ring_block(ring) || bytes > INT_MAX)
		link_end(l, MT_EX_BUG, "node %u: a message of kind %u does not fit its ring", l->node, m->kind);
	return bytes;
}

/* ---- out */

/* A piece of a unit's gradient: a part for each node that owns some of it */
static int cut(const struct link *l, const struct mt_msg *m, const char *block, struct part *parts)
{
	uint64_t width = mt_dtype_bytes(l->control->grad), off = m->grad.off, end = off + m->grad.n;
	int n = 0;
	for (uint32_t node = 0; node < l->nodes; node++) {
		struct mt_part own = mt_part_of(mt_unit(l->run, m->grad.unit), node, l->nodes);
		uint64_t from = off > own.first ? off : own.first, to = end < own.end ? end : own.end;
		if (from >= to) continue;
		struct part *p = &parts[n++];
		*p = (struct part){.node = node, .m = *m, .payload = block + (from - off) * width};
		p->m.grad.off = from;
		p->m.grad.n = to - from;
		p->bytes = payload_bytes(l, &p->m);
	}
	return n;
}

/* Where a message of a flow goes, in parts */
static int route(struct link *l, const struct outflow *f, const struct mt_msg *m, const void *block, struct part *parts)
{
	size_t bytes = checked_bytes(l, f->from, m);
	if (m->kind == MT_MSG_GRAD) {
		if (m->grad.unit >= l->control->n_units || m->grad.off % MT_BLOCK)
			link_end(l, MT_EX_BUG, "node %u: a piece of no unit", l->node);
		return cut(l, m, block, parts);
	}
	parts[0] = (struct part){f->node, *m, block, bytes};
	return 1;
}

static void send_part(struct link *l, struct outflow *f, struct sent *s, int i, const struct part *p)
{
	s->header[i] = p->m;
	link_mpi(l,
		MPI_Isend(&s->header[i], sizeof s->header[i], MPI_BYTE, (int)p->node, f->tag, MPI_COMM_WORLD,
			&s->request[s->n++]),
		"sending");
	if (!p->bytes) return;
	flows.bytes += p->bytes;
	link_mpi(l,
		MPI_Isend(p->payload, (int)p->bytes, MPI_BYTE, (int)p->node, f->tag + 1, MPI_COMM_WORLD, &s->request[s->n++]),
		"sending");
}

/* Begin with the next message of the ring; false: there is none, or no room here for what stays */
static bool out_begin(struct link *l, struct outflow *f)
{
	struct mt_msg m;
	const void *block;
	struct part parts[MT_NODES];
	if (f->n == SLOTS || !mt_ring_peek(f->from, f->n, &m, &block)) return false;
	int n = route(l, f, &m, block, parts);
	void *here = NULL;
	for (int i = 0; i < n; i++)
		if (parts[i].node == l->node && !(here = mt_ring_reserve(f->to))) return false;
	struct sent *s = &f->sent[(f->first + f->n) % SLOTS];
	s->n = 0;
	for (int i = 0; i < n; i++)
		if (parts[i].node != l->node) send_part(l, f, s, i, &parts[i]);
	for (int i = 0; i < n; i++)
		if (parts[i].node == l->node) {
			if (parts[i].bytes) memcpy(here, parts[i].payload, parts[i].bytes);
			mt_ring_push(f->to, &parts[i].m);
		}
	f->n++;
	return true;
}

static bool out_round(struct link *l, struct outflow *f)
{
	bool moved = false;
	uint64_t over = 0;
	int done = 1;
	while (out_begin(l, f)) moved = true;
	while (over < f->n && done) {
		struct sent *s = &f->sent[(f->first + over) % SLOTS];
		link_mpi(l, MPI_Testall(s->n, s->request, &done, MPI_STATUSES_IGNORE), "sending");
		over += done != 0;
	}
	mt_ring_pop_many(f->from, over);
	f->first += over;
	f->n -= over;
	mt_must(mt_ring_check(f->from));
	return moved || over;
}

/* ---- in */

/* A header has come: its payload is received straight into its block. */
static void in_begin(struct link *l, struct inflow *f)
{
	size_t bytes = checked_bytes(l, f->to, &f->next);
	flows.bytes += bytes;
	MPI_Request *request = &f->payload[(f->first + f->n) % SLOTS];
	*request = MPI_REQUEST_NULL;
	mt_ring_put(f->to, f->n, &f->next);
	if (bytes)
		link_mpi(l,
			MPI_Irecv(mt_ring_reserve_ahead(f->to, f->n), (int)bytes, MPI_BYTE, f->node, f->tag + 1, MPI_COMM_WORLD,
				request),
			"receiving");
	f->n++;
}

static bool in_round(struct link *l, struct inflow *f)
{
	bool moved = false;
	uint64_t whole = 0;
	int done = 1;
	for (;;) {
		if (!f->posted && f->n < SLOTS && mt_ring_reserve_ahead(f->to, f->n)) {
			link_mpi(l, MPI_Irecv(&f->next, sizeof f->next, MPI_BYTE, f->node, f->tag, MPI_COMM_WORLD, &f->header),
				"receiving");
			f->posted = true;
		}
		if (!f->posted) break;
		link_mpi(l, MPI_Test(&f->header, &done, MPI_STATUS_IGNORE), "receiving");
		if (!done) break;
		f->posted = false;
		in_begin(l, f);
		moved = true;
	}
	for (done = 1; whole < f->n && done; whole += done != 0)
		link_mpi(l, MPI_Test(&f->payload[(f->first + whole) % SLOTS], &done, MPI_STATUS_IGNORE), "receiving");
	if (whole) mt_ring_publish(f->to, whole);
	f->first += whole;
	f->n -= whole;
	mt_must(mt_ring_check(f->to));
	return moved || whole;
}

/* ---- all flows */

static struct mt_ring *ring(struct link *l, const char *what, uint32_t number)
{
	char name[32];
	struct mt_ring *r;
	if (number == UINT32_MAX) snprintf(name, sizeof name, "%s", what);
	else snprintf(name, sizeof name, "%s.%u", what, number);
	mt_must(mt_ring_open(l->run, name, &r));
	return r;
}

static void *room(size_t bytes)
{
	void *p = calloc(1, bytes);
	if (!p) mt_die(MT_EX_NOMEM, "no memory for messages on their way");
	return p;
}

static void add_out(struct mt_ring *from, struct mt_ring *to, uint32_t node, int tag)
{
	struct outflow *f = flows.out[flows.outs++] = room(sizeof *f);
	f->from = from;
	f->to = to;
	f->node = node;
	f->tag = tag;
}

static void add_in(struct mt_ring *to, uint32_t node, int tag)
{
	struct inflow *f = flows.in[flows.ins++] = room(sizeof *f);
	f->to = to;
	f->node = (int)node;
	f->tag = tag;
}

void flows_open(struct link *l)
{
	for (uint32_t i = 0; i < l->streams * l->nodes; i++) {
		bool here = link_node_of(l, i) == l->node;
		if (here) add_out(ring(l, "link", i), ring(l, "grad", i), 0, tag_of(MT_MSG_GRAD, i));
		else add_in(ring(l, "grad", i), link_node_of(l, i), tag_of(MT_MSG_GRAD, i));
		if (here && l->node) add_in(ring(l, "batch", i), 0, tag_of(MT_MSG_BATCH, i));
		if (!here && !l->node) add_out(ring(l, "batch", i), NULL, link_node_of(l, i), tag_of(MT_MSG_BATCH, i));
	}
	if (l->node) add_out(ring(l, "squares", UINT32_MAX), NULL, 0, tag_of(MT_MSG_SQUARES, l->node));
	for (uint32_t node = 1; node < l->nodes && !l->node; node++)
		add_in(ring(l, "squares", node), node, tag_of(MT_MSG_SQUARES, node));
}

bool flows_round(struct link *l)
{
	bool moved = false;
	for (int i = 0; i < flows.outs; i++) moved |= out_round(l, flows.out[i]);
	for (int i = 0; i < flows.ins; i++) moved |= in_round(l, flows.in[i]);
	return moved;
}

uint64_t flows_bytes(void) { return flows.bytes; }

bool flows_under_way(void)
{
	for (int i = 0; i < flows.outs; i++)
		if (flows.out[i]->n) return true;
	for (int i = 0; i < flows.ins; i++)
		if (flows.in[i]->n) return true;
	return false;
}

void flows_close(struct link *l)
{
	(void)l;
	for (int i = 0; i < flows.ins; i++) {
		if (!flows.in[i]->posted) continue;
		MPI_Cancel(&flows.in[i]->header);
		MPI_Request_free(&flows.in[i]->header);
	}
}
