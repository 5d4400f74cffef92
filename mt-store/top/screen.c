/* screen.c: text, bars and charts in a grid of characters. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "screen.h"

void screen_begin(struct screen *s, int rows, int cols, bool utf8)
{
	s->rows = rows < SCREEN_ROWS ? rows : SCREEN_ROWS;
	s->cols = cols < SCREEN_COLS ? cols : SCREEN_COLS;
	s->utf8 = utf8;
	s->row = s->col = 0;
	for (int r = 0; r < s->rows; r++)
		for (int c = 0; c < s->cols; c++) s->cell[r][c] = (struct cell){L' ', STYLE_PLAIN};
}

void screen_char(struct screen *s, enum style style, wchar_t c)
{
	if (s->row < s->rows && s->col < s->cols) s->cell[s->row][s->col] = (struct cell){c, style};
	s->col++;
}

void screen_text(struct screen *s, enum style style, const char *fmt, ...)
{
	char text[SCREEN_COLS + 1];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	for (const char *c = text; *c; c++) screen_char(s, style, *c >= 0x20 && *c < 0x7f ? (wchar_t)*c : L'?');
}

void screen_column(struct screen *s, int col)
{
	if (s->col < col) s->col = col;
}

void screen_next(struct screen *s)
{
	s->row++;
	s->col = 0;
}

int screen_left(const struct screen *s) { return s->row < s->rows ? s->rows - s->row : 0; }

/* ---- bars and charts */

/* Eighths of a block from the left (bars) and from below (charts): U+258F to U+2588, U+2581 to U+2588 */
static wchar_t eighths_right(bool utf8, int n) { return n <= 0 ? L' ' : utf8 ? L'█' + 8 - n : n >= 4 ? L'#' : L' '; }
static wchar_t eighths_up(bool utf8, int n) { return n <= 0 ? L' ' : utf8 ? L'▁' + n - 1 : L"_.,-=+*#"[n - 1]; }

void screen_bar(struct screen *s, enum style style, double part, double whole, int width)
{
	double share = whole > 0 ? part / whole : 0;
	if (!(share >= 0)) share = 0;
	if (share > 1) share = 1;
	int inside = width - 2, filled = (int)(share * inside * 8 + 0.5);
	screen_char(s, STYLE_PLAIN, L'[');
	for (int i = 0; i < inside; i++, filled -= 8)
		screen_char(s, style, eighths_right(s->utf8, filled < 8 ? filled : 8));
	screen_char(s, STYLE_PLAIN, L']');
}

void screen_chart(struct screen *s, enum style style, const double *value, int n, int width, int rows)
{
	double low = INFINITY, high = -INFINITY;
	int left = s->col, first = n > width ? n - width : 0;
	for (int i = first; i < n; i++) {
		if (!isfinite(value[i])) continue;
		low = fmin(low, value[i]);
		high = fmax(high, value[i]);
	}
	for (int r = 0; r < rows; r++, screen_next(s)) {
		screen_column(s, left);
		for (int i = first; i < n; i++) {
			/* a level from 1, so that the smallest value is seen too; all equal: half of the height */
			double share = high > low ? (value[i] - low) / (high - low) : 0.5;
			int level = isfinite(value[i]) ? 1 + (int)(share * (8 * rows - 1) + 0.5) : 0,
				here = level - 8 * (rows - 1 - r);
			screen_char(s, style, eighths_up(s->utf8, here < 8 ? here : 8));
		}
	}
}

void screen_print(const struct screen *s)
{
	for (int r = 0; r < s->rows && r < s->row; r++) {
		int end = s->cols;
		while (end > 0 && s->cell[r][end - 1].c == L' ') end--;
		for (int c = 0; c < end; c++) printf("%lc", (wint_t)s->cell[r][c].c);
		putchar('\n');
	}
}
