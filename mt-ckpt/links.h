/* links.h: the tiles of a run with a tier in a checkpoint that serve writes. Errors are as in hf/hf.h. */
#ifndef MT_CKPT_LINKS_H
#define MT_CKPT_LINKS_H

#include "ckpt.h"
#include "mt/tier.h"

struct links {
	struct mt_run *run;
	bool copy; /* --copy-tier */
	int fds[MT_TIER_DIRS];
	uint32_t dirs; /* of the run's tier; 0: it has none, and all below does nothing */
	/* of the save: */
	const struct out_dir *dir;
	uint64_t step, t;
	const uint8_t *run_id; /* in the tiles' seals */
	uint64_t *sums;        /* in the seal of each tile */
};

/* 66: a directory of the tier is gone; 78: links cannot be in dirfd. Deletes what a dead saver has left */
int links_open(struct links *, struct mt_run *, int dirfd, const char *path, bool copy);
void links_close(struct links *);
/* A save of the pinned step, with Adam's t. 74: too little room on the disk. Drop it after an error, too */
int links_begin(struct links *, const struct out_dir *, uint64_t step, uint64_t t);
int links_unit(const struct links *, uint32_t unit); /* its tiles, when they are written. Any thread may call it */
int links_end(struct links *, struct run_json *); /* makes all durable; fills json->tier, whose files are to be freed */
void links_drop(struct links *);

#endif
