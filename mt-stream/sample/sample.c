/* sample.c: mt-sample: options, prompts in, continuations out. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "feed/feed.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "sample.h"

static double temperature = 1, top_p = 1, wait_s = 10;
static uint64_t top_k, seed, max_tokens = 128, threads;
static bool echo, no_stop; /* --stop none */
static const char *logits_path, *compute_spec = "fp32";
static enum mt_dtype compute;
static struct mt_strings stop_list;
static struct stops stops;

static const struct mt_opt options[] = {
	{"temperature", OPT_DOUBLE, &temperature, "X", "divide logits by X; 0: the most likely token"},
	{"top-k", OPT_U64, &top_k, "N", "draw from the N most likely tokens only (default: all)"},
	{"top-p", OPT_DOUBLE, &top_p, "X", "draw from the fewest tokens with a share of X together; 1: all"},
	{"seed", OPT_U64, &seed, "N", "seed of the random numbers (default: 0)"},
	{"max-tokens", OPT_U64, &max_tokens, "N", "maximum new tokens of a continuation", .least = 1, .most = 1 << 24},
	{"stop", OPT_LIST, &stop_list, "ID|TEXT",
		"end after this token, or the token that completes this text; none: no token (default: the model's "
		"eos_token_id; a text stands beside it)"},
	{"echo", OPT_FLAG, &echo, NULL, "write each prompt before its continuation, in the same record"},
	{"logits", OPT_STR, &logits_path, "FILE", "write the logits of each new token, vocabulary x fp32"},
	{"compute", OPT_CHOICE, &compute_spec, "bf16|fp32",
		"type to multiply in; bf16 reads bf16 weights in place and is faster"},
	{"threads", OPT_U64, &threads, "N", "compute threads (default: usable cores; 1 if the run is being trained)",
		.most = 4096},
	{"wait", OPT_DOUBLE, &wait_s, "S", "seconds to wait for a run, its weights or a dead mt-optim"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-sample",
	.usage = "mt-sample [RUN] [options] < prompts > continuations",
	.about = "Continues the records of tokens on stdin with a run's weights, also while it trains: a record of new\n"
			 "tokens on stdout for each of them. RUN defaults to $MT_RUN.",
	.opts = options,
};

struct sampler {
	struct mt_run *run;
	const struct mt_geometry *geo;
	struct forward forward;
	struct draw draw;
	FILE *logits;
	uint32_t *tokens; /* (room): a prompt and its continuation */
	uint64_t room;
	bool warned; /* of a document above max_position_embeddings */
};

/* --stop: ids or none, and texts */
static void parse_stops(void)
{
	for (int i = 0; i < stop_list.n; i++) {
		const char *stop = stop_list.v[i];
		uint64_t id = 0;
		const struct mt_opt number = {.type = OPT_U64, .value = &id};
		if (!*stop) mt_die(MT_EX_USAGE, "--stop: an empty text");
		if (!strcmp(stop, "none")) no_stop = true;
		else if (stop[strspn(stop, "0123456789")]) mt_must(stops_add_text(&stops, stop));
		else if (!mt_opt_set(&number, stop) || id >= MT_CONTEXT_ONLY)
			mt_die(MT_EX_USAGE, "--stop: '%s': not a token", stop);
		else stops.id[stops.n++] = (uint32_t)id;
	}
	if (no_stop && stops.n) mt_die(MT_EX_USAGE, "--stop: none beside a token");
}

static void check_options(void)
{
	compute = mt_dtype_named(compute_spec);
	if (!(top_p > 0 && top_p <= 1)) mt_die(MT_EX_USAGE, "--top-p: above 0, at most 1");
	parse_stops();
}

static int threads_default(const struct mt_run *run)
{
	for (int i = 0; i < MT_STREAMS; i++)
		if (mt_stage_alive(run, MT_STREAM + i)) return 1;
	return mt_cores();
}

static int sampler_open(struct sampler *s)
{
	int rc;
	s->geo = mt_geometry(s->run);
	for (int i = 0; i < stops.n; i++)
		if (stops.id[i] >= s->geo->vocab)
			mt_say("warning: --stop %u ends nothing: the vocabulary has %u tokens", stops.id[i], s->geo->vocab);
	if (!stops.n && !no_stop) stops_of_run(s->run, &stops);
	if (stops.texts && (rc = stops_open_texts(s->run, &stops, s->geo->vocab))) return rc;
	s->draw = (struct draw){temperature, top_k, top_p, seed, s->geo->vocab, NULL};
	rc = forward_open(&s->forward, s->run, threads ? (int)threads : threads_default(s->run), compute, wait_s);
	if (!rc) rc = draw_open(&s->draw);
	if (!rc && logits_path && !(s->logits = fopen(logits_path, "wbe")))
		rc = mt_fail(MT_EX_IO, "--logits: %s: %s", logits_path, strerror(errno));
	return rc;
}

/* ---- a prompt ---- */

/* A document longer than the model was trained for */
static int check_length(struct sampler *s, uint64_t record, uint64_t n)
{
	bool longer = n + max_tokens > s->geo->max_position;
	if (longer && s->geo->flags & MT_POSITIONS)
		return mt_fail(MT_EX_CONFIG,
			"record %llu: %llu token%s and --max-tokens %llu are above %u tokens: the model has learned no more "
			"positions",
			(unsigned long long)record, (unsigned long long)n, mt_s(n), (unsigned long long)max_tokens,
			s->geo->max_position);
	if (longer && s->geo->flags & MT_SHORT_ROWS)
		return mt_fail(MT_EX_CONFIG,
			"record %llu: %llu token%s and --max-tokens %llu are above %u tokens: there this model's rope (dynamic or "
			"longrope) or indexer is not supported",
			(unsigned long long)record, (unsigned long long)n, mt_s(n), (unsigned long long)max_tokens,
			s->geo->max_position);
	if (longer && !s->warned)
		mt_say(
			"warning: record %llu: %llu token%s and --max-tokens %llu are above the model's max_position_embeddings %u",
			(unsigned long long)record, (unsigned long long)n, mt_s(n), (unsigned long long)max_tokens,
			s->geo->max_position);
	s->warned |= longer;
	return 0;
}

/* The record that r stands at, into s->tokens, with room for its continuation */
static int read_prompt(struct sampler *s, struct record_reader *r)
{
	uint64_t room = (uint64_t)r->count + max_tokens;
	int rc;
	if (r->words)
		return mt_fail(MT_EX_DATA, "stdin: record %llu: is a group; a prompt is a plain record",
			(unsigned long long)r->records);
	if (room > s->room) {
		uint32_t *more = realloc(s->tokens, room * sizeof *more);
		if (!more) return mt_fail(MT_EX_NOMEM, "no memory for a record of %u elements", r->count);
		s->tokens = more;
		s->room = room;
	}
	if ((rc = record_take(r, s->tokens, r->count))) return rc;
	for (uint32_t i = 0; i < r->count; i++) {
		s->tokens[i] &= ~MT_CONTEXT_ONLY;
		if (s->tokens[i] >= s->geo->vocab)
			return mt_fail(MT_EX_DATA, "stdin: record %llu: token %u at position %u is outside the vocabulary of %u",
				(unsigned long long)r->records, s->tokens[i], i, s->geo->vocab);
	}
	return check_length(s, r->records, r->count);
}

static int write_logits(const struct sampler *s, const float *logits)
{
	if (!s->logits || fwrite(logits, sizeof *logits, s->geo->vocab, s->logits) == s->geo->vocab) return 0;
	return mt_fail(MT_EX_IO, "--logits: %s: %s", logits_path, strerror(errno));
}

/* Continue the n tokens of the record; *made: new tokens behind them, the one that stops included */
static int continue_prompt(struct sampler *s, uint64_t record, uint32_t n, uint32_t *made)
{
	int rc = forward_room(&s->forward, n + max_tokens);
	for (*made = 0; !rc && *made < max_tokens;) {
		const float *logits;
		uint32_t token;
		rc = forward_logits(&s->forward, s->tokens, n + *made, &logits);
		if (!rc) rc = write_logits(s, logits);
		if (!rc) rc = draw_token(&s->draw, logits, record, *made, &token);
		if (rc) return rc;
		s->tokens[n + (*made)++] = token;
		bool ends = stops_text_completed(&stops, *made == 1, token);
		if (ends || stops_have(&stops, token)) break;
	}
	return rc;
}

static int sample(struct sampler *s, struct record_reader *r)
{
	int rc;
	while ((rc = record_next(r)) > 0) {
		uint32_t n = r->count, made;
		if ((rc = read_prompt(s, r)) || (rc = continue_prompt(s, r->records, n, &made))) return rc;
		uint32_t count = echo ? n + made : made;
		out_words(&count, 1);
		out_words(s->tokens + (echo ? 0 : n), count);
		out_flush();
	}
	return rc || r->records ? rc : mt_fail(MT_EX_DATA, "stdin: no record at all");
}

int main(int argc, char **argv)
{
	const char *operand = NULL;
	struct sampler s = {0};
	struct record_reader r;
	mt_cli(&program, argc, argv, &operand, 1);
	const char *run = mt_cli_run(operand);
	check_options();
	if (isatty(STDOUT_FILENO))
		mt_die(MT_EX_USAGE, "stdout is a terminal: records are binary; send them to a file or pipe");
	signal(SIGPIPE, SIG_IGN); /* write fails instead; see out_flush */
	mt_must(mt_run_attach(&s.run, run, MT_RUN_WEIGHTS | MT_RUN_READONLY, wait_s, NULL));
	mt_must(sampler_open(&s));
	mt_must(record_open(&r, STDIN_FILENO, "stdin"));
	r.before_read = out_watch;
	int rc = sample(&s, &r);
	if (s.logits && fclose(s.logits) && !rc) rc = mt_fail(MT_EX_IO, "--logits: %s: %s", logits_path, strerror(errno));
	forward_close(&s.forward);
	mt_run_close(s.run);
	mt_must(rc);
	return 0;
}
