/* media.h: tokens that stand for images, video or sounds. */
#ifndef LIBMT_MEDIA_H
#define LIBMT_MEDIA_H

#include <stddef.h>
#include <stdint.h>

/* Those of a config.json, and what it calls each (shm/model/media.c). None, if it is of text alone or cannot be read */
enum { MT_MEDIA = 16 };
struct mt_media {
	uint32_t n;
	struct {
		uint32_t id;
		char key[44];
	} token[MT_MEDIA];
};
void mt_media_read(const char *config, size_t bytes, struct mt_media *);
/* The key of that token; NULL: it stands for text */
static inline const char *mt_media_key(const struct mt_media *m, uint32_t id)
{
	for (uint32_t i = 0; i < m->n; i++)
		if (m->token[i].id == id) return m->token[i].key;
	return NULL;
}

/* Of a token that a model has no row for: its id, the size of the vocabulary, and what to do */
#define MT_OUTSIDE "token %u is outside the vocabulary of %u; mt-ckpt convert --resize-vocab gives a model more rows"

#endif
