/* cli.h: the command line of every mt program: options from one table, one-line messages on stderr, exit codes. Not
 * public, and not in libmt. */
#ifndef MT_CLI_H
#define MT_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os.h"
#include "say.h"

/* A row of a table of options names the fields that it uses. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

enum mt_opt_type { OPT_FLAG, OPT_STR, OPT_CHOICE, OPT_U64, OPT_SIZE, OPT_DOUBLE, OPT_LIST };

struct mt_opt {       /* one option; the table ends with name NULL */
	const char *name; /* without the dashes */
	enum mt_opt_type type;
	void *value;      /* bool *, const char ** (STR, CHOICE), uint64_t * (U64, SIZE), double *, struct mt_strings *; it
						 holds the default, which --help shows unless it is 0 or NULL */
	const char *arg;  /* the argument's name, of a CHOICE its values: "late|early"; NULL for flags */
	const char *help; /* one line */
	bool *seen;       /* set if the option is given; may be NULL */
	const char *with; /* it is valid with one of these verbs, and with one of these options: "create --tier"; or NULL */
	bool needed;      /* its verbs need it */
	double least, most; /* of numbers, none of which is below 0; most 0: no limit */
};
/* The row of stages whose rings can be replaced */
#define MT_OPT_RING(list) \
	{ \
		"ring", OPT_LIST, &(list), "FROM=TO", "use ring TO in place of ring FROM" \
	}
enum { MT_LIST_MAX = 32, MT_OPTIONS_MAX = 64 };
struct mt_strings {
	const char *v[MT_LIST_MAX];
	int n;
};

struct mt_program {
	const char *name;  /* "mt-store" */
	const char *usage; /* one or more lines, without "usage: " */
	const char *about; /* a paragraph */
	const struct mt_opt *opts;
	const char *verbs; /* "create init": the first operand is one of them; NULL: none */
};

/* Parse argv in place. Options may come before or after operands; "--" ends options; --help, --version and --options
 * (README.md) print on stdout and exit 0. Operands go to operands[0..max-1]; returns their number. Any error ends the
 * program with 64, also if an option with one value is given twice. Every program calls this first, and it calls
 * mt_open_standard_fds. */
int mt_cli(const struct mt_program *, int argc, char **argv, const char **operands, int max);
/* If a program is started with fd 0, 1 or 2 closed, then the next file that it opens gets that number, and its messages
 * are written into that file. So open /dev/null there, in the wrong direction: reading or writing it still fails with
 * EBADF. */
void mt_open_standard_fds(void);
/* Parse an option's value. false: it is not valid */
bool mt_opt_set(const struct mt_opt *, const char *);
/* The RUN operand, or $MT_RUN if it is NULL. Without either, the program ends with 64. */
const char *mt_cli_run(const char *operand);
/* mt_say and exit(ex) */
_Noreturn void mt_die(int ex, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* rc < 0: print mt_errmsg() and exit(-rc); else return rc */
int mt_must(int rc);
/* A bug: print file and line, exit with 70 */
#define MT_ASSERT(x) ((x) ? (void)0 : mt_bug(__FILE__, __LINE__, #x))
_Noreturn void mt_bug(const char *file, int line, const char *what);
/* 4096, 64K, 10G, 1.5T. 0 or -MT_EX_USAGE */
int mt_parse_size(const char *s, uint64_t *out);
/* n bytes of 2 n hexadecimal digits, a to f small. 0 or -MT_EX_USAGE, also for NULL */
int mt_parse_hex(const char *s, uint8_t *bytes, size_t n);

/* The number of the first HUP, INT, TERM or USR1 that was not ignored at exec, or 0. USR1 lets scripts stop a program
 * for which the others are ignored. A second signal within a second is the same request; a later one kills the program
 * if twice_kills. Waits (mt_wait) return early. */
extern volatile int mt_stopping;
void mt_signals(bool twice_kills);
/* End by the signal that stopped us, so that the shell sees it in the exit status. */
_Noreturn void mt_die_of_signal(int sig);
/* A fault in a region that was truncated ends the program with 65 and one line. mt_cli calls this. */
void mt_watch_faults(void);

#endif
