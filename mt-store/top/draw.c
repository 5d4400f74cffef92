/* draw.c: a run as a page, the most important first: what does not fit below is left out. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../store.h"
#include "draw.h"
#include "mt/stage.h"

enum {
	WIDE = 60,   /* minimum columns for a row's optional fields */
	FOOTER = 16, /* rows from which the keys are shown */
	RING_COLS = 27,
	CHART_ROWS = 8, /* at most */
	CHART_LABEL = 11,
};

/* ---- the run */

static void draw_title(struct screen *s, const struct look *l, const struct view *v)
{
	char right[32];
	snprintf(right, sizeof right, "%severy %g s ", v->paused ? "paused, " : "", v->interval);
	screen_text(s, STYLE_TITLE, " mt-top  %s  %s  ", l->name, state_word(l->state));
	while (s->col < s->cols - (int)strlen(right)) screen_char(s, STYLE_TITLE, L' ');
	screen_text(s, STYLE_TITLE, "%s", right);
	screen_next(s);
}

static enum style state_style(const struct look *l) { return l->state == MT_FILLED ? STYLE_GOOD : STYLE_BAD; }

static void draw_step(struct screen *s, const struct watch *w)
{
	const struct look *l = &w->look;
	screen_text(s, STYLE_LABEL, "step ");
	screen_text(s, state_style(l), "%llu", (unsigned long long)l->step);
	if (l->until) screen_text(s, STYLE_PLAIN, " of %llu", (unsigned long long)l->until);
	screen_text(s, STYLE_LABEL, "  ETA ");
	screen_text(s, STYLE_PLAIN, "%s  ", text_time(look_eta(l, w->pace.step_s)).s);
	if (l->until && s->cols - s->col >= 20) {
		screen_bar(s, STYLE_GOOD, (double)l->step, (double)l->until, s->cols - s->col - 8);
		screen_text(s, STYLE_PLAIN, " %5.1f %%", 100 * fmin((double)l->step / (double)l->until, 1));
	}
	screen_next(s);
}

static void pair(struct screen *s, const char *label, const char *value)
{
	screen_text(s, STYLE_LABEL, "%s ", label);
	screen_text(s, STYLE_PLAIN, "%s  ", value);
}

