/* lib.h: what libmt's files share among themselves. Not for programs. */
#ifndef MT_LIB_H
#define MT_LIB_H

#include <sys/stat.h>

#include "mt/layout.h"
#include "mt/memory.h"

struct mt_control;
struct mt_tile;

enum region { REGION_CONTROL, REGION_RINGS, REGION_STORE, REGION_FILES, REGION_RING };

struct map {
	void *p;
	uint64_t size;
};

#define RING_MAPS MT_RINGS

struct mt_run {
	char name[MT_RUN_NAME + 1];
	int flags;
	int fd; /* of the control region: one open file description, which holds the locks */
	struct mt_control *control;
	struct mt_rings *rings;
	struct map control_map, rings_map, store_map;
	struct map tier_map;  /* mt_tier_map: p belongs to the offset state_bytes */
	uint64_t tier_bytes;  /* of offsets that arrays on the tier have */
	uint64_t state_bytes; /* of the store region: what the units need */
	uint64_t memory;      /* of these, what this node has */
	bool other_boot;      /* a region is of an earlier boot: its pages may be of different ages */
	bool attached;        /* by mt_run_attach: it wants a run that is filled, and says how long it waits */
	double wait_s;
	const volatile int *stop;
	int slot; /* claimed, or -1 */
	uint64_t slot_word;
	char ring_from[RING_MAPS][32], ring_to[RING_MAPS][32];
	int ring_maps;
	uint32_t spare; /* entry of the table of choices that is this stage's and not linked; 0: none */
	int apart;      /* 1 + the mt-stream whose choices this stage makes, apart from others'; 0: all streams' */
};

int region_name_check(const char *run);
/* "mt.UID.RUN.control"; ring: the ring's name for REGION_RING */
struct region_name {
	char text[128];
} region_name(const char *run, enum region, const char *ring);
const char *region_dir(void); /* MT_SHM_DIR or /dev/shm */
bool region_is_mount(void);   /* is it a mount point, which can be mounted anew with other options? */
uint64_t region_free(void);   /* bytes free there; UINT64_MAX: a tmpfs without limit, or unknown */
struct range {
	uint64_t from, end;
}; /* of a region, in bytes */
/* A new region, zero, header filled but for abi. parts: what of it is allocated, n ranges, the first with the header;
 * NULL: all. numa: policy or NULL. maker (or NULL): gets a descriptor that holds the creation lock until region_made.
 * stop (or NULL): it is given up when *stop is not 0. 73 it exists; 75 it was given up, or somebody removes it; 77
 * somebody else's file has its name */
int region_create(const char *name, enum region, uint64_t size, const struct range *parts, uint32_t n,
	const uint8_t run_id[16], const char *numa, struct map *, int *maker, const volatile int *stop);
void region_made(int maker);       /* -1: nothing */
void region_publish(struct map *); /* abi, with release: the region is whole */
/* The same of one that a run gets after its creation. 66: the run was removed; so is the region */
int region_join(struct mt_run *, const char *name, struct map *);
int region_open(const char *name, enum region, bool readonly, const uint8_t *run_id, struct map *);
/* The same, and *fd is the mapping's descriptor, to be closed by the caller; -1 after an error */
int region_open_keep(const char *name, enum region, bool readonly, const uint8_t *run_id, struct map *, int *fd);
/* A half-made control region of this build, of `least` bytes at least */
bool region_map_half(const char *control, uint64_t least, struct map *);
void region_unmap(struct map *);
int region_peek(const char *name, struct mt_header *); /* read its header without mapping it */
bool region_at(const void *); /* does this process have a region mapped there? For signal handlers */
/* A half-made control region: is somebody making it? */
enum region_making {
	REGION_WHOLE /* or not there */,
	REGION_MAKING,
	REGION_ABANDONED
} region_making(const char *control);
/* Become the maker of a run whose own maker is dead, or that has no control region, which is then made, empty: *maker
 * holds the creation lock until region_made. -75 it has one that lives; -66 it is whole, or gone by now */
int region_seize(const char *control, int *maker);
/* run.c: Remove what a mt-store create that was killed has left of a run, which nobody can use: half made, or of this
 * id (NULL: none), empty and without stages; sets its bytes. Waits for a create that is being killed, or at work. 0:
 * nothing half made is left; 75: somebody still makes the run */
