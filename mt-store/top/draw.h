/* draw.h: mt-top's pages. */
#ifndef TOP_DRAW_H
#define TOP_DRAW_H

#include "screen.h"
#include "watch.h"

struct view {
	double interval;
	bool paused, help, once;
};

void draw(struct screen *, const struct watch *, const struct view *);

#endif
