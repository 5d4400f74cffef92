/* past.c: loss and speed of the steps before watching began, from the file of metrics that mt-step writes. The run's
 * memory does not know the file: it is on mt-step's command line. */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "watch.h"

#define TAIL (4 << 20)  /* bytes at the file's end that are read: some thousand steps */
#define POINT_EVERY_S 1 /* a point has the steps of a second, as those that are watched by default */

struct reader {
	struct watch *w;
	uint64_t last;     /* step of the newest line taken */
	double time, done; /* of the steps that come into the next point: seconds, tokens */
	double loss;       /* of the newest of them */
	bool any;
};

static void end_point(struct reader *r)
{
	struct watch *w = r->w;
	if (!r->any) return;
	if (w->n_past == WATCH_POINTS) memmove(w->past, w->past + 1, --w->n_past * sizeof *w->past);
	w->past[w->n_past++] = (struct past){r->loss, r->time > 0 ? r->done / r->time : NAN};
	r->time = r->done = 0;
	r->any = false;
}

/* Lines without a loss are of evaluations alone. A step may have two lines. */
static void take_line(struct reader *r, const json_t *line, uint64_t until)
{
	const json_t *step = json_object_get(line, "step"), *loss = json_object_get(line, "loss");
	const json_t *time = json_object_get(line, "time_s"), *done = json_object_get(line, "processed");
	uint64_t s = (uint64_t)json_integer_value(step);
	if (!json_is_integer(step) || !loss || s <= r->last || s > until) return;
	r->last = s;
	r->loss = json_is_number(loss) ? json_number_value(loss) : NAN;
	r->any = true;
	if (json_is_number(time)) {
		r->time += json_number_value(time);
		r->done += json_number_value(done);
	}
	if (r->time >= POINT_EVERY_S) end_point(r);
}

static void read_lines(struct watch *w, FILE *f, uint64_t until)
{
	struct reader r = {.w = w};
	char *line = NULL;
	size_t room = 0;
	while (getline(&line, &room, f) > 0) {
		json_t *m = json_loads(line, 0, NULL); /* NULL: part of a line */
		take_line(&r, m, until);
		json_decref(m);
	}
	end_point(&r);
	free(line);
}

void past_read(struct watch *w)
{
	const struct look_stage *s = &w->look.stage[MT_STEP];
	struct stat st;
	if (w->past_known || !w->n || s->process.age_s < 0) return;
	w->past_known = true;
	int fd = process_option_file(s->pid, "mt-step", "metrics");
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
	if (!f) {
		if (fd >= 0) close(fd);
		return;
	}
	if (fstat(fd, &st) == 0 && (st.st_size <= TAIL || fseeko(f, st.st_size - TAIL, SEEK_SET) == 0))
		read_lines(w, f, w->point[0].work.steps);
	fclose(f);
}
