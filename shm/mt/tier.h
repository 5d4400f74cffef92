/* tier.h: lo, m and v of the last units in files on drives (mt-store create --tier).
 *
 * A unit on the tier is cut into tiles of control.tier.tile_elems elements. All tiles make a pass: an update goes
 * through them in one fixed order, so that all tiles that are ever updated have one number q, and q mod tiles is the
 * tile. mt-tier reads tiles from files into slots of the store region, mt-optim updates them there, mt-tier writes
 * them back. Three counters say whose a slot is:
 *
 *     written <= q < loaded: the tile of q is in slot q mod slots. From loaded to updated it is mt-optim's, from
 *     updated to written mt-tier reads it, and from written to loaded mt-tier fills it
 *
 * Only q < written + slots is read. A pass is a step that was applied; skipped steps and evaluations are none.
 *
 * A tile's file is a safetensors header of MT_TILE_HEADER bytes, then what the slot has: arrays, each on a page, and
 * the seal. A file that a checkpoint has linked (st_nlink above 1) is not written again: a new file takes its name. */
#ifndef LIBMT_TIER_H
#define LIBMT_TIER_H

#include <stdbool.h>
#include <stdint.h>

/* clang-format off */

struct mt_run;

#define MT_TIER_DIRS   16       /* directories of a run at most */
#define MT_TIER_PATH   512      /* bytes of a directory's path, NUL included */
#define MT_TILE_PAGE   65536    /* arrays and the seal begin at multiples of it: kernels with such pages map them */
#define MT_TILE_HEADER MT_TILE_PAGE
#define MT_TILE_CHUNK  (1u << 20)    /* transfers and their checksums end at multiples of this in the file */
#define MT_TILE_NAME   40
#define MT_NO_ARRAY    UINT64_MAX

bool mt_tier_any(const struct mt_run *);
bool mt_on_tier(const struct mt_run *, uint64_t off); /* this offset of an array lies behind the store region */

struct mt_tile {
	uint32_t unit, number;      /* number: in the unit */
	uint32_t dir;
	uint64_t first, end;        /* elements of the unit */
	uint64_t lo, m, m_scale, v, v_scale;  /* bytes in the slot to that of element `first`; MT_NO_ARRAY: there is none */
	uint64_t seal, bytes;       /* where the seal is, and the arrays: multiples of MT_TILE_PAGE; of the
				 * whole slot: a multiple of 4096 */
};
struct mt_tile mt_tile(const struct mt_run *, uint32_t tile);   /* of a pass */
uint32_t mt_tile_at(const struct mt_run *, uint32_t unit, uint64_t elem); /* the tile that has it */
void *mt_tile_slot(const struct mt_run *, uint64_t q);
/* Of chunk i of the tile: where it begins in the slot, and its bytes */
uint32_t mt_tile_chunks(const struct mt_tile *);
void mt_tile_chunk(const struct mt_tile *, uint32_t i, uint64_t *from, uint64_t *bytes);

/* The counters: acquire. Count: q becomes q + 1, by compare-and-swap with release; rings the doorbell. false: it was
 * another, or this process has lost its slot */
enum mt_tier_word { MT_LOADED, MT_UPDATED, MT_WRITTEN };
uint64_t mt_tier_at(const struct mt_run *, enum mt_tier_word);
bool mt_tier_count(struct mt_run *, enum mt_tier_word, uint64_t q);
int mt_tier_check(const struct mt_run *);       /* 0; 65: they are in no order that they can have */
int mt_tier_settled(const struct mt_run *);     /* 0; 75: tiles that were updated are not in their files yet */
uint64_t mt_tier_q(const struct mt_run *, uint64_t t, uint32_t tile);     /* of the pass to Adam's t; t > t0 */

/* The seal: which run wrote the tile at which Adam's t, and XXH3 of each chunk. In the slot from `seal` on */
struct mt_seal {
	char     magic[8];          /* "mtSEAL 1" */
	uint8_t  run_id[16];
	uint32_t tile, chunks;
	uint64_t t;
	uint64_t sum;               /* XXH3 of the bytes up to the last chunk's, this field 0 */
	uint64_t chunk[];
};
/* chunk[] is set */
void mt_seal_make(struct mt_seal *, const uint8_t run_id[16], uint32_t tile, uint32_t chunks, uint64_t t);
/* NULL; or what is wrong with it, in words */
const char *mt_seal_wrong(const struct mt_seal *, const uint8_t run_id[16], uint32_t tile, uint32_t chunks, uint64_t t);
/* Whose seal the file has that is read for q, and at which t */
uint64_t mt_seal_expected(const struct mt_run *, uint64_t q, const uint8_t **run_id);

/* Directories, and files in them */
const char *mt_tier_dir(const struct mt_run *, uint32_t dir);
void mt_tier_move(struct mt_run *, uint32_t dir, const char *path); /* for mt-tier: it is there from now on */
int mt_tier_open(const struct mt_run *, uint32_t dir, int *fd);  /* 66 it is gone, 77 not yours */
int mt_tier_open_dir(const char *path, int *fd);
/* Make this run's directory in DIR, and DIR: its path. 73: it is there, and path says where; 78: not on this file
 * system */
int mt_tier_make(const struct mt_run *, const char *dir, char path[MT_TIER_PATH]);
int mt_tier_drop(const char *path);     /* delete a run's directory with its tiles; other files in it stay, 74 */
void mt_tile_name(const struct mt_run *, uint32_t tile, char name[MT_TILE_NAME]);   /* "unit-0012.tile-003" */
void mt_tile_name_of(uint32_t unit, uint32_t number, char name[MT_TILE_NAME]);      /* number: in the unit */
/* The file of a tile; -1: errno, ELOOP where it is a link or not a plain file */
int mt_tile_open(int dirfd, const char *name, int flags);
/* A new file of the tile: zero, its space reserved, with its header, for direct I/O. 74, with errno: there is none */
int mt_tile_create(const struct mt_run *, uint32_t tile, int dirfd, const char *name, int *fd);

/* For who fills, saves or exports a run that nobody trains: maps lo, m and v of all tiles from their files, where mt_at
 * then finds them. fresh: all files are replaced by new ones first, which are zero. Closing the run unmaps them. */
int mt_tier_map(struct mt_run *, bool fresh);
/* After a filling: writes the seals, for Adam's t. The files are this run's */
int mt_tier_seal(struct mt_run *, uint64_t t);

/* clang-format on */

#endif
