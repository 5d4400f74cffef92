/* stream-drive: the two neighbours of mt-stream, mt-step before it and mt-optim behind it, for tests that look at
 * nothing but what mt-stream sends. Nothing is trained: every step is opened, accumulated and dropped.
 *
 *     stream-drive make RUN CONFIG fp32|bf16 fp32|bf16|none STEP_TOKENS SEED [PIECE [STREAMS]]
 *         a run with random weights; PIECE: elements of a gradient piece at most, fewer than its block could hold,
 *         0: as many; STREAMS: mt-streams of the run at most
 *     stream-drive step RUN ROWS SEQ MICROS STREAMS SEED [WORD...]
 *         one step of packed random rows, dealt to STREAMS streams in turn; what comes back, a line for each micro's
 *         loss and each unit's gradient (a hash of all its bits, and its norm). Aborted, it sends all again. Words:
 *         eval        no gradients
 *         stale       abort when the first unit has come, and resend under a new attempt
 * dump=FILE the first micro's gradients, fp32, one after another in the order they came; and in FILE.map where
 *                     each tensor's are: first element, elements, name
 *         plain       rows are one document each
 *         loss=NAME   pg, dpo, simpo or orpo, of the rows' documents; a line for each micro's figures
 *         limit=S     fail when nothing comes for so long (default 60)
 *         token=N target=N start=N   put N into the second token of the first row
 *         rows=N      say so in the message
 *         grad=RING   take gradients from RING instead of grad.0
 *         pause=MS    after each message
 *     stream-drive poison RUN UNIT        the unit's first weight becomes NaN
 *     stream-drive damage RUN             the unit table is not the geometry's any more
 *     stream-drive ring RUN NAME LIKE     a ring of one's own
 *     stream-drive forget RUN             clear the reproducibility record: the next mt-stream writes a new one. No
 *                                         mt-stream may run now
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "batch.h"
#include "cli/cli.h"
#include "mt/control.h"
#include "mt/create.h"
#include "mt/documents.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "splitmix.h"

static uint64_t seed_now;
static uint32_t draw(uint32_t below) { return (uint32_t)(splitmix_next(&seed_now) % below); }
static float uniform(void) { return (float)draw(1u << 24) / (float)(1u << 23) - 1.0f; }

/* ---- make ---- */

static void fill(struct mt_run *run)
{
	const struct mt_control *c = mt_control(run);
	for (uint32_t i = 0; i < c->n_tensors; i++) {
		const struct mt_tensor *t = mt_tensor(run, i);
		const struct mt_unit *u = mt_unit(run, t->unit);
		for (uint64_t j = 0; j < t->n; j++) {
			bool norm = t->role == MT_T_NORM1 || t->role == MT_T_NORM2 || t->role == MT_T_FNORM ||
				t->role == MT_T_QNORM || t->role == MT_T_KNORM;
			float x = norm ? 1 + 0.2f * uniform() : 0.1f * uniform();
			if (c->dtype == MT_FP32) ((float *)mt_at(run, u->w))[t->off + j] = x;
			else ((uint16_t *)mt_at(run, u->w))[t->off + j] = mt_hi(mt_bits(x));
			if (u->lo) ((int16_t *)mt_at(run, u->lo))[t->off + j] = mt_lo(mt_bits(x));
		}
	}
}

static enum mt_dtype dtype_of(const char *s)
{
	return !strcmp(s, "bf16") ? MT_BF16 : !strcmp(s, "none") ? MT_NONE : MT_FP32;
}

