/* metrics.h: a step's line of metrics. */
#ifndef METRICS_H
#define METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mt/documents.h"
#include "mt/memory.h"
#include "mt/stage.h"
#include "mt/step.h"

struct mt_geometry;

struct evaluation {
	double loss;
	double sums[MT_STEP_FIGURES]; /* of its objective */
};

/* What an mt-stream has done since the last line */
struct stream_work {
	uint64_t tokens, wait_ns, update_wait_ns; /* its counters */
	uint64_t gpu[MT_GPU_WORDS];               /* now; energy: since */
	bool on_gpu;                              /* some of these are known */
};

struct metrics {
	struct mt_figures figures;     /* a line of an evaluation alone has only `step` of them */
	const struct mt_geometry *geo; /* says which terms the model's loss has; of a trained step */
	bool trained;                  /* false: a line of an evaluation alone */
	struct mt_pace pace;           /* of the step */
	enum mt_objective_kind loss;
	double sums[MT_STEP_FIGURES];   /* of the step's objective; all 0: not known */
	const struct stream_work *work; /* [MT_STREAMS] in the step; NULL: not known */
	bool evaluated;
	struct evaluation evaluation;
};

/* One JSON object and a newline in one write. A failed write is reported once, and training goes on: a closed
 * stdout is the reader's choice; any other failure makes metrics_failed true. */
void metrics_write(const struct metrics *);
bool metrics_failed(void);
/* A figure of a loss, of the sums of a step; NaN: not known, or the loss has none of this key */
double metrics_figure(enum mt_objective_kind, const double *sums, const char *key);
/* --metrics FILE: metrics_write writes there too. Removes its lines of steps after `step`; all lines if the run is
 * fresh and at step 0. own: refuse FILE as mt_open_own does. 0, or minus an exit code. A failed write is reported once,
 * and its lines are written with a later one.
 * metrics_file_failed tries a last time, and is true if some are left. */
int metrics_file_open(const char *path, bool own, uint64_t step, bool fresh);
void metrics_file_write(const struct metrics *, const char *line, size_t n);
bool metrics_file_failed(void);
/* The shortest decimal that reads back as x, or null. */
void metrics_number(char *buf, unsigned n, double x);

#endif
