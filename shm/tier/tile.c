/* tile.c: one tile from its file into its slot, or back.
 *
 * A file is written only if it has no second link: else a checkpoint has it, too. mt-ckpt links files of units that are
 * pinned, and mt-tier writes a tile only after it was updated, which waits for the pin. So no link comes between the
 * look at st_nlink and the last byte. Until a write is counted, the slot has the tile: a write that fails or is cut
 * short by a kill loses nothing, and is made again.
 *
 *     what fails                        then
 *     read: an error, or a wrong seal   once more; then the tile is lost: the run is dirty, 74
 *     read: the file is too short       lost: 65
 *     write: an error                   once more, then to a new file; then mt-tier ends with 74, nothing is lost
 *     write: no room                    waits for room
 *     neither the drive's fault         (memory, descriptors) once more, then mt-tier ends with 71, nothing is lost */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "tier.h"

/* ---- transfers */

/* Direct I/O wants whole pages: what a short transfer has moved of a page is moved again. */
static struct fault move(struct tier *t, const struct job *j, uint64_t from, uint64_t bytes)
{
	const int most = 16; /* transfers that end within the same page */
	uint64_t at = MT_TILE_HEADER + from, n = 0;
	for (int tries = 0; n < bytes; tries++) {
		if (!mt_stage_mine(t->run)) return (struct fault){.what = "slot", .slot = true};
		void *p = j->slot + from + n;
		ssize_t more = j->write ? pwrite(j->fd, p, bytes - n, (off_t)(at + n))
								: pread(j->fd, p, bytes - n, (off_t)(at + n));
		if (more < 0 && errno == EINTR) continue;
		if (more < 0) return (struct fault){.what = j->write ? "writing" : "reading", .err = errno, .at = at + n};
		if ((uint64_t)more < bytes - n) mt_count(t->run, MT_TIER_repeated_transfers, 1);
		bool none = !more || (more < 4096 && tries == most);
		if (none && !j->write) return (struct fault){.what = "the file ends there", .at = at + n, .cut = true};
		if (none) return (struct fault){.what = "writing", .err = EIO, .at = at + n};
		if (more >= 4096) tries = 0;
		n += (uint64_t)(more - more % 4096);
	}
	mt_count(t->run, j->write ? MT_TIER_bytes_written : MT_TIER_bytes_read, bytes);
	return (struct fault){0};
}

static struct mt_seal *seal_of(const struct job *j) { return (void *)(j->slot + j->tile.seal); }

static struct fault move_seal(struct tier *t, const struct job *j)
{
	return move(t, j, j->tile.seal, j->tile.bytes - j->tile.seal);
}

static struct fault move_chunk(struct tier *t, struct job *j, uint32_t i)
{
	uint64_t from, bytes;
	mt_tile_chunk(&j->tile, i, &from, &bytes);
	if (j->write) seal_of(j)->chunk[i] = XXH3_64bits(j->slot + from, bytes);
	struct fault f = move(t, j, from, bytes);
	if (!j->write && !f.what) j->sum[i] = XXH3_64bits(j->slot + from, bytes);
	return f;
}

/* ---- files */

static void new_name(const struct job *j, char name[MT_TILE_NAME + 4])
{
	snprintf(name, MT_TILE_NAME + 4, "%s.new", j->name);
}

static struct fault make_new(struct tier *t, struct job *j)
{
	char name[MT_TILE_NAME + 4];
	int dir = t->fds[j->tile.dir];
	new_name(j, name);
	if (unlinkat(dir, name, 0) && errno != ENOENT) return (struct fault){.what = "deleting its .new", .err = errno};
	errno = 0;
	if (mt_tile_create(t->run, (uint32_t)(j->q % t->control->tier.tiles), dir, name, &j->fd) < 0)
		return (struct fault){.what = "making a new file", .err = errno ? errno : EIO};
	mt_count(t->run, MT_TIER_new_files, 1);
	return (struct fault){0};
}

static struct fault open_file(struct tier *t, struct job *j)
{
	struct stat st;
	if (j->fresh) return make_new(t, j);
	j->fd = mt_tile_open(t->fds[j->tile.dir], j->name, (j->write ? O_RDWR : O_RDONLY) | O_DIRECT);
	if (j->fd < 0 && errno == ENOENT && j->write) {
		j->fresh = true;
		return make_new(t, j);
	}
	if (j->fd < 0)
		return (struct fault){.what = errno == ELOOP ? "is a link or not a plain file" : "opening", .err = errno};
	if (!j->write) return (struct fault){0};
	if (fstat(j->fd, &st)) return (struct fault){.what = "looking at its links", .err = errno};
	if (st.st_nlink == 1) return (struct fault){0};
	close(j->fd);
	j->fd = -1;
	j->fresh = true;
	return make_new(t, j);
}

static struct fault compare(struct tier *t, const struct job *j)
{
	const uint8_t *run_id;
	uint64_t at = mt_seal_expected(t->run, j->q, &run_id);
	const struct mt_seal *s = seal_of(j);
	const char *wrong = mt_seal_wrong(s, run_id, (uint32_t)(j->q % t->control->tier.tiles), j->chunks, at);
	if (wrong) return (struct fault){.what = wrong, .at = MT_TILE_HEADER + j->tile.seal};
	for (uint32_t i = 0; i < j->chunks; i++)
		if (s->chunk[i] != j->sum[i])
			return (struct fault){.what = "is damaged", .at = i ? (uint64_t)i * MT_TILE_CHUNK : MT_TILE_HEADER};
	return (struct fault){0};
}