static int make(char **a)
{
	struct mt_geometry geo;
	struct mt_run *run;
	char *text;
	mt_must(mt_config_read(a[1], &geo, &text));
	mt_must(mt_run_create(&(struct mt_create){.name = a[0],
							  .config_text = text,
							  .config_bytes = strlen(text),
							  .dtype = dtype_of(a[2]),
							  .grad = dtype_of(a[3]),
							  .step_tokens = strtoull(a[4], NULL, 10),
							  .streams = a[6] && a[7] ? (uint32_t)atoi(a[7]) : 0},
		&geo));
	mt_must(mt_run_open(&run, a[0], MT_RUN_RINGS | MT_RUN_WEIGHTS));
	mt_must(mt_stage_claim(run, MT_FILL, NULL));
	mt_run_set_state(run, MT_FILLING);
	seed_now = strtoull(a[5], NULL, 10);
	fill(run);
	if (a[6] && atoi(a[6])) mt_control(run)->piece_elems = strtoull(a[6], NULL, 10);
	mt_run_reset(run, 0, 0, &(struct mt_position){0});
	mt_run_set_state(run, MT_FILLED);
	mt_stage_release(run);
	mt_run_close(run);
	free(text);
	return 0;
}

static void poison(struct mt_run *r, char **a)
{
	const uint32_t nan32 = 0x7fc00000;
	const uint16_t nan16 = 0x7fc0;
	void *w = mt_at(r, mt_unit(r, (uint32_t)atoi(a[0]))->w);
	bool fp32 = mt_control(r)->dtype == MT_FP32;
	memcpy(w, fp32 ? (const void *)&nan32 : (const void *)&nan16, fp32 ? 4 : 2);
}

static void damage(struct mt_run *r, char **a)
{
	(void)a;
	mt_unit(r, 1)->elems -= MT_GROUP;
}

static void ring(struct mt_run *r, char **a) { mt_must(mt_ring_make(r, a[0], a[1])); }

static void forget(struct mt_run *r, char **a)
{
	(void)a;
	for (int i = MT_STREAM; i < MT_SLOTS; i++)
		if (mt_stage_alive(r, i)) mt_die(MT_EX_BUSY, "an mt-stream is at work");
	memset(&mt_control(r)->record, 0, sizeof mt_control(r)->record);
}

static const struct command {
	const char *name;
	int args; /* after the run's name */
	unsigned parts;
	void (*fn)(struct mt_run *, char **);
} commands[] = {{"poison", 1, MT_RUN_WEIGHTS, poison}, {"damage", 0, MT_RUN_CONTROL, damage},
	{"ring", 2, MT_RUN_RINGS, ring}, {"forget", 0, MT_RUN_CONTROL, forget}};

/* ---- step ---- */

struct word {
	const char *name;
	long long value;
	const char *text;
	bool set;
};
enum { W_EVAL, W_STALE, W_DUMP, W_TOKEN, W_TARGET, W_START, W_ROWS, W_GRAD, W_PLAIN, W_LIMIT, W_PAUSE, W_LOSS, WORDS };
static struct word words[WORDS] = {{.name = "eval"}, {.name = "stale"}, {.name = "dump"}, {.name = "token"},
	{.name = "target"}, {.name = "start"}, {.name = "rows"}, {.name = "grad"}, {.name = "plain"}, {.name = "limit"},
	{.name = "pause"}, {.name = "loss"}};

static struct mt_run *run;
static uint32_t rows, seq, micros, streams, k, attempt;
static uint64_t seed;
static struct mt_ring *batch[MT_STREAMS], *grad[MT_STREAMS];

/* Rows of documents of random lengths, the rest padding; the same for a micro in any stream and at any time */
static void rows_make(uint32_t micro, uint32_t *tokens)
{
	uint32_t n = rows * seq, vocab = mt_geometry(run)->vocab, *targets = tokens + n, *starts = targets + n;
	seed_now = seed * 1000 + micro;
	for (uint32_t r = 0; r < rows; r++) {
		uint32_t *tok = tokens + r * seq, *tgt = targets + r * seq, *st = starts + r * seq;
		bool plain = words[W_PLAIN].set;
		uint32_t used = r % 3 == 2 && !plain ? seq - draw(seq / 2) : seq;
		for (uint32_t t = 0, start = 0; t < seq; t++) {
			bool last = t >= used || t + 1 == used;
			if (!plain && t < used && t && draw(16) == 0) start = t, tgt[t - 1] = MT_NO_TARGET;
			tok[t] = t < used ? draw(vocab) : 0;
			tgt[t] = last || draw(8) == 0 ? MT_NO_TARGET : draw(vocab);
			st[t] = t < used ? start : used;
		}
	}
	if (words[W_TOKEN].set) tokens[1] = (uint32_t)words[W_TOKEN].value;
	if (words[W_TARGET].set) targets[1] = (uint32_t)words[W_TARGET].value;
	if (words[W_START].set) starts[1] = (uint32_t)words[W_START].value;
}

