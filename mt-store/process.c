/* process.c: what /proc says of a stage's process. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "look.h"
#include "mt/stage.h"

enum { COMMAND_LINE = 32 << 10 }; /* bytes of it that are read */

/* Up to n - 1 bytes of /proc/PID/what; -1: it cannot be read */
static ssize_t read_proc(int pid, const char *what, char *buf, size_t n)
{
	char path[64];
	size_t at = 0;
	ssize_t got = 0;
	snprintf(path, sizeof path, "/proc/%d/%s", pid, what);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return -1;
	while (at < n - 1 && (got = read(fd, buf + at, n - 1 - at)) > 0) at += (size_t)got;
	close(fd);
	if (got < 0) return -1;
	buf[at] = 0;
	return (ssize_t)at;
}

bool process_look(int pid, uint64_t slot_word, struct process *p)
{
	char line[1024];
	unsigned long long user, system, start;
	struct timespec now;
	double ticks = (double)sysconf(_SC_CLK_TCK);
	*p = (struct process){.age_s = -1, .cpu_s = -1};
	if (read_proc(pid, "stat", line, sizeof line) <= 0) return false;
	const char *after = strrchr(line, ')'); /* the name may hold anything, ')' too */
	/* fields 14, 15 and 22 of proc(5); after the name comes field 3 */
	if (!after ||
		sscanf(after + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu %*s %*s %*s %*s %*s %*s %llu", &user,
			&system, &start) != 3)
		return false;
	if ((start & 0x1ffffff) != mt_slot_start(slot_word)) return false; /* the pid is another process's by now */
	if (ticks <= 0 || clock_gettime(CLOCK_BOOTTIME, &now)) return false;
	double age = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - (double)start / ticks;
	*p = (struct process){.age_s = age > 0 ? age : 0, .cpu_s = (double)(user + system) / ticks};
	return true;
}

static bool whole_number(const char *s, uint64_t *out)
{
	char *end;
	if (*s < '0' || *s > '9') return false;
	*out = strtoull(s, &end, 10);
	return *end == 0;
}

/* The option's value, in buf, which is the process's command line; NULL: it was not given, or cannot be read */
static const char *option_of(int pid, const char *program, const char *name, char *buf, size_t room)
{
	char comm[32];
	size_t n = strlen(name);
	ssize_t got = read_proc(pid, "comm", comm, sizeof comm);
	/* a stage in another language may use the same words for something else */
	if (got <= 0 || strncmp(comm, program, strlen(program)) != 0 || comm[strlen(program)] != '\n') return NULL;
	got = read_proc(pid, "cmdline", buf, room);
	for (const char *arg = buf; got > 0 && arg < buf + got; arg += strlen(arg) + 1) {
		if (strcmp(arg, "--") == 0) return NULL;
		if (strncmp(arg, "--", 2) != 0 || strncmp(arg + 2, name, n) != 0) continue;
		if (arg[2 + n] == '=') return arg + 3 + n;
		const char *next = arg + strlen(arg) + 1;
		if (arg[2 + n] == 0) return next < buf + got ? next : NULL;
	}
	return NULL;
}

bool process_option(int pid, const char *program, const char *name, uint64_t *value)
{
	char buf[COMMAND_LINE];
	const char *text = option_of(pid, program, name, buf, sizeof buf);
	return text && whole_number(text, value);
}

int process_option_file(int pid, const char *program, const char *name)
{
	char buf[COMMAND_LINE], cwd[64];
	const char *path = option_of(pid, program, name, buf, sizeof buf);
	if (!path) return -1;
	snprintf(cwd, sizeof cwd, "/proc/%d/cwd", pid);
	int dir = open(cwd, O_PATH | O_DIRECTORY | O_CLOEXEC);
	/* opening a FIFO to read would let its writer begin */
	struct stat st;
	bool regular = fstatat(dir, path, &st, 0) == 0 && S_ISREG(st.st_mode);
	int fd = regular ? openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
	if (dir >= 0) close(dir);
	return fd;
}
