/* cli.c: options from one table, one line on stderr, exit codes. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "lib.h"

static const struct mt_program *program = &(const struct mt_program){ .name = "mt" };

/* ------------------------------------------------------------------------------------------------ words */

void (*mt_before_say)(void);

/* Bytes of the character at s: 1 to 4; 0: no UTF-8 (RFC 3629), or cut short by the end. */
static size_t utf8_length(const unsigned char *s, size_t left)
{
	static const struct { unsigned char first, last, low, high, bytes; } form[] = {
		{ 0x00, 0x7f, 0, 0, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 },
		{ 0xe1, 0xec, 0x80, 0xbf, 3 }, { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
		{ 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 }, { 0xf4, 0xf4, 0x80, 0x8f, 4 },
	};
	for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
		if (*s < form[i].first || *s > form[i].last) continue;
		size_t n = form[i].bytes;
		if (n > left || (n > 1 && (s[1] < form[i].low || s[1] > form[i].high))) return 0;
		for (size_t k = 2; k < n; k++)
			if ((s[k] & 0xc0) != 0x80) return 0;
		return n;
	}
	return 0;
}

/* Names and texts come from files: a message stays one line, and nothing in it is a command to a terminal. Those are
 * the control characters: C0, DEL, and C1, be it as UTF-8 (U+0080 to U+009F) or as bytes that are no UTF-8. */
static void make_harmless(char *line, size_t len)
{
	for (size_t i = 0; i < len; ) {
		unsigned char *c = (unsigned char *)line + i;
		size_t n = utf8_length(c, len - i);
		bool c1 = n == 2 && c[0] == 0xc2 && c[1] < 0xa0;
		if (n == 0 || c1 || *c < 0x20 || *c == 0x7f) memset(c, '?', n ? n : 1);
		i += n ? n : 1;
	}
}

static void say(const char *fmt, va_list ap)
{
	char line[1400];
	if (mt_before_say) mt_before_say();
	int n = snprintf(line, sizeof line, "%s: ", program->name);
	int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
	if (len > sizeof line - 2) len = sizeof line - 2;
	make_harmless(line, len);
	line[len++] = '\n';
	for (size_t off = 0; off < len; ) {
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
	say(fmt, ap);
	va_end(ap);
}

void mt_die(int ex, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	exit(ex);
}

int mt_must(int rc)
{
	if (rc < 0) mt_die(-rc, "%s", mt_errmsg());
	return rc;
}

void mt_bug(const char *file, int line, const char *what)
{
	mt_say("bug at %s:%d: %s does not hold", file, line, what);
	_exit(MT_EX_BUG);
}

/* ------------------------------------------------------------------------------------------------ lost memory */

static struct sigaction fault_before[2];        /* of SIGBUS, SIGSEGV */

/* A fault inside a region: its file was truncated, or lies on a disk that failed. No code can go on without it. Any
 * other fault is a bug, and has the handler that it had, with the same instruction. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code > 0 && region_at(info->si_addr)) {
		static const char words[] = ": the run's shared memory is gone (a region was truncated): mt-store rm --force, then "
			"load a checkpoint\n";
		static atomic_flag once = ATOMIC_FLAG_INIT;
		while (atomic_flag_test_and_set(&once)) pause();        /* another thread says it, and ends us */
		char line[200];
		size_t n = strnlen(program->name, 60);
		memcpy(line, program->name, n);
		memcpy(line + n, words, sizeof words - 1);
		if (write(STDERR_FILENO, line, n + sizeof words - 1) < 0) { }
		_exit(MT_EX_DATA);
	}
	sigaction(sig, &fault_before[sig == SIGSEGV], NULL);
	if (info->si_code <= 0) raise(sig);     /* sent by somebody: it does not come again by itself */
}

static void watch_faults(void)
{
	struct sigaction sa = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	sigaction(SIGBUS, &sa, &fault_before[0]);
	sigaction(SIGSEGV, &sa, &fault_before[1]);
}

/* ------------------------------------------------------------------------------------------------ options */

static _Noreturn void usage_error(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
	exit(MT_EX_USAGE);
}

