/* look.h: what can be known of a run at one moment, for mt-store stat and mt-top. Looking changes nothing: the run is
 * open read-only, and no slot is taken. */
#ifndef MT_LOOK_H
#define MT_LOOK_H

#include <stdbool.h>
#include <stddef.h>

#include "mt/memory.h"
#include "mt/model.h"
#include "mt/stage.h"
#include "mt/step.h"
#include "mt/tier.h"

struct mt_run;

enum {
	LOOK_UNITS = sizeof((struct mt_geometry *)0)->kind_of + 2, /* at most */
	LOOK_COUNTERS = sizeof((struct mt_slot *)0)->counters / sizeof(uint64_t),
};

/* A process, as /proc shows it. Below 0: unknown (another PID namespace, an unreadable /proc, or it has ended) */
struct process {
	double age_s, cpu_s; /* since it started; user and system time */
};

struct look_stage {
	int pid; /* 0: nobody */
	bool dead, stopped;
	char activity[96];
	uint64_t counters[LOOK_COUNTERS];
	struct process process;
	uint64_t gpu[MT_GPU_WORDS]; /* of a live mt-stream on a GPU: see MT_GPU */
	bool gpu_known;             /* some of it */
};

struct look_ring {
	char name[24];
	uint64_t used, slots; /* messages in it, messages that it holds at most */
	bool shown;           /* its stream is there, or it is not empty */
};

/* The unit's version: the committed step; one less, so the step's update has not reached it; or something else */
enum unit_version { UNIT_AT_STEP, UNIT_BEFORE, UNIT_OTHER };
struct look_unit {
	enum unit_version version;
	bool pinned;
};

enum look_array {
	ARRAY_W,
	ARRAY_LO,
	ARRAY_M,
	ARRAY_V,
	ARRAY_SLOTS, /* of the tier */
	ARRAY_G,
	ARRAY_RINGS,
	ARRAY_CONTROL,
	ARRAY_COUNT
};

struct look_tier { /* lo, m and v in files; tiles 0: there are none */
	uint32_t tiles, slots, dirs;
	uint64_t bytes, params;
	uint64_t loaded, updated, written; /* tiles over the run's life */
	double rate;                       /* bytes that the live mt-tier moves in a second of transfers; NAN: unknown */
	char dir[MT_TIER_DIRS][512];       /* printable characters only */
};

struct look {
	double when; /* mt_now() */
	const char *name;
	char family[16], numa[64]; /* printable characters only */
	enum mt_state state;
	uint32_t dtype, grad, moments;        /* enum mt_dtype: of w, of g, of m and v */
	char run_id[33];                      /* hexadecimal digits */
	uint32_t node, nodes;                 /* this node's number, of how many */
	uint32_t optim;                       /* enum mt_optim */
	uint64_t params, trained, with_state; /* with_state: of units of which something is trained */
	uint64_t carried_bytes, step_tokens, bytes, state_bytes, array[ARRAY_COUNT];

	/* Of the last committed step. Its figures: NAN: unknown, or not finite; `known` says which; 0 tokens: unknown */
	uint64_t step, trained_tokens, processed_tokens; /* tokens over the run's life: targets; of documents */
	uint32_t rows;
	bool known;
	struct mt_figures figures;
	double margin, accuracy; /* means over its pairs; NAN: unknown, or its loss is not of pairs */

	/* From the command line of a live mt-step; 0: unknown. The memory of a run does not say how long it will train. */
	uint64_t steps, until;
	struct mt_pace pace; /* means since mt-step started */
	struct mt_work work; /* over the run's life */

	uint32_t k, attempt, micros;
	enum mt_phase phase;
	bool eval;
	uint64_t txn_step;
	uint64_t snap_step, saved, failed;
	enum mt_snap snap;

	struct look_tier tier;

	uint32_t n_units, at_step, before, other, pinned;
	struct look_unit unit[LOOK_UNITS];
	struct look_ring ring[MT_RINGS];
	struct look_stage stage[MT_SLOTS];
};

/* The run is open with MT_RUN_RINGS and MT_RUN_WEIGHTS; name is kept. */
void look_take(struct look *, struct mt_run *, const char *name);
/* The last committed step alone: the fields from `step` to `accuracy` */
void look_step(struct look *, const struct mt_run *);
/* Seconds until step `until`, given the seconds that a step takes; NAN: unknown */
double look_eta(const struct look *, double step_s);
/* Has the run been removed, or made again under its name? */
bool look_run_gone(struct mt_run *, const char *name);

const char *array_word(enum look_array); /* "w", ..., "rings", "control" */
const char *phase_word(enum mt_phase);
const char *snap_word(enum mt_snap);
/* Names of a stage's counters in their order; NULL ends them */
const char *const *counter_words(int slot);
/* The programs that count, and their slots; `name` NULL ends them */
extern const struct counting {
	const char *name; /* without mt- */
	int from, to;
	const char *counters[LOOK_COUNTERS + 1];
} counting[];

/* process.c: pid is that of the slot's word, in this process's PID namespace. false: unknown. */
bool process_look(int pid, uint64_t slot_word, struct process *);
/* The number that a running `program` was given as option --name; false: it was not, or it cannot be read */
bool process_option(int pid, const char *program, const char *name, uint64_t *value);
/* The regular file that it was given as option --name, open to be read; -1: none, or it cannot be opened */
int process_option_file(int pid, const char *program, const char *name);

/* text.c: numbers as people read them. Each returns buf. */
struct text {
	char s[32];
};
struct text text_bytes(uint64_t);                                 /* 16.2 GiB */
struct text text_count(double);                                   /* 12.3 k, 4.88 M, 7.62 B */
struct text text_duration(double seconds);                        /* 7.13 ms, 12.3 s; - for NAN */
struct text text_percent(double);                                 /* 0.123: 12.3 %; - for NAN */
struct text text_time(double seconds);                            /* 1:02:03; - for NAN */
struct text text_number(double, const char *format);              /* - for NAN */
struct text text_counter(const char *name, uint64_t value);       /* by its name: bytes, nanoseconds, or a count */
int text_counter_name(const char *name);                          /* characters of the name without its unit */
void text_clean(char *out, size_t n, const char *in, size_t max); /* anything but printable ASCII becomes '?' */

/* What is known of a GPU: how many texts */
enum { TEXT_GPU = 5 };
struct gpu_text {
	const char *name;
	char value[MT_GPU_HELD];
};
int text_gpu(const uint64_t gpu[MT_GPU_WORDS], struct gpu_text[TEXT_GPU]);

#endif
