/* say.c: one line on stderr. The library itself prints two kinds of lines, also in a user's stage: which run it waits
 * for, and which stage is stopped. The programs print everything else (cli/).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "lib.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "os.h"
#include "say.h"

const char *mt_program_name = "mt";
void (*mt_before_say)(void);

size_t mt_utf8_part(const char *s, size_t left, bool *whole)
{
	const unsigned char *c = (const unsigned char *)s;
	size_t n = *c < 0x80 ? 1 : *c < 0xc2 || *c > 0xf4 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : 4, part = 1;
	unsigned char low = *c == 0xe0 ? 0xa0
		: *c == 0xf0               ? 0x90
								   : 0x80,
				  high = *c == 0xed ? 0x9f
		: *c == 0xf4                ? 0x8f
									: 0xbf;
	for (; part < n && part < left && c[part] >= low && c[part] <= high; part++) low = 0x80, high = 0xbf;
	*whole = part == n;
	return part;
}

/* Names and texts come from files: a message stays one line, and nothing in it is a command to a terminal. Those are
 * the control characters: C0, DEL, and C1, be it as UTF-8 (U+0080 to U+009F) or as bytes that are no UTF-8. */
static void make_harmless(char *line, size_t len)
{
	for (size_t i = 0; i < len;) {
		unsigned char *c = (unsigned char *)line + i;
		bool whole;
		size_t n = mt_utf8_part(line + i, len - i, &whole);
		bool c1 = n == 2 && c[0] == 0xc2 && c[1] < 0xa0;
		if (!whole || c1 || *c < 0x20 || *c == 0x7f) memset(c, '?', n);
		i += n;
	}
}

enum { LOG_BYTES = 1 << 20 }; /* a log of that size is renamed to FILE.old, so that both are at most 2 MiB */

/* Rename a log that is full: the first process that sees it does, once. true: another file may have the name now */
static bool renamed(const char *path, int fd)
{
	char old[4096];
	struct stat open, named;
	if (fstat(fd, &open) || open.st_size < LOG_BYTES) return false;
	if ((size_t)snprintf(old, sizeof old, "%s.old", path) >= sizeof old) return false;
	if (flock(fd, LOCK_EX | LOCK_NB)) return false; /* another one renames it now */
	if (lstat(path, &named) == 0 && named.st_dev == open.st_dev && named.st_ino == open.st_ino)
		return rename(path, old) == 0;
	return true;
}

/* The file that MT_LOG names, if any, gets each line, too: a terminal may be gone. Its failures are not reported. */
static void log_line(const char *line, size_t len)
{
	const char *path = getenv("MT_LOG");
	const int flags = O_WRONLY | O_CREAT | O_APPEND;
	if (!path || !*path) return;
	int fd = mt_try_open_own(path, flags);
	if (fd >= 0 && renamed(path, fd)) {
		close(fd);
		fd = mt_try_open_own(path, flags);
	}
	if (fd < 0) return;
	ssize_t w = write(fd, line, len); /* appended in one piece */
	(void)w;
	close(fd);
}

void mt_vsay(const char *fmt, va_list ap)
{
	static const char erase[] = "\r\033[K"; /* the row may have a progress line, this program's or another one's */
	enum { ERASE = sizeof erase - 1 };
	char text[ERASE + 1400], *line = text + ERASE;
	if (mt_before_say) mt_before_say();
	size_t room = sizeof text - ERASE;
	int n = snprintf(line, room, "%s: ", mt_program_name);
	int m = vsnprintf(line + n, room - (size_t)n - 1, fmt, ap);
	size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
	if (len > room - 2) len = room - 2;
	make_harmless(line, len);
	line[len++] = '\n';
	log_line(line, len);
	memcpy(text, erase, ERASE);
	if (isatty(STDERR_FILENO)) { /* in the same write, which a terminal mixes with no other */
		line = text;
		len += ERASE;
	}
	for (size_t off = 0; off < len;) {
		ssize_t w = write(STDERR_FILENO, line + off, len - off);
		if (w < 0 && errno == EINTR) continue;
		if (w <= 0) break;
		off += (size_t)w;
	}
}

void mt_say(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	mt_vsay(fmt, ap);
	va_end(ap);
}

/* ---- waiting */

enum { RUNS_NAMED = 8 }; /* of the runs that are there; more would hide the message */

struct names {
	char text[RUNS_NAMED * (MT_RUN_NAME + 2) + 8];
	int n;
};

static int add_name(const char *name, void *arg)
{
	struct names *x = arg;
	size_t at = strlen(x->text);
	if (x->n++ < RUNS_NAMED) snprintf(x->text + at, sizeof x->text - at, "%s%s", at ? ", " : "", name);
	else if (x->n == RUNS_NAMED + 1) snprintf(x->text + at, sizeof x->text - at, ", ...");
	return 0;
}

void mt_say_waits_for_run(const char *run)
{
	struct names there = {.n = 0};
	if (mt_run_list(add_name, &there) || !there.n)
		mt_say("waits for run '%s': it does not exist; there are no runs", run);
	else mt_say("waits for run '%s': it does not exist; existing runs: %s", run, there.text);
}

/* A process that waits while nothing happens in the run names the stopped stage, once. */
void mt_waited_in_vain(struct mt_run *run, uint32_t event)
{
	enum { QUIET_S = 10, LOOK_EVERY_S = 1 };
	static atomic_flag busy = ATOMIC_FLAG_INIT; /* several threads of a program may wait */
	static uint32_t last;
	static double since, looked;
	static uint64_t named[MT_SLOTS];
	if (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) return;
	double now = mt_now();
	if (event != last || !since) {
		last = event;
		since = now;
	} else if (now - since >= QUIET_S && now - looked >= LOOK_EVERY_S) {
		looked = now;
		for (int s = 0; s < MT_SLOTS; s++) {
			bool stopped = mt_stage_stopped(run, s);
			uint64_t word = mt_stage_word(run, s);
			if (stopped && named[s] != word)
				mt_say("waits for %s (pid %d), which is stopped (SIGSTOP): kill -CONT %d", mt_stage_name(s),
					mt_slot_pid(word), mt_slot_pid(word));
			named[s] = stopped ? word : 0;
		}
	}
	atomic_flag_clear_explicit(&busy, memory_order_release);
}

void mt_say_dropout(const struct mt_geometry *geo)
{
	if (geo->flags & MT_DROPOUT)
		mt_say("warning: config.json asks for dropout, which mt does not do: training is as with dropout 0");
}
