/* lines.c: a line of JSON for each document, or one of all. Documents come in the input's order, and one that is longer
 * than a row in several pieces. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "metrics.h"
#include "mt/error.h"
#include "score.h"

static struct {
	struct place of; /* the document whose line is open; record 0: none */
	uint64_t targets;
	double logp;
	bool greedy;    /* each target is the most likely token */
	double *tokens; /* with LINES_TOKENS and LINES_OLD, of each token: NAN without target */
	size_t n, room;
} line;

static struct {
	uint64_t documents, targets;
	double loss, part; /* sums of losses: part of the newest MT_MICROS micro-batches at most, as an evaluation adds */
	uint64_t micros;
} sum;

static void put_number(double x)
{
	char number[40];
	metrics_number(number, sizeof number, x);
	fputs(number, stdout);
}

static void write_failed(void)
{
	if (ferror(stdout)) mt_die(MT_EX_IO, "stdout: %s", strerror(errno));
}

/* Of a document that --long drop left out, logp and greedy are null */
static void put_line(enum lines how, struct place of, uint64_t targets, double logp, bool greedy)
{
	printf("{\"record\": %llu, ", (unsigned long long)of.record);
	if (of.document) printf("\"doc\": %u, ", of.document);
	fputs("\"logp\": ", stdout);
	put_number(logp);
	printf(", \"targets\": %llu, \"greedy\": ", (unsigned long long)targets);
	if (isfinite(logp)) fputs(greedy ? "true" : "false", stdout);
	else fputs("null", stdout);
	for (size_t i = 0; how == LINES_TOKENS && i < line.n; i++) {
		fputs(i ? ", " : ", \"tokens\": [", stdout);
		put_number(line.tokens[i]);
	}
	puts(how == LINES_TOKENS && line.n ? "]}" : "}");
	write_failed();
}

static void close_line(enum lines how)
{
	if (!line.of.record) return;
	if (how == LINES_REF || how == LINES_OLD)
		join_document(how == LINES_REF ? MT_PART_REF : MT_PART_OLD, line.of.record, line.logp, line.tokens, line.n);
	else if (how != LINES_SUM) put_line(how, line.of, line.targets, line.logp, line.greedy);
	line.n = 0;
}

static void open_line(enum lines how, struct place of)
{
	uint64_t last = line.of.record;
	close_line(how);
	for (uint64_t dropped = last + 1; dropped < of.record && how <= LINES_TOKENS; dropped++)
		put_line(how, (struct place){dropped, 0}, 0, NAN, false);
	line.of = of;
	line.targets = 0;
	line.logp = 0;
	line.greedy = true;
	sum.documents++;
}

static void add_token(double logp)
{
	if (line.n == line.room) {
		line.room = line.room ? 2 * line.room : 4096;
		line.tokens = realloc(line.tokens, line.room * sizeof *line.tokens);
		if (!line.tokens) mt_die(MT_EX_NOMEM, "no memory for the log-probabilities of a document");
	}
	line.tokens[line.n++] = logp;
}

void lines_add(enum lines how, const struct part *p, const struct mt_txn *t)
{
	const struct rows_source *in = &p->in;
	bool tokens = how == LINES_TOKENS || how == LINES_OLD;
	for (uint64_t i = 0; i < in->source.rows * in->seq; i++) {
		bool target = in->targets[i] != MT_NO_TARGET;
		double logp = 0 - fabs(p->logp[i]);
		struct place of = p->places[i];
		if (!of.record) continue;
		bool begins = of.record != line.of.record || of.document != line.of.document;
		if (begins) open_line(how, of);
		if (begins && tokens) add_token(NAN); /* nothing predicts the first token */
		if (target) {
			line.logp += logp;
			line.greedy &= !signbit(p->logp[i]);
			line.targets++;
		}
		/* what the row's next token is predicted with; a piece's last token predicts nothing */
		bool last = (i + 1) % in->seq == 0 || in->starts[i + 1] != in->starts[i];
		if (tokens && !last) add_token(target ? logp : NAN);
	}
	for (uint32_t j = 0; j < t->micros; j++) {
		sum.part += t->losses[j].nonfinite ? NAN : t->losses[j].sum;
		if (++sum.micros % MT_MICROS) continue;
		sum.loss += sum.part;
		sum.part = 0;
	}
	sum.targets += in->source.targets;
	if (fflush(stdout)) mt_die(MT_EX_IO, "stdout: %s", strerror(errno));
}

void lines_end(enum lines how, uint64_t records)
{
	open_line(how, (struct place){records + 1, 0});
	line.of.record = 0;
	double loss = (sum.loss + sum.part) / (double)sum.targets;
	if (how == LINES_SUM) {
		printf("{\"documents\": %llu, \"targets\": %llu, \"loss\": ", (unsigned long long)sum.documents - 1,
			(unsigned long long)sum.targets);
		put_number(loss);
		fputs(", \"perplexity\": ", stdout);
		put_number(exp(loss));
		puts("}");
	}
	if (fflush(stdout)) mt_die(MT_EX_IO, "stdout: %s", strerror(errno));
}