/* Neighbours in a row become pairs; one without a neighbour has no targets any more. The number that is left */
static uint32_t pairs_make(struct mt_document *d, uint32_t documents, uint32_t *targets)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < documents; i++) {
		uint32_t row = d[i].begin / seq;
		bool first = kept % 2 == 0, two = i + 1 < documents && d[i + 1].begin / seq == row;
		if (first && !two) {
			for (uint32_t at = d[i].begin; at < (row + 1) * seq; at++) targets[at] = MT_NO_TARGET;
			continue;
		}
		d[kept] = d[i];
		d[kept].side = first ? MT_CHOSEN + draw(2) : MT_CHOSEN + MT_REJECTED - d[kept - 1].side;
		kept++;
	}
	return kept;
}

/* Of documents with targets. Their number; 0: no objective */
static uint32_t objective_make(uint32_t *tokens)
{
	uint32_t n = rows * seq, documents = 0, of_row = 0, *targets = tokens + n, *starts = targets + n;
	struct mt_objective *o = (void *)((char *)tokens + batch_objective_at(n, 0));
	struct mt_document *d = (void *)(o + 1);
	enum mt_objective_kind kind;
	if (!words[W_LOSS].set) return 0;
	mt_must(mt_loss_parse(words[W_LOSS].text, &kind));
	*o = (struct mt_objective){.kind = kind,
		.scale = kind == MT_PG ? 1.0 / (n * micros) : 1.0 / (rows * micros),
		.beta = kind == MT_SIMPO ? 2 : 0.5,
		.gamma = 1,
		.low = 0.2,
		.high = 0.28,
		.chosen_scale = 2.0 / (n * micros)};
	for (uint32_t i = 0; i < n; i++) {
		const float numbers[] = {(float)draw(13) / 4 - 1, -3.5f - (float)draw(256) / 128};
		memcpy(tokens + 3 * n + i, &numbers[0], sizeof numbers[0]);
		memcpy(tokens + 4 * n + i, &numbers[1], sizeof numbers[1]);
		of_row = i % seq ? of_row : 0;
		uint32_t begin = i / seq * seq + starts[i];
		if (targets[i] == MT_NO_TARGET || (of_row && d[documents - 1].begin == begin)) continue;
		of_row++;
		d[documents++] = (struct mt_document){.begin = begin, .ref = -4.0 * draw(9)};
	}
	if (mt_losses[kind].unit == MT_PAIRS) return pairs_make(d, documents, targets);
	for (uint32_t i = 0; mt_losses[kind].unit == MT_ANSWERS && i < documents; i++) d[i].side = MT_CHOSEN + draw(2);
	return documents;
}

static void open_txn(void)
{
	k = mt_txn_newest(run) + 1;
	struct mt_txn *t = mt_txn(run, k);
	uint64_t word = mt_txn_word(run, k);

	t->step = mt_run_step(run) + 1;
	t->kind = words[W_EVAL].set ? MT_EVAL : MT_TRAIN;
	t->micros = micros;
	attempt = mt_attempt_next(run);
	MT_ASSERT(mt_txn_cas(run, k, word, mt_word(k, attempt, MT_ACCUMULATE)));
}

/* One message for a micro; blocks are two, so the caller goes on taking what comes back */
static bool batch_send(uint32_t micro)
{
	uint32_t *block = mt_ring_reserve(batch[micro % streams]);
	if (!block) return false;
	rows_make(micro, block);
	uint32_t documents = objective_make(block);
	mt_ring_push(batch[micro % streams],
		&(struct mt_msg){.k = k,
			.attempt = attempt,
			.kind = MT_MSG_BATCH,
			.txn_kind = words[W_EVAL].set ? MT_EVAL : MT_TRAIN,
			.micro = micro,
			.step = mt_txn(run, k)->step,
			.batch = {.version = mt_run_step(run),
				.rows = words[W_ROWS].set ? (uint32_t)words[W_ROWS].value : rows,
				.seq = seq,
				.micros = micros,
				.weights = documents != 0,
				.documents = documents,
				.loss_scale = 1.0 / (rows * seq * micros)}});
	return true;
}

