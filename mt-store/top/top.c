/* mt-top: a run, live. It takes no slot and changes nothing: the run is mapped read-only.
 *
 *     top.c        main: options, which run, the loop
 *     watch.c      looks at the run (../look.c), one after another: speed, CPU use, history (nodes.c: NUMA nodes)
 *     past.c       the history of steps before, from mt-step's file of metrics
 *     draw.c       a page
 *     screen.c     the page as a grid of characters
 *     terminal.c   the grid on a terminal
 */
#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "draw.h"
#include "mt/error.h"
#include "mt/run.h"
#include "terminal.h"

static struct view view = {.interval = 1};
static struct screen screen;
static struct watch watch;
static bool utf8;

static const struct mt_opt options[] = {
	{"interval", OPT_DOUBLE, &view.interval, "S", "seconds between two looks, 0.1 to 3600", .least = 0.1, .most = 3600},
	{"once", OPT_FLAG, &view.once, NULL, "print the screen once on stdout, without a terminal"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-top",
	.usage = "mt-top [RUN] [--interval S]\n"
			 "mt-top [RUN] --once",
	.about =
		"Shows a run while it trains: step, loss, speed, what each stage does or waits for, rings, versions of the\n"
		"units, memory. An omitted RUN is $MT_RUN, or the only run that there is. Keys: q quit, p pause,\n"
		"+ - interval, h help.",
	.opts = options,
};

/* ---- which run */

struct names {
	char only[MT_RUN_NAME + 1], text[300];
	int n;
};

static int add_name(const char *name, void *arg)
{
	struct names *x = arg;
	size_t at = strlen(x->text);
	if (x->n++ == 0) snprintf(x->only, sizeof x->only, "%s", name);
	if (at + strlen(name) + 8 < sizeof x->text)
		snprintf(x->text + at, sizeof x->text - at, "%s%s", at ? ", " : "", name);
	else if (at && strcmp(x->text + at - 3, "...") != 0) snprintf(x->text + at, sizeof x->text - at, ", ...");
	return 0;
}

static const char *which_run(const char *operand)
{
	static struct names there;
	const char *name = operand ? operand : getenv("MT_RUN");
	if (name && *name) return name;
	mt_must(mt_run_list(add_name, &there));
	if (there.n == 1) return there.only;
	if (!there.n) mt_die(MT_EX_USAGE, "no RUN given, MT_RUN is not set, and there are no runs");
	mt_die(MT_EX_USAGE, "no RUN given and MT_RUN is not set; existing runs: %s", there.text);
}

/* ---- the loop */

/* Columns of a terminal on stdout, or $COLUMNS, or 80 */
static int columns(void)
{
	struct winsize size;
	const char *s = getenv("COLUMNS");
	int n = s ? atoi(s) : 0;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col) n = size.ws_col;
	return n >= 20 && n <= SCREEN_COLS ? n : 80;
}

static int once(void)
{
	enum { ROWS = 48 };
	screen_begin(&screen, ROWS, columns(), utf8);
	draw(&screen, &watch, &view);
	screen_print(&screen);
	return fflush(stdout) || ferror(stdout) ? mt_fail(MT_EX_IO, "stdout: cannot be written") : 0;
}

static void show(void)
{
	int rows, cols;
	terminal_size(&rows, &cols);
	screen_begin(&screen, rows, cols, utf8);
	draw(&screen, &watch, &view);
	terminal_show(&screen);
}

static void change_interval(int by)
{
	static const double steps[] = {0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60};
	enum { N = sizeof steps / sizeof *steps };
	if (by > 0) {
		for (int i = 0; i < N; i++)
			if (steps[i] > view.interval) {
				view.interval = steps[i];
				return;
			}
	} else
		for (int i = N - 1; i >= 0; i--)
			if (steps[i] < view.interval) {
				view.interval = steps[i];
				return;
			}
}

/* true: quit */
static bool act(int key)
{
	if (key == 'q' || key == 'Q' || key == KEY_LOST) return true;
	if (view.help && key != KEY_NEW_SIZE) view.help = false;
	else if (key == 'h' || key == '?') view.help = true;
	else if (key == 'p' || key == ' ') view.paused = !view.paused;
	else if (key == '+' || key == '=') change_interval(1);
	else if (key == '-') change_interval(-1);
	return false;
}

/* Until a key, a signal, or the removal of the run. Steps are noted more often than the screen is drawn, so that the
 * time of a step is known better than the interval. */
static void live(const char *name)
{
	enum { SLICE_MS = 100, GONE_EVERY_S = 1 };
	double next = mt_now() + view.interval, gone_next = 0;
	show();
	while (!mt_stopping) {
		int key = terminal_key(SLICE_MS);
		double now = mt_now();
		if (key && act(key)) return;
		watch_step(&watch, view.interval);
		bool due = now >= next;
		if (mt_run_state(watch.run) == MT_GONE || (now >= gone_next && look_run_gone(watch.run, name))) {
			terminal_end();
			mt_say("run '%s' was removed", name);
			return;
		}
		if (now >= gone_next) gone_next = now + GONE_EVERY_S; /* somebody may delete the files by hand */
		if (due && !view.paused) watch_look(&watch);
		if (due || next > now + view.interval) next = now + view.interval;
		if (key || (due && !view.paused)) show();
	}
}

int main(int argc, char **argv)
{
	const char *operand = NULL;
	struct mt_run *run;
	mt_cli(&program, argc, argv, &operand, 1);
	/* numbers stay as they are in the C locale */
	utf8 = setlocale(LC_CTYPE, "") && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	const char *name = which_run(operand);
	mt_must(mt_run_open(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS | MT_RUN_READONLY));
	if (view.once) {
		watch_begin(&watch, run, name);
		mt_must(once());
		mt_run_close(run);
		return 0;
	}
	mt_signals(false);
	mt_must(terminal_begin());
	watch_begin(&watch, run, name);
	live(name);
	terminal_end();
	mt_run_close(run);
	if (mt_stopping) mt_die_of_signal(mt_stopping);
	return 0;
}
