/* lines.c: a line of JSON for each document, or one of all. Documents come in the input's order, and one that is longer
 * than a row in several pieces. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
	uint32_t *teacher; /* with LINES_TOP, of each target what messages have */
	size_t teacher_words, teacher_room;
	uint32_t top, vocabulary;
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
	if (how >= LINES_REF)
		join_document(
			&(struct joined){
				.part = how == LINES_REF ? MT_PART_REF
					: how == LINES_OLD   ? MT_PART_OLD
										 : MT_PART_TEACHER,
				.sum = line.logp,
				.tokens = line.tokens,
				.n = line.n,
				.teacher = line.teacher,
				.top = line.top,
				.vocabulary = line.vocabulary,
			},
			line.of.record);
	else if (how != LINES_SUM) put_line(how, line.of, line.targets, line.logp, line.greedy);
	line.n = line.teacher_words = 0;
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

/* x, with room for so many more elements behind n */
static void *grow(void *x, size_t n, size_t more, size_t *room, size_t bytes)
{
	if (n + more <= *room) return x;
	*room = 2 * (n + more) + 4096;
	x = realloc(x, *room * bytes);
	if (!x) mt_die(MT_EX_NOMEM, "no memory for the log-probabilities of a document");
	return x;
}

static void add_token(double logp)
{
	line.tokens = grow(line.tokens, line.n, 1, &line.room, sizeof *line.tokens);
	line.tokens[line.n++] = logp;
}

static void add_teacher(const uint32_t *words, size_t n)
{
	line.teacher = grow(line.teacher, line.teacher_words, n, &line.teacher_room, sizeof *words);
	memcpy(line.teacher + line.teacher_words, words, n * sizeof *words);
	line.teacher_words += n;
}

void lines_add(enum lines how, const struct part *p, const struct mt_txn *t)
{
	const struct rows_source *in = &p->in;
	bool tokens = how == LINES_TOKENS || how == LINES_OLD;
	size_t words = MT_TEACHER_WORDS(p->top);
	line.top = p->top;
	line.vocabulary = p->vocabulary;
	for (uint64_t i = 0; i < in->source.rows * in->seq; i++) {
		bool target = in->targets[i] != MT_NO_TARGET;
		double logp = 0 - fabs(p->logp[i]);
		struct place of = p->places[i];
		if (!of.record) continue;
		bool begins = of.record != line.of.record || of.document != line.of.document;
		if (begins) open_line(how, of);
		if (begins && tokens) add_token(NAN); /* nothing predicts the first token */
		if (target) {
			if (words) add_teacher(p->teacher + i * words, words);
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
