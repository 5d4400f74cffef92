/* control.c: a TCP connection from each node to node 0. MPI does not say when a process has died; a connection whose
 * other end is gone does, and silence counts as death after --timeout. MPI carries the address once, and a random
 * number by which node 0 knows its own nodes. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link.h"

enum { ADDRESSES = 16, MOST = 4096 /* bytes of a message */, ALIVE_S = 1 };

struct where {                          /* node 0 listens at all of these */
	struct in6_addr address[ADDRESSES]; /* IPv4 ones are mapped */
	uint32_t scope[ADDRESSES];
	uint32_t n;
	uint16_t port, reserved;
	uint8_t secret[16];
};

struct hello {
	uint8_t secret[16];
	uint32_t node;
};

struct head {
	uint32_t what, bytes;
};

/* ------------------------------------------------------------------------------------------------ connect */

/* This machine's addresses; those that lead to other machines first */
static void addresses(struct where *w)
{
	struct ifaddrs *list;
	if (getifaddrs(&list)) return;
	for (int loopback = 0; loopback < 2; loopback++)
		for (const struct ifaddrs *i = list; i && w->n < ADDRESSES; i = i->ifa_next) {
			if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_LOOPBACK) != !loopback) continue;
			struct in6_addr *to = &w->address[w->n];
			w->scope[w->n] = 0;
			if (i->ifa_addr->sa_family == AF_INET) {
				*to = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
				memcpy(&to->s6_addr[12], &((struct sockaddr_in *)i->ifa_addr)->sin_addr, 4);
			} else if (i->ifa_addr->sa_family == AF_INET6) {
				*to = ((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr;
				if (IN6_IS_ADDR_LINKLOCAL(to)) continue; /* their scope is another number elsewhere */
			} else continue;
			w->n++;
		}
	freeifaddrs(list);
}

static int listen_anywhere(struct where *w)
{
	struct sockaddr_in6 any = {.sin6_family = AF_INET6};
	socklen_t n = sizeof any;
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), off = 0;
	if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) ||
		bind(fd, (struct sockaddr *)&any, sizeof any) || listen(fd, MT_NODES) ||
		getsockname(fd, (struct sockaddr *)&any, &n))
		mt_die(MT_EX_IO, "listening for other nodes: %s", strerror(errno));
	w->port = any.sin6_port;
	return fd;
}

static void set_up(struct link *l, struct peer *p, int fd, uint32_t node)
{
	int on = 1;
	(void)l;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	(void)fcntl(fd, F_SETFL, O_NONBLOCK);
	p->fd = fd;
	p->node = node;
	p->heard = p->spoke = mt_now();
}

/* All bytes of something small, within what is left of the time-out; false: not */
static bool read_whole(int fd, void *to, size_t n, double until)
{
	for (size_t at = 0; at < n;) {
		struct pollfd poll_fd = {fd, POLLIN, 0};
		double left = until - mt_now();
		if (left <= 0 || mt_stopping) return false;
		if (poll(&poll_fd, 1, left < 0.1 ? (int)(left * 1000) + 1 : 100) <= 0) continue;
		ssize_t got = read(fd, (char *)to + at, n - at);
		if (got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN)) return false;
		if (got > 0) at += (size_t)got;
	}
	return true;
}

static void accept_nodes(struct link *l, int listener, const struct where *w)
{
	double until = mt_now() + l->timeout;
	for (uint32_t missing = l->nodes - 1; missing;) {
		struct pollfd poll_fd = {listener, POLLIN, 0};
		struct hello hello;
		if (mt_stopping) mt_die_of_signal(mt_stopping);
		if (mt_now() > until) mt_die(MT_EX_PEER, "%u nodes did not connect in %g s", missing, l->timeout);
		if (poll(&poll_fd, 1, 100) <= 0) continue;
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0) continue;
		/* anybody may connect to a port; who does not know the number is not listened to for long */
		bool ours = read_whole(fd, &hello, sizeof hello, mt_now() + 2) &&
			!memcmp(hello.secret, w->secret, sizeof hello.secret) && hello.node && hello.node < l->nodes &&
			l->peer[hello.node].fd < 0;
		if (!ours) {
			close(fd);
			continue;
		}
		set_up(l, &l->peer[hello.node], fd, hello.node);
		missing--;
	}
	close(listener);
}

/* 0: connected within 2 seconds */
static int try_address(int fd, const struct where *w, uint32_t i)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6,
		.sin6_addr = w->address[i],
		.sin6_port = w->port,
		.sin6_scope_id = w->scope[i]};
	struct pollfd poll_fd = {fd, POLLOUT, 0};
	int err = 0, off = 0;
	socklen_t n = sizeof err;
	(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (!connect(fd, (struct sockaddr *)&to, sizeof to)) return 0;
	if (errno != EINPROGRESS) return -errno;
	if (poll(&poll_fd, 1, 2000) <= 0) return -ETIMEDOUT;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n) ? -errno : -err;
}

static void connect_node0(struct link *l, const struct where *w)
{
	int rc = -EHOSTUNREACH;
	for (uint32_t i = 0; i < w->n && i < ADDRESSES; i++) {
		int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd < 0) mt_die(MT_EX_IO, "connecting to node 0: %s", strerror(errno));
		struct hello hello = {.node = l->node};
		memcpy(hello.secret, w->secret, sizeof hello.secret);
		if ((rc = try_address(fd, w, i)) == 0 && write(fd, &hello, sizeof hello) == sizeof hello) {
			set_up(l, &l->peer[0], fd, 0);
			return;
		}
		close(fd);
	}
	mt_die(MT_EX_PEER, "node %u: no connection to node 0: %s", l->node, strerror(-rc));
}

void control_connect(struct link *l)
{
	struct where w = {0};
	int listener = -1;
	if (!l->node) {
		if (getrandom(w.secret, sizeof w.secret, 0) != sizeof w.secret)
			mt_die(MT_EX_IO, "getrandom: %s", strerror(errno));
		listener = listen_anywhere(&w);
		addresses(&w);
	}
	link_mpi(l, MPI_Bcast(&w, sizeof w, MPI_BYTE, 0, MPI_COMM_WORLD), "telling node 0's address");
	if (l->node) connect_node0(l, &w);
	else accept_nodes(l, listener, &w);
}

/* ------------------------------------------------------------------------------------------------ bytes */

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

/* ------------------------------------------------------------------------------------------------ messages */

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
	/* the others close first, node 0 when all have: so nobody goes on while one has not heard */
	for (uint32_t i = 0; i < l->nodes; i++) {
		if (l->node && l->peer[i].fd >= 0) (void)shutdown(l->peer[i].fd, SHUT_WR);
		wait_closed(&l->peer[i], until);
	}
	for (uint32_t i = 0; i < l->nodes && !l->node; i++)
		if (l->peer[i].fd >= 0) (void)shutdown(l->peer[i].fd, SHUT_WR);
}
