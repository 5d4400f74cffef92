/* so-stranger.so, to be preloaded: the first connection by IPv6 goes to port $MT_STRANGER of this machine instead. */
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#pragma GCC diagnostic ignored "-Wpedantic"

typedef int connect_fn(int, const struct sockaddr *, socklen_t);

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
	connect_fn *real = (connect_fn *)dlsym(RTLD_NEXT, "connect");
	return real(fd, to, n);
}
