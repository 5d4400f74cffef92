/* options.c: parses options by a program's table, and prints --help from it. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "mt/error.h"
#include "mt/version.h"

static const struct mt_program *program;

static _Noreturn void usage_error(const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	mt_vsay(fmt, ap);
	va_end(ap);
	exit(MT_EX_USAGE);
}

/* The end of a program that has printed what it was asked for */
static _Noreturn void printed(void)
{
	if (fflush(stdout) || ferror(stdout)) mt_die(MT_EX_IO, "stdout: %s", strerror(errno));
	exit(0);
}

static _Noreturn void help(void)
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
	printed();
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

int mt_parse_hex(const char *s, uint8_t *bytes, size_t n)
{
	if (!s || strlen(s) != 2 * n || strspn(s, "0123456789abcdef") != 2 * n) return -MT_EX_USAGE;
	for (size_t i = 0; i < n; i++) sscanf(s + 2 * i, "%2hhx", bytes + i);
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

/* Levenshtein distance between a given name of n characters and an option's name */
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
	int n = (int)len, least = n / 3 + 1; /* more wrong letters than this are not a typing error */
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

/* Refuse a second value of an option that holds one: it would silently replace the first. */
static void once(const struct mt_opt *o)
{
	static bool given[MT_OPTIONS_MAX];
	ptrdiff_t i = o - program->opts;
	if (i >= MT_OPTIONS_MAX || o->type == OPT_FLAG || o->type == OPT_LIST) return;
	if (given[i]) usage_error("--%s is given twice: it takes one value", o->name);
	given[i] = true;
}

/* Parse one option at argv[*i], and move *i over its value. */
static void option(int argc, char **argv, int *i)
{
	const char *arg = argv[*i] + 2;
	size_t len = strcspn(arg, "=");
	if (len == 4 && !strncmp(arg, "help", 4)) help();
	if (len == 7 && !strncmp(arg, "version", 7)) {
		printf("%s %s\n", program->name, MT_VERSION);
		printed();
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

void mt_open_standard_fds(void)
{
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
			_exit(MT_EX_IO); /* no /dev/null, and nowhere to report it */
}

int mt_cli(const struct mt_program *p, int argc, char **argv, const char **operands, int max)
{
	program = p;
	mt_program_name = p->name;
	mt_open_standard_fds();
	mt_watch_faults();
	int n = 0;
	bool rest = false;
	for (int i = 1; i < argc; i++) {
		if (!rest && !strcmp(argv[i], "--")) rest = true;
		else if (!rest && !strcmp(argv[i], "-h")) help();
		else if (!rest && !strncmp(argv[i], "--", 2)) option(argc, argv, &i);
		else if (!rest && argv[i][0] == '-' && argv[i][1]) usage_error("unknown option %s; see --help", argv[i]);
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
