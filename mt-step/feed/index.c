/* index.c: where each document of some files is, so that they can be written in any order. */
#include <stdlib.h>

#include "feed.h"
#include "mt/error.h"
#include "splitmix.h"

static int index_add(void *arg, uint64_t off, uint32_t n)
{
	struct feed_index *x = arg;
	if (x->n == x->room) {
		size_t room = x->room ? x->room * 2 : 1024;
		struct feed_place *more = realloc(x->at, room * sizeof *more);
		if (!more) return mt_fail(MT_EX_NOMEM, "no memory for an index of %zu documents", room);
		x->at = more;
		x->room = room;
	}
	x->at[x->n++] = (struct feed_place){off, x->file, n};
	return 0;
}

int index_file(struct feed_index *x, const char **files, size_t i, const struct feed_how *how)
{
	struct feed_file f;
	x->file = (uint32_t)i;
	x->files = files;
	int rc = file_open(&f, files[i], NULL);
	if (!rc) rc = file_documents(&f, how, index_add, x);
	if (f.fd >= 0) file_close(&f);
	return rc;
}

int index_emit(struct feed_index *x, size_t document, const struct feed_how *how)
{
	const struct feed_place *p = &x->at[document];
	struct feed_opened *o = &x->opened[p->file % FEED_OPEN];
	if (!o->used || o->number != p->file) {
		if (o->used) file_close(&o->file);
		o->used = false;
		int rc = file_open(&o->file, x->files[p->file], NULL);
		if (rc) return rc;
		o->used = true;
		o->number = p->file;
	}
	return file_emit(&o->file, how, p->off, p->n);
}

void index_close(struct feed_index *x)
{
	for (int i = 0; i < FEED_OPEN; i++)
		if (x->opened[i].used) file_close(&x->opened[i].file);
	free(x->at);
}

void index_permute(size_t *order, size_t n, uint64_t seed, uint64_t pass)
{
	uint64_t state = seed;
	state = splitmix_next(&state) ^ pass;
	for (size_t i = 0; i < n; i++) order[i] = i;
	for (size_t i = n; i > 1; i--) { /* Fisher and Yates */
		/* the high half of a 128-bit product: uniform to within n / 2^64 */
		size_t j = (size_t)((unsigned __int128)splitmix_next(&state) * i >> 64), t = order[j];
		order[j] = order[i - 1];
		order[i - 1] = t;
	}
}
