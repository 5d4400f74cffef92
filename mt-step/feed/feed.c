/* mt-feed: turns files into records. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "feed.h"
#include "splitmix.h"

enum { MAX_FILES = 4096 };

static struct feed_how how = {.epochs = 1};
static bool bytes, u16, u32, check;
static const char *config;

static const struct mt_opt options[] = {
	{"bytes", OPT_FLAG, &bytes, NULL, "FILEs are flat: each byte is an element", NULL},
	{"u16", OPT_FLAG, &u16, NULL, "FILEs are flat: little-endian 16-bit elements", NULL},
	{"u32", OPT_FLAG, &u32, NULL, "FILEs are flat: little-endian 32-bit elements", NULL},
	{"eos", OPT_U64, &how.eos, "ID", "flat FILEs: a document ends after each element ID", &how.by_eos},
	{"block", OPT_U64, &how.block, "N", "flat FILEs: documents of N elements that overlap by one", NULL},
	{"epochs", OPT_U64, &how.epochs, "N", "go through the FILEs N times (default: 1)", NULL},
	{"shuffle", OPT_U64, &how.seed, "SEED", "random order of documents, given by SEED and the epoch's number",
		&how.shuffle},
	{"check", OPT_FLAG, &check, NULL, "check options and the first document of each FILE, write nothing", NULL},
	{"config", OPT_STR, &config, "FILE", "with --check --bytes: config.json of the model, for its vocabulary", NULL},
	{NULL, OPT_FLAG, NULL, NULL, NULL, NULL},
};

static const struct mt_program program = {
	.name = "mt-feed",
	.usage = "mt-feed [--bytes|--u16|--u32] [--eos ID|--block N] [--epochs N] [--shuffle SEED] FILE...",
	.about =
		"Writes records on stdout. FILEs of records are copied; flat FILEs are converted, by default one document a\n"
		"file. A FILE - is stdin.",
	.opts = options,
};

static void parse(int argc, char **argv, const char **files, int *n)
{
	*n = mt_cli(&program, argc, argv, files, MAX_FILES);
	if (!*n) mt_die(MT_EX_USAGE, "no FILE given; see --help");
	if (bytes + u16 + u32 > 1) mt_die(MT_EX_USAGE, "only one of --bytes, --u16 and --u32");
	how.format = bytes ? FEED_BYTES : u16 ? FEED_U16 : u32 ? FEED_U32 : FEED_RECORDS;
	if (how.format == FEED_RECORDS && (how.by_eos || how.block))
		mt_die(MT_EX_USAGE, "--eos and --block go with --bytes, --u16 or --u32");
	uint64_t largest = bytes ? UINT8_MAX : u16 ? UINT16_MAX : UINT32_MAX;
	if (how.by_eos && how.eos > largest) /* it would end no document, and nothing would say so */
		mt_die(MT_EX_USAGE, "--eos: %llu is above every element, at most %llu", (unsigned long long)how.eos,
			(unsigned long long)largest);
	if (how.by_eos && how.block) mt_die(MT_EX_USAGE, "only one of --eos and --block");
	if (how.block == 1 || how.block > RECORD_MAX) mt_die(MT_EX_USAGE, "--block: 2 to %u", RECORD_MAX);
	if (config && !check) mt_die(MT_EX_USAGE, "--config goes with --check");
	if (!how.epochs) mt_die(MT_EX_USAGE, "--epochs: at least 1");
	for (int i = 0; i < *n; i++)
		if (!strcmp(files[i], "-") && (how.epochs > 1 || how.shuffle))
			mt_die(MT_EX_USAGE, "stdin can be read only once: not with --epochs or --shuffle");
}

/* ------------------------------------------------------------------------------------------------ in order */

static int emit(void *arg, uint64_t off, uint32_t n) { return file_emit(arg, &how, off, n); }

