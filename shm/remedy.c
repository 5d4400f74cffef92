/* remedy.c: which smaller values of options make a run fit. */
#include <stdio.h>

#include "mt/create.h"
#include "say.h"

enum { MOST = 2 }; /* are named */

static const enum mt_dtype smaller[2][3] = {{MT_FP32, MT_BF16, MT_NONE}, {MT_FP32, MT_BF16, MT_INT8}};

static int place_of(int option, enum mt_dtype type)
{
	int i = 0;
	while (i < 2 && smaller[option][i] != type) i++;
	return i;
}

struct list {
	const struct mt_small *s;
	int grad, state, found; /* places of what was asked */
	char *buf;
	size_t n, at;
};

/* Add these choices if they fit */
static bool try_choices(struct list *l, int grad, int state, uint32_t rows)
{
	const struct mt_small *s = l->s;
	uint64_t bytes = s->need(s->arg, smaller[0][grad], smaller[1][state], rows);
	if (bytes > s->have) return false;
	char text[96] = "";
	int at = 0;
	if (rows != s->rows) at += snprintf(text, sizeof text, " --micro %u", rows);
	if (state != l->state)
		at += snprintf(text + at, sizeof text - (size_t)at, " --state %s", mt_dtype_name(smaller[1][state]));
	if (grad != l->grad) snprintf(text + at, sizeof text - (size_t)at, " --grad %s", mt_dtype_name(smaller[0][grad]));
	int more = snprintf(l->buf + l->at, l->n - l->at, "%s%s (%.1f %s)", l->found++ ? " or " : "", text + 1,
		(double)bytes / (s->binary ? 0x1p30 : 1e9), s->binary ? "GiB" : "GB");
	l->at = more < 0 || (size_t)more >= l->n - l->at ? l->n - 1 : l->at + (size_t)more;
	return true;
}

int mt_remedies(const struct mt_small *s, char *buf, size_t n)
{
	struct list l = {.s = s, .grad = place_of(0, s->grad), .state = place_of(1, s->state), .buf = buf, .n = n};
	*buf = 0;
	for (int changes = 1; changes <= 3 && !l.found; changes++)
		for (int grad = l.grad; grad <= (s->none ? 2 : 1); grad++)
			for (int state = l.state; state <= 2; state++) {
				int changed = (grad != l.grad) + (state != l.state);
				if (changed == changes) try_choices(&l, grad, state, s->rows);
				if (changed == changes - 1)
					for (uint32_t rows = s->rows / 2; rows && !try_choices(&l, grad, state, rows); rows /= 2) {}
				if (l.found >= MOST) return l.found;
			}
	return l.found;
}
