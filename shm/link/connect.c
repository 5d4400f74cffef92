/* connect.c: a TCP connection from each node to node 0. MPI carries node 0's addresses and a secret once. Anybody may
 * connect to a port, and a stranger may listen at an address that node 0 has in another network. So both ends prove
 * that they know the secret, by a keyed hash of two random numbers, one from each end; the secret itself is never sent:
 *
 *     node R -> node 0    hello     R, its random number
 *     node 0 -> node R    answer    its own random number, proof
 *     node R -> node 0    proof
 *     node 0 -> node R    welcome   one byte
 *
 * Node 0 listens to all connections at once, so that those that say nothing hold up nobody. Node R tries all addresses
 * again until the time-out. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link.h"
#include "mt/error.h"
#include "siphash.h"

enum {
	ADDRESSES = 16,
	GUESTS = 256, /* connections at once that have not proved anything; the oldest makes room */
	ANSWER_S = 2, /* that a node waits for an address to answer */
};

struct where {                          /* node 0 listens at all of these */
	struct in6_addr address[ADDRESSES]; /* IPv4 ones are mapped */
	uint32_t scope[ADDRESSES];
	uint32_t n;
	uint16_t port, reserved;
	uint64_t secret[2];
};

struct hello {
	uint64_t random[2];
	uint64_t node;
};

struct answer {
	uint64_t random[2];
	uint64_t proof;
};

struct guest { /* at node 0: a connection that has not proved that it is a node's */
	int fd;
	struct hello hello;
	struct answer answer;
	uint64_t proof;
	size_t got; /* bytes of hello and proof */
};

/* ---- proof */

/* by: which end proves it, 0 or 1: what one end has sent is no proof of the other */
static uint64_t proof(const struct where *w, uint64_t by, const struct hello *h, const uint64_t random[2])
{
	uint64_t words[] = {by, h->node, h->random[0], h->random[1], random[0], random[1]};
	return siphash(w->secret, words, sizeof words / sizeof *words);
}

static void draw(void *to, size_t n)
{
	if (getrandom(to, n, 0) != (ssize_t)n) mt_die(MT_EX_IO, "getrandom: %s", strerror(errno));
}

/* ---- addresses */

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
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), off = 0;
	if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) ||
		bind(fd, (struct sockaddr *)&any, sizeof any) || listen(fd, GUESTS) ||
		getsockname(fd, (struct sockaddr *)&any, &n))
		mt_die(MT_EX_IO, "listening for other nodes: %s", strerror(errno));
	w->port = any.sin6_port;
	return fd;
}

static void set_up(struct peer *p, int fd, uint32_t node)
{
	int on = 1;
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	p->fd = fd;
	p->node = node;
	p->heard = p->spoke = mt_now();
}

static bool send_whole(int fd, const void *what, size_t n) { return send(fd, what, n, MSG_NOSIGNAL) == (ssize_t)n; }

/* ---- node 0 */

struct door {
	struct guest guest[GUESTS];
	int n;
};

static void drop(struct door *d, int i)
{
	close(d->guest[i].fd);
	d->n--;
	memmove(&d->guest[i], &d->guest[i + 1], (size_t)(d->n - i) * sizeof *d->guest);
}

static void let_in(struct door *d, int listener)
{
	if (d->n == GUESTS) drop(d, 0);
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) d->guest[d->n++] = (struct guest){.fd = fd};
	else if ((errno == EMFILE || errno == ENFILE) && d->n) drop(d, 0);
	else (void)poll(NULL, 0, 10);
}

enum heard { SILENT, STRANGER, NODE };

/* A hello is answered; a proof is checked */
static enum heard hear_guest(const struct link *l, const struct where *w, struct guest *g)
{
	for (;;) {
		bool greets = g->got < sizeof g->hello;
		size_t at = greets ? g->got : g->got - sizeof g->hello, size = greets ? sizeof g->hello : sizeof g->proof;
		ssize_t n = recv(g->fd, (greets ? (char *)&g->hello : (char *)&g->proof) + at, size - at, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR)) return SILENT;
		if (n <= 0) return STRANGER;
		g->got += (size_t)n;
		if (at + (size_t)n < size) continue;
		if (!greets) return g->proof == proof(w, 1, &g->hello, g->answer.random) ? NODE : STRANGER;
		if (!g->hello.node || g->hello.node >= l->nodes) return STRANGER;
		draw(g->answer.random, sizeof g->answer.random);
		g->answer.proof = proof(w, 0, &g->hello, g->answer.random);
		if (!send_whole(g->fd, &g->answer, sizeof g->answer)) return STRANGER;
	}
}

/* A node that connects again has given up its earlier connection */
static bool welcome(struct link *l, struct guest *g)
{
	struct peer *p = &l->peer[g->hello.node];
	if (!send_whole(g->fd, "", 1)) return false;
	if (p->fd >= 0) close(p->fd);
	set_up(p, g->fd, (uint32_t)g->hello.node);
	return true;
}

static uint32_t missing(const struct link *l, char *names, size_t size)
{
	uint32_t n = 0;
	size_t at = 0;
	for (uint32_t node = 1; node < l->nodes; node++)
		if (l->peer[node].fd < 0 && ++n && at < size)
			at += (size_t)snprintf(names + at, size - at, "%s%u", at ? ", " : "", node);
	return n;
}

