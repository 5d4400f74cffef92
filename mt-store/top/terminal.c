/* terminal.c: ncurses, and the terminal as it was before. */
#include <curses.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "mt/error.h"
#include "terminal.h"

static bool on, colors;

/* ---- signals */

/* What a handler needs to restore the terminal: it may call neither ncurses nor terminfo. */
static struct termios before;
static char restore[256];
static const int fatal[] = {SIGQUIT, SIGILL, SIGABRT, SIGFPE, SIGBUS, SIGSEGV, SIGPIPE, SIGALRM, SIGUSR2, SIGXCPU};
enum { FATAL = sizeof fatal / sizeof *fatal };
static struct sigaction old_action[FATAL];

static void add_string(const char *s)
{
	size_t at = strlen(restore);
	if (s) snprintf(restore + at, sizeof restore - at, "%s", s);
}

/* Restore the terminal and the previous action, then let the instruction or signal come again. */
static void on_fatal(int sig, siginfo_t *info, void *context)
{
	int saved = errno;
	if (write(STDOUT_FILENO, restore, strlen(restore)) < 0) {}
	tcsetattr(STDIN_FILENO, TCSANOW, &before);
	errno = saved;
	for (int i = 0; i < FATAL; i++)
		if (fatal[i] == sig) {
			sigaction(sig, &old_action[i], NULL);
			/* libmt's handler of faults in a run's memory says what happened, and ends the process */
			if (old_action[i].sa_flags & SA_SIGINFO) old_action[i].sa_sigaction(sig, info, context);
			else raise(sig);
		}
}

static void watch_signals(void)
{
	struct sigaction sa = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO};
	for (int i = 0; i < FATAL; i++) {
		sigaction(fatal[i], NULL, &old_action[i]);
		bool ignored = !(old_action[i].sa_flags & SA_SIGINFO) && old_action[i].sa_handler == SIG_IGN;
		if (!ignored) sigaction(fatal[i], &sa, NULL);
	}
}

/* ---- begin, end */

static void begin_colors(void)
{
	static const short of[STYLE_COUNT] =
		{[STYLE_LABEL] = COLOR_CYAN, [STYLE_GOOD] = COLOR_GREEN, [STYLE_WAIT] = COLOR_YELLOW, [STYLE_BAD] = COLOR_RED};
	colors = has_colors() && start_color() == OK && use_default_colors() == OK;
	for (short i = 0; colors && i < STYLE_COUNT; i++)
		if (of[i]) init_pair(i, of[i], -1);
}

int terminal_begin(void)
{
	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before))
		return mt_fail(MT_EX_USAGE, "stdin and stdout must be a terminal: mt-top --once prints the screen without one");
	const char *type = getenv("TERM");
	int found;
	if (!type || setupterm(NULL, STDOUT_FILENO, &found) != OK || !cursor_address || !newterm(NULL, stdout, stdin))
		return mt_fail(MT_EX_USAGE,
			"TERM: terminal type '%s' is unknown or has no cursor: mt-top --once prints the screen without it",
			type ? type : "");
	on = true;
	add_string(exit_attribute_mode);
	add_string(cursor_normal);
	add_string(exit_ca_mode);
	watch_signals();
	cbreak();
	noecho();
	curs_set(0);
	keypad(stdscr, TRUE);
	begin_colors();
	return 0;
}

void terminal_end(void)
{
	if (on) endwin();
	on = false;
}

void terminal_size(int *rows, int *cols)
{
	*rows = LINES;
	*cols = COLS;
}

/* ---- show, keys */

static attr_t attributes(enum style style)
{
	if (style == STYLE_TITLE) return A_REVERSE;
	if (style == STYLE_PLAIN) return A_NORMAL;
	if (colors) return (attr_t)COLOR_PAIR(style);
	return style == STYLE_BAD ? A_BOLD : A_NORMAL;
}

void terminal_show(const struct screen *s)
{
	erase();
	for (int r = 0; r < s->rows; r++)
		for (int c = 0; c < s->cols; c++) {
			wchar_t text[2] = {s->cell[r][c].c, 0};
			cchar_t cell;
			enum style style = s->cell[r][c].style;
			setcchar(&cell, text, attributes(style), colors && style != STYLE_TITLE ? (short)style : 0, NULL);
			mvadd_wch(r, c, &cell);
		}
	refresh();
}

int terminal_key(int ms)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	timeout(ms);
	int key = getch();
	if (key == KEY_RESIZE) return KEY_NEW_SIZE;
	if (key != ERR) return key;
	if (poll(&in, 1, 0) > 0 && in.revents & (POLLHUP | POLLERR | POLLNVAL)) return KEY_LOST;
	return KEY_NONE_YET;
}
