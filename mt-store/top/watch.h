/* watch.h: looks at a run, one after another: what changed between them. */
#ifndef TOP_WATCH_H
#define TOP_WATCH_H

#include "look.h"

enum { WATCH_POINTS = 500, WATCH_NODES = 16 };

/* One look at a step that was not the step of the look before */
struct point {
	double when; /* mt_now() */
	struct mt_work work;
	double loss;
};

struct past { /* steps before watching began: the newest one's loss, tokens of documents a second; NAN: unknown */
	double loss, speed;
};

struct watch {
	struct mt_run *run;
	const char *name;
	struct look look;    /* the newest one */
	struct look seen;    /* the last step whose metrics were known: its step alone */
	struct mt_pace pace; /* over the last points; where there are too few, the look's */

	/* Oldest first. The first point of all is when watching began, in the middle of a step. */
	struct point point[WATCH_POINTS];
	int n;
	bool began_inside;

	struct past past[WATCH_POINTS]; /* up to the step of the first point; oldest first */
	size_t n_past;
	bool past_known; /* the file was looked up: there was an mt-step */

	double cpu[MT_SLOTS]; /* CPUs in use, between the last two looks; NAN: unknown */
	struct {
		int pid;
		double cpu_s, when;
	} before[MT_SLOTS];

	struct gpu_pace { /* of each mt-stream */
		int pid;
		double when;
		uint64_t tokens, wait_ns; /* then */
		double speed, wait;       /* before: tokens a second; share of the time. NAN: unknown */
	} gpu[MT_STREAMS];

	double node[WATCH_NODES]; /* share of the store on each NUMA node, by samples */
	bool nodes_known;
	double nodes_when;
};

void watch_begin(struct watch *, struct mt_run *, const char *name);
/* Notes a new step. Cheap: to be called several times a second. Not sooner than gap_s after the last point. */
void watch_step(struct watch *, double gap_s);
void watch_look(struct watch *); /* takes a whole look */

/* Losses, and tokens a second, point by point, the past first; returns how many */
int watch_losses(const struct watch *, double out[2 * WATCH_POINTS]);
int watch_speeds(const struct watch *, double out[2 * WATCH_POINTS]);

/* past.c: fill the past from mt-step's file of metrics, once there is an mt-step */
void past_read(struct watch *);

/* nodes.c: share[i]: of the store on NUMA node i. false: it cannot be found out */
bool nodes_sample(struct mt_run *, uint64_t state_bytes, double share[WATCH_NODES]);

#endif