static void accept_nodes(struct link *l, int listener, const struct where *w)
{
	struct door d = {.n = 0};
	char names[200];
	double began = mt_now();
	bool reported = false;
	while (missing(l, names, sizeof names)) {
		struct pollfd fds[1 + GUESTS] = {{listener, POLLIN, 0}};
		for (int i = 0; i < d.n; i++) fds[1 + i] = (struct pollfd){d.guest[i].fd, POLLIN, 0};
		if (mt_stopping) mt_die_of_signal(mt_stopping);
		if (mt_now() - began > l->timeout)
			link_refuse(l, MT_EX_PEER, "node 0: no connection from node %s in %g s; %d connections of strangers", names,
				l->timeout, d.n);
		if (mt_now() - began > LINK_SLOW_S && !reported) {
			mt_say("node 0: waits for node %s to connect", names);
			reported = true;
		}
		if (poll(fds, 1 + (nfds_t)d.n, 100) <= 0) continue;
		for (int i = d.n; i-- > 0;) {
			enum heard heard = fds[1 + i].revents ? hear_guest(l, w, &d.guest[i]) : SILENT;
			if (heard == SILENT) continue;
			if (heard == NODE && welcome(l, &d.guest[i])) d.guest[i].fd = -1;
			drop(&d, i);
		}
		if (fds[0].revents) let_in(&d, listener);
	}
	while (d.n) drop(&d, 0);
	close(listener);
}

/* ---- node R */

/* All bytes of something small; 0, or -errno */
static int read_whole(int fd, void *to, size_t n, double until)
{
	for (size_t at = 0; at < n;) {
		struct pollfd poll_fd = {fd, POLLIN, 0};
		if (mt_now() > until || mt_stopping) return -ETIMEDOUT;
		if (poll(&poll_fd, 1, 100) <= 0) continue;
		ssize_t got = recv(fd, (char *)to + at, n - at, 0);
		if (got == 0) return -ECONNRESET;
		if (got < 0 && errno != EINTR && errno != EAGAIN) return -errno;
		if (got > 0) at += (size_t)got;
	}
	return 0;
}

static int connect_to(int fd, const struct where *w, uint32_t i)
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
	if (poll(&poll_fd, 1, ANSWER_S * 1000) <= 0) return -ETIMEDOUT;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n) ? -errno : -err;
}

/* 0: both ends have proved who they are. -EBADMSG: another process listens there. */
static int meet(const struct link *l, const struct where *w, int fd, uint32_t i, double until)
{
	struct hello hello = {.node = l->node};
	struct answer answer;
	char byte;
	int rc = connect_to(fd, w, i);
	if (rc) return rc;
	draw(hello.random, sizeof hello.random);
	if (!send_whole(fd, &hello, sizeof hello)) return -errno;
	if ((rc = read_whole(fd, &answer, sizeof answer, mt_now() + ANSWER_S))) return rc;
	if (answer.proof != proof(w, 0, &hello, answer.random)) return -EBADMSG;
	uint64_t mine = proof(w, 1, &hello, answer.random);
	if (!send_whole(fd, &mine, sizeof mine)) return -errno;
	return read_whole(fd, &byte, 1, until);
}

static void connect_node0(struct link *l, const struct where *w)
{
	double began = mt_now(), until = began + l->timeout;
	bool reported = false;
	char why[160] = "it has no address";
	for (uint32_t round = 0;; round++) {
		for (uint32_t i = 0; i < w->n && i < ADDRESSES; i++) {
			char name[INET6_ADDRSTRLEN] = "";
			int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
			if (fd < 0) link_refuse(l, MT_EX_IO, "connecting to node 0: %s", strerror(errno));
			int rc = meet(l, w, fd, i, until);
			if (!rc) {
				set_up(&l->peer[0], fd, 0);
				return;
			}
			close(fd);
			inet_ntop(AF_INET6, &w->address[i], name, sizeof name);
			snprintf(why, sizeof why, "%s port %u: %s", name, ntohs(w->port),
				rc == -EBADMSG ? "another process listens there" : strerror(-rc));
			if (mt_stopping) mt_die_of_signal(mt_stopping);
		}
		if (mt_now() > until)
			link_refuse(l, MT_EX_PEER, "node %u: no connection to node 0 in %g s: %s", l->node, l->timeout, why);
		if (mt_now() - began > LINK_SLOW_S && !reported) {
			mt_say("node %u: waits for node 0: %s", l->node, why);
			reported = true;
		}
		(void)poll(NULL, 0, round < 10 ? 20 : 200);
	}
}

void control_connect(struct link *l)
{
	struct where w = {0};
	int listener = -1;
	if (!l->node) {
		draw(w.secret, sizeof w.secret);
		listener = listen_anywhere(&w);
		addresses(&w);
	}
	link_mpi(l, MPI_Bcast(&w, sizeof w, MPI_BYTE, 0, MPI_COMM_WORLD), "sending node 0's address");
	if (l->node) connect_node0(l, &w);
	else accept_nodes(l, listener, &w);
}
