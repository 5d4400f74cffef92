/* options.c: parses options by a program's table, and prints --help and --options from it. */
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

enum { TEXT = 640, DEFAULT = 32 };

static const struct mt_program *program;
static char defaults[MT_OPTIONS_MAX][DEFAULT]; /* of each option, as text; "": none */
static bool is_given[MT_OPTIONS_MAX];

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

static void put_size(char *out, uint64_t n)
{
	int unit = 0;
	while (n && n % 1024 == 0 && unit < 4) {
		n /= 1024;
		unit++;
	}
	snprintf(out, DEFAULT, "%llu%.*s", (unsigned long long)n, unit > 0, &"_KMGT"[unit]);
}

/* Before anything is parsed, values are defaults. */
static void note_default(const struct mt_opt *o, char *out)
{
	if (!o->value) return;
	const char *word = o->type == OPT_STR || o->type == OPT_CHOICE ? *(const char **)o->value : NULL;
	if (word) snprintf(out, DEFAULT, "%s", word);
	if (o->type == OPT_U64 && *(uint64_t *)o->value)
		snprintf(out, DEFAULT, "%llu", (unsigned long long)*(uint64_t *)o->value);
	if (o->type == OPT_SIZE && *(uint64_t *)o->value) put_size(out, *(uint64_t *)o->value);
	if (o->type == OPT_DOUBLE && *(double *)o->value != 0) snprintf(out, DEFAULT, "%g", *(double *)o->value);
}

/* "create --tier: elements of a tile (default: 16M)" */
static void describe(const struct mt_opt *o, char out[TEXT])
{
	int n = 0;
	for (const char *s = o->with; s && *s; s++)
		n += snprintf(out + n, (size_t)(TEXT - n), *s == ' ' && (s[1] != '-' || *o->with == '-') ? ",%c" : "%c", *s);
	const char *value = defaults[o - program->opts];
	snprintf(out + n, (size_t)(TEXT - n), "%s%s%s%s%s%s", n ? ": " : "", o->help,
		o->type == OPT_LIST ? "; may be repeated" : "", *value ? " (default: " : "", value, *value ? ")" : "");
}

/* The option in the first columns, then its text, line by line */
static void help_line(const char *left, const char *text)
{
	enum { COLUMN = 29, WIDTH = 110 };
	int at = printf("  %-26s", left);
	if (at >= COLUMN) at = WIDTH; /* begin below it */
	while (*text) {
		int n = (int)strcspn(text, " ");
		if (at > COLUMN && at + 1 + n > WIDTH) at = printf("\n%*s", COLUMN - 1, "") - 1;
		at += printf(" %.*s", n, text);
		text += n + (text[n] == ' ');
	}
	putchar('\n');
}

