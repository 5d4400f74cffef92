/* so-stranger.so, to be preloaded: the first connection by IPv6 goes to port $MT_STRANGER of this machine instead. */
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "so.h"

int connect(int fd, const struct sockaddr *to, socklen_t n)
{
	static int connections;
	const char *port = getenv("MT_STRANGER");
	struct sockaddr_in6 other = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	if (port && to->sa_family == AF_INET6 && !connections++) {
		other.sin6_port = htons((uint16_t)atoi(port));
		to = (struct sockaddr *)&other;
		n = sizeof other;
	}
	return REAL(connect)(fd, to, n);
}
