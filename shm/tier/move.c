/* move.c: a directory's tiles go to another drive (--dir OLD=NEW), because this one fails or is full. Nobody else
 * writes to them: this process has mt-tier's slot. The directory's new path stands in the control region when all tiles
 * are there; before that nothing has changed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "tier.h"

/* OLD is a directory as create was given it, or with this run's own below it */
static int find_dir(const struct tier *t, const char *old, uint32_t *dir)
{
	char *real = realpath(old, NULL);
	uint32_t i = 0;
	for (; i < t->control->tier.dirs; i++) {
		const char *path = mt_tier_dir(t->run, i), *base = strrchr(path, '/');
		size_t n = (size_t)(base - path);
		if (!strcmp(path, old) || (strlen(old) == n && !strncmp(path, old, n))) break;
		if (real && (!strcmp(path, real) || (strlen(real) == n && !strncmp(path, real, n)))) break;
	}
	free(real);
	*dir = i;
	if (i < t->control->tier.dirs) return 0;
	return mt_fail(MT_EX_USAGE, "--dir: the run has no tier in '%s'", old);
}

/* Updated, but not written: the slot has it, and it will be written */
static bool in_slot(const struct tier *t, uint32_t tile)
{
	uint64_t tiles = t->control->tier.tiles, written = mt_tier_at(t->run, MT_WRITTEN);
	uint64_t q = written + (tile + tiles - written % tiles) % tiles;
	return q < mt_tier_at(t->run, MT_UPDATED);
}

struct copy {
	const struct tier *t;
	struct mt_tile tile;
	const char *path; /* of the old file */
	int from, to;
	uint8_t *buf; /* a chunk */
	struct mt_seal *seal;
};

static int move_part(const struct copy *c, uint64_t off, uint64_t bytes, uint8_t *p)
{
	off_t at = (off_t)(MT_TILE_HEADER + off);
	ssize_t n = pread(c->from, p, bytes, at);
	if (n < 0) return mt_fail(MT_EX_IO, "%s, byte %lld: %s", c->path, (long long)at, strerror(errno));
	if ((uint64_t)n < bytes) return mt_fail(MT_EX_DATA, "%s ends at byte %lld", c->path, (long long)at + n);
	n = pwrite(c->to, p, bytes, at);
	if ((uint64_t)n == bytes) return 0;
	return mt_fail(MT_EX_IO, "writing the copy of %s: %s", c->path, n < 0 ? strerror(errno) : "it was cut short");
}

/* The seal that the next read of the tile will want */
static int check_seal(const struct copy *c, uint32_t i)
{
	uint64_t tiles = c->t->control->tier.tiles, updated = mt_tier_at(c->t->run, MT_UPDATED),
			 q = updated + (i + tiles - updated % tiles) % tiles;
	const uint8_t *run_id;
	uint64_t at = mt_seal_expected(c->t->run, q, &run_id);
	const char *wrong = mt_seal_wrong(c->seal, run_id, i, mt_tile_chunks(&c->tile), at);
	return wrong ? mt_fail(MT_EX_IO, "%s: %s", c->path, wrong) : 0;
}

static int copy_tile(const struct copy *c, uint32_t i)
{
	uint64_t from, bytes;
	int rc = move_part(c, c->tile.seal, c->tile.bytes - c->tile.seal, (uint8_t *)c->seal);
	if (!rc) rc = check_seal(c, i);
	for (uint32_t k = 0; k < mt_tile_chunks(&c->tile) && !rc; k++) {
		mt_tile_chunk(&c->tile, k, &from, &bytes);
		rc = move_part(c, from, bytes, c->buf);
		if (!rc && XXH3_64bits(c->buf, bytes) != c->seal->chunk[k])
			rc = mt_fail(MT_EX_IO, "%s, byte %llu: is damaged", c->path, (unsigned long long)(MT_TILE_HEADER + from));
	}
	return rc;
}

static int move_tile(const struct tier *t, uint32_t i, int old, int new)
{
	char name[MT_TILE_NAME], path[MT_TIER_PATH + MT_TILE_NAME];
	struct copy c = {.t = t, .tile = mt_tile(t->run, i), .path = path, .from = -1, .to = -1};
	mt_tile_name(t->run, i, name);
	snprintf(path, sizeof path, "%s/%s", mt_tier_dir(t->run, c.tile.dir), name);
	int rc = mt_tile_create(t->run, i, new, name, &c.to);
	if (rc || in_slot(t, i)) {
		if (!rc) close(c.to);
		return rc;
	}
	c.from = mt_tile_open(old, name, O_RDONLY | O_DIRECT);
	c.buf = aligned_alloc(4096, MT_TILE_CHUNK);
	c.seal = aligned_alloc(4096, c.tile.bytes - c.tile.seal);
	if (c.from < 0) rc = mt_fail(MT_EX_IO, "%s: %s", path, strerror(errno));
	else if (!c.buf || !c.seal) rc = mt_fail(MT_EX_NOMEM, "no memory for a copy of %s", path);
	else rc = copy_tile(&c, i);
	if (!rc && fdatasync(c.to)) rc = mt_fail(MT_EX_IO, "writing the copy of %s: %s", path, strerror(errno));
	free(c.buf);
	free(c.seal);
	if (c.from >= 0) close(c.from);
	close(c.to);
	return rc;
}

/* There is such a directory already: of a move that was killed? */
static bool is_left(const struct tier *t, const char *path)
{
	bool used = !*path;
	for (uint32_t i = 0; i < t->control->tier.dirs; i++) used |= !strcmp(mt_tier_dir(t->run, i), path);
	return !used;
}

/* Deletes the new directory; the message stays */
static int fail_without(const char *path, int rc)
{
	char why[1024];
	snprintf(why, sizeof why, "%s", mt_errmsg());
	(void)mt_tier_drop(path);
	return mt_fail(-rc, "%s", why);
}

int move_dir(struct tier *t, const char *old_new)
{
	char path[MT_TIER_PATH], before[MT_TIER_PATH], *old = strdup(old_new), *new = old ? strchr(old, '=') : NULL;
	int from = -1, to = -1;
	uint32_t dir = 0;
	if (!old) return mt_fail(MT_EX_NOMEM, "no memory for --dir");
	if (new) *new ++ = 0;
	int rc = !new || !*new || !*old ? mt_fail(MT_EX_USAGE, "--dir '%s': wants OLD=NEW", old_new)
									: find_dir(t, old, &dir);
	if (!rc) rc = mt_tier_make(t->run, new, path);
	if (rc == -MT_EX_EXISTS && is_left(t, path) && !(rc = mt_tier_drop(path))) rc = mt_tier_make(t->run, new, path);
	bool made = !rc;
	if (!rc) rc = mt_tier_open(t->run, dir, &from);
	if (!rc) rc = mt_tier_open_dir(path, &to);
	for (uint32_t i = dir; i < t->control->tier.tiles && !rc; i += t->control->tier.dirs)
		rc = move_tile(t, i, from, to);
	if (!rc && !mt_stage_mine(t->run)) rc = mt_stage_check(t->run);
	if (!rc) {
		snprintf(before, sizeof before, "%s", mt_tier_dir(t->run, dir));
		mt_tier_move(t->run, dir, path);
		mt_say("the tiles of %s are in %s now", before, path);
	}
	if (from >= 0) close(from);
	if (to >= 0) close(to);
	free(old);
	if (made && !rc) (void)mt_tier_drop(before);
	return made && rc ? fail_without(path, rc) : rc;
}