struct seen {
	uint64_t hash[2], elems[2];
	double squares[2];
	uint32_t *bits[2]; /* (elements) as fp32, until all have come */
	bool *came[2];     /* (blocks of MT_BLOCK) */
};                     /* of a unit's ends */
struct loss_seen {
	double sum, aux, z, figures[MT_STEP_FIGURES];
	unsigned long long targets;
	bool nonfinite, entered;
};

static uint32_t losses, parts, expected_parts;
static struct seen *seen;           /* [micros][units] */
static struct loss_seen *loss_seen; /* [micros] */
static FILE *dump, *map;

/* The unit's tensors are what comes next into the dump */
static void map_write(uint32_t unit)
{
	const struct mt_unit *u = mt_unit(run, unit);
	for (uint32_t i = u->first_tensor; i < u->first_tensor + u->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(run, i);
		fprintf(map, "%llu %llu %.*s\n", (unsigned long long)((uint64_t)ftell(dump) / 4 + t->off),
			(unsigned long long)t->n, MT_TENSOR_NAME, t->name);
	}
}

/* All of a unit's gradient is here, whatever the order of its pieces */
static void unit_taken(const struct mt_msg *m, struct seen *s, uint64_t elems)
{
	uint32_t end = m->grad.end;
	if (dump && m->micro == 0) {
		map_write(m->grad.unit);
		fwrite(s->bits[end], 4, elems, dump);
	}
	for (uint64_t i = 0; i < elems; i++) {
		double x = (double)mt_float(s->bits[end][i]);
		s->hash[end] = (s->hash[end] ^ s->bits[end][i]) * 0x100000001b3u;
		s->squares[end] += x * x;
	}
	free(s->bits[end]);
	free(s->came[end]);
	s->bits[end] = NULL;
	s->came[end] = NULL;
	parts++;
}

static void piece_take(const struct mt_msg *m, const void *block)
{
	if (!loss_seen[m->micro].entered) mt_die(1, "micro %u: a piece before the loss", m->micro);
	uint64_t elem = mt_control(run)->grad == MT_BF16 ? 2 : 4, n = m->grad.n, off = m->grad.off;
	struct mt_unit *u = mt_unit(run, m->grad.unit);
	struct seen *s = &seen[m->micro * mt_control(run)->n_units + m->grad.unit];
	uint32_t end = m->grad.end;

	/* with --grad none they come from the unit's beginning on */
	if (off % MT_BLOCK || off > u->elems || !n || n > u->elems - off || (n % MT_BLOCK && off + n != u->elems) ||
		n > mt_control(run)->piece_elems || (mt_control(run)->grad == MT_NONE && off != s->elems[end]))
		mt_die(1, "unit %u end %u: piece of %llu at %llu after %llu elements", m->grad.unit, end, (unsigned long long)n,
			(unsigned long long)off, (unsigned long long)s->elems[end]);
	if (!s->elems[end]) {
		s->bits[end] = calloc(u->elems, sizeof **s->bits);
		s->came[end] = calloc(u->elems / MT_BLOCK + 1, sizeof **s->came);
	}
	if (!s->bits[end] || !s->came[end]) mt_die(1, "unit %u end %u: a piece after the last one", m->grad.unit, end);
	for (uint64_t b = off / MT_BLOCK; b * MT_BLOCK < off + n; b++) {
		if (s->came[end][b]) mt_die(1, "unit %u end %u: block %llu twice", m->grad.unit, end, (unsigned long long)b);
		s->came[end][b] = true;
	}
	for (uint64_t i = 0; i < n; i++)
		s->bits[end][off + i] = elem == 2 ? (uint32_t)((const uint16_t *)block)[i] << 16 : ((const uint32_t *)block)[i];
	s->elems[end] += n;
	if (s->elems[end] == u->elems) unit_taken(m, s, u->elems);
}