static void draw_figures(struct screen *s, const struct watch *w)
{
	const struct look *l = &w->look;
	pair(s, "loss", text_number(l->figures.loss, "%.4f").s);
	if (!isnan(l->accuracy)) {
		pair(s, "margin", text_number(l->margin, "%.4f").s);
		pair(s, "accuracy", text_number(l->accuracy, "%.2f").s);
	}
	pair(s, "norm", text_number(l->figures.norm, "%.3g").s);
	pair(s, "lr", text_number(l->figures.lr, "%.3g").s);
	if (l->figures.skipped) screen_text(s, STYLE_BAD, "skipped");
	screen_next(s);
#define DRAW_PACE(field, key, format, always, before, text, after, ...) \
	if (always || !isnan(w->pace.field)) { \
		screen_text(s, STYLE_LABEL, "%s", before); \
		screen_text(s, STYLE_PLAIN, "%s", text_##text(w->pace.field).s); \
		screen_text(s, STYLE_LABEL, "%s", after); \
	}
	MT_PACE(DRAW_PACE)
	screen_text(s, STYLE_PLAIN, "%s", text_count((double)l->trained_tokens).s);
	screen_text(s, STYLE_LABEL, " targets trained");
	screen_next(s);
}

static void draw_model(struct screen *s, const struct look *l)
{
	screen_text(s, STYLE_LABEL, "model ");
	screen_text(s, STYLE_PLAIN, "%s, %s parameters, %s, gradients %s%s%s", l->family, text_count((double)l->params).s,
		mt_dtype_name(l->dtype), mt_dtype_name(l->grad), optim_words(l->optim), moments_words(l->moments));
	screen_next(s);
}

/* ---- stages and rings */

static void draw_stage(struct screen *s, const struct watch *w, int slot)
{
	const struct look_stage *g = &w->look.stage[slot];
	const char *condition = g->dead ? "dead, was: " : g->stopped ? "stopped (state T), was: " : "";
	enum style style = *condition ? STYLE_BAD : strncmp(g->activity, "waits", 5) == 0 ? STYLE_WAIT : STYLE_GOOD;
	if (s->cols >= WIDE) screen_text(s, STYLE_PLAIN, "%-14s %7d ", mt_stage_name(slot), g->pid);
	else screen_text(s, STYLE_PLAIN, "%-11.11s ", mt_stage_name(slot));
	screen_text(s, STYLE_PLAIN, "%4s ", text_number(100 * w->cpu[slot], "%.0f").s);
	screen_text(s, style, "%s%s", condition, g->activity);
	screen_next(s);
}

static void draw_stages(struct screen *s, const struct watch *w)
{
	int n = 0;
	for (int slot = 0; slot < MT_SLOTS; slot++) n += w->look.stage[slot].pid != 0;
	if (!n) screen_text(s, STYLE_LABEL, "no stages");
	else if (s->cols >= WIDE) screen_text(s, STYLE_LABEL, "%-14s %7s %4s ACTIVITY", "STAGE", "PID", "CPU%");
	else screen_text(s, STYLE_LABEL, "%-11s %4s ACTIVITY", "STAGE", "CPU%");
	screen_next(s);
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (w->look.stage[slot].pid) draw_stage(s, w, slot);
}

static void draw_rings(struct screen *s, const struct look *l)
{
	screen_text(s, STYLE_LABEL, "%s", s->cols < WIDE ? "RINGS" : "RINGS (messages that wait)");
	screen_next(s);
	for (int i = 0, at = 0; i < MT_RINGS; i++) {
		const struct look_ring *r = &l->ring[i];
		if (!r->shown) continue;
		if (at && at + RING_COLS > s->cols) {
			screen_next(s);
			at = 0;
		}
		screen_column(s, at);
		screen_text(s, STYLE_PLAIN, "%-7.7s ", r->name);
		screen_bar(s, r->used >= r->slots ? STYLE_WAIT : STYLE_GOOD, (double)r->used, (double)r->slots, 10);
		screen_text(s, STYLE_PLAIN, " %llu/%llu", (unsigned long long)(r->used < 9999 ? r->used : 9999),
			(unsigned long long)(r->slots < 9999 ? r->slots : 9999));
		at += RING_COLS;
	}
	screen_next(s);
}

/* An item of a list comes: on the next row if this one has no room for it */
static void room_for(struct screen *s, const char *name, const char *value)
{
	enum { INDENT = 2 };
	if (s->col + 2 + (int)strlen(name) + (int)strlen(value) > s->cols && s->col > INDENT) {
		screen_next(s);
		screen_column(s, INDENT - 1);
	}
}

static void draw_gpus(struct screen *s, const struct watch *w)
{
	struct gpu_text text[TEXT_GPU];
	for (int i = 0; i < MT_STREAMS; i++) {
		int n = text_gpu(w->look.stage[MT_STREAM + i].gpu, text);
		if (!n) continue;
		screen_text(s, STYLE_LABEL, "GPU of mt-stream %d  ", i);
		pair(s, "tokens/s", text_count(w->gpu[i].speed).s);
		pair(s, "wait", text_percent(w->gpu[i].wait).s);
		for (int k = 0; k < n; k++) {
			room_for(s, text[k].name, text[k].value);
			pair(s, text[k].name, text[k].value);
		}
		screen_next(s);
	}
}

/* Tiles in slots: those that are read for the update, and those that it has done and that are written */
static void draw_tier(struct screen *s, const struct look *l)
{
	const struct look_tier *t = &l->tier;
	if (!t->tiles) return;
	screen_text(s, STYLE_LABEL, "TIER ");
	screen_text(s, STYLE_PLAIN, "%s on drives; slots: %llu read, %llu to write, of %u; %s GB/s", text_bytes(t->bytes).s,
		(unsigned long long)(t->loaded - t->updated), (unsigned long long)(t->updated - t->written), t->slots,
		text_number(t->rate / 1e9, "%.2f").s);
	screen_next(s);
}

/* ---- units */

static const struct {
	wchar_t utf8, ascii;
	enum style style;
} marks[] = {
	[UNIT_AT_STEP] = {L'█', L'=', STYLE_GOOD},
	[UNIT_BEFORE] = {L'░', L'-', STYLE_WAIT},
	[UNIT_OTHER] = {L'?', L'?', STYLE_BAD},
};

static void draw_mark(struct screen *s, enum unit_version v)
{
	screen_char(s, marks[v].style, s->utf8 ? marks[v].utf8 : marks[v].ascii);
}

/* One column a unit, or as many units a column as there must be: the one that is behind counts. */
static void draw_strip(struct screen *s, const struct look *l)
{
	uint32_t cols = (uint32_t)s->cols, a_column = (l->n_units + cols - 1) / cols;
	for (uint32_t from = 0; a_column && from < l->n_units; from += a_column) {
		enum unit_version worst = UNIT_AT_STEP;
		bool pinned = false;
		for (uint32_t u = from; u < from + a_column && u < l->n_units; u++) {
			if (l->unit[u].version > worst) worst = l->unit[u].version;
			pinned |= l->unit[u].pinned;
		}
		if (pinned && worst != UNIT_OTHER) screen_char(s, STYLE_WAIT, L'p');
		else draw_mark(s, worst);
	}
	screen_next(s);
}

static void draw_units(struct screen *s, const struct look *l)
{
	screen_text(s, STYLE_LABEL, "UNITS ");
	draw_mark(s, UNIT_AT_STEP);
	screen_text(s, STYLE_PLAIN, " %u at step %llu", l->at_step, (unsigned long long)l->step);
	if (l->step) {
		screen_text(s, STYLE_PLAIN, "  ");
		draw_mark(s, UNIT_BEFORE);
		screen_text(s, STYLE_PLAIN, " %u at %llu", l->before, (unsigned long long)l->step - 1);
	}
	screen_text(s, STYLE_PLAIN, "  p %u pinned", l->pinned);
	if (l->other) screen_text(s, STYLE_BAD, "  ? %u at another version", l->other);
	if (l->state == MT_DIRTY) screen_text(s, STYLE_BAD, "  dirty: load a checkpoint");
	screen_next(s);
	draw_strip(s, l);
}

static void draw_decisions(struct screen *s, const struct look *l)
{
	screen_text(s, STYLE_LABEL, "transaction ");
	screen_text(s, STYLE_PLAIN, "%u: %s, %s step %llu, %u micro-batch%s, attempt %u", l->k, phase_word(l->phase),
		l->eval ? "eval" : "train", (unsigned long long)l->txn_step, l->micros, l->micros == 1 ? "" : "es", l->attempt);
	screen_next(s);
	screen_text(s, STYLE_LABEL, "snapshot ");
	screen_text(s, STYLE_PLAIN, "%s, step %llu; %llu saved, %llu failed", snap_word(l->snap),
		(unsigned long long)l->snap_step, (unsigned long long)l->saved, (unsigned long long)l->failed);
	screen_next(s);
}

/* ---- memory, history */

static void item(struct screen *s, const char *name, const char *value)
{
	room_for(s, name, value);
	screen_text(s, STYLE_PLAIN, " %s %s", name, value);
}

static void draw_memory(struct screen *s, const struct watch *w)
{
	const struct look *l = &w->look;
	screen_text(s, STYLE_LABEL, "memory ");
	screen_text(s, STYLE_PLAIN, "%s:", text_bytes(l->bytes).s);
	for (enum look_array a = 0; a < ARRAY_COUNT; a++)
		if (l->array[a]) item(s, array_word(a), text_bytes(l->array[a]).s);
	screen_next(s);
	if (!w->nodes_known) return;
	screen_text(s, STYLE_LABEL, "NUMA ");
	screen_text(s, STYLE_PLAIN, "policy %s; store on node", l->numa);
	for (int i = 0; i < WATCH_NODES; i++)
		if (w->node[i] > 0) screen_text(s, STYLE_PLAIN, " %d: %.0f %%", i, 100 * w->node[i]);
	screen_next(s);
}

static struct text scale(double x) { return x < 1000 ? text_number(x, "%.3g") : text_count(x); }

/* The label, and where there is room the largest and the smallest value that is shown, left of the chart */
static void draw_chart(struct screen *s, const char *label, enum style style, const double *value, int n, int rows)
{
	int width = s->cols - CHART_LABEL, first = n > width ? n - width : 0, row = s->row;
	double low = INFINITY, high = -INFINITY;
	for (int i = first; i < n; i++)
		if (isfinite(value[i])) {
			low = fmin(low, value[i]);
			high = fmax(high, value[i]);
		}
	screen_text(s, STYLE_LABEL, "%s", label);
	screen_column(s, CHART_LABEL);
	screen_chart(s, style, value, n, width, rows);
	if (rows < 3) return;
	s->row = row + 1;
	screen_text(s, STYLE_LABEL, "max %s", scale(high).s);
	s->row = row + rows - 1;
	s->col = 0;
	screen_text(s, STYLE_LABEL, "min %s", scale(low).s);
	screen_next(s);
}

static void draw_history(struct screen *s, const struct watch *w, int rows)
{
	double value[2 * WATCH_POINTS];
	if (rows > CHART_ROWS) rows = CHART_ROWS;
	if (rows < 1) return;
	draw_chart(s, "loss", STYLE_GOOD, value, watch_losses(w, value), rows);
	draw_chart(s, "tokens/s", STYLE_WAIT, value, watch_speeds(w, value), rows);
}

/* ---- pages */

static void draw_help(struct screen *s)
{
	static const char *const lines[] = {
		"",
		" q      quit",
		" p      pause, and go on",
		" + -    look less, or more often",
		" h      this page; any key goes back",
		"",
		" UNITS  one mark a unit of weights:",
		"        at the last committed step,",
		"        at the step before (its update",
		"        runs), p kept for a checkpoint",
		" ETA    at the speed shown, from --steps",
		"        and --until of mt-step",
		" CPU%   of one core",
	};
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
		screen_text(s, STYLE_PLAIN, "%s", lines[i]);
		screen_next(s);
	}
}

static void draw_footer(struct screen *s)
{
	s->row = s->rows - 1;
	s->col = 0;
	for (int i = 0; i < s->cols; i++) screen_char(s, STYLE_PLAIN, L' ');
	s->col = 0;
	screen_text(s, STYLE_LABEL, "q quit  p pause  + - interval  h help");
}

void draw(struct screen *s, const struct watch *w, const struct view *v)
{
	const struct look *l = &w->look;
	bool footer = s->rows >= FOOTER && !v->once;
	draw_title(s, l, v);
	if (v->help) {
		draw_help(s);
		return;
	}
	draw_step(s, w);
	draw_figures(s, w);
	draw_model(s, l);
	draw_stages(s, w);
	draw_gpus(s, w);
	draw_rings(s, l);
	draw_tier(s, l);
	draw_units(s, l);
	draw_decisions(s, l);
	draw_memory(s, w);
	draw_history(s, w, v->once ? 1 : (screen_left(s) - footer) / 2);
	if (footer) draw_footer(s);
}