static void help(void)
{
	printf("usage: ");
	for (const char *s = program->usage; *s; s++) {
		putchar(*s);
		if (*s == '\n' && s[1]) printf("       ");
	}
	printf("\n\n%s\n", program->about);
	if (program->opts && program->opts->name) printf("\noptions:\n");
	for (const struct mt_opt *o = program->opts; o && o->name; o++) {
		char left[48];
		snprintf(left, sizeof left, "--%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
		printf("  %-26s %s\n", left, o->help);
	}
	printf("  %-26s %s\n  %-26s %s\n", "--help", "print this and exit", "--version", "print the version and exit");
	exit(fflush(stdout) ? MT_EX_IO : 0);
}

int mt_parse_size(const char *s, uint64_t *out)
{
	char *end;
	errno = 0;
	double x = strtod(s, &end);
	if (end == s || errno || !(x >= 0)) return -MT_EX_USAGE;
	static const char suffix[] = "KMGT";
	for (int i = 0; *end && i < 4; i++)
		if (*end == suffix[i] || *end == suffix[i] + 32) {
			x = ldexp(x, 10 * (i + 1));
			end++;
			break;
		}
	if (*end || x >= 0x1p63 || x != floor(x)) return -MT_EX_USAGE;
	*out = (uint64_t)x;
	return 0;
}

static bool parse_u64(const char *s, uint64_t *out)
{
	char *end;
	if (*s < '0' || *s > '9') return false;
	errno = 0;
	unsigned long long v = strtoull(s, &end, 10);
	if (*end || errno) return false;
	*out = v;
	return true;
}

static bool parse_double(const char *s, double *out)
{
	char *end;
	errno = 0;
	double v = strtod(s, &end);
	if (end == s || *end || !isfinite(v)) return false;
	*out = v;
	return true;
}

bool mt_opt_set(const struct mt_opt *o, const char *v)
{
	switch (o->type) {
	case OPT_FLAG: *(bool *)o->value = true; return true;
	case OPT_STR: *(const char **)o->value = v; return true;
	case OPT_U64: return parse_u64(v, o->value);
	case OPT_SIZE: return mt_parse_size(v, o->value) == 0;
	case OPT_DOUBLE: return parse_double(v, o->value);
	case OPT_LIST: {
		struct mt_strings *l = o->value;
		if (l->n == MT_LIST_MAX) return false;
		l->v[l->n++] = v;
		return true;
	}
	}
	return false;
}

/* Levenshtein's distance of a name that was given, of n characters, to one that exists. */
static int distance(const char *given, int n, const char *name)
{
	enum { LONGEST = 32 };
	int m = (int)strlen(name), row[LONGEST + 1];
	if (n > LONGEST || m > LONGEST) return LONGEST;
	for (int j = 0; j <= m; j++) row[j] = j;
	for (int i = 1; i <= n; i++) {
		int diagonal = row[0];
		row[0] = i;
		for (int j = 1; j <= m; j++) {
			int best = diagonal + (given[i - 1] != name[j - 1]);
			diagonal = row[j];
			if (row[j] + 1 < best) best = row[j] + 1;
			if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[m];
}

static _Noreturn void unknown_option(const char *given, size_t len)
{
	const char *best = NULL;
	int n = (int)len, least = n / 3 + 1;        /* more letters than these: not a slip */
	for (const struct mt_opt *o = program->opts; o && o->name; o++) {
		size_t m = strlen(o->name), common = m < len ? m : len;
		int d = common > 2 && !strncmp(given, o->name, common) ? 1 : distance(given, n, o->name);
		if (d < least || (d == least && !best)) {
			least = d;
			best = o->name;
		}
	}
	if (best) usage_error("unknown option --%.*s: did you mean --%s? See --help", n, given, best);
	usage_error("unknown option --%.*s; see --help", n, given);
}

static _Noreturn void bad_value(const struct mt_opt *o, const char *v)
{
	double x;
	if (o->type == OPT_LIST) usage_error("--%s is given more than %d times", o->name, MT_LIST_MAX);
	if (o->type == OPT_U64 && parse_double(v, &x) && x >= 0 && x != floor(x))
		usage_error("--%s %s wants a whole number: '%s' is a fraction", o->name, o->arg, v);
	usage_error("--%s: '%s' is not a valid %s", o->name, v, o->arg);
}

/* Of an option that holds one value, a second one would silently undo the first. */
static void once(const struct mt_opt *o)
{
	static bool given[MT_OPTIONS_MAX];
	ptrdiff_t i = o - program->opts;
	if (i >= MT_OPTIONS_MAX || o->type == OPT_FLAG || o->type == OPT_LIST) return;
	if (given[i]) usage_error("--%s is given twice: it takes one value", o->name);
	given[i] = true;
}

/* One option at argv[*i]; moves *i over its value. */
static void option(int argc, char **argv, int *i)
{
	const char *arg = argv[*i] + 2;
	size_t len = strcspn(arg, "=");
	if (len == 4 && !strncmp(arg, "help", 4)) help();
	if (len == 7 && !strncmp(arg, "version", 7)) {
		printf("%s %s\n", program->name, MT_VERSION);
		exit(fflush(stdout) ? MT_EX_IO : 0);
	}
	const struct mt_opt *o = program->opts;
	while (o && o->name && (strlen(o->name) != len || strncmp(o->name, arg, len))) o++;
	if (!o || !o->name) unknown_option(arg, len);
	const char *v = arg[len] == '=' ? arg + len + 1 : NULL;
	if (o->type == OPT_FLAG) {
		if (v) usage_error("--%s takes no value", o->name);
	} else if (!v) {
		if (*i + 1 >= argc) usage_error("--%s needs %s", o->name, o->arg);
		v = argv[++*i];
	}
	once(o);
	if (!mt_opt_set(o, v)) bad_value(o, v);
	if (o->seen) *o->seen = true;
}

/* A program started with fd 0, 1 or 2 closed would get the next file that it opens under that number, and write its
 * words into it. /dev/null stands there instead, opened the wrong way round, so that whoever reads or writes it is
 * still told that it is closed (EBADF). */
static void open_standard_fds(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
			_exit(MT_EX_IO);    /* the lowest number is taken: there is no /dev/null, and nowhere to say so */
}

int mt_cli(const struct mt_program *p, int argc, char **argv, const char **operands, int max)
{
	program = p;
	open_standard_fds();
	watch_faults();
	int n = 0;
	bool rest = false;
	for (int i = 1; i < argc; i++) {
		if (!rest && !strcmp(argv[i], "--")) rest = true;
		else if (!rest && !strcmp(argv[i], "-h")) help();
		else if (!rest && !strncmp(argv[i], "--", 2)) option(argc, argv, &i);
		else if (!rest && argv[i][0] == '-' && argv[i][1])
			usage_error("unknown option %s; see --help", argv[i]);
		else if (n == max) usage_error("unexpected operand '%s'; see --help", argv[i]);
		else operands[n++] = argv[i];
	}
	return n;
}

const char *mt_cli_run(const char *operand)
{
	if (!operand) operand = getenv("MT_RUN");
	if (!operand || !*operand) usage_error("no RUN given and MT_RUN is not set");
	return operand;
}

/* ------------------------------------------------------------------------------------------------ waiting */

enum { RUNS_NAMED = 8 };        /* of the runs that are there; more would hide the message */

struct names { char text[RUNS_NAMED * (MT_RUN_NAME + 2) + 8]; int n; };

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
	struct names there = { .n = 0 };
	if (mt_run_list(add_name, &there) || !there.n)
		mt_say("waits for run '%s': it does not exist; there are no runs", run);
	else mt_say("waits for run '%s': it does not exist; existing runs: %s", run, there.text);
}

/* Who waits while nothing happens in the run names the stage that is stopped, once. */
void mt_waited_in_vain(struct mt_run *run, uint32_t event)
{
	enum { QUIET_S = 10, LOOK_EVERY_S = 1 };
	static atomic_flag busy = ATOMIC_FLAG_INIT;         /* several threads of a program may wait */
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
			uint64_t word = atomic_load_explicit(&mt_control(run)->slots[s].word, memory_order_relaxed);
			if (stopped && named[s] != word)
				mt_say("waits for %s (pid %d), which is stopped (SIGSTOP): kill -CONT %d", mt_stage_name(s),
				       (int)(word >> 42), (int)(word >> 42));
			named[s] = stopped ? word : 0;
		}
	}
	atomic_flag_clear_explicit(&busy, memory_order_release);
}

