/* out.c: collects records and writes them in large pieces. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "feed.h"

enum { OUT_WORDS = 1 << 18 };

static uint32_t buf[OUT_WORDS];
static size_t held;

void out_flush(void)
{
	const char *p = (const char *)buf;
	for (size_t n = held * 4; n;) {
		ssize_t w = write(STDOUT_FILENO, p, n);
		if (w < 0 && errno == EINTR) continue;
		if (w < 0 && errno == EPIPE) exit(0); /* the reader needs no more */
		if (w < 0) mt_die(MT_EX_IO, "stdout: %s", strerror(errno));
		p += w;
		n -= (size_t)w;
	}
	held = 0;
}

void out_watch(int fd)
{
	struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = STDOUT_FILENO}};
	while (poll(p, 2, -1) < 0 && errno == EINTR) {}
	if (p[1].revents & POLLERR && !p[0].revents) exit(0);
}

void out_words(const uint32_t *words, size_t n)
{
	while (n) {
		size_t m = n < OUT_WORDS - held ? n : OUT_WORDS - held;
		memcpy(buf + held, words, m * 4);
		held += m;
		words += m;
		n -= m;
		if (held == OUT_WORDS) out_flush();
	}
}
