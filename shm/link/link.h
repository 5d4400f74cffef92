/* link.h: what mt-link's files share. One thread goes round: control, flows, weights, watch; nothing blocks. */
#ifndef MT_LINK_LINK_H
#define MT_LINK_LINK_H

#include <mpi.h>

#include "cli/cli.h"
#include "mt/control.h"

struct peer { /* a connection for control: node 0 has one to each other node, the others one to node 0 */
	int fd;   /* -1: none */
	uint32_t node;
	char *in, *out; /* bytes that have come, that wait to be sent */
	size_t n_in, n_out, room_in, room_out;
	double heard, spoke;   /* mt_now() when something came, or was sent */
	uint64_t sent_word[2]; /* of the txns' words, what it knows */
	bool knows[2], sent_record;
	uint32_t choices; /* entries of the table of choices that it knows */
};

struct link {
	struct mt_run *run;               /* in the slot of mt-link */
	struct mt_run *step;              /* in another node than 0: in mt-step's slot; it alone changes the txns' words */
	struct mt_run *proxy[MT_STREAMS]; /* in node 0: in the slot of another node's mt-stream while that lives */
	struct mt_control *control;
	uint32_t node, nodes, streams; /* streams: of each node at most */
	double timeout;                /* seconds of silence of a peer before it counts as dead */
	struct peer peer[MT_NODES];    /* node 0: [r] to node r; others: [0] to node 0 */
	uint32_t told_done, told_streams;
	uint64_t told_token;
	double looked;
};

/* link.c. The run ends on all nodes: one line, and `ex`; 0: in order. `why` names what happened where. */
_Noreturn void link_end(struct link *, int ex, const char *why, ...) __attribute__((format(printf, 3, 4)));
/* The same, on the word of another node */
_Noreturn void link_ended(struct link *, int ex, const char *why);
/* Before the nodes are connected: nothing has begun, so the slots are left in order, and this node alone ends */
_Noreturn void link_refuse(struct link *, int ex, const char *why, ...) __attribute__((format(printf, 3, 4)));
/* rc of an MPI function: ends the run unless it is MPI_SUCCESS */
void link_mpi(struct link *, int rc, const char *what);
static inline uint32_t link_node_of(const struct link *l, uint32_t stream) { return stream / l->streams; }

/* connect.c: a connection between node 0 and each other node */
enum { LINK_SLOW_S = 5 }; /* a start that waits longer reports the reason */
void control_connect(struct link *);

/* control.c: messages that are small and keep their order, over TCP */
enum control {
	SAY_TXN = 1, /* node 0: a txn's word, and what stands before it */
	SAY_RECORD,  /* node 0: the reproducibility record */
	SAY_CHOICE,  /* node 0: an entry of its table; to node 0: one that a node would make */
	SAY_DONE,    /* to node 0: newest txn that the node has finished */
	SAY_STREAMS, /* to node 0: which of the node's mt-streams live, a bit each; two nodes have 32 each at most */
	SAY_SNAP,    /* both ways: the snapshot's word */
	SAY_TOKEN,   /* both ways: mt_nodes.token of the node */
	SAY_ALIVE,
	SAY_END, /* the run ends: exit code, and why */
};
void control_say(struct link *, struct peer *, enum control, const void *data, size_t bytes);
/* Send and receive what can be; ends the run when a peer is gone or silent. true: something came */
bool control_round(struct link *);
/* After SAY_END, and without another look at MPI: wait until all nodes have come so far, at most this long. A node that
 * left while another still moved data would make that one fail in MPI, without its line. */
void control_part(struct link *, double seconds);

/* mirror.c: what node 0 decides stands in all nodes */
bool mirror_round(struct link *);
void mirror_hear(struct link *, struct peer *, enum control, const void *data, size_t bytes);

/* saves.c: how far each node's part of a checkpoint is */
void saves_open(struct link *);
bool saves_round(struct link *);
void saves_hear(struct link *, struct peer *, enum control, uint64_t value);

/* flows.c: rings whose messages go to other nodes: batches, gradients, sums of squares */
void flows_open(struct link *);
bool flows_round(struct link *);
uint64_t flows_bytes(void); /* of payloads that it has begun to send and to receive so far */
bool flows_under_way(void); /* payloads are, in either direction */
void flows_close(struct link *);

/* weights.c: each node's part of the new weights to all others; versions */
bool weights_round(struct link *);
bool weights_move(void); /* some are on their way */

#endif
