/* sources.c: operands to files. FILE, DIR or -, each with :WEIGHT behind it unless its weight is 1. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "feed.h"
#include "mt/error.h"

enum { WEIGHT_MAX = 1000000 };

/* A name that exists is a name, whatever colons it has. */
static int split_weight(struct feed_source *s)
{
	struct stat st;
	const char *colon = strrchr(s->name, ':');
	s->weight = FEED_WEIGHT_1;
	if (!colon || colon == s->name || stat(s->name, &st) == 0) return 0;
	char *end, *name = strndup(s->name, (size_t)(colon - s->name));
	if (!name) return mt_fail(MT_EX_NOMEM, "no memory");
	double w = strtod(colon + 1, &end);
	bool number = end != colon + 1 && !*end;
	if (!number && strcmp(name, "-") && stat(name, &st)) { /* no weight was meant */
		free(name);
		return 0;
	}
	if (!number || !(w * FEED_WEIGHT_1 >= 1 && w <= WEIGHT_MAX))
		return mt_fail(MT_EX_USAGE, "%s: weight '%s' is not a number above 0, at most %d", s->name, colon + 1,
			WEIGHT_MAX);
	s->name = name;
	s->weight = (uint64_t)llround(w * FEED_WEIGHT_1);
	s->weighted = true;
	return 0;
}

static int add_file(struct feed_sources *x, const char *name)
{
	if (x->n_files == x->room) {
		size_t room = x->room ? x->room * 2 : 64;
		const char **more = realloc(x->files, room * sizeof *more);
		if (!more) return mt_fail(MT_EX_NOMEM, "no memory for the names of %zu files", room);
		x->files = more;
		x->room = room;
	}
	x->files[x->n_files++] = name;
	return 0;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int shown(const struct dirent *e) { return e->d_name[0] != '.'; }

static int add_directory(struct feed_sources *x, const char *dir)
{
	struct dirent **entries;
	size_t before = x->n_files;
	int rc = 0, n = scandir(dir, &entries, shown, by_bytes);
	if (n < 0) return record_unopened(dir);
	for (int i = 0; i < n; i++) {
		struct stat st;
		char *name = NULL;
		const char *slash = dir[strlen(dir) - 1] == '/' ? "" : "/";
		if (!rc && asprintf(&name, "%s%s%s", dir, slash, entries[i]->d_name) < 0)
			rc = mt_fail(MT_EX_NOMEM, "no memory");
		bool regular = !rc && stat(name, &st) == 0 && S_ISREG(st.st_mode);
		if (regular) rc = add_file(x, name);
		else free(name);
		free(entries[i]);
	}
	free(entries);
	if (!rc && x->n_files == before) rc = mt_fail(MT_EX_DATA, "%s: has no regular file", dir);
	return rc;
}

int sources_open(struct feed_sources *x, const char **operands, int n)
{
	*x = (struct feed_sources){.at = calloc((size_t)n, sizeof *x->at), .n = (size_t)n};
	if (!x->at) return mt_fail(MT_EX_NOMEM, "no memory for %d operands", n);
	for (int i = 0; i < n; i++) {
		struct feed_source *s = &x->at[i];
		struct stat st;
		s->name = operands[i];
		s->first_file = x->n_files;
		int rc = strcmp(s->name, "-") ? split_weight(s) : 0;
		if (rc) return rc;
		x->weighted |= s->weighted;
		bool dir = strcmp(s->name, "-") && stat(s->name, &st) == 0 && S_ISDIR(st.st_mode);
		if ((rc = dir ? add_directory(x, s->name) : add_file(x, s->name))) return rc;
		s->n_files = x->n_files - s->first_file;
	}
	return 0;
}
