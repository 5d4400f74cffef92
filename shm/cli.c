/* cli.c: options from one table, one line on stderr, exit codes. */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "lib.h"

static const struct mt_program *program = &(const struct mt_program){ .name = "mt" };

/* ------------------------------------------------------------------------------------------------ words */

static void say(const char *fmt, va_list ap)
{
	char line[1400];
	int n = snprintf(line, sizeof line, "%s: ", program->name);
	int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	size_t len = (size_t)n + (m < 0 ? 0 : (size_t)m);
	if (len > sizeof line - 2) len = sizeof line - 2;
	for (size_t i = 0; i < len; i++)    /* names come from files: a message stays one line and harmless */
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
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

/* A fault inside a region: its file was truncated, or lies on a disk that failed. No code can go on without it. Any other
 * fault is a bug, and has the handler that it had, with the same instruction. */
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
		if (l->n == 32) return false;
		l->v[l->n++] = v;
		return true;
	}
	}
	return false;
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
	if (!o || !o->name) usage_error("unknown option --%.*s; see --help", (int)len, arg);
	const char *v = arg[len] == '=' ? arg + len + 1 : NULL;
	if (o->type == OPT_FLAG) {
		if (v) usage_error("--%s takes no value", o->name);
	} else if (!v) {
		if (*i + 1 >= argc) usage_error("--%s needs %s", o->name, o->arg);
		v = argv[++*i];
	}
	if (!mt_opt_set(o, v)) usage_error("--%s: '%s' is not a valid %s", o->name, v, o->arg);
	if (o->seen) *o->seen = true;
}

int mt_cli(const struct mt_program *p, int argc, char **argv, const char **operands, int max)
{
	program = p;
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

uint64_t mt_mem_available(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	char line[128];
	unsigned long long kb;
	uint64_t have = UINT64_MAX;
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1) have = kb * 1024;
	if (f) fclose(f);
	return have;
}
