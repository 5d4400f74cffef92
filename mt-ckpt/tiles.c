/* tiles.c: lo, m and v in a checkpoint of a run with a tier. The run's tiles (mt/tier.h) are files of the checkpoint,
 * with their names and seals: hard links, or copies, of those below the run's directories. They hold the units whose
 * turn is `first` or later, in parts:
 *
 *     unit-0012.tile-003     unit.12[49152:65536].lo, .m, .v, and pads and the seal
 *
 * A file says in its header where its arrays are, so that any run can read them. Its checksums are those of its seal,
 * and run.json has the seal's. A run with the same tiles takes links to the files as its own. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt.h"
#include "mt/control.h"
#include "mt/run.h"
#include "mt/tier.h"

#define SEAL_MOST (64u << 10) /* bytes of a seal: checksums of 8 GB */

static int bad(const char *name, const char *what) { return mt_fail(MT_EX_DATA, "%s: %s", shown(name), what); }

/* The newest checkpoint beside this one that has another file of the tile; false: none */
static bool other_file(const struct source *s, const char *name, char other[STEP_NAME])
{
	struct stat mine, st;
	char path[128];
	uint64_t *steps;
	int parent = openat(s->dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	size_t n = steps_in(parent, &steps);
	bool found = false;
	if (fstatat(s->dirfd, name, &mine, 0) < 0) mine.st_ino = 0;
	for (size_t i = 0; i < n && !found; i++) {
		step_name(other, steps[i]);
		snprintf(path, sizeof path, "%s/%s", other, name);
		found = fstatat(parent, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) && st.st_ino != mine.st_ino;
	}
	free(steps);
	if (parent >= 0) close(parent);
	return found;
}

/* rc: of the tile's file. A bad block takes all checkpoints that have the file: what to load instead */
static int with_advice(const struct source *s, const struct tile_file *f, int rc)
{
	char other[STEP_NAME], why[512];
	if ((rc != -MT_EX_DATA && rc != -MT_EX_IO) || !other_file(s, f->name, other)) return rc;
	snprintf(why, sizeof why, "%s", mt_errmsg());
	return mt_fail(-rc, "%s; %s has another file of this tile", why, other);
}

/* ---- open */

struct want { /* an array of a tile's file */
	const char *array;
	enum st_dtype dtype;
	uint64_t n, *off;
	bool there;
};

/* Where the array is in the file */
static int find(const struct st_file *f, const struct mt_tile *t, const struct want *w, uint64_t end)
{
	char name[80];
	*w->off = MT_NO_ARRAY;
	if (!w->there) return 0;
	snprintf(name, sizeof name, "unit.%u[%llu:%llu].%s", t->unit, (unsigned long long)t->first,
		(unsigned long long)t->end, w->array);
	const struct st_tensor *tensor = st_find(f, name);
	if (!tensor || tensor->dtype != w->dtype || tensor->ndim != 1 || tensor->shape[0] != w->n)
		return mt_fail(MT_EX_DATA, "%s: has no tensor '%s' of %llu elements", f->name, name, (unsigned long long)w->n);
	if (tensor->end > end) return bad(f->name, "has a tensor behind its seal");
	*w->off = tensor->begin - MT_TILE_HEADER;
	return 0;
}

static int find_arrays(const struct source *s, const struct st_file *f, struct mt_tile *t, uint64_t size)
{
	const struct run_json *j = &s->json;
	bool two = mt_state_arrays(j->optim) == 2, codes = j->state == MT_INT8;
	enum st_dtype moment = array_dtype(ARRAY_M, j->state);
	uint64_t n = t->end - t->first;
	const struct want all[] = {
		{"lo", ST_I16, n, &t->lo, tiles_have(s, ARRAY_LO, t->unit)},
		{"m", moment, n, &t->m, true},
		{"m.scale", ST_F32, n / MT_GROUP, &t->m_scale, codes},
		{"v", moment, n, &t->v, two},
		{"v.scale", ST_F32, n / MT_GROUP, &t->v_scale, codes && two},
	};
	const struct st_tensor *seal = st_find(f, "seal");
	int rc = seal && seal->dtype == ST_U8 && seal->end == size && size - seal->begin <= SEAL_MOST
		? 0
		: bad(f->name, "has no seal at its end");
	if (rc == 0) *t = (struct mt_tile){.unit = t->unit, .number = t->number, .first = t->first, .end = t->end};
	if (rc == 0) t->seal = seal->begin - MT_TILE_HEADER;
	if (rc == 0) t->bytes = size - MT_TILE_HEADER;
	for (size_t i = 0; i < sizeof all / sizeof *all && rc == 0; i++) rc = find(f, t, &all[i], seal->begin);
	return rc;
}

/* The seal, to be freed, if it is that of the checkpoint */
static int read_seal(const struct source *s, const struct tile_file *f, int fd, struct mt_seal **out)
{
	const struct mt_tile *t = &f->tile;
	uint32_t chunks = mt_tile_chunks(t);
	uint64_t bytes = t->bytes - t->seal;
	if (bytes < sizeof **out + chunks * sizeof(uint64_t)) return bad(f->name, "has a damaged seal");
	struct mt_seal *seal = malloc(bytes);
	if (!seal) return mt_fail(MT_EX_NOMEM, "no memory for a tile's seal");
	int rc = file_read(fd, f->name, seal, bytes, MT_TILE_HEADER + t->seal);
	const char *wrong = rc == 0 ? mt_seal_wrong(seal, s->json.tier.run, f->number, chunks, s->json.t) : NULL;
	if (rc == 0 && wrong) rc = bad(f->name, wrong);
	else if (rc == 0 && seal->sum != f->sum) rc = bad(f->name, "has another seal than run.json says");
	if (rc == 0 && out) *out = seal;
	else free(seal);
	return rc;
}

static int open_tile(struct source *s, struct tile_file *f)
{
	struct st_files file = {0};
	struct stat st;
	uint64_t n;
	bool cut = fstatat(s->dirfd, f->name, &st, 0) == 0 && st.st_size < MT_TILE_HEADER;
	int rc = cut ? bad(f->name, "is too short") : st_add(&file, s->dirfd, f->name), fd = rc < 0 ? -1 : file.v->fd;
	if (rc == -MT_EX_NOINPUT) rc = bad(f->name, "is missing");
	if (rc == 0) rc = file_read(fd, f->name, &n, sizeof n, 0);
	if (rc == 0 && n != MT_TILE_HEADER - sizeof n) rc = bad(f->name, "has not a tile's header");
	if (rc == 0) rc = find_arrays(s, file.v, &f->tile, (uint64_t)st.st_size);
	if (rc == 0) rc = read_seal(s, f, fd, NULL);
	st_files_close(&file);
	return with_advice(s, f, rc);
}

static int list_tile(struct source *s, uint32_t unit, uint32_t number)
{
	const struct mt_unit *u = &s->layout.units[unit];
	uint64_t first = number * s->json.tier.tile_elems, rest = u->elems - first;
	struct tile_file *f = &s->tiles[u->first_tile + number];
	*f = (struct tile_file){.number = u->first_tile + number};
	mt_tile_name_of(unit, number, f->name);
	f->tile = (struct mt_tile){.unit = unit, .number = number, .first = first, .end = first};
	f->tile.end += rest < s->json.tier.tile_elems ? rest : s->json.tier.tile_elems;
	const char *sum = json_string_value(json_object_get(s->json.tier.files, f->name));
	if (!sum) return mt_fail(MT_EX_DATA, RUN_JSON ": has no checksum of %s", f->name);
	f->sum = strtoull(sum, NULL, 16);
	return open_tile(s, f);
}

int tiles_open(struct source *s)
{
	const struct run_tier *t = &s->json.tier;
	if (!s->full || !t->files) return 0;
	int rc = mt_layout_tier(&s->layout, t->first, t->tile_elems, 2, t->order);
	if (rc < 0 || s->layout.tier.tiles != json_object_size(t->files))
		return rc == -MT_EX_NOMEM ? rc : mt_fail(MT_EX_DATA, RUN_JSON ": tier has not the model's tiles");
	s->tiles = calloc(s->layout.tier.tiles, sizeof *s->tiles);
	if (!s->tiles) return mt_fail(MT_EX_NOMEM, "no memory for a table of tiles");
	for (uint32_t unit = 0; unit < s->layout.n_units && rc == 0; unit++)
		for (uint32_t i = 0; i < s->layout.units[unit].tiles && rc == 0; i++) rc = list_tile(s, unit, i);
	return rc;
}

bool tiles_have(const struct source *s, enum array a, uint32_t unit)
{
	const struct mt_unit *u = &s->layout.units[unit];
	if (!s->tiles || !u->tiles) return false;
	if (a == ARRAY_M || a == ARRAY_V) return true;
	for (uint32_t i = u->first_tensor; i < u->first_tensor + u->tensors; i++) /* compute reads their lo in memory */
		if (s->layout.tensors[i].exact) return false;
	return a == ARRAY_LO && s->json.dtype == MT_BF16;
}

void tiles_leave_out(const struct source *s, enum array a, struct parts *l)
{
	for (uint32_t i = 0; i < l->n; i++)
		if (tiles_have(s, a, l->v[i].unit)) *l->v[i].name = 0;
}

/* ---- read */

int tiles_read(const struct source *s, enum array a, bool scales, uint32_t unit, uint64_t at, uint64_t n, void *out)
{
	uint64_t elem = scales ? 4 : a == ARRAY_LO ? 2 : mt_dtype_bytes(s->json.state);
	uint64_t each = scales ? MT_GROUP : 1;
	int rc = 0;
	for (uint64_t some; n && rc == 0; n -= some, at += some, out = (char *)out + some / each * elem) {
		const struct tile_file *f =
			&s->tiles[s->layout.units[unit].first_tile + (uint32_t)(at / s->json.tier.tile_elems)];
		const struct mt_tile *t = &f->tile;
		uint64_t array = a == ARRAY_LO ? t->lo
			: a == ARRAY_M             ? (scales ? t->m_scale : t->m)
			: scales                   ? t->v_scale
									   : t->v;
		uint64_t size;
		int fd;
		some = n < t->end - at ? n : t->end - at;
		if ((rc = file_open_regular(s->dirfd, f->name, &fd, &size)) < 0) break;
		rc = file_read(fd, f->name, out, some / each * elem, MT_TILE_HEADER + array + (at - t->first) / each * elem);
		close(fd);
	}
	return rc;
}

/* ---- verify */

static int verify_tile(void *arg, int64_t task, void *buf)
{
	const struct source *s = arg;
	const struct tile_file *f = &s->tiles[task];
	struct mt_seal *seal = NULL;
	uint64_t size, from, n;
	int fd, rc = file_open_regular(s->dirfd, f->name, &fd, &size);
	if (rc < 0) return rc;
	rc = read_seal(s, f, fd, &seal);
	for (uint32_t i = 0; rc == 0 && i < seal->chunks; i++) {
		mt_tile_chunk(&f->tile, i, &from, &n);
		rc = file_read(fd, f->name, buf, n, MT_TILE_HEADER + from);
		if (rc == 0 && XXH3_64bits(buf, n) != seal->chunk[i])
			rc = mt_fail(MT_EX_DATA, "%s: chunk %u (bytes %llu to %llu) is damaged", f->name, i,
				(unsigned long long)(MT_TILE_HEADER + from), (unsigned long long)(MT_TILE_HEADER + from + n - 1));
	}
	free(seal);
	close(fd);
	return with_advice(s, f, rc);
}

int tiles_verify(struct source *s)
{
	struct work work = {0};
	if (!s->tiles) return 0;
	int rc = work_begin(&work, s->layout.tier.tiles < WORK_THREADS ? s->layout.tier.tiles : WORK_THREADS);
	if (rc == 0) rc = work_run(&work, s->layout.tier.tiles, verify_tile, s);
	work_end(&work);
	return rc;
}

/* ---- into a run with the same tiles */

/* The same arrays at the same places, in whatever directory */
static bool same_tile(struct mt_tile a, const struct mt_tile *b)
{
	return a.unit == b->unit && !memcmp(&a.first, &b->first, sizeof a - offsetof(struct mt_tile, first));
}

static bool same_tiles(const struct mt_run *run, const struct source *s)
{
	const struct mt_control *c = mt_control(run);
	bool same = s->tiles && c->tier.tiles == s->layout.tier.tiles && c->dtype == (uint32_t)s->json.dtype &&
		c->state == (uint32_t)s->json.state && c->optim == (uint32_t)s->json.optim;
	for (uint32_t i = 0; same && i < c->tier.tiles; i++) {
		const struct mt_tile t = mt_tile(run, i);
		struct stat st; /* a link to a link would be one again, which no tile is */
		same = same_tile(t, &s->tiles[i].tile) && fstatat(s->dirfd, s->tiles[i].name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISREG(st.st_mode);
	}
	return same;
}

/* The tile's file takes the place of the run's. A name that ends with .new is nobody's, and may be left by a kill. */
static int take_link(const struct source *s, const struct tile_file *f, int dirfd, bool try)
{
	char name[MT_TILE_NAME + 4];
	snprintf(name, sizeof name, "%s.new", f->name);
	(void)unlinkat(dirfd, name, 0);
	if (linkat(s->dirfd, f->name, dirfd, name, 0) < 0) return fail_errno(f->name);
	if (try) return unlinkat(dirfd, name, 0) < 0 ? fail_errno(f->name) : 0;
	return renameat(dirfd, name, dirfd, f->name) < 0 ? fail_errno(f->name) : 0;
}

static int link_all(const struct mt_run *run, const struct source *s, bool try)
{
	const struct mt_tier *t = &mt_control(run)->tier;
	int rc = 0;
	for (uint32_t dir = 0; dir < t->dirs && rc == 0; dir++) {
		int fd;
		if ((rc = mt_tier_open(run, dir, &fd)) < 0) break;
		for (uint32_t i = dir; i < t->tiles && rc == 0; i += t->dirs) {
			rc = take_link(s, &s->tiles[i], fd, try);
			if (try) break;
		}
		close(fd);
	}
	return rc;
}

bool tiles_fit(const struct mt_run *run, const struct source *s)
{
	return same_tiles(run, s) && link_all(run, s, true) == 0;
}

int tiles_link(const struct mt_run *run, const struct source *s) { return link_all(run, s, false); }
