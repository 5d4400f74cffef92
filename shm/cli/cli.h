/* cli.h: how every mt program meets its user: options from one table, one line on stderr, exit codes. Not public,
 * and not in libmt. */
#ifndef MT_CLI_H
#define MT_CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "os.h"
#include "say.h"

enum mt_opt_type { OPT_FLAG, OPT_STR, OPT_U64, OPT_SIZE, OPT_DOUBLE, OPT_LIST };

struct mt_opt {       /* one line of a program's options table; ends with name NULL */
	const char *name; /* without the dashes */
	enum mt_opt_type type;
	void *value;      /* bool *, const char **, uint64_t * (U64, SIZE), double *, struct mt_strings * */
	const char *arg;  /* what the help calls the argument, NULL for flags */
	const char *help; /* one line */
	bool *seen;       /* set when given; may be NULL */
};
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
};

/* Parse argv in place: options may stand before or after operands; "--" ends options; --help and --version print on
 * stdout and exit 0. Operands go to operands[0..max-1]; returns how many. Any mistake ends the program with 64; so does
 * an option with one value that is given twice. The first call of a program: it also opens fd 0, 1 and 2 where they are
 * closed; reading and writing them fails with EBADF as before. */
int mt_cli(const struct mt_program *, int argc, char **argv, const char **operands, int max);
/* An option's value from its text. false: it is not one */
bool mt_opt_set(const struct mt_opt *, const char *);
/* The RUN operand, or $MT_RUN when it is NULL; ends with 64 when there is neither. */
const char *mt_cli_run(const char *operand);
/* mt_say and exit(ex) */
_Noreturn void mt_die(int ex, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* rc < 0: say mt_errmsg() and exit(-rc); else return rc */
int mt_must(int rc);
/* A bug: says file and line, aborts with 70 */
#define MT_ASSERT(x) ((x) ? (void)0 : mt_bug(__FILE__, __LINE__, #x))
_Noreturn void mt_bug(const char *file, int line, const char *what);
/* 4096, 64K, 10G, 1.5T. 0 or -MT_EX_USAGE */
int mt_parse_size(const char *s, uint64_t *out);

/* Set by the first HUP, INT, TERM or USR1 that was not ignored at exec: the signal's number. USR1 is for scripts: who
 * runs a program where the others are ignored can still tell it. One that comes more than a second later kills as usual
 * when twice_kills; sooner, it is the same request. Waits (mt_wait) return early. */
extern volatile int mt_stopping;
void mt_signals(bool twice_kills);
/* Die of the signal that stopped us, so that the shell sees it */
_Noreturn void mt_die_of_signal(int sig);
/* Faults in a region (it was truncated) end the program with 65 and one line; mt_cli calls this */
void mt_watch_faults(void);

#endif