/* ------------------------------------------------------------------------------------------------ signals */

volatile int mt_stopping;
static bool second_kills;
static double asked;            /* when the first signal came */

/* One request comes as several signals: timeout(1) sends to its child and to the group, a terminal that closes sends HUP
 * and so does its shell, a script that is told passes it on. What comes later than this is another, and insists. */
#define ONE_REQUEST_S 1.0

static void on_signal(int sig)
{
	double now = mt_now();      /* clock_gettime may be called here */
	if (!mt_stopping) {
		asked = now;
		mt_stopping = sig;
	} else if (second_kills && now - asked > ONE_REQUEST_S) {
		signal(sig, SIG_DFL);
		raise(sig);             /* delivered as this handler returns */
	}
}

void mt_signals(bool twice_kills)
{
	static const int sigs[] = { SIGHUP, SIGINT, SIGTERM, SIGUSR1 };
	second_kills = twice_kills;
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
		struct sigaction old, sa = { .sa_handler = on_signal };
		sigaction(sigs[i], NULL, &old);
		if (old.sa_handler != SIG_IGN) sigaction(sigs[i], &sa, NULL);
	}
}

void mt_die_of_signal(int sig)
{
	signal(sig, SIG_DFL);
	raise(sig);
	_exit(128 + sig);
}

/* ------------------------------------------------------------------------------------------------ the machine */

double mt_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int mt_cores(void)
{
	cpu_set_t set;
	int n = sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
	FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");     /* "quota period" or "max period" */
	if (f) {
		double quota, period;
		if (fscanf(f, "%lf %lf", &quota, &period) == 2 && period > 0) {
			int q = (int)ceil(quota / period);
			if (q < n) n = q;
		}
		fclose(f);
	}
	return n < 1 ? 1 : n;
}

static uint64_t meminfo(const char *form)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	unsigned long long kb;
	uint64_t have = UINT64_MAX;
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, form, &kb) == 1) have = kb * 1024;
	if (f) fclose(f);
	return have;
}

uint64_t mt_mem_available(void) { return meminfo("MemAvailable: %llu kB"); }
uint64_t mt_mem_total(void) { return meminfo("MemTotal: %llu kB"); }

const char *mt_hub_hint(const char *path)
{
	static char hint[512];
	const char *slash = strchr(path, '/');
	bool hub = slash && slash != path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' && access(path, F_OK)
		&& strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") == strlen(path);
	if (!hub || strlen(path) > 128) return "";
	snprintf(hint, sizeof hint, "; if a Hugging Face name is meant: mt does not download: "
		"hf download %s --local-dir DIR", path);
	return hint;
}
