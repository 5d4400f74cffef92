/* mt-score: log-probabilities of records under the weights of a run.
 *
 * Evaluations whose answers are log-probabilities, too, one after another, each of as many rows as stay in memory. This
 * process has the slots of mt-step and of mt-optim: it opens evaluations, deals their micro-batches, takes the answers,
 * and commits. Weights do not change. */
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mt/control.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "progress.h"
#include "saves.h"
#include "score.h"

/* micro-batches of an evaluation; where answers are long */
enum { PART_MICROS = 64, PART_MICROS_TOP = 8 };

static struct options o = {.wait = 10};
static const char *pack_name = "docs", *long_name = "split", *join;
static bool tokens, summed;
static uint64_t top;
static uint64_t expected; /* bytes of the input; 0: not known */

static const struct mt_opt table[] = {
	{"seq", OPT_U64, &o.seq, "T", "tokens a row"},
	{"micro", OPT_U64, &o.micro, "SEQS", "rows a micro-batch (default: as many as the run's rings take)"},
	{"pack", OPT_CHOICE, &pack_name, "docs|none", "several documents in a row, or one"},
	{"long", OPT_CHOICE, &long_name, "split|drop|truncate", "what becomes of documents longer than a row"},
	{"tokens", OPT_FLAG, &tokens, NULL, "also the log-probability of each token"},
	{"sum", OPT_FLAG, &summed, NULL, "one line instead: the mean loss of all, and the perplexity"},
	{"join", OPT_CHOICE, &join, "ref|old", "write the records again instead, with this part of documents"},
	{"top", OPT_U64, &top, "K",
		"write the records again instead, with the K most likely tokens of each target, for kd"},
	{"allow-image-tokens", OPT_FLAG, &o.allow_media, NULL,
		"models with images: take records with tokens that stand for images, video or sounds"},
	{"expect", OPT_SIZE, &expected, "BYTES", "size of the input, for the time left (default: that of a file)"},
	{"wait", OPT_DOUBLE, &o.wait, "S", "seconds to wait for a stage that is missing"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-score",
	.usage = "mt-score [RUN] --seq T [options] < records > lines\n"
			 "mt-score [RUN] --seq T --join ref|old [options] < records > records\n"
			 "mt-score [RUN] --seq T --top K [options] < records > records",
	.about = "Writes the log-probability of each record under the weights of RUN, a JSON object a line. It takes the\n"
			 "places of mt-step and mt-optim; mt-streams compute.",
	.opts = table,
};

static struct driver driver;

static void leave(void)
{
	driver_leave(&driver);
	answers_leave();
}

static enum lines parse(int argc, char **argv)
{
	const char *run = NULL;
	mt_cli(&program, argc, argv, &run, 1);
	o.run = mt_cli_run(run);
	if (o.seq < 2 || o.seq > SEQ_MAX) mt_die(MT_EX_USAGE, "--seq T is needed, 2 to %u", SEQ_MAX);
	pack_how_parse(pack_name, &o.pack);
	pack_long_parse(long_name, &o.pack);
	const char *records = join ? "--join" : "--top";
	if (join && top) mt_die(MT_EX_USAGE, "only one of --join and --top");
	if ((join || top) && (tokens || summed))
		mt_die(MT_EX_USAGE, "%s writes records: not with --tokens or --sum", records);
	if ((join || top) && (o.pack & LONG_MASK) == LONG_TRUNCATE)
		mt_die(MT_EX_USAGE, "%s writes whole records: not with --long truncate", records);
	if (tokens && summed) mt_die(MT_EX_USAGE, "only one of --tokens and --sum");
	if (isatty(STDIN_FILENO)) mt_die(MT_EX_USAGE, "stdin is a terminal; records are read there");
	if (top) return LINES_TOP;
	if (join) return strcmp(join, "ref") ? LINES_OLD : LINES_REF;
	return tokens ? LINES_TOKENS : summed ? LINES_SUM : LINES_DOCUMENTS;
}

/* Nothing may be open that mt-step or mt-optim has begun. An evaluation that is done, with a logged step before it, is
 * that of an mt-score which was killed. */
static void check_finished(struct mt_run *run)
{
	driver_withdraw(&driver);
	uint32_t k = mt_txn_newest(run);
	enum mt_phase phase = driver_phase(&driver, k), before = k ? driver_phase(&driver, k - 1) : MT_LOGGED;
	if (phase == MT_DONE && mt_txn(run, k)->kind == MT_EVAL && before == MT_LOGGED) {
		driver_logged(&driver, k);
		return;
	}
	if (phase == MT_LOGGED && before == MT_LOGGED) return;
	mt_die(MT_EX_BUSY,
		"run '%s': step %llu was begun by mt-step and is not finished: let mt-step and mt-optim finish it", o.run,
		(unsigned long long)mt_txn(run, k)->step);
}

static void enter(void)
{
	struct mt_run *run;
	mt_must(mt_run_attach(&run, o.run, MT_RUN_RINGS, o.wait, &mt_stopping));
	if (mt_nodes(run) > 1)
		mt_die(MT_EX_CONFIG, "run '%s' is on %u nodes: score a part of the records on each, in a run of its own", o.run,
			mt_nodes(run));
	uint64_t reported = saves_reported(run);
	mt_must(mt_stage_claim(run, MT_STEP, NULL));
	driver.run = run; /* from here on leave() releases the slots */
	atexit(leave);
	uint64_t most = mt_control(run)->step_tokens / o.seq;
	if (!o.micro) o.micro = most ? most : 1;
	mt_must(driver_open(&driver, run, &o));
	saves_begin(&driver, reported);
	options_check_seq(&o, mt_geometry(run));
	check_finished(run);
	if (top > mt_geometry(run)->vocab)
		mt_die(MT_EX_USAGE, "--top %llu: the vocabulary has %u tokens", (unsigned long long)top,
			mt_geometry(run)->vocab);
	answers_open(&o, (uint32_t)top);
	driver.wakes |= answers_wake();
}

/* ---- the progress line */

struct amount {
	double bytes, records, tokens;
};
static struct amount scored; /* before the newest part */
static double shown;         /* when it was drawn */

static struct amount amount_read(const struct packer *p)
{
	return (struct amount){(double)(p->in->read - (p->in->end - p->in->at)), (double)p->records, (double)p->tokens};
}

static void show(const struct packer *p)
{
	static double began;
	const double every = 0.2;
	double now = mt_now(), share = answers_share();
	if (!began) began = now;
	if (now - shown < every) return;
	shown = now;
	struct amount read = amount_read(p);
	double s = now - began, bytes = scored.bytes + share * (read.bytes - scored.bytes);
	bool known = bytes > 0 && (double)expected >= bytes;
	progress_score((uint64_t)(scored.records + share * (read.records - scored.records)),
		s > 0 ? (scored.tokens + share * (read.tokens - scored.tokens)) / s : 0,
		known ? s * ((double)expected / bytes - 1) : NAN);
}

static void score(struct part *p, enum lines how, const struct packer *packer)
{
	struct mt_run *run = driver.run;
	struct mt_committed c;
	mt_run_committed(run, &c);
	uint32_t k = driver_begin(&driver, MT_EVAL, c.step, 0, false, false, &c.position, &p->in.source);
	for (;;) {
		uint32_t seen = mt_event(run);
		driver_turn(&driver);
		bool all = answers_take(&driver, k, p);
		show(packer);
		if (all) break;
		driver_sleep(&driver, seen);
	}
	scored = amount_read(packer);
	if (isatty(STDOUT_FILENO)) progress_clear();
	lines_add(how, p, mt_txn(run, k));
	driver_logged(&driver, k);
}

int main(int argc, char **argv)
{
	static struct part part;
	struct record_reader in;
	struct packer packer;
	int64_t rows;
	struct stat st;
	mt_before_say = progress_clear;
	enum lines how = parse(argc, argv);
	if (!expected && fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode)) expected = (uint64_t)st.st_size;
	enter();
	struct vocabulary vocab = vocabulary_of_run(&o, driver.run);
	mt_must(part_open(&part, (top ? PART_MICROS_TOP : PART_MICROS) * o.micro, o.seq, (uint32_t)top, vocab.size));
	mt_must(record_open(&in, STDIN_FILENO, "stdin"));
	if (join || top) in.whole = join_keep;
	mt_must(packer_open(&packer, &in, o.pack, (uint32_t)o.seq, &vocab));
	driver.scores = top ? 3 : 2;
	driver.top = (uint32_t)top;
	while ((rows = part_read(&part, &packer)) > 0) score(&part, how, &packer);
	mt_must((int)rows);
	if (!packer.documents) mt_die(MT_EX_DATA, "stdin: no record at all");
	progress_clear();
	lines_end(how, packer.documents);
	shown = 0;
	if (!isatty(STDOUT_FILENO)) show(&packer);
	uint64_t left_out = join_end();
	if (left_out)
		mt_say("%llu record%s longer than --seq %llu and left out", (unsigned long long)left_out,
			left_out == 1 ? " is" : "s are", (unsigned long long)o.seq);
	return 0;
}
