/* watch.c: speed, CPU use and the history of loss and speed, from looks at different times. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "os.h"
#include "watch.h"

#define NODES_EVERY_S 60.0 /* pages hardly move */
#define GPU_EVERY_S 5.0    /* a micro-batch ends more often, */
#define GPU_IDLE_S 60.0    /* or at least now and then */
enum { MEAN_OF = 10 };     /* steps' points that make up the shown speed */

static void add_point(struct watch *w, const struct look *l, double now)
{
	if (w->n == WATCH_POINTS) {
		memmove(w->point, w->point + 1, (WATCH_POINTS - 1) * sizeof *w->point);
		w->n--;
		w->began_inside = false;
	}
	w->point[w->n++] = (struct point){now, l->work, l->figures.loss};
}

void watch_begin(struct watch *w, struct mt_run *run, const char *name)
{
	*w = (struct watch){.run = run, .name = name, .began_inside = true, .nodes_when = -NODES_EVERY_S};
	watch_look(w);
	add_point(w, &w->look, w->look.when);
	past_read(w);
}

void watch_step(struct watch *w, double gap_s)
{
	const struct point *last = &w->point[w->n - 1];
	double now = mt_now();
	static struct look l; /* its step alone */
	look_step(&l, w->run);
	if (l.step < last->work.steps) { /* filled again: what was seen is another training's */
		w->n = 0;
		w->began_inside = true;
		w->seen.known = false;
		w->n_past = 0;
		w->past_known = false;
		add_point(w, &l, now);
	} else if (l.step > last->work.steps && now - last->when >= gap_s) add_point(w, &l, now);
	if (l.known) w->seen = l;
}

static void look_at_cpu(struct watch *w)
{
	for (int slot = 0; slot < MT_SLOTS; slot++) {
		const struct look_stage *s = &w->look.stage[slot];
		const struct process *p = &s->process;
		double since = w->look.when - w->before[slot].when;
		w->cpu[slot] = NAN;
		if (!s->pid || p->cpu_s < 0) {
			w->before[slot].pid = 0;
			continue;
		}
		bool same = w->before[slot].pid == s->pid && since > 0;
		if (same) w->cpu[slot] = (p->cpu_s - w->before[slot].cpu_s) / since;
		else if (p->age_s > 0) w->cpu[slot] = p->cpu_s / p->age_s;
		w->before[slot].pid = s->pid;
		w->before[slot].cpu_s = p->cpu_s;
		w->before[slot].when = w->look.when;
	}
}

/* Tokens are counted when a micro-batch is done: so over several seconds; at first, since the mt-stream started */
static void look_at_gpus(struct watch *w)
{
	for (int i = 0; i < MT_STREAMS; i++) {
		const struct look_stage *s = &w->look.stage[MT_STREAM + i];
		uint64_t tokens = s->counters[MT_STREAM_tokens];
		uint64_t wait_ns = s->counters[MT_STREAM_wait_ns] + s->counters[MT_STREAM_update_wait_ns];
		struct gpu_pace was = w->gpu[i];
		if (was.pid != s->pid) was = (struct gpu_pace){.when = w->look.when - s->process.age_s};
		double since = w->look.when - was.when;
		if (was.pid && since < (tokens == was.tokens ? GPU_IDLE_S : GPU_EVERY_S)) continue;
		w->gpu[i] = (struct gpu_pace){s->pid, w->look.when, tokens, wait_ns,
			since > 0 ? (double)(tokens - was.tokens) / since : NAN,
			since > 0 ? 1e-9 * (double)(wait_ns - was.wait_ns) / since : NAN};
	}
}

/* An evaluation takes the entry of the step before it: from then on only this keeps the step's metrics. */
static void keep_figures(struct watch *w)
{
	struct look *l = &w->look;
	const struct look *seen = &w->seen;
	if (l->known || !seen->known || seen->step != l->step) return;
	l->known = true;
	l->figures = seen->figures;
	l->margin = seen->margin;
	l->accuracy = seen->accuracy;
}

/* The points that the shown speed is made of; false: too few */
static bool span(const struct watch *w, const struct point **from, const struct point **to)
{
	int first = w->began_inside;
	if (w->n - first < 2) return false;
	if (w->n - first > MEAN_OF + 1) first = w->n - MEAN_OF - 1;
	*from = &w->point[first];
	*to = &w->point[w->n - 1];
	return (*to)->when > (*from)->when;
}

void watch_look(struct watch *w)
{
	const struct point *from, *to;
	look_take(&w->look, w->run, w->name);
	w->pace = w->look.pace;
	if (span(w, &from, &to)) w->pace = mt_pace(w->run, to->when - from->when, from->work, to->work, w->look.rows);
	keep_figures(w);
	look_at_cpu(w);
	look_at_gpus(w);
	past_read(w);
	if (w->look.when - w->nodes_when < NODES_EVERY_S) return;
	w->nodes_known = nodes_sample(w->run, w->look.state_bytes, w->node);
	w->nodes_when = w->look.when;
}

int watch_losses(const struct watch *w, double out[2 * WATCH_POINTS])
{
	int n = 0;
	for (size_t i = 0; i < w->n_past; i++) out[n++] = w->past[i].loss;
	/* the past ends with the step of the first point of all */
	for (int i = n && w->began_inside; i < w->n; i++) out[n++] = w->point[i].loss;
	return n;
}

int watch_speeds(const struct watch *w, double out[2 * WATCH_POINTS])
{
	int n = 0;
	for (size_t i = 0; i < w->n_past; i++) out[n++] = w->past[i].speed;
	for (int i = 1 + w->began_inside; i < w->n; i++)
		out[n++] = (double)(w->point[i].work.tokens - w->point[i - 1].work.tokens) /
			(w->point[i].when - w->point[i - 1].when);
	return n;
}