static struct fault take_name(struct tier *t, const struct job *j)
{
	char name[MT_TILE_NAME + 4];
	int dir = t->fds[j->tile.dir];
	if (!j->fresh) return (struct fault){0};
	if (!mt_stage_mine(t->run)) return (struct fault){.what = "slot", .slot = true};
	new_name(j, name);
	if (!renameat(dir, name, dir, j->name)) return (struct fault){0};
	return (struct fault){.what = "renaming its .new", .err = errno};
}

static void close_file(struct job *j)
{
	if (j->fd >= 0) close(j->fd);
	j->fd = -1;
}

/* ---- steps */

static void make_seal(struct tier *t, const struct job *j)
{
	uint64_t tiles = t->control->tier.tiles, sums = sizeof(struct mt_seal) + j->chunks * sizeof(uint64_t);
	memset(j->slot + j->tile.seal + sums, 0, j->tile.bytes - j->tile.seal - sums);
	mt_seal_make(seal_of(j), t->control->h.run_id, (uint32_t)(j->q % tiles), j->chunks,
		t->control->tier.t0 + j->q / tiles + 1);
}

struct fault job_transfer(struct tier *t, struct job *j, uint32_t transfer)
{
	if (!mt_stage_mine(t->run)) return (struct fault){.what = "slot", .slot = true};
	switch (j->step) {
	case JOB_OPEN: return open_file(t, j);
	case JOB_MOVE: return transfer < j->chunks ? move_chunk(t, j, transfer) : move_seal(t, j);
	case JOB_SEAL: make_seal(t, j); return move_seal(t, j);
	default: return j->write ? take_name(t, j) : compare(t, j);
	}
}

static void go_to(struct job *j, enum step step)
{
	j->step = step;
	j->next = 0;
	j->transfers = step == JOB_MOVE ? j->chunks + !j->write : 1;
	j->fault = (struct fault){0};
}

void job_begin(struct tier *t, struct job *j, uint64_t q, bool write)
{
	uint32_t tile = (uint32_t)(q % t->control->tier.tiles);
	uint64_t *sum = j->sum;
	*j = (struct job){.q = q,
		.write = write,
		.tile = mt_tile(t->run, tile),
		.slot = mt_tile_slot(t->run, q),
		.fd = -1,
		.sum = sum};
	j->chunks = mt_tile_chunks(&j->tile);
	mt_tile_name(t->run, tile, j->name);
	go_to(j, JOB_OPEN);
}

static bool no_room(int err) { return err == ENOSPC || err == EDQUOT; }
static bool no_memory(int err) { return err == ENOMEM || err == EMFILE || err == ENFILE || err == EAGAIN; }

/* Errors that say nothing about what the file holds: of the whole drive, or of this process */
static bool may_be_there(int err)
{
	return no_memory(err) || err == ENODEV || err == ENXIO || err == ESHUTDOWN || err == EACCES || err == EPERM ||
		err == ESTALE || err == EINVAL || err == ELOOP;
}

static void wait_for_room(struct tier *t, struct job *j)
{
	const double again = 1, every = 10;
	double now = mt_now();
	if (now - j->reported >= every) {
		j->reported = now;
		mt_say("no room in %s for %s: waits until there is", mt_tier_dir(t->run, j->tile.dir), j->name);
	}
	j->wait_until = now + again;
	go_to(j, JOB_OPEN);
}

static void fail(struct tier *t, struct job *j)
{
	const struct fault *f = &j->fault;
	const char *colon = f->err ? ": " : "", *err = f->err ? strerror(f->err) : "";
	unsigned long long at = f->at;
	struct stat st = {0};
	char path[MT_TIER_PATH + MT_TILE_NAME], where[40] = "";
	snprintf(path, sizeof path, "%s/%s", mt_tier_dir(t->run, j->tile.dir), j->name);
	if (at) snprintf(where, sizeof where, ", byte %llu", at);
	j->step = JOB_FAILED;
	j->ex = no_memory(f->err) ? MT_EX_NOMEM : f->cut ? MT_EX_DATA : MT_EX_IO;
	j->lost = !j->write && !may_be_there(f->err);
	if (j->lost && !fstatat(t->fds[j->tile.dir], j->name, &st, AT_SYMLINK_NOFOLLOW) && st.st_nlink > 1)
		snprintf(j->why, sizeof j->why,
			"%s%s: %s%s%s: this tile is lost, and every checkpoint that has this file (inode %llu); load another one",
			path, where, f->what, colon, err, (unsigned long long)st.st_ino);
	else if (j->lost)
		snprintf(j->why, sizeof j->why, "%s%s: %s%s%s: this tile is lost; load a checkpoint", path, where, f->what,
			colon, err);
	else
		snprintf(j->why, sizeof j->why, "%s%s: %s%s%s: nothing is lost; start mt-tier again when this is mended%s",
			path, where, f->what, colon, err, j->write ? ", or with --dir OLD=NEW" : "");
}

static void try_again(struct tier *t, struct job *j)
{
	int err = j->fault.err;
	close_file(j);
	if (j->fault.slot) {
		j->step = JOB_FAILED;
		j->ex = MT_EX_BUSY;
	} else if (j->write && no_room(err)) wait_for_room(t, j);
	else if (j->fault.cut || j->tries == (j->write && !no_memory(err) ? 2 : 1)) fail(t, j);
	else {
		mt_count(t->run, MT_TIER_repeated_transfers, 1);
		j->tries++;
		if (j->write && j->tries == 2) j->fresh = true;
		go_to(j, JOB_OPEN);
	}
}

void job_next(struct tier *t, struct job *j)
{
	if (j->fault.what) return try_again(t, j);
	switch (j->step) {
	case JOB_OPEN: return go_to(j, JOB_MOVE);
	case JOB_MOVE: return go_to(j, j->write ? JOB_SEAL : JOB_END);
	case JOB_SEAL: return go_to(j, JOB_END);
	default: close_file(j); j->step = JOB_DONE;
	}
}
