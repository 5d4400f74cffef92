/* out.c: collects records, or with --decode their bytes, and writes them in large pieces. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "feed.h"
#include "mt/error.h"

enum { OUT_BYTES = 1 << 20 };

static char buf[OUT_BYTES];
static size_t held;
static const char *separator; /* not NULL: decode */
static uint32_t left;         /* decode: elements of the current record that are still to come */
static uint64_t record, element;

void out_flush(void)
{
	const char *p = buf;
	for (size_t n = held; n;) {
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
	if (held && poll(p, 1, 0) == 0) out_flush(); /* the writer of the input may wait for what these records lead to */
	while (poll(p, 2, -1) < 0 && errno == EINTR) {}
	if (p[1].revents & POLLERR && !p[0].revents) exit(0);
}

static void out_bytes(const void *bytes, size_t n)
{
	for (const char *p = bytes; n;) {
		size_t m = n < OUT_BYTES - held ? n : OUT_BYTES - held;
		memcpy(buf + held, p, m);
		held += m;
		p += m;
		n -= m;
		if (held == OUT_BYTES) out_flush();
	}
}

/* The next word of the stream of records: a count, or an element, which becomes a byte. */
static void decode(uint32_t word)
{
	if (!left) {
		if (word & RECORD_GROUP) {
			out_flush();
			mt_die(MT_EX_DATA, "--decode: record %llu: is a group, not plain text", (unsigned long long)record + 1);
		}
		left = word;
		element = 0;
		record++;
		return;
	}
	uint32_t id = word & ~MT_CONTEXT_ONLY;
	if (id > UINT8_MAX) {
		out_flush();
		mt_die(MT_EX_DATA, "--decode: record %llu, element %llu: token %u is not a byte", (unsigned long long)record,
			(unsigned long long)element, id);
	}
	element++;
	out_bytes(&(char){(char)id}, 1);
	if (--left == 0) out_bytes(separator, strlen(separator));
}

void out_decode(const char *sep) { separator = sep; }

void out_words(const uint32_t *words, size_t n)
{
	if (!separator) out_bytes(words, n * 4);
	else
		for (size_t i = 0; i < n; i++) decode(words[i]);
}
