/* flat.c: elements of 1, 2 or 4 bytes, little-endian. */
#include <string.h>

#include "feed.h"

void flat_words(enum feed_format format, const void *bytes, uint32_t *out, size_t n)
{
	const unsigned char *b = bytes;
	switch (format) {
	case FEED_BYTES:
		for (size_t i = 0; i < n; i++) out[i] = b[i];
		break;
	case FEED_U16:
		for (size_t i = 0; i < n; i++) out[i] = (uint32_t)(b[2 * i] | b[2 * i + 1] << 8);
		break;
	case FEED_U32:
	case FEED_RECORDS: memcpy(out, b, n * 4); break;
	}
}