static bool take(uint32_t i, bool *dropped)
{
	struct mt_msg m;
	const void *block;
	if (!mt_ring_peek(grad[i], 0, &m, &block)) return false;
	*dropped = m.k != k || m.attempt != attempt;
	if (!*dropped && m.micro >= micros) mt_die(1, "message of micro %u", m.micro);
	if (!*dropped && m.kind == MT_MSG_LOSS) {
		struct loss_seen *l = &loss_seen[m.micro];
		l->sum = m.loss.sum;
		l->aux = m.loss.aux;
		l->z = m.loss.z;
		l->targets = m.loss.targets;
		l->nonfinite = m.loss.nonfinite;
		l->entered = true;
		losses++;
	} else if (!*dropped && m.kind == MT_MSG_FIGURES) {
		if (loss_seen[m.micro].entered) mt_die(1, "micro %u: figures after the loss", m.micro);
		memcpy(loss_seen[m.micro].figures, m.figures.figures, sizeof m.figures.figures);
	} else if (!*dropped && m.kind == MT_MSG_GRAD && m.grad.unit < mt_control(run)->n_units && m.grad.end < 2) {
		piece_take(&m, block);
	} else if (!*dropped) {
		mt_die(1, "message of kind %u", m.kind);
	}
	mt_ring_pop(grad[i]);
	if (words[W_PAUSE].set) mt_nap((int)words[W_PAUSE].value);
	return true;
}

static void report(void)
{
	uint32_t units = mt_control(run)->n_units;
	for (uint32_t m = 0; m < micros; m++) {
		printf("micro %u loss %a over %llu%s\n", m, loss_seen[m].sum, loss_seen[m].targets,
			loss_seen[m].nonfinite ? " nonfinite" : "");
		const double *f = loss_seen[m].figures;
		if (words[W_LOSS].set) printf("micro %u figures %a %a %a %a %a\n", m, f[0], f[1], f[2], f[3], f[4]);
		if (mt_geometry(run)->aux_coef != 0) printf("micro %u aux loss %a\n", m, loss_seen[m].aux);
		if (mt_geometry(run)->z_coef != 0) printf("micro %u z-loss %a\n", m, loss_seen[m].z);
		for (uint32_t u = units; u--;)
			for (uint32_t e = 0; e < 2; e++)
				if (seen[m * units + u].elems[e])
					printf("micro %u unit %u end %u hash %016llx norm %.8g\n", m, u, e,
						(unsigned long long)seen[m * units + u].hash[e], sqrt(seen[m * units + u].squares[e]));
	}
}

/* Nothing of the try before counts */
static void begin_again(void)
{
	attempt = mt_word_attempt(mt_txn_word(run, k));
	for (uint32_t i = 0; i < micros * mt_control(run)->n_units; i++)
		for (int end = 0; end < 2; end++) {
			free(seen[i].bits[end]);
			free(seen[i].came[end]);
		}
	memset(seen, 0, micros * mt_control(run)->n_units * sizeof *seen);
	memset(loss_seen, 0, micros * sizeof *loss_seen);
	losses = parts = 0;
}

static void accumulate(void)
{
	uint32_t sent = 0;
	bool stale = words[W_STALE].set, dropped;
	double limit = words[W_LIMIT].set ? (double)words[W_LIMIT].value : 60, until = mt_now() + limit;
	while (losses < micros || parts < expected_parts) {
		uint32_t event = mt_event(run);
		bool any = false;
		if (sent < micros && batch_send(sent)) sent++;
		for (uint32_t i = 0; i < streams; i++) any |= take(i, &dropped);
		if (any && stale && parts) {
			stale = false;
			MT_ASSERT(mt_txn_cas(run, k, mt_word(k, attempt, MT_ACCUMULATE),
				mt_word(k, mt_attempt_next(run), MT_ACCUMULATE)));
		}
		if (mt_word_attempt(mt_txn_word(run, k)) != attempt) {
			begin_again();
			sent = 0;
		}
		if (any) until = mt_now() + limit;
		else if (mt_now() > until)
			mt_die(1, "nothing comes: %u losses, %u of %u gradients", losses, parts, expected_parts);
		if (!any) mt_wait(run, event, 100), mt_abort_dead(run);
	}
}

