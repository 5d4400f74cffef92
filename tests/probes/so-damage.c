/* so-damage.so, to be preloaded: of the bytes that this process sends by send() over IPv6, one bit is wrong in call
 * MT_DAMAGE, and in every MT_DAMAGE-th after it. MPI's own messages over IPv4 stay as they are. */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "so.h"

ssize_t send(int fd, const void *what, size_t n, int flags)
{
	static _Atomic unsigned calls;
	static unsigned long bit = 88172645463325252;
	const char *text = getenv("MT_DAMAGE");
	unsigned every = text ? (unsigned)atoi(text) : 0;
	char copy[4096];
	struct sockaddr_in6 own;
	socklen_t size = sizeof own;

	if (getsockname(fd, (struct sockaddr *)&own, &size) || own.sin6_family != AF_INET6)
		return REAL(send)(fd, what, n, flags);
	if (!every || ++calls % every || !n || n > sizeof copy) return REAL(send)(fd, what, n, flags);
	memcpy(copy, what, n);
	bit = bit * 6364136223846793005 + every;
	copy[(bit >> 32) % n] ^= (char)(1 << (bit >> 61));
	return REAL(send)(fd, copy, n, flags);
}
