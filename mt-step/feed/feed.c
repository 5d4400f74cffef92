/* mt-feed: turns files into records. */
#include <errno.h>
#include <stdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "feed.h"
#include "mt/error.h"

enum { MAX_FILES = 4096 };

static struct feed_how how = {.epochs = 1};
static bool bytes, u16, u32, decode, allow_media, turn_end, teacher;
static uint32_t top;
static const char *config, *sep, *loss;

static const struct mt_opt options[] = {
	{"bytes", OPT_FLAG, &bytes, NULL, "FILEs are flat: each byte is an element"},
	{"u16", OPT_FLAG, &u16, NULL, "FILEs are flat: little-endian 16-bit elements"},
	{"u32", OPT_FLAG, &u32, NULL, "FILEs are flat: little-endian 32-bit elements"},
	{"eos", OPT_U64, &how.eos, "ID", "flat FILEs: a document ends after each element ID", &how.by_eos},
	{"block", OPT_U64, &how.block, "N", "flat FILEs: documents of N elements that overlap by one", .least = 2,
		.most = RECORD_MAX},
	{"epochs", OPT_U64, &how.epochs, "N", "go through the FILEs N times", .least = 1},
	{"shuffle", OPT_U64, &how.seed, "SEED", "random order of documents, given by SEED and the epoch's number",
		&how.shuffle},
	{"mix", OPT_FLAG, &how.mix, NULL, "interleave the documents of the FILEs; also if one has a weight"},
	{"decode", OPT_FLAG, &decode, NULL,
		"write the bytes of documents instead of records; FILE is stdin if none is given"},
	{"sep", OPT_STR, &sep, "STRING", "written after each document (default: a newline)", .with = "--decode"},
	{"check", OPT_FLAG, &how.check, NULL,
		"check options and the first document of each FILE (with --shuffle, --mix: all), write nothing"},
	{"config", OPT_STR, &config, "FILE", "config.json of the model, for its vocabulary", .with = "--check"},
	{"loss", OPT_CHOICE, &loss, MT_LOSS_CHOICE, "records are those of this --loss of mt-step", .with = "--check"},
	{"turn-end", OPT_FLAG, &turn_end, NULL, "print in which token most parts of records end that are trained on",
		.with = "--config"},
	{"teacher", OPT_FLAG, &teacher, NULL, "print how many tokens of a teacher the first record has", .with = "--check"},
	{"allow-image-tokens", OPT_FLAG, &allow_media, NULL,
		"with --check: records may have tokens that stand for images, video or sounds"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-feed",
	.usage = "mt-feed [--bytes|--u16|--u32] [options] FILE[:WEIGHT]...\n"
			 "mt-feed --decode [--sep STRING] < records > bytes",
	.about =
		"Writes records on stdout. FILEs of records are copied; flat FILEs are converted, by default one document a\n"
		"file. A FILE - is stdin; a directory stands for its files. A FILE of weight 2 comes twice an epoch, one of\n"
		"0.5 with half of its documents.",
	.opts = options,
};

static void parse(int argc, char **argv, struct feed_sources *sources)
{
	static const char *operands[MAX_FILES];
	int n = mt_cli(&program, argc, argv, operands, MAX_FILES);
	if (!n && decode) operands[n++] = "-";
	if (!n) mt_die(MT_EX_USAGE, "no FILE given; see --help");
	if (bytes + u16 + u32 > 1) mt_die(MT_EX_USAGE, "only one of --bytes, --u16 and --u32");
	how.format = bytes ? FEED_BYTES : u16 ? FEED_U16 : u32 ? FEED_U32 : FEED_RECORDS;
	if (how.format == FEED_RECORDS && (how.by_eos || how.block))
		mt_die(MT_EX_USAGE, "--eos and --block go with --bytes, --u16 or --u32");
	uint64_t largest = bytes ? UINT8_MAX : u16 ? UINT16_MAX : UINT32_MAX;
	if (how.by_eos && how.eos > largest) /* it would end no document, and nothing would say so */
		mt_die(MT_EX_USAGE, "--eos: %llu is above every element, at most %llu", (unsigned long long)how.eos,
			(unsigned long long)largest);
	if (how.by_eos && how.block) mt_die(MT_EX_USAGE, "only one of --eos and --block");
	how.by_loss = loss;
	if (teacher) how.top = &top;
	if (loss) mt_must(mt_loss_parse(loss, &how.loss));
	if (decode) out_decode(sep ? sep : "\n");
	mt_must(sources_open(sources, operands, n));
	how.mix |= sources->weighted;
	for (int i = 0; i < n; i++)
		if (!strcmp(sources->at[i].name, "-") && (how.epochs > 1 || how.shuffle || how.mix))
			mt_die(MT_EX_USAGE, "stdin can be read only once: not with --epochs, --shuffle, --mix or a weight");
}

/* ---- in order */

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

/* ---- shuffled */

static int feed_shuffled(const struct feed_sources *s)
{
	struct feed_index x = {0};
	int rc = 0;
	for (size_t i = 0; i < s->n_files && !rc; i++) rc = index_file(&x, s->files, i, &how);
	size_t *order = rc ? NULL : malloc((x.n + 1) * sizeof *order);
	if (!rc && !order) rc = mt_fail(MT_EX_NOMEM, "no memory for an order of %zu documents", x.n);
	for (uint64_t epoch = 0; epoch < how.epochs && !rc; epoch++) {
		index_permute(order, x.n, how.seed, epoch);
		for (size_t i = 0; i < x.n && !rc; i++) rc = index_emit(&x, order[i], &how);
	}
	free(order);
	index_close(&x);
	return rc;
}

/* ---- main */

static int check_files(const struct feed_sources *s)
{
	struct feed_ends ends = {0};
	int rc = config ? check_vocabulary(config, allow_media, &how) : 0;
	if (!rc && turn_end && how.format == FEED_RECORDS && how.vocab) {
		how.ends = &ends;
		ends.of[0] = calloc(2 * how.vocab, sizeof **ends.of);
		ends.of[1] = ends.of[0] + how.vocab;
		if (!ends.of[0]) rc = mt_fail(MT_EX_NOMEM, "no memory to count tokens");
	}
	for (size_t i = 0; i < s->n_files && !rc; i++) rc = check_file(s->files[i], &how);
	if (!rc && how.ends) rc = check_turn_end(&how);
	if (!rc && top && printf("%u\n", top) < 0) rc = mt_fail(MT_EX_IO, "stdout: %s", strerror(errno));
	free(ends.of[0]);
	return rc;
}

static int feed_in_order(const struct feed_sources *s)
{
	int rc = 0;
	for (uint64_t epoch = 0; epoch < how.epochs && !rc; epoch++)
		for (size_t i = 0; i < s->n_files && !rc; i++) rc = feed_file(s->files[i]);
	return rc;
}

int main(int argc, char **argv)
{
	struct feed_sources sources;
	parse(argc, argv, &sources);
	signal(SIGPIPE, SIG_IGN); /* write fails instead; see out_flush */
	int rc = how.check ? check_files(&sources)
		: how.mix      ? feed_mixed(&sources, &how)
		: how.shuffle  ? feed_shuffled(&sources)
					   : feed_in_order(&sources);
	out_flush();
	mt_must(rc);
	return 0;
}
