/* mix.c: documents of several sources, interleaved by weight.
 *
 * A source of n documents and weight W gives W x n documents an epoch. Its documents come in order, pass after pass; an
 * epoch goes on where the one before stopped. Sources take turns such that each one's share of the documents written is
 * at any time its share of the epoch's, to within one document: R. Tijdeman, The chairman assignment problem, Discrete
 * Mathematics 32 (1980), 323-330.
 */
#include <stdlib.h>

#include "feed.h"
#include "mt/error.h"
#include "splitmix.h"

typedef __int128 wide; /* documents x documents */

struct mixed {
	size_t begin, n;      /* its documents in the index */
	uint64_t weight;      /* millionths */
	uint64_t seed, given; /* documents given in all epochs */
	uint64_t due, at;     /* of this epoch: documents to give, those given */
};

struct mix {
	struct feed_index index;
	struct mixed *of;
	size_t n;
	size_t *order; /* of each source's current pass */
	const struct feed_how *how;
};

/* The documents given after that many epochs: rounded up, so that even a small weight begins with one. */
static uint64_t given_after(const struct mixed *s, uint64_t epochs)
{
	unsigned __int128 millionths = (unsigned __int128)s->weight * s->n * epochs;
	return (uint64_t)((millionths + FEED_WEIGHT_1 - 1) / FEED_WEIGHT_1);
}

/* Whose turn is document p of the epoch's `all`, p from 1? Of the sources that may give one without being ahead of
 * their share by too much, the one that must give it soonest. */
static struct mixed *turn(const struct mix *x, uint64_t p, uint64_t all)
{
	struct mixed *best = NULL;
	wide best_time = 0, d = x->n > 1 ? 2 * (wide)x->n - 2 : 1;
	for (struct mixed *s = x->of; s < x->of + x->n; s++) {
		wide behind = d * ((wide)s->due * p - (wide)all * s->at); /* of its share, in units of 1 / (d x all) */
		if (s->at == s->due || behind < all) continue;
		wide time = (wide)all * (d - 1) - behind; /* until its deadline: time / (d x due) documents */
		if (best && time * best->due >= best_time * s->due) continue;
		best = s;
		best_time = time;
	}
	MT_ASSERT(best);
	return best;
}

static int emit_next(struct mix *x, struct mixed *s)
{
	uint64_t pass = s->given / s->n, i = s->given % s->n;
	if (x->order && i == 0) index_permute(x->order + s->begin, s->n, s->seed, pass);
	s->given++;
	s->at++;
	return index_emit(&x->index, s->begin + (x->order ? x->order[s->begin + i] : i), x->how);
}

static int feed_epoch(struct mix *x, uint64_t epoch)
{
	uint64_t all = 0;
	for (size_t i = 0; i < x->n; i++) {
		struct mixed *s = &x->of[i];
		s->due = given_after(s, epoch + 1) - s->given;
		s->at = 0;
		all += s->due;
	}
	int rc = 0;
	for (uint64_t p = 1; p <= all && !rc; p++) rc = emit_next(x, turn(x, p, all));
	return rc;
}

static int index_sources(struct mix *x, const struct feed_sources *sources)
{
	uint64_t state = x->how->seed;
	for (size_t i = 0; i < sources->n; i++) {
		const struct feed_source *from = &sources->at[i];
		struct mixed *s = &x->of[i];
		int rc = 0;
		*s = (struct mixed){.begin = x->index.n, .weight = from->weight, .seed = splitmix_next(&state)};
		for (size_t f = 0; f < from->n_files && !rc; f++)
			rc = index_file(&x->index, sources->files, from->first_file + f, x->how);
		if (rc) return rc;
		s->n = x->index.n - s->begin;
	}
	return 0;
}

int feed_mixed(const struct feed_sources *sources, const struct feed_how *how)
{
	struct mix x = {.how = how, .n = sources->n, .of = calloc(sources->n, sizeof *x.of)};
	int rc = x.of ? index_sources(&x, sources) : mt_fail(MT_EX_NOMEM, "no memory for %zu sources", sources->n);
	if (!rc && how->shuffle) {
		x.order = malloc((x.index.n + 1) * sizeof *x.order);
		if (!x.order) rc = mt_fail(MT_EX_NOMEM, "no memory for an order of %zu documents", x.index.n);
	}
	for (uint64_t epoch = 0; epoch < how->epochs && !rc; epoch++) rc = feed_epoch(&x, epoch);
	free(x.order);
	free(x.of);
	index_close(&x.index);
	return rc;
}
