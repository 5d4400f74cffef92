/* run.h: to open a run, and what it holds. */
#ifndef LIBMT_RUN_H
#define LIBMT_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"
#include "memory.h"

/* clang-format off */

struct mt_run;                  /* a process's handle on a run */
struct mt_control;
struct mt_partition;

enum {                          /* mt_run_open flags */
	MT_RUN_CONTROL = 0,         /* the control region alone */
	MT_RUN_RINGS = 1, MT_RUN_WEIGHTS = 2 /* the store, mapped read-write */, MT_RUN_READONLY = 4 /* all read-only */,
};
/* 64 bad name, 66 no such run, 76 other ABI version or half made, 77 not yours, 65 damaged. */
int mt_run_open(struct mt_run **, const char *name, int flags);
void mt_run_close(struct mt_run *);
/* Wait until the run exists: wait_s seconds (< 0: 10), but without limit while its creator makes it. When *stop is set
 * (by a signal handler): -MT_EX_BUSY. Errors as mt_run_open; 76: it is half made, and its creator is dead. */
int mt_run_await(struct mt_run **, const char *name, int flags, double wait_s, const volatile int *stop);
/* The same, and until it is filled; for stages. For weights wait_s seconds (< 0: without limit), while a run is being
 * filled as long as it takes. 69 no weights came in time; 65 the store is dirty, or of an earlier boot. */
int mt_run_attach(struct mt_run **, const char *name, int flags, double wait_s, const volatile int *stop);
int mt_run_remove(const char *name, bool force);    /* waits for stages that are being killed. 66, 75 live stages, 77 */
/* fn for each of this user's runs, also half-made ones; a non-zero return ends it and is returned */
int mt_run_list(int (*fn)(const char *name, void *arg), void *arg);

/* const: the function changes neither the handle nor the run's words; the shared memory that it points to may change */
struct mt_control *mt_control(const struct mt_run *);
const struct mt_geometry *mt_geometry(const struct mt_run *);
struct mt_unit *mt_unit(const struct mt_run *, uint32_t unit);
struct mt_tensor *mt_tensor(const struct mt_run *, uint32_t i);
struct mt_partition *mt_partitions(const struct mt_run *);
const char *mt_config_text(const struct mt_run *, size_t *bytes);
void *mt_at(const struct mt_run *, uint64_t off); /* pointer into the store region */
uint32_t mt_node(const struct mt_run *);        /* this node's number, and how many the run has */
uint32_t mt_nodes(const struct mt_run *);
/* mt-streams are numbered over all nodes. How many numbers each node has, from mt_node times as many on; and all */
uint32_t mt_node_streams(const struct mt_run *);
uint32_t mt_streams(const struct mt_run *);
/* What this node owns of a unit. lo, m, v and g of the rest are holes in the store region: nobody touches them. --state
 * none: nothing, there are no holes */
struct mt_part mt_part(const struct mt_run *, uint32_t unit);
uint64_t mt_run_trained(const struct mt_run *); /* parameters that are trained */
uint64_t mt_store_memory(const struct mt_run *); /* bytes of the store region that this node has */
uint64_t mt_run_bytes(const struct mt_run *); /* of all regions */
enum mt_state mt_run_state(const struct mt_run *);
void mt_run_set_state(struct mt_run *, enum mt_state);   /* release, rings the doorbell; gone is for good */
/* 0; 65: the store is dirty, or of an earlier boot, and only a load helps. For stages, wherever they wait */
int mt_run_dirty(const struct mt_run *);
/* 0; 78: it was created with --state none, of weights alone. For what updates or saves state */
int mt_run_has_state(const struct mt_run *);
int mt_run_idle(const struct mt_run *);             /* 0; 75: a stage other than mt-store or a filler is at work */
/* For init and load: claim MT_FILL and begin to fill. 75: a stage is at work, and the state is as it was */
int mt_fill_claim(struct mt_run *);
/* Filling, by init and load, which hold MT_FILL: the state is filling and control.fills odd from begin to end; a filler
 * that dies leaves them so. end: the state that stands then (MT_FILLING: what stood before is still half filled). */
void mt_fill_begin(struct mt_run *);
void mt_fill_end(struct mt_run *, enum mt_state);
/* control.fills, acquire. Even, and the same after reading as before: no filling was at work meanwhile. */
uint64_t mt_fills(const struct mt_run *);
/* Reset transactions, rings, journal, versions, pins, snapshot and record to "filled at `step`"; state is not touched.
 * For init and load, which hold MT_FILL while the state is filling. */
void mt_run_reset(struct mt_run *, uint64_t step, uint64_t t, const struct mt_position *);

/* Files kept with a run (tokenizer.json, ...): what `load` found beside the weights. Region mt.UID.RUN.files. */
struct mt_file { char name[64]; uint64_t off, bytes; };
int mt_files_put(struct mt_run *, const struct mt_file *, const void *const *data, uint32_t n);  /* replaces all */
/* fn for each file; data is valid during the call. No files region: nothing is called. 1, and a message: nor with a
 * file of another user's in its place. */
int mt_files_each(const struct mt_run *, int (*fn)(const char *name, const void *data, size_t bytes, void *arg),
	void *arg);

/* clang-format on */

#endif
