/* screen.h: a screen as a grid of characters, composed without a terminal. terminal.c shows it; --once prints it. */
#ifndef TOP_SCREEN_H
#define TOP_SCREEN_H

#include <stdbool.h>
#include <wchar.h>

enum style { STYLE_PLAIN, STYLE_TITLE, STYLE_LABEL, STYLE_GOOD, STYLE_WAIT, STYLE_BAD, STYLE_COUNT };
enum { SCREEN_ROWS = 300, SCREEN_COLS = 500 };

struct cell {
	wchar_t c;
	enum style style;
};

struct screen {
	int rows, cols; /* at most SCREEN_ROWS, SCREEN_COLS */
	bool utf8;      /* blocks and bars of Unicode; else ASCII */
	int row, col;   /* where the next text goes; row may be beyond the last one: nothing is drawn there */
	struct cell cell[SCREEN_ROWS][SCREEN_COLS];
};

void screen_begin(struct screen *, int rows, int cols, bool utf8);
/* Text at the cursor, cut at the right edge. Anything but printable ASCII becomes '?'. */
void screen_text(struct screen *, enum style, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void screen_char(struct screen *, enum style, wchar_t);
void screen_column(struct screen *, int col); /* move right to that column */
void screen_next(struct screen *);            /* the next row */
int screen_left(const struct screen *);       /* rows from the cursor's to the last one */
/* part / whole as a bar of that many columns, brackets included */
void screen_bar(struct screen *, enum style, double part, double whole, int width);
/* The last `width` of n values as a chart of `rows` rows, scaled from the smallest to the largest; NAN leaves a gap.
 * The cursor's column is that of its left edge; afterwards the cursor is behind its last row. */
void screen_chart(struct screen *, enum style, const double *value, int n, int width, int rows);
void screen_print(const struct screen *); /* on stdout, without styles and trailing blanks */

#endif