static int step(char **a)
{
	mt_must(mt_run_open(&run, a[0], MT_RUN_RINGS | MT_RUN_WEIGHTS));
	rows = (uint32_t)atoi(a[1]);
	seq = (uint32_t)atoi(a[2]);
	micros = (uint32_t)atoi(a[3]);
	streams = (uint32_t)atoi(a[4]);
	seed = strtoull(a[5], NULL, 10);
	for (char **w = a + 6; *w; w++)
		for (int i = 0; i < WORDS; i++) {
			size_t n = strlen(words[i].name);
			if (strncmp(*w, words[i].name, n)) continue;
			words[i].set = true;
			words[i].text = (*w)[n] == '=' ? *w + n + 1 : "";
			words[i].value = strtoll(words[i].text, NULL, 10);
		}
	mt_must(mt_stage_claim(run, MT_STEP, NULL));
	for (uint32_t i = 0; i < streams; i++) {
		char name[32];
		snprintf(name, sizeof name, "batch.%u", i);
		mt_must(mt_ring_open(run, name, &batch[i]));
		if (words[W_GRAD].set) snprintf(name, sizeof name, "%s", words[W_GRAD].text);
		else snprintf(name, sizeof name, "grad.%u", i);
		mt_must(mt_ring_open(run, name, &grad[i]));
	}
	seen = calloc((size_t)micros * mt_control(run)->n_units, sizeof *seen);
	loss_seen = calloc(micros, sizeof *loss_seen);
	if (words[W_DUMP].set) {
		char name[4096];
		snprintf(name, sizeof name, "%s.map", words[W_DUMP].text);
		dump = fopen(words[W_DUMP].text, "w");
		map = fopen(name, "w");
		if (!dump || !map) mt_die(MT_EX_IO, "%s: %m", words[W_DUMP].text);
	}
	bool both = mt_geometry(run)->flags & MT_TIED && mt_control(run)->grad != MT_NONE;
	expected_parts = words[W_EVAL].set ? 0 : micros * (mt_control(run)->n_units + (both ? 1 : 0));
	open_txn();
	accumulate();
	report();
	MT_ASSERT(mt_txn_cas(run, k, mt_word(k, attempt, MT_ACCUMULATE), mt_word(k, attempt, MT_DONE)));
	/* a step that nobody trained: taken back, so that the next one is its successor */
	mt_txn(run, k)->step--;
	MT_ASSERT(mt_txn_cas(run, k, mt_word(k, attempt, MT_DONE), mt_word(k, attempt, MT_LOGGED)));
	if (dump) {
		fclose(dump);
		fclose(map);
	}
	mt_run_close(run);
	return 0;
}

int main(int argc, char **argv)
{
	mt_cli(&(struct mt_program){.name = "stream-drive",
			   .usage = "see the source",
			   .about = "",
			   .opts = (const struct mt_opt[]){{0}}},
		1, argv, NULL, 0);
	if (argc >= 8 && argc <= 10 && !strcmp(argv[1], "make")) return make(argv + 2);
	if (argc >= 8 && !strcmp(argv[1], "step")) return step(argv + 2);
	for (size_t i = 0; argc > 2 && i < sizeof commands / sizeof *commands; i++) {
		if (strcmp(argv[1], commands[i].name) || argc != 3 + commands[i].args) continue;
		mt_must(mt_run_open(&run, argv[2], commands[i].parts));
		commands[i].fn(run, argv + 3);
		mt_run_close(run);
		return 0;
	}
	mt_die(MT_EX_USAGE,
		"make RUN CONFIG DTYPE GRAD STEP_TOKENS SEED [PIECE [STREAMS]], "
		"or step RUN ROWS SEQ MICROS STREAMS SEED [WORD...]");
}
