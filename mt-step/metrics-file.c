/* metrics-file.c: the metrics in a separate file: each step once, also if it was trained twice.
 *
 * Training that continues from a checkpoint computes later steps again: their lines are removed. The successor of a
 * killed mt-step writes the last lines again: those that the file has are left out. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "best.h"
#include "cli/cli.h"
#include "metrics.h"
#include "mt/error.h"

static const char *path;
static bool own; /* refuse FILE unless it is a plain file of this user's */
static int fd = -1;
static bool any; /* the file has the line of a trained step; the last one's is `last` */
static uint64_t last;
static char *unwritten; /* lines that could not be written yet: they are tried again with each new one */
static size_t n_unwritten;

/* Its result is a number, or null if the loss was not finite. */
static void note_evaluation(const char *line, uint64_t step)
{
	static const char key[] = "\"eval_loss\": ";
	const char *at = strstr(line, key);
	if (!at) return;
	char *end;
	double loss = strtod(at + strlen(key), &end);
	best_note(step, end == at + strlen(key) ? NAN : loss);
}

/* The length to keep: whole lines of steps up to `step` */
static off_t keep_lines(FILE *f, uint64_t step)
{
	char *line = NULL;
	size_t room = 0;
	off_t keep = 0;
	for (ssize_t n; (n = getline(&line, &room, f)) > 0 && line[n - 1] == '\n'; keep += n) {
		unsigned long long s;
		if (sscanf(line, "{\"step\": %llu", &s) != 1) continue;
		if (s > step) break;
		note_evaluation(line, s);
		if (strstr(line, "\"loss\":") == NULL) continue;
		last = s;
		any = true;
	}
	free(line);
	return keep;
}

static bool can_be_made(void)
{
	const char *slash = strrchr(path, '/');
	char dir[4096];
	if (!slash) return true;
	snprintf(dir, sizeof dir, "%.*s", slash == path ? 1 : (int)(slash - path), path);
	return access(dir, W_OK | X_OK) == 0;
}

/* The descriptor, or minus an exit code, with its message */
static int open_file(int flags)
{
	if (own) return mt_open_own(path, flags);
	int opened = open(path, flags | O_CLOEXEC, 0666);
	return opened < 0 ? mt_fail(MT_EX_IO, "%s: %s", path, strerror(errno)) : opened;
}

int metrics_file_open(const char *name, bool must_be_own, uint64_t step, bool fresh)
{
	path = name;
	own = must_be_own;
	struct stat st;
	/* reading a FIFO or a terminal would wait for lines, or take those that are for others */
	if (!own && stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) return 0;
	int old = open_file(O_RDWR);
	if (old == -MT_EX_IO && errno == ENOENT && can_be_made()) return 0; /* made with the first line, if there is one */
	FILE *f = old < 0 ? NULL : fdopen(old, "r+");
	if (!f) return mt_fail_in(old < 0 ? old : -MT_EX_NOMEM, "--metrics");
	off_t keep = keep_lines(f, step), size = fseeko(f, 0, SEEK_END) ? 0 : ftello(f);
	if (fresh && step == 0) {
		keep = 0;
		best_forget();
	}
	int rc = keep < size && ftruncate(fileno(f), keep) ? mt_fail(MT_EX_IO, "--metrics %s: %s", path, strerror(errno))
													   : 0;
	fclose(f);
	return rc;
}

static void write_out(void)
{
	static bool reported;
	if (fd < 0) fd = open_file(O_WRONLY | O_CREAT | O_APPEND);
	ssize_t w = fd < 0 ? -1 : write(fd, unwritten, n_unwritten);
	if (fd >= 0) mt_fail(MT_EX_IO, "%s: %s", path, w < 0 ? strerror(errno) : "no space left");
	if (w > 0) memmove(unwritten, unwritten + w, n_unwritten -= (size_t)w);
	if (!n_unwritten || reported) return;
	reported = true;
	mt_say("%s: no more metrics there until it can be written again, training goes on", mt_errmsg());
}

bool metrics_file_failed(void)
{
	if (n_unwritten) write_out();
	return n_unwritten != 0;
}

void metrics_file_write(const struct metrics *m, const char *line, size_t n)
{
	const struct best *b = best_known();
	bool has_step = !m->trained || (any && m->figures.step <= last);
	bool has_evaluation = !m->evaluated || (b->evaluations && m->figures.step <= b->step);
	if (!path || (has_step && has_evaluation)) return;
	char *more = realloc(unwritten, n_unwritten + n);
	if (!more) mt_die(MT_EX_NOMEM, "no memory for a line of metrics");
	unwritten = more;
	memcpy(unwritten + n_unwritten, line, n);
	n_unwritten += n;
	write_out();
	if (!m->trained) return;
	last = m->figures.step;
	any = true;
}