static _Noreturn void help(void)
{
	char left[64], text[TEXT];
	printf("usage: ");
	for (const char *s = program->usage; *s; s++) {
		putchar(*s);
		if (*s == '\n' && s[1]) printf("       ");
	}
	printf("\n\n%s\n\noptions:\n", program->about);
	for (const struct mt_opt *o = program->opts; o->name; o++) {
		snprintf(left, sizeof left, "--%s%s%s", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
		describe(o, text);
		help_line(left, text);
	}
	help_line("--help", "print a summary and exit");
	help_line("--version", "print the version and exit");
	printed();
}

/* --options: README.md */
static _Noreturn void list(void)
{
	static const char *const types[] = {"flag", "value", "choice", "value", "value", "value", "list"};
	char text[TEXT];
	putchar('\t');
	for (const char *s = program->usage; *s; s++) {
		putchar(*s);
		if (*s == '\n') putchar('\t');
	}
	putchar('\n');
	for (const struct mt_opt *o = program->opts; o->name; o++) {
		describe(o, text);
		printf("%s\t%s\t%s\t%s\t%s\t%s\n", o->name, types[o->type], o->arg ? o->arg : "", defaults[o - program->opts],
			o->with ? o->with : "", text);
	}
	printf("help\tflag\t\t\t\tprint a summary and exit\nversion\tflag\t\t\t\tprint the version and exit\n");
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

/* Is the word one of those in list, between which the characters of `between` stand? */
static bool is_among(const char *word, size_t len, const char *list, const char *between)
{
	for (size_t n; *list; list += n + !!list[n]) {
		n = strcspn(list, between);
		if (n == len && !strncmp(list, word, n)) return true;
	}
	return false;
}

bool mt_opt_set(const struct mt_opt *o, const char *v)
{
	switch (o->type) {
	case OPT_FLAG: *(bool *)o->value = true; return true;
	case OPT_CHOICE:
	case OPT_STR: *(const char **)o->value = v; return o->type == OPT_STR || is_among(v, strlen(v), o->arg, "|");
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
	for (const struct mt_opt *o = program->opts; o->name; o++) {
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

/* "a|b|c", or "a b c", as "a, b or c" */
static const char *in_words(char out[TEXT], const char *list)
{
	const char *last = strpbrk(list, "| ");
	for (const char *next = last; next; next = strpbrk(last + 1, "| ")) last = next;
	int n = 0;
	for (const char *s = list; *s; s++)
		n += snprintf(out + n, (size_t)(TEXT - n), s == last ? " or " : strchr("| ", *s) ? ", " : "%c", *s);
	out[n] = 0;
	return out;
}

static _Noreturn void bad_value(const struct mt_opt *o, const char *v)
{
	double x;
	char words[TEXT];
	if (o->type == OPT_CHOICE) usage_error("--%s: '%s' is not %s", o->name, v, in_words(words, o->arg));
	if (o->type == OPT_LIST) usage_error("--%s is given more than %d times", o->name, MT_LIST_MAX);
	if (o->type == OPT_U64 && parse_double(v, &x) && x >= 0 && x != floor(x))
		usage_error("--%s %s wants a whole number: '%s' is a fraction", o->name, o->arg, v);
	usage_error("--%s: '%s' is not a valid %s", o->name, v, o->arg);
}

static void check_range(const struct mt_opt *o)
{
	bool real = o->type == OPT_DOUBLE;
	if (!real && o->type != OPT_U64 && o->type != OPT_SIZE) return;
	double x = real ? *(double *)o->value : (double)*(uint64_t *)o->value;
	if (x >= o->least && (!o->most || x <= o->most)) return;
	if (o->most) usage_error("--%s: %.15g to %.15g", o->name, o->least, o->most);
	usage_error("--%s: %.15g or more", o->name, o->least);
}

/* Refuse a second value of an option that holds one: it would silently replace the first. */
static void once(const struct mt_opt *o)
{
	bool *is = &is_given[o - program->opts];
	if (*is && o->type != OPT_FLAG && o->type != OPT_LIST)
		usage_error("--%s is given twice: it takes one value", o->name);
	*is = true;
}

/* Is one of the options given that `with` has, or does it have none? */
static bool has_company(const char *with)
{
	bool wanted = false;
	for (const struct mt_opt *o = program->opts; o->name; o++) {
		char option[64];
		int n = snprintf(option, sizeof option, "--%s", o->name);
		if (!is_among(option, (size_t)n, with, " ")) continue;
		if (is_given[o - program->opts]) return true;
		wanted = true;
	}
	return !wanted;
}

/* Does each option go with the verb, if there are verbs, and with the other options? */
static void check_company(const char *verb)
{
	char words[TEXT];
	for (const struct mt_opt *o = program->opts; o->name; o++) {
		bool is = is_given[o - program->opts], takes = verb && (!o->with || is_among(verb, strlen(verb), o->with, " "));
		if (verb && is && !takes) usage_error("%s takes no --%s", verb, o->name);
		if (takes && o->needed && !is) usage_error("%s needs --%s %s", verb, o->name, o->arg);
		if (is && o->with && !has_company(o->with))
			usage_error("--%s goes with %s", o->name, in_words(words, strchr(o->with, '-')));
	}
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
	if (len == 7 && !strncmp(arg, "options", 7)) list();
	const struct mt_opt *o = program->opts;
	while (o->name && (strlen(o->name) != len || strncmp(o->name, arg, len))) o++;
	if (!o->name) unknown_option(arg, len);
	const char *v = arg[len] == '=' ? arg + len + 1 : NULL;
	if (o->type == OPT_FLAG) {
		if (v) usage_error("--%s takes no value", o->name);
	} else if (!v) {
		if (*i + 1 >= argc) usage_error("--%s needs %s", o->name, o->arg);
		v = argv[++*i];
	}
	once(o);
	if (!mt_opt_set(o, v)) bad_value(o, v);
	check_range(o);
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
	static const struct mt_opt none;
	static struct mt_program own;
	own = *p;
	if (!p->opts) own.opts = &none;
	p = program = &own;
	mt_program_name = p->name;
	mt_open_standard_fds();
	mt_watch_faults();
	for (const struct mt_opt *o = p->opts; o->name; o++) {
		MT_ASSERT(o - p->opts < MT_OPTIONS_MAX);
		note_default(o, defaults[o - p->opts]);
	}
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
	char words[TEXT];
	if (p->verbs && !n) usage_error("no verb: %s; see --help", in_words(words, p->verbs));
	if (p->verbs && !is_among(operands[0], strlen(operands[0]), p->verbs, " "))
		usage_error("unknown verb '%s'; see --help", operands[0]);
	check_company(p->verbs ? operands[0] : NULL);
	return n;
}

const char *mt_cli_run(const char *operand)
{
	if (!operand) operand = getenv("MT_RUN");
	if (!operand || !*operand) usage_error("no RUN given and MT_RUN is not set");
	return operand;
}