int run_remove_half(const char *run, const uint8_t id[16], double wait_s, uint64_t *bytes);
/* A file of the region directory: a regular one of this user's, or one that is left alone */
enum region_owner { REGION_ABSENT, REGION_OURS, REGION_NOT_OURS } region_owner(const char *name, struct stat *);
int region_not_ours(const char *name, const struct stat *); /* the error for such a file: 77, or 65 */
void region_boot_id(uint8_t id[16]);                        /* of this boot; zero: unknown */
bool region_other_boot(const struct mt_header *);
int region_unlink(const char *name); /* 0, or -errno */
/* Is there room for `bytes` more of shared memory? 0 or -71 with need, have and what helps: remedy, if it is not NULL,
 * writes what else than memory does where only this many bytes are there. */
typedef void region_remedy(void *arg, uint64_t have, char *buf, size_t n);
int region_room(uint64_t bytes, region_remedy *remedy, void *arg);

/* tier.c: a tile of n elements: where its arrays are in a slot; unit, number, dir, first and end are 0 */
struct mt_tile tile_shape(bool lo, uint32_t state, uint32_t moments, uint64_t n);
/* drive.c: the directories of a run that is being made, below those that are given, and all files of its tiles; the
 * store's size is set. 73, 74, 78; nothing is left behind then */
int tier_create(struct mt_run *, const char *const *dirs);
void tier_unmap(struct mt_run *);
void tier_remove(const struct mt_run *);    /* its directories, with all files of tiles */
bool tier_valid(const struct mt_control *); /* its paths are strings */

/* nodes.c: 64 no such node, or the run cannot have several nodes, or this many mt-streams on each */
int nodes_check(uint32_t node, uint32_t nodes, uint32_t streams, enum mt_dtype grad);
/* The ranges of the store that the node has, in ascending order, at least one; *v to be freed */
int nodes_ranges(const struct mt_layout *, uint32_t node, uint32_t nodes, struct range **v, uint32_t *n);
uint64_t ranges_bytes(const struct range *v, uint32_t n);
uint64_t nodes_memory(const struct mt_layout *, uint32_t node, uint32_t nodes); /* their sum; 0: no memory to say */

/* stage.c: has another process locked the slot's byte? 1, 0, or -errno. Nobody stands in the slot's word: it is just
 * being taken or left; wait for that up to a second. true: it still is, or unknown */
int stage_byte_held(const struct mt_run *, int slot);
bool stage_in_passing(const struct mt_run *, int slot);
/* mt_stage_alive, but first waits up to a minute for a stage that is being killed: it holds its lock until the kernel
 * has unmapped its memory, which takes seconds for a large store */
bool stage_outlives(const struct mt_run *, int slot);
/* -75, with why mt_stage_life says MT_UNKNOWN and what to do about it */
int stage_unknown(const struct mt_run *, int slot, const char *remedy);
const char *stage_where(const struct mt_run *, int slot); /* "", or: its pid is of another PID namespace */
int choices_check(const struct mt_run *);                 /* 0, or -65: the table of choices is damaged */
/* config.c: the text of a config.json */
int config_parse(const char *text, size_t bytes, struct mt_geometry *);

#define PIECE_ELEMS ((uint64_t)256 * 1024) /* of a gradient piece; models of GPUs have larger ones */
/* Bytes of the rings region, whose header it fills (NULL: there is none yet); piece_elems and nodes are set */
uint64_t rings_lay(const struct mt_control *, struct mt_rings *);
void rings_clear(struct mt_rings *, uint64_t size);
/* Bytes of the region of a ring of one's own, made like the first "grad" or "batch" ring */
uint64_t ring_like_grad(const struct mt_control *);
uint64_t ring_like_batch(const struct mt_control *);

/* fill.c: 0 for a filled run; else why a run in that state has nothing to read: 75 being filled, 69 no weights, 65
 * dirty, 66 removed */
int run_state_error(const struct mt_run *, enum mt_state);
/* run.c: wait until the run that a stage claimed too early is filled. 0, or as mt_run_attach, which said how long */
int run_wait_filled(struct mt_run *);
/* run.c: mt_run_reset's part outside of the control region: rings of one's own are emptied, all is of this boot */
void run_renew(struct mt_run *);

static inline uint64_t round_up(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

#endif