static int feed_file(const char *name)
{
	struct feed_file f;
	bool regular;
	if (!strcmp(name, "-")) return pipe_feed(STDIN_FILENO, "stdin", &how);
	int rc = file_open(&f, name, how.epochs > 1 ? NULL : &regular);
	if (rc) return rc;
	if (how.epochs > 1 || regular) rc = file_documents(&f, &how, emit, &f);
	else rc = pipe_feed(f.fd, name, &how);
	file_close(&f);
	return rc;
}

/* ------------------------------------------------------------------------------------------------ shuffled */

struct place {
	uint64_t off;
	uint32_t file, n;
};
struct index {
	struct place *at;
	size_t n, room;
	uint32_t file;
};

static int index_add(void *arg, uint64_t off, uint32_t n)
{
	struct index *x = arg;
	if (x->n == x->room) {
		size_t room = x->room ? x->room * 2 : 1024;
		struct place *more = realloc(x->at, room * sizeof *more);
		if (!more) return mt_fail(MT_EX_NOMEM, "no memory for an index of %zu documents", room);
		x->at = more;
		x->room = room;
	}
	x->at[x->n++] = (struct place){off, x->file, n};
	return 0;
}

/* Fisher and Yates over 0..n-1. An epoch's order depends on the seed and its number alone, not on other epochs. */
static void permute(size_t *order, size_t n, uint64_t seed, uint64_t epoch)
{
	uint64_t state = seed;
	state = splitmix_next(&state) ^ epoch;
	for (size_t i = 0; i < n; i++) order[i] = i;
	for (size_t i = n; i > 1; i--) {
		/* the high half of a 128-bit product: uniform to within n / 2^64 */
		size_t j = (size_t)((unsigned __int128)splitmix_next(&state) * i >> 64), t = order[j];
		order[j] = order[i - 1];
		order[i - 1] = t;
	}
}

static int emit_shuffled(const struct index *x, const size_t *order, const char **files)
{
	struct feed_file f = {.fd = -1};
	uint32_t open = UINT32_MAX;
	int rc = 0;
	for (size_t i = 0; i < x->n && !rc; i++) {
		const struct place *p = &x->at[order[i]];
		if (p->file != open) {
			file_close(&f);
			rc = file_open(&f, files[p->file], NULL);
			open = p->file;
		}
		if (!rc) rc = file_emit(&f, &how, p->off, p->n);
	}
	file_close(&f);
	return rc;
}

static int feed_shuffled(const char **files, int n)
{
	struct index x = {0};
	int rc = 0;
	for (int i = 0; i < n && !rc; i++) {
		struct feed_file f;
		x.file = (uint32_t)i;
		rc = file_open(&f, files[i], NULL);
		if (!rc) rc = file_documents(&f, &how, index_add, &x);
		if (f.fd >= 0) file_close(&f);
	}
	size_t *order = rc ? NULL : malloc((x.n + 1) * sizeof *order);
	if (!rc && !order) rc = mt_fail(MT_EX_NOMEM, "no memory for an order of %zu documents", x.n);
	for (uint64_t epoch = 0; epoch < how.epochs && !rc; epoch++) {
		permute(order, x.n, how.seed, epoch);
		rc = emit_shuffled(&x, order, files);
	}
	free(order);
	free(x.at);
	return rc;
}

static int check_files(const char **files, int n)
{
	int rc = config && bytes ? check_vocabulary(config) : 0;
	for (int i = 0; i < n && !rc; i++) rc = check_file(files[i], &how);
	return rc;
}

int main(int argc, char **argv)
{
	static const char *files[MAX_FILES];
	int n, rc = 0;
	parse(argc, argv, files, &n);
	signal(SIGPIPE, SIG_IGN); /* write fails instead; see out_flush */
	if (check) rc = check_files(files, n);
	else if (how.shuffle) rc = feed_shuffled(files, n);
	else
		for (uint64_t epoch = 0; epoch < how.epochs && !rc; epoch++)
			for (int i = 0; i < n && !rc; i++) rc = feed_file(files[i]);
	out_flush();
	mt_must(rc);
	return 0;
}
