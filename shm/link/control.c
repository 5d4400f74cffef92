/* control.c: messages between node 0 and each other node over TCP. MPI does not say when a process has died; a
 * connection whose other end is gone does, and silence counts as death after --timeout. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "link.h"
#include "mt/error.h"

enum { MOST = 4096 /* bytes of a message */, ALIVE_S = 1 };

struct head {
	uint32_t what, bytes;
};

/* ---- bytes */

static char *grown(char *p, size_t *room, size_t need)
{
	if (need <= *room) return p;
	*room = need * 2;
	p = realloc(p, *room);
	if (!p) mt_die(MT_EX_NOMEM, "no memory for messages to other nodes");
	return p;
}

void control_say(struct link *l, struct peer *p, enum control what, const void *data, size_t bytes)
{
	struct head h = {what, (uint32_t)bytes};
	(void)l;
	if (p->fd < 0) return;
	p->out = grown(p->out, &p->room_out, p->n_out + sizeof h + bytes);
	memcpy(p->out + p->n_out, &h, sizeof h);
	if (bytes) memcpy(p->out + p->n_out + sizeof h, data, bytes);
	p->n_out += sizeof h + bytes;
}

/* false: the other end is gone */
static bool send_some(struct peer *p)
{
	while (p->n_out) {
		ssize_t n = send(p->fd, p->out, p->n_out, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0) return errno == EAGAIN || errno == EINTR;
		p->n_out -= (size_t)n;
		memmove(p->out, p->out + n, p->n_out);
		p->spoke = mt_now();
	}
	return true;
}

static bool receive_some(struct peer *p, bool *came)
{
	for (;;) {
		p->in = grown(p->in, &p->room_in, p->n_in + MOST);
		ssize_t n = recv(p->fd, p->in + p->n_in, MOST, MSG_DONTWAIT);
		if (n == 0) return false;
		if (n < 0) return errno == EAGAIN || errno == EINTR;
		p->n_in += (size_t)n;
		p->heard = mt_now();
		*came = true;
	}
}

/* ---- messages */

static void hear(struct link *l, struct peer *p, const struct head *h, const char *data)
{
	if (h->what == SAY_ALIVE) return;
	if (h->what != SAY_END) {
		mirror_hear(l, p, (enum control)h->what, data, h->bytes);
		return;
	}
	char why[512] = "";
	uint32_t ex = MT_EX_PEER;
	if (h->bytes >= sizeof ex) memcpy(&ex, data, sizeof ex);
	if (h->bytes > sizeof ex) snprintf(why, sizeof why, "%.*s", (int)(h->bytes - sizeof ex), data + sizeof ex);
	link_ended(l, ex > 127 ? MT_EX_PEER : (int)ex, why);
}

static void hear_all(struct link *l, struct peer *p)
{
	size_t at = 0;
	struct head h;
	while (p->n_in - at >= sizeof h) {
		memcpy(&h, p->in + at, sizeof h);
		if (h.bytes > MOST) link_end(l, MT_EX_BUG, "node %u sent something unknown", p->node);
		if (p->n_in - at < sizeof h + h.bytes) break;
		hear(l, p, &h, p->in + at + sizeof h);
		at += sizeof h + h.bytes;
	}
	p->n_in -= at;
	memmove(p->in, p->in + at, p->n_in);
}

bool control_round(struct link *l)
{
	bool came = false;
	double now = mt_now();
	for (uint32_t i = 0; i < l->nodes; i++) {
		struct peer *p = &l->peer[i];
		if (p->fd < 0) continue;
		bool there = receive_some(p, &came);
		hear_all(l, p); /* its last words first */
		if (now - p->spoke >= ALIVE_S && !p->n_out) control_say(l, p, SAY_ALIVE, NULL, 0);
		if (!there || !send_some(p)) link_end(l, MT_EX_PEER, "node %u is gone: its mt-link has died", p->node);
		if (now - p->heard > l->timeout)
			link_end(l, MT_EX_PEER, "node %u has been silent for %.0f s", p->node, now - p->heard);
	}
	return came;
}

/* Until the other end says no more; what it still says comes too late */
static void wait_closed(struct peer *p, double until)
{
	char drop[256];
	while (p->fd >= 0 && mt_now() < until) {
		struct pollfd poll_fd = {p->fd, POLLIN, 0};
		ssize_t n = recv(p->fd, drop, sizeof drop, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
		if (n < 0) (void)poll(&poll_fd, 1, 10);
	}
}

void control_part(struct link *l, double seconds)
{
	double until = mt_now() + seconds;
	for (bool left = true; left && mt_now() < until; left ? (void)poll(NULL, 0, 1) : (void)0) {
		left = false;
		for (uint32_t i = 0; i < l->nodes; i++)
			if (l->peer[i].fd >= 0 && send_some(&l->peer[i])) left |= l->peer[i].n_out > 0;
	}
	/* the others close first, node 0 when all have: so no node goes on before all have heard */
	for (uint32_t i = 0; i < l->nodes; i++) {
		if (l->node && l->peer[i].fd >= 0) (void)shutdown(l->peer[i].fd, SHUT_WR);
		wait_closed(&l->peer[i], until);
	}
	for (uint32_t i = 0; i < l->nodes && !l->node; i++)
		if (l->peer[i].fd >= 0) (void)shutdown(l->peer[i].fd, SHUT_WR);
}
